//! The OpenAPI document in the hands of programs that other people wrote: a checker, and a generator of
//! clients. `tests/run http_clients` installs them.

mod generated_client;
mod schemathesis;

use std::path::PathBuf;

/// A program in the directory of one of the tools.
fn tool(name: &str, program: &str) -> PathBuf {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let tool = tools.join(name).join("bin").join(program);
    assert!(
        tool.exists(),
        "`tests/run http_clients` installs {}",
        tool.display()
    );
    tool
}
