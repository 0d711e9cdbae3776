//! Connections that are cut or stall in the middle of a turn: what is said, and what is left.

use std::time::{Duration, Instant};

use crate::drill::{Drill, Running, eventually};
use crate::ssh::ssh_host::{SshHost, signal};

/// A run whose agent is busy, with an orphan that left its session.
fn busy(drill: &Drill) -> Running {
    let running = drill.start(&["run", "--results", "r.jsonl", "spawn-orphan\nsleep 600s"]);
    // The program at the far end that starts the agent is none of both.
    let is_orphan = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim_end() == "sleep")
    };
    eventually(Duration::from_secs(60), "an agent and its orphan", || {
        drill.agents().iter().any(is_orphan)
    });
    running
}

fn detail(drill: &Drill) -> String {
    let result = &drill.results("r.jsonl")[0];
    assert_eq!(result["outcome"], "lost", "{result}");
    result["detail"].as_str().expect("a detail").to_owned()
}

#[test]
fn a_cut_connection_is_told_with_what_may_be_left() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&far.keys(), ""));
    let mut running = busy(&drill);
    far.signal_sessions("KILL");
    let code = running.wait(Duration::from_secs(60));
    assert_eq!(code, Some(1), "{}", drill.log("stderr.log"));
    let detail = detail(&drill);
    for part in [
        "connection to far@127.0.0.1",
        "was lost",
        "may still run on far@127.0.0.1",
    ] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    // And so it is: the orphan has nobody who ends it.
    let left = drill.agents();
    assert!(!left.is_empty(), "the promise would be too small");
    for pid in left {
        signal(pid, "KILL");
    }
    let database = drill.database();
    let class: String = database
        .query_row("SELECT class FROM sessions", [], |row| row.get(0))
        .expect("a class");
    assert_eq!(class, "connection_lost");
}

#[test]
fn with_marshal_at_the_far_end_nothing_survives_a_cut() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&format!("{}\nmarshal = \"marshal\"", far.keys()), ""));
    let mut running = busy(&drill);
    far.signal_sessions("KILL");
    let cut = Instant::now();
    assert_eq!(running.wait(Duration::from_secs(60)), Some(1));
    let detail = detail(&drill);
    assert!(detail.contains("was lost"), "{detail}");
    assert!(!detail.contains("may still run"), "{detail}");
    eventually(
        Duration::from_secs(30),
        "everything at the far end is gone",
        || drill.agents().is_empty(),
    );
    assert!(cut.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_stalled_connection_counts_as_lost() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&format!("{}\nalive_timeout = \"6s\"", far.keys()), ""));
    let mut running = busy(&drill);
    far.signal_sessions("STOP");
    let code = running.wait(Duration::from_secs(60));
    assert_eq!(code, Some(1), "{}", drill.log("stderr.log"));
    let detail = detail(&drill);
    for part in ["was lost", "did not answer for", "may still run"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    far.signal_sessions("CONT");
    for pid in drill.agents() {
        signal(pid, "KILL");
    }
}

#[test]
fn a_killed_supervisor_leaves_nothing_in_a_remote_sandbox_and_no_client_here() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&format!("{}\nmarshal = \"marshal\"", far.keys()), ""));
    let running = busy(&drill);
    running.signal("KILL");
    eventually(Duration::from_secs(30), "no connection is left", || {
        far.sessions().is_empty()
    });
    // The end of its input is a normal stop at first: it has its time.
    eventually(
        Duration::from_secs(60),
        "everything at the far end is gone",
        || drill.agents().is_empty(),
    );
}

#[test]
fn an_agent_that_ends_with_its_input_leaves_nothing_to_tell() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&far.keys(), ""));
    let ran = drill.run(&["run", "--results", "r.jsonl", "list ."]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let ended = drill.run(&["events", "--json"]);
    assert!(ended.stdout.contains("child_exited"), "{}", ended.all());
    assert!(!ended.stdout.contains("may still run"), "{}", ended.all());
}
