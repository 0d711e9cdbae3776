//! `kill -9` of the supervisor at every stage of its helpers: nothing is left.
//!
//! A tracer of its own (`killer.c`) stops all helpers at one of their system calls, kills the
//! supervisor there, and lets them go on. Nothing in the program knows of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::children::{self, Place, is_alive, profile, spawner, walled};

/// Stops of the short run; the long one takes every call.
const STOPS: u64 = 24;

/// What is left of a supervisor must be gone by then.
const GONE: Duration = Duration::from_secs(2);

/// The variable that tells a supervisor how long its agent is to sleep.
const NAP: &str = "MARSHAL_TEST_NAP";

/// How long agents of this process sleep, by which they are known.
fn nap() -> String {
    format!("977531.{}", std::process::id())
}

fn compiled(dir: &Path) -> PathBuf {
    let source = dir.join("killer.c");
    fs::write(&source, include_str!("killer.c")).unwrap();
    let killer = dir.join("killer");
    let made = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .args([&killer, &source])
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    fs::set_permissions(&killer, fs::Permissions::from_mode(0o755)).unwrap();
    killer
}

/// Kills a supervisor at a call; what the tracer said.
fn kill_at(killer: &Path, stop: u64) -> String {
    let output = Command::new(killer)
        .arg(stop.to_string())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "killed::the_supervisor",
            "--nocapture",
        ])
        .env("MARSHAL_UNDER_TEST", children::marshal())
        .env(NAP, nap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a supervisor would leave beside processes: its mounts in this namespace.
fn mounts() -> BTreeSet<String> {
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn a_supervisor_killed_at_any_stage_leaves_nothing() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let killer = compiled(dir.path());
    let before = mounts();
    let whole = kill_at(&killer, u64::MAX >> 1);
    let all: u64 = whole
        .lines()
        .find_map(|line| line.strip_prefix("past "))
        .unwrap()
        .parse()
        .unwrap();
    assert!(all > 100, "{whole}");
    assert_gone("the agent ran", &whole).await;
    let is_long = std::env::var("MARSHAL_TEST_LONG").is_ok_and(|long| long == "1");
    let step = if is_long { 1 } else { all.div_ceil(STOPS) };
    let mut calls = BTreeSet::new();
    let mut stop = 1;
    while stop <= all {
        let said = kill_at(&killer, stop);
        // Another run may make a few calls less.
        let call = said
            .lines()
            .find(|line| line.starts_with("call ") || line.starts_with("past "))
            .unwrap()
            .to_owned();
        assert_gone(&format!("stop {stop} of {all}, {call}"), &said).await;
        calls.insert(call);
        stop += step;
    }
    assert!(calls.len() > 5, "{calls:?}");
    assert_eq!(mounts(), before);
}

async fn assert_gone(when: &str, said: &str) {
    let pids: Vec<u32> = said
        .lines()
        .filter_map(|line| line.strip_prefix("pid ")?.parse().ok())
        .collect();
    assert!(!pids.is_empty(), "{when}: {said}");
    children::until(GONE, when, || !pids.iter().any(|pid| is_alive(*pid))).await;
    let left = children::alive(&nap());
    assert!(left.is_empty(), "{when}: {left:?}");
}

#[tokio::test]
#[ignore = "a part of a_supervisor_killed_at_any_stage_leaves_nothing"]
async fn the_supervisor() {
    let (place, profile) = (Place::new(), profile());
    let mut plan = walled(&place.request(&profile), "true");
    plan.argv = vec!["sleep".to_owned(), std::env::var(NAP).unwrap()];
    let _launched = spawner().spawn(plan).await.unwrap();
    std::future::pending::<()>().await;
}
