//! What is taken out of the way: files that are done with, and entries that are none.
//!
//! Owns that no entry, whatever it is and whoever made it, stands in the way for ever. Calls block.

use std::io;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::disk::{Area, Disk};
use marshal_model::untrusted::escape_for_display;

/// Attempts at a name for what is put aside.
const NAMES: u32 = 16;

/// A part of a name that nothing has.
pub(super) fn random_suffix() -> String {
    let mut number = uuid::Uuid::new_v4().simple().to_string();
    number.truncate(8);
    number
}

impl Disk {
    /// Removes a file, if it is there. A directory that stands at its name is put aside.
    pub(super) fn remove(&self, area: Area, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.fd(area), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) if self.is_directory(area, name) => {
                self.quarantine(area, name, "it is a directory where a file goes")
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Puts an entry aside, whatever it is, and says why beside it.
    pub(super) fn quarantine(&self, area: Area, name: &str, why: &str) -> io::Result<()> {
        self.quarantine_as(area, name, name, why)
    }

    /// The same under another name than it has.
    pub(super) fn quarantine_as(
        &self,
        area: Area,
        name: &str,
        called: &str,
        why: &str,
    ) -> io::Result<()> {
        let mut to = called.to_owned();
        for _ in 0..NAMES {
            if !self.has(area, name) {
                return Ok(()); // Somebody took it back.
            }
            match self.rename_entry(area, name, Area::Rejected, &to) {
                Ok(true) => {
                    let text = format!("{}\n", escape_for_display(why, 1000));
                    self.put(Area::Rejected, &format!("{to}.reason"), text.as_bytes())?;
                    return Ok(());
                }
                Ok(false) => to = format!("{called}.{}", random_suffix()),
                Err(error) if is_entry_error(&error) => {
                    return self.hide(area, name, called, why);
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no name is free in rejected/"))
    }

    /// Gives what cannot be moved elsewhere a name that nobody looks at. A directory that this user
    /// may not write can be renamed where it stands, and nowhere else.
    fn hide(&self, area: Area, name: &str, called: &str, why: &str) -> io::Result<()> {
        let number = random_suffix();
        let hidden = format!(".{called}.{number}");
        let dir = self.fd(area);
        match rustix::fs::renameat_with(dir, name, dir, &hidden, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // What cannot be told to replace nothing: the name is a new one.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(dir, name, dir, &hidden)?,
            Err(errno) => return Err(errno.into()),
        }
        let (why, area) = (escape_for_display(why, 1000), area.as_str());
        let text = format!("{why}; it cannot be moved here, and is {area}/{hidden} now\n");
        let reason = format!("{called}.{number}.reason");
        self.put(Area::Rejected, &reason, text.as_bytes())?;
        Ok(())
    }
}

/// Whether an entry is what cannot be moved, and not the disk what takes nothing.
fn is_entry_error(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::ACCESS | Errno::PERM | Errno::BUSY | Errno::XDEV)
    )
}
