//! The binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = marshal::sandbox::shim_main() {
        return code;
    }
    ExitCode::SUCCESS
}
