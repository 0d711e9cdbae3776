//! The programs that put walls up in marshal's place, as the tests use them: bubblewrap from the
//! system, podman with a store of the tests' own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use marshal::launch::{Container, Engine, Flavour};

/// The store of the tests, made by `tests/run needs`.
pub(crate) fn store() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/engine")
}

/// The image's id.
pub(crate) fn image() -> String {
    let file = store().join("image");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}: run tests/run needs", file.display()));
    text.trim().trim_start_matches("sha256:").to_owned()
}

/// podman and the options that stand before every command.
pub(crate) fn podman() -> Vec<String> {
    let store = store();
    let of = |name: &str| store.join(name).to_string_lossy().into_owned();
    vec![
        "/usr/bin/podman".to_owned(),
        format!("--root={}", of("store")),
        format!("--runroot={}", of("run")),
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

pub(crate) fn bwrap() -> Arc<Engine> {
    Arc::new(Engine::Bwrap {
        program: "/usr/bin/bwrap".to_owned(),
    })
}

/// A container of the tests' image, with this label.
pub(crate) fn container(label: &str, directory: &Path) -> Container {
    Container {
        flavour: Flavour::Podman,
        program: podman(),
        env: vec![
            (
                "PATH".to_owned(),
                "/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            ),
            ("HOME".to_owned(), "/root".to_owned()),
        ],
        limits: None,
        extra: Vec::new(),
        image: image(),
        name: String::new(),
        labels: vec![format!("marshal.test={label}")],
        directory: directory.to_string_lossy().into_owned(),
    }
}

/// The names of containers with a label of the tests.
pub(crate) fn containers(label: &str) -> Vec<String> {
    let output = command(&[
        "ps",
        "--all",
        "--format={{.Names}}",
        &format!("--filter=label=marshal.test={label}"),
    ])
    .output()
    .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().map(str::to_owned).collect()
}
