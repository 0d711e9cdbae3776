//! What stands between an agent and the host.
//!
//! Floor 3.

pub mod state_dir;
pub mod uids;
pub mod workspace;
