//! Finds the configuration file and reads it, if nobody else could have written it.
//!
//! Must not know what the keys mean, or who may write what (`trust`).

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::agents::{self, find::SearchPaths};
use super::trust::{OpenError, Untrusted, open_trusted, shown, why};
use marshal_config::dialect_table::TABLE_BYTES;
use marshal_config::{Config, ConfigErrors, DEFAULT, DialectTable, Origin, Pool, Ssh};
use marshal_model::limits;

/// The file that is looked for in the current directory.
pub const NAME: &str = "supervisor.toml";

/// Which configuration is in use; its text is printed before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The file named with `--config`.
    Named(PathBuf),
    /// `./supervisor.toml`.
    Found(PathBuf),
    /// None: the one that is built in.
    BuiltIn,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) | Self::Found(path) => {
                write!(f, "configuration: {}", shown(path))
            }
            Self::BuiltIn => write!(
                f,
                "configuration: built in (no {NAME} here, and none named with --config)"
            ),
        }
    }
}

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// Where it came from.
    pub source: Source,
}

/// Why there is no configuration. Each is exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {}", shown(.path), why(.error))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Somebody else could have written the file.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The file is faulty.
    #[error(transparent)]
    Faulty(#[from] Box<ConfigErrors>),
}

/// The configuration: the file `named` with `--config`, else `./supervisor.toml`, else the one
/// that is built in. `cwd` is the current directory, absolute.
///
/// # Errors
/// No file, a file of somebody else, or its faults, those that only the file system shows
/// included.
pub fn load(named: Option<&Path>, cwd: &Path) -> Result<Loaded, LoadError> {
    let mut loaded = load_for_client(named, cwd)?;
    load_dialect_tables(&mut loaded.config)?;
    check_policies(&loaded.config).map_err(Box::new)?;
    Ok(loaded)
}

/// The same for whoever asks a supervisor that runs: the files of policies and of dialects are not
/// looked at.
///
/// # Errors
/// [`LoadError`]
pub fn load_for_client(named: Option<&Path>, cwd: &Path) -> Result<Loaded, LoadError> {
    let found = cwd.join(NAME);
    let (path, source) = match named {
        Some(path) => (cwd.join(path), Source::Named as fn(PathBuf) -> Source),
        None if fs::symlink_metadata(&found).is_ok() => {
            (found, Source::Found as fn(PathBuf) -> Source)
        }
        None => return built_in(cwd),
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
    let most = limits::CONFIG_BYTES as u64 + 1;
    file.by_ref()
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(read_error)?;
    let parent = path.parent().unwrap_or(cwd);
    let dir = fs::canonicalize(parent).map_err(read_error)?;
    let path = path.file_name().map_or(path.clone(), |name| dir.join(name));
    let origin = Origin {
        file: Some(path.clone()),
        dir,
        is_explicit: named.is_some(),
    };
    let mut config = Config::parse_bytes(&bytes, &origin).map_err(Box::new)?;
    find_programs(&mut config, &origin).map_err(Box::new)?;
    check_files(&config, &origin).map_err(Box::new)?;
    Ok(Loaded {
        config,
        source: source(path),
    })
}

fn built_in(cwd: &Path) -> Result<Loaded, LoadError> {
    let origin = Origin::built_in(cwd.to_owned());
    let config = Config::parse(DEFAULT, &origin).map_err(Box::new)?;
    check_files(&config, &origin).map_err(Box::new)?;
    Ok(Loaded {
        config,
        source: Source::BuiltIn,
    })
}

/// Finds the programs of agents that are built in.
fn find_programs(config: &mut Config, origin: &Origin) -> Result<(), ConfigErrors> {
    let faults = agents::find_programs(config, &SearchPaths::from_process(&origin.dir));
    if faults.is_empty() {
        Ok(())
    } else {
        Err(config.source_map.locate_errors(faults))
    }
}

/// Faults that only the file system shows: what is named must exist, and must really lie where
/// its name says.
fn check_files(config: &Config, origin: &Origin) -> Result<(), ConfigErrors> {
    let mut faults = Vec::new();
    for pool in &config.pools {
        check_pool(pool, origin, &mut faults);
    }
    for (name, workspace) in &config.workspaces {
        if let Some((message, help)) = directory_fault(&workspace.path, origin) {
            let help = help.map(str::to_owned);
            faults.push((format!("workspace.{name}.path"), message, help));
        }
    }
    for (name, profile) in &config.sandboxes {
        for bind in &profile.ro_bind {
            if let Err(error) = fs::metadata(bind) {
                let message = format!("nothing to bind at {}: {}", shown(bind), why(&error));
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

/// Reads the tables of custom dialects: what decides what a question is, and what is answered, must be
/// nobody else's file.
fn load_dialect_tables(config: &mut Config) -> Result<(), LoadError> {
    let mut faults = Vec::new();
    for pool in &mut config.pools {
        let Some(file) = pool.custom_dialect.as_ref().map(|own| own.file.clone()) else {
            continue;
        };
        match read_table(&file) {
            Ok(table) => faults.extend(pool.set_dialect_table(Arc::new(table?))),
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

/// The table of a file, or its faults; else why there is none.
fn read_table(file: &Path) -> Result<Result<DialectTable, Box<ConfigErrors>>, String> {
    let cannot = |error| format!("cannot read {}: {}", shown(file), why(&error));
    let opened = open_trusted(file).map_err(|error| match error {
        OpenError::Read(error) => cannot(error),
        OpenError::Untrusted(error) => error.to_string(),
    })?;
    let mut bytes = Vec::new();
    let most = TABLE_BYTES as u64 + 1;
    opened.take(most).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(DialectTable::parse(&bytes, file).map_err(Box::new))
}

/// The same of the files of policies. Whoever only asks a supervisor that runs needs none of them: it
/// has its own, and is asked what is wrong with these.
fn check_policies(config: &Config) -> Result<(), ConfigErrors> {
    let mut faults = Vec::new();
    for (name, file) in &config.policies {
        if let Err(error) = open_trusted(file) {
            let message = match error {
                OpenError::Read(error) => format!("cannot read {}: {}", shown(file), why(&error)),
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

/// A fault found after the check: key, message, help.
type ConfigFault = (String, String, Option<String>);

fn check_pool(pool: &Pool, origin: &Origin, faults: &mut Vec<ConfigFault>) {
    let found = origin.file.is_some() && !origin.is_explicit;
    let outside = |real: &Path| found && !real.starts_with(&origin.dir);
    let trust = Some("name the file with --config if you trust it");
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
    for (inside, source) in &pool.home_files {
        let key = format!("home_files.{inside}");
        match fs::canonicalize(source) {
            Ok(real) if !real.is_file() => {
                fault(&key, format!("{} is not a file", shown(source)), None);
            }
            Ok(real) if outside(&real) => {
                let message = format!(
                    "the file is really {}, outside of this configuration's directory",
                    shown(&real)
                );
                fault(&key, message, trust);
            }
            Ok(_) => {}
            Err(error) => fault(
                &key,
                format!("no file at {}: {}", shown(source), why(&error)),
                None,
            ),
        }
    }
}

/// What is wrong with a workspace, and what helps.
fn directory_fault(path: &Path, origin: &Origin) -> Option<(String, Option<&'static str>)> {
    let found = origin.file.is_some() && !origin.is_explicit;
    match fs::canonicalize(path) {
        Ok(real) if !real.is_dir() => Some((format!("{} is not a directory", shown(path)), None)),
        Ok(real) if found && !real.starts_with(&origin.dir) => {
            let message = format!(
                "the workspace is really {}, and a supervisor.toml that was found may not use a workspace outside its own directory",
                shown(&real)
            );
            Some((message, Some("name the file with --config if you trust it")))
        }
        Ok(_) => None,
        Err(error) => {
            let message = format!("no workspace at {}: {}", shown(path), why(&error));
            Some((message, None))
        }
    }
}

/// Files that the ssh client reads: what decides whom it talks to, and what it runs, is code.
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
                    format!("no file at {}: {}", shown(file), why(&error)),
                    None,
                );
            }
            Err(OpenError::Untrusted(error)) => fault(key, error.to_string(), None),
        }
    }
    if let Some(file) = &ssh.identity_file
        && let Err(error) = fs::metadata(file)
    {
        let message = format!("no file at {}: {}", shown(file), why(&error));
        fault("ssh.identity_file", message, None);
    }
}

#[cfg(test)]
mod tests;
