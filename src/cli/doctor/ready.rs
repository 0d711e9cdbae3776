//! Whether a fleet's walls can be had, before any child is started.
//!
//! What walls in memory cannot tell is looked for first, each thing in a helper; then the walls of
//! every profile are tried once. When that fails, everything that the profile needs is looked for,
//! so that the table names what is missing. What a profile may do without is taken out of it here.

use std::fmt;
use std::path::Path;

use super::{OWN, needs, own_ids, table};
use crate::config::{Config, Sandbox};
use crate::launch::{self, RunError, SpawnError, Spawner};
use crate::sandbox::doctor::{self, Asked, Asking, Feature, Found, Need, Row, Verdict};
use crate::sandbox::uids::SlotUids;
use crate::sandbox::{self, Ids, PlanError};

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

/// The profiles that pools use for walls of this program's making, once each.
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

/// Sees to it that all walls can be had, and takes out of the profiles what they may do without and
/// this host has not.
pub(in crate::cli) async fn check(
    config: &mut Config,
    spawner: &Spawner,
    uids: Option<&SlotUids>,
    state: &Path,
) -> Result<(), Unready> {
    let state = state.to_string_lossy().into_owned();
    let needs = needs::of_used(config, &state, None);
    // Root's block is held already: another one of its size need not be free.
    let has_uids = |need: &&Need| uids.is_none() || need.what.feature != Feature::UidPerSlot;
    let needs: Vec<Need> = needs.iter().filter(has_uids).cloned().collect();
    let beside = |need: &&Need| BESIDE_WALLS.contains(&need.what.feature);
    let early: Vec<Need> = needs.iter().filter(beside).cloned().collect();
    let rows = look(config, uids, &early).await?;
    lacking(&rows)?;
    go_without(config, &early, &rows);
    let names: Vec<String> = walled(config).map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let profile = &config.sandboxes[&name];
        let ids = ids(uids, profile);
        let walls = sandbox::plan(&sandbox::probe_request(profile, ids));
        let walls = walls.map_err(|error| Unready::Plan {
            profile: name.clone(),
            error,
        })?;
        let tried = launch::probe(spawner, walls, sandbox::limits_of(profile)).await;
        if let Err(error) = tried {
            let own = |need: &&Need| need.profile.as_deref() == Some(&name);
            let own: Vec<Need> = needs.iter().filter(own).cloned().collect();
            let rows = look(config, uids, &own).await?;
            lacking(&rows)?;
            return Err(Unready::Lacks(Lacks {
                rows: vec![failed(&name, &error)],
            }));
        }
    }
    Ok(())
}

fn lacking(rows: &[Row]) -> Result<(), Unready> {
    let rows = doctor::unmet(rows);
    if rows.is_empty() {
        Ok(())
    } else {
        Err(Unready::Lacks(Lacks { rows }))
    }
}

fn ids(uids: Option<&SlotUids>, profile: &Sandbox) -> Ids {
    match uids.and_then(|uids| uids.uid(profile.demands.uid_range, 0)) {
        Some(slot_uid) => Ids::Root { slot_uid },
        None => own_ids(),
    }
}

/// Looks for what is needed.
async fn look(
    config: &Config,
    uids: Option<&SlotUids>,
    needs: &[Need],
) -> Result<Vec<Row>, Unready> {
    let Some((_, profile)) = walled(config).next() else {
        return Ok(Vec::new());
    };
    let asking = Asking {
        ids: ids(uids, profile),
        slots: u32::from(config.supervisor.max_children),
    };
    let mut asked: Vec<Asked> = Vec::new();
    for need in needs {
        if !asked.contains(&need.what) {
            asked.push(need.what.clone());
        }
    }
    let looked = tokio::task::spawn_blocking(move || doctor::probe(Path::new(OWN), asking, &asked));
    let found = looked.await.map_err(|_| Unready::NotLooked)?;
    Ok(doctor::judge(needs, found))
}

/// Notes in each profile what it goes without.
fn go_without(config: &mut Config, needs: &[Need], rows: &[Row]) {
    for row in rows.iter().filter(|row| row.verdict == Verdict::Degraded) {
        let unmet = needs
            .iter()
            .filter(|need| need.what == row.what && !row.found.meets(need.least));
        for (need, word) in unmet.filter_map(|need| Some((need, need.may_lack?))) {
            let Some(name) = &need.profile else { continue };
            let Some(profile) = config.sandboxes.get_mut(name) else {
                continue;
            };
            profile.goes_without(word, row.found.count);
            tracing::warn!(
                profile = name,
                feature = word.word(),
                found = row.found.said,
                "the sandbox goes without what this host has not (on_missing = \"degrade\")"
            );
        }
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
            hint: failure.and_then(|failure| failure.hint()).map(str::to_owned),
            ..Found::unknown()
        },
        degraded: None,
    }
}
