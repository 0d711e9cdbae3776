//! The agents' own processes, behind the supervisor's helpers. They are found by their ancestors,
//! so that a signal reaches only the agent.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;

/// A part of every agent's command line, and of no helper's.
const AGENT: &[u8] = b"script-agent";

/// The maximum number of processes between a helper and its agent.
const DEEPEST: usize = 8;

/// Stopped agents.
#[derive(Debug, Default)]
pub(crate) struct Agents(Vec<Pid>);

impl Agents {
    /// Stops the agent behind a helper.
    pub(crate) fn hold(&mut self, helper: u32) -> Result<(), Failure> {
        let agent = behind(helper)?;
        kill_process(agent, Signal::STOP)?;
        self.0.push(agent);
        Ok(())
    }

    /// Continues all of them, each with its own delay after the first.
    pub(crate) async fn go(&self, later: impl Fn(usize) -> Duration) -> Result<(), Failure> {
        let began = Instant::now();
        for (number, agent) in self.0.iter().enumerate() {
            let wait = later(number).saturating_sub(began.elapsed());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            kill_process(*agent, Signal::CONT)?;
        }
        Ok(())
    }
}

/// The agent behind a helper, or the process itself if it is an agent.
pub(crate) fn behind(helper: u32) -> Result<Pid, Failure> {
    let pid = search(helper, DEEPEST).ok_or("no agent behind its helper")?;
    Ok(Pid::from_raw(i32::try_from(pid)?).ok_or("a pid that is none")?)
}

fn search(pid: u32, deep: usize) -> Option<u32> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    if line.split(|byte| *byte == 0).any(|word| word == AGENT) {
        return Some(pid);
    }
    let deep = deep.checked_sub(1)?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|children| {
            let pids = children.split_ascii_whitespace();
            pids.filter_map(|pid| pid.parse().ok())
                .collect::<Vec<u32>>()
        })
        .find_map(|child| search(child, deep))
}

/// A helper's private memory plus its share of shared memory, in bytes.
pub(crate) fn proportional_bytes(pid: u32) -> Result<f64, Failure> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib: f64 = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or("no Pss in smaps_rollup")?
        .parse()?;
    Ok(kib * 1024.0)
}
