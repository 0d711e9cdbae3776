//! Chats over HTTP: a whole life, streams, agents that come and go.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chat_client::{DIALECTS, Daemon, LONG, drill, drill_of, names, text};
use crate::drill::{Drill, eventually};

const MARKER: &str = "[System: Response was interrupted by user (user_cancelled)]";

fn number(drill: &Drill, query: &str) -> i64 {
    let found = drill
        .database()
        .query_row(&format!("SELECT count(*) FROM {query}"), [], |row| {
            row.get(0)
        });
    found.expect(query)
}

fn children(drill: &Drill) -> i64 {
    number(drill, "events WHERE kind = 'child_started'")
}

/// No agent of the drill runs.
fn unloaded(drill: &Drill) {
    eventually(LONG, "its agent is stopped", || drill.agents().is_empty());
}

#[test]
fn a_chat_begins_answers_and_is_listed() {
    for dialect in DIALECTS {
        let drill = drill(dialect, 1);
        let daemon = Daemon::start(&drill);
        let body = json!({
            "goal": "say one\nread README.md",
            "role": "dev",
            "files": ["README.md", "src/lib.rs"],
        });
        let made = daemon.post("/api/v1/workspaces/main/chats", &body);
        assert_eq!(made.status, 201, "{made:?}");
        assert_eq!(made.body["sequence"], 1);
        let id = made.body["chat_id"].as_str().expect("an id");
        let chat = format!("/api/v1/workspaces/main/chats/{id}");
        assert!(
            made.head.contains(&format!("location: {chat}\r\n")),
            "{made:?}"
        );
        let mut stream = daemon.follow(&chat, None);
        let events = stream.turn(made.body["turn_id"].as_str().expect("an id"));
        assert_eq!(
            names(&events),
            ["chunk", "call", "observation", "chunk", "done"],
            "{dialect}: {events:#?}"
        );
        assert!(text(&events).contains("one"), "{events:#?}");
        let call = &events[events
            .iter()
            .position(|item| item.name == "call")
            .expect("one")];
        assert_eq!(call.data["path"], "README.md", "{call:?}");
        let done = events.last().expect("the end");
        assert_eq!(done.data["outcome"], "completed");
        assert!(
            done.data["message"]
                .as_str()
                .expect("a text")
                .contains("one"),
            "{done:?}"
        );
        let turn = daemon.say(&chat, "recall");
        let turn_text = text(&stream.turn(&turn));
        assert!(
            turn_text.contains("# You are careful."),
            "{dialect}: {turn_text}"
        );
        assert!(
            turn_text.contains("README.md, src/lib.rs]"),
            "{dialect}: {turn_text}"
        );
        let found = daemon.get(&chat).body;
        assert_eq!(found["turns"], 2, "{found}");
        assert_eq!(found["role"], "dev", "{found}");
        let listed = daemon.get("/api/v1/workspaces/main/chats?limit=1").body;
        assert_eq!(listed["items"][0]["chat_id"], *id, "{listed}");
        let turns = daemon.get(&format!("{chat}/turns?limit=1")).body;
        assert_eq!(turns["items"][0]["sequence"], 1, "{turns}");
        assert_eq!(turns["next"], "1", "{turns}");
        let turns = daemon.get(&format!("{chat}/turns?cursor=1")).body;
        assert_eq!(turns["items"][0]["turn_id"], *turn, "{turns}");
        assert_eq!(turns["items"][0]["outcome"], "completed", "{turns}");
        assert_eq!(children(&drill), 1);
        drill.assert_dense();
    }
}

#[test]
fn what_is_not_there_or_not_right_is_refused() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chats = "/api/v1/workspaces/main/chats";
    let none = format!("{chats}/none");
    let good = json!({"goal": "say one", "role": "dev"});
    let create = |body: &serde_json::Value| daemon.post(chats, body).status;
    assert_eq!(
        daemon.post("/api/v1/workspaces/other/chats", &good).status,
        404
    );
    for (path, status) in [
        (none.clone(), 404),
        (format!("{none}/events"), 404),
        (format!("{none}/turns"), 404),
        (format!("{chats}?x=1"), 400),
        (format!("{chats}?limit=x"), 400),
        (format!("{chats}?cursor=~"), 400),
    ] {
        assert_eq!(daemon.get(&path).status, status, "{path}");
    }
    for path in ["stop", "ping"] {
        let path = format!("{none}/{path}");
        assert_eq!(daemon.post(&path, &json!({})).status, 404, "{path}");
    }
    assert_eq!(daemon.post(&none, &json!({"content": "say"})).status, 404);
    for bad in [
        json!({"role": "dev"}),
        json!({"goal": " ", "role": "dev"}),
        json!({"goal": "say one", "role": "nobody"}),
        json!({"goal": "say one", "role": "dev", "model": "other"}),
        json!({"goal": "say one", "role": "dev", "files": ["none"]}),
        json!({"goal": "say one", "role": "dev", "files": ["../supervisor.toml"]}),
        json!({"goal": "say one", "role": "dev", "files": ["/etc/passwd"]}),
        json!({"goal": "say one", "role": "dev", "path": "/"}),
        json!({"goal": 1}),
    ] {
        assert_eq!(create(&bad), 422, "{bad}");
    }
    assert_eq!(daemon.request("POST", chats, "", "{").status, 400);
    let long = format!(r#"{{"goal": "{}"}}"#, "x".repeat(600 << 10));
    assert_eq!(daemon.request("POST", chats, "", &long).status, 413);
    assert_eq!(daemon.request("DELETE", chats, "", "").status, 405);
    let stranger = Daemon {
        token: "0".repeat(64),
        address: daemon.address.clone(),
        running: drill.start(&["--version"]),
    };
    assert_eq!(stranger.get(chats).status, 401);
    assert_eq!(stranger.request("POST", chats, "", "{").status, 401);
    assert_eq!(number(&drill, "chats"), 0, "nothing was begun");
    // A message that is sent again is the same one, and another under its key is refused.
    let chat = daemon.create("say one");
    let again = |content: &str| {
        let body = json!({"content": content}).to_string();
        daemon.request("POST", &chat, "Idempotency-Key: k1\r\n", &body)
    };
    let first = again("say two");
    assert_eq!(first.status, 202, "{first:?}");
    assert_eq!(again("say two").body, first.body);
    assert_eq!(again("say three").status, 422);
    assert_eq!(number(&drill, "turns"), 2);
    for bad in ["x", "1-", "1-2.0"] {
        let path = format!("{chat}/events?after={bad}");
        assert_eq!(daemon.get(&path).status, 400, "{bad}");
    }
    assert_eq!(daemon.get(&format!("{chat}/events?shape=odd")).status, 400);
}

#[test]
fn a_stream_is_told_again_as_it_was_in_both_shapes() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let script = "plan a; b; c\nthink so\nread README.md\nwrite a.txt 1\nflood 40\n";
    let chat = daemon.create(&script.repeat(3));
    let expected = daemon.follow(&chat, None).any_turn();
    assert!(names(&expected).contains(&"plan_step"));
    // From the start again, later, and in the other shape.
    assert_eq!(daemon.follow(&chat, None).any_turn(), expected);
    let path = format!("{chat}/events?shape=enveloped");
    let mut enveloped = daemon.follow_with(&path, None);
    let last = expected.last().expect("the end");
    let all = enveloped.until("the end", |reported| reported.id == last.id);
    assert_eq!(all.len(), expected.len());
    for (one, other) in all.iter().zip(&expected) {
        assert_eq!((&one.id, one.name.as_str()), (&other.id, ""));
        assert_eq!(one.data["type"], other.name.as_str());
        assert_eq!(one.data["data"], other.data);
    }
    // A cursor that nothing has reached is taken back.
    let mut beyond = daemon.follow(&chat, Some("9-999999"));
    let reported = beyond.next(LONG).expect("an event");
    assert_eq!(reported.name, "rewound");
    assert_eq!(reported.data["to"], *reported.id);
    let turn = daemon.say(&chat, "say more");
    assert!(text(&beyond.turn(&turn)).contains("more"));
}

#[test]
fn a_chat_unloads_when_it_is_idle_and_the_stream_goes_on_with_its_memory() {
    for dialect in DIALECTS {
        let drill = drill_of(dialect, 1, "", "", "1s");
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say one\nwrite kept.txt 1");
        let mut stream = daemon.follow(&chat, None);
        stream.any_turn();
        for _ in 0..3 {
            // A subscriber is no activity.
            unloaded(&drill);
            eventually(LONG, "it says so", || {
                daemon.get(&chat).body["loaded"] == false
            });
            // A stop finds nothing, which is no error.
            let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
            assert_eq!(stopped.status, 200, "{stopped:?}");
            assert_eq!(stopped.body["status"], "cancelled");
            let turn = daemon.say(&chat, "recall\nread kept.txt");
            let events = stream.turn(&turn);
            assert_eq!(events[0].name, "rehydrated", "{dialect}: {events:#?}");
            assert_eq!(events[0].data["by"], "resume", "{dialect}");
            let turn_text = text(&events);
            assert!(turn_text.contains("say one"), "{dialect}: {turn_text}");
            assert!(
                turn_text.contains("`kept.txt` has 2 bytes"),
                "{dialect}: {turn_text}"
            );
        }
        assert_eq!(children(&drill), 4);
        drill.assert_dense();
    }
}

/// Pings a chat for that long; gives the longest time between two that were heard.
fn pinged(daemon: &Daemon, chat: &str, most: Duration) -> Duration {
    let ping = format!("{chat}/ping");
    let began = Instant::now();
    let (mut received, mut longest) = (began, Duration::ZERO);
    while began.elapsed() < most {
        assert_eq!(daemon.post(&ping, &json!({})).status, 204);
        longest = longest.max(received.elapsed());
        received = Instant::now();
        thread::sleep(Duration::from_millis(50));
    }
    longest
}

#[test]
fn pings_keep_a_chat_loaded() {
    let drill = drill_of("acp", 1, "", "", "5s");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one");
    daemon.follow(&chat, None).any_turn();
    // A machine that stands still for seconds is no chat that nobody uses.
    let is_judged = (0..10).any(|_| {
        let turn = daemon.say(&chat, "say more");
        daemon.follow(&chat, None).turn(&turn);
        let before = children(&drill);
        let longest = pinged(&daemon, &chat, Duration::from_secs(8));
        if longest > Duration::from_secs(3) {
            return false;
        }
        assert_eq!(daemon.get(&chat).body["loaded"], true, "{longest:?}");
        assert_eq!(children(&drill), before);
        true
    });
    assert!(is_judged, "no eight seconds without a halt of three");
    unloaded(&drill);
}

#[test]
fn an_agent_without_a_memory_is_told_what_was_said() {
    for dialect in DIALECTS {
        let flags = match dialect {
            "acp" => r#", "--quirk", "no-load""#,
            _ => r#", "--forget""#,
        };
        let drill = drill_of(dialect, 1, flags, "", "1s");
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say the-goal");
        let mut stream = daemon.follow(&chat, None);
        stream.any_turn();
        let turn = daemon.say(&chat, "say in-between\nread README.md");
        stream.turn(&turn);
        unloaded(&drill);
        let turn = daemon.say(&chat, "say at-last");
        let events = stream.turn(&turn);
        let seen_events = events
            .iter()
            .find(|seen_events| seen_events.name == "rehydrated");
        let seen_events = seen_events.unwrap_or_else(|| panic!("{dialect}: {events:#?}"));
        assert_eq!(seen_events.data["by"], "transcript", "{dialect}");
        // The agent takes a prompt for a script, and says which line is none: the transcript's.
        let turn_text = text(&events);
        assert!(
            turn_text.contains("`The`") || turn_text.contains("User:"),
            "{dialect}: {turn_text}"
        );
        // What is kept of the message is what was sent.
        let turns = daemon.get(&format!("{chat}/turns")).body;
        assert_eq!(turns["items"][2]["content"], "say at-last", "{turns}");
    }
}

#[test]
fn a_stop_lets_a_tool_call_end_and_the_agent_hears_of_it_at_its_next_turn() {
    for dialect in DIALECTS {
        let drill = drill(dialect, 1);
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say before\nrun sleep 3\nsay after\nsleep 60s");
        let mut stream = daemon.follow(&chat, None);
        stream.until("the call", |reported| reported.name == "call");
        // It runs, as its request was allowed.
        eventually(LONG, "it is allowed", || {
            // In ScaiFlux what it claims to need makes it a question.
            let requests = daemon.get("/approvals").body;
            if let Some(id) = requests[0]["approval"].as_str() {
                daemon.post(&format!("/approvals/{id}"), &json!({"decision": "allow"}));
            }
            number(&drill, "events WHERE kind = 'permission_decided'") == 1
        });
        for _ in 0..2 {
            let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
            assert_eq!(stopped.status, 200, "{stopped:?}");
        }
        let events = stream.any_turn();
        let observed = events
            .iter()
            .find(|reported| reported.name == "observation");
        let observed = observed.unwrap_or_else(|| panic!("{dialect}: {events:#?}"));
        assert_eq!(observed.data["success"], true, "{dialect}: {events:#?}");
        let last = events.last().expect("the end");
        assert_eq!(last.name, "stopped", "{dialect}: {events:#?}");
        assert_eq!(last.data["reason"], "user_cancelled");
        let partial = last.data["partial_response"].as_str().expect("a text");
        assert!(partial.contains("before"), "{dialect}: {partial}");
        let turn = daemon.say(&chat, "recall");
        let turn_text = text(&stream.turn(&turn));
        assert!(!turn_text.contains(MARKER), "this prompt is no earlier one");
        let turn = daemon.say(&chat, "recall");
        let turn_text = text(&stream.turn(&turn));
        assert!(turn_text.contains(MARKER), "{dialect}: {turn_text}");
        assert_eq!(turn_text.matches(MARKER).count(), 1, "once: {turn_text}");
        assert_eq!(children(&drill), 1, "{dialect}: the agent lives on");
    }
}

#[test]
fn a_stop_ends_what_waits_too() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nhang");
    let mut stream = daemon.follow(&chat, None);
    stream.until("it runs", |reported| reported.name == "chunk");
    let waits = daemon.say(&chat, "say two");
    daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stream.any_turn().last().expect("an end").name, "stopped");
    // One after the other.
    assert_eq!(stream.turn(&waits).last().expect("an end").name, "stopped");
    let turns = daemon.get(&format!("{chat}/turns")).body;
    assert_eq!(turns["items"][1]["turn_id"], *waits, "{turns}");
    assert_eq!(turns["items"][1]["outcome"], "cancelled", "{turns}");
    let turn = daemon.say(&chat, "say three");
    let turn_text = text(&stream.turn(&turn));
    assert!(
        turn_text.contains("three") && !turn_text.contains("two"),
        "{turn_text}"
    );
}

#[test]
fn an_idle_chat_gives_its_slot_to_one_that_waits() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let first = daemon.create("say one");
    daemon.follow(&first, None).any_turn();
    let second = daemon.create("say two");
    let mut streams = [daemon.follow(&first, None), daemon.follow(&second, None)];
    for stream in &mut streams {
        stream.any_turn();
    }
    for round in 0..3 {
        for (at, chat) in [&first, &second].into_iter().enumerate() {
            let turn = daemon.say(chat, &format!("say round{round}"));
            let events = streams[at].turn(&turn);
            assert_eq!(events.last().expect("an end").name, "done", "{events:#?}");
        }
    }
    // And one that has much to do gives way between its turns.
    for at in 0..12 {
        daemon.say(&first, &format!("say long{at}\nsleep 2s"));
    }
    let turn = daemon.say(&second, "say between");
    streams[1].turn(&turn);
    let waiting = daemon.get(&first).body["waiting"].as_u64();
    assert!(waiting.is_some_and(|waiting| waiting > 0), "{waiting:?}");
}

#[test]
fn a_paused_pool_keeps_its_idle_chats_until_it_begins_again() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let first = daemon.create("say one");
    daemon.follow(&first, None).any_turn();
    let order = |what: &str| daemon.request("POST", &format!("/api/v1/pools/demo/{what}"), "", "");
    assert_eq!(order("pause").status, 200);
    let second = daemon.create("say two");
    let mut stream = daemon.follow(&second, None);
    // Longer than a chat waits before it wants another's slot.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(daemon.get(&first).body["loaded"], true);
    assert_eq!(daemon.get(&second).body["state"], "waiting");
    assert_eq!(order("resume").status, 200);
    let events = stream.any_turn();
    assert_eq!(events.last().expect("the end").name, "done", "{events:#?}");
}

#[test]
fn a_question_is_told_and_answered_and_waits_for_no_timer() {
    let drill = drill_of("acp", 1, "", "", "1s");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("run touch made.txt");
    let mut stream = daemon.follow(&chat, None);
    let events = stream.until("the question", |reported| reported.name == "approval");
    let ask = &events.last().expect("it").data;
    assert_eq!(ask["tool"], "execute", "{ask}");
    assert_eq!(ask["facts"]["parts"][0]["words"][0], "touch", "{ask}");
    assert!(ask["deadline"].as_i64().is_some_and(|at| at > 0), "{ask}");
    // Longer than it may be idle.
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(daemon.get(&chat).body["state"], "running");
    let page = format!("/approvals/{}", ask["id"].as_str().expect("an id"));
    let message = daemon.post(&page, &json!({"decision": "allow"}));
    assert_eq!(message.status, 200, "{message:?}");
    let events = stream.any_turn();
    assert_eq!(events.last().expect("the end").name, "done", "{events:#?}");
}

#[test]
fn a_stop_of_the_daemon_ends_the_streams_and_what_waits_goes_on_with_the_next() {
    let drill = drill("acp", 1);
    let mut daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nhang");
    let mut stream = daemon.follow(&chat, None);
    let events = stream.until("it runs", |reported| reported.name == "chunk");
    let waits = daemon.say(&chat, "say two");
    daemon.running.signal("TERM");
    let ended = stream.any_turn();
    assert_eq!(ended.last().expect("an end").name, "stopped", "{ended:#?}");
    assert!(stream.next(LONG).is_none());
    assert!(stream.is_over, "a clean end");
    assert_eq!(daemon.running.wait(LONG), Some(0));
    let after = ended
        .last()
        .or(events.last())
        .map(|reported| reported.id.clone());
    let daemon = Daemon::start(&drill);
    let events = daemon.follow(&chat, after.as_deref()).turn(&waits);
    assert_eq!(events.last().expect("an end").name, "done", "{events:#?}");
    assert!(text(&events).contains("two"));
}

#[test]
fn a_role_has_its_model() {
    for dialect in DIALECTS {
        let flags = match dialect {
            "acp" => r#", "--quirk", "modes""#,
            _ => r#", "--model", "{model}""#,
        };
        let more = match dialect {
            "acp" => "",
            _ => "model = \"plain\"",
        };
        let drill = drill_of(dialect, 1, flags, more, "10m");
        let config = std::fs::read_to_string(drill.config()).expect("a file");
        let model = if dialect == "acp" { "b" } else { "big" };
        let role = format!("[role.dev]\nmodel = \"{model}\"");
        std::fs::write(drill.config(), config.replace("[role.dev]", &role)).expect("written");
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say one");
        let events = daemon.follow(&chat, None).any_turn();
        assert_eq!(events.last().expect("an end").name, "done", "{events:#?}");
        assert_eq!(daemon.get(&chat).body["model"], model);
        let query = "SELECT json_extract(body, '$.model') FROM events WHERE kind = 'ready'";
        let ready: Option<String> = drill
            .database()
            .query_row(query, [], |row| row.get(0))
            .expect("ready");
        assert_eq!(ready.as_deref(), Some(model), "{dialect}");
    }
}
