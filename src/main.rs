//! The binary: helper dispatch first, then the command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "marshal", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A deterministic agent that follows a small script
    ScriptAgent(marshal::cli::script_agent::Args),
}

fn main() -> ExitCode {
    // Before any thread, argument or setting: a helper has one thread and no time.
    if let Some(code) = marshal::sandbox::shim_main() {
        return code;
    }
    match Line::parse().command {
        Command::ScriptAgent(args) => marshal::cli::script_agent::run(args),
    }
}
