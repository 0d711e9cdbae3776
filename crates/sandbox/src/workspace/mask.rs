//! Names of a workspace that are hidden: the patterns, and why nobody knows what has them.
//!
//! Names that do not exist yet are the policy's. Must not know how a file is covered.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::tree::TreeError;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use marshal_model::UntrustedText;
use marshal_model::limits;

/// What to do about a workspace that cannot be looked through.
const HINT: &str = "use mode \"copy\", a slice, or a mask with fewer patterns";

/// Patterns of a mask, compiled.
#[derive(Debug, Clone, Default)]
pub struct Masks {
    hide: GlobSet,
    show: GlobSet,
}

/// Why nobody knows what must be hidden. Nothing may be started then.
#[derive(Debug, thiserror::Error)]
pub enum MaskError {
    /// A pattern that is none.
    #[error("workspace.mask: the pattern {0:?} cannot be read: {1}")]
    Pattern(String, String),
    /// More than can be covered.
    #[error(
        "workspace.mask: more than {} files have names that are to be hidden (the last one: {}); {HINT}",
        limits::MASKED_PATHS, .0.escape_for_display(200)
    )]
    TooMany(UntrustedText),
    /// More directories and links lead to what is hidden than can be held where they are.
    #[error(
        "workspace.mask: more than {} directories and links lead to what is to be hidden (the last one: {}); {HINT}",
        limits::MASK_PINNED_PATHS, .0.escape_for_display(200)
    )]
    TooManyPinned(UntrustedText),
    /// The tree is too large, or was changed meanwhile.
    #[error(
        "workspace.mask: the workspace cannot be looked through for names that are to be hidden: {0}; {HINT}, or mask = []"
    )]
    Incomplete(&'static str),
    /// A directory that the agent could open, and we cannot.
    #[error("workspace.mask: the directory {} cannot be looked into: give its owner the right to, or name it in the mask", .0.escape_for_display(200))]
    Unreadable(UntrustedText),
    /// A name that no plan can carry.
    #[error("workspace.mask: {} is to be hidden, and its name is not UTF-8: rename it", .0.escape_for_display(200))]
    NotUtf8(UntrustedText),
    /// A link that leads to a place which cannot be known here.
    #[error("workspace.mask: {} is a link that leaves the workspace over another link, or comes back to it by an absolute path, so what it leads to cannot be hidden: let it lead there directly, by a relative path", .0.escape_for_display(200))]
    Link(UntrustedText),
    /// The system said no.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl Masks {
    /// Compiles patterns: one without a slash is a name anywhere, one with a slash is below the
    /// workspace's root; a `!` before one shows what others hide.
    pub fn new(patterns: &[String]) -> Result<Self, MaskError> {
        let mut sets = [GlobSetBuilder::new(), GlobSetBuilder::new()];
        for pattern in patterns {
            let (set, text) = match pattern.strip_prefix('!') {
                Some(text) => (1, text),
                None => (0, pattern.as_str()),
            };
            let bad = |error: globset::Error| {
                MaskError::Pattern(pattern.clone(), error.kind().to_string())
            };
            let text = text.strip_suffix('/').unwrap_or(text);
            let text = if text.contains('/') {
                text.to_owned()
            } else {
                format!("**/{text}")
            };
            let mut glob = GlobBuilder::new(&text);
            sets[set].add(glob.literal_separator(true).build().map_err(bad)?);
        }
        let [hide, show] = sets.map(|set| set.build());
        let bad = |error: globset::Error| MaskError::Pattern(String::new(), error.to_string());
        Ok(Self {
            hide: hide.map_err(bad)?,
            show: show.map_err(bad)?,
        })
    }

    /// Whether nothing is ever hidden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hide.is_empty()
    }

    /// Whether the path itself is hidden; what is above it is not looked at.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.hide.is_match(path) && !self.show.is_match(path)
    }

    /// Whether a path below the workspace is hidden, by itself or by a directory above it.
    #[must_use]
    pub fn hides(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        !self.is_empty()
            && (self.matches(path) || ends.into_iter().any(|(end, _)| self.matches(&path[..end])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(patterns: &[&str]) -> Masks {
        let patterns: Vec<String> = patterns.iter().map(|&p| p.to_owned()).collect();
        Masks::new(&patterns).expect("patterns")
    }

    #[test]
    fn a_name_is_hidden_anywhere_and_a_path_where_it_is() {
        let check = |patterns: &[&str], path: &str, expect: bool| {
            let hides = masks(patterns).hides(path.as_bytes());
            assert_eq!(hides, expect, "{patterns:?} {path}");
        };
        check(&[".env"], ".env", true);
        check(&[".env"], "a/b/.env", true);
        check(&[".env"], ".env.example", false);
        check(&["*.pem"], "a/key.pem", true);
        check(&["a/*.pem"], "b/a/key.pem", false);
        check(&["secrets"], "secrets/x/y", true);
        check(&["secrets/"], "secrets/x", true);
        check(&["**/*.pem", "!**/cacert.pem"], "a/cacert.pem", false);
        check(&[], ".env", false);
    }
}
