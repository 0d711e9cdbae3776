//! Chats: an accepted message is stored in order and exactly once, whatever happens to its sender.

mod crash;
mod stopped;

use super::*;
use marshal_model::{
    ChatMode, ChatProgress, ChatSettings, PROMPT_NOT_WRITTEN, RoleName, TaskOutcome, TurnId,
    TurnOutcome, TurnState, Usage, WorkspaceName,
};

fn chat_row(name: &str) -> ChatRow {
    ChatRow {
        session: session(name),
        run: RunId::new(&format!("run-{name}")).expect("id"),
        workspace: WorkspaceName::new("site").expect("name"),
        role: RoleName::new("writer").expect("name"),
        model: Some("small".to_owned()),
        goal: UntrustedText::new("a page about é"),
        files: vec!["notes/a b.md".to_owned()],
        pool: PoolName::new("demo").expect("name"),
        mode: ChatMode::Chat,
        parent: None,
        phase: None,
        settings: None,
        created_ms: 1,
    }
}

fn turn_id(chat: &str, seq: u64) -> TurnId {
    TurnId::new(&format!("turn-{chat}-{seq}")).expect("id")
}

fn turn_row(chat: &str, seq: u64) -> TurnRow {
    TurnRow {
        turn: turn_id(chat, seq),
        chat: session(chat),
        seq,
        content: UntrustedText::new(format!("message {seq}")),
        key: None,
        accepted_ms: 10 + i64::try_from(seq).expect("small"),
    }
}

fn create(name: &str) -> Write {
    Write::Chat(ChatWrite::Create(chat_row(name)))
}

fn accept(chat: &str, seq: u64) -> Write {
    Write::Chat(ChatWrite::Accept(turn_row(chat, seq)))
}

fn end(chat: &str, seq: u64, outcome: TurnOutcome) -> Write {
    Write::Chat(ChatWrite::End {
        turn: turn_id(chat, seq),
        outcome,
        at_ms: 90,
    })
}

fn close(chat: &str) -> Write {
    Write::Chat(ChatWrite::Close {
        chat: session(chat),
        at_ms: 99,
    })
}

/// The writes that queue a task with a turn.
fn message_writes(chat: &str, seq: u64, id: &str) -> Vec<Write> {
    let run = chat_row(chat).run;
    let place = u32::try_from(seq).expect("small");
    let begin = ChatWrite::Begin {
        turn: turn_id(chat, seq),
        task: TaskId::new(id).expect("id"),
        at_ms: 50,
    };
    vec![task(&run, id, place), Write::Chat(begin)]
}

fn changed(chat: &str, id: &str, change: TaskChange) -> Write {
    Write::TaskUpdated {
        run: chat_row(chat).run,
        task: TaskId::new(id).expect("id"),
        at_us: 70_999,
        change,
    }
}

fn task_ended(chat: &str, id: &str, outcome: TaskOutcome) -> Write {
    let change = TaskChange::Ended {
        outcome,
        detail: String::new(),
        result: String::new(),
    };
    changed(chat, id, change)
}

/// The writes of an accepted prompt, as the agent receives it.
fn prompted(journal: &Journal, chat: &str, id: &str, seq: u64, text: &str) -> Vec<Write> {
    let begun = TaskChange::Begun {
        attempt: 1,
        slot: slot(3),
        session: session(chat),
    };
    let accepted = Event::PromptAccepted {
        task: Some(TaskId::new(id).expect("id")),
        attempt: 1,
        text: UntrustedText::new(text),
    };
    vec![
        changed(chat, id, begun),
        event(&session(chat), journal.epoch(), seq, accepted),
    ]
}

fn turn_ended(journal: &Journal, chat: &str, seq: u64, outcome: TurnOutcome) -> Write {
    let ended = Event::TurnEnded {
        outcome,
        stop_reason: None,
        usage: Usage::default(),
        detail: None,
    };
    event(&session(chat), journal.epoch(), seq, ended)
}

fn refused(committed: CommitResult) -> ChatViolation {
    match committed {
        CommitResult::Rejected(Violation::Chat { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

fn states(reader: &Reader, chat: &str) -> Vec<(u64, TurnState, Option<TurnOutcome>)> {
    let turns = reader.turns(&session(chat), 0, u32::MAX).expect("turns");
    let of = |turn: StoredTurn| (turn.seq, turn.state, turn.outcome);
    turns.into_iter().map(of).collect()
}

const WAITING: TurnState = TurnState::Waiting;
const RUNNING: TurnState = TurnState::Running;
const ENDED: TurnState = TurnState::Ended;

#[test]
fn a_chat_is_a_conversation_with_its_run_and_session_and_reads_back_whole() {
    let dir = tempdir();
    let journal = open(dir.path());
    assert_durable(&commit(&journal, vec![create("c"), accept("c", 1)]));
    let mut second = turn_row("c", 2);
    second.key = Some(UntrustedText::new("k é"));
    let second = Write::Chat(ChatWrite::Accept(second));
    assert_durable(&commit(&journal, vec![second]));
    let reader = journal.reader().expect("reader");
    let row = chat_row("c");
    let stored = StoredChat {
        session: row.session.clone(),
        run: row.run.clone(),
        workspace: row.workspace,
        role: row.role,
        model: row.model,
        goal: row.goal,
        files: row.files,
        pool: row.pool.clone(),
        mode: row.mode,
        parent: None,
        phase: None,
        settings: ChatSettings::default(),
        progress: ChatProgress::default(),
        forwarded: 0,
        created_ms: 1,
        ended_ms: None,
        turns: 2,
        waiting: 2,
        running: None,
        used_ms: 12,
        is_closing: false,
    };
    assert_eq!(
        reader.chat(&row.session).expect("read"),
        Some(stored.clone())
    );
    assert_eq!(reader.chat(&session("d")).expect("read"), None);
    let conversation = reader.conversation(&row.session).expect("read");
    assert_eq!(conversation.map(|of| of.run), Some(row.run));
    let list = reader.conversations(&row.pool, 0, 9).expect("read");
    assert_eq!(list, [], "no client's");
    assert_eq!(
        reader.conversations_unused_since(i64::MAX).expect("read"),
        []
    );
    let kept = reader.resumable_sessions().expect("read");
    assert!(kept[0].is_conversation && !kept[0].run_ended, "{kept:?}");
    let by_key = reader.turn_by_key(&row.session, "k é").expect("read");
    assert_eq!(by_key.as_ref().map(|turn| turn.seq), Some(2));
    assert_eq!(reader.turn(&turn_id("c", 2)).expect("read"), by_key);
    assert_eq!(reader.turn_by_key(&row.session, "k").expect("read"), None);
    let later = reader.turns(&row.session, 1, 9).expect("read");
    assert_eq!(later, Vec::from_iter(by_key));
    assert_eq!(reader.turns(&row.session, 0, 1).expect("read").len(), 1);
    assert_eq!(reader.waiting_turns(&row.session).expect("read").len(), 2);
    let waiting = reader.chats_with_waiting_turns(None, 9).expect("read");
    assert_eq!(waiting, std::slice::from_ref(&row.session));
    assert_eq!(
        reader
            .chats_with_waiting_turns(Some(&row.session), 9)
            .expect("read"),
        []
    );
}

#[test]
fn chats_are_listed_by_workspace_in_pages_newest_first() {
    let dir = tempdir();
    let journal = open(dir.path());
    for name in ["c1", "c2", "c3"] {
        let mut row = chat_row(name);
        if name == "c2" {
            row.workspace = WorkspaceName::new("other").expect("name");
        }
        assert_durable(&commit(&journal, vec![Write::Chat(ChatWrite::Create(row))]));
    }
    let reader = journal.reader().expect("reader");
    let names = |workspace, after: Option<&str>, limit| -> Vec<String> {
        let after = after.map(session);
        let found = reader
            .chats(workspace, after.as_ref(), limit)
            .expect("read")
            .into_iter();
        found.map(|chat| chat.session.to_string()).collect()
    };
    assert_eq!(names(None, None, 2), ["c3", "c2"]);
    assert_eq!(names(None, Some("c2"), 2), ["c1"]);
    assert_eq!(names(Some("site"), None, 9), ["c3", "c1"]);
    assert_eq!(names(Some("site"), Some("c3"), 9), ["c1"]);
    assert_eq!(names(Some("none"), None, 9), Vec::<String>::new());
}

#[test]
fn messages_are_accepted_in_order_once_and_not_without_end() {
    let dir = tempdir();
    let journal = open(dir.path());
    assert_durable(&commit(&journal, vec![create("c")]));
    let refuse = |write| refused(commit(&journal, vec![write]));
    assert_eq!(
        refuse(accept("c", 2)),
        ChatViolation::Gap { last: 0, got: 2 },
        "the first one has number 1"
    );
    assert_eq!(refuse(accept("d", 1)), ChatViolation::Unknown);
    let keyed = |row: &TurnRow| Write::Chat(ChatWrite::Accept(row.clone()));
    let mut row = turn_row("c", 1);
    row.key = Some(UntrustedText::new("key"));
    assert_durable(&commit(&journal, vec![keyed(&row)]));
    (row.seq, row.turn) = (2, turn_id("c", 2));
    let taken = turn_id("c", 1).to_string();
    assert_eq!(refuse(keyed(&row)), ChatViolation::KeyTaken(taken));
    row.key = Some(UntrustedText::new("x".repeat(limits::TURN_KEY_BYTES + 1)));
    assert_eq!(
        refuse(keyed(&row)),
        ChatViolation::InvalidKey(limits::TURN_KEY_BYTES + 1)
    );
    row.key = Some(UntrustedText::new(""));
    assert_eq!(refuse(keyed(&row)), ChatViolation::InvalidKey(0));
    row.key = None;
    row.content = UntrustedText::new("x".repeat(limits::TURN_BYTES + 1));
    assert_eq!(
        refuse(keyed(&row)),
        ChatViolation::ContentTooLong(limits::TURN_BYTES + 1)
    );
    row.content = UntrustedText::new("x".repeat(limits::TURN_BYTES));
    assert_durable(&commit(&journal, vec![keyed(&row)]));
    let most = u64::from(limits::CHAT_QUEUE);
    for seq in 3..=most {
        assert_durable(&commit(&journal, vec![accept("c", seq)]));
    }
    assert_eq!(refuse(accept("c", most + 1)), ChatViolation::Full);
    assert_durable(&commit(&journal, message_writes("c", 1, "p-1")));
    assert_durable(&commit(&journal, vec![accept("c", most + 1)]));
    let reader = journal.reader().expect("reader");
    let stored = reader.chat(&session("c")).expect("read").expect("there");
    assert_eq!((stored.turns, stored.waiting), (most + 1, 16));
    assert_eq!(stored.running, Some(turn_id("c", 1)));
}

#[test]
fn a_chat_begins_within_its_bounds_or_not_at_all() {
    let dir = tempdir();
    let journal = open(dir.path());
    let refuse = |change: fn(&mut ChatRow)| {
        let mut row = chat_row("c");
        change(&mut row);
        refused(commit(&journal, vec![Write::Chat(ChatWrite::Create(row))]))
    };
    let long =
        |row: &mut ChatRow| row.goal = UntrustedText::new("g".repeat(limits::CHAT_GOAL_BYTES + 1));
    assert_eq!(
        refuse(long),
        ChatViolation::GoalTooLong(limits::CHAT_GOAL_BYTES + 1)
    );
    let many = |row: &mut ChatRow| row.files = vec!["a".to_owned(); limits::CHAT_FILES + 1];
    assert_eq!(
        refuse(many),
        ChatViolation::TooManyFiles(limits::CHAT_FILES + 1)
    );
    let deep = |row: &mut ChatRow| row.files = vec!["a".repeat(limits::CHAT_FILE_BYTES + 1)];
    assert_eq!(
        refuse(deep),
        ChatViolation::FilePathTooLong(limits::CHAT_FILE_BYTES + 1)
    );
    let reader = journal.reader().expect("reader");
    assert_eq!(reader.sessions().expect("read"), []);
    assert_eq!(reader.runs().expect("read"), []);
}

#[test]
fn a_turn_ends_with_its_task_as_its_session_said() {
    let dir = tempdir();
    let journal = open(dir.path());
    let mut begin = vec![create("c")];
    begin.extend((1..=4).map(|seq| accept("c", seq)));
    assert_durable(&commit(&journal, begin));
    assert_durable(&commit(&journal, message_writes("c", 1, "p-1")));
    let two = message_writes("c", 2, "p-2");
    let running = turn_id("c", 1).to_string();
    assert_eq!(
        refused(commit(&journal, two)),
        ChatViolation::Running(running)
    );
    assert_durable(&commit(&journal, prompted(&journal, "c", "p-1", 1, "m")));
    let reader = journal.reader().expect("reader");
    assert_eq!(states(&reader, "c")[0], (1, RUNNING, None));
    let limited = turn_ended(&journal, "c", 2, TurnOutcome::Limited);
    assert_durable(&commit(
        &journal,
        vec![limited, task_ended("c", "p-1", TaskOutcome::Refused)],
    ));
    let stored = reader.turn(&turn_id("c", 1)).expect("read").expect("there");
    assert_eq!(stored.outcome, Some(TurnOutcome::Limited));
    assert_eq!(
        (stored.begun_ms, stored.ended_ms, stored.state),
        (Some(50), Some(70), ENDED)
    );
    // No agent received this turn, so no session reported its end: the sender ends it.
    assert_durable(&commit(&journal, message_writes("c", 2, "p-2")));
    let failed = task_ended("c", "p-2", TaskOutcome::Failed);
    assert_durable(&commit(&journal, vec![failed]));
    assert_eq!(states(&reader, "c")[1], (2, RUNNING, None));
    assert_durable(&commit(&journal, vec![end("c", 2, TurnOutcome::Failed)]));
    // A turn that was never sent waits again, then is ended by hand; a second end changes nothing.
    assert_durable(&commit(&journal, message_writes("c", 3, "p-3")));
    let skipped = task_ended("c", "p-3", TaskOutcome::Skipped);
    assert_durable(&commit(&journal, vec![skipped]));
    assert_eq!(states(&reader, "c")[2], (3, RUNNING, None));
    let turn = turn_id("c", 3);
    let again = Write::Chat(ChatWrite::Requeue { turn: turn.clone() });
    assert_durable(&commit(&journal, vec![again]));
    let stored = reader.turn(&turn).expect("read").expect("there");
    assert_eq!(
        (stored.state, stored.task, stored.begun_ms),
        (WAITING, None, None)
    );
    assert_durable(&commit(&journal, vec![end("c", 3, TurnOutcome::Cancelled)]));
    assert_durable(&commit(&journal, vec![end("c", 3, TurnOutcome::Completed)]));
    assert_eq!(
        states(&reader, "c"),
        [
            (1, ENDED, Some(TurnOutcome::Limited)),
            (2, ENDED, Some(TurnOutcome::Failed)),
            (3, ENDED, Some(TurnOutcome::Cancelled)),
            (4, WAITING, None),
        ]
    );
    let over = refused(commit(&journal, message_writes("c", 3, "p-4")));
    assert_eq!(over, ChatViolation::NotWaiting(turn));
    let unknown = commit(&journal, vec![end("c", 9, TurnOutcome::Completed)]);
    let nobody = Violation::NoTurn(turn_id("c", 9));
    assert_eq!(unknown, CommitResult::Rejected(nobody));
}

#[test]
fn a_closed_chat_takes_nothing_and_ends_with_everything_in_it() {
    let dir = tempdir();
    let journal = open(dir.path());
    let begin = vec![create("c"), accept("c", 1), accept("c", 2)];
    assert_durable(&commit(&journal, begin));
    assert_durable(&commit(&journal, message_writes("c", 1, "p-1")));
    assert_durable(&commit(&journal, vec![close("c")]));
    let mut second = close("c");
    if let Write::Chat(ChatWrite::Close { at_ms, .. }) = &mut second {
        *at_ms = 500;
    }
    assert_durable(&commit(&journal, vec![second]));
    // A task that was in progress still ends.
    let late = task_ended("c", "p-1", TaskOutcome::Done);
    assert_durable(&commit(&journal, vec![late]));
    assert_eq!(
        refused(commit(&journal, vec![accept("c", 3)])),
        ChatViolation::Closed
    );
    assert_eq!(
        refused(commit(&journal, vec![close("d")])),
        ChatViolation::Unknown
    );
    let reader = journal.reader().expect("reader");
    let cancelled = Some(TurnOutcome::Cancelled);
    assert_eq!(
        states(&reader, "c"),
        [(1, ENDED, cancelled), (2, ENDED, cancelled)]
    );
    let stored = reader.chat(&session("c")).expect("read").expect("there");
    assert_eq!(stored.ended_ms, Some(99));
    let of = reader.session(&session("c")).expect("read").expect("there");
    assert_eq!(of.ended_at_us, Some(99_000));
    let run = reader.run(&chat_row("c").run).expect("read");
    assert_eq!(run.and_then(|run| run.ended_at_us), Some(99_000));
    assert_eq!(reader.resumable_sessions().expect("read"), []);
    assert_eq!(reader.chats_with_waiting_turns(None, 9).expect("read"), []);
}

#[test]
fn what_was_said_last_is_told_in_whole_messages_that_fit() {
    let dir = tempdir();
    let journal = open(dir.path());
    let begin = vec![create("c"), accept("c", 1), accept("c", 2)];
    assert_durable(&commit(&journal, begin));
    let id = session("c");
    let piece = |seq, text: &str| {
        let delta = UntrustedText::new(text);
        event(&id, journal.epoch(), seq, Event::Text { delta })
    };
    assert_durable(&commit(&journal, message_writes("c", 1, "p-1")));
    let mut told = prompted(&journal, "c", "p-1", 1, "a long preface and message 1");
    told.push(piece(2, "I lo"));
    told.push(piece(3, "ok."));
    let json = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON");
    let start = Event::ToolStart {
        id: UntrustedText::new("t"),
        name: UntrustedText::new("bash"),
        input: json("{}"),
    };
    told.push(event(&id, journal.epoch(), 4, start));
    let result = Event::ToolResult {
        id: UntrustedText::new("t"),
        output: UntrustedText::new("a secret of the tool"),
        is_error: false,
        took: None,
    };
    told.push(event(&id, journal.epoch(), 5, result));
    told.push(piece(6, "Found é"));
    told.push(turn_ended(&journal, "c", 7, TurnOutcome::Completed));
    told.push(task_ended("c", "p-1", TaskOutcome::Done));
    assert_durable(&commit(&journal, told));
    let reader = journal.reader().expect("reader");
    let said = |bytes| -> Vec<(Speaker, String)> {
        let texts = reader.last_messages(&id, bytes).expect("read").into_iter();
        texts.map(|said| (said.by, said.text.into_raw())).collect()
    };
    let user = |text: &str| (Speaker::User, text.to_owned());
    let agent = |text: &str| (Speaker::Agent, text.to_owned());
    let all = [user("message 1"), agent("I look."), agent("Found é")];
    assert_eq!(said(32 << 10), all);
    assert_eq!(said(9 + 7 + 8), all, "exactly");
    assert_eq!(said(9 + 7 + 8 - 1), all[1..]);
    assert_eq!(said(7 + 8 - 1), all[2..], "no half of a message");
    assert_eq!(said(5), [agent("nd é")], "the end of one that is too long");
    assert_eq!(said(1), [], "no half of a letter");
    // A turn that was accepted and not sent has no text yet.
    assert_durable(&commit(&journal, message_writes("c", 2, "p-2")));
    assert_eq!(said(32 << 10), all);
    assert_durable(&commit(&journal, prompted(&journal, "c", "p-2", 8, "x")));
    assert_eq!(said(16 + 1), [agent("Found é"), user("message 2")]);
}

#[test]
fn a_start_loses_what_ran_and_keeps_what_waited_and_the_chat() {
    let dir = tempdir();
    let journal = open(dir.path());
    let mut begin = Vec::new();
    for name in ["ran", "unsent", "skipped"] {
        begin.extend([create(name), accept(name, 1), accept(name, 2)]);
        begin.extend(message_writes(name, 1, "p-1"));
    }
    begin.extend(prompted(&journal, "ran", "p-1", 1, "m"));
    begin.push(task_ended("skipped", "p-1", TaskOutcome::Skipped));
    assert_durable(&commit(&journal, begin));
    journal.close(LONG).expect("closed");
    drop(journal);

    let journal = open(dir.path());
    assert_eq!(journal.recovery_report().open_slot_sessions, 3);
    assert_eq!(journal.recovery_report().turns, 1);
    let reader = journal.reader().expect("reader");
    let lost = Some(TurnOutcome::Lost);
    assert_eq!(
        states(&reader, "ran"),
        [(1, ENDED, lost), (2, WAITING, None)]
    );
    let still = [(1, WAITING, None), (2, WAITING, None)];
    assert_eq!(states(&reader, "unsent"), still);
    assert_eq!(states(&reader, "skipped"), still);
    assert_dense(&reader, &session("ran"), 2);
    for name in ["ran", "unsent", "skipped"] {
        let kept = reader.conversation(&session(name)).expect("read");
        assert!(kept.is_some(), "{name} can be loaded");
        let chat = reader.chat(&session(name)).expect("read").expect("there");
        assert_eq!((chat.ended_ms, chat.running), (None, None));
        for task in reader.tasks(&chat.run).expect("tasks") {
            assert_eq!(task.state, "ended", "{name}");
        }
        // The chat continues.
        assert_durable(&commit(&journal, message_writes(name, 2, "p-2")));
        assert_durable(&commit(&journal, vec![accept(name, 3)]));
    }
}

#[test]
fn a_turn_whose_end_is_durable_ended_so_and_one_that_no_agent_had_waits_again() {
    let dir = tempdir();
    let journal = open(dir.path());
    let mut begin = Vec::new();
    for name in ["done", "unwritten"] {
        begin.extend([create(name), accept(name, 1)]);
        begin.extend(message_writes(name, 1, "p-1"));
        begin.extend(prompted(&journal, name, "p-1", 1, "m"));
    }
    // The supervisor is killed before the turns' tasks end.
    begin.push(turn_ended(&journal, "done", 2, TurnOutcome::Completed));
    let ended = Event::TurnEnded {
        outcome: TurnOutcome::Lost,
        stop_reason: None,
        usage: Usage::default(),
        detail: Some(PROMPT_NOT_WRITTEN.to_owned()),
    };
    begin.push(event(&session("unwritten"), journal.epoch(), 2, ended));
    assert_durable(&commit(&journal, begin));
    journal.close(LONG).expect("closed");
    drop(journal);

    let journal = open(dir.path());
    let reader = journal.reader().expect("reader");
    let completed = Some(TurnOutcome::Completed);
    assert_eq!(states(&reader, "done"), [(1, ENDED, completed)]);
    assert_eq!(states(&reader, "unwritten"), [(1, WAITING, None)]);
}

#[test]
fn retention_takes_a_closed_chat_with_all_its_rows_and_no_open_one() {
    let dir = tempdir();
    let journal = open(dir.path());
    for name in ["closed", "open"] {
        let mut writes = vec![create(name)];
        for seq in 1..=100 {
            let id = format!("p-{seq}");
            writes.push(accept(name, seq));
            writes.extend(message_writes(name, seq, &id));
            writes.push(task_ended(name, &id, TaskOutcome::Done));
            writes.push(end(name, seq, TurnOutcome::Completed));
        }
        assert_durable(&commit(&journal, writes));
    }
    assert_durable(&commit(&journal, vec![close("closed")]));
    journal.close(LONG).expect("closed");
    drop(journal);
    let hour = Some(Duration::from_secs(3600));
    let rules = JournalOptions {
        retention: Some(RetentionLimits {
            age: hour,
            bytes: u64::MAX,
        }),
        ..JournalOptions::default()
    };
    let journal = Journal::open_with_options(dir.path(), rules, roomy()).expect("journal");
    let reader = journal.reader().expect("reader");
    let until = Instant::now() + LONG;
    while reader.runs().expect("runs").len() > 1 {
        assert!(Instant::now() < until, "the closed one stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    let closed = session("closed");
    assert_eq!(reader.chat(&closed).expect("read"), None);
    assert_eq!(reader.turns(&closed, 0, 999).expect("read"), []);
    let open = reader.chat(&session("open")).expect("read");
    assert_eq!(open.expect("there").turns, 100);
    assert_eq!(states(&reader, "open").len(), 100);
}

#[test]
fn a_session_that_ends_by_itself_closes_its_chat() {
    let dir = tempdir();
    let journal = open(dir.path());
    assert_durable(&commit(&journal, vec![create("c"), accept("c", 1)]));
    let ended = Write::SessionEnded {
        session: session("c"),
        at_us: 7_999,
        class: None,
    };
    assert_durable(&commit(&journal, vec![ended]));
    let reader = journal.reader().expect("reader");
    let chat = reader.chat(&session("c")).expect("read").expect("there");
    assert_eq!((chat.ended_ms, chat.waiting), (Some(7), 0));
}
