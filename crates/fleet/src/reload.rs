//! Reading the policies again while the fleet runs, and what is told of it.
//!
//! Owns that they are read one at a time, all of them or none, and what is remembered of a reading
//! that failed. Must not know where policies come from: whoever starts the fleet gives it a reader.
//!
//! `active_policies.rs` swaps the policies, `cli/policies.rs` checks them, and `cli/policy_watch.rs`, SIGHUP (`cli/up.rs`)
//! and `engine/api/policy_routes.rs` ask for a reload. Tests: `tests/drills/fleet/reload.rs`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::active_policies::{ActivePolicies, LoadedPolicy, Policies, PolicyVersion};
use super::clock::now_us;
use super::path_lookup::path_enters_directory;
use super::setup::PoolShared;
use super::{FleetHandle, SubmitError};
use marshal_config::{PathPurpose, Pool, WorkspaceMode};
use marshal_model::{PoolName, TaskSpec};
use marshal_telemetry::event::policy::{PoliciesLoaded, PolicyReloadFailed};
use marshal_telemetry::labels::{ReloadCause, ShadowVerdict};

/// What came of reading all policies.
#[derive(Debug)]
pub struct PolicyReadResult {
    /// They, or what is wrong with them: made to be shown.
    pub policies: Result<Policies, String>,
    /// Every file that was looked for, whatever became of it.
    pub files: BTreeSet<PathBuf>,
}

/// Reads and checks all policies of a configuration; runs on a thread that may block.
#[derive(Clone)]
pub struct PolicyReader(Arc<dyn Fn() -> PolicyReadResult + Send + Sync>);

impl PolicyReader {
    /// One that does this.
    pub fn new(read: impl Fn() -> PolicyReadResult + Send + Sync + 'static) -> Self {
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
pub(crate) struct PolicyReloads {
    reader: Option<PolicyReader>,
    reload_lock: tokio::sync::Mutex<()>,
    state: Mutex<ReloadState>,
    /// Files that were looked for the last time.
    files: watch::Sender<BTreeSet<PathBuf>>,
}

#[derive(Debug, Default)]
struct ReloadState {
    last: Option<LastReload>,
    stale_since_us: Option<i64>,
    is_watched: bool,
}

impl PolicyReloads {
    pub(crate) fn new(reader: Option<PolicyReader>, in_force: &ActivePolicies) -> Self {
        let versions = in_force.all();
        let files = versions.iter().flat_map(|version| all_files(version));
        let files = files.cloned().collect();
        PoliciesLoaded {
            cause: None,
            changed: 0,
            rules: count_rules(&versions),
            at: seconds(now_us()),
        }
        .emit();
        Self {
            reader,
            reload_lock: tokio::sync::Mutex::new(()),
            state: Mutex::default(),
            files: watch::channel(files).0,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(us: i64) -> f64 {
    us as f64 / 1e6
}

fn loaded(version: &PolicyVersion) -> impl Iterator<Item = &LoadedPolicy> {
    let shadow = version.shadow.as_ref().map(|shadow| &shadow.loaded);
    let layered = version.layered.values();
    std::iter::once(&version.base).chain(layered).chain(shadow)
}

fn all_files(version: &PolicyVersion) -> impl Iterator<Item = &PathBuf> {
    loaded(version).flat_map(|of| &of.files)
}

/// Rules of all policies that decide, each policy counted once.
fn count_rules(versions: &[Arc<PolicyVersion>]) -> usize {
    let mut seen = BTreeSet::new();
    let new = versions.iter().filter(|of| seen.insert(&of.base.sha256));
    new.map(|of| of.base.policy.rule_count()).sum()
}

fn view(pool: &Pool, version: &PolicyVersion) -> PolicyView {
    let shadow = version.shadow.as_ref().map(|shadow| {
        let seen = shadow.stats();
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
        sha256: version.base.sha256.clone(),
        loaded_at_us: version.loaded_at_us,
        files: version.base.files.clone(),
        rules: version.base.policy.rule_count(),
        has_guard: version.base.policy.has_guard(),
        is_dry: version.base.policy.is_dry_run(),
        layers: version.layered.keys().cloned().collect(),
        shadow,
    }
}

impl FleetHandle {
    /// What judges each pool's requests now, and what came of the last reading.
    #[must_use]
    pub fn policy_status(&self) -> PolicyStatus {
        let shared = &self.0.shared;
        let versions = shared.active_policies.all();
        let pools = shared.config.pools.iter().zip(versions.iter());
        let told = shared.reloads.state();
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
        let _one = reloads.reload_lock.lock().await;
        let Some(reader) = reloads.reader.clone() else {
            return Err("this supervisor cannot read its policies again".to_owned());
        };
        let reading = shared.ambient.run_blocking(move || (reader.0)()).await;
        let reading = reading.unwrap_or_else(|_| PolicyReadResult {
            policies: Err("reading the policies failed".to_owned()),
            files: BTreeSet::new(),
        });
        let result = self.activate_policies(reading);
        let at_us = now_us();
        let mut told = reloads.state();
        if is_quiet && result == Ok(0) && told.stale_since_us.is_none() {
            return result;
        }
        self.log_reload(cause, &result);
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

    fn activate_policies(&self, reading: PolicyReadResult) -> Result<usize, String> {
        let shared = &self.0.shared;
        let mut files = reading.files;
        let changed = reading.policies.and_then(|policies| {
            let changed = shared.active_policies.replace(&shared.config, &policies);
            changed.map_err(|error| error.to_string())
        });
        let versions = shared.active_policies.all();
        // Of a reading that failed: what was good may become good again.
        files.extend(versions.iter().flat_map(|of| all_files(of)).cloned());
        shared.reloads.files.send_if_modified(|known| {
            let is_new = *known != files;
            *known = files;
            is_new
        });
        changed
    }

    fn log_reload(&self, cause: ReloadCause, result: &Result<usize, String>) {
        match result {
            Ok(changed) => PoliciesLoaded {
                cause: Some(cause),
                changed: *changed,
                rules: count_rules(&self.0.shared.active_policies.all()),
                at: seconds(now_us()),
            }
            .emit(),
            Err(why) => PolicyReloadFailed { cause, why }.emit(),
        }
    }

    /// Whether a task's own workspace holds none of the files by which people come in; and, where its
    /// agent writes in place, none that the supervisor runs, and none that decide what agents may do.
    pub(super) async fn check_no_trusted_files(
        &self,
        pool: &PoolShared,
        spec: &TaskSpec,
        workspace: &Path,
    ) -> Result<(), SubmitError> {
        self.check_no_secret_files(spec, workspace).await?;
        if pool.config.workspace.mode != WorkspaceMode::Rw || !pool.config.launcher.has_sandbox() {
            return Ok(());
        }
        let decide = PathPurpose::DecisionFile.reason();
        let files = self.0.shared.reloads.files.borrow().clone();
        let files = files.into_iter().map(|file| (file, decide));
        let config = self.0.shared.files.config();
        let trusted = config.trusted_paths().into_iter();
        let trusted = trusted.map(|of| (of.path, of.purpose.reason()));
        let all: Vec<_> = files.chain(trusted).collect();
        let root = workspace.to_owned();
        let look = move || {
            let mut all = all.into_iter();
            all.find(|(file, _)| path_enters_directory(file, &root))
        };
        let found = self.0.shared.ambient.run_blocking(look).await;
        match found.map_err(|_| SubmitError::Stopping)? {
            None => Ok(()),
            Some((file, why)) => Err(SubmitError::Pool {
                task: spec.id.to_string(),
                why: format!(
                    "its agent could write {}, {why}: give the task another workspace",
                    marshal_model::untrusted::escape_for_display(&file.to_string_lossy(), 300)
                ),
            }),
        }
    }

    /// Whatever the mode: a workspace that is shown or copied is read.
    async fn check_no_secret_files(
        &self,
        spec: &TaskSpec,
        workspace: &Path,
    ) -> Result<(), SubmitError> {
        let config = self.0.shared.files.config();
        // The owner's token is in the state directory, which no workspace may hold anyway.
        let files = config.private_credential_files().into_iter();
        let all: Vec<PathBuf> = files.map(|(_, path)| path.to_owned()).collect();
        let root = workspace.to_owned();
        let look = move || {
            all.into_iter()
                .find(|file| path_enters_directory(file, &root))
        };
        let found = self.0.shared.ambient.run_blocking(look).await;
        match found.map_err(|_| SubmitError::Stopping)? {
            None => Ok(()),
            Some(file) => Err(SubmitError::Pool {
                task: spec.id.to_string(),
                why: format!(
                    "its agent could read {}, by which people come in: give the task another workspace",
                    marshal_model::untrusted::escape_for_display(&file.to_string_lossy(), 300)
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
    pub fn set_policies_watched(&self, is_watched: bool) {
        self.0.shared.reloads.state().is_watched = is_watched;
    }
}
