//! The handler of a Claude Code host's messages.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use super::messages;
use super::{MAX_PROMPT_IDS, MODES, Stage, hook_id, request_id};
use crate::script_agent::agent::{Agent, Halt, Permission};
use crate::script_agent::claim::VersionClaim;
use crate::script_agent::form::text;
use crate::script_agent::pipes::Line;
use crate::script_agent::rpc::{shorten, too_long};
use crate::script_agent::template::fields;

/// The texts for the model when the program itself does not run a tool.
const HOOK_DENIED: &str = "the hook denied this tool call";

/// The answer to a request, or its error.
type Answer<'a> = Result<&'a Value, String>;

impl Agent {
    /// Handles one line. A line that is no message ends the agent.
    pub(crate) fn handle_claude_line(&mut self, line: Line) -> Result<(), Halt> {
        let line = match line {
            Line::Whole(bytes) => bytes,
            Line::TooLong => {
                return self.fail_protocol(too_long());
            }
        };
        let message = match messages::parse_message(&line) {
            Ok(message) => message,
            Err(why) => {
                let message = serde_json::from_slice::<Value>(&line).unwrap_or_default();
                if let Some(id) = message["request_id"].as_str() {
                    self.send_claude_error(id, &why)?;
                }
                return self.fail_protocol(why);
            }
        };
        match text(&message, "type") {
            "control_request" => {
                self.handle_claude_control(text(&message, "request_id"), &message["request"])
            }
            _ if !self.is_initialized => self.fail_protocol("`initialize` comes first"),
            "control_response" => self.handle_claude_reply(&message["response"]),
            _ => {
                let session = text(&message, "session_id");
                let is_ours = session.is_empty() || session == self.session.id;
                if !is_ours || !message["parent_tool_use_id"].is_null() {
                    return self.fail_protocol("a prompt is for another session, or for a tool");
                }
                let uuid = message["uuid"].as_str().map(str::to_owned);
                self.handle_claude_prompt(messages::prompt_text(&message), uuid)
            }
        }
    }

    /// Accepts a prompt. It waits while another one runs.
    fn handle_claude_prompt(&mut self, text: String, uuid: Option<String>) -> Result<(), Halt> {
        if let Some(uuid) = &uuid {
            if self.claude.prompts.contains(uuid) {
                let shown = shorten(uuid.as_str());
                return self.fail_protocol(format!("the prompt {shown} came before"));
            }
            if self.claude.prompts.len() >= MAX_PROMPT_IDS {
                self.claude.prompts.pop_front();
            }
            self.claude.prompts.push_back(uuid.clone());
            self.output().queue_lifecycle(Some(uuid), "queued")?;
            self.out.flush()?;
        }
        if !self.is_busy() {
            let uuid = uuid.map(Value::from);
            return self.accept_prompt(text, uuid).map(|_| ());
        }
        let session = self.session.id.clone();
        let turn = uuid.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        if self.prompt_queue.push(turn, &session, text) {
            return Ok(());
        }
        self.fail_protocol("too many prompts wait")
    }

    fn handle_claude_control(&mut self, id: &str, request: &Value) -> Result<(), Halt> {
        match text(request, "subtype") {
            "initialize" if self.is_initialized => {
                self.send_claude_error(id, "it is initialized already")?;
                self.fail_protocol("`initialize` came twice")
            }
            "initialize" => self.handle_claude_initialize(id, request),
            _ if !self.is_initialized => {
                self.send_claude_error(id, "it is not initialized")?;
                self.fail_protocol("`initialize` comes first")
            }
            "set_permission_mode" => {
                let mode = text(request, "mode");
                if !MODES.contains(&mode) {
                    return self.send_claude_error(id, "there is no such mode");
                }
                self.log_to_ledger("set", || json!({"mode": mode}))?;
                mode.clone_into(&mut self.mode);
                self.send_claude_reply(id, &json!({"mode": mode}))
            }
            "set_model" => {
                let model = request["model"].as_str().unwrap_or("script");
                self.log_to_ledger("set", || json!({"model": model}))?;
                model.clone_into(&mut self.model);
                self.send_claude_reply(id, &json!({}))
            }
            _ => {
                self.cancel_turn("interrupt")?;
                let waits = self.prompt_queue.to_json(&self.session.id);
                let waits: Vec<&Value> = waits.iter().map(|prompt| &prompt["id"]).collect();
                self.send_claude_reply(id, &json!({"still_queued": waits}))
            }
        }
    }

    /// Sends the version, before anything else.
    fn handle_claude_initialize(&mut self, id: &str, request: &Value) -> Result<(), Halt> {
        let hook = match messages::tool_hook(request) {
            Ok(hook) => hook,
            Err(why) => {
                self.send_claude_error(id, why)?;
                return self.fail_protocol(why);
            }
        };
        if self.settings.claim == VersionClaim::Error {
            return self.send_claude_error(id, "this protocol is not spoken here");
        }
        self.is_initialized = true;
        let has_hook = hook.is_some();
        self.claude.hook = hook;
        self.claude.version = self.settings.claim.as_release();
        let mut reply = json!({
            "pid": std::process::id(), "commands": [], "session_state": "idle",
            "current_permission_mode": self.mode, "hooks_applied": has_hook,
        });
        if let Some(version) = &self.claude.version {
            reply["claude_code_version"] = version.clone();
        }
        self.send_claude_reply(id, &reply)
    }

    /// Begins a request: the host's hook is called first. Without a hook, the program's own rules
    /// apply.
    pub(crate) fn request_claude_permission(&mut self, number: u64) -> Result<(), Halt> {
        if self.claude.hook.is_some() {
            return Ok(self.output().queue_host_request(number, Stage::Hook, "")?);
        }
        self.apply_builtin_rules(number)
    }

    /// Read-only tools run without a request.
    fn apply_builtin_rules(&mut self, number: u64) -> Result<(), Halt> {
        let request = self.claude.requests.get(&number);
        if request.is_some_and(|request| request.only_reads) {
            self.settle_claude_request(number, Permission::Allowed);
            return Ok(());
        }
        self.ask_claude_host(number, "")
    }

    fn ask_claude_host(&mut self, number: u64, reason: &str) -> Result<(), Halt> {
        let mut output = self.output();
        output.queue_host_request(number, Stage::Host, reason)?;
        if self.script_state.withdraws_next {
            self.withdraw_request(number)?;
        }
        self.out.flush()?;
        Ok(())
    }

    fn handle_claude_reply(&mut self, reply: &Value) -> Result<(), Halt> {
        let id = text(reply, "request_id");
        let answer = match reply["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(&reply["response"]),
        };
        let number = id.get(2..).and_then(|number| number.parse::<u64>().ok());
        let number = number.unwrap_or_default();
        let (is_hook, is_host) = (id == hook_id(number), id == request_id(number));
        let request = self.claude.requests.get(&number);
        match request.map(|request| request.at) {
            Some(Stage::Withdrawn) if is_hook || is_host => {
                self.claude.requests.remove(&number);
                self.log(format_args!("an answer to a withdrawn request"));
                Ok(())
            }
            Some(Stage::Hook) if is_hook => self.handle_claude_hook_reply(number, answer),
            Some(Stage::Host) if is_host => self.handle_claude_permission_reply(number, answer),
            _ => self.handle_stray_reply(id),
        }
    }

    /// Handles the hook's decision.
    fn handle_claude_hook_reply(&mut self, number: u64, answer: Answer<'_>) -> Result<(), Halt> {
        let permission = match answer.and_then(messages::hook_decision) {
            Err(why) => return self.fail_protocol(format!("the hook's answer: {why}")),
            Ok(None) => return self.apply_builtin_rules(number),
            Ok(Some(("ask", reason))) => return self.ask_claude_host(number, reason),
            Ok(Some(("allow", _))) => Permission::Allowed,
            Ok(Some((_, ""))) => Permission::Denied(HOOK_DENIED.to_owned()),
            Ok(Some((_, reason))) => Permission::Denied(reason.to_owned()),
        };
        self.settle_claude_request(number, permission);
        Ok(())
    }

    /// Handles the host's answer. An answer that allows a call must repeat the call's input.
    fn handle_claude_permission_reply(
        &mut self,
        number: u64,
        answer: Answer<'_>,
    ) -> Result<(), Halt> {
        let request = self.claude.requests.get(&number);
        let checked = answer.and_then(|answer| Ok((messages::check_answer(answer)?, answer)));
        let permission = match checked {
            Err(why) => return self.fail_protocol(format!("the answer to a request: {why}")),
            Ok((true, answer)) => {
                if request.is_none_or(|request| request.input != answer["updatedInput"]) {
                    return self.fail_protocol("another input was allowed than was asked about");
                }
                Permission::Allowed
            }
            Ok((false, answer)) => match text(answer, "message") {
                "" => return self.fail_protocol("a call was denied without a reason"),
                reason => Permission::Denied(reason.to_owned()),
            },
        };
        self.settle_claude_request(number, permission);
        Ok(())
    }

    fn settle_claude_request(&mut self, number: u64, permission: Permission) {
        self.claude.requests.remove(&number);
        self.settle_request(|open| open == number, permission);
    }

    fn send_claude_reply(&mut self, id: &str, response: &Value) -> Result<(), Halt> {
        self.send("success", fields![id, response])
    }

    fn send_claude_error(&mut self, id: &str, why: &str) -> Result<(), Halt> {
        self.log(format_args!("refused: {why}"));
        self.send("failure", fields![id, why])
    }
}
