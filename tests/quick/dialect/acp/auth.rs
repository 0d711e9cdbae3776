//! Logins: made, refused, asked for.

use marshal_config::AcpSettings;
use marshal_dialect::{ChannelError, Effect};

use super::{check_with, talk_with};

const METHODS: &str = r#"[{"id":"chat","name":"Chat login"},{"type":"terminal","id":"setup","name":"Set up","args":["--setup"]},{"type":"env_var","id":"key"},{"id":7},"x"]"#;

fn wants(auth: &str) -> AcpSettings {
    AcpSettings {
        auth: Some(auth.to_owned()),
        ..AcpSettings::default()
    }
}

fn greeting() -> String {
    format!(r#"< {{"id":1,"result":{{"protocolVersion":1,"authMethods":{METHODS}}}}}"#)
}

const NEW: &str = r#"write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}"#;

#[test]
fn the_login_that_the_pool_names_is_made_before_a_session_is_opened() {
    for method in ["chat", "key"] {
        check_with(
            wants(method),
            &format!(
                r#"{}
                < {{"id":2,"result":{{}}}}
                < {{"id":3,"result":{{"sessionId":"s-1"}}}}"#,
                greeting()
            ),
            &format!(
                r#"write {{"jsonrpc":"2.0","id":2,"method":"authenticate","params":{{"methodId":"{method}"}}}}
                write {{"jsonrpc":"2.0","id":3,"method":"session/new","params":{{"cwd":"/workspace","mcpServers":[]}}}}
                ready protocol=1 session='s-1'"#
            ),
        );
    }
}

#[test]
fn a_login_in_a_terminal_and_one_that_is_not_offered_need_a_person() {
    for (method, why) in [
        ("setup", "the login setup needs a terminal"),
        (
            "other",
            "the agent offers no login other (auth); it offers: chat (Chat login), setup (Set up, in a terminal), key",
        ),
    ] {
        let mut talk = talk_with(wants(method));
        talk.chunk(format!("{}\n", &greeting()[2..]).as_bytes());
        let Some(Effect::ChannelFailed(ChannelError::NeedsSetup(said))) = talk.effects.last()
        else {
            panic!("{}", talk.effects_text());
        };
        assert!(said.contains(why), "{said}");
        assert_eq!(talk.written_lines().len(), 1, "{}", talk.effects_text());
    }
}

#[test]
fn a_session_that_is_refused_without_a_login_tells_which_there_are() {
    let error = r#""error":{"code":-32000,"message":"Authentication required"}"#;
    let reported = |acp: AcpSettings, replies: &str| {
        let mut talk = talk_with(acp);
        for line in format!("{}\n{replies}", greeting()).lines() {
            talk.chunk(format!("{}\n", &line[2..]).as_bytes());
        }
        match talk.effects.last() {
            Some(Effect::ChannelFailed(ChannelError::NeedsSetup(reported))) => reported.clone(),
            other => panic!("{other:?}"),
        }
    };
    let without = reported(AcpSettings::default(), &format!("< {{\"id\":2,{error}}}"));
    for part in [
        "it offers: chat (Chat login), setup (Set up, in a terminal), key",
        "set auth",
    ] {
        assert!(without.contains(part), "{without}");
    }
    let failed = reported(wants("chat"), &format!("< {{\"id\":2,{error}}}"));
    assert!(failed.contains("the login chat failed"), "{failed}");
    let with = reported(
        wants("chat"),
        &format!("< {{\"id\":2,\"result\":{{}}}}\n< {{\"id\":3,{error}}}"),
    );
    assert!(
        with.contains("the login chat (auth) was not enough"),
        "{with}"
    );
}

#[test]
fn a_login_that_fails_for_another_reason_is_tried_again_with_the_next_child() {
    check_with(
        wants("chat"),
        &format!(
            "{}\n< {{\"id\":2,\"error\":{{\"code\":-32603,\"message\":\"no network\"}}}}",
            greeting()
        ),
        r#"write {"jsonrpc":"2.0","id":2,"method":"authenticate","params":{"methodId":"chat"}}
           fault the login chat failed: the agent reported error -32603: no network"#,
    );
}

#[test]
fn the_goodbye_closes_the_session_and_logs_out_where_that_is_wanted() {
    let can = r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"close":{}},"auth":{"logout":{}}}}}
        < {"id":2,"result":{"sessionId":"s-1"}}"#;
    let open = format!("{NEW}\nready protocol=1 session='s-1'");
    let close =
        r#"write {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"s-1"}}"#;
    check_with(
        AcpSettings::default(),
        &format!("{can}\n> goodbye\n< {{\"id\":3,\"result\":{{}}}}"),
        &format!("{open}\n{close}\nclose input"),
    );
    let logout = AcpSettings {
        logout: true,
        ..AcpSettings::default()
    };
    check_with(
        logout.clone(),
        &format!("{can}\n> goodbye\n< {{\"id\":3,\"error\":{{}}}}\n< {{\"id\":4,\"result\":{{}}}}"),
        &format!(
            r#"{open}
            {close}
            write {{"jsonrpc":"2.0","id":4,"method":"logout","params":{{}}}}
            close input"#
        ),
    );
    // Who cannot is not asked to.
    check_with(
        logout,
        r#"< {"id":1,"result":{"protocolVersion":1}}
           < {"id":2,"result":{"sessionId":"s-1"}}
           > goodbye"#,
        &format!("{open}\nclose input"),
    );
}

#[test]
fn a_goodbye_takes_a_request_back_that_nobody_waits_for() {
    check_with(
        AcpSettings::default(),
        r#"< {"id":1,"result":{"protocolVersion":1}}
           > goodbye
           < {"id":2,"result":{"sessionId":"s-1"}}"#,
        &format!(
            r#"{NEW}
            write {{"jsonrpc":"2.0","method":"$/cancel_request","params":{{"requestId":2}}}}
            close input
            bad unknown_id"#
        ),
    );
}
