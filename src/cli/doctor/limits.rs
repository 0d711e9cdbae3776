//! The limits of children as rows of the table: what enforces each one, and who needs it.
//!
//! `launch::cgroup` enforces them and finds out what this host supports.

use marshal_config::{Config, Degradable, Sandbox};
use marshal_launch::cgroup::{self, Enforcement, LimitEnforcement};
use marshal_sandbox::doctor::{CheckStatus, Feature, FeatureQuery, ProbeResult, Requirement, Row};

/// The features that this module probes.
pub(super) const FEATURES: &[Feature] = &[
    Feature::CgroupKill,
    Feature::CgroupMemory,
    Feature::CgroupPids,
    Feature::CgroupCpu,
];

fn feature_query(feature: Feature) -> FeatureQuery {
    FeatureQuery { feature, at: None }
}

/// What a profile needs. The number of processes is limited without cgroups too.
pub(super) fn needs(name: &str, profile: &Sandbox) -> Vec<Requirement> {
    let limits = &profile.group_limits;
    let wanted = [
        (limits.memory.is_some(), Degradable::Memory),
        (limits.cpu_millis.is_some(), Degradable::Cpu),
    ]
    .into_iter()
    .filter(|(is_wanted, _)| *is_wanted);
    wanted
        .filter_map(|(_, word)| {
            let may_lack =
                !profile.requirements.limits_held || profile.requirements.may_degrade(word);
            Some(Requirement {
                query: feature_query(Feature::parse(word.as_str())?),
                least: 0,
                required_by: format!("{name}: limits"),
                profile: Some(name.to_owned()),
                may_degrade: may_lack.then_some(word),
            })
        })
        .collect()
}

/// What all profiles need, or only the profile `only`.
pub(super) fn needs_of_all(config: &Config, only: Option<&str>) -> Vec<Requirement> {
    let profiles = config.sandboxes.iter();
    profiles
        .filter(|(name, _)| only.is_none_or(|only| only == *name))
        .flat_map(|(name, profile)| needs(name, profile))
        .collect()
}

/// What this host supports.
pub(super) fn probe_limits() -> Vec<(FeatureQuery, ProbeResult)> {
    let findings = cgroup::survey();
    FEATURES
        .iter()
        .map(|feature| {
            let finding = findings.iter().find(|one| one.feature == feature.as_str());
            let found = finding.map_or_else(ProbeResult::unknown, |finding| ProbeResult {
                has: !matches!(finding.enforcement, Enforcement::Unenforced),
                detail: match &finding.why {
                    Some(why) => format!("{}; {why}", finding.enforcement),
                    None => finding.enforcement.to_string(),
                },
                hint: finding.hint.map(str::to_owned),
                ..ProbeResult::unknown()
            });
            (feature_query(*feature), found)
        })
        .collect()
}

/// The limits that nothing enforces: rows for those that the profile requires, and words for those
/// that it may lack.
pub(super) fn unenforced_limits(
    name: &str,
    profile: &Sandbox,
    enforcement: &LimitEnforcement,
) -> (Vec<Row>, Vec<Degradable>) {
    let mut rows = Vec::new();
    let mut without = Vec::new();
    for limit in enforcement.missing() {
        let word = match limit {
            "pids" => Degradable::Pids,
            "cpu" => Degradable::Cpu,
            // The swap limit is part of the memory limit.
            _ => Degradable::Memory,
        };
        if !profile.requirements.limits_held || profile.requirements.may_degrade(word) {
            if !without.contains(&word) {
                without.push(word);
            }
            continue;
        }
        let Some(feature) = Feature::parse(word.as_str()) else {
            continue;
        };
        rows.push(Row {
            query: feature_query(feature),
            required_by: vec![format!("{name}: limits_held")],
            status: CheckStatus::Missing,
            result: ProbeResult {
                detail: format!(
                    "{limit}: {}",
                    enforcement.why.as_deref().unwrap_or("not enforced")
                ),
                hint: Some(
                    "run marshal as a systemd service with Delegate=yes, or add the limit to \
                    allow_degrade"
                        .to_owned(),
                ),
                ..ProbeResult::unknown()
            },
            degraded: None,
        });
    }
    (rows, without)
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::OnMissing;
    use marshal_model::ResourceLimits;

    #[test]
    fn each_limit_that_nothing_holds_is_missing_unless_the_profile_may_lack_it() {
        let limits = ResourceLimits {
            pids: Some(1),
            memory: Some(1),
            cpu_millis: Some(1),
            ..ResourceLimits::NONE
        };
        let enforcement = cgroup::Groups::container_enforcement(&limits, Some("no groups"), false)
            .expect("nothing is held");
        assert_eq!(enforcement.missing(), ["pids", "memory", "cpu"]);
        let mut profile = Config::parse(
            marshal_config::DEFAULT,
            &marshal_config::Origin::built_in("/".into()),
        )
        .expect("the shipped file")
        .sandboxes
        .remove("strict")
        .expect("strict");
        let words = [Degradable::Pids, Degradable::Memory, Degradable::Cpu];
        let (rows, without) = unenforced_limits("strict", &profile, &enforcement);
        let names: Vec<&str> = rows.iter().map(|row| row.query.feature.as_str()).collect();
        assert_eq!(names, ["cgroup.pids", "cgroup.memory", "cgroup.cpu"]);
        assert!(rows.iter().all(|row| row.status == CheckStatus::Missing));
        assert_eq!(without, []);
        for word in words {
            profile.requirements.on_missing = OnMissing::Degrade;
            profile.requirements.allow_degrade = vec![word];
            let (rows, without) = unenforced_limits("strict", &profile, &enforcement);
            assert_eq!((rows.len(), without), (2, vec![word]), "{word}");
            assert!(
                rows.iter()
                    .all(|row| row.query.feature.as_str() != word.as_str())
            );
        }
        profile.requirements.limits_held = false;
        profile.requirements.allow_degrade.clear();
        assert_eq!(
            unenforced_limits("strict", &profile, &enforcement),
            (Vec::new(), words.to_vec())
        );
    }
}
