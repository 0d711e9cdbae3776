//! Questions to people over starts and ends of sessions, and in files of earlier versions.

use super::*;
use crate::model::{QuestionState, Remember};

/// A session of a slot, which outlives the supervisor.
fn kept(session: &SessionId) -> Write {
    Write::SessionBegun(SessionRow {
        session: session.clone(),
        slot: slot(0),
        run: None,
        task: None,
        attempt: 1,
        at_us: 1,
    })
}

fn put(journal: &Journal, id: &SessionId, ask: &str, seq: u64, deadline_us: i64) {
    let row = QuestionRow {
        ask: AskId::new(ask).expect("id"),
        session: id.clone(),
        pool: PoolName::new("demo").expect("name"),
        digest: format!("digest-{ask}"),
        rules: vec!["net".to_owned()],
        why: "why".to_owned(),
        paths: "[]".to_owned(),
        at_us: 5,
        deadline_us,
        agent_until_us: Some(7),
    };
    let writes = vec![
        event(id, journal.epoch(), seq, asked(ask, "{}")),
        Write::QuestionPut(Box::new(row)),
    ];
    assert_durable(&commit(journal, writes));
}

fn change(ask: &str, change: QuestionChange) -> Write {
    Write::QuestionChanged {
        question: AskId::new(ask).expect("id"),
        at_us: 9,
        change,
    }
}

fn answer(decision: Decision) -> AnswerRow {
    AnswerRow {
        decision,
        approver: "uid 0".to_owned(),
        said: Some(Foreign::new("so")),
        remember: Remember::Session,
    }
}

fn found(journal: &Journal, ask: &str) -> StoredQuestion {
    let reader = journal.reader().expect("reader");
    let found = reader.question(&AskId::new(ask).expect("id"));
    found.expect("read").expect("there")
}

#[test]
fn a_start_leaves_what_a_session_may_ask_again_and_ends_the_rest() {
    let dir = tempdir();
    let journal = open(dir.path());
    let (slot, task) = (session("slot"), session("task"));
    assert_durable(&commit(&journal, vec![kept(&slot), begun(&task)]));
    put(&journal, &slot, "a", 1, i64::MAX);
    put(&journal, &slot, "late", 2, 6);
    put(&journal, &task, "b", 1, i64::MAX);
    let pending = found(&journal, "a");
    assert_eq!(pending.state, QuestionState::Pending);
    assert_eq!(pending.deadline_us, 7, "its agent waits no longer");
    let open_now = journal.reader().expect("reader").questions(false, 10);
    assert_eq!(open_now.expect("read").len(), 3);
    journal.close(LONG).expect("closed");

    let journal = open(dir.path());
    let left = found(&journal, "a");
    assert_eq!(left.state, QuestionState::Orphaned);
    assert_eq!(left.deadline_us, i64::MAX, "nobody waits");
    assert_eq!(found(&journal, "late").state, QuestionState::Expired);
    assert_eq!(found(&journal, "b").state, QuestionState::Expired);
    // One answer is kept; a second one is a fault, and so is one to what is over.
    let keep = || change("a", QuestionChange::Kept(answer(Decision::Allow)));
    assert_durable(&commit(&journal, vec![keep()]));
    for refused in [
        keep(),
        change("b", QuestionChange::Kept(answer(Decision::Allow))),
    ] {
        let committed = commit(&journal, vec![refused]);
        assert!(
            matches!(committed, Committed::Rejected(Violation::NoAsk(_))),
            "{committed:?}"
        );
    }
    let ended = |state| QuestionChange::Ended {
        state,
        answer: None,
    };
    assert_durable(&commit(
        &journal,
        vec![change("a", ended(QuestionState::Allowed))],
    ));
    assert_durable(&commit(
        &journal,
        vec![change("a", ended(QuestionState::Denied))],
    ));
    let over = found(&journal, "a");
    assert_eq!(
        over.state,
        QuestionState::Allowed,
        "what is over does not change"
    );
    assert_eq!(over.answer, Some(answer(Decision::Allow)));
    let reader = journal.reader().expect("reader");
    assert_eq!(reader.remembered(10).expect("read").len(), 1);
    let end = Write::SessionEnded {
        session: slot.clone(),
        at_us: 10,
        class: None,
    };
    put(&journal, &slot, "c", 5, i64::MAX);
    assert_durable(&commit(&journal, vec![end]));
    assert_eq!(found(&journal, "c").state, QuestionState::Cancelled);
    assert!(reader.remembered(10).expect("read").is_empty());
    assert_eq!(reader.questions(true, 10).expect("read").len(), 4);
}

#[test]
fn a_database_of_version_2_is_taken_over() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("a");
    assert_durable(&commit(&journal, vec![kept(&id)]));
    let writes = vec![event(&id, journal.epoch(), 1, asked("old", "{}"))];
    assert_durable(&commit(&journal, writes));
    journal.close(LONG).expect("closed");
    drop(journal);
    rusqlite::Connection::open(dir.path().join(FILE))
        .and_then(|conn| {
            without_forms(&conn);
            conn.execute_batch(
                "DROP TABLE questions; DROP TABLE spent; DROP TABLE chats; DROP TABLE turns; DROP TABLE plan_items; \
                DROP TABLE plan_reviews; DROP INDEX tasks_listed; ALTER TABLE runs DROP COLUMN limits; \
                 PRAGMA user_version = 2",
            )
        })
        .expect("version 2");
    let journal = open(dir.path());
    assert_eq!(journal.recovered().asks, 1);
    put(&journal, &id, "new", 3, i64::MAX);
    assert_eq!(found(&journal, "new").state, QuestionState::Pending);
}
