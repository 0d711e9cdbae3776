//! The ledger: what was received and begun, on the disk first.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::Value;

use crate::controller::{Agent, ledger};

fn kinds(entries: &[Value]) -> Vec<&str> {
    entries
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect()
}

#[test]
fn the_ledger_shows_what_was_received_and_begun_even_after_a_crash() {
    let (mut agent, ready) = Agent::started(&["--ledger", "ledger"]);
    agent.turn("say one\n\n say two");
    agent.prompt("crash kill");
    agent.exit();
    let entries = ledger(&agent.path().join("ledger"));
    assert_eq!(
        kinds(&entries),
        ["start", "prompt", "step", "step", "prompt", "step"]
    );
    assert_eq!(entries[1]["text"], "say one\n\n say two");
    assert_eq!(entries[1]["accepted"], true);
    assert_eq!(entries[3]["step"], "say two");
    assert_eq!(entries[3]["at"], 2);
    assert_eq!(entries[3]["turn"], "t-1");
    assert_eq!(entries[5]["step"], "crash kill");
    for (at, entry) in entries.iter().enumerate() {
        assert_eq!(entry["n"], at as u64 + 1);
        assert_eq!(entry["pid"], agent.child.id());
        assert_eq!(entry["session"], ready["session_id"]);
    }
}

#[test]
fn every_step_carries_the_fingerprint_of_its_prompt() {
    let mut agent = Agent::new(&["--ledger", "ledger"]);
    agent.turn("say one");
    agent.turn("say one\nsay two");
    let entries = ledger(&agent.path().join("ledger"));
    let digests: Vec<&Value> = entries[1..].iter().map(|entry| &entry["digest"]).collect();
    let output = std::process::Command::new("sh")
        .args(["-c", "printf 'say one' | sha256sum"])
        .output()
        .unwrap();
    let sum = String::from_utf8(output.stdout).unwrap();
    assert_eq!(digests[0], sum.split(' ').next().unwrap());
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[2], digests[3]);
    assert_ne!(digests[0], digests[2]);
}

#[test]
fn what_is_refused_stands_in_the_ledger_as_not_accepted() {
    let mut agent = Agent::new(&["--ledger", "ledger"]);
    agent.prompt("write a b");
    let request = agent.until("permission_request");
    agent.prompt("say two");
    agent.until("error");
    agent.allow(&request);
    agent.until("turn_complete");
    let entries = ledger(&agent.path().join("ledger"));
    assert_eq!(kinds(&entries), ["start", "prompt", "step", "prompt"]);
    assert_eq!(entries[3]["accepted"], false);
}

#[test]
fn incarnations_one_after_the_other_go_on_counting() {
    let agent = Agent::new(&[]);
    let file = agent.path().join("ledger");
    for round in 0..3 {
        let mut next = agent.again(&["--ledger", "ledger"]);
        next.until("ready");
        next.prompt("crash kill");
        next.exit();
        assert_eq!(ledger(&file).len(), 3 * (round + 1));
    }
    // A line that was cut off stays as it is, and the next one begins on its own.
    std::fs::OpenOptions::new()
        .append(true)
        .open(&file)
        .unwrap()
        .write_all(b"{\"n\":10,\"cut")
        .unwrap();
    let mut next = agent.again(&["--ledger", "ledger"]);
    next.until("ready");
    let text = std::fs::read_to_string(&file).unwrap();
    let numbers: Vec<Option<u64>> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).ok()?["n"].as_u64())
        .collect();
    let expect: Vec<Option<u64>> = (1..=11).map(|n| (n != 10).then_some(n)).collect();
    assert_eq!(numbers, expect);
}

#[test]
fn incarnations_at_the_same_time_never_cut_each_others_lines() {
    let agent = Agent::new(&[]);
    let mut others: Vec<Agent> = (0..4)
        .map(|_| agent.again(&["--ledger", "ledger"]))
        .collect();
    for other in &mut others {
        other.until("ready");
        other.prompt(&"say x\n".repeat(50));
    }
    for other in &mut others {
        other.until("turn_complete");
    }
    let entries = ledger(&agent.path().join("ledger"));
    assert_eq!(entries.len(), 4 * 52);
    let lives: BTreeSet<&str> = entries
        .iter()
        .map(|entry| entry["life"].as_str().unwrap())
        .collect();
    assert_eq!(lives.len(), 4);
    for life in lives {
        let of_one: Vec<u64> = entries
            .iter()
            .filter(|entry| entry["life"] == life)
            .map(|entry| entry["n"].as_u64().unwrap())
            .collect();
        assert!(of_one.is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn a_ledger_that_cannot_be_written_keeps_the_agent_from_starting() {
    let mut agent = Agent::spawn(&["--ledger", "no/such/dir/ledger"]);
    assert_eq!(agent.exit().code(), Some(2));
    assert!(agent.stderr().contains("the ledger cannot be opened"));
}
