//! Streams of server-sent events: of one session, and of the whole fleet.
//!
//! Owns the streams: a cursor over the journal that live events wake. Must not know how events are
//! stored.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::error::ApiError;
use super::event_stream::{self, EventSender};
use super::request_context::RequestContext;
use super::{AppState, HandlerResult, fleet, sessions};
use crate::api::json_lines;
use crate::api::run_stream::RunStreamItem;
use marshal_fleet::FleetEvent;
use marshal_journal::{Reader, StoredEvent};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{EventId, EventKind, PoolName, SessionId};
use marshal_telemetry::labels::{StreamEnd, StreamKind};

/// The fleet's stream resumes this long before its cursor, because sessions may have stamped events
/// that were not durable yet when the cursor was sent.
const OVERLAP_US: i64 = 10_000_000;

/// The maximum number of sessions whose position a fleet stream keeps.
const MAX_TRACKED_SESSIONS: usize = 10_000;

/// The live events that the fleet's stream has in addition to the events of sessions.
const NOTICES: [&str; 7] = [
    "queued",
    "assigned",
    "slot",
    "approval",
    "paused",
    "run_paused",
    "ended",
];

/// The producer of one client's stream.
struct Subscriber {
    app: AppState,
    sender: EventSender,
    fleet_events: broadcast::Receiver<FleetEvent>,
}

/// What wakes a stream.
enum Wakeup {
    /// A live event.
    FleetEvent(FleetEvent),
    /// Live events were lost.
    Lagged,
    /// The children have ended, and all of their events are durable.
    Drained,
}

/// Returns the client's cursor, if it sent one.
fn cursor(request: &RequestContext) -> Result<Option<&str>, ApiError> {
    match request.headers.get("last-event-id") {
        None => Ok(request.query_param("after")),
        Some(value) => {
            let text = value.to_str();
            let text =
                text.map_err(|_| ApiError::bad_request("Last-Event-ID is not an event id"))?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        }
    }
}

/// Opens a stream of the live events and what `fill` adds.
fn open<F, R>(kind: StreamKind, app: AppState, request: RequestContext, fill: F) -> HandlerResult
where
    F: FnOnce(Subscriber) -> R,
    R: Future<Output = StreamEnd> + Send + 'static,
{
    let (permits, stop) = (Arc::clone(&app.stream_permits), app.stop.clone());
    event_stream::open(kind, &permits, stop, request, |sender| {
        fill(Subscriber {
            fleet_events: app.fleet.subscribe(),
            app,
            sender,
        })
    })
}

fn failed(_: ApiError) -> StreamEnd {
    StreamEnd::Failed
}

impl Subscriber {
    /// Waits until something happened. Sends keepalives meanwhile; each returns `None`, so that the
    /// caller reads the journal too.
    async fn next_wakeup(&mut self) -> Result<Option<Wakeup>, StreamEnd> {
        let stop = self.app.stop.clone();
        tokio::select! {
            heard = self.fleet_events.recv() => match heard {
                Ok(notice) => Ok(Some(Wakeup::FleetEvent(notice))),
                Err(RecvError::Lagged(_)) => Ok(Some(Wakeup::Lagged)),
                Err(RecvError::Closed) => Err(StreamEnd::Stopping),
            },
            () = stop.cancelled() => {
                self.app.fleet.flush_journal().await;
                Ok(Some(Wakeup::Drained))
            }
            () = tokio::time::sleep(limits::APPROVAL_STREAM_KEEPALIVE) => {
                self.sender.keep_alive().await?;
                Ok(None)
            }
            () = self.sender.closed() => Err(StreamEnd::Gone),
        }
    }

    async fn page(&self, session: &SessionId, after: u64) -> Result<Vec<StoredEvent>, StreamEnd> {
        let session = session.clone();
        let (most, bytes) = (limits::CATCH_UP_EVENTS, limits::CATCH_UP_BYTES);
        let read = move |reader: &Reader| reader.events_page(&session, after, most, bytes);
        self.app.journal.read(read).await.map_err(failed)
    }
}

pub(super) async fn stream_session(app: AppState, request: RequestContext) -> HandlerResult {
    let (session, _) = sessions::find_session(&app, &request).await?;
    let bad = |_| ApiError::bad_request("the cursor must be an event id, such as 3-117");
    let cursor = cursor(&request)?
        .map(EventId::parse)
        .transpose()
        .map_err(bad)?;
    let (mut at, mut rewound) = (0, None);
    if let Some(cursor) = cursor {
        let key = session.clone();
        let read = move |reader: &Reader| reader.last_common_event(&key, cursor);
        let common = app.journal.read(read).await?;
        at = common.seq;
        // A cursor of another journal, or of events that were lost with their disk.
        rewound = (common != cursor).then(|| format!("{{\"to\":\"{common}\"}}"));
    }
    open(
        StreamKind::Session,
        app,
        request,
        move |watcher| async move {
            if let Some(rewound) = rewound
                && let Err(end) = watcher.sender.send(None, "rewound", &rewound).await
            {
                return end;
            }
            let followed = watcher.follow_session(session, at).await;
            followed.err().unwrap_or(StreamEnd::Complete)
        },
    )
}

impl Subscriber {
    async fn follow_session(mut self, session: SessionId, mut at: u64) -> Result<(), StreamEnd> {
        loop {
            // Read before the events, so that none of an ended session is missed.
            let wanted = session.clone();
            let row = self
                .app
                .journal
                .read(move |reader| reader.session(&wanted))
                .await
                .map_err(failed)?;
            let is_over = row.is_none_or(|row| row.ended_at_us.is_some());
            loop {
                let page = self.page(&session, at).await?;
                let Some(last) = page.last() else { break };
                at = last.id.seq;
                for event in page {
                    let (id, kind) = (event.id.to_string(), event.kind.clone());
                    self.sender
                        .send(Some(&id), &kind, &event.into_json())
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

    /// Sends the remaining events of a session when the supervisor stops.
    async fn send_remaining(&self, session: &SessionId, mut at: u64) -> Result<(), StreamEnd> {
        loop {
            let page = self.page(session, at).await?;
            let Some(last) = page.last() else {
                return Err(StreamEnd::Stopping);
            };
            at = last.id.seq;
            for event in page {
                let (id, kind) = (event.id.to_string(), event.kind.clone());
                self.sender
                    .send(Some(&id), &kind, &event.into_json())
                    .await?;
            }
        }
    }
}

/// Whether a live event may mean new events of a session.
fn concerns(notice: &FleetEvent, of: &SessionId) -> bool {
    match notice {
        FleetEvent::SessionEvents { session, .. } | FleetEvent::EventsSkipped { session, .. } => {
            session == of
        }
        FleetEvent::TaskEnded(report) => report.session.as_ref() == Some(of),
        _ => false,
    }
}

/// The filter of a fleet stream.
struct EventFilter {
    kinds: Option<Vec<String>>,
    pool: Option<PoolName>,
    session: Option<SessionId>,
}

impl EventFilter {
    fn from_request(app: &AppState, request: &RequestContext) -> Result<Self, ApiError> {
        let kinds = request.query_param("kind").map(|words| {
            let words = words.split(',').map(str::to_owned);
            words.collect::<Vec<_>>()
        });
        for kind in kinds.iter().flatten() {
            if !NOTICES.contains(&kind.as_str()) && EventKind::parse(kind).is_none() {
                let shown = escape_for_display(kind, 60);
                let detail = format!("query key \"kind\": there is no event kind {shown:?}");
                return Err(ApiError::bad_request(detail));
            }
        }
        let session = request
            .query_param("session")
            .map(SessionId::new)
            .transpose();
        Ok(Self {
            kinds,
            pool: fleet::pool_filter(app, request)?,
            session: session
                .map_err(|_| ApiError::bad_request("query key \"session\" is not a session id"))?,
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

pub(super) async fn stream_fleet(app: AppState, request: RequestContext) -> HandlerResult {
    let wanted = EventFilter::from_request(&app, &request)?;
    let now = jiff::Timestamp::now().as_microsecond();
    let cursor = cursor(&request)?
        .map(|text| {
            let at: Option<i64> = text.parse().ok().filter(|at| (0..=now).contains(at));
            at.ok_or_else(|| ApiError::bad_request("the cursor does not belong to this stream"))
        })
        .transpose()?;
    open(StreamKind::Fleet, app, request, move |watcher| async move {
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

/// A fleet stream.
struct FleetStream {
    watcher: Subscriber,
    filter: EventFilter,
    /// The last seq that was sent, by session.
    last_seqs: HashMap<SessionId, u64>,
    /// The time of the newest event that was sent, which is the cursor.
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

    /// Sends the journal's events of all sessions from shortly before the cursor on.
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
        for (session, pool, after) in self.watcher.app.journal.read(read).await.map_err(failed)? {
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

    /// Sends a session's events after a seq.
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
                    .sender
                    .send(Some(&id), &kind, &event.into_json())
                    .await?;
            }
        }
        if self.last_seqs.len() >= MAX_TRACKED_SESSIONS {
            self.last_seqs.clear();
        }
        self.last_seqs.insert(session, at);
        Ok(())
    }

    /// Sends an event that belongs to no session; it is sent live only, and never again.
    async fn send_fleet_event(&mut self, notice: &FleetEvent) -> Result<(), StreamEnd> {
        let (kind, pool, session, line) = match notice {
            FleetEvent::TaskQueued { pool, .. } => ("queued", pool, None, item(notice)),
            FleetEvent::TaskAssigned { slot, session, .. } => {
                ("assigned", &slot.pool, Some(session), item(notice))
            }
            FleetEvent::SlotChanged { slot, .. } => ("slot", &slot.pool, None, item(notice)),
            FleetEvent::ApprovalPending { slot, session, .. } => {
                ("approval", &slot.pool, Some(session), item(notice))
            }
            FleetEvent::PoolPaused { pool, .. } => ("paused", pool, None, item(notice)),
            FleetEvent::RunPaused { pool, .. } => ("run_paused", pool, None, item(notice)),
            FleetEvent::TaskEnded(report) => {
                let line = json_lines::item_json(&RunStreamItem::Ended(Arc::clone(report)));
                ("ended", &report.pool, report.session.as_ref(), line)
            }
            FleetEvent::SessionEvents { .. } | FleetEvent::EventsSkipped { .. } => return Ok(()),
        };
        if self.filter.accepts_source(pool, session) && self.filter.accepts_kind(kind) {
            self.watcher.sender.send(None, kind, &line).await?;
        }
        Ok(())
    }
}

fn item(notice: &FleetEvent) -> String {
    json_lines::item_json(&RunStreamItem::Notice(notice.clone()))
}
