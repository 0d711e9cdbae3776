//! What a pool's command may not hold where its agent is Claude Code: an option that the supervisor
//! gives itself, because it keeps settings from answering in its place.
//!
//! Must not know messages.

use super::table::{Diagnostics, Place};
use super::types::{DialectName, Pool};

/// Holds settings; of two the last one counts, which is the supervisor's.
const SETTINGS: &str = "--settings";

/// Refuses the option; `program` is the place of the command.
pub(super) fn check_consistency(ledger: &Diagnostics, pool: &Pool, program: Option<&Place>) {
    let (DialectName::Claude, Some(place)) = (pool.dialect, program) else {
        return;
    };
    let words = pool.command.iter().chain(&pool.resume_args);
    let is_it = |word: &String| {
        let rest = word.strip_prefix(SETTINGS);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if words.into_iter().any(is_it) {
        let message = "the supervisor gives --settings itself, to switch hooks of settings off that would answer permission requests";
        let help = "hand the settings over as .claude/settings.json by home_files";
        ledger.report(place, message, Some(help.to_owned()));
    }
}
