//! What happens in a turn, how it ends, and what comes outside of it.

use super::{READY, check, check_in_turn, check_ready, display_line, opening};
use crate::dialect::script::{Conversation, played};
use marshal_config::DialectName;
use marshal_model::limits;

const END: &str = r#"< {"type":"result","subtype":"success","is_error":false,"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2}}"#;
const TURN_ENDED: &str = "turn ended completed 'end_turn' tokens=1/2";
const PROMPT_2: &str = r#"write {"message":{"content":[{"text":"q","type":"text"}],"role":"user"},"parent_tool_use_id":null,"session_id":"","type":"user","uuid":"00000000-0000-7000-8000-000000000002"}"#;

/// What the agent says of its first prompt.
fn state(state: &str) -> String {
    format!(
        r#"< {{"type":"command_lifecycle","command_uuid":"00000000-0000-7000-8000-000000000001","state":"{state}"}}"#
    )
}

#[test]
fn text_that_was_streamed_is_not_told_again_with_its_whole_message() {
    check_in_turn(
        r#"< {"type":"stream_event","event":{"type":"message_start","message":{"id":"m"}}}
           < {"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"thinking"}}}
           < {"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}}
           < {"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"x"}}}
           < {"type":"assistant","message":{"id":"m","content":[{"type":"thinking","thinking":"hm","signature":"x"}]}}
           < {"type":"stream_event","event":{"type":"content_block_stop","index":0}}
           < {"type":"stream_event","event":{"type":"content_block_start","index":1,"content_block":{"type":"text"}}}
           < {"type":"stream_event","event":{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"one "}}}
           < {"type":"stream_event","event":{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"two"}}}
           < {"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"one two"}]}}
           < {"type":"assistant","message":{"id":"n","content":[{"type":"text","text":"one two"}]}}"#,
        "thought 'hm'\ntext 'one '\ntext 'two'\ntext 'one two'",
    );
}

#[test]
fn calls_and_results_are_told_and_what_a_helper_says_is_thought() {
    check_in_turn(
        r#"< {"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"c-1","name":"Task","input":{"prompt":"x"}}]}}
           < {"type":"stream_event","parent_tool_use_id":"c-1","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"not told"}}}
           < {"type":"assistant","parent_tool_use_id":"c-1","message":{"id":"k","content":[{"type":"text","text":"I look"},{"type":"tool_use","id":"c-2","name":"Read","input":{"file_path":"a"}}]}}
           < {"type":"user","parent_tool_use_id":"c-1","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c-2","content":"text of a"}]}}
           < {"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c-1","content":[{"type":"text","text":"one"},{"type":"image"},{"type":"text","text":"two"}],"is_error":true},{"type":"text","text":"not told"}]}}
           < {"type":"user","message":{"role":"user","content":"not told"}}"#,
        r#"tool 'c-1' 'Task' {"prompt":"x"}
           thought 'I look'
           tool 'c-2' 'Read' {"file_path":"a"}
           result 'c-2' 'text of a' error=false took=None
           result 'c-1' 'one\n[image]\ntwo' error=true took=None"#,
    );
}

#[test]
fn a_turn_ends_with_its_result_usage_and_cost() {
    check_in_turn(
        r#"< {"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":10,"cache_read_input_tokens":5,"cache_creation_input_tokens":2,"output_tokens":3}}}
           < {"type":"result","subtype":"success","is_error":false,"stop_reason":"end_turn","total_cost_usd":0.25,"usage":{"input_tokens":10,"cache_read_input_tokens":5,"cache_creation_input_tokens":2,"output_tokens":3},"modelUsage":{"small":{"contextWindow":100},"m":{"contextWindow":200000}}}"#,
        "text 'hi'\ncontext 20/200000 0.25 'USD'\nturn ended completed 'end_turn' tokens=17/3",
    );
}

#[test]
fn the_word_of_a_result_decides_how_the_turn_ended() {
    let error = "the agent ended the turn with an error";
    for (members, expect) in [
        (
            r#""subtype":"success","stop_reason":"max_tokens""#,
            "turn ended limited 'max_tokens' tokens=0/0".to_owned(),
        ),
        (
            r#""subtype":"success","stop_reason":"refusal""#,
            "turn ended refused 'refusal' tokens=0/0".to_owned(),
        ),
        (
            r#""subtype":"success","stop_reason":null"#,
            "turn ended completed - tokens=0/0".to_owned(),
        ),
        (
            r#""subtype":"error_max_turns","is_error":true,"errors":["Reached 3 turns"]"#,
            format!("turn ended limited 'error_max_turns' tokens=0/0 ({error}: Reached 3 turns)"),
        ),
        (
            r#""subtype":"error_max_budget_usd","is_error":true"#,
            "turn ended limited 'error_max_budget_usd' tokens=0/0".to_owned(),
        ),
        (
            r#""subtype":"error_during_execution","is_error":true,"errors":["broken","more"]"#,
            format!(
                "error 'error_during_execution' 'broken' unknown\nturn ended failed 'error_during_execution' tokens=0/0 ({error}: broken)"
            ),
        ),
        (
            r#""subtype":"success","is_error":true,"result":"API Error: 401","stop_reason":"stop_sequence""#,
            format!(
                "error 'api_error' 'API Error: 401' unknown\nturn ended failed 'stop_sequence' tokens=0/0 ({error}: API Error: 401)"
            ),
        ),
        (
            r#""subtype":"error_new","is_error":false"#,
            "turn ended failed 'error_new' tokens=0/0".to_owned(),
        ),
        (
            r#""is_error":false"#,
            "turn ended failed - tokens=0/0".to_owned(),
        ),
    ] {
        check_in_turn(&format!(r#"< {{"type":"result",{members}}}"#), &expect);
    }
    check_in_turn(
        r#"< {"type":"result","subtype":"success","subtype":"success"}
           > prompt q"#,
        &format!(
            "bad bad_shape {{\"type\":\"result\",\"subtype\":\"success\",\"subtype\":\"success\"}}\nturn ended failed - tokens=0/0 (the end of the turn cannot be read)\n{PROMPT_2}"
        ),
    );
}

#[test]
fn an_error_of_the_models_provider_is_told() {
    check_in_turn(
        r#"< {"type":"assistant","error":"rate_limit","message":{"id":"m","content":[{"type":"text","text":"API Error: 429"}]}}"#,
        "text 'API Error: 429'\nerror 'rate_limit' 'API Error: 429' remote",
    );
}

#[test]
fn a_second_prompt_is_not_written_while_a_turn_runs() {
    check_in_turn(
        &format!("> prompt q\n{END}\n> prompt q"),
        &format!("{TURN_ENDED}\n{PROMPT_2}\nrefused prompt q: a turn is running"),
    );
}

#[test]
fn an_interrupted_turn_ends_cancelled() {
    check_in_turn(
        r#"> cancel
           > cancel
           < {"type":"control_response","response":{"subtype":"success","request_id":"marshal-2","response":{"still_queued":[]}}}
           < {"type":"result","subtype":"error_during_execution","is_error":true,"errors":["aborted"],"usage":{"output_tokens":4}}
           > cancel"#,
        r#"write {"request":{"subtype":"interrupt"},"request_id":"marshal-2","type":"control_request"}
           turn ended cancelled 'error_during_execution' tokens=0/4 (the agent ended the turn with an error: aborted)"#,
    );
    // One that was done before it heard of it.
    check_in_turn(
        &format!("> cancel\n{END}"),
        &format!(
            "write {{\"request\":{{\"subtype\":\"interrupt\"}},\"request_id\":\"marshal-2\",\"type\":\"control_request\"}}\n{TURN_ENDED}"
        ),
    );
    check_in_turn(
        r#"> cancel
           < {"type":"control_response","response":{"subtype":"error","request_id":"marshal-2","error":"no"}}"#,
        "write {\"request\":{\"subtype\":\"interrupt\"},\"request_id\":\"marshal-2\",\"type\":\"control_request\"}\nerror 'interrupt' 'no' local",
    );
}

#[test]
fn what_the_agent_does_by_itself_does_not_end_our_turn() {
    let prompt = r#"write {"message":{"content":[{"text":"p","type":"text"}],"role":"user"},"parent_tool_use_id":null,"session_id":"","type":"user","uuid":"00000000-0000-7000-8000-000000000001"}"#;
    let head = display_line(END);
    check_ready(
        &format!(
            "> prompt p\n{}\n> cancel\n{END}\n{}\n{END}",
            state("queued"),
            state("started")
        ),
        &format!(
            r#"{prompt}
            write {{"request":{{"subtype":"interrupt"}},"request_id":"marshal-2","type":"control_request"}}
            bad out_of_state {head}
            turn started -
            write {{"request":{{"subtype":"interrupt"}},"request_id":"marshal-3","type":"control_request"}}
            {TURN_ENDED}"#
        ),
    );
}

#[test]
fn a_prompt_may_be_over_before_its_turn_began() {
    let prompt = r#"write {"message":{"content":[{"text":"p","type":"text"}],"role":"user"},"parent_tool_use_id":null,"session_id":"","type":"user","uuid":"00000000-0000-7000-8000-000000000001"}"#;
    check_ready(
        &format!(
            "> prompt p\n{}\n> cancel\n{}\n> prompt q",
            state("queued"),
            state("cancelled")
        ),
        &format!(
            r#"{prompt}
            write {{"request":{{"subtype":"interrupt"}},"request_id":"marshal-2","type":"control_request"}}
            turn ended cancelled - tokens=0/0 (the agent dropped the prompt before its turn began)
            {PROMPT_2}"#
        ),
    );
    check_ready(
        &format!("> prompt p\n{}\n{}", state("queued"), state("completed")),
        &format!(
            "{prompt}\nturn ended completed - tokens=0/0 (the agent handled the prompt in another turn)"
        ),
    );
}

#[test]
fn a_turn_that_is_over_does_not_wait_for_its_result_for_ever() {
    let lost = "the agent reported that the turn ended, but sent no result";
    check_in_turn(
        &format!(
            "{}\n~ 9999\n> prompt r\n~ 1\n> prompt q\n{END}",
            state("completed")
        ),
        &format!(
            "turn ended failed - tokens=0/0 ({lost})\n{PROMPT_2}\nturn started -\n{TURN_ENDED}\nrefused prompt r: a turn is running"
        ),
    );
    check_in_turn(
        &format!("{}\n~ 10000", state("cancelled")),
        &format!("turn ended cancelled - tokens=0/0 ({lost})"),
    );
    // One that comes in time is the end, and the word after it is nothing.
    check_in_turn(
        &format!(
            "{}\n~ 9999\n{END}\n{}\n~ 60000",
            state("completed"),
            state("completed")
        ),
        TURN_ENDED,
    );
}

#[test]
fn no_number_of_tokens_is_too_large() {
    let most = u64::MAX;
    check_in_turn(
        &format!(
            r#"< {{"type":"assistant","message":{{"id":"m","content":[],"usage":{{"input_tokens":{most},"cache_read_input_tokens":{most},"output_tokens":{most}}}}}}}
               < {{"type":"result","subtype":"success","usage":{{"input_tokens":{most},"cache_creation_input_tokens":{most},"output_tokens":{most}}},"modelUsage":{{"m":{{"contextWindow":200000}}}}}}"#
        ),
        &format!("context {most}/200000\nturn ended completed - tokens={most}/{most}"),
    );
}

#[test]
fn outside_of_a_turn_text_is_dropped_and_calls_are_told() {
    let text =
        r#"{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"x"}]}}"#;
    let call = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"c","name":"Bash","input":{}}]}}"#;
    let piece = r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}}"#;
    check_ready(
        &format!("< {text}\n< {call}\n< {piece}\n{END}"),
        &format!(
            "bad out_of_state {}\nbad out_of_state {}\ntool 'c' 'Bash' {{}}\nbad out_of_state {}\nbad out_of_state {}",
            display_line(text),
            display_line(call),
            display_line(piece),
            display_line(END)
        ),
    );
}

#[test]
fn a_session_that_the_agent_clears_is_another() {
    check_in_turn(
        r#"< {"type":"conversation_reset","new_conversation_id":"x"}
           < {"type":"system","subtype":"init","session_id":"another"}
           < {"type":"system","subtype":"init","session_id":"another"}"#,
        "session cleared",
    );
}

#[test]
fn before_it_is_ready_there_is_no_session_to_clear() {
    check(
        &opening(),
        &format!("< {{\"type\":\"conversation_reset\"}}\n{READY}"),
        &format!(
            "{}\nbad out_of_state {{\"type\":\"conversation_reset\"}}\n{}",
            super::HELLO,
            super::READY_SAYS
        ),
    );
}

#[test]
fn goodbye_closes_the_input_and_nothing_is_written_after_it() {
    check_in_turn(
        r#"< {"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{}}}
           > goodbye
           > goodbye
           > allow r
           > prompt q
           < EOF"#,
        r"ask r 'Bash' {} active='default'
           withdrawn r
           close input
           refused allow r: the channel is closed
           refused prompt q: the channel is closed",
    );
}

#[test]
fn too_many_lines_that_are_no_messages_are_another_program() {
    let talk = Conversation::opened(DialectName::Claude, &opening());
    let most = limits::BAD_LINES as usize;
    let effects = played(talk, &"< hello\n".repeat(most + 5));
    let bad = effects
        .lines()
        .filter(|line| line.starts_with("bad bad_json"));
    assert_eq!(bad.count(), most + 1);
    assert!(effects.ends_with(&format!(
        "fault more than {most} lines on the agent's stdout were not messages\n"
    )));
}

#[test]
fn a_line_that_is_too_long_ends_the_channel() {
    let talk = Conversation::opened(DialectName::Claude, &opening());
    let long = "x".repeat(limits::LINE_BYTES + 1);
    let effects = played(talk, &format!("{READY}\n< {long}\n> prompt p"));
    let cap = limits::LINE_BYTES;
    assert!(effects.contains(&format!(
        "fault the agent wrote a line of more than {cap} bytes\n"
    )));
    assert!(effects.ends_with("refused prompt p: the channel is closed\n"));
}

#[test]
fn a_late_word_of_the_end_is_nobodys() {
    check(
        &opening(),
        &format!("{READY}\n< EOF\n{END}"),
        &format!("{}\n{}", super::HELLO, super::READY_SAYS),
    );
}
