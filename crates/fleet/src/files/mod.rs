//! The files of registered workspaces, and their versions.
//!
//! Owns that disk and store agree: what stands on the disk and is not the store's newest version
//! becomes a version before anything is written over it; a write is a version in the store first,
//! with its base held against the newest, and then takes its place on the disk. Whoever is killed in
//! between left a version that never reached the disk: the next look at the file finds what stands
//! there, and makes that the newest. Must not know agents, policies, or how a file is written.
//!
//! `hand.rs` writes for people and plans; an agent's door writes for agents (`channel/files.rs`, `agent.rs`). A
//! lock for each path keeps writers of this process apart. Tests: `tests/drills/fleet/files.rs`.

mod agent;
mod host_access;
mod retention;
mod roots;
mod version_queries;

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

pub(crate) use agent::{AgentFile, AgentWrite, ObservedFile, SessionVersions};

pub use host_access::{FileRead, FileWrite};
#[doc(hidden)]
pub use marshal_sandbox::workspace::host_access::{HostAccessError, Parents};

/// Why a file of a workspace was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// No such workspace.
    #[error("there is no workspace {0:?}: name one of [workspace.NAME]")]
    NoWorkspace(String),
    /// No such file.
    #[error("there is no file {0:?}")]
    NoFile(FilePath),
    /// This supervisor keeps no versions.
    #[error("no versions of files are kept here: only the daemon (`up`) keeps them")]
    NoStore,
    /// It cannot be a file's path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The file decides what may be done, opens the door, or is hidden: nobody gets at it this way.
    #[error(
        "{0:?} is not read or written this way: it has a name that is hidden from agents, belongs to git, or to the supervisor"
    )]
    Protected(FilePath),
    /// Somebody else changed it meanwhile.
    #[error("{0:?} was changed by somebody else while this was done: read it again")]
    Changed(FilePath),
    /// Another registered workspace has it.
    #[error("{path:?} belongs to the workspace {inner}: name it there")]
    Inner {
        /// The file.
        path: FilePath,
        /// That workspace.
        inner: WorkspaceName,
    },
    /// The workspace cannot be opened.
    #[error(transparent)]
    Workspace(#[from] TreeError),
    /// What stands at the path cannot be read or written.
    #[error("{path:?}: {source}")]
    Disk {
        /// The file.
        path: FilePath,
        /// Why.
        source: HostAccessError,
    },
    /// The store says no; also that a base is stale.
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

/// What a file is on the disk, and in the store, which agree.
#[derive(Debug)]
pub(crate) struct SyncedFile {
    pub(crate) found: Option<ExistingFile>,
    /// Its newest version; none if there never was one.
    pub(crate) current: Option<Version>,
    /// The disk had something else than the store: the version that it became.
    pub(crate) observed: Option<Version>,
}

/// A write, ready to be made.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) base: Base,
    pub(crate) bytes: Bytes,
    pub(crate) origin: Origin,
    pub(crate) cause: Cause,
    /// What the file must hold, where only a part of that is changed.
    pub(crate) expected_digest: Option<Digest>,
    /// It is what this earlier version held.
    pub(crate) restores: Option<u64>,
}

/// What stood at a place before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PriorContent {
    /// That, to be looked at again.
    pub(crate) expected: ExpectedContent,
}

/// The files of all registered workspaces.
#[derive(Debug)]
pub(crate) struct WorkspaceFiles {
    store: Option<Store>,
    /// The workspaces' directories, and what of them nobody gets at.
    roots: ActiveRoots,
    /// Where the supervisor keeps what is its own.
    state: PathBuf,
    /// What sessions saw.
    seen_versions: std::sync::Mutex<agent::SeenVersions>,
    /// Names that are hidden from agents: no versions are kept of such files.
    masks: Vec<Masks>,
    locks: Vec<Mutex<()>>,
    ambient: Ambient,
}

impl WorkspaceFiles {
    /// Takes the workspaces of the configuration, and registers them in the store.
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
            seen_versions: std::sync::Mutex::new(agent::SeenVersions::new()),
            locks: (0..FILE_LOCKS).map(|_| Mutex::default()).collect(),
            ambient: ambient.clone(),
        })
    }

    /// From now on the workspaces are those of this configuration, and nobody gets at its files.
    pub(crate) async fn set_config(&self, config: Arc<Config>) -> Result<(), FilesError> {
        let state = self.state.clone();
        let roots = self
            .ambient
            .run_blocking(move || Roots::from_config(config, &state));
        let roots = roots.await.map_err(|_| FilesError::Stopping)?;
        register(self.store.as_ref(), &roots, &self.state).await?;
        self.roots.set(roots);
        Ok(())
    }

    /// The configuration by which they are what they are.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.roots.current().config)
    }

    /// The store, if versions are kept.
    pub(crate) fn store(&self) -> Result<&Store, FilesError> {
        self.store.as_ref().ok_or(FilesError::NoStore)
    }

    /// The file at a path of a registered workspace; a leading slash is the workspace's top.
    pub(crate) fn resolve(
        &self,
        workspace: &WorkspaceName,
        path: &str,
    ) -> Result<FileLocation, FilesError> {
        let roots = self.roots.current();
        let root = roots.all.get(workspace);
        let root = root.ok_or_else(|| FilesError::NoWorkspace(workspace.to_string()))?;
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

    /// Secrets, what git keeps for itself, and files of ours that have no place yet.
    fn is_hidden(&self, path: &FilePath) -> bool {
        let path = path.as_str();
        let is_ours = |name: &str| name == ".git" || name.starts_with(".marshal-");
        path.split('/').any(is_ours) || self.masks.iter().any(|of| of.hides(path.as_bytes()))
    }

    /// The file at a path of this host, if it is one of a registered workspace that has versions.
    pub(crate) fn resolve_host_path(&self, place: &Path) -> Option<FileLocation> {
        let roots = self.roots.current();
        let (name, root) = roots.nearest_workspace(place)?;
        let below = place.strip_prefix(root).ok()?;
        self.resolve(name, below.to_str()?).ok()
    }

    async fn lock(&self, spot: &FileLocation) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        (&spot.id, &spot.path).hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % FILE_LOCKS as u64).unwrap_or(0);
        self.locks[at].lock().await
    }

    /// Looks at a file, and has the store know what stands there.
    pub(crate) async fn sync(&self, spot: &FileLocation) -> Result<SyncedFile, FilesError> {
        self.sync_as(spot, Origin::new(Author::observed())).await
    }

    /// The same for somebody who says in which work.
    pub(crate) async fn sync_as(
        &self,
        spot: &FileLocation,
        origin: Origin,
    ) -> Result<SyncedFile, FilesError> {
        let _alone = self.lock(spot).await;
        self.sync_locked(spot, origin).await
    }

    async fn sync_locked(
        &self,
        spot: &FileLocation,
        origin: Origin,
    ) -> Result<SyncedFile, FilesError> {
        let store = self.store()?;
        let found = self.read_disk(spot).await?;
        let given = found.as_ref().map(to_store_content);
        let observed = store.observe(&spot.id, &spot.path, given, origin).await?;
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
        let which = FileSelector::Path(spot.id.clone(), spot.path.clone());
        match self.store()?.file(which).await {
            Ok(file) => Ok(Some(file.current)),
            Err(StoreError::NoFile(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What stands on the disk.
    async fn read_disk(&self, spot: &FileLocation) -> Result<Option<ExistingFile>, FilesError> {
        let (root, path) = (spot.root.clone(), spot.path.clone());
        let most = STORE_CONTENT_BYTES as u64;
        let read = move || {
            let root = Root::open_resolved(&root)?;
            let found = read(&root, path.as_str(), most, STORE_MEASURED_BYTES);
            found.map_err(|source| FilesError::Disk { path, source })
        };
        let read = self.ambient.run_blocking(read).await;
        read.map_err(|_| FilesError::Stopping)?
    }

    /// Writes a file: its version first, then the disk, by `place`, which is told what must stand
    /// there. If that fails, what stands there instead is the version after.
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
        let _alone = self.lock(spot).await;
        let nobody = || Origin::new(Author::observed());
        let settled = self.sync_locked(spot, nobody()).await?;
        let (version, stood) = self.put_version(spot, &draft, &settled).await?;
        let placed = place(stood, draft.bytes).await;
        if let Err(error) = placed {
            if let Err(why) = self.sync_locked(spot, nobody()).await {
                tracing::warn!(path = ?spot.path, %why, "what became of a write is looked at later");
            }
            return Err(error);
        }
        Ok(version)
    }

    async fn put_version(
        &self,
        spot: &FileLocation,
        draft: &Draft,
        settled: &SyncedFile,
    ) -> Result<(Version, PriorContent), FilesError> {
        let now = settled.found.as_ref().map(digest);
        if draft.expected_digest.is_some() && draft.expected_digest != now {
            return Err(FilesError::Changed(spot.path.clone()));
        }
        let base = match (draft.base, &settled.current) {
            (Base::Any, Some(now)) => Base::At(now.v),
            (Base::Any, None) => Base::New,
            (given, _) => given,
        };
        let content = Content::Whole(draft.bytes.clone());
        let exec = settled.found.as_ref().is_some_and(|found| found.exec);
        let given = FileData { content, exec };
        let (store, origin) = (self.store()?, draft.origin.clone());
        let (id, path) = (&spot.id, &spot.path);
        let put = if let Some(v) = draft.restores {
            store.restore(id, path, v, base, origin).await?
        } else {
            let cause = draft.cause;
            store.put(id, path, base, given, origin, cause).await?
        };
        let stood = PriorContent {
            expected: now.map_or(ExpectedContent::Missing, |digest| {
                ExpectedContent::Digest(digest.0)
            }),
        };
        Ok((put, stood))
    }
}

/// Has the store know the workspaces of a configuration.
async fn register(store: Option<&Store>, roots: &Roots, state: &Path) -> Result<(), StoreError> {
    let Some(store) = store else { return Ok(()) };
    for (name, root) in &roots.all {
        let shared = roots.config.workspaces.get(name);
        let shared = shared.is_some_and(|workspace| workspace.shared);
        claim(store, name, root, (state, shared)).await?;
    }
    Ok(())
}

/// Registers a workspace. In a store that other supervisors may have, too, its name is this one's.
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

/// What agents must not see, by the pools' masks, and by the one that holds where nothing is said.
fn masks(config: &Config) -> Vec<Masks> {
    let usual = DEFAULT_MASK.map(str::to_owned).to_vec();
    let pools = config.pools.iter().map(|pool| pool.workspace.mask.clone());
    let mut all: Vec<Vec<String>> = pools.chain([usual]).collect();
    all.sort_unstable();
    all.dedup();
    // Patterns that are none are found where a pool is prepared.
    all.iter().filter_map(|of| Masks::new(of).ok()).collect()
}

fn digest(found: &ExistingFile) -> Digest {
    match &found.content {
        FileContent::Whole(bytes) => Digest::of(bytes),
        FileContent::Measured { sha256, .. } => Digest(*sha256),
    }
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
