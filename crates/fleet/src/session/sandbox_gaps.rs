//! What the walls of a session's child lack.
//!
//! Must not know why: that was settled when the fleet started.

use std::sync::PoisonError;

use crate::setup::{PoolShared, Shared};
use marshal_config::Network;
use marshal_model::{SandboxGap, SlotId};
use marshal_sandbox::doctor::{LANDLOCK_NET, LANDLOCK_SCOPE};
use marshal_telemetry::event::child::SandboxDegraded;

/// What a child of this pool goes without: of the newest one, or, before there was any, as far as
/// the start of the fleet found out.
pub(crate) fn current_sandbox_gaps(shared: &Shared, pool: &PoolShared) -> Vec<SandboxGap> {
    let newest = pool
        .sandbox_gaps
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let newest = newest.clone();
    newest.unwrap_or_else(|| gaps_at_start(shared, pool))
}

fn gaps_at_start(shared: &Shared, pool: &PoolShared) -> Vec<SandboxGap> {
    if !pool.config.launcher.has_sandbox() {
        return Vec::new();
    }
    let shares_uid = shared.uids.is_none().then_some(SandboxGap::SharedUid);
    let lacking = pool.sandbox.requirements.missing.iter();
    let lacking = lacking.filter_map(|word| SandboxGap::from_word(word.word()));
    shares_uid.into_iter().chain(lacking).collect()
}

/// What a child of this pool goes without; `walls` are the words of those that stand around it.
fn child_sandbox_gaps(shared: &Shared, pool: &PoolShared, walls: &[String]) -> Vec<SandboxGap> {
    let mut lacks = gaps_at_start(shared, pool);
    if pool.config.launcher.has_sandbox() && pool.config.network == Network::Host {
        lacks.extend(host_network_gaps(walls));
    }
    lacks
}

/// What an agent on the host's network has nothing else than Landlock against, where Landlock has
/// not got it. Words that do not say which Landlock stand for none.
fn host_network_gaps(walls: &[String]) -> Vec<SandboxGap> {
    let version = walls.iter().find_map(|word| word.strip_prefix("landlock "));
    let version: u8 = version.and_then(|abi| abi.parse().ok()).unwrap_or(0);
    let open = [
        (LANDLOCK_NET, SandboxGap::LandlockNet),
        (LANDLOCK_SCOPE, SandboxGap::LandlockScope),
    ];
    let lacks = open.into_iter().filter(|(least, _)| version < *least);
    lacks.map(|(_, weakness)| weakness).collect()
}

/// The same for a child that was just started, which is counted.
pub(super) fn record_sandbox_gaps(
    shared: &Shared,
    pool: &PoolShared,
    slot: &SlotId,
    walls: &[String],
) -> Vec<SandboxGap> {
    let lacks = child_sandbox_gaps(shared, pool, walls);
    for &feature in &lacks {
        SandboxDegraded { slot, feature }.emit();
    }
    *pool
        .sandbox_gaps
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(lacks.clone());
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::Degradable;

    #[test]
    fn on_the_hosts_network_an_older_landlock_leaves_something_open() {
        let lacks = |word: &str| host_network_gaps(&["uid slot".to_owned(), word.to_owned()]);
        let (net, scope) = (SandboxGap::LandlockNet, SandboxGap::LandlockScope);
        assert_eq!(lacks("landlock none"), [net, scope]);
        assert_eq!(lacks("landlock 3"), [net, scope]);
        assert_eq!(lacks("landlock 4"), [scope]);
        assert_eq!(lacks("landlock 5"), [scope]);
        assert_eq!(lacks("landlock 6"), []);
    }

    #[test]
    fn whatever_a_profile_may_do_without_has_its_name_here() {
        for word in Degradable::ALL {
            assert!(SandboxGap::from_word(word.word()).is_some(), "{word}");
        }
    }
}
