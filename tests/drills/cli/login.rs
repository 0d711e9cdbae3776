//! A person logs an agent in, once for all sessions of a pool.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::cli::exits;
use crate::drill::Drill;
use crate::screen::screen_typed;

const POOLS: &str = r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "acp", "--quirk", "login"]
dialect   = "acp"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }

[pool.bare]
command   = ["marshal", "script-agent", "--dialect", "acp", "--quirk", "login"]
dialect   = "acp"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
launcher  = "none"

[pool.other]
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
dialect   = "scaiflux"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
"#;

/// What of logins is in the state directory: paths, with the contents of files.
fn stored(drill: &Drill) -> Vec<(String, String)> {
    let top = drill.state().join("logins");
    let mut found = Vec::new();
    let mut left = vec![top.clone()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path.clone());
                continue;
            }
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
            let name = path.strip_prefix(&top).expect("below").to_string_lossy();
            found.push((name.into_owned(), fs::read_to_string(&path).expect("text")));
        }
    }
    found
}

#[test]
fn a_login_at_a_terminal_is_made_once_and_all_sessions_have_it() {
    for is_root in [true, false] {
        let drill = if is_root {
            Drill::new(POOLS)
        } else {
            Drill::of_nobody(POOLS)
        };
        exits(
            &drill.run(&["run", "--pool", "demo", "say hi"]),
            1,
            &["wants a login", "marshal login"],
        );
        let mut command = drill.command(&["login", "demo", "setup"]);
        let (shown, ended) = screen_typed(&mut command, 100, b"my-key\n");
        assert!(ended.success(), "{shown}");
        for part in [
            "login of pool demo: Set up",
            "Key:",
            "stored",
            "logged in: new sessions of pool demo get .script-agent/key",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        let file = ("demo/.script-agent/key".to_owned(), "my-key".to_owned());
        assert_eq!(stored(&drill), std::slice::from_ref(&file));
        for _ in 0..2 {
            exits(&drill.run(&["run", "--pool", "demo", "say hi"]), 0, &[]);
        }
        // A login that fails leaves the earlier one.
        let mut command = drill.command(&["login", "demo", "setup"]);
        let (shown, ended) = screen_typed(&mut command, 100, b"\n");
        assert_eq!(ended.code(), Some(1), "{shown}");
        assert!(
            shown.contains("the agent ended its login with code 1"),
            "{shown}"
        );
        assert_eq!(stored(&drill), [file]);
        exits(
            &drill.run(&["login", "demo", "--forget"]),
            0,
            &["the files of pool demo's login were removed"],
        );
        assert!(stored(&drill).is_empty());
        exits(
            &drill.run(&["run", "--pool", "demo", "say hi"]),
            1,
            &["wants a login"],
        );
    }
}

#[test]
fn a_login_that_the_agent_makes_by_itself_needs_no_terminal() {
    let drill = Drill::new(POOLS);
    exits(
        &drill.run(&["login", "demo", "key"]),
        0,
        &["logged in: new sessions of pool demo get"],
    );
    assert_eq!(stored(&drill).len(), 1);
    exits(&drill.run(&["run", "--pool", "demo", "say hi"]), 0, &[]);
}

#[test]
fn what_cannot_be_logged_in_is_refused_with_the_reason() {
    let drill = Drill::new(POOLS);
    for (args, code, part) in [
        (
            &["login", "none"][..],
            2,
            "the configuration has no pool none",
        ),
        (
            &["login", "demo"],
            2,
            "the agent offers no login; name one of: key, setup",
        ),
        (
            &["login", "demo", "x"],
            2,
            "the agent offers no login x; name one of: key, setup",
        ),
        (
            &["login", "demo", "setup"],
            2,
            "this login needs a terminal",
        ),
        (
            &["login", "bare"],
            2,
            "only an agent in a sandbox of this host",
        ),
        (
            &["login", "other"],
            2,
            "speaks scaiflux, which has no logins",
        ),
        (&["login", "demo", "--forget"], 0, "pool demo has no login"),
    ] {
        exits(&drill.run(args), code, &[part]);
    }
    // A file that was only found may not use the host's network.
    let text = fs::read_to_string(drill.config()).expect("the configuration");
    let text = text.replace("launcher  = \"none\"\n", "");
    fs::write(drill.config(), text).expect("written");
    let found = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["login", "demo", "key"])
        .current_dir(drill.path("."))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", drill.path("."))
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.status.code(), Some(2), "{text}");
    assert!(text.contains("trust it with `marshal trust`"), "{text}");
    assert!(stored(&drill).is_empty());
}
