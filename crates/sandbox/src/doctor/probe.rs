//! Probes the host: one helper process for each feature, all at the same time, each with a
//! deadline.
//!
//! A helper that is killed or hangs is a result, too. Must not try anything in this process, which
//! must stay unchanged.

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

/// A feature, and the object that it is checked on: a directory, or a range of uids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureQuery {
    /// The feature.
    pub feature: Feature,
    /// The object, where the feature depends on one.
    pub at: Option<String>,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeResult {
    /// Whether the feature is available.
    pub has: bool,
    /// The available amount, where that is counted.
    pub count: u64,
    /// The errno, if the kernel refused.
    pub errno: Option<i32>,
    /// What was found, or what failed: a fragment. May contain text of the host.
    pub detail: String,
    /// What to do about it, if known.
    pub hint: Option<String>,
}

impl ProbeResult {
    /// The feature is missing, with no details.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            has: false,
            count: 0,
            errno: None,
            detail: String::new(),
            hint: None,
        }
    }

    /// Whether the feature is available in the required amount.
    #[must_use]
    pub const fn meets(&self, least: u64) -> bool {
        self.has && self.count >= least
    }

    fn failed(detail: String) -> Self {
        Self {
            detail,
            ..Self::unknown()
        }
    }
}

/// The request to a helper process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbeRequest {
    /// The name of a [`Feature`].
    pub(super) feature: String,
    /// The object that it is checked on.
    pub(super) at: Option<String>,
    /// The user that an agent would run as.
    pub(super) ids: HostIds,
    /// Number of slots that need a uid.
    pub(super) slots: u32,
    /// The PATH to search programs in.
    pub(super) path: String,
    /// The pid that must be this helper's parent.
    pub(super) parent: u32,
}

/// Parameters common to all probes.
#[derive(Debug, Clone, Copy)]
pub struct ProbeContext {
    /// The user that an agent would run as.
    pub ids: HostIds,
    /// Number of slots that need a uid.
    pub slots: u32,
}

/// Runs all probes. Blocks, at most [`limits::PROBE_TIMEOUT`]. `executable` is this program.
#[must_use]
pub fn probe(
    executable: &Path,
    asking: ProbeContext,
    queries: &[FeatureQuery],
) -> Vec<(FeatureQuery, ProbeResult)> {
    let until = Instant::now() + limits::PROBE_TIMEOUT;
    let mut results = Vec::with_capacity(queries.len());
    for batch in queries.chunks(limits::CONCURRENT_PROBES) {
        let started: Vec<_> = batch
            .iter()
            .map(|query| (query.clone(), start_helper(executable, asking, query)))
            .collect();
        for (query, started) in started {
            let answer = match started {
                Ok(child) => wait_for_answer(child, until),
                Err(error) => ProbeResult {
                    errno: error.raw_os_error(),
                    ..ProbeResult::failed("start the probe process".to_owned())
                },
            };
            results.push((query, answer));
        }
    }
    results
}

fn start_helper(
    executable: &Path,
    asking: ProbeContext,
    query: &FeatureQuery,
) -> std::io::Result<Child> {
    let order = ProbeRequest {
        feature: query.feature.as_str().to_owned(),
        at: query.at.clone(),
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

/// The answer of a helper, or how it ended without one.
fn wait_for_answer(mut child: Child, until: Instant) -> ProbeResult {
    let output = read_output(&mut child, until);
    if output.is_none() {
        let _ = child.kill();
    }
    let status = child.wait();
    let Some(output) = output else {
        return ProbeResult::failed(format!(
            "the probe gave no answer within {:?}",
            limits::PROBE_TIMEOUT
        ));
    };
    if let Ok(result) = serde_json::from_slice(&output) {
        return result;
    }
    match status {
        Ok(status) => match status.signal() {
            Some(signal) => ProbeResult::failed(format!("signal {signal} ended the probe")),
            None => ProbeResult::failed("the probe ended without an answer".to_owned()),
        },
        Err(error) => {
            ProbeResult::failed(format!("the status of the probe cannot be read: {error}"))
        }
    }
}

/// Everything that a helper writes, if it ends in time.
fn read_output(child: &mut Child, until: Instant) -> Option<Vec<u8>> {
    let mut stdout = child.stdout.take()?;
    let mut output = Vec::new();
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
            Ok(0) => return Some(output),
            Ok(length) if output.len() + length <= limits::PROBE_BYTES => {
                output.extend_from_slice(&chunk[..length]);
            }
            Ok(_) | Err(_) => return None,
        }
    }
}
