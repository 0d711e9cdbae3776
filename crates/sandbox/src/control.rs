//! The helper's end of the control socket and of the pipe for reports, and the link between the outer helper and pid 1:
//! blocking sends and receives of whole messages, with descriptors beside them.
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

/// The most descriptors beside one message (SCM_MAX_FD, unix(7)).
pub(super) const DESCRIPTORS: usize = 253;

/// The control socket, which is this process's stdin; the copy is not inherited.
pub(super) fn from_stdin() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// What a helper that an agent may reach reports by, which is its stdout; the copy is not inherited.
pub(super) fn reports_from_stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Sends a report.
pub(super) fn send_report<T: Serialize>(mut to: &File, message: &T) -> io::Result<()> {
    let bytes = shim::encode(message).map_err(io::Error::other)?;
    to.write_all(&bytes)
}

/// The link to the outer helper, which is pid 1's stdout; the copy is not inherited.
pub(super) fn link_from_stdout() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Sends a message, descriptors beside its first byte.
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

/// Receives the next message and what travels beside it. An end of the socket is an error of kind
/// `UnexpectedEof`.
pub(super) fn receive<T: DeserializeOwned>(
    mut socket: &UnixStream,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut header = [0; HEADER_BYTES];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // One with a time is broken into by a stop, too.
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
