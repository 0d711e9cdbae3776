//! A chat that a client begins under a key, so that it can ask again: it is begun once.
//!
//! Owns what such a key means: the run of the chat has an id made of it and of what was asked for, so
//! that nothing else is to be kept. Must not know how a chat is begun.

use sha2::{Digest as _, Sha256};

use super::{Accepted, ChatError, Chats, CreateRequest, Created, StartedWork};
use marshal_model::{RoleName, RunId, SessionId, TurnState};

/// By what a client may ask for a chat again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Its key.
    pub key: String,
    /// What it asks for, in a form that is the same each time.
    pub request: String,
}

impl IdempotencyKey {
    /// How the id of the chat's run begins, which is the key's own, and the whole id.
    pub(super) fn derive_ids(&self, workspace: &str) -> Result<(SessionId, RunId), ChatError> {
        let key = hex::encode(Sha256::digest(format!("{workspace}\0{}", self.key)));
        let asked = hex::encode(Sha256::digest(&self.request));
        let key = format!("chat-{key}");
        let unfit = |_| ChatError::Unprocessable("the Idempotency-Key is none".to_owned());
        let run = RunId::new(&format!("{key}-{}", &asked[..32]));
        Ok((SessionId::new(&key).map_err(unfit)?, run.map_err(unfit)?))
    }
}

impl Chats {
    /// Begins a chat, and with its goal the first turn; returns when both are durable. A caller that
    /// does not wait for it leaves it to be finished. One with the key of an earlier one is that one.
    ///
    /// # Errors
    /// [`ChatError`]; nothing was begun then.
    pub async fn create(
        &self,
        workspace: &str,
        wish: CreateRequest,
        once: Option<IdempotencyKey>,
    ) -> Result<Created, ChatError> {
        let (chats, workspace) = (self.clone(), workspace.to_owned());
        let created = tokio::spawn(async move {
            let Some(once) = once else {
                return chats.begin(&workspace, wish, None).await;
            };
            let (key, run) = once.derive_ids(&workspace)?;
            let _place = chats.0.lock_chat(&key).await;
            match chats.find_created(&workspace, &key, &run).await? {
                Some(before) => Ok(before),
                None => chats.begin(&workspace, wish, Some(run)).await,
            }
        });
        let gone = |_| ChatError::Unavailable("the supervisor stops".to_owned());
        created.await.map_err(gone)?
    }

    /// The chat that was begun under a key; whoever asked first may have gone before it was worked.
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
        let found = read.await.map_err(ChatError::Unavailable)?;
        let Some((chat, turn, members)) = found else {
            return Ok(None);
        };
        if chat.run != *run || chat.workspace.as_str() != workspace {
            let why = "another chat was begun under this Idempotency-Key: take a new one";
            return Err(ChatError::Unprocessable(why.to_owned()));
        }
        if chat.mode.has_members() {
            for member in members.iter().filter(|of| of.waiting > 0) {
                inner.wake(member.clone(), |wants| wants.turns += 1);
            }
            inner.coordinate(&chat.session);
            let members = members.iter().map(|of| {
                (
                    of.session.clone(),
                    of.role.clone(),
                    of.settings.planner.is_some(),
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
            let why = "the chat of this Idempotency-Key is over: take a new one";
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
