//! Rate limits of the provider: the pool pauses, requeues the task without counting an attempt, and
//! lets one task probe after the pause.

use super::ActiveTask;
use super::state::PoolState;
use crate::clock;
use crate::fleet_event::FleetEvent;
use crate::messages::PoolMsg;
use crate::session::{Attempt, RateLimit};
use marshal_config::show_duration;
use marshal_dialect::lifecycle::pause::PauseDecision;
use marshal_model::{SessionId, SlotId, TaskOutcome, TurnOutcome};
use marshal_telemetry::event::route::{PoolPaused, RateLimited};

impl PoolState {
    /// Requeues a task whose turn failed because of a rate limit. No attempt is counted.
    pub(super) fn handle_rate_limit(
        &mut self,
        mut task: ActiveTask,
        slot: &SlotId,
        session: &SessionId,
        limit: RateLimit,
    ) {
        if self.probe.as_ref() == Some(session) {
            self.probe = None;
        }
        if !self.pause_for(slot, limit) {
            let limit = show_duration(self.pool.config.rate_limit.give_up);
            let why = format!(
                "the provider has limited requests for {limit} (rate_limit.give_up), and still does"
            );
            return self.end_task(task, TaskOutcome::Failed, Some(why));
        }
        task.sent = task.sent.saturating_sub(1);
        self.requeue_task(slot.index, task);
    }

    /// Pauses the pool; `false` if it was paused for `rate_limit.give_up` already.
    pub(super) fn pause_for(&mut self, slot: &SlotId, limit: RateLimit) -> bool {
        let now = clock::now();
        let announced = limit
            .until
            .map(|until| until.saturating_duration_since(now));
        let decision = self.pause.record_rate_limit(now, announced);
        let PauseDecision::Pause { wait, is_new } = decision else {
            self.log_pause(false);
            return false;
        };
        RateLimited {
            slot,
            sign: limit.sign,
            pause: wait,
        }
        .emit();
        if is_new {
            self.log_pause(true);
            self.shared.notify_subscribers(FleetEvent::PoolPaused {
                pool: self.pool.config.name.clone(),
                wait: Some(wait),
            });
            let to = self.myself.clone();
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let _ = to.send_message(PoolMsg::PauseEnded);
            });
        }
        true
    }

    /// An attempt ended without a rate limit: if it was the probe, the probe has ended. Only a turn
    /// that the model ended proves that the limit is gone.
    pub(super) fn finish_probe(&mut self, attempt: &Attempt) {
        if self.probe.as_ref() != Some(&attempt.session) {
            return;
        }
        self.probe = None;
        let is_answered = matches!(
            attempt.turn,
            Some(TurnOutcome::Completed | TurnOutcome::Limited | TurnOutcome::Refused)
        );
        if attempt.begun && is_answered {
            self.end_pause();
        } else {
            self.pause.abort_probe();
        }
    }

    /// The probe got an answer: ends the pause.
    pub(super) fn probe_answered(&mut self, session: &SessionId) {
        if self.probe.as_ref() == Some(session) {
            self.probe = None;
            self.end_pause();
        }
    }

    fn end_pause(&mut self) {
        if self.pause.finish_probe() {
            self.log_pause(false);
            self.shared.notify_subscribers(FleetEvent::PoolPaused {
                pool: self.pool.config.name.clone(),
                wait: None,
            });
        }
    }

    fn log_pause(&self, paused: bool) {
        PoolPaused {
            pool: &self.pool.config.name,
            paused,
        }
        .emit();
    }
}
