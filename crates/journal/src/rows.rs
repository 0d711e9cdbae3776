//! Writes -> rows: the statements of one commit, the dense order of every session and the links of
//! the audit chain.
//!
//! Must not know transactions, batches or which commits are left out.

use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, ErrorCode, params};

use super::audit::{self, ChainHead};
use super::codec;
use super::commit::{SessionRow, TaskChange, TaskRow, Write};
use super::error::Violation;
use marshal_model::limits;
use marshal_model::{
    DecidedBy, Event, ExitClass, PROMPT_NOT_WRITTEN, PermissionRequest, PermissionRequestId, RunId,
    SessionId, SlotId, StampedEvent, TaskId, Verdict,
};

/// A failed write, before it is known which commit it belongs to.
pub(super) enum WriteError {
    Violation(Violation),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => {
                Self::Violation(Violation::Row(error.to_string()))
            }
            _ => Self::Database(error),
        }
    }
}

impl From<Violation> for WriteError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// In-memory changes of a batch, applied when the batch is durable.
#[derive(Default)]
pub(super) struct StagedChanges {
    pub(super) last: HashMap<SessionId, u64>,
    pub(super) ended: Vec<SessionId>,
    pub(super) head: Option<ChainHead>,
    pub(super) events: u64,
    pub(super) bytes: u64,
}

pub(super) const INSERT_EVENT: &str = "INSERT INTO events (session, seq, epoch, at_us, kind, version, body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// Writes the rows of one batch.
pub(super) struct RowWriter<'a> {
    pub(super) insert_event: CachedStatement<'a>,
    pub(super) conn: &'a Connection,
    pub(super) epoch: u64,
    pub(super) last: &'a HashMap<SessionId, u64>,
    pub(super) head: &'a ChainHead,
    pub(super) staged: &'a mut StagedChanges,
    pub(super) body: &'a mut Vec<u8>,
}

impl RowWriter<'_> {
    pub(super) fn write(&mut self, write: &Write) -> Result<(), WriteError> {
        match write {
            Write::Events { session, events } => {
                for stamped in events.iter() {
                    self.write_event(session, stamped)?;
                }
                Ok(())
            }
            Write::SessionBegun(row) => self.begin_session(row),
            Write::SessionEnded {
                session,
                at_us,
                class,
            } => self.end_session(session, *at_us, *class),
            Write::RequestEvaluated {
                request: permission_request,
                evaluation: judged,
            } => self
                .execute(
                    "UPDATE permission_requests SET policy = ?2, policy_sha256 = ?3, facts = ?4, eval_us = ?5 \
                     WHERE id = ?1 AND link IS NULL",
                    params![
                        permission_request.as_str(),
                        judged.policy,
                        judged.policy_sha256,
                        judged.facts,
                        to_i64(judged.eval_us)
                    ],
                )?
                .require_one(|| Violation::RequestNotOpen(permission_request.clone())),
            Write::ApprovalOpened(_)
            | Write::ApprovalChanged { .. }
            | Write::ApprovalsOrphaned { .. } => self.write_approval(write),
            Write::TaskQueued(row) => self.queue_task(row),
            Write::SpendRecorded(row) => self.write_spend(row),
            Write::Chat(write) => self.write_chat(write),
            Write::TaskUpdated {
                run,
                task,
                at_us,
                change,
            } => self.update_task(run, task, *at_us, change),
            other => self.write_run(other),
        }
    }

    pub(super) fn end_session(
        &mut self,
        session: &SessionId,
        at_us: i64,
        class: Option<ExitClass>,
    ) -> Result<(), WriteError> {
        self.execute(
            "UPDATE sessions SET ended_at_us = ?2, class = ?3 WHERE session = ?1",
            params![session.as_str(), at_us, class.map(ExitClass::as_str)],
        )?
        .require_one(|| Violation::NoSession(session.clone()))?;
        self.end_approvals_of_session(session, at_us)?;
        self.end_chat(session, at_us)?;
        self.staged.ended.push(session.clone());
        Ok(())
    }

    /// Writes the rows of runs.
    fn write_run(&self, write: &Write) -> Result<(), WriteError> {
        match write {
            Write::RunBegun {
                run,
                command,
                at_us,
            } => {
                self.execute(
                    "INSERT INTO runs (run, epoch, command, begun_at_us) VALUES (?1, ?2, ?3, ?4)",
                    params![run.as_str(), to_i64(self.epoch), command, at_us],
                )?;
            }
            Write::RunEnded { run, at_us, code } => self
                .execute(
                    "UPDATE runs SET ended_at_us = ?2, code = ?3 WHERE run = ?1",
                    params![run.as_str(), at_us, code],
                )?
                .require_one(|| Violation::NoRun(run.clone()))?,
            Write::RunLimitsChanged { run, limits } => self
                .execute(
                    "UPDATE runs SET limits = ?2 WHERE run = ?1",
                    params![run.as_str(), limits],
                )?
                .require_one(|| Violation::NoRun(run.clone()))?,
            Write::RunResumed { run } => self
                .execute(
                    "UPDATE runs SET epoch = ?2, ended_at_us = NULL, code = NULL WHERE run = ?1",
                    params![run.as_str(), to_i64(self.epoch)],
                )?
                .require_one(|| Violation::NoRun(run.clone()))?,
            other => self.write_slot(other)?,
        }
        Ok(())
    }

    /// Writes the rows of slots.
    fn write_slot(&self, write: &Write) -> Result<(), WriteError> {
        match write {
            Write::SlotFailure {
                slot,
                class,
                at_us,
                detail,
            } => {
                self.execute(
                    "INSERT INTO slot_failures (pool, slot, at_us, class, detail) \
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![
                        slot.pool.as_str(),
                        slot.index,
                        at_us,
                        class.as_str(),
                        detail
                    ],
                )?;
            }
            Write::SlotParked {
                slot,
                class,
                at_us,
                reason,
            } => {
                self.execute(
                    "INSERT OR REPLACE INTO slot_parks (pool, slot, at_us, class, reason) \
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![
                        slot.pool.as_str(),
                        slot.index,
                        at_us,
                        class.as_str(),
                        reason
                    ],
                )?;
            }
            Write::SlotUnparked { slot } => self.unpark(slot)?,
            Write::SlotFailuresCleared { slot } => {
                self.unpark(slot)?;
                self.execute(
                    "DELETE FROM slot_failures WHERE pool = ?1 AND slot = ?2",
                    params![slot.pool.as_str(), slot.index],
                )?;
            }
            _ => {}
        }
        Ok(())
    }

    fn unpark(&self, slot: &SlotId) -> Result<(), WriteError> {
        self.execute(
            "DELETE FROM slot_parks WHERE pool = ?1 AND slot = ?2",
            params![slot.pool.as_str(), slot.index],
        )?;
        Ok(())
    }

    pub(super) fn execute(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> Result<ChangedRows, WriteError> {
        Ok(ChangedRows(self.conn.prepare_cached(sql)?.execute(params)?))
    }

    /// The last seq of a session, including the events that this batch has written so far.
    fn last_seq_of(&mut self, session: &SessionId) -> Result<u64, WriteError> {
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

    fn write_event(
        &mut self,
        session: &SessionId,
        stamped: &StampedEvent,
    ) -> Result<(), WriteError> {
        let last = self.last_seq_of(session)?;
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
            .map_err(|error| Violation::Row(format!("an event's body is not UTF-8: {error}")))?;
        self.insert_event.execute(params![
            session.as_str(),
            to_i64(seq),
            to_i64(self.epoch),
            stamped.at_us,
            stamped.event.kind().as_str(),
            codec::VERSION,
            body
        ])?;
        self.staged.events += 1;
        self.staged.bytes += body.len() as u64;
        match &stamped.event {
            Event::PermissionRequested {
                id,
                request: permission_request,
            } => self.insert_request(session, stamped, id, permission_request),
            Event::PermissionDecided(verdict) => self.record_decision(stamped, verdict),
            // A turn that ends so is continued, so its row stays open.
            Event::TurnEnded {
                detail: Some(why), ..
            } if why == PROMPT_NOT_WRITTEN => Ok(()),
            Event::TurnEnded { outcome, .. } => self.record_turn_outcome(session, *outcome),
            _ => Ok(()),
        }
    }

    fn insert_request(
        &self,
        session: &SessionId,
        stamped: &StampedEvent,
        id: &PermissionRequestId,
        permission_request: &PermissionRequest,
    ) -> Result<(), WriteError> {
        let input = permission_request.input.get();
        let stored = (input.len() <= limits::PERMISSION_INPUT_BYTES).then_some(input);
        self.execute(
            "INSERT INTO permission_requests (id, session, requested_seq, request_key, tool_id, tool, input, \
             input_sha256, claimed, requested_at_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                id.as_str(),
                session.as_str(),
                to_i64(stamped.id.seq),
                permission_request.key.id,
                permission_request.tool_id.as_ref().map(marshal_model::UntrustedText::raw),
                permission_request.tool.raw(),
                stored,
                audit::sha256_hex(input.as_bytes()),
                codec::claimed_json(&permission_request.claims),
                stamped.at_us
            ],
        )?;
        Ok(())
    }

    /// Ends a permission request and links its row into the chain. A request that repeats an
    /// earlier one shares that one's approval, which its facts name.
    fn record_decision(
        &mut self,
        stamped: &StampedEvent,
        verdict: &Verdict,
    ) -> Result<(), WriteError> {
        let rules = serde_json::to_string(&verdict.rules).unwrap_or_default();
        self.execute(
            "UPDATE permission_requests SET decided_seq = ?2, decision = ?3, decided_by = ?4, rules = ?5, \
             reason = ?6, decided_at_us = ?7, format = ?8, (pool, slot, run, task) = \
             (SELECT s.pool, s.slot, s.run, s.task FROM sessions s WHERE s.session = permission_requests.session), \
             approver = (SELECT q.approver FROM approvals q WHERE ?4 = ?9 AND q.id = \
             iif(json_valid(facts), coalesce(json_extract(facts, '$.approval'), permission_requests.id), permission_requests.id)) \
             WHERE id = ?1 AND link IS NULL",
            params![
                verdict.request.as_str(),
                to_i64(stamped.id.seq),
                verdict.decision.as_str(),
                verdict.decided_by.as_str(),
                rules,
                verdict.reason,
                stamped.at_us,
                audit::FORMAT,
                DecidedBy::Human.as_str()
            ],
        )?
        .require_one(|| Violation::RequestNotOpen(verdict.request.clone()))?;
        let prev = self.staged.head.as_ref().unwrap_or(self.head);
        let link = prev.link + 1;
        let prev_hash = prev.hash.clone();
        // The columns are read back, so that the hash covers exactly what is stored.
        let hash = self
            .conn
            .prepare_cached(audit::SELECT_COVERED)?
            .query_row([verdict.request.as_str()], |row| {
                audit::hash_row(link, &prev_hash, row, 0)
            })?;
        self.execute(
            "UPDATE permission_requests SET link = ?2, prev_hash = ?3, hash = ?4 WHERE id = ?1",
            params![verdict.request.as_str(), to_i64(link), prev_hash, hash],
        )?;
        self.staged.head = Some(ChainHead { link, hash });
        Ok(())
    }

    fn begin_session(&mut self, row: &SessionRow) -> Result<(), WriteError> {
        self.execute(
            "INSERT INTO sessions (session, epoch, pool, slot, run, task, attempt, begun_at_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                row.session.as_str(),
                to_i64(self.epoch),
                row.slot.pool.as_str(),
                row.slot.index,
                row.run.as_ref().map(RunId::as_str),
                row.task.as_ref().map(TaskId::as_str),
                row.attempt,
                row.at_us
            ],
        )?;
        self.staged.last.insert(row.session.clone(), 0);
        Ok(())
    }

    fn queue_task(&self, row: &TaskRow) -> Result<(), WriteError> {
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

    fn update_task(
        &self,
        run: &RunId,
        task: &TaskId,
        at_us: i64,
        change: &TaskChange,
    ) -> Result<(), WriteError> {
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
            TaskChange::Requeued { attempts } => self.execute(
                "UPDATE tasks SET state = 'queued', attempts = ?3 WHERE run = ?1 AND id = ?2",
                params![run.as_str(), task.as_str(), attempts],
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
                    outcome.as_str(),
                    detail,
                    (!result.is_empty()).then_some(result),
                    at_us
                ],
            )?,
        };
        changed.require_one(|| Violation::NoTask {
            run: run.clone(),
            task: task.clone(),
        })?;
        match change {
            TaskChange::Ended { outcome, .. } => self.end_turn_of_task(run, task, *outcome, at_us),
            _ => Ok(()),
        }
    }
}

/// The number of rows that a statement changed.
pub(super) struct ChangedRows(pub(super) usize);

impl ChangedRows {
    /// Requires that exactly one row changed.
    pub(super) fn require_one(
        self,
        violation: impl FnOnce() -> Violation,
    ) -> Result<(), WriteError> {
        if self.0 == 1 {
            Ok(())
        } else {
            Err(violation().into())
        }
    }
}

/// SQLite's integers are signed; the journal's numbers never exceed that range.
pub(super) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
