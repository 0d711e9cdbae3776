//! Removes finished files, and quarantines entries that are not valid.
//!
//! Owns that no entry, whatever it is and whoever created it, blocks the plane for ever. Calls
//! block.

use std::io;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::disk::{Area, Disk};
use marshal_model::untrusted::escape_for_display;

/// The number of attempts to find a free name for a quarantined entry.
const NAMES: u32 = 16;

/// Returns a random suffix for a unique name.
pub(super) fn random_suffix() -> String {
    let mut number = uuid::Uuid::new_v4().simple().to_string();
    number.truncate(8);
    number
}

impl Disk {
    /// Removes a file, if it exists. A directory with its name is quarantined.
    pub(super) fn remove(&self, area: Area, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.fd(area), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) if self.is_directory(area, name) => {
                self.quarantine(area, name, "it is a directory, not a file")
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Quarantines an entry of any kind, and writes the reason next to it.
    pub(super) fn quarantine(&self, area: Area, name: &str, why: &str) -> io::Result<()> {
        self.quarantine_as(area, name, name, why)
    }

    /// Like [`Self::quarantine`], under another name.
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
        Err(io::Error::other(
            "every candidate name in rejected/ is taken",
        ))
    }

    /// Renames an entry that cannot be moved to a hidden name, which is never read. A directory
    /// that this user may not write can be renamed within its parent, but not moved to another.
    fn hide(&self, area: Area, name: &str, called: &str, why: &str) -> io::Result<()> {
        let number = random_suffix();
        let hidden = format!(".{called}.{number}");
        let dir = self.fd(area);
        match rustix::fs::renameat_with(dir, name, dir, &hidden, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // Without support for RENAME_NOREPLACE, the random name avoids a replacement.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(dir, name, dir, &hidden)?,
            Err(errno) => return Err(errno.into()),
        }
        let (why, area) = (escape_for_display(why, 1000), area.as_str());
        let text = format!("{why}; it cannot be moved here and was renamed to {area}/{hidden}\n");
        let reason = format!("{called}.{number}.reason");
        self.put(Area::Rejected, &reason, text.as_bytes())?;
        Ok(())
    }
}

/// Whether the error is due to the entry itself, and not to a full or failed disk.
fn is_entry_error(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::ACCESS | Errno::PERM | Errno::BUSY | Errno::XDEV)
    )
}
