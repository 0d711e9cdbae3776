//! What is done to a tree of groups, as a trait: so that the rules of cgroup v2 can be tested where
//! the kernel has its controllers elsewhere.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Files and directories of cgroups.
pub(super) trait CgroupFs {
    /// Makes a group.
    fn make(&self, dir: &Path) -> io::Result<()>;
    /// Removes a group; none there is no error.
    fn remove(&self, dir: &Path) -> io::Result<()>;
    /// Reads a control file.
    fn read(&self, file: &Path) -> io::Result<String>;
    /// Writes a control file, which is never made by that.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
    /// Whether somebody with the right to do so handed the group to this process.
    fn is_delegated(&self, dir: &Path) -> bool;
    /// Whether a process was started by another one, directly or not.
    fn is_descendant(&self, pid: u32, ancestor: u32) -> bool;
}

/// The kernel's.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelCgroupFs;

/// How many parents of a process are looked at.
const GENERATIONS: usize = 64;

/// Marks of systemd on a group that was handed to a service (`Delegate=yes`).
const DELEGATE_XATTRS: [&str; 2] = ["user.delegate", "trusted.delegate"];

impl CgroupFs for KernelCgroupFs {
    fn make(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn read(&self, file: &Path) -> io::Result<String> {
        fs::read_to_string(file)
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        fs::File::options()
            .write(true)
            .open(file)?
            .write_all(text.as_bytes())
    }

    fn is_delegated(&self, dir: &Path) -> bool {
        let user = rustix::process::geteuid();
        let is_own = rustix::fs::stat(dir).is_ok_and(|stat| stat.st_uid == user.as_raw());
        if !user.is_root() {
            return is_own;
        }
        // Root owns everything: it is handed what is marked, or what is the root of its own cgroup
        // namespace (the root of a host's whole tree has no type).
        let marked = |mark: &&str| -> bool {
            let mut value = [0; 8];
            rustix::fs::getxattr(dir, *mark, &mut value).is_ok_and(|got| value[..got] == *b"1")
        };
        DELEGATE_XATTRS.iter().any(marked)
    }

    fn is_descendant(&self, pid: u32, ancestor: u32) -> bool {
        let parent = |pid: u32| -> Option<u32> {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name of a process, in parentheses, may have blanks and parentheses.
            stat.rsplit_once(')')?
                .1
                .split_ascii_whitespace()
                .nth(1)?
                .parse()
                .ok()
        };
        let line = std::iter::successors(Some(pid), |pid| parent(*pid));
        line.take(GENERATIONS).any(|pid| pid == ancestor)
    }
}
