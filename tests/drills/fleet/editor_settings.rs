//! Modes and options through `marshal acp`: what is offered, set, refused and told.

use serde_json::{Value, json};

use crate::drill::Drill;
use crate::editor::Editor;
use crate::fleet::editors::{drill_of, nothing_runs, text};

fn with_modes(more: &str) -> Drill {
    drill_of("acp", 1, ", \"--quirk\", \"modes\"", more)
}

/// Opens a session and gives the whole reply's result.
fn opened(editor: &mut Editor, drill: &Drill) -> (String, Value) {
    let reply = editor.try_open(drill);
    let session = reply["result"]["sessionId"].as_str();
    let session = session.unwrap_or_else(|| panic!("{reply}")).to_owned();
    (session, reply["result"].clone())
}

fn ids(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    let id = |of: &Value| of[key].as_str().expect("an id").to_owned();
    list.map(id).collect()
}

fn set_mode(editor: &mut Editor, session: &str, mode: &str) -> Value {
    let params = json!({"sessionId": session, "modeId": mode});
    editor.call("session/set_mode", &params)
}

fn set_option(editor: &mut Editor, session: &str, id: &str, value: &Value) -> Value {
    let params = json!({"sessionId": session, "configId": id, "value": value});
    editor.call("session/set_config_option", &params)
}

fn refused(reply: &Value, parts: &[&str]) {
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    let message = reply["error"]["message"].as_str().expect("a message");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

/// The mode that the agent's last child was ready in.
fn last_ready_mode(drill: &Drill) -> String {
    let query = "SELECT coalesce(json_extract(body, '$.mode'), '') FROM events \
        WHERE kind = 'ready' ORDER BY seq DESC LIMIT 1";
    text(drill, query).remove(0)
}

#[test]
fn modes_are_offered_set_in_the_agent_and_told_and_those_that_skip_asks_are_not() {
    let drill = with_modes("");
    let mut editor = Editor::start(&drill, "demo");
    let (session, result) = opened(&mut editor, &drill);
    assert_eq!(result["modes"]["currentModeId"], "ask", "{result}");
    let offered = &result["modes"]["availableModes"];
    assert_eq!(ids(offered, "id"), ["ask", "plan"], "{result}");
    assert_eq!(offered[1]["name"], "Plan");

    assert_eq!(set_mode(&mut editor, &session, "plan")["result"], json!({}));
    let reported = |editor: &Editor, mode: &str| {
        let is = |of: &Value| {
            of["update"]["sessionUpdate"] == "current_mode_update"
                && of["update"]["currentModeId"] == mode
        };
        editor.updates.iter().any(is)
    };
    assert!(reported(&editor, "plan"), "{:?}", editor.updates);
    refused(
        &set_mode(&mut editor, &session, "yolo"),
        &["the mode yolo", "mode_skips_requests"],
    );
    refused(
        &set_mode(&mut editor, &session, "nope"),
        &["no mode nope", "ask, plan"],
    );
    refused(&set_mode(&mut editor, &session, ""), &["modeId"]);
    let gone = set_mode(&mut editor, "no-such-session", "plan");
    assert_eq!(gone["error"]["code"], -32002, "{gone}");
    assert!(!reported(&editor, "yolo"));

    // The agent itself was told, and a later child of the session is, too.
    let ledger = "SELECT body FROM events WHERE kind = 'state_changed'";
    assert_eq!(text(&drill, ledger).len(), 1);
    let crash = editor.begin(&session, "crash kill");
    assert!(editor.reply(crash)["error"].is_object());
    assert_eq!(editor.prompt(&session, "say on"), "end_turn");
    assert_eq!(last_ready_mode(&drill), "plan");

    // Whoever loads it begins with what the pool says.
    assert_eq!(editor.leave(), Some(0));
    nothing_runs(&drill);
    let mut editor = Editor::start(&drill, "demo");
    let reply = editor.load(&drill, &session);
    let modes = &reply["result"]["modes"];
    assert_eq!(modes["currentModeId"], "ask", "{reply}");
    assert_eq!(ids(&modes["availableModes"], "id"), ["ask", "plan"]);
    drill.assert_dense();
}

#[test]
fn a_mode_that_skips_asks_is_offered_where_that_is_meant() {
    let drill = with_modes("mode_skips_requests = true\nmode = \"plan\"");
    let mut editor = Editor::start(&drill, "demo");
    let (session, result) = opened(&mut editor, &drill);
    assert_eq!(result["modes"]["currentModeId"], "plan", "{result}");
    let offered = ids(&result["modes"]["availableModes"], "id");
    assert_eq!(offered, ["ask", "plan", "yolo"]);
    assert_eq!(set_mode(&mut editor, &session, "yolo")["result"], json!({}));
}

#[test]
fn options_are_offered_set_in_the_agent_and_told() {
    let drill = with_modes("");
    let mut editor = Editor::start(&drill, "demo");
    let (session, result) = opened(&mut editor, &drill);
    // It has not said that it understands switches.
    let options = &result["configOptions"];
    assert_eq!(ids(options, "id"), ["model"], "{result}");
    assert_eq!(options[0]["type"], "select");
    assert_eq!(options[0]["category"], "model");
    assert_eq!(ids(&options[0]["options"], "value"), ["a", "b"]);
    let before = options[0]["currentValue"].clone();
    assert_ne!(before, "b");
    let reply = set_option(&mut editor, &session, "model", &json!("b"));
    let options = &reply["result"]["configOptions"];
    assert_eq!(options[0]["currentValue"], "b", "{reply}");
    assert!(editor.kinds().contains(&"config_option_update"));
    for (id, value, parts) in [
        ("model", json!("z"), ["no value z", "a, b"]),
        ("nope", json!("a"), ["no option nope", "model"]),
        ("fast", json!("a"), ["fast", "true or false"]),
        ("model", json!(7), ["value", "a string"]),
    ] {
        refused(&set_option(&mut editor, &session, id, &value), &parts);
    }

    let drill = with_modes("");
    let mut editor = Editor::silent(&drill, "demo");
    let can = json!({"session": {"configOptions": {"boolean": {}}}});
    let params = json!({"protocolVersion": 1, "clientCapabilities": can});
    editor.call("initialize", &params);
    let (session, result) = opened(&mut editor, &drill);
    let options = &result["configOptions"];
    assert_eq!(ids(options, "id"), ["model", "fast"], "{result}");
    assert_eq!(options[1]["type"], "boolean");
    assert_eq!(options[1]["currentValue"], false);
    let reply = set_option(&mut editor, &session, "fast", &json!(true));
    assert_eq!(reply["result"]["configOptions"][1]["currentValue"], true);
}

#[test]
fn an_agent_without_modes_offers_none_and_refuses_to_be_set() {
    for dialect in crate::fleet::editors::DIALECTS {
        let drill = drill_of(dialect, 1, "", "");
        let mut editor = Editor::start(&drill, "demo");
        let (session, result) = opened(&mut editor, &drill);
        assert_eq!(result, json!({"sessionId": session}), "{dialect}");
        refused(&set_mode(&mut editor, &session, "plan"), &["modes"]);
        refused(
            &set_option(&mut editor, &session, "model", &json!("b")),
            &["option"],
        );
        assert_eq!(editor.prompt(&session, "say on"), "end_turn");
        let modes = editor.kinds().iter().any(|kind| kind.contains("mode"));
        assert!(!modes, "{dialect}: {:?}", editor.kinds());
    }
}

#[test]
fn what_an_agent_says_beside_its_answer_reaches_the_editor_in_its_form() {
    let updates = [
        json!({"sessionUpdate": "available_commands_update", "availableCommands": [
            {"name": "web", "description": "Searches", "input": {"hint": "what"}}]}),
        json!({"sessionUpdate": "session_info_update", "title": "A title"}),
        json!({"sessionUpdate": "usage_update", "used": 5, "size": 10,
            "cost": {"amount": 0.5, "currency": "USD"}}),
        json!({"sessionUpdate": "plan", "entries": [
            {"content": "one", "priority": "high", "status": "in_progress"}]}),
        json!({"sessionUpdate": "notice", "severity": "warning", "title": "Low", "description": "x"}),
        json!({"sessionUpdate": "tool_call", "toolCallId": "c-1", "title": "Edit", "kind": "edit",
            "status": "pending", "rawInput": {"path": "a.txt"},
            "locations": [{"path": "/workspace/a.txt", "line": 3}],
            "content": [{"type": "diff", "path": "/workspace/a.txt", "oldText": "a", "newText": "b"}]}),
        json!({"sessionUpdate": "tool_call_update", "toolCallId": "c-1", "status": "completed",
            "content": [{"type": "content", "content": {"type": "text", "text": "done"}}]}),
    ];
    let drill = drill_of("acp", 1, "", "");
    let script: Vec<String> = updates
        .iter()
        .map(|update| {
            let params = json!({"sessionId": "{session}", "update": update});
            let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
            format!("raw {line}")
        })
        .collect();
    for understands in [true, false] {
        let mut editor = Editor::silent(&drill, "demo");
        let can = if understands {
            json!({"session": {"notices": {}}})
        } else {
            json!({})
        };
        let params = json!({"protocolVersion": 1, "clientCapabilities": can});
        editor.call("initialize", &params);
        let session = editor.open(&drill);
        editor.prompt(&session, &script.join("\n"));
        let reported = |kind: &str| -> Vec<Value> {
            let all = editor.updates.iter().map(|of| of["update"].clone());
            all.filter(|of| of["sessionUpdate"] == kind).collect()
        };
        // As they were, but for what an editor names otherwise.
        for update in &updates[..4] {
            let kind = update["sessionUpdate"].as_str().expect("a kind");
            assert!(
                reported(kind).contains(update),
                "{kind}: {:?}",
                reported(kind)
            );
        }
        let notices = reported("notice");
        assert_eq!(notices.contains(&updates[4]), understands, "{notices:?}");
        let root = drill.workspace().display().to_string();
        let call = &reported("tool_call")[0];
        let path = format!("{root}/a.txt");
        assert_eq!(call["locations"], json!([{"path": path, "line": 3}]));
        let diff = json!({"type": "diff", "path": path, "oldText": "a", "newText": "b"});
        assert_eq!(call["content"], json!([diff]));
        assert_eq!(call["rawInput"], json!({"path": "a.txt"}));
        let ends = reported("tool_call_update");
        let end = ends.iter().find(|of| of["status"] == "completed");
        let text = json!({"type": "content", "content": {"type": "text", "text": "done"}});
        assert_eq!(end.expect("an end")["content"], json!([diff, text]));
        assert_eq!(editor.leave(), Some(0));
    }
}
