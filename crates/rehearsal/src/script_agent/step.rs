//! The steps of a script: tool calls, requests to the client, drills.
//!
//! Owns the tools' names and the field names of their inputs. Must not know how a script is written
//! or how a step is executed.

use std::time::Duration;

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Use a tool, after a permission request.
    Tool(ToolCall),
    /// Use bash without a permission request.
    UnapprovedTool(ToolCall),
    /// Answer with a text.
    Say(String),
    /// Think aloud.
    Think(String),
    /// Send a plan.
    Plan(Vec<String>),
    /// Repeat every earlier prompt of the session.
    Recall,
    /// Pause.
    Sleep(Duration),
    /// Send the client a request.
    Client(ClientStep),
    /// Misbehave, or generate load.
    Drill(Drill),
}

/// A request to the client, in a protocol with such requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientStep {
    Read {
        path: String,
    },
    Write {
        path: String,
        content: String,
    },
    /// Run a command to its end.
    Run {
        argv: Vec<String>,
    },
    /// Call a tool of a tool server of the client.
    Tool {
        /// `SERVER/TOOL`, or the tool of the first server.
        tool: String,
        /// The arguments, as JSON.
        arguments: String,
        /// Whether to wait for the result.
        waits: bool,
    },
    /// Any other request.
    Raw {
        method: String,
        /// The parameters, as JSON.
        params: String,
    },
}

/// A tool call: its input, with the field names that the supervisor's extractor reads.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub(super) enum ToolCall {
    ReadFile {
        path: String,
    },
    WriteFile {
        path: String,
        content: String,
    },
    Bash {
        command: String,
    },
    GrepSearch {
        pattern: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    ListDir {
        path: String,
    },
}

impl ToolCall {
    /// The names of all tools, as `ready` lists them.
    pub(super) const TOOLS: [&'static str; 5] =
        ["read_file", "write_file", "list_dir", "grep_search", "bash"];

    /// The tool's name on the wire.
    pub(super) const fn tool(&self) -> &'static str {
        match self {
            Self::ReadFile { .. } => "read_file",
            Self::WriteFile { .. } => "write_file",
            Self::ListDir { .. } => "list_dir",
            Self::GrepSearch { .. } => "grep_search",
            Self::Bash { .. } => "bash",
        }
    }

    /// A short description of the call, for a person.
    pub(super) fn title(&self) -> String {
        match self {
            Self::ReadFile { path } => format!("Read {path}"),
            Self::WriteFile { path, .. } => format!("Write {path}"),
            Self::ListDir { path } => format!("List {path}"),
            Self::GrepSearch { pattern, .. } => format!("Search {pattern}"),
            Self::Bash { command } => command.clone(),
        }
    }

    /// The permission mode that the tool needs, as the protocol names it.
    pub(super) const fn required_mode(&self) -> &'static str {
        match self {
            Self::ReadFile { .. } | Self::ListDir { .. } | Self::GrepSearch { .. } => "read-only",
            Self::WriteFile { .. } => "workspace-write",
            Self::Bash { .. } => "danger-full-access",
        }
    }
}

/// How the agent crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// SIGABRT, as after a failed assertion.
    Abort,
    /// SIGKILL, as from the kernel.
    Kill,
}

/// How the agent hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hang {
    /// Asleep: other signals still end it.
    Asleep,
    /// Stopped by SIGSTOP: only SIGKILL ends it.
    Stopped,
}

/// The agent's pipes that an orphan keeps open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pipes {
    /// None.
    Dropped,
    /// Stdout and stderr, so that the supervisor sees no end of file.
    Held,
}

/// Faults and load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Drill {
    Crash(Crash),
    /// Crash if the file does not exist; the file is created before the crash.
    CrashOnce {
        file: String,
        how: Crash,
    },
    Exit(u8),
    Hang(Hang),
    Flood {
        lines: u64,
        line_bytes: usize,
        /// The number of lines in one write. `None`: one, or as many as fit in loader mode.
        batch: Option<usize>,
    },
    Garbage {
        lines: u64,
    },
    HugeLine {
        bytes: u64,
    },
    EndlessLine,
    Slow,
    IgnoreCancel,
    SpawnOrphan {
        marker: Option<String>,
        pipes: Pipes,
    },
    Ask {
        count: u64,
        path: String,
    },
    /// One line, unchanged.
    Raw(String),
    /// A line without its newline; stdout is then closed.
    Half(String),
    /// Close stdout and continue.
    Mute,
    /// One line, many times.
    Storm {
        count: u64,
        /// The line; `{n}` stands for the number of earlier writes.
        line: String,
    },
    /// Send a permission request and withdraw it at once.
    Withdraw(ToolCall),
    /// Send permission requests without waiting for answers.
    Pending {
        count: u64,
    },
}
