//! The page: every series is there from the start, and every event lands in its own.

use std::time::Duration;

use super::*;
use crate::event::{child, hook, permission, process, task, turn};
use crate::labels::{
    ActorKind, EvaluationError, HangKind, HookResult, LineFault, QueueRefusal, RestartCause,
    SandboxStage, SpawnResult, Stream, ToolClass, ToolOutcome,
};
use crate::meters::PoolMeters;
use crate::{PoolSample, ProcessStats, SlotSample, SlotUsage, UsageSample};
use marshal_model::limits;
use marshal_model::{
    DecidedBy, Decision, EventKind, ExitClass, ExitStatus, PermissionRequestId, SessionId, SlotId,
    SlotState,
};
use marshal_model::{SandboxGap, TaskId, TaskOutcome, TurnOutcome, UntrustedText, Usage};

const BUILD: BuildInfo = BuildInfo {
    version: "1.2.3",
    revision: "abc",
    rustc: "1.90.0",
};

fn pool() -> PoolName {
    PoolName::new("demo").expect("name")
}

/// Runs `emit` against a recorder of its own, with the pool `demo` of two slots, and gives the
/// page.
fn page_after(emit: impl FnOnce()) -> String {
    page_in(PageFormat::Prometheus, emit)
}

fn page_in(format: PageFormat, emit: impl FnOnce()) -> String {
    let (recorder, exporter) = Exporter::build(BUILD).expect("recorder");
    metrics::with_local_recorder(&recorder, || {
        describe_all();
        initialise();
        initialise_pool(&pool(), 2);
        super::initialise_routes(&pool(), &["own"]);
        super::initialise_hook("ops");
        emit();
    });
    let pool = pool();
    let slots = [0, 1].map(|index| SlotId {
        pool: pool.clone(),
        index,
    });
    let used = |slot: &SlotId, bytes: Option<u64>| SlotUsage {
        slot: slot.clone(),
        cpu_seconds: Some(1.5),
        memory: [bytes, bytes, Some(0)],
        memory_limit: bytes,
        oom_kills: Some(0),
        processes: bytes,
        stalls: [[Some(0.25), None], [None; 2], [None; 2]],
    };
    let samples = Samples {
        process: Some(ProcessStats::default()),
        pools: vec![PoolSample {
            pool: &pool,
            dollars: Some(0.25),
            approvals: [1, 0, 2, 0],
        }],
        slots: vec![
            SlotSample {
                slot: &slots[0],
                agent: "we\"ird\\agent",
                protocol: "scaiflux",
                up: true,
                start_time_seconds: Some(1.5e9),
                last_exit_code: None,
            },
            SlotSample {
                slot: &slots[1],
                agent: "script-agent",
                protocol: "scaiflux",
                up: false,
                start_time_seconds: None,
                last_exit_code: Some(137),
            },
        ],
        usage: UsageSample {
            slots: vec![used(&slots[0], Some(4096)), used(&slots[1], None)],
            host: [[Some(2.5), None]; 3],
        },
    };
    exporter.upkeep();
    exporter.render(format, &samples)
}

/// The value of one series, as the page writes it.
fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| {
        line.strip_prefix(series)
            .and_then(|rest| rest.strip_prefix(' '))
            .and_then(|number| number.parse().ok())
    })
}

fn check(page: &str, series: &str, expect: f64) {
    let got = value(page, series);
    assert!(
        got.is_some_and(|got| (got - expect).abs() < 1e-9),
        "{series}: {got:?}, not {expect}"
    );
}

/// The page's series without their values.
fn series(page: &str) -> Vec<&str> {
    let lines = page
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn what_alerts_need_is_there_at_zero_before_anything_happens() {
    let page = page_after(|| {});
    for outcome in TaskOutcome::ALL {
        let tasks = format!("marshal_tasks_total{{pool=\"demo\",outcome=\"{outcome}\"}}");
        check(&page, &tasks, 0.0);
    }
    for series in [
        "marshal_child_restarts_total{pool=\"demo\",cause=\"crash\"}",
        "marshal_tool_calls_unasked_total{pool=\"demo\",verdict=\"deny\"}",
        "marshal_journal_errors_total{reason=\"full\"}",
        "marshal_hook_messages_total{hook=\"ops\",result=\"failed\"}",
        "marshal_route_refused_total{pool=\"demo\",route=\"own\",reason=\"smuggling\"}",
        "marshal_pool_paused{pool=\"demo\"}",
    ] {
        check(&page, series, 0.0);
    }
    check(&page, "marshal_pool_slots_desired{pool=\"demo\"}", 2.0);
    // Everything else comes when it happens.
    assert!(
        !page.contains("marshal_permission_requests_total"),
        "{page}"
    );
}

/// The series of the catalogue, in all combinations of closed labels: of the supervisor, a pool,
/// a slot.
fn bounds(source: impl Fn(&Metric) -> bool) -> [usize; 3] {
    let mut sums = [0; 3];
    for metric in CATALOGUE.iter().filter(|metric| source(metric)) {
        let mut count = match metric.kind {
            MetricKind::Histogram(buckets) => buckets.len() + 3,
            _ => 1,
        };
        let mut place = 0;
        for label in metric.labels {
            match label.values {
                LabelValues::Words(words) => count *= words().len(),
                LabelValues::Pools => place = place.max(1),
                LabelValues::Slots => place = 2,
                LabelValues::Routes | LabelValues::SingleValue => {}
            }
        }
        sums[place] += count;
    }
    sums
}

#[test]
fn the_bound_of_series_in_the_documentation_is_that_of_the_catalogue() {
    let text = include_str!("../../../../docs/metrics.md");
    let [supervisor, pool, slot] = bounds(|_| true);
    let bound = format!("at most {supervisor} + {pool} for each pool + {slot} for each slot");
    assert!(text.contains(&bound), "docs/metrics.md lacks: {bound}");
}

#[test]
fn what_is_used_is_on_the_page_where_it_is_counted() {
    let page = page_after(|| {});
    let slot = "pool=\"demo\",slot=\"0\"";
    check(
        &page,
        &format!("marshal_slot_cpu_seconds_total{{{slot}}}"),
        1.5,
    );
    let memory = format!("marshal_slot_memory_bytes{{{slot},kind=\"working_set\"}}");
    check(&page, &memory, 4096.0);
    let stall = "resource=\"cpu\",kind=\"some\"";
    let of_pool = format!("marshal_pool_pressure_seconds_total{{pool=\"demo\",{stall}}}");
    check(&page, &of_pool, 0.5);
    check(
        &page,
        "marshal_slot_memory_limit_bytes{pool=\"demo\"}",
        4096.0,
    );
    let of_host = format!("marshal_host_pressure_seconds_total{{{stall}}}");
    check(&page, &of_host, 2.5);
    check(&page, "marshal_cost_dollars_total{pool=\"demo\"}", 0.25);
    let waiting = "marshal_approvals_waiting{pool=\"demo\",age=\"below_1h\"}";
    check(&page, waiting, 2.0);
    for absent in [
        "marshal_slot_memory_bytes{pool=\"demo\",slot=\"1\"",
        "marshal_slot_processes{pool=\"demo\",slot=\"1\"",
        "marshal_pool_pressure_seconds_total{pool=\"demo\",resource=\"io\"",
        "marshal_slot_oom_kills_total{",
        "age=\"below_10m\"",
        "kind=\"full\"",
        "kind=\"swap\"",
    ] {
        assert!(!page.contains(absent), "{absent}");
    }
}

#[test]
fn what_happened_is_on_the_page_with_help_and_type() {
    let page = page_after(emit_everything);
    for name in series(&page) {
        let name = name.split('{').next().unwrap_or(name);
        let family = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let metric = CATALOGUE
            .iter()
            .find(|metric| {
                metric.name == name
                    || matches!(metric.kind, MetricKind::Histogram(_))
                        && Some(metric.name) == family
            })
            .unwrap_or_else(|| panic!("{name} is not in the catalogue"));
        let (name, help, kind) = (metric.name, metric.help, metric.kind.as_str());
        assert!(
            page.contains(&format!("# HELP {name} {help}\n")),
            "no help of {name}"
        );
        assert!(
            page.contains(&format!("# TYPE {name} {kind}\n")),
            "{name} is no {kind}"
        );
    }
}

#[test]
fn the_page_is_open_metrics_for_a_scraper_that_asks() {
    let page = page_in(PageFormat::OpenMetrics, emit_everything);
    assert!(
        page.ends_with("# EOF\n") && !page.contains("\n\n"),
        "{page}"
    );
    for wanted in [
        "# TYPE marshal_tasks counter\n# HELP marshal_tasks Tasks by outcome.\n",
        "marshal_tasks_total{pool=\"demo\",outcome=\"skipped\"} 1\n",
        "# TYPE process_cpu_seconds counter\n",
        "# TYPE marshal_queue_tasks gauge\n",
        "le=\"8388608.0\"} 1\n",
        "le=\"0.0005\"}",
        "le=\"+Inf\"}",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    let plain = page_after(emit_everything);
    assert_eq!(series(&page).len(), series(&plain).len());
}

#[test]
fn open_metrics_is_served_only_where_it_is_wanted() {
    let open = PageFormat::OpenMetrics;
    for (header, format) in [
        (None, PageFormat::Prometheus),
        (Some("*/*"), PageFormat::Prometheus),
        (Some("text/plain"), PageFormat::Prometheus),
        (Some("application/openmetrics-text"), open),
        (Some("application/openmetrics-text; version=1.0.0"), open),
        (
            Some("application/openmetrics-text;version=2.0.0"),
            PageFormat::Prometheus,
        ),
        (
            Some("application/openmetrics-text;q=0, text/plain"),
            PageFormat::Prometheus,
        ),
        (
            Some("application/openmetrics-text;q=0.3,text/plain;q=0.5"),
            PageFormat::Prometheus,
        ),
        // Prometheus 2.42.
        (
            Some(
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            ),
            open,
        ),
    ] {
        assert_eq!(PageFormat::accepted(header), format, "{header:?}");
    }
}

#[test]
fn nothing_on_the_page_is_missing_from_the_catalogue() {
    let page = page_after(emit_everything);
    for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
        let mut words = line.split(' ').skip(2);
        let (name, kind) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let metric = CATALOGUE.iter().find(|metric| metric.name == name);
        assert_eq!(metric.map(|m| m.kind.as_str()), Some(kind), "{line}");
    }
    assert!(!page.contains("quantile="), "a histogram without buckets");
}

/// Every event once.
fn emit_everything() {
    let slot = SlotId {
        pool: pool(),
        index: 0,
    };
    let session = SessionId::new("s-1").expect("id");
    let ask = PermissionRequestId::new("a-1").expect("id");
    let task = TaskId::new("t-1").expect("id");
    let took = Duration::from_millis(3);
    let foreign = UntrustedText::new("text\u{1b}[31m");
    let (slot, session, ask, task) = (&slot, &session, &ask, &task);
    emit_hooks();
    emit_child(slot, session, &foreign, took);
    emit_task(slot, task, took);
    turn::TurnFirstEvent { slot, after: took }.emit();
    turn::TurnEnded {
        slot,
        session,
        outcome: TurnOutcome::Completed,
        took,
        tool_calls: 3,
    }
    .emit();
    turn::ToolCallEnded {
        slot,
        tool_class: ToolClass::Shell,
        outcome: ToolOutcome::Ok,
        took: Some(took),
    }
    .emit();
    turn::UnrequestedToolCall {
        slot,
        session,
        tool_class: ToolClass::Shell,
        verdict: Decision::Deny,
        rules: &[],
    }
    .emit();
    turn::TokensUsed {
        slot,
        used: Usage {
            input: 7,
            output: 2,
        },
    }
    .emit();
    permission::PermissionRequested {
        slot,
        session,
        request: ask,
        tool: &foreign,
    }
    .emit();
    permission::PermissionDecided {
        slot,
        session,
        request: ask,
        tool_class: ToolClass::Shell,
        decision: Decision::Deny,
        decided_by: DecidedBy::Policy,
        rules: &[],
        took,
    }
    .emit();
    permission::PolicyEvaluated {
        took,
        error: Some(EvaluationError::TooLarge),
    }
    .emit();
    process::ActorStarted {
        kind: ActorKind::Session,
    }
    .emit();
    process::ActorEnded {
        kind: ActorKind::Session,
        panicked: true,
    }
    .emit();
    process::TaskPanicked {
        task: "pump",
        failure: "x",
    }
    .emit();
    process::ScrapeServed { took }.emit();
}

fn emit_task(slot: &SlotId, task: &TaskId, took: Duration) {
    let pool = &slot.pool;
    task::TaskQueued { pool, task }.emit();
    task::TaskStarted {
        slot,
        task,
        attempt: 1,
        waited: took,
    }
    .emit();
    task::TaskQueued { pool, task }.emit();
    task::TaskEnded {
        pool,
        task,
        outcome: TaskOutcome::Skipped,
        detail: "",
        from: task::TaskLocation::Queue,
    }
    .emit();
    task::QueueRejected {
        pool,
        task,
        reason: QueueRefusal::Full,
    }
    .emit();
    task::PoolSampled {
        pool,
        oldest_task: took,
        oldest_request: took,
    }
    .emit();
}

fn emit_hooks() {
    hook::HookMessageFinished {
        hook: "ops",
        result: HookResult::Failed,
        why: "x",
    }
    .emit();
    hook::HookMessageSuppressed { hook: "ops" }.emit();
}

fn emit_child(slot: &SlotId, session: &SessionId, foreign: &UntrustedText, took: Duration) {
    for result in [SpawnResult::Ok, SpawnResult::SandboxFailed] {
        child::ChildSpawned {
            slot,
            session,
            result,
            limits: None,
            pid: Some(1),
            took,
        }
        .emit();
    }
    child::SandboxFailed {
        slot,
        stage: SandboxStage::Mount,
        detail: "x",
    }
    .emit();
    child::SandboxDegraded {
        slot,
        feature: SandboxGap::SharedUid,
    }
    .emit();
    child::ChildReady {
        slot,
        session,
        protocol: "1",
        version: Some(foreign),
        took,
        downtime: Some(took),
    }
    .emit();
    child::ChildExited {
        slot,
        session,
        class: ExitClass::Signalled,
        status: Some(ExitStatus::Signal(9)),
        detail: "x",
        stderr: std::slice::from_ref(foreign),
    }
    .emit();
    child::ChildRestarted {
        slot,
        cause: RestartCause::Crash,
        delay: took,
        budget_left: 4,
    }
    .emit();
    child::ChildHung {
        slot,
        session,
        kind: HangKind::NoOutput,
        after: took,
    }
    .emit();
    child::SlotStateChanged {
        slot,
        from: None,
        to: Some(SlotState::Starting),
    }
    .emit();
    child::SlotStateChanged {
        slot,
        from: Some(SlotState::Starting),
        to: Some(SlotState::Parked),
    }
    .emit();
    child::SlotParked {
        slot,
        class: ExitClass::VersionRefused,
        reason: "x",
    }
    .emit();
    let meters = PoolMeters::new(&slot.pool);
    child::ProtocolError {
        slot,
        session,
        reason: LineFault::BadJson,
        head: foreign,
    }
    .emit(&meters);
    meters.record_event(EventKind::Text);
    meters.record_event(EventKind::BadLine);
    meters.record_bytes(Stream::Stderr, 5);
    meters.record_line_size(limits::LINE_BYTES);
    meters.record_processing(took);
    meters.record_stdin_queued();
    meters.record_stdin_written(took);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table, one line a series")]
fn events_arrive_in_the_series_that_they_name() {
    let page = page_after(emit_everything);
    for (series, expect) in [
        (
            "marshal_child_spawns_total{pool=\"demo\",result=\"ok\"}",
            1.0,
        ),
        (
            "marshal_child_spawns_total{pool=\"demo\",result=\"sandbox_failed\"}",
            1.0,
        ),
        (
            "marshal_child_spawn_duration_seconds_count{pool=\"demo\"}",
            1.0,
        ),
        (
            "marshal_child_exits_total{pool=\"demo\",reason=\"signalled\"}",
            1.0,
        ),
        (
            "marshal_child_restarts_total{pool=\"demo\",cause=\"crash\"}",
            1.0,
        ),
        (
            "marshal_child_hangs_total{pool=\"demo\",kind=\"no_output\"}",
            1.0,
        ),
        (
            "marshal_sandbox_failures_total{pool=\"demo\",stage=\"mount\"}",
            1.0,
        ),
        ("marshal_pool_slots{pool=\"demo\",state=\"starting\"}", 0.0),
        ("marshal_pool_slots{pool=\"demo\",state=\"parked\"}", 1.0),
        (
            "marshal_events_total{pool=\"demo\",kind=\"text_delta\"}",
            1.0,
        ),
        ("marshal_events_total{pool=\"demo\",kind=\"other\"}", 1.0),
        (
            "marshal_event_bytes_total{pool=\"demo\",stream=\"stderr\"}",
            5.0,
        ),
        (
            "marshal_event_size_bytes_bucket{pool=\"demo\",le=\"1048576\"}",
            0.0,
        ),
        (
            "marshal_event_size_bytes_bucket{pool=\"demo\",le=\"8388608\"}",
            1.0,
        ),
        (
            "marshal_protocol_errors_total{pool=\"demo\",reason=\"bad_json\"}",
            1.0,
        ),
        ("marshal_stdin_queue_messages{pool=\"demo\"}", 0.0),
        (
            "marshal_turns_total{pool=\"demo\",outcome=\"completed\"}",
            1.0,
        ),
        ("marshal_turn_tool_calls_sum{pool=\"demo\"}", 3.0),
        (
            "marshal_tool_calls_total{pool=\"demo\",tool_class=\"shell\",outcome=\"ok\"}",
            1.0,
        ),
        (
            "marshal_tool_calls_unasked_total{pool=\"demo\",verdict=\"deny\"}",
            1.0,
        ),
        ("marshal_tokens_total{pool=\"demo\",type=\"input\"}", 7.0),
        ("marshal_approvals_pending{pool=\"demo\"}", 0.0),
        (
            "marshal_permission_requests_total{pool=\"demo\",tool_class=\"shell\",decision=\"deny\",decided_by=\"policy\"}",
            1.0,
        ),
        (
            "marshal_policy_evaluation_errors_total{reason=\"too_large\"}",
            1.0,
        ),
        ("marshal_queue_tasks{pool=\"demo\"}", 0.0),
        ("marshal_queue_wait_seconds_count{pool=\"demo\"}", 1.0),
        (
            "marshal_queue_rejected_total{pool=\"demo\",reason=\"full\"}",
            1.0,
        ),
        (
            "marshal_tasks_total{pool=\"demo\",outcome=\"skipped\"}",
            1.0,
        ),
        ("marshal_actors{kind=\"session\"}", 0.0),
        ("marshal_actor_panics_total{kind=\"session\"}", 1.0),
        ("marshal_task_panics_total", 1.0),
        ("marshal_slot_up{pool=\"demo\",slot=\"0\"}", 1.0),
        ("marshal_slot_up{pool=\"demo\",slot=\"1\"}", 0.0),
        (
            "marshal_slot_start_time_seconds{pool=\"demo\",slot=\"0\"}",
            1.5e9,
        ),
        (
            "marshal_slot_last_exit_code{pool=\"demo\",slot=\"1\"}",
            137.0,
        ),
        (
            "marshal_slot_info{pool=\"demo\",slot=\"0\",agent=\"we\\\"ird\\\\agent\",protocol=\"scaiflux\"}",
            1.0,
        ),
        (
            "marshal_build_info{version=\"1.2.3\",revision=\"abc\",rustc=\"1.90.0\"}",
            1.0,
        ),
    ] {
        check(&page, series, expect);
    }
    assert_eq!(
        value(
            &page,
            "marshal_slot_start_time_seconds{pool=\"demo\",slot=\"1\"}"
        ),
        None
    );
}

#[test]
fn the_page_counts_its_own_series() {
    let (_recorder, exporter) = Exporter::build(BUILD).expect("recorder");
    let render = || exporter.render(PageFormat::Prometheus, &Samples::default());
    let (first, second) = (render(), render());
    check(&first, "marshal_metric_series", 0.0);
    check(
        &second,
        "marshal_metric_series",
        series(&first).len() as f64,
    );
}
