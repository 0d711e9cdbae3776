//! A file of a registered workspace, read and written by the supervisor itself, with no agent
//! involved: for people over HTTP, for plans.
//!
//! Must not know who asks, nor whether they may.

use std::sync::Arc;

use bytes::Bytes;

use super::{Draft, FileLocation, FilesError, PriorContent, WorkspaceFiles, digest};
use crate::FleetHandle;
use marshal_model::WorkspaceName;
use marshal_model::limits::STORE_CONTENT_BYTES;
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::host_access::{FileContent, HostAccessError, Parents, write};
use marshal_store::{Base, Cause, Digest, Origin, Version};

/// A file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRead {
    /// What is in it.
    pub bytes: Bytes,
    /// Its SHA-256.
    pub digest: Digest,
}

/// A file to be written.
#[derive(Debug, Clone)]
pub struct FileWrite {
    /// From which version it was made.
    pub base: Base,
    /// What the file must hold now, where it was made from what stood there.
    pub expected_digest: Option<Digest>,
    /// What is to be in it.
    pub bytes: Bytes,
    /// By whom, in which work.
    pub origin: Origin,
    /// What becomes of missing directories.
    pub parents: Parents,
}

impl FleetHandle {
    /// Reads a file of a registered workspace as it stands there. What of it the store does not know
    /// is left to those in whose work it was written: they say whose it is.
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
        let found = files.read_disk(&spot).await?;
        let found = found.ok_or_else(|| FilesError::NoFile(spot.path.clone()))?;
        let digest = digest(&found);
        let FileContent::Whole(bytes) = found.content else {
            let source = HostAccessError::TooLarge(STORE_CONTENT_BYTES as u64);
            let path = spot.path;
            return Err(FilesError::Disk { path, source });
        };
        Ok(FileRead {
            bytes: bytes.into(),
            digest,
        })
    }

    /// Writes a file of a registered workspace; returns when the version is durable and the file on
    /// the disk. A caller that does not wait for it leaves it to be finished.
    ///
    /// # Errors
    /// [`FilesError`]; of a stale base it is [`marshal_store::StoreError::Stale`], which has the newer
    /// version, and of a file that holds something else [`FilesError::PhaseChanged`].
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
        let written = tokio::spawn(async move {
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
                .write_version(&spot, draft, |stood, bytes| {
                    files.place_file(&spot, parents, stood, (bytes, None))
                })
                .await
        });
        written.await.map_err(|_| FilesError::Stopping)?
    }
}

impl WorkspaceFiles {
    pub(super) async fn place_file(
        &self,
        spot: &FileLocation,
        parents: Parents,
        PriorContent { expected }: PriorContent,
        (bytes, exec): (Bytes, Option<bool>),
    ) -> Result<(), FilesError> {
        let (root, path) = (spot.root.clone(), spot.path.clone());
        let placed = move || {
            let root = Root::open_resolved(&root)?;
            let done = write(&root, path.as_str(), &bytes, expected, parents, exec);
            done.map_err(|source| FilesError::Disk { path, source })
        };
        let placed = self.ambient.run_blocking(placed).await;
        placed.map_err(|_| FilesError::Stopping)?
    }
}
