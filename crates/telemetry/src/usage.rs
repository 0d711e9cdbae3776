//! Resource usage of the slots' children and of the host, as series of the page.
//!
//! A series without a value is omitted: this host does not count it, or no child runs. So are swap
//! that is not used, and kills that did not happen: most slots have neither.

use std::collections::BTreeMap;
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
            let bytes = bytes.filter(|bytes| *bytes > 0 || *kind != MemoryKind::Swap);
            let number = item.slot.index.to_string();
            let [pool, slot] = slot_labels(&item.slot, &number);
            let labels = [pool, slot, ("kind", kind.as_str())];
            write_series(out, &names::SLOT_MEMORY, &labels, bytes);
        }
    }
    out.push('\n');
    write_slot_metric(out, &names::SLOT_OOM_KILLS, slots, |item| {
        item.oom_kills.filter(|kills| *kills > 0)
    });
    write_slot_metric(out, &names::SLOT_PROCESSES, slots, |item| item.processes);
    let pools = sum_pools(slots);
    write_header(out, &names::SLOT_MEMORY_LIMIT);
    for (pool, sums) in &pools {
        let labels = [("pool", *pool)];
        write_series(out, &names::SLOT_MEMORY_LIMIT, &labels, sums.memory_limit);
    }
    out.push('\n');
    write_header(out, &names::POOL_PRESSURE);
    for (pool, sums) in &pools {
        write_stalls(out, &names::POOL_PRESSURE, Some(pool), sums.stalls);
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
        let number = item.slot.index.to_string();
        write_series(out, metric, &slot_labels(&item.slot, &number), value(item));
    }
    out.push('\n');
}

fn slot_labels<'a>(slot: &'a SlotId, number: &'a str) -> [(&'static str, &'a str); 2] {
    [("pool", slot.pool.as_str()), ("slot", number)]
}

/// What is the same for all slots of a pool, or says as much in one sum.
#[derive(Default)]
struct PoolSums {
    memory_limit: Option<u64>,
    stalls: StallSeconds,
}

fn sum_pools(slots: &[SlotUsage]) -> BTreeMap<&str, PoolSums> {
    let mut pools: BTreeMap<&str, PoolSums> = BTreeMap::new();
    for item in slots {
        let sums = pools.entry(item.slot.pool.as_str()).or_default();
        sums.memory_limit = sums.memory_limit.max(item.memory_limit);
        let all = sums.stalls.as_flattened_mut().iter_mut();
        for (sum, more) in all.zip(item.stalls.as_flattened()) {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or_default() + more);
            }
        }
    }
    pools
}

fn write_stalls(out: &mut String, metric: &Metric, pool: Option<&str>, stalls: StallSeconds) {
    for (resource, kinds) in StallResource::ALL.iter().zip(stalls) {
        for (kind, seconds) in StallKind::ALL.iter().zip(kinds) {
            let labels = [
                ("pool", pool.unwrap_or_default()),
                ("resource", resource.as_str()),
                ("kind", kind.as_str()),
            ];
            let own = usize::from(pool.is_none());
            write_series(out, metric, &labels[own..], seconds);
        }
    }
}

/// One series; pool names and closed words need no escapes.
fn write_series<V: std::fmt::Display>(
    out: &mut String,
    metric: &Metric,
    labels: &[(&str, &str)],
    value: Option<V>,
) {
    let Some(value) = value else { return };
    out.push_str(metric.name);
    let mut before = '{';
    for (name, word) in labels {
        let _ = write!(out, "{before}{name}=\"{word}\"");
        before = ',';
    }
    let _ = writeln!(out, "}} {value}");
}
