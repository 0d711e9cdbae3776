//! Conversations of editors with agents on an SSH host.

use std::fs;

use serde_json::{Value, json};

use crate::drill::Drill;
use crate::editor::Editor;
use crate::ssh::ssh_host::SshHost;

fn open(editor: &mut Editor, far: &SshHost, session: Option<&str>) -> Value {
    let mut params = json!({"cwd": far.work(), "mcpServers": []});
    let Some(session) = session else {
        return editor.call("session/new", &params);
    };
    params["sessionId"] = session.into();
    editor.call("session/load", &params)
}

#[test]
fn an_editor_talks_to_an_agent_at_a_far_end_and_loads_the_session_again() {
    let far = SshHost::start();
    for dialect in ["acp", "scaiflux"] {
        let resume = match dialect {
            "acp" => "dialect = \"acp\"",
            _ => "resume_args = [\"--resume\", \"{session}\"]\ndialect = \"scaiflux\"",
        };
        let pool = far
            .pool(&far.keys(), "")
            .replace("dialect = \"acp\"", resume)
            .replace("\"acp\"]", &format!("\"{dialect}\"]"));
        let drill = Drill::new(&pool);
        let mut editor = Editor::start(&drill, "far");
        let elsewhere = editor.call("session/new", &json!({"cwd": "/", "mcpServers": []}));
        let message = elsewhere["error"]["message"].as_str().expect("a message");
        assert!(message.contains("is not the workspace"), "{message}");
        let reply = open(&mut editor, &far, None);
        let session = reply["result"]["sessionId"].as_str();
        let session = session.unwrap_or_else(|| panic!("{reply}")).to_owned();
        let file = format!("{dialect}-talk.txt");
        let reason = editor.prompt(&session, &format!("say one\nwrite {file} hello"));
        assert_eq!(reason, "end_turn", "{dialect}");
        let text = fs::read_to_string(far.work().join(&file));
        assert_eq!(text.expect("it is at the far end"), "hello\n");
        assert_eq!(editor.leave(), Some(0));

        let mut editor = Editor::start(&drill, "far");
        let reply = open(&mut editor, &far, Some(&session));
        assert!(reply["result"].is_object(), "{dialect}: {reply}");
        assert!(editor.take_agent_text().contains("one"), "{dialect}");
        assert_eq!(editor.prompt(&session, "recall"), "end_turn", "{dialect}");
        let shown = editor.take_agent_text();
        assert!(shown.contains("say one"), "{dialect}: {shown}");
        assert_eq!(editor.leave(), Some(0));
        drill.assert_dense();
    }
}
