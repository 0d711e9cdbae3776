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

use super::call::Call;
use super::fault::Fault;
use super::{Answer, Desk, fleet, sessions};
use crate::api::view;
use crate::api::watch::Item;
use crate::api::web_socket;
use crate::fleet::Notice;
use crate::journal::{Reader, StoredEvent};
use crate::limits;
use crate::model::foreign::{json_for_terminal, show};
use crate::model::{EventId, EventKind, PoolName, SessionId};

/// How far before its cursor the stream of the fleet begins again: what sessions stamped and had not
/// made durable when the cursor was given.
const OVERLAP_US: i64 = 10_000_000;

/// Sessions that a stream of the fleet remembers its place in.
const PLACES: usize = 10_000;

/// What the stream of the fleet tells beside events of sessions.
const NOTICES: [&str; 5] = ["queued", "assigned", "slot", "paused", "ended"];

/// Why a stream ends.
enum End {
    /// The watcher is gone, or takes nothing.
    Gone,
    /// Its connection is old: it comes again.
    Old,
    /// The supervisor stops.
    Stopping,
    /// The journal cannot be read.
    Failed,
    /// The session has ended, and everything of it was told.
    Over,
}

impl From<Fault> for End {
    fn from(_: Fault) -> Self {
        Self::Failed
    }
}

/// A watcher's end of its stream.
struct Watcher {
    desk: Desk,
    tell: mpsc::Sender<Bytes>,
    heard: broadcast::Receiver<Notice>,
    _place: OwnedSemaphorePermit,
}

/// What wakes a watcher.
enum Woken {
    /// This happened.
    By(Notice),
    /// Much happened, and was not heard.
    Lagged,
    /// The children are gone, and everything of them is durable.
    Last,
}

/// Where the watcher says that it stands, if it says.
fn cursor(call: &Call) -> Result<Option<&str>, Fault> {
    match call.headers.get("last-event-id") {
        None => Ok(call.given("after")),
        Some(value) => {
            let text = value.to_str();
            let text = text.map_err(|_| Fault::bad("Last-Event-ID is no id of an event"))?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        }
    }
}

/// Opens a stream; `fill` does, until the connection is old.
fn open<F, R>(desk: Desk, call: Call, fill: F) -> Answer
where
    F: FnOnce(Watcher) -> R,
    R: Future<Output = End> + Send + 'static,
{
    let Call { until, socket, .. } = call;
    let place = Arc::clone(&desk.streams).try_acquire_owned();
    let place = place.map_err(|_| Fault::unavailable("too many streams are open already"))?;
    let (tell, told) = mpsc::channel(limits::ASK_STREAM_QUEUE);
    let last = tell.clone();
    let response = web_socket::answer(told, socket, desk.stop.clone(), until);
    let filled = fill(Watcher {
        heard: desk.fleet.watch(),
        desk,
        tell,
        _place: place,
    });
    // A stream that ends by itself is no error for its reader.
    let until = until - limits::ASK_STREAM_MARGIN.min(until - Instant::now());
    tokio::spawn(async move {
        let again = format!("retry: {}\n\n", limits::ASK_STREAM_AGAIN.as_millis());
        let _ = piece(&last, again).await;
        let end = tokio::select! {
            end = filled => end,
            () = tokio::time::sleep_until(until) => End::Old,
        };
        let why = match end {
            End::Gone => return,
            End::Old => "old",
            End::Stopping => "stopping",
            End::Failed => "failed",
            End::Over => "over",
        };
        let _ = piece(
            &last,
            format!("event: end\ndata: {{\"why\":\"{why}\"}}\n\n"),
        )
        .await;
    });
    Ok(response)
}

async fn piece(tell: &mpsc::Sender<Bytes>, text: String) -> Result<(), End> {
    let sent = tell.send(Bytes::from(text));
    match tokio::time::timeout(limits::ASK_STREAM_WAIT, sent).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(End::Gone),
    }
}

impl Watcher {
    /// One event; without an id it moves no cursor.
    async fn event(&self, id: Option<&str>, name: &str, json: &str) -> Result<(), End> {
        let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
        // One line, which nothing in it can end.
        let json = json_for_terminal(json);
        piece(&self.tell, format!("{id}event: {name}\ndata: {json}\n\n")).await
    }

    /// Waits until something happened. Says meanwhile that it is there, and looks itself then:
    /// `None`.
    async fn wait(&mut self) -> Result<Option<Woken>, End> {
        let stop = self.desk.stop.clone();
        tokio::select! {
            heard = self.heard.recv() => match heard {
                Ok(notice) => Ok(Some(Woken::By(notice))),
                Err(RecvError::Lagged(_)) => Ok(Some(Woken::Lagged)),
                Err(RecvError::Closed) => Err(End::Stopping),
            },
            () = stop.cancelled() => {
                self.desk.fleet.settled().await;
                Ok(Some(Woken::Last))
            }
            () = tokio::time::sleep(limits::ASK_STREAM_BEAT) => {
                piece(&self.tell, ": nothing new\n\n".to_owned()).await?;
                Ok(None)
            }
            () = self.tell.closed() => Err(End::Gone),
        }
    }

    async fn page(&self, session: &SessionId, after: u64) -> Result<Vec<StoredEvent>, End> {
        let session = session.clone();
        let (most, bytes) = (limits::CATCH_UP_EVENTS, limits::CATCH_UP_BYTES);
        let read = move |reader: &Reader| reader.page(&session, after, most, bytes);
        Ok(self.desk.shelf.read(read).await?)
    }
}

pub(super) async fn of_session(desk: Desk, call: Call) -> Answer {
    let (session, _) = sessions::known(&desk, &call).await?;
    let bad = |_| Fault::bad("the cursor is no id of an event, such as 3-117");
    let cursor = cursor(&call)?
        .map(EventId::parse)
        .transpose()
        .map_err(bad)?;
    let at = match cursor {
        None => 0,
        Some(cursor) => {
            let asked = session.clone();
            let read = move |reader: &Reader| reader.durable_at(&asked, cursor);
            desk.shelf.read(read).await?.seq
        }
    };
    open(desk, call, |watcher| async move {
        let followed = watcher.session(session, at).await;
        followed.err().unwrap_or(End::Over)
    })
}

impl Watcher {
    async fn session(mut self, session: SessionId, mut at: u64) -> Result<(), End> {
        loop {
            // Before its events, so that none is missed of one that has ended.
            let asked = session.clone();
            let row = self
                .desk
                .shelf
                .read(move |reader| reader.session(&asked))
                .await?;
            let is_over = row.is_none_or(|row| row.ended_at_us.is_some());
            loop {
                let page = self.page(&session, at).await?;
                let Some(last) = page.last() else { break };
                at = last.id.seq;
                for event in page {
                    let (id, kind) = (event.id.to_string(), event.kind.clone());
                    self.event(Some(&id), &kind, &event.into_json()).await?;
                }
            }
            if is_over {
                return Ok(());
            }
            loop {
                let is_news = match self.wait().await? {
                    Some(Woken::Last) => return self.rest(&session, at).await,
                    Some(Woken::By(notice)) => concerns(&notice, &session),
                    Some(Woken::Lagged) | None => true,
                };
                if is_news {
                    break;
                }
            }
        }
    }

    /// What is left of a session when the supervisor stops.
    async fn rest(&self, session: &SessionId, mut at: u64) -> Result<(), End> {
        loop {
            let page = self.page(session, at).await?;
            let Some(last) = page.last() else {
                return Err(End::Stopping);
            };
            at = last.id.seq;
            for event in page {
                let (id, kind) = (event.id.to_string(), event.kind.clone());
                self.event(Some(&id), &kind, &event.into_json()).await?;
            }
        }
    }
}

/// Whether a notice may mean news of a session.
fn concerns(notice: &Notice, of: &SessionId) -> bool {
    match notice {
        Notice::Events { session, .. } | Notice::Passed { session, .. } => session == of,
        Notice::Ended(report) => report.session.as_ref() == Some(of),
        _ => false,
    }
}

/// What a stream of the fleet tells.
struct Wanted {
    kinds: Option<Vec<String>>,
    pool: Option<PoolName>,
    session: Option<SessionId>,
}

impl Wanted {
    fn of(desk: &Desk, call: &Call) -> Result<Self, Fault> {
        let kinds = call.given("kind").map(|words| {
            let words = words.split(',').map(str::to_owned);
            words.collect::<Vec<_>>()
        });
        for kind in kinds.iter().flatten() {
            if !NOTICES.contains(&kind.as_str()) && EventKind::from_word(kind).is_none() {
                let shown = show(kind, 60);
                let detail = format!("query key \"kind\": there is no kind {shown:?}");
                return Err(Fault::bad(detail));
            }
        }
        let session = call.given("session").map(SessionId::new).transpose();
        Ok(Self {
            kinds,
            pool: fleet::named(desk, call)?,
            session: session.map_err(|_| Fault::bad("query key \"session\" is no session"))?,
        })
    }

    fn kind(&self, kind: &str) -> bool {
        let kinds = self.kinds.as_ref();
        kinds.is_none_or(|kinds| kinds.iter().any(|of| of == kind))
    }

    fn place(&self, pool: &PoolName, session: Option<&SessionId>) -> bool {
        self.pool.as_ref().is_none_or(|of| of == pool)
            && self.session.as_ref().is_none_or(|of| Some(of) == session)
    }
}

pub(super) async fn of_fleet(desk: Desk, call: Call) -> Answer {
    let wanted = Wanted::of(&desk, &call)?;
    let now = jiff::Timestamp::now().as_microsecond();
    let cursor = cursor(&call)?.map(|text| {
        let at: Option<i64> = text.parse().ok().filter(|at| (0..=now).contains(at));
        at.ok_or_else(|| Fault::bad("the cursor is none of this stream's"))
    });
    let cursor = cursor.transpose()?;
    open(desk, call, move |watcher| async move {
        let mut all = All {
            watcher,
            wanted,
            given: HashMap::new(),
            at_us: cursor.unwrap_or(now),
        };
        all.follow(cursor.is_some())
            .await
            .err()
            .unwrap_or(End::Stopping)
    })
}

/// A stream of the fleet.
struct All {
    watcher: Watcher,
    wanted: Wanted,
    /// The last seq that was told of each session.
    given: HashMap<SessionId, u64>,
    /// The stamp of the newest event that was told: the cursor.
    at_us: i64,
}

impl All {
    async fn follow(&mut self, goes_on: bool) -> Result<(), End> {
        if goes_on {
            self.missed().await?;
        }
        loop {
            match self.watcher.wait().await? {
                None => {}
                Some(Woken::Last) => return self.missed().await,
                Some(Woken::Lagged) => self.missed().await?,
                Some(Woken::By(notice)) => self.heard(notice).await?,
            }
        }
    }

    /// Tells what the journal has from a little before the cursor on, of every session.
    async fn missed(&mut self) -> Result<(), End> {
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
        for (session, pool, after) in self.watcher.desk.shelf.read(read).await? {
            let after = *self.given.get(&session).unwrap_or(&after);
            self.session(session, &pool, after, u64::MAX).await?;
        }
        Ok(())
    }

    async fn heard(&mut self, notice: Notice) -> Result<(), End> {
        let (slot, session, first, last) = match &notice {
            Notice::Events {
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
            Notice::Passed {
                slot,
                session,
                first,
                last,
                ..
            } => (slot, session, *first, *last),
            _ => return self.notice(&notice).await,
        };
        let given = self.given.get(session);
        let after = given.copied().unwrap_or(first.saturating_sub(1));
        if last <= after {
            return Ok(());
        }
        let (session, pool) = (session.clone(), slot.pool.clone());
        self.session(session, &pool, after, last).await
    }

    /// Tells a session's events after a seq.
    async fn session(
        &mut self,
        session: SessionId,
        pool: &PoolName,
        after: u64,
        until: u64,
    ) -> Result<(), End> {
        let mut at = after;
        while at < until {
            let page = self.watcher.page(&session, at).await?;
            let Some(last) = page.last() else { break };
            at = last.id.seq;
            for event in page {
                self.at_us = self.at_us.max(event.at_us);
                if !self.wanted.place(pool, Some(&session)) || !self.wanted.kind(&event.kind) {
                    continue;
                }
                let (id, kind) = (self.at_us.to_string(), event.kind.clone());
                self.watcher
                    .event(Some(&id), &kind, &event.into_json())
                    .await?;
            }
        }
        if self.given.len() >= PLACES {
            self.given.clear();
        }
        self.given.insert(session, at);
        Ok(())
    }

    /// What is no event of a session is told as it happens, and never again.
    async fn notice(&mut self, notice: &Notice) -> Result<(), End> {
        let (kind, pool, session, line) = match notice {
            Notice::Queued { pool, .. } => ("queued", pool, None, item(notice)),
            Notice::Assigned { slot, session, .. } => {
                ("assigned", &slot.pool, Some(session), item(notice))
            }
            Notice::Slot { slot, .. } => ("slot", &slot.pool, None, item(notice)),
            Notice::Paused { pool, .. } => ("paused", pool, None, item(notice)),
            Notice::Ended(report) => {
                let line = view::item(&Item::Ended(Arc::clone(report)));
                ("ended", &report.pool, report.session.as_ref(), line)
            }
            Notice::Events { .. } | Notice::Passed { .. } => return Ok(()),
        };
        if self.wanted.place(pool, session) && self.wanted.kind(kind) {
            self.watcher.event(None, kind, &line).await?;
        }
        Ok(())
    }
}

fn item(notice: &Notice) -> String {
    view::item(&Item::Notice(notice.clone()))
}
