//! Audit records as they are stored, and the check of their chain.
//!
//! Only reads, in pages. Must not know how a record is shown, nor evaluate anything.

use std::fmt::Write as _;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params_from_iter};

use super::audit::{self, ChainHead};
use super::columns::Columns as _;
use super::error::ReadError;
use super::reader::Reader;
use marshal_model::UntrustedText;
use marshal_model::limits;

/// The row of a decided permission request. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its link: its position in the chain, from 1.
    pub link: u64,
    /// The hash of the record before it; 64 zeros for the first.
    pub prev_hash: String,
    /// Its own hash.
    pub hash: String,
    /// The request's id.
    pub id: String,
    /// Its session.
    pub session: String,
    /// The format, which says what the hash covers; `None` in a damaged row.
    pub format: Option<i64>,
    /// The session's pool.
    pub pool: Option<String>,
    /// The session's slot in it.
    pub slot: Option<u16>,
    /// The session's run.
    pub run: Option<String>,
    /// The session's task.
    pub task: Option<String>,
    /// The seq of its `permission_requested` event.
    pub requested_seq: u64,
    /// The seq of its `permission_decided` event.
    pub decided_seq: Option<u64>,
    /// The agent's own id of the request; foreign text.
    pub request_key: UntrustedText,
    /// The id of the tool call; foreign text.
    pub tool_id: Option<UntrustedText>,
    /// The tool's name; foreign text.
    pub tool: UntrustedText,
    /// The input, JSON; `None` if it was too large or retention removed it.
    pub input: Option<UntrustedText>,
    /// The SHA-256 of the input, in hexadecimal.
    pub input_sha256: String,
    /// The agent's other claims about the request, as JSON.
    pub claimed: UntrustedText,
    /// When the request arrived.
    pub requested_at_us: i64,
    /// The name of the policy that evaluated it.
    pub policy: Option<String>,
    /// The SHA-256 of that policy's text, in hexadecimal.
    pub policy_sha256: Option<String>,
    /// The facts that the rules saw, as JSON.
    pub facts: Option<UntrustedText>,
    /// How long the evaluation took, in microseconds.
    pub eval_us: Option<u64>,
    /// The word of the verdict.
    pub decision: String,
    /// The source of the verdict, a word of [`marshal_model::DecidedBy`].
    pub decided_by: String,
    /// The rules that decided.
    pub rules: Vec<String>,
    /// The reason of the verdict.
    pub reason: String,
    /// The approver as recorded with the verdict; `None` if no person answered.
    pub approver: Option<String>,
    /// When it was decided.
    pub decided_at_us: i64,
}

/// A filter for records; a record must match every field that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// The record's session.
    pub session: Option<String>,
    /// The session's pool.
    pub pool: Option<String>,
    /// The word of the verdict.
    pub decision: Option<String>,
    /// The source of the verdict.
    pub decided_by: Option<String>,
    /// The tool's name as the agent gives it.
    pub tool: Option<String>,
    /// The name of a rule that decided.
    pub rule: Option<String>,
    /// The earliest time of the verdict, in microseconds since the Unix epoch.
    pub since_us: Option<i64>,
}

/// The result of a successful check of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainProof {
    /// The end of the chain.
    pub head: ChainHead,
    /// The chain's begin: the last record that retention removed, or the zero head.
    pub begin: ChainHead,
    /// The link of the record with the wanted hash; `None` if the chain lacks it.
    pub found: Option<u64>,
}

/// Identifies a record for people, even if the record is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordIdentity {
    /// The request's id.
    pub id: UntrustedText,
    /// Its session.
    pub session: UntrustedText,
    /// When it was decided, in microseconds since the Unix epoch; `None` in a damaged row.
    pub decided_at_us: Option<i64>,
}

const SELECT_RECORDS: &str = "SELECT link, prev_hash, hash, id, session, pool, slot, run, task, requested_seq, \
    decided_seq, request_key, tool_id, tool, input, input_sha256, claimed, requested_at_us, policy, \
    policy_sha256, facts, eval_us, decision, decided_by, rules, reason, decided_at_us, format, approver \
    FROM permission_requests WHERE link IS NOT NULL";

impl AuditQuery {
    /// The conditions that SQL can check, and their values. [`Self::has_rule`] checks the rest.
    fn conditions(&self) -> (String, Vec<Value>) {
        let (mut sql, mut values) = (String::new(), Vec::new());
        let texts = [
            ("session", &self.session),
            ("pool", &self.pool),
            ("decision", &self.decision),
            ("decided_by", &self.decided_by),
            ("tool", &self.tool),
        ];
        for (column, wanted) in texts {
            if let Some(wanted) = wanted {
                values.push(Value::from(wanted.clone()));
                let _ = write!(sql, " AND {column} = ?{}", values.len());
            }
        }
        if let Some(since) = self.since_us {
            values.push(Value::from(since));
            let _ = write!(sql, " AND decided_at_us >= ?{}", values.len());
        }
        (sql, values)
    }

    fn has_rule(&self, record: &AuditRecord) -> bool {
        self.rule
            .as_ref()
            .is_none_or(|rule| record.rules.contains(rule))
    }
}

impl Reader {
    /// Passes every matching record after a link to `each`, in the order of the chain, until `each`
    /// returns `false`. Returns the link of the last record that was read.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn audit_records_after(
        &self,
        query: &AuditQuery,
        after: u64,
        each: &mut dyn FnMut(AuditRecord) -> bool,
    ) -> Result<u64, ReadError> {
        let (conditions, values) = query.conditions();
        let link = values.len() + 1;
        let sql = format!(
            "{SELECT_RECORDS}{conditions} AND link > ?{link} ORDER BY link LIMIT {}",
            limits::AUDIT_PAGE
        );
        let mut last = after;
        loop {
            let page = self.audit_page(&sql, &values, last)?;
            let is_last = page.len() < limits::AUDIT_PAGE;
            for record in page {
                last = record.link;
                if query.has_rule(&record) && !each(record) {
                    return Ok(last);
                }
            }
            if is_last {
                return Ok(last);
            }
        }
    }

    /// The last `limit` matching records, in the order of the chain.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn last_audit_records(
        &self,
        query: &AuditQuery,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, ReadError> {
        let (conditions, values) = query.conditions();
        let link = values.len() + 1;
        let sql = format!(
            "{SELECT_RECORDS}{conditions} AND link < ?{link} ORDER BY link DESC LIMIT {}",
            limits::AUDIT_PAGE
        );
        let (mut records, mut before) = (Vec::new(), i64::MAX.unsigned_abs());
        while records.len() < limit {
            let page = self.audit_page(&sql, &values, before)?;
            let is_last = page.len() < limits::AUDIT_PAGE;
            for record in page {
                before = record.link;
                if query.has_rule(&record) && records.len() < limit {
                    records.push(record);
                }
            }
            if is_last {
                break;
            }
        }
        records.reverse();
        Ok(records)
    }

    fn audit_page(
        &self,
        sql: &str,
        values: &[Value],
        link: u64,
    ) -> Result<Vec<AuditRecord>, ReadError> {
        let mut statement = self.conn().prepare_cached(sql)?;
        let link = Value::from(i64::try_from(link).unwrap_or(i64::MAX));
        let values = values.iter().cloned().chain([link]);
        let rows = statement.query_map(params_from_iter(values), record_from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Checks the whole chain, from its first record or the last one that retention removed, and
    /// searches for the record with the hash `wanted`. The chain alone shows neither a cut tail nor
    /// a rewrite of the whole chain. If a hash from the log is still in the chain, neither happened
    /// before that record.
    ///
    /// # Errors
    /// [`ReadError::Chain`] at the first record that does not fit.
    pub fn prove_audit(&self, wanted: Option<&str>) -> Result<ChainProof, ReadError> {
        let mut found = None;
        let (begin, head) = audit::walk_chain(self.conn(), &mut |head| {
            if wanted == Some(head.hash.as_str()) {
                found = Some(head.link);
            }
        })?;
        Ok(ChainProof { head, begin, found })
    }

    /// The identity of the record at a link, as far as the row shows it: the record may be broken.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn audit_record_identity(&self, link: u64) -> Result<Option<RecordIdentity>, ReadError> {
        let identity = self
            .conn()
            .prepare_cached(
                "SELECT id, session, decided_at_us FROM permission_requests WHERE link = ?1",
            )?
            .query_row([i64::try_from(link).unwrap_or(i64::MAX)], |row| {
                Ok(RecordIdentity {
                    id: row.untrusted("id")?,
                    session: row.untrusted("session")?,
                    decided_at_us: row.get("decided_at_us")?,
                })
            })
            .optional()?;
        Ok(identity)
    }

    /// The seqs of a session's `turn_started` events.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn turn_starts(&self, session: &str) -> Result<Vec<u64>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT seq FROM events WHERE session = ?1 AND kind = 'turn_started' ORDER BY seq",
        )?;
        let rows = statement.query_map([session], |row| row.get::<_, i64>(0))?;
        rows.map(|seq| Ok(seq?.unsigned_abs())).collect()
    }
}

fn record_from_row(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let or_empty = |column| {
        let text = row.get::<_, Option<String>>(column);
        text.map(Option::unwrap_or_default)
    };
    let rules = or_empty("rules")?;
    Ok(AuditRecord {
        link: row.number("link")?,
        prev_hash: or_empty("prev_hash")?,
        hash: or_empty("hash")?,
        id: row.get("id")?,
        session: row.get("session")?,
        format: row.get("format")?,
        pool: row.get("pool")?,
        slot: row.get("slot")?,
        run: row.get("run")?,
        task: row.get("task")?,
        requested_seq: row.number("requested_seq")?,
        decided_seq: row.optional_number("decided_seq")?,
        request_key: row.untrusted("request_key")?,
        tool_id: row.optional_untrusted("tool_id")?,
        tool: row.untrusted("tool")?,
        input: row.optional_untrusted("input")?,
        input_sha256: row.get("input_sha256")?,
        claimed: row.untrusted("claimed")?,
        requested_at_us: row.get("requested_at_us")?,
        policy: row.get("policy")?,
        policy_sha256: row.get("policy_sha256")?,
        facts: row.optional_untrusted("facts")?,
        eval_us: row.optional_number("eval_us")?,
        decision: or_empty("decision")?,
        decided_by: or_empty("decided_by")?,
        // A damaged list reads as an empty one here; `prove_audit` reports the record.
        rules: serde_json::from_str(&rules).unwrap_or_default(),
        reason: or_empty("reason")?,
        approver: row.get("approver")?,
        decided_at_us: row
            .get::<_, Option<i64>>("decided_at_us")?
            .unwrap_or_default(),
    })
}
