//! A command that runs: what of the tool's output is its, and how it is ended before its time.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use super::dir::{Part, SessionDir};
use super::record::now;
use crate::skillpilot::marker::{Marker, Scanner};
use crate::skillpilot::{CommandFile, CommandName, ResultFile, Stats, Status};

/// Bytes of one command's output that are kept; more is counted.
const OUTPUT_BYTES: u64 = 256 << 20;
/// When an interrupted tool is asked whether it listens again: after it had time to be interrupted.
const SETTLING: Duration = Duration::from_millis(300);

/// Why a command is ended before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) status: Status,
    pub(super) reason: String,
}

/// A tool was interrupted, and is waited for.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) why: Why,
    /// When it is ended instead.
    pub(super) until: Instant,
    /// When it is asked whether it listens.
    pub(super) ask_at: Option<Instant>,
    /// Finds the answer.
    answer: Option<Scanner>,
    /// The command's own marker came. That says not that the tool listens: it may have been under way when
    /// the interrupt was, which then ends what comes next.
    is_over: bool,
}

impl Ending {
    pub(super) fn new(why: Why, patience: Duration) -> Self {
        let now = Instant::now();
        Self {
            why,
            until: now + patience,
            ask_at: Some(now + SETTLING),
            answer: None,
            is_over: false,
        }
    }

    /// The tool is being asked.
    pub(super) fn asked(&mut self, marker: Marker) {
        self.ask_at = None;
        self.answer = Some(Scanner::new(marker));
    }
}

/// The command that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) name: CommandName,
    pub(super) command: CommandFile,
    pub(super) deadline: Instant,
    pub(super) ending: Option<Ending>,
    /// What the tool was given is one line: what interrupts that ends all of it.
    pub(super) is_one_line: bool,
    scanner: Scanner,
    began: Instant,
    start_ts: String,
    output: Option<File>,
    stats: Stats,
    /// Output ended with something that is no newline.
    open_line: bool,
}

impl Running {
    pub(super) fn begin(
        dir: &SessionDir,
        name: CommandName,
        command: CommandFile,
        marker: Marker,
        is_one_line: bool,
    ) -> std::io::Result<Self> {
        let began = Instant::now();
        let seconds = command.timeout_s.unwrap_or(crate::skillpilot::TIMEOUT_S);
        let output = dir.create(Part::Output, &name.output())?;
        Ok(Self {
            name,
            command,
            deadline: began + Duration::from_secs(seconds),
            ending: None,
            is_one_line,
            scanner: Scanner::new(marker),
            began,
            start_ts: now(),
            output: Some(output),
            stats: Stats::default(),
            open_line: false,
        })
    }

    /// Takes what the tool wrote; `true`: it is done with the command, or listens again after its interrupt.
    pub(super) fn wrote(&mut self, piece: &[u8]) -> bool {
        let mut out = Vec::new();
        let Some(ending) = &mut self.ending else {
            let done = self.scanner.feed(piece, &mut out);
            self.keep(&out);
            return done;
        };
        let (mut said, mut answered) = (Vec::new(), false);
        match &mut ending.answer {
            Some(answer) => answered = answer.feed(piece, &mut said),
            None => said.extend_from_slice(piece),
        }
        // Behind its own marker comes nothing of the command any more.
        if !ending.is_over {
            ending.is_over = self.scanner.feed(&said, &mut out);
            self.keep(&out);
        }
        answered
    }

    /// The marker that ended it.
    pub(super) fn ended_by(&self) -> &Scanner {
        let answer = self
            .ending
            .as_ref()
            .and_then(|ending| ending.answer.as_ref());
        answer.unwrap_or(&self.scanner)
    }

    fn keep(&mut self, out: &[u8]) {
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
        self.open_line = out.last() != Some(&b'\n');
    }

    /// It ended: what was held back was output, unless its marker came.
    pub(super) fn end(mut self, why: Why) -> (CommandName, ResultFile) {
        let mut out = Vec::new();
        let mut is_over = false;
        if let Some(ending) = &mut self.ending {
            let mut said = Vec::new();
            if let Some(answer) = &mut ending.answer {
                answer.finish(&mut said);
            }
            is_over = ending.is_over || self.scanner.feed(&said, &mut out);
        }
        if !is_over {
            self.scanner.finish(&mut out);
        }
        self.keep(&out);
        self.stats.lines += u64::from(self.open_line);
        self.stats.duration_ms =
            u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = result(&self.name, why, self.start_ts, self.stats);
        (self.name, result)
    }
}

/// The result of a command, of which paths are relative to the session's directory.
pub(super) fn result(name: &CommandName, why: Why, start_ts: String, stats: Stats) -> ResultFile {
    ResultFile {
        cmd_id: name.id.clone(),
        status: why.status,
        start_ts,
        end_ts: now(),
        exit_reason: why.reason,
        output_path: format!("output/{}", name.output()),
        tail_path: "log/last_n_lines.txt".to_owned(),
        stats,
    }
}
