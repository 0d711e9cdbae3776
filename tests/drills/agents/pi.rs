//! pi's RPC mode by the table of `examples/dialects` alone: a command that runs, text, usage, a
//! cancelled turn, and a session that is switched to after its child was killed.

use std::fs;
use std::path::Path;

use crate::agents::bench::{
    Model, PATIENCE, alone, assert_no_file_with_key, assert_without_key, events, in_copy, kill,
    oldest, result, run_output, start, tools, until_asleep, until_gone,
};
use crate::drill::Drill;

/// The port of the route, which stands in pi's own file of models.
const PORT: u16 = 20_777;

fn drill(model: &Model) -> Drill {
    let pi = tools().join("pi");
    let program = pi.join("node_modules/@mariozechner/pi-coding-agent/dist/cli.js");
    assert!(
        program.exists(),
        "pi of npm is not installed: no {}; run tests/run agents",
        program.display()
    );
    let drill = Drill::new(&format!(
        r#"
[route.openai]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"
port     = {PORT}

[sandbox.with-pi]
ro_bind = ["/usr", {:?}]

[pool.real]
command    = ["/usr/bin/node", {:?}, "--mode", "rpc", "--provider", "rehearsal", "--model", "rehearsal-1"]
dialect    = {{ custom = "pi.toml" }}
sandbox    = "with-pi"
network    = "routes"
routes     = ["openai"]
session    = "slot"
workspace  = {{ path = "project", mode = "copy" }}
home_files = {{ ".pi/agent/models.json" = "models.json" }}
timeouts   = {{ handshake = "4m", cancel = "1m" }}
restart    = {{ base = "10ms", max = "50ms", on_crash = "resume" }}
env        = {{ set = {{ DRILL = "MARK", PI_OFFLINE = "1" }} }}
"#,
        model.address,
        pi.display().to_string(),
        program.display().to_string(),
    ));
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/dialects/pi.toml");
    fs::copy(table, drill.path("pi.toml")).expect("the table");
    let models = serde_json::json!({"providers": {"rehearsal": {
        "baseUrl": format!("http://127.0.0.1:{PORT}/v1"),
        "api": "openai-completions",
        "apiKey": "not-in-here",
        "models": [{"id": "rehearsal-1"}],
    }}});
    fs::write(drill.path("models.json"), models.to_string()).expect("models");
    drill
}

#[test]
fn pi_works_is_cancelled_and_comes_back_by_a_table_alone() {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(&model);
    let mut running = start(
        &drill,
        &model.key,
        "first",
        &[
            ("touch", "RUN: touch made.txt\nSAY: bye"),
            ("cancel", "RUN: sleep 300\nSAY: never"),
        ],
    );
    let inside = until_asleep(&drill, "first", "300");
    assert_without_key(&inside, &model.key);
    let _stopping = drill.cancel_turns();
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "first");
    assert_eq!(code, Some(1), "{all}");
    until_gone(&inside);

    let touch = result(&drill, "first", "touch");
    assert_eq!(touch["outcome"], "done", "{all}");
    assert!(in_copy(&touch, "made.txt").exists(), "{all}");
    let session = touch["session"].as_str().expect("a session");
    let ready = events(&drill, session, "ready");
    let shown = format!("{ready:?}");
    assert!(
        shown.contains("pi-rpc") && shown.contains("rehearsal-1"),
        "{shown}"
    );
    let calls = events(&drill, session, "tool_start");
    assert_eq!(calls[0]["name"], "bash", "{calls:?}");
    assert_eq!(calls[0]["input"]["command"], "touch made.txt", "{calls:?}");
    let results = events(&drill, session, "tool_result");
    assert_ne!(results[0]["is_error"], true, "{results:?}");
    let text = events(&drill, session, "text");
    assert!(format!("{text:?}").contains("bye"), "{text:?}");
    let ended = &events(&drill, session, "turn_ended")[0];
    assert_eq!(ended["stop_reason"], "stop", "{ended}");
    let used = |key: &str| ended["usage"][key].as_u64().unwrap_or(0);
    assert!(used("input") > 0 && used("output") > 0, "{ended}");
    assert_eq!(
        result(&drill, "first", "cancel")["outcome"],
        "cancelled",
        "{all}"
    );

    // Killed in the middle of a tool; the next child is told to switch to the session.
    let mut running = start(
        &drill,
        &model.key,
        "second",
        &[
            ("kill", "RUN: sleep 301\nSAY: never"),
            ("next", "RUN: touch next.txt\nSAY: bye"),
        ],
    );
    let inside = until_asleep(&drill, "second", "301");
    kill(oldest(&drill));
    until_gone(&inside);
    let code = running.wait(PATIENCE);
    let all = run_output(&drill, "second");
    assert_eq!(code, Some(1), "{all}");
    assert_eq!(result(&drill, "second", "kill")["outcome"], "lost", "{all}");
    let next = result(&drill, "second", "next");
    assert_eq!(next["outcome"], "done", "{all}");
    assert!(in_copy(&next, "next.txt").exists(), "{all}");
    let session = next["session"].as_str().expect("a session");
    let resumed = events(&drill, session, "session_resumed");
    assert_eq!(resumed[0]["how"], "resume", "{all}\n{resumed:?}");
    assert!(drill.agents().is_empty());
    assert_no_file_with_key(&drill.state(), &model.key);
    drill.assert_dense();
}
