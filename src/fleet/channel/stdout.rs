//! The stdout pump: a plain task that owns one child's stdout.
//!
//! Reads, cuts into frames, takes credits, hands batches to the Channel; tells the end of the
//! stream in-band, after everything that was read. Must not know what a frame means.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::AbortHandle;

use super::{ChannelMsg, ChannelRef};
use crate::fleet::credit::Credits;
use crate::limits::{CREDIT_FRAMES, READ_BUDGET_BYTES, READ_CHUNK_BYTES};
use crate::wire::ndjson::{LineError, Lines};

/// How the stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The child, and everybody else who held the pipe, closed it.
    Eof,
    /// A line was longer than the cap: nothing after it can be trusted.
    TooLong(LineError),
    /// The pipe could not be read.
    Failed(String),
}

/// The running pump; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Pump {
    task: AbortHandle,
    waits: Arc<AtomicBool>,
}

impl Pump {
    /// Starts reading; ends with the stream, or when nobody listens.
    pub(crate) fn start(mut stdout: pipe::Receiver, credits: Credits, to: ChannelRef) -> Self {
        let waits = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&waits);
        let task = tokio::spawn(async move {
            let out = Out {
                credits,
                to,
                waits: flag,
            };
            if let Some(end) = pump(&mut stdout, &out).await {
                let _ = out.to.send_message(ChannelMsg::StreamEnd(end));
            }
        });
        Self {
            task: task.abort_handle(),
            waits,
        }
    }

    /// Whether it has read something and waits for credits to hand it over.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where the pump hands its batches.
struct Out {
    credits: Credits,
    to: ChannelRef,
    waits: Arc<AtomicBool>,
}

/// `None`: the Channel is gone.
async fn pump(stdout: &mut pipe::Receiver, out: &Out) -> Option<StreamEnd> {
    let mut lines = Lines::default();
    let mut since_yield = 0;
    loop {
        // No buffer stands by for an idle child.
        if let Err(error) = stdout.readable().await {
            return Some(StreamEnd::Failed(error.to_string()));
        }
        let mut chunk = BytesMut::with_capacity(READ_CHUNK_BYTES);
        let read = match stdout.read_buf(&mut chunk).await {
            Ok(read) => read,
            Err(error) => return Some(StreamEnd::Failed(error.to_string())),
        };
        if read == 0 {
            let mut frames = Vec::new();
            if let Some(last) = lines.finish() {
                frames.push(last);
            }
            send(frames, 0, out).await?;
            return Some(StreamEnd::Eof);
        }
        lines.push(chunk.freeze());
        let mut frames = Vec::new();
        for line in lines.by_ref() {
            match line {
                Ok(frame) => frames.push(frame),
                Err(error) => {
                    send(frames, read, out).await?;
                    return Some(StreamEnd::TooLong(error));
                }
            }
        }
        send(frames, read, out).await?;
        since_yield += read;
        if since_yield >= READ_BUDGET_BYTES {
            since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Hands the frames over, in batches that fit the credits. `None`: nobody takes them.
async fn send(frames: Vec<Bytes>, read: usize, out: &Out) -> Option<()> {
    if frames.is_empty() {
        // The middle of a long line, still a sign of life. Bounded by the line cap, not by credits.
        if read > 0 {
            out.to.send_message(ChannelMsg::Alive).ok()?;
        }
        return Some(());
    }
    let mut frames = frames;
    while !frames.is_empty() {
        let rest = frames.split_off(frames.len().min(CREDIT_FRAMES / 2));
        let batch = std::mem::replace(&mut frames, rest);
        let bytes = batch.iter().map(Bytes::len).sum();
        out.waits.store(true, Ordering::Relaxed);
        let hold = out.credits.take(batch.len(), bytes).await?;
        out.waits.store(false, Ordering::Relaxed);
        out.to
            .send_message(ChannelMsg::Frames { batch, hold })
            .ok()?;
    }
    Some(())
}
