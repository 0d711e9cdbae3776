//! Expired rows are removed, the file really shrinks, and the chain stays whole.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn rules(age: Option<Duration>, bytes: u64) -> JournalOptions {
    JournalOptions {
        retention: Some(RetentionLimits { age, bytes }),
        ..JournalOptions::default()
    }
}

fn open_under(dir: &Path, rules: JournalOptions) -> Journal {
    Journal::open_with_options(dir, rules, roomy()).expect("journal")
}

fn session_ended(session: &SessionId, at_us: i64) -> Write {
    Write::SessionEnded {
        session: session.clone(),
        at_us,
        class: None,
    }
}

fn of_run(session: &SessionId, run: &RunId, task: &str) -> Write {
    Write::SessionBegun(SessionRow {
        session: session.clone(),
        slot: slot(0),
        run: Some(run.clone()),
        task: Some(TaskId::new(task).expect("id")),
        attempt: 1,
        at_us: 1,
    })
}

fn run_begun(run: &RunId) -> Write {
    Write::RunBegun {
        run: run.clone(),
        command: "run",
        at_us: 1,
    }
}

fn task_ended(run: &RunId, id: &str) -> Write {
    Write::TaskUpdated {
        run: run.clone(),
        task: TaskId::new(id).expect("id"),
        at_us: 2,
        change: TaskChange::Ended {
            outcome: marshal_model::TaskOutcome::Done,
            detail: String::new(),
            result: String::new(),
        },
    }
}

/// A session with a permission request and `events` pieces of `bytes` each, ended at `at_us`.
fn worked(journal: &Journal, begin: Write, id: &SessionId, events: u64, bytes: usize, at_us: i64) {
    let request = format!("ask-{id}");
    let epoch = journal.epoch();
    let mut writes = vec![
        begin,
        event(
            id,
            epoch,
            1,
            permission_requested(&request, "{\"command\":\"ls\"}"),
        ),
        event(id, epoch, 2, decided(&request, Decision::Allow)),
    ];
    for seq in 3..events + 3 {
        let delta = UntrustedText::new("x".repeat(bytes));
        writes.push(event(id, epoch, seq, Event::Text { delta }));
    }
    writes.push(session_ended(id, at_us));
    assert_durable(&commit(journal, writes));
}

fn names(reader: &Reader) -> Vec<String> {
    let sessions = reader.sessions().expect("sessions");
    let mut names: Vec<String> = sessions.into_iter().map(|s| s.session).collect();
    names.sort();
    names
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !check() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn count(dir: &Path, sql: &str) -> i64 {
    let conn = rusqlite::Connection::open(dir.join(FILE_NAME)).expect("connection");
    conn.query_row(sql, [], |row| row.get(0)).expect("count")
}

#[test]
fn old_sessions_and_runs_go_and_nothing_unfinished_does() {
    let dir = tempdir();
    let journal = open(dir.path());
    let (old, new, open_one) = (session("old"), session("new"), session("open"));
    let (over, unfinished) = (RunId::new("r1").expect("id"), RunId::new("r2").expect("id"));
    let of_unfinished = session("of-unfinished");
    let now = super::super::now_us();
    assert_durable(&commit(
        &journal,
        vec![
            run_begun(&over),
            task(&over, "a", 0),
            run_begun(&unfinished),
            task(&unfinished, "b", 0),
            task(&unfinished, "c", 1),
        ],
    ));
    worked(&journal, of_run(&old, &over, "a"), &old, 500, 100, 10);
    worked(&journal, session_begun(&new), &new, 5, 100, now);
    let begin = of_run(&of_unfinished, &unfinished, "b");
    worked(&journal, begin, &of_unfinished, 5, 100, 20);
    assert_durable(&commit(
        &journal,
        vec![
            session_begun(&open_one),
            text(&open_one, journal.epoch(), 1),
            task_ended(&over, "a"),
            Write::RunEnded {
                run: over.clone(),
                at_us: 30,
                code: 0,
            },
            task_ended(&unfinished, "b"),
        ],
    ));
    journal.close(LONG).expect("closed");
    drop(journal);
    // The unfinished run belongs to this epoch's predecessor: recovery must not end it here.
    let hold = "UPDATE sessions SET epoch = 99 WHERE ended_at_us IS NULL; \
                UPDATE runs SET epoch = 99 WHERE run = 'r2'";
    rusqlite::Connection::open(dir.path().join(FILE_NAME))
        .and_then(|conn| conn.execute_batch(hold))
        .expect("held");
    let journal = open_under(dir.path(), rules(Some(HOUR), u64::MAX));
    let reader = journal.reader().expect("reader");
    eventually("the old session goes", || {
        names(&reader) == ["new", "of-unfinished", "open"]
    });
    eventually("with its rows", || {
        count(
            dir.path(),
            "SELECT count(*) FROM events WHERE session = 'old'",
        ) == 0
            && count(dir.path(), "SELECT count(*) FROM removals") == 0
    });
    eventually("and its run", || reader.runs().expect("runs").len() == 1);
    assert_eq!(reader.tasks(&over).expect("tasks"), []);
    assert_eq!(reader.tasks(&unfinished).expect("tasks").len(), 2);
    assert_dense(&reader, &new, 7);
    assert_dense(&reader, &of_unfinished, 7);
    assert_dense(&reader, &open_one, 1);
    // The writer continues.
    assert_durable(&commit(&journal, vec![session_begun(&session("next"))]));
}

#[test]
fn the_audit_chain_is_cut_behind_what_is_gone_and_verifies_from_there() {
    let dir = tempdir();
    let journal = open(dir.path());
    let now = super::super::now_us();
    // Links 1 to 4: old, old, new, old. The last one is behind a new one, so it must stay for now.
    for (name, at_us) in [("a", 10), ("b", 20), ("c", now), ("d", 30)] {
        let id = session(name);
        worked(&journal, session_begun(&id), &id, 1, 10, at_us);
    }
    let head = journal.audit_head();
    assert_eq!(head.link, 4);
    journal.close(LONG).expect("closed");
    drop(journal);
    let journal = open_under(dir.path(), rules(Some(HOUR), u64::MAX));
    let reader = journal.reader().expect("reader");
    let links =
        "SELECT group_concat(link) FROM (SELECT link FROM permission_requests ORDER BY link)";
    eventually("the chain is cut", || {
        let conn = rusqlite::Connection::open(dir.path().join(FILE_NAME)).expect("connection");
        conn.query_row(links, [], |row| row.get::<_, String>(0))
            .is_ok_and(|links| links == "3,4")
    });
    assert_eq!(names(&reader), ["c"]);
    assert_eq!(reader.verify_audit().expect("whole"), head);
    assert_eq!(
        count(
            dir.path(),
            "SELECT count(*) FROM permission_requests WHERE session = 'd' AND input IS NOT NULL"
        ),
        0
    );
    let id = session("e");
    worked(&journal, session_begun(&id), &id, 1, 10, now);
    assert_eq!(reader.verify_audit().expect("whole").link, 5);
    assert_eq!(journal.audit_head().link, 5);
    journal.close(LONG).expect("closed");
    // A cut that was moved does not match the following record.
    let conn = rusqlite::Connection::open(dir.path().join(FILE_NAME)).expect("connection");
    conn.execute_batch("UPDATE audit_cut SET hash = 'ff' || substr(hash, 3)")
        .expect("forged");
    assert!(reader.verify_audit().is_err());
}

#[test]
fn a_chain_of_which_everything_is_gone_goes_on_where_it_was() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("a");
    worked(&journal, session_begun(&id), &id, 1, 10, 10);
    let head = journal.audit_head();
    journal.close(LONG).expect("closed");
    drop(journal);
    let journal = open_under(dir.path(), rules(Some(HOUR), u64::MAX));
    eventually("all asks are gone", || {
        count(dir.path(), "SELECT count(*) FROM permission_requests") == 0
    });
    journal.close(LONG).expect("closed");
    drop(journal);
    let journal = open(dir.path());
    assert_eq!(journal.audit_head(), head);
    let id = session("b");
    worked(&journal, session_begun(&id), &id, 1, 10, 10);
    let reader = journal.reader().expect("reader");
    assert_eq!(reader.verify_audit().expect("whole").link, 2);
}

#[test]
fn beyond_its_size_the_oldest_go_the_file_shrinks_and_commits_go_between() {
    let dir = tempdir();
    let journal = open(dir.path());
    let now = super::super::now_us();
    for index in 0..24 {
        let id = session(&format!("s{index:02}"));
        worked(&journal, session_begun(&id), &id, 32, 64 << 10, now + index);
    }
    journal.close(LONG).expect("closed");
    drop(journal);
    let file = dir.path().join(FILE_NAME);
    let before = std::fs::metadata(&file).expect("file").len();
    assert!(before > 48 << 20, "{before}");
    let most = 20 << 20;
    let journal = open_under(dir.path(), rules(None, most));
    let id = session("live");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let mut seq = 0;
    eventually("the file has shrunk", || {
        seq += 1;
        assert_durable(&commit(&journal, vec![text(&id, journal.epoch(), seq)]));
        std::fs::metadata(&file).expect("file").len() < most
    });
    // Each commit was durable before the next: they ran between the steps of the removal.
    assert!(seq >= 4, "only {seq} commits went through");
    let reader = journal.reader().expect("reader");
    let left = names(&reader);
    assert!(left.contains(&"s23".to_owned()), "{left:?}");
    assert!(!left.contains(&"s00".to_owned()), "{left:?}");
    let kept: Vec<_> = left.iter().filter(|name| name.starts_with('s')).collect();
    assert!(kept.len() >= 5, "not more than needed: {left:?}");
    assert_dense(&reader, &session("s23"), 34);
    assert_dense(&reader, &id, seq);
}

#[test]
fn a_removal_that_was_cut_short_is_gone_on_with() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("half");
    worked(&journal, session_begun(&id), &id, 300, 10, 10);
    journal.close(LONG).expect("closed");
    drop(journal);
    let half = "INSERT INTO removals VALUES ('half'); DELETE FROM sessions; \
                DELETE FROM events WHERE seq < 100";
    rusqlite::Connection::open(dir.path().join(FILE_NAME))
        .and_then(|conn| conn.execute_batch(half))
        .expect("half done");
    let _journal = open_under(dir.path(), rules(None, u64::MAX));
    eventually("the rest is gone", || {
        count(dir.path(), "SELECT count(*) FROM events") == 0
            && count(dir.path(), "SELECT count(*) FROM removals") == 0
    });
}
