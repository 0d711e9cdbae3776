//! Questions to people: their rows, from before anybody is shown one until it is over.
//!
//! The request itself is in `permission_requests`, whose row is the audit record of one request; a question may be
//! of several requests, and outlive the agent that asked. Must not know who is asked, or how.

use rusqlite::{OptionalExtension as _, Row, params};

use super::commit::Write;
use super::error::{ReadError, Violation};
use super::reader::Reader;
use super::rows::{RowWriter, WriteError};
use marshal_model::{
    ApprovalState, Decision, PermissionRequestId, PoolName, RememberScope, SessionId, UntrustedText,
};

/// A question as it is put. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct ApprovalRow {
    /// The first request, whose `PermissionRequested` event comes before it in the same commit.
    pub request: PermissionRequestId,
    /// Whose agent asks.
    pub session: SessionId,
    /// In which pool.
    pub pool: PoolName,
    /// What an answer is bound to: SHA-256 of tool and canonical input, hexadecimal.
    pub digest: String,
    /// The rules that want a person.
    pub rules: Vec<String>,
    /// Why, in our words.
    pub why: String,
    /// Where the paths in it lead, as JSON.
    pub paths: String,
    /// When.
    pub at_us: i64,
    /// Until when it can be answered, whether its agent lives or not.
    pub deadline_us: i64,
    /// Until when its agent waits, if that is known.
    pub agent_until_us: Option<i64>,
}

/// What a person said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalAnswer {
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// Who, in our words.
    pub approver: String,
    /// Why, in theirs.
    pub comment: Option<UntrustedText>,
    /// For how long it holds.
    pub remember: RememberScope,
}

/// A change of a question that is open.
#[derive(Debug, Clone)]
pub enum ApprovalChange {
    /// The same was asked once more; an agent waits for the answer.
    RequestedAgain {
        /// Until when the agent waits, if that is known.
        agent_until_us: Option<i64>,
    },
    /// A person answered one that no agent waits for. A fault if it is over, or answered.
    Answered(ApprovalAnswer),
    /// It is over.
    Ended {
        /// How; none of the open states.
        state: ApprovalState,
        /// What a person said, if one did.
        answer: Option<ApprovalAnswer>,
    },
    /// Its agent is gone, and its session can be resumed.
    Orphaned,
}

impl RowWriter<'_> {
    /// Rows of questions.
    pub(super) fn write_approval(&self, write: &Write) -> Result<(), WriteError> {
        match write {
            Write::ApprovalOpened(row) => self.insert_approval(row),
            Write::ApprovalChanged {
                approval: question,
                at_us,
                change,
            } => self.update_approval(question, *at_us, change),
            Write::ApprovalsOrphaned { at_us } => {
                self.execute(
                    "UPDATE approvals SET state = 'orphaned', agent_until_us = NULL \
                     WHERE state = 'pending'",
                    [],
                )?;
                self.execute(
                    "UPDATE approvals SET state = 'expired', ended_at_us = ?1 \
                     WHERE state = 'orphaned' AND deadline_us <= ?1",
                    [at_us],
                )?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn insert_approval(&self, row: &ApprovalRow) -> Result<(), WriteError> {
        let rules = serde_json::to_string(&row.rules).unwrap_or_default();
        self.execute(
            "INSERT INTO approvals (id, session, pool, digest, rules, why, paths, times, \
             requested_at_us, deadline_us, agent_until_us, state) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?10, 'pending')",
            params![
                row.request.as_str(),
                row.session.as_str(),
                row.pool.as_str(),
                row.digest,
                rules,
                row.why,
                row.paths,
                row.at_us,
                row.deadline_us,
                row.agent_until_us,
            ],
        )?;
        Ok(())
    }

    /// A question that is over does not change: its end may come by two ways, and one is enough.
    fn update_approval(
        &self,
        id: &PermissionRequestId,
        at_us: i64,
        change: &ApprovalChange,
    ) -> Result<(), WriteError> {
        match change {
            ApprovalChange::RequestedAgain { agent_until_us } => {
                self.execute(
                    "UPDATE approvals SET times = times + 1, state = 'pending', \
                     agent_until_us = ?2 \
                     WHERE id = ?1 AND state IN ('pending', 'orphaned')",
                    params![id.as_str(), agent_until_us],
                )?;
            }
            ApprovalChange::Answered(answer) => self
                .execute(
                    "UPDATE approvals SET answer = ?2, approver = ?3, said = ?4, remember = ?5 \
                     WHERE id = ?1 AND state = 'orphaned' AND answer IS NULL",
                    params![
                        id.as_str(),
                        answer.decision.word(),
                        answer.approver,
                        answer.comment.as_ref().map(UntrustedText::raw),
                        answer.remember.word(),
                    ],
                )?
                .require_one(|| Violation::RequestNotOpen(id.clone()))?,
            ApprovalChange::Ended { state, answer } => {
                let of = answer.as_ref();
                self.execute(
                    "UPDATE approvals SET state = ?2, answer = coalesce(?3, answer), \
                     approver = coalesce(?4, approver), said = coalesce(?5, said), \
                     remember = coalesce(?6, remember), ended_at_us = ?7 \
                     WHERE id = ?1 AND state IN ('pending', 'orphaned')",
                    params![
                        id.as_str(),
                        state.word(),
                        of.map(|of| of.decision.word()),
                        of.map(|of| of.approver.as_str()),
                        of.and_then(|of| of.comment.as_ref().map(UntrustedText::raw)),
                        of.map(|of| of.remember.word()),
                        at_us,
                    ],
                )?;
            }
            ApprovalChange::Orphaned => {
                self.execute(
                    "UPDATE approvals SET state = 'orphaned', agent_until_us = NULL \
                     WHERE id = ?1 AND state = 'pending'",
                    [id.as_str()],
                )?;
            }
        }
        Ok(())
    }

    /// The end of a session is the end of its questions: nobody will ask them again.
    pub(super) fn end_approvals_of_session(
        &self,
        session: &SessionId,
        at_us: i64,
    ) -> Result<(), WriteError> {
        self.execute(
            "UPDATE approvals SET ended_at_us = ?2, \
             state = CASE state WHEN 'pending' THEN 'cancelled' ELSE 'expired' END \
             WHERE session = ?1 AND state IN ('pending', 'orphaned')",
            params![session.as_str(), at_us],
        )?;
        Ok(())
    }
}

/// A question with its first request. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredApproval {
    /// What an answer names.
    pub id: PermissionRequestId,
    /// Whose agent asked.
    pub session: SessionId,
    /// In which pool.
    pub pool: PoolName,
    /// In which slot.
    pub slot: u16,
    /// What an answer is bound to.
    pub digest: String,
    /// The rules that want a person.
    pub rules: Vec<String>,
    /// Why, in our words.
    pub why: String,
    /// Where the paths in it lead, as JSON.
    pub paths: String,
    /// How many requests it is of.
    pub request_count: u64,
    /// When it was put.
    pub requested_at_us: i64,
    /// Until when it can be answered.
    pub deadline_us: i64,
    /// Where it stands.
    pub state: ApprovalState,
    /// What a person said.
    pub answer: Option<ApprovalAnswer>,
    /// When it ended.
    pub ended_at_us: Option<i64>,
    /// The tool, as the agent calls it.
    pub tool: UntrustedText,
    /// The input as it came, JSON; `None` once it was removed.
    pub input: Option<UntrustedText>,
    /// What the agent claims beside it, as JSON.
    pub claimed: UntrustedText,
    /// What the rules saw, as JSON.
    pub facts: UntrustedText,
    /// The policy that judged it.
    pub policy: Option<String>,
}

const SELECT: &str = "SELECT q.id, q.session, q.pool, coalesce(sessions.slot, 0), q.digest, \
    q.rules, q.why, q.paths, q.times, q.requested_at_us, \
    min(q.deadline_us, coalesce(q.agent_until_us, q.deadline_us)), q.state, q.answer, q.approver, \
    q.said, q.remember, q.ended_at_us, permission_requests.tool, permission_requests.input, permission_requests.claimed, \
    coalesce(permission_requests.facts, '{}'), permission_requests.policy \
    FROM approvals q JOIN permission_requests ON permission_requests.id = q.id \
    LEFT JOIN sessions ON sessions.session = q.session";

impl Reader {
    /// The open questions, oldest first, at most so many; with `over` the newest of the others
    /// instead.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn approvals(&self, over: bool, most: u32) -> Result<Vec<StoredApproval>, ReadError> {
        let which = if over {
            "q.state NOT IN ('pending', 'orphaned') ORDER BY q.requested_at_us DESC, q.id DESC"
        } else {
            "q.state IN ('pending', 'orphaned') ORDER BY q.requested_at_us, q.id"
        };
        let sql = format!("{SELECT} WHERE {which} LIMIT ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([most], |row| Ok(approval_from_row(row)))?;
        rows.map(|row| row?).collect()
    }

    /// One question; `None` if there is none of this id.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn approval(&self, id: &PermissionRequestId) -> Result<Option<StoredApproval>, ReadError> {
        let sql = format!("{SELECT} WHERE q.id = ?1");
        let found = self
            .conn()
            .prepare_cached(&sql)?
            .query_row([id.as_str()], |row| Ok(approval_from_row(row)))
            .optional()?;
        found.transpose()
    }

    /// The question from before its agent went that a request has put to people again; `None` if it
    /// has not.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn original_approval(
        &self,
        id: &PermissionRequestId,
    ) -> Result<Option<PermissionRequestId>, ReadError> {
        let found: Option<String> = self
            .conn()
            .prepare_cached(
                "SELECT json_extract(facts, '$.approval') FROM permission_requests WHERE id = ?1 \
                 AND json_valid(facts) AND json_extract(facts, '$.again') = 1",
            )?
            .query_row([id.as_str()], |row| row.get(0))
            .optional()?
            .flatten();
        Ok(found.and_then(|question| PermissionRequestId::new(&question).ok()))
    }

    /// The questions of sessions that have not ended whose answers hold until they do; the newest
    /// so many, oldest first.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn remembered_approvals(&self, most: u32) -> Result<Vec<StoredApproval>, ReadError> {
        let sql = format!(
            "{SELECT} WHERE q.remember = 'session' AND q.state IN ('approved', 'rejected') \
             AND sessions.ended_at_us IS NULL AND sessions.session IS NOT NULL \
             ORDER BY q.requested_at_us DESC LIMIT ?1"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([most], |row| Ok(approval_from_row(row)))?;
        let mut found = rows.map(|row| row?).collect::<Result<Vec<_>, _>>()?;
        found.reverse();
        Ok(found)
    }
}

fn approval_from_row(row: &Row<'_>) -> Result<StoredApproval, ReadError> {
    let text = |column| row.get::<_, String>(column);
    let word = |what, text: String| ReadError::InvalidValue { what, text };
    let id = text(0)?;
    let session = text(1)?;
    let pool = text(2)?;
    let state = text(11)?;
    let answer = row.get::<_, Option<String>>(12)?;
    let remember = row.get::<_, Option<String>>(15)?;
    let decision = answer.as_deref().and_then(Decision::from_word);
    Ok(StoredApproval {
        id: PermissionRequestId::new(&id).map_err(|_| word("approval", id))?,
        session: SessionId::new(&session).map_err(|_| word("session", session))?,
        pool: PoolName::new(&pool).map_err(|_| word("pool", pool))?,
        slot: row.get(3)?,
        digest: text(4)?,
        rules: serde_json::from_str(&text(5)?).unwrap_or_default(),
        why: text(6)?,
        paths: text(7)?,
        request_count: row.get::<_, i64>(8)?.unsigned_abs(),
        requested_at_us: row.get(9)?,
        deadline_us: row.get(10)?,
        state: ApprovalState::from_word(&state).ok_or_else(|| word("state", state))?,
        answer: match decision {
            None => None,
            Some(decision) => Some(ApprovalAnswer {
                decision,
                approver: row.get::<_, Option<String>>(13)?.unwrap_or_default(),
                comment: row.get::<_, Option<String>>(14)?.map(UntrustedText::new),
                remember: remember
                    .as_deref()
                    .and_then(RememberScope::from_word)
                    .unwrap_or(RememberScope::Never),
            }),
        },
        ended_at_us: row.get(16)?,
        tool: text(17)?.into(),
        input: row.get::<_, Option<String>>(18)?.map(UntrustedText::new),
        claimed: text(19)?.into(),
        facts: text(20)?.into(),
        policy: row.get(21)?,
    })
}
