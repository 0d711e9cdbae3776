//! The stderr ring: a plain task that drains one child's stderr into its slot's log.
//!
//! It never stops reading, so a child that writes much never blocks on its logs. It keeps a bounded
//! tail.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::broadcast;

use marshal_model::UntrustedText;
use marshal_model::limits::{STDERR_LINE_BYTES, STDERR_LINES};

/// Lines that a follower may lag behind before it loses some.
const FOLLOW_LINES: usize = 1024;

/// A slot's log: the last lines of its children's stderr, and a live stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct StderrLog(Arc<Mutex<Log>>);

#[derive(Debug, Default)]
struct Log {
    tail: VecDeque<UntrustedText>,
    /// `Some` only while there is a follower: the ring allocates all its memory at once.
    live: Option<broadcast::Sender<UntrustedText>>,
}

/// The view of a follower.
#[derive(Debug)]
pub struct LogTail {
    /// The last lines, oldest first.
    pub backlog: Vec<UntrustedText>,
    /// The lines after those.
    pub live: broadcast::Receiver<UntrustedText>,
}

impl StderrLog {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The tail, and everything after it without a gap.
    pub(crate) fn follow(&self) -> LogTail {
        let mut log = self.lock();
        LogTail {
            backlog: log.tail.iter().cloned().collect(),
            live: if let Some(live) = &log.live {
                live.subscribe()
            } else {
                let (live, first) = broadcast::channel(FOLLOW_LINES);
                log.live = Some(live);
                first
            },
        }
    }

    /// The last lines, oldest first.
    pub(crate) fn tail(&self) -> Vec<UntrustedText> {
        self.lock().tail.iter().cloned().collect()
    }

    /// Drops the lines of an earlier child, so that they do not explain the end of the next one.
    pub(crate) fn clear(&self) {
        self.lock().tail.clear();
    }

    fn add(&self, line: &[u8]) {
        let line = UntrustedText::new(String::from_utf8_lossy(line).into_owned());
        let mut log = self.lock();
        if log.tail.len() == STDERR_LINES {
            log.tail.pop_front();
        }
        log.tail.push_back(line.clone());
        // Sent under the lock, so a new follower neither misses a line nor sees it twice.
        if log
            .live
            .as_ref()
            .is_some_and(|live| live.send(line).is_err())
        {
            log.live = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until the last writer of the pipe is gone; passes the number of bytes of each read to
/// `count`.
pub(crate) async fn run(mut pipe: pipe::Receiver, log: StderrLog, count: impl Fn(usize) + Send) {
    let mut line = Vec::new();
    loop {
        match poll_fn(|context| drain(&mut pipe, &mut line, &log, context)).await {
            Ok(0) | Err(_) => break,
            Ok(read) => count(read),
        }
    }
    if !line.is_empty() {
        log.add(&line);
    }
}

/// One read. The buffer is on the stack of this function, so an idle child holds no buffer.
fn drain(
    pipe: &mut pipe::Receiver,
    line: &mut Vec<u8>,
    log: &StderrLog,
    context: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    let mut chunk = [MaybeUninit::uninit(); 4096];
    let mut chunk = ReadBuf::uninit(&mut chunk);
    ready!(Pin::new(pipe).poll_read(context, &mut chunk))?;
    for piece in chunk.filled().split_inclusive(|byte| *byte == b'\n') {
        let (text, ended) = match piece.strip_suffix(b"\n") {
            Some(text) => (text, true),
            None => (piece, false),
        };
        let remaining = STDERR_LINE_BYTES - line.len();
        line.extend_from_slice(&text[..text.len().min(remaining)]);
        if ended {
            log.add(line);
            line.clear();
        }
    }
    Poll::Ready(Ok(chunk.filled().len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_follows_gets_every_line_once_and_the_next_one_too() {
        let log = StderrLog::new();
        log.add(b"before");
        let mut first = log.follow();
        log.add(b"between");
        let mut second = log.follow();
        log.add(b"after");
        let shown = |lines: &[UntrustedText]| {
            let raw = lines.iter().map(|line| line.raw().to_owned());
            raw.collect::<Vec<_>>()
        };
        assert_eq!(shown(&first.backlog), ["before"]);
        assert_eq!(shown(&second.backlog), ["before", "between"]);
        for expected in ["between", "after"] {
            assert_eq!(first.live.recv().await.unwrap().raw(), expected);
        }
        assert_eq!(second.live.recv().await.unwrap().raw(), "after");
        drop((first, second));
        log.add(b"alone");
        assert!(
            log.lock().live.is_none(),
            "nobody follows, no ring stands by"
        );
        let mut third = log.follow();
        log.add(b"again");
        assert_eq!(third.live.recv().await.unwrap().raw(), "again");
    }
}
