//! Conversations: sessions that belong to a client instead of a list of tasks.
//!
//! An open conversation occupies a slot of its pool until the client leaves. Its prompts are tasks
//! of a run of its own. They run one after another in the same session, home and copy. When the
//! client leaves, the running turn is cancelled and the child stopped. The session stays, and a
//! client can load it again by its id. Owns what a client may do. Must not know how a client is
//! reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::approver::{ApprovalUpdate, ApproverReply};
use crate::clock::now_us;
use crate::fleet_event::{FleetEvent, TaskReport};
use crate::messages::PoolMsg;
use crate::pool::{ActiveTask, ConversationMsg, OpenTasks, SlotRequest};
use crate::session::{ChatArgs, StoredSession, WORKSPACE_INSIDE};
use crate::setting_reply::{SettingReply, SettingResult};
use crate::{FleetHandle, PoolEntry, SubmitError};
use marshal_config::WorkspaceMode;
use marshal_journal::{
    CONVERSATION_COMMAND, Reader, SessionRow, StoredConversation, TaskRow, Write,
};
use marshal_model::{
    PermissionRequestId, PoolName, RunId, SessionId, Setting, SlotId, TaskId, TaskSpec,
    UntrustedText, limits, untrusted,
};
use marshal_sandbox::workspace::copy;
use marshal_telemetry::event::task::TaskQueued;

/// A client's request to open a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationRequest {
    /// The pool that provides the slot.
    pub pool: PoolName,
    /// The client's directory on the host: the pool's workspace, or a directory below it.
    pub directory: PathBuf,
    /// Further directories of the client. The agent sees them only if they lie in the pool's
    /// workspace, too; others are refused.
    pub additional_directories: Vec<PathBuf>,
    /// The conversation to load; `None` opens a new one.
    pub session: Option<SessionId>,
}

/// Why a conversation was not opened. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration has no such pool.
    #[error("there is no pool {pool}; the pools are: {there}")]
    NoPool {
        /// The requested pool.
        pool: PoolName,
        /// The names of the configured pools, separated by commas.
        there: String,
    },
    /// The directory is outside the pool's workspace.
    #[error("{0}")]
    Directory(String),
    /// No slot is available now.
    #[error("{0}")]
    NoSlot(String),
    /// No conversation has this id, or it has ended.
    #[error("this pool has no conversation {0} that can be loaded")]
    NoSuchSession(SessionId),
    /// Another client has it open.
    #[error("conversation {0} is open in another client; close it there first")]
    AlreadyOpen(SessionId),
    /// The journal cannot be read, or accepts no writes.
    #[error("{0}")]
    Journal(String),
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// Why a prompt was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The conversation's queue is full.
    #[error("{most} prompts of this conversation are queued already; wait until one of them ends", most = limits::CONVERSATION_QUEUE)]
    Full,
    /// The journal or the fleet does not accept the prompt.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// A slot that belongs to a conversation. Dropping the grant returns the slot, even while the grant
/// is still on its way to the client.
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
        tracing::debug!(session = %self.session, slot = %self.slot, "the client leaves its conversation");
    }
}

impl Drop for SlotGrant {
    fn drop(&mut self) {
        self.release(None);
    }
}

/// An open conversation. Dropping it is the same as leaving it.
#[derive(Debug)]
pub struct Conversation {
    pub(crate) grant: SlotGrant,
    run: RunId,
    pub(crate) pool: PoolName,
    directory: PathBuf,
    last_seq: u64,
    /// The number of the next prompt.
    next: u32,
    /// Accepted prompts whose reports were not returned yet.
    open: usize,
    pub(crate) fleet: FleetHandle,
    tasks: Arc<OpenTasks>,
    tell: mpsc::Sender<Arc<TaskReport>>,
    reports: mpsc::Receiver<Arc<TaskReport>>,
    approvals: mpsc::Receiver<ApprovalUpdate>,
    /// Sessions send the results of setting changes here.
    setting_sender: mpsc::Sender<SettingResult>,
    setting_results: mpsc::Receiver<SettingResult>,
    /// Resolves when the first child is ready or cannot become ready; `None` once it was reported.
    child_ready: Option<(oneshot::Receiver<()>, Instant)>,
}

/// What a conversation reports to its client besides the session's events.
#[derive(Debug)]
pub enum ConversationUpdate {
    /// A prompt ended. It is durable, and so are all its events.
    PromptEnded(Arc<TaskReport>),
    /// A permission request needs a decision, or has one.
    Approval(ApprovalUpdate),
    /// The result of a setting change; the client got its events before.
    Setting(SettingResult),
    /// The first child is ready and the client has its capabilities, or the child will not be ready
    /// before the first prompt.
    ChildReady,
}

impl Conversation {
    /// The session's id, which loads the conversation again.
    #[must_use]
    pub const fn session(&self) -> &SessionId {
        &self.grant.session
    }

    /// The seq of the last durable event before it was opened; 0 for a new one.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Queues a prompt behind the earlier ones; returns when it is durable.
    ///
    /// # Errors
    /// [`PromptError`]; nothing was queued.
    pub async fn prompt(&mut self, text: UntrustedText) -> Result<TaskId, PromptError> {
        let name = format!("p-{}", self.next);
        let id = TaskId::new(&name).unwrap_or_else(|_| unreachable!("a safe token"));
        self.submit_turn(id.clone(), text, Vec::new(), Vec::new())
            .await?;
        Ok(id)
    }

    /// Like [`Self::prompt`], with an id of the caller's, in one commit with the writes `with`. A
    /// `check` that is not empty runs in the same sandbox after a turn that completed.
    ///
    /// # Errors
    /// [`PromptError`]; nothing was queued.
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
            // The pool's check is for tasks; a conversation does not use it.
            check: Some(check),
            files: Vec::new(),
            embedded_files: Vec::new(),
            policy_layer: None,
            land: None,
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

    /// Interrupts the running turn for a person. A running tool call may finish first, for at most
    /// [`limits::TOOL_GRACE`].
    pub fn interrupt(&self) {
        let session = self.grant.session.clone();
        let message = PoolMsg::Conversation(ConversationMsg::Interrupt { session });
        let _ = self.grant.pool.send_message(message);
    }

    /// Cancels the running turn and every queued prompt; each is still reported.
    pub fn cancel(&self) {
        let message = PoolMsg::Cancel(self.run.clone());
        let _ = self.grant.pool.send_message(message);
    }

    /// Passes on the client's reply to a permission request. A reply to a request that has ended or
    /// does not exist is ignored.
    pub fn answer_approval(&self, approval: PermissionRequestId, reply: ApproverReply) {
        let _ = self
            .grant
            .pool
            .send_message(PoolMsg::Conversation(ConversationMsg::Answer {
                session: self.grant.session.clone(),
                request_id: approval,
                reply,
            }));
    }

    /// Changes a setting of the session for as long as the conversation is open. The result comes
    /// as [`ConversationUpdate::Setting`] with the same number.
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

    /// The next update, or `None` when the fleet has stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<ConversationUpdate> {
        tokio::select! {
            biased;
            approval = self.approvals.recv() => approval.map(ConversationUpdate::Approval),
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

    /// The next update, if one is available without waiting.
    pub fn try_next_update(&mut self) -> Option<ConversationUpdate> {
        if let Ok(approval) = self.approvals.try_recv() {
            return Some(ConversationUpdate::Approval(approval));
        }
        if let Ok(done) = self.setting_results.try_recv() {
            return Some(ConversationUpdate::Setting(done));
        }
        let report = self.reports.try_recv().ok()?;
        self.open = self.open.saturating_sub(1);
        Some(ConversationUpdate::PromptEnded(report))
    }

    /// The conversation's slot.
    #[must_use]
    pub const fn slot(&self) -> &SlotId {
        &self.grant.slot
    }

    /// The workspace's root as the agent sees it, and as the client sees it.
    #[must_use]
    pub fn roots(&self) -> (String, String) {
        let Some(entry) = self.fleet.pool_entry(&self.pool) else {
            return Default::default();
        };
        let config = &entry.shared.config;
        let outside = entry.shared.workspace.to_string_lossy().into_owned();
        let inside = if config.launcher.has_sandbox() {
            WORKSPACE_INSIDE.to_owned()
        } else if let Some(ssh) = &config.ssh {
            return (ssh.workspace.clone(), ssh.workspace.clone());
        } else if config.workspace.mode == WorkspaceMode::Copy {
            let copy = copy::path(&self.fleet.0.shared.state, &self.grant.session);
            copy.to_string_lossy().into_owned()
        } else {
            outside.clone()
        };
        (inside, outside)
    }

    /// The number of the next prompt; unique in the conversation.
    #[must_use]
    pub const fn next_number(&self) -> u32 {
        self.next
    }

    /// Whether the client has left.
    #[must_use]
    pub const fn is_released(&self) -> bool {
        self.grant.is_released
    }

    /// Leaves the conversation: cancels its turn and stops its child; returns when both have ended.
    /// It can be loaded again.
    pub async fn leave(&mut self) {
        let (done, left) = oneshot::channel();
        self.grant.release(Some(done));
        let _ = left.await;
    }
}

impl FleetHandle {
    /// Opens a conversation in a free slot of its pool; waits for a slot for at most
    /// [`limits::CONVERSATION_SLOT_TIMEOUT`]. Its child is started at once, so that the client
    /// learns the agent's capabilities. If that fails, the first prompt starts the child again.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open_conversation(
        &self,
        order: ConversationRequest,
    ) -> Result<Conversation, OpenError> {
        self.open_conversation_or_chat(order, None).await
    }

    /// Like [`Self::open_conversation`], for a client or, with `chat`, for a chat.
    pub(crate) async fn open_conversation_or_chat(
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
        for further in &order.additional_directories {
            self.resolve_directory(entry, further).await?;
        }
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
        let (begins, is_chat) = (found.is_none(), chat.is_some());
        let (session, run, stored) = if let Some((stored_session, stored)) = found {
            (stored_session.session, stored_session.run, Some(stored))
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
        // A chat keeps its place among those that wait.
        let granted = async {
            if is_chat {
                Ok(granted.await)
            } else {
                timeout(limits::CONVERSATION_SLOT_TIMEOUT, granted).await
            }
        };
        let grant = match granted.await {
            Ok(Ok(granted)) => granted?,
            Ok(Err(_)) => return Err(OpenError::Stopping),
            Err(_) => return Err(self.no_free_slot_error(name)),
        };
        // The slot has the session now, so one that is deleted from here on is seen to be open.
        if self.0.shared.deleting().contains(&session) {
            return Err(OpenError::NoSuchSession(session));
        }
        // For a loaded conversation the empty commit is a barrier: it waits until the events of an
        // earlier client are durable, so that the stream position read below is final.
        let writes = if begins {
            conversation_begun_rows(run.clone(), session.clone(), grant.slot.clone())
        } else {
            Vec::new()
        };
        let durable = self.commit_durably(writes).await;
        durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        let (mut next, mut last_seq) = (1, 0);
        if !begins {
            let (stored_session, stored) = self.find_conversation(name, session.clone()).await?;
            (next, last_seq) = (stored_session.prompts + 1, stored.last_seq);
            let stands = PoolMsg::Conversation(ConversationMsg::StreamPosition(Box::new(stored)));
            let sent = entry.actor.send_message(stands);
            sent.map_err(|_| OpenError::Stopping)?;
        }
        let (tell, reports) = mpsc::channel(2 * limits::CONVERSATION_QUEUE);
        let (set_told, sets) = mpsc::channel(limits::CONVERSATION_QUEUE);
        let (ready, warmed) = oneshot::channel();
        let message = PoolMsg::Conversation(ConversationMsg::StartChild { session, ready });
        entry
            .actor
            .send_message(message)
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
            approvals,
            setting_sender: set_told,
            setting_results: sets,
            child_ready: Some((warmed, Instant::now() + limits::CONVERSATION_READY_TIMEOUT)),
        })
    }

    pub(crate) fn fresh_ids(&self) -> Result<(SessionId, RunId), OpenError> {
        let fresh = || self.0.shared.ambient.new_id().to_string();
        let is_token = |_| OpenError::Journal("no id could be made".to_owned());
        let session = SessionId::new(&fresh()).map_err(is_token)?;
        Ok((session, RunId::new(&fresh()).map_err(is_token)?))
    }

    /// The error if no slot became free in time.
    fn no_free_slot_error(&self, pool: &PoolName) -> OpenError {
        let slots = self.0.shared.slots.of_pool(pool);
        let busy = slots.iter().filter(|view| view.session.is_some()).count();
        let waited = limits::CONVERSATION_SLOT_TIMEOUT.as_secs();
        OpenError::NoSlot(format!(
            "no slot of pool {pool} became free within {waited} s: {busy} of {} have a session; close a conversation, wait for a task to end, or increase the pool's size",
            slots.len()
        ))
    }

    pub(crate) fn pool_entry(&self, pool: &PoolName) -> Option<&PoolEntry> {
        self.0.pools.get(pool)
    }

    /// The client's directory with its links resolved, and its path relative to the workspace.
    pub(crate) async fn resolve_directory(
        &self,
        entry: &PoolEntry,
        directory: &Path,
    ) -> Result<(PathBuf, PathBuf), OpenError> {
        let shown = untrusted::escape_for_display(&directory.to_string_lossy(), 300);
        if let Some(ssh) = &entry.shared.config.ssh {
            // A path on the remote host: it cannot be resolved here.
            let is_far = directory == Path::new(&ssh.workspace);
            let remote = (directory.to_owned(), PathBuf::new());
            return is_far.then_some(remote).ok_or_else(|| {
                OpenError::Directory(format!(
                    "the directory {shown} is not the workspace of pool {}: open {} at {} instead",
                    entry.shared.config.name,
                    untrusted::escape_for_display(&ssh.workspace, 300),
                    ssh.display_name()
                ))
            });
        }
        let path = directory.to_owned();
        let resolve = move || std::fs::canonicalize(path);
        let resolved = self
            .0
            .shared
            .ambient
            .run_blocking(resolve)
            .await
            .map_err(|_| OpenError::Stopping)?
            .map_err(|error| OpenError::Directory(format!("the directory {shown}: {error}")))?;
        let workspace = &entry.shared.workspace;
        let within = resolved.strip_prefix(workspace).map_err(|_| { let workspace = untrusted::escape_for_display(&workspace.to_string_lossy(), 300); OpenError::Directory(format!( "the directory {shown} is outside the workspace of pool {}: open {workspace}, or change the pool's workspace", entry.shared.config.name )) })?.to_owned();
        Ok((resolved, within))
    }

    /// Whether a session belongs to a chat of the daemon; no other client may load it.
    pub(crate) async fn is_chat_session(&self, session: &SessionId) -> Result<bool, OpenError> {
        let wanted = session.clone();
        self.read_journal(move |reader| Ok(reader.chat(&wanted)?.is_some()))
            .await
    }

    pub(crate) async fn find_conversation(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(StoredConversation, StoredSession), OpenError> {
        let wanted = session.clone();
        let found = self.read_journal(move |reader| {
            let stored_session = reader.conversation(&wanted)?;
            let forgot = reader.has_lost_context(&wanted)?;
            let prompted = reader.last_turn(&wanted)?.prompt_seq > 0;
            Ok((
                stored_session,
                reader.stream_position(&wanted)?,
                (prompted, forgot),
            ))
        });
        let (stored_session, (agent_session, last_seq, bytes), (prompted, forgot)) = found.await?;
        let stored_session = stored_session.filter(|stored_session| stored_session.pool == *pool);
        let stored_session =
            stored_session.ok_or_else(|| OpenError::NoSuchSession(session.clone()))?;
        let stored = StoredSession {
            session,
            agent_session,
            last_seq,
            bytes,
            prompted,
            forgot,
        };
        Ok((stored_session, stored))
    }

    pub(crate) async fn read_journal<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, marshal_journal::ReadError> + Send + 'static,
    ) -> Result<T, OpenError> {
        let journal = self.0.shared.journal.clone();
        let work = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            read(&reader).map_err(|error| error.to_string())
        };
        let found = self
            .0
            .shared
            .ambient
            .run_blocking(work)
            .await
            .map_err(|_| OpenError::Stopping)?;
        found.map_err(OpenError::Journal)
    }
}

/// Resolves when the first child is ready or cannot become ready; never, once that was reported.
async fn wait_until_child_ready(warmed: &mut Option<(oneshot::Receiver<()>, Instant)>) {
    match warmed {
        Some((warmed, until)) => {
            let _ = timeout_at(*until, warmed).await;
        }
        None => std::future::pending().await,
    }
}

/// The journal rows of a new conversation.
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
