//! Approvals: the rows of permission requests that wait for a person.
//!
//! The request itself is in `permission_requests`, where each row is the audit record of one
//! request. One approval may cover several identical requests and may outlive the agent that made
//! them. Must not know who the approvers are or how they are notified.

use rusqlite::{OptionalExtension as _, Row, params};

use super::columns::Columns as _;
use super::commit::Write;
use super::error::{ReadError, Violation};
use super::reader::Reader;
use super::rows::{RowWriter, WriteError};
use marshal_model::{
    ApprovalState, Decision, PermissionRequestId, PoolName, RememberScope, SessionId, UntrustedText,
};

/// A new approval. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct ApprovalRow {
    /// The first request. Its `PermissionRequested` event comes earlier in the same commit.
    pub request: PermissionRequestId,
    /// The session of the requesting agent.
    pub session: SessionId,
    /// The session's pool.
    pub pool: PoolName,
    /// What an answer is bound to: SHA-256 of the tool and the canonical input, in hexadecimal.
    pub digest: String,
    /// The rules that require a person.
    pub rules: Vec<String>,
    /// The policy's reason, in the supervisor's own words (never foreign text).
    pub why: String,
    /// The resolved paths of the input, as JSON.
    pub paths: String,
    /// When the request arrived.
    pub at_us: i64,
    /// The deadline for an answer. It applies whether or not the agent still runs.
    pub deadline_us: i64,
    /// Until when the agent waits; `None` if that is unknown.
    pub agent_until_us: Option<i64>,
}

/// An approver's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalAnswer {
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// The approver's name as the supervisor knows it.
    pub approver: String,
    /// The approver's comment; foreign text.
    pub comment: Option<UntrustedText>,
    /// The scope in which the answer is reused.
    pub remember: RememberScope,
}

/// A change of an approval.
#[derive(Debug, Clone)]
pub enum ApprovalChange {
    /// An identical request arrived, and its agent waits for the answer.
    RequestedAgain {
        /// Until when the agent waits; `None` if that is unknown.
        agent_until_us: Option<i64>,
    },
    /// A person answered an orphaned approval. It is a violation if the approval is not orphaned or
    /// has an answer already.
    Answered(ApprovalAnswer),
    /// The approval ended.
    Ended {
        /// The final state; never `pending` or `orphaned`.
        state: ApprovalState,
        /// The person's answer; `None` if nobody answered.
        answer: Option<ApprovalAnswer>,
    },
    /// The agent is gone, but its session can be resumed.
    Orphaned,
}

impl RowWriter<'_> {
    /// Writes the rows of approvals.
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

    /// Ended approvals do not change: two code paths may end the same one, and the first wins.
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
                        answer.decision.as_str(),
                        answer.approver,
                        answer.comment.as_ref().map(UntrustedText::raw),
                        answer.remember.as_str(),
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
                        state.as_str(),
                        of.map(|of| of.decision.as_str()),
                        of.map(|of| of.approver.as_str()),
                        of.and_then(|of| of.comment.as_ref().map(UntrustedText::raw)),
                        of.map(|of| of.remember.as_str()),
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

    /// Ends the approvals of an ended session: no agent can make those requests again.
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

/// An approval with its first request. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredApproval {
    /// The approval's id, which is the id of its first request.
    pub id: PermissionRequestId,
    /// The session of the requesting agent.
    pub session: SessionId,
    /// The session's pool.
    pub pool: PoolName,
    /// The session's slot.
    pub slot: u16,
    /// What an answer is bound to; see [`ApprovalRow::digest`].
    pub digest: String,
    /// The rules that require a person.
    pub rules: Vec<String>,
    /// The policy's reason, in the supervisor's own words.
    pub why: String,
    /// The resolved paths of the input, as JSON.
    pub paths: String,
    /// How many identical requests it covers.
    pub request_count: u64,
    /// When the first request arrived.
    pub requested_at_us: i64,
    /// The deadline for an answer.
    pub deadline_us: i64,
    /// The approval's state.
    pub state: ApprovalState,
    /// The person's answer; `None` if nobody has answered.
    pub answer: Option<ApprovalAnswer>,
    /// When it ended; `None` while it is open.
    pub ended_at_us: Option<i64>,
    /// The tool's name, as the agent gives it.
    pub tool: UntrustedText,
    /// The input as received, JSON; `None` after retention has removed it.
    pub input: Option<UntrustedText>,
    /// The agent's other claims about the request, as JSON.
    pub claimed: UntrustedText,
    /// The facts that the rules saw, as JSON.
    pub facts: UntrustedText,
    /// The name of the policy that evaluated it.
    pub policy: Option<String>,
}

const SELECT: &str = "SELECT q.id, q.session, q.pool, coalesce(sessions.slot, 0) AS slot, q.digest, \
    q.rules, q.why, q.paths, q.times, q.requested_at_us, \
    min(q.deadline_us, coalesce(q.agent_until_us, q.deadline_us)) AS deadline_us, q.state, q.answer, q.approver, \
    q.said, q.remember, q.ended_at_us, permission_requests.tool, permission_requests.input, permission_requests.claimed, \
    coalesce(permission_requests.facts, '{}') AS facts, permission_requests.policy \
    FROM approvals q JOIN permission_requests ON permission_requests.id = q.id \
    LEFT JOIN sessions ON sessions.session = q.session";

impl Reader {
    /// At most `limit` open approvals, oldest first. With `ended`, the newest ended ones instead.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn approvals(&self, ended: bool, limit: u32) -> Result<Vec<StoredApproval>, ReadError> {
        let which = if ended {
            "q.state NOT IN ('pending', 'orphaned') ORDER BY q.requested_at_us DESC, q.id DESC"
        } else {
            "q.state IN ('pending', 'orphaned') ORDER BY q.requested_at_us, q.id"
        };
        let sql = format!("{SELECT} WHERE {which} LIMIT ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([limit], |row| Ok(approval_from_row(row)))?;
        rows.map(|row| row?).collect()
    }

    /// One approval; `None` if the id is unknown.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn approval(&self, id: &PermissionRequestId) -> Result<Option<StoredApproval>, ReadError> {
        let sql = format!("{SELECT} WHERE q.id = ?1");
        let approval_row = self
            .conn()
            .prepare_cached(&sql)?
            .query_row([id.as_str()], |row| Ok(approval_from_row(row)))
            .optional()?;
        approval_row.transpose()
    }

    /// The orphaned approval that a new request of a resumed session continues; `None` if there is
    /// none.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn original_approval(
        &self,
        id: &PermissionRequestId,
    ) -> Result<Option<PermissionRequestId>, ReadError> {
        let original: Option<String> = self
            .conn()
            .prepare_cached(
                "SELECT json_extract(facts, '$.approval') FROM permission_requests WHERE id = ?1 \
                 AND json_valid(facts) AND json_extract(facts, '$.again') = 1",
            )?
            .query_row([id.as_str()], |row| row.get(0))
            .optional()?
            .flatten();
        Ok(original.and_then(|id_text| PermissionRequestId::new(&id_text).ok()))
    }

    /// Approvals of open sessions whose answers apply until the session ends: the newest `limit`,
    /// oldest first.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn remembered_approvals(&self, limit: u32) -> Result<Vec<StoredApproval>, ReadError> {
        let sql = format!(
            "{SELECT} WHERE q.remember = 'session' AND q.state IN ('approved', 'rejected') \
             AND sessions.ended_at_us IS NULL AND sessions.session IS NOT NULL \
             ORDER BY q.requested_at_us DESC LIMIT ?1"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([limit], |row| Ok(approval_from_row(row)))?;
        let mut approvals = rows.map(|row| row?).collect::<Result<Vec<_>, _>>()?;
        approvals.reverse();
        Ok(approvals)
    }
}

fn approval_from_row(row: &Row<'_>) -> Result<StoredApproval, ReadError> {
    let text = |column| row.get::<_, String>(column);
    let word = |what, text: String| ReadError::InvalidValue { what, text };
    let id = text("id")?;
    let session = text("session")?;
    let pool = text("pool")?;
    let state = text("state")?;
    let answer = row.get::<_, Option<String>>("answer")?;
    let remember = row.get::<_, Option<String>>("remember")?;
    let decision = answer.as_deref().and_then(Decision::parse);
    Ok(StoredApproval {
        id: PermissionRequestId::new(&id).map_err(|_| word("approval", id))?,
        session: SessionId::new(&session).map_err(|_| word("session", session))?,
        pool: PoolName::new(&pool).map_err(|_| word("pool", pool))?,
        slot: row.get("slot")?,
        digest: text("digest")?,
        rules: serde_json::from_str(&text("rules")?).unwrap_or_default(),
        why: text("why")?,
        paths: text("paths")?,
        request_count: row.number("times")?,
        requested_at_us: row.get("requested_at_us")?,
        deadline_us: row.get("deadline_us")?,
        state: ApprovalState::parse(&state).ok_or_else(|| word("state", state))?,
        answer: match decision {
            None => None,
            Some(decision) => Some(ApprovalAnswer {
                decision,
                approver: row
                    .get::<_, Option<String>>("approver")?
                    .unwrap_or_default(),
                comment: row.optional_untrusted("said")?,
                remember: remember
                    .as_deref()
                    .and_then(RememberScope::parse)
                    .unwrap_or(RememberScope::Never),
            }),
        },
        ended_at_us: row.get("ended_at_us")?,
        tool: row.untrusted("tool")?,
        input: row.optional_untrusted("input")?,
        claimed: row.untrusted("claimed")?,
        facts: row.untrusted("facts")?,
        policy: row.get("policy")?,
    })
}
