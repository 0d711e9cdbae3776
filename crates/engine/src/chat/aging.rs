//! Closes unused chats, so that retention removes them like all that has ended.
//!
//! Must not know how a chat is closed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{ChatError, Inner};
use marshal_model::SessionId;
use marshal_model::limits;

/// The minimum time between two checks.
const LEAST: Duration = Duration::from_secs(1);

/// Closes unused chats periodically until the supervisor stops.
pub(super) async fn run(chats: Arc<Inner>) {
    loop {
        let most = chats.config.current().chat.close_after;
        let every = (most / 4).clamp(LEAST, limits::CHAT_IDLE_CHECK_INTERVAL);
        let most_ms = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
        tokio::select! {
            () = chats.stop.cancelled() => return,
            () = sleep(every) => {}
        }
        let before_ms = chats.fleet.now_ms().saturating_sub(most_ms);
        if let Err(error) = close_unused_chats(&chats, before_ms).await {
            tracing::warn!(why = error.to_string(), "unused chats stay open for now");
        }
    }
}

/// Checks all chats once, page by page.
async fn close_unused_chats(chats: &Inner, before_ms: i64) -> Result<(), ChatError> {
    let mut after: Option<SessionId> = None;
    loop {
        let from = after.clone();
        let read = chats
            .readers
            .read(move |reader| reader.idle_chats(before_ms, from.as_ref(), limits::CHAT_PAGE));
        let page = read.await?;
        let Some(last) = page.last().cloned() else {
            return Ok(());
        };
        for chat in page {
            if chats.close_unused(&chat, before_ms).await? {
                tracing::info!(%chat, "an unused chat is closed");
            }
        }
        after = Some(last);
    }
}
