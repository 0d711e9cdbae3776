//! A killed writer: every acknowledged commit is in the journal.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::*;

const SESSIONS: u64 = 4;

/// The inside of the next test: writes until it is killed, and prints what was reported durable.
#[test]
#[ignore = "run by kill_minus_nine_… as a process of its own"]
fn writer_until_killed() {
    let Some(dir) = std::env::var_os("MARSHAL_TEST_JOURNAL") else {
        return;
    };
    let journal = open(Path::new(&dir));
    let epoch = journal.epoch();
    let sessions: Vec<SessionId> = (0..SESSIONS).map(|n| session(&format!("s-{n}"))).collect();
    let begin = sessions.iter().map(session_begun).collect();
    assert_durable(&commit(&journal, begin));
    for seq in 1.. {
        for id in &sessions {
            let name = id.clone();
            let commit = Commit::new(vec![text(id, epoch, seq)]).with_callback(move |committed| {
                assert_durable(&committed);
                // One unbuffered write a line, so that every printed line has really left the
                // process.
                let line = format!("durable {name} {seq}\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
            });
            while journal.backlog() > limits::JOURNAL_BATCH {
                std::thread::yield_now();
            }
            journal.submit(commit).expect("accepted");
        }
    }
}

#[test]
fn kill_minus_nine_loses_nothing_that_was_acknowledged() {
    let dir = tempdir();
    for round in 1..=5_u64 {
        let state = dir.path().join(round.to_string());
        let test = std::env::current_exe().expect("test binary");
        let mut child = Command::new(test)
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("tests::crash::writer_until_killed")
            .env("MARSHAL_TEST_JOURNAL", &state)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("child");
        let mut lines = BufReader::new(child.stderr.take().expect("pipe")).lines();
        let mut told = std::collections::HashMap::new();
        let mut note = |line: String| {
            let mut words = line.split(' ');
            if let (Some("durable"), Some(id), Some(seq)) = (
                words.next(),
                words.next(),
                words.next().and_then(|w| w.parse::<u64>().ok()),
            ) {
                told.insert(id.to_owned(), seq);
            }
        };
        // A different moment each round.
        for _ in 0..round * 700 {
            note(lines.next().expect("a line").expect("text"));
        }
        child.kill().expect("killed");
        // What it printed before it died still counts.
        lines.map_while(Result::ok).for_each(&mut note);
        child.wait().expect("reaped");

        let journal = open(&state);
        assert_eq!(journal.epoch(), 2);
        let reader = journal.reader().expect("reader");
        for number in 0..SESSIONS {
            let id = session(&format!("s-{number}"));
            let last = reader.last_seq(&id).expect("seq");
            let acknowledged = told.get(id.as_str()).copied().unwrap_or(0);
            assert!(acknowledged > 0, "round {round}: {id} was told nothing");
            assert!(
                last >= acknowledged,
                "round {round}: {id} lost {acknowledged}, has {last}"
            );
            assert_dense(&reader, &id, last);
        }
        assert_eq!(journal.recovery_report().sessions, SESSIONS);
    }
}
