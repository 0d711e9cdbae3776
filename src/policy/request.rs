//! What is judged, and the judgement.
//!
//! Owns the request's closed shape, whatever protocol it came by, and what is shown of a
//! decision. Must not know how either is made.

use crate::model::{DecidedBy, Decision, Foreign};

pub use crate::model::ToolClass;

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
        targets: Vec<Target>,
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
        server: Foreign,
        /// The tool's name on that server.
        name: Foreign,
        /// What it is called with: any JSON.
        arguments: serde_json::Value,
    },
    /// A tool that no table knows.
    Unknown {
        /// Its name.
        tool: Foreign,
    },
    /// The input cannot be judged; always denied.
    Malformed {
        /// What is wrong, in our words.
        why: String,
    },
}

impl Request {
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
pub enum Moved {
    /// It stays where it is.
    #[default]
    Not,
    /// It may be any of these afterwards, or what it was: all of them in the workspace, each as it
    /// was named and with its links followed.
    To(Vec<String>),
    /// It may be anywhere afterwards.
    Away,
}

/// One thing that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A path, as the call has it.
    Path(String),
    /// The root of the workspace.
    Workspace,
    /// It may lead anywhere: a pattern that goes up behind a wildcard.
    Anywhere(String),
}

/// What the policy says of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The decision. `Ask` is for a person.
    pub decision: Decision,
    /// What decided: ids of rules, or names of settings (`shell.redirect.write_outside`,
    /// `limits.max_bytes`). Empty: the policy's default.
    pub rules: Vec<String>,
    /// Advice for the model, on one line, with every foreign character escaped.
    pub reason: String,
    /// `Policy`, `Default` or `Error`.
    pub by: DecidedBy,
    /// What was seen, for people.
    pub facts: Facts,
}

/// What the engine saw of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The parts of the request: simple commands of a shell text, files of a read.
    pub parts: Vec<Part>,
    /// Why a shell text is not plain, so that no rule could allow it.
    pub not_plain: Option<String>,
}

/// One part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its words: the arguments of a command, or a path.
    pub words: Vec<Foreign>,
    /// What the policy says of it.
    pub decision: Decision,
    /// What applied to it, allowing rules included.
    pub rules: Vec<String>,
}
