//! The limits of working trees: clones, bundles, masks, slices.

use std::time::Duration;

/// How long git may take to make a clone, to make a bundle, or to check one.
pub const GIT_TREE_TIMEOUT: Duration = Duration::from_secs(180);
/// Bytes of one bundle, of one file that git writes meanwhile, and of the pack that comes out of it.
pub const BUNDLE_BYTES: u64 = 1 << 30;
/// Bytes of the part of a bundle before its pack: the one branch, and its prerequisites.
pub const BUNDLE_HEAD_BYTES: usize = 256 << 10;
/// Prerequisite commits of a bundle.
pub const BUNDLE_BASES: usize = 1024;
/// Bytes that git may print about a repository beside the sizes of its files.
pub const GIT_OUTPUT_BYTES: usize = 64 << 10;
/// Files and directories of one workspace that a mask hides. One more, and nothing is started.
pub const MASKED_PATHS: usize = 1000;
/// Directories and links of one workspace that are mounted in place, because they lead to what a
/// mask hides. One more, and nothing is started.
pub const MASK_PINNED_PATHS: usize = 4000;
/// Paths of one slice: each is opened and mounted on its own.
pub const SLICES: usize = 64;
/// Patterns of one mask.
pub const MASK_PATTERNS: usize = 256;
