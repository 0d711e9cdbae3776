//! Codex app-server, case by case.
//!
//! In a script `< LINE` is the agent's message, `> WORD` ours, `~ N` milliseconds that pass.

mod approvals;
mod deadlines;
mod handshake;
mod items;
mod judged;
mod turns;

use std::time::Duration;

use marshal_config::{CodexSettings, DialectName};
use marshal_dialect::OpenParams;

use crate::dialect::script::{Conversation, played};

/// What we say first.
fn initialize() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        r#"write {{"id":1,"method":"initialize","params":{{"clientInfo":{{"name":"marshal","version":"{version}"}},"capabilities":{{"optOutNotificationMethods":["account/rateLimits/updated","item/commandExecution/terminalInteraction","item/fileChange/outputDelta","item/fileChange/patchUpdated","mcpServer/startupStatus/updated","remoteControl/status/changed","skills/changed","thread/started","thread/status/changed","turn/diff/updated"]}}}}}}"#
    )
}

/// The version, and nobody who must log in.
const HELLO: &str = r#"
    < {"id":1,"result":{"userAgent":"marshal/0.169.0 (Linux; x) y"}}
    < {"id":2,"result":{"account":null,"requiresOpenaiAuth":false}}
"#;
const HELLO_SAYS: &str = r#"
    write {"method":"initialized"}
    write {"id":2,"method":"account/read","params":{"refreshToken":false}}
"#;

/// A thread `t-1`, and what is said up to there.
const OPEN: &str = r#"
    < {"id":1,"result":{"userAgent":"marshal/0.169.0 (Linux; x) y"}}
    < {"id":2,"result":{"account":null,"requiresOpenaiAuth":false}}
    < {"id":3,"result":{"thread":{"id":"t-1"},"approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":{"type":"dangerFullAccess"},"model":"m"}}
"#;
const OPEN_SAYS: &str = r#"
    write {"method":"initialized"}
    write {"id":2,"method":"account/read","params":{"refreshToken":false}}
    write {"id":3,"method":"thread/start","params":{"cwd":"/workspace","approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":"danger-full-access"}}
    ready protocol=v2 version='0.169.0' session='t-1' model='m' mode='untrusted'
"#;

/// A turn `u-1`, and what it says.
const TURN: &str = r#"
    > prompt p
    < {"id":4,"result":{"turn":{"id":"u-1"}}}
    < {"method":"turn/started","params":{"threadId":"t-1","turn":{"id":"u-1"}}}
"#;
const TURN_SAYS: &str = r#"
    write {"id":4,"method":"turn/start","params":{"threadId":"t-1","approvalPolicy":"untrusted","approvalsReviewer":"user","input":[{"type":"text","text":"p"}]}}
    turn started 'u-1'
"#;

/// Its end.
const END: &str = r#"
    < {"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u-1","status":"completed","error":null}}}
"#;
const END_SAYS: &str = "turn ended completed 'completed' tokens=0/0";

/// The lines to compare. Of a bad line only the reason: its head is cut somewhere.
fn clean(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| match line.trim().split_once(' ') {
        Some(("bad", rest)) => format!("bad {}", rest.split(' ').next().unwrap()),
        _ => line.trim().to_owned(),
    });
    lines.filter(|line| !line.is_empty()).collect()
}

#[track_caller]
fn check_opened(opening: &OpenParams, script: &str, expect: &str) {
    let expect = format!("{}\n{expect}", initialize());
    let talk = Conversation::opened(DialectName::Codex, opening);
    assert_eq!(clean(&played(talk, script)), clean(&expect), "{script}");
}

fn opening(codex: CodexSettings) -> OpenParams {
    OpenParams {
        workspace: "/workspace".to_owned(),
        codex,
        control_timeout: Some(Duration::from_secs(60)),
        ..OpenParams::default()
    }
}

/// Plays the script from the first word on.
#[track_caller]
fn check_all(script: &str, expect: &str) {
    check_opened(&opening(CodexSettings::default()), script, expect);
}

/// Plays the script in an open thread.
#[track_caller]
fn check(script: &str, expect: &str) {
    check_all(&format!("{OPEN}{script}"), &format!("{OPEN_SAYS}{expect}"));
}

/// Plays the script in a turn.
#[track_caller]
fn check_turn(script: &str, expect: &str) {
    check(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}
