//! The coordinator of one plan: it compares the journal, the file and the members, and takes the
//! next step, until the work has ended.
//!
//! All of its state is durable, so a restart continues where the last start ended. It alone writes
//! the chat's events. It is woken by turns and events of members, by changes of the file, and by
//! people. Must not know how a member's turn runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::execution::ended_with_supervisor;
use super::file::{NoPlan, PlanFile};
use super::watch::Watch;
use super::{Order, prompts, review};
use crate::JournalError;
use crate::chat::{Accepted, ChatError, Chats, Inner};
use marshal_fleet::SubmitError;
use marshal_journal::{ChatWrite, PlanWrite, StoredChat, StoredTurn, Write};
use marshal_model::limits;
use marshal_model::{
    ChatPhase, ChatProgress, Event, SessionId, TurnId, TurnOutcome, TurnState, WorkEvent,
};
use marshal_wire::plan::checklist::ItemId;

/// Why a step could not be taken.
#[derive(Debug)]
pub(super) enum StepError {
    /// Try again later, for this reason.
    Retry(String),
    /// The supervisor is stopping.
    Stopping,
}

impl From<JournalError> for StepError {
    fn from(error: JournalError) -> Self {
        Self::Retry(error.to_string())
    }
}

impl From<ChatError> for StepError {
    fn from(error: ChatError) -> Self {
        Self::Retry(error.to_string())
    }
}

impl From<SubmitError> for StepError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Stopping => Self::Stopping,
            error => Self::Retry(error.to_string()),
        }
    }
}

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterStep {
    /// Wait for a signal.
    Wait,
    /// Check again after a delay.
    Later,
    /// Take the next step at once.
    Now,
    /// The work has ended.
    Done,
}

/// What is known of a new item in the file.
#[derive(Debug, Default)]
pub(super) struct NewItem {
    /// The turns that were running when it was first seen.
    pub(super) turns: HashSet<TurnId>,
    /// A turn ran between that read and the previous one, or this is unknown.
    pub(super) in_turn: bool,
    /// Whether an agent wrote it; `None` if not yet known.
    pub(super) agents: Option<bool>,
}

/// The coordinator of one chat.
pub(super) struct Coordinator {
    pub(super) chats: Arc<Inner>,
    pub(super) id: SessionId,
    pub(super) chat: Option<StoredChat>,
    orders: mpsc::Receiver<Order>,
    wakeup: Arc<Notify>,
    /// This is the first step after a start: lost turns were lost with an earlier start.
    pub(super) is_first: bool,
    /// The seq up to which each member's events were read when the file was read.
    pub(super) observed_seqs: HashMap<SessionId, u64>,
    /// Items that are new, or were missing before.
    pub(super) new_items: HashMap<ItemId, NewItem>,
    /// The number of turns of each member when the file was last read, and whether one was running.
    pub(super) observed_turns: HashMap<SessionId, (u64, bool)>,
    /// The number of consecutive reads without a valid plan.
    pub(super) missing_reads: u32,
    watch: Option<Watch>,
    /// Wake the coordinator when members have new events.
    listeners: JoinSet<()>,
    listened_members: HashSet<SessionId>,
}

impl Coordinator {
    pub(super) fn new(
        chats: Arc<Inner>,
        id: SessionId,
        orders: mpsc::Receiver<Order>,
        poke: Arc<Notify>,
    ) -> Self {
        Self {
            chats,
            id,
            chat: None,
            orders,
            wakeup: poke,
            is_first: true,
            observed_seqs: HashMap::new(),
            new_items: HashMap::new(),
            observed_turns: HashMap::new(),
            missing_reads: 0,
            watch: None,
            listeners: JoinSet::new(),
            listened_members: HashSet::new(),
        }
    }

    /// Runs until the work has ended, or the supervisor stops.
    pub(super) async fn run(mut self) {
        let chats = Arc::clone(&self.chats);
        let id = self.id.clone();
        loop {
            if chats.stop.is_cancelled() {
                break;
            }
            let then = match self.step().await {
                Ok(AfterStep::Done) | Err(StepError::Stopping) => break,
                Ok(then) => {
                    self.is_first = false;
                    then
                }
                Err(StepError::Retry(why)) => {
                    tracing::warn!(chat = %id, why, "the execution of a plan waits");
                    AfterStep::Later
                }
            };
            if then == AfterStep::Now {
                continue;
            }
            if let Some(watch) = &mut self.watch
                && watch.renew()
            {
                continue;
            }
            let changed = async {
                match &mut self.watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = self.orders.recv() => {
                    let Some(order) = order else { break };
                    self.order(order).await;
                }
                () = self.wakeup.notified() => {}
                () = changed => sleep(limits::PLAN_SETTLE).await,
                () = sleep(limits::CHAT_RETRY), if then == AfterStep::Later => {}
                () = chats.stop.cancelled() => break,
            }
        }
        // Waiting orders get no reply; their callers then read the chat's state.
        chats.leave(&id);
    }

    async fn step(&mut self) -> Result<AfterStep, StepError> {
        let chat = self.chats.chat(&self.id).await?;
        self.chat = Some(chat.clone());
        let phase = match chat.phase {
            None | Some(ChatPhase::Ended) => return Ok(AfterStep::Done),
            Some(_) if chat.ended_ms.is_some() => return Ok(AfterStep::Done),
            Some(phase) => phase,
        };
        if self.watch.is_none()
            && let Some(directory) = self.chats.directory(&chat)
            && let Some(plan) = &chat.settings.plan_path
        {
            self.watch = Some(Watch::new(&directory.join(plan)));
        }
        let members = self.members().await?;
        for member in &members {
            self.listen(&member.session);
            self.forward(member).await?;
        }
        let works = |of: &&StoredChat| of.settings.planner.is_none() || phase != ChatPhase::Working;
        if let Some(closed) = members
            .iter()
            .filter(works)
            .find(|of| of.ended_ms.is_some())
        {
            let message = format!("the member {} was closed", closed.session);
            self.stop_members(&members).await?;
            let outcome = TurnOutcome::Failed;
            return self
                .end_work(&chat, outcome, "member_closed", message, Vec::new())
                .await;
        }
        match phase {
            ChatPhase::Planning => self.planning(&chat, &members).await,
            ChatPhase::Approval => self.request_approval(&chat).await,
            ChatPhase::Working | ChatPhase::Ended => self.run_approved(&chat, &members).await,
        }
    }

    /// Wakes the coordinator when a member has new events.
    fn listen(&mut self, member: &SessionId) {
        if !self.listened_members.insert(member.clone()) {
            return;
        }
        let mut tap = self.chats.fleet.follow(member);
        let (chats, member, poke) = (
            Arc::downgrade(&self.chats),
            member.clone(),
            Arc::clone(&self.wakeup),
        );
        self.listeners.spawn(async move {
            let mut seen = 0;
            while tap.changed().await.is_ok() {
                let end = *tap.borrow_and_update();
                let Some(readers) = chats.upgrade().map(|chats| chats.readers.clone()) else {
                    return;
                };
                let of = member.clone();
                let read = readers.read(move |reader| reader.member_events(&of, seen, 1));
                let is_nothing = read.await.is_ok_and(|found| found.is_empty());
                seen = end;
                if !is_nothing {
                    poke.notify_one();
                }
            }
        });
    }

    pub(super) async fn members(&self) -> Result<Vec<StoredChat>, StepError> {
        let id = self.id.clone();
        let read = self.chats.readers.read(move |reader| {
            let ids = reader.members(&id)?;
            let mut members = Vec::new();
            for id in ids {
                members.extend(reader.chat(&id)?);
            }
            Ok(members)
        });
        Ok(read.await?)
    }

    /// Returns the newest turn of a member.
    pub(super) async fn last_turn(&self, of: &StoredChat) -> Result<Option<StoredTurn>, StepError> {
        let (id, after) = (of.session.clone(), of.turns.saturating_sub(1));
        let read = self
            .chats
            .readers
            .read(move |reader| reader.turns(&id, after, 1));
        Ok(read.await?.pop())
    }

    pub(super) fn file(&self, chat: &StoredChat) -> PlanFile {
        PlanFile {
            fleet: self.chats.fleet.clone(),
            workspace: chat.workspace.clone(),
            path: chat.settings.plan_path.clone().unwrap_or_default(),
            chat: chat.session.clone(),
        }
    }

    /// Appends events to the chat's stream, in one commit with rows.
    pub(super) async fn append_events(
        &self,
        works: Vec<WorkEvent>,
        with: Vec<Write>,
    ) -> Result<(), StepError> {
        let events = works.into_iter().map(Event::Work).collect();
        Ok(self
            .chats
            .fleet
            .append_events(&self.id, events, with)
            .await?)
    }

    /// Sends a member its next message, in one commit with the rows that `with` makes from the
    /// turn's id.
    pub(super) async fn send(
        &self,
        member: &SessionId,
        content: String,
        works: Vec<WorkEvent>,
        with: impl FnOnce(&TurnId) -> Vec<Write>,
    ) -> Result<(), StepError> {
        let place = self.chats.lock_chat(member).await;
        let chat = self.chats.chat(member).await?;
        if chat.ended_ms.is_some() {
            return Err(StepError::Retry(format!("the member {member} is closed")));
        }
        self.chats.check_capacity(member, &chat.pool)?;
        let turn = self.chats.turn(member, chat.turns + 1, content, None)?;
        let mut writes = with(&turn.turn);
        writes.push(Write::Chat(ChatWrite::Accept(turn)));
        self.append_events(works, writes).await?;
        drop(place);
        self.chats.wake(chat, |wants| wants.turns += 1);
        Ok(())
    }

    pub(super) fn progress(&self, phase: ChatPhase, progress: ChatProgress) -> Write {
        Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
            chat: self.id.clone(),
            phase,
            progress,
        }))
    }

    /// Ends the work.
    pub(super) async fn end_work(
        &self,
        chat: &StoredChat,
        outcome: TurnOutcome,
        reason: &str,
        message: String,
        with: Vec<Write>,
    ) -> Result<AfterStep, StepError> {
        let progress = ChatProgress {
            outcome: Some(outcome),
            reason: Some(reason.to_owned()),
            ..chat.progress.clone()
        };
        let mut writes = with;
        writes.push(self.progress(ChatPhase::Ended, progress));
        let ended = WorkEvent::Ended {
            outcome,
            reason: reason.to_owned(),
            message,
        };
        self.append_events(vec![ended], writes).await?;
        Ok(AfterStep::Done)
    }

    /// Takes a step of the planning phase.
    async fn planning(
        &mut self,
        chat: &StoredChat,
        members: &[StoredChat],
    ) -> Result<AfterStep, StepError> {
        let Some(planner) = members.iter().find(|of| of.settings.planner.is_some()) else {
            let why = "this chat has no planner".to_owned();
            return self
                .end_work(chat, TurnOutcome::Failed, "no_plan", why, Vec::new())
                .await;
        };
        let Some(last) = self.last_turn(planner).await? else {
            return Ok(AfterStep::Wait);
        };
        if last.state != TurnState::Ended {
            return Ok(AfterStep::Wait);
        }
        if last.outcome != Some(TurnOutcome::Completed) && self.chats.stop.is_cancelled() {
            return Err(StepError::Stopping);
        }
        let mut progress = chat.progress.clone();
        if ended_with_supervisor(&last)
            && self.is_first
            && progress.rounds < limits::PLAN_LOST_TURNS
        {
            progress.rounds += 1;
            let again = self.progress(ChatPhase::Planning, progress);
            let content = last.content.raw().to_owned();
            self.send(&planner.session, content, Vec::new(), |_| vec![again])
                .await?;
            return Ok(AfterStep::Wait);
        }
        let file = self.file(chat);
        let why = match file.read().await {
            Ok(_) if last.outcome == Some(TurnOutcome::Completed) => {
                progress.reminders = 0;
                let next = self.progress(ChatPhase::Approval, progress);
                self.append_events(Vec::new(), vec![next]).await?;
                return Ok(AfterStep::Now);
            }
            Ok(_) => "the planner's turn failed".to_owned(),
            Err(NoPlan::Missing(why)) => why,
            Err(NoPlan::Unreadable(why)) => return Err(StepError::Retry(why)),
        };
        if progress.reminders > 0 {
            let end = self.end_work(chat, TurnOutcome::Failed, "no_plan", why, Vec::new());
            return end.await;
        }
        progress.reminders += 1;
        let reminded = self.progress(ChatPhase::Planning, progress);
        let content = prompts::no_checklist(&file.path, &why);
        self.send(&planner.session, content, Vec::new(), |_| vec![reminded])
            .await?;
        Ok(AfterStep::Wait)
    }

    /// Handles a person's order.
    async fn order(&mut self, order: Order) {
        let stuck = |stuck: StepError| match stuck {
            StepError::Retry(why) => ChatError::Unavailable(why),
            StepError::Stopping => ChatError::Unavailable("the supervisor is stopping".to_owned()),
        };
        match order {
            Order::Stop(reply) => {
                let done = self.stop().await.map_err(stuck);
                let _ = reply.send(done);
            }
            Order::Approve { by, sha256, reply } => {
                let verdict = review::Verdict::Approved { sha256 };
                let done = self.record_review(by, verdict).await;
                let _ = reply.send(done);
            }
            Order::Reject { by, why, reply } => {
                let done = self
                    .record_review(by, review::Verdict::Rejected { why })
                    .await;
                let _ = reply.send(done);
            }
            Order::Message {
                content,
                key,
                reply,
            } => {
                let done = self.send_to_planner(content, key).await;
                let _ = reply.send(done);
            }
        }
        // Any order may have changed something.
        self.wakeup.notify_one();
    }

    async fn stop(&self) -> Result<(), StepError> {
        let chat = self.chats.chat(&self.id).await?;
        if chat.phase.is_none_or(|phase| phase == ChatPhase::Ended) {
            return Ok(());
        }
        self.stop_members(&self.members().await?).await?;
        let message = "a person stopped it".to_owned();
        let outcome = TurnOutcome::Cancelled;
        self.end_work(&chat, outcome, "user_cancelled", message, Vec::new())
            .await?;
        Ok(())
    }

    async fn stop_members(&self, members: &[StoredChat]) -> Result<(), StepError> {
        let chats = Chats(Arc::clone(&self.chats));
        for member in members.iter().filter(|of| of.ended_ms.is_none()) {
            let workspace = member.workspace.as_str();
            chats.stop(workspace, member.session.as_str()).await?;
        }
        Ok(())
    }

    async fn send_to_planner(
        &self,
        content: String,
        key: Option<String>,
    ) -> Result<Accepted, ChatError> {
        let again = |stuck: StepError| match stuck {
            StepError::Retry(why) => ChatError::Unavailable(why),
            StepError::Stopping => ChatError::Unavailable("the supervisor is stopping".to_owned()),
        };
        let chat = self.chats.chat(&self.id).await?;
        let members = self.members().await.map_err(again)?;
        let planner = members.iter().find(|of| of.settings.planner.is_some());
        let (Some(planner), Some(ChatPhase::Planning | ChatPhase::Approval)) =
            (planner, chat.phase)
        else {
            return Err(super::no_own_agent());
        };
        // The planner may change the plan after a message, so the plan is reviewed again.
        let progress = ChatProgress {
            reminders: 0,
            ..chat.progress.clone()
        };
        let planning = self.progress(ChatPhase::Planning, progress);
        self.append_events(Vec::new(), vec![planning])
            .await
            .map_err(again)?;
        let (workspace, to) = (planner.workspace.as_str(), planner.session.as_str());
        let chats = Chats(Arc::clone(&self.chats));
        Box::pin(chats.send_message(workspace, to, content, key)).await
    }
}
