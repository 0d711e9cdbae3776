//! What the supervisor runs by itself is no agent's to write, whatever leads there.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::drill::{Drill, NOBODY, Ran};

/// A pool whose agents change the workspace in place.
const POOL: &str = r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
workspace = { path = "WORK", mode = "rw" }
"#;

/// A drill with this table beside the pool; `DIR` in it is the drill's directory.
fn drill(workspace: &str, table: &str) -> Drill {
    let drill = Drill::new(&POOL.replace("WORK", workspace));
    // A writable tree of root would be refused for that alone.
    std::os::unix::fs::chown(drill.workspace(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let dir = drill.path("");
    let dir = dir.to_str().expect("UTF-8").trim_end_matches('/');
    let mut text = fs::read_to_string(drill.config()).expect("read");
    text.push_str(&table.replace("DIR", dir));
    fs::write(drill.config(), text).expect("written");
    for name in ["project/tell.sh", "tell.sh"] {
        put(&drill, name, 0o755);
    }
    drill
}

fn put(drill: &Drill, name: &str, mode: u32) {
    fs::write(drill.path(name), "#!/bin/sh\n").expect("written");
    fs::set_permissions(drill.path(name), fs::Permissions::from_mode(mode)).expect("mode");
}

fn check(drill: &Drill) -> Ran {
    drill.run(&["config", "check"])
}

fn refused(drill: &Drill, word: &str) {
    for args in [&["config", "check"][..], &["run", "say hello"]] {
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.all());
        assert!(ran.all().contains(word), "{word}: {}", ran.all());
    }
}

#[test]
fn every_word_of_a_hook_and_of_a_delegate_stays_outside_of_what_agents_write() {
    let tables = [
        r#"command = ["DIR/project/tell.sh"]"#,
        r#"command = ["/bin/sh", "DIR/project/tell.sh"]"#,
        r#"command = ["/bin/sh", "DIR/other/../project/not-there-yet.sh"]"#,
        r#"command = ["/usr/bin/env", "--chdir=DIR/project", "true"]"#,
        r#"command = ["/bin/sh", "-c", "exec DIR/project/tell.sh; true"]"#,
    ];
    for table in tables {
        let hook = drill("project", &format!("\n[hook.own]\n{table}\n"));
        refused(&hook, "the agent could write");
        let decides = format!("\n[delegate.own]\n{table}\n");
        let delegate = drill("project", &decides);
        refused(&delegate, "the agent could write");
    }
    // What runs in the root finds relative names there.
    let hook = drill(
        "project",
        "\n[hook.own]\ncommand = [\"/bin/sh\", \"DIR/project/tell.sh\"]\n",
    );
    let text = fs::read_to_string(hook.config()).expect("read");
    let text = text.replace("[\"/bin/sh\", \"/", "[\"/bin/sh\", \"");
    fs::write(hook.config(), text).expect("written");
    refused(&hook, "the agent could write");
    let env =
        "\n[hook.own]\ncommand = [\"DIR/tell.sh\"]\nenv = { PATH = \"/bin:DIR/project/bin\" }\n";
    refused(&drill("project", env), "the agent could write");
    let outside = drill(
        "project",
        "\n[hook.own]\ncommand = [\"/bin/sh\", \"DIR/tell.sh\"]\n",
    );
    let ran = check(&outside);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
}

#[test]
fn a_link_on_either_side_hides_nothing() {
    // The workspace is a link, and the program is named by what it leads to.
    for table in ["hook.own", "delegate.own"] {
        let table = format!("\n[{table}]\ncommand = [\"/bin/sh\", \"DIR/project/tell.sh\"]\n");
        let own = drill("lnk", &table);
        symlink("project", own.path("lnk")).expect("linked");
        refused(&own, "leads into the workspace");
        // The program is a link into the workspace; and one that leads through it and out again.
        let table = table.replace("DIR/project/tell.sh", "DIR/to/tell.sh");
        let own = drill("project", &table);
        symlink(own.path("project"), own.path("to")).expect("linked");
        refused(&own, "leads into the workspace");
        let own = drill("project", &table);
        symlink("..", own.path("project/out")).expect("linked");
        symlink("project/out", own.path("to")).expect("linked");
        refused(&own, "leads into the workspace");
        let own = drill("project", &table);
        fs::create_dir(own.path("to")).expect("made");
        put(&own, "to/tell.sh", 0o755);
        let ran = check(&own);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
    }
}

#[test]
fn a_hook_that_others_could_write_is_not_run() {
    for argv in ["\"DIR/tell.sh\"", "\"/bin/sh\", \"DIR/tell.sh\""] {
        let own = drill("project", &format!("\n[hook.own]\ncommand = [{argv}]\n"));
        assert_eq!(check(&own).code, Some(0));
        put(&own, "tell.sh", 0o777);
        refused(&own, "is writable by everybody");
        put(&own, "tell.sh", 0o755);
        std::os::unix::fs::chown(own.path("tell.sh"), Some(65534), None).expect("chown");
        refused(&own, "belongs to user 65534");
        fs::remove_file(own.path("tell.sh")).expect("removed");
        let ran = check(&own);
        // An argument need not be there; the program must.
        let is_program = !argv.contains("/bin/sh");
        assert_eq!(
            ran.code,
            Some(if is_program { 2 } else { 0 }),
            "{}",
            ran.all()
        );
    }
}

#[test]
fn no_task_brings_a_workspace_that_holds_a_program_of_the_supervisor() {
    for table in [
        "\n[hook.own]\ncommand = [\"/bin/sh\", \"DIR/own/tell.sh\"]\n",
        "\n[delegate.own]\ncommand = [\"/bin/sh\", \"DIR/own/tell.sh\"]\n",
        "\n[hook.own]\ncommand = [\"/bin/sh\", \"DIR/to/tell.sh\"]\n",
    ] {
        let own = drill("project", table);
        fs::create_dir_all(own.path("own/below")).expect("made");
        put(&own, "own/tell.sh", 0o755);
        symlink("own", own.path("to")).expect("linked");
        let ran = check(&own);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let run = |workspace: &str| {
            let task = serde_json::json!({"prompt": "say hello", "workspace": own.path(workspace)});
            fs::write(own.path("t.jsonl"), format!("{task}\n")).expect("written");
            own.run(&["run", "t.jsonl"])
        };
        let ran = run("own");
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        let why = "its agent could write";
        assert!(ran.stderr.contains(why), "{}", ran.all());
        assert!(ran.stderr.contains("tell.sh"), "{}", ran.all());
        let ran = run("own/below");
        assert!(!ran.all().contains(why), "{}", ran.all());
    }
}

#[test]
fn no_task_brings_a_workspace_in_which_its_agent_could_read_a_token() {
    for mode in ["ro", "copy", "overlay"] {
        let table = "\n[token.ops]\nfile = \"DIR/keys/ops.token\"\nrole = \"read\"\n";
        let own = drill("project", table);
        let text = fs::read_to_string(own.config()).expect("read");
        let text = text.replace("mode = \"rw\"", &format!("mode = {mode:?}"));
        fs::write(own.config(), text).expect("written");
        fs::create_dir_all(own.path("keys/below")).expect("made");
        fs::write(own.path("keys/ops.token"), "0".repeat(64)).expect("written");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(own.path("keys/ops.token"), mode).expect("mode");
        let run = |workspace: &str| {
            let task = serde_json::json!({"prompt": "say hello", "workspace": own.path(workspace)});
            fs::write(own.path("t.jsonl"), format!("{task}\n")).expect("written");
            own.run(&["run", "t.jsonl"])
        };
        let why = "a credential of the supervisor";
        let ran = run("keys");
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.stderr.contains(why), "{}", ran.all());
        assert!(ran.stderr.contains("ops.token"), "{}", ran.all());
        let ran = run("keys/below");
        assert!(!ran.all().contains(why), "{}", ran.all());
    }
}
