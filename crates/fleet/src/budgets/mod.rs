//! Budgets of tokens and cost: what was spent, over all starts of the supervisor, and whether a
//! limit is reached.
//!
//! ```text
//! route: request -> check budgets -- the answer's tokens --> spend tracker -> ledger -> journal
//! agent: usage that it reports ----------------------------> spend tracker  (can only add)
//! ```
//!
//! A pool has a [`Ledger`], a session a [`SpendTracker`], a run a [`RunLimits`]. The route enforces
//! the usage that it counts; the usage that an agent reports can only stop it earlier. Must not
//! know what follows for a turn, a slot or a task: sessions and pools query this module.
//!
//! The budgets of policies are pure (`policy/budget.rs`). The spend is in rows of
//! `journal/spend.rs`. Routes check the spend tracker before they forward a request
//! (`proxy/model_proxy/usage_meter.rs`). `session/turn/budget.rs` and `pool/bounds.rs` carry out what follows.

mod day;
mod run;
mod spend_notification;
mod spend_tracker;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use run::RunBounds;
pub(crate) use run::{JobPermit, PendingRunBounds, RunLimits};
pub(crate) use spend_tracker::SpendTracker;

use super::clock::now_us;
use super::hooks::Hooks;
use super::slot_history::SlotHistoryError;
use day::Day;
use marshal_config::{PoolBudget, Prices};
use marshal_journal::{Commit, Journal, Period, SpendRow, StoredSpend, Write};
use marshal_model::budget::NANOS_PER_DOLLAR;
use marshal_model::limits::SPENT_DAYS;
use marshal_model::{Amount, BudgetName, PoolName, RunId, SessionId, SpentBudget};
use marshal_telemetry::event::budget::BudgetLeft;

/// A pool's spend and its budgets.
#[derive(Debug)]
pub(crate) struct Ledger {
    name: PoolName,
    budget: PoolBudget,
    prices: Prices,
    /// Whether the pool's agents reach their models by routes, which count what passes.
    has_routes: bool,
    journal: Journal,
    listeners: spend_notification::Listeners,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    day: Day,
    day_total: Amount,
    /// The spend of other days, at most [`SPENT_DAYS`]. A clock may be set back; then the day
    /// continues with its earlier sum.
    days: BTreeMap<Day, Amount>,
    pool_total: Amount,
    /// Spent budgets of the day or the pool that were reported already.
    reported: BTreeSet<BudgetName>,
    /// The spend of sessions without an open spend tracker.
    sessions: HashMap<SessionId, StoredSpend>,
    /// Rows that the journal refused; the next commit includes them. Merged, so that they are
    /// bounded: one row for each session, day and run.
    unwritten: Vec<SpendRow>,
}

/// An increase of a session's spend. If an agent reports more than routes counted, the excess
/// counts for session, day and run separately, in the day and run of the report. It must not offset
/// what routes count on a later day or for a later run.
#[derive(Debug, Clone, Copy)]
struct SpendDelta {
    /// Its time, in microseconds since the Unix epoch.
    at_us: i64,
    /// The increase for the session and its pool.
    amount: Amount,
    of_day: Amount,
    of_run: Amount,
    /// The part of it that a route counted.
    counted: Amount,
}

impl SpendDelta {
    const fn is_none(&self) -> bool {
        self.amount.is_zero()
            && self.of_day.is_zero()
            && self.of_run.is_zero()
            && self.counted.is_zero()
    }
}

impl Ledger {
    /// Sets the hooks that are notified of spent budgets.
    pub(super) fn set_hooks(&self, hooks: &Arc<Hooks>) {
        let _ = self.listeners.set(Arc::clone(hooks));
    }

    /// Opens the ledger with the spend of earlier starts of the supervisor. Blocks on the disk.
    pub(super) fn open(
        name: &PoolName,
        budget: PoolBudget,
        prices: &Prices,
        has_routes: bool,
        journal: &Journal,
    ) -> Result<Self, SlotHistoryError> {
        let reader = journal.reader()?;
        let day = Day::from_micros(now_us());
        let mut days = BTreeMap::new();
        for (stored_day, spent) in reader.spend_by_day(name)? {
            if let Some(stored_day) = Day::parse(&stored_day) {
                days.insert(stored_day, spent.amount);
            }
        }
        let of_day = days.remove(&day).unwrap_or_default();
        let of_pool = reader.spend(name, Period::Pool, "")?.amount;
        let mut sessions = HashMap::new();
        for (session, spent) in reader.spend_by_session(name)? {
            if let Ok(session) = SessionId::new(&session) {
                sessions.insert(session, spent);
            }
        }
        let ledger = Self {
            name: name.clone(),
            budget,
            prices: prices.clone(),
            has_routes,
            journal: journal.clone(),
            listeners: spend_notification::Listeners::new(),
            inner: Mutex::new(Inner {
                day,
                day_total: of_day,
                days,
                pool_total: of_pool,
                reported: BTreeSet::new(),
                sessions,
                unwritten: Vec::new(),
            }),
        };
        // Budgets that were spent before this start were reported then.
        while let Some(spent) = ledger.next_unreported() {
            ledger.lock().reported.insert(spent.budget);
        }
        ledger.update_gauge();
        Ok(ledger)
    }

    /// Whether spend is counted at all: there is a budget, a route, or a price of the configuration.
    pub(crate) fn is_counting(&self) -> bool {
        self.budget.is_set() || self.has_routes || !self.prices.is_empty()
    }

    pub(crate) fn prices(&self) -> &Prices {
        &self.prices
    }

    /// The pool's configured budgets.
    pub(crate) const fn budget(&self) -> &PoolBudget {
        &self.budget
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.lock_at(now_us())
    }

    /// Locks the ledger and switches it to the day of `at_us`, microseconds since the Unix epoch.
    fn lock_at(&self, at_us: i64) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let today = Day::from_micros(at_us);
        if inner.day != today {
            self.change_day(&mut inner, today);
        }
        inner
    }

    /// Changes the day after midnight or a change of the clock. A day that returns keeps its sum.
    fn change_day(&self, inner: &mut Inner, today: Day) {
        let of_day = inner.days.remove(&today).unwrap_or_default();
        let last_total = std::mem::replace(&mut inner.day_total, of_day);
        let last_day = std::mem::replace(&mut inner.day, today);
        inner.days.insert(last_day, last_total);
        if inner.days.len() > SPENT_DAYS {
            inner.days.pop_first();
        }
        let is_of_day =
            |budget: &BudgetName| matches!(budget, BudgetName::DayTokens | BudgetName::DayCost);
        inner.reported.retain(|budget| !is_of_day(budget));
        // Budgets of this day that are spent already were reported then.
        let spent = self.spent_budgets(inner).into_iter().flatten();
        let reported: Vec<_> = spent.map(|spent| spent.budget).filter(is_of_day).collect();
        inner.reported.extend(reported);
    }

    /// The first spent budget of the day or the pool, if any.
    pub(crate) fn spent_budget(&self) -> Option<SpentBudget> {
        let inner = self.lock();
        self.spent_budgets(&inner).into_iter().flatten().next()
    }

    fn spent_budgets(&self, inner: &Inner) -> [Option<SpentBudget>; 4] {
        let (day, pool) = (self.budget.day, self.budget.pool);
        let find = |limits: marshal_model::BudgetLimits, used, names| {
            let tokens = marshal_model::BudgetLimits {
                nanodollars: None,
                ..limits
            };
            let cost = marshal_model::BudgetLimits {
                tokens: None,
                ..limits
            };
            let then = self.budget.then;
            [
                tokens.find_spent(used, names, then),
                cost.find_spent(used, names, then),
            ]
        };
        let days = (BudgetName::DayTokens, BudgetName::DayCost);
        let pools = (BudgetName::PoolTokens, BudgetName::PoolCost);
        let [a, b] = find(day, inner.day_total, days);
        let [c, d] = find(pool, inner.pool_total, pools);
        [a, b, c, d]
    }

    /// A spent budget that was not reported yet.
    fn next_unreported(&self) -> Option<SpentBudget> {
        let inner = self.lock();
        let spent = self.spent_budgets(&inner).into_iter().flatten();
        let mut unreported = spent.filter(|spent| !inner.reported.contains(&spent.budget));
        unreported.next()
    }

    /// Records an increase of a session's spend. Durable with the journal's next commit.
    fn record_spend(&self, session: &SessionId, run: Option<&RunId>, more: SpendDelta) {
        if more.is_none() {
            return;
        }
        let mut inner = self.lock_at(more.at_us);
        inner.day_total = inner.day_total.saturating_add(more.of_day);
        inner.pool_total = inner.pool_total.saturating_add(more.amount);
        let mut rows = std::mem::take(&mut inner.unwritten);
        merge_row(
            &mut rows,
            SpendRow {
                pool: self.name.clone(),
                session: session.clone(),
                day: inner.day.name(),
                run: run.cloned(),
                amount: more.amount,
                day_amount: more.of_day,
                run_amount: more.of_run,
                counted: more.counted,
                at_us: more.at_us,
            },
        );
        self.write(&mut inner, rows);
        drop(inner);
        self.update_gauge();
        while let Some(spent) = self.next_unreported() {
            // Another session may get here at the same moment; only the first insert reports it.
            if self.lock().reported.insert(spent.budget) {
                spend_notification::notify_budget_spent(
                    &self.listeners,
                    &self.name,
                    (None, session),
                    &spent,
                );
            }
        }
    }

    /// Submits rows to the journal; keeps them in `unwritten` if it refuses.
    fn write(&self, inner: &mut Inner, rows: Vec<SpendRow>) {
        let writes = rows.iter().cloned().map(Write::SpendRecorded).collect();
        if let Err(refused) = self.journal.submit(Commit::new(writes)) {
            tracing::warn!(pool = %self.name, reason = %refused.reason, "the spend is not journalled yet: it is written with the next commit");
            inner.unwritten = rows;
        }
    }

    /// Submits the refused rows again.
    fn flush(&self) {
        let mut inner = self.lock();
        let rows = std::mem::take(&mut inner.unwritten);
        if !rows.is_empty() {
            self.write(&mut inner, rows);
        }
    }

    /// The cost of the pool's turns over all starts, in US dollars; `None` if none is counted.
    pub(super) fn dollars(&self) -> Option<f64> {
        let is_counting = self.is_counting();
        is_counting.then(|| self.lock().pool_total.nanodollars as f64 / NANOS_PER_DOLLAR as f64)
    }

    /// Updates the gauge of the remaining budget, if the pool has a budget of day or pool.
    fn update_gauge(&self) {
        if !(self.budget.day.is_set() || self.budget.pool.is_set()) {
            return;
        }
        let inner = self.lock();
        let day = self.budget.day.remaining_ratio(inner.day_total);
        let left = day.min(self.budget.pool.remaining_ratio(inner.pool_total));
        let pool = &self.name;
        BudgetLeft { pool, left }.emit();
    }

    /// Takes a session's stored spend; its spend tracker owns it from here on.
    fn take_session_spend(&self, session: &SessionId) -> StoredSpend {
        self.lock().sessions.remove(session).unwrap_or_default()
    }

    /// Stores a session's spend when its tracker closes, for the next tracker.
    fn store_session_spend(&self, session: &SessionId, spent: StoredSpend) {
        self.lock().sessions.insert(session.clone(), spent);
    }

    /// Removes the spend of a session that has ended for good.
    pub(crate) fn forget_session_spend(&self, session: &SessionId) {
        self.lock().sessions.remove(session);
    }
}

/// Adds a row to the pending ones: merged into the row of the same session, day and run, if any.
fn merge_row(rows: &mut Vec<SpendRow>, row: SpendRow) {
    let is_same = |other: &&mut SpendRow| {
        other.session == row.session && other.day == row.day && other.run == row.run
    };
    match rows.iter_mut().find(is_same) {
        Some(sum) => {
            sum.amount = sum.amount.saturating_add(row.amount);
            sum.day_amount = sum.day_amount.saturating_add(row.day_amount);
            sum.run_amount = sum.run_amount.saturating_add(row.run_amount);
            sum.counted = sum.counted.saturating_add(row.counted);
            sum.at_us = row.at_us;
        }
        None => rows.push(row),
    }
}

/// A ledger for tests.
#[cfg(test)]
pub(crate) fn ledger(
    name: &str,
    budget: PoolBudget,
    prices: &Prices,
    journal: &Journal,
) -> Arc<Ledger> {
    let name = PoolName::new(name).expect("a name");
    Arc::new(Ledger::open(&name, budget, prices, false, journal).expect("a ledger"))
}
