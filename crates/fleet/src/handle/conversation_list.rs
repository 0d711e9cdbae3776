//! Conversations that can be loaded: their list, and the end of unused ones.
//!
//! Must not know open conversations.
//!
//! In the journal a conversation is a run of the command `conversation` that stays open, with one
//! session and a task for each prompt. So a prompt is as durable as a task. A conversation counts
//! as unused when it has had no prompt for `CONVERSATION_RETENTION`.

use std::path::PathBuf;
use std::sync::Arc;

use super::conversation::OpenError;
use crate::FleetHandle;
use crate::clock::now_us;
use crate::session::discard_session;
use marshal_journal::{Commit, Reader, StoredConversation, Write, codec};
use marshal_model::{PoolName, RunId, SessionId, UntrustedText, limits};
use marshal_sandbox::workspace::copy;

/// A conversation that can be loaded, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationView {
    /// The session's id, which loads it.
    pub session: SessionId,
    /// The directory of its last prompt's client, on the host.
    pub directory: PathBuf,
    /// The beginning of its first prompt; `None` before the first one.
    pub title: Option<UntrustedText>,
    /// The time of its last prompt, else of its creation: microseconds since the Unix epoch.
    pub at_us: i64,
}

impl FleetHandle {
    /// The conversations of a pool that can be loaded, the most recently used first: at most
    /// [`limits::CONVERSATION_PAGE`], after the first `after`.
    ///
    /// # Errors
    /// [`OpenError::NoPool`], [`OpenError::Journal`]
    pub async fn conversations(
        &self,
        pool: &PoolName,
        after: u32,
    ) -> Result<Vec<ConversationView>, OpenError> {
        let Some(entry) = self.pool_entry(pool) else {
            return Err(OpenError::NoPool {
                pool: pool.clone(),
                there: String::new(),
            });
        };
        let workspace = entry.shared.workspace.clone();
        let pool = pool.clone();
        let read =
            move |reader: &Reader| reader.conversations(&pool, after, limits::CONVERSATION_PAGE);
        let found = self.read_journal(read).await?;
        let view = |of: StoredConversation| {
            let nothing = UntrustedText::default();
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

    /// Ends a conversation that no client has open, for good: it is in no list any more and cannot
    /// be loaded. Its home is removed, and the retention time of its copy begins. Its events stay in
    /// the journal as long as those of other ended sessions.
    ///
    /// # Errors
    /// [`OpenError::NoSuchSession`], [`OpenError::AlreadyOpen`], [`OpenError::Journal`]
    pub async fn delete_conversation(
        &self,
        pool: &PoolName,
        session: &SessionId,
    ) -> Result<(), OpenError> {
        let shared = &self.0.shared;
        if !shared.deleting().insert(session.clone()) {
            return Err(OpenError::NoSuchSession(session.clone()));
        }
        let deleted = self.end_conversation(pool, session).await;
        shared.deleting().remove(session);
        deleted
    }

    async fn end_conversation(
        &self,
        pool: &PoolName,
        session: &SessionId,
    ) -> Result<(), OpenError> {
        if self.is_session_active(session) {
            return Err(OpenError::AlreadyOpen(session.clone()));
        }
        let (found, _) = self.find_conversation(pool, session.clone()).await?;
        if self.is_chat_session(session).await? {
            return Err(OpenError::NoSuchSession(session.clone()));
        }
        let durable = self
            .commit_durably(end_rows(session.clone(), found.run))
            .await;
        durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        let shared = Arc::clone(&self.0.shared);
        shared.approvals.remove_session(session);
        let (ambient, session) = (shared.ambient.clone(), session.clone());
        // If this fails, the next sweep removes the rest.
        let work = move || {
            let has_copy = copy::path(&shared.state, &session).exists();
            discard_session(&shared, &session, has_copy);
        };
        let _ = ambient.run_blocking(work).await;
        Ok(())
    }

    /// Ends the conversations that nobody has used for [`limits::CONVERSATION_RETENTION`].
    pub async fn end_old_conversations(&self) {
        let age = i64::try_from(limits::CONVERSATION_RETENTION.as_micros()).unwrap_or(i64::MAX);
        let before = now_us().saturating_sub(age);
        let read = move |reader: &Reader| reader.conversations_unused_since(before);
        let found = match self.read_journal(read).await {
            Ok(found) => found,
            Err(error) => {
                return tracing::warn!(%error, "cannot read old conversations: none is ended now");
            }
        };
        for old in found
            .into_iter()
            .filter(|old| !self.is_session_active(&old.session))
        {
            self.0.shared.approvals.remove_session(&old.session);
            let ends = end_rows(old.session, old.run);
            let _ = self.0.shared.journal.submit(Commit::new(ends));
        }
    }
}

/// The rows of a conversation's end.
fn end_rows(session: SessionId, run: RunId) -> Vec<Write> {
    let at_us = now_us();
    vec![
        Write::SessionEnded {
            session,
            at_us,
            class: None,
        },
        Write::RunEnded {
            run,
            at_us,
            code: 0,
        },
    ]
}
