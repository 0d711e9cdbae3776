//! Connections from sandboxes to hosts outside. Nothing of what they carry is in any of these.

use std::time::Duration;

use metrics::{Counter, Gauge};

use crate::labels::EgressDirection;
use crate::meters::{counter, gauge};
use crate::names;
use marshal_model::{EgressResult, PoolName, SlotId};

/// A pool's counters, made once.
pub struct EgressMeters {
    results: Vec<Counter>,
    /// Bytes that went out.
    pub sent: Counter,
    /// Bytes that came in.
    pub received: Counter,
    /// Open connections.
    pub open: Gauge,
}

impl EgressMeters {
    /// Makes them.
    #[must_use]
    pub fn new(pool: &PoolName) -> Self {
        let pool = pool.as_str();
        let result = |result: &EgressResult| {
            counter(&names::EGRESS_CONNECTIONS_TOTAL, &[pool, result.word()])
        };
        let bytes = |of: EgressDirection| counter(&names::EGRESS_BYTES, &[pool, of.word()]);
        Self {
            results: EgressResult::ALL.iter().map(result).collect(),
            sent: bytes(EgressDirection::Sent),
            received: bytes(EgressDirection::Received),
            open: gauge(&names::EGRESS_CONNECTIONS, &[pool]),
        }
    }

    /// A connection ended, or was refused.
    pub fn record_ended(&self, result: EgressResult) {
        let place = EgressResult::ALL.iter().position(|one| *one == result);
        if let Some(counter) = place.and_then(|place| self.results.get(place)) {
            counter.increment(1);
        }
    }
}

/// Connections ended, as the journal is told: at a bounded rate.
#[derive(Debug)]
pub struct EgressEnded<'a> {
    /// Whose.
    pub slot: &'a SlotId,
    /// Host and port, which were checked.
    pub destination: Option<&'a (String, u16)>,
    /// How.
    pub result: EgressResult,
    /// How many.
    pub connections: u64,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// How long the longest was open.
    pub took: Duration,
}

impl EgressEnded<'_> {
    /// Logs.
    pub fn emit(self) {
        let Self {
            slot,
            destination: place,
            result,
            connections,
            sent,
            received,
            took,
        } = self;
        let place = place.map_or_else(
            || "none".to_owned(),
            |(host, port)| format!("{host}:{port}"),
        );
        if result.has_passed() {
            tracing::debug!(%slot, place, %result, connections, sent, received, ?took, "connections to a host outside ended");
        } else {
            tracing::info!(%slot, place, %result, connections, "connections to a host outside were refused");
        }
    }
}
