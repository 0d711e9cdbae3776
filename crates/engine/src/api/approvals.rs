//! Approvals, as clients see and answer them.
//!
//! Owns the wire format, for both sides. Answers are read strictly, views leniently. Must not know
//! how they are carried.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::failure::{Code, Failure};
use super::time::Time;
use super::v1::words;
use marshal_config::Approver;
use marshal_fleet::{AnswerError, AnswerReceipt, AnswerRequest};
use marshal_journal::{ApprovalAnswer, StoredApproval};
use marshal_model::limits;
use marshal_model::limits::ANSWER_REASON_CHARS;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{ApprovalState, Decision, PermissionRequestId, RememberScope, UntrustedText};

/// The maximum width of a summary, in columns.
const SUMMARY: usize = 300;

/// An approver's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The approval's id.
    pub id: PermissionRequestId,
    /// The digest of the request that the approver saw; an answer with another digest changes
    /// nothing. `None` accepts any.
    pub digest: Option<String>,
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// The approver's reason.
    pub reason: Option<UntrustedText>,
    /// How long the answer applies to equal requests.
    pub remember: RememberScope,
}

impl Answer {
    /// Writes the body of the answer.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let line = AnswerLine {
            digest: self.digest.clone(),
            decision: Some(self.decision.to_string()),
            reason: self.reason.as_ref().map(|text| text.raw().to_owned()),
            remember: Some(self.remember.to_string()),
        };
        serde_json::to_value(line).unwrap_or_default()
    }

    /// Adds the approver to the answer.
    #[must_use]
    pub fn into_request(self, approver: Approver, who: String) -> AnswerRequest {
        AnswerRequest {
            request_id: self.id,
            digest: self.digest,
            decision: self.decision,
            reason: self.reason,
            remember: self.remember,
            approver,
            who,
        }
    }
}

/// The body of an answer.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApprovalAnswer")]
pub(super) struct AnswerLine {
    /// The digest of the approval that the approver saw; an answer with another digest changes
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(required, extend("enum" = ["allow", "deny"]))]
    decision: Option<String>,
    /// The approver's reason, which the agent receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ANSWER_REASON_CHARS))]
    reason: Option<String>,
    /// How long the answer applies to identical requests; `never` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = words!(RememberScope, null)))]
    remember: Option<String>,
}

fn bad(message: &str) -> Failure {
    Failure::new(Code::BadRequest, escape_for_display(message, 300))
}

/// Parses the body of an answer.
///
/// # Errors
/// [`Failure`] to send back.
pub fn read_answer(approval: PermissionRequestId, body: &[u8]) -> Result<Answer, Failure> {
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if !is_object {
        return Err(bad("the body is not a JSON object"));
    }
    let fields = serde_json::from_slice(body).map_err(|error| bad(&error.to_string()))?;
    answer(approval, fields)
}

fn answer(approval: PermissionRequestId, fields: AnswerLine) -> Result<Answer, Failure> {
    let decision = match fields.decision.as_deref() {
        Some("allow") => Decision::Allow,
        Some("deny") => Decision::Deny,
        _ => return Err(bad("key \"decision\" must be \"allow\" or \"deny\"")),
    };
    let remember = fields
        .remember
        .as_deref()
        .map_or(Some(RememberScope::Never), RememberScope::parse);
    let remember = remember
        .ok_or_else(|| bad("key \"remember\" must be \"never\", \"turn\" or \"session\""))?;
    let is_long = |text: &String| text.chars().count() > limits::ANSWER_REASON_CHARS;
    if fields.reason.as_ref().is_some_and(is_long) {
        let most = limits::ANSWER_REASON_CHARS;
        return Err(bad(&format!("the reason is longer than {most} characters")));
    }
    Ok(Answer {
        id: approval,
        digest: fields.digest,
        decision,
        reason: fields
            .reason
            .filter(|text| !text.is_empty())
            .map(UntrustedText::new),
        remember,
    })
}

/// An approval, as clients see it. Texts from the agent are untrusted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Approval")]
pub struct ApprovalView {
    /// The id that an answer refers to.
    pub approval: String,
    /// Its state.
    #[schemars(extend("enum" = words!(ApprovalState)))]
    pub state: String,
    /// The agent's pool.
    pub pool: String,
    /// The agent's slot number.
    pub slot: u16,
    /// The agent's session.
    pub session: String,
    /// The tool, as the agent calls it.
    pub tool: String,
    /// The request on one line, safe to display.
    pub summary: String,
    /// The rules whose decision is `ask`.
    pub rules: Vec<String>,
    /// The policy's reason.
    pub why: String,
    /// The number of equal requests that this approval covers.
    pub times: u64,
    /// When it was requested.
    pub requested_at: Time,
    /// When it expires.
    pub deadline: Time,
    /// The digest that binds an answer to this request.
    pub digest: String,
    /// The answer; `None` while the approval is pending or if it ended without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerView>,
    /// When it ended; `None` while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// The details; `None` in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<Box<ApprovalDetails>>,
}

/// The answer of an approver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ApprovalSaid")]
pub struct AnswerView {
    /// `allow` or `deny`.
    pub decision: String,
    /// The approver.
    pub approver: String,
    /// The approver's reason, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long the answer applies.
    pub remember: String,
}

/// The details of one approval that lists omit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ApprovalMore")]
pub struct ApprovalDetails {
    /// The evaluated commands and paths, each with its decision.
    pub parts: Vec<PartView>,
    /// Why the command text is too complex to be split reliably; `None` if it is plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_plain: Option<String>,
    /// The resolved paths.
    pub paths: Vec<PathView>,
    /// The tool's input, as the agent's JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The same input with all control, bidi and zero-width characters made visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// The agent's own description of the call; not verified.
    pub claimed: Value,
    /// The policy that evaluated the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// One evaluated command or path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ApprovalPart")]
pub struct PartView {
    /// The environment assignments before a command, `NAME=value` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The words of the command, or the path.
    pub words: Vec<String>,
    /// The redirects of a command, as `> file` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirects: Vec<String>,
    /// The policy's decision.
    pub decision: String,
    /// The matched rules.
    pub rules: Vec<String>,
}

/// A path and its resolved target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ApprovalPath")]
pub struct PathView {
    /// The path as the request has it.
    pub word: String,
    /// The resolved path, as the agent would name it.
    pub to: String,
    /// Whether the target is in the workspace.
    pub inside: bool,
}

/// The facts of a request, as the journal stores them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Facts {
    parts: Vec<PartView>,
    not_plain: Option<String>,
}

impl ApprovalView {
    /// Returns the view for a list.
    #[must_use]
    pub fn from_stored(question: &StoredApproval) -> Self {
        let facts: Facts = serde_json::from_str(question.facts.raw()).unwrap_or_default();
        let parts = facts.parts.iter().map(|part| {
            let all = part.env.iter().chain(&part.words).chain(&part.redirects);
            all.map(String::as_str).collect::<Vec<_>>().join(" ")
        });
        let mut text = parts.collect::<Vec<_>>().join(" ; ");
        if text.is_empty() {
            text = question
                .input
                .as_ref()
                .map_or("", UntrustedText::raw)
                .to_owned();
        }
        let answer = |of: &ApprovalAnswer| AnswerView {
            decision: of.decision.to_string(),
            approver: of.approver.clone(),
            reason: of.comment.as_ref().map(|comment| comment.raw().to_owned()),
            remember: of.remember.to_string(),
        };
        Self {
            approval: question.id.to_string(),
            state: question.state.to_string(),
            pool: question.pool.to_string(),
            slot: question.slot,
            session: question.session.to_string(),
            tool: question.tool.raw().to_owned(),
            summary: escape_for_display(&text, SUMMARY),
            rules: question.rules.clone(),
            why: question.why.clone(),
            times: question.request_count,
            requested_at: Time(question.requested_at_us),
            deadline: Time(question.deadline_us),
            digest: question.digest.clone(),
            answer: question.answer.as_ref().map(answer),
            ended_at: question.ended_at_us.map(Time),
            more: None,
        }
    }

    /// Returns the view with details.
    #[must_use]
    pub fn with_details(question: &StoredApproval) -> Self {
        let facts: Facts = serde_json::from_str(question.facts.raw()).unwrap_or_default();
        let input = question.input.as_ref();
        // An escape is at most this many times as long as the character that it shows.
        let wide = limits::PERMISSION_INPUT_BYTES * "\\u{10ffff}".len();
        let more = ApprovalDetails {
            parts: facts.parts,
            not_plain: facts.not_plain,
            paths: serde_json::from_str(&question.paths).unwrap_or_default(),
            input: input.map(|input| input.raw().to_owned()),
            shown: input.map(|input| input.escape_for_display(wide)),
            claimed: serde_json::from_str(question.claimed.raw()).unwrap_or_default(),
            policy: question.policy.clone(),
        };
        Self {
            more: Some(Box::new(more)),
            ..Self::from_stored(question)
        }
    }
}

/// The result of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ApprovalAnswered")]
pub struct AnswerReceiptView {
    /// A word of [`marshal_model::ApprovalState`]; `orphaned`: the answer is stored until the agent
    /// returns.
    pub state: String,
    /// How long the answer applies.
    pub remember: String,
}

impl AnswerReceiptView {
    /// Converts the receipt of an answer.
    #[must_use]
    pub fn from_receipt(answered: &AnswerReceipt) -> Self {
        Self {
            state: answered.state.to_string(),
            remember: answered.remember.to_string(),
        }
    }
}

/// Converts the error of an answer to the error that clients receive.
#[must_use]
pub fn answer_failure(error: &AnswerError) -> Failure {
    let code = match error {
        AnswerError::NoSuchApproval(_) => Code::NoSuchApproval,
        AnswerError::AlreadyEnded(..)
        | AnswerError::Digest(_)
        | AnswerError::Denied(_)
        | AnswerError::Delegate(_)
        | AnswerError::Changed(_) => Code::ApprovalEnded,
        AnswerError::NotPermitted { .. } => Code::NotPermitted,
        AnswerError::Remember { .. } => Code::BadRequest,
        AnswerError::ReadOnly | AnswerError::Journal(_) | AnswerError::Slow => Code::Refused,
    };
    Failure::new(code, escape_for_display(&error.to_string(), 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_a_round_trip_and_others_are_told_what_is_wrong() {
        let approval = PermissionRequestId::new("a-1").expect("id");
        for answer in [
            Answer {
                id: approval.clone(),
                digest: Some("00".to_owned()),
                decision: Decision::Deny,
                reason: Some(UntrustedText::from("no \u{1b}")),
                remember: RememberScope::Turn,
            },
            Answer {
                id: approval.clone(),
                digest: None,
                decision: Decision::Allow,
                reason: None,
                remember: RememberScope::Never,
            },
        ] {
            let body = answer.to_json().to_string();
            let read = read_answer(approval.clone(), body.as_bytes());
            assert_eq!(read, Ok(answer), "{body}");
        }
        for (body, part) in [
            (r#"{"digest":7,"decision":"allow"}"#, "invalid type"),
            (r#"{"digest":"0","decision":"ask"}"#, "decision"),
            (
                r#"{"digest":"0","decision":"deny","remember":"x"}"#,
                "remember",
            ),
            (r#"{"digest":"0","x":1}"#, "unknown field"),
            (
                r#"{"digest":"0","decision":"allow","approval":"b"}"#,
                "unknown field",
            ),
            (r#"["0","allow"]"#, "not a JSON object"),
        ] {
            let failure = read_answer(approval.clone(), body.as_bytes()).expect_err(body);
            assert!(failure.message.contains(part), "{body}: {failure}");
        }
        let body = br#"{"digest":"0","decision":"allow"}"#;
        let read = read_answer(approval, body).expect("an answer");
        assert_eq!(read.remember, RememberScope::Never);
    }
}
