//! One audit record as a line for a person, and as a line of JSON; and back from that.
//!
//! Owns the form of an exported record. Must not know where lines go.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cli::event_text::time;
use crate::journal::{AuditRecord, Reader};
use crate::model::Foreign;
use crate::model::foreign::show;

/// Columns of a foreign word.
const WORD: usize = 40;
/// The least that is shown of an input, in columns.
const LEAST: usize = 40;
/// Sessions whose turns are remembered at a time.
const SESSIONS: usize = 64;

/// Places of turns, by session: which turn of its session a request belongs to.
#[derive(Debug, Default)]
pub(super) struct Turns(HashMap<String, Vec<u64>>);

impl Turns {
    /// The number of the turn, from 1; `None` before the first, or once the session was removed.
    pub(super) fn of(&mut self, reader: &Reader, record: &AuditRecord) -> Option<usize> {
        let known = self.0.get(&record.session);
        // A session that goes on has more turns than it had.
        let is_old = known.is_none_or(|turns| turns.last().is_none_or(|l| *l < record.asked_seq));
        if is_old {
            if self.0.len() >= SESSIONS {
                self.0.clear();
            }
            let turns = reader.turns(&record.session).unwrap_or_default();
            self.0.insert(record.session.clone(), turns);
        }
        let turns = self.0.get(&record.session)?;
        let before = turns.partition_point(|seq| *seq < record.asked_seq);
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
pub(in crate::cli) struct Line {
    pub(in crate::cli) seq: u64,
    pub(in crate::cli) ts: String,
    pub(in crate::cli) prev_hash: String,
    pub(in crate::cli) hash: String,
    pub(in crate::cli) decision_id: String,
    pub(in crate::cli) pool: Option<String>,
    pub(in crate::cli) slot: Option<u16>,
    pub(in crate::cli) run: Option<String>,
    pub(in crate::cli) task: Option<String>,
    pub(in crate::cli) session: String,
    pub(in crate::cli) turn: Option<usize>,
    pub(in crate::cli) request_id: String,
    pub(in crate::cli) tool_id: Option<String>,
    pub(in crate::cli) tool: String,
    pub(in crate::cli) input: Option<Box<RawValue>>,
    pub(in crate::cli) input_sha256: String,
    pub(in crate::cli) claimed: Option<Box<RawValue>>,
    pub(in crate::cli) facts: Option<Box<RawValue>>,
    pub(in crate::cli) decision: String,
    pub(in crate::cli) by: String,
    pub(in crate::cli) rules: Vec<String>,
    pub(in crate::cli) reason: String,
    pub(in crate::cli) policy: PolicyName,
    pub(in crate::cli) eval_us: Option<u64>,
    pub(in crate::cli) asked_at_us: i64,
    pub(in crate::cli) decided_at_us: i64,
    pub(in crate::cli) waited_ms: i64,
}

/// A stored document on one line: outside of its strings, where there are no raw line ends, white
/// space has no meaning. `None` if it is none.
fn raw(text: Option<&Foreign>) -> Option<Box<RawValue>> {
    let text = text?.raw().replace(['\n', '\r'], " ");
    RawValue::from_string(text).ok()
}

impl Line {
    /// The line of a record; `turn` as [`Turns::of`] gives it.
    pub(in crate::cli) fn of(record: &AuditRecord, turn: Option<usize>) -> Self {
        let waited = record.decided_at_us.saturating_sub(record.asked_at_us);
        Self {
            seq: record.link,
            ts: time(record.decided_at_us),
            prev_hash: record.prev_hash.clone(),
            hash: record.hash.clone(),
            decision_id: record.id.clone(),
            pool: record.pool.clone(),
            slot: record.slot,
            run: record.run.clone(),
            task: record.task.clone(),
            session: record.session.clone(),
            turn,
            request_id: record.request_key.raw().to_owned(),
            tool_id: record.tool_id.as_ref().map(|id| id.raw().to_owned()),
            tool: record.tool.raw().to_owned(),
            input: raw(record.input.as_ref()),
            input_sha256: record.input_sha256.clone(),
            claimed: raw(Some(&record.claimed)),
            facts: raw(record.facts.as_ref()),
            decision: record.decision.clone(),
            by: record.decided_by.clone(),
            rules: record.rules.clone(),
            reason: record.reason.clone(),
            policy: PolicyName {
                name: record.policy.clone(),
                sha256: record.policy_sha256.clone(),
            },
            eval_us: record.eval_us,
            asked_at_us: record.asked_at_us,
            decided_at_us: record.decided_at_us,
            waited_ms: waited / 1000,
        }
    }
}

/// A record as one line of JSON.
pub(super) fn json(record: &AuditRecord, turn: Option<usize>) -> String {
    // No map with keys that are no strings: this does not fail.
    serde_json::to_string(&Line::of(record, turn)).unwrap_or_default()
}

/// A record as one line that is safe to show.
pub(super) fn line(record: &AuditRecord, width: usize) -> String {
    let pool = match (&record.pool, record.slot) {
        (Some(pool), Some(slot)) => format!("{}/{slot}", show(pool, WORD)),
        _ => "-".to_owned(),
    };
    let rules: Vec<_> = record.rules.iter().map(|rule| show(rule, WORD)).collect();
    let rules = if rules.is_empty() {
        String::new()
    } else {
        format!(" ({})", rules.join(", "))
    };
    let text = format!(
        "{} {} {pool} {} {} by {}{rules} {}",
        record.link,
        time(record.decided_at_us),
        show(&record.session, 128),
        show(&record.decision, WORD),
        show(&record.decided_by, WORD),
        record.tool.show(WORD),
    );
    let input = record.input.as_ref();
    let input = input.map_or("(input not kept)", Foreign::raw);
    let room = width.saturating_sub(text.chars().count() + 1).max(LEAST);
    format!("{text} {}", show(input, room))
}
