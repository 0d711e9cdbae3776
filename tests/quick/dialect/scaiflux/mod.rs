//! ScaiFlux, case by case.

mod handshake;
mod permission_requests;
mod turns;

use crate::dialect::script::{Conversation, played, run};

/// Plays the script and compares what came of it, effect by effect: of the dialect, and of the table
/// that says the same.
#[track_caller]
fn check(script: &str, expect: &str) {
    let clean = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(clean(&run(script)), clean(expect), "{script}");
    let by_table = played(Conversation::by_table("scaiflux"), script);
    assert_eq!(clean(&by_table), clean(expect), "by table: {script}");
}

/// A turn `t` that runs, and what it says up to there.
const TURN: &str = r#"
    < READY
    > prompt p
    < {"type":"turn_started","turn_id":"t"}
"#;
const TURN_SAYS: &str = r#"
    ready protocol=1
    write {"type":"prompt","text":"p"}
    turn started 't'
"#;

/// A conversation with the dialect, and one by the table that says the same.
fn both() -> [Conversation; 2] {
    let built_in = Conversation::new(marshal_config::DialectName::Scaiflux);
    [built_in, Conversation::by_table("scaiflux")]
}

/// What came of a script, which is the same by both.
#[track_caller]
fn run_both(script: &str) -> String {
    let effects = run(script);
    let by_table = played(Conversation::by_table("scaiflux"), script);
    assert_eq!(effects, by_table);
    effects
}

#[track_caller]
fn check_in_turn(script: &str, expect: &str) {
    check(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}
