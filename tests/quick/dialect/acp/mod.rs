//! ACP, case by case.
//!
//! In a script `< LINE` is the agent's message (its `"jsonrpc"` left out: it is not needed),
//! `> WORD` ours.

mod auth;
mod calls;
mod client;
mod deadlines;
mod handshake;
mod permission_requests;
mod pins;
mod prompts;
mod resume;
mod session_settings;
mod turns;

use std::sync::Arc;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::OpenParams;

use crate::dialect::script::{Conversation, played};

/// What we say first.
fn initialize() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        r#"write {{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":1,"clientCapabilities":{{"fs":{{"readTextFile":false,"writeTextFile":false}},"terminal":false,"session":{{"configOptions":{{"boolean":{{}}}},"notices":{{}},"compaction":{{}}}}}},"clientInfo":{{"name":"marshal","version":"{version}"}}}}}}"#
    )
}

/// A session `s-1`, and what is said up to there.
const OPEN: &str = r#"
    < {"id":1,"result":{"protocolVersion":1}}
    < {"id":2,"result":{"sessionId":"s-1"}}
"#;
const OPEN_SAYS: &str = r#"
    write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}
    ready protocol=1 session='s-1'
"#;

/// A turn, and what it says.
const TURN: &str = "> prompt p\n";
const TURN_SAYS: &str = r#"
    write {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"s-1","prompt":[{"type":"text","text":"p"}]}}
"#;

/// The lines to compare. Of a bad line only the reason: its head is cut somewhere.
fn clean(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| match line.trim().split_once(' ') {
        Some(("bad", rest)) => format!("bad {}", rest.split(' ').next().unwrap()),
        _ => line.trim().to_owned(),
    });
    lines.filter(|line| !line.is_empty()).collect()
}

#[track_caller]
fn check_talk(talk: Conversation, script: &str, expect: &str) {
    let expect = format!("{}\n{expect}", initialize());
    assert_eq!(clean(&played(talk, script)), clean(&expect), "{script}");
}

/// Plays the script with these wishes of the pool.
#[track_caller]
fn check_with(acp: AcpSettings, script: &str, expect: &str) {
    check_talk(talk_with(acp), script, expect);
}

fn talk_with(acp: AcpSettings) -> Conversation {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        acp: Arc::new(acp),
        ..OpenParams::default()
    };
    Conversation::opened(DialectName::Acp, &opening)
}

/// Plays the script from the first word on and compares what came of it, effect by effect.
#[track_caller]
fn check(script: &str, expect: &str) {
    check_talk(Conversation::new(DialectName::Acp), script, expect);
}

/// Plays it in an open session.
#[track_caller]
fn check_open(script: &str, expect: &str) {
    check(&format!("{OPEN}{script}"), &format!("{OPEN_SAYS}{expect}"));
}

/// Plays it in a turn of which nothing came yet.
#[track_caller]
fn check_in_turn(script: &str, expect: &str) {
    check_open(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}

/// An update of the session.
fn update(fields: &str) -> String {
    format!(
        r#"< {{"method":"session/update","params":{{"sessionId":"s-1","update":{{{fields}}}}}}}"#
    )
}
