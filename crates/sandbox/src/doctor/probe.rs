//! Asks the host: one helper for each thing, all at the same time, each with a deadline.
//!
//! A helper that is killed or gives no sign has answered too. Must not do what it asks for: the
//! process that asks stays as it is.

use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::Feature;
use crate::HostIds;
use marshal_model::limits;
use marshal_wire::shim::ARG0_PROBE;

/// A thing, and what it is asked of: a directory, or a range of uids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureQuery {
    /// The thing.
    pub feature: Feature,
    /// What it is asked of.
    pub at: Option<String>,
}

/// What a host says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeResult {
    /// Whether it is there.
    pub has: bool,
    /// How much of it, where that is counted.
    pub count: u64,
    /// What the kernel said, if it refused.
    pub errno: Option<i32>,
    /// What there is, or what failed: a fragment. May hold text of the host's.
    pub said: String,
    /// What to do about it, if that is known.
    pub hint: Option<String>,
}

impl ProbeResult {
    /// Nothing is known of it.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            has: false,
            count: 0,
            errno: None,
            said: String::new(),
            hint: None,
        }
    }

    /// Whether it is there, and enough of it.
    #[must_use]
    pub const fn meets(&self, least: u64) -> bool {
        self.has && self.count >= least
    }

    fn failed(said: String) -> Self {
        Self {
            said,
            ..Self::unknown()
        }
    }
}

/// What a helper is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbeRequest {
    /// The word of a [`Feature`].
    pub(super) feature: String,
    /// What it is asked of.
    pub(super) at: Option<String>,
    /// Who an agent would be.
    pub(super) ids: HostIds,
    /// How many slots need a uid.
    pub(super) slots: u32,
    /// Where programs are looked for.
    pub(super) path: String,
    /// The pid that must be this helper's parent.
    pub(super) parent: u32,
}

/// What all helpers are told.
#[derive(Debug, Clone, Copy)]
pub struct ProbeContext {
    /// Who an agent would be.
    pub ids: HostIds,
    /// How many slots need a uid.
    pub slots: u32,
}

/// Asks for all of it. Blocks, at most [`limits::PROBE_TIMEOUT`]. `executable` is this program.
#[must_use]
pub fn probe(
    executable: &Path,
    asking: ProbeContext,
    asked: &[FeatureQuery],
) -> Vec<(FeatureQuery, ProbeResult)> {
    let until = Instant::now() + limits::PROBE_TIMEOUT;
    let mut found = Vec::with_capacity(asked.len());
    for some in asked.chunks(limits::CONCURRENT_PROBES) {
        let started: Vec<_> = some
            .iter()
            .map(|one| (one.clone(), start_helper(executable, asking, one)))
            .collect();
        for (one, started) in started {
            let answer = match started {
                Ok(child) => wait_for_answer(child, until),
                Err(error) => ProbeResult {
                    errno: error.raw_os_error(),
                    ..ProbeResult::failed("start a helper that looks".to_owned())
                },
            };
            found.push((one, answer));
        }
    }
    found
}

fn start_helper(
    executable: &Path,
    asking: ProbeContext,
    asked: &FeatureQuery,
) -> std::io::Result<Child> {
    let order = ProbeRequest {
        feature: asked.feature.word().to_owned(),
        at: asked.at.clone(),
        ids: asking.ids,
        slots: asking.slots,
        path: std::env::var("PATH").unwrap_or_default(),
        parent: std::process::id(),
    };
    let order = serde_json::to_string(&order).map_err(std::io::Error::other)?;
    Command::new(executable)
        .arg0(ARG0_PROBE)
        .arg(order)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// What a helper says, or how it ended without a word.
fn wait_for_answer(mut child: Child, until: Instant) -> ProbeResult {
    let said = read_output(&mut child, until);
    if said.is_none() {
        let _ = child.kill();
    }
    let status = child.wait();
    let Some(said) = said else {
        return ProbeResult::failed(format!("no answer within {:?}", limits::PROBE_TIMEOUT));
    };
    if let Ok(found) = serde_json::from_slice(&said) {
        return found;
    }
    match status {
        Ok(status) => match status.signal() {
            Some(signal) => {
                ProbeResult::failed(format!("signal {signal} ended the helper that looked"))
            }
            None => ProbeResult::failed("the helper that looked ended without a word".to_owned()),
        },
        Err(error) => ProbeResult::failed(format!("the helper that looked was lost: {error}")),
    }
}

/// Everything that a helper writes, if it ends in time.
fn read_output(child: &mut Child, until: Instant) -> Option<Vec<u8>> {
    let mut stdout = child.stdout.take()?;
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok()?;
        let mut ready = [PollFd::new(&stdout, PollFlags::IN)];
        match poll(&mut ready, Some(&left)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        match stdout.read(&mut chunk) {
            Ok(0) => return Some(said),
            Ok(got) if said.len() + got <= limits::PROBE_BYTES => {
                said.extend_from_slice(&chunk[..got]);
            }
            Ok(_) | Err(_) => return None,
        }
    }
}
