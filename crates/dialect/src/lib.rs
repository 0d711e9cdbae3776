//! Agent protocols, each as a state machine without IO and without a clock of its own.
//!
//! Layer 2. Owns the messages of each protocol and their order. Must not know processes, files,
//! tokio, or the time of day: `now` is a parameter, bytes go in, [`Effect`]s come out.
//!
//! A dialect writes exactly what its protocol defines and reads leniently. An unknown field is
//! ignored, an unknown variant becomes [`Event::Unknown`]; neither is ever a crash.
//!
//! Every line protocol of a child has these rules:
//!
//! - A line over `limits::LINE_BYTES` is a `bad_line` event (`too_long`) and fails the channel. The
//!   reader buffers at most the limit and one chunk.
//! - Bad UTF-8, bad JSON and a line that is not a message are a `bad_line` event with the line's
//!   first bytes. It is counted and skipped. More than `limits::BAD_LINES` of them in one channel
//!   fail it.
//! - A line without a newline at the end of the stream is a line. Blank lines are ignored.
//! - An event outside its turn is a `bad_line` event (`out_of_state`): text is dropped, tool calls
//!   are still reported and evaluated.
//! - A request with a used id is a `bad_line` event (`duplicate_id`) and is denied.
//! - The end of stdout, or a closed stdin, while the process lives starts the stop ladder at
//!   closing stdin. The exit class is then `protocol_fault`.
//!
//! To add a protocol, add a folder here, a name in `DialectName`, an arm in `build` and, where its
//! command needs arguments, one in `extra_arguments`. The journal's words stay the same.
//! `docs/dialects.md` is the guide. A column of the conformance table lists what every dialect must
//! show (`tests/drills/conformance/column.rs`, cells in `agent.rs` and `tool.rs`, rows in
//! `row.rs`). `MARSHAL_CONFORMANCE_TABLE=write tests/run conformance` writes `docs/conformance.md`.
//! The rules that must hold whatever an agent writes are in `tests/quick/fuzz/harness/conversation.rs` and
//! `parties.rs`.

pub mod acp;
pub mod claude;
pub mod codex;
pub mod custom;
mod denials;
mod driver;
mod json_line;
mod jsonrpc;
mod keepalive;
mod lenient;
pub mod lifecycle;
pub mod loaf;
pub mod mcp;
mod mcp_tool_call;
mod mode_guard;
mod named_turn;
mod open_requests;
pub mod scaiflux;
pub mod skillpilot;
mod slash;
mod turn_end;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use denials::PendingDenials;
pub use mcp_tool_call::{McpToolCall, parse_mcp_tool_call};

use serde_json::value::RawValue;

use marshal_config::{self as config, DialectName};
use marshal_model::limits;
use marshal_model::{
    AgentInfo, ClientCall, ClientCapabilities, ClientResult, ErrorOrigin, Event, PermissionRequest,
    PermissionRequestKey, PermissionResponse, Setting, UntrustedText,
};

/// The parameters with which a session begins in a new channel.
#[derive(Debug, Clone, Default)]
pub struct OpenParams {
    /// The workspace as the agent sees it (`/workspace` in a sandbox).
    pub workspace: String,
    /// The agent's own id of an earlier session to resume. The history that the agent replays of it
    /// is not reported again.
    pub resume: Option<UntrustedText>,
    /// The pool's settings for an agent that speaks ACP; for one that speaks loaf, only the model.
    pub acp: Arc<config::AcpSettings>,
    /// The pool's settings for Codex.
    pub codex: config::CodexSettings,
    /// The agent's mode at its start, if it is known. Any other mode may ask for less.
    pub initial_mode: Option<String>,
    /// Whether the agent may enter any mode: its pool does not rely on being asked.
    pub allows_any_mode: bool,
    /// How a command is run, where files drive a Runner.
    pub runner: Arc<config::Runner>,
    /// The base URL of each route of the pool, as the agent reaches it.
    pub routes: BTreeMap<String, String>,
    /// How long the agent may take to answer a request of ours that is not a prompt; `None`: no
    /// limit.
    pub control_timeout: Option<Duration>,
    /// How long the agent may be silent between turns before it gets a ping; `None`: no pings.
    pub keepalive_interval: Option<Duration>,
    /// The definition of a custom dialect.
    pub dialect_definition: Option<Arc<config::DialectDefinition>>,
    /// The client capabilities that we offer the agent, where the protocol has them.
    pub client_capabilities: ClientCapabilities,
    /// Denials that an earlier channel of the session could not report.
    pub denials: PendingDenials,
    /// A unique id. It names the session of an agent that takes the name from us, and is a part of
    /// our ids in its conversation. Empty where the dialect needs none.
    pub fresh_id: String,
}

/// A file of the workspace that is attached to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The file's absolute path, as the agent sees it.
    pub path: String,
    /// The file's text, where the prompt contains it and does not only name the file.
    pub text: Option<UntrustedText>,
}

/// Input from the child.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// One line, without its newline.
    Frame(&'a [u8]),
    /// The first bytes of a line longer than [`limits::LINE_BYTES`]. No input can follow it.
    TooLong(&'a [u8]),
    /// The child closed its stdout.
    Eof,
}

/// A command of the supervisor to the dialect.
#[derive(Debug, Clone)]
pub enum Command {
    /// Start a turn.
    Prompt {
        /// The user's text.
        text: UntrustedText,
        /// The attached files. Only for protocols that have a field for them.
        attachments: Arc<[Attachment]>,
    },
    /// Run a slash command, where the protocol has them. A command that is not rejected ends with
    /// an [`Effect::SlashEnded`], or with the channel.
    Slash {
        /// The name, without its slash.
        command: String,
        /// The rest of the line.
        args: String,
    },
    /// End the running turn. A second one is harmless.
    Cancel,
    /// Answer a permission request.
    AnswerPermission {
        /// The request to answer.
        key: PermissionRequestKey,
        /// The answer.
        answer: PermissionResponse,
    },
    /// Answer a request to the client.
    AnswerClientRequest {
        /// The request to answer.
        key: PermissionRequestKey,
        /// The answer.
        answer: ClientResult,
    },
    /// Apply a setting in the open session, where the protocol supports that.
    /// [`Effect::SettingResult`] reports the outcome.
    Set(Setting),
    /// Begin the shutdown: the first step of the stop ladder. The dialect may also request that its
    /// stdin is closed.
    Goodbye,
}

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialectError {
    /// The handshake is not complete.
    #[error("the agent is not ready")]
    NotReady,
    /// A turn runs already.
    #[error("a turn is running")]
    Busy,
    /// A slash command has no result yet.
    #[error("the agent has not answered the previous command")]
    CommandPending,
    /// No permission request of that key is open.
    #[error("no open permission request has this id")]
    UnknownRequest,
    /// The protocol has no such command.
    #[error("the protocol has no such command")]
    Unsupported,
    /// Another setting has no result yet.
    #[error("another setting is being changed: try again")]
    SettingPending,
    /// The setting cannot be applied; the reason in our words.
    #[error("{0}")]
    NotOffered(String),
    /// The channel has failed or is closing.
    #[error("the channel is closed")]
    Closed,
}

/// The result of [`Command::Slash`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlashOutcome {
    /// The agent answered.
    Answered {
        /// Whether the agent reported neither a failure nor an unknown command.
        ok: bool,
        /// The agent's answer.
        text: UntrustedText,
    },
    /// The agent did not answer in time; a description in our words.
    Unanswered(String),
    /// The command was not sent.
    Rejected(DialectError),
}

/// Why a channel cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The agent speaks another version: a fault of the configuration, never retried.
    #[error("the agent speaks protocol version {theirs}, this supervisor speaks version {ours}")]
    Version {
        /// The version that the agent reported, escaped for display; `none` if it reported none.
        theirs: String,
        /// The version that this supervisor supports.
        ours: &'static str,
    },
    /// The same, where a dialect definition defines the supported version.
    #[error("the agent speaks protocol version {theirs}, this supervisor speaks version {ours}")]
    TableVersion {
        /// The version that the agent reported, escaped for display; `none` if it reported none.
        theirs: String,
        /// The version that the table defines.
        ours: String,
    },
    /// The agent violated its protocol.
    #[error("{0}")]
    Protocol(String),
    /// The agent cannot resume the session.
    #[error("the agent cannot resume its session: {0}")]
    NotResumed(String),
    /// The agent cannot be used as it is configured; a person must act.
    #[error("{0}")]
    NeedsSetup(String),
    /// The agent does not answer.
    #[error("{0}")]
    Unanswered(String),
    /// The agent entered a state in which it must not run. Its child is killed without a stop
    /// ladder.
    #[error("{0}")]
    UnsafeState(String),
}

/// The actions that a dialect requests, in order.
#[derive(Debug)]
pub enum Effect {
    /// Something happened.
    Event(Event),
    /// The handshake is complete: prompts may be sent.
    Ready(AgentInfo),
    /// The agent asks for permission.
    PermissionRequest(PermissionRequest),
    /// The agent requests an action from its client.
    ClientRequest {
        /// The request's key, which its answer must carry.
        key: PermissionRequestKey,
        /// The requested action.
        call: ClientCall,
        /// The permission request that is evaluated and recorded first; `None` if the action
        /// concerns what was evaluated before.
        permission_request: Option<Box<PermissionRequest>>,
    },
    /// The agent withdrew a request: it must not be answered any more.
    RequestWithdrawn(PermissionRequestKey),
    /// The outcome of a setting.
    SettingResult(Result<(), String>),
    /// The result of a slash command, after the event that reports it.
    SlashEnded(SlashOutcome),
    /// The dialect itself ends the running turn, because the protocol has no other way to deny a
    /// request. The time limit of a cancelled turn begins now.
    Cancelling,
    /// Write these bytes, including the newline, to the child's stdin.
    Write(Vec<u8>),
    /// Close the child's stdin after the writes so far. Later writes are dropped.
    CloseInput,
    /// The agent will exit, and that is expected.
    ExitExpected,
    /// The agent began a new session of its own; the old one cannot be resumed by its id.
    SessionCleared,
    /// The channel cannot continue; nothing more may be sent to it.
    ChannelFailed(ChannelError),
}

/// Effects in the order in which they must be carried out.
pub type Effects = Vec<Effect>;

/// One agent protocol. No IO, no clock of its own.
pub trait Dialect: Send {
    /// The channel is open: writes the first message, if the protocol has one.
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects);

    /// Handles input from the child.
    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects);

    /// Handles a command of the supervisor.
    ///
    /// # Errors
    /// [`DialectError`] if the protocol's state does not allow it; then nothing was written.
    fn handle_command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), DialectError>;

    /// When [`Dialect::tick`] must be called next; `None` if it need not be.
    fn deadline(&self) -> Option<Instant>;

    /// Handles a passed deadline.
    fn tick(&mut self, now: Instant, out: &mut Effects);

    /// The channel has ended: returns the denials that no prompt reported, for the session's next
    /// channel.
    fn take_pending_denials(&mut self) -> PendingDenials {
        PendingDenials::default()
    }
}

/// The reason of a line that came in the wrong state.
const OUT_OF_STATE: &str = "out_of_state";

/// Every `reason` of an [`Event::BadLine`], for metrics that start at 0.
pub const BAD_LINE_REASONS: &[&str] = &[
    "too_long",
    "bad_utf8",
    "bad_json",
    "not_object",
    "no_type",
    "bad_shape",
    "unknown_id",
    OUT_OF_STATE,
    "duplicate_id",
    "too_many_asks",
];

/// The dialect of that name, for one channel.
#[must_use]
pub fn create_dialect(name: DialectName) -> Box<dyn Dialect> {
    match name {
        DialectName::Acp => Box::new(acp::Acp::default()),
        DialectName::Loaf => Box::new(loaf::Loaf::default()),
        DialectName::Codex => Box::new(codex::Codex::default()),
        DialectName::Claude => Box::new(claude::Claude::default()),
        DialectName::Custom => Box::new(custom::Custom::default()),
        DialectName::Scaiflux => Box::new(scaiflux::Scaiflux::default()),
        DialectName::Skillpilot => Box::new(skillpilot::Skillpilot::default()),
    }
}

/// The arguments after those of the pool's command, where the dialect begins there.
#[must_use]
pub fn extra_arguments(name: DialectName, opening: &OpenParams) -> Vec<String> {
    match name {
        DialectName::Claude => claude::extra_arguments(opening),
        DialectName::Acp
        | DialectName::Codex
        | DialectName::Custom
        | DialectName::Loaf
        | DialectName::Scaiflux
        | DialectName::Skillpilot => Vec::new(),
    }
}

/// Reports a line that is not a message, or not an expected one, with its first bytes.
fn report_bad_line(reason: &'static str, line: &[u8], out: &mut Effects) {
    let head = line.get(..limits::BAD_LINE_HEAD_BYTES).unwrap_or(line);
    out.push(Effect::Event(Event::BadLine {
        reason: reason.into(),
        head: String::from_utf8_lossy(head).into_owned().into(),
    }));
}

/// Passes on a message that is not typed. It was read once, so reading it again cannot fail.
fn report_unknown(tag: &str, object: &str, out: &mut Effects) {
    if let Ok(raw) = serde_json::from_str::<&RawValue>(object) {
        out.push(Effect::Event(Event::Unknown {
            tag: tag.into(),
            raw: raw.to_owned(),
        }));
    }
}

/// An error of the agent as an event, and as a sentence of ours.
fn describe_agent_error(
    code: UntrustedText,
    message: UntrustedText,
    origin: ErrorOrigin,
) -> (Event, String) {
    let text = format!(
        "the agent reported error {}: {}",
        code.escape_for_display(80),
        message.escape_for_display(300)
    );
    let event = Event::AgentError {
        code,
        message,
        origin,
    };
    (event, text)
}

/// The model or the mode of the session changed.
const fn state_changed(model: Option<UntrustedText>, mode: Option<UntrustedText>) -> Event {
    Event::StateChanged {
        model,
        mode,
        context_pct: None,
        context_window: None,
    }
}

/// Merges adjacent pieces of text, and of thought, up to [`limits::MERGED_TEXT_BYTES`] each, so
/// that a streamed answer does not cost one row per word. The order of all other effects stays.
pub fn merge_text(effects: &mut Effects) {
    effects.dedup_by(|next, last| try_merge(last, next));
}

/// Appends the effects of one frame to the earlier ones, merged like [`merge_text`]. A piece of
/// text is dropped while it is still in the cache, and a batch of a thousand pieces needs no room
/// for a thousand effects.
pub fn append_merged(effects: &mut Effects, fresh: &mut Effects) {
    for next in fresh.drain(..) {
        let merged = effects
            .last_mut()
            .is_some_and(|last| try_merge(last, &next));
        if !merged {
            effects.push(next);
        }
    }
}

/// Merges the next effect into the previous one, if both are pieces of the same text; returns
/// whether it did.
fn try_merge(last: &mut Effect, next: &Effect) -> bool {
    match (next, last) {
        (
            Effect::Event(Event::Text { delta: next }),
            Effect::Event(Event::Text { delta: last }),
        )
        | (
            Effect::Event(Event::Thought { delta: next }),
            Effect::Event(Event::Thought { delta: last }),
        ) => append(last, next),
        _ => false,
    }
}

/// Appends a piece if there is room; returns whether it did.
fn append(last: &mut UntrustedText, next: &UntrustedText) -> bool {
    let fits = last.len() + next.len() <= limits::MERGED_TEXT_BYTES;
    if fits {
        let mut text = std::mem::take(last).into_raw();
        text.push_str(next.raw());
        *last = UntrustedText::new(text);
    }
    fits
}

/// Whether a permission request's input is a placeholder for one that was too large to store.
#[must_use]
pub fn is_input_omitted(input: &RawValue) -> bool {
    acp::is_input_omitted(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(delta: &str) -> Effect {
        Effect::Event(Event::Text {
            delta: delta.into(),
        })
    }

    fn thought(delta: &str) -> Effect {
        Effect::Event(Event::Thought {
            delta: delta.into(),
        })
    }

    fn texts(mut effects: Effects) -> Vec<String> {
        merge_text(&mut effects);
        let shown = |effect: &Effect| match effect {
            Effect::Event(Event::Text { delta }) => delta.raw().to_owned(),
            Effect::Event(Event::Thought { delta }) => format!("({})", delta.raw()),
            other => format!("{other:?}"),
        };
        effects.iter().map(shown).collect()
    }

    #[test]
    fn adjacent_text_is_merged_and_nothing_else_moves() {
        let effects = vec![text("a"), text("b"), Effect::CloseInput, text("c")];
        assert_eq!(texts(effects), ["ab", "CloseInput", "c"]);
        let effects = vec![text("a"), thought("b"), thought("c"), text("d")];
        assert_eq!(texts(effects), ["a", "(bc)", "d"]);
    }

    #[test]
    fn what_is_taken_frame_by_frame_merges_like_the_whole() {
        let frames = || {
            [
                vec![text("a")],
                vec![text("b"), Effect::CloseInput],
                vec![],
                vec![thought("c")],
                vec![thought("d"), text("e")],
                vec![text("f")],
            ]
        };
        let mut taken = Effects::new();
        for mut frame in frames() {
            append_merged(&mut taken, &mut frame);
        }
        let whole = texts(frames().into_iter().flatten().collect());
        assert_eq!(whole, ["ab", "CloseInput", "(cd)", "ef"]);
        assert_eq!(texts(taken), whole);
    }

    #[test]
    fn merged_text_has_a_bound() {
        let piece = "x".repeat(limits::MERGED_TEXT_BYTES / 2);
        let effects = vec![text(&piece), text(&piece), text("y"), text("z")];
        let lengths: Vec<_> = texts(effects).iter().map(String::len).collect();
        assert_eq!(lengths, [limits::MERGED_TEXT_BYTES, 2]);
    }
}
