//! Files that were written without the supervisor: what changed in a tree becomes versions, where
//! versions are stored, or else only digests.
//!
//! Owns who is the author: the session that works in the tree, if no other one does at the same
//! time. A file that was moved stays the same file. Must not know how changes are found.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::agent::to_file_version;
use super::{FileLocation, FilesError, SessionVersions, WorkspaceFiles};
use crate::setup::Shared;
use marshal_model::limits::{OBSERVE_TIMEOUT, OBSERVED_FILES, STORE_PAGE};
use marshal_model::{FileVersion, SessionId, TaskId};
use marshal_sandbox::workspace::host_access::measure;
use marshal_sandbox::workspace::{Root, TreeChanges};
use marshal_store::{
    Author, AuthorKind, Base, ContentState, Digest, FilePath, Origin, StoreError, Version,
};

/// A file whose content was not known.
#[derive(Debug)]
pub(crate) struct ObservedFile {
    /// Its path below the session's workspace.
    pub(crate) relative_path: String,
    /// SHA-256 of its content; `None` if it is deleted.
    pub(crate) sha256: Option<String>,
    /// The version that was created for it, where versions are stored.
    pub(crate) version: Option<FileVersion>,
}

/// A file or directory that got another name.
#[derive(Debug)]
pub(crate) struct MovedPath {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) is_dir: bool,
}

/// The trees that agents write now, by their host paths.
#[derive(Debug, Default)]
pub(super) struct ObservedRoots(Mutex<Vec<PathBuf>>);

impl ObservedRoots {
    fn add(&self, root: &Path) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(root.to_owned());
    }

    fn remove(&self, root: &Path) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|other| other == root) {
            all.swap_remove(at);
        }
    }

    /// Whether only one agent writes files of this tree.
    fn is_alone(&self, root: &Path) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shares = |other: &&PathBuf| other.starts_with(root) || root.starts_with(other);
        all.iter().filter(shares).count() <= 1
    }
}

/// A tree that a session's agent writes. While it exists, another session's changes of the same
/// tree have no known author.
#[derive(Debug)]
pub(crate) struct ObservedTree {
    shared: Arc<Shared>,
    /// The workspace on the host, or the upper layer of its overlay.
    host: PathBuf,
    versions: Option<SessionVersions>,
    task: TaskId,
}

impl Drop for ObservedTree {
    fn drop(&mut self) {
        self.shared.files.observed.remove(&self.host);
    }
}

impl ObservedTree {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        host: PathBuf,
        versions: Option<SessionVersions>,
        task: &TaskId,
    ) -> Self {
        shared.files.observed.add(&host);
        Self {
            shared: Arc::clone(shared),
            host,
            versions,
            task: task.clone(),
        }
    }

    /// Whether it is observed for this task.
    pub(crate) fn belongs_to(&self, task: &TaskId) -> bool {
        self.task == *task
    }

    /// Reads what changed.
    pub(crate) async fn observe(&self, changes: TreeChanges) -> Vec<ObservedFile> {
        let moves = changes.moves.into_iter().filter_map(|item| {
            Some(MovedPath {
                from: String::from_utf8(item.from).ok()?,
                to: String::from_utf8(item.to).ok()?,
                is_dir: item.is_dir,
            })
        });
        let moves: Vec<_> = moves.collect();
        let moved = moves
            .iter()
            .flat_map(|item| [&item.from, &item.to])
            .map(|path| (path.clone(), false));
        // A name that is not UTF-8 has no version, and no text that would name only this file.
        let files = changes
            .files
            .into_iter()
            .filter_map(|(path, new)| Some((String::from_utf8(path).ok()?, new)));
        let has_versions = |path: &str| {
            let versions = self.versions.as_ref();
            versions.is_some_and(|versions| versions.file(path, &self.task).is_some())
        };
        let (known, others): (Vec<_>, Vec<_>) =
            files.chain(moved).partition(|(path, _)| has_versions(path));
        let mut observed = Vec::new();
        if let Some(versions) = &self.versions {
            let known = known.into_iter().map(|(path, _)| path).collect();
            let author = self.author(versions.session());
            observed = versions.observe((moves, known), &self.task, author).await;
        }
        for (path, is_new) in others {
            observed.extend(self.measure(path, is_new).await);
        }
        observed
    }

    /// The author of what is found in it now.
    pub(crate) fn author(&self, session: &SessionId) -> Author {
        if self.shared.files.observed.is_alone(&self.host) {
            observed_by(session)
        } else {
            Author::observed()
        }
    }

    /// The digest of a file without versions. A new file that is gone again is nothing.
    async fn measure(&self, path: String, is_new: bool) -> Option<ObservedFile> {
        let files = &self.shared.files;
        let known = FilePath::new(&path).ok()?;
        if known.as_str() != path || files.is_hidden(&known) {
            return None;
        }
        // A tree of the session's own lies in the state directory, which is protected as a whole.
        let is_own = self.host.starts_with(&files.state);
        if !is_own && files.roots.current().is_protected(&self.host.join(&path)) {
            return None;
        }
        let (host, below) = (self.host.clone(), path.clone());
        let work = move || measure(&Root::open_resolved(&host).ok()?, &below).ok();
        let found = self.shared.ambient.run_blocking(work).await.ok()??;
        if found.is_none() && is_new {
            return None;
        }
        Some(ObservedFile {
            relative_path: path,
            sha256: found.map(|digest| Digest(digest).to_string()),
            version: None,
        })
    }
}

/// The author of changes that were found while a session worked.
pub(crate) fn observed_by(session: &SessionId) -> Author {
    Author::new(AuthorKind::Observed, session.as_str())
}

impl SessionVersions {
    /// Syncs files of the session's workspace that a task may have changed without the supervisor,
    /// and returns the new versions. Stops after [`OBSERVE_TIMEOUT`]; the remaining files are
    /// synced at their next access.
    pub(crate) async fn observe(
        &self,
        (moves, files): (Vec<MovedPath>, Vec<String>),
        task: &TaskId,
        author: Author,
    ) -> Vec<ObservedFile> {
        let mut observed = Vec::new();
        let all = async {
            let moved = async {
                for item in moves {
                    self.observe_move(item, task, &author, &mut observed)
                        .await?;
                }
                for path in files {
                    self.observe_file(path, task, &author, &mut observed)
                        .await?;
                }
                Ok::<_, FilesError>(())
            };
            if let Err(error) = moved.await {
                tracing::warn!(%error, "files that an agent wrote cannot be synced now: the next access stores their versions");
            }
        };
        if tokio::time::timeout(OBSERVE_TIMEOUT, all).await.is_err() {
            tracing::info!(session = %self.session(), "not all files that an agent wrote were synced in time: the next access stores their versions");
        }
        observed
    }

    async fn observe_file(
        &self,
        relative_path: String,
        task: &TaskId,
        author: &Author,
        observed: &mut Vec<ObservedFile>,
    ) -> Result<(), FilesError> {
        let Some(file) = self.file(&relative_path, task) else {
            return Ok(());
        };
        let synced = self
            .files()
            .sync_as(file.location(), origin(author, task))
            .await;
        match synced {
            Ok(synced) => observed.extend(
                synced
                    .observed
                    .map(|version| to_observed(relative_path, file.location(), &version)),
            ),
            // Not a regular file, or too large.
            Err(FilesError::Disk { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The files of a move keep their versions, if the new place is free.
    async fn observe_move(
        &self,
        item: MovedPath,
        task: &TaskId,
        author: &Author,
        observed: &mut Vec<ObservedFile>,
    ) -> Result<(), FilesError> {
        let (Some(from), Some(to)) = (self.file(&item.from, task), self.file(&item.to, task))
        else {
            return Ok(());
        };
        let (from, to) = (from.location(), to.location());
        if from.id != to.id {
            return Ok(());
        }
        let names = if item.is_dir {
            self.files().names_below(from).await?
        } else {
            vec![String::new()]
        };
        for name in names {
            let (from, to) = (from.join(&name)?, to.join(&name)?);
            let origin = origin(author, task);
            if let Some(version) = self.files().observe_rename(&from, &to, origin).await? {
                let mut file = to_observed(format!("{}{name}", item.to), &to, &version);
                if let Some(version) = &mut file.version {
                    version.moved_from = Some(from.path.as_str().into());
                }
                observed.push(file);
            }
        }
        Ok(())
    }
}

fn origin(author: &Author, task: &TaskId) -> Origin {
    Origin {
        author: author.clone(),
        turn: None,
        task: (!author.name.is_empty()).then(|| task.as_str().to_owned()),
    }
}

fn to_observed(relative_path: String, at: &FileLocation, version: &Version) -> ObservedFile {
    ObservedFile {
        relative_path,
        sha256: version.digest.map(|digest| digest.to_string()),
        version: Some(to_file_version(at, version)),
    }
}

impl FileLocation {
    /// The file with this text after its path.
    fn join(&self, rest: &str) -> Result<Self, FilesError> {
        Ok(Self {
            path: FilePath::new(format!("{}{rest}", self.path.as_str()))?,
            ..self.clone()
        })
    }
}

impl WorkspaceFiles {
    /// What follows a directory's path in the paths of the stored files below it, at most
    /// [`OBSERVED_FILES`].
    async fn names_below(&self, dir: &FileLocation) -> Result<Vec<String>, FilesError> {
        let (store, prefix) = (self.store()?, format!("{}/", dir.path.as_str()));
        let (mut names, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = store
                .list(&dir.id, &prefix, after.as_deref(), STORE_PAGE)
                .await?;
            names.extend(page.rows.iter().filter_map(|file| {
                let path = file.current.path.as_str();
                path.strip_prefix(dir.path.as_str()).map(str::to_owned)
            }));
            after = page.next;
            if after.is_none() || names.len() >= OBSERVED_FILES {
                return Ok(names);
            }
        }
    }

    /// A file was moved on the disk. `None` if it is there again, if it has no versions, or if
    /// there was another file at the new place, which then has new content.
    pub(super) async fn observe_rename(
        &self,
        from: &FileLocation,
        to: &FileLocation,
        origin: Origin,
    ) -> Result<Option<Version>, FilesError> {
        let _guards = self.lock_both(from, to).await;
        match self.read_disk(from).await {
            Ok(None) => {}
            Ok(Some(_)) | Err(FilesError::Disk { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        let known = self.current_version(from).await?;
        let Some(known) = known.filter(|known| known.content_state != ContentState::Deleted) else {
            return Ok(None);
        };
        let store = self.store()?;
        let base = Base::At(known.v);
        let renamed = store.rename(&from.id, &from.path, &to.path, base, origin);
        match renamed.await {
            Ok(version) => Ok(Some(version)),
            // Another supervisor was faster.
            Err(StoreError::Exists(_) | StoreError::Stale { .. } | StoreError::NoFile(_)) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
