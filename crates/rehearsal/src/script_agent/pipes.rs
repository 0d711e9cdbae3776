//! The agent's stdin and stdout as lines, and the wait for input.
//!
//! One thread does everything, so the round trip of a permission request contains no thread switch
//! of the agent. Whatever the agent waits for, it also waits for stdin. Must not know messages.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use marshal_model::limits::LINE_BYTES;

/// The size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// The pause after each byte of a slow agent.
const SLOW_BYTE: Duration = Duration::from_micros(200);

/// A line of stdin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Without its newline.
    Whole(Vec<u8>),
    /// A line beyond the limit, which was dropped.
    TooLong,
}

/// Stdin, with the bytes that were read but not handled.
#[derive(Debug)]
pub(super) struct Inbox<R = File> {
    source: R,
    buffer: Vec<u8>,
    /// The begin of the next line.
    start: usize,
    /// The end of the bytes that contain no newline.
    searched: usize,
    /// Whether the reader is inside a line that is too long.
    skipping: bool,
    ended: bool,
}

impl Inbox<File> {
    /// The process's stdin, without the buffer of [`io::stdin`]: that would hide lines from
    /// [`Self::wait`].
    pub(super) fn stdin() -> io::Result<Self> {
        Ok(Self::new(File::from(
            io::stdin().as_fd().try_clone_to_owned()?,
        )))
    }

    /// Waits until stdin or one of `others` is readable, or `deadline` passes.
    pub(super) fn wait<const N: usize>(
        &self,
        others: [Option<BorrowedFd<'_>>; N],
        deadline: Option<Instant>,
    ) -> io::Result<Readiness<N>> {
        let mut fds = Vec::with_capacity(N + 1);
        if !self.ended {
            fds.push(PollFd::new(&self.source, PollFlags::IN));
        }
        let given = others.each_ref().map(Option::is_some);
        for other in others.into_iter().flatten() {
            fds.push(PollFd::from_borrowed_fd(other, PollFlags::IN));
        }
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let input = !self.ended && ready.next().unwrap_or(false);
        let others = given.map(|given| given && ready.next().unwrap_or(false));
        Ok(Readiness { input, others })
    }
}

/// The result of [`Inbox::wait`].
#[derive(Debug)]
pub(super) struct Readiness<const N: usize> {
    pub(super) input: bool,
    pub(super) others: [bool; N],
}

impl<R: Read> Inbox<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            skipping: false,
            ended: false,
        }
    }

    /// The source of the bytes.
    pub(super) fn source(&self) -> &R {
        &self.source
    }

    /// Whether all input has been handled and no more will come.
    pub(super) fn is_at_end(&self) -> bool {
        self.ended && self.start == self.buffer.len()
    }

    /// Reads once; blocks if nothing is available.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        if self.ended {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        let filled = self.buffer.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let read = loop {
            match self.source.read(&mut self.buffer[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        Ok(())
    }

    /// The next whole line of the bytes that were read. At the end, also a line without its
    /// newline.
    pub(super) fn next(&mut self) -> Option<Line> {
        if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            let end = self.searched + at;
            let line = self.take(end);
            self.start = end + 1;
            self.searched = self.start;
            return Some(line);
        }
        self.searched = self.buffer.len();
        if self.buffer.len() - self.start > LINE_BYTES {
            self.skipping = true;
        }
        if self.skipping {
            self.start = self.searched;
        }
        if !self.ended || (self.start == self.searched && !self.skipping) {
            return None;
        }
        let line = self.take(self.searched);
        self.start = self.searched;
        Some(line)
    }

    fn take(&mut self, end: usize) -> Line {
        if std::mem::take(&mut self.skipping) || end - self.start > LINE_BYTES {
            Line::TooLong
        } else {
            Line::Whole(self.buffer[self.start..end].to_vec())
        }
    }
}

/// Stdout. Every line is one write, unless lines are queued.
#[derive(Debug)]
pub(super) struct Outbox {
    sink: File,
    queued: Vec<u8>,
    /// Writes byte by byte, with a pause after each.
    pub(super) slow: bool,
}

impl Outbox {
    /// The process's stdout, without the line buffer of [`io::stdout`].
    pub(super) fn stdout() -> io::Result<Self> {
        Ok(Self {
            sink: File::from(io::stdout().as_fd().try_clone_to_owned()?),
            queued: Vec::with_capacity(512),
            slow: false,
        })
    }

    /// Queues a message behind what is queued.
    pub(super) fn queue(&mut self, message: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.queued, message)?;
        self.queued.push(b'\n');
        Ok(())
    }

    /// Writes the queued messages.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let queued = std::mem::take(&mut self.queued);
        let written = self.write(&queued);
        self.queued = queued;
        self.queued.clear();
        written
    }

    /// Writes a message at once.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.queue(message)?;
        self.flush()
    }

    /// Closes stdout: later output is dropped.
    pub(super) fn close(&mut self) -> io::Result<()> {
        let nowhere = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        self.sink = nowhere;
        Ok(())
    }

    /// Writes bytes as they are.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.slow {
            return self.sink.write_all(bytes);
        }
        for byte in bytes {
            self.sink.write_all(std::slice::from_ref(byte))?;
            thread::sleep(SLOW_BYTE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns its bytes in pieces of `step`.
    struct Pieces<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let step = self.step.min(self.bytes.len()).min(buffer.len());
            buffer[..step].copy_from_slice(&self.bytes[..step]);
            self.bytes = &self.bytes[step..];
            Ok(step)
        }
    }

    fn lines(bytes: &[u8], step: usize) -> Vec<Line> {
        let mut inbox = Inbox::new(Pieces { bytes, step });
        let mut lines = Vec::new();
        while !inbox.is_at_end() {
            inbox.fill().unwrap();
            lines.extend(std::iter::from_fn(|| inbox.next()));
        }
        lines
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_come() {
        let whole = |text: &str| Line::Whole(text.into());
        for step in [1, 2, 3, 5, 100] {
            assert_eq!(
                lines(b"one\n\ntwo\nthree", step),
                [whole("one"), whole(""), whole("two"), whole("three")],
            );
        }
        assert_eq!(lines(b"", 1), []);
        assert_eq!(lines(b"\n", 1), [whole("")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_dropped_and_the_next_one_is_read() {
        let mut bytes = vec![b'x'; LINE_BYTES + 1];
        bytes.extend_from_slice(b"\nnext\n");
        for step in [READ_BYTES, READ_BYTES - 1] {
            assert_eq!(
                lines(&bytes, step),
                [Line::TooLong, Line::Whole(b"next".to_vec())]
            );
        }
        assert_eq!(lines(&bytes[..=LINE_BYTES], READ_BYTES), [Line::TooLong]);
    }
}
