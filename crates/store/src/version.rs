//! What the store knows of a file: versions with their authors and causes, and the data of a write.
//!
//! Must not know a database.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::name::{Digest, FileId, FilePath, NameError, WorkspaceId, check_word};
use marshal_model::limits;
use marshal_model::{UntrustedText, string_enum};

string_enum!(
    /// Why a version was made.
    Cause {
        /// The whole file was written.
        Write = "write",
        /// A part of it was changed.
        Edit = "edit",
        /// An earlier version was restored.
        Restore = "restore",
        /// A change on disk was observed.
        Observed = "observed",
        /// The file was removed.
        Delete = "delete",
        /// The file was renamed.
        Rename = "rename",
    }
);

string_enum!(
    /// What kind of author a version has.
    AuthorKind {
        /// A session of this program.
        Session = "session",
        /// An agent by its name.
        Agent = "agent",
        /// A person.
        Person = "person",
        /// Unknown: the change was observed on disk.
        Observed = "observed",
    }
);

/// Who made a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// What kind of author.
    pub kind: AuthorKind,
    /// Its name or id; empty for [`AuthorKind::Observed`].
    pub name: UntrustedText,
}

impl Author {
    /// An author with a name.
    #[must_use]
    pub fn new(kind: AuthorKind, name: &str) -> Self {
        Self {
            kind,
            name: UntrustedText::new(name),
        }
    }

    /// An unknown author.
    #[must_use]
    pub fn observed() -> Self {
        Self::new(AuthorKind::Observed, "")
    }
}

/// The origin of a version: its author, turn and task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The author of the version.
    pub author: Author,
    /// The turn, if it is known.
    pub turn: Option<String>,
    /// The task, if it is known.
    pub task: Option<String>,
}

impl Origin {
    /// The origin with this author, without a turn or task.
    #[must_use]
    pub fn new(author: Author) -> Self {
        Self {
            author,
            turn: None,
            task: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), NameError> {
        if self.author.kind != AuthorKind::Observed || !self.author.name.is_empty() {
            check_word("author's name", self.author.name.raw())?;
        }
        for (what, text) in [("turn's id", &self.turn), ("task's id", &self.task)] {
            if let Some(text) = text {
                check_word(what, text)?;
            }
        }
        Ok(())
    }
}

/// The base of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The file's current version must be this one.
    At(u64),
    /// There must be no such file, or one that was deleted.
    New,
    /// Any state is accepted.
    Any,
}

/// The content of a file to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The whole of it. Beyond [`limits::STORE_CONTENT_BYTES`] only digest and size are kept.
    Whole(Bytes),
    /// Too large to read at all: its digest and size.
    DigestOnly {
        /// The digest of the whole.
        digest: Digest,
        /// Its size in bytes.
        bytes: u64,
    },
}

impl Content {
    /// Its digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        match self {
            Self::Whole(content) => Digest::of(content),
            Self::DigestOnly { digest, .. } => *digest,
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Whole(content) => content.len() as u64,
            Self::DigestOnly { bytes, .. } => *bytes,
        }
    }

    /// What of it is stored.
    pub(super) fn storable_bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(content) if content.len() <= limits::STORE_CONTENT_BYTES => Some(content),
            _ => None,
        }
    }
}

impl From<&[u8]> for Content {
    fn from(content: &[u8]) -> Self {
        Self::Whole(Bytes::copy_from_slice(content))
    }
}

/// The state of a file that is written or was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileData {
    /// What is in it.
    pub content: Content,
    /// Whether it is executable.
    pub exec: bool,
}

string_enum!(
    /// What the store has of a version's content.
    ContentState {
        /// All of it.
        Stored = "kept",
        /// Its digest and size only: it was too large.
        DigestOnly = "none",
        /// There is none: this version marks the file as deleted.
        Deleted = "gone",
    }
);

/// One immutable version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its own id.
    pub id: Uuid,
    /// The file.
    pub file: FileId,
    /// The file's path in this version.
    pub path: FilePath,
    /// 1, 2, 3 and so on, without a gap.
    pub v: u64,
    /// The digest of the content; `None` if the file is deleted.
    pub digest: Option<Digest>,
    /// The size of the content.
    pub bytes: u64,
    /// What is stored of the content.
    pub content_state: ContentState,
    /// Whether the file is executable.
    pub exec: bool,
    /// Its author, turn and task.
    pub origin: Origin,
    /// Why it was made.
    pub cause: Cause,
    /// The version that it was made from; `None` for the first.
    pub base: Option<u64>,
    /// When, in milliseconds since the Unix epoch; never before the file's version before it.
    pub at_ms: i64,
}

/// A file and its current version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Whether it is deleted.
    pub deleted: bool,
    /// Its current version, which has its id and its path.
    pub current: Version,
}

/// How long versions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The newest versions of each file that are always kept; at least 1. Nothing is always
    /// kept of a deleted file.
    pub keep_newest: u64,
    /// Younger versions are kept too, and files deleted more recently.
    pub keep_younger_than: Duration,
    /// The size of all content in bytes above which versions are removed although they are younger,
    /// oldest first, and then deleted files. The newest versions of an existing file are never
    /// removed.
    pub max_bytes: u64,
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Versions that it removed.
    pub versions: u64,
    /// Deleted files that it removed completely.
    pub files: u64,
    /// Contents without a version that it removed.
    pub blobs: u64,
    /// Their size in bytes.
    pub bytes_freed: u64,
    /// The size of the remaining content in bytes.
    pub bytes_left: u64,
    /// Whether there is more to remove, so that the caller sweeps again.
    pub has_more: bool,
}
