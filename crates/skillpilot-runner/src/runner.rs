//! The Runner's main loop over events of the directory, the tool, signals and timers.
//!
//! Each round handles control (stop, cancel, lease) before new commands. A command is claimed by
//! its move to `inflight/`, and leaves that directory when its result is durable. So after a kill,
//! every command either has a result or is still in `inflight/`. The next start never runs it
//! again.

mod control;
mod recovery;
mod tool;

pub(super) use recovery::{SILENCE_MS, session_id};

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::RunnerConfig;
use super::carrier::CarrierThread;
use super::dir::{OpenMode, ReadOutcome, SessionDir, Subdirectory};
use super::error::{SessionError, ToolError};
use super::lease::Lease;
use super::record::{SessionLog, timestamp};
use super::running::{EndReason, RunningCommand, build_result};
use super::terminal::Tool;
use super::watch::{DirChange, Watch};
use marshal_wire::skillpilot::marker::{LineEndSkipper, Marker, PREFIX, Scanner};
use marshal_wire::skillpilot::{
    COMMAND_BYTES, CommandName, CommandStats, CommandStatus, MarkerMode, MarkerSpec, ResultFile,
    RunnerPhase, StopMode, read_command,
};
use recovery::{check_exclusive, recover, remove_leftovers};

/// The maximum number of known waiting commands; the others are found by a later scan.
const NAMES: usize = 100_000;
/// How long a tool may take until it is ready.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of pieces of output that are read before other work.
const PIECES: usize = 64;
/// The maximum number of commands that are answered without being run before other work.
const MAX_ANSWERS_PER_ROUND: usize = 32;

/// Whether the tool is ready for commands.
#[derive(Debug)]
enum ToolReadiness {
    /// No tool runs.
    NoTool,
    /// It was started, and its first line was typed.
    Starting(Scanner, Instant),
    /// It answered the first marker.
    Ready,
}

/// The state of a Runner.
struct Runner {
    dir: Arc<SessionDir>,
    config: RunnerConfig,
    log: SessionLog,
    watch: Watch,
    signals: SignalFd,
    queue: BTreeSet<CommandName>,
    tool: Option<Tool>,
    readiness: ToolReadiness,
    line_end: LineEndSkipper,
    /// Why no tool runs.
    tool_error: Option<ToolError>,
    /// Whether any tool has been ready.
    was_ready: bool,
    /// Whether a file of the queue that can be neither moved nor removed has been logged.
    has_logged_rejection: bool,
    running: Option<RunningCommand>,
    /// Results that could not be written yet: of the command that ran, and of commands that were
    /// answered unrun.
    pending_results: VecDeque<(CommandName, ResultFile)>,
    stop: Option<StopMode>,
    lease: Option<Lease>,
    /// Whether `ctl/` or the lease must be read.
    is_control_due: bool,
    next_scan: Instant,
    next_heartbeat: Instant,
    /// Whether the subdirectories must be checked; set with each heartbeat.
    is_directory_check_due: bool,
}

/// Runs a session until its end.
pub(super) fn run(path: &Path, config: RunnerConfig) -> Result<(), SessionError> {
    let dir = Arc::new(SessionDir::open(path, OpenMode::Run)?);
    check_exclusive(&dir)?;
    let mut mask = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        mask.add(signal);
    }
    // Before any other thread starts: threads inherit the signal mask.
    let signals = mask
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK))
        .map_err(SessionError::Signals)?;
    super::process_tree::become_subreaper().map_err(SessionError::Subreaper)?;
    let session_id = session_id(&dir);
    let mut record = SessionLog::open(&dir, session_id.clone());
    let failed = SessionError::Prepare;
    remove_leftovers(&dir, &mut record, config.stdio).map_err(failed)?;
    recover(&dir, &mut record).map_err(failed)?;
    // Before the carrier can report the state of an earlier start.
    record.set_phase(&dir, RunnerPhase::Starting, None, None);
    let beside = if config.stdio {
        let started = CarrierThread::start(Arc::clone(&dir), &session_id, config.poll);
        Some(started.map_err(failed)?)
    } else {
        None
    };
    let now = Instant::now();
    let mut work = Runner {
        watch: Watch::new(
            &dir,
            &[Subdirectory::Queue, Subdirectory::Ctl, Subdirectory::State],
            false,
        ),
        dir,
        config,
        log: record,
        signals,
        queue: BTreeSet::new(),
        tool: None,
        readiness: ToolReadiness::NoTool,
        line_end: LineEndSkipper::default(),
        tool_error: None,
        was_ready: false,
        has_logged_rejection: false,
        running: None,
        pending_results: VecDeque::new(),
        stop: None,
        lease: None,
        is_control_due: true,
        next_scan: now,
        next_heartbeat: now,
        is_directory_check_due: false,
    };
    let ended = work.serve();
    work.shut_down(&ended);
    if let Some(beside) = beside {
        beside.finish();
    }
    ended
}

impl Runner {
    fn serve(&mut self) -> Result<(), SessionError> {
        loop {
            self.scan_if_due();
            self.check_lease();
            self.check_deadlines();
            match self.stop {
                Some(StopMode::Force) => {
                    self.abort_running(CommandStatus::Cancelled, "stop_requested");
                    return Ok(());
                }
                Some(StopMode::Graceful)
                    if self.running.is_none() && self.pending_results.is_empty() =>
                {
                    return Ok(());
                }
                _ => {}
            }
            if !self.was_ready
                && let Some(error) = self.tool_error.take()
            {
                self.log
                    .set_phase(&self.dir, RunnerPhase::Error, None, None);
                return Err(error.into());
            }
            self.check_directory()?;
            let is_more = (0..MAX_ANSWERS_PER_ROUND).all(|_| self.start_next());
            self.wait(is_more);
        }
    }

    fn set_phase(&mut self, phase: RunnerPhase) {
        let tool = self.tool.as_ref().map(Tool::pid);
        let id = self.running.as_ref().map(|running| &*running.name.id);
        let phase = if self.stop.is_some() {
            RunnerPhase::Stopping
        } else {
            phase
        };
        self.log.set_phase(&self.dir, phase, tool, id);
    }

    /// Scans the directory, reads the control files and writes the heartbeat, each if it is due.
    fn scan_if_due(&mut self) {
        let now = Instant::now();
        if now >= self.next_scan {
            self.next_scan = now + self.config.poll;
            self.is_control_due = true;
            self.scan_queue();
        }
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.config.heartbeat;
            self.log.write_heartbeat(&self.dir);
            self.is_directory_check_due = true;
        }
        if std::mem::take(&mut self.is_control_due) {
            self.handle_stop_file();
            self.handle_cancel_file();
            self.handle_lease_file();
        }
    }

    pub(super) fn scan_queue(&mut self) {
        let dir = Arc::clone(&self.dir);
        // Names that cannot be read now are read by the next scan.
        let _ = dir.for_each_name(Subdirectory::Queue, |name| self.enqueue_file(name));
    }

    /// Adds a file of the queue to the known commands.
    fn enqueue_file(&mut self, file: &str) {
        if let Some(name) = CommandName::parse(file) {
            return enqueue(&mut self.queue, name, NAMES);
        }
        // A temporary file, which is still being written.
        if file.split('.').skip(1).any(|part| part == "tmp") {
            return;
        }
        let is_gone = self.dir.reject(Subdirectory::Queue, file);
        if is_gone || !std::mem::replace(&mut self.has_logged_rejection, true) {
            let why = json!({ "file": format!("queue/{file}"), "why": "its name is not that of a command" });
            self.log.log_event(&self.dir, "rejected", why);
        }
    }

    /// Checks with each heartbeat that the subdirectories are the opened ones.
    fn check_directory(&mut self) -> Result<(), SessionError> {
        if !std::mem::take(&mut self.is_directory_check_due) {
            return Ok(());
        }
        self.dir.check_intact().inspect_err(|_| {
            self.stop = Some(StopMode::Force);
            self.abort_running(CommandStatus::Cancelled, "stop_requested");
        })
    }

    /// Starts the next command, if possible; `true` if there may be another.
    fn start_next(&mut self) -> bool {
        if !self.write_results() || self.running.is_some() || self.stop.is_some() {
            return false;
        }
        let is_due = !self.queue.is_empty() || !self.was_ready;
        match self.readiness {
            ToolReadiness::NoTool if self.tool_error.is_none() && is_due => {
                self.start_tool();
                return true;
            }
            ToolReadiness::Starting(..) => return false,
            ToolReadiness::NoTool | ToolReadiness::Ready => {}
        }
        let Some(name) = self.queue.pop_first() else {
            return false;
        };
        match self.dir.has(Subdirectory::Result, &name.file_name()) {
            Ok(false) => {}
            Ok(true) => {
                let _ = self.dir.remove(Subdirectory::Queue, &name.file_name());
                let skipped = json!({ "cmd_id": name.id, "seq": name.seq });
                self.log.log_event(&self.dir, "skipped", skipped);
                return true;
            }
            Err(_) => return false,
        }
        if self.claim(&name) {
            if let Err(error) = self.dir.sync(Subdirectory::Inflight) {
                // After a loss of power the command could be in the queue again, and run a second
                // time.
                let why = format!("refused: its claim cannot be made durable: {error}");
                self.answer_unrun(&name, CommandStatus::Error, &why);
            } else if let Some(why) = self.tool_error.take() {
                self.answer_unrun(&name, CommandStatus::Error, &format!("tool_died: {why}"));
            } else {
                self.begin_command(&name);
            }
        }
        true
    }

    /// Claims a command by moving it to `inflight/`.
    fn claim(&mut self, name: &CommandName) -> bool {
        let file = name.file_name();
        let claimed = self.dir.move_without_replacing(
            (Subdirectory::Queue, &file),
            (Subdirectory::Inflight, &file),
        );
        claimed.unwrap_or_else(|error| {
            self.log_faulty_file(&format!("queue/{file}"), &error.to_string());
            false
        })
    }

    fn begin_command(&mut self, name: &CommandName) {
        let file = name.file_name();
        let content = match self.dir.read(Subdirectory::Inflight, &file, COMMAND_BYTES) {
            Ok(ReadOutcome::Regular(content)) => content,
            Ok(ReadOutcome::Irregular(why)) => {
                self.reject_file((Subdirectory::Inflight, &file), &file, why);
                return self.answer_unrun(name, CommandStatus::Error, &format!("refused: {why}"));
            }
            Ok(ReadOutcome::Missing) => return,
            Err(error) => {
                return self.answer_unrun(name, CommandStatus::Error, &format!("refused: {error}"));
            }
        };
        let (kind, timeout_s) = (&self.config.kind, self.config.timeout_s);
        let command = match read_command(name, &content, kind, timeout_s) {
            Ok(command) => command,
            Err(refusal) => {
                return self.answer_unrun(name, CommandStatus::Error, &refusal.to_string());
            }
        };
        let secret = uuid::Uuid::new_v4().simple().to_string();
        let marker = Marker::new(&command.marker, &secret);
        let (mut typed, is_one_line) = if let Some(unit) = &self.config.unit {
            (unit.render(&command.payload), true)
        } else {
            let is_one_line = !command.payload.trim_end().contains(['\n', '\r']);
            (command.payload.clone(), is_one_line)
        };
        if !typed.ends_with('\n') {
            typed.push('\n');
        }
        if command.marker.mode == MarkerMode::RunnerInject {
            typed.push_str(&self.config.template.render(&marker));
        }
        let (id, seq) = (name.id.clone(), name.seq);
        let begun = json!({ "cmd_id": id, "seq": seq, "bytes": command.payload.len(), "timeout_s": command.timeout_s });
        match RunningCommand::start(&self.dir, name.clone(), command, marker, is_one_line) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                let why = format!("refused: its output file cannot be created: {error}");
                return self.answer_unrun(name, CommandStatus::Error, &why);
            }
        }
        self.log.log_event(&self.dir, "command_started", begun);
        self.set_phase(RunnerPhase::Busy);
        self.type_in(&typed);
    }

    /// Ends the running command.
    fn finish_running(&mut self, why: EndReason) {
        let Some(running) = self.running.take() else {
            return;
        };
        self.log.write_tail(&self.dir);
        let (name, result) = running.finish(why);
        self.queue_result(name, result);
    }

    /// Answers a claimed command without running it.
    fn answer_unrun(&mut self, name: &CommandName, status: CommandStatus, why: &str) {
        let why = EndReason {
            status,
            reason: why.to_owned(),
        };
        let result = build_result(name, why, timestamp(), CommandStats::default());
        self.queue_result(name.clone(), result);
    }

    fn queue_result(&mut self, name: CommandName, result: ResultFile) {
        let ended = json!({
            "cmd_id": name.id, "seq": name.seq, "status": result.status,
            "exit_reason": result.exit_reason, "stats": result.stats,
        });
        self.log.log_event(&self.dir, "command_ended", ended);
        self.pending_results.push_back((name, result));
        self.write_results();
        // The ended command may have been a waiting one, so another one may still run.
        self.set_phase(if self.running.is_some() {
            RunnerPhase::Busy
        } else {
            RunnerPhase::Idle
        });
    }

    /// Writes pending results. Returns `false` if one cannot be written; no new command begins
    /// before that.
    fn write_results(&mut self) -> bool {
        while let Some((name, result)) = self.pending_results.front() {
            let file = name.file_name();
            let paid = serde_json::to_vec(result)
                .map_err(std::io::Error::from)
                .and_then(|text| {
                    self.dir
                        .write_atomic(Subdirectory::Result, &file, &text, true)
                })
                .and_then(|()| self.dir.remove(Subdirectory::Inflight, &file));
            if paid.is_err() {
                return false;
            }
            self.pending_results.pop_front();
        }
        true
    }

    /// Waits for the next events and handles them.
    fn wait(&mut self, is_more: bool) {
        let until = self.next_wakeup();
        let left = until.saturating_duration_since(Instant::now());
        let left = if is_more { Duration::ZERO } else { left };
        let left = Timespec::try_from(left).ok();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if let Some(tool) = &self.tool {
            let mut wanted = PollFlags::IN;
            if tool.has_pending() {
                wanted |= PollFlags::OUT;
            }
            fds.push(PollFd::from_borrowed_fd(tool.terminal(), wanted));
            fds.push(PollFd::from_borrowed_fd(tool.pidfd(), PollFlags::IN));
        }
        if let Some(watched) = self.watch.fd() {
            fds.push(PollFd::from_borrowed_fd(watched, PollFlags::IN));
        }
        let _ = poll(&mut fds, left.as_ref());
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let at = |place: usize| happened.get(place).copied().unwrap_or(false);
        if at(0) {
            self.handle_signals();
        }
        let has_tool = self.tool.is_some();
        if at(if has_tool { 3 } else { 1 }) {
            self.handle_changes();
        }
        if has_tool && at(1) {
            self.service_terminal();
        }
        if has_tool && at(2) {
            self.handle_tool_exit();
        }
    }

    fn next_wakeup(&self) -> Instant {
        let mut all = vec![self.next_scan, self.next_heartbeat];
        all.extend(self.lease.map(|lease| lease.deadline));
        if let ToolReadiness::Starting(_, until) = &self.readiness {
            all.push(*until);
        }
        match self
            .running
            .as_ref()
            .map(|item| (item.deadline, &item.interruption))
        {
            Some((_, Some(ending))) => {
                all.extend([ending.probe_at.unwrap_or(ending.until), ending.until]);
            }
            Some((deadline, None)) => all.push(deadline),
            None => {}
        }
        all.into_iter().min().unwrap_or(self.next_scan)
    }

    fn handle_changes(&mut self) {
        for happened in self.watch.take_changes() {
            match happened {
                DirChange::File(Subdirectory::Queue, name) => self.enqueue_file(&name),
                DirChange::File(Subdirectory::State, name) if name != "lease.json" => {}
                DirChange::File(..) => self.is_control_due = true,
                DirChange::Overflow => self.next_scan = Instant::now(),
            }
        }
    }

    /// Ends the tool and writes the last state.
    fn shut_down(&mut self, ended: &Result<(), SessionError>) {
        if ended.is_ok() {
            self.stop = Some(self.stop.unwrap_or(StopMode::Force));
        }
        self.set_phase(RunnerPhase::Stopping);
        self.end_tool(true);
        self.write_results();
        self.log.write_heartbeat(&self.dir);
        let why = ended.as_ref().err().map(ToString::to_string);
        self.log
            .log_event(&self.dir, "runner_ended", json!({ "error": why }));
        self.set_phase(RunnerPhase::Stopping);
    }
}

/// Adds a command to at most `most` known ones. The last of too many are dropped; a later scan
/// finds their files again.
fn enqueue(queue: &mut BTreeSet<CommandName>, name: CommandName, most: usize) {
    queue.insert(name);
    if queue.len() > most {
        queue.pop_last();
    }
}

fn marker_seen_reason(has_failed: bool) -> EndReason {
    EndReason {
        status: if has_failed {
            CommandStatus::Error
        } else {
            CommandStatus::Ok
        },
        reason: "marker_seen".to_owned(),
    }
}

/// A marker of the Runner itself, which belongs to no command.
fn own_marker(token: &str) -> Marker {
    let spec = MarkerSpec {
        prefix: PREFIX.to_owned(),
        token: token.to_owned(),
        mode: MarkerMode::RunnerInject,
    };
    Marker::new(&spec, &uuid::Uuid::new_v4().simple().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_commands_the_first_ones_are_kept() {
        let mut queue = BTreeSet::new();
        for seq in [9, 7, 8, 3, 12, 1, 11, 2, 10] {
            let name = CommandName::new(seq, "a").expect("a name");
            enqueue(&mut queue, name, 3);
        }
        let queued: Vec<u64> = queue.iter().map(|name| name.seq).collect();
        assert_eq!(queued, [1, 2, 3]);
    }
}
