//! What a person is asked on behalf of a conversation, and what may come back.
//!
//! Must not know how a person is reached.
//!
//! The verdict is by `human` where a person chose, by `gone` where the request was cancelled, and by
//! `timeout` where no answer came. Where nobody can be told, the request is denied.

use std::time::Duration;

use tokio::sync::mpsc;

use marshal_model::{DecidedBy, Decision, PermissionRequestId, ToolClass, UntrustedText};
use marshal_policy::Part;

/// A request that the policy wants a person to decide, as the approver hears of it.
#[derive(Debug, Clone)]
pub struct ApprovalRequest {
    /// Its id: what an answer names.
    pub id: PermissionRequestId,
    /// The seq of its event.
    pub seq: u64,
    /// The tool call that it belongs to, where the agent said so.
    pub tool_id: Option<UntrustedText>,
    /// The tool's name, as the agent calls it.
    pub tool: UntrustedText,
    /// What kind of tool that is.
    pub class: ToolClass,
    /// What is judged: words or paths, each with what the policy says of it.
    pub parts: Vec<Part>,
    /// Why a command text is not plain.
    pub not_plain: Option<String>,
    /// The rules that want a person.
    pub rules: Vec<String>,
    /// Why, in our words.
    pub reason: String,
    /// How long an answer is waited for; then it is denied.
    pub within: Duration,
}

/// What an approver hears.
#[derive(Debug, Clone)]
pub enum ApprovalUpdate {
    /// A person is to decide. Durable.
    Requested(Box<ApprovalRequest>),
    /// It is decided: an answer that comes now changes nothing.
    Ended {
        /// Which.
        id: PermissionRequestId,
        /// How.
        decision: Decision,
        /// By whom.
        by: DecidedBy,
    },
}

/// Where a conversation's asks go.
pub(crate) type ApprovalSender = mpsc::Sender<ApprovalUpdate>;

/// What comes back of a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApproverReply {
    /// A person allows it, once.
    Allow,
    /// A person refuses it.
    Reject,
    /// The turn was cancelled before a person decided.
    Cancelled,
    /// No person could be asked, or what came back is no answer.
    NoAnswer,
}
