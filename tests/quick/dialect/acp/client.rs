//! What an agent may have its client do: which requests are taken, and how each is answered.

use std::sync::Arc;

use marshal_config::DialectName;
use marshal_dialect::{Command, Effect, OpenParams};
use marshal_model::limits::{
    CLIENT_FILE_BYTES, OPEN_PERMISSION_REQUESTS, PERMISSION_INPUT_BYTES, REMEMBERED_REQUEST_IDS,
};
use marshal_model::{ClientCapabilities, ClientOutput, PermissionRequestKey};

use super::{OPEN, TURN, TURN_SAYS, clean};
use crate::dialect::script::{Conversation, played};

/// A channel that offers everything.
fn offering() -> Conversation {
    let offers = ClientCapabilities {
        read: true,
        write: true,
        terminal: true,
        elicitation: false,
    };
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        client_capabilities: offers,
        ..OpenParams::default()
    };
    Conversation::opened(DialectName::Acp, &opening)
}

/// What came of a script in a running turn, from there on.
fn in_turn(script: &str) -> Vec<String> {
    let effects = clean(&played(offering(), &format!("{OPEN}{TURN}{script}")));
    let from = clean(TURN_SAYS);
    let at = effects.iter().position(|line| *line == from[0]);
    effects[at.unwrap() + 1..].to_vec()
}

#[track_caller]
fn check(script: &str, expect: &str) {
    assert_eq!(in_turn(script), clean(expect), "{script}");
}

/// A request of session `s-1`.
fn request(id: u64, method: &str, params: &str) -> String {
    format!(r#"< {{"id":{id},"method":"{method}","params":{{"sessionId":"s-1",{params}}}}}"#)
}

fn read(id: u64) -> String {
    request(id, "fs/read_text_file", r#""path":"/workspace/a""#)
}

const READ_WANTED: &str =
    r#"client 0 fs/read_text_file {"limit":null,"line":1,"path":"/workspace/a"}"#;

fn error(id: u64, code: i32, message: &str) -> String {
    format!(
        r#"write {{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#
    )
}

#[test]
fn what_a_pool_offers_is_advertised_and_nothing_else() {
    let effects = clean(&offering().effects_text());
    let all = r#""fs":{"readTextFile":true,"writeTextFile":true},"terminal":true"#;
    assert!(effects[0].contains(all), "{effects:?}");
    // Without an offer each is a method that is not there.
    let plain = Conversation::new(DialectName::Acp);
    let effects = played(plain, &format!("{OPEN}{TURN}{}", read(0)));
    assert!(effects.contains("\"code\":-32601"), "{effects}");
    assert!(!effects.contains("client 0"), "{effects}");
}

#[test]
fn a_file_is_read_once_it_is_answered() {
    check(
        &format!("{}\n> text 0 hello", read(0)),
        &format!(
            "turn started -\n{READ_WANTED}\n{}",
            r#"write {"jsonrpc":"2.0","id":0,"result":{"content":"hello"}}"#
        ),
    );
    let some = request(
        1,
        "fs/read_text_file",
        r#""path":"/workspace/a","line":0,"limit":7"#,
    );
    check(
        &some,
        "turn started -\nclient 1 fs/read_text_file {\"limit\":7,\"line\":1,\"path\":\"/workspace/a\"}",
    );
}

#[test]
fn of_a_text_to_write_the_record_has_length_and_digest() {
    let write = request(
        0,
        "fs/write_text_file",
        r#""path":"/workspace/a","content":"hello""#,
    );
    check(
        &format!("{write}\n> done 0"),
        r#"
        turn started -
        client 0 fs/write_text_file {"bytes":5,"path":"/workspace/a","sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}
        write {"jsonrpc":"2.0","id":0,"result":{}}
        "#,
    );
    let long = "x".repeat(CLIENT_FILE_BYTES + 1);
    let write = request(
        0,
        "fs/write_text_file",
        &format!(r#""path":"/workspace/a","content":"{long}""#),
    );
    let reported = in_turn(&write);
    assert!(
        reported[0].contains("\"code\":-32602"),
        "{}",
        &reported[0][..200]
    );
}

#[test]
fn errors_have_the_codes_and_words_that_agents_know() {
    for (answer, code, words) in [
        (
            "missing 0 /workspace/a",
            -32002,
            "Resource not found: /workspace/a (ENOENT: No such file or directory)",
        ),
        ("refused 0 no", -32603, "permission denied: no"),
        ("invalid 0 it is a directory", -32602, "it is a directory"),
        ("cancelled 0 over", -32800, "over"),
    ] {
        check(
            &format!("{}\n> {answer}", read(0)),
            &format!("turn started -\n{READ_WANTED}\n{}", error(0, code, words)),
        );
    }
}

#[test]
fn a_terminal_is_judged_by_its_exact_words_and_its_other_methods_are_not() {
    let create = request(
        0,
        "terminal/create",
        r#""command":"sh","args":["-c","ls $X"],"env":[{"name":"X","value":"1"}],"cwd":"/workspace/src","outputByteLimit":9"#,
    );
    check(
        &create,
        r#"
        turn started -
        client 0 terminal/create {"command":["sh","-c","ls $X"],"cwd":"/workspace/src","env":[{"name":"X","value":"1"}]}
        "#,
    );
    for method in ["output", "wait_for_exit", "kill", "release"] {
        let of = request(
            3,
            &format!("terminal/{method}"),
            r#""terminalId":"terminal-1""#,
        );
        check(&of, &format!("client 3 terminal/{method} -"));
    }
}

#[test]
fn what_cannot_be_read_or_is_for_another_session_is_refused() {
    let unreadable = "a parameter is missing or has the wrong type";
    for params in [
        r#""path":7"#,
        r#""file":"/workspace/a""#,
        r#""path":"/workspace/a","line":"1""#,
        r#""path":"/workspace/a","line":-1"#,
    ] {
        let expect = format!("bad bad_shape\n{}", error(0, -32602, unreadable));
        check(&request(0, "fs/read_text_file", params), &expect);
    }
    let other = r#"< {"id":0,"method":"fs/read_text_file","params":{"sessionId":"s-2","path":"/workspace/a"}}"#;
    let expected = "Resource not found: the session is not open here";
    check(
        other,
        &format!("bad unknown_id\n{}", error(0, -32002, expected)),
    );
    let none = r#"< {"id":0,"method":"fs/read_text_file","params":{"path":"/workspace/a"}}"#;
    check(
        none,
        &format!("bad bad_shape\n{}", error(0, -32602, unreadable)),
    );
}

#[test]
fn outside_of_a_turn_only_terminals_that_are_there_are_served() {
    let effects = clean(&played(offering(), &format!("{OPEN}{}", read(0))));
    let expected = "no turn is running: file requests and new terminals need a running turn";
    assert_eq!(
        effects[effects.len() - 2..],
        ["bad out_of_state".to_owned(), error(0, -32600, expected)]
    );
    let kill = request(0, "terminal/kill", r#""terminalId":"terminal-1""#);
    let effects = clean(&played(offering(), &format!("{OPEN}{kill}")));
    assert_eq!(effects.last().unwrap(), "client 0 terminal/kill -");
    let early = clean(&played(
        offering(),
        "< {\"id\":1,\"result\":{\"protocolVersion\":1}}\n< {\"id\":9,\"method\":\"fs/read_text_file\",\"params\":{\"sessionId\":\"s\",\"path\":\"/a\"}}",
    ));
    let expected = "no session is open for this request";
    assert_eq!(*early.last().unwrap(), error(9, -32600, expected));
    // In a turn that was cancelled nothing new begins.
    let effects = in_turn(&format!("> cancel\n{}\n{kill}", read(5)));
    assert_eq!(
        effects[1..],
        [
            error(5, -32800, "the turn was cancelled"),
            "client 0 terminal/kill -".to_owned()
        ]
    );
}

#[test]
fn a_command_is_not_even_read_when_it_is_too_long_to_be_judged() {
    let create = |words: usize| {
        let args = vec!["\"a\""; words].join(",");
        let params = format!(r#""command":"ls","args":[{args}]"#);
        request(0, "terminal/create", &params)
    };
    let expected = format!("the parameters are longer than {PERMISSION_INPUT_BYTES} bytes");
    let reported = in_turn(&create(2_000_000));
    assert_eq!(reported, [error(0, -32602, &expected)]);
    let reported = in_turn(&create(1000));
    assert!(
        reported[1].starts_with("client 0 terminal/create "),
        "{reported:?}"
    );
}

#[test]
fn an_id_is_used_up_whatever_it_was_used_for() {
    let requested = r#"< {"id":0,"method":"session/request_permission","params":{"sessionId":"s-1","toolCall":{"toolCallId":"t-1","title":"ls","rawInput":{"command":"ls"}},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"n","name":"No","kind":"reject_once"}]}}"#;
    let expected = "a request with this id was sent before";
    let reported = in_turn(&format!("{requested}\n> allow 0\n{}", read(0)));
    let last = reported.len() - 2;
    let expect = ["bad duplicate_id".to_owned(), error(0, -32600, expected)];
    assert_eq!(reported[last..], expect, "{reported:?}");
}

#[test]
fn an_answer_is_for_one_request_even_if_its_id_was_forgotten_and_used_again() {
    let mut talk = offering();
    for line in format!("{OPEN}{TURN}").lines().map(str::trim) {
        match line.split_at_checked(2) {
            Some(("< ", expected)) => talk.chunk(format!("{expected}\n").as_bytes()),
            Some(("> ", _)) => drop(talk.command(Command::Prompt {
                text: "p".into(),
                attachments: Arc::default(),
            })),
            _ => {}
        }
    }
    let mut say = |expected: &str| {
        let before = talk.effects.len();
        talk.chunk(format!("{}\n", expected.trim_start_matches("< ")).as_bytes());
        let mut keys = talk.effects[before..]
            .iter()
            .filter_map(|effect| match effect {
                Effect::ClientRequest { key, .. } => Some(key.clone()),
                _ => None,
            });
        keys.next_back()
    };
    let first = say(&read(7)).expect("taken");
    let withdraw = |id| format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{id}}}}}"#);
    say(&withdraw(7));
    for id in 0..REMEMBERED_REQUEST_IDS as u64 {
        say(&read(1000 + id)).expect("taken");
        say(&withdraw(1000 + id));
    }
    let second = say(&read(7)).expect("forgotten, so taken");
    assert_ne!(first, second);
    let answer = |key: &PermissionRequestKey| Command::AnswerClientRequest {
        key: key.clone(),
        answer: Ok(ClientOutput::Text("x".to_owned())),
    };
    assert!(talk.command(answer(&first)).is_err());
    assert!(talk.command(answer(&second)).is_ok());
    // While it is open an id is never taken again, however much came between.
    let mut talk = talk;
    let mut say = |expected: &str| {
        let before = talk.effects.len();
        talk.chunk(format!("{}\n", expected.trim_start_matches("< ")).as_bytes());
        talk.effects.len() - before
    };
    say(&read(9));
    for id in 0..REMEMBERED_REQUEST_IDS as u64 {
        say(&read(9000 + id));
        say(&withdraw(9000 + id));
    }
    say(&read(9));
    let expected = "a request with this id was sent before";
    let told = clean(&talk.effects_text());
    assert_eq!(*told.last().unwrap(), error(9, -32600, expected));
}

#[test]
fn an_id_that_comes_twice_ends_both_requests() {
    let expected = "a request with this id was sent before";
    check(
        &format!("{}\n{}", read(0), read(0)),
        &format!(
            "turn started -\n{READ_WANTED}\nbad duplicate_id\nwithdrawn 0\nbad duplicate_id\n{}",
            error(0, -32600, expected)
        ),
    );
    // An answered id is used up as well.
    let again = in_turn(&format!("{}\n> text 0 x\n{}", read(0), read(0)));
    assert_eq!(
        again[3..],
        ["bad duplicate_id".to_owned(), error(0, -32600, expected)]
    );
}

#[test]
fn a_request_that_is_withdrawn_is_answered_as_cancelled_and_no_more() {
    let withdraw = r#"< {"method":"$/cancel_request","params":{"requestId":0}}"#;
    let reported = in_turn(&format!("{}\n{withdraw}\n> text 0 late", read(0)));
    assert_eq!(
        reported[2..],
        [
            "withdrawn 0".to_owned(),
            error(0, -32800, "the request was cancelled"),
            "refused text 0 late: no open permission request has this id".to_owned(),
        ]
    );
}

#[test]
fn open_requests_and_their_text_are_bounded() {
    let many: Vec<String> = (0..=OPEN_PERMISSION_REQUESTS as u64).map(read).collect();
    let reported = in_turn(&many.join("\n"));
    let expected = "too many requests are open at the same time";
    assert_eq!(
        *reported.last().unwrap(),
        error(OPEN_PERMISSION_REQUESTS as u64, -32603, expected)
    );
    let text = "x".repeat(CLIENT_FILE_BYTES);
    let write = |id| {
        let params = format!(r#""path":"/workspace/a","content":"{text}""#);
        request(id, "fs/write_text_file", &params)
    };
    let five: Vec<String> = (0..5).map(write).collect();
    let reported = in_turn(&five.join("\n"));
    let expected = "too much text is waiting to be written";
    assert_eq!(*reported.last().unwrap(), error(4, -32603, expected));
    // What was answered makes room.
    let reported = in_turn(&format!("{}\n> done 0\n{}", five[..4].join("\n"), five[4]));
    assert!(
        reported.last().unwrap().starts_with("client 4 "),
        "{}",
        reported.len()
    );
}
