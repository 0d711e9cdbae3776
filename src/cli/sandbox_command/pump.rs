//! Passes the input and the outputs of a sandboxed command through unchanged.
//!
//! One thread for each, with blocking reads and writes: the other end may be a terminal, a file, a
//! pipe or a socket. Reports the end of the input, and when an output has no reader any more. Must
//! not know what follows from that.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

/// An event of a pump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PumpEvent {
    /// The input has ended, and the command's stdin is closed.
    InputEnded,
    /// An output has no reader any more.
    OutputLost,
    /// An output of the command has ended and was passed on completely.
    OutputEnded,
}

/// Room for the events of all pumps, so that no pump blocks on sending.
const EVENTS: usize = 4;
/// Bytes that are passed at once: the size of a pipe.
const CHUNK: usize = 64 << 10;

/// The command's end of each pump.
#[derive(Debug)]
pub(super) struct CommandPipes {
    /// The command's stdin.
    pub(super) stdin: OwnedFd,
    /// The command's stdout.
    pub(super) stdout: OwnedFd,
    /// The command's stderr.
    pub(super) stderr: OwnedFd,
}

/// This program's own input and outputs. Its stdout is replaced by /dev/null, so that the reader
/// sees the end when the command's stdout ends.
#[derive(Debug)]
pub(super) struct OwnStreams {
    input: File,
    output: File,
    errors: File,
}

impl OwnStreams {
    /// Takes the streams over.
    pub(super) fn take() -> io::Result<Self> {
        let own = Self {
            input: File::from(rustix::io::dup(rustix::stdio::stdin())?),
            output: File::from(rustix::io::dup(rustix::stdio::stdout())?),
            errors: File::from(rustix::io::dup(rustix::stdio::stderr())?),
        };
        let null = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(null.as_fd())?;
        Ok(own)
    }
}

/// Starts the three pumps.
pub(super) fn start(own: OwnStreams, ends: CommandPipes) -> io::Result<mpsc::Receiver<PumpEvent>> {
    let (sender, events) = mpsc::channel(EVENTS);
    let OwnStreams {
        input,
        output,
        errors,
    } = own;
    let sender_of_pump = sender.clone();
    let stdin = File::from(ends.stdin);
    spawn("input", move || {
        feed(input, stdin);
        // The receiver is dropped when the command has ended.
        let _ = sender_of_pump.blocking_send(PumpEvent::InputEnded);
    })?;
    for (name, from, to) in [
        ("output", ends.stdout, output),
        ("errors", ends.stderr, errors),
    ] {
        let sender_of_pump = sender.clone();
        spawn(name, move || {
            let _ = sender_of_pump.blocking_send(pass(File::from(from), to));
        })?;
    }
    Ok(events)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map(drop)
}

/// Passes the input on until its end. Reading continues even if the command has closed its stdin,
/// because the end of the input starts the stop ladder.
fn feed(mut from: File, to: File) {
    let mut to = Some(to);
    let mut chunk = vec![0; CHUNK];
    while let Ok(got @ 1..) = read(&mut from, &mut chunk) {
        if to
            .as_mut()
            .is_some_and(|to| write(to, &chunk[..got]).is_err())
        {
            to = None;
        }
    }
}

/// Passes an output on until its end.
fn pass(mut from: File, mut to: File) -> PumpEvent {
    let mut chunk = vec![0; CHUNK];
    while let Ok(got @ 1..) = read(&mut from, &mut chunk) {
        if write(&mut to, &chunk[..got]).is_err() {
            return PumpEvent::OutputLost;
        }
    }
    PumpEvent::OutputEnded
}

fn read(from: &mut File, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(from, PollFlags::IN);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn write(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(to, PollFlags::OUT),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until a file is ready: another process that shares the descriptor may have made it
/// non-blocking.
fn wait(file: &File, flags: PollFlags) {
    let _ = poll(&mut [PollFd::new(file, flags)], None);
}
