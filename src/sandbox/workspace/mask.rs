//! Names of a workspace that are hidden: which files and directories have them now.
//!
//! What is found is covered inside, so a look that saw not everything is an error, never a shorter
//! list. Names that do not exist yet are the policy's. Must not know how a file is covered.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::foreign_path;
use super::tree::{Bounds, Entry, Kind, Root, Step, TreeError, walk};
use crate::limits;
use crate::model::Foreign;

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
        limits::MASKED, .0.show(200)
    )]
    TooMany(Foreign),
    /// The tree is too large, or was changed meanwhile.
    #[error(
        "workspace.mask: the workspace cannot be looked through for names that are to be hidden: {0}; {HINT}, or mask = []"
    )]
    Incomplete(&'static str),
    /// A directory that the agent could open, and we cannot.
    #[error("workspace.mask: the directory {} cannot be looked into: give its owner the right to, or name it in the mask", .0.show(200))]
    Closed(Foreign),
    /// A name that no plan can carry.
    #[error("workspace.mask: {} is to be hidden, and its name is not UTF-8: rename it", .0.show(200))]
    NotUtf8(Foreign),
    /// A link that leads to a place which cannot be known here.
    #[error("workspace.mask: {} is a link into the sandbox, and what it leads to cannot be hidden: make it relative", .0.show(200))]
    Link(Foreign),
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
    fn has(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.hide.is_match(path) && !self.show.is_match(path)
    }

    /// Whether a path below the workspace is hidden, by itself or by a directory above it.
    #[must_use]
    pub fn hides(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        !self.is_empty()
            && (self.has(path) || ends.into_iter().any(|(end, _)| self.has(&path[..end])))
    }

    /// The files and directories below `root` that have such a name now, as paths below it. With
    /// `within`, only there. What is in the `.git` at the top is git's and never hidden.
    ///
    /// # Errors
    /// See [`MaskError`]: whatever keeps this from being all of them.
    pub fn find(&self, root: &Root, within: &[String]) -> Result<Vec<String>, MaskError> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let owner = root.meta()?.uid;
        let mut found: Vec<String> = Vec::new();
        let mut failed = None;
        let walked = walk(root, Bounds::default(), &mut |entry| {
            if !is_within(entry.path, within) || entry.path == b".git" {
                return Step::Pass;
            }
            match self.look(root, entry, owner) {
                Ok(Looked::Shown) => Step::Enter,
                Ok(Looked::Nothing) => Step::Pass,
                Ok(Looked::Hidden(path)) => {
                    if found.len() == limits::MASKED {
                        failed = Some(MaskError::TooMany(foreign_path(entry.path)));
                        return Step::Stop;
                    }
                    found.push(path);
                    Step::Pass
                }
                Err(error) => {
                    failed = Some(error);
                    Step::Stop
                }
            }
        })
        .map_err(|error| TreeError::at_path("list", root.path(), error))?;
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(cut) = walked.cut {
            use super::tree::Cut;
            return Err(MaskError::Incomplete(match cut {
                Cut::Entries => "it has too many files",
                Cut::Depth => "it has too many levels",
                Cut::Time => "that takes too long",
                Cut::Moved | Cut::Visitor => "it was changed meanwhile",
            }));
        }
        found.sort();
        found.dedup();
        let all = found.clone();
        found.retain(|path| {
            let above = |other: &String| other != path && Path::new(path).starts_with(other);
            !all.iter().any(above)
        });
        Ok(found)
    }

    fn look(&self, root: &Root, entry: &Entry<'_>, owner: u32) -> Result<Looked, MaskError> {
        let named = || foreign_path(entry.path);
        if !self.has(entry.path) {
            // The agent is this owner inside, and could give itself the right.
            let closed = entry.meta.kind == Kind::Dir
                && entry.meta.uid == owner
                && entry.meta.mode & 0o500 != 0o500;
            return if closed {
                Err(MaskError::Closed(named()))
            } else {
                Ok(Looked::Shown)
            };
        }
        let path = match entry.meta.kind {
            Kind::Link => match leads_to(root, entry.path)? {
                Some(path) => path,
                None => return Ok(Looked::Nothing),
            },
            _ => PathBuf::from(OsStr::from_bytes(entry.path)),
        };
        let text = path.into_os_string().into_string();
        text.map(Looked::Hidden)
            .map_err(|_| MaskError::NotUtf8(named()))
    }
}

/// What became of one entry.
enum Looked {
    /// It has no such name.
    Shown,
    /// This must be covered.
    Hidden(String),
    /// A link with such a name that leads nowhere inside.
    Nothing,
}

/// Whether a path lies in the slice, or on the way to it.
fn is_within(path: &[u8], within: &[String]) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    within.is_empty()
        || within
            .iter()
            .any(|part| path.starts_with(part) || Path::new(part).starts_with(path))
}

/// Where below the root a link leads, if it leads to something there.
fn leads_to(root: &Root, link: &[u8]) -> Result<Option<PathBuf>, MaskError> {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let held = match rustix::fs::openat2(root, link, flags, Mode::empty(), resolve) {
        Ok(held) => held,
        // It leads out of the workspace: inside there is only what the sandbox has there.
        Err(Errno::XDEV) => {
            let text = rustix::fs::readlinkat(root, link, Vec::new())
                .map_err(|errno| TreeError::at("read the link", link, errno))?;
            let inside = crate::sandbox::WORKSPACE_INSIDE.as_bytes();
            return if text.as_bytes().starts_with(inside) {
                Err(MaskError::Link(foreign_path(link)))
            } else {
                Ok(None)
            };
        }
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
        Err(errno) => return Err(TreeError::at("follow the link", link, errno).into()),
    };
    let name = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}"));
    let failed = |error| TreeError::at("follow the link", link, error);
    let (to, top) = (
        name(held.as_raw_fd()).map_err(failed)?,
        name(root.as_fd().as_raw_fd()).map_err(failed)?,
    );
    let below = to.strip_prefix(&top).ok();
    Ok(below
        .filter(|path| *path != Path::new(""))
        .map(Path::to_owned))
}

#[cfg(test)]
mod tests {
    use super::super::testing::scratch;
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

    #[test]
    fn what_is_there_is_found_and_a_link_leads_to_what_is_hidden() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        for path in ["a/b", "secrets/deep", ".git/refs"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        for path in [
            ".env",
            "a/b/x.pem",
            "a/plain",
            "secrets/deep/key.pem",
            "a/prod",
            ".git/refs/x.pem",
        ] {
            std::fs::write(at(path), "x").unwrap();
        }
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
        link("prod", "a/l.pem");
        link("/etc/passwd", "a/out.pem");
        link("gone", "a/dangling.pem");
        let root = Root::open(dir.path()).unwrap();
        let found = masks(&[".env", "*.pem", "secrets"]).find(&root, &[]);
        assert_eq!(found.unwrap(), [".env", "a/b/x.pem", "a/prod", "secrets"]);
        let within = ["a/b".to_owned()];
        let found = masks(&[".env", "*.pem"]).find(&root, &within);
        assert_eq!(found.unwrap(), ["a/b/x.pem"]);
        link("/workspace/a/plain", "a/b/in.pem");
        let found = masks(&["*.pem"]).find(&root, &[]);
        assert!(matches!(found, Err(MaskError::Link(_))), "{found:?}");
    }

    #[test]
    fn what_cannot_be_looked_through_is_an_error() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = scratch();
        for n in 0..=limits::MASKED {
            std::fs::write(dir.path().join(format!("{n}.pem")), "").unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        let found = masks(&["*.pem"]).find(&root, &[]);
        assert!(matches!(found, Err(MaskError::TooMany(_))), "{found:?}");
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        let found = masks(&["x"]).find(&root, &[]);
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(found, Err(MaskError::Closed(_))), "{found:?}");
        assert_eq!(masks(&["x"]).find(&root, &[]).unwrap(), [""; 0]);
    }
}
