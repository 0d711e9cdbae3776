//! The closed sets that label values come from, where `model` does not have them already.

use marshal_model::{
    BudgetName, DecidedBy, Decision, DelegateError, EventKind, ExitClass, SlotState, TaskOutcome,
};
use marshal_model::{SandboxGap, TurnOutcome, string_enum};

string_enum!(
    /// The result of starting a process. Its exit class shows whether it completed its handshake.
    SpawnResult {
        /// The process exists and runs the agent's program.
        Ok = "ok",
        /// The program could not be executed.
        ExecFailed = "exec_failed",
        /// The kernel refused a new process.
        ForkFailed = "fork_failed",
        /// Its resource limits could not be set.
        CgroupFailed = "cgroup_failed",
        /// The sandbox could not be built.
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
        /// The kernel killed it for lack of memory.
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
    /// Why a child counts as hung.
    HangKind {
        /// No output, no open tool call and no pending request for the pool's `silence`.
        NoOutput = "no_output",
        /// The turn did not end after a cancel.
        NoReply = "no_reply",
        /// It does not read its stdin.
        StdinBlocked = "stdin_blocked",
    }
);

string_enum!(
    /// Why a line from a child was rejected.
    LineFault {
        /// It is not JSON.
        BadJson = "bad_json",
        /// It is not UTF-8.
        BadUtf8 = "bad_utf8",
        /// It is JSON, but not an object.
        NotObject = "not_object",
        /// A known message with fields that do not fit.
        BadShape = "bad_shape",
        /// A message that the dialect does not know.
        UnknownType = "unknown_type",
        /// Longer than `limits::LINE_BYTES`.
        TooLong = "too_long",
        /// A message that the protocol does not allow in this state.
        OutOfState = "out_of_state",
        /// A message about a call or a permission request that does not exist.
        UnknownId = "unknown_id",
        /// A protocol version that marshal does not support.
        Version = "version",
    }
);

string_enum!(
    /// A child's output.
    Stream {
        /// stdout, which carries the protocol.
        Stdout = "stdout",
        /// stderr.
        Stderr = "stderr",
    }
);

pub use marshal_model::ToolClass;

string_enum!(
    /// How a tool call ended.
    ToolOutcome {
        /// The agent reported success.
        Ok = "ok",
        /// It failed.
        Error = "error",
        /// Its permission request was denied.
        Denied = "denied",
        /// The turn ended before the call did.
        Cancelled = "cancelled",
    }
);

string_enum!(
    /// Why a queue refused a task.
    QueueRefusal {
        /// The queue is full.
        Full = "full",
        /// The supervisor is stopping.
        Draining = "draining",
        /// The journal does not take them.
        Journal = "journal",
    }
);

pub use marshal_model::SandboxStage;

string_enum!(
    /// The operation on a control group that failed.
    CgroupOperation {
        /// Creating it.
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
    /// Kinds of a child's memory.
    MemoryKind {
        /// Anonymous memory, without files.
        Rss = "rss",
        /// The working set: all memory except what the kernel can drop at once.
        WorkingSet = "working_set",
        /// Swapped-out memory.
        Swap = "swap",
    }
);

string_enum!(
    /// The resource that processes waited for.
    StallResource {
        /// CPU time.
        Cpu = "cpu",
        /// Memory.
        Memory = "memory",
        /// Disk I/O.
        Io = "io",
    }
);

string_enum!(
    /// Whether some or all processes waited, as in the kernel's pressure files.
    StallKind {
        /// At least one process.
        Some = "some",
        /// All processes at the same time.
        Full = "full",
    }
);

string_enum!(
    /// Why a policy could not be evaluated; such a request is denied.
    EvaluationError {
        /// The request does not have the shape that the extractor expects.
        Malformed = "malformed",
        /// The input is longer than the limit of an evaluation.
        TooLarge = "too_large",
        /// The engine failed.
        Engine = "engine",
    }
);

string_enum!(
    /// The result of a policy reload.
    ReloadResult {
        /// All policies are valid and in force.
        Ok = "ok",
        /// One policy is invalid; the older policies stay in force.
        Error = "error",
    }
);

string_enum!(
    /// The cause of a policy reload.
    ReloadCause {
        /// SIGHUP.
        Signal = "signal",
        /// A request by the command line or the API.
        Request = "request",
        /// A policy file changed.
        File = "file",
    }
);

string_enum!(
    /// A policy's verdict on a request where two policies are compared.
    ShadowVerdict {
        /// It allows.
        Allow = "allow",
        /// It asks a person.
        Ask = "ask",
        /// It denies.
        Deny = "deny",
        /// Its evaluation failed.
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
    /// The result of a hook message.
    HookResult {
        /// It was delivered.
        Delivered = "told",
        /// The server rejected it or redirected it.
        Refused = "refused",
        /// There was no response, or the command failed.
        Failed = "failed",
        /// The supervisor ended before the delivery.
        Lost = "lost",
    }
);

string_enum!(
    /// The result of a request file.
    FileRequest {
        /// It became a task.
        Taken = "taken",
        /// It repeats a request that became a task before.
        Repeated = "repeated",
        /// It is a valid request that cannot be served; the result file says why.
        Refused = "refused",
        /// It is not a valid request; it was quarantined.
        Rejected = "rejected",
    }
);

string_enum!(
    /// The result of an answer file.
    FileAnswer {
        /// It allowed the request.
        Allowed = "allowed",
        /// It denied the request.
        Denied = "denied",
        /// It had no effect; it was quarantined.
        Refused = "refused",
    }
);

string_enum!(
    /// The kinds of tokens that agents report.
    TokenType {
        /// Tokens of the input.
        Input = "input",
        /// Tokens of the output.
        Output = "output",
    }
);

string_enum!(
    /// Why the model proxy refused a request, or a response failed.
    RouteRefusal {
        /// The slot reached its limit of connections.
        Connections = "connections",
        /// Its head is too long or has too many headers.
        Head = "head",
        /// It did not arrive in time.
        Slow = "slow",
        /// Two servers could parse it differently, or it asks for a tunnel.
        Smuggling = "smuggling",
        /// Its path is not plain: it has escapes, `..` or empty segments.
        Path = "path",
        /// Method and path are not on the route's allow list.
        NotAllowed = "not_allowed",
        /// A query parameter is not on the route's list.
        Query = "query",
        /// Its body is compressed.
        Encoding = "encoding",
        /// Its body is too long.
        BodySize = "body_size",
        /// The bodies of all routes together reached their limit.
        BodiesHeld = "bodies_held",
        /// Its body is not plain JSON.
        Body = "body",
        /// Its body names a tool that the provider runs.
        ServerTool = "server_tool",
        /// Its body names a file that the provider would fetch.
        RemoteContent = "remote_content",
        /// A budget ran out, or cannot be enforced because the request's model has no price.
        Budget = "budget",
        /// It leads to a host that the route does not name.
        Host = "host",
        /// The upstream answered with a redirect that is not followed.
        Redirect = "redirect",
        /// The upstream's response contained the key.
        KeyEcho = "key_echo",
        /// A push to another ref than the route allows, of several, or a deletion.
        PushRef = "push_ref",
        /// A push that is no fast-forward, as far as its commits show.
        PushForce = "push_force",
        /// A push whose pack contains a known secret, or a file that the mask hides.
        PushSecret = "push_secret",
        /// A push whose pack cannot be unpacked and searched.
        PushPack = "push_pack",
    }
);

string_enum!(
    /// The class of an upstream's response.
    RouteCode {
        /// Success.
        Ok = "2xx",
        /// Redirects, and not modified.
        Redirect = "3xx",
        /// Too many requests, overloaded (429, 529).
        Limited = "limited",
        /// Another client error (4xx).
        Client = "4xx",
        /// Another server error (5xx).
        Server = "5xx",
        /// No response.
        Failed = "failed",
    }
);

string_enum!(
    /// The kinds of tokens that a provider counts; the last three are parts of the first two.
    RouteTokens {
        /// Tokens of the input.
        Input = "input",
        /// Tokens of the output.
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
    /// The direction of bytes on an egress connection.
    EgressDirection {
        /// Out of the sandbox.
        Sent = "sent",
        /// Into the sandbox.
        Received = "received",
    }
);

string_enum!(
    /// How a provider's rate limit was detected.
    LimitSign {
        /// The status of a response on a route.
        Route = "route",
        /// The text of an error.
        Words = "words",
    }
);

string_enum!(
    /// The actors.
    ActorKind {
        /// A pool.
        Pool = "pool",
        /// A session.
        Session = "session",
        /// A channel.
        Channel = "channel",
    }
);

string_enum!(
    /// How long a permission request has waited for a person.
    ApprovalAge {
        /// Less than a minute.
        Minute = "below_1m",
        /// Less than ten minutes.
        TenMinutes = "below_10m",
        /// Less than an hour.
        Hour = "below_1h",
        /// An hour or more.
        More = "from_1h",
    }
);

impl ApprovalAge {
    /// The class of this waiting time.
    #[must_use]
    pub const fn of(waited: std::time::Duration) -> Self {
        match waited.as_secs() {
            0..60 => Self::Minute,
            60..600 => Self::TenMinutes,
            600..3600 => Self::Hour,
            _ => Self::More,
        }
    }
}

string_enum!(
    /// The method of an HTTP request.
    HttpMethod {
        /// `GET`
        Get = "GET",
        /// `HEAD`
        Head = "HEAD",
        /// `POST`
        Post = "POST",
        /// `PUT`
        Put = "PUT",
        /// `PATCH`
        Patch = "PATCH",
        /// `DELETE`
        Delete = "DELETE",
        /// Any other.
        Other = "other",
    }
);

string_enum!(
    /// The class of a response's status code.
    HttpCode {
        /// A change of protocols, to WebSocket.
        Informational = "1xx",
        /// Success.
        Success = "2xx",
        /// A redirect, or not modified.
        Redirect = "3xx",
        /// The request is refused.
        Client = "4xx",
        /// The supervisor cannot answer.
        Server = "5xx",
    }
);

string_enum!(
    /// What a stream of events is about.
    StreamKind {
        /// One session.
        Session = "session",
        /// The whole fleet.
        Fleet = "fleet",
        /// A chat.
        Chat = "chat",
        /// Pending approvals.
        Approvals = "approvals",
        /// A run.
        Run = "run",
        /// The stderr of a slot's child.
        Log = "log",
    }
);

string_enum!(
    /// Why a stream of events ended.
    StreamEnd {
        /// The client disconnected or does not read.
        Gone = "gone",
        /// The connection reached its maximum age; the client reconnects.
        Expired = "old",
        /// The supervisor is stopping.
        Stopping = "stopping",
        /// The journal cannot be read.
        Failed = "failed",
        /// What it is about has ended, and all of its events were sent.
        Complete = "complete",
    }
);

string_enum!(
    /// An operation on the store of file versions.
    StoreOperation {
        /// Reads rows or a version.
        Read = "read",
        /// Makes a version.
        Write = "write",
        /// Registers a workspace.
        Register = "register",
        /// Removes old versions.
        Sweep = "sweep",
    }
);

string_enum!(
    /// The result of an operation on the store.
    StoreResult {
        /// It was carried out.
        Ok = "ok",
        /// The request does not fit what is stored: a stale base, an unknown file.
        Refused = "refused",
        /// The database failed or did not answer.
        Failed = "failed",
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
            <$set>::ALL.iter().map(|word| word.as_str()).collect()
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
    /// [`Stream`]
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
    /// [`ApprovalAge`]
    approval_ages = ApprovalAge;
    /// [`HttpMethod`]
    http_methods = HttpMethod;
    /// [`HttpCode`]
    http_codes = HttpCode;
    /// [`StreamKind`]
    stream_kinds = StreamKind;
    /// [`StreamEnd`]
    stream_ends = StreamEnd;
    /// [`StoreOperation`]
    store_operations = StoreOperation;
    /// [`StoreResult`]
    store_results = StoreResult;
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

/// The event kinds of `marshal_events_total`.
#[must_use]
pub fn event_kinds() -> Vec<&'static str> {
    EventKind::METRIC_LABELS.to_vec()
}

/// The final decisions of a permission request.
#[must_use]
pub fn final_decisions() -> Vec<&'static str> {
    vec![Decision::Allow.as_str(), Decision::Deny.as_str()]
}
