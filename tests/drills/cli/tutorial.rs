//! The tutorial (`docs/tutorial.md`), followed as it is written.

use std::time::Duration;

use serde_json::Value;

use crate::cli::up;
use crate::drill::{Drill, Ran, eventually};

const LONG: Duration = Duration::from_secs(60);
const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");

/// The configuration of the tutorial, with the workspace of the drill.
fn tutorial() -> Drill {
    let begin = "```toml\n";
    let at = TUTORIAL.find(begin).expect("a configuration") + begin.len();
    let text = &TUTORIAL[at..at + TUTORIAL[at..].find("```").expect("its end")];
    let drill = Drill::new(text);
    let workspace = format!(
        "workspace.path = {:?}\n",
        drill.workspace().display().to_string()
    );
    let config = std::fs::read_to_string(drill.config()).expect("supervisor.toml");
    std::fs::write(drill.config(), config + &workspace).expect("supervisor.toml");
    drill
}

/// The arguments of a line of the tutorial that begins so.
fn arguments(begin: &str) -> Vec<String> {
    let mut lines = TUTORIAL.lines();
    let line = lines.find(|line| line.starts_with(begin)).expect(begin);
    let words = line.strip_prefix("marshal ").expect("a command");
    shlex(words)
}

/// Splits at blanks outside of quotation marks.
fn shlex(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut().expect("a word").push(c),
        }
    }
    words
}

fn shows(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{}", ran.all());
    for part in parts {
        assert!(ran.all().contains(part), "{part:?} in {}", ran.all());
    }
}

fn run(drill: &Drill, begin: &str) -> Ran {
    let words = arguments(begin);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    drill.run(&words)
}

#[test]
fn the_first_steps_do_what_the_page_says() {
    let drill = tutorial();
    let checked = drill.run(&["config", "check"]);
    shows(
        &checked,
        0,
        &[
            "2 slots: marshal script-agent",
            "mode copy",
            "policy   developer",
        ],
    );
    let ran = run(&drill, "marshal run \"write");
    shows(
        &ran,
        1,
        &[
            "+hello.txt",
            "1 of 2 done, 1 denied",
            "task-2: denied by git-push",
        ],
    );
    assert!(
        !drill.workspace().join("hello.txt").exists(),
        "the project is unchanged"
    );
    shows(
        &drill.run(&["policy", "explain", "git push"]),
        0,
        &["rule git-push"],
    );
    shows(
        &drill.run(&["report", "--since", "1h"]),
        0,
        &["1 denied, 1 done"],
    );
}

#[test]
fn an_approval_lets_the_waiting_task_go_on() {
    let drill = tutorial();
    let _daemon = up(&drill);
    let words = arguments("marshal run \"run touch");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut client = drill.command(&words);
    client
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let client = client.spawn().expect("a client");
    let mut id = String::new();
    eventually(LONG, "the approval is pending", || {
        let listed = drill.run(&["--json", "approvals", "ls"]);
        let first = listed
            .stdout
            .lines()
            .next()
            .map(serde_json::from_str::<Value>);
        let Some(Ok(first)) = first else { return false };
        first["approval"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut id);
        !id.is_empty()
    });
    shows(
        &drill.run(&["approvals", "show", &id]),
        0,
        &["part     touch made.txt", "rules"],
    );
    let mut approve = arguments("marshal approvals approve");
    let place = approve.iter().position(|word| word == "ID").expect("ID");
    approve[place].clone_from(&id);
    let approve: Vec<&str> = approve.iter().map(String::as_str).collect();
    shows(&drill.run(&approve), 0, &["approved"]);
    let ended = client.wait_with_output().expect("the client ends");
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(
        ended.status.success() && text.contains("1 of 1 done"),
        "{text}"
    );
    shows(&drill.run(&["audit", "tail"]), 0, &["allow by human"]);
}
