//! The input and the outputs of a command behind walls, passed through as they are.
//!
//! One thread each, with blocking reads and writes: what stands at the other end may be a terminal,
//! a file, a pipe or a socket. Tells when the input has ended, and when nobody takes an output any
//! more. Must not know what follows on that.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

/// What a pump has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PumpEvent {
    /// Nothing more comes in, and the command was told so.
    InputEnded,
    /// Nobody reads an output any more.
    OutputLost,
    /// An output of the command has ended and was passed on whole.
    OutputEnded,
}

/// Words that wait: each pump has one, and the input's another.
const WORDS: usize = 4;
/// Bytes that are passed at once: a pipe's size.
const CHUNK: usize = 64 << 10;

/// The other side of each pump.
#[derive(Debug)]
pub(super) struct CommandPipes {
    /// The command's stdin.
    pub(super) stdin: OwnedFd,
    /// The command's stdout.
    pub(super) stdout: OwnedFd,
    /// The command's stderr.
    pub(super) stderr: OwnedFd,
}

/// This program's own input and outputs, taken over: its stdout is then nowhere, so that it ends
/// when the command's does.
#[derive(Debug)]
pub(super) struct OwnStreams {
    input: File,
    output: File,
    errors: File,
}

impl OwnStreams {
    /// Takes them.
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
    let (tell, words) = mpsc::channel(WORDS);
    let OwnStreams {
        input,
        output,
        errors,
    } = own;
    let say = tell.clone();
    let stdin = File::from(ends.stdin);
    spawn("input", move || {
        feed(input, stdin);
        // The receiver is gone when nobody waits for anything any more.
        let _ = say.blocking_send(PumpEvent::InputEnded);
    })?;
    for (name, from, to) in [
        ("output", ends.stdout, output),
        ("errors", ends.stderr, errors),
    ] {
        let say = tell.clone();
        spawn(name, move || {
            let _ = say.blocking_send(pass(File::from(from), to));
        })?;
    }
    Ok(words)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map(drop)
}

/// Passes the input on to its end. A command that takes none is no reason to stop reading: the end
/// is what is waited for.
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

/// Passes an output on to its end.
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

/// Somebody shares the descriptor and made it non-blocking.
fn wait(file: &File, flags: PollFlags) {
    let _ = poll(&mut [PollFd::new(file, flags)], None);
}
