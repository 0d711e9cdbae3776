//! Names of a workspace that are hidden: the patterns, and why the hidden files may be unknown.
//!
//! Names that do not exist yet are the policy's concern. Must not know how a file is covered.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::secret_content::{clean_git_config, has_secret};
use super::tree::{Root, TreeError};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use marshal_model::UntrustedText;
use marshal_model::limits;

/// What to do about a workspace that cannot be searched.
const HINT: &str = "use mode \"copy\", a slice, or a mask with fewer patterns";

/// The compiled patterns of a mask.
#[derive(Debug, Clone, Default)]
pub struct Masks {
    hide: GlobSet,
    show: GlobSet,
}

/// Why the files to hide are unknown. Nothing may start then.
#[derive(Debug, thiserror::Error)]
pub enum MaskError {
    /// A pattern is invalid.
    #[error("workspace.mask: the pattern {0:?} cannot be read: {1}")]
    Pattern(String, String),
    /// More files than can be covered.
    #[error(
        "workspace.mask: more than {} files match the mask (the last one: {}); {HINT}",
        limits::MASKED_PATHS, .0.escape_for_display(200)
    )]
    TooMany(UntrustedText),
    /// More directories and links than can be pinned.
    #[error(
        "workspace.mask: more than {} directories and links lead to files that match the mask (the last one: {}); {HINT}",
        limits::MASK_PINNED_PATHS, .0.escape_for_display(200)
    )]
    TooManyPinned(UntrustedText),
    /// The tree is too large, or changed during the search.
    #[error(
        "workspace.mask: the workspace cannot be searched completely for files that match the mask: {0}; {HINT}, or mask = []"
    )]
    Incomplete(&'static str),
    /// A directory that the agent could open, but the supervisor cannot.
    #[error("workspace.mask: the directory {} cannot be read: give its owner read permission, or add it to the mask", .0.escape_for_display(200))]
    Unreadable(UntrustedText),
    /// A name that a plan cannot contain.
    #[error("workspace.mask: {} matches the mask, but its name is not UTF-8: rename it", .0.escape_for_display(200))]
    NotUtf8(UntrustedText),
    /// A link with a target that cannot be determined.
    #[error("workspace.mask: the target of the link {} cannot be hidden, because it leaves the workspace through another link or returns to it by an absolute path: point the link directly at its target, by a relative path", .0.escape_for_display(200))]
    Link(UntrustedText),
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl Masks {
    /// Compiles patterns. One without a slash matches a name anywhere, one with a slash a path
    /// below the workspace's root; a leading `!` excludes from what others hide. Letter case does not
    /// matter.
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
            // Everything in a directory is hidden with the directory.
            let text = text.strip_suffix("/**").unwrap_or(text);
            let text = text.strip_suffix('/').unwrap_or(text);
            let text = if text.contains('/') {
                text.to_owned()
            } else {
                format!("**/{text}")
            };
            let mut glob = GlobBuilder::new(&text);
            glob.literal_separator(true).case_insensitive(true);
            sets[set].add(glob.build().map_err(bad)?);
        }
        let [hide, show] = sets.map(|set| set.build());
        let bad = |error: globset::Error| MaskError::Pattern(String::new(), error.to_string());
        Ok(Self {
            hide: hide.map_err(bad)?,
            show: show.map_err(bad)?,
        })
    }

    /// Whether the mask hides nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hide.is_empty()
    }

    /// Whether the path itself is hidden, regardless of its parents.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.hide.is_match(path) && !self.show.is_match(path)
    }

    /// Whether the file itself is hidden because of what is in it.
    pub(super) fn matches_content(&self, root: &Root, path: &[u8]) -> bool {
        // The name of nearly every file ends this first.
        !self.is_empty()
            && has_secret(root, path)
            && !self.show.is_match(Path::new(OsStr::from_bytes(path)))
    }

    /// The same patterns for git, as pathspecs below the repository's root.
    ///
    /// # Errors
    /// [`MaskError::Pattern`]: git has no alternatives in braces.
    pub fn to_pathspecs(patterns: &[String]) -> Result<Vec<String>, MaskError> {
        let mut specs = Vec::new();
        for pattern in patterns {
            let (magic, text) = match pattern.strip_prefix('!') {
                Some(text) => ("exclude,top,glob,icase", text),
                None => ("top,glob,icase", pattern.as_str()),
            };
            if text.contains(['{', '}']) {
                let why = "git, which makes the worktree, has no alternatives in braces: write a pattern for each";
                return Err(MaskError::Pattern(pattern.clone(), why.to_owned()));
            }
            let text = text.strip_suffix("/**").unwrap_or(text);
            let text = text.strip_suffix('/').unwrap_or(text);
            let below = if text.contains('/') { "" } else { "**/" };
            // A glob of git's does not match what is in a directory that it matches.
            specs.push(format!(":({magic}){below}{text}"));
            specs.push(format!(":({magic}){below}{text}/**"));
        }
        Ok(specs)
    }

    /// Files of the workspace in whose place another text is shown, each with that text: the
    /// configuration of its repository, without its credentials.
    ///
    /// # Errors
    /// If that configuration cannot be read.
    pub fn find_replaced(&self, root: &Root) -> Result<Vec<(String, String)>, TreeError> {
        const CONFIG: &str = ".git/config";
        if self.is_empty() || self.show.is_match(CONFIG) {
            return Ok(Vec::new());
        }
        let text = clean_git_config(root)?;
        Ok(text
            .map(|text| (CONFIG.to_owned(), text))
            .into_iter()
            .collect())
    }

    /// Whether a file of the workspace at `root` is hidden, by its path or by what is in it.
    #[must_use]
    pub fn hides_in(&self, root: &Root, path: &[u8]) -> bool {
        self.hides(path) || self.matches_content(root, path)
    }

    /// Whether a path below the workspace is hidden, by itself or by a parent directory.
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
        check(&[".env"], "a/.ENV", true);
        check(&["*.pem"], "a/key.pem", true);
        check(&["a/*.pem"], "b/a/key.pem", false);
        check(&["secrets"], "secrets/x/y", true);
        check(&["secrets/"], "secrets/x", true);
        check(&["**/.ssh/**"], "a/.ssh", true);
        check(&["**/.ssh/**"], "a/.ssh/config", true);
        check(&["**/.ssh/**"], "a/ssh/config", false);
        check(&["**/*.pem", "!**/cacert.pem"], "a/cacert.pem", false);
        check(&[], ".env", false);
    }
}
