//! Changes of the store: each is one transaction, written once for both databases.
//!
//! A change locks the rows of its paths until the transaction's end, so nobody on any host changes
//! the file between the comparison of the base and the write. A change has the id of its new
//! version from the start, so a transaction whose result was lost is found again instead of being
//! made twice.

use bytes::Bytes;
use uuid::Uuid;

use super::error::{DbError, DbErrorKind, StoreError, TransactionError};
use super::name::{Digest, FileId, FilePath, WorkspaceId};
use super::owner::{self, Claim};
use super::query::{FileSelector, find_file, find_version, require_registered, version_by_id};
use super::rows::{DbTransaction, Value};
use super::sweep;
use super::version::{
    Base, Cause, ContentState, FileData, Origin, Retention, SweepReport, Version,
};
use marshal_model::limits;

/// A change with all its data, so that it can be retried.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The id of the version that it makes.
    pub(super) id: Uuid,
    /// The id of the file that it makes, if there is none at the path.
    pub(super) file: Uuid,
    /// The time, in milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
    pub(super) operation: Operation,
}

#[derive(Debug, Clone)]
pub(super) enum Operation {
    Register(WorkspaceId, Option<Claim>),
    Write {
        at: FileLocation,
        base: Base,
        given: DigestedFile,
        origin: Origin,
        cause: Cause,
    },
    /// The file found on disk; `None` if there is none.
    Observe {
        at: FileLocation,
        given: Option<DigestedFile>,
        origin: Origin,
    },
    Delete {
        at: FileLocation,
        base: Base,
        origin: Origin,
    },
    Rename {
        at: FileLocation,
        to: FilePath,
        base: Base,
        origin: Origin,
    },
    Restore {
        at: FileLocation,
        v: u64,
        base: Base,
        origin: Origin,
    },
    Sweep(Retention),
}

/// The content and its digest, which was computed in a blocking thread.
#[derive(Debug, Clone)]
pub(super) struct DigestedFile {
    pub(super) file: FileData,
    pub(super) digest: Digest,
}

/// A path of a workspace.
#[derive(Debug, Clone)]
pub(super) struct FileLocation {
    pub(super) workspace: WorkspaceId,
    pub(super) path: FilePath,
}

impl Change {
    /// The size of its content in bytes.
    pub(super) fn bytes(&self) -> usize {
        let given = match &self.operation {
            Operation::Write { given, .. } => Some(given),
            Operation::Observe { given, .. } => given.as_ref(),
            _ => None,
        };
        given
            .and_then(|item| item.file.content.storable_bytes())
            .map_or(0, Bytes::len)
    }
}

/// The result of a change.
#[derive(Debug)]
pub(super) enum ChangeOutcome {
    /// A version was made.
    Created(Version),
    /// There was nothing to change.
    Unchanged,
    Swept(SweepReport),
}

/// The data of a new version.
struct NextVersion<'a> {
    path: &'a FilePath,
    digest: Option<Digest>,
    bytes: u64,
    content_state: ContentState,
    exec: bool,
    origin: &'a Origin,
    cause: Cause,
}

/// Executes a change. `again`: an earlier try of it may have succeeded.
pub(super) async fn apply_change<R: DbTransaction>(
    rows: &mut R,
    change: &Change,
    again: bool,
) -> Result<ChangeOutcome, TransactionError> {
    match &change.operation {
        Operation::Register(id, claim) => {
            let sql =
                "INSERT INTO marshal_workspaces (id, at_ms) VALUES ($1, $2) ON CONFLICT DO NOTHING";
            let values = [id.as_str().into(), change.at_ms.into()];
            rows.execute(sql, &values).await?;
            if let Some(claim) = claim {
                owner::claim_workspace(rows, id, claim).await?;
            }
            Ok(ChangeOutcome::Unchanged)
        }
        Operation::Sweep(retention) => {
            let younger =
                i64::try_from(retention.keep_younger_than.as_millis()).unwrap_or(i64::MAX);
            let before = change.at_ms.saturating_sub(younger);
            Ok(ChangeOutcome::Swept(
                sweep::sweep(rows, retention, before).await?,
            ))
        }
        Operation::Write { at, .. }
        | Operation::Observe { at, .. }
        | Operation::Delete { at, .. }
        | Operation::Rename { at, .. }
        | Operation::Restore { at, .. } => {
            require_registered(rows, &at.workspace).await?;
            // That nothing is where nothing was known makes no row, which would wait for nobody.
            let is_nothing = matches!(change.operation, Operation::Observe { given: None, .. });
            if is_nothing && !again && current_version(rows, at).await?.is_none() {
                return Ok(ChangeOutcome::Unchanged);
            }
            let current = lock_paths(rows, change, at).await?;
            // Searched after the row is locked, so an earlier try has ended.
            if again && let Some(made) = version_by_id(rows, change.id).await? {
                return Ok(ChangeOutcome::Created(made));
            }
            apply_at_path(rows, change, at, current).await
        }
    }
}

/// Locks the rows of the paths of a change, in a fixed order, and returns the file's current
/// version.
async fn lock_paths<R: DbTransaction>(
    rows: &mut R,
    change: &Change,
    at: &FileLocation,
) -> Result<Option<Version>, TransactionError> {
    let mut paths = vec![&at.path];
    if let Operation::Rename { to, .. } = &change.operation {
        paths.push(to);
    }
    paths.sort();
    for path in paths {
        let values = [at.workspace.as_str().into(), path.as_str().into()];
        let sql =
            "INSERT INTO marshal_paths (workspace, path) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        rows.execute(sql, &values).await?;
        let sql = format!(
            "SELECT 1 FROM marshal_paths WHERE workspace = $1 AND path = $2{}",
            R::LOCK
        );
        if rows.query(&sql, &values).await?.is_empty() {
            // A sweep removed it in between.
            return Err(DbError::new(
                DbErrorKind::Retry,
                "a path's row was removed before it was locked",
            )
            .into());
        }
    }
    current_version(rows, at).await
}

async fn current_version<R: DbTransaction>(
    rows: &mut R,
    at: &FileLocation,
) -> Result<Option<Version>, TransactionError> {
    let which = FileSelector::Path(at.workspace.clone(), at.path.clone());
    match find_file(rows, &which).await {
        Ok(file) => Ok(Some(file.current)),
        Err(TransactionError::Refused(StoreError::NoFile(_))) => Ok(None),
        Err(fault) => Err(fault),
    }
}

async fn apply_at_path<R: DbTransaction>(
    rows: &mut R,
    change: &Change,
    at: &FileLocation,
    current: Option<Version>,
) -> Result<ChangeOutcome, TransactionError> {
    let next = match &change.operation {
        Operation::Write {
            base,
            given,
            origin,
            cause,
            ..
        } => {
            check_base(&at.path, *base, current.as_ref())?;
            next_with_content(rows, &at.path, given, origin, *cause).await?
        }
        Operation::Observe { given, origin, .. } => {
            let there = current
                .as_ref()
                .filter(|now| now.content_state != ContentState::Deleted);
            match (given, there) {
                (None, None) => return Ok(ChangeOutcome::Unchanged),
                (None, Some(_)) => next_deleted(&at.path, origin, Cause::Observed),
                (Some(given), Some(now))
                    if now.digest == Some(given.digest) && now.exec == given.file.exec =>
                {
                    return Ok(ChangeOutcome::Unchanged);
                }
                (Some(given), _) => {
                    next_with_content(rows, &at.path, given, origin, Cause::Observed).await?
                }
            }
        }
        Operation::Delete { base, origin, .. } => {
            require_present(at, current.as_ref())?;
            check_base(&at.path, *base, current.as_ref())?;
            next_deleted(&at.path, origin, Cause::Delete)
        }
        Operation::Rename {
            to, base, origin, ..
        } => {
            let now = require_present(at, current.as_ref())?;
            check_base(&at.path, *base, current.as_ref())?;
            move_path(rows, at, to, now).await?;
            next_with_same_content(rows, to, now, origin, Cause::Rename).await?
        }
        Operation::Restore {
            v, base, origin, ..
        } => {
            let now = current
                .as_ref()
                .ok_or_else(|| StoreError::NoFile(at.path.as_str().to_owned()))?;
            check_base(&at.path, *base, current.as_ref())?;
            let old = find_version(rows, now.file, *v, at.path.as_str()).await?;
            let why = match old.content_state {
                ContentState::Stored => None,
                ContentState::DigestOnly => Some("its content was too large to store"),
                ContentState::Deleted => Some("the file is deleted in this version"),
            };
            if let Some(why) = why {
                let path = at.path.as_str().to_owned();
                return Err(StoreError::NoContent { path, v: *v, why }.into());
            }
            next_with_same_content(rows, &at.path, &old, origin, Cause::Restore).await?
        }
        Operation::Register(..) | Operation::Sweep(_) => return Ok(ChangeOutcome::Unchanged),
    };
    add_version(rows, change, at, current.as_ref(), next).await
}

fn check_base(
    path: &FilePath,
    base: Base,
    current: Option<&Version>,
) -> Result<(), TransactionError> {
    let fits = match (base, current) {
        (Base::Any, _) | (Base::New, None) => true,
        (Base::New, Some(now)) => now.content_state == ContentState::Deleted,
        (Base::At(v), Some(now)) => now.v == v,
        (Base::At(v), None) => {
            let path = path.clone();
            return Err(StoreError::NoBase { path, v }.into());
        }
    };
    match current {
        Some(now) if !fits => Err(StoreError::Stale {
            path: path.clone(),
            current: Box::new(now.clone()),
        }
        .into()),
        _ => Ok(()),
    }
}

fn require_present<'a>(
    at: &FileLocation,
    current: Option<&'a Version>,
) -> Result<&'a Version, TransactionError> {
    current
        .filter(|now| now.content_state != ContentState::Deleted)
        .ok_or_else(|| StoreError::NoFile(at.path.as_str().to_owned()).into())
}

fn next_deleted<'a>(path: &'a FilePath, origin: &'a Origin, cause: Cause) -> NextVersion<'a> {
    NextVersion {
        path,
        digest: None,
        bytes: 0,
        content_state: ContentState::Deleted,
        exec: false,
        origin,
        cause,
    }
}

/// A version with new content, which is stored only once.
async fn next_with_content<'a, R: DbTransaction>(
    rows: &mut R,
    path: &'a FilePath,
    DigestedFile {
        file: given,
        digest,
    }: &DigestedFile,
    origin: &'a Origin,
    cause: Cause,
) -> Result<NextVersion<'a>, TransactionError> {
    let mut state = ContentState::DigestOnly;
    if let Some(content) = given.content.storable_bytes() {
        state = ContentState::Stored;
        store_content(rows, *digest, content).await?;
    }
    Ok(NextVersion {
        path,
        digest: Some(*digest),
        bytes: given.content.bytes(),
        content_state: state,
        exec: given.exec,
        origin,
        cause,
    })
}

async fn store_content<R: DbTransaction>(
    rows: &mut R,
    digest: Digest,
    content: &Bytes,
) -> Result<(), TransactionError> {
    let key = Value::from(digest.0.as_slice());
    // Locks an existing row, too, so that no sweep removes it before the transaction ends.
    let sql = "INSERT INTO marshal_blobs (digest, bytes, refs) VALUES ($1, $2, 1) \
               ON CONFLICT (digest) DO UPDATE SET refs = marshal_blobs.refs + 1 RETURNING refs";
    let values = [key.clone(), (content.len() as u64).into()];
    let found = rows.query(sql, &values).await?;
    let refs = found.first().map_or(Ok(0), |row| row.int(0))?;
    if refs > 1 {
        return Ok(());
    }
    let mut left = content.clone();
    let mut n = 0_i64;
    while !left.is_empty() {
        let chunk = left.split_to(left.len().min(limits::STORE_CHUNK_BYTES));
        let sql = "INSERT INTO marshal_chunks (digest, n, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let values = [key.clone(), n.into(), chunk.into()];
        rows.execute(sql, &values).await?;
        n += 1;
    }
    Ok(())
}

/// A version with the content of another one.
async fn next_with_same_content<'a, R: DbTransaction>(
    rows: &mut R,
    path: &'a FilePath,
    old: &Version,
    origin: &'a Origin,
    cause: Cause,
) -> Result<NextVersion<'a>, TransactionError> {
    if let (ContentState::Stored, Some(digest)) = (old.content_state, old.digest) {
        let sql = "UPDATE marshal_blobs SET refs = refs + 1 WHERE digest = $1";
        if rows.execute(sql, &[digest.0.as_slice().into()]).await? != 1 {
            return Err(DbError::corrupt(format!("the content of {digest} is missing")).into());
        }
    }
    Ok(NextVersion {
        path,
        digest: old.digest,
        bytes: old.bytes,
        content_state: old.content_state,
        exec: old.exec,
        origin,
        cause,
    })
}

/// Moves a path from its file to another one.
async fn move_path<R: DbTransaction>(
    rows: &mut R,
    at: &FileLocation,
    to: &FilePath,
    now: &Version,
) -> Result<(), TransactionError> {
    let there = FileLocation {
        workspace: at.workspace.clone(),
        path: to.clone(),
    };
    if let Some(other) = current_version(rows, &there).await?
        && other.content_state != ContentState::Deleted
    {
        return Err(StoreError::Exists(to.clone()).into());
    }
    let sql = "UPDATE marshal_paths SET file = $3 WHERE workspace = $1 AND path = $2";
    for (path, file) in [(&at.path, Value::Null), (to, now.file.to_string().into())] {
        let values = [at.workspace.as_str().into(), path.as_str().into(), file];
        rows.execute(sql, &values).await?;
    }
    Ok(())
}

/// Adds the next version of a file, and the file if there is none.
async fn add_version<R: DbTransaction>(
    rows: &mut R,
    change: &Change,
    at: &FileLocation,
    current: Option<&Version>,
    next: NextVersion<'_>,
) -> Result<ChangeOutcome, TransactionError> {
    let version = Version {
        id: change.id,
        file: current.map_or(FileId(change.file), |now| now.file),
        path: next.path.clone(),
        v: current.map_or(1, |now| now.v + 1),
        digest: next.digest,
        bytes: next.bytes,
        content_state: next.content_state,
        exec: next.exec,
        origin: next.origin.clone(),
        cause: next.cause,
        base: current.map(|now| now.v),
        at_ms: current.map_or(change.at_ms, |now| now.at_ms.max(change.at_ms)),
    };
    let file = version.file.to_string();
    let deleted = version.content_state == ContentState::Deleted;
    if current.is_none() {
        let sql = "INSERT INTO marshal_files (id, workspace, path, current, deleted) VALUES ($1, $2, $3, 1, $4)";
        let values = [
            file.as_str().into(),
            at.workspace.as_str().into(),
            version.path.as_str().into(),
            deleted.into(),
        ];
        rows.execute(sql, &values).await?;
        let sql = "UPDATE marshal_paths SET file = $3 WHERE workspace = $1 AND path = $2";
        let values = [
            at.workspace.as_str().into(),
            version.path.as_str().into(),
            file.as_str().into(),
        ];
        rows.execute(sql, &values).await?;
    } else {
        let sql = "UPDATE marshal_files SET path = $2, current = $3, deleted = $4 WHERE id = $1";
        let values = [
            file.as_str().into(),
            version.path.as_str().into(),
            version.v.into(),
            deleted.into(),
        ];
        rows.execute(sql, &values).await?;
    }
    insert_version(rows, &version, file).await?;
    Ok(ChangeOutcome::Created(version))
}

async fn insert_version<R: DbTransaction>(
    rows: &mut R,
    version: &Version,
    file: String,
) -> Result<(), TransactionError> {
    let sql = "INSERT INTO marshal_versions (file, v, id, path, digest, bytes, held, exec, author, \
               name, turn, task, cause, base, at_ms) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    let origin = &version.origin;
    let values = [
        file.into(),
        version.v.into(),
        version.id.to_string().into(),
        version.path.as_str().into(),
        version
            .digest
            .as_ref()
            .map(|digest| digest.0.as_slice())
            .into(),
        version.bytes.into(),
        version.content_state.as_str().into(),
        version.exec.into(),
        origin.author.kind.as_str().into(),
        origin.author.name.raw().into(),
        origin.turn.as_deref().into(),
        origin.task.as_deref().into(),
        version.cause.as_str().into(),
        version.base.into(),
        version.at_ms.into(),
    ];
    rows.execute(sql, &values).await?;
    Ok(())
}
