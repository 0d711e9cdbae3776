//! What one session spent, in its running turn and since it began, and what it may spend.
//!
//! Two figures are kept: what routes counted, and what the agent said. The larger one is what was
//! spent: since the session began, and of a turn, a day or a run since that began. Must not know what follows for the turn.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::day::Day;
use super::spend_notification::notify_budget_spent;
use super::{Ledger, RunLimits, SpendDelta};
use crate::clock::now_us;
use crate::session::{SessionMsg, SessionRef};
use marshal_config::find_price;
use marshal_journal::StoredSpend;
use marshal_model::budget::nanos_from_dollars;
use marshal_model::{
    Amount, BudgetAction, BudgetLimits, BudgetName, SessionId, SlotId, SpentBudget, Usage,
};
use marshal_policy::budget::Budget;
use marshal_proxy::model_proxy::{self, BillingInfo};
use marshal_proxy::route::{Refusal, Tokens};
use marshal_telemetry::labels::RouteRefusal;

/// How wide a model's name may be in a refusal.
const MODEL_WIDTH: usize = 100;

/// What begins anew with every turn.
const TURN_BUDGETS: [BudgetName; 6] = [
    BudgetName::AllowsPerTurn,
    BudgetName::AllowsPerMinute,
    BudgetName::DeniesInARow,
    BudgetName::TurnSeconds,
    BudgetName::TurnTokens,
    BudgetName::TurnCost,
];

/// The purse of a session. Its relays and the session itself share it.
#[derive(Debug)]
pub(crate) struct SpendTracker {
    ledger: Arc<Ledger>,
    session: SessionId,
    /// Told when a budget is spent whose end is for it to carry out.
    owner: SessionRef,
    inner: Mutex<Inner>,
}

/// What routes counted, and what the agent said.
#[derive(Debug, Clone, Copy, Default)]
struct SpendTotals {
    counted: Amount,
    reported: Amount,
}

impl SpendTotals {
    fn total(self) -> Amount {
        self.counted.max(self.reported)
    }

    fn since(self, then: Self) -> Amount {
        let counted = self.counted.saturating_sub(then.counted);
        counted.max(self.reported.saturating_sub(then.reported))
    }

    /// How much more this is than `last` of what began at `then`. Never less than what was counted.
    fn growth(self, last: Self, then: Self) -> Amount {
        self.since(then).saturating_sub(last.since(then))
    }
}

#[derive(Debug, Default)]
struct Inner {
    all: SpendTotals,
    /// As it stood when the running turn began.
    at_turn: SpendTotals,
    /// As it stood when that day began, or the purse was opened.
    at_day: (Option<Day>, SpendTotals),
    /// As it stood when the session began to work for its run.
    at_run: SpendTotals,
    /// Tokens of the running turn, as the agent said last.
    reported_turn_usage: Usage,
    /// The cost of the agent's tokens, by the price of its model.
    priced: u64,
    /// What the session spent before this start of the supervisor, or before its purse was closed.
    before: u64,
    /// The agent's model, for its price.
    model: Option<String>,
    /// What a turn may spend.
    turn_limit: BudgetLimits,
    then: Option<BudgetAction>,
    run: Option<Arc<RunLimits>>,
    /// Where it works.
    slot: Option<SlotId>,
    /// Counts the session's tasks and turns: what is told of one is not meant for the next.
    turn: u64,
    /// What was told of this session, turn or run.
    notified: BTreeSet<BudgetName>,
    /// The session was told to end its turn.
    is_ending: bool,
    is_closed: bool,
}

impl SpendTracker {
    /// Opens the purse of a session, with what it spent before.
    pub(crate) fn open(ledger: &Arc<Ledger>, session: &SessionId, owner: SessionRef) -> Arc<Self> {
        let StoredSpend { amount, counted } = ledger.take_session_spend(session);
        let all = SpendTotals {
            counted,
            reported: amount,
        };
        Arc::new(Self {
            ledger: Arc::clone(ledger),
            session: session.clone(),
            owner,
            inner: Mutex::new(Inner {
                all,
                at_turn: all,
                at_day: (None, all),
                at_run: all,
                before: amount.nanodollars,
                ..Inner::default()
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task begins in this slot, for a run with such bounds, if it has any.
    pub(crate) fn start_task(&self, run: Option<Arc<RunLimits>>, slot: &SlotId) {
        let mut inner = self.lock();
        let id = |of: &Option<Arc<RunLimits>>| of.as_deref().map(|run| run.run().clone());
        if id(&run) != id(&inner.run) {
            inner.at_run = inner.all;
        }
        inner.run = run;
        inner.slot = Some(slot.clone());
        inner.turn += 1;
        inner.is_ending = false;
        inner.notified.remove(&BudgetName::MaxCost);
    }

    /// The number of the running turn, or of the time before it.
    pub(crate) fn turn_number(&self) -> u64 {
        self.lock().turn
    }

    /// A turn begins, under these bounds: its number.
    pub(crate) fn start_turn(&self, budget: &Budget) -> u64 {
        let mut inner = self.lock();
        inner.at_turn = inner.all;
        inner.reported_turn_usage = Usage::default();
        inner.turn_limit = budget.turn;
        inner.then = Some(budget.then);
        inner.is_ending = false;
        inner
            .notified
            .retain(|budget| !TURN_BUDGETS.contains(budget));
        inner.turn += 1;
        inner.turn
    }

    /// The agent says which model it uses.
    pub(crate) fn set_model(&self, model: &str) {
        self.lock().model = Some(model.to_owned());
    }

    /// The agent says how many tokens the running turn took so far. Advisory: it can only stop it
    /// earlier.
    pub(crate) fn record_reported_tokens(&self, so_far: Usage) {
        let mut inner = self.lock();
        let last = inner.reported_turn_usage;
        let input = so_far.input.saturating_sub(last.input);
        let output = so_far.output.saturating_sub(last.output);
        if input == 0 && output == 0 {
            return;
        }
        inner.reported_turn_usage = Usage {
            input: last.input.max(so_far.input),
            output: last.output.max(so_far.output),
        };
        let model = inner.model.as_deref();
        let price = model.and_then(|model| find_price(self.ledger.prices(), model));
        let cost = price.map_or(0, |price| price.cost(input, output, 0, 0).nanodollars);
        inner.priced = inner.priced.saturating_add(cost);
        let mut all = inner.all;
        all.reported.tokens = all
            .reported
            .tokens
            .saturating_add(input.saturating_add(output));
        let priced = inner.before.saturating_add(inner.priced);
        all.reported.nanodollars = all.reported.nanodollars.max(priced);
        self.update_totals(inner, all);
    }

    /// The agent says what the session cost so far, in US dollars. Advisory as well.
    pub(crate) fn record_reported_cost(&self, amount: f64) {
        let Some(nano) = nanos_from_dollars(amount) else {
            return;
        };
        let inner = self.lock();
        let mut all = inner.all;
        all.reported.nanodollars = all.reported.nanodollars.max(nano);
        self.update_totals(inner, all);
    }

    /// The figures are these now.
    fn update_totals(&self, mut inner: MutexGuard<'_, Inner>, all: SpendTotals) {
        let then = std::mem::replace(&mut inner.all, all);
        let at_us = now_us();
        let today = Some(Day::from_micros(at_us));
        if inner.at_day.0 != today {
            inner.at_day = (today, then);
        }
        let more = SpendDelta {
            at_us,
            amount: all.total().saturating_sub(then.total()),
            of_day: all.growth(then, inner.at_day.1),
            of_run: all.growth(then, inner.at_run),
            counted: all.counted.saturating_sub(then.counted),
        };
        let run = inner.run.clone();
        drop(inner);
        if !self.ledger.is_counting() && run.is_none() {
            return self.check_budgets();
        }
        let id = run.as_deref().map(RunLimits::run);
        self.ledger.record_spend(&self.session, id, more);
        if let Some(run) = run
            && run.add_cost(more.of_run.nanodollars)
            && let Some(spent) = run.spent_budget()
        {
            notify_budget_spent(
                &self.ledger.listeners,
                &self.ledger.name,
                (None, &self.session),
                &spent,
            );
        }
        self.check_budgets();
    }

    /// What of the turn, the session, the pool or the run is spent, if anything is.
    pub(crate) fn spent_budget(&self) -> Option<SpentBudget> {
        self.find_spent_budget(&self.lock())
    }

    fn find_spent_budget(&self, inner: &Inner) -> Option<SpentBudget> {
        let turn = (BudgetName::TurnTokens, BudgetName::TurnCost);
        let then = inner.then.unwrap_or(BudgetAction::Ask);
        let of_turn = inner
            .turn_limit
            .find_spent(inner.all.since(inner.at_turn), turn, then);
        let session = (BudgetName::SessionTokens, BudgetName::SessionCost);
        let budget = self.ledger.budget();
        let of_session = || {
            budget
                .session
                .find_spent(inner.all.total(), session, budget.then)
        };
        let run = inner.run.as_ref();
        of_turn
            .or_else(of_session)
            .or_else(|| self.ledger.spent_budget())
            .or_else(|| run.and_then(|run| run.spent_budget()))
    }

    /// What the running turn spent.
    pub(crate) fn turn_spend(&self) -> Amount {
        let inner = self.lock();
        inner.all.since(inner.at_turn)
    }

    /// Tells what is spent and was not told, and has the session end its turn where that follows.
    fn check_budgets(&self) {
        self.enforce_budgets();
    }

    /// The same, and gives it.
    fn enforce_budgets(&self) -> Option<SpentBudget> {
        let mut inner = self.lock();
        let spent = self.find_spent_budget(&inner)?;
        let ends = spent.action >= BudgetAction::Interrupt
            && spent.budget != BudgetName::MaxCost
            && !std::mem::replace(&mut inner.is_ending, true);
        let turn = inner.turn;
        drop(inner);
        self.notify_once(&spent);
        if ends {
            let _ = self
                .owner
                .send_message(SessionMsg::BudgetSpent { spent, turn });
        }
        Some(spent)
    }

    /// Tells once that a budget of the turn or the session is spent; its ledger tells of the
    /// pool's, and the run of its own.
    pub(crate) fn notify_once(&self, spent: &SpentBudget) {
        let is_own = TURN_BUDGETS.contains(&spent.budget)
            || matches!(
                spent.budget,
                BudgetName::SessionTokens | BudgetName::SessionCost
            );
        if is_own && self.lock().notified.insert(spent.budget) {
            let slot = self.lock().slot.clone();
            notify_budget_spent(
                &self.ledger.listeners,
                &self.ledger.name,
                (slot.as_ref(), &self.session),
                spent,
            );
        }
    }

    /// Whether anything is bounded, so that what no route can count cannot pass.
    fn has_budget(&self) -> bool {
        let inner = self.lock();
        let run = inner.run.as_ref();
        inner.turn_limit.is_set()
            || self.ledger.budget().is_set()
            || run.is_some_and(|run| run.has_cost_limit())
    }

    /// Whether a cost is bounded, so that what has no price cannot pass.
    fn has_cost_budget(&self) -> bool {
        let inner = self.lock();
        let run = inner.run.as_ref();
        inner.turn_limit.nanodollars.is_some()
            || self.ledger.budget().has_cost()
            || run.is_some_and(|run| run.has_cost_limit())
    }

    /// It is put away until the session is gone on with; `for_good`: it is not.
    pub(crate) fn close(&self, for_good: bool) {
        let mut inner = self.lock();
        let all = inner.all;
        if std::mem::replace(&mut inner.is_closed, true) {
            return;
        }
        drop(inner);
        self.ledger.flush();
        if for_good {
            return self.ledger.forget_session_spend(&self.session);
        }
        let spent = StoredSpend {
            amount: all.total(),
            counted: all.counted,
        };
        if self.ledger.budget().session.is_set() {
            self.ledger.store_session_spend(&self.session, spent);
        }
    }
}

impl model_proxy::UsageMeter for SpendTracker {
    fn needs_request_details(&self) -> bool {
        self.ledger.is_counting() || self.has_budget()
    }

    fn check_request(&self, bill: &BillingInfo) -> Result<(), Refusal> {
        if bill.is_free {
            return Ok(());
        }
        let refuse = |what: String| Err(Refusal::new(RouteRefusal::Budget, 402, what));
        if let Some(spent) = self.enforce_budgets() {
            return refuse(format!(
                "{spent}; no model can be asked until there is more"
            ));
        }
        if bill.model_request.is_deferred && self.has_budget() {
            let what = "there is a budget, and the request asks for an answer that comes later (in the background, or in a batch), which no route can count: ask for it at once";
            return Err(Refusal::new(RouteRefusal::Budget, 403, what));
        }
        if !self.has_cost_budget() {
            return Ok(());
        }
        match bill.model_request.model.as_deref() {
            None => refuse(
                "there is a budget of cost, and the request names no model, or not plainly: what it costs cannot be known"
                    .to_owned(),
            ),
            Some(model) if find_price(self.ledger.prices(), model).is_none() => {
                let model = marshal_model::untrusted::escape_for_display(model, MODEL_WIDTH);
                refuse(format!(
                    "there is a budget of cost, and the model {model} has no price: whoever configures this supervisor must add [price.\"{model}\"]"
                ))
            }
            Some(_) => Ok(()),
        }
    }

    fn record_usage(&self, bill: &BillingInfo, tokens: Tokens) {
        let price = bill.model_request.model.as_deref();
        let price = price.and_then(|model| price_of(&self.ledger, model));
        let amount = match price {
            Some(price) => price.cost(
                tokens.input,
                tokens.output,
                tokens.cache_read,
                tokens.cache_write,
            ),
            None => Amount {
                tokens: tokens.input.saturating_add(tokens.output),
                nanodollars: 0,
            },
        };
        if amount.is_zero() {
            return;
        }
        let inner = self.lock();
        let mut all = inner.all;
        all.counted = all.counted.saturating_add(amount);
        self.update_totals(inner, all);
    }
}

fn price_of<'l>(ledger: &'l Ledger, model: &str) -> Option<&'l marshal_config::Price> {
    find_price(ledger.prices(), model)
}
