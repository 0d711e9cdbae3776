//! Faults and load over the Agent Client Protocol.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Client, shape, text, updates};
use crate::controller::Agent;

#[test]
fn garbage_is_one_bad_line_of_each_kind_and_a_huge_line_has_its_bytes() {
    let mut client = Client::new(&[]);
    let id = client.prompt("garbage\nhuge-line 1M\nsay after");
    let lines: Vec<Vec<u8>> = (0..5).map(|_| client.agent.raw().unwrap()).collect();
    assert!(serde_json::from_slice::<Value>(&lines[0]).is_err());
    assert!(std::str::from_utf8(&lines[1]).is_err());
    assert!(serde_json::from_slice::<Value>(&lines[2]).is_err());
    assert!(
        serde_json::from_slice::<Value>(&lines[3])
            .unwrap()
            .is_array()
    );
    let unknown: Value = serde_json::from_slice(&lines[4]).unwrap();
    assert_eq!(unknown["method"], "no/such_message");
    let huge = client.agent.raw().unwrap();
    assert_eq!(huge.len(), (1 << 20) + 1);
    let huge: Value = serde_json::from_slice(&huge).unwrap();
    assert_eq!(
        huge["params"]["update"]["sessionUpdate"],
        "agent_message_chunk"
    );
    assert_eq!(text(&client.rest_of_turn(id)), "after\n");
}

#[test]
fn a_flood_has_as_much_text_a_line_as_in_scaiflux() {
    let texts = |lines: Vec<String>| -> Vec<String> {
        assert_eq!(lines.len(), 300);
        lines
    };
    let mut scaiflux = Agent::new(&["--loader"]);
    let turn = scaiflux.turn("flood 300 100");
    let one = texts(
        turn.iter()
            .filter_map(|line| Some(line["delta"].as_str()?.to_owned()))
            .collect(),
    );
    let mut client = Client::new(&["--loader"]);
    let turn = client.turn("flood 300 100");
    let other = texts(
        updates(&turn, "agent_message_chunk")
            .iter()
            .map(|update| update["content"]["text"].as_str().unwrap().to_owned())
            .collect(),
    );
    assert_eq!(one, other);
}

#[test]
fn a_loader_asks_one_after_the_other_and_reports_what_it_measured() {
    let mut client = Client::new(&["--loader"]);
    let began = Instant::now();
    let turn = client.turn("ask 50 some/file");
    assert_eq!(
        shape(&turn)[..4],
        [
            "tool_call",
            "session/request_permission",
            "tool_call_update",
            "tool_call"
        ]
    );
    let ids: Vec<u64> = turn
        .iter()
        .filter(|line| line["method"] == "session/request_permission")
        .map(|line| line["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, (0..50).collect::<Vec<u64>>());
    assert!(
        text(&turn).starts_with("asks 50 allowed 50 denied 0 p50_us "),
        "{}",
        text(&turn)
    );
    assert!(began.elapsed() < Duration::from_secs(60));
}
