//! Reloading the policies while the fleet runs, and the status of the last reload.
//!
//! Owns that reloads run one at a time, that a reload activates all policies or none, and the state
//! of a failed reload. Must not know where policies come from; [`crate::Setup`] provides the
//! reader.
//!
//! `active_policies.rs` swaps the policies, `cli/policies.rs` checks them, and
//! `cli/policy_watch.rs`, SIGHUP (`cli/up.rs`) and `engine/api/policy_routes.rs` ask for a reload.
//! Tests: `tests/drills/fleet/reload.rs`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::active_policies::{ActivePolicies, LoadedPolicy, Policies, PolicyVersion};
use crate::clock::now_us;
use crate::messages::PoolMsg;
use crate::path_lookup::path_enters_directory;
use crate::setup::PoolShared;
use crate::{FleetHandle, SubmitError};
use marshal_config::{PathPurpose, Pool, WorkspaceMode};
use marshal_model::{PoolName, TaskSpec};
use marshal_telemetry::event::policy::{PoliciesLoaded, PolicyReloadFailed};
use marshal_telemetry::labels::{ReloadCause, ShadowVerdict};

/// The result of reading all policies.
#[derive(Debug)]
pub struct PolicyReadResult {
    /// The policies, or an error text for display.
    pub policies: Result<Policies, String>,
    /// Every file that the reader looked for, including missing and invalid ones.
    pub files: BTreeSet<PathBuf>,
}

/// Reads and checks all policies of a configuration; runs on a blocking thread.
#[derive(Clone)]
pub struct PolicyReader(Arc<dyn Fn() -> PolicyReadResult + Send + Sync>);

impl PolicyReader {
    /// A reader that calls this function.
    pub fn new(read: impl Fn() -> PolicyReadResult + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for PolicyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyReader")
    }
}

/// The last policy reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReload {
    /// Its time, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// What triggered it.
    pub cause: ReloadCause,
    /// How many pools changed their version, or an error text for display.
    pub result: Result<usize, String>,
}

/// The policies in force, and the result of the last reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// The pools, in the configuration's order.
    pub pools: Vec<PolicyView>,
    /// The last reload; `None` if there was none since the start.
    pub last: Option<LastReload>,
    /// The time of the first reload that failed since the last success, in microseconds since the
    /// Unix epoch. Since then, the policies in force are older than the files.
    pub stale_since_us: Option<i64>,
    /// Whether the files are watched, so that a change triggers a reload.
    pub is_watched: bool,
}

/// The policy in force for one pool, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyView {
    /// The pool's name.
    pub pool: PoolName,
    /// The policy's name in the configuration.
    pub policy: String,
    /// SHA-256 of its text and of the policies that it extends, hexadecimal.
    pub sha256: String,
    /// When it came into force, in microseconds since the Unix epoch.
    pub loaded_at_us: i64,
    /// The files that it was read from; empty for a built-in policy.
    pub files: Vec<PathBuf>,
    /// The number of its rules, including those of the policies that it extends.
    pub rules: usize,
    /// Whether it extends the built-in guard.
    pub has_guard: bool,
    /// Whether it is a dry run, which allows nothing.
    pub is_dry: bool,
    /// The layers that a session may put on top of it.
    pub layers: Vec<String>,
    /// Its shadow policy, if it has one.
    pub shadow: Option<ShadowView>,
}

/// A shadow policy and its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowView {
    /// Its name in the configuration.
    pub policy: String,
    /// SHA-256 of its text and of the policies that it extends, hexadecimal.
    pub sha256: String,
    /// Requests that it evaluated since this version came into force.
    pub judged: u64,
    /// Different verdicts: the policy's, the shadow's, and how often.
    pub differences: Vec<(ShadowVerdict, ShadowVerdict, u64)>,
}

/// The state of policy reloads.
#[derive(Debug)]
pub(crate) struct PolicyReloads {
    reader: Option<PolicyReader>,
    reload_lock: tokio::sync::Mutex<()>,
    state: Mutex<ReloadState>,
    /// The files that the last reload looked for, and those of the policies in force.
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
        let files = versions
            .iter()
            .flat_map(|version| all_files(version))
            .cloned()
            .collect();
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
    loaded(version).flat_map(|item| &item.files)
}

/// The number of rules of all base policies; each policy counts once.
fn count_rules(versions: &[Arc<PolicyVersion>]) -> usize {
    let mut seen = BTreeSet::new();
    let distinct = versions
        .iter()
        .filter(|version| seen.insert(&version.base.sha256));
    distinct
        .map(|version| version.base.policy.rule_count())
        .sum()
}

fn view(pool: &Pool, version: &PolicyVersion) -> PolicyView {
    let shadow = version.shadow.as_ref().map(|shadow| {
        let stats = shadow.stats();
        let differences = stats.differences.into_iter();
        ShadowView {
            policy: shadow.name.clone(),
            sha256: shadow.loaded.sha256.clone(),
            judged: stats.judged,
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
    /// The policies in force, and the result of the last reload.
    #[must_use]
    pub fn policy_status(&self) -> PolicyStatus {
        let shared = &self.0.shared;
        let versions = shared.active_policies.all();
        let pools = shared.config.pools.iter().zip(versions.iter());
        let reload = shared.reloads.state();
        PolicyStatus {
            pools: pools.map(|(pool, version)| view(pool, version)).collect(),
            last: reload.last.clone(),
            stale_since_us: reload.stale_since_us,
            is_watched: reload.is_watched,
        }
    }

    /// Reloads the policies of all pools, or of none if one is invalid. A failed reload is logged,
    /// counted and shown by [`FleetHandle::policy_status`]. A request that is being evaluated keeps
    /// its version to the end. Returns how many pools changed.
    ///
    /// # Errors
    /// An error text for display; the policies in force did not change.
    pub async fn reload_policies(&self, cause: ReloadCause) -> Result<usize, String> {
        self.read_policies(cause, false).await
    }

    /// Reloads the policies because the file watch may have missed a change. If nothing changed,
    /// nothing is logged.
    pub async fn catch_up_policies(&self) {
        let _ = self.read_policies(ReloadCause::File, true).await;
    }

    async fn read_policies(&self, cause: ReloadCause, is_quiet: bool) -> Result<usize, String> {
        let shared = &self.0.shared;
        let reloads = &shared.reloads;
        let _guard = reloads.reload_lock.lock().await;
        let Some(reader) = reloads.reader.clone() else {
            return Err(
                "this supervisor cannot reload its policies: restart it instead".to_owned(),
            );
        };
        let reading = shared.ambient.run_blocking(move || (reader.0)()).await;
        let reading = reading.unwrap_or_else(|_| PolicyReadResult {
            policies: Err("reading the policies failed".to_owned()),
            files: BTreeSet::new(),
        });
        let result = self.activate_policies(reading);
        let at_us = now_us();
        let mut state = reloads.state();
        if is_quiet && result == Ok(0) && state.stale_since_us.is_none() {
            return result;
        }
        self.log_reload(cause, &result);
        if result.is_ok() && self.0.shared.paused_runs.resume() {
            for entry in self.0.pools.values() {
                let _ = entry.actor.send_message(PoolMsg::JobFreed);
            }
        }
        state.stale_since_us = match &result {
            Ok(_) => None,
            Err(_) => state.stale_since_us.or(Some(at_us)),
        };
        state.last = Some(LastReload {
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
        // After a failed reload too: the files of the policies in force may become valid again.
        files.extend(versions.iter().flat_map(|item| all_files(item)).cloned());
        shared.reloads.files.send_if_modified(|current| {
            let is_new = *current != files;
            *current = files;
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

    /// Checks that a task's own workspace contains no credential file. If its agent writes in
    /// place, the workspace must also contain no program of the supervisor and no file that decides
    /// what agents may do.
    pub(crate) async fn check_no_trusted_files(
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
        let files = self
            .0
            .shared
            .reloads
            .files
            .borrow()
            .clone()
            .into_iter()
            .map(|file| (file, decide));
        let config = self.0.shared.files.config();
        let trusted = config
            .trusted_paths()
            .into_iter()
            .map(|item| (item.path, item.purpose.reason()));
        let all: Vec<_> = files.chain(trusted).collect();
        let root = workspace.to_owned();
        let find = move || {
            let mut all = all.into_iter();
            all.find(|(file, _)| path_enters_directory(file, &root))
        };
        let conflict = self.0.shared.ambient.run_blocking(find).await;
        match conflict.map_err(|_| SubmitError::Stopping)? {
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

    /// Checks that a task's own workspace contains no credential file. This applies to every
    /// workspace mode, because the agent can read also a read-only or copied workspace.
    async fn check_no_secret_files(
        &self,
        spec: &TaskSpec,
        workspace: &Path,
    ) -> Result<(), SubmitError> {
        let config = self.0.shared.files.config();
        // The owner's token is in the state directory, which no workspace may contain anyway.
        let files = config.private_credential_files().into_iter();
        let all: Vec<PathBuf> = files.map(|(_, path)| path.to_owned()).collect();
        let root = workspace.to_owned();
        let find = move || {
            all.into_iter()
                .find(|file| path_enters_directory(file, &root))
        };
        let conflict = self.0.shared.ambient.run_blocking(find).await;
        match conflict.map_err(|_| SubmitError::Stopping)? {
            None => Ok(()),
            Some(file) => Err(SubmitError::Pool {
                task: spec.id.to_string(),
                why: format!(
                    "its agent could read {}, which is a credential of the supervisor: give the task another workspace",
                    marshal_model::untrusted::escape_for_display(&file.to_string_lossy(), 300)
                ),
            }),
        }
    }

    /// The policy files to watch; updated with each reload.
    #[must_use]
    pub fn policy_files(&self) -> watch::Receiver<BTreeSet<PathBuf>> {
        self.0.shared.reloads.files.subscribe()
    }

    /// Sets whether the policy files are watched, for [`PolicyStatus::is_watched`].
    pub fn set_policies_watched(&self, is_watched: bool) {
        self.0.shared.reloads.state().is_watched = is_watched;
    }
}
