//! What a profile demands of its host beyond its keys' values: what it may do without, and whose
//! ids its agents have.
//!
//! `on_missing`, `allow_degrade`, `uid_per_slot`, `limits_held` and `uid_range` of `[sandbox.NAME]`. Must not know
//! what a host has.

use std::fmt;

use super::error::{one_of, quote};
use super::table::{Located, Section, word};
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
    /// What a profile may do without, if it says so. Closed on purpose: what is not in it is what
    /// the other walls stand on.
    Degradable {
        /// Landlock, or the version of it that the profile names.
        Landlock = "landlock",
        /// The bound of memory and swap by a cgroup.
        Memory = "cgroup.memory",
        /// The bound of processes by a cgroup.
        Pids = "cgroup.pids",
        /// The bound of processor time by a cgroup.
        Cpu = "cgroup.cpu",
    }
);

word!(OnMissing);

/// What can never be done without, and why.
const NOT_DEGRADABLE: &[(&str, &str)] = &[
    (
        "uid",
        "an agent with another's uid reaches what is the other's",
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
        "without a pid namespace nothing ends all of an agent's processes",
    ),
    (
        "net",
        "without a network namespace an agent reaches what the host reaches; if that is meant, say network = \"host\"",
    ),
    (
        "ipc",
        "without a namespace of its own an agent reaches the host's shared memory",
    ),
    ("uts", "the namespaces are made together"),
    (
        "cgroup",
        "the namespaces are made together; limits are cgroup.memory, cgroup.pids and cgroup.cpu",
    ),
    (
        "seccomp",
        "the other walls are built on what it refuses; a profile that is meant without it says seccomp = \"off\"",
    ),
    (
        "caps",
        "with capabilities an agent takes the other walls down",
    ),
    (
        "no_new_privs",
        "without it a set-uid program undoes the other walls",
    ),
    (
        "pivot_root",
        "without it the host's files stay within reach",
    ),
];

/// What a profile demands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostRequirements {
    /// What follows when something is missing.
    pub on_missing: OnMissing,
    /// What may be missing, with [`OnMissing::Degrade`]; else empty.
    pub allow_degrade: Vec<Degradable>,
    /// Whether every slot must have a uid of its own on the host.
    pub uid_per_slot: bool,
    /// Whether every limit of the profile must be held by something.
    pub limits_held: bool,
    /// Where a root supervisor takes the slots' uids from.
    pub uid_range: UidRange,
    /// What it does without on this host; empty in a configuration as it was read.
    pub missing: Vec<Degradable>,
}

impl HostRequirements {
    /// Whether the profile may do without this.
    #[must_use]
    pub fn may_degrade(&self, what: Degradable) -> bool {
        self.on_missing == OnMissing::Degrade && self.allow_degrade.contains(&what)
    }
}

/// Where uids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum UidRange {
    /// The entry `marshal` of /etc/subuid, else above all that is given away.
    #[default]
    Auto,
    /// These, which nobody else may have.
    Ids {
        /// The first, from 1000.
        first: u32,
        /// The last, not below the first, at most 2147483647.
        last: u32,
    },
}

impl UidRange {
    /// Reads what it is shown as; bounds are not looked at.
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
/// What the schema says of `uid_range`.
const RANGE_PATTERN: &str = "^(auto|[0-9]{4,10}-[0-9]{4,10})$";
/// What the schema says of a word of `allow_degrade`.
const DEGRADABLE_PATTERN: &str = "^(landlock|cgroup\\.memory|cgroup\\.pids|cgroup\\.cpu)$";

/// Reads the keys; `base` is what holds without them.
pub(super) fn read(
    section: &Section<'_>,
    is_found: bool,
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
                let message = "allow_degrade does nothing without on_missing = \"degrade\"";
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
        let words: Vec<_> = Degradable::ALL.iter().map(|word| word.word()).collect();
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
        uid_range: read_uid_range(section, is_found).unwrap_or(base.uid_range),
        missing: Vec::new(),
    }
}

fn dedup(words: Vec<Degradable>) -> Vec<Degradable> {
    let mut kept: Vec<Degradable> = Vec::new();
    for word in words {
        if !kept.contains(&word) {
            kept.push(word);
        }
    }
    kept
}

fn parse_degradable(section: &Section<'_>, found: &Located<String>) -> Option<Degradable> {
    let known = Degradable::from_word(&found.value);
    if known.is_none() {
        let never = NOT_DEGRADABLE.iter().find(|(word, _)| *word == found.value);
        let words: Vec<_> = Degradable::ALL.iter().map(|word| word.word()).collect();
        let message = match never {
            Some((word, why)) => format!("{} can never be done without: {why}", quote(word)),
            None => format!("expected {}, found {}", one_of(&words), quote(&found.value)),
        };
        section.diagnostics.report(&found.place, message, None);
    }
    known
}

fn read_uid_range(section: &Section<'_>, is_found: bool) -> Option<UidRange> {
    let found = section.get("uid_range")?.text_like(RANGE_PATTERN)?;
    let range = UidRange::parse(&found.value);
    let message = match range {
        Some(UidRange::Auto) => return range,
        _ if is_found => {
            "a supervisor.toml that was found may not choose the uids of its agents; name the file with --config if you trust it".to_owned()
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
    /// Takes out what the host has not, or lowers it to what there is.
    pub fn degrade(&mut self, what: Degradable) {
        if what == Degradable::Landlock {
            // The highest that there is, also if that is none.
            self.landlock_min_abi = 0;
        }
        if !self.requirements.missing.contains(&what) {
            self.requirements.missing.push(what);
        }
    }
}
