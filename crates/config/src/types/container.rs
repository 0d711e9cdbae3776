//! Properties of the launchers, and the container engine.

use super::{Launcher, Pool};
use marshal_model::string_enum;

impl Launcher {
    /// Whether a child has a sandbox on this host, with its own home and workspace.
    #[must_use]
    pub const fn has_sandbox(self) -> bool {
        matches!(
            self,
            Self::Unshare | Self::Pty | Self::Bwrap | Self::Container
        )
    }

    /// Whether this binary builds the sandbox itself.
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
    /// The engine that starts containers.
    ContainerEngine {
        /// podman.
        Podman = "podman",
        /// docker.
        Docker = "docker",
    }
);

/// `[container]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The engine.
    pub engine: ContainerEngine,
    /// The runtime for the engine; `None` means the engine's default.
    pub runtime: Option<String>,
    /// The image of pools that name none: `NAME@sha256:…`, `sha256:…` or `localhost/NAME`.
    pub image: Option<String>,
    /// More global options, each as `--NAME=VALUE`.
    pub global_options: Vec<String>,
    /// More options of `run`, in the same form.
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
