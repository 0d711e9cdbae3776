//! The register of a user's supervisors: one small file each, in the user's runtime directory.
//!
//! A file may outlive its supervisor after a `kill -9`, so the lock of the state directory decides
//! whether it still runs. Must not know how a supervisor is talked to.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::base;
use marshal_engine::api::SupervisorKind;
use marshal_sandbox::state_dir::{self, StateDir};

/// The file in a state directory that says whose it is.
const LAST: &str = "supervisor.json";
/// The most files that are read, and the bytes of one.
const FILES: usize = 1000;
const BYTES: u64 = 64 << 10;

/// A supervisor in the register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct Supervisor {
    /// Its project.
    pub(in crate::cli) project: PathBuf,
    /// Its state directory, where its socket is.
    pub(in crate::cli) state_dir: PathBuf,
    /// Its configuration file; `None` for the built-in configuration.
    pub(in crate::cli) configuration: Option<PathBuf>,
    /// What kind of supervisor it is, a [`SupervisorKind`].
    pub(in crate::cli) role: String,
    /// Its process id.
    pub(in crate::cli) pid: u32,
}

/// An entry of the register; dropping it removes the entry.
#[derive(Debug)]
pub(in crate::cli) struct Registration(PathBuf);

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The directories that may hold a register, the preferred one first: the runtime directory, and
/// for hosts without one the directory of all state.
fn directories(env: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let runtime = match env("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => Some(dir),
        _ => Some(PathBuf::from(format!("/run/user/{}", uid.as_raw()))).filter(|dir| dir.is_dir()),
    };
    let runtime = runtime.map(|dir| dir.join("marshal"));
    let places = runtime.into_iter().chain(base(env));
    places.map(|dir| dir.join("supervisors")).collect()
}

/// Registers this process, and notes the project in its state directory. Without a place for the
/// register, commands in other directories do not find it.
pub(in crate::cli) fn register(
    project: &Path,
    state: &StateDir,
    configuration: Option<&Path>,
    role: SupervisorKind,
) -> Option<Registration> {
    let pid = std::process::id();
    let entry = Supervisor {
        project: project.to_owned(),
        state_dir: state.path().to_owned(),
        configuration: configuration.map(Path::to_owned),
        role: role.to_string(),
        pid,
    };
    let text = serde_json::to_vec(&entry).unwrap_or_default();
    let mut why = None;
    if let Err(error) = write(&state.path().join(LAST), &text) {
        tracing::warn!(%error, "cannot note the project in the state directory");
    }
    for dir in directories(|name| std::env::var_os(name)) {
        let file = dir.join(format!("{pid}.json"));
        match create(&dir).and_then(|()| write(&file, &text)) {
            Ok(()) => return Some(Registration(file)),
            Err(error) => why = Some((dir, error)),
        }
    }
    if let Some((dir, error)) = why {
        let dir = dir.display();
        tracing::warn!(%dir, %error, "this supervisor is not registered, so commands in other directories do not find it");
    }
    None
}

fn create(dir: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    is_own(dir)
}

fn write(file: &Path, text: &[u8]) -> std::io::Result<()> {
    let _ = fs::remove_file(file);
    let mut options = fs::OpenOptions::new();
    let mut opened = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    opened.write_all(text)
}

/// The last supervisor of a state directory, running or not.
pub(in crate::cli) fn last_of(state: &Path) -> Option<Supervisor> {
    read(&state.join(LAST))
}

fn read(file: &Path) -> Option<Supervisor> {
    let is_small = fs::metadata(file).is_ok_and(|meta| meta.len() <= BYTES);
    let text = fs::read(file).ok().filter(|_| is_small)?;
    serde_json::from_slice(&text).ok()
}

/// Only a directory of the caller's own is believed: an entry decides which socket is used.
fn is_own(dir: &Path) -> std::io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let is_own = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o022 == 0;
    if is_own {
        Ok(())
    } else {
        Err(std::io::Error::other(
            "it is not a directory that only you can write",
        ))
    }
}

/// The supervisors that run now, by project and start. Removes the entries of dead ones.
pub(in crate::cli) fn running(env: impl Fn(&str) -> Option<OsString>) -> Vec<Supervisor> {
    let mut found = Vec::new();
    for dir in directories(env) {
        if is_own(&dir).is_err() {
            continue;
        }
        for file in fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .flatten()
            .take(FILES)
        {
            let path = file.path();
            match read(&path) {
                Some(entry) if state_dir::is_locked(&entry.state_dir) => found.push(entry),
                Some(entry) if !is_alive(entry.pid) => drop(fs::remove_file(&path)),
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| (&a.project, a.pid).cmp(&(&b.project, b.pid)));
    found.dedup();
    found
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
