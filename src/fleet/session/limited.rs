//! Whether a turn failed because its provider limits requests: by the answers on the child's
//! routes, else by the words of the agent.

use std::time::Instant;

use super::state::SessionState;
use crate::config::SessionScope;
use crate::lifecycle::pause::tells_limit;
use crate::model::{Foreign, TurnOutcome};
use crate::relay::Seen;
use crate::telemetry::sets::LimitSign;

/// What showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limited {
    pub(crate) sign: LimitSign,
    /// Until when the provider asks to wait, if it does.
    pub(crate) until: Option<Instant>,
}

impl SessionState {
    /// Looks for it at the end of a turn that we did not end; what it finds is put before the
    /// detail.
    pub(super) fn look_for_limit(
        &mut self,
        outcome: TurnOutcome,
        detail: Option<&str>,
        stderr: &[Foreign],
    ) -> Option<String> {
        // What earlier turns wrote to stderr says nothing of this one.
        let of_this_turn = self.scope == SessionScope::Task;
        let stderr = if of_this_turn { stderr } else { &[] };
        let words = stderr.iter().map(Foreign::raw).chain(detail);
        self.limit = judge(outcome, self.limits.seen(), words);
        let why = match self.limit?.sign {
            LimitSign::Route => "rate limited: the provider's last answer was 429 or 529",
            LimitSign::Words => "rate limited: the agent says that its provider limits requests",
        };
        Some(match detail {
            None | Some("") => why.to_owned(),
            Some(detail) => format!("{why}; {detail}"),
        })
    }

    /// Tells the pool, once, that a task which tries whether the provider takes requests again has
    /// got an answer.
    pub(super) fn look_for_answer(&mut self) {
        if self.work.probe && self.limits.seen().good > 0 {
            self.work.probe = false;
            self.tell_answered();
        }
    }
}

/// Pure.
fn judge<'w>(
    outcome: TurnOutcome,
    seen: Seen,
    mut words: impl Iterator<Item = &'w str>,
) -> Option<Limited> {
    let by_route = Limited {
        sign: LimitSign::Route,
        until: seen.until,
    };
    match outcome {
        TurnOutcome::Failed | TurnOutcome::Lost => {
            if seen.is_limited {
                return Some(by_route);
            }
            let by_words = Limited {
                sign: LimitSign::Words,
                until: None,
            };
            words.any(tells_limit).then_some(by_words)
        }
        // Some agents tell the error as their answer. Without one good answer nothing was done.
        TurnOutcome::Completed if seen.is_limited && seen.good == 0 => Some(by_route),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use LimitSign::{Route, Words};
    use TurnOutcome::{Cancelled, Completed, Failed, Lost};

    use super::*;

    #[test]
    fn a_turn_is_limited_if_it_failed_and_its_last_answer_or_its_words_say_so() {
        let seen = |good, is_limited| Seen {
            good,
            limited: u64::from(is_limited),
            is_limited,
            until: None,
        };
        let check = |outcome, seen, words: &str, expect: Option<LimitSign>| {
            let found = judge(outcome, seen, words.lines()).map(|limited| limited.sign);
            assert_eq!(found, expect, "{outcome} {seen:?} {words}");
        };
        check(Failed, seen(3, true), "x", Some(Route));
        check(Lost, seen(0, true), "", Some(Route));
        check(Failed, seen(3, false), "x", None);
        check(
            Failed,
            seen(0, false),
            "trace\nHTTP 429 Too Many Requests",
            Some(Words),
        );
        check(Completed, seen(0, true), "", Some(Route));
        check(Completed, seen(1, true), "", None);
        check(Completed, seen(0, false), "rate limit", None);
        check(Cancelled, seen(0, true), "rate limit", None);
    }
}
