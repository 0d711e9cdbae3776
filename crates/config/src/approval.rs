//! `approval`: who answers permission requests that the policy asks a person about, and for how
//! long an answer applies.
//!
//! Must not know a clock, nor how approvers are notified.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::quote;
use super::table::{Diagnostics, Located, Place, Section, keywords};
use super::types::{OnCrash, Pool, RestartKind, SessionScope};
use marshal_model::limits;
use marshal_model::{OnTimeout, RememberScope, string_enum};

keywords!(OnTimeout, RememberScope, WhenWaiting);

string_enum!(
    /// What happens to the child of a session with a pending approval.
    WhenWaiting {
        /// It keeps running.
        Hold = "hold",
        /// It is stopped. After the answer, the session is loaded again and its prompt is sent
        /// again.
        Release = "release",
    }
);

/// `approval = { … }`.
#[derive(Debug, Clone)]
pub struct ApprovalConfig {
    /// How long an approval stays pending.
    pub timeout: Duration,
    /// How long the agent waits for an answer; `None` means forever.
    pub agent_waits: Option<Duration>,
    /// What follows when nobody answers; it follows at once if there is no approver.
    pub on_timeout: OnTimeout,
    /// What happens to the child in the meantime.
    pub when_waiting: WhenWaiting,
    /// The longest scope that an answer may have.
    pub remember: RememberScope,
    /// The approvers; if empty, nobody is asked.
    pub approvers: Vec<Approver>,
    /// The limit of the pool's pending approvals, from 1; one more is denied.
    pub max_pending: usize,
}

/// An approver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Approver {
    /// The supervisor's user and root on the command line, and any client with the owner's token.
    Owner,
    /// Any client with the token of this name.
    Named(String),
}

/// The word for [`Approver::Owner`].
const OWNER: &str = "owner";

/// The JSON-schema pattern of an approver.
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

/// Any positive time: the shortest is the resolution of a timer.
const ANY: RangeInclusive<Duration> = Duration::from_millis(1)..=limits::CONFIG_DURATION;

/// How long an agent may wait; the answer is sent some seconds before that.
const LONGER_THAN_MARGIN: RangeInclusive<Duration> =
    Duration::from_secs(limits::APPROVAL_MARGIN.as_secs() + 1)..=limits::CONFIG_DURATION;

fn value_or<T>(found: Option<Located<T>>, default: T) -> T {
    found.map_or(default, |found| found.value)
}

/// Reads `approval`.
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

/// A child is stopped only if another one can load its session. `place` is that of `when_waiting`.
pub(super) fn check_release_resumes(diagnostics: &Diagnostics, pool: &Pool, place: &Place) {
    if pool.approval.when_waiting != WhenWaiting::Release {
        return;
    }
    let is_kept = pool.session == SessionScope::Slot && pool.restart.on_crash == OnCrash::Resume;
    if !is_kept || pool.restart.kind != RestartKind::Transient {
        let message =
            "a child can be stopped during an approval only if its session is loaded again";
        let help = "set session = \"slot\", restart.on_crash = \"resume\" and restart.kind = \"transient\"";
        diagnostics.report(place, message, Some(help.to_owned()));
    }
}

/// Help for `group:NAME`: a system group cannot reach the socket, which only its owner can.
const GROUPS: &str = "the socket belongs to the supervisor's user alone, so a system group cannot reach it: put a token into the directory approvers of the state directory, give it to the members of the group, and name the token here";

fn read_approvers(section: &Section<'_>) -> Vec<Approver> {
    let Some(found) = section.texts_like("approvers", PATTERN) else {
        return vec![Approver::Owner];
    };
    let mut approvers = Vec::new();
    for name in found.value {
        match Approver::new(&name.value) {
            None => {
                let message = format!(
                    "approver {} must be \"owner\" or the name of a token, of lower-case letters, digits and \"-\"",
                    quote(&name.value)
                );
                let help = name.value.starts_with("group:").then(|| GROUPS.to_owned());
                section.diagnostics.report(&name.place, message, help);
            }
            // A repeated name has no further effect.
            Some(approver) if approvers.contains(&approver) => {}
            Some(approver) => approvers.push(approver),
        }
    }
    approvers
}
