//! The uids of the slots of a supervisor that runs as root: one for each child, shared with nobody.
//!
//! Owns the choice of a block of ids and its lock. `range` reads which ranges the host delegates.
//! Each gid has the same number as its uid. Must not know slots.

pub mod range;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::flock::FlockGuard;
use marshal_config::UidRange;
use marshal_model::UntrustedText;
use marshal_model::limits;

pub use range::{Accounts, Range, RangeError};

/// Maximum size of an account file in bytes.
const ACCOUNTS_BYTES: u64 = 16 << 20;

/// The files that delegate ids.
#[derive(Debug, Clone)]
pub struct Sources {
    /// `/etc/subuid`
    pub subuid: PathBuf,
    /// `/etc/subgid`
    pub subgid: PathBuf,
    /// `/etc/passwd`
    pub passwd: PathBuf,
    /// `/etc/group`
    pub group: PathBuf,
    /// `/proc/self/uid_map`
    pub uid_map: PathBuf,
    /// `/proc/self/gid_map`
    pub gid_map: PathBuf,
    /// Directory of the block locks: `/run/marshal/uids`. Must not be cleaned while a supervisor
    /// runs.
    pub locks_dir: PathBuf,
}

impl Sources {
    /// The files of this host.
    #[must_use]
    pub fn host() -> Self {
        Self {
            subuid: "/etc/subuid".into(),
            subgid: "/etc/subgid".into(),
            passwd: "/etc/passwd".into(),
            group: "/etc/group".into(),
            uid_map: "/proc/self/uid_map".into(),
            gid_map: "/proc/self/gid_map".into(),
            locks_dir: "/run/marshal/uids".into(),
        }
    }

    fn accounts(&self) -> Result<Accounts, UidError> {
        Ok(Accounts {
            subuid: read(&self.subuid)?,
            subgid: read(&self.subgid)?,
            passwd: read(&self.passwd)?,
            group: read(&self.group)?,
            uid_map: read(&self.uid_map)?,
            gid_map: read(&self.gid_map)?,
        })
    }
}

/// Why no uids are available.
#[derive(Debug, thiserror::Error)]
pub enum UidError {
    /// No range is usable.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Every block of the range is in use.
    #[error(
        "no free block of {count} uids in {}: {used_blocks} other supervisors hold theirs in {}; \
         stop one, lower max_children, or make the entry `marshal` in /etc/subuid and /etc/subgid \
         larger", range::list(.ranges), show(.place)
    )]
    NoFreeBlock {
        /// Number of ids needed.
        count: u32,
        /// The ranges that were searched.
        ranges: Vec<Range>,
        /// Number of blocks in use.
        used_blocks: usize,
        /// The directory of their locks.
        place: PathBuf,
    },
    /// The directory of the block locks is not safe.
    #[error("{} must be a directory of uid {caller} that nobody else can write", show(.place))]
    Unsafe {
        /// The directory.
        place: PathBuf,
        /// The uid of this process.
        caller: u32,
    },
    /// Another process holds the directory's lock for too long.
    #[error("another process holds the lock of {} for more than {seconds} s: end it and try again", show(.place))]
    Busy {
        /// The directory.
        place: PathBuf,
        /// How long this process waited, in seconds.
        seconds: u64,
    },
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", show(.path))]
    Io {
        /// The failed operation, as a verb.
        doing: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
}

fn show(path: &Path) -> String {
    UntrustedText::new(path.to_string_lossy()).escape_for_display(300)
}

fn failed(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> UidError {
    UidError::Io {
        doing,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// A block of consecutive ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The first id.
    pub first: u32,
    /// Number of ids, at least 1.
    pub count: u32,
}

impl Block {
    /// The uid and gid of a slot by its number in the fleet, from 0; `None` beyond the block.
    #[must_use]
    pub fn uid(&self, slot_number: u32) -> Option<u32> {
        if slot_number < self.count {
            self.first.checked_add(slot_number)
        } else {
            None
        }
    }
}

/// A block that is reserved until this is dropped, or this process ends.
#[derive(Debug)]
pub struct LockedBlock {
    block: Block,
    _lock: FlockGuard<OwnedFd>,
}

impl LockedBlock {
    /// The reserved block.
    #[must_use]
    pub fn block(&self) -> Block {
        self.block
    }
}

/// The uids of all slots: a block for each range that a profile names.
#[derive(Debug)]
pub struct SlotUids {
    blocks: BTreeMap<UidRange, LockedBlock>,
}

impl SlotUids {
    /// Reserves a block of `count` ids (from 1) for each of `ranges`; duplicates count once.
    ///
    /// # Errors
    /// The error of the first range without a free block.
    pub fn acquire(
        sources: &Sources,
        count: u32,
        ranges: impl IntoIterator<Item = UidRange>,
    ) -> Result<Self, UidError> {
        Self::acquire_after_reserve(sources, count, ranges.into_iter().map(|range| (range, 0)))
    }

    /// The same, each range with a number of ids below its block that are reserved and never used;
    /// of duplicates the highest number counts. See [`acquire_after_reserve`].
    ///
    /// # Errors
    /// The error of the first range without a free block.
    pub fn acquire_after_reserve(
        sources: &Sources,
        count: u32,
        ranges: impl IntoIterator<Item = (UidRange, u32)>,
    ) -> Result<Self, UidError> {
        let mut before: BTreeMap<UidRange, u32> = BTreeMap::new();
        for (range, below) in ranges {
            let known = before.entry(range).or_default();
            *known = below.max(*known);
        }
        let mut blocks = BTreeMap::new();
        for (range, below) in before {
            blocks.insert(range, acquire_after_reserve(sources, below, count, range)?);
        }
        Ok(Self { blocks })
    }

    /// The uid and gid of a slot by its number in the fleet, from 0, with a profile that names this
    /// range; `None` beyond the block.
    #[must_use]
    pub fn uid(&self, range: UidRange, slot_number: u32) -> Option<u32> {
        self.blocks.get(&range)?.block().uid(slot_number)
    }
}

/// Reserves the first free block of `count` ids (from 1) in the chosen range, for a supervisor that
/// runs as root.
///
/// Each block is a file in `sources.locks_dir`, named by its first id, locked by its user, and with
/// the number of its ids as content. A lock on the directory makes the search and the reservation
/// atomic.
pub fn acquire(sources: &Sources, count: u32, wanted: UidRange) -> Result<LockedBlock, UidError> {
    let accounts = sources.accounts()?;
    let ranges = match wanted {
        UidRange::Auto => range::choose_ranges(&accounts, count)?,
        UidRange::Ids { first, last } => vec![range::check_configured_range(
            &accounts, first, last, count,
        )?],
    };
    let dir = open_locks_dir(&sources.locks_dir)?;
    lock_directory(&dir, &sources.locks_dir)?;
    let taken = list_locked_blocks(&dir, &sources.locks_dir)?;
    let Some(first) = range::first_free(&ranges, &taken, count) else {
        return Err(UidError::NoFreeBlock {
            count,
            ranges,
            used_blocks: taken.len(),
            place: sources.locks_dir.clone(),
        });
    };
    let lock = lock_block(&dir, &sources.locks_dir, first, count)?;
    // Closing `dir` releases the directory's lock.
    Ok(LockedBlock {
        block: Block { first, count },
        _lock: FlockGuard::from_locked(lock),
    })
}

/// The same with `before` ids below the block that are reserved and never used: a container engine
/// needs them, because it maps one range from 0 up to the agent's id.
pub fn acquire_after_reserve(
    sources: &Sources,
    before: u32,
    count: u32,
    wanted: UidRange,
) -> Result<LockedBlock, UidError> {
    let mut locked = acquire(sources, before.saturating_add(count), wanted)?;
    locked.block = Block {
        first: locked.block.first.saturating_add(before),
        count,
    };
    Ok(locked)
}

fn read(path: &Path) -> Result<String, UidError> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(failed("read", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(ACCOUNTS_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed("read", path, error))?;
    if bytes.len() as u64 > ACCOUNTS_BYTES {
        // A truncated file could hide the very range that conflicts.
        return Err(failed("read", path, io::ErrorKind::FileTooLarge));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens the directory of block locks, created with mode 0700 below a parent with mode 0755.
fn open_locks_dir(place: &Path) -> Result<OwnedFd, UidError> {
    let caller = rustix::process::geteuid().as_raw();
    let unsafe_place = |place: &Path| UidError::Unsafe {
        place: place.to_owned(),
        caller,
    };
    let levels = [(place.parent(), 0o755), (Some(place), 0o700)];
    for (level, mode) in levels {
        let Some(level) = level else { continue };
        match std::fs::DirBuilder::new().mode(mode).create(level) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("create the directory", level, error));
            }
            _ => {}
        }
        let meta = level
            .symlink_metadata()
            .map_err(|error| failed("examine", level, error))?;
        if !meta.is_dir() || meta.uid() != caller || meta.mode() & 0o022 != 0 {
            return Err(unsafe_place(level));
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(place, flags, Mode::empty()).map_err(|errno| failed("open", place, errno))
}

fn lock_directory(dir: &OwnedFd, place: &Path) -> Result<(), UidError> {
    let began = Instant::now();
    loop {
        match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if began.elapsed() < limits::UIDS_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(UidError::Busy {
                    place: place.to_owned(),
                    seconds: limits::UIDS_TIMEOUT.as_secs(),
                });
            }
            Err(errno) => return Err(failed("lock", place, errno)),
        }
    }
}

/// The locked blocks. Unlocked files stay: the next reservation reuses them.
fn list_locked_blocks(dir: &OwnedFd, place: &Path) -> Result<Vec<Range>, UidError> {
    let mut taken = Vec::new();
    for entry in std::fs::read_dir(place).map_err(|error| failed("list", place, error))? {
        let entry = entry.map_err(|error| failed("list", place, error))?;
        let name = entry.file_name();
        let Some(first) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let path = entry.path();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, &name, flags, Mode::empty())
            .map_err(|errno| failed("open", &path, errno))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // Unlock explicitly: a child that another thread forks at this moment has a copy of
                // the descriptor, and with it the lock, until its exec.
                rustix::fs::flock(&file, FlockOperation::Unlock)
                    .map_err(|errno| failed("unlock", &path, errno))?;
                continue;
            }
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(failed("lock", &path, errno)),
        }
        let mut text = [0_u8; 16];
        let length = rustix::io::pread(&file, &mut text[..], 0)
            .map_err(|errno| failed("read", &path, errno))?;
        let count = std::str::from_utf8(&text[..length])
            .ok()
            .and_then(|text| text.trim_end().parse().ok())
            .ok_or_else(|| failed("read", &path, io::ErrorKind::InvalidData))?;
        taken.push(Range::new(first, count));
    }
    Ok(taken)
}

fn lock_block(dir: &OwnedFd, place: &Path, first: u32, count: u32) -> Result<OwnedFd, UidError> {
    let name = first.to_string();
    let path = place.join(&name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &*name, flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| failed("open", &path, errno))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|errno| failed("lock", &path, errno))?;
    let text = format!("{count}\n");
    rustix::fs::ftruncate(&file, 0)
        .and_then(|()| rustix::io::pwrite(&file, text.as_bytes(), 0))
        .map_err(|errno| failed("write", &path, errno))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::workspace::testing::{Scratch, scratch};
    use super::*;
    use crate::test_fixtures::wait_until_unlocked;

    fn sources(subuid: &str) -> (Scratch, Sources) {
        let dir = scratch();
        let at = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let everything = "0 0 4294967295\n";
        let sources = Sources {
            subuid: at("subuid", subuid),
            subgid: dir.path().join("missing"),
            passwd: at("passwd", "root:x:0:0::/root:/bin/sh\n"),
            group: at("group", "root:x:0:\n"),
            uid_map: at("uid_map", everything),
            gid_map: at("gid_map", everything),
            locks_dir: dir.path().join("run/uids"),
        };
        (dir, sources)
    }

    fn first(sources: &Sources, count: u32) -> Result<(u32, LockedBlock), UidError> {
        acquire(sources, count, UidRange::Auto).map(|guard| (guard.block().first, guard))
    }

    #[test]
    fn a_block_gives_every_slot_its_own_id_and_none_beyond() {
        let block = Block {
            first: 700_000,
            count: 3,
        };
        let ids: Vec<_> = (0..4).map(|slot| block.uid(slot)).collect();
        assert_eq!(ids, [Some(700_000), Some(700_001), Some(700_002), None]);
    }

    #[test]
    fn supervisors_of_different_sizes_never_share_an_id() {
        let (_dir, sources) = sources("marshal:700000:100\n");
        let (large, held_large) = first(&sources, 64).unwrap();
        let (small, held_small) = first(&sources, 10).unwrap();
        let (third, _held_third) = first(&sources, 20).unwrap();
        assert_eq!((large, small, third), (700_000, 700_064, 700_074));
        let error = first(&sources, 10).expect_err("6 are left");
        assert!(
            matches!(error, UidError::NoFreeBlock { used_blocks: 3, .. }),
            "{error}"
        );
        let freed = |first: u32| wait_until_unlocked(&sources.locks_dir.join(first.to_string()));
        drop(held_small);
        freed(small);
        assert_eq!(first(&sources, 8).unwrap().0, 700_064, "into the gap");
        drop(held_large);
        freed(large);
        freed(700_064);
        let (forty, _held_forty) = first(&sources, 40).unwrap();
        assert_eq!(forty, 700_000);
        let error = first(&sources, 35).expect_err("34 are free behind the forty");
        assert!(matches!(error, UidError::NoFreeBlock { .. }), "{error}");
        assert_eq!(first(&sources, 34).unwrap().0, 700_040, "up to the third");
        let mode = std::fs::metadata(&sources.locks_dir).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }

    #[test]
    fn what_is_held_below_a_block_is_nobody_elses() {
        let (_dir, sources) = sources("marshal:700000:2000\n");
        let behind = acquire_after_reserve(&sources, 1000, 10, UidRange::Auto).unwrap();
        assert_eq!(behind.block().uid(0), Some(701_000));
        assert_eq!(behind.block().uid(10), None);
        let (next, _held) = first(&sources, 10).unwrap();
        assert_eq!(next, 701_010);
        assert!(
            acquire_after_reserve(&sources, 1000, 10, UidRange::Auto).is_err(),
            "980 are left"
        );
    }

    #[test]
    fn a_range_that_one_profile_needs_more_room_below_has_it_for_all() {
        let (_dir, sources) = sources("marshal:700000:2000\n");
        let ranges = [(UidRange::Auto, 0), (UidRange::Auto, 1000)];
        let uids = SlotUids::acquire_after_reserve(&sources, 10, ranges).unwrap();
        assert_eq!(uids.uid(UidRange::Auto, 0), Some(701_000));
    }

    #[test]
    fn profiles_with_the_same_range_share_a_block_and_others_do_not() {
        let (_dir, sources) = sources("marshal:700000:100\n");
        let own = UidRange::Ids {
            first: 800_000,
            last: 800_009,
        };
        let uids = SlotUids::acquire(&sources, 10, [UidRange::Auto, own, UidRange::Auto]).unwrap();
        assert_eq!(uids.uid(UidRange::Auto, 3), Some(700_003));
        assert_eq!(uids.uid(own, 3), Some(800_003));
        assert_eq!(uids.uid(own, 10), None);
        let other = UidRange::Ids {
            first: 1000,
            last: 1009,
        };
        assert_eq!(uids.uid(other, 3), None);
        // The same range again has no ten that are free.
        let error = acquire(&sources, 10, own).expect_err("held");
        assert!(matches!(error, UidError::NoFreeBlock { .. }), "{error}");
        let error = acquire(&sources, 11, own).expect_err("too few");
        assert!(error.to_string().contains("fewer than the 11"), "{error}");
    }

    #[test]
    fn many_at_once_get_different_blocks() {
        let (_dir, sources) = sources("marshal:700000:1000\n");
        let taken = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| acquire(&sources, 100, UidRange::Auto)))
                .collect();
            let all = threads
                .into_iter()
                .map(|thread| thread.join().unwrap().unwrap());
            all.collect::<Vec<_>>()
        });
        let mut firsts: Vec<_> = taken.iter().map(|guard| guard.block().first).collect();
        firsts.sort_unstable();
        let expect: Vec<_> = (0..8).map(|n| 700_000 + n * 100).collect();
        assert_eq!(firsts, expect);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let (dir, sources) = sources("marshal:700000:100\n");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::create_dir_all(&sources.locks_dir).unwrap();
        std::fs::set_permissions(&sources.locks_dir, open).unwrap();
        let error = first(&sources, 1).expect_err("unsafe");
        assert!(matches!(error, UidError::Unsafe { .. }), "{error}");
        std::fs::remove_dir(&sources.locks_dir).unwrap();
        std::os::unix::fs::symlink(dir.path(), &sources.locks_dir).unwrap();
        let error = first(&sources, 1).expect_err("a link");
        assert!(matches!(error, UidError::Unsafe { .. }), "{error}");
    }

    #[test]
    fn the_hosts_own_files_give_a_range_that_is_mapped_here() {
        let accounts = Sources::host().accounts().unwrap();
        match range::choose_ranges(&accounts, 64) {
            Ok(ranges) => assert!(ranges.iter().all(|range| range.first() >= 1000)),
            Err(error) => assert!(matches!(error, RangeError::NotMapped { .. }), "{error}"),
        }
    }
}
