//! `kill -9` of the supervisor at every stage of its helpers: nothing is left.
//!
//! A tracer of its own (`killer.c`) stops everything at one system call of the helpers, or of the
//! thread that starts them, kills the supervisor there, and lets the others go on. Nothing in the
//! program knows of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use marshal_model::ResourceLimits;
use marshal_sandbox::workspace::Overlay;

use crate::children::{self, Place, is_alive, is_root, profile, spawner, walled};
use crate::programs::install;
use crate::sandbox::limits::{MIB, left_of, limited};
use crate::sandbox::overlay::{OverlayHost, session};

/// Stops of a short run; the long one has ten times as many, or every call where there are less.
const STOPS: u64 = 24;
const LONGER: u64 = 10;

/// What is left of a supervisor must be gone by then: by itself none of it goes.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// The variable that tells a supervisor how long its agent is to sleep.
const NAP: &str = "MARSHAL_TEST_NAP";
/// And what kind of child it starts.
const KIND: &str = "MARSHAL_TEST_KIND";

/// What is started, and where the supervisor is killed.
#[derive(Clone, Copy)]
struct Drill {
    /// What the supervisor is told.
    kind: &'static str,
    /// Whose calls are the stages.
    stages: &'static str,
    /// Whether the small binary stands beside the program.
    has_shim: bool,
    /// Stops of a short run.
    stops: u64,
    /// The least that there must be of such calls.
    least: u64,
}

/// How long agents of a drill sleep, by which they are known.
fn nap(drill: Drill) -> String {
    let number: u32 = drill
        .kind
        .bytes()
        .chain(drill.stages.bytes())
        .map(u32::from)
        .sum();
    format!("97753{number}.{:07}", std::process::id())
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

/// What a drill has on disk.
struct Ground {
    dir: tempfile::TempDir,
    killer: PathBuf,
    marshal: PathBuf,
    drill: Drill,
}

impl Ground {
    fn new(drill: Drill) -> Self {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // The program alone, or with its helper's binary beside it.
        let programs = dir.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let marshal = programs.join("marshal");
        let copy = |from, to: &Path| install(to, fs::File::open(from).unwrap());
        copy(children::marshal(), &marshal);
        if drill.has_shim {
            copy(children::shim(), &programs.join("marshal-shim"));
        }
        let killer = compiled(dir.path());
        Self {
            dir,
            killer,
            marshal,
            drill,
        }
    }

    fn places_dir(&self) -> PathBuf {
        self.dir.path().join("places")
    }

    /// Kills a supervisor at a call; what the tracer said.
    fn kill_at(&self, stop: u64) -> String {
        fs::create_dir(self.places_dir()).unwrap();
        let output = Command::new(&self.killer)
            .args([self.drill.stages, &stop.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "sandbox::killed::the_supervisor",
                "--nocapture",
            ])
            .env("MARSHAL_UNDER_TEST", &self.marshal)
            .env("TMPDIR", self.places_dir())
            .env(NAP, nap(self.drill))
            .env(KIND, self.drill.kind)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// That what was on disk is there and nothing else, and that an overlay is nobody's any more.
    fn check_places(&self, when: &str) {
        let mut names: Vec<String> = Vec::new();
        let mut places = fs::read_dir(self.places_dir()).unwrap();
        // It was killed before it made any.
        let Some(place) = places.next() else { return };
        let place = place.unwrap().path();
        for dir in ["", "home", "workspace", "state", "state/overlays"] {
            for entry in fs::read_dir(place.join(dir)).into_iter().flatten() {
                names.push(
                    entry
                        .unwrap()
                        .path()
                        .strip_prefix(&place)
                        .unwrap()
                        .display()
                        .to_string(),
                );
            }
        }
        let expected = [
            "home",
            "workspace",
            "project",
            "supervisor.toml",
            "state",
            "state/overlays",
            "state/overlays/s-1",
            "state/overlays/s-1,lock",
            "state/overlays/s-1,began",
            "state/overlays/s-1,record",
        ];
        for name in &names {
            assert!(
                expected.contains(&name.as_str()),
                "{when}: {name} in {names:?}"
            );
        }
        assert!(places.next().is_none(), "{when}");
        if names.iter().any(|name| name == "state/overlays/s-1") {
            let overlays = place.join("state/overlays");
            let root = marshal_sandbox::workspace::Root::open(&overlays).unwrap();
            let guard = Overlay::lock_existing(&root, &session());
            assert!(guard.is_ok(), "{when}: {guard:?}");
        }
    }

    /// That nothing is left of a supervisor that was killed a moment ago.
    async fn check(&self, when: &str, reported: &str) {
        let killed = ticks();
        let until = Instant::now() + CLEANUP_TIMEOUT;
        let left = || until.saturating_duration_since(Instant::now());
        let after = |word: &str| -> Vec<String> {
            let lines = reported.lines();
            lines
                .filter_map(|line| line.strip_prefix(word))
                .map(str::to_owned)
                .collect()
        };
        let pids: Vec<u32> = after("pid ")
            .iter()
            .map(|pid| pid.parse().unwrap())
            .collect();
        assert!(
            self.drill.stages == "spawner" || !pids.is_empty(),
            "{when}: {reported}"
        );
        let spaces: BTreeSet<String> = after("ns ").into_iter().collect();
        let supervisor: u32 = after("supervisor ")[0].parse().unwrap();
        children::until(left(), when, || {
            !pids.iter().chain([&supervisor]).any(|pid| is_alive(*pid))
        })
        .await;
        let token = nap(self.drill);
        children::until(left(), &format!("nobody of it: {when}"), || {
            children::live_processes(&token).is_empty() && inside(&spaces, killed).is_empty()
        })
        .await;
        children::until(CLEANUP_TIMEOUT, &format!("no group of it: {when}"), || {
            left_of(supervisor).is_empty()
        })
        .await;
        // Other tests mount things beside this one.
        let mounted = children::mounts_of(self.dir.path());
        assert!(mounted.is_empty(), "{when}: {mounted:?}");
        self.check_places(when);
        // The kernel leaves a directory in an overlay's that nobody may enter.
        let opened = Command::new("chmod")
            .args(["-R", "u+rwx"])
            .arg(self.places_dir())
            .status();
        assert!(opened.unwrap().success(), "{when}");
        fs::remove_dir_all(self.places_dir()).unwrap();
    }
}

/// The clock by which the kernel says when a process was started, in its ticks.
fn ticks() -> f64 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    seconds * rustix::param::clock_ticks_per_second() as f64
}

/// When it was started.
fn started(pid: u32) -> Option<f64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// The processes in any of these namespaces that were there at that time: the numbers of namespaces
/// that are gone are given to the next ones.
fn inside(spaces: &BTreeSet<String>, at: f64) -> Vec<u32> {
    let is_in = |pid: &u32| {
        ["mnt", "pid", "net", "user"].iter().any(|kind| {
            let link = fs::read_link(format!("/proc/{pid}/ns/{kind}"));
            link.is_ok_and(|link| spaces.contains(link.to_string_lossy().as_ref()))
        })
    };
    let mut found = children::processes();
    found
        .retain(|pid| is_in(pid) && is_alive(*pid) && started(*pid).is_some_and(|then| then <= at));
    found
}

/// Kills a supervisor at every stage of a drill, and says what was done.
async fn holds(drill: Drill) -> String {
    let ground = Ground::new(drill);
    let began = Instant::now();
    let whole = ground.kill_at(u64::MAX >> 1);
    let all: u64 = whole
        .lines()
        .find_map(|line| line.strip_prefix("past "))
        .unwrap()
        .parse()
        .unwrap();
    assert!(all > drill.least, "{whole}");
    ground.check("the agent ran", &whole).await;
    let is_long = std::env::var("MARSHAL_TEST_LONG").is_ok_and(|long| long == "1");
    let stops = drill.stops * if is_long { LONGER } else { 1 };
    let stops = stops.min(all);
    let mut calls = BTreeSet::new();
    for at in 0..stops {
        let stop = 1 + at * all / stops;
        let reported = ground.kill_at(stop);
        // Another run may make a few calls less.
        let call = reported
            .lines()
            .find(|line| line.starts_with("call ") || line.starts_with("past "))
            .unwrap()
            .to_owned();
        let when = format!(
            "stop {stop} of {all} of {} {}, {call}",
            drill.kind, drill.stages
        );
        ground.check(&when, &reported).await;
        calls.insert(call);
    }
    assert!(calls.len() > 5, "{calls:?}");
    format!(
        "{} {}: killed at {stops} of {all} calls, {} of them different, in {:?}",
        drill.kind,
        drill.stages,
        calls.len(),
        began.elapsed()
    )
}

#[tokio::test]
async fn a_supervisor_killed_at_any_stage_leaves_nothing() {
    let reported = holds(Drill {
        kind: "plain",
        stages: "helpers",
        has_shim: false,
        stops: STOPS,
        least: 100,
    })
    .await;
    eprintln!("{reported}");
}

#[tokio::test]
async fn nor_one_whose_children_have_limits_and_the_small_helper() {
    let reported = holds(Drill {
        kind: "groups",
        stages: "helpers",
        has_shim: true,
        stops: STOPS,
        least: 100,
    })
    .await;
    eprintln!("{reported}");
}

#[tokio::test]
async fn nor_one_that_is_killed_while_it_makes_groups_and_starts_helpers() {
    let reported = holds(Drill {
        kind: "groups",
        stages: "spawner",
        has_shim: true,
        stops: STOPS,
        least: 20,
    })
    .await;
    eprintln!("{reported}");
}

#[tokio::test]
async fn nor_one_whose_children_work_on_overlays() {
    let reported = holds(Drill {
        kind: "overlay",
        stages: "helpers",
        has_shim: true,
        stops: STOPS,
        least: 100,
    })
    .await;
    eprintln!("{reported}");
}

#[tokio::test]
#[ignore = "a part of a_supervisor_killed_at_any_stage_leaves_nothing"]
async fn the_supervisor() {
    let sleep = ["sleep".to_owned(), std::env::var(NAP).unwrap()];
    let profile = profile();
    let limits = ResourceLimits {
        pids: Some(64),
        memory: Some(256 * MIB),
        swap: Some(0),
        cpu_millis: Some(500),
        ..ResourceLimits::NONE
    };
    let (mut places, mut overs, mut helds) = (Vec::new(), Vec::new(), Vec::new());
    let mut plan = match &*std::env::var(KIND).unwrap() {
        "overlay" => {
            overs.push(OverlayHost::new());
            overs[0].put("file", "text\n");
            helds.push(overs[0].prepare().unwrap());
            limited(walled(&overs[0].request(&helds[0]), "true"), limits)
        }
        kind => {
            places.push(Place::new());
            let plan = walled(&places[0].request(&profile), "true");
            let group = if kind == "groups" {
                limits
            } else {
                ResourceLimits::NONE
            };
            limited(plan, group)
        }
    };
    plan.argv = sleep.to_vec();
    let launched = spawner().spawn(plan).await.unwrap();
    let has_group = launched.process.group().is_some();
    assert_eq!(has_group, is_root());
    std::future::pending::<()>().await;
}
