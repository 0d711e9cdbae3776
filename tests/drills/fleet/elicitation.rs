//! Questions that an agent asks by its protocol (`elicitation/create`): a person answers them like any
//! other approval, and the answer fits the agent's form.

use std::fs;

use serde_json::{Value, json};

use crate::drill::Drill;
use crate::fleet::approvals::{answer, client, daemon, good, id, result, state};
use crate::fleet::engine_tools::{journal_texts, next};
use crate::fleet::native;

fn pool(launcher: &str, more: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
permission_requests = "all"
workspace = {{ path = "project", mode = "copy" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{launcher}
{more}
"#
    )
}

fn question(message: &str, properties: &Value, required: &Value) -> String {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    format!("client elicitation/create {params}")
}

#[test]
fn a_person_fills_in_the_form_of_an_agent() {
    for launcher in ["", "launcher = \"none\""] {
        let drill = Drill::new(&pool(launcher, "client_elicitation = true"));
        let _daemon = daemon(&drill);
        let color = json!({"color": {"type": "string", "enum": ["red", "blue"]}});
        let both = json!({"name": {"type": "string"}, "age": {"type": "integer", "default": 7}});
        let page = json!({"mode": "url", "message": "Log in", "elicitationId": "e-1", "url": "https://a.example/login"});
        let script = [
            question("Which color?", &color, &json!(["color"])),
            question("Who is it?", &both, &json!(["name"])),
            question("Sure?", &json!({}), &json!([])),
            format!("client elicitation/create {page}"),
            "raw {\"jsonrpc\":\"2.0\",\"method\":\"elicitation/complete\",\"params\":{\"elicitationId\":\"e-1\"}}".to_owned(),
            question("Which one?", &color, &json!(["color"])),
            question("And now?", &color, &json!(["color"])),
        ];
        let client = client(&drill, &[&script.join("\n")]);
        let mut asked: Vec<Value> = Vec::new();
        for (shown, word, reason) in [
            ("Which color?", "approve", Some("blue")),
            ("name (text)", "approve", Some("{\"name\": \"Ann\"}")),
            ("Sure?", "approve", None),
            ("https://a.example/login", "approve", None),
            ("[red, blue]", "approve", Some("green")),
            ("And now?", "reject", Some("ask me tomorrow")),
        ] {
            let ask = next(&drill, &asked.iter().collect::<Vec<_>>());
            let text = drill.run(&["approvals", "show", &id(&ask)]);
            assert!(text.stdout.contains(shown), "{shown}: {}", text.all());
            let reason = reason.map_or_else(Vec::new, |reason| vec!["--reason", reason]);
            good(&answer(&drill, word, &ask, &reason));
            asked.push(ask);
        }
        let ended = result(&drill, client);
        assert_eq!(state(&drill, &asked[0]), "approved", "{ended}");
        assert_eq!(state(&drill, &asked[5]), "rejected", "{ended}");
        let text = journal_texts(&drill);
        for part in [
            r#""content":{"color":"blue"}"#,
            r#""content":{"age":7,"name":"Ann"}"#,
            r#""action":"accept","content":{}"#,
            "the person's answer cannot be used: it does not fit the field color (text)",
            r#""action":"decline""#,
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let notices = native::events(&drill, "notice");
        assert_eq!(notices[0]["description"], "e-1", "{notices:?}");
        good(&drill.run(&["audit", "verify"]));
    }
}

#[test]
fn a_question_is_refused_where_it_is_not_offered_cannot_be_shown_or_a_rule_forbids_it() {
    let ask = question("Which?", &json!({"a": {"type": "string"}}), &json!([]));
    let drill = Drill::new(&pool("", ""));
    let ran = drill.run(&["run", &ask]);
    assert!(ran.code == Some(0), "{}", ran.all());
    assert!(journal_texts(&drill).contains("elicitation/create error -32601"));

    let rules =
        "policy = \"quiet\"\nclient_elicitation = true\n[policy.quiet]\nfile = \"quiet.toml\"";
    let drill = Drill::new(&pool("", rules));
    let policy = "schema = 1\nname = \"quiet\"\nextends = [\"builtin:guard\"]\ndefault = \"allow\"\n\
        [[rule]]\nid = \"quiet\"\ndecision = \"deny\"\ntool = \"mcp\"\nserver = \"marshal\"\nname = \"ask_person\"\nreason = \"decide by yourself\"\n";
    fs::write(drill.path("quiet.toml"), policy).expect("quiet.toml");
    let odd = question("Which?", &json!({"a": {"type": "object"}}), &json!([]));
    let script = format!(
        "{ask}\n{odd}\nclient elicitation/create {{\"mode\":\"url\",\"message\":\"m\",\"url\":\"file:///etc/passwd\"}}"
    );
    drill.run(&["run", &script]);
    let text = journal_texts(&drill);
    for part in [
        r#""action":"decline""#,
        "elicitation/create error -32602 field \\\"a\\\" cannot be read",
        "elicitation/create error -32602 url must begin with",
    ] {
        let part = part.replace("\\\"", "\"");
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    let decided = native::events(&drill, "permission_decided");
    assert_eq!(decided.len(), 1, "{decided:?}");
    assert_eq!(decided[0]["rules"], json!(["quiet"]), "{decided:?}");
}
