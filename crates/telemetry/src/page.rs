//! What the recorder does not write: build, process and per-slot series, from samples.
//!
//! A page with thousands of slot series takes milliseconds when written by hand and a tenth of a
//! second through the recorder.

use std::fmt::Write as _;

use super::labels::ApprovalAge;
use super::names::{self, Metric};
use super::usage::{self, UsageSample};
use marshal_model::{PoolName, SlotId};

/// The format of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// The Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl PageFormat {
    /// The format of the header `Accept`: OpenMetrics only where it is asked for and nothing else
    /// that is served here is preferred.
    #[must_use]
    pub fn accepted(header: Option<&str>) -> Self {
        let quality = |parameters: &str| {
            let mut all = parameters.split(';').map(str::trim);
            let found = all.find_map(|one| one.strip_prefix("q="));
            found.map_or(Some(1.0), |value| value.parse::<f32>().ok())
        };
        let best = |kind: &str| {
            let ranges = header.unwrap_or_default().split(',');
            let of_kind = ranges.filter_map(|range| {
                let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
                let is_known = !parameters.contains("version=") || {
                    let version = parameters.split("version=").nth(1).unwrap_or_default();
                    ["1.0.0", "0.0.1", "0.0.4"]
                        .contains(&version.split([';', ' ']).next().unwrap_or_default())
                };
                (name.trim().eq_ignore_ascii_case(kind) && is_known).then(|| quality(parameters))?
            });
            of_kind.fold(0.0_f32, f32::max)
        };
        let wanted = best("application/openmetrics-text");
        if wanted > 0.0 && wanted >= best("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The header `Content-Type` of the page.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What the page needs at the moment of the scrape.
#[derive(Debug, Default)]
pub struct Samples<'a> {
    /// The supervisor's own process, if it can be read.
    pub process: Option<ProcessStats>,
    /// The pools.
    pub pools: Vec<PoolSample<'a>>,
    /// The slots, in the order of pools and numbers.
    pub slots: Vec<SlotSample<'a>>,
    /// What the slots and the host use.
    pub usage: UsageSample,
}

/// A pool at the moment of the scrape.
#[derive(Debug, Clone)]
pub struct PoolSample<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The cost of its turns in US dollars; `None` if it counts no cost.
    pub dollars: Option<f64>,
    /// Its permission requests that wait for a person, by [`ApprovalAge`].
    pub approvals: [u64; ApprovalAge::ALL.len()],
}

/// Build information.
#[derive(Debug, Clone, Default)]
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

pub(super) fn write(out: &mut String, build: &BuildInfo, samples: &Samples<'_>) {
    write_build(out, build);
    if let Some(process) = &samples.process {
        write_process(out, process);
    }
    write_pools(out, &samples.pools);
    write_slots(out, &samples.slots);
    usage::write_usages(out, &samples.usage);
}

fn write_pools(out: &mut String, pools: &[PoolSample<'_>]) {
    write_header(out, &names::COST);
    for sample in pools {
        if let Some(dollars) = sample.dollars {
            let name = names::COST.name;
            let _ = writeln!(out, "{name}{{pool=\"{}\"}} {dollars}", sample.pool);
        }
    }
    out.push('\n');
    write_header(out, &names::APPROVALS_WAITING);
    for sample in pools {
        for (age, waiting) in ApprovalAge::ALL.iter().zip(sample.approvals) {
            // Of most pools nothing waits.
            if waiting > 0 {
                let (name, pool) = (names::APPROVALS_WAITING.name, sample.pool);
                let _ = writeln!(out, "{name}{{pool=\"{pool}\",age=\"{age}\"}} {waiting}");
            }
        }
    }
    out.push('\n');
}

fn write_build(out: &mut String, build: &BuildInfo) {
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

fn write_process(out: &mut String, stats: &ProcessStats) {
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

fn write_slots(out: &mut String, slots: &[SlotSample<'_>]) {
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
