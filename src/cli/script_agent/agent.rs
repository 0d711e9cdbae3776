//! The agent itself: its session, its turn, and how it waits.
//!
//! One state machine for every protocol: what it says goes through [`Said`], what it hears comes
//! from the protocol's folder. Must not know verbs, tools or messages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::claim::Claim;
use super::ledger::Ledger;
use super::memory::{Memory, Record, Session};
use super::pipes::{Inbox, Outbox};
use super::quirk::Quirk;
use super::said::{Moment, Said, TextFrame};
use super::step::Call;
use super::{AgentDialect, acp, claude, codex, loaf, scaiflux};
use crate::limits::AGENT_OUTPUT_BYTES;
use crate::model::Foreign;

/// The context window that the agent claims, in tokens.
pub(super) const CONTEXT_WINDOW: u64 = 200_000;

/// What the model is told when the controller is gone.
const DISCONNECTED: &str = "controller disconnected before responding";

/// Why the agent ends before its stdin does.
#[derive(Debug)]
pub(super) enum Halt {
    /// The controller does not read any more, or the ledger cannot be written.
    Io(io::Error),
    /// The script says so.
    Exit(u8),
    /// The controller said what its protocol does not have, where that ends the agent.
    Wrong(String),
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
    /// The prompt's fingerprint.
    pub(super) digest: String,
    /// The request that the turn answers, in a protocol where a prompt is one.
    pub(super) reply_to: Option<Value>,
    /// What was said, cut where a tool's output would be.
    pub(super) said: String,
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

/// A prompt that was accepted and not begun.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) text: String,
    pub(super) digest: String,
    pub(super) reply_to: Option<Value>,
}

/// The one request that is open, and its answer.
#[derive(Debug)]
pub(super) struct OpenAsk {
    pub(super) number: u64,
    pub(super) tool: &'static str,
    pub(super) answer: Option<Permission>,
}

/// What does not change while the agent runs.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) dialect: AgentDialect,
    pub(super) claim: Claim,
    /// What each step and each request of a load step waits first.
    pub(super) think: Duration,
    /// Load: no narration, no log, no memory, large writes.
    pub(super) loader: bool,
    /// Requests carry nothing but the id of their tool call.
    pub(super) bare_asks: bool,
    /// In what it differs from other agents.
    pub(super) quirks: Vec<Quirk>,
}

impl Settings {
    pub(super) fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

/// What a session can be set to, where sessions can be set.
#[derive(Debug)]
pub(super) struct Choices {
    pub(super) mode: String,
    pub(super) model: String,
    pub(super) fast: bool,
}

/// The agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) settings: Settings,
    pub(super) inbox: Inbox,
    pub(super) out: Outbox,
    pub(super) ledger: Ledger,
    pub(super) memory: Memory,
    /// The session whose turn runs, or ran last.
    pub(super) session: Session,
    /// Others that are open, in a protocol that has more than one.
    pub(super) others: BTreeMap<String, Session>,
    pub(super) model: String,
    pub(super) mode: String,
    pub(super) turn: Option<Turn>,
    pub(super) accepted: Option<Accepted>,
    pub(super) closing: Closing,
    /// Whether the controller introduced itself, in a protocol where it speaks first.
    pub(super) introduced: bool,
    /// Whether it made the login that is wanted.
    pub(super) logged_in: bool,
    pub(super) choices: Choices,
    pub(super) ignores_cancel: bool,
    /// Tools that were allowed for ever.
    pub(super) trusted: BTreeSet<&'static str>,
    pub(super) open: Option<OpenAsk>,
    /// The open request to the client, in a protocol that has them.
    pub(super) wanted: Option<acp::Wanted>,
    /// The terminal that was made last.
    pub(super) terminal: String,
    /// The tool servers that the client handed over.
    pub(super) tool_servers: acp::ToolServers,
    /// What waits, in a protocol where prompts can.
    pub(super) waiting: loaf::Waiting,
    /// What Claude Code and Codex keep of their conversations.
    pub(super) claude: claude::Talk,
    pub(super) codex: codex::Talk,
    pub(super) scripted: Scripted,
    turns: u64,
    calls: u64,
    asks: u64,
}

/// What the script made of the conversation.
#[derive(Debug, Default)]
pub(super) struct Scripted {
    /// It wrote lines of its own, to which anything may be answered.
    pub(super) has_written: bool,
    /// The next request is withdrawn at once.
    pub(super) withdraws: bool,
}

/// Where something is said, and what is true then.
#[derive(Debug)]
pub(super) struct Speaking<'a> {
    pub(super) out: &'a mut Outbox,
    pub(super) claude: &'a mut claude::Talk,
    pub(super) codex: &'a mut codex::Talk,
    pub(super) moment: Moment<'a>,
}

/// What a new agent is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) settings: Settings,
    pub(super) inbox: Inbox,
    pub(super) out: Outbox,
    pub(super) ledger: Ledger,
    pub(super) memory: Memory,
    pub(super) session: Session,
    pub(super) model: String,
    pub(super) mode: String,
    pub(super) claude: claude::Talk,
}

impl Agent {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            turns: parts.session.prompts,
            calls: parts.session.calls,
            settings: parts.settings,
            inbox: parts.inbox,
            out: parts.out,
            ledger: parts.ledger,
            memory: parts.memory,
            session: parts.session,
            others: BTreeMap::new(),
            model: parts.model,
            mode: parts.mode,
            turn: None,
            accepted: None,
            closing: Closing::No,
            introduced: false,
            logged_in: false,
            choices: Choices {
                mode: "ask".to_owned(),
                model: "a".to_owned(),
                fast: false,
            },
            ignores_cancel: false,
            trusted: BTreeSet::new(),
            open: None,
            wanted: None,
            terminal: String::new(),
            tool_servers: acp::ToolServers::default(),
            waiting: loaf::Waiting::default(),
            claude: parts.claude,
            codex: codex::Talk::default(),
            scripted: Scripted::default(),
            asks: 0,
        }
    }

    /// Says that it is ready, where it speaks first, then works prompts until the controller is
    /// done.
    pub(super) fn serve(&mut self) -> Result<(), Halt> {
        self.enter("start", || json!({}))?;
        if self.settings.dialect == AgentDialect::Scaiflux {
            let claim = self.settings.claim.unasked();
            let said = self.speaking();
            scaiflux::ready(said.out, &said.moment, claim.as_ref())?;
        }
        while self.closing == Closing::No {
            self.take_waiting()?;
            if let Some(prompt) = self.accepted.take() {
                self.run_turn(prompt)?;
                if self.settings.has(Quirk::Restless) {
                    // Later after every turn of the session: whatever follows a turn is met.
                    std::thread::sleep(Duration::from_millis(self.turns % 40));
                    break;
                }
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

    /// Where something is said, and when.
    pub(super) fn speaking(&mut self) -> Speaking<'_> {
        let turn = self.turn.as_ref();
        Speaking {
            out: &mut self.out,
            claude: &mut self.claude,
            codex: &mut self.codex,
            moment: Moment {
                session: &self.session.id,
                turn: turn.map_or("", |turn| turn.id.as_str()),
                reply_to: turn.and_then(|turn| turn.reply_to.as_ref()),
                mode: &self.mode,
                model: &self.model,
                context: self.session.context,
                bare_asks: self.settings.bare_asks,
            },
        }
    }

    /// Puts what is said behind what is queued.
    pub(super) fn queue(&mut self, said: &Said<'_>) -> Result<(), Halt> {
        let dialect = self.settings.dialect;
        let to = self.speaking();
        let (out, moment) = (to.out, to.moment);
        match dialect {
            AgentDialect::Scaiflux => scaiflux::queue(out, &moment, said)?,
            AgentDialect::Acp => acp::queue(out, &moment, said)?,
            AgentDialect::Loaf => loaf::queue(out, &moment, said)?,
            AgentDialect::Claude => to.claude.queue(out, &moment, said)?,
            AgentDialect::Codex => to.codex.queue(out, &moment, said)?,
        }
        Ok(())
    }

    /// Says it now.
    pub(super) fn tell(&mut self, said: &Said<'_>) -> Result<(), Halt> {
        self.queue(said)?;
        self.out.flush()?;
        Ok(())
    }

    /// One piece of text's line, and how many bytes of text a line of `line_bytes` has: as many
    /// in every protocol, so that their loads compare.
    pub(super) fn text_frame(&mut self, line_bytes: usize) -> Result<(TextFrame, usize), Halt> {
        let dialect = self.settings.dialect;
        let to = self.speaking();
        let (out, moment) = (to.out, to.moment);
        let yardstick = scaiflux::text_frame(&moment)?;
        let text_bytes = line_bytes.saturating_sub(yardstick.len()).max(1);
        let frame = match dialect {
            AgentDialect::Scaiflux => yardstick,
            AgentDialect::Acp => acp::text_frame(&moment)?,
            AgentDialect::Loaf => loaf::text_frame(&moment),
            AgentDialect::Claude => to.claude.text_frame(out, &moment)?,
            AgentDialect::Codex => to.codex.text_frame(out, &moment)?,
        };
        // Where a text has a beginning of its own, that was queued.
        self.out.flush()?;
        Ok((frame, text_bytes))
    }

    /// An entry in the ledger, on the disk when this returns.
    pub(super) fn enter(&mut self, kind: &str, fields: impl FnOnce() -> Value) -> Result<(), Halt> {
        self.ledger.enter(kind, &self.session.id, fields)?;
        Ok(())
    }

    /// Begins a session in `cwd`; it is kept if that is possible.
    pub(super) fn begin_session(&self, cwd: PathBuf) -> Session {
        let (session, failed) = self.memory.begin(cwd);
        if let Some(error) = failed {
            self.log(format_args!("the session is not kept: {error}"));
        }
        session
    }

    /// Makes a session the current one.
    pub(super) fn enter_session(&mut self, session: Session) {
        self.turns = self.turns.max(session.prompts);
        self.calls = self.calls.max(session.calls);
        let before = std::mem::replace(&mut self.session, session);
        if !before.id.is_empty() {
            self.others.insert(before.id.clone(), before);
        }
    }

    /// Makes an open session the current one; `false`: it is not open.
    pub(super) fn select_open(&mut self, id: &str) -> Result<bool, Halt> {
        if self.session.id != id {
            let Some(session) = self.others.remove(id) else {
                return Ok(false);
            };
            self.enter_session(session);
        }
        // Tools take their paths from here.
        std::env::set_current_dir(&self.session.cwd)?;
        Ok(true)
    }

    /// Keeps what happened in the session's file: a tool call before long, the rest now.
    pub(super) fn keep(&mut self, record: &Record) {
        let kept = match record {
            Record::Tool { .. } => self.session.append(record),
            _ => self.session.keep(record),
        };
        if let Err(error) = kept {
            self.log(format_args!("the session is not kept any more: {error}"));
            self.session.forget();
        }
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

    /// Streams a piece of the answer.
    pub(super) fn text(&mut self, delta: &str) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.written_chars += delta.chars().count() as u64;
            if turn.said.len() < AGENT_OUTPUT_BYTES {
                turn.said.push_str(delta);
            }
        }
        self.tell(&Said::Text(delta))
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

    /// The number of the next request, counted from 1 over the life of the process.
    pub(super) const fn next_request(&mut self) -> u64 {
        self.asks += 1;
        self.asks
    }

    /// Queues a permission request; [`Self::answer`] sends it.
    pub(super) fn queue_ask(&mut self, tool_id: &str, call: &Call) -> Result<(), Halt> {
        let number = self.next_request();
        self.queue(&Said::Ask {
            number,
            tool_id,
            call,
        })?;
        self.open = Some(OpenAsk {
            number,
            tool: call.tool(),
            answer: None,
        });
        match self.settings.dialect {
            // Its hook comes first.
            AgentDialect::Claude => self.ask_claude(number),
            _ if self.scripted.withdraws => self.withdraw(number),
            _ => Ok(()),
        }
    }

    /// Withdraws a request that nobody answered; its tool does not run.
    pub(super) fn withdraw(&mut self, number: u64) -> Result<(), Halt> {
        self.scripted.withdraws = false;
        self.queue(&Said::Withdrawn { number })?;
        let never = Permission::Denied("the request was withdrawn".to_owned());
        self.settle(|open| open == number, never);
        Ok(())
    }

    /// Sends what is queued and waits for the open request's answer.
    pub(super) fn answer(&mut self) -> Result<Permission, Halt> {
        // Where a request is one of the transport, it is answered also after a cancel.
        let withdraws = self.settings.dialect != AgentDialect::Acp;
        self.out.flush()?;
        self.hear_all()?;
        loop {
            let open = self.open.as_mut();
            let number = open.as_ref().map_or(0, |open| open.number);
            let answer = open.and_then(|open| open.answer.take());
            let is_over = self.closing == Closing::Eof;
            if self.cancelled() && (withdraws || is_over || answer.is_some()) {
                if answer.is_none() {
                    self.queue(&Said::Withdrawn { number })?;
                }
                self.open = None;
                return Ok(Permission::Cancelled);
            }
            if let Some(answer) = answer {
                self.open = None;
                return Ok(answer);
            }
            if is_over {
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
