//! A chat that reached what a session may write to the journal: it says so, and goes on when that is
//! raised.

use std::fs;

use crate::chat_client::{Daemon, StreamEvent, drill, text};
use crate::drill::Drill;

/// Sets the quota in the configuration file.
fn set_quota(drill: &Drill, quota: &str) {
    let before = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let kept = before
        .lines()
        .filter(|line| !line.starts_with("journal.session_max"))
        .collect::<Vec<_>>()
        .join("\n");
    let line = format!("[supervisor]\njournal.session_max = \"{quota}\"\n");
    let text = kept.replacen("[supervisor]\n", &line, 1);
    fs::write(drill.config(), text + "\n").expect("supervisor.toml");
}

/// How the next turn of a chat ends.
fn turn(daemon: &Daemon, chat: &str, message: &str) -> (StreamEvent, String) {
    let turn = daemon.say(chat, message);
    let mut stream = daemon.follow(chat, None);
    let all = stream.until("the end of the turn", |told| {
        told.data["turn_id"] == *turn && matches!(told.name.as_str(), "done" | "error")
    });
    (all.last().expect("the end").clone(), text(&all))
}

fn fails_for_quota(end: &StreamEvent, quota: &str) {
    assert_eq!(end.name, "error", "{end:?}");
    let told = end.data.to_string();
    let why = format!("more than {quota} into the journal");
    assert!(told.contains(&why), "{told}");
}

#[test]
fn a_chat_over_its_quota_says_so_and_goes_on_when_it_is_raised() {
    for dialect in ["acp", "scaiflux"] {
        let drill = drill(dialect, 1);
        set_quota(&drill, "1M");
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say begin");
        let flood = "flood 20000 1000";
        let (end, _) = turn(&daemon, &chat, flood);
        fails_for_quota(&end, "1M");
        // As long as nothing changes, each message fails with the reason.
        let (end, _) = turn(&daemon, &chat, "say no");
        fails_for_quota(&end, "1M");
        // By a reload.
        set_quota(&drill, "8M");
        let ran = drill.run(&["reload"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let applied = "applied: supervisor.journal.session_max";
        assert!(ran.stderr.contains(applied), "{}", ran.all());
        let (end, told) = turn(&daemon, &chat, "say again");
        assert_eq!(end.name, "done", "{dialect}: {end:?}");
        assert!(told.contains("again"), "{told}");
        // By a restart.
        set_quota(&drill, "1M");
        let ran = drill.run(&["reload"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let (end, _) = turn(&daemon, &chat, "say never");
        fails_for_quota(&end, "1M");
        let mut daemon = daemon;
        assert_eq!(drill.run(&["stop"]).code, Some(0));
        daemon.running.child.wait().expect("it ends");
        set_quota(&drill, "8M");
        let daemon = Daemon::start(&drill);
        let (end, told) = turn(&daemon, &chat, "say after");
        assert_eq!(end.name, "done", "{dialect}: {end:?}");
        assert!(told.contains("after"), "{told}");
        drill.assert_dense();
    }
}
