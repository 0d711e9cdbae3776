//! A permission request, its verdict, and the approval that waits for a person.

use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{PermissionRequestId, UntrustedText, string_enum};

string_enum!(
    /// The decision of the policy or a person on a request. Ordered by severity.
    Decision {
        /// It may run.
        Allow = "allow",
        /// A person must decide.
        Ask = "ask",
        /// It must not run.
        Deny = "deny",
    }
);

string_enum!(
    /// Who decided, as `marshal_permission_requests_total{decided_by}` counts it.
    DecidedBy {
        /// A rule of the policy matched.
        Policy = "policy",
        /// No rule matched; the policy's default.
        Default = "default",
        /// A person.
        Human = "human",
        /// A person's remembered answer to the same request.
        Cache = "cache",
        /// Nobody answered in time, or there is no approver.
        Timeout = "timeout",
        /// The request could not be evaluated: it is malformed, or the engine failed.
        Error = "error",
        /// A budget ran out, so a request that the policy would have allowed was not.
        Budget = "budget",
        /// The turn, the child or the supervisor ended first.
        Gone = "gone",
        /// The pool's delegate, which can only be stricter than the policy; or it gave no decision.
        Delegate = "delegate",
    }
);

string_enum!(
    /// Why a delegate gave no decision.
    DelegateError {
        /// It took too long.
        Timeout = "timeout",
        /// It could not be started.
        Spawn = "spawn",
        /// It ended with another code than 0, or was killed.
        Exit = "exit",
        /// It could not be connected to, or the connection broke.
        Unreachable = "unreachable",
        /// It answered with another status than 200.
        Status = "status",
        /// Its response exceeds the limit.
        TooLong = "too_long",
        /// Its answer has no result.
        Undefined = "undefined",
        /// Its answer is no JSON of the right form.
        Malformed = "malformed",
        /// The supervisor failed.
        Internal = "internal",
    }
);

string_enum!(
    /// What kind of tool a call is for, as metrics label it.
    ToolClass {
        /// It runs a command text.
        Shell = "shell",
        /// It reads files.
        Read = "read",
        /// It writes files.
        Write = "write",
        /// It changes a part of a file.
        Edit = "edit",
        /// It deletes files.
        Delete = "delete",
        /// It moves files.
        Move = "move",
        /// It fetches a URL.
        Fetch = "fetch",
        /// It is a tool of an MCP server.
        Mcp = "mcp",
        /// Anything else.
        Unknown = "unknown",
    }
);

string_enum!(
    /// What happens to a permission request without an answer. Ordered by severity.
    OnTimeout {
        /// It is denied.
        Deny = "deny",
        /// It is denied and its turn interrupted.
        DenyTurn = "deny_turn",
    }
);

/// One request of an agent. An answer carries back only the agent's own name for it, and an agent
/// may use a name twice; a verdict applies only to the one request that was evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PermissionRequestKey {
    /// The agent's own name for it.
    pub id: String,
    /// Its number among the requests of its channel, from 1; 0 where it is only on record.
    pub serial: u64,
}

/// What an agent claims about its own request. It can only raise severity, never lower it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentClaims {
    /// The mode that the agent says it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_mode: Option<UntrustedText>,
    /// The mode that the agent says the call needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_mode: Option<UntrustedText>,
    /// Why it asks, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<UntrustedText>,
    /// The call's title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<UntrustedText>,
    /// The call's kind, as the agent labels it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<UntrustedText>,
    /// It offers no answer that allows this once: nothing but a denial can be sent.
    #[serde(rename = "no_allow", default, skip_serializing_if = "Not::not")]
    pub has_no_allow_option: bool,
}

/// One permission request, as the dialect read it.
#[derive(Debug, Clone)]
pub struct PermissionRequest {
    /// What the answer must carry.
    pub key: PermissionRequestKey,
    /// The tool call that it belongs to, where the protocol says so.
    pub tool_id: Option<UntrustedText>,
    /// The tool's name, as the agent calls it.
    pub tool: UntrustedText,
    /// The tool's input: JSON exactly as it came, `null` if none came.
    pub input: Box<RawValue>,
    /// What the agent claims beside it.
    pub claims: AgentClaims,
}

/// The limits of the texts beside a request's input, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct PermissionRequestBounds {
    /// Of the tool's name.
    pub tool: usize,
    /// Of each thing that the agent claims.
    pub claim: usize,
    /// Of a tool call's id; a longer one is left out.
    pub id: usize,
}

impl PermissionRequest {
    /// Cuts the words that an agent puts beside the input to what is kept of them. Whether the tool's
    /// name was longer than any is: then it is not known what is asked.
    pub fn truncate_to(&mut self, most: PermissionRequestBounds) -> bool {
        let AgentClaims {
            active_mode,
            required_mode,
            reason,
            title,
            kind,
            has_no_allow_option: _,
        } = &mut self.claims;
        for word in [active_mode, required_mode, reason, title, kind]
            .into_iter()
            .flatten()
        {
            truncate_text(word, most.claim);
        }
        // A truncated id would name another call.
        self.tool_id = self.tool_id.take().filter(|id| id.len() <= most.id);
        truncate_text(&mut self.tool, most.tool)
    }
}

fn truncate_text(word: &mut UntrustedText, most: usize) -> bool {
    let is_long = word.len() > most;
    if is_long {
        let mut text = std::mem::take(word).into_raw();
        let end = most.saturating_sub('…'.len_utf8());
        let end = (0..=end).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
        *word = UntrustedText::new(text);
    }
    is_long
}

/// The end of a permission request. Durable before it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The permission request that it ends.
    pub request: PermissionRequestId,
    /// `Allow` or `Deny`; never `Ask`.
    pub decision: Decision,
    /// The decider.
    #[serde(rename = "by")]
    pub decided_by: DecidedBy,
    /// The rules that decided, most severe first; empty where none matched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Advice for the model, in marshal's words.
    pub reason: String,
}

/// What goes back to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermissionResponse {
    /// Run it, exactly as asked.
    Allow,
    /// Do not run it; the text is for the model.
    Deny(String),
}

string_enum!(
    /// The state of an approval.
    ApprovalState {
        /// An agent waits for the answer.
        Pending = "pending",
        /// The agent is gone but its session can be resumed: an answer is stored for it.
        Orphaned = "orphaned",
        /// A person allowed it.
        Approved = "approved",
        /// A person, or a rule that no person overrules, denied it.
        Rejected = "rejected",
        /// Nobody answered in time.
        Expired = "expired",
        /// The agent, its turn or its session ended first.
        Cancelled = "cancelled",
    }
);

impl ApprovalState {
    /// Whether it can still be answered.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Orphaned)
    }
}

string_enum!(
    /// How long an answer applies to the same request. Ordered by length.
    RememberScope {
        /// Once.
        Never = "never",
        /// Until the turn ends.
        Turn = "turn",
        /// Until the session ends.
        Session = "session",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: PermissionRequestBounds = PermissionRequestBounds {
        tool: 256,
        claim: 4096,
        id: 1024,
    };

    #[test]
    fn what_an_agent_says_beside_its_input_is_bounded() {
        let long = |bytes: usize| UntrustedText::new("é".repeat(bytes / 2));
        let mut ask = PermissionRequest {
            key: PermissionRequestKey {
                id: "1".to_owned(),
                serial: 1,
            },
            tool_id: Some(long(MOST.id)),
            tool: long(MOST.tool),
            input: RawValue::NULL.to_owned(),
            claims: AgentClaims {
                reason: Some(long(MOST.claim)),
                ..AgentClaims::default()
            },
        };
        let before = ask.clone();
        assert!(!ask.truncate_to(MOST));
        assert_eq!((&ask.tool, &ask.tool_id), (&before.tool, &before.tool_id));
        assert_eq!(ask.claims, before.claims);
        ask.tool = long(MOST.tool + 2);
        ask.tool_id = Some(long(MOST.id + 2));
        ask.claims.reason = Some(long(1 << 20));
        assert!(ask.truncate_to(MOST));
        assert!(ask.tool.len() <= MOST.tool && ask.tool.raw().ends_with("é…"));
        assert_eq!(ask.tool_id, None);
        assert!(ask.claims.reason.unwrap().len() <= MOST.claim);
    }
}
