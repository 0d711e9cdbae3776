//! Names and forms, read and refused.

use super::*;

fn named(name: &str) -> RequestName {
    RequestName::parse(name).expect(name)
}

#[test]
fn only_names_of_the_fixed_form_are_requests() {
    let name = named("cmd_007_a.b-c_d.json");
    assert_eq!((name.stem(), name.id()), ("cmd_007_a.b-c_d", "a.b-c_d"));
    assert_eq!(name.file(), "cmd_007_a.b-c_d.json");
    assert_eq!(named("note.txt").stem(), "note");
    let long = format!("{}.txt", "a".repeat(ID));
    assert!(RequestName::parse(&long).is_some());
    let longer = format!("{}.txt", "a".repeat(ID + 1));
    for other in [
        "",
        ".",
        "..",
        ".txt",
        "..txt",
        ".note.txt",
        ".note.txt.Xa12bQ",
        ".cmd_1_a.json.Xa12bQ",
        "note.txt~",
        "note.txt.tmp.17",
        "note.TXT",
        "a/b.txt",
        "../a.txt",
        "a b.txt",
        "a\u{202e}.txt",
        "-a.txt",
        "cmd_1_a.json.tmp.9",
        "cmd_1_.json",
        "cmd__a.json",
        "cmd_x_a.json",
        "cmd_-1_a.json",
        "cmd_+1_a.json",
        "cmd_1.json",
        "cmd_1_.a.json",
        "cmd_1_../a.json",
        "cmd_1111111111111111111_a.json",
        "other.json",
        &longer,
    ] {
        assert_eq!(RequestName::parse(other), None, "{other}");
    }
}

#[test]
fn commands_go_by_their_number_and_texts_come_after_them() {
    let mut names = [
        "b.txt",
        "cmd_10_a.json",
        "a.txt",
        "cmd_9_z.json",
        "cmd_0100_a.json",
        "cmd_9_b.json",
    ]
    .map(named);
    names.sort();
    let order = names.iter().map(RequestName::file).collect::<Vec<_>>();
    let want = [
        "cmd_9_b.json",
        "cmd_9_z.json",
        "cmd_10_a.json",
        "cmd_0100_a.json",
        "a.txt",
        "b.txt",
    ];
    assert_eq!(order, want);
}

#[test]
fn a_cancel_may_call_a_request_by_any_of_its_names() {
    let name = named("cmd_3_abc.json");
    for called in ["abc", "cmd_3_abc", "cmd_3_abc.json"] {
        assert!(name.is_called(called), "{called}");
    }
    assert!(!name.is_called("3") && !name.is_called("ab") && !name.is_called(""));
}

const WHOLE: &str = r#"{"cmd_id":"a","seq":1,"kind":"prompt","payload":"say hi","timeout_s":60,
 "cancel_policy":"ctrl_c","marker":{"prefix":"__SP_DONE__","token":"a","mode":"runner_inject"},
 "files":["src/lib.rs"],"priority":-3}"#;

#[test]
fn a_request_is_read_as_a_master_writes_it() {
    let read = request(&named("cmd_1_a.json"), WHOLE.as_bytes()).expect("a request");
    assert_eq!(read.prompt.raw(), "say hi");
    assert_eq!(read.timeout, Some(Duration::from_secs(60)));
    assert_eq!(
        (read.files, read.priority),
        (vec!["src/lib.rs".to_owned()], -3)
    );
    let text = request(&named("a.txt"), "say hi\n".as_bytes()).expect("a request");
    assert_eq!((text.prompt.raw(), text.timeout), ("say hi\n", None));
}

#[test]
fn what_is_whole_and_wrong_is_refused_and_says_why() {
    let check = |from: &str, to: &str, why: &str| {
        assert!(WHOLE.contains(from), "{from}");
        let text = WHOLE.replace(from, to);
        let fault = request(&named("cmd_1_a.json"), text.as_bytes()).expect_err(to);
        assert!(
            matches!(&fault, Fault::Refused(told) if told.contains(why)),
            "{to}: {fault:?}"
        );
    };
    check(
        r#""kind":"prompt""#,
        r#""kind":"tcl""#,
        r#"key "kind" is "tcl": only "prompt""#,
    );
    check(r#""cmd_id":"a""#, r#""cmd_id":"../a""#, "key \"cmd_id\"");
    check(r#""cmd_id":"a""#, r#""cmd_id":7"#, "invalid type");
    check(r#""seq":1"#, r#""seq":2"#, "key \"seq\" is 2");
    check(r#""seq":1"#, r#""seq":-1"#, "invalid value");
    check(
        r#""payload":"say hi""#,
        r#""payload":" ""#,
        "key \"payload\" is empty",
    );
    check(
        r#""payload":"say hi""#,
        r#""payload":"x","payload":"y""#,
        "duplicate field",
    );
    check(
        r#""timeout_s":60"#,
        r#""timeout_s":0"#,
        "key \"timeout_s\" is 0",
    );
    check(
        r#""timeout_s":60"#,
        r#""timeout":60"#,
        "unknown field `timeout`",
    );
    check("src/lib.rs", "../secret", "key \"files\"");
    check("[\"src/lib.rs\"]", "7", "key \"files\": invalid type");
    check(
        "\"priority\":-3",
        "\"priority\":1,\"priority\":2",
        "duplicate field `priority`",
    );
    check(
        "\"timeout_s\":60",
        "\"timeout_s\":1.5",
        "\"timeout_s\" is 1.5",
    );
    check("\"marker\":{", "\"marker\":7,\"x\":{", "invalid type");
    check(r#""priority":-3"#, r#""priority":101"#, "key \"priority\"");
    let long = "x".repeat(limits::PROMPT_BYTES + 1);
    let fault = request(&named("a.txt"), long.as_bytes()).expect_err("too long");
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
}

#[test]
fn every_beginning_of_a_request_may_become_one() {
    let name = named("cmd_1_a.json");
    for end in 0..WHOLE.len() {
        let fault = request(&name, &WHOLE.as_bytes()[..end]).expect_err("half");
        assert!(matches!(fault, Fault::Broken(_)), "{end}: {fault:?}");
    }
    for bytes in [&b"\xff{"[..], b"[1]", b"null", b"{} {}", b"\0"] {
        assert!(request(&name, bytes).is_err(), "{bytes:?}");
    }
    for bytes in [&b""[..], b" \n", b"\xc3"] {
        let fault = request(&named("a.txt"), bytes).expect_err("no prompt");
        assert!(matches!(fault, Fault::Broken(_)), "{bytes:?}: {fault:?}");
    }
}

#[test]
fn cancels_and_stops_are_read_strictly() {
    assert_eq!(
        cancel(br#"{"scope":"current","cmd_id":null,"ts":"1"}"#),
        Ok(Cancel::Current)
    );
    let one = cancel(br#"{"scope":"cmd_id","cmd_id":"a"}"#);
    assert_eq!(one, Ok(Cancel::Command("a".to_owned())));
    for bad in [
        r#"{"scope":"cmd_id"}"#,
        r#"{"scope":"current","cmd_id":"a"}"#,
        r#"{"scope":"all"}"#,
        r#"{"scope":"current","more":1}"#,
    ] {
        let fault = cancel(bad.as_bytes()).expect_err(bad);
        assert!(matches!(fault, Fault::Refused(_)), "{bad}: {fault:?}");
    }
    assert_eq!(
        stop(br#"{"mode":"graceful","ts":1}"#),
        Ok(StopMode::Graceful)
    );
    assert_eq!(stop(br#"{"mode":"force"}"#), Ok(StopMode::Force));
    assert!(matches!(stop(br#"{"mode":"now"}"#), Err(Fault::Refused(_))));
    assert!(matches!(stop(br#"{"mode":"#), Err(Fault::Broken(_))));
}

#[test]
fn an_answer_is_a_file_or_only_its_name() {
    let of = |name: &str, text: &str| {
        let name = AnswerName::parse(name).expect(name);
        answer(&name, text.as_bytes())
    };
    let allowed = of("0190-a.allow", "whatever").expect("an answer");
    assert_eq!((allowed.decision, allowed.reason), (Decision::Allow, None));
    assert_eq!(
        of("a.deny", "").expect("an answer").decision,
        Decision::Deny
    );
    let said = of("a.json", r#"{"answer":"deny","reason":"no","digest":"d"}"#).expect("an answer");
    assert_eq!(said.reason.as_ref().map(Foreign::raw), Some("no"));
    assert_eq!(said.digest.as_deref(), Some("d"));
    for bad in [
        r#"{"answer":"yes"}"#,
        r#"{"answer":"allow","remember":"session"}"#,
        "{}",
    ] {
        assert!(matches!(of("a.json", bad), Err(Fault::Refused(_))), "{bad}");
    }
    assert!(matches!(
        of("a.json", r#"{"answer""#),
        Err(Fault::Broken(_))
    ));
    for name in [
        "a",
        ".allow",
        "a.allowed",
        ".a.allow",
        "../a.allow",
        "a.json.tmp",
    ] {
        assert_eq!(AnswerName::parse(name), None, "{name}");
    }
}

#[test]
fn outcomes_have_a_word_of_the_protocol() {
    use TaskOutcome as O;
    for (outcome, is_late, status) in [
        (Some(O::Done), false, Status::Ok),
        (Some(O::Done), true, Status::Ok),
        (Some(O::Cancelled), false, Status::Cancelled),
        (Some(O::Cancelled), true, Status::Timeout),
        (Some(O::TimedOut), false, Status::Timeout),
        (Some(O::Denied), false, Status::Error),
        (Some(O::Lost), false, Status::Error),
        (None, false, Status::Error),
    ] {
        assert_eq!(status_of(outcome, is_late), status, "{outcome:?}");
    }
    assert_eq!(stamp(1_707_221_123_456_789), "1707221123456");
}
