//! The loader mode: what the load bench relies on.

use std::time::Duration;

use crate::controller::{Agent, ledger, of, shape, text};

#[test]
fn ask_measures_every_round_trip_and_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ledger");
    let mut agent = Agent::new(&["--loader", "--ledger", file.to_str().unwrap()]);
    let turn = agent.turn("ask 50 some/file");
    assert_eq!(of(&turn, "tool_start").len(), 50);
    let requests = of(&turn, "permission_request");
    assert_eq!(requests.len(), 50);
    assert_eq!(requests[0]["tool"], "read_file");
    assert_eq!(requests[49]["request_id"], "r-50");
    assert_eq!(requests[0]["details"]["tool_input"]["path"], "some/file");
    assert_eq!(of(&turn, "tool_result").len(), 50);
    let report = text(&turn);
    assert!(
        report.starts_with("asks 50 allowed 50 denied 0 p50_us "),
        "{report}"
    );
    let entry = ledger(&file).pop().unwrap();
    assert_eq!(entry["kind"], "ask");
    assert_eq!(entry["report"], report);
}

#[test]
fn the_latency_of_ask_is_the_controllers() {
    let mut agent = Agent::new(&["--loader"]);
    agent.prompt("ask 3");
    for _ in 0..3 {
        let request = agent.until("permission_request");
        std::thread::sleep(Duration::from_millis(30));
        agent.deny(&request, Some("no"));
    }
    let report = text(&agent.rest_of_turn());
    assert!(
        report.starts_with("asks 3 allowed 0 denied 3 p50_us "),
        "{report}"
    );
    let p50: f64 = report.split(' ').nth(7).unwrap().parse().unwrap();
    assert!((30_000.0..10_000_000.0).contains(&p50), "{report}");
}

#[test]
fn ask_thinks_before_each_request_without_counting_it() {
    let mut agent = Agent::new(&["--loader", "--think-us", "20000"]);
    let began = std::time::Instant::now();
    let turn = agent.turn("ask 5");
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert_eq!(of(&turn, "permission_request").len(), 5);
}

#[test]
fn an_interrupt_ends_ask_with_a_report_of_what_was_measured() {
    let mut agent = Agent::new(&["--loader"]);
    agent.prompt("ask 1000000");
    let request = agent.until("permission_request");
    agent.allow(&request);
    agent.until("permission_request");
    agent.interrupt();
    let turn = agent.rest_of_turn();
    assert!(
        text(&turn).starts_with("asks 2 allowed 1 denied 0"),
        "{}",
        text(&turn)
    );
    assert_eq!(turn.last().unwrap()["stop_reason"], "interrupted");
}

#[test]
fn a_loader_says_nothing_but_what_its_steps_are() {
    let mut agent = Agent::new(&["--loader"]);
    let turn = agent.turn("read nowhere\nflood 2000");
    assert_eq!(
        shape(&turn),
        [
            "turn_started",
            "tool_start",
            "permission_request",
            "tool_result",
            "text_delta",
            "turn_complete"
        ]
    );
    assert_eq!(of(&turn, "text_delta").len(), 2000);
}
