//! The arguments that a host adds to the command of Claude Code.
//!
//! Without them the real program does not speak this protocol, and does not ask for permission.
//! Must not know messages.

use serde_json::Value;

use crate::script_agent::StartError;
use crate::script_agent::memory::Memory;

/// The arguments of a host of Claude Code.
#[derive(Debug, Clone, clap::Args)]
pub struct ClaudeFlags {
    /// Claude Code: work without a terminal; required
    #[arg(long)]
    pub print: bool,
    /// Claude Code: the format of prompts; only `stream-json`
    #[arg(long, value_name = "F")]
    pub input_format: Option<String>,
    /// Claude Code: the format of output; only `stream-json`
    #[arg(long, value_name = "F")]
    pub output_format: Option<String>,
    /// Claude Code: also send messages in pieces
    #[arg(long)]
    pub include_partial_messages: bool,
    /// Claude Code: where to send permission requests; only `stdio`
    #[arg(long, value_name = "T")]
    pub permission_prompt_tool: Option<String>,
    /// Claude Code: the id of the new session, a UUID
    #[arg(long, value_name = "ID", conflicts_with = "resume")]
    pub session_id: Option<String>,
    /// Claude Code: tool servers, which are accepted and not used
    #[arg(long, value_name = "JSON")]
    pub mcp_config: Option<String>,
    /// Claude Code: settings, an object, which is accepted and has no effect
    #[arg(long, value_name = "JSON")]
    pub settings: Option<String>,
}

/// An invalid set of arguments.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlagError {
    #[error("--dialect claude requires {0}")]
    Missing(&'static str),
    #[error("{0} is for --dialect claude only")]
    WrongDialect(&'static str),
    #[error("--session-id is not a UUID")]
    InvalidSessionId,
    #[error("session ID {0} is already in use: resume it with --resume")]
    SessionIdTaken(String),
    #[error("--mcp-config must be a JSON object with `mcpServers`")]
    InvalidMcpConfig,
    #[error("--settings must be a JSON object")]
    InvalidSettings,
}

const STREAM: &str = "stream-json";

impl ClaudeFlags {
    /// Checks that all required arguments are given. `--verbose` belongs to all commands, so it is
    /// passed in.
    pub(super) fn check(&self, is_verbose: bool) -> Result<(), FlagError> {
        let is = |word: &Option<String>, wanted: &str| word.as_deref() == Some(wanted);
        let tool = is(&self.permission_prompt_tool, "stdio");
        let musts = [
            ("--print", self.print),
            ("--input-format stream-json", is(&self.input_format, STREAM)),
            (
                "--output-format stream-json",
                is(&self.output_format, STREAM),
            ),
            ("--verbose", is_verbose),
            ("--permission-prompt-tool stdio", tool),
        ];
        if let Some((word, _)) = musts.iter().find(|(_, is_given)| !is_given) {
            return Err(FlagError::Missing(word));
        }
        let fits = |text: &Option<String>, check: fn(&Value) -> bool| {
            let json = text.as_deref().map(serde_json::from_str);
            json.is_none_or(|json| json.is_ok_and(|json| check(&json)))
        };
        if !fits(&self.mcp_config, |config| config["mcpServers"].is_object()) {
            return Err(FlagError::InvalidMcpConfig);
        }
        if !fits(&self.settings, Value::is_object) {
            return Err(FlagError::InvalidSettings);
        }
        Ok(())
    }

    /// Checks that none is given, for the other protocols.
    pub(super) fn require_unset(&self) -> Result<(), FlagError> {
        let tool = self.permission_prompt_tool.is_some();
        let given = [
            ("--print", self.print),
            ("--input-format", self.input_format.is_some()),
            ("--output-format", self.output_format.is_some()),
            ("--include-partial-messages", self.include_partial_messages),
            ("--permission-prompt-tool", tool),
            ("--session-id", self.session_id.is_some()),
            ("--mcp-config", self.mcp_config.is_some()),
            ("--settings", self.settings.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((word, _)) => Err(FlagError::WrongDialect(word)),
            None => Ok(()),
        }
    }
}

/// Checks the id of a new session: a UUID that no stored session has.
pub(crate) fn check_new_session_id(memory: &Memory, id: String) -> Result<String, StartError> {
    if uuid::Uuid::parse_str(&id).is_err() {
        return Err(FlagError::InvalidSessionId.into());
    }
    match memory.load(&id) {
        Ok(_) => Err(FlagError::SessionIdTaken(id).into()),
        Err(_) => Ok(id),
    }
}
