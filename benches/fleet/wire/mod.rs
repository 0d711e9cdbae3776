//! The protocols of the baselines: the minimum that a typed reader of each does.

mod acp;
mod scaiflux;

use std::borrow::Cow;

use crate::Failure;

/// The protocol between a reader and its child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wire {
    /// ScaiFlux's serve mode.
    Scaiflux,
    /// The Agent Client Protocol.
    Acp,
}

/// A message that the reader must act on.
#[derive(Debug)]
pub(crate) enum WireMessage<'a> {
    /// The child has identified itself.
    Ready,
    /// The id of the requested session.
    Session(Cow<'a, str>),
    Text(Cow<'a, str>),
    /// The child sends a permission request; this is the line that allows it.
    Request(String),
    TurnEnd,
    /// Parsed, but without consequence here.
    Other,
}

impl Wire {
    /// The word that configurations and command lines use.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Scaiflux => "scaiflux",
            Self::Acp => "acp",
        }
    }

    /// Parses one line.
    pub(crate) fn parse(self, line: &[u8]) -> Result<WireMessage<'_>, Failure> {
        match self {
            Self::Scaiflux => scaiflux::parse(line),
            Self::Acp => acp::parse(line),
        }
    }

    /// The line that a child waits for before it is ready.
    pub(crate) const fn greeting(self) -> Option<&'static str> {
        match self {
            Self::Scaiflux => None,
            Self::Acp => Some(acp::INITIALIZE),
        }
    }

    /// The line that requests a session in this directory, in a protocol that needs it.
    pub(crate) fn new_session(self, cwd: &str) -> Option<String> {
        match self {
            Self::Scaiflux => None,
            Self::Acp => Some(acp::new_session(cwd)),
        }
    }

    /// The line that starts a turn.
    pub(crate) fn prompt(self, session: &str, text: &str) -> String {
        match self {
            Self::Scaiflux => scaiflux::prompt(text),
            Self::Acp => acp::prompt(session, text),
        }
    }
}
