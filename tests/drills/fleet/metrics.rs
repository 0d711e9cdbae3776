//! Metrics move: a fleet is driven, and every family of the page that this drive should move has.

use std::collections::BTreeMap;

use crate::chat_client::{Daemon, drill};

/// The sum of each family's samples; of a histogram, the number of observations.
fn sums(page: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            head.split(' ')
                .next()
                .unwrap_or_default()
                .clone_into(&mut family);
            sums.entry(family.clone()).or_insert(0.0);
        } else if !line.starts_with('#')
            && let Some((series, value)) = line.rsplit_once(' ')
        {
            let name = series.split('{').next().unwrap_or_default();
            if name == family || name == format!("{family}_count") {
                let value: f64 = value.parse().expect(line);
                *sums.entry(family.clone()).or_insert(0.0) += value.abs();
            }
        }
    }
    sums
}

/// What this drive does not move: an error would, or a feature that it does not use.
const STILL: &[&str] = &[
    "marshal_actor_panics_total",
    "marshal_approvals_oldest_pending_seconds",
    "marshal_approvals_pending",
    "marshal_budget_remaining_ratio",
    "marshal_budget_spent_total",
    "marshal_cgroup_errors_total",
    "marshal_child_downtime_seconds",
    "marshal_child_hangs_total",
    "marshal_delegate_errors_total",
    "marshal_delegate_seconds",
    "marshal_egress_bytes_total",
    "marshal_egress_connections",
    "marshal_egress_connections_total",
    "marshal_file_plane_answers_total",
    "marshal_file_plane_requests_total",
    "marshal_file_plane_up",
    "marshal_journal_backlog_events",
    "marshal_journal_errors_total",
    "marshal_journal_removed_events_total",
    "marshal_journal_removed_sessions_total",
    "marshal_policy_evaluation_errors_total",
    "marshal_policy_reloads_total",
    "marshal_policy_shadow_differences_total",
    "marshal_policy_shadow_evaluations_total",
    "marshal_pool_paused",
    "marshal_protocol_errors_total",
    "marshal_queue_oldest_task_seconds",
    "marshal_queue_rejected_total",
    "marshal_queue_tasks",
    "marshal_rate_limited_total",
    "marshal_sandbox_degraded_total",
    "marshal_sandbox_failures_total",
    "marshal_slot_memory_bytes",
    "marshal_slot_memory_limit_bytes",
    "marshal_slot_oom_kills_total",
    "marshal_slot_processes",
    "marshal_slot_up",
    "marshal_stdin_queue_messages",
    "marshal_task_panics_total",
    "marshal_tool_calls_unasked_total",
];

#[test]
fn every_metric_that_a_fleet_at_work_moves_has_moved() {
    let drill = drill("scaiflux", 2);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nread README.md");
    let mut stream = daemon.follow(&chat, None);
    stream.any_turn();
    let ran = drill.run(&["run", "say two", "crash"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let (status, _) = drill.get("/metrics");
    assert_eq!(status, 200);
    let (_, page) = drill.get("/metrics");
    let sums = sums(&page);
    let still = sums.iter().filter(|(_, sum)| **sum == 0.0);
    let still: Vec<&str> = still
        .map(|(name, _)| name.as_str())
        .filter(|name| !STILL.contains(name))
        .collect();
    assert_eq!(still, [""; 0], "these did not move");
    // A family that is gone is not one that stands still.
    let gone: Vec<_> = STILL
        .iter()
        .filter(|name| !sums.contains_key(**name))
        .collect();
    assert!(gone.is_empty(), "{gone:?}");
}
