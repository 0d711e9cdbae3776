//! Session: one conversation, from its workspace to its last durable event. It is one attempt at a
//! task or, with `session = "slot"`, task after task through several children.
//!
//! Owns the order of events (sequence numbers), the running turn, and the answer to every
//! permission request. Stamps and journals what the Channel reports. What must be durable first
//! happens only after it is durable. Must not know how a child is started or stopped, nor which
//! task comes next.

mod agent_link;
mod attachments;
mod budget;
mod child_start;
mod commands;
mod disk_usage;
mod disk_usage_monitor;
mod ending;
mod environment;
mod file_observation;
mod git_listing;
mod graceful_interrupt;
mod masking;
mod next_task;
mod outbox;
pub(crate) mod outcome;
mod overlay;
mod permissions;
mod prepare;
mod prepare_error;
mod protection;
mod rate_limit;
mod sandbox_builder;
mod sandbox_gaps;
mod settings;
mod ssh;
mod state;
mod supervisor_events;
mod tally;
mod task_run;
mod transcript;
mod tree_observer;
mod work;

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use ractor::ActorRef;

pub(crate) use attachments::PromptFiles;
pub(crate) use disk_usage_monitor::DiskUsageMonitor;
pub use ending::PROMPT_NOT_WRITTEN;
pub use graceful_interrupt::STOPPED_BY_PERSON;
pub(crate) use prepare::branch::recover_branch;
pub(crate) use prepare::{PrepareError, PreparedSession, WORKSPACE_INSIDE};
pub(crate) use protection::ProtectedRecords;
pub(crate) use rate_limit::RateLimit;
pub(crate) use sandbox_gaps::current_sandbox_gaps;
pub(crate) use tally::Tally;
pub(crate) use work::{Attempt, CheckResult, IdleSession, Work, discard_session};

use agent_link::{AgentLink, Resumption};
use outbox::{OnDurable, Outbox};
use permissions::{ApprovalWaits, PermissionSettings, Permissions};
use state::{Phase, SessionState, SessionWorkspace};
use task_run::TaskRun;
use tree_observer::{TreeRecord, TreeTurn};

use super::approvals::AnswerReply;
use super::approver::{ApprovalSender, ApproverReply};
use super::channel::ChannelEnd;
use super::commands::{CommandReply, CommandRequest};
use super::credit::CreditPermit;
use super::files::{ObservedFile, ObservedTree};
use super::live_actor::{ActorKind, LiveActor};
use super::mailbox::{Address, Mailbox, mailbox};
use super::pool::PoolMsg;
use super::setting_reply::SettingReply;
use super::setup::{PoolShared, Shared};
use marshal_dialect::lifecycle::deadlines::DeadlineKind;
use marshal_dialect::{Attachment, SlashOutcome};
use marshal_journal::{ApprovalAnswer, Write};
use marshal_model::{
    AgentInfo, ClientRequest, DelegateError, Event, PermissionRequest, PermissionRequestId,
    PermissionRequestKey, RunId, SessionId, Setting, SpentBudget, UntrustedText,
};
use marshal_policy::delegation;
use marshal_telemetry::log::session_span;

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
    /// File versions that were found after a tool call.
    FilesObserved(Vec<ObservedFile>),
    /// What was found at the end of a turn; the turn's end waits for it.
    TreeSettled(Option<Box<(ObservedTree, Vec<ObservedFile>)>>),
    /// The turn's end has waited long enough.
    ReleaseTurnEnd,
    /// The survey of the workspace is complete.
    WorkspaceSurveyed(Box<work::Survey>),
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
        answer: Result<delegation::DelegateAnswer, DelegateError>,
    },
    /// The pool's delegate decided about an approved request, or failed to.
    DelegateConfirmed {
        /// The approval.
        request_id: PermissionRequestId,
        /// The delegate's answer; of several requests a denial, if there is one.
        answer: Result<delegation::DelegateAnswer, DelegateError>,
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
    CleanedUp(Result<Vec<protection::QuarantinedPath>, String>),
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

/// The state of the workspace before a task.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceRecord {
    /// The tree that the agent writes.
    pub(crate) tree: TreeRecord,
    /// The files of the prompt.
    pub(crate) attachments: Arc<[Attachment]>,
}

/// The arguments of a new Session.
pub(crate) struct SessionArgs {
    pub(crate) pool_ref: ActorRef<PoolMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) work: Work,
    /// The session that could not be loaded again, and why, if this one replaces it.
    pub(crate) replaces: Option<(SessionId, String)>,
    /// The stored state of an earlier start of the supervisor, or of an earlier client.
    pub(crate) stored: Option<StoredSession>,
    /// Set for a client's conversation.
    pub(crate) conversation: Option<ConversationArgs>,
    /// Set for a session without a task: told when its child is ready.
    pub(crate) child_ready: Option<oneshot::Sender<()>>,
}

/// What makes a session a client's conversation.
#[derive(Debug)]
pub(crate) struct ConversationArgs {
    /// The run whose tasks are its prompts.
    pub(crate) run: RunId,
    /// The agent's working directory, relative to the workspace's root.
    pub(crate) within: PathBuf,
    /// Where approval requests are sent.
    pub(crate) approver: ApprovalSender,
    /// Set for a chat: an agent that lost its memory gets the transcript.
    pub(crate) chat: Option<ChatArgs>,
}

/// The settings of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChatArgs {
    /// The model, instead of the pool's.
    pub(crate) model: Option<String>,
}

/// What the journal knows of a session that an earlier start of the supervisor began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) session: SessionId,
    /// The agent's own id of the session, if the session can be loaded by it.
    pub(crate) agent_session: Option<UntrustedText>,
    /// The sequence number of its last durable event.
    pub(crate) last_seq: u64,
    /// Bytes of event bodies that it has journalled.
    pub(crate) bytes: u64,
    /// Whether it had a prompt: an agent may store nothing of a session before that.
    pub(crate) prompted: bool,
    /// Whether its agent lost its memory and has not got the transcript yet.
    pub(crate) forgot: bool,
}

/// The address of a Session.
pub(crate) type SessionRef = Address<SessionMsg>;

/// Starts a session.
pub(crate) fn start(args: SessionArgs) -> SessionRef {
    let (myself, mailbox) = mailbox();
    tokio::spawn(run(Box::new(args), myself.clone(), mailbox));
    myself
}

/// Runs until the session has ended, or its pool has.
async fn run(args: Box<SessionArgs>, myself: SessionRef, mut mailbox: Mailbox<SessionMsg>) {
    let _alive = LiveActor::new(ActorKind::Session);
    let mut state = new_state(*args, myself);
    while let Some(message) = poll_fn(|context| mailbox.poll_next(context)).await {
        let span = session_span(&state.work.session, &state.work.slot);
        let is_over = span.in_scope(|| state.handle_message(message));
        state.flush();
        if is_over {
            return;
        }
    }
}

/// The first event of a task's session that replaces one which could not be loaded.
fn session_replaced_event(instead_of: SessionId, why: String) -> Event {
    Event::SessionFresh {
        instead_of,
        why,
        history_omitted: false,
    }
}

fn new_state(args: SessionArgs, myself: SessionRef) -> Box<SessionState> {
    let SessionArgs {
        pool_ref,
        shared,
        pool,
        work,
        replaces: instead_of,
        stored,
        conversation: talk,
        child_ready: warm,
    } = args;
    let has_task = warm.is_none();
    let resumption = stored.as_ref().map(Resumption::from_stored);
    let mut state = Box::new(SessionState {
        conversation: talk,
        task_number: 0,
        task: has_task.then(TaskRun::default),
        phase: Phase::Preparing,
        workspace: SessionWorkspace {
            prepared: None,
            preparing: CancellationToken::new(),
            was_stored: stored.is_some(),
            oversized: false,
        },
        agent: AgentLink {
            ready: warm,
            resumption: resumption.unwrap_or_default(),
            ..AgentLink::default()
        },
        permissions: Permissions::new(PermissionSettings::new(&pool, &work.session)),
        waits: ApprovalWaits::default(),
        budget: budget::BudgetCounters::open(&pool, &work, &myself),
        outbox: Outbox::new(
            Arc::clone(&shared),
            work.slot.clone(),
            work.session.clone(),
            has_task.then(|| work.task.clone()),
        ),
        myself,
        pool_ref,
        shared,
        pool,
        work,
    });
    if let Some(stored) = stored {
        state.outbox.resume_after(stored.last_seq, stored.bytes);
    } else if state.conversation.is_none() {
        // A conversation's row exists since it was opened.
        state.write_session_begun();
        if let Some((instead_of, why)) = instead_of {
            state
                .outbox
                .push_event(session_replaced_event(instead_of, why));
        }
    }
    state.flush();
    spawn_prepare(&state);
    state
}

/// Prepares what the session needs in the background; the result is a message.
fn spawn_prepare(state: &SessionState) {
    let to = state.myself.clone();
    let (shared, pool) = (Arc::clone(&state.shared), Arc::clone(&state.pool));
    let order = state.prepare_request();
    tokio::spawn(async move {
        let prepared = prepare::prepare(&shared, &pool, order).await;
        let _ = to.send_message(SessionMsg::Prepared(Box::new(prepared)));
    });
}

impl Drop for SessionState {
    /// The last message, also of a session that failed: it frees the pool from waiting for a
    /// report.
    fn drop(&mut self) {
        self.budget.spend.close(false);
        let why = if std::thread::panicking() {
            tracing::error!(session = %self.work.session, "a session failed");
            "the session failed"
        } else {
            "the session ended without a report"
        };
        let _ = self.pool_ref.send_message(PoolMsg::SessionGone {
            who: self.myself.clone(),
            why,
        });
    }
}
