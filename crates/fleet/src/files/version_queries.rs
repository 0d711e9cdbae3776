//! Queries for people on the versions of files in registered workspaces: only stored files, and
//! none with a hidden name.
//!
//! Must not know the caller or its permissions.

use std::sync::Arc;

use super::{Draft, FileLocation, FilesError, Parents, WorkspaceFiles};
use crate::FleetHandle;
use marshal_config::Config;
use marshal_model::WorkspaceName;
use marshal_store::{
    Base, Cause, ContentState, Diff, FetchedVersion, File, FileId, FileSelector, Origin, Page,
    StoreError, Version,
};

impl FleetHandle {
    /// Replaces the registered workspaces, and the files that are protected in them and in a task's
    /// own workspace, by those of this configuration.
    ///
    /// # Errors
    /// [`FilesError`]; nothing was changed.
    pub async fn set_workspace_config(&self, config: Config) -> Result<(), FilesError> {
        self.0.shared.files.set_config(Arc::new(config)).await
    }

    /// The names of the registered workspaces, sorted.
    #[must_use]
    pub fn workspaces(&self) -> Vec<WorkspaceName> {
        self.0
            .shared
            .files
            .roots
            .current()
            .all
            .keys()
            .cloned()
            .collect()
    }

    /// Files of a workspace, sorted by path: those that begin with `prefix`, after the path
    /// `after`. Files that are hidden now are left out, so a page may be shorter than its limit.
    ///
    /// # Errors
    /// [`FilesError`]
    pub async fn list_files(
        &self,
        workspace: &WorkspaceName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<File, String>, FilesError> {
        let files = &self.0.shared.files;
        // Any valid path yields the workspace's id.
        let id = files.resolve(workspace, "a")?.id;
        let mut page = files.store()?.list(&id, prefix, after, limit).await?;
        page.rows
            .retain(|file| files.resolve(workspace, file.current.path.as_str()).is_ok());
        Ok(page)
    }

    /// A version of a file with its content. `v` of `None` is the newest one, after a sync with the
    /// disk.
    ///
    /// # Errors
    /// [`FilesError`]
    pub async fn file_version(
        &self,
        workspace: &WorkspaceName,
        path: &str,
        v: Option<u64>,
    ) -> Result<FetchedVersion, FilesError> {
        let files = &self.0.shared.files;
        let spot = files.resolve_known(workspace, path).await?;
        if v.is_none() {
            match files.sync(&spot).await {
                // The path is no regular file now: the newest stored version is returned.
                Ok(_) | Err(FilesError::Disk { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files.store()?.get(spot.selector(), v).await?)
    }

    /// The file with this id, wherever it is now, after a sync with the disk.
    ///
    /// # Errors
    /// [`FilesError`]; [`FilesError::Store`] with [`StoreError::NoFile`] also if it belongs to another
    /// workspace.
    pub async fn file_by_id(
        &self,
        workspace: &WorkspaceName,
        id: FileId,
    ) -> Result<File, FilesError> {
        let files = &self.0.shared.files;
        let selector = FileSelector::Id(id);
        let file = files.store()?.file(selector.clone()).await?;
        let spot = files.resolve(workspace, file.current.path.as_str())?;
        if spot.id != file.workspace {
            return Err(StoreError::NoFile(id.to_string()).into());
        }
        match files.sync(&spot).await {
            // The path is no regular file now: the newest stored version is returned.
            Ok(_) | Err(FilesError::Disk { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(files.store()?.file(selector).await?)
    }

    /// The versions of a file before version `before`, newest first.
    ///
    /// # Errors
    /// [`FilesError`]
    pub async fn file_history(
        &self,
        workspace: &WorkspaceName,
        path: &str,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Page<Version, u64>, FilesError> {
        let files = &self.0.shared.files;
        let spot = files.resolve(workspace, path)?;
        Ok(files
            .store()?
            .history(spot.selector(), before, limit)
            .await?)
    }

    /// The difference between two versions of a file.
    ///
    /// # Errors
    /// [`FilesError`]
    pub async fn file_diff(
        &self,
        workspace: &WorkspaceName,
        path: &str,
        (old, new): (u64, u64),
    ) -> Result<Diff, FilesError> {
        let files = &self.0.shared.files;
        let spot = files.resolve(workspace, path)?;
        Ok(files.store()?.diff(spot.selector(), old, new).await?)
    }

    /// Writes the content of version `v` to the file, as a new version.
    ///
    /// # Errors
    /// [`FilesError`]
    pub async fn restore_file(
        &self,
        workspace: &WorkspaceName,
        path: &str,
        (v, base): (u64, Base),
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let spot = self.0.shared.files.resolve(workspace, path)?;
        let shared = Arc::clone(&self.0.shared);
        let task = tokio::spawn(async move {
            let files = &shared.files;
            files.restore(&spot, (v, base), origin).await
        });
        task.await.map_err(|_| FilesError::Stopping)?
    }
}

impl FileLocation {
    fn selector(&self) -> FileSelector {
        FileSelector::Path(self.id.clone(), self.path.clone())
    }
}

impl WorkspaceFiles {
    pub(super) async fn restore(
        &self,
        spot: &FileLocation,
        (v, base): (u64, Base),
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let fetched = self.store()?.get(spot.selector(), Some(v)).await?;
        let why = match fetched.version.content_state {
            ContentState::Stored => "its content is missing in the store",
            ContentState::DigestOnly => "its content was too large to store",
            ContentState::Deleted => "the file is deleted in it",
        };
        let Some(bytes) = fetched.content else {
            let path = spot.path.as_str().to_owned();
            return Err(StoreError::NoContent { path, v, why }.into());
        };
        // The executable bit is part of the version. Without it, the next sync would see a change.
        let exec = Some(fetched.version.exec);
        let draft = Draft {
            base,
            bytes,
            origin,
            cause: Cause::Restore,
            expected_digest: None,
            restores: Some(v),
        };
        let place = |prior, bytes| self.place_file(spot, Parents::Make, prior, (bytes, exec));
        self.write_version(spot, draft, place).await
    }

    /// A file that the store has.
    async fn resolve_known(
        &self,
        workspace: &WorkspaceName,
        path: &str,
    ) -> Result<FileLocation, FilesError> {
        let spot = self.resolve(workspace, path)?;
        match self.current_version(&spot).await? {
            Some(_) => Ok(spot),
            None => Err(FilesError::NoFile(spot.path)),
        }
    }
}
