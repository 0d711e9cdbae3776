//! What the agent does about each message of a host of Claude Code.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use super::messages::{self, Decision, HookSays, Hooks, Inbound, Reply, Verdict, Wanted};
use super::speech::queue_lifecycle;
use super::{MODES, PROMPTS, Stage, hook_id, request_id};
use crate::cli::script_agent::agent::{Agent, Halt, Permission};
use crate::cli::script_agent::claim::Claim;
use crate::cli::script_agent::pipes::Line;
use crate::limits::LINE_BYTES;
use crate::model::Foreign;

/// Why the program itself does not run a tool.
const HOOK_DENIED: &str = "the hook denied this tool call";

impl Agent {
    /// Takes in one line. What is no message ends the agent.
    pub(crate) fn hear_claude(&mut self, line: Line) -> Result<(), Halt> {
        let line = match line {
            Line::Whole(bytes) => bytes,
            Line::TooLong => {
                return self.wrong(format!("a line is longer than {LINE_BYTES} bytes"));
            }
        };
        let message = match messages::read(&line) {
            Ok(message) => message,
            Err(why) => {
                if let Some(id) = messages::request_id(&line) {
                    self.refuse_claude(&id, &why)?;
                }
                return self.wrong(why);
            }
        };
        match message {
            Inbound::ControlRequest {
                request_id,
                request,
            } => self.hear_wanted_of_claude(&request_id, request),
            _ if !self.introduced => self.wrong("`initialize` comes first"),
            Inbound::ControlResponse { response } => self.hear_control_reply(response),
            Inbound::User {
                message,
                parent_tool_use_id,
                session_id,
                uuid,
            } => {
                let is_ours = session_id.is_empty() || session_id == self.session.id;
                if !is_ours || parent_tool_use_id.is_some_and(|id| !id.is_null()) {
                    return self.wrong("a prompt is for another session, or for a tool");
                }
                self.hear_prompt_of_claude(message.text(), uuid)
            }
        }
    }

    /// A prompt. While another is worked it waits.
    fn hear_prompt_of_claude(&mut self, text: String, uuid: Option<String>) -> Result<(), Halt> {
        if let Some(uuid) = &uuid {
            if self.claude.prompts.contains(uuid) {
                return self.wrong(format!(
                    "the prompt {} came before",
                    Foreign::from(uuid.as_str()).show(60)
                ));
            }
            if self.claude.prompts.len() >= PROMPTS {
                self.claude.prompts.pop_front();
            }
            self.claude.prompts.push_back(uuid.clone());
            queue_lifecycle(&mut self.out, &json!(uuid), "queued")?;
            self.out.flush()?;
        }
        if !self.is_busy() {
            let uuid = uuid.map(Value::from);
            return self.accept_prompt(text, uuid).map(|_| ());
        }
        let session = self.session.id.clone();
        let turn = uuid.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        if self.waiting.push(turn, &session, text) {
            return Ok(());
        }
        self.wrong("too many prompts wait")
    }

    fn hear_wanted_of_claude(&mut self, id: &str, wanted: Wanted) -> Result<(), Halt> {
        match wanted {
            Wanted::Initialize { .. } if self.introduced => {
                self.refuse_claude(id, "it is initialized already")?;
                self.wrong("`initialize` came twice")
            }
            Wanted::Initialize { hooks } => self.hear_initialize_of_claude(id, hooks),
            _ if !self.introduced => {
                self.refuse_claude(id, "it is not initialized")?;
                self.wrong("`initialize` comes first")
            }
            Wanted::SetPermissionMode { mode } => {
                if !MODES.contains(&mode.as_str()) {
                    return self.refuse_claude(id, "there is no such mode");
                }
                self.enter("set", || json!({"mode": mode}))?;
                self.mode.clone_from(&mode);
                self.reply_claude(id, &json!({"mode": mode}))
            }
            Wanted::SetModel { model } => {
                let model = model.unwrap_or_else(|| "script".to_owned());
                self.enter("set", || json!({"model": model}))?;
                self.model = model;
                self.reply_claude(id, &json!({}))
            }
            Wanted::Interrupt {} => {
                self.cancel("interrupt")?;
                let waits = self.waiting.shown(&self.session.id);
                let waits: Vec<&Value> = waits.iter().map(|prompt| &prompt["id"]).collect();
                self.reply_claude(id, &json!({"still_queued": waits}))
            }
        }
    }

    /// The version is told here, before anything else.
    fn hear_initialize_of_claude(&mut self, id: &str, hooks: Option<Hooks>) -> Result<(), Halt> {
        let hook = match hooks.map_or(Ok(None), Hooks::before_every_tool) {
            Ok(hook) => hook,
            Err(why) => {
                self.refuse_claude(id, why)?;
                return self.wrong(why);
            }
        };
        if self.settings.claim == Claim::Error {
            return self.refuse_claude(id, "this protocol is not spoken here");
        }
        self.introduced = true;
        let has_hook = hook.is_some();
        self.claude.hook = hook;
        self.claude.version = self.settings.claim.release();
        let mut said = json!({
            "pid": std::process::id(),
            "commands": [],
            "current_permission_mode": self.mode,
            "hooks_applied": has_hook,
            "session_state": "idle",
        });
        if let Some(version) = &self.claude.version {
            said["claude_code_version"] = version.clone();
        }
        self.reply_claude(id, &said)
    }

    /// Begins a request: the host's hook is asked first. Without one the program's own rules hold.
    pub(crate) fn ask_claude(&mut self, number: u64) -> Result<(), Halt> {
        if self.claude.hook.is_some() {
            self.claude.queue_hook(&mut self.out, number)?;
            return Ok(());
        }
        self.follow_own_rules(number)
    }

    /// What only reads runs unasked.
    fn follow_own_rules(&mut self, number: u64) -> Result<(), Halt> {
        let asked = self.claude.asked.get(&number);
        if asked.is_some_and(|asked| asked.only_reads) {
            self.claude.asked.remove(&number);
            self.settle(|open| open == number, Permission::Allowed);
            return Ok(());
        }
        self.ask_host(number, "")
    }

    fn ask_host(&mut self, number: u64, reason: &str) -> Result<(), Halt> {
        self.claude.queue_host(&mut self.out, number, reason)?;
        if self.scripted.withdraws {
            self.withdraw(number)?;
        }
        self.out.flush()?;
        Ok(())
    }

    fn hear_control_reply(&mut self, reply: Reply) -> Result<(), Halt> {
        let (id, said) = match reply {
            Reply::Success {
                request_id,
                response,
            } => (request_id, Ok(response)),
            Reply::Error { request_id, error } => (request_id, Err(error)),
        };
        let number = id.get(2..).and_then(|number| number.parse::<u64>().ok());
        let is_hook = number.is_some_and(|number| id == hook_id(number));
        let is_host = number.is_some_and(|number| id == request_id(number));
        let asked = number.filter(|_| is_hook || is_host);
        let asked = asked.and_then(|number| Some((number, self.claude.asked.get(&number)?)));
        let Some((number, at)) = asked.map(|(number, asked)| (number, asked.at)) else {
            return self.hear_stray_reply(&id);
        };
        match at {
            Stage::Withdrawn => {
                self.claude.asked.remove(&number);
                self.log(format_args!("an answer to a withdrawn request"));
                Ok(())
            }
            Stage::Hook if is_hook => self.hear_hook(number, said),
            Stage::Host if is_host => self.hear_verdict(number, said),
            Stage::Hook | Stage::Host => self.hear_stray_reply(&id),
        }
    }

    /// An answer to nothing that is open: wrong, unless the script asked by itself.
    fn hear_stray_reply(&mut self, id: &str) -> Result<(), Halt> {
        let shown = Foreign::from(id).show(60);
        if self.scripted.has_written {
            self.log(format_args!("no request is open with the id {shown}"));
            return Ok(());
        }
        self.wrong(format!("no request is open with the id {shown}"))
    }

    /// What the hook says.
    fn hear_hook(&mut self, number: u64, said: Result<Value, String>) -> Result<(), Halt> {
        let said = said.and_then(|said| {
            let says: HookSays = serde_json::from_value(said).map_err(|error| error.to_string())?;
            says.decision().map_err(str::to_owned)
        });
        let permission = match said {
            Err(why) => return self.wrong(format!("the hook's answer: {why}")),
            Ok(None) => return self.follow_own_rules(number),
            Ok(Some((Decision::Ask, reason))) => return self.ask_host(number, &reason),
            Ok(Some((Decision::Allow, _))) => Permission::Allowed,
            Ok(Some((Decision::Deny, reason))) if reason.is_empty() => {
                Permission::Denied(HOOK_DENIED.to_owned())
            }
            Ok(Some((Decision::Deny, reason))) => Permission::Denied(reason),
        };
        self.claude.asked.remove(&number);
        self.settle(|open| open == number, permission);
        Ok(())
    }

    /// What the host says. Who allows a call says the input that was asked about.
    fn hear_verdict(&mut self, number: u64, said: Result<Value, String>) -> Result<(), Halt> {
        let said = said.and_then(|said| {
            serde_json::from_value::<Verdict>(said).map_err(|error| error.to_string())
        });
        let asked = self.claude.asked.remove(&number);
        let permission = match said {
            Err(why) => return self.wrong(format!("the answer to a request: {why}")),
            Ok(Verdict::Allow { input }) => {
                if asked.is_none_or(|asked| asked.input != input) {
                    return self.wrong("another input was allowed than was asked about");
                }
                Permission::Allowed
            }
            Ok(Verdict::Deny { message }) if message.is_empty() => {
                return self.wrong("a call was denied without a reason");
            }
            Ok(Verdict::Deny { message }) => Permission::Denied(message),
        };
        self.settle(|open| open == number, permission);
        Ok(())
    }

    fn reply_claude(&mut self, id: &str, response: &Value) -> Result<(), Halt> {
        let inner = json!({"subtype": "success", "request_id": id, "response": response});
        self.out
            .send(&json!({"type": "control_response", "response": inner}))?;
        Ok(())
    }

    fn refuse_claude(&mut self, id: &str, why: &str) -> Result<(), Halt> {
        self.log(format_args!("refused: {why}"));
        let inner = json!({"subtype": "error", "request_id": id, "error": why});
        self.out
            .send(&json!({"type": "control_response", "response": inner}))?;
        Ok(())
    }
}
