//! Asks the routes of the API in this process, as the browser's session.
//!
//! The request goes through the API's own guard, with its role, rate and limits.

use axum::body::{Body, to_bytes};
use axum::extract::MatchedPath;
use axum::http::{Extensions, HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower_service::Service as _;

use crate::App;
use crate::layout::message;
use marshal_engine::api::v1::caller::CallerView;
use marshal_model::Role;

/// The maximum size of an answer. The largest are diffs, of 4 MiB of lines.
const ANSWER_BYTES: usize = 16 << 20;

/// A page of a list.
#[derive(Deserialize)]
pub(crate) struct List<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<String>,
}

/// Why the API did not do what was asked.
#[derive(Debug, Deserialize)]
pub(crate) struct Problem {
    status: u16,
    detail: String,
}

impl Problem {
    fn of(status: StatusCode, detail: &str) -> Self {
        Self {
            status: status.as_u16(),
            detail: detail.to_owned(),
        }
    }

    /// What is wrong, and what to do.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The answer to the browser. Without a valid token there is nothing but the login.
    pub(crate) fn into_page(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        match status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR) {
            StatusCode::UNAUTHORIZED => Redirect::to("/login").into_response(),
            status => {
                let title = status.canonical_reason().unwrap_or("Error");
                message(status, title, &self.detail)
            }
        }
    }
}

/// The API, for one request of a browser.
pub(crate) struct Api {
    router: axum::Router,
    extensions: Extensions,
}

/// Who the browser's session stands for.
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) approvals_only: bool,
}

impl Caller {
    pub(crate) fn may(&self, role: Role) -> bool {
        self.role.satisfies(role)
    }
}

impl Api {
    /// `extensions` are those of the browser's request: its session, its peer and its connection.
    pub(crate) fn new(app: &App, extensions: &Extensions) -> Self {
        let mut extensions = extensions.clone();
        extensions.remove::<MatchedPath>();
        Self {
            router: app.api.clone(),
            extensions,
        }
    }

    /// Sends a request; an answer that is no success is a problem.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Option<&Value>,
    ) -> Result<Response, Problem> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len());
        if let Some(id) = headers.get("last-event-id") {
            request = request.header("last-event-id", id);
        }
        let mut request = request
            .body(Body::from(body))
            .map_err(|_| Problem::of(StatusCode::NOT_FOUND, "there is no such page"))?;
        *request.extensions_mut() = self.extensions.clone();
        let Ok(response) = self.router.clone().call(request).await;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = to_bytes(response.into_body(), ANSWER_BYTES).await;
        let problem = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok());
        Err(problem.unwrap_or_else(|| Problem::of(status, "the API gave no reason")))
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Problem> {
        let answer = self.send(method, path, &HeaderMap::new(), body).await?;
        let bytes = to_bytes(answer.into_body(), ANSWER_BYTES).await;
        let read = bytes.ok().map(|bytes| serde_json::from_slice(&bytes));
        let broken = || {
            let detail = "the answer of the API could not be read";
            Problem::of(StatusCode::INTERNAL_SERVER_ERROR, detail)
        };
        read.ok_or_else(broken)?.map_err(|_| broken())
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        self.read(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, Problem> {
        self.read(Method::POST, path, body).await
    }

    /// All items of a list, at most `most`.
    pub(crate) async fn all<T: DeserializeOwned>(
        &self,
        path: &str,
        most: usize,
    ) -> Result<Vec<T>, Problem> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let page: List<T> = self.get(&format!("{path}?limit=500{cursor}")).await?;
            items.extend(page.items);
            match page.next {
                Some(next) if items.len() < most => {
                    cursor = format!("&cursor={}", crate::text::encode(&next));
                }
                _ => return Ok(items),
            }
        }
    }

    pub(crate) async fn caller(&self) -> Result<Caller, Problem> {
        let caller: CallerView = self.get("/api/v1/caller").await?;
        Ok(Caller {
            name: caller.name,
            role: Role::parse(&caller.role).unwrap_or(Role::Read),
            approvals_only: caller.approvals_only,
        })
    }
}

impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.into_page()
    }
}
