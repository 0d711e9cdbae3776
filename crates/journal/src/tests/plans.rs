//! Plans: only one member has an item at a time, and a chat's progress survives a restart.

use super::*;
use marshal_model::{
    ChatBounds, ChatMode, ChatPhase, ChatProgress, ChatSettings, ItemState, ReviewState, RoleName,
    TurnId, WorkspaceName,
};
use marshal_wire::plan::{Checklist, ItemId};

fn settings() -> ChatSettings {
    ChatSettings {
        plan_path: Some("plan.md".to_owned()),
        roles: vec![RoleName::new("coder").expect("name"); 2],
        bounds: ChatBounds {
            turns: Some(3),
            ..ChatBounds::default()
        },
        ..ChatSettings::default()
    }
}

fn chat(name: &str, parent: Option<&str>) -> Write {
    Write::Chat(ChatWrite::Create(ChatRow {
        session: session(name),
        run: RunId::new(&format!("run-{name}")).expect("id"),
        workspace: WorkspaceName::new("site").expect("name"),
        role: RoleName::new("coder").expect("name"),
        model: None,
        goal: UntrustedText::new("all of it"),
        files: Vec::new(),
        pool: PoolName::new("demo").expect("name"),
        mode: match parent {
            None => ChatMode::ParallelAgents,
            Some(_) => ChatMode::Chat,
        },
        parent: parent.map(session),
        phase: parent.is_none().then_some(ChatPhase::Working),
        settings: parent.is_none().then(settings),
        created_ms: 1,
    }))
}

fn items() -> Vec<ItemId> {
    let list = Checklist::parse("- [ ] a\n- [ ] b\n- [ ] a\n").expect("a list");
    list.items().iter().map(|item| item.id).collect()
}

fn open_item(at: usize) -> PlanItem {
    PlanItem {
        chat: session("c"),
        item: items()[at],
        ordinal: u32::try_from(at + 1).expect("small"),
        content: UntrustedText::new("text"),
        state: ItemState::Open,
        by_agent: false,
        claimed_by: None,
        turn: None,
        tries: 0,
        losses: 0,
        at_ms: 2,
        state_before_removal: None,
    }
}

fn put(item: PlanItem) -> Write {
    Write::Chat(ChatWrite::Plan(PlanWrite::Item(item)))
}

fn claim(at: usize, by: &str) -> Write {
    Write::Chat(ChatWrite::Plan(PlanWrite::Claim {
        chat: session("c"),
        item: items()[at],
        by: session(by),
        turn: TurnId::new(&format!("turn-{by}-{at}")).expect("id"),
        at_ms: 3,
    }))
}

fn rejected(committed: &CommitResult) -> String {
    match committed {
        CommitResult::Rejected(violation) => violation.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_item_is_taken_once_and_a_member_has_one() {
    let dir = tempdir();
    let journal = open(dir.path());
    let mut begin = vec![
        chat("c", None),
        chat("m-1", Some("c")),
        chat("m-2", Some("c")),
    ];
    begin.extend((0..3).map(|at| put(open_item(at))));
    assert_durable(&commit(&journal, begin));
    assert_durable(&commit(&journal, vec![claim(0, "m-1")]));
    let why = rejected(&commit(&journal, vec![claim(0, "m-2")]));
    assert!(why.contains("is not open"), "{why}");
    // A member that has an item gets no second one, and nothing of the commit is kept.
    let both = vec![put(open_item(2)), claim(1, "m-1")];
    rejected(&commit(&journal, both));
    assert_durable(&commit(&journal, vec![claim(1, "m-2")]));
    let reader = journal.reader().expect("reader");
    let found = reader.plan_items(&session("c")).expect("read");
    let stand: Vec<_> = found
        .iter()
        .map(|item| (item.state, item.claimed_by.clone()))
        .collect();
    let by = |name| (ItemState::Claimed, Some(session(name)));
    assert_eq!(stand, [by("m-1"), by("m-2"), (ItemState::Open, None)]);
    // The item is open again, and another member claims it.
    let again = PlanItem {
        tries: 1,
        ..open_item(0)
    };
    assert_durable(&commit(&journal, vec![put(again)]));
    let done = PlanItem {
        state: ItemState::Done,
        ..open_item(1)
    };
    assert_durable(&commit(&journal, vec![put(done), claim(0, "m-2")]));
    let found = reader.plan_items(&session("c")).expect("read");
    assert_eq!((found[0].tries, found[0].state), (1, ItemState::Claimed));
    journal.close(LONG).expect("flushed");
}

#[test]
fn the_work_of_a_chat_is_found_by_the_next_start_until_it_is_over() {
    let dir = tempdir();
    let journal = open(dir.path());
    let begin = vec![chat("c", None), chat("m-1", Some("c")), chat("d", None)];
    assert_durable(&commit(&journal, begin));
    let progress = ChatProgress {
        reminders: 1,
        approved_digest: Some("ab".to_owned()),
        ..ChatProgress::default()
    };
    let plan = |write| Write::Chat(ChatWrite::Plan(write));
    let review = PlanReview {
        chat: session("c"),
        state: ReviewState::Approved,
        sha256: "ab".to_owned(),
        by: "token ci".to_owned(),
        rules: vec!["plans".to_owned()],
        why: UntrustedText::new("good"),
        at_ms: 4,
    };
    assert_durable(&commit(
        &journal,
        vec![
            plan(PlanWrite::Progress {
                chat: session("c"),
                phase: ChatPhase::Approval,
                progress: progress.clone(),
            }),
            plan(PlanWrite::Forwarded {
                chat: session("m-1"),
                seq: 9,
            }),
            plan(PlanWrite::Review(review.clone())),
            plan(PlanWrite::Progress {
                chat: session("d"),
                phase: ChatPhase::Ended,
                progress: ChatProgress::default(),
            }),
        ],
    ));
    let why = rejected(&commit(
        &journal,
        vec![plan(PlanWrite::Forwarded {
            chat: session("none"),
            seq: 1,
        })],
    ));
    assert!(why.contains("no chat has this id"), "{why}");
    journal.close(LONG).expect("flushed");
    drop(journal);
    let journal = open(dir.path());
    let reader = journal.reader().expect("reader");
    assert_eq!(
        reader.autonomous_chats(None, 9).expect("read"),
        [session("c")]
    );
    let found = reader.chat(&session("c")).expect("read").expect("there");
    assert_eq!(found.phase, Some(ChatPhase::Approval));
    assert_eq!((found.settings, found.progress), (settings(), progress));
    assert_eq!(
        reader.members(&session("c")).expect("read"),
        [session("m-1")]
    );
    let member = reader.chat(&session("m-1")).expect("read").expect("there");
    assert_eq!((member.forwarded, member.parent), (9, Some(session("c"))));
    assert_eq!(
        reader.plan_reviews(&session("c"), 9).expect("read"),
        [review]
    );
    // A closed chat makes no more progress.
    let close = ChatWrite::Close {
        chat: session("c"),
        at_ms: 9,
    };
    assert_durable(&commit(&journal, vec![Write::Chat(close)]));
    assert_eq!(reader.autonomous_chats(None, 9).expect("read"), []);
    journal.close(LONG).expect("flushed");
}

#[test]
fn a_plan_that_is_worked_is_not_unused_nor_are_its_members() {
    let dir = tempdir();
    let journal = open(dir.path());
    let begin = vec![chat("c", None), chat("m-1", Some("c"))];
    assert_durable(&commit(&journal, begin));
    let reader = journal.reader().expect("reader");
    let unused = || reader.idle_chats(i64::MAX, None, 9).expect("read");
    assert_eq!(unused(), []);
    let over = Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
        chat: session("c"),
        phase: ChatPhase::Ended,
        progress: ChatProgress::default(),
    }));
    assert_durable(&commit(&journal, vec![over]));
    assert_eq!(unused(), [session("c"), session("m-1")]);
    journal.close(LONG).expect("flushed");
}

#[test]
fn what_waits_is_one_row_and_old_items_of_people_are_forgotten() {
    use ReviewState::{Rejected, Waiting};
    let dir = tempdir();
    let journal = open(dir.path());
    assert_durable(&commit(&journal, vec![chat("c", None)]));
    let plan = |write| Write::Chat(ChatWrite::Plan(write));
    let review = |state, sha256: &str| {
        plan(PlanWrite::Review(PlanReview {
            chat: session("c"),
            state,
            sha256: sha256.to_owned(),
            by: "policy".to_owned(),
            rules: Vec::new(),
            why: UntrustedText::new(""),
            at_ms: 4,
        }))
    };
    for (state, sha256) in [
        (Waiting, "a"),
        (Waiting, "b"),
        (Rejected, "b"),
        (Waiting, "c"),
    ] {
        assert_durable(&commit(&journal, vec![review(state, sha256)]));
    }
    assert_durable(&commit(&journal, vec![review(Waiting, "d")]));
    let reader = journal.reader().expect("reader");
    let found = |most| -> Vec<(ReviewState, String)> {
        let found = reader.plan_reviews(&session("c"), most).expect("read");
        found.into_iter().map(|of| (of.state, of.sha256)).collect()
    };
    let of = |state, sha256: &str| (state, sha256.to_owned());
    assert_eq!(
        found(9),
        [of(Waiting, "b"), of(Rejected, "b"), of(Waiting, "d")]
    );
    assert_eq!(found(1), [of(Waiting, "d")]);
    let gone = |at, by_agent, at_ms| {
        put(PlanItem {
            state: ItemState::Gone,
            state_before_removal: Some(ItemState::Blocked),
            by_agent,
            at_ms,
            ..open_item(at)
        })
    };
    let forget = plan(PlanWrite::PruneItems {
        chat: session("c"),
        keep: 1,
    });
    let writes = vec![
        gone(0, false, 1),
        gone(1, false, 2),
        gone(2, true, 0),
        forget,
    ];
    assert_durable(&commit(&journal, writes));
    let left = reader.plan_items(&session("c")).expect("read");
    let left: Vec<_> = left
        .iter()
        .map(|of| (of.item, of.state_before_removal))
        .collect();
    let is = Some(ItemState::Blocked);
    assert_eq!(left, [(items()[1], is), (items()[2], is)]);
    journal.close(LONG).expect("flushed");
}
