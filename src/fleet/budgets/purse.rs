//! What one session spent, in its running turn and since it began, and what it may spend.
//!
//! Two figures are kept: what routes counted, and what the agent said. The larger one is what was
//! spent: since the session began, and of a turn, a day or a run since that began. Must not know what follows for the turn.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::day::Day;
use super::told::budget_spent;
use super::{Ledger, More, RunLimits};
use crate::config::price;
use crate::fleet::clock::now_us;
use crate::fleet::session::{SessionMsg, SessionRef};
use crate::journal::StoredSpent;
use crate::model::budget::dollars;
use crate::model::{Amount, BudgetName, Most, SessionId, SlotId, Spent, Then, Usage};
use crate::policy::budget::Budget;
use crate::relay::{self, Bill};
use crate::route::{Refusal, Tokens};
use crate::telemetry::sets::RouteRefusal;

/// How wide a model's name may be in a refusal.
const MODEL_WIDTH: usize = 100;

/// What begins anew with every turn.
const OF_TURN: [BudgetName; 6] = [
    BudgetName::AllowsPerTurn,
    BudgetName::AllowsPerMinute,
    BudgetName::DeniesInARow,
    BudgetName::TurnSeconds,
    BudgetName::TurnTokens,
    BudgetName::TurnCost,
];

/// The purse of a session. Its relays and the session itself share it.
#[derive(Debug)]
pub(crate) struct Purse {
    ledger: Arc<Ledger>,
    session: SessionId,
    /// Told when a budget is spent whose end is for it to carry out.
    owner: SessionRef,
    inner: Mutex<Inner>,
}

/// What routes counted, and what the agent said.
#[derive(Debug, Clone, Copy, Default)]
struct Sides {
    counted: Amount,
    said: Amount,
}

impl Sides {
    fn spent(self) -> Amount {
        self.counted.max(self.said)
    }

    fn since(self, then: Self) -> Amount {
        let counted = self.counted.minus(then.counted);
        counted.max(self.said.minus(then.said))
    }

    /// How much more this is than `last` of what began at `then`. Never less than what was counted.
    fn more(self, last: Self, then: Self) -> Amount {
        self.since(then).minus(last.since(then))
    }
}

#[derive(Debug, Default)]
struct Inner {
    all: Sides,
    /// As it stood when the running turn began.
    at_turn: Sides,
    /// As it stood when that day began, or the purse was opened.
    at_day: (Option<Day>, Sides),
    /// As it stood when the session began to work for its run.
    at_run: Sides,
    /// Tokens of the running turn, as the agent said last.
    said_of_turn: Usage,
    /// The cost of the agent's tokens, by the price of its model.
    priced: u64,
    /// What the session spent before this start of the supervisor, or before its purse was closed.
    before: u64,
    /// The agent's model, for its price.
    model: Option<String>,
    /// What a turn may spend.
    most: Most,
    then: Option<Then>,
    run: Option<Arc<RunLimits>>,
    /// Where it works.
    slot: Option<SlotId>,
    /// Counts the session's tasks and turns: what is told of one is not meant for the next.
    turn: u64,
    /// What was told of this session, turn or run.
    told: BTreeSet<BudgetName>,
    /// The session was told to end its turn.
    is_ending: bool,
    is_closed: bool,
}

impl Purse {
    /// Opens the purse of a session, with what it spent before.
    pub(crate) fn open(ledger: &Arc<Ledger>, session: &SessionId, owner: SessionRef) -> Arc<Self> {
        let StoredSpent { amount, counted } = ledger.take_session(session);
        let all = Sides {
            counted,
            said: amount,
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
                before: amount.nano,
                ..Inner::default()
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task begins in this slot, for a run with such bounds, if it has any.
    pub(crate) fn works_for(&self, run: Option<Arc<RunLimits>>, slot: &SlotId) {
        let mut inner = self.lock();
        let id = |of: &Option<Arc<RunLimits>>| of.as_deref().map(|run| run.run().clone());
        if id(&run) != id(&inner.run) {
            inner.at_run = inner.all;
        }
        inner.run = run;
        inner.slot = Some(slot.clone());
        inner.turn += 1;
        inner.is_ending = false;
        inner.told.remove(&BudgetName::MaxCost);
    }

    /// The number of the running turn, or of the time before it.
    pub(crate) fn turn(&self) -> u64 {
        self.lock().turn
    }

    /// A turn begins, under these bounds: its number.
    pub(crate) fn turn_begins(&self, budget: &Budget) -> u64 {
        let mut inner = self.lock();
        inner.at_turn = inner.all;
        inner.said_of_turn = Usage::default();
        inner.most = budget.turn;
        inner.then = Some(budget.then);
        inner.is_ending = false;
        inner.told.retain(|budget| !OF_TURN.contains(budget));
        inner.turn += 1;
        inner.turn
    }

    /// The agent says which model it uses.
    pub(crate) fn uses_model(&self, model: &str) {
        self.lock().model = Some(model.to_owned());
    }

    /// The agent says how many tokens the running turn took so far. Advisory: it can only stop it
    /// earlier.
    pub(crate) fn said_tokens(&self, so_far: Usage) {
        let mut inner = self.lock();
        let last = inner.said_of_turn;
        let input = so_far.input.saturating_sub(last.input);
        let output = so_far.output.saturating_sub(last.output);
        if input == 0 && output == 0 {
            return;
        }
        inner.said_of_turn = Usage {
            input: last.input.max(so_far.input),
            output: last.output.max(so_far.output),
        };
        let model = inner.model.as_deref();
        let price = model.and_then(|model| price(self.ledger.prices(), model));
        let cost = price.map_or(0, |price| price.cost(input, output, 0, 0).nano);
        inner.priced = inner.priced.saturating_add(cost);
        let mut all = inner.all;
        all.said.tokens = all.said.tokens.saturating_add(input.saturating_add(output));
        let priced = inner.before.saturating_add(inner.priced);
        all.said.nano = all.said.nano.max(priced);
        self.now(inner, all);
    }

    /// The agent says what the session cost so far, in US dollars. Advisory as well.
    pub(crate) fn said_cost(&self, amount: f64) {
        let Some(nano) = dollars(amount) else { return };
        let inner = self.lock();
        let mut all = inner.all;
        all.said.nano = all.said.nano.max(nano);
        self.now(inner, all);
    }

    /// The figures are these now.
    fn now(&self, mut inner: MutexGuard<'_, Inner>, all: Sides) {
        let then = std::mem::replace(&mut inner.all, all);
        let at_us = now_us();
        let today = Some(Day::of(at_us));
        if inner.at_day.0 != today {
            inner.at_day = (today, then);
        }
        let more = More {
            at_us,
            amount: all.spent().minus(then.spent()),
            of_day: all.more(then, inner.at_day.1),
            of_run: all.more(then, inner.at_run),
            counted: all.counted.minus(then.counted),
        };
        let run = inner.run.clone();
        drop(inner);
        if !self.ledger.counts() && run.is_none() {
            return self.look();
        }
        let id = run.as_deref().map(RunLimits::run);
        self.ledger.add(&self.session, id, more);
        if let Some(run) = run
            && run.add(more.of_run.nano)
            && let Some(spent) = run.spent()
        {
            budget_spent(
                &self.ledger.listeners,
                &self.ledger.name,
                (None, &self.session),
                &spent,
            );
        }
        self.look();
    }

    /// What of the turn, the session, the pool or the run is spent, if anything is.
    pub(crate) fn spent(&self) -> Option<Spent> {
        self.spent_in(&self.lock())
    }

    fn spent_in(&self, inner: &Inner) -> Option<Spent> {
        let turn = (BudgetName::TurnTokens, BudgetName::TurnCost);
        let then = inner.then.unwrap_or(Then::Ask);
        let of_turn = inner.most.spent(inner.all.since(inner.at_turn), turn, then);
        let session = (BudgetName::SessionTokens, BudgetName::SessionCost);
        let budget = self.ledger.budget();
        let of_session = || {
            budget
                .session
                .spent(inner.all.spent(), session, budget.then)
        };
        let run = inner.run.as_ref();
        of_turn
            .or_else(of_session)
            .or_else(|| self.ledger.spent())
            .or_else(|| run.and_then(|run| run.spent()))
    }

    /// What the running turn spent.
    pub(crate) fn of_turn(&self) -> Amount {
        let inner = self.lock();
        inner.all.since(inner.at_turn)
    }

    /// Tells what is spent and was not told, and has the session end its turn where that follows.
    fn look(&self) {
        self.told();
    }

    /// The same, and gives it.
    fn told(&self) -> Option<Spent> {
        let mut inner = self.lock();
        let spent = self.spent_in(&inner)?;
        let ends = spent.then >= Then::Interrupt
            && spent.budget != BudgetName::MaxCost
            && !std::mem::replace(&mut inner.is_ending, true);
        let turn = inner.turn;
        drop(inner);
        self.note(&spent);
        if ends {
            let _ = self
                .owner
                .send_message(SessionMsg::BudgetSpent { spent, turn });
        }
        Some(spent)
    }

    /// Tells once that a budget of the turn or the session is spent; its ledger tells of the
    /// pool's, and the run of its own.
    pub(crate) fn note(&self, spent: &Spent) {
        let is_own = OF_TURN.contains(&spent.budget)
            || matches!(
                spent.budget,
                BudgetName::SessionTokens | BudgetName::SessionCost
            );
        if is_own && self.lock().told.insert(spent.budget) {
            let slot = self.lock().slot.clone();
            budget_spent(
                &self.ledger.listeners,
                &self.ledger.name,
                (slot.as_ref(), &self.session),
                spent,
            );
        }
    }

    /// Whether anything is bounded, so that what no route can count cannot pass.
    fn bounds(&self) -> bool {
        let inner = self.lock();
        let run = inner.run.as_ref();
        inner.most.is_set()
            || self.ledger.budget().is_set()
            || run.is_some_and(|run| run.bounds_cost())
    }

    /// Whether a cost is bounded, so that what has no price cannot pass.
    fn bounds_cost(&self) -> bool {
        let inner = self.lock();
        let run = inner.run.as_ref();
        inner.most.nano.is_some()
            || self.ledger.budget().has_cost()
            || run.is_some_and(|run| run.bounds_cost())
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
            return self.ledger.forget_session(&self.session);
        }
        let spent = StoredSpent {
            amount: all.spent(),
            counted: all.counted,
        };
        if self.ledger.budget().session.is_set() {
            self.ledger.keep_session(&self.session, spent);
        }
    }
}

impl relay::Purse for Purse {
    fn looks_into_requests(&self) -> bool {
        self.ledger.counts() || self.bounds()
    }

    fn may_pass(&self, bill: &Bill) -> Result<(), Refusal> {
        if bill.is_free {
            return Ok(());
        }
        let refuse = |what: String| Err(Refusal::new(RouteRefusal::Budget, 402, what));
        if let Some(spent) = self.told() {
            return refuse(format!(
                "{spent}; no model can be asked until there is more"
            ));
        }
        if bill.wants.is_later && self.bounds() {
            let what = "there is a budget, and the request asks for an answer that comes later (in the background, or in a batch), which no route can count: ask for it at once";
            return Err(Refusal::new(RouteRefusal::Budget, 403, what));
        }
        if !self.bounds_cost() {
            return Ok(());
        }
        match bill.wants.model.as_deref() {
            None => refuse(
                "there is a budget of cost, and the request names no model, or not plainly: what it costs cannot be known"
                    .to_owned(),
            ),
            Some(model) if price(self.ledger.prices(), model).is_none() => {
                let model = crate::model::foreign::show(model, MODEL_WIDTH);
                refuse(format!(
                    "there is a budget of cost, and the model {model} has no price: whoever configures this supervisor must add [price.\"{model}\"]"
                ))
            }
            Some(_) => Ok(()),
        }
    }

    fn used(&self, bill: &Bill, tokens: Tokens) {
        let price = bill.wants.model.as_deref();
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
                nano: 0,
            },
        };
        if amount.is_none() {
            return;
        }
        let inner = self.lock();
        let mut all = inner.all;
        all.counted = all.counted.plus(amount);
        self.now(inner, all);
    }
}

fn price_of<'l>(ledger: &'l Ledger, model: &str) -> Option<&'l crate::config::Price> {
    price(ledger.prices(), model)
}
