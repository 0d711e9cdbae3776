//! What pools, sessions and channels send each other.
//!
//! Each is an actor with one mailbox, and these are all the ways in which it can be changed from
//! outside.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Stop;
use super::approver::ApproverReply;
use super::channel::stdout::StreamEnd;
use super::channel::{ChannelEnd, ClientUpdate, ExecStart};
use super::credit::CreditPermit;
use super::files::{ObservedFile, ObservedTree};
use super::handle::approvals::AnswerReply;
use super::handle::commands::{CommandReply, CommandRequest};
use super::handle::exec::PendingExec;
use super::handle::operator::OperatorResult;
use super::pool::{ActiveTask, ConversationMsg, OperatorRequest};
use super::session::{
    Attempt, CheckResult, IdleSession, LandingResult, OnDurable, PrepareError, PreparedSession,
    QuarantinedPath, StoredSession, Survey, Work, WorkspaceRecord,
};
use super::setting_reply::SettingReply;
use marshal_dialect::lifecycle::deadlines::DeadlineKind;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_dialect::{Command, SlashOutcome};
use marshal_journal::{ApprovalAnswer, Write};
use marshal_launch::{Child, ChildExit, SpawnError};
use marshal_model::{
    AgentInfo, ClientRequest, DelegateError, Event, ExitStatus, PermissionRequest,
    PermissionRequestId, PermissionRequestKey, RunId, SessionId, Setting, SpentBudget,
};
use marshal_policy::delegation::DelegateAnswer;
use marshal_proxy::egress_proxy::EgressRecord;
use marshal_proxy::tool_server::{Socket, ToolCallEvent};
use ractor::{ActorId, ActorRef};

/// The messages to a Pool.
#[derive(Debug)]
pub(crate) enum PoolMsg {
    /// Adds tasks, already durable, to the queue.
    Submit(Vec<ActiveTask>),
    /// A task that another task may depend on has ended.
    DependencyEnded,
    /// A slot's session reports a state change.
    SlotChanged {
        /// The slot's index.
        index: u16,
        /// The session that reports it; a late message of an earlier session is ignored.
        session: SessionId,
        /// The state change.
        change: SlotEvent,
        /// The process id, if a process was started.
        pid: Option<u32>,
    },
    /// A session ended its attempt at a task.
    AttemptEnded(Box<Attempt>),
    /// A session between tasks lost its child.
    ChildExited {
        /// The slot's index.
        index: u16,
        /// The session's id.
        session: SessionId,
        /// How the child ended.
        end: Box<ChannelEnd>,
        /// Whether the session can continue.
        idle_session: IdleSession,
    },
    /// A session between tasks is closed.
    SessionClosed {
        /// The slot's index.
        index: u16,
        /// The session's id.
        session: SessionId,
        /// The stored session, unchanged, if it could not be prepared before its first task.
        returned_session: Option<StoredSession>,
    },
    /// The probe task got an answer, so the provider accepts requests again.
    ProbeAnswered {
        /// The probe's session.
        session: SessionId,
    },
    /// An approval that a task may wait for has an answer, or has expired.
    ApprovalEnded {
        /// The approval, if it expired.
        expired: Option<PermissionRequestId>,
    },
    /// A pause may have ended.
    PauseEnded,
    /// A slot's backoff has ended.
    BackoffEnded {
        /// The slot's index.
        index: u16,
        /// The backoff's number; a manual restart invalidates an earlier one.
        round: u64,
    },
    /// Stops the slot's child, if one runs, clears its failures and unparks it.
    Restart {
        /// The slot's index.
        index: u16,
        /// Notified when the old child and all its descendants have ended.
        done: oneshot::Sender<()>,
    },
    /// Starts no new task of a run and cancels its running turns.
    Cancel(RunId),
    /// Start nothing any more, and leave what waits to the next start.
    Drain,
    /// The time of running turns after a drain is over.
    DrainEnded,
    /// Leave what of this run has not begun to a later start.
    Suspend(RunId),
    /// A run reached a bound: none of its tasks begins any more.
    RunLimitReached {
        /// The run's id.
        run: RunId,
        /// The detail of its queued tasks, which end now.
        why: String,
        /// Whether its running tasks are cancelled too.
        cancels: bool,
    },
    /// A task ended in a run that limits its concurrent tasks, so another one may begin.
    JobFreed,
    /// A session has ended, with or without a report.
    SessionGone {
        /// The session's actor.
        who: ActorId,
        /// The reason, used if the session sent no report.
        why: &'static str,
    },
    /// An order of an operator.
    Operator {
        /// The order.
        order: OperatorRequest,
        /// Receives the result.
        done: oneshot::Sender<OperatorResult>,
    },
    /// A message of a client for its conversation.
    Conversation(ConversationMsg),
    /// Answers, so that somebody sees that the pool moves.
    Ping(oneshot::Sender<()>),
    /// Stops every child, then the pool.
    Stop(Stop),
}

/// The address of a Session.
pub(crate) type SessionRef = ActorRef<SessionMsg>;

/// An event from a Channel, in the order in which it happened.
#[derive(Debug)]
pub(crate) enum ChannelEvent {
    /// The process started.
    Started {
        /// The host's process id.
        pid: u32,
        /// How its resource limits are enforced, in one line.
        limits: Option<String>,
        /// The layers of its sandbox, a few words each.
        sandbox_layers: Vec<String>,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The prompt was written: the turn has begun.
    PromptSent,
    /// An event for the journal.
    Event(Event),
    /// The agent requests a permission.
    PermissionRequest(PermissionRequest),
    /// The agent makes a request of its client.
    ClientRequest {
        /// The permission request to record.
        permission_request: Box<PermissionRequest>,
        /// The request to evaluate.
        request: ClientRequest,
    },
    /// The agent withdrew a request.
    Withdrawn(PermissionRequestKey),
    /// A setting was applied, or the reason why not.
    SettingApplied(Result<(), String>),
    /// A command of the agent's own ended.
    CommandEnded(SlashOutcome),
    /// The dialect cancelled the turn, because it had no other way to deliver a denial.
    Cancelling,
    /// The agent started a new session of its own.
    SessionCleared,
    /// The silence or turn deadline expired.
    DeadlineExpired(DeadlineKind),
}

/// The messages of a Session.
#[derive(Debug)]
pub(crate) enum SessionMsg {
    /// Home and workspace are ready, or the preparation failed.
    Prepared(Box<Result<PreparedSession, PrepareError>>),
    /// The Channel's events; `credit` drops when all of them are durable.
    Batch {
        /// The events.
        items: Vec<ChannelEvent>,
        /// The credits of the bytes that they came from.
        credit: Option<CreditPermit>,
    },
    /// The Channel has ended.
    ChannelEnded(Box<ChannelEnd>),
    /// A commit is durable.
    Durable {
        /// The steps that waited for it.
        after: Vec<OnDurable>,
        /// Bytes of the events in it.
        bytes: u64,
    },
    /// The journal rejected a commit: an internal fault, and the end of the session.
    Rejected(String),
    /// The retry delay after a refused commit has passed.
    Flush,
    /// The check ended.
    CheckEnded(Box<CheckResult>),
    /// The task's work landed, or did not.
    LandingEnded(Box<LandingResult>),
    /// File versions that were found after a tool call.
    FilesObserved(Vec<ObservedFile>),
    /// What was found at the end of a turn; the turn's end waits for it.
    TreeSettled(Option<Box<(ObservedTree, Vec<ObservedFile>)>>),
    /// The turn's end has waited long enough.
    ReleaseTurnEnd,
    /// The survey of the workspace is complete.
    WorkspaceSurveyed(Box<Survey>),
    /// The client of a conversation answered an approval.
    ClientAnswered {
        /// The approval.
        request_id: PermissionRequestId,
        /// The client's reply.
        reply: ApproverReply,
    },
    /// An approver answered an approval.
    ApproverAnswered {
        /// The approval.
        request_id: PermissionRequestId,
        /// The approver's answer.
        answer: Box<ApprovalAnswer>,
        /// Where the result is sent.
        reply: AnswerReply,
    },
    /// A client changes a setting of the session.
    Set {
        /// The setting and its new value.
        setting: Setting,
        /// Where the result is sent.
        reply: SettingReply,
    },
    /// A client sends one of the agent's own commands.
    Command {
        /// The command.
        order: Arc<CommandRequest>,
        /// Where the result is sent.
        reply: CommandReply,
    },
    /// A client runs a command in the agent's sandbox.
    Exec(Box<PendingExec>),
    /// A budget is spent, and that ends the turn.
    BudgetSpent {
        /// The budget.
        spent: SpentBudget,
        /// The turn, as the spend tracker numbers them; a message about an earlier turn is ignored.
        turn: u64,
    },
    /// An approval expired.
    ApprovalExpired(PermissionRequestId),
    /// The pool's delegate decided, or failed to.
    DelegateAnswered {
        /// The request.
        request_id: PermissionRequestId,
        /// The delegate's answer.
        answer: Result<DelegateAnswer, DelegateError>,
    },
    /// The pool's delegate decided about an approved request, or failed to.
    DelegateConfirmed {
        /// The approval.
        request_id: PermissionRequestId,
        /// The delegate's answer; of several requests a denial, if there is one.
        answer: Result<DelegateAnswer, DelegateError>,
    },
    /// The home or copy exceeds its limit.
    DiskLimitExceeded(String),
    /// The session's next task. Only for a session that is between tasks.
    NextTask(Box<Work>),
    /// The state of the workspace before that task.
    WorkspaceRecorded(Box<Result<WorkspaceRecord, String>>),
    /// Load the session in a new child now, without a task.
    Load,
    /// Close the session: no further task comes. Only for a session that is between tasks.
    Close {
        /// Whether it ends for good, so that no later start of the supervisor loads it.
        for_good: bool,
        /// Whether its child is killed, without the stop ladder.
        now: bool,
    },
    /// The session's files on disk are cleaned up.
    CleanedUp(Result<Vec<QuarantinedPath>, String>),
    /// Append an event of the supervisor's own, in one commit with further rows.
    AppendEvent {
        /// The event.
        event: Box<Event>,
        /// The rows.
        rows: Vec<Write>,
        /// Told when the commit is durable; dropped when that is unknown.
        done: oneshot::Sender<()>,
    },
    /// Cancel the running turn, and with it the task.
    Cancel {
        /// The reason, for people.
        why: String,
    },
    /// Cancel like that, but let a running tool call end first.
    Interrupt,
    /// The grace period of a tool call has passed; the number of the task.
    GraceEnded(u64),
    /// The transcript for an agent that does not remember it, or why it cannot be read.
    TranscriptRead(Result<String, String>),
    /// The session has been idle for `timeouts.idle` since the task of that number.
    IdleTimeout(u64),
    /// Stop the session's child if the prompt of its task is not accepted yet.
    Drain,
    /// Stop the session's child.
    Stop {
        /// Whether it is killed at once, without the stop ladder.
        now: bool,
    },
}

impl SessionMsg {
    /// [`SessionMsg::Cancel`] with a reason.
    pub(crate) fn cancel(why: &str) -> Self {
        Self::Cancel {
            why: why.to_owned(),
        }
    }
}

/// The address of a Channel.
pub(crate) type ChannelRef = ActorRef<ChannelMsg>;

/// The messages of a Channel.
#[derive(Debug)]
pub(crate) enum ChannelMsg {
    /// The child was started, or failed to start.
    Spawned(Box<Result<Child, SpawnError>>),
    /// Whole lines from stdout, with the credits for them.
    Frames {
        /// The lines, without newlines.
        batch: Vec<Bytes>,
        /// Their credits.
        credit: CreditPermit,
    },
    /// Output arrived, but no whole line yet.
    PartialLine,
    /// End of stdout; sent after the last line.
    StreamEnd(StreamEnd),
    /// End of stderr.
    StderrEnd,
    /// A message was written to stdin completely.
    Written {
        /// When it was queued.
        queued: Instant,
    },
    /// Writing to the child's stdin failed.
    StdinFailed(String),
    /// The process and all its descendants have ended.
    Ended(Option<ChildExit>),
    /// A command from the session to the agent.
    Command(Command),
    /// Stop the child by the stop ladder.
    Stop,
    /// Stop it the same way, because the session is idle.
    Unload,
    /// Kill the child and all its descendants now.
    Kill,
    /// An update on a client request of the agent.
    ClientUpdate(Box<ClientUpdate>),
    /// Start a command of a client in the sandbox.
    StartExec(Box<ExecStart>),
    /// Such a command has ended, or its client has gone and it is being killed.
    ExecEnded {
        /// Its id.
        terminal: String,
        /// How it ended, if that is known.
        status: Option<ExitStatus>,
    },
    /// The socket of the engine tools is bound.
    ToolSocket(Socket),
    /// Programs of the agent are new on record.
    ProgramsRecorded(Vec<Event>),
    /// A tool call arrived or was abandoned.
    ToolCallEvent(Box<ToolCallEvent>),
    /// Connections to hosts outside have ended.
    Egress(Box<EgressRecord>),
    /// A deadline may have passed.
    Tick,
}
