//! What a person sees: a program at a terminal of some width, and the screen that it leaves.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// Rows of the terminal: nothing scrolls away.
const ROWS: u16 = 500;

/// The screen when the program has ended, and how it ended.
pub(crate) fn screen(command: &mut Command, columns: u16) -> (String, ExitStatus) {
    screen_typed(command, columns, b"")
}

/// The same after something was typed before the program read it.
pub(crate) fn screen_typed(
    command: &mut Command,
    columns: u16,
    typed: &[u8],
) -> (String, ExitStatus) {
    let (master, slave) = terminal(columns);
    rustix::io::write(&master, typed).expect("typed");
    let end = || slave.try_clone().expect("the terminal");
    let child = command.stdin(end()).stdout(end()).stderr(end()).spawn();
    let mut child = child.expect("it starts");
    // Only the program holds it now, so the reader ends with the last process there.
    drop(slave);
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::null());
    command.stderr(std::process::Stdio::null());
    let reader = std::thread::spawn(move || {
        let size = (NonZeroU16::new(ROWS), NonZeroU16::new(columns));
        let (Some(rows), Some(columns)) = size else {
            panic!("a terminal without a size");
        };
        let mut parser = vt100::Parser::new(rows, columns, 0);
        let mut master = std::fs::File::from(master);
        let mut piece = [0; 4096];
        // EIO once nobody has the terminal open.
        while let Ok(count @ 1..) = master.read(&mut piece) {
            parser.process(&piece[..count]);
        }
        // Row by row: a line that is too long is wrapped, as it is for a person.
        let rows = parser.screen().rows(0, columns.get());
        let rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        rows.join("\n").trim_end().to_owned()
    });
    let status = child.wait().expect("it ends");
    (reader.join().expect("its screen"), status)
}

/// A program at a terminal, while a person types.
pub(crate) struct TypedProgram {
    pub(crate) child: Child,
    /// The program's end of the terminal.
    pub(crate) slave: OwnedFd,
    master: File,
    /// What it wrote so far.
    seen: Arc<Mutex<String>>,
}

impl TypedProgram {
    pub(crate) fn start(command: &mut Command, columns: u16) -> Self {
        let (master, slave) = terminal(columns);
        let end = || slave.try_clone().expect("the terminal");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn();
        let (master, seen) = (File::from(master), Arc::<Mutex<String>>::default());
        let mut screen = master.try_clone().expect("the terminal");
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..count]).into_owned();
                kept.lock().expect("the text").push_str(&text);
            }
        });
        Self {
            child: child.expect("it starts"),
            slave,
            master,
            seen,
        }
    }

    pub(crate) fn output(&self) -> String {
        self.seen.lock().expect("the text").clone()
    }

    /// Waits until the program has written this.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.output().contains(text) {
            assert!(Instant::now() < end, "no {text:?} in {:?}", self.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("typed");
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&self.master, size).expect("its size");
    }
}

impl Drop for TypedProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a new terminal.
fn terminal(columns: u16) -> (OwnedFd, OwnedFd) {
    let master =
        rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
    rustix::pty::grantpt(&master).expect("granted");
    rustix::pty::unlockpt(&master).expect("unlocked");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("its name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(&name, flags, Mode::empty()).expect("opened");
    let size = Winsize {
        ws_row: ROWS,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(slave.as_fd(), size).expect("its size");
    (master, slave)
}
