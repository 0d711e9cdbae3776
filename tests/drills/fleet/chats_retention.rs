//! Chats that are stopped, closed and deleted, and their notifications, over kills and restarts.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, StreamEvent, drill, drill_of, text};
use crate::drill::{Drill, eventually};

fn number(drill: &Drill, query: &str) -> i64 {
    let sql = format!("SELECT {query}");
    let found = drill.database().query_row(&sql, [], |row| row.get(0));
    found.expect(query)
}

fn killed(mut daemon: Daemon) {
    daemon.running.signal("KILL");
    daemon.running.child.wait().expect("it ends");
}

/// The turns that were stopped, in the order in which that was told.
fn stopped(events: &[StreamEvent]) -> Vec<&str> {
    let stopped = events.iter().filter(|reported| reported.name == "stopped");
    let ids = stopped.map(|reported| {
        assert_eq!(reported.data["reason"], "user_cancelled", "{reported:?}");
        reported.data["turn_id"].as_str().expect("a turn's id")
    });
    ids.collect()
}

#[test]
fn a_question_from_before_a_kill_is_told_again_with_its_id_and_its_time() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("run touch made.txt");
    let mut stream = daemon.follow(&chat, None);
    let events = stream.until("the question", |reported| reported.name == "approval");
    let first = events.last().expect("it").clone();
    killed(daemon);
    let daemon = Daemon::start(&drill);
    let mut stream = daemon.follow(&chat, Some(&first.id));
    let lost = stream.any_turn();
    assert_eq!(lost.last().expect("an end").data["outcome"], "lost");
    daemon.say(&chat, "run touch made.txt");
    let events = stream.until("the question again", |reported| reported.name == "approval");
    let again = events.last().expect("it");
    for part in ["id", "deadline", "tool", "rule"] {
        assert_eq!(again.data[part], first.data[part], "{part}: {again:?}");
    }
    let page = format!("/approvals/{}", first.data["id"].as_str().expect("an id"));
    let message = daemon.post(&page, &json!({"decision": "allow"}));
    assert_eq!(message.status, 200, "{message:?}");
    let events = stream.any_turn();
    assert_eq!(events.last().expect("the end").name, "done", "{events:#?}");
    // Later it is told the same, though it is answered.
    let all = daemon.follow(&chat, None).until("the end", |reported| {
        reported.name == "done"
            && reported.data["turn_id"] == events.last().expect("it").data["turn_id"]
    });
    let requests: Vec<_> = all
        .iter()
        .filter(|reported| reported.name == "approval")
        .collect();
    assert_eq!(requests.len(), 2, "{all:#?}");
    assert_eq!(requests[1].data["deadline"], first.data["deadline"]);
}

#[test]
fn each_message_that_is_stopped_is_told_of_once_by_its_id_and_the_agent_lives_on() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nsleep 600s");
    let mut stream = daemon.follow(&chat, None);
    stream.until("it runs", |reported| reported.name == "chunk");
    let waiting = [daemon.say(&chat, "say two"), daemon.say(&chat, "say three")];
    let stop = daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stop.status, 200, "{stop:?}");
    let events = stream.until("the last of them", |reported| {
        reported.data["turn_id"] == *waiting[1]
    });
    let ids = stopped(&events);
    assert_eq!(ids.len(), 3, "{events:#?}");
    assert_eq!(ids[1..], [&*waiting[0], &*waiting[1]]);
    // The next one is told of the one that ran, and comes to the same child.
    daemon.say(&chat, "say four");
    stream.any_turn();
    let turn = daemon.say(&chat, "recall");
    let turn_text = text(&stream.turn(&turn));
    let marker = "[System: Response was interrupted by user (user_cancelled)]";
    assert!(turn_text.contains(marker), "{turn_text}");
    assert!(
        !turn_text.contains("say two") && !turn_text.contains("say three"),
        "{turn_text}"
    );
    assert_eq!(
        number(&drill, "count(*) FROM events WHERE kind = 'child_started'"),
        1
    );
    // Without an agent: the pool gives no slot, and the daemon is killed meanwhile.
    let order = |daemon: &Daemon, what: &str| {
        let path = format!("/api/v1/pools/demo/{what}");
        assert_eq!(daemon.request("POST", &path, "", "").status, 200, "{what}");
    };
    order(&daemon, "pause");
    let other = daemon.create("say never");
    let second = daemon.say(&other, "say neither");
    let mut stream = daemon.follow(&other, None);
    for _ in 0..2 {
        let stop = daemon.post(&format!("{other}/stop"), &json!({}));
        assert_eq!(stop.status, 200, "{stop:?}");
    }
    let events = stream.turn(&second);
    assert_eq!(stopped(&events).len(), 2, "{events:#?}");
    killed(daemon);
    let daemon = Daemon::start(&drill);
    let turn = daemon.say(&other, "say at-last");
    let all = daemon.follow(&other, None).turn(&turn);
    assert_eq!(all[..2], events, "each once, also after a kill");
    assert_eq!(stopped(&all).len(), 2);
    assert_eq!(text(&all).trim(), "at-last");
    drill.assert_dense();
}

#[test]
fn a_stop_in_the_first_moment_leaves_no_instructions_out() {
    let drill = drill("acp", 2);
    let daemon = Daemon::start(&drill);
    for at in 0..4 {
        let chat = daemon.create("sleep 600s");
        let id = chat.rsplit('/').next().expect("an id").to_owned();
        let has = |what: &str| {
            let query = format!("count(*) FROM events WHERE session = '{id}' AND {what}");
            number(&drill, &query) > 0
        };
        // At once, when a child starts, when the prompt is taken in, and a moment later.
        match at {
            0 => {}
            1 => eventually(LONG, "a child", || has("kind = 'child_started'")),
            _ => eventually(LONG, "a prompt", || has("kind = 'prompt_accepted'")),
        }
        if at == 3 {
            std::thread::sleep(Duration::from_millis(100));
        }
        daemon.post(&format!("{chat}/stop"), &json!({}));
        let mut stream = daemon.follow(&chat, None);
        let ended = stream.any_turn();
        assert_eq!(stopped(&ended).len(), 1, "{ended:#?}");
        daemon.say(&chat, "say hello");
        stream.any_turn();
        let turn = daemon.say(&chat, "recall");
        let turn_text = text(&stream.turn(&turn));
        assert!(
            turn_text.contains("# You are careful."),
            "{at}: {turn_text}"
        );
        let closed = daemon.request("DELETE", &chat, "", "");
        assert_eq!(closed.status, 200, "{closed:?}");
    }
}

fn state_of(daemon: &Daemon, chat: &str) -> Value {
    daemon.get(chat).body["state"].clone()
}

#[test]
fn a_closed_chat_takes_no_messages_and_leaves_nothing_behind() {
    let drill = drill("acp", 2);
    let daemon = Daemon::start(&drill);
    let idle = daemon.create("say one");
    let mut stream = daemon.follow(&idle, None);
    let text = stream.any_turn();
    let busy = daemon.create("say before\nsleep 600s");
    let mut other = daemon.follow(&busy, None);
    other.until("it runs", |reported| reported.name == "chunk");
    let waits = daemon.say(&busy, "say never");
    for chat in [&idle, &busy] {
        let id = chat.rsplit('/').next().expect("an id");
        let home = drill.state().join("homes").join(id);
        assert!(home.exists(), "{home:?}");
        let closed = daemon.request("DELETE", chat, "", "");
        assert_eq!(closed.status, 200, "{closed:?}");
        eventually(LONG, "it is closed", || state_of(&daemon, chat) == "closed");
        let late = daemon.post(chat, &json!({"content": "say late"}));
        assert_eq!(late.status, 409, "{late:?}");
        let again = daemon.request("DELETE", chat, "", "");
        assert_eq!(again.status, 200, "{again:?}");
        assert_eq!(again.body["status"], "closed");
        eventually(LONG, "its home is gone", || !home.exists());
        eventually(LONG, "nobody has it", || {
            daemon.get(chat).body["loaded"] == false
        });
    }
    let events = other.turn(&waits);
    assert_eq!(
        stopped(&events).len(),
        2,
        "what ran and what waited: {events:#?}"
    );
    eventually(LONG, "no agent is left", || drill.agents().is_empty());
    let open = "count(*) FROM sessions JOIN runs USING (run) \
                WHERE sessions.ended_at_us IS NULL OR runs.ended_at_us IS NULL";
    assert_eq!(number(&drill, open), 0);
    assert_eq!(
        number(&drill, "count(*) FROM turns WHERE state <> 'ended'"),
        0
    );
    // What was said can still be read; and after a restart nothing is taken up.
    assert_eq!(daemon.follow(&idle, None).any_turn(), text);
    killed(daemon);
    let daemon = Daemon::start(&drill);
    assert_eq!(daemon.follow(&idle, None).any_turn(), text);
    assert_eq!(state_of(&daemon, &busy), "closed");
    let strange = "/api/v1/workspaces/main/chats/none";
    assert_eq!(daemon.request("DELETE", strange, "", "").status, 404);
    drill.assert_dense();
}

#[test]
fn a_chat_that_nobody_uses_is_closed_by_itself() {
    let drill = drill_of("acp", 1, "", "", "1s");
    let text = fs::read_to_string(drill.config()).expect("a file");
    let text = text.replace("[chat]\n", "[chat]\nclose_after = \"3s\"\n");
    fs::write(drill.config(), text).expect("written");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one");
    daemon.follow(&chat, None).any_turn();
    eventually(LONG, "it is closed", || {
        state_of(&daemon, &chat) == "closed"
    });
    eventually(LONG, "no agent is left", || drill.agents().is_empty());
    // One that waits for a slot is used.
    let path = "/api/v1/pools/demo/pause";
    assert_eq!(daemon.request("POST", path, "", "").status, 200);
    let waits = daemon.create("say two");
    let after = daemon.get(&chat).body["closed_at"].clone();
    assert!(after.is_string(), "{after:?}");
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(state_of(&daemon, &waits), "waiting");
}

#[test]
fn a_chat_with_a_command_in_the_background_gives_way_when_that_has_ended() {
    let more = "permission_requests = \"all\"\nclient_terminal = true";
    let drill = drill_of("acp", 1, "", more, "10m");
    let daemon = Daemon::start(&drill);
    let create = r#"client terminal/create {"command":"sleep","args":["5"]}"#;
    let first = daemon.create(create);
    daemon.follow(&first, None).any_turn();
    assert_eq!(
        number(
            &drill,
            "count(*) FROM events WHERE kind = 'terminal_started'"
        ),
        1
    );
    let second = daemon.create("say two");
    let events = daemon.follow(&second, None).any_turn();
    assert_eq!(events.last().expect("the end").name, "done", "{events:#?}");
    let ended = "json_extract(body, '$.status') FROM events WHERE kind = 'terminal_ended'";
    let database = drill.database();
    let ended: Option<String> = database
        .query_row(&format!("SELECT {ended}"), [], |row| row.get(0))
        .expect("it ended");
    let ended = ended.expect("by itself");
    assert!(ended.contains("\"code\":0"), "{ended}");
    let order = "(SELECT at_us FROM events WHERE kind = 'terminal_ended') < \
                 (SELECT max(at_us) FROM events WHERE kind = 'prompt_accepted')";
    assert_eq!(number(&drill, order), 1, "the slot was given up after that");
}

#[test]
fn a_chat_with_much_to_do_leaves_a_slot_that_is_to_get_no_more() {
    let drill = drill("acp", 2);
    let daemon = Daemon::start(&drill);
    let chats = [daemon.create("say one"), daemon.create("say two")];
    for chat in &chats {
        daemon.follow(chat, None).any_turn();
    }
    let resized = r#"{"size": 1}"#;
    for chat in &chats {
        daemon.say(chat, "sleep 8s");
    }
    let answer = daemon.request("POST", "/api/v1/pools/demo/resize", "", resized);
    assert_eq!(answer.status, 200, "{answer:?}");
    let say = |chat: &String, text: &str| daemon.say(chat, text);
    let last = chats.each_ref().map(|chat| {
        say(chat, "say on");
        say(chat, "say to-the-end")
    });
    for (chat, turn) in chats.iter().zip(&last) {
        let events = daemon.follow(chat, None).turn(turn);
        assert_eq!(events.last().expect("the end").name, "done", "{events:#?}");
    }
    // Each turn of the last ones was worked in the slot that is left.
    let slots = daemon.get("/api/v1/slots").body;
    let items = slots["items"].as_array().expect("slots");
    let held: Vec<_> = items
        .iter()
        .filter(|slot| !slot["session"].is_null())
        .collect();
    assert!(held.len() <= 1, "{held:?}");
}
