//! The client's side of the Agent Client Protocol.

use serde_json::{Value, json};

use crate::controller::Agent;

/// An agent that was initialized and has a session.
pub(crate) struct Client {
    pub(crate) agent: Agent,
    pub(crate) session: String,
    /// Of the client's own requests.
    next: u64,
}

impl Client {
    pub(crate) fn new(flags: &[&str]) -> Self {
        let mut client = Self::bare(Agent::spawn_acp(flags));
        client.initialize();
        client.session = client.begin();
        client
    }

    /// An agent to which nothing was said.
    pub(crate) fn bare(agent: Agent) -> Self {
        Self {
            agent,
            session: String::new(),
            next: 7,
        }
    }

    /// Another process in the same directory and home, initialized, without a session.
    pub(crate) fn again(&self, flags: &[&str]) -> Self {
        let mut client = Self::bare(self.agent.again(flags));
        client.initialize();
        client
    }

    fn initialize(&mut self) {
        let reply = self.ask("initialize", &json!({"protocolVersion": 1}));
        assert_eq!(reply["result"]["protocolVersion"], 1, "{reply}");
    }

    fn begin(&mut self) -> String {
        let cwd = self.agent.path().to_owned();
        let reply = self.ask("session/new", &json!({"cwd": cwd, "mcpServers": []}));
        reply["result"]["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("{reply}"))
            .to_owned()
    }

    /// Sends a request and gives its id.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.agent
            .send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a request and gives its reply, which must be the next line.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        let reply = self.agent.line();
        assert_eq!(reply["id"], id, "{reply}");
        reply
    }

    pub(crate) fn prompt(&mut self, script: &str) -> u64 {
        let params = json!({
            "sessionId": self.session,
            "prompt": [{"type": "text", "text": script}],
        });
        self.request("session/prompt", &params)
    }

    pub(crate) fn cancel(&mut self) {
        let params = json!({"sessionId": self.session});
        self.agent
            .send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params}));
    }

    /// Answers a permission request with the option of this kind.
    pub(crate) fn choose(&mut self, request: &Value, kind: &str) {
        let options = request["params"]["options"].as_array().unwrap();
        let option = options
            .iter()
            .find(|option| option["kind"] == kind)
            .unwrap();
        let outcome = json!({"outcome": "selected", "optionId": option["optionId"]});
        self.answer(request, &outcome);
    }

    pub(crate) fn answer(&mut self, request: &Value, outcome: &Value) {
        let result = json!({"outcome": outcome});
        self.agent
            .send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// The next permission request; updates before it are dropped.
    pub(crate) fn until_request(&mut self) -> Value {
        loop {
            let line = self.agent.line();
            if line["method"] == "session/request_permission" {
                return line;
            }
            assert_eq!(line["method"], "session/update", "{line}");
        }
    }

    /// Runs a script, allows everything once, and gives every message up to the reply.
    pub(crate) fn turn(&mut self, script: &str) -> Vec<Value> {
        let id = self.prompt(script);
        self.rest_of_turn(id)
    }

    /// Allows everything once until the prompt is answered.
    pub(crate) fn rest_of_turn(&mut self, id: u64) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let line = self.agent.line();
            if line["method"] == "session/request_permission" {
                self.choose(&line, "allow_once");
            }
            let last = line["id"] == id && line.get("method").is_none();
            messages.push(line);
            if last {
                return messages;
            }
        }
    }
}

/// The updates of one kind.
pub(crate) fn updates<'a>(messages: &'a [Value], kind: &str) -> Vec<&'a Value> {
    messages
        .iter()
        .map(|message| &message["params"]["update"])
        .filter(|update| update["sessionUpdate"] == kind)
        .collect()
}

/// What each message is, neighbours of the same kind once.
pub(crate) fn shape(messages: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = messages
        .iter()
        .map(|message| {
            message["params"]["update"]["sessionUpdate"]
                .as_str()
                .or_else(|| message["method"].as_str())
                .or_else(|| message["result"]["stopReason"].as_str())
                .unwrap_or("error")
        })
        .collect();
    kinds.dedup();
    kinds
}

/// All text of the turn.
pub(crate) fn text(messages: &[Value]) -> String {
    updates(messages, "agent_message_chunk")
        .iter()
        .map(|update| update["content"]["text"].as_str().unwrap())
        .collect()
}
