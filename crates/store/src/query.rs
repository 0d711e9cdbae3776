//! Queries of the store: files, versions, content, pages of them.
//!
//! Every query is one transaction that sees one state. Contents are returned unchecked: the caller
//! verifies digests and compares contents in a blocking thread. Must not know which database it is.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::error::{DbError, StoreError, TransactionError};
use super::name::{Digest, FileId, FilePath, WorkspaceId};
use super::rows::{DbTransaction, Row, Value};
use super::version::{Author, AuthorKind, Cause, ContentState, File, Origin, Version};
use marshal_model::limits;

/// A file, by its place or by its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSelector {
    /// The file that is at this path of a workspace, or was last.
    Path(WorkspaceId, FilePath),
    /// The file with this id, wherever it is now.
    Id(FileId),
}

impl FileSelector {
    /// Its name in errors.
    fn describe(&self) -> String {
        match self {
            Self::Path(_, path) => path.as_str().to_owned(),
            Self::Id(id) => id.to_string(),
        }
    }
}

/// A version with its content, if that is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedVersion {
    /// The version.
    pub version: Version,
    /// Its content; `None` unless [`Version::content_state`] says that it is stored.
    pub content: Option<Bytes>,
}

impl FetchedVersion {
    /// Verifies the digest of its content, which is slow for large content.
    pub(super) fn check_digest(&self) -> Result<(), DbError> {
        match (&self.content, self.version.digest) {
            (Some(content), Some(digest)) if Digest::of(content) != digest => Err(
                DbError::corrupt(format!("the content of {digest} has another digest")),
            ),
            _ => Ok(()),
        }
    }
}

/// One page of rows, with the cursor of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T, C> {
    /// The rows.
    pub rows: Vec<T>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<C>,
}

/// A query of the store.
#[derive(Debug, Clone)]
pub(super) enum Query {
    Workspaces,
    File(FileSelector),
    Fetch(FileSelector, Option<u64>),
    History(FileSelector, Option<u64>, u32),
    List {
        workspace: WorkspaceId,
        prefix: String,
        after: Option<String>,
        limit: u32,
    },
    Diff(FileSelector, u64, u64),
}

/// The result of a [`Query`].
#[derive(Debug)]
pub(super) enum QueryResult {
    Workspaces(Vec<WorkspaceId>),
    File(File),
    Fetched(FetchedVersion),
    History(Page<Version, u64>),
    List(Page<File, String>),
    /// Two versions, to be compared.
    VersionPair(Box<(FetchedVersion, FetchedVersion)>),
}

/// The columns of a version, for [`version_from_row`].
const VERSION: &str = "v.id, v.file, v.path, v.v, v.digest, v.bytes, v.held, v.exec, v.author, v.name, \
     v.turn, v.task, v.cause, v.base, v.at_ms";

/// Runs a query.
pub(super) async fn run_query<R: DbTransaction>(
    rows: &mut R,
    look: &Query,
) -> Result<QueryResult, TransactionError> {
    Ok(match look {
        Query::Workspaces => {
            let sql = "SELECT id FROM marshal_workspaces ORDER BY id";
            let mut ids = Vec::new();
            for row in rows.query(sql, &[]).await? {
                ids.push(WorkspaceId::new(row.text(0)?).map_err(StoreError::Name)?);
            }
            QueryResult::Workspaces(ids)
        }
        Query::File(which) => QueryResult::File(find_file(rows, which).await?),
        Query::Fetch(which, v) => QueryResult::Fetched(fetch(rows, which, *v).await?),
        Query::History(which, before, limit) => {
            let id = find_file(rows, which).await?.current.file;
            QueryResult::History(history(rows, id, *before, *limit).await?)
        }
        Query::List {
            workspace,
            prefix,
            after,
            limit,
        } => {
            require_registered(rows, workspace).await?;
            QueryResult::List(list(rows, workspace, prefix, after.as_deref(), *limit).await?)
        }
        Query::Diff(which, old, new) => {
            let old = fetch(rows, which, Some(*old)).await?;
            let new = fetch(rows, which, Some(*new)).await?;
            QueryResult::VersionPair(Box::new((old, new)))
        }
    })
}

/// Refuses a workspace that was never registered.
pub(super) async fn require_registered<R: DbTransaction>(
    rows: &mut R,
    id: &WorkspaceId,
) -> Result<(), TransactionError> {
    let sql = "SELECT 1 FROM marshal_workspaces WHERE id = $1";
    if rows.query(sql, &[id.as_str().into()]).await?.is_empty() {
        return Err(StoreError::NoWorkspace(id.to_string()).into());
    }
    Ok(())
}

/// The file at a path, or with an id.
pub(super) async fn find_file<R: DbTransaction>(
    rows: &mut R,
    which: &FileSelector,
) -> Result<File, TransactionError> {
    let (condition, values): (_, Vec<Value>) = match which {
        FileSelector::Path(workspace, path) => {
            require_registered(rows, workspace).await?;
            (
                "f.id = (SELECT p.file FROM marshal_paths p WHERE p.workspace = $1 AND p.path = $2)",
                vec![workspace.as_str().into(), path.as_str().into()],
            )
        }
        FileSelector::Id(id) => ("f.id = $1", vec![id.to_string().into()]),
    };
    let mut sql = format!("SELECT {VERSION}, f.workspace, f.deleted FROM marshal_files f ");
    let _ = write!(
        sql,
        "JOIN marshal_versions v ON v.file = f.id AND v.v = f.current WHERE {condition}"
    );
    match rows.query(&sql, &values).await?.first() {
        Some(row) => Ok(file_from_row(row)?),
        None => Err(StoreError::NoFile(which.describe()).into()),
    }
}

/// A version of a file by its number.
pub(super) async fn find_version<R: DbTransaction>(
    rows: &mut R,
    file: FileId,
    v: u64,
    shown: &str,
) -> Result<Version, TransactionError> {
    let sql = format!("SELECT {VERSION} FROM marshal_versions v WHERE v.file = $1 AND v.v = $2");
    let values = [file.to_string().into(), v.into()];
    match rows.query(&sql, &values).await?.first() {
        Some(row) => Ok(version_from_row(row)?),
        None => Err(StoreError::NoVersion {
            path: shown.to_owned(),
            v,
        }
        .into()),
    }
}

/// The version with this id, if it is there.
pub(super) async fn version_by_id<R: DbTransaction>(
    rows: &mut R,
    id: Uuid,
) -> Result<Option<Version>, TransactionError> {
    let sql = format!("SELECT {VERSION} FROM marshal_versions v WHERE v.id = $1");
    let found = rows.query(&sql, &[id.to_string().into()]).await?;
    Ok(found.first().map(version_from_row).transpose()?)
}

async fn fetch<R: DbTransaction>(
    rows: &mut R,
    which: &FileSelector,
    v: Option<u64>,
) -> Result<FetchedVersion, TransactionError> {
    let current = find_file(rows, which).await?.current;
    let version = match v {
        Some(v) if v != current.v => find_version(rows, current.file, v, &which.describe()).await?,
        _ => current,
    };
    let content = match (version.content_state, version.digest) {
        (ContentState::Stored, Some(digest)) => {
            Some(read_content(rows, digest, version.bytes).await?)
        }
        _ => None,
    };
    Ok(FetchedVersion { version, content })
}

async fn read_content<R: DbTransaction>(
    rows: &mut R,
    digest: Digest,
    bytes: u64,
) -> Result<Bytes, TransactionError> {
    let sql = "SELECT data FROM marshal_chunks WHERE digest = $1 ORDER BY n";
    let found = rows.query(sql, &[digest.0.as_slice().into()]).await?;
    let mut whole = BytesMut::with_capacity(
        usize::try_from(bytes)
            .unwrap_or(0)
            .min(limits::STORE_CONTENT_BYTES),
    );
    for row in &found {
        if let Some(chunk) = row.optional_bytes(0)? {
            whole.extend_from_slice(chunk);
        }
    }
    Ok(whole.freeze())
}

/// Versions of a file, the newest first.
async fn history<R: DbTransaction>(
    rows: &mut R,
    file: FileId,
    before: Option<u64>,
    limit: u32,
) -> Result<Page<Version, u64>, TransactionError> {
    let sql = format!(
        "SELECT {VERSION} FROM marshal_versions v WHERE v.file = $1 AND v.v < $2 \
         ORDER BY v.v DESC LIMIT $3"
    );
    let values = [
        file.to_string().into(),
        before.unwrap_or(u64::MAX).into(),
        i64::from(limit + 1).into(),
    ];
    let found = rows.query(&sql, &values).await?;
    let rows: Result<Vec<_>, _> = found.iter().map(version_from_row).collect();
    Ok(make_page(rows?, limit, |version| version.v))
}

/// Existing files, ordered by path.
async fn list<R: DbTransaction>(
    rows: &mut R,
    workspace: &WorkspaceId,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<Page<File, String>, TransactionError> {
    let mut sql = format!(
        "SELECT {VERSION}, f.workspace, f.deleted FROM marshal_paths p \
         JOIN marshal_files f ON f.id = p.file AND f.deleted = 0 \
         JOIN marshal_versions v ON v.file = f.id AND v.v = f.current \
         WHERE p.workspace = $1 AND p.path >= $2 AND p.path > $3"
    );
    let mut values: Vec<Value> = vec![
        workspace.as_str().into(),
        prefix.into(),
        after.unwrap_or_default().into(),
        i64::from(limit + 1).into(),
    ];
    if let Some(end) = prefix_end(prefix) {
        sql.push_str(" AND p.path < $5");
        values.push(end.into());
    }
    sql.push_str(" ORDER BY p.path LIMIT $4");
    let found = rows.query(&sql, &values).await?;
    let rows: Result<Vec<_>, _> = found.iter().map(file_from_row).collect();
    Ok(make_page(rows?, limit, |file: &File| {
        file.current.path.as_str().to_owned()
    }))
}

/// The first text that is behind every text with this prefix; none if there is no such text.
fn prefix_end(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            char::MAX => continue,
            // Between these are the surrogates, which are no chars.
            '\u{d7ff}' => Some('\u{e000}'),
            other => char::from_u32(u32::from(other) + 1),
        };
        chars.extend(next);
        return Some(chars.into_iter().collect());
    }
    None
}

/// Makes a page from rows that were read with one extra row.
fn make_page<T, C>(mut rows: Vec<T>, limit: u32, cursor: impl Fn(&T) -> C) -> Page<T, C> {
    let limit = limit as usize;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(cursor);
    Page { rows, next }
}

fn file_from_row(row: &Row) -> Result<File, DbError> {
    Ok(File {
        current: version_from_row(row)?,
        workspace: WorkspaceId::new(row.text(15)?)
            .map_err(|error| DbError::corrupt(error.to_string()))?,
        deleted: row.int(16)? != 0,
    })
}

fn version_from_row(row: &Row) -> Result<Version, DbError> {
    let strange = |what: &str| DbError::corrupt(format!("a version has an invalid {what}"));
    let uuid = |at: usize| Uuid::parse_str(row.text(at)?).map_err(|_| strange("id"));
    let digest = match row.optional_bytes(4)? {
        None => None,
        Some(bytes) => Some(Digest(
            bytes.as_ref().try_into().map_err(|_| strange("digest"))?,
        )),
    };
    Ok(Version {
        id: uuid(0)?,
        file: FileId(uuid(1)?),
        path: FilePath::new(row.text(2)?).map_err(|_| strange("path"))?,
        v: row.count(3)?,
        digest,
        bytes: row.count(5)?,
        content_state: ContentState::parse(row.text(6)?).ok_or_else(|| strange("holding"))?,
        exec: row.int(7)? != 0,
        origin: Origin {
            author: Author::new(
                AuthorKind::parse(row.text(8)?).ok_or_else(|| strange("author"))?,
                row.text(9)?,
            ),
            turn: row.optional_text(10)?.map(str::to_owned),
            task: row.optional_text(11)?.map(str::to_owned),
        },
        cause: Cause::parse(row.text(12)?).ok_or_else(|| strange("cause"))?,
        base: row.optional_count(13)?,
        at_ms: row.int(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_a_prefix_is_beyond_all_that_begin_with_it() {
        assert_eq!(prefix_end("a/").as_deref(), Some("a0"));
        assert_eq!(prefix_end("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(prefix_end("\u{10ffff}"), None);
        assert_eq!(prefix_end(""), None);
        assert!("a/\u{10ffff}\u{10ffff}" < prefix_end("a/").unwrap().as_str());
    }
}
