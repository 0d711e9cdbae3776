//! Events as versioned JSON: the `body` column of the journal, and the lines of `run --json` and of
//! a client that watches a run.
//!
//! The bodies are the serialization of [`Event`]: `marshal_model::event` says how it may change, and
//! the golden file of every version stays readable. Must not know SQLite.

mod report;
mod spec;
mod work;

use serde_json::value::RawValue;

use marshal_model::{AgentClaims, Event, EventId, EventKind, SessionId, StampedEvent};

pub use report::{
    BranchReport, ChangedFile, LandedReport, LinesReport, RepoReport, Report, RequestCounts,
    TokenCounts, read_report, write_report,
};
pub use spec::read_spec;
pub(crate) use spec::spec_json;
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
}

/// Appends the event's body, one JSON object, to `out`.
/// Events are made of texts and numbers and `out` is memory, so this cannot fail.
pub fn encode_into(event: &Event, out: &mut Vec<u8>) {
    let before = out.len();
    if serde_json::to_writer(&mut *out, event).is_err() {
        // A reader reports the event as damaged.
        return out.truncate(before);
    }
    // Of `{"kind":body}` the kind has a column of its own.
    let kind = event.kind().as_str();
    out.pop();
    out.drain(before..before + kind.len() + r#"{"":"#.len());
}

/// Decodes an event.
///
/// # Errors
/// [`CodecError`] if a newer program wrote it or the body is damaged.
pub fn decode(kind: &str, version: u32, body: &str) -> Result<Event, CodecError> {
    let known = EventKind::parse(kind).ok_or_else(|| CodecError::Kind(kind.to_owned()))?;
    if version > VERSION {
        return Err(CodecError::Version(version));
    }
    serde_json::from_str(&format!(r#"{{"{known}":{body}}}"#)).map_err(|source| CodecError::Body {
        kind: known,
        source,
    })
}

/// The agent's claims about a request, for the `claimed` column.
pub(crate) fn claimed_json(claimed: &AgentClaims) -> String {
    serde_json::to_string(claimed).unwrap_or_default()
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
