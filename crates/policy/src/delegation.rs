//! The document about a request that an external delegate receives, and the parsing of its answer.
//!
//! The document is versioned; `docs/delegates.md` describes it. An answer that is not exactly in
//! the right form is a fault, and a fault is a deny. Must not know how the delegate is reached.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use marshal_model::Decision;
pub use marshal_model::DelegateError;
use marshal_model::limits::{DELEGATE_ANSWER_BYTES, DELEGATE_REASON_WIDTH};
use marshal_model::untrusted::escape_for_display;

/// The document's version.
pub const VERSION: u32 = 1;

/// The phase of a new request that the policy does not deny.
pub const PHASE_REQUEST: &str = "request";

/// A delegate's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegateAnswer {
    /// The decision. It counts only if it is more severe than the policy's.
    pub decision: Decision,
    /// The reason: one bounded line, with every unsafe character escaped.
    pub reason: String,
}

/// One request, as a delegate receives it.
#[derive(Debug, Serialize)]
pub struct DelegateRequest<'a> {
    /// The document's version, [`VERSION`].
    pub version: u32,
    /// The phase, [`PHASE_REQUEST`].
    pub phase: &'a str,
    /// The delegate's name.
    pub delegate: &'a str,
    /// The pool's name.
    pub pool: &'a str,
    /// The agent's preset, or `custom`.
    pub agent: &'a str,
    /// The slot's number in its pool.
    pub slot: u16,
    /// The session's id in this supervisor.
    pub session: &'a str,
    /// The run's id.
    pub run: &'a str,
    /// The task's id.
    pub task: &'a str,
    /// The approval's id in this supervisor.
    pub ask: &'a str,
    /// The tool's name, as the agent calls it; for a request to the client, its method.
    pub tool: &'a str,
    /// The kind of tool.
    pub class: &'a str,
    /// The tool's input, without secrets.
    pub input: &'a RawValue,
    /// The agent's claims about the request.
    pub claimed: Claims<'a>,
    /// The policy's decision.
    pub policy: PolicyOutcome<'a>,
    /// The facts that the rules saw: the same JSON as in the audit record.
    pub facts: &'a RawValue,
}

/// An agent's claims about its request.
#[derive(Debug, Serialize)]
pub struct Claims<'a> {
    /// The title of the call.
    pub title: Option<&'a str>,
    /// The kind of the call.
    pub kind: Option<&'a str>,
    /// The agent's reason.
    pub reason: Option<&'a str>,
    /// The mode that the agent says it runs in.
    pub active_mode: Option<&'a str>,
    /// The mode that the agent says the call needs.
    pub required_mode: Option<&'a str>,
}

/// The policy's decision about the request.
#[derive(Debug, Serialize)]
pub struct PolicyOutcome<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// SHA-256 of its text.
    pub sha256: &'a str,
    /// The decision, `allow` or `ask`.
    pub decision: &'a str,
    /// The rules that decided.
    pub rules: &'a [String],
    /// The reason of the decision.
    pub reason: &'a str,
}

#[derive(Serialize)]
struct Envelope<'a> {
    input: DelegateRequest<'a>,
}

impl DelegateRequest<'_> {
    /// The text that the delegate receives: `{"input": …}`, without a line break.
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
/// The answer is not in the right form.
pub fn parse_answer(answer: &[u8]) -> Result<DelegateAnswer, DelegateError> {
    if answer.len() > DELEGATE_ANSWER_BYTES {
        return Err(DelegateError::TooLong);
    }
    let answer: Answer<'_> =
        serde_json::from_slice(answer).map_err(|_| DelegateError::Malformed)?;
    let result = answer.result.ok_or(DelegateError::Undefined)?;
    let result: Decided =
        serde_json::from_str(result.get()).map_err(|_| DelegateError::Malformed)?;
    let decision = Decision::parse(&result.decision).ok_or(DelegateError::Malformed)?;
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
        let parsed = |decision, reason: &str| {
            Ok(DelegateAnswer {
                decision,
                reason: reason.to_owned(),
            })
        };
        for (answer, expect) in [
            (
                r#"{"result":{"decision":"allow"}}"#,
                parsed(Decision::Allow, ""),
            ),
            (
                " {\"decision_id\":\"x\",\"result\":{\"reason\":\"no\\n\\u202eway\",\"decision\":\"deny\",\"more\":1}}\n",
                parsed(Decision::Deny, "no\\n\\u{202e}way"),
            ),
            (
                r#"{"result":{"decision":"ask","reason":" why "}}"#,
                parsed(Decision::Ask, "why"),
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

    /// One mutation of some bytes.
    #[derive(Debug, Clone)]
    enum Edit {
        Put(u8),
        Add(u8),
        Drop,
        Cut,
    }

    fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, Edit)>> {
        // Mostly characters of JSON, so that much of the result is still JSON.
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

    /// The value of the only member of this name; `None` if there is none, an error if there are
    /// several.
    fn only<'m>(members: &[(&str, &'m str)], name: &str) -> Result<Option<&'m str>, ()> {
        let mut found = members.iter().filter(|(item, _)| *item == name);
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
            if let Ok(answer) = parse_answer(&edited(&good, &edits)) {
                prop_assert_ne!(answer.decision, Decision::Allow);
            }
        }

        #[test]
        fn what_is_left_of_an_allow_is_one_only_if_it_still_says_so(edits in edits()) {
            let answer = edited(&GOOD.replace("WORD", "allow"), &edits);
            if let Ok(parsed) = parse_answer(&answer) {
                let value: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
                prop_assert_eq!(value["result"]["decision"].as_str(), Some(parsed.decision.as_str()));
            }
        }

        #[test]
        fn an_object_decides_exactly_if_it_has_one_decision_of_three(
            item in members(
                &["decision", "decision", "reason", "Decision", "decisions", "more"],
                &["\"allow\"", "\"ask\"", "\"deny\"", "\"Allow\"", "\"allow \"", "\"\"", "true", "null", "[\"allow\"]", "{}"],
            ),
            is_twice in any::<bool>(),
            after in prop::sample::select(&["", " ", "x", "{}", "null", "\0"][..]),
        ) {
            let result = object(&item);
            let twice = if is_twice { format!("\"result\": {result},") } else { String::new() };
            let answer = format!("{{{twice}\"result\": {result}}}{after}");
            let word = only(&item, "decision").ok().flatten().and_then(|json| serde_json::from_str::<String>(json).ok());
            let word = word.and_then(|word| Decision::parse(&word));
            let has_reason = only(&item, "reason").is_ok_and(|json| {
                json.is_none_or(|json| json.starts_with('"'))
            });
            let expect = word.filter(|_| has_reason && !is_twice && after.trim_matches(' ').is_empty());
            prop_assert_eq!(parse_answer(answer.as_bytes()).ok().map(|parsed| parsed.decision), expect);
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
