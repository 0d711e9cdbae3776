//! The size of a tree: a substitute for a quota.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::tree::{IncompleteReason, Kind, Root, TreeError, WalkBounds, WalkStep, walk};

/// The size of a tree on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Disk space of its files and directories in bytes: holes take none, and a file with several
    /// hard links counts once.
    pub bytes: u64,
    /// Number of entries below the root, of every kind.
    pub files: u64,
    /// Number of directories that could not be read for lack of permission; their content is not in
    /// `bytes`.
    pub unreadable: u64,
    /// Why the measurement is incomplete, if it is. A tree beyond the limits of a walk counts as
    /// too large; one that changed meanwhile ([`IncompleteReason::Moved`]) is measured again next
    /// time.
    pub incomplete: Option<IncompleteReason>,
}

/// Bytes and inodes used on the file system of `path`, by all users. Some file systems (Btrfs)
/// count no inodes.
///
/// # Errors
/// The errors of statvfs(3).
pub fn filesystem_usage(path: &Path) -> io::Result<(u64, u64)> {
    let of = rustix::fs::statvfs(path)?;
    let blocks = of.f_blocks.saturating_sub(of.f_bfree);
    let bytes = blocks.saturating_mul(of.f_frsize);
    Ok((bytes, of.f_files.saturating_sub(of.f_ffree)))
}

/// Measures everything below `root`, within [`Bounds::default`].
pub fn measure(root: &Root) -> Result<Size, TreeError> {
    measure_within(root, WalkBounds::default())
}

fn measure_within(root: &Root, bounds: WalkBounds) -> Result<Size, TreeError> {
    let mut bytes = 0_u64;
    // Bounded by the walk's limit of entries.
    let mut seen = HashSet::new();
    let walked = walk(root, bounds, &mut |entry| {
        let meta = entry.meta;
        if meta.kind == Kind::Dir || meta.links < 2 || seen.insert(meta.id) {
            bytes = bytes.saturating_add(meta.disk_bytes);
        }
        WalkStep::Enter
    })
    .map_err(|error| TreeError::at_path("measure", root.path(), error))?;
    Ok(Size {
        bytes,
        files: walked.entries,
        unreadable: walked.unreadable,
        incomplete: walked.incomplete,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::scratch;
    use super::*;

    #[test]
    fn a_size_counts_what_is_on_disk_once_and_follows_no_link() {
        let dir = scratch();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(measure(&root).unwrap(), Size::default());
        std::fs::write(dir.path().join("a"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("c")).unwrap();
        let sparse = std::fs::File::create(dir.path().join("d")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let size = measure(&root).unwrap();
        assert_eq!((size.files, size.incomplete), (4, None));
        assert!((1 << 20..2 << 20).contains(&size.bytes), "{size:?}");
    }

    #[test]
    fn a_tree_beyond_the_bounds_says_so() {
        let dir = scratch();
        for n in 0..20 {
            std::fs::create_dir_all(dir.path().join(format!("{n}/x/y"))).unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        let cut = |bounds| measure_within(&root, bounds).unwrap().incomplete;
        let bounds = WalkBounds::default();
        assert_eq!(cut(bounds), None);
        assert_eq!(
            cut(WalkBounds {
                entries: 59,
                ..bounds
            }),
            Some(IncompleteReason::Entries)
        );
        assert_eq!(
            cut(WalkBounds { depth: 1, ..bounds }),
            Some(IncompleteReason::Depth)
        );
    }
}
