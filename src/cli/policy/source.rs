//! Finds the policy of a command: a built-in one, one of the configuration, or a file.
//!
//! Owns the texts of a policy's layers, for commands that show the rules as written.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::PolicyCommandError;
use crate::cli::command::{report_load_error, show as show_errors};
use crate::cli::config_file;
use crate::cli::exit::Exit;
use crate::cli::policies;
use crate::cli::streams::Streams;
use marshal_config::Config;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_policy::{Policy, builtin_text};

/// Columns shown of a name.
const NAME: usize = 120;

/// Where a command looks for policies.
pub(in crate::cli) struct PolicySources<'a> {
    /// The file of `--config`, if given.
    pub(in crate::cli) config: Option<&'a Path>,
    /// The current directory.
    pub(in crate::cli) directory: PathBuf,
}

/// The options that select a policy.
#[derive(Debug, Clone, clap::Args)]
pub struct PolicyArgs {
    /// A built-in policy, or a [policy.NAME] of the configuration
    #[arg(short = 'p', long, value_name = "NAME", default_value = "developer")]
    pub policy: String,

    /// A policy file; its owner is not checked
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    pub file: Option<PathBuf>,
}

/// A policy with the texts of its layers.
pub(in crate::cli) struct SelectedPolicy {
    pub(in crate::cli) policy: Arc<Policy>,
    pub(in crate::cli) sha256: String,
    /// Name and text of every layer. A layer stands after those that it extends; the policy's own
    /// text is the last.
    pub(in crate::cli) layers: Vec<(String, String)>,
}

impl PolicySources<'_> {
    /// The configuration in use.
    pub(in crate::cli) fn load(&self, streams: &mut Streams) -> Result<Config, PolicyCommandError> {
        let loaded = config_file::load(self.config, &self.directory);
        loaded.map(|loaded| loaded.config).map_err(|error| {
            // Standard output is only for results.
            match &error {
                config_file::LoadError::Faulty(errors) => {
                    show_errors(errors, false, streams);
                    PolicyCommandError::Reported(Exit::Usage)
                }
                _ => PolicyCommandError::Reported(report_load_error(&error, false, streams)),
            }
        })
    }

    /// The selected policy.
    pub(in crate::cli) fn choose(
        &self,
        which: &PolicyArgs,
        streams: &mut Streams,
    ) -> Result<SelectedPolicy, PolicyCommandError> {
        match &which.file {
            Some(path) => self.by_path(path),
            None => self.by_name(&which.policy, streams),
        }
    }

    /// The policy of this name.
    pub(in crate::cli) fn by_name(
        &self,
        name: &str,
        streams: &mut Streams,
    ) -> Result<SelectedPolicy, PolicyCommandError> {
        let config = self.load(streams)?;
        if !config.policies.contains_key(name) {
            if builtin_text(name).is_none() {
                return Err(PolicyCommandError::Usage(format!(
                    "there is no policy {:?}: it is not built in, and the configuration has no \
                    [policy.{}]",
                    escape_for_display(name, NAME),
                    escape_for_display(name, NAME)
                )));
            }
            if Policy::builtin(name).is_none() {
                return Err(PolicyCommandError::Usage(format!(
                    "builtin:{name} is not a policy by itself; it can only be used in `extends`"
                )));
            }
        }
        let loaded =
            policies::load_policy(&config, name, None).map_err(PolicyCommandError::Usage)?;
        let mut layers = Vec::new();
        let site = config.site_policy.as_deref().filter(|site| *site != name);
        for name in site.into_iter().chain([name]) {
            let source = policies::source(&config, name).map_err(PolicyCommandError::Usage)?;
            let find = |file: &str| policies::read_policy(&source.directory.join(file));
            gather(&source.name, &source.text, &find, &mut layers)
                .map_err(PolicyCommandError::Usage)?;
        }
        Ok(SelectedPolicy {
            policy: loaded.policy,
            sha256: loaded.sha256,
            layers,
        })
    }

    /// The policy of a file. It decides nothing in a running fleet, so its owner is not checked.
    pub(in crate::cli) fn by_path(
        &self,
        path: &Path,
    ) -> Result<SelectedPolicy, PolicyCommandError> {
        let path = self.directory.join(path);
        let name = escape_for_display(&path.to_string_lossy(), NAME);
        of_file(&path, &name, &|path| {
            read(path, limits::CONFIG_BYTES as u64)
        })
    }

    /// The policy of a file, or the built-in one of this name if there is no such file.
    pub(super) fn by_path_or_name(
        &self,
        path: &Path,
        name: &str,
    ) -> Result<SelectedPolicy, PolicyCommandError> {
        if Policy::builtin(name).is_none() || self.directory.join(path).exists() {
            return self.by_path(path);
        }
        let text = builtin_text(name).unwrap_or_default();
        of_file(Path::new(name), name, &|_| Ok(text.to_owned()))
    }
}

fn of_file(
    path: &Path,
    name: &str,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<SelectedPolicy, PolicyCommandError> {
    let loaded = policies::of_file(path, name, read).map_err(PolicyCommandError::Usage)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut layers = Vec::new();
    let text = read(path).map_err(PolicyCommandError::Usage)?;
    let find = |file: &str| read(&directory.join(file));
    gather(name, &text, &find, &mut layers).map_err(PolicyCommandError::Usage)?;
    Ok(SelectedPolicy {
        policy: loaded.policy,
        sha256: loaded.sha256,
        layers,
    })
}

/// The texts of a policy that was loaded without errors.
fn gather(
    name: &str,
    text: &str,
    find: &dyn Fn(&str) -> Result<String, String>,
    layers: &mut Vec<(String, String)>,
) -> Result<(), String> {
    let table: toml::Table = text.parse().map_err(|error| format!("{name}: {error}"))?;
    let extends = table.get("extends").and_then(toml::Value::as_array);
    for base in extends.into_iter().flatten().filter_map(|v| v.as_str()) {
        let is_known = layers.iter().any(|(known, _)| known == base);
        if is_known || layers.len() > limits::POLICY_EXTENDS {
            continue;
        }
        match base.strip_prefix("builtin:") {
            Some(builtin) => gather(
                base,
                builtin_text(builtin).unwrap_or_default(),
                find,
                layers,
            )?,
            None => gather(base, &find(base)?, find, layers)?,
        }
    }
    layers.push((name.to_owned(), text.to_owned()));
    Ok(())
}

/// Reads a whole file up to a maximum size.
pub(super) fn read(path: &Path, most: u64) -> Result<String, String> {
    let shown = escape_for_display(&path.to_string_lossy(), 300);
    let failed = |error: std::io::Error| format!("cannot read {shown}: {error}");
    let file = File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("{shown} is not a regular file"));
    }
    let mut text = String::new();
    let read = file
        .take(most + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if read as u64 > most {
        return Err(format!("{shown} is larger than {most} bytes"));
    }
    Ok(text)
}
