//! The bounds of a run: a deadline after which no task begins, a cost limit, and a limit of
//! concurrent tasks.
//!
//! A run may span pools, so its tasks share one [`RunLimits`]. When a bound is reached, the pools
//! are notified to end the remaining tasks. Must not know slots or sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ractor::ActorRef;
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;

use crate::clock::{now_us, sleep_until_us};
use crate::messages::PoolMsg;
use marshal_model::budget::format_cost;
use marshal_model::limits::RUN_GRACE;
use marshal_model::{Amount, BudgetAction, BudgetName, RunId, SpentBudget};

/// The bounds of a run; the default has none. Written to the journal as JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunBounds {
    /// No task begins at or after this time: microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<i64>,
    /// How long running tasks may continue after `until_us`, in milliseconds, before they are
    /// cancelled; `None`: [`RUN_GRACE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// The cost limit, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<u64>,
    /// The limit of tokens, read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The limit of concurrent tasks, over all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u16>,
}

impl RunBounds {
    /// Whether the run has any bound.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.until_us.is_some()
            || self.max_cost.is_some()
            || self.max_tokens.is_some()
            || self.jobs.is_some()
    }

    /// These bounds, with missing ones taken from `stored`. A stored deadline up to `past_us` is
    /// ignored, because a person resumes the run after it.
    #[must_use]
    pub fn or_stored(self, stored: Option<Self>, past_us: Option<i64>) -> Self {
        let stored = stored.unwrap_or_default();
        let is_past = |until_us: i64| past_us.is_some_and(|past_us| until_us <= past_us);
        let later = stored.until_us.filter(|until_us| !is_past(*until_us));
        Self {
            until_us: self.until_us.or(later),
            grace_ms: self.grace_ms.or(stored.grace_ms),
            max_cost: self.max_cost.or(stored.max_cost),
            max_tokens: self.max_tokens.or(stored.max_tokens),
            jobs: self.jobs.or(stored.jobs),
        }
    }

    /// The value of the journal's column; `None` if the run has no bounds.
    pub(crate) fn as_column(&self) -> Option<String> {
        self.is_set()
            .then(|| serde_json::to_string(self).unwrap_or_default())
    }
}

/// The bounds of runs that are about to be submitted or resumed.
#[derive(Debug, Default)]
pub(crate) struct PendingRunBounds(Mutex<HashMap<RunId, RunBounds>>);

impl PendingRunBounds {
    /// Sets the bounds of a run, before its tasks are submitted.
    pub(crate) fn insert(&self, run: &RunId, bounds: RunBounds) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bounds.is_set() {
            all.insert(run.clone(), bounds);
        }
    }

    /// Takes the bounds of a run that is submitted or resumed now.
    pub(crate) fn take(&self, run: &RunId) -> RunBounds {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(run).unwrap_or_default()
    }
}

/// The bounds of a running run, and its progress towards them.
#[derive(Debug)]
pub(crate) struct RunLimits {
    run: RunId,
    bounds: RunBounds,
    /// The pools that are notified when a bound is reached.
    pools: Vec<ActorRef<PoolMsg>>,
    working: AtomicUsize,
    /// The cost so far, in billionths of a US dollar.
    cost: AtomicU64,
    tokens: AtomicU64,
    /// Whether the deadline has passed: none of its tasks begins any more.
    is_late: AtomicBool,
    /// Whether the limit of cost or tokens is reached, which is reported once, before or after the deadline.
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
    /// Begins to enforce a run's bounds; `None` if it has none. `spent` is what it has
    /// spent so far. Must be called within a tokio runtime.
    pub(crate) fn start(
        run: &RunId,
        bounds: RunBounds,
        spent: Amount,
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
            cost: AtomicU64::new(spent.nanodollars),
            tokens: AtomicU64::new(spent.tokens),
            is_late: AtomicBool::new(false),
            is_spent: AtomicBool::new(false),
            timer: Mutex::new(None),
        });
        let is_spent = limits.spent_budget().is_some();
        limits.is_spent.store(is_spent, Ordering::Release);
        limits.spawn_deadline_timer();
        Some(limits)
    }

    /// Ends the queued tasks at the deadline, and the running ones after the grace period.
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
            sleep_until_us(until_us).await;
            if let Some(this) = this.upgrade() {
                this.end_by_time();
            }
            tokio::time::sleep(grace).await;
            if let Some(this) = this.upgrade() {
                let why = "the run's deadline (run --until) and its grace period have passed";
                this.notify_pools(why, true);
            }
        });
        *self.timer.lock().unwrap_or_else(PoisonError::into_inner) = Some(waits.abort_handle());
    }

    /// The run's id.
    pub(crate) const fn run(&self) -> &RunId {
        &self.run
    }

    /// Whether the run has a cost limit.
    pub(crate) const fn has_cost_limit(&self) -> bool {
        self.bounds.max_cost.is_some()
    }

    /// Whether the run has a limit of cost or tokens.
    pub(crate) const fn has_spend_limit(&self) -> bool {
        self.bounds.max_cost.is_some() || self.bounds.max_tokens.is_some()
    }

    /// Whether a bound was reached, so that none of its tasks begins any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_late.load(Ordering::Acquire) || self.is_spent.load(Ordering::Acquire)
    }

    /// Acquires the permit of a task that is about to begin; `None` if none may begin now.
    pub(crate) fn acquire_job(self: &Arc<Self>) -> Option<JobPermit> {
        if self.is_over() {
            return None;
        }
        // Checks the clock too: after a suspend of the host, the timer may be late.
        if self.bounds.until_us.is_some_and(|until| now_us() >= until) {
            self.end_by_time();
            return None;
        }
        let limit = self.max_concurrent();
        let one_more = |now: usize| (now < limit).then_some(now + 1);
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        self.working.fetch_update(set, get, one_more).ok()?;
        Some(JobPermit(Arc::clone(self)))
    }

    /// Whether [`Self::acquire_job`] may succeed; it may still return `None`.
    pub(crate) fn has_free_job(&self) -> bool {
        !self.is_over() && self.working.load(Ordering::Acquire) < self.max_concurrent()
    }

    fn max_concurrent(&self) -> usize {
        self.bounds.jobs.map_or(usize::MAX, usize::from)
    }

    fn end_by_time(&self) {
        if !self.is_late.swap(true, Ordering::AcqRel) {
            tracing::info!(run = %self.run, "the run's deadline has passed: no further task of it begins");
            let why = "the run's deadline (run --until) passed before the task began";
            self.notify_pools(why, false);
        }
    }

    /// Adds to what the run has spent; `true` if this reached a limit.
    pub(crate) fn add_spend(&self, more: Amount) -> bool {
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        for (sum, more) in [(&self.cost, more.nanodollars), (&self.tokens, more.tokens)] {
            let add = |now: u64| Some(now.saturating_add(more));
            let _ = sum.fetch_update(set, get, add);
        }
        let Some(spent) = self.spent_budget() else {
            return false;
        };
        if self.is_spent.swap(true, Ordering::AcqRel) {
            return false;
        }
        let why = if spent.budget.is_cost() {
            format!(
                "the run's cost reached its limit: {} of {} (run --max-cost)",
                format_cost(spent.used),
                format_cost(spent.limit)
            )
        } else {
            format!(
                "the run's tokens reached their limit: {} of {} (run --max-tokens)",
                spent.used, spent.limit
            )
        };
        self.notify_pools(&why, true);
        true
    }

    /// The limit of cost or tokens as a spent budget, if one is reached.
    pub(crate) fn spent_budget(&self) -> Option<SpentBudget> {
        let limits = [
            (BudgetName::MaxCost, &self.cost, self.bounds.max_cost),
            (BudgetName::MaxTokens, &self.tokens, self.bounds.max_tokens),
        ];
        limits.into_iter().find_map(|(budget, sum, limit)| {
            let used = sum.load(Ordering::Acquire);
            Some(SpentBudget {
                budget,
                used,
                limit: limit.filter(|limit| used >= *limit)?,
                action: BudgetAction::Interrupt,
            })
        })
    }

    /// Ends the tasks of a resumed run at once if a limit of what it spends was reached before.
    pub(crate) fn notify_if_spent(&self) {
        if let Some(spent) = self.spent_budget() {
            let word = if spent.budget.is_cost() {
                "cost"
            } else {
                "tokens"
            };
            self.notify_pools(&format!("{spent} (run --max-{word})"), true);
        }
    }

    fn notify_pools(&self, why: &str, cancels: bool) {
        for pool in &self.pools {
            let message = PoolMsg::RunLimitReached {
                run: self.run.clone(),
                why: why.to_owned(),
                cancels,
            };
            let _ = pool.send_message(message);
        }
    }
}

/// The permit of a running task. When it is dropped, another task may begin.
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
