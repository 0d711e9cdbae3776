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

use super::approver::{ApprovalUpdate, ApproverReply};
use super::clock::now_us;
use super::fleet_event::{FleetEvent, TaskReport};
use super::pool::{ActiveTask, ConversationMsg, OpenTasks, PoolMsg, SlotRequest};
use super::session::WORKSPACE_INSIDE;
use super::session::{ChatArgs, StoredSession};
use super::setting_reply::{SettingReply, SettingResult};
use super::{FleetHandle, PoolEntry, SubmitError};
use marshal_config::{Launcher, WorkspaceMode};
use marshal_journal::{
    CONVERSATION_COMMAND, Reader, SessionRow, StoredConversation, TaskRow, Write,
};
use marshal_model::limits;
use marshal_model::{
    PermissionRequestId, PoolName, RunId, SessionId, Setting, SlotId, TaskId, TaskSpec,
    UntrustedText, untrusted,
};
use marshal_sandbox::workspace::copy;
use marshal_telemetry::event::task::TaskQueued;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationRequest {
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
    AlreadyOpen(SessionId),
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
pub(crate) struct SlotGrant {
    pub(crate) session: SessionId,
    pub(crate) slot: SlotId,
    pub(crate) pool: ActorRef<PoolMsg>,
    pub(crate) is_released: bool,
}

impl SlotGrant {
    fn release(&mut self, done: Option<oneshot::Sender<()>>) {
        if std::mem::replace(&mut self.is_released, true) {
            return;
        }
        let session = self.session.clone();
        let leave = PoolMsg::Conversation(ConversationMsg::Leave { session, done });
        let _ = self.pool.send_message(leave);
        tracing::debug!(session = %self.session, slot = %self.slot, "a client leaves its conversation");
    }
}

impl Drop for SlotGrant {
    fn drop(&mut self) {
        self.release(None);
    }
}

/// An open conversation. Dropping it leaves it.
#[derive(Debug)]
pub struct Conversation {
    pub(super) grant: SlotGrant,
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
    approvals: mpsc::Receiver<ApprovalUpdate>,
    /// Where it is told what came of what was to be set.
    setting_sender: mpsc::Sender<SettingResult>,
    setting_results: mpsc::Receiver<SettingResult>,
    /// Its first child is ready, or will not be; `None` when that was told.
    child_ready: Option<(oneshot::Receiver<()>, Instant)>,
}

/// What a conversation brings beside its events.
#[derive(Debug)]
pub enum ConversationUpdate {
    /// A prompt ended; durable, and its events before it.
    PromptEnded(Arc<TaskReport>),
    /// Something about a permission request.
    Approval(ApprovalUpdate),
    /// What was to be set is set, or why it is not; its events were told before.
    Setting(SettingResult),
    /// Its first child is ready and what it said of itself was told, or it is not going to be
    /// ready before there is a prompt.
    ChildReady,
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
    pub async fn prompt(&mut self, text: UntrustedText) -> Result<TaskId, PromptError> {
        let name = format!("p-{}", self.next);
        let id = TaskId::new(&name).unwrap_or_else(|_| unreachable!("a safe token"));
        self.submit_turn(id.clone(), text, Vec::new(), Vec::new())
            .await?;
        Ok(id)
    }

    /// The same under a name of the caller's, in one commit with what goes with it. A check that is
    /// not empty runs in the same walls after a turn that completed.
    ///
    /// # Errors
    /// [`PromptError`]; nothing was taken in then.
    pub async fn submit_turn(
        &mut self,
        id: TaskId,
        text: UntrustedText,
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
            embedded_files: Vec::new(),
            policy_layer: None,
            priority: 0,
            depends_on: Vec::new(),
        };
        let entry = self
            .fleet
            .pool_entry(&self.pool)
            .ok_or(SubmitError::Stopping)?;
        if !entry.shared.reserve_tasks(1) {
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
        if let Err(error) = self.fleet.commit_durably(writes).await {
            entry.shared.release_tasks(1);
            return Err(error.into());
        }
        self.next += 1;
        self.open += 1;
        TaskQueued {
            pool: &self.pool,
            task: &id,
        }
        .emit();
        self.fleet
            .0
            .shared
            .notify_subscribers(FleetEvent::TaskQueued {
                run: self.run.clone(),
                task: id.clone(),
                pool: self.pool.clone(),
            });
        let tell = self.tell.clone();
        let task = ActiveTask::new(self.run.clone(), spec, 1, tell, Arc::clone(&self.tasks));
        let message = PoolMsg::Conversation(ConversationMsg::Prompt {
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
        let message = PoolMsg::Conversation(ConversationMsg::Interrupt { session });
        let _ = self.grant.pool.send_message(message);
    }

    /// Cancels the running turn and every prompt that waits; each still gets its end.
    pub fn cancel(&self) {
        let message = PoolMsg::Cancel(Some(self.run.clone()));
        let _ = self.grant.pool.send_message(message);
    }

    /// What came back of a permission request. One that is over, or that is none, is passed over.
    pub fn answer_approval(&self, approval: PermissionRequestId, said: ApproverReply) {
        let _ = self
            .grant
            .pool
            .send_message(PoolMsg::Conversation(ConversationMsg::Answer {
                session: self.grant.session.clone(),
                request_id: approval,
                reply: said,
            }));
    }

    /// Sets something in the session, for as long as the conversation is open; what came of it is
    /// told under the number.
    pub fn change_setting(&self, number: u64, setting: Setting) {
        let reply = SettingReply::new(number, self.setting_sender.clone());
        let _ = self
            .grant
            .pool
            .send_message(PoolMsg::Conversation(ConversationMsg::Set {
                session: self.grant.session.clone(),
                setting,
                reply,
            }));
    }

    /// What it brings beside its events, or `None` when the fleet is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<ConversationUpdate> {
        tokio::select! {
            biased;
            asking = self.approvals.recv() => asking.map(ConversationUpdate::Approval),
            Some(done) = self.setting_results.recv() => Some(ConversationUpdate::Setting(done)),
            () = wait_until_child_ready(&mut self.child_ready) => {
                self.child_ready = None;
                Some(ConversationUpdate::ChildReady)
            }
            report = self.reports.recv() => {
                self.open = self.open.saturating_sub(1);
                report.map(ConversationUpdate::PromptEnded)
            }
        }
    }

    /// What it brings and is there already.
    pub fn try_next_update(&mut self) -> Option<ConversationUpdate> {
        if let Ok(asking) = self.approvals.try_recv() {
            return Some(ConversationUpdate::Approval(asking));
        }
        if let Ok(done) = self.setting_results.try_recv() {
            return Some(ConversationUpdate::Setting(done));
        }
        let report = self.reports.try_recv().ok()?;
        self.open = self.open.saturating_sub(1);
        Some(ConversationUpdate::PromptEnded(report))
    }

    /// The slot that it has.
    #[must_use]
    pub const fn slot(&self) -> &SlotId {
        &self.grant.slot
    }

    /// The workspace's root as the agent names it, and as the client does.
    #[must_use]
    pub fn roots(&self) -> (String, String) {
        let Some(entry) = self.fleet.pool_entry(&self.pool) else {
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
    pub const fn is_released(&self) -> bool {
        self.grant.is_released
    }

    /// Leaves it: its turn is cancelled, its child stopped; returns when that is done. It can be
    /// loaded again.
    pub async fn leave(&mut self) {
        let (done, left) = oneshot::channel();
        self.grant.release(Some(done));
        let _ = left.await;
    }
}

impl FleetHandle {
    /// Opens a conversation in a free slot of its pool; waits for one, at most
    /// [`limits::CONVERSATION_SLOT_TIMEOUT`]. Its child is started at once, so that it can be said what the
    /// agent offers; one that fails is tried again with the first prompt.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open_conversation(
        &self,
        order: ConversationRequest,
    ) -> Result<Conversation, OpenError> {
        self.open_conversation_or_chat(order, None).await
    }

    /// The same for a client, or for a chat.
    pub(super) async fn open_conversation_or_chat(
        &self,
        order: ConversationRequest,
        chat: Option<ChatArgs>,
    ) -> Result<Conversation, OpenError> {
        let name = &order.pool;
        let entry = self.pool_entry(name).ok_or_else(|| {
            let there: Vec<_> = self.0.pools.keys().map(PoolName::as_str).collect();
            OpenError::NoPool {
                pool: name.clone(),
                there: there.join(", "),
            }
        })?;
        let (directory, within) = self.resolve_directory(entry, &order.directory).await?;
        let found = match &order.session {
            Some(session) => {
                let found = self.find_conversation(name, session.clone()).await?;
                if chat.is_none() && self.is_chat_session(session).await? {
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
        let (approver, approvals) = mpsc::channel(limits::CLIENT_APPROVAL_EVENTS);
        let (reply, granted) = oneshot::channel();
        let opens = PoolMsg::Conversation(ConversationMsg::Open(Box::new(SlotRequest {
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
        let grant = match timeout(limits::CONVERSATION_SLOT_TIMEOUT, granted).await {
            Ok(Ok(granted)) => granted?,
            Ok(Err(_)) => return Err(OpenError::Stopping),
            Err(_) => return Err(self.no_free_slot_error(name)),
        };
        // Of an earlier client also what was still on its way to the disk when it left.
        let writes = if begins {
            conversation_begun_rows(run.clone(), session.clone(), grant.slot.clone())
        } else {
            Vec::new()
        };
        let durable = self.commit_durably(writes).await;
        durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        let (mut next, mut last_seq) = (1, 0);
        if !begins {
            let (kept, stored) = self.find_conversation(name, session.clone()).await?;
            (next, last_seq) = (kept.prompts + 1, stored.last_seq);
            let stands = PoolMsg::Conversation(ConversationMsg::StreamPosition(Box::new(stored)));
            let sent = entry.actor.send_message(stands);
            sent.map_err(|_| OpenError::Stopping)?;
        }
        let (tell, reports) = mpsc::channel(2 * limits::CONVERSATION_QUEUE);
        let (set_told, sets) = mpsc::channel(limits::CONVERSATION_QUEUE);
        let (ready, warmed) = oneshot::channel();
        let warm = PoolMsg::Conversation(ConversationMsg::StartChild { session, ready });
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
            tasks: OpenTasks::for_conversation(),
            tell,
            reports,
            approvals: approvals,
            setting_sender: set_told,
            setting_results: sets,
            child_ready: Some((warmed, Instant::now() + limits::CONVERSATION_READY_TIMEOUT)),
        })
    }

    pub(super) fn fresh_ids(&self) -> Result<(SessionId, RunId), OpenError> {
        let fresh = || self.0.shared.ambient.new_id().to_string();
        let is_token = |_| OpenError::Journal("no id could be made".to_owned());
        let session = SessionId::new(&fresh()).map_err(is_token)?;
        Ok((session, RunId::new(&fresh()).map_err(is_token)?))
    }

    /// Why no slot came free.
    fn no_free_slot_error(&self, pool: &PoolName) -> OpenError {
        let slots = self.0.shared.slots.of_pool(pool);
        let busy = slots.iter().filter(|view| view.session.is_some()).count();
        let waited = limits::CONVERSATION_SLOT_TIMEOUT.as_secs();
        OpenError::NoSlot(format!(
            "no slot of pool {pool} came free in {waited} s: {busy} of {} have a session; close a conversation, wait for a task to end, or give the pool a larger size",
            slots.len()
        ))
    }

    pub(super) fn pool_entry(&self, pool: &PoolName) -> Option<&PoolEntry> {
        self.0.pools.get(pool)
    }

    /// The client's directory with its links followed, and the way to it from the workspace.
    pub(super) async fn resolve_directory(
        &self,
        entry: &PoolEntry,
        directory: &Path,
    ) -> Result<(PathBuf, PathBuf), OpenError> {
        let shown = untrusted::escape_for_display(&directory.to_string_lossy(), 300);
        if let Some(ssh) = &entry.shared.config.ssh {
            // A path of the far end: here it leads nowhere.
            let is_far = directory == Path::new(&ssh.workspace);
            let far = (directory.to_owned(), PathBuf::new());
            return is_far.then_some(far).ok_or_else(|| {
                OpenError::Directory(format!(
                    "the directory {shown} is not the workspace of pool {}, which is {} at {}: open that one",
                    entry.shared.config.name,
                    untrusted::escape_for_display(&ssh.workspace, 300),
                    ssh.display_name()
                ))
            });
        }
        let asked = directory.to_owned();
        let resolve = move || std::fs::canonicalize(asked);
        let resolved = self.0.shared.ambient.run_blocking(resolve).await;
        let resolved = resolved.map_err(|_| OpenError::Stopping)?;
        let resolved = resolved
            .map_err(|error| OpenError::Directory(format!("the directory {shown}: {error}")))?;
        let workspace = &entry.shared.workspace;
        let within = resolved.strip_prefix(workspace).map_err(|_| {
            let workspace = untrusted::escape_for_display(&workspace.to_string_lossy(), 300);
            OpenError::Directory(format!(
                "the directory {shown} is not in the workspace of pool {}, {workspace}: open that one, or point the pool at yours",
                entry.shared.config.name
            ))
        })?;
        let within = within.to_owned();
        Ok((resolved, within))
    }

    /// Whether a session is the daemon's own, which no other client may take from it.
    async fn is_chat_session(&self, session: &SessionId) -> Result<bool, OpenError> {
        let wanted = session.clone();
        self.read_journal(move |reader| Ok(reader.chat(&wanted)?.is_some()))
            .await
    }

    async fn find_conversation(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(StoredConversation, StoredSession), OpenError> {
        let wanted = session.clone();
        let found = self.read_journal(move |reader| {
            let kept = reader.conversation(&wanted)?;
            let forgot = reader.has_lost_context(&wanted)?;
            let prompted = reader.last_turn(&wanted)?.prompt_seq > 0;
            Ok((kept, reader.stream_position(&wanted)?, (prompted, forgot)))
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

    pub(super) async fn read_journal<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, marshal_journal::ReadError> + Send + 'static,
    ) -> Result<T, OpenError> {
        let journal = self.0.shared.journal.clone();
        let work = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            read(&reader).map_err(|error| error.to_string())
        };
        let found = self.0.shared.ambient.run_blocking(work).await;
        let found = found.map_err(|_| OpenError::Stopping)?;
        found.map_err(OpenError::Journal)
    }
}

/// When the first child is ready or will not be; never, when that was told.
async fn wait_until_child_ready(warmed: &mut Option<(oneshot::Receiver<()>, Instant)>) {
    match warmed {
        Some((warmed, until)) => {
            let _ = timeout_at(*until, warmed).await;
        }
        None => std::future::pending().await,
    }
}

/// The rows of a new conversation.
fn conversation_begun_rows(run: RunId, session: SessionId, slot: SlotId) -> Vec<Write> {
    let at_us = now_us();
    vec![
        Write::RunBegun {
            run: run.clone(),
            command: CONVERSATION_COMMAND,
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
