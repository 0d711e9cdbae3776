//! The Runner's work: one loop over what the directory, the tool, the signals and the time bring.
//!
//! Order of each round: what controls it (stop, cancel, lease) before what is to be run. A command is claimed
//! by its move to `inflight/`, and leaves it when its result is durable; so whatever a kill interrupts is either
//! done on record or found there by the next start, which never runs it again.

mod before;
mod control;
mod tool;

pub(super) use before::session_id;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::Orders;
use super::carrier::Beside;
use super::dir::{Found, Part, SessionDir, Use};
use super::lease::Lease;
use super::record::{Record, now};
use super::running::{Running, Why, result};
use super::terminal::Tool;
use super::watch::{Happened, Watch};
use crate::skillpilot::marker::{LineEnd, Marker, PREFIX, Scanner};
use crate::skillpilot::{
    COMMAND_BYTES, CommandName, MarkerMode, MarkerSpec, Phase, ResultFile, Stats, Status, Stop,
    read_command,
};
use before::{is_alone, recover, tidy};

/// Commands that wait and are known; those behind them are found later.
const NAMES: usize = 100_000;
/// How long a tool may take until it listens.
const STARTING: Duration = Duration::from_secs(60);
/// Pieces of output that are taken before something else has its turn.
const PIECES: usize = 64;
/// Commands that are answered without being run before something else has its turn.
const AT_ONCE: usize = 32;

/// Whether the tool listens.
#[derive(Debug)]
enum Listens {
    /// There is none.
    Gone,
    /// It was started, and told what it is told first.
    Soon(Scanner, Instant),
    /// It does.
    Yes,
}

/// The Runner.
struct Work {
    dir: Arc<SessionDir>,
    orders: Orders,
    record: Record,
    watch: Watch,
    signals: SignalFd,
    queue: BTreeSet<CommandName>,
    tool: Option<Tool>,
    listens: Listens,
    line_end: LineEnd,
    /// Why there is no tool.
    failed: Option<String>,
    /// A tool has listened, once.
    has_listened: bool,
    /// A file of the queue that can be neither moved nor removed was told of.
    has_told: bool,
    running: Option<Running>,
    /// Results that could not be written yet: of the command that ran, and of one that waited.
    owed: VecDeque<(CommandName, ResultFile)>,
    stop: Option<Stop>,
    lease: Option<Lease>,
    /// Something may be in `ctl/`, or the lease may be another.
    controlled: bool,
    look_at: Instant,
    beat_at: Instant,
    /// A sign of life was given.
    is_beat: bool,
}

/// Runs a session until its end.
pub(super) fn run(path: &Path, orders: Orders) -> Result<(), String> {
    let dir = Arc::new(SessionDir::open(path, Use::Run)?);
    is_alone(&dir)?;
    let mut mask = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        mask.add(signal);
    }
    // Before there is another thread.
    let signals = mask
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK))
        .map_err(|error| format!("signals cannot be taken: {error}"))?;
    super::kin::keep().map_err(|error| format!("processes cannot be kept: {error}"))?;
    let session_id = session_id(&dir);
    let mut record = Record::open(&dir, session_id.clone());
    let failed = |error: std::io::Error| format!("the session directory: {error}");
    tidy(&dir, &mut record, orders.stdio).map_err(failed)?;
    recover(&dir, &mut record).map_err(failed)?;
    // Before anybody is told of an earlier life's state.
    record.phase_is(&dir, Phase::Starting, None, None);
    let beside = if orders.stdio {
        let started = Beside::start(Arc::clone(&dir), &session_id, orders.poll);
        Some(started.map_err(failed)?)
    } else {
        None
    };
    let now = Instant::now();
    let mut work = Work {
        watch: Watch::of(&dir, &[Part::Queue, Part::Ctl, Part::State], false),
        dir,
        orders,
        record,
        signals,
        queue: BTreeSet::new(),
        tool: None,
        listens: Listens::Gone,
        line_end: LineEnd::default(),
        failed: None,
        has_listened: false,
        has_told: false,
        running: None,
        owed: VecDeque::new(),
        stop: None,
        lease: None,
        controlled: true,
        look_at: now,
        beat_at: now,
        is_beat: false,
    };
    let ended = work.serve();
    work.leave(&ended);
    if let Some(beside) = beside {
        beside.finish();
    }
    ended
}

impl Work {
    fn serve(&mut self) -> Result<(), String> {
        loop {
            self.look();
            self.lease();
            self.times();
            match self.stop {
                Some(Stop::Force) => {
                    self.abort(Status::Cancelled, "stop_requested");
                    return Ok(());
                }
                Some(Stop::Graceful) if self.running.is_none() && self.owed.is_empty() => {
                    return Ok(());
                }
                _ => {}
            }
            if !self.has_listened
                && let Some(why) = &self.failed
            {
                self.record.phase_is(&self.dir, Phase::Error, None, None);
                return Err(why.clone());
            }
            self.dir_is_whole()?;
            let is_more = (0..AT_ONCE).all(|_| self.next());
            self.wait(is_more);
        }
    }

    fn phase(&mut self, phase: Phase) {
        let tool = self.tool.as_ref().map(Tool::pid);
        let id = self.running.as_ref().map(|running| &*running.name.id);
        let phase = if self.stop.is_some() {
            Phase::Stopping
        } else {
            phase
        };
        self.record.phase_is(&self.dir, phase, tool, id);
    }

    /// Looks at the directory, where that is due.
    fn look(&mut self) {
        let now = Instant::now();
        if now >= self.look_at {
            self.look_at = now + self.orders.poll;
            self.controlled = true;
            self.look_at_queue();
        }
        if now >= self.beat_at {
            self.beat_at = now + self.orders.heartbeat;
            self.record.beat(&self.dir);
            self.is_beat = true;
        }
        if std::mem::take(&mut self.controlled) {
            self.stopped();
            self.cancelled();
            self.leased();
        }
    }

    pub(super) fn look_at_queue(&mut self) {
        let dir = Arc::clone(&self.dir);
        // What cannot be read now is read at the next look.
        let _ = dir.each(Part::Queue, |name| self.queued(name));
    }

    /// A file is in the queue.
    fn queued(&mut self, file: &str) {
        if let Some(name) = CommandName::read(file) {
            return enqueue(&mut self.queue, name, NAMES);
        }
        // Somebody writes it.
        if file.split('.').skip(1).any(|part| part == "tmp") {
            return;
        }
        let is_gone = self.dir.reject(Part::Queue, file);
        if is_gone || !std::mem::replace(&mut self.has_told, true) {
            let why =
                json!({ "file": format!("queue/{file}"), "why": "it has no name of a command" });
            self.record.note(&self.dir, "rejected", why);
        }
    }

    /// Whether the directory is what it was; looked at with each sign of life.
    fn dir_is_whole(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.is_beat) {
            return Ok(());
        }
        self.dir.is_whole().inspect_err(|_| {
            self.stop = Some(Stop::Force);
            self.abort(Status::Cancelled, "stop_requested");
        })
    }

    /// Takes the next command, if it can be; `true`: there may be another.
    fn next(&mut self) -> bool {
        if !self.pay() || self.running.is_some() || self.stop.is_some() {
            return false;
        }
        let is_due = !self.queue.is_empty() || !self.has_listened;
        match self.listens {
            Listens::Gone if self.failed.is_none() && is_due => {
                self.start_tool();
                return true;
            }
            Listens::Soon(..) => return false,
            Listens::Gone | Listens::Yes => {}
        }
        let Some(name) = self.queue.pop_first() else {
            return false;
        };
        match self.dir.has(Part::Result, &name.file()) {
            Ok(false) => {}
            Ok(true) => {
                let _ = self.dir.remove(Part::Queue, &name.file());
                let skipped = json!({ "cmd_id": name.id, "seq": name.seq });
                self.record.note(&self.dir, "skipped", skipped);
                return true;
            }
            Err(_) => return false,
        }
        if self.claimed(&name) {
            if let Some(why) = self.failed.take() {
                self.answer(&name, Status::Error, &format!("tool_died: {why}"));
            } else {
                self.begin(&name);
            }
        }
        true
    }

    /// Makes a command ours.
    fn claimed(&mut self, name: &CommandName) -> bool {
        let file = name.file();
        let claimed = self
            .dir
            .claim((Part::Queue, &file), (Part::Inflight, &file));
        let claimed = claimed.and_then(|claimed| {
            if claimed {
                self.dir.sync(Part::Inflight)?;
            }
            Ok(claimed)
        });
        claimed.unwrap_or_else(|error| {
            self.faulty(&format!("queue/{file}"), &error.to_string());
            false
        })
    }

    fn begin(&mut self, name: &CommandName) {
        let file = name.file();
        let content = match self.dir.read(Part::Inflight, &file, COMMAND_BYTES) {
            Ok(Found::Content(content)) => content,
            Ok(Found::Odd(why)) => {
                self.reject((Part::Inflight, &file), &file, why);
                return self.answer(name, Status::Error, &format!("refused: {why}"));
            }
            Ok(Found::Nothing) => return,
            Err(error) => {
                return self.answer(name, Status::Error, &format!("refused: {error}"));
            }
        };
        let (kind, timeout_s) = (&self.orders.kind, self.orders.timeout_s);
        let command = match read_command(name, &content, kind, timeout_s) {
            Ok(command) => command,
            Err(refusal) => return self.answer(name, Status::Error, &refusal.to_string()),
        };
        let secret = uuid::Uuid::new_v4().simple().to_string();
        let marker = Marker::new(&command.marker, &secret);
        let (mut typed, is_one_line) = if let Some(unit) = &self.orders.unit {
            (unit.line(&command.payload), true)
        } else {
            let is_one_line = !command.payload.trim_end().contains(['\n', '\r']);
            (command.payload.clone(), is_one_line)
        };
        if !typed.ends_with('\n') {
            typed.push('\n');
        }
        if command.marker.mode == MarkerMode::RunnerInject {
            typed.push_str(&self.orders.template.line(&marker));
        }
        let (id, seq) = (name.id.clone(), name.seq);
        let begun = json!({ "cmd_id": id, "seq": seq, "bytes": command.payload.len(), "timeout_s": command.timeout_s });
        match Running::begin(&self.dir, name.clone(), command, marker, is_one_line) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                let why = format!("refused: its output cannot be kept: {error}");
                return self.answer(name, Status::Error, &why);
            }
        }
        self.record.note(&self.dir, "command_started", begun);
        self.phase(Phase::Busy);
        self.type_in(&typed);
    }

    /// The command that runs ended.
    fn finish(&mut self, why: Why) {
        let Some(running) = self.running.take() else {
            return;
        };
        self.record.keep_tail(&self.dir);
        let (name, result) = running.end(why);
        self.owe(name, result);
    }

    /// A command that was claimed is not run.
    fn answer(&mut self, name: &CommandName, status: Status, why: &str) {
        let why = Why {
            status,
            reason: why.to_owned(),
        };
        let result = result(name, why, now(), Stats::default());
        self.owe(name.clone(), result);
    }

    fn owe(&mut self, name: CommandName, result: ResultFile) {
        let ended = json!({
            "cmd_id": name.id, "seq": name.seq, "status": result.status,
            "exit_reason": result.exit_reason, "stats": result.stats,
        });
        self.record.note(&self.dir, "command_ended", ended);
        self.owed.push_back((name, result));
        self.pay();
        // The one that ended may be one that waited.
        self.phase(if self.running.is_some() {
            Phase::Busy
        } else {
            Phase::Idle
        });
    }

    /// Writes the results that are owed, if any is. Nothing else is begun before.
    fn pay(&mut self) -> bool {
        while let Some((name, result)) = self.owed.front() {
            let file = name.file();
            let paid = serde_json::to_vec(result)
                .map_err(std::io::Error::from)
                .and_then(|text| self.dir.put(Part::Result, &file, &text, true))
                .and_then(|()| self.dir.remove(Part::Inflight, &file));
            if paid.is_err() {
                return false;
            }
            self.owed.pop_front();
        }
        true
    }

    /// Waits for whatever comes first, and takes it.
    fn wait(&mut self, is_more: bool) {
        let until = self.wakes_at();
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
            fds.push(PollFd::from_borrowed_fd(tool.alive(), PollFlags::IN));
        }
        if let Some(watched) = self.watch.fd() {
            fds.push(PollFd::from_borrowed_fd(watched, PollFlags::IN));
        }
        let _ = poll(&mut fds, left.as_ref());
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let at = |place: usize| happened.get(place).copied().unwrap_or(false);
        if at(0) {
            self.signalled();
        }
        let has_tool = self.tool.is_some();
        if at(if has_tool { 3 } else { 1 }) {
            self.happened();
        }
        if has_tool && at(1) {
            self.of_terminal();
        }
        if has_tool && at(2) {
            self.tool_ended();
        }
    }

    fn wakes_at(&self) -> Instant {
        let mut all = vec![self.look_at, self.beat_at];
        all.extend(self.lease.map(|lease| lease.at));
        if let Listens::Soon(_, until) = &self.listens {
            all.push(*until);
        }
        match self.running.as_ref().map(|of| (of.deadline, &of.ending)) {
            Some((_, Some(ending))) => {
                all.extend([ending.ask_at.unwrap_or(ending.until), ending.until]);
            }
            Some((deadline, None)) => all.push(deadline),
            None => {}
        }
        all.into_iter().min().unwrap_or(self.look_at)
    }

    fn happened(&mut self) {
        for happened in self.watch.take() {
            match happened {
                Happened::In(Part::Queue, name) => self.queued(&name),
                Happened::In(Part::State, name) if name != "lease.json" => {}
                Happened::In(..) => self.controlled = true,
                Happened::Much => self.look_at = Instant::now(),
            }
        }
    }

    /// Ends.
    fn leave(&mut self, ended: &Result<(), String>) {
        if ended.is_ok() {
            self.stop = Some(self.stop.unwrap_or(Stop::Force));
        }
        self.phase(Phase::Stopping);
        self.end_tool(true);
        self.pay();
        self.record.beat(&self.dir);
        let why = ended.as_ref().err();
        self.record
            .note(&self.dir, "runner_ended", json!({ "error": why }));
        self.phase(Phase::Stopping);
    }
}

/// Adds a command to at most so many. The last of too many are found again when there is room: their files
/// are still there.
fn enqueue(queue: &mut BTreeSet<CommandName>, name: CommandName, most: usize) {
    queue.insert(name);
    if queue.len() > most {
        queue.pop_last();
    }
}

fn marker_seen() -> Why {
    Why {
        status: Status::Ok,
        reason: "marker_seen".to_owned(),
    }
}

/// A marker that belongs to no command.
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
        let kept: Vec<u64> = queue.iter().map(|name| name.seq).collect();
        assert_eq!(kept, [1, 2, 3]);
    }
}
