//! What is found to be covered and held, and what is refused.

use super::super::testing::{Scratch, scratch};
use super::*;

fn masks(patterns: &[&str]) -> Masks {
    let patterns: Vec<String> = patterns.iter().map(|&p| p.to_owned()).collect();
    Masks::new(&patterns).expect("patterns")
}

/// A directory with these files in it, and the directories that they need.
fn with(files: &[&str]) -> Scratch {
    let dir = scratch();
    for file in files {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    dir
}

fn find_masked(
    dir: &Path,
    patterns: &[&str],
    view: WorkspaceView,
) -> Result<MaskedPaths, MaskError> {
    masks(patterns).find(&Root::open(dir).unwrap(), &[], view)
}

fn link(dir: &Path, to: &str, name: &str) {
    std::os::unix::fs::symlink(to, dir.join(name)).unwrap();
}

#[test]
fn what_is_there_is_found_and_a_link_leads_to_what_is_hidden() {
    let dir = with(&[
        ".env",
        "a/b/x.pem",
        "a/plain",
        "secrets/deep/key.pem",
        "a/prod",
        ".git/refs/x.pem",
    ]);
    link(dir.path(), "prod", "a/l.pem");
    link(dir.path(), "/etc/passwd", "a/out.pem");
    link(dir.path(), "gone", "a/dangling.pem");
    let hidden = |patterns: &[&str]| {
        let found = find_masked(dir.path(), patterns, WorkspaceView::ReadOnly).unwrap();
        assert_eq!((found.pinned.len(), found.sockets), (0, 0), "{found:?}");
        found.hidden
    };
    let all = hidden(&[".env", "*.pem", "secrets"]);
    assert_eq!(all, [".env", "a/b/x.pem", "a/prod", "secrets"]);
    let root = Root::open(dir.path()).unwrap();
    let within = ["a/b".to_owned()];
    let part = masks(&[".env", "*.pem"]).find(&root, &within, WorkspaceView::ReadOnly);
    assert_eq!(part.unwrap().hidden, ["a/b/x.pem"]);
    link(dir.path(), "/workspace/a/plain", "a/b/in.pem");
    let refused = find_masked(dir.path(), &["*.pem"], WorkspaceView::ReadOnly);
    assert!(matches!(refused, Err(MaskError::Link(_))), "{refused:?}");
}

#[test]
fn every_other_name_of_a_hidden_file_is_hidden_too() {
    let dir = with(&["a/.env", "vault/deep/key", "plain", "late/x"]);
    let hard = |from: &str, to: &str| {
        std::fs::hard_link(dir.path().join(from), dir.path().join(to)).unwrap();
    };
    hard("a/.env", "0-before");
    hard("a/.env", "late/after");
    hard("vault/deep/key", "a/of-a-directory");
    hard("plain", "late/plain-too");
    for view in [
        WorkspaceView::ReadOnly,
        WorkspaceView::Writable,
        WorkspaceView::Layered,
    ] {
        let found = find_masked(dir.path(), &[".env", "vault"], view).unwrap();
        let all = [
            "0-before",
            "a/.env",
            "a/of-a-directory",
            "late/after",
            "vault",
        ];
        assert_eq!(found.hidden, all, "{view:?}");
    }
}

#[test]
fn sockets_are_hidden_where_somebody_could_answer() {
    let dir = with(&["run/x", ".git/HEAD"]);
    let bind = |name: &str| std::os::unix::net::UnixListener::bind(dir.path().join(name)).unwrap();
    let _listening = (bind("run/agent"), bind(".git/ipc"));
    for (view, expect) in [
        (WorkspaceView::ReadOnly, &[".git/ipc", "run/agent"][..]),
        (WorkspaceView::Writable, &[".git/ipc", "run/agent"]),
        (WorkspaceView::Layered, &[]),
    ] {
        let by_mask = find_masked(dir.path(), &["nothing"], view).unwrap();
        assert_eq!(by_mask.hidden, expect, "{view:?}");
        assert_eq!(by_mask.sockets, expect.len(), "{view:?}");
        let alone = find_sockets(&Root::open(dir.path()).unwrap(), view).unwrap();
        assert_eq!(alone, by_mask, "{view:?}");
    }
}

#[test]
fn whatever_leads_to_something_hidden_is_held_where_it_is_written() {
    let dir = with(&["a/b/.env", "c/d/prod", "e/f/g", "plain/x", "vault/in/.env"]);
    link(dir.path(), "../e/f/../../hop", "a/prod.pem");
    link(dir.path(), "c/d", "hop2");
    link(dir.path(), "hop2/prod", "hop");
    let found = find_masked(
        dir.path(),
        &[".env", "*.pem", "vault"],
        WorkspaceView::Writable,
    )
    .unwrap();
    assert_eq!(found.hidden, ["a/b/.env", "c/d/prod", "vault"]);
    let held = [
        "a",
        "a/b",
        "a/prod.pem",
        "c",
        "c/d",
        "e",
        "e/f",
        "hop",
        "hop2",
    ];
    assert_eq!(found.pinned, held);
}

#[test]
fn what_cannot_be_looked_through_is_an_error() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = scratch();
    for n in 0..=limits::MASKED_PATHS {
        std::fs::write(dir.path().join(format!("{n}.pem")), "").unwrap();
    }
    let many = find_masked(dir.path(), &["*.pem"], WorkspaceView::ReadOnly);
    assert!(matches!(many, Err(MaskError::TooMany(_))), "{many:?}");
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let shut = find_masked(dir.path(), &["x"], WorkspaceView::ReadOnly);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(matches!(shut, Err(MaskError::Unreadable(_))), "{shut:?}");
    let none = find_masked(dir.path(), &["x"], WorkspaceView::ReadOnly).unwrap();
    assert_eq!(none, MaskedPaths::default());
    // Files with such a name, each at the end of a path of its own.
    let deep = scratch();
    let levels = limits::MASK_PINNED_PATHS / 500 + 1;
    for n in 0..500 {
        let path = (0..levels).fold(deep.path().to_owned(), |path, _| path.join(n.to_string()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(".env"), "").unwrap();
    }
    let held = find_masked(deep.path(), &[".env"], WorkspaceView::Writable);
    assert!(matches!(held, Err(MaskError::TooManyPinned(_))), "{held:?}");
    let covered = find_masked(deep.path(), &[".env"], WorkspaceView::ReadOnly).unwrap();
    assert_eq!(covered.hidden.len(), 500);
}

#[test]
fn a_link_that_comes_back_by_another_way_is_refused_and_one_that_leaves_is_not() {
    let outside = scratch();
    std::fs::write(outside.path().join("key"), "x").unwrap();
    for (text, hop, is_refused) in [
        ("/etc/passwd", None, false),
        ("../../no/such", None, false),
        ("OUTSIDE/key", None, false),
        ("TOP/prod", None, true),
        ("/workspace/../workspace/prod", None, true),
        ("../../workspace/prod", None, true),
        ("hop", Some("/workspace/prod"), true),
        ("hop/prod", Some("TOP"), true),
        ("OUTSIDE/back/prod", None, true),
        ("hop", Some("/etc/passwd"), true),
    ] {
        let dir = with(&["prod", "a/x"]);
        let at = |text: &str| {
            text.replace("TOP", &dir.path().display().to_string())
                .replace("OUTSIDE", &outside.path().display().to_string())
        };
        let _ = std::fs::remove_file(outside.path().join("back"));
        link(outside.path(), &at("TOP"), "back");
        link(dir.path(), &at(text), "a/l.pem");
        if let Some(hop) = hop {
            link(dir.path(), &at(hop), "a/hop");
        }
        for view in [
            WorkspaceView::ReadOnly,
            WorkspaceView::Writable,
            WorkspaceView::Layered,
        ] {
            let found = find_masked(dir.path(), &["*.pem"], view);
            assert_eq!(
                matches!(found, Err(MaskError::Link(_))),
                is_refused,
                "{text} {hop:?}: {found:?}"
            );
        }
    }
}
