//! The entry of a sandbox: starts helpers inside when the supervisor requests it.
//!
//! Owned by pid 1. A message is one byte for the kind of helper, with two descriptors: the socket
//! that this helper receives its request from, and its report pipe. Pid 1 does not see the request.
//! It only starts the helper, as its own user and with the same restrictions, and reaps it. No
//! process inside has the other end.
//!
//! The entry exists for every agent in a sandbox of ours, so that a client can have a command started
//! there, and for a pool with client methods or tools. The supervisor accepts
//! descriptors only from the outer helper and pid 1, which no agent can reach: the former is
//! outside the agent's pid namespace, the latter is not dumpable before any other process is
//! inside. A helper has the agent's user and is dumpable between its exec and its first call. Even
//! then the agent cannot trace it, because the agent runs in a nested Landlock domain
//! (`landlock.rs`), on every kernel with Landlock.

use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::seccomp::AgentRestriction;
use marshal_wire::shim::{ARG0_FILES, ARG0_LEASH, ENTRY_FILES, ENTRY_LEASH, MARKER};

/// Pid 1's end of the entry.
pub(super) struct EntryListener {
    socket: OwnedFd,
    /// Further restrictions that a leash applies to the command that it starts.
    agent_restriction: AgentRestriction,
}

impl EntryListener {
    pub(super) const fn new(socket: OwnedFd, seal: AgentRestriction) -> Self {
        Self {
            socket,
            agent_restriction: seal,
        }
    }

    /// Handles pending requests; `false` when the supervisor closed the entry.
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

    /// Starts a helper with these descriptors. If that fails they close, which tells the
    /// supervisor.
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

/// Reads a text of known length that follows a message.
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
