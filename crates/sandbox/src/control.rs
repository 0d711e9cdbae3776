//! The helper's end of the control socket and of the report pipe, and the link between the outer
//! helper and pid 1: blocking sends and receives of whole messages, with descriptors.
//!
//! Must not know what the messages mean.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use marshal_wire::shim::{self, HEADER_BYTES};

/// Maximum descriptors beside one message (SCM_MAX_FD, unix(7)).
pub(super) const DESCRIPTORS: usize = 253;

/// The control socket, which is this process's stdin. The copy is close-on-exec.
pub(super) fn from_stdin() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// The report pipe of a helper that an agent may reach, which is its stdout. The copy is
/// close-on-exec.
pub(super) fn reports_from_stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Sends a report.
pub(super) fn send_report<T: Serialize>(mut to: &File, message: &T) -> io::Result<()> {
    let bytes = shim::encode(message).map_err(io::Error::other)?;
    to.write_all(&bytes)
}

/// The link to the outer helper, which is pid 1's stdout. The copy is close-on-exec.
pub(super) fn link_from_stdout() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Sends a message, with descriptors beside its first byte.
pub(super) fn send<T: Serialize>(
    mut socket: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = shim::encode(message).map_err(io::Error::other)?;
    let mut sent = 0;
    if !descriptors.is_empty() {
        let mut space =
            vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(descriptors).size()];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        sent = sendmsg(
            socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
    }
    socket.write_all(&bytes[sent..])
}

/// Receives the next message and the descriptors beside it. A closed socket is an error of kind
/// `UnexpectedEof`.
pub(super) fn receive<T: DeserializeOwned>(
    mut socket: &UnixStream,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut header = [0; HEADER_BYTES];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // A receive with a timeout returns EINTR after a stop and continue, even without a handler.
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut header)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    socket.read_exact(&mut header[got.bytes..])?;
    let mut body = vec![0; shim::body_length(header).map_err(io::Error::other)?];
    socket.read_exact(&mut body)?;
    Ok((shim::decode(&body).map_err(io::Error::other)?, descriptors))
}
