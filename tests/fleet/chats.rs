//! Chats over HTTP: a whole life, streams that are cut, agents that come and go, a killed daemon.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::chat_client::{DIALECTS, Daemon, LONG, Told, drill, drill_of, names, text};
use crate::drill::{Drill, count, eventually};

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
        let call = &events[events.iter().position(|of| of.name == "call").expect("one")];
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
        let said = text(&stream.turn(&turn));
        assert!(said.contains("# You are careful."), "{dialect}: {said}");
        assert!(said.contains("README.md, src/lib.rs]"), "{dialect}: {said}");
        let found = daemon.get(&chat).body;
        assert_eq!(found["turns"], 2, "{found}");
        assert_eq!(found["role"], "dev", "{found}");
        let listed = daemon.get("/api/v1/workspaces/main/chats?limit=1").body;
        assert_eq!(listed["items"][0]["chat_id"], *id, "{listed}");
        let turns = daemon.get(&format!("{chat}/turns?limit=1")).body;
        assert_eq!(turns["items"][0]["sequence"], 1, "{turns}");
        assert_eq!(turns["next"], 1, "{turns}");
        let turns = daemon.get(&format!("{chat}/turns?after=1")).body;
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
        (format!("{chats}?after=~"), 422),
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
fn a_stream_that_is_cut_goes_on_without_a_gap_or_a_double() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let script = "plan a; b; c\nthink so\nread README.md\nwrite a.txt 1\nflood 400\n";
    let chat = daemon.create(&script.repeat(3));
    let mut whole = daemon.follow(&chat, None);
    let mut got: Vec<Told> = Vec::new();
    for cut in 0..count(200) {
        let after = got.last().map(|told| told.id.clone());
        let mut stream = daemon.follow(&chat, after.as_deref());
        for _ in 0..=cut % 7 {
            let Some(told) = stream.next(Duration::from_millis(500)) else {
                break;
            };
            got.push(told);
        }
    }
    let after = got.last().map(|told| told.id.clone());
    let mut stream = daemon.follow(&chat, after.as_deref());
    if got.last().is_none_or(|told| told.name != "done") {
        got.extend(stream.any_turn());
    }
    let expected = whole.any_turn();
    assert_eq!(got, expected);
    let ids: BTreeSet<&str> = got.iter().map(|told| told.id.as_str()).collect();
    assert_eq!(ids.len(), got.len(), "each id is one event's");
    assert!(names(&got).contains(&"plan_step"), "{:?}", names(&got));
    // From the start again, later, and in the other shape.
    assert_eq!(daemon.follow(&chat, None).any_turn(), expected);
    let path = format!("{chat}/events?shape=enveloped");
    let mut enveloped = daemon.follow_with(&path, None);
    let last = expected.last().expect("the end");
    let all = enveloped.until("the end", |told| told.id == last.id);
    assert_eq!(all.len(), expected.len());
    for (one, other) in all.iter().zip(&expected) {
        assert_eq!((&one.id, one.name.as_str()), (&other.id, ""));
        assert_eq!(one.data["type"], other.name.as_str());
        assert_eq!(one.data["data"], other.data);
    }
    // A cursor that nothing has reached is taken back.
    let mut beyond = daemon.follow(&chat, Some("9-999999"));
    let told = beyond.next(LONG).expect("an event");
    assert_eq!(told.name, "rewound");
    assert_eq!(told.data["to"], *told.id);
    let turn = daemon.say(&chat, "say more");
    assert!(text(&beyond.turn(&turn)).contains("more"));
}

#[test]
fn prompts_that_come_at_once_to_an_unloaded_chat_start_one_child() {
    for dialect in DIALECTS {
        let drill = drill_of(dialect, 3, "", "", "5s");
        let daemon = Arc::new(Daemon::start(&drill));
        let chat = daemon.create("say one");
        let mut stream = daemon.follow(&chat, None);
        stream.any_turn();
        unloaded(&drill);
        assert_eq!(children(&drill), 1);
        let senders: Vec<_> = (0..12)
            .map(|at| {
                let (daemon, chat) = (Arc::clone(&daemon), chat.clone());
                thread::spawn(move || daemon.say(&chat, &format!("say number{at}")))
            })
            .collect();
        let turns: BTreeSet<String> = senders
            .into_iter()
            .map(|sender| sender.join().expect("sent"))
            .collect();
        assert_eq!(turns.len(), 12);
        let mut ended = BTreeSet::new();
        let mut all = Vec::new();
        while ended.len() < 12 {
            let events = stream.any_turn();
            let last = events.last().expect("an end");
            assert_eq!(last.name, "done", "{events:#?}");
            let turn = last.data["turn_id"].as_str().expect("an id").to_owned();
            assert!(ended.insert(turn), "each ends once");
            all.extend(events);
        }
        assert_eq!(ended, turns);
        assert_eq!(children(&drill), 2, "{dialect}: one child for all of them");
        let back = all.iter().find(|told| told.name == "rehydrated");
        assert_eq!(back.expect("told").data["by"], "resume", "{dialect}");
    }
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
            let said = text(&events);
            assert!(said.contains("say one"), "{dialect}: {said}");
            assert!(said.contains("`kept.txt` has 2 bytes"), "{dialect}: {said}");
        }
        assert_eq!(children(&drill), 4);
        drill.assert_dense();
    }
}

#[test]
fn pings_keep_a_chat_loaded() {
    let drill = drill_of("acp", 1, "", "", "3s");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one");
    daemon.follow(&chat, None).any_turn();
    let ping = format!("{chat}/ping");
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(7) {
        assert_eq!(daemon.post(&ping, &json!({})).status, 204);
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(daemon.get(&chat).body["loaded"], true);
    assert_eq!(children(&drill), 1);
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
        let told = events.iter().find(|told| told.name == "rehydrated");
        let told = told.unwrap_or_else(|| panic!("{dialect}: {events:#?}"));
        assert_eq!(told.data["by"], "transcript", "{dialect}");
        // The agent takes a prompt for a script, and says which line is none: the transcript's.
        let said = text(&events);
        assert!(
            said.contains("`The`") || said.contains("User:"),
            "{dialect}: {said}"
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
        stream.until("the call", |told| told.name == "call");
        // It runs, as its request was allowed.
        eventually(LONG, "it is allowed", || {
            // In ScaiFlux what it claims to need makes it a question.
            let asks = daemon.get("/asks").body;
            if let Some(id) = asks[0]["ask"].as_str() {
                daemon.post(&format!("/asks/{id}"), &json!({"decision": "allow"}));
            }
            number(&drill, "events WHERE kind = 'decided'") == 1
        });
        for _ in 0..2 {
            let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
            assert_eq!(stopped.status, 200, "{stopped:?}");
        }
        let events = stream.any_turn();
        let observed = events.iter().find(|told| told.name == "observation");
        let observed = observed.unwrap_or_else(|| panic!("{dialect}: {events:#?}"));
        assert_eq!(observed.data["success"], true, "{dialect}: {events:#?}");
        let last = events.last().expect("the end");
        assert_eq!(last.name, "stopped", "{dialect}: {events:#?}");
        assert_eq!(last.data["reason"], "user_cancelled");
        let partial = last.data["partial_response"].as_str().expect("a text");
        assert!(partial.contains("before"), "{dialect}: {partial}");
        let turn = daemon.say(&chat, "recall");
        let said = text(&stream.turn(&turn));
        assert!(!said.contains(MARKER), "this prompt is no earlier one");
        let turn = daemon.say(&chat, "recall");
        let said = text(&stream.turn(&turn));
        assert!(said.contains(MARKER), "{dialect}: {said}");
        assert_eq!(said.matches(MARKER).count(), 1, "once: {said}");
        assert_eq!(children(&drill), 1, "{dialect}: the agent lives on");
    }
}

#[test]
fn a_stop_ends_what_waits_too() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nhang");
    let mut stream = daemon.follow(&chat, None);
    stream.until("it runs", |told| told.name == "chunk");
    let waits = daemon.say(&chat, "say two");
    daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stream.any_turn().last().expect("an end").name, "stopped");
    let turns = daemon.get(&format!("{chat}/turns")).body;
    assert_eq!(turns["items"][1]["turn_id"], *waits, "{turns}");
    assert_eq!(turns["items"][1]["outcome"], "cancelled", "{turns}");
    let turn = daemon.say(&chat, "say three");
    let said = text(&stream.turn(&turn));
    assert!(said.contains("three") && !said.contains("two"), "{said}");
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
    for at in 0..6 {
        daemon.say(&first, &format!("say long{at}\nsleep 1s"));
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
    let events = stream.until("the question", |told| told.name == "ask");
    let ask = &events.last().expect("it").data;
    assert_eq!(ask["tool"], "execute", "{ask}");
    assert_eq!(ask["facts"]["parts"][0]["words"][0], "touch", "{ask}");
    assert!(ask["deadline"].as_i64().is_some_and(|at| at > 0), "{ask}");
    // Longer than it may be idle.
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(daemon.get(&chat).body["state"], "running");
    let page = format!("/asks/{}", ask["id"].as_str().expect("an id"));
    let said = daemon.post(&page, &json!({"decision": "allow"}));
    assert_eq!(said.status, 200, "{said:?}");
    let events = stream.any_turn();
    assert_eq!(events.last().expect("the end").name, "done", "{events:#?}");
}

#[test]
fn after_a_kill_every_chat_is_back_and_no_accepted_message_is_lost_or_sent_twice() {
    for dialect in DIALECTS {
        let drill = drill(dialect, 2);
        let mut daemon = Daemon::start(&drill);
        let chats = [daemon.create("say begin"), daemon.create("say begin")];
        let mut cursors: Vec<Option<String>> = vec![None; chats.len()];
        let mut told: Vec<Vec<Told>> = vec![Vec::new(); chats.len()];
        for round in 0..count(3) {
            for chat in &chats {
                daemon.say(chat, &format!("say round{round}-a\nsleep 200ms"));
                daemon.say(chat, &format!("say round{round}-b"));
            }
            for (at, chat) in chats.iter().enumerate() {
                let mut stream = daemon.follow(chat, cursors[at].as_deref());
                for _ in 0..round * 3 {
                    let Some(event) = stream.next(Duration::from_millis(300)) else {
                        break;
                    };
                    cursors[at] = Some(event.id.clone());
                    told[at].push(event);
                }
            }
            daemon.running.signal("KILL");
            daemon.running.child.wait().expect("it ends");
            daemon = Daemon::start(&drill);
        }
        for (at, chat) in chats.iter().enumerate() {
            let turn = daemon.say(chat, "say the-end");
            let mut stream = daemon.follow(chat, cursors[at].as_deref());
            told[at].extend(stream.turn(&turn));
            assert_eq!(told[at], daemon.follow(chat, None).turn(&turn), "{dialect}");
            let turns = daemon.get(&format!("{chat}/turns")).body;
            let turns = turns["items"].as_array().expect("turns");
            assert_eq!(turns.len(), 2 + 2 * count(3));
            for turn in turns {
                // One that an agent may have had is lost, and that is said; all others were sent.
                let outcome = turn["outcome"].as_str().expect("an end");
                assert!(matches!(outcome, "completed" | "lost"), "{turn}");
                let is_its = |of: &&Told| of.data["turn_id"] == turn["turn_id"];
                let ends: Vec<_> = told[at].iter().filter(is_its).collect();
                assert_eq!(ends.len(), 1, "{dialect}: {turn} {ends:?}");
                let name = if outcome == "lost" { "error" } else { "done" };
                assert_eq!(ends[0].name, name, "{dialect}: {turn}");
            }
            let id = chat.rsplit('/').next().expect("an id");
            let sent = number(
                &drill,
                &format!("events WHERE kind = 'prompt_accepted' AND session = '{id}'"),
            );
            assert_eq!(
                sent,
                i64::try_from(turns.len()).expect("a number"),
                "{dialect}"
            );
        }
        drill.assert_dense();
    }
}

#[test]
fn a_stop_of_the_daemon_ends_the_streams_and_what_waits_goes_on_with_the_next() {
    let drill = drill("acp", 1);
    let mut daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nhang");
    let mut stream = daemon.follow(&chat, None);
    let events = stream.until("it runs", |told| told.name == "chunk");
    let waits = daemon.say(&chat, "say two");
    daemon.running.signal("TERM");
    let ended = stream.any_turn();
    assert_eq!(ended.last().expect("an end").name, "stopped", "{ended:#?}");
    assert!(stream.next(LONG).is_none());
    assert!(stream.is_over, "a clean end");
    assert_eq!(daemon.running.wait(LONG), Some(0));
    let after = ended.last().or(events.last()).map(|told| told.id.clone());
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
