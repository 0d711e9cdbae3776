//! Requests that the policy does not deny, on their way by the pool's delegate.
//!
//! It is asked before anybody else, beside everything else that a session does; what it says can
//! only make a verdict more severe, and when it says nothing, that is a deny. What was asked ends here,
//! or goes on as if the policy had said so. Must not know how a delegate is reached.

use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::AbortHandle;

use super::approvals::{Ending, Member};
use super::asks;
use super::budget;
use super::outbox::After;
use super::ruling::Ruling;
use super::state::SessionState;
use super::{SessionMsg, SessionRef};
use crate::limits::DELEGATED_PER_SESSION;
use crate::model::{AskId, AskKey, DecidedBy, Decision, DelegateError, Foreign};
use crate::policy::Moved;
use crate::policy::delegation::{Claims, PolicySays, REQUEST, Said, Told, VERSION};

/// What a request is denied by when its delegate gives no decision.
pub(super) const DELEGATE_ERROR: &str = "delegate_error";

/// A request that waits for the delegate.
#[derive(Debug)]
pub(crate) struct Delegated {
    member: Member,
    /// Dropped, it is not asked any more.
    _asking: Asking,
}

/// Somebody asks; dropped, it is not asked any more.
#[derive(Debug)]
pub(super) struct Asking(pub(super) AbortHandle);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tells the session what came of it, also when nothing did.
struct Tell(Option<(SessionRef, AskId)>);

impl Tell {
    fn send(&mut self, said: Result<Said, DelegateError>) {
        if let Some((to, ask)) = self.0.take() {
            let _ = to.send_message(SessionMsg::Delegated { ask, said });
        }
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        self.send(Err(DelegateError::Internal));
    }
}

impl SessionState {
    /// A request was judged: it goes on to the delegate, if it is for that, to a person, or back.
    pub(super) fn judged(&mut self, member: Member) {
        if member.decided.verdict.decision == Decision::Deny || !self.is_delegated(&member) {
            return self.proceed(member);
        }
        if self.delegated.len() >= DELEGATED_PER_SESSION {
            let ending = Ending {
                rules: Some(vec!["max_pending".to_owned()]),
                ..Ending::denied(
                    DecidedBy::Error,
                    "too many requests wait for the delegate already",
                )
            };
            return self.end(member, &ending);
        }
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let id = member.decided.verdict.ask.clone();
        let verdict = &member.decided.verdict;
        let says = (verdict.decision, &verdict.rules[..], &verdict.reason[..]);
        let text = self.document(&member, &delegate.config.name, says).text();
        let host = Arc::clone(&self.shared.host);
        let mut tell = Tell(Some((self.myself.clone(), id.clone())));
        let asking = tokio::spawn(async move {
            let said = delegate.ask(host, text).await;
            tell.send(said);
        });
        let delegated = Delegated {
            member,
            _asking: Asking(asking.abort_handle()),
        };
        self.delegated.insert(id, delegated);
    }

    /// Whether the pool's delegate is for a request: by what its tool is called and by what it is.
    pub(super) fn is_delegated(&self, member: &Member) -> bool {
        let Some(delegate) = &self.pool.delegate else {
            return false;
        };
        let class = member.decided.class;
        if member.wish.is_some() {
            return delegate.config.is_for(&[class]);
        }
        let came = member.decided.came.as_deref().unwrap_or(&member.ask);
        let request = self.pool.extractor.extract(came.tool.raw(), &came.input);
        delegate.config.is_for(&[class, request.class()])
    }

    /// Whether a question has a request that the pool's delegate is for.
    pub(super) fn is_for_delegate(&self, id: &AskId) -> bool {
        let pending = self.pending.get(id);
        pending.is_some_and(|of| of.members.iter().any(|member| self.is_delegated(member)))
    }

    /// What the delegate is told of a request, with what the policy says of it.
    pub(super) fn document<'a>(
        &'a self,
        member: &'a Member,
        delegate: &'a str,
        (decision, rules, reason): (Decision, &'a [String], &'a str),
    ) -> Told<'a> {
        let Member { ask, decided, .. } = member;
        let said = |text: &'a Option<Foreign>| text.as_ref().map(Foreign::raw);
        let verdict = &decided.verdict;
        let facts: Result<&RawValue, _> = serde_json::from_str(decided.facts_json());
        Told {
            version: VERSION,
            phase: REQUEST,
            delegate,
            pool: self.pool.config.name.as_str(),
            agent: &self.pool.config.agent,
            slot: self.work.slot.index,
            session: self.work.session.as_str(),
            run: self.work.run.as_str(),
            task: self.work.task.as_str(),
            ask: verdict.ask.as_str(),
            tool: ask.tool.raw(),
            class: decided.class.word(),
            input: &ask.input,
            claimed: Claims {
                title: said(&ask.claimed.title),
                kind: said(&ask.claimed.kind),
                reason: said(&ask.claimed.reason),
                active_mode: said(&ask.claimed.active_mode),
                required_mode: said(&ask.claimed.required_mode),
            },
            policy: PolicySays {
                name: &decided.judged.policy,
                sha256: &decided.judged.policy_sha256,
                decision: decision.word(),
                rules,
                reason,
            },
            facts: facts.unwrap_or(RawValue::NULL),
        }
    }

    /// The delegate said something, or failed.
    pub(super) fn delegate_said(&mut self, id: &AskId, said: Result<Said, DelegateError>) {
        let Some(Delegated { mut member, .. }) = self.delegated.remove(id) else {
            return; // It was over before.
        };
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let name = &delegate.config.name;
        let before = member.decided.verdict.decision;
        let word = match &said {
            Ok(said) => said.decision.word(),
            Err(error) => error.word(),
        };
        member.decided.note(
            "delegate",
            &json!({"name": name, "said": word, "policy": before.word()}),
        );
        let said = match said {
            Err(error) => {
                let why = format!(
                    "the delegate {name} gave no decision ({error}), so this is denied: do it another way or go on without it"
                );
                return self.lowered(member, DELEGATE_ERROR.to_owned(), &why);
            }
            Ok(said) => said,
        };
        let rule = format!("delegate.{name}");
        let reason = self.pool.mask.text(&said.reason).into_owned();
        let because = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        if said.decision == Decision::Deny {
            let why = format!("the delegate {name} denies this{because}");
            return self.lowered(member, rule, &why);
        }
        if let Err(ending) = self.holds_still(&mut member) {
            return self.end(member, &ending);
        }
        let verdict = &mut member.decided.verdict;
        if said.decision > verdict.decision {
            verdict.rules = vec![rule];
            verdict.reason = format!("the delegate {name} wants a person{because}");
            verdict.decision = Decision::Ask;
            verdict.by = DecidedBy::Delegate;
            member.decided.policy = Decision::Ask;
        }
        // What was allowed while this waited counts.
        if member.decided.verdict.decision == Decision::Allow
            && let Some(spent) = self.spent_now()
        {
            budget::cap_again(&mut member.decided, spent);
        }
        if before == Decision::Allow && member.decided.verdict.decision == Decision::Ask {
            return self.asks_after_all(member);
        }
        self.proceed(member);
    }

    /// Judges a request again by the newest policy, and follows its paths again: the more severe
    /// verdict holds.
    fn holds_still(&mut self, member: &mut Member) -> Result<(), Ending> {
        let (judgement, place) = self.judged_again(member);
        let decided = &mut member.decided;
        if judgement.decision > decided.verdict.decision {
            let again = json!({"decision": judgement.decision.word(), "rules": judgement.rules});
            decided.note("again", &again);
        }
        if judgement.decision == Decision::Deny {
            return Err(Ending {
                rules: Some(judgement.rules),
                ..Ending::denied(judgement.by, &judgement.reason)
            });
        }
        let is_same_place = member.wish.as_ref().is_none_or(|(_, then)| *then == place);
        if !is_same_place {
            let why = "what this leads to changed while it waited for the delegate; ask again";
            return Err(Ending::denied(DecidedBy::Error, why));
        }
        if judgement.decision > decided.verdict.decision {
            decided.policy = judgement.decision;
            let verdict = &mut decided.verdict;
            verdict.decision = judgement.decision;
            verdict.by = judgement.by;
            verdict.rules = judgement.rules;
            verdict.reason = judgement.reason;
            decided.facts = Some(judgement.facts);
        }
        Ok(())
    }

    /// What the policy allowed at first is asked a person, or denied where there is none.
    fn asks_after_all(&mut self, mut member: Member) {
        if self.asked_at(None).has_approver {
            let keeps = self.pool.config.shell_cwd;
            let directory = &mut self.asks.directory;
            directory.decided(keeps, &member.decided.moved, Decision::Ask);
            return self.proceed(member);
        }
        let ruling = Ruling::now(&self.pool, &self.work, None);
        let verdict = &mut member.decided.verdict;
        member.decided.deny_turn = asks::nobody_to_ask(&self.pool, ruling.policy(), verdict);
        let verdict = member.decided.verdict.clone();
        let ending = Ending {
            rules: Some(verdict.rules),
            ..Ending::denied(verdict.by, &verdict.reason)
        };
        self.end(member, &ending);
    }

    fn lowered(&mut self, member: Member, rule: String, why: &str) {
        let ending = Ending {
            rules: Some(vec![rule]),
            ..Ending::denied(DecidedBy::Delegate, why)
        };
        self.end(member, &ending);
    }

    /// The verdict holds, or a person is asked.
    fn proceed(&mut self, member: Member) {
        let Member {
            ask,
            mut decided,
            wish,
            since: asked,
        } = member;
        if decided.verdict.decision == Decision::Ask {
            return self.ask_a_person(Member {
                ask,
                decided,
                wish,
                since: asked,
            });
        }
        self.tally.decided(&decided);
        self.count_verdict(&mut decided);
        decided.record(&ask, &mut self.outbox);
        let (key, deny_turn, class) = (ask.key, decided.deny_turn, decided.class);
        self.outbox.after(match wish {
            Some((_, place)) => After::Client {
                key,
                place,
                asked,
                deny_turn,
                verdict: decided.verdict,
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

    /// Ends a request that is on no record yet, with a denial.
    fn end(&mut self, mut member: Member, ending: &Ending) {
        // What may have moved the shell is not taken back.
        member.decided.moved = Moved::Not;
        member.decided.record_request(&member.ask, &mut self.outbox);
        self.conclude(member, ending);
    }

    /// The delegate's word is not wanted any more.
    pub(super) fn not_delegated(&mut self, why: &str) {
        for (_, Delegated { member, .. }) in std::mem::take(&mut self.delegated) {
            self.end(member, &Ending::denied(DecidedBy::Gone, why));
        }
    }

    /// The same for one request, which the agent withdrew.
    pub(super) fn delegated_withdrawn(&mut self, key: &AskKey, why: &str) {
        let mut open = self.delegated.iter();
        let found = open.find(|(_, of)| of.member.ask.key == *key);
        let Some(id) = found.map(|(id, _)| id.clone()) else {
            return;
        };
        if let Some(Delegated { member, .. }) = self.delegated.remove(&id) {
            self.end(member, &Ending::denied(DecidedBy::Gone, why));
        }
    }
}
