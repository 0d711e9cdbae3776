//! Session: one conversation, from its workspace to its last durable event: one attempt at a task,
//! or, with `session = "slot"`, task after task, through several children.
//!
//! Owns the order of events (sequence numbers), the running turn, and the answer to every ask.
//! Stamps what the Channel reports, journals it, and acts on what must be durable first only when
//! it is. Must not know how a child is started or stopped, nor which task comes next.

mod answers;
mod approvals;
mod asks;
mod attached;
mod before;
mod budget;
mod calls;
mod choosing;
mod client;
mod commands;
mod confirming;
mod delegated;
mod directory;
mod ending;
mod engine;
mod environment;
mod far;
mod gentle;
mod judging;
mod limited;
mod listing;
mod masking;
mod measure;
mod next;
mod observing;
mod opening;
mod outbox;
pub(crate) mod outcome;
mod over;
mod prepare;
mod record;
mod ruling;
mod scales;
mod state;
mod tally;
mod telling;
mod tools;
mod transcript;
mod unprepared;
mod walls;
mod weak;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use ractor::ActorRef;

pub(crate) use attached::Files;
pub use ending::UNWRITTEN;
pub use gentle::STOPPED;
pub(crate) use limited::Limited;
pub(crate) use prepare::{PrepareError, Prepared, WORKSPACE_INSIDE};
pub(crate) use scales::Scales;
pub(crate) use tally::Tally;
pub(in crate::fleet) use weak::lacks_now;
pub(crate) use work::{Attempt, CheckResult, Stays, Work, farewell};

use calls::Asks;
use outbox::{After, Outbox};
use state::{Phase, SessionState};

use super::answering::AnswerReply;
use super::approver::{Approver, Said};
use super::channel::ChannelEnd;
use super::commands::{CommandOrder, CommandReply};
use super::credit::Hold;
use super::files::Observed;
use super::mailbox::{Address, Mailbox, mailbox};
use super::pool::PoolMsg;
use super::setting::SetReply;
use super::setup::{PoolShared, Shared};
use crate::config::SessionScope;
use crate::dialect::{Attachment, CommandEnd};
use crate::journal::{AnswerRow, Write};
use crate::lifecycle::watch::Expired;
use crate::model::{
    AgentInfo, Ask, AskId, AskKey, ClientWish, DelegateError, Event, Foreign, RunId, SessionId,
    Setting, Spent,
};
use crate::policy::delegation;
use crate::sandbox::workspace::Manifest;
use crate::telemetry::log::session_span;

/// What a Channel reports, in the order in which it happened.
#[derive(Debug)]
pub(crate) enum Item {
    /// The process runs.
    Started {
        /// The host's process id.
        pid: u32,
        /// By what its limits are held, in one line.
        limits: Option<String>,
        /// Which walls stand around it, a few words each.
        walls: Vec<String>,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The prompt is on its way: from here on the turn has begun.
    PromptSent,
    /// Something happened.
    Event(Event),
    /// The agent asks.
    Ask(Ask),
    /// The agent has its client do something.
    Client {
        /// What is put on record.
        ask: Box<Ask>,
        /// What is judged.
        wish: ClientWish,
    },
    /// The agent withdrew a request.
    Withdrawn(AskKey),
    /// What was to be set is set, or why it is not.
    Set(Result<(), String>),
    /// What came of a command of the agent's own.
    Commanded(CommandEnd),
    /// The dialect cancelled the turn: a denial could not be told otherwise.
    Cancelling,
    /// The agent began a new session of its own.
    Cleared,
    /// The turn was silent, or is over its time.
    Expired(Expired),
}

/// What a Session hears.
#[derive(Debug)]
pub(crate) enum SessionMsg {
    /// Home and workspace are ready, or cannot be had.
    Prepared(Box<Result<Prepared, PrepareError>>),
    /// The Channel reports; `hold` drops when all of it is durable.
    Batch {
        /// What happened.
        items: Vec<Item>,
        /// The credits of the bytes that said so.
        hold: Option<Hold>,
    },
    /// The Channel is over.
    ChannelEnded(Box<ChannelEnd>),
    /// A commit is durable.
    Durable {
        /// What waited for it.
        after: Vec<After>,
        /// Bytes of the events in it.
        bytes: u64,
    },
    /// The journal left a commit out: a fault of this program, and the end of the session.
    Rejected(String),
    /// The journal refused a commit: look again.
    Flush,
    /// The check ended.
    Checked(Box<CheckResult>),
    /// Files that a call named are versions now.
    Observed(Vec<Observed>),
    /// What changed in the workspace is known.
    Surveyed(Box<work::Survey>),
    /// A person decided.
    Answered {
        /// Which ask.
        ask: AskId,
        /// What came back.
        said: Said,
    },
    /// A person decided, of the people of the queue.
    Decide {
        /// Which question.
        ask: AskId,
        /// What they say.
        answer: Box<AnswerRow>,
        /// Who waits to hear what came of it.
        reply: AnswerReply,
    },
    /// Something is to be set in the session.
    Set {
        /// What.
        setting: Setting,
        /// Who waits for the answer.
        reply: SetReply,
    },
    /// Somebody gives the agent one of its own commands.
    Command {
        /// Which.
        order: Arc<CommandOrder>,
        /// Who waits for the answer.
        reply: CommandReply,
    },
    /// A budget is spent whose end is the turn's, too.
    BudgetSpent {
        /// Which.
        spent: Spent,
        /// In which turn, as the purse numbers them: a late word of an earlier one is no news.
        turn: u64,
    },
    /// Nobody decided in time.
    AskExpired(AskId),
    /// The pool's delegate decided, or gave no decision.
    Delegated {
        /// About which request.
        ask: AskId,
        /// What it said.
        said: Result<delegation::Said, DelegateError>,
    },
    /// The same about what a person allowed.
    Confirmed {
        /// Of which question.
        ask: AskId,
        /// What it said: of several requests a denial, if there is one.
        said: Result<delegation::Said, DelegateError>,
    },
    /// Home or copy is larger than it may be.
    TooLarge(String),
    /// The session's next task. Only for a session that is between tasks.
    Next(Box<Work>),
    /// What the workspace holds before that task.
    Recorded(Result<Recorded, String>),
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
    Settled,
    /// An event of the supervisor's own, in one commit with what goes with it.
    Note {
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
    GraceOver(u64),
    /// What was said before, for an agent that does not remember it, or why it cannot be read.
    Recalled(Result<String, String>),
    /// The session has waited for its next task for as long as its child is kept, since the task
    /// of that number.
    Idle(u64),
    /// End the session's child: `true` at once, `false` by the stop ladder.
    Stop {
        /// No ladder.
        now: bool,
    },
}

/// What the workspace holds before a task.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// How it looks, where it can change.
    pub(crate) before: Option<Manifest>,
    /// The files that belong to the prompt.
    pub(crate) attached: Arc<[Attachment]>,
}

/// What a Session is started with.
pub(crate) struct SessionArgs {
    pub(crate) pool_ref: ActorRef<PoolMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) work: Work,
    /// The session that could not be loaded again, and why, if this one takes its place.
    pub(crate) instead_of: Option<(SessionId, String)>,
    /// What an earlier start of the supervisor left of it, or an earlier client.
    pub(crate) stored: Option<StoredSession>,
    /// It is a client's conversation.
    pub(crate) talk: Option<TalkArgs>,
    /// It has no task yet; told when its child is ready.
    pub(crate) warm: Option<oneshot::Sender<()>>,
}

/// What makes a session a client's conversation.
#[derive(Debug)]
pub(crate) struct TalkArgs {
    /// The run whose tasks are its prompts.
    pub(crate) run: RunId,
    /// The directory that the agent works in, from the workspace's root.
    pub(crate) within: PathBuf,
    /// Where asks go.
    pub(crate) approver: Approver,
    /// It is a chat: what its agent has forgotten is told to it.
    pub(crate) chat: Option<OfChat>,
}

/// What is a chat's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfChat {
    /// Its model, instead of the pool's.
    pub(crate) model: Option<String>,
}

/// What is known of a session that an earlier start of the supervisor began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) session: SessionId,
    /// The agent's own id of it, as far as it can be loaded by that.
    pub(crate) agent_session: Option<Foreign>,
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
    let mut state = begin(*args, myself);
    while let Some(message) = poll_fn(|context| mailbox.poll_next(context)).await {
        let span = session_span(&state.work.session, &state.work.slot);
        let is_over = span.in_scope(|| state.take(message));
        state.flush();
        if is_over {
            return;
        }
    }
}

/// What a session of a task says first that begins where another one could not go on.
fn takes_the_place(instead_of: SessionId, why: String) -> Event {
    Event::SessionFresh {
        instead_of,
        why,
        untold: false,
    }
}

fn begin(args: SessionArgs, myself: SessionRef) -> Box<SessionState> {
    let SessionArgs {
        pool_ref,
        shared,
        pool,
        work,
        instead_of,
        stored,
        talk,
        warm,
    } = args;
    let has_task = warm.is_none();
    let mut state = Box::new(SessionState {
        scope: match talk {
            Some(_) => SessionScope::Slot,
            None => pool.config.session,
        },
        talk,
        pending: BTreeMap::new(),
        delegated: BTreeMap::new(),
        released: None,
        of_turn: HashMap::new(),
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
        warm,
        choosing: choosing::Choosing::default(),
        commands: commands::Commands::default(),
        prompted: stored.as_ref().is_some_and(|of| of.prompted),
        memory: transcript::Memory::default(),
        grace: gentle::Grace::default(),
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
        asks: Asks::default(),
        tally: Tally::default(),
        phase: Phase::Preparing,
        prepared: None,
        channel: None,
        budget: budget::Counters::open(&pool, &work, &myself),
        limits: Arc::default(),
        limit: None,
        denials: crate::dialect::Denials::default(),
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
        state.outbox.go_on_after(stored.last_seq, stored.bytes);
    } else if state.talk.is_none() {
        // A conversation has its row since it was opened.
        state.begun_row();
        if let Some((instead_of, why)) = instead_of {
            state.outbox.event(takes_the_place(instead_of, why));
        }
    }
    state.flush();
    prepares(&state);
    state
}

/// Has what the session needs made; it is told when that is done.
fn prepares(state: &SessionState) {
    let to = state.myself.clone();
    let (shared, pool) = (Arc::clone(&state.shared), Arc::clone(&state.pool));
    let order = state.order();
    tokio::spawn(async move {
        let prepared = prepare::prepare(&shared, &pool, order).await;
        let _ = to.send_message(SessionMsg::Prepared(Box::new(prepared)));
    });
}

impl Drop for SessionState {
    /// The last word, also of a session that failed: its pool knows what was not said before.
    fn drop(&mut self) {
        self.budget.purse.close(false);
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
