//! The container engine, and the image that a pool runs in.

use super::Pool;
use marshal_model::string_enum;

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
    /// The image that it runs in, if its launcher uses one.
    #[must_use]
    pub fn container_image<'p>(&'p self, container: &'p Container) -> Option<&'p str> {
        let image = self.image.as_deref().or(container.image.as_deref());
        image.filter(|_| self.launcher.uses_image())
    }
}
