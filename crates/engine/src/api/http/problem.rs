//! The kinds of errors: stable codes for programs, and the page that `type` of a problem leads to.
//!
//! Must not know what went wrong: each response has its own detail.

use std::fmt::Write as _;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use marshal_model::string_enum;

/// The path of the page.
pub(super) const PROBLEMS: &str = "/problems";

/// The body of an error response: RFC 9457.
#[derive(Serialize, JsonSchema)]
pub(in crate::api) struct Problem<'a> {
    /// A page of this server that lists all codes.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The kind of the error; a code keeps its meaning.
    pub(super) code: &'a str,
    pub(super) title: &'a str,
    #[schemars(range(min = 400, max = 599))]
    pub(super) status: u16,
    pub(super) detail: &'a str,
}

string_enum!(
    /// The kind of an error: `code` of a problem. A code keeps its meaning.
    ProblemKind {
        /// 400
        InvalidRequest = "invalid_request",
        /// 401
        Unauthenticated = "unauthenticated",
        /// 403
        Forbidden = "forbidden",
        /// 404
        NotFound = "not_found",
        /// 405
        MethodNotAllowed = "method_not_allowed",
        /// 408
        SlowBody = "slow_body",
        /// 409
        Conflict = "conflict",
        /// 409 and 412: another version is the newest.
        Stale = "stale",
        /// 411
        LengthRequired = "length_required",
        /// 413
        TooLarge = "too_large",
        /// 415
        UnsupportedMediaType = "unsupported_media_type",
        /// 421
        MisdirectedRequest = "misdirected_request",
        /// 422
        Refused = "refused",
        /// 429
        TooMany = "too_many",
        /// 500
        Internal = "internal",
        /// 503
        Unavailable = "unavailable",
        /// 503: the journal or the store does nothing.
        Outage = "outage",
        /// 503: the supervisor stops.
        Stopping = "stopping",
        /// 409: the supervisor serves only the command that started it.
        NoDaemon = "no_daemon",
        /// 504
        AgentTimeout = "agent_timeout",
    }
);

impl ProblemKind {
    /// The kind of all errors with this status that say nothing narrower.
    pub(in crate::api) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Self::Unauthenticated,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            405 => Self::MethodNotAllowed,
            408 => Self::SlowBody,
            409 => Self::Conflict,
            411 => Self::LengthRequired,
            412 => Self::Stale,
            413 => Self::TooLarge,
            415 => Self::UnsupportedMediaType,
            421 => Self::MisdirectedRequest,
            422 => Self::Refused,
            429 => Self::TooMany,
            400..500 => Self::InvalidRequest,
            503 => Self::Unavailable,
            504 => Self::AgentTimeout,
            _ => Self::Internal,
        }
    }

    /// Its statuses, and what it means.
    const fn meaning(self) -> (&'static str, &'static str) {
        match self {
            Self::InvalidRequest => (
                "400",
                "a header, a query key or the body is not what the route takes",
            ),
            Self::Unauthenticated => ("401", "no token, or an unknown one"),
            Self::Forbidden => (
                "403",
                "the role of the token is too low, or the client may not come from there",
            ),
            Self::NotFound => ("404", "there is no such thing"),
            Self::MethodNotAllowed => ("405", "the path has other methods, listed in `Allow`"),
            Self::SlowBody => ("408", "the body did not arrive in time"),
            Self::Conflict => ("409", "the current state does not permit it"),
            Self::Stale => (
                "409, 412",
                "it is based on another version than the newest one: read it again",
            ),
            Self::LengthRequired => ("411", "a body without `Content-Length`"),
            Self::TooLarge => ("413", "the body is larger than the route takes"),
            Self::UnsupportedMediaType => ("415", "the body is not `application/json`"),
            Self::MisdirectedRequest => ("421", "`Host` names another server"),
            Self::Refused => (
                "422",
                "the request is well formed, and the fleet refuses it",
            ),
            Self::TooMany => (
                "429",
                "a queue is full, or too many requests came: see `Retry-After`",
            ),
            Self::Internal => ("500", "a fault of the supervisor; its log has the rest"),
            Self::Unavailable => (
                "503",
                "not now, and nothing was accepted unless the detail says so: see `Retry-After`",
            ),
            Self::Outage => (
                "503",
                "the journal or the store does not answer; the request may still be carried out",
            ),
            Self::Stopping => (
                "503",
                "the supervisor is stopping: what it accepted goes on at its next start",
            ),
            Self::NoDaemon => (
                "409",
                "the supervisor runs the tasks of one command, or serves one editor, and takes no others",
            ),
            Self::AgentTimeout => ("504", "the agent did not answer in time"),
        }
    }
}

/// The page, which is also the table of `docs/rest.md`.
#[must_use]
pub fn table() -> String {
    let mut out = "| `code` | status | meaning |\n|---|---|---|\n".to_owned();
    for kind in ProblemKind::ALL {
        let (status, meaning) = kind.meaning();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{kind}` | {status} | {meaning} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_kind() {
        let text = include_str!("../../../../../docs/rest.md");
        assert!(text.contains(&table()), "docs/rest.md lacks:\n{}", table());
    }
}
