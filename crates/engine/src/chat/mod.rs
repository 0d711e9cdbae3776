//! Chats: conversations with an id, whose agents are loaded and unloaded while the stream stays.
//!
//! Owns which chats have an actor, and that none has more than one. Must not know how clients
//! connect, or how an agent runs.
//!
//! After its idle time, or when its slot is needed, a chat has no child and no slot; the next
//! message loads it. If a child ends in a turn, the turn is `lost`, and the next child resumes the
//! session or receives the transcript. A daemon that stops cancels the running turn;
//! `Chats::resume` sends waiting messages at the next start. After a kill the running turn is
//! `lost`, unless its prompt was not accepted.

mod actor;
mod aging;
mod autonomous;
mod closing;
mod directory;
mod error;
mod hub;
mod idempotency;
mod live_config;
mod plan;
mod readers;
mod stream_events;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use directory::CreateRequest;
pub use error::ChatError;
pub use hub::{Cursor, Shape, Subscriber};
pub use idempotency::IdempotencyKey;
pub use plan::{Created, PlanView, ReviewDecision, StartedWork, WorkRequest};

use actor::{Actor, ActorSignals};
use hub::Hub;
use live_config::LiveConfig;
use marshal_config::Config;
use marshal_fleet::{FleetHandle, OpenError};
use marshal_journal::{ChatRow, ChatWrite, Health, StoredChat, StoredTurn, TurnRow, Write};
use marshal_model::limits;
use marshal_model::{
    ChatMode, ChatPhase, PoolName, RunId, SessionId, TurnId, TurnState, UntrustedText,
};
use marshal_telemetry::event::chat::MessageAccepted;
use plan::ActivePlans;
use readers::Readers;

/// The number of locks under which chats accept messages, so that two messages of a chat never get
/// the same sequence.
const STRIPES: usize = 64;

/// An accepted message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The id of its turn.
    pub turn: TurnId,
    /// Its sequence in the chat, from 1.
    pub sequence: u64,
}

/// A chat and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatView {
    /// The durable state.
    pub chat: StoredChat,
    /// Whether it has an actor now.
    pub is_loaded: bool,
}

/// The chats of a supervisor. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Chats(Arc<Inner>);

pub(crate) struct Inner {
    fleet: FleetHandle,
    config: LiveConfig,
    readers: Readers,
    /// Separate readers for streams, so that many subscribers do not delay turns.
    stream_readers: Readers,
    actors: Mutex<HashMap<SessionId, watch::Sender<ActorSignals>>>,
    hubs: Mutex<HashMap<SessionId, Weak<Hub>>>,
    chat_locks: Vec<tokio::sync::Mutex<()>>,
    /// The plans with a running coordinator.
    active_plans: ActivePlans,
    subscribers: Arc<Semaphore>,
    /// Cancelled when the supervisor stops: no more turns start.
    stop: CancellationToken,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chats").finish_non_exhaustive()
    }
}

impl Chats {
    /// Creates the chats of a fleet. Nothing is loaded before [`Chats::resume`].
    #[must_use]
    pub fn new(fleet: FleetHandle) -> Self {
        let config = fleet.config().clone();
        Self(Arc::new(Inner {
            readers: Readers::new(fleet.journal().clone()),
            stream_readers: Readers::new(fleet.journal().clone()),
            fleet,
            config: LiveConfig::new(config),
            actors: Mutex::default(),
            hubs: Mutex::default(),
            chat_locks: (0..STRIPES)
                .map(|_| tokio::sync::Mutex::default())
                .collect(),
            active_plans: ActivePlans::default(),
            subscribers: Arc::new(Semaphore::new(limits::CHAT_SUBSCRIBERS)),
            stop: CancellationToken::new(),
        }))
    }

    /// Resumes the chats in which a message waits since an earlier start, and the plans. Plans come
    /// first, so that they see what the earlier start lost. From now on, unused chats are closed.
    pub async fn resume(&self) {
        tokio::spawn(aging::run(Arc::clone(&self.0)));
        self.resume_closing().await;
        self.resume_plans().await;
        let mut after: Option<SessionId> = None;
        loop {
            let from = after.clone();
            let read = move |reader: &marshal_journal::Reader| {
                reader.chats_with_waiting_turns(from.as_ref(), limits::CHAT_PAGE)
            };
            let page = match self.0.readers.read(read).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::error!(
                        why = error.to_string(),
                        "the chats of earlier starts cannot be read"
                    );
                    return;
                }
            };
            let Some(last) = page.last().cloned() else {
                return;
            };
            for chat in page {
                let _place = self.0.lock_chat(&chat).await;
                match self.0.chat(&chat).await {
                    Ok(chat) => self.0.wake(chat, |wants| wants.turns += 1),
                    Err(error) => tracing::error!(%error, "a chat cannot be resumed"),
                }
            }
            after = Some(last);
        }
    }

    /// Starts no more turns; waiting turns stay for the next start.
    pub fn stop_working(&self) {
        self.0.stop.cancel();
    }

    /// Replaces the configuration; running turns continue unchanged.
    pub fn set_config(&self, config: Config) {
        self.0.config.set(config);
    }

    async fn begin(
        &self,
        workspace: &str,
        create_request: CreateRequest,
        once: Option<RunId>,
    ) -> Result<Created, ChatError> {
        let inner = &self.0;
        let (mode, create_request) = inner.apply_template(create_request)?;
        match mode {
            ChatMode::Chat | ChatMode::Autonomous => {}
            ChatMode::PlanThenExecute | ChatMode::ParallelAgents => {
                return Ok(Created::Work(
                    inner
                        .begin_work(workspace, mode, create_request, once)
                        .await?,
                ));
            }
        }
        if create_request.work != WorkRequest::default() && create_request.work.mode.is_none() {
            let why = "\"mode\" is missing: a chat without it cannot have the keys of autonomous or plan chats";
            return Err(ChatError::Unprocessable(why.to_owned()));
        }
        let config = inner.config.current();
        let (name, registered) = directory::workspace(&config, workspace)?;
        let (role_name, role) = directory::role(&config, &create_request)?;
        if create_request.goal.trim().is_empty() {
            let why = "\"goal\" is empty: describe what the chat is for".to_owned();
            return Err(ChatError::Unprocessable(why));
        }
        let remarks = [
            ("files", !create_request.files.is_empty()),
            ("mode", mode == ChatMode::Autonomous),
        ];
        if let Some((key, _)) = remarks.iter().find(|(_, is)| *is) {
            directory::check_supports_remarks(&config, &role_name, role, key)?;
        }
        let path = registered.workspace.path.clone();
        let files = create_request.files.clone();
        let root = path.clone();
        let checked =
            tokio::task::spawn_blocking(move || directory::check_files(&root, &files)).await;
        checked.map_err(|error| ChatError::Unavailable(error.to_string()))??;
        let can = inner.fleet.check_directory(&role.pool, &path).await;
        can.map_err(|error| match error {
            OpenError::Directory(why) => ChatError::Unprocessable(format!(
                "the role {role_name} cannot work in the workspace {name}: {why}"
            )),
            error => error.into(),
        })?;
        let (session, run) = inner.fleet.chat_ids()?;
        let run = once.unwrap_or(run);
        let now = inner.fleet.now_ms();
        let goes_on = mode == ChatMode::Autonomous;
        let settings = goes_on
            .then(|| autonomous::settings(&config, &role.pool, &session, create_request.work))
            .transpose()?;
        let row = ChatRow {
            session: session.clone(),
            run,
            workspace: name,
            role: role_name,
            model: create_request.model.or_else(|| role.model.clone()),
            goal: UntrustedText::from(create_request.goal.as_str()),
            files: create_request.files,
            pool: role.pool.clone(),
            mode,
            parent: None,
            phase: settings.as_ref().map(|_| ChatPhase::Working),
            settings,
            created_ms: now,
        };
        row.check()
            .map_err(|fault| ChatError::Unprocessable(fault.to_string()))?;
        let turn = inner.turn(&session, 1, create_request.goal, None)?;
        let accepted = Accepted {
            turn: turn.turn.clone(),
            sequence: 1,
        };
        inner.check_capacity(&session, &role.pool)?;
        let chat = StoredChat::new(row.clone(), 1);
        let writes = vec![
            Write::Chat(ChatWrite::Create(row)),
            Write::Chat(ChatWrite::Accept(turn)),
        ];
        inner.fleet.accept_rows(writes).await?;
        inner.wake(chat, |wants| wants.turns += 1);
        Ok(Created::Chat(session, accepted))
    }

    /// Accepts a message; returns when it is durable. A request with the key of an earlier message
    /// returns that message.
    ///
    /// # Errors
    /// [`ChatError`]; then nothing was stored.
    pub async fn send_message(
        &self,
        workspace: &str,
        chat: &str,
        content: String,
        key: Option<String>,
    ) -> Result<Accepted, ChatError> {
        let inner = &self.0;
        let stored = inner.find(workspace, chat).await?;
        let id = stored.session.clone();
        if content.trim().is_empty() {
            let why = "\"content\" is empty: there is nothing to send".to_owned();
            return Err(ChatError::Unprocessable(why));
        }
        if stored.mode.has_members() {
            return inner.message_planner(&stored, content, key).await;
        }
        let _place = inner.lock_chat_for_client(&id).await?;
        if let Some(key) = key.clone() {
            let chat = id.clone();
            let read = inner
                .readers
                .read(move |reader| reader.turn_by_key(&chat, &key));
            if let Some(before) = read.await? {
                if before.content.raw() != content {
                    let why = "this Idempotency-Key was used for another message: use a new one";
                    return Err(ChatError::Unprocessable(why.to_owned()));
                }
                // The first caller may have left before the actor was woken.
                if before.state == TurnState::Waiting {
                    let stored = inner.chat(&id).await?;
                    inner.wake(stored, |wants| wants.turns += 1);
                }
                return Ok(Accepted {
                    turn: before.turn,
                    sequence: before.seq,
                });
            }
        }
        // The row may have changed before the lock was acquired.
        let stored = inner.chat(&id).await?;
        if stored.ended_ms.is_some() || stored.is_closing {
            let why = "the chat is closed and accepts no messages: create a new one".to_owned();
            return Err(ChatError::Conflict(why));
        }
        if stored.waiting >= limits::CHAT_QUEUE {
            let most = limits::CHAT_QUEUE;
            return Err(ChatError::Full(format!(
                "{most} messages of this chat are waiting already: wait until one has ended"
            )));
        }
        let turn = inner.turn(&id, stored.turns + 1, content, key)?;
        let accepted = Accepted {
            turn: turn.turn.clone(),
            sequence: turn.seq,
        };
        inner.check_capacity(&id, &stored.pool)?;
        let accept = Write::Chat(ChatWrite::Accept(turn));
        inner.fleet.accept_rows(vec![accept]).await?;
        MessageAccepted { pool: &stored.pool }.emit();
        inner.wake(stored, |wants| wants.turns += 1);
        Ok(accepted)
    }

    /// Resets the chat's idle time.
    ///
    /// # Errors
    /// [`ChatError::NotFound`]
    pub async fn ping(&self, workspace: &str, chat: &str) -> Result<(), ChatError> {
        let id = self.0.find(workspace, chat).await?.session;
        self.0.signal_actor(&id, |wants| wants.pings += 1);
        Ok(())
    }

    /// Returns one chat.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn get(&self, workspace: &str, chat: &str) -> Result<ChatView, ChatError> {
        let chat = self.0.find(workspace, chat).await?;
        Ok(self.0.view(chat))
    }

    /// Returns a page of a workspace's chats, newest first, after one of them, and whether there
    /// are more. It has at most `most` and [`limits::CHAT_PAGE`].
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn list(
        &self,
        workspace: &str,
        after: Option<SessionId>,
        most: u32,
    ) -> Result<(Vec<ChatView>, bool), ChatError> {
        let config = self.0.config.current();
        let (name, _) = directory::workspace(&config, workspace)?;
        let most = most.min(limits::CHAT_PAGE);
        let read = self
            .0
            .readers
            .read(move |reader| reader.chats(Some(name.as_str()), after.as_ref(), most + 1));
        let mut page = read.await?;
        let has_more = page.len() > most as usize;
        page.truncate(most as usize);
        let views = page.into_iter().map(|chat| self.0.view(chat));
        Ok((views.collect(), has_more))
    }

    /// Returns a page of the turns of a chat after a sequence, and whether there are more. It has at
    /// most `most` and [`limits::CHAT_PAGE`].
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn turns(
        &self,
        workspace: &str,
        chat: &str,
        after: u64,
        most: u32,
    ) -> Result<(Vec<StoredTurn>, bool), ChatError> {
        let id = self.0.find(workspace, chat).await?.session;
        let most = most.min(limits::CHAT_PAGE);
        let read = self
            .0
            .readers
            .read(move |reader| reader.turns(&id, after, most + 1));
        let mut page = read.await?;
        let has_more = page.len() > most as usize;
        page.truncate(most as usize);
        Ok((page, has_more))
    }

    /// Subscribes to a chat after a cursor. A subscription does not reset the idle time.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn subscribe(
        &self,
        workspace: &str,
        chat: &str,
        cursor: Cursor,
        shape: Shape,
    ) -> Result<Subscription, ChatError> {
        let id = self.0.find(workspace, chat).await?.session;
        let Ok(place) = Arc::clone(&self.0.subscribers).try_acquire_owned() else {
            let why = "too many clients stream chats already: try again later".to_owned();
            return Err(ChatError::Unavailable(why));
        };
        let hub = self.0.hub(&id).await?;
        let events = hub.subscribe(cursor, shape).await;
        Ok(Subscription {
            events: events?,
            _permit: place,
        })
    }
}

/// A subscription with its permit.
#[derive(Debug)]
pub struct Subscription {
    /// The events.
    pub events: Subscriber,
    _permit: tokio::sync::OwnedSemaphorePermit,
}

impl Inner {
    fn lock_actors(&self) -> MutexGuard<'_, HashMap<SessionId, watch::Sender<ActorSignals>>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a chat, so that only one caller at a time accepts its messages.
    /// [`Self::lock_chat`] for a request: behind one that the journal holds up, it is refused.
    async fn lock_chat_for_client(
        &self,
        chat: &SessionId,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, ChatError> {
        let mut health = self.fleet.journal().health();
        let held_up = async {
            loop {
                if health.wait_for(|health| !health.is_ok()).await.is_err() {
                    return std::future::pending().await;
                }
                let recovered = health.wait_for(Health::is_ok);
                if timeout(limits::CHAT_LOCK, recovered).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            place = self.lock_chat(chat) => Ok(place),
            () = held_up => {
                let why = "another request of this chat waits for the journal: try again later";
                Err(ChatError::Unavailable(why.to_owned()))
            }
        }
    }

    async fn lock_chat(&self, chat: &SessionId) -> tokio::sync::MutexGuard<'_, ()> {
        let sum = chat.as_str().bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        // There is a lock for each remainder.
        let place = &self.chat_locks[sum % STRIPES];
        place.lock().await
    }

    fn turn(
        &self,
        chat: &SessionId,
        seq: u64,
        content: String,
        key: Option<String>,
    ) -> Result<TurnRow, ChatError> {
        let id = self.fleet.fresh_id();
        let turn = TurnId::new(&id).map_err(|error| ChatError::Unavailable(error.to_string()))?;
        let row = TurnRow {
            turn,
            chat: chat.clone(),
            seq,
            content: UntrustedText::new(content),
            key: key.map(UntrustedText::new),
            accepted_ms: self.fleet.now_ms(),
        };
        row.check()
            .map_err(|fault| ChatError::Unprocessable(fault.to_string()))?;
        Ok(row)
    }

    async fn chat(&self, id: &SessionId) -> Result<StoredChat, ChatError> {
        let of = id.clone();
        let read = self.readers.read(move |reader| reader.chat(&of));
        let found = read.await?;
        found.ok_or_else(chat_not_found)
    }

    /// Returns a chat of a workspace; a chat of another workspace counts as missing.
    async fn find(&self, workspace: &str, chat: &str) -> Result<StoredChat, ChatError> {
        let config = self.config.current();
        let (name, _) = directory::workspace(&config, workspace)?;
        let id = SessionId::new(chat).map_err(|_| chat_not_found())?;
        let found = self.chat(&id).await?;
        if found.workspace == name {
            Ok(found)
        } else {
            Err(chat_not_found())
        }
    }

    fn view(&self, chat: StoredChat) -> ChatView {
        ChatView {
            is_loaded: self.lock_actors().contains_key(&chat.session),
            chat,
        }
    }

    /// Returns the directory of a chat's workspace; `None` if it is not configured.
    fn directory(&self, chat: &StoredChat) -> Option<PathBuf> {
        let config = self.config.current();
        let workspace = config.workspaces.get(&chat.workspace)?;
        Some(workspace.workspace.path.clone())
    }

    /// Checks whether the chat could get an actor.
    fn check_capacity(&self, chat: &SessionId, pool: &PoolName) -> Result<(), ChatError> {
        if self.fleet.slot_demand(pool).is_none() {
            return Err(ChatError::Unavailable(format!(
                "the configuration no longer has the pool {pool}: the chat waits until it is added again"
            )));
        }
        let loaded = self.lock_actors();
        if loaded.contains_key(chat) || loaded.len() < limits::CHATS_LOADED {
            return Ok(());
        }
        let why = "too many chats are active or wait for a slot: try again later";
        Err(ChatError::Unavailable(why.to_owned()))
    }

    /// Signals the chat's actor, and starts one if there is none. While the supervisor stops,
    /// nothing is started: the next start handles it.
    fn wake(self: &Arc<Self>, chat: StoredChat, want: impl FnOnce(&mut ActorSignals)) {
        if self.stop.is_cancelled() {
            return;
        }
        let Some(slot_demand) = self.fleet.slot_demand(&chat.pool) else {
            let (chat, pool) = (&chat.session, &chat.pool);
            tracing::error!(%chat, %pool, "a chat waits: the configuration has no such pool");
            return;
        };
        let mut loaded = self.lock_actors();
        if let Some(actor) = loaded.get(&chat.session) {
            actor.send_modify(want);
            return;
        }
        let mut first = ActorSignals::default();
        want(&mut first);
        let (tell, wants) = watch::channel(first);
        loaded.insert(chat.session.clone(), tell);
        let actor = Actor {
            chats: Arc::clone(self),
            chat,
            slot_demand,
            signals: wants,
            seen: ActorSignals::default(),
            conversation: None,
            tries: 0,
        };
        tokio::spawn(actor.run());
    }

    /// Signals the chat's actor, if there is one.
    fn signal_actor(&self, chat: &SessionId, want: impl FnOnce(&mut ActorSignals)) {
        if let Some(actor) = self.lock_actors().get(chat) {
            actor.send_modify(want);
        }
    }

    /// Removes the chat's actor, unless it has signals that it has not seen; returns whether it
    /// did.
    fn retire(&self, chat: &SessionId, seen: ActorSignals) -> bool {
        let mut loaded = self.lock_actors();
        let is_done = loaded.get(chat).is_none_or(|actor| {
            let wants = actor.borrow();
            wants.turns == seen.turns && wants.is_closed == seen.is_closed
        });
        if is_done {
            loaded.remove(chat);
        }
        is_done
    }

    /// Removes the chat's actor because the supervisor stops.
    fn forget(&self, chat: &SessionId) {
        self.lock_actors().remove(chat);
    }

    async fn hub(&self, chat: &SessionId) -> Result<Arc<Hub>, ChatError> {
        let there = || self.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = there().get(chat).and_then(Weak::upgrade) {
            return Ok(hub);
        }
        let tap = self.fleet.follow(chat);
        let epoch = self.fleet.journal().epoch();
        let hub = Hub::open(chat.clone(), epoch, self.stream_readers.clone(), tap).await?;
        let mut hubs = there();
        // If two were opened at the same time, the first one stays.
        if let Some(first) = hubs.get(chat).and_then(Weak::upgrade) {
            return Ok(first);
        }
        hubs.retain(|_, hub| hub.strong_count() > 0);
        hubs.insert(chat.clone(), Arc::downgrade(&hub));
        Ok(hub)
    }
}

fn chat_not_found() -> ChatError {
    ChatError::NotFound("there is no such chat in this workspace".to_owned())
}
