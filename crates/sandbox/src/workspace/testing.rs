//! Shared test helpers of this module: directories that are always removable, deep trees, and
//! running as an ordinary user.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags};

use super::removal::remove_tree;
use super::tree::Root;

/// Tells a re-executed test binary that it is the unprivileged one.
const INNER: &str = "MARSHAL_TEST_ORDINARY_USER";

/// A directory that is removed on drop, however deep or inaccessible it became.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let (Some(parent), Some(name)) = (self.0.parent(), self.0.file_name()) else {
            return;
        };
        if let Ok(parent) = Root::open(parent) {
            let _ = remove_tree(parent, &name.to_string_lossy());
        }
    }
}

/// A new empty directory in the system's temporary directory.
pub(crate) fn scratch() -> Scratch {
    let dir = tempfile::Builder::new().prefix("marshal-").tempdir();
    Scratch(dir.expect("a temporary directory").keep())
}

/// Creates `levels` nested directories named `d` below `top`, with a file `bottom` in the last. The
/// path may be longer than the kernel's limit.
pub(crate) fn deep_tree(top: &Path, levels: usize) {
    let open = |at: &dyn std::os::fd::AsFd, name: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(at, name, flags, Mode::empty()).expect("a directory")
    };
    let mut dir = open(&CWD, top);
    for _ in 0..levels {
        rustix::fs::mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).expect("mkdir");
        dir = open(&dir, Path::new("d"));
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(&dir, "bottom", flags, Mode::from_raw_mode(0o644)).expect("a file");
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `body` as an ordinary user: in place if this process is one, else in a copy of this test
/// binary that `setpriv` starts as uid 65534. `test` is the calling test's own name.
pub(crate) fn as_ordinary_user(test: &str, body: impl FnOnce()) {
    if !is_root() {
        body();
        return;
    }
    assert!(std::env::var_os(INNER).is_none(), "still root as nobody");
    let place = scratch();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).expect("chmod");
    let binary = place.path().join("tests");
    // Copy with a separate process: a child that another test forks inherits a file that this one
    // has open for writing, and such a file cannot be executed.
    let own = format!("/proc/{}/exe", std::process::id());
    let copied = Command::new("cp").args(["-L", &own]).arg(&binary).status();
    assert!(copied.expect("cp").success(), "a copy of the test binary");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .args(["--nocapture", test])
        .env(INNER, "1")
        .current_dir("/")
        .output()
        .expect("setpriv runs");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && report.contains("1 passed"),
        "as an ordinary user:\n{report}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
