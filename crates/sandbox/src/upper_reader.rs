//! Reads the changes of an agent in its overlay, as the user who owns them.
//!
//! A process of its own, without root's rights, because an agent made these files. Its parent
//! passes it the open directory and reads its output from a pipe. The parent trusts this output
//! only as data of the agent. Must not know what it is used for.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use rustix::process::{DumpableBehavior, Signal};
use serde::{Deserialize, Serialize};

use super::workspace::overlay::upper_walk::{self, EntryForm, WalkDetail};
use super::workspace::{Owner, foreign_path};
use super::{control, privilege};
use marshal_model::UntrustedText;
use marshal_model::limits;
use marshal_wire::shim::{self, ARG0_UPPER, HEADER_BYTES};

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// The request to the process; the directory's descriptor travels with it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReaderOrder {
    /// The pid of its parent.
    parent: u32,
    /// The user it switches to: uid and gid.
    owner: Option<(u32, u32)>,
}

/// Its output messages, in order. The bytes of a regular file follow its message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum ReaderMessage {
    /// A changed path.
    Entry {
        /// The path below the workspace, as text without loss.
        path: String,
        /// Whether that text is the path itself, without escapes.
        plain: bool,
        /// The kind of change.
        form: EntryForm,
    },
    /// The end of the output.
    End {
        /// Why the output is incomplete, if it is.
        cut: Option<String>,
    },
}

/// Runs as that process. Its stdin is the socket for its request, its stdout the pipe for its
/// output.
pub(super) fn main() -> ExitCode {
    if privilege::close_inherited().is_err() {
        return ExitCode::FAILURE;
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let to_io_error = |failure: shim::SetupFailure| io::Error::other(failure.to_string());
    let socket = control::from_stdin()?;
    let (order, mut descriptors): (ReaderOrder, Vec<OwnedFd>) = control::receive(&socket)?;
    let upper = descriptors
        .pop()
        .ok_or_else(|| io::Error::other("the directory to read did not arrive"))?;
    let stay = || privilege::die_with_parent(Signal::KILL, Some(order.parent)).map_err(to_io_error);
    stay()?;
    if let Some((uid, gid)) = order.owner {
        privilege::become_user(uid, gid).map_err(to_io_error)?;
    }
    privilege::no_new_privileges().map_err(to_io_error)?;
    stay()?;
    // Other processes of that uid may run.
    privilege::set_dumpable(DumpableBehavior::NotDumpable).map_err(to_io_error)?;
    let mut out = BufWriter::with_capacity(CHUNK_BYTES, control::reports_from_stdout()?);
    let mut left = limits::OVERLAY_BYTES;
    let cut = upper_walk::walk(&upper, WalkDetail::Contents, &mut |entry| {
        let path = foreign_path(entry.path);
        let mut form = entry.form;
        let mut file = entry.file.map(File::from);
        if let EntryForm::File { size, .. } = form {
            if let Some(rest) = left.checked_sub(size) {
                left = rest;
            } else {
                let most = limits::OVERLAY_BYTES >> 20;
                let why = format!("is too large: the session wrote more than {most} MiB");
                form = EntryForm::Odd { why };
                file = None;
            }
        }
        let size = match form {
            EntryForm::File { size, .. } => size,
            _ => 0,
        };
        write_message(
            &mut out,
            &ReaderMessage::Entry {
                plain: path.raw().as_bytes() == entry.path,
                path: path.raw().to_owned(),
                form,
            },
        )?;
        let copied = match file {
            Some(file) => io::copy(&mut file.take(size), &mut out)?,
            None => 0,
        };
        if copied == size {
            Ok(())
        } else {
            Err(io::Error::other("a file was truncated while it was read"))
        }
    })?;
    write_message(
        &mut out,
        &ReaderMessage::End {
            cut: cut.map(|cut| cut.to_string()),
        },
    )?;
    out.flush()
}

fn write_message(out: &mut impl Write, line: &ReaderMessage) -> io::Result<()> {
    out.write_all(&shim::encode(line).map_err(io::Error::other)?)
}

/// A changed path, as its reader reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenEntry {
    /// Its path below the workspace, for messages.
    pub path: UntrustedText,
    /// Its path, if it is UTF-8.
    pub utf8_path: Option<String>,
    /// The kind of change.
    pub form: EntryForm,
}

/// A running reader process.
#[derive(Debug)]
pub struct UpperReader {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Drop for UpperReader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl UpperReader {
    /// Starts a reader for the directory `upper`, which switches to its `owner`; `program` is this
    /// binary.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(program: &Path, upper: impl AsFd, owner: Option<Owner>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut child = Command::new(program)
            .arg0(ARG0_UPPER)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let Some(lines) = child.stdout.take() else {
            return Err(io::Error::other(
                "the pipe of the reader process is missing",
            ));
        };
        let reader = Self {
            child,
            lines: BufReader::with_capacity(CHUNK_BYTES, lines),
        };
        let order = ReaderOrder {
            parent: std::process::id(),
            owner: owner.map(|owner| (owner.uid, owner.gid)),
        };
        control::send(&ours, &order, &[upper.as_fd()])?;
        Ok(reader)
    }

    /// Calls `each` for every change, a directory before its content, with the bytes of a regular
    /// file, of which `each` may read any number. Returns why the output is incomplete, if it is.
    ///
    /// # Errors
    /// The error of `each`, or of a reader that ended early.
    pub fn read(
        &mut self,
        each: &mut dyn FnMut(WrittenEntry, &mut dyn Read) -> io::Result<()>,
    ) -> io::Result<Option<String>> {
        loop {
            match self.read_message()? {
                ReaderMessage::Entry { path, plain, form } => {
                    let size = match form {
                        EntryForm::File { size, .. } => size,
                        _ => 0,
                    };
                    // The path is later joined to directories of the workspace, so it must not
                    // climb out of them.
                    if plain && path.split('/').any(|part| matches!(part, "" | "." | "..")) {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    let written = WrittenEntry {
                        utf8_path: plain.then(|| path.clone()),
                        path: UntrustedText::new(path),
                        form,
                    };
                    let mut content = (&mut self.lines).take(size);
                    each(written, &mut content)?;
                    io::copy(&mut content, &mut io::sink())?;
                    if content.limit() > 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                ReaderMessage::End { cut } => return Ok(cut),
            }
        }
    }

    fn read_message(&mut self) -> io::Result<ReaderMessage> {
        let mut header = [0; HEADER_BYTES];
        self.lines.read_exact(&mut header)?;
        let mut body = vec![0; shim::body_length(header).map_err(io::Error::other)?];
        self.lines.read_exact(&mut body)?;
        shim::decode(&body).map_err(io::Error::other)
    }
}
