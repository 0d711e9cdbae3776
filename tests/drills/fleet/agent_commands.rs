//! An agent's own commands through the door: answered, on record, refused where they cannot be, and no
//! way around the policy.

use serde_json::{Value, json};

use crate::chat_client::{Answer, Daemon, LONG, drill_of, text};
use crate::drill::{Drill, eventually, metric};

/// An agent in a shell: silent to one command, and one that stays though it says that it exits.
const SHELL: &str = r#"
echo '{"type":"ready","protocol":1}'
while read -r line; do
  case $line in
    *'"type":"prompt"'*)
      echo '{"type":"turn_started","turn_id":"t"}'
      echo '{"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}' ;;
    *'"command":"silent"'*) ;;
    *'"command":"fails"'*) echo '{"type":"error","code":"no","message":"no such luck"}' ;;
    *'"command":"exit"'*) echo '{"type":"slash_result","command":"exit","text":"bye","exit":true}' ;;
    *'"type":"slash"'*'"args":"two words"'*) echo '{"type":"slash_result","command":"x","text":"two"}' ;;
    *'"type":"slash"'*) echo '{"type":"slash_result","command":"x","text":"heard"}' ;;
  esac
done
"#;

/// A pool of one slot whose session stays.
fn pool(name: &str, command: &str, dialect: &str, keys: &str) -> String {
    format!(
        r#"
[pool.{name}]
command   = {command}
dialect   = {dialect}
session   = "slot"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms", on_crash = "resume" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{keys}
"#
    )
}

/// A pool of the script agent in ScaiFlux, which begins in the mode `prompt`.
fn scaiflux(name: &str, keys: &str) -> String {
    let command = r#"["marshal", "script-agent", "--permission-mode", "prompt"]"#;
    let resume = r#"resume_args = ["--resume", "{session}"]"#;
    pool(name, command, "\"scaiflux\"", &format!("{resume}\n{keys}"))
}

fn shell(name: &str, dialect: &str, keys: &str) -> String {
    let command = format!("[\"sh\", \"-c\", '''{SHELL}''']");
    let keys = format!("resume_args = [\"{{session}}\"]\n{keys}");
    pool(name, &command, dialect, &keys)
}

/// Gives a pool a task.
fn give(daemon: &Daemon, pool: &str, prompt: &str) -> String {
    let given = daemon.post("/api/v1/tasks", &json!({"pool": pool, "prompt": prompt}));
    assert_eq!(given.status, 202, "{given:?}");
    let id = given.body["id"].as_str().expect("an id");
    format!("/api/v1/tasks/{id}")
}

fn wait_for_task_end(daemon: &Daemon, task: &str) -> Value {
    let mut seen = Value::Null;
    eventually(LONG, "the task is over", || {
        seen = daemon.get(task).body;
        seen["state"] == "ended"
    });
    seen
}

/// Has a pool work a task; gives its session.
fn worked(daemon: &Daemon, pool: &str, prompt: &str) -> String {
    let task = wait_for_task_end(daemon, &give(daemon, pool, prompt));
    assert_eq!(task["outcome"], "done", "{task}");
    task["session"].as_str().expect("a session").to_owned()
}

fn command(daemon: &Daemon, session: &str, body: &Value) -> Answer {
    daemon.post(&format!("/api/v1/sessions/{session}/commands"), body)
}

/// What the agent answered.
fn agent_answer(daemon: &Daemon, session: &str, name: &str, args: &str) -> Value {
    let answer = command(daemon, session, &json!({"command": name, "args": args}));
    assert_eq!(answer.status, 200, "{name}: {answer:?}");
    answer.body
}

/// Why it was not.
fn refused(daemon: &Daemon, session: &str, body: &Value, status: u16) -> String {
    let answer = command(daemon, session, body);
    assert_eq!(answer.status, status, "{body}: {answer:?}");
    answer.body["detail"].as_str().expect("a detail").to_owned()
}

/// A session's events in their order: kind and body.
fn events(drill: &Drill, session: &str) -> Vec<(String, Value)> {
    let ran = drill.run(&["--json", "events", "--session", session]);
    let lines = ran.stdout.lines();
    let events = lines.map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events
        .map(|mut event| {
            let kind = event["kind"].as_str().expect("a kind").to_owned();
            (kind, event["body"].take())
        })
        .collect()
}

/// Where the first event of a kind is that has a word in its body.
fn place(events: &[(String, Value)], kind: &str, word: &str) -> usize {
    let mut found = events.iter();
    found
        .position(|(item, body)| item == kind && body.to_string().contains(word))
        .unwrap_or_else(|| panic!("no {kind} with {word}: {events:?}"))
}

/// The session's events, once there is one of a kind with a word in its body.
fn until(drill: &Drill, session: &str, kind: &str, word: &str) -> Vec<(String, Value)> {
    let mut seen = Vec::new();
    eventually(LONG, word, || {
        seen = events(drill, session);
        let is_it =
            |(item, body): &(String, Value)| item == kind && body.to_string().contains(word);
        seen.iter().any(is_it)
    });
    seen
}

fn slot(daemon: &Daemon, pool: &str) -> Value {
    daemon.get(&format!("/api/v1/slots/{pool}/0")).body
}

fn until_slot(daemon: &Daemon, pool: &str, state: &str) {
    eventually(LONG, state, || slot(daemon, pool)["state"] == state);
}

#[test]
fn a_command_is_answered_and_on_record_with_who_gave_it() {
    let drill = Drill::new(&scaiflux("own", ""));
    let daemon = Daemon::start(&drill);
    let session = worked(&daemon, "own", "say hello");
    let answer = agent_answer(&daemon, &session, "context", "");
    let words = answer["text"].as_str().expect("a text");
    assert!(words.starts_with("Context: "), "{answer}");
    assert_eq!(
        (&answer["ok"], &answer["cut"]),
        (&json!(true), &json!(false))
    );
    let seen = events(&drill, &session);
    let given = place(&seen, "command_sent", "context");
    assert_eq!(
        seen[given].1,
        json!({"command": "context", "args": "", "by": "token owner"})
    );
    assert!(given < place(&seen, "slash_result", "context"), "{seen:?}");

    // One that the agent does not know is answered in its words.
    let ran = drill.run(&["command", &session, "nope", "a", "--b"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        ran.stdout.contains("There is no command /nope"),
        "{}",
        ran.all()
    );
    place(&events(&drill, &session), "command_sent", "a --b");
    let ran = drill.run(&["--json", "command", &session, "model", "other"]);
    let message: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(message["text"], "Model: other", "{}", ran.all());

    // What cannot be one.
    for (bad, status) in [
        (json!({"command": "/context"}), 422),
        (json!({"command": ""}), 422),
        (json!({"command": "x".repeat(65)}), 422),
        (json!({"command": "context", "args": "\u{1b}[2J"}), 422),
        (json!({"command": "context", "more": 1}), 400),
        (json!({"args": "context"}), 400),
    ] {
        refused(&daemon, &session, &bad, status);
    }
    let context = json!({"command": "context"});
    refused(
        &daemon,
        "01890000-0000-7000-8000-000000000000",
        &context,
        404,
    );
    let ran = drill.run(&["command", &session, "/context"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.stderr.contains("command is not a name"),
        "{}",
        ran.all()
    );

    // The session is the same to the fleet, whatever the agent calls it now.
    let cleared = agent_answer(&daemon, &session, "clear", "");
    assert_eq!(cleared["text"], "A new session begins.");
    assert_eq!(worked(&daemon, "own", "say again"), session);
    drill.assert_dense();
}

#[test]
fn an_agent_that_exits_by_a_command_has_not_crashed() {
    let pools = scaiflux("own", "")
        + &shell(
            "stays",
            "{ custom = \"table.toml\" }",
            r#"stop = { goodbye = "100ms", eof = "30s", int = "1s", term = "1s" }"#,
        );
    let drill = Drill::new(&pools);
    let table = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/dialects/scaiflux.toml"
    );
    std::fs::copy(table, drill.path("table.toml")).expect("a table");
    let daemon = Daemon::start(&drill);
    for (pool, bye) in [("own", "Goodbye."), ("stays", "bye")] {
        let session = worked(&daemon, pool, "say hello");
        assert_eq!(agent_answer(&daemon, &session, "exit", "")["text"], bye);
        until_slot(&daemon, pool, "unloaded");
        let seen = until(&drill, &session, "child_exited", "stopped");
        let ended = place(&seen, "child_exited", "stopped");
        assert!(place(&seen, "slash_result", "exit") < ended, "{seen:?}");
        // One that cannot be loaded again is closed first.
        let mut reported = None;
        eventually(LONG, "it is refused", || {
            let answer = command(&daemon, &session, &json!({"command": "context"}));
            assert!(matches!(answer.status, 409 | 503), "{answer:?}");
            let is_it = answer.status == 409;
            reported = Some(answer);
            is_it
        });
        let why = reported.expect("an answer").body["detail"].to_string();
        assert!(
            why.contains("no agent runs") || why.contains("in no slot"),
            "{why}"
        );
        worked(&daemon, pool, "say again");
    }
    let (_, page) = drill.get("/metrics");
    for pool in ["own", "stays"] {
        for cause in ["crash", "protocol", "hang", "spawn", "oom"] {
            let series =
                format!("marshal_child_restarts_total{{pool=\"{pool}\",cause=\"{cause}\"}}");
            assert!(
                metric(&page, &series).is_none_or(|count| count < 1.0),
                "{series}"
            );
        }
    }
    assert!(page.contains("marshal_child_restarts_total{"), "{page}");
}

#[test]
fn while_a_turn_runs_and_where_there_are_none_a_command_is_refused() {
    let acp = r#"["marshal", "script-agent", "--dialect", "acp"]"#;
    let pools = scaiflux("own", "") + &pool("acp", acp, "\"acp\"", "");
    let drill = Drill::new(&pools);
    let daemon = Daemon::start(&drill);
    let none = worked(&daemon, "acp", "say hello");
    let why = refused(&daemon, &none, &json!({"command": "context"}), 422);
    assert!(why.contains("acp") && why.contains("protocol"), "{why}");
    let ran = drill.run(&["command", &none, "context"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());

    let task = give(&daemon, "own", "sleep 300s");
    until_slot(&daemon, "own", "busy");
    let session = slot(&daemon, "own")["session"].clone();
    let session = session.as_str().expect("a session");
    for name in ["context", "steer"] {
        let why = refused(&daemon, session, &json!({"command": name}), 409);
        assert!(why.contains("a turn is running"), "{why}");
    }
    let ran = drill.run(&["command", session, "context"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    // Nothing of it is in the journal.
    let seen = events(&drill, session);
    assert!(
        seen.iter().all(|(kind, _)| kind != "command_sent"),
        "{seen:?}"
    );
    let gone = daemon.post(&format!("{task}/cancel"), &json!({}));
    assert_eq!(gone.status, 202, "{gone:?}");
    wait_for_task_end(&daemon, &task);
    until_slot(&daemon, "own", "ready");
    agent_answer(&daemon, session, "context", "");
}

#[test]
fn a_text_goes_into_a_running_turn_of_loaf_and_other_commands_between_turns() {
    let command = r#"["marshal", "script-agent", "--dialect", "loaf"]"#;
    let open = "launcher = \"none\"\nnetwork = \"host\"";
    let drill = Drill::new(&pool("demo", command, "\"loaf\"", open));
    let daemon = Daemon::start(&drill);
    let go = drill.path("go");
    let waits = format!(
        "run until [ -e {} ]; do sleep 0.1; done\nsay first",
        go.display()
    );
    let task = give(&daemon, "demo", &waits);
    until_slot(&daemon, "demo", "busy");
    let session = slot(&daemon, "demo")["session"].clone();
    let session = session.as_str().expect("a session").to_owned();
    eventually(LONG, "the turn has begun", || {
        let seen = events(&drill, &session);
        seen.iter().any(|(kind, _)| kind == "tool_start")
    });
    let why = refused(&daemon, &session, &json!({"command": "help"}), 409);
    assert!(why.contains("a turn is running"), "{why}");
    let steered = agent_answer(&daemon, &session, "steer", "say and that");
    assert_eq!(
        steered,
        json!({"ok": true, "text": "the agent accepted it", "cut": false})
    );
    std::fs::write(&go, "").expect("written");
    let task = wait_for_task_end(&daemon, &task);
    assert_eq!(task["outcome"], "done", "{task}");
    let seen = events(&drill, &session);
    let pieces = seen.iter().filter(|(kind, _)| kind == "text");
    let spoken: String = pieces
        .filter_map(|(_, body)| body["delta"].as_str())
        .collect();
    assert!(
        spoken.contains("first") && spoken.contains("and that"),
        "{spoken}"
    );

    let why = refused(
        &daemon,
        &session,
        &json!({"command": "steer", "args": "x"}),
        409,
    );
    assert!(why.contains("no turn is running"), "{why}");
    let helped = agent_answer(&daemon, &session, "help", "");
    assert!(helped["text"].as_str().is_some(), "{helped}");
    let unknown = agent_answer(&daemon, &session, "nope", "");
    assert_eq!(unknown["ok"], false, "{unknown}");
    let ran = drill.run(&["command", &session, "nope"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    agent_answer(&daemon, &session, "quit", "");
    until_slot(&daemon, "demo", "unloaded");
    until(&drill, &session, "child_exited", "stopped");
}

#[test]
fn no_command_brings_an_agent_into_a_mode_in_which_it_asks_for_less() {
    let pools = scaiflux("own", "") + &scaiflux("free", "guard = \"sandbox\"");
    let drill = Drill::new(&pools);
    let daemon = Daemon::start(&drill);
    let session = worked(&daemon, "own", "say hello");
    assert_eq!(
        agent_answer(&daemon, &session, "mode", "prompt")["text"],
        "Mode: prompt"
    );
    let mode = json!({"command": "mode", "args": "workspace-write"});
    let why = refused(&daemon, &session, &mode, 409);
    assert!(why.contains("asks for less than in prompt"), "{why}");
    let seen = until(&drill, &session, "child_exited", "protocol_fault");
    let changed = place(&seen, "state_changed", "workspace-write");
    assert!(
        changed < place(&seen, "child_exited", "protocol_fault"),
        "{seen:?}"
    );
    // Its next child is begun in the mode that the file says.
    worked(&daemon, "own", "say on");
    let on = slot(&daemon, "own")["session"].clone();
    let seen = events(&drill, on.as_str().expect("a session"));
    let last = seen.iter().rfind(|(kind, _)| kind == "ready");
    assert_eq!(last.expect("it was ready").1["mode"], "prompt");

    // Where only the sandbox is counted on, it may go into any.
    let session = worked(&daemon, "free", "say hello");
    let reported = agent_answer(&daemon, &session, "mode", "danger-full-access");
    assert_eq!(reported["text"], "Mode: danger-full-access");
    assert_eq!(worked(&daemon, "free", "say on"), session);
}

#[test]
fn a_command_without_an_answer_is_given_up_and_a_prompt_waits_for_that() {
    let drill = Drill::new(&shell(
        "demo",
        "\"scaiflux\"",
        "timeouts = { control = \"10s\" }",
    ));
    let daemon = Daemon::start(&drill);
    let session = worked(&daemon, "demo", "hello");
    let failed = agent_answer(&daemon, &session, "fails", "");
    assert_eq!(failed["ok"], false);
    assert_eq!(failed["text"], "no such luck");
    assert_eq!(
        agent_answer(&daemon, &session, "x", "two words")["text"],
        "two"
    );
    let silent = json!({"command": "silent"});
    let (unanswered, task) = std::thread::scope(|scope| {
        let waits = scope.spawn(|| command(&daemon, &session, &silent));
        eventually(LONG, "it is on record", || {
            let seen = events(&drill, &session);
            let mut seen = seen.iter();
            seen.any(|(kind, body)| kind == "command_sent" && body["command"] == "silent")
        });
        let task = give(&daemon, "demo", "waits");
        (
            waits.join().expect("answered"),
            wait_for_task_end(&daemon, &task),
        )
    });
    assert_eq!(unanswered.status, 504, "{unanswered:?}");
    let why = unanswered.body["detail"].as_str().expect("a detail");
    assert!(why.contains("timeouts.control"), "{why}");
    assert_eq!(task["outcome"], "done", "{task}");
    let seen = events(&drill, &session);
    let given_up = place(&seen, "agent_error", "unanswered");
    let begun = seen.iter().rposition(|(kind, _)| kind == "turn_started");
    assert!(given_up < begun.expect("a turn"), "{seen:?}");
    // The next one's answer could be taken for that of this one.
    until_slot(&daemon, "demo", "ready");
    let why = refused(&daemon, &session, &json!({"command": "x"}), 409);
    assert!(
        why.contains("has not answered the previous command"),
        "{why}"
    );
    until(&drill, &session, "agent_error", "refused");
    drill.assert_dense();
}

#[test]
fn a_chat_takes_commands_like_any_session() {
    let drill = drill_of("scaiflux", 1, "", "", "10m");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say hello");
    let reported = daemon.follow(&chat, None).any_turn();
    assert!(text(&reported).contains("hello"), "{reported:?}");
    let session = chat.rsplit('/').next().expect("an id");
    // What the turn left is looked over first.
    let mut answer = Value::Null;
    eventually(LONG, "it waits", || {
        let reported = command(&daemon, session, &json!({"command": "context"}));
        assert!(matches!(reported.status, 200 | 409), "{reported:?}");
        answer = reported.body;
        reported.status == 200
    });
    let words = answer["text"].as_str().expect("a text");
    assert!(words.starts_with("Context: "), "{answer}");
}
