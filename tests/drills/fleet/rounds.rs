//! Chats that go on by themselves: until the goal is met, a limit is reached or a person stops them,
//! over kills, and the same for whoever follows later.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, StreamEvent};
use crate::drill::{Drill, count, eventually};

const POLICY: &str = "schema = 1\nname = \"open\"\ndefault = \"allow\"\n";

fn drill_of(dialect: &str, more: &str) -> Drill {
    let (mode, resume) = match dialect {
        "scaiflux" => (
            r#", "--permission-mode", "workspace-write""#,
            r#"resume_args = ["--resume", "{session}"]"#,
        ),
        _ => ("", ""),
    };
    let drill = Drill::new(&format!(
        r#"
[role.dev]
pool = "demo"

[workspace.main]
path = "project"

[pool.demo]
size      = 2
command   = ["marshal", "script-agent", "--dialect", "{dialect}", "--model", "m1"{mode}]
dialect   = "{dialect}"
{resume}
policy    = "open"
guard_off = true
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[policy.open]
file = "open.toml"
{more}
"#
    ));
    fs::write(drill.path("open.toml"), POLICY).expect("open.toml");
    fs::write(drill.workspace().join("count.sh"), "echo x >> count.txt\n").expect("count.sh");
    fs::write(drill.workspace().join("next.sh"), NEXT).expect("next.sh");
    drill
}

fn drill() -> Drill {
    drill_of("acp", "")
}

/// One more line each time it is run.
const COUNT: &str = "run sh count.sh";

/// The first open item is ticked each time, of a plan that is made first.
const NEXT: &str = r#"f=notes/plan.md
if [ -e "$f" ]; then sed -i '0,/\[ \]/s//[x]/' "$f"; else mkdir -p notes; printf '%s\n' '- [ ] a' '- [ ] b' > "$f"; fi
"#;

fn begin(daemon: &Daemon, body: &Value) -> String {
    let mut all =
        json!({"mode": "autonomous", "role": "dev", "goal": COUNT, "continue_prompt": COUNT});
    for (key, value) in body.as_object().expect("an object") {
        all[key] = value.clone();
    }
    let made = daemon.post("/api/v1/workspaces/main/chats", &all);
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.body["chat_id"].as_str().expect("an id");
    format!("/api/v1/workspaces/main/chats/{id}")
}

/// Ends of turns and of the whole carry an outcome or a reason; that of the whole no turn.
fn is_over(event: &StreamEvent) -> bool {
    matches!(event.name.as_str(), "done" | "stopped" | "error")
        && event.data["turn_id"].is_null()
        && !event.data["reason"].is_null()
}

/// Everything to the end of the whole.
fn whole(daemon: &Daemon, chat: &str) -> Vec<StreamEvent> {
    let mut stream = daemon.follow(chat, None);
    stream.until("the end of the whole", is_over)
}

fn ends(events: &[StreamEvent]) -> Vec<&StreamEvent> {
    let is_end = |reported: &&StreamEvent| {
        matches!(reported.name.as_str(), "done" | "stopped" | "error")
            && !reported.data["turn_id"].is_null()
    };
    events.iter().filter(is_end).collect()
}

fn last(events: &[StreamEvent]) -> (&str, &str) {
    let last = events.last().expect("an event");
    (
        last.name.as_str(),
        last.data["reason"].as_str().expect("a word"),
    )
}

#[test]
fn it_goes_on_until_its_check_passes() {
    let count = "test \"$(wc -l < count.txt)\" -ge 3";
    let (one, two) = ("write notes/a.txt one", "write notes/b.txt two");
    for (dialect, goal, next, check, most) in [
        ("acp", COUNT, COUNT, count, 3),
        // Its commands claim to need a mode that is asked for.
        ("scaiflux", one, two, "test -e notes/b.txt", 2),
    ] {
        let drill = drill_of(dialect, "");
        let daemon = Daemon::start(&drill);
        let body = json!({"goal": goal, "continue_prompt": next, "check": check});
        let chat = begin(&daemon, &body);
        let events = whole(&daemon, &chat);
        assert_eq!(
            last(&events),
            ("done", "goal_met"),
            "{dialect}: {events:#?}"
        );
        assert_eq!(ends(&events).len(), most, "{events:#?}");
        let turns = daemon.turns(&chat);
        assert_eq!(turns.len(), most, "{turns:#?}");
        assert!(
            turns.iter().all(|turn| turn["outcome"] == "completed"),
            "{turns:#?}"
        );
        let view = daemon.get(&chat).body;
        assert_eq!(view["mode"], "autonomous", "{view}");
        assert_eq!(view["rounds"]["ended"], true, "{view}");
        assert_eq!(view["rounds"]["reason"], "goal_met", "{view}");
        assert_eq!(view["rounds"]["limits"]["turns"], 20, "{view}");
        // One child did it all, and what is over is an ordinary chat.
        let children = "SELECT count(*) FROM events WHERE kind = 'child_started'";
        let children = drill.database().query_row(children, [], |row| row.get(0));
        assert_eq!(children, Ok(1));
        let turn = daemon.say(&chat, "say more");
        let mut stream = daemon.follow(&chat, Some(&events.last().expect("one").id));
        let more = stream.turn(&turn);
        assert_eq!(more.last().expect("one").name, "done", "{more:#?}");
        drill.assert_dense();
    }
}

#[test]
fn without_a_check_it_goes_on_until_no_item_of_its_plan_is_open() {
    let drill = drill();
    let daemon = Daemon::start(&drill);
    // That the plan is not there yet is no end.
    let next = "run sh next.sh";
    let body = json!({"goal": "say later", "continue_prompt": next, "plan_id": "notes/plan.md"});
    let chat = begin(&daemon, &body);
    let events = whole(&daemon, &chat);
    assert_eq!(last(&events), ("done", "goal_met"), "{events:#?}");
    assert_eq!(ends(&events).len(), 4, "{events:#?}");
    // Its agent was told where the plan is.
    let prompt = "SELECT body FROM events WHERE kind = 'prompt_accepted' ORDER BY seq LIMIT 1";
    let prompt = drill
        .database()
        .query_row(prompt, [], |row| row.get::<_, String>(0));
    assert!(
        prompt
            .expect("a prompt")
            .contains("plan in the file notes/plan.md")
    );
}

#[test]
fn each_limit_ends_it() {
    let drill = drill_of("scaiflux", "[price.\"m*\"]\ninput = 1000\noutput = 1000");
    let daemon = Daemon::start(&drill);
    for (limits, word) in [
        (json!({"turns": 2}), "turns"),
        (json!({"tokens": 1}), "tokens"),
        (json!({"cost_usd": 0.000_001}), "cost_usd"),
        // It ends a running turn, too.
        (json!({"seconds": 2}), "seconds"),
    ] {
        let goal = if word == "seconds" {
            "say one\nhang"
        } else {
            "say one"
        };
        let body = json!({"goal": goal, "continue_prompt": "say more", "check": "false", "limits": limits});
        let chat = begin(&daemon, &body);
        let events = whole(&daemon, &chat);
        assert_eq!(last(&events), ("stopped", word), "{events:#?}");
        let view = daemon.get(&chat).body;
        assert_eq!(view["rounds"]["outcome"], "limited", "{view}");
        let turns = daemon.turns(&chat).len();
        assert_eq!(
            turns,
            if word == "turns" { 2 } else { 1 },
            "{word}: {events:#?}"
        );
    }
}

#[test]
fn a_turn_whose_agent_died_counts_and_meets_no_goal() {
    let drill = drill();
    let daemon = Daemon::start(&drill);
    let body = json!({"goal": "crash", "continue_prompt": "crash", "check": "true", "limits": {"turns": 2}});
    let chat = begin(&daemon, &body);
    let events = whole(&daemon, &chat);
    assert_eq!(last(&events), ("stopped", "turns"), "{events:#?}");
    assert_eq!(daemon.turns(&chat).len(), 2);
}

#[test]
fn a_person_stops_the_whole_and_is_heard_first() {
    let drill = drill();
    let daemon = Daemon::start(&drill);
    // Long enough for what is said meanwhile.
    let body = json!({"goal": "say one\nsleep 5s", "continue_prompt": "say more\nsleep 200ms", "check": "false", "limits": {"turns": 500}});
    let chat = begin(&daemon, &body);
    let reported = daemon.say(&chat, "say mine");
    let mut stream = daemon.follow(&chat, None);
    stream.turn(&reported);
    let of = daemon.turns(&chat);
    assert_eq!(of[1]["content"], "say mine", "{of:#?}");
    stream.any_turn();
    let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stopped.status, 200, "{stopped:?}");
    let rest = stream.until("the end of the whole", is_over);
    assert_eq!(last(&rest), ("stopped", "user_cancelled"), "{rest:#?}");
    let before = daemon.turns(&chat).len();
    assert_eq!(daemon.post(&format!("{chat}/stop"), &json!({})).status, 200);
    let turn = daemon.say(&chat, "say still here");
    stream.turn(&turn);
    assert_eq!(daemon.turns(&chat).len(), before + 1);
    let view = daemon.get(&chat).body;
    assert_eq!(view["rounds"]["reason"], "user_cancelled", "{view}");
}

#[test]
fn kills_neither_lose_nor_repeat_a_round_and_the_past_is_told_as_it_was() {
    let drill = drill();
    let kills = if count(1) == 1 { 5 } else { 50 };
    let most = kills + 12;
    let mut daemon = Daemon::start(&drill);
    let body = json!({
        "goal": "say begun\nsleep 150ms",
        "continue_prompt": "say more\nsleep 150ms",
        "check": "false",
        "limits": {"turns": most},
    });
    let chat = begin(&daemon, &body);
    let mut live: Vec<StreamEvent> = Vec::new();
    for kill in 0..kills {
        // The work may be over before the last kill.
        if live.last().is_some_and(is_over) {
            break;
        }
        let after = live.last().map(|text| text.id.clone());
        let mut stream = daemon.follow(&chat, after.as_deref());
        // Somewhere in a round: after its first event, or its end.
        let wanted = 1 + kill % 4;
        let mut seen = 0;
        while seen < wanted {
            let Some(text) = stream.next(LONG) else {
                panic!("nothing comes: {live:#?}");
            };
            seen += usize::from(!is_over(&text));
            let ended = is_over(&text);
            live.push(text);
            if ended {
                break;
            }
        }
        daemon.running.child.kill().expect("kill -9");
        let _ = daemon.running.child.wait();
        eventually(LONG, "no agent is left", || drill.agents().is_empty());
        daemon = Daemon::start(&drill);
    }
    let after = live.last().map(|text| text.id.clone());
    if !live.last().is_some_and(is_over) {
        let mut stream = daemon.follow(&chat, after.as_deref());
        live.extend(stream.until("the end of the whole", is_over));
    }
    assert_eq!(last(&live), ("stopped", "turns"), "{live:#?}");
    let turns = daemon.turns(&chat);
    assert_eq!(turns.len(), most, "{turns:#?}");
    let numbers: Vec<u64> = turns
        .iter()
        .filter_map(|turn| turn["sequence"].as_u64())
        .collect();
    assert_eq!(numbers, (1..=most as u64).collect::<Vec<_>>());
    assert!(
        turns.iter().all(|turn| turn["state"] == "ended"),
        "{turns:#?}"
    );
    // Each turn has one end in the stream, and whoever comes later is told the same.
    let text: Vec<&str> = ends(&live)
        .iter()
        .filter_map(|text| text.data["turn_id"].as_str())
        .collect();
    let once: BTreeSet<&str> = text.iter().copied().collect();
    assert_eq!(text.len(), once.len(), "{text:?}");
    assert_eq!(once.len(), most, "{live:#?}");
    assert_eq!(whole(&daemon, &chat), live);
    drill.assert_dense();
}

#[test]
fn what_is_not_right_is_refused() {
    let drill = drill_of("acp", "");
    let daemon = Daemon::start(&drill);
    let create = |more: Value| {
        let mut body = json!({"goal": "say one", "role": "dev"});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        daemon.post("/api/v1/workspaces/main/chats", &body)
    };
    for (more, word) in [
        (json!({"mode": "fast"}), "no mode"),
        (json!({"check": "true"}), "\"mode\" is missing"),
        (
            json!({"mode": "autonomous", "limits": {"turns": 0}}),
            "limits.turns",
        ),
        (
            json!({"mode": "autonomous", "limits": {"turns": 1001}}),
            "limits.turns",
        ),
        (
            json!({"mode": "autonomous", "limits": {"seconds": 0}}),
            "limits.seconds",
        ),
        (
            json!({"mode": "autonomous", "limits": {"hours": 1}}),
            "unknown field",
        ),
        (
            json!({"mode": "autonomous", "limits": {"cost_usd": 0}}),
            "above 0",
        ),
        (json!({"mode": "autonomous", "check": "a\nb"}), "one line"),
        (
            json!({"mode": "autonomous", "plan_id": "../plan.md"}),
            "plan_id",
        ),
        (
            json!({"mode": "autonomous", "continue_prompt": " "}),
            "continue_prompt",
        ),
    ] {
        let made = create(more.clone());
        assert_eq!(made.status, 422, "{more}: {made:?}");
        let detail = made.body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(word), "{more}: {made:?}");
    }
    let none = drill
        .database()
        .query_row("SELECT count(*) FROM chats", [], |row| row.get(0));
    assert_eq!(none, Ok(0));
}

#[test]
fn a_chat_that_is_closed_tells_its_end_also_where_nobody_works_it() {
    for is_killed in [false, true] {
        let drill = drill();
        let mut daemon = Daemon::start(&drill);
        let chat = begin(&daemon, &json!({"goal": "say one\nhang"}));
        let mut stream = daemon.follow(&chat, None);
        stream.until("it runs", |reported| reported.name == "chunk");
        if is_killed {
            daemon.running.signal("KILL");
            daemon.running.child.wait().expect("it ends");
            // As a kill leaves it, while a DELETE is under way.
            let marked = drill.database().execute("UPDATE chats SET closing = 1", []);
            assert_eq!(marked.expect("marked"), 1);
            daemon = Daemon::start(&drill);
        } else {
            let closed = daemon.request("DELETE", &chat, "", "");
            assert_eq!(closed.status, 200, "{closed:?}");
        }
        let events = whole(&daemon, &chat);
        assert_eq!(last(&events), ("stopped", "user_cancelled"), "{events:#?}");
        eventually(LONG, "it is closed", || {
            daemon.get(&chat).body["state"] == "closed"
        });
        assert_eq!(daemon.get(&chat).body["phase"], "ended");
        assert_eq!(daemon.turns(&chat).len(), 1);
    }
}
