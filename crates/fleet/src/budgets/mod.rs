//! Budgets of tokens and cost: what was spent, over every start of the supervisor, and whether that
//! is too much.
//!
//! ```text
//! route: request -> may it pass? -- the answer's tokens --> purse -> ledger of the pool -> journal
//! agent: usage that it reports ---------------------------> purse    (never less than was counted)
//! ```
//!
//! A [`Diagnostics`] is a pool's, a [`SpendTracker`] a session's, a [`RunLimits`] a run's. What a route counts
//! is enforced there; what an agent reports can only stop it earlier. Must not know what follows for
//! a turn, a slot or a task: sessions and pools ask.
//!
//! What a policy says of budgets is pure (`policy/budget.rs`). What was spent is in rows of `journal/spend.rs`.
//! Routes ask the purse before a request goes on (`proxy/relay/usage_meter.rs`). What follows is carried out in
//! `session/budget.rs` and `pool/bounds.rs`.

mod day;
mod run;
mod spend_notification;
mod spend_tracker;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use run::RunBounds;
pub(crate) use run::{JobPermit, PendingRunBounds, RunLimits};
pub(crate) use spend_tracker::SpendTracker;

use super::clock::now_us;
use super::hooks::Hooks;
use super::slot_history::SlotHistoryError;
use day::Day;
use marshal_config::{PoolBudget, Prices};
use marshal_journal::{Commit, Journal, Period, SpendRow, StoredSpend, Write};
use marshal_model::limits::SPENT_DAYS;
use marshal_model::{Amount, BudgetName, PoolName, RunId, SessionId, SpentBudget};
use marshal_telemetry::event::budget::BudgetLeft;

/// What a pool spent, and may spend.
#[derive(Debug)]
pub(crate) struct Ledger {
    name: PoolName,
    budget: PoolBudget,
    prices: Prices,
    journal: Journal,
    listeners: spend_notification::Listeners,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    day: Day,
    day_total: Amount,
    /// Other days, because a clock may be set back: only a day that is not known begins at nothing.
    /// At most [`SPENT_DAYS`].
    days: BTreeMap<Day, Amount>,
    pool_total: Amount,
    /// Budgets of the day, or for ever, that were told to be spent.
    reported: BTreeSet<BudgetName>,
    /// What sessions spent that no purse is open for.
    sessions: HashMap<SessionId, StoredSpend>,
    /// What the journal did not take: the next that it takes brings it along. One row a session.
    unwritten: Vec<SpendRow>,
}

/// What a session spent more, at a time in microseconds since the Unix epoch. What an agent says
/// too much is held against the session, the day and the run in which it says so, each by itself:
/// it must not stand for what routes count on a later day or for a later run.
#[derive(Debug, Clone, Copy)]
struct SpendDelta {
    at_us: i64,
    /// Of the session, and of its pool.
    amount: Amount,
    of_day: Amount,
    of_run: Amount,
    /// What a route counted of it.
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
    /// From now on these are told what is spent.
    pub(super) fn set_hooks(&self, hooks: &Arc<Hooks>) {
        let _ = self.listeners.set(Arc::clone(hooks));
    }

    /// Goes on from what earlier starts of the supervisor wrote. Blocks on the disk.
    pub(super) fn open(
        name: &PoolName,
        budget: PoolBudget,
        prices: &Prices,
        journal: &Journal,
    ) -> Result<Self, SlotHistoryError> {
        let reader = journal.reader()?;
        let day = Day::from_micros(now_us());
        let mut days = BTreeMap::new();
        for (of, spent) in reader.spend_by_day(name)? {
            if let Some(of) = Day::parse(&of) {
                days.insert(of, spent.amount);
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
        // What was spent before was told before.
        while let Some(spent) = ledger.next_unreported() {
            ledger.lock().reported.insert(spent.budget);
        }
        ledger.update_gauge();
        Ok(ledger)
    }

    /// Whether anything is counted at all: there is a budget, or a price to count cost with.
    pub(crate) fn is_counting(&self) -> bool {
        self.budget.is_set() || !self.prices.is_empty()
    }

    pub(crate) fn prices(&self) -> &Prices {
        &self.prices
    }

    /// Its own budgets.
    pub(crate) const fn budget(&self) -> &PoolBudget {
        &self.budget
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.lock_at(now_us())
    }

    /// As it is on the day of that time, in microseconds since the Unix epoch.
    fn lock_at(&self, at_us: i64) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let today = Day::from_micros(at_us);
        if inner.day != today {
            self.change_day(&mut inner, today);
        }
        inner
    }

    /// Midnight passed, or the clock was set. A day that is gone back to is as it was left.
    fn change_day(&self, inner: &mut Inner, today: Day) {
        let of_day = inner.days.remove(&today).unwrap_or_default();
        let left = std::mem::replace(&mut inner.day_total, of_day);
        let last = std::mem::replace(&mut inner.day, today);
        inner.days.insert(last, left);
        if inner.days.len() > SPENT_DAYS {
            inner.days.pop_first();
        }
        let is_of_day =
            |budget: &BudgetName| matches!(budget, BudgetName::DayTokens | BudgetName::DayCost);
        inner.reported.retain(|budget| !is_of_day(budget));
        // What was spent of it before was told before.
        let spent = self.spent_budgets(inner).into_iter().flatten();
        let told: Vec<_> = spent.map(|spent| spent.budget).filter(is_of_day).collect();
        inner.reported.extend(told);
    }

    /// The budget of the day or for ever that is spent, if one is.
    pub(crate) fn spent_budget(&self) -> Option<SpentBudget> {
        let inner = self.lock();
        self.spent_budgets(&inner).into_iter().flatten().next()
    }

    fn spent_budgets(&self, inner: &Inner) -> [Option<SpentBudget>; 4] {
        let (day, pool) = (self.budget.day, self.budget.pool);
        let of = |most: marshal_model::BudgetLimits, used, names| {
            let tokens = marshal_model::BudgetLimits {
                nanodollars: None,
                ..most
            };
            let cost = marshal_model::BudgetLimits {
                tokens: None,
                ..most
            };
            let then = self.budget.then;
            [
                tokens.find_spent(used, names, then),
                cost.find_spent(used, names, then),
            ]
        };
        let days = (BudgetName::DayTokens, BudgetName::DayCost);
        let pools = (BudgetName::PoolTokens, BudgetName::PoolCost);
        let [a, b] = of(day, inner.day_total, days);
        let [c, d] = of(pool, inner.pool_total, pools);
        [a, b, c, d]
    }

    /// One that is spent and was not told.
    fn next_unreported(&self) -> Option<SpentBudget> {
        let inner = self.lock();
        let spent = self.spent_budgets(&inner).into_iter().flatten();
        let mut untold = spent.filter(|spent| !inner.reported.contains(&spent.budget));
        untold.next()
    }

    /// A session spent more. Durable with the journal's next commit.
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
            // Another session may tell it at the same moment: only one of them does.
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

    /// Hands rows to the journal; what it does not take waits.
    fn write(&self, inner: &mut Inner, rows: Vec<SpendRow>) {
        let writes = rows.iter().cloned().map(Write::SpendRecorded).collect();
        if let Err(refused) = self.journal.submit(Commit::new(writes)) {
            tracing::warn!(pool = %self.name, reason = %refused.reason, "what was spent is not on the disk yet");
            inner.unwritten = rows;
        }
    }

    /// Tries again what the journal did not take.
    fn flush(&self) {
        let mut inner = self.lock();
        let rows = std::mem::take(&mut inner.unwritten);
        if !rows.is_empty() {
            self.write(&mut inner, rows);
        }
    }

    /// Shows what part of its budgets is left, where it has any.
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

    /// What a session spent before; its purse keeps it from here on.
    fn take_session_spend(&self, session: &SessionId) -> StoredSpend {
        self.lock().sessions.remove(session).unwrap_or_default()
    }

    /// A session's purse is closed, and another may be opened for it.
    fn store_session_spend(&self, session: &SessionId, spent: StoredSpend) {
        self.lock().sessions.insert(session.clone(), spent);
    }

    /// The session is over for good.
    pub(crate) fn forget_session_spend(&self, session: &SessionId) {
        self.lock().sessions.remove(session);
    }
}

/// Adds a row to those that wait: to that of its session and day, if there is one.
fn merge_row(rows: &mut Vec<SpendRow>, row: SpendRow) {
    let is_same =
        |of: &&mut SpendRow| of.session == row.session && of.day == row.day && of.run == row.run;
    match rows.iter_mut().find(is_same) {
        Some(of) => {
            of.amount = of.amount.saturating_add(row.amount);
            of.day_amount = of.day_amount.saturating_add(row.day_amount);
            of.run_amount = of.run_amount.saturating_add(row.run_amount);
            of.counted = of.counted.saturating_add(row.counted);
            of.at_us = row.at_us;
        }
        None => rows.push(row),
    }
}

/// The ledgers of tests and of what has no pool.
#[cfg(test)]
pub(crate) fn ledger(
    name: &str,
    budget: PoolBudget,
    prices: &Prices,
    journal: &Journal,
) -> Arc<Ledger> {
    let name = PoolName::new(name).expect("a name");
    Arc::new(Ledger::open(&name, budget, prices, journal).expect("a ledger"))
}
