//! `restart`, `timeouts`, `stop` and `rate_limit`: the times of a pool, and the journal's
//! retention.
//!
//! Must not know a clock.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::table::{Diagnostics, Entry, Located, Place, Section, keywords};
use super::types::{
    JournalRetention, OnCrash, Pool, RateLimit, Restart, RestartKind, SessionScope, StopTimeouts,
    Timeouts,
};
use super::units::show_duration;
use marshal_model::limits;

keywords!(RestartKind, OnCrash);

/// Any positive time: the shortest is the resolution of a timer.
const ANY: RangeInclusive<Duration> = Duration::from_millis(1)..=limits::CONFIG_DURATION;

const SECOND: Duration = Duration::from_secs(1);

fn value_or<T>(found: Option<Located<T>>, default: T) -> T {
    found.map_or(default, |found| found.value)
}

/// Reads `[supervisor.journal]`.
pub(super) fn read_journal(section: &Section<'_>) -> JournalRetention {
    let usual = JournalRetention::default();
    // A database cannot be smaller than its own overhead.
    let sizes = (1 << 20)..=(1 << 50);
    let rules = JournalRetention {
        keep: value_or(
            section.duration_or_none("keep", SECOND..=limits::CONFIG_DURATION),
            usual.keep,
        ),
        max_size: value_or(section.size("max_size", sizes.clone()), usual.max_size),
        session_max: value_or(section.size("session_max", sizes), usual.session_max),
        min_free: value_or(section.size("min_free", 0..=(1 << 50)), usual.min_free),
    };
    section.reject_unknown_keys(&[], &[]);
    rules
}

/// Reads `restart`; also returns the place of `on_crash`, if the file has it.
pub(super) fn read_restart(section: &Section<'_>) -> (Restart, Option<Place>) {
    let base = section.duration("base", ANY);
    let max = section.duration("max", ANY);
    let on_crash = section.keyword("on_crash", &[]);
    let place = on_crash.as_ref().map(|found| found.place.clone());
    let never_codes = section.get("never_codes").map_or(Vec::new(), |item| {
        let items = item.elements("an array of exit codes").unwrap_or_default();
        let codes = items
            .iter()
            .filter_map(|item: &Entry<'_>| item.integer(&(0..=255)));
        let mut codes: Vec<i32> = codes.map(|found| found.value).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    });
    let blame = max
        .as_ref()
        .or(base.as_ref())
        .map(|found| found.place.clone());
    let restart = Restart {
        kind: value_or(section.keyword("kind", &[]), RestartKind::Transient),
        budget: value_or(section.integer("budget", 0..=limits::RESTART_BUDGET), 5),
        window: value_or(section.duration("window", ANY), 300 * SECOND),
        base: value_or(base, SECOND),
        max: value_or(max, 60 * SECOND),
        reset_after: value_or(section.duration("reset_after", ANY), 60 * SECOND),
        on_crash: value_or(on_crash, OnCrash::Report),
        never_codes,
    };
    if let Some(blame) = blame
        && restart.max < restart.base
    {
        let (base, max) = (show_duration(restart.base), show_duration(restart.max));
        let message = format!("the largest backoff ({max}) is shorter than the first ({base})");
        let help = Some("make max at least as long as base".to_owned());
        section.diagnostics.report(&blame, message, help);
    }
    section.reject_unknown_keys(&[], &[]);
    (restart, place)
}

/// Reads `timeouts`.
pub(super) fn read_timeouts(section: &Section<'_>) -> Timeouts {
    let timeouts = Timeouts {
        handshake: value_or(
            section.duration_or_none("handshake", ANY),
            Some(60 * SECOND),
        ),
        turn: value_or(section.duration_or_none("turn", ANY), None),
        silence: value_or(section.duration_or_none("silence", ANY), Some(600 * SECOND)),
        cancel: value_or(section.duration("cancel", ANY), 15 * SECOND),
        control: value_or(section.duration_or_none("control", ANY), Some(60 * SECOND)),
        keepalive: value_or(
            section.duration_or_none("keepalive", ANY),
            Some(30 * SECOND),
        ),
        idle: value_or(section.duration_or_none("idle", ANY), None),
    };
    section.reject_unknown_keys(&[], &[]);
    timeouts
}

/// An idle child that is stopped must come back with its session. With a session for each task,
/// only chats have idle children, and their sessions are always loaded again.
pub(super) fn check_idle_resumes(diagnostics: &Diagnostics, pool: &Pool, idle: Option<&Place>) {
    let is_kept = pool.timeouts.idle.is_some() && pool.session == SessionScope::Slot;
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
    let wait = |name, seconds: u32| {
        let found = section.duration(name, Duration::ZERO..=limits::STOP_WAIT);
        value_or(found, seconds * SECOND)
    };
    let stop = StopTimeouts {
        goodbye: wait("goodbye", 2),
        eof: wait("eof", 6),
        int: wait("int", 2),
        term: wait("term", 5),
    };
    let drain = wait("drain", 30);
    section.reject_unknown_keys(&[], &[]);
    (drain, stop)
}

/// Reads `rate_limit`.
pub(super) fn read_rate_limit(section: &Section<'_>) -> RateLimit {
    let max = section.duration("max", ANY);
    let place = max.as_ref().map(|found| found.place.clone());
    let pauses = RateLimit {
        pause: value_or(section.duration("pause", ANY), 15 * SECOND),
        max: value_or(max, 900 * SECOND),
        give_up: value_or(section.duration("give_up", ANY), 6 * 3600 * SECOND),
    };
    if let Some(place) = place
        && pauses.max < pauses.pause
    {
        let (first, max) = (show_duration(pauses.pause), show_duration(pauses.max));
        let message = format!("the longest pause ({max}) is shorter than the first ({first})");
        section.diagnostics.report(&place, message, None);
    }
    section.reject_unknown_keys(&[], &[]);
    pauses
}
