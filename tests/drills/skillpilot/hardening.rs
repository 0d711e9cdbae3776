//! Directories that are not to be trusted, and files that are none.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::drill::NOBODY;
use crate::skillpilot::session::{Runner, Session};

fn refused(session: &Session, why: &str) {
    let output = session
        .command(&[], &["tclsh"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains(why), "{printed}");
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
    let carried = |why: &str| {
        let output = session
            .command(&["--carry"], &[])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(1));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains(why), "{printed}");
    };
    carried("others may write queue/");
    mode("queue", 0o700);
    mode("", 0o755);
    refused(&session, "others may read it");
    mode("", 0o700);
    chown(session.path("state"), Some(NOBODY), None).expect("given away");
    carried("state/ belongs to user 65534");
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
    for name in [
        "state/lease.json",
        "state/heartbeat.json",
        "state/.lock",
        "inflight/cmd_8_i.json",
    ] {
        symlink(&secret, session.path(name)).expect("a link");
    }
    let _runner = session.tcl();
    let ended = session.result("cmd_8_i").end();
    assert_eq!(ended, "error tool_died: runner restarted");
    // Links as orders to a Runner that works.
    for name in ["stop", "cancel"] {
        let path = session.path(&format!("ctl/{name}.json"));
        symlink(&secret, path).expect("a link");
    }
    for (stem, why) in [
        ("cmd_1_l", "error refused: it is a symbolic link"),
        ("cmd_2_f", "error refused: it is a pipe"),
        ("cmd_3_big", "error refused: it is too large"),
    ] {
        let done = session.result(stem);
        assert_eq!(done.end(), why);
        assert_eq!(done.output, "");
    }
    assert_eq!(session.run(10, "puts on").output, "on\n");
    session.until("all are put aside", |session| {
        // Four of the queue, two orders, the lease and the lock.
        session.names("rejected").len() == 8
    });
    assert_eq!(session.names("ctl"), [""; 0]);
    let stored = fs::read_to_string(&secret).expect("kept");
    assert!(
        stored.contains("puts leaked"),
        "nothing was written through a link"
    );
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

#[test]
fn a_directory_of_another_user_is_refused() {
    let session = Session::new();
    session.lay();
    chown(session.path("result"), Some(NOBODY), None).expect("given away");
    refused(&session, "result/ belongs to user 65534");
    chown(session.path(""), Some(NOBODY), None).expect("given away");
    refused(&session, "it belongs to user 65534");
}

#[test]
fn a_file_that_may_not_be_read_is_put_aside() {
    let session = Session::new();
    session.lay();
    session.put("queue/cmd_1_locked.json", "{}");
    let locked = session.path("queue/cmd_1_locked.json");
    fs::set_permissions(locked, fs::Permissions::from_mode(0o000)).expect("mode");
    let given = Command::new("chown")
        .args(["-R", &NOBODY.to_string()])
        .arg(session.path(""))
        .status();
    assert!(given.expect("chown").success());
    let above = session.beside("");
    fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("mode");
    let inner = session.command(&[], &["tclsh"]);
    let mut command = Command::new("setpriv");
    command
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")])
        .arg("--clear-groups")
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let _runner = Runner(command.spawn().expect("it starts"));
    let end = session.result("cmd_1_locked").end();
    assert_eq!(end, "error refused: this user may not read it");
    assert_eq!(session.names("rejected").len(), 1);
}

#[test]
fn directories_where_files_go_keep_nobody_from_starting() {
    let session = Session::new();
    session.lay();
    for path in [
        "inflight/cmd_1_dir.json",
        "inflight/no command",
        "ctl/stop.json/full",
        "ctl/cancel.json",
        "state/.tmp.left",
        "result/.tmp.left",
    ] {
        fs::create_dir_all(session.path(path)).expect("a directory");
    }
    session.put("result/.tmp.half", "{");
    session.put("queue/.tmp.young", "{");
    let _runner = session.tcl();
    let end = session.result("cmd_1_dir").end();
    assert_eq!(end, "error tool_died: runner restarted");
    assert_eq!(session.run(2, "puts on").output, "on\n");
    session.is_empty("inflight");
    assert_eq!(session.names("ctl"), [""; 0]);
    assert!(!session.path("result/.tmp.half").exists());
    assert!(
        session.path("queue/.tmp.young").exists(),
        "somebody writes it"
    );
}

#[test]
fn a_directory_that_is_taken_away_ends_the_runner() {
    for is_replaced in [true, false] {
        let session = Session::new();
        let mut runner = session.tcl();
        let stderr = runner.0.stderr.take().expect("piped");
        assert_eq!(session.run(1, "puts on").output, "on\n");
        fs::rename(session.path("queue"), session.path("gone")).expect("renamed");
        if is_replaced {
            fs::create_dir(session.path("queue")).expect("a directory");
        }
        assert_eq!(runner.ends(), Some(1));
        let printed = std::io::read_to_string(stderr).expect("read");
        assert!(
            printed.contains("queue/ was removed or replaced"),
            "{printed}"
        );
        assert_eq!(session.state()["phase"], "stopping");
    }
}

#[test]
fn thousands_of_other_files_keep_no_command_waiting() {
    let session = Session::new();
    session.lay();
    for number in 0..3000 {
        let name = if number % 2 == 0 { "junk" } else { "cmd_x" };
        fs::write(session.path(&format!("queue/{name}_{number}")), "x").expect("written");
    }
    // Each is refused by a result.
    for number in 1..=40 {
        session.put(&format!("queue/cmd_{number}_junk.json"), "[]");
    }
    // What can be neither moved nor removed, when there is no room for it any more.
    for number in 0..3 {
        let path = format!("queue/full_{number}/x");
        fs::create_dir_all(session.path(&path)).expect("a directory");
    }
    let mut runner = session.tcl();
    assert_eq!(session.run(1000, "puts on").output, "on\n");
    let end = session.result("cmd_40_junk").end();
    assert!(end.starts_with("error refused: "), "{end}");
    session.until("they are gone", |session| session.names("queue").len() <= 3);
    assert!(session.names("rejected").len() <= 1000);
    runner.signal("TERM");
    assert_eq!(runner.ends(), Some(0));
}

#[test]
fn what_stands_where_an_output_goes_is_not_written_to() {
    let session = Session::new();
    session.lay();
    let secret = session.beside("secret");
    fs::write(&secret, "kept").expect("written");
    symlink(&secret, session.path("output/cmd_1_link.out")).expect("a link");
    fs::hard_link(&secret, session.path("output/cmd_2_second.out")).expect("a link");
    fs::create_dir_all(session.path("output/cmd_3_dir.out/x")).expect("a directory");
    session.put("output/cmd_4_old.out", "of somebody else\n");
    let _runner = session.tcl();
    for (seq, id) in [(1, "link"), (2, "second"), (3, "dir"), (4, "old")] {
        let stem = session.submit_with(seq, "puts on", &json!({ "cmd_id": id }));
        let done = session.result(&stem);
        assert_eq!(
            (done.end(), &*done.output),
            ("ok marker_seen".to_owned(), "on\n")
        );
    }
    assert_eq!(fs::read_to_string(&secret).expect("read"), "kept");
}

#[test]
fn a_payload_as_large_as_a_command_may_be_reaches_the_tool_whole() {
    let session = Session::new();
    let _runner = session.tcl();
    assert_eq!(session.run(1, "set sum 0").end(), "ok marker_seen");
    let mut payload = String::new();
    for number in 0..50_000 {
        writeln!(payload, "incr sum {number}; #").expect("a text");
    }
    payload += "puts <$sum>\n";
    assert!(payload.len() > 850_000);
    let done = session.run(2, &payload);
    assert_eq!(done.end(), "ok marker_seen");
    let shown = done.output.lines().last().expect("a line");
    assert_eq!(shown, format!("<{}>", 50_000_u64 * 49_999 / 2));
}

/// A Runner whose session directory is a file system of 1 MiB of its own.
fn on_a_small_disk(session: &Session) -> Runner {
    session.lay();
    let inner = session.command(&[], &["tclsh"]);
    let script = "mount -t tmpfs -o size=1m,mode=0700 session \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .args(["sh", "-ec", script, "sh"])
        .arg(session.path(""))
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let runner = Runner(command.spawn().expect("it starts"));
    session.as_seen_by(runner.0.id());
    session.until("the Runner is idle", |session| {
        session.state()["phase"] == "idle"
    });
    runner
}

#[test]
fn a_disk_that_is_full_costs_output_and_no_result() {
    let session = Session::new();
    let mut runner = on_a_small_disk(&session);
    let (go, done) = (session.beside("go"), session.beside("done"));
    let payload = format!(
        "puts begun; flush stdout; while {{![file exists {}]}} {{after 20}}; puts [string repeat x 70000]; \
         flush stdout; close [open {} w]",
        go.display(),
        done.display()
    );
    let first = session.submit(1, &payload);
    let waits = session.submit_with(2, "puts no", &json!({ "cmd_id": "waits" }));
    let later = session.submit(3, "puts later");
    session.runs(&first, "begun");
    let cancel = json!({ "scope": "cmd_id", "cmd_id": "waits", "ts": "1" });
    session.put("cancel", &cancel.to_string());
    // Its room is not free when it is taken.
    fs::hard_link(session.path("cancel"), session.path("kept")).expect("a link");
    let ballast = session.path("ballast");
    let filled = fs::write(&ballast, vec![1; 2 << 20]);
    assert!(filled.is_err(), "it has no end");
    // A move needs no room.
    fs::rename(session.path("cancel"), session.path("ctl/cancel.json")).expect("moved");
    session.until("the cancel is taken", |session| {
        session.names("ctl").is_empty()
    });
    fs::write(&go, "").expect("written");
    session.until("the command is done", |_| done.exists());
    fs::remove_file(&ballast).expect("removed");
    let result = session.result(&first);
    assert_eq!(result.end(), "ok marker_seen");
    assert_eq!(result.result["stats"]["truncated"], true, "{result:?}");
    assert!(result.result["stats"]["bytes"].as_u64() > Some(70_000));
    let cancelled = session.result(&waits);
    assert_eq!(cancelled.end(), "cancelled cancelled before it began");
    assert_eq!(session.result(&later).output, "later\n");
    session.is_empty("inflight");
    runner.signal("TERM");
    assert_eq!(runner.ends(), Some(0));
}

#[test]
fn a_log_that_cannot_begin_anew_grows_no_further() {
    let session = Session::new();
    session.lay();
    let log = fs::File::create(session.path("log/session.out")).expect("a file");
    log.set_len(64 << 20).expect("long");
    fs::create_dir_all(session.path("log/session.out.1/x")).expect("a directory");
    let _runner = session.tcl();
    assert_eq!(session.run(1, "puts on").output, "on\n");
    let text = session.text("log/session.out");
    assert!(text.contains("on\n") && text.len() < 1000, "{}", text.len());
    let older = fs::metadata(session.path("log/session.out.1")).expect("kept");
    assert_eq!(older.len(), 64 << 20);
    assert_eq!(session.names("rejected").len(), 1, "the directory");
}

#[test]
fn a_killed_runners_tool_is_killed_whatever_it_heeds() {
    let session = Session::new();
    let runner = session.start(&["--kind", "sh"], &["sh", "-i"]);
    let deaf = "trap '' HUP TERM INT; echo begun; while :; do read -t 1 x || sleep 1; done";
    let stem = session.submit_with(1, deaf, &json!({ "kind": "sh" }));
    session.runs(&stem, "begun");
    let tool = session.state()["tool_pid"].as_u64().expect("a pid");
    let tool = u32::try_from(tool).expect("a pid");
    runner.signal("KILL");
    session.until("the tool is gone", |_| !crate::drill::is_alive(tool));
}
