//! The streams of one chat: its newest events are read and encoded once for all subscribers; each
//! subscriber is a cursor.
//!
//! A subscriber reads the journal up to where the ring begins, and the ring from there. One that
//! falls behind the ring reads the journal again. Nothing waits for a subscriber, and a slow one
//! only keeps its own cursor. Must not know how a stream is sent, or to whom.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::Bytes;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::readers::Readers;
use super::stream_events::{self, StreamEvent};
use crate::JournalError;
use marshal_journal::{ReadError, Reader};
use marshal_model::limits;
use marshal_model::{EventId, SessionId};

/// The position after which a subscriber continues: a seq, and a part of it if that event was not
/// sent completely.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    seq: u64,
    part: u32,
}

impl Cursor {
    /// Parses an event's `id:`, or a number.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (text, part) = match text.split_once('.') {
            Some((text, part)) => (text, part.parse().ok().filter(|part| *part > 0)?),
            None => (text, 0),
        };
        let seq = match text.split_once('-') {
            Some((epoch, seq)) => {
                epoch.parse::<u64>().ok()?;
                seq.parse().ok()?
            }
            None => text.parse().ok()?,
        };
        Some(Self { seq, part })
    }

    /// Returns the last seq that was sent completely.
    const fn complete_seq(self) -> u64 {
        match self.part {
            0 => self.seq,
            _ => self.seq.saturating_sub(1),
        }
    }

    /// Whether an event comes after this cursor.
    const fn is_before(self, event: Self) -> bool {
        if event.seq != self.seq {
            return event.seq > self.seq;
        }
        // The last part has the number 0, and so has a cursor after it.
        self.part != 0 && (event.part == 0 || event.part > self.part)
    }

    const fn after_event(event: &StreamEvent) -> Self {
        Self {
            seq: event.id.seq,
            part: event.part,
        }
    }
}

/// The format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Server-sent events with names.
    Named,
    /// Events without names; the name is a member next to the data.
    Enveloped,
}

/// An encoded event.
#[derive(Debug, Clone)]
struct EncodedEvent {
    /// The cursor of a client that has received it.
    cursor: Cursor,
    named: Bytes,
    enveloped: Bytes,
}

impl EncodedEvent {
    fn new(event: &StreamEvent) -> Self {
        Self {
            cursor: Cursor::after_event(event),
            named: event.to_named_sse().into(),
            enveloped: event.to_enveloped_sse().into(),
        }
    }

    fn bytes(&self, shape: Shape) -> Bytes {
        match shape {
            Shape::Named => self.named.clone(),
            Shape::Enveloped => self.enveloped.clone(),
        }
    }

    fn size(&self) -> usize {
        self.named.len() + self.enveloped.len()
    }
}

/// The newest events of a chat.
#[derive(Debug)]
struct Ring {
    /// Events up to this seq are no longer in the ring.
    start_seq: u64,
    /// Events up to this seq were read.
    end_seq: u64,
    events: VecDeque<EncodedEvent>,
    bytes: usize,
}

impl Ring {
    fn put(&mut self, events: Vec<EncodedEvent>, to: u64) {
        for event in events {
            self.bytes += event.size();
            self.events.push_back(event);
        }
        self.end_seq = to;
        while self.events.len() > limits::CHAT_RING_EVENTS || self.bytes > limits::CHAT_RING_BYTES {
            let Some(evicted) = self.events.pop_front() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(evicted.size());
            // If one part of a seq is dropped, cursors must treat all of its parts as dropped.
            self.start_seq = evicted.cursor.seq;
        }
    }

    /// Returns the next events after a cursor: a limited number of bytes, at least one event.
    fn events_after(&self, cursor: Cursor) -> RingRead {
        if cursor.complete_seq() < self.start_seq {
            return RingRead::Behind;
        }
        let at = self
            .events
            .partition_point(|event| !cursor.is_before(event.cursor));
        let mut bytes = 0;
        let fits = |event: &&EncodedEvent| {
            let is_first = bytes == 0;
            bytes += event.named.len();
            is_first || bytes <= limits::CHAT_PIECE_BYTES
        };
        let events: Vec<_> = self.events.range(at..).take_while(fits).cloned().collect();
        if events.is_empty() {
            RingRead::UpToDate
        } else {
            RingRead::Events(events)
        }
    }
}

/// The hub of one chat; it exists as long as there are subscribers.
#[derive(Debug)]
pub(super) struct Hub {
    session: SessionId,
    epoch: u64,
    readers: Readers,
    ring: Mutex<Ring>,
    /// Publishes the seq at which the ring ends.
    grown: watch::Sender<u64>,
    _pump: DropGuard,
}

impl Hub {
    /// Opens a hub at the durable end of a session; `tap` signals its growth.
    pub(super) async fn open(
        session: SessionId,
        epoch: u64,
        readers: Readers,
        tap: watch::Receiver<u64>,
    ) -> Result<Arc<Self>, JournalError> {
        // Subscribed before this read: later events are signalled.
        let of = session.clone();
        let end = readers.read(move |reader| reader.last_seq(&of)).await?;
        let closed = CancellationToken::new();
        let hub = Arc::new(Self {
            session,
            epoch,
            readers,
            ring: Mutex::new(Ring {
                start_seq: end,
                end_seq: end,
                events: VecDeque::new(),
                bytes: 0,
            }),
            grown: watch::channel(end).0,
            _pump: closed.clone().drop_guard(),
        });
        tokio::spawn(pump(Arc::downgrade(&hub), tap, closed));
        Ok(hub)
    }

    /// Adds a subscriber after a cursor. One beyond the durable end is notified, and continues from
    /// that end.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        cursor: Cursor,
        shape: Shape,
    ) -> Result<Subscriber, JournalError> {
        let of = self.session.clone();
        let end = self
            .readers
            .read(move |reader| reader.last_seq(&of))
            .await?;
        let mut subscriber = Subscriber {
            grown: self.grown.subscribe(),
            hub: Arc::clone(self),
            cursor,
            shape,
            first: None,
        };
        if cursor.seq > end {
            let to = EventId {
                epoch: self.epoch,
                seq: end,
            };
            subscriber.first =
                Some(EncodedEvent::new(&stream_events::rewound_event(to)).bytes(shape));
            subscriber.cursor = Cursor { seq: end, part: 0 };
        }
        Ok(subscriber)
    }

    fn with_ring<T>(&self, look: impl FnOnce(&mut Ring) -> T) -> T {
        look(&mut self.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the encoded events after a seq, limited in bytes, and the seq at which they end.
    async fn page(
        &self,
        after: u64,
        bytes: usize,
    ) -> Result<(Vec<EncodedEvent>, u64), JournalError> {
        let session = self.session.clone();
        let read = move |reader: &Reader| page(reader, &session, after, bytes);
        self.readers.read(read).await
    }
}

fn page(
    reader: &Reader,
    session: &SessionId,
    after: u64,
    bytes: usize,
) -> Result<(Vec<EncodedEvent>, u64), ReadError> {
    let most = limits::CHAT_PAGE_EVENTS;
    let rows = reader.events_page(session, after, most, bytes)?;
    let mut to = after;
    let mut events: Vec<EncodedEvent> = Vec::new();
    let mut size = 0;
    for row in &rows {
        let encoded = stream_events::events_for(reader, session, row)?;
        let from = events.len();
        events.extend(encoded.iter().map(EncodedEvent::new));
        to = row.id.seq;
        // A turn's end is longer than its row, so this page may exceed the limit; the rest comes
        // with the next page.
        size += events[from..].iter().map(EncodedEvent::size).sum::<usize>();
        if size > 2 * bytes {
            break;
        }
    }
    Ok((events, to))
}

/// Keeps the ring up to date with the durable end.
async fn pump(hub: Weak<Hub>, mut tap: watch::Receiver<u64>, closed: CancellationToken) {
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            changed = tap.changed() => if changed.is_err() {
                return;
            },
        }
        let end = *tap.borrow_and_update();
        loop {
            let Some(hub) = hub.upgrade() else { return };
            let to = hub.with_ring(|ring| ring.end_seq);
            if to >= end {
                break;
            }
            match hub.page(to, limits::CHAT_PAGE_BYTES).await {
                Ok((events, reached)) => {
                    // Events that retention removed meanwhile leave a gap that nothing fills.
                    let reached = if reached == to { end } else { reached };
                    hub.with_ring(|ring| ring.put(events, reached));
                    hub.grown.send_replace(reached);
                }
                Err(error) => {
                    tracing::warn!(
                        why = error.to_string(),
                        "the events of a chat cannot be read for its subscribers"
                    );
                    drop(hub);
                    tokio::select! {
                        () = closed.cancelled() => return,
                        () = tokio::time::sleep(limits::CHAT_RETRY) => {}
                    }
                }
            }
        }
    }
}

/// A subscriber of a chat.
#[derive(Debug)]
pub struct Subscriber {
    hub: Arc<Hub>,
    grown: watch::Receiver<u64>,
    cursor: Cursor,
    shape: Shape,
    /// The event to send first, if any.
    first: Option<Bytes>,
}

/// The result of reading the ring.
enum RingRead {
    Events(Vec<EncodedEvent>),
    /// There are no newer events.
    UpToDate,
    /// The next events are no longer in the ring.
    Behind,
}

impl Subscriber {
    /// Waits for the next events and returns some of them, each whole. Cancel-safe: nothing is lost
    /// or sent twice.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn next(&mut self) -> Result<Vec<Bytes>, JournalError> {
        if let Some(first) = self.first.take() {
            return Ok(vec![first]);
        }
        loop {
            self.grown.mark_unchanged();
            match self.read_ring() {
                RingRead::Events(events) => return Ok(self.advance(&events)),
                RingRead::UpToDate => {
                    if self.grown.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                RingRead::Behind => {
                    let before = self.cursor.complete_seq();
                    let taken = self.read_journal().await?;
                    if !taken.is_empty() {
                        return Ok(taken);
                    }
                    if self.cursor.complete_seq() == before {
                        // The events were removed: continue where the ring begins.
                        let seq = self.hub.with_ring(|ring| ring.start_seq);
                        self.cursor = Cursor { seq, part: 0 };
                    }
                }
            }
        }
    }

    /// Returns the durable events that were not sent yet, without waiting; empty when that is all.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn read_remaining(&mut self) -> Result<Vec<Bytes>, JournalError> {
        if let Some(first) = self.first.take() {
            return Ok(vec![first]);
        }
        loop {
            let before = self.cursor.complete_seq();
            let taken = self.read_journal().await?;
            if !taken.is_empty() || self.cursor.complete_seq() == before {
                return Ok(taken);
            }
        }
    }

    /// Reads the journal from the cursor on, and also skips events that are sent to nobody.
    async fn read_journal(&mut self) -> Result<Vec<Bytes>, JournalError> {
        let after = self.cursor.complete_seq();
        let (mut events, to) = self.hub.page(after, limits::CHAT_PIECE_BYTES).await?;
        events.retain(|event| self.cursor.is_before(event.cursor));
        let taken = self.advance(&events);
        if to > after {
            self.cursor = Cursor { seq: to, part: 0 };
        }
        Ok(taken)
    }

    fn read_ring(&self) -> RingRead {
        self.hub.with_ring(|ring| ring.events_after(self.cursor))
    }

    fn advance(&mut self, events: &[EncodedEvent]) -> Vec<Bytes> {
        if let Some(last) = events.last() {
            self.cursor = last.cursor;
        }
        let shape = self.shape;
        events.iter().map(|event| event.bytes(shape)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_event(seq: u64, part: u32) -> StreamEvent {
        StreamEvent {
            id: EventId { epoch: 2, seq },
            part,
            name: "chunk",
            data: "{}".to_owned(),
        }
    }

    #[test]
    fn a_cursor_is_what_an_id_says() {
        for (text, seq, part) in [("7", 7, 0), ("2-7", 7, 0), ("2-7.3", 7, 3), ("0", 0, 0)] {
            assert_eq!(Cursor::read(text), Some(Cursor { seq, part }), "{text}");
        }
        for bad in ["", "x", "2-", "-7", "2-7.", "2-7.0", "2-7.x", "7 ", "1-2-3"] {
            assert_eq!(Cursor::read(bad), None, "{bad:?}");
        }
        let event = stream_event(7, 3);
        let id = event.to_named_sse();
        let id = id
            .strip_prefix("id: ")
            .and_then(|rest| rest.split_once('\n'));
        assert_eq!(
            id.and_then(|id| Cursor::read(id.0)),
            Some(Cursor::after_event(&event))
        );
    }

    #[test]
    fn after_each_cursor_comes_what_was_not_told() {
        // Seq 7 is told in three parts.
        let all = [
            stream_event(6, 0),
            stream_event(7, 1),
            stream_event(7, 2),
            stream_event(7, 0),
            stream_event(9, 0),
        ];
        for (at, event) in all.iter().enumerate() {
            let cursor = Cursor::after_event(event);
            let left: Vec<_> = all
                .iter()
                .filter(|of| cursor.is_before(Cursor::after_event(of)))
                .collect();
            assert_eq!(left, all[at + 1..].iter().collect::<Vec<_>>(), "{cursor:?}");
        }
    }

    #[test]
    fn a_ring_is_bounded_and_says_what_it_has_not() {
        let mut ring = Ring {
            start_seq: 0,
            end_seq: 0,
            events: VecDeque::new(),
            bytes: 0,
        };
        let most = u64::try_from(limits::CHAT_RING_EVENTS).expect("a number");
        for seq in 1..=most + 10 {
            ring.put(vec![EncodedEvent::new(&stream_event(seq, 0))], seq);
        }
        assert_eq!(ring.events.len(), limits::CHAT_RING_EVENTS);
        assert_eq!((ring.start_seq, ring.end_seq), (10, most + 10));
        let first = ring.events.front().expect("one");
        assert_eq!(first.cursor.seq, ring.start_seq + 1);
    }

    #[test]
    fn a_subscriber_takes_some_bytes_at_once_and_all_of_them_in_turn() {
        let mut ring = Ring {
            start_seq: 0,
            end_seq: 0,
            events: VecDeque::new(),
            bytes: 0,
        };
        let long = |seq| StreamEvent {
            data: format!("{:?}", "x".repeat(20 << 10)),
            ..stream_event(seq, 0)
        };
        let all: Vec<_> = (1..=20).map(|seq| EncodedEvent::new(&long(seq))).collect();
        ring.put(all, 20);
        let (mut cursor, mut seen) = (Cursor::default(), 0);
        while let RingRead::Events(events) = ring.events_after(cursor) {
            let bytes: usize = events.iter().map(|event| event.named.len()).sum();
            assert!(bytes <= limits::CHAT_PIECE_BYTES, "{bytes}");
            seen += events.len();
            cursor = events.last().expect("one").cursor;
        }
        assert_eq!((seen, cursor.seq), (20, 20));
        // One that is longer goes alone.
        let huge = StreamEvent {
            data: format!("{:?}", "x".repeat(2 * limits::CHAT_PIECE_BYTES)),
            ..stream_event(21, 0)
        };
        ring.put(
            vec![EncodedEvent::new(&huge), EncodedEvent::new(&long(22))],
            22,
        );
        let RingRead::Events(events) = ring.events_after(cursor) else {
            panic!("there is one")
        };
        assert_eq!(events.len(), 1);
    }
}
