//! Agent protocols, each as a state machine without IO and without a clock of its own.
//!
//! Floor 2. Owns what each protocol says on the wire and in which order. Must not know processes,
//! files, tokio, or the time of day: `now` is a parameter, bytes go in, [`Effect`]s come out.
//!
//! A dialect writes strictly what its protocol lists and reads leniently: an unknown field is
//! ignored, an unknown variant becomes [`Event::Unknown`], never a crash.
//!
//! What every line protocol of a child has in common:
//!
//! - A line over `limits::LINE_BYTES_BUCKETS` is a `report_bad_line` (`reject_long_line`) and fails the channel. The reader holds
//!   at most the cap and one chunk.
//! - Bad UTF-8, bad JSON and a line that is no message are a `report_bad_line` event with its first bytes. It is
//!   counted and skipped. More than `limits::BAD_LINES` of them in one channel fail it.
//! - A line without a newline at the end of the stream is a line. Blank lines are ignored.
//! - An event outside its turn is a `report_bad_line` (`report_out_of_state`): text is dropped, tool calls are reported
//!   and judged all the same.
//! - A request with a used id is a `report_bad_line` (`duplicate_id`) and is denied.
//! - The end of stdout, or a closed stdin, while the process lives starts the stop ladder at closing
//!   stdin. The class is then `protocol_fault`.
//!
//! A new protocol is a folder here, a name in `DialectName`, an arm in `build` and, where its command
//! needs words, in `arguments`. The journal's words stay. `docs/dialects.md` is the guide. What every
//! dialect must show is a column of the conformance table (`tests/drills/conformance/column.rs`, cells in
//! `agent.rs` and `tool.rs`, rows in `row.rs`); `MARSHAL_CONFORMANCE_TABLE=write tests/run conformance`
//! writes `docs/conformance.md`. What must hold whatever an agent says is in
//! `tests/quick/fuzz/harness/talk.rs` and `parties.rs`.

pub mod acp;
pub mod claude;
pub mod codex;
pub mod custom;
mod denials;
mod envelope;
mod lenient;
pub mod lifecycle;
pub mod loaf;
pub mod mcp;
mod mcp_tool_call;
mod mode_guard;
mod open_requests;
pub mod scaiflux;
pub mod skillpilot;
mod slash;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use denials::PendingDenials;
pub use mcp_tool_call::{McpToolCall, parse_mcp_tool_call};

use serde_json::value::RawValue;

use marshal_config::{self as config, DialectName};
use marshal_model::limits;
use marshal_model::{
    AgentInfo, ClientCall, ClientCapabilities, ClientResult, Event, PermissionRequest,
    PermissionRequestKey, PermissionResponse, Setting, UntrustedText,
};

/// How a session begins in a new channel.
#[derive(Debug, Clone, Default)]
pub struct OpenParams {
    /// The workspace as the agent sees it (`/workspace` in a sandbox).
    pub workspace: String,
    /// The agent's own id of an earlier session, which this channel goes on with. What the agent
    /// replays of it is not reported again.
    pub resume: Option<UntrustedText>,
    /// What the pool wants of an agent that speaks ACP; of one that speaks loaf only the model.
    pub acp: Arc<config::AcpSettings>,
    /// What it wants of Codex.
    pub codex: config::CodexSettings,
    /// The mode that the agent is begun in, as far as it is known; any other may ask for less.
    pub initial_mode: Option<String>,
    /// The agent may go into any mode: its pool does not count on being asked.
    pub allows_any_mode: bool,
    /// How a command is to be run, where a Runner is driven by files.
    pub runner: Arc<config::Runner>,
    /// The base URL of each route of the pool, as the agent reaches it.
    pub routes: BTreeMap<String, String>,
    /// How long the agent may take for a request of ours that is no prompt.
    pub control_timeout: Option<Duration>,
    /// How long it may say nothing between turns before it is asked whether it is there.
    pub keepalive_interval: Option<Duration>,
    /// The table of a custom dialect.
    pub dialect_table: Option<Arc<config::DialectTable>>,
    /// What we do for the agent, where the protocol has words for it.
    pub client_capabilities: ClientCapabilities,
    /// What an earlier channel of the session did not come to tell.
    pub denials: PendingDenials,
    /// An id that nothing else has: what a session is called whose agent is told that, and what ids of
    /// ours in its conversation are made of. Empty where the dialect needs none.
    pub fresh_id: String,
}

/// A file of the workspace that belongs to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Where the agent finds it: an absolute path.
    pub path: String,
    /// Its text, where the prompt is to hold it and not only to name it.
    pub text: Option<UntrustedText>,
}

/// What comes from the child.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// One line, without its newline.
    Frame(&'a [u8]),
    /// A line was longer than [`limits::LINE_BYTES_BUCKETS`]; these are its first bytes. Nothing can come
    /// after it.
    TooLong(&'a [u8]),
    /// The child closed its stdout.
    Eof,
}

/// What the supervisor wants.
#[derive(Debug, Clone)]
pub enum Command {
    /// Start a turn.
    Prompt {
        /// The user's text.
        text: UntrustedText,
        /// Files that belong to it. Only for protocols that have a place for them.
        attachments: Arc<[Attachment]>,
    },
    /// Run a slash command, where the protocol has them. One that is not refused ends with an
    /// [`Effect::Commanded`], or with the channel.
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
        /// Which one.
        key: PermissionRequestKey,
        /// What to say.
        answer: PermissionResponse,
    },
    /// Answer a request to the client.
    AnswerClientRequest {
        /// Which one.
        key: PermissionRequestKey,
        /// What to say.
        answer: ClientResult,
    },
    /// Set something in the open session, where the protocol has that. [`Effect::SettingResult`] says what
    /// came of it.
    Set(Setting),
    /// Say goodbye: the first step of the stop ladder. The dialect may also ask for its stdin to
    /// be closed.
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
    #[error("the agent has not answered the command before")]
    CommandPending,
    /// No ask of that key is open.
    #[error("no open permission request has this id")]
    UnknownRequest,
    /// The protocol has no such command.
    #[error("the protocol has no such command")]
    Unsupported,
    /// Something else is being set, or is not answered yet.
    #[error("something else is being set: try again")]
    SettingPending,
    /// What is to be set cannot be, in our words.
    #[error("{0}")]
    NotOffered(String),
    /// The channel has failed or is closing.
    #[error("the channel is closed")]
    Closed,
}

/// What came of [`Command::Slash`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlashOutcome {
    /// The agent answered.
    Answered {
        /// It did not say that it failed, or that it does not know it.
        ok: bool,
        /// Its words.
        text: UntrustedText,
    },
    /// It did not in its time: in our words.
    Unanswered(String),
    /// It was not sent.
    Rejected(DialectError),
}

/// Why a channel cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The agent speaks another version: a fault of the configuration, never retried.
    #[error("the agent speaks protocol version {theirs}, this supervisor speaks version {ours}")]
    Version {
        /// What the agent said, shown safely; `none` if it said nothing.
        theirs: String,
        /// What we speak.
        ours: &'static str,
    },
    /// The same, where a table says what we speak.
    #[error("the agent speaks protocol version {theirs}, this supervisor speaks version {ours}")]
    TableVersion {
        /// What the agent said, shown safely; `none` if it said nothing.
        theirs: String,
        /// What we speak.
        ours: String,
    },
    /// The agent broke its protocol.
    #[error("{0}")]
    Protocol(String),
    /// The agent cannot load the session that it was to go on with.
    #[error("the agent cannot load its session again: {0}")]
    NotResumed(String),
    /// The agent cannot be used as it is configured: a person must look.
    #[error("{0}")]
    NeedsSetup(String),
    /// The agent does not answer.
    #[error("{0}")]
    Unanswered(String),
    /// The agent went into a state in which it is not to run: its child ends without a ladder.
    #[error("{0}")]
    UnsafeState(String),
}

/// What a dialect wants done, in order.
#[derive(Debug)]
pub enum Effect {
    /// Something happened.
    Event(Event),
    /// The handshake is complete: prompts may be sent.
    Ready(AgentInfo),
    /// The agent asks for permission.
    PermissionRequest(PermissionRequest),
    /// The agent wants us to do something for it.
    ClientRequest {
        /// The request: what its answer must carry.
        key: PermissionRequestKey,
        /// What it wants.
        call: ClientCall,
        /// What is judged and put on record first; `Idle`: it is about what was judged before.
        permission_request: Option<Box<PermissionRequest>>,
    },
    /// The agent withdrew a request: it must not be answered any more.
    RequestWithdrawn(PermissionRequestKey),
    /// What was to be set is set, or why it is not.
    SettingResult(Result<(), String>),
    /// What came of a slash command, behind the event that tells it.
    SlashEnded(SlashOutcome),
    /// The dialect itself ends the running turn: the agent could not be told otherwise that
    /// something is denied. The time that a cancelled turn has begins now.
    Cancelling,
    /// Write these bytes, newline included, to the child's stdin.
    Write(Vec<u8>),
    /// Close the child's stdin after what was written. What is written later is dropped.
    CloseInput,
    /// The agent will exit, and that is wanted.
    ExitExpected,
    /// The agent began a new session of its own; the old one cannot be resumed by its id.
    SessionCleared,
    /// The channel cannot go on; nothing more may be sent to it.
    ChannelFailed(ChannelError),
}

/// Effects in the order in which they must be carried out.
pub type Effects = Vec<Effect>;

/// One agent protocol. No IO, no clock of its own.
pub trait Dialect: Send {
    /// The channel is open: says what must be said first, if anything.
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects);

    /// Something came from the child.
    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects);

    /// The supervisor wants something.
    ///
    /// # Errors
    /// [`Refused`] if the protocol's state does not allow it; nothing was written then.
    fn handle_command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), DialectError>;

    /// When [`Dialect::tick`] must be called next, if at all.
    fn deadline(&self) -> Option<Instant>;

    /// A deadline passed.
    fn tick(&mut self, now: Instant, out: &mut Effects);

    /// The channel is over: denials that no prompt told, for the session's next channel.
    fn take_pending_denials(&mut self) -> PendingDenials {
        PendingDenials::default()
    }
}

/// Every `reason` of an [`Event::BadLine`], for metrics that start at 0.
pub const BAD_LINE_REASONS: &[&str] = &[
    "too_long",
    "bad_utf8",
    "bad_json",
    "not_object",
    "no_type",
    "bad_shape",
    "unknown_id",
    "out_of_state",
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

/// What the command of a child gets behind the pool's own words, where its dialect begins there.
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

/// Reports a line that is no message, or none that is expected, by its first bytes.
fn report_bad_line(reason: &'static str, line: &[u8], out: &mut Effects) {
    let head = line.get(..limits::BAD_LINE_HEAD_BYTES).unwrap_or(line);
    out.push(Effect::Event(Event::BadLine {
        reason,
        head: String::from_utf8_lossy(head).into_owned().into(),
    }));
}

/// Merges adjacent pieces of text, and of thought, up to [`limits::MERGED_TEXT_BYTES`] each, so
/// that a streamed answer does not cost one row a word. The order of everything else stays.
pub fn merge_text(effects: &mut Effects) {
    effects.dedup_by(|next, kept| try_merge(kept, next));
}

/// Puts what one frame brought behind what came before it, merged like [`merge_text`]. A piece of
/// text is dropped while it is still in the cache, and a batch of a thousand pieces needs no room
/// for a thousand effects.
pub fn append_merged(effects: &mut Effects, fresh: &mut Effects) {
    for next in fresh.drain(..) {
        let merged = effects
            .last_mut()
            .is_some_and(|kept| try_merge(kept, &next));
        if !merged {
            effects.push(next);
        }
    }
}

/// Merges the next effect into the one before it, if both are pieces of the same; says whether it
/// did.
fn try_merge(kept: &mut Effect, next: &Effect) -> bool {
    match (next, kept) {
        (
            Effect::Event(Event::Text { delta: next }),
            Effect::Event(Event::Text { delta: kept }),
        )
        | (
            Effect::Event(Event::Thought { delta: next }),
            Effect::Event(Event::Thought { delta: kept }),
        ) => append(kept, next),
        _ => false,
    }
}

/// Appends a piece where there is room; says whether it did.
fn append(kept: &mut UntrustedText, next: &UntrustedText) -> bool {
    let fits = kept.len() + next.len() <= limits::MERGED_TEXT_BYTES;
    if fits {
        let mut text = std::mem::take(kept).into_raw();
        text.push_str(next.raw());
        *kept = UntrustedText::new(text);
    }
    fits
}

/// Whether what a permission request has as its input stands for one that was too large to be kept.
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
