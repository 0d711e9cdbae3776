//! Checks the command of a pool whose agent is Claude Code: it must not have `--settings`, which
//! the supervisor passes itself so that no settings answer permission requests.
//!
//! Must not know messages.

use super::table::{Diagnostics, Place};
use super::types::{DialectName, Pool};

/// The option with settings. Claude Code uses the last one, which is the supervisor's.
const SETTINGS: &str = "--settings";

/// Refuses the option; `program` is the place of the command.
pub(super) fn check_consistency(diagnostics: &Diagnostics, pool: &Pool, program: Option<&Place>) {
    let (DialectName::Claude, Some(place)) = (pool.dialect, program) else {
        return;
    };
    let words = pool.command.iter().chain(&pool.resume_args);
    let is_it = |word: &String| {
        let rest = word.strip_prefix(SETTINGS);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if words.into_iter().any(is_it) {
        let message = "the supervisor passes --settings itself, to disable hooks that would answer permission requests";
        let help = "pass the settings as .claude/settings.json with home_files";
        diagnostics.report(place, message, Some(help.to_owned()));
    }
}
