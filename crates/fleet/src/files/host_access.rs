//! Reads and writes of files of registered workspaces by the supervisor itself, without an agent:
//! for people over HTTP, and for plans.
//!
//! Must not know the caller or its permissions.

use std::sync::Arc;

use bytes::Bytes;

use super::{Draft, FileLocation, FilesError, PriorContent, WorkspaceFiles, digest};
use crate::FleetHandle;
use marshal_model::WorkspaceName;
use marshal_model::limits::STORE_CONTENT_BYTES;
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::host_access::{
    FileContent, HostAccessError, Parents, remove, rename, write,
};
use marshal_store::{Author, Base, Cause, Digest, Origin, StoreError, Version};

/// The content of a file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRead {
    /// The content.
    pub bytes: Bytes,
    /// The content's SHA-256.
    pub digest: Digest,
}

/// A write of a file.
#[derive(Debug, Clone)]
pub struct FileWrite {
    /// The version on which it is based.
    pub base: Base,
    /// The digest that the file must have now; `None`: not checked.
    pub expected_digest: Option<Digest>,
    /// The new content.
    pub bytes: Bytes,
    /// Its author, turn and task.
    pub origin: Origin,
    /// Whether missing directories are created.
    pub parents: Parents,
}

impl FleetHandle {
    /// Reads a file of a registered workspace from the disk. It does not sync the file with the
    /// store, so that a new version gets the origin of the work that wrote it.
    ///
    /// # Errors
    /// [`FilesError`]
    pub async fn read_file(
        &self,
        workspace: &WorkspaceName,
        path: &str,
    ) -> Result<FileRead, FilesError> {
        let files = &self.0.shared.files;
        let spot = files.resolve(workspace, path)?;
        let file = files
            .read_disk(&spot)
            .await?
            .ok_or_else(|| FilesError::NoFile(spot.path.clone()))?;
        let digest = digest(&file);
        let FileContent::Whole(bytes) = file.content else {
            let source = HostAccessError::TooLarge(STORE_CONTENT_BYTES as u64);
            let path = spot.path;
            return Err(FilesError::Disk { path, source });
        };
        Ok(FileRead {
            bytes: bytes.into(),
            digest,
        })
    }

    /// Writes a file of a registered workspace; returns when the version is durable and the file is
    /// on the disk. The write is finished even if the caller drops the future.
    ///
    /// # Errors
    /// [`FilesError`]; for a stale base [`marshal_store::StoreError::Stale`], which has the newer
    /// version, and for another digest than the expected one [`FilesError::Changed`].
    pub async fn write_file(
        &self,
        workspace: &WorkspaceName,
        path: &str,
        file: FileWrite,
    ) -> Result<Version, FilesError> {
        let spot = self.0.shared.files.resolve(workspace, path)?;
        if file.bytes.len() > STORE_CONTENT_BYTES {
            let source = HostAccessError::TooLarge(STORE_CONTENT_BYTES as u64);
            let path = spot.path;
            return Err(FilesError::Disk { path, source });
        }
        let shared = Arc::clone(&self.0.shared);
        let task = tokio::spawn(async move {
            let files = &shared.files;
            let draft = Draft {
                base: file.base,
                bytes: file.bytes,
                origin: file.origin,
                cause: Cause::Write,
                expected_digest: file.expected_digest,
                restores: None,
            };
            let parents = file.parents;
            files
                .write_version(&spot, draft, |prior, bytes| {
                    files.place_file(&spot, parents, prior, (bytes, None))
                })
                .await
        });
        task.await.map_err(|_| FilesError::Stopping)?
    }
}

impl FleetHandle {
    /// Deletes a file of a registered workspace: first by a version that says so, then on the disk.
    /// It is finished even if the caller drops the future.
    ///
    /// # Errors
    /// [`FilesError`]; for a stale base [`marshal_store::StoreError::Stale`].
    pub async fn delete_file(
        &self,
        workspace: &WorkspaceName,
        path: &str,
        base: Base,
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let spot = self.0.shared.files.resolve(workspace, path)?;
        let shared = Arc::clone(&self.0.shared);
        let task =
            tokio::spawn(async move { shared.files.delete_version(&spot, base, origin).await });
        task.await.map_err(|_| FilesError::Stopping)?
    }
}

impl FleetHandle {
    /// Renames a file of a registered workspace; it keeps its id and its versions. First the version
    /// that says so is durable, then the file is renamed on the disk. It is finished even if the
    /// caller drops the future.
    ///
    /// # Errors
    /// [`FilesError`]; for a stale base [`marshal_store::StoreError::Stale`], and if there is a file
    /// at the new path [`marshal_store::StoreError::Exists`].
    pub async fn move_file(
        &self,
        workspace: &WorkspaceName,
        (from, to): (&str, &str),
        base: Base,
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let files = &self.0.shared.files;
        let (from, to) = (
            files.resolve(workspace, from)?,
            files.resolve(workspace, to)?,
        );
        let shared = Arc::clone(&self.0.shared);
        let task =
            tokio::spawn(
                async move { shared.files.move_version((&from, &to), base, origin).await },
            );
        task.await.map_err(|_| FilesError::Stopping)?
    }
}

impl WorkspaceFiles {
    /// Renames a file. If the disk refuses, the store has it at its old path again.
    pub(super) async fn move_version(
        &self,
        (from, to): (&FileLocation, &FileLocation),
        base: Base,
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let _guards = self.lock_both(from, to).await;
        let observed = || Origin::new(Author::observed());
        let synced = self.sync_locked(from, observed()).await?;
        let (Some(found), Some(current)) = (&synced.found, &synced.current) else {
            return Err(FilesError::NoFile(from.path.clone()));
        };
        if self.sync_locked(to, observed()).await?.found.is_some() {
            return Err(StoreError::Exists(to.path.clone()).into());
        }
        let base = match base {
            Base::Any => Base::At(current.v),
            base => base,
        };
        let (store, Digest(expected)) = (self.store()?, digest(found));
        let moved = store
            .rename(&from.id, &from.path, &to.path, base, origin)
            .await?;
        let (root, path) = (from.root.clone(), from.path.clone());
        let new_path = to.path.clone();
        let work = move || {
            let root = Root::open_resolved(&root)?;
            let renamed = rename(&root, path.as_str(), new_path.as_str(), expected);
            renamed.map_err(|source| FilesError::Disk { path, source })
        };
        let renamed = self
            .ambient
            .run_blocking(work)
            .await
            .map_err(|_| FilesError::Stopping)?;
        if let Err(error) = renamed {
            let back = Base::At(moved.v);
            let undone = store.rename(&from.id, &to.path, &from.path, back, observed());
            if let Err(why) = undone.await {
                tracing::warn!(path = ?from.path, %why, "a file was not renamed, but its versions were: the next access stores its content");
            }
            return Err(error);
        }
        Ok(moved)
    }

    /// Deletes a file. If it cannot be removed from the disk, its content becomes the next version.
    async fn delete_version(
        &self,
        spot: &FileLocation,
        base: Base,
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let _guard = self.lock(spot).await;
        let observed = || Origin::new(Author::observed());
        let synced = self.sync_locked(spot, observed()).await?;
        let (Some(found), Some(current)) = (&synced.found, &synced.current) else {
            return Err(FilesError::NoFile(spot.path.clone()));
        };
        let base = match base {
            Base::Any => Base::At(current.v),
            base => base,
        };
        let Digest(expected) = digest(found);
        let deleted = self
            .store()?
            .delete(&spot.id, &spot.path, base, origin)
            .await?;
        let (root, path) = (spot.root.clone(), spot.path.clone());
        let work = move || {
            let root = Root::open_resolved(&root)?;
            let removed = remove(&root, path.as_str(), expected);
            removed.map_err(|source| FilesError::Disk { path, source })
        };
        let removed = self
            .ambient
            .run_blocking(work)
            .await
            .map_err(|_| FilesError::Stopping)?;
        if let Err(error) = removed {
            if let Err(why) = self.sync_locked(spot, observed()).await {
                tracing::warn!(path = ?spot.path, %why, "a file was not deleted, and cannot be read now: the next access stores its content");
            }
            return Err(error);
        }
        Ok(deleted)
    }

    pub(super) async fn place_file(
        &self,
        spot: &FileLocation,
        parents: Parents,
        PriorContent { expected }: PriorContent,
        (bytes, exec): (Bytes, Option<bool>),
    ) -> Result<(), FilesError> {
        let (root, path) = (spot.root.clone(), spot.path.clone());
        let work = move || {
            let root = Root::open_resolved(&root)?;
            let result = write(&root, path.as_str(), &bytes, expected, parents, exec);
            result.map_err(|source| FilesError::Disk { path, source })
        };
        let result = self.ambient.run_blocking(work).await;
        result.map_err(|_| FilesError::Stopping)?
    }
}
