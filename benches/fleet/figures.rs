//! The measurements: named figures, latencies as histograms, the process's own cost.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::Failure;

/// The figures of one run, by name; a name ends with its unit.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<String, f64>);

impl Figures {
    /// Records a figure.
    pub(crate) fn note(&mut self, name: &str, figure: f64) {
        self.0.insert(name.to_owned(), figure);
    }

    /// Records the percentiles of a latency, in microseconds.
    pub(crate) fn note_latency(&mut self, name: &str, latency: &Latency) {
        for (part, permille) in [("p50", 500), ("p90", 900), ("p99", 990), ("max", 1000)] {
            let took_us = latency.at(permille) as f64 / 1e3;
            self.note(&format!("{name}_{part}_us"), took_us);
        }
    }

    /// Records wall and CPU time, in seconds, and both for each of `events`.
    pub(crate) fn note_cost(&mut self, wall_s: f64, cpu_s: f64, events: u64) {
        self.note("wall_s", wall_s);
        self.note("cpu_s", cpu_s);
        self.note("cpu_share", cpu_s / wall_s);
        if events > 0 {
            self.note("events", events as f64);
            self.note("events_per_s", events as f64 / wall_s);
            self.note("events_per_core_s", events as f64 / cpu_s);
            self.note("cpu_us_per_event", cpu_s * 1e6 / events as f64);
        }
    }

    /// The figures' names.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Parses the output of [`Self::shown`].
    pub(crate) fn read(text: &[u8]) -> Result<Self, Failure> {
        Ok(Self(serde_json::from_slice(text)?))
    }

    /// The figures as JSON, for the output.
    pub(crate) fn to_json(&self) -> Value {
        json!(self.0)
    }
}

/// The median of a figure, if every run has it.
pub(crate) fn median(runs: &[Figures], name: &str) -> Option<f64> {
    let mut figures = runs
        .iter()
        .map(|run| run.0.get(name).copied())
        .collect::<Option<Vec<f64>>>()?;
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Latencies: the number of each length, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Latency(BTreeMap<u64, u64>);

impl Latency {
    /// Adds one.
    pub(crate) fn add(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        *self.0.entry(took_ns).or_default() += 1;
    }

    /// Adds the histogram at the end of an `ask` report: `… hist_ns 9728:12,9984:80`.
    pub(crate) fn add_report(&mut self, report: &str) -> Result<(), Failure> {
        let histogram = report
            .trim_end()
            .rsplit_once(" hist_ns ")
            .ok_or("a report without a histogram")?
            .1;
        for bucket in histogram.split(',') {
            let (edge, count) = bucket.split_once(':').ok_or("a bucket without a count")?;
            *self.0.entry(edge.parse()?).or_default() += count.parse::<u64>()?;
        }
        Ok(())
    }

    /// Adds all of another.
    pub(crate) fn merge(&mut self, other: Self) {
        for (edge, count) in other.0 {
            *self.0.entry(edge).or_default() += count;
        }
    }

    /// The number of latencies.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The latency, in nanoseconds, that this many of a thousand do not exceed.
    fn at(&self, permille: u64) -> u64 {
        let rank = (self.count() * permille).div_ceil(1000);
        let mut passed = 0;
        for (edge, count) in &self.0 {
            passed += count;
            if passed >= rank {
                return *edge;
            }
        }
        0
    }
}

/// The cost of this process since the value was created.
#[derive(Debug)]
pub(crate) struct Cost {
    began: Instant,
    cpu: Duration,
}

impl Cost {
    pub(crate) fn begin() -> Self {
        Self {
            began: Instant::now(),
            cpu: cpu(),
        }
    }

    /// Records wall and CPU time so far, and both for each of `events`.
    pub(crate) fn note(&self, figures: &mut Figures, events: u64) {
        let wall_s = self.began.elapsed().as_secs_f64();
        let cpu_s = cpu().saturating_sub(self.cpu).as_secs_f64();
        figures.note_cost(wall_s, cpu_s, events);
    }
}

/// The CPU time of this process, with all threads, including ended ones.
fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(spent.tv_sec).unwrap_or(0),
        u32::try_from(spent.tv_nsec).unwrap_or(0),
    )
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> Result<f64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or("no VmRSS in /proc/self/status")?
        .parse()?;
    Ok(kib * 1024.0)
}

/// The number of open descriptors of this process.
pub(crate) fn descriptors() -> Result<f64, Failure> {
    Ok(fs::read_dir("/proc/self/fd")?.count() as f64)
}
