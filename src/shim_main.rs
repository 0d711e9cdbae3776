//! The small helper binary: builds the sandbox of an agent and stays with it, and nothing else.
//!
//! It runs the same code as the helper dispatch in `main.rs`. A supervisor starts its helpers from
//! this file if it is beside the program and from the same build (`launch/helper_program.rs`),
//! because a small program starts faster and takes less memory.

use std::io::Write as _;
use std::process::ExitCode;

/// Identifies the build. The supervisor searches the file for these bytes before it uses it.
const BUILD: &str = concat!("marshal-shim of build ", env!("MARSHAL_BUILD"), ".");

fn main() -> ExitCode {
    if let Some(code) = marshal_sandbox::shim_main() {
        return code;
    }
    let _ = writeln!(
        std::io::stderr(),
        "This program is a part of marshal and is started by it: {BUILD}"
    );
    ExitCode::from(2)
}
