//! `approval` of a pool, as it is shown.

use super::super::approval::ApprovalConfig;
use super::super::units::show_duration;
use super::{RenderedTable, texts};

/// The keys.
pub(super) fn put(table: &mut RenderedTable, of_ask: &ApprovalConfig) {
    let ApprovalConfig {
        timeout,
        agent_waits,
        on_timeout,
        when_waiting,
        remember,
        approvers,
        max_pending,
    } = of_ask;
    table.put("approval.timeout", show_duration(*timeout));
    let waits = agent_waits.map_or_else(|| "none".to_owned(), show_duration);
    table.put("approval.agent_waits", waits);
    table.put("approval.on_timeout", on_timeout.as_str());
    table.put("approval.when_waiting", when_waiting.as_str());
    table.put("approval.remember", remember.as_str());
    let approvers: Vec<String> = approvers.iter().map(ToString::to_string).collect();
    table.put("approval.approvers", texts(&approvers));
    let most = i64::try_from(*max_pending).unwrap_or(i64::MAX);
    table.put("approval.max_pending", most);
}
