//! Creates a chat with an idempotency key, so that a repeated request creates it only once.
//!
//! Owns the meaning of a key: the run id of the chat is derived from the key and the request, so
//! nothing else must be stored. Must not know how a chat is created.

use sha2::{Digest as _, Sha256};

use super::{Accepted, ChatError, Chats, CreateRequest, Created, StartedWork};
use marshal_model::{RoleName, RunId, SessionId, TurnState};

/// The idempotency key of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key.
    pub key: String,
    /// The request in a canonical form.
    pub request: String,
}

impl IdempotencyKey {
    /// Derives the ids of the session, from the key, and of the run, from the key and the request.
    pub(super) fn derive_ids(&self, workspace: &str) -> Result<(SessionId, RunId), ChatError> {
        let key = hex::encode(Sha256::digest(format!("{workspace}\0{}", self.key)));
        let request = hex::encode(Sha256::digest(&self.request));
        let key = format!("chat-{key}");
        let unfit = |_| ChatError::Unprocessable("the Idempotency-Key is not valid".to_owned());
        let run = RunId::new(&format!("{key}-{}", &request[..32]));
        Ok((SessionId::new(&key).map_err(unfit)?, run.map_err(unfit)?))
    }
}

impl Chats {
    /// Creates a chat with its goal as the first turn; returns when both are durable. The creation
    /// continues if the caller leaves. A request with the key of an earlier chat returns that chat.
    ///
    /// # Errors
    /// [`ChatError`]; then nothing was created.
    pub async fn create(
        &self,
        workspace: &str,
        create_request: CreateRequest,
        once: Option<IdempotencyKey>,
    ) -> Result<Created, ChatError> {
        let (chats, workspace) = (self.clone(), workspace.to_owned());
        let created = tokio::spawn(async move {
            let Some(once) = once else {
                return chats.begin(&workspace, create_request, None).await;
            };
            let (key, run) = once.derive_ids(&workspace)?;
            let _place = chats.0.lock_chat_for_client(&key).await?;
            match chats.find_created(&workspace, &key, &run).await? {
                Some(before) => Ok(before),
                None => chats.begin(&workspace, create_request, Some(run)).await,
            }
        });
        let stopping = |_| ChatError::Unavailable("the supervisor is stopping".to_owned());
        created.await.map_err(stopping)?
    }

    /// Returns the chat that was created with a key. Wakes its actor, because the first caller may
    /// have left before that.
    async fn find_created(
        &self,
        workspace: &str,
        key: &SessionId,
        run: &RunId,
    ) -> Result<Option<Created>, ChatError> {
        let inner = &self.0;
        let begin = format!("{key}-");
        let read = inner.readers.read(move |reader| {
            let Some(chat) = reader.chat_of_run(&begin)? else {
                return Ok(None);
            };
            let turn = reader.turns(&chat.session, 0, 1)?.pop();
            let mut members = Vec::new();
            for member in reader.members(&chat.session)? {
                members.extend(reader.chat(&member)?);
            }
            Ok(Some((chat, turn, members)))
        });
        let found = read.await?;
        let Some((chat, turn, members)) = found else {
            return Ok(None);
        };
        if chat.run != *run || chat.workspace.as_str() != workspace {
            let why = "this Idempotency-Key was used for another chat: use a new one";
            return Err(ChatError::Unprocessable(why.to_owned()));
        }
        if chat.mode.has_members() {
            for member in members.iter().filter(|item| item.waiting > 0) {
                inner.wake(member.clone(), |wants| wants.turns += 1);
            }
            inner.coordinate(&chat.session);
            let members = members.iter().map(|item| {
                (
                    item.session.clone(),
                    item.role.clone(),
                    item.settings.planner.is_some(),
                )
            });
            let members: Vec<(SessionId, RoleName, bool)> = members.collect();
            return Ok(Some(Created::Work(StartedWork {
                plan: chat.settings.plan_path.clone().unwrap_or_default(),
                chat: chat.session,
                members,
            })));
        }
        let Some(turn) = turn.filter(|turn| turn.seq == 1) else {
            let why = "the chat of this Idempotency-Key has ended: use a new one";
            return Err(ChatError::Conflict(why.to_owned()));
        };
        if turn.state == TurnState::Waiting {
            inner.wake(chat.clone(), |wants| wants.turns += 1);
        }
        let accepted = Accepted {
            turn: turn.turn,
            sequence: turn.seq,
        };
        Ok(Some(Created::Chat(chat.session, accepted)))
    }
}
