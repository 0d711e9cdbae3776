//! A new file with a temporary name beside its target, or without a name, until one step gives it
//! its final name.
//!
//! Owns the temporary name, and the guarantee that a file that must not exist is never overwritten.
//! Must not know the content or the owner.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Prefix of temporary names; 32 digits of a random number follow.
pub(super) const TEMP_PREFIX: &str = ".marshal-";
/// Attempts to find an unused name.
const NAMES: u32 = 16;

/// What happens to an existing file at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnExisting {
    /// It is replaced, whatever it is by then: a link is replaced, not followed.
    Replace,
    /// It is an error.
    Fail,
}

/// A new file that does not have its final name yet.
#[derive(Debug)]
pub(super) struct AtomicFile<'d> {
    dir: &'d OwnedFd,
    /// `None`: the file has no name and vanishes when its descriptor closes.
    name: Option<String>,
    file: File,
    on_existing: OnExisting,
}

impl<'d> AtomicFile<'d> {
    /// Creates an empty file in a directory. With [`OnExisting::Fail`] it has no name, if the file
    /// system supports O_TMPFILE.
    pub(super) fn create(dir: &'d OwnedFd, on_existing: OnExisting) -> Result<Self, Errno> {
        if on_existing == OnExisting::Fail
            && let Some(file) = open_unnamed(dir)
        {
            return Ok(Self {
                dir,
                name: None,
                file,
                on_existing,
            });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        for _ in 0..NAMES {
            let name = format!("{TEMP_PREFIX}{}", uuid::Uuid::new_v4().simple());
            match rustix::fs::openat(dir, &name, flags | OFlags::CLOEXEC, PRIVATE) {
                Ok(file) => {
                    return Ok(Self {
                        dir,
                        name: Some(name),
                        file: File::from(file),
                        on_existing,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Its temporary name, if it has one.
    pub(super) fn temp_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Gives it its final name. [`Errno::EXIST`]: something exists there, with
    /// [`OnExisting::Fail`].
    pub(super) fn persist(&self, place: &str) -> Result<(), Errno> {
        let Some(name) = &self.name else {
            let own = proc_path(&self.file);
            return rustix::fs::linkat(CWD, own, self.dir, place, AtFlags::SYMLINK_FOLLOW);
        };
        let dir = self.dir;
        match self.on_existing {
            OnExisting::Replace => rustix::fs::renameat(dir, name, dir, place),
            OnExisting::Fail => {
                match rustix::fs::renameat_with(dir, name, dir, place, RenameFlags::NOREPLACE) {
                    // The file system has no RENAME_NOREPLACE: link the final name, then remove the
                    // temporary one.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        rustix::fs::linkat(dir, name, dir, place, AtFlags::empty())?;
                        self.discard();
                        Ok(())
                    }
                    done => done,
                }
            }
        }
    }

    /// Removes its temporary name, if it was not persisted.
    pub(super) fn discard(&self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.dir, name, AtFlags::empty());
        }
    }
}

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file without a name that can be linked later; `None` where that is not possible.
fn open_unnamed(dir: &OwnedFd) -> Option<File> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, ".", flags, PRIVATE).ok()?);
    // Such a file is linked through /proc, so /proc must be there.
    let here = rustix::fs::fstat(file.as_fd()).ok()?;
    let seen = rustix::fs::stat(proc_path(&file)).ok()?;
    ((here.st_dev, here.st_ino) == (seen.st_dev, seen.st_ino)).then_some(file)
}

fn proc_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(dir: &std::path::Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("listed");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("a name")
        };
        entries.map(name).collect()
    }

    #[test]
    fn what_appeared_at_its_place_is_not_lost_whether_it_has_a_name_or_none() {
        let temp = tempfile::tempdir().expect("directory");
        let dir = OwnedFd::from(File::open(temp.path()).expect("open"));
        let nameless = AtomicFile::create(&dir, OnExisting::Fail).expect("made");
        let mut named = AtomicFile::create(&dir, OnExisting::Replace).expect("made");
        assert!(
            named
                .temp_name()
                .is_some_and(|name| name.starts_with(TEMP_PREFIX))
        );
        named.on_existing = OnExisting::Fail;
        for fresh in [&nameless, &named] {
            fresh.file().write_all(b"ours").expect("written");
            std::fs::write(temp.path().join("a"), "theirs").expect("written");
            assert_eq!(fresh.persist("a"), Err(Errno::EXIST));
            assert_eq!(
                std::fs::read(temp.path().join("a")).expect("there"),
                b"theirs"
            );
            std::fs::remove_file(temp.path().join("a")).expect("removed");
            fresh.persist("a").expect("placed");
            assert_eq!(
                std::fs::read(temp.path().join("a")).expect("there"),
                b"ours"
            );
        }
        assert_eq!(names(temp.path()), ["a"]);
    }

    #[test]
    fn one_that_replaces_nothing_has_no_name_to_be_left_behind() {
        // Every file system of the tests has files without a name, or this says so.
        let temp = tempfile::tempdir().expect("directory");
        let dir = OwnedFd::from(File::open(temp.path()).expect("open"));
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        let has = rustix::fs::openat(&dir, ".", flags, PRIVATE).is_ok();
        let fresh = AtomicFile::create(&dir, OnExisting::Fail).expect("made");
        assert_eq!(fresh.temp_name().is_none(), has);
        assert_eq!(names(temp.path()).is_empty(), has);
        fresh.discard();
        assert!(names(temp.path()).is_empty());
    }
}
