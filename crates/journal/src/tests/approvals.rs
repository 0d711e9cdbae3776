//! Approvals across restarts and ends of sessions.

use super::*;
use marshal_model::{ApprovalState, RememberScope};

/// A session of a slot, which outlives the supervisor.
fn begin_slot_session(session: &SessionId) -> Write {
    Write::SessionBegun(SessionRow {
        session: session.clone(),
        slot: slot(0),
        run: None,
        task: None,
        attempt: 1,
        at_us: 1,
    })
}

fn put(journal: &Journal, id: &SessionId, permission_request: &str, seq: u64, deadline_us: i64) {
    let row = ApprovalRow {
        request: PermissionRequestId::new(permission_request).expect("id"),
        session: id.clone(),
        pool: PoolName::new("demo").expect("name"),
        digest: format!("digest-{permission_request}"),
        rules: vec!["net".to_owned()],
        why: "why".to_owned(),
        paths: "[]".to_owned(),
        at_us: 5,
        deadline_us,
        agent_until_us: Some(7),
    };
    let writes = vec![
        event(
            id,
            journal.epoch(),
            seq,
            permission_requested(permission_request, "{}"),
        ),
        Write::ApprovalOpened(Box::new(row)),
    ];
    assert_durable(&commit(journal, writes));
}

fn change(permission_request: &str, change: ApprovalChange) -> Write {
    Write::ApprovalChanged {
        approval: PermissionRequestId::new(permission_request).expect("id"),
        at_us: 9,
        change,
    }
}

fn answer(decision: Decision) -> ApprovalAnswer {
    ApprovalAnswer {
        decision,
        approver: "uid 0".to_owned(),
        comment: Some(UntrustedText::new("so")),
        remember: RememberScope::Session,
    }
}

fn read_approval(journal: &Journal, permission_request: &str) -> StoredApproval {
    let reader = journal.reader().expect("reader");
    let found = reader.approval(&PermissionRequestId::new(permission_request).expect("id"));
    found.expect("read").expect("there")
}

#[test]
fn a_start_leaves_what_a_session_may_ask_again_and_ends_the_rest() {
    let dir = tempdir();
    let journal = open(dir.path());
    let (slot, task) = (session("slot"), session("task"));
    assert_durable(&commit(
        &journal,
        vec![begin_slot_session(&slot), session_begun(&task)],
    ));
    put(&journal, &slot, "a", 1, i64::MAX);
    put(&journal, &slot, "late", 2, 6);
    put(&journal, &task, "b", 1, i64::MAX);
    let pending = read_approval(&journal, "a");
    assert_eq!(pending.state, ApprovalState::Pending);
    assert_eq!(pending.deadline_us, 7, "its agent waits no longer");
    let open_now = journal.reader().expect("reader").approvals(false, 10);
    assert_eq!(open_now.expect("read").len(), 3);
    journal.close(LONG).expect("closed");

    let journal = open(dir.path());
    let left = read_approval(&journal, "a");
    assert_eq!(left.state, ApprovalState::Orphaned);
    assert_eq!(left.deadline_us, i64::MAX, "nobody waits");
    assert_eq!(
        read_approval(&journal, "late").state,
        ApprovalState::Expired
    );
    assert_eq!(read_approval(&journal, "b").state, ApprovalState::Expired);
    // One answer is stored. A second answer is a violation, and so is an answer to an ended
    // approval.
    let keep = || change("a", ApprovalChange::Answered(answer(Decision::Allow)));
    assert_durable(&commit(&journal, vec![keep()]));
    for refused in [
        keep(),
        change("b", ApprovalChange::Answered(answer(Decision::Allow))),
    ] {
        let committed = commit(&journal, vec![refused]);
        assert!(
            matches!(
                committed,
                CommitResult::Rejected(Violation::RequestNotOpen(_))
            ),
            "{committed:?}"
        );
    }
    let ended = |state| ApprovalChange::Ended {
        state,
        answer: None,
    };
    assert_durable(&commit(
        &journal,
        vec![change("a", ended(ApprovalState::Approved))],
    ));
    assert_durable(&commit(
        &journal,
        vec![change("a", ended(ApprovalState::Rejected))],
    ));
    let over = read_approval(&journal, "a");
    assert_eq!(
        over.state,
        ApprovalState::Approved,
        "what is over does not change"
    );
    assert_eq!(over.answer, Some(answer(Decision::Allow)));
    let reader = journal.reader().expect("reader");
    assert_eq!(reader.remembered_approvals(10).expect("read").len(), 1);
    let end = Write::SessionEnded {
        session: slot.clone(),
        at_us: 10,
        class: None,
    };
    put(&journal, &slot, "c", 5, i64::MAX);
    assert_durable(&commit(&journal, vec![end]));
    assert_eq!(read_approval(&journal, "c").state, ApprovalState::Cancelled);
    assert!(reader.remembered_approvals(10).expect("read").is_empty());
    assert_eq!(reader.approvals(true, 10).expect("read").len(), 4);
}
