//! The deadlines of one child: handshake, silence, turn, cancel.
//!
//! Owns what counts as a sign of life. Must not know what happens when a deadline passes.
//!
//! Silence means: during a turn, no byte, no open tool call and no open permission request for that
//! long. A tool that runs for hours and a person who thinks for hours are not silent.

use std::time::Instant;

use marshal_config::Timeouts;

/// The deadline that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadlineKind {
    /// The handshake is incomplete: the child is stopped.
    Handshake,
    /// The turn is silent: it is cancelled and `timed_out`.
    Silence,
    /// The turn takes too long: it is cancelled and `timed_out`.
    Turn,
    /// The turn was cancelled and did not end: the child is stopped.
    Cancel,
}

/// What the child is doing.
#[derive(Debug, Clone, Copy)]
enum Activity {
    /// The handshake, since that time.
    Handshake { since: Instant },
    /// An activity without a deadline.
    Idle,
    /// A turn.
    Turn {
        since: Instant,
        /// The last sign of life.
        last_activity: Instant,
    },
    /// A cancelled turn, since that time.
    Cancelling { since: Instant },
}

/// The deadlines of one child. Record what happens, sleep until the deadline, then ask what has
/// expired.
#[derive(Debug, Clone)]
pub struct ChildDeadlines {
    timeouts: Timeouts,
    activity: Activity,
    open_tools: u32,
    open_requests: u32,
}

impl ChildDeadlines {
    /// Deadlines for a child that was spawned at `now`.
    #[must_use]
    pub const fn new(timeouts: Timeouts, now: Instant) -> Self {
        Self {
            timeouts,
            activity: Activity::Handshake { since: now },
            open_tools: 0,
            open_requests: 0,
        }
    }

    /// The handshake is complete.
    pub const fn on_ready(&mut self) {
        if let Activity::Handshake { .. } = self.activity {
            self.activity = Activity::Idle;
        }
    }

    /// A prompt was written.
    pub const fn on_turn_started(&mut self, now: Instant) {
        self.open_tools = 0;
        self.open_requests = 0;
        self.activity = Activity::Turn {
            since: now,
            last_activity: now,
        };
    }

    /// The turn ended, or the child is being stopped: no deadline applies any more.
    pub const fn on_turn_ended(&mut self) {
        self.open_tools = 0;
        self.open_requests = 0;
        self.activity = Activity::Idle;
    }

    /// Bytes came from the child's stdout.
    pub const fn on_output(&mut self, now: Instant) {
        if let Activity::Turn {
            last_activity: alive,
            ..
        } = &mut self.activity
        {
            *alive = now;
        }
    }

    /// A tool call began.
    pub const fn on_tool_started(&mut self) {
        self.open_tools = self.open_tools.saturating_add(1);
    }

    /// A tool call ended.
    pub const fn on_tool_ended(&mut self, now: Instant) {
        self.open_tools = self.open_tools.saturating_sub(1);
        self.on_output(now);
    }

    /// The child asked for permission.
    pub const fn on_request_opened(&mut self) {
        self.open_requests = self.open_requests.saturating_add(1);
    }

    /// A permission request was answered, or withdrawn.
    pub const fn on_request_closed(&mut self, now: Instant) {
        self.open_requests = self.open_requests.saturating_sub(1);
        self.on_output(now);
    }

    /// The turn was cancelled. A second cancel does not extend the time.
    pub const fn on_cancel_sent(&mut self, now: Instant) {
        if let Activity::Turn { .. } = self.activity {
            self.activity = Activity::Cancelling { since: now };
        }
    }

    /// The next deadline, in the current state.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.next_deadline().map(|(at, _)| at)
    }

    /// The deadline that has expired by `now`. Returns it again until another event is recorded.
    #[must_use]
    pub fn expired_deadline(&self, now: Instant) -> Option<DeadlineKind> {
        self.next_deadline()
            .and_then(|(at, what)| (at <= now).then_some(what))
    }

    /// The earliest deadline. One that the clock cannot represent is `None`.
    fn next_deadline(&self) -> Option<(Instant, DeadlineKind)> {
        let at = |since: Instant, timeout: Option<std::time::Duration>, what| {
            Some((since.checked_add(timeout?)?, what))
        };
        match self.activity {
            Activity::Idle => None,
            Activity::Handshake { since } => {
                at(since, self.timeouts.handshake, DeadlineKind::Handshake)
            }
            Activity::Cancelling { since } => {
                at(since, Some(self.timeouts.cancel), DeadlineKind::Cancel)
            }
            Activity::Turn {
                since,
                last_activity: alive,
            } => {
                let turn = at(since, self.timeouts.turn, DeadlineKind::Turn);
                let quiet = self.open_tools == 0 && self.open_requests == 0;
                let silence = self.timeouts.silence.filter(|_| quiet);
                let silence = at(alive, silence, DeadlineKind::Silence);
                turn.into_iter().chain(silence).min_by_key(|(at, _)| *at)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An event that is recorded, and its second.
    type Note = (u64, fn(&mut ChildDeadlines, Instant));

    fn timeouts(turn: Option<u64>, silence: Option<u64>) -> Timeouts {
        Timeouts {
            handshake: Some(Duration::from_secs(60)),
            turn: turn.map(Duration::from_secs),
            silence: silence.map(Duration::from_secs),
            cancel: Duration::from_secs(15),
            control: None,
            keepalive: None,
            idle: None,
        }
    }

    /// The second of the next expiry after all of these events, and its kind.
    #[track_caller]
    fn check(timeouts: Timeouts, notes: &[Note], expect: Option<(u64, DeadlineKind)>) {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut watch = ChildDeadlines::new(timeouts, start);
        for (second, note) in notes {
            note(&mut watch, at(*second));
        }
        let deadline = watch.deadline();
        assert_eq!(deadline, expect.map(|(second, _)| at(second)));
        if let Some((second, what)) = expect {
            assert_eq!(watch.expired_deadline(at(second)), Some(what));
            let before = at(second)
                .checked_sub(Duration::from_nanos(1))
                .unwrap_or(start);
            assert_eq!(watch.expired_deadline(before), None);
        }
        let never = start + Duration::from_secs(1 << 30);
        assert_eq!(watch.expired_deadline(never), expect.map(|(_, what)| what));
    }

    const READY: Note = (5, |watch, _| watch.on_ready());
    const PROMPT: Note = (10, ChildDeadlines::on_turn_started);

    #[test]
    fn a_handshake_has_its_time_whatever_is_printed() {
        let quiet = timeouts(None, Some(10));
        check(quiet.clone(), &[], Some((60, DeadlineKind::Handshake)));
        check(
            quiet.clone(),
            &[(50, ChildDeadlines::on_output)],
            Some((60, DeadlineKind::Handshake)),
        );
        check(quiet, &[READY], None);
    }

    #[test]
    fn nothing_expires_between_turns() {
        let all = timeouts(Some(100), Some(10));
        check(all.clone(), &[READY, (6, ChildDeadlines::on_output)], None);
        check(
            all,
            &[READY, PROMPT, (11, |watch, _| watch.on_turn_ended())],
            None,
        );
    }

    #[test]
    fn silence_counts_from_the_last_byte() {
        let all = timeouts(None, Some(10));
        check(
            all.clone(),
            &[READY, PROMPT],
            Some((20, DeadlineKind::Silence)),
        );
        check(
            all,
            &[READY, PROMPT, (17, ChildDeadlines::on_output)],
            Some((27, DeadlineKind::Silence)),
        );
        check(timeouts(None, None), &[READY, PROMPT], None);
    }

    #[test]
    fn an_open_tool_call_or_ask_is_not_silent() {
        let all = timeouts(None, Some(10));
        let tool: Note = (11, |watch, _| watch.on_tool_started());
        let ask: Note = (12, |watch, _| watch.on_request_opened());
        check(all.clone(), &[READY, PROMPT, tool], None);
        check(all.clone(), &[READY, PROMPT, ask], None);
        check(
            all.clone(),
            &[
                READY,
                PROMPT,
                tool,
                ask,
                (90, ChildDeadlines::on_tool_ended),
            ],
            None,
        );
        check(
            all.clone(),
            &[
                READY,
                PROMPT,
                tool,
                ask,
                (90, ChildDeadlines::on_tool_ended),
                (95, ChildDeadlines::on_request_closed),
            ],
            Some((105, DeadlineKind::Silence)),
        );
        check(
            all.clone(),
            &[
                READY,
                PROMPT,
                (11, ChildDeadlines::on_tool_ended),
                (12, |watch, _| watch.on_tool_started()),
            ],
            None,
        );
        check(
            all,
            &[
                READY,
                PROMPT,
                tool,
                (20, |watch, _| watch.on_turn_ended()),
                (30, ChildDeadlines::on_turn_started),
            ],
            Some((40, DeadlineKind::Silence)),
        );
    }

    #[test]
    fn a_turn_may_have_a_time_of_its_own() {
        let tool: Note = (11, |watch, _| watch.on_tool_started());
        let all = timeouts(Some(100), Some(30));
        check(
            all.clone(),
            &[READY, PROMPT],
            Some((40, DeadlineKind::Silence)),
        );
        check(
            all.clone(),
            &[READY, PROMPT, tool],
            Some((110, DeadlineKind::Turn)),
        );
        check(
            all,
            &[READY, PROMPT, (90, ChildDeadlines::on_output)],
            Some((110, DeadlineKind::Turn)),
        );
    }

    #[test]
    fn a_cancelled_turn_has_only_the_cancels_deadline() {
        let all = timeouts(Some(20), Some(10));
        let cancel: Note = (12, ChildDeadlines::on_cancel_sent);
        check(
            all.clone(),
            &[READY, PROMPT, cancel],
            Some((27, DeadlineKind::Cancel)),
        );
        check(
            all.clone(),
            &[
                READY,
                PROMPT,
                cancel,
                (20, ChildDeadlines::on_cancel_sent),
                (21, ChildDeadlines::on_output),
            ],
            Some((27, DeadlineKind::Cancel)),
        );
        check(all.clone(), &[READY, cancel], None);
        check(all, &[cancel], Some((60, DeadlineKind::Handshake)));
    }
}
