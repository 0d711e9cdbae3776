//! The error responses: `application/problem+json` of RFC 9457.
//!
//! Owns the statuses. A detail is safe to display: control characters of untrusted text are
//! escaped.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::routes::Route;
use crate::api::http::{ProblemKind, problem_of, with_connection_close};
use marshal_model::untrusted::escape_for_display;

/// The maximum length of a detail, in characters.
const DETAIL: usize = 1000;

/// When a client may try again what cannot be carried out now, in seconds.
const RETRY_AFTER: &str = "5";

/// An error response that is not sent yet.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: ProblemKind,
    detail: String,
    allow: Option<String>,
    /// The value of `Retry-After`, in seconds.
    retry_after: Option<&'static str>,
    /// The connection is closed after the response, because the rest of the request is not read.
    closes_connection: bool,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            kind: ProblemKind::of(status),
            detail: detail.into(),
            allow: None,
            retry_after: None,
            closes_connection: false,
        }
    }

    /// A `cursor` that no page had as its `next`.
    pub(super) fn bad_cursor() -> Self {
        Self::bad_request("query key \"cursor\" must be the `next` of a page")
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

    /// Creates a 503: the request cannot be carried out now.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Creates a 503: the supervisor accepts nothing any more.
    pub(super) fn stopping() -> Self {
        Self::unavailable("the supervisor is stopping").with_kind(ProblemKind::Stopping)
    }

    /// Creates a 409: the supervisor takes no work of others.
    pub(super) fn no_daemon() -> Self {
        let detail = "this supervisor serves only the command that started it: wait until it ends, or start `marshal up`";
        Self::conflict(detail).with_kind(ProblemKind::NoDaemon)
    }

    pub(super) fn method_not_allowed(routes: &[&Route]) -> Self {
        let mut allow: Vec<&str> = routes.iter().map(|route| route.method.as_str()).collect();
        if allow.contains(&"GET") {
            allow.push("HEAD");
        }
        let allow = allow.join(", ");
        let detail = format!("this resource allows {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    /// Narrows the kind that the status has.
    pub(super) fn with_kind(self, kind: ProblemKind) -> Self {
        Self { kind, ..self }
    }

    /// Adds `Retry-After`.
    pub(super) fn with_retry_after(self, seconds: &'static str) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// Closes the connection after the response.
    pub(super) fn with_connection_close(self) -> Self {
        Self {
            closes_connection: true,
            ..self
        }
    }

    pub(super) fn into_response(self) -> Response {
        let mut response = problem_of(
            self.kind,
            self.status,
            &escape_for_display(&self.detail, DETAIL),
        );
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let allow = self.allow.and_then(|allow| allow.parse().ok());
        if let Some(allow) = allow {
            headers.insert(header::ALLOW, allow);
        }
        let is_unavailable = self.status == StatusCode::SERVICE_UNAVAILABLE;
        let again = self.retry_after.or(is_unavailable.then_some(RETRY_AFTER));
        if let Some(again) = again {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(again));
        }
        if self.closes_connection {
            return with_connection_close(response);
        }
        response
    }
}
