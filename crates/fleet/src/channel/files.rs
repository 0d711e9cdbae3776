//! One file that is read or written for the agent, inside its walls.
//!
//! Owns what is said of it, and what is known of it afterwards. Must not know who wanted it, nor when
//! its turn is.
//!
//! This is the one place that knows what was written, so it also records the file's version
//! (`fleet/files/agent.rs`).

use crate::files::{AgentFile, AgentWrite, FilesError, PriorContent};
use marshal_launch::{FileError, SandboxEntry};
use marshal_model::limits::CLIENT_FILE_BYTES;
use marshal_model::tool::sha256_hex;
use marshal_model::{
    ClientError, ClientErrorKind, ClientOutput, ClientResult, FileVersion, TextEdit,
};
use marshal_sandbox::workspace::host_access::ExpectedContent;
use marshal_store::{Cause, Digest, StoreError};
use marshal_wire::files::{FileFailureKind, FileOperation, FilePrecondition};

/// A file that was written, or may have been.
#[derive(Debug)]
pub(crate) struct WrittenFile {
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
    pub(super) act: FileAction,
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
pub(super) enum FileAction {
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
enum WriteError {
    Files(FilesError),
    Sandbox(FileError),
}

impl From<FilesError> for WriteError {
    fn from(error: FilesError) -> Self {
        Self::Files(error)
    }
}

/// Reads or writes a file; beside the answer what was written, or may have been.
pub(super) async fn run_file_work(
    door: &SandboxEntry,
    work: FileWork,
) -> (ClientResult, Option<WrittenFile>) {
    let FileWork { at, act } = work;
    let change = match act {
        FileAction::Read { line, limit } => return (read(door, &at, line, limit).await, None),
        FileAction::Write { text, base } => AgentWrite {
            text,
            base,
            cause: Cause::Write,
            expected_digest: None,
        },
        FileAction::Edit { edit, base } => {
            match apply_edit(door, at.read_request(1, None), &edit, &at.path).await {
                Ok((text, before)) => AgentWrite {
                    text,
                    base,
                    cause: Cause::Edit,
                    expected_digest: Some(before),
                },
                Err(error) => return (Err(error), None),
            }
        }
    };
    let text = change.text.clone();
    match &at.file {
        None => write(door, at, &text, &change).await,
        Some(_) => write_version(door, at, &text, change).await,
    }
}

impl FilePlace {
    fn read_request(&self, line: u64, limit: Option<u64>) -> FileOperation {
        FileOperation::Read {
            root: self.root.clone(),
            path: self.below.clone(),
            line,
            limit,
        }
    }

    fn write_request(&self, text: &str, expect: FilePrecondition) -> FileOperation {
        FileOperation::Write {
            root: self.root.clone(),
            path: self.below.clone(),
            bytes: text.len() as u64,
            expect,
        }
    }

    fn into_written_file(
        self,
        sha256: Option<String>,
        version: Option<FileVersion>,
    ) -> WrittenFile {
        WrittenFile {
            tool: self.tool,
            path: self.path,
            sha256,
            version,
        }
    }
}

/// The version is looked at first: what is read is that one, or a later one, and then a write that
/// is made from it is stale.
async fn read(door: &SandboxEntry, at: &FilePlace, line: u64, limit: Option<u64>) -> ClientResult {
    let v = match &at.file {
        Some(file) => file.current_version().await,
        None => None,
    };
    let text = door.read(at.read_request(line, limit)).await;
    let text = text.map_err(|error| {
        let error = describe_file_error(&error, &at.path, false);
        // That it is gone is seen, too: it may be made again.
        if let (ClientErrorKind::NotFound, Some(v), Some(file)) = (error.kind, v, &at.file) {
            file.mark_seen(v);
        }
        error
    })?;
    match (v, &at.file) {
        (Some(v), Some(file)) => {
            file.mark_seen(v);
            Ok(ClientOutput::Read { text, version: v })
        }
        _ => Ok(ClientOutput::Text(text)),
    }
}

/// Writes a file that has no versions.
async fn write(
    door: &SandboxEntry,
    at: FilePlace,
    text: &str,
    change: &AgentWrite,
) -> (ClientResult, Option<WrittenFile>) {
    if change.base.is_some() {
        let path = &at.path;
        let why = format!("{path}: no versions are kept of it, so it has no base: leave base out");
        return (Err(ClientError::new(ClientErrorKind::Invalid, why)), None);
    }
    let expect = match change.expected_digest {
        Some(digest) => FilePrecondition::Holds(digest.to_string()),
        None => FilePrecondition::Anything,
    };
    match door.write(at.write_request(text, expect), text).await {
        Ok(()) => (
            Ok(ClientOutput::Empty),
            Some(at.into_written_file(Some(sha256_hex(text)), None)),
        ),
        Err(error) => write_failure(at, &error),
    }
}

/// Writes a file that has versions: first its next one, then the file.
async fn write_version(
    door: &SandboxEntry,
    mut at: FilePlace,
    text: &str,
    change: AgentWrite,
) -> (ClientResult, Option<WrittenFile>) {
    let Some(file) = at.file.take() else {
        return write(door, at, text, &change).await;
    };
    let written = file.write(change, |stood, _| {
        let order = at.write_request(text, expected_content(stood));
        async move { door.write(order, text).await.map_err(WriteError::Sandbox) }
    });
    match written.await {
        Ok(version) => (
            Ok(ClientOutput::Written(version.version)),
            Some(at.into_written_file(Some(sha256_hex(text)), Some(version))),
        ),
        Err(WriteError::Sandbox(error)) => write_failure(at, &error),
        Err(WriteError::Files(error)) => (Err(describe_version_error(&error, &at.path)), None),
    }
}

/// What the supervisor saw there must be what its version replaces: nothing, too.
fn expected_content(stood: PriorContent) -> FilePrecondition {
    match stood.expected {
        ExpectedContent::Missing => FilePrecondition::Missing,
        ExpectedContent::Digest(digest) => FilePrecondition::Holds(Digest(digest).to_string()),
    }
}

fn write_failure(at: FilePlace, error: &FileError) -> (ClientResult, Option<WrittenFile>) {
    let said = describe_file_error(error, &at.path, true);
    let wrote = error
        .may_be_written()
        .then(|| at.into_written_file(None, None));
    (Err(said), wrote)
}

/// What an agent is told of a version that was not made.
fn describe_version_error(error: &FilesError, path: &str) -> ClientError {
    let why = match error {
        FilesError::Store(StoreError::Stale { current, .. }) => format!(
            "stale: {path} is at version {} now, made by {} ({}): read it again (read_file, or fs/read_text_file), and write what it should be then",
            current.v, current.origin.author.kind, current.cause
        ),
        FilesError::Store(StoreError::NoBase { v, .. }) => format!(
            "stale: {path} is not there, so version {v} cannot be what this was made from: use base 0 to make it"
        ),
        FilesError::Changed(_) => describe_conflict(path),
        FilesError::Disk { source, .. } => format!("{path}: {source}"),
        other => {
            let why =
                format!("{path}: nothing was written, because no version can be kept: {other}");
            return ClientError::new(ClientErrorKind::Failed, why);
        }
    };
    ClientError::new(ClientErrorKind::Invalid, why)
}

fn describe_conflict(path: &str) -> String {
    format!(
        "stale: {path} was changed by somebody else while this was done: read it again (read_file, or fs/read_text_file), and write what it should be then"
    )
}

/// What a file is to hold, and the digest of what it holds now.
async fn apply_edit(
    door: &SandboxEntry,
    whole: FileOperation,
    edit: &TextEdit,
    path: &str,
) -> Result<(String, Digest), ClientError> {
    let text = door.read(whole).await;
    let text = text.map_err(|error| describe_file_error(&error, path, false))?;
    let changed = edit.apply(&text, CLIENT_FILE_BYTES);
    let changed = changed
        .map_err(|error| ClientError::new(ClientErrorKind::Invalid, format!("{path}: {error}")))?;
    Ok((changed, Digest::of(text.as_bytes())))
}

fn describe_file_error(error: &FileError, path: &str, is_write: bool) -> ClientError {
    let fault = match error {
        FileError::Failed(failure) => match failure.kind {
            FileFailureKind::NotFound if is_write => {
                let what = format!("the directory of {path}");
                return ClientError::new(ClientErrorKind::NotFound, what);
            }
            FileFailureKind::NotFound => return ClientError::new(ClientErrorKind::NotFound, path),
            FileFailureKind::Changed => {
                return ClientError::new(ClientErrorKind::Invalid, describe_conflict(path));
            }
            FileFailureKind::Refused => ClientErrorKind::Invalid,
            FileFailureKind::System | FileFailureKind::Unsure => ClientErrorKind::Failed,
        },
        FileError::NotStarted(_) | FileError::Lost(_) | FileError::TimedOut => {
            ClientErrorKind::Failed
        }
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
        let expect = |expected| expected_content(PriorContent { expected });
        assert_eq!(expect(ExpectedContent::Missing), FilePrecondition::Missing);
        let digest = Digest::of(b"\xff");
        assert_eq!(
            expect(ExpectedContent::Digest(digest.0)),
            FilePrecondition::Holds(digest.to_string())
        );
    }
}
