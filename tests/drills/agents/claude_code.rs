//! Claude Code itself, by its stream-json: the life of the five agents with a preset, its session
//! taken up after a kill, and a version that does not say which it is.

use std::fs;

use serde_json::Value;

use crate::agents::bench::{
    Model, PATIENCE, alone, assert_no_file_with_key, assert_without_key, events, in_copy, kill,
    oldest, result, run_output, start, tools, until_asleep, until_gone,
};
use crate::agents::five::POLICY;
use crate::agents::table;
use crate::drill::Drill;

/// The preset.
const NAME: &str = "claude-code";
/// It refuses a plain `sleep` by itself.
const WAIT: &str = "RUN: sh wait.sh\nSAY: never";
const ALLOWS_WAIT: &str = r#"
[[rule]]
id       = "wait"
decision = "allow"
tool     = "shell"
exact    = ["sh wait.sh"]

[[rule]]
id       = "look"
decision = "allow"
tool     = "shell"
argv     = ["pwd"]
"#;

/// A supervisor with one slot of it, whose only way out leads to the model.
fn drill(model: &Model, more: &str) -> Drill {
    let dir = tools().join("five").join(NAME);
    let drill = Drill::new(&format!(
        r#"
[route.anthropic]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"

[pool.real]
agent     = "{NAME}"
agent_dir = {:?}
policy    = "rehearsal"
session   = "slot"
workspace = {{ path = "project", mode = "copy" }}
timeouts  = {{ handshake = "4m", cancel = "1m" }}
restart   = {{ base = "10ms", max = "50ms"{more} }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[policy.rehearsal]
file = "rehearsal.toml"
"#,
        model.address,
        dir.display().to_string(),
    ));
    let policy = format!("{POLICY}{ALLOWS_WAIT}");
    fs::write(drill.path("rehearsal.toml"), policy).expect("a policy");
    fs::write(drill.workspace().join("wait.sh"), "sleep 300\n").expect("what waits");
    drill
}

/// The bodies of the turns' ends of a session.
fn ends(drill: &Drill, session: &str) -> Vec<Value> {
    events(drill, session, "turn_ended")
}

#[test]
fn claude_code_works_is_refused_and_interrupted() {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(&model, "");
    let mut running = start(
        &drill,
        &model.key,
        "first",
        &[
            ("touch", "RUN: touch made.txt\nSAY: bye"),
            ("deny", "RUN: mkdir denied\nSAY: bye"),
            ("look", "RUN: pwd\nSAY: bye"),
            ("cancel", WAIT),
        ],
    );
    let inside = until_asleep(&drill, "first", "300");
    assert_without_key(&inside, &model.key);
    let _stopping = drill.cancel_turns();
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "first");
    assert_eq!(code, Some(1), "{all}");
    until_gone(&inside);
    assert!(drill.agents().is_empty());

    let touch = result(&drill, "first", "touch");
    assert_eq!(touch["outcome"], "done", "{all}");
    assert!(in_copy(&touch, "made.txt").exists(), "{all}");
    assert_eq!(touch["requests"]["allowed"], 1, "{all}");
    let session = touch["session"].as_str().expect("a session");

    let deny = result(&drill, "first", "deny");
    assert_eq!(deny["outcome"], "denied", "{all}");
    assert!(!in_copy(&deny, "denied").exists());
    // The model heard why: the call's result is the denial's reason, word for word.
    let reasons = events(&drill, session, "permission_decided");
    let denial = reasons.iter().find(|verdict| verdict["decision"] == "deny");
    let reason = denial.expect("a denial")["reason"].as_str();
    let reason = reason.expect("a reason");
    assert!(!reason.is_empty());
    let results = events(&drill, session, "tool_result");
    let received = |of: &Value| of["output"] == reason && of["is_error"] == true;
    assert!(results.iter().any(received), "{reason}: {results:?}");

    // What it would run unasked is asked for, because our hook says so.
    let look = result(&drill, "first", "look");
    assert_eq!(look["outcome"], "done", "{all}");
    assert_eq!(look["requests"]["allowed"], 1, "{all}");
    let unasked = events(&drill, session, "tool_call_unrequested");
    assert!(unasked.is_empty(), "{unasked:?}");

    assert_eq!(
        result(&drill, "first", "cancel")["outcome"],
        "cancelled",
        "{all}"
    );
    let ends = ends(&drill, session);
    let usage = |end: &Value| end["usage"]["input"].as_u64().unwrap_or(0) > 0;
    assert!(ends.len() == 4 && ends.iter().all(usage), "{ends:?}");
    let context = events(&drill, session, "context_used");
    let costs = context
        .iter()
        .filter(|used| used["cost"]["amount"].as_f64() > Some(0.0));
    assert!(costs.count() >= 3, "{context:?}");
    let ready = events(&drill, session, "ready");
    assert_eq!(ready[0]["version"], "2.1.330", "{ready:?}");
    assert_no_file_with_key(&drill.state(), &model.key);
    drill.assert_dense();

    let reported = table::agent_row(NAME);
    assert_eq!(reported["state"], "installed", "{reported}");
    let row = format!(
        "| {NAME} | {} | {}: {} | `touch`: asked, allowed | `mkdir denied`: asked, denied, no effect; the call's result is the reason | cancelled, killed, next prompt served in the same session | none inside |",
        reported["version"].as_str().unwrap_or("?"),
        reported["permission_requests"].as_str().unwrap_or("?"),
        reported["evidence"].as_str().unwrap_or("?"),
    );
    table::compare(NAME, &row);
}

#[test]
fn claude_code_goes_on_with_its_session_after_a_kill() {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(&model, ", on_crash = \"resume\"");
    let mut running = start(
        &drill,
        &model.key,
        "second",
        &[
            ("before", "SAY: one"),
            ("kill", WAIT),
            ("after", "SAY: two"),
        ],
    );
    let inside = until_asleep(&drill, "second", "300");
    kill(oldest(&drill));
    until_gone(&inside);
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "second");
    assert_eq!(code, Some(1), "{all}");
    let outcome = |id: &str| result(&drill, "second", id)["outcome"].clone();
    assert_eq!(outcome("before"), "done", "{all}");
    assert_eq!(outcome("kill"), "lost", "{all}");
    assert_eq!(outcome("after"), "done", "{all}");

    let before = result(&drill, "second", "before");
    let after = result(&drill, "second", "after");
    assert_eq!(before["session"], after["session"], "{all}");
    let session = before["session"].as_str().expect("a session");
    let ready = events(&drill, session, "ready");
    assert_eq!(ready.len(), 2, "{ready:?}");
    assert_eq!(ready[0]["session"], ready[1]["session"], "{ready:?}");
    let resumed = events(&drill, session, "session_resumed");
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert_eq!(resumed[0]["how"], "--resume");
    // The model was told what was said before: the same request is longer by that.
    let ends = ends(&drill, session);
    let read = |at: usize| ends[at]["usage"]["input"].as_u64().expect("tokens");
    assert!(read(ends.len() - 1) > read(0), "{ends:?}");
    assert!(drill.agents().is_empty());
    drill.assert_dense();
}

/// Settings of a workspace whose hooks would let everything run, and show that they ran.
const HOOKS: &str = r#"{
  "permissions": {"allow": ["Bash"]},
  "hooks": {
    "SessionStart": [{"matcher": "", "hooks": [{"type": "command", "command": "touch hook-ran"}]}],
    "PermissionRequest": [{"matcher": "", "hooks": [{"type": "command",
      "command": "touch hook-ran; echo '{\"hookSpecificOutput\":{\"hookEventName\":\"PermissionRequest\",\"decision\":{\"behavior\":\"allow\"}}}'"}]}]
  }
}"#;

#[test]
fn hooks_of_a_workspace_answer_nothing_in_the_supervisors_place() {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(&model, "");
    let settings = drill.workspace().join(".claude");
    fs::create_dir(&settings).expect("a directory");
    fs::write(settings.join("settings.json"), HOOKS).expect("settings");
    let mut running = start(
        &drill,
        &model.key,
        "hooks",
        &[
            ("touch", "RUN: touch made.txt\nSAY: bye"),
            ("deny", "RUN: mkdir denied\nSAY: bye"),
        ],
    );
    let _ = running.wait(PATIENCE);
    let all = run_output(&drill, "hooks");
    let (touch, deny) = (
        result(&drill, "hooks", "touch"),
        result(&drill, "hooks", "deny"),
    );
    assert_eq!(touch["outcome"], "done", "{all}");
    assert_eq!(touch["requests"]["allowed"], 1, "{all}");
    assert!(in_copy(&touch, "made.txt").exists(), "{all}");
    assert!(in_copy(&touch, ".claude/settings.json").exists(), "{all}");
    assert_eq!(deny["outcome"], "denied", "{all}");
    assert!(!in_copy(&deny, "denied").exists(), "{all}");
    assert!(!in_copy(&deny, "hook-ran").exists(), "a hook ran: {all}");
    let session = deny["session"].as_str().expect("a session");
    let unasked = events(&drill, session, "tool_call_unrequested");
    assert!(unasked.is_empty(), "{unasked:?}");
}

/// One of the first versions of major 2.1 names its version only after a prompt.
#[test]
fn a_version_that_does_not_say_which_it_is_is_refused_before_a_prompt() {
    let _alone = alone();
    let modules = tools().join("five/claude/node_modules");
    let program = modules.join("@anthropic-ai/claude-agent-sdk/cli.js");
    assert!(program.is_file(), "no {}", program.display());
    let drill = Drill::new(&format!(
        r#"
[sandbox.node]
ro_bind = ["/usr", {:?}]

[pool.older]
command   = ["/usr/bin/node", {:?}]
dialect   = "claude"
sandbox   = "node"
workspace = {{ path = "project", mode = "copy" }}
timeouts  = {{ handshake = "4m", control = "4m" }}
env       = {{ set = {{ DRILL = "MARK", ANTHROPIC_API_KEY = "none", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = "1" }} }}
"#,
        modules.display().to_string(),
        program.display().to_string(),
    ));
    let mut running = start(
        &drill,
        "unused",
        "older",
        &[("one", "SAY: one"), ("two", "SAY: two")],
    );
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "older");
    assert_eq!(code, Some(1), "{all}");
    let one = result(&drill, "older", "one");
    assert_eq!(one["outcome"], "failed", "{all}");
    assert_eq!(one["attempts"], 0, "{all}");
    let detail = one["detail"].as_str().expect("a detail");
    assert!(detail.contains("version none"), "their version: {detail}");
    assert!(detail.contains("2 of Claude Code"), "our version: {detail}");
    assert_eq!(
        result(&drill, "older", "two")["outcome"],
        "skipped",
        "{all}"
    );
}
