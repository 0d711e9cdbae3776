//! The Agent Client Protocol, version 1: the same steps in the other form.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, shape, text, updates};
use crate::controller::{Agent, ledger};

/// The code of a reply that is an error.
pub(crate) fn code(reply: &Value) -> i64 {
    reply["error"]["code"]
        .as_i64()
        .unwrap_or_else(|| panic!("{reply}"))
}

#[test]
fn initialize_says_version_capabilities_and_name() {
    let mut client = Client::bare(Agent::spawn_acp(&[]));
    assert!(client.agent.is_silent(Duration::from_millis(100)));
    let reply = client.ask(
        "initialize",
        &json!({"protocolVersion": 1, "clientCapabilities": {}}),
    );
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        reply["result"],
        json!({
            "protocolVersion": 1,
            "agentCapabilities": {
                "loadSession": true,
                "promptCapabilities": {"image": false, "audio": false, "embeddedContext": false},
                "mcpCapabilities": {"http": false, "sse": false},
                "sessionCapabilities": {"list": {}, "resume": {}},
            },
            "agentInfo": {"name": "marshal-script-agent", "title": "Script agent", "version": version},
            "authMethods": [],
        })
    );
}

#[test]
fn initialize_claims_the_version_that_it_is_told_to_claim() {
    for (claim, asked, version) in [
        ("1", 2, json!(1)),
        ("2", 1, json!(2)),
        ("0", 1, json!(0)),
        ("\"1\"", 1, json!("1")),
        ("null", 1, json!(null)),
        ("echo", 1, json!(1)),
        ("echo", 999, json!(999)),
    ] {
        let mut client = Client::bare(Agent::spawn_acp(&["--protocol", claim]));
        let reply = client.ask("initialize", &json!({"protocolVersion": asked}));
        assert_eq!(
            reply["result"].get("protocolVersion"),
            Some(&version),
            "{claim}"
        );
    }
    let mut client = Client::bare(Agent::spawn_acp(&["--protocol", "none"]));
    let reply = client.ask("initialize", &json!({"protocolVersion": 1}));
    assert_eq!(reply["result"].get("protocolVersion"), None);
    let mut client = Client::bare(Agent::spawn_acp(&["--protocol", "error"]));
    assert_eq!(
        code(&client.ask("initialize", &json!({"protocolVersion": 1}))),
        -32602
    );
    let new = json!({"cwd": "/", "mcpServers": []});
    assert_eq!(code(&client.ask("session/new", &new)), -32600);
}

#[test]
fn a_turn_has_the_shape_of_the_protocol() {
    let mut client = Client::new(&[]);
    let turn = client.turn("write sub/a.txt hello\nsay done");
    assert_eq!(
        shape(&turn),
        [
            "agent_message_chunk",
            "tool_call",
            "session/request_permission",
            "tool_call_update",
            "agent_message_chunk",
            "end_turn",
        ]
    );
    let call = updates(&turn, "tool_call")[0];
    let at = client.agent.path().join("sub/a.txt");
    let input = json!({"path": "sub/a.txt", "content": "hello\n"});
    assert_eq!(
        call,
        &json!({
            "sessionUpdate": "tool_call", "toolCallId": "call_1", "title": "Write sub/a.txt",
            "name": "write_file", "kind": "edit", "status": "pending",
            "rawInput": input,
        })
    );
    let request = &turn[2];
    assert_eq!(request["id"], 0);
    assert_eq!(request["params"]["sessionId"], client.session);
    let mut requested = request["params"]["toolCall"].clone();
    requested["sessionUpdate"] = "tool_call".into();
    assert_eq!(&requested, call);
    let changes = updates(&turn, "tool_call_update");
    assert_eq!(
        changes[0],
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "call_1", "status": "in_progress"})
    );
    assert_eq!(changes[1]["status"], "completed");
    assert_eq!(
        changes[1]["content"],
        json!([{"type": "content", "content": {"type": "text", "text": "wrote 6 bytes to sub/a.txt"}}])
    );
    assert_eq!(
        turn.last().unwrap()["result"],
        json!({"stopReason": "end_turn"})
    );
    assert_eq!(std::fs::read_to_string(at).unwrap(), "hello\n");
}

#[test]
fn each_tool_has_its_kind_and_the_input_that_policies_read() {
    let mut client = Client::new(&[]);
    let turn = client.turn("read a\nlist\nsearch x src\nrun echo hi\nwrite a b");
    let calls: Vec<(&str, &str, &Value)> = updates(&turn, "tool_call")
        .iter()
        .map(|call| {
            let field = |name: &str| call[name].as_str().unwrap();
            (field("name"), field("kind"), &call["rawInput"])
        })
        .collect();
    assert_eq!(
        calls,
        [
            ("read_file", "read", &json!({"path": "a"})),
            ("list_dir", "read", &json!({"path": "."})),
            (
                "grep_search",
                "search",
                &json!({"pattern": "x", "path": "src"})
            ),
            ("bash", "execute", &json!({"command": "echo hi"})),
            (
                "write_file",
                "edit",
                &json!({"path": "a", "content": "b\n"})
            ),
        ]
    );
}

#[test]
fn who_chooses_by_position_or_by_id_is_hurt() {
    let mut client = Client::new(&["--ledger", "ledger"]);
    let id = client.prompt("run echo one\nrun echo two\nlist");
    let request = client.until_request();
    let options = request["params"]["options"].as_array().unwrap().clone();
    let kinds: Vec<&str> = options
        .iter()
        .map(|o| o["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["allow_always", "reject_once", "allow_once"]);
    for option in &options {
        let id = option["optionId"].as_str().unwrap();
        assert!(!id.contains("allow") && !id.contains("reject"), "{id}");
    }
    // The first one is for ever: the same tool is not asked about again, another one is.
    client.choose(&request, "allow_always");
    let rest = client.rest_of_turn(id);
    let requested: Vec<&Value> = rest
        .iter()
        .filter(|line| line["method"] == "session/request_permission")
        .collect();
    assert_eq!(requested.len(), 1);
    assert_eq!(requested[0]["params"]["toolCall"]["name"], "list_dir");
    let entries = ledger(&client.agent.path().join("ledger"));
    let trusted = entries
        .iter()
        .find(|entry| entry["kind"] == "trusted")
        .unwrap();
    assert_eq!(trusted["tool"], "bash");
}

#[test]
fn only_a_chosen_allow_runs_the_tool_and_the_turn_goes_on() {
    for outcome in [
        json!({"outcome": "selected", "optionId": "option-2"}),
        json!({"outcome": "selected", "optionId": "allow"}),
        json!({"outcome": "cancelled"}),
        json!({"kind": "allowed", "optionId": "option-3"}),
        json!(null),
    ] {
        let mut client = Client::new(&[]);
        let id = client.prompt("write a b\nsay on");
        let request = client.until_request();
        client.answer(&request, &outcome);
        let rest = client.rest_of_turn(id);
        assert_eq!(updates(&rest, "tool_call_update")[0]["status"], "failed");
        assert!(text(&rest).contains("on\n"));
        assert_eq!(rest.last().unwrap()["result"]["stopReason"], "end_turn");
        assert!(!client.agent.path().join("a").exists(), "{outcome}");
    }
    let mut client = Client::new(&[]);
    let id = client.prompt("write a b");
    let request = client.until_request();
    let error = json!({"code": -32603, "message": "no"});
    client
        .agent
        .send(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
    let rest = client.rest_of_turn(id);
    assert_eq!(updates(&rest, "tool_call_update")[0]["status"], "failed");
}

#[test]
fn a_bare_request_carries_only_the_id_of_its_tool_call() {
    let mut client = Client::new(&["--bare-asks"]);
    let turn = client.turn("run echo hi");
    let request = turn.iter().find(|line| line.get("id").is_some()).unwrap();
    assert_eq!(
        request["params"]["toolCall"],
        json!({"toolCallId": "call_1"})
    );
    assert_eq!(
        updates(&turn, "tool_call")[0]["rawInput"],
        json!({"command": "echo hi"})
    );
}

#[test]
fn a_cancel_waits_for_the_open_request_and_ends_the_turn_as_cancelled() {
    let mut client = Client::new(&[]);
    let id = client.prompt("write a b\nsay never");
    let request = client.until_request();
    client.cancel();
    assert!(client.agent.is_silent(Duration::from_millis(200)));
    client.answer(&request, &json!({"outcome": "cancelled"}));
    let rest = client.rest_of_turn(id);
    assert_eq!(shape(&rest), ["tool_call_update", "cancelled"]);
    // An allow that crossed the cancel runs nothing either.
    let id = client.prompt("write c d");
    let request = client.until_request();
    client.cancel();
    client.choose(&request, "allow_once");
    assert_eq!(
        shape(&client.rest_of_turn(id)),
        ["tool_call_update", "cancelled"]
    );
    assert!(!client.agent.path().join("a").exists() && !client.agent.path().join("c").exists());
    assert_eq!(text(&client.turn("say again")), "again\n");
}

#[test]
fn a_cancel_ends_a_command_a_sleep_and_a_flood() {
    let mut client = Client::new(&[]);
    client.cancel();
    for script in ["run sleep 3600", "sleep 1h", "flood 100000000"] {
        let id = client.prompt(&format!("say begun\n{script}"));
        if script.starts_with("run") {
            let request = client.until_request();
            client.choose(&request, "allow_once");
        }
        client.agent.line();
        client.cancel();
        let rest = client.rest_of_turn(id);
        assert_eq!(
            rest.last().unwrap()["result"]["stopReason"],
            "cancelled",
            "{script}"
        );
    }
}

#[test]
fn a_cancel_with_an_id_or_for_another_session_cancels_nothing() {
    let mut client = Client::new(&[]);
    let id = client.prompt("write a b");
    let request = client.until_request();
    let params = json!({"sessionId": client.session});
    assert_eq!(code(&client.ask("session/cancel", &params)), -32601);
    let other = json!({"sessionId": "other"});
    client
        .agent
        .send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": other}));
    client.choose(&request, "allow_once");
    let rest = client.rest_of_turn(id);
    assert_eq!(rest.last().unwrap()["result"]["stopReason"], "end_turn");
}

#[test]
fn what_is_not_known_is_refused_or_ignored_and_every_id_comes_back() {
    let mut client = Client::new(&[]);
    for method in ["$/ping", "session/set_mode", "authenticate", "_ours"] {
        assert_eq!(code(&client.ask(method, &json!({}))), -32601, "{method}");
    }
    client
        .agent
        .send(&json!({"jsonrpc": "2.0", "method": "$/ping"}));
    client
        .agent
        .send(&json!({"jsonrpc": "2.0", "id": 99, "result": {}}));
    client
        .agent
        .send(&json!({"jsonrpc": "2.0", "error": {"code": 1, "message": "x"}}));
    for id in [
        json!("a"),
        json!(null),
        json!(1.5),
        json!(9_007_199_254_740_991_u64),
        json!([1]),
    ] {
        client
            .agent
            .send(&json!({"jsonrpc": "2.0", "id": id, "method": "nothing"}));
        assert_eq!(client.agent.line()["id"], id);
    }
    assert_eq!(text(&client.turn("say alive")), "alive\n");
}

#[test]
fn malformed_lines_are_errors_without_an_id_and_the_agent_lives_on() {
    let mut client = Client::new(&[]);
    for (line, expect) in [
        (&b"hello\n"[..], -32700),
        (b"\xff\xfe\n", -32700),
        (b"\n", -32700),
        (b"[]\n", -32600),
        (b"{\"type\":\"shutdown\"}\n", -32600),
    ] {
        client.agent.write(line);
        let error = client.agent.line();
        assert_eq!((&error["id"], code(&error)), (&json!(null), expect));
    }
    client
        .agent
        .write(&[vec![b'x'; (8 << 20) + 1], vec![b'\n']].concat());
    assert_eq!(code(&client.agent.line()), -32700);
    assert_eq!(text(&client.turn("say alive")), "alive\n");
}

#[test]
fn wrong_parameters_and_wrong_moments_are_refused() {
    let mut client = Client::bare(Agent::spawn_acp(&[]));
    let new = json!({"cwd": "/", "mcpServers": []});
    assert_eq!(code(&client.ask("session/new", &new)), -32600);
    for version in [json!("1"), json!(65536), json!(null)] {
        let params = json!({"protocolVersion": version});
        assert_eq!(code(&client.ask("initialize", &params)), -32602);
    }
    let mut client = Client::new(&[]);
    for params in [
        json!({"cwd": "relative", "mcpServers": []}),
        json!({"cwd": "/no/such/directory", "mcpServers": []}),
        json!({"cwd": "/"}),
    ] {
        assert_eq!(
            code(&client.ask("session/new", &params)),
            -32602,
            "{params}"
        );
    }
    let prompt = json!({"sessionId": "unknown", "prompt": []});
    let reply = client.ask("session/prompt", &prompt);
    assert_eq!(code(&reply), -32002);
    assert_eq!(reply["error"]["data"]["sessionId"], "unknown");
    let id = client.prompt("write a b");
    let request = client.until_request();
    let second =
        json!({"sessionId": client.session, "prompt": [{"type": "text", "text": "say x"}]});
    assert_eq!(code(&client.ask("session/prompt", &second)), -32600);
    client.choose(&request, "allow_once");
    assert_eq!(
        client.rest_of_turn(id).last().unwrap()["result"]["stopReason"],
        "end_turn"
    );
}

#[test]
fn thoughts_plans_and_usage_have_updates_of_their_own() {
    let mut client = Client::new(&[]);
    let turn = client.turn("think hard\nplan look; mend it\nflood 1000");
    assert_eq!(
        shape(&turn),
        [
            "agent_thought_chunk",
            "plan",
            "agent_message_chunk",
            "usage_update",
            "end_turn"
        ]
    );
    assert_eq!(
        updates(&turn, "agent_thought_chunk")[0]["content"]["text"],
        "hard"
    );
    assert_eq!(
        updates(&turn, "plan")[0]["entries"],
        json!([
            {"content": "look", "priority": "medium", "status": "pending"},
            {"content": "mend it", "priority": "medium", "status": "pending"},
        ])
    );
    let usage = updates(&turn, "usage_update")[0];
    assert_eq!(usage["size"], 200_000);
    assert!(usage["used"].as_u64().unwrap() > 20_000, "{usage}");
}

#[test]
fn at_the_end_of_stdin_open_requests_count_as_denied_and_the_turn_is_finished() {
    let mut client = Client::new(&[]);
    let id = client.prompt("write a b\nsay last");
    client.until_request();
    client.agent.hang_up();
    let rest = client.rest_of_turn(id);
    let end = &updates(&rest, "tool_call_update")[0];
    assert_eq!(
        end["rawOutput"]["output"],
        "controller disconnected before responding"
    );
    assert!(text(&rest).contains("last\n"));
    assert_eq!(rest.last().unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(client.agent.exit().code(), Some(0));
    assert!(!client.agent.path().join("a").exists());
    let mut idle = Client::new(&[]);
    idle.agent.hang_up();
    assert_eq!(idle.agent.exit().code(), Some(0));
}
