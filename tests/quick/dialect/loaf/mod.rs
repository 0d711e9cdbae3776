//! loaf's RPC: what each line of an agent brings about, and what we write.

mod events;
mod handshake;
mod models;
mod resume;
mod silence;
mod turns;

use marshal_config::DialectName;

use crate::dialect::script::{Conversation, played};

/// The handshake, which is the first thing that we write.
fn handshake() -> String {
    format!(
        r#"write {{"jsonrpc":"2.0","id":1,"method":"rpc.handshake","params":{{"client_name":"marshal","client_version":"{}","protocol_version":"1.0.0","strict":true}}}}"#,
        env!("CARGO_PKG_VERSION")
    )
}

/// What opens a session `s-1` of an agent that serves what a session needs, and no models.
const OPEN: &str = r#"
    < {"jsonrpc":"2.0","id":1,"result":{"protocol_version":"1.0.0","server_name":"loaf","methods":["session.get","system.shutdown","system.ping"]}}
    < {"jsonrpc":"2.0","id":2,"result":{"session_id":"s-1","state":{}}}
"#;
const OPEN_SAYS: &str = r#"
    write {"jsonrpc":"2.0","id":2,"method":"session.create","params":{}}
    ready protocol=1.0.0 session='s-1'
"#;

/// A turn that was acknowledged, and what it says.
const TURN: &str = r#"
    > prompt p
    < {"jsonrpc":"2.0","id":3,"result":{"session_id":"s-1","turn_id":"t-1","accepted":true,"queued":false}}
"#;
const TURN_SAYS: &str = r#"
    write {"jsonrpc":"2.0","id":3,"method":"session.send","params":{"session_id":"s-1","text":"p"}}
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
    let expect = format!("{}\n{expect}", handshake());
    assert_eq!(clean(&played(talk, script)), clean(&expect), "{script}");
}

/// Plays the script from the first word on and compares what came of it, effect by effect.
#[track_caller]
fn check(script: &str, expect: &str) {
    check_talk(Conversation::new(DialectName::Loaf), script, expect);
}

/// Plays it in an open session.
#[track_caller]
fn check_open(script: &str, expect: &str) {
    check(&format!("{OPEN}{script}"), &format!("{OPEN_SAYS}{expect}"));
}

/// Plays it in a turn `t-1` of which nothing came yet.
#[track_caller]
fn check_in_turn(script: &str, expect: &str) {
    check_open(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}

/// An event.
fn event(kind: &str, payload: &str) -> String {
    format!(
        r#"< {{"jsonrpc":"2.0","method":"event","params":{{"type":"{kind}","timestamp":"2026-03-04T12:00:00.000Z","payload":{{{payload}}}}}}}"#
    )
}

/// An event of the session's turn `t-1`.
fn of_turn(kind: &str, payload: &str) -> String {
    let comma = if payload.is_empty() { "" } else { "," };
    event(
        kind,
        &format!(r#""session_id":"s-1","turn_id":"t-1"{comma}{payload}"#),
    )
}

/// The status that begins the turn.
fn began() -> String {
    of_turn(
        "session.status",
        r#""pending":true,"status_label":"thinking...""#,
    )
}

fn chunk(text: &str) -> String {
    of_turn(
        "session.stream.chunk",
        &format!(
            r#""chunk":{{"thoughts":[],"answerText":"{text}","segments":[{{"kind":"answer","text":"{text}"}}]}}"#
        ),
    )
}

fn completed(length: usize) -> String {
    of_turn("session.completed", &format!(r#""answer_length":{length}"#))
}

fn lines(lines: &[&str]) -> String {
    lines.join("\n")
}
