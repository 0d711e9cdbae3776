//! What a Runner records: `log/` and `state/`.
//!
//! No command depends on these files, so a full disk loses records but no commands. Results are
//! written elsewhere.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::dir::{SessionDir, Subdirectory};
use marshal_wire::skillpilot::{RunnerPhase, StateFile};

/// The maximum size of `session.out` and of `meta.log`. A full one is kept as `….1`, and a new one
/// begins.
const LOG_BYTES: u64 = 64 << 20;
/// The maximum number of lines of `last_n_lines.txt`.
const TAIL_LINES: usize = 200;
/// The maximum size of `last_n_lines.txt`, in bytes.
const TAIL_BYTES: usize = 64 << 10;

/// Milliseconds since the Unix epoch.
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// The current time, formatted for the files.
pub(super) fn timestamp() -> String {
    now_ms().to_string()
}

/// A log file that rotates when it is full.
#[derive(Debug)]
struct RotatingLog {
    name: &'static str,
    file: Option<File>,
    bytes: u64,
}

impl RotatingLog {
    fn open(dir: &SessionDir, name: &'static str) -> Self {
        let file = dir.append(Subdirectory::Log, name).ok();
        let bytes = file.as_ref().and_then(|file| file.metadata().ok());
        Self {
            name,
            bytes: bytes.map_or(0, |found| found.len()),
            file,
        }
    }

    fn append(&mut self, dir: &SessionDir, bytes: &[u8]) {
        if self.bytes + bytes.len() as u64 > LOG_BYTES {
            let older = format!("{}.1", self.name);
            if dir.remove(Subdirectory::Log, &older).is_err() {
                dir.reject(Subdirectory::Log, &older);
            }
            let _ = dir.move_without_replacing(
                (Subdirectory::Log, self.name),
                (Subdirectory::Log, &older),
            );
            *self = Self::open(dir, self.name);
            if self.bytes > 0 {
                // If the rotation fails, stop writing rather than exceed the limit.
                self.file = None;
                self.bytes = 0;
            }
        }
        if let Some(file) = &mut self.file
            && file.write_all(bytes).is_ok()
        {
            self.bytes += bytes.len() as u64;
        }
    }
}

/// The logs and state files of one session.
#[derive(Debug)]
pub(super) struct SessionLog {
    session_id: String,
    phase: RunnerPhase,
    output: RotatingLog,
    events: RotatingLog,
    tail: VecDeque<u8>,
    is_tail_dirty: bool,
}

impl SessionLog {
    /// Continues a session, or begins one.
    pub(super) fn open(dir: &SessionDir, session_id: String) -> Self {
        Self {
            session_id,
            phase: RunnerPhase::Starting,
            output: RotatingLog::open(dir, "session.out"),
            events: RotatingLog::open(dir, "meta.log"),
            tail: VecDeque::new(),
            is_tail_dirty: false,
        }
    }

    /// Writes `state/state.json`, if the phase may follow the current one.
    pub(super) fn set_phase(
        &mut self,
        dir: &SessionDir,
        phase: RunnerPhase,
        tool: Option<u32>,
        command: Option<&str>,
    ) {
        if self.phase != phase && !self.phase.can_become(phase) {
            return;
        }
        self.phase = phase;
        let state = StateFile {
            phase,
            session_id: self.session_id.clone(),
            runner_pid: std::process::id(),
            tool_pid: tool,
            current_cmd_id: command.map(str::to_owned),
            updated_at: timestamp(),
        };
        if let Ok(text) = serde_json::to_vec(&state) {
            let _ = dir.write_atomic(Subdirectory::State, "state.json", &text, false);
        }
    }

    /// Writes the heartbeat.
    pub(super) fn write_heartbeat(&mut self, dir: &SessionDir) {
        let text = json!({ "timestamp": timestamp() }).to_string();
        let _ = dir.write_atomic(
            Subdirectory::State,
            "heartbeat.json",
            text.as_bytes(),
            false,
        );
        self.write_tail(dir);
    }

    /// Appends the tool's output to the log.
    pub(super) fn record_output(&mut self, dir: &SessionDir, piece: &[u8]) {
        self.output.append(dir, piece);
        self.tail.extend(piece);
        let beyond = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..beyond);
        self.is_tail_dirty = true;
    }

    /// Writes `log/last_n_lines.txt`, if it has changed.
    pub(super) fn write_tail(&mut self, dir: &SessionDir) {
        if !std::mem::take(&mut self.is_tail_dirty) {
            return;
        }
        let tail = self.tail.make_contiguous();
        let mut ends = memchr::memrchr_iter(b'\n', tail).skip(TAIL_LINES);
        let from = ends.next().map_or(0, |end| end + 1);
        let _ = dir.write_atomic(
            Subdirectory::Log,
            "last_n_lines.txt",
            tail.get(from..).unwrap_or_default(),
            false,
        );
    }

    /// The tool's last output, for an error message.
    pub(super) fn last_output(&self) -> String {
        let (front, back) = self.tail.as_slices();
        let all = [front, back].concat();
        let from = all.len().saturating_sub(400);
        String::from_utf8_lossy(all.get(from..).unwrap_or_default())
            .trim()
            .to_owned()
    }

    /// Writes a line to `log/meta.log`, the audit log of the session.
    pub(super) fn log_event(&mut self, dir: &SessionDir, event: &str, more: Value) {
        let mut line = json!({ "ts": timestamp(), "event": event });
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more);
        }
        self.events.append(dir, format!("{line}\n").as_bytes());
    }
}
