//! Turns, what comes in them, and their ends.

use super::{OPEN, TURN, check, check_in_turn, check_open, update};
use crate::dialect::script::Conversation;
use marshal_config::DialectName;
use marshal_dialect::{Command, Effect};
use marshal_model::limits;
use marshal_model::{Event, UntrustedText};

#[test]
fn a_turn_begins_with_the_first_thing_that_comes_of_it_and_ends_with_its_reply() {
    let reported = |tag: &str, text: &str| {
        update(&format!(
            r#""sessionUpdate":"{tag}","content":{{"type":"text","text":"{text}"}}"#
        ))
    };
    let script = [
        update(r#""sessionUpdate":"usage_update","used":5,"size":9,"cost":{"amount":0.5,"currency":"USD"}"#),
        reported("agent_thought_chunk", "hm"),
        reported("agent_message_chunk", ""),
        reported("agent_message_chunk", "hi"),
        r#"> prompt second
           < {"id":3,"result":{"stopReason":"end_turn","usage":{"inputTokens":3,"outputTokens":4,"totalTokens":7}}}
           > prompt third"#.to_owned(),
    ];
    check_in_turn(
        &script.join("\n"),
        r#"context 5/9 0.5 'USD'
           turn started -
           thought 'hm'
           text 'hi'
           turn ended completed 'end_turn' tokens=3/4
           write {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"s-1","prompt":[{"type":"text","text":"third"}]}}
           refused prompt second: a turn is running"#,
    );
}

#[test]
fn every_stop_reason_has_its_outcome_and_unknown_ones_are_kept() {
    for (result, end) in [
        (r#"{"stopReason":"end_turn"}"#, "completed 'end_turn'"),
        (r#"{"stopReason":"max_tokens"}"#, "limited 'max_tokens'"),
        (
            r#"{"stopReason":"max_turn_requests"}"#,
            "limited 'max_turn_requests'",
        ),
        (r#"{"stopReason":"refusal"}"#, "refused 'refusal'"),
        (r#"{"stopReason":"cancelled"}"#, "cancelled 'cancelled'"),
        (r#"{"stopReason":"interrupted"}"#, "completed 'interrupted'"),
        (
            r#"{"stopReason":"end_turn","usage":[1,2]}"#,
            "completed 'end_turn'",
        ),
    ] {
        check_in_turn(
            &format!("< {{\"id\":3,\"result\":{result}}}"),
            &format!("turn ended {end} tokens=0/0"),
        );
    }
    for result in ["null", "{}", r#"{"stopReason":7}"#, r#"["end_turn",null]"#] {
        check_in_turn(
            &format!("< {{\"id\":3,\"result\":{result}}}"),
            "bad bad_shape\nturn ended failed - tokens=0/0 (the end of the turn cannot be read)",
        );
    }
}

#[test]
fn an_error_ends_the_turn_failed_or_cancelled_if_that_was_wanted() {
    check_in_turn(
        r#"< {"id":3,"error":{"code":400,"message":"no\u0000 quota","data":"x"}}"#,
        r#"error '400' 'no\u{0} quota' unknown
           turn ended failed - tokens=0/0 (the agent reported error 400: no\u{0} quota ("x"))"#,
    );
    check_in_turn(
        r#"> cancel
           > cancel
           < {"id":3,"error":{"code":-32603,"message":"Internal error"}}"#,
        r#"write {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s-1"}}
           error '-32603' 'Internal error' unknown
           turn ended cancelled - tokens=0/0 (the agent reported error -32603: Internal error)"#,
    );
    // The agent may have finished all the same.
    check_in_turn(
        r#"> cancel
           < {"id":3,"result":{"stopReason":"end_turn"}}"#,
        r#"write {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s-1"}}
           turn ended completed 'end_turn' tokens=0/0"#,
    );
}

#[test]
fn text_outside_of_a_turn_is_dropped_and_told() {
    check_open(
        &update(r#""sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}"#),
        r#"bad out_of_state {"method":"session/update","params":{"sessionId":"s-1","updat…"#,
    );
}

#[test]
fn plans_and_modes_are_typed() {
    let script = [
        update(
            r#""sessionUpdate":"plan","entries":[{"content":"a","priority":"high","status":"pending"},{"content":"b"},{"no":1}]"#,
        ),
        update(r#""sessionUpdate":"current_mode_update","currentModeId":"code""#),
    ];
    check_in_turn(
        &script.join("\n"),
        r"turn started -
           plan 'a'('high' 'pending') 'b'(- -)
           state model=- mode='code' pct=None window=None",
    );
}

#[test]
fn a_long_plan_is_cut() {
    let mut talk = Conversation::new(DialectName::Acp);
    for line in OPEN.lines().map(str::trim).filter(|l| !l.is_empty()) {
        talk.chunk(format!("{}\n", &line[2..]).as_bytes());
    }
    talk.command(Command::Prompt {
        text: UntrustedText::new("p"),
        attachments: std::sync::Arc::default(),
    })
    .unwrap();
    let entries = vec![r#"{"content":"x"}"#; 2 * limits::PLAN_ENTRIES].join(",");
    let line = update(&format!(r#""sessionUpdate":"plan","entries":[{entries}]"#));
    talk.chunk(format!("{}\n", &line[2..]).as_bytes());
    let Some(Effect::Event(Event::Plan { entries })) = talk.effects.last() else {
        panic!("{}", talk.effects_text());
    };
    assert_eq!(entries.len(), limits::PLAN_ENTRIES);
}

#[test]
fn what_is_not_typed_is_passed_on_whole() {
    for fields in [
        r#""sessionUpdate":"available_commands_update","availableCommands":7"#,
        r#""sessionUpdate":"user_message_chunk","content":{"type":"image"}"#,
        r#""sessionUpdate":"notice","severity":"info""#,
        r#""sessionUpdate":"compaction_update","status":"completed""#,
        r#""sessionUpdate":"plan_update","id":"p""#,
        r#""sessionUpdate":"agent_message_chunk","content":{"type":"resource_link","uri":"file:///x","name":"x"}"#,
        r#""sessionUpdate":"usage_update","used":"many""#,
        r#""sessionUpdate":"later","a":[{"b":1,"b":2}]"#,
    ] {
        let line = update(fields);
        let tag = fields.split('"').nth(3).unwrap();
        check_in_turn(&line, &format!("unknown '{tag}' {}", &line[2..]));
    }
    // An update of another session is not of this one.
    let line = r#"{"method":"session/update","params":{"sessionId":"s-2","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}}}"#;
    check_in_turn(
        &format!("< {line}"),
        &format!("unknown 'agent_message_chunk' {line}"),
    );
}

#[test]
fn what_an_agent_says_of_its_session_is_typed() {
    let script = [
        r#""sessionUpdate":"available_commands_update","availableCommands":[{"name":"web","description":"d","input":{"hint":"h"}},{"name":7},{"name":"x"}]"#,
        r#""sessionUpdate":"user_message_chunk","content":{"type":"text","text":"p"}"#,
        r#""sessionUpdate":"config_option_update","configOptions":[{"id":"model","category":"model","currentValue":"m","options":[]},{"id":"fast","type":"boolean","currentValue":true}]"#,
        r#""sessionUpdate":"session_info_update","title":"t","updatedAt":null"#,
        r#""sessionUpdate":"notice","severity":"warning","title":"t","description":"d""#,
        r#""sessionUpdate":"compaction_update","compactionId":"c","status":"failed","error":{"code":1}"#,
        r#""sessionUpdate":"compaction_summary_chunk","compactionId":"c","content":{"type":"text","text":"s"}"#,
    ];
    let script: Vec<_> = script.iter().map(|fields| update(fields)).collect();
    check_open(
        &script.join("\n"),
        r#"commands 'web'('d' 'h') 'x'('' -)
           user 'p'
           options 'model'='m' 'fast'='true'
           info 't' -
           notice 'warning' 't' 'd'
           compaction 'c' 'failed' '{"code":1}'
           compacted 'c' 's'"#,
    );
}

#[test]
fn tokens_are_read_where_agents_write_them() {
    for result in [
        r#"{"stopReason":"end_turn","usage":{"inputTokens":3,"outputTokens":4,"cachedReadTokens":1,"totalTokens":8}}"#,
        r#"{"stopReason":"end_turn","_meta":{"quota":{"token_count":{"input_tokens":3,"output_tokens":4}}}}"#,
    ] {
        check_in_turn(
            &format!("< {{\"id\":3,\"result\":{result}}}"),
            "turn ended completed 'end_turn' tokens=3/4",
        );
    }
}

#[test]
fn misshapen_updates_are_bad_lines() {
    for fields in [
        "",
        r#""sessionUpdate":7"#,
        r#""sessionUpdate":"agent_message_chunk""#,
        r#""sessionUpdate":"plan""#,
        r#""sessionUpdate":"tool_call""#,
        r#""sessionUpdate":"tool_call","toolCallId":"c","content":7"#,
        r#""sessionUpdate":"x","sessionUpdate":"y""#,
    ] {
        let line = update(fields);
        let head: String = line[2..].chars().take(60).collect();
        let effects = crate::dialect::script::played(
            Conversation::new(DialectName::Acp),
            &format!("{OPEN}{TURN}{line}"),
        );
        let last = effects.lines().last().unwrap();
        assert!(
            last.starts_with("bad bad_shape"),
            "{fields}: {last} for {head}"
        );
    }
}

#[test]
fn notifications_that_nobody_knows_are_ignored_or_kept() {
    check_open(
        r#"< {"method":"_ext/x","params":{}}
           < {"method":"$/progress"}
           < {"method":"elicitation/complete","params":{"elicitationId":"e"}}
           < {"id":null,"method":"later"}"#,
        r#"unknown 'elicitation/complete' {"method":"elicitation/complete","params":{"elicitationId":"e"}}
           unknown 'later' {"id":null,"method":"later"}"#,
    );
}

#[test]
fn replies_that_belong_to_nothing_are_counted_and_ignored() {
    check_open(
        r#"< {"id":2,"result":{"sessionId":"again"}}
           < {"id":99,"result":{}}
           < {"id":"2","result":{}}
           < {"id":null,"error":{"code":-32700,"message":"Parse error"}}
           < {"error":{"code":-32601}}"#,
        r#"bad unknown_id {"id":2,"result":{"sessionId":"again"}}
           bad unknown_id {"id":99,"result":{}}
           bad unknown_id {"id":"2","result":{}}
           bad unknown_id {"id":null,"error":{"code":-32700,"message":"Parse error"}}
           bad unknown_id {"error":{"code":-32601}}"#,
    );
}

#[test]
fn noise_is_told_and_too_much_of_it_is_another_program() {
    check_open(
        r#"< hello
           < [{"id":1,"method":"x"}]
           < {}
           < {"id":true,"method":"x"}"#,
        r#"bad bad_json hello
           bad not_object [{"id":1,"method":"x"}]
           bad bad_shape {}
           bad bad_shape {"id":true,"method":"x"}"#,
    );
    let mut talk = Conversation::new(DialectName::Acp);
    for _ in 0..=limits::BAD_LINES {
        talk.chunk(b"noise\n");
    }
    assert!(matches!(
        talk.effects.last(),
        Some(Effect::ChannelFailed(_))
    ));
}

#[test]
fn the_goodbye_is_the_end_of_its_stdin() {
    check_open(
        r"> goodbye
           > goodbye
           > prompt p",
        r"close input
           refused prompt p: the channel is closed",
    );
    check_in_turn(
        r#"> goodbye
           < {"id":3,"result":{"stopReason":"cancelled"}}"#,
        r#"write {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s-1"}}
           close input
           turn ended cancelled 'cancelled' tokens=0/0"#,
    );
    check("> goodbye", "close input");
    check_open(
        "> slash help",
        "refused slash help: the protocol has no such command",
    );
    check_open("> cancel", "");
}
