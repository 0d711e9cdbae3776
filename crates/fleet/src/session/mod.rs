//! Session: one conversation, from its workspace to its last durable event. It is one attempt at a
//! task or, with `session = "slot"`, task after task through several children.
//!
//! Owns the order of events (sequence numbers), the running turn, and the answer to every
//! permission request. Stamps and journals what the Channel reports. What must be durable first
//! happens only after it is durable. Must not know how a process is
//! started or stopped, nor which task comes next.

mod exec;
mod lifecycle;
mod outbox;
mod permissions;
mod state;
mod supervisor_events;
mod turn;
mod workspace;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use ractor::ActorRef;

pub use lifecycle::ending::PROMPT_NOT_WRITTEN;
pub(crate) use lifecycle::outcome;
pub(crate) use lifecycle::work::{
    Attempt, CheckResult, IdleSession, LandingResult, Survey, Work, discard_session,
};
pub(crate) use outbox::OnDurable;
pub use turn::graceful_interrupt::STOPPED_BY_PERSON;
pub(crate) use turn::rate_limit::RateLimit;
pub(crate) use turn::tally::Tally;
pub(crate) use workspace::attachments::PromptFiles;
pub(crate) use workspace::branch_push::open_pull_request;
pub use workspace::branch_push::{PullRequestError, PullRequestOrder, PushedBranch};
pub(crate) use workspace::disk_usage_monitor::DiskUsageMonitor;
pub use workspace::landing::{LandRequest, Landing, LandingError, NotLanded, OwnCheck};
pub(crate) use workspace::landing::{Landings, land_bundles};
pub(crate) use workspace::prepare::branch::{ReturnedBranches, recover_branches};
pub(crate) use workspace::prepare::clone_setup::CloneSetups;
pub(crate) use workspace::prepare::push::PackInspector;
pub(crate) use workspace::prepare::{PrepareError, PreparedSession, WORKSPACE_INSIDE};
pub(crate) use workspace::program_clone::ProgramClones;
pub(crate) use workspace::protection::{ProtectedRecords, QuarantinedPath};
pub(crate) use workspace::sandbox_gaps::current_sandbox_gaps;

use lifecycle::agent_link::{AgentLink, Resumption};
use outbox::Outbox;
use permissions::{ApprovalWaits, PermissionSettings, Permissions};
use state::{Phase, SessionState, SessionWorkspace};
use turn::budget::BudgetCounters;
use turn::task_run::TaskRun;
use workspace::tree_observer::{TreeRecord, TreeTurn};

use super::approver::ApprovalSender;
use super::channel::ChannelEnd;
use super::live_actor::{ActorKind, LiveActor};
use super::setup::{PoolShared, Shared};
use crate::messages::{PoolMsg, SessionMsg, SessionRef};
use marshal_dialect::Attachment;
use marshal_model::{Event, RunId, SessionId, UntrustedText};
use marshal_telemetry::log::session_span;
use ractor::{Actor, ActorProcessingErr, SupervisionEvent};

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

/// Starts a session, linked to its pool.
pub(crate) fn start(args: SessionArgs) -> SessionRef {
    let pool = args.pool_ref.get_cell();
    let spawned = ractor::ActorRuntime::spawn_linked_instant(None, Session, Box::new(args), pool);
    let Ok((actor, _)) = spawned else {
        unreachable!("an actor without a name can always be spawned")
    };
    actor
}

/// The actor; its data is in [`SessionState`].
struct Session;

impl Actor for Session {
    type Msg = SessionMsg;
    type State = (Box<SessionState>, LiveActor);
    type Arguments = Box<SessionArgs>;

    async fn pre_start(
        &self,
        myself: ActorRef<SessionMsg>,
        args: Box<SessionArgs>,
    ) -> Result<Self::State, ActorProcessingErr> {
        let alive = LiveActor::new(ActorKind::Session);
        Ok((new_state(*args, myself), alive))
    }

    async fn handle(
        &self,
        myself: ActorRef<SessionMsg>,
        message: SessionMsg,
        (state, _): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let span = session_span(&state.work.session, &state.work.slot);
        let is_over = span.in_scope(|| state.handle_message(message));
        state.flush();
        if is_over {
            myself.stop(None);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SessionMsg>,
        event: SupervisionEvent,
        (state, _): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // A channel that ends has reported its end; one that fails has not. What it sent before may
        // still wait.
        if let SupervisionEvent::ActorFailed(_, error) = event {
            tracing::error!(session = %state.work.session, %error, "a channel failed");
            let end = Box::new(ChannelEnd::failed(&error.to_string()));
            myself.send_message(SessionMsg::ChannelEnded(end))?;
        }
        Ok(())
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
        replaces,
        stored,
        conversation,
        child_ready,
    } = args;
    let has_task = child_ready.is_none();
    let resumption = stored.as_ref().map(Resumption::from_stored);
    let mut state = Box::new(SessionState {
        conversation,
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
            ready: child_ready,
            resumption: resumption.unwrap_or_default(),
            ..AgentLink::default()
        },
        permissions: Permissions::new(PermissionSettings::new(&pool, &work.session)),
        waits: ApprovalWaits::default(),
        budget: BudgetCounters::open(&pool, &work, &myself),
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
        if let Some((instead_of, why)) = replaces {
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
        let prepared = workspace::prepare::prepare(&shared, &pool, order).await;
        let _ = to.send_message(SessionMsg::Prepared(Box::new(prepared)));
    });
}

impl Drop for SessionState {
    fn drop(&mut self) {
        self.budget.spend.close(false);
    }
}
