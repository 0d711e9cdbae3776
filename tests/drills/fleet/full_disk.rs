//! A disk that fills, for real: a small tmpfs in a mount namespace of the supervisor's own.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::drill::{Drill, Running, eventually, metric};
use crate::fleet::stress::{BROADCAST_BYTES, PROGRAM_BYTES, SESSION_BYTES, peak_rss};

/// Without a sandbox, so that it works in any user namespace.
pub(crate) const POOLS: &str = r#"
[pool.demo]
size      = 4
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "none"
network   = "host"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
"#;

/// What stands in the way until space returns.
const BALLAST: &str = "ballast";

/// A supervisor whose state directory is a tmpfs of 72 MiB, 40 of which are taken.
pub(crate) fn up(drill: &Drill) -> Running {
    let file = |name| fs::File::create(drill.path(name)).expect("a log file");
    fs::create_dir_all(drill.state()).expect("state");
    let script = format!(
        "mount -t tmpfs -o size=72m,mode=0700 drill \"$1\" && head -c 40M /dev/zero > \"$1/{BALLAST}\" \
         && shift && exec \"$@\""
    );
    let inner = drill.command(&["up"]);
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let child = command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            &script,
            "sh",
        ])
        .arg(drill.state())
        .arg(inner.get_program())
        .args(inner.get_args())
        .current_dir(drill.path(""))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", drill.path(""))
        .stdin(Stdio::null())
        .stdout(file("stdout.log"))
        .stderr(file("stderr.log"))
        .spawn()
        .expect("unshare");
    let running = Running { child };
    eventually(Duration::from_secs(60), "the daemon is ready", || {
        drill.log("stderr.log").contains("listening on http://") && drill.get("/readyz").0 == 200
    });
    running
}

/// The state directory, as it is in the supervisor's namespace.
pub(crate) fn inside(drill: &Drill, running: &Running) -> PathBuf {
    let state = drill.state();
    let state = state.strip_prefix("/").expect("absolute");
    PathBuf::from(format!("/proc/{}/root", running.pid())).join(state)
}

/// The program as a client of that supervisor.
pub(crate) fn client(drill: &Drill, running: &Running, args: &[&str]) -> Command {
    let text = fs::read_to_string(drill.config()).expect("toml");
    let (own, there) = (drill.state(), inside(drill, running));
    let text = text.replace(&*own.to_string_lossy(), &there.to_string_lossy());
    // Whole at once: a client before this one may just be reading it.
    fs::write(drill.path("client.new"), text).expect("written");
    fs::rename(drill.path("client.new"), drill.path("client.toml")).expect("moved");
    let mut command = Command::new(env!("CARGO_BIN_EXE_marshal"));
    command
        .arg("--config")
        .arg(drill.path("client.toml"))
        .args(args)
        .current_dir(drill.path(""))
        .stdin(Stdio::null());
    command
}

#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
#[test]
fn a_full_disk_holds_everything_and_space_lets_it_go_on_without_a_loss() {
    let drill = Drill::with_supervisor(POOLS, "journal.min_free = \"12M\"");
    let mut running = up(&drill);
    let lines = 2500;
    // By then most of the space is taken, and requests still come after that.
    let flood = format!("sleep 15s\nflood {lines} 4096");
    let request_list = vec!["sleep 250ms\nread README.md"; 60].join("\n");
    let mut working = client(
        &drill,
        &running,
        &["run", "--results", "r.jsonl", &flood, &flood, &request_list],
    )
    .stdout(fs::File::create(drill.path("client.log")).expect("log"))
    .stderr(Stdio::null())
    .spawn()
    .expect("a client");
    eventually(Duration::from_secs(60), "requests are allowed", || {
        let series = r#"marshal_permission_requests_total{pool="demo",tool_class="read",decision="allow",decided_by="policy"}"#;
        metric(&drill.get("/metrics").1, series).is_some_and(|count| count > 0.0)
    });
    let more = inside(&drill, &running).join("more");
    fs::write(&more, vec![0; 22 << 20]).expect("there is room for this");
    eventually(Duration::from_secs(60), "it is low on space early", || {
        let (code, page) = drill.get("/readyz");
        code == 503 && page.contains("MiB free on the journal's file system, 12 MiB required")
    });
    eventually(Duration::from_secs(90), "the disk is full", || {
        let (code, page) = drill.get("/readyz");
        code == 503 && (page.contains("full") || page.contains("I/O"))
    });
    // Nothing new, with the reason.
    let refused = client(&drill, &running, &["run", "read README.md"]).output();
    let refused = refused.expect("a client");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{printed}");
    assert!(printed.contains("read-only"), "{printed}");
    // What runs is held: nothing more is told, and memory stays where it is.
    let reported = || {
        let page = drill.get("/metrics").1;
        metric(&page, "marshal_journal_appended_events_total").unwrap_or(0.0)
    };
    let before = reported();
    let until = Instant::now() + Duration::from_secs(2);
    let bound = PROGRAM_BYTES + 3 * SESSION_BYTES + BROADCAST_BYTES;
    let peak = peak_rss(running.pid(), Duration::from_secs(60), || {
        Instant::now() > until
    });
    assert!(
        peak < bound,
        "{} MiB, the bound is {} MiB",
        peak >> 20,
        bound >> 20
    );
    assert!(reported() - before < f64::from(lines), "children are held");
    assert!(
        working.try_wait().expect("wait").is_none(),
        "nothing is over"
    );
    // Space returns.
    fs::remove_file(inside(&drill, &running).join(BALLAST)).expect("space");
    fs::remove_file(more).expect("space");
    eventually(Duration::from_secs(60), "it recovers by itself", || {
        drill.get("/readyz").0 == 200
    });
    let end = Instant::now() + Duration::from_secs(120);
    while working.try_wait().expect("wait").is_none() {
        assert!(
            Instant::now() < end,
            "the run does not end: {}",
            drill.log("stderr.log")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut results = drill.results("r.jsonl");
    results.sort_by_key(|result| result["id"].to_string());
    for result in &results {
        assert_eq!(result["outcome"], "done", "{result}");
    }
    let requests = &results[2]["requests"];
    let number = |key: &str| requests[key].as_u64().unwrap_or(0);
    assert!(
        number("denied") > 0,
        "asks are denied without space: {requests}"
    );
    assert_eq!(number("denied") + number("allowed"), 60, "{requests}");
    // With space, requests are allowed again, and nothing that was answered is not on record.
    let mut again = client(
        &drill,
        &running,
        &["run", "--results", "again.jsonl", "read README.md"],
    );
    assert!(again.output().expect("a client").status.success());
    assert_eq!(drill.results("again.jsonl")[0]["requests"]["allowed"], 1);
    // Taken out of its namespace, into the directory below the mount: SQLite would follow /proc
    // to that one. Of one moment, while nothing is written.
    running.signal("STOP");
    let from = inside(&drill, &running);
    for name in ["journal.db", "journal.db-wal"] {
        fs::copy(from.join(name), drill.state().join(name)).expect(name);
    }
    running.signal("CONT");
    drill.assert_dense();
    let proved = drill.run(&["audit", "verify"]);
    assert_eq!(proved.code, Some(0), "{}", proved.all());
    let texts: i64 = drill
        .database()
        .query_row(
            "SELECT sum(length(body ->> 'delta')) FROM events WHERE kind = 'text' AND session IN \
             (SELECT session FROM sessions WHERE task IN ('task-1', 'task-2'))",
            [],
            |row| row.get(0),
        )
        .expect("texts");
    assert!(
        texts > i64::from(2 * lines) * 3800,
        "no text is lost: {texts}"
    );
    running.end(Duration::from_secs(60));
}
