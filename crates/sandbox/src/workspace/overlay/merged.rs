//! The merged view of an overlay: what was written, else the workspace below.
//!
//! It resolves one name at a time from two root descriptors, and follows no link. Must not know
//! what a link means.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::upper_walk::is_opaque;
use crate::workspace::tree::{Kind, Root, meta_of, open_handle_at, reopen};

/// The upper and lower directory of an overlay.
#[derive(Debug)]
pub struct MergedView {
    upper: Root,
    lower: Root,
}

/// One directory in a path: its upper and lower part, each if it is visible.
struct MergedLevel {
    upper: Option<OwnedFd>,
    lower: Option<OwnedFd>,
}

impl MergedView {
    /// A view of changes over a directory.
    #[must_use]
    pub const fn new(upper: Root, lower: Root) -> Self {
        Self { upper, lower }
    }

    /// Opens what the agent sees at these components below its workspace. All but the last must be
    /// directories.
    ///
    /// # Errors
    /// `ENOENT` if the agent sees nothing there, `ENOTDIR` for a path through something else, or
    /// the system error.
    pub fn open_handle<'p>(&self, parts: impl Iterator<Item = &'p [u8]>) -> io::Result<OwnedFd> {
        let mut level = MergedLevel {
            upper: Some(open_handle_at(&self.upper, c".")?),
            lower: Some(open_handle_at(&self.lower, c".")?),
        };
        for part in parts {
            let name = CString::new(part)?;
            level = level.descend(&name)?;
        }
        level
            .upper
            .or(level.lower)
            .ok_or_else(|| Errno::NOENT.into())
    }

    /// The directories, open for reading, that together form the directory at these components, the
    /// upper one first.
    ///
    /// # Errors
    /// As for [`MergedView::open_handle`].
    pub fn open_directories<'p>(
        &self,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> io::Result<Vec<OwnedFd>> {
        let mut level = MergedLevel {
            upper: Some(open_handle_at(&self.upper, c".")?),
            lower: Some(open_handle_at(&self.lower, c".")?),
        };
        for part in parts {
            let name = CString::new(part)?;
            level = level.descend(&name)?;
        }
        let handles: Vec<OwnedFd> = level.upper.into_iter().chain(level.lower).collect();
        let Some(first) = handles.first() else {
            return Err(Errno::NOENT.into());
        };
        if meta_of(first)?.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        handles.iter().map(|dir| reopen(dir, flags)).collect()
    }
}

impl MergedLevel {
    fn descend(&self, name: &CStr) -> io::Result<Self> {
        let below = |dir: &Option<OwnedFd>| -> io::Result<Option<OwnedFd>> {
            let Some(dir) = dir else { return Ok(None) };
            match open_handle_at(dir, name) {
                Ok(handle) => Ok(Some(handle)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(upper) = below(&self.upper)? else {
            let lower = below(&self.lower)?.ok_or(Errno::NOENT)?;
            return Ok(Self {
                upper: None,
                lower: Some(lower),
            });
        };
        let stat = rustix::fs::fstat(&upper)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice if stat.st_rdev == 0 => Err(Errno::NOENT.into()),
            FileType::Directory => {
                let dir = reopen(&upper, OFlags::RDONLY | OFlags::DIRECTORY)?;
                let lower = if is_opaque(dir.as_fd())? {
                    None
                } else {
                    below(&self.lower)?
                };
                let is_dir = |dir: &OwnedFd| meta_of(dir).map(|meta| meta.kind == Kind::Dir);
                let lower = match lower {
                    Some(lower) if is_dir(&lower)? => Some(lower),
                    _ => None,
                };
                Ok(Self {
                    upper: Some(upper),
                    lower,
                })
            }
            _ => Ok(Self {
                upper: Some(upper),
                lower: None,
            }),
        }
    }
}
