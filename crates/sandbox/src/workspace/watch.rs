//! Watches a tree that an agent writes (inotify): which files changed, and which were moved.
//!
//! Owns which directories are watched. They are opened below the root one by one, never through a
//! link, so nothing outside of the tree is watched. A directory that appears is watched before it
//! is listed, so that no file in it is missed. It reads no content, and nothing in a `.git`. Must
//! not know what a change means.
//!
//! The kernel reports a write when the file is closed. It reports no changes by other hosts of a
//! network file system, and drops events if nobody reads them ([`TreeChanges::is_incomplete`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Manifest;
use super::tree::{Identity, Kind, Root, WalkBounds, WalkStep, meta_at, walk};
use crate::open::open_within;
use marshal_model::limits::{WATCHED_CHANGES, WATCHED_DIRS, WATCHED_EVENTS, WATCHED_KNOWN};

/// The size of the buffer for kernel events, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Changes of entries of a directory. A write counts when the file is closed.
const ENTRY_CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);

/// A path below the root, without a leading slash.
type TreePath = Vec<u8>;

/// A file or directory that got another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Its path before.
    pub from: TreePath,
    /// Its path now.
    pub to: TreePath,
    /// Whether it is a directory, whose files were moved with it.
    pub is_dir: bool,
}

/// The changes since the last time.
#[derive(Debug, Default)]
pub struct TreeChanges {
    /// Files that may have changed, appeared or disappeared, with whether the first event was that
    /// they appeared.
    pub files: BTreeMap<TreePath, bool>,
    /// Moves, in their order. A file that was moved twice is listed once.
    pub moves: Vec<Move>,
    /// Whether there were more changes than are listed, or unwatched directories.
    pub is_incomplete: bool,
}

impl TreeChanges {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.moves.is_empty() && !self.is_incomplete
    }

    fn add_file(&mut self, path: TreePath, appeared: bool) {
        if self.files.len() < WATCHED_CHANGES {
            self.files.entry(path).or_insert(appeared);
        } else {
            self.is_incomplete |= !self.files.contains_key(&path);
        }
    }

    fn add_move(&mut self, from: TreePath, to: TreePath, is_dir: bool) {
        if let Some(at) = self.moves.iter().rposition(|earlier| earlier.to == from) {
            self.moves[at].to = to;
            // There and back is no move.
            if self.moves[at].from == self.moves[at].to {
                self.moves.remove(at);
            }
        } else if self.moves.len() < WATCHED_CHANGES {
            self.moves.push(Move { from, to, is_dir });
        } else {
            self.is_incomplete = true;
        }
    }
}

/// One name of a directory that went, and may appear elsewhere.
#[derive(Debug)]
struct Departure {
    from: TreePath,
    is_dir: bool,
}

/// A watch of a tree.
#[derive(Debug)]
pub struct TreeWatch {
    root: Root,
    fd: Arc<OwnedFd>,
    /// The watched directories by the kernel's number of their watch.
    dirs: HashMap<i32, TreePath>,
    /// What was in the tree before.
    before: Arc<Manifest>,
    /// Files that changed since then.
    known: HashMap<TreePath, Identity>,
    /// What was found in directories that appeared, since the last time.
    listed: HashMap<Identity, TreePath>,
    /// Names that went, by the number that connects them with where they appear.
    departed: BTreeMap<u32, Departure>,
    changes: TreeChanges,
}

impl TreeWatch {
    /// Watches the root and its recorded directories; those that are gone or in a `.git` are left out.
    ///
    /// # Errors
    /// The system error; `EMFILE` if this user has too many watches open
    /// (`fs.inotify.max_user_instances`).
    pub fn open(root: Root, before: Arc<Manifest>) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self {
            root,
            fd: Arc::new(fd),
            dirs: HashMap::new(),
            before,
            known: HashMap::new(),
            listed: HashMap::new(),
            departed: BTreeMap::new(),
            changes: TreeChanges::default(),
        };
        watch.add(b"")?;
        let recorded = Arc::clone(&watch.before);
        for dir in recorded.directories().filter(|dir| !is_in_git(dir)) {
            // One that cannot be watched leaves the others.
            if watch.add(dir).is_err() {
                watch.changes.is_incomplete = true;
            }
        }
        Ok(watch)
    }

    /// The descriptor that is readable when something changed.
    #[must_use]
    pub fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Whether something went whose new place may be reported next.
    #[must_use]
    pub fn expects_arrival(&self) -> bool {
        !self.departed.is_empty()
    }

    /// Reads the pending events, at most [`WATCHED_EVENTS`]: an agent can make them faster than they
    /// are read. Does not wait for any. Returns whether there may be more.
    ///
    /// # Errors
    /// The system error of the read.
    pub fn read(&mut self) -> io::Result<bool> {
        let fd = Arc::clone(&self.fd);
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = inotify::Reader::new(&*fd, &mut buffer);
        let mut count = 0;
        // What is in the buffer would be lost with it.
        while count < WATCHED_EVENTS || !reader.is_buffer_empty() {
            count += 1;
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(std::ffi::CStr::to_bytes);
                    self.handle((event.wd(), event.cookie()), event.events(), name);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Takes the changes that were read. What went and did not appear elsewhere is gone.
    pub fn take(&mut self) -> TreeChanges {
        let mut listed = std::mem::take(&mut self.listed);
        for departure in std::mem::take(&mut self.departed).into_values() {
            let identity = self
                .known
                .remove(&departure.from)
                .or_else(|| self.before.identity(&departure.from));
            // It went into a directory that was not watched yet.
            if let Some(to) = identity.and_then(|identity| listed.remove(&identity)) {
                let Departure { from, is_dir } = departure;
                self.changes.add_move(from, to, is_dir);
            } else if departure.is_dir {
                // Its files went with it, and nobody names them.
                self.forget(&departure.from);
                self.changes.is_incomplete = true;
            } else {
                self.changes.add_file(departure.from, false);
            }
        }
        std::mem::take(&mut self.changes)
    }

    fn handle(&mut self, (wd, cookie): (i32, u32), what: ReadFlags, name: Option<&[u8]>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.changes.is_incomplete = true;
            return;
        }
        if what.contains(ReadFlags::IGNORED) {
            self.dirs.remove(&wd);
            return;
        }
        // Without a name the event is the directory's own, which its parent reports, too.
        let (Some(name), Some(dir)) = (name, self.dirs.get(&wd)) else {
            return;
        };
        if name == b".git" {
            return;
        }
        let path = join(dir, name);
        let is_dir = what.contains(ReadFlags::ISDIR);
        if what.contains(ReadFlags::MOVED_FROM) {
            if self.departed.len() < WATCHED_CHANGES {
                let departure = Departure { from: path, is_dir };
                self.departed.insert(cookie, departure);
            } else {
                self.changes.is_incomplete = true;
                self.forget(&path);
            }
        } else if what.contains(ReadFlags::MOVED_TO) {
            self.arrived(cookie, path, is_dir);
        } else if is_dir && what.contains(ReadFlags::CREATE) {
            self.enter(&path);
        } else if !is_dir {
            self.remember(&path);
            let appeared = what.contains(ReadFlags::CREATE);
            self.changes.add_file(path, appeared);
        }
    }

    fn arrived(&mut self, cookie: u32, to: TreePath, is_dir: bool) {
        match self.departed.remove(&cookie) {
            Some(Departure { from, .. }) => {
                if is_dir {
                    self.rename(&from, &to);
                    self.enter(&to);
                } else {
                    self.known.remove(&from);
                    self.remember(&to);
                }
                self.changes.add_move(from, to, is_dir);
            }
            None if is_dir => self.enter(&to),
            None => {
                self.remember(&to);
                self.changes.add_file(to, false);
            }
        }
    }

    /// Remembers which file is at a path, in case that it moves on.
    fn remember(&mut self, path: &[u8]) {
        if self.known.len() >= WATCHED_KNOWN && !self.known.contains_key(path) {
            return;
        }
        let (parent, name) = path.split_at(path.iter().rposition(|b| *b == b'/').unwrap_or(0));
        let name = CString::new(name.strip_prefix(b"/").unwrap_or(name));
        let dir = self.open_dir(parent).ok().flatten();
        let meta = dir
            .zip(name.ok())
            .and_then(|(dir, name)| meta_at(dir, &name).ok());
        match meta {
            Some(meta) => self.known.insert(path.to_vec(), meta.identity()),
            None => self.known.remove(path),
        };
    }

    /// Watches a directory and everything below it, and lists its files as changes.
    fn enter(&mut self, path: &[u8]) {
        match self.add(path) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => {
                self.changes.is_incomplete = true;
                return;
            }
        }
        let Ok(Some(start)) = self.open_dir(path) else {
            return;
        };
        let walked = walk(&start, WalkBounds::default(), &mut |entry| {
            if entry.name == b".git" {
                return WalkStep::Skip;
            }
            let below = join(path, entry.path);
            if self.listed.len() < WATCHED_KNOWN {
                self.listed.insert(entry.meta.identity(), below.clone());
            }
            if entry.meta.kind != Kind::Dir {
                self.changes.add_file(below, true);
            } else if self.add(&below).is_err() {
                // A directory is watched before its entries are listed.
                self.changes.is_incomplete = true;
                return WalkStep::Stop;
            }
            WalkStep::Enter
        });
        let is_whole = walked.is_ok_and(|done| done.incomplete.is_none() && done.unreadable == 0);
        self.changes.is_incomplete |= !is_whole;
    }

    /// Watches one directory; `false` if it is not there, or no directory.
    fn add(&mut self, path: &[u8]) -> io::Result<bool> {
        if self.dirs.len() >= WATCHED_DIRS {
            return Err(io::Error::other("too many directories"));
        }
        let Some(dir) = self.open_dir(path)? else {
            return Ok(false);
        };
        // The path names this process's own descriptor, so a replaced directory is not watched.
        let handle = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let wd = inotify::add_watch(&*self.fd, handle, ENTRY_CHANGES)?;
        self.dirs.insert(wd, path.to_vec());
        Ok(true)
    }

    fn open_dir(&self, path: &[u8]) -> io::Result<Option<OwnedFd>> {
        let path = if path.is_empty() {
            b".".as_slice()
        } else {
            path
        };
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open_within(&self.root, path, flags, resolve) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A directory got another name: its watches and those below it stay.
    fn rename(&mut self, from: &[u8], to: &[u8]) {
        for path in self.dirs.values_mut() {
            if let Some(below) = below(path, from) {
                *path = [to, below].concat();
            }
        }
    }

    /// A directory left the tree: nothing below it is watched any longer.
    fn forget(&mut self, gone: &[u8]) {
        let gone = self.dirs.extract_if(|_, path| below(path, gone).is_some());
        for (wd, _) in gone.collect::<Vec<_>>() {
            // The kernel has dropped the watch already if the directory was removed.
            let _ = inotify::remove_watch(&*self.fd, wd);
        }
    }
}

/// What follows `dir` in a path that is this directory or lies below it.
fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(dir)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn join(dir: &[u8], name: &[u8]) -> TreePath {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

fn is_in_git(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b".git")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use super::super::Manifest;
    use super::super::testing::scratch;
    use super::*;

    fn watch(dir: &Path) -> TreeWatch {
        let manifest = Manifest::record(&Root::open(dir).unwrap()).unwrap();
        TreeWatch::open(Root::open(dir).unwrap(), Arc::new(manifest)).unwrap()
    }

    /// Everything that happened, a line each.
    fn lines(watch: &mut TreeWatch) -> Vec<String> {
        watch.read().unwrap();
        let changes = watch.take();
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let files = changes.files.iter().map(|(path, appeared)| {
            let sign = if *appeared { "+" } else { "" };
            format!("{sign}{}", text(path))
        });
        let moves = changes.moves.iter().map(|item| {
            let slash = if item.is_dir { "/" } else { "" };
            format!("{}{slash} > {}{slash}", text(&item.from), text(&item.to))
        });
        let incomplete = changes.is_incomplete.then(|| "...".to_owned());
        files.chain(moves).chain(incomplete).collect()
    }

    #[test]
    fn writes_removals_and_modes_are_reported_by_path() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("src/deep")).unwrap();
        fs::create_dir_all(at(".git/refs")).unwrap();
        for name in ["old", "src/gone", "src/deep/run"] {
            fs::write(at(name), "x").unwrap();
        }
        let mut watch = watch(dir.path());
        assert_eq!(lines(&mut watch), [""; 0]);
        let mut open = fs::File::options().append(true).open(at("old")).unwrap();
        open.write_all(b"y").unwrap();
        assert_eq!(lines(&mut watch), [""; 0], "it is not complete yet");
        drop(open);
        fs::write(at("src/new"), "x").unwrap();
        fs::remove_file(at("src/gone")).unwrap();
        fs::set_permissions(at("src/deep/run"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at(".git/refs/main"), "x").unwrap();
        fs::write(at(".git/HEAD"), "x").unwrap();
        assert_eq!(
            lines(&mut watch),
            ["old", "src/deep/run", "src/gone", "+src/new"]
        );
        assert_eq!(lines(&mut watch), [""; 0]);
    }

    #[test]
    fn what_lies_in_a_new_directory_is_reported_and_watched() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        let mut watch = watch(dir.path());
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::write(at("a/b/c/first"), "x").unwrap();
        assert_eq!(lines(&mut watch), ["+a/b/c/first"]);
        fs::write(at("a/b/c/second"), "x").unwrap();
        fs::write(at("a/top"), "x").unwrap();
        assert_eq!(lines(&mut watch), ["+a/b/c/second", "+a/top"]);
        fs::remove_dir_all(at("a/b")).unwrap();
        assert_eq!(lines(&mut watch), ["a/b/c/first", "a/b/c/second"]);
        assert_eq!(watch.dirs.len(), 2, "the root, and a");
    }

    #[test]
    fn a_move_names_both_places_and_a_moved_directory_stays_watched() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("src/deep")).unwrap();
        fs::write(at("src/deep/a"), "x").unwrap();
        fs::write(at("b"), "x").unwrap();
        let mut watch = watch(dir.path());
        fs::rename(at("b"), at("src/c")).unwrap();
        fs::rename(at("src/c"), at("d")).unwrap();
        fs::rename(at("src"), at("lib")).unwrap();
        assert_eq!(lines(&mut watch), ["+lib/deep/a", "b > d", "src/ > lib/"]);
        fs::write(at("lib/deep/a"), "y").unwrap();
        assert_eq!(lines(&mut watch), ["lib/deep/a"]);
        // Out of the tree, and into it.
        let outside = scratch();
        fs::rename(at("d"), outside.path().join("d")).unwrap();
        watch.read().unwrap();
        assert!(watch.expects_arrival());
        assert_eq!(lines(&mut watch), ["d"]);
        fs::rename(at("lib"), outside.path().join("lib")).unwrap();
        assert_eq!(lines(&mut watch), ["..."]);
        fs::write(outside.path().join("lib/deep/a"), "z").unwrap();
        assert_eq!(lines(&mut watch), [""; 0], "what has left is not watched");
        fs::rename(outside.path().join("lib"), at("back")).unwrap();
        assert_eq!(lines(&mut watch), ["+back/deep/a"]);
    }

    #[test]
    fn a_move_into_a_directory_that_was_just_made_is_one_move() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("src")).unwrap();
        fs::write(at("src/a"), "x").unwrap();
        fs::write(at("old"), "x").unwrap();
        let mut watch = watch(dir.path());
        fs::write(at("fresh"), "x").unwrap();
        assert_eq!(lines(&mut watch), ["+fresh"]);
        // A file that was moved before is still known.
        fs::rename(at("fresh"), at("fresher")).unwrap();
        fs::rename(at("fresher"), at("fresh")).unwrap();
        assert_eq!(lines(&mut watch), [""; 0], "there and back");
        fs::create_dir_all(at("new/er")).unwrap();
        for name in ["old", "fresh", "src"] {
            fs::rename(at(name), at("new/er").join(name)).unwrap();
        }
        fs::write(at("new/er/src/a"), "y").unwrap();
        let expect = [
            "+new/er/fresh",
            "+new/er/old",
            "+new/er/src/a",
            "old > new/er/old",
            "fresh > new/er/fresh",
            "src/ > new/er/src/",
        ];
        assert_eq!(lines(&mut watch), expect);
        fs::write(at("new/er/src/a"), "z").unwrap();
        assert_eq!(lines(&mut watch), ["new/er/src/a"]);
    }

    #[test]
    fn nothing_outside_is_watched_through_a_link() {
        let dir = scratch();
        let outside = scratch();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("real")).unwrap();
        let manifest = Manifest::record(&Root::open(dir.path()).unwrap()).unwrap();
        // It takes the directory's place before the watch begins.
        fs::remove_dir(at("real")).unwrap();
        symlink(outside.path(), at("real")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let mut watch = TreeWatch::open(root, Arc::new(manifest)).unwrap();
        symlink(outside.path(), at("other")).unwrap();
        assert_eq!(lines(&mut watch), ["+other"]);
        fs::write(outside.path().join("secret"), "x").unwrap();
        assert_eq!(lines(&mut watch), [""; 0]);
        assert_eq!(watch.dirs.len(), 1);
    }

    #[test]
    fn more_than_can_be_listed_is_incomplete() {
        let dir = scratch();
        let mut watch = watch(dir.path());
        for n in 0..=WATCHED_CHANGES {
            fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        assert!(!watch.read().unwrap(), "everything was read");
        let changes = watch.take();
        assert_eq!(changes.files.len(), WATCHED_CHANGES);
        assert!(changes.is_incomplete);
        assert!(watch.take().is_empty());
    }
}
