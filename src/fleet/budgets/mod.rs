//! Budgets of tokens and cost: what was spent, over every start of the supervisor, and whether that
//! is too much.
//!
//! ```text
//! route: request -> may it pass? -- the answer's tokens --> purse -> ledger of the pool -> journal
//! agent: usage that it reports ---------------------------> purse    (never less than was counted)
//! ```
//!
//! A [`Ledger`] is a pool's, a [`Purse`] a session's, a [`RunLimits`] a run's. What a route counts
//! is enforced there; what an agent reports can only stop it earlier. Must not know what follows for
//! a turn, a slot or a task: sessions and pools ask.

mod day;
mod purse;
mod run;
mod told;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use purse::Purse;
pub use run::RunBounds;
pub(crate) use run::{BoundsOfRuns, Place, RunLimits};

use super::clock::now_us;
use super::hooks::Hooks;
use super::memory::MemoryError;
use crate::config::{PoolBudget, Prices};
use crate::journal::{Commit, Journal, Period, SpentRow, StoredSpent, Write};
use crate::limits::SPENT_DAYS;
use crate::model::{Amount, BudgetName, PoolName, RunId, SessionId, Spent};
use crate::telemetry::event::budget::BudgetLeft;
use day::Day;

/// What a pool spent, and may spend.
#[derive(Debug)]
pub(crate) struct Ledger {
    name: PoolName,
    budget: PoolBudget,
    prices: Prices,
    journal: Journal,
    listeners: told::Listeners,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    day: Day,
    of_day: Amount,
    /// Other days, because a clock may be set back: only a day that is not known begins at nothing.
    /// At most [`SPENT_DAYS`].
    days: BTreeMap<Day, Amount>,
    of_pool: Amount,
    /// Budgets of the day, or for ever, that were told to be spent.
    told: BTreeSet<BudgetName>,
    /// What sessions spent that no purse is open for.
    sessions: HashMap<SessionId, StoredSpent>,
    /// What the journal did not take: the next that it takes brings it along. One row a session.
    unwritten: Vec<SpentRow>,
}

/// What a session spent more, at a time in microseconds since the Unix epoch. What an agent says
/// too much is held against the session, the day and the run in which it says so, each by itself:
/// it must not stand for what routes count on a later day or for a later run.
#[derive(Debug, Clone, Copy)]
struct More {
    at_us: i64,
    /// Of the session, and of its pool.
    amount: Amount,
    of_day: Amount,
    of_run: Amount,
    /// What a route counted of it.
    counted: Amount,
}

impl More {
    const fn is_none(&self) -> bool {
        self.amount.is_none()
            && self.of_day.is_none()
            && self.of_run.is_none()
            && self.counted.is_none()
    }
}

impl Ledger {
    /// From now on these are told what is spent.
    pub(super) fn tell(&self, hooks: &Arc<Hooks>) {
        let _ = self.listeners.set(Arc::clone(hooks));
    }

    /// Goes on from what earlier starts of the supervisor wrote. Blocks on the disk.
    pub(super) fn open(
        name: &PoolName,
        budget: PoolBudget,
        prices: &Prices,
        journal: &Journal,
    ) -> Result<Self, MemoryError> {
        let reader = journal.reader()?;
        let day = Day::of(now_us());
        let mut days = BTreeMap::new();
        for (of, spent) in reader.spent_by_days(name)? {
            if let Some(of) = Day::named(&of) {
                days.insert(of, spent.amount);
            }
        }
        let of_day = days.remove(&day).unwrap_or_default();
        let of_pool = reader.spent(name, Period::Pool, "")?.amount;
        let mut sessions = HashMap::new();
        for (session, spent) in reader.spent_by_sessions(name)? {
            if let Ok(session) = SessionId::new(&session) {
                sessions.insert(session, spent);
            }
        }
        let ledger = Self {
            name: name.clone(),
            budget,
            prices: prices.clone(),
            journal: journal.clone(),
            listeners: told::Listeners::new(),
            inner: Mutex::new(Inner {
                day,
                of_day,
                days,
                of_pool,
                told: BTreeSet::new(),
                sessions,
                unwritten: Vec::new(),
            }),
        };
        // What was spent before was told before.
        while let Some(spent) = ledger.untold() {
            ledger.lock().told.insert(spent.budget);
        }
        ledger.show();
        Ok(ledger)
    }

    /// Whether anything is counted at all: there is a budget, or a price to count cost with.
    pub(crate) fn counts(&self) -> bool {
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
        let today = Day::of(at_us);
        if inner.day != today {
            self.change_day(&mut inner, today);
        }
        inner
    }

    /// Midnight passed, or the clock was set. A day that is gone back to is as it was left.
    fn change_day(&self, inner: &mut Inner, today: Day) {
        let of_day = inner.days.remove(&today).unwrap_or_default();
        let left = std::mem::replace(&mut inner.of_day, of_day);
        let last = std::mem::replace(&mut inner.day, today);
        inner.days.insert(last, left);
        if inner.days.len() > SPENT_DAYS {
            inner.days.pop_first();
        }
        let is_of_day =
            |budget: &BudgetName| matches!(budget, BudgetName::DayTokens | BudgetName::DayCost);
        inner.told.retain(|budget| !is_of_day(budget));
        // What was spent of it before was told before.
        let spent = self.all_spent(inner).into_iter().flatten();
        let told: Vec<_> = spent.map(|spent| spent.budget).filter(is_of_day).collect();
        inner.told.extend(told);
    }

    /// The budget of the day or for ever that is spent, if one is.
    pub(crate) fn spent(&self) -> Option<Spent> {
        let inner = self.lock();
        self.all_spent(&inner).into_iter().flatten().next()
    }

    fn all_spent(&self, inner: &Inner) -> [Option<Spent>; 4] {
        let (day, pool) = (self.budget.day, self.budget.pool);
        let of = |most: crate::model::Most, used, names| {
            let tokens = crate::model::Most { nano: None, ..most };
            let cost = crate::model::Most {
                tokens: None,
                ..most
            };
            let then = self.budget.then;
            [
                tokens.spent(used, names, then),
                cost.spent(used, names, then),
            ]
        };
        let days = (BudgetName::DayTokens, BudgetName::DayCost);
        let pools = (BudgetName::PoolTokens, BudgetName::PoolCost);
        let [a, b] = of(day, inner.of_day, days);
        let [c, d] = of(pool, inner.of_pool, pools);
        [a, b, c, d]
    }

    /// One that is spent and was not told.
    fn untold(&self) -> Option<Spent> {
        let inner = self.lock();
        let spent = self.all_spent(&inner).into_iter().flatten();
        let mut untold = spent.filter(|spent| !inner.told.contains(&spent.budget));
        untold.next()
    }

    /// A session spent more. Durable with the journal's next commit.
    fn add(&self, session: &SessionId, run: Option<&RunId>, more: More) {
        if more.is_none() {
            return;
        }
        let mut inner = self.lock_at(more.at_us);
        inner.of_day = inner.of_day.plus(more.of_day);
        inner.of_pool = inner.of_pool.plus(more.amount);
        let mut rows = std::mem::take(&mut inner.unwritten);
        add_row(
            &mut rows,
            SpentRow {
                pool: self.name.clone(),
                session: session.clone(),
                day: inner.day.name(),
                run: run.cloned(),
                amount: more.amount,
                of_day: more.of_day,
                of_run: more.of_run,
                counted: more.counted,
                at_us: more.at_us,
            },
        );
        self.write(&mut inner, rows);
        drop(inner);
        self.show();
        while let Some(spent) = self.untold() {
            // Another session may tell it at the same moment: only one of them does.
            if self.lock().told.insert(spent.budget) {
                told::budget_spent(&self.listeners, &self.name, (None, session), &spent);
            }
        }
    }

    /// Hands rows to the journal; what it does not take waits.
    fn write(&self, inner: &mut Inner, rows: Vec<SpentRow>) {
        let writes = rows.iter().cloned().map(Write::Spent).collect();
        if let Err(refused) = self.journal.submit(Commit::of(writes)) {
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
    fn show(&self) {
        if !(self.budget.day.is_set() || self.budget.pool.is_set()) {
            return;
        }
        let inner = self.lock();
        let day = self.budget.day.left(inner.of_day);
        let left = day.min(self.budget.pool.left(inner.of_pool));
        let pool = &self.name;
        BudgetLeft { pool, left }.emit();
    }

    /// What a session spent before; its purse keeps it from here on.
    fn take_session(&self, session: &SessionId) -> StoredSpent {
        self.lock().sessions.remove(session).unwrap_or_default()
    }

    /// A session's purse is closed, and another may be opened for it.
    fn keep_session(&self, session: &SessionId, spent: StoredSpent) {
        self.lock().sessions.insert(session.clone(), spent);
    }

    /// The session is over for good.
    pub(crate) fn forget_session(&self, session: &SessionId) {
        self.lock().sessions.remove(session);
    }
}

/// Adds a row to those that wait: to that of its session and day, if there is one.
fn add_row(rows: &mut Vec<SpentRow>, row: SpentRow) {
    let is_same =
        |of: &&mut SpentRow| of.session == row.session && of.day == row.day && of.run == row.run;
    match rows.iter_mut().find(is_same) {
        Some(of) => {
            of.amount = of.amount.plus(row.amount);
            of.of_day = of.of_day.plus(row.of_day);
            of.of_run = of.of_run.plus(row.of_run);
            of.counted = of.counted.plus(row.counted);
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
