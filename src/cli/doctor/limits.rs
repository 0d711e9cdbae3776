//! Limits of children as a whole, as the table tells them: what would hold each, and who needs it.
//!
//! What holds them is found out by `launch::cgroup`, where they are held.

use crate::config::{Config, Degradable, Sandbox};
use crate::launch::cgroup::{self, By, Held};
use crate::sandbox::doctor::{Asked, Feature, Found, Need, Row, Verdict};

/// The features whose answers come from here.
pub(super) const FEATURES: &[Feature] = &[
    Feature::CgroupKill,
    Feature::CgroupMemory,
    Feature::CgroupPids,
    Feature::CgroupCpu,
];

fn asked(feature: Feature) -> Asked {
    Asked { feature, at: None }
}

/// What a profile needs. Processes are held without groups too.
pub(super) fn needs(name: &str, profile: &Sandbox) -> Vec<Need> {
    let limits = &profile.group;
    let wanted = [
        (limits.memory.is_some(), Degradable::Memory),
        (limits.cpu_millis.is_some(), Degradable::Cpu),
    ];
    let wanted = wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
    wanted
        .filter_map(|(_, word)| {
            let may_lack = !profile.demands.limits_held || profile.demands.may_lack(word);
            Some(Need {
                what: asked(Feature::from_word(word.word())?),
                least: 0,
                by: format!("{name}: limits"),
                profile: Some(name.to_owned()),
                may_lack: may_lack.then_some(word),
            })
        })
        .collect()
}

/// What all profiles need, or only the profile `only`.
pub(super) fn needs_of_all(config: &Config, only: Option<&str>) -> Vec<Need> {
    let profiles = config.sandboxes.iter();
    profiles
        .filter(|(name, _)| only.is_none_or(|only| only == *name))
        .flat_map(|(name, profile)| needs(name, profile))
        .collect()
}

/// What this host gives.
pub(super) fn found() -> Vec<(Asked, Found)> {
    let findings = cgroup::survey();
    FEATURES
        .iter()
        .map(|feature| {
            let finding = findings.iter().find(|one| one.feature == feature.word());
            let found = finding.map_or_else(Found::unknown, |finding| Found {
                has: !matches!(finding.by, By::Nothing),
                said: match &finding.why {
                    Some(why) => format!("{}; {why}", finding.by),
                    None => finding.by.to_string(),
                },
                hint: finding.hint.map(str::to_owned),
                ..Found::unknown()
            });
            (asked(*feature), found)
        })
        .collect()
}

/// Of limits that nothing holds: what a profile cannot do without, and what it does without.
pub(super) fn unheld(name: &str, profile: &Sandbox, held: &Held) -> (Vec<Row>, Vec<Degradable>) {
    let mut rows = Vec::new();
    let mut without = Vec::new();
    for limit in held.missing() {
        let word = match limit {
            "pids" => Degradable::Pids,
            "cpu" => Degradable::Cpu,
            // Swap is part of the memory's.
            _ => Degradable::Memory,
        };
        if !profile.demands.limits_held || profile.demands.may_lack(word) {
            if !without.contains(&word) {
                without.push(word);
            }
            continue;
        }
        let Some(feature) = Feature::from_word(word.word()) else {
            continue;
        };
        rows.push(Row {
            what: asked(feature),
            needed_by: vec![format!("{name}: limits_held")],
            verdict: Verdict::Missing,
            found: Found {
                said: format!("{limit}: {}", held.why.as_deref().unwrap_or("not held")),
                hint: Some(
                    "run marshal as a service of systemd with Delegate=yes, or name it in \
                     allow_degrade"
                        .to_owned(),
                ),
                ..Found::unknown()
            },
            degraded: None,
        });
    }
    (rows, without)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OnMissing;
    use crate::model::GroupLimits;

    #[test]
    fn each_limit_that_nothing_holds_is_missing_unless_the_profile_may_lack_it() {
        let limits = GroupLimits {
            pids: Some(1),
            memory: Some(1),
            cpu_millis: Some(1),
            ..GroupLimits::NONE
        };
        let held = cgroup::Groups::of_container(&limits, Some("no groups"), false)
            .expect("nothing is held");
        assert_eq!(held.missing(), ["pids", "memory", "cpu"]);
        let mut profile = Config::parse(
            crate::config::DEFAULT,
            &crate::config::Origin::built_in("/".into()),
        )
        .expect("the shipped file")
        .sandboxes
        .remove("strict")
        .expect("strict");
        let words = [Degradable::Pids, Degradable::Memory, Degradable::Cpu];
        let (rows, without) = unheld("strict", &profile, &held);
        let names: Vec<&str> = rows.iter().map(|row| row.what.feature.word()).collect();
        assert_eq!(names, ["cgroup.pids", "cgroup.memory", "cgroup.cpu"]);
        assert!(rows.iter().all(|row| row.verdict == Verdict::Missing));
        assert_eq!(without, []);
        for word in words {
            profile.demands.on_missing = OnMissing::Degrade;
            profile.demands.allow_degrade = vec![word];
            let (rows, without) = unheld("strict", &profile, &held);
            assert_eq!((rows.len(), without), (2, vec![word]), "{word}");
            assert!(
                rows.iter()
                    .all(|row| row.what.feature.word() != word.word())
            );
        }
        profile.demands.limits_held = false;
        profile.demands.allow_degrade.clear();
        assert_eq!(
            unheld("strict", &profile, &held),
            (Vec::new(), words.to_vec())
        );
    }
}
