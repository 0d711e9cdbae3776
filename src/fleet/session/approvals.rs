//! Asks that a person decides: put to the client's approver, answered, or denied because nobody did.
//!
//! Every end of an ask goes through one function, which journals the verdict; the answer is sent
//! when that is durable. Must not know who the person is.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::SessionMsg;
use super::asks::{self, Decided};
use super::outbox::After;
use super::state::SessionState;
use crate::fleet::approver::{Asking, PendingAsk, Said};
use crate::fleet::clock;
use crate::limits::{ASK_MARGIN, ASKS_PER_POOL};
use crate::model::{Ask, AskId, AskKey, DecidedBy, Decision, Event, Foreign, Verdict};
use crate::telemetry::event::permission::PermissionDecided;
use crate::telemetry::sets::ToolClass;

/// An ask that waits for a person.
#[derive(Debug)]
pub(crate) struct Pending {
    key: AskKey,
    tool_id: Option<Foreign>,
    tool: Foreign,
    decided: Decided,
    /// Of what the agent has its client do: the place that was judged.
    place: Option<String>,
    /// The seq of its event.
    seq: u64,
    since: Instant,
    /// Ends the wait for an answer.
    deadline: Option<AbortHandle>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(deadline) = &self.deadline {
            deadline.abort();
        }
    }
}

impl SessionState {
    /// In what state of things an ask is decided now.
    pub(super) fn asked_at(&self) -> asks::At {
        asks::At {
            is_read_only: self.shared.journal.health().borrow().is_read_only(),
            has_approver: self.talk.is_some(),
            is_full: self.pool.asks_waiting() >= ASKS_PER_POOL,
        }
    }

    /// Logs and counts a verdict that is durable.
    pub(super) fn told(&self, verdict: &Verdict, class: ToolClass, asked: Instant) {
        PermissionDecided {
            slot: &self.work.slot,
            session: &self.work.session,
            ask: &verdict.ask,
            tool_class: class,
            decision: verdict.decision,
            by: verdict.by,
            rules: &verdict.rules,
            took: clock::since(asked),
        }
        .emit();
    }

    /// The policy wants a person: the request is journalled, then put to them.
    /// For what the agent has its client do, `place` is what was judged.
    pub(super) fn ask_a_person(&mut self, ask: Ask, decided: Decided, place: Option<String>) {
        decided.record_request(&ask, &mut self.outbox);
        let id = decided.verdict.ask.clone();
        let since = clock::now();
        let pending = Pending {
            key: ask.key,
            tool_id: ask.tool_id,
            tool: ask.tool,
            decided,
            place,
            seq: self.outbox.last_seq(),
            since,
            deadline: None,
        };
        self.pool.ask_waits(since, &id, true);
        self.pending.insert(id.clone(), pending);
        self.outbox.after(After::Asked(id));
    }

    /// The request is durable: the person is asked.
    pub(super) fn put(&mut self, id: &AskId) {
        let Some(since) = self.pending.get(id).map(|pending| pending.since) else {
            return; // It is over already.
        };
        let within = self.answer_within(since);
        let Some(pending) = self.pending.get_mut(id) else {
            return;
        };
        let verdict = &pending.decided.verdict;
        let facts = pending.decided.facts.take().unwrap_or_default();
        let asked = Asking::Asked(Box::new(PendingAsk {
            id: id.clone(),
            seq: pending.seq,
            tool_id: pending.tool_id.clone(),
            tool: pending.tool.clone(),
            class: pending.decided.class,
            parts: facts.parts,
            not_plain: facts.not_plain,
            rules: verdict.rules.clone(),
            reason: verdict.reason.clone(),
            within,
        }));
        let (to, expired) = (self.myself.clone(), id.clone());
        let waits = tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let _ = to.send_message(SessionMsg::AskExpired(expired));
        });
        pending.deadline = Some(waits.abort_handle());
        let told = self.talk.as_ref().map(|talk| talk.approver.try_send(asked));
        if !matches!(told, Some(Ok(()))) {
            self.resolve(id, Decision::Deny, DecidedBy::Gone, NOBODY);
        }
    }

    /// How long a person may take for what the agent asked at `since`: what the pool and the
    /// policy say, and what is left of the agent's own patience without some time for the answer;
    /// the shortest of them.
    fn answer_within(&self, since: Instant) -> Duration {
        let ask = &self.pool.config.ask;
        let of_policy = self.pool.policy.ask_timeout();
        let gone = clock::since(since) + ASK_MARGIN;
        let of_agent = ask.agent_waits.map(|waits| waits.saturating_sub(gone));
        let further = [of_policy, of_agent].into_iter().flatten();
        further.fold(ask.timeout, Duration::min)
    }

    /// Something came back.
    pub(super) fn answered(&mut self, id: &AskId, said: Said) {
        // One that is not durable has been put to nobody.
        let is_put = |of: &Pending| of.deadline.is_some();
        if !self.pending.get(id).is_some_and(is_put) {
            tracing::debug!(ask = %id, "an answer to an ask that is over");
            return;
        }
        match said {
            Said::Allow => self.resolve(id, Decision::Allow, DecidedBy::Human, ALLOWED),
            Said::Reject => self.resolve(id, Decision::Deny, DecidedBy::Human, REFUSED),
            Said::Cancelled => self.resolve(id, Decision::Deny, DecidedBy::Gone, CANCELLED),
            Said::Nothing => self.nobody_decided(id, UNDECIDED),
        }
    }

    /// Nobody decided in time.
    pub(super) fn ask_expired(&mut self, id: &AskId) {
        self.nobody_decided(id, TOO_LATE);
    }

    fn nobody_decided(&mut self, id: &AskId, why: &str) {
        if let Some(pending) = self.pending.get_mut(id) {
            pending.decided.deny_turn = asks::denies_turn(&self.pool);
            self.resolve(id, Decision::Deny, DecidedBy::Timeout, why);
        }
    }

    /// The agent does not wait for the answer any more.
    pub(super) fn withdrawn(&mut self, key: &AskKey) {
        let found = self.pending.iter().find(|(_, of)| of.key == *key);
        if let Some(id) = found.map(|(id, _)| id.clone()) {
            let why = "the agent withdrew its request before this was decided";
            self.resolve(&id, Decision::Deny, DecidedBy::Gone, why);
        }
    }

    /// Nobody will decide what is open.
    pub(super) fn nobody_decides(&mut self, why: &str) {
        let open: Vec<AskId> = self.pending.keys().cloned().collect();
        for id in open {
            self.resolve(&id, Decision::Deny, DecidedBy::Gone, why);
        }
    }

    /// The one end of every ask that waited.
    fn resolve(&mut self, id: &AskId, decision: Decision, by: DecidedBy, why: &str) {
        let Some(mut pending) = self.pending.remove(id) else {
            return;
        };
        self.pool.ask_waits(pending.since, id, false);
        let decided = &mut pending.decided;
        decided.verdict.decision = decision;
        decided.verdict.by = by;
        why.clone_into(&mut decided.verdict.reason);
        let keeps = self.pool.config.shell_cwd;
        self.asks
            .directory
            .resolved(keeps, &decided.moved, decision);
        self.tally.decided(decided);
        self.outbox.event(Event::Decided(decided.verdict.clone()));
        let (key, asked) = (pending.key.clone(), pending.since);
        let (deny_turn, class) = (decided.deny_turn, decided.class);
        let verdict = decided.verdict.clone();
        self.outbox.after(match pending.place.take() {
            Some(place) => After::Client {
                key,
                place: Some(place),
                asked,
                verdict,
                deny_turn,
                class,
            },
            None => After::Answer {
                key,
                answer: decided.answer(),
                asked,
                deny_turn,
                verdict,
                class,
            },
        });
        if let Some(talk) = &self.talk {
            let id = id.clone();
            let _ = talk.approver.try_send(Asking::Over { id, decision, by });
        }
    }
}

const ALLOWED: &str = "a person allowed this";
const CANCELLED: &str =
    "a person would have to allow this, and the request was cancelled before one decided";
const UNDECIDED: &str = "a person would have to allow this and none gave an answer: do it another way or go on without it";
const NOBODY: &str = "a person would have to allow this and there is nobody to ask any more";
const REFUSED: &str = "a person refused this: do it another way or go on without it";
const TOO_LATE: &str = "a person would have to allow this and nobody answered in time: do it another way or go on without it";
