//! The door of a sandbox: starts helpers inside when the supervisor says so.
//!
//! Owned by pid 1. A message is one byte, which kind of helper, and beside it the socket that this
//! helper hears by and the pipe that it reports by. What it is told there is no business of pid 1's: it only starts it, as itself,
//! with the walls that it wears, and reaps it. Nobody inside has the other end.
//!
//! The door is made only for a pool that offers client methods or tools. The supervisor takes
//! descriptors only from the outer helper and pid 1, which no agent reaches. The one is outside the
//! agent's pid namespace; the other is not dumpable before anybody else is inside. A helper behind the
//! door has the agent's user and is dumpable from its exec to its first call. The agent cannot reach it
//! even then, because the agent runs in a Landlock domain further inside (`landlock.rs`), wherever the
//! kernel has Landlock.

use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::seccomp::AgentRestriction;
use marshal_wire::shim::{ARG0_FILES, ARG0_LEASH, ENTRY_FILES, ENTRY_LEASH, MARKER};

/// Pid 1's end.
pub(super) struct EntryListener {
    socket: OwnedFd,
    /// What a leash puts on before it starts what it was told to.
    agent_restriction: AgentRestriction,
}

impl EntryListener {
    pub(super) const fn new(socket: OwnedFd, seal: AgentRestriction) -> Self {
        Self {
            socket,
            agent_restriction: seal,
        }
    }

    /// Starts what waits at the door; `false` if nobody will come any more.
    pub(super) fn accept_requests(&self) -> bool {
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
                self.start_helper(kind[0], socket, reports);
            }
        }
    }

    /// Starts a helper that talks by these. If it cannot be started they end, which says so.
    fn start_helper(&self, kind: u8, socket: OwnedFd, reports: OwnedFd) {
        let (name, seal) = match kind {
            ENTRY_LEASH => (ARG0_LEASH, self.agent_restriction),
            ENTRY_FILES => (ARG0_FILES, AgentRestriction::None),
            _ => return,
        };
        let _ = super::engine::own_command(name)
            .args(seal.as_str())
            .env_clear()
            .env(MARKER, std::env::var_os(MARKER).unwrap_or_default())
            .stdin(Stdio::from(socket))
            .stdout(Stdio::from(reports))
            .stderr(Stdio::null())
            .spawn();
    }
}

impl AsFd for EntryListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads exactly so many bytes of a text that follows a message.
pub(super) fn read_exact_text(
    mut from: impl std::io::Read,
    bytes: u64,
) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.by_ref().take(bytes).read_to_end(&mut text)?;
    if text.len() as u64 == bytes {
        Ok(text)
    } else {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }
}
