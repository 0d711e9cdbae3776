//! `marshal prompt`: sends a message to a chat of the daemon, and shows the answer as it arrives.
//!
//! Owns how a turn is shown, and resumes an interrupted stream at its last event. Must not know how
//! a chat works.

use std::path::Path;

use axum::http::Method;
use serde_json::{Value, json};

use super::exit::Exit;
use super::http_client::{ClientError, EventStream, request_json, stream};
use super::signals::{Signal, Signals};
use super::streams::Streams;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RoleName, SessionId, WorkspaceName};

/// How often an interrupted stream is reopened without receiving an event.
const MAX_REOPENS: u32 = 5;
/// A position that no session reaches: a stream from there starts at the end of the session, and
/// its first event has that position.
const END: u64 = u64::MAX >> 1;

/// `prompt …`
#[derive(Debug, Clone, clap::Args)]
pub struct PromptArgs {
    /// The message to send
    text: String,
    /// Name of the workspace, a [workspace.NAME] of the configuration
    #[arg(long, value_name = "NAME", value_parser = |text: &str| WorkspaceName::new(text))]
    workspace: WorkspaceName,
    /// Role of a new chat, a [role.NAME]; optional if the configuration has only one
    #[arg(long, value_name = "NAME", conflicts_with = "chat", value_parser = |text: &str| RoleName::new(text))]
    role: Option<RoleName>,
    /// A file of the workspace that a new chat is about; may be repeated
    #[arg(long, value_name = "PATH", conflicts_with = "chat")]
    file: Vec<String>,
    /// Continue this chat, instead of starting a new one
    #[arg(long, value_name = "ID", value_parser = |text: &str| SessionId::new(text))]
    chat: Option<SessionId>,
}

/// A turn that is being shown.
struct Turn {
    chat_path: String,
    id: String,
    events: EventStream,
    last: Option<String>,
}

/// Sends the message and shows the turn.
pub(super) async fn run(
    state: &Path,
    args: &PromptArgs,
    json: bool,
    quiet: bool,
    streams: &mut Streams,
) -> Exit {
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    let begun = begin(state, args).await;
    let mut turn = match begun {
        Ok(turn) => turn,
        Err(error) => return error.report(streams),
    };
    if !quiet && args.chat.is_none() {
        let chat = turn.chat_path.rsplit('/').next().unwrap_or_default();
        streams
            .err
            .line(&format!("chat {}", escape_for_display(chat, 80)));
    }
    let mut cuts = 0;
    let mut is_stopped = false;
    loop {
        let next = tokio::select! {
            next = turn.events.next() => next,
            signal = signals.next() => {
                match signal {
                    Signal::Hangup => {}
                    ended if is_stopped => return ended.exit(),
                    _ => {
                        is_stopped = true;
                        let path = format!("{}/stop", turn.chat_path);
                        if let Err(error) = request_json(state, Method::POST, &path, None).await {
                            return error.report(streams);
                        }
                    }
                }
                continue;
            }
        };
        match next {
            Ok(Some(event)) => {
                cuts = 0;
                turn.last = event.id.or(turn.last);
                if let Some(exit) = show_event(&event.data, &turn.id, json, quiet, streams) {
                    return exit;
                }
            }
            // The daemon restarted, or the stream reached its time limit.
            ended => {
                cuts += 1;
                tokio::time::sleep(limits::CHAT_STREAM_RETRY * cuts).await;
                let path = format!("{}/events?shape=enveloped", turn.chat_path);
                match stream(state, &path, turn.last.as_deref()).await {
                    Ok(events) => turn.events = events,
                    Err(error) if cuts >= MAX_REOPENS => return error.report(streams),
                    Err(_) => {}
                }
                if let (Err(error), true) = (ended, cuts >= MAX_REOPENS) {
                    return error.report(streams);
                }
            }
        }
    }
}

/// Sends the message. The stream is opened first, so that no event of the turn is missed.
async fn begin(state: &Path, args: &PromptArgs) -> Result<Turn, ClientError> {
    let chats = format!("/api/v1/workspaces/{}/chats", args.workspace);
    let Some(chat) = &args.chat else {
        let mut body = json!({"goal": args.text, "files": args.file});
        if let Some(role) = &args.role {
            body["role"] = json!(role.as_str());
        }
        let answer = request_json(state, Method::POST, &chats, Some(&body)).await?;
        let place = format!("{chats}/{}", text(&answer, "chat_id"));
        let events = stream(state, &format!("{place}/events?shape=enveloped"), None).await?;
        let id = text(&answer, "turn_id").to_owned();
        return Ok(Turn {
            chat_path: place,
            id,
            events,
            last: None,
        });
    };
    let place = format!("{chats}/{chat}");
    let path = format!("{place}/events?shape=enveloped&after={END}");
    let mut events = stream(state, &path, None).await?;
    // The first event has the position of the end.
    let first = events.next().await?;
    let body = json!({"content": args.text});
    let answer = request_json(state, Method::POST, &place, Some(&body)).await?;
    Ok(Turn {
        id: text(&answer, "turn_id").to_owned(),
        chat_path: place,
        events,
        last: first.and_then(|event| event.id),
    })
}

pub(super) fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Shows an event; returns the exit code at the end of the turn.
pub(super) fn show_event(
    line: &str,
    turn: &str,
    json: bool,
    quiet: bool,
    streams: &mut Streams,
) -> Option<Exit> {
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    let (name, data) = (text(&event, "type"), &event["data"]);
    if json {
        streams.out.json(line);
    } else {
        match name {
            "chunk" => streams.out.text(&safe(text(data, "text"))),
            "done" => streams.out.text("\n"),
            "stopped" => streams.err.line("stopped"),
            "error" => {
                let why = escape_for_display(text(data, "message"), 400);
                streams.err.line(&format!("error: {why}"));
            }
            "approval" => {
                let (id, tool) = (
                    escape_for_display(text(data, "id"), 80),
                    escape_for_display(text(data, "tool"), 80),
                );
                let text = format!("{tool} waits for approval: marshal approvals show {id}");
                streams.err.line(&text);
            }
            "call" if !quiet => {
                let (tool, path) = (
                    escape_for_display(text(data, "tool"), 80),
                    escape_for_display(text(data, "path"), 200),
                );
                streams.err.line(format!("· {tool} {path}").trim_end());
            }
            "rehydrated" if !quiet => {
                let by = escape_for_display(text(data, "by"), 40);
                streams
                    .err
                    .line(&format!("the agent's session was restored by {by}"));
            }
            _ => {}
        }
    }
    if text(data, "turn_id") != turn {
        return None;
    }
    match name {
        "done" => Some(Exit::Done),
        "stopped" | "error" => Some(Exit::Failures),
        _ => None,
    }
}

/// A text of the agent, escaped, with its line breaks.
fn safe(text: &str) -> String {
    let lines = text
        .split('\n')
        .map(|line| escape_for_display(line, usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_lines_and_nothing_that_acts_on_a_terminal() {
        assert_eq!(safe("a\nb\u{1b}[2J\n"), "a\nb\\u{1b}[2J\n");
    }
}
