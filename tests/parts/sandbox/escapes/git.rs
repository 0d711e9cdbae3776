//! What an agent plants in a repository, and what the supervisor then does with that tree.
//!
//! Every way that makes git run a program is planted at once, each with a program that writes its
//! name to a file outside. Then the tree is listed, copied, worked in and compared, as for a next
//! task. The control is git itself, run on the tree by whoever owns it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::arena::{Arena, Who};
use crate::children::is_root;
use crate::programs::install;

/// Configuration by which git starts a program.
const PROGRAMS: [&str; 10] = [
    "core.fsmonitor",
    "core.sshCommand",
    "core.pager",
    "core.editor",
    "diff.external",
    "diff.planted.textconv",
    "filter.planted.clean",
    "filter.planted.smudge",
    "filter.planted.process",
    "gpg.program",
];
const HOOKS: [&str; 6] = [
    "pre-commit",
    "post-checkout",
    "post-index-change",
    "reference-transaction",
    "fsmonitor-watchman",
    "pre-auto-gc",
];

fn git(arena: &Arena, tree: &Path, words: &[&str]) {
    let mut command = arena.command(Path::new("/usr/bin/git"));
    let printed = command.arg("-C").arg(tree).args(words).output().unwrap();
    assert!(
        printed.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&printed.stderr)
    );
}

fn program(path: &Path, mark: &Path, name: &str) {
    let text = format!(
        "#!/bin/sh\necho {name} $(id -u) >> '{}'\ncat\n",
        mark.display()
    );
    install(path, text.as_bytes());
}

/// A repository in which everything is planted.
fn plant(arena: &Arena, mark: &Path) -> std::path::PathBuf {
    let tree = arena.path("scratch/tree");
    let outside = arena.path("scratch/programs");
    for dir in [&tree, &outside] {
        fs::create_dir(dir).unwrap();
    }
    if is_root() {
        for dir in [&tree, &outside] {
            crate::children::give(dir, (crate::children::USER, crate::children::USER));
        }
    }
    git(arena, &tree, &["init", "-q"]);
    fs::write(tree.join("file"), "text\n").unwrap();
    fs::write(
        tree.join(".gitattributes"),
        "* filter=planted diff=planted\n",
    )
    .unwrap();
    git(arena, &tree, &["add", "file"]);
    for hook in HOOKS {
        program(&tree.join(".git/hooks").join(hook), mark, hook);
    }
    for key in PROGRAMS {
        let path = tree.join(format!("planted-{key}"));
        program(&path, mark, key);
        git(arena, &tree, &["config", key, &path.display().to_string()]);
    }
    // A repository in the repository, which `git status` enters.
    let inner = tree.join("inner");
    fs::create_dir(&inner).unwrap();
    if is_root() {
        crate::children::give(&inner, (crate::children::USER, crate::children::USER));
    }
    git(arena, &inner, &["init", "-q"]);
    let path = tree.join("planted-inner");
    program(&path, mark, "submodule");
    git(
        arena,
        &inner,
        &["config", "core.fsmonitor", &path.display().to_string()],
    );
    fs::write(
        tree.join(".gitmodules"),
        format!(
            "[submodule \"inner\"]\n\tpath = inner\n\turl = ext::{}\n",
            path.display()
        ),
    )
    .unwrap();
    // Whoever opens this waits, and whoever follows that reads a secret of root's.
    let fifo = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), fifo).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", tree.join("shadow")).unwrap();
    let commit = format!("160000,{:040x},inner", 1);
    git(
        arena,
        &tree,
        &["update-index", "--add", "--cacheinfo", &commit],
    );
    // Changed since it was added, so that a status must look at it.
    fs::write(tree.join("file"), "other text\n").unwrap();
    tree
}

#[test]
fn what_is_planted_in_a_repository_never_runs_outside() {
    let arena = Arena::new(Who::User);
    let mark = arena.path("scratch/mark");
    let tree = plant(&arena, &mark);
    // What git itself did while it was planted.
    let _ = fs::remove_file(&mark);
    let config = arena.path("supervisor.toml");
    arena.configure(&tree);

    // Whoever supervises: root here, and the user where the test runs as one.
    let supervise = |words: &[&str]| {
        Command::new(arena.path("bin/marshal"))
            .arg("--config")
            .arg(&config)
            .args(words)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .current_dir(&tree)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    if is_root() {
        for path in [
            config.as_path(),
            arena.path("").as_path(),
            arena.path("state").as_path(),
        ] {
            crate::children::give(path, (0, 0));
        }
    }
    let workspace = tree.display().to_string();
    let reported = supervise(&[
        "sandbox",
        "exec",
        "--workspace",
        &workspace,
        "--mode",
        "copy",
        "--",
        "git",
        "status",
        "--short",
    ]);
    assert!(
        reported.status.success(),
        "{}",
        String::from_utf8_lossy(&reported.stderr)
    );
    assert!(!reported.stdout.is_empty(), "git in the copy saw no change");
    let reported = supervise(&["run", "--local", "first", "second"]);
    assert!(
        reported.status.success(),
        "{}",
        String::from_utf8_lossy(&reported.stderr)
    );
    let ran = fs::read_to_string(&mark).unwrap_or_default();
    assert_eq!(ran, "", "planted programs ran outside");

    // Git itself starts them.
    for words in [["status", "--short"], ["add", "--all"]] {
        let mut command = arena.command(Path::new("/usr/bin/git"));
        let _ = command.arg("-C").arg(&tree).args(words).output().unwrap();
    }
    let ran = fs::read_to_string(&mark).unwrap_or_default();
    for planted in [
        "core.fsmonitor",
        "post-index-change",
        "filter.planted.process",
        "submodule",
    ] {
        assert!(ran.contains(planted), "{planted} is no attempt: {ran:?}");
    }
}
