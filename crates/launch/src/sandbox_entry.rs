//! The supervisor's end of a sandbox entry: commands and files inside the sandbox of a running
//! child.
//!
//! Each operation starts a helper with its own control lines: a leash around a command, or the
//! process that reads or writes one file. Dropping the returned value ends it. Reports of such a
//! helper are as untrusted as the agent and come through a pipe ([`OneWayLink`]): the helper runs
//! as the agent's user, so the agent can take its descriptors. Must not know policy decisions.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::control::{self, Control, OneWayLink};
use super::{ProcessLimits, SpawnError};
use marshal_model::ExitStatus;
use marshal_model::limits::{CLIENT_FILE_BYTES, CLIENT_FILE_TIMEOUT, SHIM_START};
use marshal_wire::files::{FileFailure, FileFailureKind, FileOperation, FileReport};
use marshal_wire::shim::{
    self, ENTRY_FILES, ENTRY_LEASH, HEADER_BYTES, HelperCommand, HelperReport, MARKER, Program,
    StartMessage, VERSION,
};

/// Pid 1, as those see it whom it started.
const PID_1: u32 = 1;

/// An entry into a running sandbox.
#[derive(Debug)]
pub struct SandboxEntry {
    socket: OwnedFd,
    marker: String,
}

/// A command to run inside the sandbox.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment; only `MARSHAL_MARKER` is added.
    pub env: Vec<(String, String)>,
    /// The working directory inside, entered without following links.
    pub cwd: String,
    /// Resource limits.
    pub limits: ProcessLimits,
}

/// A command that runs inside. Dropping it kills it with everything that it started.
#[derive(Debug)]
pub struct RunningCommand {
    control: Control,
}

/// The supervisor's ends of a command's pipes.
#[derive(Debug)]
pub struct CommandPipes {
    /// Its stdin.
    pub stdin: pipe::Sender,
    /// Its stdout.
    pub stdout: pipe::Receiver,
    /// Its stderr.
    pub stderr: pipe::Receiver,
}

/// Why a file was neither read nor written, as far as that is known.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operation was refused, or the system call failed.
    #[error("{}", .0.what)]
    Failed(FileFailure),
    /// The process for the operation could not be started.
    #[error("the sandbox cannot start the operation: {0}")]
    NotStarted(String),
    /// The process ended early, or sent an invalid report.
    #[error("the sandbox did not complete the operation: {0}")]
    Lost(String),
    /// It took too long.
    #[error("the operation took longer than {limit:?}", limit = CLIENT_FILE_TIMEOUT)]
    TimedOut,
}

impl FileError {
    /// Whether a file may have been written in spite of the error.
    #[must_use]
    pub fn may_be_written(&self) -> bool {
        match self {
            Self::Failed(failure) => failure.kind == FileFailureKind::Unsure,
            Self::NotStarted(_) => false,
            Self::Lost(_) | Self::TimedOut => true,
        }
    }
}

impl SandboxEntry {
    /// An entry and the end of it that goes to pid 1.
    pub(super) fn open(marker: &str) -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Nobody has anything to say here.
        shutdown(&socket, Shutdown::Read)?;
        let marker = marker.to_owned();
        Ok((Self { socket, marker }, theirs))
    }

    /// Starts a helper of that kind; returns the supervisor's ends of its control lines.
    fn request_helper(&self, kind: u8) -> io::Result<(StdStream, OwnedFd)> {
        let lines = OneWayLink::open()?;
        let rights = [lines.helper_orders.as_fd(), lines.helper_reports.as_fd()];
        let message = SendAncillaryMessage::ScmRights(&rights);
        let mut space = vec![MaybeUninit::uninit(); message.size()];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(message) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&[kind])], &mut control, flags)?;
        Ok((lines.orders, lines.reports))
    }

    /// Starts a command; returns it and its stdout and stderr as one stream. Its
    /// stdin is at its end. Dropping the future ends what was started.
    ///
    /// # Errors
    /// Every error means that nothing runs.
    pub async fn run(
        &self,
        exec_request: ExecRequest,
    ) -> Result<(RunningCommand, pipe::Receiver), SpawnError> {
        let own_end = |end| pipe::Receiver::from_owned_fd(end).map_err(SpawnError::Fork);
        // Nobody holds the writing end: there is nothing to read.
        let (stdin, _) = new_pipe()?;
        let (output, write) = new_pipe()?;
        let errors = write.try_clone().map_err(SpawnError::Fork)?;
        let output = own_end(output)?;
        let running = self.start(exec_request, [stdin, write, errors]).await?;
        Ok((running, output))
    }

    /// Starts a command; returns it and its pipes. Dropping the future ends what was started.
    ///
    /// # Errors
    /// Every error means that nothing runs.
    pub async fn run_attached(
        &self,
        exec_request: ExecRequest,
    ) -> Result<(RunningCommand, CommandPipes), SpawnError> {
        let own_end = |end| pipe::Receiver::from_owned_fd(end).map_err(SpawnError::Fork);
        let (read, stdin) = new_pipe()?;
        let (stdout, write) = new_pipe()?;
        let (stderr, write_errors) = new_pipe()?;
        let pipes = CommandPipes {
            stdin: pipe::Sender::from_owned_fd(stdin).map_err(SpawnError::Fork)?,
            stdout: own_end(stdout)?,
            stderr: own_end(stderr)?,
        };
        let stdio = [read, write, write_errors];
        let running = self.start(exec_request, stdio).await?;
        Ok((running, pipes))
    }

    /// Starts a command with these descriptors as stdin, stdout and stderr.
    async fn start(
        &self,
        exec_request: ExecRequest,
        stdio: [OwnedFd; 3],
    ) -> Result<RunningCommand, SpawnError> {
        let mut env = exec_request.env;
        env.retain(|(name, _)| name != MARKER);
        env.push((MARKER.to_owned(), self.marker.clone()));
        let message = shim::encode(&StartMessage {
            version: VERSION,
            parent: PID_1,
            program: Program {
                argv: exec_request.argv,
                env,
                cwd: exec_request.cwd,
                limits: exec_request.limits,
            },
            plan: None,
            no_links: true,
            engine: None,
            program_beside: false,
        })?;
        let began = self.start_command(&message, &stdio);
        // Ours are the last copies but the command's: its end must end the pipes.
        drop(stdio);
        let (mut control, rest) = began.map_err(SpawnError::Fork)?;
        let started = async {
            control.send(&message[rest..]).await?;
            control.next().await
        };
        let report = tokio::time::timeout(SHIM_START, started)
            .await
            .map_err(|_| SpawnError::TimedOut)?;
        match report {
            Ok(Some(HelperReport::Started {
                version: VERSION, ..
            })) => Ok(RunningCommand { control }),
            Ok(Some(HelperReport::Failed(failure))) => Err(failure.into()),
            Ok(Some(other)) => Err(SpawnError::HelperLost(format!(
                "unexpected report {other:?}"
            ))),
            Ok(None) => Err(SpawnError::HelperLost(
                "it ended without a report".to_owned(),
            )),
            Err(error) => Err(SpawnError::HelperLost(error.to_string())),
        }
    }

    /// Sends the first bytes of a command's message, its pipes beside them; how many bytes went.
    fn start_command(&self, message: &[u8], stdio: &[OwnedFd; 3]) -> io::Result<(Control, usize)> {
        let (socket, reports) = self.request_helper(ENTRY_LEASH)?;
        socket.set_nonblocking(true)?;
        let sent = control::send_first(&socket, message, &stdio.each_ref().map(AsFd::as_fd))?;
        Ok((Control::from_one_way(socket, reports)?, sent))
    }

    /// Reads lines of a file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub async fn read(&self, order: FileOperation) -> Result<String, FileError> {
        let text = self.transfer_file(order, &[]).await?;
        let text = text.ok_or_else(|| FileError::Lost("it returned no text".to_owned()))?;
        String::from_utf8(text).map_err(|_| FileError::Lost("the text is not UTF-8".to_owned()))
    }

    /// Writes a file; its text is on the disk when this returns.
    ///
    /// # Errors
    /// See [`FileError`].
    pub async fn write(&self, order: FileOperation, text: &str) -> Result<(), FileError> {
        self.transfer_file(order, text.as_bytes()).await.map(drop)
    }

    async fn transfer_file(
        &self,
        order: FileOperation,
        text: &[u8],
    ) -> Result<Option<Vec<u8>>, FileError> {
        let lost = |error: io::Error| FileError::Lost(error.to_string());
        let begun = self.request_helper(ENTRY_FILES);
        let (socket, reports) = begun.map_err(|error| FileError::NotStarted(error.to_string()))?;
        let talk = async {
            socket.set_nonblocking(true)?;
            let mut socket = UnixStream::from_std(socket)?;
            let mut reports = pipe::Receiver::from_owned_fd(reports)?;
            let message = shim::encode(&order).map_err(io::Error::other)?;
            socket.write_all(&message).await?;
            socket.write_all(text).await?;
            read_answer(&mut reports).await
        };
        let answer = tokio::time::timeout(CLIENT_FILE_TIMEOUT, talk)
            .await
            .map_err(|_| FileError::TimedOut)?;
        match answer.map_err(lost)? {
            (FileReport::Text { .. }, text) => Ok(Some(text)),
            (FileReport::Written, _) => Ok(None),
            (FileReport::Failed(failure), _) => Err(FileError::Failed(failure)),
        }
    }
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd), SpawnError> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|errno| SpawnError::Fork(errno.into()))
}

/// Reads the report of the process, and the text that follows it.
async fn read_answer(from: &mut pipe::Receiver) -> io::Result<(FileReport, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).await?;
    let mut body = vec![0; shim::body_length(header).map_err(io::Error::other)?];
    from.read_exact(&mut body).await?;
    let report = shim::decode(&body).map_err(io::Error::other)?;
    let mut text = Vec::new();
    if let FileReport::Text { bytes } = report {
        if bytes > CLIENT_FILE_BYTES as u64 {
            return Err(io::Error::other("the file is larger than the limit"));
        }
        from.take(bytes).read_to_end(&mut text).await?;
        if text.len() as u64 != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((report, text))
}

impl RunningCommand {
    /// How it ended, once no process of it is left; `None` if that is unknown. Cancel-safe.
    pub async fn wait(&mut self) -> Option<ExitStatus> {
        match self.control.next().await {
            Ok(Some(HelperReport::Ended { end, .. })) => Some(end.into()),
            _ => None,
        }
    }

    /// Kills it with everything that it started; [`RunningCommand::wait`] waits for the end.
    pub fn kill(&self) {
        // A leash that does not read its socket is ended when this value is dropped.
        let _ = self.control.send_order(HelperCommand::Kill);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{IoSliceMut, Write as _};

    use rustix::io::Errno;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;
    use marshal_model::ResourceLimits;

    /// What a helper holds, in the hands of whoever took it from there.
    fn stolen(pid_1s_end: &OwnedFd) -> (u8, OwnedFd, OwnedFd) {
        let mut kind = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut kind)];
        recvmsg(pid_1s_end, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).expect("an order");
        let mut rights = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                rights.extend(fds);
            }
        }
        let [socket, reports] = <[OwnedFd; 2]>::try_from(rights).expect("two descriptors");
        (kind[0], socket, reports)
    }

    /// Tries to give the supervisor a descriptor that it would have to close.
    fn plant(on: &OwnedFd) -> Errno {
        let (pipe_end, _) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let rights = [pipe_end.as_fd()];
        let message = SendAncillaryMessage::ScmRights(&rights);
        let mut space = vec![MaybeUninit::uninit(); message.size()];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(message));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(on, &[IoSlice::new(b"x")], &mut control, flags).expect_err("it took one")
    }

    fn send_report<T: serde::Serialize>(reports: OwnedFd, message: &T) {
        let bytes = shim::encode(message).expect("a message");
        File::from(reports).write_all(&bytes).expect("told");
    }

    #[tokio::test]
    async fn nothing_that_a_helper_holds_takes_a_descriptor_to_the_supervisor() {
        let (entry, pid_1s_end) = SandboxEntry::open("mark").expect("an entry");
        assert_eq!(plant(&pid_1s_end), Errno::PIPE);
        let exec_request = ExecRequest {
            argv: vec!["true".to_owned()],
            env: Vec::new(),
            cwd: "/".to_owned(),
            limits: ProcessLimits {
                nofile: 64,
                fsize: 1 << 20,
                nproc: None,
                group: ResourceLimits::NONE,
            },
        };
        let thief = async {
            tokio::task::yield_now().await;
            let (kind, socket, reports) = stolen(&pid_1s_end);
            assert_eq!(kind, ENTRY_LEASH);
            assert_eq!(plant(&socket), Errno::PIPE);
            assert_eq!(plant(&reports), Errno::NOTSOCK);
            let notes = Vec::new();
            let version = VERSION;
            let layers = None;
            let started = HelperReport::Started {
                version,
                notes,
                layers,
            };
            send_report(reports, &started);
            socket
        };
        let (run, socket) = tokio::join!(entry.run(exec_request), thief);
        let (mut running, _) = run.expect("it said that it runs");
        assert_eq!(plant(&socket), Errno::PIPE);
        // Nobody holds the pipe's other end any more.
        assert_eq!(running.wait().await, None);

        let order = FileOperation::Read {
            root: "/".to_owned(),
            path: "x".to_owned(),
            line: 1,
            limit: None,
        };
        let thief = async {
            tokio::task::yield_now().await;
            let (kind, socket, reports) = stolen(&pid_1s_end);
            assert_eq!(kind, ENTRY_FILES);
            assert_eq!(plant(&socket), Errno::PIPE);
            assert_eq!(plant(&reports), Errno::NOTSOCK);
            send_report(reports, &FileReport::Text { bytes: 0 });
            socket
        };
        let (read, _socket) = tokio::join!(entry.read(order), thief);
        assert_eq!(read.expect("an empty text"), "");
    }
}
