//! Chats with a tool at a terminal: it gets their messages and nothing else, because it would run that.

use std::cell::RefCell;
use std::fs;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, text};
use crate::drill::Drill;

/// `role` is more keys of the role.
fn pools(role: &str) -> String {
    format!(
        r#"
[workspace.main]
path = "project"

[role.dev]
pool = "eda"
{role}

[pool.eda]
command   = ["tclsh"]
launcher  = "pty"
dialect   = "skillpilot"
policy    = "developer"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ budget = 100, base = "20ms", max = "200ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
    )
}

#[test]
fn what_would_be_told_beside_a_message_is_left_out_and_nothing_is_run_again() {
    let drill = Drill::new(&pools(""));
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("set f [open ran a]; puts $f once; close $f; puts begun");
    let mut stream = daemon.follow(&chat, None);
    assert_eq!(text(&stream.any_turn()).trim(), "begun");
    // After a stop, which an agent would be told of.
    let turn = daemon.say(&chat, "puts running; flush stdout; after 3600000");
    // What it says may come in pieces.
    let reported = RefCell::new(String::new());
    stream.until("it runs", |events| {
        reported
            .borrow_mut()
            .push_str(&text(std::slice::from_ref(events)));
        reported.borrow().contains("running")
    });
    let stop = daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stop.status, 200, "{stop:?}");
    stream.turn(&turn);
    let turn = daemon.say(&chat, "puts on");
    assert_eq!(text(&stream.turn(&turn)).trim(), "on");
    // After a restart, when an agent would be told what was said.
    let restart = daemon.request("POST", "/api/v1/slots/eda/0/restart", "", "");
    assert!(matches!(restart.status, 200 | 202), "{restart:?}");
    let turn = daemon.say(
        &chat,
        "puts [gets [open ran]]; puts [llength [split [read [open ran]] \\n]]",
    );
    let events = stream.turn(&turn);
    let reported = text(&events).replace('\r', "");
    assert_eq!(reported.trim(), "once\n2", "{events:#?}");
    let anew = events.iter().find(|events| events.name == "rehydrated");
    assert_eq!(anew.expect("that is told").data["by"], "nothing");
}

#[test]
fn what_needs_such_words_is_refused() {
    let drill = Drill::new(&pools("instructions = \"exit\""));
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.stderr.contains("role.dev.instructions"),
        "{}",
        ran.all()
    );

    let drill = Drill::new(&pools(""));
    fs::write(drill.workspace().join("PLAN.md"), "- [ ] exit\n").expect("a plan");
    let ran = drill.run(&["run", "project/PLAN.md"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("would run the text"), "{}", ran.all());
    let daemon = Daemon::start(&drill);
    let refused = |body: &Value, key: &str| {
        let made = daemon.post("/api/v1/workspaces/main/chats", body);
        assert_eq!(made.status, 422, "{made:?}");
        let detail = made.body["detail"].as_str().expect("why");
        assert!(
            detail.contains(key) && detail.contains("a tool"),
            "{detail}"
        );
    };
    refused(
        &json!({"goal": "puts 1", "role": "dev", "files": ["README.md"]}),
        "files",
    );
    refused(
        &json!({"goal": "puts 1", "role": "dev", "mode": "autonomous", "check": "true"}),
        "mode",
    );
    refused(
        &json!({"goal": "puts 1", "roles": ["dev"], "plan_id": "PLAN.md", "mode": "plan_then_execute"}),
        "mode",
    );
}
