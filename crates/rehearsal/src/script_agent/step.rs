//! What a script can ask for: steps, tool calls, drills.
//!
//! Owns the tools' names and the field names of their inputs. Must not know how a script is
//! written or how a step is carried out.

use std::time::Duration;

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Use a tool, after asking.
    Tool(ToolCall),
    /// Use bash without asking.
    UnapprovedTool(ToolCall),
    /// Answer with a text.
    Say(String),
    /// Think aloud.
    Think(String),
    /// Say what is to be done.
    Plan(Vec<String>),
    /// Say every earlier prompt of the session.
    Recall,
    /// Pause.
    Sleep(Duration),
    /// Have the client do something.
    Client(ClientStep),
    /// Misbehave, or make load.
    Drill(Drill),
}

/// What the client is to do, in a protocol where clients do something.
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
    /// Call a tool of a tool server that the client handed over.
    Tool {
        /// `SERVER/TOOL`, or the tool of the first server.
        tool: String,
        /// JSON.
        arguments: String,
        /// Wait for what comes of it.
        waits: bool,
    },
    /// Any request.
    Raw {
        method: String,
        /// JSON.
        params: String,
    },
}

/// A tool call: its input, in the field names that the supervisor's extractor reads.
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
    /// Every tool's name, as `ready` lists them.
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

    /// The call in a few words, as a person is shown it.
    pub(super) fn title(&self) -> String {
        match self {
            Self::ReadFile { path } => format!("Read {path}"),
            Self::WriteFile { path, .. } => format!("Write {path}"),
            Self::ListDir { path } => format!("List {path}"),
            Self::GrepSearch { pattern, .. } => format!("Search {pattern}"),
            Self::Bash { command } => command.clone(),
        }
    }

    /// The permission mode that the tool needs, in the protocol's words.
    pub(super) const fn required_mode(&self) -> &'static str {
        match self {
            Self::ReadFile { .. } | Self::ListDir { .. } | Self::GrepSearch { .. } => "read-only",
            Self::WriteFile { .. } => "workspace-write",
            Self::Bash { .. } => "danger-full-access",
        }
    }
}

/// How the agent ends when told to crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// SIGABRT, as a failed assertion would.
    Abort,
    /// SIGKILL, as the kernel would.
    Kill,
}

/// How the agent hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hang {
    /// Asleep: signals still end it.
    Asleep,
    /// Stopped by SIGSTOP: only SIGKILL ends it.
    Stopped,
}

/// What a grandchild keeps of the agent's pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pipes {
    /// Nothing.
    Dropped,
    /// Stdout and stderr, so that the supervisor sees no end of file.
    Held,
}

/// Faults and load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Drill {
    Crash(Crash),
    /// Crash if the file does not exist; it is made first.
    CrashOnce {
        file: String,
        how: Crash,
    },
    Exit(u8),
    Hang(Hang),
    Flood {
        lines: u64,
        line_bytes: usize,
        /// Lines in one write; `None`: one, or as many as fit in loader mode.
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
    /// One line as it stands.
    Raw(String),
    /// A line without its end, then nothing any more.
    Half(String),
    /// Closes stdout and goes on.
    Mute,
    /// One line again and again.
    Storm {
        count: u64,
        /// `{n}` in it is how often it was written before.
        line: String,
    },
    /// Asks, and withdraws the request at once.
    Withdraw(ToolCall),
    /// Asks, and does not wait for answers.
    Pending {
        count: u64,
    },
}
