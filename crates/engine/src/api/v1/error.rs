//! Why a request is not done: `application/problem+json`, as RFC 9457 has it.
//!
//! Owns the statuses. A detail is made to be shown: what is foreign in it has no control characters.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::routes::Route;
use crate::api::http::{problem, with_connection_close};
use marshal_model::untrusted::escape_for_display;

/// Characters of a detail.
const DETAIL: usize = 1000;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    detail: String,
    allow: Option<String>,
    /// In how many seconds it may be asked again.
    retry_after: Option<&'static str>,
    /// What is left of the request is not read.
    closes_connection: bool,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            allow: None,
            retry_after: None,
            closes_connection: false,
        }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// It cannot be done now.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(super) fn method_not_allowed(routes: &[&Route]) -> Self {
        let mut allow: Vec<&str> = routes.iter().map(|route| route.method.as_str()).collect();
        if allow.contains(&"GET") {
            allow.push("HEAD");
        }
        let allow = allow.join(", ");
        let detail = format!("this resource takes {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    /// Says in how many seconds to come again.
    pub(super) fn with_retry_after(self, seconds: &'static str) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// The connection ends with the answer.
    pub(super) fn with_connection_close(self) -> Self {
        Self {
            closes_connection: true,
            ..self
        }
    }

    pub(super) fn into_response(self) -> Response {
        let mut response = problem(self.status, &escape_for_display(&self.detail, DETAIL));
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let allow = self.allow.and_then(|allow| allow.parse().ok());
        if let Some(allow) = allow {
            headers.insert(header::ALLOW, allow);
        }
        if let Some(again) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(again));
        }
        if self.closes_connection {
            return with_connection_close(response);
        }
        response
    }
}
