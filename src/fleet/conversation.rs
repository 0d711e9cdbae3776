//! Conversations: sessions that belong to a client and not to a list of tasks.
//!
//! Opening one takes a slot of its pool, for as long as the client stays; its prompts are tasks of a
//! run of its own, worked one after another in the same session, home and copy. When the client
//! goes, the running turn is cancelled and the child stopped; the session stays, for whoever loads
//! it by its id. Owns what a client may do. Must not know how a client is reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::clock::now_us;
use super::notice::{Notice, TaskReport};
use super::pool::{ActiveTask, OpenTasks, Opener, PoolMsg, Talk};
use super::session::StoredSession;
use super::{FleetHandle, PoolEntry, SubmitError};
use crate::journal::{
    CONVERSATION, Commit, Reader, SessionRow, StoredConversation, TaskRow, Write, codec,
};
use crate::limits;
use crate::model::{
    AskId, DecidedBy, Decision, Foreign, PoolName, RunId, SessionId, SlotId, TaskId, TaskSpec,
    ToolClass, foreign,
};
use crate::policy::Part;
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

/// A request that the policy wants a person to decide, as the approver hears of it.
#[derive(Debug, Clone)]
pub struct PendingAsk {
    /// Its id: what an answer names.
    pub id: AskId,
    /// The seq of its event.
    pub seq: u64,
    /// The tool call that it belongs to, where the agent said so.
    pub tool_id: Option<Foreign>,
    /// The tool's name, as the agent calls it.
    pub tool: Foreign,
    /// What kind of tool that is.
    pub class: ToolClass,
    /// What is judged: words or paths, each with what the policy says of it.
    pub parts: Vec<Part>,
    /// Why a command text is not plain.
    pub not_plain: Option<String>,
    /// The rules that want a person.
    pub rules: Vec<String>,
    /// Why, in our words.
    pub reason: String,
    /// How long an answer is waited for; then it is denied.
    pub within: Duration,
}

/// What an approver hears.
#[derive(Debug, Clone)]
pub enum Asking {
    /// A person is to decide. Durable.
    Asked(Box<PendingAsk>),
    /// It is decided: an answer that comes now changes nothing.
    Over {
        /// Which.
        id: AskId,
        /// How.
        decision: Decision,
        /// By whom.
        by: DecidedBy,
    },
}

/// Where a conversation's asks go.
pub(crate) type Approver = mpsc::Sender<Asking>;

/// A conversation that can be loaded, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationView {
    /// Its session.
    pub session: SessionId,
    /// The directory that its client worked in last.
    pub directory: PathBuf,
    /// The beginning of its first prompt.
    pub title: Option<Foreign>,
    /// When it last had a prompt, or began: microseconds since the Unix epoch.
    pub at_us: i64,
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
    grant: Grant,
    run: RunId,
    pool: PoolName,
    directory: PathBuf,
    last_seq: u64,
    /// The number of the next prompt.
    next: u32,
    /// Prompts that were taken in and whose reports were not given.
    open: usize,
    fleet: FleetHandle,
    tasks: Arc<OpenTasks>,
    tell: mpsc::Sender<Arc<TaskReport>>,
    reports: mpsc::Receiver<Arc<TaskReport>>,
    asks: mpsc::Receiver<Asking>,
}

/// What a conversation brings beside its events.
#[derive(Debug)]
pub enum Brought {
    /// A prompt ended; durable, and its events before it.
    Ended(Arc<TaskReport>),
    /// Something about an ask.
    Asking(Asking),
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
        if self.open > limits::CONVERSATION_QUEUE {
            return Err(PromptError::Full);
        }
        let name = format!("p-{}", self.next);
        let id = TaskId::new(&name).unwrap_or_else(|_| unreachable!("a safe token"));
        let spec = TaskSpec {
            id: id.clone(),
            prompt: text,
            pool: Some(self.pool.clone()),
            workspace: Some(self.directory.clone()),
            attempts: Some(1),
            // A check is for tasks: nobody waits for one in a conversation.
            check: Some(Vec::new()),
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
        if let Err(error) = self.fleet.make_durable(vec![queued]).await {
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
        Ok(id)
    }

    /// Cancels the running turn and every prompt that waits; each still gets its end.
    pub fn cancel(&self) {
        let message = PoolMsg::Cancel(Some(self.run.clone()));
        let _ = self.grant.pool.send_message(message);
    }

    /// A person decided. An ask that is over, or that is none, is passed over.
    pub fn answer(&self, ask: AskId, allow: bool) {
        let _ = self.grant.pool.send_message(PoolMsg::Talk(Talk::Answer {
            session: self.grant.session.clone(),
            ask,
            allow,
        }));
    }

    /// What it brings beside its events, or `None` when the fleet is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Brought> {
        tokio::select! {
            biased;
            asking = self.asks.recv() => asking.map(Brought::Asking),
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
        let report = self.reports.try_recv().ok()?;
        self.open = self.open.saturating_sub(1);
        Some(Brought::Ended(report))
    }

    /// The slot that it has.
    #[must_use]
    pub const fn slot(&self) -> &SlotId {
        &self.grant.slot
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
    /// [`limits::CONVERSATION_WAIT`]. No child is started before its first prompt.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn converse(&self, order: ConversationOrder) -> Result<Conversation, OpenError> {
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
            Some(session) => Some(self.find(name, session.clone()).await?),
            None => None,
        };
        let begins = found.is_none();
        let (session, run, next, stored) = if let Some((kept, stored)) = found {
            (kept.session, kept.run, kept.prompts + 1, Some(stored))
        } else {
            let (session, run) = self.fresh_ids()?;
            (session, run, 1, None)
        };
        let last_seq = stored.as_ref().map_or(0, |of| of.last_seq);
        let (approver, asks) = mpsc::channel(limits::ASKS_TOLD);
        let (reply, granted) = oneshot::channel();
        let opens = PoolMsg::Talk(Talk::Open(Box::new(Opener {
            session: session.clone(),
            run: run.clone(),
            within,
            stored,
            approver,
            reply,
        })));
        let sent = entry.actor.send_message(opens);
        sent.map_err(|_| OpenError::Stopping)?;
        let grant = match timeout(limits::CONVERSATION_WAIT, granted).await {
            Ok(Ok(granted)) => granted?,
            Ok(Err(_)) => return Err(OpenError::Stopping),
            Err(_) => return Err(self.crowded(name)),
        };
        if begins {
            let writes = begun(run.clone(), session, grant.slot.clone());
            let durable = self.make_durable(writes).await;
            durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        }
        let (tell, reports) = mpsc::channel(2 * limits::CONVERSATION_QUEUE);
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
        })
    }

    fn fresh_ids(&self) -> Result<(SessionId, RunId), OpenError> {
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
    async fn place(
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

    async fn find(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(StoredConversation, StoredSession), OpenError> {
        let wanted = session.clone();
        let found = self.read_past(move |reader| {
            let kept = reader.conversation(&wanted)?;
            Ok((kept, reader.stream_of(&wanted)?))
        });
        let (kept, (agent_session, last_seq, bytes)) = found.await?;
        let kept = kept.filter(|kept| kept.pool == *pool);
        let kept = kept.ok_or_else(|| OpenError::NoSuchSession(session.clone()))?;
        let stored = StoredSession {
            session,
            agent_session,
            last_seq,
            bytes,
        };
        Ok((kept, stored))
    }

    /// The conversations of a pool that can be loaded, the one used last first: at most
    /// [`limits::CONVERSATION_PAGE`], after so many.
    ///
    /// # Errors
    /// [`OpenError::NoPool`], [`OpenError::Journal`]
    pub async fn conversations(
        &self,
        pool: &PoolName,
        after: u32,
    ) -> Result<Vec<ConversationView>, OpenError> {
        let Some(entry) = self.entry(pool) else {
            return Err(OpenError::NoPool {
                pool: pool.clone(),
                there: String::new(),
            });
        };
        let workspace = entry.shared.workspace.clone();
        let pool = pool.clone();
        let read =
            move |reader: &Reader| reader.conversations(&pool, after, limits::CONVERSATION_PAGE);
        let found = self.read_past(read).await?;
        let view = |of: StoredConversation| {
            let nothing = Foreign::default();
            let spec = of.last_spec.as_deref();
            let spec = spec.and_then(|spec| codec::read_spec("p", &nothing, spec).ok());
            ConversationView {
                session: of.session,
                directory: spec
                    .and_then(|spec| spec.workspace)
                    .unwrap_or_else(|| workspace.clone()),
                title: of.first_prompt,
                at_us: of.at_us,
            }
        };
        Ok(found.into_iter().map(view).collect())
    }

    /// Ends the conversations that nobody has used for [`limits::CONVERSATION_KEPT`].
    pub async fn end_old_conversations(&self) {
        let age = i64::try_from(limits::CONVERSATION_KEPT.as_micros()).unwrap_or(i64::MAX);
        let before = now_us().saturating_sub(age);
        let read = move |reader: &Reader| reader.old_conversations(before);
        let found = match self.read_past(read).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(%error, "old conversations stay"),
        };
        for old in found.into_iter().filter(|old| !self.works(&old.session)) {
            let ends = vec![
                Write::SessionEnded {
                    session: old.session,
                    at_us: now_us(),
                    class: None,
                },
                Write::RunEnded {
                    run: old.run,
                    at_us: now_us(),
                    code: 0,
                },
            ];
            let _ = self.0.shared.journal.submit(Commit::of(ends));
        }
    }

    async fn read_past<T: Send + 'static>(
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
