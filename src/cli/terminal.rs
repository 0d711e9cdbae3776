//! `marshal terminal`, inside a sandbox: runs a program at a pseudo-terminal of the sandbox, and passes
//! its input and output through pipes. So no program of a sandbox gets a terminal of the host.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// The exit code if there is no terminal.
const NO_TERMINAL: u8 = 125;
const CHUNK: usize = 16 << 10;

/// `terminal …`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The terminal's width
    #[arg(long, value_name = "COLUMNS", default_value_t = 80)]
    columns: u16,
    /// The terminal's height
    #[arg(long, value_name = "ROWS", default_value_t = 24)]
    rows: u16,
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
    let size = Winsize {
        ws_row: args.rows,
        ws_col: args.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&theirs, size)?;
    let mut command = Command::new("/proc/self/exe");
    // The Runner's way to make a terminal the controlling one of a program.
    command
        .arg0("marshal")
        .args(["runner", "--at-terminal", "--"])
        .args(&args.command)
        .stdin(Stdio::from(theirs.try_clone()?))
        .stdout(Stdio::from(theirs.try_clone()?))
        .stderr(Stdio::from(theirs));
    let mut child = command.spawn()?;
    drop(command);
    let mut keyboard = File::from(ours.as_fd().try_clone_to_owned()?);
    // It ends with this process: nothing else can end a blocked read of the input.
    thread::spawn(move || io::copy(&mut io::stdin(), &mut keyboard));
    let mut screen = File::from(ours);
    let mut chunk = vec![0; CHUNK];
    let mut output = io::stdout();
    // The kernel answers EIO when nobody has the terminal any more.
    while let Ok(length @ 1..) = screen.read(&mut chunk) {
        output.write_all(&chunk[..length])?;
        output.flush()?;
    }
    let status = child.wait()?;
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}
