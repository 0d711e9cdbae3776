//! Why a request does not pass, and what its sender is told.

use serde_json::json;

use marshal_telemetry::labels::RouteRefusal;

/// A request that does not pass, or an answer that does not come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The label of `marshal_route_refused_total{reason}`; `None` for an upstream that failed.
    pub reason: Option<RouteRefusal>,
    /// The HTTP status.
    pub status: u16,
    /// One sentence for whoever asked. It may repeat words of the request, so it goes nowhere else.
    pub message: String,
}

impl Refusal {
    /// One for a reason of ours.
    #[must_use]
    pub fn new(reason: RouteRefusal, status: u16, message: impl Into<String>) -> Self {
        Self {
            reason: Some(reason),
            status,
            message: message.into(),
        }
    }

    /// An upstream that failed.
    #[must_use]
    pub fn upstream(status: u16, message: impl Into<String>) -> Self {
        Self {
            reason: None,
            status,
            message: message.into(),
        }
    }

    /// The word that says why: of the metric, or `upstream_failed`.
    #[must_use]
    pub fn reason_code(&self) -> &'static str {
        self.reason.map_or("upstream_failed", RouteRefusal::word)
    }

    /// The body of the answer: an error in the shape that the libraries of all providers read.
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

    /// The whole answer as bytes, where no server writes it.
    #[must_use]
    pub fn to_http(&self) -> Vec<u8> {
        let body = self.to_json();
        format!(
            "HTTP/1.1 {} Refused\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len()
        )
        .into_bytes()
    }
}
