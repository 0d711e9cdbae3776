//! The questions to people that are open, and the answers that are remembered: a table that sessions
//! write and answers are looked up in.
//!
//! What is here may not be durable yet; people are shown what the journal has. Must not decide
//! anything, and must not know how a person is reached.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::asking_rules::AskRules;
use super::session::SessionRef;
use crate::journal::{AnswerRow, StoredQuestion};
use crate::limits::ANSWERS_REMEMBERED;
use crate::model::{AskId, PoolName, QuestionState, SessionId};

/// What is open, and what is remembered.
#[derive(Debug, Default)]
pub(crate) struct Questions(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<AskId, Open>,
    /// Answers that hold until their session ends, by digest; at most [`ANSWERS_REMEMBERED`] of a
    /// session.
    remembered: HashMap<SessionId, HashMap<String, Remembered>>,
}

/// One question.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) pool: PoolName,
    pub(crate) session: SessionId,
    pub(crate) digest: String,
    /// Until when it can be answered whether an agent waits or not, in microseconds since the Unix
    /// epoch.
    pub(crate) deadline_us: i64,
    /// Where its paths lead, as it was shown.
    pub(crate) paths: String,
    pub(crate) by: By,
}

/// An answer that is remembered, with where the paths led when it was given: where they lead
/// elsewhere it is another request.
#[derive(Debug, Clone)]
pub(crate) struct Remembered {
    pub(crate) paths: String,
    pub(crate) answer: AnswerRow,
}

/// Who would hear the answer.
#[derive(Debug, Clone)]
pub(crate) enum By {
    /// A session, whose agent waits.
    Session(SessionRef),
    /// Nobody now; what was said is kept.
    Nobody(Option<AnswerRow>),
}

/// What is known of a request before a person is asked about it.
#[derive(Debug)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// It was asked before its agent went, and nobody has answered: the agent waits again, until
    /// that deadline at most.
    Orphaned(AskId, i64),
    /// It was, and this is the answer: for this once.
    Answered(AskId, AnswerRow),
    /// It was, and led elsewhere then, or whoever answered it may not any more: it is asked anew,
    /// and this one is over.
    Anew(AskId),
    /// An answer holds for the whole session.
    Remembered(AnswerRow),
}

impl Questions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what earlier starts left.
    pub(crate) fn take_up(&self, open: &[StoredQuestion], remembered: Vec<StoredQuestion>) {
        for of in open.iter().filter(|of| of.state == QuestionState::Orphaned) {
            let question = Open {
                pool: of.pool.clone(),
                session: of.session.clone(),
                digest: of.digest.clone(),
                deadline_us: of.deadline_us,
                paths: of.paths.clone(),
                by: By::Nobody(of.answer.clone()),
            };
            self.lock().open.insert(of.ask.clone(), question);
        }
        for of in remembered {
            if let Some(answer) = of.answer {
                let paths = of.paths;
                self.remember(&of.session, of.digest, Remembered { paths, answer });
            }
        }
    }

    /// What is known of a request. What was kept for it is given once; what `rules` do not let hold
    /// any more is forgotten.
    pub(crate) fn known(
        &self,
        session: &SessionId,
        digest: &str,
        paths: &str,
        now_us: i64,
        rules: &AskRules,
    ) -> Known {
        let mut inner = self.lock();
        let same = |of: &Open| {
            of.session == *session && of.digest == digest && matches!(of.by, By::Nobody(_))
        };
        let found = inner.open.iter().find(|(_, of)| same(of));
        if let Some((id, of)) = found
            && of.deadline_us > now_us
        {
            let (id, deadline_us) = (id.clone(), of.deadline_us);
            if of.paths != paths {
                inner.open.remove(&id);
                return Known::Anew(id);
            }
            return match inner.open.remove(&id).map(|of| of.by) {
                Some(By::Nobody(Some(answer))) if !rules.still_permit(&answer) => Known::Anew(id),
                Some(By::Nobody(Some(answer))) => Known::Answered(id, answer),
                _ => Known::Orphaned(id, deadline_us),
            };
        }
        let Some(answers) = inner.remembered.get_mut(session) else {
            return Known::Nothing;
        };
        if answers
            .get(digest)
            .is_some_and(|of| !rules.still_hold(&of.answer))
        {
            answers.remove(digest);
        }
        match answers.get(digest) {
            Some(of) if of.paths == paths => Known::Remembered(of.answer.clone()),
            _ => Known::Nothing,
        }
    }

    /// A question is put, or put again.
    pub(crate) fn put(&self, id: AskId, open: Open) {
        self.lock().open.insert(id, open);
    }

    /// It is over.
    pub(crate) fn over(&self, id: &AskId) -> Option<Open> {
        self.lock().open.remove(id)
    }

    /// An open question.
    pub(crate) fn find(&self, id: &AskId) -> Option<Open> {
        self.lock().open.get(id).cloned()
    }

    /// How many wait for people in a pool.
    pub(crate) fn waiting(&self, pool: &PoolName) -> usize {
        let inner = self.lock();
        let waits = |of: &&Open| of.pool == *pool && !matches!(of.by, By::Nobody(Some(_)));
        inner.open.values().filter(waits).count()
    }

    /// Keeps an answer for a question that no agent waits for, if it is such a one and has none.
    pub(crate) fn keep(&self, id: &AskId, answer: &AnswerRow) -> bool {
        match self.lock().open.get_mut(id).map(|of| &mut of.by) {
            Some(kept @ By::Nobody(None)) => {
                *kept = By::Nobody(Some(answer.clone()));
                true
            }
            _ => false,
        }
    }

    /// What was kept is not durable: it is taken back.
    pub(crate) fn unkeep(&self, id: &AskId) {
        if let Some(of) = self.lock().open.get_mut(id)
            && let By::Nobody(kept) = &mut of.by
        {
            *kept = None;
        }
    }

    /// Takes out what no agent waits for and whose time is over; `None` if it is something else
    /// by now.
    pub(crate) fn expire(&self, id: &AskId, now_us: i64) -> Option<Open> {
        let mut inner = self.lock();
        let late = |of: &Open| matches!(of.by, By::Nobody(_)) && of.deadline_us <= now_us;
        inner.open.get(id).filter(|of| late(of))?;
        inner.open.remove(id)
    }

    /// Remembers an answer for the rest of a session; `false` if there is no room.
    pub(crate) fn remember(&self, session: &SessionId, digest: String, answer: Remembered) -> bool {
        let mut inner = self.lock();
        let answers = inner.remembered.entry(session.clone()).or_default();
        let fits = answers.len() < ANSWERS_REMEMBERED || answers.contains_key(&digest);
        if fits {
            answers.insert(digest, answer);
        }
        fits
    }

    /// A session has ended for good.
    pub(crate) fn session_over(&self, session: &SessionId) {
        let mut inner = self.lock();
        inner.remembered.remove(session);
        inner.open.retain(|_, of| of.session != *session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Approver;
    use crate::model::{Decision, Remember};

    fn rules() -> AskRules {
        AskRules {
            approvers: vec![Approver::Owner],
            remember: Remember::Session,
            max_pending: 1,
        }
    }

    fn id(text: &str) -> AskId {
        AskId::new(text).expect("id")
    }

    fn session(text: &str) -> SessionId {
        SessionId::new(text).expect("id")
    }

    fn answer(decision: Decision) -> AnswerRow {
        AnswerRow {
            decision,
            approver: "uid 0".to_owned(),
            said: None,
            remember: Remember::Never,
        }
    }

    fn remembered(decision: Decision) -> Remembered {
        Remembered {
            paths: "[]".to_owned(),
            answer: answer(decision),
        }
    }

    fn orphan(of: &str, digest: &str) -> Open {
        Open {
            pool: PoolName::new("p").expect("name"),
            session: session(of),
            digest: digest.to_owned(),
            deadline_us: 100,
            paths: "[]".to_owned(),
            by: By::Nobody(None),
        }
    }

    #[test]
    fn an_answer_is_kept_once_for_the_same_request_of_the_same_session_and_used_once() {
        let all = Questions::default();
        all.put(id("a"), orphan("s", "d"));
        assert!(all.keep(&id("a"), &answer(Decision::Allow)));
        assert!(!all.keep(&id("a"), &answer(Decision::Deny)), "answered");
        assert!(!all.keep(&id("b"), &answer(Decision::Deny)), "unknown");
        assert!(matches!(
            all.known(&session("t"), "d", "[]", 1, &rules()),
            Known::Nothing
        ));
        assert!(matches!(
            all.known(&session("s"), "e", "[]", 1, &rules()),
            Known::Nothing
        ));
        let late = all.known(&session("s"), "d", "[]", 100, &rules());
        assert!(matches!(late, Known::Nothing), "late: {late:?}");
        let found = all.known(&session("s"), "d", "[]", 99, &rules());
        let Known::Answered(of, kept) = found else {
            panic!("{found:?}");
        };
        assert_eq!((of, kept), (id("a"), answer(Decision::Allow)));
        assert!(matches!(
            all.known(&session("s"), "d", "[]", 1, &rules()),
            Known::Nothing
        ));
    }

    #[test]
    fn what_is_remembered_is_of_one_session_and_bounded() {
        let all = Questions::default();
        for number in 0..ANSWERS_REMEMBERED {
            let digest = number.to_string();
            assert!(all.remember(&session("s"), digest, remembered(Decision::Deny)));
        }
        assert!(!all.remember(&session("s"), "more".to_owned(), remembered(Decision::Deny)));
        assert!(all.remember(&session("s"), "0".to_owned(), remembered(Decision::Allow)));
        let known = all.known(&session("s"), "0", "[]", 1, &rules());
        assert!(
            matches!(&known, Known::Remembered(of) if of.decision == Decision::Allow),
            "{known:?}"
        );
        let elsewhere = all.known(&session("s"), "0", "[1]", 1, &rules());
        assert!(matches!(elsewhere, Known::Nothing), "{elsewhere:?}");
        let other = all.known(&session("t"), "1", "[]", 1, &rules());
        assert!(matches!(other, Known::Nothing), "{other:?}");
        all.put(id("a"), orphan("s", "d"));
        assert_eq!(all.waiting(&PoolName::new("p").expect("name")), 1);
        all.session_over(&session("s"));
        let gone = all.known(&session("s"), "1", "[]", 1, &rules());
        assert!(matches!(gone, Known::Nothing), "{gone:?}");
        assert!(all.find(&id("a")).is_none());
    }

    #[test]
    fn what_is_in_force_now_says_what_still_holds() {
        let all = Questions::default();
        let known =
            |digest: &str, rules: &AskRules| all.known(&session("s"), digest, "[]", 1, rules);
        let ops = AskRules {
            approvers: vec![Approver::new("ops").expect("a name")],
            ..rules()
        };
        let short = AskRules {
            remember: Remember::Turn,
            ..rules()
        };
        let held = || Remembered {
            paths: "[]".to_owned(),
            answer: AnswerRow {
                remember: Remember::Session,
                ..answer(Decision::Allow)
            },
        };
        for stricter in [&ops, &short] {
            assert!(all.remember(&session("s"), "d".to_owned(), held()));
            assert!(matches!(known("d", &rules()), Known::Remembered(_)));
            assert!(matches!(known("d", stricter), Known::Nothing));
            // It does not come back when that is taken back.
            assert!(matches!(known("d", &rules()), Known::Nothing));
        }
        all.put(id("a"), orphan("s", "e"));
        assert!(all.keep(&id("a"), &held().answer));
        assert!(matches!(known("e", &ops), Known::Anew(of) if of == id("a")));
        all.put(id("b"), orphan("s", "f"));
        assert!(all.keep(&id("b"), &held().answer));
        // Once it holds: only how long is cut.
        assert!(matches!(known("f", &short), Known::Answered(..)));
    }
}
