//! The janitor: removes the groups of a killed supervisor, with the processes in them.
//!
//! No process in a sandbox can remove the group that it is in, and a supervisor that gets SIGKILL
//! cannot clean up. So each supervisor has one small process beside it, this binary started again.
//! It gets the list of groups at its start, before any of them is made, waits for the end of a
//! pipe, which closes with the supervisor, removes the groups and exits. If it is killed too, the
//! next start sweeps.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::cgroup_fs::KernelCgroupFs;
use super::delegation::{self, Delegation};
use super::kill;
use super::layout::Layout;
use marshal_model::limits;
use marshal_wire::shim::ARG0_JANITOR;

/// The variable with its list of groups. It is in the environment, not in the pipe, so the janitor
/// has it from its first instruction on, however early the supervisor ends.
const CLEANUP_PLAN_VAR: &str = "MARSHAL_ESTATE";

/// Everything that one supervisor may leave, whether it was made or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CleanupPlan {
    /// Its group in the tree of cgroup v2.
    pub(super) v2: Option<PathBuf>,
    /// Its groups in all trees, that one included.
    pub(super) all: Vec<PathBuf>,
    /// What it changed above them.
    pub(super) handed: Option<Delegation>,
}

/// The process, and the pipe whose end is its order. It ends by itself when this is dropped.
#[derive(Debug)]
pub(super) struct Janitor {
    process: Child,
    pipe: ChildStdin,
}

impl Janitor {
    /// Starts it.
    pub(super) fn start(executable: &Path, estate: &CleanupPlan) -> io::Result<Self> {
        let mut command = Command::new(executable);
        command
            .arg0(ARG0_JANITOR)
            .env_clear()
            .env(CLEANUP_PLAN_VAR, serde_json::to_string(estate)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = command.spawn()?;
        let line = process
            .stdin
            .take()
            .ok_or_else(|| io::Error::other("no pipe"))?;
        Ok(Self {
            process,
            pipe: line,
        })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Lets it do its work now, and waits for that.
    pub(super) fn finish(mut self) {
        drop(self.pipe);
        let _ = self.process.wait();
    }

    /// Whether it is still running.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

/// Runs as the janitor, if this process was started as one: before `main` does anything else. `None`:
/// it was not.
#[must_use]
pub fn janitor_main() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    if name.to_str() != Some(ARG0_JANITOR) {
        return None;
    }
    // Out of the supervisor's session, so that a key pressed at its terminal does not end this too.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"marshal-janitor");
    let estate = std::env::var(CLEANUP_PLAN_VAR).ok();
    let Some(estate) = estate.and_then(|text| serde_json::from_str::<CleanupPlan>(&text).ok())
    else {
        return Some(ExitCode::FAILURE);
    };
    // Returns at the supervisor's end.
    if io::copy(&mut io::stdin(), &mut io::sink()).is_err() {
        return Some(ExitCode::FAILURE);
    }
    Some(if estate.clean_up() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whether this user may make a group in this one.
pub(super) fn check_writable(dir: &Path) -> io::Result<()> {
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    Ok(rustix::fs::access(dir, rights)?)
}

impl CleanupPlan {
    /// Everything that a supervisor may come to make: a group called `name` in each tree that this
    /// user may write, and what `handed` says is to be done above.
    pub(super) fn add_groups(&mut self, layout: &Layout, handed: Option<&Delegation>, name: &str) {
        let v2 = handed.filter(|item| check_writable(&item.base).is_ok());
        self.v2 = v2.map(|item| item.base.join(name));
        self.all.extend(self.v2.clone());
        for tree in layout.v1.values() {
            let dir = tree.own.join(name);
            if !self.all.contains(&dir) && check_writable(&tree.own).is_ok() {
                self.all.push(dir);
            }
        }
        self.handed = handed.filter(|item| item.is_changed()).cloned();
    }

    /// Kills all processes in it and removes it; false if something is left.
    pub(super) fn clean_up(&self) -> bool {
        let deadline = Instant::now() + limits::KILL_LEFTOVERS_TIMEOUT;
        let is_empty =
            kill::kill_and_wait(self.v2.as_deref(), &self.all, deadline).unwrap_or(false);
        let is_gone = is_empty && kill::remove(&self.all).is_ok();
        if let Some(handed) = &self.handed {
            delegation::revert(&KernelCgroupFs, handed, std::process::id());
        }
        is_gone
    }
}
