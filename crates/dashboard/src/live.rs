//! Live parts of pages: the API's streams of events, with HTML in place of JSON.
//!
//! Each chunk of the API's stream has whole events and becomes one chunk, so nothing is kept here, and
//! a slow browser slows only its own stream.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{Extensions, HeaderMap, Method};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use crate::App;
use crate::api::{Api, Problem};
use crate::text::encode;
use crate::{fleet, layout, request, session};
use marshal_engine::api::v1::activity::{ActivityRows, ActivitySummary};

/// One event of the API.
struct Event<'c> {
    id: Option<&'c str>,
    kind: &'c str,
    data: &'c str,
}

impl Event<'_> {
    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.data).ok()
    }
}

/// Opens a stream of the API; `show` makes the HTML of an event, nothing if the page does not show it.
async fn open(
    api: &Api,
    path: &str,
    headers: &HeaderMap,
    mut show: impl FnMut(&Event<'_>) -> Option<String> + Send + 'static,
) -> Result<Response, Problem> {
    let response = api.send(Method::GET, path, headers, None).await?;
    let (parts, body) = response.into_parts();
    let body = body.map_frame(move |frame| frame.map_data(|chunk| translate(&chunk, &mut show)));
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Translates a chunk. Lines that are no event (comments, `retry`) stay as they are.
fn translate(chunk: &[u8], show: &mut impl FnMut(&Event<'_>) -> Option<String>) -> Bytes {
    let text = String::from_utf8_lossy(chunk);
    let mut out = String::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let (Some(kind), Some(data)) = (field("event: "), field("data: ")) else {
            out.extend([block, "\n\n"]);
            continue;
        };
        let id = field("id: ");
        if let Some(id) = id {
            out.extend(["id: ", id, "\n"]);
        }
        match show(&Event { id, kind, data }) {
            // htmx swaps messages without a name.
            Some(html) => out.extend(["data: ", &html.replace('\n', "\ndata: "), "\n\n"]),
            // A comment: a chunk must not be empty.
            None => out += ": \n\n",
        }
    }
    out.into()
}

pub(crate) async fn fleet(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let fields = request::fields(query.as_deref().unwrap_or(""));
    let has_rows = fields.get("rows").is_some_and(|rows| rows == "true");
    let path = format!("/api/v1/activity/events?rows={has_rows}");
    let api = Api::new(&app, &extensions);
    let show = move |event: &Event<'_>| match event.kind {
        "rows" => {
            let rows: ActivityRows = event.read()?;
            let rows = rows.items.iter().map(|item| fleet::row(item, true));
            Some(rows.map(maud::PreEscaped::into_string).collect())
        }
        "summary" => {
            let summary: ActivitySummary = event.read()?;
            let mut html = layout::badge(summary.approvals).into_string();
            if has_rows {
                html += &fleet::totals(&summary).into_string();
            }
            Some(html)
        }
        _ => None,
    };
    open(&api, &path, &headers, show).await
}

pub(crate) async fn session(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let fields = request::fields(query.as_deref().unwrap_or(""));
    let is_raw = fields.get("raw").is_some_and(|raw| raw == "true");
    let path = format!("/api/v1/sessions/{}/events", encode(&id));
    let api = Api::new(&app, &extensions);
    let show = move |event: &Event<'_>| {
        event.id?;
        Some(session::event(event.kind, event.data, is_raw)?.into_string())
    };
    open(&api, &path, &headers, show).await
}

pub(crate) async fn log(
    State(app): State<App>,
    Path((pool, slot)): Path<(String, String)>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = format!(
        "/api/v1/slots/{}/{}/logs?follow=true",
        encode(&pool),
        encode(&slot)
    );
    let api = Api::new(&app, &extensions);
    let show = |event: &Event<'_>| Some(session::log_line(event.data)?.into_string());
    open(&api, &path, &headers, show).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_messages_and_the_rest_stays() {
        let chunk = "retry: 500\n\nid: 3-1\nevent: text\ndata: {\"a\":1}\n\nevent: end\ndata: {}\n\n: nothing new\n\n";
        let mut show = |event: &Event<'_>| {
            (event.kind == "text")
                .then(|| format!("<p>{}\n{}</p>", event.id.unwrap_or(""), event.data))
        };
        let made = translate(chunk.as_bytes(), &mut show);
        let made = String::from_utf8_lossy(&made);
        assert_eq!(
            made,
            "retry: 500\n\nid: 3-1\ndata: <p>3-1\ndata: {\"a\":1}</p>\n\n: \n\n: nothing new\n\n"
        );
    }
}
