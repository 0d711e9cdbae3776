//! The protocol, line by line.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use marshal_model::limits::{CLIENT_FILE_BYTES, TOOL_OPTIONS};
use marshal_model::{ClientError, ClientErrorKind, StepStatus};

fn hello(version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    }})
}

fn feed(server: &mut Server, message: &Value) -> Vec<Effect> {
    let mut out = Vec::new();
    server.handle_line(message.to_string().as_bytes(), &mut out);
    out
}

fn written_messages(effects: &[Effect]) -> Vec<Value> {
    let lines = effects.iter().filter_map(|effect| match effect {
        Effect::Write(line) => Some(line),
        _ => None,
    });
    lines
        .map(|line| {
            assert_eq!(line.split(|b| *b == b'\n').count() - 1, 1);
            serde_json::from_slice(line).expect("JSON")
        })
        .collect()
}

fn reply_to(server: &mut Server, message: &Value) -> Value {
    let mut lines = written_messages(&feed(server, message));
    assert_eq!(lines.len(), 1, "{message} -> {lines:?}");
    lines.remove(0)
}

fn open(version: &str) -> Server {
    let mut server = Server::new(EngineTool::ALL);
    let reply = reply_to(&mut server, &hello(version));
    assert_eq!(reply["id"], 0);
    server
}

fn call(id: u64, name: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
        "name": name, "arguments": arguments,
    }})
}

fn code(reply: &Value) -> i64 {
    reply["error"]["code"].as_i64().unwrap_or_default()
}

#[test]
fn the_version_is_the_one_that_is_wanted_or_the_newest() {
    for version in VERSIONS {
        let mut server = Server::new(EngineTool::ALL);
        let reply = reply_to(&mut server, &hello(version));
        assert_eq!(reply["result"]["protocolVersion"], **version);
        assert_eq!(reply["result"]["serverInfo"]["name"], "marshal");
        assert!(reply["result"]["capabilities"]["tools"].is_object());
    }
    let mut server = Server::new(EngineTool::ALL);
    let reply = reply_to(&mut server, &hello("1999-01-01"));
    assert_eq!(reply["result"]["protocolVersion"], "2025-11-25");
}

#[test]
fn nothing_but_a_ping_comes_before_initialize_and_that_comes_once() {
    let mut server = Server::new(EngineTool::ALL);
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
    assert_eq!(
        reply_to(&mut server, &ping),
        json!({"jsonrpc": "2.0", "id": "p", "result": {}})
    );
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(code(&reply_to(&mut server, &list)), -32600);
    let step = call(2, "plan_step", &json!({"step": "a", "status": "done"}));
    assert_eq!(code(&reply_to(&mut server, &step)), -32600);
    let bare = json!({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}});
    assert_eq!(code(&reply_to(&mut server, &bare)), -32602);
    assert!(reply_to(&mut server, &hello("2025-06-18"))["result"].is_object());
    assert_eq!(code(&reply_to(&mut server, &hello("2025-06-18"))), -32600);
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(feed(&mut server, &ready), []);
    assert_eq!(
        reply_to(&mut server, &list)["result"]["tools"]
            .as_array()
            .map(Vec::len),
        Some(5)
    );
    let other = json!({"jsonrpc": "2.0", "id": 4, "method": "resources/list"});
    assert_eq!(code(&reply_to(&mut server, &other)), -32601);
    let page =
        json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"cursor": "x"}});
    assert_eq!(code(&reply_to(&mut server, &page)), -32602);
}

/// A request that says its version itself.
fn alone(id: u64, method: &str, version: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["_meta"] = json!({
        message::VERSION_KEY: version,
        message::CAPABILITIES_KEY: {},
    });
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

#[test]
fn a_request_that_names_its_version_needs_no_handshake() {
    let mut server = Server::new(EngineTool::ALL);
    let ask = |server: &mut Server, method: &str, params: &Value| {
        reply_to(server, &alone(1, method, STATELESS_VERSION, params))
    };
    let found = ask(&mut server, "server/discover", &json!({}));
    let result = &found["result"];
    assert_eq!(result["supportedVersions"], json!([STATELESS_VERSION]));
    assert_eq!(result["resultType"], "complete");
    assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "private");
    let server_info = "io.modelcontextprotocol/serverInfo";
    assert_eq!(result["_meta"][server_info]["name"], "marshal");
    let listed = ask(&mut server, "tools/list", &json!({}));
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(5));
    assert_eq!(listed["result"]["resultType"], "complete");

    let step = json!({"name": "plan_step", "arguments": {"step": "a", "status": "done"}});
    let called = feed(
        &mut server,
        &alone(2, "tools/call", STATELESS_VERSION, &step),
    );
    let [Effect::Call { number, .. }] = *called else {
        panic!("{called:?}");
    };
    let mut out = Vec::new();
    server.answer_call(number, &Ok("noted".to_owned().into()), &mut out);
    let answer = written_messages(&out).remove(0);
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_eq!(answer["result"]["content"][0]["text"], "noted");

    // What this version does not have, what it needs, and other versions.
    for method in ["ping", "initialize", "resources/list"] {
        assert_eq!(
            code(&ask(&mut server, method, &json!({}))),
            -32601,
            "{method}"
        );
    }
    let bare = json!({"jsonrpc": "2.0", "id": 3, "method": "server/discover"});
    assert_eq!(code(&reply_to(&mut server, &bare)), -32602);
    let mut without = alone(4, "tools/list", STATELESS_VERSION, &json!({}));
    without["params"]["_meta"][message::CAPABILITIES_KEY] = json!(true);
    assert_eq!(code(&reply_to(&mut server, &without)), -32602);
    for version in ["2027-01-01", "2025-11-25"] {
        let refused = reply_to(&mut server, &alone(5, "tools/list", version, &json!({})));
        assert_eq!(code(&refused), -32022, "{refused}");
        let data = json!({"supported": [STATELESS_VERSION], "requested": version});
        assert_eq!(refused["error"]["data"], data);
    }
    // The same connection may begin with a handshake after all, whose answers are as they were.
    let reply = reply_to(&mut server, &hello("2025-11-25"));
    assert!(reply["result"]["resultType"].is_null(), "{reply}");
    let list = json!({"jsonrpc": "2.0", "id": 6, "method": "tools/list"});
    assert!(reply_to(&mut server, &list)["result"]["resultType"].is_null());
}

#[test]
fn each_schema_takes_what_the_reader_takes_and_names_its_members() {
    let arguments = |tool| match tool {
        EngineTool::WriteFile => json!({"path": "/w/a", "content": "x", "base": 1}),
        EngineTool::EditFile => {
            json!({"path": "/w/a", "old_text": "x", "new_text": "", "replace_all": true, "base": 1})
        }
        EngineTool::ReadFile => json!({"path": "/w/a", "line": 2, "limit": 3}),
        EngineTool::AskPerson => json!({"question": "?", "options": ["a", "b"]}),
        EngineTool::PlanStep => json!({"step": "a", "status": "blocked"}),
    };
    let listed = schema::list(EngineTool::ALL, Era::Handshake);
    for (at, tool) in EngineTool::ALL.iter().enumerate() {
        let schema = &listed["tools"][at];
        assert_eq!(schema["name"], tool.as_str());
        let schema = &schema["inputSchema"];
        let full = arguments(*tool);
        let names: Vec<&String> = full.as_object().expect("an object").keys().collect();
        let known: Vec<&String> = schema["properties"]
            .as_object()
            .expect("one")
            .keys()
            .collect();
        assert_eq!(names, known, "{tool}");
        let mut server = open("2025-06-18");
        let effects = feed(&mut server, &call(1, tool.as_str(), &full));
        assert!(
            matches!(&effects[..], [Effect::Call { .. }]),
            "{tool}: {effects:?}"
        );
        let required = schema["required"].as_array().expect("a list");
        for (id, name) in (2..).zip(names) {
            // What is required is missed, what is not may be left out; another type never fits.
            let mut less = full.clone();
            less.as_object_mut().expect("an object").remove(name);
            let is_required = required.iter().any(|item| item == name);
            let mut server = open("2025-06-18");
            let effects = feed(&mut server, &call(id, tool.as_str(), &less));
            assert_eq!(
                matches!(&effects[..], [Effect::Call { .. }]),
                !is_required,
                "{tool} {name}"
            );
            let mut other = full.clone();
            other[name] = json!({"x": 1});
            assert_eq!(
                code(&reply_to(&mut server, &call(99, tool.as_str(), &other))),
                -32602
            );
        }
        let mut more = full.clone();
        more["surplus"] = json!(1);
        assert_eq!(
            code(&reply_to(&mut server, &call(50, tool.as_str(), &more))),
            -32602
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_with_a_word() {
    let mut server = open("2025-11-25");
    let long = "x".repeat(CLIENT_FILE_BYTES + 1);
    let many: Vec<String> = (0..=TOOL_OPTIONS).map(|n| n.to_string()).collect();
    for (name, arguments, word) in [
        (
            "write_file",
            json!({"path": "/w/a", "content": long}),
            "longer than",
        ),
        (
            "write_file",
            json!({"path": "", "content": ""}),
            "path is empty",
        ),
        ("write_file", json!({"path": "/w/a"}), "content"),
        (
            "edit_file",
            json!({"path": "/w/a", "old_text": "", "new_text": "x"}),
            "old_text is empty",
        ),
        (
            "read_file",
            json!({"path": "/w/a", "line": 0}),
            "count from 1",
        ),
        ("ask_person", json!({"question": " "}), "question is empty"),
        (
            "ask_person",
            json!({"question": "x".repeat(5000)}),
            "longer than",
        ),
        (
            "ask_person",
            json!({"question": "?", "options": many}),
            "options",
        ),
        (
            "plan_step",
            json!({"step": "a", "status": "over"}),
            "pending, running, done, blocked",
        ),
        ("run", json!({}), "unknown tool"),
    ] {
        let reply = reply_to(&mut server, &call(7, name, &arguments));
        assert_eq!(code(&reply), -32602, "{name} {reply}");
        let why = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(why.contains(word), "{name}: {why}");
    }
    // What the pool does not offer is not there.
    let mut server = Server::new(&[EngineTool::ReadFile]);
    reply_to(&mut server, &hello("2025-11-25"));
    let write = call(1, "write_file", &json!({"path": "/w/a", "content": ""}));
    assert_eq!(code(&reply_to(&mut server, &write)), -32602);
}

#[test]
fn answers_go_to_their_calls_and_late_ones_nowhere() {
    let mut server = open("2025-06-18");
    let step = json!({"step": "a", "status": "done"});
    let effects = feed(&mut server, &call(1, "plan_step", &step));
    let [
        Effect::Call {
            number: first,
            call: item,
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    let status = StepStatus::Done;
    assert_eq!(
        **item,
        EngineCall::Step {
            step: "a".to_owned(),
            status
        }
    );
    assert_eq!(
        code(&reply_to(&mut server, &call(1, "plan_step", &step))),
        -32600
    );
    let effects = feed(&mut server, &call(2, "plan_step", &step));
    let [Effect::Call { number: second, .. }] = &effects[..] else {
        panic!("{effects:?}");
    };
    let mut out = Vec::new();
    let denied = Err(ClientError::new(ClientErrorKind::Denied, "not \"here\""));
    server.answer_call(*second, &denied, &mut out);
    assert_eq!(
        written_messages(&out),
        [json!({"jsonrpc": "2.0", "id": 2, "result": {
            "content": [{"type": "text", "text": "denied: not \"here\""}], "isError": true,
        }})]
    );
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}});
    assert_eq!(feed(&mut server, &cancel), [Effect::Cancelled(*first)]);
    assert_eq!(feed(&mut server, &cancel), []);
    let mut out = Vec::new();
    server.answer_call(*first, &Ok("late".to_owned().into()), &mut out);
    assert_eq!(out, []);
    assert_eq!(server.open(), 0);
}

#[test]
fn so_many_calls_are_under_way_and_no_more() {
    let mut server = open("2025-06-18");
    let step = json!({"step": "a", "status": "done"});
    for id in 0..TOOL_CALLS as u64 {
        let effects = feed(&mut server, &call(id, "plan_step", &step));
        assert!(matches!(&effects[..], [Effect::Call { .. }]));
    }
    assert_eq!(
        code(&reply_to(&mut server, &call(99, "plan_step", &step))),
        -32603
    );
    let mut out = Vec::new();
    server.answer_call(1, &Ok(String::new().into()), &mut out);
    let effects = feed(&mut server, &call(100, "plan_step", &step));
    assert!(matches!(&effects[..], [Effect::Call { .. }]));
}

#[test]
fn a_line_that_is_no_message_is_answered_and_the_next_one_counts() {
    let mut server = open("2025-06-18");
    for (line, expected) in [
        (&b"{"[..], -32700),
        (b"\xff\xfe", -32700),
        (b"{} {}", -32700),
        (b"7", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, -32600),
        (
            br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            -32600,
        ),
        (b"[]", -32600),
    ] {
        let mut out = Vec::new();
        server.handle_line(line, &mut out);
        let lines = written_messages(&out);
        assert_eq!(lines.len(), 1, "{line:?}");
        assert_eq!(
            code(&lines[0]),
            expected,
            "{}",
            String::from_utf8_lossy(line)
        );
        assert_eq!(lines[0]["id"], Value::Null);
    }
    let reply = json!({"jsonrpc": "2.0", "id": 9, "result": {}});
    assert_eq!(feed(&mut server, &reply), []);
    let ping = json!({"jsonrpc": "2.0", "id": -3, "method": "ping"});
    assert_eq!(reply_to(&mut server, &ping)["id"], -3);
}

#[test]
fn batches_are_for_the_version_that_has_them() {
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let both = json!([ping, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]);
    let mut server = open("2025-03-26");
    assert_eq!(written_messages(&feed(&mut server, &both)).len(), 2);
    assert_eq!(code(&reply_to(&mut server, &json!([]))), -32600);
    let many = json!(vec![ping; TOOL_BATCH + 1]);
    assert_eq!(code(&reply_to(&mut server, &many)), -32600);
    assert_eq!(code(&reply_to(&mut open("2025-06-18"), &both)), -32600);
}

/// Something like a message, now and then one.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let id = prop_oneof![
        (0..4_u64).prop_map(|n| json!(n)),
        "[a-c]{0,2}".prop_map(|text| json!(text)),
        Just(Value::Null),
        Just(json!(1.5)),
    ];
    let method = prop_oneof![
        Just("initialize"),
        Just("ping"),
        Just("tools/list"),
        Just("tools/call"),
        Just("notifications/cancelled"),
        Just("notifications/initialized"),
        Just("x"),
    ];
    let params = prop_oneof![
        Just(json!({"protocolVersion": "2025-03-26"})),
        Just(json!({"name": "plan_step", "arguments": {"step": "a", "status": "done"}})),
        Just(json!({"name": "write_file", "arguments": {"path": "/w", "content": "\u{0}\n"}})),
        Just(json!({"name": "read_file", "arguments": []})),
        (0..4_u64).prop_map(|n| json!({"requestId": n})),
        Just(Value::Null),
        Just(json!("x")),
    ];
    let message = (id, method, params, any::<bool>()).prop_map(|(id, method, params, asks)| {
        let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        if asks {
            message["id"] = id;
        }
        message
    });
    let batch = proptest::collection::vec(message.clone(), 0..4);
    prop_oneof![
        6 => message.prop_map(|message| message.to_string().into_bytes()),
        1 => batch.prop_map(|batch| json!(batch).to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
        1 => "[\\[\\]{}\",:0-9a-z]{0,40}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_nothing_breaks_and_nothing_grows(
        steps in proptest::collection::vec((lines(), any::<bool>()), 0..60)
    ) {
        let mut server = Server::new(EngineTool::ALL);
        let mut waiting = Vec::new();
        for (line, answers) in steps {
            let mut out = Vec::new();
            server.handle_line(&line, &mut out);
            // At most one line or call for each message.
            let most = (line.split(|b| *b == b'{').count() - 1).max(1);
            prop_assert!(out.len() <= most);
            for effect in &out {
                match effect {
                    Effect::Call { number, .. } => waiting.push(*number),
                    Effect::Cancelled(number) => {
                        prop_assert!(waiting.contains(number));
                        waiting.retain(|item| item != number);
                    }
                    Effect::Write(line) => {
                        let reply: Value = serde_json::from_slice(line).expect("JSON");
                        prop_assert_eq!(reply["jsonrpc"].as_str(), Some("2.0"));
                    }
                }
            }
            if answers && let Some(number) = waiting.pop() {
                let mut out = Vec::new();
                server.answer_call(number, &Ok("x".to_owned().into()), &mut out);
                prop_assert_eq!(out.len(), 1);
            }
            prop_assert_eq!(server.open(), waiting.len());
            prop_assert!(server.open() <= TOOL_CALLS);
        }
    }
}
