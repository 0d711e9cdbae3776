//! The stdout pump: a plain task that owns one child's stdout.
//!
//! Reads, cuts into frames, takes credits, and sends batches to the Channel. The end of the stream
//! is sent in-band, after everything that was read. Must not know what a frame means.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::net::unix::pipe;
use tokio::task::AbortHandle;

use crate::credit::Credits;
use crate::messages::{ChannelMsg, ChannelRef};
use marshal_model::limits::{CREDIT_FRAMES, READ_BUDGET_BYTES, READ_CHUNK_BYTES};
use marshal_wire::ndjson::{LineDecoder, LineError};

/// Frames per batch: half of the credits, so that one batch can be in flight while the next is
/// read.
const BATCH_FRAMES: usize = CREDIT_FRAMES / 2;

/// How the stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// All writers of the pipe closed it.
    Eof,
    /// A line was longer than the limit: nothing after it can be parsed reliably.
    TooLong(LineError),
    /// The pipe could not be read.
    Failed(String),
}

/// The running pump; dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Pump {
    task: AbortHandle,
    waits: Arc<AtomicBool>,
}

impl Pump {
    /// Starts reading; ends with the stream, or when the channel is gone.
    pub(crate) fn start(stdout: pipe::Receiver, credits: Credits, to: ChannelRef) -> Self {
        let waits = Arc::new(AtomicBool::new(false));
        let out = BatchSender {
            credits,
            to,
            waits: Arc::clone(&waits),
        };
        let task = tokio::spawn(pump(stdout, out));
        Self {
            task: task.abort_handle(),
            waits,
        }
    }

    /// Whether the pump has read frames and waits for credits to send them.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends the pump's batches.
struct BatchSender {
    credits: Credits,
    to: ChannelRef,
    waits: Arc<AtomicBool>,
}

/// Reads to the end of the stream, or until the channel is gone.
async fn pump(stdout: pipe::Receiver, out: BatchSender) {
    let mut lines = LineDecoder::default();
    let mut since_yield = 0;
    loop {
        let (frames, end, read) = match stdout.readable().await {
            Ok(()) => read(&stdout, &mut lines),
            Err(error) => (Vec::new(), Some(Box::new(failed(&error))), 0),
        };
        // Boxed: usually nothing waits, and the unboxed future would take its room in every pump.
        let taken = match out.send_now(frames, read) {
            Ok(taken) => taken,
            Err(waiting) => Box::pin(send(waiting, &out)).await,
        };
        if taken.is_none() {
            return;
        }
        if let Some(end) = end {
            let _ = out.to.send_message(ChannelMsg::StreamEnd(*end));
            return;
        }
        since_yield += read;
        if since_yield >= READ_BUDGET_BYTES {
            since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
}

fn failed(error: &io::Error) -> StreamEnd {
    StreamEnd::Failed(error.to_string())
}

/// One read: its lines, the end of the stream if it was reached, and the number of bytes. The
/// buffer is allocated per read, so an idle child holds none.
fn read(
    stdout: &pipe::Receiver,
    lines: &mut LineDecoder,
) -> (Vec<Bytes>, Option<Box<StreamEnd>>, usize) {
    let mut chunk = BytesMut::with_capacity(READ_CHUNK_BYTES);
    let mut frames = Vec::new();
    let read = match stdout.try_read_buf(&mut chunk) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (frames, None, 0),
        Err(error) => return (frames, Some(Box::new(failed(&error))), 0),
    };
    if read == 0 {
        frames.extend(lines.finish());
        return (frames, Some(Box::new(StreamEnd::Eof)), 0);
    }
    lines.push(chunk.freeze());
    for line in lines {
        match line {
            Ok(frame) => frames.push(frame),
            Err(error) => return (frames, Some(Box::new(StreamEnd::TooLong(error))), read),
        }
    }
    (frames, None, read)
}

impl BatchSender {
    /// Sends the frames if the credits suffice; else gives them back. `None`: the channel is gone.
    fn send_now(&self, frames: Vec<Bytes>, read: usize) -> Result<Option<()>, Vec<Bytes>> {
        if frames.is_empty() {
            // The middle of a long line is still a sign of life. It is bounded by the line limit,
            // not by credits.
            let is_sent = read == 0 || self.to.send_message(ChannelMsg::PartialLine).is_ok();
            return Ok(is_sent.then_some(()));
        }
        let bytes = frames.iter().map(Bytes::len).sum();
        let credit = (frames.len() <= BATCH_FRAMES)
            .then(|| self.credits.take_now(frames.len(), bytes))
            .flatten();
        let Some(credit) = credit else {
            return Err(frames);
        };
        let batch = frames;
        let result = self.to.send_message(ChannelMsg::Frames { batch, credit });
        Ok(result.ok())
    }
}

/// Sends the frames in batches that fit the credits. `None`: the channel is gone.
async fn send(mut frames: Vec<Bytes>, out: &BatchSender) -> Option<()> {
    while !frames.is_empty() {
        let rest = frames.split_off(frames.len().min(BATCH_FRAMES));
        let batch = std::mem::replace(&mut frames, rest);
        let bytes = batch.iter().map(Bytes::len).sum();
        out.waits.store(true, Ordering::Relaxed);
        let credit = out.credits.take(batch.len(), bytes).await?;
        out.waits.store(false, Ordering::Relaxed);
        out.to
            .send_message(ChannelMsg::Frames { batch, credit })
            .ok()?;
    }
    Some(())
}
