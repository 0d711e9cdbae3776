//! How a tool is driven by files.

use super::{RenderedTable, path};
use crate::runner::Runner;
use crate::units::show_duration;

pub(super) fn put(table: &mut RenderedTable, runner: &Runner) {
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
    table.put_optional("runner.marker", marker.as_deref());
    table.put_optional("runner.unit", unit.as_deref());
    table.put_optional("runner.init", init.as_deref());
    table.put_optional("runner.dir", dir.as_deref().map(path));
    table.put("runner.timeout", show_duration(*timeout));
    table.put("runner.cancel", cancel.as_str());
    table.put_optional("runner.lease", lease.map(show_duration));
    table.put("runner.heartbeat", show_duration(*heartbeat));
    table.put("runner.poll", show_duration(*poll));
}
