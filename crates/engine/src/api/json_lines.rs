//! Live events and reports as JSON: the lines of `--json`, of the streams of runs and of
//! `--results`.
//!
//! Owns their format, version 1, for writing and reading. Reading is strict about what it needs and
//! ignores what it does not know. Must not know who reads the lines.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::run_stream::RunStreamItem;
use marshal_fleet::{FleetEvent, ReportError, TaskReport};
use marshal_journal::codec::{self, Report};
use marshal_model::{
    EventId, PermissionRequestId, PoolName, RunId, SessionId, SlotId, SlotState, StampedEvent,
    TaskId, UntrustedText,
};

/// The format version.
pub const VERSION: u32 = 1;

/// Why a line cannot be parsed: another version wrote it, or it is damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// The line is not a JSON object of a known type.
    #[error("unexpected line: {0}")]
    Shape(String),
    /// A word or an id is invalid.
    #[error("{text:?} is not a valid {what}")]
    Word {
        /// What was expected.
        what: &'static str,
        /// The invalid text.
        text: String,
    },
}

impl From<ReportError> for ViewError {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::InvalidValue { what, text } => Self::Word { what, text },
            ReportError::Codec(error) => Self::Shape(marshal_model::untrusted::escape_for_display(
                &error.to_string(),
                200,
            )),
        }
    }
}

/// One line of a stream.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Run {
        v: u32,
        run: Cow<'a, str>,
        tasks: usize,
    },
    Queued {
        run: Cow<'a, str>,
        task: Cow<'a, str>,
        pool: Cow<'a, str>,
    },
    Assigned {
        run: Cow<'a, str>,
        task: Cow<'a, str>,
        slot: String,
        session: Cow<'a, str>,
        attempt: u32,
    },
    Approval {
        slot: String,
        session: Cow<'a, str>,
        request: Cow<'a, str>,
        tool: Cow<'a, str>,
        about: Cow<'a, str>,
        deadline_us: i64,
    },
    Slot {
        slot: String,
        state: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Cow<'a, str>>,
    },
    Paused {
        pool: Cow<'a, str>,
        /// `None` if the pause has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u64>,
    },
    RunPaused {
        run: Cow<'a, str>,
        pool: Cow<'a, str>,
        rules: Cow<'a, [String]>,
    },
    Ended {
        report: Box<Report<'a>>,
    },
    Log {
        text: Cow<'a, str>,
    },
    Lagged {
        missed: u64,
    },
    Complete,
}

/// A session's event; separate from [`Line`], because a tagged enum cannot read raw JSON.
#[derive(Serialize, Deserialize)]
struct EventLine<'a> {
    #[serde(rename = "type")]
    kind_of_line: Cow<'a, str>,
    slot: String,
    session: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<Cow<'a, str>>,
    id: String,
    at_us: i64,
    v: u32,
    kind: Cow<'a, str>,
    body: Cow<'a, RawValue>,
}

/// The members that tell how to parse the rest.
#[derive(Deserialize)]
struct Tag<'a> {
    #[serde(rename = "type", borrow)]
    kind_of_line: Cow<'a, str>,
}

/// Returns an item of a run's stream as JSON, one object per line, without the last newline. Only
/// event batches have more than one line. For a terminal, pass it through
/// [`marshal_model::untrusted::escape_json_for_terminal`].
#[must_use]
pub fn item_json(item: &RunStreamItem) -> String {
    match item {
        RunStreamItem::Notice(shown) => notice(shown),
        RunStreamItem::Ended(ended) => write(&Line::Ended {
            report: Box::new(ended.to_stored()),
        }),
        RunStreamItem::Lagged(missed) => write(&Line::Lagged { missed: *missed }),
        RunStreamItem::Complete => write(&Line::Complete),
    }
}

fn notice(notice: &FleetEvent) -> String {
    match notice {
        FleetEvent::TaskQueued { run, task, pool } => write(&Line::Queued {
            run: Cow::Borrowed(run.as_str()),
            task: Cow::Borrowed(task.as_str()),
            pool: Cow::Borrowed(pool.as_str()),
        }),
        FleetEvent::TaskAssigned {
            run,
            task,
            slot,
            session,
            attempt,
        } => write(&Line::Assigned {
            run: Cow::Borrowed(run.as_str()),
            task: Cow::Borrowed(task.as_str()),
            slot: slot.to_string(),
            session: Cow::Borrowed(session.as_str()),
            attempt: *attempt,
        }),
        FleetEvent::SessionEvents {
            slot,
            session,
            task,
            events,
            ..
        } => {
            let lines = events
                .iter()
                .map(|stamped| event(slot, session, task.as_ref(), stamped));
            lines.collect::<Vec<_>>().join("\n")
        }
        // A run's stream has the events instead.
        FleetEvent::EventsSkipped { .. } => String::new(),
        FleetEvent::SlotChanged { slot, state, note } => write(&Line::Slot {
            slot: slot.to_string(),
            state: Cow::Borrowed(state.as_str()),
            note: note.as_deref().map(Cow::Borrowed),
        }),
        FleetEvent::ApprovalPending {
            slot,
            session,
            request,
            tool,
            about,
            deadline_us,
        } => write(&Line::Approval {
            slot: slot.to_string(),
            session: Cow::Borrowed(session.as_str()),
            request: Cow::Borrowed(request.as_str()),
            tool: Cow::Borrowed(tool.raw()),
            about: Cow::Borrowed(about.raw()),
            deadline_us: *deadline_us,
        }),
        FleetEvent::PoolPaused { pool, wait } => write(&Line::Paused {
            pool: Cow::Borrowed(pool.as_str()),
            wait_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        }),
        FleetEvent::RunPaused { run, pool, rules } => write(&Line::RunPaused {
            run: Cow::Borrowed(run.as_str()),
            pool: Cow::Borrowed(pool.as_str()),
            rules: Cow::Borrowed(rules),
        }),
        FleetEvent::TaskEnded(ended) => write(&Line::Ended {
            report: Box::new(ended.to_stored()),
        }),
    }
}

fn event(
    slot: &SlotId,
    session: &SessionId,
    task: Option<&TaskId>,
    stamped: &StampedEvent,
) -> String {
    let mut body = Vec::new();
    codec::encode_into(&stamped.event, &mut body);
    let body = String::from_utf8(body).unwrap_or_default();
    let Ok(body) = RawValue::from_string(body) else {
        return String::new();
    };
    write(&EventLine {
        kind_of_line: Cow::Borrowed("event"),
        slot: slot.to_string(),
        session: Cow::Borrowed(session.as_str()),
        task: task.map(|task| Cow::Borrowed(task.as_str())),
        id: stamped.id.to_string(),
        at_us: stamped.at_us,
        v: codec::VERSION,
        kind: Cow::Borrowed(stamped.event.kind().as_str()),
        body: Cow::Owned(body),
    })
}

/// Returns the first line of `--json`: the version of all lines, and the run.
#[must_use]
pub fn run_started_json(run: &RunId, tasks: usize) -> String {
    write(&Line::Run {
        v: VERSION,
        run: Cow::Borrowed(run.as_str()),
        tasks,
    })
}

/// Returns a line of a child's stderr as one JSON object without a newline.
#[must_use]
pub fn log_line(text: &UntrustedText) -> String {
    write(&Line::Log {
        text: Cow::Borrowed(text.raw()),
    })
}

/// An item of a slot's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogItem {
    /// One line.
    Line(UntrustedText),
    /// This number of lines was lost, because the reader was slow.
    Lagged(u64),
    /// The log has ended.
    Complete,
}

/// Parses a line of a slot's log.
///
/// # Errors
/// [`ViewError`] if the line is not one of a log.
pub fn read_log(line: &str) -> Result<LogItem, ViewError> {
    match serde_json::from_str(line).map_err(shape)? {
        Line::Log { text } => Ok(LogItem::Line(UntrustedText::new(text))),
        Line::Lagged { missed } => Ok(LogItem::Lagged(missed)),
        Line::Complete => Ok(LogItem::Complete),
        _ => Err(ViewError::Shape("it belongs to another stream".to_owned())),
    }
}

/// Returns a report as one JSON object without a newline.
#[must_use]
pub fn report_json(report: &TaskReport) -> String {
    write(&report.to_stored())
}

/// Serialization cannot fail: the structs have no maps with keys that are not strings.
fn write(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Parses a line of a stream. `None` is a line of a kind that this program does not know.
///
/// # Errors
/// [`ViewError`] if the line is damaged.
pub fn read_item(line: &str) -> Result<Option<RunStreamItem>, ViewError> {
    let tag: Tag<'_> = serde_json::from_str(line).map_err(shape)?;
    match tag.kind_of_line.as_ref() {
        "event" => read_event(line),
        "queued" | "assigned" | "slot" | "approval" | "paused" | "run_paused" | "ended"
        | "lagged" | "complete" => {
            let line: Line<'_> = serde_json::from_str(line).map_err(shape)?;
            read_line(line).map(Some)
        }
        _ => Ok(None),
    }
}

fn read_line(line: Line<'_>) -> Result<RunStreamItem, ViewError> {
    Ok(match line {
        Line::Queued { run, task, pool } => RunStreamItem::Notice(FleetEvent::TaskQueued {
            run: id("run", &run, RunId::new)?,
            task: id("task", &task, TaskId::new)?,
            pool: id("pool", &pool, PoolName::new)?,
        }),
        Line::Assigned {
            run,
            task,
            slot,
            session,
            attempt,
        } => RunStreamItem::Notice(FleetEvent::TaskAssigned {
            run: id("run", &run, RunId::new)?,
            task: id("task", &task, TaskId::new)?,
            slot: id("slot", &slot, SlotId::parse)?,
            session: id("session", &session, SessionId::new)?,
            attempt,
        }),
        Line::Slot { slot, state, note } => RunStreamItem::Notice(FleetEvent::SlotChanged {
            slot: id("slot", &slot, SlotId::parse)?,
            state: word("slot state", &state, SlotState::parse)?,
            note: note.map(Cow::into_owned),
        }),
        Line::Approval {
            slot,
            session,
            request,
            tool,
            about,
            deadline_us,
        } => RunStreamItem::Notice(FleetEvent::ApprovalPending {
            slot: id("slot", &slot, SlotId::parse)?,
            session: id("session", &session, SessionId::new)?,
            request: id("request", &request, PermissionRequestId::new)?,
            tool: UntrustedText::new(tool),
            about: UntrustedText::new(about),
            deadline_us,
        }),
        Line::Paused { pool, wait_ms } => RunStreamItem::Notice(FleetEvent::PoolPaused {
            pool: id("pool", &pool, PoolName::new)?,
            wait: wait_ms.map(Duration::from_millis),
        }),
        Line::RunPaused { run, pool, rules } => RunStreamItem::Notice(FleetEvent::RunPaused {
            run: id("run", &run, RunId::new)?,
            pool: id("pool", &pool, PoolName::new)?,
            rules: rules.into_owned(),
        }),
        Line::Ended { report } => RunStreamItem::Ended(Arc::new(TaskReport::from_stored(*report)?)),
        Line::Run { .. } | Line::Log { .. } => {
            return Err(ViewError::Shape("it belongs to another stream".to_owned()));
        }
        Line::Lagged { missed } => RunStreamItem::Lagged(missed),
        Line::Complete => RunStreamItem::Complete,
    })
}

/// Parses an event. One that this program does not know, or cannot read, is skipped: events are
/// only displayed.
fn read_event(line: &str) -> Result<Option<RunStreamItem>, ViewError> {
    let line: EventLine<'_> = serde_json::from_str(line).map_err(shape)?;
    let Ok(event) = codec::decode(&line.kind, line.v, line.body.get()) else {
        return Ok(None);
    };
    let task = line.task.map(|task| id("task", &task, TaskId::new));
    Ok(Some(RunStreamItem::Notice(FleetEvent::SessionEvents {
        slot: id("slot", &line.slot, SlotId::parse)?,
        session: id("session", &line.session, SessionId::new)?,
        task: task.transpose()?,
        events: Arc::new(vec![StampedEvent {
            id: id("event id", &line.id, EventId::parse)?,
            at_us: line.at_us,
            event,
        }]),
        permit: None,
    })))
}

/// The message may quote text of the line, which a child may have written.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that map_err calls"
)]
fn shape(error: serde_json::Error) -> ViewError {
    ViewError::Shape(marshal_model::untrusted::escape_for_display(
        &error.to_string(),
        200,
    ))
}

fn id<T, E>(
    what: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, ViewError> {
    read(text).map_err(|_| not_a(what, text))
}

fn word<T>(
    what: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, ViewError> {
    read(text).ok_or_else(|| not_a(what, text))
}

fn not_a(what: &'static str, text: &str) -> ViewError {
    ViewError::Word {
        what,
        text: marshal_model::untrusted::escape_for_display(text, 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::test_fixtures::{EVIL, hostile_items};

    #[test]
    fn every_item_is_read_back_as_it_was_written() {
        for evil in EVIL.iter().chain(&["plain", ""]) {
            let (report, notices) = hostile_items(evil);
            let mut full = report.clone();
            full.slot = None;
            full.session = None;
            full.detail = None;
            full.copy = None;
            full.bundle = None;
            full.changes_cut = true;
            let items = notices.into_iter().map(RunStreamItem::Notice).chain([
                RunStreamItem::Ended(Arc::new(report)),
                RunStreamItem::Ended(Arc::new(full)),
                RunStreamItem::Lagged(7),
                RunStreamItem::Complete,
            ]);
            for written in items {
                let line = item_json(&written);
                assert_eq!(line.lines().count(), 1, "{line}");
                let read = read_item(&line).expect(&line).expect("known");
                assert_eq!(item_json(&read), line);
            }
            let log = log_line(&UntrustedText::new(*evil));
            assert_eq!(read_log(&log), Ok(LogItem::Line(UntrustedText::new(*evil))));
        }
    }

    #[test]
    fn lines_of_a_later_version_are_left_out_and_damaged_ones_are_errors() {
        for unknown in [
            "{\"type\":\"later\",\"x\":1}",
            "{\"type\":\"event\",\"slot\":\"demo/0\",\"session\":\"s\",\"id\":\"1-1\",\"at_us\":0,\"v\":99,\"kind\":\"text\",\"body\":{}}",
            "{\"type\":\"event\",\"slot\":\"demo/0\",\"session\":\"s\",\"id\":\"1-1\",\"at_us\":0,\"v\":1,\"kind\":\"later\",\"body\":{}}",
        ] {
            assert!(matches!(read_item(unknown), Ok(None)), "{unknown}");
        }
        let more = "{\"type\":\"lagged\",\"missed\":2,\"later\":true}";
        assert!(matches!(
            read_item(more),
            Ok(Some(RunStreamItem::Lagged(2)))
        ));
        for damaged in [
            "",
            "x",
            "{}",
            "{\"type\":\"lagged\"}",
            "{\"type\":\"slot\",\"slot\":\"demo\",\"state\":\"busy\"}",
            "{\"type\":\"slot\",\"slot\":\"demo/0\",\"state\":\"\\u001b[2J\"}",
            "{\"type\":\"ended\",\"report\":{}}",
        ] {
            let error = read_item(damaged).expect_err(damaged).to_string();
            assert!(
                !error.chars().any(marshal_model::untrusted::is_unsafe),
                "{error:?}"
            );
        }
    }
}
