//! What a profile requires of a host, and what a host lacks of it. Pure.

use super::Feature;
use super::probe::{FeatureQuery, ProbeResult};
use marshal_config::{Degradable, ProcMode, Sandbox, Seccomp, UidRange};
use marshal_model::string_enum;

/// The lowest Landlock ABI in use: ABI 1 forbids moving a file to another directory.
pub const MIN_LANDLOCK_ABI: u8 = 2;
/// The first Landlock ABI with rules for TCP ports.
pub const LANDLOCK_NET: u8 = 4;
/// The first Landlock ABI that restricts abstract sockets and signals.
pub const LANDLOCK_SCOPE: u8 = 6;

/// One requirement of a profile or pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The required feature, and the object it is needed on.
    pub query: FeatureQuery,
    /// The required amount, where it is counted: a Landlock ABI, a number of uids or of open files.
    pub least: u64,
    /// The profile or pool, and the key that requires it: `strict`, `strict: uid_per_slot`.
    pub required_by: String,
    /// The profile, if a profile requires it.
    pub profile: Option<String>,
    /// The `allow_degrade` entry that permits the profile to run without it, if any.
    pub may_degrade: Option<Degradable>,
}

string_enum!(
    /// The outcome of a check.
    CheckStatus {
        /// The feature is available.
        Ok = "ok",
        /// It is required and not available.
        Missing = "missing",
        /// It is not available, and every profile that requires it may run without it.
        Degraded = "degraded",
        /// It is not available, and nothing requires it.
        NotNeeded = "not needed",
    }
);

/// A row of the doctor's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The feature, and the object it was checked on.
    pub query: FeatureQuery,
    /// The profiles and pools that require it; empty if none does.
    pub required_by: Vec<String>,
    /// The outcome.
    pub status: CheckStatus,
    /// The probe's result.
    pub result: ProbeResult,
    /// The `allow_degrade` entry that was used.
    pub degraded: Option<Degradable>,
}

/// How a profile is used.
#[derive(Debug, Clone, Copy)]
pub struct ProfileContext<'a> {
    /// The profile's name.
    pub name: &'a str,
    /// The profile's settings.
    pub profile: &'a Sandbox,
    /// Whether agents have their own network namespace.
    pub own_network: bool,
    /// Whether the supervisor is root.
    pub is_root: bool,
    /// Number of slots that need a uid each.
    pub slots: u32,
    /// The state directory with homes and copies, if known.
    pub state: Option<&'a str>,
    /// A workspace that agents write directly.
    pub writable_workspace: Option<&'a str>,
}

/// What sandboxes of this profile require.
#[must_use]
pub fn requirements_of(of: &ProfileContext<'_>) -> Vec<Requirement> {
    let mut needs = Vec::new();
    let mut need = |feature: Feature, at: Option<&str>, least: u64| {
        needs.push(Requirement {
            query: FeatureQuery {
                feature,
                at: at.map(str::to_owned),
            },
            least,
            required_by: match profile_key(feature) {
                Some(key) => format!("{}: {key}", of.name),
                None => of.name.to_owned(),
            },
            profile: Some(of.name.to_owned()),
            may_degrade: None,
        });
    };
    for feature in [
        Feature::UserNs,
        Feature::MountNs,
        Feature::PidNs,
        Feature::IpcNs,
        Feature::UtsNs,
        Feature::CgroupNs,
        Feature::NoMoreUserNs,
        Feature::MountApi,
        Feature::TmpfsInodes,
        Feature::PivotRoot,
        Feature::NoNewPrivs,
        Feature::Caps,
    ] {
        need(feature, None, 0);
    }
    let proc = match of.profile.proc_mode {
        ProcMode::Pid => Feature::ProcPid,
        ProcMode::Masked => Feature::ProcFull,
    };
    need(proc, None, 0);
    if of.profile.seccomp != Seccomp::Off {
        need(Feature::Seccomp, None, 0);
    }
    if of.own_network {
        need(Feature::NetNs, None, 0);
        need(Feature::Loopback, None, 0);
    }
    if of.is_root {
        // A session's home moves with it to another slot or supervisor, so its owner must be
        // mapped.
        if of.state.is_some() {
            need(Feature::IdmapState, of.state, 0);
        }
        if of.writable_workspace.is_some() {
            need(Feature::IdmapWorkspace, of.writable_workspace, 0);
        }
    }
    // Root always needs separate uids; another user may share its own uid.
    if of.is_root || of.profile.requirements.uid_per_slot {
        let range = of.profile.requirements.uid_range;
        let range = (range != UidRange::Auto).then(|| range.to_string());
        need(Feature::UidPerSlot, range.as_deref(), u64::from(of.slots));
    }
    needs.push(landlock_requirement(of));
    if !of.own_network {
        needs.extend(host_network_requirements(of));
    }
    needs
}

/// With the host's network only Landlock keeps an agent from listening on ports and from abstract
/// sockets. `landlock_min_abi` sets the required ABI; what an older ABI lacks is reported.
fn host_network_requirements(of: &ProfileContext<'_>) -> [Requirement; 2] {
    let versions = [
        (Feature::LandlockNet, LANDLOCK_NET),
        (Feature::LandlockScope, LANDLOCK_SCOPE),
    ];
    versions.map(|(feature, least)| Requirement {
        query: FeatureQuery { feature, at: None },
        least: u64::from(least),
        required_by: format!("{}: network = \"host\"", of.name),
        profile: Some(of.name.to_owned()),
        may_degrade: Some(Degradable::Landlock),
    })
}

/// Without a required ABI, the highest available one is used, and the lack of any is reported.
fn landlock_requirement(of: &ProfileContext<'_>) -> Requirement {
    let least = of.profile.landlock_min_abi;
    let may_lack = least == 0 || of.profile.requirements.may_degrade(Degradable::Landlock);
    Requirement {
        query: FeatureQuery {
            feature: Feature::Landlock,
            at: None,
        },
        least: u64::from(least.max(MIN_LANDLOCK_ABI)),
        required_by: format!("{}: landlock_min_abi", of.name),
        profile: Some(of.name.to_owned()),
        may_degrade: may_lack.then_some(Degradable::Landlock),
    }
}

/// The key of the profile that requires a feature, where not every profile does.
const fn profile_key(feature: Feature) -> Option<&'static str> {
    match feature {
        Feature::ProcPid | Feature::ProcFull => Some("proc"),
        Feature::UidPerSlot => Some("uid_per_slot"),
        Feature::Loopback | Feature::NetNs => Some("network"),
        Feature::Seccomp => Some("seccomp"),
        _ => None,
    }
}

/// Compares requirements with results: a row for each probed feature, in that order. A requirement
/// without a result counts as missing.
#[must_use]
pub fn evaluate(needs: &[Requirement], found: Vec<(FeatureQuery, ProbeResult)>) -> Vec<Row> {
    let unprobed = needs
        .iter()
        .filter(|need| found.iter().all(|(other, _)| *other != need.query));
    let mut unprobed: Vec<_> = unprobed
        .map(|need| (need.query.clone(), ProbeResult::unknown()))
        .collect();
    unprobed.dedup_by(|a, b| a.0 == b.0);
    let rows = found.into_iter().chain(unprobed);
    rows.map(|(what, found)| {
        let of: Vec<&Requirement> = needs.iter().filter(|need| need.query == what).collect();
        let unmet: Vec<&&Requirement> = of.iter().filter(|need| !found.meets(need.least)).collect();
        let status = if !unmet.is_empty() {
            if unmet.iter().all(|need| need.may_degrade.is_some()) {
                CheckStatus::Degraded
            } else {
                CheckStatus::Missing
            }
        } else if found.has || what.feature.is_informational() {
            CheckStatus::Ok
        } else {
            CheckStatus::NotNeeded
        };
        let mut needed_by: Vec<String> = of.iter().map(|need| need.required_by.clone()).collect();
        needed_by.dedup();
        Row {
            degraded: unmet.iter().find_map(|need| need.may_degrade),
            required_by: needed_by,
            status,
            result: found,
            query: what,
        }
    })
    .collect()
}

/// The rows that prevent a fleet from starting.
#[must_use]
pub fn missing_rows(rows: &[Row]) -> Vec<Row> {
    let missing = rows.iter().filter(|row| row.status == CheckStatus::Missing);
    missing.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe_result(has: bool, count: u64) -> ProbeResult {
        ProbeResult {
            has,
            count,
            ..ProbeResult::unknown()
        }
    }

    fn query(feature: Feature) -> FeatureQuery {
        FeatureQuery { feature, at: None }
    }

    fn need(feature: Feature, least: u64, may_lack: Option<Degradable>) -> Requirement {
        Requirement {
            query: query(feature),
            least,
            required_by: "x".to_owned(),
            profile: Some("x".to_owned()),
            may_degrade: may_lack,
        }
    }

    fn verdict(needs: &[Requirement], has: ProbeResult) -> CheckStatus {
        let rows = evaluate(needs, vec![(query(Feature::Landlock), has)]);
        assert_eq!(rows.len(), 1);
        rows[0].status
    }

    #[test]
    fn a_need_is_met_missing_or_done_without() {
        let hard = [need(Feature::Landlock, 6, None)];
        let soft = [need(Feature::Landlock, 6, Some(Degradable::Landlock))];
        assert_eq!(verdict(&hard, probe_result(true, 6)), CheckStatus::Ok);
        assert_eq!(verdict(&hard, probe_result(true, 5)), CheckStatus::Missing);
        assert_eq!(verdict(&hard, probe_result(false, 0)), CheckStatus::Missing);
        assert_eq!(verdict(&soft, probe_result(true, 7)), CheckStatus::Ok);
        assert_eq!(verdict(&soft, probe_result(true, 5)), CheckStatus::Degraded);
        assert_eq!(verdict(&[], probe_result(false, 0)), CheckStatus::NotNeeded);
        assert_eq!(verdict(&[], probe_result(true, 0)), CheckStatus::Ok);
    }

    #[test]
    fn one_profile_that_cannot_do_without_decides() {
        let mut needs = vec![need(Feature::Landlock, 6, Some(Degradable::Landlock))];
        needs.push(Requirement {
            required_by: "y".to_owned(),
            ..need(Feature::Landlock, 6, None)
        });
        let rows = evaluate(
            &needs,
            vec![(query(Feature::Landlock), probe_result(true, 3))],
        );
        assert_eq!(rows[0].status, CheckStatus::Missing);
        assert_eq!(rows[0].required_by, ["x", "y"]);
        assert_eq!(missing_rows(&rows), rows);
    }

    #[test]
    fn a_need_that_nobody_looked_for_is_missing() {
        let rows = evaluate(&[need(Feature::PivotRoot, 0, None)], Vec::new());
        assert_eq!(rows[0].status, CheckStatus::Missing);
        assert_eq!(rows[0].query.feature, Feature::PivotRoot);
    }

    #[test]
    fn a_fact_is_never_missing() {
        let fact = query(Feature::LegacyTiocsti);
        let rows = evaluate(&[], vec![(fact, probe_result(false, 0))]);
        assert_eq!(rows[0].status, CheckStatus::Ok);
    }

    #[test]
    fn landlock_is_needed_as_the_profile_says() {
        let config = marshal_config::Config::parse(
            "[sandbox.own]\non_missing = \"degrade\"\nallow_degrade = [\"landlock\"]\n\
             landlock_min_abi = 4\n[pool.demo]\nagent = \"script\"\n",
            &marshal_config::Origin::built_in("/".into()),
        );
        let config = config.expect("good");
        let of = |name| {
            let need = landlock_requirement(&ProfileContext {
                name,
                profile: &config.sandboxes[name],
                own_network: true,
                is_root: false,
                slots: 1,
                state: None,
                writable_workspace: None,
            });
            (need.least, need.may_degrade)
        };
        assert_eq!(of("strict"), (6, None));
        assert_eq!(of("standard"), (2, Some(Degradable::Landlock)));
        assert_eq!(of("own"), (4, Some(Degradable::Landlock)));
    }

    #[test]
    fn the_hosts_network_makes_more_of_landlock_a_need_that_is_told_and_not_insisted_on() {
        let config = marshal_config::Config::parse(
            marshal_config::DEFAULT,
            &marshal_config::Origin::built_in("/".into()),
        )
        .expect("the built-in configuration");
        let rows = |own_network, abi: u64| {
            let needs = requirements_of(&ProfileContext {
                name: "standard",
                profile: &config.sandboxes["standard"],
                own_network,
                is_root: false,
                slots: 1,
                state: None,
                writable_workspace: None,
            });
            let of = [Feature::LandlockNet, Feature::LandlockScope];
            let has = |feature| abi >= u64::from(if feature == of[0] { 4_u8 } else { 6 });
            let found = of.map(|feature| (query(feature), probe_result(has(feature), abi)));
            let rows = evaluate(&needs, found.into())
                .into_iter()
                .filter(|row| of.contains(&row.query.feature));
            rows.map(|row| row.status).collect::<Vec<_>>()
        };
        assert_eq!(rows(false, 6), [CheckStatus::Ok, CheckStatus::Ok]);
        assert_eq!(rows(false, 5), [CheckStatus::Ok, CheckStatus::Degraded]);
        assert_eq!(
            rows(false, 3),
            [CheckStatus::Degraded, CheckStatus::Degraded]
        );
        assert_eq!(
            rows(true, 3),
            [CheckStatus::NotNeeded, CheckStatus::NotNeeded]
        );
    }

    #[test]
    fn a_root_supervisor_needs_more_than_anothers() {
        let config = marshal_config::Config::parse(
            marshal_config::DEFAULT,
            &marshal_config::Origin::built_in("/".into()),
        )
        .expect("the built-in configuration");
        let features = |name: &str, is_root| {
            let needs = requirements_of(&ProfileContext {
                name,
                profile: &config.sandboxes[name],
                own_network: true,
                is_root,
                slots: 4,
                state: Some("/state"),
                writable_workspace: None,
            });
            let features = needs.into_iter().map(|need| need.query.feature);
            features.collect::<Vec<_>>()
        };
        let root = features("standard", true);
        assert!(root.contains(&Feature::IdmapState) && root.contains(&Feature::UidPerSlot));
        let own = features("standard", false);
        assert!(!own.contains(&Feature::IdmapState) && !own.contains(&Feature::UidPerSlot));
        assert!(features("strict", false).contains(&Feature::UidPerSlot));
        for features in [root, own] {
            for layer in [
                Feature::UserNs,
                Feature::NetNs,
                Feature::PivotRoot,
                Feature::ProcPid,
            ] {
                assert!(features.contains(&layer), "{layer}");
            }
        }
    }
}
