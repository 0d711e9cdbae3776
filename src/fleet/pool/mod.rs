//! Pool: N slots that share one agent command, and the tasks that wait for them.
//!
//! Owns the queue, the slots' states, their restart history and what becomes of a task whose
//! attempt ended. Must not know protocols, processes or permission requests.

mod bounds;
mod ending;
mod keeping;
mod orders;
mod pausing;
mod queue;
mod slot;
mod state;
mod talk;
mod task;
mod waiting;

use std::sync::Arc;

use std::collections::{BTreeSet, VecDeque};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

pub(crate) use orders::Order;
use queue::Queue;
use slot::{Kept, Slot};
use state::PoolState;
pub(crate) use talk::{Opener, Talk};
pub(crate) use task::{ActiveTask, OpenTasks, Past, RunOver};

use super::channel::ChannelEnd;
use super::memory::SlotMemory;
use super::orders::Ordered;
use super::session::{Attempt, SessionRef, Stays, StoredSession};
use super::setup::{PoolShared, Shared};
use crate::lifecycle::pause::Pause;
use crate::lifecycle::state::SlotEvent;
use crate::model::{AskId, RunId, SessionId};

/// What a Pool hears.
#[derive(Debug)]
pub(crate) enum PoolMsg {
    /// Tasks, already durable, wait for a slot.
    Submit(Vec<ActiveTask>),
    /// Something that a task may come after has ended.
    NeedOver,
    /// A slot's session moved on.
    Slot {
        /// Which slot.
        index: u16,
        /// Which session says so: a late word of an earlier one is no news.
        session: SessionId,
        /// What happened.
        change: SlotEvent,
        /// The process, where one was started.
        pid: Option<u32>,
    },
    /// A session is over.
    AttemptEnded(Box<Attempt>),
    /// A session between tasks lost its child.
    ChildGone {
        /// Which slot.
        index: u16,
        /// Which session.
        session: SessionId,
        /// How the child ended.
        end: Box<ChannelEnd>,
        /// Whether the session could go on.
        stays: Stays,
    },
    /// A session between tasks is closed.
    SessionClosed {
        /// Which slot.
        index: u16,
        /// Which session.
        session: SessionId,
        /// It could not be prepared before it had a task, and is as it was.
        given_back: Option<StoredSession>,
    },
    /// The task that tried whether the provider takes requests again got an answer.
    Answered {
        /// In which session.
        session: SessionId,
    },
    /// A question that a task may wait for has an answer, or has expired.
    AskOver {
        /// It has expired.
        expired: Option<AskId>,
    },
    /// A pause may be over.
    PauseOver,
    /// A slot's backoff is over.
    BackoffOver {
        /// Which slot.
        index: u16,
        /// Which backoff: a restart by hand makes an earlier one void.
        round: u64,
    },
    /// End the slot's child, if one runs, and start afresh; unparks.
    Restart {
        /// Which slot.
        index: u16,
        /// Told when the old child, and its whole tree, are gone.
        done: oneshot::Sender<()>,
    },
    /// Start no new task, cancel running turns: of one run, or of all and for good.
    Cancel(Option<RunId>),
    /// A bound of a run is reached: none of its tasks begins any more.
    RunOver {
        /// Which run.
        run: RunId,
        /// Why, for its tasks that wait.
        why: String,
        /// Those that are worked are cancelled, too.
        cancels: bool,
    },
    /// A task of a run with a bound on how many are worked at once made its place free.
    PlaceFree,
    /// A session's actor is gone, with or without a report.
    SessionGone {
        /// Which actor.
        who: SessionRef,
        /// Why, if nothing else was said.
        why: &'static str,
    },
    /// People order something.
    Order {
        /// What.
        order: Order,
        /// Who waits to hear what came of it.
        done: oneshot::Sender<Ordered>,
    },
    /// A client wants something of its conversation.
    Talk(Talk),
    /// End every child, then the pool.
    Stop {
        /// Without the ladder.
        now: bool,
    },
}

/// What a Pool is started with.
pub(crate) struct PoolArgs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    /// What its slots remember, in their order.
    pub(crate) memory: Vec<SlotMemory>,
    /// Sessions that an earlier start of the supervisor left to its slots.
    pub(crate) stored: Vec<(u16, StoredSession)>,
}

/// N slots and a queue.
pub(crate) struct Pool;

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<PoolMsg>,
        args: PoolArgs,
    ) -> Result<PoolState, ActorProcessingErr> {
        let PoolArgs {
            shared,
            pool,
            memory,
            stored,
        } = args;
        let limits = pool.config.rate_limit;
        let mut memory = memory.into_iter();
        let mut slots: Vec<Slot> = (0..pool.config.max_size)
            .map(|index| Slot::new(&pool.config, index, memory.next().unwrap_or_default()))
            .collect();
        for (index, session) in stored {
            if let Some(slot) = slots.get_mut(usize::from(index)) {
                slot.kept = Some(Kept::Stored(session));
            }
        }
        Ok(PoolState {
            myself,
            shared,
            pool,
            slots,
            queue: Queue::default(),
            blocked: Vec::new(),
            pause: Pause::new(limits),
            probe: None,
            dismisses: false,
            unloading: BTreeSet::new(),
            openers: VecDeque::new(),
            held: 0,
            cancelled: false,
            stopping: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMsg::Submit(tasks) => state.take_in(tasks),
            PoolMsg::NeedOver => state.need_over(),
            PoolMsg::Slot {
                index,
                session,
                change,
                pid,
            } => state.slot_moved(index, &session, change, pid),
            PoolMsg::AttemptEnded(attempt) => state.attempt_ended(&attempt),
            PoolMsg::ChildGone {
                index,
                session,
                end,
                stays,
            } => state.child_gone(index, &session, &end, &stays),
            PoolMsg::SessionClosed {
                index,
                session,
                given_back,
            } => state.session_closed(index, &session, given_back),
            PoolMsg::Answered { session } => state.answered(&session),
            PoolMsg::AskOver { expired } => state.ask_over(expired.as_ref()),
            // What follows is settled below.
            PoolMsg::PauseOver | PoolMsg::PlaceFree => {}
            PoolMsg::RunOver { run, why, cancels } => state.run_over(&run, &why, cancels),
            PoolMsg::BackoffOver { index, round } => state.backoff_over(index, round),
            PoolMsg::Restart { index, done } => state.restart(index, done),
            PoolMsg::Cancel(run) => state.cancel(run.as_ref()),
            PoolMsg::Order { order, done } => state.ordered(order, done),
            PoolMsg::Talk(talk) => state.talk(talk),
            PoolMsg::Stop { now } => state.stop(now),
            PoolMsg::SessionGone { who, why } => state.session_gone(&who, why),
        }
        state.settle();
        if state.stopping && state.slots.iter().all(Slot::is_free) {
            myself.stop(None);
        }
        Ok(())
    }
}
