//! The binary: helper dispatch first, then the command line.

use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Overwrites what is freed: a key that a reload replaced would otherwise stay in the freed buffers
/// of the requests that carried it.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    // Before any thread, argument or setting: a helper must stay single-threaded and start fast.
    if let Some(code) = marshal_sandbox::shim_main() {
        return code;
    }
    if let Some(code) = marshal_launch::cgroup::janitor_main() {
        return code;
    }
    marshal::cli::command::main()
}
