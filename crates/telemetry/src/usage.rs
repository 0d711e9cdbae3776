//! Resource usage of the slots' children and of the host, as series of the page.
//!
//! A series without a value is omitted: this host does not count it, or no child runs.

use std::fmt::Write as _;

use super::labels::{MemoryKind, StallKind, StallResource};
use super::names::{self, Metric};
use super::page::write_header;
use marshal_model::SlotId;

/// Stall times in seconds, by resource (cpu, memory, io) and kind (some, full).
pub type StallSeconds = [[Option<f64>; 2]; 3];

/// The resource usage of a slot's children.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotUsage {
    /// The slot.
    pub slot: SlotId,
    /// CPU time of all its children together.
    pub cpu_seconds: Option<f64>,
    /// Memory of its current child in bytes, by [`MemoryKind`].
    pub memory: [Option<u64>; 3],
    /// The memory limit in bytes, if one is enforced.
    pub memory_limit: Option<u64>,
    /// Processes of all its children that were killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Processes and threads of its current child.
    pub processes: Option<u64>,
    /// Stall times of all its children.
    pub stalls: StallSeconds,
}

/// The resource usage at the moment of a scrape.
#[derive(Debug, Clone, Default)]
pub struct UsageSample {
    /// Usage of each slot.
    pub slots: Vec<SlotUsage>,
    /// Stall times of the whole host.
    pub host: StallSeconds,
}

// Writing to a String cannot fail, so results of write! are dropped in this file.

pub(super) fn write_usages(out: &mut String, usages: &UsageSample) {
    let slots = &usages.slots;
    write_slot_metric(out, &names::SLOT_CPU, slots, |item| item.cpu_seconds);
    write_header(out, &names::SLOT_MEMORY);
    for item in slots {
        for (kind, bytes) in MemoryKind::ALL.iter().zip(item.memory) {
            let kind = ("kind", kind.as_str());
            write_series(out, &names::SLOT_MEMORY, Some(&item.slot), &[kind], bytes);
        }
    }
    out.push('\n');
    write_slot_metric(out, &names::SLOT_MEMORY_LIMIT, slots, |item| {
        item.memory_limit
    });
    write_slot_metric(out, &names::SLOT_OOM_KILLS, slots, |item| item.oom_kills);
    write_slot_metric(out, &names::SLOT_PROCESSES, slots, |item| item.processes);
    write_header(out, &names::SLOT_PRESSURE);
    for item in slots {
        write_stalls(out, &names::SLOT_PRESSURE, Some(&item.slot), item.stalls);
    }
    out.push('\n');
    write_header(out, &names::HOST_PRESSURE);
    write_stalls(out, &names::HOST_PRESSURE, None, usages.host);
    out.push('\n');
}

fn write_slot_metric<V: std::fmt::Display>(
    out: &mut String,
    metric: &Metric,
    slots: &[SlotUsage],
    value: impl Fn(&SlotUsage) -> Option<V>,
) {
    write_header(out, metric);
    for item in slots {
        write_series(out, metric, Some(&item.slot), &[], value(item));
    }
    out.push('\n');
}

fn write_stalls(out: &mut String, metric: &Metric, slot: Option<&SlotId>, stalls: StallSeconds) {
    for (resource, kinds) in StallResource::ALL.iter().zip(stalls) {
        for (kind, seconds) in StallKind::ALL.iter().zip(kinds) {
            let labels = [("resource", resource.as_str()), ("kind", kind.as_str())];
            write_series(out, metric, slot, &labels, seconds);
        }
    }
}

/// One series; pool names and closed words need no escapes.
fn write_series<V: std::fmt::Display>(
    out: &mut String,
    metric: &Metric,
    slot: Option<&SlotId>,
    labels: &[(&str, &str)],
    value: Option<V>,
) {
    let Some(value) = value else { return };
    out.push_str(metric.name);
    let mut before = '{';
    if let Some(slot) = slot {
        let _ = write!(out, "{{pool=\"{}\",slot=\"{}\"", slot.pool, slot.index);
        before = ',';
    }
    for (name, word) in labels {
        let _ = write!(out, "{before}{name}=\"{word}\"");
        before = ',';
    }
    let _ = writeln!(out, "}} {value}");
}
