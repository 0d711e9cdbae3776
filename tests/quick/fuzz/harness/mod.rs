//! What is fuzzed, and what must hold of it: one function a target, which takes any bytes and panics
//! where a promise is broken.
//!
//! Shared by `tests/quick/fuzz` (stable, in the test command) and the package `fuzz/` (libFuzzer); knows
//! neither of them, so that an input that one finds is a case of the other.

mod case;
mod conversation;
pub(crate) mod dialects;
mod json;
mod mutate;
mod readers;
mod seeds;

pub(crate) use conversation::{Machine, converse, flood};
pub(crate) use mutate::mutated;
pub(crate) use seeds::seeds;

/// What is fuzzed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Scaiflux,
    Acp,
    Loaf,
    Claude,
    Codex,
    Custom,
    Skillpilot,
    /// Lines, the shim's messages.
    Framing,
    /// The definition of a custom dialect.
    Table,
    /// The configuration, and a policy.
    Config,
    /// The policy's readers of a command line.
    Shell,
    /// The tool server.
    Mcp,
    /// CONNECT and the first words of TLS.
    Egress,
    /// Heads, bodies and streamed answers of model requests.
    Route,
    /// Events and reports of the journal.
    Journal,
    /// Files and output of SkillPilot's Runner.
    Files,
    /// Checklists in Markdown.
    Plan,
}

impl Target {
    pub(crate) const ALL: [Self; 17] = [
        Self::Scaiflux,
        Self::Acp,
        Self::Loaf,
        Self::Claude,
        Self::Codex,
        Self::Custom,
        Self::Skillpilot,
        Self::Framing,
        Self::Table,
        Self::Config,
        Self::Shell,
        Self::Mcp,
        Self::Egress,
        Self::Route,
        Self::Journal,
        Self::Files,
        Self::Plan,
    ];

    /// Its name, which is also its directory's below `tests/quick/fuzz/found`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Scaiflux => "scaiflux",
            Self::Acp => "acp",
            Self::Loaf => "loaf",
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Custom => "custom",
            Self::Skillpilot => "skillpilot",
            Self::Framing => "framing",
            Self::Table => "table",
            Self::Config => "config",
            Self::Shell => "shell",
            Self::Mcp => "mcp",
            Self::Egress => "egress",
            Self::Route => "route",
            Self::Journal => "journal",
            Self::Files => "files",
            Self::Plan => "plan",
        }
    }

    /// Whether it is a dialect, whose inputs are conversations.
    pub(crate) const fn is_dialect(self) -> bool {
        matches!(
            self,
            Self::Scaiflux
                | Self::Acp
                | Self::Loaf
                | Self::Claude
                | Self::Codex
                | Self::Custom
                | Self::Skillpilot
        )
    }
}

/// Bytes of an input that are looked at.
pub(crate) const INPUT_BYTES: usize = 256 << 10;

/// Runs a target on an input.
///
/// # Panics
/// Where a promise is broken.
pub(crate) fn run(target: Target, input: &[u8]) {
    let input = &input[..input.len().min(INPUT_BYTES)];
    match target {
        Target::Framing => readers::framing(input),
        Target::Table => readers::table(input),
        Target::Config => readers::config(input),
        Target::Shell => readers::shell(input),
        Target::Mcp => readers::mcp(input),
        Target::Egress => readers::egress(input),
        Target::Route => readers::route(input),
        Target::Journal => readers::journal(input),
        Target::Files => readers::files(input),
        Target::Plan => readers::plan(input),
        _ => converse(target, input, &|| dialects::build(target)),
    }
}
