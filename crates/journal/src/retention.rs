//! Retention: removes ended sessions beyond the age limit, and the oldest ones when the database is
//! too large.
//!
//! Works in steps of some milliseconds between the writer's batches, so that no commit waits long.
//! A session leaves the list in one transaction and its rows in the following ones. If the process
//! ends in between, the next start continues. Nothing of an unfinished run or open session is
//! removed. Audit records leave in the order of their links, so the rest is a chain that begins at
//! the cut. Must not know threads or health.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};

use super::audit::{self, ChainHead};
use marshal_model::limits;

/// The limits of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionLimits {
    /// How long an ended session is kept; `None` means for ever.
    pub age: Option<Duration>,
    /// The maximum size of the database in bytes, without empty pages. Beyond it, the oldest ended
    /// sessions leave before their age limit.
    pub bytes: u64,
}

/// What one pass removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RemovedCounts {
    pub(super) sessions: u64,
    pub(super) events: u64,
    /// The last audit record that the pass removed, if any.
    pub(super) cut: Option<ChainHead>,
}

/// The next stage of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The rows of sessions that are no longer listed.
    Rows,
    /// The next session.
    Sessions,
    /// Runs without sessions.
    Runs,
    /// Audit records whose sessions are gone.
    Audit,
    /// Empty pages.
    Pages,
}

/// One pass over all tables, in steps.
#[derive(Debug)]
struct Pass {
    stage: Stage,
    /// Sessions that ended before this time are too old, in microseconds since the Unix epoch.
    before_us: i64,
    /// The size to shrink to, in bytes; `None` if the database is not too large.
    shrink_to: Option<u64>,
    /// The end time and id of the last session that was examined.
    cursor: (i64, String),
    /// The last run that was examined.
    run: String,
    returned_pages: bool,
    removed: RemovedCounts,
}

/// The state of retention.
#[derive(Debug)]
pub(super) struct Retention {
    limits: Option<RetentionLimits>,
    epoch: u64,
    pass: Option<Pass>,
    last_pass: Option<Instant>,
    last_step: Option<Instant>,
}

impl Retention {
    pub(super) fn new(keeping: Option<RetentionLimits>, epoch: u64) -> Self {
        Self {
            limits: keeping,
            epoch,
            pass: None,
            last_pass: None,
            last_step: None,
        }
    }

    /// Whether a pass is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.pass.is_some()
    }

    /// Makes a step, if one is due. Returns what the pass removed when the pass has ended.
    pub(super) fn run_step(
        &mut self,
        conn: &Connection,
        now_us: i64,
    ) -> rusqlite::Result<Option<RemovedCounts>> {
        let Some(keeping) = self.limits else {
            return Ok(None);
        };
        let due = |last: Option<Instant>, every| last.is_none_or(|at| at.elapsed() >= every);
        if !due(self.last_step, limits::RETENTION_PAUSE) {
            return Ok(None);
        }
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None if due(self.last_pass, limits::RETENTION_INTERVAL) => {
                self.last_pass = Some(Instant::now());
                Pass::new(conn, keeping, now_us)?
            }
            None => return Ok(None),
        };
        let goes_on = pass.step(conn, self.epoch, now_us);
        self.last_step = Some(Instant::now());
        // A failure ends the pass; the next pass continues with what is left.
        if goes_on? {
            self.pass = Some(pass);
            return Ok(None);
        }
        Ok(Some(pass.removed))
    }
}

impl Pass {
    fn new(conn: &Connection, keeping: RetentionLimits, now_us: i64) -> rusqlite::Result<Self> {
        let age = keeping
            .age
            .and_then(|age| i64::try_from(age.as_micros()).ok());
        let too_large = used_bytes(conn)? > keeping.bytes;
        Ok(Self {
            stage: Stage::Rows,
            before_us: age.map_or(i64::MIN, |age| now_us.saturating_sub(age)),
            // Shrinks below the limit, so that the next pass does not run for a few rows.
            shrink_to: too_large.then(|| keeping.bytes / 10 * 9),
            cursor: (i64::MIN, String::new()),
            run: String::new(),
            returned_pages: false,
            removed: RemovedCounts::default(),
        })
    }

    /// One step; `false` if nothing is left to do.
    fn step(&mut self, conn: &Connection, epoch: u64, now_us: i64) -> rusqlite::Result<bool> {
        if self.stage == Stage::Pages {
            return self.return_free_pages(conn);
        }
        let tx = conn.unchecked_transaction()?;
        // Replaces the state only when the step is durable.
        let mut next = Self {
            removed: self.removed.clone(),
            cursor: self.cursor.clone(),
            run: self.run.clone(),
            ..*self
        };
        let until = Instant::now() + limits::RETENTION_STEP;
        while next.stage != Stage::Pages && Instant::now() < until {
            match next.stage {
                Stage::Rows => next.remove_rows(&tx)?,
                Stage::Sessions => next.remove_next_session(&tx, epoch)?,
                Stage::Runs => next.remove_next_run(&tx, epoch)?,
                Stage::Audit => next.trim_audit_chain(&tx, now_us)?,
                Stage::Pages => {}
            }
        }
        tx.commit()?;
        *self = next;
        Ok(true)
    }

    /// Removes some rows of a session that is no longer listed.
    fn remove_rows(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let session: Option<String> = conn
            .prepare_cached("SELECT session FROM removals LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?;
        let Some(session) = session else {
            self.stage = Stage::Sessions;
            return Ok(());
        };
        let rows = limits::RETENTION_ROWS;
        let events = conn
            .prepare_cached(
                "DELETE FROM events WHERE session = ?1 AND seq < ?2 + \
                 (SELECT min(seq) FROM events WHERE session = ?1)",
            )?
            .execute(params![session, rows])?;
        self.removed.events += events as u64;
        if events > 0 {
            return Ok(());
        }
        // The columns that a record's hash covers stay until the chain is cut after it.
        let inputs = conn
            .prepare_cached(
                "UPDATE permission_requests SET input = NULL WHERE id IN (SELECT id FROM permission_requests \
                 WHERE session = ?1 AND input IS NOT NULL LIMIT ?2)",
            )?
            .execute(params![session, rows])?;
        if inputs > 0 {
            return Ok(());
        }
        conn.prepare_cached("DELETE FROM permission_requests WHERE session = ?1 AND link IS NULL")?
            .execute([&session])?;
        conn.prepare_cached("DELETE FROM approvals WHERE session = ?1")?
            .execute([&session])?;
        let turns = conn
            .prepare_cached(
                "DELETE FROM turns WHERE chat = ?1 AND seq < ?2 + \
                 (SELECT min(seq) FROM turns WHERE chat = ?1)",
            )?
            .execute(params![session, rows])?;
        if turns > 0 {
            return Ok(());
        }
        for (table, of) in [("plan_items", "item"), ("plan_reviews", "nth")] {
            let sql = format!(
                "DELETE FROM {table} WHERE chat = ?1 AND {of} IN \
                 (SELECT {of} FROM {table} WHERE chat = ?1 LIMIT ?2)"
            );
            let removed = conn.prepare_cached(&sql)?.execute(params![session, rows])?;
            if removed > 0 {
                return Ok(());
            }
        }
        conn.prepare_cached("DELETE FROM chats WHERE session = ?1")?
            .execute([&session])?;
        conn.prepare_cached("DELETE FROM removals WHERE session = ?1")?
            .execute([&session])?;
        Ok(())
    }

    /// Removes the next expired session from the list.
    fn remove_next_session(&mut self, conn: &Connection, epoch: u64) -> rusqlite::Result<()> {
        if let Some(limit) = self.shrink_to
            && used_bytes(conn)? <= limit
        {
            self.shrink_to = None;
        }
        let mut ended = conn.prepare_cached(
            "SELECT ended_at_us, session, run FROM sessions WHERE ended_at_us IS NOT NULL \
             AND (ended_at_us, session) > (?1, ?2) ORDER BY ended_at_us, session LIMIT ?3",
        )?;
        let (at, name) = &self.cursor;
        let mut rows = ended.query(params![at, name, limits::RETENTION_SESSIONS])?;
        let mut looks = 0;
        while let Some(row) = rows.next()? {
            looks += 1;
            let (ended_us, session): (i64, String) = (row.get("ended_at_us")?, row.get("session")?);
            if ended_us >= self.before_us && self.shrink_to.is_none() {
                looks = 0;
                break;
            }
            let run: Option<String> = row.get("run")?;
            self.cursor = (ended_us, session);
            if let Some(run) = run
                && is_run_open(conn, &run, epoch)?
            {
                continue;
            }
            let session = &self.cursor.1;
            conn.prepare_cached("INSERT INTO removals (session) VALUES (?1)")?
                .execute([session])?;
            conn.prepare_cached("DELETE FROM sessions WHERE session = ?1")?
                .execute([session])?;
            self.removed.sessions += 1;
            self.before_us = self.before_us.max(ended_us);
            self.stage = Stage::Rows;
            return Ok(());
        }
        if looks < limits::RETENTION_SESSIONS {
            self.stage = Stage::Runs;
        }
        Ok(())
    }

    /// Removes the next run that has ended, is old and has no sessions; its tasks first.
    fn remove_next_run(&mut self, conn: &Connection, epoch: u64) -> rusqlite::Result<()> {
        let run: Option<String> = conn
            .prepare_cached(
                "SELECT run FROM runs WHERE run > ?1 AND coalesce(ended_at_us, begun_at_us) < ?2 \
                 AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.run = runs.run) \
                 ORDER BY run LIMIT 1",
            )?
            .query_row(params![self.run, self.before_us], |row| row.get(0))
            .optional()?;
        let Some(run) = run else {
            self.stage = Stage::Audit;
            return Ok(());
        };
        if is_run_open(conn, &run, epoch)? {
            self.run = run;
            return Ok(());
        }
        let tasks = conn
            .prepare_cached(
                "DELETE FROM tasks WHERE run = ?1 AND id IN \
                 (SELECT id FROM tasks WHERE run = ?1 LIMIT ?2)",
            )?
            .execute(params![run, limits::RETENTION_ROWS])?;
        if tasks == 0 {
            conn.prepare_cached("DELETE FROM runs WHERE run = ?1")?
                .execute([&run])?;
            self.run = run;
        }
        Ok(())
    }

    /// Cuts the chain after the records whose sessions have been removed.
    fn trim_audit_chain(&mut self, conn: &Connection, now_us: i64) -> rusqlite::Result<()> {
        let cut = audit::read_chain_start(conn)?;
        let next = conn
            .prepare_cached(
                "SELECT id, link, hash FROM permission_requests WHERE link = ?1 AND NOT EXISTS \
                 (SELECT 1 FROM sessions WHERE sessions.session = permission_requests.session)",
            )?
            .query_row([i64::try_from(cut.link + 1).unwrap_or(i64::MAX)], |row| {
                <(String, i64, String)>::try_from(row)
            })
            .optional()?;
        let Some((id, link, hash)) = next else {
            self.stage = Stage::Pages;
            return Ok(());
        };
        conn.prepare_cached("DELETE FROM permission_requests WHERE id = ?1")?
            .execute([id])?;
        conn.prepare_cached(
            "INSERT INTO audit_cut (one, link, hash, at_us) VALUES (1, ?1, ?2, ?3) \
             ON CONFLICT (one) DO UPDATE SET link = ?1, hash = ?2, at_us = ?3",
        )?
        .execute(params![link, hash, now_us])?;
        let link = link.unsigned_abs();
        self.removed.cut = Some(ChainHead { link, hash });
        Ok(())
    }

    /// Returns empty pages to the file system, if the database was created with `auto_vacuum`.
    fn return_free_pages(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        /// SQLite's number of `INCREMENTAL`.
        const INCREMENTAL: u64 = 2;
        if read_pragma(conn, "auto_vacuum")? != INCREMENTAL {
            return Ok(false);
        }
        let until = Instant::now() + limits::RETENTION_STEP;
        while read_pragma(conn, "freelist_count")? > limits::RETENTION_SPARE_PAGES {
            let sql = format!("PRAGMA incremental_vacuum({})", limits::RETENTION_PAGES);
            let mut vacuum = conn.prepare(&sql)?;
            // Every row frees one page.
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            self.returned_pages = true;
            if Instant::now() >= until {
                return Ok(true);
            }
        }
        if self.returned_pages {
            // The file shrinks when the log is copied back; a reader may delay that.
            conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        }
        Ok(false)
    }
}

/// Whether a run has open tasks, or belongs to this process.
fn is_run_open(conn: &Connection, run: &str, epoch: u64) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM tasks WHERE run = ?1 AND state <> 'ended') \
         OR EXISTS (SELECT 1 FROM runs WHERE run = ?1 AND ended_at_us IS NULL \
         AND command <> 'up' AND epoch = ?2)",
    )?
    .query_row(
        params![run, i64::try_from(epoch).unwrap_or(i64::MAX)],
        |row| row.get(0),
    )
}

/// The size of the database in bytes, without its empty pages.
fn used_bytes(conn: &Connection) -> rusqlite::Result<u64> {
    let pages =
        read_pragma(conn, "page_count")?.saturating_sub(read_pragma(conn, "freelist_count")?);
    Ok(pages.saturating_mul(read_pragma(conn, "page_size")?))
}

fn read_pragma(conn: &Connection, name: &str) -> rusqlite::Result<u64> {
    conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        .map(i64::unsigned_abs)
}
