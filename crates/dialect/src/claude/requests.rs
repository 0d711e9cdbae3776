//! The agent's requests: permission to use a tool, hook calls, and unsupported ones.
//!
//! Must not know the content of a turn.

use super::message::{CanUseTool, Hook};
use super::{Claude, Turn, write};
use crate::driver::Protocol as _;
use crate::mcp_tool_call::McpToolCall;
use crate::{Effect, Effects, OUT_OF_STATE, report_bad_line};
use marshal_model::limits;
use marshal_model::{AgentClaims, Event, PermissionRequest, UntrustedText};

/// Tools that change only the agent's own lists, modes and choice of tools, or that ask a person by
/// themselves. For these the program's own rules decide whether it asks.
const OWN_TOOLS: [&str; 9] = [
    "AskUserQuestion",
    "EnterPlanMode",
    "ExitPlanMode",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskUpdate",
    "TodoWrite",
    "ToolSearch",
];

impl Claude {
    /// Whether a turn runs, so that a request may come.
    fn is_in_turn(&self) -> bool {
        matches!(self.turn, Turn::Sent | Turn::Running)
    }

    /// The agent requests permission to use a tool.
    pub(super) fn handle_permission_request(
        &mut self,
        id: &str,
        wanted: &CanUseTool<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        if self.cancelling || self.channel.is_shutting_down {
            return self.deny_at_once(id, "the turn was cancelled", out);
        }
        if !self.channel.is_ready() || !self.is_in_turn() {
            report_bad_line(OUT_OF_STATE, line, out);
            return self.deny_at_once(id, "no turn is running", out);
        }
        self.note_turn_activity(out);
        let raw = wanted.input;
        // Input beyond the limit of a permission request is evaluated as such, and never allowed.
        let stored_input =
            (raw.get().len() <= limits::PERMISSION_INPUT_BYTES).then(|| raw.to_owned());
        let no_allow = stored_input.is_none();
        let key = match self.open_requests.open(&mut self.ids, id, stored_input) {
            Ok(key) => key,
            Err(clash) => {
                report_bad_line(clash.as_str(), line, out);
                self.deny_at_once(id, clash.describe(), out);
                return self.count_rejection(clash, out);
            }
        };
        let reason = wanted.reason();
        out.push(Effect::PermissionRequest(PermissionRequest {
            key,
            tool_id: wanted.call(),
            tool: UntrustedText::from(wanted.tool_name.as_str()),
            input: raw.to_owned(),
            claims: AgentClaims {
                active_mode: self.settings.mode.clone(),
                reason: reason.filter(|reason| reason.raw() != write::HOOK_REASON),
                title: wanted.title(),
                has_no_allow_option: no_allow,
                ..AgentClaims::default()
            },
        }));
    }

    /// Denies a request without asking anybody.
    fn deny_at_once(&mut self, id: &str, reason: &str, out: &mut Effects) {
        self.open_requests.withdraw(id, out);
        out.push(Effect::Write(write::deny(id, reason)));
    }

    /// Rejects a request of unknown shape.
    pub(super) fn reject_unreadable(&mut self, id: &str, line: &[u8], out: &mut Effects) {
        report_bad_line("bad_shape", line, out);
        self.answer_unreadable(id, out);
    }

    pub(super) fn answer_unreadable(&mut self, id: &str, out: &mut Effects) {
        self.open_requests.withdraw(id, out);
        out.push(Effect::Write(write::error(
            id,
            "the request cannot be read",
        )));
    }
}

/// Our hook's answer before a tool is used: ask. Any other hook is not ours.
pub(super) fn answer_hook(id: &str, hook: &Hook<'_>, out: &mut Effects) {
    let is_ours = hook.callback_id.0 == write::HOOK;
    let line = match hook.tool() {
        _ if !is_ours => write::error(id, "the host has no such hook"),
        Some(tool) if OWN_TOOLS.contains(&tool.0.as_ref()) => write::hook_says_nothing(id),
        Some(_) => write::hook_asks(id),
        None => write::hook_denies(id),
    };
    out.push(Effect::Write(line));
}

/// Records an unsupported request and answers it with an error.
pub(super) fn refuse_unsupported(id: &str, word: &UntrustedText, line: &[u8], out: &mut Effects) {
    if let Ok(raw) = serde_json::from_slice(line) {
        let raw: &serde_json::value::RawValue = raw;
        let tag = format!("control_request/{}", word.raw());
        out.push(Effect::Event(Event::Unknown {
            tag: tag.into(),
            raw: raw.to_owned(),
        }));
    }
    out.push(Effect::Write(write::error(
        id,
        "the host does not serve this request",
    )));
}

/// The tool of that server for which permission is requested: the agent names both in its tool's
/// name.
pub(crate) fn parse_mcp_tool_call(
    request: &PermissionRequest,
    server: &str,
) -> Option<McpToolCall> {
    let tool = request
        .tool
        .raw()
        .strip_prefix("mcp__")?
        .strip_prefix(server)?;
    let arguments: serde_json::Value = serde_json::from_str(request.input.get()).ok()?;
    arguments.is_object().then_some(McpToolCall {
        tool: tool.strip_prefix("__")?.to_owned(),
        arguments,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use marshal_model::PermissionRequestKey;

    fn request(tool: &str, input: &serde_json::Value) -> PermissionRequest {
        PermissionRequest {
            key: PermissionRequestKey {
                id: "\"r-1\"".to_owned(),
                serial: 1,
            },
            tool_id: Some("toolu_1".into()),
            tool: tool.into(),
            input: serde_json::value::to_raw_value(input).expect("JSON"),
            claims: AgentClaims::default(),
        }
    }

    #[test]
    fn a_tool_of_a_server_is_known_by_its_name_alone() {
        let input = json!({"path": "/workspace/a"});
        let found = parse_mcp_tool_call(&request("mcp__marshal__read_file", &input), "marshal");
        let wanted = McpToolCall {
            tool: "read_file".to_owned(),
            arguments: input.clone(),
        };
        assert_eq!(found, Some(wanted));
        for (tool, input) in [
            ("mcp__search__read_file", &input),
            ("mcp__marshal2__read_file", &input),
            ("mcp__marshal_read_file", &input),
            ("marshal__read_file", &input),
            ("Read", &input),
            ("mcp__marshal__read_file", &json!("path")),
        ] {
            assert_eq!(
                parse_mcp_tool_call(&request(tool, input), "marshal"),
                None,
                "{tool} {input}"
            );
        }
    }
}
