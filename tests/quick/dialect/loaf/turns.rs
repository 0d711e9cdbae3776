//! Turns: prompts, their acknowledgement, their ends, cancels, commands, the goodbye.

use super::{
    TURN, TURN_SAYS, began, check_in_turn, check_open, chunk, completed, event, lines, of_turn,
};

const SEND: &str = r#"write {"jsonrpc":"2.0","id":3,"method":"session.send","params":{"session_id":"s-1","text":"p"}}"#;

fn ack(id: u8, turn: &str, queued: bool) -> String {
    format!(
        r#"< {{"jsonrpc":"2.0","id":{id},"result":{{"session_id":"s-1","turn_id":"{turn}","accepted":true,"queued":{queued}}}}}"#
    )
}

fn request(id: u8, method: &str) -> String {
    format!(
        r#"write {{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"session_id":"s-1"}}}}"#
    )
}

#[test]
fn the_acknowledgement_is_not_the_turns_end() {
    check_in_turn(
        &lines(&[
            "> prompt second",
            &began(),
            &chunk("hi"),
            &completed(2),
            "> prompt third",
        ]),
        r#"turn started 't-1'
           text 'hi'
           turn ended completed 'completed' tokens=0/0
           write {"jsonrpc":"2.0","id":4,"method":"session.send","params":{"session_id":"s-1","text":"third"}}
           refused prompt second: a turn is running"#,
    );
}

#[test]
fn events_may_come_before_the_acknowledgement_and_the_end_as_well() {
    check_open(
        &lines(&[
            "> prompt p",
            &began(),
            &chunk("hi"),
            &completed(2),
            &ack(3, "t-1", false),
        ]),
        &lines(&[
            SEND,
            "turn started 't-1'",
            "text 'hi'",
            "turn ended completed 'completed' tokens=0/0",
        ]),
    );
    // The acknowledgement of the turn before comes when the next one is under way.
    check_open(
        &lines(&[
            "> prompt p",
            &completed(0),
            "> prompt q",
            &ack(3, "t-1", false),
            &chunk("late"),
            &event(
                "session.status",
                r#""session_id":"s-1","turn_id":"t-2","pending":true"#,
            ),
            &ack(4, "t-2", false),
        ]),
        &lines(&[
            SEND,
            "turn ended completed 'completed' tokens=0/0",
            r#"write {"jsonrpc":"2.0","id":4,"method":"session.send","params":{"session_id":"s-1","text":"q"}}"#,
            "bad out_of_state",
            "turn started 't-2'",
        ]),
    );
    check_open(
        &lines(&["> prompt p", &began(), &ack(3, "t-9", false)]),
        &lines(&[
            SEND,
            "turn started 't-1'",
            "fault the agent gave one turn two names: t-1 and t-9",
        ]),
    );
}

#[test]
fn a_busy_session_fails_the_turn_and_not_the_channel() {
    check_open(
        &lines(&[
            "> prompt p",
            r#"< {"id":3,"error":{"code":-32603,"message":"session is busy; use enqueue=true to queue the prompt","data":{"reason":"internal_error"}}}"#,
            "> prompt q",
            r#"< {"id":4,"result":{"turn_id":"t","accepted":false}}"#,
            "> prompt r",
            r#"< {"id":5,"result":[]}"#,
        ]),
        r#"write {"jsonrpc":"2.0","id":3,"method":"session.send","params":{"session_id":"s-1","text":"p"}}
           error '-32603' 'session is busy; use enqueue=true to queue the prompt' unknown
           turn ended failed - tokens=0/0 (the agent reported error -32603: session is busy; use enqueue=true to queue the prompt ({"reason":"internal_error"}))
           write {"jsonrpc":"2.0","id":4,"method":"session.send","params":{"session_id":"s-1","text":"q"}}
           turn ended failed - tokens=0/0 (the agent did not accept the prompt)
           write {"jsonrpc":"2.0","id":5,"method":"session.send","params":{"session_id":"s-1","text":"r"}}
           bad bad_shape"#,
    );
}

#[test]
fn every_end_has_its_outcome() {
    check_in_turn(
        &of_turn("session.interrupted", r#""partial_output":true"#),
        "turn ended cancelled 'interrupted' tokens=0/0",
    );
    check_in_turn(
        &of_turn("session.error", r#""message":"no \u0007key""#),
        r"error '' 'no \u{7}key' unknown
          turn ended failed 'error' tokens=0/0 (the agent reported an error: no \u{7}key)",
    );
    // One that cannot be read ends the turn, too: nobody waits for another.
    check_in_turn(
        r#"< {"jsonrpc":"2.0","method":"event","params":{"type":"session.completed","payload":7}}"#,
        "bad bad_shape\nturn ended failed - tokens=0/0 (the agent's session.completed cannot be read)",
    );
    // Of another session, or of another turn.
    check_in_turn(
        &lines(&[
            &event("session.completed", r#""session_id":"s-2","turn_id":"t-1""#),
            &event("session.completed", r#""session_id":"s-1","turn_id":"t-0""#),
            &event("session.completed", r#""answer_length":0"#),
            &completed(0),
        ]),
        "bad out_of_state
         bad out_of_state
         turn ended completed 'completed' tokens=0/0
         bad out_of_state",
    );
}

#[test]
fn a_cancel_interrupts_and_takes_what_waits_out_of_the_queue() {
    check_in_turn(
        &lines(&[
            &began(),
            "> cancel",
            "> cancel",
            r#"< {"id":4,"result":{"session_id":"s-1","interrupted":true}}"#,
            &of_turn("session.interrupted", ""),
        ]),
        &lines(&[
            "turn started 't-1'",
            &request(4, "session.interrupt"),
            "turn ended cancelled 'interrupted' tokens=0/0",
        ]),
    );
    // An error is what the turn came to because it was cancelled.
    check_in_turn(
        &lines(&[
            &began(),
            "> cancel",
            &of_turn("session.error", r#""message":"aborted""#),
        ]),
        &lines(&[
            "turn started 't-1'",
            &request(4, "session.interrupt"),
            "error '' 'aborted' unknown",
            "turn ended cancelled 'error' tokens=0/0 (the agent reported an error: aborted)",
        ]),
    );
}

#[test]
fn an_interrupt_that_found_nothing_is_repeated_when_the_turn_begins() {
    let missed = |id: u8| format!(r#"< {{"id":{id},"result":{{"interrupted":false}}}}"#);
    check_in_turn(
        &lines(&[
            "> cancel",
            r#"< {"id":4,"result":{"cleared_count":0}}"#,
            &missed(5),
            &began(),
            &of_turn("session.interrupted", ""),
        ]),
        &lines(&[
            &request(4, "session.queue.clear"),
            &request(5, "session.interrupt"),
            "turn started 't-1'",
            &request(6, "session.interrupt"),
            "turn ended cancelled 'interrupted' tokens=0/0",
        ]),
    );
    // The word comes after the turn's beginning, and not for ever.
    check_in_turn(
        &lines(&[&began(), "> cancel", &missed(4), &missed(5), &missed(6)]),
        &lines(&[
            "turn started 't-1'",
            &request(4, "session.interrupt"),
            &request(5, "session.interrupt"),
            &request(6, "session.interrupt"),
        ]),
    );
}

#[test]
fn a_prompt_that_the_agent_queues_waits_for_its_turn() {
    let other = |kind: &str, payload: &str| {
        event(
            kind,
            &format!(r#""session_id":"s-1","turn_id":"t-0",{payload}"#),
        )
    };
    let queued = lines(&["> prompt p", &ack(3, "t-1", true)]);
    let queued_says = lines(&[SEND, &request(4, "session.queue.list")]);
    check_open(
        &lines(&[
            &queued,
            r#"< {"id":4,"result":{"session_id":"s-1","queue":[{"id":"t-1"}]}}"#,
            &other(
                "session.stream.chunk",
                r#""chunk":{"answerText":"not ours"}"#,
            ),
            &other("session.completed", r#""answer_length":8"#),
            &began(),
            &completed(0),
        ]),
        &lines(&[
            &queued_says,
            "notice - 'the agent runs another turn; prompts in its queue: 1' -",
            "bad out_of_state",
            "bad out_of_state",
            "turn started 't-1'",
            "turn ended completed 'completed' tokens=0/0",
        ]),
    );
    check_open(
        &lines(&[
            &queued,
            "> cancel",
            r#"< {"id":6,"result":{"interrupted":true}}"#,
            r#"< {"id":5,"result":{"session_id":"s-1","cleared_count":1}}"#,
            "> prompt q",
        ]),
        &lines(&[
            &queued_says,
            &request(5, "session.queue.clear"),
            &request(6, "session.interrupt"),
            "turn ended cancelled - tokens=0/0 (it was taken out of the agent's queue)",
            r#"write {"jsonrpc":"2.0","id":7,"method":"session.send","params":{"session_id":"s-1","text":"q"}}"#,
        ]),
    );
}

#[test]
fn replies_may_come_in_any_order_and_each_once() {
    check_in_turn(
        &lines(&[
            &began(),
            "> slash steer more",
            "> cancel",
            r#"< {"id":5,"result":{"interrupted":true}}"#,
            r#"< {"id":4,"result":{"accepted":true}}"#,
            r#"< {"id":4,"result":{"accepted":true}}"#,
            r#"< {"id":99,"result":{}}"#,
            r#"< {"id":"5","result":{}}"#,
            r#"< {"id":null,"error":{"code":-32700,"message":"parse error"}}"#,
        ]),
        r#"turn started 't-1'
           write {"jsonrpc":"2.0","id":4,"method":"session.steer","params":{"session_id":"s-1","text":"more"}}
           write {"jsonrpc":"2.0","id":5,"method":"session.interrupt","params":{"session_id":"s-1"}}
           slash 'steer' 'the agent accepted it' data=- clear=false exit=false
           commanded
           bad unknown_id
           bad unknown_id
           bad unknown_id
           bad unknown_id"#,
    );
}

#[test]
fn commands_are_the_agents_own_and_steering_needs_a_turn() {
    check_open(
        &lines(&[
            "> slash steer x",
            "> slash model",
            "> slash clear now",
            r#"< {"id":3,"result":{"handled":true,"output":{"selected_model":"m"}}}"#,
            "> slash clear now",
            r#"< {"id":4,"result":{"handled":true,"output":{"cleared":true}}}"#,
            "> slash nope",
            r#"< {"id":5,"result":{"handled":true,"output":{"error":"unknown command: /nope"}}}"#,
            "> slash odd",
            r#"< {"id":6,"result":{"handled":false}}"#,
            "> slash limits",
            r#"< {"id":7,"error":{"code":-32603,"message":"no provider"}}"#,
        ]),
        r#"write {"jsonrpc":"2.0","id":3,"method":"command.execute","params":{"session_id":"s-1","raw_command":"/model"}}
           slash 'model' '' data={"selected_model":"m"} clear=false exit=false
           commanded
           write {"jsonrpc":"2.0","id":4,"method":"command.execute","params":{"session_id":"s-1","raw_command":"/clear now"}}
           slash 'clear' '' data={"cleared":true} clear=true exit=false
           commanded
           write {"jsonrpc":"2.0","id":5,"method":"command.execute","params":{"session_id":"s-1","raw_command":"/nope"}}
           slash 'nope' 'unknown command: /nope' data={"error":"unknown command: /nope"} clear=false exit=false
           not commanded 'unknown command: /nope'
           write {"jsonrpc":"2.0","id":6,"method":"command.execute","params":{"session_id":"s-1","raw_command":"/odd"}}
           slash 'odd' 'the agent does not know this command' data=- clear=false exit=false
           not commanded 'the agent does not know this command'
           write {"jsonrpc":"2.0","id":7,"method":"command.execute","params":{"session_id":"s-1","raw_command":"/limits"}}
           error '-32603' 'no provider' unknown
           not commanded 'no provider'
           refused slash steer x: no turn is running, so there is nothing to steer
           refused slash clear now: the agent has not answered the previous command"#,
    );
    check_open(
        &lines(&[
            "> slash quit",
            r#"< {"id":3,"result":{"handled":true,"output":{"shutting_down":true}}}"#,
            "> prompt p",
        ]),
        r#"write {"jsonrpc":"2.0","id":3,"method":"command.execute","params":{"session_id":"s-1","raw_command":"/quit"}}
           slash 'quit' '' data={"shutting_down":true} clear=false exit=true
           commanded
           exit wanted
           close input
           refused prompt p: the channel is closed"#,
    );
}

#[test]
fn what_the_protocol_has_no_words_for_is_refused() {
    check_open(
        "> allow x\n> deny x no\n> text x y\n> mode plan\n> option fast on",
        "refused allow x: no open permission request has this id
         refused deny x no: no open permission request has this id
         refused text x y: the protocol has no such command
         refused mode plan: this agent has no modes
         refused option fast on: the model is the only option of this agent, if it lists models",
    );
}

#[test]
fn the_goodbye_closes_stdin_because_a_shutdown_ends_nothing() {
    const SHUTDOWN: &str = r#"write {"jsonrpc":"2.0","id":4,"method":"system.shutdown","params":{"reason":"the supervisor is done with it"}}"#;
    for reply in [
        r#"< {"id":4,"result":{"accepted":true}}"#,
        r#"< {"id":4,"error":{"code":-32603,"message":"no"}}"#,
    ] {
        check_in_turn(
            &lines(&[
                &began(),
                "> goodbye",
                "> goodbye",
                "> prompt q",
                &of_turn("session.error", r#""message":"aborted""#),
                reply,
            ]),
            &lines(&[
                "turn started 't-1'",
                SHUTDOWN,
                "error '' 'aborted' unknown",
                "turn ended cancelled 'error' tokens=0/0 (the agent reported an error: aborted)",
                "close input",
                "refused prompt q: the channel is closed",
            ]),
        );
    }
    // Before there is a session, there is nothing to say.
    super::check("> goodbye", "close input");
    check_open(
        &format!("{TURN}< EOF\n> goodbye"),
        &format!("{TURN_SAYS}refused goodbye: the channel is closed"),
    );
}
