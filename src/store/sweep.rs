//! What is kept no longer: old versions, files that are gone for long, and then content that no
//! version has, and paths where no file is.
//!
//! One sweep takes a bounded number of versions; the caller sweeps again while there is more.

use super::error::Fault;
use super::rows::{Row, Rows, Value};
use super::version::{Retention, Swept};
use crate::limits;

/// Removes what is older than `before` (milliseconds) and not among the newest of its file, and files
/// that are gone since before it; then, beyond the bound of bytes, what is not among the newest, and
/// files that are gone, oldest first.
pub(super) async fn sweep<R: Rows>(
    rows: &mut R,
    retention: &Retention,
    before: i64,
) -> Result<Swept, Fault> {
    let mut swept = Swept {
        left: stored(rows).await?,
        ..Swept::default()
    };
    let newest = retention.newest.max(1);
    let old = old(rows, newest, before, limits::STORE_SWEEP).await?;
    swept.more = old.len() >= limits::STORE_SWEEP as usize;
    for row in &old {
        remove(rows, row, &mut swept).await?;
    }
    if !swept.more {
        forget(rows, before, 0, &mut swept).await?;
    }
    if !swept.more && swept.left > retention.bytes {
        let younger = self::old(rows, newest, i64::MAX, limits::STORE_SWEEP).await?;
        let all = younger.len() < limits::STORE_SWEEP as usize;
        let mut removed = 0;
        for row in &younger {
            if swept.left <= retention.bytes {
                break;
            }
            remove(rows, row, &mut swept).await?;
            removed += 1;
        }
        swept.more = swept.left > retention.bytes && (removed < younger.len() || !all);
    }
    if !swept.more && swept.left > retention.bytes {
        forget(rows, i64::MAX, retention.bytes, &mut swept).await?;
    }
    if !swept.more {
        paths(rows, &mut swept).await?;
    }
    Ok(swept)
}

/// Removes files that are gone since before a time, the longest gone first, with everything that is
/// known of them, while there is more content than `bytes`; or all of them if that is 0.
async fn forget<R: Rows>(
    rows: &mut R,
    before: i64,
    bytes: u64,
    swept: &mut Swept,
) -> Result<(), Fault> {
    let sql = "SELECT f.id, f.workspace, f.path FROM marshal_files f \
               JOIN marshal_versions v ON v.file = f.id AND v.v = f.current \
               WHERE f.deleted = 1 AND v.at_ms < $1 ORDER BY v.at_ms, f.id LIMIT $2";
    let most = limits::STORE_SWEEP_FILES;
    let values = [before.into(), i64::from(most).into()];
    let found = rows.query(sql, &values).await?;
    for row in &found {
        if bytes > 0 && swept.left <= bytes {
            return Ok(());
        }
        if is_ours(rows, row).await? {
            forget_one(rows, row.text(0)?, swept).await?;
        }
    }
    swept.more = found.len() >= most as usize;
    Ok(())
}

/// Takes the row of a path whose file is gone, and says whether that is so still. A file that
/// another one came in the place of has no row any more: nobody writes it.
async fn is_ours<R: Rows>(rows: &mut R, row: &Row) -> Result<bool, Fault> {
    let file = row.text(0)?;
    let place = [Value::from(row.text(1)?), Value::from(row.text(2)?)];
    let sql = "SELECT file FROM marshal_paths WHERE workspace = $1 AND path = $2";
    let found = rows.query(sql, &place).await?;
    let at_path = found.first().map_or(Ok(None), |row| row.text_if(0))?;
    if at_path != Some(file) {
        return Ok(true);
    }
    let [workspace, path] = place;
    let sql = format!(
        "SELECT 1 FROM marshal_paths WHERE workspace = $1 AND path = $2 AND file = $3{}",
        R::LOCK_FREE
    );
    let held = rows.query(&sql, &[workspace, path, file.into()]).await?;
    if held.is_empty() {
        return Ok(false);
    }
    // Whoever had the row before may have made it again.
    let sql = "SELECT 1 FROM marshal_files WHERE id = $1 AND deleted = 1";
    Ok(!rows.query(sql, &[file.into()]).await?.is_empty())
}

async fn forget_one<R: Rows>(rows: &mut R, file: &str, swept: &mut Swept) -> Result<(), Fault> {
    let sql = "SELECT v.file, v.v, v.held, v.digest FROM marshal_versions v WHERE v.file = $1";
    for row in &rows.query(sql, &[file.into()]).await? {
        remove(rows, row, swept).await?;
    }
    let sql = "DELETE FROM marshal_paths WHERE file = $1 AND (workspace, path) IN \
               (SELECT f.workspace, f.path FROM marshal_files f WHERE f.id = $1)";
    rows.execute(sql, &[file.into()]).await?;
    let sql = "DELETE FROM marshal_files WHERE id = $1";
    swept.files += rows.execute(sql, &[file.into()]).await?;
    Ok(())
}

/// Removes rows of paths where no file is, but for those that somebody holds.
async fn paths<R: Rows>(rows: &mut R, swept: &mut Swept) -> Result<(), Fault> {
    let sql = format!(
        "DELETE FROM marshal_paths WHERE (workspace, path) IN \
         (SELECT workspace, path FROM marshal_paths WHERE file IS NULL LIMIT $1{})",
        R::LOCK_FREE
    );
    let most = limits::STORE_SWEEP_PATHS;
    let removed = rows.execute(&sql, &[i64::from(most).into()]).await?;
    swept.more = removed >= u64::from(most);
    Ok(())
}

async fn stored<R: Rows>(rows: &mut R) -> Result<u64, Fault> {
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM marshal_blobs";
    let found = rows.query(sql, &[]).await?;
    Ok(found.first().map_or(Ok(0), |row| row.count(0))?)
}

/// Versions that are not among the newest of their file, oldest first.
async fn old<R: Rows>(
    rows: &mut R,
    newest: u64,
    before: i64,
    most: u32,
) -> Result<Vec<Row>, Fault> {
    let sql = "SELECT v.file, v.v, v.held, v.digest FROM marshal_versions v \
               JOIN marshal_files f ON f.id = v.file \
               WHERE v.at_ms < $1 AND v.v <= f.current - $2 ORDER BY v.at_ms, v.file, v.v LIMIT $3";
    let values = [before.into(), newest.into(), i64::from(most).into()];
    Ok(rows.query(sql, &values).await?)
}

async fn remove<R: Rows>(rows: &mut R, row: &Row, swept: &mut Swept) -> Result<(), Fault> {
    let sql = "DELETE FROM marshal_versions WHERE file = $1 AND v = $2";
    let values = [row.text(0)?.into(), row.int(1)?.into()];
    // Somebody else's sweep may have been faster.
    if rows.execute(sql, &values).await? == 0 {
        return Ok(());
    }
    swept.versions += 1;
    if row.text(2)? != super::version::Held::Kept.word() {
        return Ok(());
    }
    let digest = row.bytes_if(3)?.cloned();
    let key = Value::from(digest);
    let sql = "UPDATE marshal_blobs SET refs = refs - 1 WHERE digest = $1";
    rows.execute(sql, std::slice::from_ref(&key)).await?;
    let sql = "DELETE FROM marshal_blobs WHERE digest = $1 AND refs = 0 RETURNING bytes";
    let gone = rows.query(sql, std::slice::from_ref(&key)).await?;
    if let Some(blob) = gone.first() {
        let bytes = blob.count(0)?;
        swept.blobs += 1;
        swept.freed += bytes;
        swept.left = swept.left.saturating_sub(bytes);
        let sql = "DELETE FROM marshal_chunks WHERE digest = $1";
        rows.execute(sql, &[key]).await?;
    }
    Ok(())
}
