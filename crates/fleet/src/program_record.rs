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

use marshal_config::{OWN_PROGRAM, Pool};
use marshal_launch::LaunchPlan;
use marshal_model::Event;
use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::HOME_INSIDE;

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
    /// It is no file of this host that could be compared, and the pool has `pin = true`.
    #[error(
        "the program {0} is not found on this host, so it cannot be compared, and the pool has pin = true: \
         give its absolute path"
    )]
    NotFound(String),
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

    /// The files of a plan that are compared; none if the program is marshal's own, or is not on
    /// this host.
    ///
    /// # Errors
    /// With `pin = true`, a program that is not found.
    pub(crate) fn programs(
        &self,
        pool: &Pool,
        plan: &LaunchPlan,
    ) -> Result<Vec<PathBuf>, ProgramRefused> {
        let is_own = pool.command.first().is_some_and(|word| word == OWN_PROGRAM);
        // With a terminal, the runner starts it.
        let is_elsewhere = !pool.launcher.uses_host_programs() || pool.launcher.runs_runner();
        if is_own || is_elsewhere {
            return Ok(Vec::new());
        }
        let mut programs = programs(plan);
        if pool.options.pin && programs.is_empty() {
            let word = plan.argv.first().map_or("", String::as_str);
            return Err(ProgramRefused::NotFound(escape_for_display(word, 300)));
        }
        programs.retain(|path| Some(path) != self.own.as_ref());
        Ok(programs)
    }

    /// Compares programs with the pool's record, and records those that are new. Blocks: a program
    /// is read when it has changed. Returns an event for each new one.
    ///
    /// # Errors
    /// With `pin = true`, a program that differs from the record, or cannot be compared.
    pub(crate) fn check(
        &self,
        pool: &Pool,
        programs: &[PathBuf],
    ) -> Result<Vec<Event>, ProgramRefused> {
        match self.compare(pool, programs) {
            Ok(events) => Ok(events),
            Err(ProgramRefused::Io { path, source }) if !pool.options.pin => {
                tracing::warn!(pool = %pool.name, path, %source, "a program is not on record");
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    fn compare(&self, pool: &Pool, programs: &[PathBuf]) -> Result<Vec<Event>, ProgramRefused> {
        let at = self.directory.join(format!("{}.json", pool.name));
        let failed = |path: &Path| {
            let path = path.display().to_string();
            |source| ProgramRefused::Io { path, source }
        };
        // Slots of a pool start at the same time: the first one records for all.
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let before = read_record(&at).map_err(failed(&at))?;
        let mut now = Record::default();
        for path in programs {
            let digest = digest(&mut digests, path).map_err(failed(path))?;
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
        if pool.options.pin {
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
}

/// The digest of a file's content, which is read again only after a change.
fn digest(known: &mut HashMap<PathBuf, (FileState, String)>, path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let state = file_state(&file)?;
    if let Some((of, digest)) = known.get(path)
        && *of == state
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
    known.insert(path.to_owned(), (state, digest.clone()));
    Ok(digest)
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
            // In the agent's own directories another file may be found than the one that is there now.
            0 if !word.contains('/') => directories
                .clone()
                .take_while(|directory| !directory.starts_with(HOME_INSIDE))
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
