//! What a pool does while its provider limits requests: it pauses, puts the task back unspent, and
//! lets one task try after the pause.

use super::state::PoolState;
use super::{ActiveTask, PoolMsg};
use crate::config::show_duration;
use crate::fleet::clock;
use crate::fleet::notice::Notice;
use crate::fleet::session::{Attempt, Limited};
use crate::lifecycle::pause::Follows;
use crate::model::{SessionId, SlotId, TaskOutcome, TurnOutcome};
use crate::telemetry::event::route::{PoolPaused, RateLimited};

impl PoolState {
    /// A task's turn failed because the provider limits requests: no attempt is counted.
    pub(super) fn limited(
        &mut self,
        mut task: ActiveTask,
        slot: &SlotId,
        session: &SessionId,
        limit: Limited,
    ) {
        if self.probe.as_ref() == Some(session) {
            self.probe = None;
        }
        if !self.pause_for(slot, limit) {
            let most = show_duration(self.pool.config.rate_limit.give_up);
            let why = format!(
                "the provider has limited requests for {most} (rate_limit.give_up), and still does"
            );
            return self.end_one(task, TaskOutcome::Failed, Some(why));
        }
        task.sent = task.sent.saturating_sub(1);
        self.put_back(slot.index, task);
    }

    /// Pauses the pool; `false` if it has been paused for as long as it may.
    pub(super) fn pause_for(&mut self, slot: &SlotId, limit: Limited) -> bool {
        let now = clock::now();
        let announced = limit
            .until
            .map(|until| until.saturating_duration_since(now));
        let follows = self.pause.limited(now, announced);
        let Follows::Pause { wait, anew } = follows else {
            self.show_pause(false);
            return false;
        };
        RateLimited {
            slot,
            sign: limit.sign,
            pause: wait,
        }
        .emit();
        if anew {
            self.show_pause(true);
            self.shared.tell(Notice::Paused {
                pool: self.pool.config.name.clone(),
                wait: Some(wait),
            });
            let to = self.myself.clone();
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let _ = to.send_message(PoolMsg::PauseOver);
            });
        }
        true
    }

    /// An attempt ended without being limited: if it was the one that tried, that is over. Only a
    /// turn that the model ended says that there is no limit any more.
    pub(super) fn tried(&mut self, attempt: &Attempt) {
        if self.probe.as_ref() != Some(&attempt.session) {
            return;
        }
        self.probe = None;
        let is_answered = matches!(
            attempt.turn,
            Some(TurnOutcome::Completed | TurnOutcome::Limited | TurnOutcome::Refused)
        );
        if attempt.begun && is_answered {
            self.go_on();
        } else {
            self.pause.untried();
        }
    }

    /// The task that tries got an answer.
    pub(super) fn answered(&mut self, session: &SessionId) {
        if self.probe.as_ref() == Some(session) {
            self.probe = None;
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        if self.pause.answered() {
            self.show_pause(false);
            self.shared.tell(Notice::Paused {
                pool: self.pool.config.name.clone(),
                wait: None,
            });
        }
    }

    fn show_pause(&self, paused: bool) {
        PoolPaused {
            pool: &self.pool.config.name,
            paused,
        }
        .emit();
    }
}
