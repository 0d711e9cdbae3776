//! Commits -> one transaction a batch, and the commits that are left out of it.
//!
//! Owns the transaction, the set of sessions with a gap, and the audit chain's head. Must not know
//! threads, retries or health; `rows` writes the rows.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

use super::audit::{self, ChainHead};
use super::commit::{Commit, CommitResult, Write};
use super::error::Violation;
use super::rows::{INSERT_EVENT, RowWriter, StagedChanges, WriteError};
use marshal_model::SessionId;
use marshal_model::limits;

/// Why a batch is not durable.
#[derive(Debug)]
pub(super) enum CommitFailure {
    /// The commit with this index must be left out; the batch is retried without it.
    LeftOut(usize, Violation),
    /// SQLite failed; nothing of the batch is in the database.
    Database(rusqlite::Error),
}

/// A commit of a batch, and its result so far.
pub(super) struct BatchEntry {
    pub(super) commit: Commit,
    /// Set when the commit must be left out.
    pub(super) violation: Option<Violation>,
    /// The size of its event bodies, in bytes.
    bytes: u64,
}

impl BatchEntry {
    pub(super) fn outcome(&self) -> CommitResult {
        match &self.violation {
            None => CommitResult::Durable { bytes: self.bytes },
            Some(violation) => CommitResult::Rejected(violation.clone()),
        }
    }
}

/// What became durable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CommitStats {
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// How long the COMMIT took: the log's write and its sync.
    pub(super) commit_took: std::time::Duration,
}

pub(super) struct Store {
    conn: Connection,
    epoch: u64,
    /// The last durable seq of every open session that was written to.
    last: HashMap<SessionId, u64>,
    /// Sessions with a gap in their events.
    broken: HashSet<SessionId>,
    head: ChainHead,
    /// A buffer for event bodies, reused between events.
    body: Vec<u8>,
}

impl Store {
    pub(super) fn new(conn: Connection, epoch: u64) -> rusqlite::Result<Self> {
        let head = audit::read_chain_head(&conn)?;
        Ok(Self {
            conn,
            epoch,
            last: HashMap::new(),
            broken: HashSet::new(),
            head,
            body: Vec::new(),
        })
    }

    /// The connection, for use between two batches.
    pub(super) fn conn(&self) -> &Connection {
        &self.conn
    }

    pub(super) fn head(&self) -> &ChainHead {
        &self.head
    }

    /// Continues with a new connection, after an error that may be permanent on the old one.
    pub(super) fn reconnect(&mut self, conn: Connection) {
        self.conn = conn;
    }

    /// The connection, for a simulated disk.
    pub(super) const fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Builds a batch of these commits; those of sessions with a gap are left out.
    pub(super) fn build_entries(&self, commits: Vec<Commit>) -> Vec<BatchEntry> {
        let entry = |commit| BatchEntry {
            violation: find_broken_session(&commit, &self.broken),
            commit,
            bytes: 0,
        };
        commits.into_iter().map(entry).collect()
    }

    /// Makes the batch durable in one transaction, except for entries that are left out.
    pub(super) fn commit(
        &mut self,
        batch: &mut [BatchEntry],
    ) -> Result<CommitStats, CommitFailure> {
        self.conn
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut begin| begin.execute([]))
            .map_err(CommitFailure::Database)?;
        let mut staged = StagedChanges::default();
        let result = self.write_batch(batch, &mut staged).and_then(|()| {
            let started = std::time::Instant::now();
            self.conn
                .prepare_cached("COMMIT")
                .and_then(|mut commit| commit.execute([]))
                .map_err(CommitFailure::Database)?;
            Ok(started.elapsed())
        });
        match result {
            Ok(commit_took) => {
                let written = CommitStats {
                    events: staged.events,
                    bytes: staged.bytes,
                    commit_took,
                };
                self.apply_staged(staged);
                Ok(written)
            }
            Err(failure) => {
                self.roll_back();
                if let CommitFailure::LeftOut(index, violation) = &failure {
                    self.exclude_entry(batch, *index, violation);
                }
                Err(failure)
            }
        }
    }

    /// Makes these commits durable, except for those that the rows do not allow.
    pub(super) fn commit_all(&mut self, commits: Vec<Commit>) -> rusqlite::Result<()> {
        let mut batch = self.build_entries(commits);
        while !batch.is_empty() {
            match self.commit(&mut batch) {
                Ok(_) => break,
                // Every round leaves one more entry out, so the loop ends.
                Err(CommitFailure::LeftOut(_, violation)) => {
                    tracing::error!(%violation, "a row of an earlier start stays open");
                }
                Err(CommitFailure::Database(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn apply_staged(&mut self, staged: StagedChanges) {
        self.last.extend(staged.last);
        for session in staged.ended {
            self.last.remove(&session);
        }
        if let Some(head) = staged.head {
            self.head = head;
        }
    }

    fn roll_back(&self) {
        // SQLite may have rolled back by itself (a full disk, an IO error).
        if !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("ROLLBACK");
        }
    }

    /// Leaves an entry out. After a gap, also leaves out all later entries of its session: the
    /// entries before the gap are in order and stay.
    fn exclude_entry(&mut self, batch: &mut [BatchEntry], index: usize, violation: &Violation) {
        if let Violation::Gap { session, .. } = violation {
            self.broken.insert(session.clone());
            for later in batch.iter_mut().skip(index + 1) {
                if later.violation.is_none() {
                    later.violation = find_broken_session(&later.commit, &self.broken);
                }
            }
        }
        if let Some(entry) = batch.get_mut(index) {
            entry.violation = Some(violation.clone());
        }
    }

    fn write_batch(
        &mut self,
        batch: &mut [BatchEntry],
        staged: &mut StagedChanges,
    ) -> Result<(), CommitFailure> {
        let mut body = std::mem::take(&mut self.body);
        let mut writer = RowWriter {
            insert_event: self
                .conn
                .prepare_cached(INSERT_EVENT)
                .map_err(CommitFailure::Database)?,
            conn: &self.conn,
            epoch: self.epoch,
            last: &self.last,
            head: &self.head,
            staged,
            body: &mut body,
        };
        for (index, entry) in batch.iter_mut().enumerate() {
            if entry.violation.is_some() {
                continue;
            }
            let before = writer.staged.bytes;
            for write in &entry.commit.writes {
                match writer.write(write) {
                    Ok(()) => {}
                    Err(WriteError::Violation(violation)) => {
                        return Err(CommitFailure::LeftOut(index, violation));
                    }
                    Err(WriteError::Database(error)) => return Err(CommitFailure::Database(error)),
                }
            }
            entry.bytes = writer.staged.bytes - before;
        }
        drop(writer);
        // One huge event must not keep its memory for ever.
        body.shrink_to(limits::READ_CHUNK_BYTES);
        self.body = body;
        Ok(())
    }
}

/// Whether a commit has an event of a session with a gap.
fn find_broken_session(commit: &Commit, broken: &HashSet<SessionId>) -> Option<Violation> {
    if broken.is_empty() {
        return None;
    }
    commit.writes.iter().find_map(|write| match write {
        Write::Events { session, .. } if broken.contains(session) => {
            Some(Violation::Broken(session.clone()))
        }
        _ => None,
    })
}
