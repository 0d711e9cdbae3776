//! The launchers, each described once: the rest of the program asks what a launcher is, not which.
//!
//! A new launcher also needs what builds its sandbox (`cli/engines.rs`) and what that needs of the
//! host (`cli/doctor/needs.rs`).

use super::Network;
use marshal_model::string_enum;

string_enum!(
    /// How a child is started.
    Launcher {
        /// In namespaces made by this binary.
        Unshare = "unshare",
        /// In namespaces made by bubblewrap.
        Bwrap = "bwrap",
        /// In a container of podman or docker.
        Container = "container",
        /// As a plain process, without a sandbox.
        None = "none",
        /// At a pseudo-terminal, driven by files, in namespaces made by this binary.
        Pty = "pty",
        /// On another host, through the system's ssh client.
        Ssh = "ssh",
    }
);

/// What confines a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    /// Nothing on this host.
    Nothing,
    /// A sandbox that this binary builds.
    BuiltIn,
    /// A sandbox of another program, and what it lacks compared with the built-in one.
    OtherProgram { lacks: &'static str },
}

/// Where a child's programs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramPlace {
    ThisHost,
    Image,
    RemoteHost,
}

/// What a launcher is.
struct Description {
    confinement: Confinement,
    place: ProgramPlace,
    /// Whether a runner of marshal's own starts the command, at a pseudo-terminal.
    runs_runner: bool,
}

impl Launcher {
    const fn description(self) -> Description {
        let (confinement, place) = match self {
            Self::Unshare | Self::Pty => (Confinement::BuiltIn, ProgramPlace::ThisHost),
            Self::Bwrap => {
                let lacks = "its /proc shows this host's public information";
                (Confinement::OtherProgram { lacks }, ProgramPlace::ThisHost)
            }
            Self::Container => {
                let lacks = "its /proc shows this host's public information, and the engine runs without a sandbox";
                (Confinement::OtherProgram { lacks }, ProgramPlace::Image)
            }
            Self::None => (Confinement::Nothing, ProgramPlace::ThisHost),
            Self::Ssh => (Confinement::Nothing, ProgramPlace::RemoteHost),
        };
        Description {
            confinement,
            place,
            runs_runner: matches!(self, Self::Pty),
        }
    }

    /// Whether a child has a sandbox on this host, with its own home and workspace.
    #[must_use]
    pub const fn has_sandbox(self) -> bool {
        !matches!(self.description().confinement, Confinement::Nothing)
    }

    /// Whether this binary builds the sandbox itself. Only then it can mount overlays and make
    /// terminals.
    #[must_use]
    pub const fn has_built_in_sandbox(self) -> bool {
        matches!(self.description().confinement, Confinement::BuiltIn)
    }

    /// Why a client cannot have commands started in the sandbox of a child, and what to do instead;
    /// `None` if it can. Sandboxes of other programs have no terminals that commands could get.
    #[must_use]
    pub const fn exec_gap(self) -> Option<&'static str> {
        match self {
            Self::Unshare | Self::Pty => None,
            Self::None => {
                Some("there is no sandbox; run the command on this host, in the workspace")
            }
            Self::Ssh => Some("its agents run on another host; connect to that host with ssh"),
            Self::Container => Some(
                "this needs launcher = \"unshare\"; the engine has its own exec, and its `ps` lists the containers marshal-…",
            ),
            Self::Bwrap => Some(
                "this needs launcher = \"unshare\"; `marshal sandbox exec` starts a second sandbox on a workspace",
            ),
        }
    }

    /// What the sandbox of another program lacks compared with the built-in one.
    #[must_use]
    pub const fn sandbox_gap(self) -> Option<&'static str> {
        match self.description().confinement {
            Confinement::OtherProgram { lacks } => Some(lacks),
            Confinement::Nothing | Confinement::BuiltIn => None,
        }
    }

    /// Whether a child is a plain process on this host.
    #[must_use]
    pub const fn is_unsandboxed(self) -> bool {
        !self.has_sandbox() && !self.is_remote()
    }

    /// Whether a child runs on another host.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self.description().place, ProgramPlace::RemoteHost)
    }

    /// Whether a child's programs are those of an image.
    #[must_use]
    pub const fn uses_image(self) -> bool {
        matches!(self.description().place, ProgramPlace::Image)
    }

    /// Whether a child's programs are those of this host.
    #[must_use]
    pub const fn uses_host_programs(self) -> bool {
        matches!(self.description().place, ProgramPlace::ThisHost)
    }

    /// Whether a runner of marshal's own starts the command, at a pseudo-terminal.
    #[must_use]
    pub const fn runs_runner(self) -> bool {
        self.description().runs_runner
    }

    /// The network of a pool that sets none.
    #[must_use]
    pub const fn default_network(self) -> Network {
        if self.has_sandbox() {
            Network::None
        } else {
            Network::Host
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_clients_are_started_in_built_in_sandboxes_only() {
        for launcher in Launcher::ALL {
            let is_possible = launcher.exec_gap().is_none();
            assert_eq!(is_possible, launcher.has_built_in_sandbox(), "{launcher}");
        }
    }
}
