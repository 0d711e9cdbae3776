//! Turns, tools, slash commands, errors and goodbyes.

use std::time::Duration;

use super::{TURN, both, check, check_in_turn, run_both as run};
use crate::dialect::script::{Conversation, played};
use marshal_config::DialectName;
use marshal_dialect::{Command, OpenParams};
use marshal_model::limits;

#[test]
fn the_three_lines_of_the_documented_example_are_written_byte_for_byte() {
    for mut talk in both() {
        talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
        let prompt = Command::Prompt {
            text: "list the python files".into(),
            attachments: std::sync::Arc::default(),
        };
        assert_eq!(
            talk.command(prompt).unwrap(),
            "{\"type\":\"prompt\",\"text\":\"list the python files\"}\n"
        );
        talk.chunk(
            b"{\"type\":\"permission_request\",\"request_id\":\"r-9\",\"tool\":\"glob_search\"}\n",
        );
        let allow = Command::AnswerPermission {
            key: crate::dialect::script::named("r-9"),
            answer: marshal_model::PermissionResponse::Allow,
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
    let effects = run(&script);
    assert_eq!(
        effects.matches("file 'w' 'f'").count(),
        limits::TURN_MUTATIONS
    );
    assert!(
        effects.contains("only the first 10000 changed files are listed; 7 more are not"),
        "{}",
        effects.len()
    );
    let names = vec!["\"t\""; limits::READY_TOOLS + 7].join(",");
    let effects = run(&format!(
        r#"< {{"type":"ready","protocol":1,"tools":[{names}]}}"#
    ));
    assert_eq!(effects.matches("'t'").count(), limits::READY_TOOLS);
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
           commanded
           write {"type":"slash","command":"clear","args":""}
           slash 'clear' '' data=- clear=true exit=false
           session cleared
           commanded
           write {"type":"slash","command":"context","args":""}
           slash 'context' 'half' data={"context_pct":50,"context_window":1000} clear=false exit=false
           state model=- mode=- pct=Some(50.0) window=Some(1000)
           commanded
           write {"type":"slash","command":"exit","args":""}
           slash 'exit' '' data=[1] clear=false exit=true
           commanded
           exit wanted
           refused slash again: the agent has not answered the previous command"#,
    );
}

#[test]
fn an_error_between_turns_is_the_answer_to_a_command() {
    check(
        r#"< READY
           > slash nope
           < {"type":"error","code":"bad_command","message":"no such command"}
           < {"type":"slash_result","command":"nope","text":"late"}
           > slash exit
           < {"type":"slash_result","command":"exit","text":"bye","exit":true}
           > prompt p
           > goodbye"#,
        r#"ready protocol=1
           write {"type":"slash","command":"nope","args":""}
           error 'bad_command' 'no such command' unknown
           not commanded 'no such command'
           bad out_of_state {"type":"slash_result","command":"nope","text":"late"}
           write {"type":"slash","command":"exit","args":""}
           slash 'exit' 'bye' data=- clear=false exit=true
           commanded
           exit wanted
           refused prompt p: the channel is closed"#,
    );
}

#[test]
fn a_command_without_a_result_is_given_up_and_no_other_is_sent_before_it() {
    let expected = "the agent did not answer the command within 100ms (timeouts.control)";
    let late = "the agent has not answered the previous command";
    let expect = format!(
        r#"ready protocol=1
write {{"type":"slash","command":"help","args":""}}
error 'unanswered' '{expected}' local
not commanded: {expected}
slash 'help' 'late' data=- clear=false exit=false
write {{"type":"slash","command":"model","args":""}}
slash 'model' 'm' data=- clear=false exit=false
commanded
refused slash model: {late}
refused slash model: {late}"#
    );
    let script = r#"< READY
        > slash help
        ~ 99
        > slash model
        ~ 1
        > slash model
        < {"type":"slash_result","command":"help","text":"late"}
        > slash model
        ~ 99
        < {"type":"slash_result","command":"model","text":"m"}
        ~ 1000"#;
    for (name, table) in [
        (DialectName::Scaiflux, None),
        (
            DialectName::Custom,
            Some(crate::dialect::script::example("scaiflux")),
        ),
    ] {
        let opening = OpenParams {
            control_timeout: Some(Duration::from_millis(100)),
            dialect_definition: table,
            ..OpenParams::default()
        };
        let talk = Conversation::opened(name, &opening);
        assert_eq!(played(talk, script).trim(), expect, "{name}");
    }
}

#[test]
fn a_mode_counts_whatever_it_is_told_in() {
    let ready = r#"< {"type":"ready","protocol":1,"mode":"prompt"}"#;
    for (name, table) in [
        (DialectName::Scaiflux, None),
        (
            DialectName::Custom,
            Some(crate::dialect::script::example("scaiflux")),
        ),
    ] {
        let is_scaiflux = table.is_none();
        for (script, is_safe) in [
            // A result that nobody waits for, as behind an error that was taken for the answer.
            (
                "> slash m\n< {\"type\":\"error\",\"message\":\"hm\"}\n< {\"type\":\"slash_result\",\"text\":\"\",\"data\":{\"mode\":\"bypassPermissions\"}}",
                false,
            ),
            (
                "< {\"type\":\"slash_result\",\"text\":\"\",\"exit\":true,\"data\":{\"mode\":\"prompt\"}}",
                true,
            ),
            // One that cannot be read as a whole.
            (
                "> slash m\n< {\"type\":\"slash_result\",\"text\":[],\"data\":{\"mode\":\"bypassPermissions\"}}",
                !is_scaiflux,
            ),
            (
                "> slash m\n< {\"type\":\"slash_result\",\"text\":\"\",\"data\":{\"mode\":\"bypassPermissions\",\"model\":[]}}",
                false,
            ),
            (
                "< {\"type\":\"state_changed\",\"model\":[],\"mode\":\"bypassPermissions\"}",
                false,
            ),
        ] {
            let opening = OpenParams {
                dialect_definition: table.clone(),
                ..OpenParams::default()
            };
            let talk = Conversation::opened(name, &opening);
            let effects = played(talk, &format!("{ready}\n{script}"));
            let faulted =
                effects.contains("fault the agent switched to the mode bypassPermissions");
            assert_eq!(!faulted, is_safe, "{name} {script}: {effects}");
            assert!(
                !effects.contains("exit wanted"),
                "{name} {script}: {effects}"
            );
        }
    }
}

#[test]
fn a_result_that_cannot_be_read_is_an_answer() {
    check(
        r#"< READY
           > slash m
           < {"type":"slash_result","text":[]}
           > slash n"#,
        r#"ready protocol=1
           write {"type":"slash","command":"m","args":""}
           bad bad_shape {"type":"slash_result","text":[]}
           not commanded 'the agent's slash_result cannot be read'
           write {"type":"slash","command":"n","args":""}"#,
    );
}

#[test]
fn a_mode_that_asks_for_less_ends_the_agent() {
    let unsafe_in = |mode: &str, began: &str| {
        format!(
            "fault the agent switched to the mode {mode}, in which it asks for less than in {began}, so the supervisor stopped it; start it in that mode if this is intended"
        )
    };
    let ready = r#"< {"type":"ready","protocol":1,"mode":"prompt"}"#;
    check(
        &format!(
            r#"{ready}
               > slash mode danger-full-access
               < {{"type":"slash_result","command":"mode","text":"now","data":{{"mode":"danger-full-access"}}}}
               > prompt p"#
        ),
        &format!(
            r#"ready protocol=1 mode='prompt'
               write {{"type":"slash","command":"mode","args":"danger-full-access"}}
               slash 'mode' 'now' data={{"mode":"danger-full-access"}} clear=false exit=false
               state model=- mode='danger-full-access' pct=None window=None
               {}
               refused prompt p: the channel is closed"#,
            unsafe_in("danger-full-access", "prompt")
        ),
    );
    check(
        &format!(
            r#"{ready}
               < {{"type":"state_changed","mode":"prompt"}}
               < {{"type":"state_changed","mode":"bypassPermissions"}}"#
        ),
        &format!(
            "ready protocol=1 mode='prompt'
               state model=- mode='prompt' pct=None window=None
               state model=- mode='bypassPermissions' pct=None window=None
               {}",
            unsafe_in("bypassPermissions", "prompt")
        ),
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
fn depth_is_no_danger() {
    for member in ["input", "name", "turn_id", "more"] {
        let deep = format!("{}{}", "[".repeat(1 << 18), "]".repeat(1 << 18));
        let effects = run(&format!(
            r#"{TURN}< {{"type":"tool_start","{member}":{deep},"tool_id":"c"}}"#
        ));
        assert!(effects.contains("turn started"), "{}", effects.len());
    }
}

#[test]
fn a_turn_without_a_name_takes_the_first_that_is_not_the_one_before() {
    let end = |turn: &str| {
        format!(r#"{{"type":"turn_complete","turn_id":"{turn}","stop_reason":"end_turn"}}"#)
    };
    let head = |turn: &str| marshal_model::UntrustedText::new(end(turn)).escape_for_display(60);
    check_in_turn(
        &format!(
            r#"< {}
               > prompt q
               < {{"type":"turn_started"}}
               < {}
               < {{"type":"text_delta","turn_id":"u","delta":"x"}}
               < {}
               < {}"#,
            end("t"),
            end("t"),
            end("v"),
            end("u"),
        ),
        &format!(
            r#"turn ended completed 'end_turn' tokens=0/0
               write {{"type":"prompt","text":"q"}}
               turn started -
               bad out_of_state {}
               text 'x'
               bad out_of_state {}
               turn ended completed 'end_turn' tokens=0/0"#,
            head("t"),
            head("v"),
        ),
    );
}
