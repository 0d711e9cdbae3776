//! How a tool is driven by files.

use super::{Shown, path};
use crate::config::runner::Runner;
use crate::config::units::show_duration;

pub(super) fn put(table: &mut Shown, runner: &Runner) {
    let Runner {
        kind,
        marker,
        unit,
        init,
        dir,
        timeout,
        cancel,
        lease,
        heartbeat,
        poll,
    } = runner;
    table.put("runner.kind", kind.as_str());
    table.put_some("runner.marker", marker.as_deref());
    table.put_some("runner.unit", unit.as_deref());
    table.put_some("runner.init", init.as_deref());
    table.put_some("runner.dir", dir.as_deref().map(path));
    table.put("runner.timeout", show_duration(*timeout));
    table.put("runner.cancel", cancel.word());
    table.put_some("runner.lease", lease.map(show_duration));
    table.put("runner.heartbeat", show_duration(*heartbeat));
    table.put("runner.poll", show_duration(*poll));
}
