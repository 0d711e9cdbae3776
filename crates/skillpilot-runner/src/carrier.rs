//! The carrier turns a Master's lines into files, and a Runner's files into lines.
//!
//! It follows only the commands that it wrote to the queue itself. Must not know the contents of
//! files, only where a command's result and output are. It ignores the paths in a Runner's files,
//! so a Runner cannot make it read any other file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::dir::{OpenMode, ReadOutcome, SessionDir, Subdirectory};
use super::error::{PutError, SessionError};
use super::record::now_ms;
use super::runner::session_id;
use super::watch::{DirChange, Watch};
use marshal_model::limits::{LINE_BYTES, READ_CHUNK_BYTES};
use marshal_wire::skillpilot::carrier::{
    CarrierMessage, OUTPUT_BYTES, PROTOCOL, PUT_TYPE, PutMessage,
};
use marshal_wire::skillpilot::{COMMAND_BYTES, CONTROL_BYTES, CommandName, StateFile};

/// The maximum number of commands that are followed at the same time.
pub(super) const FOLLOWED: usize = 64;
/// How long an ending Runner waits until the Master has received the last messages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A command that the Master put, and its progress.
#[derive(Debug, Default)]
struct FollowedCommand {
    output: Option<File>,
    offset: u64,
    /// The first bytes of an incomplete UTF-8 character at the end of the output.
    partial_char: Vec<u8>,
}

/// The state of a carrier.
struct Carrier {
    dir: Arc<SessionDir>,
    watch: Watch,
    followed: BTreeMap<CommandName, FollowedCommand>,
    last_state: Vec<u8>,
    last_heartbeat: Vec<u8>,
    /// The incomplete line that the Master is sending.
    line: Vec<u8>,
    poll: Duration,
    /// Whether this process also runs the Runner, which then ends with its Master.
    has_runner: bool,
}

/// A carrier in a thread beside the Runner of the same process.
#[derive(Debug)]
pub(super) struct CarrierThread {
    wake: OwnedFd,
    done: Receiver<()>,
}

impl CarrierThread {
    pub(super) fn start(
        dir: Arc<SessionDir>,
        session_id: &str,
        poll: Duration,
    ) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let woken = wake.try_clone()?;
        let (end, done) = sync_channel(1);
        let mut carrier = Carrier::new(dir, poll, true);
        carrier.send_hello(session_id)?;
        std::thread::spawn(move || {
            let served = carrier.serve(Some(&woken)).or_else(|error| {
                // The Master closed our standard output. This counts as a disconnect, like the end
                // of standard input.
                if error.kind() == io::ErrorKind::BrokenPipe {
                    carrier.master_left()
                } else {
                    Err(error)
                }
            });
            if let Err(error) = served {
                // The Master receives nothing any more, so its Runner ends and reports the reason.
                super::report_error(&SessionError::Carrier(error).to_string());
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
            }
            let _ = end.try_send(());
        });
        Ok(Self { wake, done })
    }

    /// Makes the carrier send the remaining messages, and waits for that.
    pub(super) fn finish(self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        let _ = self.done.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Carries files for a Master at standard input and output until the Master disconnects.
pub(super) fn carry(path: &Path, poll: Duration) -> Result<(), SessionError> {
    let dir = SessionDir::open(path, OpenMode::Carry)?;
    let id = session_id(&dir);
    let mut carrier = Carrier::new(Arc::new(dir), poll, false);
    carrier
        .send_hello(&id)
        .and_then(|()| carrier.serve(None))
        .map_err(SessionError::Carrier)
}

impl Carrier {
    fn new(dir: Arc<SessionDir>, poll: Duration, runs: bool) -> Self {
        Self {
            watch: Watch::new(
                &dir,
                &[
                    Subdirectory::Result,
                    Subdirectory::Output,
                    Subdirectory::State,
                ],
                true,
            ),
            dir,
            followed: BTreeMap::new(),
            last_state: Vec::new(),
            last_heartbeat: Vec::new(),
            line: Vec::new(),
            poll,
            has_runner: runs,
        }
    }

    fn send_hello(&self, session_id: &str) -> io::Result<()> {
        let mut next_seq = 1;
        for part in [
            Subdirectory::Queue,
            Subdirectory::Inflight,
            Subdirectory::Result,
        ] {
            self.dir.for_each_name(part, |name| {
                let after = CommandName::parse(name).map_or(1, |name| name.seq.saturating_add(1));
                next_seq = next_seq.max(after);
            })?;
        }
        let word = uuid::Uuid::new_v4().simple().to_string();
        write_message(&CarrierMessage::Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION"),
            runs: self.has_runner,
            session_id,
            word: &word,
            next_seq,
        })
    }

    fn serve(&mut self, woken: Option<&OwnedFd>) -> io::Result<()> {
        let stdin = rustix::stdio::stdin();
        let mut look_at = Instant::now();
        loop {
            let now = Instant::now();
            if look_at <= now {
                self.scan_directory()?;
                look_at = now + self.poll;
            }
            let left = Timespec::try_from(look_at.saturating_duration_since(Instant::now())).ok();
            let mut fds = vec![PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
            fds.extend(
                self.watch
                    .fd()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
            fds.extend(woken.map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if woken.is_some() && happened.last() == Some(&true) {
                return self.scan_directory();
            }
            if happened.first() == Some(&true) && !self.read_stdin()? {
                return self.master_left();
            }
            self.handle_changes()?;
        }
    }

    /// Stops the Runner of this process, which has no Master any more. Another process' Runner
    /// continues.
    fn master_left(&mut self) -> io::Result<()> {
        if self.has_runner {
            let stop = format!("{{\"mode\":\"graceful\",\"ts\":\"{}\"}}", now_ms());
            self.dir
                .write_atomic(Subdirectory::Ctl, "stop.json", stop.as_bytes(), false)?;
        }
        Ok(())
    }

    /// Reads the Master's next bytes; `false` if it disconnected.
    fn read_stdin(&mut self) -> io::Result<bool> {
        let mut chunk = vec![0; READ_CHUNK_BYTES];
        let got = match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
            Ok(0) => return Ok(false),
            Ok(got) => got,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        for byte in chunk.into_iter().take(got) {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.handle_line(&line)?;
            } else if self.line.len() >= LINE_BYTES {
                return Err(io::Error::other("a line of the Master is too long"));
            } else {
                self.line.push(byte);
            }
        }
        Ok(true)
    }

    fn handle_line(&mut self, line: &[u8]) -> io::Result<()> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let put: PutMessage<'_> = match serde_json::from_slice(line) {
            Ok(put) => put,
            Err(error) => {
                let why = format!("the line is not a valid message: {error}");
                return write_message(&CarrierMessage::Refused {
                    path: "",
                    why: &why,
                });
            }
        };
        match self.execute_put(&put) {
            Ok(()) => Ok(()),
            Err(error) => write_message(&CarrierMessage::Refused {
                path: &put.path,
                why: &error.to_string(),
            }),
        }
    }

    fn execute_put(&mut self, put: &PutMessage<'_>) -> Result<(), PutError> {
        let PutMessage {
            kind,
            path,
            content,
            stamp,
        } = put;
        if kind != PUT_TYPE {
            return Err(PutError::Type);
        }
        let mut object: Map<String, Value> = serde_json::from_str(content.get())?;
        if let Some(stamp) = stamp {
            let ms = i64::try_from(stamp.in_ms).unwrap_or(i64::MAX);
            let time = now_ms().saturating_add(ms).to_string();
            object.insert(stamp.member.clone().into_owned(), Value::String(time));
        }
        let (part, name, followed) = parse_target(path).ok_or(PutError::Target)?;
        if followed.is_some() && self.followed.len() >= FOLLOWED {
            return Err(PutError::Busy);
        }
        let text = Value::Object(object).to_string();
        if text.len() > COMMAND_BYTES {
            return Err(PutError::TooLong);
        }
        let durable = followed.is_some();
        self.dir
            .write_atomic(part, name, text.as_bytes(), durable)?;
        if let Some(command) = followed {
            self.followed.insert(command, FollowedCommand::default());
        }
        Ok(())
    }

    /// Forwards the changes in the directory since the last call.
    fn handle_changes(&mut self) -> io::Result<()> {
        let mut all = false;
        let mut grown = Vec::new();
        for happened in self.watch.take_changes() {
            match happened {
                DirChange::File(Subdirectory::State, name) => self.forward_state(&name)?,
                DirChange::File(Subdirectory::Result, name) => {
                    grown.extend(CommandName::parse(&name));
                }
                DirChange::File(_, name) => {
                    let stem = name.strip_suffix(".out");
                    grown.extend(stem.and_then(CommandName::parse_stem));
                }
                DirChange::Overflow => all = true,
            }
        }
        if all {
            return self.scan_directory();
        }
        grown.dedup();
        for command in grown {
            self.forward_command(&command)?;
        }
        Ok(())
    }

    /// Forwards everything, whether the kernel reported a change or not.
    fn scan_directory(&mut self) -> io::Result<()> {
        let commands: Vec<_> = self.followed.keys().cloned().collect();
        for command in commands {
            self.forward_command(&command)?;
        }
        self.forward_state("state.json")?;
        self.forward_state("heartbeat.json")
    }

    fn forward_state(&mut self, name: &str) -> io::Result<()> {
        let is_beat = match name {
            "state.json" => false,
            "heartbeat.json" => true,
            _ => return Ok(()),
        };
        let ReadOutcome::Regular(content) =
            self.dir.read(Subdirectory::State, name, CONTROL_BYTES)?
        else {
            return Ok(());
        };
        let last = if is_beat {
            &mut self.last_heartbeat
        } else {
            &mut self.last_state
        };
        if *last == content {
            return Ok(());
        }
        let is_first = last.is_empty();
        *last = content;
        if is_beat {
            // A heartbeat from before this start is no sign of a running Runner.
            return if is_first && !self.has_runner {
                Ok(())
            } else {
                write_message(&CarrierMessage::Heartbeat)
            };
        }
        match compact_json(&self.last_state)
            .filter(|_| !self.has_runner || is_of_this_process(&self.last_state))
        {
            Some(content) => write_message(&CarrierMessage::State { content: &content }),
            None => Ok(()),
        }
    }

    /// Forwards the new output and the result of a followed command.
    fn forward_command(&mut self, command: &CommandName) -> io::Result<()> {
        let Some(mut followed) = self.followed.remove(command) else {
            return Ok(());
        };
        // The result is read before the output: the Runner writes it last, so all output is there
        // already.
        let result =
            match self
                .dir
                .read(Subdirectory::Result, &command.file_name(), CONTROL_BYTES)?
            {
                ReadOutcome::Regular(content) => {
                    Some(compact_json(&content).ok_or("it is not JSON"))
                }
                ReadOutcome::Irregular(why) => Some(Err(why)),
                ReadOutcome::Missing => None,
            };
        let stem = command.stem();
        self.forward_output(command, &stem, &mut followed)?;
        match result {
            Some(Ok(content)) => write_message(&CarrierMessage::Result {
                command: &stem,
                content: &content,
            }),
            Some(Err(why)) => {
                let path = format!("result/{}", command.file_name());
                write_message(&CarrierMessage::Refused { path: &path, why })
            }
            None => {
                self.followed.insert(command.clone(), followed);
                Ok(())
            }
        }
    }

    fn forward_output(
        &self,
        command: &CommandName,
        stem: &str,
        of: &mut FollowedCommand,
    ) -> io::Result<()> {
        if of.output.is_none() {
            of.output = self
                .dir
                .open_regular(Subdirectory::Output, &command.output_file_name())?
                .regular();
        }
        let Some(output) = &of.output else {
            return Ok(());
        };
        let mut piece = vec![0; OUTPUT_BYTES];
        loop {
            let got = output.read_at(&mut piece, of.offset)?;
            let Some(new) = piece.get(..got).filter(|new| !new.is_empty()) else {
                return Ok(());
            };
            of.offset += got as u64;
            of.partial_char.extend_from_slice(new);
            let whole = whole_characters(&of.partial_char);
            let bytes: Vec<u8> = of.partial_char.drain(..whole).collect();
            let text = String::from_utf8_lossy(&bytes);
            if !text.is_empty() {
                write_message(&CarrierMessage::Output {
                    command: stem,
                    text: &text,
                })?;
            }
        }
    }
}

/// The number of bytes without an incomplete UTF-8 character at their end.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        // Invalid bytes are passed on and shown as replacement characters.
        Ok(_) | Err(_) => {
            let tail = bytes.len().saturating_sub(3);
            let begun = (tail..bytes.len()).find(|at| {
                bytes.get(*at..).is_some_and(|end| {
                    matches!(std::str::from_utf8(end), Err(error) if error.error_len().is_none() && error.valid_up_to() == 0)
                })
            });
            begun.unwrap_or(bytes.len())
        }
    }
}

fn compact_json(content: &[u8]) -> Option<Box<RawValue>> {
    // Makes it one line, however the file is formatted.
    let value: Value = serde_json::from_slice(content).ok()?;
    serde_json::value::to_raw_value(&value).ok()
}

/// Whether the Runner of this process wrote the state, and not an earlier one.
fn is_of_this_process(state: &[u8]) -> bool {
    serde_json::from_slice::<StateFile>(state)
        .is_ok_and(|state| state.runner_pid == std::process::id())
}

/// The place of a file that a Master may write: directory, name, and the command to follow.
fn parse_target(path: &str) -> Option<(Subdirectory, &str, Option<CommandName>)> {
    match path.split_once('/')? {
        ("queue", name) => Some((Subdirectory::Queue, name, Some(CommandName::parse(name)?))),
        ("ctl", name @ ("cancel.json" | "stop.json")) => Some((Subdirectory::Ctl, name, None)),
        ("state", name @ "lease.json") => Some((Subdirectory::State, name, None)),
        _ => None,
    }
}

fn write_message(message: &CarrierMessage<'_>) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
