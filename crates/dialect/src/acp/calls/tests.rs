//! What is stored of calls, what they share, and how much of them is reported.

use super::*;

fn known(calls: &mut ToolCalls, word: MessageKind, json: &str) -> MergedCall {
    let raw = RawValue::from_string(json.to_owned()).expect("JSON");
    let fields = CallFields::read(&raw).expect("a call");
    let known = calls.merge(&fields, word).1;
    assert!(known.is_readable, "{json}");
    known
}

/// The input that a request with these members has.
fn requested_input(calls: &mut ToolCalls, json: &str) -> String {
    let known = known(calls, MessageKind::PermissionRequest, json);
    known
        .input
        .expect("a request has its input")
        .get()
        .to_owned()
}

fn changed(calls: &mut ToolCalls, json: &str) -> Option<String> {
    let input = known(calls, MessageKind::ToolCallUpdate, json).input;
    input.map(|raw| raw.get().to_owned())
}

#[test]
fn what_a_message_does_not_mention_stays_as_it_was() {
    let mut calls = ToolCalls::default();
    let first = r#"{"toolCallId":"c","title":"t","kind":"edit","rawInput":{"path":"a"},"locations":[{"path":"a"}],"content":[{"type":"diff","path":"a","newText":"x"},{"type":"content","content":{"type":"text","text":"y"}}]}"#;
    let whole = r#"{"rawInput":{"path":"a"},"content":[{"type":"diff","path":"a","newText":"x"}],"locations":[{"path":"a"}]}"#;
    let begun = known(&mut calls, MessageKind::ToolCall, first);
    assert_eq!(begun.input.expect("told").get(), whole);
    calls.calls[0].is_announced = true;
    let bare = known(
        &mut calls,
        MessageKind::PermissionRequest,
        r#"{"toolCallId":"c"}"#,
    );
    assert_eq!(bare.input.expect("asked").get(), whole);
    assert_eq!((bare.name.raw(), bare.is_renamed), ("edit", false));
    let empty = r#"{"toolCallId":"c","rawInput":{ },"locations":[ ],"content":[],"title":null}"#;
    assert_eq!(requested_input(&mut calls, empty), whole);
    assert_eq!(changed(&mut calls, empty), None);
    assert_eq!(changed(&mut calls, first), None);
    let own = r#"{"toolCallId":"c","rawInput":{"path":"b"}}"#;
    let own = changed(&mut calls, own).expect("changed");
    assert!(
        own.starts_with(r#"{"rawInput":{"path":"b"},"content""#),
        "{own}"
    );
    let other = known(
        &mut calls,
        MessageKind::ToolCallUpdate,
        r#"{"toolCallId":"c","kind":"read"}"#,
    );
    assert!(other.is_renamed && other.input.is_none());
}

#[test]
fn a_call_that_nobody_announced_has_no_kind() {
    let bare = r#"{"toolCallId":"c","title":"ls"}"#;
    let bare = known(
        &mut ToolCalls::default(),
        MessageKind::PermissionRequest,
        bare,
    );
    assert_eq!(
        (bare.name.raw(), bare.input.expect("asked").get()),
        ("other", r#"{"title":"ls"}"#)
    );
}

#[test]
fn a_call_that_is_over_and_one_announced_anew_lend_nothing() {
    let first = r#"{"toolCallId":"c","kind":"execute","rawInput":{"command":"ls"},"locations":[{"path":"a"}]}"#;
    for word in [MessageKind::PermissionRequest, MessageKind::ToolCall] {
        let mut calls = ToolCalls::default();
        drop(known(&mut calls, MessageKind::ToolCall, first));
        calls.calls[0].is_announced = true;
        calls.calls[0].has_ended = true;
        let later = known(&mut calls, word, r#"{"toolCallId":"c"}"#);
        assert_eq!(
            (later.name.raw(), later.input.expect("told").get()),
            ("other", "{}")
        );
    }
    let mut calls = ToolCalls::default();
    drop(known(&mut calls, MessageKind::ToolCall, first));
    calls.calls[0].is_announced = true;
    let anew = r#"{"toolCallId":"c","rawInput":{"command":"rm"}}"#;
    let anew = known(&mut calls, MessageKind::ToolCall, anew);
    assert_eq!(
        anew.input.expect("changed").get(),
        r#"{"rawInput":{"command":"rm"}}"#
    );
    assert!(anew.is_renamed);
    let nothing = known(&mut calls, MessageKind::ToolCall, r#"{"toolCallId":"c"}"#);
    assert_eq!(nothing.input.expect("taken back").get(), "{}");
}

#[test]
fn a_call_of_another_session_lends_nothing() {
    let mut calls = ToolCalls::default();
    let json = r#"{"toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}}"#;
    let raw = RawValue::from_string(json.to_owned()).expect("JSON");
    let mut fields = CallFields::read(&raw).expect("a call");
    fields.set_session("x");
    assert_eq!(fields.id().raw(), "x/c");
    drop(calls.merge(&fields, MessageKind::ToolCall).1);
    assert_eq!(requested_input(&mut calls, r#"{"toolCallId":"c"}"#), "{}");
    assert_eq!(requested_input(&mut calls, r#"{"toolCallId":"x/c"}"#), "{}");
}

#[test]
fn small_messages_make_no_more_be_told_than_has_a_bound() {
    let mut calls = ToolCalls::default();
    let long = "x".repeat(limits::PERMISSION_INPUT_BYTES / 2);
    let kind = "k".repeat(1 << 20);
    let first = format!(
        r#"{{"toolCallId":"c","title":"{kind}","kind":"{kind}","locations":[{{"path":"{long}"}}]}}"#
    );
    let begun = known(&mut calls, MessageKind::ToolCall, &first);
    assert_eq!(begun.name.len(), limits::CALL_KIND_BYTES);
    assert_eq!(
        begun.title.expect("a title").len(),
        limits::CALL_TITLE_BYTES
    );
    calls.calls[0].is_announced = true;
    let (mut came, mut told, mut refused) = (0, 0, 0);
    for n in 0..1000 {
        let json = format!(r#"{{"toolCallId":"c","rawInput":[{}]}}"#, n % 2);
        came += json.len();
        let later = known(&mut calls, MessageKind::ToolCallUpdate, &json);
        assert!(!later.is_renamed);
        let input = later.input.expect("it changed");
        told += input.get().len();
        refused += usize::from(input.get() == REPEAT_LIMIT);
    }
    assert!(told <= 2 * came + limits::REPEATED_CALLS_BYTES, "{told}");
    assert!(refused > 0);
    // A request is not evaluated by what was not reported, until others were answered.
    let bare = r#"{"toolCallId":"c"}"#;
    let spent = known(&mut calls, MessageKind::PermissionRequest, bare);
    assert!(!spent.is_complete && spent.input.expect("asked").get() == REPEAT_LIMIT);
    calls.release_repeated_bytes();
    assert!(known(&mut calls, MessageKind::PermissionRequest, bare).is_complete);
}

#[test]
fn a_long_difference_keeps_its_path() {
    let long = "x".repeat(limits::DIFF_BYTES);
    let json = format!(
        r#"{{"toolCallId":"c","content":[{{"type":"diff","path":"a","newText":"{long}"}}]}}"#
    );
    assert_eq!(
        requested_input(&mut ToolCalls::default(), &json),
        r#"{"content":[{"type":"diff","path":"a"}]}"#
    );
}

#[test]
fn what_is_too_large_to_be_kept_cannot_be_judged_later() {
    let mut calls = ToolCalls::default();
    let long = "x".repeat(limits::PERMISSION_INPUT_BYTES);
    let json = format!(r#"{{"toolCallId":"c","rawInput":{{"command":"{long}"}}}}"#);
    assert!(requested_input(&mut calls, &json).len() > limits::PERMISSION_INPUT_BYTES);
    let later = known(
        &mut calls,
        MessageKind::PermissionRequest,
        r#"{"toolCallId":"c"}"#,
    );
    assert!(!later.is_complete && later.input.expect("asked").get() == OVERSIZE);
}

#[test]
fn calls_are_kept_within_bounds() {
    let mut calls = ToolCalls::default();
    let half = "x".repeat(limits::PERMISSION_INPUT_BYTES / 2);
    for n in 0..3 * limits::REMEMBERED_CALLS {
        drop(changed(&mut calls, &format!(r#"{{"toolCallId":"{n}"}}"#)));
    }
    assert_eq!(calls.calls.len(), limits::REMEMBERED_CALLS);
    for n in 0..3 * limits::REMEMBERED_CALLS {
        drop(changed(
            &mut calls,
            &format!(r#"{{"toolCallId":"b{n}","rawInput":["{half}"]}}"#),
        ));
        assert!(calls.bytes <= limits::REMEMBERED_CALLS_BYTES);
    }
    let sum: usize = calls.calls.iter().map(ToolCall::bytes).sum();
    assert_eq!(sum, calls.bytes);
    calls.clear();
    assert_eq!(calls.bytes, 0);
}

#[test]
fn content_of_a_shape_that_we_do_not_know_is_unreadable() {
    for content in [
        "7",
        "{}",
        "[7]",
        r#"[{"type":"diff","path":"a","path":"b"}]"#,
    ] {
        let json = format!(r#"{{"toolCallId":"c","content":{content}}}"#);
        let raw = RawValue::from_string(json).expect("JSON");
        let fields = CallFields::read(&raw).expect("a call");
        let mut calls = ToolCalls::default();
        let known = calls.merge(&fields, MessageKind::ToolCallUpdate).1;
        assert!(!known.is_readable && !known.is_complete, "{content}");
        // Nor is what it says later all of it.
        assert_eq!(
            requested_input(&mut calls, r#"{"toolCallId":"c"}"#),
            UNREADABLE
        );
    }
}
