//! The supervisor's end of a helper's control socket.
//!
//! The first message, with its descriptors, is sent by the spawner thread; everything after it is
//! asynchronous. Must not know what is done about a report.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::wire::shim::{self, Order, Report};

/// Sends the first message, descriptors beside its first byte.
pub(super) fn send_start(
    mut socket: &StdStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let sent = send_first(socket, message, descriptors)?;
    socket.write_all(&message[sent..])
}

/// Sends as much of the first message as the socket takes, descriptors beside its first byte; how
/// many bytes went.
pub(super) fn send_first(
    socket: &StdStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space =
        vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(descriptors).size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    Ok(sendmsg(
        socket,
        &[IoSlice::new(message)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

/// The socket after the start.
#[derive(Debug)]
pub(super) struct Control {
    stream: UnixStream,
    /// Bytes of a report that is not whole yet; at most one report and one read long.
    buffer: Vec<u8>,
}

impl Control {
    /// Takes the socket over. Needs a runtime around it.
    pub(super) fn new(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: UnixStream::from_std(stream)?,
            buffer: Vec::new(),
        })
    }

    /// Sends the rest of a message that was begun.
    pub(super) async fn send(&mut self, rest: &[u8]) -> io::Result<()> {
        self.stream.write_all(rest).await
    }

    /// The next report, or `None` when there will be none. Nothing is lost if this is dropped.
    pub(super) async fn next(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(report) = shim::take(&mut self.buffer).map_err(io::Error::other)? {
                return Ok(Some(report));
            }
            // A helper that was killed resets the socket if it had not read everything.
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends an order, or says that it cannot be sent now: orders are few and small, so a socket
    /// that has no room for one belongs to a helper that does not read.
    pub(super) fn order(&self, order: Order) -> bool {
        let Ok(bytes) = shim::encode(&order) else {
            return false;
        };
        self.stream
            .try_write(&bytes)
            .is_ok_and(|wrote| wrote == bytes.len())
    }
}
