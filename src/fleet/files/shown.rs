//! What the store has of registered workspaces, for people: only files that it took, and none whose
//! name is hidden.
//!
//! Must not know who asks, nor whether they may.

use std::sync::Arc;

use super::{Draft, Files, FilesError, Parents, Spot};
use crate::config::Config;
use crate::fleet::FleetHandle;
use crate::model::WorkspaceName;
use crate::store::{
    Base, Cause, Diff, Fetched, File, Held, Origin, Page, StoreError, Version, Which,
};

impl FleetHandle {
    /// From now on registered workspaces, and the files that nobody gets at by them or by a task's own
    /// workspace, are those of this configuration.
    ///
    /// # Errors
    /// [`FilesError`]; nothing has changed then.
    pub async fn go_by(&self, config: Config) -> Result<(), FilesError> {
        self.0.shared.files.go_by(Arc::new(config)).await
    }

    /// The registered workspaces, by their names.
    #[must_use]
    pub fn workspaces(&self) -> Vec<WorkspaceName> {
        self.0
            .shared
            .files
            .roots
            .now()
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
        let id = files.spot(workspace, "a")?.id;
        let mut page = files.store()?.list(&id, prefix, after, limit).await?;
        page.rows
            .retain(|file| files.spot(workspace, file.current.path.as_str()).is_ok());
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
    ) -> Result<Fetched, FilesError> {
        let files = &self.0.shared.files;
        let spot = files.known(workspace, path).await?;
        if v.is_none() {
            match files.look(&spot).await {
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
        let spot = files.spot(workspace, path)?;
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
        let spot = files.spot(workspace, path)?;
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
        let spot = self.0.shared.files.spot(workspace, path)?;
        let shared = Arc::clone(&self.0.shared);
        let restored = tokio::spawn(async move {
            let files = &shared.files;
            files.restore(&spot, (v, base), origin).await
        });
        restored.await.map_err(|_| FilesError::Stopping)?
    }
}

impl Spot {
    fn which(&self) -> Which {
        Which::Path(self.id.clone(), self.path.clone())
    }
}

impl Files {
    pub(super) async fn restore(
        &self,
        spot: &Spot,
        (v, base): (u64, Base),
        origin: Origin,
    ) -> Result<Version, FilesError> {
        let fetched = self.store()?.get(spot.which(), Some(v)).await?;
        let why = match fetched.version.held {
            Held::Kept => "its content is not there",
            Held::Measured => "it was too large to be kept",
            Held::Gone => "the file is gone in it",
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
            holds: None,
            restores: Some(v),
        };
        let place = |stood, bytes| self.place(spot, Parents::Make, stood, (bytes, exec));
        self.write(spot, draft, place).await
    }

    /// A file that the store took.
    async fn known(&self, workspace: &WorkspaceName, path: &str) -> Result<Spot, FilesError> {
        let spot = self.spot(workspace, path)?;
        match self.current(&spot).await? {
            Some(_) => Ok(spot),
            None => Err(FilesError::NoFile(spot.path)),
        }
    }
}
