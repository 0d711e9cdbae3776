//! A running command: its part of the tool's output, and its early end.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use super::dir::{SessionDir, Subdirectory};
use super::record::timestamp;
use marshal_wire::skillpilot::marker::{Marker, Scanner};
use marshal_wire::skillpilot::{CommandFile, CommandName, CommandStats, CommandStatus, ResultFile};

/// The maximum size of a command's stored output; further output is only counted.
const OUTPUT_BYTES: u64 = 256 << 20;
/// The delay before an interrupted tool is probed: the interrupt must take effect first.
const PROBE_DELAY: Duration = Duration::from_millis(300);

/// The status and reason of a command's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndReason {
    pub(super) status: CommandStatus,
    pub(super) reason: String,
}

/// An interrupt was sent to the tool, which must become ready again.
#[derive(Debug)]
pub(super) struct Interruption {
    pub(super) why: EndReason,
    /// When the tool is ended instead.
    pub(super) until: Instant,
    /// When the tool is probed with a marker; `None` if it was.
    pub(super) probe_at: Option<Instant>,
    /// Finds the probe's marker.
    probe_scanner: Option<Scanner>,
    /// Whether the command's own marker came. It does not prove that the tool is ready: the marker
    /// may have been on its way when the interrupt came, which then ends the next command.
    is_marker_seen: bool,
}

impl Interruption {
    pub(super) fn new(why: EndReason, patience: Duration) -> Self {
        let now = Instant::now();
        Self {
            why,
            until: now + patience,
            probe_at: Some(now + PROBE_DELAY),
            probe_scanner: None,
            is_marker_seen: false,
        }
    }

    /// The probe's marker has been typed.
    pub(super) fn start_probe(&mut self, marker: Marker) {
        self.probe_at = None;
        self.probe_scanner = Some(Scanner::new(marker));
    }
}

/// The state of the running command.
#[derive(Debug)]
pub(super) struct RunningCommand {
    pub(super) name: CommandName,
    pub(super) command: CommandFile,
    pub(super) deadline: Instant,
    pub(super) interruption: Option<Interruption>,
    /// Whether the typed text is one line: an interrupt then ends all of it.
    pub(super) is_one_line: bool,
    scanner: Scanner,
    began: Instant,
    start_ts: String,
    output: Option<File>,
    stats: CommandStats,
    /// Whether the output ends without a newline.
    has_open_line: bool,
}

impl RunningCommand {
    pub(super) fn start(
        dir: &SessionDir,
        name: CommandName,
        command: CommandFile,
        marker: Marker,
        is_one_line: bool,
    ) -> std::io::Result<Self> {
        let began = Instant::now();
        let seconds = command
            .timeout_s
            .unwrap_or(marshal_wire::skillpilot::TIMEOUT_S);
        let output = dir.create(Subdirectory::Output, &name.output_file_name())?;
        Ok(Self {
            name,
            command,
            deadline: began + Duration::from_secs(seconds),
            interruption: None,
            is_one_line,
            scanner: Scanner::new(marker),
            began,
            start_ts: timestamp(),
            output: Some(output),
            stats: CommandStats::default(),
            has_open_line: false,
        })
    }

    /// Handles the tool's output; `true` if the command is done, or the tool is ready again after
    /// its interrupt.
    pub(super) fn feed_output(&mut self, piece: &[u8]) -> bool {
        let mut out = Vec::new();
        let Some(ending) = &mut self.interruption else {
            let done = self.scanner.feed(piece, &mut out);
            self.store_output(&out);
            return done;
        };
        let (mut rest, mut answered) = (Vec::new(), false);
        match &mut ending.probe_scanner {
            Some(answer) => answered = answer.feed(piece, &mut rest),
            None => rest.extend_from_slice(piece),
        }
        // No output of the command follows its own marker.
        if !ending.is_marker_seen {
            ending.is_marker_seen = self.scanner.feed(&rest, &mut out);
            self.store_output(&out);
        }
        answered
    }

    /// The scanner whose marker ended the command.
    pub(super) fn final_scanner(&self) -> &Scanner {
        let answer = self
            .interruption
            .as_ref()
            .and_then(|ending| ending.probe_scanner.as_ref());
        answer.unwrap_or(&self.scanner)
    }

    /// Whether the tool says that the payload failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.scanner.has_failed()
    }

    fn store_output(&mut self, out: &[u8]) {
        if out.is_empty() {
            return;
        }
        let writable = OUTPUT_BYTES.saturating_sub(self.stats.bytes);
        let writable = usize::try_from(writable)
            .unwrap_or(usize::MAX)
            .min(out.len());
        if let (Some(output), Some(writable)) = (&mut self.output, out.get(..writable))
            && output.write_all(writable).is_err()
        {
            // The disk is full or the directory is gone. Stop writing, because later output would
            // follow a gap.
            self.output = None;
        }
        self.stats.truncated |= writable < out.len() || self.output.is_none();
        self.stats.bytes += out.len() as u64;
        self.stats.lines += memchr::memchr_iter(b'\n', out).count() as u64;
        self.has_open_line = out.last() != Some(&b'\n');
    }

    /// Ends the command. Text that was held back as a possible marker is output, unless the marker
    /// came.
    pub(super) fn finish(mut self, why: EndReason) -> (CommandName, ResultFile) {
        let mut out = Vec::new();
        let mut is_done = false;
        if let Some(ending) = &mut self.interruption {
            let mut rest = Vec::new();
            if let Some(answer) = &mut ending.probe_scanner {
                answer.finish(&mut rest);
            }
            is_done = ending.is_marker_seen || self.scanner.feed(&rest, &mut out);
        }
        if !is_done {
            self.scanner.finish(&mut out);
        }
        self.store_output(&out);
        self.stats.lines += u64::from(self.has_open_line);
        self.stats.duration_ms =
            u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = build_result(&self.name, why, self.start_ts, self.stats);
        (self.name, result)
    }
}

/// Builds the result of a command. Its paths are relative to the session's directory.
pub(super) fn build_result(
    name: &CommandName,
    why: EndReason,
    start_ts: String,
    stats: CommandStats,
) -> ResultFile {
    ResultFile {
        cmd_id: name.id.clone(),
        status: why.status,
        start_ts,
        end_ts: timestamp(),
        exit_reason: why.reason,
        output_path: format!("output/{}", name.output_file_name()),
        tail_path: "log/last_n_lines.txt".to_owned(),
        stats,
    }
}
