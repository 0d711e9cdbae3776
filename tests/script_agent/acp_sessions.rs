//! Sessions over the Agent Client Protocol: loaded, resumed, listed, kept apart.

use serde_json::json;

use crate::acp::code;
use crate::client::{Client, text, updates};
use crate::controller::{Agent, ledger};

#[test]
fn a_loaded_session_tells_its_history_first_and_a_resumed_one_tells_nothing() {
    let mut client = Client::new(&[]);
    client.turn("say one\nwrite a b");
    let id = client.prompt("say two\ncrash kill");
    assert!(id > 0);
    client.agent.exit();
    let ids = json!({
        "sessionId": client.session, "cwd": client.agent.path(), "mcpServers": [],
    });
    let mut loaded = client.again(&[]);
    let load = loaded.request("session/load", &ids);
    let history = loaded.rest_of_turn(load);
    let reported: Vec<(&str, &str)> = history[..history.len() - 1]
        .iter()
        .map(|line| {
            assert_eq!(line["params"]["sessionId"], client.session);
            let update = &line["params"]["update"];
            (
                update["sessionUpdate"].as_str().unwrap(),
                update["content"]["text"].as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(reported[0], ("user_message_chunk", "say one\nwrite a b"));
    assert_eq!(reported[1], ("tool_call", ""));
    assert_eq!(
        (reported[2].0, reported[2].1.starts_with("one\n")),
        ("agent_message_chunk", true)
    );
    assert_eq!(
        reported[3..],
        [("user_message_chunk", "say two\ncrash kill")]
    );
    let call = updates(&history, "tool_call")[0];
    assert_eq!(
        (&call["status"], &call["name"]),
        (&json!("completed"), &json!("write_file"))
    );
    assert_eq!(history.last().unwrap()["result"], json!({}));
    loaded.session.clone_from(&client.session);
    assert_eq!(
        text(&loaded.turn("recall")),
        "say one ⏎ write a b\nsay two ⏎ crash kill\n"
    );
    let mut resumed = client.again(&[]);
    assert_eq!(resumed.ask("session/resume", &ids)["result"], json!({}));
    resumed.session.clone_from(&client.session);
    assert_eq!(text(&resumed.turn("recall")).lines().count(), 3);
}

#[test]
fn a_session_that_is_unknown_unsafe_or_forgotten_cannot_be_loaded() {
    let mut client = Client::new(&[]);
    client.turn("say one");
    for id in ["unknown", "../x", "latest", ""] {
        for method in ["session/load", "session/resume"] {
            let params = json!({"sessionId": id, "cwd": "/", "mcpServers": []});
            let reply = client.ask(method, &params);
            assert_eq!(code(&reply), -32002, "{id}");
            assert_eq!(reply["error"]["data"]["sessionId"], id);
        }
    }
    let params = json!({"sessionId": client.session, "cwd": "/", "mcpServers": []});
    let mut forgetful = client.again(&["--forget"]);
    assert_eq!(code(&forgetful.ask("session/load", &params)), -32002);
    assert_eq!(code(&forgetful.ask("session/resume", &params)), -32002);
    assert_eq!(
        forgetful.ask("session/list", &json!({}))["result"]["sessions"],
        json!([])
    );
}

#[test]
fn sessions_are_listed_by_directory_and_by_page() {
    let mut client = Client::new(&["--workspace", "/"]);
    let first = client.session.clone();
    for _ in 0..51 {
        let reply = client.ask("session/new", &json!({"cwd": "/", "mcpServers": []}));
        assert!(reply["result"]["sessionId"].is_string());
    }
    let page = client.ask("session/list", &json!({"cwd": "/"}))["result"].clone();
    assert_eq!(page["sessions"].as_array().unwrap().len(), 50);
    let next = json!({"cwd": "/", "cursor": page["nextCursor"]});
    let page = client.ask("session/list", &next)["result"].clone();
    assert_eq!(page["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(page.get("nextCursor"), None);
    let here = json!({"cwd": client.agent.path()});
    let page = client.ask("session/list", &here)["result"].clone();
    assert_eq!(page["sessions"][0]["sessionId"], *first);
    assert!(
        page["sessions"][0]["updatedAt"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    assert_eq!(
        code(&client.ask("session/list", &json!({"cursor": "x"}))),
        -32602
    );
}

#[test]
fn two_sessions_of_one_process_know_and_work_each_their_own() {
    let mut client = Client::new(&[]);
    let other = tempfile::tempdir().unwrap();
    client.turn("say first\nwrite here 1");
    let params = json!({"cwd": other.path(), "mcpServers": []});
    let reply = client.ask("session/new", &params);
    let first = std::mem::replace(
        &mut client.session,
        reply["result"]["sessionId"].as_str().unwrap().to_owned(),
    );
    client.turn("write there 2");
    assert!(other.path().join("there").exists());
    client.session = first;
    assert_eq!(
        text(&client.turn("recall\nread here")).lines().next(),
        Some("say first ⏎ write here 1")
    );
}

#[test]
fn the_ledger_has_the_sessions_and_the_prompts() {
    let mut client = Client::new(&["--ledger", "ledger"]);
    client.turn("say one");
    let entries = ledger(&client.agent.path().join("ledger"));
    let kinds: Vec<&str> = entries
        .iter()
        .map(|e| e["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["start", "session", "prompt", "step"]);
    assert_eq!(entries[1]["how"], "new");
    for entry in &entries[1..] {
        assert_eq!(entry["session"], client.session);
    }
}

#[test]
fn the_flag_resume_is_not_for_this_protocol() {
    let mut agent = Agent::spawn_acp(&["--resume", "abc"]);
    assert_eq!(agent.exit().code(), Some(2));
    assert!(agent.stderr().contains("session/load"));
}
