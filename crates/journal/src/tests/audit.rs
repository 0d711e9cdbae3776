//! The audit chain: what it links, and which changes it detects.

use super::*;

/// A session with `count` permission requests, each decided in the commit of its request.
fn asks(journal: &Journal, id: &SessionId, count: u64) {
    let epoch = journal.epoch();
    assert_durable(&commit(journal, vec![session_begun(id)]));
    for number in 0..count {
        let name = format!("{id}-{number}");
        let committed = commit(
            journal,
            vec![
                event(
                    id,
                    epoch,
                    2 * number + 1,
                    permission_requested(&name, r#"{"command":"ls"}"#),
                ),
                Write::RequestEvaluated {
                    request: PermissionRequestId::new(&name).expect("id"),
                    evaluation: PolicyEvaluation {
                        policy: "developer".to_owned(),
                        policy_sha256: "00".to_owned(),
                        facts: r#"{"argv":["ls"]}"#.to_owned(),
                        eval_us: 7,
                    },
                },
                event(id, epoch, 2 * number + 2, decided(&name, Decision::Allow)),
            ],
        );
        assert_durable(&committed);
    }
}

#[test]
fn every_verdict_is_a_link_of_the_chain_over_sessions_and_starts() {
    let dir = tempdir();
    for (start, name) in ["a", "b"].into_iter().enumerate() {
        let journal = open(dir.path());
        asks(&journal, &session(name), 3);
        let head = journal.audit_head();
        assert_eq!(head.link, 3 * (start as u64 + 1));
        let verified = journal.reader().expect("reader").verify_audit();
        assert_eq!(verified.expect("whole"), head);
        journal.close(LONG).expect("flushed");
    }
    let reader = Reader::open(dir.path()).expect("reader");
    let stored = reader.permission_requests(&session("b")).expect("asks");
    assert_eq!(stored.len(), 3);
    assert_eq!(stored[0].link, Some(4));
    assert_eq!(
        (stored[0].requested_seq, stored[0].decided_seq),
        (1, Some(2))
    );
    assert_eq!(stored[0].decision.as_deref(), Some("allow"));
    assert_eq!(stored[0].policy.as_deref(), Some("developer"));
    assert_eq!(stored[0].rules.as_deref(), Some(r#"["p1/1"]"#));
    assert_eq!(stored[0].input.as_deref(), Some(r#"{"command":"ls"}"#));
    assert_eq!(
        stored[0].input_sha256,
        super::super::audit::sha256_hex(br#"{"command":"ls"}"#)
    );
}

/// Changes to the rows, and the error that the check reports for each.
const CHANGES: &[(&str, &str)] = &[
    (
        "UPDATE permission_requests SET decision = 'deny' WHERE link = 2",
        "audit record 2",
    ),
    (
        "UPDATE permission_requests SET reason = reason || ' ' WHERE link = 1",
        "audit record 1",
    ),
    (
        "UPDATE permission_requests SET input = '{}' WHERE link = 3",
        "audit record 3",
    ),
    (
        "UPDATE permission_requests SET facts = NULL WHERE link = 3",
        "audit record 3",
    ),
    (
        "UPDATE permission_requests SET hash = prev_hash WHERE link = 1",
        "audit record 1",
    ),
    (
        "DELETE FROM permission_requests WHERE link = 2",
        "audit record 3",
    ),
    (
        "UPDATE permission_requests SET link = -1 WHERE link = 1",
        "audit record 0",
    ),
    (
        "UPDATE permission_requests SET input = NULL WHERE link = 2",
        "audit record 2",
    ),
    // As if the records had been removed because of their age.
    (
        "INSERT INTO audit_cut SELECT 1, link, hash, 1 FROM permission_requests WHERE link = 2; \
         DELETE FROM permission_requests WHERE link < 3",
        "audit record 3",
    ),
    (
        "INSERT INTO audit_cut SELECT 1, link, hash, 1 FROM permission_requests WHERE link = 3; \
         DELETE FROM permission_requests",
        "audit record 4",
    ),
    (
        "UPDATE permission_requests SET decided_at_us = decided_at_us + 1 WHERE link = 2",
        "audit record 2",
    ),
    // The record's owner and its approver.
    (
        "UPDATE permission_requests SET pool = 'other' WHERE link = 2",
        "audit record 2",
    ),
    (
        "UPDATE permission_requests SET slot = 1 WHERE link = 3",
        "audit record 3",
    ),
    (
        "UPDATE permission_requests SET run = NULL WHERE link = 2",
        "audit record 2",
    ),
    (
        "UPDATE permission_requests SET task = 'u' WHERE link = 2",
        "audit record 2",
    ),
    (
        "UPDATE permission_requests SET approver = 'uid 0' WHERE link = 2",
        "audit record 2",
    ),
    ("UPDATE sessions SET pool = 'other'", "of its session"),
    ("UPDATE sessions SET slot = 1", "of its session"),
    ("UPDATE sessions SET run = NULL", "of its session"),
    ("UPDATE sessions SET task = 'u'", "of its session"),
    // A record of an unknown format cannot be verified.
    (
        "UPDATE permission_requests SET format = 2 WHERE link = 2",
        "audit record 2 does not continue the chain: its format is 2, and this marshal knows only 1",
    ),
    (
        "UPDATE permission_requests SET format = NULL WHERE link = 2",
        "audit record 2 does not continue the chain: its format is not a number",
    ),
];

#[test]
fn every_later_change_of_a_record_breaks_the_chain() {
    for (change, expect) in CHANGES {
        let dir = tempdir();
        let journal = open(dir.path());
        asks(&journal, &session("s"), 3);
        journal.close(LONG).expect("flushed");
        rusqlite::Connection::open(dir.path().join(FILE_NAME))
            .and_then(|conn| conn.execute_batch(change))
            .expect("changed");
        let reader = Reader::open(dir.path()).expect("reader");
        let error = reader.verify_audit().expect_err(change).to_string();
        assert!(error.contains(expect), "{change}: {error}");
    }
}

#[test]
fn a_cut_tail_shows_only_beside_the_head_that_was_told() {
    let dir = tempdir();
    let journal = open(dir.path());
    asks(&journal, &session("s"), 3);
    let head = journal.audit_head();
    journal.close(LONG).expect("flushed");
    let change = |change: &str| {
        rusqlite::Connection::open(dir.path().join(FILE_NAME))
            .and_then(|conn| conn.execute_batch(change))
            .expect("changed");
    };
    change("DELETE FROM permission_requests WHERE link = 3");
    let reader = Reader::open(dir.path()).expect("reader");
    let error = reader.verify_audit().expect_err("its event is there");
    assert!(error.to_string().contains("has no audit record"), "{error}");
    // When that event is deleted as well, only the recorded head reveals the cut.
    change("DELETE FROM events WHERE seq > 4");
    let found = reader.verify_audit().expect("a shorter chain is whole");
    assert_eq!(found.link, 2);
    assert_ne!(found, head);
}

#[test]
fn a_second_verdict_is_refused() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    asks(&journal, &id, 1);
    let again = event(&id, journal.epoch(), 3, decided("s-0", Decision::Deny));
    assert_eq!(
        commit(&journal, vec![again]),
        CommitResult::Rejected(Violation::RequestNotOpen(
            PermissionRequestId::new("s-0").expect("id")
        ))
    );
}

/// A request that was denied unread.
fn unread(permission_request: &str) -> Event {
    let Event::PermissionDecided(verdict) = decided(permission_request, Decision::Deny) else {
        unreachable!("that is what it is");
    };
    Event::PermissionDecided(Verdict {
        decided_by: DecidedBy::Error,
        ..verdict
    })
}

#[test]
fn an_input_beyond_its_limit_is_kept_as_its_digest_only() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    let input = format!("\"{}\"", "x".repeat(limits::PERMISSION_INPUT_BYTES));
    let epoch = journal.epoch();
    assert_durable(&commit(
        &journal,
        vec![
            session_begun(&id),
            event(&id, epoch, 1, permission_requested("a", &input)),
            event(&id, epoch, 2, unread("a")),
        ],
    ));
    let reader = journal.reader().expect("reader");
    let stored = &reader.permission_requests(&id).expect("asks")[0];
    assert_eq!(stored.input, None);
    assert_eq!(
        stored.input_sha256,
        super::super::audit::sha256_hex(input.as_bytes())
    );
    assert_eq!(reader.verify_audit().expect("whole").link, 1);
}

/// What the hash covers, computed from the description in `schema.sql` alone.
#[test]
fn the_hash_is_what_the_schema_says() {
    let dir = tempdir();
    let journal = open(dir.path());
    asks(&journal, &session("s"), 1);
    let head = journal.audit_head();
    let conn = rusqlite::Connection::open(dir.path().join(FILE_NAME)).expect("connection");
    let json: String = conn
        .query_row(
            "SELECT json_array(link, prev_hash, id, session, requested_seq, decided_seq, request_key, \
             tool_id, tool, input_sha256, claimed, requested_at_us, policy, policy_sha256, facts, \
             eval_us, decision, decided_by, rules, reason, decided_at_us, format, pool, slot, run, \
             task, approver) FROM permission_requests",
            [],
            |row| row.get(0),
        )
        .expect("row");
    assert!(json.ends_with(r#",1,"demo",0,"r","t",null]"#), "{json}");
    assert_eq!(super::super::audit::sha256_hex(json.as_bytes()), head.hash);
}
