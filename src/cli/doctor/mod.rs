//! `marshal doctor`: which features this host has, who needs them, and which are missing. The same
//! table is shown when a fleet cannot start.
//!
//! Must not know how a feature is probed.

mod installation;
mod limits;
mod needs;
pub(super) mod preflight;
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use super::exit::Exit;
use super::streams::Streams;
use marshal_config::Config;
use marshal_sandbox::HostIds;
use marshal_sandbox::doctor::{
    self, CheckStatus, Feature, FeatureQuery, ProbeContext, Requirement, Row,
};
use marshal_sandbox::uids::{self, LockedBlock, Sources};

/// This program's own file, for starting its helpers.
const OWN: &str = "/proc/self/exe";

/// The uid for probes if no block of uids can be locked: "nobody".
const NOBODY: u32 = 65_534;

/// After so many days `doctor` warns of the age of the built-in prices.
const PRICES_DAYS: i64 = 90;

/// Probes the host and prints the table; `only` limits it to one profile.
pub(super) fn run(
    config: &Config,
    state: &Path,
    only: Option<&str>,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    if let Some(name) = only
        && !config.sandboxes.contains_key(name)
    {
        let names: Vec<&str> = config.sandboxes.keys().map(String::as_str).collect();
        let name = marshal_model::untrusted::escape_for_display(name, 40);
        streams.err.line(&format!(
            "error: there is no profile {name}; the profiles are {}",
            names.join(", ")
        ));
        return Exit::Usage;
    }
    let Assessment {
        needs,
        rows,
        profiles,
    } = assess(config, state, only);
    let weaknesses = installation::Installation::own().weaknesses();
    if json {
        for row in &rows {
            streams.out.json(&table::json(row).to_string());
        }
        for profile in &profiles {
            streams.out.json(&profile.json().to_string());
        }
        for (kind, weaker) in weaknesses {
            let line = serde_json::json!({"installation": kind, "weaker": weaker});
            streams.out.json(&line.to_string());
        }
    } else {
        streams.out.text(&table::render(&rows, streams.width));
        for profile in &profiles {
            streams.out.line(&profile.line());
        }
        for (kind, weaker) in weaknesses {
            streams.out.line(&format!("{kind}: {weaker}"));
        }
        if let Some(days) = prices_age(jiff::Timestamp::now()).filter(|days| *days > PRICES_DAYS) {
            let read = marshal_config::built_in_prices_date();
            let text = format!(
                "warning: the built-in prices of models are of {read}, {days} days old: update marshal, or set [price.\"MODEL\"]"
            );
            streams.err.line(&text);
        }
    }
    let pools = rows.iter().any(|row| {
        let of_pools = |need: &&Requirement| need.profile.is_none() && need.query == row.query;
        row.status == CheckStatus::Missing && needs.iter().any(|need| of_pools(&need))
    });
    let is_unmet = profiles
        .iter()
        .any(|profile| profile.counts && !profile.missing.is_empty());
    if is_unmet || pools {
        Exit::Failures
    } else {
        Exit::Done
    }
}

/// How many days the built-in prices are old.
fn prices_age(now: jiff::Timestamp) -> Option<i64> {
    let read: jiff::civil::Date = marshal_config::built_in_prices_date().parse().ok()?;
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    Some(i64::from((today - read).get_days()))
}

/// What the profiles need, and what this host has.
struct Assessment {
    needs: Vec<Requirement>,
    rows: Vec<Row>,
    profiles: Vec<Profile>,
}

fn assess(config: &Config, state: &Path, only: Option<&str>) -> Assessment {
    let state = state.to_string_lossy();
    let mut needs = needs::of_all(config, &state, only);
    let (ids, _held) = probe_ids();
    let asking = ProbeContext {
        ids,
        slots: u32::from(config.supervisor.max_children),
    };
    let queries = all_queries(&needs, config, &state);
    let mut found = doctor::probe(Path::new(OWN), asking, &queries);
    needs.extend(limits::needs_of_all(config, only));
    found.extend(limits::probe_limits());
    found.sort_by_key(|(query, _)| query.feature);
    let rows = doctor::evaluate(&needs, found);
    let profiles = profiles(config, only, &needs, &rows);
    Assessment {
        needs,
        rows,
        profiles,
    }
}

/// What a profile needs and this host does not have.
pub(super) fn missing(config: &Config, state: &Path, profile: &str) -> Vec<&'static str> {
    let assessed = assess(config, state, Some(profile));
    let profiles = assessed.profiles.into_iter();
    profiles.flat_map(|profile| profile.missing).collect()
}

/// Every feature that can be probed, in the order of the table.
fn all_queries(needs: &[Requirement], config: &Config, state: &str) -> Vec<FeatureQuery> {
    let mut queries: Vec<FeatureQuery> = Vec::new();
    for feature in Feature::ALL.iter().copied() {
        let at = match feature {
            Feature::Sandbox => continue,
            // Probed in `limits`.
            feature if limits::FEATURES.contains(&feature) => continue,
            Feature::IdmapState | Feature::ProjectQuota => vec![state.to_owned()],
            Feature::IdmapWorkspace => needs::workspaces(config),
            _ => Vec::new(),
        };
        let of_needs = needs
            .iter()
            .filter(|need| need.query.feature == feature)
            .map(|need| need.query.clone());
        let own = at.into_iter().map(|at| FeatureQuery {
            feature,
            at: Some(at),
        });
        let mut all: Vec<FeatureQuery> = of_needs.chain(own).collect();
        if all.is_empty() && feature != Feature::IdmapWorkspace {
            all.push(FeatureQuery { feature, at: None });
        }
        for one in all {
            if !queries.contains(&one) {
                queries.push(one);
            }
        }
    }
    queries
}

/// The ids that agents would have: for root, a uid that no user has.
pub(super) fn probe_ids() -> (HostIds, Option<LockedBlock>) {
    if !rustix::process::geteuid().is_root() {
        return (own_ids(), None);
    }
    let block = uids::acquire(&Sources::host(), 1, marshal_config::UidRange::Auto).ok();
    let slot_uid = block.as_ref().map_or(NOBODY, |locked| locked.block().first);
    (HostIds::Root { slot_uid }, block)
}

/// The ids of the caller.
pub(super) fn own_ids() -> HostIds {
    HostIds::Own {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// Whether this host can provide a profile.
struct Profile {
    name: String,
    /// Whether a pool uses it or `--profile` names it: only then the exit code counts it.
    counts: bool,
    missing: BTreeSet<&'static str>,
    degraded: BTreeSet<&'static str>,
}

impl Profile {
    fn line(&self) -> String {
        let list = |words: &BTreeSet<&str>| words.iter().copied().collect::<Vec<_>>().join(", ");
        let mut parts = vec![if self.missing.is_empty() {
            format!("profile {}: available on this host", self.name)
        } else {
            let missing = list(&self.missing);
            format!(
                "profile {}: not available on this host, missing {missing}",
                self.name
            )
        }];
        if !self.degraded.is_empty() {
            parts.push(format!("runs without {}", list(&self.degraded)));
        }
        if !self.counts {
            parts.push("no pool uses it".to_owned());
        }
        parts.join("; ")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "profile": self.name,
            "in_use": self.counts,
            "can_be_had": self.missing.is_empty(),
            "missing": self.missing,
            "degraded": self.degraded,
        })
    }
}

fn profiles(
    config: &Config,
    only: Option<&str>,
    needs: &[Requirement],
    rows: &[Row],
) -> Vec<Profile> {
    let used: BTreeSet<&str> = preflight::sandboxed_profiles(config)
        .map(|(name, _)| name)
        .collect();
    let names = config.sandboxes.keys().map(String::as_str);
    names
        .filter(|name| only.is_none_or(|only| only == *name))
        .map(|name| {
            let mut profile = Profile {
                name: name.to_owned(),
                counts: only.is_some() || used.contains(name),
                missing: BTreeSet::new(),
                degraded: BTreeSet::new(),
            };
            let own = needs
                .iter()
                .filter(|need| need.profile.as_deref() == Some(name));
            for need in own {
                let row = rows.iter().find(|row| row.query == need.query);
                let is_met = row.is_some_and(|row| row.result.meets(need.least));
                let word = need.query.feature.as_str();
                match (is_met, need.may_degrade) {
                    (true, _) => {}
                    (false, Some(_)) => {
                        profile.degraded.insert(word);
                    }
                    (false, None) => {
                        profile.missing.insert(word);
                    }
                }
            }
            profile
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_the_prices_is_counted_in_days() {
        let read = marshal_config::built_in_prices_date();
        let at: jiff::Timestamp = format!("{read}T12:00:00Z").parse().expect("a time");
        assert_eq!(prices_age(at), Some(0));
        let later = at + jiff::SignedDuration::from_hours(24 * 91);
        assert!(prices_age(later).is_some_and(|days| days > PRICES_DAYS));
    }
}
