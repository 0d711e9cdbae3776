//! `marshal chat`: a chat with an agent of the daemon, message by message, in a terminal or over a pipe.
//!
//! Owns the turns as a person has them: what is typed is sent once, the answer is shown as it comes,
//! Ctrl-C ends the turn, questions are answered in place. Must not know how a chat is worked.
//!
//! Tests: `tests/drills/fleet/chat_terminal.rs`.

mod chat_stream;
mod lines;

use std::collections::VecDeque;
use std::path::Path;

use axum::http::Method;
use serde_json::{Value, json};

use self::chat_stream::ChatStream;
use self::lines::{Line, Lines};
use super::approvals::{self, AnswerArgs};
use super::exit::Exit;
use super::http_client::{HttpError, post_idempotent, request_json};
use super::prompt::{show_event, text};
use super::signals::{Signal, Signals};
use super::streams::Streams;
use marshal_config::Config;
use marshal_engine::api::run_stream::new_run_id;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    Decision, PermissionRequestId, RememberScope, RoleName, SessionId, WorkspaceName,
};

/// How often a message is sent again to a daemon that is not there, under the same key.
const TRIES: u32 = 60;
/// Questions of one turn that wait here to be shown.
const QUESTIONS: usize = 32;
/// What a person is asked with.
const PROMPT: &str = "> ";
const MORE: &str = "… ";
const ALLOW: &str = "allow? y, n, n REASON, or s to leave it: ";

/// `chat …`
#[derive(Debug, Clone, clap::Args)]
pub struct ChatArgs {
    /// The workspace, a [workspace.NAME]; may be left out where the configuration has one
    #[arg(long, value_name = "NAME", value_parser = |text: &str| WorkspaceName::new(text))]
    workspace: Option<WorkspaceName>,
    /// The role of a new chat, a [role.NAME]; may be left out where there is one
    #[arg(long, value_name = "NAME", conflicts_with = "resume", value_parser = |text: &str| RoleName::new(text))]
    role: Option<RoleName>,
    /// Go on with this chat, instead of a new one
    #[arg(long, value_name = "CHAT", value_parser = |text: &str| SessionId::new(text))]
    resume: Option<SessionId>,
    /// Without a terminal: a line that comes while a question waits is its answer, not the next
    /// message. On a terminal that is always so
    #[arg(long)]
    answers: bool,
}

/// A chat as it is held here.
struct ChatSession<'a> {
    state: &'a Path,
    /// `/api/v1/workspaces/NAME/chats`
    chats: String,
    role: Option<RoleName>,
    /// The chat and its stream, once there is one.
    chat_stream: Option<ChatStream<'a>>,
    lines: Lines,
    signals: Signals,
    streams: &'a mut Streams,
    json: bool,
    quiet: bool,
    /// A line may be the answer to a question: somebody has seen it.
    answers: bool,
    /// Questions that nobody has answered here, the one that is asked first.
    approvals: VecDeque<PendingApproval>,
    /// What ended the last turn.
    last: Exit,
}

struct PendingApproval {
    approval: PermissionRequestId,
    digest: Option<String>,
}

/// What becomes of the chat here.
enum NextStep {
    Continue,
    Leave(Exit),
}

/// Holds a chat until its person leaves.
pub(super) async fn run(
    state: &Path,
    config: &Config,
    args: &ChatArgs,
    (json, quiet): (bool, bool),
    streams: &mut Streams,
) -> Exit {
    let workspace = match (&args.workspace, config.workspaces.len()) {
        (Some(name), _) => name.clone(),
        (None, 1) => match config.workspaces.keys().next() {
            Some(name) => name.clone(),
            None => return Exit::Usage,
        },
        (None, _) => {
            let names = config.workspaces.keys().map(WorkspaceName::as_str);
            let names = names.collect::<Vec<_>>().join(", ");
            let text = format!("error: name a workspace with --workspace; there are: {names}");
            streams.err.line(&text);
            return Exit::Usage;
        }
    };
    let Ok(signals) = Signals::install() else {
        streams.err.line("error: signals cannot be handled");
        return Exit::CannotStart;
    };
    let lines = Lines::open(state, !json);
    let answers = args.answers || lines.is_terminal();
    let chats = format!("/api/v1/workspaces/{workspace}/chats");
    let feed = args.resume.as_ref().map(|chat| {
        let place = format!("{chats}/{chat}");
        ChatStream::from_end(state, place)
    });
    let mut talk = ChatSession {
        state,
        chats,
        role: args.role.clone(),
        chat_stream: feed,
        lines,
        signals,
        streams,
        json,
        quiet,
        answers,
        approvals: VecDeque::new(),
        last: Exit::Done,
    };
    let exit = talk.run_turns().await;
    talk.lines.restore();
    exit
}

impl ChatSession<'_> {
    fn print_note(&mut self, text: &str) {
        if !self.quiet {
            self.streams.err.line(text);
        }
    }

    async fn run_turns(&mut self) -> Exit {
        if let Some(feed) = &mut self.chat_stream {
            // Whether there is such a chat is known before anything is typed.
            if let Err(error) = feed.begin().await {
                return error.report(self.streams);
            }
        }
        if self.lines.is_terminal() {
            self.print_note(
                "Ctrl-C ends a turn, Ctrl-D leaves; \\ at a line's end goes on in the next",
            );
        }
        let mut message = String::new();
        let mut interrupts = 0;
        loop {
            let prompt = if message.is_empty() { PROMPT } else { MORE };
            self.lines.request_line(prompt, true);
            let line = tokio::select! {
                line = self.lines.next() => line,
                signal = self.signals.next() => match signal {
                    Signal::Hangup => continue,
                    // The editor does not have the terminal yet.
                    Signal::Interrupt if self.lines.is_terminal() => Line::Interrupt,
                    ended => return ended.exit(),
                },
            };
            match line {
                Line::Text(_) if self.lines.is_stale_line() => {
                    self.print_note("the question was over before that: nothing was sent");
                }
                Line::Text(line) => {
                    interrupts = 0;
                    if let Some(line) = line.strip_suffix('\\') {
                        message.push_str(line);
                        message.push('\n');
                        continue;
                    }
                    message.push_str(&line);
                    let message = std::mem::take(&mut message);
                    if message.trim().is_empty() {
                        continue;
                    }
                    if let NextStep::Leave(exit) = self.turn(&message).await {
                        return exit;
                    }
                    self.lines.discard_pending();
                }
                Line::Interrupt if interrupts > 0 => return Exit::Interrupted,
                Line::Interrupt => {
                    interrupts += 1;
                    message.clear();
                    self.print_note("Ctrl-C again leaves");
                }
                Line::End => return self.last,
                Line::Failed(why) => {
                    let text = format!("error: standard input: {}", escape_for_display(&why, 200));
                    self.streams.err.line(&text);
                    return Exit::Failures;
                }
            }
        }
    }

    /// Sends a message and shows what comes of it, until its turn is over.
    async fn turn(&mut self, message: &str) -> NextStep {
        self.approvals.clear();
        let sent = match self.send(message).await {
            Ok(Some(turn)) => turn,
            Ok(None) => return NextStep::Leave(Exit::Interrupted),
            Err(error) => {
                self.last = error.report(self.streams);
                // What is wrong with a message is no reason to leave, if there is a chat.
                let is_refused = matches!(error, HttpError::Refused { .. });
                return if self.chat_stream.is_some() && is_refused {
                    NextStep::Continue
                } else {
                    NextStep::Leave(self.last)
                };
            }
        };
        let mut stops = 0;
        loop {
            let Some(feed) = &mut self.chat_stream else {
                return NextStep::Continue;
            };
            tokio::select! {
                event = feed.next() => match event {
                    Ok(data) => {
                        let ended = show_event(&data, &sent, self.json, self.quiet, self.streams);
                        if let Some(exit) = ended {
                            self.last = exit;
                            return NextStep::Continue;
                        }
                        self.note(&data).await;
                    }
                    Err(error) => return NextStep::Leave(error.report(self.streams)),
                },
                line = self.lines.next() => match line {
                    Line::Text(line) => self.answer(&line).await,
                    Line::Interrupt => {
                        stops += 1;
                        if stops > 1 {
                            return NextStep::Leave(Exit::Interrupted);
                        }
                        self.stop().await;
                    }
                    Line::End | Line::Failed(_) => {
                        self.approvals.clear();
                        self.print_note("nobody is left to answer here: see marshal approvals");
                    }
                },
                signal = self.signals.next() => match signal {
                    Signal::Hangup => {}
                    Signal::Terminate => return NextStep::Leave(Exit::Terminated),
                    Signal::Interrupt => {
                        stops += 1;
                        if stops > 1 {
                            return NextStep::Leave(Exit::Interrupted);
                        }
                        self.stop().await;
                    }
                },
            }
        }
    }

    /// Has the daemon take the message, once; gives its turn, or nothing if the person left.
    async fn send(&mut self, message: &str) -> Result<Option<String>, HttpError> {
        let key = new_run_id().map_or_else(|_| String::new(), |id| id.to_string());
        let mut tries = 0;
        loop {
            let sending = async {
                match &mut self.chat_stream {
                    None => {
                        let mut body = json!({"goal": message});
                        if let Some(role) = &self.role {
                            body["role"] = json!(role.as_str());
                        }
                        post_idempotent(self.state, &self.chats, &key, &body).await
                    }
                    Some(feed) => {
                        // What comes of it is in the stream, from before it was sent.
                        feed.begin().await?;
                        let body = json!({"content": message});
                        post_idempotent(self.state, feed.path(), &key, &body).await
                    }
                }
            };
            let sent = {
                let mut sending = std::pin::pin!(sending);
                loop {
                    tokio::select! {
                        sent = &mut sending => break sent,
                        signal = self.signals.next() => match signal {
                            Signal::Hangup => {}
                            _ => return Ok(None),
                        },
                    }
                }
            };
            match sent {
                Ok(answer) => {
                    if self.chat_stream.is_none() {
                        let chat = text(&answer, "chat_id");
                        self.print_note(&format!("chat {}", escape_for_display(chat, 80)));
                        let place = format!("{}/{chat}", self.chats);
                        self.chat_stream = Some(ChatStream::from_start(self.state, place));
                    }
                    return Ok(Some(text(&answer, "turn_id").to_owned()));
                }
                // Under its key it is taken once, whatever came of the try before.
                Err(error) if tries >= TRIES || !error.is_retryable() => {
                    return Err(error);
                }
                Err(_) => {
                    if tries == 0 {
                        self.print_note("the daemon is not there; trying again");
                    }
                    tries += 1;
                    tokio::time::sleep(limits::CHAT_STREAM_RETRY).await;
                }
            }
        }
    }

    async fn stop(&mut self) {
        let Some(feed) = &self.chat_stream else {
            return;
        };
        let path = format!("{}/stop", feed.path());
        match request_json(self.state, Method::POST, &path, None).await {
            Ok(_) => self.print_note("stopping; Ctrl-C again leaves"),
            Err(error) => drop(error.report(self.streams)),
        }
    }

    /// Takes a question note, if an event is one.
    async fn note(&mut self, data: &str) {
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        if text(&event, "type") != "approval" || self.approvals.len() >= QUESTIONS {
            return;
        }
        let Ok(approval) = PermissionRequestId::new(text(&event["data"], "id")) else {
            return;
        };
        self.approvals.push_back(PendingApproval {
            approval,
            digest: None,
        });
        if self.approvals.len() == 1 {
            self.show_next_approval().await;
        }
    }

    /// Shows the first question that still waits, and asks for an answer.
    async fn show_next_approval(&mut self) {
        while let Some(question) = self.approvals.front_mut() {
            match approvals::fetch_pending(self.state, &question.approval).await {
                Ok(Some((lines, digest))) => {
                    question.digest = Some(digest);
                    if !self.json {
                        for line in lines {
                            self.streams.err.line(&line);
                        }
                    }
                    if self.answers {
                        self.lines.request_line(ALLOW, false);
                        return;
                    }
                    // Lines that were written before it cannot be meant for it.
                    let text = format!("left: marshal approvals show {}", question.approval);
                    self.print_note(&text);
                }
                // It is over already.
                Ok(None) => {}
                Err(error) => drop(super::control_client::report_error(&error, self.streams)),
            }
            self.approvals.pop_front();
        }
    }

    /// Takes a line as the answer to the first question.
    async fn answer(&mut self, line: &str) {
        let Some(question) = self.approvals.front() else {
            self.print_note("the question was over before that: nothing was sent");
            return;
        };
        let (word, reason) = match line.trim().split_once(char::is_whitespace) {
            Some((word, reason)) => (word, Some(reason.trim().to_owned())),
            None => (line.trim(), None),
        };
        let decision = match word.to_ascii_lowercase().as_str() {
            "y" | "yes" => Decision::Allow,
            "n" | "no" => Decision::Deny,
            "s" => {
                let text = format!("left: marshal approvals show {}", question.approval);
                self.approvals.pop_front();
                self.print_note(&text);
                return self.show_next_approval().await;
            }
            _ => {
                self.print_note("say y, n, n REASON or s");
                self.lines.request_line(ALLOW, false);
                return;
            }
        };
        let args = AnswerArgs {
            approval: question.approval.clone(),
            reason,
            remember: RememberScope::Never,
            digest: question.digest.clone(),
        };
        self.approvals.pop_front();
        let answered =
            approvals::answer(self.state, &args, decision, self.json, self.streams).await;
        if let Err(error) = answered {
            let _ = super::control_client::report_error(&error, self.streams);
        }
        self.show_next_approval().await;
    }
}
