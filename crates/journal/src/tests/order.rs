//! Order, grouping and isolation of commits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use marshal_model::{ExitClass, TaskOutcome};

#[test]
fn callers_are_told_in_the_order_of_submission_and_only_of_what_a_reader_sees() {
    let dir = tempdir();
    let journal = open(dir.path());
    let epoch = journal.epoch();
    let sessions: Vec<SessionId> = (0..4).map(|n| session(&format!("s-{n}"))).collect();
    let (tx, rx) = callback_channel();
    std::thread::scope(|scope| {
        for session in &sessions {
            let (journal, tx) = (journal.clone(), tx.clone());
            scope.spawn(move || {
                journal
                    .submit(Commit::new(vec![session_begun(session)]))
                    .expect("accepted");
                let reader = Mutex::new(journal.reader().expect("reader"));
                let reader = std::sync::Arc::new(reader);
                for seq in 1..=500 {
                    let (tx, session, reader) = (tx.clone(), session.clone(), reader.clone());
                    let write = text(&session, epoch, seq);
                    let commit = Commit::new(vec![write]).with_callback(move |committed| {
                        assert_durable(&committed);
                        let seen = reader.lock().expect("lock").last_seq(&session);
                        let _ = tx.send((session, seq, seen.expect("seq")));
                    });
                    journal.submit(commit).expect("accepted");
                }
            });
        }
    });
    drop(tx);
    let mut last = std::collections::HashMap::new();
    for _ in 0..2000 {
        let (session, seq, seen) = rx.recv_timeout(LONG).expect("an end");
        assert!(seen >= seq, "told of {seq} while a reader sees {seen}");
        let before = last.insert(session, seq).unwrap_or(0);
        assert_eq!(seq, before + 1);
    }
    let reader = journal.reader().expect("reader");
    for session in &sessions {
        assert_dense(&reader, session, 500);
    }
}

#[test]
fn commits_that_wait_share_one_transaction() {
    let dir = tempdir();
    let (recorder, exporter) = marshal_telemetry::Exporter::build(marshal_telemetry::BuildInfo {
        version: "0",
        revision: "0",
        rustc: "0",
    })
    .expect("recorder");
    let journal = metrics::with_local_recorder(&recorder, || open(dir.path()));
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let lock = faults::lock(dir.path());
    for seq in 1..=3000 {
        let write = text(&id, journal.epoch(), seq);
        journal.submit(Commit::new(vec![write])).expect("accepted");
    }
    drop(lock);
    journal.close(LONG).expect("flushed");
    let page = exporter.render(
        marshal_telemetry::PageFormat::Prometheus,
        &marshal_telemetry::Samples::default(),
    );
    let value = |name: &str| -> u64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {page}"))
    };
    assert_eq!(value("marshal_journal_appended_events_total "), 3000);
    assert_eq!(value("marshal_journal_backlog_events "), 0);
    // The begin of the session, the commits taken before the lock was seen, and all the rest.
    assert!(value("marshal_journal_batch_events_count ") <= 4, "{page}");
    assert!(value("marshal_journal_size_bytes ") > 0);
}

#[test]
fn a_gap_is_refused_loudly_ends_its_session_and_harms_no_other() {
    let dir = tempdir();
    let journal = open(dir.path());
    let epoch = journal.epoch();
    let (bad, good) = (session("bad"), session("good"));
    assert_durable(&commit(
        &journal,
        vec![session_begun(&bad), session_begun(&good)],
    ));
    // All of these form one batch.
    let lock = faults::lock(dir.path());
    let (tx, rx) = callback_channel();
    for (number, writes) in [
        vec![text(&bad, epoch, 1), text(&bad, epoch, 2)],
        vec![text(&good, epoch, 1)],
        vec![text(&bad, epoch, 3), text(&bad, epoch, 5)],
        vec![text(&good, epoch, 2)],
        vec![text(&bad, epoch, 4)],
        vec![text(&good, epoch, 3)],
    ]
    .into_iter()
    .enumerate()
    {
        let tx = tx.clone();
        let commit = Commit::new(writes).with_callback(move |committed| {
            let _ = tx.send((number, committed));
        });
        journal.submit(commit).expect("accepted");
    }
    drop(lock);
    let ends: Vec<(usize, CommitResult)> = (0..6)
        .map(|_| rx.recv_timeout(LONG).expect("an end"))
        .collect();
    assert_eq!(
        ends.iter().map(|end| end.0).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
    for number in [0, 1, 3, 5] {
        assert_durable(&ends[number].1);
    }
    assert_eq!(
        ends[2].1,
        CommitResult::Rejected(Violation::Gap {
            session: bad.clone(),
            last: 3,
            got: 5
        })
    );
    assert_eq!(
        ends[4].1,
        CommitResult::Rejected(Violation::Broken(bad.clone()))
    );
    let reader = journal.reader().expect("reader");
    assert_dense(&reader, &bad, 2);
    assert_dense(&reader, &good, 3);
    assert_eq!(*journal.health().borrow(), Health::Ok);
}

#[test]
fn what_names_a_row_that_is_not_there_is_refused() {
    let dir = tempdir();
    let journal = open(dir.path());
    let epoch = journal.epoch();
    let (known, unknown) = (session("known"), session("unknown"));
    let run = RunId::new("r").expect("id");
    assert_durable(&commit(&journal, vec![session_begun(&known)]));
    let check = |writes: Vec<Write>, expect: &str| match commit(&journal, writes) {
        CommitResult::Rejected(violation) => {
            assert!(violation.to_string().contains(expect), "{violation}");
        }
        other => panic!("{other:?}, not {expect}"),
    };
    check(vec![text(&unknown, epoch, 1)], "unknown was never begun");
    check(vec![text(&known, epoch + 1, 1)], "does not belong to epoch");
    check(
        vec![event(&known, epoch, 1, decided("a", Decision::Deny))],
        "permission request a is not open",
    );
    check(vec![session_begun(&known)], "UNIQUE constraint");
    check(
        vec![Write::TaskUpdated {
            run: run.clone(),
            task: TaskId::new("t").expect("id"),
            at_us: 1,
            change: TaskChange::Requeued { attempts: 1 },
        }],
        "task t of run r was never queued",
    );
    check(
        vec![Write::RunEnded {
            run,
            at_us: 1,
            code: 0,
        }],
        "run r was never begun",
    );
    check(
        vec![Write::SessionEnded {
            session: unknown,
            at_us: 1,
            class: None,
        }],
        "unknown was never begun",
    );
}

#[test]
fn a_commit_is_whole_or_not_there_at_all() {
    let dir = tempdir();
    let journal = open(dir.path());
    let epoch = journal.epoch();
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let run = RunId::new("r").expect("id");
    let half = vec![
        Write::RunBegun {
            run: run.clone(),
            command: "run",
            at_us: 1,
        },
        text(&id, epoch, 1),
        session_begun(&id),
    ];
    assert!(matches!(commit(&journal, half), CommitResult::Rejected(_)));
    let reader = journal.reader().expect("reader");
    assert_dense(&reader, &id, 0);
    assert_eq!(reader.runs().expect("runs"), []);
    assert_durable(&commit(&journal, vec![text(&id, epoch, 1)]));
}

#[test]
fn runs_tasks_and_sessions_read_back() {
    let dir = tempdir();
    let journal = open(dir.path());
    let run = RunId::new("r").expect("id");
    let id = session("s");
    let t1 = TaskId::new("t1").expect("id");
    let update = |change| Write::TaskUpdated {
        run: run.clone(),
        task: t1.clone(),
        at_us: 5,
        change,
    };
    assert_durable(&commit(
        &journal,
        vec![
            Write::RunBegun {
                run: run.clone(),
                command: "run",
                at_us: 1,
            },
            task(&run, "t2", 0),
            task(&run, "t1", 1),
            Write::SessionBegun(SessionRow {
                session: id.clone(),
                slot: slot(3),
                run: Some(run.clone()),
                task: Some(t1.clone()),
                attempt: 2,
                at_us: 4,
            }),
            update(TaskChange::Begun {
                attempt: 2,
                slot: slot(3),
                session: id.clone(),
            }),
            update(TaskChange::Ended {
                outcome: TaskOutcome::Done,
                detail: "fine".to_owned(),
                result: "{\"id\":\"t1\"}".to_owned(),
            }),
            Write::SessionEnded {
                session: id,
                at_us: 6,
                class: Some(ExitClass::Stopped),
            },
            Write::RunEnded {
                run: run.clone(),
                at_us: 7,
                code: 1,
            },
        ],
    ));
    let reader = journal.reader().expect("reader");
    let tasks = reader.tasks(&run).expect("tasks");
    assert_eq!(
        tasks.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(),
        ["t2", "t1"]
    );
    assert_eq!(tasks[0].state, "queued");
    assert_eq!(tasks[0].spec, r#"{"workspace":"/tmp/x","attempts":2}"#);
    let ended = &tasks[1];
    assert_eq!(
        (ended.state.as_str(), ended.outcome.as_deref()),
        ("ended", Some("done"))
    );
    assert_eq!(
        (ended.attempts, ended.slot, ended.begun_at_us),
        (2, Some(3), Some(5))
    );
    assert_eq!(ended.result.as_deref(), Some("{\"id\":\"t1\"}"));
    let sessions = reader.sessions().expect("sessions");
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].class.as_deref(), Some("stopped"));
    assert_eq!(sessions[0].task.as_deref(), Some("t1"));
    let runs = reader.runs().expect("runs");
    assert_eq!((runs[0].code, runs[0].ended_at_us), (Some(1), Some(7)));
}

#[test]
fn the_failures_of_a_slot_count_until_they_are_forgiven() {
    let dir = tempdir();
    let journal = open(dir.path());
    for at_us in [10, 20] {
        let (slot, class) = (slot(3), ExitClass::Exited);
        let detail = "exit code 1".to_owned();
        let failure = Write::SlotFailure {
            slot,
            class,
            at_us,
            detail,
        };
        assert_durable(&commit(&journal, vec![failure]));
    }
    let reader = journal.reader().expect("reader");
    let failures = |since| reader.slot_failures(&slot(3), since).expect("failures");
    assert_eq!(
        failures(0),
        [(10, ExitClass::Exited), (20, ExitClass::Exited)]
    );
    assert_eq!(failures(11), [(20, ExitClass::Exited)]);
    assert_durable(&commit(
        &journal,
        vec![Write::SlotFailuresCleared { slot: slot(3) }],
    ));
    assert_eq!(failures(0), []);
}

#[test]
fn a_hold_is_kept_until_its_rows_are_durable() {
    struct Credit(std::sync::Arc<AtomicU64>);
    impl Drop for Credit {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let freed = std::sync::Arc::new(AtomicU64::new(0));
    let lock = faults::lock(dir.path());
    let write = text(&id, journal.epoch(), 1);
    journal
        .submit(Commit::new(vec![write]).with_permit(Credit(freed.clone())))
        .expect("accepted");
    wait_health(&journal, |health| !health.is_ok());
    assert_eq!(freed.load(Ordering::SeqCst), 0);
    drop(lock);
    journal.close(LONG).expect("flushed");
    assert_eq!(freed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_caller_that_panics_does_not_end_the_journal() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    let bad =
        Commit::new(vec![session_begun(&id)]).with_callback(|_| panic!("a bug of the caller"));
    journal.submit(bad).expect("accepted");
    let committed = commit(&journal, vec![text(&id, journal.epoch(), 1)]);
    assert_durable(&committed);
}

#[test]
fn a_commit_says_how_many_bytes_of_its_session_it_is() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    let epoch = journal.epoch();
    let writes = vec![session_begun(&id), text(&id, epoch, 1), text(&id, epoch, 2)];
    let bytes = 2 * r#"{"delta":"piece 1"}"#.len() as u64;
    assert_eq!(commit(&journal, writes), CommitResult::Durable { bytes });
    let reader = journal.reader().expect("reader");
    assert_eq!(reader.session_bytes(&id).expect("bytes"), bytes);
}
