//! The small helper binary: what puts up the walls and stays with an agent, and nothing else.
//!
//! The same code as behind the first statement of `main.rs`. A supervisor starts its helpers from
//! this file where it stands beside the program and is of the same build (`launch/helper_program.rs`),
//! because a small program starts faster and takes less memory.

use std::io::Write as _;
use std::process::ExitCode;

/// Which build this is: the supervisor looks for these bytes in the file.
const BUILD: &str = concat!("marshal-shim of build ", env!("MARSHAL_BUILD"), ".");

fn main() -> ExitCode {
    if let Some(code) = marshal_sandbox::shim_main() {
        return code;
    }
    let _ = writeln!(
        std::io::stderr(),
        "This is a part of marshal, which starts it: {BUILD}"
    );
    ExitCode::from(2)
}
