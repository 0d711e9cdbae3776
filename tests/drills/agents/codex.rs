//! Codex itself, by its own protocol: the native program of the package, its `app-server`, in the same
//! life as the five agents that have a preset; then changes to files, what a denial says, a thread that
//! outlives its process with its memory, and a version that is not ours.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::Value;

use crate::agents::bench::{
    Model, PATIENCE, alone, events, in_copy, kill, oldest, result, run_output, start, tools,
    until_asleep, until_gone,
};
use crate::agents::five::{Kind, Refusal, works};
use crate::drill::Drill;

pub(crate) const SERVER: Kind = Kind {
    name: "codex-app-server",
    route: "openai",
    denied: "mkdir denied",
    asks: true,
    refusal: Refusal::Says("rejected by user"),
};

const POLICY: &str = r#"
schema  = 1
name    = "patches"
extends = ["builtin:guard"]
default = "deny"

[paths]
open = ["@/open/**"]

[[rule]]
id       = "harmless"
decision = "allow"
tool     = "shell"
argv     = [["touch", "sleep"]]
paths    = "inside"

[[rule]]
id       = "open"
decision = "allow"
tool     = ["write", "delete", "move"]
path     = "open"
"#;

/// Where the package's native program is.
pub(crate) fn native() -> PathBuf {
    let arch = if cfg!(target_arch = "aarch64") {
        ("arm64", "aarch64")
    } else {
        ("x64", "x86_64")
    };
    let dir = tools().join("five/codex-app-server/node_modules/@openai");
    let vendor = dir.join(format!("codex-linux-{}/vendor", arch.0));
    let native = vendor.join(format!("{}-unknown-linux-musl/bin/codex", arch.1));
    assert!(native.exists(), "{} is not installed", native.display());
    native
}

/// One slot of it, with more keys.
fn drill(upstream: &str, keys: &str) -> Drill {
    let dir = tools().join("five/codex-app-server");
    let drill = Drill::new(&format!(
        r#"
[route.openai]
upstream = "{upstream}"
secret   = "env:REHEARSAL_KEY"

[pool.real]
agent     = "codex-app-server"
agent_dir = {:?}
policy    = "patches"
session   = "slot"
workspace = {{ path = "project", mode = "copy" }}
timeouts  = {{ handshake = "4m", cancel = "1m" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{keys}

[policy.patches]
file = "patches.toml"
"#,
        dir.display().to_string(),
    ));
    fs::write(drill.path("patches.toml"), POLICY).expect("a policy");
    drill
}

/// A prompt whose one step is a patch.
fn patch(lines: &str) -> String {
    format!(
        "RUN: <<THE END\napply_patch <<'EOF'\n*** Begin Patch\n{lines}\n*** End Patch\nEOF\nTHE END\nSAY: bye"
    )
}

/// What goes to the model, as it goes: bytes are passed on both ways, and those of requests kept.
struct Ear {
    address: String,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Ear {
    fn before(model: &Model) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let upstream = model.address.replace("http://", "");
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let ears = Arc::clone(&received);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&upstream) else {
                    continue;
                };
                let ears = Arc::clone(&ears);
                let (from, to) = (near.try_clone(), far.try_clone());
                let (Ok(from), Ok(to)) = (from, to) else {
                    continue;
                };
                thread::spawn(move || pass(from, to, Some(&ears)));
                thread::spawn(move || pass(far, near, None));
            }
        });
        Self {
            address: format!("http://127.0.0.1:{port}"),
            received,
        }
    }

    /// The requests from there on, as text.
    fn since(&self, from: usize) -> String {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(received.get(from..).unwrap_or_default()).into_owned()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, ears: Option<&Mutex<Vec<u8>>>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if let Some(ears) = ears {
            let mut received = ears.lock().unwrap_or_else(PoisonError::into_inner);
            received.extend_from_slice(&buffer[..read]);
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn the_app_server_works_is_refused_cancelled_and_killed() {
    works(&SERVER);
}

#[test]
fn changes_to_files_are_judged_whole_and_a_denial_is_explained_before_the_next_prompt() {
    let _alone = alone();
    let model = Model::start();
    let ear = Ear::before(&model);
    let drill = drill(&ear.address, "");
    let project = drill.workspace();
    fs::create_dir(project.join("open")).expect("a directory");
    fs::write(project.join("open/old.txt"), "a\n").expect("a file");
    fs::write(project.join("closed.txt"), "a\n").expect("a file");
    let good = patch("*** Add File: open/new.txt\n+hello");
    let moved = patch("*** Update File: open/old.txt\n*** Move to: open/moved.txt\n@@\n-a\n+b");
    let gone = patch("*** Delete File: open/new.txt");
    // One of the two files may be written, so that neither is.
    let half = patch("*** Add File: open/half.txt\n+x\n*** Update File: closed.txt\n@@\n-a\n+b");
    // Changes of two kinds are no tool of any rule.
    let mixed = patch("*** Add File: open/mixed.txt\n+x\n*** Delete File: open/moved.txt");
    let tasks = [
        ("good", good.as_str()),
        ("moved", moved.as_str()),
        ("gone", gone.as_str()),
        ("half", half.as_str()),
        ("mixed", mixed.as_str()),
        ("after", "SAY: bye"),
    ];
    let mut running = start(&drill, &model.key, "patches", &tasks);
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "patches");
    assert_eq!(code, Some(1), "{all}");
    let of = |id: &str| result(&drill, "patches", id);
    for id in ["good", "moved", "gone", "after"] {
        assert_eq!(of(id)["outcome"], "done", "{id}: {all}");
    }
    for id in ["half", "mixed"] {
        assert_eq!(of(id)["outcome"], "denied", "{id}: {all}");
        assert_eq!(of(id)["requests"]["denied"], 1, "{id}: {all}");
    }
    let last = of("after");
    for (file, is_there) in [
        ("open/new.txt", false),
        ("open/old.txt", false),
        ("open/moved.txt", true),
        ("open/half.txt", false),
        ("open/mixed.txt", false),
    ] {
        assert_eq!(in_copy(&last, file).exists(), is_there, "{file}: {all}");
    }
    let closed = fs::read_to_string(in_copy(&last, "closed.txt")).expect("a file");
    assert_eq!(closed, "a\n", "{all}");
    // Every turn's tokens are its own.
    for id in ["good", "after"] {
        let tokens = of(id)["tokens"]["input"].as_u64().expect("tokens");
        assert!(tokens > 0, "{id}: {all}");
    }
    // Its answer has no place for a reason: the model hears it before the next prompt.
    let session = last["session"].as_str().expect("a session");
    let requested = events(&drill, session, "permission_requested");
    let tools: Vec<&Value> = requested.iter().map(|ask| &ask["tool"]).collect();
    let expect = [
        "fileChange",
        "fileMove",
        "fileDelete",
        "fileChange",
        "fileChanges",
    ];
    assert_eq!(tools, expect, "{requested:?}");
    assert_eq!(
        events(&drill, session, "tool_call_unrequested").len(),
        0,
        "{all}"
    );
    let received = ear.since(0);
    assert!(
        received.contains("these requests of yours were denied")
            && received.contains("/workspace/closed.txt, /workspace/open/half.txt"),
        "the model was not told: {all}"
    );
    drill.assert_dense();
}

#[test]
fn a_thread_goes_on_in_a_new_process_and_remembers() {
    let _alone = alone();
    let model = Model::start();
    let ear = Ear::before(&model);
    let keys = "restart = { base = \"10ms\", max = \"50ms\", on_crash = \"resume\" }";
    let drill = drill(&ear.address, keys);
    let word = "the word is kingfisher";
    let first = format!("RUN: sleep 303\nSAY: {word}");
    let tasks = [
        ("kill", first.as_str()),
        ("next", "RUN: touch next.txt\nSAY: bye"),
    ];
    let mut running = start(&drill, &model.key, "memory", &tasks);
    let inside = until_asleep(&drill, "memory", "303");
    let before = ear.since(0).len();
    assert!(before > 0);
    kill(oldest(&drill));
    until_gone(&inside);
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "memory");
    assert_eq!(code, Some(1), "{all}");
    assert_eq!(result(&drill, "memory", "kill")["outcome"], "lost", "{all}");
    let next = result(&drill, "memory", "next");
    assert_eq!(next["outcome"], "done", "{all}");
    assert!(in_copy(&next, "next.txt").exists(), "{all}");
    let session = next["session"].as_str().expect("a session");
    assert_eq!(
        result(&drill, "memory", "kill")["session"],
        next["session"],
        "{all}"
    );
    let resumed = events(&drill, session, "session_resumed");
    assert_eq!(resumed.len(), 1, "{all}");
    assert_eq!(resumed[0]["how"], "thread/resume");
    let ready = events(&drill, session, "ready");
    assert_eq!(ready.len(), 2, "{ready:?}");
    assert_eq!(ready[0]["session"], ready[1]["session"]);
    // What the new process sends to its model has the earlier prompt in it.
    assert!(ear.since(before).contains(word), "it forgot: {all}");
    drill.assert_dense();
}

#[test]
fn a_version_that_is_not_ours_parks_the_slot_and_hears_nothing_more() {
    let _alone = alone();
    let native = native();
    // The real program, behind two pipes: one keeps what it hears, the other makes it an old one.
    let script = format!(
        "tee heard.txt | {} app-server | sed -u 's,marshal/0[.][0-9]*[.],marshal/0.165.,'",
        native.display()
    );
    let drill = Drill::new(&format!(
        r#"
[sandbox.with-tools]
ro_bind = ["/usr", {:?}]

[pool.real]
command   = ["/usr/bin/sh", "-c", {script:?}]
dialect   = "codex"
policy    = "developer"
sandbox   = "with-tools"
workspace = {{ path = "project", mode = "rw" }}
timeouts  = {{ handshake = "4m" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#,
        tools().display().to_string(),
    ));
    give_workspace_to_nobody(&drill);
    let ran = drill.run(&["run", "--results", "results.jsonl", "hello"]);
    let all = ran.all();
    assert_ne!(ran.code, Some(0), "{all}");
    let says = "the agent speaks protocol version 0.165.0, this supervisor speaks version 0.166 or a later 0.x of codex app-server";
    assert!(all.contains(says), "{all}");
    let received = fs::read_to_string(drill.workspace().join("heard.txt")).expect("what it heard");
    let lines: Vec<Value> = received
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 1, "{received}");
    assert_eq!(lines[0]["method"], "initialize");
    assert!(drill.agents().is_empty());
}

/// No agent writes in a directory of root's.
fn give_workspace_to_nobody(drill: &Drill) {
    if rustix::process::geteuid().is_root() {
        let status = Command::new("chown")
            .args(["-R", "65534:65534"])
            .arg(drill.workspace())
            .status();
        assert!(status.expect("chown").success());
    }
}
