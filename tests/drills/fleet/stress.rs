//! Floods, lines without an end, quotas and a watcher that never reads: bounded, explained,
//! recovered.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drill::{Drill, Running, count, eventually, is_alive, metric};

pub(crate) const POOLS: &str = r#"
[pool.demo]
size      = 4
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
restart   = { base = "1ms", max = "1ms" }
stop      = { goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }
env       = { set = { DRILL = "MARK" } }
"#;

/// The fixed part of every bound: the program itself, its runtime, what the allocator keeps.
pub(crate) const PROGRAM_BYTES: usize = 96 << 20;
/// What a session may hold on its way to the disk, as docs/limits.md adds it up.
pub(crate) const SESSION_BYTES: usize = (28 << 20) + (64 << 10);
/// What is told live: to all watchers together, and to each of them as notices.
pub(crate) const BROADCAST_BYTES: usize = 32 << 20;
const NOTICES_BYTES: usize = 4096 * 1024;
/// What is read again for a watcher that is late.
const CATCH_UP_BYTES: usize = 4 << 20;

/// Lines of this size make a flood of 100 MB that costs bytes and not only lines.
const LINE: usize = 4096;

/// A flood of so many bytes; ten times as many with `tests/run --all`.
fn flood(bytes: usize) -> String {
    format!("flood {} {LINE}", count(bytes) / LINE)
}

/// The largest resident size of a process while a check holds off.
pub(crate) fn peak_rss(pid: u32, most: Duration, mut over: impl FnMut() -> bool) -> usize {
    let end = Instant::now() + most;
    let mut peak = 0;
    while !over() {
        assert!(Instant::now() < end, "not over within {most:?}");
        peak = peak.max(rss(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
    peak
}

/// What is resident of a process and not backed by a file: the database's mapped index is the
/// kernel's.
fn rss(pid: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<usize>().ok())
        .unwrap_or(0)
        << 10
}

pub(crate) fn up(drill: &Drill) -> Running {
    let running = drill.start(&["up"]);
    eventually(Duration::from_secs(60), "the daemon is ready", || {
        drill.log("stderr.log").contains("listening on http://")
            && drill.state().join("http.sock").exists()
            && drill.get("/readyz").0 == 200
    });
    running
}

/// A request to the socket, by hand. HTTP/1.0: the body has no chunks.
fn request(state: &Path, head: &str, body: &str) -> UnixStream {
    let mut stream = UnixStream::connect(state.join("http.sock")).expect("connected");
    let length = body.len();
    write!(
        stream,
        "{head} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    stream
}

/// Hands one task over by hand, and is told everything of it.
fn submit(state: &Path, id: &str, prompt: &str) -> UnixStream {
    let body = json!({"tasks": [{"id": id, "prompt": prompt}]}).to_string();
    let mut answer = String::new();
    let mut stream = request(state, "POST /api/v1/runs", &body);
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let run: Value = serde_json::from_str(body).expect(body);
    let run = run["run"].as_str().expect(body);
    request(state, &format!("GET /api/v1/runs/{run}/events"), "")
}

#[test]
fn a_flood_of_100_megabytes_is_journalled_within_the_bound_of_memory() {
    let drill = Drill::new(POOLS);
    let mut running = drill.start(&["run", "--results", "r.jsonl", &flood(100 << 20)]);
    let pid = running.pid();
    let most = Duration::from_secs(240 * count(1) as u64);
    let bound = PROGRAM_BYTES + SESSION_BYTES + BROADCAST_BYTES;
    let peak = peak_rss(pid, most, || !is_alive(pid));
    assert!(
        peak < bound,
        "{} MiB, the bound is {} MiB",
        peak >> 20,
        bound >> 20
    );
    let code = running.wait(Duration::from_secs(10));
    let result = &drill.results("r.jsonl")[0];
    if count(1) == 1 {
        assert_eq!(code, Some(0), "{}", drill.log("stderr.log"));
        assert_eq!(result["outcome"], "done", "{result}");
    } else {
        // 1 GB is more than one session may journal.
        assert_eq!(result["outcome"], "failed", "{result}");
    }
    drill.assert_dense();
}

#[test]
fn a_line_without_an_end_fails_its_child_with_the_reason_and_nothing_else() {
    let drill = Drill::new(POOLS);
    let huge = format!("huge-line {}", count(100 << 20));
    let mut running = drill.start(&[
        "run",
        "--results",
        "r.jsonl",
        &huge,
        "sleep 1s\nread README.md",
    ]);
    let pid = running.pid();
    let bound = PROGRAM_BYTES + 2 * SESSION_BYTES;
    let peak = peak_rss(pid, Duration::from_secs(240), || !is_alive(pid));
    assert!(
        peak < bound,
        "{} MiB, the bound is {} MiB",
        peak >> 20,
        bound >> 20
    );
    assert_eq!(running.wait(Duration::from_secs(10)), Some(1));
    let mut results = drill.results("r.jsonl");
    results.sort_by_key(|result| result["id"].to_string());
    let detail = results[0]["detail"].to_string();
    assert_ne!(results[0]["outcome"], "done");
    assert!(
        detail.contains("wrote a line of more than 8388608 bytes"),
        "{detail}"
    );
    assert_eq!(results[1]["outcome"], "done", "{results:?}");
    drill.assert_dense();
}

#[test]
fn a_session_over_its_quota_is_stopped_with_that_class_and_its_slot_goes_on() {
    let pools = POOLS.replace("= 4", "= 1");
    let drill = Drill::with_supervisor(&pools, "journal.session_max = \"1M\"");
    let flood = format!("flood 20000 {LINE}");
    let ran = drill.run(&["run", "--results", "r.jsonl", &flood, "read README.md"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let mut results = drill.results("r.jsonl");
    results.sort_by_key(|result| result["id"].to_string());
    assert_eq!(results[0]["outcome"], "failed", "{results:?}");
    let detail = results[0]["detail"].to_string();
    assert!(detail.contains("more than 1M into the journal"), "{detail}");
    assert_eq!(results[1]["outcome"], "done", "{results:?}");
    let database = drill.database();
    let class: String = database
        .query_row(
            "SELECT body ->> 'class' FROM events WHERE kind = 'child_exited' \
             AND session = (SELECT session FROM sessions WHERE task = 'task-1')",
            [],
            |row| row.get(0),
        )
        .expect("an exit");
    assert_eq!(class, "journal_quota");
    let bytes: i64 = database
        .query_row(
            "SELECT sum(octet_length(body)) FROM events WHERE session = \
             (SELECT session FROM sessions WHERE task = 'task-1')",
            [],
            |row| row.get(0),
        )
        .expect("bytes");
    // What was under way when the quota was found to be spent.
    let most = (1 << 20) + i64::try_from(SESSION_BYTES).expect("small");
    assert!((1 << 20..most).contains(&bytes), "{bytes}");
    drill.assert_dense();
}

/// Reads a stream to its end: the seqs of each session, and how often it lagged.
fn read_all(stream: UnixStream) -> (BTreeMap<String, Vec<u64>>, usize, bool) {
    let (mut seqs, mut lagged, mut complete) = (BTreeMap::<String, Vec<u64>>::new(), 0, false);
    stream
        .set_read_timeout(Some(Duration::from_secs(180)))
        .expect("timeout");
    for line in BufReader::new(stream).lines() {
        let line = line.expect("a line");
        // The head, the names of events and the blank lines between them.
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let line: Value = serde_json::from_str(data).expect("JSON");
        match line["type"].as_str() {
            Some("event") => {
                let id = line["id"].as_str().and_then(|id| id.split_once('-'));
                let seq = id.and_then(|(_, seq)| seq.parse().ok()).expect("a seq");
                let session = line["session"].as_str().expect("a session");
                seqs.entry(session.to_owned()).or_default().push(seq);
            }
            Some("lagged") => lagged += 1,
            Some("complete") => {
                complete = true;
                break;
            }
            _ => {}
        }
    }
    (seqs, lagged, complete)
}

#[test]
fn a_watcher_that_never_reads_slows_nobody_and_a_slow_one_misses_nothing() {
    let drill = Drill::new(POOLS);
    let mut running = up(&drill);
    let pid = running.pid();
    let big = flood(50 << 20);
    // 100 MB flow. One watcher reads nothing, ever; one begins when it is far behind.
    let deaf = submit(&drill.state(), "deaf", &big);
    let slow = submit(&drill.state(), "slow", &big);
    let reading = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        read_all(slow)
    });
    let most = Duration::from_secs(240 * count(1) as u64);
    let done = || {
        let page = drill.get("/metrics").1;
        let ended = |outcome: &str| {
            let series = format!("marshal_tasks_total{{pool=\"demo\",outcome=\"{outcome}\"}}");
            metric(&page, &series).unwrap_or(0.0)
        };
        ended("done") + ended("failed") >= 2.0
    };
    let bound =
        PROGRAM_BYTES + 2 * SESSION_BYTES + BROADCAST_BYTES + NOTICES_BYTES + 2 * CATCH_UP_BYTES;
    let peak = peak_rss(pid, most, done);
    assert!(
        peak < bound,
        "{} MiB, the bound is {} MiB",
        peak >> 20,
        bound >> 20
    );
    // Others are served meanwhile.
    let ran = drill.run(&["run", "read README.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let (seqs, lagged, complete) = reading.join().expect("read");
    assert!(complete, "the stream has its end");
    assert_eq!(seqs.len(), 1, "only its own run");
    for seqs in seqs.values() {
        let last = seqs.len() as u64;
        assert!(
            seqs.iter().copied().eq(1..=last),
            "every event once, in order"
        );
        let session = drill.database().query_row(
            "SELECT max(n) FROM (SELECT count(*) n FROM events WHERE session = \
             (SELECT session FROM sessions WHERE task = 'slow'))",
            [],
            |row| row.get::<_, i64>(0),
        );
        // The child's exit may come after the task's report.
        let durable = session.expect("events").unsigned_abs();
        assert!(
            last <= durable && durable - last <= 2,
            "{last} of {durable}, lagged {lagged}"
        );
    }
    drop(deaf);
    running.end(Duration::from_secs(60));
    drill.assert_dense();
}
