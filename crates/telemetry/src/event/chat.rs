//! Chats: their messages, and their waits for a slot.

use std::time::Duration;

use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::PoolName;

/// A chat that works, waits or is idle in a slot; counted until it is dropped.
#[derive(Debug)]
pub struct ActiveChat(PoolName);

impl ActiveChat {
    /// Counts a chat as active.
    #[must_use]
    pub fn new(pool: &PoolName) -> Self {
        gauge(&names::CHATS_ACTIVE, &[pool.as_str()]).increment(1.0);
        Self(pool.clone())
    }

    /// Observes how long it waited for a slot with a ready agent.
    pub fn record_wait(&self, waited: Duration) {
        histogram(&names::CHAT_WAIT, &[self.0.as_str()]).record(waited);
    }
}

impl Drop for ActiveChat {
    fn drop(&mut self) {
        gauge(&names::CHATS_ACTIVE, &[self.0.as_str()]).decrement(1.0);
    }
}

/// A chat accepted a message. Not logged: its turn is.
#[derive(Debug)]
pub struct MessageAccepted<'a> {
    /// The pool.
    pub pool: &'a PoolName,
}

impl MessageAccepted<'_> {
    /// Counts.
    pub fn emit(self) {
        counter(&names::CHAT_MESSAGES, &[self.pool.as_str()]).increment(1);
    }
}
