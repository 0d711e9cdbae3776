//! Events as versioned JSON: the `body` column of the journal, and the lines of `run --json` and of
//! a client that watches a run.
//!
//! Owns the persisted form and its version. The types of `model` may change freely; the bodies in
//! `body.rs` may not, and the golden file of every version stays readable. Must not know SQLite.

mod body;
mod decode;
mod encode;
mod report;
mod work;

use serde_json::value::RawValue;

use marshal_model::{EventId, EventKind, SessionId, StampedEvent};

pub use decode::{decode, read_spec};
pub use encode::encode_into;
pub(crate) use encode::{claimed_json, spec_json};
pub use report::{ChangedFile, Report, RequestCounts, TokenCounts, read_report, write_report};
pub(crate) use work::{progress_json, read_progress, read_settings, settings_json};

/// The version that [`encode_into`] writes. It grows when a reader of this version could
/// misunderstand a body; a new optional field does not require a new version.
pub const VERSION: u32 = 1;

/// An error when a stored event is decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The kind is unknown: a newer program wrote it.
    #[error("event kind {0:?} is unknown; a newer marshal wrote it")]
    Kind(String),
    /// The body's version is unknown: a newer program wrote it.
    #[error("event body version {0} is newer than {VERSION}; a newer marshal wrote it")]
    Version(u32),
    /// The body does not match its kind and version.
    #[error("the body of a {kind} event is damaged: {source}")]
    Body {
        /// The event's kind.
        kind: EventKind,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
    /// A task's stored report does not match its version.
    #[error("the stored report of a task is damaged: {0}")]
    Report(#[source] serde_json::Error),
    /// A task's stored specification cannot be decoded.
    #[error("the specification of task {task} is damaged: {detail}")]
    Spec {
        /// The task's id.
        task: String,
        /// The error.
        detail: String,
    },
    /// A word or an id in the body is unknown or invalid.
    #[error("the body of a {kind} event is damaged: {text:?} is not a valid {what}")]
    InvalidValue {
        /// The event's kind.
        kind: EventKind,
        /// A description of the expected value.
        what: &'static str,
        /// The value in the body.
        text: String,
    },
}

/// One line of `--json` and `watch`, serialized by serde.
#[derive(serde::Serialize)]
struct JsonLine<'a> {
    v: u32,
    session: &'a str,
    id: String,
    at_us: i64,
    kind: &'a str,
    body: &'a RawValue,
}

/// An event as one JSON object without a newline:
/// `{"v":1,"session":"…","id":"3-117","at_us":…,"kind":"text","body":{…}}`.
/// For a terminal, pass it through [`marshal_model::foreign::escape_json_for_terminal`].
#[must_use]
pub fn to_json(stamped: &StampedEvent, session: &SessionId) -> String {
    let mut body = Vec::new();
    encode_into(&stamped.event, &mut body);
    let body = String::from_utf8(body).unwrap_or_default();
    format_line(
        session.as_str(),
        stamped.id,
        stamped.at_us,
        stamped.event.kind().as_str(),
        VERSION,
        body,
    )
}

/// The same line from the columns of a row, without decoding its body.
pub(super) fn format_line(
    session: &str,
    id: EventId,
    at_us: i64,
    kind: &str,
    version: u32,
    body: String,
) -> String {
    // Only a damaged row has a body that is not JSON; the line then contains the body as a string.
    let body = RawValue::from_string(body).or_else(|_| serde_json::value::to_raw_value(&()));
    let Ok(body) = body else {
        return String::new();
    };
    serde_json::to_string(&JsonLine {
        v: version,
        session,
        id: id.to_string(),
        at_us,
        kind,
        body: &body,
    })
    .unwrap_or_default()
}

#[cfg(test)]
mod child_tests;
#[cfg(test)]
mod egress_tests;
#[cfg(test)]
mod tests;
