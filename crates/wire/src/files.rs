//! The messages between the supervisor and the process that reads and writes a file for it inside
//! the sandbox.
//!
//! One order by a socket, one report by a pipe, framed as in [`super::shim`]. The text itself follows its message as so
//! many raw bytes: it may be longer than a message. Must know no IO.

use serde::{Deserialize, Serialize};

/// What is to be done, below one directory and through no link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FileOperation {
    /// Read lines.
    Read {
        /// The directory that nothing leaves: absolute, as seen inside.
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
        /// As above.
        root: String,
        /// As above.
        path: String,
        /// The length of the text.
        bytes: u64,
        /// What must stand there until the text takes its place.
        expect: FilePrecondition,
    },
}

/// What must stand where a file is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FilePrecondition {
    /// Whatever does.
    Anything,
    /// No file.
    Missing,
    /// A file with this SHA-256, in hexadecimal.
    Holds(String),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FileReport {
    /// The lines; they follow.
    Text {
        /// Their length.
        bytes: u64,
    },
    /// The file has the text, and so has the disk.
    Written,
    /// Nothing was read, or nothing has changed; but see [`FileFault::Unsure`].
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
    /// It is nothing that may be read or written so.
    Refused,
    /// Something else stands there than was expected.
    Changed,
    /// The system did not let us.
    System,
    /// The file has the text, but whether the disk has it nobody can say.
    Unsure,
}
