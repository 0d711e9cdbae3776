//! Retention: removes old versions, files deleted long ago, then content that no version refers to,
//! and paths without a file.
//!
//! One sweep removes a bounded number of versions; the caller repeats it while there are more.

use super::error::TransactionError;
use super::rows::{DbTransaction, Row, Value};
use super::version::{Retention, SweepReport};
use marshal_model::limits;

/// Removes versions older than `before` (milliseconds) that are not among the newest of their file,
/// and files deleted before it. Then, above the limit of bytes, it removes versions that are not
/// among the newest, and deleted files, oldest first.
pub(super) async fn sweep<R: DbTransaction>(
    rows: &mut R,
    retention: &Retention,
    before: i64,
) -> Result<SweepReport, TransactionError> {
    let mut swept = SweepReport {
        bytes_left: stored_bytes(rows).await?,
        ..SweepReport::default()
    };
    let newest = retention.keep_newest.max(1);
    let old = old_versions(rows, newest, before, limits::STORE_SWEEP).await?;
    swept.has_more = old.len() >= limits::STORE_SWEEP as usize;
    for row in &old {
        remove_version(rows, row, &mut swept).await?;
    }
    if !swept.has_more {
        remove_deleted_files(rows, before, 0, &mut swept).await?;
    }
    if !swept.has_more && swept.bytes_left > retention.max_bytes {
        let younger = self::old_versions(rows, newest, i64::MAX, limits::STORE_SWEEP).await?;
        let all = younger.len() < limits::STORE_SWEEP as usize;
        let mut removed = 0;
        for row in &younger {
            if swept.bytes_left <= retention.max_bytes {
                break;
            }
            remove_version(rows, row, &mut swept).await?;
            removed += 1;
        }
        swept.has_more =
            swept.bytes_left > retention.max_bytes && (removed < younger.len() || !all);
    }
    if !swept.has_more && swept.bytes_left > retention.max_bytes {
        remove_deleted_files(rows, i64::MAX, retention.max_bytes, &mut swept).await?;
    }
    if !swept.has_more {
        remove_empty_paths(rows, &mut swept).await?;
    }
    Ok(swept)
}

/// Removes files deleted before a time, the oldest deletion first, with all their versions, while
/// there is more content than `bytes`; or all of them if that is 0.
async fn remove_deleted_files<R: DbTransaction>(
    rows: &mut R,
    before: i64,
    bytes: u64,
    swept: &mut SweepReport,
) -> Result<(), TransactionError> {
    let sql = "SELECT f.id, f.workspace, f.path FROM marshal_files f \
               JOIN marshal_versions v ON v.file = f.id AND v.v = f.current \
               WHERE f.deleted = 1 AND v.at_ms < $1 ORDER BY v.at_ms, f.id LIMIT $2";
    let most = limits::STORE_SWEEP_FILES;
    let values = [before.into(), i64::from(most).into()];
    let found = rows.query(sql, &values).await?;
    for row in &found {
        if bytes > 0 && swept.bytes_left <= bytes {
            return Ok(());
        }
        if lock_deleted_path(rows, row).await? {
            remove_file(rows, row.text(0)?, swept).await?;
        }
    }
    swept.has_more = found.len() >= most as usize;
    Ok(())
}

/// Locks the row of a path whose file is deleted, and returns whether it is still deleted. A file
/// that another one replaced has no row any more, so nobody writes it.
async fn lock_deleted_path<R: DbTransaction>(
    rows: &mut R,
    row: &Row,
) -> Result<bool, TransactionError> {
    let file = row.text(0)?;
    let place = [Value::from(row.text(1)?), Value::from(row.text(2)?)];
    let sql = "SELECT file FROM marshal_paths WHERE workspace = $1 AND path = $2";
    let found = rows.query(sql, &place).await?;
    let at_path = found.first().map_or(Ok(None), |row| row.optional_text(0))?;
    if at_path != Some(file) {
        return Ok(true);
    }
    let [workspace, path] = place;
    let sql = format!(
        "SELECT 1 FROM marshal_paths WHERE workspace = $1 AND path = $2 AND file = $3{}",
        R::LOCK_SKIP_LOCKED
    );
    let contents = rows.query(&sql, &[workspace, path, file.into()]).await?;
    if contents.is_empty() {
        return Ok(false);
    }
    // The previous owner of the row may have created the file again.
    let sql = "SELECT 1 FROM marshal_files WHERE id = $1 AND deleted = 1";
    Ok(!rows.query(sql, &[file.into()]).await?.is_empty())
}

async fn remove_file<R: DbTransaction>(
    rows: &mut R,
    file: &str,
    swept: &mut SweepReport,
) -> Result<(), TransactionError> {
    let sql = "SELECT v.file, v.v, v.held, v.digest FROM marshal_versions v WHERE v.file = $1";
    for row in &rows.query(sql, &[file.into()]).await? {
        remove_version(rows, row, swept).await?;
    }
    let sql = "DELETE FROM marshal_paths WHERE file = $1 AND (workspace, path) IN \
               (SELECT f.workspace, f.path FROM marshal_files f WHERE f.id = $1)";
    rows.execute(sql, &[file.into()]).await?;
    let sql = "DELETE FROM marshal_files WHERE id = $1";
    swept.files += rows.execute(sql, &[file.into()]).await?;
    Ok(())
}

/// Removes rows of paths without a file, except those that another transaction has locked.
async fn remove_empty_paths<R: DbTransaction>(
    rows: &mut R,
    swept: &mut SweepReport,
) -> Result<(), TransactionError> {
    let sql = format!(
        "DELETE FROM marshal_paths WHERE (workspace, path) IN \
         (SELECT workspace, path FROM marshal_paths WHERE file IS NULL LIMIT $1{})",
        R::LOCK_SKIP_LOCKED
    );
    let most = limits::STORE_SWEEP_PATHS;
    let removed = rows.execute(&sql, &[i64::from(most).into()]).await?;
    swept.has_more = removed >= u64::from(most);
    Ok(())
}

async fn stored_bytes<R: DbTransaction>(rows: &mut R) -> Result<u64, TransactionError> {
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM marshal_blobs";
    let found = rows.query(sql, &[]).await?;
    Ok(found.first().map_or(Ok(0), |row| row.count(0))?)
}

/// Versions that are not among the newest of their file, oldest first.
async fn old_versions<R: DbTransaction>(
    rows: &mut R,
    newest: u64,
    before: i64,
    most: u32,
) -> Result<Vec<Row>, TransactionError> {
    let sql = "SELECT v.file, v.v, v.held, v.digest FROM marshal_versions v \
               JOIN marshal_files f ON f.id = v.file \
               WHERE v.at_ms < $1 AND v.v <= f.current - $2 ORDER BY v.at_ms, v.file, v.v LIMIT $3";
    let values = [before.into(), newest.into(), i64::from(most).into()];
    Ok(rows.query(sql, &values).await?)
}

async fn remove_version<R: DbTransaction>(
    rows: &mut R,
    row: &Row,
    swept: &mut SweepReport,
) -> Result<(), TransactionError> {
    let sql = "DELETE FROM marshal_versions WHERE file = $1 AND v = $2";
    let values = [row.text(0)?.into(), row.int(1)?.into()];
    // Another supervisor's sweep may have been faster.
    if rows.execute(sql, &values).await? == 0 {
        return Ok(());
    }
    swept.versions += 1;
    if row.text(2)? != super::version::ContentState::Stored.as_str() {
        return Ok(());
    }
    let digest = row.optional_bytes(3)?.cloned();
    let key = Value::from(digest);
    let sql = "UPDATE marshal_blobs SET refs = refs - 1 WHERE digest = $1";
    rows.execute(sql, std::slice::from_ref(&key)).await?;
    let sql = "DELETE FROM marshal_blobs WHERE digest = $1 AND refs = 0 RETURNING bytes";
    let removed = rows.query(sql, std::slice::from_ref(&key)).await?;
    if let Some(blob) = removed.first() {
        let bytes = blob.count(0)?;
        swept.blobs += 1;
        swept.bytes_freed += bytes;
        swept.bytes_left = swept.bytes_left.saturating_sub(bytes);
        let sql = "DELETE FROM marshal_chunks WHERE digest = $1";
        rows.execute(sql, &[key]).await?;
    }
    Ok(())
}
