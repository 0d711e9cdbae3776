//! What each step does in the workspace, and what a turn looks like.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::controller::{Agent, of, result, shape, text};

#[test]
fn ready_has_every_field_of_the_protocol_in_its_order() {
    let mut agent = Agent::spawn(&["--model", "m", "--permission-mode", "prompt"]);
    let line = String::from_utf8(agent.raw().unwrap()).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let id = ready["session_id"].as_str().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        line,
        format!(
            r#"{{"type":"ready","protocol":1,"version":"{version}","session_id":"{id}","model":"m","mode":"prompt","tools":["read_file","write_file","list_dir","grep_search","bash"],"context_window":200000,"max_tokens":8192,"gadgets":[]}}"#
        ) + "\n"
    );
}

#[test]
fn a_turn_has_the_shape_of_the_protocols_example() {
    let mut agent = Agent::new(&["--permission-mode", "prompt"]);
    fs::write(agent.path().join("a.py"), "x = 1\n").unwrap();
    let turn = agent.turn("list");
    assert_eq!(
        shape(&turn),
        [
            "turn_started",
            "text_delta",
            "tool_start",
            "permission_request",
            "tool_result",
            "text_delta",
            "turn_complete"
        ]
    );
    assert_eq!(turn[0], json!({"type": "turn_started", "turn_id": "t-1"}));
    assert_eq!(
        of(&turn, "tool_start")[0],
        &json!({"type": "tool_start", "turn_id": "t-1", "tool_id": "call_1", "name": "list_dir", "input": {"path": "."}})
    );
    assert_eq!(
        of(&turn, "permission_request")[0],
        &json!({"type": "permission_request", "request_id": "r-1", "tool": "list_dir", "active_mode": "prompt", "required_mode": "read-only", "details": {"tool_input": {"path": "."}, "reason": null}})
    );
    let mut end = result(&turn).clone();
    assert!(end["duration_s"].take().as_f64().unwrap() >= 0.0);
    assert_eq!(
        end,
        json!({"type": "tool_result", "turn_id": "t-1", "tool_id": "call_1", "output": "a.py\n", "is_error": false, "duration_s": null})
    );
    let complete = turn.last().unwrap();
    assert_eq!(complete["stop_reason"], "end_turn");
    assert_eq!(complete["iterations"], 1);
    assert_eq!(complete["mutations"], json!([]));
    let mut fields: Vec<&String> = complete.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(
        fields,
        [
            "input_tokens",
            "iterations",
            "mutations",
            "output_tokens",
            "stop_reason",
            "turn_id",
            "type"
        ]
    );
}

#[test]
fn the_same_script_says_the_same_every_time() {
    let run = || {
        let mut agent = Agent::new(&[]);
        let mut turn = agent.turn("write a.txt hello\nread a.txt\nlist\nsearch hel\nsay done");
        for message in &mut turn {
            if let Some(took) = message.get_mut("duration_s") {
                took.take();
            }
        }
        turn
    };
    assert_eq!(run(), run());
}

#[test]
fn write_makes_the_file_and_reports_the_mutation() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("write sub/notes.txt hello you");
    assert_eq!(
        fs::read_to_string(agent.path().join("sub/notes.txt")).unwrap(),
        "hello you\n"
    );
    let request = of(&turn, "permission_request")[0];
    assert_eq!(request["required_mode"], "workspace-write");
    assert_eq!(
        request["details"]["tool_input"],
        json!({"path": "sub/notes.txt", "content": "hello you\n"})
    );
    assert_eq!(
        turn.last().unwrap()["mutations"],
        json!([["write_file", "sub/notes.txt"]])
    );
}

#[test]
fn read_gives_the_content_and_cuts_what_is_too_long() {
    let mut agent = Agent::new(&[]);
    fs::write(agent.path().join("small"), "one\ntwo\n").unwrap();
    fs::write(agent.path().join("large"), "ä".repeat(100_000)).unwrap();
    assert_eq!(result(&agent.turn("read small"))["output"], "one\ntwo\n");
    let turn = agent.turn("read large");
    let output = result(&turn)["output"].as_str().unwrap();
    assert!(output.len() < 66_000, "{}", output.len());
    assert!(output.ends_with("… cut: 65536 of 200000 bytes\n"));
}

#[test]
fn what_is_no_file_is_an_error_that_names_it() {
    let mut agent = Agent::new(&[]);
    let made = std::process::Command::new("mkfifo")
        .arg(agent.path().join("fifo"))
        .status();
    assert!(made.unwrap().success());
    for path in ["nowhere", ".", "fifo"] {
        let turn = agent.turn(&format!("read {path}"));
        assert_eq!(result(&turn)["is_error"], true);
        assert!(result(&turn)["output"].as_str().unwrap().starts_with(path));
    }
}

#[test]
fn list_is_sorted_and_marks_directories() {
    let mut agent = Agent::new(&[]);
    for name in ["b", "a", "c d"] {
        fs::write(agent.path().join(name), "").unwrap();
    }
    fs::create_dir(agent.path().join("aa")).unwrap();
    assert_eq!(result(&agent.turn("list"))["output"], "a\naa/\nb\nc d\n");
    assert_eq!(result(&agent.turn("list aa"))["output"], "");
}

#[test]
fn search_finds_lines_below_a_path() {
    let mut agent = Agent::new(&[]);
    let dir = agent.path().to_owned();
    fs::create_dir_all(dir.join("src/.git")).unwrap();
    fs::write(dir.join("src/a.rs"), "fn one() {}\nfn two() {}\n").unwrap();
    fs::write(dir.join("src/.git/config"), "fn hidden() {}\n").unwrap();
    fs::write(dir.join("top.rs"), "fn three() {}\n").unwrap();
    fs::write(dir.join("binary"), b"fn \xff\xfe").unwrap();
    let all = agent.turn(r#"search "fn t\w+""#);
    assert_eq!(
        result(&all)["output"],
        "src/a.rs:2: fn two() {}\ntop.rs:1: fn three() {}\n"
    );
    let below = agent.turn("search fn src");
    assert_eq!(
        of(&below, "tool_start")[0]["input"],
        json!({"pattern": "fn", "path": "src"})
    );
    assert_eq!(
        result(&below)["output"],
        "src/a.rs:1: fn one() {}\nsrc/a.rs:2: fn two() {}\n"
    );
    assert_eq!(result(&agent.turn("search ("))["is_error"], true);
    assert_eq!(result(&agent.turn("search a nowhere"))["is_error"], true);
}

#[test]
fn run_gives_output_in_order_and_the_exit_status() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("run echo out; echo err >&2; echo out; cat");
    assert_eq!(result(&turn)["output"], "out\nerr\nout\n");
    assert_eq!(result(&turn)["is_error"], false);
    assert_eq!(
        of(&turn, "permission_request")[0]["required_mode"],
        "danger-full-access"
    );
    let turn = agent.turn("run echo no; exit 3");
    assert_eq!(result(&turn)["output"], "no\n(exit status 3)\n");
    assert_eq!(result(&turn)["is_error"], true);
    let turn = agent.turn("run kill -9 $$");
    assert_eq!(result(&turn)["output"], "(killed by signal 9)\n");
}

#[test]
fn run_does_not_wait_for_what_the_command_left_behind() {
    let mut agent = Agent::new(&[]);
    let began = Instant::now();
    let turn = agent.turn("run sleep 60 & echo $!");
    assert!(began.elapsed() < Duration::from_secs(20));
    let pid = result(&turn)["output"].as_str().unwrap().trim().to_owned();
    assert!(
        std::process::Command::new("kill")
            .arg(&pid)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn run_survives_more_output_than_it_reports() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("run head -c 3000000 /dev/zero | tr '\\0' x");
    let output = result(&turn)["output"].as_str().unwrap();
    assert!(output.ends_with("\n… cut: 65536 of 3000000 bytes\n"));
}

#[test]
fn a_failed_step_does_not_end_the_turn_and_is_summed_up() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("read nowhere\nwrite a b");
    assert!(agent.path().join("a").exists());
    assert_eq!(turn.last().unwrap()["stop_reason"], "end_turn");
    assert_eq!(turn.last().unwrap()["iterations"], 2);
    let shown = text(&turn);
    assert!(
        shown.contains("1 of 2 steps failed: read_file (nowhere:"),
        "{shown}"
    );
}

#[test]
fn say_think_and_sleep_use_no_tool() {
    let mut agent = Agent::new(&[]);
    let began = Instant::now();
    let turn = agent.turn("say one  two\nthink three\nsleep 50ms");
    assert!(began.elapsed() >= Duration::from_millis(50));
    assert_eq!(
        shape(&turn),
        ["turn_started", "text_delta", "turn_complete"]
    );
    assert_eq!(text(&turn), "one  two\n(thinking) three\n");
}

#[test]
fn a_prompt_that_is_no_script_gets_a_clear_sentence_and_nothing_is_done() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("write a b\nplease fix the build");
    assert_eq!(
        shape(&turn),
        ["turn_started", "text_delta", "turn_complete"]
    );
    assert_eq!(turn.last().unwrap()["stop_reason"], "end_turn");
    let shown = text(&turn);
    assert!(shown.contains("line 2 begins with `please`"), "{shown}");
    assert!(
        shown.contains("read, list, search, write, run, say"),
        "{shown}"
    );
    assert!(!agent.path().join("a").exists());
}

#[test]
fn state_changed_tells_that_the_context_fills() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("flood 1000 100");
    let changed = of(&turn, "state_changed");
    assert_eq!(changed.len(), 1);
    assert_eq!(
        changed[0],
        &json!({"type": "state_changed", "context_pct": 12})
    );
}

#[test]
fn the_workspace_is_where_the_flag_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::new(&["--workspace", dir.path().to_str().unwrap()]);
    agent.turn("write here.txt x");
    assert!(dir.path().join("here.txt").exists());
}
