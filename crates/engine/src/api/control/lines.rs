//! Lines over a stream socket, with limits on their length and on every wait.
//!
//! Must not know what is in a line.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout, timeout_at};

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line exceeds the length limit.
    #[error("the line is longer than {0} bytes")]
    TooLong(usize),
    /// The peer exceeded the time limit.
    #[error("the peer took longer than {} s", .0.as_secs_f32())]
    TooSlow(Duration),
    /// The peer closed the connection within a line, or the system call failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// One connection, line by line.
#[derive(Debug)]
pub struct Lines {
    read: LineReader,
    write: LineWriter,
}

/// The reading half of a connection.
#[derive(Debug)]
pub struct LineReader {
    read: BufReader<OwnedReadHalf>,
    /// The bytes of the next line that were read so far.
    partial: Vec<u8>,
    /// The maximum length of a line in bytes.
    bound: usize,
}

/// The writing half of a connection.
#[derive(Debug)]
pub struct LineWriter {
    write: OwnedWriteHalf,
    /// The time limit to write one line.
    wait: Duration,
}

impl Lines {
    /// Creates lines over `stream`: at most `bound` bytes each when read, and at most `wait` to
    /// write one.
    #[must_use]
    pub fn new(stream: UnixStream, bound: usize, wait: Duration) -> Self {
        let (read, write) = stream.into_split();
        Self {
            read: LineReader {
                read: BufReader::with_capacity(16 << 10, read),
                partial: Vec::new(),
                bound,
            },
            write: LineWriter { write, wait },
        }
    }

    /// Splits both directions for two tasks: a side that writes a long line must continue to read.
    #[must_use]
    pub fn split(self) -> (LineReader, LineWriter) {
        (self.read, self.write)
    }

    /// Returns the next line without its newline; `None` at the end. Waits at most `within`, if
    /// given. Cancel-safe: the bytes of an incomplete line are kept.
    ///
    /// # Errors
    /// [`LineError`]; the connection is unusable after it.
    pub async fn next(&mut self, within: Option<Duration>) -> Result<Option<Vec<u8>>, LineError> {
        self.read.next(within).await
    }

    /// Writes one line and its newline.
    ///
    /// # Errors
    /// [`LineError`]; the connection is unusable after it.
    pub async fn send(&mut self, line: String) -> Result<(), LineError> {
        self.write.send(line).await
    }

    /// Waits until the peer closes the connection or sends something. Returns `true` if it sent
    /// something, which is then the next line. Cancel-safe.
    pub async fn wait_for_input(&mut self) -> bool {
        matches!(self.read.read.fill_buf().await, Ok(chunk) if !chunk.is_empty())
    }
}

impl LineReader {
    /// As [`Lines::next`].
    ///
    /// # Errors
    /// [`LineError`]; the connection is unusable after it.
    pub async fn next(&mut self, within: Option<Duration>) -> Result<Option<Vec<u8>>, LineError> {
        let deadline = within.map(|within| (Instant::now() + within, within));
        loop {
            let chunk = match deadline {
                None => self.read.fill_buf().await?,
                Some((at, within)) => timeout_at(at, self.read.fill_buf())
                    .await
                    .map_err(|_| LineError::TooSlow(within))??,
            };
            if chunk.is_empty() {
                return if self.partial.is_empty() {
                    Ok(None)
                } else {
                    Err(LineError::Io(io::ErrorKind::UnexpectedEof.into()))
                };
            }
            let end = memchr::memchr(b'\n', chunk);
            let taken = end.unwrap_or(chunk.len());
            if self.partial.len() + taken > self.bound {
                return Err(LineError::TooLong(self.bound));
            }
            self.partial.extend_from_slice(&chunk[..taken]);
            self.read.consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
        }
    }
}

impl LineWriter {
    /// As [`Lines::send`].
    ///
    /// # Errors
    /// [`LineError`]; the connection is unusable after it.
    pub async fn send(&mut self, mut line: String) -> Result<(), LineError> {
        line.push('\n');
        timeout(self.wait, self.write.write_all(line.as_bytes()))
            .await
            .map_err(|_| LineError::TooSlow(self.wait))??;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUND: usize = 20;
    const GENEROUS: Duration = Duration::from_secs(60);

    /// What comes out of these bytes, and whether it ends well.
    fn wanted(text: &[u8]) -> (Vec<Vec<u8>>, bool) {
        let mut lines: Vec<Vec<u8>> = text.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        let rest = lines.pop().unwrap_or_default();
        let long = lines.iter().position(|line| line.len() > BOUND);
        let is_good = long.is_none() && rest.is_empty();
        lines.truncate(long.unwrap_or(lines.len()));
        (lines, is_good)
    }

    async fn read(chunks: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, bool) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let writing = tokio::spawn(async move {
            for chunk in chunks {
                // Whoever refuses a line hears no more of it.
                if theirs.write_all(&chunk).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        let mut lines = Lines::new(ours, BOUND, GENEROUS);
        let mut out = Vec::new();
        let is_good = loop {
            match lines.next(Some(GENEROUS)).await {
                Ok(Some(line)) => out.push(line),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        drop(lines);
        writing.await.expect("the other end");
        (out, is_good)
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_the_same_lines(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()], 0..120),
            size in 1_usize..40,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let chunks = text.chunks(size).map(<[u8]>::to_vec).collect();
            let read = runtime.expect("a runtime").block_on(read(chunks));
            prop_assert_eq!(read, wanted(&text));
        }
    }
}
