//! Opening the database: its directory and file, its schema and version, the new epoch.
//!
//! Owns the pragmas and the check of the version. A file's version is SQLite's `user_version`. Its
//! `application_id` distinguishes a journal from the databases of other programs. A file of another
//! version is refused.
//!
//! A change of `schema.sql` needs a new `VERSION`. Then change `commit.rs`, `rows.rs`, `reader.rs`
//! and every SELECT of that row, because columns are read by position.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::OpenError;
use marshal_model::limits;

/// The schema version that this program writes.
pub const VERSION: i64 = 9;

/// `mrsh` in ASCII.
const APPLICATION_ID: i64 = 0x6d72_7368;

const SCHEMA: &str = include_str!("schema.sql");

/// The database's file name in the state directory.
pub const FILE_NAME: &str = "journal.db";

/// Creates the directory and the file if they are missing, and checks that both are private to this
/// user. Returns the file's path without symbolic links.
pub(super) fn prepare_file(dir: &Path) -> Result<PathBuf, OpenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Directory { path, source }
    };
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(dir)(e)),
        _ => {}
    }
    let dir = fs::canonicalize(dir).map_err(failed(dir))?;
    check_private(&dir, 0o700)?;
    let file = dir.join(FILE_NAME);
    fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&file)
        .map_err(failed(&file))?;
    check_private(&file, 0o600)?;
    Ok(file)
}

/// Checks that a path belongs to this user and that nobody else can access it.
fn check_private(path: &Path, wanted: u32) -> Result<(), OpenError> {
    let meta = fs::symlink_metadata(path).map_err(|source| OpenError::Directory {
        path: path.to_owned(),
        source,
    })?;
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own {
        return Err(OpenError::Owner {
            path: path.to_owned(),
            owner: meta.uid(),
            own,
        });
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(OpenError::InsecureMode {
            path: path.to_owned(),
            mode,
            wanted,
        });
    }
    Ok(())
}

/// Opens a database for writing; waits at most `busy` for locks of other processes.
fn open_writable(file: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW,
    )?;
    conn.busy_timeout(busy)?;
    Ok(conn)
}

/// Opens a database for writing that is known to be a journal.
pub(super) fn connect(file: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = open_writable(file, busy)?;
    configure(&conn)?;
    Ok(conn)
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(64);
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        // SQLite reports no error for this case: a file system without shared memory.
        return Err(rusqlite::Error::InvalidParameterName(format!(
            "journal_mode is {mode}, not wal: the file system does not support shared memory"
        )));
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", limits::JOURNAL_WAL_PAGES)?;
    conn.pragma_update(
        None,
        "journal_size_limit",
        i64::try_from(limits::JOURNAL_WAL_LIMIT_BYTES).unwrap_or(i64::MAX),
    )?;
    Ok(())
}

/// Opens the database for reading only.
pub(super) fn connect_reader(file: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW,
    )?;
    conn.busy_timeout(busy)?;
    Ok(conn)
}

/// Opens and checks the database, creates the tables in an empty file, and begins a new epoch.
pub(super) fn open(file: &Path, at_us: i64) -> Result<(Connection, u64), OpenError> {
    let named = |source: rusqlite::Error| describe_open_error(file, source);
    let mut conn = open_writable(file, limits::JOURNAL_OPEN_TIMEOUT).map_err(named)?;
    // Before anything is changed: the file may belong to another program.
    check_version(&conn, file)?;
    // Takes effect only in an empty file. It allows retention to return the pages that it empties.
    conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")
        .map_err(named)?;
    configure(&conn).map_err(named)?;
    check_pages(&conn, file)?;
    let tx = conn
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(named)?;
    let stored_version: i64 = tx
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(named)?;
    if stored_version == 0 {
        tx.execute_batch(SCHEMA).map_err(named)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(named)?;
        tx.pragma_update(None, "user_version", VERSION)
            .map_err(named)?;
    }
    tx.execute(
        "INSERT INTO epochs (started_at_us, pid, version) VALUES (?1, ?2, ?3)",
        (at_us, std::process::id(), env!("CARGO_PKG_VERSION")),
    )
    .map_err(named)?;
    let epoch = tx.last_insert_rowid();
    let retention_us =
        i64::try_from(limits::SLOT_FAILURES_RETENTION.as_micros()).unwrap_or(i64::MAX);
    tx.execute(
        "DELETE FROM slot_failures WHERE at_us < ?1",
        [at_us.saturating_sub(retention_us)],
    )
    .map_err(named)?;
    super::spend::prune_spend(&tx, at_us).map_err(named)?;
    tx.commit().map_err(named)?;
    conn.busy_timeout(limits::JOURNAL_BUSY_TIMEOUT)
        .map_err(named)?;
    Ok((conn, u64::try_from(epoch).unwrap_or(0)))
}

/// Rejects a damaged database, as far as a read of all pages of a small one shows it.
fn check_pages(conn: &Connection, file: &Path) -> Result<(), OpenError> {
    let named = |source: rusqlite::Error| describe_open_error(file, source);
    let pragma = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = pragma("page_count").map_err(named)?;
    let page = pragma("page_size").map_err(named)?;
    let bytes = u64::try_from(pages.saturating_mul(page)).unwrap_or(0);
    if bytes <= limits::JOURNAL_CHECKED_BYTES {
        let verdict: String = conn
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(named)?;
        if verdict != "ok" {
            return Err(OpenError::Corrupt {
                path: file.to_owned(),
                detail: verdict.replace('\n', " "),
            });
        }
    }
    Ok(())
}

/// Rejects a schema of another version and a file of another program.
pub(super) fn check_version(conn: &Connection, file: &Path) -> Result<(), OpenError> {
    let named = |source: rusqlite::Error| describe_open_error(file, source);
    let pragma = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let found = pragma("user_version").map_err(named)?;
    let application = pragma("application_id").map_err(named)?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(named)?;
    let fresh = tables == 0 && found == 0;
    if !fresh && application != APPLICATION_ID {
        return Err(OpenError::ForeignDatabase {
            path: file.to_owned(),
        });
    }
    if found != 0 && found < VERSION {
        return Err(OpenError::Older {
            path: file.to_owned(),
            found,
            known: VERSION,
        });
    }
    if found > VERSION {
        return Err(OpenError::Newer {
            path: file.to_owned(),
            found,
            known: VERSION,
        });
    }
    Ok(())
}

/// Converts an error of SQLite at open into a precise one.
pub(super) fn describe_open_error(file: &Path, source: rusqlite::Error) -> OpenError {
    let path = file.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => OpenError::Corrupt {
            path,
            detail: source.to_string(),
        },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Locked {
            path,
            detail: source.to_string(),
        },
        _ => OpenError::Database { path, source },
    }
}
