//! Commits that their callers take back: only while nothing of them can be on the disk.

use super::*;

fn begin(run: &str) -> (Commit, Withdrawal, Receiver<CommitResult>) {
    let (sender, results) = sync_channel(1);
    let withdrawal = Withdrawal::default();
    let write = Write::RunBegun {
        run: RunId::new(run).expect("an id"),
        command: "run",
        at_us: 1,
    };
    let commit = Commit::new(vec![write])
        .with_withdrawal(withdrawal.clone())
        .with_callback(move |result| {
            let _ = sender.send(result);
        });
    (commit, withdrawal, results)
}

fn runs(journal: &Journal) -> Vec<String> {
    let connection = rusqlite::Connection::open(journal.file()).expect("the database");
    let mut statement = connection
        .prepare("SELECT run FROM runs ORDER BY run")
        .expect("runs");
    let rows = statement.query_map([], |row| row.get(0)).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

#[test]
fn a_locked_journal_gives_back_what_is_in_its_batch_and_what_is_behind_it() {
    let dir = tempdir();
    let journal = open(dir.path());
    let lock = rusqlite::Connection::open(journal.file()).expect("the database");
    lock.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let (first, first_withdrawal, first_result) = begin("first");
    journal.submit(first).expect("room");
    // The first one is in the writer's hands.
    let end = Instant::now() + LONG;
    while journal.health().borrow().is_ok() {
        assert!(Instant::now() < end, "no stall");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (kept, _, kept_result) = begin("kept");
    let (behind, behind_withdrawal, behind_result) = begin("behind");
    journal.submit(kept).expect("room");
    journal.submit(behind).expect("room");
    assert_eq!(journal.backlog(), 3);
    first_withdrawal.request();
    behind_withdrawal.request();
    for result in [first_result, behind_result] {
        assert_eq!(result.recv_timeout(LONG), Ok(CommitResult::Withdrawn));
    }
    assert_eq!(journal.backlog(), 1);
    lock.execute_batch("ROLLBACK").expect("unlocked");
    let durable = kept_result.recv_timeout(LONG).expect("a result");
    assert!(
        matches!(durable, CommitResult::Durable { .. }),
        "{durable:?}"
    );
    journal.close(LONG).expect("closed");
    assert_eq!(runs(&journal), ["kept"]);
}

#[test]
fn what_is_durable_is_not_given_back() {
    let dir = tempdir();
    let journal = open(dir.path());
    let (commit, withdrawal, result) = begin("first");
    journal.submit(commit).expect("room");
    let durable = result.recv_timeout(LONG).expect("a result");
    withdrawal.request();
    assert!(
        matches!(durable, CommitResult::Durable { .. }),
        "{durable:?}"
    );
    journal.close(LONG).expect("closed");
    assert_eq!(runs(&journal), ["first"]);
}
