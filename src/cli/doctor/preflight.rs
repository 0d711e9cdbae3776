//! Checks that a fleet's sandboxes can be built, before any child is started.
//!
//! Features that a trial sandbox in memory does not use are probed first, each in a helper. Then
//! the sandbox of every profile is tried once. If that fails, every feature that the profile needs
//! is probed, so that the table names what is missing. Features that a profile may lack are removed
//! from it here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{OWN, limits, needs, own_ids, table};
use marshal_config::{Config, Degradable, Sandbox, UidRange};
use marshal_launch::{self as launch, Engine, RunError, SandboxSpec, SpawnError, Spawner};
use marshal_model::PoolName;
use marshal_sandbox::doctor::{
    self, CheckStatus, Feature, FeatureQuery, ProbeContext, ProbeResult, Requirement, Row,
};
use marshal_sandbox::uids::SlotUids;
use marshal_sandbox::{self as sandbox, HostIds, PlanError};
use marshal_wire::shim::{AGENT_ID, SetupFailure};

/// Width of the table inside an error message, in columns.
const WIDTH: usize = crate::cli::streams::PIPED_WIDTH;

/// Features that a trial sandbox in memory does not use.
const UNTRIED_FEATURES: &[Feature] = &[
    Feature::IdmapState,
    Feature::IdmapWorkspace,
    Feature::UidPerSlot,
];

/// Why the fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// This host lacks a required feature.
    #[error("{0}")]
    Missing(MissingFeatures),
    /// The sandbox cannot be planned.
    #[error("sandbox {profile}: {error}")]
    Plan {
        /// The profile's name.
        profile: String,
        /// The cause.
        error: PlanError,
    },
    /// The probe did not run.
    #[error("the features of this host could not be probed")]
    ProbeFailed,
}

/// Why a command's limits cannot be enforced.
#[derive(Debug)]
pub(in crate::cli) enum LimitsError {
    /// The sandbox cannot be built.
    Sandbox(RunError),
    /// The sandbox can be built, but not all of its limits can be enforced.
    Preflight(PreflightError),
}

/// The required features that a host lacks, as rows of the table.
#[derive(Debug)]
pub struct MissingFeatures {
    rows: Vec<Row>,
}

impl fmt::Display for MissingFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = table::render(&self.rows, WIDTH);
        write!(
            f,
            "this host lacks what the sandbox needs, so nothing was started (marshal doctor shows \
             everything):\n{}",
            table.trim_end()
        )
    }
}

/// The profiles that sandboxed pools use, once each.
pub(in crate::cli) fn sandboxed_profiles(
    config: &Config,
) -> impl Iterator<Item = (&str, &Sandbox)> {
    let mut seen = Vec::new();
    needs::sandboxed_pools(config).filter_map(move |pool| {
        let name = pool.sandbox.as_str();
        if seen.contains(&name) {
            return None;
        }
        seen.push(name);
        Some((name, config.sandboxes.get(name)?))
    })
}

/// The uid ranges of the profiles that sandboxed pools use, and how many ids each needs below it.
pub(in crate::cli) fn uid_ranges(config: &Config) -> Vec<(UidRange, u32)> {
    let pools = needs::sandboxed_pools(config);
    pools
        .filter_map(|pool| {
            let profile = config.sandboxes.get(&pool.sandbox)?;
            let below = if pool.launcher.uses_image() {
                AGENT_ID
            } else {
                0
            };
            Some((profile.requirements.uid_range, below))
        })
        .collect()
}

/// Every profile with each engine that builds it for a pool; `None` is this program itself.
fn profiles_by_engine<'c>(
    config: &'c Config,
    engines: &'c BTreeMap<PoolName, Arc<Engine>>,
) -> Vec<(&'c str, &'c Sandbox, Option<&'c Arc<Engine>>)> {
    let mut ways: Vec<(&str, &Sandbox, Option<&Arc<Engine>>)> = Vec::new();
    for pool in needs::sandboxed_pools(config) {
        let name = pool.sandbox.as_str();
        let engine = engines.get(&pool.name);
        let is_known = ways.iter().any(|way| way.0 == name && way.2 == engine);
        if let Some(profile) = config.sandboxes.get(name)
            && !is_known
        {
            ways.push((name, profile, engine));
        }
    }
    ways
}

/// Checks that every sandbox can be built, and removes from the profiles the features that they may
/// lack and that this host does not have.
pub(in crate::cli) async fn check(
    config: &mut Config,
    spawner: &Spawner,
    uids: Option<&SlotUids>,
    state: &Path,
    engines: &BTreeMap<PoolName, Arc<Engine>>,
) -> Result<(), PreflightError> {
    let Some((_, first)) = sandboxed_profiles(config).next() else {
        return Ok(());
    };
    let asking = ProbeContext {
        ids: ids(uids, first),
        slots: u32::from(config.supervisor.max_children),
    };
    let state = state.to_string_lossy().into_owned();
    // Root's block of uids is locked already: another one of its size need not be free.
    let is_open = |need: &Requirement| uids.is_none() || need.query.feature != Feature::UidPerSlot;
    let mut needs = needs::of_used(config, &state, None);
    needs.retain(is_open);
    probe_early(&mut config.sandboxes, &needs, asking).await?;
    let mut without = Vec::new();
    for (name, profile, engine) in profiles_by_engine(config, engines) {
        let ids = ids(uids, profile);
        let plan = sandbox::plan(&sandbox::probe_request(profile, ids)).map_err(|error| {
            PreflightError::Plan {
                profile: name.to_owned(),
                error,
            }
        })?;
        let spec = match engine {
            Some(engine) => SandboxSpec::Engine(Box::new(plan), Arc::clone(engine)),
            None => SandboxSpec::Shim(Box::new(plan)),
        };
        let result = launch::probe_sandbox(spawner, spec, sandbox::limits_of(profile)).await;
        let enforcement = match result {
            Ok(enforcement) => enforcement,
            Err(error) => {
                let own = |need: &&Requirement| need.profile.as_deref() == Some(name);
                let own: Vec<Requirement> = needs.iter().filter(own).cloned().collect();
                return Err(diagnose(name, &own, ProbeContext { ids, ..asking }, &error).await);
            }
        };
        let Some(enforcement) = enforcement else {
            continue;
        };
        let (rows, words) = limits::unenforced_limits(name, profile, &enforcement);
        if !rows.is_empty() {
            return Err(PreflightError::Missing(MissingFeatures { rows }));
        }
        without.push((name.to_owned(), words));
    }
    // No log message here: the spawner has logged it already.
    for (name, words) in without {
        if let Some(profile) = config.sandboxes.get_mut(&name) {
            for word in words {
                profile.degrade(word);
            }
        }
    }
    Ok(())
}

/// Checks that the programs that build the pools' sandboxes are installed.
pub(in crate::cli) async fn check_programs(config: &Config) -> Result<(), PreflightError> {
    let asking = ProbeContext {
        ids: own_ids(),
        slots: 1,
    };
    let rows = doctor::missing_rows(&probe(&needs::of_launchers(config), asking).await?);
    if rows.is_empty() {
        Ok(())
    } else {
        Err(PreflightError::Missing(MissingFeatures { rows }))
    }
}

/// The same for one command in the sandbox of a profile; the command itself tries the sandbox.
pub(in crate::cli) async fn check_one(
    config: &mut Config,
    name: &str,
    ids: HostIds,
    own_network: bool,
) -> Result<(), PreflightError> {
    let Some(profile) = config.sandboxes.get(name) else {
        return Ok(());
    };
    let needs = needs::of_command(name, profile, own_network);
    let asking = ProbeContext { ids, slots: 1 };
    probe_early(&mut config.sandboxes, &needs, asking).await
}

/// Checks that the limits that a command's profile requires are enforced, by trying its sandbox.
/// Does nothing if the profile does not require that.
pub(in crate::cli) async fn check_limits(
    name: &str,
    profile: &Sandbox,
    spawner: &Spawner,
    spec: SandboxSpec,
) -> Result<(), LimitsError> {
    if !profile.requirements.limits_held {
        return Ok(());
    }
    let result = launch::probe_sandbox(spawner, spec, sandbox::limits_of(profile)).await;
    let Some(enforcement) = result.map_err(LimitsError::Sandbox)? else {
        return Ok(());
    };
    let (rows, _) = limits::unenforced_limits(name, profile, &enforcement);
    if rows.is_empty() {
        Ok(())
    } else {
        Err(LimitsError::Preflight(PreflightError::Missing(
            MissingFeatures { rows },
        )))
    }
}

/// What is missing for a profile whose sandbox could not be built for a command.
pub(in crate::cli) async fn diagnose_command(
    config: &Config,
    name: &str,
    ids: HostIds,
    own_network: bool,
    error: &RunError,
) -> PreflightError {
    let profile = config.sandboxes.get(name);
    let needs = profile.map(|profile| needs::of_command(name, profile, own_network));
    let asking = ProbeContext { ids, slots: 1 };
    diagnose(name, &needs.unwrap_or_default(), asking, error).await
}

/// What the sandbox of this profile lacks on this host: rows that are missing or degraded.
pub(in crate::cli) fn missing_rows(
    name: &str,
    profile: &Sandbox,
    ids: HostIds,
    own_network: bool,
) -> Vec<Row> {
    let mut needs = needs::of_command(name, profile, own_network);
    let queries = distinct(&needs);
    let mut found = doctor::probe(Path::new(OWN), ProbeContext { ids, slots: 1 }, &queries);
    needs.extend(limits::needs(name, profile));
    found.extend(limits::probe_limits());
    let rows = doctor::evaluate(&needs, found);
    let is_lack = |row: &Row| matches!(row.status, CheckStatus::Missing | CheckStatus::Degraded);
    rows.into_iter().filter(is_lack).collect()
}

/// Probes the features that a trial sandbox in memory does not use, and those that may be missing.
async fn probe_early(
    profiles: &mut BTreeMap<String, Sandbox>,
    needs: &[Requirement],
    asking: ProbeContext,
) -> Result<(), PreflightError> {
    let beside = |need: &&Requirement| {
        UNTRIED_FEATURES.contains(&need.query.feature) || need.may_degrade.is_some()
    };
    let early: Vec<Requirement> = needs.iter().filter(beside).cloned().collect();
    let rows = probe(&early, asking).await?;
    if !doctor::missing_rows(&rows).is_empty() {
        // A feature may be missing because of another one that was not probed yet.
        let rows = doctor::missing_rows(&probe(needs, asking).await?);
        return Err(PreflightError::Missing(MissingFeatures { rows }));
    }
    degrade_profiles(profiles, &early, &rows);
    Ok(())
}

/// Why a sandbox failed: the missing features, or the failure itself if none is missing.
async fn diagnose(
    name: &str,
    needs: &[Requirement],
    asking: ProbeContext,
    error: &RunError,
) -> PreflightError {
    let rows = match probe(needs, asking).await {
        Ok(rows) => doctor::missing_rows(&rows),
        Err(unready) => return unready,
    };
    PreflightError::Missing(MissingFeatures {
        rows: if rows.is_empty() {
            vec![failed(name, error)]
        } else {
            rows
        },
    })
}

fn ids(uids: Option<&SlotUids>, profile: &Sandbox) -> HostIds {
    match uids.and_then(|uids| uids.uid(profile.requirements.uid_range, 0)) {
        Some(slot_uid) => HostIds::Root { slot_uid },
        None => own_ids(),
    }
}

/// Probes the needed features.
async fn probe(needs: &[Requirement], asking: ProbeContext) -> Result<Vec<Row>, PreflightError> {
    let queries = distinct(needs);
    if queries.is_empty() {
        return Ok(Vec::new());
    }
    let probes =
        tokio::task::spawn_blocking(move || doctor::probe(Path::new(OWN), asking, &queries));
    let results = probes.await.map_err(|_| PreflightError::ProbeFailed)?;
    Ok(doctor::evaluate(needs, results))
}

fn distinct(needs: &[Requirement]) -> Vec<FeatureQuery> {
    let mut queries: Vec<FeatureQuery> = Vec::new();
    for need in needs {
        if !queries.contains(&need.query) {
            queries.push(need.query.clone());
        }
    }
    queries
}

/// Removes the missing features from the profiles that may lack them.
fn degrade_profiles(profiles: &mut BTreeMap<String, Sandbox>, needs: &[Requirement], rows: &[Row]) {
    for row in rows
        .iter()
        .filter(|row| row.status == CheckStatus::Degraded)
    {
        let unmet = needs
            .iter()
            .filter(|need| need.query == row.query && !row.result.meets(need.least));
        for (need, word) in unmet.filter_map(|need| Some((need, need.may_degrade?))) {
            let Some(name) = &need.profile else { continue };
            let Some(profile) = profiles.get_mut(name) else {
                continue;
            };
            // The Landlock feature that only the host's network needs does not change the profile's
            // version: only the children with that network lack it.
            let feature = if need.query.feature == Feature::Landlock || word != Degradable::Landlock
            {
                profile.degrade(word);
                word.as_str()
            } else {
                need.query.feature.as_str()
            };
            if need.query.feature == Feature::Landlock {
                profile.landlock_min_abi = lower_landlock(&row.result);
            }
            tracing::warn!(
                profile = name,
                feature,
                found = row.result.detail,
                "the sandbox lacks a layer that this host does not support"
            );
        }
    }
}

/// The Landlock version of this host, below the required one; 0 if it is too old to use.
fn lower_landlock(found: &ProbeResult) -> u8 {
    match u8::try_from(found.count) {
        Ok(abi) if found.has && abi >= doctor::MIN_LANDLOCK_ABI => abi,
        _ => 0,
    }
}

/// The row for a sandbox that failed without a single missing feature.
fn failed(profile: &str, error: &RunError) -> Row {
    let failure = match error {
        RunError::Spawn(SpawnError::Sandbox(failure) | SpawnError::Exec(failure))
        | RunError::Lost(failure) => Some(failure),
        _ => None,
    };
    Row {
        query: FeatureQuery {
            feature: Feature::Sandbox,
            at: None,
        },
        required_by: vec![profile.to_owned()],
        status: CheckStatus::Missing,
        result: ProbeResult {
            errno: failure.and_then(|failure| failure.errno),
            detail: error.to_string(),
            hint: failure.and_then(SetupFailure::hint).map(str::to_owned),
            ..ProbeResult::unknown()
        },
        degraded: None,
    }
}
