//! The helper that is ready for the next sandbox.

use std::fs;
use std::process::Command;
use std::time::Duration;

use marshal_launch::LaunchedChild;
use marshal_wire::shim::ARG0_OUTER;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::children::{self, Place, is_alive, is_root, spawner, until, walled};

const SOON: Duration = Duration::from_secs(30);

/// The helpers of sandboxes that the thread which started this child has as children, without it.
fn others_of(first: &LaunchedChild) -> Vec<u32> {
    let children = |task: &fs::DirEntry| -> Vec<u32> {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        list.split_ascii_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    let is_helper = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(ARG0_OUTER.as_bytes())
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists: Vec<Vec<u32>> = tasks.map(|task| children(&task)).collect();
    let own = lists.into_iter().find(|list| list.contains(&first.pid));
    // The kernel leaves somebody out of a list that changes while it is read: then it is read again.
    let mut own = own.unwrap_or_default();
    own.retain(|pid| *pid != first.pid && is_helper(pid) && is_alive(*pid));
    own
}

async fn ready_beside(first: &LaunchedChild) -> u32 {
    let mut ready = None;
    until(SOON, "a helper is ready", || {
        ready = others_of(first).first().copied();
        ready.is_some()
    })
    .await;
    ready.unwrap()
}

async fn echoes(launched: &mut LaunchedChild) {
    let mut reported = [0; 3];
    launched.stdin.write_all(b"hi\n").await.unwrap();
    launched.stdout.read_exact(&mut reported).await.unwrap();
    assert_eq!(&reported, b"hi\n");
}

#[tokio::test]
async fn the_next_sandbox_is_put_up_by_a_helper_that_waited_for_it() {
    let place = Place::new();
    let mut profile = children::profile();
    let spawner = spawner();
    let first = walled(&place.request(&profile), "exec cat");
    let mut first = spawner.spawn(first).await.unwrap();
    echoes(&mut first).await;
    let ready = ready_beside(&first).await;

    // The limits are the ones of whoever it is for.
    profile.group_limits.pids = Some(if is_root() { 77 } else { 4096 });
    let mut second = walled(&place.request(&profile), "exec cat");
    second.limits = marshal_sandbox::limits_of(&profile);
    let mut second = spawner.spawn(second).await.unwrap();
    assert_eq!(second.pid, ready);
    echoes(&mut second).await;
    if let Some(group) = second.process.group() {
        let text = |name: &str| -> Vec<String> {
            let dirs = group.directories().iter();
            dirs.filter_map(|dir| fs::read_to_string(dir.join(name)).ok())
                .collect()
        };
        assert_eq!(text("pids.max"), ["77\n"]);
        for all in text("cgroup.procs") {
            let own = all.lines().any(|line| line == ready.to_string());
            assert!(own && all.lines().count() >= 3, "{all:?}");
        }
    } else {
        assert!(!is_root(), "root has groups here");
    }

    // One that died meanwhile is nobody's start.
    let second_pid = second.pid;
    drop(second);
    until(SOON, "the second has ended", || !is_alive(second_pid)).await;
    let ready = ready_beside(&first).await;
    let mut kill = Command::new("kill");
    kill.args(["-9", &ready.to_string()]);
    assert!(kill.status().unwrap().success());
    until(SOON, "it is dead", || !is_alive(ready)).await;
    let third = walled(&place.request(&profile), "exec cat");
    let mut third = spawner.spawn(third).await.unwrap();
    assert_ne!(third.pid, ready);
    echoes(&mut third).await;

    // And none is left of a spawner that is gone.
    let third_pid = third.pid;
    drop(third);
    until(SOON, "the third has ended", || !is_alive(third_pid)).await;
    let ready = ready_beside(&first).await;
    drop((first, spawner));
    until(SOON, "no helper is left", || !is_alive(ready)).await;
}
