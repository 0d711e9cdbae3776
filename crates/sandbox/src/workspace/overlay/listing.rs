//! Lists the content of an apply's directory, and removes exactly what was listed.
//!
//! Another process may still have a removed directory open, or as its working directory, and add
//! files until it is gone. So nothing is removed by its name alone: an entry first moves into a
//! quarantine directory that no other process has open, and is removed only if it is what was
//! listed. A directory is removed only when the kernel says that it is empty. Everything else is
//! kept. Must not know why something is removed.
//! and is kept. Must not know why something goes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Errno;

use crate::workspace::tree::{
    FileId, Kind, Meta, Root, Timestamp, WalkBounds, WalkStep, for_each_entry, meta_at, meta_of,
    open_dir_at, open_own_dir_at, walk,
};
use marshal_model::limits;

/// The quarantine directory. The other names beside it are numbers.
const QUARANTINE_DIR: &CStr = c"aside";

/// A time without a meaning.
const UNKNOWN: Timestamp = (i64::MIN, 0);

/// The identity and attributes of a listed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedEntry {
    is_dir: bool,
    id: FileId,
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl ListedEntry {
    const fn from_meta(meta: &Meta) -> Self {
        Self {
            is_dir: matches!(meta.kind, Kind::Dir),
            id: meta.id,
            size: meta.size,
            mtime: meta.mtime,
            // The ctime of a file with hard links changes when another of its names is removed.
            ctime: if meta.links > 1 { UNKNOWN } else { meta.ctime },
        }
    }

    /// Whether nothing was done to it since `then`, as far as that can be known.
    fn is_untouched(&self, then: &Self) -> bool {
        [self.ctime, then.ctime].contains(&UNKNOWN) || self.ctime == then.ctime
    }

    /// Identity and content attributes, without those that a move changes.
    const fn key(&self) -> (FileId, u64, Timestamp) {
        (self.id, self.size, self.mtime)
    }
}

/// Everything in a directory, by path below it.
#[derive(Debug, Default)]
pub(super) struct Listing {
    entries: BTreeMap<Vec<u8>, ListedEntry>,
}

impl Listing {
    /// Lists a directory.
    ///
    /// # Errors
    /// The system error, or that the directory cannot be listed completely.
    pub(super) fn read(root: &Root) -> io::Result<Self> {
        let bounds = WalkBounds {
            entries: limits::OVERLAY_LISTED,
            // The directory itself and the staging names add two levels.
            depth: limits::OVERLAY_DEPTH + 2,
            time: limits::WALK_TIME,
        };
        let mut things = BTreeMap::new();
        let walked = walk(root, bounds, &mut |entry| {
            things.insert(entry.path.to_vec(), ListedEntry::from_meta(entry.meta));
            WalkStep::Enter
        })?;
        if walked.incomplete.is_some() || walked.unreadable > 0 {
            return Err(io::Error::other(
                "the files to be removed are too many to list, or not all of them can be read",
            ));
        }
        Ok(Self { entries: things })
    }

    /// Encodes the list, to be stored.
    ///
    /// # Errors
    /// It is longer than [`limits::OVERLAY_RECORD_BYTES`].
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        for (path, thing) in &self.entries {
            let kind = if thing.is_dir { 'd' } else { 'f' };
            let (major, minor, inode) = thing.id;
            let ((m, mn), (c, cn)) = (thing.mtime, thing.ctime);
            out.extend_from_slice(path);
            let size = thing.size;
            let rest = format!("\0{kind} {major} {minor} {inode} {size} {m} {mn} {c} {cn}\0");
            out.extend_from_slice(rest.as_bytes());
            if out.len() as u64 > limits::OVERLAY_RECORD_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        Ok(out)
    }

    /// Decodes a stored list.
    ///
    /// # Errors
    /// [`Self::encode`] did not write it.
    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut things = BTreeMap::new();
        let mut parts = bytes.split(|byte| *byte == 0);
        while let (Some(path), Some(rest)) = (parts.next(), parts.next()) {
            let thing = std::str::from_utf8(rest)
                .ok()
                .and_then(parse_entry)
                .ok_or(io::ErrorKind::InvalidData)?;
            things.insert(path.to_vec(), thing);
        }
        Ok(Self { entries: things })
    }

    /// Removes every listed and unchanged entry, and nothing else. Returns the remaining paths.
    ///
    /// # Errors
    /// The system error; another call can remove the rest.
    pub(super) fn remove(&self, dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
        match rustix::fs::mkdirat(dir, QUARANTINE_DIR, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut removal = Removal {
            listing: self,
            known: self.entries.values().map(ListedEntry::key).collect(),
            quarantine: open_dir_at(dir, QUARANTINE_DIR)?,
            next: 0,
            remaining: Vec::new(),
        };
        removal.clear_quarantine()?;
        removal.clear_directory(dir.as_fd(), b"")?;
        match rustix::fs::unlinkat(dir, QUARANTINE_DIR, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(removal.remaining),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn parse_entry(text: &str) -> Option<ListedEntry> {
    let mut words = text.split(' ');
    let is_dir = match words.next()? {
        "d" => true,
        "f" => false,
        _ => return None,
    };
    let mut next = || words.next();
    let thing = ListedEntry {
        is_dir,
        id: (
            next()?.parse().ok()?,
            next()?.parse().ok()?,
            next()?.parse().ok()?,
        ),
        size: next()?.parse().ok()?,
        mtime: (next()?.parse().ok()?, next()?.parse().ok()?),
        ctime: (next()?.parse().ok()?, next()?.parse().ok()?),
    };
    next().is_none().then_some(thing)
}

struct Removal<'l> {
    listing: &'l Listing,
    /// Every listed entry, wherever it is now.
    known: BTreeSet<(FileId, u64, Timestamp)>,
    quarantine: OwnedFd,
    /// The next name in the quarantine directory.
    next: u64,
    remaining: Vec<Vec<u8>>,
}

impl Removal<'_> {
    /// Clears the quarantine of a removal that was killed.
    fn clear_quarantine(&mut self) -> io::Result<()> {
        let mut names: Vec<CString> = Vec::new();
        for_each_entry(&self.quarantine, |name| {
            names.push(name.to_owned());
            Ok(())
        })?;
        for name in names {
            let is_known = self.is_known(&name)?;
            if is_known {
                rustix::fs::unlinkat(&self.quarantine, &name, AtFlags::empty())?;
            } else {
                self.note_remaining([QUARANTINE_DIR.to_bytes(), b"/", name.to_bytes()].concat());
            }
        }
        Ok(())
    }

    fn is_known(&self, aside: &CStr) -> io::Result<bool> {
        let thing = ListedEntry::from_meta(&meta_at(&self.quarantine, aside)?);
        Ok(!thing.is_dir && self.known.contains(&thing.key()))
    }

    fn note_remaining(&mut self, path: Vec<u8>) {
        // As many as a message names, and one more that shows that there are others.
        if self.remaining.len() <= limits::OVERLAY_PATHS_NAMED {
            self.remaining.push(path);
        }
    }

    fn clear_directory(&mut self, dir: BorrowedFd<'_>, at: &[u8]) -> io::Result<()> {
        let mut ours = Vec::new();
        for_each_entry(dir, |name| {
            let slash: &[u8] = if at.is_empty() { b"" } else { b"/" };
            let path = [at, slash, name.to_bytes()].concat();
            if self.listing.entries.contains_key(&path) {
                ours.push((name.to_owned(), path));
            } else if !at.is_empty() || name != QUARANTINE_DIR {
                self.note_remaining(path);
            }
            Ok(())
        })?;
        for (name, path) in ours {
            let Some(thing) = self.listing.entries.get(&path) else {
                continue;
            };
            let removed = if thing.is_dir {
                self.remove_directory(dir, &name, &path, thing)?
            } else {
                self.remove_leaf(dir, &name, !at.is_empty(), thing)?
            };
            if !removed {
                self.note_remaining(path);
            }
        }
        Ok(())
    }

    /// Removes a directory; returns whether it is gone, or its remaining content is reported.
    fn remove_directory(
        &mut self,
        above: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        thing: &ListedEntry,
    ) -> io::Result<bool> {
        if meta_at(above, name).is_ok_and(|meta| meta.id != thing.id) {
            return Ok(false);
        }
        let dir = match open_own_dir_at(above, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            dir => dir?,
        };
        if meta_of(&dir)?.id != thing.id {
            return Ok(false);
        }
        let before = self.remaining.len();
        self.clear_directory(dir.as_fd(), path)?;
        match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            // Another process added an entry at the last moment.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                Ok(self.remaining.len() > before)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a file or link; returns whether it is gone.
    fn remove_leaf(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        has_not_moved: bool,
        thing: &ListedEntry,
    ) -> io::Result<bool> {
        let now = match meta_at(dir, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            now => ListedEntry::from_meta(&now?),
        };
        if now.is_dir || now.key() != thing.key() || (has_not_moved && !now.is_untouched(thing)) {
            return Ok(false);
        }
        let aside = loop {
            let aside = CString::new(self.next.to_string())?;
            self.next += 1;
            let never = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(dir, name, &self.quarantine, &aside, never) {
                Ok(()) => break aside,
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        };
        // Compare only now: in quarantine no other process can replace it any more.
        let taken = ListedEntry::from_meta(&meta_at(&self.quarantine, &aside)?);
        if !taken.is_dir && taken.key() == thing.key() {
            rustix::fs::unlinkat(&self.quarantine, &aside, AtFlags::empty())?;
            return Ok(true);
        }
        let never = RenameFlags::NOREPLACE;
        // If its old name is in use again, it stays in quarantine and is kept there.
        let _ = rustix::fs::renameat_with(&self.quarantine, &aside, dir, name, never);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::testing::{Scratch, scratch};
    use super::*;

    fn tree() -> (Scratch, Root, Listing) {
        let dir = scratch();
        for name in ["0/deep/er", "1"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in ["0/a", "0/deep/b", "0/deep/er/c", "2"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        let listing = Listing::read(&root).unwrap();
        let listing = Listing::decode(&listing.encode().unwrap()).unwrap();
        (dir, root, listing)
    }

    fn remove(root: &Root, listing: &Listing) -> Vec<String> {
        let dir = open_dir_at(root, c".").unwrap();
        let entries = listing
            .remove(&dir)
            .unwrap()
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap());
        let mut entries: Vec<String> = entries.collect();
        entries.sort_unstable();
        entries
    }

    #[test]
    fn everything_that_was_listed_goes() {
        let (dir, root, _) = tree();
        // Of two names of one file the second goes too.
        for name in ["0/b", "0/c", "3"] {
            fs::hard_link(dir.path().join("0/a"), dir.path().join(name)).unwrap();
        }
        let listing = Listing::read(&root).unwrap();
        assert_eq!(remove(&root, &listing), [""; 0]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // Once more is fine.
        assert_eq!(remove(&root, &listing), [""; 0]);
    }

    #[test]
    fn what_came_or_was_changed_since_is_kept_and_told() {
        let (dir, root, listing) = tree();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("0/deep/new"), "mine").unwrap();
        fs::write(at("0/a"), "longer than before").unwrap();
        fs::create_dir_all(at("moved/in")).unwrap();
        fs::rename(at("moved"), at("1/moved")).unwrap();
        fs::write(at("2.new"), "2").unwrap();
        fs::rename(at("2.new"), at("2")).unwrap();
        assert_eq!(
            remove(&root, &listing),
            ["0/a", "0/deep/new", "1/moved", "2"]
        );
        assert_eq!(fs::read_to_string(at("0/deep/new")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(at("0/a")).unwrap(), "longer than before");
        assert!(at("1/moved/in").is_dir() && at("2").is_file());
        assert!(!at("0/deep/b").exists() && !at("0/deep/er").exists());
        assert!(!at("aside").exists());
    }

    #[test]
    fn what_a_killed_removal_took_aside_goes_and_what_it_caught_is_kept() {
        let (dir, root, listing) = tree();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("aside")).unwrap();
        fs::rename(at("0/a"), at("aside/0")).unwrap();
        fs::write(at("aside/1"), "somebody's").unwrap();
        assert_eq!(remove(&root, &listing), ["aside/1"]);
        assert!(!at("aside/0").exists() && at("aside/1").exists());
        assert!(!at("0").exists());
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for bytes in [&b"a\0x 1 2 3 4 5 6 7 8\0"[..], b"a\0d 1 2\0", b"a\0\0"] {
            assert!(Listing::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
