//! The binary: helper dispatch first, then the command line.

use std::process::ExitCode;

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
