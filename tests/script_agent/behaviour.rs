//! Permissions, interrupts, ends, malformed lines, slash commands, version claims.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::controller::{Agent, of, result, shape, text};

#[test]
fn the_tool_waits_for_its_answer() {
    let mut agent = Agent::new(&[]);
    agent.prompt("write a b");
    let request = agent.until("permission_request");
    assert!(agent.is_silent(Duration::from_millis(100)));
    assert!(!agent.path().join("a").exists());
    agent.allow(&request);
    agent.until("turn_complete");
    assert!(agent.path().join("a").exists());
}

#[test]
fn a_deny_runs_nothing_gives_its_reason_and_keeps_the_turn_alive() {
    let mut agent = Agent::new(&[]);
    agent.prompt("write a b\nwrite c d\nsay on");
    let request = agent.until("permission_request");
    agent.deny(&request, Some("rule 7 says no"));
    let denied = agent.until("tool_result");
    assert_eq!(denied["output"], "rule 7 says no");
    assert_eq!(denied["is_error"], true);
    let request = agent.until("permission_request");
    agent.deny(&request, None);
    let denied = agent.until("tool_result");
    assert_eq!(denied["output"], "denied by remote controller");
    let rest = agent.rest_of_turn();
    assert!(text(&rest).contains("on\n"));
    assert!(text(&rest).contains("2 of 3 steps failed"));
    let complete = rest.last().unwrap();
    assert_eq!(complete["stop_reason"], "end_turn");
    assert_eq!(complete["mutations"], json!([]));
    assert!(!agent.path().join("a").exists() && !agent.path().join("c").exists());
}

#[test]
fn an_answer_to_nothing_is_an_error_and_changes_nothing() {
    let mut agent = Agent::new(&[]);
    agent.send(&json!({"type": "permission_response", "request_id": "r-9", "decision": "allow"}));
    let error = agent.line();
    assert_eq!(
        error,
        json!({"type": "error", "code": "unknown_request", "message": "no permission request `r-9` is open", "origin": "local"})
    );
    agent.prompt("write a b");
    let request = agent.until("permission_request");
    agent.send(&json!({"type": "permission_response", "request_id": "r-9", "decision": "allow"}));
    let error = agent.line();
    assert_eq!(error["code"], "unknown_request");
    assert_eq!(error["turn_id"], "t-1");
    agent.allow(&request);
    assert_eq!(
        agent.until("turn_complete")["mutations"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_prompt_in_a_turn_is_rejected_and_the_turn_goes_on() {
    let mut agent = Agent::new(&[]);
    agent.prompt("write a b");
    let request = agent.until("permission_request");
    agent.prompt("say second");
    let error = agent.line();
    assert_eq!(error["code"], "turn_in_flight");
    assert_eq!(error["origin"], "local");
    agent.allow(&request);
    let turn = agent.rest_of_turn();
    assert!(!text(&turn).contains("second"));
    assert_eq!(agent.turn("say third")[0]["turn_id"], "t-2");
}

#[test]
fn malformed_lines_are_errors_of_local_origin_and_the_agent_lives_on() {
    let mut agent = Agent::new(&[]);
    let lines: [&[u8]; 6] = [
        b"hello\n",
        b"\xff\xfe\n",
        b"[\"shutdown\"]\n",
        b"\n",
        b"{\"type\":\"no_such\"}\n",
        b"{\"type\":\"prompt\",\"text\":\"say x\",\"extra\":1}\n",
    ];
    for line in lines {
        agent.write(line);
        let error = agent.line();
        assert_eq!(error["type"], "error");
        assert_eq!(error["code"], "invalid_message");
        assert_eq!(error["origin"], "local");
    }
    agent.write(&[vec![b'x'; (8 << 20) + 1], vec![b'\n']].concat());
    assert_eq!(agent.line()["code"], "invalid_message");
    assert_eq!(text(&agent.turn("say alive")), "alive\n");
}

#[test]
fn an_interrupt_kills_the_command_with_its_group() {
    let mut agent = Agent::new(&[]);
    agent.prompt("run sleep 3600 & echo $! > pid; sleep 3600\nsay never");
    let request = agent.until("permission_request");
    agent.allow(&request);
    let file = agent.path().join("pid");
    let began = Instant::now();
    let pid = loop {
        match std::fs::read_to_string(&file) {
            Ok(pid) if pid.ends_with('\n') => break pid.trim().to_owned(),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(began.elapsed() < Duration::from_secs(20));
    };
    agent.interrupt();
    let turn = agent.rest_of_turn();
    assert_eq!(result(&turn)["output"], "interrupted");
    assert_eq!(turn.last().unwrap()["stop_reason"], "interrupted");
    assert_eq!(text(&turn), "");
    let began = Instant::now();
    while is_alive(&pid) {
        assert!(began.elapsed() < Duration::from_secs(20), "{pid} is alive");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(text(&agent.turn("say again")), "again\n");
}

#[test]
fn an_interrupt_withdraws_the_open_request() {
    let mut agent = Agent::new(&[]);
    agent.prompt("write a b\nsay never");
    let request = agent.until("permission_request");
    agent.interrupt();
    let turn = agent.rest_of_turn();
    assert_eq!(shape(&turn), ["tool_result", "turn_complete"]);
    assert_eq!(turn[1]["stop_reason"], "interrupted");
    agent.allow(&request);
    assert_eq!(agent.line()["code"], "unknown_request");
    assert!(!agent.path().join("a").exists());
}

#[test]
fn an_interrupt_ends_a_sleep_and_a_flood_and_is_harmless_twice_or_between_turns() {
    let mut agent = Agent::new(&[]);
    agent.interrupt();
    agent.prompt("sleep 1h");
    agent.until("turn_started");
    agent.interrupt();
    agent.interrupt();
    assert_eq!(agent.until("turn_complete")["stop_reason"], "interrupted");
    agent.prompt("flood 100000000");
    agent.until("text_delta");
    agent.interrupt();
    assert_eq!(agent.until("turn_complete")["stop_reason"], "interrupted");
    assert_eq!(
        agent.turn("say x").last().unwrap()["stop_reason"],
        "end_turn"
    );
}

#[test]
fn at_the_end_of_stdin_open_requests_count_as_denied_and_the_turn_is_finished() {
    let mut agent = Agent::new(&[]);
    agent.prompt("write a b\nwrite c d\nsay last");
    agent.until("permission_request");
    agent.hang_up();
    let mut turn = Vec::new();
    while let Some(line) = agent.raw() {
        turn.push(serde_json::from_slice::<serde_json::Value>(&line).unwrap());
    }
    for result in of(&turn, "tool_result") {
        assert_eq!(
            result["output"],
            "controller disconnected before responding"
        );
        assert_eq!(result["is_error"], true);
    }
    assert_eq!(of(&turn, "tool_result").len(), 2);
    assert!(text(&turn).contains("last\n"));
    assert_eq!(turn.last().unwrap()["stop_reason"], "end_turn");
    assert_eq!(agent.exit().code(), Some(0));
    assert!(!agent.path().join("a").exists());
}

#[test]
fn an_idle_agent_exits_at_the_end_of_stdin_and_on_shutdown() {
    let mut agent = Agent::new(&[]);
    agent.hang_up();
    assert_eq!(agent.exit().code(), Some(0));
    let mut agent = Agent::new(&[]);
    agent.write(b"{\"type\":\"shutdown\"}\n");
    assert_eq!(agent.exit().code(), Some(0));
    assert!(agent.raw().is_none());
}

#[test]
fn shutdown_in_a_turn_cancels_it_and_exits() {
    let mut agent = Agent::new(&[]);
    agent.prompt("write a b\nsleep 1h");
    agent.until("permission_request");
    agent.write(b"{\"type\":\"shutdown\"}\n");
    assert_eq!(agent.until("turn_complete")["stop_reason"], "interrupted");
    assert_eq!(agent.exit().code(), Some(0));
    assert!(!agent.path().join("a").exists());
}

#[test]
fn a_prompt_and_the_end_in_one_write_still_make_a_turn() {
    let mut agent = Agent::new(&[]);
    agent.write(b"{\"type\":\"prompt\",\"text\":\"say hi\"}");
    agent.hang_up();
    assert_eq!(text(&agent.rest_of_turn()), "hi\n");
    assert_eq!(agent.exit().code(), Some(0));
}

#[test]
fn an_agent_whose_reader_is_gone_ends_by_itself() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["script-agent", "--loader"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(b"{\"type\":\"prompt\",\"text\":\"flood 100000000\"}\n")
        .unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(1), None));
}

#[test]
fn slash_commands_are_answered_at_once_even_in_a_turn() {
    let (mut agent, ready) = Agent::started(&[]);
    agent.prompt("write a b");
    let request = agent.until("permission_request");
    agent.send(&json!({"type": "slash", "command": "model", "args": "other/model"}));
    assert_eq!(
        agent.line(),
        json!({"type": "slash_result", "command": "model", "text": "Model: other/model", "data": {"model": "other/model"}, "clear_session": false, "exit": false})
    );
    agent.send(&json!({"type": "slash", "command": "clear"}));
    assert_eq!(agent.line()["clear_session"], false);
    agent.send(&json!({"type": "slash", "command": "mode", "args": "prompt"}));
    assert_eq!(agent.line()["data"]["mode"], "prompt");
    agent.allow(&request);
    let end = agent.until("turn_complete");
    agent.send(&json!({"type": "slash", "command": "context"}));
    let tokens = end["input_tokens"].as_u64().unwrap() + end["output_tokens"].as_u64().unwrap();
    assert_eq!(
        agent.line()["data"],
        json!({"context_tokens": tokens, "context_window": 200_000, "context_pct": 0})
    );
    agent.send(&json!({"type": "slash", "command": "clear"}));
    let cleared = agent.line();
    assert_eq!(cleared["clear_session"], true);
    assert_ne!(cleared["data"]["session_id"], ready["session_id"]);
    agent.send(&json!({"type": "slash", "command": "mode", "args": "sudo"}));
    assert_eq!(agent.line()["data"], json!(null));
    agent.send(&json!({"type": "slash", "command": "nonsense"}));
    assert!(agent.line()["text"].as_str().unwrap().contains("/help"));
    agent.send(&json!({"type": "slash", "command": "help"}));
    assert!(agent.line()["text"].as_str().unwrap().contains("/context"));
    agent.prompt("write c d");
    assert_eq!(agent.until("permission_request")["active_mode"], "prompt");
    agent.send(&json!({"type": "slash", "command": "exit"}));
    assert_eq!(agent.until("slash_result")["exit"], true);
    assert_eq!(agent.until("turn_complete")["stop_reason"], "interrupted");
    assert_eq!(agent.exit().code(), Some(0));
}

#[test]
fn ready_claims_the_version_that_it_is_told_to_claim() {
    for (claim, protocol) in [
        ("0", json!(0)),
        ("2", json!(2)),
        ("999", json!(999)),
        ("-1", json!(-1)),
        ("\"1\"", json!("1")),
        ("one", json!("one")),
        ("1.5", json!(1.5)),
        ("null", json!(null)),
    ] {
        let (_agent, ready) = Agent::started(&["--protocol", claim]);
        assert_eq!(ready.get("protocol"), Some(&protocol), "{claim}");
    }
    let (_agent, ready) = Agent::started(&["--protocol", "none"]);
    assert_eq!(ready.get("protocol"), None);
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}
