//! Directories that are not to be trusted, and files that are none.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::json;

use crate::session::Session;

fn refused(session: &Session, why: &str) {
    let output = session
        .command(&[], &["tclsh"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    let session = Session::new();
    session.lay();
    let mode = |part: &str, mode| {
        fs::set_permissions(session.path(part), fs::Permissions::from_mode(mode)).expect("mode");
    };
    mode("", 0o777);
    refused(&session, "others may write it");
    mode("", 0o750);
    mode("queue", 0o770);
    refused(&session, "others may write queue/");
}

#[test]
fn a_link_is_no_session_directory() {
    let session = Session::new();
    symlink(
        "/tmp",
        session.path("").parent().expect("above").join("session"),
    )
    .expect("a link");
    refused(&session, "cannot be opened as a directory");
    let session = Session::new();
    session.lay();
    fs::remove_dir(session.path("result")).expect("removed");
    symlink("/tmp", session.path("result")).expect("a link");
    refused(&session, "result/ cannot be opened as a directory");
}

#[test]
fn its_own_directories_are_its_owners_alone() {
    let session = Session::new();
    let _runner = session.tcl();
    for part in [
        "", "queue", "result", "output", "log", "ctl", "state", "inflight", "rejected",
    ] {
        let mode = fs::metadata(session.path(part))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700, "{part}");
    }
}

#[test]
fn odd_files_are_put_aside_and_never_read() {
    let session = Session::new();
    session.lay();
    let secret = session.path("../secret");
    fs::write(
        &secret,
        r#"{"cmd_id":"l","seq":1,"kind":"tcl","payload":"puts leaked"}"#,
    )
    .expect("written");
    symlink(&secret, session.path("queue/cmd_1_l.json")).expect("a link");
    let fifo = session.path("queue/cmd_2_f.json");
    let made = std::process::Command::new("mkfifo").arg(fifo).status();
    assert!(made.expect("mkfifo").success());
    fs::write(session.path("queue/cmd_3_big.json"), vec![b' '; 2 << 20]).expect("written");
    fs::write(session.path("queue/what is this"), "x").expect("written");
    // What somebody is still writing is left alone.
    fs::write(session.path("queue/cmd_9_t.json.tmp.123"), "{").expect("written");
    symlink("/etc/passwd", session.path("ctl/stop.json")).expect("a link");
    let _runner = session.tcl();
    for (stem, why) in [
        ("cmd_1_l", "error refused: it is a link"),
        ("cmd_2_f", "error refused: it is no regular file"),
        ("cmd_3_big", "error refused: it is too large"),
    ] {
        let done = session.result(stem);
        assert_eq!(done.end(), why);
        assert_eq!(done.output, "");
    }
    assert_eq!(session.run(10, "puts on").output, "on\n");
    session.until("all are put aside", |session| {
        session.names("rejected").len() == 4
    });
    assert_eq!(session.names("queue"), ["cmd_9_t.json.tmp.123"]);
    assert!(!session.text("log/session.out").contains("leaked"));
}

#[test]
fn a_command_that_cannot_be_run_gets_a_result_that_says_why() {
    let session = Session::new();
    let _runner = session.tcl();
    let bad = |seq, members: &serde_json::Value, why: &str| {
        let end = session
            .result(&session.submit_with(seq, "puts x", members))
            .end();
        assert!(
            end.starts_with("error refused: ") && end.contains(why),
            "{end}"
        );
    };
    bad(1, &json!({ "kind": "python" }), "unknown kind \"python\"");
    bad(
        2,
        &json!({ "cancel_policy": "explode" }),
        "unknown cancel_policy \"explode\"",
    );
    bad(3, &json!({ "timeout_s": 0 }), "timeout_s");
    bad(
        4,
        &json!({ "marker": { "mode": "guess" } }),
        "unknown marker mode",
    );
    bad(
        5,
        &json!({ "marker": { "prefix": "]; exit; puts [" } }),
        "prefix and token",
    );
    bad(
        6,
        &json!({ "payload": "puts \u{3}" }),
        "control character 0x03",
    );
    bad(7, &json!({ "payload": 7 }), "cannot be read");
    bad(8, &json!({ "seq": 9 }), "the file's name says");
    session.put("queue/cmd_10_nojson.json", "no JSON");
    assert!(
        session
            .result("cmd_10_nojson")
            .end()
            .contains("cannot be read")
    );
    // Neither path nor id leads out of the directory.
    session.put("queue/cmd_11_..%2fx.json", "{}");
    assert_eq!(session.run(12, "puts on").output, "on\n");
}
