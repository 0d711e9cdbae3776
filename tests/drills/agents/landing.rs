//! Agents that other people wrote, whose work lands on one branch.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::agents::bench::{Model, alone, tools};
use crate::agents::five::{CODEX, GEMINI, OPENCODE};
use crate::agents::unattended::git;
use crate::drill::Drill;

const AGENTS: [&str; 4] = ["claude-code", CODEX.name, OPENCODE.name, GEMINI.name];

#[test]
fn the_work_of_four_agents_lands_on_one_branch() {
    let _alone = alone();
    let model = Model::start();
    let mut text = String::new();
    for route in ["anthropic", "openai", "gemini"] {
        let _ = write!(
            text,
            "\n[route.{route}]\nupstream = \"{}\"\nsecret = \"file:key\"\n",
            model.address
        );
    }
    let mut lines = String::new();
    for name in AGENTS {
        let dir = tools().join("five").join(name).display().to_string();
        let _ = write!(
            text,
            r#"
[pool.{name}]
agent     = "{name}"
agent_dir = {dir:?}
policy    = "autonomous"
workspace = {{ path = "project", mode = "worktree" }}
check     = ["sh", "-c", "test $(ls made-* | wc -l) -le 4"]
timeouts  = {{ handshake = "4m" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
        );
        let prompt = format!(
            "RUN: touch made-{name} && git add . && git commit -qm made-{name}\nSAY: made it"
        );
        let task = json!({"id": name, "pool": name, "prompt": prompt, "land": "landing"});
        let _ = writeln!(lines, "{task}");
    }
    let drill = Drill::new(&text);
    fs::write(drill.path("key"), &model.key).expect("a key");
    let own = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("key"), own).expect("its mode");
    let top = drill.workspace();
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "."]);
    git(&top, &["commit", "-qm", "first"]);
    git(&top, &["branch", "landing"]);
    fs::write(drill.path("tasks.jsonl"), lines).expect("tasks");
    let ran = drill.run(&["run", "--jobs", "2", "--results", "r.jsonl", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for result in drill.results("r.jsonl") {
        assert_eq!(result["landed"]["branch"], "landing", "{result}");
    }
    let names = git(&top, &["ls-tree", "--name-only", "landing"]);
    for name in AGENTS {
        assert!(names.contains(&format!("made-{name}")), "{names}");
    }
    let log = git(&top, &["log", "--format=%s", "landing"]);
    assert_eq!(log.lines().count(), 1 + AGENTS.len(), "{log}");
}
