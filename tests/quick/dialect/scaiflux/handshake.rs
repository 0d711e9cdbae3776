//! The greeting, the version gate, and what comes before them.

use super::{both, check};
use marshal_dialect::{ChannelError, Effect};
use marshal_model::limits;

#[test]
fn the_greeting_tells_what_the_agent_is() {
    check(
        r#"< {"type":"ready","protocol":1,"version":"0.9","session_id":"s-1","model":"m","mode":"prompt","tools":["bash","read"],"context_window":131072,"max_tokens":4096,"gadgets":[],"later":{}}"#,
        "ready protocol=1 version='0.9' session='s-1' model='m' mode='prompt' tools='bash','read' context_window=131072",
    );
    check(
        r#"< {"type":"ready","protocol":1,"tools":[{"name":"a","x":1},7,"b"],"version":null,"model":5,"context_window":"big"}"#,
        "ready protocol=1 tools='a','b'",
    );
    check(
        r#"< {"protocol":1,"type":"ready","tools":{}}"#,
        "ready protocol=1",
    );
}

#[test]
fn every_version_but_the_integer_1_is_refused_before_any_prompt() {
    for (said, shown) in [
        (r#","protocol":0"#, "0"),
        (r#","protocol":2"#, "2"),
        (r#","protocol":999"#, "999"),
        (r#","protocol":"1""#, r#""1""#),
        (r#","protocol":1.0"#, "1.0"),
        (r#","protocol":-1"#, "-1"),
        (r#","protocol":true"#, "true"),
        (r#","protocol":[1]"#, "[1]"),
        (r#","protocol":null"#, "none"),
        ("", "none"),
        (r#","protocol":"\u001b[2J""#, r#""\u001b[2J""#),
        (r#","protocol":2,"session_id":5,"tools":{}"#, "2"),
    ] {
        check(
            &format!(
                "< {{\"type\":\"ready\"{said}}}
                 > prompt never
                 > goodbye
                 < READY"
            ),
            &format!(
                "fault the agent speaks protocol version {shown}, this supervisor speaks version 1
                 refused prompt never: the channel is closed
                 refused goodbye: the channel is closed"
            ),
        );
    }
}

#[test]
fn nothing_is_written_before_ready() {
    check(
        "> prompt p
         > slash model
         > cancel
         > allow r",
        "refused prompt p: the agent is not ready
         refused slash model: the agent is not ready
         refused cancel: the agent is not ready
         refused allow r: the agent is not ready",
    );
    check("> goodbye", r#"write {"type":"shutdown"}"#);
}

#[test]
fn noise_before_ready_is_skipped_but_an_event_is_a_fault() {
    check(
        r#"< warning: config is old
           < ["x"]
           < {"level":"info"}
           < {"type":"text_delta"}
           < READY"#,
        r#"bad bad_json warning: config is old
           bad not_object ["x"]
           bad no_type {"level":"info"}
           bad bad_shape {"type":"text_delta"}
           ready protocol=1"#,
    );
    for event in [
        r#"{"type":"turn_started","turn_id":"t"}"#,
        r#"{"type":"state_changed"}"#,
        r#"{"type":"permission_request","request_id":"r","tool":"x"}"#,
        r#"{"type":"new_thing"}"#,
    ] {
        check(
            &format!("< {event}\n< READY\n> prompt p"),
            "fault the agent sent an event before it was ready
             refused prompt p: the channel is closed",
        );
    }
    check(
        r#"< {"type":"error","code":"auth","message":"no key","origin":"remote"}"#,
        "error 'auth' 'no key' remote
         fault the agent reported error auth: no key, before it was ready",
    );
}

#[test]
fn a_second_ready_is_a_fault() {
    check(
        "< READY\n< READY\n< READY",
        "ready protocol=1
         fault the agent sent ready twice",
    );
    check(
        r#"< {"type":"ready","protocol":1,"protocol":1}"#,
        r#"bad bad_shape {"type":"ready","protocol":1,"protocol":1}
           fault the agent's ready message cannot be read"#,
    );
}

#[test]
fn a_few_bad_lines_pass_and_a_hundred_and_one_are_a_fault() {
    for mut talk in both() {
        talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
        for n in 1..=200_u32 {
            talk.chunk(b"garbage \xff\n");
            let faulted = matches!(
                talk.effects.last(),
                Some(Effect::ChannelFailed(ChannelError::Protocol(_)))
            );
            assert_eq!(faulted, n > limits::BAD_LINES, "{n}");
        }
    }
}

#[test]
fn a_line_without_end_is_a_fault() {
    for mut talk in both() {
        talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..=limits::LINE_BYTES >> 20 {
            talk.chunk(&chunk);
        }
        talk.chunk(b"\n{\"type\":\"state_changed\"}\n");
        let effects = talk.effects_text();
        let lines: Vec<_> = effects.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                format!("bad too_long {}…", "x".repeat(59)),
                "fault the agent wrote a line of more than 8388608 bytes".to_owned()
            ]
        );
    }
}
