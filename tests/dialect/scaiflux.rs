//! ScaiFlux, case by case.

use crate::script::{Conversation, run};
use marshal::dialect::{Command, Effect, Fault};
use marshal::limits;

/// Plays the script and compares what came of it, effect by effect.
#[track_caller]
fn check(script: &str, expect: &str) {
    let clean = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(clean(&run(script)), clean(expect), "{script}");
}

/// A turn `t` that runs, and what it says up to there.
const TURN: &str = r#"
    < READY
    > prompt p
    < {"type":"turn_started","turn_id":"t"}
"#;
const TURN_SAYS: &str = r#"
    ready protocol=1
    write {"type":"prompt","text":"p"}
    turn started 't'
"#;

#[track_caller]
fn check_in_turn(script: &str, expect: &str) {
    check(&format!("{TURN}{script}"), &format!("{TURN_SAYS}{expect}"));
}

#[test]
fn the_three_lines_of_the_seeds_example_are_written_byte_for_byte() {
    let mut talk = Conversation::new();
    talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
    let prompt = Command::Prompt {
        text: "list the python files".into(),
    };
    assert_eq!(
        talk.command(prompt).unwrap(),
        "{\"type\":\"prompt\",\"text\":\"list the python files\"}\n"
    );
    talk.chunk(
        b"{\"type\":\"permission_request\",\"request_id\":\"r-9\",\"tool\":\"glob_search\"}\n",
    );
    let allow = Command::Answer {
        key: marshal::model::AskKey("r-9".into()),
        answer: marshal::model::Answer::Allow,
    };
    assert_eq!(
        talk.command(allow).unwrap(),
        "{\"type\":\"permission_response\",\"request_id\":\"r-9\",\"decision\":\"allow\"}\n"
    );
    assert_eq!(
        talk.command(Command::Goodbye).unwrap(),
        "{\"type\":\"shutdown\"}\n"
    );
}

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
         fault the agent said ready twice",
    );
    check(
        r#"< {"type":"ready","protocol":1,"protocol":1}"#,
        r#"bad bad_shape {"type":"ready","protocol":1,"protocol":1}
           fault the agent's ready message cannot be read"#,
    );
}

#[test]
fn one_turn_at_a_time() {
    check_in_turn(
        r#"> prompt q
           > slash model x
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","iterations":1,"input_tokens":820,"output_tokens":34,"mutations":[]}
           > prompt q"#,
        r#"turn ended completed 'end_turn' tokens=820/34
           write {"type":"prompt","text":"q"}
           refused prompt q: a turn is running
           refused slash model x: a turn is running"#,
    );
}

#[test]
fn stop_reasons_become_outcomes_and_keep_their_word() {
    for (word, outcome) in [
        ("end_turn", "completed"),
        ("interrupted", "cancelled"),
        ("cancelled", "cancelled"),
        ("max_tokens", "limited"),
        ("max_turn_requests", "limited"),
        ("max_iterations", "limited"),
        ("refusal", "refused"),
        ("error", "failed"),
        ("tired", "completed"),
        ("", "completed"),
    ] {
        check_in_turn(
            &format!(r#"< {{"type":"turn_complete","turn_id":"t","stop_reason":"{word}"}}"#),
            &format!("turn ended {outcome} '{word}' tokens=0/0"),
        );
    }
    check_in_turn(
        r#"< {"type":"turn_complete","stop_reason":null}"#,
        "turn ended completed - tokens=0/0",
    );
}

#[test]
fn token_counts_of_any_kind_of_number_are_read() {
    for (input, output, expect) in [
        ("1", "2", "1/2"),
        ("1.9", "-5", "1/0"),
        ("null", "1e300", "0/18446744073709551615"),
    ] {
        check_in_turn(
            &format!(
                r#"< {{"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","input_tokens":{input},"output_tokens":{output}}}"#
            ),
            &format!("turn ended completed 'end_turn' tokens={expect}"),
        );
    }
}

#[test]
fn mutations_become_changed_files() {
    check_in_turn(
        r#"< {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","mutations":[["write_file","a.txt"],["edit","b/c",1],"x",[1,2],["one"],{"tool":"t"},["write_file","d\ne"]]}"#,
        r"file 'write_file' 'a.txt'
          file 'edit' 'b/c'
          file 'write_file' 'd\ne'
          turn ended completed 'end_turn' tokens=0/0",
    );
    check_in_turn(
        r#"< {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","mutations":"none"}"#,
        "turn ended completed 'end_turn' tokens=0/0",
    );
}

#[test]
fn lists_without_end_are_cut_and_said_so() {
    let pairs = vec!["[\"w\",\"f\"]"; limits::TURN_MUTATIONS + 7].join(",");
    let script = format!(
        r#"{TURN}< {{"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","mutations":[{pairs}]}}"#
    );
    let told = run(&script);
    assert_eq!(told.matches("file 'w' 'f'").count(), limits::TURN_MUTATIONS);
    assert!(
        told.contains("the first 10000 are listed, 7 are not"),
        "{}",
        told.len()
    );
    let names = vec!["\"t\""; limits::READY_TOOLS + 7].join(",");
    let told = run(&format!(
        r#"< {{"type":"ready","protocol":1,"tools":[{names}]}}"#
    ));
    assert_eq!(told.matches("'t'").count(), limits::READY_TOOLS);
}

#[test]
fn tools_are_told_with_what_is_known_of_them() {
    check_in_turn(
        r#"< {"type":"tool_start","turn_id":"t","tool_id":"c1","name":"bash","input":{"command": "ls"}}
           < {"type":"tool_result","turn_id":"t","tool_id":"c1","output":"a\nb","is_error":true,"duration_s":0.04}
           < {"type":"tool_start","turn_id":"t","name":"x"}
           < {"type":"tool_result","turn_id":"t","duration_s":-1}"#,
        r#"tool 'c1' 'bash' {"command": "ls"}
           result 'c1' 'a\nb' error=true took=Some(40ms)
           tool '' 'x' null
           result '' '' error=false took=None"#,
    );
}

#[test]
fn a_request_carries_its_input_as_it_came_and_what_the_agent_claims() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r-9","tool":"bash","active_mode":"prompt","required_mode":"danger-full-access","details":{"tool_input":{"command":"a",  "command":"b"},"reason":"why"}}
           < {"type":"permission_request","request_id":"r-10","tool":"bash","details":null}
           > deny r-9 no network here
           > deny r-10
           > allow r-9
           > allow r-11"#,
        r#"ask r-9 'bash' {"command":"a",  "command":"b"} active='prompt' required='danger-full-access' reason='why'
           ask r-10 'bash' null
           write {"type":"permission_response","request_id":"r-9","decision":"deny","reason":"no network here"}
           write {"type":"permission_response","request_id":"r-10","decision":"deny"}
           refused allow r-9: no open permission request has this id
           refused allow r-11: no open permission request has this id"#,
    );
}

#[test]
fn deny_keeps_the_turn_alive() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"bash"}
           > deny r no
           < {"type":"text_delta","turn_id":"t","delta":"then not"}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}"#,
        r#"ask r 'bash' null
           write {"type":"permission_response","request_id":"r","decision":"deny","reason":"no"}
           text 'then not'
           turn ended completed 'end_turn' tokens=0/0"#,
    );
}

#[test]
fn a_request_id_that_comes_twice_is_denied_and_takes_the_first_with_it() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"read"}
           < {"type":"permission_request","request_id":"r","tool":"bash"}
           > allow r"#,
        r#"ask r 'read' null
           bad duplicate_id {"type":"permission_request","request_id":"r","tool":"bash"}
           withdrawn r
           write {"type":"permission_response","request_id":"r","decision":"deny","reason":"this request id was used before"}
           refused allow r: no open permission request has this id"#,
    );
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"read"}
           > allow r
           < {"type":"permission_request","request_id":"r","tool":"bash"}"#,
        r#"ask r 'read' null
           write {"type":"permission_response","request_id":"r","decision":"allow"}
           bad duplicate_id {"type":"permission_request","request_id":"r","tool":"bash"}
           write {"type":"permission_response","request_id":"r","decision":"deny","reason":"this request id was used before"}"#,
    );
}

#[test]
fn a_request_that_cannot_be_read_is_denied() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":["x"]}
           < {"type":"permission_request","request_id":7,"tool":"x"}"#,
        r#"bad bad_shape {"type":"permission_request","request_id":"r","tool":["x"]}
           write {"type":"permission_response","request_id":"r","decision":"deny","reason":"the permission request cannot be read"}
           bad bad_shape {"type":"permission_request","request_id":7,"tool":"x"}"#,
    );
}

#[test]
fn a_request_outside_of_any_turn_is_denied() {
    check(
        r#"< READY
           < {"type":"permission_request","request_id":"r","tool":"x"}"#,
        r#"ready protocol=1
           bad out_of_state {"type":"permission_request","request_id":"r","tool":"x"}
           write {"type":"permission_response","request_id":"r","decision":"deny","reason":"no turn is running"}"#,
    );
}

#[test]
fn cancel_withdraws_what_is_asked_and_interrupts_once() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"x"}
           > cancel
           > cancel
           < {"type":"permission_request","request_id":"r2","tool":"x"}
           > allow r
           < {"type":"turn_complete","turn_id":"t","stop_reason":"interrupted"}
           > cancel"#,
        r#"ask r 'x' null
           withdrawn r
           write {"type":"interrupt"}
           bad out_of_state {"type":"permission_request","request_id":"r2","tool":"x"}
           turn ended cancelled 'interrupted' tokens=0/0
           refused allow r: no open permission request has this id"#,
    );
}

#[test]
fn cancel_before_the_turn_began_is_said_again() {
    check(
        r#"< READY
           > prompt p
           > cancel
           < {"type":"turn_started","turn_id":"t"}
           < {"type":"error","code":"c","message":"stopped","turn_id":"t"}"#,
        r#"ready protocol=1
           write {"type":"prompt","text":"p"}
           write {"type":"interrupt"}
           turn started 't'
           write {"type":"interrupt"}
           error 'c' 'stopped' unknown
           turn ended cancelled - tokens=0/0 (the agent reported error c: stopped)"#,
    );
}

#[test]
fn cancel_without_a_turn_writes_nothing() {
    check("< READY\n> cancel", "ready protocol=1");
}

#[test]
fn an_open_request_ends_with_its_turn() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"x"}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}"#,
        "ask r 'x' null
         withdrawn r
         turn ended completed 'end_turn' tokens=0/0",
    );
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"x"}
           < EOF
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}
           > goodbye"#,
        "ask r 'x' null
         withdrawn r
         refused goodbye: the channel is closed",
    );
}

#[test]
fn an_error_ends_the_turn_that_it_names() {
    check_in_turn(
        r#"< {"type":"error","code":"model_down","message":"503\u001b[2J","origin":"remote","turn_id":"t"}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"error","mutations":[["w","f"]]}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"error"}"#,
        r#"error 'model_down' '503\u{1b}[2J' remote
           turn ended failed - tokens=0/0 (the agent reported error model_down: 503\u{1b}[2J)
           file 'w' 'f'
           bad out_of_state {"type":"turn_complete","turn_id":"t","stop_reason":"error"}"#,
    );
}

#[test]
fn an_error_that_names_no_turn_ends_only_a_prompt_without_a_turn() {
    check(
        r#"< READY
           > prompt p
           < {"type":"error","code":"busy","message":"a turn is in flight","origin":"local"}"#,
        r#"ready protocol=1
           write {"type":"prompt","text":"p"}
           error 'busy' 'a turn is in flight' local
           turn ended failed - tokens=0/0 (the agent reported error busy: a turn is in flight)"#,
    );
    check_in_turn(
        r#"< {"type":"error","code":"unknown_request","message":"r","origin":"elsewhere"}
           < {"type":"error","code":"c","message":"of another","turn_id":"u"}
           < {"type":"error"}
           < {"type":"text_delta","turn_id":"t","delta":"on"}"#,
        "error 'unknown_request' 'r' unknown
         error 'c' 'of another' unknown
         error '' '' unknown
         text 'on'",
    );
}

#[test]
fn an_end_that_cannot_be_read_still_ends_the_turn() {
    check_in_turn(
        r#"< {"type":"turn_complete","turn_id":"t","stop_reason":5}"#,
        r#"bad bad_shape {"type":"turn_complete","turn_id":"t","stop_reason":5}
           turn ended failed - tokens=0/0 (the agent's turn_complete cannot be read)"#,
    );
}

#[test]
fn events_of_another_turn_do_not_touch_this_one() {
    check_in_turn(
        r#"< {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}
           > prompt q
           < {"type":"text_delta","turn_id":"t","delta":"late"}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}
           < {"type":"turn_started","turn_id":"u"}
           < {"type":"tool_start","turn_id":"t","tool_id":"c","name":"bash"}
           < {"type":"turn_started","turn_id":"v"}
           < {"type":"turn_complete","stop_reason":"end_turn"}
           < {"type":"text_delta","delta":"nobody's"}"#,
        r#"turn ended completed 'end_turn' tokens=0/0
           write {"type":"prompt","text":"q"}
           bad out_of_state {"type":"text_delta","turn_id":"t","delta":"late"}
           bad out_of_state {"type":"turn_complete","turn_id":"t","stop_reason":"end_tu…
           turn started 'u'
           bad out_of_state {"type":"tool_start","turn_id":"t","tool_id":"c","name":"ba…
           tool 'c' 'bash' null
           bad out_of_state {"type":"turn_started","turn_id":"v"}
           turn ended completed 'end_turn' tokens=0/0
           bad out_of_state {"type":"text_delta","delta":"nobody's"}"#,
    );
}

#[test]
fn an_agent_may_use_the_same_turn_id_for_every_turn() {
    check_in_turn(
        r#"< {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}
           > prompt q
           < {"type":"turn_started","turn_id":"t"}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}"#,
        r#"turn ended completed 'end_turn' tokens=0/0
           write {"type":"prompt","text":"q"}
           turn started 't'
           turn ended completed 'end_turn' tokens=0/0"#,
    );
}

#[test]
fn slash_commands_tell_what_they_changed() {
    check(
        r#"< READY
           > slash model scailabs/x y
           < {"type":"permission_request","request_id":"r","tool":"x"}
           > slash again
           < {"type":"slash_result","command":"model","text":"now x","data":{"model":"x","mode":"plan","more":1},"clear_session":false,"exit":false}
           > slash clear
           < {"type":"slash_result","command":"clear","text":"","data":null,"clear_session":true}
           > slash context
           < {"type":"slash_result","command":"context","text":"half","data":{"context_pct":50,"context_window":1000}}
           > slash exit
           < {"type":"slash_result","command":"exit","exit":true,"data":[1]}"#,
        r#"ready protocol=1
           write {"type":"slash","command":"model","args":"scailabs/x y"}
           ask r 'x' null
           withdrawn r
           slash 'model' 'now x' data={"model":"x","mode":"plan","more":1} clear=false exit=false
           state model='x' mode='plan' pct=None window=None
           write {"type":"slash","command":"clear","args":""}
           slash 'clear' '' data=- clear=true exit=false
           session cleared
           write {"type":"slash","command":"context","args":""}
           slash 'context' 'half' data={"context_pct":50,"context_window":1000} clear=false exit=false
           state model=- mode=- pct=Some(50.0) window=Some(1000)
           write {"type":"slash","command":"exit","args":""}
           slash 'exit' '' data=[1] clear=false exit=true
           exit wanted
           refused slash again: a turn is running"#,
    );
}

#[test]
fn an_exit_that_nobody_asked_for_is_not_wanted() {
    check(
        r#"< READY
           < {"type":"slash_result","command":"exit","exit":true}"#,
        r#"ready protocol=1
           bad out_of_state {"type":"slash_result","command":"exit","exit":true}"#,
    );
}

#[test]
fn state_changes_are_told_field_by_field() {
    check(
        r#"< READY
           < {"type":"state_changed","model":"m2","gadgets":{"x":true}}
           < {"type":"state_changed","mode":"plan","context_pct":12.5,"context_window":8}"#,
        "ready protocol=1
         state model='m2' mode=- pct=None window=None
         state model=- mode='plan' pct=Some(12.5) window=Some(8)",
    );
}

#[test]
fn what_we_do_not_know_is_kept() {
    check_in_turn(
        r#"< {"type":"plan_step","n":[1, 2]}
           < {"type":"text_delta","turn_id":"t","delta":"a","new_field":{"deep":[]}}"#,
        r#"unknown 'plan_step' {"type":"plan_step","n":[1, 2]}
           text 'a'"#,
    );
}

#[test]
fn goodbye_is_said_once_and_ends_what_is_open() {
    check_in_turn(
        r#"< {"type":"permission_request","request_id":"r","tool":"x"}
           > goodbye
           > goodbye
           > cancel
           > prompt q
           < {"type":"permission_request","request_id":"r2","tool":"x"}
           < {"type":"text_delta","turn_id":"t","delta":"bye"}
           < {"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}
           < EOF"#,
        r#"ask r 'x' null
           withdrawn r
           write {"type":"shutdown"}
           bad out_of_state {"type":"permission_request","request_id":"r2","tool":"x"}
           text 'bye'
           turn ended completed 'end_turn' tokens=0/0
           refused cancel: the channel is closed
           refused prompt q: the channel is closed"#,
    );
}

#[test]
fn a_few_bad_lines_pass_and_a_hundred_and_one_are_a_fault() {
    let mut talk = Conversation::new();
    talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
    for n in 1..=200_u32 {
        talk.chunk(b"garbage \xff\n");
        let faulted = matches!(talk.effects.last(), Some(Effect::Fault(Fault::Protocol(_))));
        assert_eq!(faulted, n > limits::BAD_LINES, "{n}");
    }
}

#[test]
fn a_line_without_end_is_a_fault() {
    let mut talk = Conversation::new();
    talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..=limits::LINE_BYTES >> 20 {
        talk.chunk(&chunk);
    }
    talk.chunk(b"\n{\"type\":\"state_changed\"}\n");
    let told = talk.told();
    let lines: Vec<_> = told.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            format!("bad too_long {}…", "x".repeat(59)),
            "fault the agent wrote a line of more than 8388608 bytes".to_owned()
        ]
    );
}

#[test]
fn ids_without_end_are_not_kept() {
    let long = "i".repeat(limits::FOREIGN_ID_BYTES + 1);
    let told = run(&format!(
        r#"{TURN}< {{"type":"permission_request","request_id":"{long}","tool":"x"}}"#
    ));
    assert!(!told.contains("ask "), "{told}");
    assert!(told.contains(r#""decision":"deny","reason":"the request id is too long"}"#));
}
