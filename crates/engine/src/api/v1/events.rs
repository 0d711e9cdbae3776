//! Events as server-sent events: of one session, of the whole fleet.
//!
//! Owns the streams: a cursor over the journal that is woken by what happens. A watcher that is slow is
//! waited for a bounded time and holds nobody else up. Must not know how events are stored.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::time::Instant;

use super::error::ApiError;
use super::request_context::RequestContext;
use super::{AppState, HandlerResult, fleet, sessions};
use crate::api::json_lines;
use crate::api::run_stream::RunStreamItem;
use crate::api::web_socket;
use marshal_fleet::FleetEvent;
use marshal_journal::{Reader, StoredEvent};
use marshal_model::limits;
use marshal_model::untrusted::{escape_for_display, escape_json_for_terminal};
use marshal_model::{EventId, EventKind, PoolName, SessionId};

/// How far before its cursor the stream of the fleet begins again: what sessions stamped and had not
/// made durable when the cursor was given.
const OVERLAP_US: i64 = 10_000_000;

/// Sessions that a stream of the fleet remembers its place in.
const MAX_TRACKED_SESSIONS: usize = 10_000;

/// What the stream of the fleet tells beside events of sessions.
const NOTICES: [&str; 5] = ["queued", "assigned", "slot", "paused", "ended"];

/// Why a stream ends.
enum StreamEnd {
    /// The watcher is gone, or takes nothing.
    Gone,
    /// Its connection is old: it comes again.
    Expired,
    /// The supervisor stops.
    Stopping,
    /// The journal cannot be read.
    Failed,
    /// The session has ended, and everything of it was told.
    Complete,
}

impl From<ApiError> for StreamEnd {
    fn from(_: ApiError) -> Self {
        Self::Failed
    }
}

/// A watcher's end of its stream.
struct Subscriber {
    desk: AppState,
    sender: mpsc::Sender<Bytes>,
    fleet_events: broadcast::Receiver<FleetEvent>,
    _permit: OwnedSemaphorePermit,
}

/// What wakes a watcher.
enum Wakeup {
    /// This happened.
    FleetEvent(FleetEvent),
    /// Much happened, and was not heard.
    Lagged,
    /// The children are gone, and everything of them is durable.
    Drained,
}

/// Where the watcher says that it stands, if it says.
fn cursor(call: &RequestContext) -> Result<Option<&str>, ApiError> {
    match call.headers.get("last-event-id") {
        None => Ok(call.query_param("after")),
        Some(value) => {
            let text = value.to_str();
            let text =
                text.map_err(|_| ApiError::bad_request("Last-Event-ID is no id of an event"))?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        }
    }
}

/// Opens a stream; `fill` does, until the connection is old.
fn open<F, R>(desk: AppState, call: RequestContext, fill: F) -> HandlerResult
where
    F: FnOnce(Subscriber) -> R,
    R: Future<Output = StreamEnd> + Send + 'static,
{
    let RequestContext {
        deadline: until,
        websocket: socket,
        ..
    } = call;
    let place = Arc::clone(&desk.stream_permits).try_acquire_owned();
    let place = place.map_err(|_| ApiError::unavailable("too many streams are open already"))?;
    let (tell, told) = mpsc::channel(limits::APPROVAL_STREAM_QUEUE);
    let last = tell.clone();
    let response = web_socket::respond(told, socket, desk.stop.clone(), until);
    let filled = fill(Subscriber {
        fleet_events: desk.fleet.subscribe(),
        desk,
        sender: tell,
        _permit: place,
    });
    // A stream that ends by itself is no error for its reader.
    let until = until - limits::APPROVAL_STREAM_MARGIN.min(until - Instant::now());
    tokio::spawn(async move {
        let again = format!("retry: {}\n\n", limits::APPROVAL_STREAM_RETRY.as_millis());
        let _ = send_chunk(&last, again).await;
        let end = tokio::select! {
            end = filled => end,
            () = tokio::time::sleep_until(until) => StreamEnd::Expired,
        };
        let why = match end {
            StreamEnd::Gone => return,
            StreamEnd::Expired => "old",
            StreamEnd::Stopping => "stopping",
            StreamEnd::Failed => "failed",
            StreamEnd::Complete => "complete",
        };
        let _ = send_chunk(
            &last,
            format!("event: end\ndata: {{\"why\":\"{why}\"}}\n\n"),
        )
        .await;
    });
    Ok(response)
}

async fn send_chunk(tell: &mpsc::Sender<Bytes>, text: String) -> Result<(), StreamEnd> {
    let sent = tell.send(Bytes::from(text));
    match tokio::time::timeout(limits::APPROVAL_STREAM_WRITE_TIMEOUT, sent).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(StreamEnd::Gone),
    }
}

impl Subscriber {
    /// One event; without an id it moves no cursor.
    async fn send_event(&self, id: Option<&str>, name: &str, json: &str) -> Result<(), StreamEnd> {
        let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
        // One line, which nothing in it can end.
        let json = escape_json_for_terminal(json);
        send_chunk(&self.sender, format!("{id}event: {name}\ndata: {json}\n\n")).await
    }

    /// Waits until something happened. Says meanwhile that it is there, and looks itself then:
    /// `None`.
    async fn next_wakeup(&mut self) -> Result<Option<Wakeup>, StreamEnd> {
        let stop = self.desk.stop.clone();
        tokio::select! {
            heard = self.fleet_events.recv() => match heard {
                Ok(notice) => Ok(Some(Wakeup::FleetEvent(notice))),
                Err(RecvError::Lagged(_)) => Ok(Some(Wakeup::Lagged)),
                Err(RecvError::Closed) => Err(StreamEnd::Stopping),
            },
            () = stop.cancelled() => {
                self.desk.fleet.flush_journal().await;
                Ok(Some(Wakeup::Drained))
            }
            () = tokio::time::sleep(limits::APPROVAL_STREAM_KEEPALIVE) => {
                send_chunk(&self.sender, ": nothing new\n\n".to_owned()).await?;
                Ok(None)
            }
            () = self.sender.closed() => Err(StreamEnd::Gone),
        }
    }

    async fn page(&self, session: &SessionId, after: u64) -> Result<Vec<StoredEvent>, StreamEnd> {
        let session = session.clone();
        let (most, bytes) = (limits::CATCH_UP_EVENTS, limits::CATCH_UP_BYTES);
        let read = move |reader: &Reader| reader.events_page(&session, after, most, bytes);
        Ok(self.desk.journal.read(read).await?)
    }
}

pub(super) async fn stream_session(desk: AppState, call: RequestContext) -> HandlerResult {
    let (session, _) = sessions::find_session(&desk, &call).await?;
    let bad = |_| ApiError::bad_request("the cursor is no id of an event, such as 3-117");
    let cursor = cursor(&call)?
        .map(EventId::parse)
        .transpose()
        .map_err(bad)?;
    let at = match cursor {
        None => 0,
        Some(cursor) => {
            let asked = session.clone();
            let read = move |reader: &Reader| reader.last_common_event(&asked, cursor);
            desk.journal.read(read).await?.seq
        }
    };
    open(desk, call, |watcher| async move {
        let followed = watcher.follow_session(session, at).await;
        followed.err().unwrap_or(StreamEnd::Complete)
    })
}

impl Subscriber {
    async fn follow_session(mut self, session: SessionId, mut at: u64) -> Result<(), StreamEnd> {
        loop {
            // Before its events, so that none is missed of one that has ended.
            let asked = session.clone();
            let row = self
                .desk
                .journal
                .read(move |reader| reader.session(&asked))
                .await?;
            let is_over = row.is_none_or(|row| row.ended_at_us.is_some());
            loop {
                let page = self.page(&session, at).await?;
                let Some(last) = page.last() else { break };
                at = last.id.seq;
                for event in page {
                    let (id, kind) = (event.id.to_string(), event.kind.clone());
                    self.send_event(Some(&id), &kind, &event.into_json())
                        .await?;
                }
            }
            if is_over {
                return Ok(());
            }
            loop {
                let is_news = match self.next_wakeup().await? {
                    Some(Wakeup::Drained) => return self.send_remaining(&session, at).await,
                    Some(Wakeup::FleetEvent(notice)) => concerns(&notice, &session),
                    Some(Wakeup::Lagged) | None => true,
                };
                if is_news {
                    break;
                }
            }
        }
    }

    /// What is left of a session when the supervisor stops.
    async fn send_remaining(&self, session: &SessionId, mut at: u64) -> Result<(), StreamEnd> {
        loop {
            let page = self.page(session, at).await?;
            let Some(last) = page.last() else {
                return Err(StreamEnd::Stopping);
            };
            at = last.id.seq;
            for event in page {
                let (id, kind) = (event.id.to_string(), event.kind.clone());
                self.send_event(Some(&id), &kind, &event.into_json())
                    .await?;
            }
        }
    }
}

/// Whether a notice may mean news of a session.
fn concerns(notice: &FleetEvent, of: &SessionId) -> bool {
    match notice {
        FleetEvent::SessionEvents { session, .. } | FleetEvent::EventsSkipped { session, .. } => {
            session == of
        }
        FleetEvent::TaskEnded(report) => report.session.as_ref() == Some(of),
        _ => false,
    }
}

/// What a stream of the fleet tells.
struct EventFilter {
    kinds: Option<Vec<String>>,
    pool: Option<PoolName>,
    session: Option<SessionId>,
}

impl EventFilter {
    fn from_request(desk: &AppState, call: &RequestContext) -> Result<Self, ApiError> {
        let kinds = call.query_param("kind").map(|words| {
            let words = words.split(',').map(str::to_owned);
            words.collect::<Vec<_>>()
        });
        for kind in kinds.iter().flatten() {
            if !NOTICES.contains(&kind.as_str()) && EventKind::from_word(kind).is_none() {
                let shown = escape_for_display(kind, 60);
                let detail = format!("query key \"kind\": there is no kind {shown:?}");
                return Err(ApiError::bad_request(detail));
            }
        }
        let session = call.query_param("session").map(SessionId::new).transpose();
        Ok(Self {
            kinds,
            pool: fleet::pool_filter(desk, call)?,
            session: session
                .map_err(|_| ApiError::bad_request("query key \"session\" is no session"))?,
        })
    }

    fn accepts_kind(&self, kind: &str) -> bool {
        let kinds = self.kinds.as_ref();
        kinds.is_none_or(|kinds| kinds.iter().any(|of| of == kind))
    }

    fn accepts_source(&self, pool: &PoolName, session: Option<&SessionId>) -> bool {
        self.pool.as_ref().is_none_or(|of| of == pool)
            && self.session.as_ref().is_none_or(|of| Some(of) == session)
    }
}

pub(super) async fn stream_fleet(desk: AppState, call: RequestContext) -> HandlerResult {
    let wanted = EventFilter::from_request(&desk, &call)?;
    let now = jiff::Timestamp::now().as_microsecond();
    let cursor = cursor(&call)?.map(|text| {
        let at: Option<i64> = text.parse().ok().filter(|at| (0..=now).contains(at));
        at.ok_or_else(|| ApiError::bad_request("the cursor is none of this stream's"))
    });
    let cursor = cursor.transpose()?;
    open(desk, call, move |watcher| async move {
        let mut all = FleetStream {
            watcher,
            filter: wanted,
            last_seqs: HashMap::new(),
            at_us: cursor.unwrap_or(now),
        };
        all.follow(cursor.is_some())
            .await
            .err()
            .unwrap_or(StreamEnd::Stopping)
    })
}

/// A stream of the fleet.
struct FleetStream {
    watcher: Subscriber,
    filter: EventFilter,
    /// The last seq that was told of each session.
    last_seqs: HashMap<SessionId, u64>,
    /// The stamp of the newest event that was told: the cursor.
    at_us: i64,
}

impl FleetStream {
    async fn follow(&mut self, goes_on: bool) -> Result<(), StreamEnd> {
        if goes_on {
            self.send_missed().await?;
        }
        loop {
            match self.watcher.next_wakeup().await? {
                None => {}
                Some(Wakeup::Drained) => return self.send_missed().await,
                Some(Wakeup::Lagged) => self.send_missed().await?,
                Some(Wakeup::FleetEvent(notice)) => self.handle_fleet_event(notice).await?,
            }
        }
    }

    /// Tells what the journal has from a little before the cursor on, of every session.
    async fn send_missed(&mut self) -> Result<(), StreamEnd> {
        let from = self.at_us - OVERLAP_US;
        let read = move |reader: &Reader| {
            let mut places = Vec::new();
            for row in reader.sessions_since(from)? {
                let Ok(id) = SessionId::new(&row.session) else {
                    continue;
                };
                let Ok(pool) = PoolName::new(&row.pool) else {
                    continue;
                };
                let after = reader.seq_before(&id, from)?;
                places.push((id, pool, after));
            }
            Ok(places)
        };
        for (session, pool, after) in self.watcher.desk.journal.read(read).await? {
            let after = *self.last_seqs.get(&session).unwrap_or(&after);
            self.send_session_events(session, &pool, after, u64::MAX)
                .await?;
        }
        Ok(())
    }

    async fn handle_fleet_event(&mut self, notice: FleetEvent) -> Result<(), StreamEnd> {
        let (slot, session, first, last) = match &notice {
            FleetEvent::SessionEvents {
                slot,
                session,
                events,
                ..
            } => {
                let (Some(first), Some(last)) = (events.first(), events.last()) else {
                    return Ok(());
                };
                (slot, session, first.id.seq, last.id.seq)
            }
            FleetEvent::EventsSkipped {
                slot,
                session,
                first,
                last,
                ..
            } => (slot, session, *first, *last),
            _ => return self.send_fleet_event(&notice).await,
        };
        let given = self.last_seqs.get(session);
        let after = given.copied().unwrap_or(first.saturating_sub(1));
        if last <= after {
            return Ok(());
        }
        let (session, pool) = (session.clone(), slot.pool.clone());
        self.send_session_events(session, &pool, after, last).await
    }

    /// Tells a session's events after a seq.
    async fn send_session_events(
        &mut self,
        session: SessionId,
        pool: &PoolName,
        after: u64,
        until: u64,
    ) -> Result<(), StreamEnd> {
        let mut at = after;
        while at < until {
            let page = self.watcher.page(&session, at).await?;
            let Some(last) = page.last() else { break };
            at = last.id.seq;
            for event in page {
                self.at_us = self.at_us.max(event.at_us);
                if !self.filter.accepts_source(pool, Some(&session))
                    || !self.filter.accepts_kind(&event.kind)
                {
                    continue;
                }
                let (id, kind) = (self.at_us.to_string(), event.kind.clone());
                self.watcher
                    .send_event(Some(&id), &kind, &event.into_json())
                    .await?;
            }
        }
        if self.last_seqs.len() >= MAX_TRACKED_SESSIONS {
            self.last_seqs.clear();
        }
        self.last_seqs.insert(session, at);
        Ok(())
    }

    /// What is no event of a session is told as it happens, and never again.
    async fn send_fleet_event(&mut self, notice: &FleetEvent) -> Result<(), StreamEnd> {
        let (kind, pool, session, line) = match notice {
            FleetEvent::TaskQueued { pool, .. } => ("queued", pool, None, item(notice)),
            FleetEvent::TaskAssigned { slot, session, .. } => {
                ("assigned", &slot.pool, Some(session), item(notice))
            }
            FleetEvent::SlotChanged { slot, .. } => ("slot", &slot.pool, None, item(notice)),
            FleetEvent::PoolPaused { pool, .. } => ("paused", pool, None, item(notice)),
            FleetEvent::TaskEnded(report) => {
                let line = json_lines::item_json(&RunStreamItem::Ended(Arc::clone(report)));
                ("ended", &report.pool, report.session.as_ref(), line)
            }
            FleetEvent::SessionEvents { .. } | FleetEvent::EventsSkipped { .. } => return Ok(()),
        };
        if self.filter.accepts_source(pool, session) && self.filter.accepts_kind(kind) {
            self.watcher.send_event(None, kind, &line).await?;
        }
        Ok(())
    }
}

fn item(notice: &FleetEvent) -> String {
    json_lines::item_json(&RunStreamItem::Notice(notice.clone()))
}
