//! The Runner's work: one loop over what the directory, the tool, the signals and the time bring.
//!
//! Order of each round: what controls it (stop, cancel, lease) before what is to be run. A command is claimed
//! by its move to `inflight/`, and leaves it when its result is durable; so whatever a kill interrupts is either
//! done on record or found there by the next start, which never runs it again.

use std::collections::BTreeSet;
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
use super::record::{Record, now, now_ms};
use super::running::{Ending, Running, Why, result};
use super::terminal::{PATIENCE, Tool};
use super::watch::{Happened, Watch};
use crate::skillpilot::marker::{Marker, PREFIX, Scanner};
use crate::skillpilot::{
    COMMAND_BYTES, CONTROL_BYTES, Cancel, CancelPolicy, CommandName, MarkerMode, MarkerSpec, Phase,
    ResultFile, StateFile, Stats, Status, Stop, is_id, read_cancel, read_command, read_lease,
    read_stop,
};

/// How long a tool may take until it listens.
const STARTING: Duration = Duration::from_secs(60);
/// Pieces of output that are taken before something else has its turn.
const PIECES: usize = 64;
/// Commands that were claimed and whose result is not kept: the exit reason.
const RESTARTED: &str = "tool_died: runner restarted";

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
    /// Why there is no tool.
    failed: Option<String>,
    /// A tool has listened, once.
    has_listened: bool,
    running: Option<Running>,
    /// A result that could not be written yet.
    owed: Option<(CommandName, ResultFile)>,
    stop: Option<Stop>,
    lease: Option<i64>,
    /// Something may be in `ctl/`, or the lease may be another.
    controlled: bool,
    look_at: Instant,
    beat_at: Instant,
}

/// Runs a session until its end.
pub(super) fn run(path: &Path, orders: Orders) -> Result<(), String> {
    let dir = Arc::new(SessionDir::open(path, Use::Run)?);
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        mask.add(signal);
    }
    // Before there is another thread.
    let signals = mask
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK))
        .map_err(|error| format!("signals cannot be taken: {error}"))?;
    let session_id = session_id(&dir);
    let mut record = Record::open(&dir, session_id.clone());
    let failed = |error: std::io::Error| format!("the session directory: {error}");
    tidy(&dir, &mut record, orders.stdio).map_err(failed)?;
    recover(&dir, &mut record).map_err(failed)?;
    let beside = if orders.stdio {
        let started = Beside::start(Arc::clone(&dir), session_id, orders.poll);
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
        failed: None,
        has_listened: false,
        running: None,
        owed: None,
        stop: None,
        lease: None,
        controlled: true,
        look_at: now,
        beat_at: now,
    };
    let ended = work.serve();
    work.leave(&ended);
    if let Some(beside) = beside {
        beside.finish();
    }
    ended
}

/// The id of the session: that of an earlier life in this directory, or a new one.
pub(super) fn session_id(dir: &SessionDir) -> String {
    let earlier = match dir.read(Part::State, "state.json", CONTROL_BYTES) {
        Ok(Found::Content(content)) => serde_json::from_slice::<StateFile>(&content).ok(),
        _ => None,
    };
    if let Some(state) = earlier.filter(|state| is_id(&state.session_id)) {
        return state.session_id;
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    let day = jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S");
    format!("session_{day}_{}", random.get(..8).unwrap_or(&random))
}

/// Removes what an earlier life left: temporary files, and what controlled it. `stdio`: the Master is there and
/// brings a lease of its own.
fn tidy(dir: &SessionDir, record: &mut Record, stdio: bool) -> std::io::Result<()> {
    for part in [Part::Result, Part::Log, Part::State] {
        dir.sweep(part)?;
    }
    for name in ["cancel.json", "stop.json"] {
        if dir.has(Part::Ctl, name)? {
            dir.remove(Part::Ctl, name)?;
            record.note(dir, "stale_control", json!({ "file": name }));
        }
    }
    if stdio {
        dir.remove(Part::State, "lease.json")?;
    }
    Ok(())
}

/// Ends what a Runner before this one had begun: nothing is run twice.
fn recover(dir: &SessionDir, record: &mut Record) -> std::io::Result<()> {
    for file in dir.names(Part::Inflight)? {
        let Some(name) = CommandName::read(&file) else {
            dir.reject(Part::Inflight, &file);
            continue;
        };
        if !dir.has(Part::Result, &file)? {
            let why = Why {
                status: Status::Error,
                reason: RESTARTED.to_owned(),
            };
            let result = result(&name, why, now(), Stats::default());
            dir.put(Part::Result, &file, &serde_json::to_vec(&result)?, true)?;
            record.note(
                dir,
                "recovered",
                json!({ "cmd_id": name.id, "seq": name.seq }),
            );
        }
        dir.remove(Part::Inflight, &file)?;
    }
    Ok(())
}

impl Work {
    fn serve(&mut self) -> Result<(), String> {
        self.phase(Phase::Starting);
        loop {
            self.look();
            self.lease();
            self.times();
            match self.stop {
                Some(Stop::Force) => {
                    self.abort(Status::Cancelled, "stop_requested");
                    return Ok(());
                }
                Some(Stop::Graceful) if self.running.is_none() && self.owed.is_none() => {
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
            while self.next() {}
            self.wait();
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
            for name in self.dir.names(Part::Queue).unwrap_or_default() {
                self.queued(&name);
            }
        }
        if now >= self.beat_at {
            self.beat_at = now + self.orders.heartbeat;
            self.record.beat(&self.dir);
        }
        if std::mem::take(&mut self.controlled) {
            self.stopped();
            self.cancelled();
            self.leased();
        }
    }

    /// A file is in the queue.
    fn queued(&mut self, file: &str) {
        if file.contains(".tmp.") || file.ends_with(".tmp") {
            return;
        }
        if let Some(name) = CommandName::read(file) {
            self.queue.insert(name);
        } else {
            self.dir.reject(Part::Queue, file);
            let why =
                json!({ "file": format!("queue/{file}"), "why": "it has no name of a command" });
            self.record.note(&self.dir, "rejected", why);
        }
    }

    /// Takes a control file, so that another one can be put in its place.
    fn control(&mut self, name: &str) -> Option<Vec<u8>> {
        if !self.dir.has(Part::Ctl, name).unwrap_or(false) {
            return None;
        }
        let found = self.dir.read(Part::Ctl, name, CONTROL_BYTES);
        match found {
            Ok(Found::Content(content)) => {
                let _ = self.dir.remove(Part::Ctl, name);
                Some(content)
            }
            Ok(Found::Odd(why)) => {
                self.reject(Part::Ctl, name, why);
                None
            }
            Ok(Found::Nothing) | Err(_) => None,
        }
    }

    fn reject(&mut self, part: Part, name: &str, why: &str) {
        self.dir.reject(part, name);
        let file = format!("{}/{name}", part.name());
        self.record
            .note(&self.dir, "rejected", json!({ "file": file, "why": why }));
    }

    fn stopped(&mut self) {
        let Some(content) = self.control("stop.json") else {
            return;
        };
        match read_stop(&content) {
            Ok(stop) => self.stop_by(stop, "stop.json"),
            Err(why) => self.faulty("ctl/stop.json", &why),
        }
    }

    fn stop_by(&mut self, stop: Stop, by: &str) {
        self.stop = self.stop.max(Some(stop));
        let mode = match stop {
            Stop::Graceful => "graceful",
            Stop::Force => "force",
        };
        self.record
            .note(&self.dir, "stop", json!({ "mode": mode, "by": by }));
        self.phase(Phase::Stopping);
    }

    fn faulty(&mut self, file: &str, why: &str) {
        self.record
            .note(&self.dir, "faulty", json!({ "file": file, "why": why }));
    }

    fn cancelled(&mut self) {
        let Some(content) = self.control("cancel.json") else {
            return;
        };
        let cancel = match read_cancel(&content) {
            Ok(cancel) => cancel,
            Err(why) => return self.faulty("ctl/cancel.json", &why),
        };
        let runs = self.running.as_ref().map(|running| running.name.id.clone());
        let id = match cancel {
            Cancel::Current => runs.clone(),
            Cancel::Command(id) => Some(id),
        };
        self.record.note(
            &self.dir,
            "cancel",
            json!({ "cmd_id": id, "running": runs }),
        );
        let Some(id) = id else {
            return;
        };
        if runs.as_ref() == Some(&id) {
            return self.end_early(None);
        }
        // It may have come with its command, and be seen first.
        for name in self.dir.names(Part::Queue).unwrap_or_default() {
            self.queued(&name);
        }
        if let Some(name) = self.queue.iter().find(|name| name.id == id).cloned() {
            self.queue.remove(&name);
            if self.claimed(&name) {
                self.answer(&name, Status::Cancelled, "cancelled before it began");
            }
        }
    }

    /// Reads the lease. One that cannot be read is put aside, and what was promised before holds.
    fn leased(&mut self) {
        match self.dir.read(Part::State, "lease.json", CONTROL_BYTES) {
            Ok(Found::Content(content)) => match read_lease(&content) {
                Ok(expires) => self.lease = Some(expires),
                Err(why) => self.reject(Part::State, "lease.json", &why),
            },
            Ok(Found::Odd(why)) => self.reject(Part::State, "lease.json", why),
            Ok(Found::Nothing) | Err(_) => {}
        }
    }

    fn lease(&mut self) {
        if self.lease.is_some_and(|expires| expires <= now_ms()) && self.stop != Some(Stop::Force) {
            self.record
                .note(&self.dir, "lease_expired", json!({ "expired": self.lease }));
            self.stop = Some(Stop::Force);
            self.phase(Phase::Stopping);
            self.abort(Status::Cancelled, "lease_expired");
        }
    }

    /// What is over its time.
    fn times(&mut self) {
        let now = Instant::now();
        if let Listens::Soon(_, until) = &self.listens
            && *until <= now
        {
            let why = format!("the tool did not listen within {} s", STARTING.as_secs());
            self.lose(&why);
        }
        let Some(running) = &mut self.running else {
            return;
        };
        match &mut running.ending {
            None if running.deadline <= now => self.end_early(Some(Why {
                status: Status::Timeout,
                reason: "timeout".to_owned(),
            })),
            Some(ending) if ending.until <= now => {
                let why = ending.why.clone();
                self.end_tool(true);
                self.finish(why);
            }
            Some(ending) if ending.ask_at.is_some_and(|at| at <= now) => {
                let marker = own_marker("listens");
                let line = self.orders.template.line(&marker);
                ending.asked(marker);
                self.type_in(&format!("\n{line}"));
            }
            _ => {}
        }
    }

    /// Ends the command that runs by its own policy, once; `why`: if nobody asked for it.
    fn end_early(&mut self, why: Option<Why>) {
        let Some(running) = self.running.as_mut().filter(|of| of.ending.is_none()) else {
            return;
        };
        let policy = running.command.cancel_policy;
        let why = why.unwrap_or_else(|| Why {
            status: Status::Cancelled,
            reason: match policy {
                CancelPolicy::CtrlC => "ctrl_c",
                CancelPolicy::TerminateTool | CancelPolicy::TerminateSession => "tool_exit",
            }
            .to_owned(),
        });
        match (policy, &mut self.tool) {
            (CancelPolicy::CtrlC, Some(tool)) => {
                running.ending = Some(Ending::new(why, PATIENCE));
                tool.interrupt();
            }
            (CancelPolicy::CtrlC | CancelPolicy::TerminateTool, _) => {
                self.end_tool(true);
                self.finish(why);
            }
            (CancelPolicy::TerminateSession, _) => {
                self.end_tool(false);
                self.finish(why);
                self.stop_by(Stop::Force, "terminate_session");
            }
        }
    }

    /// Ends the command that runs, whatever its policy says.
    fn abort(&mut self, status: Status, reason: &str) {
        if self.running.is_some() {
            self.end_tool(true);
            self.finish(Why {
                status,
                reason: reason.to_owned(),
            });
        }
    }

    /// Ends the tool; its last words are the running command's.
    fn end_tool(&mut self, told: bool) -> bool {
        let Some(tool) = self.tool.take() else {
            return false;
        };
        self.listens = Listens::Gone;
        let pid = tool.pid();
        let (ended, last) = tool.end(told);
        self.record.wrote(&self.dir, &last);
        let done = self
            .running
            .as_mut()
            .is_some_and(|running| running.wrote(&last));
        let how = json!({ "pid": pid, "how": ended.words() });
        self.record.note(&self.dir, "tool_ended", how);
        done
    }

    /// The tool ended by itself, or its terminal is closed.
    fn tool_ended(&mut self) {
        let Some(tool) = self.tool.take() else {
            return;
        };
        let pid = tool.pid();
        let was = std::mem::replace(&mut self.listens, Listens::Gone);
        let (ended, last) = tool.end(false);
        self.record.wrote(&self.dir, &last);
        let how = json!({ "pid": pid, "how": ended.words() });
        self.record.note(&self.dir, "tool_ended", how);
        if let Listens::Soon(..) = was {
            let said = self.record.last_words();
            self.failed = Some(format!(
                "the tool ended before it listened ({}): {said}",
                ended.words()
            ));
        }
        let Some(running) = &mut self.running else {
            return self.phase(if self.failed.is_some() {
                Phase::Error
            } else {
                Phase::Idle
            });
        };
        let done = running.wrote(&last);
        let why = match &running.ending {
            Some(ending) => ending.why.clone(),
            None if done => marker_seen(),
            None => Why {
                status: Status::Error,
                reason: if ended.is_exit() {
                    "tool_exit".to_owned()
                } else {
                    format!("tool_died: {}", ended.words())
                },
            },
        };
        self.finish(why);
    }

    /// The tool cannot be used.
    fn lose(&mut self, why: &str) {
        self.end_tool(true);
        self.failed = Some(why.to_owned());
        self.phase(Phase::Error);
    }

    fn start_tool(&mut self) {
        self.failed = None;
        self.phase(Phase::Starting);
        match Tool::start(&self.orders.tool) {
            Ok(tool) => {
                self.record
                    .note(&self.dir, "tool_started", json!({ "pid": tool.pid() }));
                self.tool = Some(tool);
                let marker = own_marker("starts");
                let line = self.orders.template.line(&marker);
                let init = self.orders.init.clone().unwrap_or_default();
                self.listens = Listens::Soon(Scanner::new(marker), Instant::now() + STARTING);
                self.type_in(&format!("{init}\n{line}"));
            }
            Err(error) => {
                self.failed = Some(format!("the tool cannot be started: {error}"));
                self.phase(Phase::Error);
            }
        }
    }

    /// Types into the terminal. What fails shows in the tool's end.
    fn type_in(&mut self, text: &str) {
        if let Some(tool) = &mut self.tool {
            let _ = tool.say(text);
        }
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
                self.begin(name);
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

    fn begin(&mut self, name: CommandName) {
        let file = name.file();
        let content = match self.dir.read(Part::Inflight, &file, COMMAND_BYTES) {
            Ok(Found::Content(content)) => content,
            Ok(Found::Odd(why)) => {
                self.reject(Part::Inflight, &file, why);
                return self.answer(&name, Status::Error, &format!("refused: {why}"));
            }
            Ok(Found::Nothing) => return,
            Err(error) => {
                return self.answer(&name, Status::Error, &format!("refused: {error}"));
            }
        };
        let (kind, timeout_s) = (&self.orders.kind, self.orders.timeout_s);
        let command = match read_command(&name, &content, kind, timeout_s) {
            Ok(command) => command,
            Err(refusal) => return self.answer(&name, Status::Error, &refusal.to_string()),
        };
        let secret = uuid::Uuid::new_v4().simple().to_string();
        let marker = Marker::new(&command.marker, &secret);
        let mut typed = command.payload.clone();
        if !typed.ends_with('\n') {
            typed.push('\n');
        }
        if command.marker.mode == MarkerMode::RunnerInject {
            typed.push_str(&self.orders.template.line(&marker));
        }
        let (id, seq) = (name.id.clone(), name.seq);
        let begun = json!({ "cmd_id": id, "seq": seq, "bytes": command.payload.len(), "timeout_s": command.timeout_s });
        match Running::begin(&self.dir, name.clone(), command, marker) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                let why = format!("refused: its output cannot be kept: {error}");
                return self.answer(&name, Status::Error, &why);
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
        self.owed = Some((name, result));
        self.pay();
        self.phase(Phase::Idle);
    }

    /// Writes the result that is owed, if one is. Nothing else is run before.
    fn pay(&mut self) -> bool {
        let Some((name, result)) = &self.owed else {
            return true;
        };
        let file = name.file();
        let paid = serde_json::to_vec(result)
            .map_err(std::io::Error::from)
            .and_then(|text| self.dir.put(Part::Result, &file, &text, true))
            .and_then(|()| self.dir.remove(Part::Inflight, &file));
        if paid.is_ok() {
            self.owed = None;
        }
        paid.is_ok()
    }

    /// Waits for whatever comes first, and takes it.
    fn wait(&mut self) {
        let until = self.wakes_at();
        let left = until.saturating_duration_since(Instant::now());
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
        if let Some(expires) = self.lease {
            let left = u64::try_from(expires - now_ms()).unwrap_or(0);
            // A clock that is set moves it: at the next look it is seen.
            all.push(Instant::now() + Duration::from_millis(left.min(3_600_000)));
        }
        if let Listens::Soon(_, until) = &self.listens {
            all.push(*until);
        }
        match self.running.as_ref().map(|of| (of.deadline, &of.ending)) {
            Some((_, Some(ending))) => {
                all.extend([ending.ask_at.unwrap_or(ending.until), ending.until])
            }
            Some((deadline, None)) => all.push(deadline),
            None => {}
        }
        all.into_iter().min().unwrap_or(self.look_at)
    }

    fn signalled(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.stop_by(Stop::Force, &format!("signal {}", signal.ssi_signo));
        }
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

    /// The terminal has something, or has room.
    fn of_terminal(&mut self) {
        for _ in 0..PIECES {
            let Some(tool) = &mut self.tool else {
                return;
            };
            if tool.push().is_err() {
                return self.tool_ended();
            }
            match tool.read() {
                Ok(piece) if piece.is_empty() => return,
                Ok(piece) => self.wrote(&piece),
                Err(_) => return self.tool_ended(),
            }
        }
    }

    fn wrote(&mut self, piece: &[u8]) {
        self.record.wrote(&self.dir, piece);
        if let Listens::Soon(scanner, _) = &mut self.listens {
            if scanner.feed(piece, &mut Vec::new()) {
                self.listens = Listens::Yes;
                self.has_listened = true;
                self.phase(Phase::Idle);
            }
            return;
        }
        let Some(running) = &mut self.running else {
            return;
        };
        if running.wrote(piece) {
            let why = running
                .ending
                .take()
                .map_or_else(marker_seen, |ending| ending.why);
            self.finish(why);
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
