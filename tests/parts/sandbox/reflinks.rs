//! Copies on file systems that share blocks between files, made in a file and mounted.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use marshal_model::SessionId;
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::copy::{self, CopyBounds};
use marshal_sandbox::workspace::{Listing, Root};

use crate::children::is_root;

/// A file system, mounted until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &str, dir: &Path) -> Self {
        let (image, at) = (dir.join("image"), dir.join("mounted"));
        std::fs::create_dir(&at).unwrap();
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(600 << 20).unwrap();
        let mkfs = format!("/sbin/mkfs.{kind}");
        run(&mkfs, &["-q".as_ref(), image.as_os_str()]);
        let words = [
            "-o".as_ref(),
            "loop".as_ref(),
            image.as_os_str(),
            at.as_os_str(),
        ];
        run("mount", &words);
        Self(at)
    }

    /// Bytes that are in use.
    fn used(&self) -> u64 {
        rustix::fs::syncfs(std::fs::File::open(&self.0).unwrap()).unwrap();
        let usage = rustix::fs::statvfs(&self.0).unwrap();
        (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn run(program: &str, words: &[&OsStr]) {
    let output = Command::new(program).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {text}");
}

#[test]
fn a_copy_shares_blocks_where_the_file_system_can() {
    if !is_root() {
        eprintln!("NOT RUN: only root mounts a file system");
        return;
    }
    for kind in ["btrfs", "xfs"] {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Mounted::new(kind, dir.path());
        let at = &mounted.0;
        std::fs::create_dir(at.join("ws")).unwrap();
        let content = vec![7_u8; 64 << 20];
        std::fs::write(at.join("ws/large"), &content).unwrap();
        std::fs::write(at.join("ws/small"), "small").unwrap();
        std::fs::write(at.join("ws/empty"), "").unwrap();
        let state = StateDir::open(&at.join("state"), &[]).unwrap();
        let (source, all) = (
            Root::open(&at.join("ws")).unwrap(),
            Listing::Except(Arc::default()),
        );
        let copied = |session: &str, bounds| {
            let session = SessionId::new(session).unwrap();
            copy::create(&state, &session, (&source, &all), &[], None, bounds)
        };
        let before = mounted.used();
        let made = copied("s", CopyBounds::default()).unwrap();
        let grown = mounted.used().saturating_sub(before);
        assert!(
            grown < 16 << 20,
            "{kind}: {grown} bytes for a copy of 64 MiB"
        );
        assert_eq!((made.files, made.bytes), (3, (64 << 20) + 5), "{kind}");
        assert!(std::fs::read(made.path.join("large")).unwrap() == content);
        assert_eq!(std::fs::read(made.path.join("small")).unwrap(), b"small");
        // What is written in the copy is not written in the workspace.
        std::fs::write(made.path.join("large"), "changed").unwrap();
        assert!(std::fs::read(at.join("ws/large")).unwrap() == content);
        // What costs no space counts as well.
        let few = CopyBounds {
            bytes: 1 << 20,
            ..CopyBounds::default()
        };
        copied("t", few).expect_err("too large");
    }
}
