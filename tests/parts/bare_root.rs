//! The static program in a root that has nothing else: no library, no shell, no program.
//!
//! `tests/run` builds it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guest::{readme_command, run};

/// Makes the directory the root of everything, as an initial system does: a kernel creates no user
/// namespace below a mere chroot.
const SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs run run
pivot_root . old
. /work/readme.sh
"#;

#[test]
fn the_static_program_runs_the_readmes_command_where_nothing_else_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = root.join("target/static").join(format!(
        "{}-unknown-linux-musl/debug",
        std::env::consts::ARCH
    ));
    let program = built.join("marshal");
    assert!(
        program.exists(),
        "{}: run tests/run bare_root",
        program.display()
    );
    let bare = tempfile::tempdir().unwrap();
    let at = |name: &str| bare.path().join(name);
    for name in [
        "bin", "usr", "proc", "dev", "sys", "run", "old", "tmp", "root", "etc", "work",
    ] {
        fs::create_dir(at(name)).unwrap();
    }
    for name in ["marshal", "marshal-shim"] {
        fs::copy(built.join(name), at("bin").join(name)).unwrap();
    }
    for name in ["README.md", "supervisor.toml", "src"] {
        run(Command::new("cp")
            .arg("-r")
            .arg(root.join(name))
            .arg(at("work")));
    }
    fs::write(at("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    let command = readme_command().replace(
        "marshal run",
        "/bin/marshal --json --config /work/supervisor.toml run",
    );
    fs::write(at("work/readme.sh"), command).unwrap();

    let ran = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            SCRIPT,
            "sh",
        ])
        .arg(bare.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .output()
        .unwrap();
    let (printed, error) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert_eq!(ran.status.code(), Some(1), "{printed}{error}");
    let outcomes = printed.lines().filter_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(event["report"]["outcome"].as_str()?.to_owned())
    });
    let mut outcomes: Vec<String> = outcomes.collect();
    outcomes.sort_unstable();
    assert_eq!(
        outcomes,
        ["denied", "done", "done", "done"],
        "{printed}{error}"
    );
}
