//! What the store has of registered workspaces, for people: only files that it took, and none whose
//! name is hidden.
//!
//! Must not know who asks, nor whether they may.

use std::sync::Arc;

use super::{Draft, FileLocation, FilesError, Parents, WorkspaceFiles};
use crate::FleetHandle;
use marshal_config::Config;
use marshal_model::WorkspaceName;
use marshal_store::{
    Base, Cause, ContentState, Diff, FetchedVersion, File, FileSelector, Origin, Page, StoreError,
    Version,
};

impl FleetHandle {
    /// From now on registered workspaces, and the files that nobody gets at by them or by a task's own
    /// workspace, are those of this configuration.
    ///
    /// # Errors
    /// [`FilesError`]; nothing has changed then.
    pub async fn set_workspace_config(&self, config: Config) -> Result<(), FilesError> {
        self.0.shared.files.set_config(Arc::new(config)).await
    }

    /// The registered workspaces, by their names.
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

    /// Files of a workspace by their paths: those that begin with `prefix`, behind `after`. What is
    /// hidden by now is left out, so a page may be shorter than its limit.
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
        // Any path of it leads to its id.
        let id = files.resolve(workspace, "a")?.id;
        let mut page = files.store()?.list(&id, prefix, after, limit).await?;
        page.rows
            .retain(|file| files.resolve(workspace, file.current.path.as_str()).is_ok());
        Ok(page)
    }

    /// A version of a file with its content; the newest one agrees with the disk.
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
                // What stands there now is no file that could have a version.
                Ok(_) | Err(FilesError::Disk { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files.store()?.get(spot.which(), v).await?)
    }

    /// The versions of a file before one, the newest first.
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
        Ok(files.store()?.history(spot.which(), before, limit).await?)
    }

    /// What differs between two versions of a file.
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
        Ok(files.store()?.diff(spot.which(), old, new).await?)
    }

    /// Has a file hold again what it held in version `v`.
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
        let restored = tokio::spawn(async move {
            let files = &shared.files;
            files.restore(&spot, (v, base), origin).await
        });
        restored.await.map_err(|_| FilesError::Stopping)?
    }
}

impl FileLocation {
    fn which(&self) -> FileSelector {
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
        let fetched = self.store()?.get(spot.which(), Some(v)).await?;
        let why = match fetched.version.content_state {
            ContentState::Stored => "its content is not there",
            ContentState::DigestOnly => "it was too large to be kept",
            ContentState::Deleted => "the file is gone in it",
        };
        let Some(bytes) = fetched.content else {
            let path = spot.path.as_str().to_owned();
            return Err(StoreError::NoContent { path, v, why }.into());
        };
        // Whether it may be run is of the version, too: a look afterwards finds nothing new.
        let exec = Some(fetched.version.exec);
        let draft = Draft {
            base,
            bytes,
            origin,
            cause: Cause::Restore,
            expected_digest: None,
            restores: Some(v),
        };
        let place = |stood, bytes| self.place_file(spot, Parents::Make, stood, (bytes, exec));
        self.write_version(spot, draft, place).await
    }

    /// A file that the store took.
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
