//! A permission request and its verdict.

use serde_json::value::RawValue;

use super::{AskId, Foreign, words};

words!(
    /// What the policy, or a person, says of a request. Ordered by severity.
    Decision {
        /// It may run.
        Allow = "allow",
        /// A person must say.
        Ask = "ask",
        /// It must not run.
        Deny = "deny",
    }
);

words!(
    /// Who decided, as `marshal_permission_requests_total{decided_by}` counts it.
    DecidedBy {
        /// A rule of the policy matched.
        Policy = "policy",
        /// No rule matched; the policy's default.
        Default = "default",
        /// A person.
        Human = "human",
        /// An answer that a person gave to the same request before, and that was to be remembered.
        Cache = "cache",
        /// Nobody answered in time, or nobody can be asked.
        Timeout = "timeout",
        /// The request could not be judged: malformed, or the engine failed.
        Error = "error",
        /// The turn, the child or the supervisor ended first.
        Gone = "gone",
    }
);

words!(
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

words!(
    /// What becomes of an ask that nobody answers. Ordered by severity.
    OnTimeout {
        /// It is denied.
        Deny = "deny",
        /// It is denied and its turn interrupted.
        DenyTurn = "deny_turn",
    }
);

/// One request of an agent. An answer carries back only the agent's own name for it, and an agent
/// may use a name twice; a verdict is for the one request that was judged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AskKey {
    /// The agent's own name for it.
    pub id: String,
    /// Its number among the requests of its channel, from 1; 0 where it is only on record.
    pub serial: u64,
}

/// What an agent says of its own request. May only raise severity, never lower it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The mode that the agent says it runs in.
    pub active_mode: Option<Foreign>,
    /// The mode that the agent says the call needs.
    pub required_mode: Option<Foreign>,
    /// Why it asks, in its own words.
    pub reason: Option<Foreign>,
    /// The call's title for people.
    pub title: Option<Foreign>,
    /// The call's kind, as the agent labels it.
    pub kind: Option<Foreign>,
    /// It offers no answer that allows this once: nothing but a denial can be sent.
    pub no_allow: bool,
}

/// One permission request, as the dialect read it.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What the answer must carry.
    pub key: AskKey,
    /// The tool call that it belongs to, where the protocol says so.
    pub tool_id: Option<Foreign>,
    /// The tool's name, as the agent calls it.
    pub tool: Foreign,
    /// The tool's input: JSON exactly as it came, `null` if none came.
    pub input: Box<RawValue>,
    /// What the agent claims beside it.
    pub claimed: Claimed,
}

/// The end of an ask. Durable before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The ask that it ends.
    pub ask: AskId,
    /// `Allow` or `Deny`; never `Ask`.
    pub decision: Decision,
    /// Who decided.
    pub by: DecidedBy,
    /// The rules that decided, most severe first; empty where none matched.
    pub rules: Vec<String>,
    /// Advice for the model, in our words.
    pub reason: String,
}

/// What goes back to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Run it, exactly as asked.
    Allow,
    /// Do not run it; the text is for the model.
    Deny(String),
}
