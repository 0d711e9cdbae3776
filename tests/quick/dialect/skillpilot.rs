//! SkillPilot's file control plane over a carrier: what each of its lines brings about, and what we write.

use std::sync::Arc;
use std::time::Duration;

use marshal_config::{DialectName, Runner};
use marshal_dialect::{Command, OpenParams};
use proptest::prelude::*;
use serde_json::Value;

use crate::dialect::script::Conversation;

const HELLO: &str = r#"{"type":"hello","protocol":1,"version":"9","runs":true,"session_id":"s","word":"w","next_seq":4}"#;
const THEIRS: &str =
    r#"{"type":"hello","protocol":1,"runs":false,"session_id":"s","word":"w","next_seq":4}"#;
const IDLE: &str = r#"{"type":"state","content":{"phase":"idle","session_id":"s"}}"#;

fn talk() -> Conversation {
    Conversation::new(DialectName::Skillpilot)
}

fn ready() -> Conversation {
    let mut talk = talk();
    talk.chunk(format!("{HELLO}\n{IDLE}\n").as_bytes());
    talk
}

fn prompt() -> Command {
    Command::Prompt {
        text: "puts 1".into(),
        attachments: Arc::default(),
    }
}

fn result(status: &str) -> String {
    format!(
        r#"{{"type":"result","command":"cmd_4_w-1","content":{{"cmd_id":"w-1","status":"{status}","exit_reason":"why","output_path":"/etc/passwd"}}}}"#
    )
}

#[test]
fn only_version_1_passes_and_nothing_is_written_before() {
    for version in ["2", "\"1\"", "1.0"] {
        let mut talk = talk();
        let hello = HELLO.replace("\"protocol\":1", &format!("\"protocol\":{version}"));
        talk.chunk(format!("{hello}\n").as_bytes());
        let effects = talk.effects_text();
        assert!(
            effects.contains("this supervisor speaks version 1"),
            "{effects}"
        );
        assert_eq!(talk.written_lines(), [""; 0]);
    }
}

#[test]
fn a_prompt_becomes_a_commands_file_and_its_result_the_end() {
    let mut talk = ready();
    let line = talk.command(prompt()).expect("sent");
    let put: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(put["path"], "queue/cmd_4_w-1.json");
    let command = &put["content"];
    assert_eq!(command["payload"], "puts 1");
    assert_eq!(command["seq"], 4);
    assert_eq!(command["kind"], "tcl");
    assert_eq!(command["timeout_s"], 300);
    assert_eq!(command["marker"]["token"], command["cmd_id"]);
    assert_eq!(talk.command(prompt()), Err("a turn is running".to_owned()));
    for (status, outcome) in [
        ("ok", "completed"),
        ("error", "failed"),
        ("timeout", "timed_out"),
        ("cancelled", "cancelled"),
    ] {
        let mut talk = ready();
        talk.command(prompt()).expect("sent");
        talk.chunk(b"{\"type\":\"output\",\"command\":\"cmd_4_w-1\",\"text\":\"1\\n\"}\n");
        talk.chunk(format!("{}\n", result(status)).as_bytes());
        let effects = talk.effects_text();
        let end = effects.lines().last().expect("an end");
        assert!(end.contains(outcome) && end.contains("why"), "{effects}");
        assert!(effects.contains("text '1"), "{effects}");
        assert!(
            !effects.contains("passwd"),
            "their paths are not looked at: {effects}"
        );
        // The next one has another number.
        let line = talk.command(prompt()).expect("sent");
        assert!(line.contains("queue/cmd_5_w-2.json"), "{line}");
    }
}

#[test]
fn two_commands_never_have_one_id_even_where_the_numbers_end() {
    let mut talk = talk();
    let last = HELLO.replace("\"next_seq\":4", &format!("\"next_seq\":{}", u64::MAX));
    talk.chunk(format!("{last}\n{IDLE}\n").as_bytes());
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let line = talk.command(prompt()).expect("sent");
        let put: Value = serde_json::from_str(&line).expect("JSON");
        let id = put["content"]["cmd_id"].as_str().expect("an id").to_owned();
        let path = put["path"].as_str().expect("a path");
        let command = path.trim_start_matches("queue/").trim_end_matches(".json");
        let ended = format!(
            r#"{{"type":"result","command":"{command}","content":{{"cmd_id":"{id}","status":"ok"}}}}"#
        );
        talk.chunk(format!("{ended}\n").as_bytes());
        assert!(ids.insert(id), "{line}");
    }
}

#[test]
fn cancel_names_its_command_once_and_goodbye_stops_our_own_runner_only() {
    let mut talk = ready();
    assert_eq!(talk.command(Command::Cancel), Ok(String::new()));
    talk.command(prompt()).expect("sent");
    let cancel = talk.command(Command::Cancel).expect("sent");
    assert!(
        cancel.contains("ctl/cancel.json") && cancel.contains(r#""scope":"cmd_id","cmd_id":"w-1""#),
        "{cancel}"
    );
    assert_eq!(talk.command(Command::Cancel), Ok(String::new()));
    let stop = talk.command(Command::Goodbye).expect("sent");
    assert!(
        stop.contains("ctl/stop.json") && stop.contains("graceful"),
        "{stop}"
    );
    assert_eq!(talk.command(Command::Goodbye), Ok(String::new()));
    let mut theirs = self::talk();
    theirs.chunk(format!("{THEIRS}\n{IDLE}\n{{\"type\":\"heartbeat\"}}\n").as_bytes());
    assert_eq!(theirs.command(Command::Goodbye), Ok(String::new()));
    assert!(
        theirs.effects_text().contains("close input"),
        "{}",
        theirs.effects_text()
    );
}

#[test]
fn somebody_elses_runner_must_show_that_it_lives() {
    let mut talk = talk();
    talk.chunk(format!("{THEIRS}\n{IDLE}\n").as_bytes());
    assert_eq!(
        talk.command(prompt()),
        Err("the agent is not ready".to_owned())
    );
    talk.chunk(b"{\"type\":\"heartbeat\"}\n");
    assert!(talk.command(prompt()).is_ok());
    // No lease for it that nobody wants.
    assert!(
        talk.written_lines()
            .iter()
            .all(|line| !line.contains("lease"))
    );
    // While a command runs it may be silent; afterwards not.
    talk.after(Duration::from_secs(3600));
    assert!(
        !talk.effects_text().contains("sign of life"),
        "{}",
        talk.effects_text()
    );
    talk.chunk(format!("{}\n", result("ok")).as_bytes());
    talk.after(Duration::from_secs(3600));
    assert!(
        talk.effects_text().contains("no sign of life"),
        "{}",
        talk.effects_text()
    );
}

#[test]
fn a_lease_is_renewed_before_it_expires() {
    let runner = Runner {
        lease: Some(Duration::from_secs(30)),
        ..Runner::default()
    };
    let opening = OpenParams {
        runner: Arc::new(runner),
        ..OpenParams::default()
    };
    let mut talk = Conversation::opened(DialectName::Skillpilot, &opening);
    talk.chunk(format!("{HELLO}\n{IDLE}\n").as_bytes());
    let leases = |talk: &Conversation| {
        let lines = talk.written_lines().into_iter();
        lines
            .filter(|line| line.contains("state/lease.json") && line.contains("\"in_ms\":30000"))
            .count()
    };
    assert_eq!(leases(&talk), 1);
    for _ in 0..6 {
        talk.after(Duration::from_secs(10));
        talk.chunk(b"{\"type\":\"heartbeat\"}\n");
    }
    assert_eq!(leases(&talk), 7);
}

#[test]
fn a_session_whose_tool_was_started_again_is_not_resumed() {
    let opening = OpenParams {
        resume: Some("s".into()),
        ..OpenParams::default()
    };
    let mut ours = Conversation::opened(DialectName::Skillpilot, &opening);
    ours.chunk(format!("{HELLO}\n").as_bytes());
    assert!(
        ours.effects_text().contains("remembers nothing"),
        "{}",
        ours.effects_text()
    );
    let mut theirs = Conversation::opened(DialectName::Skillpilot, &opening);
    theirs.chunk(format!("{THEIRS}\n{IDLE}\n{{\"type\":\"heartbeat\"}}\n").as_bytes());
    assert!(theirs.command(prompt()).is_ok());
}

#[test]
fn what_is_not_of_the_command_is_told_and_changes_nothing() {
    let mut talk = ready();
    talk.command(prompt()).expect("sent");
    talk.chunk(b"{\"type\":\"output\",\"command\":\"cmd_3_x\",\"text\":\"no\"}\n");
    talk.chunk(format!("{}\n", result("ok").replace("cmd_4_w-1", "cmd_3_x")).as_bytes());
    talk.chunk(b"{\"type\":\"moved\"}\nno JSON\n");
    let effects = talk.effects_text();
    assert_eq!(effects.matches("out_of_state").count(), 2, "{effects}");
    assert!(effects.contains("bad_json"), "{effects}");
    assert_eq!(talk.command(prompt()), Err("a turn is running".to_owned()));
    // A file that cannot be put ends what it was for.
    talk.chunk(b"{\"type\":\"refused\",\"path\":\"queue/cmd_4_w-1.json\",\"why\":\"full\"}\n");
    assert!(
        talk.effects_text().contains("full"),
        "{}",
        talk.effects_text()
    );
    assert!(talk.command(prompt()).is_ok());
}

proptest! {
    #[test]
    fn no_line_is_a_panic_and_none_makes_it_grow(lines in proptest::collection::vec(
        prop_oneof![
            Just(HELLO.to_owned()),
            Just(IDLE.to_owned()),
            Just(result("ok")),
            Just("{\"type\":\"heartbeat\"}".to_owned()),
            Just("{\"type\":\"output\",\"command\":\"cmd_4_w-1\",\"text\":\"x\"}".to_owned()),
            "\\PC{0,60}",
            "\\{\"type\":\"(hello|state|result|refused|output)\",\\PC{0,40}\\}",
        ], 0..40))
    {
        let mut talk = talk();
        for line in lines {
            talk.chunk(format!("{line}\n").as_bytes());
            let _ = talk.command(prompt());
        }
        talk.eof();
        prop_assert!(talk.effects.len() < 400);
        prop_assert!(talk.command(prompt()).is_err());
    }
}
