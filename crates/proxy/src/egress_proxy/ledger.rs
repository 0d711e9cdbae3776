//! Records of connections: every connection is counted, and records go to the session's journal at
//! a bounded rate. Beyond that rate, equal records are merged.
//!
//! Must not know what a connection carries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::RecordSink;
use crate::egress::ConnectTarget;
use marshal_model::limits::{
    EGRESS_PASSED_WAITING, EGRESS_RECORD_INTERVAL, EGRESS_RECORDS, EGRESS_RECORDS_WAITING,
};
use marshal_model::{EgressResult, SlotId};
use marshal_telemetry::event::egress::{EgressEnded, EgressMeters};

/// One or more connections with the same destination and result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressRecord {
    /// Host and port; `None` if none was requested, or for merged connections with many
    /// destinations.
    pub destination: Option<(String, u16)>,
    /// How they ended.
    pub result: EgressResult,
    /// Number of connections.
    pub connections: u64,
    /// Bytes sent to the host.
    pub sent: u64,
    /// Bytes received from the host.
    pub received: u64,
    /// Duration of the longest one.
    pub took: Duration,
}

impl EgressRecord {
    fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
        self.took = self.took.max(other.took);
    }
}

/// Byte counters of one connection.
#[derive(Debug, Default)]
pub(super) struct ByteCounts {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// An open connection.
#[derive(Debug)]
struct OpenConnection {
    destination: Option<(String, u16)>,
    since: Instant,
    bytes: Arc<ByteCounts>,
}

/// Pending records, merged by destination and result.
type PendingRecords = BTreeMap<(Option<(String, u16)>, EgressResult), EgressRecord>;

struct Inner {
    open: BTreeMap<u64, OpenConnection>,
    next: u64,
    /// Records of allowed hosts. They have their own map, so that requests for other hosts cannot
    /// displace their names.
    allowed: PendingRecords,
    /// All other records.
    others: PendingRecords,
    /// Which map is next: they alternate, so that neither starves the other.
    others_next: bool,
    /// Records that may be written now.
    record_permits: u32,
    /// When `record_permits` was last refilled.
    since: Instant,
    closed: bool,
}

/// The records of one child.
pub(crate) struct Ledger {
    pub(super) slot: SlotId,
    pub(super) meters: EgressMeters,
    sink: RecordSink,
    inner: Mutex<Inner>,
    /// Notified when the first record becomes pending.
    record_pending: Notify,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ledger({})", self.slot)
    }
}

impl Ledger {
    pub(crate) fn new(slot: SlotId, tell: RecordSink) -> Self {
        Self {
            meters: EgressMeters::new(&slot.pool),
            slot,
            sink: tell,
            inner: Mutex::new(Inner {
                open: BTreeMap::new(),
                next: 0,
                allowed: PendingRecords::new(),
                others: PendingRecords::new(),
                others_next: false,
                record_permits: EGRESS_RECORDS,
                since: Instant::now(),
                closed: false,
            }),
            record_pending: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an accepted connection.
    pub(super) fn open(self: &Arc<Self>) -> Entry {
        let carried = Arc::new(ByteCounts::default());
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        let open = OpenConnection {
            destination: None,
            since: Instant::now(),
            bytes: Arc::clone(&carried),
        };
        inner.open.insert(id, open);
        self.meters.open.increment(1.0);
        Entry {
            ledger: Arc::clone(self),
            id,
            bytes: carried,
        }
    }

    /// Counts a connection that was refused before its request was read.
    pub(super) fn record_refused(&self, result: EgressResult) {
        self.add_record(EgressRecord {
            destination: None,
            result,
            connections: 1,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        });
    }

    /// Counts a request for a host that no rule names, which was refused.
    pub(crate) fn record_denied_host(&self, host: String, port: u16) {
        self.add_record(EgressRecord {
            destination: Some((host, port)),
            result: EgressResult::NotAllowed,
            connections: 1,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        });
    }

    fn add_record(&self, record: EgressRecord) {
        self.meters.record_ended(record.result);
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        inner.refill(Instant::now());
        if inner.is_idle() && inner.record_permits > 0 {
            inner.record_permits -= 1;
            drop(inner);
            return self.emit_record(record);
        }
        let was_empty = inner.is_idle();
        inner.enqueue(record);
        drop(inner);
        if was_empty {
            self.record_pending.notify_one();
        }
    }

    fn emit_record(&self, record: EgressRecord) {
        EgressEnded {
            slot: &self.slot,
            destination: record.destination.as_ref(),
            result: record.result,
            connections: record.connections,
            sent: record.sent,
            received: record.received,
            took: record.took,
        }
        .emit();
        (self.sink)(record);
    }

    /// Waits until a pending record may be written, and writes all that may. Cancelling and calling
    /// it again does not lengthen the wait.
    pub(crate) async fn flush_due(&self) {
        loop {
            let at = {
                let mut inner = self.lock();
                inner.refill(Instant::now());
                let at = if inner.record_permits > 0 {
                    Instant::now()
                } else {
                    inner.since + EGRESS_RECORD_INTERVAL
                };
                (!inner.is_idle()).then_some(at)
            };
            match at {
                None => self.record_pending.notified().await,
                Some(at) => {
                    // The sleep may consume a tick for which no permit is due yet.
                    if at > Instant::now() {
                        tokio::time::sleep_until(at).await;
                    }
                    return self.emit_pending();
                }
            }
        }
    }

    fn emit_pending(&self) {
        let mut ready = Vec::new();
        let mut inner = self.lock();
        inner.refill(Instant::now());
        while inner.record_permits > 0
            && let Some(record) = inner.next_pending()
        {
            inner.record_permits -= 1;
            ready.push(record);
        }
        drop(inner);
        for record in ready {
            self.emit_record(record);
        }
    }

    /// Ends all open connections, because the child has ended. Returns the records not yet written.
    pub(crate) fn finish(&self) -> Vec<EgressRecord> {
        let mut inner = self.lock();
        inner.closed = true;
        for open in std::mem::take(&mut inner.open).into_values() {
            self.meters.record_ended(EgressResult::Cut);
            self.meters.open.decrement(1.0);
            let record = open.record(EgressResult::Cut);
            inner.enqueue(record);
        }
        let allowed = std::mem::take(&mut inner.allowed);
        let others = std::mem::take(&mut inner.others);
        drop(inner);
        allowed.into_values().chain(others.into_values()).collect()
    }
}

impl OpenConnection {
    fn record(self, result: EgressResult) -> EgressRecord {
        EgressRecord {
            destination: self.destination,
            result,
            connections: 1,
            sent: self.bytes.sent.load(Ordering::Relaxed),
            received: self.bytes.received.load(Ordering::Relaxed),
            took: self.since.elapsed(),
        }
    }
}

impl Inner {
    fn refill(&mut self, now: Instant) {
        let every = EGRESS_RECORD_INTERVAL.as_millis();
        let passed = now.saturating_duration_since(self.since).as_millis() / every;
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.record_permits = self
            .record_permits
            .saturating_add(passed)
            .min(EGRESS_RECORDS);
        // Advance by whole intervals only, so that frequent calls do not change the rate.
        self.since += EGRESS_RECORD_INTERVAL * passed;
    }

    fn is_idle(&self) -> bool {
        self.allowed.is_empty() && self.others.is_empty()
    }

    fn next_pending(&mut self) -> Option<EgressRecord> {
        let (first, second) = if self.others_next {
            (&mut self.others, &mut self.allowed)
        } else {
            (&mut self.allowed, &mut self.others)
        };
        self.others_next = !self.others_next;
        let next = first.pop_first().or_else(|| second.pop_first());
        next.map(|(_, record)| record)
    }

    fn enqueue(&mut self, mut record: EgressRecord) {
        let (waiting, most) =
            if record.destination.is_some() && is_allowed_host_result(record.result) {
                (&mut self.allowed, EGRESS_PASSED_WAITING)
            } else {
                (&mut self.others, EGRESS_RECORDS_WAITING)
            };
        let key = (record.destination.clone(), record.result);
        let is_new = !waiting.contains_key(&key);
        let key = if is_new && waiting.len() >= most {
            record.destination = None;
            (None, record.result)
        } else {
            key
        };
        match waiting.get_mut(&key) {
            Some(before) => before.merge(&record),
            None => {
                waiting.insert(key, record);
            }
        }
    }
}

/// Whether only connections to allowed hosts can have this result.
const fn is_allowed_host_result(result: EgressResult) -> bool {
    result.has_passed()
        || matches!(
            result,
            EgressResult::Lookup
                | EgressResult::Address
                | EgressResult::Unreachable
                | EgressResult::Tls
                | EgressResult::Name
        )
}

/// The ledger's entry of one open connection. Dropped without `end`, it counts as cut.
#[derive(Debug)]
pub(super) struct Entry {
    ledger: Arc<Ledger>,
    id: u64,
    pub(super) bytes: Arc<ByteCounts>,
}

impl Entry {
    /// Records the requested target.
    pub(super) fn set_target(&self, target: &ConnectTarget) {
        if let Some(open) = self.ledger.lock().open.get_mut(&self.id) {
            open.destination = Some((target.host.clone(), target.port));
        }
    }

    /// Records the end of the connection.
    pub(super) fn end(self, result: EgressResult) {
        self.close(result);
    }

    fn close(&self, result: EgressResult) {
        let open = self.ledger.lock().open.remove(&self.id);
        if let Some(open) = open {
            self.ledger.meters.open.decrement(1.0);
            self.ledger.add_record(open.record(result));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.close(EgressResult::Cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::PoolName;

    fn ledger() -> (Arc<Ledger>, Arc<Mutex<Vec<EgressRecord>>>) {
        let records: Arc<Mutex<Vec<EgressRecord>>> = Arc::default();
        let to = Arc::clone(&records);
        let slot = SlotId {
            pool: PoolName::new("demo").expect("a name"),
            index: 0,
        };
        let tell = move |record| to.lock().expect("no panic").push(record);
        (Arc::new(Ledger::new(slot, Box::new(tell))), records)
    }

    fn target(host: &str) -> ConnectTarget {
        ConnectTarget {
            host: host.to_owned(),
            port: 443,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_are_told_one_by_one_and_a_flood_is_added_up() {
        let (ledger, records) = ledger();
        let burst = u64::from(EGRESS_RECORDS);
        for number in 0..burst {
            let entry = ledger.open();
            entry.set_target(&target(&format!("h{number}.example.com")));
            entry.bytes.sent.store(7, Ordering::Relaxed);
            entry.end(EgressResult::Passed);
        }
        assert_eq!(records.lock().expect("no panic").len() as u64, burst);
        for number in 0..10_000 {
            ledger.record_refused(EgressResult::Connections);
            let entry = ledger.open();
            entry.set_target(&target(&format!("h{number}.example.com")));
            entry.end(EgressResult::NotAllowed);
        }
        assert_eq!(records.lock().expect("no panic").len() as u64, burst);
        let waiting = ledger.lock().others.len();
        assert!(
            waiting <= EGRESS_RECORDS_WAITING + EgressResult::ALL.len(),
            "{waiting}"
        );
        let began = Instant::now();
        for _ in 0..5 {
            ledger.flush_due().await;
        }
        assert!(
            began.elapsed() >= EGRESS_RECORD_INTERVAL * 5,
            "{:?}",
            began.elapsed()
        );
        let rest = ledger.finish();
        let mut all = records.lock().expect("no panic").clone();
        assert_eq!(all.len() as u64, burst + 5);
        all.extend(rest);
        let count = |result| -> u64 {
            let all = all.iter().filter(|record| record.result == result);
            all.map(|record| record.connections).sum()
        };
        assert_eq!(count(EgressResult::Passed), burst);
        assert_eq!(count(EgressResult::Connections), 10_000);
        assert_eq!(count(EgressResult::NotAllowed), 10_000);
        assert_eq!(all.iter().map(|record| record.sent).sum::<u64>(), burst * 7);
    }

    /// A wait for the next record that is given up at once, as a loop does that accepts.
    async fn glance(ledger: &Ledger) {
        tokio::select! {
            biased;
            () = ledger.flush_due() => {}
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_silenced_by_a_flood() {
        let (ledger, records) = ledger();
        let pass = |host: &str| {
            let entry = ledger.open();
            entry.set_target(&target(host));
            entry.end(EgressResult::Passed);
        };
        for _ in 0..EGRESS_RECORDS {
            ledger.record_refused(EgressResult::Rate);
        }
        for number in 0..1000 {
            let entry = ledger.open();
            entry.set_target(&target(&format!("a{number}.example.com")));
            entry.end(EgressResult::NotAllowed);
        }
        // What passed has its name, however much was refused before it.
        pass("z.example.com");
        records.lock().expect("no panic").clear();
        // More than one in a tick of the clock, for as long as eleven records take.
        let ticks = u32::try_from(EGRESS_RECORD_INTERVAL.as_millis()).expect("short") / 10 * 11;
        for _ in 0..ticks {
            tokio::time::advance(Duration::from_millis(10)).await;
            for _ in 0..3 {
                ledger.record_refused(EgressResult::Rate);
                glance(&ledger).await;
            }
        }
        let records = records.lock().expect("no panic").clone();
        assert_eq!(records.len(), 11, "{records:?}");
        let place = Some(("z.example.com".to_owned(), 443));
        assert_eq!(
            (&records[0].destination, records[0].result),
            (&place, EgressResult::Passed)
        );
        assert!(
            records[1..]
                .iter()
                .all(|record| record.result != EgressResult::Passed)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_does_not_hold_up_what_is_refused() {
        let (ledger, records) = ledger();
        for _ in 0..EGRESS_RECORDS {
            ledger.record_refused(EgressResult::Rate);
        }
        records.lock().expect("no panic").clear();
        for _ in 0..4 {
            ledger.record_refused(EgressResult::NotAllowed);
            let entry = ledger.open();
            entry.set_target(&target("a.example.com"));
            entry.end(EgressResult::Passed);
            ledger.flush_due().await;
        }
        let records = records.lock().expect("no panic").clone();
        let refused = records
            .iter()
            .filter(|record| record.destination.is_none())
            .count();
        assert_eq!((records.len(), refused), (4, 2), "{records:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_open_at_the_end_is_cut_and_told_once() {
        let (ledger, records) = ledger();
        let entry = ledger.open();
        entry.set_target(&target("a.example.com"));
        entry.bytes.received.store(9, Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(3)).await;
        let rest = ledger.finish();
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].result, EgressResult::Cut);
        assert_eq!(
            (rest[0].received, rest[0].took),
            (9, Duration::from_secs(3))
        );
        drop(entry);
        ledger.record_refused(EgressResult::Rate);
        assert!(records.lock().expect("no panic").is_empty());
        assert!(ledger.finish().is_empty());
    }
}
