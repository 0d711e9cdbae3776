//! Conversations: sessions that belong to a client and not to a list of tasks.
//!
//! Opening one takes a slot of its pool, for as long as the client stays; its prompts are tasks of a
//! run of its own, worked one after another in the same session, home and copy. When the client
//! goes, the running turn is cancelled and the child stopped; the session stays, for whoever loads
//! it by its id. Owns what a client may do. Must not know how a client is reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::approver::{Asking, Said};
use super::clock::now_us;
use super::notice::{Notice, TaskReport};
use super::pool::{ActiveTask, OpenTasks, Opener, PoolMsg, Talk};
use super::session::WORKSPACE_INSIDE;
use super::session::{OfChat, StoredSession};
use super::setting::{SetDone, SetReply};
use super::{FleetHandle, PoolEntry, SubmitError};
use crate::config::{Launcher, WorkspaceMode};
use crate::journal::{CONVERSATION, Reader, SessionRow, StoredConversation, TaskRow, Write};
use crate::limits;
use crate::model::{
    AskId, Foreign, PoolName, RunId, SessionId, Setting, SlotId, TaskId, TaskSpec, foreign,
};
use crate::sandbox::workspace::copy;
use crate::telemetry::event::task::TaskQueued;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationOrder {
    /// Whose slot.
    pub pool: PoolName,
    /// The directory that the client works in, on the host: the pool's workspace, or in it.
    pub directory: PathBuf,
    /// The conversation to go on with; a new one if none is named.
    pub session: Option<SessionId>,
}

/// Why there is no conversation. Nothing was begun then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration has no such pool.
    #[error("there is no pool {pool}; there are: {there}")]
    NoPool {
        /// What was asked for.
        pool: PoolName,
        /// What there is.
        there: String,
    },
    /// The directory is none of the pool's.
    #[error("{0}")]
    Directory(String),
    /// No slot can be had now.
    #[error("{0}")]
    NoSlot(String),
    /// No conversation has this id, or it is over.
    #[error("there is no conversation {0} in this pool that could be loaded")]
    NoSuchSession(SessionId),
    /// Another client is in it.
    #[error("conversation {0} is open in another client; close it there first")]
    Taken(SessionId),
    /// The journal does not say what there is, or takes nothing new.
    #[error("{0}")]
    Journal(String),
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// Why a prompt was not taken in.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// Too many wait already.
    #[error("{most} prompts of this conversation wait already; wait for one of them to end", most = limits::CONVERSATION_QUEUE)]
    Full,
    /// The journal or the fleet takes nothing new.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// A slot that is a conversation's. Dropping it gives it back, wherever it has got to.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) session: SessionId,
    pub(crate) slot: SlotId,
    pub(crate) pool: ActorRef<PoolMsg>,
    pub(crate) is_over: bool,
}

impl Grant {
    fn give_back(&mut self, done: Option<oneshot::Sender<()>>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let session = self.session.clone();
        let leave = PoolMsg::Talk(Talk::Leave { session, done });
        let _ = self.pool.send_message(leave);
        tracing::debug!(session = %self.session, slot = %self.slot, "a client leaves its conversation");
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// An open conversation. Dropping it leaves it.
#[derive(Debug)]
pub struct Conversation {
    pub(super) grant: Grant,
    run: RunId,
    pub(super) pool: PoolName,
    directory: PathBuf,
    last_seq: u64,
    /// The number of the next prompt.
    next: u32,
    /// Prompts that were taken in and whose reports were not given.
    open: usize,
    pub(super) fleet: FleetHandle,
    tasks: Arc<OpenTasks>,
    tell: mpsc::Sender<Arc<TaskReport>>,
    reports: mpsc::Receiver<Arc<TaskReport>>,
    asks: mpsc::Receiver<Asking>,
    /// Where it is told what came of what was to be set.
    set_told: mpsc::Sender<SetDone>,
    sets: mpsc::Receiver<SetDone>,
    /// Its first child is ready, or will not be; `None` when that was told.
    warmed: Option<(oneshot::Receiver<()>, Instant)>,
}

/// What a conversation brings beside its events.
#[derive(Debug)]
pub enum Brought {
    /// A prompt ended; durable, and its events before it.
    Ended(Arc<TaskReport>),
    /// Something about an ask.
    Asking(Asking),
    /// What was to be set is set, or why it is not; its events were told before.
    Set(SetDone),
    /// Its first child is ready and what it said of itself was told, or it is not going to be
    /// ready before there is a prompt.
    Warmed,
}

impl Conversation {
    /// Its session: what loads it again.
    #[must_use]
    pub const fn session(&self) -> &SessionId {
        &self.grant.session
    }

    /// The durable end of what was there before it was opened: 0 for a new one.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Takes a prompt in; returns when it is durable. It waits for those before it.
    ///
    /// # Errors
    /// [`PromptError`]; nothing was taken in then.
    pub async fn prompt(&mut self, text: Foreign) -> Result<TaskId, PromptError> {
        let name = format!("p-{}", self.next);
        let id = TaskId::new(&name).unwrap_or_else(|_| unreachable!("a safe token"));
        self.turn(id.clone(), text, Vec::new(), Vec::new()).await?;
        Ok(id)
    }

    /// The same under a name of the caller's, in one commit with what goes with it. A check that is
    /// not empty runs in the same walls after a turn that completed.
    ///
    /// # Errors
    /// [`PromptError`]; nothing was taken in then.
    pub async fn turn(
        &mut self,
        id: TaskId,
        text: Foreign,
        check: Vec<String>,
        with: Vec<Write>,
    ) -> Result<(), PromptError> {
        if self.open > limits::CONVERSATION_QUEUE {
            return Err(PromptError::Full);
        }
        let spec = TaskSpec {
            id: id.clone(),
            prompt: text,
            pool: Some(self.pool.clone()),
            workspace: Some(self.directory.clone()),
            attempts: Some(1),
            // The pool's is for tasks: nobody waits for one in a conversation.
            check: Some(check),
            files: Vec::new(),
            embed: Vec::new(),
            policy_layer: None,
            priority: 0,
            after: Vec::new(),
        };
        let entry = self.fleet.entry(&self.pool).ok_or(SubmitError::Stopping)?;
        if !entry.shared.takes(1) {
            return Err(SubmitError::TooMany.into());
        }
        let queued = Write::TaskQueued(TaskRow {
            run: self.run.clone(),
            spec: spec.clone(),
            pool: self.pool.clone(),
            place: self.next,
            at_us: now_us(),
        });
        let writes = std::iter::once(queued).chain(with).collect();
        if let Err(error) = self.fleet.make_durable(writes).await {
            entry.shared.left(1);
            return Err(error.into());
        }
        self.next += 1;
        self.open += 1;
        TaskQueued {
            pool: &self.pool,
            task: &id,
        }
        .emit();
        self.fleet.0.shared.tell(Notice::Queued {
            run: self.run.clone(),
            task: id.clone(),
            pool: self.pool.clone(),
        });
        let tell = self.tell.clone();
        let task = ActiveTask::new(self.run.clone(), spec, 1, tell, Arc::clone(&self.tasks));
        let message = PoolMsg::Talk(Talk::Prompt {
            session: self.grant.session.clone(),
            task: Box::new(task),
        });
        let sent = self.grant.pool.send_message(message);
        sent.map_err(|_| SubmitError::Stopping)?;
        Ok(())
    }

    /// Ends the running turn for a person: a tool call that runs may end first, for at most
    /// [`limits::TOOL_GRACE`].
    pub fn interrupt(&self) {
        let session = self.grant.session.clone();
        let message = PoolMsg::Talk(Talk::Interrupt { session });
        let _ = self.grant.pool.send_message(message);
    }

    /// Cancels the running turn and every prompt that waits; each still gets its end.
    pub fn cancel(&self) {
        let message = PoolMsg::Cancel(Some(self.run.clone()));
        let _ = self.grant.pool.send_message(message);
    }

    /// What came back of an ask. One that is over, or that is none, is passed over.
    pub fn answer(&self, ask: AskId, said: Said) {
        let _ = self.grant.pool.send_message(PoolMsg::Talk(Talk::Answer {
            session: self.grant.session.clone(),
            ask,
            said,
        }));
    }

    /// Sets something in the session, for as long as the conversation is open; what came of it is
    /// told under the number.
    pub fn set(&self, number: u64, setting: Setting) {
        let reply = SetReply::new(number, self.set_told.clone());
        let _ = self.grant.pool.send_message(PoolMsg::Talk(Talk::Set {
            session: self.grant.session.clone(),
            setting,
            reply,
        }));
    }

    /// What it brings beside its events, or `None` when the fleet is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Brought> {
        tokio::select! {
            biased;
            asking = self.asks.recv() => asking.map(Brought::Asking),
            Some(done) = self.sets.recv() => Some(Brought::Set(done)),
            () = warm(&mut self.warmed) => {
                self.warmed = None;
                Some(Brought::Warmed)
            }
            report = self.reports.recv() => {
                self.open = self.open.saturating_sub(1);
                report.map(Brought::Ended)
            }
        }
    }

    /// What it brings and is there already.
    pub fn ready(&mut self) -> Option<Brought> {
        if let Ok(asking) = self.asks.try_recv() {
            return Some(Brought::Asking(asking));
        }
        if let Ok(done) = self.sets.try_recv() {
            return Some(Brought::Set(done));
        }
        let report = self.reports.try_recv().ok()?;
        self.open = self.open.saturating_sub(1);
        Some(Brought::Ended(report))
    }

    /// The slot that it has.
    #[must_use]
    pub const fn slot(&self) -> &SlotId {
        &self.grant.slot
    }

    /// The workspace's root as the agent names it, and as the client does.
    #[must_use]
    pub fn roots(&self) -> (String, String) {
        let Some(entry) = self.fleet.entry(&self.pool) else {
            return Default::default();
        };
        let config = &entry.shared.config;
        let outside = entry.shared.workspace.to_string_lossy().into_owned();
        let inside = match config.launcher {
            Launcher::Ssh => {
                return config.ssh.as_ref().map_or_else(Default::default, |ssh| {
                    (ssh.workspace.clone(), ssh.workspace.clone())
                });
            }
            Launcher::None if config.workspace.mode == WorkspaceMode::Copy => {
                let copy = copy::path(&self.fleet.0.shared.state, &self.grant.session);
                copy.to_string_lossy().into_owned()
            }
            Launcher::None => outside.clone(),
            Launcher::Unshare | Launcher::Pty | Launcher::Bwrap | Launcher::Container => {
                WORKSPACE_INSIDE.to_owned()
            }
        };
        (inside, outside)
    }

    /// The number of its next prompt, which no other has.
    #[must_use]
    pub const fn next_number(&self) -> u32 {
        self.next
    }

    /// Whether it was left.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.grant.is_over
    }

    /// Leaves it: its turn is cancelled, its child stopped; returns when that is done. It can be
    /// loaded again.
    pub async fn leave(&mut self) {
        let (done, left) = oneshot::channel();
        self.grant.give_back(Some(done));
        let _ = left.await;
    }
}

impl FleetHandle {
    /// Opens a conversation in a free slot of its pool; waits for one, at most
    /// [`limits::CONVERSATION_WAIT`]. Its child is started at once, so that it can be said what the
    /// agent offers; one that fails is tried again with the first prompt.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn converse(&self, order: ConversationOrder) -> Result<Conversation, OpenError> {
        self.open_talk(order, None).await
    }

    /// The same for a client, or for a chat.
    pub(super) async fn open_talk(
        &self,
        order: ConversationOrder,
        chat: Option<OfChat>,
    ) -> Result<Conversation, OpenError> {
        let name = &order.pool;
        let entry = self.entry(name).ok_or_else(|| {
            let there: Vec<_> = self.0.pools.keys().map(PoolName::as_str).collect();
            OpenError::NoPool {
                pool: name.clone(),
                there: there.join(", "),
            }
        })?;
        let (directory, within) = self.place(entry, &order.directory).await?;
        let found = match &order.session {
            Some(session) => {
                let found = self.find(name, session.clone()).await?;
                if chat.is_none() && self.is_of_a_chat(session).await? {
                    return Err(OpenError::NoSuchSession(session.clone()));
                }
                Some(found)
            }
            None => None,
        };
        let begins = found.is_none();
        let (session, run, stored) = if let Some((kept, stored)) = found {
            (kept.session, kept.run, Some(stored))
        } else {
            let (session, run) = self.fresh_ids()?;
            (session, run, None)
        };
        let (approver, asks) = mpsc::channel(limits::ASKS_TOLD);
        let (reply, granted) = oneshot::channel();
        let opens = PoolMsg::Talk(Talk::Open(Box::new(Opener {
            session: session.clone(),
            run: run.clone(),
            within,
            stored,
            approver,
            chat,
            reply,
        })));
        let sent = entry.actor.send_message(opens);
        sent.map_err(|_| OpenError::Stopping)?;
        let grant = match timeout(limits::CONVERSATION_WAIT, granted).await {
            Ok(Ok(granted)) => granted?,
            Ok(Err(_)) => return Err(OpenError::Stopping),
            Err(_) => return Err(self.crowded(name)),
        };
        // Of an earlier client also what was still on its way to the disk when it left.
        let writes = if begins {
            begun(run.clone(), session.clone(), grant.slot.clone())
        } else {
            Vec::new()
        };
        let durable = self.make_durable(writes).await;
        durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        let (mut next, mut last_seq) = (1, 0);
        if !begins {
            let (kept, stored) = self.find(name, session.clone()).await?;
            (next, last_seq) = (kept.prompts + 1, stored.last_seq);
            let stands = PoolMsg::Talk(Talk::Stands(Box::new(stored)));
            let sent = entry.actor.send_message(stands);
            sent.map_err(|_| OpenError::Stopping)?;
        }
        let (tell, reports) = mpsc::channel(2 * limits::CONVERSATION_QUEUE);
        let (set_told, sets) = mpsc::channel(limits::CONVERSATION_QUEUE);
        let (ready, warmed) = oneshot::channel();
        let warm = PoolMsg::Talk(Talk::Warm { session, ready });
        entry
            .actor
            .send_message(warm)
            .map_err(|_| OpenError::Stopping)?;
        Ok(Conversation {
            grant,
            run,
            pool: name.clone(),
            directory,
            last_seq,
            next,
            open: 0,
            fleet: self.clone(),
            tasks: OpenTasks::of_conversation(),
            tell,
            reports,
            asks,
            set_told,
            sets,
            warmed: Some((warmed, Instant::now() + limits::CONVERSATION_WARM)),
        })
    }

    pub(super) fn fresh_ids(&self) -> Result<(SessionId, RunId), OpenError> {
        let fresh = || self.0.shared.ambient.id().to_string();
        let is_token = |_| OpenError::Journal("no id could be made".to_owned());
        let session = SessionId::new(&fresh()).map_err(is_token)?;
        Ok((session, RunId::new(&fresh()).map_err(is_token)?))
    }

    /// Why no slot came free.
    fn crowded(&self, pool: &PoolName) -> OpenError {
        let slots = self.0.shared.slots.of_pool(pool);
        let busy = slots.iter().filter(|view| view.session.is_some()).count();
        let waited = limits::CONVERSATION_WAIT.as_secs();
        OpenError::NoSlot(format!(
            "no slot of pool {pool} came free in {waited} s: {busy} of {} have a session; close a conversation, wait for a task to end, or give the pool a larger size",
            slots.len()
        ))
    }

    pub(super) fn entry(&self, pool: &PoolName) -> Option<&PoolEntry> {
        self.0.pools.get(pool)
    }

    /// The client's directory with its links followed, and the way to it from the workspace.
    pub(super) async fn place(
        &self,
        entry: &PoolEntry,
        directory: &Path,
    ) -> Result<(PathBuf, PathBuf), OpenError> {
        let shown = foreign::show(&directory.to_string_lossy(), 300);
        if let Some(ssh) = &entry.shared.config.ssh {
            // A path of the far end: here it leads nowhere.
            let is_far = directory == Path::new(&ssh.workspace);
            let far = (directory.to_owned(), PathBuf::new());
            return is_far.then_some(far).ok_or_else(|| {
                OpenError::Directory(format!(
                    "the directory {shown} is not the workspace of pool {}, which is {} at {}: open that one",
                    entry.shared.config.name,
                    foreign::show(&ssh.workspace, 300),
                    ssh.shown()
                ))
            });
        }
        let asked = directory.to_owned();
        let resolve = move || std::fs::canonicalize(asked);
        let resolved = self.0.shared.ambient.blocking(resolve).await;
        let resolved = resolved.map_err(|_| OpenError::Stopping)?;
        let resolved = resolved
            .map_err(|error| OpenError::Directory(format!("the directory {shown}: {error}")))?;
        let workspace = &entry.shared.workspace;
        let within = resolved.strip_prefix(workspace).map_err(|_| {
            let workspace = foreign::show(&workspace.to_string_lossy(), 300);
            OpenError::Directory(format!(
                "the directory {shown} is not in the workspace of pool {}, {workspace}: open that one, or point the pool at yours",
                entry.shared.config.name
            ))
        })?;
        let within = within.to_owned();
        Ok((resolved, within))
    }

    /// Whether a session is the daemon's own, which no other client may take from it.
    async fn is_of_a_chat(&self, session: &SessionId) -> Result<bool, OpenError> {
        let wanted = session.clone();
        self.read_past(move |reader| Ok(reader.chat(&wanted)?.is_some()))
            .await
    }

    async fn find(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(StoredConversation, StoredSession), OpenError> {
        let wanted = session.clone();
        let found = self.read_past(move |reader| {
            let kept = reader.conversation(&wanted)?;
            let forgot = reader.forgot(&wanted)?;
            let prompted = reader.last_turn(&wanted)?.prompted > 0;
            Ok((kept, reader.stream_of(&wanted)?, (prompted, forgot)))
        });
        let (kept, (agent_session, last_seq, bytes), (prompted, forgot)) = found.await?;
        let kept = kept.filter(|kept| kept.pool == *pool);
        let kept = kept.ok_or_else(|| OpenError::NoSuchSession(session.clone()))?;
        let stored = StoredSession {
            session,
            agent_session,
            last_seq,
            bytes,
            prompted,
            forgot,
        };
        Ok((kept, stored))
    }

    pub(super) async fn read_past<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, crate::journal::ReadError> + Send + 'static,
    ) -> Result<T, OpenError> {
        let journal = self.0.shared.journal.clone();
        let work = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            read(&reader).map_err(|error| error.to_string())
        };
        let found = self.0.shared.ambient.blocking(work).await;
        let found = found.map_err(|_| OpenError::Stopping)?;
        found.map_err(OpenError::Journal)
    }
}

/// When the first child is ready or will not be; never, when that was told.
async fn warm(warmed: &mut Option<(oneshot::Receiver<()>, Instant)>) {
    match warmed {
        Some((warmed, until)) => {
            let _ = timeout_at(*until, warmed).await;
        }
        None => std::future::pending().await,
    }
}

/// The rows of a new conversation.
fn begun(run: RunId, session: SessionId, slot: SlotId) -> Vec<Write> {
    let at_us = now_us();
    vec![
        Write::RunBegun {
            run: run.clone(),
            command: CONVERSATION,
            at_us,
        },
        Write::SessionBegun(SessionRow {
            session,
            slot,
            run: Some(run),
            task: None,
            attempt: 1,
            at_us,
        }),
    ]
}
