//! What a child may take with everything that it starts: held by control groups where this host gives
//! some, by resource limits elsewhere; and what is left of groups, which is nothing.
//!
//! As root the groups are this host's own. As an ordinary user there are none, and the tests say so;
//! groups that were handed to such a user are made by the root tests and handed on.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marshal::config::StopWaits;
use marshal::launch::cgroup::{By, survey};
use marshal::launch::{self, Ended, LaunchPlan, Launched, SpawnError, run_to_end};
use marshal::model::{ExitStatus, GroupLimits, LimitBackend};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::children::{self, Place, USER, is_alive, is_root, plain, spawner, until, walled};

const MIB: u64 = 1 << 20;

/// `sh -c` in walls with these limits.
fn held(place: &Place, group: GroupLimits, script: &str) -> LaunchPlan {
    let profile = children::profile();
    limited(walled(&place.request(&profile), script), group)
}

fn limited(mut plan: LaunchPlan, group: GroupLimits) -> LaunchPlan {
    plan.limits.group = group;
    plan
}

fn waits(each: Duration) -> StopWaits {
    StopWaits {
        goodbye: each,
        eof: each,
        int: each,
        term: each,
    }
}

async fn line(launched: &mut Launched) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(&mut launched.stdout);
    stdout.read_line(&mut line).await.unwrap();
    line.trim().to_owned()
}

async fn over(launched: Launched) -> Ended {
    let (_keeper, end) = launch::keep(launched.process, waits(Duration::from_secs(1)));
    let end = tokio::time::timeout(Duration::from_secs(30), end).await;
    end.unwrap().unwrap()
}

/// The groups of a process, as its kernel names them: number of the tree, controllers, path.
fn groups_of(pid: u32) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let fields = text.lines().map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next().unwrap().to_owned();
        (controllers, fields.next().unwrap().to_owned())
    });
    fields.collect()
}

/// The directories of this host with a name of this program's groups whose supervisor has this pid.
fn left_of(supervisor: u32) -> Vec<PathBuf> {
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
        let mut alone = this_test("limits::the_survey_says_by_what_and_why_not_by_better");
        let output = alone.env(ROLE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        return;
    }
    let findings = survey();
    let of = |feature: &str| {
        let found = findings.iter().find(|found| found.feature == feature);
        found.unwrap_or_else(|| panic!("{feature}: {findings:?}"))
    };
    for feature in ["cgroup.pids", "cgroup.memory", "cgroup.cpu", "cgroup.kill"] {
        let found = of(feature);
        if is_root() {
            assert_ne!(found.by, By::Nothing, "{found:?}");
        } else {
            assert_eq!(found.by, By::Nothing, "{found:?}");
            assert!(found.hint.is_some_and(|hint| hint.contains("Delegate=yes")));
        }
        assert!(found.by == By::V2 || found.why.is_some(), "{found:?}");
    }
    assert_eq!(left_of(std::process::id()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_child_says_by_what_it_is_held_and_is_in_its_groups_before_it_runs() {
    let place = Place::new();
    let group = GroupLimits {
        pids: Some(64),
        memory: Some(256 * MIB),
        swap: Some(0),
        cpu_millis: Some(500),
        backend: LimitBackend::Auto,
    };
    let plans = [
        held(&place, group, "echo up; read line"),
        limited(plain("echo up; read line"), group),
    ];
    for plan in plans {
        let has_walls = matches!(plan.walls, marshal::launch::Walls::Shim(_));
        let spawner = spawner();
        let mut launched = spawner.spawn(plan).await.unwrap();
        assert_eq!(line(&mut launched).await, "up");
        let by = launched.held.clone();
        if is_root() {
            let (v1, v2) = (By::V1, By::V2);
            for one in [by.pids, by.memory, by.cpu] {
                assert!(one == v1 || one == v2, "{by}");
            }
            assert_eq!(by.weakness(), None);
            assert!(by.to_string().contains("memory: cgroup v"), "{by}");
            let all: Vec<u32> = children::below(launched.pid)
                .into_iter()
                .chain([launched.pid])
                .collect();
            assert!(all.len() >= 2, "{all:?}");
            for pid in all {
                let of = groups_of(pid);
                let ours = of.iter().filter(|(_, path)| path.contains("/marshal."));
                assert!(ours.count() >= 2, "{pid}: {of:?}");
            }
        } else {
            assert_eq!((by.memory, by.cpu), (By::Nothing, By::Nothing));
            let pids = if has_walls { By::Rlimit } else { By::Nothing };
            assert_eq!(by.pids, pids, "{by}");
            let weakness = by.weakness().unwrap();
            assert!(weakness.contains("memory"), "{weakness}");
            assert!(weakness.contains("cgroup"), "says why: {weakness}");
        }
        drop(launched.stdin);
        drop(launched.process);
    }
}

#[tokio::test]
async fn a_backend_that_was_asked_for_by_name_and_is_not_there_is_an_error() {
    let group = |backend| GroupLimits {
        memory: Some(64 * MIB),
        backend,
        ..GroupLimits::NONE
    };
    let wanted = |backend| spawner_run(limited(plain("echo ran"), group(backend)));
    let by = survey()
        .iter()
        .find(|of| of.feature == "cgroup.memory")
        .unwrap()
        .by;
    let missing = match by {
        By::V1 => LimitBackend::V2,
        _ => LimitBackend::V1,
    };
    let refused = wanted(missing).await.unwrap_err();
    assert_eq!(refused.metric_result(), "cgroup_failed");
    let text = refused.to_string();
    let named = format!("backend = \"{missing}\": memory not held by it");
    assert!(text.contains(&named), "{text}");
    // Said, and not held.
    let by = wanted(LimitBackend::Rlimit).await.unwrap();
    assert_eq!(by, By::Nothing);
}

async fn spawner_run(plan: LaunchPlan) -> Result<By, SpawnError> {
    let launched = spawner().spawn(plan).await?;
    Ok(launched.held.memory)
}

#[tokio::test]
async fn a_fork_bomb_ends_at_its_limit_and_leaves_nothing() {
    let place = Place::new();
    let group = GroupLimits {
        pids: Some(40),
        ..GroupLimits::NONE
    };
    // A shell that gets no process ends; what it has got goes on.
    let bomb =
        "i=0; while [ $i -lt 200 ]; do (exec sleep 100) & i=$((i+1)); done 2>/dev/null; echo never";
    let mut plans = vec![held(&place, group, bomb)];
    if is_root() {
        plans.push(limited(plain(bomb), group));
    }
    for plan in plans {
        let spawner = spawner();
        let launched = spawner.spawn(plan).await.unwrap();
        let pid = launched.pid;
        let most = || children::below(pid).len();
        until(Duration::from_secs(20), "the bomb goes off", || {
            most() >= 20
        })
        .await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let all = children::below(pid);
        assert!(all.len() < 40, "{} processes", all.len());
        // Somebody else still can.
        assert!(Command::new("true").status().unwrap().success());
        let (keeper, end) = launch::keep(launched.process, waits(Duration::from_secs(1)));
        keeper.kill();
        let end = tokio::time::timeout(Duration::from_secs(20), end).await;
        assert_eq!(end.unwrap().unwrap().survivors_left, 0);
        assert!(all.iter().all(|pid| !is_alive(*pid)));
    }
}

/// Takes far more memory than it may, and touches it; where nothing stops it, it stops by itself.
const GLUTTON: &str =
    "exec /usr/bin/python3 -c '\nb = []\nfor i in range(256): b.append(bytearray(1 << 20))'";

#[tokio::test]
async fn who_takes_more_memory_than_the_limit_is_killed_and_the_peak_is_known() {
    if !is_root() {
        eprintln!("not tested as this user: no memory controller was handed to it");
        return;
    }
    let place = Place::new();
    let group = GroupLimits {
        memory: Some(64 * MIB),
        swap: Some(0),
        ..GroupLimits::NONE
    };
    let neighbour = held(&place, group, "read line; echo alive");
    let spawner = spawner();
    let mut neighbour = spawner.spawn(neighbour).await.unwrap();
    for plan in [held(&place, group, GLUTTON), limited(plain(GLUTTON), group)] {
        let launched = spawner.spawn(plan).await.unwrap();
        let end = over(launched).await;
        assert_eq!(end.status, Some(ExitStatus::Signal(9)), "{end:?}");
        let over = end.over.unwrap();
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
    if !is_root() {
        eprintln!("not tested as this user: no cpu controller was handed to it");
        return;
    }
    let place = Place::new();
    let share = GroupLimits {
        cpu_millis: Some(250),
        ..GroupLimits::NONE
    };
    // Two that are busy; the share is of both together.
    let busy = "(while :; do :; done) & while :; do :; done";
    let spawner = spawner();
    let launched = spawner.spawn(held(&place, share, busy)).await.unwrap();
    let group = launched.process.group().unwrap().clone();
    let used = || group.usage().cpu_micros.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (before, began) = (used(), Instant::now());
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
    if !is_root() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let place = Place::new();
    let profile = children::profile();
    let script = "trap '' INT TERM; echo up; while :; do sleep 1; done";
    for plan in [walled(&place.request(&profile), script), plain(script)] {
        let spawner = spawner();
        let mut launched = spawner.spawn(plan).await.unwrap();
        assert_eq!(line(&mut launched).await, "up");
        let group = launched.process.group().unwrap().clone();
        assert!(group.freeze(true).unwrap(), "no cgroup v2 here");
        until(Duration::from_secs(5), "frozen", || group.is_frozen()).await;
        let all = children::below(launched.pid);
        let (keeper, end) = launch::keep(launched.process, waits(Duration::from_secs(1)));
        let began = Instant::now();
        keeper.kill();
        let end = tokio::time::timeout(Duration::from_secs(10), end).await;
        let end = end.unwrap().unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        assert_eq!((end.forced, end.survivors_left), (true, 0), "{end:?}");
        assert!(all.iter().all(|pid| !is_alive(*pid)));
        assert!(group.directories().iter().all(|dir| !dir.exists()));
    }
}

#[tokio::test]
async fn without_walls_nobody_gets_away_who_has_lost_his_leash() {
    if !is_root() {
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
    let end = over(launched).await;
    assert!(
        end.walls_failed.is_some() && end.survivors_killed >= 1,
        "{end:?}"
    );
    assert!(!is_alive(orphan));
}

#[tokio::test]
async fn groups_end_with_their_child_and_with_their_supervisor() {
    let place = Place::new();
    let profile = children::profile();
    let spawner = spawner();
    let launched = spawner
        .spawn(walled(&place.request(&profile), "exit 3"))
        .await
        .unwrap();
    let dirs = launched
        .process
        .group()
        .map(|group| group.directories().to_vec());
    assert_eq!(dirs.is_some(), is_root());
    let end = over(launched).await;
    assert_eq!(end.status, Some(ExitStatus::Code(3)));
    for dir in dirs.iter().flatten() {
        assert!(!dir.exists(), "{}", dir.display());
        assert!(dir.parent().unwrap().exists(), "the supervisor's own");
    }
    // A child that does not start leaves none either.
    let mut missing = plain("true");
    missing.argv = vec!["no-such-program".to_owned()];
    run_to_end(&spawner, missing, Duration::from_secs(5), 0)
        .await
        .unwrap_err();
    let own = dirs.iter().flatten().filter_map(|dir| dir.parent());
    let own: Vec<PathBuf> = own.map(Path::to_owned).collect();
    let children = |dir: &PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    until(Duration::from_secs(5), "no groups of children", || {
        own.iter().all(|dir| children(dir) == 0)
    })
    .await;
    drop(spawner);
    until(
        Duration::from_secs(5),
        "no groups of the supervisor",
        || own.iter().all(|dir| !dir.exists()),
    )
    .await;
}

/// A supervisor of its own that says its pid and that of its helper, and then sleeps for ever.
fn supervisor(mut command: Command) -> (std::process::Child, u32) {
    let mut child = command
        .env(ROLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut said = String::new();
        let read = std::io::BufRead::read_line(&mut stdout, &mut said).unwrap();
        assert!(read > 0, "the supervisor ended");
        if let Some((_, pid)) = said.trim().split_once("helper ") {
            return (child, pid.parse().unwrap());
        }
    }
}

/// In the environment of a test that is to be such a supervisor.
const ROLE: &str = "MARSHAL_TEST_SUPERVISOR";

#[tokio::test]
async fn plays_the_supervisor() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let place = Place::new();
    let group = GroupLimits {
        pids: Some(64),
        memory: Some(128 * MIB),
        ..GroupLimits::NONE
    };
    let spawner = spawner();
    let script = "echo up; sleep 1000 & setsid sleep 1000";
    let plans = [held(&place, group, script), limited(plain(script), group)];
    let mut all = Vec::new();
    for plan in plans {
        let mut launched = spawner.spawn(plan).await.unwrap();
        assert_eq!(line(&mut launched).await, "up");
        all.push(launched);
    }
    println!("\nhelper {}", all[0].pid);
    std::future::pending::<()>().await;
}

fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}

const PLAYER: &str = "limits::plays_the_supervisor";

#[tokio::test]
async fn a_supervisor_that_gets_sigkill_leaves_no_group() {
    if !is_root() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let (mut child, helper) = supervisor(this_test(PLAYER));
    let left = left_of(child.id());
    assert!(left.len() >= 2, "{left:?}");
    let began = Instant::now();
    child.kill().unwrap();
    until(Duration::from_secs(2), "no group is left", || {
        left_of(child.id()).is_empty()
    })
    .await;
    eprintln!("gone after {:?}", began.elapsed());
    assert!(!is_alive(helper));
    child.wait().unwrap();
}

#[tokio::test]
async fn the_next_start_sweeps_what_a_dead_supervisor_and_its_janitor_left() {
    if !is_root() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let (mut dead, _) = supervisor(this_test(PLAYER));
    let (mut alive, helper) = supervisor(this_test(PLAYER));
    let janitors = children::below(dead.id());
    let janitors = janitors.into_iter().filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "marshal-janitor"
    });
    let janitors: Vec<u32> = janitors.collect();
    assert_eq!(janitors.len(), 1);
    for pid in janitors.into_iter().chain([dead.id()]) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    dead.wait().unwrap();
    let (left, others) = (left_of(dead.id()), left_of(alive.id()));
    assert!(left.len() >= 2 && others.len() >= 2, "{left:?} {others:?}");
    // Somebody hides in a group of it.
    let mut hidden = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(left[0].join("cgroup.procs"), hidden.id().to_string()).unwrap();
    let spawner = spawner();
    until(Duration::from_secs(10), "swept", || {
        left_of(dead.id()).is_empty()
    })
    .await;
    assert!(!hidden.wait().unwrap().success(), "it was killed");
    assert_eq!(
        left_of(alive.id()),
        others,
        "those of a supervisor that lives stay"
    );
    assert!(is_alive(helper));
    drop(spawner);
    alive.kill().unwrap();
    alive.wait().unwrap();
}

/// A directory in a tree of groups that belongs to an ordinary user, until this is dropped.
struct Handed(PathBuf);

impl Handed {
    fn make(below: &Path) -> Self {
        let name = format!("marshal-tests-{}", uuid::Uuid::new_v4().simple());
        let dir = below.join(name);
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(USER), Some(USER)).unwrap();
        for name in ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            let file = dir.join(name);
            if file.exists() {
                chown(&file, Some(USER), Some(USER)).unwrap();
            }
        }
        Self(dir)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                let _ = fs::remove_dir(entry.path());
            }
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The own groups of this process by what is in their names: v2 and the v1 controllers.
fn own_groups() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut found = Vec::new();
    for (controllers, path) in groups_of(std::process::id()) {
        let is_wanted = controllers.is_empty()
            || ["pids", "memory", "cpu"]
                .iter()
                .any(|of| controllers.split(',').any(|c| c == *of));
        if !is_wanted {
            continue;
        }
        let mount = mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let kind = right.next()?;
            let options = right.nth(1)?;
            let fits = if controllers.is_empty() {
                kind == "cgroup2"
            } else {
                kind == "cgroup" && options.ends_with(&format!(",{controllers}"))
            };
            fits.then(|| left.split(' ').nth(4).map(str::to_owned))?
        });
        found.extend(mount.map(|mount| PathBuf::from(format!("{mount}{path}"))));
    }
    found
}

#[tokio::test]
async fn groups_that_were_handed_to_an_ordinary_user_hold_its_children() {
    if !is_root() {
        return;
    }
    let handed: Vec<Handed> = own_groups().iter().map(|dir| Handed::make(dir)).collect();
    assert!(
        handed.len() >= 2,
        "a tree of v2 and one of v1, or v2 with controllers"
    );
    let dir = tempfile::Builder::new()
        .prefix("handed")
        .tempdir_in("/tmp")
        .unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), open).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        to
    };
    let tests = copy(&std::env::current_exe().unwrap(), "tests");
    let marshal = copy(&children::marshal(), "marshal");
    let tmp = dir.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    children::give(&tmp, (USER, USER));
    // A shell goes into the groups, then becomes that user.
    let enter: Vec<String> = handed
        .iter()
        .map(|handed| format!("echo $$ > {}/cgroup.procs", handed.0.display()))
        .collect();
    let script = format!(
        "{} && exec setpriv --reuid={USER} --regid={USER} --clear-groups {} --exact {} --nocapture",
        enter.join(" && "),
        tests.display(),
        "limits::holds_what_was_handed",
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", &tmp)
        .env("MARSHAL_UNDER_TEST", &marshal)
        .env(ROLE, "1")
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("held: "),
        "{said}\n{err}"
    );
    eprintln!(
        "{}",
        said.lines().find(|line| line.contains("held: ")).unwrap()
    );
    for group in &handed {
        let clean = || {
            let entries = fs::read_dir(&group.0).unwrap().flatten();
            entries.filter(|entry| entry.path().is_dir()).count() == 0
        };
        until(Duration::from_secs(5), "nothing is left in it", clean).await;
    }
}

#[tokio::test]
async fn holds_what_was_handed() {
    if std::env::var_os(ROLE).is_none() || is_root() {
        return;
    }
    let place = Place::new();
    let group = GroupLimits {
        pids: Some(64),
        memory: Some(64 * MIB),
        swap: Some(0),
        cpu_millis: Some(500),
        backend: LimitBackend::Auto,
    };
    let spawner = spawner();
    let mut launched = spawner.spawn(held(&place, group, GLUTTON)).await.unwrap();
    let by = launched.held.clone();
    assert_eq!(by.weakness(), None, "{by}");
    let mut rest = String::new();
    launched.stdout.read_to_string(&mut rest).await.unwrap();
    let end = over(launched).await;
    assert!(end.over.unwrap().usage.oom_kills >= Some(1), "{end:?}");
    println!("\nheld: {by}");
    // And without walls, where the agent has the supervisor's own user.
    let plan = plain("setsid sleep 1000 & echo $!; read line");
    let mut launched = spawner.spawn(plan).await.unwrap();
    let orphan: u32 = line(&mut launched).await.parse().unwrap();
    drop(launched);
    until(Duration::from_secs(5), "the orphan is gone", || {
        !is_alive(orphan)
    })
    .await;
}
