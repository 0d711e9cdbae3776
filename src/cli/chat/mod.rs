//! `marshal chat`: an interactive chat with an agent of the daemon, in a terminal or over a pipe.
//!
//! Owns the turns as a person sees them. A message is sent once, its answer is shown as it arrives,
//! Ctrl-C cancels the turn, and approvals are answered in the chat. Must not know how a chat works.
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
use super::http_client::{ClientError, post_idempotent, request_json};
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

/// How often a message is sent again, under the same key, to a daemon that does not answer.
const TRIES: u32 = 60;
/// The most approvals of one turn that wait to be shown.
const QUESTIONS: usize = 32;
/// The prompts of the terminal.
const PROMPT: &str = "> ";
const MORE: &str = "… ";
const ALLOW: &str = "allow? y, n, n REASON, or s to skip: ";

/// `chat …`
#[derive(Debug, Clone, clap::Args)]
pub struct ChatArgs {
    /// Name of the workspace, a [workspace.NAME]; optional if the configuration has only one
    #[arg(long, value_name = "NAME", value_parser = |text: &str| WorkspaceName::new(text))]
    workspace: Option<WorkspaceName>,
    /// Role of a new chat, a [role.NAME]; optional if the configuration has only one
    #[arg(long, value_name = "NAME", conflicts_with = "resume", value_parser = |text: &str| RoleName::new(text))]
    role: Option<RoleName>,
    /// Continue this chat, instead of starting a new one
    #[arg(long, value_name = "CHAT", value_parser = |text: &str| SessionId::new(text))]
    resume: Option<SessionId>,
    /// Without a terminal: while an approval is pending, treat the next line as its answer, not as
    /// a message (on a terminal, this is always so)
    #[arg(long)]
    answers: bool,
}

/// The state of the chat on the client.
struct ChatSession<'a> {
    state: &'a Path,
    /// `/api/v1/workspaces/NAME/chats`
    chats: String,
    role: Option<RoleName>,
    /// The chat's stream; `None` until the chat exists.
    chat_stream: Option<ChatStream<'a>>,
    lines: Lines,
    signals: Signals,
    streams: &'a mut Streams,
    json: bool,
    quiet: bool,
    /// Whether a line may be the answer to a pending approval.
    answers: bool,
    /// Approvals that are not answered yet; the first one is shown.
    approvals: VecDeque<PendingApproval>,
    /// The exit code of the last turn.
    last: Exit,
}

struct PendingApproval {
    approval: PermissionRequestId,
    digest: Option<String>,
}

/// What to do after a turn.
enum NextStep {
    Continue,
    Leave(Exit),
}

/// Runs the chat until the user leaves.
pub(super) async fn run(
    state: &Path,
    config: Option<&Config>,
    args: &ChatArgs,
    (json, quiet): (bool, bool),
    streams: &mut Streams,
) -> Exit {
    let names = config
        .into_iter()
        .flat_map(|config| config.workspaces.keys());
    let names: Vec<&WorkspaceName> = names.collect();
    let workspace = match (&args.workspace, &*names) {
        (Some(name), _) => name.clone(),
        (None, [only]) => (*only).clone(),
        (None, []) if config.is_some() => {
            let text =
                "error: the configuration has no workspace for chats; add a [workspace.NAME]";
            streams.err.line(text);
            return Exit::Usage;
        }
        (None, _) => {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            let names = names.join(", ");
            let text =
                format!("error: name a workspace with --workspace; the workspaces are: {names}");
            streams.err.line(&text);
            return Exit::Usage;
        }
    };
    let Ok(signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
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
            // An unknown chat is reported before the user types anything.
            if let Err(error) = feed.begin().await {
                return error.report(self.streams);
            }
        }
        if self.lines.is_terminal() {
            self.print_note(
                "Ctrl-C cancels a turn, Ctrl-D exits; \\ at the end of a line continues it",
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
                    // The line editor does not control the terminal yet.
                    Signal::Interrupt if self.lines.is_terminal() => Line::Interrupt,
                    ended => return ended.exit(),
                },
            };
            match line {
                Line::Text(_) if self.lines.is_stale_line() => {
                    self.print_note("the request had ended before this answer: nothing was sent");
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
                    self.print_note("press Ctrl-C again to exit");
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

    /// Sends a message and shows its turn until the end.
    async fn turn(&mut self, message: &str) -> NextStep {
        self.approvals.clear();
        let sent = match self.send(message).await {
            Ok(Some(turn)) => turn,
            Ok(None) => return NextStep::Leave(Exit::Interrupted),
            Err(error) => {
                self.last = error.report(self.streams);
                // A refused message does not end an existing chat.
                let is_refused = matches!(error, ClientError::Refused { .. });
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
                        self.print_note("the input has ended: answer with `marshal approvals`");
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

    /// Sends the message exactly once; returns its turn, or `None` if the user left.
    async fn send(&mut self, message: &str) -> Result<Option<String>, ClientError> {
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
                        // Open the stream before sending, so that no event of the turn is missed.
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
                // The key makes the daemon accept the message only once, even if an earlier try
                // arrived.
                Err(error) if tries >= TRIES || !error.is_retryable() => {
                    return Err(error);
                }
                Err(_) => {
                    if tries == 0 {
                        self.print_note("the daemon does not answer; trying again");
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
            Ok(_) => self.print_note("cancelling the turn; press Ctrl-C again to exit"),
            Err(error) => drop(error.report(self.streams)),
        }
    }

    /// Queues an approval, if the event reports one.
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

    /// Shows the first pending approval, and requests an answer.
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
                    // The lines of a pipe were written before the approval, so they cannot answer
                    // it.
                    let text = format!(
                        "not answered here: marshal approvals show {}",
                        question.approval
                    );
                    self.print_note(&text);
                }
                // It has ended already.
                Ok(None) => {}
                Err(error) => drop(error.report(self.streams)),
            }
            self.approvals.pop_front();
        }
    }

    /// Sends a line as the answer to the first approval.
    async fn answer(&mut self, line: &str) {
        let Some(question) = self.approvals.front() else {
            self.print_note("the request had ended before this answer: nothing was sent");
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
                let text = format!("skipped: marshal approvals show {}", question.approval);
                self.approvals.pop_front();
                self.print_note(&text);
                return self.show_next_approval().await;
            }
            _ => {
                self.print_note("enter y, n, n REASON or s");
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
            let _ = error.report(self.streams);
        }
        self.show_next_approval().await;
    }
}
