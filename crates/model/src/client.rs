//! Client methods: what an agent's client does for it: read and write text files, run commands in
//! terminals, ask a person.
//!
//! Plain data. Must not know how a protocol encodes them, nor who executes them.
//!
//! A new client method also touches `dialect/acp/client.rs`, `policy/client.rs`, `fleet/channel/client.rs` and
//! `docs/client-methods.md`.

use super::{EngineRequest, EngineTool, ExitStatus, string_enum};

string_enum!(
    /// A method that an agent calls. The word is its name in the Agent Client Protocol.
    ClientMethod {
        /// Gives the text of a file.
        ReadTextFile = "fs/read_text_file",
        /// Replaces a file, or makes one.
        WriteTextFile = "fs/write_text_file",
        /// Runs a command.
        TerminalCreate = "terminal/create",
        /// Gives what a command has written so far.
        TerminalOutput = "terminal/output",
        /// Waits for a command's end.
        TerminalWait = "terminal/wait_for_exit",
        /// Ends a command.
        TerminalKill = "terminal/kill",
        /// Ends a command and forgets it.
        TerminalRelease = "terminal/release",
        /// Asks a person.
        ElicitationCreate = "elicitation/create",
    }
);

/// The methods that a client offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// `fs/read_text_file`.
    pub read: bool,
    /// `fs/write_text_file`.
    pub write: bool,
    /// Every `terminal/…`.
    pub terminal: bool,
    /// `elicitation/create`.
    pub elicitation: bool,
}

impl ClientCapabilities {
    /// Whether a method is offered.
    #[must_use]
    pub const fn supports(self, method: ClientMethod) -> bool {
        match method {
            ClientMethod::ReadTextFile => self.read,
            ClientMethod::WriteTextFile => self.write,
            ClientMethod::TerminalCreate
            | ClientMethod::TerminalOutput
            | ClientMethod::TerminalWait
            | ClientMethod::TerminalKill
            | ClientMethod::TerminalRelease => self.terminal,
            ClientMethod::ElicitationCreate => self.elicitation,
        }
    }

    /// Whether any method is offered that is executed inside the agent's sandbox.
    #[must_use]
    pub const fn needs_sandbox(self) -> bool {
        self.read || self.write || self.terminal
    }
}

/// A command for a terminal, exactly as the agent says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalSpec {
    /// Program and arguments, never empty.
    pub argv: Vec<String>,
    /// Variables beside those that every terminal has.
    pub env: Vec<(String, String)>,
    /// Where it runs; `None`: in the workspace.
    pub cwd: Option<String>,
    /// How much of its output the agent wants to be kept, in bytes.
    pub output_bytes: Option<u64>,
}

/// One request of an agent to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCall {
    /// [`ClientMethod::ReadTextFile`]
    Read {
        /// The file, as the agent names it.
        path: String,
        /// The first line wanted, from 1.
        line: u64,
        /// The most lines wanted.
        limit: Option<u64>,
    },
    /// [`ClientMethod::WriteTextFile`]
    Write {
        /// The file, as the agent names it.
        path: String,
        /// Its whole text from then on.
        content: String,
    },
    /// [`ClientMethod::TerminalCreate`]
    Run(TerminalSpec),
    /// The other `terminal/…` methods.
    Terminal {
        /// The client method that the agent called.
        method: ClientMethod,
        /// The terminal's id.
        id: String,
    },
    /// [`ClientMethod::ElicitationCreate`]
    Ask {
        /// What the person is to answer.
        question: String,
        /// The answers to choose from; empty if there are others.
        options: Vec<String>,
    },
}

/// What the policy decides before a request is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientRequest {
    /// This file is to be read.
    Read(String),
    /// This file is to be written.
    Write(String),
    /// This command is to be run.
    Run(TerminalSpec),
    /// A tool of the supervisor's is called.
    Tool(Box<EngineRequest>),
}

impl ClientCall {
    /// Its method.
    #[must_use]
    pub const fn method(&self) -> ClientMethod {
        match self {
            Self::Read { .. } => ClientMethod::ReadTextFile,
            Self::Write { .. } => ClientMethod::WriteTextFile,
            Self::Run(_) => ClientMethod::TerminalCreate,
            Self::Terminal { method, .. } => *method,
            Self::Ask { .. } => ClientMethod::ElicitationCreate,
        }
    }

    /// What the policy must decide first; `None` if an earlier decision covers it.
    #[must_use]
    pub fn policy_request(&self) -> Option<ClientRequest> {
        match self {
            Self::Read { path, .. } => Some(ClientRequest::Read(path.clone())),
            Self::Write { path, .. } => Some(ClientRequest::Write(path.clone())),
            Self::Run(spec) => Some(ClientRequest::Run(spec.clone())),
            Self::Terminal { .. } => None,
            // The same question as by the supervisor's own tool.
            Self::Ask { question, options } => {
                let arguments = serde_json::json!({"question": question, "options": options});
                Some(ClientRequest::Tool(Box::new(EngineRequest {
                    tool: EngineTool::AskPerson,
                    path: None,
                    arguments,
                })))
            }
        }
    }
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientOutput {
    /// It was done.
    Empty,
    /// A file's text.
    Text(String),
    /// A file's text, of this version or a later one.
    Read {
        /// The text.
        text: String,
        /// The version.
        version: u64,
    },
    /// A file was written, and is this version.
    Written(u64),
    /// A command runs under this id.
    Terminal(String),
    /// What a command wrote.
    Output {
        /// The stored end of the output.
        text: String,
        /// Whether earlier output was dropped.
        truncated: bool,
        /// How it ended, if it has.
        exit: Option<TerminalExit>,
    },
    /// How a command ended.
    Exited(TerminalExit),
}

/// How a terminal's command ended; `None` if that is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalExit(pub Option<ExitStatus>);

string_enum!(
    /// Why a request has no result.
    ClientErrorKind {
        /// There is no such file or terminal.
        NotFound = "not_found",
        /// The policy denies it.
        Denied = "denied",
        /// It is not possible for this file, or the request is invalid.
        Invalid = "invalid",
        /// The turn, or the request, was cancelled before it was executed.
        Cancelled = "cancelled",
        /// It failed.
        Failed = "failed",
    }
);

/// Why a request has no result, with a sentence for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientError {
    /// The kind.
    pub kind: ClientErrorKind,
    /// What is wrong, and with what.
    pub message: String,
}

impl ClientError {
    /// An error of that kind.
    pub fn new(fault: ClientErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind: fault,
            message: message.into(),
        }
    }
}

/// What goes back to the agent.
pub type ClientResult = Result<ClientOutput, ClientError>;
