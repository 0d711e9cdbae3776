//! Whether a fleet's walls can be had, before any child is started.
//!
//! What walls in memory cannot tell is looked for first, each thing in a helper; then the walls of
//! every profile are tried once. When that fails, everything that the profile needs is looked for,
//! so that the table names what is missing. What a profile may do without is taken out of it here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{OWN, limits, needs, own_ids, table};
use marshal_config::{Config, Degradable, Launcher, Sandbox, UidRange};
use marshal_launch::{self as launch, Engine, RunError, SandboxSpec, SpawnError, Spawner};
use marshal_model::PoolName;
use marshal_sandbox::doctor::{
    self, CheckStatus, Feature, FeatureQuery, ProbeContext, ProbeResult, Requirement, Row,
};
use marshal_sandbox::uids::SlotUids;
use marshal_sandbox::{self as sandbox, HostIds, PlanError};
use marshal_wire::shim::{AGENT_ID, SetupFailure};

/// How wide the table is when it is part of an error, in columns.
const WIDTH: usize = crate::cli::streams::PIPED_WIDTH;

/// What walls in memory do not try.
const UNTRIED_FEATURES: &[Feature] = &[
    Feature::IdmapState,
    Feature::IdmapWorkspace,
    Feature::UidPerSlot,
];

/// Why there can be no fleet.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// This host lacks something.
    #[error("{0}")]
    Missing(MissingFeatures),
    /// The walls cannot be planned.
    #[error("sandbox {profile}: {error}")]
    Plan {
        /// The profile.
        profile: String,
        /// Why.
        error: PlanError,
    },
    /// Nobody looked.
    #[error("what this host has could not be looked at")]
    ProbeFailed,
}

/// Why a command's limits are not held.
#[derive(Debug)]
pub(in crate::cli) enum LimitsError {
    /// There are no walls.
    Sandbox(RunError),
    /// There are, but not all of their limits.
    Preflight(PreflightError),
}

/// What a host lacks: only the rows of the table that nobody can do without.
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

/// The profiles that pools with walls use, once each.
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

/// The ranges of uids that the walled pools' profiles name, and how many ids each needs below it.
pub(in crate::cli) fn uid_ranges(config: &Config) -> Vec<(UidRange, u32)> {
    let pools = needs::sandboxed_pools(config);
    pools
        .filter_map(|pool| {
            let profile = config.sandboxes.get(&pool.sandbox)?;
            let below = match pool.launcher {
                Launcher::Container => AGENT_ID,
                Launcher::Unshare
                | Launcher::Pty
                | Launcher::Bwrap
                | Launcher::None
                | Launcher::Ssh => 0,
            };
            Some((profile.requirements.uid_range, below))
        })
        .collect()
}

/// Every profile with every engine by which a pool has it put up; `NoJournal`: this program itself.
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

/// Sees to it that all walls can be had, and takes out of the profiles what they may do without and
/// this host has not.
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
    // Root's block is held already: another one of its size need not be free.
    let is_open = |need: &Requirement| uids.is_none() || need.query.feature != Feature::UidPerSlot;
    let mut needs = needs::of_used(config, &state, None);
    needs.retain(is_open);
    probe_early(&mut config.sandboxes, &needs, asking).await?;
    let mut without = Vec::new();
    for (name, profile, engine) in profiles_by_engine(config, engines) {
        let ids = ids(uids, profile);
        let walls = sandbox::plan(&sandbox::probe_request(profile, ids));
        let walls = walls.map_err(|error| PreflightError::Plan {
            profile: name.to_owned(),
            error,
        })?;
        let walls = match engine {
            Some(engine) => SandboxSpec::Engine(Box::new(walls), Arc::clone(engine)),
            None => SandboxSpec::Shim(Box::new(walls)),
        };
        let tried = launch::probe_sandbox(spawner, walls, sandbox::limits_of(profile)).await;
        let held = match tried {
            Ok(held) => held,
            Err(error) => {
                let own = |need: &&Requirement| need.profile.as_deref() == Some(name);
                let own: Vec<Requirement> = needs.iter().filter(own).cloned().collect();
                return Err(diagnose(name, &own, ProbeContext { ids, ..asking }, &error).await);
            }
        };
        let Some(held) = held else { continue };
        let (rows, words) = limits::unenforced_limits(name, profile, &held);
        if !rows.is_empty() {
            return Err(PreflightError::Missing(MissingFeatures { rows }));
        }
        without.push((name.to_owned(), words));
    }
    // The spawner has said it already.
    for (name, words) in without {
        if let Some(profile) = config.sandboxes.get_mut(&name) {
            for word in words {
                profile.degrade(word);
            }
        }
    }
    Ok(())
}

/// Sees to it that the programs that pools have their walls put up by are there.
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

/// The same for one command in the walls of a profile, which tries them itself.
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

/// Sees to it that what a command's profile demands to be held is held: tries its walls, where it
/// demands that.
pub(in crate::cli) async fn check_limits(
    name: &str,
    profile: &Sandbox,
    spawner: &Spawner,
    walls: SandboxSpec,
) -> Result<(), LimitsError> {
    if !profile.requirements.limits_held {
        return Ok(());
    }
    let tried = launch::probe_sandbox(spawner, walls, sandbox::limits_of(profile)).await;
    let Some(held) = tried.map_err(LimitsError::Sandbox)? else {
        return Ok(());
    };
    let (rows, _) = limits::unenforced_limits(name, profile, &held);
    if rows.is_empty() {
        Ok(())
    } else {
        Err(LimitsError::Preflight(PreflightError::Missing(
            MissingFeatures { rows },
        )))
    }
}

/// What is missing of a profile whose walls could not be had for a command.
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

/// What a command in the walls of this profile goes without here: rows that are missing or done
/// without.
pub(in crate::cli) fn missing_rows(
    name: &str,
    profile: &Sandbox,
    ids: HostIds,
    own_network: bool,
) -> Vec<Row> {
    let mut needs = needs::of_command(name, profile, own_network);
    let asked = distinct(&needs);
    let mut found = doctor::probe(Path::new(OWN), ProbeContext { ids, slots: 1 }, &asked);
    needs.extend(limits::needs(name, profile));
    found.extend(limits::probe_limits());
    let rows = doctor::evaluate(&needs, found);
    let is_lack = |row: &Row| matches!(row.status, CheckStatus::Missing | CheckStatus::Degraded);
    rows.into_iter().filter(is_lack).collect()
}

/// Looks for what walls in memory do not try, and for what may be done without.
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
        // What is missing here may be so for want of something that was not looked for yet.
        let rows = doctor::missing_rows(&probe(needs, asking).await?);
        return Err(PreflightError::Missing(MissingFeatures { rows }));
    }
    degrade_profiles(profiles, &early, &rows);
    Ok(())
}

/// Why walls failed: what is missing, or if nothing is, the failure itself.
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

/// Looks for what is needed.
async fn probe(needs: &[Requirement], asking: ProbeContext) -> Result<Vec<Row>, PreflightError> {
    let asked = distinct(needs);
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let looked = tokio::task::spawn_blocking(move || doctor::probe(Path::new(OWN), asking, &asked));
    let found = looked.await.map_err(|_| PreflightError::ProbeFailed)?;
    Ok(doctor::evaluate(needs, found))
}

fn distinct(needs: &[Requirement]) -> Vec<FeatureQuery> {
    let mut asked: Vec<FeatureQuery> = Vec::new();
    for need in needs {
        if !asked.contains(&need.query) {
            asked.push(need.query.clone());
        }
    }
    asked
}

/// Notes in each profile what it goes without.
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
            // A part of Landlock that the host's network wants is not the version of a profile: the
            // children that have that network lack it.
            let feature = if need.query.feature == Feature::Landlock || word != Degradable::Landlock
            {
                profile.degrade(word);
                word.word()
            } else {
                need.query.feature.word()
            };
            if need.query.feature == Feature::Landlock {
                profile.landlock_min_abi = lower_landlock(&row.result);
            }
            tracing::warn!(
                profile = name,
                feature,
                found = row.result.said,
                "the sandbox goes without a layer that this host has not"
            );
        }
    }
}

/// The version that there is instead of the one that is wanted; 0 where there is none that is used.
fn lower_landlock(found: &ProbeResult) -> u8 {
    match u8::try_from(found.count) {
        Ok(abi) if found.has && abi >= doctor::MIN_LANDLOCK_ABI => abi,
        _ => 0,
    }
}

/// The walls failed, and no single thing is to blame.
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
            said: error.to_string(),
            hint: failure.and_then(SetupFailure::hint).map(str::to_owned),
            ..ProbeResult::unknown()
        },
        degraded: None,
    }
}
