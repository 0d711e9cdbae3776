//! Audit records as they are stored, and the proof of their chain: what people ask of the past.
//!
//! Only reads, in pages. Must not know how a record is shown, nor judge anything.

use std::fmt::Write as _;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params_from_iter};

use super::audit::{self, ChainHead};
use super::error::ReadError;
use super::reader::Reader;
use marshal_model::UntrustedText;
use marshal_model::limits;

/// A decided request, as its row has it. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its place in the chain, from 1.
    pub link: u64,
    /// The hash of the record before it; 64 zeros for the first.
    pub prev_hash: String,
    /// Its own hash.
    pub hash: String,
    /// The request's id.
    pub id: String,
    /// Its session.
    pub session: String,
    /// What its hash covers.
    pub format: Option<i64>,
    /// The session's pool.
    pub pool: Option<String>,
    /// The session's slot in it.
    pub slot: Option<u16>,
    /// The run that the session belongs to.
    pub run: Option<String>,
    /// The task that it works.
    pub task: Option<String>,
    /// The seq of its `permission_requested` event.
    pub requested_seq: u64,
    /// The seq of its `permission_decided` event.
    pub decided_seq: Option<u64>,
    /// The agent's name of the request; foreign.
    pub request_key: UntrustedText,
    /// The tool call that it belongs to; foreign.
    pub tool_id: Option<UntrustedText>,
    /// The tool; foreign.
    pub tool: UntrustedText,
    /// The input, JSON; `None` if it was too large, or was removed because of its age.
    pub input: Option<UntrustedText>,
    /// Its digest.
    pub input_sha256: String,
    /// What the agent claimed beside it, JSON.
    pub claimed: UntrustedText,
    /// When it was asked.
    pub requested_at_us: i64,
    /// The policy that judged it.
    pub policy: Option<String>,
    /// That policy's digest.
    pub policy_sha256: Option<String>,
    /// What the rules saw, JSON.
    pub facts: Option<UntrustedText>,
    /// How long it was judged, in microseconds.
    pub eval_us: Option<u64>,
    /// The verdict's word.
    pub decision: String,
    /// Who decided.
    pub decided_by: String,
    /// The rules that decided.
    pub rules: Vec<String>,
    /// The reason.
    pub reason: String,
    /// Who answered, as it was written with it.
    pub approver: Option<String>,
    /// When it was decided.
    pub decided_at_us: i64,
}

/// Which records are wanted; everything that is given must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Of this session.
    pub session: Option<String>,
    /// Of sessions of this pool.
    pub pool: Option<String>,
    /// With this verdict.
    pub decision: Option<String>,
    /// Decided by this.
    pub decided_by: Option<String>,
    /// For this tool, by the agent's name of it.
    pub tool: Option<String>,
    /// Decided by this rule.
    pub rule: Option<String>,
    /// Decided at this time or later, in microseconds since the Unix epoch.
    pub since_us: Option<i64>,
}

/// The chain, proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainProof {
    /// Its end.
    pub head: ChainHead,
    /// Where it begins: the last record that was removed because of its age, or none.
    pub begin: ChainHead,
    /// The place of the record that was asked for, if it is there.
    pub found: Option<u64>,
}

/// Who a record is, for people, whatever is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordIdentity {
    /// The request's id.
    pub id: UntrustedText,
    /// Its session.
    pub session: UntrustedText,
    /// When it was decided, in microseconds since the Unix epoch.
    pub decided_at_us: Option<i64>,
}

const SELECT_RECORDS: &str = "SELECT link, prev_hash, hash, id, session, pool, slot, run, task, requested_seq, \
    decided_seq, request_key, tool_id, tool, input, input_sha256, claimed, requested_at_us, policy, \
    policy_sha256, facts, eval_us, decision, decided_by, rules, reason, decided_at_us, format, approver \
    FROM permission_requests WHERE link IS NOT NULL";

impl AuditQuery {
    /// The conditions that SQL can look at, and their values.
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
    /// Gives every record after a link that is wanted, in the order of the chain, until `each`
    /// says `false`. Gives the link of the last record that was looked at.
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

    /// The last `most` records that are wanted, in the order of the chain.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn last_audit_records(
        &self,
        query: &AuditQuery,
        most: usize,
    ) -> Result<Vec<AuditRecord>, ReadError> {
        let (conditions, values) = query.conditions();
        let link = values.len() + 1;
        let sql = format!(
            "{SELECT_RECORDS}{conditions} AND link < ?{link} ORDER BY link DESC LIMIT {}",
            limits::AUDIT_PAGE
        );
        let (mut found, mut before) = (Vec::new(), i64::MAX.unsigned_abs());
        while found.len() < most {
            let page = self.audit_page(&sql, &values, before)?;
            let is_last = page.len() < limits::AUDIT_PAGE;
            for record in page {
                before = record.link;
                if query.has_rule(&record) && found.len() < most {
                    found.push(record);
                }
            }
            if is_last {
                break;
            }
        }
        found.reverse();
        Ok(found)
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

    /// Checks the whole chain, from its first record or the last that was removed because of its
    /// age, and looks for the record with the hash `wanted`. A chain alone shows neither a cut
    /// tail nor a rewrite of everything: that `wanted`, told by a log, is still in it shows both
    /// up to there.
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

    /// The record at a place of the chain, as far as it can be told: it may be the broken one.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn audit_record_identity(&self, link: u64) -> Result<Option<RecordIdentity>, ReadError> {
        let found = self
            .conn()
            .prepare_cached(
                "SELECT id, session, decided_at_us FROM permission_requests WHERE link = ?1",
            )?
            .query_row([i64::try_from(link).unwrap_or(i64::MAX)], |row| {
                Ok(RecordIdentity {
                    id: row.get::<_, String>(0)?.into(),
                    session: row.get::<_, String>(1)?.into(),
                    decided_at_us: row.get(2)?,
                })
            })
            .optional()?;
        Ok(found)
    }

    /// The places in a session's stream at which its turns began.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn turn_starts(&self, session: &str) -> Result<Vec<u64>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT seq FROM events WHERE session = ?1 AND kind = 'turn_started' ORDER BY seq",
        )?;
        let rows = statement.query_map([session], |row| row.get::<_, i64>(0))?;
        rows.map(|seq| Ok(seq?.unsigned_abs())).collect()
    }
}

fn record_from_row(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let maybe = |column| {
        let text = row.get::<_, Option<String>>(column);
        text.map(|text| text.map(UntrustedText::new))
    };
    let or_empty = |column| {
        let text = row.get::<_, Option<String>>(column);
        text.map(Option::unwrap_or_default)
    };
    let rules = or_empty(24)?;
    Ok(AuditRecord {
        link: number(0)?,
        prev_hash: or_empty(1)?,
        hash: or_empty(2)?,
        id: row.get(3)?,
        session: row.get(4)?,
        format: row.get(27)?,
        pool: row.get(5)?,
        slot: row.get(6)?,
        run: row.get(7)?,
        task: row.get(8)?,
        requested_seq: number(9)?,
        decided_seq: row.get::<_, Option<i64>>(10)?.map(i64::unsigned_abs),
        request_key: row.get::<_, String>(11)?.into(),
        tool_id: maybe(12)?,
        tool: row.get::<_, String>(13)?.into(),
        input: maybe(14)?,
        input_sha256: row.get(15)?,
        claimed: row.get::<_, String>(16)?.into(),
        requested_at_us: row.get(17)?,
        policy: row.get(18)?,
        policy_sha256: row.get(19)?,
        facts: maybe(20)?,
        eval_us: row.get::<_, Option<i64>>(21)?.map(i64::unsigned_abs),
        decision: or_empty(22)?,
        decided_by: or_empty(23)?,
        // A damaged list is an empty one here; `prove_audit` names its record.
        rules: serde_json::from_str(&rules).unwrap_or_default(),
        reason: or_empty(25)?,
        approver: row.get(28)?,
        decided_at_us: row.get::<_, Option<i64>>(26)?.unwrap_or_default(),
    })
}
