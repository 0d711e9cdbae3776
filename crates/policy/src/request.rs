//! What is judged, and the judgement.
//!
//! Owns the request's closed shape, whatever protocol it came by, and what is shown of a
//! decision. Must not know how either is made.

use super::fs_observations::FsObservations;
use super::resolved_paths::ResolvedPath;
use marshal_model::{DecidedBy, Decision, UntrustedText};

pub use marshal_model::ToolClass;

/// A tool call, reduced to what can be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A command text for `bash -c`.
    Shell {
        /// The text, exactly as it will run.
        command: String,
        /// The directory that the call itself names, if it does.
        cwd: Option<String>,
    },
    /// Files and directories to read.
    Read {
        /// What is read; the worst of them counts.
        targets: Vec<ReadTarget>,
    },
    /// Files to write.
    Write {
        /// Their paths, as the call has them; the worst of them counts.
        paths: Vec<String>,
    },
    /// Files to change in part.
    Edit {
        /// Their paths, as the call has them; the worst of them counts.
        paths: Vec<String>,
    },
    /// Files to delete.
    Delete {
        /// Their paths, as the call has them; the worst of them counts.
        paths: Vec<String>,
    },
    /// Files to move.
    Move {
        /// Where they are.
        from: Vec<String>,
        /// Where they go.
        to: Vec<String>,
    },
    /// A URL to fetch.
    Fetch {
        /// The URL, as the call has it.
        url: String,
        /// The method, as the call has it; `None`: its table has no field for one.
        method: Option<String>,
    },
    /// A tool of an MCP server.
    Mcp {
        /// The server's name.
        server: UntrustedText,
        /// The tool's name on that server.
        name: UntrustedText,
        /// What it is called with: any JSON.
        arguments: serde_json::Value,
    },
    /// A tool that no table knows.
    Unknown {
        /// Its name.
        tool: UntrustedText,
    },
    /// The input cannot be judged; always denied.
    Malformed {
        /// What is wrong, in our words.
        why: String,
    },
}

impl Request {
    /// The kind of tool that it is for, whatever that is called.
    pub const fn class(&self) -> ToolClass {
        match self {
            Self::Shell { .. } => ToolClass::Shell,
            Self::Read { .. } => ToolClass::Read,
            Self::Write { .. } => ToolClass::Write,
            Self::Edit { .. } => ToolClass::Edit,
            Self::Delete { .. } => ToolClass::Delete,
            Self::Move { .. } => ToolClass::Move,
            Self::Fetch { .. } => ToolClass::Fetch,
            Self::Mcp { .. } => ToolClass::Mcp,
            Self::Unknown { .. } | Self::Malformed { .. } => ToolClass::Unknown,
        }
    }

    /// Whether it is about files and names none.
    pub(super) fn names_nothing(&self) -> bool {
        match self {
            Self::Read { targets } => targets.is_empty(),
            Self::Write { paths } | Self::Edit { paths } | Self::Delete { paths } => {
                paths.is_empty()
            }
            Self::Move { from, to } => from.is_empty() || to.is_empty(),
            _ => false,
        }
    }
}

/// What a request does to the directory of a shell that keeps it from one command to the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CwdChange {
    /// It stays where it is.
    #[default]
    Unchanged,
    /// It may be any of these afterwards, or what it was: all of them in the workspace, each as it
    /// was named and with its links followed.
    OneOf(Vec<String>),
    /// It may be anywhere afterwards.
    Unknown,
}

/// One thing that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadTarget {
    /// A path, as the call has it.
    Path(String),
    /// The root of the workspace.
    Workspace,
    /// Files below a directory (none: where the agent is) whose names a pattern matches.
    Search {
        /// The directory, as the call has it.
        below: Option<String>,
        /// The last name of the pattern.
        name: String,
    },
    /// A text that names a path and is more likely one to look for: only what forbids counts.
    Mentioned(String),
    /// It may lead anywhere: a pattern that goes up behind a wildcard.
    Anywhere(String),
}

/// What the policy says of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The decision. `Ask` is for a person.
    pub decision: Decision,
    /// What decided: ids of rules, or names of settings (`shell.redirect.write_outside`,
    /// `limits.max_bytes`). Empty: the policy's default.
    pub rules: Vec<String>,
    /// Advice for the model, on one line, with every foreign character escaped.
    pub reason: String,
    /// `Policy`, `Default` or `Error`.
    pub decided_by: DecidedBy,
    /// What was seen, for people.
    pub facts: Facts,
    /// What it would be, where the policy is only tried (`enforce = false`).
    pub dry_run_decision: Option<Decision>,
    /// Rules that allow only so often in a turn, and how often each did here; empty unless it is
    /// allowed.
    pub rule_uses: Vec<(String, u32)>,
}

/// What the engine saw of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The parts of the request: simple commands of a shell text, files of a read.
    pub parts: Vec<Part>,
    /// Why a shell text is not plain, so that no rule could allow it.
    pub not_plain: Option<String>,
    /// Where its paths lead, where whoever asked looked that up ([`super::leads`]).
    pub resolved_paths: Vec<ResolvedPath>,
    /// What was seen of the file system, where whoever asked remembers it ([`super::RecordingResolver`]).
    pub fs_observations: FsObservations,
}

/// One part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What stands before a command for its environment, `NAME=value` each.
    pub env: Vec<UntrustedText>,
    /// Its words: the arguments of a command, or a path.
    pub words: Vec<UntrustedText>,
    /// The redirects of a command, as `> file`, `< file` or `>& 1` each.
    pub redirects: Vec<UntrustedText>,
    /// What the policy says of it.
    pub decision: Decision,
    /// What applied to it, allowing rules included.
    pub rules: Vec<String>,
}
