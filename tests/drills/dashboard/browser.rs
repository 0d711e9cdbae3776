//! The dashboard in Chromium, driven by Playwright and judged by axe.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{code, daemon};

/// An overlay, so that a result can be applied; a budget, so that cost is counted.
const POOLS: &str = r#"
[http]
hosts = ["marshal.localhost:PORT"]

[price."script*"]
input = 3000.0
output = 15000.0

[pool.demo]
size = 3
command = ["marshal", "script-agent"]
dialect = "scaiflux"
policy = "cautious"
workspace = { path = "project", mode = "overlay" }
budget = { day_cost = 5 }
env = { set = { DRILL = "MARK" } }
"#;

const MANY: &str = r#"
[http]
hosts = ["marshal.localhost:PORT"]

[pool.demo]
size = 500
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
workspace = { path = "project", mode = "copy" }
env = { set = { DRILL = "MARK" } }
"#;

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Runs the script of the browser, and returns what it saw.
fn browse(pools: &str, tasks: u32, shots: &Path) -> Value {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools/browser");
    assert!(
        tools.exists(),
        "`tests/run dashboard` installs {}",
        tools.display()
    );
    let port = free_port();
    let daemon = daemon(&pools.replace("PORT", &port.to_string()));
    let settings = json!({
        "tools": tools,
        "address": daemon.address,
        "port": port,
        "token": daemon.token,
        "codes": [code(&daemon, &[]), code(&daemon, &[])],
        "shots": shots,
        "tasks": tasks,
    });
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/drills/dashboard/browser.mjs"
    );
    let mut node = Command::new("node");
    node.arg(script).env("DRILL", settings.to_string());
    let ran = node.output().expect("node");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let seen = serde_json::from_slice::<Value>(&ran.stdout);
    let seen = seen.unwrap_or_else(|error| panic!("{error}: {}", text(&ran.stderr)));
    assert!(seen["failed"].is_null(), "{seen:#}");
    for none in ["axe", "overflow", "faults"] {
        assert_eq!(seen[none], json!([]), "{none}: {seen:#}");
    }
    seen
}

/// The pictures of the documentation are made here: with `MARSHAL_SCREENSHOTS=1` they are replaced.
fn shots(scratch: &Path) -> PathBuf {
    match std::env::var_os("MARSHAL_SCREENSHOTS") {
        Some(_) => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/dashboard")),
        None => scratch.to_owned(),
    }
}

#[test]
fn an_operator_does_each_task_in_three_steps() {
    let scratch = tempfile::tempdir().expect("a directory");
    let seen = browse(POOLS, 0, &shots(scratch.path()));
    for (task, most) in [
        ("stuck", 0),
        ("approve", 2),
        ("cost", 1),
        ("land", 3),
        ("stop", 2),
    ] {
        assert_eq!(seen["steps"][task], most, "{task}: {seen:#}");
    }
    let text = |key: &str| seen[key].as_str().unwrap_or_default().to_owned();
    assert!(text("stuck").contains("touch made.txt"), "{seen:#}");
    assert!(text("stuck").contains("waits for a person"), "{seen:#}");
    assert_eq!(
        (text("approved"), text("reason")),
        ("approved".to_owned(), "not that one".to_owned())
    );
    assert!(text("said").contains("approved"), "{seen:#}");
    assert!(text("cost").contains("Since midnight UTC: $"), "{seen:#}");
    assert!(text("session").contains("A finished task"), "{seen:#}");
    assert_eq!(text("stopped"), "cancelled");
    assert_eq!(seen["theme"], json!(["dark", "rgb(20, 23, 28)"]));
    assert!(
        text("title").ends_with("marshal"),
        "no script of an agent ran: {seen:#}"
    );
    // A thumb hits what is at least 44 pixels high.
    assert!(
        seen["thumb"]["height"]
            .as_f64()
            .is_some_and(|height| height >= 44.0),
        "{seen:#}"
    );
    assert_eq!(
        (seen["before"].as_u64(), text("after")),
        (Some(0), "busy".to_owned()),
        "{seen:#}"
    );
    for name in [
        "fleet",
        "approvals-phone",
        "approval",
        "cost",
        "tasks",
        "diff",
        "session",
    ] {
        let picture = shots(scratch.path()).join(format!("{name}.png"));
        assert!(
            fs::metadata(&picture).is_ok_and(|file| file.len() > 5000),
            "{name}"
        );
    }
}

#[test]
fn five_hundred_slots_leave_the_browser_time_and_the_network_room() {
    let scratch = tempfile::tempdir().expect("a directory");
    let seen = browse(MANY, 120, scratch.path());
    println!(
        "frames {} bytes/s {} nodes {}",
        seen["frames"], seen["bytesPerSecond"], seen["nodes"]
    );
    assert_eq!(seen["slots"], 500);
    // Only what changes is sent: 500 rows four times a second would be some 1.5 MB.
    let bytes = seen["bytesPerSecond"].as_u64().expect("bytes");
    assert!((100..150_000).contains(&bytes), "{seen:#}");
    assert!(
        seen["frames"]["median"]
            .as_f64()
            .is_some_and(|ms| ms < 50.0),
        "{seen:#}"
    );
}
