//! The agent's memory: each session is a file of JSON lines in its home.
//!
//! The file is the only memory, so a resumed session knows exactly what was really stored. Must not
//! know protocols or steps.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use marshal_model::limits::{AGENT_SESSION_BYTES, AGENT_SESSIONS};

/// The directory below the home.
const DIRECTORY: &str = ".marshal-script-agent";

/// One line of a session's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Record {
    /// The first line of the file.
    Session { id: String, cwd: PathBuf },
    /// A prompt, written before the agent acts on it.
    Prompt { text: String },
    /// A tool call that ended.
    Tool {
        id: String,
        tool: String,
        title: String,
        input: Value,
        output: String,
        is_error: bool,
    },
    /// The text of a turn, written at its end.
    Answer {
        text: String,
        cancelled: bool,
        /// The tokens in the context after the turn.
        context: u64,
    },
}

/// An error when a session is loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(
        "the id is not plain: a letter or digit, then at most 127 letters, digits, `.`, `_`, `-`"
    )]
    InvalidId,
    #[error("no such session is stored in {0}")]
    Unknown(PathBuf),
    #[error("no sessions are stored: {0}")]
    NotSaved(&'static str),
    #[error("its file has more than {AGENT_SESSION_BYTES} bytes")]
    TooLarge,
    #[error("its file cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Where sessions are stored.
#[derive(Debug)]
pub(super) enum Memory {
    Directory(PathBuf),
    /// Nowhere; the text gives the reason.
    Disabled(&'static str),
}

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// Its working directory.
    pub(super) cwd: PathBuf,
    /// Tokens in the context.
    pub(super) context: u64,
    /// The number of prompts so far.
    pub(super) prompts: u64,
    pub(super) calls: u64,
    /// Its file; `None` if nothing is stored.
    file: Option<PathBuf>,
}

/// A session in the list of stored sessions.
#[derive(Debug)]
pub(super) struct SessionSummary {
    pub(super) id: String,
    pub(super) cwd: PathBuf,
    pub(super) updated: SystemTime,
}

impl Memory {
    /// Stores sessions in the home directory, if there is one.
    pub(super) fn in_home(home: Option<OsString>) -> Self {
        match home {
            Some(home) if Path::new(&home).is_absolute() => {
                Self::Directory(Path::new(&home).join(DIRECTORY))
            }
            _ => Self::Disabled("HOME is not set"),
        }
    }

    /// Whether sessions are stored.
    pub(super) const fn is_enabled(&self) -> bool {
        matches!(self, Self::Directory(_))
    }

    /// Begins a session. The error says why it cannot be stored.
    pub(super) fn begin(&self, cwd: PathBuf) -> (Session, Option<io::Error>) {
        self.begin_as(uuid::Uuid::new_v4().to_string(), cwd)
    }

    /// [`Self::begin`] with a given id, which must be valid in a file name.
    pub(super) fn begin_as(&self, id: String, cwd: PathBuf) -> (Session, Option<io::Error>) {
        let mut session = Session {
            cwd,
            ..Session::unsaved(id)
        };
        let Self::Directory(dir) = self else {
            return (session, None);
        };
        session.file = Some(file_of(dir, &session.id));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let head = Record::Session {
            id: session.id.clone(),
            cwd: session.cwd.clone(),
        };
        let stored = made.and_then(|()| session.append(&head));
        if stored.is_err() {
            session.file = None;
        }
        (session, stored.err())
    }

    /// Loads a session that was begun earlier, perhaps by another process.
    pub(super) fn load(&self, id: &str) -> Result<Session, SessionError> {
        if !plain_id(id) {
            return Err(SessionError::InvalidId);
        }
        let dir = match self {
            Self::Directory(dir) => dir,
            Self::Disabled(why) => return Err(SessionError::NotSaved(why)),
        };
        let path = file_of(dir, id);
        let file = match OpenOptions::new().read(true).append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SessionError::Unknown(dir.clone()));
            }
            file => file?,
        };
        terminate_last_line(file)?;
        let mut session = Session {
            file: Some(path),
            ..Session::unsaved(id.to_owned())
        };
        for record in session.records()? {
            match record? {
                Record::Session { cwd, .. } => session.cwd = cwd,
                Record::Prompt { .. } => session.prompts += 1,
                Record::Tool { .. } => session.calls += 1,
                Record::Answer { context, .. } => session.context = context,
            }
        }
        Ok(session)
    }

    /// All sessions, most recently changed first.
    pub(super) fn list(&self) -> Vec<SessionSummary> {
        let Self::Directory(dir) = self else {
            return Vec::new();
        };
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut sessions: Vec<SessionSummary> = entries
            .take(AGENT_SESSIONS)
            .filter_map(|entry| {
                let path = entry.path();
                let id = path.file_stem()?.to_str()?.to_owned();
                if path.extension()? != "jsonl" || !plain_id(&id) {
                    return None;
                }
                let updated = entry.metadata().ok()?.modified().ok()?;
                let Some(Ok(Record::Session { cwd, .. })) = records(&path).ok()?.next() else {
                    return None;
                };
                Some(SessionSummary { id, cwd, updated })
            })
            .collect();
        sessions.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| a.id.cmp(&b.id)));
        sessions
    }
}

impl Session {
    /// A session that is not stored.
    pub(super) fn unsaved(id: String) -> Self {
        Self {
            id,
            cwd: PathBuf::new(),
            context: 0,
            prompts: 0,
            calls: 0,
            file: None,
        }
    }

    /// Whether it is stored.
    pub(super) fn is_saved(&self) -> bool {
        self.file.is_some()
    }

    /// Stops storing it.
    pub(super) fn stop_saving(&mut self) {
        self.file = None;
    }

    /// Appends a line in one write. It survives this process, but perhaps not a loss of power; see
    /// [`Self::append_durable`].
    pub(super) fn append(&self, record: &Record) -> io::Result<()> {
        self.write(record).map(|_| ())
    }

    /// Appends a line and waits until it and all lines before it are on the disk.
    pub(super) fn append_durable(&self, record: &Record) -> io::Result<()> {
        match self.write(record)? {
            Some(file) => file.sync_data(),
            None => Ok(()),
        }
    }

    fn write(&self, record: &Record) -> io::Result<Option<File>> {
        let Some(path) = &self.file else {
            return Ok(None);
        };
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(&line)?;
        Ok(Some(file))
    }

    /// All stored records, from the beginning.
    pub(super) fn records(&self) -> Result<Records, SessionError> {
        let path = self.file.as_ref();
        records(path.ok_or(SessionError::NotSaved("it is not kept"))?)
    }
}

/// The lines of a session's file. An incomplete last line is left out.
pub(super) type Records = Box<dyn Iterator<Item = io::Result<Record>>>;

fn records(path: &Path) -> Result<Records, SessionError> {
    let file = File::open(path)?;
    if file.metadata()?.len() > AGENT_SESSION_BYTES {
        return Err(SessionError::TooLarge);
    }
    let lines = BufReader::new(file.take(AGENT_SESSION_BYTES)).split(b'\n');
    Ok(Box::new(lines.filter_map(|line| {
        line.map(|line| serde_json::from_slice(&line).ok())
            .transpose()
    })))
}

fn file_of(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.jsonl"))
}

/// Ends an incomplete last line, so that the next line stands alone.
fn terminate_last_line(mut file: File) -> io::Result<()> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        return Ok(());
    }
    file.write_all(b"\n")
}

/// Whether an id is valid in a file name: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`, and not `latest`.
fn plain_id(id: &str) -> bool {
    let bytes = id.as_bytes();
    id != "latest"
        && bytes.len() <= 128
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str) -> Record {
        Record::Prompt { text: text.into() }
    }

    #[test]
    fn only_plain_ids_become_file_names() {
        for id in ["a", "0b5d-1", "A.b_c-d"] {
            assert!(plain_id(id), "{id}");
        }
        for id in ["", "latest", "-a", ".a", "a/b", "a b", &"a".repeat(129)] {
            assert!(!plain_id(id), "{id}");
        }
    }

    #[test]
    fn a_session_is_taken_up_with_everything_but_the_line_that_was_cut_off() {
        let home = tempfile::tempdir().unwrap();
        let memory = Memory::in_home(Some(home.path().into()));
        let (session, failed) = memory.begin("/work".into());
        assert!(failed.is_none());
        session.append_durable(&prompt("one")).unwrap();
        let path = home
            .path()
            .join(DIRECTORY)
            .join(format!("{}.jsonl", session.id));
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"kind\":\"prompt\",\"te")
            .unwrap();
        let again = memory.load(&session.id).unwrap();
        assert_eq!((again.prompts, again.cwd.to_str()), (1, Some("/work")));
        again.append_durable(&prompt("two")).unwrap();
        let stored: Vec<Record> = again.records().unwrap().map(Result::unwrap).collect();
        assert_eq!(stored[1..], [prompt("one"), prompt("two")]);
        assert_eq!(memory.list().len(), 1);
    }

    #[test]
    fn what_is_unknown_or_unsafe_is_not_loaded() {
        let home = tempfile::tempdir().unwrap();
        let memory = Memory::in_home(Some(home.path().into()));
        assert!(matches!(memory.load("a"), Err(SessionError::Unknown(_))));
        assert!(matches!(memory.load("../a"), Err(SessionError::InvalidId)));
        let nothing = Memory::in_home(None);
        assert!(matches!(nothing.load("a"), Err(SessionError::NotSaved(_))));
        let (session, failed) = nothing.begin("/".into());
        assert!(failed.is_none() && !session.is_saved());
    }

    #[test]
    fn a_home_that_cannot_be_written_is_told_and_the_session_begins_without_memory() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(DIRECTORY), "a file").unwrap();
        let memory = Memory::in_home(Some(home.path().into()));
        let (session, failed) = memory.begin("/".into());
        assert!(failed.is_some() && !session.is_saved());
        assert!(session.append_durable(&prompt("one")).is_ok());
    }
}
