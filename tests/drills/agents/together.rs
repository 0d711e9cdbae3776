//! Three agents that other people wrote work one plan at the same time, as members of one chat, each
//! driven by the rehearsal model in its provider's form. Every item is ticked once. Each file that they write has versions,
//! and two of them write the same file from the same text: the later one is refused, reads again, and
//! writes what both wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agents::bench::{self, Model, PATIENCE, alone, tools};
use crate::chat_client::{Daemon, StreamEvent};
use crate::drill::Drill;

/// The agents, and the route of each.
const AGENTS: [(&str, &str); 3] = [
    ("claude", "anthropic"),
    ("opencode", "openai"),
    ("codex", "openai"),
];

/// How many pieces of work there are.
const PARTS: usize = 12;

const POLICY: &str = r#"
schema  = 1
name    = "shared"
extends = ["builtin:guard"]
default = "deny"

[paths]
texts = ["@/*.txt"]

[[rule]]
id       = "texts"
decision = "allow"
tool     = ["read", "write", "edit"]
path     = "texts"
"#;

/// What the model does with each part. The first two meet at one file.
fn scripts() -> String {
    let mut text = r#"WHEN: part-01
TOOL: marshal/read_file {"path":"/workspace/notes.txt"}
TELL: one has read
WAIT: two has written
TOOL: marshal/edit_file {"path":"/workspace/notes.txt","old_text":"start\n","new_text":"start\nby one\n"}
TOOL: marshal/read_file {"path":"/workspace/notes.txt"}
TOOL: marshal/edit_file {"path":"/workspace/notes.txt","old_text":"by two\n","new_text":"by two\nby one\n"}
TOOL: marshal/write_file {"path":"/workspace/part-01.txt","content":"01\n"}
SAY: done
WHEN: part-02
WAIT: one has read
TOOL: marshal/read_file {"path":"/workspace/notes.txt"}
TOOL: marshal/write_file {"path":"/workspace/notes.txt","content":"start\nby two\n"}
TELL: two has written
TOOL: marshal/write_file {"path":"/workspace/part-02.txt","content":"02\n"}
SAY: done
"#
    .to_owned();
    for part in 3..=PARTS {
        let _ = write!(
            text,
            "WHEN: part-{part:02}\nTOOL: marshal/write_file {{\"path\":\"/workspace/part-{part:02}.txt\",\"content\":\"{part:02}\\n\"}}\nSAY: done\n"
        );
    }
    text
}

fn drill(model: &Model) -> Drill {
    let mut text = String::from(
        "[workspace.main]\npath = \"project\"\n\n[policy.shared]\nfile = \"shared.toml\"\n",
    );
    for route in ["anthropic", "openai"] {
        let _ = write!(
            text,
            "\n[route.{route}]\nupstream = \"{}\"\nsecret = \"file:key\"\n",
            model.address
        );
    }
    for (name, _) in AGENTS {
        let dir = tools().join("five").join(name).display().to_string();
        let _ = write!(
            text,
            r#"
[role.{name}]
pool = "{name}"

[pool.{name}]
agent        = "{name}"
agent_dir    = {dir:?}
policy       = "shared"
engine_tools = ["read_file", "write_file", "edit_file"]
workspace    = {{ path = "project", mode = "rw" }}
timeouts     = {{ handshake = "4m" }}
env          = {{ set = {{ DRILL = "MARK" }} }}
"#
        );
    }
    let drill = Drill::new(&text);
    fs::write(drill.path("shared.toml"), POLICY).expect("a policy");
    fs::write(drill.path("key"), &model.key).expect("a key");
    let own = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("key"), own).expect("its mode");
    fs::write(drill.workspace().join("notes.txt"), "start\n").expect("a file");
    drill
}

/// No agent writes in a directory of root's.
fn give_workspace_to_nobody(drill: &Drill) {
    let status = Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(drill.workspace())
        .status();
    assert!(status.expect("chown").success());
}

/// The versions of a file, the newest first.
fn history(daemon: &Daemon, path: &str) -> Vec<Value> {
    let answer = daemon.get(&format!("/api/v1/workspaces/main/history/{path}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["items"].as_array().expect("versions").clone()
}

/// Who made a version.
fn author(version: &Value) -> (&str, &str) {
    let text = |at: &str| version["author"][at].as_str().unwrap_or_default();
    (text("kind"), text("name"))
}

/// All that is told of the work, up to its end.
fn follow_to_end(drill: &Drill, daemon: &Daemon, chat: &str) -> Vec<StreamEvent> {
    let mut stream = daemon.follow(chat, None);
    let since = Instant::now();
    let mut all: Vec<StreamEvent> = Vec::new();
    loop {
        let Some(events) = stream.next(Duration::from_secs(1)) else {
            let log = drill.log("stderr.log");
            assert!(since.elapsed() < PATIENCE, "no end: {all:#?}\n{log}");
            continue;
        };
        let is_end = matches!(events.name.as_str(), "done" | "error" | "stopped")
            && !events.data["reason"].is_null();
        all.push(events);
        if is_end {
            return all;
        }
    }
}

/// Who had each item, by its text: every item was begun once, and done once.
fn worked(events: &[StreamEvent]) -> BTreeMap<String, String> {
    let mut worked = BTreeMap::new();
    let mut done = BTreeSet::new();
    for reported in events
        .iter()
        .filter(|reported| reported.name == "plan_step")
    {
        let text = |key: &str| reported.data[key].as_str().unwrap_or_default().to_owned();
        match reported.data["status"].as_str() {
            Some("running") => {
                let before = worked.insert(text("content"), text("chat_id"));
                assert_eq!(before, None, "{reported:?}");
            }
            Some("done") => assert!(done.insert(text("content")), "{reported:?}"),
            Some("blocked") => panic!("{reported:?}"),
            _ => {}
        }
    }
    assert!(done.iter().eq(worked.keys()), "{done:?} {worked:?}");
    worked
}

#[test]
fn three_agents_work_one_plan_and_lose_nothing_of_each_other() {
    let _alone = alone();
    let model = Model::with_scripts(&scripts());
    let drill = drill(&model);
    let items = (1..=PARTS).fold(String::new(), |mut items, part| {
        let _ = writeln!(items, "- [ ] Write part-{part:02}");
        items
    });
    fs::write(drill.workspace().join("plan.md"), &items).expect("a plan");
    give_workspace_to_nobody(&drill);
    let mut daemon = Daemon::start(&drill);
    let made = daemon.post(
        "/api/v1/workspaces/main/chats",
        &json!({
            "goal": "Write everything.",
            "mode": "parallel_agents",
            "plan_id": "plan.md",
            "roles": AGENTS.map(|(name, _)| name),
        }),
    );
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.body["chat_id"].as_str().expect("an id").to_owned();
    let chat = format!("/api/v1/workspaces/main/chats/{id}");
    let events = follow_to_end(&drill, &daemon, &chat);
    let last = events.last().expect("an end");
    assert_eq!(
        last.name,
        "done",
        "{events:#?}\n{}",
        drill.log("stderr.log")
    );
    let plan = fs::read_to_string(drill.workspace().join("plan.md")).expect("the plan");
    assert_eq!(plan, items.replace("[ ]", "[x]"));
    let worked = worked(&events);
    assert_eq!(worked.len(), PARTS, "{worked:?}");
    let members: BTreeSet<&String> = worked.values().collect();
    assert_eq!(members.len(), AGENTS.len(), "{worked:?}");
    // Every file has one version, of the agent that had its item.
    for part in 1..=PARTS {
        let name = format!("part-{part:02}.txt");
        let text = fs::read_to_string(drill.workspace().join(&name)).expect("a part");
        assert_eq!(text, format!("{part:02}\n"));
        let versions = history(&daemon, &name);
        let whose = worked[&format!("Write part-{part:02}")].as_str();
        let by: Vec<(&str, &str)> = versions.iter().map(author).collect();
        assert_eq!(by, [("session", whose)], "{versions:#?}");
    }
    // Each tick is a version of the plan, by the work itself.
    let ticks = history(&daemon, "plan.md");
    let by_work = ticks
        .iter()
        .filter(|of| author(of) == ("session", id.as_str()));
    assert_eq!(by_work.count(), PARTS, "{ticks:#?}");
    conflict_was_resolved(&drill, &daemon, &worked);
    daemon.running.signal("TERM");
    daemon.running.wait(PATIENCE).expect("the daemon ends");
    assert!(drill.agents().is_empty());
}

/// The second of two writes from the same text was refused, and then made from what stood there.
fn conflict_was_resolved(drill: &Drill, daemon: &Daemon, worked: &BTreeMap<String, String>) {
    let text = fs::read_to_string(drill.workspace().join("notes.txt")).expect("notes");
    assert_eq!(text, "start\nby two\nby one\n");
    let (one, two) = (&worked["Write part-01"], &worked["Write part-02"]);
    assert_ne!(one, two);
    let versions = history(daemon, "notes.txt");
    let by: Vec<(&str, &str)> = versions.iter().map(author).collect();
    assert_eq!(by.len(), 3, "{versions:#?}");
    assert_eq!(by[0], ("session", one.as_str()), "{versions:#?}");
    assert_eq!(by[1], ("session", two.as_str()), "{versions:#?}");
    let members: BTreeSet<&String> = worked.values().collect();
    for member in members {
        let results = bench::events(drill, member, "tool_result");
        let stale = |of: &&Value| of.to_string().contains("stale:");
        let refused = results.iter().filter(stale).count();
        assert_eq!(refused, usize::from(member == one), "{results:#?}");
    }
}
