//! What a decider of the site's own is told of a request, and how its answer is read.
//!
//! The document is versioned; `docs/delegates.md` describes it. What is no answer in exactly the
//! right form is a fault, and a fault is a deny. Must not know how the decider is reached.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use marshal_model::Decision;
pub use marshal_model::DelegateError;
use marshal_model::limits::{DELEGATE_ANSWER_BYTES, DELEGATE_REASON_WIDTH};
use marshal_model::untrusted::escape_for_display;

/// The document's version.
pub const VERSION: u32 = 1;

/// The agent asked just now, and the policy does not deny it.
pub const PHASE_REQUEST: &str = "request";

/// What it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegateAnswer {
    /// Its decision: only one that is more severe than the policy's counts.
    pub decision: Decision,
    /// Why, on one line, bounded, with every unsafe character escaped.
    pub reason: String,
}

/// One request, as a decider is told of it.
#[derive(Debug, Serialize)]
pub struct DelegateRequest<'a> {
    /// [`VERSION`].
    pub version: u32,
    /// When it is asked: [`PHASE_REQUEST`].
    pub phase: &'a str,
    /// The decider's name.
    pub delegate: &'a str,
    /// The pool.
    pub pool: &'a str,
    /// The agent's preset, or `custom`.
    pub agent: &'a str,
    /// The slot's number in its pool.
    pub slot: u16,
    /// Our id of the session.
    pub session: &'a str,
    /// The run.
    pub run: &'a str,
    /// The task.
    pub task: &'a str,
    /// Our id of the approval.
    pub ask: &'a str,
    /// The tool's name, as the agent calls it; of what an agent has its client do, the method.
    pub tool: &'a str,
    /// The kind of tool.
    pub class: &'a str,
    /// The tool's input, without secrets.
    pub input: &'a RawValue,
    /// What the agent claims beside it.
    pub claimed: Claims<'a>,
    /// What the policy says.
    pub policy: PolicyOutcome<'a>,
    /// What the rules saw: the same JSON as in the audit record.
    pub facts: &'a RawValue,
}

/// What the agent claims of its request.
#[derive(Debug, Serialize)]
pub struct Claims<'a> {
    /// Its title.
    pub title: Option<&'a str>,
    /// Its kind.
    pub kind: Option<&'a str>,
    /// Why.
    pub reason: Option<&'a str>,
    /// The mode that the agent says it runs in.
    pub active_mode: Option<&'a str>,
    /// The mode that it says the call needs.
    pub required_mode: Option<&'a str>,
}

/// What the policy says of it.
#[derive(Debug, Serialize)]
pub struct PolicyOutcome<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// SHA-256 of its text.
    pub sha256: &'a str,
    /// `allow` or `ask`.
    pub decision: &'a str,
    /// The rules that decided.
    pub rules: &'a [String],
    /// Why.
    pub reason: &'a str,
}

#[derive(Serialize)]
struct Envelope<'a> {
    input: DelegateRequest<'a>,
}

impl DelegateRequest<'_> {
    /// The text that the decider gets: `{"input": …}`, without a line break.
    pub fn into_json(self) -> String {
        serde_json::to_string(&Envelope { input: self })
            .unwrap_or_else(|_| unreachable!("texts, numbers and JSON are JSON"))
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Decided {
    decision: String,
    #[serde(default)]
    reason: String,
}

/// Reads an answer: `{"result": {"decision": "allow" | "ask" | "deny", "reason": "…"}}`. Other
/// members are ignored.
///
/// # Errors
/// What is no answer.
pub fn parse_answer(answer: &[u8]) -> Result<DelegateAnswer, DelegateError> {
    if answer.len() > DELEGATE_ANSWER_BYTES {
        return Err(DelegateError::TooLong);
    }
    let answer: Answer<'_> =
        serde_json::from_slice(answer).map_err(|_| DelegateError::Malformed)?;
    let result = answer.result.ok_or(DelegateError::Undefined)?;
    let result: Decided =
        serde_json::from_str(result.get()).map_err(|_| DelegateError::Malformed)?;
    let decision = Decision::from_word(&result.decision).ok_or(DelegateError::Malformed)?;
    Ok(DelegateAnswer {
        decision,
        reason: escape_for_display(result.reason.trim(), DELEGATE_REASON_WIDTH),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_an_answer_of_the_right_form_is_one() {
        let said = |decision, reason: &str| {
            Ok(DelegateAnswer {
                decision,
                reason: reason.to_owned(),
            })
        };
        for (answer, expect) in [
            (
                r#"{"result":{"decision":"allow"}}"#,
                said(Decision::Allow, ""),
            ),
            (
                " {\"decision_id\":\"x\",\"result\":{\"reason\":\"no\\n\\u202eway\",\"decision\":\"deny\",\"more\":1}}\n",
                said(Decision::Deny, "no\\n\\u{202e}way"),
            ),
            (
                r#"{"result":{"decision":"ask","reason":" why "}}"#,
                said(Decision::Ask, "why"),
            ),
            ("{}", Err(DelegateError::Undefined)),
            (r#"{"result":null}"#, Err(DelegateError::Undefined)),
            ("", Err(DelegateError::Malformed)),
            ("null", Err(DelegateError::Malformed)),
            ("allow", Err(DelegateError::Malformed)),
            (r#"{"result":true}"#, Err(DelegateError::Malformed)),
            (r#"{"result":"allow"}"#, Err(DelegateError::Malformed)),
            (r#"{"result":{}}"#, Err(DelegateError::Malformed)),
            (
                r#"{"result":{"decision":"Allow"}}"#,
                Err(DelegateError::Malformed),
            ),
            (
                r#"{"result":{"decision":["allow"]}}"#,
                Err(DelegateError::Malformed),
            ),
            (
                r#"{"result":{"decision":"allow","reason":7}}"#,
                Err(DelegateError::Malformed),
            ),
            (
                r#"{"result":{"decision":"deny","decision":"allow"}}"#,
                Err(DelegateError::Malformed),
            ),
            (
                r#"{"result":{"decision":"deny"},"result":{"decision":"allow"}}"#,
                Err(DelegateError::Malformed),
            ),
            (
                r#"{"result":{"decision":"allow"}} {}"#,
                Err(DelegateError::Malformed),
            ),
            (
                "{\"result\":{\"decision\":\"allow\"}",
                Err(DelegateError::Malformed),
            ),
        ] {
            assert_eq!(parse_answer(answer.as_bytes()), expect, "{answer}");
        }
        assert_eq!(parse_answer(b"\xff"), Err(DelegateError::Malformed));
        let long = format!(
            r#"{{"result":{{"decision":"allow","reason":"{}"}}}}"#,
            "x".repeat(DELEGATE_ANSWER_BYTES)
        );
        assert_eq!(parse_answer(long.as_bytes()), Err(DelegateError::TooLong));
        let most = r#"{"result":{"decision":"deny","reason":"x"}}"#.replace('x', &"x".repeat(9000));
        let reason = parse_answer(most.as_bytes()).expect("an answer").reason;
        assert_eq!(reason.chars().count(), DELEGATE_REASON_WIDTH);
    }

    const GOOD: &str = r#"{"result":{"decision":"WORD","reason":"because"}}"#;

    /// One change of some bytes.
    #[derive(Debug, Clone)]
    enum Edit {
        Put(u8),
        Add(u8),
        Drop,
        Cut,
    }

    fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, Edit)>> {
        // Mostly what JSON is made of, so that much of it is still JSON.
        let byte = prop_oneof![
            prop::sample::select(&b"{}[]\",: \\\nadelnowy0"[..]),
            any::<u8>()
        ];
        let edit = prop_oneof![
            byte.clone().prop_map(Edit::Put),
            byte.prop_map(Edit::Add),
            Just(Edit::Drop),
            Just(Edit::Cut),
        ];
        prop::collection::vec((any::<prop::sample::Index>(), edit), 1..4)
    }

    fn edited(text: &str, edits: &[(prop::sample::Index, Edit)]) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        for (at, edit) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match edit {
                Edit::Put(byte) => bytes[at] = *byte,
                Edit::Add(byte) => bytes.insert(at, *byte),
                Edit::Drop => drop(bytes.remove(at)),
                Edit::Cut => bytes.truncate(at),
            }
        }
        bytes
    }

    /// Members that an object may have: a name, and a value as JSON.
    fn members(
        names: &'static [&'static str],
        values: &'static [&'static str],
    ) -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
        let member = (prop::sample::select(names), prop::sample::select(values));
        prop::collection::vec(member, 0..4)
    }

    fn object(members: &[(&str, &str)]) -> String {
        let members: Vec<_> = members
            .iter()
            .map(|(name, value)| format!("\"{name}\": {value}"))
            .collect();
        format!("{{{}}}", members.join(","))
    }

    /// The value of the one member of this name; nothing if there is none or are several.
    fn only<'m>(members: &[(&str, &'m str)], name: &str) -> Result<Option<&'m str>, ()> {
        let mut found = members.iter().filter(|(of, _)| *of == name);
        let first = found.next().map(|(_, value)| *value);
        if found.next().is_some() {
            Err(())
        } else {
            Ok(first)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn no_few_bytes_make_an_allow_of_a_denial_or_of_a_question(edits in edits(), ask in any::<bool>()) {
            let good = GOOD.replace("WORD", if ask { "ask" } else { "deny" });
            if let Ok(said) = parse_answer(&edited(&good, &edits)) {
                prop_assert_ne!(said.decision, Decision::Allow);
            }
        }

        #[test]
        fn what_is_left_of_an_allow_is_one_only_if_it_still_says_so(edits in edits()) {
            let answer = edited(&GOOD.replace("WORD", "allow"), &edits);
            if let Ok(said) = parse_answer(&answer) {
                let value: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
                prop_assert_eq!(value["result"]["decision"].as_str(), Some(said.decision.word()));
            }
        }

        #[test]
        fn an_object_decides_exactly_if_it_has_one_decision_of_three(
            of in members(
                &["decision", "decision", "reason", "Decision", "decisions", "more"],
                &["\"allow\"", "\"ask\"", "\"deny\"", "\"Allow\"", "\"allow \"", "\"\"", "true", "null", "[\"allow\"]", "{}"],
            ),
            is_twice in any::<bool>(),
            after in prop::sample::select(&["", " ", "x", "{}", "null", "\0"][..]),
        ) {
            let result = object(&of);
            let twice = if is_twice { format!("\"result\": {result},") } else { String::new() };
            let answer = format!("{{{twice}\"result\": {result}}}{after}");
            let word = only(&of, "decision").ok().flatten();
            let word = word.and_then(|json| serde_json::from_str::<String>(json).ok());
            let word = word.and_then(|word| Decision::from_word(&word));
            let has_reason = only(&of, "reason").is_ok_and(|json| {
                json.is_none_or(|json| json.starts_with('"'))
            });
            let expect = word.filter(|_| has_reason && !is_twice && after.trim_matches(' ').is_empty());
            prop_assert_eq!(parse_answer(answer.as_bytes()).ok().map(|said| said.decision), expect);
        }

        #[test]
        fn no_bytes_panic(answer in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(parse_answer(&answer).is_err());
        }
    }

    #[test]
    fn no_beginning_of_an_answer_is_one() {
        let good = GOOD.replace("WORD", "allow");
        assert!(parse_answer(good.as_bytes()).is_ok());
        for end in 0..good.len() {
            assert!(
                parse_answer(&good.as_bytes()[..end]).is_err(),
                "{}",
                &good[..end]
            );
        }
    }
}
