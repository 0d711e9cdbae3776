//! Locked, full and damaged disks.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// The write lock of another process, as SQLite sees it. Dropping it releases the lock.
pub(super) fn lock(dir: &Path) -> rusqlite::Connection {
    let other = rusqlite::Connection::open(dir.join(FILE_NAME)).expect("connection");
    other.busy_timeout(LONG).expect("timeout");
    other.execute_batch("BEGIN IMMEDIATE").expect("lock");
    other
}

#[test]
fn a_locked_database_stalls_the_journal_and_loses_nothing() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let lock = lock(dir.path());
    let (tx, rx) = callback_channel();
    for seq in 1..=10_000 {
        let tx = tx.clone();
        let write = text(&id, journal.epoch(), seq);
        let commit = Commit::new(vec![write]).with_callback(move |committed| {
            let _ = tx.send((seq, committed));
        });
        journal.submit(commit).expect("accepted");
    }
    let health = wait_health(&journal, |health| matches!(health, Health::Stalled { .. }));
    assert!(health.to_string().contains("locked"), "{health}");
    // Longer than the wait for a lock: nothing is reported while nothing is durable.
    std::thread::sleep(2 * limits::JOURNAL_BUSY_TIMEOUT);
    assert!(rx.try_recv().is_err(), "told before it was durable");
    assert_eq!(journal.backlog(), 10_000);
    drop(lock);
    for seq in 1..=10_000 {
        let (told, committed) = rx.recv_timeout(LONG).expect("an end");
        assert_eq!(told, seq);
        assert_durable(&committed);
    }
    wait_health(&journal, Health::is_ok);
    assert_dense(&journal.reader().expect("reader"), &id, 10_000);
}

#[test]
fn a_stalled_journal_refuses_what_goes_beyond_its_bound_and_keeps_the_rest() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let lock = lock(dir.path());
    let mut accepted = 0;
    let refusal = loop {
        let write = text(&id, journal.epoch(), accepted + 1);
        match journal.submit(Commit::new(vec![write])) {
            Ok(()) => accepted += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.reason, Refusal::Full);
    let bound = (limits::JOURNAL_QUEUE + limits::JOURNAL_BATCH) as u64;
    assert!(
        (limits::JOURNAL_QUEUE as u64..=bound).contains(&accepted),
        "{accepted}"
    );
    drop(lock);
    journal.close(LONG).expect("flushed");
    assert_dense(&Reader::open(dir.path()).expect("reader"), &id, accepted);
}

#[test]
fn a_close_that_is_out_of_time_says_what_it_left() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let lock = lock(dir.path());
    let writes = vec![text(&id, journal.epoch(), 1), text(&id, journal.epoch(), 2)];
    journal.submit(Commit::new(writes)).expect("accepted");
    assert_eq!(
        journal.close(Duration::from_millis(50)),
        Err(CloseTimeout { writes: 2 })
    );
    assert_eq!(
        journal
            .submit(Commit::new(vec![text(&id, journal.epoch(), 3)]))
            .map_err(|refused| refused.reason),
        Err(Refusal::Closed)
    );
    drop(lock);
}

#[test]
fn too_little_room_refuses_new_work_and_lets_running_work_end() {
    let dir = tempdir();
    let free = Arc::new(AtomicU64::new(u64::MAX));
    let probed = free.clone();
    let probe: SpaceProbe = Box::new(move |_| {
        Ok(DiskSpace {
            free: probed.load(Ordering::SeqCst),
        })
    });
    let journal = Journal::open_with_probe(dir.path(), probe).expect("journal");
    let (id, run) = (session("s"), RunId::new("r").expect("id"));
    let begin = |run: &RunId| {
        vec![
            Write::RunBegun {
                run: run.clone(),
                command: "run",
                at_us: 1,
            },
            session_begun(&id),
        ]
    };
    assert_durable(&commit(&journal, begin(&run)));
    free.store((1 << 30) - 1, Ordering::SeqCst);
    let health = wait_health(&journal, Health::is_read_only);
    assert!(health.to_string().contains("1023 MiB free"), "{health}");
    assert_eq!(
        journal
            .submit(Commit::new(vec![task(&run, "t", 0)]))
            .map_err(|refused| refused.reason),
        Err(Refusal::ReadOnly)
    );
    let other = RunId::new("r2").expect("id");
    assert_eq!(
        journal
            .submit(Commit::new(begin(&other)))
            .map_err(|refused| refused.reason),
        Err(Refusal::ReadOnly)
    );
    assert_durable(&commit(&journal, vec![text(&id, journal.epoch(), 1)]));
    assert!(
        journal.health().borrow().is_read_only(),
        "a commit is no room"
    );
    free.store(1 << 30, Ordering::SeqCst);
    wait_health(&journal, Health::is_ok);
    assert_durable(&commit(&journal, vec![task(&run, "t", 0)]));
}

#[test]
fn a_start_without_room_is_read_only_from_the_first_moment() {
    let dir = tempdir();
    let probe: SpaceProbe = Box::new(|_| Ok(DiskSpace { free: 0 }));
    let journal = Journal::open_with_probe(dir.path(), probe).expect("journal");
    assert!(journal.health().borrow().is_read_only());
}

#[test]
fn a_database_that_was_taken_away_ends_the_journal() {
    let dir = tempdir();
    let journal = open(dir.path());
    std::fs::rename(dir.path().join(FILE_NAME), dir.path().join("taken.db")).expect("rename");
    let health = wait_health(&journal, |health| matches!(health, Health::Corrupt { .. }));
    assert!(
        health.to_string().contains("removed or replaced"),
        "{health}"
    );
    let until = Instant::now() + LONG;
    let closed = |journal: &Journal| {
        let refused = journal
            .submit(Commit::new(vec![session_begun(&session("s"))]))
            .err();
        refused.is_some_and(|refused| refused.reason == Refusal::Closed)
    };
    while !closed(&journal) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn damage_found_while_writing_ends_the_journal_and_tells_nobody_of_success() {
    let dir = tempdir();
    let file = dir.path().join(FILE_NAME);
    let id = session("s");
    // More pages than SQLite keeps in memory.
    let journal = open(dir.path());
    let epoch = journal.epoch();
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let long = |seq| {
        let delta = UntrustedText::new("x".repeat(1000));
        event(&id, epoch, seq, Event::Text { delta })
    };
    assert_durable(&commit(&journal, (1..=20_000).map(long).collect()));
    journal.close(LONG).expect("flushed");
    let journal = open(dir.path());
    // All pages but the first, whose damage SQLite would find when it opens.
    let size = std::fs::metadata(&file).expect("size").len();
    let garbage = vec![0xa5; usize::try_from(size).expect("small") - 4096];
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .expect("file"),
        &garbage,
        4096,
    )
    .expect("written");
    let (tx, rx) = callback_channel::<CommitResult>();
    // Its page was read longest ago: it comes first in the order of the sessions.
    let first = session("a");
    let writes = vec![session_begun(&first), text(&first, journal.epoch(), 1)];
    let commit = Commit::new(writes).with_callback(move |committed| {
        let _ = tx.send(committed);
    });
    journal.submit(commit).expect("accepted");
    let health = wait_health(&journal, |health| !health.is_ok());
    assert!(matches!(health, Health::Corrupt { .. }), "{health:?}");
    assert!(
        rx.recv_timeout(LONG).is_err(),
        "the callback is dropped uncalled"
    );
}

/// The inside of the next test: the directory is on a file system of 2 MiB.
#[test]
#[ignore = "run by a_full_disk_… in a mount namespace of its own"]
fn inside_a_small_file_system() {
    let Some(dir) = std::env::var_os("MARSHAL_TEST_SMALL_DISK") else {
        return;
    };
    let dir = Path::new(&dir).join("state");
    let journal = open(&dir);
    let id = session("s");
    assert_durable(&commit(&journal, vec![session_begun(&id)]));
    let filler = dir.join("filler");
    // Fills everything but a few pages.
    let mut room = std::fs::File::create(&filler).expect("filler");
    while std::io::Write::write_all(&mut room, &[1; 4096]).is_ok() {}
    let size = room.metadata().expect("size").len();
    room.set_len(size - 64 * 1024).expect("shrunk");
    // An open file would keep its space after it is removed.
    drop(room);
    let (tx, rx) = callback_channel();
    for seq in 1..=2000 {
        let tx = tx.clone();
        let delta = UntrustedText::new("x".repeat(500));
        let write = event(&id, journal.epoch(), seq, Event::Text { delta });
        let commit = Commit::new(vec![write]).with_callback(move |committed| {
            let _ = tx.send((seq, committed));
        });
        journal.submit(commit).expect("accepted");
    }
    let health = wait_health(&journal, Health::is_read_only);
    println!("full: {health}");
    assert_eq!(
        journal
            .submit(Commit::new(vec![task(
                &RunId::new("r").expect("id"),
                "t",
                0
            )]))
            .map_err(|refused| refused.reason),
        Err(Refusal::ReadOnly)
    );
    std::thread::sleep(2 * limits::JOURNAL_BUSY_TIMEOUT);
    let mut before = rx.try_iter().count() as u64;
    let reader = journal.reader().expect("reader");
    // The durability may be reported a moment later.
    let until = Instant::now() + LONG;
    loop {
        let there = reader.last_seq(&id).expect("seq");
        assert!(before <= there, "told what is not there: {before} {there}");
        if before == there {
            break;
        }
        assert!(Instant::now() < until, "not told: {before} {there}");
        std::thread::sleep(Duration::from_millis(5));
        before += rx.try_iter().count() as u64;
    }
    assert!(before < 2000, "the disk was full");
    std::fs::remove_file(&filler).expect("removed");
    wait_health(&journal, Health::is_ok);
    for seq in before + 1..=2000 {
        let (told, committed) = rx.recv_timeout(LONG).expect("an end");
        assert_eq!(told, seq);
        assert_durable(&committed);
    }
    assert_dense(&reader, &id, 2000);
    journal.close(LONG).expect("flushed");
    println!("recovered");
}

#[test]
fn a_full_disk_makes_the_journal_read_only_until_there_is_room_again() {
    let dir = tempdir();
    let test = std::env::current_exe().expect("test binary");
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--map-root-user", "--"])
        .args(["sh", "-c"])
        .arg("mount -t tmpfs -o size=6m,mode=0700 none \"$1\" && exec \"$2\" --ignored --exact --nocapture tests::faults::inside_a_small_file_system")
        .arg("sh")
        .arg(dir.path())
        .arg(&test)
        .env("MARSHAL_TEST_SMALL_DISK", dir.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => panic!("this test needs unshare(1) of util-linux: {error}"),
    };
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if err.contains("unshare") || err.contains("mount") {
        eprintln!("NOT TESTED: a full disk needs a mount namespace of its own: {err}");
        return;
    }
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("recovered"), "{out}\n{err}");
}

#[test]
fn the_files_are_for_their_owner_only() {
    let dir = tempdir();
    let state = dir.path().join("state");
    let journal = open(&state);
    assert_durable(&commit(&journal, vec![session_begun(&session("s"))]));
    let mode = |path: &Path| std::fs::metadata(path).expect("file").permissions().mode() & 0o7777;
    assert_eq!(mode(&state), 0o700);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&state).expect("dir") {
        let path = entry.expect("entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        names.push(path.file_name().expect("name").to_owned());
    }
    assert!(names.len() >= 2, "database and log: {names:?}");
}
