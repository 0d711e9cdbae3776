//! The example agent of the TypeScript SDK, and an echo agent on the Python SDK.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::agents::bench::{
    Model, PATIENCE, alone, assert_no_file_with_key, assert_without_key, inside, kill, oldest,
    result, run_output, start, tools, until_asleep, until_gone,
};
use crate::agents::table;
use crate::drill::{Drill, Ran, eventually};

/// A pool of this command, which sees the tools and the test's own agents.
fn pool(size: usize, command: &[&str], more: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drills/agents");
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
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drills/agents/echo.py");
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
fn agent_account(result: &Value) -> String {
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
        assert_eq!(
            agent_account(result),
            "initialize 1\nsession/new\nsession/prompt\n"
        );
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
        assert_eq!(agent_account(&results[0]), "initialize 1\n");
    }
}

/// The keys of a pool whose only way out is a route, which neither of these agents uses: its key
/// must be nowhere inside all the same.
fn routed(model: &Model, set: &str) -> (String, String) {
    let keys = format!(
        "network = \"routes\"\nroutes = [\"openai\"]\nsession = \"slot\"\n\
         restart = {{ base = \"10ms\", max = \"50ms\", on_crash = \"report\" }}\n\
         env = {{ set = {{ DRILL = \"MARK\"{set} }} }}\n"
    );
    let route = format!(
        "[route.openai]\nupstream = {:?}\nsecret = \"env:REHEARSAL_KEY\"\n",
        model.address
    );
    (keys, route)
}

/// A cancelled turn, then `kill -9` in the middle of a turn and the next prompt. `begun` waits until
/// a turn is under way and gives what lives inside.
fn ends_well(
    drill: &Drill,
    model: &Model,
    prompts: [&str; 3],
    begun: impl Fn(&str) -> BTreeSet<u32>,
) {
    let [cancel, killed, next] = prompts;
    let mut running = start(drill, &model.key, "first", &[("cancel", cancel)]);
    let inside = begun("first");
    assert_without_key(&inside, &model.key);
    let _stopping = drill.cancel_turns();
    let code = running.wait(PATIENCE);
    let all = run_output(drill, "first");
    assert_eq!(code, Some(1), "{all}");
    until_gone(&inside);
    assert_eq!(
        result(drill, "first", "cancel")["outcome"],
        "cancelled",
        "{all}"
    );

    let tasks = [("kill", killed), ("next", next)];
    let mut running = start(drill, &model.key, "second", &tasks);
    let inside = begun("second");
    kill(oldest(drill));
    until_gone(&inside);
    let _ = running.wait(PATIENCE);
    let all = run_output(drill, "second");
    assert_eq!(result(drill, "second", "kill")["outcome"], "lost", "{all}");
    let next = result(drill, "second", "next");
    let ended = next["outcome"].as_str().expect("an outcome");
    assert!(matches!(ended, "done" | "denied"), "{all}");
    assert!(drill.agents().is_empty());
    assert_no_file_with_key(&drill.state(), &model.key);
}

#[test]
fn the_typescript_example_is_cancelled_and_killed() {
    let _alone = alone();
    let model = Model::start();
    let agent = tools().join("node_modules/@agentclientprotocol/sdk/dist/examples/agent.js");
    let command = ["/usr/bin/node", agent.to_str().expect("a path")];
    let (keys, route) = routed(&model, "");
    let drill = Drill::new(&pool(1, &command, &format!("{keys}\n{route}")));
    let begun = |name: &str| {
        let calls = || {
            drill
                .run(&["--json", "events", "--kind", "tool_start"])
                .stdout
        };
        let wanted = if name == "first" { 1 } else { 2 };
        let sessions = || {
            let calls = calls();
            let of = |line: &str| serde_json::from_str::<Value>(line).expect("an event");
            let ids = calls.lines().map(|line| of(line)["session"].to_string());
            ids.collect::<BTreeSet<_>>().len()
        };
        eventually(PATIENCE, "a tool call", || {
            sessions() >= wanted && !drill.agents().is_empty()
        });
        inside(&drill.agents())
    };
    ends_well(&drill, &model, ["one", "two", "three"], begun);
    table::compare(
        "TypeScript SDK example",
        "| TypeScript SDK example | 0.13.1 | some: it asks before its one edit | one edit: asked, allowed, done | the same: asked, denied; it says that it skips it | cancelled, killed, next prompt served | none inside |",
    );
}

#[test]
fn an_echo_agent_on_the_python_sdk_is_cancelled_and_killed() {
    let _alone = alone();
    let model = Model::start();
    let python = tools().join("py/bin/python");
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drills/agents/echo.py");
    let command = [
        python.to_str().expect("a path"),
        agent.to_str().expect("a path"),
    ];
    let ledger = ", ECHO_LEDGER = \"/workspace/heard.txt\"";
    let (keys, route) = routed(&model, ledger);
    let drill = Drill::new(&pool(1, &command, &format!("{keys}\n{route}")));
    let begun =
        |name: &str| until_asleep(&drill, name, if name == "first" { "300" } else { "301" });
    let prompts = ["RUN: sleep 300", "RUN: sleep 301", "still there?"];
    ends_well(&drill, &model, prompts, begun);
    assert_eq!(result(&drill, "second", "next")["answer"], "still there?");
    table::compare(
        "Python SDK echo",
        "| Python SDK echo | 0.12.1 | never: it asks for nothing | a turn; a command: not asked, judged and counted | nothing to deny | cancelled, killed, next prompt served | none inside |",
    );
}
