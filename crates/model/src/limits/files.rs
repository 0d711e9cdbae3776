//! Files of a workspace: copies, homes, walks, clones, bundles, masks, overlays.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// A copy's limits: bytes and files.
pub const COPY_BYTES: u64 = 2 << 30;

/// Files in a copy.
pub const COPY_FILES: u64 = 200_000;

/// How long a copy is kept after its task.
pub const COPY_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often old copies are swept.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// How often, at most, one session's home and copy are measured while quotas do not exist; and how
/// often they are while its child says anything, or they grow, or the disk fills.
pub const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

/// The longest time between two such measurements, however quiet a child is.
pub const MEASURE_QUIET_INTERVAL: Duration = Duration::from_secs(80);

/// How often it is asked which sessions are to be measured, and how full the disk is.
pub const MEASURE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The size limit of a session's home, in bytes.
pub const HOME_BYTES: u64 = 4 << 30;

/// The largest file that `home_files` may name, in bytes: settings and credentials, not data.
pub const HOME_FILE_BYTES: u64 = 64 << 20;

/// Levels of directories in a copy. Two descriptors a level are open while it is made.
pub const COPY_DEPTH: usize = 100;

/// Bytes of the list of a copy's files: 200,000 paths of 320 bytes.
pub const COPY_LIST_BYTES: usize = 64 << 20;

/// Entries that one walk over a tree looks at before it is cut.
pub const WALK_ENTRIES: u64 = 1_000_000;

/// Levels that one walk goes down before it is cut.
pub const WALK_DEPTH: usize = 16_384;

/// How long one walk over a tree may take before it is cut.
pub const WALK_TIME: Duration = Duration::from_secs(20);

/// Bytes of paths that one manifest of a workspace holds before it is cut.
pub const MANIFEST_BYTES: usize = 64 << 20;

/// The longest path in a manifest, in bytes: Linux' PATH_MAX.
pub const MANIFEST_PATH_BYTES: usize = 4096;

/// Changed files that a result names; further ones are only counted.
pub const CHANGES_LISTED: usize = 1000;

/// Directories of a session's workspace that are watched during a turn.
pub const WATCHED_DIRS: usize = 16_384;

/// Changed files, and moves, that a watch of a workspace lists at a time.
pub const WATCHED_CHANGES: usize = 1000;

/// Events of a workspace that are read at a time: as many as the kernel keeps by default.
pub const WATCHED_EVENTS: usize = 16_384;

/// Changed files of which a watch of a workspace remembers the inode, in case that they are moved.
pub const WATCHED_KNOWN: usize = 4096;

/// Files of an agent's login that are kept.
pub const LOGIN_FILES: usize = 64;

/// The largest of them, in bytes: credentials and settings, not data.
pub const LOGIN_FILE_BYTES: u64 = 1 << 20;

/// How long an agent may take to name its logins.
pub const LOGIN_REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a person may take to log an agent in on a page.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// How long after the first change of a workspace its files are read, so that several changes of one
/// file are one.
pub const OBSERVE_SETTLE: Duration = Duration::from_millis(250);

/// Files that are read while a turn runs; the end of the turn finds further changes.
pub const OBSERVED_FILES: usize = 1000;

/// How long git may take to list a workspace's files.
pub const GIT_LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of that list.
pub const GIT_LIST_BYTES: usize = 64 << 20;

/// How long git may take to make a clone, to make a bundle, or to check one.
pub const GIT_TREE_TIMEOUT: Duration = Duration::from_secs(180);

/// How often a bundle is put onto a branch that other processes move meanwhile.
pub const LANDING_ATTEMPTS: u32 = 5;

/// How often the agent of a task is told that its work did not land, and why.
pub const LANDING_ROUNDS: u32 = 3;

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

/// Files and directories of one workspace that other programs obey, where agents write the
/// workspace itself; also the directories that contain them. One more, and nothing is started.
pub const PROTECTED_PATHS: usize = 4000;

/// Paths of one slice: each is opened and mounted on its own.
pub const SLICES: usize = 64;

/// Patterns of one mask.
pub const MASK_PATTERNS: usize = 256;

/// Further directories of one workspace: each is a clone, a copy or a mount of every session.
pub const WORKSPACE_REPOS: usize = 16;

/// Files of the repository that decide whether the result of a setup is used again.
pub const SETUP_INPUTS: usize = 64;

/// Directories that a setup may leave: each is mounted on its own in every later session.
pub const SETUP_DIRS: usize = 64;

/// Bytes of the layers of all setups together: while they have more, the unused one that was last used
/// longest ago is removed.
pub const LAYERS_BYTES: u64 = 64 << 30;

/// What is kept of each output of a setup, in bytes. Its last lines are part of an error.
pub const SETUP_OUTPUT_BYTES: usize = 4 << 20;

/// For this long a failed setup is not run again.
pub const SETUP_FAILURE_RETENTION: Duration = Duration::from_secs(60);

/// Failed setups that are remembered.
pub const SETUP_FAILURES: usize = 256;

/// How often the size of what a setup has written is measured.
pub const SETUP_MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// Things that one session may have written over its workspace for it to be compared or applied.
pub const OVERLAY_ENTRIES: u64 = 200_000;

/// Things that an apply may take away and put in their place together.
pub const OVERLAY_LISTED: u64 = 2 * OVERLAY_ENTRIES;

/// How long an apply waits for another one in the same workspace, in seconds: an apply of ordinary
/// size has ended by then.
pub const OVERLAY_APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Levels of directories below a workspace that are compared or applied. One descriptor a level is
/// open meanwhile.
pub const OVERLAY_DEPTH: usize = 100;

/// Bytes of all files together that are compared or applied, as long as they say they are: a hole
/// counts.
pub const OVERLAY_BYTES: u64 = 2 << 30;

/// Bytes of the list of what was in a session's way, kept beside its overlay.
pub const OVERLAY_RECORD_BYTES: u64 = 64 << 20;

/// Bytes of a path below a workspace that is compared or applied: Linux' PATH_MAX.
pub const OVERLAY_PATH_BYTES: usize = 4096;

/// Bytes of all paths together that are compared or applied: as many as a list of a workspace's
/// files may have.
pub const OVERLAY_PATHS_BYTES: usize = MANIFEST_BYTES;

/// Places that one sentence names.
pub const OVERLAY_PATHS_NAMED: usize = 20;

/// Bytes of one file of which `diff` shows lines; of a larger one only that it differs.
pub const OVERLAY_SHOWN_BYTES: usize = 256 << 10;

/// Bytes of texts that one `diff` keeps to show lines of.
pub const OVERLAY_TEXT_BYTES: usize = 32 << 20;

/// Bytes of the target of a symbolic link: Linux' PATH_MAX.
pub const OVERLAY_LINK_BYTES: usize = 4096;

/// Entries directly in a workspace whose owners are looked at before an ordinary user's overlay is
/// laid over it.
pub const OVERLAY_OWNERS: usize = 4096;
