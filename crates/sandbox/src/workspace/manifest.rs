//! A snapshot of a workspace's metadata, and what changed since.
//!
//! Owns the comparison of two walks. It never opens a file, so a fifo cannot block it and it cannot
//! read what it should not. It never reports a change that only an incomplete walk suggests.

use std::collections::HashMap;

use super::foreign_path;
use super::tree::{Entry, Identity, Kind, Root, Timestamp, TreeError, WalkBounds, WalkStep, walk};
use marshal_model::limits;
use marshal_model::{UntrustedText, string_enum};

/// The compared metadata of one entry.
#[derive(Debug, Clone, Copy)]
struct EntryState {
    kind: Kind,
    mode: u16,
    size: u64,
    identity: Identity,
    mtime: Timestamp,
    /// The kernel updates it at every change, so a forged mtime does not hide one.
    ctime: Timestamp,
    /// For a directory: whether it contains entries that are listed themselves.
    has_entries: bool,
}

impl EntryState {
    fn differs_from(&self, other: &Self) -> bool {
        if self.kind != other.kind || self.mode != other.mode {
            return true;
        }
        // A directory's times change only when entries are added or removed, and those are listed
        // themselves.
        self.kind != Kind::Dir
            && (self.size, self.mtime, self.ctime) != (other.size, other.mtime, other.ctime)
    }

    /// Whether this is the same file as one that was elsewhere before. Its content may differ.
    fn is_moved(&self, before: &Self) -> bool {
        let has_birth = self.identity.1.is_some();
        let is_alike = (self.size, self.mtime) == (before.size, before.mtime);
        (has_birth || is_alike) && (self.kind, self.identity) == (Kind::File, before.identity)
    }

    /// Whether it is listed: a directory with entries is not, because its entries are.
    fn is_listed(&self) -> bool {
        self.kind != Kind::Dir || !self.has_entries
    }
}

/// All entries of a workspace at one time, without the content of any `.git`, or without what every
/// git command changes in it.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    entries: HashMap<Box<[u8]>, EntryState>,
    complete: bool,
    with_git: bool,
}

/// What of a git directory is not recorded: objects have no effect by themselves, the log repeats
/// the refs, and the index changes when somebody looks.
const UNRECORDED: [&[u8]; 3] = [b"objects", b"logs", b"index"];

string_enum!(
    /// How a file changed.
    ChangeKind {
        /// It was created.
        Added = "added",
        /// Its content or its permissions changed.
        Modified = "modified",
        /// It was deleted.
        Deleted = "deleted",
    }
);

/// One changed file, link or empty directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its path below the workspace ([`foreign_path`]).
    pub path: UntrustedText,
    /// How it changed.
    pub kind: ChangeKind,
}

/// The changes between two times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// The changes, sorted by path, at most [`limits::CHANGES_LISTED`].
    pub list: Vec<Change>,
    /// Files that got another name: their paths before and now. Both are listed, too.
    pub moved: Vec<(UntrustedText, UntrustedText)>,
    /// Number of changes, those beyond the list included.
    pub total: u64,
    /// Whether the list is incomplete: it has more changes than fit, the tree exceeded the limits
    /// of a walk, or parts of it were unreadable.
    pub is_truncated: bool,
}

impl Manifest {
    /// Records the entries below `root`.
    pub fn record(root: &Root) -> Result<Self, TreeError> {
        Self::record_within(root, WalkBounds::default(), false)
    }

    /// The same with the content of every `.git`: refs, configuration, hooks.
    pub fn record_with_git(root: &Root) -> Result<Self, TreeError> {
        Self::record_within(root, WalkBounds::default(), true)
    }

    fn record_within(root: &Root, bounds: WalkBounds, with_git: bool) -> Result<Self, TreeError> {
        let mut recorder = Recorder {
            with_git,
            ..Recorder::default()
        };
        let walked = walk(root, bounds, &mut |entry| recorder.visit(entry))
            .map_err(|error| TreeError::at_path("list", root.path(), error))?;
        Ok(Self {
            entries: recorder.entries,
            complete: walked.incomplete.is_none() && walked.unreadable == 0 && !recorder.too_long,
            with_git,
        })
    }

    /// Number of recorded files, links and directories.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The recorded directories.
    pub fn directories(&self) -> impl Iterator<Item = &[u8]> {
        let dirs = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.kind == Kind::Dir);
        dirs.map(|(path, _)| &**path)
    }

    /// The identity of the recorded file or directory with this path.
    pub(super) fn identity(&self, path: &[u8]) -> Option<Identity> {
        self.entries.get(path).map(|entry| entry.identity)
    }

    /// Whether an entry with this path was recorded.
    #[must_use]
    pub fn has(&self, path: &[u8]) -> bool {
        self.entries.contains_key(path)
    }

    /// Whether a special file with this path was recorded: in an overlay, a whiteout of a deleted
    /// entry. Its times are meaningless, because all whiteouts may be hard links to one inode.
    pub(super) fn has_special(&self, path: &[u8]) -> bool {
        self.entries
            .get(path)
            .is_some_and(|then| then.kind == Kind::Other)
    }

    /// Whether exactly this entry was recorded at this path.
    pub(super) fn contains_unchanged(&self, path: &[u8], now: &rustix::fs::Stat) -> bool {
        let stamp = |seconds: i64, nanos: u64| (seconds, u32::try_from(nanos).unwrap_or(0));
        self.entries.get(path).is_some_and(|then| {
            then.size == u64::try_from(now.st_size).unwrap_or(0)
                && then.ctime == stamp(now.st_ctime, now.st_ctime_nsec)
        })
    }

    /// Compares the record with the current entries below `root`.
    pub fn changes(&self, root: &Root) -> Result<Changes, TreeError> {
        let bounds = WalkBounds::default();
        Ok(self.compare(&Self::record_within(root, bounds, self.with_git)?))
    }

    fn compare(&self, after: &Self) -> Changes {
        let mut kinds: Vec<(&[u8], ChangeKind)> = Vec::new();
        for (path, now) in &after.entries {
            match self.entries.get(path) {
                Some(then) if then.differs_from(now) => kinds.push((path, ChangeKind::Modified)),
                // An entry that an incomplete walk missed may have existed before.
                None if self.complete && now.is_listed() => kinds.push((path, ChangeKind::Added)),
                Some(_) | None => {}
            }
        }
        if after.complete {
            for (path, then) in &self.entries {
                if then.is_listed() && !after.entries.contains_key(path) {
                    kinds.push((path, ChangeKind::Deleted));
                }
            }
        }
        kinds.sort_unstable();
        let total = kinds.len() as u64;
        kinds.truncate(limits::CHANGES_LISTED);
        let gone = kinds
            .iter()
            .filter(|(_, kind)| *kind == ChangeKind::Deleted)
            .filter_map(|(path, _)| Some((self.entries.get(*path)?, *path)))
            .map(|(then, path)| (then.identity, (then, path)));
        let gone: HashMap<Identity, _> = gone.collect();
        let moved = kinds.iter().filter_map(|(path, _)| {
            let now = after.entries.get(*path)?;
            let (then, from) = gone.get(&now.identity)?;
            now.is_moved(then)
                .then(|| (foreign_path(from), foreign_path(path)))
        });
        Changes {
            moved: moved.collect(),
            is_truncated: !self.complete || !after.complete || total > kinds.len() as u64,
            list: kinds
                .into_iter()
                .map(|(path, kind)| Change {
                    path: foreign_path(path),
                    kind,
                })
                .collect(),
            total,
        }
    }
}

#[derive(Default)]
struct Recorder {
    entries: HashMap<Box<[u8]>, EntryState>,
    bytes: usize,
    too_long: bool,
    with_git: bool,
    /// The directory that was last marked as having entries: its entries are adjacent.
    parent: Vec<u8>,
}

impl Recorder {
    fn visit(&mut self, entry: &Entry<'_>) -> WalkStep {
        let parent = &entry.path[..entry.path.len() - entry.name.len()];
        let is_in_git = parent == b".git/" || parent.ends_with(b"/.git/");
        if is_in_git && UNRECORDED.contains(&entry.name) {
            return WalkStep::Skip;
        }
        self.mark_parent(entry);
        if entry.path.len() > limits::MANIFEST_PATH_BYTES {
            self.too_long = true;
            return WalkStep::Skip;
        }
        self.bytes += entry.path.len();
        if self.bytes > limits::MANIFEST_BYTES {
            self.too_long = true;
            return WalkStep::Stop;
        }
        let meta = entry.meta;
        self.entries.insert(
            entry.path.into(),
            EntryState {
                kind: meta.kind,
                mode: meta.mode,
                size: meta.size,
                identity: meta.identity(),
                mtime: meta.mtime,
                ctime: meta.ctime,
                has_entries: false,
            },
        );
        if entry.name == b".git" && !self.with_git {
            WalkStep::Skip
        } else {
            WalkStep::Enter
        }
    }

    fn mark_parent(&mut self, entry: &Entry<'_>) {
        let end = entry.path.len() - entry.name.len();
        let parent = &entry.path[..end.saturating_sub(1)];
        if parent.is_empty() || parent == self.parent {
            return;
        }
        self.parent.clear();
        self.parent.extend_from_slice(parent);
        if let Some(seen) = self.entries.get_mut(parent) {
            seen.has_entries = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use super::super::testing::{deep_tree, scratch};
    use super::*;

    fn change_lines(changes: &Changes) -> Vec<String> {
        let word = |c: &Change| format!("{} {}", c.kind, c.path.raw());
        changes.list.iter().map(word).collect()
    }

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn every_kind_of_change_is_told_once_by_the_file_that_it_happened_to() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        for name in [
            "same",
            "longer",
            "forged",
            "gone/x",
            "mode",
            "turned",
            ".git/config",
        ] {
            write(&at(name), "x");
        }
        symlink("same", at("link")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let before = Manifest::record(&root).unwrap();
        assert_eq!(
            change_lines(&before.changes(&root).unwrap()),
            Vec::<String>::new()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
        write(&at("longer"), "xyz");
        let old = std::fs::metadata(at("forged")).unwrap().modified().unwrap();
        write(&at("forged"), "y");
        let file = std::fs::File::options()
            .write(true)
            .open(at("forged"))
            .unwrap();
        file.set_modified(old).unwrap();
        std::fs::remove_dir_all(at("gone")).unwrap();
        std::fs::set_permissions(at("mode"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::remove_file(at("turned")).unwrap();
        write(&at("turned/inside"), "x");
        write(&at("new/deep/file"), "x");
        write(&at("sub/.git/HEAD"), "x");
        write(&at(".git/config"), "fsmonitor = evil");
        std::fs::create_dir(at("empty")).unwrap();
        std::fs::remove_file(at("link")).unwrap();
        symlink("mode", at("link")).unwrap();
        let changes = before.changes(&root).unwrap();
        let expect = [
            "added empty",
            "modified forged",
            "deleted gone/x",
            "modified link",
            "modified longer",
            "modified mode",
            "added new/deep/file",
            "added sub/.git",
            "modified turned",
            "added turned/inside",
        ];
        assert_eq!(change_lines(&changes), expect);
        assert!(!changes.is_truncated);
    }

    #[test]
    fn a_moved_file_is_the_same_one_and_a_new_one_with_its_inode_is_not() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        for name in ["a", "b", "c", "over"] {
            write(&at(name), name);
        }
        let root = Root::open(dir.path()).unwrap();
        let before = Manifest::record(&root).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::rename(at("a"), at("sub/moved")).unwrap();
        write(&at("sub/moved"), "and changed");
        std::fs::rename(at("b"), at("over")).unwrap();
        std::fs::remove_file(at("c")).unwrap();
        write(&at("fresh"), "c");
        let changes = before.changes(&root).unwrap();
        let expect = [
            "deleted a",
            "deleted b",
            "deleted c",
            "added fresh",
            "modified over",
            "added sub/moved",
        ];
        assert_eq!(change_lines(&changes), expect);
        let moved = changes.moved.iter();
        let moved: Vec<_> = moved.map(|(from, to)| (from.raw(), to.raw())).collect();
        assert_eq!(moved, [("b", "over"), ("a", "sub/moved")]);
    }

    #[test]
    fn hostile_trees_end_within_bounds_and_say_that_they_were_cut() {
        let dir = scratch();
        let root = Root::open(dir.path()).unwrap();
        let before = Manifest::record(&root).unwrap();
        let odd = std::ffi::OsStr::from_bytes(b"a\n\x1b]0;x\x07\xff");
        std::fs::write(dir.path().join(odd), "x").unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let changes = before.changes(&root).unwrap();
        assert_eq!(
            change_lines(&changes),
            ["added a\n\u{1b}]0;x\u{7}\\xff", "added fifo"]
        );
        deep_tree(dir.path(), 2100);
        let changes = before.changes(&root).unwrap();
        assert!(changes.is_truncated, "paths beyond PATH_MAX are not listed");
        assert_eq!(changes.total, 2);
    }

    #[test]
    fn an_incomplete_walk_claims_no_addition_and_no_deletion() {
        let dir = scratch();
        for n in 0..50 {
            write(&dir.path().join(n.to_string()), "x");
        }
        let root = Root::open(dir.path()).unwrap();
        let few = WalkBounds {
            entries: 10,
            ..WalkBounds::default()
        };
        let part = Manifest::record_within(&root, few, false).unwrap();
        let whole = Manifest::record(&root).unwrap();
        for (then, now) in [(&part, &whole), (&whole, &part)] {
            let changes = then.compare(now);
            assert_eq!((changes.total, changes.is_truncated), (0, true));
        }
    }

    #[test]
    fn twenty_thousand_changes_are_counted_and_a_thousand_named() {
        let dir = scratch();
        let root = Root::open(dir.path()).unwrap();
        let before = Manifest::record(&root).unwrap();
        for outer in 0..20 {
            let sub = dir.path().join(outer.to_string());
            std::fs::create_dir(&sub).unwrap();
            let first = sub.join("0");
            std::fs::write(&first, "").unwrap();
            for inner in 1..1000 {
                std::fs::hard_link(&first, sub.join(inner.to_string())).unwrap();
            }
        }
        let changes = before.changes(&root).unwrap();
        assert_eq!(changes.total, 20_000);
        assert_eq!(changes.list.len(), limits::CHANGES_LISTED);
        assert!(changes.is_truncated);
    }
}
