//! Writes -> rows: the statements of one commit, the dense order of every session and the links of
//! the audit chain.
//!
//! Must not know transactions, batches or what is left out of them.

use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, ErrorCode, params};

use super::audit::{self, Head};
use super::codec;
use super::commit::{SessionRow, TaskChange, TaskRow, Write};
use super::error::Violation;
use crate::limits;
use crate::model::{
    Ask, AskId, DecidedBy, Event, ExitClass, RunId, SessionId, SlotId, Stamped, TaskId, UNWRITTEN,
    Verdict,
};

/// A write's failure, before it is known which commit it belongs to.
pub(super) enum Fault {
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
pub(super) struct Staged {
    pub(super) last: HashMap<SessionId, u64>,
    pub(super) ended: Vec<SessionId>,
    pub(super) head: Option<Head>,
    pub(super) events: u64,
    pub(super) bytes: u64,
}

pub(super) const INSERT_EVENT: &str = "INSERT INTO events (session, seq, epoch, at_us, kind, version, body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// One batch being written.
pub(super) struct Writer<'a> {
    pub(super) insert_event: CachedStatement<'a>,
    pub(super) conn: &'a Connection,
    pub(super) epoch: u64,
    pub(super) last: &'a HashMap<SessionId, u64>,
    pub(super) head: &'a Head,
    pub(super) staged: &'a mut Staged,
    pub(super) body: &'a mut Vec<u8>,
}

impl Writer<'_> {
    pub(super) fn write(&mut self, write: &Write) -> Result<(), Fault> {
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
            } => self.session_ended(session, *at_us, *class),
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
            Write::QuestionPut(_) | Write::QuestionChanged { .. } | Write::QuestionsLeft { .. } => {
                self.question(write)
            }
            Write::TaskQueued(row) => self.task_queued(row),
            Write::Spent(row) => self.spent(row),
            Write::Chat(write) => self.chat(write),
            Write::TaskUpdated {
                run,
                task,
                at_us,
                change,
            } => self.task_updated(run, task, *at_us, change),
            other => self.run(other),
        }
    }

    pub(super) fn session_ended(
        &mut self,
        session: &SessionId,
        at_us: i64,
        class: Option<ExitClass>,
    ) -> Result<(), Fault> {
        self.execute(
            "UPDATE sessions SET ended_at_us = ?2, class = ?3 WHERE session = ?1",
            params![session.as_str(), at_us, class.map(ExitClass::word)],
        )?
        .one_or(|| Violation::NoSession(session.clone()))?;
        self.questions_over(session, at_us)?;
        self.chat_over(session, at_us)?;
        self.staged.ended.push(session.clone());
        Ok(())
    }

    /// Runs.
    fn run(&self, write: &Write) -> Result<(), Fault> {
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
            Write::RunLimited { run, limits } => self
                .execute(
                    "UPDATE runs SET limits = ?2 WHERE run = ?1",
                    params![run.as_str(), limits],
                )?
                .one_or(|| Violation::NoRun(run.clone()))?,
            Write::RunTakenUp { run } => self
                .execute(
                    "UPDATE runs SET epoch = ?2, ended_at_us = NULL, code = NULL WHERE run = ?1",
                    params![run.as_str(), signed(self.epoch)],
                )?
                .one_or(|| Violation::NoRun(run.clone()))?,
            other => self.slot(other)?,
        }
        Ok(())
    }

    /// Slots.
    fn slot(&self, write: &Write) -> Result<(), Fault> {
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
                    params![slot.pool.as_str(), slot.index, at_us, class.word(), detail],
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
                    params![slot.pool.as_str(), slot.index, at_us, class.word(), reason],
                )?;
            }
            Write::SlotUnparked { slot } => self.unpark(slot)?,
            Write::SlotForgiven { slot } => {
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

    fn unpark(&self, slot: &SlotId) -> Result<(), Fault> {
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
    ) -> Result<Changed, Fault> {
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
            // Such a turn goes on.
            Event::TurnEnded {
                detail: Some(why), ..
            } if why == UNWRITTEN => Ok(()),
            Event::TurnEnded { outcome, .. } => self.chat_turn_ended(session, *outcome),
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
                ask.key.id,
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

    /// Ends an ask and links its row into the chain. A request that was one with an earlier one has
    /// that one's question, which its facts name.
    fn decided(&mut self, stamped: &Stamped, verdict: &Verdict) -> Result<(), Fault> {
        let rules = serde_json::to_string(&verdict.rules).unwrap_or_default();
        self.execute(
            "UPDATE asks SET decided_seq = ?2, decision = ?3, decided_by = ?4, rules = ?5, \
             reason = ?6, decided_at_us = ?7, form = ?8, (pool, slot, run, task) = \
             (SELECT s.pool, s.slot, s.run, s.task FROM sessions s WHERE s.session = asks.session), \
             approver = (SELECT q.approver FROM questions q WHERE ?4 = ?9 AND q.id = \
             iif(json_valid(facts), coalesce(json_extract(facts, '$.question'), asks.id), asks.id)) \
             WHERE id = ?1 AND link IS NULL",
            params![
                verdict.ask.as_str(),
                signed(stamped.id.seq),
                verdict.decision.word(),
                verdict.by.word(),
                rules,
                verdict.reason,
                stamped.at_us,
                audit::FORM,
                DecidedBy::Human.word()
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
        self.execute(
            "INSERT INTO sessions (session, epoch, pool, slot, run, task, attempt, begun_at_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                row.session.as_str(),
                signed(self.epoch),
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
        })?;
        match change {
            TaskChange::Ended { outcome, .. } => self.chat_task_ended(run, task, *outcome, at_us),
            _ => Ok(()),
        }
    }
}

/// How many rows a statement changed.
pub(super) struct Changed(pub(super) usize);

impl Changed {
    /// Exactly one row was to be changed.
    pub(super) fn one_or(self, violation: impl FnOnce() -> Violation) -> Result<(), Fault> {
        if self.0 == 1 {
            Ok(())
        } else {
            Err(violation().into())
        }
    }
}

/// SQLite's integers are signed; ours never come near the difference.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
