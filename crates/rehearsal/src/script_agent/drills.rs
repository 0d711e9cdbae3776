//! Faults on demand, and load.
//!
//! Each is a step of the script, so a test of the supervisor is a prompt. Must not know how a
//! supervisor reacts.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use super::agent::{Agent, Halt, Permission};
use super::agent_event::TextFrame;
use super::step::{Crash, Drill, Hang, Pipes, ToolCall};
use super::tools::ToolOutcome;
use super::turn::AskMode;
use marshal_model::limits::AGENT_WRITE_BYTES;

/// The repeated text of flooded lines.
const FILLER: &[u8] = b"All work and no play makes a dull agent. ";

/// Lines that are no messages, one of each kind. The empty ones stand for those of the protocol.
const GARBAGE: [&[u8]; 5] = [
    b"this is not JSON",
    b"\xff\xfe\x80 this is not UTF-8",
    b"",
    b"[1,2,3]",
    b"",
];

/// The lifetime of an orphan, in seconds: longer than any test.
const ORPHAN_SECONDS: &str = "3600";

/// Starts a process that has left its session, its group and its parent, and that ignores the
/// signals that ask for an end. `$0` and the environment contain the marker. Its output goes to
/// this shell's stderr, so that this shell's stdout closes with the shell.
const ORPHAN_SCRIPT: &str = "trap '' HUP INT TERM; \
    setsid sh -c 'sleep \"$1\"; :' \"$0\" \"$1\" >&2 & echo $!";

impl Agent {
    /// Executes a drill.
    pub(super) fn drill(&mut self, drill: &Drill) -> Result<(), Halt> {
        match drill {
            Drill::Crash(how) => crash(*how),
            Drill::CrashOnce { file, how } => self.crash_once(file, *how),
            Drill::Exit(code) => Err(Halt::Exit(*code)),
            Drill::Hang(how) => hang(*how),
            Drill::Flood {
                lines,
                line_bytes,
                batch,
            } => self.flood(*lines, *line_bytes, *batch),
            Drill::Garbage { lines } => self.garbage(*lines),
            Drill::EndlessLine => self.huge_line(u64::MAX),
            Drill::HugeLine { bytes } => self.huge_line(*bytes),
            Drill::Slow => {
                self.out.slow = true;
                Ok(())
            }
            Drill::IgnoreCancel => {
                self.ignores_cancel = true;
                Ok(())
            }
            Drill::SpawnOrphan { marker, pipes } => {
                let marker = marker.as_ref().unwrap_or(&self.session.id).clone();
                let text = match spawn_orphan(&marker, *pipes) {
                    Ok(pid) => format!("Left process {pid} behind, marked {marker}.\n"),
                    Err(error) => format!("Could not leave a process behind: {error}.\n"),
                };
                self.send_text(&text)
            }
            Drill::Ask { .. } | Drill::Pending { .. }
                if !self.settings.dialect.has_permission_requests() =>
            {
                self.send_text("This protocol has no words to ask for permission.\n")
            }
            Drill::Ask { count, path } => self.measure_requests(*count, path),
            Drill::Raw(line) => {
                let line = format!("{}\n", self.fill_placeholders(line));
                self.script_state.wrote_raw_lines = true;
                self.out.write(line.as_bytes())?;
                Ok(())
            }
            Drill::Half(line) => {
                let line = self.fill_placeholders(line);
                self.out.write(line.as_bytes())?;
                Ok(self.out.close()?)
            }
            Drill::Mute => Ok(self.out.close()?),
            Drill::Storm { count, line } => self.storm(*count, line),
            Drill::Pending { count } => self.ask_without_waiting(*count),
            Drill::Withdraw(_) if !self.settings.dialect.has_request_withdrawal() => {
                self.send_text("This protocol has no words to withdraw a request.\n")
            }
            Drill::Withdraw(call) => self.use_tool(call, AskMode::Withdraws),
        }
    }

    /// Crashes, unless the file shows that it already did.
    fn crash_once(&mut self, file: &str, how: Crash) -> Result<(), Halt> {
        let made = OpenOptions::new().write(true).create_new(true).open(file);
        match made.and_then(|file| file.sync_all()) {
            Ok(()) => crash(how),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.send_text(&format!("I crashed before: {file} exists.\n"))
            }
            Err(error) => self.send_text(&format!("I do not crash: {file}: {error}.\n")),
        }
    }

    /// Replaces ids that a script cannot know: `{session}`, and `{reply}` for the id of the request
    /// that the turn answers.
    fn fill_placeholders(&self, line: &str) -> String {
        let reply = self
            .turn
            .as_ref()
            .and_then(|turn| turn.reply_to.as_ref())
            .map_or_else(|| "null".to_owned(), ToString::to_string);
        line.replace("{session}", &self.session.id)
            .replace("{reply}", &reply)
    }

    /// Writes a line many times, without reading the answers.
    fn storm(&mut self, count: u64, line: &str) -> Result<(), Halt> {
        let line = self.fill_placeholders(line);
        self.script_state.wrote_raw_lines = true;
        for written in 0..count {
            let line = format!("{}\n", line.replace("{n}", &written.to_string()));
            self.out.write(line.as_bytes())?;
        }
        Ok(())
    }

    /// Sends many requests at once; the answers are read and ignored.
    fn ask_without_waiting(&mut self, count: u64) -> Result<(), Halt> {
        let call = ToolCall::Bash {
            command: "true".to_owned(),
        };
        let tool_id = self.next_call();
        for number in 1..=count {
            self.queue_permission_request(&tool_id, &call)?;
            if number.is_multiple_of(64) {
                self.out.flush()?;
                self.poll_input()?;
            }
        }
        self.out.flush()?;
        // The last request waits for its answer, so all earlier answers have been read before.
        self.await_permission()?;
        Ok(())
    }

    /// Writes lines that are no messages.
    fn garbage(&mut self, lines: u64) -> Result<(), Halt> {
        let mut garbage = GARBAGE.map(<[u8]>::to_vec);
        let own = self.settings.dialect.templates().garbage();
        for (line, own) in garbage.iter_mut().filter(|line| line.is_empty()).zip(own) {
            line.extend_from_slice(own.as_bytes());
        }
        for line in garbage.iter().cycle().zip(0..lines).map(|(line, _)| line) {
            self.out.write(&[line, &b"\n"[..]].concat())?;
            self.poll_input()?;
            if self.is_cancelled() {
                break;
            }
        }
        Ok(())
    }

    /// Writes `lines` pieces of text. Each is as long as in a ScaiFlux line of `line_bytes`,
    /// newline included.
    fn flood(&mut self, lines: u64, line_bytes: usize, batch: Option<usize>) -> Result<(), Halt> {
        let (frame, text_bytes) = self.text_frame(line_bytes)?;
        let text = FILLER.iter().copied().cycle().take(text_bytes);
        let line: Vec<u8> = frame
            .head
            .into_iter()
            .chain(text)
            .chain(frame.tail)
            .collect();
        let fits = (AGENT_WRITE_BYTES / line.len()).max(1);
        let batch = batch.unwrap_or(if self.settings.loader { fits } else { 1 });
        // Built once, so that the loop only writes.
        let chunk = line.repeat(batch.min(fits));
        let listen_every = (fits / batch.min(fits)).max(1);
        let mut left = lines;
        let mut writes = 0_usize;
        while left > 0 && !self.is_cancelled() {
            let now = usize::try_from(left).unwrap_or(usize::MAX);
            let bytes = &chunk[..chunk.len().min(now.saturating_mul(line.len()))];
            self.out.write(bytes)?;
            left -= (bytes.len() / line.len()) as u64;
            writes += 1;
            if writes.is_multiple_of(listen_every) {
                self.poll_input()?;
            }
        }
        if let Some(turn) = &mut self.turn {
            turn.written_chars += (lines - left) * line_bytes as u64;
        }
        Ok(())
    }

    /// Writes one piece of text in a line of `bytes`, newline excluded.
    fn huge_line(&mut self, bytes: u64) -> Result<(), Halt> {
        let (TextFrame { head, tail }, _) = self.text_frame(0)?;
        let frame = (head.len() + tail.len() - 1) as u64;
        let mut left = bytes.saturating_sub(frame).max(1);
        self.out.write(&head)?;
        let chunk = vec![b'x'; AGENT_WRITE_BYTES];
        while left > 0 {
            let now = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
            self.out.write(&chunk[..now])?;
            left -= now as u64;
        }
        self.out.write(&tail)?;
        if let Some(turn) = &mut self.turn {
            turn.written_chars = turn.written_chars.saturating_add(bytes);
        }
        Ok(())
    }

    /// Sends `count` requests for the same file, one after the other, and reports the time of the
    /// answers, measured from before the write to after the read.
    fn measure_requests(&mut self, count: u64, path: &str) -> Result<(), Halt> {
        let call = ToolCall::ReadFile {
            path: path.to_owned(),
        };
        let call = self.settings.dialect.translate_call(&call).into_owned();
        let mut latency = Latency::default();
        for _ in 0..count {
            if !self.settings.think.is_zero() {
                self.out.flush()?;
                self.pause(self.settings.think)?;
            }
            if self.is_cancelled() {
                break;
            }
            let tool_id = self.next_call();
            self.queue_tool_start(&tool_id, &call)?;
            self.queue_permission_request(&tool_id, &call)?;
            let started = Instant::now();
            let permission = self.await_permission()?;
            let took = started.elapsed();
            let end = match permission {
                Permission::Allowed => {
                    latency.allowed += 1;
                    ToolOutcome::success(String::new(), String::new())
                }
                Permission::Denied(reason) => {
                    latency.denied += 1;
                    ToolOutcome::error(reason).without_running()
                }
                Permission::Cancelled => ToolOutcome::interrupted().without_running(),
            };
            latency.samples.push(took);
            // Sent together with the next request, as one write.
            self.queue_tool_end(&tool_id, &call, &end, Instant::now())?;
        }
        self.out.flush()?;
        let report = latency.report();
        self.log_to_ledger("ask", || serde_json::json!({"report": report}))?;
        self.send_text(&report)
    }
}

/// The times of the answers.
#[derive(Debug, Default)]
struct Latency {
    samples: Vec<Duration>,
    allowed: u64,
    denied: u64,
}

impl Latency {
    /// Pairs of words and numbers, for people and for the load bench: percentiles in microseconds,
    /// then a histogram of `floor in nanoseconds:count` with steps of 3 %.
    fn report(&mut self) -> String {
        self.samples.sort_unstable();
        let mut report = format!(
            "asks {} allowed {} denied {}",
            self.samples.len(),
            self.allowed,
            self.denied
        );
        for (name, permille) in [("p50", 500), ("p90", 900), ("p99", 990), ("max", 1000)] {
            let at = (self.samples.len() * permille).div_ceil(1000).max(1) - 1;
            let took = self.samples.get(at).copied().unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = write!(report, " {name}_us {:.1}", took.as_secs_f64() * 1e6);
        }
        report.push_str(" hist_ns ");
        let mut comma = "";
        let mut samples = self
            .samples
            .iter()
            .map(|took| bucket_start(*took))
            .peekable();
        while let Some(edge) = samples.next() {
            let mut count = 1;
            while samples.next_if_eq(&edge).is_some() {
                count += 1;
            }
            let _ = write!(report, "{comma}{edge}:{count}");
            comma = ",";
        }
        report.push('\n');
        report
    }
}

/// A duration's nanoseconds, reduced to the six highest bits.
fn bucket_start(took: Duration) -> u64 {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let dropped = (u64::BITS - ns.leading_zeros()).saturating_sub(6);
    ns >> dropped << dropped
}

fn crash(how: Crash) -> ! {
    // A core file would be a changed file of the workspace.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    if how == Crash::Kill {
        // The first process of a pid namespace ignores its own SIGKILL; then it aborts.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    std::process::abort()
}

fn hang(how: Hang) -> ! {
    if how == Hang::Stopped {
        let _ = kill_process(getpid(), Signal::STOP);
    }
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Starts a process that outlives the agent. Returns its pid as this process sees it.
fn spawn_orphan(marker: &str, pipes: Pipes) -> io::Result<String> {
    let pipe_ends = match pipes {
        Pipes::Dropped => Stdio::null(),
        Pipes::Held => io::stdout().as_fd().try_clone_to_owned()?.into(),
    };
    let output = Command::new("sh")
        .args(["-c", ORPHAN_SCRIPT, marker, ORPHAN_SECONDS])
        .env("SCRIPT_AGENT_ORPHAN", marker)
        .stdin(Stdio::null())
        .stderr(pipe_ends)
        .output()?;
    let pid = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if pid.is_empty() {
        return Err(io::Error::other(format!("sh: {}", output.status)));
    }
    Ok(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_percentiles_and_a_histogram_that_adds_up() {
        let mut latency = Latency {
            samples: (1..=1000).map(Duration::from_micros).rev().collect(),
            allowed: 999,
            denied: 1,
        };
        let report = latency.report();
        assert!(
            report.starts_with(
                "asks 1000 allowed 999 denied 1 p50_us 500.0 p90_us 900.0 p99_us 990.0 max_us 1000.0 hist_ns "
            ),
            "{report}"
        );
        let histogram = report.trim_end().rsplit_once(' ').unwrap().1;
        let counted: u64 = histogram
            .split(',')
            .map(|bucket| bucket.split_once(':').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert_eq!(counted, 1000);
        assert!(Latency::default().report().contains("p50_us 0.0"));
    }

    #[test]
    fn buckets_are_three_percent_apart() {
        for ns in [1_u64, 63, 64, 7_123, 1_000_000, u64::MAX >> 1] {
            let edge = bucket_start(Duration::from_nanos(ns));
            assert!(
                edge <= ns && (ns - edge) as f64 <= ns as f64 / 32.0,
                "{ns} {edge}"
            );
        }
    }
}
