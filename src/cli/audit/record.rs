//! One audit record as a line for a person and as a line of JSON, which can be parsed again.
//!
//! Owns the format of an exported record. Must not know where lines go.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cli::event_text::time;
use marshal_journal::{AuditRecord, Reader};
use marshal_model::UntrustedText;
use marshal_model::untrusted::escape_for_display;

/// Columns shown of an untrusted word.
const WORD: usize = 40;
/// The least columns shown of an input.
const LEAST: usize = 40;
/// The most sessions whose turns are cached.
const SESSIONS: usize = 64;

/// The start positions of turns, by session. Finds the turn that a request belongs to.
#[derive(Debug, Default)]
pub(super) struct TurnIndex(HashMap<String, Vec<u64>>);

impl TurnIndex {
    /// The number of the turn, from 1; `None` before the first turn, or if the session was removed.
    pub(super) fn turn_of(&mut self, reader: &Reader, record: &AuditRecord) -> Option<usize> {
        let known = self.0.get(&record.session);
        // A running session may have more turns than when it was cached.
        let is_old =
            known.is_none_or(|turns| turns.last().is_none_or(|l| *l < record.requested_seq));
        if is_old {
            if self.0.len() >= SESSIONS {
                self.0.clear();
            }
            let turns = reader.turn_starts(&record.session).unwrap_or_default();
            self.0.insert(record.session.clone(), turns);
        }
        let turns = self.0.get(&record.session)?;
        let before = turns.partition_point(|seq| *seq < record.requested_seq);
        (before > 0).then_some(before)
    }
}

/// The policy that decided.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct PolicyName {
    pub(in crate::cli) name: Option<String>,
    pub(in crate::cli) sha256: Option<String>,
}

/// An exported record. Fields are only added.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct ExportedRecord {
    pub(in crate::cli) seq: u64,
    pub(in crate::cli) ts: String,
    pub(in crate::cli) prev_hash: String,
    pub(in crate::cli) hash: String,
    /// The format version of the hashed data; `None` in records of earlier versions.
    #[serde(default)]
    pub(in crate::cli) format: Option<i64>,
    pub(in crate::cli) decision_id: String,
    pub(in crate::cli) pool: Option<String>,
    pub(in crate::cli) slot: Option<u16>,
    pub(in crate::cli) run: Option<String>,
    pub(in crate::cli) task: Option<String>,
    #[serde(default)]
    pub(in crate::cli) agent: Option<String>,
    #[serde(default)]
    pub(in crate::cli) protocol: Option<String>,
    pub(in crate::cli) session: String,
    pub(in crate::cli) turn: Option<usize>,
    pub(in crate::cli) request_id: String,
    pub(in crate::cli) tool_id: Option<String>,
    pub(in crate::cli) tool: String,
    pub(in crate::cli) input: Option<Box<RawValue>>,
    pub(in crate::cli) input_sha256: String,
    pub(in crate::cli) claimed: Option<Box<RawValue>>,
    pub(in crate::cli) facts: Option<Box<RawValue>>,
    /// What budgets had counted in the turn before this request.
    #[serde(default)]
    pub(in crate::cli) budget: Option<BudgetCounts>,
    pub(in crate::cli) decision: String,
    pub(in crate::cli) by: String,
    #[serde(default)]
    pub(in crate::cli) approver: Option<String>,
    pub(in crate::cli) rules: Vec<String>,
    pub(in crate::cli) reason: String,
    pub(in crate::cli) policy: PolicyName,
    pub(in crate::cli) eval_us: Option<u64>,
    pub(in crate::cli) requested_at_us: i64,
    pub(in crate::cli) decided_at_us: i64,
    pub(in crate::cli) waited_ms: i64,
}

/// The origin of a request in its facts.
#[derive(Default, Deserialize)]
struct FactsOrigin {
    at: Option<RequestOrigin>,
}

#[derive(Default, Deserialize)]
struct RequestOrigin {
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    protocol: Option<String>,
}

/// A stored JSON document on one line; `None` if it is not valid. Line ends can be replaced by
/// spaces: they are only possible outside of strings, where white space has no meaning.
fn raw(text: Option<&UntrustedText>) -> Option<Box<RawValue>> {
    let text = text?.raw().replace(['\n', '\r'], " ");
    RawValue::from_string(text).ok()
}

/// A stored JSON text as a value. A text that cannot be a value, such as half of a surrogate pair
/// or a number out of range, becomes a string.
pub(in crate::cli) fn value(raw: Option<&RawValue>) -> serde_json::Value {
    raw.map_or(serde_json::Value::Null, |raw| {
        serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into())
    })
}

/// The allowed and denied requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct BudgetCounts {
    allows: u64,
    denies: u64,
}

impl BudgetCounts {
    /// Reads the counts from stored facts; records of earlier versions have none.
    fn from_facts(facts: &UntrustedText) -> Option<Self> {
        #[derive(Deserialize)]
        struct Facts {
            budget: Option<BudgetCounts>,
        }
        let facts: Facts = serde_json::from_str(facts.raw()).ok()?;
        facts.budget
    }
}

impl ExportedRecord {
    /// The exported form of a record; `turn` is the result of [`TurnIndex::turn_of`].
    pub(in crate::cli) fn from_record(record: &AuditRecord, turn: Option<usize>) -> Self {
        let facts = raw(record.facts.as_ref());
        let place = facts.as_ref().and_then(|facts| {
            let placed: FactsOrigin = serde_json::from_str(facts.get()).ok()?;
            placed.at
        });
        let RequestOrigin { agent, protocol } = place.unwrap_or_default();
        let waited = record.decided_at_us.saturating_sub(record.requested_at_us);
        Self {
            seq: record.link,
            ts: time(record.decided_at_us),
            prev_hash: record.prev_hash.clone(),
            hash: record.hash.clone(),
            format: record.format,
            decision_id: record.id.clone(),
            pool: record.pool.clone(),
            slot: record.slot,
            run: record.run.clone(),
            task: record.task.clone(),
            agent,
            protocol,
            session: record.session.clone(),
            turn,
            request_id: record.request_key.raw().to_owned(),
            tool_id: record.tool_id.as_ref().map(|id| id.raw().to_owned()),
            tool: record.tool.raw().to_owned(),
            input: raw(record.input.as_ref()),
            input_sha256: record.input_sha256.clone(),
            claimed: raw(Some(&record.claimed)),
            facts,
            budget: record.facts.as_ref().and_then(BudgetCounts::from_facts),
            decision: record.decision.clone(),
            by: record.decided_by.clone(),
            approver: record.approver.clone(),
            rules: record.rules.clone(),
            reason: record.reason.clone(),
            policy: PolicyName {
                name: record.policy.clone(),
                sha256: record.policy_sha256.clone(),
            },
            eval_us: record.eval_us,
            requested_at_us: record.requested_at_us,
            decided_at_us: record.decided_at_us,
            waited_ms: waited / 1000,
        }
    }
}

/// A record as one line of JSON.
pub(super) fn json(record: &AuditRecord, turn: Option<usize>) -> String {
    let line = ExportedRecord::from_record(record, turn);
    // Cannot fail: every map has string keys.
    serde_json::to_string(&line).unwrap_or_default()
}

/// A record as one line that is safe to show.
pub(super) fn line(record: &AuditRecord, width: usize) -> String {
    let pool = match (&record.pool, record.slot) {
        (Some(pool), Some(slot)) => format!("{}/{slot}", escape_for_display(pool, WORD)),
        _ => "-".to_owned(),
    };
    let rules: Vec<_> = record
        .rules
        .iter()
        .map(|rule| escape_for_display(rule, WORD))
        .collect();
    let rules = if rules.is_empty() {
        String::new()
    } else {
        format!(" ({})", rules.join(", "))
    };
    let text = format!(
        "{} {} {pool} {} {} by {}{rules} {}",
        record.link,
        time(record.decided_at_us),
        escape_for_display(&record.session, 128),
        escape_for_display(&record.decision, WORD),
        escape_for_display(&record.decided_by, WORD),
        record.tool.escape_for_display(WORD),
    );
    let input = record.input.as_ref();
    let input = input.map_or("(input not kept)", UntrustedText::raw);
    let remaining = width.saturating_sub(text.chars().count() + 1).max(LEAST);
    format!("{text} {}", escape_for_display(input, remaining))
}
