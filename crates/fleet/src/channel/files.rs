//! One file operation for the agent, inside its sandbox.
//!
//! Owns the reply to the agent and the record of what was written. Must not know who requested it,
//! nor when it may run.
//!
//! Only this module knows what was written, so it also records the file's version
//! (`fleet/files/agent.rs`).

use std::sync::Arc;

use super::outside_write::OutsideWrites;
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
    /// The tool or method that wrote it.
    pub(super) tool: &'static str,
    /// The path as the agent names it.
    pub(super) path: String,
    /// SHA-256 of the content, if known.
    pub(super) sha256: Option<String>,
    /// The new version, where versions are recorded.
    pub(super) version: Option<FileVersion>,
}

/// A file operation.
#[derive(Debug)]
pub(super) struct FileWork {
    /// The file, and the tool that names it.
    pub(super) at: FilePlace,
    pub(super) act: FileAction,
}

/// The file of an operation.
#[derive(Debug)]
pub(super) struct FilePlace {
    /// The tool or method that names it.
    pub(super) tool: &'static str,
    /// The path as the agent names it.
    pub(super) path: String,
    /// The workspace path inside the sandbox.
    pub(super) root: String,
    /// The path below the workspace.
    pub(super) below: String,
    /// The file's versions, where they are recorded.
    pub(super) file: Option<AgentFile>,
    /// What is written outside of the sandbox; `None`: nothing is.
    pub(super) outside: Option<Arc<OutsideWrites>>,
}

/// The operation on a file.
#[derive(Debug)]
pub(super) enum FileAction {
    /// Read lines.
    Read {
        /// The first line, from 1.
        line: u64,
        /// The maximum number of lines; `None`: all.
        limit: Option<u64>,
    },
    /// Replace the whole content.
    Write {
        /// The new content.
        text: String,
        /// The version that the agent edited; `None` if it does not say.
        base: Option<u64>,
    },
    /// Replace a text in the file.
    Edit {
        /// The replacement.
        edit: TextEdit,
        /// The version that the agent edited; `None` if it does not say.
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

/// Runs a file operation. Gives the reply, and the file if it was written or may have been.
pub(super) async fn run_file_work(
    entry: &SandboxEntry,
    work: FileWork,
) -> (ClientResult, Option<WrittenFile>) {
    let FileWork { at, act } = work;
    let change = match act {
        FileAction::Read { line, limit } => return (read(entry, &at, line, limit).await, None),
        FileAction::Write { text, base } => AgentWrite {
            text,
            base,
            cause: Cause::Write,
            expected_digest: None,
        },
        FileAction::Edit { edit, base } => {
            match apply_edit(entry, at.read_request(1, None), &edit, &at.path).await {
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
    if let Some(outside) = at.outside.clone() {
        return write_outside(entry, at, &outside, change).await;
    }
    match &at.file {
        None => write(entry, at, &text, &change).await,
        Some(_) => write_version(entry, at, &text, change).await,
    }
}

impl FilePlace {
    fn read_request(&self, line: u64, limit: Option<u64>) -> FileOperation {
        let outside = self.outside.as_ref();
        let dir = outside.map_or("", |outside| outside.visible_dir(&self.below));
        let (root, path) = match self.below.strip_prefix(dir) {
            Some(rest) if !dir.is_empty() => (
                format!("{}/{dir}", self.root),
                rest.trim_start_matches('/').to_owned(),
            ),
            _ => (self.root.clone(), self.below.clone()),
        };
        FileOperation::Read {
            root,
            path,
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

/// Reads a file. The version is looked up before the content is read: the content is then that
/// version or a later one, and in the later case a write based on it is reported as stale.
async fn read(entry: &SandboxEntry, at: &FilePlace, line: u64, limit: Option<u64>) -> ClientResult {
    let v = match &at.file {
        Some(file) => file.current_version().await,
        None => None,
    };
    let text = entry.read(at.read_request(line, limit)).await;
    let text = text.map_err(|error| {
        let error = describe_file_error(&error, &at.path, false);
        // The agent has seen that the file is gone, so it may create it again.
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

/// Writes a file without versions.
async fn write(
    entry: &SandboxEntry,
    at: FilePlace,
    text: &str,
    change: &AgentWrite,
) -> (ClientResult, Option<WrittenFile>) {
    if change.base.is_some() {
        let path = &at.path;
        let why =
            format!("{path}: this file has no versions, so base does not apply: leave base out");
        return (Err(ClientError::new(ClientErrorKind::Invalid, why)), None);
    }
    let expect = match change.expected_digest {
        Some(digest) => FilePrecondition::Holds(digest.to_string()),
        None => FilePrecondition::Anything,
    };
    match entry.write(at.write_request(text, expect), text).await {
        Ok(()) => (
            Ok(ClientOutput::Empty),
            Some(at.into_written_file(Some(sha256_hex(text)), None)),
        ),
        Err(error) => write_failure(at, &error),
    }
}

/// Writes a file with versions: the new version is stored first, then the file is written.
async fn write_version(
    entry: &SandboxEntry,
    mut at: FilePlace,
    text: &str,
    change: AgentWrite,
) -> (ClientResult, Option<WrittenFile>) {
    let Some(file) = at.file.take() else {
        return write(entry, at, text, &change).await;
    };
    let written = file.write(change, |prior, _| {
        let request = at.write_request(text, expected_content(prior));
        async move {
            entry
                .write(request, text)
                .await
                .map_err(WriteError::Sandbox)
        }
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

/// Writes a file of a workspace that the agent sees read-only: the new version is stored first, then
/// the supervisor writes the file, where the agent sees it at once. It must be a file that the agent
/// sees as it is.
async fn write_outside(
    entry: &SandboxEntry,
    mut at: FilePlace,
    outside: &OutsideWrites,
    change: AgentWrite,
) -> (ClientResult, Option<WrittenFile>) {
    if let Err(refused) = outside.check(&at.below, &at.path) {
        return (Err(refused), None);
    }
    let Some(file) = at.file.take() else {
        let why = format!(
            "{}: the workspace is read-only, and its files have no versions here: a daemon (marshal up) keeps them",
            at.path
        );
        return (Err(ClientError::new(ClientErrorKind::Invalid, why)), None);
    };
    let seen = match entry.read(at.read_request(1, None)).await {
        Ok(text) => ExpectedContent::Digest(Digest::of(text.as_bytes()).0),
        Err(FileError::Failed(failure)) if failure.kind == FileFailureKind::NotFound => {
            ExpectedContent::Missing
        }
        Err(error) => return (Err(describe_file_error(&error, &at.path, false)), None),
    };
    let sha256 = sha256_hex(&change.text);
    match file.write_outside(change, seen).await {
        Ok(version) => (
            Ok(ClientOutput::Written(version.version)),
            Some(at.into_written_file(Some(sha256), Some(version))),
        ),
        Err(error) => (Err(describe_version_error(&error, &at.path)), None),
    }
}

/// The file must still be in the state that the supervisor recorded, missing included.
fn expected_content(prior: PriorContent) -> FilePrecondition {
    match prior.expected {
        ExpectedContent::Missing => FilePrecondition::Missing,
        ExpectedContent::Digest(digest) => FilePrecondition::Holds(Digest(digest).to_string()),
    }
}

fn write_failure(at: FilePlace, error: &FileError) -> (ClientResult, Option<WrittenFile>) {
    let error_reply = describe_file_error(error, &at.path, true);
    let wrote = error
        .may_be_written()
        .then(|| at.into_written_file(None, None));
    (Err(error_reply), wrote)
}

/// The error message for a version that was not stored.
fn describe_version_error(error: &FilesError, path: &str) -> ClientError {
    let why = match error {
        FilesError::Store(StoreError::Stale { current, .. }) => format!(
            "stale: {path} is at version {} now, made by {} ({}): read it again (read_file, or fs/read_text_file), then make your change to that version",
            current.v, current.origin.author.kind, current.cause
        ),
        FilesError::Store(StoreError::NoBase { v, .. }) => format!(
            "stale: {path} does not exist, so version {v} cannot be its base: use base 0 to create it"
        ),
        FilesError::Changed(_) => describe_conflict(path),
        FilesError::Disk { source, .. } => format!("{path}: {source}"),
        other => {
            let why = format!(
                "{path}: nothing was written, because its version cannot be stored: {other}"
            );
            return ClientError::new(ClientErrorKind::Failed, why);
        }
    };
    ClientError::new(ClientErrorKind::Invalid, why)
}

fn describe_conflict(path: &str) -> String {
    format!(
        "stale: {path} was changed by somebody else during this call: read it again (read_file, or fs/read_text_file), then make your change to that version"
    )
}

/// The new content of a file, and the digest of the current one.
async fn apply_edit(
    entry: &SandboxEntry,
    whole: FileOperation,
    edit: &TextEdit,
    path: &str,
) -> Result<(String, Digest), ClientError> {
    let text = entry
        .read(whole)
        .await
        .map_err(|error| describe_file_error(&error, path, false))?;
    let changed = edit
        .apply(&text, CLIENT_FILE_BYTES)
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
    let suffix = match error {
        FileError::Lost(_) | FileError::TimedOut if is_write => "; it may have been written",
        _ => "",
    };
    ClientError::new(fault, format!("{path}: {error}{suffix}"))
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
