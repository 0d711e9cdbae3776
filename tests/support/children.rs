//! Helpers for tests with real children: plans, directories, and checks for leftovers.
//!
//! Every test also runs as an ordinary user: [`again_as_ordinary_user`] runs an area once more
//! without root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use marshal_config::{self as config, ProcMode};
use marshal_launch::{LaunchPlan, ProgramOutput, RunError, SandboxSpec, Spawner, run_to_end};
use marshal_model::ResourceLimits;
use marshal_sandbox::{self as sandbox, HostIds, SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;

use crate::programs::install;

/// The uid of a slot in the tests; no user of this host has it.
pub(crate) const SLOT_UID: u32 = 2_000_100;
/// The uid of the tests' ordinary user.
pub(crate) const USER: u32 = 54_321;
/// The path of the binary under test, if it is not where cargo put it.
const EXE: &str = "MARSHAL_UNDER_TEST";
/// The path of the helpers' binary, in the same way.
const SHIM: &str = "MARSHAL_SHIM_UNDER_TEST";

/// The number of tests that run at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// The binary under test.
pub(crate) fn marshal() -> PathBuf {
    std::env::var_os(EXE).map_or_else(|| env!("CARGO_BIN_EXE_marshal").into(), PathBuf::from)
}

/// The small binary of its helpers, from the same build.
pub(crate) fn shim() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_marshal-shim").into();
    std::env::var_os(SHIM).map_or_else(built, PathBuf::from)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Set where the tests run in the guest of `guest.rs`.
pub(crate) const GUEST: &str = "MARSHAL_TEST_GUEST";
/// Set for an ordinary user to whom control groups were delegated.
pub(crate) const DELEGATED: &str = "MARSHAL_TEST_DELEGATED";

/// Whether this is a guest with another kernel than the host for which the tables are made.
pub(crate) fn is_guest() -> bool {
    std::env::var_os(GUEST).is_some()
}

/// Whether this user has control groups with controllers.
pub(crate) fn has_groups() -> bool {
    is_root() || std::env::var_os(DELEGATED).is_some()
}

/// The words before the command line of a supervisor that give it a delegated control group of its
/// own, where these tests have only one for all of them: `systemd-run --scope …`.
const SCOPE: &str = "MARSHAL_TEST_SCOPE";

/// A command that is a supervisor: in a control group of its own, if it needs one. It has the pid of
/// the process that is started.
pub(crate) fn supervisor_command(program: &Path) -> Command {
    let scope = std::env::var(SCOPE).unwrap_or_default();
    let mut words = scope.split_ascii_whitespace();
    let Some(first) = words.next() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

/// The trees of control groups in which a supervisor has a group: on a host with v1 controllers
/// those and v2, elsewhere only v2.
pub(crate) fn group_trees() -> usize {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers");
    if unified.exists() { 1 } else { 2 }
}

/// A spawner whose helpers are the binary under test.
pub(crate) fn spawner() -> Spawner {
    Spawner::with_executable(marshal(), marshal::BUILD).unwrap()
}

/// The ids of agents.
pub(crate) fn ids() -> HostIds {
    if is_root() {
        HostIds::Root { slot_uid: SLOT_UID }
    } else {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        HostIds::Own {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
        }
    }
}

pub(crate) fn profile() -> config::Sandbox {
    config::Sandbox {
        ro_bind: vec!["/usr".into()],
        etc: vec![
            "ssl".to_owned(),
            "localtime".to_owned(),
            "no-such-name".to_owned(),
        ],
        home_bytes: 1 << 30,
        tmp_bytes: 16 << 20,
        tmp_inodes: 100,
        proc_mode: ProcMode::Pid,
        nofile: 512,
        fsize: 1 << 20,
        landlock_min_abi: 0,
        seccomp: config::Seccomp::Default,
        requirements: config::HostRequirements::default(),
        group_limits: ResourceLimits::NONE,
    }
}

/// A home and a workspace in a directory that no other user can enter.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for name in ["home", "workspace"] {
            let path = place.path(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            give(&path, ids().uid_and_gid());
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A request for a sandbox with this home and workspace.
    pub(crate) fn request<'a>(&self, profile: &'a config::Sandbox) -> SandboxRequest<'a> {
        let tree = |name| Tree {
            path: self.path(name),
            owner: ids().uid_and_gid(),
            access: MountAccess::Rw,
            identity: None,
        };
        SandboxRequest {
            home: Some(tree("home")),
            workspace: Some(tree("workspace")),
            hostname: "test-0",
            ..sandbox::probe_request(profile, ids())
        }
    }
}

/// Changes a file's owner, if that is permitted.
pub(crate) fn give(path: &Path, owner: (u32, u32)) {
    if is_root() {
        chown(path, Some(owner.0), Some(owner.1)).unwrap();
    }
}

/// `sh -c` without a sandbox.
pub(crate) fn plain(script: &str) -> LaunchPlan {
    LaunchPlan {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: "/".to_owned(),
        limits: sandbox::limits_of(&profile()),
        sandbox: SandboxSpec::None,
        preamble: Vec::new(),
    }
}

/// `sh -c` in a sandbox.
pub(crate) fn walled(request: &SandboxRequest<'_>, script: &str) -> LaunchPlan {
    LaunchPlan {
        cwd: "/workspace".to_owned(),
        sandbox: SandboxSpec::Shim(Box::new(sandbox::plan(request).unwrap())),
        ..plain(script)
    }
}

/// Runs a plan to its end.
pub(crate) async fn run(plan: LaunchPlan) -> Result<ProgramOutput, RunError> {
    run_to_end(&spawner(), plan, Duration::from_secs(60), 1 << 20).await
}

/// The output of a script in a sandbox. Its stderr must be empty.
pub(crate) async fn script_output(request: &SandboxRequest<'_>, script: &str) -> String {
    let finished = run(walled(request, script)).await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&finished.stderr),
        "",
        "stderr of {script}"
    );
    String::from_utf8(finished.stdout).unwrap()
}

/// The processes (no zombies) with `token` in their arguments or environment.
pub(crate) fn live_processes(token: &str) -> Vec<u32> {
    let has = |path: String| {
        fs::read(path).is_ok_and(|bytes| {
            bytes
                .windows(token.len().max(1))
                .any(|part| part == token.as_bytes())
        })
    };
    processes()
        .into_iter()
        .filter(|pid| has(format!("/proc/{pid}/environ")) || has(format!("/proc/{pid}/cmdline")))
        .filter(|pid| is_alive(*pid))
        .collect()
}

pub(crate) fn processes() -> Vec<u32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The state and the parent of a process.
pub(crate) fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state.as_str(), "Z" | "X"))
}

/// All descendants of a process.
pub(crate) fn below(ancestor: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = processes()
        .into_iter()
        .filter_map(|pid| Some((pid, stat(pid)?.1)))
        .collect();
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for (child, _) in parents.iter().filter(|(_, item)| *item == parent) {
            found.push(*child);
            open.push(*child);
        }
    }
    found
}

/// The mounts of this process's namespace that contain a directory, in their mount point or in
/// their root.
pub(crate) fn mounts_of(dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table).into_owned();
    let lines = table.lines().map(unescaped);
    lines.filter(|line| line.contains(&dir)).collect()
}

/// A line of a mount table, where the kernel writes a blank in a name as `\040`.
fn unescaped(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let octal = after.split_at_checked(3).and_then(|(digits, rest)| {
            let byte = u8::from_str_radix(digits, 8).ok()?;
            Some((char::from(byte), rest))
        });
        let (character, after) = octal.unwrap_or(('\\', after));
        text.push(character);
        rest = after;
    }
    text + rest
}

/// Waits until `done`; fails after `limit`.
pub(crate) async fn until(limit: Duration, what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "after {limit:?} still not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    begin.elapsed()
}

/// Runs all tests of an area once more without root, except the caller.
pub(crate) fn again_as_ordinary_user(area: &str) {
    if !is_root() {
        return;
    }
    // That user may have no access to the tests' own directory or to the build's.
    let dir = tempfile::Builder::new()
        .prefix("user")
        .tempdir_in("/tmp")
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        install(&to, fs::File::open(from).unwrap());
        to
    };
    let tests = copy(&std::env::current_exe().unwrap(), "tests");
    let marshal = copy(&marshal(), "marshal");
    // In another directory than the program: most tests run without it.
    let shim = copy(&shim(), "shim");
    let tmp = dir.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    give(&tmp, (USER, USER));
    let output = Command::new("setpriv")
        .args([&format!("--reuid={USER}"), &format!("--regid={USER}")])
        .arg("--clear-groups")
        .arg(&tests)
        .args([
            &format!("{area}::"),
            "--skip",
            "all_of_this_holds_for_an_ordinary_user",
        ])
        .env_clear()
        .envs(std::env::var_os(THREADS).map(|threads| (THREADS, threads)))
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", &tmp)
        .env(EXE, &marshal)
        .env(SHIM, &shim)
        .current_dir("/")
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "as an ordinary user:\n{out}\n{err}"
    );
    assert!(!out.contains("running 0 tests"), "{out}");
}
