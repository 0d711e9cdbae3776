//! The store of workspaces' files: identity, immutable versions, content stored once.
//!
//! A workspace is a registered id, a file has an id that survives a rename, and a version never
//! changes. A write names its base version and is refused if there is a newer one, which the error
//! names. So of two writers with one base exactly one succeeds, also on two hosts with one
//! database. A successful write is durable.
//!
//! Changes (`change`, `sweep`) and queries (`query`) are written once, over rows of either database
//! (`rows`): a file of SQLite (`sqlite`) or a PostgreSQL server (`postgres`).
//!
//! `fleet/files/` keeps it consistent with the disk, and finds writes that bypassed it.
//!
//! Tests: `tests/parts/store/` runs one suite on both databases.

mod change;
mod diff;
mod error;
mod name;
mod owner;
mod postgres;
mod query;
mod rows;
mod schema;
mod server;
mod sqlite;
mod sweep;
mod version;

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use uuid::Uuid;

use self::change::{Change, ChangeOutcome, DigestedFile, FileLocation, Operation};
use self::error::DbError;
use self::postgres::Postgres;
use self::query::{Query, QueryResult};
use self::sqlite::Sqlite;
use marshal_model::limits;
use marshal_telemetry::event::store::StoreOperationEnded;
use marshal_telemetry::labels::{StoreOperation, StoreResult};

pub use self::diff::Diff;
pub use self::error::StoreError;
pub use self::name::{Digest, FileId, FilePath, NameError, WorkspaceId};
pub use self::owner::{Claim, load_owner_id};
pub use self::query::{FetchedVersion, FileSelector, Page};
pub use self::server::Server;
pub use self::sqlite::FILE_NAME;
pub use self::version::{
    Author, AuthorKind, Base, Cause, Content, ContentState, File, FileData, Origin, Retention,
    SweepReport, Version,
};

#[derive(Debug)]
enum Backend {
    Sqlite(Sqlite),
    Postgres(Box<Postgres>),
}

/// The store of workspaces' files, in either database.
///
/// Dropping one of its futures leaves the write complete or not made, never partial.
#[derive(Debug)]
pub struct Store {
    backend: Backend,
    outage: Outage,
}

/// Why the database does not answer now; `None` while it does.
type Outage = Arc<watch::Sender<Option<String>>>;

/// Publishes a change of the outage.
fn report(outage: &Outage, why: Option<String>) {
    outage.send_if_modified(|now| {
        // Another reason is no news.
        let changed = now.is_some() != why.is_some();
        if changed {
            *now = why;
        }
        changed
    });
}

impl Store {
    /// Opens the store in a state directory, and creates it if there is none.
    ///
    /// # Errors
    /// [`StoreError::InsecureFile`] if others can access it, and database errors.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            backend: Backend::Sqlite(Sqlite::open(dir, now_ms())?),
            outage: Outage::default(),
        })
    }

    /// Connects to a PostgreSQL server, and makes the store's tables if there are none.
    ///
    /// # Errors
    /// [`StoreError::Connection`] if the connection string cannot be used,
    /// [`StoreError::Unreachable`] if the server cannot be reached, and other errors of the server.
    pub async fn connect(server: &Server) -> Result<Self, StoreError> {
        let outage = Outage::default();
        let store = Postgres::connect(server, now_ms(), &outage).await?;
        Ok(Self {
            backend: Backend::Postgres(Box::new(store)),
            outage,
        })
    }

    /// Why the database does not answer, now and at every change; `None` while it does.
    #[must_use]
    pub fn outage(&self) -> watch::Receiver<Option<String>> {
        self.outage.subscribe()
    }

    /// Asks a database that does not answer until it does again; never returns. Otherwise an outage
    /// would last until somebody needs the store.
    pub async fn end_outages(&self) {
        let mut outage = self.outage();
        loop {
            if outage.borrow_and_update().is_some() {
                tokio::time::sleep(limits::STORE_PROBE).await;
                let _ = self.workspaces().await;
            } else if outage.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Registers a workspace; an existing registration stays unchanged.
    ///
    /// # Errors
    /// Database errors.
    pub async fn register(&self, workspace: &WorkspaceId) -> Result<(), StoreError> {
        self.apply(Operation::Register(workspace.clone(), None))
            .await?;
        Ok(())
    }

    /// Registers a workspace for one supervisor and its directory; the first supervisor gets it.
    ///
    /// # Errors
    /// [`StoreError::WorkspaceTaken`] if it belongs to another supervisor and is not shared, and
    /// database errors.
    pub async fn claim(&self, workspace: &WorkspaceId, claim: Claim) -> Result<(), StoreError> {
        self.apply(Operation::Register(workspace.clone(), Some(claim)))
            .await?;
        Ok(())
    }

    /// Whether other supervisors can use the same store.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.backend, Backend::Postgres(_))
    }

    /// The registered workspaces, by their ids.
    ///
    /// # Errors
    /// Database errors.
    pub async fn workspaces(&self) -> Result<Vec<WorkspaceId>, StoreError> {
        match self.query(Query::Workspaces).await? {
            QueryResult::Workspaces(ids) => Ok(ids),
            other => Err(mismatched_result(&other)),
        }
    }

    /// Writes a file: the next version of it, made from `base`.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if there is another version than `base`, [`StoreError::NoBase`] if there
    /// is no file at all, [`StoreError::NoWorkspace`], and database errors.
    pub async fn put(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        base: Base,
        given: FileData,
        origin: Origin,
        cause: Cause,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        if !matches!(cause, Cause::Write | Cause::Edit) {
            return Err(StoreError::InvalidRequest(
                "the cause of a put is write or edit; other causes have their own operations",
            ));
        }
        let at = file_location(workspace, path);
        let given = compute_digest(given).await?;
        let what = Operation::Write {
            at,
            base,
            given,
            origin,
            cause,
        };
        self.create_version(what).await
    }

    /// Records the file found on disk; `None` if there is none. Returns the new version, or `None`
    /// if the store had that state already.
    ///
    /// # Errors
    /// [`StoreError::NoWorkspace`], and database errors.
    pub async fn observe(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        given: Option<FileData>,
        origin: Origin,
    ) -> Result<Option<Version>, StoreError> {
        origin.check()?;
        let at = file_location(workspace, path);
        let given = match given {
            Some(given) => Some(compute_digest(given).await?),
            None => None,
        };
        match self.apply(Operation::Observe { at, given, origin }).await? {
            ChangeOutcome::Created(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    /// Removes a file: its next version marks it as deleted.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::Stale`], and database errors.
    pub async fn delete(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        base: Base,
        origin: Origin,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        let at = file_location(workspace, path);
        self.create_version(Operation::Delete { at, base, origin })
            .await
    }

    /// Renames a file; it keeps its id and its versions.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::Stale`], [`StoreError::Exists`] if another file is
    /// there, and database errors.
    pub async fn rename(
        &self,
        workspace: &WorkspaceId,
        from: &FilePath,
        to: &FilePath,
        base: Base,
        origin: Origin,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        let (at, to) = (file_location(workspace, from), to.clone());
        let what = Operation::Rename {
            at,
            to,
            base,
            origin,
        };
        self.create_version(what).await
    }

    /// Makes a new version with the content of version `v`.
    ///
    /// # Errors
    /// [`StoreError::NoVersion`], [`StoreError::NoContent`] if it has none, [`StoreError::Stale`],
    /// and database errors.
    pub async fn restore(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        v: u64,
        base: Base,
        origin: Origin,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        let at = file_location(workspace, path);
        let what = Operation::Restore {
            at,
            v,
            base,
            origin,
        };
        self.create_version(what).await
    }

    /// A file with its current version, even if it is deleted.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], and database errors.
    pub async fn file(&self, which: FileSelector) -> Result<File, StoreError> {
        match self.query(Query::File(which)).await? {
            QueryResult::File(file) => Ok(file),
            other => Err(mismatched_result(&other)),
        }
    }

    /// A version with its content: this one, or the current one.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::NoVersion`], [`StoreError::Corrupt`] if the content is
    /// not the one that was written, and database errors.
    pub async fn get(
        &self,
        which: FileSelector,
        v: Option<u64>,
    ) -> Result<FetchedVersion, StoreError> {
        match self.query(Query::Fetch(which, v)).await? {
            QueryResult::Fetched(fetched) => {
                self.run_blocking(fetched.version.bytes, move || {
                    fetched.check_digest()?;
                    Ok(fetched)
                })
                .await
            }
            other => Err(mismatched_result(&other)),
        }
    }

    /// The versions of a file before one, the newest first.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], and database errors.
    pub async fn history(
        &self,
        which: FileSelector,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Page<Version, u64>, StoreError> {
        check_limit(limit)?;
        match self.query(Query::History(which, before, limit)).await? {
            QueryResult::History(page) => Ok(page),
            other => Err(mismatched_result(&other)),
        }
    }

    /// The existing files, ordered by path: those with this `prefix`, after `after`.
    ///
    /// # Errors
    /// [`StoreError::NoWorkspace`], and database errors.
    pub async fn list(
        &self,
        workspace: &WorkspaceId,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<File, String>, StoreError> {
        check_limit(limit)?;
        for text in [Some(prefix), after].into_iter().flatten() {
            if text.len() > limits::STORE_PATH_BYTES || text.contains('\0') {
                return Err(StoreError::InvalidRequest(
                    "a prefix or cursor of a list has at most 1024 bytes and no NUL",
                ));
            }
        }
        let question = Query::List {
            workspace: workspace.clone(),
            prefix: prefix.to_owned(),
            after: after.map(str::to_owned),
            limit,
        };
        match self.query(question).await? {
            QueryResult::List(page) => Ok(page),
            other => Err(mismatched_result(&other)),
        }
    }

    /// The difference between two versions of a file.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::NoVersion`], and database errors.
    pub async fn diff(&self, which: FileSelector, old: u64, new: u64) -> Result<Diff, StoreError> {
        match self.query(Query::Diff(which, old, new)).await? {
            QueryResult::VersionPair(sides) => {
                self.run_blocking(u64::MAX, move || diff_versions(&sides.0, &sides.1))
                    .await
            }
            other => Err(mismatched_result(&other)),
        }
    }

    /// Removes a bounded number of expired versions, and content that no version refers to.
    ///
    /// # Errors
    /// Database errors.
    pub async fn sweep(&self, retention: Retention) -> Result<SweepReport, StoreError> {
        match self.apply(Operation::Sweep(retention)).await? {
            ChangeOutcome::Swept(swept) => Ok(swept),
            _ => Ok(SweepReport::default()),
        }
    }

    /// Refuses new operations and waits for the accepted ones.
    pub async fn close(&self) {
        match &self.backend {
            Backend::Sqlite(store) => store.close().await,
            Backend::Postgres(store) => store.close(),
        }
    }

    /// Runs work over this many bytes where it blocks nothing.
    async fn run_blocking<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = run_blocking(bytes, work).await?;
        done.map_err(|trouble| trouble.into_store_error(self.label(), false))
    }

    fn label(&self) -> &str {
        match &self.backend {
            Backend::Sqlite(store) => store.label(),
            Backend::Postgres(store) => store.label(),
        }
    }

    async fn create_version(&self, what: Operation) -> Result<Version, StoreError> {
        match self.apply(what).await? {
            ChangeOutcome::Created(version) => Ok(version),
            ChangeOutcome::Unchanged | ChangeOutcome::Swept(_) => {
                Err(StoreError::InvalidRequest("the list of changes is empty"))
            }
        }
    }

    async fn apply(&self, what: Operation) -> Result<ChangeOutcome, StoreError> {
        let change = Change {
            id: Uuid::now_v7(),
            file: Uuid::now_v7(),
            at_ms: now_ms(),
            operation: what,
        };
        let operation = match &change.operation {
            Operation::Register(..) => StoreOperation::Register,
            Operation::Sweep(_) => StoreOperation::Sweep,
            _ => StoreOperation::Write,
        };
        self.count(operation, async {
            match &self.backend {
                Backend::Sqlite(store) => store.apply(change).await,
                Backend::Postgres(store) => store.apply(&change).await,
            }
        })
        .await
    }

    async fn query(&self, question: Query) -> Result<QueryResult, StoreError> {
        self.count(StoreOperation::Read, async {
            match &self.backend {
                Backend::Sqlite(store) => store.query(question).await,
                Backend::Postgres(store) => store.query(&question).await,
            }
        })
        .await
    }

    /// Counts an operation and its duration, and reports whether the database answers.
    async fn count<T>(
        &self,
        operation: StoreOperation,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let done = work.await;
        let result = match &done {
            Err(error) if error.is_failure() => StoreResult::Failed,
            Err(_) => StoreResult::Refused,
            Ok(_) => StoreResult::Ok,
        };
        match &done {
            Err(StoreError::Closed) => {}
            Err(error) if result == StoreResult::Failed => {
                report(&self.outage, Some(error.to_string()));
            }
            _ => report(&self.outage, None),
        }
        StoreOperationEnded {
            operation,
            result,
            took: began.elapsed(),
        }
        .emit();
        done
    }
}

/// Runs work over this many bytes, in a blocking thread unless it is too small for that.
async fn run_blocking<T: Send + 'static>(
    bytes: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    if bytes <= limits::STORE_INLINE_BYTES {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| StoreError::Closed)
}

async fn compute_digest(given: FileData) -> Result<DigestedFile, StoreError> {
    let bytes = match &given.content {
        Content::Whole(content) => content.len() as u64,
        Content::DigestOnly { .. } => 0,
    };
    run_blocking(bytes, move || DigestedFile {
        digest: given.content.digest(),
        file: given,
    })
    .await
}

fn diff_versions(old: &FetchedVersion, new: &FetchedVersion) -> Result<Diff, DbError> {
    if [old, new]
        .iter()
        .any(|of| of.version.content_state == ContentState::DigestOnly)
    {
        return Ok(Diff::NotStored);
    }
    old.check_digest()?;
    new.check_digest()?;
    // Deleted content is compared as empty content.
    let content = |of: &FetchedVersion| of.content.clone().unwrap_or_default();
    Ok(diff::compare(&content(old), &content(new)))
}

fn file_location(workspace: &WorkspaceId, path: &FilePath) -> FileLocation {
    FileLocation {
        workspace: workspace.clone(),
        path: path.clone(),
    }
}

fn check_limit(limit: u32) -> Result<(), StoreError> {
    if (1..=limits::STORE_PAGE).contains(&limit) {
        Ok(())
    } else {
        Err(StoreError::InvalidRequest("a page has 1 to 200 rows"))
    }
}

/// The error for a query that got the result of another query, which is a bug.
fn mismatched_result(found: &QueryResult) -> StoreError {
    tracing::error!(
        ?found,
        "internal error: the store returned the result of another query"
    );
    StoreError::InvalidRequest("internal error: the store returned the result of another query")
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_does_may_be_awaited_in_any_task() {
        fn send(_: impl Send) {}
        #[allow(dead_code, reason = "it is enough that it compiles")]
        fn all(store: &Store, retention: Retention) {
            send(store.workspaces());
            send(store.sweep(retention));
        }
    }
}
