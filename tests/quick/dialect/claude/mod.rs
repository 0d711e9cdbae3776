//! Claude Code's stream-json, case by case.

mod handshake;
mod permission_requests;
mod turns;

use std::sync::Arc;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::OpenParams;
use marshal_model::UntrustedText;

use crate::dialect::script::{Conversation, played};

/// The id of a channel.
pub(crate) const FRESH: &str = "00000000-0000-7000-8000-000000000000";

pub(crate) fn opening() -> OpenParams {
    OpenParams {
        workspace: "/workspace".to_owned(),
        fresh_id: FRESH.to_owned(),
        ..OpenParams::default()
    }
}

fn wants(acp: AcpSettings) -> OpenParams {
    OpenParams {
        acp: Arc::new(acp),
        ..opening()
    }
}

fn resuming(id: &str) -> OpenParams {
    OpenParams {
        resume: Some(UntrustedText::from(id)),
        ..opening()
    }
}

/// A line as a bad one is shown.
fn display_line(line: &str) -> String {
    UntrustedText::from(line.strip_prefix("< ").unwrap_or(line)).escape_for_display(60)
}

fn clean(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Plays the script and compares what came of it, effect by effect.
#[track_caller]
fn check(opening: &OpenParams, script: &str, expect: &str) {
    let talk = Conversation::opened(DialectName::Claude, opening);
    assert_eq!(clean(&played(talk, script)), clean(expect), "{script}");
}

/// What is written first.
const HELLO: &str = r#"write {"request":{"hooks":{"PreToolUse":[{"hookCallbackIds":["marshal"],"matcher":null,"onFailure":"block"}]},"subtype":"initialize"},"request_id":"marshal-1","type":"control_request"}"#;
/// The reply of a version that is known, in the mode that asks.
const READY: &str = r#"< {"type":"control_response","response":{"subtype":"success","request_id":"marshal-1","response":{"claude_code_version":"2.1.330","current_permission_mode":"default","hooks_applied":true}}}"#;
const READY_SAYS: &str = "ready protocol=2 version='2.1.330' session='00000000-0000-7000-8000-000000000000' mode='default'";
/// A turn that runs, and what it says up to there.
const TURN: &str = r#"
    > prompt p
    < {"type":"system","subtype":"init","session_id":"00000000-0000-7000-8000-000000000000","permissionMode":"default","model":"m"}
"#;
const TURN_SAYS: &str = r#"
    write {"message":{"content":[{"text":"p","type":"text"}],"role":"user"},"parent_tool_use_id":null,"session_id":"","type":"user","uuid":"00000000-0000-7000-8000-000000000001"}
    turn started -
    state model='m' mode=- pct=None window=None
"#;

#[track_caller]
fn check_ready(script: &str, expect: &str) {
    check(
        &opening(),
        &format!("{READY}\n{script}"),
        &format!("{HELLO}\n{READY_SAYS}\n{expect}"),
    );
}

#[track_caller]
fn check_in_turn(script: &str, expect: &str) {
    check_ready(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}
