//! What is found, what is mounted for it, and what counts as new.

use std::os::unix::fs::symlink;

use super::super::quarantine::Quarantine;
use super::super::testing::{Scratch, scratch};
use super::*;
use crate::state_dir::StateDir;
use marshal_model::SessionId;
use marshal_policy::Policy;

fn add(top: &Path, files: &[&str]) {
    for file in files {
        let path = top.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
}

fn with(files: &[&str]) -> Scratch {
    let dir = scratch();
    add(dir.path(), files);
    dir
}

/// Finds by the names of the built-in guard.
fn find(dir: &Path) -> Result<(ProtectedPaths, ProtectedMounts), ProtectedError> {
    let policy = Policy::builtin("developer").expect("a policy");
    let is_protected = |path: &str, is_link| policy.is_protected(path, is_link);
    ProtectedPaths::find_with_mounts(&Root::open(dir).unwrap(), &is_protected)
}

fn names<'p>(paths: impl IntoIterator<Item = &'p Vec<u8>>) -> Vec<String> {
    let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
    paths.into_iter().map(text).collect()
}

#[test]
fn every_git_directory_and_every_protected_name_is_found() {
    let dir = with(&[
        "src/main.rs",
        ".git/HEAD",
        ".git/config",
        ".git/hooks/pre-commit",
        ".git/info/exclude",
        ".git/objects/info/alternates",
        ".git/modules/sub/config",
        ".git/refs/heads/main",
        ".git/worktrees/w/gitdir",
        ".git/worktrees/w/commondir",
        ".git/worktrees/w/HEAD",
        "sub/.git",
        "bare/HEAD",
        "bare/config",
        "bare/objects/x",
        "bare/refs/x",
        "linked/HEAD",
        "linked/commondir",
        "docs/HEAD",
        "docs/config",
        ".github/workflows/ci.yml",
        ".github/CODEOWNERS",
        "pkg/CLAUDE.md",
        "pkg/claude.MD.txt",
        "node_modules/x/.travis.yml",
        "node_modules/x/.git/config",
    ]);
    let (found, mounts) = find(dir.path()).unwrap();
    let expected = [
        ".git/config",
        ".git/hooks",
        ".git/info",
        ".git/modules",
        ".git/objects/info/alternates",
        ".git/worktrees/w/commondir",
        ".git/worktrees/w/gitdir",
        ".github/workflows",
        "bare/config",
        "linked/commondir",
        "node_modules/x/.git/config",
        "pkg/CLAUDE.md",
        "sub/.git",
    ];
    assert_eq!(names(found.paths.keys()), expected);
    let git_dirs = [".git", "bare", "linked", "node_modules/x/.git"];
    assert_eq!(names(&found.git_dirs), git_dirs);
    assert_eq!(mounts.read_only, expected);
    let pinned = [
        ".git",
        ".git/objects",
        ".git/objects/info",
        ".git/worktrees",
        ".git/worktrees/w",
        ".github",
        "bare",
        "linked",
        "node_modules",
        "node_modules/x",
        "node_modules/x/.git",
        "pkg",
        "sub",
    ];
    assert_eq!(mounts.pinned, pinned);
    let record = found.to_record();
    assert_eq!(ProtectedPaths::from_record(&record), Some(found));
    assert_eq!(
        ProtectedPaths::from_record(&record[..record.len() - 1]),
        None
    );
    let empty = ProtectedPaths::default();
    assert_eq!(ProtectedPaths::from_record(&empty.to_record()), Some(empty));
}

#[test]
fn what_a_protected_name_leads_to_is_read_only_under_every_name() {
    let dir = with(&["docs/agents.md", "hooks/pre-commit", "a/AGENTS.md", "plain"]);
    let at = |name: &str| dir.path().join(name);
    symlink("docs/agents.md", at("CLAUDE.md")).unwrap();
    symlink("hooks", at(".husky")).unwrap();
    symlink("/etc/passwd", at("GEMINI.md")).unwrap();
    symlink("gone", at(".envrc")).unwrap();
    symlink("cfg", at(".cargo")).unwrap();
    std::fs::create_dir(at("cfg")).unwrap();
    std::fs::hard_link(at("a/AGENTS.md"), at("b")).unwrap();
    let (_, mounts) = find(dir.path()).unwrap();
    let read_only = [
        ".cargo",
        ".envrc",
        ".husky",
        "CLAUDE.md",
        "GEMINI.md",
        "a/AGENTS.md",
        "b",
        "cfg",
        "docs/agents.md",
        "hooks",
    ];
    assert_eq!(mounts.read_only, read_only);
    assert_eq!(mounts.pinned, ["a", "docs"]);
}

#[test]
fn pins_and_covers_of_a_mask_agree_with_them() {
    let masked = MaskedPaths {
        hidden: vec![".claude/.env".to_owned(), "keys".to_owned()],
        pinned: vec![".claude".to_owned(), "a".to_owned()],
        sockets: 0,
    };
    let protected = ProtectedMounts {
        read_only: vec![".claude".to_owned(), "keys/CLAUDE.md".to_owned()],
        pinned: vec!["b".to_owned(), "keys".to_owned()],
    };
    let (masked, read_only) = masked.with_protected(protected);
    assert_eq!(
        masked.pinned,
        ["a", "b"],
        "a pin would be writable in there"
    );
    assert_eq!(read_only, [".claude", "keys/CLAUDE.md"]);
}

#[test]
fn what_appears_moves_away_whole_and_once() {
    let dir = with(&[".git/HEAD", ".git/config", "src/x", ".github/CODEOWNERS"]);
    let (before, _) = find(dir.path()).unwrap();
    let root = Root::open(dir.path()).unwrap();
    add(
        dir.path(),
        &[
            "new/.git/hooks/pre-commit",
            "new/.git/config",
            "evil/HEAD",
            "evil/objects/x",
            "evil/refs/x",
            "evil/config",
            ".git/config.worktree",
            ".git/hooks/post-checkout",
            ".git/refs/heads/work",
            ".claude/settings.json",
            "src/AGENTS.md",
            "src/y",
        ],
    );
    std::fs::rename(dir.path().join(".github"), dir.path().join("g")).unwrap();
    symlink("evil", dir.path().join(".github")).unwrap();
    let (now, _) = find(dir.path()).unwrap();
    let new = now.appeared_since(&before);
    let expected = [
        ".claude",
        ".git/config.worktree",
        ".git/hooks",
        ".github",
        "evil/config",
        "new/.git",
        "src/AGENTS.md",
    ];
    assert_eq!(new, expected.map(str::as_bytes));
    let place = scratch();
    let state = StateDir::open(&place.path().join("state"), &[]).unwrap();
    let quarantine = Quarantine::create(&state, &SessionId::new("s").unwrap()).unwrap();
    for path in &new {
        let moved = quarantine.take(&root, path).unwrap();
        assert!(moved.symlink_metadata().is_ok(), "{}", moved.display());
    }
    let (left, _) = find(dir.path()).unwrap();
    assert!(left.appeared_since(&before).is_empty());
    assert!(quarantine.path().join("new/.git/hooks/pre-commit").exists());
    assert!(dir.path().join("src/y").exists() && dir.path().join(".git/refs/heads/work").exists());
    let config = dir.path().join(".git/config");
    std::fs::write(dir.path().join("other"), "y").unwrap();
    std::fs::rename(dir.path().join("other"), &config).unwrap();
    let (now, _) = find(dir.path()).unwrap();
    assert_eq!(now.replaced_since(&before), [b".git/config"]);
    let mut before = before;
    before.accept_replaced(&now);
    assert!(now.replaced_since(&before).is_empty());
    let second = Quarantine::create(&state, &SessionId::new("s").unwrap()).unwrap();
    assert_ne!(second.path(), quarantine.path());
    let outside = place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    add(&outside, &["CLAUDE.md"]);
    symlink(&outside, dir.path().join("link")).unwrap();
    assert!(second.take(&root, b"link/CLAUDE.md").is_err());
    assert!(
        outside.join("CLAUDE.md").exists(),
        "nothing moves through a link"
    );
}

/// The state directory may be on another file system than the workspace.
#[test]
fn what_appears_moves_to_another_file_system_too() {
    let shared = tempfile::Builder::new()
        .prefix("marshal-")
        .tempdir_in("/dev/shm")
        .expect("a directory in /dev/shm");
    let place = scratch();
    let root = Root::open(shared.path()).unwrap();
    let device = |path: &Path| Root::open(path).unwrap().meta().unwrap().id.1;
    if device(shared.path()) == device(place.path()) {
        eprintln!("not run: /dev/shm and the temporary directory are on one file system");
        return;
    }
    add(shared.path(), &["a/.git/hooks/pre-commit", "a/.git/config"]);
    symlink("nowhere", shared.path().join(".envrc")).unwrap();
    let state = StateDir::open(&place.path().join("state"), &[]).unwrap();
    let quarantine = Quarantine::create(&state, &SessionId::new("s").unwrap()).unwrap();
    for path in [&b"a/.git"[..], b".envrc"] {
        let moved = quarantine.take(&root, path).unwrap();
        assert!(moved.symlink_metadata().is_ok(), "{}", moved.display());
    }
    assert!(quarantine.path().join("a/.git/hooks/pre-commit").exists());
    assert!(!shared.path().join("a/.git").exists());
    assert!(shared.path().join(".envrc").symlink_metadata().is_err());
    // What cannot be copied stays.
    let fifo = shared.path().join(".exrc");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(quarantine.take(&root, b".exrc").is_err());
    assert!(fifo.symlink_metadata().is_ok());
}
