//! What a person's answer does: it holds for exactly what was shown, and no rule is overruled.
//!
//! Everything is judged again before it is allowed, and the paths are followed again: what waits
//! may have become something else. Must not know how the answer came.

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::approvals::{Ending, Member};
use super::asks;
use super::calls::canonical;
use super::outbox::After;
use super::state::SessionState;
use crate::config::ShellCwd;
use crate::fleet::answering::{AnswerError, AnswerReply, Answered};
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
    Denied(Judgement),
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
        led.extend(
            places
                .first()
                .into_iter()
                .flat_map(|place| policy::leads(parts, place)),
        );
        let led: Vec<_> = led
            .iter()
            .map(|led| json!({"word": led.word.raw(), "to": led.to.raw(), "inside": led.inside}))
            .collect();
        Shown {
            paths: serde_json::Value::Array(led).to_string(),
            is_certain: places.iter().all(|place| place.cwd.is_some()),
        }
    }

    /// The client of a conversation decided.
    pub(super) fn client_decides(&mut self, id: &AskId, decision: Decision) {
        let answer = AnswerRow {
            decision,
            approver: "in the client".to_owned(),
            said: None,
            remember: Remember::Never,
        };
        let _ = self.decides(id, answer);
    }

    /// A person decided.
    pub(super) fn decided_by(&mut self, id: &AskId, answer: AnswerRow, reply: AnswerReply) {
        if !self.is_put(id) {
            return reply.over();
        }
        if answer.decision == Decision::Allow
            && self.shared.journal.health().borrow().is_read_only()
        {
            return reply.done(Err(AnswerError::ReadOnly));
        }
        let said = self.decides(id, answer);
        self.outbox.after(After::Said(reply, said));
    }

    fn decides(&mut self, id: &AskId, mut answer: AnswerRow) -> Result<Answered, AnswerError> {
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
            if pending.shown.is_certain {
                self.remember(&digest, &paths, &answer);
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

    /// Keeps an answer for as long as it holds. Where there is no room it holds once.
    pub(super) fn remember(&mut self, digest: &str, paths: &str, answer: &AnswerRow) {
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
    }

    /// Judges every request of a question again, and follows its paths again.
    fn look_again(&self, id: &AskId) -> Result<(), Overruled> {
        let Some(pending) = self.pending.get(id) else {
            return Ok(());
        };
        for member in &pending.members {
            let (judgement, place) = self.judged_again(member);
            if judgement.decision == Decision::Deny {
                return Err(Overruled::Denied(judgement));
            }
            let is_same_place = member.wish.as_ref().is_none_or(|(_, then)| *then == place);
            if !is_same_place || self.led(member, &judgement.facts.parts) != pending.shown {
                return Err(Overruled::Changed);
            }
        }
        Ok(())
    }

    fn judged_again(&self, member: &Member) -> (Judgement, Option<String>) {
        let Some(prepared) = self.prepared.as_ref() else {
            let why = "there is no workspace to judge paths by";
            return (Judgement::refused("no_workspace", why), None);
        };
        let Ask {
            tool,
            input,
            claimed,
            ..
        } = &member.ask;
        if let Some((wish, _)) = &member.wish {
            let (mut judgement, place) = self.pool.policy.decide_client(wish, &prepared.place());
            asks::show_text(wish, input, &mut judgement);
            return (judgement, place);
        }
        let from = &member.decided.from;
        let asked: (&Foreign, &serde_json::value::RawValue) = (tool, input);
        let (judgement, _) = asks::judge(&self.pool, Some(prepared), from, asked, claimed);
        (judgement, None)
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
