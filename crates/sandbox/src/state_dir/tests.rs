//! The state directory's checks, with real directories, links, users and processes.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::super::workspace::testing::{as_ordinary_user, is_root, scratch};
use super::*;
use crate::test_fixtures::wait_until_unlocked;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_place_comes_from_systemd_then_xdg_then_home() {
    let check = |variables: &[(&str, &str)], expect: &str| {
        let variables: Vec<_> = variables.to_vec();
        let look = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let got = service_path(look)
            .or_else(|| user_path(look))
            .map(|path| path.display().to_string());
        assert_eq!(got.unwrap_or_default(), expect, "{variables:?}");
    };
    let home = ("HOME", "/home/a");
    check(&[home], "/home/a/.local/state/marshal");
    check(&[home, ("XDG_STATE_HOME", "/s")], "/s/marshal");
    check(
        &[home, ("XDG_STATE_HOME", "relative")],
        "/home/a/.local/state/marshal",
    );
    check(
        &[home, ("XDG_STATE_HOME", "")],
        "/home/a/.local/state/marshal",
    );
    check(
        &[home, ("STATE_DIRECTORY", "/var/lib/marshal")],
        "/var/lib/marshal",
    );
    check(
        &[("STATE_DIRECTORY", "/var/lib/a:/var/lib/b")],
        "/var/lib/a",
    );
    check(&[], "");
}

#[test]
fn a_new_state_directory_is_private_and_has_its_parts() {
    let dir = scratch();
    let path = dir.path().join("a/b/state");
    let state = StateDir::open(&path, &[]).unwrap();
    for part in ["", "homes", "copies", "local"] {
        assert_eq!(mode(&path.join(part)), 0o700, "{part}");
    }
    assert_eq!(mode(&path.join("lock")), 0o600);
    assert_eq!(state.path(), path);
    assert!(is_locked(&path));
    drop(state);
    assert!(!is_locked(&path) && !is_locked(&path.join("none")));
}

#[test]
fn the_second_holder_is_told_the_first_ones_pid_and_a_free_one_is_taken() {
    let dir = scratch();
    let path = dir.path().join("state");
    let first = StateDir::open(&path, &[]).unwrap();
    let error = StateDir::open(&path, &[]).expect_err("held");
    let pid = std::process::id();
    assert!(
        matches!(error, StateError::Locked { pid: Some(p), .. } if p == pid),
        "{error}"
    );
    assert!(
        error.to_string().contains(&format!("process {pid}")),
        "{error}"
    );
    drop(first);
    wait_until_unlocked(&path.join("lock"));
    std::fs::write(path.join("lock"), "4194305999\n").unwrap();
    StateDir::open(&path, &[]).expect("a lock is held by flock, not by what its file says");
}

#[test]
fn a_lock_that_a_killed_holder_left_to_its_child_is_waited_for() {
    let dir = scratch();
    let path = dir.path().join("state");
    drop(StateDir::open(&path, &[]).unwrap());
    std::fs::write(path.join("lock"), "4194305999\n").unwrap();
    let left = std::fs::File::open(path.join("lock")).unwrap();
    left.lock().unwrap();
    let child = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(left);
    });
    StateDir::open(&path, &[]).expect("it is free in a moment");
    child.join().unwrap();
    // Somebody holds it on and on, and nobody knows who.
    std::fs::write(path.join("lock"), "4194305999\n").unwrap();
    let left = std::fs::File::open(path.join("lock")).unwrap();
    left.lock().unwrap();
    let error = StateDir::open(&path, &[]).expect_err("held");
    assert!(
        matches!(error, StateError::Locked { pid: None, .. }),
        "{error}"
    );
}

#[test]
fn local_runs_work_beside_a_holder_and_each_alone() {
    let dir = scratch();
    let path = dir.path().join("state");
    let state = StateDir::open(&path, &[]).unwrap();
    let run = RunId::new("0190-a").unwrap();
    let local = StateDir::open_local(&path, &run, &[]).unwrap();
    assert_eq!(local.path(), path.join("local/0190-a"));
    assert!(StateDir::open_local(&path, &run, &[]).is_err());
    assert!(StateDir::open_local(&path, &RunId::new("0190-b").unwrap(), &[]).is_ok());
    wait_until_unlocked(&path.join("local/0190-b/lock"));
    let locals = unlocked_local_runs(&state).unwrap();
    assert_eq!(
        locals.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
        ["0190-b"]
    );
}

#[test]
fn a_state_directory_inside_a_workspace_is_refused_through_links_too() {
    let dir = scratch();
    let workspace = dir.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    symlink(&workspace, dir.path().join("alias")).unwrap();
    let inside = |path: &Path, workspace: PathBuf| {
        let result = StateDir::open(path, &[PathBuf::from("/proc"), workspace]);
        matches!(result, Err(StateError::InsideWorkspace { .. }))
    };
    let state = workspace.join("x/state");
    assert!(inside(&state, workspace.clone()));
    assert!(inside(&state, dir.path().join("alias")));
    assert!(inside(&dir.path().join("alias/x/state"), workspace.clone()));
    assert!(inside(&workspace, workspace.clone()));
    assert!(!inside(&dir.path().join("beside"), workspace));
    assert!(!inside(
        &dir.path().join("beside"),
        dir.path().join("missing")
    ));
}

#[test]
fn a_directory_that_others_may_write_is_refused_and_one_they_may_read_is_closed() {
    let dir = scratch();
    let path = dir.path().join("state");
    std::fs::create_dir(&path).unwrap();
    for bad in [0o777, 0o770, 0o702] {
        chmod(&path, bad);
        let result = StateDir::open(&path, &[]);
        assert!(
            matches!(result, Err(StateError::WritableByOthers { .. })),
            "{bad:o}"
        );
    }
    chmod(&path, 0o755);
    StateDir::open(&path, &[]).unwrap();
    assert_eq!(mode(&path), 0o700);
    wait_until_unlocked(&path.join("lock"));
    chmod(dir.path(), 0o777);
    let error = StateDir::open(&path, &[]).expect_err("others could replace it");
    assert!(
        matches!(
            error,
            StateError::WritableByOthers {
                role: PathRole::Above,
                ..
            }
        ),
        "{error}"
    );
    chmod(dir.path(), 0o1777);
    StateDir::open(&path, &[]).expect("a sticky directory is fine");
}

#[test]
fn what_belongs_to_somebody_else_is_refused() {
    if !is_root() {
        eprintln!("NOT RUN: only root can make what belongs to somebody else");
        return;
    }
    let dir = scratch();
    let chown = |path: &Path| std::os::unix::fs::lchown(path, Some(12_345), Some(12_345)).unwrap();
    let refused = |path: &Path, expect: PathRole| {
        let result = StateDir::open(path, &[]);
        assert!(
            matches!(result, Err(StateError::Foreign { role, uid: 12_345, .. }) if role == expect),
            "{result:?}"
        );
    };
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    chown(&foreign);
    refused(&foreign, PathRole::State);
    refused(&foreign.join("state"), PathRole::Above);
    let real = dir.path().join("real");
    std::fs::create_dir(&real).unwrap();
    let link = dir.path().join("link");
    symlink("real", &link).unwrap();
    StateDir::open(&link.join("state"), &[]).expect("an own link is followed");
    chown(&link);
    refused(&link.join("state"), PathRole::Link);
    let outer = dir.path().join("outer");
    symlink(&link, &outer).unwrap();
    refused(&outer, PathRole::Link);
}

#[test]
fn an_ordinary_user_has_one_below_a_directory_of_roots() {
    as_ordinary_user(
        "an_ordinary_user_has_one_below_a_directory_of_roots",
        || {
            let dir = scratch();
            let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
            drop(state);
            let error = StateDir::open(Path::new("/usr"), &[]).expect_err("it is root's");
            assert!(
                matches!(
                    error,
                    StateError::Foreign {
                        role: PathRole::State,
                        ..
                    }
                ),
                "{error}"
            );
        },
    );
}

#[test]
fn a_circle_of_links_ends() {
    let dir = scratch();
    symlink("b", dir.path().join("a")).unwrap();
    symlink("a", dir.path().join("b")).unwrap();
    let error = StateDir::open(&dir.path().join("a"), &[]).expect_err("a circle");
    assert!(matches!(error, StateError::Io { .. }), "{error}");
}
