//! The streams of one chat: its events are read and encoded once for all who follow at its end;
//! each subscriber is a cursor.
//!
//! A subscriber reads the journal up to where the ring begins, and the ring from there. One that
//! falls behind the ring reads the journal again. Nobody waits for a subscriber, and whoever is slow
//! holds nothing but its own place. Must not know how a stream is written, or to whom.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::Bytes;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::readers::Readers;
use super::stream_events::{self, StreamEvent};
use marshal_journal::{ReadError, Reader};
use marshal_model::limits;
use marshal_model::{EventId, SessionId};

/// What a subscriber goes on after: a seq, and if that is not told to its end, a part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    seq: u64,
    part: u32,
}

impl Cursor {
    /// Reads what an event's `id:` says, or a number alone.
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

    /// The seq of which everything was told.
    const fn complete_seq(self) -> u64 {
        match self.part {
            0 => self.seq,
            _ => self.seq.saturating_sub(1),
        }
    }

    /// Whether an event comes after it.
    const fn is_before(self, event: Self) -> bool {
        if event.seq != self.seq {
            return event.seq > self.seq;
        }
        // The last part has the number 0, and so has a cursor behind it.
        self.part != 0 && (event.part == 0 || event.part > self.part)
    }

    const fn after_event(told: &StreamEvent) -> Self {
        Self {
            seq: told.id.seq,
            part: told.part,
        }
    }
}

/// In which form events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// With their names.
    Named,
    /// Without, and the name beside the data.
    Enveloped,
}

/// An event as it is written.
#[derive(Debug, Clone)]
struct EncodedEvent {
    /// What a client goes on after that has it.
    cursor: Cursor,
    named: Bytes,
    enveloped: Bytes,
}

impl EncodedEvent {
    fn new(told: &StreamEvent) -> Self {
        Self {
            cursor: Cursor::after_event(told),
            named: told.to_named_sse().into(),
            enveloped: told.to_enveloped_sse().into(),
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

/// The newest events.
#[derive(Debug)]
struct Ring {
    /// Everything up to this seq is not in it.
    start_seq: u64,
    /// Everything up to this seq was looked at.
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
            let Some(gone) = self.events.pop_front() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(gone.size());
            // Of one seq that is told in parts, all are gone as far as cursors are concerned.
            self.start_seq = gone.cursor.seq;
        }
    }

    /// What comes next after a cursor: some bytes of it, one event at least.
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

/// The hub of one chat, as long as somebody subscribes.
#[derive(Debug)]
pub(super) struct Hub {
    session: SessionId,
    epoch: u64,
    readers: Readers,
    ring: Mutex<Ring>,
    /// The seq up to which the ring goes.
    grown: watch::Sender<u64>,
    _pump: DropGuard,
}

impl Hub {
    /// A hub at the durable end of a session; `tap` tells how that grows.
    pub(super) async fn open(
        session: SessionId,
        epoch: u64,
        readers: Readers,
        tap: watch::Receiver<u64>,
    ) -> Result<Arc<Self>, String> {
        // The tap was there before: what is durable after this look is told by it.
        let of = session.clone();
        let end = readers.read(move |reader| reader.last_seq(&of)).await?;
        let gone = CancellationToken::new();
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
            _pump: gone.clone().drop_guard(),
        });
        tokio::spawn(pump(Arc::downgrade(&hub), tap, gone));
        Ok(hub)
    }

    /// A subscriber after a cursor. One beyond the durable end is told so, and goes on from there.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        cursor: Cursor,
        shape: Shape,
    ) -> Result<Subscriber, String> {
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

    /// Events after a seq as they are told, of some bytes, and up to which seq these go.
    async fn page(&self, after: u64, bytes: usize) -> Result<(Vec<EncodedEvent>, u64), String> {
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
        let told = stream_events::events_for(reader, session, row)?;
        let from = events.len();
        events.extend(told.iter().map(EncodedEvent::new));
        to = row.id.seq;
        // A turn's end says more than its row has: the rest comes with the next page.
        size += events[from..].iter().map(EncodedEvent::size).sum::<usize>();
        if size > 2 * bytes {
            break;
        }
    }
    Ok((events, to))
}

/// Keeps the ring at the durable end.
async fn pump(hub: Weak<Hub>, mut tap: watch::Receiver<u64>, gone: CancellationToken) {
    loop {
        tokio::select! {
            () = gone.cancelled() => return,
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
                    // What was removed meanwhile leaves a gap that nothing fills.
                    let reached = if reached == to { end } else { reached };
                    hub.with_ring(|ring| ring.put(events, reached));
                    hub.grown.send_replace(reached);
                }
                Err(why) => {
                    tracing::warn!(
                        why,
                        "the events of a chat cannot be read for its subscribers"
                    );
                    drop(hub);
                    tokio::select! {
                        () = gone.cancelled() => return,
                        () = tokio::time::sleep(limits::CHAT_RETRY) => {}
                    }
                }
            }
        }
    }
}

/// One who follows a chat.
#[derive(Debug)]
pub struct Subscriber {
    hub: Arc<Hub>,
    grown: watch::Receiver<u64>,
    cursor: Cursor,
    shape: Shape,
    /// What it is told before anything else.
    first: Option<Bytes>,
}

/// What the ring has for a cursor.
enum RingRead {
    Events(Vec<EncodedEvent>),
    /// Nothing yet.
    UpToDate,
    /// What comes next is not in it any more.
    Behind,
}

impl Subscriber {
    /// What comes next, some events together, each whole; waits for it. Cancel-safe: nothing is
    /// lost or told twice.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn next(&mut self) -> Result<Vec<Bytes>, String> {
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
                        // What was there is removed: it goes on where the ring begins.
                        let seq = self.hub.with_ring(|ring| ring.start_seq);
                        self.cursor = Cursor { seq, part: 0 };
                    }
                }
            }
        }
    }

    /// What is durable by now and was not told, piece by piece; waits for nothing. None when that is
    /// all.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn read_remaining(&mut self) -> Result<Vec<Bytes>, String> {
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

    /// Reads the journal from the cursor on, which goes also past what is told to nobody.
    async fn read_journal(&mut self) -> Result<Vec<Bytes>, String> {
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
