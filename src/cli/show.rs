//! `show`: one session from the journal: facts, task, attempts, permission requests, tools and
//! exit.
//!
//! Must not know how the journal is written. Every line is safe to show.

use std::path::Path;

use serde_json::{Value, json};

use super::event_text::time;
use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::streams::Streams;
use marshal_config::show_size;
use marshal_journal::codec;
use marshal_journal::{Reader, StoredPermissionRequest, StoredSession, StoredTask};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display as safe;
use marshal_model::{Event, ExitClass, ExitStatus, RunId, SessionId, TaskId, UntrustedText};

/// Columns shown of an untrusted word.
const WORD: usize = 40;
/// Columns shown of an untrusted sentence.
const SENTENCE: usize = 400;

/// One tool call.
struct Tool {
    id: UntrustedText,
    name: UntrustedText,
    input: String,
    /// Whether it failed; `None` until it has ended.
    is_error: Option<bool>,
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
            for line in lines(&facts) {
                let shown = cut(&line, streams.width);
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

/// Prints lines, which are safe to show; cuts them at the width.
fn cut(line: &str, width: usize) -> String {
    safe(line, width.max(2))
}

fn facts(reader: &Reader, session: &SessionId) -> Result<Facts, JournalError> {
    let stored = reader.session(session)?;
    let stored = stored.ok_or_else(|| JournalError::NoSession(session.clone()))?;
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
                "tool_start" | "tool_result" | "child_exited"
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
                });
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

    /// The changed files in the task's report, if this session is the last one of the task.
    fn changes(&self) -> Vec<(String, String)> {
        let tasks = self.tasks.iter();
        let own = tasks.filter(|task| task.session.as_ref() == Some(&self.session.session));
        let reports = own.filter_map(|task| codec::read_report(task.result.as_deref()?).ok());
        let changes = reports.flat_map(|report| {
            let change = |change: codec::ChangedFile<'_>| {
                (change.kind.into_owned(), change.path.into_owned())
            };
            report.changes.into_iter().map(change).collect::<Vec<_>>()
        });
        changes.collect()
    }
}

fn lines(facts: &Facts) -> Vec<String> {
    let session = &facts.session;
    let mut lines = vec![
        format!("session   {}", safe(&session.session, 128)),
        format!("slot      {}/{}", safe(&session.pool, WORD), session.slot),
    ];
    if let Some(run) = &session.run {
        lines.push(format!("run       {}", safe(run, 128)));
    }
    let until = match session.ended_at_us {
        Some(ended) => format!("ended {}", time(ended)),
        None => "not ended".to_owned(),
    };
    lines.push(format!("begun     {}, {until}", time(session.begun_at_us)));
    let size = show_size(facts.bytes);
    lines.push(format!("journal   {} events, {size}", facts.events));
    if let Some(exit) = &facts.exit {
        let detail = safe(&exit.detail, SENTENCE);
        lines.push(format!("exit      {}: {detail}", exit.class));
        for line in &exit.stderr {
            lines.push(format!("  {}", line.escape_for_display(SENTENCE)));
        }
    }
    for task in &facts.tasks {
        let outcome = task.outcome.as_deref().unwrap_or(&task.state);
        let id = safe(&task.id, 128);
        lines.push(format!("task      {id}: {}", safe(outcome, WORD)));
        lines.push(format!(
            "  prompt  {}",
            task.prompt.escape_for_display(SENTENCE)
        ));
        if let Some(detail) = task.detail.as_ref().filter(|detail| !detail.is_empty()) {
            lines.push(format!("  detail  {}", safe(detail, SENTENCE)));
        }
    }
    if facts.attempts.len() > 1 {
        lines.push("attempts".to_owned());
        for attempt in &facts.attempts {
            let how = attempt.class.as_deref().unwrap_or("-");
            let (number, session) = (attempt.attempt, safe(&attempt.session, 128));
            lines.push(format!("  {number} {session} {}", safe(how, WORD)));
        }
    }
    if !facts.requests.is_empty() {
        lines.push(format!("requests  {}", facts.requests.len()));
        lines.extend(
            facts
                .requests
                .iter()
                .map(|request| format!("  {}", request_line(request))),
        );
    }
    if !facts.tools.is_empty() {
        lines.push(format!(
            "tools     {}",
            facts.tools.len() as u64 + facts.more_tools
        ));
        lines.extend(facts.tools.iter().map(|tool| {
            let (name, input) = (
                tool.name.escape_for_display(WORD),
                safe(&tool.input, SENTENCE),
            );
            format!("  {} {name} {input}", tool.as_str())
        }));
    }
    if facts.more_tools > 0 {
        lines.push(format!("  and {} more", facts.more_tools));
    }
    let changes = facts.changes();
    if !changes.is_empty() {
        lines.push(format!("changed   {}", changes.len()));
        for (kind, path) in changes {
            lines.push(format!("  {} {}", safe(&kind, WORD), safe(&path, SENTENCE)));
        }
    }
    lines
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

fn request_line(request: &StoredPermissionRequest) -> String {
    let decision = safe(request.decision.as_deref().unwrap_or("open"), WORD);
    let by = safe(request.decided_by.as_deref().unwrap_or("-"), WORD);
    let rules: Vec<String> = rules(request);
    let rules = safe(&rules.join(", "), SENTENCE);
    let tool = request.tool.escape_for_display(WORD);
    let input = safe(request.input.as_deref().unwrap_or("-"), SENTENCE);
    format!("{decision} by {by} ({rules}) {tool} {input}")
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
        })
    };
    let exit = facts.exit.as_ref().map(|exit| {
        json!({
            "class": exit.class.as_str(), "code": exit.status.map(ExitStatus::shell_code),
            "detail": exit.detail,
            "stderr": exit.stderr.iter().map(UntrustedText::raw).collect::<Vec<_>>(),
        })
    });
    let changes: Vec<Value> = facts
        .changes()
        .into_iter()
        .map(|(kind, path)| json!({"kind": kind, "path": path}))
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
    })
}
