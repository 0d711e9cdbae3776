//! Editors that break the protocol, request what they may not have, or do not read.

use std::time::Duration;

use serde_json::json;

use crate::drill::eventually;
use crate::editor::Editor;
use crate::fleet::editors::{copy, daemon, drill, events, nothing_runs, text};

#[test]
fn what_is_no_message_or_no_method_is_answered_and_changes_nothing() {
    let drill = drill("acp");
    let mut editor = Editor::silent(&drill, "demo");
    let early = editor.call("session/new", &json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(early["error"]["code"], -32600, "{early}");
    let hello = editor.call("initialize", &json!({"protocolVersion": 7}));
    assert_eq!(hello["result"]["protocolVersion"], 1, "{hello}");
    for (line, code) in [
        ("not json\n", -32700),
        ("{\"id\":1,\n", -32700),
        ("[{\"id\":1,\"method\":\"initialize\"}]\n", -32600),
        ("7\n", -32600),
        ("{\"jsonrpc\":\"2.0\"}\n", -32600),
    ] {
        editor.write(line.as_bytes());
        let reply = editor.reply(serde_json::Value::Null);
        assert_eq!(reply["error"]["code"], code, "{line}");
    }
    editor.write(b"\xff\xfe{}\n");
    let reply = editor.reply(serde_json::Value::Null);
    assert_eq!(reply["error"]["code"], -32700);
    for (method, params, code) in [
        ("session/fly", json!({}), -32601),
        ("fs/read_text_file", json!({}), -32601),
        ("session/cancel", json!({"sessionId": "x"}), -32601),
        ("authenticate", json!({"methodId": "x"}), -32602),
        (
            "session/set_mode",
            json!({"sessionId": "x", "modeId": "y"}),
            -32002,
        ),
        ("session/set_mode", json!({"sessionId": "x"}), -32602),
        (
            "session/set_config_option",
            json!({"sessionId": "x", "configId": "y", "value": 1}),
            -32002,
        ),
        (
            "session/prompt",
            json!({"sessionId": "x", "prompt": []}),
            -32002,
        ),
        ("session/close", json!({"sessionId": "x"}), -32002),
        ("session/prompt", json!({"prompt": []}), -32602),
        ("session/prompt", json!([1]), -32602),
        ("session/list", json!({"cursor": "x"}), -32602),
    ] {
        let reply = editor.call(method, &params);
        assert_eq!(reply["error"]["code"], code, "{method}: {reply}");
    }
    for id in ["no-such-session", "../x", "latest"] {
        let reply = editor.load(&drill, id);
        assert_eq!(reply["error"]["code"], -32002, "{id}: {reply}");
    }
    // A reply to nothing, an answer to nobody's question, unknown notifications.
    editor.write(
        b"{\"id\":1,\"result\":{\"outcome\":{\"outcome\":\"selected\",\"optionId\":\"allow\"}}}\n",
    );
    editor.notify("$/cancel_request", &json!({"requestId": 1}));
    editor.notify("_their/own", &json!({}));
    let session = editor.open(&drill);
    let image = json!({"sessionId": session, "prompt": [{"type": "image", "data": "x"}]});
    let reply = editor.call("session/prompt", &image);
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    assert_eq!(editor.prompt(&session, "say fine"), "end_turn");
    assert_eq!(editor.leave(), Some(0));
}

#[test]
fn prompts_wait_in_their_order_and_too_many_are_refused() {
    let drill = drill("acp");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    let first = "say begun\nunasked until test -e go; do sleep 0.1; done";
    let first = editor.begin(&session, first);
    editor.until("it has begun", |editor| !editor.updates.is_empty());
    let others: Vec<_> = (0..20)
        .map(|n| editor.begin(&session, &format!("say number-{n}.")))
        .collect();
    let mut refused = 0;
    // The first one goes on until all of them have come.
    editor.until("four are refused", |editor| {
        others.iter().filter(|id| editor.has_reply(**id)).count() == 4
    });
    std::fs::write(copy(&drill, &session).join("go"), "").expect("go");
    assert_eq!(editor.reply(first)["result"]["stopReason"], "end_turn");
    for id in others {
        let reply = editor.reply(id);
        if reply["error"].is_object() {
            refused += 1;
            let message = reply["error"]["message"].as_str().expect("a message");
            assert!(message.contains("16 prompts"), "{message}");
        }
    }
    assert_eq!(refused, 4);
    let text = editor.take_agent_text();
    let places: Vec<_> = (0..16)
        .map(|n| text.find(&format!("number-{n}.")).expect("said"))
        .collect();
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn an_endless_line_ends_the_connection_and_leaves_nothing() {
    let drill = drill("acp");
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    editor.begin(&session, "say begun\nsleep 60s");
    editor.until("it has begun", |editor| !editor.updates.is_empty());
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..9 {
        editor.write(&chunk);
    }
    let reply = editor.reply(serde_json::Value::Null);
    assert_eq!(reply["error"]["code"], -32600);
    assert_eq!(editor.wait(), Some(1));
    nothing_runs(&drill);
}

#[test]
fn an_editor_that_never_reads_holds_nothing_but_a_bounded_memory() {
    let drill = drill("acp");
    let _daemon = daemon(&drill);
    let mut deaf = drill
        .command(&["acp", "--pool", "demo"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("marshal starts");
    let mut other = Editor::start(&drill, "demo");
    // Its words are written blindly; the session's id comes from the journal.
    let mut stdin = deaf.stdin.take().expect("stdin");
    let mut write = |value: serde_json::Value| {
        use std::io::Write as _;
        writeln!(stdin, "{value}").expect("written");
    };
    write(json!({"id": 1, "method": "initialize", "params": {"protocolVersion": 1}}));
    let cwd = drill.workspace();
    write(json!({"id": 2, "method": "session/new", "params": {"cwd": cwd, "mcpServers": []}}));
    let mut session = String::new();
    eventually(Duration::from_secs(60), "a session", || {
        session = text(&drill, "SELECT session FROM sessions")
            .pop()
            .unwrap_or_default();
        !session.is_empty()
    });
    let prompt = json!([{"type": "text", "text": "flood 20000 1000"}]);
    // The row is there before the reply to session/new is: until then there is nothing to prompt.
    eventually(Duration::from_secs(60), "it is prompted", || {
        std::thread::sleep(Duration::from_secs(2));
        let is_prompted = events(&drill, "prompt_accepted") > 0;
        if !is_prompted {
            write(
                json!({"id": 3, "method": "session/prompt", "params": {"sessionId": session, "prompt": prompt}}),
            );
        }
        is_prompted
    });
    eventually(Duration::from_secs(60), "the flood is journalled", || {
        events(&drill, "turn_ended") > 0
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", deaf.id())).expect("status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|item| item.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let peak = peak.expect("VmHWM");
    assert!(
        peak < 150 << 10,
        "{peak} KiB for an editor that does not read"
    );
    // Nobody else is held up.
    let own = other.open(&drill);
    assert_eq!(other.prompt(&own, "say hello"), "end_turn");
    deaf.kill().expect("killed");
    deaf.wait().expect("reaped");
}

#[test]
fn only_directories_of_the_workspace_are_opened_and_nothing_is_passed_inside() {
    let drill = drill("acp");
    let mut editor = Editor::start(&drill, "demo");
    let new = |editor: &mut Editor, params| editor.call("session/new", &params);
    std::os::unix::fs::symlink("/etc", drill.workspace().join("away")).expect("a link");
    let outside = [
        "/".to_owned(),
        drill.state().display().to_string(),
        drill.workspace().join("..").display().to_string(),
        drill.workspace().join("away").display().to_string(),
        drill.workspace().join("missing").display().to_string(),
        "project".to_owned(),
    ];
    for cwd in outside {
        let reply = new(&mut editor, json!({"cwd": cwd, "mcpServers": []}));
        assert_eq!(reply["error"]["code"], -32602, "{cwd}: {reply}");
    }
    let server = json!({"name": "x", "command": "y", "args": [], "env": []});
    let reply = new(
        &mut editor,
        json!({"cwd": drill.workspace(), "mcpServers": [server]}),
    );
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    let inside = json!({"cwd": drill.workspace().join("src"), "mcpServers": []});
    let reply = new(&mut editor, inside);
    let session = reply["result"]["sessionId"].as_str().expect("opened");
    let session = session.to_owned();
    assert_eq!(editor.prompt(&session, "list .\nread lib.rs"), "end_turn");
    let shown = editor.take_agent_text();
    assert!(
        shown.contains("`.` has 1 entries") || shown.contains("has 1 entr"),
        "{shown}"
    );
    let verdicts = text(&drill, "SELECT decision FROM permission_requests");
    assert_eq!(verdicts, ["allow", "allow"], "paths are judged from there");
}
