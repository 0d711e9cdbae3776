//! The spend of one session, in its running turn and in total, and its limits.
//!
//! It keeps two sums: the usage that routes counted, and the usage that the agent reported. The
//! larger one is the spend: of the session, and of a turn, a day or a run since its start. Must not
//! know what follows for the turn.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::day::Day;
use super::spend_notification::notify_budget_spent;
use super::{Ledger, RunLimits, SpendDelta};
use crate::clock::now_us;
use crate::messages::{SessionMsg, SessionRef};
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

/// The maximum width of a model's name in a refusal, in columns.
const MODEL_WIDTH: usize = 100;

/// The budgets that start anew with every turn.
const TURN_BUDGETS: [BudgetName; 6] = [
    BudgetName::AllowsPerTurn,
    BudgetName::AllowsPerMinute,
    BudgetName::DeniesInARow,
    BudgetName::TurnSeconds,
    BudgetName::TurnTokens,
    BudgetName::TurnCost,
];

/// The spend tracker of a session, shared by the session and its model proxies.
#[derive(Debug)]
pub(crate) struct SpendTracker {
    ledger: Arc<Ledger>,
    session: SessionId,
    /// The session; notified when it must end its turn because a budget is spent.
    owner: SessionRef,
    inner: Mutex<Inner>,
}

/// Sums of the usage that routes counted and that the agent reported.
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

    /// The increase from `last` to now, of a period that began at `then`. Computed from the larger
    /// sum of each, so a report and a count of the same usage count once.
    fn growth(self, last: Self, then: Self) -> Amount {
        self.since(then).saturating_sub(last.since(then))
    }
}

#[derive(Debug, Default)]
struct Inner {
    all: SpendTotals,
    /// The sums when the running turn began.
    at_turn: SpendTotals,
    /// The sums when that day began, or when the tracker was opened.
    at_day: (Option<Day>, SpendTotals),
    /// The sums when the session began to work for its run.
    at_run: SpendTotals,
    /// Tokens of the running turn, as the agent last reported them.
    reported_turn_usage: Usage,
    /// The cost of the reported tokens by the price of the agent's model, in billionths of a US
    /// dollar.
    priced: u64,
    /// The session's cost before this tracker was opened, in billionths of a US dollar.
    before: u64,
    /// The agent's model, which selects the price.
    model: Option<String>,
    /// The limits of a turn.
    turn_limit: BudgetLimits,
    then: Option<BudgetAction>,
    run: Option<Arc<RunLimits>>,
    /// The session's slot.
    slot: Option<SlotId>,
    /// Counts the session's tasks and turns, so that a late message about one is not applied to the
    /// next.
    turn: u64,
    /// Budgets that were reported for this session, turn or run.
    notified: BTreeSet<BudgetName>,
    /// Whether the session was told to end its turn.
    is_ending: bool,
    is_closed: bool,
}

impl SpendTracker {
    /// Opens the spend tracker of a session, with its earlier spend.
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

    /// A task begins in this slot; `run` has the bounds of its run, if any.
    pub(crate) fn start_task(&self, run: Option<Arc<RunLimits>>, slot: &SlotId) {
        let mut inner = self.lock();
        let id = |limits: &Option<Arc<RunLimits>>| limits.as_deref().map(|run| run.run().clone());
        if id(&run) != id(&inner.run) {
            inner.at_run = inner.all;
        }
        inner.run = run;
        inner.slot = Some(slot.clone());
        inner.turn += 1;
        inner.is_ending = false;
        inner.notified.remove(&BudgetName::MaxCost);
        inner.notified.remove(&BudgetName::MaxTokens);
    }

    /// The number of the running turn, or of the task before its turn.
    pub(crate) fn turn_number(&self) -> u64 {
        self.lock().turn
    }

    /// A turn begins with this budget; returns its number.
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

    /// Records the model that the agent reports.
    pub(crate) fn set_model(&self, model: &str) {
        self.lock().model = Some(model.to_owned());
    }

    /// Records the tokens of the running turn so far, as the agent reports them. Advisory: they can
    /// only stop the turn earlier.
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

    /// Records the session's cost so far in US dollars, as the agent reports it. Advisory too.
    pub(crate) fn record_reported_cost(&self, amount: f64) {
        let Some(nano) = nanos_from_dollars(amount) else {
            return;
        };
        let inner = self.lock();
        let mut all = inner.all;
        all.reported.nanodollars = all.reported.nanodollars.max(nano);
        self.update_totals(inner, all);
    }

    /// Sets the sums, records the increase in the ledger and the run, and checks the budgets.
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
            && run.add_spend(more.of_run)
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

    /// The first spent budget of turn, session, pool or run, if any.
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

    /// The spend of the running turn.
    pub(crate) fn turn_spend(&self) -> Amount {
        let inner = self.lock();
        inner.all.since(inner.at_turn)
    }

    /// Reports a spent budget, and tells the session to end its turn if the budget's action
    /// requires it.
    fn check_budgets(&self) {
        self.enforce_budgets();
    }

    /// Like [`Self::check_budgets`], and returns the spent budget.
    fn enforce_budgets(&self) -> Option<SpentBudget> {
        let mut inner = self.lock();
        let spent = self.find_spent_budget(&inner)?;
        let ends = spent.action >= BudgetAction::Interrupt
            && !matches!(spent.budget, BudgetName::MaxCost | BudgetName::MaxTokens)
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

    /// Reports once that a budget of the turn or the session is spent. The ledger reports the
    /// pool's budgets, and `update_totals` the run's.
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

    /// Whether there is any budget; then a request that no route can count is refused.
    fn has_budget(&self) -> bool {
        let inner = self.lock();
        let run = inner.run.as_ref();
        inner.turn_limit.is_set()
            || self.ledger.budget().is_set()
            || run.is_some_and(|run| run.has_spend_limit())
    }

    /// Whether there is a cost budget; then a request without a known price is refused.
    fn has_cost_budget(&self) -> bool {
        let inner = self.lock();
        let run = inner.run.as_ref();
        inner.turn_limit.nanodollars.is_some()
            || self.ledger.budget().has_cost()
            || run.is_some_and(|run| run.has_cost_limit())
    }

    /// Closes the tracker. Its spend is stored for the next one, unless the session ended
    /// `for_good`.
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
                "{spent}; no request to a model passes until the budget is raised or starts anew"
            ));
        }
        if bill.model_request.is_deferred && self.has_budget() {
            let what = "there is a budget, and the request wants an answer that comes later (in the background, or in a batch), which no route can count: request an immediate answer";
            return Err(Refusal::new(RouteRefusal::Budget, 403, what));
        }
        if !self.has_cost_budget() {
            return Ok(());
        }
        match bill.model_request.model.as_deref() {
            None => refuse(
                "there is a cost budget, and the request names no model, or not clearly, so its cost is unknown: name one model"
                    .to_owned(),
            ),
            Some(model) if find_price(self.ledger.prices(), model).is_none() => {
                let model = marshal_model::untrusted::escape_for_display(model, MODEL_WIDTH);
                refuse(format!(
                    "there is a cost budget, and the model {model} has no price: add [price.\"{model}\"] to the supervisor's configuration"
                ))
            }
            Some(_) => Ok(()),
        }
    }

    fn record_usage(&self, bill: &BillingInfo, tokens: Tokens) {
        let price = bill
            .model_request
            .model
            .as_deref()
            .and_then(|model| price_of(&self.ledger, model));
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
