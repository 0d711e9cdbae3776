//! The request that is evaluated, and the decision about it.
//!
//! Owns the closed form of a request, independent of its protocol, and what is shown of a decision.
//! Must not know how either is made.

use super::fs_observations::FsObservations;
use super::resolved_paths::ResolvedPath;
use marshal_model::{DecidedBy, Decision, UntrustedText};

pub use marshal_model::ToolClass;

/// A tool call, reduced to what can be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A command text for `bash -c`.
    Shell {
        /// The text, exactly as it will run.
        command: String,
        /// The directory that the call itself names, if any.
        cwd: Option<String>,
    },
    /// Files and directories to read.
    Read {
        /// The targets to read; the most severe decision about one of them counts.
        targets: Vec<ReadTarget>,
    },
    /// Files to write.
    Write {
        /// The paths, as the call has them; the most severe decision about one of them counts.
        paths: Vec<String>,
    },
    /// Files to change in part.
    Edit {
        /// The paths, as the call has them; the most severe decision about one of them counts.
        paths: Vec<String>,
    },
    /// Files to delete.
    Delete {
        /// The paths, as the call has them; the most severe decision about one of them counts.
        paths: Vec<String>,
    },
    /// Files to move.
    Move {
        /// The current paths.
        from: Vec<String>,
        /// The new paths.
        to: Vec<String>,
    },
    /// A URL to fetch.
    Fetch {
        /// The URL, as the call has it.
        url: String,
        /// The method, as the call has it; `None` if its table has no field for one.
        method: Option<String>,
    },
    /// A tool of an MCP server.
    Mcp {
        /// The server's name.
        server: UntrustedText,
        /// The tool's name on that server.
        name: UntrustedText,
        /// The arguments: any JSON.
        arguments: serde_json::Value,
    },
    /// A tool in no table.
    Unknown {
        /// The tool's name.
        tool: UntrustedText,
    },
    /// A request that cannot be evaluated; always denied.
    Malformed {
        /// What is wrong, in our words.
        why: String,
    },
}

impl Request {
    /// The class of the tool, whatever its name is.
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

/// The effect of a request on the directory of a shell that keeps it between commands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CwdChange {
    /// The directory does not change.
    #[default]
    Unchanged,
    /// The directory may be any of these afterwards, or unchanged. All of them are in the
    /// workspace, each as it was named and with its links followed.
    OneOf(Vec<String>),
    /// The directory is unknown afterwards.
    Unknown,
}

/// One target of a reading request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadTarget {
    /// A path, as the call has it.
    Path(String),
    /// The root of the workspace.
    Workspace,
    /// Files below a directory whose names match a pattern.
    Search {
        /// The directory, as the call has it; `None`: the agent's current directory.
        below: Option<String>,
        /// The last name of the pattern.
        name: String,
    },
    /// A text that names a path but is more likely a search text: it only counts for rules that
    /// forbid.
    Mentioned(String),
    /// A pattern that goes up after a wildcard, and so may lead anywhere.
    Anywhere(String),
}

/// The policy's decision about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The decision. `Ask` needs a person.
    pub decision: Decision,
    /// What decided: ids of rules, or names of settings (`shell.redirect.write_outside`,
    /// `limits.max_bytes`). Empty: the policy's default.
    pub rules: Vec<String>,
    /// The reason for the model, on one line, with every foreign character escaped.
    pub reason: String,
    /// One of `Policy`, `Default` and `Error`.
    pub decided_by: DecidedBy,
    /// What the engine saw, for people.
    pub facts: Facts,
    /// The decision that an enforced policy would make, where the policy is a dry run (`enforce =
    /// false`); otherwise `None`.
    pub dry_run_decision: Option<Decision>,
    /// Rules with a limit per turn, and how often each allowed something here; empty unless the
    /// request is allowed.
    pub rule_uses: Vec<(String, u32)>,
}

/// What the engine saw of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The parts of the request: simple commands of a shell text, files of a read.
    pub parts: Vec<Part>,
    /// Why a shell text is not plain, so that no rule could allow it; `None` if it is plain.
    pub not_plain: Option<String>,
    /// Where its paths lead, if the caller resolved them ([`super::resolve_paths`]).
    pub resolved_paths: Vec<ResolvedPath>,
    /// What was seen of the file system, if the caller records it ([`super::RecordingResolver`]).
    pub fs_observations: FsObservations,
}

/// One part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The environment assignments before a command, `NAME=value` each.
    pub env: Vec<UntrustedText>,
    /// The words: the arguments of a command, or a path.
    pub words: Vec<UntrustedText>,
    /// The redirects of a command, as `> file`, `< file` or `>& 1` each.
    pub redirects: Vec<UntrustedText>,
    /// The policy's decision about this part.
    pub decision: Decision,
    /// The rules that applied, including those that allow.
    pub rules: Vec<String>,
}
