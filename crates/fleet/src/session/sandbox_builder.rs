//! Who puts a child's walls up.
//!
//! Must not know what they are.

use std::sync::Arc;

use crate::setup::Shared;
use marshal_config::{Launcher, Pool};
use marshal_launch::{SandboxSpec, ShimPlan};

/// The walls of a child of this pool. Git, which is a program of this host and need not be in an
/// image, is never put into a container.
pub(super) fn build_sandbox(
    shared: &Shared,
    pool: &Pool,
    plan: ShimPlan,
    is_git: bool,
) -> SandboxSpec {
    let engine = shared.engines.get(&pool.name);
    let engine = engine.filter(|_| !is_git || pool.launcher != Launcher::Container);
    let plan = Box::new(plan);
    match engine {
        Some(engine) => SandboxSpec::Engine(plan, Arc::clone(engine)),
        None => SandboxSpec::Shim(plan),
    }
}
