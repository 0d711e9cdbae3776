//! What is a secret, how it is found in JSON, and that a mark allows nothing.

use std::fmt::Write as _;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::extract::Extractor;
use crate::{FsContext, NoLinks, Policy};
use marshal_model::AgentClaims;

const VALUE: &str = "s3cr3t/val-ue\n\"q\" é\u{1f511}";

fn mask(values: &[(&str, &str)]) -> Mask {
    let values: Vec<_> = values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    Mask::new(&values).0
}

fn json(mask: &Mask, text: &str) -> String {
    let raw = RawValue::from_string(text.to_owned()).expect("json");
    mask.mask_json(&raw).get().to_owned()
}

#[test]
fn a_value_becomes_its_name_and_the_rest_stays() {
    let mask = mask(&[("API_KEY", "topsecret-1"), ("OTHER", "topsecret-1234")]);
    assert_eq!(
        mask.mask_text("a topsecret-1 b topsecret-12345 c"),
        "a ‹secret:API_KEY› b ‹secret:OTHER›5 c"
    );
    assert!(matches!(mask.mask_text("topsecret-"), Cow::Borrowed(_)));
    // Two that overlap leave nothing of either.
    let mask = self::mask(&[("A", "abcdefgh"), ("B", "ghijklmn")]);
    assert_eq!(mask.mask_text("xabcdefghijklmny"), "x‹secret:A›y");
}

#[test]
fn blanks_around_a_value_are_none_of_it_and_a_short_one_is_told() {
    let values = [
        ("LONG".to_owned(), "  spaced-out\n"),
        ("PIN".to_owned(), "1234567"),
    ];
    let (mask, short) = Mask::new(&values);
    assert_eq!(short, ["PIN"]);
    assert_eq!(
        mask.mask_text("=spaced-out;1234567"),
        "=‹secret:LONG›;1234567"
    );
    assert!(!format!("{mask:?}").contains("spaced"));
    // A name never closes its mark.
    let mask = self::mask(&[("a›b c", "long-enough")]);
    assert_eq!(mask.mask_text("long-enough"), "‹secret:a_b_c›");
}

#[test]
fn keys_of_known_shapes_are_found_and_words_like_them_are_not() {
    let mask = Mask::default();
    for (text, expect) in [
        (
            "Bearer sk-proj-abcdEFGH1234567890xyz.",
            "Bearer ‹secret:sk-key›.",
        ),
        (
            "t=ghp_0123456789abcdefghij0123456789abcdef\n",
            "t=‹secret:github-token›\n",
        ),
        ("AKIAIOSFODNN7EXAMPLE,", "‹secret:aws-key-id›,"),
        ("glpat-abcdefghij0123456789 x", "‹secret:gitlab-token› x"),
        (
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.SflKxwRJSMeKKF2QT4",
            "‹secret:json-web-token›",
        ),
        (
            "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb",
            "a\n‹secret:private-key›\nb",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nthe rest",
            "‹secret:private-key›",
        ),
    ] {
        assert_eq!(mask.mask_text(text), expect, "{text}");
    }
    for text in [
        "task-management-of-the-12345-queue",
        "sk-short1",
        "sk-learn-without-any-number-at-all",
        "npm_config_registry",
        "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
        "eyJhbGci.only.two",
        "AKIA of the mountains",
    ] {
        assert_eq!(mask.mask_text(text), text);
    }
    // A value takes precedence over the shape that contains it.
    let mask = self::mask(&[("KEY", "sk-abcdefghij0123456789")]);
    assert_eq!(mask.mask_text("sk-abcdefghij0123456789"), "‹secret:KEY›");
    assert_eq!(mask.mask_text("sk-abcdefghij0123456789XY"), "‹secret:KEY›");
}

#[test]
fn it_is_found_however_json_escapes_it() {
    let mask = mask(&[("KEY", VALUE), ("NUMBER", "12345678")]);
    for text in [
        "s3cr3t/val-ue\\n\\\"q\\\" é\u{1f511}",
        "s3cr3t\\/val\\u002due\\u000a\\u0022q\\u0022\\u0020\\u00e9\\ud83d\\udd11",
        "\\u0073\\u0033cr3t\\u002Fval-ue\\n\\\"q\\\" \\u00E9\\uD83D\\uDD11",
    ] {
        let of = |text: &str| format!("{{\"a\\\"\": [\"x{text}y\\u0041\"], \"{text}\" :1e2}}");
        let expect = "{\"a\\\"\": [\"x‹secret:KEY›y\\u0041\"], \"‹secret:KEY›\" :1e2}";
        assert_eq!(json(&mask, &of(text)), expect);
    }
    assert_eq!(
        json(&mask, "[12345678, -123456789.0, 1234567]"),
        "[\"‹secret:NUMBER›\", \"‹secret:NUMBER›\", 1234567]"
    );
    // The quotes and commas between two strings are in no string, so they are not a secret.
    let mask = self::mask(&[("ODD", "one\",\"two")]);
    let odd = r#"{"a":["one","two"]}"#;
    assert_eq!(json(&mask, odd), odd);
}

#[test]
fn what_cannot_be_decoded_stays_as_it_is() {
    let mask = mask(&[("KEY", "long-enough")]);
    let broken = r#"{"a":"\ud800 long\u002denough \udc00","a":2,"b":"\ud800"}"#;
    assert_eq!(
        json(&mask, broken),
        "{\"a\":\"\\ud800 ‹secret:KEY› \\udc00\",\"a\":2,\"b\":\"\\ud800\"}"
    );
}

#[test]
fn nothing_is_copied_where_there_is_nothing_to_take_out() {
    let mask = mask(&[("KEY", "long-enough")]);
    for text in [
        r#"{"command":"git status"}"#,
        r#"{"command":"echo \"a\\n\" \u0041"}"#,
        "[task-1, 2]",
    ] {
        let Ok(raw) = RawValue::from_string(text.to_owned()) else {
            continue;
        };
        assert!(matches!(mask.mask_json(&raw), Cow::Borrowed(_)), "{text}");
    }
}

#[test]
fn a_long_text_of_beginnings_takes_no_long_time() {
    let mask = Mask::default();
    let mut text = String::new();
    for begins in ["sk-", "eyJ", "eyJaaaaaaaaaaaaa.", "-----BEGIN ", "ghp_1a"] {
        text.push_str(&begins.repeat((1 << 18) / begins.len()));
        text.push(' ');
    }
    let began = std::time::Instant::now();
    let _ = mask.mask_text(&text);
    // A build without optimisation on a loaded machine; what grows with the square takes hours.
    assert!(began.elapsed().as_secs() < 60);
}

/// The same by another way: every text decoded, masked and written again.
fn by_values(mask: &Mask, value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(mask.mask_text(text).into_owned()),
        Value::Array(items) => items.iter().map(|item| by_values(mask, item)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (mask.mask_text(name).into_owned(), by_values(mask, value)))
            .collect(),
        other => other.clone(),
    }
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        Just(VALUE.to_owned()),
        Just("sk-abcdefghij0123456789".to_owned()),
        Just("plain \\ \" / \u{0}".to_owned()),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        text().prop_map(Value::String),
        Just(Value::Null),
        Just(7.into())
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::vec((text(), inner), 0..3)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// A text of JSON with more escapes than it needs, by the bits of `seed`.
fn escaped(value: &Value, seed: u64) -> String {
    let mut out = String::new();
    let mut bits = seed;
    let mut is_text = false;
    // Characters of an escape that are copied.
    let (mut copied, mut is_first) = (0, false);
    for c in value.to_string().chars() {
        bits = bits.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut units = [0; 2];
        match c {
            _ if copied > 0 => {
                copied = if c == 'u' && is_first { 4 } else { copied - 1 };
                is_first = false;
                out.push(c);
            }
            '\\' => {
                (copied, is_first) = (1, true);
                out.push(c);
            }
            '"' => {
                is_text = !is_text;
                out.push(c);
            }
            c if is_text && bits & 0x30 == 0 => {
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            '/' if is_text && bits & (1 << 9) == 0 => out.push_str("\\/"),
            c => out.push(c),
        }
    }
    out
}

/// Requests that the policy below denies, asks for or allows.
const INPUTS: &[(&str, &str)] = &[
    ("bash", r#"{"command":"rm -rf /srv/customers/database"}"#),
    (
        "bash",
        r#"{"command":"cat ../../../outside/of/it && ls src/main/program"}"#,
    ),
    ("bash", r#"{"command":"git status --short --branch"}"#),
    ("read", r#"{"path":"/home/agent/.ssh/id_ed25519_of_ci"}"#),
    ("read", r#"{"path":"src/main/program.rs"}"#),
    (
        "write",
        r#"{"path":".git/hooks/pre-commit","content":"nothing of note"}"#,
    ),
    (
        "write",
        r#"{"path":"src/generated/table.rs","content":"a text without end"}"#,
    ),
    (
        "fetch",
        r#"{"url":"https://internal.example/admin/delete"}"#,
    ),
    (
        "something",
        r#"{"argument":"of a tool that no table knows"}"#,
    ),
];

const OPEN: &str = r#"
schema = 1
name = "open"
extends = ["builtin:guard"]
default = "allow"
unknown_tool = "allow"

[[rule]]
id = "no-rm"
decision = "deny"
tool = "shell"
argv = ["rm"]
reason = "no"

[[rule]]
id = "no-inside"
decision = "deny"
tool = "fetch"
url = ["https://internal.example/**"]
reason = "no"
"#;

proptest! {
    #[test]
    fn json_is_masked_as_its_texts_are(value in value(), seed in any::<u64>()) {
        let mask = mask(&[("KEY", VALUE)]);
        let raw = RawValue::from_string(escaped(&value, seed)).expect("json");
        let masked = mask.mask_json(&raw);
        let read: Value = serde_json::from_str(masked.get()).expect("still json");
        prop_assert_eq!(read, by_values(&mask, &value));
        prop_assert!(!mask.mask_text(masked.get()).contains(VALUE));
    }

    #[test]
    fn what_is_masked_holds_nothing_and_stays(text in text()) {
        let mask = mask(&[("KEY", VALUE), ("SHORTER", "plain \\ \"")]);
        let once = mask.mask_text(&text).into_owned();
        prop_assert!(!once.contains(VALUE) && !once.contains("plain \\ \""));
        prop_assert_eq!(mask.mask_text(&once).into_owned(), once.clone());
    }

    /// Whatever part of a call is a secret: a mark allows nothing that was not allowed, and where
    /// rules look, nothing at all.
    #[test]
    fn a_mark_never_lowers_a_deny_to_an_allow(
        which in 0..INPUTS.len(),
        from in 0_usize..60,
        len in 8_usize..40,
        lax in any::<bool>(),
    ) {
        let (tool, input) = INPUTS[which];
        let whole: Value = serde_json::from_str(input).expect("json");
        let texts: Vec<&str> = whole.as_object().expect("an object").values()
            .filter_map(Value::as_str).collect();
        let policy = if lax { &*LAX } else { &*STRICT };
        let at = FsContext {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: None,
            resolver: &NoLinks,
        };
        let judge = |input: &RawValue| {
            let request = TABLE.extract(tool, input);
            policy.decide(&request, &AgentClaims::default(), &at)
        };
        let came = RawValue::from_string(input.to_owned()).expect("json");
        for text in texts {
            let Some(secret) = text.get(from..).map(|rest| &rest[..len.min(rest.len())]) else {
                continue;
            };
            let mask = mask(&[("KEY", secret)]);
            let masked = mask.mask_json(&came);
            if masked.get() == came.get() {
                continue;
            }
            let (before, after) = (judge(&came), judge(&masked));
            let is_judged = text != "nothing of note" && text != "a text without end"
                && tool != "something";
            if is_judged {
                prop_assert_ne!(after.decision, Decision::Allow, "{} in {}", secret, input);
            } else {
                prop_assert_eq!(after.decision, before.decision, "{} in {}", secret, input);
            }
        }
    }
}

static LAX: LazyLock<Policy> =
    LazyLock::new(|| Policy::load(OPEN, "open", &|_| Err("none".to_owned())).expect("a policy"));
static STRICT: LazyLock<Policy> = LazyLock::new(|| Policy::builtin("developer").expect("built in"));
static TABLE: LazyLock<Extractor> =
    LazyLock::new(|| Extractor::parse(SCRIPTS).expect("a good table"));

/// A table with a tool of each kind.
const SCRIPTS: &str = r#"
schema = 1
[tool.bash]
class = "shell"
command = "command"
[tool.read]
class = "read"
path = "path"
[tool.write]
class = "write"
path = "path"
[tool.fetch]
class = "fetch"
url = "url"
"#;
