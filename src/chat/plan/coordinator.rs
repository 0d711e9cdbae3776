//! The actor of one chat whose plan is worked: it looks at what is on record, at the file and at its
//! members, and does the next thing, until the work is over.
//!
//! Everything that it knows is durable, so a start goes on where the last one was; it alone writes the
//! chat's events. It is woken by its members' turns and events, by the file, and by people. Must not
//! know how a member's turn is run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::book::went_with_us;
use super::file::{NoPlan, PlanFile};
use super::watch::Watch;
use super::{Order, prompts, review};
use crate::chat::{Accepted, ChatError, Chats, Inner};
use crate::fleet::SubmitError;
use crate::journal::{ChatWrite, PlanWrite, StoredChat, StoredTurn, Write};
use crate::limits;
use crate::model::{
    ChatPhase, ChatProgress, Event, SessionId, TurnId, TurnOutcome, TurnState, Work,
};
use crate::plan::checklist::ItemId;

/// Why a step could not be made now.
#[derive(Debug)]
pub(super) enum Stuck {
    /// It is tried again.
    Again(String),
    /// The supervisor stops.
    Stopping,
}

impl From<String> for Stuck {
    fn from(why: String) -> Self {
        Self::Again(why)
    }
}

impl From<ChatError> for Stuck {
    fn from(error: ChatError) -> Self {
        Self::Again(error.to_string())
    }
}

impl From<SubmitError> for Stuck {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Stopping => Self::Stopping,
            error => Self::Again(error.to_string()),
        }
    }
}

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing before somebody says that something changed.
    Wait,
    /// It is looked again after a while.
    Soon,
    /// The next step at once.
    Next,
    /// The work is over.
    Over,
}

/// What is known of an item that came to the file.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// The turns that ran when it was seen first.
    pub(super) turns: HashSet<TurnId>,
    /// A turn ran between the look before and that one, or nobody knows.
    pub(super) in_turn: bool,
    /// It counts as an agent's; `None`: not yet known.
    pub(super) agents: Option<bool>,
}

/// The actor.
pub(super) struct Coordinator {
    pub(super) chats: Arc<Inner>,
    pub(super) id: SessionId,
    pub(super) chat: Option<StoredChat>,
    orders: mpsc::Receiver<Order>,
    poke: Arc<Notify>,
    /// What is lost now went with an earlier start.
    pub(super) is_first: bool,
    /// How far each member's events were looked at when the file was.
    pub(super) looked: HashMap<SessionId, u64>,
    /// Items that are new, or were gone.
    pub(super) fresh: HashMap<ItemId, Fresh>,
    /// How many turns each member had when the file was looked at last, and whether it had one then.
    pub(super) stood: HashMap<SessionId, (u64, bool)>,
    /// Looks at a file that was no plan, one after the other.
    pub(super) missed: u32,
    watch: Option<Watch>,
    /// Wake it when members' events come.
    ears: JoinSet<()>,
    heard: HashSet<SessionId>,
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
            poke,
            is_first: true,
            looked: HashMap::new(),
            fresh: HashMap::new(),
            stood: HashMap::new(),
            missed: 0,
            watch: None,
            ears: JoinSet::new(),
            heard: HashSet::new(),
        }
    }

    /// Until the work is over, or the supervisor stops.
    pub(super) async fn run(mut self) {
        let chats = Arc::clone(&self.chats);
        let id = self.id.clone();
        loop {
            if chats.stop.is_cancelled() {
                break;
            }
            let then = match self.look().await {
                Ok(Then::Over) | Err(Stuck::Stopping) => break,
                Ok(then) => {
                    self.is_first = false;
                    then
                }
                Err(Stuck::Again(why)) => {
                    tracing::warn!(chat = %id, why, "the work of a plan waits");
                    Then::Soon
                }
            };
            if then == Then::Next {
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
                () = self.poke.notified() => {}
                () = changed => sleep(limits::PLAN_SETTLE).await,
                () = sleep(limits::CHAT_AGAIN), if then == Then::Soon => {}
                () = chats.stop.cancelled() => break,
            }
        }
        // Orders that still wait get no answer, and whoever gave them looks how the chat stands.
        chats.leave(&id);
    }

    async fn look(&mut self) -> Result<Then, Stuck> {
        let chat = self.chats.chat(&self.id).await?;
        self.chat = Some(chat.clone());
        let phase = match chat.phase {
            None | Some(ChatPhase::Over) => return Ok(Then::Over),
            Some(_) if chat.ended_ms.is_some() => return Ok(Then::Over),
            Some(phase) => phase,
        };
        if self.watch.is_none()
            && let Some(directory) = self.chats.directory(&chat)
            && let Some(plan) = &chat.settings.plan
        {
            self.watch = Some(Watch::of(&directory.join(plan)));
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
                .end(&chat, outcome, "member_closed", message, Vec::new())
                .await;
        }
        match phase {
            ChatPhase::Planning => self.planning(&chat, &members).await,
            ChatPhase::Approval => self.approval(&chat).await,
            ChatPhase::Working | ChatPhase::Over => self.working(&chat, &members).await,
        }
    }

    /// Is woken from now on when a member's events grow by what is told here.
    fn listen(&mut self, member: &SessionId) {
        if !self.heard.insert(member.clone()) {
            return;
        }
        let mut tap = self.chats.fleet.follow(member);
        let (chats, member, poke) = (
            Arc::downgrade(&self.chats),
            member.clone(),
            Arc::clone(&self.poke),
        );
        self.ears.spawn(async move {
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

    pub(super) async fn members(&self) -> Result<Vec<StoredChat>, Stuck> {
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

    /// The newest turn of a member.
    pub(super) async fn last_turn(&self, of: &StoredChat) -> Result<Option<StoredTurn>, Stuck> {
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
            path: chat.settings.plan.clone().unwrap_or_default(),
            chat: chat.session.clone(),
        }
    }

    /// Puts events into the chat's stream, together with rows.
    pub(super) async fn tell(&self, works: Vec<Work>, with: Vec<Write>) -> Result<(), Stuck> {
        let events = works.into_iter().map(Event::Work).collect();
        Ok(self.chats.fleet.tell(&self.id, events, with).await?)
    }

    /// Gives a member its next message, in one commit with what goes with it, which is made of the
    /// turn's id.
    pub(super) async fn send(
        &self,
        member: &SessionId,
        content: String,
        works: Vec<Work>,
        with: impl FnOnce(&TurnId) -> Vec<Write>,
    ) -> Result<(), Stuck> {
        let place = self.chats.place(member).await;
        let found = self.chats.chat(member).await?;
        if found.ended_ms.is_some() {
            return Err(Stuck::Again(format!("the member {member} is closed")));
        }
        self.chats.room(member, &found.pool)?;
        let turn = self.chats.turn(member, found.turns + 1, content, None)?;
        let mut writes = with(&turn.turn);
        writes.push(Write::Chat(ChatWrite::Accept(turn)));
        self.tell(works, writes).await?;
        drop(place);
        self.chats.wake(found, |wants| wants.turns += 1);
        Ok(())
    }

    pub(super) fn progress(&self, phase: ChatPhase, progress: ChatProgress) -> Write {
        Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
            chat: self.id.clone(),
            phase,
            progress,
        }))
    }

    /// The work is over.
    pub(super) async fn end(
        &self,
        chat: &StoredChat,
        outcome: TurnOutcome,
        reason: &str,
        message: String,
        with: Vec<Write>,
    ) -> Result<Then, Stuck> {
        let progress = ChatProgress {
            outcome: Some(outcome),
            reason: Some(reason.to_owned()),
            ..chat.progress.clone()
        };
        let mut writes = with;
        writes.push(self.progress(ChatPhase::Over, progress));
        let ended = Work::Ended {
            outcome,
            reason: reason.to_owned(),
            message,
        };
        self.tell(vec![ended], writes).await?;
        Ok(Then::Over)
    }

    /// The plan is being written.
    async fn planning(&mut self, chat: &StoredChat, members: &[StoredChat]) -> Result<Then, Stuck> {
        let Some(planner) = members.iter().find(|of| of.settings.planner.is_some()) else {
            let why = "this chat has no planner".to_owned();
            return self
                .end(chat, TurnOutcome::Failed, "no_plan", why, Vec::new())
                .await;
        };
        let Some(last) = self.last_turn(planner).await? else {
            return Ok(Then::Wait);
        };
        if last.state != TurnState::Ended {
            return Ok(Then::Wait);
        }
        if last.outcome != Some(TurnOutcome::Completed) && self.chats.stop.is_cancelled() {
            return Err(Stuck::Stopping);
        }
        let mut progress = chat.progress.clone();
        if went_with_us(&last) && self.is_first && progress.rounds < limits::PLAN_LOSSES {
            progress.rounds += 1;
            let again = self.progress(ChatPhase::Planning, progress);
            let content = last.content.raw().to_owned();
            self.send(&planner.session, content, Vec::new(), |_| vec![again])
                .await?;
            return Ok(Then::Wait);
        }
        let file = self.file(chat);
        let why = match file.read().await {
            Ok(_) if last.outcome == Some(TurnOutcome::Completed) => {
                progress.reminders = 0;
                let next = self.progress(ChatPhase::Approval, progress);
                self.tell(Vec::new(), vec![next]).await?;
                return Ok(Then::Next);
            }
            Ok(_) => "the planner's turn did not end well".to_owned(),
            Err(NoPlan::Not(why)) => why,
            Err(NoPlan::Unread(why)) => return Err(Stuck::Again(why)),
        };
        if progress.reminders > 0 {
            let end = self.end(chat, TurnOutcome::Failed, "no_plan", why, Vec::new());
            return end.await;
        }
        progress.reminders += 1;
        let reminded = self.progress(ChatPhase::Planning, progress);
        let content = prompts::no_checklist(&file.path, &why);
        self.send(&planner.session, content, Vec::new(), |_| vec![reminded])
            .await?;
        Ok(Then::Wait)
    }

    /// A person's order.
    async fn order(&mut self, order: Order) {
        let stuck = |stuck: Stuck| match stuck {
            Stuck::Again(why) => ChatError::Unavailable(why),
            Stuck::Stopping => ChatError::Unavailable("the supervisor stops".to_owned()),
        };
        match order {
            Order::Stop(reply) => {
                let done = self.stopped().await.map_err(stuck);
                let _ = reply.send(done);
            }
            Order::Approve { by, sha256, reply } => {
                let said = review::Verdict::Approved { sha256 };
                let done = self.reviewed(by, said).await;
                let _ = reply.send(done);
            }
            Order::Reject { by, why, reply } => {
                let done = self.reviewed(by, review::Verdict::Rejected { why }).await;
                let _ = reply.send(done);
            }
            Order::Say {
                content,
                key,
                reply,
            } => {
                let done = self.said(content, key).await;
                let _ = reply.send(done);
            }
        }
        // Whatever it was, it is looked at.
        self.poke.notify_one();
    }

    async fn stopped(&self) -> Result<(), Stuck> {
        let chat = self.chats.chat(&self.id).await?;
        if chat.phase.is_none_or(|phase| phase == ChatPhase::Over) {
            return Ok(());
        }
        self.stop_members(&self.members().await?).await?;
        let message = "a person stopped it".to_owned();
        let outcome = TurnOutcome::Cancelled;
        self.end(&chat, outcome, "user_cancelled", message, Vec::new())
            .await?;
        Ok(())
    }

    async fn stop_members(&self, members: &[StoredChat]) -> Result<(), Stuck> {
        let chats = Chats(Arc::clone(&self.chats));
        for member in members.iter().filter(|of| of.ended_ms.is_none()) {
            let workspace = member.workspace.as_str();
            chats.stop(workspace, member.session.as_str()).await?;
        }
        Ok(())
    }

    async fn said(&self, content: String, key: Option<String>) -> Result<Accepted, ChatError> {
        let again = |stuck: Stuck| match stuck {
            Stuck::Again(why) => ChatError::Unavailable(why),
            Stuck::Stopping => ChatError::Unavailable("the supervisor stops".to_owned()),
        };
        let chat = self.chats.chat(&self.id).await?;
        let members = self.members().await.map_err(again)?;
        let planner = members.iter().find(|of| of.settings.planner.is_some());
        let (Some(planner), Some(ChatPhase::Planning | ChatPhase::Approval)) =
            (planner, chat.phase)
        else {
            return Err(super::worked());
        };
        // A planner that was told something may change the plan: it is looked at again after that.
        let progress = ChatProgress {
            reminders: 0,
            ..chat.progress.clone()
        };
        let planning = self.progress(ChatPhase::Planning, progress);
        self.tell(Vec::new(), vec![planning]).await.map_err(again)?;
        let (workspace, to) = (planner.workspace.as_str(), planner.session.as_str());
        let chats = Chats(Arc::clone(&self.chats));
        Box::pin(chats.say(workspace, to, content, key)).await
    }
}
