//! Reads what an agent wrote over its workspace, as the user who owns it.
//!
//! A process of its own, without root's rights: what stands there was made by an agent. Its parent
//! hands it the directory, open, and reads what it tells by a pipe; it believes nothing of that but
//! that it is what the agent wrote. Must not know what becomes of it.

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

/// What the process is told. Beside it travels the directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReaderOrder {
    /// Who started it.
    parent: u32,
    /// Whom it becomes: uid and gid.
    owner: Option<(u32, u32)>,
}

/// What it tells, one after another. The bytes of a plain file follow its line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum ReaderMessage {
    /// One thing.
    Entry {
        /// Its path below the workspace, as a text without loss.
        path: String,
        /// That text is the path itself.
        plain: bool,
        /// What it is.
        form: EntryForm,
    },
    /// That was all.
    End {
        /// Why it was not all, if it was not.
        cut: Option<String>,
    },
}

/// Runs as that process. Its stdin is the socket for its order, its stdout the pipe for what it
/// tells.
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
    let told = |failure: shim::SetupFailure| io::Error::other(failure.to_string());
    let socket = control::from_stdin()?;
    let (order, mut descriptors): (ReaderOrder, Vec<OwnedFd>) = control::receive(&socket)?;
    let upper = descriptors
        .pop()
        .ok_or_else(|| io::Error::other("no directory"))?;
    let stay = || privilege::die_with_parent(Signal::KILL, Some(order.parent)).map_err(told);
    stay()?;
    if let Some((uid, gid)) = order.owner {
        privilege::become_user(uid, gid).map_err(told)?;
    }
    privilege::no_new_privileges().map_err(told)?;
    stay()?;
    // Others of that uid may run.
    privilege::set_dumpable(DumpableBehavior::NotDumpable).map_err(told)?;
    let mut out = BufWriter::with_capacity(CHUNK_BYTES, control::reports_from_stdout()?);
    let mut left = limits::OVERLAY_BYTES;
    let cut = upper_walk::walk(&upper, WalkDetail::Contents, &mut |found| {
        let path = foreign_path(found.path);
        let mut form = found.form;
        let mut file = found.file.map(File::from);
        if let EntryForm::File { size, .. } = form {
            if let Some(rest) = left.checked_sub(size) {
                left = rest;
            } else {
                let most = limits::OVERLAY_BYTES >> 20;
                let why = format!("is too large: more than {most} MiB were written");
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
                plain: path.raw().as_bytes() == found.path,
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
            Err(io::Error::other("a file became shorter"))
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

/// One thing that an agent wrote, as its reader told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenEntry {
    /// Its path below the workspace, for messages.
    pub path: UntrustedText,
    /// Its path, if it is a text.
    pub utf8_path: Option<String>,
    /// What it is.
    pub form: EntryForm,
}

/// A reader that runs.
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
    /// Starts one for the directory `upper`, which becomes its `owner`; `program` is this binary.
    ///
    /// # Errors
    /// It cannot be started.
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
            return Err(io::Error::other("its pipe is missing"));
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

    /// Calls `each` for everything that was written, a directory before what is in it, with the
    /// bytes of a plain file, of which `each` reads as many as it likes. What comes back is why it
    /// was not all.
    ///
    /// # Errors
    /// What `each` gives; a reader that ended before its end.
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
                    // It is joined to directories of the workspace.
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
