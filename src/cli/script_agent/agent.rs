//! The agent itself: its session, what it hears, and what it says.
//!
//! Owns the order of messages that ScaiFlux prescribes. Must not know verbs or tools.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::ledger::Ledger;
use super::messages::{Claim, Details, Outbound};
use super::pipes::{Inbox, Outbox};
use super::step::Call;
use crate::model::Foreign;

/// The context window that the agent claims, in tokens.
pub(super) const CONTEXT_WINDOW: u64 = 200_000;

/// The output cap that the agent claims, in tokens.
const MAX_TOKENS: u64 = 8192;

/// What the model is told when the controller is gone.
const DISCONNECTED: &str = "controller disconnected before responding";

/// Why the agent ends before its stdin does.
#[derive(Debug)]
pub(super) enum Halt {
    /// The controller does not read any more, or the ledger cannot be written.
    Io(io::Error),
    /// The script says so.
    Exit(u8),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What comes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Permission {
    Allowed,
    /// With the reason for the model.
    Denied(String),
    /// The turn was cancelled meanwhile.
    Cancelled,
}

/// How the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// Not yet.
    No,
    /// Stdin ended: the turn is finished first.
    Eof,
    /// The controller said goodbye, or a slash command did: the turn is cancelled.
    Goodbye,
}

/// The running turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) id: String,
    /// Characters that the model read and wrote.
    pub(super) read_chars: u64,
    pub(super) written_chars: u64,
    /// Tool calls so far.
    pub(super) calls: u64,
    pub(super) mutations: Vec<(&'static str, String)>,
    /// Each step that failed, in words.
    pub(super) failures: Vec<String>,
    pub(super) cancelled: bool,
}

/// The one request that is open, and its answer.
#[derive(Debug)]
pub(super) struct OpenAsk {
    pub(super) id: String,
    pub(super) answer: Option<Permission>,
}

/// What does not change while the agent runs.
#[derive(Debug)]
pub(super) struct Settings {
    /// What each step and each request of a load step waits first.
    pub(super) think: Duration,
    /// Load: no narration, no log, large writes.
    pub(super) loader: bool,
}

/// The agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) settings: Settings,
    pub(super) inbox: Inbox,
    pub(super) out: Outbox,
    pub(super) ledger: Ledger,
    pub(super) session: String,
    pub(super) model: String,
    pub(super) mode: String,
    /// Tokens in the context.
    pub(super) context: u64,
    pub(super) turn: Option<Turn>,
    /// A prompt that was accepted and not begun.
    pub(super) accepted: Option<String>,
    pub(super) closing: Closing,
    pub(super) ignores_cancel: bool,
    pub(super) open: Option<OpenAsk>,
    turns: u64,
    calls: u64,
    asks: u64,
}

/// What a new agent is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) settings: Settings,
    pub(super) inbox: Inbox,
    pub(super) out: Outbox,
    pub(super) ledger: Ledger,
    pub(super) session: String,
    pub(super) model: String,
    pub(super) mode: String,
}

impl Agent {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            settings: parts.settings,
            inbox: parts.inbox,
            out: parts.out,
            ledger: parts.ledger,
            session: parts.session,
            model: parts.model,
            mode: parts.mode,
            context: 0,
            turn: None,
            accepted: None,
            closing: Closing::No,
            ignores_cancel: false,
            open: None,
            turns: 0,
            calls: 0,
            asks: 0,
        }
    }

    /// Says `ready`, then works prompts until the controller is done.
    pub(super) fn serve(&mut self, claim: &Claim) -> Result<(), Halt> {
        self.ledger
            .enter("start", || json!({"session": self.session}))?;
        self.out.send(&Outbound::Ready {
            protocol: claim.0.as_ref(),
            version: env!("CARGO_PKG_VERSION"),
            session_id: &self.session,
            model: &self.model,
            mode: &self.mode,
            tools: &Call::TOOLS,
            context_window: CONTEXT_WINDOW,
            max_tokens: MAX_TOKENS,
            gadgets: &[],
        })?;
        while self.closing == Closing::No {
            if let Some(prompt) = self.accepted.take() {
                self.run_turn(&prompt)?;
            } else if let Some(line) = self.inbox.next() {
                // One line at a time: what follows a prompt is heard inside its turn.
                self.hear(line)?;
            } else if self.inbox.at_end() {
                self.hear_end()?;
            } else {
                self.inbox.fill()?;
            }
        }
        self.log(format_args!("goodbye"));
        Ok(())
    }

    /// The next turn's id.
    pub(super) fn next_turn(&mut self) -> String {
        self.turns += 1;
        format!("t-{}", self.turns)
    }

    /// The next tool call's id.
    pub(super) fn next_call(&mut self) -> String {
        self.calls += 1;
        if let Some(turn) = &mut self.turn {
            turn.calls += 1;
        }
        format!("call_{}", self.calls)
    }

    /// Whether the running turn was cancelled.
    pub(super) fn cancelled(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.cancelled)
    }

    /// The running turn's id; empty between turns.
    pub(super) fn turn_id(&self) -> &str {
        self.turn.as_ref().map_or("", |turn| turn.id.as_str())
    }

    /// Streams a piece of the answer.
    pub(super) fn text(&mut self, delta: &str) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.written_chars += delta.chars().count() as u64;
        }
        self.out.send(&Outbound::TextDelta {
            turn_id: self.turn.as_ref().map_or("", |turn| turn.id.as_str()),
            delta,
        })?;
        Ok(())
    }

    /// Takes in what the controller said so far, without waiting.
    pub(super) fn attend(&mut self) -> Result<(), Halt> {
        self.hear_all()?;
        if self.closing != Closing::Eof && self.inbox.wait([], Some(Instant::now()))?.input {
            self.inbox.fill()?;
            self.hear_all()?;
        }
        Ok(())
    }

    /// Takes in every line that was read.
    pub(super) fn hear_all(&mut self) -> Result<(), Halt> {
        while let Some(line) = self.inbox.next() {
            self.hear(line)?;
        }
        if self.inbox.at_end() {
            self.hear_end()?;
        }
        Ok(())
    }

    /// Pauses, listening; ends early when the turn is cancelled.
    pub(super) fn pause(&mut self, pause: Duration) -> Result<(), Halt> {
        let deadline = Instant::now() + pause;
        self.hear_all()?;
        while !self.cancelled() && Instant::now() < deadline {
            if self.inbox.wait([], Some(deadline))?.input {
                self.inbox.fill()?;
                self.hear_all()?;
            }
        }
        Ok(())
    }

    /// Queues a permission request; [`Self::answer`] sends it.
    pub(super) fn queue_ask(&mut self, call: &Call) -> Result<(), Halt> {
        self.asks += 1;
        let id = format!("r-{}", self.asks);
        self.out.queue(&Outbound::PermissionRequest {
            request_id: &id,
            tool: call.tool(),
            active_mode: &self.mode,
            required_mode: call.required_mode(),
            details: Details {
                tool_input: call,
                reason: None,
            },
        })?;
        self.open = Some(OpenAsk { id, answer: None });
        Ok(())
    }

    /// Sends what is queued and waits for the open request's answer.
    pub(super) fn answer(&mut self) -> Result<Permission, Halt> {
        self.out.flush()?;
        self.hear_all()?;
        loop {
            if self.cancelled() {
                self.open = None;
                return Ok(Permission::Cancelled);
            }
            if let Some(answer) = self.open.as_mut().and_then(|open| open.answer.take()) {
                self.open = None;
                return Ok(answer);
            }
            if self.closing == Closing::Eof {
                self.open = None;
                return Ok(Permission::Denied(DISCONNECTED.to_owned()));
            }
            self.inbox.fill()?;
            self.hear_all()?;
        }
    }

    /// A line for the log. Its text may hold what others wrote.
    pub(super) fn log(&self, what: std::fmt::Arguments<'_>) {
        if self.settings.loader {
            return;
        }
        let line = format!(
            "script-agent: {}\n",
            Foreign::new(what.to_string()).show(300)
        );
        // A log that nobody reads must not end the agent.
        drop(io::stderr().write_all(line.as_bytes()));
    }
}
