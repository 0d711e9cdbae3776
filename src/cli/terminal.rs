//! `marshal terminal`, inside a sandbox: runs a program at a pseudo-terminal of the sandbox, and passes
//! its input and output through pipes. So no program of a sandbox gets a terminal of the host, and
//! the supervisor gets no descriptor of a sandbox.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use marshal_wire::terminal::{TerminalFrame, TerminalSize, take_frame};

/// The exit code if there is no terminal.
const NO_TERMINAL: u8 = 125;
const CHUNK: usize = 16 << 10;
/// How long the output of an ended program may be silent before it counts as complete. Another
/// process may still have the terminal open.
const QUIET: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// `terminal …`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The terminal's width
    #[arg(long, value_name = "COLUMNS", default_value_t = 80)]
    columns: u16,
    /// The terminal's height
    #[arg(long, value_name = "ROWS", default_value_t = 24)]
    rows: u16,
    /// The input is frames: what is typed, and changes of the size
    #[arg(long)]
    frames: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match relay(args) {
        Ok(code) => code.into(),
        Err(error) => {
            let _ = writeln!(io::stderr(), "marshal: cannot run at a terminal: {error}");
            NO_TERMINAL.into()
        }
    }
}

fn relay(args: &Args) -> io::Result<u8> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs: OwnedFd = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    let keyboard = File::from(ours.as_fd().try_clone_to_owned()?);
    let size = TerminalSize {
        rows: args.rows,
        columns: args.columns,
    };
    resize(&keyboard, size)?;
    let mut command = Command::new("/proc/self/exe");
    // The Runner's way to make a terminal the controlling one of a program. It ends with the thread
    // that starts it, so that is this one.
    command
        .arg0("marshal")
        .args(["runner", "--at-terminal", "--"])
        .args(&args.command)
        .stdin(Stdio::from(theirs.try_clone()?))
        .stdout(Stdio::from(theirs.try_clone()?))
        .stderr(Stdio::from(theirs));
    let mut child = command.spawn()?;
    drop(command);
    let takes_frames = args.frames;
    // It ends with this process: nothing else can end a blocked read of the input.
    thread::spawn(move || type_input(keyboard, takes_frames));
    let has_ended = Arc::new(AtomicBool::new(false));
    let screen = thread::spawn({
        let has_ended = Arc::clone(&has_ended);
        move || copy_output(File::from(ours), &has_ended)
    });
    let status = child.wait()?;
    has_ended.store(true, Ordering::Release);
    screen
        .join()
        .map_err(|_| io::Error::other("its output was lost"))??;
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}

fn type_input(mut keyboard: File, takes_frames: bool) -> io::Result<()> {
    let mut input = io::stdin().lock();
    if !takes_frames {
        return io::copy(&mut input, &mut keyboard).map(drop);
    }
    let mut buffer = Vec::new();
    let mut chunk = vec![0; CHUNK];
    while let length @ 1.. = input.read(&mut chunk)? {
        buffer.extend_from_slice(&chunk[..length]);
        while let Some(frame) = take_frame(&mut buffer).map_err(io::Error::other)? {
            match frame {
                TerminalFrame::Input(bytes) => keyboard.write_all(&bytes)?,
                TerminalFrame::Size(size) => resize(&keyboard, size)?,
            }
        }
    }
    Ok(())
}

fn resize(terminal: &File, size: TerminalSize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Copies what is written to the terminal, until nobody has it any more, or the program has ended
/// and nothing comes.
fn copy_output(mut screen: File, has_ended: &AtomicBool) -> io::Result<()> {
    let mut output = io::stdout();
    let mut chunk = vec![0; CHUNK];
    loop {
        // Read before the poll: what the program wrote is there once it has ended.
        let is_last = has_ended.load(Ordering::Acquire);
        match poll(&mut [PollFd::new(&screen, PollFlags::IN)], Some(&QUIET)) {
            Ok(0) if is_last => return Ok(()),
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // The kernel answers EIO when nobody has the terminal any more.
        let Ok(length @ 1..) = screen.read(&mut chunk) else {
            return Ok(());
        };
        output.write_all(&chunk[..length])?;
        output.flush()?;
    }
}
