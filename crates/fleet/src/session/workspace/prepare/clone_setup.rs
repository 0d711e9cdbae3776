//! The setup of a clone (`workspace.setup`): which layer a session gets, and how a layer is made.
//!
//! The command runs once for each layer, in a fresh clone of a commit, in a session of its own: it sees
//! no file of the host's user, no secret, and no tree that an agent had. A layer that several commits
//! share by the same inputs is for those that begin from the same branch: one with the work of agents
//! could make another result of the same inputs. Must not know how layers are stored or mounted.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::{
    PrepareError, PrepareRequest, PreparedSession, SessionDirs, blocking, branch, host_tree,
    prepare,
};
use crate::clock;
use crate::session::workspace::program_clone::{KeyedLocks, ProgramClone};
use crate::setup::{PoolShared, Shared};
use marshal_config::{Network, SetupNetwork, WorkspaceSetup, show_duration, show_size};
use marshal_launch::{LaunchPlan, ProgramOutput, RunError, SpawnError};
use marshal_model::limits::{
    SETUP_FAILURE_RETENTION, SETUP_FAILURES, SETUP_MEASURE_INTERVAL, SETUP_OUTPUT_BYTES,
};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{ExitStatus, SessionId, SlotId};
use marshal_policy::{guard, outside};
use marshal_sandbox::ExtraMounts;
use marshal_sandbox::workspace::branch::CloneRecord;
use marshal_sandbox::workspace::branch::git::Inputs;
use marshal_sandbox::workspace::layer::{self, LayerError, LayerKey};
use marshal_sandbox::workspace::overlay::MergedView;
use marshal_sandbox::workspace::tree::IncompleteReason;
use marshal_sandbox::workspace::{Owner, Root, TreeError, TreeResolver, cache, measure, sweep};

/// How often a layer is looked for that is removed before the session has it.
const LAYER_ATTEMPTS: u32 = 3;
/// The last lines of a failed setup's output that its error has.
const LINES: usize = 8;
/// Columns of each of them.
const COLUMNS: usize = 200;

/// The setups of a fleet.
#[derive(Debug, Default)]
pub(crate) struct CloneSetups {
    /// Only one session makes a layer; others wait for it.
    locks: KeyedLocks<LayerKey>,
    /// What failed a moment ago, so that not every waiting task tries it again.
    failures: Mutex<HashMap<LayerKey, (Instant, String)>>,
}

impl CloneSetups {
    fn recent_failure(&self, key: &LayerKey) -> Option<String> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|_, (at, _)| clock::since(*at) < SETUP_FAILURE_RETENTION);
        failures.get(key).map(|(_, why)| why.clone())
    }

    fn remember_failure(&self, key: LayerKey, why: String) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < SETUP_FAILURES {
            failures.insert(key, (clock::now(), why));
        }
    }
}

/// Mounts the layer of the pool's setup in a session's clone, and makes the layer if there is none.
pub(crate) async fn mount_layer(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    space: &mut SessionDirs,
    owner: Option<Owner>,
) -> Result<(), PrepareError> {
    let Some(setup) = &pool.config.workspace.setup else {
        return Ok(());
    };
    let record = space.clones.first().map(|(_, record)| record.clone());
    let Some(record) = record.filter(|_| !order.is_setup) else {
        return Ok(());
    };
    // A sweep may remove an unused layer just before the session has it.
    let mut attempts = 0;
    let mounts = loop {
        attempts += 1;
        let Some(key) = find_layer(shared, pool, (order, setup, &record), space).await? else {
            return Ok(());
        };
        let (fleet, session) = (Arc::clone(shared), order.session.clone());
        let workspace = space.workspace.clone();
        let mounts = blocking(&shared.ambient, move || {
            let clone = Root::open_resolved(&workspace)?;
            layer::attach(&fleet.state, &session, &key, &clone, owner)
        });
        match mounts.await? {
            Ok(mounts) => break mounts,
            Err(LayerError::Gone(_)) if attempts < LAYER_ATTEMPTS => {}
            Err(error) => return Err(unusable(space, error)),
        }
    };
    for mount in mounts {
        let lower = host_tree(&mount.lower, false)?;
        let owner = host_tree(&mount.changes, true)?.owner;
        let target = format!("{}/{}", space.workspace_inside, mount.path);
        let layered = (lower, (mount.changes.clone(), owner), target);
        space.beside.layered.push(layered);
        space.written.push(cache::upper_dir(&mount.changes));
        space.layer.push(mount);
    }
    Ok(())
}

/// The layer of a session; `None` if it works without one.
async fn find_layer(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    (order, setup, record): (&PrepareRequest, &WorkspaceSetup, &CloneRecord),
    space: &SessionDirs,
) -> Result<Option<LayerKey>, PrepareError> {
    let (fleet, session) = (Arc::clone(shared), order.session.clone());
    let before = blocking(&shared.ambient, move || {
        layer::of_session(&fleet.state, &session)
    });
    match before.await? {
        Ok(Some(key)) => Ok(Some(key)),
        // The session worked without one: it began before the pool had a setup.
        Ok(None) if order.copy == super::HasCopy::Yes => Ok(None),
        Ok(None) => {
            let build = LayerBuild {
                shared,
                pool,
                setup,
                record,
                slot: &order.slot,
                session: &order.session,
                cancelled: &order.cancelled,
            };
            let origin = match (&order.lands_on, &order.base) {
                (Some(branch), _) => BaseOrigin::Candidate(branch),
                (None, Some(branch)) => BaseOrigin::Branch(branch),
                (None, None) => BaseOrigin::Pool,
            };
            build.find_or_build(origin, space).await.map(Some)
        }
        Err(error) => Err(unusable(space, error)),
    }
}

fn unusable(space: &SessionDirs, source: LayerError) -> PrepareError {
    PrepareError::Layer {
        path: space.workspace.clone(),
        source,
    }
}

/// The session's further mounts, without the directories of the layer that have no place any more.
pub(super) fn mounts(space: &SessionDirs) -> Result<ExtraMounts, PrepareError> {
    let mut mounts = space.beside.clone();
    if space.layer.is_empty() {
        return Ok(mounts);
    }
    let path = space.workspace.clone();
    let clone =
        Root::open_resolved(&path).map_err(|source| PrepareError::Workspace { path, source })?;
    for mount in &space.layer {
        if !layer::has_mount_point(&clone, &mount.path) {
            tracing::info!(path = %mount.path, "the clone has no place any more for this directory of its setup");
            let changes = &mount.changes;
            mounts.layered.retain(|(_, (of, _), _)| of != changes);
        }
    }
    Ok(mounts)
}

/// Adds the directories of the layer to what a policy can resolve.
pub(super) fn add_links(
    mut links: TreeResolver,
    space: &SessionDirs,
) -> Result<TreeResolver, TreeError> {
    for mount in &space.layer {
        let upper = Root::open(&cache::upper_dir(&mount.changes))?;
        let merged = MergedView::new(upper, Root::open(&mount.lower)?);
        let inside = format!("{}/{}", space.workspace_inside, mount.path);
        links = links.with_merged(inside, merged);
    }
    Ok(links)
}

/// Where the base of a clone comes from. It decides for whom its layer is, if several commits have the
/// same inputs: what agents wrote may be on a branch that they land on, and a pool can begin from that one.
#[derive(Debug, Clone, Copy)]
enum BaseOrigin<'b> {
    /// The pool's own base: for all that begin from the same branch.
    Pool,
    /// The branch that a task names: for those that start from it.
    Branch(&'b str),
    /// A commit that may land on this branch: only for its check.
    Candidate(&'b str),
}

/// The search for a layer, and the making of it.
struct LayerBuild<'b> {
    shared: &'b Arc<Shared>,
    pool: &'b Arc<PoolShared>,
    setup: &'b WorkspaceSetup,
    /// The clone that the layer is for.
    record: &'b CloneRecord,
    slot: &'b SlotId,
    /// The session that the layer is for.
    session: &'b SessionId,
    cancelled: &'b CancellationToken,
}

impl LayerBuild<'_> {
    async fn find_or_build(
        &self,
        origin: BaseOrigin<'_>,
        space: &SessionDirs,
    ) -> Result<LayerKey, PrepareError> {
        let mut key = self.key(&format!("commit {}", self.record.base));
        if let Some(inputs) = self.identify_inputs(space).await? {
            let of = |name: &str| self.key(&format!("inputs of {name} {}", inputs.objects));
            let of_pool = inputs.pool_base.as_deref().map(of);
            let of_branch = match origin {
                BaseOrigin::Pool => None,
                BaseOrigin::Branch(name) | BaseOrigin::Candidate(name) => Some(of(name)),
            };
            for made in of_branch.iter().chain(&of_pool) {
                if layer::exists(&self.shared.state, made) {
                    return Ok(made.clone());
                }
            }
            match origin {
                BaseOrigin::Pool if inputs.is_of_pool_base => key = of_pool.unwrap_or(key),
                // Another branch was checked out since the clone was made, or none is.
                BaseOrigin::Pool => {}
                BaseOrigin::Branch(_) => key = of_branch.unwrap_or(key),
                // Once it is on its branch, that branch is asked for, and no layer of a commit.
                BaseOrigin::Candidate(_) => {
                    let clones = &self.shared.program_clones;
                    clones.add_layer(self.session, key.clone());
                }
            }
        }
        if layer::exists(&self.shared.state, &key) {
            return Ok(key);
        }
        let lock = self.shared.clone_setups.locks.lock_of(key.clone());
        let _turn = tokio::select! {
            biased;
            () = self.cancelled.cancelled() => return Err(PrepareError::Interrupted),
            turn = lock.lock() => turn,
        };
        if layer::exists(&self.shared.state, &key) {
            return Ok(key);
        }
        if let Some(why) = self.shared.clone_setups.recent_failure(&key) {
            return Err(PrepareError::Setup(why));
        }
        match self.build(&key).await {
            Ok(()) => Ok(key),
            Err(error) => {
                if let PrepareError::Setup(why) = &error {
                    let failures = &self.shared.clone_setups;
                    failures.remember_failure(key, why.clone());
                }
                Err(error)
            }
        }
    }

    /// What the clone's base has at the setup's inputs; `None` if it has none of them, so that nothing
    /// says that two commits have the same result.
    async fn identify_inputs(&self, space: &SessionDirs) -> Result<Option<Inputs>, PrepareError> {
        let (shared, pool, inputs) = (self.shared, self.pool, &self.setup.inputs);
        if inputs.is_empty() {
            return Ok(None);
        }
        let found = branch::identify_inputs(shared, pool, space, self.record, inputs).await?;
        Ok(Some(found).filter(|found| !found.objects.is_empty()))
    }

    /// The key of a layer that is made from `base` by this pool.
    fn key(&self, base: &str) -> LayerKey {
        let (config, setup) = (&self.pool.config, self.setup);
        let source = self.record.source.to_string_lossy();
        let profile = format!("{:?}", self.pool.sandbox);
        let path = format!("{:?}", config.env.path_add);
        let caches = format!("{:?}", config.caches);
        let binds = format!("{:?}", config.program.as_ref().map(|found| &found.binds));
        let command = format!("{:?}", setup.command);
        let mask = format!("{:?}", config.workspace.mask);
        LayerKey::of([
            "1",
            &source,
            base,
            &command,
            setup.network.as_str(),
            config.launcher.as_str(),
            &profile,
            &mask,
            &path,
            &caches,
            &binds,
        ])
    }

    async fn build(&self, key: &LayerKey) -> Result<(), PrepareError> {
        let shared = Arc::clone(self.shared);
        let room = blocking(&self.shared.ambient, move || {
            sweep::trim_layers(&shared.state)
        });
        for error in room.await? {
            tracing::warn!(%error, "an unused layer could not be removed");
        }
        let clone = ProgramClone::new(self.shared);
        let built = self.build_in_clone(key, &clone).await;
        clone.discard().await?;
        built
    }

    async fn build_in_clone(
        &self,
        key: &LayerKey,
        clone: &ProgramClone,
    ) -> Result<(), PrepareError> {
        let (shared, pool, setup) = (self.shared, self.pool, self.setup);
        let order = PrepareRequest::for_setup(
            (self.slot.clone(), clone.session().clone()),
            self.record.source.clone(),
            &self.record.base,
            self.cancelled.clone(),
        );
        let prepared = prepare_boxed(shared, pool, order).await?;
        let network = match setup.network {
            SetupNetwork::None => Network::None,
            SetupNetwork::Host => Network::Host,
        };
        let mut plan = prepared.setup_plan(shared, pool, setup.command.clone(), network)?;
        plan.limits.fsize = plan.limits.fsize.min(setup.size);
        let began = clock::now();
        tracing::info!(pool = %pool.config.name, base = %self.record.base, command = %self.command(), "the setup of the workspace runs");
        let dirs = prepared.dirs();
        let output = self.run(plan, dirs).await?;
        if output.status != ExitStatus::Code(0) {
            let printed = [output.stdout, output.stderr].concat();
            return Err(self.failed(&format!("ended with {}", output.status), &printed));
        }
        let untracked = branch::list_untracked(shared, pool, dirs).await?;
        let (fleet, workspace) = (Arc::clone(shared), dirs.workspace().to_owned());
        let (for_key, size) = (key.clone(), setup.size);
        let stored = blocking(&shared.ambient, move || {
            let clone = Root::open_resolved(&workspace)?;
            let policies = [guard()];
            let is_refused = |path: &str| outside::find_use(&policies, path, true).is_some();
            layer::store(
                &fleet.state,
                &for_key,
                (&clone, &untracked),
                size,
                &is_refused,
            )
        });
        let stored = stored.await?.map_err(|error| match error {
            LayerError::TooLarge { .. } => self.failed(&error.to_string(), b""),
            error => PrepareError::Layer {
                path: self.record.source.clone(),
                source: error,
            },
        })?;
        for (path, why) in &stored.left_out {
            tracing::warn!(%path, why, "the setup left this, which later sessions do not get");
        }
        let (directories, size) = (stored.paths.join(", "), show_size(stored.bytes));
        let ms = u64::try_from(clock::since(began).as_millis()).unwrap_or(u64::MAX);
        tracing::info!(pool = %pool.config.name, %directories, %size, ms, "the setup of the workspace is done");
        Ok(())
    }

    /// Runs the command to its end, as long as it keeps to its size.
    async fn run(
        &self,
        plan: LaunchPlan,
        dirs: &Arc<SessionDirs>,
    ) -> Result<ProgramOutput, PrepareError> {
        // Also what it writes into the pool's caches.
        let own = [dirs.workspace().to_owned(), dirs.home().to_owned()];
        let trees: Vec<PathBuf> = own
            .into_iter()
            .chain(dirs.written.iter().cloned())
            .collect();
        let timeout = self.setup.timeout;
        let of = trees.clone();
        let before = blocking(&self.shared.ambient, move || measure_all(&of)).await?;
        let before = before.map_err(|source| PrepareError::Workspace {
            path: dirs.workspace().to_owned(),
            source,
        })?;
        let run = self
            .shared
            .host
            .run_to_end(plan, timeout, SETUP_OUTPUT_BYTES);
        let ended = tokio::select! {
            biased;
            () = self.cancelled.cancelled() => return Err(PrepareError::Interrupted),
            ended = run => ended,
            excess = self.watch_size(trees, before) => return Err(excess),
        };
        match ended {
            Ok(output) => Ok(output),
            Err(RunError::TimedOut { output, .. }) => {
                let within = show_duration(timeout);
                Err(self.failed(&format!("was stopped after {within}"), &output))
            }
            Err(RunError::Spawn(SpawnError::Exec(failure))) => {
                Err(self.failed(&format!("could not be started ({failure})"), b""))
            }
            Err(error) => Err(PrepareError::GitSandbox(error)),
        }
    }

    /// Measures what the command writes beyond what was there before; returns when that is too much.
    async fn watch_size(&self, trees: Vec<PathBuf>, before: u64) -> PrepareError {
        loop {
            let (of, began) = (trees.clone(), clock::now());
            match blocking(&self.shared.ambient, move || measure_all(&of)).await {
                Ok(Ok(bytes)) if bytes.saturating_sub(before) > self.setup.size => {
                    let limit = show_size(self.setup.size);
                    return self.failed(&format!("wrote more than {limit}"), b"");
                }
                Ok(Ok(_)) => {}
                // A tree that changes meanwhile is measured again.
                Ok(Err(error)) => tracing::debug!(%error, "a setup could not be measured"),
                Err(error) => return error,
            }
            // A large tree is not measured all the time.
            tokio::time::sleep(SETUP_MEASURE_INTERVAL.max(clock::since(began) * 4)).await;
        }
    }

    /// The command as it is shown.
    fn command(&self) -> String {
        escape_for_display(&self.setup.command.join(" "), COLUMNS)
    }

    fn failed(&self, how: &str, output: &[u8]) -> PrepareError {
        let lines = last_lines(output);
        let said = if lines.is_empty() {
            lines
        } else {
            format!("; its last lines: {lines}")
        };
        let again = show_duration(SETUP_FAILURE_RETENTION);
        PrepareError::Setup(format!(
            "the setup of the workspace failed at {}: `{}` {how}{said}; repair what it needs in the \
             repository, or workspace.setup of the pool {} (command, network, timeout, size), and \
             start the task again; it is not tried again for {again}",
            self.record.base,
            self.command(),
            self.pool.config.name,
        ))
    }
}

/// [`prepare`], which a setup needs for its own session. Boxed, because each contains the other.
fn prepare_boxed<'p>(
    shared: &'p Arc<Shared>,
    pool: &'p Arc<PoolShared>,
    order: PrepareRequest,
) -> Pin<Box<dyn Future<Output = Result<PreparedSession, PrepareError>> + Send + 'p>> {
    Box::pin(prepare(shared, pool, order))
}

/// The disk space of these trees; everything for one with too many files.
fn measure_all(trees: &[PathBuf]) -> Result<u64, TreeError> {
    let mut sum = 0_u64;
    for path in trees {
        let size = measure(&Root::open(path)?)?;
        let is_cut = matches!(
            size.incomplete,
            Some(IncompleteReason::Entries | IncompleteReason::Depth)
        );
        sum = sum.saturating_add(if is_cut { u64::MAX } else { size.bytes });
    }
    Ok(sum)
}

/// The last lines that are not empty, on one line.
fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut last: Vec<String> = lines
        .rev()
        .take(LINES)
        .map(|line| escape_for_display(line, COLUMNS))
        .collect();
    last.reverse();
    last.join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_last_lines_on_one_line() {
        let check = |output: &[u8], expect: &str| assert_eq!(last_lines(output), expect);
        check(b"", "");
        check(b"one\n\n  two \n", "one | two");
        check(b"a\x1b[31mb\xff\n", "a\\u{1b}[31mb\u{fffd}");
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        check(
            many.join("\n").as_bytes(),
            "12 | 13 | 14 | 15 | 16 | 17 | 18 | 19",
        );
        assert!(last_lines(&vec![b'x'; 100_000]).len() < 1000);
    }
}
