//! What a session is set to, and modes that skip questions.

use std::collections::BTreeMap;

use marshal_config::{AcpSettings, OptionValue};
use marshal_dialect::{ChannelError, Effect};

use super::{check_with, talk_with, update};

const GREETING: &str = r#"< {"id":1,"result":{"protocolVersion":1}}"#;
const NEW: &str = r#"write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}"#;

const MODES: &str = r#""modes":{"currentModeId":"default","availableModes":[{"id":"default","name":"Default"},{"id":"plan"},{"id":"m4","name":"YOLO"},{"id":"accept_edits"}]}"#;
const MODELS: &str = r#""models":{"currentModelId":"custom:a","availableModels":[{"modelId":"custom:a"},{"modelId":"custom:b"}]}"#;

fn options(mode: &str, model: &str, fast: bool) -> String {
    format!(
        r#""configOptions":[{{"id":"m","category":"mode","type":"select","currentValue":"{mode}","options":[{{"value":"build"}},{{"value":"plan"}},{{"value":"yolo"}}]}},{{"id":"llm","category":"model","type":"select","currentValue":"{model}","options":[{{"group":"g","options":[{{"value":"a"}},{{"value":"b"}}]}}]}},{{"id":"fast","type":"boolean","currentValue":{fast}}}]"#
    )
}

fn mode(mode: &str) -> AcpSettings {
    AcpSettings {
        mode: Some(mode.to_owned()),
        ..AcpSettings::default()
    }
}

fn new(fields: &str) -> String {
    format!("{GREETING}\n< {{\"id\":2,\"result\":{{\"sessionId\":\"s-1\",{fields}}}}}")
}

/// Why a person must look.
#[track_caller]
fn needs(acp: AcpSettings, script: &str, parts: &[&str]) {
    let mut talk = talk_with(acp);
    for line in script.lines() {
        talk.chunk(format!("{}\n", &line.trim()[2..]).as_bytes());
    }
    let Some(Effect::ChannelFailed(ChannelError::NeedsSetup(said))) = talk.effects.last() else {
        panic!("{}", talk.effects_text());
    };
    for part in parts {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(
        !talk.effects_text().contains("ready"),
        "{}",
        talk.effects_text()
    );
}

#[test]
fn mode_and_model_are_set_before_the_first_prompt() {
    let wanted = AcpSettings {
        model: Some("custom:b".to_owned()),
        ..mode("plan")
    };
    check_with(
        wanted,
        &format!(
            r#"{}
            > prompt early
            < {{"id":3,"result":{{}}}}
            < {{"id":4,"result":{{}}}}"#,
            new(&format!("{MODES},{MODELS}"))
        ),
        &format!(
            r#"{NEW}
            write {{"jsonrpc":"2.0","id":3,"method":"session/set_mode","params":{{"sessionId":"s-1","modeId":"plan"}}}}
            write {{"jsonrpc":"2.0","id":4,"method":"session/set_model","params":{{"sessionId":"s-1","modelId":"custom:b"}}}}
            ready protocol=1 session='s-1' model='custom:b' mode='plan'
            refused prompt early: the agent is not ready"#
        ),
    );
}

#[test]
fn options_are_set_where_the_agent_has_options_and_only_where_they_differ() {
    let mut wanted = mode("plan");
    wanted.model = Some("a".to_owned());
    wanted.options = BTreeMap::from([("fast".to_owned(), OptionValue::Switch(true))]);
    check_with(
        wanted,
        &format!(
            r#"{}
            < {{"id":3,"result":{{{}}}}}
            < {{"id":4,"result":{{}}}}"#,
            new(&options("build", "a", false)),
            options("plan", "a", false)
        ),
        &format!(
            r#"{NEW}
            write {{"jsonrpc":"2.0","id":3,"method":"session/set_config_option","params":{{"sessionId":"s-1","configId":"m","value":"plan"}}}}
            write {{"jsonrpc":"2.0","id":4,"method":"session/set_config_option","params":{{"sessionId":"s-1","configId":"fast","type":"boolean","value":true}}}}
            options 'm'='plan' 'llm'='a' 'fast'='true'
            ready protocol=1 session='s-1' model='a' mode='plan'"#
        ),
    );
}

#[test]
fn what_the_agent_does_not_offer_needs_a_person_who_is_told_what_it_does() {
    needs(
        mode("ask"),
        &new(MODES),
        &["no mode ask", "default, plan, m4, accept_edits"],
    );
    needs(
        mode("ask"),
        &new(r#""modes":null"#),
        &["no mode ask; it offers: none"],
    );
    let with = |options: &[(&str, OptionValue)], model: Option<&str>| AcpSettings {
        model: model.map(str::to_owned),
        options: options
            .iter()
            .map(|(id, value)| ((*id).to_owned(), value.clone()))
            .collect(),
        ..AcpSettings::default()
    };
    let choice = |value: &str| OptionValue::Choice(value.to_owned());
    let all = new(&options("build", "a", false));
    needs(with(&[], Some("c")), &all, &["no model c; it offers: a, b"]);
    needs(
        with(&[("x", choice("y"))], None),
        &all,
        &["no option x; it has: m, llm, fast"],
    );
    needs(
        with(&[("llm", choice("y"))], None),
        &all,
        &["llm has no value y; it has: a, b"],
    );
    needs(
        with(&[("fast", choice("y"))], None),
        &all,
        &["fast is true or false"],
    );
    needs(
        with(&[("llm", OptionValue::Switch(true))], None),
        &all,
        &["llm is not true or false"],
    );
}

#[test]
fn what_the_agent_refuses_or_sets_otherwise_needs_a_person() {
    let refused = r#"< {"id":3,"error":{"code":-32602,"message":"no"}}"#;
    needs(
        mode("plan"),
        &format!("{}\n{refused}", new(MODES)),
        &["rejected the mode plan", "-32602"],
    );
    let other = format!(
        "< {{\"id\":3,\"result\":{{{}}}}}",
        options("build", "a", false)
    );
    needs(
        mode("plan"),
        &format!("{}\n{other}", new(&options("build", "a", false))),
        &["m = plan", "reports another value"],
    );
}

#[test]
fn a_session_that_opens_in_a_mode_that_skips_questions_is_refused_unless_that_is_meant() {
    let opened = [
        MODES.replace(
            "currentModeId\":\"default",
            "currentModeId\":\"accept_edits",
        ),
        MODES.replace("currentModeId\":\"default", "currentModeId\":\"m4"),
        options("yolo", "a", false),
        r#""configOptions":[{"id":"approval_policy","currentValue":"never","options":[]}]"#
            .to_owned(),
        r#""configOptions":[{"id":"auto_approve","type":"boolean","currentValue":true}]"#
            .to_owned(),
        r#""configOptions":[{"id":"ap","name":"Approval policy","currentValue":"never"}]"#
            .to_owned(),
        r#""configOptions":[{"id":"x","category":"permissions","currentValue":"bypass"}]"#
            .to_owned(),
        r#""configOptions":[{"id":"auto_approve","currentValue":"on"}]"#.to_owned(),
        r#""configOptions":[{"id":"require_approval","currentValue":false}]"#.to_owned(),
        r#""configOptions":[{"id":"mode","currentValue":7}]"#.to_owned(),
        r#""modes":{"availableModes":[{"id":"default"}]}"#.to_owned(),
    ];
    for fields in &opened {
        needs(
            AcpSettings::default(),
            &new(fields),
            &["skips permission requests", "mode_skips_requests = true"],
        );
        let meant = AcpSettings {
            mode_skips_requests: true,
            ..AcpSettings::default()
        };
        let mut talk = talk_with(meant);
        for line in new(fields).lines() {
            talk.chunk(format!("{}\n", &line[2..]).as_bytes());
        }
        assert!(
            talk.effects_text().contains("ready"),
            "{}",
            talk.effects_text()
        );
    }
    // Set to one that asks, it is good.
    check_with(
        mode("default"),
        &format!("{}\n< {{\"id\":3,\"result\":{{}}}}", new(&opened[0])),
        &format!(
            r#"{NEW}
            write {{"jsonrpc":"2.0","id":3,"method":"session/set_mode","params":{{"sessionId":"s-1","modeId":"default"}}}}
            ready protocol=1 session='s-1' mode='default'"#
        ),
    );
}

#[test]
fn options_that_say_that_it_asks_are_no_reason_to_refuse_it() {
    let requests = new(
        r#""configOptions":[{"id":"auto_approve","currentValue":"off"},{"id":"auto_approve_reads","currentValue":false},{"id":"require_approval","currentValue":true},{"id":"approval_policy","currentValue":"untrusted"},{"id":"m","name":"Agent","category":"mode","currentValue":"code"},{"id":"fast","currentValue":false}]"#,
    );
    let mut talk = talk_with(AcpSettings::default());
    for line in requests.lines() {
        talk.chunk(format!("{}\n", &line[2..]).as_bytes());
    }
    assert!(
        talk.effects_text().contains("ready"),
        "{}",
        talk.effects_text()
    );
}

#[test]
fn settings_that_cannot_be_read_are_not_taken_for_none() {
    for fields in [
        r#""modes":7"#,
        r#""modes":{"currentModeId":"yolo"},"modes":null"#,
        r#""configOptions":{"mode":"yolo"}"#,
        r#""configOptions":[],"configOptions":[{"id":"mode","currentValue":"yolo"}]"#,
    ] {
        needs(
            AcpSettings::default(),
            &new(fields),
            &["cannot be read", "whether the session asks"],
        );
    }
    for fields in [r#""modes":null"#, r#""configOptions":null,"modes":null"#] {
        let mut talk = talk_with(AcpSettings::default());
        for line in new(fields).lines() {
            talk.chunk(format!("{}\n", &line[2..]).as_bytes());
        }
        assert!(
            talk.effects_text().contains("ready"),
            "{}",
            talk.effects_text()
        );
    }
}

#[test]
fn what_the_reply_to_a_mode_says_counts() {
    let reply = options("yolo", "a", false);
    let modes = r#""modes":{"currentModeId":"build","availableModes":[{"id":"plan"}]}"#;
    needs(
        mode("plan"),
        &format!(
            "{}\n< {{\"id\":3,\"result\":{{{reply}}}}}",
            new(&format!("{modes},{}", options("build", "a", false)))
        ),
        &["the mode plan", "reports another value"],
    );
}

#[test]
fn an_agent_that_goes_into_such_a_mode_by_itself_is_ended_at_once() {
    let by_mode = |mode: &str| {
        update(&format!(
            r#""sessionUpdate":"current_mode_update","currentModeId":"{mode}""#
        ))
    };
    let by_option = update(&format!(
        r#""sessionUpdate":"config_option_update",{}"#,
        options("yolo", "a", false)
    ));
    let by_prose = update(r#""sessionUpdate":"current_mode_update","modeId":"bypassPermissions""#);
    // It has the name of an option's choice by now.
    let renamed = format!(
        "{}\n{}",
        update(
            r#""sessionUpdate":"config_option_update","configOptions":[{"id":"mode","currentValue":"m1","options":[{"value":"m1"},{"value":"m9","name":"YOLO"}]}]"#
        ),
        by_mode("m9")
    );
    let unreadable = [
        update(r#""sessionUpdate":"current_mode_update""#),
        update(r#""sessionUpdate":"current_mode_update","currentModeId":"plan","modeId":"yolo""#),
        update(r#""sessionUpdate":"config_option_update","configOptions":{"mode":"yolo"}"#),
    ];
    let changes = [
        by_mode("dontAsk"),
        by_mode("m4"),
        by_option,
        by_prose,
        renamed,
    ];
    for change in changes.into_iter().chain(unreadable) {
        let mut talk = talk_with(AcpSettings::default());
        for line in new(MODES).lines().chain(change.lines()) {
            talk.chunk(format!("{}\n", &line[2..]).as_bytes());
        }
        let last = talk.effects.last();
        assert!(
            matches!(
                last,
                Some(Effect::ChannelFailed(ChannelError::UnsafeState(_)))
            ),
            "{}",
            talk.effects_text()
        );
    }
    let mut talk = talk_with(AcpSettings::default());
    for line in new(MODES).lines().chain(by_mode("plan").lines()) {
        talk.chunk(format!("{}\n", &line[2..]).as_bytes());
    }
    assert!(
        !talk.effects_text().contains("\nfault"),
        "{}",
        talk.effects_text()
    );
}
