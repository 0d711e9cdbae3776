//! One file that is read or written for the agent, inside its walls.
//!
//! Owns what is said of it, and what is known of it afterwards. Must not know who wanted it, nor when
//! its turn is.

use crate::fleet::files::{AgentFile, AgentWrite, FilesError, Stood};
use crate::launch::{Door, FileError};
use crate::limits::CLIENT_FILE_BYTES;
use crate::model::tool::digest;
use crate::model::{ClientAnswer, ClientDone, ClientError, ClientFault, FileVersion, TextEdit};
use crate::sandbox::workspace::hand::Expected;
use crate::store::{Cause, Digest, StoreError};
use crate::wire::files::{FileExpect, FileFault, FileOrder};

/// A file that was written, or may have been.
#[derive(Debug)]
pub(crate) struct Wrote {
    /// By which tool or method.
    pub(super) tool: &'static str,
    /// As the agent names it.
    pub(super) path: String,
    /// SHA-256 of what it holds, if that is known.
    pub(super) sha256: Option<String>,
    /// What version it is, where versions are kept.
    pub(super) version: Option<FileVersion>,
}

/// A file to be read or written.
#[derive(Debug)]
pub(super) struct FileWork {
    /// Which, and by what.
    pub(super) at: FilePlace,
    pub(super) act: Act,
}

/// Where a file is, and what it is called.
#[derive(Debug)]
pub(super) struct FilePlace {
    /// By which tool or method.
    pub(super) tool: &'static str,
    /// As the agent names it.
    pub(super) path: String,
    /// The workspace, as seen inside.
    pub(super) root: String,
    /// The file below it.
    pub(super) below: String,
    /// Its versions, where they are kept.
    pub(super) file: Option<AgentFile>,
}

/// What is to be done to a file.
#[derive(Debug)]
pub(super) enum Act {
    /// Lines are read.
    Read {
        /// The first.
        line: u64,
        /// The most.
        limit: Option<u64>,
    },
    /// It gets this text.
    Write {
        /// The text.
        text: String,
        /// From which version, if that is said.
        base: Option<u64>,
    },
    /// A text in it is changed.
    Edit {
        /// The change.
        edit: TextEdit,
        /// As above.
        base: Option<u64>,
    },
}

/// Why a file with versions was not written.
enum NotWritten {
    Files(FilesError),
    Door(FileError),
}

impl From<FilesError> for NotWritten {
    fn from(error: FilesError) -> Self {
        Self::Files(error)
    }
}

/// Reads or writes a file; beside the answer what was written, or may have been.
pub(super) async fn carry_out(door: &Door, work: FileWork) -> (ClientAnswer, Option<Wrote>) {
    let FileWork { at, act } = work;
    let change = match act {
        Act::Read { line, limit } => return (read(door, &at, line, limit).await, None),
        Act::Write { text, base } => AgentWrite {
            text,
            base,
            cause: Cause::Write,
            holds: None,
        },
        Act::Edit { edit, base } => match edited(door, at.lines(1, None), &edit, &at.path).await {
            Ok((text, before)) => AgentWrite {
                text,
                base,
                cause: Cause::Edit,
                holds: Some(before),
            },
            Err(error) => return (Err(error), None),
        },
    };
    let text = change.text.clone();
    match &at.file {
        None => write(door, at, &text, &change).await,
        Some(_) => write_version(door, at, &text, change).await,
    }
}

impl FilePlace {
    fn lines(&self, line: u64, limit: Option<u64>) -> FileOrder {
        FileOrder::Read {
            root: self.root.clone(),
            path: self.below.clone(),
            line,
            limit,
        }
    }

    fn order(&self, text: &str, expect: FileExpect) -> FileOrder {
        FileOrder::Write {
            root: self.root.clone(),
            path: self.below.clone(),
            bytes: text.len() as u64,
            expect,
        }
    }

    fn wrote(self, sha256: Option<String>, version: Option<FileVersion>) -> Wrote {
        Wrote {
            tool: self.tool,
            path: self.path,
            sha256,
            version,
        }
    }
}

/// The version is looked at first: what is read is that one, or a later one, and then a write that
/// is made from it is stale.
async fn read(door: &Door, at: &FilePlace, line: u64, limit: Option<u64>) -> ClientAnswer {
    let v = match &at.file {
        Some(file) => file.look().await,
        None => None,
    };
    let text = door.read(at.lines(line, limit)).await;
    let text = text.map_err(|error| {
        let error = described(&error, &at.path, false);
        // That it is gone is seen, too: it may be made again.
        if let (ClientFault::NotFound, Some(v), Some(file)) = (error.fault, v, &at.file) {
            file.saw(v);
        }
        error
    })?;
    match (v, &at.file) {
        (Some(v), Some(file)) => {
            file.saw(v);
            Ok(ClientDone::Read { text, v })
        }
        _ => Ok(ClientDone::Text(text)),
    }
}

/// Writes a file that has no versions.
async fn write(
    door: &Door,
    at: FilePlace,
    text: &str,
    change: &AgentWrite,
) -> (ClientAnswer, Option<Wrote>) {
    if change.base.is_some() {
        let path = &at.path;
        let why = format!("{path}: no versions are kept of it, so it has no base: leave base out");
        return (Err(ClientError::new(ClientFault::Invalid, why)), None);
    }
    let expect = match change.holds {
        Some(digest) => FileExpect::Holds(digest.to_string()),
        None => FileExpect::Anything,
    };
    match door.write(at.order(text, expect), text).await {
        Ok(()) => (
            Ok(ClientDone::Nothing),
            Some(at.wrote(Some(digest(text)), None)),
        ),
        Err(error) => not_written(at, &error),
    }
}

/// Writes a file that has versions: first its next one, then the file.
async fn write_version(
    door: &Door,
    mut at: FilePlace,
    text: &str,
    change: AgentWrite,
) -> (ClientAnswer, Option<Wrote>) {
    let Some(file) = at.file.take() else {
        return write(door, at, text, &change).await;
    };
    let written = file.write(change, |stood, _| {
        let order = at.order(text, expect(stood));
        async move { door.write(order, text).await.map_err(NotWritten::Door) }
    });
    match written.await {
        Ok(version) => (
            Ok(ClientDone::Written(version.v)),
            Some(at.wrote(Some(digest(text)), Some(version))),
        ),
        Err(NotWritten::Door(error)) => not_written(at, &error),
        Err(NotWritten::Files(error)) => (Err(refused(&error, &at.path)), None),
    }
}

/// What the supervisor saw there must be what its version replaces: nothing, too.
fn expect(stood: Stood) -> FileExpect {
    match stood.expected {
        Expected::Missing => FileExpect::Missing,
        Expected::Digest(digest) => FileExpect::Holds(Digest(digest).to_string()),
    }
}

fn not_written(at: FilePlace, error: &FileError) -> (ClientAnswer, Option<Wrote>) {
    let said = described(error, &at.path, true);
    let wrote = error.is_unsure().then(|| at.wrote(None, None));
    (Err(said), wrote)
}

/// What an agent is told of a version that was not made.
fn refused(error: &FilesError, path: &str) -> ClientError {
    let why = match error {
        FilesError::Store(StoreError::Stale { current, .. }) => format!(
            "stale: {path} is at version {} now, made by {} ({}): read it again (read_file, or fs/read_text_file), and write what it should be then",
            current.v, current.origin.author.kind, current.cause
        ),
        FilesError::Store(StoreError::NoBase { v, .. }) => format!(
            "stale: {path} is not there, so version {v} cannot be what this was made from: use base 0 to make it"
        ),
        FilesError::Changed(_) => raced(path),
        FilesError::Disk { source, .. } => format!("{path}: {source}"),
        other => {
            let why =
                format!("{path}: nothing was written, because no version can be kept: {other}");
            return ClientError::new(ClientFault::Failed, why);
        }
    };
    ClientError::new(ClientFault::Invalid, why)
}

fn raced(path: &str) -> String {
    format!(
        "stale: {path} was changed by somebody else while this was done: read it again (read_file, or fs/read_text_file), and write what it should be then"
    )
}

/// What a file is to hold, and the digest of what it holds now.
async fn edited(
    door: &Door,
    whole: FileOrder,
    edit: &TextEdit,
    path: &str,
) -> Result<(String, Digest), ClientError> {
    let text = door.read(whole).await;
    let text = text.map_err(|error| described(&error, path, false))?;
    let changed = edit.apply(&text, CLIENT_FILE_BYTES);
    let changed = changed
        .map_err(|error| ClientError::new(ClientFault::Invalid, format!("{path}: {error}")))?;
    Ok((changed, Digest::of(text.as_bytes())))
}

fn described(error: &FileError, path: &str, is_write: bool) -> ClientError {
    let fault = match error {
        FileError::Failed(failure) => match failure.kind {
            FileFault::NotFound if is_write => {
                let what = format!("the directory of {path}");
                return ClientError::new(ClientFault::NotFound, what);
            }
            FileFault::NotFound => return ClientError::new(ClientFault::NotFound, path),
            FileFault::Changed => return ClientError::new(ClientFault::Invalid, raced(path)),
            FileFault::Refused => ClientFault::Invalid,
            FileFault::System | FileFault::Unsure => ClientFault::Failed,
        },
        FileError::NotBegun(_) | FileError::Lost(_) | FileError::TimedOut => ClientFault::Failed,
    };
    let may_be = match error {
        FileError::Lost(_) | FileError::TimedOut if is_write => "; it may have been written",
        _ => "",
    };
    ClientError::new(fault, format!("{path}: {error}{may_be}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_takes_the_place_of_what_the_supervisor_did_not_see() {
        let expect = |expected| expect(Stood { expected });
        assert_eq!(expect(Expected::Missing), FileExpect::Missing);
        let digest = Digest::of(b"\xff");
        assert_eq!(
            expect(Expected::Digest(digest.0)),
            FileExpect::Holds(digest.to_string())
        );
    }
}
