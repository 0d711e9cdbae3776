//! Resolves a path: walked component by component, through links, below workspace and home.
//!
//! Owns the walking: joining with the current directory, `.` and `..`, the targets of links (which
//! are paths inside the sandbox), the bounds. A [`Resolver`] tells what a component is; this module
//! reads no file itself.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::evaluation_context::ActiveRules;
use marshal_model::limits;

/// The longest path that the kernel accepts (limits.h).
pub(super) const PATH_MAX: usize = 4096;

/// What is at a path, without following its last component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FsEntry {
    /// A directory.
    Directory,
    /// Anything else that is not a symbolic link.
    File,
    /// A symbolic link, with its target as readlink(2) gives it.
    Link(String),
    /// Nothing.
    Missing,
    /// Unknown: counts as outside of everything.
    Unresolved,
}

/// Tells what single components are. In production each lookup is one `fstatat` without following
/// links, and a `readlinkat`, below an `O_PATH` descriptor of the workspace or the home.
pub trait Resolver {
    /// What is at `path`: an absolute path inside the sandbox, below the workspace or the home,
    /// without `.`, `..` or doubled slashes, and with no link among its parents. The last component
    /// is not followed.
    fn lookup(&self, path: &str) -> FsEntry;

    /// The names of the symbolic links directly in the directory `path` (a path as for
    /// [`Resolver::lookup`], or a root itself). `None` if they cannot be listed, or are more than
    /// the caller reads; then no rule allows a pattern in that directory. A missing directory has
    /// none.
    fn list_links(&self, path: &str) -> Option<Vec<String>>;

    /// The names of everything directly in a directory, with the same rules. A pattern is compared
    /// with the names that it would match.
    fn list_names(&self, path: &str) -> Option<Vec<String>>;

    /// Whether anything is at `path`, a path as for [`Resolver::lookup`]. An unknown entry counts
    /// as existing.
    fn exists(&self, path: &str) -> bool {
        self.lookup(path) != FsEntry::Missing
    }
}

/// A file system without links, for checking policies and requests away from any workspace. Only
/// the paths that a text names exist in it.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLinks;

impl Resolver for NoLinks {
    fn lookup(&self, _: &str) -> FsEntry {
        FsEntry::Missing
    }

    fn list_links(&self, _: &str) -> Option<Vec<String>> {
        Some(Vec::new())
    }

    fn list_names(&self, _: &str) -> Option<Vec<String>> {
        Some(Vec::new())
    }
}

/// A file system that cannot be examined: links count as missing, and anything may be anywhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpaqueFs;

impl Resolver for OpaqueFs {
    fn lookup(&self, _: &str) -> FsEntry {
        FsEntry::Missing
    }

    fn list_links(&self, _: &str) -> Option<Vec<String>> {
        Some(Vec::new())
    }

    fn list_names(&self, _: &str) -> Option<Vec<String>> {
        Some(Vec::new())
    }

    fn exists(&self, _: &str) -> bool {
        true
    }
}

/// The file system context of a request. All paths are absolute, canonical, and as the agent sees
/// them.
#[derive(Clone, Copy)]
pub struct FsContext<'a> {
    /// The root of the workspace (`/workspace`).
    pub workspace: &'a str,
    /// The home directory (`/home/agent`).
    pub home: &'a str,
    /// The directory in which a command starts; `None` if it is unknown, and then no rule allows a
    /// command or a relative path.
    pub cwd: Option<&'a str>,
    /// Looks up components.
    pub resolver: &'a dyn Resolver,
}

/// The result of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WalkResult {
    /// The absolute path, after following links.
    pub path: String,
    /// Whether it left workspace and home (or their parents), or could not be followed.
    pub escaped: bool,
    /// Whether it is a directory, if it was looked up.
    pub is_directory: bool,
}

/// The names in a directory; `None` if they cannot be listed.
type Listing = Option<Vec<String>>;

/// Walks paths for one decision and caches the lookups.
pub(super) struct Walker<'a> {
    pub fs: FsContext<'a>,
    pub active_rules: ActiveRules<'a>,
    /// Whether the home is in the workspace.
    nested: bool,
    entry_cache: RefCell<HashMap<String, FsEntry>>,
    listing_cache: RefCell<HashMap<(String, bool), Listing>>,
    lookups_left: Cell<usize>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(place: FsContext<'a>) -> Self {
        Self::with_active_rules(place, ActiveRules::all())
    }

    /// A walker that also knows the active rules.
    pub(super) fn with_active_rules(place: FsContext<'a>, now: ActiveRules<'a>) -> Self {
        Self {
            fs: place,
            active_rules: now,
            nested: is_within(place.home, place.workspace),
            entry_cache: RefCell::default(),
            listing_cache: RefCell::default(),
            lookups_left: Cell::new(limits::POLICY_LOOKUPS),
        }
    }

    /// Follows `path` except for its last component, which is what deleting and moving act on. A
    /// path that ends with `/`, `.` or `..` is followed whole.
    pub(super) fn walk_to_name(&self, base: &str, path: &str) -> WalkResult {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if matches!(name, "" | "." | "..") {
            return self.walk(base, path);
        }
        let parent = if path.starts_with('/') && parent.is_empty() {
            "/"
        } else {
            parent
        };
        let mut end = self.walk(base, parent);
        end.path = format!("{}/{name}", trimmed(&end.path));
        end.escaped |= self.position_of(&end.path) == Position::Elsewhere;
        end.is_directory = false;
        end
    }

    /// Whether git, started in `directory` (a path without links), would use a repository that is
    /// not the workspace's own: one on the way up to the workspace's root. A directory can look
    /// like a repository without a `.git`, and then its configuration determines what git runs.
    pub(super) fn has_foreign_repository(&self, directory: &str) -> bool {
        let root = trimmed(self.fs.workspace);
        let mut at = trimmed(directory);
        loop {
            if !is_within(at, root) {
                return true;
            }
            let there = |name: &str| self.exists(&format!("{at}/{name}"));
            if there(".git") {
                return at != root;
            }
            if there("HEAD") && (there("objects") || there("commondir")) {
                return true;
            }
            if at == root {
                return false;
            }
            at = at.rfind('/').map_or("", |slash| &at[..slash]);
        }
    }

    fn exists(&self, path: &str) -> bool {
        !self.spend_lookups(path, 0) || self.fs.resolver.exists(path)
    }

    /// Whether a link is at a path that was walked except for its last component.
    pub(super) fn is_link(&self, path: &str) -> bool {
        self.position_of(path) == Position::Below && matches!(self.lookup(path), FsEntry::Link(_))
    }

    fn lookup(&self, path: &str) -> FsEntry {
        if let Some(seen) = self.entry_cache.borrow().get(path) {
            return seen.clone();
        }
        if !self.spend_lookups(path, 0) {
            return FsEntry::Unresolved;
        }
        let look = self.fs.resolver.lookup(path);
        self.entry_cache
            .borrow_mut()
            .insert(path.to_owned(), look.clone());
        look
    }

    /// Spends lookups of the budget; `false` if it is exhausted. A path is walked from the root on.
    fn spend_lookups(&self, path: &str, more: usize) -> bool {
        let components = path.bytes().filter(|&byte| byte == b'/').count();
        let left = self
            .lookups_left
            .get()
            .checked_sub(components.max(1) + more);
        self.lookups_left
            .set(left.unwrap_or(self.lookups_left.get()));
        left.is_some()
    }

    /// Whether a path is the workspace or below it.
    pub(super) fn is_inside(&self, path: &str) -> bool {
        is_within(path, self.fs.workspace)
    }

    fn position_of(&self, path: &str) -> Position {
        // The usual case needs one comparison.
        if !self.nested && self.is_in_workspace(path) {
            return Position::Below;
        }
        let roots = [self.fs.workspace, self.fs.home];
        if roots.contains(&path) || roots.iter().any(|root| is_within(root, path)) {
            Position::Above
        } else if roots.iter().any(|root| is_within(path, root)) {
            Position::Below
        } else {
            Position::Elsewhere
        }
    }

    fn is_in_workspace(&self, path: &str) -> bool {
        let root = trimmed(self.fs.workspace);
        path.strip_prefix(root)
            .is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
    }

    /// The names of links in a directory that a walk has reached.
    pub(super) fn list_links(&self, directory: &str) -> Option<Vec<String>> {
        self.list(directory, true)
    }

    /// All names in a directory that a walk has reached.
    pub(super) fn list_names(&self, directory: &str) -> Option<Vec<String>> {
        self.list(directory, false)
    }

    fn list(&self, directory: &str, only_links: bool) -> Option<Vec<String>> {
        let key = (directory.to_owned(), only_links);
        if let Some(listed) = self.listing_cache.borrow().get(&key) {
            return listed.clone();
        }
        if !self.spend_lookups(directory, limits::POLICY_LISTING_COST) {
            return None;
        }
        let names = if only_links {
            self.fs.resolver.list_links(directory)
        } else {
            self.fs.resolver.list_names(directory)
        };
        // The cost of a listing is known only after it.
        if let Some(names) = names.as_ref().filter(|_| !only_links) {
            let unused = limits::POLICY_LISTING_COST.saturating_sub(names.len());
            self.lookups_left.set(self.lookups_left.get() + unused);
        }
        self.listing_cache.borrow_mut().insert(key, names.clone());
        names
    }

    /// The same for a single name in the workspace that is not a link, as most words are.
    fn step(&self, base: &str, name: &str) -> Option<WalkResult> {
        let root = trimmed(self.fs.workspace);
        let plain =
            !matches!(name, "" | "." | "..") && name.len() <= PATH_MAX && !name.contains('/');
        if !plain || self.nested || root.is_empty() || !is_within(base, root) {
            return None;
        }
        let base = trimmed(base);
        let mut path = String::with_capacity(base.len() + name.len() + 1);
        path.push_str(base);
        path.push('/');
        path.push_str(name);
        let directory = match self.lookup(&path) {
            FsEntry::Directory => true,
            FsEntry::File | FsEntry::Missing => false,
            FsEntry::Link(_) | FsEntry::Unresolved => return None,
        };
        Some(WalkResult {
            path,
            escaped: false,
            is_directory: directory,
        })
    }

    /// Follows `path` from the directory `base`, which is absolute and already walked.
    pub(super) fn walk(&self, base: &str, path: &str) -> WalkResult {
        if let Some(end) = self.step(base, path) {
            return end;
        }
        let mut at = String::with_capacity(base.len() + path.len() + 1);
        if !path.starts_with('/') {
            at.push_str(trimmed(base));
        }
        let mut out = WalkResult {
            path: String::new(),
            escaped: path.len() > PATH_MAX
                || !at.is_empty() && self.position_of(&at) == Position::Elsewhere,
            is_directory: true,
        };
        // The components that are still to be followed: the rest of the path, preceded, after a
        // link, by the rest of the link's target.
        let mut rest = forwards(path);
        let mut todo: Vec<String> = Vec::new();
        let mut links = 0;
        // The length of `at` beyond which nothing exists.
        let mut missing: Option<usize> = None;
        loop {
            let of_link = todo.pop();
            let Some(component) = of_link.as_deref().or_else(|| rest.next()) else {
                break;
            };
            if component == ".." {
                at.truncate(at.rfind('/').unwrap_or(0));
                missing = missing.filter(|&length| at.len() > length);
                out.is_directory = missing.is_none();
                continue;
            }
            let parent = at.len();
            at.push('/');
            at.push_str(component);
            match self.position_of(&at) {
                Position::Above => {}
                Position::Elsewhere => {
                    out.escaped = true;
                    out.is_directory = false;
                }
                Position::Below if missing.is_some() || out.escaped => out.is_directory = false,
                Position::Below => match self.lookup(&at) {
                    FsEntry::Directory => out.is_directory = true,
                    FsEntry::File | FsEntry::Missing => {
                        missing = Some(parent);
                        out.is_directory = false;
                    }
                    FsEntry::Unresolved => {
                        out.escaped = true;
                        out.is_directory = false;
                    }
                    FsEntry::Link(target) => {
                        links += 1;
                        at.truncate(if target.starts_with('/') { 0 } else { parent });
                        if links > limits::POLICY_LINKS || target.is_empty() {
                            out.escaped = true;
                        } else {
                            todo.extend(components(&target).map(str::to_owned));
                        }
                    }
                },
            }
        }
        out.path = if at.is_empty() { "/".to_owned() } else { at };
        out
    }
}

#[derive(PartialEq, Eq)]
enum Position {
    /// A root, or a directory above one: exists and is not a link.
    Above,
    /// Below a root.
    Below,
    /// Neither.
    Elsewhere,
}

/// A path's components.
fn forwards(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|c| !matches!(*c, "" | "."))
}

/// The same, the last one first.
fn components(path: &str) -> impl Iterator<Item = &str> {
    forwards(path).rev()
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// Whether `path` is `root` or below it.
pub(super) fn is_within(path: &str, root: &str) -> bool {
    let root = trimmed(root);
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path as it is written, joined with `base`, without following links.
pub(super) fn normalize_lexically(base: &str, path: &str) -> String {
    let mut at = if path.starts_with('/') {
        String::new()
    } else {
        trimmed(base).to_owned()
    };
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => at.truncate(at.rfind('/').unwrap_or(0)),
            name => {
                at.push('/');
                at.push_str(name);
            }
        }
    }
    if at.is_empty() { "/".to_owned() } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `src` and `a/b/c` are directories, `in -> src`, `out -> /etc`, `deep -> a/b/c`,
    /// `loop -> loop`, `back -> ../..`, `abs -> /workspace/src`.
    struct Tree;

    impl Resolver for Tree {
        fn lookup(&self, path: &str) -> FsEntry {
            match path {
                "/workspace/src" | "/workspace/a" | "/workspace/a/b" | "/workspace/a/b/c" => {
                    FsEntry::Directory
                }
                "/workspace/in" => FsEntry::Link("src".to_owned()),
                "/workspace/out" => FsEntry::Link("/etc".to_owned()),
                "/workspace/abs" => FsEntry::Link("/workspace/src".to_owned()),
                "/workspace/deep" => FsEntry::Link("a/b/c/".to_owned()),
                "/workspace/loop" => FsEntry::Link("loop".to_owned()),
                "/workspace/src/back" => FsEntry::Link("../..".to_owned()),
                "/workspace/file" => FsEntry::File,
                "/workspace/sick" => FsEntry::Unresolved,
                _ => FsEntry::Missing,
            }
        }

        fn list_links(&self, _: &str) -> Option<Vec<String>> {
            None
        }

        fn list_names(&self, _: &str) -> Option<Vec<String>> {
            None
        }
    }

    #[track_caller]
    fn check(path: &str, expect: &str, left: bool) {
        let walker = Walker::new(FsContext {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: None,
            resolver: &Tree,
        });
        let end = walker.walk("/workspace", path);
        assert_eq!((end.path.as_str(), end.escaped), (expect, left), "{path}");
    }

    #[test]
    fn a_path_is_followed_as_the_kernel_follows_it() {
        check("src/x", "/workspace/src/x", false);
        check("./src/../y", "/workspace/y", false);
        check("", "/workspace", false);
        check("in/main.rs", "/workspace/src/main.rs", false);
        check("abs/main.rs", "/workspace/src/main.rs", false);
        check("out/passwd", "/etc/passwd", true);
        check("deep/../x", "/workspace/a/b/x", false);
        check("src/back/x", "/x", true);
        check("src/back/workspace/x", "/workspace/x", false);
        check("new/../out/x", "/etc/x", true);
        check("file/../out/x", "/etc/x", true);
        check("new/deeper/../../in/x", "/workspace/src/x", false);
        check("/workspace-evil/x", "/workspace-evil/x", true);
        check("../workspace/src", "/workspace/src", false);
        check("/home/agent/.ssh", "/home/agent/.ssh", false);
        check("/home", "/home", false);
        check("//etc///passwd", "/etc/passwd", true);
    }

    #[test]
    fn what_cannot_be_followed_has_left() {
        check("loop/x", "/workspace/x", true);
        check("sick/x", "/workspace/sick/x", true);
        check("/tmp/../workspace/src", "/workspace/src", true);
    }

    #[test]
    fn questions_are_bounded_by_the_components_that_they_walk() {
        /// Directories without end; counts components.
        #[derive(Default)]
        struct Endless(Cell<usize>, Cell<usize>);
        impl Resolver for Endless {
            fn lookup(&self, path: &str) -> FsEntry {
                self.0.set(self.0.get() + path.matches('/').count());
                FsEntry::Directory
            }
            fn list_links(&self, _: &str) -> Option<Vec<String>> {
                self.1.set(self.1.get() + 1);
                Some(vec!["x".to_owned()])
            }
            fn list_names(&self, path: &str) -> Option<Vec<String>> {
                self.list_links(path)
            }
        }
        let endless = Endless::default();
        let walker = || {
            Walker::new(FsContext {
                workspace: "/w",
                home: "/h",
                cwd: None,
                resolver: &endless,
            })
        };
        // The longest chain that a path can name, in a request that names several.
        let of = walker();
        for first in 0..40 {
            let path = format!("{first}/{}", "a/".repeat(2030));
            assert!(of.walk("/w", &path).escaped);
        }
        assert!(
            endless.0.get() <= limits::POLICY_LOOKUPS,
            "{endless_0}",
            endless_0 = endless.0.get()
        );
        let of = walker();
        assert!(!of.walk("/w", &"a/".repeat(150)).escaped);
        let of = walker();
        let listed = (0..1000).filter(|n| of.list_links(&format!("/w/{n}")).is_some());
        assert!(listed.count() <= limits::POLICY_LOOKUPS / limits::POLICY_LISTING_COST);
        assert!(of.list_links("/w/0").is_some(), "what was listed is known");
        assert!(endless.1.get() <= limits::POLICY_LOOKUPS / limits::POLICY_LISTING_COST);
    }
}
