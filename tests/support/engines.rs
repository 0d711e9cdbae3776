//! The programs that can build the sandbox instead of marshal, as the tests use them: bubblewrap
//! from the system, podman with a store of the tests' own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The store of the tests, created by `tests/run`.
pub(crate) fn store() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/engine")
}

/// The image's id.
pub(crate) fn image() -> String {
    let file = store().join("image");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}: run tests/run sandbox", file.display()));
    text.trim().trim_start_matches("sha256:").to_owned()
}

/// podman and its global options.
pub(crate) fn podman() -> Vec<String> {
    let store = store();
    let of = |name: &str| store.join(name).to_string_lossy().into_owned();
    // podman limits this directory's name to 50 characters, so it may be outside of the store.
    let run = std::fs::read_to_string(store.join("runroot")).unwrap_or_else(|_| of("run"));
    vec![
        "/usr/bin/podman".to_owned(),
        format!("--root={}", of("store")),
        format!("--runroot={}", run.trim()),
        "--storage-driver=overlay".to_owned(),
        "--runtime=runc".to_owned(),
        "--cgroup-manager=cgroupfs".to_owned(),
    ]
}

/// A podman command, in a mount namespace of its own: podman binds its store to itself.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .args(podman())
        .args(words);
    command
}
