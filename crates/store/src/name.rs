//! Names of the store: a workspace's id, a file's path and id, the digest of content.
//!
//! Each has the one rule that says which texts it accepts. Must not know a database.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use marshal_model::ids::is_safe_token;
use marshal_model::limits;

/// Why a text is not a valid name of the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a workspace's id.
    #[error(
        "workspace {0:?} must match [A-Za-z0-9][A-Za-z0-9._-]{{0,127}} and must not be \"latest\""
    )]
    Workspace(String),
    /// Not a path of a file in a workspace.
    #[error("path {path:?} {wrong}: it must be relative to its workspace, like src/main.rs")]
    Path {
        /// The text, cut if it is long.
        path: String,
        /// What is wrong with it.
        wrong: &'static str,
    },
    /// A text that is empty, too long, or has a NUL.
    #[error(
        "the {what} must have 1 to {} bytes and no NUL",
        limits::STORE_NAME_BYTES
    )]
    Word {
        /// What the text is for.
        what: &'static str,
    },
}

/// The registered id of a workspace; never a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceId(Arc<str>);

impl WorkspaceId {
    /// Checks the pattern `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
    ///
    /// # Errors
    /// [`NameError::Workspace`]
    pub fn new(text: &str) -> Result<Self, NameError> {
        if is_safe_token(text) {
            Ok(Self(text.into()))
        } else {
            Err(NameError::Workspace(text.chars().take(160).collect()))
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A file's path below its workspace: relative, without `.` and `..`, in one spelling.
///
/// It comes from agents and clients, so it has no `Display`; `Debug` escapes it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilePath(Arc<str>);

impl FilePath {
    /// Reads a path; `a//b` and `./a/./b` become `a/b`.
    ///
    /// # Errors
    /// [`NameError::Path`] if it is absolute, leaves the workspace, names a directory, is not
    /// UTF-8, has a NUL, or is longer than [`limits::STORE_PATH_BYTES`].
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, NameError> {
        let bytes = path.as_ref();
        let bad = |wrong| NameError::Path {
            path: String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned(),
            wrong,
        };
        if bytes.len() > limits::STORE_PATH_BYTES {
            return Err(bad("is longer than 1024 bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))?;
        if text.contains('\0') {
            return Err(bad("has a NUL"));
        }
        if text.starts_with('/') {
            return Err(bad("is absolute"));
        }
        if text.ends_with('/') || text.ends_with("/.") {
            return Err(bad("names a directory"));
        }
        let mut parts = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(bad("leaves it with `..`")),
                part => parts.push(part),
            }
        }
        if parts.is_empty() {
            return Err(bad("names no file"));
        }
        Ok(Self(parts.join("/").into()))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A file's identity: it survives a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub Uuid);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The SHA-256 of content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Checks a text that is stored unchanged.
pub(super) fn check_word(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() || text.len() > limits::STORE_NAME_BYTES || text.contains('\0') {
        return Err(NameError::Word { what });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling_and_stays_below_its_workspace() {
        for (given, kept) in [
            ("a", "a"),
            ("./a//b/./c.txt", "a/b/c.txt"),
            ("..a/...", "..a/..."),
            (" ", " "),
        ] {
            assert_eq!(FilePath::new(given).unwrap().as_str(), kept);
        }
        let long = "x".repeat(limits::STORE_PATH_BYTES + 1);
        for bad in [
            "",
            ".",
            "/",
            "/etc/passwd",
            "..",
            "a/../b",
            "a/",
            "a/.",
            "a\0b",
            "./",
            &long,
        ] {
            assert!(FilePath::new(bad).is_err(), "{bad:?}");
        }
        assert!(FilePath::new(b"a\xff").is_err());
        let message = FilePath::new("a\u{1b}]0;x/../b").unwrap_err().to_string();
        assert!(!message.contains('\u{1b}'), "{message}");
    }
}
