//! The control socket between the supervisor and a child's helper (sandbox shim or leash), and the
//! pipe that a leash reports by.
//!
//! Owns the messages and their framing: a length of four bytes (little-endian), then that many
//! bytes of JSON. Descriptors travel beside the first byte of a message; which ones is said at the
//! message. Both ends are the same binary, so an unknown field or another version is an error,
//! never tolerated. Must know no IO: it neither sends nor receives.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::engine::Engine;
use marshal_model::limits;
use marshal_model::{ExitStatus, ResourceLimits};

/// The version of these messages; both ends must have the same.
pub const VERSION: u32 = 1;

/// The name (argv[0]) under which the binary starts as the sandbox's outer helper.
pub const ARG0_OUTER: &str = "marshal-sandbox";
/// The name under which the outer helper starts pid 1 of the sandbox.
pub const ARG0_INIT: &str = "marshal-init";
/// The name under which the outer helper starts the holder of an id map.
pub const ARG0_IDMAP: &str = "marshal-idmap";
/// The name under which the binary starts as the leash of an agent without a sandbox.
pub const ARG0_LEASH: &str = "marshal-leash";
/// The name under which the binary starts as the helper that lets another program build the
/// sandbox.
pub const ARG0_ENGINE: &str = "marshal-engine";
/// The name under which it starts as pid 1; in a sandbox of another program it is the path, too.
pub const ARG0_ENTRY: &str = "/run/marshal/entry";
/// The name under which pid 1 starts the process that reads or writes one file.
pub const ARG0_FILES: &str = "marshal-files";
/// The name under which the binary starts as a probe of what a host has.
pub const ARG0_PROBE: &str = "marshal-probe";

/// The name under which the binary starts as the janitor of a supervisor's groups.
pub const ARG0_JANITOR: &str = "marshal-janitor";
/// The name under which the binary reads what was written over a workspace, as its owner.
pub const ARG0_UPPER: &str = "marshal-upper";

/// The order to a sandbox's entry to start a leash, for a command of the agent.
pub const ENTRY_LEASH: u8 = b't';
/// The order to a sandbox's entry to start the process that reads or writes one file.
pub const ENTRY_FILES: u8 = b'f';

/// The path of this program inside a sandbox.
pub const BINARY_PATH_INSIDE: &str = "/run/marshal/marshal";

/// The environment variable that marks every process of a child, helpers included.
pub const MARKER: &str = "MARSHAL_MARKER";

/// The user inside the sandbox, and its group: `agent`.
pub const AGENT_ID: u32 = 1000;

mod layers;

pub use layers::{ActiveLayers, OverlayLayer, OverlayLayers, Seccomp};

pub use marshal_model::SandboxStage as Stage;

/// The form of a [`Stage`] in a message: its word.
mod stage_word {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::Stage;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes fields by reference"
    )]
    pub(super) fn serialize<S: Serializer>(stage: &Stage, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(stage.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Stage, D::Error> {
        let word = String::deserialize(from)?;
        Stage::parse(&word).ok_or_else(|| D::Error::custom(format_args!("unknown stage {word:?}")))
    }
}

/// The first message to a helper. Beside it travel three descriptors: the agent's stdin, stdout
/// and stderr.
///
/// It is also the word to go on: a helper that must first be put into a cgroup is not sent it
/// before it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartMessage {
    /// [`VERSION`].
    pub version: u32,
    /// The pid of the supervisor: a helper with another parent came too late and ends.
    pub parent: u32,
    /// What to run.
    pub program: Program,
    /// The plan of the sandbox; `None` for the leash.
    pub plan: Option<ShimPlan>,
    /// The leash only: the working directory is entered through no link, even one that was added to
    /// the path after the directory was checked.
    pub no_links: bool,
    /// The engine that builds the sandbox, if not the helper itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Whether the helper is another binary than the supervisor. Then the supervisor's own binary,
    /// which the sandbox shows as [`MountSource::OwnBinary`], is one more descriptor, the last one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub program_beside: bool,
}

/// What to run, inside the sandbox if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Program and arguments, never empty. Without a slash, the program is looked up in the PATH
    /// of `env`.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The working directory, as seen from inside.
    pub cwd: String,
    /// Resource limits.
    pub limits: ProcessLimits,
}

/// Resource limits; RLIMIT_CORE is always 0. A lower hard limit of the supervisor applies instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLimits {
    /// RLIMIT_NOFILE.
    pub nofile: u64,
    /// RLIMIT_FSIZE, in bytes.
    pub fsize: u64,
    /// RLIMIT_NPROC, where it counts nobody else's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nproc: Option<u64>,
    /// The limits of all processes together. The helper does not apply them: the supervisor puts it
    /// into their control groups before it sends the plan.
    #[serde(skip)]
    pub group: ResourceLimits,
}

/// The sandbox, as data: made by `sandbox::plan`, executed by the shim in this order: ids,
/// namespaces, network, host name, mounts, limits, capabilities, Landlock, seccomp, program.
///
/// Resource groups are no part of it: the supervisor puts the helper there, and says so ([`CgroupReady`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShimPlan {
    /// Who the agent is outside.
    pub ids: HostIds,
    /// The network inside.
    pub network: NetworkMode,
    /// Ports of the own loopback that the supervisor listens on, for [`NetworkMode::Loopback`].
    pub listen: Vec<u16>,
    /// The host name inside.
    pub hostname: String,
    /// The file system inside, in the order of making.
    pub mounts: Vec<Mount>,
    /// Whether helpers can be started inside later: then the entry's socket is one more descriptor
    /// beside [`StartMessage`] and [`EnterMessage`], after the agent's pipes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_entry: bool,
    /// The least ABI of Landlock, 0 to 6, without which nothing runs; the highest that the kernel
    /// has is used.
    #[serde(default)]
    pub landlock_min_abi: u8,
    /// The filter of system calls.
    #[serde(default)]
    pub seccomp: Seccomp,
}

/// Who the user inside is on the host. It is never uid 0: procfs trusts uid 0 of the host whatever
/// it is called inside, and has no need of a capability for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum HostIds {
    /// A supervisor that is root: the slot's own uid, and the gid of the same number.
    Root {
        /// The slot's uid on the host.
        slot_uid: u32,
    },
    /// A supervisor of an ordinary user: its own ids.
    Own {
        /// Its uid.
        uid: u32,
        /// Its gid.
        gid: u32,
    },
}

impl HostIds {
    /// The uid and gid that the processes inside have on the host.
    #[must_use]
    pub const fn uid_and_gid(self) -> (u32, u32) {
        match self {
            Self::Root { slot_uid } => (slot_uid, slot_uid),
            Self::Own { uid, gid } => (uid, gid),
        }
    }
}

/// The network of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// A network namespace with only a loopback, which is up.
    Loopback,
    /// The host's network.
    Host,
}

/// One step of making the file system inside. Targets are absolute paths inside; directories on
/// the way are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Mount {
    /// A directory, file or device of the host, with all that is mounted below it.
    Tree {
        /// What.
        source: MountSource,
        /// The path inside.
        target: String,
        /// Read-only or writable.
        access: MountAccess,
        /// Whether it may be missing on the host.
        optional: bool,
        /// Its owner on disk, who becomes the user inside.
        idmap: Option<IdMap>,
        /// Device and inode at the time of planning: another directory at
        /// the same path is not what was meant.
        expect: Option<(u64, u64)>,
    },
    /// A writable view over a directory of the host that itself is never written.
    Overlay {
        /// The path inside.
        target: String,
        /// The directory, and the one that takes what is written.
        layers: Box<OverlayLayers>,
    },
    /// The same as on the host: a symbolic link as that link, a directory read-only, nothing as
    /// nothing.
    Mirror {
        /// Path, outside and inside.
        path: String,
    },
    /// An own file system in memory, gone with the child.
    Tmpfs {
        /// The path inside.
        target: String,
        /// Its size in bytes.
        bytes: u64,
        /// Its number of inodes.
        inodes: u64,
        /// Permission bits of its root.
        mode: u32,
    },
    /// The procfs of the own pid namespace.
    Proc {
        /// Only processes (`subset=pid`).
        pid_only: bool,
        /// What is covered, if it is there: paths below `/proc`.
        covered: Vec<String>,
        /// What is read-only, if it is there: paths below `/proc`.
        read_only: Vec<String>,
    },
    /// Terminals of the sandbox's own, at `/dev/pts` and `/dev/ptmx`.
    Terminals,
    /// A directory of the root.
    Dir {
        /// The path inside.
        target: String,
    },
    /// Nothing that can be read or written, over the file or directory that is there. If it is not,
    /// it was moved after the sandbox was planned, and nothing starts.
    Hidden {
        /// The path inside.
        target: String,
    },
    /// A directory or link that stays where it is: a mount of itself, which nobody inside can move or
    /// remove. If it is not there, nothing starts.
    Held {
        /// The path inside.
        target: String,
    },
    /// A file, directory or link that stays where it is and cannot be written: a read-only mount of
    /// itself. If it is not there, nothing starts.
    ReadOnly {
        /// The path inside.
        target: String,
    },
    /// Another text in the place of a file that is there, read-only. If it is not there, nothing
    /// starts.
    Replaced {
        /// The path inside.
        target: String,
        /// The text.
        text: String,
    },
    /// A small file of the root.
    File {
        /// The path inside.
        target: String,
        /// What it holds.
        text: String,
    },
    /// A symbolic link of the root.
    Link {
        /// The path inside.
        target: String,
        /// The target of the link.
        to: String,
    },
}

/// Where a tree comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A path of the host.
    Path(String),
    /// The binary that the shim itself runs.
    OwnBinary,
}

/// How a tree is mounted; set-uid bits never count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountAccess {
    /// Read-only, without devices.
    Ro,
    /// Writable, without devices.
    Rw,
    /// A device node, never executable.
    Device,
}

/// An id map of a mount: this owner on disk is the user inside. Nobody else is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdMap {
    /// The owner's uid on disk.
    pub uid: u32,
    /// The owner's gid on disk.
    pub gid: u32,
    /// Whether the tree may be mounted without the map where its file system cannot be mapped.
    pub or_plain: bool,
}

/// What the outer helper passes to pid 1. Beside it travel the agent's stdin, stdout and stderr,
/// then one descriptor for every [`OpenedMount::Tree`], in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnterMessage {
    /// The message that the outer helper got.
    pub start: StartMessage,
    /// What it opened: one entry for each of the plan's mounts.
    pub opened: Vec<OpenedMount>,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// The content of the file of [`Seccomp::File`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// The opened source of one mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum OpenedMount {
    /// It has none, or it is optional and missing.
    Nothing,
    /// A tree, as a descriptor.
    Tree {
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// A symbolic link that is to be the same inside.
    Link {
        /// The target of the link.
        to: String,
    },
}

/// A report of a helper to the supervisor: of a sandbox by the control socket, of a leash by a
/// pipe.
/// `Started` or `Failed` comes once, and first but for
/// `Listening`; after `Started` comes `Ended`. A socket that ends without them is a helper that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum HelperReport {
    /// The sandbox's network stands, and its ports are listened on: beside this message travel the
    /// sockets, in the order of [`ShimPlan::listen`]. Nobody inside has them. Sent only where the
    /// plan names ports.
    Listening {
        /// The ports.
        ports: Vec<u16>,
    },
    /// The sandbox is complete, and the agent's program runs.
    Started {
        /// [`VERSION`].
        version: u32,
        /// Notes for the operator, one sentence each: for example an id map that a file system
        /// refused.
        notes: Vec<String>,
        /// The active layers; none for a leash.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        layers: Option<ActiveLayers>,
    },
    /// Nothing runs.
    Failed(SetupFailure),
    /// The agent has ended, and everything that it left was killed.
    Ended {
        /// How the process ended.
        end: WireExitStatus,
        /// Processes that were alive after it and were killed.
        killed: u32,
        /// Processes that could not be killed in time.
        left: u32,
    },
}

/// [`ExitStatus`], as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireExitStatus {
    /// It called exit with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl From<WireExitStatus> for ExitStatus {
    fn from(end: WireExitStatus) -> Self {
        match end {
            WireExitStatus::Code(code) => Self::Code(code),
            WireExitStatus::Signal(signal) => Self::Signal(signal),
        }
    }
}

/// The second message to the outer helper of a sandbox: it is in its control groups, so that
/// whatever it starts from now on does too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupReady;

/// An order of the supervisor to a helper after its start. The end of the socket is the order to
/// kill everything and exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelperCommand {
    /// SIGINT to the agent's process group.
    Interrupt,
    /// SIGTERM to the agent's process group.
    Terminate,
    /// SIGKILL to everything.
    Kill,
}

/// A set-up that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetupFailure {
    /// The stage that failed.
    #[serde(with = "stage_word")]
    pub stage: Stage,
    /// What was being done, as a fragment: `open`, `mount`, `unshare the namespaces`.
    pub what: String,
    /// The path of the operation, if it has one.
    pub path: Option<String>,
    /// The kernel's error number, if a system call failed.
    pub errno: Option<i32>,
}

impl SetupFailure {
    /// What to do about it; `None` if that is unknown.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        const EPERM: i32 = 1;
        const ENOENT: i32 = 2;
        const EACCES: i32 = 13;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const EOPNOTSUPP: i32 = 95;
        match (self.stage, self.errno) {
            (Stage::Userns, Some(EPERM | EACCES)) => Some(
                "this kernel denies user namespaces to ordinary users: see \
                 kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, \
                 or the seccomp profile of the container around marshal",
            ),
            (Stage::Userns, Some(ENOSPC)) => {
                Some("the limit user.max_user_namespaces (or a sibling of it) is reached or 0")
            }
            (Stage::Userns, Some(EINVAL)) => Some("this kernel lacks one of the namespaces"),
            (Stage::Proc, Some(EPERM)) => Some(
                "procfs can be mounted only if the /proc outside is fully visible: the container \
                 around marshal must not mask /proc",
            ),
            (Stage::Idmap, Some(EINVAL | EOPNOTSUPP | EPERM)) => Some(
                "this file system cannot be mounted with an id map: use workspace mode \"copy\", \
                 or keep the state directory on another file system",
            ),
            (Stage::Overlay, _) => Some(
                "an overlay is not possible here: it needs Linux 5.19 or later, a state directory on \
                 a file system with extended attributes that is not an overlay itself, and a \
                 workspace without mounts in it; otherwise use workspace mode \"copy\"",
            ),
            (Stage::Mount, Some(ENOENT)) if self.what == "hide" => Some(
                "a path that the mask hides was moved or became unreachable after this session \
                 started: start a new session",
            ),
            (Stage::Mount, Some(ENOENT)) => {
                Some("it does not exist on this host: correct the sandbox profile or the path")
            }
            (Stage::Mount, Some(EPERM)) => Some(
                "mounting is denied here: see the seccomp profile and the capabilities of the \
                 container around marshal",
            ),
            (Stage::Mount, Some(EACCES)) => Some("the user that runs marshal cannot reach it"),
            (Stage::Exec, Some(ENOENT)) => Some(
                "inside the sandbox only /usr and the profile's ro_bind directories are visible; \
                 a script whose interpreter is missing gives the same error",
            ),
            (Stage::Exec, Some(EACCES)) => Some("it is not executable for the agent's user"),
            _ => None,
        }
    }

    /// The kernel's error as text.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.errno
            .map(|errno| std::io::Error::from_raw_os_error(errno).to_string())
    }
}

impl std::fmt::Display for SetupFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.stage, self.what)?;
        if let Some(path) = &self.path {
            write!(f, " {path:?}")?;
        }
        if let Some(reason) = self.reason() {
            write!(f, ": {reason}")?;
        }
        if let Some(hint) = self.hint() {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

/// A message that cannot be sent or read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It is too long.
    #[error("a control message of {0} bytes is longer than {max}", max = limits::SHIM_MESSAGE_BYTES)]
    TooLong(usize),
    /// It is no such message.
    #[error("a control message cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// The number of bytes before every message.
pub const HEADER_BYTES: usize = 4;

/// A message with its header.
///
/// # Errors
/// When it is longer than [`limits::SHIM_MESSAGE_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - HEADER_BYTES;
    match u32::try_from(length) {
        Ok(short) if length <= limits::SHIM_MESSAGE_BYTES => {
            bytes[..HEADER_BYTES].copy_from_slice(&short.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(FrameError::TooLong(length)),
    }
}

/// The length of the message that follows a header.
///
/// # Errors
/// When it is longer than [`limits::SHIM_MESSAGE_BYTES`].
pub fn body_length(header: [u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(header) as usize;
    if length > limits::SHIM_MESSAGE_BYTES {
        return Err(FrameError::TooLong(length));
    }
    Ok(length)
}

/// Reads a message without its header.
///
/// # Errors
/// When it is not exactly such a message.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(body)?)
}

/// Takes the first whole message out of a buffer, if one is there.
///
/// # Errors
/// When what stands there is no such message.
pub fn take_message<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> Result<Option<T>, FrameError> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let end = HEADER_BYTES + body_length(*header)?;
    let Some(frame) = buffer.get(HEADER_BYTES..end) else {
        return Ok(None);
    };
    let message = decode(frame)?;
    buffer.drain(..end);
    Ok(Some(message))
}

#[cfg(test)]
mod tests;
