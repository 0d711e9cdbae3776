//! The rules of the egress proxy, as they are shown.

use super::super::egress::{Egress, EgressTimeouts};
use super::super::units::{show_duration, show_size};
use super::{RenderedTable, texts};

/// `[egress]`.
pub(super) fn table(rules: &Egress) -> RenderedTable {
    let mut table = RenderedTable::new(&["egress"]);
    put(&mut table, "", rules);
    table
}

/// The keys, each with this prefix.
pub(super) fn put(table: &mut RenderedTable, before: &str, rules: &Egress) {
    let Egress {
        allow,
        connections,
        per_minute,
        sent_max,
        received_max,
        timeouts,
    } = rules;
    let EgressTimeouts {
        request,
        connect,
        idle,
        total,
    } = timeouts;
    let key = |name: &str| format!("{before}{name}");
    let lines: Vec<String> = allow.iter().map(ToString::to_string).collect();
    table.put(&key("allow"), texts(&lines));
    table.put(&key("connections"), i64::from(*connections));
    table.put(&key("per_minute"), i64::from(*per_minute));
    table.put(&key("sent_max"), show_size(*sent_max));
    table.put(&key("received_max"), show_size(*received_max));
    for (name, time) in [
        ("request", request),
        ("connect", connect),
        ("idle", idle),
        ("total", total),
    ] {
        table.put(&key(&format!("timeouts.{name}")), show_duration(*time));
    }
}
