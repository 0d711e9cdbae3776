//! Connections from sandboxes through the egress proxy. No event contains their payload.

use std::time::Duration;

use metrics::{Counter, Gauge};

use crate::labels::EgressDirection;
use crate::meters::{counter, gauge};
use crate::names;
use marshal_model::{EgressResult, PoolName, SlotId};

/// A pool's counters, made once.
pub struct EgressMeters {
    results: Vec<Counter>,
    /// Bytes sent by the sandbox.
    pub sent: Counter,
    /// Bytes received by the sandbox.
    pub received: Counter,
    /// Open connections.
    pub open: Gauge,
}

impl EgressMeters {
    /// Makes the handles, at 0 where they are new.
    #[must_use]
    pub fn new(pool: &PoolName) -> Self {
        let pool = pool.as_str();
        let result = |result: &EgressResult| {
            counter(&names::EGRESS_CONNECTIONS_TOTAL, &[pool, result.as_str()])
        };
        let bytes = |of: EgressDirection| counter(&names::EGRESS_BYTES, &[pool, of.as_str()]);
        Self {
            results: EgressResult::ALL.iter().map(result).collect(),
            sent: bytes(EgressDirection::Sent),
            received: bytes(EgressDirection::Received),
            open: gauge(&names::EGRESS_CONNECTIONS, &[pool]),
        }
    }

    /// Counts a connection that ended or was refused.
    pub fn record_ended(&self, result: EgressResult) {
        let place = EgressResult::ALL.iter().position(|one| *one == result);
        if let Some(counter) = place.and_then(|place| self.results.get(place)) {
            counter.increment(1);
        }
    }
}

/// Connections ended. As in the journal, equal ones are combined, so the rate is bounded.
#[derive(Debug)]
pub struct EgressEnded<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The checked host and port; `None` if the request named none that is valid.
    pub destination: Option<&'a (String, u16)>,
    /// The result.
    pub result: EgressResult,
    /// The number of connections.
    pub connections: u64,
    /// Bytes sent by the sandbox.
    pub sent: u64,
    /// Bytes received by the sandbox.
    pub received: u64,
    /// How long the longest connection was open.
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
            tracing::debug!(%slot, place, %result, connections, sent, received, ?took, "egress connections ended");
        } else {
            tracing::info!(%slot, place, %result, connections, "egress connections refused");
        }
    }
}
