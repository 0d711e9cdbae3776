//! An agent that turns what its client does for it against the supervisor, the person who decides,
//! or the next task: real processes in real namespaces.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, eventually};
use crate::editor::Editor;

/// What the guard does not forbid is allowed.
const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

/// The same, but a person decides.
const ASKING: &str = r#"
schema  = 1
name    = "asking"
extends = ["builtin:guard"]
default = "ask"
"#;

fn drill(command: &str, more: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = [{command}]
dialect   = "acp"
policy    = "mine"
workspace = {{ path = "project", mode = "copy" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
client_fs = "write"
client_terminal = true
{more}
[policy.mine]
file = "mine.toml"
"#
    ));
    fs::write(drill.path("mine.toml"), OPEN).expect("mine.toml");
    for (name, text) in [
        ("agent.py", include_str!("../../support/wild_agent.py")),
        ("thief.py", include_str!("../../support/thief.py")),
    ] {
        fs::write(drill.workspace().join(name), text).expect(name);
    }
    drill
}

const WILD: &str = r#""python3", "agent.py""#;
const SCRIPTED: &str = r#""marshal", "script-agent", "--dialect", "acp""#;

/// What the agent said in a run of these tasks, and what its tools did.
fn run_tasks(drill: &Drill, tasks: &[&str]) -> (String, String) {
    let mut args = vec!["--json", "run", "--results", "results.jsonl"];
    args.extend(tasks);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let results = drill.results("results.jsonl");
    let answers = results
        .iter()
        .filter_map(|result| result["answer"].as_str());
    let mut reported: String = answers.collect();
    let lines = ran.stdout.lines();
    for event in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if event["kind"] == "tool_result" {
            reported.push_str(event["body"]["output"].as_str().unwrap_or_default());
        }
    }
    (reported, ran.all())
}

/// How many sockets of helpers an agent took, and how many of those took a descriptor from it.
fn theft(more: &str) -> (u32, u32) {
    let drill = drill(SCRIPTED, more);
    let mut script = "run (setsid python3 thief.py >/dev/null 2>&1 &) ; until test -e thieving; do sleep 0.1; done".to_owned();
    for _ in 0..40 {
        script.push_str("\nclient-read README.md\nterminal true");
    }
    script.push_str("\nrun touch stop; until test -s loot; do sleep 0.1; done; cat loot");
    let (reported, all) = run_tasks(&drill, &[&script]);
    let loot = reported.rsplit("taken ").next().unwrap_or_default().trim();
    let (taken, accepted) = loot
        .split_once(" accepted ")
        .unwrap_or_else(|| panic!("{reported}\n{all}"));
    let number = |text: &str| text.trim().parse::<u32>().expect("a number");
    // Nothing was disturbed.
    assert!(
        reported.contains("{\"terminalId\":\"terminal-40\"}"),
        "{reported}"
    );
    (number(taken), number(accepted))
}

#[test]
fn helpers_inside_are_out_of_an_agents_reach_by_landlock_alone() {
    // The filter of system calls knows no such theft; this is about what is behind it.
    let (taken, accepted) = theft("[sandbox.standard]\nseccomp = \"off\"");
    assert_eq!(taken, 0, "sockets were taken from helpers");
    assert_eq!(accepted, 0, "sockets that took a descriptor");
}

#[test]
fn files_that_wait_do_not_begin_after_their_turn() {
    // An agent that is late to hear its first answer is late to end its turn, and then more were begun.
    for _ in 0..8 {
        let drill = drill(WILD, "session = \"slot\"");
        let (reported, all) = run_tasks(&drill, &["flood", "count"]);
        let of = |word: &str| -> usize {
            let mut words = reported.split_whitespace().skip_while(|of| *of != word);
            let number = words.nth(1).unwrap_or_else(|| panic!("{reported}\n{all}"));
            number.parse().expect("a number")
        };
        assert_eq!(of("answered"), 60, "each is answered: {reported}");
        assert_eq!(of("made") + of("cancelled"), 60, "{reported}");
        // Those that were begun, and what was answered meanwhile.
        if (1..30).contains(&of("made")) {
            return;
        }
    }
    panic!("no file waited when its turn ended");
}

#[test]
fn who_waits_for_a_command_that_never_began_is_answered() {
    let drill = drill(WILD, "timeouts = { silence = \"30s\" }");
    let (reported, all) = run_tasks(&drill, &["ghost"]);
    assert!(reported.contains("unanswered 0"), "{reported}\n{all}");
}

#[test]
fn an_agent_that_takes_no_answer_in_is_silent() {
    let drill = drill(
        WILD,
        "attempts = 1\ntimeouts = { silence = \"2s\", cancel = \"500ms\" }",
    );
    fs::write(drill.workspace().join("long"), "\n".repeat(1 << 20)).expect("long");
    let began = std::time::Instant::now();
    let ran = drill.run(&["run", "--results", "results.jsonl", "deaf"]);
    let results = drill.results("results.jsonl");
    assert_eq!(results[0]["outcome"], "timed_out", "{}", ran.all());
    assert!(began.elapsed() < Duration::from_secs(100), "{}", ran.all());
}

#[test]
fn a_write_that_was_held_up_does_not_land_after_it_was_given_up() {
    let drill = drill(WILD, "");
    // The process may have written before it can be stopped.
    for _ in 0..5 {
        let (reported, all) = run_tasks(&drill, &["stopped"]);
        if reported.contains("missed") {
            continue;
        }
        assert!(reported.contains("late False left 0"), "{reported}\n{all}");
        // When it was given up, nobody knew.
        assert!(reported.contains("it may have been written"), "{reported}");
        assert!(all.contains("file_updated"), "{all}");
        return;
    }
    panic!("no write was met");
}

#[test]
fn a_person_is_shown_directory_variables_and_the_text_that_is_written() {
    let drill = drill(WILD, "");
    fs::write(drill.path("mine.toml"), ASKING.replace("asking", "open")).expect("mine.toml");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    assert_eq!(editor.prompt(&session, "person"), "end_turn");
    assert!(editor.take_agent_text().contains("run 0 write 0"));
    let shown: Vec<String> = editor
        .asked
        .iter()
        .map(|requested| {
            let text = &requested["toolCall"]["content"][0]["content"]["text"];
            text.as_str().expect("a text").to_owned()
        })
        .collect();
    assert_eq!(shown.len(), 2, "{shown:?}");
    for part in [
        "- touch ran (",
        "- working-directory: /workspace/src (",
        "- variable: FOO=1 (ask: shell.env_allow)",
        "- variable: EVIL=/workspace/x.cnf (ask: shell.env_allow)",
    ] {
        assert!(shown[0].contains(part), "no {part} in {}", shown[0]);
    }
    for part in ["- /workspace/made (", "- text: 12 bytes, SHA-256 "] {
        assert!(shown[1].contains(part), "no {part} in {}", shown[1]);
    }
    let made = drill.state().join("copies").join(&session).join("src/ran");
    eventually(Duration::from_secs(60), "it ran there", || made.exists());
    assert_eq!(editor.leave(), Some(0));
}
