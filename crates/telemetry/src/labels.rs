//! The closed sets that label values come from, where `model` does not have them already.

use marshal_model::{
    BudgetName, DecidedBy, Decision, DelegateError, EventKind, ExitClass, SlotState, TaskOutcome,
};
use marshal_model::{SandboxGap, TurnOutcome, string_enum};

string_enum!(
    /// What became of the start of a process; whether it then completed its handshake is told by
    /// its exit.
    SpawnResult {
        /// The process exists and runs the agent's program.
        Ok = "ok",
        /// The program could not be executed.
        ExecFailed = "exec_failed",
        /// The kernel gave no process.
        ForkFailed = "fork_failed",
        /// Its limits could not be had.
        CgroupFailed = "cgroup_failed",
        /// The walls could not be built.
        SandboxFailed = "sandbox_failed",
        /// Its workspace or home could not be made.
        WorkspaceFailed = "workspace_failed",
    }
);

string_enum!(
    /// Why a slot's child is replaced.
    RestartCause {
        /// It exited, or a signal ended it.
        Crash = "crash",
        /// The kernel killed it for memory.
        Oom = "oom",
        /// It was silent, or its handshake did not end.
        Hang = "hang",
        /// It broke its protocol.
        Protocol = "protocol",
        /// It could not be started.
        Spawn = "spawn",
        /// A person asked for it.
        Manual = "manual",
    }
);

impl RestartCause {
    /// The cause of a restart after an end of this class.
    #[must_use]
    pub const fn of(class: ExitClass) -> Self {
        match class {
            ExitClass::SpawnFailed => Self::Spawn,
            ExitClass::HandshakeTimeout => Self::Hang,
            ExitClass::VersionRefused | ExitClass::NeedsSetup | ExitClass::ProtocolFault => {
                Self::Protocol
            }
            ExitClass::OutOfMemory => Self::Oom,
            ExitClass::Exited
            | ExitClass::Signalled
            | ExitClass::ConnectionLost
            | ExitClass::JournalQuota => Self::Crash,
            ExitClass::IdleUnload | ExitClass::Stopped | ExitClass::Budget => Self::Manual,
        }
    }
}

string_enum!(
    /// How a child was judged hung.
    HangKind {
        /// No byte, no open tool call, no open ask for the pool's `silence`.
        NoOutput = "no_output",
        /// No end of the turn after a cancel.
        NoReply = "no_reply",
        /// It does not read its stdin.
        StdinBlocked = "stdin_blocked",
    }
);

string_enum!(
    /// Why a line from a child was no good.
    LineFault {
        /// No JSON.
        BadJson = "bad_json",
        /// No UTF-8.
        BadUtf8 = "bad_utf8",
        /// JSON, but no object.
        NotObject = "not_object",
        /// A known message with fields that do not fit.
        BadShape = "bad_shape",
        /// A message that the dialect does not know.
        UnknownType = "unknown_type",
        /// Longer than `limits::LINE_BYTES_BUCKETS`.
        TooLong = "too_long",
        /// A message that may not come now.
        OutOfState = "out_of_state",
        /// A message about a call or a permission request that does not exist.
        UnknownId = "unknown_id",
        /// A version that we do not speak.
        Version = "version",
    }
);

string_enum!(
    /// A child's output.
    Stream {
        /// The protocol.
        Stdout = "stdout",
        /// What it says beside it.
        Stderr = "stderr",
    }
);

pub use marshal_model::ToolClass;

string_enum!(
    /// How a tool call ended.
    ToolOutcome {
        /// It says so.
        Ok = "ok",
        /// It failed.
        Error = "error",
        /// Its request was denied.
        Denied = "denied",
        /// Its turn ended first.
        Cancelled = "cancelled",
    }
);

string_enum!(
    /// Why a task was not taken into a queue.
    QueueRefusal {
        /// As many wait as may.
        Full = "full",
        /// The supervisor is ending.
        Draining = "draining",
        /// The journal takes nothing new.
        ReadOnly = "read_only",
        /// Every slot of the pool is parked.
        Parked = "parked",
    }
);

pub use marshal_model::SandboxStage;

string_enum!(
    /// What was being done to a control group when it failed.
    CgroupOperation {
        /// Making it.
        Create = "create",
        /// Putting a process into it.
        Attach = "attach",
        /// Setting a limit.
        Limit = "limit",
        /// Killing what is in it.
        Kill = "kill",
        /// Removing it.
        Remove = "remove",
    }
);

string_enum!(
    /// What a process of a child has of memory.
    MemoryKind {
        /// What is its own, files not counted.
        Rss = "rss",
        /// All but what could be dropped at once.
        WorkingSet = "working_set",
        /// What is swapped out.
        Swap = "swap",
    }
);

string_enum!(
    /// What somebody waited for.
    StallResource {
        /// A processor.
        Cpu = "cpu",
        /// Memory.
        Memory = "memory",
        /// A disk.
        Io = "io",
    }
);

string_enum!(
    /// How many waited.
    StallKind {
        /// Some of them.
        Some = "some",
        /// All of them at once.
        Full = "full",
    }
);

string_enum!(
    /// Why a policy could not be evaluated; such a request is denied.
    EvaluationError {
        /// The request has not the shape that the extractor knows.
        Malformed = "malformed",
        /// The input is longer than may be judged.
        TooLarge = "too_large",
        /// The engine failed.
        Engine = "engine",
    }
);

string_enum!(
    /// What came of reading the policies again.
    ReloadResult {
        /// All of them were good, and are in force.
        Ok = "ok",
        /// One of them was not; all stays as it was.
        Error = "error",
    }
);

string_enum!(
    /// Why the policies were read again.
    ReloadCause {
        /// SIGHUP.
        Signal = "signal",
        /// Somebody asked for it.
        Request = "request",
        /// One of their files changed.
        File = "file",
    }
);

string_enum!(
    /// What a policy says of a request where two are compared.
    ShadowVerdict {
        /// It allows.
        Allow = "allow",
        /// It wants a person.
        Ask = "ask",
        /// It denies.
        Deny = "deny",
        /// It could not judge it.
        Error = "error",
    }
);

impl From<Decision> for ShadowVerdict {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Allow => Self::Allow,
            Decision::Ask => Self::Ask,
            Decision::Deny => Self::Deny,
        }
    }
}

string_enum!(
    /// What became of a hook's message.
    HookResult {
        /// It was taken.
        Delivered = "told",
        /// The server answered that it does not take it, or wants it elsewhere.
        Refused = "refused",
        /// There was no answer, or the command did not end well.
        Failed = "failed",
        /// The supervisor ended first.
        Lost = "lost",
    }
);

string_enum!(
    /// What became of a request file.
    FileRequest {
        /// It is a task.
        Taken = "taken",
        /// It was a task already.
        Repeated = "repeated",
        /// It says what cannot be done; its result says why.
        Refused = "refused",
        /// It is no request; it was put aside.
        Rejected = "rejected",
    }
);

string_enum!(
    /// What became of a file with an answer.
    FileAnswer {
        /// It allowed.
        Allowed = "allowed",
        /// It denied.
        Denied = "denied",
        /// It changed nothing; it was put aside.
        Refused = "refused",
    }
);

string_enum!(
    /// The kinds of tokens that agents report.
    TokenType {
        /// Read by the model.
        Input = "input",
        /// Written by the model.
        Output = "output",
    }
);

string_enum!(
    /// Why a request of a sandbox does not pass its route, or an answer does not come back.
    RouteRefusal {
        /// The slot has as many connections as it may.
        Connections = "connections",
        /// Its head is too long or has too many headers.
        Head = "head",
        /// It did not come in time.
        Slow = "slow",
        /// Two servers could read it differently, or it asks for a tunnel.
        Smuggling = "smuggling",
        /// Its path is no plain one.
        Path = "path",
        /// Method and path are not on the list.
        NotAllowed = "not_allowed",
        /// A query parameter is not on the list.
        Query = "query",
        /// Its body is compressed.
        Encoding = "encoding",
        /// Its body is too long.
        BodySize = "body_size",
        /// All routes together hold as much of bodies as they may.
        BodiesHeld = "bodies_held",
        /// Its body is no plain JSON.
        Body = "body",
        /// Its body names a tool that the provider runs.
        ServerTool = "server_tool",
        /// Its body names a file that the provider would fetch.
        RemoteContent = "remote_content",
        /// A budget is spent, or could not be held: the request's model has no price.
        Budget = "budget",
        /// The upstream answered with a redirect.
        Redirect = "redirect",
        /// The upstream's answer held the key.
        KeyEcho = "key_echo",
    }
);

string_enum!(
    /// What an upstream answered.
    RouteCode {
        /// Success.
        Ok = "2xx",
        /// Redirects, and not modified.
        Redirect = "3xx",
        /// Too many requests, overloaded (429, 529).
        Limited = "limited",
        /// Another fault of the request.
        Client = "4xx",
        /// Another fault of the server.
        Server = "5xx",
        /// No answer.
        Failed = "failed",
    }
);

string_enum!(
    /// The kinds of tokens that a provider counts; the last three are parts of the first two.
    RouteTokens {
        /// Read by the model.
        Input = "input",
        /// Written by the model.
        Output = "output",
        /// Read from a cache.
        CacheRead = "cache_read",
        /// Written to a cache.
        CacheWrite = "cache_write",
        /// Spent on reasoning.
        Reasoning = "reasoning",
    }
);

pub use marshal_model::EgressResult;

string_enum!(
    /// Where the bytes of a connection to a host outside go.
    EgressDirection {
        /// Out of the sandbox.
        Sent = "sent",
        /// Into it.
        Received = "received",
    }
);

string_enum!(
    /// By what a limit of a provider was recognised.
    LimitSign {
        /// The status of an answer on a route.
        Route = "route",
        /// The words of an error.
        Words = "words",
    }
);

string_enum!(
    /// The actors.
    ActorKind {
        /// The root.
        Fleet = "fleet",
        /// A pool.
        Pool = "pool",
        /// A session.
        Session = "session",
        /// A channel.
        Channel = "channel",
        /// The open approvals.
        Approvals = "approvals",
    }
);

/// The values of one label of a closed set.
pub type LabelWords = fn() -> Vec<&'static str>;

/// Declares functions that list a set's words.
macro_rules! lists {
    ($($(#[$meta:meta])* $function:ident = $set:ty;)+) => {$(
        $(#[$meta])*
        #[must_use]
        pub fn $function() -> Vec<&'static str> {
            <$set>::ALL.iter().map(|word| word.word()).collect()
        }
    )+};
}

lists!(
    /// [`SpawnResult`]
    spawn_results = SpawnResult;
    /// [`RestartCause`]
    restart_causes = RestartCause;
    /// [`HangKind`]
    hang_kinds = HangKind;
    /// [`LineFault`]
    line_faults = LineFault;
    /// [`ChannelBody`]
    streams = Stream;
    /// [`ToolClass`]
    tool_classes = ToolClass;
    /// [`ToolOutcome`]
    tool_outcomes = ToolOutcome;
    /// [`QueueRefusal`]
    queue_refusals = QueueRefusal;
    /// [`SandboxStage`]
    sandbox_stages = SandboxStage;
    /// [`SandboxGap`]
    sandbox_gaps = SandboxGap;
    /// [`CgroupOperation`]
    cgroup_operations = CgroupOperation;
    /// [`MemoryKind`]
    memory_kinds = MemoryKind;
    /// [`StallResource`]
    stall_resources = StallResource;
    /// [`StallKind`]
    stall_kinds = StallKind;
    /// [`EvaluationError`]
    evaluation_errors = EvaluationError;
    /// [`ReloadResult`]
    reload_results = ReloadResult;
    /// [`ShadowVerdict`]
    shadow_verdicts = ShadowVerdict;
    /// [`FileRequest`]
    file_requests = FileRequest;
    /// [`FileAnswer`]
    file_answers = FileAnswer;
    /// [`HookResult`]
    hook_results = HookResult;
    /// [`TokenType`]
    token_types = TokenType;
    /// [`RouteRefusal`]
    route_refusals = RouteRefusal;
    /// [`RouteCode`]
    route_codes = RouteCode;
    /// [`RouteTokens`]
    route_tokens = RouteTokens;
    /// [`EgressResult`]
    egress_results = EgressResult;
    /// [`EgressDirection`]
    egress_directions = EgressDirection;
    /// [`LimitSign`]
    limit_signs = LimitSign;
    /// [`ActorKind`]
    actor_kinds = ActorKind;
    /// [`super::event::journal::JournalError`]
    journal_errors = super::event::journal::JournalError;
    /// [`SlotState`]
    slot_states = SlotState;
    /// [`ExitClass`]
    exit_classes = ExitClass;
    /// [`TurnOutcome`]
    turn_outcomes = TurnOutcome;
    /// [`TaskOutcome`]
    task_outcomes = TaskOutcome;
    /// [`Decision`]
    decisions = Decision;
    /// [`DecidedBy`]
    deciders = DecidedBy;
    /// [`DelegateError`]
    delegate_errors = DelegateError;
    /// [`BudgetName`]
    budgets = BudgetName;
);

/// The kinds that `marshal_events_total` tells apart.
#[must_use]
pub fn event_kinds() -> Vec<&'static str> {
    EventKind::METRIC_LABELS.to_vec()
}

/// The verdicts that a permission request can end with.
#[must_use]
pub fn final_decisions() -> Vec<&'static str> {
    vec![Decision::Allow.word(), Decision::Deny.word()]
}

/// Whether this decider can reach this verdict: time, errors and a gone child only deny.
#[must_use]
pub fn can_decide(by: DecidedBy, decision: Decision) -> bool {
    match by {
        DecidedBy::Policy | DecidedBy::Default | DecidedBy::Human | DecidedBy::Cache => {
            decision != Decision::Ask
        }
        DecidedBy::Timeout
        | DecidedBy::Error
        | DecidedBy::Budget
        | DecidedBy::Gone
        | DecidedBy::Delegate => decision == Decision::Deny,
    }
}
