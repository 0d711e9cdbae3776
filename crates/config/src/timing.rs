//! `restart`, `stop` and `rate_limit` of a pool: how their keys must agree.
//!
//! Must not know a clock.

use std::collections::BTreeSet;
use std::time::Duration;

use toml::Value;

use super::settings::Format;
use super::table::{Diagnostics, Entry, Place, Section, keywords};
use super::types::{
    OnCrash, Pool, RateLimit, Restart, RestartKind, STOP_WAIT, SessionScope, StopTimeouts,
};
use super::units::show_duration;

keywords!(RestartKind, OnCrash);

/// Exit codes: an array of integers, in order and each once.
pub(super) struct ExitCodes;

impl Format<Vec<i32>> for ExitCodes {
    fn read(&self, item: &Entry<'_>) -> Option<Vec<i32>> {
        let items = item.elements("an array of exit codes")?;
        let codes = items.iter().filter_map(|item| item.integer(&(0..=255)));
        let codes: BTreeSet<i32> = codes.map(|found| found.value).collect();
        Some(codes.into_iter().collect())
    }

    fn show(&self, codes: &Vec<i32>) -> Option<Value> {
        Some(
            codes
                .iter()
                .map(|code| i64::from(*code))
                .collect::<Vec<_>>()
                .into(),
        )
    }
}

/// Reads `restart`; also returns the place of `on_crash`, if the file has it.
pub(super) fn read_restart(section: &Section<'_>) -> (Restart, Option<Place>) {
    let restart = Restart::read_keys(section, &Restart::default());
    if restart.max < restart.base
        && let Some(place) = section.place_of("max").or_else(|| section.place_of("base"))
    {
        let (base, max) = (show_duration(restart.base), show_duration(restart.max));
        let message = format!("the largest backoff ({max}) is shorter than the first ({base})");
        let help = Some("make max at least as long as base".to_owned());
        section.diagnostics.report(&place, message, help);
    }
    section.reject_unknown_keys(&[], &[]);
    (restart, section.place_of("on_crash"))
}

/// An idle child that is stopped must come back with its session. With a session for each task,
/// only chats have idle children, and their sessions are always loaded again.
pub(super) fn check_idle_resumes(diagnostics: &Diagnostics, pool: &Pool, idle: Option<&Place>) {
    let is_kept = pool.timeouts.idle.is_some() && pool.options.session == SessionScope::Slot;
    let Some(place) = idle.filter(|_| is_kept) else {
        return;
    };
    if pool.restart.on_crash != OnCrash::Resume {
        let message = "an idle child is stopped only if its session is loaded again";
        let help = "set session = \"slot\" and restart.on_crash = \"resume\"";
        diagnostics.report(place, message, Some(help.to_owned()));
    } else if pool.restart.kind != RestartKind::Transient {
        let message = format!(
            "an idle child is stopped until a task needs it, and restart.kind = \"{}\" says otherwise",
            pool.restart.kind
        );
        diagnostics.report(place, message, Some("use \"transient\"".to_owned()));
    }
}

/// Reads `stop`: the time to drain, and the ladder.
pub(super) fn read_stop(section: &Section<'_>) -> (Duration, StopTimeouts) {
    let drain = section.duration("drain", STOP_WAIT);
    let stop = StopTimeouts::read_keys(section, &StopTimeouts::default());
    section.reject_unknown_keys(&[], &[]);
    let drain = drain.map_or(Duration::from_secs(30), |found| found.value);
    (drain, stop)
}

/// Reads `rate_limit`.
pub(super) fn read_rate_limit(section: &Section<'_>) -> RateLimit {
    let pauses = RateLimit::read_keys(section, &RateLimit::default());
    if pauses.max < pauses.pause
        && let Some(place) = section.place_of("max")
    {
        let (first, max) = (show_duration(pauses.pause), show_duration(pauses.max));
        let message = format!("the longest pause ({max}) is shorter than the first ({first})");
        section.diagnostics.report(&place, message, None);
    }
    section.reject_unknown_keys(&[], &[]);
    pauses
}
