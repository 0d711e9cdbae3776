//! The stderr ring: a plain task that drains one child's stderr into its slot's log.
//!
//! Always reads, so that a chatty child never blocks on its logs; keeps a bounded tail.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::unix::pipe;
use tokio::sync::broadcast;

use crate::limits::{STDERR_LINE_BYTES, STDERR_LINES};
use crate::model::Foreign;

/// Lines that a follower may lag behind.
const FOLLOW_LINES: usize = 1024;

/// A slot's log: the last lines of its children's stderr, and a way to follow.
#[derive(Debug, Clone)]
pub(crate) struct StderrLog {
    tail: Arc<Mutex<VecDeque<Foreign>>>,
    live: broadcast::Sender<Foreign>,
}

/// What a follower gets.
#[derive(Debug)]
pub struct LogTail {
    /// The last lines, oldest first.
    pub backlog: Vec<Foreign>,
    /// What comes after them.
    pub live: broadcast::Receiver<Foreign>,
}

impl StderrLog {
    pub(crate) fn new() -> Self {
        Self {
            tail: Arc::default(),
            live: broadcast::channel(FOLLOW_LINES).0,
        }
    }

    /// The tail, and everything after it without a gap.
    pub(crate) fn follow(&self) -> LogTail {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        LogTail {
            backlog: tail.iter().cloned().collect(),
            live: self.live.subscribe(),
        }
    }

    /// The last lines, oldest first.
    pub(crate) fn tail(&self) -> Vec<Foreign> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().cloned().collect()
    }

    /// Forgets the lines of an earlier child: what fails next is not their fault.
    pub(crate) fn clear(&self) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.clear();
    }

    fn add(&self, line: &[u8]) {
        let line = Foreign::new(String::from_utf8_lossy(line).into_owned());
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == STDERR_LINES {
            tail.pop_front();
        }
        tail.push_back(line.clone());
        // Under the lock, so that a new follower neither misses a line nor sees it twice.
        let _ = self.live.send(line);
    }
}

/// Runs until the pipe's last writer is gone; gives the number of bytes read to `count`.
pub(crate) async fn run(pipe: pipe::Receiver, log: StderrLog, count: impl Fn(usize) + Send) {
    let mut line = Vec::new();
    loop {
        if pipe.readable().await.is_err() {
            break;
        }
        match drain(&pipe, &mut line, &log) {
            Ok(0) => break,
            Ok(read) => count(read),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    if !line.is_empty() {
        log.add(&line);
    }
}

/// One read. The buffer lives on the stack here, so that an idle child holds none.
fn drain(pipe: &pipe::Receiver, line: &mut Vec<u8>, log: &StderrLog) -> std::io::Result<usize> {
    let mut chunk = [0_u8; 4096];
    let read = pipe.try_read(&mut chunk)?;
    for piece in chunk[..read].split_inclusive(|byte| *byte == b'\n') {
        let (text, ended) = match piece.strip_suffix(b"\n") {
            Some(text) => (text, true),
            None => (piece, false),
        };
        let room = STDERR_LINE_BYTES - line.len();
        line.extend_from_slice(&text[..text.len().min(room)]);
        if ended {
            log.add(line);
            line.clear();
        }
    }
    Ok(read)
}
