//! `show`: one session from the journal: task, attempts, permission requests, tools, changes and exit.
//!
//! Must not know how the journal is written. Every line is safe to show.

mod text;

use std::path::Path;

use serde_json::{Value, json};

use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::streams::Streams;
use marshal_journal::codec;
use marshal_journal::{Reader, StoredPermissionRequest, StoredSession, StoredTask};
use marshal_model::budget::{Amount, NANOS_PER_DOLLAR};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display as safe;
use marshal_model::{
    Decision, Event, ExitClass, ExitStatus, RunId, SessionId, TaskId, UntrustedText,
};

/// One tool call.
struct Tool {
    id: UntrustedText,
    name: UntrustedText,
    input: String,
    /// Whether it failed; `None` until it has ended.
    is_error: Option<bool>,
    /// What the policy would have decided, and by which rules, if it ran without a permission request.
    unasked: Option<(Decision, Vec<String>)>,
}

/// The last exit of a child.
struct LastExit {
    class: ExitClass,
    status: Option<ExitStatus>,
    detail: String,
    stderr: Vec<UntrustedText>,
}

/// The facts of one session.
struct Facts {
    session: StoredSession,
    events: u64,
    bytes: u64,
    tasks: Vec<StoredTask>,
    attempts: Vec<StoredSession>,
    requests: Vec<StoredPermissionRequest>,
    tools: Vec<Tool>,
    /// The number of tool calls that are not listed.
    more_tools: u64,
    exit: Option<LastExit>,
    spent: Amount,
}

/// Shows a session.
pub fn show(state: &Path, session: &SessionId, json: bool, streams: &mut Streams) -> Exit {
    let facts = open_journal(state).and_then(|reader| facts(&reader, session));
    match facts {
        Ok(facts) if json => {
            streams.out.json(&document(&facts).to_string());
            Exit::Done
        }
        Ok(facts) => {
            for line in text::lines(&facts) {
                let shown = safe(&line, streams.width.max(2));
                streams.out.line(&shown);
            }
            Exit::Done
        }
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            error.exit()
        }
    }
}

fn facts(reader: &Reader, session: &SessionId) -> Result<Facts, JournalError> {
    let stored = reader
        .session(session)?
        .ok_or_else(|| JournalError::NoSession(session.clone()))?;
    let run = stored.run.as_ref().and_then(|run| RunId::new(run).ok());
    let task = stored.task.as_ref().and_then(|task| TaskId::new(task).ok());
    let attempts = match run.zip(task) {
        Some((run, task)) => reader.attempts(&run, &task)?,
        None => Vec::new(),
    };
    let mut facts = Facts {
        events: reader.last_seq(session)?,
        bytes: reader.session_bytes(session)?,
        tasks: reader.tasks_of_session(&stored)?,
        attempts,
        requests: reader.permission_requests(session)?,
        tools: Vec::new(),
        more_tools: 0,
        exit: None,
        spent: reader.session_spend(session)?,
        session: stored,
    };
    let mut after = 0;
    loop {
        let (count, bytes) = (limits::CATCH_UP_EVENTS, limits::CATCH_UP_BYTES);
        let page = reader.events_page(session, after, count, bytes)?;
        let Some(last) = page.last() else {
            return Ok(facts);
        };
        after = last.id.seq;
        for event in &page {
            // Decode only these kinds: long answers need not be parsed.
            if matches!(
                event.kind.as_str(),
                "tool_start"
                    | "tool_update"
                    | "tool_result"
                    | "tool_call_unrequested"
                    | "child_exited"
            ) && let Ok(stamped) = event.decode()
            {
                facts.event(stamped.event);
            }
        }
    }
}

impl Facts {
    fn event(&mut self, event: Event) {
        match event {
            Event::ToolStart { id, name, input } => {
                if self.tools.len() >= limits::TOOL_CALLS_LISTED {
                    self.more_tools += 1;
                    return;
                }
                self.tools.push(Tool {
                    id,
                    name,
                    input: input.get().to_owned(),
                    is_error: None,
                    unasked: None,
                });
            }
            Event::ToolUpdate {
                id,
                name,
                input: Some(input),
                ..
            } => {
                let call = self.tools.iter_mut().rev().find(|tool| tool.id == id);
                if let Some(call) = call {
                    call.name = name.unwrap_or_else(|| call.name.clone());
                    input.get().clone_into(&mut call.input);
                }
            }
            Event::UnrequestedToolCall {
                id,
                decision,
                rules,
                ..
            } => {
                let call = self.tools.iter_mut().rev().find(|tool| tool.id == id);
                if let Some(call) = call {
                    call.unasked = Some((decision, rules));
                }
            }
            Event::ToolResult { id, is_error, .. } => {
                let open = self.tools.iter_mut().rev().find(|tool| tool.id == id);
                if let Some(tool) = open {
                    tool.is_error = Some(is_error);
                }
            }
            Event::ChildExited {
                class,
                status,
                detail,
                stderr,
                ..
            } => {
                self.exit = Some(LastExit {
                    class,
                    status,
                    detail,
                    stderr,
                });
            }
            _ => {}
        }
    }

    /// The report of the task whose last session this is.
    fn report(&self) -> Option<codec::Report<'static>> {
        let mut tasks = self.tasks.iter();
        let own = tasks.find(|task| task.session.as_ref() == Some(&self.session.session))?;
        codec::read_report(own.result.as_deref()?).ok()
    }
}

impl Tool {
    const fn as_str(&self) -> &'static str {
        match self.is_error {
            None => "open",
            Some(true) => "error",
            Some(false) => "ok",
        }
    }
}

fn rules(request: &StoredPermissionRequest) -> Vec<String> {
    let text = request.rules.as_deref().unwrap_or("[]");
    serde_json::from_str(text).unwrap_or_default()
}

fn document(facts: &Facts) -> Value {
    let session = &facts.session;
    let task = |task: &StoredTask| {
        json!({
            "id": task.id, "state": task.state, "outcome": task.outcome, "detail": task.detail,
            "prompt": task.prompt.raw(), "attempts": task.attempts,
        })
    };
    let attempt = |attempt: &StoredSession| {
        json!({
            "attempt": attempt.attempt, "session": attempt.session,
            "begun_at_us": attempt.begun_at_us, "ended_at_us": attempt.ended_at_us,
            "class": attempt.class,
        })
    };
    let input = |text: &str| {
        let read = serde_json::from_str::<Value>(text);
        read.unwrap_or_else(|_| Value::from(text))
    };
    let request = |request: &StoredPermissionRequest| {
        json!({
            "id": request.id, "requested_seq": request.requested_seq, "decided_seq": request.decided_seq,
            "tool": request.tool.raw(), "input": request.input.as_deref().map(input),
            "decision": request.decision, "decided_by": request.decided_by, "rules": rules(request),
            "reason": request.reason, "policy": request.policy, "link": request.link,
        })
    };
    let tool = |tool: &Tool| {
        json!({
            "id": tool.id.raw(), "name": tool.name.raw(), "input": input(&tool.input),
            "state": tool.as_str(),
            "unasked": tool.unasked.as_ref().map(|(decision, rules)| {
                json!({"decision": decision.as_str(), "rules": rules})
            }),
        })
    };
    let exit = facts.exit.as_ref().map(|exit| {
        json!({
            "class": exit.class.as_str(), "code": exit.status.map(ExitStatus::shell_code),
            "detail": exit.detail,
            "stderr": exit.stderr.iter().map(UntrustedText::raw).collect::<Vec<_>>(),
        })
    });
    let report = facts.report();
    let changes = report.iter().flat_map(|report| &report.changes);
    let changes: Vec<Value> = changes
        .map(|change| json!({"kind": change.kind, "path": change.path}))
        .collect();
    json!({
        "v": 1,
        "session": session.session, "epoch": session.epoch, "pool": session.pool,
        "slot": format!("{}/{}", session.pool, session.slot), "run": session.run,
        "begun_at_us": session.begun_at_us, "ended_at_us": session.ended_at_us,
        "events": facts.events, "bytes": facts.bytes,
        "tasks": facts.tasks.iter().map(task).collect::<Vec<_>>(),
        "attempts": facts.attempts.iter().map(attempt).collect::<Vec<_>>(),
        "permission_requests": facts.requests.iter().map(request).collect::<Vec<_>>(),
        "tools": facts.tools.iter().map(tool).collect::<Vec<_>>(),
        "more_tools": facts.more_tools,
        "exit": exit, "changes": changes,
        "answer": report.as_ref().map(|report| report.answer.as_ref()),
        "cost_usd": facts.spent.nanodollars as f64 / NANOS_PER_DOLLAR as f64,
    })
}
