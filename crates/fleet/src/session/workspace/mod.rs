//! The home and the workspace of a session: prepared, observed, measured and surveyed.

pub(super) mod attachments;
pub(super) mod branch_import;
pub(super) mod branch_push;
mod bundle_git;
pub(super) mod disk_usage;
pub(super) mod disk_usage_monitor;
pub(super) mod environment;
pub(super) mod file_observation;
pub(super) mod git_listing;
pub(super) mod landing;
pub(super) mod overlay;
pub(super) mod prepare;
pub(super) mod prepare_error;
pub(crate) mod program_clone;
pub(super) mod protection;
pub(super) mod sandbox_builder;
pub(super) mod sandbox_gaps;
pub(super) mod ssh;
pub(super) mod tree_observer;
