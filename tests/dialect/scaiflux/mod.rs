//! ScaiFlux, case by case.

mod asks;
mod handshake;
mod turns;

use crate::script::run;

/// Plays the script and compares what came of it, effect by effect.
#[track_caller]
fn check(script: &str, expect: &str) {
    let clean = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(clean(&run(script)), clean(expect), "{script}");
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

#[track_caller]
fn check_in_turn(script: &str, expect: &str) {
    check(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}
