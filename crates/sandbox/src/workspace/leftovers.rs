//! Temporary files that a killed process left beside their targets.
//!
//! Owns the criteria: name, age and owner. Everything is opened below one root descriptor, through
//! no link. Must not know versions.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, OFlags, ResolveFlags, Stat};

use super::tree::{Root, for_each_entry};
use crate::atomic_file::TEMP_PREFIX;
use crate::open::open_within;
use marshal_model::limits::{LEFTOVER_AGE, WALK_ENTRIES};

/// Removes unused temporary files from one directory below a root; returns how many.
///
/// # Errors
/// The system error for the directory; a missing directory is no error.
pub fn clear(root: &Root, dir: &str) -> io::Result<u64> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match open_within(root, dir, flags, resolve) {
        Ok(dir) => dir,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(0),
        Err(errno) => return Err(errno.into()),
    };
    let owner = rustix::fs::fstat(&dir)?.st_uid;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let before = now.unwrap_or_default().saturating_sub(LEFTOVER_AGE);
    let before = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
    let (mut seen, mut removed) = (0, 0);
    for_each_entry(&dir, |name| {
        seen += 1;
        if seen > WALK_ENTRIES {
            return Ok(());
        }
        if name.to_str().is_ok_and(is_name) && is_left(&dir, name, owner, before) {
            match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) => removed += 1,
                Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    })?;
    Ok(removed)
}

fn is_name(name: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(TEMP_PREFIX)
        .is_some_and(|digits| digits.len() == 32 && digits.bytes().all(digit))
}

/// Whether it is a regular file of ours, or of the directory's owner: a new file gets the owner of
/// its directory.
fn is_left(dir: &OwnedFd, name: &std::ffi::CStr, owner: u32, before: i64) -> bool {
    let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return false;
    };
    let Stat { st_uid, .. } = stat;
    let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_ours = st_uid == owner || st_uid == rustix::process::geteuid().as_raw();
    is_plain && stat.st_nlink == 1 && is_ours && stat.st_mtime < before
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_old_files_with_such_a_name_go() {
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| dir.path().join("d").join(name);
        fs::create_dir(dir.path().join("d")).expect("made");
        let fresh = format!("{TEMP_PREFIX}{}", "0f".repeat(16));
        let old = SystemTime::now() - 2 * LEFTOVER_AGE - Duration::from_secs(1);
        let make = |name: &str, is_old: bool| {
            let file = fs::File::create(at(name)).expect("made");
            if is_old {
                file.set_modified(old).expect("old");
            }
        };
        let left = format!("{TEMP_PREFIX}{}", "a1".repeat(16));
        let long = format!("{left}0");
        let others = [long.as_str(), "marshal", ".marshal-short", "notes.txt"];
        for name in others.into_iter().chain([left.as_str()]) {
            make(name, true);
        }
        make(&fresh, false);
        let temp_name = format!("{TEMP_PREFIX}{}", "b2".repeat(16));
        fs::create_dir(at(&temp_name)).expect("made");
        let link = format!("{TEMP_PREFIX}{}", "c3".repeat(16));
        std::os::unix::fs::symlink("notes.txt", at(&link)).expect("linked");
        let root = Root::open(dir.path()).expect("root");
        assert_eq!(clear(&root, "d").expect("cleared"), 1);
        assert!(!at(&left).exists());
        for name in others
            .into_iter()
            .chain([fresh.as_str(), &temp_name, &link])
        {
            assert!(at(name).symlink_metadata().is_ok(), "{name}");
        }
        assert_eq!(clear(&root, "none").expect("nothing"), 0);
        assert_eq!(clear(&root, "d/notes.txt").expect("nothing"), 0);
        std::os::unix::fs::symlink("d", dir.path().join("way")).expect("linked");
        clear(&root, "way").expect_err("a link is not followed");
    }
}
