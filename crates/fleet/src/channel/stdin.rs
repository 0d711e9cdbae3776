//! The stdin pump: a plain task that owns one child's stdin.
//!
//! Takes messages from a bounded queue, writes each whole, and closes the pipe when the queue is
//! closed. Must not know what a message means. While a child does not read, the queue fills with
//! what one turn can produce: answers to its open permission requests, a cancel, a goodbye. More
//! than that is a fault of the child.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::messages::{ChannelMsg, ChannelRef};
use marshal_model::limits::{CLIENT_FILE_BYTES, STDIN_BYTES, STDIN_QUEUE, TERMINAL_BYTES};

/// The longest answer, in bytes: JSON escapes can make a text six times as long; the rest is for
/// the message around it.
const LONG_ANSWER_BYTES: usize = {
    let text = if CLIENT_FILE_BYTES > TERMINAL_BYTES {
        CLIENT_FILE_BYTES
    } else {
        TERMINAL_BYTES
    };
    6 * text + (64 << 10)
};

/// Why a message was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// The child does not read, and the queue is full.
    Full,
    /// The pipe is closed.
    Closed,
}

/// One message.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    at: Instant,
}

/// The messages that wait for the pipe. Not a tokio channel: that allocates room for 32 messages
/// per child at once, and most children never have more than one waiting.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    /// Bytes of all waiting messages.
    bytes: usize,
    /// No further message comes: the pipe closes after the last one.
    closing: bool,
    /// The pipe is closed.
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message; `None` after the last.
    async fn next(&self) -> Option<Message> {
        loop {
            {
                let mut waiting = self.lock();
                if let Some(message) = waiting.messages.pop_front() {
                    waiting.bytes -= message.bytes.len();
                    return Some(message);
                }
                if waiting.closing {
                    return None;
                }
                // Free the memory of a busy time: an idle child keeps none.
                waiting.messages = VecDeque::new();
            }
            self.changed.notified().await;
        }
    }
}

/// The writing end of the queue. Dropping it closes the pipe after the queued messages.
#[derive(Debug)]
pub(crate) struct Stdin {
    queue: Arc<Queue>,
}

impl Stdin {
    /// Starts the pump.
    pub(crate) fn start(pipe: pipe::Sender, to: ChannelRef) -> Self {
        let queue = Arc::new(Queue::default());
        tokio::spawn(run(pipe, Reading(Arc::clone(&queue)), to));
        Self { queue }
    }

    /// Whether there is room for one long answer and for the short messages that may come beside
    /// it.
    pub(crate) fn has_room(&self) -> bool {
        let waiting = self.queue.lock();
        waiting.messages.len() < STDIN_QUEUE / 2 && waiting.bytes <= STDIN_BYTES - LONG_ANSWER_BYTES
    }

    /// Queues a message.
    pub(crate) fn write(&self, bytes: Vec<u8>, now: Instant) -> Result<(), QueueError> {
        let mut waiting = self.queue.lock();
        if waiting.closed {
            return Err(QueueError::Closed);
        }
        let sum = waiting.bytes + bytes.len();
        if waiting.messages.len() >= STDIN_QUEUE || sum > STDIN_BYTES {
            return Err(QueueError::Full);
        }
        waiting.bytes = sum;
        waiting.messages.push_back(Message { bytes, at: now });
        drop(waiting);
        self.queue.changed.notify_one();
        Ok(())
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        self.queue.lock().closing = true;
        self.queue.changed.notify_one();
    }
}

/// The reading end of the queue. After it is dropped, nothing can be queued.
struct Reading(Arc<Queue>);

impl Drop for Reading {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.closed = true;
        waiting.messages.clear();
        waiting.bytes = 0;
    }
}

async fn run(mut pipe: pipe::Sender, queue: Reading, to: ChannelRef) {
    while let Some(Message { bytes, at }) = queue.0.next().await {
        if let Err(error) = pipe.write_all(&bytes).await {
            // The queue closes before the failure is reported, so nothing is queued behind a broken
            // pipe.
            drop(queue);
            let _ = to.send_message(ChannelMsg::StdinFailed(error.to_string()));
            return;
        }
        let _ = to.send_message(ChannelMsg::Written { queued: at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor_probe::probe;
    use crate::clock;
    use tokio::sync::mpsc::Receiver;

    #[tokio::test]
    async fn places_are_bounded_and_what_is_queued_is_read_before_the_end() {
        let stdin = Stdin {
            queue: Arc::default(),
        };
        let reading = Reading(Arc::clone(&stdin.queue));
        for _ in 0..STDIN_QUEUE {
            assert_eq!(stdin.write(vec![1], clock::now()), Ok(()));
        }
        let full = stdin.write(vec![2], clock::now());
        assert_eq!(full, Err(QueueError::Full));
        drop(stdin);
        for _ in 0..STDIN_QUEUE {
            assert!(reading.0.next().await.is_some());
        }
        assert!(reading.0.next().await.is_none());
    }

    #[tokio::test]
    async fn what_waits_has_a_bound_in_bytes_as_well() {
        let stdin = Stdin {
            queue: Arc::default(),
        };
        let half = || vec![0; STDIN_BYTES / 2];
        assert_eq!(stdin.write(half(), clock::now()), Ok(()));
        assert_eq!(stdin.write(half(), clock::now()), Ok(()));
        assert_eq!(stdin.write(half(), clock::now()), Err(QueueError::Full));
        assert!(stdin.queue.next().await.is_some());
        assert_eq!(stdin.write(half(), clock::now()), Ok(()));
    }

    #[tokio::test]
    async fn nothing_is_queued_for_a_pipe_that_is_closed() {
        let stdin = Stdin {
            queue: Arc::default(),
        };
        drop(Reading(Arc::clone(&stdin.queue)));
        let closed = stdin.write(vec![1], clock::now());
        assert_eq!(closed, Err(QueueError::Closed));
    }

    /// A pump with a pipe of its own, and the mailbox that it reports to.
    fn pump() -> (Stdin, std::fs::File, Receiver<ChannelMsg>) {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (to, mailbox) = probe();
        let stdin = Stdin::start(pipe::Sender::from_owned_fd(writer).unwrap(), to);
        (stdin, std::fs::File::from(reader), mailbox)
    }

    fn ten_megabytes() -> Vec<u8> {
        let numbers = (0..10_u32 << 20).map(|at| at.wrapping_mul(2_654_435_761) >> 24);
        numbers.map(|byte| u8::try_from(byte).unwrap()).collect()
    }

    /// Queues more than a turn may; bypasses the bounds.
    fn put(stdin: &Stdin, bytes: Vec<u8>) {
        let mut waiting = stdin.queue.lock();
        waiting.bytes += bytes.len();
        waiting.messages.push_back(Message {
            bytes,
            at: clock::now(),
        });
        drop(waiting);
        stdin.queue.changed.notify_one();
    }

    async fn next_message(mailbox: &mut Receiver<ChannelMsg>) -> Option<ChannelMsg> {
        mailbox.recv().await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_message_that_no_pipe_holds_goes_out_whole_in_many_writes() {
        use std::io::Read as _;
        let (stdin, mut reader, mut mailbox) = pump();
        let sent = ten_megabytes();
        put(&stdin, sent.clone());
        put(&stdin, b"and the next".to_vec());
        drop(stdin);
        let read = std::thread::spawn(move || {
            let (mut all, mut few) = (Vec::new(), [0_u8; 1999]);
            while let Ok(got @ 1..) = reader.read(&mut few) {
                all.extend_from_slice(&few[..got]);
            }
            all
        });
        for _ in 0..2 {
            let message = next_message(&mut mailbox).await;
            assert!(
                matches!(message, Some(ChannelMsg::Written { .. })),
                "{message:?}"
            );
        }
        let all = read.join().unwrap();
        assert!(all == [&sent[..], b"and the next"].concat());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_child_that_closes_its_stdin_in_the_middle_of_a_write_is_told_once() {
        use std::io::Read as _;
        let (stdin, mut reader, mut mailbox) = pump();
        put(&stdin, ten_megabytes());
        put(&stdin, b"never".to_vec());
        let closing = std::thread::spawn(move || {
            let mut some = vec![0; 100_000];
            reader.read_exact(&mut some).unwrap();
        });
        closing.join().unwrap();
        let first = next_message(&mut mailbox).await;
        let Some(ChannelMsg::StdinFailed(why)) = first else {
            panic!("{first:?}");
        };
        assert!(why.contains("Broken pipe"), "{why}");
        assert_eq!(
            stdin.write(vec![1], clock::now()),
            Err(QueueError::Closed),
            "nothing is queued behind it"
        );
        drop(stdin);
        tokio::task::yield_now().await;
        let pending = std::future::poll_fn(|context| {
            let next = mailbox.poll_recv(context);
            std::task::Poll::Ready(!matches!(next, std::task::Poll::Ready(Some(_))))
        });
        assert!(pending.await, "it was told once");
    }
}
