//! `launcher = "bwrap"` and `launcher = "container"` through every layer: the same tasks, checks,
//! crashes and ends as in a sandbox of marshal's own, and nothing left.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::drill::{Drill, descendants, eventually, is_alive};
use crate::engines;
use crate::programs::install;

/// What the launchers of this file have in common. `KEY` is the launcher's own.
const POOL: &str = r#"
[pool.demo]
size      = SIZE
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
permission_requests = "all"
launcher  = "LAUNCHER"
attempts  = 2
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
check     = ["/bin/sh", "-c", "test -e README.md && test ! -e forbidden"]
stop      = { goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }
restart   = { base = "20ms", max = "100ms", on_crash = "retry" }
env       = { set = { DRILL = "MARK" } }
client_fs = "read"
client_terminal = true
"#;

/// The three launchers that build a sandbox; the first is what the others are measured by.
const LAUNCHERS: [&str; 3] = ["unshare", "bwrap", "container"];

fn drill(launcher: &str, size: usize) -> Drill {
    let pool = POOL
        .replace("SIZE", &size.to_string())
        .replace("LAUNCHER", launcher);
    Drill::new(&format!("{pool}\n{}", container(launcher)))
}

/// The table of the container engine, where it is needed.
pub(crate) fn container(launcher: &str) -> String {
    if launcher != "container" {
        return String::new();
    }
    let podman = engines::podman();
    let extra: Vec<String> = podman[1..]
        .iter()
        .filter(|word| !word.starts_with("--runtime"))
        .map(|word| format!("{word:?}"))
        .collect();
    format!(
        "[container]\nruntime = \"runc\"\nimage = \"localhost/marshal-test:1\"\nextra = [{}]\n",
        extra.join(", ")
    )
}

/// The names of this drill's containers.
fn containers(drill: &Drill) -> Vec<String> {
    let label = format!("--filter=label=marshal.state={}", drill.state().display());
    let output = engines::command(&["ps", "--all", "--format={{.Names}}", &label])
        .output()
        .expect("podman");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Processes of containers' monitors and of bubblewrap that belong to this drill.
fn monitors(drill: &Drill) -> usize {
    let state = drill.state().to_string_lossy().into_owned();
    let mut found = 0;
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).into_owned();
        found += usize::from(line.contains(&state) && line.contains("marshal.state"));
    }
    found
}

/// Nothing of the drill is left anywhere.
fn nothing_left(drill: &Drill) {
    eventually(Duration::from_secs(60), "nothing is left", || {
        drill.agents().is_empty() && containers(drill).is_empty() && monitors(drill) == 0
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let own = drill
        .path("")
        .to_string_lossy()
        .trim_end_matches('/')
        .to_owned();
    assert!(!mounts.contains(&own), "{mounts}");
}

/// What a conversation of several tasks came to, without what differs from run to run.
fn comparable_results(results: &[Value]) -> Vec<(String, String, String)> {
    let mut reported: Vec<_> = results
        .iter()
        .map(|result| {
            let text = |key: &str| result[key].to_string();
            (text("outcome"), text("answer"), text("changes"))
        })
        .collect();
    reported.sort();
    reported
}

#[test]
fn the_same_tasks_end_in_the_same_way() {
    let prompts = [
        "write a.txt one",
        "read README.md",
        "say two",
        "write forbidden x",
        "exit 126",
        "exit 127",
    ];
    let mut expected = None;
    for launcher in LAUNCHERS {
        let drill = drill(launcher, 2);
        // git lists what is copied: this is not.
        for words in [&["init", "-q"][..], &["add", "README.md"]] {
            let git = std::process::Command::new("git")
                .args(words)
                .current_dir(drill.workspace())
                .status();
            assert!(git.expect("git").success());
        }
        fs::write(drill.workspace().join(".gitignore"), "secret\n").expect(".gitignore");
        fs::write(drill.workspace().join("secret"), "x").expect("secret");
        let mut args = vec!["run", "--results", "results.jsonl"];
        args.extend(prompts);
        let ran = drill.run(&args);
        assert_eq!(ran.code, Some(1), "{launcher}: {}", ran.all());
        let found = comparable_results(&drill.results("results.jsonl"));
        assert_eq!(found.len(), prompts.len(), "{launcher}: {}", ran.all());
        match &expected {
            None => expected = Some(found),
            Some(expected) => assert_eq!(&found, expected, "{launcher}: {}", ran.all()),
        }
        drill.assert_dense();
        let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
        for copy in copies.flatten() {
            assert!(!copy.path().join("secret").exists(), "{launcher}");
        }
        nothing_left(&drill);
    }
}

#[test]
fn a_crash_is_retried_and_a_stop_leaves_nothing() {
    for launcher in LAUNCHERS {
        let drill = drill(launcher, 1);
        let ran = drill.run(&[
            "run",
            "--results",
            "results.jsonl",
            "crash-once crashed\nsay done",
        ]);
        let results = drill.results("results.jsonl");
        assert_eq!(results.len(), 1, "{launcher}: {}", ran.all());
        nothing_left(&drill);
        let mut running = drill.start(&["run", "spawn-orphan\nsleep 600s"]);
        eventually(Duration::from_secs(90), "an agent and an orphan", || {
            drill.agents().len() >= 2
        });
        let code = running.end(Duration::from_secs(90));
        assert_eq!(code, Some(130), "{launcher}: {}", drill.log("stderr.log"));
        nothing_left(&drill);
    }
}

#[test]
fn a_killed_supervisor_leaves_no_container_and_no_process() {
    for launcher in LAUNCHERS {
        let drill = drill(launcher, 2);
        let script = "spawn-orphan\nsleep 600s";
        let mut running = drill.start(&["run", script, script]);
        eventually(Duration::from_secs(90), "two agents, two orphans", || {
            drill.agents().len() >= 4
        });
        if launcher == "container" {
            assert_eq!(containers(&drill).len(), 2);
        }
        let all: BTreeSet<u32> = descendants(running.pid())
            .into_iter()
            .chain(drill.agents())
            .collect();
        let since = Instant::now();
        running.child.kill().expect("kill -9");
        let _ = running.child.wait();
        // The agents at once; the engine, which cleans up after them, a moment later.
        eventually(Duration::from_secs(20), "no agent is left", || {
            drill.agents().is_empty()
        });
        eventually(Duration::from_secs(60), "no helper is left", || {
            all.iter().all(|pid| !is_alive(*pid))
        });
        println!("{launcher}: nothing left after {:?}", since.elapsed());
        nothing_left(&drill);
    }
}

#[test]
fn containers_of_a_supervisor_that_is_gone_are_removed_at_the_next_start() {
    let drill = drill("container", 1);
    let label = format!("--label=marshal.state={}", drill.state().display());
    let image = engines::image();
    for (name, label) in [
        ("marshal-0-left", &*label),
        ("marshal-0-foreign", "--label=marshal.state=/somebody/else"),
    ] {
        let name = format!("--name={name}-{}", drill.mark);
        let made = engines::command(&["create", &name, "--network=none", label, &image, "/bin/sh"])
            .output()
            .expect("podman");
        assert!(made.status.success(), "{made:?}");
    }
    assert_eq!(containers(&drill).len(), 1);
    let ran = drill.run(&["run", "say hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    nothing_left(&drill);
    let foreign = format!("marshal-0-foreign-{}", drill.mark);
    let removed = engines::command(&["rm", &foreign])
        .output()
        .expect("podman");
    assert!(
        removed.status.success(),
        "it is nobody's to remove: {removed:?}"
    );
}

/// A supervisor whose podman is this script.
fn with_engine(script: &str, image: &str) -> Drill {
    let pool = POOL.replace("SIZE", "1").replace("LAUNCHER", "container");
    let drill = Drill::new(&format!("{pool}\n[container]\nimage = {image:?}\n"));
    let bin = drill.path("bin");
    fs::create_dir(&bin).expect("bin");
    if !script.is_empty() {
        let podman = bin.join("podman");
        install(&podman, format!("#!/bin/sh\n{script}\n").as_bytes());
    }
    drill
}

#[test]
fn an_engine_that_does_not_do_its_part_is_said_before_anything_runs() {
    let (one, other) = ("1".repeat(64), "2".repeat(64));
    let local = "localhost/agent:1";
    let pinned = format!("example.org/agent@sha256:{one}");
    let id = format!("sha256:{one}");
    let inspect = |says: &str| {
        format!(
            "case \"$*\" in *'image inspect'*) {says};; *' run '*|run*) echo 'no such luck' >&2; exit 125;; *) exit 0;; esac"
        )
    };
    for (script, image, expected) in [
        (String::new(), local, "no podman in the PATH"),
        (
            inspect("echo 'no such image' >&2; exit 125"),
            local,
            "does not have the image localhost/agent:1",
        ),
        (
            inspect("echo hello world"),
            local,
            "printed no id for the image",
        ),
        (
            inspect("head -c 300000 /dev/zero | tr '\\0' a"),
            local,
            "printed no id for the image",
        ),
        (
            inspect(&format!("echo {one} example.org/agent@sha256:{other}")),
            &*pinned,
            "another digest",
        ),
        (inspect(&format!("echo {other}")), &*id, "another digest"),
        (inspect(&format!("echo {one}")), local, "no such luck"),
    ] {
        let drill = with_engine(&script, image);
        let path = format!("{}:/usr/bin:/bin", drill.path("bin").display());
        let path = if script.is_empty() {
            drill.path("bin").display().to_string()
        } else {
            path
        };
        let output = drill
            .command(&["run", "say never"])
            .env("PATH", path)
            .output()
            .expect("marshal");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{expected}: {said}");
        assert!(said.contains(expected), "{expected:?} is not in {said}");
        assert!(drill.agents().is_empty());
    }
}

#[test]
fn a_command_runs_in_the_sandbox_of_every_launcher() {
    for launcher in LAUNCHERS {
        let drill = drill(launcher, 1);
        let launcher_word = format!("--launcher={launcher}");
        let output = drill
            .command(&[
                "sandbox",
                "exec",
                &launcher_word,
                "--workspace",
                "project",
                "--mode",
                "copy",
            ])
            .args(["--", "/bin/sh", "-c", "id -u; cat README.md; exit 125"])
            .output()
            .expect("marshal");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(printed, "1000\n# A project\n", "{launcher}: {output:?}");
        assert_eq!(output.status.code(), Some(125), "{launcher}: {output:?}");
        nothing_left(&drill);
    }
}
