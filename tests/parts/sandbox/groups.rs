//! What is left of control groups, which is nothing; and groups that were handed to an ordinary user.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marshal_launch::run_to_end;
use marshal_model::{ExitStatus, LimitBackend, ResourceLimits};
use tokio::io::AsyncReadExt as _;

use crate::children::{
    self, Place, USER, group_trees, has_groups, is_alive, is_guest, is_root, plain, spawner, until,
    walled,
};
use crate::programs::install;
use crate::sandbox::limits::{
    GLUTTON, MIB, groups_of, left_of, limited, limited_script, line, wait_for_exit,
};

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
    assert_eq!(dirs.is_some(), has_groups());
    let end = wait_for_exit(launched).await;
    assert_eq!(end.status, Some(ExitStatus::Code(3)));
    for dir in dirs.iter().flatten() {
        assert!(!dir.exists(), "{}", dir.display());
        assert!(dir.parent().unwrap().exists(), "the supervisor's own");
    }
    // A child that does not start leaves none either.
    let mut missing = plain("true");
    missing.argv = vec!["no-such-program".to_owned()];
    run_to_end(&spawner, missing, Duration::from_secs(30), 0)
        .await
        .unwrap_err();
    let own = dirs.iter().flatten().filter_map(|dir| dir.parent());
    let own: Vec<PathBuf> = own.map(Path::to_owned).collect();
    let children = |dir: &PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    // But those of the helper that is ready for the next sandbox.
    until(Duration::from_secs(20), "no groups of children", || {
        own.iter().all(|dir| children(dir) == 1)
    })
    .await;
    drop(spawner);
    until(
        Duration::from_secs(20),
        "no groups of the supervisor",
        || own.iter().all(|dir| !dir.exists()),
    )
    .await;
}

/// A supervisor of its own that says its pid and that of its helper, and then sleeps for ever.
fn supervisor(mut command: Command) -> (std::process::Child, u32) {
    #[allow(clippy::zombie_processes, reason = "who calls it waits for it")]
    let mut child = command
        .env(ROLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut reported = String::new();
        let read = std::io::BufRead::read_line(&mut stdout, &mut reported).unwrap();
        assert!(read > 0, "the supervisor ended");
        if let Some((_, pid)) = reported.trim().split_once("helper ") {
            return (child, pid.parse().unwrap());
        }
    }
}

/// In the environment of a test that is to be such a supervisor.
pub(crate) const ROLE: &str = "MARSHAL_TEST_SUPERVISOR";

#[tokio::test]
async fn plays_the_supervisor() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let place = Place::new();
    let group = ResourceLimits {
        pids: Some(64),
        memory: Some(128 * MIB),
        ..ResourceLimits::NONE
    };
    let spawner = spawner();
    let script = "echo up; sleep 1000 & setsid sleep 1000";
    let plans = [
        limited_script(&place, group, script),
        limited(plain(script), group),
    ];
    let mut all = Vec::new();
    for plan in plans {
        let mut launched = spawner.spawn(plan).await.unwrap();
        assert_eq!(line(&mut launched).await, "up");
        all.push(launched);
    }
    println!("\nhelper {}", all[0].pid);
    std::future::pending::<()>().await;
}

pub(crate) fn this_test(name: &str) -> Command {
    let mut command = children::supervisor_command(&std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}

const PLAYER: &str = "sandbox::groups::plays_the_supervisor";

#[tokio::test]
async fn a_supervisor_that_gets_sigkill_leaves_no_group() {
    if !has_groups() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let (mut child, helper) = supervisor(this_test(PLAYER));
    let left = left_of(child.id());
    assert!(left.len() >= group_trees(), "{left:?}");
    let began = Instant::now();
    child.kill().unwrap();
    until(Duration::from_secs(20), "no group is left", || {
        left_of(child.id()).is_empty()
    })
    .await;
    eprintln!("gone after {:?}", began.elapsed());
    // Whoever was killed leaves its groups a moment before it is gone.
    until(Duration::from_secs(20), "the helper is gone", || {
        !is_alive(helper)
    })
    .await;
    child.wait().unwrap();
}

#[tokio::test]
async fn the_next_start_sweeps_what_a_dead_supervisor_and_its_janitor_left() {
    if !has_groups() {
        eprintln!("not tested as this user: no group was handed to it");
        return;
    }
    let (mut dead, _) = supervisor(this_test(PLAYER));
    let (mut alive, helper) = supervisor(this_test(PLAYER));
    let is_janitor = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "marshal-janitor"
    };
    // It takes its name after it was started.
    let mut janitors = Vec::new();
    until(Duration::from_secs(20), "a janitor", || {
        janitors = children::below(dead.id());
        janitors.retain(is_janitor);
        !janitors.is_empty()
    })
    .await;
    assert_eq!(janitors.len(), 1);
    let (left, others) = (left_of(dead.id()), left_of(alive.id()));
    let trees = group_trees();
    assert!(
        left.len() >= trees && others.len() >= trees,
        "{left:?} {others:?}"
    );
    // Somebody hides in a group of it: before its end, because every other start sweeps, too, those of the
    // tests beside this one among them.
    let mut hidden = Command::new("sleep").arg("1000").spawn().unwrap();
    let place = leaf_of(&left[0]);
    fs::write(place.join("cgroup.procs"), hidden.id().to_string()).unwrap();
    for pid in janitors.into_iter().chain([dead.id()]) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    dead.wait().unwrap();
    let spawner = spawner();
    until(Duration::from_secs(30), "swept", || {
        left_of(dead.id()).is_empty()
    })
    .await;
    assert!(!hidden.wait().unwrap().success(), "it was killed");
    // It may have made more: a helper is made ready in groups of its own.
    assert!(
        others.iter().all(|dir| dir.exists()),
        "those of a supervisor that lives stay: {others:?}"
    );
    assert!(is_alive(helper));
    drop(spawner);
    alive.kill().unwrap();
    alive.wait().unwrap();
}

/// The group itself or the first one below it that has no more below: one with controllers for others
/// may have no process.
fn leaf_of(group: &Path) -> PathBuf {
    let entries = fs::read_dir(group).unwrap().flatten();
    let mut below = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    below
        .next()
        .map_or_else(|| group.to_owned(), |below| leaf_of(&below))
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
                .any(|item| controllers.split(',').any(|c| c == *item));
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
    if is_guest() {
        println!("in the guest, groups are delegated to a real user, who runs the other test");
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
        install(&to, fs::File::open(from).unwrap());
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
        // systemd has backslashes in the names of groups.
        .map(|handed| format!("echo $$ > '{}/cgroup.procs'", handed.0.display()))
        .collect();
    let script = format!(
        "{} && exec setpriv --reuid={USER} --regid={USER} --clear-groups {} --exact {} --nocapture",
        enter.join(" && "),
        tests.display(),
        "sandbox::groups::holds_what_was_handed",
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
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && printed.contains("held: "),
        "{printed}\n{err}"
    );
    eprintln!(
        "{}",
        printed
            .lines()
            .find(|line| line.contains("held: "))
            .unwrap()
    );
    for group in &handed {
        let clean = || {
            let entries = fs::read_dir(&group.0).unwrap().flatten();
            entries.filter(|entry| entry.path().is_dir()).count() == 0
        };
        until(Duration::from_secs(20), "nothing is left in it", clean).await;
    }
}

#[tokio::test]
async fn holds_what_was_handed() {
    if std::env::var_os(ROLE).is_none() || is_root() {
        return;
    }
    let place = Place::new();
    let group = ResourceLimits {
        pids: Some(64),
        memory: Some(64 * MIB),
        swap: Some(0),
        cpu_millis: Some(500),
        backend: LimitBackend::Auto,
    };
    let spawner = spawner();
    let mut launched = spawner
        .spawn(limited_script(&place, group, GLUTTON))
        .await
        .unwrap();
    let by = launched.limit_enforcement.clone();
    assert_eq!(by.describe_missing(), None, "{by}");
    let mut rest = String::new();
    launched.stdout.read_to_string(&mut rest).await.unwrap();
    let end = wait_for_exit(launched).await;
    assert!(
        end.group_outcome.as_ref().unwrap().usage.oom_kills >= Some(1),
        "{end:?}"
    );
    println!("\nheld: {by}");
    // And without a sandbox, where the agent has the supervisor's own user.
    let plan = plain("setsid sleep 1000 & echo $!; read line");
    let mut launched = spawner.spawn(plan).await.unwrap();
    let orphan: u32 = line(&mut launched).await.parse().unwrap();
    drop(launched);
    until(Duration::from_secs(20), "the orphan is gone", || {
        !is_alive(orphan)
    })
    .await;
}
