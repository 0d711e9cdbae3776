//! Homes that grow beyond what they may hold.

use std::time::Duration;

use crate::drill::Drill;

const POOL: &str = r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }

[sandbox.standard.home]
size = "1M"
"#;

#[test]
fn a_child_that_fills_its_home_in_silence_is_stopped() {
    let drill = Drill::new(POOL);
    // Silent throughout, and empty when it is measured first.
    let prompt = r#"unasked sleep 12 && head -c 8M /dev/zero > "$HOME/filled" && sleep 300"#;
    let ran = drill.run(&["run", "--results", "results.jsonl", prompt]);
    let results = drill.results("results.jsonl");
    assert_eq!(results[0]["outcome"], "failed", "{}", ran.all());
    let detail = results[0]["detail"].as_str().expect("a detail");
    assert!(detail.contains("the home has"), "{detail}");
    // Asked for every 10 s, with a second for the question and some for the stop; by itself it ends after
    // five minutes.
    assert!(ran.took < Duration::from_secs(120), "{}", ran.all());
    assert!(drill.agents().is_empty());
}
