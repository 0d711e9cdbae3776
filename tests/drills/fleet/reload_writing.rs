//! Policies that are written slowly, and changes that nobody watches yet.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use crate::drill::eventually;
use crate::fleet::approvals::{LONG, daemon};
use crate::fleet::reload::{digest, drill, own, put, run_prompt, status};

#[test]
fn half_a_policy_does_not_come_into_force() {
    let good = own("deny", "deny", "");
    let drill = drill("", &good);
    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    let before = digest(&drill);
    assert_eq!(run_prompt(&drill, "run echo one"), (0, 1));
    // A prefix of whole tables: a good policy that allows what the whole one denies.
    let half = own("allow", "deny", "");
    let (half, rest) = half.split_once("[[rule]]").expect("a rule");
    let path = drill.path("own.toml");
    fs::remove_file(&path).expect("removed");
    let mut writer = fs::File::create(&path).expect("created");
    writer.write_all(half.as_bytes()).expect("written");
    writer.flush().expect("flushed");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(digest(&drill), before, "half of it is in force");
    // Nor when something else happens to it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&path, mode).expect("mode");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(digest(&drill), before, "half of it is in force");
    assert_eq!(run_prompt(&drill, "run echo one"), (0, 1));
    writer.write_all(b"[[rule]]").expect("written");
    writer.write_all(rest.as_bytes()).expect("written");
    drop(writer);
    eventually(LONG, "the whole is in force", || digest(&drill) != before);
    assert_eq!(status(&drill)["stale_since"], serde_json::Value::Null);
    assert_eq!(run_prompt(&drill, "run echo one"), (0, 1));
}

#[test]
fn a_change_between_the_first_reading_and_the_first_watch_is_not_lost() {
    let drill = drill("", &own("deny", "allow", ""));
    let path = drill.path("own.toml");
    let running = drill.start(&["up"]);
    // The policies are read before the journal is opened, and watched after everything else.
    eventually(LONG, "the policies were read", || {
        drill.state().join("journal.db").exists()
    });
    put(&drill, "own.toml", &own("deny", "deny", ""));
    assert_eq!(drill.get("/healthz").0, 200);
    let wanted = drill.run(&["policy", "explain", "-p", "own"]);
    assert!(!wanted.all().is_empty() && path.exists());
    eventually(LONG, "the new one denies", || {
        run_prompt(&drill, "run echo one") == (0, 1)
    });
    drop(running);
}

#[test]
fn what_a_policy_extends_anew_is_read_once_more_when_it_is_watched() {
    // Nothing is told of a reading that changed nothing.
    let text = own("deny", "allow", "");
    let drill = drill("", &text);
    put(&drill, "base.toml", "schema = 1\nname = \"base\"\n");
    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    let before = digest(&drill);
    put(
        &drill,
        "own.toml",
        &text.replace("guard\"]", "guard\", \"base.toml\"]"),
    );
    eventually(LONG, "it extends", || digest(&drill) != before);
    let first = status(&drill)["last_reload"].clone();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(status(&drill)["last_reload"], first);
    let before = digest(&drill);
    put(
        &drill,
        "base.toml",
        "schema = 1\nname = \"base\"\n# changed\n",
    );
    eventually(LONG, "it is seen", || digest(&drill) != before);
}
