//! A command that runs: what of the tool's output is its, and how it is ended before its time.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use super::dir::{SessionDir, Subdirectory};
use super::record::timestamp;
use marshal_wire::skillpilot::marker::{Marker, Scanner};
use marshal_wire::skillpilot::{CommandFile, CommandName, CommandStats, CommandStatus, ResultFile};

/// Bytes of one command's output that are kept; more is counted.
const OUTPUT_BYTES: u64 = 256 << 20;
/// When an interrupted tool is asked whether it listens again: after it had time to be interrupted.
const PROBE_DELAY: Duration = Duration::from_millis(300);

/// Why a command is ended before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndReason {
    pub(super) status: CommandStatus,
    pub(super) reason: String,
}

/// A tool was interrupted, and is waited for.
#[derive(Debug)]
pub(super) struct Interruption {
    pub(super) why: EndReason,
    /// When it is ended instead.
    pub(super) until: Instant,
    /// When it is asked whether it listens.
    pub(super) probe_at: Option<Instant>,
    /// Finds the answer.
    probe_scanner: Option<Scanner>,
    /// The command's own marker came. That says not that the tool listens: it may have been under way when
    /// the interrupt was, which then ends what comes next.
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

    /// The tool is being asked.
    pub(super) fn start_probe(&mut self, marker: Marker) {
        self.probe_at = None;
        self.probe_scanner = Some(Scanner::new(marker));
    }
}

/// The command that runs.
#[derive(Debug)]
pub(super) struct RunningCommand {
    pub(super) name: CommandName,
    pub(super) command: CommandFile,
    pub(super) deadline: Instant,
    pub(super) interruption: Option<Interruption>,
    /// What the tool was given is one line: what interrupts that ends all of it.
    pub(super) is_one_line: bool,
    scanner: Scanner,
    began: Instant,
    start_ts: String,
    output: Option<File>,
    stats: CommandStats,
    /// Output ended with something that is no newline.
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

    /// Takes what the tool wrote; `true`: it is done with the command, or listens again after its interrupt.
    pub(super) fn feed_output(&mut self, piece: &[u8]) -> bool {
        let mut out = Vec::new();
        let Some(ending) = &mut self.interruption else {
            let done = self.scanner.feed(piece, &mut out);
            self.store_output(&out);
            return done;
        };
        let (mut said, mut answered) = (Vec::new(), false);
        match &mut ending.probe_scanner {
            Some(answer) => answered = answer.feed(piece, &mut said),
            None => said.extend_from_slice(piece),
        }
        // Behind its own marker comes nothing of the command any more.
        if !ending.is_marker_seen {
            ending.is_marker_seen = self.scanner.feed(&said, &mut out);
            self.store_output(&out);
        }
        answered
    }

    /// The marker that ended it.
    pub(super) fn final_scanner(&self) -> &Scanner {
        let answer = self
            .interruption
            .as_ref()
            .and_then(|ending| ending.probe_scanner.as_ref());
        answer.unwrap_or(&self.scanner)
    }

    fn store_output(&mut self, out: &[u8]) {
        if out.is_empty() {
            return;
        }
        let kept = OUTPUT_BYTES.saturating_sub(self.stats.bytes);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(out.len());
        if let (Some(output), Some(kept)) = (&mut self.output, out.get(..kept))
            && output.write_all(kept).is_err()
        {
            // The disk is full, or the directory is gone: the rest of it would have a hole.
            self.output = None;
        }
        self.stats.truncated |= kept < out.len() || self.output.is_none();
        self.stats.bytes += out.len() as u64;
        self.stats.lines += memchr::memchr_iter(b'\n', out).count() as u64;
        self.has_open_line = out.last() != Some(&b'\n');
    }

    /// It ended: what was held back was output, unless its marker came.
    pub(super) fn finish(mut self, why: EndReason) -> (CommandName, ResultFile) {
        let mut out = Vec::new();
        let mut is_over = false;
        if let Some(ending) = &mut self.interruption {
            let mut said = Vec::new();
            if let Some(answer) = &mut ending.probe_scanner {
                answer.finish(&mut said);
            }
            is_over = ending.is_marker_seen || self.scanner.feed(&said, &mut out);
        }
        if !is_over {
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

/// The result of a command, of which paths are relative to the session's directory.
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
