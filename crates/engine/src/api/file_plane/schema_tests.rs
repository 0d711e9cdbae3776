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
        assert!(name.matches_name(called), "{called}");
    }
    assert!(!name.matches_name("3") && !name.matches_name("ab") && !name.matches_name(""));
}

const WHOLE: &str = r#"{"cmd_id":"a","seq":1,"kind":"prompt","payload":"say hi","timeout_s":60,
 "cancel_policy":"ctrl_c","marker":{"prefix":"__SP_DONE__","token":"a","mode":"runner_inject"},
 "files":["src/lib.rs"],"priority":-3}"#;

#[test]
fn a_request_is_read_as_a_master_writes_it() {
    let read = parse_request(&named("cmd_1_a.json"), WHOLE.as_bytes()).expect("a request");
    assert_eq!(read.prompt.raw(), "say hi");
    assert_eq!(read.timeout, Some(Duration::from_secs(60)));
    assert_eq!(
        (read.files, read.priority),
        (vec!["src/lib.rs".to_owned()], -3)
    );
    let text = parse_request(&named("a.txt"), "say hi\n".as_bytes()).expect("a request");
    assert_eq!((text.prompt.raw(), text.timeout), ("say hi\n", None));
}

#[test]
fn what_is_whole_and_wrong_is_refused_and_says_why() {
    let check = |from: &str, to: &str, why: &str| {
        assert!(WHOLE.contains(from), "{from}");
        let text = WHOLE.replace(from, to);
        let fault = parse_request(&named("cmd_1_a.json"), text.as_bytes()).expect_err(to);
        assert!(
            matches!(&fault, SchemaError::Refused(told) if told.contains(why)),
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
    let fault = parse_request(&named("a.txt"), long.as_bytes()).expect_err("too long");
    assert!(matches!(fault, SchemaError::Refused(_)), "{fault:?}");
}

#[test]
fn every_beginning_of_a_request_may_become_one() {
    let name = named("cmd_1_a.json");
    for end in 0..WHOLE.len() {
        let fault = parse_request(&name, &WHOLE.as_bytes()[..end]).expect_err("half");
        assert!(matches!(fault, SchemaError::Broken(_)), "{end}: {fault:?}");
    }
    for bytes in [&b"\xff{"[..], b"[1]", b"null", b"{} {}", b"\0"] {
        assert!(parse_request(&name, bytes).is_err(), "{bytes:?}");
    }
    for bytes in [&b""[..], b" \n", b"\xc3"] {
        let fault = parse_request(&named("a.txt"), bytes).expect_err("no prompt");
        assert!(
            matches!(fault, SchemaError::Broken(_)),
            "{bytes:?}: {fault:?}"
        );
    }
}

#[test]
fn cancels_and_stops_are_read_strictly() {
    assert_eq!(
        parse_cancel(br#"{"scope":"current","cmd_id":null,"ts":"1"}"#),
        Ok(CancelScope::Current)
    );
    let one = parse_cancel(br#"{"scope":"cmd_id","cmd_id":"a"}"#);
    assert_eq!(one, Ok(CancelScope::Command("a".to_owned())));
    for bad in [
        r#"{"scope":"cmd_id"}"#,
        r#"{"scope":"current","cmd_id":"a"}"#,
        r#"{"scope":"all"}"#,
        r#"{"scope":"current","more":1}"#,
    ] {
        let fault = parse_cancel(bad.as_bytes()).expect_err(bad);
        assert!(matches!(fault, SchemaError::Refused(_)), "{bad}: {fault:?}");
    }
    assert_eq!(
        parse_stop(br#"{"mode":"graceful","ts":1}"#),
        Ok(StopMode::Graceful)
    );
    assert_eq!(parse_stop(br#"{"mode":"force"}"#), Ok(StopMode::Force));
    assert!(matches!(
        parse_stop(br#"{"mode":"now"}"#),
        Err(SchemaError::Refused(_))
    ));
    assert!(matches!(
        parse_stop(br#"{"mode":"#),
        Err(SchemaError::Broken(_))
    ));
}

#[test]
fn an_answer_is_a_file_or_only_its_name() {
    let of = |name: &str, text: &str| {
        let name = AnswerName::parse(name).expect(name);
        parse_answer(&name, text.as_bytes())
    };
    let allowed = of("0190-a.allow", "whatever").expect("an answer");
    assert_eq!((allowed.decision, allowed.reason), (Decision::Allow, None));
    assert_eq!(
        of("a.deny", "").expect("an answer").decision,
        Decision::Deny
    );
    let said = of("a.json", r#"{"answer":"deny","reason":"no","digest":"d"}"#).expect("an answer");
    assert_eq!(said.reason.as_ref().map(UntrustedText::raw), Some("no"));
    assert_eq!(said.digest.as_deref(), Some("d"));
    for bad in [
        r#"{"answer":"yes"}"#,
        r#"{"answer":"allow","remember":"session"}"#,
        "{}",
    ] {
        assert!(
            matches!(of("a.json", bad), Err(SchemaError::Refused(_))),
            "{bad}"
        );
    }
    assert!(matches!(
        of("a.json", r#"{"answer""#),
        Err(SchemaError::Broken(_))
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
        (Some(O::Done), false, CommandStatus::Ok),
        (Some(O::Done), true, CommandStatus::Ok),
        (Some(O::Cancelled), false, CommandStatus::Cancelled),
        (Some(O::Cancelled), true, CommandStatus::Timeout),
        (Some(O::TimedOut), false, CommandStatus::Timeout),
        (Some(O::Denied), false, CommandStatus::Error),
        (Some(O::Lost), false, CommandStatus::Error),
        (None, false, CommandStatus::Error),
    ] {
        assert_eq!(result_status(outcome, is_late), status, "{outcome:?}");
    }
    assert_eq!(format_millis(1_707_221_123_456_789), "1707221123456");
}

mod anything {
    use proptest::prelude::*;

    use super::super::*;

    const FORMS: [&str; 4] = [
        r#"{"cmd_id":"a","seq":1,"kind":"prompt","payload":"p","timeout_s":5,"files":["b"],"priority":3,"marker":{}}"#,
        r#"{"scope":"cmd_id","cmd_id":"a","ts":1}"#,
        r#"{"mode":"force","ts":"x"}"#,
        r#"{"answer":"allow","reason":"r","digest":"d"}"#,
    ];

    /// One of the forms, with a piece of it taken out, doubled or put elsewhere, or any bytes.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = (any::<usize>(), 0_usize..30, any::<usize>(), any::<bool>());
        let bent =
            (0..FORMS.len(), prop::collection::vec(piece, 0..3)).prop_map(|(which, pieces)| {
                let mut text = FORMS[which].as_bytes().to_vec();
                for (from, length, to, keep) in pieces {
                    let from = from % (text.len() + 1);
                    let end = (from + length).min(text.len());
                    let piece = text[from..end].to_vec();
                    if !keep {
                        text.drain(from..end);
                    }
                    let to = to % (text.len() + 1);
                    text.splice(to..to, piece);
                }
                text
            });
        prop_oneof![8 => bent, 1 => prop::collection::vec(any::<u8>(), 0..80)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_file_is_a_panic_and_what_is_refused_says_why(bytes in bytes(), name in "[a-c._/-]{0,6}(\\.txt|\\.allow|\\.json)?|cmd_[0-9]{0,22}_[a-c./]{0,3}\\.json") {
            let names = ["cmd_1_a.json", "a.txt", &name].map(RequestName::parse);
            for name in names.into_iter().flatten() {
                prop_assert!(!name.stem().contains('/') && !name.stem().starts_with('.'));
                let again = RequestName::parse(&name.file());
                prop_assert_eq!(again.as_ref(), Some(&name));
                match parse_request(&name, &bytes) {
                    Ok(request) => prop_assert!(!request.prompt.raw().trim().is_empty()),
                    Err(fault) => prop_assert!(!fault.why().is_empty()),
                }
            }
            for fault in [parse_cancel(&bytes).err(), parse_stop(&bytes).err()].into_iter().flatten() {
                prop_assert!(!fault.why().contains('\n'));
            }
            if let Some(name) = AnswerName::parse(&name) {
                prop_assert!(!name.approval_id.contains('/'));
            }
            // Only a name or a word of ours allows.
            let asked = AnswerName { approval_id: "a".to_owned(), decision: None };
            if let Ok(answer) = parse_answer(&asked, &bytes) {
                let said = String::from_utf8_lossy(&bytes).into_owned();
                prop_assert!(answer.decision != Decision::Allow || said.contains("allow"));
            }
        }
    }
}
