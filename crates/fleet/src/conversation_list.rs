//! Conversations that can be loaded: their list, and the end of those that nobody uses.
//!
//! Must not know an open one.
//!
//! In the journal a conversation is a run of the command `conversation` that stays open, with one session
//! and a task for each prompt. So a prompt is as durable as a task. Nobody has used a conversation when it
//! is unused for `CONVERSATION_RETENTION`.

use std::path::PathBuf;

use super::FleetHandle;
use super::clock::now_us;
use super::conversation::OpenError;
use marshal_journal::{Commit, Reader, StoredConversation, Write, codec};
use marshal_model::limits;
use marshal_model::{PoolName, SessionId, UntrustedText};

/// A conversation that can be loaded, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationView {
    /// Its session.
    pub session: SessionId,
    /// The directory that its client worked in last.
    pub directory: PathBuf,
    /// The beginning of its first prompt.
    pub title: Option<UntrustedText>,
    /// When it last had a prompt, or began: microseconds since the Unix epoch.
    pub at_us: i64,
}

impl FleetHandle {
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

    /// Ends the conversations that nobody has used for [`limits::CONVERSATION_RETENTION`].
    pub async fn end_old_conversations(&self) {
        let age = i64::try_from(limits::CONVERSATION_RETENTION.as_micros()).unwrap_or(i64::MAX);
        let before = now_us().saturating_sub(age);
        let read = move |reader: &Reader| reader.conversations_unused_since(before);
        let found = match self.read_journal(read).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(%error, "old conversations stay"),
        };
        for old in found
            .into_iter()
            .filter(|old| !self.is_session_active(&old.session))
        {
            self.0.shared.approvals.remove_session(&old.session);
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
            let _ = self.0.shared.journal.submit(Commit::new(ends));
        }
    }
}
