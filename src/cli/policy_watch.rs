//! Watches the files of the policies, and reloads the policies when a file changes.
//!
//! Watches the directories of the files, so that a replaced file is noticed, and the directories of
//! links in their paths. A file that is still open for writing is not read until it is closed,
//! because half a policy may also be a valid policy. Must not know what is in a file. Uses inotify,
//! without polling.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use marshal_fleet::FleetHandle;
use marshal_model::limits::{
    POLICY_DIRECTORIES, POLICY_FILES_WRITTEN, POLICY_NOTICE_BYTES, POLICY_SETTLE, POLICY_SETTLE_MAX,
};
use marshal_telemetry::labels::ReloadCause;

/// The entries of a directory that are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WatchedNames {
    /// Entries with these names.
    Only(BTreeSet<OsString>),
    /// All entries, for a directory of labelled requests.
    All,
}

impl WatchedNames {
    fn covers(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(names), Self::Only(others)) => others.is_subset(names),
        }
    }
}

/// The directories and names that determine the contents of the files.
#[derive(Debug, Default)]
struct WatchSet(BTreeMap<PathBuf, WatchedNames>);

impl WatchSet {
    fn from_files(files: &BTreeSet<PathBuf>) -> Self {
        let mut wanted = Self::default();
        for file in files {
            wanted.file(file);
            if file.is_dir() {
                wanted.add_all(file);
            }
        }
        wanted
    }

    /// Adds the directory of the file, and with links followed the directory of each link and
    /// target. Directories above are left out: inotify reports a moved directory on the directory
    /// itself.
    fn file(&mut self, file: &Path) {
        let mut path = file.to_owned();
        for _ in 0..LINKS {
            self.entry(&path);
            // The first link in the path, if there is one.
            let links = path.ancestors().filter_map(|at| {
                let to = std::fs::read_link(at).ok()?;
                Some((at.to_owned(), to))
            });
            let Some((at, to)) = links.last() else { return };
            self.entry(&at);
            let rest = path.strip_prefix(&at).unwrap_or(Path::new("")).to_owned();
            let base = at.parent().unwrap_or(Path::new("/"));
            path = plain(&base.join(to).join(rest));
        }
    }

    fn entry(&mut self, path: &Path) {
        let (Some(mut dir), Some(mut name)) = (path.parent(), path.file_name()) else {
            return;
        };
        // If the path does not exist yet, watch for its first missing part.
        while !dir.is_dir() {
            let (Some(above), Some(part)) = (dir.parent(), dir.file_name()) else {
                return;
            };
            (dir, name) = (above, part);
        }
        if let WatchedNames::Only(names) = self.names(dir) {
            names.insert(name.to_owned());
        }
    }

    fn add_all(&mut self, dir: &Path) {
        *self.names(dir) = WatchedNames::All;
    }

    fn names(&mut self, dir: &Path) -> &mut WatchedNames {
        let none = || WatchedNames::Only(BTreeSet::new());
        self.0.entry(dir.to_owned()).or_insert_with(none)
    }
}

/// Removes `.` and `..` from a path whose leading parts are not links.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

/// The most links that are followed, as in the kernel.
const LINKS: usize = 40;

/// The inotify events after which an entry or its permissions may be different.
const CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// An inotify watch of directories.
pub(super) struct Watch {
    fd: AsyncFd<OwnedFd>,
    /// By watch descriptor: a path of the directory, and the watched entries.
    dirs: BTreeMap<i32, (PathBuf, WatchedNames)>,
    /// Files that were created or written, and not closed since.
    written: BTreeSet<(i32, OsString)>,
}

impl Watch {
    pub(super) fn open() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; an owned descriptor stays the same until it is dropped"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self {
            fd,
            dirs: BTreeMap::new(),
            written: BTreeSet::new(),
        })
    }

    /// Watches only these files. Returns whether an entry is newly watched: its earlier changes
    /// were not noticed.
    pub(super) fn set(&mut self, files: &BTreeSet<PathBuf>) -> io::Result<bool> {
        let wanted = WatchSet::from_files(files).0;
        if wanted.len() > POLICY_DIRECTORIES {
            let text = format!("the files are in more than {POLICY_DIRECTORIES} directories");
            return Err(io::Error::other(text));
        }
        let mut dirs: BTreeMap<i32, (PathBuf, WatchedNames)> = BTreeMap::new();
        for (dir, names) in wanted {
            match inotify::add_watch(self.fd.get_ref(), &dir, CHANGES) {
                Ok(number) => {
                    let (_, known) = dirs
                        .entry(number)
                        .or_insert_with(|| (dir.clone(), names.clone()));
                    *known = match (known.clone(), names) {
                        (WatchedNames::Only(a), WatchedNames::Only(b)) => {
                            WatchedNames::Only(&a | &b)
                        }
                        _ => WatchedNames::All,
                    };
                }
                // The directory was removed meanwhile: the one above reports when it is created
                // again.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for number in self.dirs.keys().filter(|number| !dirs.contains_key(number)) {
            // The kernel has already removed the watch of a deleted directory.
            let _ = inotify::remove_watch(self.fd.get_ref(), *number);
        }
        let is_more = dirs.iter().any(|(number, (_, names))| {
            let before = self.dirs.get(number);
            !before.is_some_and(|(_, before)| before.covers(names))
        });
        self.written.retain(|(number, _)| dirs.contains_key(number));
        self.dirs = dirs;
        Ok(is_more)
    }

    /// Whether one of the files is still open for writing. Its close is reported as a change.
    fn has_open_writes(&self) -> bool {
        !self.written.is_empty()
    }

    /// Waits for a change of a watched entry. Cancel-safe: events that were read before are not
    /// relevant.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut seen = Vec::new();
            let read = read(self.fd.get_ref(), &mut seen);
            match read {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
            let mut is_relevant = false;
            for (number, what, name) in seen {
                is_relevant |= self.handle_event(number, what, name.as_deref());
            }
            if is_relevant {
                return Ok(());
            }
        }
    }

    /// Handles one event; returns whether the files may have changed.
    fn handle_event(&mut self, number: i32, what: ReadFlags, name: Option<&OsStr>) -> bool {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            // Close events may be lost, so forget which files are open.
            self.written.clear();
            return true;
        }
        let Some((dir, names)) = self.dirs.get(&number) else {
            return false;
        };
        let Some(name) = name else {
            return !what.contains(ReadFlags::MODIFY); // The directory itself.
        };
        if matches!(names, WatchedNames::Only(names) if !names.contains(name)) {
            return false;
        }
        let is_begun = what.contains(ReadFlags::CREATE) && is_being_written(&dir.join(name));
        if is_begun || what.contains(ReadFlags::MODIFY) {
            // A bound: with `WatchedNames::All`, any number of names could be added.
            if self.written.len() < POLICY_FILES_WRITTEN {
                self.written.insert((number, name.to_owned()));
            }
            return false;
        }
        if !what.contains(ReadFlags::ATTRIB) {
            self.written.remove(&(number, name.to_owned()));
        }
        true
    }
}

/// An event of the kernel: the watch descriptor, the flags and the entry.
type InotifyEvent = (i32, ReadFlags, Option<OsString>);

/// Reads events until there are none left, which is the error `AGAIN`.
fn read(fd: &OwnedFd, seen: &mut Vec<InotifyEvent>) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); POLICY_NOTICE_BYTES];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    loop {
        let event = reader.next()?;
        let name = event.file_name();
        let name = name.map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
        seen.push((event.wd(), event.events(), name));
        if seen.len() >= NOTICES {
            return Ok(()); // The rest is read after these were handled.
        }
    }
}

/// Whether a new entry is a file that its creator still writes. A directory, a link or a new hard
/// link to an existing file is complete at once.
fn is_being_written(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::symlink_metadata(path);
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

/// The most events that are handled together.
const NOTICES: usize = 1024;

/// Reloads the policies whenever one of their files changes, until the process ends. If the kernel
/// provides no watch, logs that once: then only a signal or a request reloads them.
pub(super) async fn watch_policies(fleet: FleetHandle) {
    if let Err(error) = watch_loop(&fleet).await {
        tracing::warn!(%error, "the policy files cannot be watched; after a change, send SIGHUP to `up` or run `marshal policy reload`");
    }
    fleet.set_policies_watched(false);
}

async fn watch_loop(fleet: &FleetHandle) -> io::Result<()> {
    let mut files = fleet.policy_files();
    let mut watch = Watch::open()?;
    let now = files.borrow_and_update().clone();
    watch.set(&now)?;
    fleet.set_policies_watched(true);
    // Reload if a file changed after it was read and before it was watched.
    fleet.catch_up_policies().await;
    loop {
        let is_change = tokio::select! {
            changed = watch.changed() => {
                changed?;
                true
            }
            other = files.changed() => {
                if other.is_err() {
                    return Ok(()); // The fleet has stopped.
                }
                false
            }
        };
        // At once, without settling: files may be created next in a new directory.
        let now = files.borrow_and_update().clone();
        let is_more = watch.set(&now)?;
        if !is_change && !is_more {
            continue;
        }
        settle(&mut watch).await?;
        if watch.has_open_writes() {
            continue; // The close is reported as a change.
        }
        // Before the files are read: a later change is noticed and causes another reload.
        watch.set(&now)?;
        if is_change {
            // `reload_policies` logs and reports errors.
            let _ = fleet.reload_policies(ReloadCause::File).await;
        } else {
            fleet.catch_up_policies().await;
        }
    }
}

/// Waits until the files are unchanged for a moment, but not forever.
async fn settle(watch: &mut Watch) -> io::Result<()> {
    let deadline = Instant::now() + POLICY_SETTLE_MAX;
    loop {
        let quiet = (Instant::now() + POLICY_SETTLE).min(deadline);
        match timeout_at(quiet, watch.changed()).await {
            Err(_) => return Ok(()),
            Ok(changed) => changed?,
        }
        if Instant::now() >= deadline {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(150);

    fn watch(files: &[&Path]) -> Watch {
        let mut watch = Watch::open().expect("inotify");
        let files = files.iter().map(|path| (*path).to_owned()).collect();
        watch.set(&files).expect("watched");
        watch
    }

    async fn sees(watch: &mut Watch) -> bool {
        tokio::time::timeout(LONG, watch.changed()).await.is_ok()
    }

    async fn sees_nothing(watch: &mut Watch) -> bool {
        tokio::time::timeout(SHORT, watch.changed()).await.is_err()
    }

    /// Writes a file by a process of its own: what another test starts holds whatever this one has
    /// open up to its own exec, and so that a file is closed would be seen later.
    fn write_file(path: &Path, text: &str) {
        let mut shell = std::process::Command::new("sh");
        let wrote = shell
            .args(["-c", "printf %s \"$1\" >\"$0\""])
            .arg(path)
            .arg(text);
        assert!(wrote.status().expect("sh").success());
    }

    fn dir() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("directory");
        let path = fs::canonicalize(dir.path()).expect("real");
        (dir, path)
    }

    #[tokio::test]
    async fn a_file_that_is_written_or_replaced_is_seen_and_its_neighbours_are_not() {
        let (_kept, dir) = dir();
        let file = dir.join("p.toml");
        write_file(&file, "a");
        let mut watch = watch(&[&file]);
        fs::write(dir.join("other.log"), "x").expect("written");
        assert!(sees_nothing(&mut watch).await);
        fs::write(&file, "b").expect("written");
        assert!(sees(&mut watch).await);
        // As editors do it.
        fs::write(dir.join(".p.swp"), "c").expect("written");
        fs::rename(dir.join(".p.swp"), &file).expect("renamed");
        assert!(sees(&mut watch).await);
        fs::remove_file(&file).expect("removed");
        assert!(sees(&mut watch).await);
        fs::write(&file, "d").expect("written");
        assert!(sees(&mut watch).await);
    }

    #[tokio::test]
    async fn a_link_that_leads_elsewhere_is_seen_and_what_it_leads_to_too() {
        let (_kept, dir) = dir();
        for version in ["v1", "v2"] {
            fs::create_dir(dir.join(version)).expect("made");
            fs::write(dir.join(version).join("p.toml"), version).expect("written");
        }
        symlink("v1", dir.join("now")).expect("linked");
        symlink("now/p.toml", dir.join("p.toml")).expect("linked");
        let file = dir.join("p.toml");
        let mut watch = watch(&[&file]);
        fs::write(dir.join("v1/p.toml"), "again").expect("written");
        assert!(sees(&mut watch).await);
        // As deployments do it: the link in the middle is exchanged.
        symlink("v2", dir.join("next")).expect("linked");
        fs::rename(dir.join("next"), dir.join("now")).expect("renamed");
        assert!(sees(&mut watch).await);
        watch.set(&[file].into()).expect("watched");
        fs::write(dir.join("v2/p.toml"), "again").expect("written");
        assert!(sees(&mut watch).await);
    }

    #[tokio::test]
    async fn what_is_not_there_yet_is_seen_when_it_comes() {
        let (_kept, dir) = dir();
        let file = dir.join("below/p.toml");
        let mut watch = watch(&[&file]);
        fs::create_dir(dir.join("below")).expect("made");
        assert!(sees(&mut watch).await);
        watch.set(&[file.clone()].into()).expect("watched");
        fs::write(&file, "a").expect("written");
        assert!(sees(&mut watch).await);
        // All that is in a directory of cases counts.
        let mut all = Watch::open().expect("inotify");
        all.set(&[dir.join("below")].into()).expect("watched");
        fs::write(dir.join("below/any.jsonl"), "x").expect("written");
        assert!(sees(&mut all).await);
    }

    #[tokio::test]
    async fn what_is_being_written_is_seen_when_it_is_closed_and_not_before() {
        use std::io::Write as _;
        let (_kept, dir) = dir();
        let (file, other) = (dir.join("p.toml"), dir.join("q.toml"));
        write_file(&other, "a");
        let mut watch = watch(&[&file, &other]);
        let mut writer = fs::File::create(&file).expect("created");
        writer.write_all(b"half").expect("written");
        assert!(sees_nothing(&mut watch).await);
        assert!(watch.has_open_writes());
        // A change of another one is seen, and does not make it whole.
        write_file(&other, "b");
        assert!(sees(&mut watch).await);
        assert!(watch.has_open_writes());
        drop(writer);
        assert!(sees(&mut watch).await);
        assert!(!watch.has_open_writes());
        // In place, too.
        let mut writer = fs::File::options().append(true).open(&file).expect("open");
        writer.write_all(b"more").expect("written");
        assert!(sees_nothing(&mut watch).await);
        assert!(watch.has_open_writes());
        drop(writer);
        assert!(sees(&mut watch).await);
        // What is removed before it is whole is nobody's to wait for.
        fs::remove_file(&file).expect("removed");
        assert!(sees(&mut watch).await);
        let writer = fs::File::create(&file).expect("created");
        assert!(sees_nothing(&mut watch).await);
        fs::remove_file(&file).expect("removed");
        assert!(sees(&mut watch).await);
        assert!(!watch.has_open_writes());
        drop(writer);
        // Another name of a whole file is whole.
        fs::hard_link(&other, &file).expect("linked");
        assert!(sees(&mut watch).await);
        assert!(!watch.has_open_writes());
    }

    #[tokio::test]
    async fn what_was_not_watched_before_is_told() {
        let (_kept, dir) = dir();
        let (one, two) = (dir.join("p.toml"), dir.join("below/q.toml"));
        fs::create_dir(dir.join("below")).expect("made");
        let mut watch = Watch::open().expect("inotify");
        let of = |files: &[&PathBuf]| files.iter().map(|path| (*path).clone()).collect();
        assert!(watch.set(&of(&[&one])).expect("watched"));
        assert!(!watch.set(&of(&[&one])).expect("watched"));
        assert!(watch.set(&of(&[&one, &two])).expect("watched"));
        assert!(!watch.set(&of(&[&two])).expect("watched"));
        assert!(
            watch
                .set(&of(&[&two, &dir.join("below/r.toml")]))
                .expect("watched")
        );
    }
}
