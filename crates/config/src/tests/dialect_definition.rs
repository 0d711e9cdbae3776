//! Tables of custom dialects: what is refused and how, and that their page says what their reader does.

use std::collections::BTreeSet;
use std::path::Path;

use crate::DialectDefinition;
use crate::dialect_definition::{self, UnlistedTypes, RuleEvent, UnansweredPolicy};

const DOCUMENT: &str = include_str!("../../../../docs/dialects.md");
const PI: &str = include_str!("../../../../examples/dialects/pi.toml");
const SCAIFLUX: &str = include_str!("../../../../examples/dialects/scaiflux.toml");

fn parse(text: &str) -> Result<DialectDefinition, String> {
    DialectDefinition::parse(text.as_bytes(), Path::new("agent.toml")).map_err(|e| e.to_string())
}

/// A table that is whole but for what is added.
fn with(more: &str) -> String {
    format!(
        "{more}\nprompt.send = '{{\"say\": \"{{prompt}}\"}}'\n\
         [[on]]\ntype = \"done\"\nevent = \"end\"\notherwise = \"completed\"\n"
    )
}

/// The table with one more rule.
fn rule(keys: &str) -> String {
    format!("{}[[on]]\n{keys}\n", with(""))
}

#[track_caller]
fn refused(text: &str, expect: &str) {
    let error = parse(text).expect_err(text);
    assert!(error.contains(expect), "{text}\n{error}");
    assert!(error.starts_with("agent.toml:"), "{error}");
}

#[test]
fn the_examples_are_tables() {
    let pi = parse(PI).expect("pi");
    assert!(!pi.can_request_permission() && pi.announces_ready() && pi.close_input && !pi.resume.is_empty());
    let own = parse(SCAIFLUX).expect("scaiflux");
    assert!(own.can_request_permission() && own.announces_ready() && !own.close_input && own.resume.is_empty());
    assert_eq!(own.digest.len(), 64);
    assert_ne!(own.digest, pi.digest);
    let unanswered = own.permission.expect("answers").unanswered;
    assert_eq!(unanswered, UnansweredPolicy::Nothing);
}

#[test]
fn the_least_table_has_the_documented_defaults() {
    let least = parse(&with("")).expect("a table");
    assert_eq!((least.name.as_str(), least.unlisted_types), ("custom", UnlistedTypes::Record));
    assert_eq!(least.type_path.to_string(), "type");
    assert!(least.close_input && !least.allows_early && !least.can_request_permission() && !least.announces_ready());
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let error = parse("prompt.send = '{}'\n\n[[on]]\ntype = \"x\"\nevnt = \"end\"\n").expect_err("faults");
    for part in [
        "agent.toml:1:15: prompt.send: the template has no {prompt}",
        "agent.toml:3:1: on[0]: a rule needs event",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
    let error = parse(&rule("type = \"x\"\nevent = \"text\"\ndelta = \"a\"\ndelte = \"b\"")).expect_err("a fault");
    assert!(error.contains("11:1: on[1].delte: unknown key \"delte\" (did you mean delta?)"), "{error}");
}

#[test]
fn tables_that_cannot_work_are_refused() {
    for (text, expect) in [
        ("", "a definition needs prompt.send"),
        ("", "a definition needs rules, [[on]]"),
        ("prompt.send = '{\"a\":\"{prompt}\"}'\non = []", "no rule ends a turn"),
        (&with("promt = 1"), "did you mean prompt?"),
        (&with("rule = []"), "did you mean on?"),
        (&with("name = \"Pi\""), "expected [a-z0-9]"),
        (&with("type = \"a..b\""), "a name is missing in the path"),
        (&with("others = \"drop\""), "expected \"tell\" or \"ignore\", found \"drop\""),
        (&with("early = 1"), "expected true or false"),
        (&with("version.accept = []"), "no version at all"),
        (&with("version.accept = 1"), "a list of versions"),
        (&with("version.accept = [\"*\"]"), "accepts every version"),
        (&with("version.accept = [true]"), "an integer or a string"),
        (&with("version.accept = [1]"), "no rule with event = \"ready\" reads the version"),
        (&rule("type = \"hi\"\nevent = \"ready\"\nversion = \"v\""), "none is accepted"),
        (&with("open.send = '{\"a\": \"{prompt}\"}'"), "unknown placeholder {prompt}"),
        (&with("open.send = '['"), "the template is not JSON"),
        (&with("cancel = {}"), "[cancel] needs send"),
        (&with("slash.send = '{\"a\": \"{command}\"}'"), "[slash] and its result go together"),
        (&with("permission.allow = '{\"i\": \"{id}\"}'"), "[permission] needs deny"),
        (&with("permission = { allow = '{\"i\": 1}', deny = '{\"i\": \"{id}\"}' }"), "the answer has no {id}"),
        (&with("permission = { allow = '{\"i\": \"{id}\"}', deny = '{\"i\": \"{id}\"}' }"), "allow and deny say the same"),
        (&with("permission = { allow = '{\"y\": \"{id}\"}', deny = '{\"n\": \"{id}\"}' }"), "no rule has event = \"permission\""),
        (&rule("type = \"x\"\nevent = \"permission\"\nid = \"i\"\ntool = \"t\""), "there is no table [permission]"),
        (&rule("type = \"x\"\nevent = \"permission\"\nid = \"i\""), "needs tool, a path"),
        (&rule("type = \"x\"\nevent = \"withdraw\"\nid = \"i\""), "event = \"withdraw\" has no effect"),
        (&rule("event = \"text\"\ndelta = \"d\""), "a rule needs type"),
        (&rule("type = \"x\"\nevent = \"txt\"\ndelta = \"d\""), "did you mean text?"),
        (&rule("type = \"x\"\nevent = \"text\""), "needs delta, a path"),
        (&rule("type = \"x\"\nevent = \"text\"\ndelta = \"d[99]\""), "from -15 to 15"),
        (&rule("type = \"x\"\nevent = \"end\""), "needs outcomes or otherwise"),
        (&rule("type = \"x\"\nevent = \"end\"\noutcomes = { a = \"done\" }"), "expected \"completed\", \"limited\""),
        (&rule("type = \"x\"\nevent = \"end\"\notherwise = \"faild\""), "did you mean failed?"),
        (&rule("type = \"x\"\nevent = \"send\""), "needs send"),
        (&rule("type = \"x\"\nevent = \"usage\"\nwhen = { a = 1.5 }"), "a string, an integer, true or false"),
        (&rule("type = \"x\"\nevent = \"usage\"\nwhen = { a = [] }"), "nothing could ever match"),
        (&rule("type = \"x\"\nevent = \"usage\"\nwhen = { \"a.\" = 1 }"), "a name is missing"),
        (&rule("type = \"x\"\nevent = \"error\"\nends_turn = \"allways\""), "did you mean always?"),
    ] {
        refused(text, expect);
    }
    let attached = "[prompt]\nsend = '{\"a\": \"{prompt}\"}'\nattached = '{\"a\": \"{path}\"}'\n\
        [[on]]\ntype = \"done\"\nevent = \"end\"\notherwise = \"completed\"\n";
    refused(attached, "{attached} and prompt.attached go together");
}

#[test]
fn tables_have_bounds() {
    let many = "[[on]]\ntype = \"x\"\nevent = \"usage\"\n".repeat(128);
    refused(&format!("{}{many}", with("")), "129 rules, at most 128");
    let long = format!("{}# {}\n", with(""), "x".repeat(dialect_definition::DEFINITION_BYTES));
    refused(&long, "a definition can have at most 65536");
    let types = vec!["\"t\""; 65].join(",");
    refused(&with(&format!("ignore = [{types}]")), "65 elements, at most 64");
}

#[test]
fn the_page_has_every_key_and_every_event_and_no_other() {
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `"));
    let first = |row: &str| row.split('`').next().unwrap_or_default().to_owned();
    let all: Vec<String> = rows.map(first).collect();
    let events: BTreeSet<&str> = RuleEvent::ALL.iter().map(|event| event.as_str()).collect();
    let is_key = |name: &&String| !name.starts_with('{') && !events.contains(name.as_str());
    let documented: BTreeSet<&String> = all.iter().filter(is_key).collect();
    let forms = dialect_definition::key_types();
    let mut accepted: BTreeSet<String> = forms.values();
    // Keys at the root, and those of the array.
    for name in ["name", "type", "turn", "ignore", "others", "early"] {
        accepted.insert(name.to_owned());
    }
    for name in forms.child_names("on[]") {
        accepted.insert(format!("on[].{name}"));
    }
    let accepted: BTreeSet<&String> = accepted.iter().collect();
    assert_eq!(documented, accepted);
    for event in events {
        assert!(
            DOCUMENT.contains(&format!("| `{event}`")) || DOCUMENT.contains(&format!(", `{event}`")),
            "{event} is not documented"
        );
    }
}
