//! Owners of workspaces in a shared store: a workspace name belongs to one supervisor, unless all
//! its users configure it as shared.
//!
//! Owns the id of a state directory. Must not know configurations.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use uuid::Uuid;

use super::error::{StoreError, TransactionError};
use super::name::WorkspaceId;
use super::rows::DbTransaction;

/// The file with the unique id of a state directory.
const FILE: &str = "store-owner";

/// The owner of a shared workspace, instead of an id.
const SHARED: &str = "shared";

/// The supervisor that registers a workspace, and its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The supervisor, by the id of its state directory.
    pub owner: String,
    /// The directory for display: its host and its path.
    pub directory: String,
    /// Whether its configuration says that all hosts share the directory.
    pub shared: bool,
}

/// The id of a state directory; created if there is none.
///
/// # Errors
/// [`StoreError::InsecureFile`] if it cannot be read or made.
pub fn load_owner_id(state: &Path) -> Result<String, StoreError> {
    let file = state.join(FILE);
    let failed = |error: &io::Error| StoreError::InsecureFile {
        path: file.display().to_string(),
        detail: error.to_string(),
    };
    match fs::read_to_string(&file) {
        Ok(text) => {
            let mark = Uuid::parse_str(text.trim()).map_err(|_| StoreError::InsecureFile {
                path: file.display().to_string(),
                detail: "is not the id of a state directory: restore it from a backup, or remove it and set `shared = true` in the workspaces".to_owned(),
            })?;
            return Ok(mark.to_string());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&error)),
    }
    let mark = Uuid::new_v4().to_string();
    let new = state.join(format!("{FILE}.new"));
    let write = || {
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        out.write_all(format!("{mark}\n").as_bytes())?;
        out.sync_all()?;
        fs::rename(&new, &file)?;
        fs::File::open(state)?.sync_all()
    };
    write().map_err(|error| failed(&error))?;
    Ok(mark)
}

/// Takes ownership of a registered workspace for a supervisor, if no other one has it.
pub(super) async fn claim_workspace<R: DbTransaction>(
    rows: &mut R,
    id: &WorkspaceId,
    claim: &Claim,
) -> Result<(), TransactionError> {
    let sql = format!(
        "SELECT owner, place FROM marshal_workspaces WHERE id = $1{}",
        R::LOCK
    );
    let found = rows.query(&sql, &[id.as_str().into()]).await?;
    let (mut owner, mut place) = (None, None);
    if let Some(row) = found.first() {
        owner = row.optional_text(0)?;
        place = row.optional_text(1)?;
    }
    // A workspace from before owners existed goes to the first supervisor.
    let is_free = owner.is_none_or(|owner| owner == claim.owner);
    if !is_free && !claim.shared {
        return Err(StoreError::WorkspaceTaken {
            workspace: id.to_string(),
            theirs: place.unwrap_or("another directory").to_owned(),
            ours: claim.directory.clone(),
        }
        .into());
    }
    let owner = if claim.shared { SHARED } else { &claim.owner };
    let sql = "UPDATE marshal_workspaces SET owner = $2, place = $3 WHERE id = $1";
    let values = [
        id.as_str().into(),
        owner.into(),
        claim.directory.as_str().into(),
    ];
    rows.execute(sql, &values).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_keeps_its_mark_and_two_have_two() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mark = load_owner_id(one.path()).unwrap();
        assert_eq!(load_owner_id(one.path()).unwrap(), mark);
        assert_ne!(load_owner_id(two.path()).unwrap(), mark);
        fs::write(one.path().join(FILE), "").unwrap();
        let refused = load_owner_id(one.path()).unwrap_err().to_string();
        assert!(
            refused.contains("store-owner: is not the id of a state directory"),
            "{refused}"
        );
    }
}
