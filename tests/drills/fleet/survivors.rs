//! Nothing outlives its supervisor: eight busy children, each with an orphaned grandchild.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::drill::{Drill, Running, descendants, eventually, is_alive};

const POOL: &str = r#"
[pool.demo]
size      = 8
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
stop      = { goodbye = "200ms", eof = "200ms", int = "200ms", term = "200ms" }
timeouts  = { cancel = "500ms" }
env       = { set = { DRILL = "MARK" } }
"#;

const LONG: Duration = Duration::from_secs(60);
/// For what would be there for minutes by itself.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// A supervisor whose eight agents are busy, each with an orphan that left its session.
fn busy(drill: &Drill) -> (Running, BTreeSet<u32>) {
    let script = "spawn-orphan\nsleep 600s";
    let mut args = vec!["run"];
    args.extend([script; 8]);
    let running = drill.start(&args);
    // An agent and its orphan in each of eight sandboxes.
    eventually(LONG, "eight agents and eight orphans", || {
        let agents = drill.agents();
        agents.len() >= 16 && sandboxes(&agents).len() == 8
    });
    let mut all = descendants(running.pid());
    all.extend(drill.agents());
    assert!(all.len() >= 32, "helpers included: {all:?}");
    (running, all)
}

/// The pid namespaces that processes are in.
fn sandboxes(pids: &BTreeSet<u32>) -> BTreeSet<std::path::PathBuf> {
    let namespace = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    pids.iter().filter_map(namespace).collect()
}

fn wait_until_dead(all: &BTreeSet<u32>, drill: &Drill, since: Instant, most: Duration) {
    loop {
        let left: Vec<_> = all.iter().filter(|pid| is_alive(**pid)).collect();
        let agents = drill.agents();
        if left.is_empty() && agents.is_empty() {
            return;
        }
        assert!(
            since.elapsed() < most,
            "left after {most:?}: {left:?}, agents {agents:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_supervisor_leaves_nothing() {
    for drill in [Drill::new(POOL), Drill::of_nobody(POOL)] {
        let (mut running, all) = busy(&drill);
        let since = Instant::now();
        running.child.kill().expect("kill -9");
        let _ = running.child.wait();
        wait_until_dead(&all, &drill, since, CLEANUP_TIMEOUT);
    }
}

#[test]
fn cancelled_turns_leave_nothing_and_write_results() {
    let drill = Drill::new(POOL);
    let (mut running, all) = busy(&drill);
    let _stopping = drill.cancel_turns();
    let code = running.wait(LONG);
    assert_eq!(code, Some(1), "{}", drill.log("stderr.log"));
    wait_until_dead(&all, &drill, Instant::now(), CLEANUP_TIMEOUT);
    let table = drill.log("stdout.log");
    assert!(table.matches("cancelled").count() >= 8, "{table}");
}

#[test]
fn a_second_signal_kills() {
    let drill = Drill::new(&POOL.replace("500ms", "60s"));
    let (mut running, all) = busy(&drill);
    running.signal("INT");
    // Two that come before one is looked at are one.
    eventually(LONG, "the first is heard", || {
        drill.log("stderr.log").contains("no further task begins")
    });
    running.signal("INT");
    let code = running.wait(CLEANUP_TIMEOUT);
    assert!(matches!(code, Some(130 | 1)), "{code:?}");
    wait_until_dead(&all, &drill, Instant::now(), CLEANUP_TIMEOUT);
}

#[test]
fn a_restarted_slot_leaves_nothing_of_its_old_child() {
    let drill = Drill::new(POOL);
    let (running, _) = busy(&drill);
    let before = sandboxes(&drill.agents());
    assert_eq!(before.len(), 8, "{before:?}");
    let ran = drill.run(&["restart", "demo/3"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    eventually(CLEANUP_TIMEOUT, "one sandbox is empty", || {
        sandboxes(&drill.agents()).len() == 7
    });
    let ran = drill.run(&["restart", "demo/99"]);
    assert_eq!(ran.code, Some(2), "no such slot: {}", ran.all());
    drop(running);
}

/// Without a sandbox the promise is smaller: every stop, and the direct child on `kill -9`.
#[test]
fn without_a_sandbox_a_stop_leaves_nothing() {
    let pool = POOL
        .replace("\"unshare\"", "\"none\"")
        .replace("size      = 8", "size      = 2");
    let drill = Drill::new(&pool);
    let script = "spawn-orphan\nsleep 600s";
    let mut running = drill.start(&["run", script, script]);
    eventually(LONG, "two agents, two orphans", || {
        drill.agents().len() >= 4
    });
    assert_eq!(running.end(LONG), Some(130));
    eventually(CLEANUP_TIMEOUT, "nothing is left", || {
        drill.agents().is_empty()
    });
}
