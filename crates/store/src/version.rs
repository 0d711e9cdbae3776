//! What the store knows of a file: versions, who made them and why, and what is asked of it.
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
        /// An earlier version came back.
        Restore = "restore",
        /// It was found so on disk.
        Observed = "observed",
        /// The file was removed.
        Delete = "delete",
        /// The file has another path.
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
        /// Nobody known: it was found on disk.
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

    /// Nobody known.
    #[must_use]
    pub fn observed() -> Self {
        Self::new(AuthorKind::Observed, "")
    }
}

/// By whom and in which work a version is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Who.
    pub author: Author,
    /// The turn, if it is known.
    pub turn: Option<String>,
    /// The task, if it is known.
    pub task: Option<String>,
}

impl Origin {
    /// Made by this author, in no known turn or task.
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

/// From which version a write was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The file's current version must be this one.
    At(u64),
    /// There must be no such file, or one that was deleted.
    New,
    /// Whatever is there.
    Any,
}

/// What is to be kept of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The whole of it. Beyond [`limits::STORE_CONTENT_BYTES`] only digest and size are kept.
    Whole(Bytes),
    /// Too large to be held at all: its digest and size.
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

    /// What of it is kept.
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

/// A file as it is written or was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileData {
    /// What is in it.
    pub content: Content,
    /// Whether it may be run.
    pub exec: bool,
}

string_enum!(
    /// What the store has of a version's content.
    ContentState {
        /// All of it.
        Stored = "kept",
        /// Its digest and size only: it was too large.
        DigestOnly = "none",
        /// There is none: this version says that the file is gone.
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
    /// The digest of the content; none if the file is gone.
    pub digest: Option<Digest>,
    /// The size of the content.
    pub bytes: u64,
    /// What is held of the content.
    pub content_state: ContentState,
    /// Whether the file may be run.
    pub exec: bool,
    /// By whom and in which work it was made.
    pub origin: Origin,
    /// Why it was made.
    pub cause: Cause,
    /// The version that it was made from; none for the first.
    pub base: Option<u64>,
    /// When, in milliseconds since the Unix epoch; never before the file's version before it.
    pub at_ms: i64,
}

/// A file and its current version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Whether it is gone.
    pub deleted: bool,
    /// Its current version, which has its id and its path.
    pub current: Version,
}

/// How long versions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The newest versions of each file that are always kept; at least 1. Of a file that is gone
    /// nothing is kept always.
    pub keep_newest: u64,
    /// Younger ones are kept too, and files that are gone for less.
    pub keep_younger_than: Duration,
    /// Content in bytes beyond which older ones go although they are younger, oldest first, and then
    /// files that are gone; the newest of a file that is there never do.
    pub max_bytes: u64,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Versions that it removed.
    pub versions: u64,
    /// Files that were gone, and of which it removed everything.
    pub files: u64,
    /// Contents that no version has any more, and that it removed.
    pub blobs: u64,
    /// The bytes of these.
    pub bytes_freed: u64,
    /// The bytes of content that are left.
    pub bytes_left: u64,
    /// There is more to remove: sweep again.
    pub has_more: bool,
}
