//! A daemon that is killed while chats are in progress.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::*;

/// The inside of the next test: accepts and works on messages until it is killed, and prints what
/// was reported durable.
#[test]
#[ignore = "run by messages_outlive_… as a process of its own"]
fn chatter_until_killed() {
    let Some(dir) = std::env::var_os("MARSHAL_TEST_CHATS") else {
        return;
    };
    let journal = open(Path::new(&dir));
    assert_durable(&commit(&journal, vec![create("c")]));
    for seq in 1.. {
        let say = |what: &str| {
            // One unbuffered write a line, so that every printed line has really left the process.
            let _ = std::io::stderr().write_all(format!("{what} {seq}\n").as_bytes());
        };
        assert_durable(&commit(&journal, vec![accept("c", seq)]));
        say("accepted");
        let id = format!("p-{seq}");
        assert_durable(&commit(&journal, message_writes("c", seq, &id)));
        let prompt = prompted(&journal, "c", &id, 2 * seq - 1, "m");
        assert_durable(&commit(&journal, prompt));
        let over = vec![
            turn_ended(&journal, "c", 2 * seq, TurnOutcome::Completed),
            task_ended("c", &id, TaskOutcome::Done),
        ];
        assert_durable(&commit(&journal, over));
        say("ended");
    }
}

#[test]
fn messages_outlive_a_daemon_that_is_killed_and_none_is_sent_twice() {
    let dir = tempdir();
    for round in 1..=4_usize {
        let state = dir.path().join(round.to_string());
        let test = std::env::current_exe().expect("test binary");
        let mut child = Command::new(test)
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("tests::chats::crash::chatter_until_killed")
            .env("MARSHAL_TEST_CHATS", &state)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("child");
        let mut lines = BufReader::new(child.stderr.take().expect("pipe")).lines();
        let (mut accepted, mut ended) = (0, 0);
        let mut note = |line: String| {
            let of = |what: &str| line.strip_prefix(what).and_then(|n| n.parse::<u64>().ok());
            accepted = of("accepted ").unwrap_or(accepted);
            ended = of("ended ").unwrap_or(ended);
        };
        // A different moment each round.
        for _ in 0..round * 5 + 2 {
            note(lines.next().expect("a line").expect("text"));
        }
        child.kill().expect("killed");
        lines.map_while(Result::ok).for_each(&mut note);
        child.wait().expect("reaped");

        let journal = open(&state);
        let reader = journal.reader().expect("reader");
        let turns = states(&reader, "c");
        let last = turns.len() as u64;
        assert!(accepted > 0 && last >= accepted, "{last} of {accepted}");
        for (at, (seq, state, outcome)) in (1..).zip(turns) {
            assert_eq!(at, seq, "dense");
            let is_right = match (state, outcome) {
                (ENDED, Some(TurnOutcome::Completed)) => true,
                (ENDED, Some(TurnOutcome::Lost)) | (WAITING, None) => seq == last && seq > ended,
                _ => false,
            };
            assert!(is_right, "round {round}, {seq}: {state} {outcome:?}");
        }
        let chat = reader.chat(&session("c")).expect("read").expect("there");
        assert_eq!((chat.ended_ms, chat.running), (None, None));
    }
}
