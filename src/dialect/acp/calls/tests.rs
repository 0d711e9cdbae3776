//! What is kept of calls, what they lend, and how much of them is told.

use super::*;

fn known(calls: &mut Calls, word: Word, json: &str) -> Known {
    let raw = RawValue::from_string(json.to_owned()).expect("JSON");
    let fields = CallFields::read(&raw).expect("a call");
    let known = calls.merge(&fields, word).1;
    assert!(known.is_readable, "{json}");
    known
}

/// The input that a request with these members has.
fn asked(calls: &mut Calls, json: &str) -> String {
    let known = known(calls, Word::Requested, json);
    known
        .input
        .expect("a request has its input")
        .get()
        .to_owned()
}

fn changed(calls: &mut Calls, json: &str) -> Option<String> {
    let input = known(calls, Word::Changed, json).input;
    input.map(|raw| raw.get().to_owned())
}

#[test]
fn what_a_message_does_not_mention_stays_as_it_was() {
    let mut calls = Calls::default();
    let first = r#"{"toolCallId":"c","title":"t","kind":"edit","rawInput":{"path":"a"},"locations":[{"path":"a"}],"content":[{"type":"diff","path":"a","newText":"x"},{"type":"content","content":{"type":"text","text":"y"}}]}"#;
    let whole = r#"{"rawInput":{"path":"a"},"content":[{"type":"diff","path":"a","newText":"x"}],"locations":[{"path":"a"}]}"#;
    let begun = known(&mut calls, Word::Announced, first);
    assert_eq!(begun.input.expect("told").get(), whole);
    calls.kept[0].announced = true;
    let bare = known(&mut calls, Word::Requested, r#"{"toolCallId":"c"}"#);
    assert_eq!(bare.input.expect("asked").get(), whole);
    assert_eq!((bare.name.raw(), bare.renamed), ("edit", false));
    let empty = r#"{"toolCallId":"c","rawInput":{ },"locations":[ ],"content":[],"title":null}"#;
    assert_eq!(asked(&mut calls, empty), whole);
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
        Word::Changed,
        r#"{"toolCallId":"c","kind":"read"}"#,
    );
    assert!(other.renamed && other.input.is_none());
}

#[test]
fn a_call_that_nobody_announced_has_no_kind() {
    let bare = r#"{"toolCallId":"c","title":"ls"}"#;
    let bare = known(&mut Calls::default(), Word::Requested, bare);
    assert_eq!(
        (bare.name.raw(), bare.input.expect("asked").get()),
        ("other", r#"{"title":"ls"}"#)
    );
}

#[test]
fn a_call_that_is_over_and_one_announced_anew_lend_nothing() {
    let first = r#"{"toolCallId":"c","kind":"execute","rawInput":{"command":"ls"},"locations":[{"path":"a"}]}"#;
    for word in [Word::Requested, Word::Announced] {
        let mut calls = Calls::default();
        drop(known(&mut calls, Word::Announced, first));
        calls.kept[0].announced = true;
        calls.kept[0].ended = true;
        let later = known(&mut calls, word, r#"{"toolCallId":"c"}"#);
        assert_eq!(
            (later.name.raw(), later.input.expect("told").get()),
            ("other", "{}")
        );
    }
    let mut calls = Calls::default();
    drop(known(&mut calls, Word::Announced, first));
    calls.kept[0].announced = true;
    let anew = r#"{"toolCallId":"c","rawInput":{"command":"rm"}}"#;
    let anew = known(&mut calls, Word::Announced, anew);
    assert_eq!(
        anew.input.expect("changed").get(),
        r#"{"rawInput":{"command":"rm"}}"#
    );
    assert!(anew.renamed);
    let nothing = known(&mut calls, Word::Announced, r#"{"toolCallId":"c"}"#);
    assert_eq!(nothing.input.expect("taken back").get(), "{}");
}

#[test]
fn a_call_of_another_session_lends_nothing() {
    let mut calls = Calls::default();
    let json = r#"{"toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}}"#;
    let raw = RawValue::from_string(json.to_owned()).expect("JSON");
    let mut fields = CallFields::read(&raw).expect("a call");
    fields.of_session("x");
    assert_eq!(fields.id().raw(), "x/c");
    drop(calls.merge(&fields, Word::Announced).1);
    assert_eq!(asked(&mut calls, r#"{"toolCallId":"c"}"#), "{}");
    assert_eq!(asked(&mut calls, r#"{"toolCallId":"x/c"}"#), "{}");
}

#[test]
fn small_messages_make_no_more_be_told_than_has_a_bound() {
    let mut calls = Calls::default();
    let long = "x".repeat(limits::ASK_INPUT_BYTES / 2);
    let kind = "k".repeat(1 << 20);
    let first = format!(
        r#"{{"toolCallId":"c","title":"{kind}","kind":"{kind}","locations":[{{"path":"{long}"}}]}}"#
    );
    let begun = known(&mut calls, Word::Announced, &first);
    assert_eq!(begun.name.len(), limits::CALL_KIND_BYTES);
    assert_eq!(
        begun.title.expect("a title").len(),
        limits::CALL_TITLE_BYTES
    );
    calls.kept[0].announced = true;
    let (mut came, mut told, mut refused) = (0, 0, 0);
    for n in 0..1000 {
        let json = format!(r#"{{"toolCallId":"c","rawInput":[{}]}}"#, n % 2);
        came += json.len();
        let later = known(&mut calls, Word::Changed, &json);
        assert!(!later.renamed);
        let input = later.input.expect("it changed");
        told += input.get().len();
        refused += usize::from(input.get() == SPENT);
    }
    assert!(told <= 2 * came + limits::RETOLD_CALLS_BYTES, "{told}");
    assert!(refused > 0);
    // A request is not judged by what is not told, until others were answered.
    let bare = r#"{"toolCallId":"c"}"#;
    let spent = known(&mut calls, Word::Requested, bare);
    assert!(!spent.is_whole && spent.input.expect("asked").get() == SPENT);
    calls.answered();
    assert!(known(&mut calls, Word::Requested, bare).is_whole);
}

#[test]
fn a_long_difference_keeps_its_path() {
    let long = "x".repeat(limits::DIFF_BYTES);
    let json = format!(
        r#"{{"toolCallId":"c","content":[{{"type":"diff","path":"a","newText":"{long}"}}]}}"#
    );
    assert_eq!(
        asked(&mut Calls::default(), &json),
        r#"{"content":[{"type":"diff","path":"a"}]}"#
    );
}

#[test]
fn what_is_too_large_to_be_kept_cannot_be_judged_later() {
    let mut calls = Calls::default();
    let long = "x".repeat(limits::ASK_INPUT_BYTES);
    let json = format!(r#"{{"toolCallId":"c","rawInput":{{"command":"{long}"}}}}"#);
    assert!(asked(&mut calls, &json).len() > limits::ASK_INPUT_BYTES);
    let later = known(&mut calls, Word::Requested, r#"{"toolCallId":"c"}"#);
    assert!(!later.is_whole && later.input.expect("asked").get() == OVERSIZE);
}

#[test]
fn calls_are_kept_within_bounds() {
    let mut calls = Calls::default();
    let half = "x".repeat(limits::ASK_INPUT_BYTES / 2);
    for n in 0..3 * limits::KEPT_CALLS {
        drop(changed(&mut calls, &format!(r#"{{"toolCallId":"{n}"}}"#)));
    }
    assert_eq!(calls.kept.len(), limits::KEPT_CALLS);
    for n in 0..3 * limits::KEPT_CALLS {
        drop(changed(
            &mut calls,
            &format!(r#"{{"toolCallId":"b{n}","rawInput":["{half}"]}}"#),
        ));
        assert!(calls.bytes <= limits::KEPT_CALLS_BYTES);
    }
    let sum: usize = calls.kept.iter().map(Call::bytes).sum();
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
        let mut calls = Calls::default();
        let known = calls.merge(&fields, Word::Changed).1;
        assert!(!known.is_readable && !known.is_whole, "{content}");
        // Nor is what it says later all of it.
        assert_eq!(asked(&mut calls, r#"{"toolCallId":"c"}"#), UNREADABLE);
    }
}
