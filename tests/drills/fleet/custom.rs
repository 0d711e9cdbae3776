//! A custom dialect with real children in a sandbox: the script agent, which speaks ScaiFlux, by the table
//! of `examples/dialects`, beside a pool with the dialect that is built in.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually, processes};

const PATIENCE: Duration = Duration::from_secs(60);

fn example(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/dialects");
    fs::read_to_string(dir.join(name)).expect("a table")
}

/// One pool with this dialect; `flags` are further words of its command.
fn pool(name: &str, dialect: &str, flags: &str) -> String {
    format!(
        r#"
[pool.{name}]
command   = ["marshal", "script-agent", "--dialect", "scaiflux", "--ledger", "ledger.txt"{flags}]
dialect   = {dialect}
permission_requests = "all"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "10ms", max = "50ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
    )
}

const TABLE: &str = "{ custom = \"table.toml\" }";

fn drill(pools: &str) -> Drill {
    let drill = Drill::new(pools);
    fs::write(drill.path("table.toml"), example("scaiflux.toml")).expect("a table");
    drill
}

/// Runs tasks (id, pool, prompt) to their end.
fn run(drill: &Drill, tasks: &[(&str, &str, &str)]) -> (Ran, Vec<Value>) {
    let lines: Vec<String> = tasks
        .iter()
        .map(|(id, pool, prompt)| {
            serde_json::json!({"id": id, "pool": pool, "prompt": prompt}).to_string()
        })
        .collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    let results = drill.results("results.jsonl");
    assert_eq!(results.len(), tasks.len(), "{}", ran.all());
    (ran, results)
}

fn of<'r>(results: &'r [Value], id: &str) -> &'r Value {
    let found = results.iter().find(|result| result["id"] == id);
    found.unwrap_or_else(|| panic!("no result of {id}: {results:?}"))
}

/// What the agent heard.
fn ledger(result: &Value) -> String {
    let copy = result["workspace"].as_str().expect("a copy");
    fs::read_to_string(format!("{copy}/ledger.txt")).expect("the ledger")
}

/// The bodies of a result's events of one kind.
fn events(drill: &Drill, result: &Value, kind: &str) -> Vec<Value> {
    let session = result["session"].as_str().expect("a session");
    let ran = drill.run(&["--json", "events", "--session", session]);
    let events = ran.stdout.lines();
    let events = events.map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events
        .filter(|event| event["kind"] == kind)
        .map(|event| event["body"].clone())
        .collect()
}

#[test]
fn by_its_table_an_agent_is_allowed_denied_and_survived_as_by_the_dialect_that_is_built_in() {
    let both = pool("own", "\"scaiflux\"", "") + &pool("table", TABLE, "");
    let drill = drill(&both);
    let steps = [
        ("allow", "write made.txt hi\nsay done"),
        ("deny", "run rm -rf /\nsay went on"),
        ("crash", "say before\ncrash kill"),
        ("next", "write after.txt hi"),
    ];
    let mut tasks = Vec::new();
    let ids: Vec<_> = steps
        .iter()
        .flat_map(|(id, _)| ["own", "table"].map(|pool| (pool, *id, format!("{pool}-{id}"))))
        .collect();
    for (pool, id, full) in &ids {
        let prompt = steps.iter().find(|(step, _)| step == id).expect("a step").1;
        tasks.push((full.as_str(), *pool, prompt));
    }
    let (ran, results) = run(&drill, &tasks);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    for (id, _) in steps {
        let own = of(&results, &format!("own-{id}"));
        let table = of(&results, &format!("table-{id}"));
        for key in ["outcome", "requests", "attempts"] {
            assert_eq!(table[key], own[key], "{id}: {key}: {}", ran.all());
        }
        for kind in ["tool_start", "tool_result", "ready"] {
            let (own, table) = (events(&drill, own, kind), events(&drill, table, kind));
            assert_eq!(table.len(), own.len(), "{id}: {kind}");
        }
        // How a text is cut into events is a matter of time.
        let text = |result: &Value| -> String {
            let pieces = events(&drill, result, "text");
            pieces
                .iter()
                .filter_map(|piece| piece["delta"].as_str())
                .collect()
        };
        assert_eq!(text(table), text(own), "{id}");
    }
    let allow = of(&results, "table-allow");
    assert_eq!(allow["outcome"], "done", "{}", ran.all());
    assert_eq!(allow["requests"]["allowed"], 1, "{}", ran.all());
    assert_eq!(of(&results, "table-crash")["outcome"], "lost");
    assert_eq!(of(&results, "table-next")["outcome"], "done");

    // The reason of the denial reached the agent, by the table's own words.
    let deny = of(&results, "table-deny");
    assert_eq!(deny["outcome"], "denied", "{}", ran.all());
    assert_eq!(deny["requests"]["denied"], 1, "{}", ran.all());
    let copy = Path::new(deny["workspace"].as_str().expect("a copy"));
    assert!(copy.join("README.md").exists());
    let reasons = |result: &Value| events(&drill, result, "tool_result")[0]["output"].clone();
    let reason = reasons(deny);
    assert_eq!(reason, reasons(of(&results, "own-deny")));
    assert_ne!(reason, "denied by remote controller");

    // On record is by which table it was judged.
    let facts: String = drill
        .database()
        .query_row(
            "SELECT facts FROM permission_requests WHERE facts LIKE '%\"table\"%' LIMIT 1",
            [],
            |row| row.get(0),
        )
        .expect("a request that was judged by a table");
    let facts: Value = serde_json::from_str(&facts).expect("facts");
    assert_eq!(facts["at"]["protocol"], "custom", "{facts}");
    let digest = facts["at"]["table"].as_str().expect("a digest");
    let check = drill.run(&["config", "check"]);
    assert!(check.stdout.contains(&digest[..12]), "{}", check.all());
    assert!(check.stdout.contains("table.toml"), "{}", check.all());
    drill.assert_dense();
}

#[test]
fn by_its_table_an_agent_is_cancelled_and_refused_for_its_version() {
    let pools = pool("table", TABLE, "") + &pool("odd", TABLE, ", \"--protocol\", \"2\"");
    let drill = drill(&pools);
    let (ran, results) = run(&drill, &[("gate", "odd", "say never")]);
    let gate = of(&results, "gate");
    assert_eq!(gate["outcome"], "failed", "{}", ran.all());
    assert_eq!(gate["attempts"], 0, "no prompt was sent: {}", ran.all());
    let detail = gate["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("protocol version 2") && detail.contains("speaks version 1"),
        "{detail}"
    );

    let line = serde_json::json!({"id": "cancel", "pool": "table", "prompt": "unasked sleep 300"});
    fs::write(drill.path("tasks.jsonl"), line.to_string()).expect("tasks");
    let mut running = drill.start(&["run", "--results", "again.jsonl", "tasks.jsonl"]);
    eventually(PATIENCE, "the command runs", || {
        let marked = format!("DRILL={}", drill.mark);
        let asleep = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line == b"sleep\x00300\x00"
        };
        let all = processes(|environ| environ.contains(&marked));
        all.iter().any(asleep)
    });
    let _stopping = drill.cancel_turns();
    running.wait(PATIENCE);
    let said = format!("{}\n{}", drill.log("stdout.log"), drill.log("stderr.log"));
    let results = drill.results("again.jsonl");
    let cancel = of(&results, "cancel");
    assert_eq!(cancel["outcome"], "cancelled", "{said}");
    assert!(ledger(cancel).contains("\"interrupt\""), "{said}");
    eventually(PATIENCE, "nothing is left", || drill.agents().is_empty());
}

#[test]
fn a_table_that_is_wrong_or_not_to_be_trusted_is_refused_with_its_place() {
    let drill = drill(&pool("table", TABLE, ""));
    let refused = |why: &[&str]| {
        let ran = drill.run(&["config", "check"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        for why in why {
            assert!(ran.stderr.contains(why), "{why}: {}", ran.all());
        }
    };
    let good = example("scaiflux.toml");
    let bad = good.replace("event = \"ready\"", "event = \"redy\"");
    fs::write(drill.path("table.toml"), bad).expect("a table");
    refused(&["table.toml", "on[0].event", "did you mean ready?"]);

    // An agent that never asks is none that asks for everything.
    fs::write(drill.path("table.toml"), example("pi.toml")).expect("a table");
    refused(&[
        "pool.table.permission_requests",
        "the dialect definition pi-rpc has no [permission]",
    ]);

    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(drill.path("table.toml"), mode).expect("a mode");
    };
    fs::write(drill.path("table.toml"), &good).expect("a table");
    mode(0o666);
    refused(&["pool.table.dialect.custom", "table.toml"]);
    mode(0o644);
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());

    // A file that was only found says nothing about protocols.
    let found = std::process::Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["config", "check"])
        .current_dir(drill.config().parent().expect("a directory"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", drill.path("."))
        .output()
        .expect("marshal starts");
    let said = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.status.code(), Some(2), "{said}");
    assert!(said.contains("may not use a custom dialect"), "{said}");

    fs::remove_file(drill.path("table.toml")).expect("removed");
    refused(&["pool.table.dialect.custom", "cannot read"]);
}
