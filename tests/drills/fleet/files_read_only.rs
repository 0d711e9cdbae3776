//! A workspace that agents see read-only: what they write by the supervisor's tools is judged, has a
//! version and an author, and is seen by the others at once. Nothing else is written.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::chat_client::Daemon;
use crate::drill::{Drill, NOBODY};
use crate::fleet::files::{POLICY, assert_reply_contains, pools, session, versions, write};

/// A supervisor of root, or of an ordinary user.
fn drill(is_root: bool, workspace: &str) -> Drill {
    let pools = pools("", &format!("mode = \"ro\"{workspace}"));
    let drill = if is_root {
        Drill::new(&pools)
    } else {
        Drill::of_nobody(&pools)
    };
    let own = |path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
    for (name, content) in [("../open.toml", POLICY), (".env", "KEY=secret\n")] {
        let path = drill.workspace().join(name);
        fs::write(&path, content).expect("written");
        if !is_root {
            own(path);
        }
    }
    drill
}

#[test]
fn what_the_tools_write_is_a_version_and_seen_by_the_others_at_once() {
    for is_root in [true, false] {
        let drill = drill(is_root, ", mask = [\".env\", \"hidden.txt\"]");
        let daemon = Daemon::start(&drill);
        let (one, other) = (daemon.create("say one"), daemon.create("say other"));
        // Past the tools nothing can be written.
        let touch = "run touch /workspace/x";
        assert_reply_contains(&daemon, &one, touch, "Read-only file system");
        assert!(!drill.workspace().join("x").exists());
        let done = "mcp write_file ok /workspace/src/a.txt was written";
        assert_reply_contains(&daemon, &one, &write("src/a.txt", "one\n", ""), done);
        assert_reply_contains(
            &daemon,
            &other,
            "run grep -q one src/a.txt",
            "exited with 0",
        );
        let edit = "mcp read_file {\"path\":\"/workspace/src/a.txt\"}\n\
            mcp edit_file {\"path\":\"/workspace/src/a.txt\",\"old_text\":\"one\",\"new_text\":\"two\"}";
        assert_reply_contains(&daemon, &other, edit, "mcp edit_file ok");
        assert_reply_contains(&daemon, &one, "run grep -q two src/a.txt", "exited with 0");
        let stale = write("src/a.txt", "three\n", "");
        assert_reply_contains(
            &daemon,
            &one,
            &stale,
            "stale: /workspace/src/a.txt is at version 2",
        );
        let text = fs::read_to_string(drill.workspace().join("src/a.txt"));
        assert_eq!(text.expect("a.txt"), "two\n");
        let owner = |path: &str| {
            fs::metadata(drill.workspace().join(path))
                .expect(path)
                .uid()
        };
        assert_eq!(owner("src/a.txt"), owner("src"));

        let all = versions(&daemon, "src/a.txt");
        let of = |at: usize| (all[at]["cause"].clone(), all[at]["author"]["name"].clone());
        assert_eq!(all.len(), 2, "{all:#?}");
        assert_eq!(of(0), ("write".into(), session(&one).into()));
        assert_eq!(of(1), ("edit".into(), session(&other).into()));

        // What is hidden, what others obey, and what is not there stay as they are.
        for (path, why) in [
            (".env", "mcp write_file error"),
            ("hidden.txt", "hidden from agents"),
            (".git/hooks/pre-commit", "mcp write_file error"),
            (".github/workflows/ci.yml", "mcp write_file error"),
            ("none/b.txt", "mcp write_file error"),
        ] {
            assert_reply_contains(&daemon, &one, &write(path, "x", ""), why);
        }
        let hidden = fs::read_to_string(drill.workspace().join(".env"));
        assert_eq!(hidden.expect(".env"), "KEY=secret\n");
        assert!(!drill.workspace().join(".git").exists());
        drill.assert_dense();
    }
}

#[test]
fn only_visible_directories_are_written() {
    let drill = drill(true, ", slice = [\"src\"]");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one");
    let done = "mcp write_file ok /workspace/src/a.txt was written";
    assert_reply_contains(&daemon, &chat, &write("src/a.txt", "one\n", ""), done);
    let why = "outside of the visible directories";
    assert_reply_contains(&daemon, &chat, &write("README.md", "x", ""), why);
    let text = fs::read_to_string(drill.workspace().join("README.md"));
    assert_eq!(text.expect("README.md"), "# A project\n");
}

#[test]
fn without_a_registered_workspace_or_a_daemon_nothing_is_written() {
    let unregistered =
        pools("", "mode = \"ro\"").replace("[workspace.main]\npath = \"project\"\n", "");
    let drill = Drill::new(&unregistered.replace("[role.dev]\npool = \"demo\"\n", ""));
    fs::write(drill.path("open.toml"), POLICY).expect("open.toml");
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    let part = "write_file in a read-only workspace needs a [workspace.NAME]";
    assert!(ran.all().contains(part), "{}", ran.all());

    let drill = self::drill(true, "");
    let ran = drill.run(&["--json", "run", &write("src/a.txt", "one\n", "")]);
    assert!(
        ran.all().contains("a daemon (marshal up) keeps them"),
        "{}",
        ran.all()
    );
    assert!(!drill.workspace().join("src/a.txt").exists());
}
