//! The programs of agents, on record by the digests of their content.
//!
//! Owns `STATE/programs/POOL.json` and the comparison with it before a child starts. Only files of
//! this host are compared: the interpreter of a script and the script, not what they load. Must not
//! know how a child is started.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use marshal_config::Pool;
use marshal_launch::LaunchPlan;
use marshal_model::Event;
use marshal_model::untrusted::escape_for_display;

/// The most words of a command line that can be programs: an interpreter and its script.
const PROGRAMS: usize = 2;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 16;

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramRefused {
    /// It is another one than on record, and the pool has `pin = true`.
    #[error(
        "{path} was changed since it was recorded, and the pool has pin = true: its SHA-256 is {now}, \
         on record is {was}. If that is intended, remove {record} and start again"
    )]
    Changed {
        path: String,
        now: String,
        was: String,
        record: String,
    },
    /// The record or the program cannot be read or written, and the pool has `pin = true`.
    #[error("{path}: {source}, and the pool has pin = true")]
    Io { path: String, source: io::Error },
}

/// The content of a record.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The digest of each file, by its path.
    files: BTreeMap<String, String>,
}

/// What changes when a file's content does, as far as the kernel tells: device, inode, size, and the
/// times of the last changes in nanoseconds.
type FileState = (u64, u64, u64, [i64; 4]);

/// The records of all pools, and the digests that are known.
#[derive(Debug)]
pub(crate) struct ProgramRecords {
    directory: PathBuf,
    /// This program, which is no agent of others.
    own: Option<PathBuf>,
    digests: Mutex<HashMap<PathBuf, (FileState, String)>>,
}

impl ProgramRecords {
    pub(crate) fn new(directory: PathBuf, own: &Path) -> Self {
        Self {
            directory,
            own: fs::canonicalize(own).ok(),
            digests: Mutex::default(),
        }
    }

    /// Compares the programs of a plan with the pool's record, and records those that are new.
    /// Blocks: a program is read when it has changed. Returns an event for each new one.
    ///
    /// # Errors
    /// With `pin = true`, a program that differs from the record, or cannot be compared.
    pub(crate) fn check(
        &self,
        pool: &Pool,
        plan: &LaunchPlan,
    ) -> Result<Vec<Event>, ProgramRefused> {
        match self.compare(pool, &self.programs(pool, plan)) {
            Ok(events) => Ok(events),
            Err(error @ ProgramRefused::Changed { .. }) => Err(error),
            Err(error) if pool.pin => Err(error),
            Err(ProgramRefused::Io { path, source }) => {
                tracing::warn!(pool = %pool.name, path, %source, "a program is not on record");
                Ok(Vec::new())
            }
        }
    }

    /// The files of a plan that are compared; none if the program is marshal's own, or is not on
    /// this host.
    pub(crate) fn programs(&self, pool: &Pool, plan: &LaunchPlan) -> Vec<PathBuf> {
        if !pool.launcher.uses_host_programs() {
            return Vec::new();
        }
        let mut programs = programs(plan);
        programs.retain(|path| Some(path) != self.own.as_ref());
        programs
    }

    fn compare(&self, pool: &Pool, programs: &[PathBuf]) -> Result<Vec<Event>, ProgramRefused> {
        let at = self.directory.join(format!("{}.json", pool.name));
        let failed = |path: &Path| {
            let path = path.display().to_string();
            |source| ProgramRefused::Io { path, source }
        };
        let before = read_record(&at).map_err(failed(&at))?;
        let mut now = Record::default();
        for path in programs {
            let digest = self.digest(path).map_err(failed(path))?;
            now.files
                .insert(path.to_string_lossy().into_owned(), digest);
        }
        let Some(before) = before else {
            write_record(&self.directory, &at, &now).map_err(failed(&at))?;
            let new = |(path, digest): (&String, &String)| recorded(path, digest, None);
            return Ok(now.files.iter().map(new).collect());
        };
        let is_known =
            |(path, digest): &(&String, &String)| before.files.get(*path) == Some(*digest);
        let changed: Vec<_> = now.files.iter().filter(|file| !is_known(file)).collect();
        let Some((path, digest)) = changed.first() else {
            return Ok(Vec::new());
        };
        if pool.pin {
            let was = before.files.get(*path);
            return Err(ProgramRefused::Changed {
                path: (*path).clone(),
                now: (*digest).clone(),
                was: was.map_or_else(|| "another file".to_owned(), Clone::clone),
                record: at.display().to_string(),
            });
        }
        write_record(&self.directory, &at, &now).map_err(failed(&at))?;
        let new = |(path, digest): &(&String, &String)| {
            recorded(path, digest, before.files.get(*path).cloned())
        };
        Ok(changed.iter().map(new).collect())
    }

    /// The digest of a file's content, which is read again only after a change.
    fn digest(&self, path: &Path) -> io::Result<String> {
        let mut file = File::open(path)?;
        let state = file_state(&file)?;
        let lock = || self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, digest)) = lock().get(path)
            && *known == state
        {
            return Ok(digest.clone());
        }
        let mut sum = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                length => sum.update(&chunk[..length]),
            }
        }
        let digest = hex::encode(sum.finalize());
        lock().insert(path.to_owned(), (state, digest.clone()));
        Ok(digest)
    }
}

fn recorded(path: &str, digest: &str, was: Option<String>) -> Event {
    Event::ProgramRecorded {
        path: escape_for_display(path, 300),
        sha256: digest.to_owned(),
        was,
    }
}

fn file_state(file: &File) -> io::Result<FileState> {
    let meta = file.metadata()?;
    let times = [
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec(),
    ];
    Ok((meta.dev(), meta.ino(), meta.len(), times))
}

/// The files of this host among the first words of a command line.
fn programs(plan: &LaunchPlan) -> Vec<PathBuf> {
    let path = plan.env.iter().find(|(name, _)| name == "PATH");
    let directories = path.map_or("", |(_, value)| value).split(':');
    let mut found = Vec::new();
    for (place, word) in plan.argv.iter().take(PROGRAMS).enumerate() {
        let file = match place {
            0 if !word.contains('/') => directories
                .clone()
                .map(|directory| Path::new(directory).join(word))
                .find(|file| file.is_file()),
            _ => Some(PathBuf::from(word)).filter(|file| file.is_absolute() && file.is_file()),
        };
        found.extend(file.and_then(|file| fs::canonicalize(file).ok()));
    }
    found
}

fn read_record(at: &Path) -> io::Result<Option<Record>> {
    match fs::read(at) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the record as a whole: another supervisor of this state may read it.
fn write_record(directory: &Path, at: &Path, record: &Record) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let fresh = at.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, serde_json::to_vec(record)?)?;
    fs::rename(&fresh, at)
}
