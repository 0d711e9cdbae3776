//! The actor of one chat: it runs waiting turns, one after the other, in a session that it loads
//! when there is a turn and unloads when the chat is idle.
//!
//! Owns the chat's conversation. While it waits for a turn, it still reacts to a stop. Must not
//! know who sends messages or reads the stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Inner;
use super::autonomous::{self, RoundResult};
use super::directory::first_prompt;
use super::plan::with_instructions;
use super::stream_events;
use crate::JournalError;
use marshal_fleet::{
    Conversation, ConversationUpdate, OpenError, PromptError, STOPPED_UNSENT, SlotDemand,
    SlotRelease, SubmitError, TaskReport,
};
use marshal_journal::{ChatWrite, LastTurn, StoredChat, StoredTurn, Write};
use marshal_model::limits;
use marshal_model::{SessionId, TaskId, TaskOutcome, TurnId, TurnOutcome, UntrustedText};
use marshal_telemetry::event::chat::ActiveChat;

/// The line before the agent's next prompt after a person stopped a turn.
pub(super) const INTERRUPTED_MARKER: &str =
    "[System: Response was interrupted by user (user_cancelled)]";
/// Why a waiting turn ends: no agent can serve the chat.
const NOBODY: &str = "no agent can serve the chat now";

/// The signals to an actor. Only the newest values count, so nothing queues.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ActorSignals {
    /// Counts turns that were accepted, or stopped while they waited.
    pub(super) turns: u64,
    /// The turns up to this sequence are to be stopped.
    pub(super) stopped_through: u64,
    /// The chat is to be closed.
    pub(super) is_closed: bool,
    /// Counts pings of clients.
    pub(super) pings: u64,
}

/// The actor.
pub(super) struct Actor {
    pub(super) chats: Arc<Inner>,
    pub(super) chat: StoredChat,
    pub(super) slot_demand: Arc<SlotDemand>,
    pub(super) signals: watch::Receiver<ActorSignals>,
    /// The signals that were handled.
    pub(super) seen: ActorSignals,
    pub(super) conversation: Option<Conversation>,
    /// The number of consecutive retries.
    pub(super) tries: u32,
}

/// The result of loading a session.
enum LoadResult {
    Ready(Box<Conversation>),
    /// A person stopped the turn meanwhile.
    Stopped,
    /// The chat's time limit is reached.
    Expired,
    /// It failed, with the reason.
    Failed(String),
    /// The supervisor is stopping.
    Stopping,
}

/// The result of sending a turn.
enum TurnResult {
    /// The turn ended with this report.
    Ended(Arc<TaskReport>),
    /// The turn was not accepted: check again what waits.
    NotSent,
    /// The fleet has ended.
    FleetGone,
}

/// What an idle chat does next.
enum IdleStep {
    Work,
    /// With the claim of what waits for the slot.
    Unload(Option<SlotRelease>),
    Stopping,
}

impl Actor {
    /// Runs until nothing is left to do in the chat, or the supervisor stops.
    pub(super) async fn run(mut self) {
        let counted = ActiveChat::new(&self.chat.pool);
        loop {
            if self.chats.stop.is_cancelled() {
                return self.chats.forget(self.id());
            }
            let wants = *self.signals.borrow_and_update();
            self.seen.turns = wants.turns;
            self.seen.is_closed = wants.is_closed;
            let waiting = match self.next_waiting_turn().await {
                Ok(waiting) => waiting,
                Err(error) => {
                    tracing::warn!(chat = %self.chat.session, why = error.to_string(), "a chat's turns cannot be read");
                    self.back_off().await;
                    continue;
                }
            };
            if let Some(turn) = waiting {
                let goes_on = if turn.is_stopped() {
                    let why = STOPPED_UNSENT;
                    self.end_unsent_turn(&turn.turn, TurnOutcome::Cancelled, why)
                        .await;
                    true
                } else {
                    self.work_turn(turn, &counted).await
                };
                self.chats.notify_turn_ended(&self.chat);
                if !goes_on {
                    return self.chats.forget(self.id());
                }
                continue;
            }
            if autonomous::is_continuing(&self.chat) {
                match self.decide_round().await {
                    RoundResult::Work => continue,
                    RoundResult::Done => {}
                    RoundResult::Later => {
                        self.back_off().await;
                        continue;
                    }
                }
            }
            if wants.is_closed {
                self.close().await;
                return self.chats.forget(self.id());
            }
            match self.wait_idle().await {
                IdleStep::Work => {}
                IdleStep::Stopping => return self.chats.forget(self.id()),
                IdleStep::Unload(release) => {
                    self.unload().await;
                    drop(release);
                    // A turn that arrived meanwhile is run, by this actor or by the next one.
                    if self.chats.retire(self.id(), self.seen) {
                        return;
                    }
                }
            }
        }
    }

    const fn id(&self) -> &SessionId {
        &self.chat.session
    }

    async fn next_waiting_turn(&self) -> Result<Option<StoredTurn>, JournalError> {
        let chat = self.chat.session.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.waiting_turns(&chat));
        Ok(read.await?.into_iter().next())
    }

    async fn last_turn(&self) -> Result<LastTurn, JournalError> {
        let chat = self.chat.session.clone();
        self.chats
            .readers
            .read(move |reader| reader.last_turn(&chat))
            .await
    }

    /// Waits before a retry: longer each time, unless a person stops something.
    async fn back_off(&mut self) {
        let wait = limits::CHAT_RETRY.saturating_mul(1 << self.tries.min(16));
        let until = Instant::now() + wait.min(limits::CHAT_RETRY_MAX);
        self.tries = self.tries.saturating_add(1);
        let before = *self.signals.borrow();
        loop {
            tokio::select! {
                () = self.chats.stop.cancelled() => return,
                () = sleep_until(until) => return,
                changed = self.signals.changed() => {
                    let now = *self.signals.borrow_and_update();
                    let same = (now.stopped_through, now.is_closed)
                        == (before.stopped_through, before.is_closed);
                    if changed.is_err() || !same {
                        return;
                    }
                }
            }
        }
    }

    /// Returns whether a person stopped the turn.
    fn is_stopped(&mut self, turn: &StoredTurn) -> bool {
        turn.seq <= self.signals.borrow_and_update().stopped_through
    }

    /// Runs one turn to its end; `false` if the supervisor stops.
    async fn work_turn(&mut self, turn: StoredTurn, counted: &ActiveChat) -> bool {
        if self.conversation.is_none() {
            let began = Instant::now();
            match self.load(&turn).await {
                LoadResult::Ready(conversation) => {
                    counted.record_wait(began.elapsed());
                    self.tries = 0;
                    self.conversation = Some(*conversation);
                }
                // The stop has recorded the end itself.
                LoadResult::Stopped => return true,
                LoadResult::Expired => {
                    let why = "the chat has reached its time limit";
                    self.end_unsent_turn(&turn.turn, TurnOutcome::Cancelled, why)
                        .await;
                    return true;
                }
                LoadResult::Failed(why) => {
                    self.end_unsent_turn(&turn.turn, TurnOutcome::Failed, &why)
                        .await;
                    return true;
                }
                LoadResult::Stopping => return false,
            }
        }
        match self.send(&turn).await {
            TurnResult::Ended(report) => {
                self.tries = 0;
                self.finish_turn(&turn, &report).await
            }
            TurnResult::NotSent => {
                self.back_off().await;
                true
            }
            TurnResult::FleetGone => false,
        }
    }

    /// Loads the session into a slot; waits for one as long as necessary.
    async fn load(&mut self, turn: &StoredTurn) -> LoadResult {
        let (chats, chat) = (Arc::clone(&self.chats), self.chat.clone());
        let Some(directory) = chats.directory(&chat) else {
            let name = &chat.workspace;
            return LoadResult::Failed(format!(
                "the configuration no longer has [workspace.{name}]"
            ));
        };
        let due = self.deadline();
        loop {
            if self.is_stopped(turn) {
                return LoadResult::Stopped;
            }
            let began = Instant::now();
            let loading = chats.fleet.load_chat(
                &chat.pool,
                &directory,
                chat.session.clone(),
                chat.model.clone(),
            );
            let mut loading = std::pin::pin!(loading);
            let refused = loop {
                tokio::select! {
                    loaded = &mut loading => match loaded {
                        Ok(conversation) => return LoadResult::Ready(Box::new(conversation)),
                        Err(error) => break error,
                    },
                    changed = self.signals.changed() => {
                        if changed.is_err() || self.is_stopped(turn) {
                            return LoadResult::Stopped;
                        }
                    }
                    () = autonomous::wait_until(due) => return LoadResult::Expired,
                    () = chats.stop.cancelled() => return LoadResult::Stopping,
                }
            };
            match refused {
                OpenError::Stopping => return LoadResult::Stopping,
                OpenError::NoSlot(why) if chats.fleet.is_parked(&chat.pool) => {
                    return LoadResult::Failed(why);
                }
                // This one has waited long enough.
                OpenError::NoSlot(_) => {
                    if began.elapsed() >= limits::CHAT_RETRY_MAX {
                        self.tries = 0;
                    }
                }
                OpenError::AlreadyOpen(_) | OpenError::Journal(_) => {}
                error => return LoadResult::Failed(format!("{NOBODY}: {error}")),
            }
            self.back_off().await;
        }
    }

    /// Returns the prompt of a turn.
    async fn prompt(&self, turn: &StoredTurn) -> Result<UntrustedText, JournalError> {
        let config = self.chats.config.current();
        let mut pools = config.pools.iter();
        let pool = pools.find(|pool| pool.name == self.chat.pool);
        if pool.is_some_and(|pool| !pool.dialect.supports_remarks()) {
            return Ok(turn.content.clone());
        }
        let chat = self.chat.session.clone();
        let read = self.chats.readers.read(move |reader| {
            Ok((
                reader.was_last_turn_stopped(&chat)?,
                reader.has_answered(&chat)?,
            ))
        });
        let (was_stopped, has_answered) = read.await?;
        let content = turn.content.raw();
        let marker = if was_stopped { INTERRUPTED_MARKER } else { "" };
        let gap = if was_stopped { "\n\n" } else { "" };
        // A turn that was stopped at once may not have reached the agent.
        if !has_answered {
            let role = config.roles.get(&self.chat.role);
            let first = first_prompt(role, &self.chat.files, content);
            let instructions = self.chat.settings.instructions.as_deref();
            let mut text = with_instructions(instructions, first);
            if autonomous::is_continuing(&self.chat) {
                text.push_str(&autonomous::round_instructions(&self.chat));
            }
            return Ok(UntrustedText::new(format!("{marker}{gap}{text}")));
        }
        Ok(UntrustedText::new(format!("{marker}{gap}{content}")))
    }

    /// Returns the check command of the member's next turn; empty if there is none.
    async fn check_command(&self) -> Result<Vec<String>, super::ChatError> {
        if self.chat.parent.is_none() {
            return Ok(autonomous::check_command(&self.chat));
        }
        let settings = self.chats.chat(self.id()).await?.settings;
        let shell = |check| vec!["sh".to_owned(), "-c".to_owned(), check];
        Ok(settings.check_command.map(shell).unwrap_or_default())
    }

    /// Sends a turn and waits for its end; reacts to stops meanwhile.
    async fn send(&mut self, turn: &StoredTurn) -> TurnResult {
        let text = match self.prompt(turn).await {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(chat = %self.chat.session, why = error.to_string(), "a turn waits for the journal");
                return TurnResult::NotSent;
            }
        };
        let Ok(check) = self.check_command().await else {
            return TurnResult::NotSent;
        };
        let mut due = self.deadline();
        let Some(conversation) = &mut self.conversation else {
            return TurnResult::NotSent;
        };
        // A requeued turn had a task before, so the name needs a number.
        let name = format!("{}.{}", turn.turn, conversation.next_number());
        let Ok(task) = TaskId::new(&name) else {
            return TurnResult::NotSent;
        };
        let begin = Write::Chat(ChatWrite::Begin {
            turn: turn.turn.clone(),
            task: task.clone(),
            at_ms: self.chats.fleet.now_ms(),
        });
        match conversation
            .submit_turn(task, text, check, vec![begin])
            .await
        {
            Ok(()) => {}
            Err(PromptError::Submit(SubmitError::Stopping)) => return TurnResult::FleetGone,
            Err(error) => {
                tracing::debug!(chat = %self.chat.session, %error, "a turn was not accepted");
                return TurnResult::NotSent;
            }
        }
        loop {
            tokio::select! {
                brought = conversation.next() => match brought {
                    Some(ConversationUpdate::PromptEnded(report)) => return TurnResult::Ended(report),
                    // Approvals are answered over HTTP.
                    Some(_) => {}
                    None => return TurnResult::FleetGone,
                },
                () = autonomous::wait_until(due) => {
                    due = None;
                    conversation.cancel();
                }
                changed = self.signals.changed() => {
                    if changed.is_err() {
                        return TurnResult::FleetGone;
                    }
                    if turn.seq <= self.signals.borrow_and_update().stopped_through {
                        conversation.interrupt();
                    }
                }
            }
        }
    }

    /// Handles a turn's report; `false` if the supervisor stops.
    async fn finish_turn(&mut self, turn: &StoredTurn, report: &TaskReport) -> bool {
        let last = loop {
            match self.last_turn().await {
                Ok(last) => break last,
                Err(error) => {
                    tracing::warn!(chat = %self.chat.session, why = error.to_string(), "a turn's end cannot be read yet");
                }
            }
            if self.chats.stop.is_cancelled() {
                return false;
            }
            self.back_off().await;
        };
        let is_of_it = last.task.as_ref().map(stream_events::turn_of) == Some(turn.turn.as_str());
        let is_written = last.detail.as_deref() != Some(marshal_fleet::PROMPT_NOT_WRITTEN);
        let is_told = is_of_it && last.end_seq > last.prompt_seq && is_written;
        if !is_told {
            if self.chats.stop.is_cancelled() && report.outcome == TaskOutcome::Skipped {
                // No agent received it, so the next start sends it.
                let again = Write::Chat(ChatWrite::Requeue {
                    turn: turn.turn.clone(),
                });
                let _ = self.chats.fleet.commit_rows(vec![again]).await;
                return false;
            }
            let (outcome, why) = match report.outcome {
                TaskOutcome::Cancelled | TaskOutcome::Skipped if self.is_stopped(turn) => {
                    (TurnOutcome::Cancelled, STOPPED_UNSENT.to_owned())
                }
                _ => {
                    let why = report.detail.as_ref().map(|why| why.raw().to_owned());
                    (
                        TurnOutcome::Failed,
                        why.unwrap_or_else(|| NOBODY.to_owned()),
                    )
                }
            };
            self.end_unsent_turn(&turn.turn, outcome, &why).await;
        } else if report.outcome == TaskOutcome::Skipped {
            self.record_turn_end(&turn.turn, TurnOutcome::Lost).await;
        }
        if self.chats.stop.is_cancelled() {
            return false;
        }
        let Some(conversation) = self.conversation.as_ref() else {
            return true;
        };
        // Even a busy chat leaves a slot that receives no more tasks.
        let leaves = conversation.must_release_slot();
        if !conversation.is_released() {
            let release = self.claim_release().await;
            if leaves || release.is_some() {
                self.unload().await;
            }
        }
        true
    }

    /// Claims the release of the chat's slot for what waits for one: not while the chat has a command
    /// in the background.
    async fn claim_release(&self) -> Option<SlotRelease> {
        let release = self.slot_demand.try_release()?;
        let is_busy = self.has_live_commands().await;
        (!is_busy).then_some(release)
    }

    /// Ends a turn that no agent received: its row and its event.
    async fn end_unsent_turn(&mut self, turn: &TurnId, outcome: TurnOutcome, why: &str) {
        while !self.try_end_unsent(turn, outcome, why).await {
            if self.chats.stop.is_cancelled() {
                return;
            }
            self.back_off().await;
        }
        self.tries = 0;
    }

    async fn try_end_unsent(&mut self, turn: &TurnId, outcome: TurnOutcome, why: &str) -> bool {
        if let Some(conversation) = &self.conversation {
            let (event, rows) = self.chats.unsent_turn_end(turn, outcome, why);
            if !conversation.is_released() && conversation.append_event(event, rows).await {
                return true;
            }
            // The commit may have succeeded all the same; that is checked when no session writes
            // the stream.
            self.unload().await;
        }
        self.chats.end_unsent(self.id(), turn, outcome, why).await
    }

    /// Closes the chat; no turn is waiting.
    async fn close(&mut self) {
        self.unload().await;
        while let Err(error) = self.chats.fleet.close_chat(self.chat.session.clone()).await {
            tracing::warn!(chat = %self.chat.session, %error, "a chat cannot be closed yet");
            if self.chats.stop.is_cancelled() || !matches!(error, SubmitError::Journal(_)) {
                return;
            }
            self.back_off().await;
        }
    }

    async fn record_turn_end(&mut self, turn: &TurnId, outcome: TurnOutcome) {
        loop {
            let end = Write::Chat(ChatWrite::End {
                turn: turn.clone(),
                outcome,
                at_ms: self.chats.fleet.now_ms(),
            });
            match self.chats.fleet.commit_rows(vec![end]).await {
                Ok(()) | Err(SubmitError::Rejected(_) | SubmitError::Stopping) => return,
                Err(error) => {
                    tracing::warn!(chat = %self.chat.session, %error, "a turn's end cannot be stored yet");
                }
            }
            if self.chats.stop.is_cancelled() {
                return;
            }
            self.back_off().await;
        }
    }

    /// Waits for a turn, as long as the idle chat may keep its slot.
    async fn wait_idle(&mut self) -> IdleStep {
        let idle_time = self.chats.config.current().chat.idle;
        let mut until = Instant::now() + idle_time;
        // The chat keeps its slot while a command runs in the background; the stream shows when it
        // ends.
        let mut busy: Option<watch::Receiver<u64>> = None;
        loop {
            let demand = Arc::clone(&self.slot_demand);
            let Some(conversation) = &mut self.conversation else {
                return IdleStep::Unload(None);
            };
            tokio::select! {
                changed = self.signals.changed() => {
                    if changed.is_err() {
                        return IdleStep::Stopping;
                    }
                    let wants = *self.signals.borrow_and_update();
                    if std::mem::replace(&mut self.seen.pings, wants.pings) != wants.pings {
                        until = Instant::now() + idle_time;
                    }
                    if wants.turns != self.seen.turns || wants.is_closed {
                        return IdleStep::Work;
                    }
                }
                brought = conversation.next() => if brought.is_none() {
                    return IdleStep::Stopping;
                },
                () = sleep_until(until) => {
                    if !self.has_live_commands().await {
                        return IdleStep::Unload(None);
                    }
                    until = Instant::now() + idle_time.min(COMMAND_CHECK_INTERVAL);
                }
                release = demand.wait_until_wanted(), if busy.is_none() => {
                    // Subscribe before the check, so that no end is missed.
                    let tap = self.chats.fleet.follow(&self.chat.session);
                    if !self.has_live_commands().await {
                        return IdleStep::Unload(Some(release));
                    }
                    busy = Some(tap);
                }
                () = wait_grown(busy.as_mut()), if busy.is_some() => {
                    if !self.has_live_commands().await {
                        busy = None;
                    }
                }
                () = self.chats.stop.cancelled() => return IdleStep::Stopping,
            }
        }
    }

    /// Whether a command runs in the background, so that the chat is not idle. On an error, the
    /// answer is no.
    async fn has_live_commands(&self) -> bool {
        let chat = self.chat.session.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.has_live_commands(&chat));
        read.await.unwrap_or(true)
    }

    /// Stops the child and releases the slot; home and stream stay.
    pub(super) async fn unload(&mut self) {
        if let Some(mut conversation) = self.conversation.take() {
            conversation.leave().await;
        }
    }
}

/// Waits until the stream has grown, at a limited rate. Cancel-safe.
async fn wait_grown(tap: Option<&mut watch::Receiver<u64>>) {
    sleep(limits::CHAT_RETRY).await;
    let Some(tap) = tap else { return };
    if tap.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The interval to check whether a command in the background has ended.
const COMMAND_CHECK_INTERVAL: Duration = Duration::from_secs(60);
