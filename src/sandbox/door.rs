//! The door of a sandbox: starts helpers inside when the supervisor says so.
//!
//! Owned by pid 1. A message is one byte, which kind of helper, and beside it the socket that this
//! helper hears by and the pipe that it reports by. What it is told there is no business of pid 1's: it only starts it, as itself,
//! with the walls that it wears, and reaps it. Nobody inside has the other end.

use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::seccomp::Seal;
use crate::wire::shim::{ARG0_FILES, ARG0_LEASH, DOOR_FILES, DOOR_LEASH, MARKER};

/// Pid 1's end.
pub(super) struct Door {
    socket: OwnedFd,
    /// What a leash puts on before it starts what it was told to.
    seal: Seal,
}

impl Door {
    pub(super) const fn new(socket: OwnedFd, seal: Seal) -> Self {
        Self { socket, seal }
    }

    /// Starts what waits at the door; `false` if nobody will come any more.
    pub(super) fn admit(&self) -> bool {
        loop {
            let mut kind = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut kind)],
                &mut control,
                flags,
            ) {
                Ok(got) => got.bytes,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            };
            let lines = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut rights) => rights.next().zip(rights.next()),
                _ => None,
            });
            if got == 0 {
                return false;
            }
            if let Some((socket, reports)) = lines {
                self.start(kind[0], socket, reports);
            }
        }
    }

    /// Starts a helper that talks by these. If it cannot be started they end, which says so.
    fn start(&self, kind: u8, socket: OwnedFd, reports: OwnedFd) {
        let (name, seal) = match kind {
            DOOR_LEASH => (ARG0_LEASH, self.seal),
            DOOR_FILES => (ARG0_FILES, Seal::Nothing),
            _ => return,
        };
        let _ = super::engine::own_command(name)
            .args(seal.word())
            .env_clear()
            .env(MARKER, std::env::var_os(MARKER).unwrap_or_default())
            .stdin(Stdio::from(socket))
            .stdout(Stdio::from(reports))
            .stderr(Stdio::null())
            .spawn();
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads exactly so many bytes of a text that follows a message.
pub(super) fn text(mut from: impl std::io::Read, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.by_ref().take(bytes).read_to_end(&mut text)?;
    if text.len() as u64 == bytes {
        Ok(text)
    } else {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }
}
