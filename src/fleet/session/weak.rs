//! What the walls of a session's child lack.
//!
//! Must not know why: that was settled when the fleet started.

use std::sync::PoisonError;

use crate::config::Network;
use crate::fleet::setup::{PoolShared, Shared};
use crate::model::{SlotId, Weakness};
use crate::sandbox::doctor::{LANDLOCK_NET, LANDLOCK_SCOPE};
use crate::telemetry::event::child::SandboxDegraded;

/// What a child of this pool goes without: of the newest one, or, before there was any, as far as
/// the start of the fleet found out.
pub(in crate::fleet) fn lacks_now(shared: &Shared, pool: &PoolShared) -> Vec<Weakness> {
    let newest = pool.lacks.lock().unwrap_or_else(PoisonError::into_inner);
    let newest = newest.clone();
    newest.unwrap_or_else(|| at_start(shared, pool))
}

fn at_start(shared: &Shared, pool: &PoolShared) -> Vec<Weakness> {
    if !pool.config.launcher.has_walls() {
        return Vec::new();
    }
    let shares_uid = shared.uids.is_none().then_some(Weakness::SharedUid);
    let lacking = pool.sandbox.demands.lacking.iter();
    let lacking = lacking.filter_map(|word| Weakness::from_word(word.word()));
    shares_uid.into_iter().chain(lacking).collect()
}

/// What a child of this pool goes without; `walls` are the words of those that stand around it.
fn lacks(shared: &Shared, pool: &PoolShared, walls: &[String]) -> Vec<Weakness> {
    let mut lacks = at_start(shared, pool);
    if pool.config.launcher.has_walls() && pool.config.network == Network::Host {
        lacks.extend(on_the_hosts_network(walls));
    }
    lacks
}

/// What an agent on the host's network has nothing else than Landlock against, where Landlock has
/// not got it. Words that do not say which Landlock stand for none.
fn on_the_hosts_network(walls: &[String]) -> Vec<Weakness> {
    let version = walls.iter().find_map(|word| word.strip_prefix("landlock "));
    let version: u8 = version.and_then(|abi| abi.parse().ok()).unwrap_or(0);
    let open = [
        (LANDLOCK_NET, Weakness::LandlockNet),
        (LANDLOCK_SCOPE, Weakness::LandlockScope),
    ];
    let lacks = open.into_iter().filter(|(least, _)| version < *least);
    lacks.map(|(_, weakness)| weakness).collect()
}

/// The same for a child that was just started, which is counted.
pub(super) fn counted(
    shared: &Shared,
    pool: &PoolShared,
    slot: &SlotId,
    walls: &[String],
) -> Vec<Weakness> {
    let lacks = lacks(shared, pool, walls);
    for &feature in &lacks {
        SandboxDegraded { slot, feature }.emit();
    }
    *pool.lacks.lock().unwrap_or_else(PoisonError::into_inner) = Some(lacks.clone());
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Degradable;

    #[test]
    fn on_the_hosts_network_an_older_landlock_leaves_something_open() {
        let lacks = |word: &str| on_the_hosts_network(&["uid slot".to_owned(), word.to_owned()]);
        let (net, scope) = (Weakness::LandlockNet, Weakness::LandlockScope);
        assert_eq!(lacks("landlock none"), [net, scope]);
        assert_eq!(lacks("landlock 3"), [net, scope]);
        assert_eq!(lacks("landlock 4"), [scope]);
        assert_eq!(lacks("landlock 5"), [scope]);
        assert_eq!(lacks("landlock 6"), []);
    }

    #[test]
    fn whatever_a_profile_may_do_without_has_its_name_here() {
        for word in Degradable::ALL {
            assert!(Weakness::from_word(word.word()).is_some(), "{word}");
        }
    }
}
