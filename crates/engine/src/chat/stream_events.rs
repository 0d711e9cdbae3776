//! Converts a session's events to the events of a chat's stream. The result depends only on the
//! journal, so it is the same at every read.
//!
//! Owns the names and payloads of the stream. Must not know the subscribers.
//!
//! `docs/api.md` describes the stream. Tests: `tests/drills/fleet/chats.rs`.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use marshal_fleet::{PROMPT_NOT_WRITTEN, STOPPED_BY_PERSON, STOPPED_UNSENT};
use marshal_journal::{ReadError, Reader, StoredApproval, StoredEvent};
use marshal_model::limits;
use marshal_model::untrusted::escape_json_for_terminal;
use marshal_model::{
    Event, EventId, PermissionRequestId, RoleName, SessionId, TaskId, TurnOutcome, UntrustedText,
    WorkEvent,
};

/// The reason of a turn that a person stopped.
const CANCELLED_BY_USER: &str = "user_cancelled";

/// An event of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamEvent {
    /// The id of the session's event.
    pub(super) id: EventId,
    /// The part number, from 1, if several events follow from the same one; 0 for the last.
    pub(super) part: u32,
    pub(super) name: &'static str,
    /// One line of JSON.
    pub(super) data: String,
}

impl StreamEvent {
    /// Returns the cursor of a client that has received it.
    fn cursor(&self) -> String {
        match self.part {
            0 => self.id.to_string(),
            part => format!("{}.{part}", self.id),
        }
    }

    /// Returns a server-sent event with its name.
    pub(super) fn to_named_sse(&self) -> String {
        let (id, name, data) = (self.cursor(), self.name, &self.data);
        format!("id: {id}\nevent: {name}\ndata: {data}\n\n")
    }

    /// Returns a server-sent event without a name; the data has it.
    pub(super) fn to_enveloped_sse(&self) -> String {
        let (id, name, data) = (self.cursor(), self.name, &self.data);
        format!("id: {id}\ndata: {{\"type\":\"{name}\",\"data\":{data}}}\n\n")
    }
}

/// Returns the stream events of an event: usually one, or none.
///
/// # Errors
/// [`ReadError`]
pub(super) fn events_for(
    reader: &Reader,
    session: &SessionId,
    stored: &StoredEvent,
) -> Result<Vec<StreamEvent>, ReadError> {
    // Events of a newer version are skipped.
    let Ok(stamped) = stored.decode() else {
        return Ok(Vec::new());
    };
    let found = match stamped.event {
        Event::Plan { entries } => {
            let steps = entries.iter().enumerate().map(|(at, entry)| {
                let status = entry.status.as_ref().map(UntrustedText::raw);
                let content = entry.content.raw();
                let data = json!({"step": at + 1, "status": status, "content": content});
                ("plan_step", data)
            });
            steps.collect()
        }
        Event::Work(WorkEvent::Forwarded { chat, seq }) => forwarded_events(reader, &chat, seq)?,
        Event::Work(work) => work_event(work).into_iter().collect(),
        Event::TurnEnded {
            outcome, detail, ..
        } => turn_end_event(reader, session, stored.id.seq, outcome, detail)?
            .into_iter()
            .collect(),
        Event::TurnUnsent {
            turn,
            outcome,
            detail,
        } => vec![end_event(
            outcome,
            Some(detail),
            &UntrustedText::default(),
            Some(turn.as_str()),
        )],
        Event::PermissionRequested { id, .. } => match find_approval(reader, &id)? {
            // A request that the policy decided is not an approval.
            None => Vec::new(),
            Some(question) => {
                let facts: Value = serde_json::from_str(question.facts.raw()).unwrap_or_default();
                let data = json!({
                    "id": question.id.as_str(),
                    "tool": question.tool.raw(),
                    "facts": facts,
                    "rule": question.rules.first(),
                    "deadline": question.deadline_us.div_euclid(1000),
                });
                vec![("approval", data)]
            }
        },
        event => plain(event).into_iter().collect(),
    };
    let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
    let events = (1..).zip(found).map(|(part, (name, data))| StreamEvent {
        id: stored.id,
        part: if part == count { 0 } else { part },
        name,
        // Control characters are escaped, so nothing in the JSON can end the line.
        data: escape_json_for_terminal(&data.to_string()),
    });
    Ok(events.collect())
}

/// Returns the stream events of a member's event, with the member's id.
fn forwarded_events(
    reader: &Reader,
    member: &SessionId,
    seq: u64,
) -> Result<Vec<(&'static str, Value)>, ReadError> {
    let page = reader.events_page(member, seq.saturating_sub(1), 1, 0)?;
    let Some(stored) = page.first().filter(|stored| stored.id.seq == seq) else {
        return Ok(Vec::new()); // It was removed.
    };
    let events = events_for(reader, member, stored)?
        .into_iter()
        .map(|event| {
            let mut data: Value = serde_json::from_str(&event.data).unwrap_or_default();
            if let Some(data) = data.as_object_mut() {
                data.insert("chat_id".to_owned(), member.as_str().into());
            }
            (event.name, data)
        });
    Ok(events.collect())
}

/// Returns the stream event for the work of a chat with members.
fn work_event(work: WorkEvent) -> Option<(&'static str, Value)> {
    Some(match work {
        WorkEvent::Item {
            step,
            status,
            content,
            role,
            chat,
            done,
            total,
        } => {
            let data = json!({
                "step": step,
                "status": status.as_str(),
                "content": content.raw(),
                "agent": role.as_ref().map(RoleName::as_str),
                "chat_id": chat.as_ref().map(SessionId::as_str),
                "done": done,
                "total": total,
            });
            ("plan_step", data)
        }
        WorkEvent::Member {
            chat,
            role,
            outcome,
        } => {
            let data = json!({
                "chat_id": chat.as_str(),
                "role": role.as_str(),
                "status": outcome.as_str(),
            });
            ("member", data)
        }
        WorkEvent::Review {
            state,
            plan,
            sha256,
            by,
            why,
        } => {
            let data = json!({
                "status": state.as_str(),
                "plan_id": plan,
                "sha256": sha256,
                "by": by,
                "reason": why.as_ref().map(UntrustedText::raw),
            });
            ("plan", data)
        }
        WorkEvent::Round { round, why } => ("round", json!({"round": round, "reason": why})),
        WorkEvent::Ended {
            outcome,
            reason,
            message,
        } => {
            let (name, data) = match outcome {
                TurnOutcome::Completed => ("done", json!({"message": message})),
                TurnOutcome::Cancelled | TurnOutcome::Limited => (
                    "stopped",
                    json!({"message": message, "partial_response": ""}),
                ),
                _ => ("error", json!({"message": message})),
            };
            let mut data = data;
            data["outcome"] = outcome.as_str().into();
            data["reason"] = reason.into();
            data["turn_id"] = Value::Null;
            (name, data)
        }
        WorkEvent::Forwarded { .. } => return None,
    })
}

/// Returns the turn of a task: the task's name begins with the turn's.
pub(super) fn turn_of(task: &TaskId) -> &str {
    let name = task.as_str();
    name.split_once('.').map_or(name, |(turn, _)| turn)
}

/// Returns the event for a client whose cursor was beyond the durable end.
pub(super) fn rewound_event(to: EventId) -> StreamEvent {
    StreamEvent {
        id: to,
        part: 0,
        name: "rewound",
        data: json!({"to": to.to_string()}).to_string(),
    }
}

fn plain(event: Event) -> Option<(&'static str, Value)> {
    Some(match event {
        Event::Text { delta } => ("chunk", json!({"text": delta.raw()})),
        Event::Thought { delta } => ("thought", json!({"text": delta.raw()})),
        Event::ToolStart { id, name, input } => {
            let args = parse_input(&input);
            let path = path(&args);
            let data = json!({"id": id.raw(), "tool": name.raw(), "path": path, "args": args});
            ("call", data)
        }
        Event::ToolResult {
            id,
            output,
            is_error,
            ..
        } => {
            let data = json!({"id": id.raw(), "output": output.raw(), "success": !is_error});
            ("observation", data)
        }
        Event::FileUpdated { path, version, .. } => {
            let data = match version {
                Some(of) => json!({
                    "path": format!("/{}", of.path.raw()),
                    "v": of.version,
                    "workspace": of.workspace.raw(),
                    "file": of.file,
                    "observed": of.observed,
                    "moved_from": of.moved_from.as_ref().map(|from| format!("/{}", from.raw())),
                }),
                // A file without versions has the path that the agent used.
                None => json!({"path": path.raw(), "v": null}),
            };
            ("file_updated", data)
        }
        Event::PlanStep { step, status } => (
            "plan_step",
            json!({"step": step.raw(), "status": status.as_str()}),
        ),
        Event::AgentError { code, message, .. } => (
            "error",
            json!({"code": code.raw(), "message": message.raw()}),
        ),
        Event::SessionResumed { how, replayed } => {
            let data = json!({"by": "resume", "how": how, "replayed": replayed});
            ("rehydrated", data)
        }
        Event::SessionFresh {
            why,
            history_omitted: untold,
            ..
        } => {
            let by = if untold { "nothing" } else { "transcript" };
            ("rehydrated", json!({"by": by, "why": why}))
        }
        _ => return None,
    })
}

/// Each announced turn has exactly one end: `done`, `stopped`, or an `error` with its `outcome`.
fn turn_end_event(
    reader: &Reader,
    session: &SessionId,
    seq: u64,
    outcome: TurnOutcome,
    detail: Option<String>,
) -> Result<Option<(&'static str, Value)>, ReadError> {
    if detail.as_deref() == Some(PROMPT_NOT_WRITTEN) {
        return Ok(None); // The agent never had it, and gets it again.
    }
    let (text, task) = reader.turn_text_before(session, seq, limits::CHAT_ANSWER_BYTES)?;
    let turn = task.as_ref().map(turn_of);
    Ok(Some(end_event(outcome, detail, &text, turn)))
}

/// Finds the approval of a request: its own, or one from before its agent ended that waits again.
fn find_approval(
    reader: &Reader,
    id: &PermissionRequestId,
) -> Result<Option<StoredApproval>, ReadError> {
    if let Some(own) = reader.approval(id)? {
        return Ok(Some(own));
    }
    match reader.original_approval(id)? {
        Some(earlier) => reader.approval(&earlier),
        None => Ok(None),
    }
}

fn end_event(
    outcome: TurnOutcome,
    detail: Option<String>,
    text: &UntrustedText,
    turn: Option<&str>,
) -> (&'static str, Value) {
    use TurnOutcome::{Cancelled, Completed, Failed, Limited, Lost, Refused, TimedOut};
    match outcome {
        Completed | Limited | Refused => {
            let data = json!({"message": text.raw(), "outcome": outcome.as_str(), "turn_id": turn});
            ("done", data)
        }
        Cancelled => {
            let reason = match detail {
                Some(why) if why == STOPPED_BY_PERSON || why == STOPPED_UNSENT => {
                    CANCELLED_BY_USER.to_owned()
                }
                Some(why) => why,
                None => "cancelled".to_owned(),
            };
            let data = json!({"reason": reason, "partial_response": text.raw(), "turn_id": turn});
            ("stopped", data)
        }
        Failed | TimedOut | Lost => {
            let message = detail.unwrap_or_else(|| "the turn failed".to_owned());
            let data = json!({"message": message, "outcome": outcome.as_str(), "turn_id": turn});
            ("error", data)
        }
    }
}

/// Returns an input unchanged.
fn parse_input(input: &RawValue) -> Value {
    serde_json::from_str(input.get()).unwrap_or(Value::Null)
}

/// Returns the path in a call's arguments, by the parameter names of known agents.
fn path<'a>(args: &'a Value) -> Option<&'a str> {
    let names = [
        "path",
        "file_path",
        "filePath",
        "abs_path",
        "file",
        "filename",
    ];
    let of = |args: &'a Value| names.iter().find_map(|name| args.get(name)?.as_str());
    // In ACP the arguments are next to what the client displays.
    of(args).or_else(|| of(args.get("rawInput")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::StepStatus;

    #[test]
    fn a_step_that_an_agent_marks_by_a_tool_is_told_by_its_words() {
        let step = Event::PlanStep {
            step: UntrustedText::new("tests \u{1b}[2J".to_owned()),
            status: StepStatus::Done,
        };
        let (name, data) = plain(step).expect("told");
        assert_eq!(name, "plan_step");
        assert_eq!(data, json!({"step": "tests \u{1b}[2J", "status": "done"}));
    }
}
