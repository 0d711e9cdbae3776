//! Asks that a person decides: put to people, answered, or denied because nobody did.
//!
//! Identical requests are one question. Every end of a request goes through one function, which
//! journals the verdict; the answer is sent when that is durable. Must not know who the person is.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::SessionMsg;
use super::answers::{Shown, digest};
use super::asks::{self, Decided};
use super::before::Before;
use super::confirming::Confirming;
use super::outbox::After;
use super::ruling::Ruling;
use super::state::SessionState;
use crate::config::{Approver, WhenWaiting};
use crate::fleet::answering::expires;
use crate::fleet::approver::{Asking, PendingAsk, Said};
use crate::fleet::clock;
use crate::fleet::questions::{By, Known, Open};
use crate::journal::{AnswerRow, QuestionChange, QuestionRow, Write};
use crate::limits::{ASK_MARGIN, ASKS_PER_SESSION, QUESTION_REQUESTS};
use crate::model::{
    Ask, AskId, AskKey, ClientWish, DecidedBy, Decision, Event, QuestionState, Remember,
    TurnOutcome, Verdict,
};
use crate::telemetry::event::permission::{AskWaits, PermissionDecided};
use crate::telemetry::sets::ToolClass;

/// One request that waits for a person.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) ask: Ask,
    pub(super) decided: Decided,
    /// Of what the agent has its client do: that, and the place that was judged.
    pub(super) wish: Option<(ClientWish, Option<String>)>,
    pub(super) since: Instant,
}

impl Member {
    /// A request for a permission.
    pub(super) fn of(ask: Ask, decided: Decided) -> Self {
        Self {
            ask,
            decided,
            wish: None,
            since: clock::now(),
        }
    }
}

/// A question that waits for a person.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The requests that it is of; at least one.
    pub(super) members: Vec<Member>,
    /// What an answer is bound to.
    pub(super) digest: String,
    /// What people were shown.
    pub(super) shown: Shown,
    /// The seq of the first request's event.
    seq: u64,
    since: Instant,
    /// Until when it can be answered, in microseconds since the Unix epoch.
    until_us: i64,
    /// Until when its agent waits, likewise.
    agent_until_us: Option<i64>,
    /// Ends the wait for an answer; there once it is durable.
    deadline: Option<AbortHandle>,
    /// A person allowed it, and the delegate is asked about that.
    pub(super) confirming: Option<Confirming>,
}

impl Pending {
    /// Whether its time is over, by the time of day that people were shown.
    pub(super) const fn is_over(&self, now_us: i64) -> bool {
        self.until_us <= now_us
    }

    /// It is asked because a budget is spent: an answer holds once.
    pub(super) fn is_of_budget(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| member.decided.spent.is_some())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(deadline) = &self.deadline {
            deadline.abort();
        }
    }
}

/// How a question ends.
pub(super) struct Ending {
    pub(super) decision: Decision,
    pub(super) by: DecidedBy,
    pub(super) why: String,
    /// The rules that decided, where it was not a person.
    pub(super) rules: Option<Vec<String>>,
    /// What a person said.
    pub(super) answer: Option<AnswerRow>,
}

impl Ending {
    /// A denial that no person gave.
    pub(super) fn denied(by: DecidedBy, why: &str) -> Self {
        Self {
            decision: Decision::Deny,
            by,
            why: why.to_owned(),
            rules: None,
            answer: None,
        }
    }

    /// People have enough to decide.
    fn full() -> Self {
        Self {
            rules: Some(vec!["max_pending".to_owned()]),
            ..Self::denied(
                DecidedBy::Error,
                "too many requests wait for people already",
            )
        }
    }

    /// What a person said.
    pub(super) fn said(by: DecidedBy, answer: AnswerRow) -> Self {
        Self {
            decision: answer.decision,
            by,
            why: super::answers::reason(&answer, by),
            rules: None,
            answer: Some(answer),
        }
    }

    const fn state(&self) -> QuestionState {
        match (self.by, self.decision) {
            (DecidedBy::Timeout, _) => QuestionState::Expired,
            (DecidedBy::Gone, _) => QuestionState::Cancelled,
            (_, Decision::Allow) => QuestionState::Allowed,
            _ => QuestionState::Denied,
        }
    }
}

impl SessionState {
    /// In what state of things an ask is decided now.
    pub(super) fn asked_at<'m>(&self, mode: Option<&'m str>) -> asks::At<'m> {
        let has_people = self.talk.is_some() || self.shared.asks_people;
        asks::At {
            mode,
            is_read_only: self.shared.journal.health().borrow().is_read_only(),
            has_approver: has_people && !self.pool.ask_rules().approvers.is_empty(),
            waiting: self
                .pending
                .values()
                .map(|of| of.members.len())
                .sum::<usize>()
                + self.delegated.len(),
            is_too_long: false,
            spent: self.spent_now(),
            counted: (self.budget.allows, self.budget.denies),
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

    /// The policy wants a person: the request is journalled, then put to them, unless the same was
    /// asked or answered before.
    pub(super) fn ask_a_person(&mut self, mut member: Member) {
        if let Some(spent) = &member.decided.spent {
            self.budget.purse.note(spent);
        }
        let digest = digest(&member.ask);
        let shown = self.shown(&member);
        let before = self.before(&member, &digest, &shown);
        if let Some(question) = before.question() {
            // So that its record leads to whoever answered.
            let question = question.as_str().into();
            member.decided.note("question", &question);
        }
        if let Before::Known(Known::Orphaned(..)) = &before {
            // People are asked by this request again: whoever follows the session is told.
            member.decided.note("again", &true.into());
        }
        member.decided.record_request(&member.ask, &mut self.outbox);
        let seq = self.outbox.last_seq();
        let known = match before {
            Before::Nothing => Known::Nothing,
            Before::Waits(id) => return self.joins(&id, member),
            Before::OfTurn(answer) => Known::Remembered(answer),
            Before::Known(known) => known,
        };
        match known {
            Known::Remembered(answer) => {
                self.conclude(member, &Ending::said(DecidedBy::Cache, answer));
            }
            Known::Answered(id, mut answer) => {
                answer.remember = answer.remember.min(self.pool.ask_rules().remember);
                if !self.remember(&digest, &shown.paths, &answer) {
                    answer.remember = Remember::Never;
                }
                let ending = Ending::said(DecidedBy::Human, answer);
                let change = QuestionChange::Ended {
                    state: ending.state(),
                    answer: ending.answer.clone(),
                };
                self.change(&id, change);
                self.conclude(member, &ending);
            }
            Known::Orphaned(id, until_us) => {
                let agent_until_us = self.agent_until(clock::now_us());
                self.change(&id, QuestionChange::Again { agent_until_us });
                self.wait(id, member, digest, shown, seq, until_us);
            }
            Known::Anew(before) => {
                let change = QuestionChange::Ended {
                    state: QuestionState::Cancelled,
                    answer: None,
                };
                self.change(&before, change);
                self.new_question(member, digest, shown, seq);
            }
            Known::Nothing => self.new_question(member, digest, shown, seq),
        }
    }

    /// The same waits already: they are one question.
    fn joins(&mut self, id: &AskId, member: Member) {
        let Some(pending) = self.pending.get_mut(id) else {
            return;
        };
        if pending.members.len() >= QUESTION_REQUESTS {
            return self.conclude(member, &Ending::full());
        }
        let agent_until_us = pending.agent_until_us;
        pending.members.push(member);
        self.change(id, QuestionChange::Again { agent_until_us });
    }

    fn new_question(&mut self, member: Member, digest: String, shown: Shown, seq: u64) {
        let of_pool = self.shared.questions.waiting(&self.pool.config.name);
        if self.pending.len() >= ASKS_PER_SESSION || of_pool >= self.pool.ask_rules().max_pending {
            return self.conclude(member, &Ending::full());
        }
        let id = member.decided.verdict.ask.clone();
        let at_us = clock::now_us();
        let most = member.decided.ask_timeout;
        let most = most.map_or(self.pool.config.ask.timeout, |of| {
            of.min(self.pool.config.ask.timeout)
        });
        let until_us = at_us.saturating_add(micros(most));
        self.outbox.write(Write::QuestionPut(Box::new(QuestionRow {
            ask: id.clone(),
            session: self.work.session.clone(),
            pool: self.pool.config.name.clone(),
            digest: digest.clone(),
            rules: member.decided.verdict.rules.clone(),
            why: member.decided.verdict.reason.clone(),
            paths: shown.paths.clone(),
            at_us,
            deadline_us: until_us,
            agent_until_us: self.agent_until(at_us),
        })));
        self.wait(id, member, digest, shown, seq, until_us);
    }

    /// Until when the agent waits for an answer.
    fn agent_until(&self, now_us: i64) -> Option<i64> {
        let waits = self.pool.config.ask.agent_waits?;
        Some(now_us.saturating_add(micros(waits.saturating_sub(ASK_MARGIN))))
    }

    fn wait(
        &mut self,
        id: AskId,
        member: Member,
        digest: String,
        shown: Shown,
        seq: u64,
        until_us: i64,
    ) {
        let since = clock::now();
        self.pool.ask_waits(since, &id, true);
        let open = Open {
            pool: self.pool.config.name.clone(),
            session: self.work.session.clone(),
            digest: digest.clone(),
            deadline_us: until_us,
            paths: shown.paths.clone(),
            by: By::Session(self.myself.clone()),
        };
        self.shared.questions.put(id.clone(), open);
        let pending = Pending {
            members: vec![member],
            digest,
            shown,
            seq,
            since,
            until_us,
            agent_until_us: self.agent_until(clock::now_us()),
            deadline: None,
            confirming: None,
        };
        self.pending.insert(id.clone(), pending);
        self.outbox.after(After::Asked(id));
    }

    /// The question is durable: people are asked.
    pub(super) fn put(&mut self, id: &AskId) {
        let Some(pending) = self.pending.get(id) else {
            return; // It is over already.
        };
        let within = self.answer_within(pending);
        let (to, expired) = (self.myself.clone(), id.clone());
        let waits = tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let _ = to.send_message(SessionMsg::AskExpired(expired));
        });
        if let Some(pending) = self.pending.get_mut(id) {
            pending.deadline = Some(waits.abort_handle());
        }
        let Some(pending) = self.pending.get(id) else {
            return;
        };
        let Some(member) = pending.members.first() else {
            return;
        };
        let verdict = &member.decided.verdict;
        AskWaits {
            slot: &self.work.slot,
            session: &self.work.session,
            ask: id,
            tool: &member.ask.tool,
            rules: &verdict.rules,
            within,
            is_elsewhere: self.talk.is_some(),
        }
        .emit();
        self.tell_ask(id, member, pending.until_us);
        let is_for_client = self.pool.ask_rules().approvers.contains(&Approver::Owner);
        let Some(talk) = self.talk.as_ref().filter(|_| is_for_client) else {
            return self.release();
        };
        let facts = member.decided.facts.clone().unwrap_or_default();
        let asked = Asking::Asked(Box::new(PendingAsk {
            id: id.clone(),
            seq: pending.seq,
            tool_id: member.ask.tool_id.clone(),
            tool: member.ask.tool.clone(),
            class: member.decided.class,
            parts: facts.parts,
            not_plain: facts.not_plain,
            rules: verdict.rules.clone(),
            reason: verdict.reason.clone(),
            within,
        }));
        if talk.approver.try_send(asked).is_err() {
            self.resolve(id, &Ending::denied(DecidedBy::Gone, NOBODY));
        }
    }

    /// How long a person may take from now on: what the pool and the policy say, and what is left
    /// of the agent's own patience without some time for the answer; the shortest of them.
    fn answer_within(&self, pending: &Pending) -> Duration {
        let left = pending.until_us.saturating_sub(clock::now_us()).max(0);
        let left = Duration::from_micros(left.unsigned_abs());
        let gone = clock::since(pending.since) + ASK_MARGIN;
        let of_agent = self.pool.config.ask.agent_waits;
        let of_agent = of_agent.map(|waits| waits.saturating_sub(gone));
        of_agent.map_or(left, |of_agent| of_agent.min(left))
    }

    /// Whether people have been asked, so that they can answer.
    pub(super) fn is_put(&self, id: &AskId) -> bool {
        // One that is not durable has been put to nobody.
        self.pending.get(id).is_some_and(|of| of.deadline.is_some())
    }

    /// Something came back of the client of a conversation.
    pub(super) fn answered(&mut self, id: &AskId, said: Said) {
        if !self.is_put(id) {
            tracing::debug!(ask = %id, "an answer to an ask that is over");
            return;
        }
        match said {
            Said::Allow => self.client_decides(id, Decision::Allow),
            Said::Reject => self.client_decides(id, Decision::Deny),
            Said::Cancelled => self.resolve(id, &Ending::denied(DecidedBy::Gone, CANCELLED)),
            Said::Nothing => self.nobody_decided(id, UNDECIDED),
        }
    }

    /// Nobody decided in time.
    pub(super) fn ask_expired(&mut self, id: &AskId) {
        self.nobody_decided(id, TOO_LATE);
    }

    fn nobody_decided(&mut self, id: &AskId, why: &str) {
        let ruling = Ruling::now(&self.pool, &self.work, None);
        let deny_turn = asks::denies_turn(&self.pool, ruling.policy());
        if let Some(pending) = self.pending.get_mut(id) {
            for member in &mut pending.members {
                member.decided.deny_turn = deny_turn;
            }
            self.resolve(id, &Ending::denied(DecidedBy::Timeout, why));
        }
    }

    /// The agent does not wait for the answer to one of its requests any more.
    pub(super) fn withdrawn(&mut self, key: &AskKey) {
        let why = "the agent withdrew its request before this was decided";
        self.delegated_withdrawn(key, why);
        let ending = Ending::denied(DecidedBy::Gone, why);
        let of_key = |of: &Member| of.ask.key == *key;
        let found = self.pending.iter_mut();
        let found = found
            .into_iter()
            .find(|(_, of)| of.members.iter().any(of_key));
        let Some((id, pending)) = found else { return };
        if pending.members.len() == 1 {
            let id = id.clone();
            return self.resolve(&id, &ending);
        }
        if let Some(at) = pending.members.iter().position(of_key) {
            let member = pending.members.remove(at);
            self.conclude(member, &ending);
        }
    }

    /// Nobody will decide what is open.
    pub(super) fn nobody_decides(&mut self, why: &str) {
        self.not_delegated(why);
        let open: Vec<AskId> = self.pending.keys().cloned().collect();
        for id in open {
            self.resolve(&id, &Ending::denied(DecidedBy::Gone, why));
        }
    }

    /// Where the pool says so, the child does not wait: what it asked is kept, its turn and then
    /// itself are ended, and the task is put back until there is an answer.
    fn release(&mut self) {
        let wanted = self.pool.config.ask.when_waiting == WhenWaiting::Release;
        if !wanted
            || !self.has_task
            || self.talk.is_some()
            || !self.comes_back()
            || self.ending.is_some()
            || self.turn.is_some()
        {
            return;
        }
        self.released = self.pending.keys().next().cloned();
        let open: Vec<AskId> = self.pending.keys().cloned().collect();
        for id in open {
            self.orphan(&id);
        }
        let why = "the child is stopped while its session waits for a person";
        self.interrupt(TurnOutcome::Cancelled, why.to_owned());
    }

    /// The agent is told no, and the question stays for the one that comes back.
    fn orphan(&mut self, id: &AskId) {
        let Some(mut pending) = self.pending.remove(id) else {
            return;
        };
        self.pool.ask_waits(pending.since, id, false);
        self.change(id, QuestionChange::Orphaned);
        let open = Open {
            pool: self.pool.config.name.clone(),
            session: self.work.session.clone(),
            digest: pending.digest.clone(),
            deadline_us: pending.until_us,
            paths: pending.shown.paths.clone(),
            by: By::Nobody(None),
        };
        self.shared.questions.put(id.clone(), open);
        let pool = Some(self.pool_ref.clone());
        expires(&self.shared, id.clone(), pending.until_us, pool);
        let ending = Ending::denied(DecidedBy::Gone, RELEASED);
        for member in std::mem::take(&mut pending.members) {
            self.conclude(member, &ending);
        }
    }

    /// Journals a change of a question.
    pub(super) fn change(&mut self, id: &AskId, change: QuestionChange) {
        self.outbox.write(Write::QuestionChanged {
            question: id.clone(),
            at_us: clock::now_us(),
            change,
        });
    }

    /// The one end of every question that waited.
    pub(super) fn resolve(&mut self, id: &AskId, ending: &Ending) {
        let Some(mut pending) = self.pending.remove(id) else {
            return;
        };
        self.pool.ask_waits(pending.since, id, false);
        self.shared.questions.over(id);
        let change = QuestionChange::Ended {
            state: ending.state(),
            answer: ending.answer.clone(),
        };
        self.change(id, change);
        for member in std::mem::take(&mut pending.members) {
            self.conclude(member, ending);
        }
        if let Some(talk) = &self.talk {
            let (id, decision, by) = (id.clone(), ending.decision, ending.by);
            let _ = talk.approver.try_send(Asking::Over { id, decision, by });
        }
    }

    /// The one end of every request that a person was to decide.
    pub(super) fn conclude(&mut self, member: Member, ending: &Ending) {
        let Member {
            ask,
            mut decided,
            wish,
            since: asked,
        } = member;
        decided.verdict.decision = ending.decision;
        decided.verdict.by = ending.by;
        decided.verdict.reason.clone_from(&ending.why);
        if let Some(rules) = &ending.rules {
            decided.verdict.rules.clone_from(rules);
        }
        let keeps = self.pool.config.shell_cwd;
        self.asks
            .directory
            .resolved(keeps, &decided.moved, ending.decision);
        self.tally.decided(&decided);
        self.count_verdict(&mut decided);
        self.outbox.event(Event::Decided(decided.verdict.clone()));
        let (key, deny_turn, class) = (ask.key, decided.deny_turn, decided.class);
        self.outbox.after(match wish {
            Some((wish, place)) => After::Client {
                key,
                place: super::tools::said(&wish, ending).or(place),
                asked,
                verdict: decided.verdict,
                deny_turn,
                class,
            },
            None => After::Answer {
                key,
                answer: decided.answer(),
                asked,
                deny_turn,
                verdict: decided.verdict,
                class,
            },
        });
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

const RELEASED: &str =
    "a person would have to allow this: the session waits for one without its child";
const CANCELLED: &str =
    "a person would have to allow this, and the request was cancelled before one decided";
const UNDECIDED: &str = "a person would have to allow this and none gave an answer: do it another way or go on without it";
const NOBODY: &str = "a person would have to allow this and there is nobody to ask any more";
const TOO_LATE: &str = "a person would have to allow this and nobody answered in time: do it another way or go on without it";
