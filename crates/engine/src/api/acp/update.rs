//! Converts an event of a session to a `session/update` of the protocol.
//!
//! Each event becomes at most one update. The protocol's words are closed sets, so an agent's own
//! word becomes the nearest of them. Must not know what a session does.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::session_state::SessionState;
use super::tool_call::{self, Diff, Location};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{CommandInfo, Event, PlanEntry, UntrustedText};

/// The content of a `session/update`.
#[derive(Debug, Serialize)]
#[serde(tag = "sessionUpdate", rename_all = "snake_case")]
pub enum Update<'a> {
    /// A message of the user, sent when a session is loaded.
    UserMessageChunk {
        /// The text.
        content: Block<'a>,
    },
    /// A chunk of the agent's answer.
    AgentMessageChunk {
        /// The text.
        content: Block<'a>,
    },
    /// A chunk of the agent's reasoning.
    AgentThoughtChunk {
        /// The text.
        content: Block<'a>,
    },
    /// A new tool call.
    ToolCall(ToolCall<'a>),
    /// A change of a tool call.
    ToolCallUpdate(ToolCall<'a>),
    /// The agent's plan; it replaces the previous one.
    Plan {
        /// The steps of the plan.
        entries: Vec<Step<'a>>,
    },
    /// The use of the context window.
    UsageUpdate {
        /// Tokens in the context.
        used: u64,
        /// The size of the context window in tokens.
        size: u64,
        /// The session's cost so far; `None` if unknown.
        #[serde(skip_serializing_if = "Option::is_none")]
        cost: Option<Cost<'a>>,
    },
    /// The commands that the agent currently supports.
    #[serde(rename_all = "camelCase")]
    AvailableCommandsUpdate {
        /// The complete list of commands.
        available_commands: Vec<Command<'a>>,
    },
    /// The session's mode has changed.
    #[serde(rename_all = "camelCase")]
    CurrentModeUpdate {
        /// The id of the new mode.
        current_mode_id: &'a str,
    },
    /// The session's options have changed.
    #[serde(rename_all = "camelCase")]
    ConfigOptionUpdate {
        /// The complete list of options.
        config_options: Vec<Value>,
    },
    /// Information about the session from its agent.
    #[serde(rename_all = "camelCase")]
    SessionInfoUpdate {
        /// The new title; `None` if unchanged.
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
        /// The time of the last change.
        #[serde(skip_serializing_if = "Option::is_none")]
        updated_at: Option<&'a str>,
    },
    /// A notice of the agent for a person.
    Notice {
        /// `info`, `warning` or `error`.
        severity: &'static str,
        /// A short text.
        title: &'a str,
        /// The full text.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<&'a str>,
    },
    /// The state of a context compaction.
    #[serde(rename_all = "camelCase")]
    CompactionUpdate {
        /// The id of the compaction.
        compaction_id: &'a str,
        /// The state: in progress, completed, failed or cancelled.
        status: &'static str,
        /// Why it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
    /// A chunk of the summary that replaces the context.
    #[serde(rename_all = "camelCase")]
    CompactionSummaryChunk {
        /// The id of the compaction.
        compaction_id: &'a str,
        /// The text.
        content: Block<'a>,
    },
}

/// A command of the agent.
#[derive(Debug, Serialize)]
pub struct Command<'a> {
    name: &'a str,
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Input<'a>>,
}

/// The input of a command.
#[derive(Debug, Serialize)]
pub struct Input<'a> {
    hint: &'a str,
}

/// A block of text.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "text")]
pub struct Block<'a> {
    /// The text, unescaped: an editor is not a terminal.
    text: &'a str,
}

/// A tool call, or the changed members of one.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall<'a> {
    tool_call_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Vec<Content<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locations: Option<Vec<Location>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_input: Option<&'a RawValue>,
}

/// The content of a tool call.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content<'a> {
    /// Text output.
    Content {
        /// The text.
        content: Block<'a>,
    },
    /// A change of a file, made or proposed.
    #[serde(untagged)]
    Diff(Diff),
}

/// A step of the agent's plan.
#[derive(Debug, Serialize)]
pub struct Step<'a> {
    content: &'a str,
    priority: &'static str,
    status: &'static str,
}

/// The cost of a session.
#[derive(Debug, Serialize)]
pub struct Cost<'a> {
    amount: f64,
    currency: &'a str,
}

/// Returns a text of the supervisor as a chunk of the answer.
#[must_use]
pub const fn agent_message(text: &str) -> Update<'_> {
    Update::AgentMessageChunk {
        content: Block { text },
    }
}

/// Returns a text of the supervisor as a thought.
#[must_use]
pub const fn agent_thought(text: &str) -> Update<'_> {
    Update::AgentThoughtChunk {
        content: Block { text },
    }
}

/// Converts an event to an update. With `replay` the event is of the past, so the user's messages
/// are sent too.
#[must_use]
pub fn from_event<'a>(event: &'a Event, known: &SessionState, replay: bool) -> Option<Update<'a>> {
    let block = |text: &'_ UntrustedText| -> Option<()> { (!text.is_empty()).then_some(()) };
    match event {
        Event::PromptAccepted { text, .. } if replay => Some(Update::UserMessageChunk {
            content: Block { text: text.raw() },
        }),
        Event::Text { delta } => block(delta).map(|()| agent_message(delta.raw())),
        Event::Thought { delta } => block(delta).map(|()| Update::AgentThoughtChunk {
            content: Block { text: delta.raw() },
        }),
        Event::ToolStart { id, name, input } => {
            let call = tool_call::parse(input);
            Some(Update::ToolCall(ToolCall {
                tool_call_id: id.raw(),
                title: Some(title(name.raw(), call.tool_input)),
                kind: Some(kind(name.raw())),
                status: Some("pending"),
                content: diffs(call.diffs(&known.roots)),
                locations: call.locations(&known.roots),
                raw_input: small(call.tool_input),
            }))
        }
        Event::ToolUpdate {
            id,
            name,
            title,
            status,
            input,
        } => {
            let call = input.as_deref().map(tool_call::parse);
            let call = call.as_ref();
            Some(Update::ToolCallUpdate(ToolCall {
                tool_call_id: id.raw(),
                title: title.as_ref().map(|title| title.escape_for_display(200)),
                kind: name.as_ref().map(|name| kind(name.raw())),
                status: status.as_ref().and_then(|word| call_status(word.raw())),
                content: call.and_then(|call| diffs(call.diffs(&known.roots))),
                locations: call.and_then(|call| call.locations(&known.roots)),
                raw_input: call.and_then(|call| small(call.tool_input)),
            }))
        }
        Event::ToolResult {
            id,
            output,
            is_error,
            ..
        } => Some(Update::ToolCallUpdate(ToolCall {
            tool_call_id: id.raw(),
            status: Some(if *is_error { "failed" } else { "completed" }),
            // An update replaces the whole content, so the diffs are sent again.
            content: block(output).map(|()| {
                let text = Content::Content {
                    content: Block { text: output.raw() },
                };
                let before = known.diffs_of(id).into_iter().map(Content::Diff);
                before.chain([text]).collect()
            }),
            ..ToolCall::default()
        })),
        Event::Plan { entries } => Some(Update::Plan {
            entries: entries.iter().map(step).collect(),
        }),
        Event::ContextUsed { used, size, cost } => Some(Update::UsageUpdate {
            used: *used,
            size: *size,
            cost: cost.as_ref().map(|cost| Cost {
                amount: cost.amount,
                currency: cost.currency.raw(),
            }),
        }),
        _ => session_event_update(event, known, replay),
    }
}

/// Converts events about the session itself.
fn session_event_update<'a>(
    event: &'a Event,
    known: &SessionState,
    replay: bool,
) -> Option<Update<'a>> {
    match event {
        // A replayed state is out of date; the current one is in the reply that opened the session.
        Event::Commands { .. } | Event::StateChanged { .. } | Event::Options { .. } if replay => {
            None
        }
        Event::Commands { commands } => Some(Update::AvailableCommandsUpdate {
            available_commands: commands.iter().map(command).collect(),
        }),
        Event::StateChanged {
            mode: Some(mode), ..
        } => known.has_mode(mode).then(|| Update::CurrentModeUpdate {
            current_mode_id: mode.raw(),
        }),
        Event::StateChanged {
            context_pct: Some(percent),
            context_window: Some(size),
            ..
        } => Some(Update::UsageUpdate {
            used: tokens_of_percent(*percent, *size),
            size: *size,
            cost: None,
        }),
        Event::Options { options } => {
            let config_options = known.options(options);
            (!config_options.is_empty()).then_some(Update::ConfigOptionUpdate { config_options })
        }
        Event::SessionInfo { title, updated_at } => Some(Update::SessionInfoUpdate {
            title: title.as_ref().map(UntrustedText::raw),
            updated_at: updated_at.as_ref().map(UntrustedText::raw),
        }),
        Event::Notice {
            severity,
            title,
            description,
        } if known.capabilities.notices => Some(Update::Notice {
            severity: nearest(severity.as_ref(), ["info", "warning", "error"], "info"),
            title: title.raw(),
            description: description.as_ref().map(UntrustedText::raw),
        }),
        Event::Compaction { id, status, error } if known.capabilities.compaction => {
            let words = ["in_progress", "completed", "failed", "cancelled"];
            Some(Update::CompactionUpdate {
                compaction_id: id.raw(),
                status: nearest(status.as_ref(), words, "in_progress"),
                error: error.as_ref().map(UntrustedText::raw),
            })
        }
        Event::CompactionText { id, delta } if known.capabilities.compaction => {
            Some(Update::CompactionSummaryChunk {
                compaction_id: id.raw(),
                content: Block { text: delta.raw() },
            })
        }
        _ => None,
    }
}

fn command(command: &CommandInfo) -> Command<'_> {
    Command {
        name: command.name.raw(),
        description: command.description.raw(),
        input: command.hint.as_ref().map(|hint| Input { hint: hint.raw() }),
    }
}

/// The used share of the window is given in percent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share for people, between 0 and the whole"
)]
fn tokens_of_percent(percent: f64, size: u64) -> u64 {
    (percent.clamp(0.0, 100.0) / 100.0 * size as f64) as u64
}

fn diffs<'a>(diffs: Vec<Diff>) -> Option<Vec<Content<'a>>> {
    (!diffs.is_empty()).then(|| diffs.into_iter().map(Content::Diff).collect())
}

/// Returns the known word that equals a foreign one, or `otherwise`.
fn nearest<const N: usize>(
    word: Option<&UntrustedText>,
    known: [&'static str; N],
    otherwise: &'static str,
) -> &'static str {
    let word = word.map(UntrustedText::raw);
    let found = known.into_iter().find(|known| Some(*known) == word);
    found.unwrap_or(otherwise)
}

/// Returns a call's title: its tool and its main argument.
fn title(name: &str, input: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    struct About<'a> {
        #[serde(borrow)]
        command: Option<Cow<'a, str>>,
        #[serde(borrow)]
        path: Option<Cow<'a, str>>,
        #[serde(borrow)]
        pattern: Option<Cow<'a, str>>,
    }
    let about: Option<About<'_>> = small(input).and_then(|i| serde_json::from_str(i.get()).ok());
    let about = about.and_then(|about| about.command.or(about.path).or(about.pattern));
    match about {
        Some(about) => escape_for_display(&format!("{name}: {about}"), 160),
        None => escape_for_display(name, 160),
    }
}

/// Returns the protocol's tool kind for the tool names of known agents.
pub(super) fn kind(name: &str) -> &'static str {
    match name {
        "read" | "read_file" | "list_dir" => "read",
        "edit" | "write_file" | "edit_file" => "edit",
        "delete" => "delete",
        "move" => "move",
        "search" | "grep_search" | "glob_search" => "search",
        "execute" | "bash" | "shell" => "execute",
        "think" => "think",
        "fetch" | "web_fetch" => "fetch",
        "switch_mode" => "switch_mode",
        _ => "other",
    }
}

fn call_status(word: &str) -> Option<&'static str> {
    ["pending", "in_progress", "completed", "failed"]
        .into_iter()
        .find(|known| *known == word)
}

fn step(entry: &PlanEntry) -> Step<'_> {
    Step {
        content: entry.content.raw(),
        priority: nearest(entry.priority.as_ref(), ["high", "medium", "low"], "medium"),
        status: nearest(
            entry.status.as_ref(),
            ["pending", "in_progress", "completed"],
            "pending",
        ),
    }
}

/// Returns the input if it is small enough to send whole.
pub(super) fn small(input: &RawValue) -> Option<&RawValue> {
    (input.get().len() <= limits::PERMISSION_INPUT_BYTES).then_some(input)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn update_json(event: &Event, replay: bool) -> Value {
        from_event(event, &SessionState::default(), replay).map_or(Value::Null, |update| {
            serde_json::to_value(update).expect("JSON")
        })
    }

    fn raw(value: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).expect("JSON")
    }

    #[test]
    fn texts_are_chunks_and_what_the_user_said_is_told_only_of_the_past() {
        let text = Event::Text { delta: "hi".into() };
        assert_eq!(
            update_json(&text, false),
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}})
        );
        let prompt = Event::PromptAccepted {
            task: None,
            attempt: 1,
            text: "say hi".into(),
        };
        assert_eq!(update_json(&prompt, false), Value::Null);
        assert_eq!(
            update_json(&prompt, true)["sessionUpdate"],
            "user_message_chunk"
        );
        assert_eq!(
            update_json(&Event::Text { delta: "".into() }, false),
            Value::Null
        );
    }

    #[test]
    fn a_tool_call_begins_with_what_it_is_about_and_ends_with_what_it_brought() {
        let start = Event::ToolStart {
            id: "c-1".into(),
            name: "bash".into(),
            input: raw(&json!({"command": "echo \u{1b}[2J"})),
        };
        let begun = update_json(&start, false);
        assert_eq!(begun["sessionUpdate"], "tool_call");
        assert_eq!(begun["kind"], "execute");
        assert_eq!(begun["title"], "bash: echo \\u{1b}[2J");
        assert_eq!(begun["rawInput"]["command"], "echo \u{1b}[2J");
        let wrapped = Event::ToolStart {
            id: "c-2".into(),
            name: "read".into(),
            input: raw(&json!({"rawInput": {"path": "a.txt"}, "locations": []})),
        };
        let begun = update_json(&wrapped, false);
        assert_eq!(begun["title"], "read: a.txt");
        assert_eq!(begun["rawInput"], json!({"path": "a.txt"}));
        let result = Event::ToolResult {
            id: "c-1".into(),
            output: "done".into(),
            is_error: true,
            took: None,
        };
        let ended = update_json(&result, false);
        assert_eq!(ended["sessionUpdate"], "tool_call_update");
        assert_eq!(ended["status"], "failed");
        assert_eq!(ended["content"][0]["content"]["text"], "done");
    }

    #[test]
    fn words_that_the_protocol_does_not_have_become_the_nearest() {
        let update = Event::ToolUpdate {
            id: "c".into(),
            name: Some("teleport".into()),
            title: None,
            status: Some("running".into()),
            input: None,
        };
        let told_of = update_json(&update, false);
        assert_eq!(told_of["kind"], "other");
        assert_eq!(told_of.get("status"), None);
        let plan = Event::Plan {
            entries: vec![PlanEntry {
                content: "x".into(),
                priority: Some("urgent".into()),
                status: None,
            }],
        };
        let step = &update_json(&plan, false)["entries"][0];
        assert_eq!(step["priority"], "medium");
        assert_eq!(step["status"], "pending");
    }
}
