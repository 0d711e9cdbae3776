//! How a child ends.

use super::string_enum;
use serde::{Deserialize, Serialize};

string_enum!(
    /// The class of a child's end, as `marshal_child_exits_total{reason}` counts it.
    ExitClass {
        /// It never ran: no process, no sandbox, or no such program.
        SpawnFailed = "spawn_failed",
        /// It did not complete its handshake in time.
        HandshakeTimeout = "handshake_timeout",
        /// It speaks an unsupported version of its protocol.
        VersionRefused = "version_refused",
        /// It cannot be used as configured: it needs a login, or does not offer the mode.
        NeedsSetup = "needs_setup",
        /// It broke its protocol.
        ProtocolFault = "protocol_fault",
        /// It exited by itself.
        Exited = "exited",
        /// A signal that the supervisor did not send ended it.
        Signalled = "signalled",
        /// The connection to its remote host was lost.
        ConnectionLost = "connection_lost",
        /// The kernel killed it for lack of memory.
        OutOfMemory = "out_of_memory",
        /// It was stopped because it was idle.
        IdleUnload = "idle_unload",
        /// The supervisor stopped it as requested.
        Stopped = "stopped",
        /// It exceeded the journal quota of a session.
        JournalQuota = "journal_quota",
        /// It was stopped because a budget with `then = "park"` ran out.
        Budget = "budget",
    }
);

string_enum!(
    /// The stage at which the set-up of a child's sandbox failed, as
    /// `marshal_sandbox_failures_total{stage}` counts it.
    SandboxStage {
        /// The helper itself: its control socket, its version, its parent.
        Shim = "shim",
        /// Taking the slot's uid.
        Uid = "uid",
        /// Making the namespaces and mapping the user.
        Userns = "userns",
        /// Mapping the owner of a directory to the user inside.
        Idmap = "idmap",
        /// Opening or placing a directory, and the root around it.
        Mount = "mount",
        /// Mounting an overlay over a directory.
        Overlay = "overlay",
        /// `/proc`.
        Proc = "proc",
        /// The loopback of the own network.
        Net = "net",
        /// The host name.
        Uts = "uts",
        /// Resource limits.
        Rlimit = "rlimit",
        /// Capabilities and no_new_privs.
        Caps = "caps",
        /// Landlock.
        Landlock = "landlock",
        /// The filter of system calls.
        Seccomp = "seccomp",
        /// The external program that builds the sandbox: bubblewrap, podman or docker.
        Engine = "engine",
        /// Starting the agent's program.
        Exec = "exec",
    }
);

impl ExitClass {
    /// Whether this end was requested, so that it is no failure of its slot.
    #[must_use]
    pub const fn is_requested(self) -> bool {
        matches!(self, Self::Stopped | Self::IdleUnload)
    }
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It called exit with this code, 0 to 255.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// The exit code as a shell reports it: 128 plus the signal if a signal ended the process.
    #[must_use]
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
