//! `marshal ls` beside a supervisor: its pools, its slots, and where its sandboxes have gaps.

use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, eventually};

const POOL: &str = r#"
[pool.demo]
size      = 2
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "cautious"
guard     = "policy+sandbox"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }

[pool.plain]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "none"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
"#;

fn fleet_listing(drill: &Drill) -> Value {
    let ran = drill.run(&["ls", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    serde_json::from_str(&ran.stdout).expect("one object")
}

#[test]
fn pools_and_slots_are_listed_with_their_sandbox_gaps() {
    for (drill, is_root) in [(Drill::new(POOL), true), (Drill::of_nobody(POOL), false)] {
        let nobody = drill.run(&["ls"]);
        assert_eq!(nobody.code, Some(4), "{}", nobody.all());
        assert!(nobody.stderr.contains("marshal up"), "{}", nobody.all());

        let mut daemon = drill.start(&["up"]);
        eventually(Duration::from_secs(30), "the daemon answers", || {
            drill.run(&["ls"]).code == Some(0)
        });
        let before = fleet_listing(&drill);
        assert_eq!(before["slots"].as_array().map(Vec::len), Some(3));
        assert_eq!(before["slots"][0]["state"], "unloaded");
        assert_eq!(before["slots"][0]["pid"], Value::Null);

        let task = drill.path("tasks.jsonl");
        let line = r#"{"id":"long","prompt":"sleep 600s","pool":"demo"}"#;
        std::fs::write(&task, line).expect("a task");
        let mut run = drill.start(&["run", task.to_str().expect("UTF-8")]);
        eventually(Duration::from_secs(30), "a slot works", || {
            fleet_listing(&drill)["slots"][0]["state"] == "busy"
        });
        let now = fleet_listing(&drill);
        let slot = &now["slots"][0];
        assert_eq!(slot["slot"], "demo/0");
        assert_eq!(slot["task"], "long");
        let pid = slot["pid"].as_u64().expect("a process");
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        let pools = &now["pools"];
        assert_eq!(pools[0]["pool"], "demo");
        assert_eq!(pools[0]["sandbox"], "standard");
        assert_eq!(pools[0]["tasks"], 1);
        // Without root there is one uid for all; what else is missing is the host's.
        let lacks = pools[0]["lacks"].to_string();
        assert_eq!(lacks.contains("shared_uid"), !is_root, "{lacks}");
        assert_eq!(pools[1]["sandbox"], Value::Null);
        let weak = pools[1]["weak"].to_string();
        assert!(weak.contains("no sandbox"), "{weak}");

        let text = drill.run(&["ls"]);
        let session = slot["session"].as_str().expect("a session");
        for word in [
            "demo/0",
            "busy",
            "long",
            session,
            "weak: launcher none",
            "plain/0",
        ] {
            assert!(text.stdout.contains(word), "{word}: {}", text.all());
        }
        let tells = text.stdout.contains("missing on this host: shared_uid");
        assert_eq!(tells, !is_root, "{}", text.all());

        run.end(Duration::from_secs(60));
        daemon.signal("TERM");
        daemon.wait(Duration::from_secs(60));
    }
}
