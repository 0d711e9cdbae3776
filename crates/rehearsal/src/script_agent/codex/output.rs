//! The agent's lines in the format of `codex app-server`.
//!
//! Must not know the client's messages.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use super::{Conversation, MAX_OPEN_REQUESTS, items, request_id};
use crate::script_agent::agent::CONTEXT_WINDOW;
use crate::script_agent::agent_event::{AgentEvent, EventContext, TextFrame};
use crate::script_agent::pipes::Outbox;
use crate::script_agent::step::ToolCall;
use marshal_model::limits::AGENT_OUTPUT_BYTES;

/// A notification, with its members in the program's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Notification<'a, P> {
    method: &'a str,
    params: P,
    emitted_at_ms: u64,
}

/// A piece of an answer, which is the most frequent notification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeltaParams<'a> {
    thread_id: &'a str,
    turn_id: &'a str,
    item_id: &'a str,
    delta: &'a str,
}

fn notification<P: Serialize>(method: &str, params: P) -> Notification<'_, P> {
    Notification {
        method,
        params,
        emitted_at_ms: now_ms(),
    }
}

/// Milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis());
    u64::try_from(now).unwrap_or(u64::MAX)
}

impl Conversation {
    /// Queues the lines of an event behind what is queued.
    pub(crate) fn queue_event(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        event: &AgentEvent<'_>,
    ) -> io::Result<()> {
        match event {
            AgentEvent::TurnStarted => {
                self.queue_notification(out, "thread/status/changed", json!({"threadId": moment.session, "status": {"type": "active", "activeFlags": []}}))?;
                self.queue_notification(out, "turn/started", turn_params(moment, "inProgress"))
            }
            AgentEvent::Text(text) => self.queue_text(out, moment, text),
            AgentEvent::Thought(text) => self.queue_thought(out, moment, text),
            AgentEvent::Plan(entries) => {
                let step = |entry: &String| json!({"step": entry, "status": "pending"});
                let plan: Vec<Value> = entries.iter().map(step).collect();
                let params = json!({
                    "threadId": moment.session, "turnId": moment.turn,
                    "explanation": null, "plan": plan,
                });
                self.queue_notification(out, "turn/plan/updated", params)
            }
            AgentEvent::ToolStart { tool_id, call } => {
                self.end_text(out, moment)?;
                let item = items::started_item(tool_id, call);
                self.queue_item(out, moment, "item/started", &item)?;
                self.call = Some(item);
                Ok(())
            }
            AgentEvent::PermissionRequest {
                number,
                tool_id,
                call,
            } => self.queue_approval_request(out, moment, *number, (tool_id, call)),
            AgentEvent::RequestWithdrawn { number } => {
                if let Some(is_withdrawn) = self.requests.get_mut(number) {
                    *is_withdrawn = true;
                    self.queue_resolved(out, moment.session, *number)?;
                }
                Ok(())
            }
            // The client knows, because it answered. The token counts report the context.
            AgentEvent::ToolRunning { .. } | AgentEvent::Context { .. } => Ok(()),
            AgentEvent::ToolEnd {
                tool_id,
                call,
                end,
                took_s,
            } => {
                let item = self
                    .call
                    .take()
                    .unwrap_or_else(|| items::started_item(tool_id, call));
                if item["type"] == "commandExecution" && end.has_run && !end.output.is_empty() {
                    let delta = delta_params(moment, tool_id, &end.output);
                    self.queue_notification(out, "item/commandExecution/outputDelta", delta)?;
                }
                let item = items::completed_item(item, end, *took_s);
                self.queue_item(out, moment, "item/completed", &item)
            }
            AgentEvent::TurnEnd {
                cancelled,
                input_tokens,
                output_tokens,
                ..
            } => {
                self.end_text(out, moment)?;
                self.queue_usage(out, moment, (*input_tokens, *output_tokens))?;
                let how = if *cancelled {
                    "interrupted"
                } else {
                    "completed"
                };
                self.queue_notification(
                    out,
                    "thread/status/changed",
                    json!({"threadId": moment.session, "status": {"type": "idle"}}),
                )?;
                self.queue_notification(out, "turn/completed", turn_params(moment, how))
            }
        }
    }

    /// The frame of a line with one piece of text.
    pub(crate) fn text_frame(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
    ) -> io::Result<TextFrame> {
        let id = self.begin_text(out, moment)?;
        let line = notification("item/agentMessage/delta", delta_params(moment, &id, ""));
        Ok(TextFrame::around(serde_json::to_vec(&line)?))
    }

    fn queue_text(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        text: &str,
    ) -> io::Result<()> {
        let id = self.begin_text(out, moment)?;
        let delta = delta_params(moment, &id, text);
        self.queue_notification(out, "item/agentMessage/delta", delta)?;
        // Beyond the limit, the item's end contains only the beginning of its text.
        if let Some((_, all)) = &mut self.text
            && all.len() < AGENT_OUTPUT_BYTES
        {
            all.push_str(text);
        }
        Ok(())
    }

    /// Begins an answer, unless one is in progress. Returns its item's id.
    fn begin_text(&mut self, out: &mut Outbox, moment: &EventContext<'_>) -> io::Result<String> {
        if let Some((id, _)) = &self.text {
            return Ok(id.clone());
        }
        let id = self.next_item("msg");
        let item = json!({"type": "agentMessage", "id": id, "text": ""});
        self.queue_item(out, moment, "item/started", &item)?;
        self.text = Some((id.clone(), String::new()));
        Ok(id)
    }

    fn end_text(&mut self, out: &mut Outbox, moment: &EventContext<'_>) -> io::Result<()> {
        let Some((id, text)) = self.text.take() else {
            return Ok(());
        };
        let item = json!({"type": "agentMessage", "id": id, "text": text});
        self.queue_item(out, moment, "item/completed", &item)
    }

    fn queue_thought(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        text: &str,
    ) -> io::Result<()> {
        self.end_text(out, moment)?;
        let id = self.next_item("rs");
        let item = |summary: &[&str]| json!({"type": "reasoning", "id": id, "summary": summary, "content": []});
        self.queue_item(out, moment, "item/started", &item(&[]))?;
        let params = json!({
            "threadId": moment.session, "turnId": moment.turn, "itemId": id,
            "delta": text, "summaryIndex": 0,
        });
        self.queue_notification(out, "item/reasoning/summaryTextDelta", params)?;
        self.queue_item(out, moment, "item/completed", &item(&[text]))
    }

    /// Queues the prompt as the first item of its turn.
    pub(super) fn queue_prompt(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        text: &str,
    ) -> io::Result<()> {
        let id = self.next_item("user");
        let content = json!([{"type": "text", "text": text, "text_elements": []}]);
        let item = json!({"type": "userMessage", "id": id, "content": content});
        self.queue_item(out, moment, "item/started", &item)?;
        self.queue_item(out, moment, "item/completed", &item)
    }

    fn queue_approval_request(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        number: u64,
        (tool_id, call): (&str, &ToolCall),
    ) -> io::Result<()> {
        if self.requests.len() >= MAX_OPEN_REQUESTS {
            self.requests.pop_first();
        }
        self.requests.insert(number, false);
        let mut params = json!({
            "threadId": moment.session, "turnId": moment.turn, "itemId": tool_id,
            "startedAtMs": now_ms(), "reason": null,
        });
        let method = if matches!(call, ToolCall::WriteFile { .. }) {
            params["grantRoot"] = Value::Null;
            "item/fileChange/requestApproval"
        } else {
            let item = items::started_item(tool_id, call);
            params["kind"] = json!("command");
            params["environmentId"] = json!("local");
            for member in ["command", "cwd", "commandActions"] {
                params[member] = item[member].clone();
            }
            params["availableDecisions"] = json!(["accept", "acceptForSession", "cancel"]);
            "item/commandExecution/requestApproval"
        };
        out.queue(&json!({"method": method, "id": request_id(number), "params": params}))
    }

    /// Queues the notification that a request needs no answer any more.
    pub(super) fn queue_resolved(
        &self,
        out: &mut Outbox,
        thread: &str,
        number: u64,
    ) -> io::Result<()> {
        let params = json!({"threadId": thread, "requestId": request_id(number)});
        self.queue_notification(out, "serverRequest/resolved", params)
    }

    fn queue_usage(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        (read, written): (u64, u64),
    ) -> io::Result<()> {
        let sum = |read: u64, written: u64| {
            json!({
                "totalTokens": read + written, "inputTokens": read, "cachedInputTokens": 0,
                "cacheWriteInputTokens": 0, "outputTokens": written, "reasoningOutputTokens": 0,
            })
        };
        // The tokens that an earlier process used count only for the context.
        let before = moment.context.saturating_sub(read + written);
        let all = self
            .tokens
            .entry(moment.session.to_owned())
            .or_insert((before, 0));
        all.0 += read;
        all.1 += written;
        let mut last = sum(read, written);
        last["totalTokens"] = json!(moment.context);
        let usage = json!({
            "total": sum(all.0, all.1), "last": last, "modelContextWindow": CONTEXT_WINDOW,
        });
        let params = json!({
            "threadId": moment.session, "turnId": moment.turn, "tokenUsage": usage,
        });
        self.queue_notification(out, "thread/tokenUsage/updated", params)
    }

    fn next_item(&mut self, kind: &str) -> String {
        self.items += 1;
        format!("{kind}_{}", self.items)
    }

    fn queue_item(
        &self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        method: &str,
        item: &Value,
    ) -> io::Result<()> {
        let mut params = json!({"item": item, "threadId": moment.session, "turnId": moment.turn});
        let ends = method == "item/completed";
        params[if ends { "completedAtMs" } else { "startedAtMs" }] = json!(now_ms());
        self.queue_notification(out, method, params)
    }

    /// Queues a notification, unless the client opted out of it.
    pub(super) fn queue_notification(
        &self,
        out: &mut Outbox,
        method: &str,
        params: impl Serialize,
    ) -> io::Result<()> {
        if self.muted_methods.contains(method) {
            return Ok(());
        }
        out.queue(&notification(method, params))
    }
}

fn delta_params<'a>(
    moment: &EventContext<'a>,
    item_id: &'a str,
    delta: &'a str,
) -> DeltaParams<'a> {
    DeltaParams {
        thread_id: moment.session,
        turn_id: moment.turn,
        item_id,
        delta,
    }
}

fn turn_params(moment: &EventContext<'_>, status: &str) -> Value {
    json!({"threadId": moment.session, "turn": turn_json(moment.turn, status)})
}

/// The JSON of a turn.
pub(super) fn turn_json(id: &str, status: &str) -> Value {
    json!({"id": id, "items": [], "status": status, "error": null})
}
