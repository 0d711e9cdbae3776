//! The files of registered workspaces, and their versions.
//!
//! Owns that disk and store agree. Content on the disk that is not the store's newest version
//! becomes a version before it is overwritten. A write first becomes a version in the store, after
//! its base was compared with the newest version, and then goes to the disk. A kill in between
//! leaves a version that never reached the disk; the next sync of the file stores the disk's
//! content as the newest version. Must not know agents, policies, or how a file is written.
//!
//! `host_access.rs` writes for people and plans; `channel/files.rs` and `agent.rs` write for
//! agents. A lock for each path serializes the writers of this process. Tests:
//! `tests/drills/fleet/files.rs`.

mod agent;
mod host_access;
mod observe;
mod retention;
mod roots;
mod version_queries;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard};

use super::ambient::Ambient;
use marshal_config::{Config, DEFAULT_MASK};
use marshal_model::WorkspaceName;
use marshal_model::limits::{FILE_LOCKS, STORE_CONTENT_BYTES, STORE_MEASURED_BYTES};
use marshal_sandbox::workspace::host_access::{ExistingFile, ExpectedContent, FileContent, read};
use marshal_sandbox::workspace::{Masks, Root, TreeError};
use marshal_store::{
    Author, Base, Cause, Claim, Content, Digest, FileData, FilePath, FileSelector, NameError,
    Origin, Store, StoreError, Version, WorkspaceId, load_owner_id,
};

use roots::{ActiveRoots, Roots};

pub(crate) use agent::{AgentFile, AgentWrite, SessionVersions};
pub(crate) use observe::{MovedPath, ObservedFile, ObservedTree, observed_by};

pub use host_access::{FileRead, FileWrite};
#[doc(hidden)]
pub use marshal_sandbox::workspace::host_access::{HostAccessError, Parents};

/// Why a file of a workspace was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// No registered workspace has this name.
    #[error("there is no workspace {0:?}: name one that has a [workspace.NAME] table")]
    NoWorkspace(String),
    /// The workspace has no such file.
    #[error("there is no file {0:?}")]
    NoFile(FilePath),
    /// This supervisor stores no versions.
    #[error("this supervisor stores no versions of files: only the daemon (`marshal up`) does")]
    NoStore,
    /// The path is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The file is hidden from agents, belongs to git, is a credential, or decides what agents may
    /// do.
    #[error(
        "{0:?} cannot be read or written through a workspace: it is hidden from agents, or belongs to git or to the supervisor"
    )]
    Protected(FilePath),
    /// The file changed after the caller read it.
    #[error("{0:?} was changed by another writer in the meantime: read it again")]
    Changed(FilePath),
    /// The file belongs to a registered workspace inside this one.
    #[error("{path:?} belongs to the workspace {inner}: use its path in that workspace")]
    Inner {
        /// The file's path in the outer workspace.
        path: FilePath,
        /// The inner workspace.
        inner: WorkspaceName,
    },
    /// The workspace cannot be opened.
    #[error(transparent)]
    Workspace(#[from] TreeError),
    /// The file on the disk cannot be read or written.
    #[error("{path:?}: {source}")]
    Disk {
        /// The file's path.
        path: FilePath,
        /// The cause.
        source: HostAccessError,
    },
    /// The store refused, for example because the base is stale.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The supervisor is ending.
    #[error("the supervisor is ending")]
    Stopping,
}

/// A file of a registered workspace.
#[derive(Debug, Clone)]
pub(crate) struct FileLocation {
    root: PathBuf,
    id: WorkspaceId,
    path: FilePath,
}

/// A file after a sync: its content on the disk, and the store's version of it.
#[derive(Debug)]
pub(crate) struct SyncedFile {
    pub(crate) found: Option<ExistingFile>,
    /// Its newest version; `None` if it never had one.
    pub(crate) current: Option<Version>,
    /// The new version, if the disk's content was not the store's newest version.
    pub(crate) observed: Option<Version>,
}

/// A prepared write.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) base: Base,
    pub(crate) bytes: Bytes,
    pub(crate) origin: Origin,
    pub(crate) cause: Cause,
    /// The digest that the file must have now, if only a part of it is changed.
    pub(crate) expected_digest: Option<Digest>,
    /// The earlier version that it restores.
    pub(crate) restores: Option<u64>,
}

/// The content of a file on the disk before a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PriorContent {
    /// The expected content; the writer checks it again just before the write.
    pub(crate) expected: ExpectedContent,
}

/// The files of all registered workspaces.
#[derive(Debug)]
pub(crate) struct WorkspaceFiles {
    store: Option<Store>,
    /// The workspaces' directories, and their protected files.
    roots: ActiveRoots,
    /// The supervisor's state directory.
    state: PathBuf,
    /// The versions that sessions saw last.
    seen_versions: std::sync::Mutex<agent::SeenVersions>,
    /// Name patterns that are hidden from agents; such files have no versions.
    masks: Vec<Masks>,
    /// The directories that agents write now.
    observed: observe::ObservedRoots,
    locks: Vec<Mutex<()>>,
    ambient: Ambient,
}

impl WorkspaceFiles {
    /// Registers the workspaces of the configuration in the store.
    pub(crate) async fn start(
        store: Option<Store>,
        config: &Arc<Config>,
        state: &Path,
        ambient: &Ambient,
    ) -> Result<Self, StoreError> {
        let roots = Roots::from_config(Arc::clone(config), state);
        register(store.as_ref(), &roots, state).await?;
        Ok(Self {
            store,
            roots: ActiveRoots::new(roots),
            state: state.to_owned(),
            masks: masks(config),
            observed: observe::ObservedRoots::default(),
            seen_versions: std::sync::Mutex::new(agent::SeenVersions::new()),
            locks: (0..FILE_LOCKS).map(|_| Mutex::default()).collect(),
            ambient: ambient.clone(),
        })
    }

    /// Replaces the workspaces and protected files by those of this configuration.
    pub(crate) async fn set_config(&self, config: Arc<Config>) -> Result<(), FilesError> {
        let state = self.state.clone();
        let roots = self
            .ambient
            .run_blocking(move || Roots::from_config(config, &state))
            .await
            .map_err(|_| FilesError::Stopping)?;
        register(self.store.as_ref(), &roots, &self.state).await?;
        self.roots.set(roots);
        Ok(())
    }

    /// The configuration of the workspaces in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.roots.current().config)
    }

    /// The store, if versions are stored.
    pub(crate) fn store(&self) -> Result<&Store, FilesError> {
        self.store.as_ref().ok_or(FilesError::NoStore)
    }

    /// The file at a path of a registered workspace; a leading slash means the workspace's root.
    pub(crate) fn resolve(
        &self,
        workspace: &WorkspaceName,
        path: &str,
    ) -> Result<FileLocation, FilesError> {
        let roots = self.roots.current();
        let root = roots
            .all
            .get(workspace)
            .ok_or_else(|| FilesError::NoWorkspace(workspace.to_string()))?;
        let path = FilePath::new(path.strip_prefix('/').unwrap_or(path))?;
        let place = root.join(path.as_str());
        let (inner, nearest) = roots.nearest_workspace(&place).unwrap_or((workspace, root));
        if nearest != root {
            let inner = inner.clone();
            return Err(FilesError::Inner { path, inner });
        }
        if roots.is_protected(&place) || self.is_hidden(&path) {
            return Err(FilesError::Protected(path));
        }
        Ok(FileLocation {
            root: root.clone(),
            id: WorkspaceId::new(inner.as_str())?,
            path,
        })
    }

    /// Whether a path is masked, in a `.git` directory, or a temporary file of marshal's.
    fn is_hidden(&self, path: &FilePath) -> bool {
        let path = path.as_str();
        let is_ours = |name: &str| name == ".git" || name.starts_with(".marshal-");
        path.split('/').any(is_ours) || self.masks.iter().any(|mask| mask.hides(path.as_bytes()))
    }

    /// The file at a host path, if it belongs to a registered workspace and can have versions.
    pub(crate) fn resolve_host_path(&self, place: &Path) -> Option<FileLocation> {
        let roots = self.roots.current();
        let (name, root) = roots.nearest_workspace(place)?;
        let below = place.strip_prefix(root).ok()?;
        self.resolve(name, below.to_str()?).ok()
    }

    async fn lock(&self, spot: &FileLocation) -> MutexGuard<'_, ()> {
        self.locks[lock_index(spot)].lock().await
    }

    /// Locks two files, in a fixed order.
    async fn lock_both(&self, one: &FileLocation, other: &FileLocation) -> Vec<MutexGuard<'_, ()>> {
        let mut guards = Vec::new();
        for at in BTreeSet::from([lock_index(one), lock_index(other)]) {
            guards.push(self.locks[at].lock().await);
        }
        guards
    }

    /// Reads a file from the disk, and stores its content as a version if it is not the newest one.
    pub(crate) async fn sync(&self, spot: &FileLocation) -> Result<SyncedFile, FilesError> {
        self.sync_as(spot, Origin::new(Author::observed())).await
    }

    /// Like [`Self::sync`], with an origin for a new version.
    pub(crate) async fn sync_as(
        &self,
        spot: &FileLocation,
        origin: Origin,
    ) -> Result<SyncedFile, FilesError> {
        let _guard = self.lock(spot).await;
        self.sync_locked(spot, origin).await
    }

    async fn sync_locked(
        &self,
        spot: &FileLocation,
        origin: Origin,
    ) -> Result<SyncedFile, FilesError> {
        let store = self.store()?;
        let found = self.read_disk(spot).await?;
        let content = found.as_ref().map(to_store_content);
        let observed = store.observe(&spot.id, &spot.path, content, origin).await?;
        let current = match &observed {
            Some(version) => Some(version.clone()),
            None => self.current_version(spot).await?,
        };
        Ok(SyncedFile {
            found,
            current,
            observed,
        })
    }

    async fn current_version(&self, spot: &FileLocation) -> Result<Option<Version>, FilesError> {
        let selector = FileSelector::Path(spot.id.clone(), spot.path.clone());
        match self.store()?.file(selector).await {
            Ok(file) => Ok(Some(file.current)),
            Err(StoreError::NoFile(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The file's content on the disk; `None` if it does not exist.
    async fn read_disk(&self, spot: &FileLocation) -> Result<Option<ExistingFile>, FilesError> {
        let (root, path) = (spot.root.clone(), spot.path.clone());
        let limit = STORE_CONTENT_BYTES as u64;
        let read = move || {
            let root = Root::open_resolved(&root)?;
            let file = read(&root, path.as_str(), limit, STORE_MEASURED_BYTES);
            file.map_err(|source| FilesError::Disk { path, source })
        };
        let read = self.ambient.run_blocking(read).await;
        read.map_err(|_| FilesError::Stopping)?
    }

    /// Writes a file: first its version in the store, then the disk by `place`, which gets the
    /// expected content. If `place` fails, the content on the disk becomes the next version.
    pub(crate) async fn write_version<E, F>(
        &self,
        spot: &FileLocation,
        draft: Draft,
        place: impl FnOnce(PriorContent, Bytes) -> F,
    ) -> Result<Version, E>
    where
        E: From<FilesError>,
        F: Future<Output = Result<(), E>>,
    {
        let _guard = self.lock(spot).await;
        let observed = || Origin::new(Author::observed());
        let synced = self.sync_locked(spot, observed()).await?;
        let (version, prior) = self.put_version(spot, &draft, &synced).await?;
        let result = place(prior, draft.bytes).await;
        if let Err(error) = result {
            if let Err(why) = self.sync_locked(spot, observed()).await {
                tracing::warn!(path = ?spot.path, %why, "a write failed, and its file cannot be read now: the next access stores its content");
            }
            return Err(error);
        }
        Ok(version)
    }

    async fn put_version(
        &self,
        spot: &FileLocation,
        draft: &Draft,
        synced: &SyncedFile,
    ) -> Result<(Version, PriorContent), FilesError> {
        let now = synced.found.as_ref().map(digest);
        if draft.expected_digest.is_some() && draft.expected_digest != now {
            return Err(FilesError::Changed(spot.path.clone()));
        }
        let base = match (draft.base, &synced.current) {
            (Base::Any, Some(now)) => Base::At(now.v),
            (Base::Any, None) => Base::New,
            (base, _) => base,
        };
        let content = Content::Whole(draft.bytes.clone());
        let exec = synced.found.as_ref().is_some_and(|found| found.exec);
        let data = FileData { content, exec };
        let (store, origin) = (self.store()?, draft.origin.clone());
        let (id, path) = (&spot.id, &spot.path);
        let version = if let Some(v) = draft.restores {
            store.restore(id, path, v, base, origin).await?
        } else {
            let cause = draft.cause;
            store.put(id, path, base, data, origin, cause).await?
        };
        let prior = PriorContent {
            expected: now.map_or(ExpectedContent::Missing, |digest| {
                ExpectedContent::Digest(digest.0)
            }),
        };
        Ok((version, prior))
    }
}

fn lock_index(spot: &FileLocation) -> usize {
    let mut hasher = DefaultHasher::new();
    (&spot.id, &spot.path).hash(&mut hasher);
    usize::try_from(hasher.finish() % FILE_LOCKS as u64).unwrap_or(0)
}

/// Registers the workspaces of a configuration in the store.
async fn register(store: Option<&Store>, roots: &Roots, state: &Path) -> Result<(), StoreError> {
    let Some(store) = store else { return Ok(()) };
    for (name, root) in &roots.all {
        let shared = roots
            .config
            .workspaces
            .get(name)
            .is_some_and(|workspace| workspace.shared);
        claim(store, name, root, (state, shared)).await?;
    }
    Ok(())
}

/// Registers a workspace. In a store that several supervisors share, it also claims the name.
async fn claim(
    store: &Store,
    name: &WorkspaceName,
    root: &Path,
    (state, shared): (&Path, bool),
) -> Result<(), StoreError> {
    let id = WorkspaceId::new(name.as_str())?;
    if !store.is_shared() {
        return store.register(&id).await;
    }
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let claim = Claim {
        owner: load_owner_id(state)?,
        directory: format!("{host}:{}", root.display()),
        shared,
    };
    store.claim(&id, claim).await
}

/// The masks of all pools and the default mask.
fn masks(config: &Config) -> Vec<Masks> {
    let usual = DEFAULT_MASK.map(str::to_owned).to_vec();
    let pools = config.pools.iter().map(|pool| pool.workspace.mask.clone());
    let mut all: Vec<Vec<String>> = pools.chain([usual]).collect();
    all.sort_unstable();
    all.dedup();
    // Invalid patterns are skipped here; they are reported when a pool is prepared.
    all.iter()
        .filter_map(|mask| Masks::new(mask).ok())
        .collect()
}

fn digest(found: &ExistingFile) -> Digest {
    Digest(found.content.sha256())
}

fn to_store_content(found: &ExistingFile) -> FileData {
    let content = match &found.content {
        FileContent::Whole(bytes) => Content::Whole(Bytes::copy_from_slice(bytes)),
        FileContent::Measured { sha256, bytes } => Content::DigestOnly {
            digest: Digest(*sha256),
            bytes: *bytes,
        },
    };
    FileData {
        content,
        exec: found.exec,
    }
}

#[cfg(test)]
mod tests;
