//! Why a request is not done: `application/problem+json`, as RFC 9457 has it.
//!
//! Owns the statuses. A detail is made to be shown: what is foreign in it has no control characters.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::routes::Route;
use crate::api::http::{closing, problem};
use crate::model::foreign::show;

/// Characters of a detail.
const DETAIL: usize = 1000;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Fault {
    status: StatusCode,
    detail: String,
    allow: Option<String>,
    /// In how many seconds it may be asked again.
    again: Option<&'static str>,
    /// What is left of the request is not read.
    closes: bool,
}

impl Fault {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            allow: None,
            again: None,
            closes: false,
        }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
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

    pub(super) fn wrong_method(routes: &[&Route]) -> Self {
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
    pub(super) fn again(self, seconds: &'static str) -> Self {
        Self {
            again: Some(seconds),
            ..self
        }
    }

    /// The connection ends with the answer.
    pub(super) fn closing(self) -> Self {
        Self {
            closes: true,
            ..self
        }
    }

    pub(super) fn response(self) -> Response {
        let mut response = problem(self.status, &show(&self.detail, DETAIL));
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let allow = self.allow.and_then(|allow| allow.parse().ok());
        if let Some(allow) = allow {
            headers.insert(header::ALLOW, allow);
        }
        if let Some(again) = self.again {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(again));
        }
        if self.closes {
            return closing(response);
        }
        response
    }
}
