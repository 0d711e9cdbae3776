//! Which policy is meant: one that is built in, one of the configuration, or a file.
//!
//! Owns how a policy's layers are had as texts, for those who look at the rules as they are written.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Fault;
use crate::cli::command::{faulty, show as show_errors};
use crate::cli::config_file;
use crate::cli::exit::Exit;
use crate::cli::policies;
use crate::cli::streams::Streams;
use crate::config::Config;
use crate::limits;
use crate::model::foreign::show;
use crate::policy::{Policy, builtin_text};

/// Columns of a foreign name.
const NAME: usize = 120;

/// What is around a command.
pub(in crate::cli) struct Around<'a> {
    /// The configuration that was named.
    pub(in crate::cli) config: Option<&'a Path>,
    /// The current directory.
    pub(in crate::cli) directory: PathBuf,
}

/// Which policy.
#[derive(Debug, Clone, clap::Args)]
pub struct Which {
    /// A policy that is built in, or a [policy.NAME] of the configuration
    #[arg(short = 'p', long, value_name = "NAME", default_value = "developer")]
    pub policy: String,

    /// A policy file, whoever wrote it
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    pub file: Option<PathBuf>,
}

/// A policy with what it was made of.
pub(in crate::cli) struct Chosen {
    pub(in crate::cli) policy: Arc<Policy>,
    pub(in crate::cli) sha256: String,
    /// Name and text of every layer, what is extended before what extends it; its own is the last.
    pub(in crate::cli) layers: Vec<(String, String)>,
}

impl Around<'_> {
    /// The configuration in use.
    pub(in crate::cli) fn load(&self, streams: &mut Streams) -> Result<Config, Fault> {
        let loaded = config_file::load(self.config, &self.directory);
        loaded.map(|loaded| loaded.config).map_err(|error| {
            // Standard output is for results.
            match &error {
                config_file::LoadError::Faulty(errors) => {
                    show_errors(errors, false, streams);
                    Fault::Told(Exit::Usage)
                }
                _ => Fault::Told(faulty(&error, false, streams)),
            }
        })
    }

    /// The policy that is meant.
    pub(in crate::cli) fn choose(
        &self,
        which: &Which,
        streams: &mut Streams,
    ) -> Result<Chosen, Fault> {
        match &which.file {
            Some(path) => self.file(path),
            None => self.named(&which.policy, streams),
        }
    }

    /// The policy of this name.
    pub(in crate::cli) fn named(&self, name: &str, streams: &mut Streams) -> Result<Chosen, Fault> {
        let config = self.load(streams)?;
        if !config.policies.contains_key(name) {
            if builtin_text(name).is_none() {
                return Err(Fault::Usage(format!(
                    "there is no policy {:?}: neither is it built in, nor has the configuration a \
                     [policy.{}]",
                    show(name, NAME),
                    show(name, NAME)
                )));
            }
            if Policy::builtin(name).is_none() {
                return Err(Fault::Usage(format!(
                    "builtin:{name} is no policy by itself: it is for `extends`"
                )));
            }
        }
        let loaded = policies::policy(&config, name, None).map_err(Fault::Usage)?;
        let mut layers = Vec::new();
        let site = config.site_policy.as_deref().filter(|site| *site != name);
        for name in site.into_iter().chain([name]) {
            let source = policies::source(&config, name).map_err(Fault::Usage)?;
            let find = |file: &str| policies::read_policy(&source.directory.join(file));
            gather(&source.name, &source.text, &find, &mut layers).map_err(Fault::Usage)?;
        }
        Ok(Chosen {
            policy: loaded.policy,
            sha256: loaded.sha256,
            layers,
        })
    }

    /// The policy of a file. It decides nothing here, so it may be anybody's.
    pub(in crate::cli) fn file(&self, path: &Path) -> Result<Chosen, Fault> {
        let path = self.directory.join(path);
        let name = show(&path.to_string_lossy(), NAME);
        of_file(&path, &name, &|path| {
            read(path, limits::CONFIG_BYTES as u64)
        })
    }

    /// The policy of a file, or the built-in one of this name if there is no such file.
    pub(super) fn beside(&self, path: &Path, name: &str) -> Result<Chosen, Fault> {
        if Policy::builtin(name).is_none() || self.directory.join(path).exists() {
            return self.file(path);
        }
        let text = builtin_text(name).unwrap_or_default();
        of_file(Path::new(name), name, &|_| Ok(text.to_owned()))
    }
}

fn of_file(
    path: &Path,
    name: &str,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<Chosen, Fault> {
    let loaded = policies::of_file(path, name, read).map_err(Fault::Usage)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut layers = Vec::new();
    let text = read(path).map_err(Fault::Usage)?;
    let find = |file: &str| read(&directory.join(file));
    gather(name, &text, &find, &mut layers).map_err(Fault::Usage)?;
    Ok(Chosen {
        policy: loaded.policy,
        sha256: loaded.sha256,
        layers,
    })
}

/// The texts of a policy that is known to be good.
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

/// Reads a whole file of at most so many bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<String, String> {
    let shown = show(&path.to_string_lossy(), 300);
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
