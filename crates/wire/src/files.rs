//! The messages between the supervisor and the process that reads and writes a file for it inside
//! the sandbox.
//!
//! One order by a socket, one report by a pipe, framed as in [`super::shim`]. The text itself follows its message as so
//! many raw bytes: it may be longer than a message. Must know no IO.

use serde::{Deserialize, Serialize};

/// The operation, below one directory and without following links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FileOperation {
    /// Read lines.
    Read {
        /// The directory that the operation never leaves: an absolute path inside.
        root: String,
        /// The file below it: plain components.
        path: String,
        /// The first line wanted, from 1.
        line: u64,
        /// The most lines wanted.
        limit: Option<u64>,
    },
    /// Replace a file, or make one. Its text follows.
    Write {
        /// The directory that the operation never leaves: an absolute path inside.
        root: String,
        /// The file below it: plain components.
        path: String,
        /// The length of the text.
        bytes: u64,
        /// The required state of the path until the text replaces it.
        expect: FilePrecondition,
    },
}

/// The required state of a path that is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FilePrecondition {
    /// Any state.
    Anything,
    /// No file.
    Missing,
    /// A file with this SHA-256, in hexadecimal.
    Holds(String),
}

/// The result of a file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FileReport {
    /// The lines; they follow.
    Text {
        /// Their length.
        bytes: u64,
    },
    /// The file has the text, and it is on the disk.
    Written,
    /// Nothing was read, or nothing has changed; but see [`FileFailureKind::Unsure`].
    Failed(FileFailure),
}

/// Why a file was not read or written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileFailure {
    /// The kind.
    pub kind: FileFailureKind,
    /// What is wrong, as a fragment about the file.
    pub what: String,
}

/// The kinds of [`FileFailure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFailureKind {
    /// It is not there, or the directory for it is not.
    NotFound,
    /// It is not a file that may be read or written this way.
    Refused,
    /// The path has another content than expected.
    Changed,
    /// The system refused the operation.
    System,
    /// The file has the text, but it is unknown whether the disk has it.
    Unsure,
}
