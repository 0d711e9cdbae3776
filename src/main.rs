//! The binary: reads its arguments and calls the command.

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
    match Line::parse().command {
        Command::ScriptAgent(args) => marshal::cli::script_agent::run(args),
    }
//! The binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = marshal::sandbox::shim_main() {
        return code;
    }
    ExitCode::SUCCESS
}
