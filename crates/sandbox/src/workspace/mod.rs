//! The directories that a session works in: its copy of the workspace, its home, their changes and
//! sizes, and when they are removed.
//!
//! Every tree here may have been written by an agent, and may change while it is read. So nothing
//! is opened by a path below a tree: every access starts at a descriptor of its root and goes down
//! one name at a time without following a link ([`tree`]). Synchronous; callers run it where
//! blocking is allowed. Must not know sessions' states, protocols or policy.

pub mod branch;
pub mod cache;
pub mod copy;
pub mod file_list;
pub mod home;
pub mod host_access;
pub mod layer;
pub mod leftovers;
pub mod login;
pub mod manifest;
pub mod mask;
pub mod masked_paths;
pub mod overlay;
pub mod place;
mod policy_resolver;
pub mod protected_paths;
pub mod quarantine;
pub mod removal;
pub mod resolve;
pub mod secret_content;
pub mod size;
pub mod slice;
pub mod sweep;
pub mod tree;
pub mod watch;

pub use copy::{CopyError, CopyReport, Listing};
pub use file_list::{FileList, GitDir};
pub use home::{Home, HomeContents, HomeError, SourceError};
pub use manifest::{Change, ChangeKind, Changes, Manifest};
pub use mask::{MaskError, Masks};
pub use masked_paths::{MaskedPaths, WorkspaceView};
pub use overlay::{MergedView, Overlay, OverlayError};
pub use place::PlaceError;
pub use protected_paths::{ProtectedError, ProtectedMounts, ProtectedPaths};
pub use resolve::{PathNode, TreeResolver};
pub use size::{Size, filesystem_usage, measure};
pub use slice::SliceError;
pub use sweep::{SweepReport, sweep};
pub use tree::{Root, TreeError};
pub use watch::{Move, TreeChanges, TreeWatch};

use marshal_model::UntrustedText;

/// The owner of a tree on disk: an id of the supervisor's range, the same number for uid and gid.
/// Only a supervisor that runs as root changes owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user id on the host.
    pub uid: u32,
    /// The group id on the host.
    pub gid: u32,
}

/// A file name or path as text, without loss: bytes that are not UTF-8 become `\xNN`, and a
/// backslash is doubled.
#[must_use]
pub fn foreign_path(bytes: &[u8]) -> UntrustedText {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                out.push('\\');
            }
            out.push(c);
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    UntrustedText::new(out)
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_has_one_text_and_no_two_share_it() {
        let check = |name: &[u8], text: &str| assert_eq!(foreign_path(name).raw(), text);
        check(b"src/main.rs", "src/main.rs");
        check("é\n\u{1b}".as_bytes(), "é\n\u{1b}");
        check(b"a\xffb", "a\\xffb");
        check(b"a\\xffb", "a\\\\xffb");
        check(b"\xe2\x82", "\\xe2\\x82");
    }
}
