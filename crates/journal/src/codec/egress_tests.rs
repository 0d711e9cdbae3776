//! Test events of connections to hosts outside, of the supervisor's own tools, and of chats.

use std::time::Duration;

use marshal_model::{EgressResult, Event, StepStatus, TurnId, TurnOutcome};

/// One event of each form.
pub(super) fn events() -> Vec<Event> {
    let mut events = vec![
        Event::Egress {
            host: Some("api.example.com".to_owned()),
            port: Some(443),
            result: EgressResult::Passed,
            connections: 1,
            sent: 517,
            received: 3_000_000_000,
            took: Duration::from_millis(1250),
        },
        Event::Egress {
            host: None,
            port: None,
            result: EgressResult::Target,
            connections: 10_000,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        },
        Event::PlanStep {
            step: "the \u{1b}[2J step".into(),
            status: StepStatus::Blocked,
        },
        Event::FileUpdated {
            tool: "edit_file".into(),
            path: "/workspace/a".into(),
            sha256: Some("0".repeat(64)),
            version: None,
        },
    ];
    events.extend(super::work::events());
    events.push(Event::TurnUnsent {
        turn: TurnId::new("turn-1").expect("an id"),
        outcome: TurnOutcome::Cancelled,
        detail: "nobody \u{1b} had it".to_owned(),
    });
    events.push(Event::FileUpdated {
        tool: "write_file".into(),
        path: "/workspace/b".into(),
        sha256: None,
        version: Some(Box::new(marshal_model::FileVersion {
            workspace: "site".into(),
            path: "a".into(),
            version: 7,
            observed: true,
            file: None,
            moved_from: None,
        })),
    });
    events.push(Event::CommandSent {
        command: "compact".to_owned(),
        args: "the \u{1b} tests".into(),
        by: "token ci".to_owned(),
    });
    events.push(Event::FileUpdated {
        tool: "observed".into(),
        path: "/workspace/b".into(),
        sha256: None,
        version: Some(Box::new(marshal_model::FileVersion {
            workspace: "site".into(),
            path: "b".into(),
            file: Some("0190a2b4-0000-7000-8000-000000000001".to_owned()),
            version: 8,
            observed: true,
            moved_from: Some("src/\u{1b} b".into()),
        })),
    });
    events
}
