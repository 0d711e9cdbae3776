//! `marshal sandbox`: one command in a sandbox, without a fleet.
//!
//! `exec` runs it, passes its input and outputs through, and leaves no process behind. `explain`
//! shows what it would see. The remote side of `launcher = "ssh"` runs agents with `exec`. Must not
//! know pools, tasks or protocols.

mod exec;
mod explain;
mod preparation;
mod pump;

pub(super) use exec::{PATH_INSIDE, pass_through};

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

/// Exit code if the sandbox cannot be built; the command did not run then.
/// 126 (not executable) and 127 (not found) are as in other programs that run a command.
pub const NO_SANDBOX: u8 = 125;

/// `sandbox …`
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Run one command in a sandbox; exits with its code, or 125 if the sandbox cannot be built
    ///
    /// Standard input, output and error are passed through unchanged. After the end of the input,
    /// the command may run on for --eof-wait. Then it receives SIGINT and SIGTERM, and after that
    /// all its processes are killed. SIGHUP, or the end of the parent process, kills them at once.
    /// No process of the command remains when this one ends.
    Exec(ExecArgs),
    /// Print what a command can see and reach inside the sandbox
    Explain(SandboxArgs),
}

/// The options that define the sandbox.
#[derive(Debug, Clone, Args)]
pub struct SandboxArgs {
    /// The profile: standard, strict or a [sandbox.NAME] of the file given with --config
    #[arg(value_name = "PROFILE", conflicts_with = "also_profile")]
    pub named: Option<String>,

    /// Same as PROFILE
    #[arg(long = "profile", value_name = "NAME")]
    pub also_profile: Option<String>,

    /// The directory that the command works on; mounted as /workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub workspace: PathBuf,

    /// How the directory is mounted: as a copy (which is kept), read-only or read-write
    #[arg(long, value_enum, default_value = "copy")]
    pub mode: WorkspaceModeArg,

    /// Show the files that match this pattern although their names are those of secrets
    ///
    /// Files with such names (.env, *.pem, id_rsa, …) are hidden from the command, as from agents. A
    /// pattern is a name or a path, as in workspace.mask. Repeat the option for more than one.
    #[arg(long, value_name = "PATTERN")]
    pub unmask: Vec<String>,

    /// What builds the sandbox: marshal, bubblewrap or a container engine
    ///
    /// A container needs --config: the [container] of that file names the image.
    #[arg(long, value_enum, default_value = "unshare")]
    pub launcher: LauncherArg,

    /// The network of the command: none, or the network of this host
    #[arg(long, value_enum, default_value = "none")]
    pub network: NetworkArg,

    /// The command's home directory, writable; without it, a home in memory that is lost at the end
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

/// The user and group ids that a command would have, for probing this host.
fn probe_ids() -> HostIds {
    super::doctor::probe_ids().0
}

/// How the workspace is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkspaceModeArg {
    /// The directory itself, read-only
    Ro,
    /// The directory itself, read-write
    Rw,
    /// A copy of it, below the state directory
    Copy,
}

/// What builds the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LauncherArg {
    /// marshal itself
    Unshare,
    /// bubblewrap
    Bwrap,
    /// podman or docker
    Container,
}

/// The network of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// Only a private loopback interface
    None,
    /// The network of this host
    Host,
}

/// `sandbox exec …`
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    sandbox: SandboxArgs,

    /// Pass this environment variable on, if it is set
    #[arg(long, value_name = "NAME", value_parser = variable)]
    pass: Vec<String>,

    /// Set an environment variable; other users of this host can see the value in the process list
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// Prepend this directory to PATH inside the sandbox; absolute or below $HOME
    #[arg(long, value_name = "DIR", value_parser = directory)]
    path_add: Vec<String>,

    /// How long the command may run after the end of its input; `none` means no limit
    #[arg(long, value_name = "DURATION|none", default_value = "6s", value_parser = wait)]
    eof_wait: Wait,

    /// The command and its arguments; `marshal` as the first word means this program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A duration, or `None` for no limit.
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

/// Runs a subcommand of `sandbox`; `named` is the file of `--config`.
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
            streams
                .err
                .line(&format!("marshal: cannot start the async runtime: {error}"));
            return NO_SANDBOX.into();
        }
    };
    let code = runtime.block_on(async {
        match command {
            SandboxCommand::Exec(args) => {
                let ids = probe_ids();
                let own = args.sandbox.network == NetworkArg::None;
                match preflight::check_one(&mut config, args.sandbox.profile(), ids, own).await {
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

/// The configuration of `--config`, else the built-in one. A supervisor.toml in the current
/// directory is ignored: this directory is often the one that an agent works on.
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
