//! What is known of the sandbox in which a request's child runs, as conditions of rules and policies.
//!
//! A policy that relies on the sandbox names the facts that it needs. Must not know launchers,
//! profiles or hosts: the caller determines the facts.

use super::string_enum;

string_enum!(
    /// A fact about a sandbox.
    SandboxFact {
        /// Every layer that keeps the child in is there: its processes reach only files that the
        /// sandbox shows.
        NoGaps = "no_gaps",
        /// The child writes a workspace of its own; what it writes leaves only by a person's command.
        PrivateWorkspace = "private_workspace",
        /// The child has no network, or only models without server tools.
        ConfinedNetwork = "confined_network",
    }
);

impl SandboxFact {
    /// What is wrong where the fact does not hold.
    #[must_use]
    pub const fn describe_missing(self) -> &'static str {
        match self {
            Self::NoGaps => "the sandbox has gaps",
            Self::PrivateWorkspace => "the workspace is not private to the agent",
            Self::ConfinedNetwork => "the network reaches more than models without server tools",
        }
    }
}

/// The facts that hold. The default is that none does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxFacts {
    /// [`SandboxFact::NoGaps`]
    pub has_no_gaps: bool,
    /// [`SandboxFact::PrivateWorkspace`]
    pub has_private_workspace: bool,
    /// [`SandboxFact::ConfinedNetwork`]
    pub has_confined_network: bool,
}

impl SandboxFacts {
    /// A sandbox of which every fact holds.
    pub const CONFINED: Self = Self {
        has_no_gaps: true,
        has_private_workspace: true,
        has_confined_network: true,
    };

    /// Whether a fact holds.
    #[must_use]
    pub const fn has(self, fact: SandboxFact) -> bool {
        match fact {
            SandboxFact::NoGaps => self.has_no_gaps,
            SandboxFact::PrivateWorkspace => self.has_private_workspace,
            SandboxFact::ConfinedNetwork => self.has_confined_network,
        }
    }

    /// The facts that hold, for records.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = SandboxFact::ALL.iter().filter(|fact| self.has(**fact));
        all.map(|fact| fact.as_str()).collect()
    }

    /// The facts of a record; unknown names are ignored.
    pub fn from_names<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut facts = Self::default();
        for name in names {
            match SandboxFact::parse(name) {
                Some(SandboxFact::NoGaps) => facts.has_no_gaps = true,
                Some(SandboxFact::PrivateWorkspace) => facts.has_private_workspace = true,
                Some(SandboxFact::ConfinedNetwork) => facts.has_confined_network = true,
                None => {}
            }
        }
        facts
    }
}
