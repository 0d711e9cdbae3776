//! What a person's answer does: it holds for exactly what was shown, and no rule is overruled.
//!
//! Everything is judged again before it is allowed, and the paths are followed again: what waits
//! may have become something else. Must not know how the answer came.

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::approvals::{Ending, Member};
use super::asks;
use super::calls::canonical;
use super::judging::{self, Asked};
use super::ruling::{self, Ruling};
use super::state::SessionState;
use crate::config::ShellCwd;
use crate::fleet::answering::{AnswerError, AnswerReply, Answered};
use crate::fleet::asking_rules::IN_THE_CLIENT;
use crate::fleet::clock;
use crate::fleet::questions::Remembered;
use crate::journal::AnswerRow;
use crate::limits::ANSWERS_REMEMBERED;
use crate::model::{Ask, AskId, DecidedBy, Decision, Foreign, QuestionState, Remember};
use crate::policy::{self, Judgement, Led, Part};

/// How wide a person's words may be in a reason.
const SAID_WIDTH: usize = 500;

/// What a person sees of a request beside its words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Where its paths lead, and where its shell may be, as JSON.
    pub(super) paths: String,
    /// It is known where it would run, so that another request of the same words and places does
    /// the same.
    pub(super) is_certain: bool,
}

/// What an answer is bound to: SHA-256, in hexadecimal, of the tool, a zero byte and the canonical
/// input.
pub(super) fn digest(ask: &Ask) -> String {
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    hash.update(ask.tool.raw().as_bytes());
    hash.update([0]);
    hash.update(canonical(&ask.input).as_bytes());
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The reason of a verdict that a person gave: for the record, and of a denial for the model.
pub(super) fn reason(answer: &AnswerRow, by: DecidedBy) -> String {
    let who = &answer.approver;
    let before = if by == DecidedBy::Cache {
        " before, for longer"
    } else {
        ""
    };
    let said = answer.said.as_ref().map(|said| said.show(SAID_WIDTH));
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    match answer.decision {
        Decision::Allow => format!("a person ({who}) allowed this{before}{said}"),
        Decision::Ask | Decision::Deny if said.is_empty() => {
            format!("a person ({who}) refused this{before}: do it another way or go on without it")
        }
        Decision::Ask | Decision::Deny => format!("a person ({who}) refused this{before}{said}"),
    }
}

/// Why what was allowed is denied.
enum Overruled {
    /// The policy denies it.
    Denied(Box<Judgement>),
    /// It is something else by now.
    Changed,
}

impl SessionState {
    /// What people see of a request, as far as it must be looked up.
    pub(super) fn shown(&self, member: &Member) -> Shown {
        let facts = member.decided.facts.as_ref();
        let parts = facts.map_or(&[][..], |facts| &facts.parts[..]);
        self.led(member, parts)
    }

    fn led(&self, member: &Member, parts: &[Part]) -> Shown {
        let Some(prepared) = self.prepared.as_ref() else {
            return Shown::default();
        };
        let places = member.decided.from.places(prepared);
        let mut led: Vec<Led> = Vec::new();
        // Of a shell that keeps its directory: where it may be.
        if self.pool.config.shell_cwd != ShellCwd::Workspace {
            led.extend(places.iter().filter_map(|place| place.cwd).map(|cwd| Led {
                word: Foreign::from("."),
                to: Foreign::new(cwd),
                inside: true,
            }));
        }
        // What an agent has its client do names its places itself, and is bound to them.
        let request = member.wish.is_none().then(|| {
            let ask = &member.ask;
            self.pool.extractor.extract(ask.tool.raw(), &ask.input)
        });
        led.extend(
            places
                .first()
                .into_iter()
                .flat_map(|place| policy::leads(request.as_ref(), parts, place)),
        );
        let led: Vec<_> = led
            .iter()
            .map(|led| json!({"word": led.word.raw(), "to": led.to.raw(), "inside": led.inside}))
            .collect();
        Shown {
            paths: serde_json::Value::Array(led).to_string(),
            // Two that differ in their secrets look alike.
            is_certain: member.decided.came.is_none()
                && places.iter().all(|place| place.cwd.is_some()),
        }
    }

    /// The client of a conversation decided.
    pub(super) fn client_decides(&mut self, id: &AskId, decision: Decision) {
        let answer = AnswerRow {
            decision,
            approver: IN_THE_CLIENT.to_owned(),
            said: None,
            remember: Remember::Never,
        };
        self.given(id, answer, None);
    }

    /// A person decided.
    pub(super) fn decided_by(&mut self, id: &AskId, answer: AnswerRow, reply: AnswerReply) {
        if !self.is_put(id) {
            return reply.over();
        }
        if self
            .pending
            .get(id)
            .is_some_and(|of| of.is_over(clock::now_us()))
        {
            // The time of day was set, or this machine slept: what people were told counts.
            self.ask_expired(id);
            return reply.over();
        }
        if answer.decision == Decision::Allow
            && self.shared.journal.health().borrow().is_read_only()
        {
            return reply.done(Err(AnswerError::ReadOnly));
        }
        self.given(id, answer, Some(reply));
    }

    /// An answer is carried out, if what it allows is still what was shown and no rule denies it.
    pub(super) fn decides(
        &mut self,
        id: &AskId,
        mut answer: AnswerRow,
    ) -> Result<Answered, AnswerError> {
        if answer.decision == Decision::Allow
            && let Err(overruled) = self.look_again(id)
        {
            answer.remember = Remember::Never;
            let (error, ending) = match overruled {
                Overruled::Denied(judgement) => (
                    AnswerError::Denied(judgement.reason.clone()),
                    Ending {
                        decision: Decision::Deny,
                        by: judgement.by,
                        why: judgement.reason,
                        rules: Some(judgement.rules),
                        answer: Some(answer),
                    },
                ),
                Overruled::Changed => {
                    let why = "what this leads to changed while it waited for a person";
                    (
                        AnswerError::Changed(why.to_owned()),
                        Ending {
                            answer: Some(answer),
                            ..Ending::denied(DecidedBy::Error, &format!("{why}; ask again"))
                        },
                    )
                }
            };
            self.resolve(id, &ending);
            return Err(error);
        }
        if let Some(pending) = self.pending.get(id) {
            let (digest, paths) = (pending.digest.clone(), pending.shown.paths.clone());
            let holds = pending.shown.is_certain && !pending.is_of_budget();
            if !holds || !self.remember(&digest, &paths, &answer) {
                // What is told and on record is what is so.
                answer.remember = Remember::Never;
            }
        }
        let state = match answer.decision {
            Decision::Allow => QuestionState::Allowed,
            Decision::Ask | Decision::Deny => QuestionState::Denied,
        };
        let remember = answer.remember;
        self.resolve(id, &Ending::said(DecidedBy::Human, answer));
        Ok(Answered { state, remember })
    }

    /// Keeps an answer for as long as it holds. Gives `false` where there is no room: it holds once.
    pub(super) fn remember(&mut self, digest: &str, paths: &str, answer: &AnswerRow) -> bool {
        let remembered = Remembered {
            paths: paths.to_owned(),
            answer: answer.clone(),
        };
        let fits = match answer.remember {
            Remember::Never => true,
            Remember::Turn => {
                let fits = self.of_turn.len() < ANSWERS_REMEMBERED;
                if fits {
                    self.of_turn.insert(digest.to_owned(), remembered);
                }
                fits
            }
            Remember::Session => {
                let (session, digest) = (&self.work.session, digest.to_owned());
                self.shared.questions.remember(session, digest, remembered)
            }
        };
        if !fits {
            tracing::warn!(session = %self.work.session, "too many answers are remembered: this one holds once");
        }
        fits
    }

    /// Judges every request of a question again, and follows its paths again.
    fn look_again(&self, id: &AskId) -> Result<(), Overruled> {
        let Some(pending) = self.pending.get(id) else {
            return Ok(());
        };
        for member in &pending.members {
            let (judgement, place) = self.judged_again(member);
            if judgement.decision == Decision::Deny {
                return Err(Overruled::Denied(Box::new(judgement)));
            }
            let is_same_place = member.wish.as_ref().is_none_or(|(_, then)| *then == place);
            if !is_same_place || self.led(member, &judgement.facts.parts) != pending.shown {
                return Err(Overruled::Changed);
            }
        }
        Ok(())
    }

    /// What the delegate is asked once a person has allowed a question: one document for each of its
    /// requests, with what the policy says now. `None`: it is denied, or is something else by now.
    pub(super) fn documents_now(&self, id: &AskId) -> Option<Vec<String>> {
        self.look_again(id).ok()?;
        let (pending, delegate) = self.pending.get(id).zip(self.pool.delegate.as_ref())?;
        let text = |member: &Member| {
            let (now, _) = self.judged_again(member);
            let says = (now.decision, &now.rules[..], &now.reason[..]);
            self.document(member, &delegate.config.name, says).text()
        };
        let asked = pending.members.iter();
        Some(asked.filter(|of| self.is_delegated(of)).map(text).collect())
    }

    /// What the policy says of a request now; of what an agent has its client do, with the place.
    pub(super) fn judged_again(&self, member: &Member) -> (Judgement, Option<String>) {
        let Some(prepared) = self.prepared.as_ref() else {
            let why = "there is no workspace to judge paths by";
            return (Judgement::refused("no_workspace", why), None);
        };
        // By the newest policy: what denies now denies what was asked before.
        let ruling = Ruling::now(&self.pool, &self.work, self.mode());
        let Some(loaded) = ruling.loaded() else {
            let why = "the policy that lies on top of this session's is not there any more";
            return (Judgement::refused("no_policy", why), None);
        };
        let used = ruling::without(self.asks.used(), &member.decided.uses);
        let occasion = ruling.occasion(&self.pool, &used);
        let by = (&*loaded.policy, &occasion);
        let came = member.decided.came.as_deref();
        if let Some((wish, _)) = &member.wish {
            let is_masked = came.is_some();
            return asks::judge_client(&self.pool, by, prepared, wish, &member.ask, is_masked);
        }
        let (asked, came) = (Asked::of(&member.ask), came.map(Asked::of));
        let from = &member.decided.from;
        let looked = judging::judge(&self.pool, by, Some(prepared), from, asked, came);
        (looked.judgement, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AskKey, Claimed};

    fn ask(tool: &str, input: &str) -> Ask {
        Ask {
            key: AskKey {
                id: "1".to_owned(),
                serial: 1,
            },
            tool_id: None,
            tool: Foreign::new(tool),
            input: serde_json::value::RawValue::from_string(input.to_owned()).expect("json"),
            claimed: Claimed::default(),
        }
    }

    #[test]
    fn a_digest_is_of_tool_and_canonical_input_and_of_nothing_else() {
        let one = digest(&ask("bash", r#"{"a":1,"b":[2]}"#));
        assert_eq!(one.len(), 64);
        let mut same = ask("bash", "{ \"b\": [ 2 ],\n \"a\": 1 }");
        same.claimed.title = Some(Foreign::from("harmless"));
        assert_eq!(one, digest(&same));
        assert_ne!(one, digest(&ask("bash", r#"{"a":1,"b":[3]}"#)));
        assert_ne!(one, digest(&ask("read", r#"{"a":1,"b":[2]}"#)));
        // What is one number for us may be two for the tool, and of two fields it takes either.
        let other = [
            r#"{"id":18446744073709551616}"#,
            r#"{"id":18446744073709551617}"#,
            r#"{"id":1.0}"#,
            r#"{"id":1.0000000000000000001}"#,
            r#"{"id":2}"#,
            r#"{"id":1,"id":2}"#,
            r#"{"id":2,"id":1}"#,
        ];
        let digests: std::collections::BTreeSet<_> =
            other.iter().map(|input| digest(&ask("t", input))).collect();
        assert_eq!(digests.len(), other.len());
        // The tool's name ends where it ends.
        assert_ne!(digest(&ask("a", "\"b\"")), digest(&ask("a\"b", "\"\"")));
    }

    #[test]
    fn a_reason_names_who_and_shows_what_they_say_on_one_safe_line() {
        let mut answer = AnswerRow {
            decision: Decision::Deny,
            approver: "uid 0".to_owned(),
            said: None,
            remember: Remember::Never,
        };
        let plain = reason(&answer, DecidedBy::Human);
        assert!(
            plain.contains("uid 0") && plain.contains("another way"),
            "{plain}"
        );
        answer.said = Some(Foreign::from("no\n\u{1b}[2J \u{202e}never"));
        let shown = reason(&answer, DecidedBy::Human);
        assert!(!shown.contains(['\n', '\u{1b}', '\u{202e}']), "{shown:?}");
        assert!(shown.contains("never"), "{shown}");
        answer.decision = Decision::Allow;
        let cached = reason(&answer, DecidedBy::Cache);
        assert!(cached.contains("allowed this before"), "{cached}");
    }
}
