//! How the agent's lines look as those of `codex app-server`.
//!
//! Must not know what the client says.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use super::{OPEN, Talk, items, request_id};
use crate::cli::script_agent::agent::CONTEXT_WINDOW;
use crate::cli::script_agent::pipes::Outbox;
use crate::cli::script_agent::said::{Moment, Said, TextFrame};
use crate::cli::script_agent::step::Call;
use crate::limits::AGENT_OUTPUT_BYTES;

/// A notification, its members in the order in which the program writes them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Notification<'a, P> {
    method: &'a str,
    params: P,
    emitted_at_ms: u64,
}

/// A piece of an answer: the most frequent one.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Piece<'a> {
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

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_millis());
    u64::try_from(now).unwrap_or(u64::MAX)
}

impl Talk {
    /// Puts what is said behind what is queued.
    pub(crate) fn queue(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        said: &Said<'_>,
    ) -> io::Result<()> {
        match said {
            Said::TurnStarted => {
                self.tell(out, "thread/status/changed", json!({"threadId": moment.session, "status": {"type": "active", "activeFlags": []}}))?;
                self.tell(out, "turn/started", turn_of(moment, "inProgress"))
            }
            Said::Text(text) => self.text(out, moment, text),
            Said::Thought(text) => self.thought(out, moment, text),
            Said::Plan(entries) => {
                let step = |entry: &String| json!({"step": entry, "status": "pending"});
                let plan: Vec<Value> = entries.iter().map(step).collect();
                let params = json!({
                    "threadId": moment.session, "turnId": moment.turn,
                    "explanation": null, "plan": plan,
                });
                self.tell(out, "turn/plan/updated", params)
            }
            Said::ToolStart { tool_id, call } => {
                self.end_text(out, moment)?;
                let item = items::begun(tool_id, call);
                self.item(out, moment, "item/started", &item)?;
                self.call = Some(item);
                Ok(())
            }
            Said::Ask {
                number,
                tool_id,
                call,
            } => self.ask(out, moment, *number, (tool_id, call)),
            Said::Withdrawn { number } => {
                if let Some(is_withdrawn) = self.asked.get_mut(number) {
                    *is_withdrawn = true;
                    self.resolved(out, moment.session, *number)?;
                }
                Ok(())
            }
            // The client knows: it was asked. The context is told with the tokens.
            Said::ToolRuns { .. } | Said::Context { .. } => Ok(()),
            Said::ToolEnd {
                tool_id,
                call,
                end,
                took_s,
            } => {
                let item = self.call.take();
                let item = item.unwrap_or_else(|| items::begun(tool_id, call));
                if item["type"] == "commandExecution" && end.has_run && !end.output.is_empty() {
                    let delta = delta(moment, tool_id, &end.output);
                    self.tell(out, "item/commandExecution/outputDelta", delta)?;
                }
                let item = items::ended(item, end, *took_s);
                self.item(out, moment, "item/completed", &item)
            }
            Said::TurnEnd {
                cancelled,
                input_tokens,
                output_tokens,
                ..
            } => {
                self.end_text(out, moment)?;
                self.used(out, moment, (*input_tokens, *output_tokens))?;
                let how = if *cancelled {
                    "interrupted"
                } else {
                    "completed"
                };
                self.tell(
                    out,
                    "thread/status/changed",
                    json!({"threadId": moment.session, "status": {"type": "idle"}}),
                )?;
                self.tell(out, "turn/completed", turn_of(moment, how))
            }
        }
    }

    /// The line of one piece of text.
    pub(crate) fn text_frame(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
    ) -> io::Result<TextFrame> {
        let id = self.begin_text(out, moment)?;
        let line = notification("item/agentMessage/delta", delta(moment, &id, ""));
        Ok(TextFrame::around(serde_json::to_vec(&line)?))
    }

    fn text(&mut self, out: &mut Outbox, moment: &Moment<'_>, text: &str) -> io::Result<()> {
        let id = self.begin_text(out, moment)?;
        let delta = delta(moment, &id, text);
        self.tell(out, "item/agentMessage/delta", delta)?;
        // Beyond that the item's end has the beginning of its text.
        if let Some((_, all)) = &mut self.text
            && all.len() < AGENT_OUTPUT_BYTES
        {
            all.push_str(text);
        }
        Ok(())
    }

    /// Begins an answer, unless one is being told; gives its item's id.
    fn begin_text(&mut self, out: &mut Outbox, moment: &Moment<'_>) -> io::Result<String> {
        if let Some((id, _)) = &self.text {
            return Ok(id.clone());
        }
        let id = self.next_item("msg");
        let item = json!({"type": "agentMessage", "id": id, "text": ""});
        self.item(out, moment, "item/started", &item)?;
        self.text = Some((id.clone(), String::new()));
        Ok(id)
    }

    fn end_text(&mut self, out: &mut Outbox, moment: &Moment<'_>) -> io::Result<()> {
        let Some((id, text)) = self.text.take() else {
            return Ok(());
        };
        let item = json!({"type": "agentMessage", "id": id, "text": text});
        self.item(out, moment, "item/completed", &item)
    }

    fn thought(&mut self, out: &mut Outbox, moment: &Moment<'_>, text: &str) -> io::Result<()> {
        self.end_text(out, moment)?;
        let id = self.next_item("rs");
        let item = |summary: &[&str]| json!({"type": "reasoning", "id": id, "summary": summary, "content": []});
        self.item(out, moment, "item/started", &item(&[]))?;
        let params = json!({
            "threadId": moment.session, "turnId": moment.turn, "itemId": id,
            "delta": text, "summaryIndex": 0,
        });
        self.tell(out, "item/reasoning/summaryTextDelta", params)?;
        self.item(out, moment, "item/completed", &item(&[text]))
    }

    /// Our own prompt again, as the first item of a turn.
    pub(super) fn prompt(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        text: &str,
    ) -> io::Result<()> {
        let id = self.next_item("user");
        let content = json!([{"type": "text", "text": text, "text_elements": []}]);
        let item = json!({"type": "userMessage", "id": id, "content": content});
        self.item(out, moment, "item/started", &item)?;
        self.item(out, moment, "item/completed", &item)
    }

    fn ask(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        number: u64,
        (tool_id, call): (&str, &Call),
    ) -> io::Result<()> {
        if self.asked.len() >= OPEN {
            self.asked.pop_first();
        }
        self.asked.insert(number, false);
        let mut params = json!({
            "threadId": moment.session, "turnId": moment.turn, "itemId": tool_id,
            "startedAtMs": now_ms(), "reason": null,
        });
        let method = if matches!(call, Call::WriteFile { .. }) {
            params["grantRoot"] = Value::Null;
            "item/fileChange/requestApproval"
        } else {
            let item = items::begun(tool_id, call);
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

    /// A request wants no answer any more.
    pub(super) fn resolved(&self, out: &mut Outbox, thread: &str, number: u64) -> io::Result<()> {
        let params = json!({"threadId": thread, "requestId": request_id(number)});
        self.tell(out, "serverRequest/resolved", params)
    }

    fn used(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        (read, written): (u64, u64),
    ) -> io::Result<()> {
        let sum = |read: u64, written: u64| {
            json!({
                "totalTokens": read + written, "inputTokens": read, "cachedInputTokens": 0,
                "cacheWriteInputTokens": 0, "outputTokens": written, "reasoningOutputTokens": 0,
            })
        };
        // What an earlier process used is in the context alone.
        let before = moment.context.saturating_sub(read + written);
        let all = self.tokens.entry(moment.session.to_owned());
        let all = all.or_insert((before, 0));
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
        self.tell(out, "thread/tokenUsage/updated", params)
    }

    fn next_item(&mut self, kind: &str) -> String {
        self.items += 1;
        format!("{kind}_{}", self.items)
    }

    fn item(
        &self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        method: &str,
        item: &Value,
    ) -> io::Result<()> {
        let mut params = json!({"item": item, "threadId": moment.session, "turnId": moment.turn});
        let ends = method == "item/completed";
        params[if ends { "completedAtMs" } else { "startedAtMs" }] = json!(now_ms());
        self.tell(out, method, params)
    }

    /// Tells something, unless the client does not want it.
    pub(super) fn tell(
        &self,
        out: &mut Outbox,
        method: &str,
        params: impl Serialize,
    ) -> io::Result<()> {
        if self.unwanted.contains(method) {
            return Ok(());
        }
        out.queue(&notification(method, params))
    }
}

fn delta<'a>(moment: &Moment<'a>, item_id: &'a str, delta: &'a str) -> Piece<'a> {
    Piece {
        thread_id: moment.session,
        turn_id: moment.turn,
        item_id,
        delta,
    }
}

fn turn_of(moment: &Moment<'_>, status: &str) -> Value {
    json!({"threadId": moment.session, "turn": turn(moment.turn, status)})
}

/// A turn, as it is told.
pub(super) fn turn(id: &str, status: &str) -> Value {
    json!({"id": id, "items": [], "status": status, "error": null})
}
