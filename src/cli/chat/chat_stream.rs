//! The event stream of one chat, resumed at its cursor after an interruption.
//!
//! Owns the cursor. Dropping a pending call loses no event. Must not know what an event says.

use std::path::Path;

use super::super::http_client::{ClientError, EventStream, stream};
use marshal_model::limits;

/// How often a stream is reopened without receiving an event: a daemon may take time to restart.
const MAX_REOPENS: u32 = 40;
/// The longest wait before a reopen, in multiples of [`limits::CHAT_STREAM_RETRY`].
const LONGEST: u32 = 4;
/// A position that no session reaches: a stream from there starts at the end of the session, and
/// its first event has that position.
const END: u64 = u64::MAX >> 1;

/// The event stream of one chat, with its cursor.
pub(super) struct ChatStream<'a> {
    state: &'a Path,
    path: String,
    events: Option<EventStream>,
    last: Option<String>,
    /// Whether the stream starts at the chat's end, whose position is not known yet.
    is_new: bool,
    cuts: u32,
}

impl<'a> ChatStream<'a> {
    /// The stream of an existing chat: earlier events are not shown.
    pub(super) const fn from_end(state: &'a Path, place: String) -> Self {
        Self {
            state,
            path: place,
            events: None,
            last: None,
            is_new: true,
            cuts: 0,
        }
    }

    /// The stream of a new chat, from its start.
    pub(super) fn from_start(state: &'a Path, place: String) -> Self {
        Self {
            is_new: false,
            ..Self::from_end(state, place)
        }
    }

    /// The chat's path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Fetches the current end of the chat, if the stream starts there.
    ///
    /// # Errors
    /// [`ClientError`]
    pub(super) async fn begin(&mut self) -> Result<(), ClientError> {
        if !self.is_new {
            return Ok(());
        }
        let path = format!("{}/events?shape=enveloped&after={END}", self.path);
        let mut events = stream(self.state, &path, None).await?;
        let first = events.next().await?;
        let lost = || ClientError::Lost("the stream ended at once".to_owned());
        self.last = Some(first.and_then(|event| event.id).ok_or_else(lost)?);
        self.events = Some(events);
        self.is_new = false;
        Ok(())
    }

    /// The next event's data.
    ///
    /// # Errors
    /// The last [`ClientError`], after the stream could not be reopened often enough.
    pub(super) async fn next(&mut self) -> Result<String, ClientError> {
        loop {
            let Some(events) = &mut self.events else {
                if self.cuts > 0 {
                    let wait = limits::CHAT_STREAM_RETRY * self.cuts.min(LONGEST);
                    tokio::time::sleep(wait).await;
                }
                let path = format!("{}/events?shape=enveloped", self.path);
                let opened = stream(self.state, &path, self.last.as_deref()).await;
                self.cuts += 1;
                match opened {
                    Ok(events) => self.events = Some(events),
                    Err(error) if self.cuts > MAX_REOPENS || !error.is_retryable() => {
                        return Err(error);
                    }
                    Err(_) => {}
                }
                continue;
            };
            match events.next().await {
                Ok(Some(event)) => {
                    self.cuts = 0;
                    self.last = event.id.or(self.last.take());
                    return Ok(event.data);
                }
                Err(error) if self.cuts > MAX_REOPENS => return Err(error),
                // The daemon restarted, or the stream reached its time limit.
                Ok(None) | Err(_) => {
                    self.events = None;
                    self.cuts = self.cuts.max(1);
                }
            }
        }
    }
}
