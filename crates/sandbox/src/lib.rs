//! The sandbox around an agent: what it consists of (`plan`, pure) and how it is built (the shim).
//!
//! A profile is data; [`plan`] turns it into a [`ShimPlan`]; the shim, which is this binary started
//! again as a process of one thread, executes it in order and becomes the agent's warden:
//!
//! ```text
//! supervisor -- control socket --> outer helper -- link --> pid 1 of the sandbox --> agent
//!                                  (outer.rs)               (init.rs, warden.rs)
//! supervisor -- control socket --> leash --> agent          (leash.rs; no sandbox)
//! supervisor -- entry --> pid 1 of the sandbox --> leash --> a command  (sandbox_entry.rs, leash.rs)
//!                                              --> one file             (files.rs)
//! ```
//!
//! A missing feature of the host is an error that names it, never a weaker sandbox. Must not know
//! how a helper is started or what happens to its reports: that is `launch`.

use std::process::ExitCode;

use marshal_config::Launcher;
use marshal_wire::shim;

mod atomic_file;
mod control;
mod descendants;
pub mod doctor;
mod engine;
mod failure;
mod files;
pub mod flock;
pub mod held_dir;
mod host_trees;
mod idmap;
mod init;
mod landlock;
mod leash;
mod loopback;
mod open;
mod outer;
mod overlay_layers;
mod plan;
mod privilege;
mod root;
mod sandbox_entry;
mod seccomp;
pub mod state_dir;
#[cfg(any(test, feature = "test-fixtures"))]
pub mod test_fixtures;
pub mod uids;
pub mod upper_reader;
mod warden;
pub mod workspace;

pub use plan::{
    ExtraMounts, HOME as HOME_INSIDE, MARSHAL as MARSHAL_INSIDE, OverlayUpper, PlanError,
    SandboxRequest, TOOLS as TOOLS_INSIDE, Tree, WORKSPACE as WORKSPACE_INSIDE, limits_of, plan,
    probe_request,
};
pub use shim::{HostIds, ShimPlan};

/// The arguments by which an agent starts this program inside a sandbox of that launcher.
///
/// # Errors
/// The libraries of this program cannot be determined.
pub fn marshal_argv_inside(launcher: Launcher) -> std::io::Result<Vec<String>> {
    if launcher.uses_image() {
        engine::own_inside()
    } else {
        Ok(vec![MARSHAL_INSIDE.to_owned()])
    }
}

/// Runs as a helper, if this process was started as one. It must be the first statement of `main`,
/// before any thread, argument or setting. `None` means that this is the main program.
#[must_use]
pub fn shim_main() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    Some(match name.to_str()? {
        shim::ARG0_OUTER => outer::main(),
        shim::ARG0_INIT => init::main(),
        shim::ARG0_IDMAP => idmap::holder_main(),
        shim::ARG0_ENGINE => engine::main(),
        shim::ARG0_ENTRY => engine::entry_main(),
        shim::ARG0_LEASH => leash::main(),
        shim::ARG0_FILES => files::main(),
        shim::ARG0_PROBE => doctor::main(),
        shim::ARG0_UPPER => upper_reader::main(),
        _ => return None,
    })
}
