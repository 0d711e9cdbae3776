//! Inputs that have more than one reading.

use serde_json::value::RawValue;

use super::Extractor;
use crate::Request;

#[test]
fn an_input_that_readers_read_differently_is_malformed_whatever_the_tool() {
    let table = Extractor::parse(super::builtin_text("acp").expect("built in")).expect("the table");
    let extract = |input: &str| {
        let input = RawValue::from_string(input.to_owned()).expect("JSON");
        table.extract("db_delete", &input)
    };
    for input in [
        r#"{"id":1,"id":2}"#,
        r#"{"a":[{"id":1,"id":2}]}"#,
        r#"{"v":"\ud800"}"#,
    ] {
        let request = extract(input);
        assert!(matches!(request, Request::Malformed { .. }), "{request:?}");
    }
    let request = extract(r#"{"id":1e400}"#);
    assert!(matches!(request, Request::Unknown { .. }), "{request:?}");
}

#[test]
fn an_input_that_is_there_and_says_nothing_is_malformed_where_it_is_asked_for() {
    let table = Extractor::parse(super::builtin_text("acp").expect("built in")).expect("the table");
    let raw = |input: &str| RawValue::from_string(input.to_owned()).expect("JSON");
    let malformed = |kind: &str, input: &str| {
        let request = table.extract(kind, &raw(input));
        let is_malformed = matches!(request, Request::Malformed { .. });
        assert!(is_malformed, "{kind} {input}: {request:?}");
    };
    let kinds = [
        "execute", "read", "search", "edit", "delete", "move", "fetch",
    ];
    for kind in kinds {
        malformed(kind, r#"{"rawInput":{}}"#);
        malformed(kind, r#"{"rawInput":{"command":null,"path":null}}"#);
    }
    malformed(
        "execute",
        r#"{"rawInput":{"cwd":"/workspace","timeout":5}}"#,
    );
    for input in [
        // What no table knows may be the command.
        r#"{"rawInput":{"script":"ls"}}"#,
        r#"{"rawInput":{"command":"ls","cmd":"pwd"}}"#,
        r#"{"rawInput":null}"#,
        "{}",
    ] {
        let request = table.extract("execute", &raw(input));
        let is_unknown = matches!(request, Request::Unknown { .. });
        assert!(is_unknown, "{input}: {request:?}");
    }
    // What an agent showed of a call may be its beginning.
    let request = table.extract_displayed("execute", &raw(r#"{"rawInput":{}}"#));
    assert!(matches!(request, Request::Unknown { .. }), "{request:?}");
}
