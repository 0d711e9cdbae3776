//! Explains why a turn failed: the hint that matches, whether its route refused a model request, and
//! whether the provider limits requests. That shows in the responses on the child's routes, otherwise in the agent's messages.

use std::sync::Arc;
use std::time::Instant;

use super::task_run::TaskRun;
use crate::channel::stderr::StderrLog;
use crate::session::state::{DETAIL_WIDTH, SessionState};
use marshal_config::SessionScope;
use marshal_config::hint::{Evidence, HintClass};
use marshal_model::{TurnOutcome, UntrustedText};
use marshal_proxy::model_proxy::RateLimitStatus;
use marshal_telemetry::labels::LimitSign;

/// A rate limit, and what showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimit {
    pub(crate) sign: LimitSign,
    /// Until when the provider asks to wait, if it does.
    pub(crate) until: Option<Instant>,
}

impl SessionState {
    /// A turn whose last model request was refused by its route is not completed, even if the agent
    /// says so.
    pub(crate) fn check_model_answered(
        &self,
        outcome: TurnOutcome,
        detail: Option<String>,
    ) -> (TurnOutcome, Option<String>) {
        match self.agent.rate_limit_watch.status().refusal {
            Some(reason) if outcome == TurnOutcome::Completed => {
                let why = format!(
                    "the agent ended its turn after the route had refused its last model request ({reason})"
                );
                (TurnOutcome::Failed, Some(why))
            }
            _ => (outcome, detail),
        }
    }

    /// Explains the end of a turn: a rate limit comes before the detail, the hint after it.
    /// `is_ours`: the supervisor ended the turn, and the detail says so.
    pub(crate) fn explain_turn_end(
        &mut self,
        outcome: TurnOutcome,
        detail: Option<String>,
        is_ours: bool,
    ) -> Option<String> {
        let failed = outcome == TurnOutcome::Failed;
        let log = self.shared.slots.log(&self.work.slot).filter(|_| failed);
        // Earlier turns of the same slot may have written this stderr.
        let log = log.filter(|_| self.scope() == SessionScope::Task);
        let stderr = log.map(StderrLog::tail).unwrap_or_default();
        let task = self.task.as_ref();
        let error = task.map_or("", |task| task.tally.last_error()).to_owned();
        let detail_text = detail.clone().unwrap_or_default();
        let (shared, pool) = (Arc::clone(&self.shared), Arc::clone(&self.pool));
        let evidence = Evidence {
            agent: &pool.config.agent,
            launcher: pool.config.launcher,
            status: None,
            messages: &[&detail_text, &error],
            stderr: &stderr,
        };
        let hints = &shared.config.hints;
        let limited = if is_ours {
            None
        } else {
            self.detect_rate_limit(outcome, || {
                hints.matches_class(&evidence, HintClass::RateLimited)
            })
        };
        let hint = failed.then(|| hints.find(&evidence)).flatten();
        let detail = match detail {
            None if failed => {
                Some(UntrustedText::from(error.as_str()).escape_for_display(DETAIL_WIDTH))
            }
            detail => detail,
        };
        let parts = [
            limited.map(str::to_owned),
            detail.filter(|detail| !detail.is_empty()),
            hint.map(|hint| format!("hint: {}", hint.text)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Looks for a rate limit at the end of a turn that the supervisor did not end, and describes
    /// it. Messages show a limit only by the hints' table.
    pub(crate) fn detect_rate_limit(
        &mut self,
        outcome: TurnOutcome,
        names_limit: impl FnOnce() -> bool,
    ) -> Option<&'static str> {
        let limit = classify_limit(outcome, self.agent.rate_limit_watch.status(), names_limit);
        if let Some(task) = &mut self.task {
            task.limit = limit;
        }
        Some(match limit?.sign {
            LimitSign::Route => "rate limited: the provider's last answer was 429 or 529",
            LimitSign::Words => "rate limited: the agent says that its provider limits requests",
        })
    }

    /// Notifies the pool, once, that a task which probes the provider has got a response.
    pub(crate) fn detect_probe_answer(&mut self) {
        // Before the prompt is written, responses are of the session's earlier task or of the
        // agent's start.
        let has_begun = |task: &TaskRun| task.begun.is_some();
        if self.work.probe
            && self.task.as_ref().is_some_and(has_begun)
            && self.agent.rate_limit_watch.status().successes > 0
        {
            self.work.probe = false;
            self.notify_probe_answered();
        }
    }
}

/// Classifies a turn's end. Pure.
fn classify_limit(
    outcome: TurnOutcome,
    seen: RateLimitStatus,
    names_limit: impl FnOnce() -> bool,
) -> Option<RateLimit> {
    let by_route = RateLimit {
        sign: LimitSign::Route,
        until: seen.wait_until,
    };
    match outcome {
        TurnOutcome::Failed | TurnOutcome::Lost => {
            if seen.is_limited {
                return Some(by_route);
            }
            let by_words = RateLimit {
                sign: LimitSign::Words,
                until: None,
            };
            names_limit().then_some(by_words)
        }
        // Some agents report the error as their answer. Without one good response nothing was done.
        TurnOutcome::Completed if seen.is_limited && seen.successes == 0 => Some(by_route),
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
        let seen = |good, is_limited| RateLimitStatus {
            successes: good,
            limited_answers: u64::from(is_limited),
            is_limited,
            wait_until: None,
            refusal: None,
        };
        let check = |outcome, seen, names_limit: bool, expect: Option<LimitSign>| {
            let sign = classify_limit(outcome, seen, || names_limit).map(|limited| limited.sign);
            assert_eq!(sign, expect, "{outcome} {seen:?} {names_limit}");
        };
        check(Failed, seen(3, true), false, Some(Route));
        check(Lost, seen(0, true), false, Some(Route));
        check(Failed, seen(3, false), false, None);
        check(Failed, seen(0, false), true, Some(Words));
        check(Lost, seen(0, false), true, Some(Words));
        check(Completed, seen(0, true), false, Some(Route));
        check(Completed, seen(1, true), true, None);
        check(Completed, seen(0, false), true, None);
        check(Cancelled, seen(0, true), true, None);
    }
}
