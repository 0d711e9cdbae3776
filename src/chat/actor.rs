//! The actor of one loaded chat: it works the turns that wait, one after the other, in a session that
//! it loads when there is something to do and gives back when there is not.
//!
//! Owns the chat's conversation. A turn is never awaited where a stop could not be heard. Must not
//! know who sends messages or reads the stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Inner;
use super::directory::first_prompt;
use super::lobby::{Lobby, Waiting};
use super::plan::with_instructions;
use super::rounds::{self, Round};
use super::seed;
use crate::fleet::{
    Brought, Conversation, OpenError, PromptError, STOPPED_UNSENT, SubmitError, TaskReport,
};
use crate::journal::{ChatWrite, LastTurn, StoredChat, StoredTurn, Write};
use crate::limits;
use crate::model::{Foreign, SessionId, TaskId, TaskOutcome, TurnId, TurnOutcome};

/// What the agent is told at its next turn after a person stopped one.
pub(super) const MARKER: &str = "[System: Response was interrupted by user (user_cancelled)]";
/// Why a turn waits no longer: there is nobody who could work it.
const NOBODY: &str = "the chat cannot be worked now";

/// What an actor is told; it looks at the newest alone, so nothing queues.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wants {
    /// Turns were accepted, or stopped while they waited, so often.
    pub(super) turns: u64,
    /// The turns up to this place in the chat are to be stopped.
    pub(super) stopped_to: u64,
    /// The chat is to be closed.
    pub(super) is_closed: bool,
    /// Somebody is still there so often.
    pub(super) pings: u64,
}

/// The actor.
pub(super) struct Actor {
    pub(super) chats: Arc<Inner>,
    pub(super) chat: StoredChat,
    pub(super) lobby: Arc<Lobby>,
    pub(super) wants: watch::Receiver<Wants>,
    /// What of these was seen to.
    pub(super) seen: Wants,
    pub(super) conversation: Option<Conversation>,
    /// How often in a row something was to be tried again.
    pub(super) tries: u32,
}

/// How a try to load a chat ended.
enum Loaded {
    Yes(Box<Conversation>),
    /// A person stopped the turn that it was for.
    Stopped,
    /// The time of its chat is over.
    Late,
    /// It cannot be.
    Never(String),
    /// The supervisor stops.
    Stopping,
}

/// How a turn ended, as far as the actor must know.
enum Worked {
    /// Its report came.
    Ended(Arc<TaskReport>),
    /// It was not taken: look again what waits.
    Not,
    /// The fleet is gone.
    Gone,
}

/// What an idle chat does next.
enum Next {
    Work,
    Unload,
    Stopping,
}

impl Actor {
    /// Until nothing is to be done in the chat, or the supervisor stops.
    pub(super) async fn run(mut self) {
        loop {
            if self.chats.stop.is_cancelled() {
                return self.chats.forget(self.id());
            }
            let wants = *self.wants.borrow_and_update();
            self.seen.turns = wants.turns;
            self.seen.is_closed = wants.is_closed;
            let waiting = match self.waiting().await {
                Ok(waiting) => waiting,
                Err(why) => {
                    tracing::warn!(chat = %self.chat.session, why, "a chat's turns cannot be read");
                    self.pause().await;
                    continue;
                }
            };
            if let Some(turn) = waiting {
                let goes_on = if turn.is_stopped() {
                    let why = STOPPED_UNSENT;
                    self.unsent(&turn.turn, TurnOutcome::Cancelled, why).await;
                    true
                } else {
                    self.work(turn).await
                };
                self.chats.turn_over(&self.chat);
                if !goes_on {
                    return self.chats.forget(self.id());
                }
                continue;
            }
            if rounds::goes_on(&self.chat) {
                match self.round().await {
                    Round::Work => continue,
                    Round::Over => {}
                    Round::Later => {
                        self.pause().await;
                        continue;
                    }
                }
            }
            if wants.is_closed {
                self.close().await;
                return self.chats.forget(self.id());
            }
            match self.idle().await {
                Next::Work => {}
                Next::Stopping => return self.chats.forget(self.id()),
                Next::Unload => {
                    self.unload().await;
                    // A turn that came meanwhile is worked, by this actor or by the next one.
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

    async fn waiting(&self) -> Result<Option<StoredTurn>, String> {
        let chat = self.chat.session.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.waiting_turns(&chat));
        Ok(read.await?.into_iter().next())
    }

    async fn last(&self) -> Result<LastTurn, String> {
        let chat = self.chat.session.clone();
        self.chats
            .readers
            .read(move |reader| reader.last_turn(&chat))
            .await
    }

    /// Before something is tried again: longer each time, unless a person stops something.
    async fn pause(&mut self) {
        let wait = limits::CHAT_AGAIN.saturating_mul(1 << self.tries.min(16));
        let until = Instant::now() + wait.min(limits::CHAT_AGAIN_MOST);
        self.tries = self.tries.saturating_add(1);
        let before = *self.wants.borrow();
        loop {
            tokio::select! {
                () = self.chats.stop.cancelled() => return,
                () = sleep_until(until) => return,
                changed = self.wants.changed() => {
                    let now = *self.wants.borrow_and_update();
                    let same = (now.stopped_to, now.is_closed)
                        == (before.stopped_to, before.is_closed);
                    if changed.is_err() || !same {
                        return;
                    }
                }
            }
        }
    }

    /// A person stopped the turn.
    fn is_stopped(&mut self, turn: &StoredTurn) -> bool {
        turn.seq <= self.wants.borrow_and_update().stopped_to
    }

    /// Works one turn to its end; `false` when the supervisor stops.
    async fn work(&mut self, turn: StoredTurn) -> bool {
        if self.conversation.is_none() {
            match self.load(&turn).await {
                Loaded::Yes(conversation) => {
                    self.tries = 0;
                    self.conversation = Some(*conversation);
                }
                // It says so itself.
                Loaded::Stopped => return true,
                Loaded::Late => {
                    let why = "the time of the chat is over";
                    self.unsent(&turn.turn, TurnOutcome::Cancelled, why).await;
                    return true;
                }
                Loaded::Never(why) => {
                    self.unsent(&turn.turn, TurnOutcome::Failed, &why).await;
                    return true;
                }
                Loaded::Stopping => return false,
            }
        }
        match self.send(&turn).await {
            Worked::Ended(report) => {
                self.tries = 0;
                self.ended(&turn, &report).await
            }
            Worked::Not => {
                self.pause().await;
                true
            }
            Worked::Gone => false,
        }
    }

    /// Loads the session into a slot; waits for one as long as it takes.
    async fn load(&mut self, turn: &StoredTurn) -> Loaded {
        let (chats, chat) = (Arc::clone(&self.chats), self.chat.clone());
        let Some(directory) = chats.directory(&chat) else {
            let name = &chat.workspace;
            return Loaded::Never(format!(
                "the configuration has no [workspace.{name}] any more"
            ));
        };
        // Where none is given, nobody needs to give one up.
        let gives = || chats.fleet.gives_slots(&chat.pool);
        let is_crowded = gives() && !chats.fleet.has_free_slot(&chat.pool);
        let mut place: Option<Waiting> = is_crowded.then(|| self.lobby.enter());
        let due = self.due();
        loop {
            if self.is_stopped(turn) {
                return Loaded::Stopped;
            }
            let began = Instant::now();
            let loading = chats.fleet.load_chat(
                &chat.pool,
                &directory,
                chat.session.clone(),
                chat.model.clone(),
            );
            let mut loading = std::pin::pin!(loading);
            let patience = Instant::now() + limits::CHAT_SLOT_PATIENCE;
            let refused = loop {
                tokio::select! {
                    loaded = &mut loading => match loaded {
                        Ok(conversation) => return Loaded::Yes(Box::new(conversation)),
                        Err(error) => break error,
                    },
                    () = sleep_until(patience), if place.is_none() && gives() => {
                        place = Some(self.lobby.enter());
                    }
                    changed = self.wants.changed() => {
                        if changed.is_err() || self.is_stopped(turn) {
                            return Loaded::Stopped;
                        }
                    }
                    () = rounds::until(due) => return Loaded::Late,
                    () = chats.stop.cancelled() => return Loaded::Stopping,
                }
            };
            match refused {
                OpenError::Stopping => return Loaded::Stopping,
                OpenError::NoSlot(why) if chats.fleet.is_parked(&chat.pool) => {
                    return Loaded::Never(why);
                }
                // Somebody else took what was given up for it. The wait was long enough.
                OpenError::NoSlot(_) => {
                    place = None;
                    if began.elapsed() >= limits::CHAT_AGAIN_MOST {
                        self.tries = 0;
                    }
                }
                OpenError::Taken(_) | OpenError::Journal(_) => {}
                error => return Loaded::Never(format!("{NOBODY}: {error}")),
            }
            self.pause().await;
        }
    }

    /// The prompt that a turn becomes.
    async fn prompt(&self, turn: &StoredTurn) -> Result<Foreign, String> {
        let config = self.chats.config.now();
        let mut pools = config.pools.iter();
        let pool = pools.find(|pool| pool.name == self.chat.pool);
        if pool.is_some_and(|pool| !pool.dialect.heeds_remarks()) {
            return Ok(turn.content.clone());
        }
        let chat = self.chat.session.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| Ok((reader.was_stopped(&chat)?, reader.has_answered(&chat)?)));
        let (was_stopped, has_answered) = read.await?;
        let content = turn.content.raw();
        let marker = if was_stopped { MARKER } else { "" };
        let gap = if was_stopped { "\n\n" } else { "" };
        // One that was stopped at once may not have come as far as the agent.
        if !has_answered {
            let role = config.roles.get(&self.chat.role);
            let first = first_prompt(role, &self.chat.files, content);
            let instructions = self.chat.settings.instructions.as_deref();
            let mut text = with_instructions(instructions, first);
            if rounds::goes_on(&self.chat) {
                text.push_str(&rounds::told(&self.chat));
            }
            return Ok(Foreign::new(format!("{marker}{gap}{text}")));
        }
        Ok(Foreign::new(format!("{marker}{gap}{content}")))
    }

    /// What the next turn of a member is checked by; empty if by nothing.
    async fn check(&self) -> Result<Vec<String>, super::ChatError> {
        if self.chat.parent.is_none() {
            return Ok(rounds::check(&self.chat));
        }
        let settings = self.chats.chat(self.id()).await?.settings;
        let shell = |check| vec!["sh".to_owned(), "-c".to_owned(), check];
        Ok(settings.check.map(shell).unwrap_or_default())
    }

    /// Sends a turn and waits for its end, hearing stops all the while.
    async fn send(&mut self, turn: &StoredTurn) -> Worked {
        let text = match self.prompt(turn).await {
            Ok(text) => text,
            Err(why) => {
                tracing::warn!(chat = %self.chat.session, why, "a turn waits for the journal");
                return Worked::Not;
            }
        };
        let Ok(check) = self.check().await else {
            return Worked::Not;
        };
        let mut due = self.due();
        let Some(conversation) = &mut self.conversation else {
            return Worked::Not;
        };
        // A turn that waits again had a task before.
        let name = format!("{}.{}", turn.turn, conversation.next_number());
        let Ok(task) = TaskId::new(&name) else {
            return Worked::Not;
        };
        let begin = Write::Chat(ChatWrite::Begin {
            turn: turn.turn.clone(),
            task: task.clone(),
            at_ms: self.chats.fleet.now_ms(),
        });
        match conversation.turn(task, text, check, vec![begin]).await {
            Ok(()) => {}
            Err(PromptError::Submit(SubmitError::Stopping)) => return Worked::Gone,
            Err(error) => {
                tracing::debug!(chat = %self.chat.session, %error, "a turn was not taken");
                return Worked::Not;
            }
        }
        loop {
            tokio::select! {
                brought = conversation.next() => match brought {
                    Some(Brought::Ended(report)) => return Worked::Ended(report),
                    // People answer through the doors of the asks.
                    Some(_) => {}
                    None => return Worked::Gone,
                },
                () = rounds::until(due) => {
                    due = None;
                    conversation.cancel();
                }
                changed = self.wants.changed() => {
                    if changed.is_err() {
                        return Worked::Gone;
                    }
                    if turn.seq <= self.wants.borrow_and_update().stopped_to {
                        conversation.interrupt();
                    }
                }
            }
        }
    }

    /// A turn's report came; `false` when the supervisor stops.
    async fn ended(&mut self, turn: &StoredTurn, report: &TaskReport) -> bool {
        let last = loop {
            match self.last().await {
                Ok(last) => break last,
                Err(why) => {
                    tracing::warn!(chat = %self.chat.session, why, "a turn's end is not looked up yet");
                }
            }
            if self.chats.stop.is_cancelled() {
                return false;
            }
            self.pause().await;
        };
        let is_of_it = last.task.as_ref().map(seed::turn_of) == Some(turn.turn.as_str());
        let is_written = last.detail.as_deref() != Some(crate::fleet::UNWRITTEN);
        let is_told = is_of_it && last.ended > last.prompted && is_written;
        if !is_told {
            if self.chats.stop.is_cancelled() && report.outcome == TaskOutcome::Skipped {
                // Nobody has had it: the next start sends it.
                let again = Write::Chat(ChatWrite::Again {
                    turn: turn.turn.clone(),
                });
                let _ = self.chats.fleet.keep_rows(vec![again]).await;
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
            self.unsent(&turn.turn, outcome, &why).await;
        } else if report.outcome == TaskOutcome::Skipped {
            self.end(&turn.turn, TurnOutcome::Lost).await;
        }
        if self.chats.stop.is_cancelled() {
            return false;
        }
        let Some(conversation) = self.conversation.as_ref() else {
            return true;
        };
        // Also one that has much to do leaves a slot that is to get nothing more.
        let leaves = conversation.is_to_leave();
        if !conversation.has_left() && (leaves || self.gives_way().await) {
            self.unload().await;
        }
        true
    }

    /// Whether the chat is to give up its slot for another: not while it has a command in the
    /// background.
    async fn gives_way(&self) -> bool {
        if !self.lobby.gives_way() {
            return false;
        }
        let is_busy = self.has_live_commands().await;
        if is_busy {
            self.lobby.takes_back();
        }
        !is_busy
    }

    /// A turn ends that no agent has had: its row, and with it an event that says so.
    async fn unsent(&mut self, turn: &TurnId, outcome: TurnOutcome, why: &str) {
        while !self.end_unsent(turn, outcome, why).await {
            if self.chats.stop.is_cancelled() {
                return;
            }
            self.pause().await;
        }
        self.tries = 0;
    }

    async fn end_unsent(&mut self, turn: &TurnId, outcome: TurnOutcome, why: &str) -> bool {
        if let Some(conversation) = &self.conversation {
            let (event, rows) = self.chats.unsent(turn, outcome, why);
            if !conversation.has_left() && conversation.note(event, rows).await {
                return true;
            }
            // It may be durable all the same; that is seen when nobody else writes the stream.
            self.unload().await;
        }
        self.chats.end_unsent(self.id(), turn, outcome, why).await
    }

    /// Closes the chat, in which nothing waits.
    async fn close(&mut self) {
        self.unload().await;
        while let Err(error) = self.chats.fleet.close_chat(self.chat.session.clone()).await {
            tracing::warn!(chat = %self.chat.session, %error, "a chat is not closed yet");
            if self.chats.stop.is_cancelled() || !matches!(error, SubmitError::Journal(_)) {
                return;
            }
            self.pause().await;
        }
    }

    async fn end(&mut self, turn: &TurnId, outcome: TurnOutcome) {
        loop {
            let end = Write::Chat(ChatWrite::End {
                turn: turn.clone(),
                outcome,
                at_ms: self.chats.fleet.now_ms(),
            });
            match self.chats.fleet.keep_rows(vec![end]).await {
                Ok(()) | Err(SubmitError::Rejected(_) | SubmitError::Stopping) => return,
                Err(error) => {
                    tracing::warn!(chat = %self.chat.session, %error, "a turn's end is not kept yet");
                }
            }
            if self.chats.stop.is_cancelled() {
                return;
            }
            self.pause().await;
        }
    }

    /// Nothing is to be done: waits for a turn, for as long as the chat may keep its slot.
    async fn idle(&mut self) -> Next {
        let kept = self.chats.config.now().chat.idle;
        let mut until = Instant::now() + kept;
        // While a command runs in the background the slot is not given up; the stream tells its end.
        let mut busy: Option<watch::Receiver<u64>> = None;
        loop {
            let lobby = Arc::clone(&self.lobby);
            let Some(conversation) = &mut self.conversation else {
                return Next::Unload;
            };
            tokio::select! {
                changed = self.wants.changed() => {
                    if changed.is_err() {
                        return Next::Stopping;
                    }
                    let wants = *self.wants.borrow_and_update();
                    if std::mem::replace(&mut self.seen.pings, wants.pings) != wants.pings {
                        until = Instant::now() + kept;
                    }
                    if wants.turns != self.seen.turns || wants.is_closed {
                        return Next::Work;
                    }
                }
                brought = conversation.next() => if brought.is_none() {
                    return Next::Stopping;
                },
                () = sleep_until(until) => {
                    if !self.has_live_commands().await {
                        return Next::Unload;
                    }
                    until = Instant::now() + kept.min(LOOK);
                }
                () = lobby.wanted(), if busy.is_none() => {
                    // Before the look, so that no end is missed after it.
                    let tap = self.chats.fleet.follow(&self.chat.session);
                    if !self.has_live_commands().await {
                        return Next::Unload;
                    }
                    lobby.takes_back();
                    busy = Some(tap);
                }
                () = grown(busy.as_mut()), if busy.is_some() => {
                    if !self.has_live_commands().await {
                        busy = None;
                    }
                }
                () = self.chats.stop.cancelled() => return Next::Stopping,
            }
        }
    }

    /// A command in the background is no idleness. What cannot be looked up is none.
    async fn has_live_commands(&self) -> bool {
        let chat = self.chat.session.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.has_live_commands(&chat));
        read.await.unwrap_or(true)
    }

    /// The child is stopped and the slot given back; home and stream stay.
    pub(super) async fn unload(&mut self) {
        if let Some(mut conversation) = self.conversation.take() {
            conversation.leave().await;
        }
    }
}

/// Returns when the stream has grown, not more often than now and then. Cancel-safe.
async fn grown(tap: Option<&mut watch::Receiver<u64>>) {
    sleep(limits::CHAT_AGAIN).await;
    let Some(tap) = tap else { return };
    if tap.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How soon it is looked again whether a command in the background is over.
const LOOK: Duration = Duration::from_secs(60);
