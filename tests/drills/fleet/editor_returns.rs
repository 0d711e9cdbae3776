//! Conversations whose child ends between turns: idle, killed, or of an agent that cannot load.

use std::time::Duration;

use serde_json::{Value, json};

use crate::drill::{Drill, eventually};
use crate::editor::{Editor, PermissionAnswer};
use crate::fleet::editors::{DIALECTS, copy, daemon, drill_of, events, nothing_runs, text};

const IDLE: &str = "timeouts = { idle = \"300ms\" }";

fn fresh_told(editor: &Editor) -> usize {
    let is = |of: &&Value| {
        let text = of["update"]["content"]["text"].as_str();
        text.is_some_and(|text| text.contains("[marshal] The agent could not resume"))
    };
    editor.updates.iter().filter(is).count()
}

#[test]
fn a_quiet_child_is_stopped_and_the_next_prompt_brings_the_session_back_as_it_was() {
    for dialect in DIALECTS {
        let drill = drill_of(dialect, 1, "", IDLE);
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        // Also one that nobody has said anything to: there is nothing to remember.
        nothing_runs(&drill);
        editor.prompt(&session, "say one\nwrite kept.txt 1");
        nothing_runs(&drill);
        assert_eq!(fresh_told(&editor), 0, "{dialect}");
        editor.updates.clear();
        assert_eq!(editor.prompt(&session, "recall\nread kept.txt"), "end_turn");
        assert_eq!(fresh_told(&editor), 0, "{dialect}");
        let reported = |kind: &str| editor.kinds().iter().filter(|of| **of == kind).count();
        assert_eq!(reported("user_message_chunk"), 0, "{dialect}");
        assert_eq!(reported("tool_call"), 1, "{dialect}");
        let text = editor.take_agent_text();
        assert!(text.contains("say one"), "{dialect}: {text}");
        assert!(text.contains("`kept.txt` has 2 bytes"), "{text}");
        if dialect == "acp" {
            assert_eq!(events(&drill, "session_resumed"), 1);
        }
        assert_eq!(events(&drill, "session_fresh"), 0, "{dialect}");
        assert_eq!(events(&drill, "prompt_accepted"), 2, "{dialect}");
        assert_eq!(events(&drill, "tool_start"), 2, "{dialect}");
        assert_eq!(drill.assert_dense(), 1);
    }
}

#[test]
fn a_setting_of_a_session_without_a_child_holds_in_the_next() {
    let drill = drill_of("acp", 1, ", \"--quirk\", \"modes\"", IDLE);
    let mut editor = Editor::start(&drill, "demo");
    let session = editor.open(&drill);
    editor.prompt(&session, "say one");
    nothing_runs(&drill);
    let mut set = |mode: &str| {
        let params = json!({"sessionId": session, "modeId": mode});
        editor.call("session/set_mode", &params)
    };
    assert_eq!(set("plan")["result"], json!({}));
    assert_eq!(set("yolo")["error"]["code"], -32602);
    assert_eq!(editor.prompt(&session, "say two"), "end_turn");
    let modes = "SELECT json_extract(body, '$.mode') FROM events WHERE kind = 'ready' ORDER BY seq";
    let modes = text(&drill, modes);
    assert_eq!(modes.last().map(String::as_str), Some("plan"), "{modes:?}");
}

/// Kills them, and waits until their supervisor knows: a prompt for one that has just died is lost.
fn kill_agents(drill: &Drill) {
    let before = events(drill, "child_exited");
    for pid in drill.agents() {
        let pid = pid.to_string();
        let _ = std::process::Command::new("kill")
            .args(["-KILL", &pid])
            .status();
    }
    eventually(Duration::from_secs(60), "the end is known", || {
        events(drill, "child_exited") > before
    });
}

#[test]
fn a_child_that_is_killed_between_turns_comes_back_with_the_next_prompt() {
    for dialect in DIALECTS {
        let drill = drill_of(dialect, 1, "", "");
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        editor.prompt(&session, "say one");
        kill_agents(&drill);
        editor.updates.clear();
        assert_eq!(editor.prompt(&session, "recall"), "end_turn", "{dialect}");
        assert_eq!(fresh_told(&editor), 0, "{dialect}");
        let text = editor.take_agent_text();
        assert!(text.contains("say one"), "{dialect}: {text}");
        assert_eq!(drill.assert_dense(), 1);
        // It may have been taken in twice, if the child was not known to be gone; not so for people.
        assert_eq!(editor.leave(), Some(0));
        let mut editor = Editor::start(&drill, "demo");
        editor.load(&drill, &session);
        let mut reported = editor.kinds();
        reported.retain(|kind| *kind == "user_message_chunk");
        assert_eq!(reported.len(), 2, "{dialect}");
    }
}

#[test]
fn an_agent_without_a_way_back_begins_anew_and_the_user_reads_so_before_its_answer() {
    // By ACP an agent that has no `session/load`; by ScaiFlux a pool without `read_resume_args`.
    for dialect in DIALECTS {
        let flags = match dialect {
            "acp" => ", \"--quirk\", \"no-load\"",
            _ => "",
        };
        let drill = drill_of(dialect, 1, flags, "");
        if dialect == "scaiflux" {
            let file = drill.path("supervisor.toml");
            let config = std::fs::read_to_string(&file).expect("the configuration");
            let without: Vec<_> = config
                .lines()
                .filter(|line| !line.starts_with("resume_args"))
                .collect();
            std::fs::write(&file, without.join("\n")).expect("the configuration");
        }
        let mut editor = Editor::start(&drill, "demo");
        let session = editor.open(&drill);
        editor.prompt(&session, "say one\nwrite kept.txt 1");
        kill_agents(&drill);
        editor.updates.clear();
        assert_eq!(editor.prompt(&session, "recall\nread kept.txt"), "end_turn");
        assert_eq!(fresh_told(&editor), 1, "{dialect}: {:?}", editor.updates);
        let first = editor.updates[0]["update"]["content"]["text"].as_str();
        let is_first = first.is_some_and(|text| text.starts_with("[marshal]"));
        assert!(is_first, "{dialect}: {:?}", editor.updates[0]);
        let shown = editor.take_agent_text();
        assert!(!shown.contains("say one"), "{dialect}: {shown}");
        assert!(shown.contains("`kept.txt` has 2 bytes"), "{shown}");
        assert_eq!(events(&drill, "session_fresh"), 1, "{dialect}");
        assert!(copy(&drill, &session).join("kept.txt").exists());
        assert_eq!(drill.assert_dense(), 1);
    }
}

#[test]
fn a_session_is_loaded_while_its_earlier_client_is_still_being_let_go() {
    let drill = drill_of("acp", 1, "", "timeouts = { cancel = \"1s\" }");
    let mut daemon = daemon(&drill);
    for round in 0..2 {
        let mut first = Editor::start(&drill, "demo");
        let session = first.open(&drill);
        first.prompt(&session, "say one");
        first.says = PermissionAnswer::Nothing;
        first.begin(&session, "ignore-cancel\nwrite no.txt x\nsleep 60s");
        first.until("it is asked", |editor| !editor.asked.is_empty());
        let mut second = Editor::start(&drill, "demo");
        first.child.kill().expect("kill -9");
        // At once, so that the load waits for the end of what the first began.
        let mut reply = second.load(&drill, &session);
        eventually(Duration::from_secs(60), "it can be loaded", || {
            if reply["error"].is_object() {
                reply = second.load(&drill, &session);
            }
            reply["result"].is_object()
        });
        assert!(second.take_agent_text().contains("one"), "{round}");
        assert_eq!(second.prompt(&session, "recall"), "end_turn", "{round}");
        assert!(second.take_agent_text().contains("say one"), "{round}");
        assert_eq!(second.leave(), Some(0));
        drill.assert_dense();
    }
    daemon.signal("TERM");
    assert_eq!(daemon.wait(Duration::from_secs(60)), Some(0));
}
