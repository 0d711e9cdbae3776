//! The supervisor's end of a helper's control socket.
//!
//! The first message, with its descriptors, is sent by the spawner thread; everything after it is
//! asynchronous. A helper whose socket a process with the agent's uid could take reports through a
//! pipe, and its socket is closed for reading before the helper gets it: a descriptor that arrived
//! through it would be closed here, and closing an untrusted file can block for as long as its
//! owner wants. Only a sandbox's own helpers, which an agent cannot reach, report through their
//! socket: descriptors that arrive with a report are kept until the caller takes them. Must not
//! know how a report is handled.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use marshal_model::limits::POOL_PORTS;
use marshal_wire::shim::{self, HelperCommand, HelperReport};

/// The control lines between the supervisor and a helper that an agent may reach: only bytes, no
/// descriptors, can arrive here.
pub(super) struct OneWayLink {
    /// The supervisor's end of the socket: it sends orders and receives nothing, not even into its
    /// queue.
    pub(super) orders: StdStream,
    /// The supervisor's end of the pipe for reports.
    pub(super) reports: OwnedFd,
    /// The helper's end of the socket.
    pub(super) helper_orders: OwnedFd,
    /// The helper's end of the pipe.
    pub(super) helper_reports: OwnedFd,
}

impl OneWayLink {
    pub(super) fn open() -> io::Result<Self> {
        let (orders, theirs) = StdStream::pair()?;
        orders.shutdown(Shutdown::Read)?;
        let (reports, their_reports) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self {
            orders,
            reports,
            helper_orders: theirs.into(),
            helper_reports: their_reports,
        })
    }
}

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
        return Err(io::Error::other(
            "too many file descriptors for one message",
        ));
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
    /// The pipe for reports; `None` if they come through the socket.
    reports: Option<pipe::Receiver>,
    /// Bytes of an incomplete report; at most one report and one read.
    buffer: Vec<u8>,
    /// Received descriptors that were not taken yet.
    descriptors: Vec<OwnedFd>,
}

/// Bytes taken from the socket at once: reports are small.
const READ: usize = 4096;

impl Control {
    /// Takes over the socket of a helper that no agent reaches. Must be called inside a runtime.
    pub(super) fn new(stream: StdStream) -> io::Result<Self> {
        Self::from_parts(stream, None)
    }

    /// Takes over the supervisor's ends of [`OneWayLink`]. Must be called inside a runtime.
    pub(super) fn from_one_way(orders: StdStream, reports: OwnedFd) -> io::Result<Self> {
        Self::from_parts(orders, Some(pipe::Receiver::from_owned_fd(reports)?))
    }

    fn from_parts(stream: StdStream, reports: Option<pipe::Receiver>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: UnixStream::from_std(stream)?,
            reports,
            buffer: Vec::new(),
            descriptors: Vec::new(),
        })
    }

    /// Sends the rest of a message that was begun.
    pub(super) async fn send(&mut self, rest: &[u8]) -> io::Result<()> {
        self.stream.write_all(rest).await
    }

    /// The next report, or `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<HelperReport>> {
        loop {
            if let Some(report) = shim::take_message(&mut self.buffer).map_err(io::Error::other)? {
                return Ok(Some(report));
            }
            // A helper that was killed resets the socket if it had not read everything.
            let (stream, buffer) = (&self.stream, &mut self.buffer);
            let descriptors = &mut self.descriptors;
            let read = if let Some(pipe) = &self.reports {
                read_pipe(pipe, buffer).await
            } else {
                let receive = || receive(stream, buffer, descriptors);
                stream.async_io(Interest::READABLE, receive).await
            };
            match read {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The descriptors that were received so far.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Sends an order, or says that it cannot be sent now: orders are few and small, so a socket
    /// that has no room for one belongs to a helper that does not read.
    pub(super) fn send_order(&self, order: HelperCommand) -> bool {
        let Ok(bytes) = shim::encode(&order) else {
            return false;
        };
        self.stream
            .try_write(&bytes)
            .is_ok_and(|wrote| wrote == bytes.len())
    }
}

/// One read of a pipe. Cancel-safe.
async fn read_pipe(pipe: &pipe::Receiver, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; READ];
    loop {
        pipe.readable().await?;
        match pipe.try_read(&mut chunk) {
            Ok(got) => {
                buffer.extend_from_slice(chunk.get(..got).unwrap_or_default());
                return Ok(got);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// One read, and what travels beside it; no more descriptors are kept than ports can be.
fn receive(
    stream: &UnixStream,
    buffer: &mut Vec<u8>,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut chunk = [0; READ];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(POOL_PORTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut chunk)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    descriptors.truncate(POOL_PORTS);
    buffer.extend_from_slice(chunk.get(..got.bytes).unwrap_or_default());
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_comes_by_the_socket_of_orders_is_refused_with_its_descriptors() {
        let lines = OneWayLink::open().expect("lines");
        let mut theirs = StdStream::from(lines.helper_orders);
        let stranger = std::fs::File::open("/dev/null").expect("a file");
        let sent = send_first(&theirs, b"x", &[stranger.as_fd()]);
        let error = sent.expect_err("nothing goes that way");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        // The other way is open.
        (&lines.orders).write_all(b"y").expect("an order");
        let mut byte = [0];
        theirs.read_exact(&mut byte).expect("an order");
        assert_eq!(&byte, b"y");
    }
}
