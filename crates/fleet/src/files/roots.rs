//! The directories of registered workspaces, and the files that nobody gets at by them.
//!
//! Owns that both are of one configuration: whoever reads one again puts the whole in force, and a
//! look begins and ends with what it found. Must not know when that is, nor what a file is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use marshal_config::Config;
use marshal_model::WorkspaceName;

/// One configuration's.
#[derive(Debug)]
pub(super) struct Roots {
    /// The workspaces' directories, their links resolved when it came into force.
    pub(super) all: BTreeMap<WorkspaceName, PathBuf>,
    /// Files and directories that decide, open the door, or are the supervisor's own.
    protected: Vec<PathBuf>,
    /// The configuration itself.
    pub(super) config: Arc<Config>,
}

impl Roots {
    pub(super) fn from_config(config: Arc<Config>, state: &Path) -> Self {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let all = config.workspaces.iter();
        let all = all.map(|(name, workspace)| (name.clone(), real(&workspace.path)));
        let kept = config.trusted_paths().into_iter().map(|of| real(&of.path));
        let kept = kept.chain([real(state)]);
        Self {
            all: all.collect(),
            protected: kept.collect(),
            config,
        }
    }

    /// The registered workspace whose directory is the nearest above a path of this host.
    pub(super) fn nearest_workspace(&self, place: &Path) -> Option<(&WorkspaceName, &PathBuf)> {
        let around = self.all.iter();
        let around = around.filter(|(_, root)| place.starts_with(root));
        // Two names of one directory have one history: the first one's.
        around.rev().max_by_key(|(_, root)| root.as_os_str().len())
    }

    pub(super) fn is_protected(&self, place: &Path) -> bool {
        self.protected.iter().any(|kept| place.starts_with(kept))
    }
}

/// Those in force.
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
