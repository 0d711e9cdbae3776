//! Chooses what builds a child's sandbox.
//!
//! Must not know what a sandbox consists of.

use std::sync::Arc;

use crate::setup::Shared;
use marshal_config::Pool;
use marshal_launch::{SandboxSpec, ShimPlan};

/// The sandbox of a child of this pool. Git is a program of this host and need not be in an image,
/// so it never runs in a container.
pub(crate) fn build_sandbox(
    shared: &Shared,
    pool: &Pool,
    plan: ShimPlan,
    is_git: bool,
) -> SandboxSpec {
    let engine = shared
        .engines
        .get(&pool.name)
        .filter(|_| !is_git || !pool.launcher.uses_image());
    let plan = Box::new(plan);
    match engine {
        Some(engine) => SandboxSpec::Engine(plan, Arc::clone(engine)),
        None => SandboxSpec::Shim(plan),
    }
}
