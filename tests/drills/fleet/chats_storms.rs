//! Chats under load: streams that are cut at random, many prompts at once, agents that come and go
//! all the time, a daemon that is killed again and again. Each is ten times, or twenty times, as long
//! with `MARSHAL_TEST_LONG=1`.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::chat_client::{DIALECTS, Daemon, LONG, Sse, StreamEvent, drill, drill_of};
use crate::drill::{Drill, count, descendants, eventually};

fn number(drill: &Drill, query: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {query}");
    let found = drill.database().query_row(&sql, [], |row| row.get(0));
    found.expect(query)
}

fn seeded_random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Sends a message as soon as there is room for it.
fn say(daemon: &Daemon, chat: &str, content: &str) -> String {
    let end = Instant::now() + 2 * LONG;
    loop {
        let message = daemon.post(chat, &json!({"content": content}));
        if message.status == 202 {
            return message.body["turn_id"].as_str().expect("an id").to_owned();
        }
        assert_eq!(message.status, 429, "{message:?}");
        assert!(Instant::now() < end, "no room in time: {message:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// A connection to a chat's stream after an event, in one of the four ways that there are.
fn connect(daemon: &Daemon, chat: &str, after: Option<&str>, way: usize) -> Sse {
    let shape = if way.is_multiple_of(2) {
        "named"
    } else {
        "enveloped"
    };
    let path = format!("{chat}/events?shape={shape}");
    match after {
        Some(id) if way < 2 => daemon.follow_with(&format!("{path}&after={id}"), None),
        after => daemon.follow_with(&path, after),
    }
}

/// An event of either shape as it is in the named one.
fn named(event: StreamEvent) -> StreamEvent {
    if !event.name.is_empty() {
        return event;
    }
    let name = event.data["type"].as_str().expect("a type").to_owned();
    let data = event.data["data"].clone();
    StreamEvent {
        name,
        data,
        ..event
    }
}

#[test]
fn a_stream_that_is_cut_at_random_has_the_sequence_of_one_that_is_not() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say ready");
    daemon.follow(&chat, None).any_turn();
    // It goes on for far longer than the cuts, and is stopped then.
    let piece = "plan a; b; c\nthink so\nread README.md\nwrite a.txt 1\nflood 30\nsleep 100ms\n";
    let turn = daemon.say(&chat, &piece.repeat(3000));
    let mut stream = daemon.follow(&chat, None);
    let of = turn.clone();
    let whole = thread::spawn(move || stream.turn(&of));
    let mut random = seeded_random();
    let mut got: Vec<StreamEvent> = Vec::new();
    for _ in 0..count(100) {
        let after = got.last().map(|seen_events| seen_events.id.clone());
        let mut stream = connect(&daemon, &chat, after.as_deref(), random.random_range(0..4));
        for _ in 0..random.random_range(0..=30) {
            let Some(seen_events) = stream.next(Duration::from_millis(20)) else {
                break;
            };
            got.push(named(seen_events));
        }
    }
    let is_its_end = |seen_events: &StreamEvent| seen_events.data["turn_id"] == *turn;
    assert!(!got.iter().any(is_its_end), "all cuts are in the turn");
    let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stopped.status, 200, "{stopped:?}");
    let after = got.last().map(|seen_events| seen_events.id.clone());
    got.extend(daemon.follow(&chat, after.as_deref()).turn(&turn));
    let expected = whole.join().expect("read to the end");
    assert_eq!(got.len(), expected.len());
    assert!(got == expected, "in another order, or with other contents");
    let ids: BTreeSet<&str> = got
        .iter()
        .map(|seen_events| seen_events.id.as_str())
        .collect();
    assert_eq!(ids.len(), got.len(), "each id is one event's");
    println!("{} events, {} cuts in the turn", got.len(), count(100));
}

#[test]
fn a_hundred_prompts_at_once_to_an_unloaded_chat_start_one_child() {
    for dialect in DIALECTS {
        let drill = drill_of(dialect, 3, "", "", "5s");
        let daemon = Arc::new(Daemon::start(&drill));
        let chat = daemon.create("say one");
        let mut stream = daemon.follow(&chat, None);
        stream.any_turn();
        eventually(LONG, "its agent is stopped", || drill.agents().is_empty());
        let children = || number(&drill, "events WHERE kind = 'child_started'");
        assert_eq!(children(), 1);
        let senders: Vec<_> = (0..100)
            .map(|at| {
                let (daemon, chat) = (Arc::clone(&daemon), chat.clone());
                let body = json!({"content": format!("say number{at}")});
                thread::spawn(move || daemon.post(&chat, &body))
            })
            .collect();
        let mut accepted = Vec::new();
        for sender in senders {
            let seen = sender.join().expect("sent");
            match seen.status {
                202 => accepted.push((
                    seen.body["sequence"].as_u64().expect("a place"),
                    seen.body["turn_id"].as_str().expect("an id").to_owned(),
                )),
                429 => assert!(seen.head.contains("retry-after: "), "{seen:?}"),
                _ => panic!("{seen:?}"),
            }
        }
        accepted.sort();
        // As many as may wait, one that runs, and whatever was worked meanwhile.
        assert!(accepted.len() >= 16, "{dialect}: {}", accepted.len());
        let places: Vec<u64> = accepted.iter().map(|of| of.0).collect();
        let dense: Vec<u64> = (2..).take(places.len()).collect();
        assert_eq!(places, dense, "{dialect}: each has a place of its own");
        let mut all = Vec::new();
        for (_, turn) in &accepted {
            // In the order in which they were taken in.
            let events = stream.any_turn();
            let last = events.last().expect("an end");
            assert_eq!(last.name, "done", "{dialect}: {last:?}");
            assert_eq!(last.data["turn_id"], **turn, "{dialect}");
            all.extend(events);
        }
        assert_eq!(children(), 2, "{dialect}: one child for all of them");
        let back: Vec<_> = all
            .iter()
            .filter(|reported| reported.name == "rehydrated")
            .collect();
        assert_eq!(back.len(), 1, "{dialect}");
        assert_eq!(back[0].data["by"], "resume", "{dialect}");
        assert_eq!(daemon.turns(&chat).len(), accepted.len() + 1);
        println!("{dialect}: {} of 100 were accepted", accepted.len());
    }
}

/// What a daemon holds.
#[derive(Debug, Clone, Copy)]
struct ResourceCounts {
    /// KiB.
    memory: i64,
    descriptors: usize,
    processes: usize,
    threads: usize,
    /// Rows that do not belong to a turn.
    rows: i64,
    /// Rows that do.
    of_turns: i64,
}

fn resource_counts(drill: &Drill, daemon: &Daemon) -> ResourceCounts {
    let pid = daemon.running.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    let entries = |what: &str| {
        fs::read_dir(format!("/proc/{pid}/{what}"))
            .expect(what)
            .count()
    };
    let rows = |tables: &[&str]| tables.iter().map(|table| number(drill, table)).sum();
    ResourceCounts {
        memory: memory.expect("a number"),
        descriptors: entries("fd"),
        processes: descendants(pid).len(),
        threads: entries("task"),
        rows: rows(&[
            "sessions",
            "runs",
            "chats",
            "approvals",
            "permission_requests",
            "removals",
        ]),
        of_turns: rows(&["events", "turns", "tasks"]),
    }
}

/// The same once it is quiet: the helper for the next start comes a moment after a start.
fn settled(drill: &Drill, daemon: &Daemon) -> ResourceCounts {
    let mut last = resource_counts(drill, daemon);
    eventually(LONG, "nothing comes or goes", || {
        thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut last, resource_counts(drill, daemon));
        (before.processes, before.descriptors) == (last.processes, last.descriptors)
    });
    last
}

#[test]
fn agents_that_come_and_go_all_the_time_leave_nothing_behind() {
    // One slot for two chats: each message unloads the one and brings the other back.
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    // One after the other, so that the second one has the slot in the end.
    let begun = [(); 2].map(|()| {
        let chat = daemon.create("say begin");
        let mut stream = daemon.follow(&chat, None);
        stream.any_turn();
        (chat, stream)
    });
    let [(first_chat, first_stream), (second_chat, second_stream)] = begun;
    let chats = [first_chat, second_chat];
    let mut streams = [first_stream, second_stream];
    let is_long = count(1) > 1;
    // 25 rounds of two, or 500.
    let (first, last) = if is_long { (50, 500) } else { (10, 25) };
    let mut before = None;
    for round in 1..=last {
        for (chat, stream) in chats.iter().zip(&mut streams) {
            let turn = daemon.say(chat, "say on");
            let events = stream.turn(&turn);
            assert_eq!(events.last().expect("an end").name, "done", "{events:#?}");
            assert_eq!(events[0].name, "rehydrated", "{round}: {events:#?}");
        }
        if round == first {
            before = Some(settled(&drill, &daemon));
        }
    }
    let before = before.expect("measured");
    let mut after = resource_counts(&drill, &daemon);
    println!("after {first} rounds {before:?}; after {last} {after:?}");
    // What the last one left goes a moment later.
    eventually(LONG, "processes and descriptors are as they were", || {
        after = resource_counts(&drill, &daemon);
        after.processes <= before.processes
            && after.descriptors <= before.descriptors + 8
            && after.threads <= before.threads + 16
    });
    assert!(
        after.memory < before.memory + (24 << 10),
        "{before:?} {after:?}"
    );
    assert_eq!(after.rows, before.rows, "{before:?} {after:?}");
    let rounds = i64::from(last - first);
    let a_round = (after.of_turns - before.of_turns) / rounds;
    assert!(a_round <= 40, "{a_round} rows a round");
    let homes = fs::read_dir(drill.state().join("homes"))
        .expect("homes")
        .count();
    assert_eq!(homes, 2);
    drill.assert_dense();
}

#[test]
fn a_daemon_that_is_killed_at_random_loses_and_repeats_nothing() {
    for dialect in DIALECTS {
        let drill = drill(dialect, 2);
        let mut daemon = Daemon::start(&drill);
        let mut random = seeded_random();
        let chats = [daemon.create("say begin"), daemon.create("say begin")];
        let mut accepted: Vec<Vec<String>> = vec![Vec::new(); chats.len()];
        let mut reported: Vec<Vec<StreamEvent>> = vec![Vec::new(); chats.len()];
        for round in 0..count(5) {
            for (at, chat) in chats.iter().enumerate() {
                let text = format!("say round{round}-a\nsleep 200ms");
                accepted[at].push(say(&daemon, chat, &text));
                accepted[at].push(say(&daemon, chat, &format!("say round{round}-b")));
            }
            for (at, chat) in chats.iter().enumerate() {
                let after = reported[at].last().map(|reported| reported.id.clone());
                let mut stream = daemon.follow(chat, after.as_deref());
                for _ in 0..random.random_range(0..12) {
                    let Some(event) = stream.next(Duration::from_millis(300)) else {
                        break;
                    };
                    reported[at].push(event);
                }
            }
            thread::sleep(Duration::from_millis(random.random_range(0..600)));
            daemon.running.signal("KILL");
            daemon.running.child.wait().expect("it ends");
            daemon = Daemon::start(&drill);
        }
        let mut lost = 0;
        for (at, chat) in chats.iter().enumerate() {
            let turn = say(&daemon, chat, "say the-end");
            accepted[at].push(turn.clone());
            let after = reported[at].last().map(|reported| reported.id.clone());
            let mut stream = daemon.follow(chat, after.as_deref());
            reported[at].extend(stream.turn(&turn));
            let whole = daemon.follow(chat, None).turn(&turn);
            assert!(
                reported[at] == whole,
                "{dialect}: the stream is what it was"
            );
            let turns = daemon.turns(chat);
            let ids: Vec<&str> = turns[1..]
                .iter()
                .map(|turn| turn["turn_id"].as_str().expect("an id"))
                .collect();
            assert_eq!(ids, accepted[at], "{dialect}");
            for turn in &turns {
                // One that an agent may have had is lost, and that is said; all others were sent.
                let outcome = turn["outcome"].as_str().expect("an end");
                assert!(matches!(outcome, "completed" | "lost"), "{turn}");
                let is_its = |of: &&StreamEvent| of.data["turn_id"] == turn["turn_id"];
                let ends: Vec<_> = reported[at].iter().filter(is_its).collect();
                assert_eq!(ends.len(), 1, "{dialect}: {turn} {ends:?}");
                let name = if outcome == "lost" { "error" } else { "done" };
                assert_eq!(ends[0].name, name, "{dialect}: {turn}");
                lost += usize::from(outcome == "lost");
            }
            let id = chat.rsplit('/').next().expect("an id");
            let sent = format!("events WHERE kind = 'prompt_accepted' AND session = '{id}'");
            let unwritten = format!(
                "events WHERE kind = 'turn_ended' AND session = '{id}' \
                 AND json_extract(body, '$.detail') = 'the child ended before the prompt was written'"
            );
            let sent = number(&drill, &sent) - number(&drill, &unwritten);
            assert_eq!(
                usize::try_from(sent).expect("a number"),
                turns.len(),
                "{dialect}"
            );
        }
        println!(
            "{dialect}: {} kills, {lost} turns lost and told so",
            count(5)
        );
        drill.assert_dense();
    }
}
