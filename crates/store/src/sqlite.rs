//! The store in an SQLite file: one thread that writes, a few connections that read.
//!
//! Writes that wait while the disk is busy become durable together; each has its own
//! savepoint, so a refused one does not affect the others. A write returns when it is durable.
//! Locks and full disks are reported at once: nothing is partially written, and the caller decides.

use std::fs;
use std::future::{Future, ready};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::change::{Change, ChangeOutcome, apply_change};
use super::error::{DbError, DbErrorKind, StoreError, TransactionError};
use super::query::{Query, QueryResult, run_query};
use super::rows::{DbTransaction, Row, Value};
use super::schema;
use marshal_model::limits;

/// The database's name in the state directory.
pub const FILE_NAME: &str = "store.db";

/// `mrst` in ASCII: identifies marshal's store among SQLite files.
const APPLICATION_ID: i64 = 0x6d72_7374;

/// Permits are counted in this many bytes.
const PERMIT_BYTES: usize = 1 << 10;

/// Pages of the write-ahead log after which SQLite copies it into the file.
const WAL_PAGES: i64 = 1000;

struct Job {
    change: Change,
    answer: oneshot::Sender<Result<ChangeOutcome, StoreError>>,
    /// The permits for its content in the queue.
    _queue_permit: OwnedSemaphorePermit,
}

/// An SQLite store.
#[derive(Debug)]
pub(super) struct Sqlite {
    label: String,
    file: PathBuf,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    queue_permits: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    /// Idle connections of readers.
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Sqlite {
    /// Opens the store of a state directory, and creates it if there is none.
    pub(super) fn open(dir: &Path, now_ms: i64) -> Result<Self, StoreError> {
        let file = prepare_file(dir)?;
        let place = file.display().to_string();
        let conn = open(&file, now_ms)?;
        let (jobs, queue) = mpsc::channel(limits::STORE_QUEUE);
        let shown_path = place.clone();
        let writer = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || run_writer(conn, queue, &shown_path))
            .map_err(|error| StoreError::Database {
                place: place.clone(),
                detail: format!("the store's thread cannot start: {error}"),
            })?;
        Ok(Self {
            label: place,
            file,
            jobs: Mutex::new(Some(jobs)),
            writer: Mutex::new(Some(writer)),
            queue_permits: Arc::new(Semaphore::new(limits::STORE_QUEUE_BYTES / PERMIT_BYTES)),
            readers: Arc::new(Semaphore::new(limits::STORE_READERS)),
            idle: Arc::default(),
        })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Sends a change to the writer and waits until it is durable or refused.
    pub(super) async fn apply(&self, change: Change) -> Result<ChangeOutcome, StoreError> {
        let jobs = lock(&self.jobs).clone().ok_or(StoreError::Closed)?;
        let permits = u32::try_from(change.bytes() / PERMIT_BYTES + 1).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.queue_permits)
            .acquire_many_owned(permits)
            .await
            .map_err(|_| StoreError::Closed)?;
        let (answer, answered) = oneshot::channel();
        let job = Job {
            change,
            answer,
            _queue_permit: permit,
        };
        jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        drop(jobs);
        answered.await.map_err(|_| StoreError::Closed)?
    }

    /// Runs a query, in a blocking thread.
    pub(super) async fn query(&self, question: Query) -> Result<QueryResult, StoreError> {
        let permit = Arc::clone(&self.readers)
            .acquire_owned()
            .await
            .map_err(|_| StoreError::Closed)?;
        let (file, place) = (self.file.clone(), self.label.clone());
        let idle = Arc::clone(&self.idle);
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let conn = lock(&idle).pop();
            let mut conn = match conn {
                Some(conn) => conn,
                None => connect_reader(&file)
                    .map_err(|error| db_error(&error).into_store_error(&place, false))?,
            };
            let found = run_read(&mut conn, &question);
            match found {
                Err(TransactionError::Database(trouble)) => {
                    Err(trouble.into_store_error(&place, false))
                }
                Err(TransactionError::Refused(error)) => {
                    lock(&idle).push(conn);
                    Err(error)
                }
                Ok(found) => {
                    lock(&idle).push(conn);
                    Ok(found)
                }
            }
        });
        read.await.map_err(|_| StoreError::Closed)?
    }

    /// Refuses new operations and waits until all accepted ones are answered.
    pub(super) async fn close(&self) {
        lock(&self.jobs).take();
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer {
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
        lock(&self.idle).clear();
    }
}

/// A panic while the lock is held cannot leave the value half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ensures that directory and file exist and that only this user can access them. Returns the path.
fn prepare_file(dir: &Path) -> Result<PathBuf, StoreError> {
    let failed = |path: &Path, error: &io::Error| StoreError::InsecureFile {
        path: path.display().to_string(),
        detail: error.to_string(),
    };
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(dir, &error));
        }
        _ => {}
    }
    let dir = fs::canonicalize(dir).map_err(|error| failed(dir, &error))?;
    check_private(&dir, 0o700)?;
    let file = dir.join(FILE_NAME);
    fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&file)
        .map_err(|error| failed(&file, &error))?;
    check_private(&file, 0o600)?;
    Ok(file)
}

/// Checks that this user owns a path and nobody else can access it.
fn check_private(path: &Path, wanted: u32) -> Result<(), StoreError> {
    let refused = |detail| StoreError::InsecureFile {
        path: path.display().to_string(),
        detail,
    };
    let meta = fs::symlink_metadata(path).map_err(|error| refused(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own {
        return Err(refused(format!(
            "belongs to uid {}, but this supervisor runs as uid {own}",
            meta.uid()
        )));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(refused(format!(
            "has mode {mode:04o}, so others could read or change the store: run `chmod {wanted:o}` on it"
        )));
    }
    Ok(())
}

/// Opens the database for writing, checks that it is a store, and migrates its schema.
fn open(file: &Path, now_ms: i64) -> Result<Connection, StoreError> {
    let place = file.display().to_string();
    let store_error = |error: &rusqlite::Error| db_error(error).into_store_error(&place, false);
    let mut conn = connect(file, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|e| store_error(&e))?;
    let id: i64 = conn
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(|e| store_error(&e))?;
    let pages: i64 = conn
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .map_err(|e| store_error(&e))?;
    if id != APPLICATION_ID && (id != 0 || pages > 0) {
        return Err(StoreError::InsecureFile {
            path: place,
            detail: "is a database of another program: move it, or use another state directory"
                .to_owned(),
        });
    }
    // Takes effect in an empty file only: what a sweep empties can then be given back.
    let configured = conn
        .pragma_update(None, "auto_vacuum", "INCREMENTAL")
        .and_then(|()| conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())))
        .and_then(|()| conn.pragma_update(None, "synchronous", "FULL"))
        .and_then(|()| conn.pragma_update(None, "wal_autocheckpoint", WAL_PAGES));
    configured.map_err(|e| store_error(&e))?;
    let found = migrate(&mut conn, now_ms).map_err(|e| store_error(&e))?;
    if found > schema::latest_version() {
        return Err(StoreError::Newer {
            place,
            found,
            known: schema::latest_version(),
        });
    }
    Ok(conn)
}

fn connect(file: &Path, mode: OpenFlags) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(
        file,
        mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW,
    )?;
    conn.busy_timeout(limits::STORE_BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

fn connect_reader(file: &Path) -> rusqlite::Result<Connection> {
    connect(file, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// Migrates an older schema, and returns the version that was found.
fn migrate(conn: &mut Connection, now_ms: i64) -> rusqlite::Result<i64> {
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    tx.execute_batch(schema::VERSION_TABLE)?;
    let sql = "SELECT COALESCE(MAX(version), 0) FROM marshal_store";
    let found: i64 = tx.query_row(sql, [], |row| row.get(0))?;
    for (version, sql) in schema::migrations_after(found, " TEXT", " BLOB") {
        tx.execute_batch(&sql)?;
        tx.execute(
            "INSERT INTO marshal_store (version, at_ms) VALUES (?1, ?2)",
            [version, now_ms],
        )?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    tx.commit()?;
    Ok(found)
}

/// The writer's thread: it runs until all senders are dropped.
fn run_writer(mut conn: Connection, mut queue: mpsc::Receiver<Job>, place: &str) {
    while let Some(first) = queue.blocking_recv() {
        let mut bytes = first.change.bytes();
        let mut batch = vec![first];
        while batch.len() < limits::STORE_BATCH && bytes < limits::STORE_BATCH_BYTES {
            let Ok(next) = queue.try_recv() else { break };
            bytes += next.change.bytes();
            batch.push(next);
        }
        write_batch(&mut conn, batch, place);
    }
}

fn write_batch(conn: &mut Connection, batch: Vec<Job>, place: &str) {
    match run_transaction(conn, &batch) {
        Ok(mut results) => {
            release_free_pages(conn, &mut results, place);
            for (job, result) in batch.into_iter().zip(results) {
                // The caller may be gone; the change is durable anyway.
                let _ = job.answer.send(result);
            }
        }
        // The error of one change need not occur for the others.
        Err(trouble) if batch.len() > 1 && trouble.kind != DbErrorKind::Locked => {
            for job in batch {
                write_batch(conn, vec![job], place);
            }
        }
        Err(trouble) => {
            for job in batch {
                let _ = job
                    .answer
                    .send(Err(trouble.clone().into_store_error(place, false)));
            }
        }
    }
}

/// Returns pages that sweeps emptied to the file system, a bounded number for each sweep.
fn release_free_pages(
    conn: &Connection,
    results: &mut [Result<ChangeOutcome, StoreError>],
    place: &str,
) {
    for result in results {
        let Ok(ChangeOutcome::Swept(swept)) = result else {
            continue;
        };
        match vacuum(conn) {
            Ok(more) => swept.has_more |= more,
            // The sweep succeeded anyway, and later writes reuse these pages.
            Err(error) => tracing::debug!(place, %error, "the store's empty pages cannot be freed"),
        }
    }
}

/// Each step of the statement gives back one page. Says whether another time would give back more.
fn vacuum(conn: &Connection) -> rusqlite::Result<bool> {
    let empty = || conn.pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0));
    let before = empty()?;
    let pages = limits::STORE_VACUUM_PAGES;
    let mut statement = conn.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let left = empty()?;
    Ok(0 < left && left < before)
}

/// Executes changes in one transaction. A refused change is rolled back alone.
fn run_transaction(
    conn: &mut Connection,
    batch: &[Job],
) -> Result<Vec<Result<ChangeOutcome, StoreError>>, DbError> {
    if !conn.is_autocommit() {
        execute_sql(conn, "ROLLBACK")?;
    }
    execute_sql(conn, "BEGIN IMMEDIATE")?;
    let done = apply_jobs(conn, batch).and_then(|results| {
        execute_sql(conn, "COMMIT")?;
        Ok(results)
    });
    // SQLite may have rolled back by itself (a full disk, an IO error).
    if done.is_err() && !conn.is_autocommit() {
        execute_sql(conn, "ROLLBACK")?;
    }
    done
}

fn apply_jobs(
    conn: &mut Connection,
    batch: &[Job],
) -> Result<Vec<Result<ChangeOutcome, StoreError>>, DbError> {
    let mut results = Vec::with_capacity(batch.len());
    for job in batch {
        execute_sql(conn, "SAVEPOINT change")?;
        let mut transaction = Transaction(&mut *conn);
        match poll_ready(apply_change(&mut transaction, &job.change, false)) {
            Ok(done) => results.push(Ok(done)),
            Err(TransactionError::Refused(error)) => {
                execute_sql(conn, "ROLLBACK TO change")?;
                results.push(Err(error));
            }
            Err(TransactionError::Database(trouble)) => return Err(trouble),
        }
        execute_sql(conn, "RELEASE change")?;
    }
    Ok(results)
}

fn execute_sql(conn: &Connection, sql: &str) -> Result<(), DbError> {
    let mut statement = conn.prepare_cached(sql).map_err(|error| db_error(&error))?;
    statement.execute([]).map_err(|error| db_error(&error))?;
    Ok(())
}

/// Runs a query on one state of the database.
fn run_read(conn: &mut Connection, question: &Query) -> Result<QueryResult, TransactionError> {
    execute_sql(conn, "BEGIN")?;
    let found = poll_ready(run_query(&mut Transaction(&mut *conn), question));
    execute_sql(conn, "ROLLBACK")?;
    found
}

/// Runs what never waits: the statements of SQLite are done when they return.
fn poll_ready<T>(
    work: impl Future<Output = Result<T, TransactionError>>,
) -> Result<T, TransactionError> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => {
            Err(DbError::new(DbErrorKind::Other, "a statement waited for the database").into())
        }
    }
}

struct Transaction<'a>(&'a mut Connection);

impl Transaction<'_> {
    fn query_rows(&self, sql: &str, values: &[Value]) -> rusqlite::Result<Vec<Row>> {
        let mut statement = self.0.prepare_cached(&sql.replace('$', "?"))?;
        let columns = statement.column_count();
        let mut found = Vec::new();
        let mut rows = statement.query(rusqlite::params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let value = |at| {
                Ok(match row.get_ref(at)? {
                    ValueRef::Integer(number) => Value::Int(number),
                    ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
                    ValueRef::Blob(bytes) => Value::Bytes(Bytes::copy_from_slice(bytes)),
                    ValueRef::Null | ValueRef::Real(_) => Value::Null,
                })
            };
            found.push(Row((0..columns)
                .map(value)
                .collect::<rusqlite::Result<_>>()?));
        }
        Ok(found)
    }
}

// A connection is used by one thread at a time, which `now` never leaves.
impl DbTransaction for Transaction<'_> {
    const LOCK: &'static str = "";
    const LOCK_SKIP_LOCKED: &'static str = "";

    fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<Vec<Row>, DbError>> + Send {
        ready(
            self.query_rows(sql, values)
                .map_err(|error| db_error(&error)),
        )
    }

    fn execute(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<u64, DbError>> + Send {
        let done = self
            .0
            .prepare_cached(&sql.replace('$', "?"))
            .and_then(|mut statement| statement.execute(rusqlite::params_from_iter(values)));
        ready(match done {
            Ok(changed) => Ok(changed as u64),
            Err(error) => Err(db_error(&error)),
        })
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn db_error(error: &rusqlite::Error) -> DbError {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DbErrorKind::Locked,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => DbErrorKind::Corrupt,
        Some(ErrorCode::DiskFull) => DbErrorKind::Full,
        _ => DbErrorKind::Other,
    };
    DbError::new(kind, error.to_string())
}
