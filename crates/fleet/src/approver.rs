//! The approval requests of a conversation to its client, and the client's replies.
//!
//! Must not know how a person is reached.
//!
//! The verdict is by `human` if a person chose, by `gone` if the request was cancelled, and by
//! `timeout` if no answer came. If no client can be notified, the request is denied.

use std::time::Duration;

use tokio::sync::mpsc;

use marshal_model::{DecidedBy, Decision, PermissionRequestId, ToolClass, UntrustedText};
use marshal_policy::Part;

/// A permission request that a person must decide, as the client receives it.
#[derive(Debug, Clone)]
pub struct ApprovalRequest {
    /// Its id; the answer refers to it.
    pub id: PermissionRequestId,
    /// The seq of its event.
    pub seq: u64,
    /// The tool call that it belongs to, if the agent named one.
    pub tool_id: Option<UntrustedText>,
    /// The tool's name, as the agent calls it.
    pub tool: UntrustedText,
    /// The tool's class.
    pub class: ToolClass,
    /// What the policy evaluated: words or paths, each with its decision.
    pub parts: Vec<Part>,
    /// Why a command text could not be parsed completely; `None` if it could.
    pub not_plain: Option<String>,
    /// The rules that require a person.
    pub rules: Vec<String>,
    /// The policy's reason.
    pub reason: String,
    /// How long the session waits for an answer; after that the request is denied.
    pub within: Duration,
}

/// A notification to the client about a permission request.
#[derive(Debug, Clone)]
pub enum ApprovalUpdate {
    /// A person must decide. Durable.
    Requested(Box<ApprovalRequest>),
    /// The request has a verdict: a later answer is ignored.
    Ended {
        /// The request's id.
        id: PermissionRequestId,
        /// The final decision.
        decision: Decision,
        /// What made the decision.
        by: DecidedBy,
    },
}

/// Where a conversation's approval updates are sent.
pub(crate) type ApprovalSender = mpsc::Sender<ApprovalUpdate>;

/// The client's reply to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApproverReply {
    /// A person allows it once.
    Allow,
    /// A person refuses it.
    Reject,
    /// The turn was cancelled before a person decided.
    Cancelled,
    /// No person could be asked, or the client's reply is not valid.
    NoAnswer,
}
