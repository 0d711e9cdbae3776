//! The sessions that one editor has open, and the questions that it was asked.
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

/// What the editor wants of a session.
#[derive(Debug)]
pub(super) enum SessionCommand {
    /// Work this.
    Prompt {
        /// The request that is answered at its end.
        id: RequestId,
        /// The text.
        text: UntrustedText,
    },
    /// A person's answer to an approval.
    Answer {
        /// Which ask.
        approval: PermissionRequestId,
        /// What was said.
        answer: ApproverReply,
    },
    /// Set something.
    Set {
        /// The request that is answered when it is set.
        id: RequestId,
        /// What.
        setting: Setting,
    },
    /// Cancel what it does, and what waits.
    Cancel,
    /// Close it.
    Close {
        /// The request that is answered then.
        id: RequestId,
    },
}

/// What waits for one session beside its queue of prompts: they are refused there, not here.
const WAITING: usize = 4 * limits::CONVERSATION_QUEUE;

/// The way to one session.
#[derive(Debug, Clone)]
pub(super) struct SessionHandle {
    to: mpsc::Sender<SessionCommand>,
    cancel: Arc<Notify>,
    directory: Arc<PathBuf>,
}

impl SessionHandle {
    /// A session and what it hears.
    pub(super) fn new(directory: PathBuf) -> (Self, mpsc::Receiver<SessionCommand>, Arc<Notify>) {
        let (to, heard) = mpsc::channel(WAITING);
        let cancel = Arc::new(Notify::new());
        let session = Self {
            to,
            cancel: Arc::clone(&cancel),
            directory: Arc::new(directory),
        };
        (session, heard, cancel)
    }

    /// Where the editor works in it.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Tells it something.
    pub(super) fn send(&self, what: SessionCommand) -> Result<(), RpcError> {
        self.to.try_send(what).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                RpcError::internal_error("too much waits for this session; wait for its end")
            }
            mpsc::error::TrySendError::Closed(_) => {
                RpcError::internal_error("the session is being closed")
            }
        })
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sessions {
    inner: Mutex<Inner>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<String, SessionHandle>,
    /// Requests of ours that wait for the editor's answer: bounded by the open approvals.
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

    /// A place for one more, held until it is dropped.
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

    /// A session is over: what it asked needs no answer.
    pub(super) fn remove(&self, id: &str) {
        let mut inner = self.lock();
        inner.open.remove(id);
        inner
            .pending_requests
            .retain(|_, (session, _)| session != id);
    }

    /// Cancels what a session does. One that is not there has nothing to cancel.
    pub(super) fn cancel(&self, id: &str) {
        if let Some(session) = self.lock().open.get(id)
            && session.to.try_send(SessionCommand::Cancel).is_err()
        {
            // Behind everything that waits already, as it would be there.
            session.cancel.notify_one();
        }
    }

    /// The id of a question to the editor.
    pub(super) fn register_request(&self, session: &str, approval: PermissionRequestId) -> u64 {
        let mut inner = self.lock();
        inner.last_id += 1;
        let id = inner.last_id;
        inner
            .pending_requests
            .insert(id, (session.to_owned(), approval));
        id
    }

    /// An approval is decided: an answer to it is none any more.
    pub(super) fn forget_request(&self, approval: &PermissionRequestId) {
        self.lock()
            .pending_requests
            .retain(|_, (_, open)| open != approval);
    }

    /// The editor answered a question.
    pub(super) fn deliver_answer(&self, id: Option<u64>, said: ApproverReply) {
        let mut inner = self.lock();
        let Some((session, approval)) = id.and_then(|id| inner.pending_requests.remove(&id)) else {
            return;
        };
        if let Some(session) = inner.open.get(&session) {
            // With no room left the approval is denied at its deadline.
            let _ = session.to.try_send(SessionCommand::Answer {
                approval,
                answer: said,
            });
        }
    }
}
