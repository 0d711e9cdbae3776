//! Agents that other people wrote, from npm and PyPI, through `run`, in the sandbox.
//!
//! `tests/run` installs them below `target/tools/agents`, with Debian's node and python3 of `/usr`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::drill::{Drill, Ran};

/// Where the agents are.
fn tools() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/agents");
    assert!(
        tools.join("ready").exists(),
        "the agents of npm and PyPI are not installed in {}: run tests/run needs",
        tools.display()
    );
    tools
}

/// A pool of this command, which sees the tools and the test's own agents.
fn pool(size: usize, command: &[&str], more: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents");
    format!(
        r#"
[sandbox.with-tools]
ro_bind = ["/usr", {:?}, {:?}]

[pool.real]
size      = {size}
command   = {command:?}
dialect   = "acp"
sandbox   = "with-tools"
workspace = {{ path = "project", mode = "copy" }}
timeouts  = {{ handshake = "60s" }}
{more}
"#,
        tools().display().to_string(),
        tests.display().to_string()
    )
}

fn run(drill: &Drill, prompts: &[&str]) -> (Ran, Vec<Value>) {
    let mut args = vec!["run", "--results", "results.jsonl"];
    args.extend(prompts);
    let ran = drill.run(&args);
    let results = drill.results("results.jsonl");
    assert_eq!(results.len(), prompts.len(), "{}", ran.all());
    (ran, results)
}

fn typescript(policy: &str, more: &str) -> Drill {
    let agent = tools().join("node_modules/@agentclientprotocol/sdk/dist/examples/agent.js");
    let command = ["/usr/bin/node", agent.to_str().expect("a path")];
    let keys = format!("policy = \"{policy}\"\nenv = {{ set = {{ DRILL = \"MARK\" }} }}\n{more}");
    Drill::new(&pool(1, &command, &keys))
}

#[test]
fn the_example_agent_of_the_typescript_sdk_is_told_no_where_the_policy_says_no() {
    let drill = typescript("developer", "");
    let (ran, results) = run(&drill, &["make the project better"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(results[0]["outcome"], "denied", "{}", ran.all());
    assert_eq!(results[0]["requests"]["denied"], 1);
    let answer = results[0]["answer"].as_str().expect("an answer");
    assert!(answer.contains("skip the configuration update"), "{answer}");
    drill.assert_dense();
    assert!(drill.agents().is_empty());
}

#[test]
fn the_example_agent_of_the_typescript_sdk_completes_its_task_where_the_policy_says_yes() {
    let drill = typescript("lenient", "[policy.lenient]\nfile = \"lenient.toml\"");
    let policy = r#"
schema  = 1
name    = "lenient"
extends = ["builtin:guard"]
default = "deny"

[[rule]]
id       = "configuration"
decision = "allow"
tool     = "write"
path     = "configuration"

[paths]
configuration = ["/home/user/project/config.json"]
"#;
    fs::write(drill.path("lenient.toml"), policy).expect("lenient.toml");
    let (ran, results) = run(&drill, &["make the project better"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    assert_eq!(results[0]["requests"]["allowed"], 1);
    let answer = results[0]["answer"].as_str().expect("an answer");
    assert!(answer.contains("successfully updated"), "{answer}");
}

fn python(size: usize, version: Option<u32>) -> Drill {
    let python = tools().join("py/bin/python");
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/echo.py");
    let command = [
        python.to_str().expect("a path"),
        agent.to_str().expect("a path"),
    ];
    let version = version.map_or_else(String::new, |version| {
        format!(", ECHO_VERSION = \"{version}\"")
    });
    Drill::new(&pool(
        size,
        &command,
        &format!(
            "env = {{ set = {{ DRILL = \"MARK\", ECHO_LEDGER = \"/workspace/heard.txt\"{version} }} }}"
        ),
    ))
}

/// What reached the agent of a result: its own account, kept in its copy.
fn heard(result: &Value) -> String {
    let copy = result["workspace"].as_str().expect("a copy");
    fs::read_to_string(format!("{copy}/heard.txt")).expect("the agent's account")
}

#[test]
fn an_echo_agent_on_the_python_sdk_completes_its_tasks() {
    let drill = python(2, None);
    let prompts = ["first words", "second words", "third words"];
    let (ran, results) = run(&drill, &prompts);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for result in &results {
        assert_eq!(result["outcome"], "done", "{}", ran.all());
        let answer = result["answer"].as_str().expect("an answer");
        assert!(prompts.contains(&answer), "{answer}");
        assert_eq!(heard(result), "initialize 1\nsession/new\nsession/prompt\n");
    }
    drill.assert_dense();
    assert!(drill.agents().is_empty());
}

#[test]
fn an_agent_that_answers_any_number_is_refused_before_a_session_if_it_is_not_ours() {
    for version in [0, 2, 999] {
        let drill = python(1, Some(version));
        let (ran, results) = run(&drill, &["never"]);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert_eq!(results[0]["outcome"], "failed", "{}", ran.all());
        assert_eq!(results[0]["attempts"], 0);
        let detail = results[0]["detail"].as_str().expect("a detail");
        let both = [format!("version {version}"), "version 1".to_owned()];
        assert!(both.iter().all(|of| detail.contains(of)), "{detail}");
        assert!(ran.stderr.contains("parked"), "{}", ran.all());
        assert_eq!(heard(&results[0]), "initialize 1\n");
    }
}
