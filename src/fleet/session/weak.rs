//! What the walls of a session's child lack.
//!
//! Must not know why: that was settled when the fleet started.

use crate::fleet::setup::{PoolShared, Shared};
use crate::model::{SlotId, Weakness};
use crate::telemetry::event::child::SandboxDegraded;

/// What a child of this pool goes without.
pub(in crate::fleet) fn lacks(shared: &Shared, pool: &PoolShared) -> Vec<Weakness> {
    if !pool.config.launcher.has_walls() {
        return Vec::new();
    }
    let shares_uid = shared.uids.is_none().then_some(Weakness::SharedUid);
    let lacking = pool.sandbox.demands.lacking.iter();
    let lacking = lacking.filter_map(|word| Weakness::from_word(word.word()));
    shares_uid.into_iter().chain(lacking).collect()
}

/// The same for a child that was just started, which is counted.
pub(super) fn counted(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> Vec<Weakness> {
    let lacks = lacks(shared, pool);
    for &feature in &lacks {
        SandboxDegraded { slot, feature }.emit();
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Degradable;

    #[test]
    fn whatever_a_profile_may_do_without_has_its_name_here() {
        for word in Degradable::ALL {
            assert!(Weakness::from_word(word.word()).is_some(), "{word}");
        }
    }
}
