//! Finds the configuration file and reads it, if no other user could have written it.
//!
//! Must not know what the keys mean, or which owners are trusted (`trust`).

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::agents::{self, find::SearchPaths};
use super::project;
use super::trust::{OpenError, Untrusted, display_path, open_trusted, why};
use super::trust_store;
use marshal_config::dialect_definition::DEFINITION_BYTES;
use marshal_config::{
    Config, ConfigErrors, DEFAULT, DialectDefinition, Origin, Pool, Ssh, WorkspaceMode,
};
use marshal_model::limits;
use marshal_sandbox::workspace::branch;

/// The default file in the current directory, or above it in its repository.
pub const NAME: &str = "supervisor.toml";

/// The source of the configuration; its text is printed before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The file named with `--config`.
    Named(PathBuf),
    /// `supervisor.toml` of this directory, or above it in its repository.
    Found(PathBuf),
    /// The user's or the host's, outside of projects.
    Installed(PathBuf),
    /// The built-in configuration.
    BuiltIn,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) | Self::Found(path) | Self::Installed(path) => {
                write!(f, "configuration: {}", display_path(path))
            }
            Self::BuiltIn => write!(
                f,
                "configuration: built in (no {NAME} here or below /etc/marshal, and no --config)"
            ),
        }
    }
}

/// A configuration and its source.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// Its source.
    pub source: Source,
    /// The project that it configures: the directory of the file, or of the repository.
    pub project: PathBuf,
    /// The content of its file.
    pub content: Vec<u8>,
    /// Whether the user named the file or trusts it. One that was only found gets no access to the
    /// host.
    pub is_explicit: bool,
}

/// Why the configuration cannot be loaded. Each is exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {}", display_path(.path), why(.error))]
    Read {
        /// The file's path.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Another user could have written the file.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// Its agents could write the record that it is trusted.
    #[error(
        "agents of this configuration could write the record of what you trust; use a smaller workspace, or --config"
    )]
    NotKept,
    /// The file has errors.
    #[error(transparent)]
    Faulty(#[from] Box<ConfigErrors>),
}

/// Loads the configuration: the file `named` with `--config`, else `supervisor.toml` here or above
/// in the repository, else the user's, else the host's, else the built-in one. `cwd` is the current
/// directory, absolute.
///
/// # Errors
/// The file cannot be read, is not trusted, or has errors. This includes errors that only the file
/// system shows.
pub fn load(named: Option<&Path>, cwd: &Path) -> Result<Loaded, LoadError> {
    let installed = project::installed_configuration(|name| std::env::var_os(name));
    load_from(named, cwd, installed)
}

fn load_from(
    named: Option<&Path>,
    cwd: &Path,
    installed: Option<PathBuf>,
) -> Result<Loaded, LoadError> {
    // In its own directory, too, it is the one that was installed.
    let found = project::configuration_file(cwd).filter(|found| Some(found) != installed.as_ref());
    let (path, source) = match (named, found, installed) {
        (Some(path), ..) => (cwd.join(path), Source::Named as fn(PathBuf) -> Source),
        (None, Some(found), _) => (found, Source::Found as fn(PathBuf) -> Source),
        (None, None, Some(installed)) => (installed, Source::Installed as fn(PathBuf) -> Source),
        (None, None, None) => return built_in(cwd),
    };
    let read_error = |error| LoadError::Read {
        path: path.clone(),
        error,
    };
    let mut file = open_trusted(&path).map_err(|error| match error {
        OpenError::Read(error) => read_error(error),
        OpenError::Untrusted(error) => LoadError::Untrusted(error),
    })?;
    let mut bytes = Vec::new();
    let max_bytes = limits::CONFIG_BYTES as u64 + 1;
    file.by_ref()
        .take(max_bytes)
        .read_to_end(&mut bytes)
        .map_err(read_error)?;
    let parent = path.parent().unwrap_or(cwd);
    let dir = fs::canonicalize(parent).map_err(read_error)?;
    let path = path.file_name().map_or(path.clone(), |name| dir.join(name));
    let source = source(path.clone());
    let is_found = matches!(source, Source::Found(_));
    let is_trusted = is_found && trust_store::is_trusted(&path, &bytes);
    let origin = Origin {
        file: Some(path.clone()),
        dir: dir.clone(),
        // No repository that somebody else wrote can put a file where the user's and the host's are.
        is_explicit: !is_found || is_trusted,
    };
    let mut config = Config::parse_bytes(&bytes, &origin).map_err(Box::new)?;
    find_programs(&mut config, &origin).map_err(Box::new)?;
    check_files(&config, &origin).map_err(Box::new)?;
    load_dialect_definitions(&mut config)?;
    check_policies(&config).map_err(Box::new)?;
    let loaded = Loaded {
        config,
        source,
        project: dir,
        content: bytes,
        is_explicit: origin.is_explicit,
    };
    if is_trusted && trust_store::is_writable_by_agents(&loaded) {
        return Err(LoadError::NotKept);
    }
    Ok(loaded)
}

fn built_in(cwd: &Path) -> Result<Loaded, LoadError> {
    let origin = Origin::built_in(cwd.to_owned());
    let config = Config::parse(DEFAULT, &origin).map_err(Box::new)?;
    check_files(&config, &origin).map_err(Box::new)?;
    Ok(Loaded {
        config,
        source: Source::BuiltIn,
        project: project::of_directory(cwd),
        content: Vec::new(),
        is_explicit: true,
    })
}

/// Finds the programs of agents.
fn find_programs(config: &mut Config, origin: &Origin) -> Result<(), ConfigErrors> {
    let around = SearchPaths {
        is_discovered: !origin.is_explicit,
        ..SearchPaths::from_process(&origin.dir)
    };
    let faults = agents::find_programs(config, &around);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(config.source_map.locate_errors(faults))
    }
}

/// Checks the file system: named files and directories must exist, and links must not lead
/// elsewhere.
fn check_files(config: &Config, origin: &Origin) -> Result<(), ConfigErrors> {
    let mut faults = Vec::new();
    for pool in &config.pools {
        check_pool(pool, origin, &mut faults);
    }
    for (name, workspace) in &config.workspaces {
        if let Some((message, help)) = directory_fault(&workspace.workspace.path, origin) {
            let help = help.map(str::to_owned);
            faults.push((format!("workspace.{name}.path"), message, help));
        }
    }
    for (name, profile) in &config.sandboxes {
        for bind in &profile.ro_bind {
            if let Err(error) = fs::metadata(bind) {
                let message = format!("cannot bind {}: {}", display_path(bind), why(&error));
                faults.push((format!("sandbox.{name}.ro_bind"), message, None));
            }
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(config.source_map.locate_errors(faults))
    }
}

/// Reads the definitions of custom dialects. A definition decides what counts as a permission request and how
/// it is answered, so its file must be trusted.
fn load_dialect_definitions(config: &mut Config) -> Result<(), LoadError> {
    let mut faults = Vec::new();
    for pool in &mut config.pools {
        let Some(file) = pool.custom_dialect.as_ref().map(|own| own.file.clone()) else {
            continue;
        };
        match read_definition(&file) {
            Ok(definition) => faults.extend(pool.set_dialect_definition(Arc::new(definition?))),
            Err(message) => {
                let key = format!("pool.{}.dialect.custom", pool.name);
                faults.push((key, message, None));
            }
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)).into())
    }
}

/// The table of a file, or its errors; the outer error is why the file cannot be read.
fn read_definition(file: &Path) -> Result<Result<DialectDefinition, Box<ConfigErrors>>, String> {
    let cannot = |error| format!("cannot read {}: {}", display_path(file), why(&error));
    let opened = open_trusted(file).map_err(|error| match error {
        OpenError::Read(error) => cannot(error),
        OpenError::Untrusted(error) => error.to_string(),
    })?;
    let mut bytes = Vec::new();
    let max_bytes = DEFINITION_BYTES as u64 + 1;
    opened
        .take(max_bytes)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    Ok(DialectDefinition::parse(&bytes, file).map_err(Box::new))
}

/// Checks the files of policies.
fn check_policies(config: &Config) -> Result<(), ConfigErrors> {
    let mut faults = Vec::new();
    for (name, file) in &config.policies {
        if let Err(error) = open_trusted(file) {
            let message = match error {
                OpenError::Read(error) => {
                    format!("cannot read {}: {}", display_path(file), why(&error))
                }
                OpenError::Untrusted(error) => error.to_string(),
            };
            faults.push((format!("policy.{name}.file"), message, None));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(config.source_map.locate_errors(faults))
    }
}

/// An error from the file system checks: key, message and help.
type ConfigFault = (String, String, Option<String>);

fn check_pool(pool: &Pool, origin: &Origin, faults: &mut Vec<ConfigFault>) {
    let is_found = origin.file.is_some() && !origin.is_explicit;
    let outside = |real: &Path| is_found && !real.starts_with(&origin.dir);
    let trust =
        Some("`marshal trust` says that you trust the file as it is; or name it with --config");
    let mut fault = |key: &str, message: String, help: Option<&str>| {
        let key = format!("pool.{}.{key}", pool.name);
        faults.push((key, message, help.map(str::to_owned)));
    };
    if let Some(ssh) = &pool.ssh {
        check_ssh_files(ssh, &mut fault);
    }
    let Some(workspace) = pool.local_workspace() else {
        return;
    };
    if let Some((message, help)) = directory_fault(workspace, origin) {
        fault("workspace.path", message, help);
    }
    for (at, repo) in pool.workspace.repos.iter().enumerate() {
        if let Some((message, help)) = directory_fault(&repo.path, origin) {
            fault(&format!("workspace.repos[{at}].path"), message, help);
        }
    }
    for (inside, source) in &pool.home_files {
        let key = format!("home_files.{inside}");
        match fs::canonicalize(source) {
            Ok(real) if !real.is_file() => {
                fault(
                    &key,
                    format!("{} is not a file", display_path(source)),
                    None,
                );
            }
            Ok(real) if outside(&real) => {
                let message = format!(
                    "the file resolves to {}, outside of this configuration's directory",
                    display_path(&real)
                );
                fault(&key, message, trust);
            }
            Ok(_) => {}
            Err(error) => fault(
                &key,
                format!("no file at {}: {}", display_path(source), why(&error)),
                None,
            ),
        }
    }
}

/// Workspaces in which no session could work in their mode: there is nothing to clone, or the
/// supervisor is root and so is their owner. Each session would fail; the check finds it before.
pub(super) fn check_workspaces(config: &Config) -> Result<(), Box<ConfigErrors>> {
    let is_root = rustix::process::geteuid().is_root();
    let fault = |pool: &Pool| {
        let path = pool.local_workspace()?;
        let shown = display_path(path);
        match pool.workspace.mode {
            WorkspaceMode::Worktree => {
                let checked = branch::Repository::find(path).err()?;
                let help = "or make it one: git init, and a commit";
                Some((format!("{shown}: {checked}"), help))
            }
            WorkspaceMode::Rw if is_root && pool.launcher.has_sandbox() => {
                let owner = fs::metadata(path).ok()?.uid();
                let message = format!(
                    "{shown} belongs to root, and with mode \"rw\" an agent could leave a set-uid program of root there"
                );
                let help = "use mode \"copy\" or \"ro\", or give the directory to another user";
                (owner == 0).then_some((message, help))
            }
            _ => None,
        }
    };
    let faults = config.pools.iter().filter_map(|pool| {
        let (message, help) = fault(pool)?;
        let key = format!("pool.{}.workspace.mode", pool.name);
        Some((key, message, Some(help.to_owned())))
    });
    let faults: Vec<ConfigFault> = faults.collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

/// The error of a workspace directory, and its help.
fn directory_fault(path: &Path, origin: &Origin) -> Option<(String, Option<&'static str>)> {
    let is_found = origin.file.is_some() && !origin.is_explicit;
    match fs::canonicalize(path) {
        Ok(real) if !real.is_dir() => {
            Some((format!("{} is not a directory", display_path(path)), None))
        }
        Ok(real) if is_found && !real.starts_with(&origin.dir) => {
            let message = format!(
                "the workspace resolves to {}; a supervisor.toml that is not named with --config must have its workspaces in its own directory",
                display_path(&real)
            );
            Some((
                message,
                Some(
                    "`marshal trust` says that you trust the file as it is; or name it with --config",
                ),
            ))
        }
        Ok(_) => None,
        Err(error) => {
            let message = format!("no workspace at {}: {}", display_path(path), why(&error));
            Some((message, None))
        }
    }
}

/// Checks the files that the ssh client reads. They decide which hosts are trusted and which
/// commands run, so they must be trusted like code.
fn check_ssh_files(ssh: &Ssh, fault: &mut impl FnMut(&str, String, Option<&str>)) {
    for (key, file) in [
        ("ssh.config_file", &ssh.config_file),
        ("ssh.known_hosts", &ssh.known_hosts),
    ] {
        let Some(file) = file else { continue };
        match open_trusted(file) {
            Ok(_) => {}
            Err(OpenError::Read(error)) => {
                fault(
                    key,
                    format!("no file at {}: {}", display_path(file), why(&error)),
                    None,
                );
            }
            Err(OpenError::Untrusted(error)) => fault(key, error.to_string(), None),
        }
    }
    if let Some(file) = &ssh.identity_file
        && let Err(error) = fs::metadata(file)
    {
        let message = format!("no file at {}: {}", display_path(file), why(&error));
        fault("ssh.identity_file", message, None);
    }
}

#[cfg(test)]
mod tests;
