//! Finds the state directory for a command that reads records or controls a supervisor.
//!
//! Needs no configuration that can be used, no agent and no particular directory: the register of
//! running supervisors and the state of earlier runs are enough.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::supervisors::{self, Supervisor};
use super::{base, configuration_file, installed_configuration, of_directory, state_of};
use crate::cli::exit::Exit;
use crate::cli::trust::{display_path, open_trusted};
use marshal_config::Config;
use marshal_engine::api::SupervisorKind;
use marshal_model::limits;

/// The most projects that a message lists.
const LISTED: usize = 10;

/// What a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Need {
    /// A running supervisor.
    Supervisor,
    /// The journal, with or without a running supervisor.
    Records,
}

/// Where a command was started, and what it names.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Request<'a> {
    /// `--project`.
    pub(in crate::cli) project: Option<&'a Path>,
    /// `--config`.
    pub(in crate::cli) config: Option<&'a Path>,
    /// The current directory.
    pub(in crate::cli) cwd: &'a Path,
    /// What the command needs.
    pub(in crate::cli) need: Need,
}

/// A state directory, and a note where it is not the one of the current directory.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct StateLocation {
    pub(in crate::cli) state: PathBuf,
    pub(in crate::cli) note: Option<String>,
}

/// Why no state directory was found. Safe to show.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum LookupError {
    /// Several supervisors could be meant.
    #[error("several supervisors are running; name one with --project:{0}")]
    Several(String),
    /// No supervisor runs.
    #[error("no supervisor is running in the project {}, and none elsewhere; start one with `marshal up`", display_path(.0))]
    NoSupervisor(PathBuf),
    /// The project has no records.
    #[error("nothing has been run in the project {path} yet{0}", path = display_path(.1))]
    NoRecords(String, PathBuf),
    /// `--project` names nothing that is known.
    #[error("--project {path}: it is no directory, and no project with records or a supervisor has this name{0}", path = display_path(.1))]
    Unknown(String, PathBuf),
    /// No directory for state.
    #[error(
        "no state directory: set one of $STATE_DIRECTORY, $XDG_STATE_HOME, $HOME to an absolute path"
    )]
    Nowhere,
}

impl LookupError {
    pub(in crate::cli) const fn exit(&self) -> Exit {
        match self {
            Self::NoSupervisor(_) => Exit::NoDaemon,
            _ => Exit::Usage,
        }
    }
}

/// Finds the state directory: the one that is named, else the one of the project's supervisor, else
/// the one of the project, else the one of the only supervisor that runs.
///
/// # Errors
/// [`LookupError`]
pub(in crate::cli) fn find(
    request: &Request<'_>,
    env: impl Fn(&str) -> Option<OsString> + Copy,
) -> Result<StateLocation, LookupError> {
    let running = supervisors::running(env);
    if let Some(wanted) = request.project {
        return find_named(wanted, request.cwd, &running, env);
    }
    let at = |state: PathBuf| Ok(StateLocation { state, note: None });
    let own = configuration_file(request.cwd);
    let (file, is_of_project) = match (request.config, own) {
        (Some(file), _) => (Some(request.cwd.join(file)), false),
        (None, Some(own)) => (Some(own), true),
        (None, None) => (installed_configuration(env), false),
    };
    if let Some(state) = file.as_deref().and_then(configured) {
        return at(state);
    }
    let outside = file.as_deref().filter(|_| !is_of_project);
    let project = outside.and_then(Path::parent).map(real);
    let project = project.unwrap_or_else(|| of_directory(request.cwd));
    if let Some(found) = of_project(&running, &project, request.config.is_none()) {
        return at(found.state_dir.clone());
    }
    let state = state_of(&project, env).ok_or(LookupError::Nowhere)?;
    let is_service = env("STATE_DIRECTORY").is_some();
    if is_service || (request.need == Need::Records && has_records(&state)) {
        return at(state);
    }
    match (&*running, request.config) {
        ([only], None) => Ok(StateLocation {
            state: only.state_dir.clone(),
            note: Some(format!(
                "note: of the project {}",
                display_path(&only.project)
            )),
        }),
        ([_, ..], None) => Err(LookupError::Several(list(&running))),
        _ if request.need == Need::Supervisor => Err(LookupError::NoSupervisor(project)),
        _ => Err(LookupError::NoRecords(recorded(env), project)),
    }
}

/// The project that `--project` names: a directory in it, or the name of its state directory.
fn find_named(
    wanted: &Path,
    cwd: &Path,
    running: &[Supervisor],
    env: impl Fn(&str) -> Option<OsString> + Copy,
) -> Result<StateLocation, LookupError> {
    let at = |state: PathBuf| Ok(StateLocation { state, note: None });
    let is_name = |path: &Path| path.file_name() == Some(wanted.as_os_str());
    let mut named = running.iter();
    if let Some(found) = named.find(|it| is_name(&it.state_dir)) {
        return at(found.state_dir.clone());
    }
    let dir = cwd.join(wanted);
    if dir.is_dir() {
        let state = configuration_file(&dir).as_deref().and_then(configured);
        if let Some(state) = state {
            return at(state);
        }
        let project = of_directory(&dir);
        if let Some(found) = of_project(running, &project, true) {
            return at(found.state_dir.clone());
        }
        return at(state_of(&project, env).ok_or(LookupError::Nowhere)?);
    }
    let known = base(env).map(|base| base.join(wanted));
    match known {
        Some(state) if wanted.components().count() == 1 && has_records(&state) => at(state),
        _ => Err(LookupError::Unknown(recorded(env), wanted.to_owned())),
    }
}

/// The supervisor of a project; with `above` also of a project that contains it. A daemon goes
/// before a supervisor that only runs its own tasks.
fn of_project<'s>(
    running: &'s [Supervisor],
    project: &Path,
    above: bool,
) -> Option<&'s Supervisor> {
    let contains =
        |it: &&Supervisor| it.project == project || above && project.starts_with(&it.project);
    let rank = |it: &&Supervisor| {
        (
            it.project.as_os_str().len(),
            it.role == SupervisorKind::Daemon.as_str(),
        )
    };
    running.iter().filter(contains).max_by_key(rank)
}

/// The state directory that a configuration file names. Only a trusted file is believed.
fn configured(file: &Path) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut opened = open_trusted(file).ok()?.take(limits::CONFIG_BYTES as u64);
    opened.read_to_end(&mut bytes).ok()?;
    Config::state_dir_of(&bytes, &real(file.parent()?))
}

fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn has_records(state: &Path) -> bool {
    state.join(marshal_journal::FILE_NAME).exists()
}

/// The supervisors, one in a line.
fn list(running: &[Supervisor]) -> String {
    let line = |it: &Supervisor| {
        let name = it.state_dir.file_name().unwrap_or_default();
        format!(
            "\n  {:<24} {} (process {}, {})",
            display_path(Path::new(name)),
            display_path(&it.project),
            it.pid,
            display_path(Path::new(&it.role))
        )
    };
    running.iter().take(LISTED).map(line).collect()
}

/// The projects that have records, as the end of a message.
fn recorded(env: impl Fn(&str) -> Option<OsString>) -> String {
    let entries = base(env)
        .and_then(|base| fs::read_dir(base).ok())
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| has_records(&entry.path()))
        .map(|entry| display_path(Path::new(&entry.file_name())))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    names.sort();
    let more = if names.len() > LISTED { ", …" } else { "" };
    names.truncate(LISTED);
    format!("; --project shows another one: {}{more}", names.join(", "))
}
