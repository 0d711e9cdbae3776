//! Who puts a child's walls up.
//!
//! Must not know what they are.

use std::sync::Arc;

use crate::config::{Launcher, Pool};
use crate::fleet::setup::Shared;
use crate::launch::{ShimPlan, Walls};

/// The walls of a child of this pool. Git, which is a program of this host and need not be in an
/// image, is never put into a container.
pub(super) fn around(shared: &Shared, pool: &Pool, plan: ShimPlan, is_git: bool) -> Walls {
    let engine = shared.engines.get(&pool.name);
    let engine = engine.filter(|_| !is_git || pool.launcher != Launcher::Container);
    let plan = Box::new(plan);
    match engine {
        Some(engine) => Walls::Engine(plan, Arc::clone(engine)),
        None => Walls::Shim(plan),
    }
}
