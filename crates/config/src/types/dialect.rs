//! What follows from the protocol that an agent speaks, for the configuration and for its users.
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

    /// Whether its sessions can get tool servers.
    #[must_use]
    pub const fn accepts_mcp_servers(self) -> bool {
        matches!(self, Self::Acp | Self::Claude | Self::Codex)
    }

    /// Whether it has modes, and the ones that skip permission requests are known.
    #[must_use]
    pub const fn has_known_modes(self) -> bool {
        matches!(self, Self::Acp | Self::Claude)
    }

    /// Whether its command gets a fresh session id.
    #[must_use]
    pub const fn needs_session_id(self) -> bool {
        matches!(self, Self::Claude)
    }

    /// Whether an agent may report the cost of its work.
    #[must_use]
    pub const fn reports_cost(self) -> bool {
        matches!(self, Self::Acp | Self::Claude)
    }

    /// Whether it can send the agent's own slash commands; for a custom dialect the table decides.
    #[must_use]
    pub const fn has_commands(self) -> bool {
        matches!(self, Self::Custom | Self::Loaf | Self::Scaiflux)
    }

    /// Whether a command of that name is sent into the running turn instead of between turns.
    #[must_use]
    pub fn is_steering_command(self, command: &str) -> bool {
        self == Self::Loaf && command == "steer"
    }

    /// Whether marshal may add remarks around a prompt. A tool at a terminal would run them.
    #[must_use]
    pub const fn supports_remarks(self) -> bool {
        !matches!(self, Self::Skillpilot)
    }

    /// The built-in extractor of a pool that names none.
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
