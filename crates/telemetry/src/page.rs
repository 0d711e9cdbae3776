//! What the recorder does not write: build, process and per-slot series, from samples.
//!
//! A page with thousands of slot series takes milliseconds when written by hand and a tenth of a
//! second through the recorder.

use std::fmt::Write as _;

use super::names::{self, Metric};
use marshal_model::SlotId;

/// Build information.
#[derive(Debug, Clone)]
pub struct BuildInfo {
    /// The crate's version.
    pub version: &'static str,
    /// The revision of the source, or `unknown`.
    pub revision: &'static str,
    /// The compiler, or `unknown`.
    pub rustc: &'static str,
}

/// The supervisor's own process, from proc(5).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessStats {
    /// User and system time.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// The soft limit of open file descriptors; `None` if there is none.
    pub max_fds: Option<u64>,
    /// When it started, Unix seconds.
    pub start_time_seconds: f64,
}

/// A slot at the moment of the scrape.
#[derive(Debug, Clone)]
pub struct SlotSample<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The agent: the first word of the pool's command, or the preset's name.
    pub agent: &'a str,
    /// The dialect's name.
    pub protocol: &'a str,
    /// Whether its child runs and has passed its handshake.
    pub up: bool,
    /// When its child started, Unix seconds, if it has one.
    pub start_time_seconds: Option<f64>,
    /// The exit code of its last child, by [`marshal_model::ExitStatus::shell_code`].
    pub last_exit_code: Option<i32>,
}

// Writing to a String cannot fail, so results of write! are dropped in this file.

pub(super) fn write_header(out: &mut String, metric: &Metric) {
    let (name, help, kind) = (metric.name, metric.help, metric.kind.as_str());
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label value with the three escapes of the text format.
fn write_escaped(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn write_labels(out: &mut String, pairs: &[(&str, &str)]) {
    out.push('{');
    for (place, (name, value)) in pairs.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        let _ = write!(out, "{name}=\"");
        write_escaped(out, value);
        out.push('"');
    }
    out.push('}');
}

fn write_plain(out: &mut String, metric: &Metric, value: impl std::fmt::Display) {
    write_header(out, metric);
    let _ = writeln!(out, "{} {value}\n", metric.name);
}

pub(super) fn write_build(out: &mut String, build: &BuildInfo) {
    write_header(out, &names::BUILD_INFO);
    out.push_str(names::BUILD_INFO.name);
    write_labels(
        out,
        &[
            ("version", build.version),
            ("revision", build.revision),
            ("rustc", build.rustc),
        ],
    );
    out.push_str(" 1\n\n");
}

pub(super) fn write_process(out: &mut String, stats: &ProcessStats) {
    write_plain(out, &names::PROCESS_CPU, stats.cpu_seconds);
    write_plain(out, &names::PROCESS_RESIDENT, stats.resident_bytes);
    write_plain(out, &names::PROCESS_OPEN_FDS, stats.open_fds);
    match stats.max_fds {
        Some(max) => write_plain(out, &names::PROCESS_MAX_FDS, max),
        None => write_plain(out, &names::PROCESS_MAX_FDS, "+Inf"),
    }
    write_plain(out, &names::PROCESS_START, stats.start_time_seconds);
}

pub(super) fn write_series(out: &mut String, series: u64) {
    write_plain(out, &names::SERIES, series);
}

pub(super) fn write_slots(out: &mut String, slots: &[SlotSample<'_>]) {
    write_header(out, &names::SLOT_INFO);
    for sample in slots {
        let number = sample.slot.index.to_string();
        out.push_str(names::SLOT_INFO.name);
        write_labels(
            out,
            &[
                ("pool", sample.slot.pool.as_str()),
                ("slot", &number),
                ("agent", sample.agent),
                ("protocol", sample.protocol),
            ],
        );
        out.push_str(" 1\n");
    }
    out.push('\n');
    write_per_slot(out, &names::SLOT_UP, slots, |sample| {
        Some(f64::from(u8::from(sample.up)))
    });
    write_per_slot(out, &names::SLOT_START, slots, |sample| {
        sample.start_time_seconds
    });
    write_per_slot(out, &names::SLOT_LAST_EXIT, slots, |sample| {
        sample.last_exit_code.map(f64::from)
    });
}

fn write_per_slot(
    out: &mut String,
    metric: &Metric,
    slots: &[SlotSample<'_>],
    value: impl Fn(&SlotSample<'_>) -> Option<f64>,
) {
    write_header(out, metric);
    for sample in slots {
        if let Some(value) = value(sample) {
            // Pool names need no escapes: `[a-z0-9][a-z0-9-]{0,31}`.
            let _ = writeln!(
                out,
                "{}{{pool=\"{}\",slot=\"{}\"}} {value}",
                metric.name, sample.slot.pool, sample.slot.index
            );
        }
    }
    out.push('\n');
}
