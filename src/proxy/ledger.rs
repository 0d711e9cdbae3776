//! What is told of connections: every one is counted, and records of them go to the session's
//! journal at a bounded rate. When there are more, those that are alike are added up.
//!
//! Must not know what a connection carries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Tell;
use crate::egress::Asked;
use crate::limits::{
    EGRESS_PASSED_WAITING, EGRESS_RECORD_EVERY, EGRESS_RECORDS, EGRESS_RECORDS_WAITING,
};
use crate::model::{EgressResult, SlotId};
use crate::telemetry::event::egress::{EgressEnded, EgressMeters};

/// Connections that ended alike; most often one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Host and port; `None` if none was asked for, or for many that were not told one by one.
    pub place: Option<(String, u16)>,
    /// How they ended.
    pub result: EgressResult,
    /// How many they are.
    pub connections: u64,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// How long the longest was open.
    pub took: Duration,
}

impl Record {
    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
        self.took = self.took.max(other.took);
    }
}

/// Bytes of one connection.
#[derive(Debug, Default)]
pub(super) struct Carried {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// An open connection.
#[derive(Debug)]
struct Open {
    place: Option<(String, u16)>,
    since: Instant,
    carried: Arc<Carried>,
}

/// Records that wait, those that are alike added up.
type Waiting = BTreeMap<(Option<(String, u16)>, EgressResult), Record>;

struct Inner {
    open: BTreeMap<u64, Open>,
    next: u64,
    /// What was asked of hosts on the list. Apart, so that whatever else is asked takes no name
    /// from it.
    allowed: Waiting,
    /// All the rest.
    others: Waiting,
    /// Whose turn is next: neither can hold up the other.
    others_next: bool,
    /// Records that may be told at once.
    places: u32,
    /// Since when they grow.
    since: Instant,
    closed: bool,
}

/// The ledger of one child.
pub(super) struct Ledger {
    pub(super) slot: SlotId,
    pub(super) meters: EgressMeters,
    tell: Tell,
    inner: Mutex<Inner>,
    /// Something waits that did not.
    waits: Notify,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ledger({})", self.slot)
    }
}

impl Ledger {
    pub(super) fn new(slot: SlotId, tell: Tell) -> Self {
        Self {
            meters: EgressMeters::new(&slot.pool),
            slot,
            tell,
            inner: Mutex::new(Inner {
                open: BTreeMap::new(),
                next: 0,
                allowed: Waiting::new(),
                others: Waiting::new(),
                others_next: false,
                places: EGRESS_RECORDS,
                since: Instant::now(),
                closed: false,
            }),
            waits: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was accepted.
    pub(super) fn open(self: &Arc<Self>) -> Entry {
        let carried = Arc::new(Carried::default());
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        let open = Open {
            place: None,
            since: Instant::now(),
            carried: Arc::clone(&carried),
        };
        inner.open.insert(id, open);
        self.meters.open.increment(1.0);
        Entry {
            ledger: Arc::clone(self),
            id,
            carried,
        }
    }

    /// A connection was refused before anything was read of it.
    pub(super) fn refused(&self, result: EgressResult) {
        self.note(Record {
            place: None,
            result,
            connections: 1,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        });
    }

    fn note(&self, record: Record) {
        self.meters.ended(record.result);
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        inner.refill(Instant::now());
        if inner.is_idle() && inner.places > 0 {
            inner.places -= 1;
            drop(inner);
            return self.told(record);
        }
        let was_empty = inner.is_idle();
        inner.wait(record);
        drop(inner);
        if was_empty {
            self.waits.notify_one();
        }
    }

    fn told(&self, record: Record) {
        EgressEnded {
            slot: &self.slot,
            place: record.place.as_ref(),
            result: record.result,
            connections: record.connections,
            sent: record.sent,
            received: record.received,
            took: record.took,
        }
        .emit();
        (self.tell)(record);
    }

    /// Waits until a record that waits may be told, and tells those that may. Whoever gives up
    /// waiting and begins anew, as often as it likes, waits no longer by that.
    pub(super) async fn due(&self) {
        loop {
            let at = {
                let mut inner = self.lock();
                inner.refill(Instant::now());
                let at = if inner.places > 0 {
                    Instant::now()
                } else {
                    inner.since + EGRESS_RECORD_EVERY
                };
                (!inner.is_idle()).then_some(at)
            };
            match at {
                None => self.waits.notified().await,
                Some(at) => {
                    // A sleep may take a tick that nobody waits for.
                    if at > Instant::now() {
                        tokio::time::sleep_until(at).await;
                    }
                    return self.tell_waiting();
                }
            }
        }
    }

    fn tell_waiting(&self) {
        let mut ready = Vec::new();
        let mut inner = self.lock();
        inner.refill(Instant::now());
        while inner.places > 0
            && let Some(record) = inner.next_waiting()
        {
            inner.places -= 1;
            ready.push(record);
        }
        drop(inner);
        for record in ready {
            self.told(record);
        }
    }

    /// The child is gone: its open connections end now. Gives what was not told.
    pub(super) fn finish(&self) -> Vec<Record> {
        let mut inner = self.lock();
        inner.closed = true;
        for open in std::mem::take(&mut inner.open).into_values() {
            self.meters.ended(EgressResult::Cut);
            self.meters.open.decrement(1.0);
            let record = open.record(EgressResult::Cut);
            inner.wait(record);
        }
        let allowed = std::mem::take(&mut inner.allowed);
        let others = std::mem::take(&mut inner.others);
        drop(inner);
        allowed.into_values().chain(others.into_values()).collect()
    }
}

impl Open {
    fn record(self, result: EgressResult) -> Record {
        Record {
            place: self.place,
            result,
            connections: 1,
            sent: self.carried.sent.load(Ordering::Relaxed),
            received: self.carried.received.load(Ordering::Relaxed),
            took: self.since.elapsed(),
        }
    }
}

impl Inner {
    fn refill(&mut self, now: Instant) {
        let every = EGRESS_RECORD_EVERY.as_millis();
        let passed = now.saturating_duration_since(self.since).as_millis() / every;
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.places = self.places.saturating_add(passed).min(EGRESS_RECORDS);
        // By whole steps only: how often it is asked changes nothing.
        self.since += EGRESS_RECORD_EVERY * passed;
    }

    fn is_idle(&self) -> bool {
        self.allowed.is_empty() && self.others.is_empty()
    }

    fn next_waiting(&mut self) -> Option<Record> {
        let (first, second) = if self.others_next {
            (&mut self.others, &mut self.allowed)
        } else {
            (&mut self.allowed, &mut self.others)
        };
        self.others_next = !self.others_next;
        let next = first.pop_first().or_else(|| second.pop_first());
        next.map(|(_, record)| record)
    }

    fn wait(&mut self, mut record: Record) {
        let (waiting, most) = if record.place.is_some() && is_of_allowed(record.result) {
            (&mut self.allowed, EGRESS_PASSED_WAITING)
        } else {
            (&mut self.others, EGRESS_RECORDS_WAITING)
        };
        let key = (record.place.clone(), record.result);
        let is_new = !waiting.contains_key(&key);
        let key = if is_new && waiting.len() >= most {
            record.place = None;
            (None, record.result)
        } else {
            key
        };
        match waiting.get_mut(&key) {
            Some(before) => before.add(&record),
            None => {
                waiting.insert(key, record);
            }
        }
    }
}

/// Whether it ends so only with hosts on the list.
const fn is_of_allowed(result: EgressResult) -> bool {
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

/// One open connection's place in the ledger. Dropped without an end, it was cut.
#[derive(Debug)]
pub(super) struct Entry {
    ledger: Arc<Ledger>,
    id: u64,
    pub(super) carried: Arc<Carried>,
}

impl Entry {
    /// It is known what it asks for.
    pub(super) fn asks(&self, asked: &Asked) {
        if let Some(open) = self.ledger.lock().open.get_mut(&self.id) {
            open.place = Some((asked.host.clone(), asked.port));
        }
    }

    /// It is over.
    pub(super) fn end(self, result: EgressResult) {
        self.over(result);
    }

    fn over(&self, result: EgressResult) {
        let open = self.ledger.lock().open.remove(&self.id);
        if let Some(open) = open {
            self.ledger.meters.open.decrement(1.0);
            self.ledger.note(open.record(result));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.over(EgressResult::Cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PoolName;

    fn ledger() -> (Arc<Ledger>, Arc<Mutex<Vec<Record>>>) {
        let told: Arc<Mutex<Vec<Record>>> = Arc::default();
        let to = Arc::clone(&told);
        let slot = SlotId {
            pool: PoolName::new("demo").expect("a name"),
            index: 0,
        };
        let tell = move |record| to.lock().expect("no panic").push(record);
        (Arc::new(Ledger::new(slot, Box::new(tell))), told)
    }

    fn asked(host: &str) -> Asked {
        Asked {
            host: host.to_owned(),
            port: 443,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_are_told_one_by_one_and_a_flood_is_added_up() {
        let (ledger, told) = ledger();
        let burst = u64::from(EGRESS_RECORDS);
        for number in 0..burst {
            let entry = ledger.open();
            entry.asks(&asked(&format!("h{number}.example.com")));
            entry.carried.sent.store(7, Ordering::Relaxed);
            entry.end(EgressResult::Passed);
        }
        assert_eq!(told.lock().expect("no panic").len() as u64, burst);
        for number in 0..10_000 {
            ledger.refused(EgressResult::Connections);
            let entry = ledger.open();
            entry.asks(&asked(&format!("h{number}.example.com")));
            entry.end(EgressResult::NotAllowed);
        }
        assert_eq!(told.lock().expect("no panic").len() as u64, burst);
        let waiting = ledger.lock().others.len();
        assert!(
            waiting <= EGRESS_RECORDS_WAITING + EgressResult::ALL.len(),
            "{waiting}"
        );
        let began = Instant::now();
        for _ in 0..5 {
            ledger.due().await;
        }
        assert!(
            began.elapsed() >= EGRESS_RECORD_EVERY * 5,
            "{:?}",
            began.elapsed()
        );
        let rest = ledger.finish();
        let mut all = told.lock().expect("no panic").clone();
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
            () = ledger.due() => {}
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_silenced_by_a_flood() {
        let (ledger, told) = ledger();
        let pass = |host: &str| {
            let entry = ledger.open();
            entry.asks(&asked(host));
            entry.end(EgressResult::Passed);
        };
        for _ in 0..EGRESS_RECORDS {
            ledger.refused(EgressResult::Rate);
        }
        for number in 0..1000 {
            let entry = ledger.open();
            entry.asks(&asked(&format!("a{number}.example.com")));
            entry.end(EgressResult::NotAllowed);
        }
        // What passed has its name, however much was refused before it.
        pass("z.example.com");
        told.lock().expect("no panic").clear();
        // More than one in a tick of the clock, for as long as eleven records take.
        let ticks = u32::try_from(EGRESS_RECORD_EVERY.as_millis()).expect("short") / 10 * 11;
        for _ in 0..ticks {
            tokio::time::advance(Duration::from_millis(10)).await;
            for _ in 0..3 {
                ledger.refused(EgressResult::Rate);
                glance(&ledger).await;
            }
        }
        let told = told.lock().expect("no panic").clone();
        assert_eq!(told.len(), 11, "{told:?}");
        let place = Some(("z.example.com".to_owned(), 443));
        assert_eq!(
            (&told[0].place, told[0].result),
            (&place, EgressResult::Passed)
        );
        assert!(
            told[1..]
                .iter()
                .all(|record| record.result != EgressResult::Passed)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_does_not_hold_up_what_is_refused() {
        let (ledger, told) = ledger();
        for _ in 0..EGRESS_RECORDS {
            ledger.refused(EgressResult::Rate);
        }
        told.lock().expect("no panic").clear();
        for _ in 0..4 {
            ledger.refused(EgressResult::NotAllowed);
            let entry = ledger.open();
            entry.asks(&asked("a.example.com"));
            entry.end(EgressResult::Passed);
            ledger.due().await;
        }
        let told = told.lock().expect("no panic").clone();
        let refused = told.iter().filter(|record| record.place.is_none()).count();
        assert_eq!((told.len(), refused), (4, 2), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_open_at_the_end_is_cut_and_told_once() {
        let (ledger, told) = ledger();
        let entry = ledger.open();
        entry.asks(&asked("a.example.com"));
        entry.carried.received.store(9, Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(3)).await;
        let rest = ledger.finish();
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].result, EgressResult::Cut);
        assert_eq!(
            (rest[0].received, rest[0].took),
            (9, Duration::from_secs(3))
        );
        drop(entry);
        ledger.refused(EgressResult::Rate);
        assert!(told.lock().expect("no panic").is_empty());
        assert!(ledger.finish().is_empty());
    }
}
