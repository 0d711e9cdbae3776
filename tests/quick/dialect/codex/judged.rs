//! What the built-in table makes of the calls that the dialect tells.

use marshal_policy::Request;
use marshal_policy::extract::{Extractor, builtin_text};
use serde_json::value::RawValue;

fn read(tool: &str, call: &str) -> Request {
    let table = Extractor::parse(builtin_text("codex").unwrap()).unwrap();
    let input = RawValue::from_string(format!("{{\"call\":{call}}}")).unwrap();
    table.extract(tool, &input)
}

#[track_caller]
fn is_unknown(tool: &str, call: &str) {
    let read = read(tool, call);
    assert!(
        matches!(read, Request::Unknown { .. }),
        "{tool} {call}: {read:?}"
    );
}

#[test]
fn a_command_is_what_its_shell_is_given() {
    let shell = |command: &str, cwd: &str| Request::Shell {
        command: command.to_owned(),
        cwd: Some(cwd.to_owned()),
    };
    let words = r#"{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/w"}"#;
    assert_eq!(read("commandExecution", words), shell("mkdir a", "/w"));
    let line = r#"{"command":"ls; rm x","cwd":"/w"}"#;
    assert_eq!(read("commandExecution", line), shell("ls; rm x", "/w"));
}

#[test]
fn changes_are_all_their_files() {
    let list = r#"{"changes":[{"path":"/w/a","kind":{"type":"add"},"diff":"x"},{"path":"/w/b","kind":{"type":"update","move_path":null}}]}"#;
    let paths = vec!["/w/a".to_owned(), "/w/b".to_owned()];
    assert_eq!(
        read("fileChange", list),
        Request::Write {
            paths: paths.clone()
        }
    );
    assert_eq!(read("fileDelete", list), Request::Delete { paths });
    let moved = r#"{"changes":[{"path":"/w/a","kind":{"type":"update","move_path":"/w/b"}},{"path":"/w/c","kind":{"type":"update","move_path":"/w/d"}}]}"#;
    assert_eq!(
        read("fileMove", moved),
        Request::Move {
            from: vec!["/w/a".to_owned(), "/w/c".to_owned()],
            to: vec!["/w/b".to_owned(), "/w/d".to_owned()],
        }
    );
}

#[test]
fn a_tool_of_a_server_has_its_arguments() {
    let call = r#"{"server":"s","tool":"t","arguments":{"a":1}}"#;
    let Request::Mcp {
        server,
        name,
        arguments,
    } = read("mcpToolCall", call)
    else {
        panic!("{:?}", read("mcpToolCall", call));
    };
    assert_eq!((server.raw(), name.raw()), ("s", "t"));
    assert_eq!(arguments, serde_json::json!({"a": 1}));
}

#[test]
fn what_nobody_knows_is_no_tool() {
    is_unknown(
        "commandExecution",
        r#"{"command":["ls"],"cwd":"/w","environmentId":"cloud"}"#,
    );
    is_unknown(
        "commandExecution",
        r#"{"command":["ls"],"cwd":"/w","networkApprovalContext":{"host":"h"}}"#,
    );
    is_unknown("writeStdin", r#"{"command":["cat"],"cwd":"/w"}"#);
    is_unknown(
        "fileChanges",
        r#"{"changes":[{"path":"/w/a","kind":{"type":"add"}}]}"#,
    );
    is_unknown("fileChange", r#"{"changes":[]}"#);
    is_unknown("webSearch", r#"{"query":"q"}"#);
    // A command that is not named is denied, whatever the policy says of unknown tools.
    let unnamed = read("commandExecution", r#"{"command":null,"cwd":"/w"}"#);
    assert!(matches!(unnamed, Request::Malformed { .. }), "{unnamed:?}");
}
