//! Files of earlier versions with everything in them: nothing is lost, and the chain is proved from
//! its old records into its new ones.

use rusqlite::Connection;
use rusqlite::types::Value;

use super::*;
use marshal_model::{ChatProgress, ChatSettings};

/// Version 3, as it was, and rows as its supervisor left them.
const SCHEMA_3: &str = include_str!("../golden/schema_v3.sql");
const ROWS_3: &str = include_str!("../golden/rows_v3.sql");
/// What version 4 added to it.
const ADDED_BY_4: &str = "
    CREATE TABLE spent (
        pool           TEXT NOT NULL,
        period         TEXT NOT NULL,
        name           TEXT NOT NULL,
        tokens         INTEGER NOT NULL,
        cost           INTEGER NOT NULL,
        counted_tokens INTEGER NOT NULL,
        counted_cost   INTEGER NOT NULL,
        at_us          INTEGER NOT NULL,
        PRIMARY KEY (pool, period, name)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX spent_by_name ON spent (period, name);
    ALTER TABLE runs ADD COLUMN limits TEXT;
    INSERT INTO spent VALUES ('other', 'session', 'kept', 7, 8, 5, 6, 9);
    UPDATE runs SET limits = '{\"max_cost\":1}' WHERE run = 'daemon';
    PRAGMA user_version = 4;";

/// What version 5 added to that.
const ADDED_BY_5: &str = include_str!("../golden/added_v5.sql");

/// What version 6 added to that.
const ADDED_BY_6: &str = include_str!("../golden/added_v6.sql");

/// What version 7 added to that.
const ADDED_BY_7: &str = include_str!("../golden/added_v7.sql");

/// The tables of version 3 with their columns and rows.
type Tables = Vec<(String, Vec<String>, Vec<Vec<Value>>)>;

fn file_of(version: i64) -> tempfile::TempDir {
    let dir = tempdir();
    let file = dir.path().join(FILE_NAME);
    let conn = Connection::open(&file).expect("database");
    conn.pragma_update(None, "journal_mode", "wal")
        .expect("wal");
    conn.execute_batch(SCHEMA_3).expect("version 3");
    conn.execute_batch(ROWS_3).expect("its rows");
    if version >= 4 {
        conn.execute_batch(ADDED_BY_4).expect("version 4");
    }
    if version >= 5 {
        conn.execute_batch(ADDED_BY_5).expect("version 5");
    }
    if version >= 6 {
        conn.execute_batch(ADDED_BY_6).expect("version 6");
    }
    if version >= 7 {
        conn.execute_batch(ADDED_BY_7).expect("version 7");
    }
    drop(conn);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("mode");
    dir
}

fn rows(conn: &Connection, table: &str, columns: &[String]) -> Vec<Vec<Value>> {
    let sql = format!("SELECT {} FROM {table} ORDER BY 1", columns.join(", "));
    let mut statement = conn.prepare(&sql).expect("columns");
    let rows = statement.query_map([], |row| (0..columns.len()).map(|at| row.get(at)).collect());
    rows.expect("rows").collect::<Result<_, _>>().expect("rows")
}

fn tables(conn: &Connection) -> Tables {
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = conn.prepare(sql).expect("schema");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("rows")
    };
    let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let with_rows = |name: String| {
        let columns = texts(&format!("SELECT name FROM pragma_table_info('{name}')"));
        let rows = rows(conn, &name, &columns);
        assert!(!rows.is_empty(), "the test has no row of {name}");
        (name, columns, rows)
    };
    texts(names).into_iter().map(with_rows).collect()
}

fn connection(dir: &tempfile::TempDir) -> Connection {
    Connection::open(dir.path().join(FILE_NAME)).expect("database")
}

/// What a start changes in rows that were open when the supervisor was killed, and nothing else.
fn is_ended_by_a_start(table: &str, row: &[Value]) -> bool {
    let open = |id: &str| row[0] == Value::from(id.to_owned());
    matches!(table, "asks" | "questions") && open("k-2")
}

fn talks_are_as_before(reader: &Reader, version: i64) {
    // A conversation of before stays one, and is no chat.
    let talked = session("talked");
    let conversation = reader.conversation(&talked).expect("read");
    assert_eq!(conversation.is_some(), version >= 5);
    let chats = reader.chats(None, None, 9).expect("read");
    assert_eq!(chats.len(), if version >= 6 { 2 } else { 0 });
    if let Some(chat) = chats.iter().find(|chat| chat.ended_ms.is_none()) {
        assert_eq!(chat.goal.raw(), "a page about é");
        assert_eq!((chat.turns, chat.waiting, chat.forwarded), (2, 1, 0));
        let since = (&chat.parent, chat.phase, &chat.settings, &chat.progress);
        let none = (ChatSettings::default(), ChatProgress::default());
        assert_eq!(since, (&None, None, &none.0, &none.1));
        let turn = reader.turn_by_key(&chat.session, "k 1").expect("read");
        assert_eq!(turn.expect("there").content.raw(), "and another");
    }
    assert_eq!(reader.autonomous_chats(None, 9).expect("read"), []);
    assert_eq!(reader.closing_chats(None, 9).expect("read"), []);
    let items = reader.plan_items(&talked).expect("read");
    let stand: Vec<_> = items
        .iter()
        .map(|of| (of.tries, of.state_before_removal))
        .collect();
    let expected: &[_] = if version >= 7 { &[(1, None)] } else { &[] };
    assert_eq!(stand, expected);
}

/// Its tables are those of a file of today.
fn is_shaped_as_a_new_one(old: &tempfile::TempDir) {
    let new = tempdir();
    open(new.path()).close(LONG).expect("flushed");
    assert_eq!(shape(&connection(old)), shape(&connection(&new)));
}

/// Its old records cannot be changed unseen.
fn a_change_is_found(old: &tempfile::TempDir) {
    // A change of an old record is found in the new file as well.
    let change = "UPDATE asks SET reason = '' WHERE link = 6";
    assert_eq!(connection(old).execute(change, []), Ok(1));
    let error = Reader::open(old.path()).expect("reader").verify_audit();
    let error = error.expect_err("changed").to_string();
    assert!(error.contains("audit record 6"), "{error}");
}

#[test]
fn a_file_of_an_earlier_version_loses_nothing_and_its_chain_goes_on() {
    for version in [3, 4, 5, 6, 7] {
        let (more, talks) = match version {
            6 | 7 => (1, 2),
            5 => (1, 1),
            _ => (0, 0),
        };
        let old = file_of(version);
        let before = tables(&connection(&old));
        let expected = match version {
            3 => 11,
            6 => 14,
            7 => 16,
            _ => 12,
        };
        assert_eq!(before.len(), expected);
        // As it is, by whoever only reads.
        let reader = Reader::open(old.path()).expect("reader");
        let proof = reader.prove_audit(None).expect("whole as it is");
        assert_eq!((proof.begin.link, proof.head.link), (4, 7 + more));
        let records = reader
            .last_audit_records(&AuditQuery::default(), 9)
            .expect("read");
        assert_eq!(records[0].format, None);
        let is_formed = |record: &&AuditRecord| record.format == Some(2);
        let formed = records.iter().filter(is_formed).count();
        assert_eq!((records.len() - formed, formed as u64), (3, more));
        drop(reader);

        let journal = open(old.path());
        assert_eq!(journal.epoch(), 3);
        let found = RecoveryReport {
            open_slot_sessions: 1 + talks,
            turns: 1,
            permission_requests: 1,
            ..RecoveryReport::default()
        };
        assert_eq!(journal.recovery_report(), found);
        let conn = connection(&old);
        for (table, columns, was) in &before {
            let now = rows(&conn, table, columns);
            let changed: Vec<_> = was.iter().filter(|row| !now.contains(row)).collect();
            assert!(
                changed.iter().all(|row| is_ended_by_a_start(table, row)),
                "version {version}, {table}: {changed:?}"
            );
            let added = match table.as_str() {
                // The verdict on what was open, and the end of its turn.
                "events" => 2,
                "epochs" => 1,
                _ => 0,
            };
            assert_eq!(now.len(), was.len() + added, "version {version}, {table}");
        }
        // The old records as they were, and behind them one in the form of today.
        let reader = journal.reader().expect("reader");
        let proof = reader.prove_audit(Some(&proof.head.hash)).expect("whole");
        assert_eq!((proof.begin.link, proof.head.link), (4, 8 + more));
        assert_eq!(
            proof.found,
            Some(7 + more),
            "the head that was told is in it"
        );
        assert_eq!(proof.head, journal.audit_head());
        let records = reader
            .last_audit_records(&AuditQuery::default(), 9)
            .expect("read");
        let of = |at: usize| {
            (
                records[at].format,
                records[at].pool.as_deref(),
                records[at].slot,
            )
        };
        assert_eq!(of(0), (None, Some("demo"), Some(0)));
        assert_eq!(
            of(records.len() - 1),
            (Some(2), Some("other"), Some(1)),
            "version {version}"
        );
        let other = AuditQuery {
            pool: Some("other".to_owned()),
            ..AuditQuery::default()
        };
        assert_eq!(
            reader.last_audit_records(&other, 9).expect("read").len() as u64,
            2 + more
        );
        assert_eq!(
            reader.approver("e-2").expect("read").as_deref(),
            Some("uid 0")
        );
        talks_are_as_before(&reader, version);
        journal.close(LONG).expect("flushed");

        is_shaped_as_a_new_one(&old);
        a_change_is_found(&old);
    }
}

/// Tables, their columns and indexes, without the white space that statements were written with.
fn shape(conn: &Connection) -> Vec<String> {
    let mut statement = conn
        .prepare("SELECT name || ' ' || coalesce(sql, '') FROM sqlite_master ORDER BY name")
        .expect("schema");
    let rows = statement.query_map([], |row| row.get::<_, String>(0));
    let words = |row: rusqlite::Result<String>| {
        let text = row.expect("a row");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    rows.expect("rows").map(words).collect()
}

#[test]
fn a_start_that_fails_half_way_leaves_the_file_as_it_was() {
    let old = file_of(3);
    let before = tables(&connection(&old));
    // The last step of growing cannot be done: the column is there.
    connection(&old)
        .execute_batch("ALTER TABLE asks ADD COLUMN approver TEXT")
        .expect("in the way");
    assert!(Journal::open_with_probe(old.path(), roomy()).is_err());
    let conn = connection(&old);
    let version: i64 = conn
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .expect("version");
    assert_eq!(version, 3);
    for (table, columns, was) in before {
        assert_eq!(rows(&conn, &table, &columns), was, "{table}");
    }
    let spent = conn.prepare("SELECT 1 FROM spent");
    assert!(spent.is_err(), "nothing of version 4 is left");
}
