//! The sessions that one editor has open, and the permission requests that wait for its answer.
//!
//! Must not know what a session does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use marshal_engine::api::acp::RpcError;
use marshal_engine::api::acp::incoming::RequestId;
use marshal_fleet::ApproverReply;
use marshal_model::limits;
use marshal_model::{PermissionRequestId, Setting, UntrustedText};

/// A command of the editor to a session.
#[derive(Debug)]
pub(super) enum SessionCommand {
    /// Run a prompt.
    Prompt {
        /// The request that is answered at the prompt's end.
        id: RequestId,
        /// The prompt.
        text: UntrustedText,
    },
    /// A person's answer to an approval.
    Answer {
        /// The approval's id.
        approval: PermissionRequestId,
        /// The answer.
        answer: ApproverReply,
    },
    /// Change a setting.
    Set {
        /// The request that is answered when the setting is changed.
        id: RequestId,
        /// The setting.
        setting: Setting,
    },
    /// Cancel the running prompt and the waiting ones.
    Cancel,
    /// Close the session.
    Close {
        /// The request that is answered when the session is closed.
        id: RequestId,
    },
}

/// Room for the commands of one session. It is larger than the queue of prompts, so that prompts
/// are refused there and not here.
const WAITING: usize = 4 * limits::CONVERSATION_QUEUE;

/// A handle for sending commands to one session.
#[derive(Debug, Clone)]
pub(super) struct SessionHandle {
    to: mpsc::Sender<SessionCommand>,
    cancel: Arc<Notify>,
    directory: Arc<PathBuf>,
}

impl SessionHandle {
    /// A handle, and the receivers of its commands and its cancel.
    pub(super) fn new(directory: PathBuf) -> (Self, mpsc::Receiver<SessionCommand>, Arc<Notify>) {
        let (to, commands) = mpsc::channel(WAITING);
        let cancel = Arc::new(Notify::new());
        let session = Self {
            to,
            cancel: Arc::clone(&cancel),
            directory: Arc::new(directory),
        };
        (session, commands, cancel)
    }

    /// The editor's working directory for the session.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sends a command.
    pub(super) fn send(&self, what: SessionCommand) -> Result<(), RpcError> {
        self.to.try_send(what).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                RpcError::internal_error("too many requests wait for this session; try again later")
            }
            mpsc::error::TrySendError::Closed(_) => {
                RpcError::internal_error("the session is being closed")
            }
        })
    }
}

/// All open sessions of an editor.
#[derive(Debug)]
pub(super) struct Sessions {
    inner: Mutex<Inner>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<String, SessionHandle>,
    /// Requests to the editor that wait for its answer. Bounded by the open approvals.
    pending_requests: HashMap<u64, (String, PermissionRequestId)>,
    last_id: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            permits: Arc::new(Semaphore::new(limits::EDITOR_SESSIONS)),
        }
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for one more session, until the permit is dropped.
    pub(super) fn reserve(&self) -> Result<OwnedSemaphorePermit, RpcError> {
        let place = Arc::clone(&self.permits).try_acquire_owned();
        place.map_err(|_| {
            RpcError::internal_error(format!(
                "{} sessions are open; close one first",
                limits::EDITOR_SESSIONS
            ))
        })
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.lock().open.contains_key(id)
    }

    pub(super) fn find(&self, id: &str) -> Result<SessionHandle, RpcError> {
        let found = self.lock().open.get(id).cloned();
        found.ok_or_else(|| RpcError::session_not_found(id))
    }

    pub(super) fn insert(&self, id: &str, session: SessionHandle) {
        self.lock().open.insert(id.to_owned(), session);
    }

    /// Removes a session that has ended, and its requests to the editor.
    pub(super) fn remove(&self, id: &str) {
        let mut inner = self.lock();
        inner.open.remove(id);
        inner
            .pending_requests
            .retain(|_, (session, _)| session != id);
    }

    /// Cancels a session's prompts. An unknown session is ignored.
    pub(super) fn cancel(&self, id: &str) {
        if let Some(session) = self.lock().open.get(id)
            && session.to.try_send(SessionCommand::Cancel).is_err()
        {
            // The queue is full: notify instead. The session handles queued commands before the
            // cancel.
            session.cancel.notify_one();
        }
    }

    /// Registers a request to the editor, and returns its id.
    pub(super) fn register_request(&self, session: &str, approval: PermissionRequestId) -> u64 {
        let mut inner = self.lock();
        inner.last_id += 1;
        let id = inner.last_id;
        inner
            .pending_requests
            .insert(id, (session.to_owned(), approval));
        id
    }

    /// Forgets the requests of an approval that was decided: later answers are ignored.
    pub(super) fn forget_request(&self, approval: &PermissionRequestId) {
        self.lock()
            .pending_requests
            .retain(|_, (_, open)| open != approval);
    }

    /// Delivers the editor's answer to the session that sent the request.
    pub(super) fn deliver_answer(&self, id: Option<u64>, answer: ApproverReply) {
        let mut inner = self.lock();
        let Some((session, approval)) = id.and_then(|id| inner.pending_requests.remove(&id)) else {
            return;
        };
        if let Some(session) = inner.open.get(&session) {
            // If the queue is full, the approval is denied at its deadline.
            let _ = session
                .to
                .try_send(SessionCommand::Answer { approval, answer });
        }
    }
}
