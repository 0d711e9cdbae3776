//! Chats: conversations that the supervisor keeps, their turns, and what some of them work through.

use super::{RoleName, SessionId, StepStatus, TurnOutcome, UntrustedText, string_enum};
use serde::{Deserialize, Serialize};

string_enum!(
    /// How a chat goes on.
    ChatMode {
        /// A person sends each message.
        Chat = "chat",
        /// A planner writes a plan, and when it is approved one agent works it.
        PlanThenExecute = "plan_then_execute",
        /// Several agents work one plan.
        ParallelAgents = "parallel_agents",
        /// The supervisor sends the next message until the goal is met.
        Autonomous = "autonomous",
    }
);

string_enum!(
    /// Where the work of a chat stands that goes on by itself.
    ChatPhase {
        /// A planner writes its plan.
        Planning = "planning",
        /// The plan waits for somebody's approval.
        Approval = "approval",
        /// It is worked.
        Working = "working",
        /// It is over.
        Ended = "ended",
    }
);

string_enum!(
    /// Where a message of a chat stands.
    TurnState {
        /// It was accepted and no agent has it.
        Waiting = "waiting",
        /// A task carries it to the agent.
        Running = "running",
        /// Its turn ended.
        Ended = "ended",
    }
);

string_enum!(
    /// Where an item of a plan stands.
    ItemState {
        /// Somebody may take it.
        Open = "open",
        /// A member of the chat has it.
        Claimed = "claimed",
        /// It is done.
        Done = "done",
        /// It was tried often enough, or may not be worked.
        Blocked = "blocked",
        /// It is not in the plan any more.
        Gone = "gone",
    }
);

string_enum!(
    /// What was said of a plan.
    ReviewState {
        /// It waits for a person.
        Waiting = "waiting",
        /// It may be worked.
        Approved = "approved",
        /// A person wants it otherwise.
        Rejected = "rejected",
        /// The policy forbids it.
        Denied = "denied",
    }
);

impl ChatMode {
    /// Whether it has members that do its work, and no agent of its own.
    #[must_use]
    pub const fn has_members(self) -> bool {
        matches!(self, Self::PlanThenExecute | Self::ParallelAgents)
    }
}

/// Where the work of a chat ends that goes on by itself. What is `None` is no bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChatBounds {
    /// Turns, or rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Seconds since it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Billionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
}

/// What the mode of a chat was begun with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChatSettings {
    /// The path of its plan in the workspace.
    #[serde(rename = "plan", skip_serializing_if = "Option::is_none")]
    pub plan_path: Option<String>,
    /// The roles of those who work the plan; a name may be there more than once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleName>,
    /// The role of who writes the plan; none if it was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planner: Option<RoleName>,
    /// The command that says whether the goal is met.
    #[serde(rename = "check", skip_serializing_if = "Option::is_none")]
    pub check_command: Option<String>,
    /// What is sent while it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continue_prompt: Option<String>,
    /// Items that agents add are worked, too.
    pub agent_items: bool,
    /// Where it ends.
    #[serde(flatten)]
    pub bounds: ChatBounds,
    /// The template that it was begun by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// What the template tells all agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// How far a chat has come that goes on by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChatProgress {
    /// Rounds that were sent.
    pub rounds: u32,
    /// Tokens that they took.
    pub tokens: u64,
    /// Their cost, in billionths of a US dollar.
    pub cost: u64,
    /// When the work began, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<i64>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<TurnOutcome>,
    /// Why it ended, in our words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How often the planner was told that there is no plan.
    pub reminders: u32,
    /// The digest of the text that was approved.
    #[serde(rename = "approved", skip_serializing_if = "Option::is_none")]
    pub approved_digest: Option<String>,
    /// Turns in a row that were had only so that the check is run.
    #[serde(rename = "checks")]
    pub check_only_turns: u32,
}

/// What happens in the work of a chat that goes on by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum WorkEvent {
    /// An item of the plan stands otherwise.
    Item {
        /// Its place in the plan, from 1.
        step: u32,
        /// How it stands.
        status: StepStatus,
        /// Its text.
        content: UntrustedText,
        /// Whose it is, or was.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<RoleName>,
        /// In which chat.
        #[serde(skip_serializing_if = "Option::is_none")]
        chat: Option<SessionId>,
        /// Items that are done.
        done: u32,
        /// All items.
        total: u32,
    },
    /// An event of a member is told here, too.
    Forwarded {
        /// The member.
        chat: SessionId,
        /// The event's place in its session.
        seq: u64,
    },
    /// A turn of a member ended.
    Member {
        /// The member.
        chat: SessionId,
        /// Its role.
        role: RoleName,
        /// How the turn ended.
        outcome: TurnOutcome,
    },
    /// The plan was looked at.
    Review {
        /// What was said of it.
        state: ReviewState,
        /// Its path in the workspace.
        plan: String,
        /// The SHA-256 of its text, in hexadecimal.
        sha256: String,
        /// Who said it: a person's name, or the policy.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The reason; foreign text.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<UntrustedText>,
    },
    /// A round begins, sent by the supervisor itself.
    Round {
        /// Which, from 1.
        round: u32,
        /// Why there is one more, in our words.
        why: String,
    },
    /// All of it is over.
    Ended {
        /// How the turn ended.
        outcome: TurnOutcome,
        /// Why: a word for machines.
        reason: String,
        /// The same for people.
        message: String,
    },
}
