//! Forms of files and names, and the marker in pieces of output, for inputs that nobody thought of.

use marshal_wire::skillpilot::marker::{
    Marker, MarkerTemplate, PayloadTemplate, Scanner, ToolKind,
};
use marshal_wire::skillpilot::{
    CancelScope, CommandName, MarkerMode, MarkerSpec, ReadError, RunnerPhase, StopMode, Strictness,
    read_command, read_lease, read_time,
};
use proptest::prelude::*;

/// As a Runner reads them.
fn read_cancel(content: &[u8]) -> Result<CancelScope, ReadError> {
    marshal_wire::skillpilot::read_cancel(content, Strictness::Lenient)
}

fn read_stop(content: &[u8]) -> Result<StopMode, ReadError> {
    marshal_wire::skillpilot::read_stop(content, Strictness::Lenient)
}

fn spec(mode: MarkerMode) -> MarkerSpec {
    MarkerSpec {
        prefix: "__SP_DONE__".to_owned(),
        token: "t".to_owned(),
        mode,
    }
}

/// What a scanner gives for output that comes in these pieces, and whether it saw the marker.
fn scanned(mode: MarkerMode, output: &[u8], cuts: &[usize]) -> (Vec<u8>, bool) {
    let mut scanner = Scanner::new(Marker::new(&spec(mode), "secret"));
    let mut out = Vec::new();
    let mut from = 0;
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (output.len() + 1)).collect();
    cuts.push(output.len());
    cuts.sort_unstable();
    for cut in cuts {
        if scanner.feed(&output[from..cut], &mut out) {
            return (out, true);
        }
        from = cut;
    }
    scanner.finish(&mut out);
    (out, false)
}

#[test]
fn a_marker_is_found_wherever_the_pieces_are_cut() {
    let inject = b"a\n__SP_DONE__ t\n__SP_DONE__ t secretx__SP_DONE__ t secret0\nmore";
    let before = b"a\n__SP_DONE__ t\n__SP_DONE__ t secretx";
    let line = b"a __SP_DONE__ t\n__SP_DONE__ tt\n__SP_DONE__ t\r\nmore";
    let before_line = b"a __SP_DONE__ t\n__SP_DONE__ tt\n";
    for cut in 0..=inject.len() {
        let found = scanned(MarkerMode::RunnerInject, inject, &[cut]);
        assert_eq!(found, (before.to_vec(), true), "cut at {cut}");
    }
    for cut in 0..=line.len() {
        let found = scanned(MarkerMode::PayloadContains, line, &[cut]);
        assert_eq!(found, (before_line.to_vec(), true), "cut at {cut}");
    }
}

#[test]
fn the_last_character_of_a_marker_says_whether_the_payload_failed() {
    let marker = Marker::new(&spec(MarkerMode::RunnerInject), "secret");
    for (printed, failed) in [
        ("__SP_DONE__ t secret0", false),
        ("__SP_DONE__ t secret1", true),
    ] {
        for cut in 0..=printed.len() {
            let mut scanner = Scanner::new(marker.clone());
            let mut out = Vec::new();
            let (one, other) = printed.as_bytes().split_at(cut);
            let found = scanner.feed(one, &mut out) || scanner.feed(other, &mut out);
            assert!(found && out.is_empty(), "{printed} cut at {cut}");
            assert_eq!(scanner.has_failed(), failed, "{printed} cut at {cut}");
        }
    }
    let template = MarkerTemplate::new("f|{head}|{tail}|{failed}").expect("a template");
    let line = template.render(&marker);
    let parts: Vec<&str> = line.trim_end().split('|').collect();
    assert_eq!(
        [parts[1], parts[2]].concat(),
        "__SP_DONE__ t secret0",
        "{line}"
    );
    assert_eq!(
        [parts[1], parts[3]].concat(),
        "__SP_DONE__ t secret1",
        "{line}"
    );
    assert!(MarkerTemplate::new("{head} {tail} {failed} {failed}").is_err());
}

#[test]
fn no_template_shows_the_marker_that_it_has_printed() {
    let marker = Marker::new(&spec(MarkerMode::RunnerInject), "secret");
    for kind in ToolKind::ALL {
        let template = MarkerTemplate::new(kind.marker).expect("a template");
        let line = template.render(&marker);
        assert!(!line.contains(marker.text()), "{kind:?}: {line}");
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
    }
    for bad in [
        "",
        "{head}",
        "{head}{tail}",
        "{head} {tail} {tail}",
        "{head}\n{tail}",
    ] {
        assert!(MarkerTemplate::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_payload_is_one_line_to_a_tool() {
    let payload = "a 'b'\n\u{e4}{hex}\n";
    for kind in ToolKind::ALL {
        let unit = PayloadTemplate::new(kind.payload_template).expect("a unit");
        let line = unit.render(payload);
        assert!(
            line.ends_with('\n') && line.matches('\n').count() == 1,
            "{line}"
        );
    }
    let line = |text: &str| PayloadTemplate::new(text).expect("a unit").render(payload);
    assert_eq!(line("e {hex}"), "e 61202762270ac3a47b6865787d0a\n");
    assert_eq!(
        line("e {octal}"),
        "e a\\040\\047b\\047\\012\\303\\244\\173hex\\175\\012\n"
    );
    for bad in ["", "eval", "{hex}{octal}", "{hex} {hex}", "a\n{hex}"] {
        assert!(PayloadTemplate::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn names_are_ordered_as_numbers() {
    let name = |text: &str| CommandName::parse(text);
    let ordered = [
        "cmd_2_b.json",
        "cmd_10_a.json",
        "cmd_10_b.json",
        "cmd_100_a.json",
    ];
    let mut names: Vec<_> = ordered.iter().rev().filter_map(|text| name(text)).collect();
    names.sort();
    let sorted: Vec<String> = names.iter().map(CommandName::file_name).collect();
    assert_eq!(sorted, ordered);
    for bad in [
        "cmd_1_a",
        "cmd_1_.json",
        "cmd__a.json",
        "cmd_x_a.json",
        "cmd_1_../a.json",
        "cmd_1_a/b.json",
        "cmd_-1_a.json",
        "cmd_99999999999999999999_a.json",
        "cmd_1_.a.json",
        "run_1_a.json",
        ".json",
    ] {
        assert_eq!(name(bad), None, "{bad}");
    }
    // A name is given back as it was.
    assert_eq!(
        name("cmd_007_a.json").map(|it| it.file_name()),
        Some("cmd_007_a.json".to_owned())
    );
}

#[test]
fn control_files_say_what_they_can_say() {
    assert_eq!(
        read_cancel(br#"{"scope":"current","cmd_id":null}"#),
        Ok(CancelScope::Current)
    );
    let named = read_cancel(br#"{"scope":"cmd_id","cmd_id":"x"}"#);
    assert_eq!(named, Ok(CancelScope::Command("x".to_owned())));
    assert!(read_cancel(br#"{"scope":"cmd_id"}"#).is_err());
    assert!(read_cancel(br#"{"scope":"all"}"#).is_err());
    assert_eq!(read_stop(br#"{"mode":"graceful"}"#), Ok(StopMode::Graceful));
    assert_eq!(read_stop(br#"{"mode":"force"}"#), Ok(StopMode::Force));
    assert!(read_stop(b"{}").is_err());
    // What Masters add of their own changes nothing for a Runner; another door refuses it.
    let more = br#"{"mode":"force","ts":1,"ts":2,"by":"x"}"#;
    assert_eq!(read_stop(more), Ok(StopMode::Force));
    let strict = |more: &[u8]| marshal_wire::skillpilot::read_stop(more, Strictness::Strict);
    assert!(matches!(strict(more), Err(ReadError::Invalid(_))));
    let one = br#"{"mode":"force","ts":1}"#;
    assert_eq!(strict(one), Ok(StopMode::Force));
    let both = br#"{"scope":"current","cmd_id":"x","why":"y"}"#;
    assert_eq!(read_cancel(both), Ok(CancelScope::Current));
    assert!(marshal_wire::skillpilot::read_cancel(both, Strictness::Strict).is_err());
    let name = CommandName::new(1, "a").expect("a name");
    let added = br#"{"cmd_id":"a","seq":1,"kind":"tcl","payload":"","priority":"high","x":{}}"#;
    assert!(read_command(&name, added, "tcl", 300).is_ok());
    // Not by the order of its members alone.
    let list = br#"["a",1,"tcl","puts 1"]"#;
    assert!(read_command(&name, list, "tcl", 300).is_err());
    assert_eq!(
        read_lease(br#"{"lease_id":"l","expires_at":"1707221123456"}"#),
        Ok(1_707_221_123_456)
    );
    assert_eq!(
        read_lease(br#"{"expires_at":1707221123456}"#),
        Ok(1_707_221_123_456)
    );
    assert_eq!(
        read_time("2024-02-06T12:05:23.456Z"),
        Some(1_707_221_123_456)
    );
    assert!(read_lease(br#"{"expires_at":null}"#).is_err());
}

#[test]
fn a_runner_that_stops_does_nothing_else() {
    use RunnerPhase::{Busy, Error, Idle, Starting, Stopping};
    for phase in [Starting, Idle, Busy, Error] {
        assert!(phase.can_become(Stopping));
        assert!(!Stopping.can_become(phase));
    }
    assert!(!Error.can_become(Busy) && !Starting.can_become(Busy));
}

proptest! {
    /// Output without a marker comes out as it is, in whatever pieces; with one, what stands before it does.
    #[test]
    fn nothing_of_the_output_is_lost(
        before in proptest::collection::vec(prop_oneof![Just(b'_'), Just(b'S'), Just(b'\n'), any::<u8>()], 0..200),
        cuts in proptest::collection::vec(0_usize..300, 0..8),
        has_marker in any::<bool>(),
        whole_line in any::<bool>(),
    ) {
        let mode = if whole_line { MarkerMode::PayloadContains } else { MarkerMode::RunnerInject };
        let marker = Marker::new(&spec(mode), "secret");
        let mut before = before;
        if whole_line {
            before.push(b'\n');
        }
        let mut output = before.clone();
        if has_marker {
            output.extend_from_slice(marker.text().as_bytes());
            output.extend_from_slice(b"\nmore");
        }
        prop_assert_eq!(scanned(mode, &output, &cuts), (before, has_marker));
    }

    /// No bytes make a reader panic, and what is read says what the name says.
    #[test]
    fn no_file_is_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,80}") {
        let name = CommandName::new(1, "a").expect("a name");
        let _ = read_command(&name, &bytes, "tcl", 300);
        let _ = read_cancel(&bytes);
        let _ = read_stop(&bytes);
        let _ = read_lease(&bytes);
        let _ = read_time(&text);
        if let Some(read) = CommandName::parse(&text) {
            prop_assert_eq!(read.file_name(), text.as_str());
        }
        let written = format!(r#"{{"cmd_id":"a","seq":1,"kind":"tcl","payload":{}}}"#, serde_json::json!(text));
        if let Ok(command) = read_command(&name, written.as_bytes(), "tcl", 300) {
            prop_assert_eq!(command.payload, text.as_str());
            prop_assert_eq!(command.timeout_s, Some(300));
        }
    }
}
