//! The agent's lines in the format of `codex app-server`.
//!
//! Must not know the client's messages.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{MAX_OPEN_REQUESTS, items, request_id};
use crate::script_agent::agent_event::{
    AgentEvent, CallRequest, Output, TextFrame, ToolEnd, TurnEnd,
};
use crate::script_agent::template::{Fields, fields};
use marshal_model::limits::AGENT_OUTPUT_BYTES;

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis());
    u64::try_from(now).unwrap_or(u64::MAX)
}

impl Output<'_> {
    /// Queues the lines of an event behind what is queued.
    pub(crate) fn queue_codex_event(&mut self, event: &AgentEvent<'_>) -> io::Result<()> {
        match event {
            AgentEvent::TurnStarted => {
                self.queue_status("active")?;
                self.queue_turn("turn/started", "inProgress")
            }
            AgentEvent::Text(text) => self.queue_text(text),
            AgentEvent::Thought(text) => self.queue_thought(text),
            AgentEvent::Plan(entries) => {
                let step = |entry: &String| json!({"step": entry, "status": "pending"});
                let plan: Vec<Value> = entries.iter().map(step).collect();
                self.notify("turn/plan/updated", fields![plan])
            }
            AgentEvent::ToolStart { tool_id, call } => {
                self.end_text()?;
                let item = items::started_item(tool_id, call);
                self.notify("item/started", fields![item])?;
                self.codex.call = Some(item);
                Ok(())
            }
            AgentEvent::PermissionRequest(request) => self.queue_approval_request(request),
            AgentEvent::RequestWithdrawn { number } => {
                let Some(is_withdrawn) = self.codex.requests.get_mut(number) else {
                    return Ok(());
                };
                *is_withdrawn = true;
                self.queue_resolved(*number)
            }
            // The client knows, because it answered. The token counts report the context.
            AgentEvent::ToolRunning { .. } | AgentEvent::Context { .. } => Ok(()),
            AgentEvent::ToolEnd(end) => self.end_call(end),
            AgentEvent::TurnEnd(end) => {
                self.end_text()?;
                self.queue_usage(end)?;
                self.queue_status("idle")?;
                let how = ["completed", "interrupted"][usize::from(end.cancelled)];
                self.queue_turn("turn/completed", how)
            }
        }
    }

    /// The frame of a line with one piece of text.
    pub(crate) fn codex_text_frame(&mut self) -> io::Result<TextFrame> {
        let id = self.begin_text()?;
        let line = self.fill_notification(DELTA, fields![id, text: ""])?;
        Ok(TextFrame::around(&line))
    }

    fn queue_status(&mut self, name: &str) -> io::Result<()> {
        let status = self.fill(name, &[])?;
        self.notify("thread/status/changed", fields![status])
    }

    fn queue_turn(&mut self, method: &str, status: &str) -> io::Result<()> {
        let turn = self.fill("turn", fields![status])?;
        self.notify(method, fields![value: turn])
    }

    fn queue_text(&mut self, text: &str) -> io::Result<()> {
        let id = self.begin_text()?;
        self.notify(DELTA, fields![id, text])?;
        // Beyond the limit, the item's end contains only the beginning of its text.
        if let Some((_, all)) = &mut self.codex.text
            && all.len() < AGENT_OUTPUT_BYTES
        {
            all.push_str(text);
        }
        Ok(())
    }

    /// Begins an answer, unless one is in progress. Returns its item's id.
    fn begin_text(&mut self) -> io::Result<String> {
        if let Some((id, _)) = &self.codex.text {
            return Ok(id.clone());
        }
        let id = self.next_item("msg");
        let item = self.fill("agent_message", fields![id, text: ""])?;
        self.notify("item/started", fields![item])?;
        self.codex.text = Some((id.clone(), String::new()));
        Ok(id)
    }

    fn end_text(&mut self) -> io::Result<()> {
        let Some((id, text)) = self.codex.text.take() else {
            return Ok(());
        };
        let item = self.fill("agent_message", fields![id, text])?;
        self.notify("item/completed", fields![item])
    }

    fn queue_thought(&mut self, text: &str) -> io::Result<()> {
        self.end_text()?;
        let id = self.next_item("rs");
        let item = self.fill("reasoning", fields![id, summary: json!([])])?;
        self.notify("item/started", fields![item])?;
        let method = "item/reasoning/summaryTextDelta";
        self.notify(method, fields![id, text])?;
        let item = self.fill("reasoning", fields![id, summary: [text]])?;
        self.notify("item/completed", fields![item])
    }

    /// Queues the prompt as the first item of its turn.
    pub(super) fn queue_prompt(&mut self, text: &str) -> io::Result<()> {
        let id = self.next_item("user");
        let item = self.fill("user_message", fields![id, text])?;
        self.notify("item/started", fields![item])?;
        self.notify("item/completed", fields![item])
    }

    fn end_call(&mut self, end: &ToolEnd<'_>) -> io::Result<()> {
        let (outcome, output) = (end.outcome, &end.outcome.output);
        let item = self.codex.call.take();
        let item = item.unwrap_or_else(|| items::started_item(end.tool_id, end.call));
        if item["type"] == "commandExecution" && outcome.has_run && !output.is_empty() {
            let fields: Fields = fields![id: end.tool_id, text: output];
            self.notify("item/commandExecution/outputDelta", fields)?;
        }
        let item = items::completed_item(item, outcome, end.took_s);
        self.notify("item/completed", fields![item])
    }

    fn queue_approval_request(&mut self, request: &CallRequest<'_>) -> io::Result<()> {
        if self.codex.requests.len() >= MAX_OPEN_REQUESTS {
            self.codex.requests.pop_first();
        }
        self.codex.requests.insert(request.number, false);
        let item = items::started_item(request.tool_id, request.call);
        let kind = item["type"].as_str().unwrap_or_default();
        let method = format!("item/{kind}/requestApproval");
        let params = self.fill(
            &method,
            fields![
                id: request.tool_id, now: now_ms(), command: item["command"], cwd: item["cwd"],
                actions: item["commandActions"],
            ],
        )?;
        let id = request_id(request.number);
        let fields: Fields = fields![id, method, params];
        self.queue("request", fields)
    }

    /// Queues the notification that a request needs no answer any more.
    pub(super) fn queue_resolved(&mut self, number: u64) -> io::Result<()> {
        self.notify(
            "serverRequest/resolved",
            fields![request: request_id(number)],
        )
    }

    fn queue_usage(&mut self, end: &TurnEnd<'_>) -> io::Result<()> {
        let (read, written) = (end.input_tokens, end.output_tokens);
        // The tokens that an earlier process used count only for the context.
        let before = self.context.saturating_sub(read + written);
        let thread = self.codex.tokens.entry(self.session.to_owned());
        let all = thread.or_insert((before, 0));
        all.0 += read;
        all.1 += written;
        let (all_read, all_written) = *all;
        let total = self.fill_tokens(all_read, all_written, all_read + all_written)?;
        let last = self.fill_tokens(read, written, self.context)?;
        self.notify("thread/tokenUsage/updated", fields![total, last])
    }

    fn fill_tokens(&self, read: u64, written: u64, total: u64) -> io::Result<Box<RawValue>> {
        self.fill("tokens", fields![read, written, total])
    }

    fn next_item(&mut self, kind: &str) -> String {
        self.codex.items += 1;
        format!("{kind}_{}", self.codex.items)
    }

    /// Queues a notification, unless the client opted out of it.
    pub(super) fn notify(&mut self, method: &str, fields: Fields<'_>) -> io::Result<()> {
        if self.codex.muted_methods.contains(method) {
            return Ok(());
        }
        let line = self.fill_notification(method, fields)?;
        self.out.queue(&line)
    }

    fn fill_notification(&self, method: &str, fields: Fields<'_>) -> io::Result<Box<RawValue>> {
        let now = now_ms();
        let params = self.fill(method, &[fields, fields![now]].concat())?;
        let fields: Fields = fields![method, params, now];
        self.fill("notification", fields)
    }
}

/// The method of a piece of an answer.
const DELTA: &str = "item/agentMessage/delta";
