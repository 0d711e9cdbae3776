//! Events, notices and a report with a hostile text in every field, for the tests of what is shown.

use super::testing::{event, report, slot};
use crate::fleet::{ChangeKind, FileChange, Notice, TaskReport};
use crate::model::{
    AskId, DecidedBy, Decision, Event, Foreign, PoolName, RunId, SessionId, SlotState, TaskId,
    TaskOutcome, Usage, Verdict,
};

/// One event of every kind, with `evil` in every field that text can reach.
#[expect(
    clippy::too_many_lines,
    reason = "a list with one entry a kind of event"
)]
fn hostile_events(evil: &str, task: &TaskId) -> Vec<Event> {
    let text = || Foreign::new(evil);
    let raw =
        || serde_json::value::to_raw_value(&serde_json::json!({ "command": evil })).expect("JSON");
    let verdict = Verdict {
        ask: AskId::new("a").expect("id"),
        decision: Decision::Deny,
        by: DecidedBy::Policy,
        rules: vec![evil.to_owned()],
        reason: evil.to_owned(),
    };
    let ask = crate::model::Ask {
        key: crate::model::AskKey {
            id: evil.to_owned(),
            serial: 1,
        },
        tool_id: Some(text()),
        tool: text(),
        input: raw(),
        claimed: crate::model::Claimed {
            active_mode: Some(text()),
            required_mode: Some(text()),
            reason: Some(text()),
            title: Some(text()),
            kind: Some(text()),
            no_allow: false,
        },
    };
    let mut events = vec![
        Event::PromptAccepted {
            task: Some(task.clone()),
            attempt: 1,
            text: text(),
        },
        Event::Ready(crate::model::AgentInfo {
            protocol: evil.to_owned(),
            version: Some(text()),
            session: Some(text()),
            model: Some(text()),
            mode: Some(text()),
            modes: vec![crate::model::ChoiceInfo {
                id: text(),
                name: Some(text()),
            }],
            tools: vec![text()],
            context_window: None,
            forgets: false,
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
            entries: vec![crate::model::PlanEntry {
                content: text(),
                priority: Some(text()),
                status: Some(text()),
            }],
        },
        Event::ContextUsed {
            used: 1,
            size: 2,
            cost: Some(crate::model::Cost {
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
        Event::Asked {
            id: AskId::new("a").expect("id"),
            ask,
        },
        Event::Decided(verdict),
        Event::Unasked {
            id: text(),
            tool: text(),
            decision: Decision::Deny,
            rules: vec![evil.to_owned()],
        },
        Event::FileUpdated {
            tool: text(),
            path: text(),
            sha256: Some("0".repeat(64)),
            version: Some(Box::new(crate::model::FileVersion {
                workspace: text(),
                path: text(),
                v: 1,
                observed: false,
            })),
        },
        Event::PlanStep {
            step: text(),
            status: crate::model::StepStatus::Blocked,
        },
        Event::StateChanged {
            model: Some(text()),
            mode: Some(text()),
            context_pct: None,
            context_window: None,
        },
        Event::CommandGiven {
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
            origin: crate::model::Origin::Local,
        },
        Event::TurnEnded {
            outcome: crate::model::TurnOutcome::Failed,
            stop_reason: Some(text()),
            usage: Usage::default(),
            detail: Some(evil.to_owned()),
        },
        Event::TurnUnsent {
            turn: crate::model::TurnId::new("turn").expect("an id"),
            outcome: crate::model::TurnOutcome::Failed,
            detail: evil.to_owned(),
        },
        Event::Unknown {
            tag: text(),
            raw: raw(),
        },
        Event::BadLine {
            reason: "bad_json",
            head: text(),
        },
        Event::ChildExited {
            class: crate::model::ExitClass::Exited,
            status: None,
            detail: evil.to_owned(),
            stderr: vec![text()],
            memory_peak: None,
        },
        Event::CheckEnded {
            status: None,
            output: text(),
        },
        Event::Work(crate::model::Work::Item {
            step: 1,
            status: crate::model::StepStatus::Running,
            content: text(),
            role: None,
            chat: None,
            done: 0,
            total: 1,
        }),
        Event::Work(crate::model::Work::Ended {
            outcome: crate::model::TurnOutcome::Failed,
            reason: evil.to_owned(),
            message: evil.to_owned(),
        }),
    ];
    events.extend(super::session_events_tests::hostile(evil));
    events
}

/// A report and notices with `evil` in every field that text can reach.
pub(crate) fn hostile(evil: &str) -> (TaskReport, Vec<Notice>) {
    let run = RunId::new("r").expect("id");
    let task = TaskId::new("t").expect("id");
    let session = SessionId::new("s").expect("id");
    let text = || Foreign::new(evil);
    let mut full = report(&run, &task, TaskOutcome::Failed);
    full.denied = 1;
    full.denied_by = vec![evil.to_owned()];
    full.changes = vec![FileChange {
        path: text(),
        kind: ChangeKind::Added,
    }];
    full.copy = Some(format!("/tmp/{evil}").into());
    full.bundle = Some(format!("/tmp/{evil}").into());
    full.detail = Some(text());
    full.answer = text();
    full.restarts = 1;
    let mut notices = vec![
        Notice::Queued {
            run: run.clone(),
            task: task.clone(),
            pool: PoolName::new("demo").expect("name"),
        },
        Notice::Assigned {
            run,
            task: task.clone(),
            slot: slot(0),
            session: session.clone(),
            attempt: 1,
        },
        Notice::Slot {
            slot: slot(0),
            state: SlotState::Parked,
            note: Some(evil.to_owned()),
        },
    ];
    let at = slot(0);
    let events = [hostile_events(evil, &task), super::terminals::hostile(evil)].concat();
    notices.extend(events.into_iter().map(|e| event(&at, &session, &task, e)));
    (full, notices)
}
