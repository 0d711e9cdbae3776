//! Applies budgets in a session: limits what would be allowed, and ends turns whose budget is
//! spent.
//!
//! Counts requests; the spend tracker counts tokens and cost. Must not know how an amount is
//! stored, nor who is notified that a budget is spent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::task_run::TaskRun;
use crate::budgets::SpendTracker;
use crate::clock;
use crate::messages::{SessionMsg, SessionRef};
use crate::session::Work;
use crate::session::permissions::PolicySnapshot;
use crate::session::permissions::decide::DecidedRequest;
use crate::session::state::SessionState;
use crate::setup::PoolShared;
use marshal_model::{
    BudgetAction, BudgetName, Cost, DecidedBy, Decision, Event, SpentBudget, TurnOutcome, Verdict,
};
use marshal_policy::PolicyDecision;
use marshal_policy::budget::{Budget, BudgetUsage};

/// The period of `allows_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);

/// The only currency that a budget can limit (ISO 4217).
const CURRENCY: &str = "USD";

/// The per-session counters of budgets.
#[derive(Debug)]
pub(crate) struct BudgetCounters {
    /// Tokens and cost of the session, and their limits.
    pub(crate) spend: Arc<SpendTracker>,
    /// When the running turn began.
    began: Option<Instant>,
    /// Requests allowed in the running turn.
    pub(crate) allows: u64,
    /// Requests denied in the running turn.
    pub(crate) denies: u64,
    denies_in_a_row: u64,
    /// When the last requests were allowed, oldest first; at most as many as the budget allows per
    /// minute.
    recent: VecDeque<Instant>,
    /// Fires when the turn's time is spent.
    timer: Option<AbortHandle>,
}

impl Drop for BudgetCounters {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

impl BudgetCounters {
    /// Opens the counters of a session that begins with this work.
    pub(crate) fn open(pool: &PoolShared, work: &Work, owner: &SessionRef) -> Self {
        let tracker = SpendTracker::open(&pool.ledger, &work.session, owner.clone());
        tracker.start_task(work.limits.clone(), &work.slot);
        if let Some(model) = &pool.config.model {
            tracker.set_model(model);
        }
        Self {
            spend: tracker,
            began: None,
            allows: 0,
            denies: 0,
            denies_in_a_row: 0,
            recent: VecDeque::new(),
            timer: None,
        }
    }

    fn usage(&self, amount: marshal_model::Amount) -> BudgetUsage {
        let recent = self
            .recent
            .iter()
            .rev()
            .take_while(|at| clock::since(**at) < MINUTE)
            .count();
        BudgetUsage {
            allows_of_turn: self.allows,
            allows_of_minute: recent as u64,
            turn: self.began.map_or(Duration::ZERO, clock::since),
            amount,
        }
    }

    /// The spent budget, if there is one, by the policy's budget and by those of the session.
    pub(crate) fn spent(&self, policy: &Budget) -> Option<SpentBudget> {
        let used = self.usage(self.spend.turn_spend());
        let of_policy = policy.first_exceeded(&used);
        of_policy.or_else(|| self.spend.spent_budget())
    }

    /// An agent's own command does not count towards the turn before it.
    pub(crate) fn start_command(&mut self) {
        self.began = None;
        (self.allows, self.denies, self.denies_in_a_row) = (0, 0, 0);
    }

    fn count_decision(&mut self, decision: Decision, budget: &Budget) {
        if decision != Decision::Allow {
            self.denies += 1;
            self.denies_in_a_row += 1;
            return;
        }
        self.allows += 1;
        self.denies_in_a_row = 0;
        let Some(limit) = budget.allows_per_minute else {
            return;
        };
        self.recent.push_back(clock::now());
        while self.recent.len() as u64 > limit {
            self.recent.pop_front();
        }
    }
}

/// Replaces an allow by what the spent budget demands.
pub(crate) fn apply_spent_budget(judgement: &mut PolicyDecision, spent: &SpentBudget) {
    judgement.decided_by = DecidedBy::Budget;
    judgement.rules = vec![rule(spent)];
    (judgement.decision, judgement.reason) = budget_decision(spent);
}

fn rule(spent: &SpentBudget) -> String {
    format!("budget.{}", spent.budget)
}

/// The decision for a spent budget, and its reason.
fn budget_decision(spent: &SpentBudget) -> (Decision, String) {
    let (decision, advice) = match spent.action {
        BudgetAction::Ask => (Decision::Ask, "an approver must allow more"),
        BudgetAction::Deny => (Decision::Deny, "finish with what you have"),
        BudgetAction::Interrupt | BudgetAction::Park => (Decision::Deny, "the turn ends"),
    };
    (decision, format!("{spent}; {advice}"))
}

/// Applies a spent budget to a request that was evaluated earlier and would be allowed now.
pub(crate) fn reapply_spent_budget(decided: &mut DecidedRequest, spent: SpentBudget) {
    let verdict = &mut decided.verdict;
    verdict.decided_by = DecidedBy::Budget;
    verdict.rules = vec![rule(&spent)];
    (verdict.decision, verdict.reason) = budget_decision(&spent);
    decided.policy = verdict.decision;
    decided.deny_turn = spent.action >= BudgetAction::Interrupt;
    decided.spent = Some(spent);
}

impl SessionState {
    /// Resets the budgets of a turn before its prompt is sent.
    pub(crate) fn start_turn_budget(&mut self) {
        let budget = self.policy_budget();
        let turn = self.budget.spend.start_turn(&budget);
        let counters = &mut self.budget;
        if let Some(timer) = counters.timer.take() {
            timer.abort();
        }
        counters.began = Some(clock::now());
        (counters.allows, counters.denies, counters.denies_in_a_row) = (0, 0, 0);
        let Some(seconds) = budget.turn_seconds else {
            return;
        };
        if budget.then < BudgetAction::Interrupt {
            return; // It is checked at the next request.
        }
        let to = self.myself.clone();
        let spent = SpentBudget {
            budget: BudgetName::TurnSeconds,
            used: seconds,
            limit: seconds,
            action: budget.then,
        };
        let timer = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let _ = to.send_message(SessionMsg::BudgetSpent { spent, turn });
        });
        self.budget.timer = Some(timer.abort_handle());
    }

    /// Stops the timer of a turn that ended.
    pub(crate) fn end_turn_budget(&mut self) {
        if let Some(timer) = self.budget.timer.take() {
            timer.abort();
        }
        self.budget.began = None;
    }

    /// The spent budget, if there is one: then nothing is allowed without further conditions.
    pub(crate) fn spent_budget(&self) -> Option<SpentBudget> {
        self.budget.spent(&self.policy_budget())
    }

    /// The budget of the current policy.
    fn policy_budget(&self) -> Budget {
        *PolicySnapshot::take(&self.pool, &self.work, None)
            .policy()
            .budget()
    }

    /// Counts a verdict. A turn that reaches its limit of denials ends.
    pub(crate) fn count_verdict(&mut self, decided: &mut DecidedRequest) {
        if decided.verdict.decided_by == DecidedBy::Gone {
            return; // Nobody denied it.
        }
        let budget = self.policy_budget();
        self.budget
            .count_decision(decided.verdict.decision, &budget);
        if let Some(spent) = decided.spent {
            self.budget.spend.notify_once(&spent);
            self.park_after(&spent);
        }
        let row = self.budget.denies_in_a_row;
        if decided.verdict.decision != Decision::Allow && budget.ends_turn_after(row) {
            decided.deny_turn = true;
            self.budget.spend.notify_once(&denials(row));
        }
    }

    /// The slot parks when the task has ended, where the budget says so.
    fn park_after(&mut self, spent: &SpentBudget) {
        if spent.action == BudgetAction::Park
            && let Some(task) = &mut self.task
        {
            task.park_reason = Some(spent.to_string());
        }
    }

    pub(crate) fn parks_after_task(&self) -> bool {
        let parks = |task: &TaskRun| task.park_reason.is_some();
        self.task.as_ref().is_some_and(parks)
    }

    /// Ends the turn because of a denial.
    pub(crate) fn end_turn_for_denial(&mut self, verdict: &Verdict) {
        let row = self.budget.denies_in_a_row;
        let (outcome, why) = if verdict.decided_by == DecidedBy::Budget {
            (TurnOutcome::Limited, verdict.reason.clone())
        } else if self.policy_budget().ends_turn_after(row) {
            (TurnOutcome::Cancelled, denials(row).to_string())
        } else {
            let why = "a request needs approval, and there is no approver";
            (TurnOutcome::Cancelled, why.to_owned())
        };
        self.interrupt(outcome, why);
    }

    /// Ends the turn because a budget was spent in it. `turn` tells a late message of an earlier
    /// turn.
    pub(crate) fn end_turn_for_budget(&mut self, spent: &SpentBudget, turn: u64) {
        if turn != self.budget.spend.turn_number() {
            return; // If the budget is still spent, the next check of this turn finds it.
        }
        if self.task.as_ref().is_none_or(TaskRun::turn_is_over) {
            return;
        }
        self.budget.spend.notify_once(spent);
        self.park_after(spent);
        self.interrupt(TurnOutcome::Limited, spent.to_string());
    }

    /// Records the usage that the agent reports.
    pub(crate) fn record_reported_usage(&self, event: &Event) {
        match event {
            Event::Usage(usage) | Event::TurnEnded { usage, .. } => {
                self.budget.spend.record_reported_tokens(*usage);
            }
            Event::ContextUsed {
                cost: Some(Cost { amount, currency }),
                ..
            } if currency.raw() == CURRENCY => self.budget.spend.record_reported_cost(*amount),
            Event::StateChanged {
                model: Some(model), ..
            } => self.budget.spend.set_model(model.raw()),
            _ => {}
        }
    }
}

/// The exceeded budget of denials in a row.
const fn denials(row: u64) -> SpentBudget {
    SpentBudget {
        budget: BudgetName::DeniesInARow,
        used: row,
        limit: row,
        action: BudgetAction::Interrupt,
    }
}
