//! The events of a session, for all code from the dialect to the journal.
//!
//! A new kind of event also touches `fleet/session/permissions/masking.rs` and `cli/event_text.rs`.

use std::borrow::Cow;
use std::ops::Not;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use strum::{Display, EnumDiscriminants, EnumString, IntoStaticStr, VariantArray};

use super::persist;
use super::tool::FileVersion;
use super::{
    ChoiceInfo, EgressResult, ExitClass, ExitStatus, PermissionRequest, PermissionRequestId,
    StepStatus, TaskId, TurnId, TurnOutcome, UntrustedText, Verdict, string_enum,
};
use super::{
    CommandInfo, Cost, Decision, EventId, OptionState, PlanEntry, SandboxGap, SessionId, Usage,
    WorkEvent,
};

impl EventKind {
    /// Every kind, in the order of declaration.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The journal's `kind` column; [`EventKind::metric_label`] is the coarser label of
    /// `marshal_events_total`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The kind that `word` names, if any does.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        word.parse().ok()
    }

    /// The label value of `marshal_events_total{kind}`.
    #[must_use]
    pub const fn metric_label(self) -> &'static str {
        match self {
            Self::Text | Self::Thought => "text_delta",
            Self::ToolStart => "tool_start",
            Self::ToolResult => "tool_result",
            Self::PermissionRequested => "permission_request",
            Self::Usage | Self::ContextUsed => "usage",
            Self::TurnEnded => "turn_end",
            _ => "other",
        }
    }

    /// Every value that [`Self::metric_label`] can give.
    pub const METRIC_LABELS: &'static [&'static str] = &[
        "text_delta",
        "tool_start",
        "tool_result",
        "permission_request",
        "usage",
        "turn_end",
        "other",
    ];
}

string_enum!(
    /// Where an agent says an error came from.
    ErrorOrigin {
        /// The agent itself.
        Local = "local",
        /// Its model.
        Remote = "remote",
        /// It does not say, or says a word that we do not know.
        Unknown = "unknown",
    }
);

/// What an agent says of itself when it is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The protocol's version, as a text (`1`).
    pub protocol: String,
    /// The agent's own version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<UntrustedText>,
    /// The agent's own session id, to resume it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<UntrustedText>,
    /// Its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<UntrustedText>,
    /// Its permission mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<UntrustedText>,
    /// The modes that may be chosen, at most `limits::ADVERTISED_ITEMS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<ChoiceInfo>,
    /// The names of its tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<UntrustedText>,
    /// The size of its context window, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// Whether it says that it cannot resume its session. Not journalled.
    #[serde(skip)]
    pub cannot_resume: bool,
}

/// One thing that happened in a session.
///
/// Its serialization is the persisted form, version 1: a kind with its body. A field may be added
/// if it is optional (not written when it is empty). A field that changes its meaning or is removed
/// needs a new version; the journal's golden files hold every form that was ever written.
#[derive(Debug, Clone, Serialize, Deserialize, EnumDiscriminants)]
#[serde(rename_all = "snake_case")]
#[strum_discriminants(
    name(EventKind),
    doc = "The kinds of events.",
    derive(Hash, Display, EnumString, IntoStaticStr, VariantArray),
    strum(serialize_all = "snake_case")
)]
pub enum Event {
    /// A prompt was taken in; it is durable before it is sent.
    PromptAccepted {
        /// The task that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
        /// Which sending of the task's prompt, from 1.
        attempt: u32,
        /// The prompt.
        text: UntrustedText,
    },
    /// A process was started for the session.
    ChildStarted {
        /// The host's process id of the child, or of its sandbox's outer process.
        pid: u32,
        /// `none`, `unshare`.
        launcher: Cow<'static, str>,
        /// The layers that its sandbox lacks; empty without a sandbox.
        #[serde(
            rename = "lacks",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "persist::known_words"
        )]
        sandbox_gaps: Vec<SandboxGap>,
        /// What enforces its limits, in one line, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        limits: Option<String>,
        /// The layers of its sandbox, a few words each, in marshal's words: `uid slot`,
        /// `landlock 6`, `seccomp default`. Empty without a sandbox.
        #[serde(rename = "sandbox", default, skip_serializing_if = "Vec::is_empty")]
        sandbox_layers: Vec<String>,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The agent began a turn.
    TurnStarted {
        /// The agent's own name of the turn, where it gives one.
        #[serde(skip_serializing_if = "Option::is_none")]
        turn: Option<UntrustedText>,
    },
    /// A piece of the answer; adjacent pieces may have been merged.
    Text {
        /// The piece.
        delta: UntrustedText,
    },
    /// A piece of the model's reasoning.
    Thought {
        /// The piece.
        delta: UntrustedText,
    },
    /// The model called a tool. Does not mean that the tool ran.
    ToolStart {
        /// The call's id.
        id: UntrustedText,
        /// The tool's name.
        name: UntrustedText,
        /// Its input, as it came.
        input: Box<RawValue>,
    },
    /// The agent says more of a tool call; what it does not mention stays as it was.
    ToolUpdate {
        /// The call's id.
        id: UntrustedText,
        /// The tool's name now.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<UntrustedText>,
        /// The call's title for people.
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<UntrustedText>,
        /// The agent's word for how far it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<UntrustedText>,
        /// Its whole input now.
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<Box<RawValue>>,
    },
    /// A tool call ended.
    ToolResult {
        /// The call's id.
        id: UntrustedText,
        /// What the tool said.
        output: UntrustedText,
        /// Whether the agent calls it an error.
        #[serde(default, skip_serializing_if = "Not::not")]
        is_error: bool,
        /// How long it took, as the agent says.
        #[serde(
            rename = "took_us",
            default,
            skip_serializing_if = "Option::is_none",
            with = "persist::micros"
        )]
        took: Option<Duration>,
    },
    /// The agent asked for permission.
    #[serde(with = "persist::permission_request")]
    PermissionRequested {
        /// The id of the permission request.
        id: PermissionRequestId,
        /// What it asked.
        request: PermissionRequest,
    },
    /// A permission request ended; durable before the answer is sent.
    PermissionDecided(Verdict),
    /// A tool call ran without a permission request; the policy was evaluated afterwards.
    #[serde(rename = "tool_call_unrequested")]
    #[strum_discriminants(strum(serialize = "tool_call_unrequested"))]
    UnrequestedToolCall {
        /// The call's id.
        id: UntrustedText,
        /// The tool's name.
        tool: UntrustedText,
        /// The decision that the policy would have made.
        decision: Decision,
        /// The rules behind that decision.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rules: Vec<String>,
    },
    /// The agent's whole plan, which replaces an earlier one.
    Plan {
        /// Its steps, at most `limits::PLAN_ENTRIES`.
        entries: Vec<PlanEntry>,
    },
    /// Tokens used so far, as the agent reports them.
    Usage(Usage),
    /// The use of the agent's context window.
    ContextUsed {
        /// Tokens in it.
        used: u64,
        /// Tokens that fit in.
        size: u64,
        /// What the session has cost so far.
        #[serde(skip_serializing_if = "Option::is_none")]
        cost: Option<Cost>,
    },
    /// A file changed, as the agent reports it.
    FileUpdated {
        /// The tool that did it.
        tool: UntrustedText,
        /// The path, as the agent names it.
        path: UntrustedText,
        /// The SHA-256 of its content, if the supervisor wrote or read it.
        #[serde(skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
        /// The number of this version, where versions are stored.
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<Box<FileVersion>>,
    },
    /// The status of a step of the plan, which the agent reported through a tool.
    PlanStep {
        /// The step, in its words.
        step: UntrustedText,
        /// The status.
        status: StepStatus,
    },
    /// The agent's model, mode or context changed.
    StateChanged {
        /// Its model now.
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<UntrustedText>,
        /// Its mode now.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<UntrustedText>,
        /// How full its context is, in percent.
        #[serde(skip_serializing_if = "Option::is_none")]
        context_pct: Option<f64>,
        /// The size of its context window now, in tokens.
        #[serde(skip_serializing_if = "Option::is_none")]
        context_window: Option<u64>,
    },
    /// A slash command for the agent; durable before it is sent.
    CommandSent {
        /// Its name, without a slash.
        command: String,
        /// The rest of the line.
        args: UntrustedText,
        /// Who sent the command.
        by: String,
    },
    /// A slash command finished.
    SlashResult {
        /// The command.
        command: UntrustedText,
        /// Its text.
        text: UntrustedText,
        /// Its data, as it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<Box<RawValue>>,
        /// The agent began a new session.
        #[serde(default, skip_serializing_if = "Not::not")]
        clear_session: bool,
        /// The agent will exit, as the command asked.
        #[serde(default, skip_serializing_if = "Not::not")]
        exit: bool,
    },
    /// The agent reported an error.
    AgentError {
        /// Its code.
        code: UntrustedText,
        /// Its message.
        message: UntrustedText,
        /// Where it came from.
        origin: ErrorOrigin,
    },
    /// The turn ended.
    TurnEnded {
        /// How the turn ended.
        outcome: TurnOutcome,
        /// The agent's own word, where it gave one.
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_reason: Option<UntrustedText>,
        /// Tokens of the turn.
        usage: Usage,
        /// The reason in marshal's words, if the agent did not end it.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A turn of a chat ended without reaching an agent.
    TurnUnsent {
        /// The turn.
        turn: TurnId,
        /// How the turn ended.
        outcome: TurnOutcome,
        /// The reason, in marshal's words.
        detail: String,
    },
    /// A message that the dialect does not know; kept and counted.
    Unknown {
        /// Its tag.
        tag: UntrustedText,
        /// The message, as it came.
        raw: Box<RawValue>,
    },
    /// A line that is not a message. `ARCHITECTURE.md` explains how it is handled.
    BadLine {
        /// `too_long`, `bad_utf8`, `bad_json`, `not_object`, `bad_shape`, …
        reason: Cow<'static, str>,
        /// The line's first bytes.
        head: UntrustedText,
    },
    /// The session's process ended.
    ChildExited {
        /// The class.
        class: ExitClass,
        /// The exit status, if a process ran.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<ExitStatus>,
        /// The reason, in marshal's words.
        detail: String,
        /// The last lines of its stderr, at most 50.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stderr: Vec<UntrustedText>,
        /// The most memory that it had with everything that it started, in bytes, where that is
        /// counted.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory_peak: Option<u64>,
    },
    /// The task's check ended.
    CheckEnded {
        /// The exit status, if the check ran.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<ExitStatus>,
        /// The tail of what it printed, or why it did not run.
        output: UntrustedText,
    },
    /// A file that other programs obey appeared in the workspace, and was taken out of it.
    Quarantined {
        /// Its path below the workspace.
        path: UntrustedText,
        /// Its path on the host now; `None` if it is still in the workspace.
        #[serde(skip_serializing_if = "Option::is_none")]
        moved_to: Option<String>,
        /// Why it is still there.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A program of the pool's agent was started for the first time, or for the first time since it
    /// was changed.
    ProgramRecorded {
        /// Its path on the host.
        path: String,
        /// The SHA-256 digest of its content, in hexadecimal digits.
        sha256: String,
        /// The digest that was on record before; `None` if this file was not.
        #[serde(skip_serializing_if = "Option::is_none")]
        was: Option<String>,
    },
    /// A piece of a prompt, as the agent repeats it.
    UserText {
        /// The piece.
        delta: UntrustedText,
    },
    /// The commands that the agent understands now: they take the place of earlier ones.
    Commands {
        /// At most `limits::ADVERTISED_ITEMS`.
        commands: Vec<CommandInfo>,
    },
    /// The session's options as they stand now, all of them.
    Options {
        /// At most `limits::ADVERTISED_ITEMS`.
        options: Vec<OptionState>,
    },
    /// What the agent says of the session itself.
    SessionInfo {
        /// Its title.
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<UntrustedText>,
        /// When it last changed, in the agent's words.
        #[serde(skip_serializing_if = "Option::is_none")]
        updated_at: Option<UntrustedText>,
    },
    /// A notice of the agent for a person.
    Notice {
        /// `info`, `warning`, `error`, or the agent's own word.
        #[serde(skip_serializing_if = "Option::is_none")]
        severity: Option<UntrustedText>,
        /// A short text.
        title: UntrustedText,
        /// The full text.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<UntrustedText>,
    },
    /// The agent makes its context shorter.
    Compaction {
        /// The id of the compaction.
        id: UntrustedText,
        /// `in_progress`, `completed`, `failed`, `cancelled`, or the agent's own word.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<UntrustedText>,
        /// The error, if it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<UntrustedText>,
    },
    /// A piece of the text that replaces the longer context.
    CompactionText {
        /// The id of the compaction.
        id: UntrustedText,
        /// The piece.
        delta: UntrustedText,
    },
    /// The agent resumed a session of an earlier child.
    SessionResumed {
        /// The protocol's request that resumed it.
        how: Cow<'static, str>,
        /// The number of messages of its past that were replayed, and not journalled again.
        replayed: u64,
    },
    /// This session replaces one that could not be loaded again.
    SessionFresh {
        /// The session id of the old one.
        instead_of: SessionId,
        /// The reason, in marshal's words.
        why: String,
        /// The agent does not get the past messages, because a tool at a terminal would run them.
        #[serde(default, skip_serializing_if = "Not::not")]
        history_omitted: bool,
    },
    /// A command was started in the agent's sandbox: by the supervisor as the agent's client, or for
    /// a client of the supervisor.
    TerminalStarted {
        /// The terminal's id, unique in its child's life.
        terminal: String,
        /// Program and arguments.
        argv: Vec<UntrustedText>,
        /// Where it runs, as seen inside.
        cwd: UntrustedText,
        /// The client of the supervisor that started it; `None` if the agent did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Such a command wrote output. Only the first `limits::TERMINAL_REPORTED_BYTES` of each are
    /// reported.
    TerminalOutput {
        /// The terminal.
        terminal: String,
        /// What it wrote.
        delta: UntrustedText,
    },
    /// Such a command ended, and no process of it is left.
    TerminalEnded {
        /// The terminal.
        terminal: String,
        /// How it ended; `None` if that is unknown.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<ExitStatus>,
        /// Bytes that it wrote.
        #[serde(rename = "bytes")]
        written_bytes: u64,
        /// Bytes of these that were not reported.
        #[serde(default)]
        omitted_bytes: u64,
    },
    /// Connections through the egress proxy ended. If there are many, equal ones are combined.
    Egress {
        /// The host; `None` if the request named no valid host, or for many hosts that are
        /// combined.
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// Its port, if it has a host.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// How the connection ended.
        result: EgressResult,
        /// The number of connections.
        connections: u64,
        /// Bytes sent by the sandbox.
        sent: u64,
        /// Bytes received by the sandbox.
        received: u64,
        /// How long the longest of them was open.
        #[serde(rename = "took_ms", with = "persist::millis")]
        took: Duration,
    },
    /// An event of the work of an autonomous chat.
    Work(WorkEvent),
}

impl Event {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.into()
    }
}

/// An event with its place in the session's stream.
#[derive(Debug, Clone)]
pub struct StampedEvent {
    /// Its address.
    pub id: EventId,
    /// When it was stamped: microseconds since the Unix epoch.
    pub at_us: i64,
    /// What happened.
    pub event: Event,
}
