//! `approval`: who answers permission requests that the policy asks a person about, and for how
//! long an answer applies.
//!
//! Must not know a clock, nor how approvers are notified.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Value;

use super::error::quote;
use super::settings::{ANY_TIME, Format, Integer, Keyword, Time, TimeOrNone, settings};
use super::table::{Diagnostics, Entry, Place, keywords};
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

settings! {
    /// `approval = { … }`.
    #[derive(Debug, Clone)]
    pub struct ApprovalConfig {
        /// How long an approval stays pending.
        timeout: Duration = Duration::from_secs(900), Time(ANY_TIME);
        /// How long the agent waits for an answer; `None` means forever.
        agent_waits: Option<Duration> = None, TimeOrNone(LONGER_THAN_MARGIN);
        /// What follows when nobody answers; it follows at once if there is no approver.
        on_timeout: OnTimeout = OnTimeout::Deny, Keyword;
        /// What happens to the child in the meantime.
        when_waiting: WhenWaiting = WhenWaiting::Hold, Keyword;
        /// The longest scope that an answer may have.
        remember: RememberScope = RememberScope::Session, Keyword;
        /// The approvers; if empty, nobody is asked.
        approvers: Vec<Approver> = vec![Approver::Owner], Approvers;
        /// The limit of the pool's pending approvals; one more is denied.
        max_pending: usize = limits::APPROVALS_PER_POOL, Integer(1..=limits::APPROVALS_PER_POOL);
    }
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

/// How long an agent may wait; the answer is sent some seconds before that.
const LONGER_THAN_MARGIN: RangeInclusive<Duration> =
    Duration::from_secs(limits::APPROVAL_MARGIN.as_secs() + 1)..=limits::CONFIG_DURATION;

/// A child is stopped only if another one can load its session. `place` is that of `when_waiting`.
pub(super) fn check_release_resumes(diagnostics: &Diagnostics, pool: &Pool, place: &Place) {
    if pool.approval.when_waiting != WhenWaiting::Release {
        return;
    }
    let is_kept =
        pool.options.session == SessionScope::Slot && pool.restart.on_crash == OnCrash::Resume;
    if !is_kept || pool.restart.kind != RestartKind::Transient {
        let message =
            "a child can be stopped during an approval only if its session is loaded again";
        let help = "set session = \"slot\", restart.on_crash = \"resume\" and restart.kind = \"transient\"";
        diagnostics.report(place, message, Some(help.to_owned()));
    }
}

/// Help for `group:NAME`: a system group cannot reach the socket, which only its owner can.
const GROUPS: &str = "the socket belongs to the supervisor's user alone, so a system group cannot reach it: put a token into the directory approvers of the state directory, give it to the members of the group, and name the token here";

/// A list of approvers, each once.
struct Approvers;

impl Format<Vec<Approver>> for Approvers {
    fn read(&self, item: &Entry<'_>) -> Option<Vec<Approver>> {
        let mut approvers = Vec::new();
        for (name, item) in item.texts_like(PATTERN)? {
            match Approver::new(&name) {
                None => {
                    let message = format!(
                        "approver {} must be \"owner\" or the name of a token, of lower-case letters, digits and \"-\"",
                        quote(&name)
                    );
                    let help = name.starts_with("group:").then(|| GROUPS.to_owned());
                    item.report(message, help);
                }
                // A repeated name has no further effect.
                Some(approver) if approvers.contains(&approver) => {}
                Some(approver) => approvers.push(approver),
            }
        }
        Some(approvers)
    }

    fn show(&self, approvers: &Vec<Approver>) -> Option<Value> {
        let names = approvers.iter().map(ToString::to_string);
        Some(names.collect::<Vec<_>>().into())
    }
}
