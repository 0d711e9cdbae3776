//! `marshal sandbox`: the walls around one command, without a fleet.
//!
//! `exec` runs it with its input and outputs passed through, and leaves nothing of it; `explain`
//! says what it would see. The far end of `launcher = "ssh"` runs its agents so. Must not know
//! pools, tasks or protocols.

mod exec;
mod explain;
mod preparation;
mod pump;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::config_file;
use super::doctor::preflight;
use super::exit::Exit;
use super::streams::Streams;
use marshal_config::{Config, DEFAULT, Origin, read_duration};
use marshal_model::limits;
use marshal_sandbox::HostIds;

/// What the program ends with when the walls, or what they need, cannot be had: nothing ran then.
/// 126 and 127 are a command that may not be executed, or is not there, as with other programs that
/// run one.
pub const NO_SANDBOX: u8 = 125;

/// `sandbox …`
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Run one command behind the walls; exits with its code, 125 if there can be no walls
    ///
    /// Input, output and errors are passed through as they are. After the end of the input the
    /// command has its time (--eof-wait), then it is sent SIGINT and SIGTERM, and then all its
    /// processes are killed. SIGHUP, and the end of the process that started this one, kill them at
    /// once. Nothing of it is left when this ends.
    Exec(ExecArgs),
    /// Print what a command would see and reach behind the walls
    Explain(SandboxArgs),
}

/// The walls.
#[derive(Debug, Clone, Args)]
pub struct SandboxArgs {
    /// The profile: standard, strict, or a [sandbox.NAME] of the file named with --config
    #[arg(value_name = "PROFILE", conflicts_with = "also_profile")]
    pub named: Option<String>,

    /// The same as PROFILE
    #[arg(long = "profile", value_name = "NAME")]
    pub also_profile: Option<String>,

    /// The directory that the command works on, seen as /workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub workspace: PathBuf,

    /// How it sees that directory: a copy of it (which is kept), or itself, read-only or not
    #[arg(long, value_enum, default_value = "copy")]
    pub mode: WorkspaceModeArg,

    /// Who puts the walls up: marshal, bubblewrap, or the container engine of the file named with
    /// --config, whose [container] names the image
    #[arg(long, value_enum, default_value = "unshare")]
    pub launcher: LauncherArg,

    /// What it reaches: nothing, or what this host reaches
    #[arg(long, value_enum, default_value = "none")]
    pub network: NetworkArg,

    /// A directory that is its home, writable; without it a home in memory, gone at the end
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
}

impl SandboxArgs {
    /// The profile's name.
    fn profile(&self) -> &str {
        let named = self.named.as_deref().or(self.also_profile.as_deref());
        named.unwrap_or("standard")
    }
}

/// Who a command would be, for looking at what this host has.
fn probe_ids() -> HostIds {
    super::doctor::probe_ids().0
}

/// How a command sees its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkspaceModeArg {
    /// The directory itself, read-only
    Ro,
    /// The directory itself
    Rw,
    /// A copy of it, below the state directory
    Copy,
}

/// Who puts the walls up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LauncherArg {
    /// marshal itself
    Unshare,
    /// bubblewrap
    Bwrap,
    /// podman or docker
    Container,
}

/// What a command reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// A loopback of its own
    None,
    /// The network of this host
    Host,
}

/// `sandbox exec …`
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    walls: SandboxArgs,

    /// A variable that is passed on, if it is set here
    #[arg(long, value_name = "NAME", value_parser = variable)]
    pass: Vec<String>,

    /// A variable and its value; everybody on this host can see it in the list of processes
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// A directory put before the PATH inside, absolute or below $HOME
    #[arg(long, value_name = "DIR", value_parser = directory)]
    path_add: Vec<String>,

    /// How long the command may go on after the end of its input; none: until it ends by itself
    #[arg(long, value_name = "DURATION|none", default_value = "6s", value_parser = wait)]
    eof_wait: Wait,

    /// The command and its arguments; marshal as first word is this very program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A duration, or for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait(Option<Duration>);

fn variable(text: &str) -> Result<String, String> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fits = (1..=128).contains(&text.len())
        && text.bytes().all(good)
        && !text.starts_with(|c: char| c.is_ascii_digit());
    if fits {
        Ok(text.to_owned())
    } else {
        Err("expected the name of a variable, [A-Za-z_][A-Za-z0-9_]{0,127}".to_owned())
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((variable(name)?, value.to_owned()))
}

fn directory(text: &str) -> Result<String, String> {
    let below = text
        .strip_prefix(marshal_config::HOME_OF_CHILD)
        .unwrap_or(text);
    if below.starts_with('/') && !below.split('/').any(|part| part == "..") && !text.contains(':') {
        Ok(text.to_owned())
    } else {
        Err("expected a directory, absolute or below $HOME, without \":\" and \"..\"".to_owned())
    }
}

fn wait(text: &str) -> Result<Wait, String> {
    if text == "none" {
        return Ok(Wait(None));
    }
    let wait = read_duration(text)?;
    if wait > limits::STOP_WAIT {
        return Err("at most 1h".to_owned());
    }
    Ok(Wait(Some(wait)))
}

/// Runs `sandbox …`; `named` is the file of `--config`.
#[must_use]
pub fn main(
    command: SandboxCommand,
    named: Option<&Path>,
    json: bool,
    mut streams: Streams,
) -> ExitCode {
    let mut config = match config(named) {
        Ok(config) => config,
        Err(why) => {
            streams.err.line(&format!("marshal: {why}"));
            return Exit::Usage.into();
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(limits::BLOCKING_THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            streams.err.line(&format!("marshal: no runtime: {error}"));
            return NO_SANDBOX.into();
        }
    };
    let code = runtime.block_on(async {
        match command {
            SandboxCommand::Exec(args) => {
                let ids = probe_ids();
                let own = args.walls.network == NetworkArg::None;
                match preflight::check_one(&mut config, args.walls.profile(), ids, own).await {
                    Ok(()) => exec::exec(&args, &config, &mut streams).await,
                    Err(unready) => {
                        streams.err.line(&format!("marshal: {unready}"));
                        NO_SANDBOX
                    }
                }
            }
            SandboxCommand::Explain(args) => explain::explain(&args, &config, json, &mut streams),
        }
    });
    runtime.shutdown_background();
    code.into()
}

/// The file that was named, else what is built in. A file that was only found says nothing here:
/// the current directory is often the one that an agent works on.
fn config(named: Option<&Path>) -> Result<Config, String> {
    let directory = std::env::current_dir()
        .map_err(|error| format!("the current directory cannot be read: {error}"))?;
    match named {
        Some(path) => config_file::load(Some(path), &directory)
            .map(|loaded| loaded.config)
            .map_err(|error| error.to_string()),
        None => Config::parse(DEFAULT, &Origin::built_in(directory)).map_err(|e| e.to_string()),
    }
}
