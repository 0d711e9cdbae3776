//! What agents write by their own shells: seen while the turn runs, in every mode in which they can
//! write, for a supervisor of root and of an ordinary user. A file that is moved stays the same one.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, Sse, StreamEvent};
use crate::drill::{Drill, NOBODY, eventually};
use crate::fleet::files::{FILES, POLICY, does, pools, session, versions};

/// A supervisor of root, or of an ordinary user, whose agents see a repository in this mode.
fn drill(is_root: bool, mode: &str) -> Drill {
    let pools = pools("", &format!("mode = \"{mode}\""));
    let drill = if is_root {
        Drill::new(&pools)
    } else {
        Drill::of_nobody(&pools)
    };
    let own = |path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
    fs::write(drill.path("open.toml"), POLICY).expect("open.toml");
    if !is_root {
        own(drill.path("open.toml"));
    }
    let script = "git init -q . && git add . && git -c user.name=o -c user.email=o@x commit -qm first \
        && chown -R \"$1:$1\" .";
    let made = Command::new("sh")
        .args(["-c", script, "sh", &NOBODY.to_string()])
        .current_dir(drill.workspace())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .status();
    assert!(made.expect("a repository").success());
    drill
}

/// The files that were reported before the turn ended, in order.
fn reported_files(events: &[StreamEvent]) -> Vec<&Value> {
    assert!(
        events.iter().all(|event| event.name != "done"),
        "{events:#?}"
    );
    let files = events.iter().filter(|event| event.name == "file_updated");
    files.map(|event| &event.data).collect()
}

/// Waits for a report of this path while the turn goes on.
fn until_reported(stream: &mut Sse, path: &str) -> Vec<StreamEvent> {
    stream.until(&format!("{path} is reported"), |event| {
        assert_ne!(
            event.name, "done",
            "the turn has ended, and {path} was not reported"
        );
        event.name == "file_updated" && event.data["path"] == path
    })
}

#[test]
fn what_a_shell_writes_is_seen_while_the_turn_runs() {
    for is_root in [true, false] {
        for mode in ["rw", "copy", "worktree", "overlay"] {
            let what = format!("{mode}, root: {is_root}");
            let drill = drill(is_root, mode);
            let daemon = Daemon::start(&drill);
            let chat = daemon.create("say begin");
            let mut stream = daemon.follow(&chat, None);
            stream.any_turn();
            daemon.say(
                &chat,
                "run mkdir -p new/deep && echo one | tee new/deep/live.txt && sleep 1\n\
                 run echo more | tee -a README.md && sleep 1 && echo again | tee -a README.md\n\
                 run sleep 20\nsay over",
            );
            let has_versions = mode == "rw";
            let root = if has_versions { "" } else { "/workspace" };
            let live = until_reported(&mut stream, &format!("{root}/new/deep/live.txt"));
            let file = reported_files(&live).pop().expect("one");
            if has_versions {
                assert_eq!(
                    (&file["v"], &file["observed"], &file["moved_from"]),
                    (&json!(1), &json!(true), &Value::Null),
                    "{what}"
                );
                let first = versions(&daemon, "new/deep/live.txt").remove(0);
                let author = json!({"kind": "observed", "name": session(&chat)});
                assert_eq!((&first["author"], &first["file"]), (&author, &file["file"]));
            } else {
                assert_eq!(file["v"], Value::Null, "{what}");
            }
            // A file that was there before, twice.
            until_reported(&mut stream, &format!("{root}/README.md"));
            until_reported(&mut stream, &format!("{root}/README.md"));
            if has_versions {
                assert_eq!(versions(&daemon, "README.md").len(), 2, "{what}");
            }
            daemon.post(&format!("/api/v1/chats/{chat}/stop"), &json!({}));
        }
    }
}

#[test]
fn what_a_short_turn_wrote_is_reported_before_its_end() {
    for mode in ["rw", "copy", "worktree", "overlay"] {
        let drill = drill(true, mode);
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say begin");
        for n in 0..5 {
            let events = does(&daemon, &chat, &format!("run echo x | tee short{n}.txt"));
            let last = events.last().map(|event| event.name.as_str());
            assert_eq!(last, Some("done"), "{mode}: {events:#?}");
            let is_it = |event: &StreamEvent| {
                let path = event.data["path"].as_str().unwrap_or_default();
                event.name == "file_updated" && path.ends_with(&format!("/short{n}.txt"))
            };
            assert!(events.iter().any(is_it), "{mode} {n}: {events:#?}");
        }
    }
}

#[test]
fn a_single_run_reports_it_too_without_versions() {
    let pools = pools("", "mode = \"rw\"").replace("[workspace.main]\npath = \"project\"\n", "");
    let pools = pools.replace("[role.dev]\npool = \"demo\"\n", "");
    let drill = Drill::new(&pools);
    fs::write(drill.path("open.toml"), POLICY).expect("open.toml");
    let workspace = drill.workspace();
    std::os::unix::fs::chown(&workspace, Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut run = drill.start(&["run", "run echo one | tee live.txt\nrun sleep 20"]);
    let is_there = |sql: &str| {
        let count = drill
            .database()
            .query_row(sql, [], |row| row.get::<_, i64>(0));
        count.is_ok_and(|count| count > 0)
    };
    let seen = "SELECT COUNT(*) FROM events WHERE kind = 'file_updated' \
                AND json_extract(body, '$.path') = '/workspace/live.txt' \
                AND json_extract(body, '$.sha256') IS NOT NULL";
    let journal = drill.state().join("journal.db");
    eventually(LONG, "it is reported", || {
        journal.exists() && is_there(seen)
    });
    assert!(!is_there(
        "SELECT COUNT(*) FROM events WHERE kind = 'turn_ended'"
    ));
    run.end(LONG);
}

#[test]
fn what_is_removed_or_written_by_a_tool_is_reported_once() {
    let drill = drill(true, "copy");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say begin");
    let mut stream = daemon.follow(&chat, None);
    stream.any_turn();
    daemon.say(
        &chat,
        "run touch passing && rm passing README.md\n\
         mcp write_file {\"path\":\"/workspace/tool.txt\",\"content\":\"one\\n\"}\n\
         run sleep 1\nrun echo x | tee last.txt && sleep 20\nsay over",
    );
    let events = until_reported(&mut stream, "/workspace/last.txt");
    let mut paths: Vec<_> = reported_files(&events)
        .iter()
        .map(|file| file["path"].clone())
        .collect();
    paths.sort_by_key(Value::to_string);
    assert_eq!(
        paths,
        [
            "/workspace/README.md",
            "/workspace/last.txt",
            "/workspace/tool.txt"
        ]
    );
}

#[test]
fn two_sessions_that_write_one_directory_are_not_taken_for_each_other() {
    let drill = drill(true, "rw");
    let daemon = Daemon::start(&drill);
    let (one, other) = (daemon.create("say one"), daemon.create("say other"));
    let mut stream = daemon.follow(&one, None);
    stream.any_turn();
    daemon.say(&other, "run sleep 30");
    let mut others = daemon.follow(&other, None);
    others.until("its turn runs", |event| event.name == "call");
    daemon.say(&one, "run echo x | tee shared.txt && sleep 3");
    eventually(LONG, "it is observed", || {
        versions(&daemon, "shared.txt").len() == 1
    });
    let first = versions(&daemon, "shared.txt").remove(0);
    assert_eq!(first["author"], json!({"kind": "observed", "name": ""}));
    assert_eq!(first["task"], Value::Null);
}

#[test]
fn a_moved_file_keeps_its_id_its_versions_and_its_place_in_the_api() {
    for is_root in [true, false] {
        let drill = drill(is_root, "rw");
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say begin");
        does(
            &daemon,
            &chat,
            "run mkdir d && echo one | tee a.txt && echo two | tee d/x.txt",
        );
        eventually(LONG, "both are observed", || {
            versions(&daemon, "d/x.txt").len() == 1 && versions(&daemon, "a.txt").len() == 1
        });
        let id = |path: &str| versions(&daemon, path)[0]["file"].clone();
        let (first, second) = (id("a.txt"), id("d/x.txt"));
        let events = does(
            &daemon,
            &chat,
            "run mkdir sub && mv a.txt sub/b.txt && echo more | tee -a sub/b.txt && mv d e && sleep 1",
        );
        let moved = reported_moves(&events);
        assert_eq!(
            moved,
            [("/a.txt", "/sub/b.txt"), ("/d/x.txt", "/e/x.txt")],
            "{events:#?}"
        );
        let history = versions(&daemon, "sub/b.txt");
        let of: Vec<_> = history
            .iter()
            .map(|version| (&version["file"], &version["path"], &version["cause"]))
            .collect();
        let (observed, rename) = (json!("observed"), json!("rename"));
        let (old, new) = (json!("a.txt"), json!("sub/b.txt"));
        let mut expect = [
            (&first, &old, &observed),
            (&first, &new, &rename),
            (&first, &new, &observed),
        ];
        if history[0]["version"] == 3 {
            expect.reverse();
        }
        assert_eq!(of, expect);
        let by_id = |id: &Value| {
            let id = id.as_str().expect("an id");
            daemon.get(&format!("/api/v1/workspaces/main/file-ids/{id}"))
        };
        assert_eq!(by_id(&first).body["path"], "sub/b.txt");
        assert_eq!(by_id(&second).body["path"], "e/x.txt");
        assert_eq!(daemon.get(&format!("{FILES}/a.txt")).status, 404);
        for unknown in ["x", "0190a2b4-0000-7000-8000-000000000001"] {
            assert_eq!(by_id(&json!(unknown)).status, 404);
        }
        by_http(&daemon, &drill, &first);
    }
}

/// The moves that were reported: from, and to.
fn reported_moves(events: &[StreamEvent]) -> Vec<(&str, &str)> {
    let files = events.iter().filter(|event| event.name == "file_updated");
    let moved = files.filter_map(|event| {
        let from = event.data["moved_from"].as_str()?;
        Some((from, event.data["path"].as_str()?))
    });
    let mut moved: Vec<_> = moved.collect();
    moved.sort_unstable();
    moved
}

/// A person moves it further.
fn by_http(daemon: &Daemon, drill: &Drill, id: &Value) {
    let post = |path: &str, body: &Value| {
        daemon.post(&format!("/api/v1/workspaces/main/move/{path}"), body)
    };
    let moved = post("sub/b.txt", &json!({"to": "deep/er/c.txt", "base": 3}));
    assert_eq!(moved.status, 200, "{moved:?}");
    assert_eq!(
        (
            &moved.body["file"],
            &moved.body["version"],
            &moved.body["cause"]
        ),
        (id, &json!(4), &json!("rename"))
    );
    let text = fs::read_to_string(drill.workspace().join("deep/er/c.txt"));
    assert_eq!(text.expect("there"), "one\nmore\n");
    assert!(!drill.workspace().join("sub/b.txt").exists());
    for (path, body, status) in [
        ("deep/er/c.txt", json!({"to": "e/x.txt"}), 409),
        ("deep/er/c.txt", json!({"to": "d", "base": 3}), 409),
        ("deep/er/c.txt", json!({"to": ".env"}), 403),
        ("deep/er/c.txt", json!({"to": "../x"}), 400),
        ("deep/er/c.txt", json!({"to": "e/x.txt/y"}), 409),
        ("none.txt", json!({"to": "d"}), 404),
        ("deep/er/c.txt", json!({}), 400),
    ] {
        let got = post(path, &body);
        assert_eq!(got.status, status, "{path} {body}: {got:?}");
    }
    let settled = daemon.get(&format!("{FILES}/deep/er/c.txt"));
    assert_eq!(
        (
            &settled.body["version"]["file"],
            &settled.body["version"]["version"]
        ),
        (id, &settled.body["version"]["version"])
    );
    assert_eq!(settled.body["content"], "one\nmore\n");
}
