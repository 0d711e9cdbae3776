//! The catalogue: every metric with its name, type, labels, buckets and help text.
//!
//! `docs/metrics.md` lists the same, and a test compares them. A metric that is not in
//! [`CATALOGUE`] is not exported, because nothing here makes one without its entry.
//!
//! A new metric: its row here, one struct in `event/` and its row in `docs/metrics.md`.

use super::labels::{self, LabelWords};

/// The Prometheus type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Observations, counted in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

impl MetricKind {
    /// The word of the text format's `# TYPE` line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// Where a label's values come from: always a bounded set.
#[derive(Debug, Clone, Copy)]
pub enum LabelValues {
    /// The configuration's pools.
    Pools,
    /// The numbers of a pool's slots.
    Slots,
    /// A pool's routes.
    Routes,
    /// One value a series, from the configuration or the build.
    SingleValue,
    /// The words of a closed set.
    Words(LabelWords),
}

/// A label.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// The name.
    pub name: &'static str,
    /// Its values.
    pub values: LabelValues,
}

/// Who writes a metric's series, and since when they exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The recorder, each from its first change: most never change.
    Recorder,
    /// The recorder, all from the start, at 0: `increase()` misses a series born at 1.
    FromStart,
    /// [`super::page`], from samples.
    Page,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// Its labels, in the order of the catalogue.
    pub labels: &'static [Label],
    /// Its help text.
    pub help: &'static str,
    /// Who writes its series.
    pub source: Source,
}

const fn closed_label(name: &'static str, words: LabelWords) -> Label {
    Label {
        name,
        values: LabelValues::Words(words),
    }
}

const fn fixed_label(name: &'static str) -> Label {
    Label {
        name,
        values: LabelValues::SingleValue,
    }
}

const POOL: Label = Label {
    name: "pool",
    values: LabelValues::Pools,
};
const SLOT: Label = Label {
    name: "slot",
    values: LabelValues::Slots,
};

const ROUTE: Label = Label {
    name: "route",
    values: LabelValues::Routes,
};

/// Seconds of operations that take microseconds: a write, a policy evaluation.
const MICROSECOND_BUCKETS: &[f64] = &[0.000_005, 0.000_02, 0.000_1, 0.000_5, 0.005, 0.05, 1.0];
/// Seconds of operations on the disk or in the kernel.
const MILLISECOND_BUCKETS: &[f64] = &[0.000_5, 0.0025, 0.01, 0.05, 0.25, 1.0, 10.0];
/// Seconds of waiting: for a process, a person, a backoff, a slot.
const WAIT_BUCKETS: &[f64] = &[0.02, 0.2, 1.0, 10.0, 60.0, 600.0, 3600.0];
/// OpenTelemetry's advice for `gen_ai.invoke_agent.duration`: 0.1 s to 409.6 s, doubling.
const TURN_SECONDS_BUCKETS: &[f64] = &[
    0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6,
];
/// OpenTelemetry's advice for `gen_ai.execute_tool.duration`: 0.01 s to 81.92 s, doubling.
const TOOL_SECONDS_BUCKETS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const LINE_BYTES_BUCKETS: &[f64] = &[256.0, 1024.0, 8192.0, 65_536.0, 1_048_576.0, 8_388_608.0];
const COUNT_BUCKETS: &[f64] = &[0.0, 1.0, 4.0, 16.0, 64.0, 512.0, 4096.0];

/// Declares the metrics as constants and collects them.
macro_rules! catalogue {
    ($($constant:ident = $source:ident $kind:expr, $name:literal, [$($label:expr),*], $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: $kind,
                labels: &[$($label),*],
                help: $help,
                source: Source::$source,
            };
        )+

        /// Every metric, in the order of the documentation.
        pub const CATALOGUE: &[Metric] = &[$($constant),+];
    };
}

use MetricKind::{Counter, Gauge, Histogram};

catalogue!(
    BUILD_INFO = Page Gauge, "marshal_build_info", [fixed_label("version"), fixed_label("revision"), fixed_label("rustc")],
        "Build information; always 1.";
    PROCESS_CPU = Page Counter, "process_cpu_seconds_total", [],
        "Supervisor user and system CPU time.";
    PROCESS_RESIDENT = Page Gauge, "process_resident_memory_bytes", [],
        "Supervisor resident memory.";
    PROCESS_OPEN_FDS = Page Gauge, "process_open_fds", [],
        "Supervisor open file descriptors.";
    PROCESS_MAX_FDS = Page Gauge, "process_max_fds", [],
        "Supervisor open file descriptor limit.";
    PROCESS_START = Page Gauge, "process_start_time_seconds", [],
        "Supervisor start time, Unix seconds.";

    POOL_SLOTS_DESIRED = FromStart Gauge, "marshal_pool_slots_desired", [POOL],
        "Slots the configuration asks for.";
    POOL_SLOTS = FromStart Gauge, "marshal_pool_slots", [POOL, closed_label("state", labels::slot_states)],
        "Slots by state.";
    SLOT_INFO = Page Gauge, "marshal_slot_info", [POOL, SLOT, fixed_label("agent"), fixed_label("protocol")],
        "Slot metadata; always 1. The slot number is stable and bounded by the pool size.";
    SLOT_UP = Page Gauge, "marshal_slot_up", [POOL, SLOT],
        "Whether the slot's child is running and has passed its handshake.";
    SLOT_START = Page Gauge, "marshal_slot_start_time_seconds", [POOL, SLOT],
        "Start time of the slot's current child, Unix seconds.";
    SLOT_LAST_EXIT = Page Gauge, "marshal_slot_last_exit_code", [POOL, SLOT],
        "Exit code of the slot's last child; 128 plus the signal when it was killed.";

    CHILD_SPAWNS = FromStart Counter, "marshal_child_spawns_total", [POOL, closed_label("result", labels::spawn_results)],
        "Child spawns by result.";
    CHILD_SPAWN_SECONDS = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_child_spawn_duration_seconds", [POOL],
        "Time from the spawn decision until the process exists.";
    CHILD_READY_SECONDS = Recorder Histogram(WAIT_BUCKETS), "marshal_child_ready_duration_seconds", [POOL],
        "Time from the spawn decision until the protocol handshake is complete.";
    CHILD_EXITS = Recorder Counter, "marshal_child_exits_total", [POOL, closed_label("reason", labels::exit_classes)],
        "Child exits by class.";
    CHILD_RESTARTS = FromStart Counter, "marshal_child_restarts_total", [POOL, closed_label("cause", labels::restart_causes)],
        "Restarts by cause: unexpected ends, and restarts by hand.";
    CHILD_RESTART_DELAY = Recorder Histogram(WAIT_BUCKETS), "marshal_child_restart_delay_seconds", [POOL],
        "Back-off delay waited before a restart.";
    CHILD_DOWNTIME = Recorder Histogram(WAIT_BUCKETS), "marshal_child_downtime_seconds", [POOL],
        "Time from child death until its slot is ready again.";
    CHILD_HANGS = Recorder Counter, "marshal_child_hangs_total", [POOL, closed_label("kind", labels::hang_kinds)],
        "Children detected as hung, by kind.";
    SANDBOX_FAILURES = Recorder Counter, "marshal_sandbox_failures_total", [POOL, closed_label("stage", labels::sandbox_stages)],
        "Sandbox set-up failures by stage.";
    SANDBOX_DEGRADED = Recorder Counter, "marshal_sandbox_degraded_total", [POOL, closed_label("feature", labels::sandbox_gaps)],
        "Children started in a sandbox that lacks a layer, by layer.";

    SLOT_CPU = Page Counter, "marshal_slot_cpu_seconds_total", [POOL, SLOT],
        "CPU time of the slot's children and their descendants.";
    SLOT_MEMORY = Page Gauge, "marshal_slot_memory_bytes", [POOL, SLOT, closed_label("kind", labels::memory_kinds)],
        "Memory of the slot's child and its descendants, by kind.";
    SLOT_MEMORY_LIMIT = Page Gauge, "marshal_slot_memory_limit_bytes", [POOL],
        "Memory limit of each child of the pool, where a control group enforces one.";
    SLOT_OOM_KILLS = Page Counter, "marshal_slot_oom_kills_total", [POOL, SLOT],
        "Processes of the slot's children that the kernel killed for lack of memory.";
    SLOT_PROCESSES = Page Gauge, "marshal_slot_processes", [POOL, SLOT],
        "Processes and threads of the slot's child, helpers included.";
    POOL_PRESSURE = Page Counter, "marshal_pool_pressure_seconds_total", [POOL, closed_label("resource", labels::stall_resources), closed_label("kind", labels::stall_kinds)],
        "Time that some or all processes of a child waited for a resource, summed over the pool's children.";
    HOST_PRESSURE = Page Counter, "marshal_host_pressure_seconds_total", [closed_label("resource", labels::stall_resources), closed_label("kind", labels::stall_kinds)],
        "Time that some or all processes of this host waited for a resource.";
    CGROUP_ERRORS = Recorder Counter, "marshal_cgroup_errors_total", [closed_label("operation", labels::cgroup_operations)],
        "Failed operations on control groups, by operation.";

    EVENTS = Recorder Counter, "marshal_events_total", [POOL, closed_label("kind", labels::event_kinds)],
        "Events read from children by kind.";
    EVENT_BYTES = Recorder Counter, "marshal_event_bytes_total", [POOL, closed_label("stream", labels::streams)],
        "Bytes read from children by stream.";
    EVENT_SIZE = Recorder Histogram(LINE_BYTES_BUCKETS), "marshal_event_size_bytes", [POOL],
        "Size of one line read from a child.";
    EVENT_PROCESSING = Recorder Histogram(MICROSECOND_BUCKETS), "marshal_event_processing_seconds", [],
        "Time from read() returning until its events are handed to fan-out.";
    PROTOCOL_ERRORS = Recorder Counter, "marshal_protocol_errors_total", [POOL, closed_label("reason", labels::line_faults)],
        "Lines rejected by reason.";
    STDIN_QUEUE = FromStart Gauge, "marshal_stdin_queue_messages", [POOL],
        "Messages waiting to be written to children's stdin.";
    STDIN_WRITE_SECONDS = Recorder Histogram(MICROSECOND_BUCKETS), "marshal_stdin_write_seconds", [POOL],
        "Time to write one message to a child's stdin, blocking included.";

    TURNS = Recorder Counter, "marshal_turns_total", [POOL, closed_label("outcome", labels::turn_outcomes)],
        "Agent turns by outcome.";
    TURN_SECONDS_TAKEN = Recorder Histogram(TURN_SECONDS_BUCKETS), "marshal_turn_duration_seconds", [POOL, closed_label("outcome", labels::turn_outcomes)],
        "Duration of one turn.";
    TURN_FIRST_EVENT = Recorder Histogram(WAIT_BUCKETS), "marshal_turn_first_event_seconds", [POOL],
        "Time from the prompt being written until the turn's first output event.";
    TURN_TOOL_CALLS = Recorder Histogram(COUNT_BUCKETS), "marshal_turn_tool_calls", [POOL],
        "Tool calls in one turn.";
    TOOL_CALLS = Recorder Counter, "marshal_tool_calls_total", [POOL, closed_label("tool_class", labels::tool_classes), closed_label("outcome", labels::tool_outcomes)],
        "Tool calls by outcome.";
    TOOL_CALL_SECONDS = Recorder Histogram(TOOL_SECONDS_BUCKETS), "marshal_tool_call_duration_seconds", [POOL, closed_label("tool_class", labels::tool_classes)],
        "Duration of one tool call as the agent reported it.";
    TOOL_CALLS_UNASKED = FromStart Counter, "marshal_tool_calls_unasked_total", [POOL, closed_label("verdict", labels::decisions)],
        "Tool calls that ran without a permission request, by the policy's later verdict.";
    TOKENS = Recorder Counter, "marshal_tokens_total", [POOL, closed_label("type", labels::token_types)],
        "Tokens reported by agents by type.";

    ROUTE_REQUESTS = Recorder Counter, "marshal_route_requests_total", [POOL, ROUTE, closed_label("code", labels::route_codes)],
        "Requests sent to an upstream, by its response.";
    ROUTE_REFUSED = FromStart Counter, "marshal_route_refused_total", [POOL, ROUTE, closed_label("reason", labels::route_refusals)],
        "Requests that the model proxy refused, or whose response failed, by reason.";
    ROUTE_FIRST_BYTE = Recorder Histogram(WAIT_BUCKETS), "marshal_route_first_byte_seconds", [POOL, ROUTE],
        "Time from sending a request to an upstream until the head of its response.";
    ROUTE_SECONDS = Recorder Histogram(TURN_SECONDS_BUCKETS), "marshal_route_request_duration_seconds", [POOL, ROUTE],
        "Time from sending a request to an upstream until the end of its response.";
    ROUTE_TOKENS = Recorder Counter, "marshal_route_tokens_total", [POOL, ROUTE, closed_label("type", labels::route_tokens)],
        "Tokens counted from the responses of upstreams; cache_read, cache_write and reasoning are parts of input and output.";
    ROUTE_CONNECTIONS = FromStart Gauge, "marshal_route_connections", [POOL, ROUTE],
        "Open connections from inside sandboxes.";
    RATE_LIMITED = Recorder Counter, "marshal_rate_limited_total", [POOL, closed_label("sign", labels::limit_signs)],
        "Turns that failed because a provider limits requests, by how that was detected.";
    POOL_PAUSED = FromStart Gauge, "marshal_pool_paused", [POOL],
        "Whether the pool is paused because a provider limits requests (1) or not (0).";

    BUDGET_REMAINING = Recorder Gauge, "marshal_budget_remaining_ratio", [POOL],
        "Unspent part of the pool's daily and lifetime budgets, 0 to 1: the smallest part left.";
    BUDGET_SPENT = Recorder Counter, "marshal_budget_spent_total", [POOL, closed_label("budget", labels::budgets)],
        "Budgets that ran out, by budget: once for each turn, session, day, pool or run.";

    COST = Page Counter, "marshal_cost_dollars_total", [POOL],
        "Cost in US dollars of the pool's turns, over all starts of the supervisor.";

    EGRESS_CONNECTIONS_TOTAL = Recorder Counter, "marshal_egress_connections_total", [POOL, closed_label("result", labels::egress_results)],
        "Connections from sandboxes to the egress proxy, ended or refused, by result.";
    EGRESS_CONNECTIONS = Recorder Gauge, "marshal_egress_connections", [POOL],
        "Open connections from sandboxes to the egress proxy.";
    EGRESS_BYTES = Recorder Counter, "marshal_egress_bytes_total", [POOL, closed_label("direction", labels::egress_directions)],
        "Bytes transferred through the egress proxy.";

    PERMISSION_REQUESTS = Recorder Counter, "marshal_permission_requests_total", [POOL, closed_label("tool_class", labels::tool_classes), closed_label("decision", labels::final_decisions), closed_label("decided_by", labels::deciders)],
        "Permission requests by decision and by decider.";
    PERMISSION_SECONDS = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_permission_decision_seconds", [POOL, closed_label("decided_by", labels::deciders)],
        "Time from the permission request line being read until the answer is written.";
    PERMISSION_PENDING = FromStart Gauge, "marshal_approvals_pending", [POOL],
        "Permission requests that wait for a decision.";
    PERMISSION_OLDEST = FromStart Gauge, "marshal_approvals_oldest_pending_seconds", [POOL],
        "Age of the oldest permission request that waits for a decision.";
    APPROVALS_WAITING = Page Gauge, "marshal_approvals_waiting", [POOL, closed_label("age", labels::approval_ages)],
        "Permission requests that wait for a person, by the time that they have waited.";
    POLICY_SECONDS = Recorder Histogram(MICROSECOND_BUCKETS), "marshal_policy_evaluation_seconds", [],
        "Time of one policy evaluation.";
    POLICY_ERRORS = FromStart Counter, "marshal_policy_evaluation_errors_total", [closed_label("reason", labels::evaluation_errors)],
        "Policy evaluations that failed (fail closed: answered deny).";
    POLICY_RELOADS = FromStart Counter, "marshal_policy_reloads_total", [closed_label("result", labels::reload_results)],
        "Policy reloads by result.";
    POLICY_RULES = FromStart Gauge, "marshal_policy_rules", [],
        "Rules in the policies in force, each policy counted once.";
    SHADOW_JUDGED = Recorder Counter, "marshal_policy_shadow_evaluations_total", [POOL],
        "Requests that a shadow policy evaluated beside the policy in force.";
    SHADOW_DIFFERENCES = Recorder Counter, "marshal_policy_shadow_differences_total", [POOL, closed_label("from", labels::shadow_verdicts), closed_label("to", labels::shadow_verdicts)],
        "Requests that a shadow policy would have decided otherwise, by the decision and its own.";
    CONFIG_RELOADED = FromStart Gauge, "marshal_config_last_reload_successful", [],
        "Whether the last policy reload succeeded (1) or failed, which leaves the older policies in force (0).";
    CONFIG_RELOADED_AT = FromStart Gauge, "marshal_config_last_reload_success_timestamp_seconds", [],
        "Unix time of the last successful load of the policies.";
    DELEGATE_SECONDS = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_delegate_seconds", [POOL],
        "Time that a request waited for its pool's delegate.";
    DELEGATE_ERRORS = Recorder Counter, "marshal_delegate_errors_total", [POOL, closed_label("reason", labels::delegate_errors)],
        "Requests denied because their pool's delegate gave no decision, by reason.";

    HOOK_MESSAGES = FromStart Counter, "marshal_hook_messages_total", [fixed_label("hook"), closed_label("result", labels::hook_results)],
        "Hook messages by result.";
    HOOK_HELD_BACK = Recorder Counter, "marshal_hook_held_back_total", [fixed_label("hook")],
        "Events that no message reported because a newer one of the same kind replaced them.";

    HTTP_REQUESTS = Recorder Counter, "marshal_http_requests_total", [fixed_label("endpoint"), closed_label("method", labels::http_methods), closed_label("code", labels::http_codes)],
        "HTTP requests by endpoint, method and class of status code.";
    HTTP_SECONDS = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_http_request_duration_seconds", [closed_label("method", labels::http_methods)],
        "Time from a request's head until the head of its response.";
    STREAMS = FromStart Gauge, "marshal_streams", [closed_label("kind", labels::stream_kinds)],
        "Open streams of events by kind.";
    STREAMS_ENDED = Recorder Counter, "marshal_streams_ended_total", [closed_label("kind", labels::stream_kinds), closed_label("reason", labels::stream_ends)],
        "Streams of events that ended, by reason.";

    CHATS_ACTIVE = Recorder Gauge, "marshal_chats_active", [POOL],
        "Chats that work, wait for a slot, or hold one while idle.";
    CHAT_MESSAGES = Recorder Counter, "marshal_chat_messages_total", [POOL],
        "Messages accepted by chats.";
    CHAT_WAIT = Recorder Histogram(WAIT_BUCKETS), "marshal_chat_wait_seconds", [POOL],
        "Time that an unloaded chat waited for a slot with a ready agent.";

    STORE_OPERATIONS = Recorder Counter, "marshal_store_operations_total", [closed_label("operation", labels::store_operations), closed_label("result", labels::store_results)],
        "Operations on the store of file versions, by result.";
    STORE_SECONDS = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_store_operation_duration_seconds", [closed_label("operation", labels::store_operations)],
        "Duration of one operation on the store of file versions.";

    FILE_PLANE_REQUESTS = Recorder Counter, "marshal_file_plane_requests_total", [POOL, closed_label("result", labels::file_requests)],
        "Request files in a pool's file plane by result.";
    FILE_PLANE_ANSWERS = Recorder Counter, "marshal_file_plane_answers_total", [POOL, closed_label("result", labels::file_answers)],
        "Answer files in a pool's file plane by result.";
    FILE_PLANE_UP = Recorder Gauge, "marshal_file_plane_up", [POOL],
        "Whether a pool's file plane works (1) or has failed (0).";

    QUEUE_TASKS = FromStart Gauge, "marshal_queue_tasks", [POOL],
        "Tasks waiting for a slot.";
    QUEUE_OLDEST = FromStart Gauge, "marshal_queue_oldest_task_seconds", [POOL],
        "Age of the oldest task waiting.";
    QUEUE_WAIT = Recorder Histogram(WAIT_BUCKETS), "marshal_queue_wait_seconds", [POOL],
        "Time a task waited for a slot.";
    QUEUE_REJECTED = Recorder Counter, "marshal_queue_rejected_total", [POOL, closed_label("reason", labels::queue_refusals)],
        "Tasks refused by reason.";
    TASKS = FromStart Counter, "marshal_tasks_total", [POOL, closed_label("outcome", labels::task_outcomes)],
        "Tasks by outcome.";

    JOURNAL_EVENTS = FromStart Counter, "marshal_journal_appended_events_total", [],
        "Events appended to the journal.";
    JOURNAL_BYTES = FromStart Counter, "marshal_journal_appended_bytes_total", [],
        "Bytes of event bodies appended to the journal.";
    JOURNAL_FSYNC = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_journal_fsync_duration_seconds", [],
        "Duration of one commit of the journal: the write-ahead log's write and its sync.";
    JOURNAL_BATCH = Recorder Histogram(COUNT_BUCKETS), "marshal_journal_batch_events", [],
        "Events made durable by one group commit.";
    JOURNAL_BACKLOG = FromStart Gauge, "marshal_journal_backlog_events", [],
        "Rows accepted but not yet durable.";
    JOURNAL_ERRORS = FromStart Counter, "marshal_journal_errors_total", [closed_label("reason", labels::journal_errors)],
        "Journal failures by reason.";
    JOURNAL_SIZE = FromStart Gauge, "marshal_journal_size_bytes", [],
        "Journal size on disk, write-ahead log included.";
    JOURNAL_REMOVED_SESSIONS = FromStart Counter, "marshal_journal_removed_sessions_total", [],
        "Ended sessions removed by age or size.";
    JOURNAL_REMOVED_EVENTS = FromStart Counter, "marshal_journal_removed_events_total", [],
        "Events removed with their sessions.";

    ACTORS = FromStart Gauge, "marshal_actors", [closed_label("kind", labels::actor_kinds)],
        "Live actors by kind.";
    ACTOR_PANICS = FromStart Counter, "marshal_actor_panics_total", [closed_label("kind", labels::actor_kinds)],
        "Actor handlers that panicked or returned an error.";
    TASK_PANICS = FromStart Counter, "marshal_task_panics_total", [],
        "Background tasks that panicked.";
    SCRAPE_SECONDS = Recorder Histogram(MILLISECOND_BUCKETS), "marshal_scrape_duration_seconds", [],
        "Time to render the metrics page.";
    SERIES = Page Gauge, "marshal_metric_series", [],
        "Series on the page before this one; guards against unbounded labels.";
);

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `docs/metrics.md`: name, type, labels, help of every row.
    fn documented() -> Vec<[String; 4]> {
        include_str!("../../../docs/metrics.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|line| {
                let cells: Vec<&str> = line.trim_end_matches(" |").split(" | ").collect();
                assert_eq!(cells.len(), 4, "four cells in {line}");
                [
                    cells[0].trim_end_matches('`').to_owned(),
                    cells[1].to_owned(),
                    cells[2].to_owned(),
                    cells[3].to_owned(),
                ]
            })
            .collect()
    }

    /// A label as the documentation writes it: closed sets with their words.
    fn label(label: &Label) -> String {
        match label.values {
            LabelValues::Words(words) => format!("{} ({})", label.name, words().join(", ")),
            _ => label.name.to_owned(),
        }
    }

    #[test]
    fn the_documentation_lists_exactly_what_is_exported() {
        let exported: Vec<[String; 4]> = CATALOGUE
            .iter()
            .map(|metric| {
                let labels: Vec<String> = metric.labels.iter().map(label).collect();
                [
                    metric.name.to_owned(),
                    metric.kind.as_str().to_owned(),
                    if labels.is_empty() {
                        "-".to_owned()
                    } else {
                        labels.join("; ")
                    },
                    metric.help.to_owned(),
                ]
            })
            .collect();
        let documented = documented();
        for row in &exported {
            assert!(
                documented.contains(row),
                "docs/metrics.md lacks this row:\n| `{}` | {} | {} | {} |",
                row[0],
                row[1],
                row[2],
                row[3]
            );
        }
        for row in &documented {
            assert!(exported.contains(row), "not exported: {row:?}");
        }
        assert_eq!(exported.len(), documented.len(), "a row stands twice");
    }

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        let mut seen = std::collections::HashSet::new();
        for metric in CATALOGUE {
            let name = metric.name;
            assert!(seen.insert(name), "{name} stands twice");
            assert!(
                name.starts_with("marshal_") || name.starts_with("process_"),
                "{name}"
            );
            assert_eq!(
                metric.kind == MetricKind::Counter,
                name.ends_with("_total"),
                "{name}: counters, and only they, end in _total"
            );
            assert!(!name.contains("_ms") && !name.contains("milli"), "{name}");
            if let MetricKind::Histogram(buckets) = metric.kind {
                assert!(
                    buckets.windows(2).all(|pair| pair[0] < pair[1]),
                    "{name}: buckets grow"
                );
                if name.ends_with("_seconds") {
                    assert!(buckets.last() <= Some(&3600.0), "{name}");
                }
            }
            assert!(metric.help.ends_with('.'), "{name}: help is a sentence");
            for label in metric.labels {
                let banned = ["session", "session_id", "pid", "path", "prompt", "error"];
                assert!(!banned.contains(&label.name), "{name}: {}", label.name);
            }
        }
    }
}
