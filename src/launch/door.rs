//! The supervisor's end of a sandbox's door: commands and files inside the walls of a child that
//! runs.
//!
//! What is started is a helper of ours with a socket of its own: a leash around a command, or the
//! process that reads or writes one file. Dropping what is returned ends it. What such a helper
//! says is believed no more than the agent: it has the agent's user. Must not know what was judged.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::control::{self, Control};
use super::{Limits, SpawnError};
use crate::limits::{CLIENT_FILE_BYTES, CLIENT_FILE_WAIT, SHIM_START};
use crate::model::ExitStatus;
use crate::wire::files::{FileFailure, FileOrder, FileReport};
use crate::wire::shim::{
    self, DOOR_FILES, DOOR_LEASH, HEADER_BYTES, MARKER, Order, Program, Report, Start, VERSION,
};

/// Pid 1, as those see it whom it started.
const PID_1: u32 = 1;

/// A way into a sandbox that stands.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    marker: String,
}

/// A command for inside.
#[derive(Debug, Clone)]
pub struct Errand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment; beside it stands only `MARSHAL_MARKER`.
    pub env: Vec<(String, String)>,
    /// The working directory as seen inside, entered through no link.
    pub cwd: String,
    /// Resource limits.
    pub limits: Limits,
}

/// A command that runs inside. Dropped, it is killed with everything that it started.
#[derive(Debug)]
pub struct Running {
    control: Control,
}

/// Why a file was neither read nor written, as far as that is known.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It was refused, or the system did not let us.
    #[error("{}", .0.what)]
    Failed(FileFailure),
    /// The process that does it could not be started, ended, or said nonsense.
    #[error("the sandbox did not carry it out: {0}")]
    Lost(String),
    /// It took too long.
    #[error("it took longer than {limit:?}", limit = CLIENT_FILE_WAIT)]
    TimedOut,
}

impl Door {
    /// A door and the end of it that goes to pid 1.
    pub(super) fn make(marker: &str) -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let marker = marker.to_owned();
        Ok((Self { socket, marker }, theirs))
    }

    /// Has a helper of that kind started; gives the socket to it.
    fn send(&self, kind: u8) -> io::Result<StdStream> {
        let (ours, theirs) = StdStream::pair()?;
        let rights = [theirs.as_fd()];
        let message = SendAncillaryMessage::ScmRights(&rights);
        let mut space = vec![MaybeUninit::uninit(); message.size()];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(message) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&[kind])], &mut control, flags)?;
        Ok(ours)
    }

    /// Starts a command; gives it and what it writes to stdout and stderr, in one stream. Its
    /// stdin is at its end. Dropping the future ends what was begun.
    ///
    /// # Errors
    /// Every error means that nothing runs.
    pub async fn run(&self, errand: Errand) -> Result<(Running, pipe::Receiver), SpawnError> {
        let mut env = errand.env;
        env.retain(|(name, _)| name != MARKER);
        env.push((MARKER.to_owned(), self.marker.clone()));
        let message = shim::encode(&Start {
            version: VERSION,
            parent: PID_1,
            program: Program {
                argv: errand.argv,
                env,
                cwd: errand.cwd,
                limits: errand.limits,
            },
            walls: None,
            no_links: true,
        })?;
        let began = self.begin(&message).map_err(SpawnError::Fork)?;
        let (mut control, rest, output) = began;
        let started = async {
            control.send(&message[rest..]).await?;
            control.next().await
        };
        let report = tokio::time::timeout(SHIM_START, started)
            .await
            .map_err(|_| SpawnError::TimedOut)?;
        match report {
            Ok(Some(Report::Started {
                version: VERSION, ..
            })) => Ok((Running { control }, output)),
            Ok(Some(Report::Failed(failure))) => Err(failure.into()),
            Ok(Some(other)) => Err(SpawnError::HelperLost(format!("it said {other:?}"))),
            Ok(None) => Err(SpawnError::HelperLost("it ended".to_owned())),
            Err(error) => Err(SpawnError::HelperLost(error.to_string())),
        }
    }

    /// Sends the first bytes of a command's message, its pipes beside them; how many bytes went.
    fn begin(&self, message: &[u8]) -> io::Result<(Control, usize, pipe::Receiver)> {
        let socket = self.send(DOOR_LEASH)?;
        // Nobody holds the writing end: there is nothing to read.
        let (stdin, _) = pipe_with(PipeFlags::CLOEXEC)?;
        let (output, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let pipes = [stdin.as_fd(), write.as_fd(), write.as_fd()];
        socket.set_nonblocking(true)?;
        let sent = control::send_first(&socket, message, &pipes)?;
        let output = pipe::Receiver::from_owned_fd(output)?;
        Ok((Control::new(socket)?, sent, output))
    }

    /// Has a file read: its lines.
    ///
    /// # Errors
    /// See [`FileError`].
    pub async fn read(&self, order: FileOrder) -> Result<String, FileError> {
        let text = self.file(order, &[]).await?;
        let text = text.ok_or_else(|| FileError::Lost("it gave no text".to_owned()))?;
        String::from_utf8(text).map_err(|_| FileError::Lost("it gave no UTF-8".to_owned()))
    }

    /// Has a file written; its text is on the disk when this returns.
    ///
    /// # Errors
    /// See [`FileError`].
    pub async fn write(&self, order: FileOrder, text: &str) -> Result<(), FileError> {
        self.file(order, text.as_bytes()).await.map(drop)
    }

    async fn file(&self, order: FileOrder, text: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        let lost = |error: io::Error| FileError::Lost(error.to_string());
        let socket = self.send(DOOR_FILES).map_err(lost)?;
        let talk = async {
            socket.set_nonblocking(true)?;
            let mut socket = UnixStream::from_std(socket)?;
            let message = shim::encode(&order).map_err(io::Error::other)?;
            socket.write_all(&message).await?;
            socket.write_all(text).await?;
            answer(&mut socket).await
        };
        let answer = tokio::time::timeout(CLIENT_FILE_WAIT, talk)
            .await
            .map_err(|_| FileError::TimedOut)?;
        match answer.map_err(lost)? {
            (FileReport::Text { .. }, text) => Ok(Some(text)),
            (FileReport::Written, _) => Ok(None),
            (FileReport::Failed(failure), _) => Err(FileError::Failed(failure)),
        }
    }
}

/// What the process says of its file, and the text that follows.
async fn answer(socket: &mut UnixStream) -> io::Result<(FileReport, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    socket.read_exact(&mut header).await?;
    let mut body = vec![0; shim::body_bytes(header).map_err(io::Error::other)?];
    socket.read_exact(&mut body).await?;
    let report = shim::decode(&body).map_err(io::Error::other)?;
    let mut text = Vec::new();
    if let FileReport::Text { bytes } = report {
        if bytes > CLIENT_FILE_BYTES as u64 {
            return Err(io::Error::other("it is longer than it may be"));
        }
        socket.take(bytes).read_to_end(&mut text).await?;
        if text.len() as u64 != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((report, text))
}

impl Running {
    /// How it ended, once nothing of it is left; `None` if nobody can say. Nothing is lost if this
    /// is dropped.
    pub async fn ended(&mut self) -> Option<ExitStatus> {
        match self.control.next().await {
            Ok(Some(Report::Ended { end, .. })) => Some(end.into()),
            _ => None,
        }
    }

    /// Has it killed, with everything that it started; [`Running::ended`] says when.
    pub fn kill(&self) {
        // A leash that does not hear is ended by the drop of this.
        let _ = self.control.order(Order::Kill);
    }
}
