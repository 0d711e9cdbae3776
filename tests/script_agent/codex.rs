//! Codex' own protocol: the same steps in the fifth form, and how strict it is.

use serde_json::{Value, json};

use crate::controller::{Agent, ledger};

/// A client of an agent.
struct Client {
    agent: Agent,
    thread: String,
    turn: String,
    /// Of its own requests.
    next: u64,
}

impl Client {
    fn new(flags: &[&str]) -> Self {
        let mut client = Self::bare(Agent::spawn_codex(flags));
        client.greet();
        client.begin();
        client
    }

    /// An agent to which nothing was said.
    fn bare(agent: Agent) -> Self {
        Self {
            agent,
            thread: String::new(),
            turn: String::new(),
            next: 7,
        }
    }

    fn greet(&mut self) -> Value {
        let params = json!({
            "clientInfo": {"name": "me", "version": "1"},
            "capabilities": {"optOutNotificationMethods": ["thread/started"]},
        });
        let reply = self.ask("initialize", &params);
        self.agent.send(&json!({"method": "initialized"}));
        reply
    }

    fn thread(&self) -> Value {
        json!({
            "cwd": self.agent.path(),
            "approvalPolicy": "untrusted",
            "approvalsReviewer": "user",
            "sandbox": "danger-full-access",
        })
    }

    fn begin(&mut self) -> Value {
        let params = self.thread();
        let reply = self.ask("thread/start", &params);
        let id = reply["result"]["thread"]["id"].as_str();
        self.thread = id.unwrap_or_else(|| panic!("{reply}")).to_owned();
        reply
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.agent
            .send(&json!({"id": id, "method": method, "params": params}));
        id
    }

    /// Sends a request and gives its reply; what comes before it is dropped.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        loop {
            let line = self.agent.line();
            if line["id"] == id && line.get("method").is_none() {
                return line;
            }
        }
    }

    fn prompt(&mut self, script: &str) {
        let params = json!({
            "threadId": self.thread,
            "approvalPolicy": "untrusted",
            "approvalsReviewer": "user",
            "input": [{"type": "text", "text": script}],
        });
        let reply = self.ask("turn/start", &params);
        let turn = reply["result"]["turn"]["id"].as_str();
        self.turn = turn.unwrap_or_else(|| panic!("{reply}")).to_owned();
    }

    fn interrupt(&mut self) -> Value {
        let params = json!({"threadId": self.thread, "turnId": self.turn});
        self.ask("turn/interrupt", &params)
    }

    fn decide(&mut self, request: &Value, decision: &str) {
        self.agent
            .send(&json!({"id": request["id"], "result": {"decision": decision}}));
    }

    /// The next notification or request of that method; everything before it is dropped.
    fn until(&mut self, method: &str) -> Value {
        loop {
            let line = self.agent.line();
            if line["method"] == method {
                return line;
            }
        }
    }

    /// Everything up to the end of the turn; whatever is asked for is accepted.
    fn rest(&mut self) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let line = self.agent.line();
            let method = line["method"].as_str().unwrap_or_default().to_owned();
            if method.ends_with("/requestApproval") {
                self.decide(&line, "accept");
            }
            lines.push(line);
            if method == "turn/completed" {
                return lines;
            }
        }
    }

    fn turn(&mut self, script: &str) -> Vec<Value> {
        self.prompt(script);
        self.rest()
    }
}

/// The method of each message and, of an item, its type; neighbours of the same kind once.
fn shape(lines: &[Value]) -> Vec<String> {
    let mut kinds: Vec<String> = lines
        .iter()
        .map(|line| {
            let method = line["method"].as_str().unwrap_or("reply");
            match line["params"]["item"]["type"].as_str() {
                Some(kind) => format!("{method} {kind}"),
                None => method.to_owned(),
            }
        })
        .collect();
    kinds.dedup();
    kinds
}

fn params<'a>(lines: &'a [Value], method: &str) -> Vec<&'a Value> {
    let of = lines.iter().filter(|line| line["method"] == method);
    of.map(|line| &line["params"]).collect()
}

fn text(lines: &[Value]) -> String {
    params(lines, "item/agentMessage/delta")
        .iter()
        .map(|params| params["delta"].as_str().unwrap())
        .collect()
}

/// The last item of that type that ended.
fn last_completed_item<'a>(lines: &'a [Value], kind: &str) -> &'a Value {
    let ends = params(lines, "item/completed");
    let ends = ends.into_iter().map(|params| &params["item"]);
    let mut ends = ends.filter(|item| item["type"] == kind);
    ends.next_back().unwrap_or_else(|| panic!("{lines:?}"))
}

/// Waits for the end; the code, and what it said last on stderr.
fn ends(agent: &mut Agent) -> (Option<i32>, String) {
    while agent.raw().is_some() {}
    let code = agent.exit().code();
    (code, agent.stderr())
}

#[test]
fn the_first_reply_names_the_version_behind_the_clients_own_name() {
    for (claim, said) in [
        (None, "me/0.169.0 ("),
        (Some("0.165.9"), "me/0.165.9 ("),
        (Some("1"), "me/1.0.0 ("),
    ] {
        let flags: Vec<&str> = claim
            .iter()
            .flat_map(|claim| ["--protocol", claim])
            .collect();
        let mut client = Client::bare(Agent::spawn_codex(&flags));
        let reply = client.greet();
        let agent = reply["result"]["userAgent"].as_str().unwrap();
        assert!(agent.starts_with(said), "{agent}");
        assert_eq!(reply.get("jsonrpc"), None);
    }
    let mut client = Client::bare(Agent::spawn_codex(&["--protocol", "none"]));
    assert_eq!(client.greet()["result"].get("userAgent"), None);
    let mut client = Client::bare(Agent::spawn_codex(&["--protocol", "error"]));
    let info = json!({"clientInfo": {"name": "me", "version": "1"}});
    assert_eq!(client.ask("initialize", &info)["error"]["code"], -32600);
}

#[test]
fn a_thread_is_what_was_asked_for_and_a_login_is_wanted_where_that_is_a_drill() {
    let mut client = Client::bare(Agent::spawn_codex(&[]));
    client.greet();
    let account = client.ask("account/read", &json!({"refreshToken": false}));
    assert_eq!(account["result"]["requiresOpenaiAuth"], false);
    let reply = client.begin()["result"].clone();
    assert_eq!(reply["approvalPolicy"], "untrusted");
    assert_eq!(reply["approvalsReviewer"], "user");
    assert_eq!(reply["sandbox"], json!({"type": "dangerFullAccess"}));
    assert_eq!(reply["model"], "script");
    let mut client = Client::bare(Agent::spawn_codex(&["--quirk", "login"]));
    client.greet();
    let account = client.ask("account/read", &json!({"refreshToken": false}));
    assert_eq!(account["result"]["requiresOpenaiAuth"], true);
    // Whoever asks for what nobody serves hears that somebody is there.
    assert_eq!(client.ask("$/ping", &json!({}))["error"]["code"], -32600);
}

#[test]
fn a_turn_has_the_shape_of_the_protocol() {
    let mut client = Client::new(&[]);
    let turn =
        client.turn("think hm\nplan one; two\nwrite sub/a.txt hello\nread sub/a.txt\nsay all done");
    assert_eq!(
        shape(&turn),
        [
            "thread/status/changed",
            "turn/started",
            "item/started userMessage",
            "item/completed userMessage",
            "item/started reasoning",
            "item/reasoning/summaryTextDelta",
            "item/completed reasoning",
            "turn/plan/updated",
            "item/started agentMessage",
            "item/agentMessage/delta",
            "item/completed agentMessage",
            "item/started fileChange",
            "item/fileChange/requestApproval",
            "serverRequest/resolved",
            "item/completed fileChange",
            "item/started agentMessage",
            "item/agentMessage/delta",
            "item/completed agentMessage",
            "item/started commandExecution",
            "item/commandExecution/requestApproval",
            "serverRequest/resolved",
            "item/commandExecution/outputDelta",
            "item/completed commandExecution",
            "item/started agentMessage",
            "item/agentMessage/delta",
            "item/completed agentMessage",
            "thread/tokenUsage/updated",
            "thread/status/changed",
            "turn/completed",
        ]
    );
    let change = last_completed_item(&turn, "fileChange");
    let path = client.agent.path().join("sub/a.txt");
    assert_eq!(change["status"], "completed");
    assert_eq!(
        change["changes"],
        json!([{"path": path, "kind": {"type": "add"}, "diff": "hello\n"}])
    );
    let command = last_completed_item(&turn, "commandExecution");
    assert_eq!(command["command"], "bash -c 'cat sub/a.txt'");
    assert_eq!(
        (&command["aggregatedOutput"], &command["exitCode"]),
        (&json!("hello\n"), &json!(0))
    );
    let request = params(&turn, "item/commandExecution/requestApproval")[0];
    for member in ["command", "cwd"] {
        assert_eq!(request[member], command[member], "{member}");
    }
    assert_eq!(request["itemId"], command["id"]);
    assert!(text(&turn).ends_with("all done\n"), "{}", text(&turn));
    assert_eq!(
        last_completed_item(&turn, "agentMessage")["text"]
            .as_str()
            .map(|text| text.ends_with("all done\n")),
        Some(true)
    );
    let end = params(&turn, "turn/completed")[0];
    assert_eq!(
        (&end["turn"]["id"], &end["turn"]["status"]),
        (&json!("t-1"), &json!("completed"))
    );
    // What changes a file that is there says how.
    let turn = client.turn("write sub/a.txt bye");
    let change = &last_completed_item(&turn, "fileChange")["changes"][0];
    assert_eq!(change["kind"]["type"], "update");
    assert_eq!(change["diff"], "@@ -1,1 +1,1 @@\n-hello\n+bye\n");
    // Tokens are the thread's.
    let used = params(&turn, "thread/tokenUsage/updated")[0]["tokenUsage"].clone();
    assert!(
        used["total"]["inputTokens"].as_u64() > used["last"]["inputTokens"].as_u64(),
        "{used}"
    );
}

#[test]
fn a_call_is_accepted_declined_or_ends_the_turn() {
    let mut client = Client::new(&["--ledger", "ledger"]);
    client.prompt("run touch never\nsay on\nrun touch never\nsay never");
    let requested = client.until("item/commandExecution/requestApproval");
    assert_eq!(requested["id"], 0);
    client.decide(&requested, "decline");
    let resolved = client.until("serverRequest/resolved");
    assert_eq!(resolved["params"]["requestId"], 0);
    let item = client.until("item/completed")["params"]["item"].clone();
    assert_eq!(item["status"], "declined");
    let requested = client.until("item/commandExecution/requestApproval");
    client.decide(&requested, "cancel");
    let rest = client.rest();
    assert_eq!(
        params(&rest, "turn/completed")[0]["turn"]["status"],
        "interrupted"
    );
    assert!(!client.agent.path().join("never").exists());
    // What holds for more than once is not asked for again.
    client.prompt("run true\nrun true");
    let requested = client.until("item/commandExecution/requestApproval");
    client.decide(&requested, "acceptForSession");
    let rest = client.rest();
    assert!(params(&rest, "item/commandExecution/requestApproval").is_empty());
    let entries = ledger(&client.agent.path().join("ledger"));
    assert!(entries.iter().any(|entry| entry["kind"] == "trusted"));
}

#[test]
fn an_interrupt_withdraws_what_is_open_and_finds_nothing_else() {
    let mut client = Client::new(&[]);
    client.prompt("run touch never\nsay never");
    let requested = client.until("item/commandExecution/requestApproval");
    assert_eq!(client.interrupt()["result"], json!({}));
    let resolved = client.until("serverRequest/resolved");
    assert_eq!(resolved["params"]["requestId"], requested["id"]);
    // It crossed with the answer, which is nothing to be wrong about.
    client.decide(&requested, "accept");
    let rest = client.rest();
    assert_eq!(
        params(&rest, "turn/completed")[0]["turn"]["status"],
        "interrupted"
    );
    assert_eq!(client.interrupt()["error"]["code"], -32600);
    assert_eq!(text(&client.turn("say still here")), "still here\n");
    assert!(!client.agent.path().join("never").exists());
    // A command that runs is killed.
    client.prompt("run sleep 1000");
    let requested = client.until("item/commandExecution/requestApproval");
    client.decide(&requested, "accept");
    client.until("serverRequest/resolved");
    client.interrupt();
    let rest = client.rest();
    assert_eq!(
        last_completed_item(&rest, "commandExecution")["status"],
        "failed"
    );
}

#[test]
fn it_withdraws_a_request_by_itself() {
    let mut client = Client::new(&[]);
    client.prompt("withdraw touch never\nsay on");
    let requested = client.until("item/commandExecution/requestApproval");
    let resolved = client.agent.line();
    assert_eq!(resolved["method"], "serverRequest/resolved");
    assert_eq!(resolved["params"]["requestId"], requested["id"]);
    let rest = client.rest();
    assert_eq!(
        last_completed_item(&rest, "commandExecution")["status"],
        "declined"
    );
    assert!(text(&rest).contains("on\n"));
    assert!(!client.agent.path().join("never").exists());
}

#[test]
fn a_second_prompt_is_refused_while_a_turn_runs() {
    let mut client = Client::new(&[]);
    client.prompt("sleep 1h");
    let again = json!({
        "threadId": client.thread,
        "approvalPolicy": "untrusted",
        "approvalsReviewer": "user",
        "input": [{"type": "text", "text": "say x"}],
    });
    let reply = client.ask("turn/start", &again);
    assert_eq!(reply["error"]["code"], -32600, "{reply}");
    client.interrupt();
    client.until("turn/completed");
}

#[test]
fn a_thread_is_resumed_by_another_process_and_by_its_id_alone() {
    let mut client = Client::new(&[]);
    client.turn("say once upon a time");
    let resume = |client: &Client, id: &str| {
        let mut params = client.thread();
        params["threadId"] = json!(id);
        params["excludeTurns"] = json!(true);
        params
    };
    let mut other = Client::bare(client.agent.again(&[]));
    other.greet();
    let unknown = resume(&other, "0198f4a0-0000-7000-8000-000000000001");
    let reply = other.ask("thread/resume", &unknown);
    let why = reply["error"]["message"].as_str().unwrap();
    assert!(why.contains("no rollout found"), "{why}");
    let known = resume(&other, &client.thread);
    let reply = other.ask("thread/resume", &known);
    assert_eq!(reply["result"]["thread"]["id"], client.thread.as_str());
    other.thread.clone_from(&client.thread);
    assert!(text(&other.turn("recall")).contains("say once upon a time"));
}

#[test]
fn it_can_have_no_room_for_what_comes_first() {
    let mut client = Client::bare(Agent::spawn_codex(&["--quirk", "overload"]));
    client.greet();
    let account = json!({"refreshToken": false});
    assert_eq!(
        client.ask("account/read", &account)["error"]["code"],
        -32001
    );
    assert!(client.ask("account/read", &account)["result"].is_object());
    let thread = client.thread();
    assert_eq!(client.ask("thread/start", &thread)["error"]["code"], -32001);
    client.begin();
}

#[test]
fn what_a_client_does_not_say_ends_it() {
    let request = |method: &str, params: &str| {
        format!(r#"{{"id":99,"method":"{method}","params":{params}}}"#)
    };
    for (line, says) in [
        ("hello".to_owned(), "no JSON"),
        ("[]".to_owned(), "no JSON object"),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"account/read","params":{"refreshToken":false}}"#
                .to_owned(),
            "no message here",
        ),
        (
            request("initialize", r#"{"clientInfo":{"name":"a","version":"1"}}"#),
            "Already initialized",
        ),
        (
            request("account/read", r#"{"refreshToken":true}"#),
            "nobody outside",
        ),
        (request("thread/start", r#"{"cwd":"/"}"#), "thread/start"),
        (
            request("turn/interrupt", r#"{"threadId":"other","turnId":"t-1"}"#),
            "not open",
        ),
        (r#"{"method":"initialized"}"#.to_owned(), "once"),
        (r#"{"method":"exit"}"#.to_owned(), "no notification exit"),
        (
            r#"{"id":5,"result":{"decision":"accept"}}"#.to_owned(),
            "no request is open",
        ),
        (
            r#"{"id":0,"result":{"decision":"approved"}}"#.to_owned(),
            "the answer to a request",
        ),
        (
            r#"{"id":0,"error":{"code":1,"message":"x"}}"#.to_owned(),
            "answered with an error",
        ),
    ] {
        let mut client = Client::new(&["--ledger", "ledger"]);
        client.prompt("run touch never");
        client.until("item/commandExecution/requestApproval");
        client.agent.write(format!("{line}\n").as_bytes());
        let (code, reported) = ends(&mut client.agent);
        assert_eq!(code, Some(1), "{line}");
        assert!(
            reported.contains("the controller broke the protocol"),
            "{line}: {reported}"
        );
        assert!(reported.contains(says), "{line}: {reported}");
        assert!(!client.agent.path().join("never").exists());
        let entries = ledger(&client.agent.path().join("ledger"));
        assert_eq!(entries.last().unwrap()["kind"], "malformed", "{line}");
    }
    let mut client = Client::bare(Agent::spawn_codex(&[]));
    client.request("account/read", &json!({"refreshToken": false}));
    let (code, reported) = ends(&mut client.agent);
    assert_eq!(code, Some(1));
    assert!(reported.contains("Not initialized"), "{reported}");
}

#[test]
fn drills_misbehave_in_this_form_too() {
    let mut client = Client::new(&[]);
    client.prompt("garbage 5\nraw {\"turn\":{reply},\"session\":\"{session}\"}\nflood 3 300\nhuge-line 1M\nsay on");
    let (mut broken, mut lines, mut longest) = (0, Vec::new(), 0);
    loop {
        let line = client.agent.raw().unwrap();
        longest = longest.max(line.len());
        let Ok(line) = serde_json::from_slice::<Value>(&line) else {
            broken += 1;
            continue;
        };
        let is_over = line["method"] == "turn/completed";
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
    assert_eq!(
        (&raw["turn"], &raw["session"]),
        (&json!("t-1"), &json!(client.thread))
    );
    assert_eq!(params(&lines, "no/such_message").len(), 1);
    assert!(text(&lines).ends_with("on\n"));
    client.prompt("exit 3");
    assert_eq!(ends(&mut client.agent).0, Some(3));
}

#[test]
fn the_end_of_stdin_denies_what_is_open_and_lets_the_turn_finish() {
    let mut client = Client::new(&[]);
    client.prompt("run touch never\nsay last words");
    client.until("item/commandExecution/requestApproval");
    client.agent.hang_up();
    let rest = client.rest();
    assert!(text(&rest).contains("last words\n"));
    assert_eq!(ends(&mut client.agent).0, Some(0));
    assert!(!client.agent.path().join("never").exists());
}
