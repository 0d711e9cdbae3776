//! Messages that are stopped before an agent receives them, what an agent has received, and unused
//! chats.

use super::*;

fn stop(chat: &str, seq: u64) -> Write {
    Write::Chat(ChatWrite::Stop {
        turn: turn_id(chat, seq),
    })
}

#[test]
fn a_message_that_was_stopped_is_never_sent_and_ends_with_what_says_so() {
    let dir = tempdir();
    let journal = open(dir.path());
    assert_durable(&commit(
        &journal,
        vec![create("c"), accept("c", 1), accept("c", 2)],
    ));
    assert_durable(&commit(&journal, vec![stop("c", 2)]));
    let waiting = |journal: &Journal| {
        let reader = journal.reader().expect("reader");
        reader.waiting_turns(&session("c")).expect("turns")
    };
    let stopped: Vec<bool> = waiting(&journal)
        .iter()
        .map(StoredTurn::is_stopped)
        .collect();
    assert_eq!(stopped, [false, true]);
    drop(journal);
    // The same after a kill.
    let journal = open(dir.path());
    assert!(waiting(&journal)[1].is_stopped());
    let fault = refused(commit(&journal, message_writes("c", 2, "t-2")));
    assert_eq!(fault, ChatViolation::NotWaiting(turn_id("c", 2)));
    let unsent = Event::TurnUnsent {
        turn: turn_id("c", 2),
        outcome: TurnOutcome::Cancelled,
        detail: "stopped".to_owned(),
    };
    // A violation in either write keeps both out.
    let told = |seq| event(&session("c"), journal.epoch(), seq, unsent.clone());
    let gap = commit(&journal, vec![end("c", 2, TurnOutcome::Cancelled), told(9)]);
    assert!(matches!(gap, CommitResult::Rejected(_)), "{gap:?}");
    assert!(
        waiting(&journal)[1].is_stopped(),
        "the row did not end alone"
    );
    // A session with a gap accepts nothing more before the next start.
    drop(journal);
    let journal = open(dir.path());
    let told = |seq| event(&session("c"), journal.epoch(), seq, unsent.clone());
    let both = vec![told(1), end("c", 2, TurnOutcome::Cancelled)];
    assert_durable(&commit(&journal, both));
    assert_eq!(waiting(&journal).len(), 1);
    // A running turn is not stopped by its row alone: its session is notified.
    assert_durable(&commit(&journal, message_writes("c", 1, "t-1")));
    assert_durable(&commit(&journal, vec![stop("c", 1)]));
    let reader = journal.reader().expect("reader");
    let turn = reader.turn(&turn_id("c", 1)).expect("read").expect("there");
    assert_eq!((turn.state, turn.outcome), (TurnState::Running, None));
}

#[test]
fn an_agent_has_answered_when_it_said_something_or_a_turn_of_it_was_whole() {
    let dir = tempdir();
    let journal = open(dir.path());
    let answered = |chat: &str| {
        let reader = journal.reader().expect("reader");
        reader.has_answered(&session(chat)).expect("read")
    };
    for chat in ["a", "b"] {
        let mut begun = vec![create(chat), accept(chat, 1)];
        begun.extend(message_writes(chat, 1, "t-1"));
        begun.extend(prompted(&journal, chat, "t-1", 1, "the first"));
        assert_durable(&commit(&journal, begun));
        assert!(!answered(chat), "it was prompted, no more");
    }
    let mut cancelled = vec![turn_ended(&journal, "a", 2, TurnOutcome::Cancelled)];
    cancelled.push(task_ended("a", "t-1", TaskOutcome::Cancelled));
    assert_durable(&commit(&journal, cancelled));
    assert!(!answered("a"), "what it had of the prompt nobody knows");
    let delta = UntrustedText::from("yes");
    let said = event(&session("a"), journal.epoch(), 3, Event::Text { delta });
    assert_durable(&commit(&journal, vec![said]));
    assert!(answered("a"));
    let mut done = vec![turn_ended(&journal, "b", 2, TurnOutcome::Completed)];
    done.push(task_ended("b", "t-1", TaskOutcome::Done));
    assert_durable(&commit(&journal, done));
    assert!(answered("b"), "without a word");
}

#[test]
fn chats_that_nobody_uses_are_found_and_no_others() {
    let dir = tempdir();
    let journal = open(dir.path());
    for chat in ["closed", "ended", "never", "runs", "waits"] {
        assert_durable(&commit(&journal, vec![create(chat)]));
    }
    for chat in ["closed", "ended", "runs", "waits"] {
        assert_durable(&commit(&journal, vec![accept(chat, 1)]));
    }
    for chat in ["closed", "ended"] {
        assert_durable(&commit(
            &journal,
            vec![end(chat, 1, TurnOutcome::Completed)],
        ));
    }
    assert_durable(&commit(&journal, vec![close("closed")]));
    assert_durable(&commit(&journal, message_writes("runs", 1, "t-1")));
    let reader = journal.reader().expect("reader");
    let unused = |before_ms, after: Option<&str>| -> Vec<String> {
        let after = after.map(session);
        let found = reader
            .idle_chats(before_ms, after.as_ref(), 50)
            .expect("read")
            .into_iter();
        found.map(|chat| chat.as_str().to_owned()).collect()
    };
    assert_eq!(unused(1_000, None), ["ended", "never"]);
    assert_eq!(unused(1_000, Some("ended")), ["never"]);
    // The end of the last message counts, which was at 90; the other chat was created at 1.
    assert_eq!(unused(90, None), ["never"]);
    assert_eq!(unused(1, None), [""; 0]);
}

#[test]
fn the_text_of_a_turn_is_read_from_its_end_and_no_further_than_there_is_room() {
    let dir = tempdir();
    let journal = open(dir.path());
    let mut writes = vec![create("c"), accept("c", 1)];
    writes.extend(message_writes("c", 1, "t-1"));
    writes.extend(prompted(&journal, "c", "t-1", 1, "the first"));
    let id = session("c");
    for (seq, text) in [(2, "abc"), (3, "d\u{fc}f"), (4, "ghi")] {
        let delta = UntrustedText::from(text);
        writes.push(event(&id, journal.epoch(), seq, Event::Text { delta }));
    }
    writes.push(turn_ended(&journal, "c", 5, TurnOutcome::Completed));
    assert_durable(&commit(&journal, writes));
    // Events before the requested ones need not even be readable.
    let whole = rusqlite::Connection::open(dir.path().join("journal.db")).expect("database");
    let damaged = whole.execute("UPDATE events SET body = 'x' WHERE seq = 2", []);
    assert_eq!(damaged.expect("changed"), 1);
    let reader = journal.reader().expect("reader");
    let task = Some(TaskId::new("t-1").expect("id"));
    for (room, text) in [
        (0, ""),
        (3, "ghi"),
        (5, "fghi"),
        (6, "\u{fc}fghi"),
        (7, "d\u{fc}fghi"),
    ] {
        let found = reader.turn_text_before(&id, 5, room).expect("read");
        assert_eq!((found.0.raw(), &found.1), (text, &task), "{room}");
    }
    // After the turn's end it has no text.
    let none = reader.turn_text_before(&id, 6, 100).expect("read");
    assert_eq!((none.0.raw(), none.1), ("", None));
}
