//! The events of a session, for all code from the dialect to the journal.
//!
//! A new kind of event also touches `journal/codec/`, `engine/api/json_lines.rs` and `cli/event_text.rs`.

use std::time::Duration;

use serde_json::value::RawValue;

use super::tool::FileVersion;
use super::{
    ChoiceInfo, EgressResult, ExitClass, ExitStatus, PermissionRequest, PermissionRequestId,
    StepStatus, TaskId, TurnId, TurnOutcome, UntrustedText, Verdict, string_enum,
};
use super::{
    CommandInfo, Cost, Decision, EventId, OptionState, PlanEntry, SandboxGap, SessionId, Usage,
    WorkEvent,
};

string_enum!(
    /// The kinds of events. `word` is the journal's `kind` column; [`EventKind::metric_label`] is the
    /// coarser label of `marshal_events_total`.
    EventKind {
        /// [`Event::PromptAccepted`]
        PromptAccepted = "prompt_accepted",
        /// [`Event::ChildStarted`]
        ChildStarted = "child_started",
        /// [`Event::Ready`]
        Ready = "ready",
        /// [`Event::TurnStarted`]
        TurnStarted = "turn_started",
        /// [`Event::Text`]
        Text = "text",
        /// [`Event::Thought`]
        Thought = "thought",
        /// [`Event::ToolStart`]
        ToolStart = "tool_start",
        /// [`Event::ToolUpdate`]
        ToolUpdate = "tool_update",
        /// [`Event::ToolResult`]
        ToolResult = "tool_result",
        /// [`Event::PermissionRequested`]
        PermissionRequested = "permission_requested",
        /// [`Event::PermissionDecided`]
        PermissionDecided = "permission_decided",
        /// [`Event::UnrequestedToolCall`]
        UnrequestedToolCall = "tool_call_unrequested",
        /// [`Event::Plan`]
        Plan = "plan",
        /// [`Event::Usage`]
        Usage = "usage",
        /// [`Event::ContextUsed`]
        ContextUsed = "context_used",
        /// [`Event::FileUpdated`]
        FileUpdated = "file_updated",
        /// [`Event::PlanStep`]
        PlanStep = "plan_step",
        /// [`Event::StateChanged`]
        StateChanged = "state_changed",
        /// [`Event::CommandSent`]
        CommandSent = "command_sent",
        /// [`Event::SlashResult`]
        SlashResult = "slash_result",
        /// [`Event::AgentError`]
        AgentError = "agent_error",
        /// [`Event::TurnEnded`]
        TurnEnded = "turn_ended",
        /// [`Event::TurnUnsent`]
        TurnUnsent = "turn_unsent",
        /// [`Event::Unknown`]
        Unknown = "unknown",
        /// [`Event::BadLine`]
        BadLine = "bad_line",
        /// [`Event::ChildExited`]
        ChildExited = "child_exited",
        /// [`Event::CheckEnded`]
        CheckEnded = "check_ended",
        /// [`Event::Quarantined`]
        Quarantined = "quarantined",
        /// [`Event::ProgramRecorded`]
        ProgramRecorded = "program_recorded",
        /// [`Event::UserText`]
        UserText = "user_text",
        /// [`Event::Commands`]
        Commands = "commands",
        /// [`Event::Options`]
        Options = "options",
        /// [`Event::SessionInfo`]
        SessionInfo = "session_info",
        /// [`Event::Notice`]
        Notice = "notice",
        /// [`Event::Compaction`]
        Compaction = "compaction",
        /// [`Event::CompactionText`]
        CompactionText = "compaction_text",
        /// [`Event::SessionResumed`]
        SessionResumed = "session_resumed",
        /// [`Event::SessionFresh`]
        SessionFresh = "session_fresh",
        /// [`Event::TerminalStarted`]
        TerminalStarted = "terminal_started",
        /// [`Event::TerminalOutput`]
        TerminalOutput = "terminal_output",
        /// [`Event::TerminalEnded`]
        TerminalEnded = "terminal_ended",
        /// [`Event::Egress`]
        Egress = "egress",
        /// [`Event::Work`]
        Work = "work",
    }
);

impl EventKind {
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentInfo {
    /// The protocol's version, as a text (`1`).
    pub protocol: String,
    /// The agent's own version.
    pub version: Option<UntrustedText>,
    /// The agent's own session id, to resume it.
    pub session: Option<UntrustedText>,
    /// Its model.
    pub model: Option<UntrustedText>,
    /// Its permission mode.
    pub mode: Option<UntrustedText>,
    /// The modes that may be chosen, at most `limits::ADVERTISED_ITEMS`.
    pub modes: Vec<ChoiceInfo>,
    /// The names of its tools.
    pub tools: Vec<UntrustedText>,
    /// The size of its context window, in tokens.
    pub context_window: Option<u64>,
    /// Whether it says that it cannot resume its session. Not journalled.
    pub cannot_resume: bool,
}

/// One thing that happened in a session.
#[derive(Debug, Clone)]
pub enum Event {
    /// A prompt was taken in; it is durable before it is sent.
    PromptAccepted {
        /// The task that it belongs to.
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
        launcher: &'static str,
        /// The layers that its sandbox lacks; empty without a sandbox.
        sandbox_gaps: Vec<SandboxGap>,
        /// What enforces its limits, in one line, where that is known.
        limits: Option<String>,
        /// The layers of its sandbox, a few words each, in marshal's words: `uid slot`,
        /// `landlock 6`, `seccomp default`. Empty without a sandbox.
        sandbox_layers: Vec<String>,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The agent began a turn.
    TurnStarted {
        /// The agent's own name of the turn, where it gives one.
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
        name: Option<UntrustedText>,
        /// The call's title for people.
        title: Option<UntrustedText>,
        /// The agent's word for how far it is.
        status: Option<UntrustedText>,
        /// Its whole input now.
        input: Option<Box<RawValue>>,
    },
    /// A tool call ended.
    ToolResult {
        /// The call's id.
        id: UntrustedText,
        /// What the tool said.
        output: UntrustedText,
        /// Whether the agent calls it an error.
        is_error: bool,
        /// How long it took, as the agent says.
        took: Option<Duration>,
    },
    /// The agent asked for permission.
    PermissionRequested {
        /// The id of the permission request.
        id: PermissionRequestId,
        /// What it asked.
        request: PermissionRequest,
    },
    /// A permission request ended; durable before the answer is sent.
    PermissionDecided(Verdict),
    /// A tool call ran without a permission request; the policy was evaluated afterwards.
    UnrequestedToolCall {
        /// The call's id.
        id: UntrustedText,
        /// The tool's name.
        tool: UntrustedText,
        /// The decision that the policy would have made.
        decision: Decision,
        /// The rules behind that decision.
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
        cost: Option<Cost>,
    },
    /// A file changed, as the agent reports it.
    FileUpdated {
        /// The tool that did it.
        tool: UntrustedText,
        /// The path, as the agent names it.
        path: UntrustedText,
        /// The SHA-256 of its content, if the supervisor wrote or read it.
        sha256: Option<String>,
        /// The number of this version, where versions are stored.
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
        model: Option<UntrustedText>,
        /// Its mode now.
        mode: Option<UntrustedText>,
        /// How full its context is, in percent.
        context_pct: Option<f64>,
        /// The size of its context window now, in tokens.
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
        data: Option<Box<RawValue>>,
        /// The agent began a new session.
        clear_session: bool,
        /// The agent will exit, as the command asked.
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
        stop_reason: Option<UntrustedText>,
        /// Tokens of the turn.
        usage: Usage,
        /// The reason in marshal's words, if the agent did not end it.
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
        reason: &'static str,
        /// The line's first bytes.
        head: UntrustedText,
    },
    /// The session's process ended.
    ChildExited {
        /// The class.
        class: ExitClass,
        /// The exit status, if a process ran.
        status: Option<ExitStatus>,
        /// The reason, in marshal's words.
        detail: String,
        /// The last lines of its stderr, at most 50.
        stderr: Vec<UntrustedText>,
        /// The most memory that it had with everything that it started, in bytes, where that is
        /// counted.
        memory_peak: Option<u64>,
    },
    /// The task's check ended.
    CheckEnded {
        /// The exit status, if the check ran.
        status: Option<ExitStatus>,
        /// The tail of what it printed, or why it did not run.
        output: UntrustedText,
    },
    /// A file that other programs obey appeared in the workspace, and was taken out of it.
    Quarantined {
        /// Its path below the workspace.
        path: UntrustedText,
        /// Its path on the host now; `None` if it is still in the workspace.
        moved_to: Option<String>,
        /// Why it is still there.
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
        title: Option<UntrustedText>,
        /// When it last changed, in the agent's words.
        updated_at: Option<UntrustedText>,
    },
    /// A notice of the agent for a person.
    Notice {
        /// `info`, `warning`, `error`, or the agent's own word.
        severity: Option<UntrustedText>,
        /// A short text.
        title: UntrustedText,
        /// The full text.
        description: Option<UntrustedText>,
    },
    /// The agent makes its context shorter.
    Compaction {
        /// The id of the compaction.
        id: UntrustedText,
        /// `in_progress`, `completed`, `failed`, `cancelled`, or the agent's own word.
        status: Option<UntrustedText>,
        /// The error, if it failed.
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
        how: &'static str,
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
        history_omitted: bool,
    },
    /// A terminal command of the agent was started by its client.
    TerminalStarted {
        /// The terminal's id, unique in its child's life.
        terminal: String,
        /// Program and arguments.
        argv: Vec<UntrustedText>,
        /// Where it runs, as seen inside.
        cwd: UntrustedText,
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
        status: Option<ExitStatus>,
        /// Bytes that it wrote.
        written_bytes: u64,
        /// Bytes of these that were not reported.
        omitted_bytes: u64,
    },
    /// Connections through the egress proxy ended. If there are many, equal ones are combined.
    Egress {
        /// The host; `None` if the request named no valid host, or for many hosts that are
        /// combined.
        host: Option<String>,
        /// Its port, if it has a host.
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
        took: Duration,
    },
    /// An event of the work of an autonomous chat.
    Work(WorkEvent),
}

impl Event {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::PromptAccepted { .. } => EventKind::PromptAccepted,
            Self::ChildStarted { .. } => EventKind::ChildStarted,
            Self::Ready(_) => EventKind::Ready,
            Self::TurnStarted { .. } => EventKind::TurnStarted,
            Self::Text { .. } => EventKind::Text,
            Self::Thought { .. } => EventKind::Thought,
            Self::ToolStart { .. } => EventKind::ToolStart,
            Self::ToolUpdate { .. } => EventKind::ToolUpdate,
            Self::ToolResult { .. } => EventKind::ToolResult,
            Self::PermissionRequested { .. } => EventKind::PermissionRequested,
            Self::PermissionDecided(_) => EventKind::PermissionDecided,
            Self::UnrequestedToolCall { .. } => EventKind::UnrequestedToolCall,
            Self::Plan { .. } => EventKind::Plan,
            Self::Usage(_) => EventKind::Usage,
            Self::ContextUsed { .. } => EventKind::ContextUsed,
            Self::FileUpdated { .. } => EventKind::FileUpdated,
            Self::PlanStep { .. } => EventKind::PlanStep,
            Self::StateChanged { .. } => EventKind::StateChanged,
            Self::CommandSent { .. } => EventKind::CommandSent,
            Self::SlashResult { .. } => EventKind::SlashResult,
            Self::AgentError { .. } => EventKind::AgentError,
            Self::TurnEnded { .. } => EventKind::TurnEnded,
            Self::TurnUnsent { .. } => EventKind::TurnUnsent,
            Self::Unknown { .. } => EventKind::Unknown,
            Self::BadLine { .. } => EventKind::BadLine,
            Self::ChildExited { .. } => EventKind::ChildExited,
            Self::CheckEnded { .. } => EventKind::CheckEnded,
            Self::Quarantined { .. } => EventKind::Quarantined,
            Self::ProgramRecorded { .. } => EventKind::ProgramRecorded,
            Self::UserText { .. } => EventKind::UserText,
            Self::Commands { .. } => EventKind::Commands,
            Self::Options { .. } => EventKind::Options,
            Self::SessionInfo { .. } => EventKind::SessionInfo,
            Self::Notice { .. } => EventKind::Notice,
            Self::Compaction { .. } => EventKind::Compaction,
            Self::CompactionText { .. } => EventKind::CompactionText,
            Self::SessionResumed { .. } => EventKind::SessionResumed,
            Self::SessionFresh { .. } => EventKind::SessionFresh,
            Self::TerminalStarted { .. } => EventKind::TerminalStarted,
            Self::TerminalOutput { .. } => EventKind::TerminalOutput,
            Self::TerminalEnded { .. } => EventKind::TerminalEnded,
            Self::Egress { .. } => EventKind::Egress,
            Self::Work(_) => EventKind::Work,
        }
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
