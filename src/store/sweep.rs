//! What is kept no longer: old versions, then content that no version has.
//!
//! One sweep takes a bounded number of versions; the caller sweeps again while there is more.

use super::error::Fault;
use super::rows::{Row, Rows, Value};
use super::version::{Retention, Swept};
use crate::limits;

/// Removes what is older than `before` (milliseconds) and not among the newest of its file; then,
/// beyond the bound of bytes, what is not among the newest, oldest first.
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
    Ok(swept)
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
