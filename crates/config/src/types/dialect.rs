//! What follows from the protocol that an agent speaks, for the configuration and for whoever acts
//! on it.
//!
//! Must not know messages.
//!
//! `config/agent.rs` and `config/pool/consistency.rs` act on these answers.

use super::DialectName;

impl DialectName {
    /// Whether a session is loaded again by an argument of the command, not by a message.
    #[must_use]
    pub const fn resumes_by_argument(self) -> bool {
        match self {
            Self::Acp | Self::Claude | Self::Codex | Self::Loaf | Self::Skillpilot => false,
            Self::Custom | Self::Scaiflux => true,
        }
    }

    /// Whether the protocol has a message that sets a session's model.
    #[must_use]
    pub const fn sets_model(self) -> bool {
        matches!(self, Self::Acp | Self::Claude | Self::Codex | Self::Loaf)
    }

    /// Whether it has one that sets its mode.
    #[must_use]
    pub const fn sets_mode(self) -> bool {
        matches!(self, Self::Acp | Self::Claude | Self::Codex)
    }

    /// Whether tool servers are handed to its sessions.
    #[must_use]
    pub const fn accepts_mcp_servers(self) -> bool {
        matches!(self, Self::Acp | Self::Claude | Self::Codex)
    }

    /// Whether it has modes of which those that skip questions are known.
    #[must_use]
    pub const fn has_known_modes(self) -> bool {
        matches!(self, Self::Acp | Self::Claude)
    }

    /// Whether its child is given a fresh id with its command.
    #[must_use]
    pub const fn needs_session_id(self) -> bool {
        matches!(self, Self::Claude)
    }

    /// Whether an agent may say what its work costs.
    #[must_use]
    pub const fn reports_cost(self) -> bool {
        matches!(self, Self::Acp | Self::Claude)
    }

    /// Whether the agent's own commands can be sent in it; by a custom dialect, if its table says how.
    #[must_use]
    pub const fn has_commands(self) -> bool {
        matches!(self, Self::Custom | Self::Loaf | Self::Scaiflux)
    }

    /// Whether a command of that name goes into the running turn, and not between turns.
    #[must_use]
    pub fn is_steering_command(self, command: &str) -> bool {
        self == Self::Loaf && command == "steer"
    }

    /// Whether whoever reads a prompt takes words of ours around it for remarks. A tool at a terminal would
    /// run them.
    #[must_use]
    pub const fn supports_remarks(self) -> bool {
        !matches!(self, Self::Skillpilot)
    }

    /// The built-in table that reads its tool calls, of a pool that names none.
    #[must_use]
    pub const fn default_extractor(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Custom | Self::Loaf | Self::Scaiflux | Self::Skillpilot => "scaiflux",
        }
    }

    /// Whether an agent can ask for permission in it at all.
    #[must_use]
    pub const fn can_request_permission(self) -> bool {
        !matches!(self, Self::Loaf | Self::Skillpilot)
    }
}
