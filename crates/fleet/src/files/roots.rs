//! The directories of registered workspaces, and the protected files that they do not give access
//! to.
//!
//! Owns that both come from one configuration: a reload replaces both together, and a lookup uses
//! one snapshot. Must not know when a reload happens, nor what a file is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use marshal_config::Config;
use marshal_model::WorkspaceName;

/// The workspaces and protected files of one configuration.
#[derive(Debug)]
pub(super) struct Roots {
    /// The workspaces' directories, with their links resolved when the configuration came into
    /// force.
    pub(super) all: BTreeMap<WorkspaceName, PathBuf>,
    /// Policies, credentials, and files and directories of the supervisor itself.
    protected: Vec<PathBuf>,
    /// The configuration itself.
    pub(super) config: Arc<Config>,
}

impl Roots {
    pub(super) fn from_config(config: Arc<Config>, state: &Path) -> Self {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let all = config
            .workspaces
            .iter()
            .map(|(name, workspace)| (name.clone(), real(&workspace.workspace.path)));
        let protected = config
            .trusted_paths()
            .into_iter()
            .map(|trusted| real(&trusted.path))
            .chain([real(state)]);
        Self {
            all: all.collect(),
            protected: protected.collect(),
            config,
        }
    }

    /// The registered workspace whose directory is the nearest one above a host path.
    pub(super) fn nearest_workspace(&self, place: &Path) -> Option<(&WorkspaceName, &PathBuf)> {
        let around = self.all.iter().filter(|(_, root)| place.starts_with(root));
        // Two workspaces with one directory share one history: that of the first name.
        around.rev().max_by_key(|(_, root)| root.as_os_str().len())
    }

    pub(super) fn is_protected(&self, place: &Path) -> bool {
        self.protected.iter().any(|path| place.starts_with(path))
    }
}

/// The roots in force.
#[derive(Debug)]
pub(super) struct ActiveRoots(RwLock<Arc<Roots>>);

impl ActiveRoots {
    pub(super) fn new(roots: Roots) -> Self {
        Self(RwLock::new(Arc::new(roots)))
    }

    pub(super) fn current(&self) -> Arc<Roots> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, roots: Roots) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(roots);
    }
}
