//! Parses a request as its route's row defines: path parameters, query, body.
//!
//! Owns what is refused before the handler runs. Must not know what the handler does.

use std::collections::BTreeMap;

use axum::body::{self, Body};
use axum::extract::{RawPathParams, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize as _, Deserializer};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::error::ApiError;
use super::routes::{Answer, ParamKind, Route};
use crate::api::tokens::Caller;
use crate::api::web_socket::UpgradeRequest;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;

/// The default number of items per page.
pub(super) const PAGE: u32 = 100;
/// The maximum number of items per page.
pub(super) const LONGEST_PAGE: u32 = 500;

/// A parsed request.
pub(super) struct RequestContext {
    pub(super) caller: Caller,
    pub(super) headers: HeaderMap,
    /// When its connection is closed.
    pub(super) deadline: Instant,
    /// The upgrade, if the client wants a WebSocket.
    pub(super) websocket: Option<UpgradeRequest>,
    path_params: BTreeMap<String, String>,
    query: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl RequestContext {
    pub(super) async fn from_request(
        route: &Route,
        caller: Caller,
        until: Instant,
        names: &RawPathParams,
        request: Request,
    ) -> Result<Self, ApiError> {
        let names = names
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let query = query(route, request.uri().query().unwrap_or(""))?;
        let headers = request.headers().clone();
        let (mut parts, body) = request.into_parts();
        let socket = match route.response.1 {
            Answer::Stream | Answer::WebSocket => UpgradeRequest::from_parts(&mut parts)
                .await
                .map_err(|error| ApiError::bad_request(error.to_string()))?,
            Answer::Nothing | Answer::Json(_) => None,
        };
        // Only the supervisor's user may have it keep this much.
        let most = match caller.uid {
            Some(_) => route.body_bytes,
            None => route.body_bytes.min(limits::HTTP_PUT_BODY_BYTES),
        };
        let body = if route.body.is_some() {
            json_body(&headers, body, most).await?
        } else {
            Vec::new()
        };
        Ok(Self {
            caller,
            headers,
            deadline: until,
            websocket: socket,
            path_params: names,
            query,
            body,
        })
    }

    /// Returns a path parameter.
    pub(super) fn path_param(&self, name: &str) -> &str {
        self.path_params.get(name).map_or("", String::as_str)
    }

    /// Returns a query parameter, if it was sent.
    pub(super) fn query_param(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Returns a boolean query parameter.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.query_param(name).map(|word| word == "true")
    }

    /// Returns the requested number of items.
    pub(super) fn limit(&self) -> u32 {
        let limit = self.query_param("limit").and_then(|text| text.parse().ok());
        limit.unwrap_or(PAGE)
    }

    /// Parses the body strictly.
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        if !self.body.trim_ascii_start().starts_with(b"{") {
            return Err(ApiError::bad_request("the body is not a JSON object"));
        }
        let read = serde_json::from_slice(&self.body);
        read.map_err(|error| {
            ApiError::bad_request(format!(
                "invalid body: {}",
                escape_for_display(&error.to_string(), 300)
            ))
        })
    }

    /// Returns the raw body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.body
    }
}

/// Reads a member that must be an object: a struct would also be read from an array.
pub(super) fn object<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let members = Map::<String, Value>::deserialize(from)?;
    T::deserialize(Value::Object(members)).map_err(D::Error::custom)
}

/// Reads a member that must be a list of objects.
pub(super) fn objects<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let items = Vec::<Map<String, Value>>::deserialize(from)?
        .into_iter()
        .map(|members| T::deserialize(Value::Object(members)));
    items.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Parses a query strictly: every key must be one of the route's and occur once.
fn query(route: &Route, text: &str) -> Result<BTreeMap<String, String>, ApiError> {
    let mut params = BTreeMap::new();
    for piece in text.split('&').filter(|piece| !piece.is_empty()) {
        let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
        let (Some(key), Some(value)) = (percent_decode(key), percent_decode(value)) else {
            return Err(ApiError::bad_request(
                "the query is not percent-encoded UTF-8",
            ));
        };
        let shown = escape_for_display(&key, 60);
        let Some(known) = route.query.iter().find(|known| known.name == key) else {
            let names: Vec<&str> = route.query.iter().map(|known| known.name).collect();
            let there_are = match names.as_slice() {
                [] => "this resource accepts none".to_owned(),
                names => format!("the keys are {}", names.join(", ")),
            };
            return Err(ApiError::bad_request(format!(
                "unknown query key {shown:?}; {there_are}"
            )));
        };
        let fits = match known.kind {
            ParamKind::Limit => value.parse::<u32>().is_ok_and(|number| {
                (1..=LONGEST_PAGE).contains(&number) && !value.starts_with('+')
            }),
            ParamKind::Flag => matches!(value.as_str(), "true" | "false"),
            ParamKind::OneOf(words) => words.contains(&value.as_str()),
            ParamKind::Text { longest } => !value.is_empty() && value.chars().count() <= longest,
        };
        if !fits {
            return Err(ApiError::bad_request(format!(
                "query key {shown:?} must be {}",
                known.kind.describe()
            )));
        }
        if params.insert(key, value).is_some() {
            return Err(ApiError::bad_request(format!(
                "query key {shown:?} is given twice"
            )));
        }
    }
    Ok(params)
}

/// Decodes percent-encoding, and `+` as a space; `None` if it is invalid or not UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

async fn json_body(headers: &HeaderMap, body: Body, most: u64) -> Result<Vec<u8>, ApiError> {
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|of| {
        let of = of.as_bytes();
        of == b"application/json" || of.starts_with(b"application/json;")
    });
    if !is_json {
        let detail = "the body must be application/json";
        return Err(
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).with_connection_close()
        );
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        let detail = format!("the body is too large: the limit is {most} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with_connection_close());
    }
    let read = body::to_bytes(body, most);
    match tokio::time::timeout(limits::HTTP_BODY_TIMEOUT, read).await {
        Ok(Ok(body)) => Ok(body.into()),
        Ok(Err(_)) => Err(ApiError::bad_request("the body is incomplete").with_connection_close()),
        Err(_) => {
            let detail = "the body was not received in time";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, detail).with_connection_close())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Pair {
        a: Option<u8>,
        b: Option<u8>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Holder {
        #[serde(deserialize_with = "object")]
        one: Pair,
        #[serde(deserialize_with = "objects")]
        many: Vec<Pair>,
    }

    #[test]
    fn an_array_is_no_object() {
        let good: Holder = serde_json::from_str(r#"{"one":{"a":1},"many":[{"b":2}]}"#).expect("it");
        assert_eq!((good.one.a, good.many[0].b), (Some(1), Some(2)));
        for bad in [
            r#"{"one":[1,null],"many":[]}"#,
            r#"{"one":{},"many":[[null,2]]}"#,
            r#"{"one":{},"many":{}}"#,
        ] {
            assert!(serde_json::from_str::<Holder>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn percent_encoding_is_undone_or_refused() {
        assert_eq!(percent_decode("a%20b+c").as_deref(), Some("a b c"));
        assert_eq!(percent_decode("%E2%82%AC").as_deref(), Some("\u{20ac}"));
        for bad in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }
}
