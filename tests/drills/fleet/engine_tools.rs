//! The tools that a supervisor gives to its agents, through every layer: the script agent in real
//! namespaces starts the server that it was handed, and what happened is read from the disk, the
//! socket and the journal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually};
use crate::fleet::approvals::{LONG, answer, client, daemon, good, id, result, state, waiting};

fn pool(more: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = 2
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
permission_requests = "all"
policy    = "own"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
engine_tools = "all"
{more}
[policy.own]
file = "own.toml"
"#
    )
}

/// What the guard does not forbid is allowed, but for a file of its own, one that a person decides
/// about, and a tool that is named.
const OWN: &str = r#"
schema  = 1
name    = "own"
extends = ["builtin:guard"]
default = "allow"

[paths]
kept  = ["@/secret.txt"]
shown = ["@/asked.txt"]

[[rule]]
id       = "no-secrets"
decision = "deny"
tool     = ["write", "edit"]
path     = "kept"
reason   = "secrets are kept elsewhere"

[[rule]]
id       = "a-person"
decision = "ask"
tool     = ["write"]
path     = "shown"

[[rule]]
id       = "no-steps"
decision = "deny"
tool     = "mcp"
server   = "marshal"
name     = "plan_step"
args     = [{ at = "/status", is = ["blocked"] }]
reason   = "nothing is blocked here"
"#;

fn drill(more: &str) -> Drill {
    let drill = Drill::new(&pool(more));
    fs::write(drill.path("own.toml"), OWN).expect("own.toml");
    drill
}

/// One task: what the agent said, and every event.
struct TaskRecord {
    ran: Ran,
    text: String,
    events: Vec<Value>,
}

fn tell(drill: &Drill, script: &str) -> TaskRecord {
    let ran = drill.run(&["--json", "run", script]);
    let lines = ran.stdout.lines();
    let events: Vec<Value> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let texts = events.iter().filter(|event| event["kind"] == "text");
    let text = texts
        .filter_map(|event| event["body"]["delta"].as_str())
        .collect();
    TaskRecord { ran, text, events }
}

impl TaskRecord {
    #[track_caller]
    fn has(&self, part: &str) -> &Self {
        let (text, all) = (&self.text, self.ran.all());
        assert!(text.contains(part), "{part:?} is not in\n{text}\n{all}");
        self
    }

    /// The bodies of the events of a kind.
    fn of(&self, kind: &str) -> Vec<&Value> {
        let of = self.events.iter().filter(|event| event["kind"] == kind);
        of.map(|event| &event["body"]).collect()
    }
}

/// A file of the one copy that has it.
fn copied(drill: &Drill, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(drill.state().join("copies")).expect("copies");
    let mut paths = entries.map(|entry| entry.expect("a copy").path().join(name));
    paths.find(|path| path.exists())
}

#[test]
fn files_are_written_edited_and_read_and_all_of_it_is_on_record() {
    let drill = drill("");
    let script = "\
        mcp write_file {\"path\":\"/workspace/a.txt\",\"content\":\"one two\\n\"}\n\
        mcp edit_file {\"path\":\"/workspace/a.txt\",\"old_text\":\"two\",\"new_text\":\"three\"}\n\
        mcp edit_file {\"path\":\"/workspace/a.txt\",\"old_text\":\"two\",\"new_text\":\"three\"}\n\
        mcp edit_file {\"path\":\"/workspace/a.txt\",\"old_text\":\"e\",\"new_text\":\"E\"}\n\
        mcp edit_file {\"path\":\"/workspace/a.txt\",\"old_text\":\"e\",\"new_text\":\"E\",\"replace_all\":true}\n\
        mcp read_file {\"path\":\"/workspace/a.txt\"}\n\
        mcp read_file {\"path\":\"/workspace/none.txt\"}\n\
        mcp plan_step {\"step\":\"all of it\",\"status\":\"done\"}";
    let events = tell(&drill, script);
    events
        .has("mcp write_file ok /workspace/a.txt was written: 8 bytes")
        .has("mcp edit_file ok /workspace/a.txt was changed")
        .has("mcp edit_file error /workspace/a.txt: the file does not contain old_text")
        .has("mcp edit_file error /workspace/a.txt: old_text occurs 3 times")
        .has("mcp read_file ok onE thrEE\n")
        .has("mcp read_file error not found: /workspace/none.txt")
        .has("mcp plan_step ok noted as done");
    let file = copied(&drill, "a.txt").expect("written");
    assert_eq!(fs::read_to_string(&file).expect("a.txt"), "onE thrEE\n");
    let mode = fs::metadata(&file).expect("a.txt").permissions().mode();
    assert_eq!(mode & 0o7777, 0o644);
    // Each was asked, decided and kept in the chain; none counts as one that nobody asked for.
    let requested = events.of("permission_requested");
    assert_eq!(requested.len(), 8, "{}", events.ran.stdout);
    assert_eq!(requested[0]["tool"], "marshal/write_file");
    assert_eq!(requested[0]["input"]["content"], "one two\n");
    let decided = events.of("permission_decided");
    assert!(decided.iter().all(|body| body["decision"] == "allow"));
    assert!(
        events.of("tool_call_unrequested").is_empty(),
        "{}",
        events.ran.stdout
    );
    let written = events.of("file_updated");
    assert_eq!(written.len(), 3, "{}", events.ran.stdout);
    assert_eq!(written[0]["path"], "/workspace/a.txt");
    assert_eq!(written[0]["tool"], "write_file");
    assert_eq!(written[0]["sha256"].as_str().map(str::len), Some(64));
    assert_eq!(events.of("plan_step")[0]["status"], "done");
    let row = "SELECT count(*) FROM permission_requests WHERE tool LIKE 'marshal/%' AND decision = 'allow'";
    let count: i64 = drill
        .database()
        .query_row(row, [], |row| row.get(0))
        .expect("approvals");
    assert_eq!(count, 8);
    good(&drill.run(&["audit", "verify"]));
    // Nothing of the socket is left.
    let left = fs::read_dir(drill.state().join("tools")).expect("tools");
    assert_eq!(left.count(), 0);
}

/// What the agent makes by itself: links that lead out, and one to a file.
const LINKS: &str = "import os\n\
    for name, to in [('out', '/etc'), ('alias', 'README.md')]:\n\
    \x20   os.symlink(to, name)\n";

#[test]
fn what_a_rule_or_a_wall_forbids_is_an_error_with_its_reason() {
    let drill = drill("");
    fs::write(drill.workspace().join("links.py"), LINKS).expect("links.py");
    let script = "run python3 links.py\n\
        mcp write_file {\"path\":\"/workspace/secret.txt\",\"content\":\"x\"}\n\
        mcp edit_file {\"path\":\"/workspace/secret.txt\",\"old_text\":\"x\",\"new_text\":\"y\"}\n\
        mcp write_file {\"path\":\"/workspace/.git/config\",\"content\":\"x\"}\n\
        mcp write_file {\"path\":\"/home/agent/x\",\"content\":\"x\"}\n\
        mcp write_file {\"path\":\"relative\",\"content\":\"x\"}\n\
        mcp write_file {\"path\":\"/workspace/../x\",\"content\":\"x\"}\n\
        mcp write_file {\"path\":\"/workspace/out/made\",\"content\":\"x\"}\n\
        mcp write_file {\"path\":\"/workspace/none/made\",\"content\":\"x\"}\n\
        mcp plan_step {\"step\":\"a\",\"status\":\"blocked\"}\n\
        mcp ask_person {\"question\":\"Which?\"}\n\
        mcp write_file {\"path\":\"/workspace/asked.txt\",\"content\":\"x\"}\n\
        mcp write_file {\"path\":\"/workspace/b.txt\",\"content\":1}\n\
        mcp no_such_tool {}\n\
        run python3 -c 'open(\"long.txt\", \"w\").write(\"x\" * 600000)'\n\
        mcp edit_file {\"path\":\"/workspace/long.txt\",\"old_text\":\"x\",\"new_text\":\"yy\",\"replace_all\":true}\n\
        run python3 -c 'open(\"longer.txt\", \"w\").write(\"x\" * 2000000)'\n\
        mcp read_file {\"path\":\"/workspace/longer.txt\"}";
    let events = tell(&drill, script);
    events.has("mcp write_file error denied: denied by rule no-secrets: secrets are kept elsewhere")
        .has("mcp edit_file error denied: denied by rule no-secrets: secrets are kept elsewhere")
        .has("mcp write_file error denied: denied by rule guard-protected-file")
        .has("/home/agent/x is not in the workspace")
        .has("the path is not absolute")
        .has("the path has an empty component, a `.` or a `..`")
        .has("/workspace/out/made leads out of the workspace")
        .has("mcp write_file error not found: the directory of /workspace/none/made")
        .has("mcp plan_step error denied: denied by rule no-steps: nothing is blocked here")
        .has("mcp ask_person error denied: the agent asks a person; this needs approval, and there is no approver here")
        .has("mcp write_file error denied: rule a-person requires approval")
        .has("mcp write_file refused -32602 the arguments of write_file are not valid")
        .has("mcp no_such_tool refused -32602 unknown tool")
        .has("mcp edit_file error /workspace/long.txt: the file would become longer than 1048576 bytes")
        .has("mcp read_file error /workspace/longer.txt: the requested lines are longer than 1048576 bytes");
    for name in ["secret.txt", "asked.txt", "b.txt", "none/made"] {
        assert_eq!(copied(&drill, name), None, "{name}");
    }
    let updated = events.of("file_updated");
    assert!(
        updated.iter().all(|body| body["tool"] == "observed"),
        "{updated:?}"
    );
    assert!(events.of("plan_step").is_empty());
    // A link inside is followed to the place that was judged, and that is written.
    let linked = "run python3 links.py\nmcp write_file {\"path\":\"/workspace/alias\",\"content\":\"new\\n\"}\nread README.md";
    let events = tell(&drill, linked);
    events.has("mcp write_file ok");
    let reads = events.of("tool_result");
    assert!(
        reads.iter().any(|body| body["output"] == "new\n"),
        "{}",
        events.ran.stdout
    );
}

#[test]
fn a_person_answers_a_question_and_decides_about_a_file() {
    let drill = drill("");
    let _daemon = daemon(&drill);
    let script = "\
        mcp ask_person {\"question\":\"Which colour?\",\"options\":[\"red\",\"blue\"]}\n\
        mcp write_file {\"path\":\"/workspace/asked.txt\",\"content\":\"x\"}\n\
        mcp ask_person {\"question\":\"And now?\"}";
    let client = client(&drill, &[script]);
    let ask = waiting(&drill, 1).remove(0);
    let shown = drill.run(&["approvals", "show", &id(&ask)]);
    good(&shown);
    for part in ["Which colour?", "red", "blue"] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.all());
    }
    good(&answer(
        &drill,
        "approve",
        &ask,
        &["--reason", "blue, of course"],
    ));
    let write = next(&drill, &[&ask]);
    let shown = drill.run(&["approvals", "show", &id(&write)]);
    assert!(shown.stdout.contains("asked.txt"), "{}", shown.all());
    good(&answer(&drill, "approve", &write, &[]));
    let last = next(&drill, &[&ask, &write]);
    good(&answer(
        &drill,
        "reject",
        &last,
        &["--reason", "ask me tomorrow"],
    ));
    let result = result(&drill, client);
    assert_eq!(result["changes"][0]["path"], "asked.txt", "{result}");
    assert_eq!(state(&drill, &ask), "approved");
    assert_eq!(state(&drill, &last), "rejected");
    let text = journal_texts(&drill);
    assert!(text.contains("mcp ask_person ok blue, of course"), "{text}");
    assert!(text.contains("mcp write_file ok"), "{text}");
    assert!(
        text.contains("mcp ask_person error denied: a person"),
        "{text}"
    );
    assert!(text.contains("ask me tomorrow"), "{text}");
}

/// The permission request that waits and is none of these.
pub(crate) fn next(drill: &Drill, before: &[&Value]) -> Value {
    let mut found = None;
    eventually(LONG, "another ask", || {
        let requests = crate::fleet::approvals::list_approvals(drill, &[]);
        let is_new = |ask: &Value| before.iter().all(|of| id(of) != id(ask));
        found = requests.into_iter().find(is_new);
        found.is_some()
    });
    found.expect("found above")
}

/// Everything that agents said, as the journal has it.
pub(crate) fn journal_texts(drill: &Drill) -> String {
    let ran = drill.run(&["--json", "events"]);
    let lines = ran.stdout.lines();
    let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let texts = events.filter(|event| event["kind"] == "text");
    texts
        .filter_map(|event| event["body"]["delta"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn an_agent_that_dies_in_the_middle_of_a_call_leaves_nothing() {
    let drill = drill("");
    let _daemon = daemon(&drill);
    let script = "mcp-drop ask_person {\"question\":\"Which?\"}\nsleep 1h";
    let client = client(&drill, &[script]);
    let ask = waiting(&drill, 1).remove(0);
    let slot = drill.run(&["restart", ask["slot"].as_str().unwrap_or("demo/0")]);
    good(&slot);
    let result = result(&drill, client);
    assert_ne!(result["outcome"], "done", "{result}");
    assert!(waiting(&drill, 0).is_empty());
    assert_eq!(state(&drill, &ask), "cancelled");
    eventually(LONG, "no socket is left", || {
        let left = fs::read_dir(drill.state().join("tools")).expect("tools");
        left.count() == 0 && drill.agents().is_empty()
    });
}

#[test]
fn a_cancelled_turn_ends_what_waits_for_a_person_and_nothing_is_written() {
    let drill = drill("");
    let mut daemon = daemon(&drill);
    let script = "mcp write_file {\"path\":\"/workspace/asked.txt\",\"content\":\"x\"}";
    let mut client = client(&drill, &[script]);
    let ask = waiting(&drill, 1).remove(0);
    // Its turns are cancelled first.
    daemon.signal("TERM");
    daemon.wait(LONG).expect("the daemon ends");
    client.wait().expect("its client ends");
    assert_eq!(state(&drill, &ask), "cancelled");
    assert_eq!(copied(&drill, "asked.txt"), None);
    let row = "SELECT count(*) FROM permission_requests WHERE tool = 'marshal/write_file' AND decision = 'deny' AND decided_by = 'gone'";
    let count: i64 = drill
        .database()
        .query_row(row, [], |row| row.get(0))
        .expect("approvals");
    assert_eq!(count, 1);
}

#[test]
fn a_session_reaches_its_own_socket_and_no_other() {
    let drill = drill("");
    // What is seen inside is one socket; the directory of all of them is not there.
    let state = drill.state().join("tools");
    let script = format!(
        "run ls /run/marshal\nrun ls {}\nmcp read_file {{\"path\":\"/workspace/README.md\"}}",
        state.display()
    );
    let events = tell(&drill, &script);
    events.has("mcp read_file ok # A project");
    let shown: Vec<&str> = events
        .of("tool_result")
        .iter()
        .filter_map(|body| body["output"].as_str())
        .collect();
    assert_eq!(shown[0], "marshal\ntools.sock\n", "{}", events.ran.stdout);
    assert!(shown[1].contains("No such file"), "{}", events.ran.stdout);
    let mode = fs::metadata(&state).expect("tools").permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

/// A pool of an agent that asks before it calls a tool.
fn announcing() -> Drill {
    let text = pool("")
        .replace(
            r#"["marshal", "script-agent", "--dialect", "acp"]"#,
            r#"["python3", "agent.py"]"#,
        )
        .replace("permission_requests = \"all\"\n", "")
        .replace("engine_tools = \"all\"", "engine_tools = [\"write_file\"]");
    let drill = Drill::new(&text);
    fs::write(drill.path("own.toml"), OWN).expect("own.toml");
    let agent = include_str!("../../support/announcing_agent.py");
    fs::write(drill.workspace().join("agent.py"), agent).expect("agent.py");
    drill
}

#[test]
fn a_permission_for_a_tool_of_ours_is_given_and_is_good_for_nothing_else() {
    let drill = announcing();
    let events = tell(&drill, "lie");
    events.has("mcp__marshal__write_file: yes");
    let decided = events.of("permission_decided");
    assert_eq!(decided.len(), 1, "{}", events.ran.stdout);
    assert_eq!(decided[0]["rules"][0], "engine_tools.announced");
    // The call never came: that it was shown counts as one that nobody was asked about.
    let unasked = events.of("tool_call_unrequested");
    assert_eq!(unasked.len(), 1, "{}", events.ran.stdout);
    assert_eq!(unasked[0]["id"], "call-1");
    assert_eq!(unasked[0]["rules"][0], "unknown_tool");
    assert_eq!(copied(&drill, "a.txt"), None);
}

#[test]
fn what_only_looks_like_a_tool_of_ours_is_judged_as_ever() {
    let events = tell(&announcing(), "look alike");
    events
        .has("mcp__marshal__read_file: no")
        .has("mcp__marshal__write_file: no")
        .has("mcp__marshal__write_file: yes")
        .has("mcp__other__write_file: no");
    let decided = events.of("permission_decided");
    assert_eq!(decided.len(), 4, "{}", events.ran.stdout);
    for (at, rule) in [
        (0, "unknown_tool"),
        (1, "unknown_tool"),
        (3, "unknown_tool"),
    ] {
        assert_eq!(decided[at]["rules"][0], rule, "{}", events.ran.stdout);
    }
    // The command is judged as one, whatever it calls itself.
    assert_eq!(decided[2]["by"], "default", "{}", events.ran.stdout);
}

#[test]
fn sandboxes_of_other_programs_carry_the_socket_too() {
    for launcher in ["bwrap", "container"] {
        let more = format!(
            "launcher = {launcher:?}\n{}",
            crate::fleet::engines::container(launcher)
        );
        let drill = drill(&more);
        let script = "\
            mcp write_file {\"path\":\"/workspace/a.txt\",\"content\":\"one two\\n\"}\n\
            mcp edit_file {\"path\":\"/workspace/a.txt\",\"old_text\":\"two\",\"new_text\":\"three\"}\n\
            mcp read_file {\"path\":\"/workspace/a.txt\"}\n\
            mcp write_file {\"path\":\"/workspace/secret.txt\",\"content\":\"x\"}\n\
            mcp plan_step {\"step\":\"all of it\",\"status\":\"done\"}\n\
            run ls /run/marshal";
        let events = tell(&drill, script);
        events
            .has("mcp write_file ok /workspace/a.txt was written: 8 bytes")
            .has("mcp edit_file ok /workspace/a.txt was changed")
            .has("mcp read_file ok one three\n")
            .has("mcp write_file error denied: denied by rule no-secrets")
            .has("mcp plan_step ok noted as done");
        let file = copied(&drill, "a.txt").expect("written");
        assert_eq!(fs::read_to_string(file).expect("a.txt"), "one three\n");
        assert_eq!(copied(&drill, "secret.txt"), None);
        let requested = events.of("permission_requested");
        let ours = requested.iter().filter(|body| {
            let tool = body["tool"].as_str().unwrap_or_default();
            tool.starts_with("marshal/")
        });
        assert_eq!(ours.count(), 5, "{launcher}: {}", events.ran.stdout);
        assert_eq!(events.of("file_updated").len(), 2, "{}", events.ran.stdout);
        // One socket is seen inside: that of this session. The image has no shell of the agent's.
        let shown = events.of("tool_result");
        let shown = shown.iter().filter_map(|body| body["output"].as_str());
        let shown: String = shown.collect();
        let sockets = shown.matches("tools.sock").count();
        assert_eq!(sockets, usize::from(launcher == "bwrap"), "{shown}");
        eventually(LONG, "no socket is left", || {
            let left = fs::read_dir(drill.state().join("tools")).expect("tools");
            left.count() == 0 && drill.agents().is_empty()
        });
    }
}

#[test]
fn tools_are_given_only_where_they_can_be_carried() {
    let off = pool("").replace("engine_tools = \"all\"\n", "");
    let plain = Drill::new(&off);
    fs::write(plain.path("own.toml"), OWN).expect("own.toml");
    tell(&plain, "mcp read_file {\"path\":\"/workspace/README.md\"}")
        .has("mcp read_file failed: no server was handed over");
    let few = Drill::new(
        &pool("")
            .replace("= \"all\"\nMORE", "")
            .replace("engine_tools = \"all\"", "engine_tools = [\"read_file\"]"),
    );
    fs::write(few.path("own.toml"), OWN).expect("own.toml");
    tell(&few, "mcp read_file {\"path\":\"/workspace/README.md\"}\nmcp write_file {\"path\":\"/workspace/x\",\"content\":\"\"}")
        .has("mcp read_file ok # A project")
        .has("mcp write_file refused -32602 unknown tool");
    for (from, to, part) in [
        (
            "dialect   = \"acp\"",
            "dialect   = \"scaiflux\"",
            "takes no tool servers",
        ),
        (
            "permission_requests = \"all\"",
            "launcher = \"none\"",
            "needs a sandbox on this host",
        ),
        (
            "mode = \"copy\"",
            "mode = \"ro\"",
            "write_file in a read-only workspace needs a [workspace.NAME]",
        ),
        (
            "engine_tools = \"all\"",
            "engine_tools = \"some\"",
            "expected \"all\"",
        ),
        (
            "engine_tools = \"all\"",
            "engine_tools = [\"write\"]",
            "expected",
        ),
        (
            "engine_tools = \"all\"",
            "engine_tools = \"all\"\nmcp_servers = [{ name = \"marshal\", command = \"x\" }]",
            "is named \"marshal\"",
        ),
    ] {
        let bad = Drill::new(&pool("").replace(from, to));
        fs::write(bad.path("own.toml"), OWN).expect("own.toml");
        let ran = bad.run(&["config", "check"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.all().contains(part), "{part}: {}", ran.all());
    }
}
