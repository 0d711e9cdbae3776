//! The keeper: a plain task that owns one process until everything of it is gone.
//!
//! It obeys orders, a kill (which needs no place in a queue), and the drop of its handle, which is
//! a kill too: an actor that panics leaves nothing running. It reports once, at the very end. Must
//! not know why a child is stopped: its channel does the first two steps of the ladder, the
//! graceful stop and closing stdin.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cgroup::{Group, GroupOutcome, Leaf};
use super::spawner::Process;
use super::survivors;
use marshal_config::StopTimeouts;
use marshal_model::limits;
use marshal_model::{ExitStatus, string_enum};
use marshal_wire::engine::EXIT_CONTAINER_LEFT;
use marshal_wire::shim::{HelperCommand, HelperReport, SetupFailure, Stage};

string_enum!(
    /// A step of the stop ladder that needs only the process.
    Step {
        /// SIGINT to the agent's process group, then its wait, then the next.
        Int = "int",
        /// SIGTERM to the agent's process group, then its wait, then the next.
        Term = "term",
        /// SIGKILL to everything.
        Kill = "kill",
    }
);

/// How a child ended. Nothing of it is left, except what `survivors_left` counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildExit {
    /// How the agent ended; `None` when its helper was lost before it could say.
    pub status: Option<ExitStatus>,
    /// The helper was lost: killed from outside, or out of memory. This is not the agent's end.
    pub sandbox_failure: Option<SetupFailure>,
    /// Whether it was ordered to kill.
    pub is_forced: bool,
    /// Processes beside the agent that were alive at its end and were killed.
    pub survivors_killed: u32,
    /// Processes that could not be killed: they belong to another user or hang in the kernel.
    pub survivors_left: u32,
    /// The usage of all its processes; `None` if this host has no groups that count it.
    pub group_outcome: Option<Box<GroupOutcome>>,
}

/// The handle of a keeper. Dropping it kills everything of the child.
#[derive(Debug)]
pub struct KeeperHandle {
    orders: Arc<OrderQueue>,
    kill: CancellationToken,
    _guard: DropGuard,
}

#[derive(Debug, Clone, Copy)]
enum QueuedOrder {
    /// One signal, nothing after it.
    Signal(Step),
    /// The ladder from here.
    From(Step),
}

/// The orders that wait for a keeper. Not a channel of the runtime, which takes half a KiB for each
/// child, while most children get one order in their life.
#[derive(Debug, Default)]
struct OrderQueue {
    waiting: Mutex<VecDeque<QueuedOrder>>,
    changed: Notify,
}

impl OrderQueue {
    /// Adds an order; `false` if there is no place.
    fn push(&self, order: QueuedOrder) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = waiting.len() < limits::KEEPER_QUEUE;
        if fits {
            waiting.push_back(order);
            self.changed.notify_one();
        }
        fits
    }

    fn pop(&self) -> Option<QueuedOrder> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    }

    /// The next order; waits forever if none comes. Cancel-safe.
    async fn next(&self) -> QueuedOrder {
        loop {
            if let Some(order) = self.pop() {
                return order;
            }
            self.changed.notified().await;
        }
    }
}

/// Starts the keeper of a process. The receiver gets the one report; `waits` are those of the
/// ladder.
pub fn start_keeper(
    process: Process,
    waits: StopTimeouts,
) -> (KeeperHandle, oneshot::Receiver<ChildExit>) {
    let orders = Arc::new(OrderQueue::default());
    let (done, ended) = oneshot::channel();
    let kill = CancellationToken::new();
    let keeper = Box::new(Keeper {
        process,
        waits,
        orders: Arc::clone(&orders),
        kill: kill.clone(),
        ladder: None,
        forced: false,
    });
    tokio::spawn(async move {
        // The receiver may have been dropped.
        let _ = done.send(keeper.run().await);
    });
    (
        KeeperHandle {
            orders,
            _guard: kill.clone().drop_guard(),
            kill,
        },
        ended,
    )
}

/// An order to a keeper, for a simulated host.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperOrder {
    /// One signal, nothing after it.
    Signal(Step),
    /// The ladder from here.
    From(Step),
    /// Kill everything: it was ordered, or the handle was dropped.
    Kill,
}

/// The other end of a handle without a real keeper.
#[doc(hidden)]
#[derive(Debug)]
pub struct OrderReceiver {
    queue: Arc<OrderQueue>,
    kill: CancellationToken,
}

impl OrderReceiver {
    /// The next order; a kill comes first, and is returned on every further call.
    pub async fn next(&mut self) -> KeeperOrder {
        tokio::select! {
            biased;
            () = self.kill.cancelled() => KeeperOrder::Kill,
            order = self.queue.next() => match order {
                QueuedOrder::Signal(step) => KeeperOrder::Signal(step),
                QueuedOrder::From(step) => KeeperOrder::From(step),
            },
        }
    }
}

impl KeeperHandle {
    /// A handle whose orders go to the returned other end: for simulated hosts.
    #[doc(hidden)]
    #[must_use]
    pub fn with_orders() -> (Self, OrderReceiver) {
        let orders = Arc::new(OrderQueue::default());
        let order = Arc::clone(&orders);
        let kill = CancellationToken::new();
        let handle = Self {
            orders,
            _guard: kill.clone().drop_guard(),
            kill: kill.clone(),
        };
        (handle, OrderReceiver { queue: order, kill })
    }

    /// Kills everything now.
    pub fn kill(&self) {
        self.kill.cancel();
    }

    /// Goes down the stop ladder from a step, each step with its wait, to the end. From a lower
    /// step than the one it is at, it stays there.
    pub fn stop_from(&self, step: Step) {
        self.enqueue(step, QueuedOrder::From(step));
    }

    /// Sends one signal and leaves it at that.
    pub fn signal(&self, step: Step) {
        self.enqueue(step, QueuedOrder::Signal(step));
    }

    fn enqueue(&self, step: Step, order: QueuedOrder) {
        // A queue full of signals that were not yet sent needs no further one, but a ladder must
        // never be lost: then it is the last step.
        if step == Step::Kill || (!self.orders.push(order) && matches!(order, QueuedOrder::From(_)))
        {
            self.kill();
        }
    }
}

/// Where the ladder is, and until when it waits there.
#[derive(Debug, Clone, Copy)]
struct Rung {
    step: Step,
    until: Instant,
}

struct Keeper {
    process: Process,
    waits: StopTimeouts,
    orders: Arc<OrderQueue>,
    kill: CancellationToken,
    ladder: Option<Rung>,
    forced: bool,
}

impl Keeper {
    /// What comes at the end is boxed there: this future waits for as long as the child lives.
    async fn run(mut self: Box<Self>) -> ChildExit {
        let report = loop {
            let until = self.ladder.map(|rung| rung.until);
            tokio::select! {
                report = self.process.control.next() => break report.ok().flatten(),
                () = self.kill.cancelled() => break Box::pin(self.kill_all()).await,
                order = self.orders.next() => self.handle_order(order),
                () = sleep_until(until), if until.is_some() => self.next_rung(),
            }
        };
        Box::pin(self.finish(report)).await
    }

    fn handle_order(&mut self, order: QueuedOrder) {
        match order {
            QueuedOrder::Signal(step) => self.send(step),
            QueuedOrder::From(step) => {
                if self.ladder.is_none_or(|rung| rung.step < step) {
                    self.enter_step(step);
                }
            }
        }
    }

    fn next_rung(&mut self) {
        match self.ladder.map(|rung| rung.step) {
            Some(Step::Int) => self.enter_step(Step::Term),
            _ => self.enter_step(Step::Kill),
        }
    }

    fn enter_step(&mut self, step: Step) {
        let wait = match step {
            Step::Int => self.waits.int,
            Step::Term => self.waits.term,
            Step::Kill => Duration::ZERO,
        };
        self.ladder = Some(Rung {
            step,
            until: Instant::now() + wait,
        });
        self.send(step);
    }

    fn send(&self, step: Step) {
        let sent = match step {
            Step::Int => self.process.control.send_order(HelperCommand::Interrupt),
            Step::Term => self.process.control.send_order(HelperCommand::Terminate),
            Step::Kill => false,
        };
        if !sent {
            self.kill.cancel();
        }
    }

    /// Orders the helper to kill everything, and waits for its report. A helper that does not obey
    /// gets SIGTERM, which means the same, and is then killed itself.
    async fn kill_all(&mut self) -> Option<HelperReport> {
        self.forced = true;
        // A frozen process obeys no order, but the kernel kills the whole group at once.
        let group = self.process.leaf.as_ref().map(Leaf::group);
        if group.is_some_and(Group::is_frozen) {
            self.kill_group();
        }
        if self.process.control.send_order(HelperCommand::Kill)
            && let Ok(report) =
                tokio::time::timeout(limits::KILL_ORDER_GRACE, self.process.control.next()).await
        {
            return report.ok().flatten();
        }
        self.kill_group();
        for (signal, wait) in [
            (Signal::TERM, limits::KILL_HELPER_GRACE),
            (Signal::KILL, limits::KILL_LEFTOVERS_TIMEOUT),
        ] {
            self.signal_helper(signal);
            if let Ok(report) = tokio::time::timeout(wait, self.process.control.next()).await {
                return report.ok().flatten();
            }
        }
        None
    }

    fn kill_group(&self) {
        if let Some(leaf) = &self.process.leaf {
            leaf.kill();
        }
    }

    /// Ends its groups: processes that are still in them are killed, and the groups are removed.
    async fn end_groups(&mut self) -> Option<GroupOutcome> {
        let leaf = self.process.leaf.take()?;
        tokio::task::spawn_blocking(move || leaf.end()).await.ok()
    }

    /// The helper is reaped by this task only, so the number is its own as long as it has one.
    fn signal_helper(&self, signal: Signal) {
        let pid = self
            .process
            .helper
            .id()
            .and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Waits for the helper's end, which comes after that of all others, and sums up.
    async fn finish(mut self: Box<Self>, report: Option<HelperReport>) -> ChildExit {
        let (status, mut killed, mut left) = match report {
            Some(HelperReport::Ended { end, killed, left }) => (Some(end.into()), killed, left),
            _ => (None, 0, 0),
        };
        if status.is_none() {
            // It was lost, or broke its protocol, so its remaining reports have no use.
            self.signal_helper(Signal::TERM);
        }
        let mut how = None;
        let mut killed_by_us = status.is_none();
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            if let Some(signal) = signal {
                killed_by_us = true;
                self.signal_helper(signal);
            }
            let wait = match signal {
                None => self.process.exit_timeout,
                Some(_) => limits::KILL_HELPER_GRACE,
            };
            let wait = tokio::time::timeout(wait, self.process.helper.wait());
            if let Ok(ended) = wait.await {
                how = Some(ended);
                break;
            }
        }
        // Another process killed the helper, and it or its pid 1 still reported the agent's end by
        // the same blow: that end is no word of the agent's.
        let by_signal = |ended: &std::io::Result<std::process::ExitStatus>| {
            ended.as_ref().is_ok_and(|status| status.signal().is_some())
        };
        let is_container_left = how
            .as_ref()
            .and_then(|ended| ended.as_ref().ok())
            .is_some_and(|status| status.code() == Some(i32::from(EXIT_CONTAINER_LEFT)));
        left += u32::from(is_container_left);
        let was_killed = !killed_by_us && !self.forced && how.as_ref().is_some_and(by_signal);
        let status = if was_killed { None } else { status };
        let over = self.end_groups().await;
        if let Some(over) = &over {
            killed += over.killed;
            left = left.max(over.left);
        }
        if status.is_none() && !self.process.has_namespace {
            let marker = self.process.marker.clone();
            let swept = tokio::task::spawn_blocking(move || survivors::kill_marked(&marker));
            killed += swept.await.unwrap_or(0);
        }
        let lost = || SetupFailure {
            stage: Stage::Shim,
            what: match how {
                Some(Ok(status)) => format!("the child's helper was lost ({status})"),
                Some(Err(error)) => format!("the child's helper was lost ({error})"),
                None => "the child's helper hangs".to_owned(),
            },
            path: None,
            errno: None,
        };
        // Killed on order, without a report: the pid namespace, or the sweep, ended the agent.
        let status = match status {
            None if self.forced => Some(ExitStatus::Signal(Signal::KILL.as_raw())),
            status => status,
        };
        ChildExit {
            sandbox_failure: status.is_none().then(lost),
            status,
            is_forced: self.forced,
            survivors_killed: killed,
            survivors_left: left,
            group_outcome: over.map(Box::new),
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    if let Some(until) = until {
        // Boxed, because most keepers never sleep, and the room for it stands in every one.
        Box::pin(tokio::time::sleep_until(until)).await;
    }
}
