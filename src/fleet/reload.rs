//! Reading the policies again while the fleet runs, and what is told of it.
//!
//! Owns that they are read one at a time, all of them or none, and what is remembered of a reading
//! that failed. Must not know where policies come from: whoever starts the fleet gives it a reader.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::clock::now_us;
use super::in_force::{InForce, LoadedPolicy, Policies, Version};
use super::setup::PoolShared;
use super::trusted::leads_into;
use super::{FleetHandle, SubmitError};
use crate::config::{Part, Pool, WorkspaceMode};
use crate::model::{PoolName, TaskSpec};
use crate::telemetry::event::policy::{PoliciesInForce, PoliciesStale};
use crate::telemetry::sets::{ReloadCause, ShadowVerdict};

/// What came of reading all policies.
#[derive(Debug)]
pub struct Reading {
    /// They, or what is wrong with them: made to be shown.
    pub policies: Result<Policies, String>,
    /// Every file that was looked for, whatever became of it.
    pub files: BTreeSet<PathBuf>,
}

/// Reads and checks all policies of a configuration; runs on a thread that may block.
#[derive(Clone)]
pub struct PolicyReader(Arc<dyn Fn() -> Reading + Send + Sync>);

impl PolicyReader {
    /// One that does this.
    pub fn new(read: impl Fn() -> Reading + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for PolicyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyReader")
    }
}

/// The last time that the policies were read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReload {
    /// When, in microseconds since 1970.
    pub at_us: i64,
    /// Why.
    pub cause: ReloadCause,
    /// How many pools got another version; or what is wrong, made to be shown.
    pub result: Result<usize, String>,
}

/// What judges now, and what came of the last reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// The pools, in the configuration's order.
    pub pools: Vec<PolicyView>,
    /// `None`: nothing was read since the start.
    pub last: Option<LastReload>,
    /// Since when older policies are in force than the files have, in microseconds since 1970.
    pub stale_since_us: Option<i64>,
    /// The files are watched: a change is seen by itself.
    pub is_watched: bool,
}

/// The policy of one pool, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyView {
    /// The pool.
    pub pool: PoolName,
    /// What the configuration calls the policy.
    pub policy: String,
    /// SHA-256 of its text and of what it extends, hexadecimal.
    pub sha256: String,
    /// Since when it is in force, in microseconds since 1970.
    pub loaded_at_us: i64,
    /// The files that it was made of; none of one that is built in.
    pub files: Vec<PathBuf>,
    /// Its rules, those of what it extends included.
    pub rules: usize,
    /// It extends the built-in guard.
    pub has_guard: bool,
    /// It is tried only: it allows nothing.
    pub is_dry: bool,
    /// Layers that a session may put on top of it.
    pub layers: Vec<String>,
    /// What is tried beside it.
    pub shadow: Option<ShadowView>,
}

/// What is tried beside a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowView {
    /// What the configuration calls it.
    pub policy: String,
    /// SHA-256 of its text and of what it extends, hexadecimal.
    pub sha256: String,
    /// Requests that it judged since this version is in force.
    pub judged: u64,
    /// From the decision to what it says, how often.
    pub differences: Vec<(ShadowVerdict, ShadowVerdict, u64)>,
}

/// What the fleet remembers of its policies.
#[derive(Debug)]
pub(crate) struct Reloads {
    reader: Option<PolicyReader>,
    one_at_a_time: tokio::sync::Mutex<()>,
    told: Mutex<Told>,
    /// Files that were looked for the last time.
    files: watch::Sender<BTreeSet<PathBuf>>,
}

#[derive(Debug, Default)]
struct Told {
    last: Option<LastReload>,
    stale_since_us: Option<i64>,
    is_watched: bool,
}

impl Reloads {
    pub(crate) fn new(reader: Option<PolicyReader>, in_force: &InForce) -> Self {
        let versions = in_force.all();
        let files = versions.iter().flat_map(|version| all_files(version));
        let files = files.cloned().collect();
        PoliciesInForce {
            cause: None,
            changed: 0,
            rules: rules(&versions),
            at: seconds(now_us()),
        }
        .emit();
        Self {
            reader,
            one_at_a_time: tokio::sync::Mutex::new(()),
            told: Mutex::default(),
            files: watch::channel(files).0,
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(us: i64) -> f64 {
    us as f64 / 1e6
}

fn loaded(version: &Version) -> impl Iterator<Item = &LoadedPolicy> {
    let shadow = version.shadow.as_ref().map(|shadow| &shadow.loaded);
    let layered = version.layered.values();
    std::iter::once(&version.own).chain(layered).chain(shadow)
}

fn all_files(version: &Version) -> impl Iterator<Item = &PathBuf> {
    loaded(version).flat_map(|of| &of.files)
}

/// Rules of all policies that decide, each policy counted once.
fn rules(versions: &[Arc<Version>]) -> usize {
    let mut seen = BTreeSet::new();
    let new = versions.iter().filter(|of| seen.insert(&of.own.sha256));
    new.map(|of| of.own.policy.rules()).sum()
}

fn view(pool: &Pool, version: &Version) -> PolicyView {
    let shadow = version.shadow.as_ref().map(|shadow| {
        let seen = shadow.seen();
        let differences = seen.differences.into_iter();
        ShadowView {
            policy: shadow.name.clone(),
            sha256: shadow.loaded.sha256.clone(),
            judged: seen.judged,
            differences: differences
                .map(|((from, to), count)| (from, to, count))
                .collect(),
        }
    });
    PolicyView {
        pool: pool.name.clone(),
        policy: pool.policy.clone(),
        sha256: version.own.sha256.clone(),
        loaded_at_us: version.loaded_at_us,
        files: version.own.files.clone(),
        rules: version.own.policy.rules(),
        has_guard: version.own.policy.has_guard(),
        is_dry: version.own.policy.is_dry(),
        layers: version.layered.keys().cloned().collect(),
        shadow,
    }
}

impl FleetHandle {
    /// What judges each pool's requests now, and what came of the last reading.
    #[must_use]
    pub fn policy_status(&self) -> PolicyStatus {
        let shared = &self.0.shared;
        let versions = shared.in_force.all();
        let pools = shared.config.pools.iter().zip(versions.iter());
        let told = shared.reloads.told();
        PolicyStatus {
            pools: pools.map(|(pool, version)| view(pool, version)).collect(),
            last: told.last.clone(),
            stale_since_us: told.stale_since_us,
            is_watched: told.is_watched,
        }
    }

    /// Reads the policies again. Those of all pools come into force together, or none: then it is
    /// logged, counted and told by [`FleetHandle::policy_status`] that older ones are in force. A
    /// request that is being judged is judged to its end by the version that it began with.
    ///
    /// # Errors
    /// What is wrong with them, made to be shown; nothing changed then.
    pub async fn reload_policies(&self, cause: ReloadCause) -> Result<usize, String> {
        self.read_policies(cause, false).await
    }

    /// Reads them because a change may have been missed: where there was none, nothing is told.
    pub async fn catch_up_policies(&self) {
        let _ = self.read_policies(ReloadCause::File, true).await;
    }

    async fn read_policies(&self, cause: ReloadCause, is_quiet: bool) -> Result<usize, String> {
        let shared = &self.0.shared;
        let reloads = &shared.reloads;
        let _one = reloads.one_at_a_time.lock().await;
        let Some(reader) = reloads.reader.clone() else {
            return Err("this supervisor cannot read its policies again".to_owned());
        };
        let reading = shared.ambient.blocking(move || (reader.0)()).await;
        let reading = reading.unwrap_or_else(|_| Reading {
            policies: Err("reading the policies failed".to_owned()),
            files: BTreeSet::new(),
        });
        let result = self.put_in_force(reading);
        let at_us = now_us();
        let mut told = reloads.told();
        if is_quiet && result == Ok(0) && told.stale_since_us.is_none() {
            return result;
        }
        self.tell_reload(cause, &result);
        told.stale_since_us = match &result {
            Ok(_) => None,
            Err(_) => told.stale_since_us.or(Some(at_us)),
        };
        told.last = Some(LastReload {
            at_us,
            cause,
            result: result.clone(),
        });
        result
    }

    fn put_in_force(&self, reading: Reading) -> Result<usize, String> {
        let shared = &self.0.shared;
        let mut files = reading.files;
        let changed = reading.policies.and_then(|policies| {
            let changed = shared.in_force.replace(&shared.config, &policies);
            changed.map_err(|error| error.to_string())
        });
        let versions = shared.in_force.all();
        // Of a reading that failed: what was good may become good again.
        files.extend(versions.iter().flat_map(|of| all_files(of)).cloned());
        shared.reloads.files.send_if_modified(|known| {
            let is_new = *known != files;
            *known = files;
            is_new
        });
        changed
    }

    fn tell_reload(&self, cause: ReloadCause, result: &Result<usize, String>) {
        match result {
            Ok(changed) => PoliciesInForce {
                cause: Some(cause),
                changed: *changed,
                rules: rules(&self.0.shared.in_force.all()),
                at: seconds(now_us()),
            }
            .emit(),
            Err(why) => PoliciesStale { cause, why }.emit(),
        }
    }

    /// Whether a task's own workspace holds none of the files by which people come in; and, where its
    /// agent writes in place, none that the supervisor runs, and none that decide what agents may do.
    pub(super) async fn holds_nothing_trusted(
        &self,
        pool: &PoolShared,
        spec: &TaskSpec,
        workspace: &Path,
    ) -> Result<(), SubmitError> {
        self.holds_no_keys(spec, workspace).await?;
        if pool.config.workspace.mode != WorkspaceMode::Rw || !pool.config.launcher.has_walls() {
            return Ok(());
        }
        let decide = Part::Decides.why();
        let files = self.0.shared.reloads.files.borrow().clone();
        let files = files.into_iter().map(|file| (file, decide));
        let config = self.0.shared.files.config();
        let trusted = config.trusted().into_iter();
        let trusted = trusted.map(|of| (of.path, of.part.why()));
        let all: Vec<_> = files.chain(trusted).collect();
        let root = workspace.to_owned();
        let look = move || {
            let mut all = all.into_iter();
            all.find(|(file, _)| leads_into(file, &root))
        };
        let found = self.0.shared.ambient.blocking(look).await;
        match found.map_err(|_| SubmitError::Stopping)? {
            None => Ok(()),
            Some((file, why)) => Err(SubmitError::Pool {
                task: spec.id.to_string(),
                why: format!(
                    "its agent could write {}, {why}: give the task another workspace",
                    crate::model::foreign::show(&file.to_string_lossy(), 300)
                ),
            }),
        }
    }

    /// Whatever the mode: a workspace that is shown or copied is read.
    async fn holds_no_keys(&self, spec: &TaskSpec, workspace: &Path) -> Result<(), SubmitError> {
        let config = self.0.shared.files.config();
        // The owner's token is in the state directory, which no workspace may hold anyway.
        let files = config.secret_door_files().into_iter();
        let all: Vec<PathBuf> = files.map(|(_, path)| path.to_owned()).collect();
        let root = workspace.to_owned();
        let look = move || all.into_iter().find(|file| leads_into(file, &root));
        let found = self.0.shared.ambient.blocking(look).await;
        match found.map_err(|_| SubmitError::Stopping)? {
            None => Ok(()),
            Some(file) => Err(SubmitError::Pool {
                task: spec.id.to_string(),
                why: format!(
                    "its agent could read {}, by which people come in: give the task another workspace",
                    crate::model::foreign::show(&file.to_string_lossy(), 300)
                ),
            }),
        }
    }

    /// The files of the policies, as they are looked for; changes with them.
    #[must_use]
    pub fn policy_files(&self) -> watch::Receiver<BTreeSet<PathBuf>> {
        self.0.shared.reloads.files.subscribe()
    }

    /// Somebody sees changes of the files of the policies by itself; or no longer does.
    pub fn policies_watched(&self, is_watched: bool) {
        self.0.shared.reloads.told().is_watched = is_watched;
    }
}
