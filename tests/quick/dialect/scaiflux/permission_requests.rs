//! Permission requests and their answers.

use super::{TURN, check, check_in_turn, run_both};
use crate::dialect::script::run;
use marshal_model::limits;

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
           < {"type":"permission_request","request_id":"r","request_id":"s","tool":"x"}
           < {"type":"permission_request","request_id":[7],"tool":"x"}"#,
        r#"bad bad_shape {"type":"permission_request","request_id":"r","tool":["x"]}
           write {"type":"permission_response","request_id":"r","decision":"deny","reason":"the permission request cannot be read"}
           bad bad_shape {"type":"permission_request","request_id":"r","request_id":…
           bad bad_shape {"type":"permission_request","request_id":[7],"tool":"x"}"#,
    );
    // Where a table says nothing else, numbers name requests too, and come back as numbers.
    let effects = run(&format!(
        r#"{TURN}< {{"type":"permission_request","request_id":7,"tool":"x"}}"#
    ));
    assert!(
        effects.contains("bad bad_shape") && !effects.contains("decision"),
        "{effects}"
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
fn it_does_not_ask_without_end() {
    let request_list = (0..=limits::OPEN_PERMISSION_REQUESTS
        + limits::EXCESS_PERMISSION_REQUESTS as usize)
        .map(|n| format!(r#"< {{"type":"permission_request","request_id":"r-{n}","tool":"x"}}"#));
    let request_list: Vec<String> = request_list.collect();
    let reported = run_both(&format!("{TURN}{}", request_list.join("\n")));
    let count = |begins: &str| {
        reported
            .lines()
            .filter(|line| line.starts_with(begins))
            .count()
    };
    assert_eq!(count("ask r-"), limits::OPEN_PERMISSION_REQUESTS);
    assert_eq!(
        count("bad too_many_asks"),
        limits::EXCESS_PERMISSION_REQUESTS as usize + 1
    );
    assert_eq!(count("withdrawn"), limits::OPEN_PERMISSION_REQUESTS);
    assert_eq!(
        count("fault the agent keeps sending requests"),
        1,
        "{}",
        reported.len()
    );
}

#[test]
fn ids_without_end_are_not_kept() {
    let long = "i".repeat(limits::FOREIGN_ID_BYTES + 1);
    let reported = run_both(&format!(
        r#"{TURN}< {{"type":"permission_request","request_id":"{long}","tool":"x"}}"#
    ));
    assert!(!reported.contains("ask "), "{reported}");
    assert!(reported.contains(r#""decision":"deny","reason":"the request id is too long"}"#));
}
