//! Session: one conversation, from its workspace to its last durable event: one attempt at a task,
//! or, with `session = "slot"`, task after task, through several children.
//!
//! Owns the order of events (sequence numbers), the running turn, and the answer to every approval.
//! Stamps what the Channel reports, journals it, and acts on what must be durable first only when
//! it is. Must not know how a child is started or stopped, nor which task comes next.

mod approval_answers;
mod approvals;
mod attachments;
mod audit_record;
mod budget;
mod child_start;
mod client;
mod commands;
mod delegate_confirmation;
mod delegated_requests;
mod disk_usage;
mod disk_usage_monitor;
mod ending;
mod engine_tools;
mod environment;
mod evaluation;
mod evaluation_limits;
mod file_observation;
mod git_listing;
mod graceful_interrupt;
mod masking;
mod next_task;
mod outbox;
pub(crate) mod outcome;
mod overlay;
mod permission_requests;
mod policy_snapshot;
mod prepare;
mod prepare_error;
mod prior_answers;
mod rate_limit;
mod sandbox_builder;
mod sandbox_gaps;
mod settings;
mod shell_directory;
mod ssh;
mod state;
mod supervisor_events;
mod tally;
mod tool_calls;
mod transcript;
mod work;

use std::collections::{BTreeMap, HashMap};
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
pub(crate) use prepare::{PrepareError, PreparedSession, WORKSPACE_INSIDE};
pub(crate) use rate_limit::RateLimit;
pub(crate) use sandbox_gaps::current_sandbox_gaps;
pub(crate) use tally::Tally;
pub(crate) use work::{Attempt, CheckResult, IdleSession, Work, discard_session};

use outbox::{OnDurable, Outbox};
use state::{Phase, SessionState};
use tool_calls::OpenRequests;

use super::approvals::AnswerReply;
use super::approver::{ApprovalSender, ApproverReply};
use super::channel::ChannelEnd;
use super::commands::{CommandReply, CommandRequest};
use super::credit::CreditPermit;
use super::files::ObservedFile;
use super::mailbox::{Address, Mailbox, mailbox};
use super::pool::PoolMsg;
use super::setting_reply::SettingReply;
use super::setup::{PoolShared, Shared};
use marshal_config::SessionScope;
use marshal_dialect::lifecycle::deadlines::DeadlineKind;
use marshal_dialect::{Attachment, SlashOutcome};
use marshal_journal::{ApprovalAnswer, Write};
use marshal_model::{
    AgentInfo, ClientRequest, DelegateError, Event, PermissionRequest, PermissionRequestId,
    PermissionRequestKey, RunId, SessionId, Setting, SpentBudget, UntrustedText,
};
use marshal_policy::delegation;
use marshal_sandbox::workspace::Manifest;
use marshal_telemetry::log::session_span;

/// What a Channel reports, in the order in which it happened.
#[derive(Debug)]
pub(crate) enum ChannelEvent {
    /// The process runs.
    Started {
        /// The host's process id.
        pid: u32,
        /// By what its limits are held, in one line.
        limits: Option<String>,
        /// Which walls stand around it, a few words each.
        sandbox_layers: Vec<String>,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The prompt is on its way: from here on the turn has begun.
    PromptSent,
    /// Something happened.
    Event(Event),
    /// The agent asks.
    PermissionRequest(PermissionRequest),
    /// The agent has its client do something.
    ClientRequest {
        /// What is put on record.
        permission_request: Box<PermissionRequest>,
        /// What is judged.
        request: ClientRequest,
    },
    /// The agent withdrew a request.
    Withdrawn(PermissionRequestKey),
    /// What was to be set is set, or why it is not.
    SettingApplied(Result<(), String>),
    /// What came of a command of the agent's own.
    CommandEnded(SlashOutcome),
    /// The dialect cancelled the turn: a denial could not be told otherwise.
    Cancelling,
    /// The agent began a new session of its own.
    SessionCleared,
    /// The turn was silent, or is over its time.
    DeadlineExpired(DeadlineKind),
}

/// What a Session hears.
#[derive(Debug)]
pub(crate) enum SessionMsg {
    /// Home and workspace are ready, or cannot be had.
    Prepared(Box<Result<PreparedSession, PrepareError>>),
    /// The Channel reports; `hold` drops when all of it is durable.
    Batch {
        /// What happened.
        items: Vec<ChannelEvent>,
        /// The credits of the bytes that said so.
        credit: Option<CreditPermit>,
    },
    /// The Channel is over.
    ChannelEnded(Box<ChannelEnd>),
    /// A commit is durable.
    Durable {
        /// What waited for it.
        after: Vec<OnDurable>,
        /// Bytes of the events in it.
        bytes: u64,
    },
    /// The journal left a commit out: a fault of this program, and the end of the session.
    Rejected(String),
    /// The journal refused a commit: look again.
    Flush,
    /// The check ended.
    CheckEnded(Box<CheckResult>),
    /// Files that a call named are versions now.
    FilesObserved(Vec<ObservedFile>),
    /// What changed in the workspace is known.
    WorkspaceSurveyed(Box<work::Survey>),
    /// A person decided.
    ClientAnswered {
        /// Which ask.
        request_id: PermissionRequestId,
        /// What came back.
        reply: ApproverReply,
    },
    /// A person decided, of the people of the queue.
    ApproverAnswered {
        /// Which question.
        request_id: PermissionRequestId,
        /// What they say.
        answer: Box<ApprovalAnswer>,
        /// Who waits to hear what came of it.
        reply: AnswerReply,
    },
    /// Something is to be set in the session.
    Set {
        /// What.
        setting: Setting,
        /// Who waits for the answer.
        reply: SettingReply,
    },
    /// Somebody gives the agent one of its own commands.
    Command {
        /// Which.
        order: Arc<CommandRequest>,
        /// Who waits for the answer.
        reply: CommandReply,
    },
    /// A budget is spent whose end is the turn's, too.
    BudgetSpent {
        /// Which.
        spent: SpentBudget,
        /// In which turn, as the purse numbers them: a late word of an earlier one is no news.
        turn: u64,
    },
    /// Nobody decided in time.
    ApprovalExpired(PermissionRequestId),
    /// The pool's delegate decided, or gave no decision.
    DelegateAnswered {
        /// About which request.
        request_id: PermissionRequestId,
        /// What it said.
        answer: Result<delegation::DelegateAnswer, DelegateError>,
    },
    /// The same about what a person allowed.
    DelegateConfirmed {
        /// Of which question.
        request_id: PermissionRequestId,
        /// What it said: of several requests a denial, if there is one.
        answer: Result<delegation::DelegateAnswer, DelegateError>,
    },
    /// Home or copy is larger than it may be.
    DiskLimitExceeded(String),
    /// The session's next task. Only for a session that is between tasks.
    NextTask(Box<Work>),
    /// What the workspace holds before that task.
    WorkspaceRecorded(Result<WorkspaceRecord, String>),
    /// Load the session in a new child now, without a task.
    Load,
    /// No further task comes. Only for a session that is between tasks.
    Close {
        /// It will not be taken up by a later start of the supervisor either.
        for_good: bool,
        /// Its child is killed, without the ladder.
        now: bool,
    },
    /// What is left of the session on the disk is settled.
    CleanedUp,
    /// An event of the supervisor's own, in one commit with what goes with it.
    AppendEvent {
        /// What is told.
        event: Box<Event>,
        /// What goes with it.
        rows: Vec<Write>,
        /// Told when it is durable; dropped when nobody knows whether it will be.
        done: oneshot::Sender<()>,
    },
    /// End the running turn, and with it the task.
    Cancel,
    /// The same for a person, who lets a running tool call end first.
    Interrupt,
    /// The tool calls of the task of that number were waited for long enough.
    GraceEnded(u64),
    /// What was said before, for an agent that does not remember it, or why it cannot be read.
    TranscriptRead(Result<String, String>),
    /// The session has waited for its next task for as long as its child is kept, since the task
    /// of that number.
    IdleTimeout(u64),
    /// End the session's child: `true` at once, `false` by the stop ladder.
    Stop {
        /// No ladder.
        now: bool,
    },
}

/// What the workspace holds before a task.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceRecord {
    /// How it looks, where it can change.
    pub(crate) before: Option<Manifest>,
    /// The files that belong to the prompt.
    pub(crate) attachments: Arc<[Attachment]>,
}

/// What a Session is started with.
pub(crate) struct SessionArgs {
    pub(crate) pool_ref: ActorRef<PoolMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) work: Work,
    /// The session that could not be loaded again, and why, if this one takes its place.
    pub(crate) replaces: Option<(SessionId, String)>,
    /// What an earlier start of the supervisor left of it, or an earlier client.
    pub(crate) stored: Option<StoredSession>,
    /// It is a client's conversation.
    pub(crate) conversation: Option<ConversationArgs>,
    /// It has no task yet; told when its child is ready.
    pub(crate) child_ready: Option<oneshot::Sender<()>>,
}

/// What makes a session a client's conversation.
#[derive(Debug)]
pub(crate) struct ConversationArgs {
    /// The run whose tasks are its prompts.
    pub(crate) run: RunId,
    /// The directory that the agent works in, from the workspace's root.
    pub(crate) within: PathBuf,
    /// Where asks go.
    pub(crate) approver: ApprovalSender,
    /// It is a chat: what its agent has forgotten is told to it.
    pub(crate) chat: Option<ChatArgs>,
}

/// What is a chat's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChatArgs {
    /// Its model, instead of the pool's.
    pub(crate) model: Option<String>,
}

/// What is known of a session that an earlier start of the supervisor began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) session: SessionId,
    /// The agent's own id of it, as far as it can be loaded by that.
    pub(crate) agent_session: Option<UntrustedText>,
    /// Its durable end.
    pub(crate) last_seq: u64,
    /// What it has journalled, in bytes of event bodies.
    pub(crate) bytes: u64,
    /// It had a prompt: an agent may keep nothing of a session before.
    pub(crate) prompted: bool,
    /// Its agent forgot what was said before, and was not told it again.
    pub(crate) forgot: bool,
}

/// Where a Session is told things.
pub(crate) type SessionRef = Address<SessionMsg>;

/// Begins one conversation.
pub(crate) fn start(args: SessionArgs) -> SessionRef {
    let (myself, mailbox) = mailbox();
    tokio::spawn(run(Box::new(args), myself.clone(), mailbox));
    myself
}

/// Runs until the session is over, or its pool is.
async fn run(args: Box<SessionArgs>, myself: SessionRef, mut mailbox: Mailbox<SessionMsg>) {
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

/// What a session of a task says first that begins where another one could not go on.
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
    let mut state = Box::new(SessionState {
        scope: match talk {
            Some(_) => SessionScope::Slot,
            None => pool.config.session,
        },
        conversation: talk,
        pending: BTreeMap::new(),
        delegated: BTreeMap::new(),
        released: None,
        turn_answers: HashMap::new(),
        // One that forgot begins anew, and is told what was said.
        agent_session: stored
            .as_ref()
            .filter(|of| !of.forgot)
            .and_then(|of| of.agent_session.clone()),
        was_stored: stored.is_some(),
        loading: false,
        loads_failed: 0,
        loadable: true,
        has_task,
        child_ready: warm,
        settings: settings::SessionSettings::default(),
        commands: commands::CommandState::default(),
        prompted: stored.as_ref().is_some_and(|of| of.prompted),
        transcript_recall: transcript::TranscriptRecall::default(),
        grace: graceful_interrupt::ToolGrace::default(),
        task_number: 0,
        idle_timer: None,
        oversized: false,
        not_loaded: None,
        gives_back: false,
        preparing: CancellationToken::new(),
        accepted: false,
        closing: None,
        outbox: Outbox::new(
            Arc::clone(&shared),
            work.slot.clone(),
            work.session.clone(),
            has_task.then(|| work.task.clone()),
        ),
        requests: OpenRequests::default(),
        tally: Tally::default(),
        phase: Phase::Preparing,
        prepared: None,
        channel: None,
        budget: budget::BudgetCounters::open(&pool, &work, &myself),
        rate_limit_watch: Arc::default(),
        limit: None,
        denials: marshal_dialect::PendingDenials::default(),
        turn: None,
        turn_detail: None,
        turn_began: None,
        ending: None,
        end: None,
        check: None,
        measured: None,
        checking: None,
        broken: false,
        over_quota: false,
        stopped: false,
        begun: false,
        cancelled: false,
        failure: None,
        myself,
        pool_ref,
        shared,
        pool,
        work,
    });
    if let Some(stored) = stored {
        state.outbox.resume_after(stored.last_seq, stored.bytes);
    } else if state.conversation.is_none() {
        // A conversation has its row since it was opened.
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

/// Has what the session needs made; it is told when that is done.
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
    /// The last word, also of a session that failed: its pool knows what was not said before.
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
