//! `marshal trust`: configurations that the user trusts without naming them each time.
//!
//! A record is a path and the SHA-256 of the file, so any change of the file revokes it. Must not
//! know what a trusted configuration may do.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::command::{find_state, report_load_error};
use super::config_file::{self, Loaded, Source};
use super::exit::Exit;
use super::project;
use super::streams::Streams;
use super::trust::{display_path, open_trusted};
use marshal_config::working_dirs;

/// The file of the records, in the directory of all projects' state.
const FILE: &str = "trusted.json";
/// The most bytes of that file.
const BYTES: u64 = 4 << 20;

/// `trust …`
#[derive(Debug, clap::Args)]
pub struct TrustArgs {
    /// The configuration (default: the one of this directory)
    #[arg(value_name = "FILE", conflicts_with = "list")]
    pub file: Option<PathBuf>,

    /// List what is trusted, and which of it has changed since
    #[arg(long)]
    pub list: bool,

    /// Trust it no longer
    #[arg(long, conflicts_with = "list")]
    pub revoke: bool,
}

/// The digests of trusted files, by path.
type Records = BTreeMap<PathBuf, String>;

/// Why nothing can be recorded. Safe to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrustError {
    /// No directory for it.
    #[error("there is no place for it: set $XDG_STATE_HOME or $HOME to an absolute path")]
    Nowhere,
    /// The records cannot be read or written.
    #[error("cannot {doing} {}: {error}", display_path(.path))]
    Io {
        /// The failed operation.
        doing: &'static str,
        /// The file of the records.
        path: PathBuf,
        /// The error of the system.
        error: String,
    },
}

fn path() -> Option<PathBuf> {
    Some(project::base(|name| std::env::var_os(name))?.join(FILE))
}

fn read(path: &Path) -> Result<Records, TrustError> {
    let fault = |error: String| TrustError::Io {
        doing: "read",
        path: path.to_owned(),
        error,
    };
    if path.symlink_metadata().is_err() {
        return Ok(Records::new());
    }
    let file = open_trusted(path).map_err(|error| fault(error.to_string()))?;
    let mut text = String::new();
    let mut file = file.take(BYTES);
    file.read_to_string(&mut text)
        .map_err(|error| fault(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fault(error.to_string()))
}

fn write(path: &Path, records: &Records) -> Result<(), TrustError> {
    let written = || -> std::io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(serde_json::to_string_pretty(records)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    written().map_err(|error| TrustError::Io {
        doing: "write",
        path: path.to_owned(),
        error: error.to_string(),
    })
}

/// Whether the user trusts this file with this content.
pub(super) fn is_trusted(file: &Path, content: &[u8]) -> bool {
    let records = path().and_then(|path| read(&path).ok()).unwrap_or_default();
    records
        .get(file)
        .is_some_and(|known| *known == digest(content))
}

/// Whether an agent of the configuration could write the records.
pub(super) fn is_writable_by_agents(loaded: &Loaded) -> bool {
    let Some(path) = path() else { return false };
    let real = fs::canonicalize(&path).unwrap_or(path);
    let pools = loaded.config.pools.iter();
    let mut dirs = pools.flat_map(|pool| working_dirs(pool).map(|(dir, _)| dir));
    dirs.any(|dir| {
        real.starts_with(dir) || fs::canonicalize(dir).is_ok_and(|dir| real.starts_with(dir))
    })
}

/// Records that the user trusts this file with this content.
///
/// # Errors
/// [`TrustError`]
pub(super) fn record(file: &Path, content: &[u8]) -> Result<(), TrustError> {
    let path = path().ok_or(TrustError::Nowhere)?;
    let mut records = read(&path)?;
    records.insert(file.to_owned(), digest(content));
    write(&path, &records)
}

fn digest(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// `marshal trust`.
pub(super) fn run(args: &TrustArgs, directory: &Path, streams: &mut Streams) -> Exit {
    let done = if args.list {
        list(streams)
    } else {
        let found = project::configuration_file(directory);
        let named = args.file.as_ref().map(|file| directory.join(file));
        let Some(file) = named.or(found) else {
            let text = "error: there is no supervisor.toml here; `marshal init` writes one";
            streams.err.line(text);
            return Exit::Usage;
        };
        if args.revoke {
            revoke(&file, streams)
        } else {
            return trust(&file, directory, streams);
        }
    };
    done.unwrap_or_else(|error| {
        streams.err.line(&format!("error: {error}"));
        Exit::Failures
    })
}

fn list(streams: &mut Streams) -> Result<Exit, TrustError> {
    let records = read(&path().ok_or(TrustError::Nowhere)?)?;
    for (file, known) in &records {
        let now = fs::read(file).map(|content| digest(&content));
        let state = match now {
            Ok(now) if now == *known => "trusted",
            Ok(_) => "changed, so not trusted",
            Err(_) => "missing",
        };
        let line = format!("{} ({state})", display_path(file));
        streams.out.line(&line);
    }
    Ok(Exit::Done)
}

fn revoke(file: &Path, streams: &mut Streams) -> Result<Exit, TrustError> {
    let path = path().ok_or(TrustError::Nowhere)?;
    let mut records = read(&path)?;
    let real = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let was = records.remove(&real).or_else(|| records.remove(file));
    if was.is_none() {
        let text = format!("{} was not trusted", display_path(&real));
        streams.err.line(&text);
        return Ok(Exit::Done);
    }
    write(&path, &records)?;
    let text = format!("{} is not trusted any more", display_path(&real));
    streams.err.line(&text);
    Ok(Exit::Done)
}

/// Checks a configuration as `--config` would, and records it.
fn trust(file: &Path, directory: &Path, streams: &mut Streams) -> Exit {
    let loaded = match config_file::load(Some(file), directory) {
        Ok(loaded) => loaded,
        Err(error) => return report_load_error(&error, false, streams),
    };
    let Source::Named(path) = &loaded.source else {
        return Exit::Usage;
    };
    if let Err(exit) = find_state(&loaded, streams) {
        return exit;
    }
    if is_writable_by_agents(&loaded) {
        let text = "error: agents of this configuration could write the record of what you trust; use a smaller workspace, or --config";
        streams.err.line(text);
        return Exit::Usage;
    }
    match record(path, &loaded.content) {
        Ok(()) => {
            let path = display_path(path);
            streams.err.line(&format!("trusted as it is now: {path}"));
            for line in loaded.config.describe() {
                streams.out.line(&line);
            }
            Exit::Done
        }
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            Exit::Failures
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_and_a_damaged_file_is_an_error() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("below/trusted.json");
        assert_eq!(read(&path).expect("none yet"), Records::new());
        let records = Records::from([("/srv/supervisor.toml".into(), digest(b"a"))]);
        write(&path, &records).expect("written");
        assert_eq!(read(&path).expect("read"), records);
        fs::write(&path, "{").expect("written");
        let error = read(&path).expect_err("damaged").to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }
}
