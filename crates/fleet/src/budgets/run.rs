//! What bounds a run: until when its tasks begin, what it may cost, how many of them at once.
//!
//! A run may span pools, so its tasks share one [`RunLimits`]. When a bound is reached, the pools are
//! told what becomes of the rest. Must not know slots or sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ractor::ActorRef;
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;

use crate::clock::now_us;
use crate::pool::PoolMsg;
use marshal_model::budget::format_cost;
use marshal_model::limits::RUN_GRACE;
use marshal_model::{BudgetAction, BudgetName, RunId, SpentBudget};

/// What bounds a run; its default bounds nothing. Written to the journal as JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunBounds {
    /// No task begins at this time or later: microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<i64>,
    /// How long what runs then may go on, in milliseconds, before it is cancelled; `None`:
    /// [`RUN_GRACE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// What the run may cost, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<u64>,
    /// How many of its tasks may run at the same time, over all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u16>,
}

impl RunBounds {
    /// Whether it bounds anything.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.until_us.is_some() || self.max_cost.is_some() || self.jobs.is_some()
    }

    /// These, and where they say nothing what `stored` says. `past_us`: a stored time before this
    /// one does not hold, because a person goes on with the run after it.
    #[must_use]
    pub fn or_stored(self, stored: Option<Self>, past_us: Option<i64>) -> Self {
        let stored = stored.unwrap_or_default();
        let is_past = |until_us: i64| past_us.is_some_and(|past_us| until_us <= past_us);
        let later = stored.until_us.filter(|until_us| !is_past(*until_us));
        Self {
            until_us: self.until_us.or(later),
            grace_ms: self.grace_ms.or(stored.grace_ms),
            max_cost: self.max_cost.or(stored.max_cost),
            jobs: self.jobs.or(stored.jobs),
        }
    }

    /// As the journal has it; `None`: nothing bounds the run.
    pub(crate) fn as_column(&self) -> Option<String> {
        self.is_set()
            .then(|| serde_json::to_string(self).unwrap_or_default())
    }
}

/// The bounds of runs that are about to be taken in.
#[derive(Debug, Default)]
pub(crate) struct PendingRunBounds(Mutex<HashMap<RunId, RunBounds>>);

impl PendingRunBounds {
    /// Says what bounds a run, before its tasks are taken in.
    pub(crate) fn insert(&self, run: &RunId, bounds: RunBounds) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bounds.is_set() {
            all.insert(run.clone(), bounds);
        }
    }

    /// The run is taken in, or refused.
    pub(crate) fn take(&self, run: &RunId) -> RunBounds {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(run).unwrap_or_default()
    }
}

/// The bounds of a run that is worked, and how far it is.
#[derive(Debug)]
pub(crate) struct RunLimits {
    run: RunId,
    bounds: RunBounds,
    /// The pools that work it.
    pools: Vec<ActorRef<PoolMsg>>,
    working: AtomicUsize,
    spent: AtomicU64,
    /// Its time is over: none of its tasks begins any more.
    is_late: AtomicBool,
    /// Its cost is spent, which is told once, before its time is over or after.
    is_spent: AtomicBool,
    timer: Mutex<Option<AbortHandle>>,
}

impl Drop for RunLimits {
    fn drop(&mut self) {
        let timer = self.timer.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(timer) = timer.take() {
            timer.abort();
        }
    }
}

impl RunLimits {
    /// Begins to hold a run to its bounds, if it has any; `spent` is what it cost before. Needs a
    /// runtime around it.
    pub(crate) fn start(
        run: &RunId,
        bounds: RunBounds,
        spent: u64,
        pools: Vec<ActorRef<PoolMsg>>,
    ) -> Option<Arc<Self>> {
        if !bounds.is_set() {
            return None;
        }
        let limits = Arc::new(Self {
            run: run.clone(),
            bounds,
            pools,
            working: AtomicUsize::new(0),
            spent: AtomicU64::new(spent),
            is_late: AtomicBool::new(false),
            is_spent: AtomicBool::new(bounds.max_cost.is_some_and(|most| spent >= most)),
            timer: Mutex::new(None),
        });
        limits.spawn_deadline_timer();
        Some(limits)
    }

    /// Ends the waiting tasks when the time comes, and the running ones after the grace.
    fn spawn_deadline_timer(self: &Arc<Self>) {
        let Some(until_us) = self.bounds.until_us else {
            return;
        };
        let grace = self
            .bounds
            .grace_ms
            .map_or(RUN_GRACE, Duration::from_millis);
        let this = Arc::downgrade(self);
        let waits = tokio::spawn(async move {
            loop {
                let left = until_us.saturating_sub(now_us());
                let Ok(left @ 1..) = u64::try_from(left) else {
                    break;
                };
                // A clock that was set meanwhile is looked at again.
                tokio::time::sleep(Duration::from_micros(left)).await;
            }
            if let Some(this) = this.upgrade() {
                this.end_by_time();
            }
            tokio::time::sleep(grace).await;
            if let Some(this) = this.upgrade() {
                let why = "the run's time was over (run --until), and its grace too";
                this.notify_pools(why, true);
            }
        });
        *self.timer.lock().unwrap_or_else(PoisonError::into_inner) = Some(waits.abort_handle());
    }

    /// Which run.
    pub(crate) const fn run(&self) -> &RunId {
        &self.run
    }

    /// Whether its cost is bounded.
    pub(crate) const fn has_cost_limit(&self) -> bool {
        self.bounds.max_cost.is_some()
    }

    /// Whether none of its tasks begins any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_late.load(Ordering::Acquire) || self.is_spent.load(Ordering::Acquire)
    }

    /// Takes the place of a task that is to begin; `None`: none may begin now.
    pub(crate) fn acquire_job(self: &Arc<Self>) -> Option<JobPermit> {
        if self.is_over() {
            return None;
        }
        // The clock decides, however late a timer is that slept with its host.
        if self.bounds.until_us.is_some_and(|until| now_us() >= until) {
            self.end_by_time();
            return None;
        }
        let most = self.most_at_once();
        let one_more = |now: usize| (now < most).then_some(now + 1);
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        self.working.fetch_update(set, get, one_more).ok()?;
        Some(JobPermit(Arc::clone(self)))
    }

    /// Whether [`Self::acquire_job`] has anything to do: it may still give no place.
    pub(crate) fn has_free_job(&self) -> bool {
        !self.is_over() && self.working.load(Ordering::Acquire) < self.most_at_once()
    }

    fn most_at_once(&self) -> usize {
        self.bounds.jobs.map_or(usize::MAX, usize::from)
    }

    fn end_by_time(&self) {
        if !self.is_late.swap(true, Ordering::AcqRel) {
            tracing::info!(run = %self.run, "the run's time is over: no further task of it begins");
            let why = "the run's time was over before the task began (run --until)";
            self.notify_pools(why, false);
        }
    }

    /// So much more was spent on it; `true` if that is the last that there was.
    pub(crate) fn add_cost(&self, nano: u64) -> bool {
        let add = |now: u64| Some(now.saturating_add(nano));
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.spent.fetch_update(set, get, add);
        let Some(spent) = self.spent_budget() else {
            return false;
        };
        if self.is_spent.swap(true, Ordering::AcqRel) {
            return false;
        }
        let why = format!(
            "the run's cost reached its bound: {} of {} (run --max-cost)",
            format_cost(spent.used),
            format_cost(spent.limit)
        );
        self.notify_pools(&why, true);
        true
    }

    /// Its budget, if it is spent.
    pub(crate) fn spent_budget(&self) -> Option<SpentBudget> {
        let used = self.spent.load(Ordering::Acquire);
        let most = self.bounds.max_cost.filter(|most| used >= *most)?;
        Some(SpentBudget {
            budget: BudgetName::MaxCost,
            used,
            limit: most,
            action: BudgetAction::Interrupt,
        })
    }

    /// Why the tasks that wait when it is taken in are over at once, if they are.
    pub(crate) fn notify_if_spent(&self) {
        if let Some(spent) = self.spent_budget() {
            self.notify_pools(&format!("{spent} (run --max-cost)"), true);
        }
    }

    fn notify_pools(&self, why: &str, cancels: bool) {
        for pool in &self.pools {
            let over = PoolMsg::RunLimitReached {
                run: self.run.clone(),
                why: why.to_owned(),
                cancels,
            };
            let _ = pool.send_message(over);
        }
    }
}

/// The place of a task that is worked. When it is dropped, another one may begin.
#[derive(Debug)]
pub(crate) struct JobPermit(Arc<RunLimits>);

impl Drop for JobPermit {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::AcqRel);
        if self.0.bounds.jobs.is_some() {
            for pool in &self.0.pools {
                let _ = pool.send_message(PoolMsg::JobFreed);
            }
        }
    }
}
