//! What slots remember over a start of the supervisor: their failures, and that they are parked.
//!
//! Reads it from the journal before the pools start, and decides which parks still hold. Must not
//! decide what follows on a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock::now_us;
use super::setup::ResumeScope;
use marshal_config::Pool as PoolConfig;
use marshal_journal::{Commit, Journal, OpenError, ParkedSlot, ReadError, Write};
use marshal_model::{PoolName, SlotId};

/// Why the journal did not say what the slots remember.
#[derive(Debug, thiserror::Error)]
pub enum SlotHistoryError {
    /// It could not be opened for reading.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What one slot remembers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotHistory {
    /// How long ago it failed, oldest first, within the window of its pool.
    pub(crate) ages: Vec<Duration>,
    /// Why it is parked, if it is.
    pub(crate) parked: Option<String>,
}

/// What the slots of these pools remember, in the order of the slots. Blocks on the disk.
pub(super) fn load_slot_histories(
    journal: &Journal,
    pools: &[PoolConfig],
    go_on: &ResumeScope,
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
                    .and_then(|park| kept_park_reason(journal, park, go_on)),
            });
        }
        all.insert(pool.name.clone(), slots);
    }
    Ok(all)
}

/// The reason, if the slot stays parked. Work that goes on finds the slots as they were. A new run
/// tries each parked slot once more, because somebody who types it may have mended what was broken
/// and has no daemon to tell so; the failures still count, so the next one may park the slot again.
fn kept_park_reason(journal: &Journal, park: ParkedSlot, go_on: &ResumeScope) -> Option<String> {
    if *go_on != ResumeScope::None {
        tracing::warn!(slot = %park.slot, reason = park.reason, "the slot stays parked");
        return Some(park.reason);
    }
    tracing::info!(slot = %park.slot, reason = park.reason, "a parked slot is tried again");
    let again = Write::SlotUnparked { slot: park.slot };
    if let Err(refused) = journal.submit(Commit::new(vec![again])) {
        tracing::warn!(%refused, "the slot is tried again by this start only");
    }
    None
}
