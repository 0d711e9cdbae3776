//! The history of slots from earlier starts of the supervisor: their failures, and whether they are
//! parked.
//!
//! It is read from the journal before the pools start. This module decides which slots stay parked.
//! It must not decide what follows after a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock::now_us;
use super::setup::ResumeScope;
use marshal_config::Pool as PoolConfig;
use marshal_journal::{Commit, Journal, OpenError, ParkedSlot, ReadError, Write};
use marshal_model::{PoolName, SlotId};

/// Why the slots' history or a pool's spend cannot be read from the journal.
#[derive(Debug, thiserror::Error)]
pub enum SlotHistoryError {
    /// The journal could not be opened for reading.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The history of one slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotHistory {
    /// The ages of its failures within the restart window of its pool, oldest first.
    pub(crate) ages: Vec<Duration>,
    /// Why it is parked; `None` if it is not.
    pub(crate) parked: Option<String>,
}

/// Reads the histories of the slots of these pools, in the order of the slots. Blocks on the disk.
pub(super) fn load_slot_histories(
    journal: &Journal,
    pools: &[PoolConfig],
    scope: &ResumeScope,
) -> Result<BTreeMap<PoolName, Vec<SlotHistory>>, SlotHistoryError> {
    let reader = journal.reader()?;
    let mut parks: BTreeMap<SlotId, ParkedSlot> = BTreeMap::new();
    for park in reader.parked_slots()? {
        parks.insert(park.slot.clone(), park);
    }
    let now = now_us();
    let mut all = BTreeMap::new();
    for pool in pools {
        let window = i64::try_from(pool.restart.window.as_micros()).unwrap_or(i64::MAX);
        let mut slots = Vec::with_capacity(usize::from(pool.max_size));
        for index in 0..pool.max_size {
            let slot = SlotId {
                pool: pool.name.clone(),
                index,
            };
            let failures = reader.slot_failures(&slot, now.saturating_sub(window))?;
            let age = |at_us: i64| u64::try_from(now.saturating_sub(at_us)).unwrap_or(0);
            let ages = failures
                .into_iter()
                .map(|(at_us, _)| Duration::from_micros(age(at_us)));
            slots.push(SlotHistory {
                ages: ages.collect(),
                parked: parks
                    .remove(&slot)
                    .and_then(|park| park_reason_after_start(journal, park, scope)),
            });
        }
        all.insert(pool.name.clone(), slots);
    }
    Ok(all)
}

/// The park's reason, if the slot stays parked. When work is resumed, slots stay parked. A new run
/// starts each parked slot once more, because its user may have fixed the cause and has no daemon
/// for `marshal restart`. The failures still count, so the next failure may park the slot again.
fn park_reason_after_start(
    journal: &Journal,
    park: ParkedSlot,
    scope: &ResumeScope,
) -> Option<String> {
    if *scope != ResumeScope::None {
        tracing::warn!(slot = %park.slot, reason = park.reason, "the slot stays parked: fix the cause, then restart it");
        return Some(park.reason);
    }
    tracing::info!(slot = %park.slot, reason = park.reason, "a parked slot is started again");
    let unpark = Write::SlotUnparked { slot: park.slot };
    if let Err(refused) = journal.submit(Commit::new(vec![unpark])) {
        tracing::warn!(%refused, "the end of a slot's park was not journalled: the next start may find it parked");
    }
    None
}
