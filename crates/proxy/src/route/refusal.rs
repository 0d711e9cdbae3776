//! Why a request is refused, and what its sender is sent.

use serde_json::json;

use marshal_telemetry::labels::RouteRefusal;

/// A refused request, or a response that is not forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The label of `marshal_route_refused_total{reason}`; `None` for an upstream that failed.
    pub reason: Option<RouteRefusal>,
    /// The HTTP status.
    pub status: u16,
    /// One sentence for the sender. It may quote the request, so it must not be logged.
    pub message: String,
    /// The host that the request would have led to, if no rule names it.
    pub denied_host: Option<String>,
}

impl Refusal {
    /// A refusal by the proxy's own rules.
    #[must_use]
    pub fn new(reason: RouteRefusal, status: u16, message: impl Into<String>) -> Self {
        Self {
            reason: Some(reason),
            status,
            message: message.into(),
            denied_host: None,
        }
    }

    /// An upstream failure.
    #[must_use]
    pub fn upstream(status: u16, message: impl Into<String>) -> Self {
        Self {
            reason: None,
            status,
            message: message.into(),
            denied_host: None,
        }
    }

    /// The reason as a word: the metric's label, or `upstream_failed`.
    #[must_use]
    pub fn reason_code(&self) -> &'static str {
        self.reason.map_or("upstream_failed", RouteRefusal::as_str)
    }

    /// The response body: an error in the shape that all providers' libraries parse.
    #[must_use]
    pub fn to_json(&self) -> String {
        let word = self.reason_code();
        json!({
            "type": "error",
            "error": {
                "type": format!("marshal_{word}"),
                "code": self.status,
                "status": word.to_ascii_uppercase(),
                "message": format!("marshal: {}", self.message),
            },
        })
        .to_string()
    }

    /// The response body as clients of registries show it: npm prints `error`, and cargo `errors`.
    #[must_use]
    pub fn to_registry_json(&self) -> String {
        let message = format!("marshal: {}", self.message);
        json!({
            "error": message,
            "errors": [{ "detail": message }],
            "reason": self.reason_code(),
        })
        .to_string()
    }

    /// A whole response with this body as bytes, for connections without an HTTP server.
    #[must_use]
    pub fn to_http(&self, body: &str) -> Vec<u8> {
        format!(
            "HTTP/1.1 {} Refused\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len()
        )
        .into_bytes()
    }
}
