//! What is read of the store: files, versions, content, pages of them.
//!
//! Every read is one transaction that sees one state. Contents are given as they are kept: whoever
//! asked holds them against their digests, and compares them, where that may take its time. Must not
//! know which database it is.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::error::{Fault, StoreError, Trouble};
use super::name::{Digest, FileId, FilePath, WorkspaceId};
use super::rows::{Row, Rows, Value};
use super::version::{Author, AuthorKind, Cause, File, Held, Origin, Version};
use crate::limits;

/// A file, by its place or by its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The file that is, or was last, at this path of a workspace.
    Path(WorkspaceId, FilePath),
    /// The file with this id, wherever it is now.
    Id(FileId),
}

impl Which {
    /// How it is named in errors.
    fn told(&self) -> String {
        match self {
            Self::Path(_, path) => path.as_str().to_owned(),
            Self::Id(id) => id.to_string(),
        }
    }
}

/// A version with its content, if that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The version.
    pub version: Version,
    /// Its content; none if [`Version::held`] says so.
    pub content: Option<Bytes>,
}

impl Fetched {
    /// Whether its content is the one that was written, which takes its time.
    pub(super) fn check(&self) -> Result<(), Trouble> {
        match (&self.content, self.version.digest) {
            (Some(content), Some(digest)) if Digest::of(content) != digest => Err(
                Trouble::corrupt(format!("the content of {digest} has another digest")),
            ),
            _ => Ok(()),
        }
    }
}

/// One page, and where the next one goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T, C> {
    /// What is on it.
    pub rows: Vec<T>,
    /// The cursor of the next page; none at the end.
    pub next: Option<C>,
}

/// A question to the store.
#[derive(Debug, Clone)]
pub(super) enum Look {
    Workspaces,
    File(Which),
    Fetch(Which, Option<u64>),
    History(Which, Option<u64>, u32),
    List {
        workspace: WorkspaceId,
        prefix: String,
        after: Option<String>,
        limit: u32,
    },
    Diff(Which, u64, u64),
}

/// Its answer.
#[derive(Debug)]
pub(super) enum Found {
    Workspaces(Vec<WorkspaceId>),
    File(File),
    Fetched(Fetched),
    History(Page<Version, u64>),
    List(Page<File, String>),
    /// Two versions, to be compared.
    Sides(Box<(Fetched, Fetched)>),
}

/// The columns of a version, for [`version`].
const VERSION: &str = "v.id, v.file, v.path, v.v, v.digest, v.bytes, v.held, v.exec, v.author, v.name, \
     v.turn, v.task, v.cause, v.base, v.at_ms";

/// Answers a question.
pub(super) async fn look<R: Rows>(rows: &mut R, look: &Look) -> Result<Found, Fault> {
    Ok(match look {
        Look::Workspaces => {
            let sql = "SELECT id FROM marshal_workspaces ORDER BY id";
            let mut ids = Vec::new();
            for row in rows.query(sql, &[]).await? {
                ids.push(WorkspaceId::new(row.text(0)?).map_err(StoreError::Name)?);
            }
            Found::Workspaces(ids)
        }
        Look::File(which) => Found::File(file(rows, which).await?),
        Look::Fetch(which, v) => Found::Fetched(fetch(rows, which, *v).await?),
        Look::History(which, before, limit) => {
            let id = file(rows, which).await?.current.file;
            Found::History(history(rows, id, *before, *limit).await?)
        }
        Look::List {
            workspace,
            prefix,
            after,
            limit,
        } => {
            registered(rows, workspace).await?;
            Found::List(list(rows, workspace, prefix, after.as_deref(), *limit).await?)
        }
        Look::Diff(which, old, new) => {
            let old = fetch(rows, which, Some(*old)).await?;
            let new = fetch(rows, which, Some(*new)).await?;
            Found::Sides(Box::new((old, new)))
        }
    })
}

/// Refuses a workspace that was never registered.
pub(super) async fn registered<R: Rows>(rows: &mut R, id: &WorkspaceId) -> Result<(), Fault> {
    let sql = "SELECT 1 FROM marshal_workspaces WHERE id = $1";
    if rows.query(sql, &[id.as_str().into()]).await?.is_empty() {
        return Err(StoreError::NoWorkspace(id.to_string()).into());
    }
    Ok(())
}

/// The file at a path, or with an id.
pub(super) async fn file<R: Rows>(rows: &mut R, which: &Which) -> Result<File, Fault> {
    let (condition, values): (_, Vec<Value>) = match which {
        Which::Path(workspace, path) => {
            registered(rows, workspace).await?;
            (
                "f.id = (SELECT p.file FROM marshal_paths p WHERE p.workspace = $1 AND p.path = $2)",
                vec![workspace.as_str().into(), path.as_str().into()],
            )
        }
        Which::Id(id) => ("f.id = $1", vec![id.to_string().into()]),
    };
    let mut sql = format!("SELECT {VERSION}, f.workspace, f.deleted FROM marshal_files f ");
    let _ = write!(
        sql,
        "JOIN marshal_versions v ON v.file = f.id AND v.v = f.current WHERE {condition}"
    );
    match rows.query(&sql, &values).await?.first() {
        Some(row) => Ok(of_file(row)?),
        None => Err(StoreError::NoFile(which.told()).into()),
    }
}

/// A version of a file by its number.
pub(super) async fn version_of<R: Rows>(
    rows: &mut R,
    file: FileId,
    v: u64,
    told: &str,
) -> Result<Version, Fault> {
    let sql = format!("SELECT {VERSION} FROM marshal_versions v WHERE v.file = $1 AND v.v = $2");
    let values = [file.to_string().into(), v.into()];
    match rows.query(&sql, &values).await?.first() {
        Some(row) => Ok(version(row)?),
        None => Err(StoreError::NoVersion {
            path: told.to_owned(),
            v,
        }
        .into()),
    }
}

/// The version with this id, if it is there.
pub(super) async fn version_by_id<R: Rows>(
    rows: &mut R,
    id: Uuid,
) -> Result<Option<Version>, Fault> {
    let sql = format!("SELECT {VERSION} FROM marshal_versions v WHERE v.id = $1");
    let found = rows.query(&sql, &[id.to_string().into()]).await?;
    Ok(found.first().map(version).transpose()?)
}

async fn fetch<R: Rows>(rows: &mut R, which: &Which, v: Option<u64>) -> Result<Fetched, Fault> {
    let current = file(rows, which).await?.current;
    let version = match v {
        Some(v) if v != current.v => version_of(rows, current.file, v, &which.told()).await?,
        _ => current,
    };
    let content = match (version.held, version.digest) {
        (Held::Kept, Some(digest)) => Some(content(rows, digest, version.bytes).await?),
        _ => None,
    };
    Ok(Fetched { version, content })
}

async fn content<R: Rows>(rows: &mut R, digest: Digest, bytes: u64) -> Result<Bytes, Fault> {
    let sql = "SELECT data FROM marshal_chunks WHERE digest = $1 ORDER BY n";
    let found = rows.query(sql, &[digest.0.as_slice().into()]).await?;
    let mut whole = BytesMut::with_capacity(
        usize::try_from(bytes)
            .unwrap_or(0)
            .min(limits::STORE_CONTENT_BYTES),
    );
    for row in &found {
        if let Some(chunk) = row.bytes_if(0)? {
            whole.extend_from_slice(chunk);
        }
    }
    Ok(whole.freeze())
}

/// Versions of a file, the newest first.
async fn history<R: Rows>(
    rows: &mut R,
    file: FileId,
    before: Option<u64>,
    limit: u32,
) -> Result<Page<Version, u64>, Fault> {
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
    let rows: Result<Vec<_>, _> = found.iter().map(version).collect();
    Ok(page(rows?, limit, |version| version.v))
}

/// Files that are there, by their paths.
async fn list<R: Rows>(
    rows: &mut R,
    workspace: &WorkspaceId,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<Page<File, String>, Fault> {
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
    if let Some(end) = beyond(prefix) {
        sql.push_str(" AND p.path < $5");
        values.push(end.into());
    }
    sql.push_str(" ORDER BY p.path LIMIT $4");
    let found = rows.query(&sql, &values).await?;
    let rows: Result<Vec<_>, _> = found.iter().map(of_file).collect();
    Ok(page(rows?, limit, |file: &File| {
        file.current.path.as_str().to_owned()
    }))
}

/// The first text that is behind every text with this prefix; none if there is no such text.
fn beyond(prefix: &str) -> Option<String> {
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

/// Makes a page of what was read with one row too many.
fn page<T, C>(mut rows: Vec<T>, limit: u32, cursor: impl Fn(&T) -> C) -> Page<T, C> {
    let limit = limit as usize;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(cursor);
    Page { rows, next }
}

fn of_file(row: &Row) -> Result<File, Trouble> {
    Ok(File {
        current: version(row)?,
        workspace: WorkspaceId::new(row.text(15)?)
            .map_err(|error| Trouble::corrupt(error.to_string()))?,
        deleted: row.int(16)? != 0,
    })
}

fn version(row: &Row) -> Result<Version, Trouble> {
    let strange = |what: &str| Trouble::corrupt(format!("a version has a strange {what}"));
    let uuid = |at: usize| Uuid::parse_str(row.text(at)?).map_err(|_| strange("id"));
    let digest = match row.bytes_if(4)? {
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
        held: Held::from_word(row.text(6)?).ok_or_else(|| strange("holding"))?,
        exec: row.int(7)? != 0,
        origin: Origin {
            author: Author::new(
                AuthorKind::from_word(row.text(8)?).ok_or_else(|| strange("author"))?,
                row.text(9)?,
            ),
            turn: row.text_if(10)?.map(str::to_owned),
            task: row.text_if(11)?.map(str::to_owned),
        },
        cause: Cause::from_word(row.text(12)?).ok_or_else(|| strange("cause"))?,
        base: row.count_if(13)?,
        at_ms: row.int(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_a_prefix_is_beyond_all_that_begin_with_it() {
        assert_eq!(beyond("a/").as_deref(), Some("a0"));
        assert_eq!(beyond("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(beyond("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(beyond("\u{10ffff}"), None);
        assert_eq!(beyond(""), None);
        assert!("a/\u{10ffff}\u{10ffff}" < beyond("a/").unwrap().as_str());
    }
}
