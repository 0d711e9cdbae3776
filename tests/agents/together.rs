//! Three agents that other people wrote work in one workspace at the same time, as chats of one daemon,
//! each driven by the rehearsal model in its provider's form. Each file that they write has versions,
//! and two of them write the same file from the same text: the later one is refused, reads again, and
//! writes what both wanted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Model, PATIENCE, alone, tools};
use crate::chat_client::{Daemon, Sse, Told};
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
        text.push_str(&format!(
            "WHEN: part-{part:02}\nTOOL: marshal/write_file {{\"path\":\"/workspace/part-{part:02}.txt\",\"content\":\"{part:02}\\n\"}}\nSAY: done\n"
        ));
    }
    text
}

fn drill(model: &Model) -> Drill {
    let mut text = String::from(
        "[workspace.main]\npath = \"project\"\n\n[policy.shared]\nfile = \"shared.toml\"\n",
    );
    for route in ["anthropic", "openai"] {
        text.push_str(&format!(
            "\n[route.{route}]\nupstream = \"{}\"\nsecret = \"file:key\"\n",
            model.address
        ));
    }
    for (name, _) in AGENTS {
        let dir = tools().join("five").join(name).display().to_string();
        text.push_str(&format!(
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
        ));
    }
    let drill = Drill::new(&text);
    fs::write(drill.path("shared.toml"), POLICY).expect("a policy");
    fs::write(drill.path("key"), &model.key).expect("a key");
    let own = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("key"), own).expect("its mode");
    fs::write(drill.workspace().join("notes.txt"), "start\n").expect("a file");
    drill
}

fn about(part: usize) -> String {
    format!("Write part-{part:02}.")
}

/// A chat of one agent, and its stream.
struct Member {
    role: &'static str,
    path: String,
    events: Sse,
    told: Vec<Told>,
    is_free: bool,
}

impl Member {
    /// A chat whose first message is about this part.
    fn of(daemon: &Daemon, role: &'static str, part: usize) -> Self {
        let body = json!({"role": role, "goal": about(part)});
        let made = daemon.post("/api/v1/workspaces/main/chats", &body);
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.body["chat_id"].as_str().expect("an id");
        let path = format!("/api/v1/workspaces/main/chats/{id}");
        Self {
            role,
            events: daemon.follow(&path, None),
            path,
            told: Vec::new(),
            is_free: false,
        }
    }

    /// Reads what comes for a moment.
    fn look(&mut self) {
        while let Some(told) = self.events.next(Duration::from_millis(10)) {
            self.is_free |= told.name == "done";
            assert!(told.name != "error", "{}: {told:?}", self.role);
            self.told.push(told);
        }
    }
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

#[test]
fn three_agents_share_a_workspace_and_lose_nothing_of_each_other() {
    let _alone = alone();
    let model = Model::with_scripts(&scripts());
    let drill = drill(&model);
    let mut daemon = Daemon::start(&drill);
    let mut parts = 1..=PARTS;
    let mut whose = BTreeMap::new();
    let mut members = Vec::new();
    for ((name, _), part) in AGENTS.iter().zip(parts.by_ref()) {
        members.push(Member::of(&daemon, name, part));
        whose.insert(part, *name);
    }
    let since = Instant::now();
    while whose.len() < PARTS || members.iter().any(|member| !member.is_free) {
        assert!(since.elapsed() < PATIENCE, "{}", drill.log("stderr.log"));
        for member in &mut members {
            member.look();
            if member.is_free
                && let Some(part) = parts.next()
            {
                member.is_free = false;
                daemon.say(&member.path, &about(part));
                whose.insert(part, member.role);
            }
        }
    }
    // Every file has one version, of the agent that was asked for it.
    let mut names = BTreeMap::new();
    for (part, role) in &whose {
        let name = format!("part-{part:02}.txt");
        let text = fs::read_to_string(drill.workspace().join(&name)).expect("a part");
        assert_eq!(text, format!("{part:02}\n"));
        let versions = history(&daemon, &name);
        assert_eq!(versions.len(), 1, "{versions:#?}");
        let (kind, author) = author(&versions[0]);
        assert_eq!(kind, "agent", "{versions:#?}");
        let known = names.entry(*role).or_insert_with(|| author.to_owned());
        assert_eq!(known, author, "{versions:#?}");
    }
    let mut apart: Vec<&String> = names.values().collect();
    apart.dedup();
    assert_eq!(apart.len(), AGENTS.len(), "{names:?}");
    conflict_was_resolved(&drill, &daemon, &members, &names);
    daemon.running.signal("TERM");
    daemon.running.wait(PATIENCE).expect("the daemon ends");
    assert!(drill.agents().is_empty());
}

/// The second of two writes from the same text was refused, and then made from what stood there.
fn conflict_was_resolved(
    drill: &Drill,
    daemon: &Daemon,
    members: &[Member],
    names: &BTreeMap<&str, String>,
) {
    let text = fs::read_to_string(drill.workspace().join("notes.txt")).expect("notes");
    assert_eq!(text, "start\nby two\nby one\n");
    let versions = history(daemon, "notes.txt");
    let by: Vec<(&str, &str)> = versions.iter().map(author).collect();
    assert_eq!(by.len(), 3, "{versions:#?}");
    assert_eq!(
        by[0],
        ("agent", names[AGENTS[0].0].as_str()),
        "{versions:#?}"
    );
    assert_eq!(
        by[1],
        ("agent", names[AGENTS[1].0].as_str()),
        "{versions:#?}"
    );
    let refused = |told: &&Told| {
        told.name == "observation"
            && told.data["success"] == false
            && told.data["output"].to_string().contains("stale:")
    };
    let refusals = members
        .iter()
        .map(|member| member.told.iter().filter(refused).count());
    assert_eq!(refusals.collect::<Vec<_>>(), [1, 0, 0]);
}
