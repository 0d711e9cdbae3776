//! One audit record as a line for a person, and as a line of JSON; and back from that.
//!
//! Owns the form of an exported record. Must not know where lines go.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cli::event_text::time;
use marshal_journal::{AuditRecord, Reader};
use marshal_model::UntrustedText;
use marshal_model::untrusted::escape_for_display;

/// Columns of a foreign word.
const WORD: usize = 40;
/// The least that is shown of an input, in columns.
const LEAST: usize = 40;
/// Sessions whose turns are remembered at a time.
const SESSIONS: usize = 64;

/// Places of turns, by session: which turn of its session a request belongs to.
#[derive(Debug, Default)]
pub(super) struct TurnIndex(HashMap<String, Vec<u64>>);

impl TurnIndex {
    /// The number of the turn, from 1; `NoJournal` before the first, or once the session was removed.
    pub(super) fn turn_of(&mut self, reader: &Reader, record: &AuditRecord) -> Option<usize> {
        let known = self.0.get(&record.session);
        // A session that goes on has more turns than it had.
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

/// The policy that judged.
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
    /// What the hash covers; `NoJournal` in records of earlier versions.
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
    /// What budgets had counted of the turn before this.
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

/// Whose request it is, as its facts say beside the place.
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

/// A stored document on one line: outside of its strings, where there are no raw line ends, white
/// space has no meaning. `NoJournal` if it is none.
fn raw(text: Option<&UntrustedText>) -> Option<Box<RawValue>> {
    let text = text?.raw().replace(['\n', '\r'], " ");
    RawValue::from_string(text).ok()
}

/// A stored text as a value of a document: as it is, where it is no value that can be (half of a
/// surrogate pair, a number beyond all bounds).
pub(in crate::cli) fn value(of: Option<&RawValue>) -> serde_json::Value {
    of.map_or(serde_json::Value::Null, |of| {
        serde_json::from_str(of.get()).unwrap_or_else(|_| of.get().into())
    })
}

/// Requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct BudgetCounts {
    allows: u64,
    denies: u64,
}

impl BudgetCounts {
    /// From the facts as they are stored; records of earlier versions have none.
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
    /// The line of a record; `turn` as [`Turns::of`] gives it.
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
    // No map with keys that are no strings: this does not fail.
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
    let room = width.saturating_sub(text.chars().count() + 1).max(LEAST);
    format!("{text} {}", escape_for_display(input, room))
}
