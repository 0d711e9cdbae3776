//! What the sandbox of a session's child lacks.
//!
//! Must not know why: that was determined when the fleet started.

use std::sync::PoisonError;

use crate::setup::{PoolShared, Shared};
use marshal_config::Network;
use marshal_model::{SandboxGap, SlotId};
use marshal_sandbox::doctor::{LANDLOCK_NET, LANDLOCK_SCOPE};
use marshal_telemetry::event::child::SandboxDegraded;

/// The gaps of this pool's newest child or, before the first one, those that the start of the fleet
/// found.
pub(crate) fn current_sandbox_gaps(shared: &Shared, pool: &PoolShared) -> Vec<SandboxGap> {
    let newest = pool
        .sandbox_gaps
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    newest.unwrap_or_else(|| gaps_at_start(shared, pool))
}

fn gaps_at_start(shared: &Shared, pool: &PoolShared) -> Vec<SandboxGap> {
    if !pool.config.launcher.has_sandbox() {
        return Vec::new();
    }
    let shares_uid = shared.uids.is_none().then_some(SandboxGap::SharedUid);
    let lacking = pool
        .sandbox
        .requirements
        .missing
        .iter()
        .filter_map(|word| SandboxGap::parse(word.as_str()));
    shares_uid.into_iter().chain(lacking).collect()
}

/// The gaps of a child of this pool; `layers` are the layers of its sandbox.
fn child_sandbox_gaps(shared: &Shared, pool: &PoolShared, layers: &[String]) -> Vec<SandboxGap> {
    let mut gaps = gaps_at_start(shared, pool);
    if pool.config.launcher.has_sandbox() && pool.config.network == Network::Host {
        gaps.extend(host_network_gaps(layers));
    }
    gaps
}

/// The gaps on the host's network: only Landlock restricts an agent there, and older versions lack
/// parts of it. An unknown version counts as none.
fn host_network_gaps(layers: &[String]) -> Vec<SandboxGap> {
    let version = layers
        .iter()
        .find_map(|word| word.strip_prefix("landlock "));
    let version: u8 = version.and_then(|abi| abi.parse().ok()).unwrap_or(0);
    let open = [
        (LANDLOCK_NET, SandboxGap::LandlockNet),
        (LANDLOCK_SCOPE, SandboxGap::LandlockScope),
    ];
    let gaps = open.into_iter().filter(|(least, _)| version < *least);
    gaps.map(|(_, weakness)| weakness).collect()
}

/// Records the gaps of a child that was just started, and counts them.
pub(crate) fn record_sandbox_gaps(
    shared: &Shared,
    pool: &PoolShared,
    slot: &SlotId,
    layers: &[String],
) -> Vec<SandboxGap> {
    let gaps = child_sandbox_gaps(shared, pool, layers);
    for &feature in &gaps {
        SandboxDegraded { slot, feature }.emit();
    }
    *pool
        .sandbox_gaps
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(gaps.clone());
    gaps
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
            assert!(SandboxGap::parse(word.as_str()).is_some(), "{word}");
        }
    }
}
