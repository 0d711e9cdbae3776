//! Commits -> one transaction a batch, and what is left out of it.
//!
//! Owns the transaction, sessions that lost their order, and the audit chain's head. Must not
//! know threads, retries or health; rows are written by `rows`.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

use super::audit::{self, Head};
use super::commit::{Commit, Committed, Write};
use super::error::Violation;
use super::rows::{Fault, INSERT_EVENT, Staged, Writer};
use crate::limits;
use crate::model::SessionId;

/// Why a batch is not durable.
#[derive(Debug)]
pub(super) enum Failure {
    /// The commit with this index must be left out; the batch is to be tried again without it.
    Left(usize, Violation),
    /// SQLite failed; nothing of the batch is in the database.
    Database(rusqlite::Error),
}

/// A commit of a batch, with what is known of its fate.
pub(super) struct Entry {
    pub(super) commit: Commit,
    /// Set once it must be left out.
    pub(super) left: Option<Violation>,
    /// Bytes of event bodies in it.
    bytes: u64,
}

impl Entry {
    pub(super) fn outcome(&self) -> Committed {
        match &self.left {
            None => Committed::Durable { bytes: self.bytes },
            Some(violation) => Committed::Rejected(violation.clone()),
        }
    }
}

/// What became durable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// How long the COMMIT took: the log's write and its sync.
    pub(super) commit_took: std::time::Duration,
}

pub(super) struct Store {
    conn: Connection,
    epoch: u64,
    /// The last durable seq of every session that was written to and has not ended.
    last: HashMap<SessionId, u64>,
    /// Sessions that lost their order.
    broken: HashSet<SessionId>,
    head: Head,
    /// Reused for bodies.
    body: Vec<u8>,
}

impl Store {
    pub(super) fn new(conn: Connection, epoch: u64) -> rusqlite::Result<Self> {
        let head = audit::head(&conn)?;
        Ok(Self {
            conn,
            epoch,
            last: HashMap::new(),
            broken: HashSet::new(),
            head,
            body: Vec::new(),
        })
    }

    /// The connection, between two batches.
    pub(super) fn conn(&self) -> &Connection {
        &self.conn
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Goes on with another connection, after one that failed in a way that may last.
    pub(super) fn reconnect(&mut self, conn: Connection) {
        self.conn = conn;
    }

    /// Its connection, for what a simulated disk does to it.
    pub(super) const fn connection(&self) -> &Connection {
        &self.conn
    }

    /// A batch of these commits, without what belongs to sessions that lost their order.
    pub(super) fn batch(&self, commits: Vec<Commit>) -> Vec<Entry> {
        let entry = |commit| Entry {
            left: broken_in(&commit, &self.broken),
            commit,
            bytes: 0,
        };
        commits.into_iter().map(entry).collect()
    }

    /// Makes the batch durable, in one transaction, except for entries that are left out.
    pub(super) fn commit(&mut self, batch: &mut [Entry]) -> Result<Written, Failure> {
        self.conn
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut begin| begin.execute([]))
            .map_err(Failure::Database)?;
        let mut staged = Staged::default();
        let result = self.write_batch(batch, &mut staged).and_then(|()| {
            let started = std::time::Instant::now();
            self.conn
                .prepare_cached("COMMIT")
                .and_then(|mut commit| commit.execute([]))
                .map_err(Failure::Database)?;
            Ok(started.elapsed())
        });
        match result {
            Ok(commit_took) => {
                let written = Written {
                    events: staged.events,
                    bytes: staged.bytes,
                    commit_took,
                };
                self.take_over(staged);
                Ok(written)
            }
            Err(failure) => {
                self.roll_back();
                if let Failure::Left(index, violation) = &failure {
                    self.leave_out(batch, *index, violation);
                }
                Err(failure)
            }
        }
    }

    /// Makes these commits durable, leaving out what the rows do not allow.
    pub(super) fn commit_all(&mut self, commits: Vec<Commit>) -> rusqlite::Result<()> {
        let mut batch = self.batch(commits);
        while !batch.is_empty() {
            match self.commit(&mut batch) {
                Ok(_) => break,
                // One entry less to write in the next round, so this ends.
                Err(Failure::Left(_, violation)) => {
                    tracing::error!(%violation, "a row that a former start left open stays open");
                }
                Err(Failure::Database(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn take_over(&mut self, staged: Staged) {
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

    /// Leaves an entry out, and with a gap everything of its session that comes after it: what
    /// came before the gap is in order and stays.
    fn leave_out(&mut self, batch: &mut [Entry], index: usize, violation: &Violation) {
        if let Violation::Gap { session, .. } = violation {
            self.broken.insert(session.clone());
            for later in batch.iter_mut().skip(index + 1) {
                if later.left.is_none() {
                    later.left = broken_in(&later.commit, &self.broken);
                }
            }
        }
        if let Some(entry) = batch.get_mut(index) {
            entry.left = Some(violation.clone());
        }
    }

    fn write_batch(&mut self, batch: &mut [Entry], staged: &mut Staged) -> Result<(), Failure> {
        let mut body = std::mem::take(&mut self.body);
        let mut writer = Writer {
            insert_event: self
                .conn
                .prepare_cached(INSERT_EVENT)
                .map_err(Failure::Database)?,
            conn: &self.conn,
            epoch: self.epoch,
            last: &self.last,
            head: &self.head,
            staged,
            body: &mut body,
        };
        for (index, entry) in batch.iter_mut().enumerate() {
            if entry.left.is_some() {
                continue;
            }
            let before = writer.staged.bytes;
            for write in &entry.commit.writes {
                match writer.write(write) {
                    Ok(()) => {}
                    Err(Fault::Violation(violation)) => {
                        return Err(Failure::Left(index, violation));
                    }
                    Err(Fault::Database(error)) => return Err(Failure::Database(error)),
                }
            }
            entry.bytes = writer.staged.bytes - before;
        }
        drop(writer);
        // One huge event must not be remembered by its buffer for ever.
        body.shrink_to(limits::READ_CHUNK_BYTES);
        self.body = body;
        Ok(())
    }
}

/// Whether a commit has an event of a session that lost its order.
fn broken_in(commit: &Commit, broken: &HashSet<SessionId>) -> Option<Violation> {
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
