//! One file that is read or written for the agent, inside its walls.
//!
//! Owns what is said of it, and what is known of it afterwards. Must not know who wanted it, nor when
//! its turn is.

use crate::launch::{Door, FileError};
use crate::limits::CLIENT_FILE_BYTES;
use crate::model::tool::digest;
use crate::model::{ClientAnswer, ClientDone, ClientError, ClientFault, TextEdit};
use crate::wire::files::{FileFault, FileOrder};

/// A file that was written, or may have been.
#[derive(Debug)]
pub(crate) struct Wrote {
    /// By which tool or method.
    pub(super) tool: &'static str,
    /// As the agent names it.
    pub(super) path: String,
    /// SHA-256 of what it holds, if that is known.
    pub(super) sha256: Option<String>,
}

/// A file to be read or written.
#[derive(Debug)]
pub(super) struct FileWork {
    /// By which tool or method.
    pub(super) tool: &'static str,
    /// As the agent names it.
    pub(super) path: String,
    /// The workspace, as seen inside.
    pub(super) root: String,
    /// The file below it.
    pub(super) below: String,
    pub(super) act: Act,
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
    Write(String),
    /// A text in it is changed.
    Edit(TextEdit),
}

/// Reads or writes a file; beside the answer what was written, or may have been.
pub(super) async fn carry_out(door: &Door, work: FileWork) -> (ClientAnswer, Option<Wrote>) {
    let FileWork {
        tool,
        path,
        root,
        below,
        act,
    } = work;
    let lines = |line, limit| FileOrder::Read {
        root: root.clone(),
        path: below.clone(),
        line,
        limit,
    };
    let (text, expect) = match act {
        Act::Read { line, limit } => {
            let read = door.read(lines(line, limit)).await;
            let read = read.map(ClientDone::Text);
            return (read.map_err(|error| described(&error, &path, false)), None);
        }
        Act::Write(text) => (text, None),
        Act::Edit(edit) => match edited(door, lines(1, None), &edit, &path).await {
            Ok((text, before)) => (text, Some(before)),
            Err(error) => return (Err(error), None),
        },
    };
    let order = FileOrder::Write {
        root: root.clone(),
        path: below.clone(),
        bytes: text.len() as u64,
        expect,
    };
    let wrote = |sha256| {
        Some(Wrote {
            tool,
            path: path.clone(),
            sha256,
        })
    };
    match door.write(order, &text).await {
        Ok(()) => (Ok(ClientDone::Nothing), wrote(Some(digest(&text)))),
        Err(error) => {
            let said = described(&error, &path, true);
            (Err(said), error.is_unsure().then(|| wrote(None)).flatten())
        }
    }
}

/// What a file is to hold, and the digest of what it holds now.
async fn edited(
    door: &Door,
    whole: FileOrder,
    edit: &TextEdit,
    path: &str,
) -> Result<(String, String), ClientError> {
    let text = door.read(whole).await;
    let text = text.map_err(|error| described(&error, path, false))?;
    let changed = edit.apply(&text, CLIENT_FILE_BYTES);
    let changed = changed
        .map_err(|error| ClientError::new(ClientFault::Invalid, format!("{path}: {error}")))?;
    Ok((changed, digest(&text)))
}

fn described(error: &FileError, path: &str, is_write: bool) -> ClientError {
    let fault = match error {
        FileError::Failed(failure) => match failure.kind {
            FileFault::NotFound if is_write => {
                let what = format!("the directory of {path}");
                return ClientError::new(ClientFault::NotFound, what);
            }
            FileFault::NotFound => return ClientError::new(ClientFault::NotFound, path),
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
