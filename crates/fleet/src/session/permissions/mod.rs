//! The permission requests of a session, from the policy's decision to the verdict.
//!
//! [`Permissions`] is a state machine like a dialect: each step takes an input and leaves
//! [`Effect`]s, in the order in which they are to be journalled. It has no clock, no timers and no
//! journal; what depends on the moment, [`Surroundings`] answers. `carry_out` connects it with the
//! session, `decide` evaluates what comes in.

pub(super) mod answers;
pub(super) mod approvals;
mod audit_record;
mod carry_out;
pub(super) mod client_requests;
pub(super) mod decide;
mod delegate_calls;
mod delegation;
pub(super) mod engine_tools;
pub(super) mod evaluation;
mod evaluation_limits;
pub(super) mod masking;
mod policy_snapshot;
mod shell_directory;
mod surroundings;
#[cfg(test)]
mod tests;
pub(super) mod tool_calls;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

pub(super) use approvals::PendingRequest;
pub(super) use carry_out::ApprovalWaits;
pub(super) use policy_snapshot::PolicySnapshot;
pub(super) use tool_calls::{ReportedResult, ToolCall};

use approvals::PendingApproval;
pub(crate) use surroundings::Surroundings;
use tool_calls::OpenRequests;

use crate::approval_registry::RememberedAnswer;
use crate::handle::approvals::{AnswerError, AnswerReceipt, AnswerReply};
use crate::setup::PoolShared;
use marshal_config::ShellCwd;
use marshal_journal::{ApprovalChange, ApprovalRow, PolicyEvaluation};
use marshal_model::{
    DecidedBy, Decision, PermissionRequest, PermissionRequestId, PoolName, SessionId, SpentBudget,
};

/// The permission requests of a session.
pub(super) struct Permissions {
    settings: PermissionSettings,
    /// The tool calls and requests of the turn.
    pub(super) requests: OpenRequests,
    /// Pending approvals; at most `APPROVALS_PER_SESSION`.
    pending: BTreeMap<PermissionRequestId, PendingApproval>,
    /// Requests that wait for the delegate; at most `DELEGATED_PER_SESSION`.
    delegated: BTreeMap<PermissionRequestId, PendingRequest>,
    /// Answers that apply until the turn ends, by digest.
    turn_answers: HashMap<String, RememberedAnswer>,
    effects: Vec<Effect>,
}

/// Whose requests these are, and what the pool sets for them.
#[derive(Debug, Clone)]
pub(super) struct PermissionSettings {
    session: SessionId,
    pool: PoolName,
    /// How long an approval may be pending.
    timeout: Duration,
    /// How long the agent waits for an answer.
    agent_waits: Option<Duration>,
    /// Where the agent's shell starts its commands.
    shell_cwd: ShellCwd,
    /// The name of the delegate.
    delegate: Option<String>,
}

impl PermissionSettings {
    pub(super) fn new(pool: &PoolShared, session: &SessionId) -> Self {
        let approval = &pool.config.approval;
        let delegate = pool.delegate.as_ref();
        Self {
            session: session.clone(),
            pool: pool.config.name.clone(),
            timeout: approval.timeout,
            agent_waits: approval.agent_waits,
            shell_cwd: pool.config.options.shell_cwd,
            delegate: delegate.map(|delegate| delegate.config.name.clone()),
        }
    }
}

/// What follows from a step.
#[derive(Debug)]
enum Effect {
    /// Record a request and its evaluation.
    Record {
        id: PermissionRequestId,
        request: PermissionRequest,
        evaluation: PolicyEvaluation,
    },
    /// Record the verdict of a recorded request, and answer the agent.
    Answer(Box<PendingRequest>),
    /// Report that a budget is spent.
    NotifySpent(SpentBudget),
    /// Ask the delegate about a request that waits for it.
    AskDelegate(PermissionRequestId),
    /// Ask the delegate about the requests of an approval that an approver allowed.
    ConfirmByDelegate(PermissionRequestId),
    /// Do not wait for the delegate any more.
    CancelDelegate(PermissionRequestId),
    /// Record a new approval.
    Open(Box<ApprovalRow>),
    /// Publish the pending approval as soon as it is durable.
    Publish(PermissionRequestId),
    /// Record a change of an approval.
    Change(PermissionRequestId, ApprovalChange),
    /// The approval is not pending any more.
    Close {
        id: PermissionRequestId,
        since: Instant,
        decision: Decision,
        by: DecidedBy,
    },
    /// The approval stays open without an agent that waits for it.
    Orphan {
        id: PermissionRequestId,
        approval: PendingApproval,
    },
    /// Send an approver the result as soon as it is durable.
    Reply(AnswerReply, Result<AnswerReceipt, AnswerError>),
}

impl Permissions {
    pub(super) fn new(settings: PermissionSettings) -> Self {
        Self {
            settings,
            requests: OpenRequests::default(),
            pending: BTreeMap::new(),
            delegated: BTreeMap::new(),
            turn_answers: HashMap::new(),
            effects: Vec::new(),
        }
    }

    /// Takes the effects of the steps since the last call.
    fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// How many requests wait for an approver or the delegate.
    pub(super) fn waiting(&self) -> usize {
        let of_approvals = self.pending.values().map(|of| of.requests.len());
        of_approvals.sum::<usize>() + self.delegated.len()
    }

    /// Whether a tool call runs. A call that waits for an approval or the delegate does not run.
    pub(super) fn is_tool_running(&self) -> bool {
        self.requests.open_calls() > self.waiting()
    }

    /// Ends the turn. Gives the calls without a result that ran without a request.
    pub(super) fn end_turn(&mut self) -> Vec<ToolCall> {
        self.forget_turn_answers();
        self.requests.end_turn()
    }

    /// Answers that apply until the turn ends do not apply any more.
    pub(super) fn forget_turn_answers(&mut self) {
        self.turn_answers.clear();
    }
}
