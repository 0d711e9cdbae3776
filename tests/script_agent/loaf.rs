//! loaf's RPC, protocol 1: the same steps in the third form.

use std::time::Duration;

use serde_json::{Value, json};

use crate::controller::{Agent, ledger};

/// A client of an agent.
struct Client {
    agent: Agent,
    session: String,
    /// Of its own requests.
    next: u64,
}

impl Client {
    fn new(flags: &[&str]) -> Self {
        let mut client = Self::bare(Agent::spawn_loaf(flags));
        let reply = client.ask("session.create", &json!({"title": "t"}));
        client.session = reply["result"]["session_id"]
            .as_str()
            .unwrap_or_else(|| panic!("{reply}"))
            .to_owned();
        client
    }

    /// An agent to which nothing was said.
    fn bare(agent: Agent) -> Self {
        Self {
            agent,
            session: String::new(),
            next: 7,
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.agent
            .send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a request and gives its reply; events and other replies before it are dropped.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        self.reply(id)
    }

    fn reply(&mut self, id: u64) -> Value {
        loop {
            let line = self.agent.line();
            if line["id"] == id {
                return line;
            }
        }
    }

    fn of_session(&mut self, method: &str) -> Value {
        let params = json!({"session_id": self.session});
        self.ask(method, &params)["result"].clone()
    }

    fn send(&mut self, script: &str) -> u64 {
        let params = json!({"session_id": self.session, "text": script});
        self.request("session.send", &params)
    }

    /// Everything up to the status that says that nothing runs.
    fn rest_of_turn(&mut self) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let line = self.agent.line();
            let payload = &line["params"]["payload"];
            let is_over = payload["pending"] == false;
            lines.push(line);
            if is_over {
                return lines;
            }
        }
    }

    fn turn(&mut self, script: &str) -> Vec<Value> {
        self.send(script);
        self.rest_of_turn()
    }

    /// Waits for an event.
    fn until(&mut self, kind: &str) -> Value {
        loop {
            let line = self.agent.line();
            if line["params"]["type"] == kind {
                return line["params"]["payload"].clone();
            }
        }
    }
}

/// What each message is, neighbours of the same kind once; a reply is `reply`.
fn shape(lines: &[Value]) -> Vec<&str> {
    let kind = |line: &Value| line.get("id").is_some();
    let mut kinds: Vec<&str> = lines
        .iter()
        .map(|line| match line["params"]["type"].as_str() {
            _ if kind(line) => "reply",
            Some(kind) => kind,
            None => "?",
        })
        .collect();
    kinds.dedup();
    kinds
}

fn payloads<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let of = lines.iter().filter(|line| line["params"]["type"] == kind);
    of.map(|line| &line["params"]["payload"]).collect()
}

fn text(lines: &[Value]) -> String {
    payloads(lines, "session.stream.chunk")
        .iter()
        .map(|payload| payload["chunk"]["answerText"].as_str().unwrap())
        .collect()
}

fn fault(reply: &Value) -> (i64, &str) {
    let error = &reply["error"];
    (
        error["code"].as_i64().unwrap_or_else(|| panic!("{reply}")),
        error["data"]["reason"].as_str().unwrap_or_default(),
    )
}

#[test]
fn the_handshake_is_optional_and_strict_only_where_it_is_asked_to_be() {
    let mut client = Client::bare(Agent::spawn_loaf(&[]));
    assert!(client.agent.is_silent(Duration::from_millis(100)));
    assert_eq!(client.ask("system.ping", &json!({}))["result"]["ok"], true);
    let reply = client.ask("rpc.handshake", &json!({"protocol_version": "9.0.0"}));
    let result = &reply["result"];
    assert_eq!(result["protocol_version"], "1.0.0", "{reply}");
    assert_eq!(result["capabilities"]["events"], true);
    let methods = result["methods"].as_array().unwrap();
    assert!(methods.contains(&json!("session.steer")), "{reply}");
    for method in methods {
        let reply = client.ask(method.as_str().unwrap(), &json!({}));
        assert_ne!(reply["error"]["code"], -32601, "{method} is served");
        if method == "rpc.handshake" || method == "system.ping" {
            assert!(reply["result"].is_object(), "{reply}");
        }
    }
}

#[test]
fn a_strict_handshake_refuses_another_version_and_names_its_own() {
    let strict = json!({"protocol_version": "1.0.0", "strict": true});
    for (claim, expect) in [
        ("2", Err(json!("2.0.0"))),
        ("v2", Err(json!("2.0.0"))),
        ("1.4.0", Err(json!("1.4.0"))),
        ("error", Err(json!("0.0.0"))),
        ("1", Ok(json!("1.0.0"))),
        ("echo", Ok(json!("1.0.0"))),
        ("none", Ok(json!(null))),
    ] {
        let mut client = Client::bare(Agent::spawn_loaf(&["--protocol", claim]));
        let reply = client.ask("rpc.handshake", &strict);
        match expect {
            Ok(version) => assert_eq!(reply["result"]["protocol_version"], version, "{claim}"),
            Err(version) => {
                assert_eq!(fault(&reply), (-32602, "unsupported_protocol_version"));
                assert_eq!(reply["error"]["data"]["supported"], version, "{claim}");
            }
        }
    }
}

#[test]
fn a_turn_has_the_shape_of_the_protocol_and_nobody_is_asked() {
    let mut client = Client::new(&[]);
    let turn = client.turn("write sub/a.txt hello\nthink hm\nsay done");
    assert_eq!(
        shape(&turn),
        [
            "session.status",
            "reply",
            "session.status",
            "session.stream.chunk",
            "session.tool.call.started",
            "session.tool.call.completed",
            "session.tool.results",
            "session.stream.chunk",
            "session.message.appended",
            "session.completed",
            "session.status",
        ],
        "the status comes before the reply"
    );
    let ack = &turn.iter().find(|line| line.get("id").is_some()).unwrap()["result"];
    assert_eq!(
        ack,
        &json!({"session_id": client.session, "turn_id": "t-1", "accepted": true, "queued": false})
    );
    assert_eq!(payloads(&turn, "session.status")[0]["turn_id"], "t-1");
    let input = json!({"path": "sub/a.txt", "content": "hello\n"});
    let call = &payloads(&turn, "session.tool.call.started")[0]["data"]["call"];
    assert_eq!(
        call,
        &json!({"name": "write_file", "input": input, "providerToolName": "write_file", "callId": "call_1"})
    );
    let end = &payloads(&turn, "session.tool.call.completed")[0]["data"]["executed"];
    assert_eq!((&end["ok"], &end["input"]), (&json!(true), &input));
    assert_eq!(end.get("callId"), None, "an end does not name its call");
    let thoughts = payloads(&turn, "session.stream.chunk");
    let thought = thoughts
        .iter()
        .find(|of| of["chunk"]["thoughts"] == json!(["hm"]));
    assert!(thought.is_some(), "{turn:?}");
    let shown = text(&turn);
    assert!(shown.ends_with("done\n"), "{shown}");
    let completed = payloads(&turn, "session.completed")[0];
    assert_eq!(completed["answer_length"], shown.len());
    let at = client.agent.path().join("sub/a.txt");
    assert_eq!(std::fs::read_to_string(at).unwrap(), "hello\n");
    // There are no words for it.
    let shown = text(&client.turn("ask 3\npending 3"));
    assert_eq!(shown.matches("no words to ask").count(), 2, "{shown}");
}

#[test]
fn a_busy_session_and_an_unknown_one_are_internal_errors() {
    let mut client = Client::new(&[]);
    client.send("sleep 1h");
    client.until("session.status");
    let again = client.send("say x");
    let reply = client.reply(again);
    assert_eq!(fault(&reply), (-32603, "internal_error"));
    assert!(reply["error"]["message"].as_str().unwrap().contains("busy"));
    for method in [
        "session.get",
        "session.send",
        "session.interrupt",
        "session.queue.list",
    ] {
        let reply = client.ask(method, &json!({"session_id": "none", "text": "x"}));
        assert_eq!(fault(&reply), (-32603, "internal_error"), "{method}");
    }
    let reply = client.ask(
        "session.send",
        &json!({"session_id": client.session, "text": " "}),
    );
    assert_eq!(fault(&reply).0, -32603);
    assert_eq!(
        fault(&client.ask("session.send", &json!({}))),
        (-32602, "invalid_params")
    );
    assert_eq!(
        fault(&client.ask("auth.status", &json!({}))),
        (-32601, "method_not_found")
    );
}

#[test]
fn a_prompt_that_is_queued_runs_when_the_turn_before_it_ended_or_is_cleared() {
    let mut client = Client::new(&[]);
    client.send("sleep 1h");
    client.until("session.status");
    let (queue, session) = (json!(true), json!(client.session));
    let send = |text: &str| json!({"session_id": session, "text": text, "enqueue": queue});
    let reply = client.ask("session.send", &send("say dropped"))["result"].clone();
    assert_eq!(
        (&reply["queued"], &reply["turn_id"]),
        (&json!(true), &json!("t-2"))
    );
    assert_eq!(
        client.of_session("session.queue.list")["queue"][0]["id"],
        "t-2"
    );
    assert_eq!(client.of_session("session.queue.clear")["cleared_count"], 1);
    assert_eq!(client.of_session("session.queue.clear")["cleared_count"], 0);
    client.ask("session.send", &send("say kept"));
    assert_eq!(client.of_session("session.interrupt")["interrupted"], true);
    client.until("session.interrupted");
    assert_eq!(client.until("session.completed")["turn_id"], "t-3");
    assert_eq!(client.of_session("session.queue.list")["queue"], json!([]));
}

#[test]
fn an_interrupt_ends_a_turn_that_runs_and_finds_nothing_else() {
    let mut client = Client::new(&[]);
    assert_eq!(client.of_session("session.interrupt")["interrupted"], false);
    client.send("say first\nrun sleep 1000");
    client.until("session.tool.call.started");
    assert_eq!(client.of_session("session.interrupt")["interrupted"], true);
    let rest = client.rest_of_turn();
    let ended = payloads(&rest, "session.interrupted");
    assert_eq!(ended[0]["partial_output"], true, "{rest:?}");
    assert!(payloads(&rest, "session.completed").is_empty());
}

#[test]
fn a_turn_is_steered_by_further_steps() {
    let mut client = Client::new(&[]);
    let steer = |session: &str| json!({"session_id": session, "text": "say steered"});
    let session = client.session.clone();
    let reply = client.ask("session.steer", &steer(&session));
    assert_eq!(reply["result"]["accepted"], false, "nothing runs");
    client.send("say first\nsleep 3s");
    client.until("session.stream.chunk");
    let reply = client.ask("session.steer", &steer(&session));
    assert_eq!(reply["result"]["accepted"], true);
    let rest = client.rest_of_turn();
    assert!(text(&rest).ends_with("steered\n"), "{rest:?}");
}

#[test]
fn a_shutdown_ends_the_turn_and_hears_no_more_but_the_process_stays() {
    let mut client = Client::new(&["--ledger", "ledger"]);
    client.send("sleep 1h");
    client.until("session.status");
    let reply = client.ask("system.shutdown", &json!({"reason": "enough"}));
    assert_eq!(
        reply["result"],
        json!({"accepted": true, "reason": "enough"})
    );
    client.until("session.interrupted");
    client.until("session.status");
    client.request("system.ping", &json!({}));
    assert!(client.agent.is_silent(Duration::from_millis(300)));
    assert!(client.agent.child.try_wait().unwrap().is_none(), "it stays");
    client.agent.hang_up();
    assert_eq!(client.agent.raw(), None);
    assert!(client.agent.child.wait().unwrap().success());
    let entries = ledger(&client.agent.path().join("ledger"));
    assert!(entries.iter().any(|entry| entry["kind"] == "shutdown"));
}

#[test]
fn models_and_commands() {
    let mut client = Client::new(&["--model", "big"]);
    let list = client.ask("model.list", &json!({}))["result"].clone();
    let ids: Vec<&Value> = list["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| &of["id"])
        .collect();
    assert_eq!(ids, ["script", "script-mini", "big"]);
    assert_eq!(list["selected_model"], "big");
    let select =
        |model: &str| json!({"model_id": model, "provider": "script", "thinking_level": "OFF"});
    assert_eq!(
        fault(&client.ask("model.select", &select("huge"))).0,
        -32603
    );
    client.request("model.select", &select("script-mini"));
    let changed = client.until("state.changed");
    assert_eq!(changed["snapshot"]["model"]["selectedModel"], "script-mini");
    let mut command = |raw: &str| {
        let params = json!({"session_id": client.session, "raw_command": raw});
        client.ask("command.execute", &params)["result"].clone()
    };
    assert_eq!(command("model"), json!({"handled": false}));
    assert_eq!(command("/model")["output"]["selected_model"], "script-mini");
    assert_eq!(command("/tools")["output"]["tools"][0]["name"], "read_file");
    assert_eq!(command("/no")["output"]["error"], "unknown command: /no");
    assert_eq!(command("/quit")["output"]["shutting_down"], true);
}

#[test]
fn what_is_no_request_is_refused_and_a_batch_is_none() {
    let mut client = Client::new(&[]);
    for (line, code) in [
        ("hello", -32700),
        ("[]", -32600),
        (
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"system.ping\"}]",
            -32600,
        ),
        (
            "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"system.ping\"}",
            -32600,
        ),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", -32600),
    ] {
        client.agent.write(format!("{line}\n").as_bytes());
        let reply = client.agent.line();
        assert_eq!(
            (fault(&reply).0, &reply["id"]),
            (code, &Value::Null),
            "{line}"
        );
    }
    // A notification of the client's is ignored.
    client
        .agent
        .send(&json!({"jsonrpc": "2.0", "method": "session.interrupt"}));
    assert_eq!(client.ask("system.ping", &json!({}))["result"]["ok"], true);
}

#[test]
fn a_session_is_taken_up_by_another_process() {
    let mut client = Client::new(&[]);
    client.turn("say once upon a time");
    let mut other = Client::bare(client.agent.again(&[]));
    other.session.clone_from(&client.session);
    let state = other.of_session("session.get");
    assert_eq!(
        (&state["id"], &state["pending"]),
        (&json!(client.session), &json!(false))
    );
    assert!(text(&other.turn("recall")).contains("say once upon a time"));
    let mut forgetful = Client::bare(client.agent.again(&["--forget"]));
    let reply = forgetful.ask("session.get", &json!({"session_id": client.session}));
    assert_eq!(fault(&reply), (-32603, "internal_error"));
}

#[test]
fn drills_misbehave_in_this_form_too() {
    let mut client = Client::new(&[]);
    client.send("garbage 5\nraw {\"turn\":{reply},\"session\":\"{session}\"}\nflood 3 300\nsay on");
    client.until("session.status");
    let mut broken = 0;
    let mut lines = Vec::new();
    loop {
        let line = client.agent.raw().unwrap();
        let Ok(line) = serde_json::from_slice::<Value>(&line) else {
            broken += 1;
            continue;
        };
        let is_over = line["params"]["payload"]["pending"] == false;
        lines.push(line);
        if is_over {
            break;
        }
    }
    assert_eq!(broken, 3);
    let raw = lines
        .iter()
        .find(|line| line.get("turn").is_some())
        .unwrap();
    assert_eq!(
        (&raw["turn"], &raw["session"]),
        (&json!("t-1"), &json!(client.session))
    );
    assert_eq!(payloads(&lines, "no.such.event").len(), 1);
    assert!(text(&lines).ends_with("on\n"));
    client.send("exit 3");
    while client.agent.raw().is_some() {}
    assert_eq!(client.agent.child.wait().unwrap().code(), Some(3));
}
