//! Claude Code's stream-json: the same steps in the fourth form, and how strict it is.

use serde_json::{Value, json};

use crate::controller::{Agent, claude, ledger};

const ID: &str = "0198f4a0-0000-7000-8000-000000000001";

/// A host of an agent.
struct Host {
    agent: Agent,
    /// Of its own requests and prompts.
    next: u64,
}

impl Host {
    fn new(flags: &[&str]) -> Self {
        let mut host = Self::bare(Agent::spawn_claude(flags));
        host.initialize();
        host
    }

    /// An agent to which nothing was said.
    fn bare(agent: Agent) -> Self {
        Self { agent, next: 0 }
    }

    fn initialize(&mut self) -> Value {
        let hook = json!([{"matcher": null, "hookCallbackIds": ["mine"]}]);
        let reply = self.ask(&json!({"subtype": "initialize", "hooks": {"PreToolUse": hook}}));
        assert_eq!(reply["subtype"], "success", "{reply}");
        reply["response"].clone()
    }

    /// Sends a request and gives what its reply says; messages before it are dropped.
    fn ask(&mut self, request: &Value) -> Value {
        self.next += 1;
        let id = format!("q-{}", self.next);
        self.agent
            .send(&json!({"type": "control_request", "request_id": id, "request": request}));
        loop {
            let line = self.agent.line();
            if line["response"]["request_id"] == id {
                return line["response"].clone();
            }
        }
    }

    fn prompt(&mut self, script: &str) -> String {
        self.next += 1;
        let uuid = format!("p-{}", self.next);
        self.agent.send(&json!({
            "type": "user",
            "message": {"role": "user", "content": [{"type": "text", "text": script}]},
            "parent_tool_use_id": null,
            "session_id": "",
            "uuid": uuid,
        }));
        uuid
    }

    fn answer(&mut self, request: &Value, response: &Value) {
        let id = &request["request_id"];
        let inner = json!({"subtype": "success", "request_id": id, "response": response});
        self.agent
            .send(&json!({"type": "control_response", "response": inner}));
    }

    fn hook_asks(&mut self, request: &Value) {
        let output = json!({"hookEventName": "PreToolUse", "permissionDecision": "ask", "permissionDecisionReason": "so"});
        self.answer(request, &json!({"hookSpecificOutput": output}));
    }

    fn allow(&mut self, request: &Value) {
        let input = &request["request"]["input"];
        self.answer(
            request,
            &json!({"behavior": "allow", "updatedInput": input}),
        );
    }

    /// The next request of that kind; everything before it is dropped.
    fn until(&mut self, subtype: &str) -> Value {
        loop {
            let line = self.agent.line();
            if line["request"]["subtype"] == subtype {
                return line;
            }
        }
    }

    /// Asks what the hook and the host are asked, up to the host's own question.
    fn until_asked(&mut self) -> Value {
        let hook = self.until("hook_callback");
        self.hook_asks(&hook);
        self.until("can_use_tool")
    }

    /// Everything up to the end of the prompt's life; every call is allowed.
    fn rest(&mut self) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let line = self.agent.line();
            match line["request"]["subtype"].as_str() {
                Some("hook_callback") => self.hook_asks(&line),
                Some("can_use_tool") => self.allow(&line),
                _ => {}
            }
            let is_over = line["state"] == "completed" || line["state"] == "cancelled";
            lines.push(line);
            if is_over {
                return lines;
            }
        }
    }

    fn turn(&mut self, script: &str) -> Vec<Value> {
        self.prompt(script);
        self.rest()
    }
}

/// What each message is, neighbours of the same kind once.
fn shape(lines: &[Value]) -> Vec<String> {
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let mut kinds: Vec<String> = lines
        .iter()
        .filter_map(|line| {
            word(&line["request"]["subtype"])
                .or_else(|| word(&line["event"]["delta"]["type"]))
                .or_else(|| word(&line["event"]["type"]))
                .or_else(|| word(&line["state"]))
                .or_else(|| word(&line["subtype"]))
                .or_else(|| word(&line["type"]))
        })
        .collect();
    kinds.dedup();
    kinds
}

/// What was streamed.
fn streamed(lines: &[Value]) -> String {
    let deltas = lines
        .iter()
        .filter_map(|line| line["event"]["delta"]["text"].as_str());
    deltas.collect()
}

/// The whole blocks of its messages, in their order.
fn blocks(lines: &[Value]) -> Vec<&Value> {
    let spoken = lines.iter().filter(|line| line["type"] == "assistant");
    spoken.map(|line| &line["message"]["content"][0]).collect()
}

fn result(lines: &[Value]) -> &Value {
    let mut results = lines.iter().filter(|line| line["type"] == "result");
    let result = results.next().expect("a result");
    assert!(results.next().is_none(), "{lines:?}");
    result
}

/// Waits for the end; the code, and what it said last on stderr.
fn ends(agent: &mut Agent) -> (Option<i32>, String) {
    while agent.raw().is_some() {}
    let code = agent.exit().code();
    (code, agent.stderr())
}

#[test]
fn the_first_reply_names_the_version_and_the_mode_and_each_turn_does_again() {
    for (claim, said) in [
        (None, json!("2.1.330")),
        (Some("2.0.1"), json!("2.0.1")),
        (Some("3"), json!("3.0.0")),
        (Some("none"), Value::Null),
    ] {
        let flags: Vec<&str> = claim
            .iter()
            .flat_map(|claim| ["--protocol", claim])
            .collect();
        let mut host = Host::bare(Agent::spawn_claude(&flags));
        let reply = host.initialize();
        assert_eq!(reply["claude_code_version"], said, "{claim:?}");
        assert_eq!(reply["current_permission_mode"], "default");
        assert_eq!(reply["hooks_applied"], true);
        let turn = host.turn("say hi");
        let init = turn.iter().find(|line| line["subtype"] == "init").unwrap();
        assert_eq!(init["claude_code_version"], said, "{claim:?}");
    }
    let mut host = Host::bare(Agent::spawn_claude(&["--protocol", "error"]));
    let reply = host.ask(&json!({"subtype": "initialize"}));
    assert_eq!(reply["subtype"], "error");
}

#[test]
fn a_turn_is_streamed_told_whole_and_asked_about_first_by_the_hook() {
    let mut host = Host::new(&["--session-id", ID]);
    let turn = host.turn("think hm\nwrite sub/a.txt hello\nsay all done");
    assert_eq!(
        shape(&turn),
        [
            "queued",
            "started",
            "init",
            "status",
            "message_start",
            "content_block_start",
            "thinking_delta",
            "content_block_stop",
            "assistant",
            "content_block_start",
            "text_delta",
            "content_block_stop",
            "assistant",
            "content_block_start",
            "input_json_delta",
            "content_block_stop",
            "assistant",
            "tool_use",
            "message_stop",
            "hook_callback",
            "can_use_tool",
            "user",
            "message_start",
            "content_block_start",
            "text_delta",
            "content_block_stop",
            "assistant",
            "end_turn",
            "message_stop",
            "success",
            "completed",
        ]
        .map(|kind| match kind {
            // The end of a message is told as a change of it.
            "tool_use" | "end_turn" => "message_delta",
            kind => kind,
        })
    );
    let blocks = blocks(&turn);
    assert_eq!(blocks[0]["thinking"], "hm");
    let input = json!({"file_path": "sub/a.txt", "content": "hello\n"});
    assert_eq!(
        (&blocks[2]["name"], &blocks[2]["input"]),
        (&json!("Write"), &input)
    );
    let whole: String = blocks
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect();
    assert_eq!(whole, streamed(&turn));
    assert!(whole.ends_with("all done\n"), "{whole}");
    let hook = turn
        .iter()
        .find(|line| line["request"]["subtype"] == "hook_callback")
        .unwrap();
    assert_eq!(hook["request"]["callback_id"], "mine");
    assert_eq!(hook["request"]["input"]["tool_input"], input);
    let result = result(&turn);
    assert_eq!(
        (&result["session_id"], &result["is_error"]),
        (&json!(ID), &json!(false))
    );
    assert!(result["usage"]["input_tokens"].as_u64() > Some(0));
    let first = result["total_cost_usd"].as_f64().unwrap();
    assert!(first > 0.0);
    let at = host.agent.path().join("sub/a.txt");
    assert_eq!(std::fs::read_to_string(at).unwrap(), "hello\n");
    // The cost is the process's.
    let turn = host.turn("say more");
    assert!(
        crate::claude::result(&turn)["total_cost_usd"]
            .as_f64()
            .unwrap()
            > first
    );
}

#[test]
fn who_wants_no_pieces_gets_whole_blocks_alone() {
    let words: Vec<&str> = claude(&[])
        .into_iter()
        .filter(|word| *word != "--include-partial-messages")
        .collect();
    let mut agent = Agent::spawn_claude(&[]);
    agent.hang_up();
    let mut host = Host::bare(agent.again(&words));
    host.initialize();
    let turn = host.turn("say one two");
    assert_eq!(
        shape(&turn),
        [
            "queued",
            "started",
            "init",
            "status",
            "assistant",
            "success",
            "completed"
        ]
    );
    assert_eq!(blocks(&turn)[0]["text"], "one two\n");
}

#[test]
fn a_denial_is_what_the_model_hears_and_the_turn_goes_on() {
    let mut host = Host::new(&[]);
    host.prompt("run touch never\nsay on");
    let requested = host.until_asked();
    assert_eq!(requested["request"]["tool_name"], "Bash");
    assert_eq!(requested["request"]["decision_reason"], "so");
    host.answer(
        &requested,
        &json!({"behavior": "deny", "message": "not here"}),
    );
    let rest = host.rest();
    let reported = rest.iter().find(|line| line["type"] == "user").unwrap();
    let reported = &reported["message"]["content"][0];
    assert_eq!(
        (&reported["content"], &reported["is_error"]),
        (&json!("not here"), &json!(true))
    );
    assert!(streamed(&rest).contains("on\n"));
    assert!(!host.agent.path().join("never").exists());
    // The hook can say both by itself.
    host.prompt("run touch never\nrun touch made");
    let says = |decision: &str| json!({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": "by hook"}});
    let hook = host.until("hook_callback");
    host.answer(&hook, &says("deny"));
    let hook = host.until("hook_callback");
    host.answer(&hook, &says("allow"));
    let rest = host.rest();
    assert!(!shape(&rest).contains(&"can_use_tool".to_owned()));
    assert!(!host.agent.path().join("never").exists());
    assert!(host.agent.path().join("made").exists());
}

#[test]
fn without_a_hook_its_own_rules_hold_and_what_reads_is_not_asked_for() {
    let mut host = Host::bare(Agent::spawn_claude(&[]));
    let reply = host.ask(&json!({"subtype": "initialize"}));
    assert_eq!(reply["response"]["hooks_applied"], false);
    let turn = host.turn("list\nrun true");
    let requested: Vec<&Value> = turn
        .iter()
        .filter(|line| line["type"] == "control_request")
        .map(|line| &line["request"]["tool_name"])
        .collect();
    assert_eq!(requested, ["Bash"]);
    assert_eq!(blocks(&turn)[1]["name"], "LS");
}

#[test]
fn an_interrupt_withdraws_what_is_open_and_ends_the_turn() {
    let mut host = Host::new(&[]);
    host.prompt("run touch never");
    let requested = host.until_asked();
    host.agent.send(&json!({"type": "control_request", "request_id": "stop", "request": {"subtype": "interrupt"}}));
    let reply = host.agent.line();
    assert_eq!(reply["response"]["request_id"], "stop");
    assert_eq!(reply["response"]["response"]["still_queued"], json!([]));
    let withdrawn = host.agent.line();
    assert_eq!(withdrawn["type"], "control_cancel_request");
    assert_eq!(withdrawn["request_id"], requested["request_id"]);
    // It crossed with the answer, which is nothing to be wrong about.
    host.allow(&requested);
    let rest = host.rest();
    assert_eq!(result(&rest)["subtype"], "error_during_execution");
    assert_eq!(rest.last().unwrap()["state"], "cancelled");
    assert!(!host.agent.path().join("never").exists());
    // Between turns there is nothing to end.
    assert_eq!(
        host.ask(&json!({"subtype": "interrupt"}))["subtype"],
        "success"
    );
    assert_eq!(result(&host.turn("say still here"))["subtype"], "success");
}

#[test]
fn it_withdraws_a_request_by_itself() {
    let mut host = Host::new(&[]);
    host.prompt("withdraw touch never\nsay on");
    let requested = host.until_asked();
    let withdrawn = host.agent.line();
    assert_eq!(withdrawn["type"], "control_cancel_request");
    assert_eq!(withdrawn["request_id"], requested["request_id"]);
    let rest = host.rest();
    assert!(
        streamed(&rest).ends_with("(the request was withdrawn).\n"),
        "{rest:?}"
    );
    assert!(!host.agent.path().join("never").exists());
}

#[test]
fn a_second_prompt_waits_for_the_first() {
    let mut host = Host::new(&[]);
    let first = host.prompt("sleep 1h");
    loop {
        if host.agent.line()["subtype"] == "init" {
            break;
        }
    }
    let second = host.prompt("say later");
    let reply = host.ask(&json!({"subtype": "interrupt"}));
    assert_eq!(reply["response"]["still_queued"], json!([second]));
    let rest = host.rest();
    assert_eq!(rest.last().unwrap()["command_uuid"], json!(first));
    let rest = host.rest();
    assert_eq!(rest.last().unwrap()["command_uuid"], json!(second));
    assert_eq!(streamed(&rest), "later\n");
}

#[test]
fn the_mode_and_the_model_are_set() {
    let mut host = Host::new(&[]);
    let mode = |mode: &str| json!({"subtype": "set_permission_mode", "mode": mode});
    assert_eq!(host.ask(&mode("plan"))["response"]["mode"], "plan");
    assert_eq!(host.ask(&mode("fast"))["subtype"], "error");
    let model = json!({"subtype": "set_model", "model": "large"});
    assert_eq!(host.ask(&model)["subtype"], "success");
    let turn = host.turn("say hi");
    let init = turn.iter().find(|line| line["subtype"] == "init").unwrap();
    assert_eq!(
        (&init["permissionMode"], &init["model"]),
        (&json!("plan"), &json!("large"))
    );
}

#[test]
fn a_session_is_gone_on_with_by_its_id_alone() {
    let mut host = Host::new(&["--session-id", ID]);
    host.turn("say once upon a time");
    let words = claude(&["--resume", ID]);
    let mut again = Host::bare(host.agent.again(&words));
    again.initialize();
    let turn = again.turn("recall");
    assert!(streamed(&turn).contains("say once upon a time"));
    assert_eq!(result(&turn)["session_id"], ID);
    // Its id is taken, and another one is not known.
    let mut taken = host.agent.again(&claude(&["--session-id", ID]));
    let (code, reported) = ends(&mut taken);
    assert_eq!(code, Some(1));
    assert!(reported.contains("already in use"), "{reported}");
    let other = ID.replace("01", "02");
    let mut unknown = host.agent.again(&claude(&["--resume", &other]));
    let result = unknown.line();
    assert_eq!(result["type"], "result");
    let why = result["errors"][0].as_str().unwrap();
    assert!(why.contains(&format!("No conversation found with session ID: {other}")));
    assert_eq!(ends(&mut unknown).0, Some(1));
}

#[test]
fn without_its_words_it_does_not_start_and_others_do_not_take_them() {
    let all = claude(&[]);
    for (missing, beside) in [
        ("--print", 0),
        ("--input-format", 1),
        ("--output-format", 1),
        ("--verbose", 0),
        ("--permission-prompt-tool", 1),
    ] {
        let at = all.iter().position(|word| *word == missing).unwrap();
        let mut words = all.clone();
        words.drain(at..=at + beside);
        let mut agent = Agent::spawn_codex(&[]);
        agent.hang_up();
        let command = std::process::Command::new(env!("CARGO_BIN_EXE_marshal"))
            .args(["script-agent", "--dialect", "claude"])
            .args(&words)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert_eq!(command.status.code(), Some(2), "{missing}");
        let printed = String::from_utf8_lossy(&command.stderr);
        assert!(printed.contains(missing), "{missing}: {printed}");
    }
    for (flags, says) in [
        (&["--print"][..], "is for --dialect claude"),
        (
            &["--permission-mode", "plan"][..],
            "unknown permission mode",
        ),
    ] {
        let mut agent = Agent::spawn_codex(flags);
        let (code, printed) = ends(&mut agent);
        assert_eq!(code, Some(2));
        assert!(printed.contains(says), "{printed}");
    }
}

#[test]
fn what_a_host_does_not_say_ends_it() {
    let request = |request: &str| {
        format!(r#"{{"type":"control_request","request_id":"x","request":{request}}}"#)
    };
    let answer = |id: &str, reported: &str| {
        format!(
            r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"{id}","response":{reported}}}}}"#
        )
    };
    let user = |more: &str| {
        format!(r#"{{"type":"user","message":{{"role":"user","content":"say x"}}{more}}}"#)
    };
    for (line, says) in [
        ("hello".to_owned(), "no JSON object"),
        (request(r#"{"subtype":"rewind_files"}"#), "no message here"),
        (request(r#"{"subtype":"initialize"}"#), "came twice"),
        (
            request(r#"{"subtype":"interrupt","turn":1}"#),
            "no message here",
        ),
        (user(r#","more":1"#), "no message here"),
        (user(r#","session_id":"other""#), "another session"),
        (user(r#","uuid":"p-2""#), "came before"),
        (answer("r-9", "{}"), "no request is open"),
        (
            answer(
                "r-1",
                r#"{"behavior":"allow","updatedInput":{"command":"true"}}"#,
            ),
            "another input",
        ),
        (
            answer("r-1", r#"{"behavior":"allow"}"#),
            "the answer to a request",
        ),
        (
            answer("r-1", r#"{"behavior":"deny","message":""}"#),
            "without a reason",
        ),
        (answer("h-1", "{}"), "no request is open"),
    ] {
        let mut host = Host::new(&["--ledger", "ledger"]);
        host.prompt("run touch never");
        host.until_asked();
        host.agent.write(format!("{line}\n").as_bytes());
        let (code, reported) = ends(&mut host.agent);
        assert_eq!(code, Some(1), "{line}");
        assert!(
            reported.contains("the controller broke the protocol"),
            "{line}: {reported}"
        );
        assert!(reported.contains(says), "{line}: {reported}");
        assert!(!host.agent.path().join("never").exists());
        let entries = ledger(&host.agent.path().join("ledger"));
        assert_eq!(entries.last().unwrap()["kind"], "malformed", "{line}");
    }
    let mut host = Host::bare(Agent::spawn_claude(&[]));
    host.prompt("say too early");
    let (code, reported) = ends(&mut host.agent);
    assert_eq!(code, Some(1));
    assert!(reported.contains("`initialize` comes first"), "{reported}");
}

#[test]
fn drills_misbehave_in_this_form_too() {
    let mut host = Host::new(&["--session-id", ID]);
    host.prompt("garbage 5\nraw {\"turn\":{reply},\"session\":\"{session}\"}\nsay a\nflood 3 300\nhuge-line 1M\nsay on");
    let (mut broken, mut lines, mut longest) = (0, Vec::new(), 0);
    loop {
        let line = host.agent.raw().unwrap();
        longest = longest.max(line.len());
        let Ok(line) = serde_json::from_slice::<Value>(&line) else {
            broken += 1;
            continue;
        };
        let is_over = line["state"] == "completed";
        lines.push(line);
        if is_over {
            break;
        }
    }
    assert_eq!((broken, longest), (3, (1 << 20) + 1));
    let raw = lines
        .iter()
        .find(|line| line.get("turn").is_some())
        .unwrap();
    assert_eq!((&raw["turn"], &raw["session"]), (&json!("p-2"), &json!(ID)));
    // What is flooded is told in pieces alone, and all else whole.
    let whole: Vec<&str> = blocks(&lines)
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect();
    assert_eq!(whole, ["a\n", "on\n"]);
    assert!(streamed(&lines).len() > 1 << 20);
    host.prompt("exit 3");
    assert_eq!(ends(&mut host.agent).0, Some(3));
}

#[test]
fn the_end_of_stdin_denies_what_is_open_and_lets_the_turn_finish() {
    let mut host = Host::new(&[]);
    host.prompt("run touch never\nsay last words");
    host.until_asked();
    host.agent.hang_up();
    let rest = host.rest();
    assert!(streamed(&rest).contains("last words\n"));
    assert_eq!(ends(&mut host.agent).0, Some(0));
    assert!(!host.agent.path().join("never").exists());
}
