//! The agent itself: its session, its turn, and its waiting.
//!
//! One state machine for every protocol. Its output goes through [`AgentEvent`]; its input comes
//! from the protocol's folder. Must not know verbs, tools or messages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::agent_event::{AgentEvent, CallRequest, Output, TextFrame};
use super::claim::VersionClaim;
use super::ledger::Ledger;
use super::memory::{Memory, Record, Session};
use super::pipes::{Inbox, Outbox};
use super::quirk::Quirk;
use super::step::ToolCall;
use super::template::Fields;
use super::{AgentDialect, acp, claude, codex, loaf, scaiflux};
use marshal_model::UntrustedText;
use marshal_model::limits::{AGENT_OUTPUT_BYTES, AGENT_SESSIONS};

/// The context window that the agent claims, in tokens.
pub(super) const CONTEXT_WINDOW: u64 = 200_000;

/// The text for the model when the controller has disconnected.
const DISCONNECTED: &str = "controller disconnected before responding";

/// Why the agent ends before its stdin ends.
#[derive(Debug)]
pub(super) enum Halt {
    /// The controller has closed stdout's pipe, or the ledger cannot be written.
    Io(io::Error),
    /// The script contains `exit`.
    Exit(u8),
    /// The controller broke the protocol, in a protocol where that ends the agent.
    ProtocolError(String),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The outcome of a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Permission {
    Allowed,
    /// Denied; the text is the reason for the model.
    Denied(String),
    /// The turn was cancelled while the request was open.
    Cancelled,
}

/// The state of the session's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// The session is open.
    KeptOpen,
    /// Stdin ended: the turn is finished first.
    Eof,
    /// The controller or a slash command ended the session: the turn is cancelled.
    Requested,
}

/// The running turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) id: String,
    /// The digest of the prompt.
    pub(super) digest: String,
    /// The request that the turn answers, in a protocol where a prompt is a request.
    pub(super) reply_to: Option<Value>,
    /// The turn's text, limited to the maximum size of a tool's output.
    pub(super) answer_text: String,
    /// The number of characters that the model read.
    pub(super) read_chars: u64,
    pub(super) written_chars: u64,
    /// The number of tool calls so far.
    pub(super) calls: u64,
    pub(super) mutations: Vec<(&'static str, String)>,
    /// A description of each failed step.
    pub(super) failures: Vec<String>,
    pub(super) cancelled: bool,
}

/// An accepted prompt that has not begun.
#[derive(Debug)]
pub(super) struct AcceptedPrompt {
    pub(super) text: String,
    pub(super) digest: String,
    pub(super) reply_to: Option<Value>,
}

/// The open permission request, and its answer.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) number: u64,
    pub(super) tool: &'static str,
    pub(super) answer: Option<Permission>,
}

/// The settings, constant while the agent runs.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) dialect: AgentDialect,
    pub(super) claim: VersionClaim,
    /// The pause before each step and each request of a load step.
    pub(super) think: Duration,
    /// Generates load: no narration, no log, no memory, large writes.
    pub(super) loader: bool,
    /// Permission requests contain only the id of their tool call.
    pub(super) bare_requests: bool,
    /// The quirks, which imitate other agents.
    pub(super) quirks: Vec<Quirk>,
}

impl Settings {
    pub(super) fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

/// The settings of a session, in a protocol that has them.
#[derive(Debug)]
pub(super) struct Choices {
    pub(super) mode: String,
    pub(super) model: String,
    pub(super) fast: bool,
}

/// The state of the agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) settings: Settings,
    pub(super) inbox: Inbox,
    pub(super) out: Outbox,
    pub(super) ledger: Ledger,
    pub(super) memory: Memory,
    /// The session whose turn runs or ran last.
    pub(super) session: Session,
    /// The other open sessions, in a protocol that can have several.
    pub(super) others: BTreeMap<String, Session>,
    pub(super) model: String,
    pub(super) mode: String,
    pub(super) turn: Option<Turn>,
    pub(super) accepted_prompt: Option<AcceptedPrompt>,
    pub(super) closing: Closing,
    /// Whether the controller has sent its first message, in a protocol where it begins.
    pub(super) is_initialized: bool,
    /// Whether the client has made the required login.
    pub(super) logged_in: bool,
    pub(super) choices: Choices,
    pub(super) ignores_cancel: bool,
    /// Tools that were allowed permanently.
    pub(super) trusted_tools: BTreeSet<&'static str>,
    pub(super) open_request: Option<OpenRequest>,
    /// The open request to the client, in a protocol where agents send requests.
    pub(super) client_request: Option<acp::ClientRequest>,
    /// The id of the terminal that was created last.
    pub(super) terminal: String,
    /// The client's tool servers.
    pub(super) tool_servers: acp::ToolServers,
    /// The waiting prompts, in a protocol that queues them.
    pub(super) prompt_queue: loaf::PromptQueue,
    /// The state of the conversations of Claude Code and Codex.
    pub(super) claude: claude::Conversation,
    pub(super) codex: codex::Conversation,
    pub(super) script_state: ScriptState,
    turns: u64,
    calls: u64,
    request_count: u64,
}

/// How the script changed the conversation.
#[derive(Debug, Default)]
pub(super) struct ScriptState {
    /// The script wrote raw lines, so the controller's answers may be unexpected.
    pub(super) wrote_raw_lines: bool,
    /// The next request is withdrawn at once.
    pub(super) withdraws_next: bool,
}

impl Agent {
    /// An agent that speaks through `pipes`, with a model and a permission mode to claim.
    pub(super) fn new(
        settings: Settings,
        pipes: (Inbox, Outbox),
        ledger: Ledger,
        (memory, session): (Memory, Session),
        (model, mode): (String, String),
        claude: claude::Conversation,
    ) -> Self {
        Self {
            turns: session.prompts,
            calls: session.calls,
            settings,
            inbox: pipes.0,
            out: pipes.1,
            ledger,
            memory,
            session,
            others: BTreeMap::new(),
            model,
            mode,
            turn: None,
            accepted_prompt: None,
            closing: Closing::KeptOpen,
            is_initialized: false,
            logged_in: super::login::is_stored(),
            choices: Choices {
                mode: "ask".to_owned(),
                model: "a".to_owned(),
                fast: false,
            },
            ignores_cancel: false,
            trusted_tools: BTreeSet::new(),
            open_request: None,
            client_request: None,
            terminal: String::new(),
            tool_servers: acp::ToolServers::default(),
            prompt_queue: loaf::PromptQueue::default(),
            claude,
            codex: codex::Conversation::default(),
            script_state: ScriptState::default(),
            request_count: 0,
        }
    }

    /// Sends the ready message, if the protocol begins with it, then works on prompts until the
    /// controller disconnects.
    pub(super) fn serve(&mut self) -> Result<(), Halt> {
        self.log_to_ledger("start", || json!({}))?;
        if self.settings.dialect == AgentDialect::Scaiflux {
            self.send_ready()?;
        }
        while self.closing == Closing::KeptOpen {
            self.accept_next_prompt()?;
            if let Some(prompt) = self.accepted_prompt.take() {
                self.run_turn(prompt)?;
                if self.settings.has(Quirk::Restless) {
                    // A longer delay after every turn, so that the end meets every point of what
                    // follows a turn.
                    std::thread::sleep(Duration::from_millis(self.turns % 40));
                    break;
                }
            } else if let Some(line) = self.inbox.next() {
                // One line at a time: the lines after a prompt are handled inside its turn.
                self.handle_line(line)?;
            } else if self.inbox.is_at_end() {
                self.handle_eof()?;
            } else {
                self.inbox.fill()?;
            }
        }
        self.log(format_args!("goodbye"));
        Ok(())
    }

    /// The output, with the current state of the agent.
    pub(super) fn output(&mut self) -> Output<'_> {
        let turn = self.turn.as_ref();
        Output {
            out: &mut self.out,
            dialect: self.settings.dialect,
            claude: &mut self.claude,
            codex: &mut self.codex,
            session: &self.session.id,
            turn: turn.map_or("", |turn| turn.id.as_str()),
            reply_to: turn.and_then(|turn| turn.reply_to.as_ref()),
            mode: &self.mode,
            model: &self.model,
            context: self.session.context,
            bare_requests: self.settings.bare_requests,
        }
    }

    /// Sends a message of the protocol at once.
    pub(super) fn send(&mut self, name: &str, fields: Fields<'_>) -> Result<(), Halt> {
        self.output().queue(name, fields)?;
        Ok(self.out.flush()?)
    }

    /// Queues an event behind what is queued.
    pub(super) fn queue_event(&mut self, event: &AgentEvent<'_>) -> Result<(), Halt> {
        Ok(self.output().queue_event(event)?)
    }

    /// Sends an event at once.
    pub(super) fn send_event(&mut self, event: &AgentEvent<'_>) -> Result<(), Halt> {
        self.queue_event(event)?;
        Ok(self.out.flush()?)
    }

    /// The frame of a line with one piece of text, and the number of text bytes for a line of
    /// `line_bytes`. The number is the same in every protocol, so that their loads compare.
    pub(super) fn text_frame(&mut self, line_bytes: usize) -> Result<(TextFrame, usize), Halt> {
        let mut output = self.output();
        let yardstick = scaiflux::text_frame(output.turn)?;
        let text_bytes = line_bytes.saturating_sub(yardstick.len()).max(1);
        let frame = output.text_frame()?;
        // A protocol may mark the begin of a text; that line was queued.
        self.out.flush()?;
        Ok((frame, text_bytes))
    }

    /// Appends an entry to the ledger; it is on the disk when this returns.
    pub(super) fn log_to_ledger(
        &mut self,
        kind: &str,
        fields: impl FnOnce() -> Value,
    ) -> Result<(), Halt> {
        self.ledger.append(kind, &self.session.id, fields)?;
        Ok(())
    }

    /// Begins a session in `cwd`, and stores it if possible.
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

    /// Adds a session to the open ones, and to the ledger. It becomes the current one unless a
    /// prompt is in progress.
    pub(super) fn open_session(&mut self, session: Session, how: &str) -> Result<(), Halt> {
        let id = session.id.clone();
        if self.session.id == id {
            self.session = session;
        } else if self.is_busy() {
            self.others.insert(id.clone(), session);
        } else {
            self.others.remove(&id);
            self.enter_session(session);
        }
        self.ledger.append("session", &id, || json!({"how": how}))?;
        Ok(())
    }

    /// Whether a session is open.
    pub(super) fn is_open(&self, id: &str) -> bool {
        !id.is_empty() && (self.session.id == id || self.others.contains_key(id))
    }

    /// Whether no further session can be opened.
    pub(super) fn is_full(&self) -> bool {
        self.others.len() >= AGENT_SESSIONS
    }

    /// Makes an open session the current one; `false`: it is not open.
    pub(super) fn select_open_session(&mut self, id: &str) -> Result<bool, Halt> {
        if self.session.id != id {
            let Some(session) = self.others.remove(id) else {
                return Ok(false);
            };
            self.enter_session(session);
        }
        // Tools resolve their paths from here.
        std::env::set_current_dir(&self.session.cwd)?;
        Ok(true)
    }

    /// Stores a record in the session's file. A tool call may reach the disk later, other records
    /// are durable at once.
    pub(super) fn save_record(&mut self, record: &Record) {
        let stored = match record {
            Record::Tool { .. } => self.session.append(record),
            _ => self.session.append_durable(record),
        };
        if let Err(error) = stored {
            self.log(format_args!("the session is not kept any more: {error}"));
            self.session.stop_saving();
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
    pub(super) fn is_cancelled(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.cancelled)
    }

    /// Sends a piece of the answer.
    pub(super) fn send_text(&mut self, delta: &str) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.written_chars += delta.chars().count() as u64;
            if turn.answer_text.len() < AGENT_OUTPUT_BYTES {
                turn.answer_text.push_str(delta);
            }
        }
        self.send_event(&AgentEvent::Text(delta))
    }

    /// Handles the controller's pending messages, without waiting.
    pub(super) fn poll_input(&mut self) -> Result<(), Halt> {
        self.handle_pending_lines()?;
        if self.closing != Closing::Eof && self.inbox.wait([], Some(Instant::now()))?.input {
            self.inbox.fill()?;
            self.handle_pending_lines()?;
        }
        Ok(())
    }

    /// Handles every line that was read.
    pub(super) fn handle_pending_lines(&mut self) -> Result<(), Halt> {
        while let Some(line) = self.inbox.next() {
            self.handle_line(line)?;
        }
        if self.inbox.is_at_end() {
            self.handle_eof()?;
        }
        Ok(())
    }

    /// Pauses and handles messages meanwhile; ends early when the turn is cancelled.
    pub(super) fn pause(&mut self, pause: Duration) -> Result<(), Halt> {
        let deadline = Instant::now() + pause;
        self.handle_pending_lines()?;
        while !self.is_cancelled() && Instant::now() < deadline {
            if self.inbox.wait([], Some(deadline))?.input {
                self.inbox.fill()?;
                self.handle_pending_lines()?;
            }
        }
        Ok(())
    }

    /// The number of the next request, counted from 1 over the life of the process.
    pub(super) const fn next_request(&mut self) -> u64 {
        self.request_count += 1;
        self.request_count
    }

    /// Queues a permission request; [`Self::await_permission`] sends it.
    pub(super) fn queue_permission_request(
        &mut self,
        tool_id: &str,
        call: &ToolCall,
    ) -> Result<(), Halt> {
        let number = self.next_request();
        let request = CallRequest {
            number,
            tool_id,
            call,
        };
        self.queue_event(&AgentEvent::PermissionRequest(request))?;
        self.open_request = Some(OpenRequest {
            number,
            tool: call.tool(),
            answer: None,
        });
        match self.settings.dialect {
            // Claude Code calls the hook before it asks the host.
            AgentDialect::Claude => self.request_claude_permission(number),
            _ if self.script_state.withdraws_next => self.withdraw_request(number),
            _ => Ok(()),
        }
    }

    /// Withdraws a request that has no answer; its tool does not run.
    pub(super) fn withdraw_request(&mut self, number: u64) -> Result<(), Halt> {
        self.script_state.withdraws_next = false;
        self.queue_event(&AgentEvent::RequestWithdrawn { number })?;
        let never = Permission::Denied("the request was withdrawn".to_owned());
        self.settle_request(|open| open == number, never);
        Ok(())
    }

    /// Sends what is queued and waits for the answer to the open request.
    pub(super) fn await_permission(&mut self) -> Result<Permission, Halt> {
        // In ACP a request is a JSON-RPC request, which the client must answer even after a cancel.
        let withdraws = self.settings.dialect != AgentDialect::Acp;
        self.out.flush()?;
        self.handle_pending_lines()?;
        loop {
            let open = self.open_request.as_mut();
            let number = open.as_ref().map_or(0, |open| open.number);
            let answer = open.and_then(|open| open.answer.take());
            let is_over = self.closing == Closing::Eof;
            if self.is_cancelled() && (withdraws || is_over || answer.is_some()) {
                if answer.is_none() {
                    self.queue_event(&AgentEvent::RequestWithdrawn { number })?;
                }
                self.open_request = None;
                return Ok(Permission::Cancelled);
            }
            if let Some(answer) = answer {
                self.open_request = None;
                return Ok(answer);
            }
            if is_over {
                self.open_request = None;
                return Ok(Permission::Denied(DISCONNECTED.to_owned()));
            }
            self.inbox.fill()?;
            self.handle_pending_lines()?;
        }
    }

    /// Writes a line to the log. It may contain foreign text.
    pub(super) fn log(&self, what: std::fmt::Arguments<'_>) {
        if self.settings.loader {
            return;
        }
        let line = format!(
            "script-agent: {}\n",
            UntrustedText::new(what.to_string()).escape_for_display(300)
        );
        // A closed stderr must not end the agent.
        drop(io::stderr().write_all(line.as_bytes()));
    }
}
