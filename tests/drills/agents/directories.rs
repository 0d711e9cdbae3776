//! Where an agent's shell begins its next command: as its preset says, and judged there.

use crate::agents::bench::{Model, PATIENCE, alone, events, in_copy, result, run_output, start};
use crate::agents::codex::SERVER;
use crate::agents::five::{CLAUDE, CODEX, GEMINI, HERMES, Kind, OPENCODE, drill};

/// How long a shell keeps its directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Not,
    /// While its turn goes on.
    Turn,
    Always,
}

fn keeps_its_directory(kind: &Kind, keeps: Keeps) {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(kind, &model);
    let here = "RUN: cd src\nRUN: touch here.txt\nSAY: bye";
    let next = "RUN: touch next.txt\nSAY: bye";
    let tasks = [("here", here), ("next", next)];
    let mut running = start(&drill, &model.key, "moves", &tasks);
    let _ = running.wait(PATIENCE);
    let all = run_output(&drill, "moves");
    let here = result(&drill, "moves", "here");
    assert_eq!(here["outcome"], "done", "{all}");
    let there = |file: &str| in_copy(&here, file).exists();
    assert_eq!(there("src/here.txt"), keeps != Keeps::Not, "{all}");
    assert_eq!(there("here.txt"), keeps == Keeps::Not, "{all}");
    assert_eq!(there("src/next.txt"), keeps == Keeps::Always, "{all}");
    assert_eq!(there("next.txt"), keeps != Keeps::Always, "{all}");
    let session = here["session"].as_str().expect("a session");
    for kind in ["permission_decided", "tool_call_unrequested"] {
        for event in events(&drill, session, kind) {
            assert_eq!(event["decision"], "allow", "{event}\n{all}");
        }
    }
}

#[test]
fn claude_goes_on_where_its_last_command_of_the_turn_ended() {
    keeps_its_directory(&CLAUDE, Keeps::Turn);
}

#[test]
fn hermes_goes_on_where_its_last_command_ended() {
    keeps_its_directory(&HERMES, Keeps::Always);
}

#[test]
fn codex_begins_every_command_at_the_root() {
    keeps_its_directory(&CODEX, Keeps::Not);
}

#[test]
fn codex_app_server_begins_every_command_at_the_root() {
    keeps_its_directory(&SERVER, Keeps::Not);
}

#[test]
fn gemini_begins_every_command_at_the_root() {
    keeps_its_directory(&GEMINI, Keeps::Not);
}

#[test]
fn opencode_begins_every_command_at_the_root() {
    keeps_its_directory(&OPENCODE, Keeps::Not);
}
