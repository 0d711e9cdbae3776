//! What waits for people, as clients of the control socket and of HTTP see and answer it.
//!
//! Owns the form, for both ends. What a client says is read strictly, what it is told leniently.
//! Must not know sockets.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::request::{Code, Failure, VERSION};
use marshal_config::Approver;
use marshal_fleet::{AnswerError, AnswerReceipt, AnswerRequest};
use marshal_journal::{ApprovalAnswer, StoredApproval};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, PermissionRequestId, RememberScope, UntrustedText};

/// Columns of what an agent asks for, on one line.
const SUMMARY: usize = 300;

/// What a client may want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalOp {
    /// The approvals that wait.
    List {
        /// Those that are over instead, the newest first.
        ended: bool,
    },
    /// One, with everything that is known of it.
    Show {
        /// Which.
        id: PermissionRequestId,
    },
    /// Answer one.
    Answer(Answer),
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// To which ask.
    pub id: PermissionRequestId,
    /// What the person saw: an answer to anything else changes nothing. `None`: whatever has that id.
    pub digest: Option<String>,
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// Why.
    pub reason: Option<UntrustedText>,
    /// For how long it holds.
    pub remember: RememberScope,
}

impl Answer {
    /// The answer, of somebody.
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

/// An answer as it is written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decision: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remember: Option<String>,
}

/// A request as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalLine {
    v: u32,
    op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decision: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remember: Option<String>,
}

fn bad(message: &str) -> Failure {
    Failure::new(Code::BadRequest, escape_for_display(message, 300))
}

/// Whether an op is one of these.
#[must_use]
pub fn is_approvals_op(op: &str) -> bool {
    matches!(op, "approvals" | "approval" | "answer")
}

/// Reads a request of the control socket.
///
/// # Errors
/// [`Failure`] as it shall be sent back.
pub fn read(text: &str) -> Result<ApprovalOp, Failure> {
    let line: ApprovalLine = serde_json::from_str(text).map_err(|error| bad(&error.to_string()))?;
    let says = AnswerLine {
        digest: line.digest,
        decision: line.decision,
        reason: line.reason,
        remember: line.remember,
    };
    let nothing = [&says.digest, &says.decision, &says.reason, &says.remember];
    let says_nothing = nothing.iter().all(|of| of.is_none());
    let approval = line.approval.as_deref().map(id).transpose()?;
    match (line.op.as_str(), approval, line.ended, says_nothing) {
        ("approvals", None, ended, true) => Ok(ApprovalOp::List {
            ended: ended.unwrap_or(false),
        }),
        ("approval", Some(approval), None, true) => Ok(ApprovalOp::Show { id: approval }),
        ("answer", Some(approval), None, false) => Ok(ApprovalOp::Answer(answer(approval, says)?)),
        _ => Err(bad(
            "the operations are: approvals with ended; approval with approval; answer with approval, digest, decision, reason and remember",
        )),
    }
}

/// Reads the body of an answer over HTTP.
///
/// # Errors
/// [`Failure`] as it shall be sent back.
pub fn read_answer(approval: PermissionRequestId, body: &[u8]) -> Result<Answer, Failure> {
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if !is_object {
        return Err(bad("the body is no JSON object"));
    }
    let says = serde_json::from_slice(body).map_err(|error| bad(&error.to_string()))?;
    answer(approval, says)
}

fn id(text: &str) -> Result<PermissionRequestId, Failure> {
    PermissionRequestId::new(text).map_err(|error| bad(&error.to_string()))
}

fn answer(approval: PermissionRequestId, says: AnswerLine) -> Result<Answer, Failure> {
    let decision = match says.decision.as_deref() {
        Some("allow") => Decision::Allow,
        Some("deny") => Decision::Deny,
        _ => return Err(bad("key \"decision\" must be \"allow\" or \"deny\"")),
    };
    let remember = says
        .remember
        .as_deref()
        .map_or(Some(RememberScope::Never), RememberScope::from_word);
    let remember = remember
        .ok_or_else(|| bad("key \"remember\" must be \"never\", \"turn\" or \"session\""))?;
    let is_long = |text: &String| text.chars().count() > limits::ANSWER_REASON_CHARS;
    if says.reason.as_ref().is_some_and(is_long) {
        let most = limits::ANSWER_REASON_CHARS;
        return Err(bad(&format!("the reason is longer than {most} characters")));
    }
    Ok(Answer {
        id: approval,
        digest: says.digest,
        decision,
        reason: says
            .reason
            .filter(|text| !text.is_empty())
            .map(UntrustedText::new),
        remember,
    })
}

/// Writes a request of the control socket, without its newline.
#[must_use]
pub fn write(request: &ApprovalOp) -> String {
    let mut line = ApprovalLine {
        v: VERSION,
        op: String::new(),
        ended: None,
        approval: None,
        digest: None,
        decision: None,
        reason: None,
        remember: None,
    };
    line.op = match request {
        ApprovalOp::List { ended } => {
            line.ended = Some(*ended);
            "approvals"
        }
        ApprovalOp::Show { id } => {
            line.approval = Some(id.to_string());
            "approval"
        }
        ApprovalOp::Answer(answer) => {
            line.approval = Some(answer.id.to_string());
            line.digest.clone_from(&answer.digest);
            line.decision = Some(answer.decision.to_string());
            line.reason = answer.reason.as_ref().map(|text| text.raw().to_owned());
            line.remember = Some(answer.remember.to_string());
            "answer"
        }
    }
    .to_owned();
    serde_json::to_string(&line).unwrap_or_default()
}

/// An approval, as clients see it. Texts are foreign where they come from the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ApprovalView {
    /// What an answer names.
    pub approval: String,
    /// A word of [`marshal_model::ApprovalState`].
    pub state: String,
    /// Whose agent asks.
    pub pool: String,
    /// In which slot.
    pub slot: u16,
    /// In which session.
    pub session: String,
    /// The tool, as the agent calls it.
    pub tool: String,
    /// What is asked, on one line that is safe to show.
    pub summary: String,
    /// The rules that want a person.
    pub rules: Vec<String>,
    /// Why, in our words.
    pub why: String,
    /// How many requests it is of.
    pub times: u64,
    /// When it was put: microseconds since the Unix epoch.
    pub requested_at_us: i64,
    /// Until when it can be answered.
    pub deadline_us: i64,
    /// What an answer is bound to.
    pub digest: String,
    /// What a person said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerView>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_us: Option<i64>,
    /// Everything else; only where one approval is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<Box<ApprovalDetails>>,
}

/// What a person said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerView {
    /// `allow` or `deny`.
    pub decision: String,
    /// Who.
    pub approver: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For how long it holds.
    pub remember: String,
}

/// What is known of one approval beside its line in a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ApprovalDetails {
    /// The commands and paths that are judged, each with what the policy says.
    pub parts: Vec<PartView>,
    /// Why a command text is not plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_plain: Option<String>,
    /// Where the paths lead.
    pub paths: Vec<PathView>,
    /// The input as it came, JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The same with every control, bidi and zero-width character made visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// What the agent claims of it.
    pub claimed: Value,
    /// The policy that judged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// One command, or one path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    /// What stands before a command for its environment, `NAME=value` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Its words.
    pub words: Vec<String>,
    /// The redirects of a command, as `> file` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirects: Vec<String>,
    /// What the policy says of it.
    pub decision: String,
    /// By which rules.
    pub rules: Vec<String>,
}

/// Where a path leads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// As the request has it.
    pub word: String,
    /// Where it leads, as the agent would name it.
    pub to: String,
    /// Whether that is in the workspace.
    pub inside: bool,
}

/// The facts as the journal has them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Facts {
    parts: Vec<PartView>,
    not_plain: Option<String>,
}

impl ApprovalView {
    /// A line of a list.
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
            reason: of.comment.as_ref().map(|said| said.raw().to_owned()),
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
            requested_at_us: question.requested_at_us,
            deadline_us: question.deadline_us,
            digest: question.digest.clone(),
            answer: question.answer.as_ref().map(answer),
            ended_at_us: question.ended_at_us,
            more: None,
        }
    }

    /// One approval with everything.
    #[must_use]
    pub fn with_details(question: &StoredApproval) -> Self {
        let facts: Facts = serde_json::from_str(question.facts.raw()).unwrap_or_default();
        let input = question.input.as_ref();
        // An escape is at most so many times as long as what it shows.
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

/// What came of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerReceiptView {
    /// A word of [`marshal_model::ApprovalState`]; `orphaned`: it is kept for the agent's return.
    pub state: String,
    /// For how long it holds.
    pub remember: String,
}

impl AnswerReceiptView {
    /// Of what came of it.
    #[must_use]
    pub fn from_receipt(answered: &AnswerReceipt) -> Self {
        Self {
            state: answered.state.to_string(),
            remember: answered.remember.to_string(),
        }
    }
}

/// Why an answer did not do what it should, as it goes over a door.
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
    fn requests_survive_a_round_trip_and_others_are_told_what_is_wrong() {
        let approval = PermissionRequestId::new("a-1").expect("id");
        for request in [
            ApprovalOp::List { ended: true },
            ApprovalOp::Show {
                id: approval.clone(),
            },
            ApprovalOp::Answer(Answer {
                id: approval.clone(),
                digest: Some("00".to_owned()),
                decision: Decision::Deny,
                reason: Some(UntrustedText::from("no \u{1b}")),
                remember: RememberScope::Turn,
            }),
            ApprovalOp::Answer(Answer {
                id: approval.clone(),
                digest: None,
                decision: Decision::Allow,
                reason: None,
                remember: RememberScope::Never,
            }),
        ] {
            let line = write(&request);
            assert_eq!(read(&line), Ok(request), "{line}");
        }
        for (line, part) in [
            (r#"{"v":1,"op":"approval"}"#, "the operations are"),
            (
                r#"{"v":1,"op":"approvals","approval":"a"}"#,
                "the operations are",
            ),
            (r#"{"v":1,"op":"approval","approval":"../a"}"#, "must match"),
            (
                r#"{"v":1,"op":"answer","approval":"a"}"#,
                "the operations are",
            ),
            (
                r#"{"v":1,"op":"answer","approval":"a","digest":7,"decision":"allow"}"#,
                "invalid type",
            ),
            (
                r#"{"v":1,"op":"answer","approval":"a","digest":"0","decision":"ask"}"#,
                "decision",
            ),
            (
                r#"{"v":1,"op":"answer","approval":"a","digest":"0","decision":"deny","remember":"x"}"#,
                "remember",
            ),
            (
                r#"{"v":1,"op":"answer","approval":"a","digest":"0","x":1}"#,
                "unknown field",
            ),
        ] {
            let failure = read(line).expect_err(line);
            assert!(failure.message.contains(part), "{line}: {failure}");
        }
        let body = br#"{"digest":"0","decision":"allow"}"#;
        let read = read_answer(approval.clone(), body).expect("an answer");
        assert_eq!(read.remember, RememberScope::Never);
        assert!(read_answer(approval.clone(), b"[\"0\",\"allow\"]").is_err());
        assert!(
            read_answer(
                approval,
                br#"{"digest":"0","decision":"allow","approval":"b"}"#
            )
            .is_err()
        );
    }
}
