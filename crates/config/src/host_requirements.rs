//! What a profile requires of its host beyond its keys' values: what may be missing, and the uids
//! of its agents.
//!
//! `on_missing`, `allow_degrade`, `uid_per_slot`, `limits_held` and `uid_range` of `[sandbox.NAME]`. Must not know
//! what a host has.

use std::fmt;

use super::error::{one_of, quote};
use super::table::{Located, Section, keywords};
use marshal_model::string_enum;

string_enum!(
    /// What follows when a host lacks something that a profile needs.
    #[derive(Default)]
    OnMissing {
        /// The fleet does not start.
        #[default]
        Fail = "fail",
        /// It starts without what `allow_degrade` names; anything else still stops it.
        Degrade = "degrade",
    }
);

string_enum!(
    /// What may be missing for a profile that allows it. The set is closed on purpose: the other
    /// layers of the sandbox depend on everything that is not in it.
    Degradable {
        /// Landlock, or the version of it that the profile names.
        Landlock = "landlock",
        /// The limit of memory and swap by a cgroup.
        Memory = "cgroup.memory",
        /// The limit of processes by a cgroup.
        Pids = "cgroup.pids",
        /// The limit of CPU time by a cgroup.
        Cpu = "cgroup.cpu",
    }
);

keywords!(OnMissing);

/// What can never be missing, and why.
const NOT_DEGRADABLE: &[(&str, &str)] = &[
    (
        "uid",
        "agents with the same uid could reach each other's files and processes",
    ),
    (
        "user",
        "without a user namespace an agent has rights on this host",
    ),
    (
        "mount",
        "without a mount namespace an agent sees the host's files",
    ),
    (
        "pid",
        "without a pid namespace nothing can end all of an agent's processes",
    ),
    (
        "net",
        "without a network namespace an agent reaches what the host reaches; to allow that, set network = \"host\"",
    ),
    (
        "ipc",
        "without an ipc namespace an agent reaches the host's shared memory",
    ),
    ("uts", "the namespaces are made together"),
    (
        "cgroup",
        "the namespaces are made together; limits are cgroup.memory, cgroup.pids and cgroup.cpu",
    ),
    (
        "seccomp",
        "the other layers of the sandbox rely on the calls that it refuses; to run without it, set seccomp = \"off\" in the profile",
    ),
    (
        "caps",
        "with capabilities an agent could undo the other layers of the sandbox",
    ),
    (
        "no_new_privs",
        "without it a set-uid program could undo the other layers of the sandbox",
    ),
    (
        "pivot_root",
        "without it the host's files stay within reach",
    ),
];

/// What a profile requires of its host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostRequirements {
    /// What follows when something is missing.
    pub on_missing: OnMissing,
    /// What may be missing, with [`OnMissing::Degrade`]; otherwise empty.
    pub allow_degrade: Vec<Degradable>,
    /// Whether every slot must have a uid of its own on the host.
    pub uid_per_slot: bool,
    /// Whether something must enforce every limit of the profile.
    pub limits_held: bool,
    /// The uids that a root supervisor assigns to slots.
    pub uid_range: UidRange,
    /// What is missing on this host; empty until the host was probed.
    pub missing: Vec<Degradable>,
}

impl HostRequirements {
    /// Whether this may be missing.
    #[must_use]
    pub fn may_degrade(&self, what: Degradable) -> bool {
        self.on_missing == OnMissing::Degrade && self.allow_degrade.contains(&what)
    }
}

/// The source of uids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum UidRange {
    /// The entry `marshal` of /etc/subuid, otherwise uids above all assigned ranges.
    #[default]
    Auto,
    /// This range, which nobody else may use.
    Ids {
        /// The first, from 1000.
        first: u32,
        /// The last, not below the first, at most 2147483647.
        last: u32,
    },
}

impl UidRange {
    /// Parses the displayed form without checking bounds.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "auto" {
            return Some(Self::Auto);
        }
        let (first, last) = text.split_once('-')?;
        Some(Self::Ids {
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        })
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Ids { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// The least uid of a range: those below belong to the system's accounts.
const MIN_UID: u32 = 1000;
/// The greatest: programs that take ids for signed numbers misread those beyond.
const MAX_UID: u32 = (1 << 31) - 1;
/// The JSON-schema pattern of `uid_range`.
const RANGE_PATTERN: &str = "^(auto|[0-9]{4,10}-[0-9]{4,10})$";
/// The JSON-schema pattern of a word of `allow_degrade`.
const DEGRADABLE_PATTERN: &str = "^(landlock|cgroup\\.memory|cgroup\\.pids|cgroup\\.cpu)$";

/// Reads the keys; `base` has the defaults.
pub(super) fn read(
    section: &Section<'_>,
    is_discovered: bool,
    base: HostRequirements,
) -> HostRequirements {
    let on_missing: Option<Located<OnMissing>> = section.keyword("on_missing", &[]);
    let listed = section.texts_like("allow_degrade", DEGRADABLE_PATTERN);
    let is_degrade = match &on_missing {
        Some(found) => found.value == OnMissing::Degrade,
        None => base.on_missing == OnMissing::Degrade,
    };
    let names_nothing = listed
        .as_ref()
        .map_or(base.allow_degrade.is_empty(), |list| list.value.is_empty());
    let allow_degrade = match listed {
        None => base.allow_degrade,
        Some(list) => {
            if !is_degrade && !list.value.is_empty() {
                let message = "allow_degrade has no effect without on_missing = \"degrade\"";
                section.diagnostics.report(&list.place, message, None);
            }
            let words = list.value.iter();
            words
                .filter_map(|found| parse_degradable(section, found))
                .collect()
        }
    };
    if let Some(found) = &on_missing
        && is_degrade
        && names_nothing
    {
        let message = "on_missing = \"degrade\" needs allow_degrade to name what may be missing";
        let words: Vec<_> = Degradable::ALL.iter().map(|word| word.as_str()).collect();
        let help = Some(format!("for example allow_degrade = [{}]", quote(words[0])));
        section.diagnostics.report(&found.place, message, help);
    }
    let uid_per_slot = section.boolean("uid_per_slot");
    let limits_held = section.boolean("limits_held");
    HostRequirements {
        on_missing: on_missing.map_or(base.on_missing, |found| found.value),
        allow_degrade: dedup(allow_degrade),
        uid_per_slot: uid_per_slot.map_or(base.uid_per_slot, |found| found.value),
        limits_held: limits_held.map_or(base.limits_held, |found| found.value),
        uid_range: read_uid_range(section, is_discovered).unwrap_or(base.uid_range),
        missing: Vec::new(),
    }
}

fn dedup(words: Vec<Degradable>) -> Vec<Degradable> {
    let mut unique: Vec<Degradable> = Vec::new();
    for word in words {
        if !unique.contains(&word) {
            unique.push(word);
        }
    }
    unique
}

fn parse_degradable(section: &Section<'_>, found: &Located<String>) -> Option<Degradable> {
    let known = Degradable::parse(&found.value);
    if known.is_none() {
        let never = NOT_DEGRADABLE.iter().find(|(word, _)| *word == found.value);
        let words: Vec<_> = Degradable::ALL.iter().map(|word| word.as_str()).collect();
        let message = match never {
            Some((word, why)) => format!("{} can never be left out: {why}", quote(word)),
            None => format!("expected {}, found {}", one_of(&words), quote(&found.value)),
        };
        section.diagnostics.report(&found.place, message, None);
    }
    known
}

fn read_uid_range(section: &Section<'_>, is_discovered: bool) -> Option<UidRange> {
    let found = section.get("uid_range")?.text_like(RANGE_PATTERN)?;
    let range = UidRange::parse(&found.value);
    let message = match range {
        Some(UidRange::Auto) => return range,
        _ if is_discovered => {
            "a discovered supervisor.toml may not choose the uids of its agents; `marshal trust` says that you trust the file as it is; or name it with --config".to_owned()
        }
        Some(UidRange::Ids { first, last })
            if (MIN_UID..=last).contains(&first) && last <= MAX_UID =>
        {
            return range;
        }
        Some(_) => format!(
            "a range of uids begins at {MIN_UID} or above, ends at {MAX_UID} or below, and its first is not above its last, found {}",
            quote(&found.value)
        ),
        None => format!(
            "expected \"auto\" or FIRST-LAST, such as \"700000-700063\", found {}",
            quote(&found.value)
        ),
    };
    section.diagnostics.report(&found.place, message, None);
    None
}

impl super::Sandbox {
    /// Removes what the host lacks, or lowers it to the host's level.
    pub fn degrade(&mut self, what: Degradable) {
        if what == Degradable::Landlock {
            // The highest ABI of this host, 0 if it has no Landlock.
            self.landlock_min_abi = 0;
        }
        if !self.requirements.missing.contains(&what) {
            self.requirements.missing.push(what);
        }
    }
}
