//! The words that a host puts behind the command of Claude Code.
//!
//! Without them the program does not speak this protocol, and does not ask. Must not know messages.

use serde_json::Value;

use crate::script_agent::StartError;
use crate::script_agent::memory::Memory;

/// What a host of Claude Code says behind its command.
#[derive(Debug, Clone, clap::Args)]
pub struct ClaudeFlags {
    /// Claude Code: works without a terminal; a must
    #[arg(long)]
    pub print: bool,
    /// Claude Code: how prompts come; only `stream-json`
    #[arg(long, value_name = "F")]
    pub input_format: Option<String>,
    /// Claude Code: how it answers; only `stream-json`
    #[arg(long, value_name = "F")]
    pub output_format: Option<String>,
    /// Claude Code: tells messages piece by piece, too
    #[arg(long)]
    pub include_partial_messages: bool,
    /// Claude Code: who is asked for permission; only `stdio`
    #[arg(long, value_name = "T")]
    pub permission_prompt_tool: Option<String>,
    /// Claude Code: what the new session is called, a UUID
    #[arg(long, value_name = "ID", conflicts_with = "resume")]
    pub session_id: Option<String>,
    /// Claude Code: tool servers, which it takes and does not use
    #[arg(long, value_name = "JSON")]
    pub mcp_config: Option<String>,
    /// Claude Code: settings, an object; it has no hooks of its own that these could switch off
    #[arg(long, value_name = "JSON")]
    pub settings: Option<String>,
}

/// What is wrong with them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlagError {
    #[error("as Claude Code it speaks only with {0}")]
    Missing(&'static str),
    #[error("{0} is for --dialect claude")]
    WrongDialect(&'static str),
    #[error("the session id is no UUID: --session-id takes one")]
    InvalidSessionId,
    #[error("session ID {0} is already in use: --resume goes on with it")]
    SessionIdTaken(String),
    #[error("--mcp-config takes an object with `mcpServers`")]
    InvalidMcpConfig,
    #[error("--settings takes an object")]
    InvalidSettings,
}

const STREAM: &str = "stream-json";

impl ClaudeFlags {
    /// Whether they are what the protocol needs. Verbose is everybody's word.
    pub(super) fn check(&self, is_verbose: bool) -> Result<(), FlagError> {
        let is = |word: &Option<String>, wanted: &str| word.as_deref() == Some(wanted);
        let musts = [
            ("--print", self.print),
            ("--input-format stream-json", is(&self.input_format, STREAM)),
            (
                "--output-format stream-json",
                is(&self.output_format, STREAM),
            ),
            ("--verbose", is_verbose),
            (
                "--permission-prompt-tool stdio",
                is(&self.permission_prompt_tool, "stdio"),
            ),
        ];
        if let Some((word, _)) = musts.iter().find(|(_, is_said)| !is_said) {
            return Err(FlagError::Missing(word));
        }
        let servers = self.mcp_config.as_deref().map(|text| {
            let config: Option<Value> = serde_json::from_str(text).ok();
            config.is_some_and(|config| config["mcpServers"].is_object())
        });
        if servers == Some(false) {
            return Err(FlagError::InvalidMcpConfig);
        }
        let settings = self.settings.as_deref().map(|text| {
            let settings: Option<Value> = serde_json::from_str(text).ok();
            settings.is_some_and(|settings| settings.is_object())
        });
        if settings == Some(false) {
            return Err(FlagError::InvalidSettings);
        }
        Ok(())
    }

    /// Whether none was said, as to an agent of another protocol.
    pub(super) fn require_unset(&self) -> Result<(), FlagError> {
        let said = [
            ("--print", self.print),
            ("--input-format", self.input_format.is_some()),
            ("--output-format", self.output_format.is_some()),
            ("--include-partial-messages", self.include_partial_messages),
            (
                "--permission-prompt-tool",
                self.permission_prompt_tool.is_some(),
            ),
            ("--session-id", self.session_id.is_some()),
            ("--mcp-config", self.mcp_config.is_some()),
            ("--settings", self.settings.is_some()),
        ];
        match said.iter().find(|(_, is_said)| *is_said) {
            Some((word, _)) => Err(FlagError::WrongDialect(word)),
            None => Ok(()),
        }
    }
}

/// The id of a new session, which no other one has.
pub(crate) fn check_new_session_id(memory: &Memory, id: String) -> Result<String, StartError> {
    if uuid::Uuid::parse_str(&id).is_err() {
        return Err(FlagError::InvalidSessionId.into());
    }
    match memory.load(&id) {
        Ok(_) => Err(FlagError::SessionIdTaken(id).into()),
        Err(_) => Ok(id),
    }
}
