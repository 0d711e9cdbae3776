//! What a child may take with everything that it starts: held by control groups where this host gives
//! some, by resource limits elsewhere.
//!
//! As root the groups are this host's own. As an ordinary user there are none, and the tests say so;
//! groups that were handed to such a user are in `groups.rs`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use marshal_config::StopTimeouts;
use marshal_launch::cgroup::{Enforcement, survey};
use marshal_launch::{self as launch, ChildExit, LaunchPlan, LaunchedChild, SpawnError};
use marshal_model::{ExitStatus, LimitBackend, ResourceLimits};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::children::{
    self, Place, group_trees, has_groups, is_alive, plain, spawner, until, walled,
};
use crate::sandbox::groups::{ROLE, this_test};

pub(crate) const MIB: u64 = 1 << 20;

/// `sh -c` in a sandbox with these limits.
pub(crate) fn limited_script(place: &Place, group: ResourceLimits, script: &str) -> LaunchPlan {
    let profile = children::profile();
    limited(walled(&place.request(&profile), script), group)
}

pub(crate) fn limited(mut plan: LaunchPlan, group: ResourceLimits) -> LaunchPlan {
    plan.limits.group = group;
    plan
}

fn waits(each: Duration) -> StopTimeouts {
    StopTimeouts {
        goodbye: each,
        eof: each,
        int: each,
        term: each,
    }
}

pub(crate) async fn line(launched: &mut LaunchedChild) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(&mut launched.stdout);
    stdout.read_line(&mut line).await.unwrap();
    line.trim().to_owned()
}

pub(crate) async fn wait_for_exit(launched: LaunchedChild) -> ChildExit {
    let (_keeper, end) = launch::keep(launched.process, waits(Duration::from_secs(1)));
    let end = tokio::time::timeout(Duration::from_secs(60), end).await;
    end.unwrap().unwrap()
}

/// The groups of a process, as its kernel names them: number of the tree, controllers, path.
pub(crate) fn groups_of(pid: u32) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let fields = text.lines().map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next().unwrap().to_owned();
        (controllers, fields.next().unwrap().to_owned())
    });
    fields.collect()
}

/// The directories of this host with a name of this program's groups whose supervisor has this pid.
pub(crate) fn left_of(supervisor: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    let name = format!("marshal.{supervisor}.");
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(&name) {
                    found.push(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn the_survey_says_by_what_and_why_not_by_better() {
    if std::env::var_os(ROLE).is_none() {
        // In a process of its own: the groups of other tests here are not its own.
        let mut alone = this_test("sandbox::limits::the_survey_says_by_what_and_why_not_by_better");
        let output = alone.env(ROLE, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}");
        return;
    }
    let findings = survey();
    let of = |feature: &str| {
        let found = findings.iter().find(|found| found.feature == feature);
        found.unwrap_or_else(|| panic!("{feature}: {findings:?}"))
    };
    for feature in ["cgroup.pids", "cgroup.memory", "cgroup.cpu", "cgroup.kill"] {
        let found = of(feature);
        if has_groups() {
            assert_ne!(found.enforcement, Enforcement::Unenforced, "{found:?}");
        } else {
            assert_eq!(found.enforcement, Enforcement::Unenforced, "{found:?}");
            assert!(found.hint.is_some_and(|hint| hint.contains("Delegate=yes")));
        }
        assert!(
            found.enforcement == Enforcement::V2 || found.why.is_some(),
            "{found:?}"
        );
    }
    assert_eq!(left_of(std::process::id()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_child_says_by_what_it_is_held_and_is_in_its_groups_before_it_runs() {
    let place = Place::new();
    let group = ResourceLimits {
        pids: Some(64),
        memory: Some(256 * MIB),
        swap: Some(0),
        cpu_millis: Some(500),
        backend: LimitBackend::Auto,
    };
    let plans = [
        limited_script(&place, group, "echo up; read line"),
        limited(plain("echo up; read line"), group),
    ];
    // One supervisor: another one would find the groups of the first while they are removed.
    let spawner = spawner();
    for plan in plans {
        let has_walls = matches!(plan.sandbox, marshal_launch::SandboxSpec::Shim(_));
        let mut launched = spawner.spawn(plan).await.unwrap();
        assert_eq!(line(&mut launched).await, "up");
        let by = launched.limit_enforcement.clone();
        if has_groups() {
            let (v1, v2) = (Enforcement::V1, Enforcement::V2);
            for one in [by.pids, by.memory, by.cpu] {
                assert!(one == v1 || one == v2, "{by}");
            }
            assert_eq!(by.describe_missing(), None);
            assert!(by.to_string().contains("memory: cgroup v"), "{by}");
            let all: Vec<u32> = children::below(launched.pid)
                .into_iter()
                .chain([launched.pid])
                .collect();
            assert!(all.len() >= 2, "{all:?}");
            for pid in all {
                let of = groups_of(pid);
                let ours = of.iter().filter(|(_, path)| path.contains("/marshal."));
                assert!(ours.count() >= group_trees(), "{pid}: {of:?}");
            }
        } else {
            assert_eq!(
                (by.memory, by.cpu),
                (Enforcement::Unenforced, Enforcement::Unenforced)
            );
            let pids = if has_walls {
                Enforcement::Rlimit
            } else {
                Enforcement::Unenforced
            };
            assert_eq!(by.pids, pids, "{by}");
            let weakness = by.describe_missing().unwrap();
            assert!(weakness.contains("memory"), "{weakness}");
            assert!(weakness.contains("cgroup"), "says why: {weakness}");
        }
        drop(launched.stdin);
        drop(launched.process);
    }
}

#[tokio::test]
async fn a_backend_that_was_asked_for_by_name_and_is_not_there_is_an_error() {
    let group = |backend| ResourceLimits {
        memory: Some(64 * MIB),
        backend,
        ..ResourceLimits::NONE
    };
    let wanted = |backend| spawner_run(limited(plain("echo ran"), group(backend)));
    let by = survey()
        .iter()
        .find(|of| of.feature == "cgroup.memory")
        .unwrap()
        .enforcement;
    let missing = match by {
        Enforcement::V1 => LimitBackend::V2,
        _ => LimitBackend::V1,
    };
    let refused = wanted(missing).await.unwrap_err();
    assert_eq!(refused.metric_result(), "cgroup_failed");
    let text = refused.to_string();
    let named = format!("backend = \"{missing}\": this backend does not enforce memory");
    assert!(text.contains(&named), "{text}");
    // Said, and not held.
    let by = wanted(LimitBackend::Rlimit).await.unwrap();
    assert_eq!(by, Enforcement::Unenforced);
}

async fn spawner_run(plan: LaunchPlan) -> Result<Enforcement, SpawnError> {
    let launched = spawner().spawn(plan).await?;
    Ok(launched.limit_enforcement.memory)
}

#[tokio::test]
async fn a_fork_bomb_ends_at_its_limit_and_leaves_nothing() {
    let place = Place::new();
    let group = ResourceLimits {
        pids: Some(40),
        ..ResourceLimits::NONE
    };
    // A shell that gets no process ends, so one that waits is around it.
    let bomb = "(i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done) 2>/dev/null; echo up; read line";
    let mut plans = vec![limited_script(&place, group, bomb)];
    if has_groups() {
        plans.push(limited(plain(bomb), group));
    }
    let spawner = spawner();
    for plan in plans {
        let mut launched = spawner.spawn(plan).await.unwrap();
        assert_eq!(line(&mut launched).await, "up");
        let all = children::below(launched.pid);
        assert!((20..40).contains(&all.len()), "{} processes", all.len());
        // Somebody else still can.
        assert!(Command::new("true").status().unwrap().success());
        let (keeper, end) = launch::keep(launched.process, waits(Duration::from_secs(1)));
        keeper.kill();
        let end = tokio::time::timeout(Duration::from_secs(30), end).await;
        assert_eq!(end.unwrap().unwrap().survivors_left, 0);
        wait_until_dead(&all).await;
    }
}

/// Waits until all are gone: who was killed may still be on its way out when its helper's end is seen.
async fn wait_until_dead(all: &[u32]) {
    let are_gone = || all.iter().all(|pid| !is_alive(*pid));
    until(Duration::from_secs(20), "all are gone", are_gone).await;
}

/// Takes far more memory than it may, and touches it; where nothing stops it, it stops by itself.
pub(crate) const GLUTTON: &str =
    "exec /usr/bin/python3 -c '\nb = []\nfor i in range(256): b.append(bytearray(1 << 20))'";

#[tokio::test]
async fn who_takes_more_memory_than_the_limit_is_killed_and_the_peak_is_known() {
    if !has_groups() {
        eprintln!("not tested as this user: no memory controller was handed to it");
        return;
    }
    let place = Place::new();
    let group = ResourceLimits {
        memory: Some(64 * MIB),
        swap: Some(0),
        ..ResourceLimits::NONE
    };
    let neighbour = limited_script(&place, group, "read line; echo alive");
    let spawner = spawner();
    let mut neighbour = spawner.spawn(neighbour).await.unwrap();
    for plan in [
        limited_script(&place, group, GLUTTON),
        limited(plain(GLUTTON), group),
    ] {
        let launched = spawner.spawn(plan).await.unwrap();
        let end = wait_for_exit(launched).await;
        assert_eq!(end.status, Some(ExitStatus::Signal(9)), "{end:?}");
        let over = end.group_outcome.as_ref().unwrap();
        assert_eq!(over.memory_limit, Some(64 * MIB));
        assert!(over.usage.oom_kills >= Some(1), "{over:?}");
        let peak = over.usage.peak.unwrap();
        assert!((32 * MIB..=64 * MIB).contains(&peak), "{peak}");
        assert!(over.usage.cpu_micros > Some(0), "{over:?}");
    }
    tokio::io::AsyncWriteExt::write_all(&mut neighbour.stdin, b"x\n")
        .await
        .unwrap();
    assert_eq!(line(&mut neighbour).await, "alive");
}

#[tokio::test]
async fn a_share_of_a_processor_is_what_is_used() {
    if !has_groups() {
        eprintln!("not tested as this user: no cpu controller was handed to it");
        return;
    }
    let place = Place::new();
    let share = ResourceLimits {
        cpu_millis: Some(250),
        ..ResourceLimits::NONE
    };
    // Two that are busy; the share is of both together.
    let busy = "(while :; do :; done) & while :; do :; done";
    let spawner = spawner();
    let launched = spawner
        .spawn(limited_script(&place, share, busy))
        .await
        .unwrap();
    let group = launched.process.group().unwrap().clone();
    let used = || group.usage().cpu_micros.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The clock first: what is used between the two would be too much for the time.
    let began = Instant::now();
    let before = used();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (micros, took) = (used() - before, began.elapsed());
    let share = micros as f64 / took.as_micros() as f64;
    eprintln!("a quarter of a processor: {share:.3}");
    // Less than its share it may get on a busy host, never more but for one period.
    assert!(share < 0.30, "{share}");
    assert!(share > 0.02, "{share}");
    drop(launched);
}

#[tokio::test]
async fn a_frozen_child_is_killed_at_once() {
    if !has_groups() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let place = Place::new();
    let profile = children::profile();
    let script = "trap '' INT TERM; echo up; while :; do sleep 1; done";
    for plan in [walled(&place.request(&profile), script), plain(script)] {
        // The best of a few: on a busy machine all of them together wait longer than one does.
        let mut least = Duration::MAX;
        for _ in 0..4 {
            least = least.min(killed_frozen(plan.clone()).await);
            if least < Duration::from_secs(2) {
                break;
            }
        }
        assert!(least < Duration::from_secs(2), "{least:?}");
    }
}

/// How long it takes to kill a child that is frozen.
async fn killed_frozen(plan: LaunchPlan) -> Duration {
    let spawner = spawner();
    let mut launched = spawner.spawn(plan).await.unwrap();
    assert_eq!(line(&mut launched).await, "up");
    let group = launched.process.group().unwrap().clone();
    assert!(group.freeze(true).unwrap(), "no cgroup v2 here");
    until(Duration::from_secs(20), "frozen", || group.is_frozen()).await;
    let all = children::below(launched.pid);
    let (keeper, end) = launch::keep(launched.process, waits(Duration::from_secs(1)));
    let began = Instant::now();
    keeper.kill();
    let end = tokio::time::timeout(Duration::from_secs(30), end).await;
    let took = began.elapsed();
    let end = end.unwrap().unwrap();
    assert_eq!((end.is_forced, end.survivors_left), (true, 0), "{end:?}");
    wait_until_dead(&all).await;
    assert!(group.directories().iter().all(|dir| !dir.exists()));
    took
}

#[tokio::test]
async fn without_a_sandbox_no_process_survives_that_lost_its_leash() {
    if !has_groups() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let spawner = spawner();
    // Neither a parent nor the marker leads to it.
    let script =
        "setsid env -i sh -c 'exec sleep 1000' </dev/null >/dev/null 2>&1 & echo $!; read line";
    let mut launched = spawner.spawn(plain(script)).await.unwrap();
    let orphan: u32 = line(&mut launched).await.parse().unwrap();
    let leash = rustix::process::Pid::from_raw(i32::try_from(launched.pid).unwrap()).unwrap();
    rustix::process::kill_process(leash, rustix::process::Signal::KILL).unwrap();
    let end = wait_for_exit(launched).await;
    assert!(
        end.sandbox_failure.is_some() && end.survivors_killed >= 1,
        "{end:?}"
    );
    wait_until_dead(&[orphan]).await;
}

/// Opens terminals until it may not; prints how many there are, and the error's number.
const TERMINALS: &str = r#"exec /usr/bin/python3 -c '
import os
opened = []
try:
    while len(opened) < 300: opened.append(os.open("/dev/ptmx", os.O_RDWR))
    print(len(opened), "and no error")
except OSError as error: print(len(opened), error.errno)'"#;

#[tokio::test]
async fn a_sandbox_cannot_use_up_the_terminals_of_the_host() {
    let place = Place::new();
    let profile = children::profile();
    let mut request = place.request(&profile);
    request.has_terminals = true;
    let plan = walled(&request, TERMINALS);
    let mut launched = spawner().spawn(plan).await.unwrap();
    let no_space = rustix::io::Errno::NOSPC.raw_os_error();
    assert_eq!(line(&mut launched).await, format!("64 {no_space}"));
    wait_for_exit(launched).await;
}
