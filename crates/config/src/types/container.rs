//! Which launchers there are beside marshal's own walls, and the container engine that one of them is.

use super::{Launcher, Pool};
use marshal_model::string_enum;

impl Launcher {
    /// Whether a child has a sandbox of this host around it, with a home and a workspace at places
    /// of its own.
    #[must_use]
    pub const fn has_sandbox(self) -> bool {
        matches!(
            self,
            Self::Unshare | Self::Pty | Self::Bwrap | Self::Container
        )
    }

    /// Whether the walls are of this binary's making.
    #[must_use]
    pub const fn has_built_in_sandbox(self) -> bool {
        matches!(self, Self::Unshare | Self::Pty)
    }

    /// Whether a child's programs are those of this host.
    #[must_use]
    pub const fn uses_host_programs(self) -> bool {
        !matches!(self, Self::Container | Self::Ssh)
    }
}

string_enum!(
    /// Whose command line starts containers.
    ContainerEngine {
        /// podman's.
        Podman = "podman",
        /// docker's.
        Docker = "docker",
    }
);

/// `[container]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Whose command line it is.
    pub engine: ContainerEngine,
    /// The runtime that the engine is told to use; `None`: its own choice.
    pub runtime: Option<String>,
    /// The image of pools that name none: `NAME@sha256:…`, `sha256:…` or `localhost/NAME`.
    pub image: Option<String>,
    /// More options before the command, `--NAME=VALUE` each.
    pub global_options: Vec<String>,
    /// More options of `run`.
    pub run_options: Vec<String>,
}

impl Pool {
    /// The image that it runs in, with [`Launcher::Container`].
    #[must_use]
    pub fn container_image<'p>(&'p self, container: &'p Container) -> Option<&'p str> {
        let image = self.image.as_deref().or(container.image.as_deref());
        image.filter(|_| self.launcher == Launcher::Container)
    }
}
