//! `ask`: who is asked what the policy wants a person to decide, and for how long that holds.
//!
//! Must not know a clock, nor how people are reached.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::quote;
use super::table::{Diagnostics, Located, Place, Section, word};
use super::types::{OnCrash, Pool, RestartKind, SessionScope};
use marshal_model::limits;
use marshal_model::{OnTimeout, RememberScope, string_enum};

word!(OnTimeout, RememberScope, WhenWaiting);

string_enum!(
    /// What becomes of the child of a session that waits for a person.
    WhenWaiting {
        /// It waits, too.
        Hold = "hold",
        /// It is stopped; when the answer has come, the session is loaded again and its prompt is
        /// sent again.
        Release = "release",
    }
);

/// `approval = { … }`.
#[derive(Debug, Clone)]
pub struct ApprovalConfig {
    /// How long a person may take to answer.
    pub timeout: Duration,
    /// How long the agent waits for an answer; `None`: for ever.
    pub agent_waits: Option<Duration>,
    /// What follows when nobody answers: at once, where nobody can be asked.
    pub on_timeout: OnTimeout,
    /// What becomes of the child meanwhile.
    pub when_waiting: WhenWaiting,
    /// For how long an answer may hold at most.
    pub remember: RememberScope,
    /// Who may answer; nobody: nobody is asked.
    pub approvers: Vec<Approver>,
    /// How many asks of the pool wait at the same time, from 1; one more is denied.
    pub max_pending: usize,
}

/// Who may answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Approver {
    /// The supervisor's user and root, by the command line, and whoever has its own token.
    Owner,
    /// Whoever has the token of this name.
    Named(String),
}

/// The word for [`Approver::Owner`].
const OWNER: &str = "owner";

/// What the schema says of an approver.
pub(super) const PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";

impl Approver {
    /// From its name.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_name = (1..=32).contains(&name.len())
            && !name.starts_with('-')
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        match name {
            OWNER => Some(Self::Owner),
            _ => is_name.then(|| Self::Named(name.to_owned())),
        }
    }
}

impl fmt::Display for Approver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Owner => OWNER,
            Self::Named(name) => name,
        })
    }
}

/// Any time that is one: the shortest is what a timer can tell apart.
const ANY: RangeInclusive<Duration> = Duration::from_millis(1)..=limits::CONFIG_DURATION;

/// What an agent may wait: the answer is given some seconds before that.
const LONGER_THAN_MARGIN: RangeInclusive<Duration> =
    Duration::from_secs(limits::APPROVAL_MARGIN.as_secs() + 1)..=limits::CONFIG_DURATION;

fn value_or<T>(found: Option<Located<T>>, default: T) -> T {
    found.map_or(default, |found| found.value)
}

/// Reads `ask`.
pub(super) fn read(section: &Section<'_>) -> ApprovalConfig {
    let ask = ApprovalConfig {
        timeout: value_or(section.duration("timeout", ANY), Duration::from_secs(900)),
        agent_waits: value_or(
            section.duration_or_none("agent_waits", LONGER_THAN_MARGIN),
            None,
        ),
        on_timeout: value_or(section.keyword("on_timeout", &[]), OnTimeout::Deny),
        when_waiting: value_or(section.keyword("when_waiting", &[]), WhenWaiting::Hold),
        remember: value_or(section.keyword("remember", &[]), RememberScope::Session),
        approvers: read_approvers(section),
        max_pending: value_or(
            section.integer("max_pending", 1..=limits::APPROVALS_PER_POOL),
            limits::APPROVALS_PER_POOL,
        ),
    };
    section.reject_unknown_keys(&[], &[]);
    ask
}

/// A child is stopped only where another one can take its session up. `place` is where the pool says
/// so.
pub(super) fn check_release_resumes(ledger: &Diagnostics, pool: &Pool, place: &Place) {
    if pool.approval.when_waiting != WhenWaiting::Release {
        return;
    }
    let is_kept = pool.session == SessionScope::Slot && pool.restart.on_crash == OnCrash::Resume;
    if !is_kept || pool.restart.kind != RestartKind::Transient {
        let message = "a child is stopped while a person is waited for only where its session is loaded again";
        let help = "set session = \"slot\", restart.on_crash = \"resume\" and restart.kind = \"transient\"";
        ledger.report(place, message, Some(help.to_owned()));
    }
}

/// A group of the system would have to reach the control socket, which is its owner's alone.
const GROUPS: &str = "the control socket is the supervisor's user's alone, so no group of the system reaches it: put a token into the directory approvers of the state directory, give it to the group's members, and name that";

fn read_approvers(section: &Section<'_>) -> Vec<Approver> {
    let Some(found) = section.texts_like("approvers", PATTERN) else {
        return vec![Approver::Owner];
    };
    let mut approvers = Vec::new();
    for name in found.value {
        match Approver::new(&name.value) {
            None => {
                let message = format!(
                    "approver {} must be \"owner\" or the name of a token, of small letters, digits and \"-\"",
                    quote(&name.value)
                );
                let help = name.value.starts_with("group:").then(|| GROUPS.to_owned());
                section.diagnostics.report(&name.place, message, help);
            }
            // Twice says no more than once.
            Some(approver) if approvers.contains(&approver) => {}
            Some(approver) => approvers.push(approver),
        }
    }
    approvers
}
