//! The model that a pool names, and what a person chooses.

use std::sync::Arc;

use marshal_config::{AcpSettings, DialectName, OptionValue};
use marshal_dialect::OpenParams;

use super::{check_talk, lines};
use crate::dialect::script::Conversation;

#[track_caller]
fn check(wanted: AcpSettings, script: &str, expect: &str) {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        acp: Arc::new(wanted),
        ..OpenParams::default()
    };
    let talk = Conversation::opened(DialectName::Loaf, &opening);
    check_talk(
        talk,
        &format!("{OPEN}\n{script}"),
        &format!("{OPEN_SAYS}\n{expect}"),
    );
}

fn named(model: &str) -> AcpSettings {
    AcpSettings {
        model: Some(model.to_owned()),
        ..AcpSettings::default()
    }
}

/// Up to the reply to `model.list`.
const OPEN: &str = r#"
    < {"id":1,"result":{"protocol_version":"1.0.0"}}
    < {"id":2,"result":{"session_id":"s-1"}}
"#;
const OPEN_SAYS: &str = r#"
    write {"jsonrpc":"2.0","id":2,"method":"session.create","params":{}}
    write {"jsonrpc":"2.0","id":3,"method":"model.list","params":{}}
"#;
const LIST: &str = r#"< {"id":3,"result":{"providers":["openai"],"models":[{"id":"gpt-4.1","provider":"openai","label":"gpt 4.1"},{"id":"x/big","provider":"openrouter"}],"selected_model":"gpt-4.1","selected_thinking":"HIGH","selected_provider":"openai","selected_openrouter_provider":"any"}}"#;

fn select(id: u8, model: &str, provider: &str) -> String {
    format!(
        r#"write {{"jsonrpc":"2.0","id":{id},"method":"model.select","params":{{"model_id":"{model}","provider":"{provider}","thinking_level":"HIGH","session_id":"s-1"}}}}"#
    )
}

const READY: &str = "options 'model'='openai/gpt-4.1'
    ready protocol=1.0.0 session='s-1' model='gpt-4.1'";

#[test]
fn the_model_is_selected_unless_it_is_the_one_already() {
    check(AcpSettings::default(), LIST, READY);
    check(named("gpt-4.1"), LIST, READY);
    check(
        named("openrouter/x/big"),
        &lines(&[LIST, r#"< {"id":4,"result":{"selected_model":"x/big"}}"#]),
        &lines(&[
            &select(4, "x/big", "openrouter"),
            "options 'model'='openrouter/x/big'",
            "ready protocol=1.0.0 session='s-1' model='x/big'",
        ]),
    );
}

#[test]
fn a_model_that_is_not_offered_or_not_taken_parks_the_slot() {
    check(
        named("gpt-9"),
        LIST,
        "fault the agent offers no model gpt-9; it offers: gpt-4.1, x/big",
    );
    for list in [
        r#"< {"id":3,"error":{"code":-32601,"message":"no"}}"#,
        r#"< {"id":3,"result":{"models":7}}"#,
    ] {
        check(
            named("gpt-9"),
            list,
            "fault the agent offers no model gpt-9; it offers: none",
        );
        check(
            AcpSettings::default(),
            list,
            "ready protocol=1.0.0 session='s-1'",
        );
    }
    check(
        named("x/big"),
        &lines(&[
            LIST,
            r#"< {"id":4,"error":{"code":-32603,"message":"no key"}}"#,
        ]),
        &lines(&[
            &select(4, "x/big", "openrouter"),
            "fault the agent rejected the model x/big: the agent reported error -32603: no key",
        ]),
    );
}

#[test]
fn a_person_chooses_among_the_models() {
    check(
        AcpSettings::default(),
        &lines(&[
            LIST,
            "> option model gpt-4.1",
            "> option model gpt-9",
            "> option model on",
            "> option model openrouter/x/big",
            "> option model gpt-4.1",
            r#"< {"id":4,"error":{"code":-32603,"message":"no key"}}"#,
            "> option model openrouter/x/big",
            r#"< {"id":5,"result":{}}"#,
        ]),
        &lines(&[
            READY,
            "set",
            &select(4, "x/big", "openrouter"),
            "not set: the agent rejected the model x/big: the agent reported error -32603: no key",
            &select(5, "x/big", "openrouter"),
            "state model='x/big' mode=- pct=None window=None",
            "options 'model'='openrouter/x/big'",
            "set",
            "refused option model gpt-9: the agent offers no model gpt-9; it offers: gpt-4.1, x/big",
            "refused option model on: the option model is not a switch",
            "refused option model gpt-4.1: another setting is being changed: try again",
        ]),
    );
    // Whoever waits for it is told, too, where the session ends before.
    check(
        AcpSettings::default(),
        &lines(&[
            LIST,
            "> option model openrouter/x/big",
            "> goodbye",
            r#"< {"id":5,"result":{"accepted":true}}"#,
        ]),
        &lines(&[
            READY,
            &select(4, "x/big", "openrouter"),
            "not set: the session ends before the agent said whether it accepts the model",
            r#"write {"jsonrpc":"2.0","id":5,"method":"system.shutdown","params":{"reason":"the supervisor is done with it"}}"#,
            "close input",
        ]),
    );
    // In a later child it holds before the pool's.
    let mut wanted = named("gpt-4.1");
    let chosen = OptionValue::Choice("openrouter/x/big".to_owned());
    wanted.options.insert("model".to_owned(), chosen);
    check(wanted, LIST, &select(4, "x/big", "openrouter"));
}
