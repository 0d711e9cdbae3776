//! Opening: versions, modes, epochs.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn check(dir: &Path, expect: &str) {
    match Journal::open_with_probe(dir, roomy()) {
        Ok(_) => panic!("opened, not: {expect}"),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(expect), "{error}\nlacks\n{expect}");
        }
    }
}

#[test]
fn every_start_has_a_larger_epoch_and_goes_on_at_the_durable_end() {
    let dir = tempdir();
    let id = session("s");
    let mut last = 0;
    for start in 1..=3 {
        let journal = open(dir.path());
        assert_eq!(journal.epoch(), start);
        if start == 1 {
            assert_durable(&commit(&journal, vec![session_begun(&id)]));
        }
        last = journal
            .reader()
            .expect("reader")
            .last_seq(&id)
            .expect("seq");
        assert_durable(&commit(&journal, vec![text(&id, start, last + 1)]));
        journal.close(LONG).expect("flushed");
        last += 1;
    }
    let reader = Reader::open(dir.path()).expect("reader");
    assert_dense(&reader, &id, last);
    let events = reader.events(&id, 0, 10).expect("events");
    assert_eq!(events[0].id, EventId { epoch: 1, seq: 1 });
    assert_eq!(events.last().expect("some").id.epoch, 3);
}

#[test]
fn a_page_of_events_begins_after_the_cursor_and_decodes() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    let mut writes = vec![session_begun(&id)];
    writes.extend((1..=9).map(|seq| text(&id, 1, seq)));
    assert_durable(&commit(&journal, writes));
    let events = journal
        .reader()
        .expect("reader")
        .events(&id, 4, 3)
        .expect("events");
    let seqs: Vec<u64> = events.iter().map(|event| event.id.seq).collect();
    assert_eq!(seqs, [5, 6, 7]);
    let stamped = events[0].decode().expect("event");
    assert_eq!(events[0].clone().into_json(), codec::to_json(&stamped, &id));
}

#[test]
fn a_database_of_another_version_is_refused_and_left_alone() {
    for (version, message) in [
        (
            SCHEMA_VERSION + 1,
            "schema version 10, this marshal knows 9: use the newer marshal",
        ),
        (
            SCHEMA_VERSION - 1,
            "schema version 8, this marshal needs 9: move the state directory away",
        ),
    ] {
        let dir = tempdir();
        open(dir.path()).close(LONG).expect("flushed");
        let file = dir.path().join(FILE_NAME);
        rusqlite::Connection::open(&file)
            .and_then(|conn| conn.pragma_update(None, "user_version", version))
            .expect("another version");
        let before = std::fs::read(&file).expect("bytes");
        check(dir.path(), message);
        assert!(Reader::open(dir.path()).is_err());
        assert_eq!(std::fs::read(&file).expect("bytes"), before);
    }
}

#[test]
fn a_database_of_another_program_is_refused_and_left_alone() {
    let dir = tempdir();
    let file = dir.path().join(FILE_NAME);
    rusqlite::Connection::open(&file)
        .and_then(|conn| conn.execute_batch("CREATE TABLE mine (x)"))
        .expect("database");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("mode");
    let before = std::fs::read(&file).expect("bytes");
    check(dir.path(), "is a database of another program");
    assert_eq!(std::fs::read(&file).expect("bytes"), before);
}

#[test]
fn a_damaged_database_is_named() {
    let dir = tempdir();
    let file = dir.path().join(FILE_NAME);
    std::fs::write(&file, "this is no database, it is a letter to the reader").expect("written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("mode");
    check(dir.path(), "journal.db is damaged");

    std::fs::remove_file(&file).expect("removed");
    let journal = open(dir.path());
    let id = session("s");
    let mut writes = vec![session_begun(&id)];
    writes.extend((1..=5000).map(|seq| text(&id, 1, seq)));
    assert_durable(&commit(&journal, writes));
    journal.close(LONG).expect("flushed");
    let mut bytes = std::fs::read(&file).expect("bytes");
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xff);
    std::fs::write(&file, bytes).expect("written");
    check(dir.path(), "journal.db is damaged");
}

#[test]
fn a_directory_that_others_can_enter_is_refused_with_the_command_that_helps() {
    let dir = tempdir();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    check(dir.path(), "run `chmod 700 ");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).expect("mode");
    open(dir.path()).close(LONG).expect("flushed");
    let file = dir.path().join(FILE_NAME);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("mode");
    check(dir.path(), "run `chmod 600 ");
}

#[test]
fn a_link_is_not_followed_to_the_database() {
    let dir = tempdir();
    let (real, state) = (dir.path().join("real"), dir.path().join("state"));
    std::fs::write(&real, "").expect("written");
    std::fs::create_dir(&state).expect("dir");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("mode");
    std::os::unix::fs::symlink(&real, state.join(FILE_NAME)).expect("link");
    check(&state, "journal.db");
    assert_eq!(std::fs::read(&real).expect("bytes"), b"");
}

#[test]
fn a_missing_parent_is_named() {
    check(
        Path::new("/nonexistent/a/b"),
        "state directory /nonexistent/a/b",
    );
}

#[test]
fn a_commit_waits_for_the_disk() {
    let dir = tempdir();
    open(dir.path()).close(LONG).expect("flushed");
    let conn = schema::connect(&dir.path().join(FILE_NAME), LONG).expect("connection");
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, String>(0));
    assert_eq!(pragma("journal_mode").expect("mode"), "wal");
    let synchronous: i64 = conn
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .expect("level");
    assert_eq!(synchronous, 2, "FULL");
}
