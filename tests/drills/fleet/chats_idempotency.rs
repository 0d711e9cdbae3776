//! Chats: an acknowledged request survives a kill of the daemon, and a repeated one is carried out once.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::thread;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, drill, text};
use crate::drill::{Drill, eventually};

const MARKER: &str = "[System: Response was interrupted by user (user_cancelled)]";
const CHATS: &str = "/api/v1/workspaces/main/chats";

fn number(drill: &Drill, query: &str) -> i64 {
    let found = drill
        .database()
        .query_row(&format!("SELECT count(*) FROM {query}"), [], |row| {
            row.get(0)
        });
    found.expect(query)
}

fn killed(mut daemon: Daemon) {
    daemon.running.signal("KILL");
    daemon.running.child.wait().expect("it ends");
}

/// A chat with a tool call that runs, which a stop lets end.
fn with_a_call(drill: &Drill, daemon: &Daemon) -> String {
    let before = number(drill, "events WHERE kind = 'permission_decided'");
    let chat = daemon.create("say before\nrun sleep 600\nsay after");
    eventually(LONG, "its call runs", || {
        number(drill, "events WHERE kind = 'permission_decided'") > before
    });
    chat
}

#[test]
fn a_stop_that_was_answered_is_a_stop_after_a_kill() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = with_a_call(&drill, &daemon);
    let waits = daemon.say(&chat, "say waits");
    let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stopped.status, 200, "{stopped:?}");
    killed(daemon);
    let daemon = Daemon::start(&drill);
    let events = daemon.follow(&chat, None).turn(&waits);
    let ends: Vec<_> = events
        .iter()
        .filter(|of| matches!(of.name.as_str(), "done" | "error" | "stopped"))
        .map(|of| (of.name.as_str(), of.data["reason"].as_str()))
        .collect();
    assert_eq!(
        ends,
        [("stopped", Some("user_cancelled")); 2],
        "{events:#?}"
    );
    let turns = daemon.get(&format!("{chat}/turns")).body;
    for at in 0..2 {
        assert_eq!(turns["items"][at]["outcome"], "cancelled", "{turns}");
    }
    drill.assert_dense();
}

#[test]
fn a_chat_that_was_to_be_closed_is_closed_after_a_kill() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = with_a_call(&drill, &daemon);
    let mut request = TcpStream::connect(&daemon.address).expect("it listens");
    let (address, token) = (&daemon.address, &daemon.token);
    write!(
        request,
        "DELETE {chat} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .expect("sent");
    eventually(LONG, "it is on record", || {
        number(&drill, "chats WHERE closing = 1") == 1
    });
    let more = daemon.post(&chat, &json!({"content": "say more"}));
    assert_eq!(more.status, 409, "{more:?}");
    killed(daemon);
    let daemon = Daemon::start(&drill);
    eventually(LONG, "it is closed", || {
        daemon.get(&chat).body["state"] == "closed"
    });
}

#[test]
fn the_agent_hears_of_a_stop_of_its_first_turn() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("hang");
    eventually(LONG, "its agent has it", || {
        number(&drill, "events WHERE kind = 'prompt_accepted'") == 1
    });
    let mut stream = daemon.follow(&chat, None);
    daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stream.any_turn().last().expect("an end").name, "stopped");
    let turn = daemon.say(&chat, "say next");
    stream.turn(&turn);
    let turn = daemon.say(&chat, "recall");
    let turn_text = text(&stream.turn(&turn));
    assert_eq!(turn_text.matches(MARKER).count(), 1, "{turn_text}");
}

#[test]
fn a_chat_that_is_created_twice_under_a_key_is_one() {
    let drill = drill("acp", 1);
    let mut daemon = Daemon::start(&drill);
    let create = |daemon: &Daemon, key: &str, body: &str| {
        let head = format!("Idempotency-Key: {key}\r\n");
        daemon.request("POST", CHATS, &head, body)
    };
    let one = r#"{"goal": "say one", "role": "dev"}"#;
    let same = r#"{"role": "dev", "goal": "say one"}"#;
    let both = thread::scope(|scope| {
        let (daemon, create) = (&daemon, &create);
        let requests = (0..8).map(|at| {
            let body = if at % 2 == 0 { one } else { same };
            scope.spawn(move || create(daemon, "k", body))
        });
        let requests: Vec<_> = requests.collect();
        requests
            .into_iter()
            .map(|ask| ask.join().expect("answered"))
            .collect::<Vec<_>>()
    });
    let mut begun: BTreeSet<String> = BTreeSet::new();
    for made in &both {
        assert_eq!(made.status, 201, "{made:?}");
        begun.insert(made.body.to_string());
    }
    assert_eq!(begun.len(), 1, "{begun:?}");
    let other = create(&daemon, "k", r#"{"goal": "say two", "role": "dev"}"#);
    assert_eq!(other.status, 422, "{other:?}");
    assert_eq!(create(&daemon, "other", one).status, 201);
    // Of work that several do it is the same, also after a start.
    std::fs::write(drill.workspace().join("plan.md"), "- [ ] say one\n").expect("a plan");
    let work =
        r#"{"goal": "g", "mode": "parallel_agents", "roles": ["dev"], "plan_id": "plan.md"}"#;
    let first = create(&daemon, "w", work);
    assert_eq!(first.status, 201, "{first:?}");
    killed(daemon);
    daemon = Daemon::start(&drill);
    assert_eq!(create(&daemon, "w", work).body, first.body);
    let again = create(&daemon, "k", one);
    assert_eq!(Some(&again.body.to_string()), begun.first());
    assert_eq!(number(&drill, "chats WHERE parent IS NULL"), 3);
    for bad in ["", &"x".repeat(300)] {
        assert_eq!(create(&daemon, bad, one).status, 400);
    }
    let items = daemon.get(CHATS).body["items"].clone();
    let top = |of: &&Value| of["parent"].is_null();
    assert_eq!(
        items.as_array().expect("chats").iter().filter(top).count(),
        3
    );
}
