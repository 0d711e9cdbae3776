//! The stream of asks: `GET /asks/events`, server-sent events.
//!
//! Owns what a watcher is given: everything that waits when it comes, then each change, each once it
//! is durable. It is told of states, not of every step between two of them, so a slow one misses
//! nothing that still counts and holds nothing up. Must not know who may watch.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::asks::AskView;
use super::http::problem;
use super::service::Fleet;
use crate::limits;
use crate::model::AskId;
use crate::model::foreign::json_for_terminal;

/// Until when the connection of a request lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until(pub(super) Instant);

/// The places of watchers, and what ends all of them.
#[derive(Debug, Clone)]
pub(super) struct Gallery {
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Gallery {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            places: Arc::new(Semaphore::new(limits::ASK_STREAMS)),
            stop,
        }
    }

    /// Gives a watcher its stream.
    pub(super) fn open<F: Fleet>(&self, fleet: F, until: Instant) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let detail = "too many watch the asks already: read /asks instead";
            return problem(StatusCode::SERVICE_UNAVAILABLE, detail);
        };
        let (tell, told) = mpsc::channel(limits::ASK_STREAM_QUEUE);
        let watcher = Watcher {
            changed: fleet.asks_changed(),
            fleet,
            tell,
            given: BTreeMap::new(),
            _place: place,
        };
        tokio::spawn(watcher.watch(self.stop.clone(), until));
        let mut response = Body::new(Stream(told)).into_response();
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// What was told and not yet written.
pub(super) struct Stream(pub(super) mpsc::Receiver<Bytes>);

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = self.0.poll_recv(cx);
        next.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

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
}

struct Watcher<F> {
    fleet: F,
    changed: watch::Receiver<u64>,
    tell: mpsc::Sender<Bytes>,
    /// What it was given of those that wait.
    given: BTreeMap<String, AskView>,
    _place: OwnedSemaphorePermit,
}

impl<F: Fleet> Watcher<F> {
    async fn watch(mut self, stop: CancellationToken, until: Instant) {
        // A stream that ends by itself is no error for its reader.
        let until = until - limits::ASK_STREAM_MARGIN.min(until - Instant::now());
        let end = tokio::select! {
            end = self.follow(&stop) => end,
            () = tokio::time::sleep_until(until) => End::Old,
        };
        let why = match end {
            End::Gone => return,
            End::Old => "old",
            End::Stopping => "stopping",
            End::Failed => "failed",
        };
        let _ = self.event("end", &serde_json::json!({"why": why})).await;
    }

    async fn follow(&mut self, stop: &CancellationToken) -> End {
        let first = async {
            self.changed.mark_unchanged();
            let waiting = self.waiting().await?;
            let list: Vec<&AskView> = waiting.values().collect();
            self.piece(format!("retry: {}\n", limits::ASK_STREAM_AGAIN.as_millis()))
                .await?;
            self.event("asks", &list).await?;
            self.given = waiting;
            Ok(())
        };
        if let Err(end) = first.await {
            return end;
        }
        loop {
            let told = tokio::select! {
                changed = self.changed.changed() => match changed {
                    Ok(()) => self.news(stop).await,
                    Err(_) => Err(End::Stopping),
                },
                () = stop.cancelled() => return self.last(stop).await,
                () = tokio::time::sleep(limits::ASK_STREAM_BEAT) => {
                    self.piece(": nothing new\n\n".to_owned()).await
                }
                () = self.tell.closed() => Err(End::Gone),
            };
            if let Err(end) = told {
                return end;
            }
        }
    }

    /// The children are gone: what became of their asks is told before the end.
    async fn last(&mut self, stop: &CancellationToken) -> End {
        self.fleet.settled().await;
        match self.news(stop).await {
            Ok(()) => End::Stopping,
            Err(end) => end,
        }
    }

    async fn waiting(&self) -> Result<BTreeMap<String, AskView>, End> {
        let found = self.fleet.questions(false).await;
        let found = found.map_err(|why| {
            tracing::warn!(why, "a watcher of the asks cannot be told of them");
            End::Failed
        })?;
        let views = found.iter().map(AskView::of);
        Ok(views.map(|view| (view.ask.clone(), view)).collect())
    }

    /// Something changed: what, since it was last looked.
    async fn news(&mut self, stop: &CancellationToken) -> Result<(), End> {
        // What changes in a row is read once.
        tokio::select! {
            () = tokio::time::sleep(limits::ASK_STREAM_PAUSE) => {}
            () = stop.cancelled() => {}
        }
        self.changed.mark_unchanged();
        let waiting = self.waiting().await?;
        let before = std::mem::take(&mut self.given);
        for ask in before.keys().filter(|ask| !waiting.contains_key(*ask)) {
            let Ok(id) = AskId::new(ask) else { continue };
            if let Ok(Some(over)) = self.fleet.question(id).await {
                self.event("over", &AskView::of(&over)).await?;
            }
        }
        for (ask, view) in &waiting {
            if before.get(ask) != Some(view) {
                self.event("ask", view).await?;
            }
        }
        self.given = waiting;
        Ok(())
    }

    async fn event(&self, name: &str, data: &impl serde::Serialize) -> Result<(), End> {
        let json = serde_json::to_string(data).unwrap_or_default();
        // One line, which nothing in it can end.
        let json = json_for_terminal(&json);
        self.piece(format!("event: {name}\ndata: {json}\n\n")).await
    }

    async fn piece(&self, text: String) -> Result<(), End> {
        let sent = self.tell.send(Bytes::from(text));
        match tokio::time::timeout(limits::ASK_STREAM_WAIT, sent).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(End::Gone),
        }
    }
}
