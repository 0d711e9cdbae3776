//! The supervisor's own tools with agents that other people wrote: the model calls them, each agent
//! under a name of its own, and what came of it is read from the disk, the journal and what the model
//! was told. What was seen is a table in `docs/engine-tools.md`, compared with every run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::agents::bench::{
    Model, PATIENCE, alone, events, in_copy, result, run_output, start, tools,
};
use crate::agents::codex::SERVER;
use crate::agents::five::{CLAUDE, CODEX, GEMINI, HERMES, Kind, OPENCODE, Refusal};
use crate::agents::table;
use crate::drill::Drill;

/// Everything is allowed that the guard does not forbid, but one file and one state of a step.
const POLICY: &str = r#"
schema  = 1
name    = "rehearsal"
extends = ["builtin:guard"]
default = "deny"

[paths]
kept  = ["@/secret.txt"]
given = ["@/*.txt"]

[[rule]]
id       = "files"
decision = "allow"
tool     = ["read", "write", "edit"]
path     = "given"

[[rule]]
id       = "no-secrets"
decision = "deny"
tool     = ["write", "edit"]
path     = "kept"
reason   = "secrets are kept elsewhere"

[[rule]]
id       = "no-blocks"
decision = "deny"
tool     = "mcp"
server   = "marshal"
name     = "plan_step"
args     = [{ at = "/status", is = ["blocked"] }]
reason   = "nothing is blocked here"
"#;

const SCRIPT: &str = r#"TOOL: marshal/write_file {"path":"/workspace/a.txt","content":"one two\n"}
TOOL: marshal/edit_file {"path":"/workspace/a.txt","old_text":"two","new_text":"three"}
TOOL: marshal/read_file {"path":"/workspace/a.txt"}
TOOL: marshal/write_file {"path":"/workspace/secret.txt","content":"x"}
TOOL: marshal/plan_step {"step":"all of it","status":"blocked"}
TOOL: marshal/plan_step {"step":"all of it","status":"done"}
SAY: bye"#;

/// An agent, and how it takes the tools.
struct Taker {
    kind: &'static Kind,
    /// Whether it asks for a permission before it calls one.
    asks: bool,
    /// Whether it shows a call that was denied as one that was done.
    hides: bool,
    /// What it needs beside its preset.
    needs: &'static str,
    more: &'static str,
}

fn drill(taker: &Taker, model: &Model) -> Drill {
    let Kind { name, route, .. } = taker.kind;
    let drill = Drill::new(&format!(
        r#"
[route.{route}]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"

[pool.real]
agent        = "{name}"
agent_dir    = {:?}
policy       = "rehearsal"
engine_tools = "all"
workspace    = {{ path = "project", mode = "copy" }}
timeouts     = {{ handshake = "4m" }}
env          = {{ set = {{ DRILL = "MARK"{} }} }}

[policy.rehearsal]
file = "rehearsal.toml"
"#,
        model.address,
        tools().join("five").join(name).display().to_string(),
        taker.more,
    ));
    fs::write(drill.path("rehearsal.toml"), POLICY).expect("a policy");
    drill
}

/// The events of a session, in their order.
fn all(drill: &Drill, session: &str) -> Vec<Value> {
    let ran = drill.run(&["--json", "events", "--session", session]);
    let lines = ran.stdout.lines();
    let read = |line: &str| serde_json::from_str::<Value>(line).expect("an event");
    lines.map(read).collect()
}

/// Where an event stands for which this holds, from a place on.
#[track_caller]
fn place(events: &[Value], from: usize, what: &str, is_it: impl Fn(&str, &Value) -> bool) -> usize {
    let mut places = events.iter().enumerate().skip(from);
    let found = places.find(|(_, event)| {
        let kind = event["kind"].as_str().unwrap_or_default();
        is_it(kind, &event["body"])
    });
    let Some((at, _)) = found else {
        panic!("no {what} from {from} on: {events:#?}");
    };
    at
}

fn uses_our_tools(taker: &Taker) {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(taker, &model);
    let mut running = start(&drill, &model.key, "tools", &[("one", SCRIPT)]);
    let _ = running.wait(PATIENCE);
    let output = run_output(&drill, "tools");
    let result = result(&drill, "tools", "one");
    let text = fs::read_to_string(in_copy(&result, "a.txt"));
    assert_eq!(text.ok().as_deref(), Some("one three\n"), "{output}");
    assert!(!in_copy(&result, "secret.txt").exists(), "{output}");
    let session = result["session"].as_str().expect("a session");
    in_their_order(&all(&drill, session));
    denied_with_reasons(taker, &drill, session);
    asked_as_known(taker, &drill, session);
    check(taker);
}

/// Each call was asked for, decided and done before the next one came, which the model asked for when it
/// had heard what became of this one.
fn in_their_order(events: &[Value]) {
    let deltas = events.iter().filter(|event| event["kind"] == "text");
    let received: String = deltas
        .filter_map(|event| event["body"]["delta"].as_str())
        .collect();
    let mut from = 0;
    for (tool, decision, done, said) in [
        (
            "marshal/write_file",
            "allow",
            Some("file_updated"),
            "was written: 8 bytes",
        ),
        (
            "marshal/edit_file",
            "allow",
            Some("file_updated"),
            "was changed",
        ),
        ("marshal/read_file", "allow", None, "one three"),
        (
            "marshal/write_file",
            "deny",
            None,
            "secrets are kept elsewhere",
        ),
        ("marshal/plan_step", "deny", None, "nothing is blocked here"),
        (
            "marshal/plan_step",
            "allow",
            Some("plan_step"),
            "noted as done",
        ),
    ] {
        // The next call of any tool of ours is this one.
        let requested = place(events, from, tool, |kind, body| {
            let name = body["tool"].as_str().unwrap_or_default();
            kind == "permission_requested" && name.starts_with("marshal/")
        });
        let body = &events[requested]["body"];
        assert_eq!(body["tool"], tool, "{events:#?}");
        let decided = place(events, requested, decision, |kind, of| {
            kind == "permission_decided" && of["request"] == body["id"]
        });
        assert_eq!(events[decided]["body"]["decision"], decision, "{events:#?}");
        let what = done.unwrap_or("permission_decided");
        let at = place(events, decided, what, |kind, _| kind == what);
        let between = &events[requested + 1..=at];
        assert!(
            between.iter().all(|event| event["body"]["key"]
                .as_str()
                .is_none_or(|key| !key.starts_with("marshal:"))),
            "{tool}: {events:#?}"
        );
        assert!(
            received.contains(said),
            "the model never heard {said:?}: {received}"
        );
        from = at + 1;
    }
}

fn denied_with_reasons(taker: &Taker, drill: &Drill, session: &str) {
    let results = events(drill, session, "tool_result");
    assert_eq!(results.len(), 6, "{results:#?}");
    let reasons = ["secrets are kept elsewhere", "nothing is blocked here"];
    for reason in reasons {
        let with_it = |of: &&Value| of.to_string().contains(reason);
        assert!(results.iter().any(|of| with_it(&of)), "{results:#?}");
    }
    // Each of them came here: none ran that nobody asked for. What was denied and is shown as done
    // is not believed.
    let unasked = events(drill, session, "tool_call_unrequested");
    assert_eq!(
        unasked.len(),
        if taker.hides { 2 } else { 0 },
        "{unasked:#?}"
    );
    let written = events(drill, session, "file_updated");
    assert_eq!(written.len(), 2, "{written:#?}");
}

/// An agent that asks first gets its permission, as the call is judged when it comes.
fn asked_as_known(taker: &Taker, drill: &Drill, session: &str) {
    let decided = events(drill, session, "permission_decided");
    let given = decided
        .iter()
        .filter(|body| body["rules"][0] == "engine_tools.announced");
    assert_eq!(
        given.count(),
        if taker.asks { 6 } else { 0 },
        "{decided:#?}"
    );
    assert_eq!(
        decided.len(),
        if taker.asks { 12 } else { 6 },
        "{decided:#?}"
    );
}

/// Compares the row of an agent with the committed one, or writes it.
fn check(taker: &Taker) {
    let reported = table::agent_row(taker.kind.name);
    let requests = if taker.asks {
        "asks before each call; it is let, and the call is judged when it comes"
    } else {
        "calls them at once"
    };
    let denied = if taker.hides {
        "the reason to the model; it shows them as done, so that they count as run without a request"
    } else {
        "the reason to the model"
    };
    let row = format!(
        "| {} | {} | {requests} | written, changed, read; denied ones: {denied} | {} |",
        taker.kind.name,
        reported["version"].as_str().unwrap_or("?"),
        taker.needs,
    );
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/engine-tools.md");
    table::compare_on(&page, taker.kind.name, &row);
}

#[test]
fn codex_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &CODEX,
        asks: true,
        hides: false,
        needs: "nothing",
        more: "",
    });
}

/// Claude Code by its own protocol.
const CLAUDE_CODE: Kind = Kind {
    name: "claude-code",
    route: "anthropic",
    denied: "mkdir denied",
    asks: true,
    refusal: Refusal::Says("denied"),
};

#[test]
fn claude_code_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &CLAUDE_CODE,
        asks: true,
        hides: false,
        needs: "nothing",
        more: "",
    });
}

#[test]
fn codex_app_server_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &SERVER,
        asks: true,
        hides: false,
        needs: "nothing",
        more: "",
    });
}

#[test]
fn claude_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &CLAUDE,
        asks: true,
        hides: false,
        needs: "nothing",
        more: "",
    });
}

#[test]
fn gemini_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &GEMINI,
        asks: true,
        hides: false,
        needs: "`env.set.GEMINI_CLI_TRUST_WORKSPACE = \"true\"`: it starts tool servers only where it trusts the directory, and then obeys the settings that lie there, too",
        more: ", GEMINI_CLI_TRUST_WORKSPACE = \"true\"",
    });
}

#[test]
fn opencode_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &OPENCODE,
        asks: false,
        hides: false,
        needs: "nothing",
        more: "",
    });
}

#[test]
fn hermes_uses_the_supervisors_tools() {
    uses_our_tools(&Taker {
        kind: &HERMES,
        asks: false,
        hides: true,
        needs: "to be installed with its extra `mcp`: `pip install 'hermes-agent[acp,mcp]'`",
        more: "",
    });
}
