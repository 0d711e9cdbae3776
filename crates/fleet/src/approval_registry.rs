//! The open approvals and the remembered answers, in memory. Sessions insert approvals, and answers
//! are looked up here.
//!
//! An entry may not be durable yet; people see only what the journal has. Must not decide anything,
//! and must not know how a person is reached.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::approval_rules::ApprovalRules;
use crate::messages::SessionRef;
use marshal_journal::{ApprovalAnswer, StoredApproval};
use marshal_model::limits::ANSWERS_REMEMBERED;
use marshal_model::{ApprovalState, PermissionRequestId, PoolName, SessionId};

/// The open approvals and the remembered answers.
#[derive(Debug, Default)]
pub(crate) struct ApprovalRegistry(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<PermissionRequestId, OpenApproval>,
    /// Answers that are remembered until their session ends, by digest; at most
    /// [`ANSWERS_REMEMBERED`] a session.
    remembered: HashMap<SessionId, HashMap<String, RememberedAnswer>>,
}

/// One open approval.
#[derive(Debug, Clone)]
pub(crate) struct OpenApproval {
    pub(crate) pool: PoolName,
    pub(crate) session: SessionId,
    pub(crate) digest: String,
    /// When it expires, whether an agent waits or not: microseconds since the Unix epoch.
    pub(crate) deadline_us: i64,
    /// The resolved targets of its paths, as they were shown.
    pub(crate) paths: String,
    pub(crate) recipient: AnswerRecipient,
}

/// A remembered answer, with the resolved paths at the time of the answer. If the paths resolve
/// differently later, it is another request.
#[derive(Debug, Clone)]
pub(crate) struct RememberedAnswer {
    pub(crate) paths: String,
    pub(crate) answer: ApprovalAnswer,
}

/// Who receives the answer.
#[derive(Debug, Clone)]
pub(crate) enum AnswerRecipient {
    /// A session whose agent waits.
    Session(SessionRef),
    /// No session now; an answer is stored here until the agent comes back.
    Orphaned(Option<ApprovalAnswer>),
}

/// What the registry knows about a request before a person is asked.
#[derive(Debug)]
pub(crate) enum KnownApproval {
    /// No earlier approval and no remembered answer.
    None,
    /// An approval from before its agent went away is still unanswered: the agent waits again, at
    /// most until this deadline.
    Orphaned(PermissionRequestId, i64),
    /// An approval from before its agent went away was answered; the answer applies once.
    Answered(PermissionRequestId, ApprovalAnswer),
    /// The earlier approval does not apply any more: its paths resolve differently, or its approver
    /// may no longer answer. It ends, and a new one is needed.
    Outdated(PermissionRequestId),
    /// An answer is remembered for the whole session.
    Remembered(ApprovalAnswer),
}

impl ApprovalRegistry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the approvals and answers of earlier starts.
    pub(crate) fn restore(&self, open: &[StoredApproval], remembered: Vec<StoredApproval>) {
        for of in open.iter().filter(|of| of.state == ApprovalState::Orphaned) {
            let question = OpenApproval {
                pool: of.pool.clone(),
                session: of.session.clone(),
                digest: of.digest.clone(),
                deadline_us: of.deadline_us,
                paths: of.paths.clone(),
                recipient: AnswerRecipient::Orphaned(of.answer.clone()),
            };
            self.lock().open.insert(of.id.clone(), question);
        }
        for of in remembered {
            if let Some(answer) = of.answer {
                let paths = of.paths;
                self.remember_answer(&of.session, of.digest, RememberedAnswer { paths, answer });
            }
        }
    }

    /// Looks up a request. A stored answer is returned once. A remembered answer that `rules` do
    /// not permit any more is removed.
    pub(crate) fn look_up(
        &self,
        session: &SessionId,
        digest: &str,
        paths: &str,
        now_us: i64,
        rules: &ApprovalRules,
    ) -> KnownApproval {
        let mut inner = self.lock();
        let same = |of: &OpenApproval| {
            of.session == *session
                && of.digest == digest
                && matches!(of.recipient, AnswerRecipient::Orphaned(_))
        };
        let found = inner.open.iter().find(|(_, of)| same(of));
        if let Some((id, of)) = found
            && of.deadline_us > now_us
        {
            let (id, deadline_us) = (id.clone(), of.deadline_us);
            if of.paths != paths {
                inner.open.remove(&id);
                return KnownApproval::Outdated(id);
            }
            return match inner.open.remove(&id).map(|of| of.recipient) {
                Some(AnswerRecipient::Orphaned(Some(answer)))
                    if !rules.permits_approver_of(&answer) =>
                {
                    KnownApproval::Outdated(id)
                }
                Some(AnswerRecipient::Orphaned(Some(answer))) => {
                    KnownApproval::Answered(id, answer)
                }
                _ => KnownApproval::Orphaned(id, deadline_us),
            };
        }
        let Some(answers) = inner.remembered.get_mut(session) else {
            return KnownApproval::None;
        };
        if answers
            .get(digest)
            .is_some_and(|of| !rules.accepts_remembered(&of.answer))
        {
            answers.remove(digest);
        }
        match answers.get(digest) {
            Some(of) if of.paths == paths => KnownApproval::Remembered(of.answer.clone()),
            _ => KnownApproval::None,
        }
    }

    /// Adds an approval, or adds it again.
    pub(crate) fn insert(&self, id: PermissionRequestId, open: OpenApproval) {
        self.lock().open.insert(id, open);
    }

    /// Removes an approval that has ended.
    pub(crate) fn remove(&self, id: &PermissionRequestId) -> Option<OpenApproval> {
        self.lock().open.remove(id)
    }

    /// An open approval.
    pub(crate) fn get(&self, id: &PermissionRequestId) -> Option<OpenApproval> {
        self.lock().open.get(id).cloned()
    }

    /// How many approvals of a pool wait for a person.
    pub(crate) fn pending_count(&self, pool: &PoolName) -> usize {
        let inner = self.lock();
        let waits = |of: &&OpenApproval| {
            of.pool == *pool && !matches!(of.recipient, AnswerRecipient::Orphaned(Some(_)))
        };
        inner.open.values().filter(waits).count()
    }

    /// Stores an answer for an orphaned approval without one; `false` if it is not such an
    /// approval.
    pub(crate) fn store_answer(&self, id: &PermissionRequestId, answer: &ApprovalAnswer) -> bool {
        match self.lock().open.get_mut(id).map(|of| &mut of.recipient) {
            Some(recipient @ AnswerRecipient::Orphaned(None)) => {
                *recipient = AnswerRecipient::Orphaned(Some(answer.clone()));
                true
            }
            _ => false,
        }
    }

    /// Removes a stored answer that could not be made durable.
    pub(crate) fn discard_answer(&self, id: &PermissionRequestId) {
        if let Some(of) = self.lock().open.get_mut(id)
            && let AnswerRecipient::Orphaned(stored) = &mut of.recipient
        {
            *stored = None;
        }
    }

    /// Removes an orphaned approval whose deadline has passed; `None` if an agent waits again or
    /// the deadline has not passed.
    pub(crate) fn remove_expired(
        &self,
        id: &PermissionRequestId,
        now_us: i64,
    ) -> Option<OpenApproval> {
        let mut inner = self.lock();
        let late = |of: &OpenApproval| {
            matches!(of.recipient, AnswerRecipient::Orphaned(_)) && of.deadline_us <= now_us
        };
        inner.open.get(id).filter(|of| late(of))?;
        inner.open.remove(id)
    }

    /// Remembers an answer for the rest of a session; `false` if there is no room.
    pub(crate) fn remember_answer(
        &self,
        session: &SessionId,
        digest: String,
        answer: RememberedAnswer,
    ) -> bool {
        let mut inner = self.lock();
        let answers = inner.remembered.entry(session.clone()).or_default();
        let fits = answers.len() < ANSWERS_REMEMBERED || answers.contains_key(&digest);
        if fits {
            answers.insert(digest, answer);
        }
        fits
    }

    /// Removes everything of a session that has ended for good.
    pub(crate) fn remove_session(&self, session: &SessionId) {
        let mut inner = self.lock();
        inner.remembered.remove(session);
        inner.open.retain(|_, of| of.session != *session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::Approver;
    use marshal_model::{Decision, RememberScope};

    fn rules() -> ApprovalRules {
        ApprovalRules {
            approvers: vec![Approver::Owner],
            remember: RememberScope::Session,
            max_pending: 1,
        }
    }

    fn id(text: &str) -> PermissionRequestId {
        PermissionRequestId::new(text).expect("id")
    }

    fn session(text: &str) -> SessionId {
        SessionId::new(text).expect("id")
    }

    fn answer(decision: Decision) -> ApprovalAnswer {
        ApprovalAnswer {
            decision,
            approver: "uid 0".to_owned(),
            comment: None,
            remember: RememberScope::Never,
        }
    }

    fn remembered(decision: Decision) -> RememberedAnswer {
        RememberedAnswer {
            paths: "[]".to_owned(),
            answer: answer(decision),
        }
    }

    fn orphan(of: &str, digest: &str) -> OpenApproval {
        OpenApproval {
            pool: PoolName::new("p").expect("name"),
            session: session(of),
            digest: digest.to_owned(),
            deadline_us: 100,
            paths: "[]".to_owned(),
            recipient: AnswerRecipient::Orphaned(None),
        }
    }

    #[test]
    fn an_answer_is_kept_once_for_the_same_request_of_the_same_session_and_used_once() {
        let all = ApprovalRegistry::default();
        all.insert(id("a"), orphan("s", "d"));
        assert!(all.store_answer(&id("a"), &answer(Decision::Allow)));
        assert!(
            !all.store_answer(&id("a"), &answer(Decision::Deny)),
            "answered"
        );
        assert!(
            !all.store_answer(&id("b"), &answer(Decision::Deny)),
            "unknown"
        );
        assert!(matches!(
            all.look_up(&session("t"), "d", "[]", 1, &rules()),
            KnownApproval::None
        ));
        assert!(matches!(
            all.look_up(&session("s"), "e", "[]", 1, &rules()),
            KnownApproval::None
        ));
        let late = all.look_up(&session("s"), "d", "[]", 100, &rules());
        assert!(matches!(late, KnownApproval::None), "late: {late:?}");
        let found = all.look_up(&session("s"), "d", "[]", 99, &rules());
        let KnownApproval::Answered(of, stored) = found else {
            panic!("{found:?}");
        };
        assert_eq!((of, stored), (id("a"), answer(Decision::Allow)));
        assert!(matches!(
            all.look_up(&session("s"), "d", "[]", 1, &rules()),
            KnownApproval::None
        ));
    }

    #[test]
    fn what_is_remembered_is_of_one_session_and_bounded() {
        let all = ApprovalRegistry::default();
        for number in 0..ANSWERS_REMEMBERED {
            let digest = number.to_string();
            assert!(all.remember_answer(&session("s"), digest, remembered(Decision::Deny)));
        }
        assert!(!all.remember_answer(&session("s"), "more".to_owned(), remembered(Decision::Deny)));
        assert!(all.remember_answer(&session("s"), "0".to_owned(), remembered(Decision::Allow)));
        let known = all.look_up(&session("s"), "0", "[]", 1, &rules());
        assert!(
            matches!(&known, KnownApproval::Remembered(of) if of.decision == Decision::Allow),
            "{known:?}"
        );
        let elsewhere = all.look_up(&session("s"), "0", "[1]", 1, &rules());
        assert!(matches!(elsewhere, KnownApproval::None), "{elsewhere:?}");
        let other = all.look_up(&session("t"), "1", "[]", 1, &rules());
        assert!(matches!(other, KnownApproval::None), "{other:?}");
        all.insert(id("a"), orphan("s", "d"));
        assert_eq!(all.pending_count(&PoolName::new("p").expect("name")), 1);
        all.remove_session(&session("s"));
        let unknown = all.look_up(&session("s"), "1", "[]", 1, &rules());
        assert!(matches!(unknown, KnownApproval::None), "{unknown:?}");
        assert!(all.get(&id("a")).is_none());
    }

    #[test]
    fn what_is_in_force_now_says_what_still_holds() {
        let all = ApprovalRegistry::default();
        let known = |digest: &str, rules: &ApprovalRules| {
            all.look_up(&session("s"), digest, "[]", 1, rules)
        };
        let ops = ApprovalRules {
            approvers: vec![Approver::new("ops").expect("a name")],
            ..rules()
        };
        let short = ApprovalRules {
            remember: RememberScope::Turn,
            ..rules()
        };
        let for_session = || RememberedAnswer {
            paths: "[]".to_owned(),
            answer: ApprovalAnswer {
                remember: RememberScope::Session,
                ..answer(Decision::Allow)
            },
        };
        for stricter in [&ops, &short] {
            assert!(all.remember_answer(&session("s"), "d".to_owned(), for_session()));
            assert!(matches!(known("d", &rules()), KnownApproval::Remembered(_)));
            assert!(matches!(known("d", stricter), KnownApproval::None));
            // The stricter rules removed it: it is not restored with the milder ones.
            assert!(matches!(known("d", &rules()), KnownApproval::None));
        }
        all.insert(id("a"), orphan("s", "e"));
        assert!(all.store_answer(&id("a"), &for_session().answer));
        assert!(matches!(known("e", &ops), KnownApproval::Outdated(of) if of == id("a")));
        all.insert(id("b"), orphan("s", "f"));
        assert!(all.store_answer(&id("b"), &for_session().answer));
        // A shorter remember scope does not invalidate an answer that applies once.
        assert!(matches!(known("f", &short), KnownApproval::Answered(..)));
    }
}
