//! Every event survives a write and a read; files of earlier versions stay readable.

use std::collections::HashSet;
use std::time::Duration;

use super::*;
use marshal_model::limits;
use marshal_model::{
    AgentClaims, AgentInfo, ChoiceInfo, CommandInfo, Cost, DecidedBy, Decision, ErrorOrigin, Event,
    ExitClass, ExitStatus, OptionState, PermissionRequest, PermissionRequestId,
    PermissionRequestKey, PlanEntry, PoolName, TaskId, TaskRef, TaskSpec, TurnOutcome,
    UntrustedText, Usage, Verdict,
};

/// One line of the golden file: a kind, a version, a body, separated by tabs.
const GOLDEN_1: &str = include_str!("../golden/v1.tsv");

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("JSON")
}

fn encoded(event: &Event) -> String {
    let mut out = Vec::new();
    encode_into(event, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

fn foreign(text: &str) -> UntrustedText {
    UntrustedText::new(text)
}

fn permission_request() -> Event {
    Event::PermissionRequested {
        id: PermissionRequestId::new("a-1").expect("id"),
        request: PermissionRequest {
            key: PermissionRequestKey {
                id: "req \"7\"".to_owned(),
                serial: 0,
            },
            tool_id: Some(foreign("t1")),
            tool: foreign("bash"),
            input: raw(r#"{"command": "ls  -l", "n": 1.50}"#),
            claims: AgentClaims {
                active_mode: Some(foreign("prompt")),
                reason: Some(foreign("because")),
                ..AgentClaims::default()
            },
        },
    }
}

/// Every variant, once with every optional field and once without.
fn every_event() -> Vec<Event> {
    let mut events = course();

    events.extend(tools());
    events.extend(reports());
    events.extend(progress());
    events.extend(of_session());
    events.extend(offers());
    events.extend(super::egress_tests::events());
    events
}

fn course() -> Vec<Event> {
    vec![
        Event::PromptAccepted {
            task: Some(TaskId::new("t.1").expect("id")),
            attempt: 2,
            text: foreign("do it\n\u{1b}[31m \u{202e}漢"),
        },
        Event::PromptAccepted {
            task: None,
            attempt: 1,
            text: foreign(""),
        },
        child_started(4_000_000, "unshare", &[]),
        child_started(1, "none", &[]),
        Event::Ready(AgentInfo {
            protocol: "1".to_owned(),
            version: Some(foreign("0.3")),
            session: Some(foreign("abc")),
            model: Some(foreign("m")),
            mode: Some(foreign("prompt")),
            modes: Vec::new(),
            tools: vec![foreign("bash"), foreign("read_file")],
            context_window: Some(u64::MAX),
            cannot_resume: false,
        }),
        Event::Ready(AgentInfo {
            protocol: "1".to_owned(),
            ..AgentInfo::default()
        }),
        Event::TurnStarted {
            turn: Some(foreign("turn-1")),
        },
        Event::TurnStarted { turn: None },
        Event::TurnEnded {
            outcome: TurnOutcome::Completed,
            stop_reason: Some(foreign("end_turn")),
            usage: Usage {
                input: 3,
                output: 4,
            },
            detail: None,
        },
        Event::TurnEnded {
            outcome: TurnOutcome::Lost,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some("the child is gone".to_owned()),
        },
        Event::ChildExited {
            class: ExitClass::Signalled,
            status: Some(ExitStatus::Signal(9)),
            detail: "killed".to_owned(),
            stderr: vec![foreign("oh\u{7}"), foreign("")],
            memory_peak: None,
        },
        Event::ChildExited {
            class: ExitClass::SpawnFailed,
            status: None,
            detail: "no such program".to_owned(),
            stderr: Vec::new(),
            memory_peak: None,
        },
        Event::CheckEnded {
            status: Some(ExitStatus::Code(1)),
            output: foreign("FAIL"),
        },
        Event::CheckEnded {
            status: None,
            output: foreign(""),
        },
        Event::Quarantined {
            path: foreign(".envrc"),
            moved_to: Some("/s/quarantine/x/1/.envrc".to_owned()),
            detail: None,
        },
        Event::Quarantined {
            path: foreign("a\u{1b}/.git"),
            moved_to: None,
            detail: Some("cannot move it".to_owned()),
        },
        Event::ProgramRecorded {
            path: "/usr/bin/agent".to_owned(),
            sha256: "a1".to_owned(),
            was: None,
        },
        Event::ProgramRecorded {
            path: "/usr/bin/agent".to_owned(),
            sha256: "b2".to_owned(),
            was: Some("a1".to_owned()),
        },
    ]
}

fn of_session() -> Vec<Event> {
    vec![
        Event::UserText {
            delta: foreign("do it"),
        },
        Event::Commands {
            commands: vec![
                CommandInfo {
                    name: foreign("web"),
                    description: foreign("looks it up"),
                    hint: Some(foreign("words")),
                },
                CommandInfo {
                    name: foreign("x"),
                    description: foreign(""),
                    hint: None,
                },
            ],
        },
        Event::Options {
            options: vec![
                OptionState {
                    id: foreign("m"),
                    name: Some(foreign("Mode")),
                    category: Some(foreign("mode")),
                    value: Some(foreign("plan")),
                    choices: Vec::new(),
                    is_switch: false,
                },
                OptionState {
                    id: foreign("x"),
                    name: None,
                    category: None,
                    value: None,
                    choices: Vec::new(),
                    is_switch: false,
                },
            ],
        },
        Event::SessionInfo {
            title: Some(foreign("a title")),
            updated_at: Some(foreign("2026-01-01T00:00:00Z")),
        },
        Event::SessionInfo {
            title: None,
            updated_at: None,
        },
        Event::Notice {
            severity: Some(foreign("warning")),
            title: foreign("slow"),
            description: Some(foreign("the model is slow")),
        },
        Event::Notice {
            severity: None,
            title: foreign(""),
            description: None,
        },
        Event::Compaction {
            id: foreign("c-1"),
            status: Some(foreign("failed")),
            error: Some(foreign("no room")),
        },
        Event::Compaction {
            id: foreign("c-1"),
            status: None,
            error: None,
        },
        Event::CompactionText {
            id: foreign("c-1"),
            delta: foreign("in short"),
        },
        Event::SessionResumed {
            how: "session/load".into(),
            replayed: 3,
        },
        Event::SessionFresh {
            instead_of: SessionId::new("s-1").expect("id"),
            why: "it is not in its list".to_owned(),
            history_omitted: false,
        },
    ]
}

fn child_started(pid: u32, launcher: &'static str, sandbox: &[&str]) -> Event {
    Event::ChildStarted {
        pid,
        launcher: launcher.into(),
        sandbox_gaps: Vec::new(),
        limits: None,
        sandbox_layers: sandbox.iter().map(|layer| (*layer).to_owned()).collect(),
    }
}

/// Events and fields that were added to version 1 later.
fn offers() -> Vec<Event> {
    vec![
        child_started(2, "ssh", &[]),
        child_started(3, "unshare", &["uid slot", "landlock 6"]),
        Event::Ready(AgentInfo {
            protocol: "1".to_owned(),
            mode: Some(foreign("ask")),
            modes: vec![
                ChoiceInfo {
                    id: foreign("ask"),
                    name: Some(foreign("Ask")),
                },
                ChoiceInfo {
                    id: foreign("plan"),
                    name: None,
                },
            ],
            ..AgentInfo::default()
        }),
        Event::Options {
            options: vec![
                OptionState {
                    id: foreign("llm"),
                    name: None,
                    category: Some(foreign("model")),
                    value: Some(foreign("a")),
                    choices: vec![ChoiceInfo {
                        id: foreign("a"),
                        name: Some(foreign("A")),
                    }],
                    is_switch: false,
                },
                OptionState {
                    id: foreign("fast"),
                    name: None,
                    category: None,
                    value: Some(foreign("true")),
                    choices: Vec::new(),
                    is_switch: true,
                },
            ],
        },
    ]
}

fn tools() -> Vec<Event> {
    vec![
        Event::ToolStart {
            id: foreign("t1"),
            name: foreign("bash"),
            input: raw(r#"{"command":"ls","big":123456789012345678901234567890}"#),
        },
        Event::ToolResult {
            id: foreign("t1"),
            output: foreign("a\u{0}b"),
            is_error: true,
            took: Some(Duration::from_micros(1_500)),
        },
        Event::ToolResult {
            id: foreign("t2"),
            output: foreign(""),
            is_error: false,
            took: None,
        },
        permission_request(),
        Event::PermissionDecided(Verdict {
            request: PermissionRequestId::new("a-1").expect("id"),
            decision: Decision::Deny,
            decided_by: DecidedBy::Policy,
            rules: vec!["guard/secrets".to_owned(), "p1/3".to_owned()],
            reason: "secrets are not for agents".to_owned(),
        }),
        Event::PermissionDecided(Verdict {
            request: PermissionRequestId::new("a-2").expect("id"),
            decision: Decision::Allow,
            decided_by: DecidedBy::Default,
            rules: Vec::new(),
            reason: String::new(),
        }),
        Event::UnrequestedToolCall {
            id: foreign("t3"),
            tool: foreign("bash"),
            decision: Decision::Ask,
            rules: vec!["p1/4".to_owned()],
        },
        Event::UnrequestedToolCall {
            id: foreign("t4"),
            tool: foreign("bash"),
            decision: Decision::Allow,
            rules: Vec::new(),
        },
        Event::FileUpdated {
            tool: foreign("write_file"),
            path: foreign("notes.txt"),
            sha256: None,
            version: None,
        },
        Event::TerminalStarted {
            terminal: "terminal-1".to_owned(),
            argv: vec![foreign("ls"), foreign("-l\u{7}")],
            cwd: foreign("/workspace"),
            by: None,
        },
        Event::TerminalStarted {
            terminal: "exec-1".to_owned(),
            argv: vec![foreign("bash")],
            cwd: foreign("/workspace"),
            by: Some("uid 0".to_owned()),
        },
        Event::TerminalOutput {
            terminal: "terminal-1".to_owned(),
            delta: foreign("a\u{1b}[2J"),
        },
        Event::TerminalEnded {
            terminal: "terminal-1".to_owned(),
            status: Some(ExitStatus::Signal(15)),
            written_bytes: 3_000_000,
            omitted_bytes: 2,
        },
        Event::TerminalEnded {
            terminal: "terminal-2".to_owned(),
            status: None,
            written_bytes: 0,
            omitted_bytes: 0,
        },
    ]
}

fn reports() -> Vec<Event> {
    vec![
        Event::Text {
            delta: foreign("hello \"world\"\n"),
        },
        Event::Thought {
            delta: foreign("hm"),
        },
        Event::Usage(Usage {
            input: 10,
            output: 0,
        }),
        Event::StateChanged {
            model: Some(foreign("m2")),
            mode: Some(foreign("plan")),
            context_pct: Some(12.5),
            context_window: Some(200_000),
        },
        Event::StateChanged {
            model: None,
            mode: None,
            context_pct: None,
            context_window: None,
        },
        Event::SlashResult {
            command: foreign("model"),
            text: foreign("ok"),
            data: Some(raw(r#"{"model" : "m2"}"#)),
            clear_session: true,
            exit: true,
        },
        Event::SlashResult {
            command: foreign("help"),
            text: foreign(""),
            data: None,
            clear_session: false,
            exit: false,
        },
        Event::AgentError {
            code: foreign("rate_limit"),
            message: foreign("slow down"),
            origin: ErrorOrigin::Remote,
        },
        Event::Unknown {
            tag: foreign("new_thing"),
            raw: raw(r#"{"type":"new_thing"}"#),
        },
        Event::BadLine {
            reason: "bad_json".into(),
            head: foreign("{oops"),
        },
    ]
}

/// Events of calls and plans in progress.
fn progress() -> Vec<Event> {
    vec![
        Event::ToolUpdate {
            id: foreign("t5"),
            name: Some(foreign("execute")),
            title: Some(foreign("list files")),
            status: Some(foreign("in_progress")),
            input: Some(raw(r#"{"rawInput":{"command":"ls"}}"#)),
        },
        Event::ToolUpdate {
            id: foreign("t6"),
            name: None,
            title: None,
            status: None,
            input: None,
        },
        Event::Plan {
            entries: vec![
                PlanEntry {
                    content: foreign("look"),
                    priority: Some(foreign("high")),
                    status: Some(foreign("pending")),
                },
                PlanEntry {
                    content: foreign(""),
                    priority: None,
                    status: None,
                },
            ],
        },
        Event::ContextUsed {
            used: 10,
            size: 200_000,
            cost: Some(Cost {
                amount: 0.00021,
                currency: foreign("USD"),
            }),
        },
        Event::ContextUsed {
            used: 0,
            size: 0,
            cost: None,
        },
    ]
}

#[test]
fn every_event_reads_back_as_it_was() {
    let events = every_event();
    let kinds: HashSet<EventKind> = events.iter().map(Event::kind).collect();
    assert_eq!(
        kinds.len(),
        EventKind::ALL.len(),
        "every variant is in the list"
    );
    for event in events {
        let body = encoded(&event);
        let back = decode(event.kind().as_str(), VERSION, &body).expect("readable");
        assert_eq!(format!("{back:?}"), format!("{event:?}"), "{body}");
        assert_eq!(encoded(&back), body);
    }
}

#[test]
fn raw_json_is_kept_byte_for_byte() {
    let Event::PermissionRequested {
        request: permission_request,
        ..
    } = decode(
        "permission_requested",
        VERSION,
        &encoded(&permission_request()),
    )
    .expect("readable")
    else {
        panic!("another variant")
    };
    assert_eq!(
        permission_request.input.get(),
        r#"{"command": "ls  -l", "n": 1.50}"#
    );
}

/// The golden file of version 1 stays readable, and is still written byte for byte. A line may be
/// added for a new kind; no line may change.
#[test]
fn the_golden_file_of_version_1_is_read_and_written_byte_for_byte() {
    let mut kinds = HashSet::new();
    for line in GOLDEN_1.lines() {
        let mut cells = line.splitn(3, '\t');
        let (kind, version, body) = (
            cells.next().expect("kind"),
            cells.next().expect("version").parse().expect("number"),
            cells.next().expect("body"),
        );
        let event = decode(kind, version, body).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(event.kind().as_str(), kind);
        assert_eq!(encoded(&event), body);
        kinds.insert(event.kind());
    }
    let missing: Vec<_> = EventKind::ALL
        .iter()
        .filter(|k| !kinds.contains(k))
        .collect();
    assert!(
        missing.is_empty(),
        "add a line to the golden file: {missing:?}"
    );
    let written: Vec<String> = every_event()
        .iter()
        .map(|event| format!("{}\t{VERSION}\t{}", event.kind(), encoded(event)))
        .collect();
    assert_eq!(GOLDEN_1.lines().collect::<Vec<_>>(), written);
}

#[test]
fn an_unknown_field_of_a_newer_writer_is_ignored() {
    let event = decode("text", 1, r#"{"delta":"x","colour":"red"}"#).expect("readable");
    assert_eq!(encoded(&event), r#"{"delta":"x"}"#);
}

#[test]
fn what_cannot_be_understood_is_named() {
    let check = |kind: &str, version, body: &str, expect: &str| {
        let error = decode(kind, version, body)
            .expect_err("unreadable")
            .to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    };
    check("holo", 1, "{}", "event kind \"holo\" is unknown");
    check("text", 2, "{}", "version 2 is newer");
    check("text", 1, "{}", "body of a text event is damaged");
    check("text", 1, "nonsense", "body of a text event is damaged");
    check(
        "turn_ended",
        1,
        r#"{"outcome":"great","usage":{"input":0,"output":0}}"#,
        "\"great\" is not a valid turn outcome",
    );
}

#[test]
fn the_input_of_an_ask_beyond_its_limit_is_left_out_and_its_length_told() {
    let Event::PermissionRequested {
        id,
        request: mut permission_request,
    } = permission_request()
    else {
        panic!("another variant")
    };
    permission_request.input = raw(&format!(
        "\"{}\"",
        "x".repeat(limits::PERMISSION_INPUT_BYTES)
    ));
    let body = encoded(&Event::PermissionRequested {
        id,
        request: permission_request,
    });
    assert!(body.len() < 1000, "{} bytes", body.len());
    assert!(body.contains(&format!(
        "\"input_bytes\":{}",
        limits::PERMISSION_INPUT_BYTES + 2
    )));
    assert!(body.contains("\"input\":null"));
}

#[test]
fn a_line_is_one_json_object_with_the_body_inside() {
    let session = SessionId::new("s-1").expect("id");
    let stamped = StampedEvent {
        id: EventId { epoch: 3, seq: 117 },
        at_us: 42,
        event: Event::Text {
            delta: foreign("a\nb"),
        },
    };
    let line =
        r#"{"v":1,"session":"s-1","id":"3-117","at_us":42,"kind":"text","body":{"delta":"a\nb"}}"#;
    assert_eq!(to_json(&stamped, &session), line);
}

#[test]
fn what_a_task_asks_for_is_read_back() {
    let full = TaskSpec {
        id: TaskId::new("t.1").expect("id"),
        prompt: foreign("do \u{1b} it"),
        pool: Some(PoolName::new("demo").expect("name")),
        workspace: Some("/srv/a b".into()),
        attempts: Some(3),
        check: Some(vec!["test".to_owned(), "-e".to_owned(), "\"x\"".to_owned()]),
        files: vec!["src/a b".to_owned()],
        embedded_files: vec!["README.md".to_owned()],
        policy_layer: Some("night".to_owned()),
        land: Some("main".to_owned()),
        priority: -7,
        depends_on: vec![TaskRef::parse("r-1:t-1").expect("a task")],
    };
    let bare = TaskSpec {
        pool: None,
        workspace: None,
        attempts: None,
        check: None,
        files: Vec::new(),
        embedded_files: Vec::new(),
        policy_layer: None,
        land: None,
        priority: 0,
        depends_on: Vec::new(),
        ..full.clone()
    };
    for spec in [full, bare] {
        let text = spec_json(&spec);
        let read = read_spec(spec.id.as_str(), &spec.prompt, &text).expect(&text);
        assert_eq!(read, spec);
    }
    let bad = r#"{"pool":"Not A Pool"}"#;
    for (id, text) in [("t", "x"), ("../t", "{}"), ("t", bad)] {
        let error = read_spec(id, &foreign(""), text).expect_err(text);
        let text = error.to_string();
        assert!(text.starts_with("the specification of task "), "{text}");
    }
}
