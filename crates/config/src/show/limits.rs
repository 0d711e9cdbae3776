//! The limits of a profile, as they are shown.

use super::RenderedTable;
use crate::units::show_size;
use marshal_model::ResourceLimits;
use toml::Value;

pub(super) fn put(table: &mut RenderedTable, limits: ResourceLimits) {
    let ResourceLimits {
        pids,
        memory,
        swap,
        cpu_millis,
        backend,
    } = limits;
    let none = || Value::from("none");
    let size = |bytes: Option<u64>| bytes.map_or_else(none, |bytes| show_size(bytes).into());
    let pids = pids.map_or_else(none, |pids| i64::from(pids).into());
    table.put("limits.pids", pids);
    table.put("limits.memory", size(memory));
    table.put("limits.swap", size(swap));
    let cpus = cpu_millis.map(|millis| f64::from(millis) / 1000.0);
    table.put("limits.cpu", cpus.map_or_else(none, Value::from));
    table.put("limits.backend", backend.as_str());
}
