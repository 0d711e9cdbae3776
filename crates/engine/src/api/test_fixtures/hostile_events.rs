//! Events, notices and a report with a hostile text in every field, for the tests of what is shown.

#![allow(clippy::expect_used, reason = "for tests, which fail by panicking")]

use super::{event, report, slot};
use marshal_fleet::{ChangeKind, FileChange, FleetEvent, TaskBranch, TaskReport};
use marshal_model::{
    DecidedBy, Decision, Event, PermissionRequestId, PoolName, RunId, SessionId, SlotState, TaskId,
    TaskOutcome, UntrustedText, Usage, Verdict,
};

/// One event of every kind, with `evil` in every field that text can reach.
#[expect(
    clippy::too_many_lines,
    reason = "a list with one entry a kind of event"
)]
fn hostile_events(evil: &str, task: &TaskId) -> Vec<Event> {
    let text = || UntrustedText::new(evil);
    let raw =
        || serde_json::value::to_raw_value(&serde_json::json!({ "command": evil })).expect("JSON");
    let verdict = Verdict {
        request: PermissionRequestId::new("a").expect("id"),
        decision: Decision::Deny,
        decided_by: DecidedBy::Policy,
        rules: vec![evil.to_owned()],
        reason: evil.to_owned(),
    };
    let request = marshal_model::PermissionRequest {
        key: marshal_model::PermissionRequestKey {
            id: evil.to_owned(),
            serial: 1,
        },
        tool_id: Some(text()),
        tool: text(),
        input: raw(),
        claims: marshal_model::AgentClaims {
            active_mode: Some(text()),
            required_mode: Some(text()),
            reason: Some(text()),
            title: Some(text()),
            kind: Some(text()),
            has_no_allow_option: false,
        },
    };
    let mut events = vec![
        Event::PromptAccepted {
            task: Some(task.clone()),
            attempt: 1,
            text: text(),
        },
        Event::Ready(marshal_model::AgentInfo {
            protocol: evil.to_owned(),
            version: Some(text()),
            session: Some(text()),
            model: Some(text()),
            mode: Some(text()),
            modes: vec![marshal_model::ChoiceInfo {
                id: text(),
                name: Some(text()),
            }],
            tools: vec![text()],
            context_window: None,
            cannot_resume: false,
        }),
        Event::TurnStarted { turn: Some(text()) },
        Event::Text { delta: text() },
        Event::Thought { delta: text() },
        Event::ToolStart {
            id: text(),
            name: text(),
            input: raw(),
        },
        Event::ToolUpdate {
            id: text(),
            name: Some(text()),
            title: Some(text()),
            status: Some(text()),
            input: Some(raw()),
        },
        Event::Plan {
            entries: vec![marshal_model::PlanEntry {
                content: text(),
                priority: Some(text()),
                status: Some(text()),
            }],
        },
        Event::ContextUsed {
            used: 1,
            size: 2,
            cost: Some(marshal_model::Cost {
                amount: 0.5,
                currency: text(),
            }),
        },
        Event::ToolResult {
            id: text(),
            output: text(),
            is_error: true,
            took: None,
        },
        Event::PermissionRequested {
            id: PermissionRequestId::new("a").expect("id"),
            request,
        },
        Event::PermissionDecided(verdict),
        Event::UnrequestedToolCall {
            id: text(),
            tool: text(),
            decision: Decision::Deny,
            rules: vec![evil.to_owned()],
        },
        Event::FileUpdated {
            tool: text(),
            path: text(),
            sha256: Some("0".repeat(64)),
            version: Some(Box::new(marshal_model::FileVersion {
                workspace: text(),
                path: text(),
                version: 1,
                observed: false,
                file: Some("0190a2b4-0000-7000-8000-000000000001".to_owned()),
                moved_from: Some(text()),
            })),
        },
        Event::PlanStep {
            step: text(),
            status: marshal_model::StepStatus::Blocked,
        },
        Event::StateChanged {
            model: Some(text()),
            mode: Some(text()),
            context_pct: None,
            context_window: None,
        },
        Event::CommandSent {
            command: evil.to_owned(),
            args: text(),
            by: evil.to_owned(),
        },
        Event::SlashResult {
            command: text(),
            text: text(),
            data: Some(raw()),
            clear_session: false,
            exit: false,
        },
        Event::AgentError {
            code: text(),
            message: text(),
            origin: marshal_model::ErrorOrigin::Local,
        },
        Event::TurnEnded {
            outcome: marshal_model::TurnOutcome::Failed,
            stop_reason: Some(text()),
            usage: Usage::default(),
            detail: Some(evil.to_owned()),
        },
        Event::TurnUnsent {
            turn: marshal_model::TurnId::new("turn").expect("an id"),
            outcome: marshal_model::TurnOutcome::Failed,
            detail: evil.to_owned(),
        },
        Event::Unknown {
            tag: text(),
            raw: raw(),
        },
        Event::BadLine {
            reason: "bad_json".into(),
            head: text(),
        },
        Event::ChildExited {
            class: marshal_model::ExitClass::Exited,
            status: None,
            detail: evil.to_owned(),
            stderr: vec![text()],
            memory_peak: None,
        },
        Event::CheckEnded {
            status: None,
            output: text(),
        },
        Event::Work(marshal_model::WorkEvent::Item {
            step: 1,
            status: marshal_model::StepStatus::Running,
            content: text(),
            role: None,
            chat: None,
            done: 0,
            total: 1,
        }),
        Event::Work(marshal_model::WorkEvent::Ended {
            outcome: marshal_model::TurnOutcome::Failed,
            reason: evil.to_owned(),
            message: evil.to_owned(),
        }),
    ];
    events.extend(super::session_events::hostile_session_events(evil));
    events
}

/// A report and notices with `evil` in every field that text can reach.
pub fn hostile_items(evil: &str) -> (TaskReport, Vec<FleetEvent>) {
    let run = RunId::new("r").expect("id");
    let task = TaskId::new("t").expect("id");
    let session = SessionId::new("s").expect("id");
    let text = || UntrustedText::new(evil);
    let mut full = report(&run, &task, TaskOutcome::Failed);
    full.denied = 1;
    full.denied_by = vec![evil.to_owned()];
    full.changes = vec![FileChange {
        path: text(),
        kind: ChangeKind::Added,
    }];
    full.copy = Some(format!("/tmp/{evil}").into());
    full.bundle = Some(format!("/tmp/{evil}").into());
    full.branch = Some(TaskBranch {
        name: evil.to_owned(),
        lines: None,
        in_repository: true,
    });
    full.check = Some(false);
    full.detail = Some(text());
    full.answer = text();
    full.restarts = 1;
    let mut notices = vec![
        FleetEvent::TaskQueued {
            run: run.clone(),
            task: task.clone(),
            pool: PoolName::new("demo").expect("name"),
        },
        FleetEvent::TaskAssigned {
            run,
            task: task.clone(),
            slot: slot(0),
            session: session.clone(),
            attempt: 1,
        },
        FleetEvent::SlotChanged {
            slot: slot(0),
            state: SlotState::Parked,
            note: Some(evil.to_owned()),
        },
        FleetEvent::ApprovalPending {
            slot: slot(0),
            session: session.clone(),
            request: PermissionRequestId::new("r-1").expect("id"),
            tool: UntrustedText::new(evil),
            about: UntrustedText::new(evil),
            deadline_us: 1_700_000_000_000_000,
        },
        FleetEvent::PoolPaused {
            pool: slot(0).pool,
            wait: Some(std::time::Duration::from_secs(2)),
        },
        FleetEvent::RunPaused {
            run: RunId::new("run-1").expect("id"),
            pool: slot(0).pool,
            rules: vec![evil.to_owned()],
        },
    ];
    let at = slot(0);
    let events = [
        hostile_events(evil, &task),
        super::terminals::hostile_terminal_events(evil),
    ]
    .concat();
    notices.extend(events.into_iter().map(|e| event(&at, &session, &task, e)));
    (full, notices)
}
