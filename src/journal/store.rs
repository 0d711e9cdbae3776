//! Commits -> rows: everything that is written, in one transaction a batch.
//!
//! Owns the statements, the dense order of every session and the audit chain's head. Must not
//! know threads, retries or health.

use std::collections::{HashMap, HashSet};

use rusqlite::{CachedStatement, Connection, ErrorCode, params};

use super::audit::{self, Head};
use super::codec;
use super::commit::{Commit, Committed, SessionRow, TaskChange, TaskRow, Write};
use super::error::Violation;
use crate::limits;
use crate::model::{
    Ask, AskId, Event, ExitClass, RunId, SessionId, SlotId, Stamped, TaskId, Verdict,
};

/// Why a batch is not durable.
#[derive(Debug)]
pub(super) enum Failure {
    /// The commit with this index must be left out; the batch is to be tried again without it.
    Left(usize, Violation),
    /// SQLite failed; nothing of the batch is in the database.
    Database(rusqlite::Error),
}

/// A write's failure, before it is known which commit it belongs to.
enum Fault {
    Violation(Violation),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => {
                Self::Violation(Violation::Row(error.to_string()))
            }
            _ => Self::Database(error),
        }
    }
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// What a batch changes beside the database; taken over when it is durable.
#[derive(Default)]
struct Staged {
    last: HashMap<SessionId, u64>,
    ended: Vec<SessionId>,
    head: Option<Head>,
    events: u64,
    bytes: u64,
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

const INSERT_EVENT: &str = "INSERT INTO events (session, seq, epoch, at_us, kind, version, body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

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

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Goes on with another connection, after one that failed in a way that may last.
    pub(super) fn reconnect(&mut self, conn: Connection) {
        self.conn = conn;
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

/// One batch being written.
struct Writer<'a> {
    insert_event: CachedStatement<'a>,
    conn: &'a Connection,
    epoch: u64,
    last: &'a HashMap<SessionId, u64>,
    head: &'a Head,
    staged: &'a mut Staged,
    body: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn write(&mut self, write: &Write) -> Result<(), Fault> {
        match write {
            Write::Events { session, events } => {
                for stamped in events.iter() {
                    self.event(session, stamped)?;
                }
                Ok(())
            }
            Write::SessionBegun(row) => self.session_begun(row),
            Write::SessionEnded {
                session,
                at_us,
                class,
            } => {
                self.execute(
                    "UPDATE sessions SET ended_at_us = ?2, class = ?3 WHERE session = ?1",
                    params![session.as_str(), at_us, class.map(ExitClass::word)],
                )?
                .one_or(|| Violation::NoSession(session.clone()))?;
                self.staged.ended.push(session.clone());
                Ok(())
            }
            Write::AskJudged { ask, judged } => self
                .execute(
                    "UPDATE asks SET policy = ?2, policy_sha256 = ?3, facts = ?4, eval_us = ?5 \
                     WHERE id = ?1 AND link IS NULL",
                    params![
                        ask.as_str(),
                        judged.policy,
                        judged.policy_sha256,
                        judged.facts,
                        signed(judged.eval_us)
                    ],
                )?
                .one_or(|| Violation::NoAsk(ask.clone())),
            Write::TaskQueued(row) => self.task_queued(row),
            Write::TaskUpdated {
                run,
                task,
                at_us,
                change,
            } => self.task_updated(run, task, *at_us, change),
            other => self.rest(other),
        }
    }

    /// Runs and slots.
    fn rest(&self, write: &Write) -> Result<(), Fault> {
        match write {
            Write::RunBegun {
                run,
                command,
                at_us,
            } => {
                self.execute(
                    "INSERT INTO runs (run, epoch, command, begun_at_us) VALUES (?1, ?2, ?3, ?4)",
                    params![run.as_str(), signed(self.epoch), command, at_us],
                )?;
            }
            Write::RunEnded { run, at_us, code } => self
                .execute(
                    "UPDATE runs SET ended_at_us = ?2, code = ?3 WHERE run = ?1",
                    params![run.as_str(), at_us, code],
                )?
                .one_or(|| Violation::NoRun(run.clone()))?,
            Write::SlotFailure {
                slot,
                class,
                at_us,
                detail,
            } => {
                self.execute(
                    "INSERT INTO slot_failures (pool, slot, at_us, class, detail) \
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![slot.pool.as_str(), slot.index, at_us, class.word(), detail],
                )?;
            }
            Write::SlotForgiven { slot } => {
                self.execute(
                    "DELETE FROM slot_failures WHERE pool = ?1 AND slot = ?2",
                    params![slot.pool.as_str(), slot.index],
                )?;
            }
            _ => {}
        }
        Ok(())
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<Changed, Fault> {
        Ok(Changed(self.conn.prepare_cached(sql)?.execute(params)?))
    }

    /// The last seq of a session, as this batch leaves it so far.
    fn last_of(&mut self, session: &SessionId) -> Result<u64, Fault> {
        let known = self
            .staged
            .last
            .get(session)
            .or_else(|| self.last.get(session));
        if let Some(last) = known {
            return Ok(*last);
        }
        let begun = self
            .conn
            .prepare_cached("SELECT 1 FROM sessions WHERE session = ?1")?
            .exists([session.as_str()])?;
        if !begun {
            return Err(Violation::NoSession(session.clone()).into());
        }
        let last: i64 = self
            .conn
            .prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE session = ?1")?
            .query_row([session.as_str()], |row| row.get(0))?;
        Ok(last.unsigned_abs())
    }

    fn event(&mut self, session: &SessionId, stamped: &Stamped) -> Result<(), Fault> {
        let last = self.last_of(session)?;
        let seq = stamped.id.seq;
        if stamped.id.epoch != self.epoch {
            return Err(Violation::Epoch(stamped.id, self.epoch).into());
        }
        if seq != last + 1 {
            return Err(Violation::Gap {
                session: session.clone(),
                last,
                got: seq,
            }
            .into());
        }
        match self.staged.last.get_mut(session) {
            Some(last) => *last = seq,
            None => {
                self.staged.last.insert(session.clone(), seq);
            }
        }
        self.body.clear();
        codec::encode_into(&stamped.event, self.body);
        let body = std::str::from_utf8(self.body)
            .map_err(|error| Violation::Row(format!("an event's body is no UTF-8: {error}")))?;
        self.insert_event.execute(params![
            session.as_str(),
            signed(seq),
            signed(self.epoch),
            stamped.at_us,
            stamped.event.kind().word(),
            codec::VERSION,
            body
        ])?;
        self.staged.events += 1;
        self.staged.bytes += body.len() as u64;
        match &stamped.event {
            Event::Asked { id, ask } => self.asked(session, stamped, id, ask),
            Event::Decided(verdict) => self.decided(stamped, verdict),
            _ => Ok(()),
        }
    }

    fn asked(
        &self,
        session: &SessionId,
        stamped: &Stamped,
        id: &AskId,
        ask: &Ask,
    ) -> Result<(), Fault> {
        let input = ask.input.get();
        let stored = (input.len() <= limits::ASK_INPUT_BYTES).then_some(input);
        self.execute(
            "INSERT INTO asks (id, session, asked_seq, request_key, tool_id, tool, input, \
             input_sha256, claimed, asked_at_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                id.as_str(),
                session.as_str(),
                signed(stamped.id.seq),
                ask.key.0,
                ask.tool_id.as_ref().map(crate::model::Foreign::raw),
                ask.tool.raw(),
                stored,
                audit::sha256_hex(input.as_bytes()),
                codec::claimed_json(&ask.claimed),
                stamped.at_us
            ],
        )?;
        Ok(())
    }

    /// Ends an ask and links its row into the chain.
    fn decided(&mut self, stamped: &Stamped, verdict: &Verdict) -> Result<(), Fault> {
        let rules = serde_json::to_string(&verdict.rules).unwrap_or_default();
        self.execute(
            "UPDATE asks SET decided_seq = ?2, decision = ?3, decided_by = ?4, rules = ?5, \
             reason = ?6, decided_at_us = ?7 WHERE id = ?1 AND link IS NULL",
            params![
                verdict.ask.as_str(),
                signed(stamped.id.seq),
                verdict.decision.word(),
                verdict.by.word(),
                rules,
                verdict.reason,
                stamped.at_us
            ],
        )?
        .one_or(|| Violation::NoAsk(verdict.ask.clone()))?;
        let prev = self.staged.head.as_ref().unwrap_or(self.head);
        let link = prev.link + 1;
        let prev_hash = prev.hash.clone();
        // The columns are read back, so that what is hashed is what is stored.
        let hash = self
            .conn
            .prepare_cached(audit::SELECT_COVERED)?
            .query_row([verdict.ask.as_str()], |row| {
                audit::hash_row(link, &prev_hash, row, 0)
            })?;
        self.execute(
            "UPDATE asks SET link = ?2, prev_hash = ?3, hash = ?4 WHERE id = ?1",
            params![verdict.ask.as_str(), signed(link), prev_hash, hash],
        )?;
        self.staged.head = Some(Head { link, hash });
        Ok(())
    }

    fn session_begun(&mut self, row: &SessionRow) -> Result<(), Fault> {
        let (run, task) = match &row.task {
            Some((run, task)) => (Some(run.as_str()), Some(task.as_str())),
            None => (None, None),
        };
        self.execute(
            "INSERT INTO sessions (session, epoch, pool, slot, run, task, attempt, begun_at_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                row.session.as_str(),
                signed(self.epoch),
                row.slot.pool.as_str(),
                row.slot.index,
                run,
                task,
                row.attempt,
                row.at_us
            ],
        )?;
        self.staged.last.insert(row.session.clone(), 0);
        Ok(())
    }

    fn task_queued(&self, row: &TaskRow) -> Result<(), Fault> {
        self.execute(
            "INSERT INTO tasks (run, id, place, pool, prompt, spec, state, queued_at_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'queued', ?7)",
            params![
                row.run.as_str(),
                row.spec.id.as_str(),
                row.place,
                row.pool.as_str(),
                row.spec.prompt.raw(),
                codec::spec_json(&row.spec),
                row.at_us
            ],
        )?;
        Ok(())
    }

    fn task_updated(
        &self,
        run: &RunId,
        task: &TaskId,
        at_us: i64,
        change: &TaskChange,
    ) -> Result<(), Fault> {
        let changed = match change {
            TaskChange::Begun {
                attempt,
                slot: SlotId { index, .. },
                session,
            } => self.execute(
                "UPDATE tasks SET state = 'running', attempts = ?3, slot = ?4, session = ?5, \
                 begun_at_us = coalesce(begun_at_us, ?6) WHERE run = ?1 AND id = ?2",
                params![
                    run.as_str(),
                    task.as_str(),
                    attempt,
                    index,
                    session.as_str(),
                    at_us
                ],
            )?,
            TaskChange::Requeued => self.execute(
                "UPDATE tasks SET state = 'queued' WHERE run = ?1 AND id = ?2",
                params![run.as_str(), task.as_str()],
            )?,
            TaskChange::Ended {
                outcome,
                detail,
                result,
            } => self.execute(
                "UPDATE tasks SET state = 'ended', outcome = ?3, detail = ?4, result = ?5, \
                 ended_at_us = ?6 WHERE run = ?1 AND id = ?2",
                params![
                    run.as_str(),
                    task.as_str(),
                    outcome.word(),
                    detail,
                    (!result.is_empty()).then_some(result),
                    at_us
                ],
            )?,
        };
        changed.one_or(|| Violation::NoTask {
            run: run.clone(),
            task: task.clone(),
        })
    }
}

/// How many rows a statement changed.
struct Changed(usize);

impl Changed {
    /// Exactly one row was to be changed.
    fn one_or(self, violation: impl FnOnce() -> Violation) -> Result<(), Fault> {
        if self.0 == 1 {
            Ok(())
        } else {
            Err(violation().into())
        }
    }
}

/// SQLite's integers are signed; ours never come near the difference.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
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
