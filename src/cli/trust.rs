//! Checks who could have written a file that is code, such as a configuration or a policy.
//!
//! The file and its directory must belong to root or the caller and be writable by no other user.
//! No other user may be able to replace one of the directories above. Must not know what is in the
//! file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use marshal_model::untrusted;

/// Why a file is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// It is a directory, a pipe or a device.
    #[error("{} is not a regular file", display_path(.0))]
    NotAFile(PathBuf),
    /// Another user owns it.
    #[error("{} belongs to user {uid}: it must belong to root or to you (user {caller})", display_path(.path))]
    Owner {
        /// The file, or a directory or link in its path.
        path: PathBuf,
        /// The owner's uid.
        uid: u32,
        /// The caller's uid.
        caller: u32,
    },
    /// Every user may create files in its directory, as in /tmp.
    #[error(
        "every user can create files in {} (mode {mode:04o}), so the file may not be yours; move it into a directory of your own",
        display_path(.path)
    )]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Other users may write it.
    #[error("{} is writable by {who} (mode {mode:04o}): make it writable only for its owner, for example with chmod go-w", display_path(.path))]
    Writable {
        /// The file, or a directory or link in its path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Who can write it.
        who: &'static str,
    },
}

pub(super) fn display_path(path: &Path) -> String {
    untrusted::escape_for_display(&path.to_string_lossy(), 200)
}

/// The system's error message, without the error number.
pub(super) fn why(error: &std::io::Error) -> String {
    let words = error.to_string();
    let plain = words.split(" (os error").next().unwrap_or(&words);
    plain.to_lowercase()
}

/// Why a trusted file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be opened.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// Another user could have written it.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
}

/// Opens a file that is code, such as a configuration or a policy. The checks are made on the open
/// file, not on its name, so it cannot be replaced between check and use. `path` is absolute.
///
/// # Errors
/// The file cannot be opened. Or a user other than root and the caller could write the file, its
/// directory or the directory of a link to it, or could replace a directory above.
pub fn open_trusted(path: &Path) -> Result<File, OpenError> {
    // O_NONBLOCK: opening a pipe must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(std::io::Error::from)?;
    let file = File::from(file);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Untrusted::NotAFile(path.to_owned()).into());
    }
    let caller = Caller::current();
    caller.check(path, &Rights::of_file(&file)?)?;
    let mut near = vec![fs::canonicalize(path.parent().unwrap_or(Path::new("/")))?];
    let real = fs::canonicalize(path)?;
    near.extend(real.parent().map(Path::to_owned));
    near.dedup();
    for dir in &near {
        caller.check_parent(dir, &Rights::of_file(&File::open(dir)?)?)?;
    }
    for dir in lookup_dirs(path, &caller)? {
        if !near.contains(&dir) {
            caller.check_ancestor(&dir, &Rights::of_directory(&dir)?)?;
        }
    }
    Ok(file)
}

/// The owner and the write permissions of an open file or directory.
#[derive(Debug, Clone, Copy)]
struct Rights {
    owner: u32,
    mode: u32,
    /// Whether the owner is the only member of its group, and no access control list grants more
    /// than the mode bits show.
    private_group: bool,
}

impl Rights {
    fn of_file(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let mut none = [0_u8; 0];
        let acl = rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut none[..]).is_ok();
        Ok(Self::from_metadata(&metadata, acl))
    }

    /// Reads a directory that need only be searchable, not readable.
    fn of_directory(path: &Path) -> std::io::Result<Self> {
        let mut none = [0_u8; 0];
        let acl = rustix::fs::getxattr(path, "system.posix_acl_access", &mut none[..]).is_ok();
        Ok(Self::from_metadata(&fs::metadata(path)?, acl))
    }

    fn from_metadata(metadata: &Metadata, acl: bool) -> Self {
        let owner = metadata.uid();
        Self {
            owner,
            mode: metadata.mode() & 0o7777,
            private_group: !acl && is_private_group(metadata.gid(), owner),
        }
    }
}

/// The caller of the check.
struct Caller {
    uid: u32,
}

impl Caller {
    fn current() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// Checks the directory that contains the file, or a link to it.
    fn check_parent(&self, path: &Path, rights: &Rights) -> Result<(), Untrusted> {
        if rights.mode & STICKY != 0 && rights.mode & 0o002 != 0 {
            return Err(Untrusted::Shared {
                path: path.to_owned(),
                mode: rights.mode,
            });
        }
        self.check(path, rights)
    }

    /// Checks a directory further up. With the sticky bit set, other users cannot move the caller's
    /// files.
    fn check_ancestor(&self, path: &Path, rights: &Rights) -> Result<(), Untrusted> {
        let is_sticky = rights.mode & STICKY != 0;
        let mode = rights.mode & if is_sticky { !0o022 } else { !0 };
        // In a user namespace without root, the root directory appears to belong to another user.
        let owner = if is_unmapped(rights.owner) {
            0
        } else {
            rights.owner
        };
        let rights = Rights {
            owner,
            mode,
            ..*rights
        };
        self.check(path, &rights)
    }

    /// Checks a link in the path: its owner may have created it.
    fn check_link(&self, path: &Path, owner: u32) -> Result<(), Untrusted> {
        let rights = Rights {
            owner,
            mode: 0,
            private_group: true,
        };
        self.check_ancestor(path, &rights)
    }

    fn check(&self, path: &Path, rights: &Rights) -> Result<(), Untrusted> {
        let Rights { owner, mode, .. } = *rights;
        if owner != 0 && owner != self.uid {
            return Err(Untrusted::Owner {
                path: path.to_owned(),
                uid: owner,
                caller: self.uid,
            });
        }
        let who = if mode & 0o002 != 0 {
            "everybody"
        } else if mode & 0o020 != 0 && !rights.private_group {
            "a group"
        } else {
            return Ok(());
        };
        Err(Untrusted::Writable {
            path: path.to_owned(),
            mode,
            who,
        })
    }
}

/// The sticky bit: in such a directory only the owner of an entry can move or remove it.
const STICKY: u32 = 0o1000;

/// As many links as the kernel follows.
const LINKS: usize = 40;

/// Every directory in which a part of the absolute path is looked up, with links followed. A link
/// in the path must belong to root or the caller.
fn lookup_dirs(path: &Path, caller: &Caller) -> Result<BTreeSet<PathBuf>, OpenError> {
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut dirs = BTreeSet::new();
    let mut at = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        // An absolute link starts again at the root directory.
        let entry = at.join(&part);
        let metadata = fs::symlink_metadata(&entry)?;
        if entry != at && part != "/" && part != "." {
            dirs.insert(at.clone());
        }
        if !metadata.is_symlink() {
            at = entry;
            continue;
        }
        caller.check_link(&entry, metadata.uid())?;
        links += 1;
        if links > LINKS {
            return Err(std::io::Error::from(rustix::io::Errno::LOOP).into());
        }
        rest.extend(parts(&fs::read_link(&entry)?));
    }
    Ok(dirs)
}

/// Whether a uid stands for all users that the user namespace of this process does not map.
fn is_unmapped(uid: u32) -> bool {
    let number = |name: &str| fs::read_to_string(name).unwrap_or_default();
    let overflow = number("/proc/sys/kernel/overflowuid");
    overflow.trim().parse() == Ok(uid) && !is_mapped(&number("/proc/self/uid_map"), uid)
}

/// Whether a uid map contains the user. Its lines are: first id inside, first id outside, count. A
/// map that cannot be read counts as containing every user.
fn is_mapped(map: &str, uid: u32) -> bool {
    let mut lines = map.lines().map(|line| {
        let numbers = line.split_whitespace().map(str::parse::<u64>);
        let numbers: Vec<u64> = numbers.filter_map(Result::ok).collect();
        match numbers[..] {
            [first, _, count] => (first..first.saturating_add(count)).contains(&u64::from(uid)),
            _ => true,
        }
    });
    map.is_empty() || lines.any(|has| has)
}

/// Whether a file's owner is the only member of its group. Many systems give each user a private
/// group and make new files writable for it.
fn is_private_group(gid: u32, owner: u32) -> bool {
    let members = fs::read_to_string("/etc/group").unwrap_or_default();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    is_private(&members, &users, gid, owner)
}

fn is_private(groups: &str, users: &str, gid: u32, owner: u32) -> bool {
    let fields = |line: &'_ str| -> Vec<String> { line.split(':').map(str::to_owned).collect() };
    let is = |field: Option<&String>, id: u32| field.is_some_and(|text| text.parse() == Ok(id));
    let users: Vec<_> = users.lines().map(fields).collect();
    let groups: Vec<_> = groups.lines().map(fields).collect();
    let Some(user) = users.iter().find(|user| is(user.get(2), owner)) else {
        return false;
    };
    let only_user = users
        .iter()
        .filter(|user| is(user.get(3), gid))
        .all(|user| is(user.get(2), owner));
    let mut groups = groups.iter().filter(|group| is(group.get(2), gid));
    let only_member = groups.all(|group| {
        let mut members = group.get(3).map_or("", String::as_str).split(',');
        members.all(|member| member.is_empty() || Some(member) == user.first().map(String::as_str))
    });
    is(user.get(3), gid) && only_user && only_member
}

/// Refuses to run set-uid, set-gid or with file capabilities: the caller could start children as
/// another user.
pub(super) fn refuse_privilege() -> Result<(), String> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    if getuid() != geteuid() || getgid() != getegid() {
        return Err("this program refuses to run set-uid or set-gid".to_owned());
    }
    // The attribute that setcap(8) writes has at most 24 bytes. ERANGE also means that it exists.
    let mut value = [0_u8; 64];
    match rustix::fs::getxattr("/proc/self/exe", "security.capability", &mut value[..]) {
        Ok(1..) | Err(rustix::io::Errno::RANGE) => {
            Err("this program refuses to run with file capabilities".to_owned())
        }
        Ok(0) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_root_or_the_caller() {
        let check = |owner: u32, caller: u32, mode: u32, private_group: bool| {
            let rights = Rights {
                owner,
                mode,
                private_group,
            };
            Caller { uid: caller }.check(Path::new("/x"), &rights)
        };
        assert!(check(0, 1000, 0o644, false).is_ok());
        assert!(check(1000, 1000, 0o644, false).is_ok());
        assert!(check(1000, 1000, 0o664, true).is_ok());
        assert!(matches!(
            check(1000, 1000, 0o664, false),
            Err(Untrusted::Writable { .. })
        ));
        assert!(matches!(
            check(1000, 1000, 0o646, true),
            Err(Untrusted::Writable { .. })
        ));
        assert!(matches!(
            check(1000, 0, 0o600, true),
            Err(Untrusted::Owner { .. })
        ));
        assert!(matches!(
            check(1001, 1000, 0o600, true),
            Err(Untrusted::Owner { .. })
        ));
    }

    #[test]
    fn a_group_of_one_is_private() {
        let users = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/:/\nyou:x:1001:1001::/:/\nguest:x:1002:100::/:/\nother:x:1003:100::/:/\n";
        let groups = "root:x:0:\nme:x:1000:\nyou:x:1001:me\nusers:x:100:\nself:x:1000:me\n";
        let check = |gid, owner, expect| {
            assert_eq!(
                is_private(groups, users, gid, owner),
                expect,
                "{gid} {owner}"
            );
        };
        check(0, 0, true);
        check(1000, 1000, true);
        check(1001, 1001, false);
        check(100, 1002, false);
        check(1000, 1001, false);
        check(1000, 4242, false);
        check(27, 1000, false);
    }

    #[test]
    fn users_that_the_namespace_does_not_know_are_unmapped() {
        assert!(is_mapped("         0          0 4294967295\n", 65534));
        assert!(!is_mapped("      1000          0          1\n", 65534));
        assert!(!is_mapped("0 1000 1\n1 100000 65533\n", 65534));
        assert!(is_mapped("0 1000 1\n1 100000 65536\n", 65534));
        assert!(is_mapped("", 65534));
    }

    #[test]
    fn a_link_belongs_to_root_or_the_caller_and_a_far_directory_may_be_sticky() {
        let caller = Caller { uid: 1000 };
        let path = Path::new("/x");
        assert!(caller.check_link(path, 0).is_ok());
        assert!(caller.check_link(path, 1000).is_ok());
        assert!(matches!(
            caller.check_link(path, 1001),
            Err(Untrusted::Owner { .. })
        ));
        let file = |owner, mode| {
            let rights = Rights {
                owner,
                mode,
                private_group: false,
            };
            caller.check_ancestor(path, &rights)
        };
        assert!(file(0, 0o1777).is_ok());
        assert!(matches!(file(1001, 0o1777), Err(Untrusted::Owner { .. })));
        assert!(matches!(file(0, 0o777), Err(Untrusted::Writable { .. })));
        assert!(matches!(file(0, 0o775), Err(Untrusted::Writable { .. })));
    }
}
