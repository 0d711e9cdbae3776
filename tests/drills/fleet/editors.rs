//! Editors: `marshal acp`, over a fleet of its own and over a daemon, with good clients and bad ones.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::drill::{Drill, Running, eventually};
use crate::editor::{Editor, PermissionAnswer};

const POLICY: &str = r#"
schema  = 1
name    = "asking"
extends = ["builtin:guard"]
default = "ask"

[[rule]]
id       = "reads"
decision = "allow"
tool     = "read"

[[rule]]
id       = "never-nc"
decision = "deny"
tool     = "shell"
argv     = [["nc"]]
"#;

/// Every protocol that the script agent speaks.
pub(crate) const DIALECTS: [&str; 2] = ["scaiflux", "acp"];

pub(crate) fn drill_of(dialect: &str, size: usize, flags: &str, more: &str) -> Drill {
    let resume = match dialect {
        "scaiflux" => r#"resume_args = ["--resume", "{session}"]"#,
        _ => "",
    };
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "{dialect}"{flags}]
dialect   = "{dialect}"
{resume}
policy    = "asking"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}

[policy.asking]
file = "asking.toml"
"#
    ));
    std::fs::write(drill.path("asking.toml"), POLICY).expect("asking.toml");
    drill
}

pub(crate) fn drill(dialect: &str) -> Drill {
    drill_of(dialect, 2, "", "")
}

pub(crate) fn daemon(drill: &Drill) -> Running {
    let daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    daemon
}

pub(crate) fn text(drill: &Drill, query: &str) -> Vec<String> {
    let database = drill.database();
    let mut statement = database.prepare(query).expect(query);
    let rows = statement
        .query_map([], |row| row.get::<_, String>(0))
        .expect(query);
    rows.map(|row| row.expect("a row")).collect()
}

pub(crate) fn events(drill: &Drill, kind: &str) -> usize {
    text(
        drill,
        &format!("SELECT kind FROM events WHERE kind = '{kind}'"),
    )
    .len()
}

/// The session's own copy of the workspace.
pub(crate) fn copy(drill: &Drill, session: &str) -> std::path::PathBuf {
    drill.state().join("copies").join(session)
}

pub(crate) fn nothing_runs(drill: &Drill) {
    eventually(Duration::from_secs(60), "no agent is left", || {
        drill.agents().is_empty()
    });
}

#[test]
fn what_the_policy_asks_goes_to_the_editor_and_what_it_denies_does_not() {
    for dialect in DIALECTS {
        let drill = drill(dialect);
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        let script = "say hello\nread README.md\nwrite a.txt one\nrun nc x";
        assert_eq!(editor.prompt(&session, script), "end_turn");
        let kinds = editor.kinds();
        for kind in ["agent_message_chunk", "tool_call", "tool_call_update"] {
            assert!(kinds.contains(&kind), "{dialect}: no {kind} in {kinds:?}");
        }
        assert!(editor.take_agent_text().contains("hello"), "{dialect}");
        assert_eq!(editor.asked.len(), 1, "{dialect}: {:?}", editor.asked);
        let requested = editor.asked[0].to_string();
        for part in ["a.txt", "allow_once", "reject_once", "no rule"] {
            assert!(
                requested.contains(part),
                "{dialect}: no {part} in {requested}"
            );
        }
        assert!(!requested.contains("_always"), "{requested}");
        let written = std::fs::read_to_string(copy(&drill, &session).join("a.txt"));
        assert_eq!(written.expect("allowed"), "one\n");

        for says in [
            PermissionAnswer::Reject,
            PermissionAnswer::Cancelled,
            PermissionAnswer::Other,
            PermissionAnswer::Error,
        ] {
            editor.says = says;
            assert_eq!(editor.prompt(&session, "write no.txt two"), "end_turn");
            assert!(!copy(&drill, &session).join("no.txt").exists(), "{says:?}");
        }
        let verdicts =
            "SELECT decision || ' ' || decided_by FROM permission_requests ORDER BY requested_seq";
        assert_eq!(
            text(&drill, verdicts),
            [
                "allow policy",
                "allow human",
                "deny policy",
                "deny human",
                "deny gone",
                "deny timeout",
                "deny timeout"
            ],
            "{dialect}"
        );
        assert_eq!(editor.leave(), Some(0));
        nothing_runs(&drill);
        drill.assert_dense();
    }
}

#[test]
fn a_session_is_loaded_after_the_process_has_ended_its_history_told_and_not_doubled() {
    for dialect in DIALECTS {
        let drill = drill(dialect);
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        assert_eq!(
            editor.prompt(&session, "say one\nwrite a.txt 1"),
            "end_turn"
        );
        assert_eq!(editor.prompt(&session, "say two"), "end_turn");
        assert_eq!(editor.leave(), Some(0));
        nothing_runs(&drill);
        let expected = "SELECT kind FROM events WHERE kind NOT IN ('child_started', 'ready', \
            'session_resumed', 'child_exited') ORDER BY seq";
        let before = text(&drill, expected);

        let mut editor = Editor::start(&drill, "demo");
        let listed = editor.call("session/list", &json!({}));
        let listed = &listed["result"]["sessions"][0];
        assert_eq!(listed["sessionId"], session.as_str(), "{dialect}");
        assert_eq!(listed["title"], "say one");
        assert_eq!(listed["cwd"], drill.workspace().display().to_string());
        let elsewhere = editor.call("session/list", &json!({"cwd": "/"}));
        assert_eq!(elsewhere["result"]["sessions"], json!([]));

        let reply = editor.load(&drill, &session);
        assert_eq!(reply["result"], json!({}), "{dialect}");
        // All of it was there before the reply.
        let users: Vec<_> = editor
            .updates
            .iter()
            .filter(|of| of["update"]["sessionUpdate"] == "user_message_chunk")
            .map(|of| of["update"]["content"]["text"].as_str().expect("text"))
            .collect();
        assert_eq!(users, ["say one\nwrite a.txt 1", "say two"], "{dialect}");
        assert!(editor.kinds().contains(&"tool_call"));
        let shown = editor.take_agent_text();
        assert!(shown.contains("one") && shown.contains("two"), "{shown}");
        let after = text(&drill, expected);
        assert_eq!(before, after, "{dialect}: loading repeats nothing");

        let reason = editor.prompt(&session, "recall\nread a.txt");
        assert_eq!(reason, "end_turn");
        let shown = editor.take_agent_text();
        assert!(
            shown.contains("say two"),
            "{dialect}: it remembers: {shown}"
        );
        assert!(shown.contains("`a.txt` has 2 bytes"), "{shown}");
        assert_eq!(events(&drill, "prompt_accepted"), 3, "{dialect}");
        assert_eq!(events(&drill, "turn_ended"), 3, "{dialect}");
        assert_eq!(drill.assert_dense(), 1);
        assert_eq!(editor.leave(), Some(0));
    }
}

#[test]
fn resume_tells_no_history_and_close_lets_the_session_be_loaded_again() {
    let drill = drill("acp");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    editor.prompt(&session, "say one");
    let of = json!({"sessionId": session});
    assert_eq!(editor.call("session/close", &of)["result"], json!({}));
    nothing_runs(&drill);
    let gone = editor.call(
        "session/prompt",
        &json!({"sessionId": session, "prompt": []}),
    );
    assert_eq!(gone["error"]["code"], -32002, "{gone}");
    editor.updates.clear();
    let params = json!({"sessionId": session, "cwd": drill.workspace(), "mcpServers": []});
    assert_eq!(editor.call("session/resume", &params)["result"], json!({}));
    assert!(editor.updates.is_empty(), "{:?}", editor.updates);
    let twice = editor.load(&drill, &session);
    assert_eq!(twice["error"]["code"], -32602, "{twice}");
    editor.prompt(&session, "recall");
    assert!(editor.take_agent_text().contains("say one"));
}

#[test]
fn further_directories_lie_in_the_workspace_or_are_refused() {
    let drill = drill("acp");
    let mut editor = Editor::start(&drill, "demo");
    let workspace = drill.workspace();
    std::fs::create_dir(workspace.join("docs")).expect("docs");
    let mut open = |further: &[&str]| {
        let params = json!({"cwd": workspace, "mcpServers": [], "additionalDirectories": further});
        editor.call("session/new", &params)
    };
    let docs = workspace.join("docs");
    let opened = open(&[docs.to_str().expect("UTF-8")]);
    assert!(opened["result"]["sessionId"].is_string(), "{opened}");
    for (further, part) in [
        ("/etc", "outside the workspace"),
        ("docs", "absolute"),
        ("/no/such/directory", "No such file"),
    ] {
        let refused = open(&[further]);
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(part), "{further}: {refused}");
    }
}

#[test]
fn a_deleted_session_is_in_no_list_and_cannot_be_loaded() {
    let drill = drill("acp");
    let _daemon = daemon(&drill);
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    editor.prompt(&session, "say one");
    let of = json!({"sessionId": session});
    let mut other = Editor::start(&drill, "demo");
    for (editor, code) in [(&mut editor, -32600), (&mut other, -32603)] {
        let refused = editor.call("session/delete", &of);
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    assert_eq!(editor.call("session/close", &of)["result"], json!({}));
    assert!(copy(&drill, &session).exists());
    assert_eq!(other.call("session/delete", &of)["result"], json!({}));
    let listed = editor.call("session/list", &json!({}));
    assert_eq!(listed["result"]["sessions"], json!([]), "{listed}");
    let gone = editor.load(&drill, &session);
    assert_eq!(gone["error"]["code"], -32002, "{gone}");
    for unknown in [session.as_str(), "none", "../x"] {
        let gone = other.call("session/delete", &json!({"sessionId": unknown}));
        assert_eq!(gone["error"]["code"], -32002, "{unknown}: {gone}");
    }
    let home = drill.state().join("homes").join(&session);
    assert!(!home.exists(), "{}", home.display());
}

#[test]
fn a_cancel_ends_the_turn_and_what_waits_and_denies_what_is_asked() {
    for dialect in DIALECTS {
        let drill = drill(dialect);
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        editor.cancel(&session); // of nothing
        editor.cancel("no-such-session");
        let turn = editor.begin(&session, "say begun\nsleep 60s");
        let waiting = editor.begin(&session, "say never");
        editor.until("it has begun", |editor| !editor.updates.is_empty());
        editor.cancel(&session);
        let began = Instant::now();
        for id in [turn, waiting] {
            assert_eq!(editor.reply(id)["result"]["stopReason"], "cancelled");
        }
        // Who does not heed it is stopped after fifteen seconds.
        assert!(began.elapsed() < Duration::from_secs(14), "{dialect}");

        editor.says = PermissionAnswer::Nothing;
        let requests = editor.begin(&session, "write no.txt x");
        editor.until("it is asked", |editor| !editor.asked.is_empty());
        editor.cancel(&session);
        assert_eq!(editor.reply(requests)["result"]["stopReason"], "cancelled");
        let verdict = "SELECT decision || ' ' || decided_by FROM permission_requests";
        assert_eq!(text(&drill, verdict), ["deny gone"], "{dialect}");
        assert!(!copy(&drill, &session).join("no.txt").exists());
        editor.take_agent_text();
        assert_eq!(editor.prompt(&session, "say after"), "end_turn");
        let shown = editor.take_agent_text();
        assert!(
            shown.contains("after") && !shown.contains("never"),
            "{shown}"
        );
    }
}

#[test]
fn nobody_who_answers_in_time_is_a_deny() {
    let drill = drill_of("acp", 1, "", "approval = { timeout = \"300ms\" }");
    let mut editor = Editor::start(&drill, "demo");
    editor.says = PermissionAnswer::Nothing;
    let session = editor.open(&drill);
    assert_eq!(
        editor.prompt(&session, "write no.txt x\nsay on"),
        "end_turn"
    );
    assert_eq!(editor.asked.len(), 1);
    assert!(editor.take_agent_text().contains("on"));
    let verdict = "SELECT decision || ' ' || decided_by FROM permission_requests";
    assert_eq!(text(&drill, verdict), ["deny timeout"]);
}

#[test]
fn a_child_that_crashes_loses_its_turn_and_the_session_goes_on_where_it_was() {
    for dialect in DIALECTS {
        let drill = drill(dialect);
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        editor.prompt(&session, "say one\nwrite kept.txt 1");
        let crash = editor.begin(&session, "crash kill");
        let next = editor.begin(&session, "recall\nread kept.txt");
        let lost = editor.reply(crash);
        assert_eq!(lost["error"]["code"], -32603, "{dialect}: {lost}");
        editor.take_agent_text();
        let reply = editor.reply(next);
        assert_eq!(reply["result"]["stopReason"], "end_turn", "{dialect}");
        let text = editor.take_agent_text();
        assert!(text.contains("say one"), "{dialect}: {text}");
        assert!(text.contains("`kept.txt` has 2 bytes"), "{text}");
        assert!(!text.contains("[marshal]"), "{text}");
        assert_eq!(drill.assert_dense(), 1);
        assert_eq!(events(&drill, "child_started"), 2);
    }
}

#[test]
fn an_agent_that_cannot_load_goes_on_in_the_same_files_and_the_user_is_told() {
    let drill = drill_of("acp", 1, ", \"--forget\"", "");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    editor.prompt(&session, "say one\nwrite kept.txt 1");
    let crash = editor.begin(&session, "crash");
    assert!(editor.reply(crash)["error"].is_object());
    editor.take_agent_text();
    assert_eq!(editor.prompt(&session, "recall\nread kept.txt"), "end_turn");
    let text = editor.take_agent_text();
    assert!(
        text.contains("[marshal] The agent could not resume"),
        "{text}"
    );
    assert!(text.contains("`kept.txt` has 2 bytes"), "{text}");
    assert!(!text.contains("say one"), "{text}");
    assert_eq!(drill.assert_dense(), 1);
}

#[test]
fn an_editor_that_goes_in_mid_turn_leaves_no_process_and_a_session_that_can_be_loaded() {
    for how in ["EOF", "TERM", "KILL"] {
        let drill = drill("acp");
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        editor.says = PermissionAnswer::Nothing;
        editor.begin(&session, "say begun\nwrite no.txt x");
        editor.until("it is asked", |editor| !editor.asked.is_empty());
        match how {
            "EOF" => editor.hang_up(),
            signal => {
                let pid = editor.child.id().to_string();
                let sent = std::process::Command::new("kill")
                    .args(["-s", signal, &pid])
                    .status();
                assert!(sent.expect("kill").success());
            }
        }
        editor.wait();
        nothing_runs(&drill);

        let mut editor = Editor::start(&drill, "demo");
        assert_eq!(editor.load(&drill, &session)["result"], json!({}), "{how}");
        let verdict = "SELECT decision || ' ' || decided_by FROM permission_requests";
        assert_eq!(text(&drill, verdict), ["deny gone"], "{how}");
        editor.take_agent_text();
        assert_eq!(editor.prompt(&session, "recall"), "end_turn", "{how}");
        assert!(editor.take_agent_text().contains("say begun"), "{how}");
        assert!(!copy(&drill, &session).join("no.txt").exists());
        let open = "SELECT id FROM tasks WHERE state <> 'ended'";
        assert!(text(&drill, open).is_empty(), "{how}");
        drill.assert_dense();
    }
}

#[test]
fn a_daemon_serves_several_editors_each_in_a_slot_and_frees_it_when_they_go() {
    let drill = drill_of("acp", 1, "", "");
    let mut daemon = daemon(&drill);
    let mut first = Editor::start(&drill, "demo");
    let session = first.open(&drill);
    first.prompt(&session, "say one");
    let mut second = Editor::start(&drill, "demo");
    let taken = second.load(&drill, &session);
    let message = taken["error"]["message"].as_str().expect("a message");
    assert!(message.contains("open in another client"), "{message}");
    let began = Instant::now();
    let refused = second.try_open(&drill);
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("no slot of pool demo became free"),
        "{message}"
    );
    assert!(began.elapsed() < Duration::from_secs(35));
    // One that waits gets the slot as soon as it is free.
    let params = json!({"cwd": drill.workspace(), "mcpServers": []});
    let waits = second.request("session/new", &params);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!second.has_reply(waits));
    first.child.kill().expect("kill -9");
    let reply = second.reply(waits);
    let other = reply["result"]["sessionId"].as_str().expect("opened");
    let other = other.to_owned();
    assert_eq!(second.prompt(&other, "recall\nsay two"), "end_turn");
    assert!(
        !second.take_agent_text().contains("say one"),
        "a session of its own"
    );
    // Tasks wait for the slot like anybody.
    let page = drill.get("/metrics").1;
    assert!(
        page.contains("marshal_approvals_pending{pool=\"demo\"} 0"),
        "{page}"
    );
    daemon.signal("TERM");
    assert_eq!(daemon.wait(Duration::from_secs(60)), Some(0));
    nothing_runs(&drill);
    let lost = second.begin(&other, "say three");
    assert!(second.reply(lost)["error"].is_object());
    assert_eq!(second.leave(), Some(0));
}

#[test]
fn a_daemon_that_is_killed_is_told_to_the_editor_and_its_successor_loads_the_session() {
    let drill = drill("scaiflux");
    let mut killed = daemon(&drill);
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    editor.prompt(&session, "say one");
    let turn = editor.begin(&session, "say begun\nsleep 60s");
    editor.until("it has begun", |editor| editor.said_so("begun"));
    killed.signal("KILL");
    killed.wait(Duration::from_secs(60));
    let lost = editor.reply(turn);
    let message = lost["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("connection to the supervisor failed"),
        "{message}"
    );
    nothing_runs(&drill);
    let _daemon = daemon(&drill);
    assert_eq!(editor.load(&drill, &session)["result"], json!({}));
    editor.take_agent_text();
    assert_eq!(editor.prompt(&session, "recall"), "end_turn");
    assert!(editor.take_agent_text().contains("say one"));
    let states = text(
        &drill,
        "SELECT coalesce(outcome, state) FROM tasks ORDER BY place",
    );
    assert_eq!(states, ["done", "lost", "done"]);
    drill.assert_dense();
}

#[test]
fn a_pool_whose_slots_are_parked_says_so() {
    let drill = drill_of("acp", 1, ", \"--protocol\", \"2\"", "");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    let id = editor.begin(&session, "say never");
    let reply = editor.reply(id);
    let message = reply["error"]["message"].as_str().expect("a message");
    assert!(message.contains("protocol version 2"), "{message}");
    let id = editor.begin(&session, "say never");
    let reply = editor.reply(id);
    let message = reply["error"]["message"].as_str().expect("a message");
    assert!(message.contains("is parked"), "{message}");
    let began = Instant::now();
    let refused = editor.try_open(&drill);
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("every slot of pool demo is parked"),
        "{message}"
    );
    // For a slot it would have waited ten seconds.
    assert!(began.elapsed() < Duration::from_secs(9), "at once");
}

#[test]
fn logs_never_reach_standard_output() {
    let drill = drill("acp");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    // Its reader takes nothing but JSON.
    editor.prompt(&session, "garbage 3\nsay x");
    assert_eq!(editor.leave(), Some(0));
    let log = std::fs::read_to_string(drill.path("editor.log")).expect("a log");
    assert!(log.contains("using configuration"), "{log}");
    let other = drill.run(&["acp", "--pool", "nobody"]);
    assert_eq!(other.code, Some(2), "{}", other.all());
    assert_eq!(other.stdout, "");
}
