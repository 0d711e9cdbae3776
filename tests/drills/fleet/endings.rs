//! However a child goes (its stdout ends, its process does, its stdin takes nothing more), there is
//! one end: one turn that ended, one child that exited, its last words, and the hint that fits.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, eventually};

/// An agent of a few lines of shell that greets as ScaiFlux does and begins the turn.
const GREETING: &str = r#"printf '%s\n' '{"type":"ready","protocol":1,"version":"1","session_id":"s","model":"m","mode":"prompt","tools":[],"context_window":1000,"max_tokens":100,"gadgets":[]}'
"#;
const BEGINS: &str = r#"read -r prompt
printf '%s\n' '{"type":"turn_started","turn_id":"t"}'
"#;

/// Its stop waits for the end of a process whose pipes have ended: on a busy machine that is known later.
fn drill(agent: &str, more: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = ["sh", "agent.sh"]
launcher  = "none"
workspace = {{ path = "project", mode = "rw" }}
restart   = {{ budget = 0 }}
stop      = {{ goodbye = "100ms", eof = "4s", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}
"#
    ));
    fs::write(drill.workspace().join("agent.sh"), agent).expect("agent.sh");
    drill
}

/// Runs one task to its end; gives its result and the events of its session.
fn one(drill: &Drill, prompt: &str) -> (Value, Vec<Value>) {
    let ran = drill.run(&["run", "--results", "r.jsonl", prompt]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let result = drill.results("r.jsonl").remove(0);
    let events = drill.run(&["events", "--json", "--since", "1h"]);
    let lines = events.stdout.lines();
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    for kind in ["child_exited", "turn_ended"] {
        let count = events.iter().filter(|event| event["kind"] == kind).count();
        assert!(count <= 1, "{count} of {kind}: {events:?}");
    }
    eventually(Duration::from_secs(60), "nothing is left", || {
        drill.agents().is_empty()
    });
    (result, events)
}

fn detail(result: &Value) -> &str {
    result["detail"].as_str().expect("a detail")
}

#[test]
fn an_output_that_ends_while_the_process_lives_ends_the_turn() {
    let agent = format!("{GREETING}{BEGINS}exec >&-; trap '' INT TERM; while :; do sleep 1; done");
    let (result, _) = one(&drill(&agent, ""), "say hello");
    assert_eq!(result["outcome"], "lost", "{result}");
    assert!(
        detail(&result).contains("closed its stdout and went on running"),
        "{result}"
    );
}

#[test]
fn a_process_that_ends_leaves_its_last_fifty_words() {
    let agent = format!(
        "{GREETING}{BEGINS}i=0; while [ $i -lt 80 ]; do i=$((i+1)); echo \"word $i\" >&2; done; exit 7"
    );
    let drill = drill(&agent, "");
    let (result, events) = one(&drill, "say hello");
    assert_eq!(result["outcome"], "lost", "{result}");
    assert!(detail(&result).contains("exit code 7"), "{result}");
    let exited = events.iter().find(|event| event["kind"] == "child_exited");
    let text = exited.expect("its end").to_string();
    assert!(
        text.contains("word 31\"") && text.contains("word 80\""),
        "{text}"
    );
    assert!(!text.contains("word 30\""), "{text}");
    let session = result["session"].as_str().expect("a session");
    let shown = drill.run(&["show", session]);
    assert!(shown.stdout.contains("word 80"), "{}", shown.all());
}

#[test]
fn a_stdin_that_takes_nothing_more_ends_the_child() {
    let agent = format!("exec 0<&-\n{GREETING}trap '' INT TERM; while :; do sleep 1; done");
    let (result, _) = one(&drill(&agent, ""), &"x".repeat(100_000));
    assert_eq!(
        result["outcome"], "failed",
        "its prompt was never written: {result}"
    );
    assert!(
        detail(&result).contains("closed its stdin and went on running"),
        "{result}"
    );
}

#[test]
fn the_hint_that_fits_is_shown_with_the_error_wherever_that_is() {
    let agent = format!("{GREETING}{BEGINS}echo 'RuntimeError: No credentials found' >&2; exit 1");
    let drill = drill(&agent, "");
    let ran = drill.run(&["run", "--results", "r.jsonl", "say hello"]);
    let hint = "hint: set ANTHROPIC_API_KEY";
    let result = drill.results("r.jsonl").remove(0);
    assert!(detail(&result).contains(hint), "{result}");
    assert!(ran.stderr.contains(hint), "progress: {}", ran.all());
    let session = result["session"].as_str().expect("a session");
    let shown = drill.run(&["show", session]);
    assert!(shown.stdout.contains(hint), "{}", shown.all());
}

#[test]
fn a_files_own_hint_goes_first_and_fits_errors_that_end_a_turn() {
    let agent = format!(
        "{GREETING}{BEGINS}printf '%s\\n' '{{\"type\":\"error\",\"code\":\"provider\",\"message\":\"group quota is used up (429)\",\"origin\":\"remote\"}}' '{{\"type\":\"turn_complete\",\"turn_id\":\"t\",\"stop_reason\":\"error\",\"iterations\":1,\"input_tokens\":0,\"output_tokens\":0,\"mutations\":[]}}'; read -r goodbye"
    );
    let own = "[[hint]]\npattern = \"group quota\"\nwhere = \"message\"\ntext = \"ask the lab for more\"\n";
    let (result, events) = one(&drill(&agent, own), "say hello");
    assert_eq!(result["outcome"], "failed", "{result}");
    assert!(
        detail(&result).contains("hint: ask the lab for more"),
        "{result}"
    );
    let ended = events.iter().find(|event| event["kind"] == "turn_ended");
    assert!(
        ended
            .expect("its end")
            .to_string()
            .contains("ask the lab for more")
    );
}

/// What a cancelled turn left running would work on beside the next task.
#[test]
fn a_tool_that_outlives_its_cancelled_turn_ends_before_the_next_task() {
    let agent = format!(
        r#"{GREETING}{BEGINS}case "$prompt" in
*leave*)
    sleep 600 & echo $! > left
    printf '%s\n' '{{"type":"tool_start","tool_id":"c1","name":"bash","input":{{"command":"sleep 600"}}}}'
    read -r interrupt
    printf '%s\n' '{{"type":"turn_complete","turn_id":"t","stop_reason":"cancelled","iterations":1,"input_tokens":0,"output_tokens":0,"mutations":[]}}'
    ;;
*)
    kill -0 "$(cat left)" 2>/dev/null && touch still-runs
    printf '%s\n' '{{"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","iterations":1,"input_tokens":0,"output_tokens":0,"mutations":[]}}'
    ;;
esac
read -r goodbye
"#
    );
    let drill = drill(&agent, "session = \"slot\"");
    let mut running = drill.start(&["run", "--results", "r.jsonl", "leave it", "look for it"]);
    let left = drill.workspace().join("left");
    eventually(Duration::from_secs(60), "its tool runs", || left.exists());
    eventually(Duration::from_secs(60), "the call is known", || {
        let told = "SELECT count(*) FROM events WHERE kind = 'tool_start'";
        let count = drill.database().query_row(told, [], |row| row.get(0));
        count.unwrap_or(0_i64) == 1
    });
    let _stopping = drill.cancel_turns();
    assert_eq!(running.wait(Duration::from_secs(60)), Some(1));
    let results = drill.results("r.jsonl");
    let outcomes: Vec<_> = results.iter().map(|it| it["outcome"].as_str()).collect();
    assert_eq!(outcomes, [Some("cancelled"), Some("done")], "{results:?}");
    assert!(!drill.workspace().join("still-runs").exists());
    assert_ne!(results[0]["session"], results[1]["session"]);
}
