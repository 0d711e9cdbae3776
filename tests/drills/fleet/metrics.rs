//! Metrics move: a fleet is driven through everything, and a family of the catalogue that has not
//! moved is an error. So is an idle pool with more series than the documentation says.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use marshal_telemetry::names::{CATALOGUE, MetricKind};
use serde_json::json;

use crate::chat_client::{Daemon, LONG};
use crate::drill::{Drill, eventually, get, metric};
use crate::fleet::approvals::UNDECIDED_PROMPT;
use crate::fleet::{file_plane, routes};
use crate::provider::{Provider, message, whole};

/// Families that this drive cannot move, and the tests that do.
const ELSEWHERE: &[(&str, &str)] = &[
    // A panic would be a fault of the program.
    ("marshal_actor_panics_total", "live_actor::tests"),
    ("marshal_task_panics_total", "cli::start::tests"),
    // The kernel refuses an operation on a group only when something else has damaged it.
    ("marshal_cgroup_errors_total", "cgroup::kill::tests"),
    // No public address is reached from here.
    ("marshal_egress_bytes_total", "egress"),
];

/// What moves when the daemon stops.
const REFUSED: &str = "marshal_queue_rejected_total";

/// Families that only exist where the kernel counts.
const OF_THE_HOST: &[&str] = &[
    "marshal_host_pressure_seconds_total",
    "marshal_sandbox_degraded_total",
    "marshal_slot_cpu_seconds_total",
    "marshal_slot_memory_bytes",
    "marshal_slot_memory_limit_bytes",
    "marshal_slot_oom_kills_total",
    "marshal_pool_pressure_seconds_total",
    "marshal_slot_processes",
];

/// The largest value that each family has had: the sum of its samples; of a histogram, the number
/// of observations.
#[derive(Default)]
struct Moved(BTreeMap<String, f64>);

impl Moved {
    fn add(&mut self, page: &str) {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            if let Some((series, value)) = line.rsplit_once(' ') {
                let name = series.split('{').next().unwrap_or(series);
                let value: f64 = value.parse().expect(line);
                *sums.entry(name).or_default() += value.abs();
            }
        }
        for metric in CATALOGUE {
            let of_samples = match metric.kind {
                MetricKind::Histogram(_) => format!("{}_count", metric.name),
                _ => metric.name.to_owned(),
            };
            let sum = sums.get(&*of_samples).copied().unwrap_or_default();
            let most = self.0.entry(metric.name.to_owned()).or_default();
            *most = most.max(sum);
        }
    }

    fn still(&self) -> Vec<&str> {
        let still = self.0.iter().filter(|(_, most)| **most == 0.0);
        still.map(|(name, _)| name.as_str()).collect()
    }
}

/// Everything that a pool can have, in as few pools as can have it.
fn everything(provider: &Provider, delegate: &Provider) -> Drill {
    let agent = "[\"marshal\", \"script-agent\", \"--permission-mode\", \"workspace-write\"]";
    let more =
        "workspace = { path = \"project\", mode = \"copy\" }\nenv = { set = { DRILL = \"MARK\" } }";
    let quick = "restart = { base = \"20ms\", max = \"100ms\" }\nstop = { goodbye = \"100ms\", eof = \"100ms\", int = \"100ms\", term = \"100ms\" }";
    let pools = format!(
        r#"
[role.dev]
pool = "work"

[workspace.main]
path = "project"

[policy.strict]
file = "strict.toml"

[policy.counted]
file = "counted.toml"

[hook.ops]
command = ["/bin/true"]

[delegate.own]
url = "http://{delegate}/v1/data/marshal/decision"

[route.own]
upstream = "http://{provider}"
header   = "x-api-key"
secret   = "file:key"
allow    = ["POST /v1/messages"]

[sandbox.bound]
ro_bind = ["bound"]

[pool.work]
size          = 2
command       = {agent}
policy        = "cautious"
shadow_policy = "strict"
file_plane    = {{ dir = "plane", answers = true }}
{quick}
{more}

[pool.counted]
command = {agent}
policy  = "counted"
{quick}
{more}

[pool.silent]
command  = {agent}
policy   = "cautious"
timeouts = {{ silence = "1s", cancel = "500ms" }}
{quick}
{more}

[pool.decided]
command  = {agent}
policy   = "cautious"
delegate = "own"
{more}

[pool.bound]
command = {agent}
sandbox = "bound"
policy  = "cautious"
restart = {{ base = "20ms", max = "100ms" }}
{more}

[pool.proxied]
command = {agent}
policy  = "cautious"
network = "proxy"
egress  = {{ allow = ["example.com"] }}
{more}

[pool.asked]
command    = ["marshal", "script-agent", "--dialect", "acp"]
dialect    = "acp"
policy     = "cautious"
{more}

[pool.routed]
command    = ["python3", "agent.py"]
dialect    = "scaiflux"
network    = "routes"
routes     = ["own"]
rate_limit = {{ pause = "2s", max = "2s" }}
budget     = {{ day_tokens = 1000000 }}
workspace  = {{ path = "project", mode = "copy" }}
env        = {{ set = {{ DRILL = "MARK", MODEL_URL = "{{route.own}}" }} }}

[price.m]
input  = 100.0
output = 100.0
"#,
        provider = provider.address,
        delegate = delegate.address,
    );
    let drill = Drill::with_supervisor(&pools, "journal = { keep = \"1s\" }");
    let strict = "schema = 1\nname = \"strict\"\ndefault = \"deny\"\n";
    fs::write(drill.path("strict.toml"), strict).expect("a policy");
    let counted = "schema = 1\nname = \"counted\"\nextends = [\"cautious.toml\"]\n[budget]\nallows_per_turn = 1\n";
    fs::write(drill.path("counted.toml"), counted).expect("a policy");
    fs::write(drill.workspace().join("agent.py"), routes::AGENT).expect("agent.py");
    let key = drill.path("key");
    fs::write(&key, "sk-drill-of-metrics").expect("the key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("private");
    fs::create_dir(drill.path("bound")).expect("a directory");
    drill
}

#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
#[test]
fn a_daemon_that_is_driven_through_everything_moves_every_family() {
    let provider = Provider::start(|number, got, to| {
        if number == 0 {
            // Open for as long as a scrape takes to see it.
            std::thread::sleep(Duration::from_secs(1));
            return message(number, got, to);
        }
        let _ = to.write_all(whole("429 Too Many Requests", "", "{}").as_bytes());
    });
    let delegate = Provider::start(|_, _, to| {
        let _ = to.write_all(whole("500 Internal Server Error", "", "{}").as_bytes());
    });
    let drill = everything(&provider, &delegate);
    let before = drill.run(&["run", "--pool", "work", "say before"]);
    assert_eq!(before.code, Some(0), "{}", before.all());
    std::thread::sleep(Duration::from_millis(1100));

    let mut moved = Moved::default();
    let daemon = Daemon::start(&drill);
    let mut approvals = daemon.follow_with("/approvals/events", None);
    let chat = daemon.create("say one\nread README.md");
    daemon.follow(&chat, None).any_turn();
    daemon.say(&chat, "say two");
    moved.add(&drill.get("/metrics").1);
    let path = "/api/v1/workspaces/main/files/made.txt";
    let put = daemon.request(
        "PUT",
        path,
        "",
        &json!({"content": "x", "base": 0}).to_string(),
    );
    assert!(put.status < 300, "{put:?}");

    let submit = |pool: &str, prompt: &str| {
        let task = daemon.post("/api/v1/tasks", &json!({"pool": pool, "prompt": prompt}));
        assert_eq!(task.status, 202, "{task:?}");
    };
    // Two in its slots that do not end by themselves, and others behind them.
    for _ in 0..3 {
        submit("work", UNDECIDED_PROMPT);
    }
    submit("counted", "crash");
    submit("counted", "read README.md\nread src/lib.rs\ngarbage 3");
    let long = "x".repeat(70 << 10);
    let mut client = drill
        .command(&[
            "run",
            "--pool",
            "decided",
            &format!("write long.txt {long}"),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a client");
    submit("silent", "hang stopped");
    submit("decided", "read README.md");
    submit(
        "asked",
        "storm 3000 {\"jsonrpc\":\"2.0\",\"id\":\"u{n}\",\"method\":\"later/ask\",\"params\":{}}\nunasked cat src/lib.rs\nsay on",
    );
    submit(
        "proxied",
        "unasked exec 3<>/dev/tcp/127.0.0.1/3128; sleep 3; printf 'CONNECT elsewhere.example:443 HTTP/1.1\\r\\nHost: elsewhere.example:443\\r\\n\\r\\n' >&3; cat <&3",
    );
    submit("routed", "one");
    submit("routed", "pretend elsewhere");
    submit("routed", "two");
    file_plane::put(&drill, "queue/one.txt", "say filed");
    file_plane::put(&drill, "answers/none.json", "{}");

    eventually(LONG, "what waits is seen", || {
        moved.add(&drill.get("/metrics").1);
        let still = moved.still();
        [
            "marshal_approvals_waiting",
            "marshal_queue_oldest_task_seconds",
            "marshal_pool_paused",
            "marshal_route_connections",
        ]
        .iter()
        .all(|name| !still.contains(name))
    });
    // A stalled journal has a backlog.
    submit("decided", &"say on\nsleep 100ms\n".repeat(100));
    let lock = drill.database();
    eventually(LONG, "the lock", || {
        lock.execute_batch("BEGIN IMMEDIATE").is_ok()
    });
    eventually(LONG, "a backlog", || {
        moved.add(&drill.get("/metrics").1);
        let still = moved.still();
        !still.contains(&"marshal_journal_backlog_events")
            && !still.contains(&"marshal_journal_errors_total")
    });
    lock.execute_batch("ROLLBACK").expect("unlocked");
    // A directory that the sandbox needs is gone.
    fs::remove_dir(drill.path("bound")).expect("removed");
    submit("bound", "say never");
    daemon.running.signal("HUP");
    for waiting in daemon.get("/api/v1/approvals").body["items"]
        .as_array()
        .expect("a list")
    {
        let id = waiting["approval"].as_str().expect("an id");
        daemon.post(
            &format!("/api/v1/approvals/{id}"),
            &json!({"decision": "allow"}),
        );
    }
    let is_known = |name: &&str| {
        ELSEWHERE.iter().any(|(known, _)| known == name) || OF_THE_HOST.contains(name)
    };
    let end = Instant::now() + LONG;
    loop {
        moved.add(&drill.get("/metrics").1);
        let still = moved.still();
        let left: Vec<_> = still
            .iter()
            .filter(|name| !is_known(name) && **name != REFUSED)
            .collect();
        if left.is_empty() {
            break;
        }
        let log = drill.log("stderr.log");
        assert!(Instant::now() < end, "these did not move: {left:#?}\n{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Nothing is taken any more while a turn has its time to end.
    submit("decided", "sleep 25s");
    eventually(LONG, "a long turn", || {
        let slots = daemon.get("/api/v1/slots/decided/0").body;
        slots["state"] == "busy"
    });
    assert_eq!(daemon.post("/api/v1/stop", &json!({})).status, 202);
    eventually(LONG, "a refusal", || {
        let late = daemon.post(
            "/api/v1/tasks",
            &json!({"pool": "work", "prompt": "say late"}),
        );
        late.status == 503
    });
    moved.add(&drill.get("/metrics").1);
    assert!(!moved.still().contains(&REFUSED));
    let _ = client.kill();
    client.wait().expect("a client");
    drop(approvals.next(Duration::from_millis(1)));
}

/// Families that a run without a daemon has no part for.
const OF_A_DAEMON: &[&str] = &[
    "marshal_chat_",
    "marshal_chats_",
    "marshal_file_plane_",
    "marshal_streams",
    "marshal_store_",
];

#[test]
fn a_run_without_a_daemon_has_the_families_of_its_work() {
    let drill = Drill::new(
        r#"
[pool.demo]
size      = 2
command   = ["marshal", "script-agent"]
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
"#,
    );
    let task = "read README.md\nrun echo one\nwrite made.txt x\nsleep 2s";
    let mut run = drill.start(&["run", task, task, "say short", "crash"]);
    let mut moved = Moved::default();
    let wanted = [
        "marshal_build_info",
        "process_resident_memory_bytes",
        "marshal_actors",
        "marshal_pool_slots",
        "marshal_slot_up",
        "marshal_child_spawns_total",
        "marshal_child_exits_total",
        "marshal_events_total",
        "marshal_turns_total",
        "marshal_tool_calls_total",
        "marshal_tokens_total",
        "marshal_permission_requests_total",
        "marshal_policy_evaluation_seconds",
        "marshal_queue_tasks",
        "marshal_queue_wait_seconds",
        "marshal_tasks_total",
        "marshal_http_requests_total",
        "marshal_journal_appended_events_total",
        "marshal_journal_fsync_duration_seconds",
    ];
    let address = drill.address();
    let mut page = String::new();
    eventually(LONG, "the run moves them", || {
        page = get(&address, "/metrics").1;
        moved.add(&page);
        wanted.iter().all(|name| !moved.still().contains(name))
    });
    for family in OF_A_DAEMON {
        assert!(
            !page.contains(&format!("{family}total")),
            "{family}: {page}"
        );
    }
    run.wait(LONG);
}

/// The bounds of `docs/metrics.md` for a pool of eight slots whose children are idle.
#[test]
fn an_idle_fleet_has_few_series() {
    let drill = Drill::new(
        r#"
[pool.demo]
size       = 8
command    = ["marshal", "script-agent"]
policy     = "cautious"
workspace  = { path = "project", mode = "copy" }
session    = "slot"
env        = { set = { DRILL = "MARK" } }
"#,
    );
    let _daemon = Daemon::start(&drill);
    let tasks: Vec<String> = (0..8)
        .map(|number| format!("say {number}\nsleep 500ms"))
        .collect();
    let mut arguments = vec!["run"];
    arguments.extend(tasks.iter().map(String::as_str));
    let ran = drill.run(&arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let page = drill.get("/metrics").1;
    let lines: Vec<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    let (of_pool, own): (Vec<&str>, Vec<&str>) = lines
        .into_iter()
        .partition(|line| line.contains("pool=\"demo\""));
    let up = metric(&page, "marshal_slot_up{pool=\"demo\",slot=\"7\"}");
    assert_eq!(up, Some(1.0), "the children are running: {page}");
    assert!(of_pool.len() < 200, "{}: {of_pool:#?}", of_pool.len());
    assert!(own.len() < 150, "{}: {own:#?}", own.len());
}
