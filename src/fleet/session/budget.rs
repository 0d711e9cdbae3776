//! Budgets, as far as a session carries them out: what would be allowed and is too much, turns that
//! end because a budget is spent.
//!
//! Counts requests; tokens and cost are in its purse. Must not know how an amount is kept, nor who
//! is told that one is spent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::asks::Decided;
use super::ruling::Ruling;
use super::state::SessionState;
use super::{SessionMsg, SessionRef, Work};
use crate::fleet::budgets::Purse;
use crate::fleet::clock;
use crate::fleet::setup::PoolShared;
use crate::model::{
    BudgetName, Cost, DecidedBy, Decision, Event, Spent, Then, TurnOutcome, Verdict,
};
use crate::policy::Judgement;
use crate::policy::budget::{Budget, Used};

/// What `allows_per_minute` looks back over.
const MINUTE: Duration = Duration::from_secs(60);

/// The only currency that can be held against a budget (ISO 4217).
const CURRENCY: &str = "USD";

/// The requests of a session that budgets count.
#[derive(Debug)]
pub(crate) struct Counters {
    /// What it spent, and may spend.
    pub(super) purse: Arc<Purse>,
    /// When the running turn began.
    began: Option<Instant>,
    /// Of the running turn.
    pub(super) allows: u64,
    /// Of the running turn.
    pub(super) denies: u64,
    denies_in_a_row: u64,
    /// When the last ones were allowed, oldest first; at most as many as the budget has.
    recent: VecDeque<Instant>,
    /// Ends the wait for the end of the turn's time.
    timer: Option<AbortHandle>,
    /// The slot parks when the turn is over, and why.
    pub(super) parks: Option<String>,
}

impl Drop for Counters {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

impl Counters {
    /// Of a session that begins with this work.
    pub(super) fn open(pool: &PoolShared, work: &Work, owner: &SessionRef) -> Self {
        let purse = Purse::open(&pool.ledger, &work.session, owner.clone());
        purse.works_for(work.limits.clone(), &work.slot);
        if let Some(model) = &pool.config.model {
            purse.uses_model(model);
        }
        Self {
            purse,
            began: None,
            allows: 0,
            denies: 0,
            denies_in_a_row: 0,
            recent: VecDeque::new(),
            timer: None,
            parks: None,
        }
    }

    fn used(&self, amount: crate::model::Amount) -> Used {
        let recent = self.recent.iter().rev();
        let recent = recent.take_while(|at| clock::since(**at) < MINUTE).count();
        Used {
            allows_of_turn: self.allows,
            allows_of_minute: recent as u64,
            turn: self.began.map_or(Duration::ZERO, clock::since),
            amount,
        }
    }

    /// An agent's own command is none of the turn before it.
    pub(super) fn command_begins(&mut self) {
        self.began = None;
        (self.allows, self.denies, self.denies_in_a_row) = (0, 0, 0);
    }

    fn counts(&mut self, decision: Decision, budget: &Budget) {
        if decision != Decision::Allow {
            self.denies += 1;
            self.denies_in_a_row += 1;
            return;
        }
        self.allows += 1;
        self.denies_in_a_row = 0;
        let Some(most) = budget.allows_per_minute else {
            return;
        };
        self.recent.push_back(clock::now());
        while self.recent.len() as u64 > most {
            self.recent.pop_front();
        }
    }
}

/// Turns what would be allowed into what follows when a budget is spent.
pub(super) fn cap(judgement: &mut Judgement, spent: &Spent) {
    judgement.by = DecidedBy::Budget;
    judgement.rules = vec![rule(spent)];
    (judgement.decision, judgement.reason) = instead(spent);
}

fn rule(spent: &Spent) -> String {
    format!("budget.{}", spent.budget)
}

/// What follows when a budget is spent, and why.
fn instead(spent: &Spent) -> (Decision, String) {
    let (decision, advice) = match spent.then {
        Then::Ask => (Decision::Ask, "a person must allow more"),
        Then::Deny => (Decision::Deny, "finish with what you have"),
        Then::Interrupt | Then::Park => (Decision::Deny, "the turn ends"),
    };
    (decision, format!("{spent}; {advice}"))
}

/// The same of a request that was judged before, and that would be allowed now.
pub(super) fn cap_again(decided: &mut Decided, spent: Spent) {
    let verdict = &mut decided.verdict;
    verdict.by = DecidedBy::Budget;
    verdict.rules = vec![rule(&spent)];
    (verdict.decision, verdict.reason) = instead(&spent);
    decided.policy = verdict.decision;
    decided.deny_turn = spent.then >= Then::Interrupt;
    decided.spent = Some(spent);
}

impl SessionState {
    /// A prompt is about to be sent: the budgets of a turn begin anew.
    pub(super) fn turn_budget_begins(&mut self) {
        let budget = self.of_policy();
        let turn = self.budget.purse.turn_begins(&budget);
        let counters = &mut self.budget;
        if let Some(timer) = counters.timer.take() {
            timer.abort();
        }
        counters.began = Some(clock::now());
        (counters.allows, counters.denies, counters.denies_in_a_row) = (0, 0, 0);
        counters.parks = None;
        let Some(seconds) = budget.turn_seconds else {
            return;
        };
        if budget.then < Then::Interrupt {
            return; // It is looked at when something is asked.
        }
        let to = self.myself.clone();
        let spent = Spent {
            budget: BudgetName::TurnSeconds,
            used: seconds,
            most: seconds,
            then: budget.then,
        };
        let waits = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let _ = to.send_message(SessionMsg::BudgetSpent { spent, turn });
        });
        self.budget.timer = Some(waits.abort_handle());
    }

    /// The turn is over.
    pub(super) fn turn_budget_ends(&mut self) {
        if let Some(timer) = self.budget.timer.take() {
            timer.abort();
        }
        self.budget.began = None;
    }

    /// The budget that is spent, if one is: then nothing more is simply allowed.
    pub(super) fn spent_now(&self) -> Option<Spent> {
        let used = self.budget.used(self.budget.purse.of_turn());
        let of_policy = self.of_policy().spent(&used);
        of_policy.or_else(|| self.budget.purse.spent())
    }

    /// What the policy in force bounds.
    fn of_policy(&self) -> Budget {
        *Ruling::now(&self.pool, &self.work, None).policy().budget()
    }

    /// Counts a verdict. The last denial that a turn may have ends it.
    pub(super) fn count_verdict(&mut self, decided: &mut Decided) {
        let budget = self.of_policy();
        self.budget.counts(decided.verdict.decision, &budget);
        if let Some(spent) = decided.spent {
            self.budget.purse.note(&spent);
            if spent.then == Then::Park {
                self.budget.parks = Some(spent.to_string());
            }
        }
        let row = self.budget.denies_in_a_row;
        if decided.verdict.decision != Decision::Allow && budget.ends_after(row) {
            decided.deny_turn = true;
            self.budget.purse.note(&denials(row));
        }
    }

    /// A denial also ends the turn: how, and why.
    pub(super) fn deny_turn(&mut self, verdict: &Verdict) {
        let row = self.budget.denies_in_a_row;
        let (outcome, why) = if verdict.by == DecidedBy::Budget {
            (TurnOutcome::Limited, verdict.reason.clone())
        } else if self.of_policy().ends_after(row) {
            (TurnOutcome::Cancelled, denials(row).to_string())
        } else {
            let why = "a person had to be asked, and nobody can be";
            (TurnOutcome::Cancelled, why.to_owned())
        };
        self.interrupt(outcome, why);
    }

    /// A budget was spent in that turn whose end is the turn's end, too.
    pub(super) fn budget_spent(&mut self, spent: &Spent, turn: u64) {
        if turn != self.budget.purse.turn() {
            return; // If the budget is still spent, the next look of this turn says so.
        }
        if self.turn.is_some() || !self.has_task || self.ending.is_some() {
            return;
        }
        self.budget.purse.note(spent);
        if spent.then == Then::Park {
            self.budget.parks = Some(spent.to_string());
        }
        self.interrupt(TurnOutcome::Limited, spent.to_string());
    }

    /// What the agent says of what it used.
    pub(super) fn usage_said(&self, event: &Event) {
        match event {
            Event::Usage(usage) | Event::TurnEnded { usage, .. } => {
                self.budget.purse.said_tokens(*usage);
            }
            Event::ContextUsed {
                cost: Some(Cost { amount, currency }),
                ..
            } if currency.raw() == CURRENCY => self.budget.purse.said_cost(*amount),
            Event::StateChanged {
                model: Some(model), ..
            } => self.budget.purse.uses_model(model.raw()),
            _ => {}
        }
    }
}

/// Too many denials in a row.
const fn denials(row: u64) -> Spent {
    Spent {
        budget: BudgetName::DeniesInARow,
        used: row,
        most: row,
        then: Then::Interrupt,
    }
}
