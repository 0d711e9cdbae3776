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
use crate::config::{Config, Degradable, Launcher, Sandbox, UidRange};
use crate::launch::{self, Engine, RunError, SpawnError, Spawner, Walls};
use crate::model::PoolName;
use crate::sandbox::doctor::{self, Asked, Asking, Feature, Found, Need, Row, Verdict};
use crate::sandbox::uids::SlotUids;
use crate::sandbox::{self, Ids, PlanError};
use crate::wire::shim::{AGENT_ID, Failure};

/// How wide the table is when it is part of an error, in columns.
const WIDTH: usize = crate::cli::streams::PIPED_WIDTH;

/// What walls in memory do not try.
const BESIDE_WALLS: &[Feature] = &[
    Feature::IdmapState,
    Feature::IdmapWorkspace,
    Feature::UidPerSlot,
];

/// Why there can be no fleet.
#[derive(Debug, thiserror::Error)]
pub enum Unready {
    /// This host lacks something.
    #[error("{0}")]
    Lacks(Lacks),
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
    NotLooked,
}

/// Why a command's limits are not held.
#[derive(Debug)]
pub(in crate::cli) enum Unheld {
    /// There are no walls.
    Walls(RunError),
    /// There are, but not all of their limits.
    Not(Unready),
}

/// What a host lacks: only the rows of the table that nobody can do without.
#[derive(Debug)]
pub struct Lacks {
    rows: Vec<Row>,
}

impl fmt::Display for Lacks {
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
pub(in crate::cli) fn walled(config: &Config) -> impl Iterator<Item = (&str, &Sandbox)> {
    let mut seen = Vec::new();
    needs::walled_pools(config).filter_map(move |pool| {
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
    let pools = needs::walled_pools(config);
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
            Some((profile.demands.uid_range, below))
        })
        .collect()
}

/// Every profile with every engine by which a pool has it put up; `None`: this program itself.
fn ways<'c>(
    config: &'c Config,
    engines: &'c BTreeMap<PoolName, Arc<Engine>>,
) -> Vec<(&'c str, &'c Sandbox, Option<&'c Arc<Engine>>)> {
    let mut ways: Vec<(&str, &Sandbox, Option<&Arc<Engine>>)> = Vec::new();
    for pool in needs::walled_pools(config) {
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
) -> Result<(), Unready> {
    let Some((_, first)) = walled(config).next() else {
        return Ok(());
    };
    let asking = Asking {
        ids: ids(uids, first),
        slots: u32::from(config.supervisor.max_children),
    };
    let state = state.to_string_lossy().into_owned();
    // Root's block is held already: another one of its size need not be free.
    let is_open = |need: &Need| uids.is_none() || need.what.feature != Feature::UidPerSlot;
    let mut needs = needs::of_used(config, &state, None);
    needs.retain(is_open);
    settle(&mut config.sandboxes, &needs, asking).await?;
    let mut without = Vec::new();
    for (name, profile, engine) in ways(config, engines) {
        let ids = ids(uids, profile);
        let walls = sandbox::plan(&sandbox::probe_request(profile, ids));
        let walls = walls.map_err(|error| Unready::Plan {
            profile: name.to_owned(),
            error,
        })?;
        let walls = match engine {
            Some(engine) => Walls::Engine(Box::new(walls), Arc::clone(engine)),
            None => Walls::Shim(Box::new(walls)),
        };
        let tried = launch::probe_walls(spawner, walls, sandbox::limits_of(profile)).await;
        let held = match tried {
            Ok(held) => held,
            Err(error) => {
                let own = |need: &&Need| need.profile.as_deref() == Some(name);
                let own: Vec<Need> = needs.iter().filter(own).cloned().collect();
                return Err(blame(name, &own, Asking { ids, ..asking }, &error).await);
            }
        };
        let Some(held) = held else { continue };
        let (rows, words) = limits::unheld(name, profile, &held);
        if !rows.is_empty() {
            return Err(Unready::Lacks(Lacks { rows }));
        }
        without.push((name.to_owned(), words));
    }
    // The spawner has said it already.
    for (name, words) in without {
        if let Some(profile) = config.sandboxes.get_mut(&name) {
            for word in words {
                profile.goes_without(word);
            }
        }
    }
    Ok(())
}

/// Sees to it that the programs that pools have their walls put up by are there.
pub(in crate::cli) async fn check_programs(config: &Config) -> Result<(), Unready> {
    let asking = Asking {
        ids: own_ids(),
        slots: 1,
    };
    let rows = doctor::unmet(&look(&needs::of_launchers(config), asking).await?);
    if rows.is_empty() {
        Ok(())
    } else {
        Err(Unready::Lacks(Lacks { rows }))
    }
}

/// The same for one command in the walls of a profile, which tries them itself.
pub(in crate::cli) async fn check_one(
    config: &mut Config,
    name: &str,
    ids: Ids,
    own_network: bool,
) -> Result<(), Unready> {
    let Some(profile) = config.sandboxes.get(name) else {
        return Ok(());
    };
    let needs = needs::of_command(name, profile, own_network);
    let asking = Asking { ids, slots: 1 };
    settle(&mut config.sandboxes, &needs, asking).await
}

/// Sees to it that what a command's profile demands to be held is held: tries its walls, where it
/// demands that.
pub(in crate::cli) async fn check_held(
    name: &str,
    profile: &Sandbox,
    spawner: &Spawner,
    walls: Walls,
) -> Result<(), Unheld> {
    if !profile.demands.limits_held {
        return Ok(());
    }
    let tried = launch::probe_walls(spawner, walls, sandbox::limits_of(profile)).await;
    let Some(held) = tried.map_err(Unheld::Walls)? else {
        return Ok(());
    };
    let (rows, _) = limits::unheld(name, profile, &held);
    if rows.is_empty() {
        Ok(())
    } else {
        Err(Unheld::Not(Unready::Lacks(Lacks { rows })))
    }
}

/// What is missing of a profile whose walls could not be had for a command.
pub(in crate::cli) async fn blame_one(
    config: &Config,
    name: &str,
    ids: Ids,
    own_network: bool,
    error: &RunError,
) -> Unready {
    let profile = config.sandboxes.get(name);
    let needs = profile.map(|profile| needs::of_command(name, profile, own_network));
    let asking = Asking { ids, slots: 1 };
    blame(name, &needs.unwrap_or_default(), asking, error).await
}

/// What a command in the walls of this profile goes without here: rows that are missing or done
/// without.
pub(in crate::cli) fn lacks_here(
    name: &str,
    profile: &Sandbox,
    ids: Ids,
    own_network: bool,
) -> Vec<Row> {
    let mut needs = needs::of_command(name, profile, own_network);
    let asked = distinct(&needs);
    let mut found = doctor::probe(Path::new(OWN), Asking { ids, slots: 1 }, &asked);
    needs.extend(limits::needs(name, profile));
    found.extend(limits::found());
    let rows = doctor::judge(&needs, found);
    let is_lack = |row: &Row| matches!(row.verdict, Verdict::Missing | Verdict::Degraded);
    rows.into_iter().filter(is_lack).collect()
}

/// Looks for what walls in memory do not try, and for what may be done without.
async fn settle(
    profiles: &mut BTreeMap<String, Sandbox>,
    needs: &[Need],
    asking: Asking,
) -> Result<(), Unready> {
    let beside =
        |need: &&Need| BESIDE_WALLS.contains(&need.what.feature) || need.may_lack.is_some();
    let early: Vec<Need> = needs.iter().filter(beside).cloned().collect();
    let rows = look(&early, asking).await?;
    if !doctor::unmet(&rows).is_empty() {
        // What is missing here may be so for want of something that was not looked for yet.
        let rows = doctor::unmet(&look(needs, asking).await?);
        return Err(Unready::Lacks(Lacks { rows }));
    }
    go_without(profiles, &early, &rows);
    Ok(())
}

/// Why walls failed: what is missing, or if nothing is, the failure itself.
async fn blame(name: &str, needs: &[Need], asking: Asking, error: &RunError) -> Unready {
    let rows = match look(needs, asking).await {
        Ok(rows) => doctor::unmet(&rows),
        Err(unready) => return unready,
    };
    Unready::Lacks(Lacks {
        rows: if rows.is_empty() {
            vec![failed(name, error)]
        } else {
            rows
        },
    })
}

fn ids(uids: Option<&SlotUids>, profile: &Sandbox) -> Ids {
    match uids.and_then(|uids| uids.uid(profile.demands.uid_range, 0)) {
        Some(slot_uid) => Ids::Root { slot_uid },
        None => own_ids(),
    }
}

/// Looks for what is needed.
async fn look(needs: &[Need], asking: Asking) -> Result<Vec<Row>, Unready> {
    let asked = distinct(needs);
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let looked = tokio::task::spawn_blocking(move || doctor::probe(Path::new(OWN), asking, &asked));
    let found = looked.await.map_err(|_| Unready::NotLooked)?;
    Ok(doctor::judge(needs, found))
}

fn distinct(needs: &[Need]) -> Vec<Asked> {
    let mut asked: Vec<Asked> = Vec::new();
    for need in needs {
        if !asked.contains(&need.what) {
            asked.push(need.what.clone());
        }
    }
    asked
}

/// Notes in each profile what it goes without.
fn go_without(profiles: &mut BTreeMap<String, Sandbox>, needs: &[Need], rows: &[Row]) {
    for row in rows.iter().filter(|row| row.verdict == Verdict::Degraded) {
        let unmet = needs
            .iter()
            .filter(|need| need.what == row.what && !row.found.meets(need.least));
        for (need, word) in unmet.filter_map(|need| Some((need, need.may_lack?))) {
            let Some(name) = &need.profile else { continue };
            let Some(profile) = profiles.get_mut(name) else {
                continue;
            };
            // A part of Landlock that the host's network wants is not the version of a profile: the
            // children that have that network lack it.
            let feature = if need.what.feature == Feature::Landlock || word != Degradable::Landlock
            {
                profile.goes_without(word);
                word.word()
            } else {
                need.what.feature.word()
            };
            if need.what.feature == Feature::Landlock {
                profile.landlock_min_abi = lower_landlock(&row.found);
            }
            tracing::warn!(
                profile = name,
                feature,
                found = row.found.said,
                "the sandbox goes without a layer that this host has not"
            );
        }
    }
}

/// The version that there is instead of the one that is wanted; 0 where there is none that is used.
fn lower_landlock(found: &Found) -> u8 {
    match u8::try_from(found.count) {
        Ok(abi) if found.has && abi >= doctor::LEAST_LANDLOCK => abi,
        _ => 0,
    }
}

/// The walls failed, and no single thing is to blame.
fn failed(profile: &str, error: &RunError) -> Row {
    let failure = match error {
        RunError::Spawn(SpawnError::Walls(failure) | SpawnError::Exec(failure))
        | RunError::Lost(failure) => Some(failure),
        _ => None,
    };
    Row {
        what: Asked {
            feature: Feature::Walls,
            at: None,
        },
        needed_by: vec![profile.to_owned()],
        verdict: Verdict::Missing,
        found: Found {
            errno: failure.and_then(|failure| failure.errno),
            said: error.to_string(),
            hint: failure.and_then(Failure::hint).map(str::to_owned),
            ..Found::unknown()
        },
        degraded: None,
    }
}
