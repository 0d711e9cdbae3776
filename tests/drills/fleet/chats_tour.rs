//! The tour of docs/api.md, line by line.

use std::fs;
use std::process::Command;

use crate::chat_client::{Daemon, POLICY};
use crate::drill::Drill;
use crate::fleet::plans::chown_to_nobody;

/// The configuration that the page shows, with a pool in which agents share the workspace.
fn drill() -> Drill {
    let page = include_str!("../../../docs/api.md");
    let shown = page.split("```toml\n").nth(1).expect("a configuration");
    let shown = shown.split("```").next().expect("its end");
    let drill = Drill::new(&format!(
        r#"{}
[pool.demo]
size      = 2
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "asking"
workspace = {{ path = "project", mode = "rw" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
engine_tools = "all"

[policy.asking]
file = "asking.toml"
"#,
        shown.replace("/srv/project", "project")
    ));
    fs::write(drill.path("asking.toml"), POLICY).expect("asking.toml");
    chown_to_nobody(&drill.workspace());
    drill
}

#[test]
fn every_line_of_the_tour_works() {
    let page = include_str!("../../../docs/api.md");
    let blocks = page.split("```bash\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let script: String = blocks.collect();
    assert_eq!(script.matches("curl ").count(), 29, "{script}");
    let drill = drill();
    let daemon = Daemon::start(&drill);
    let script = script
        .replace("/var/lib/marshal", &drill.state().display().to_string())
        .replace("127.0.0.1:7117", &daemon.address);
    let ran = Command::new("timeout")
        .args(["300", "bash", "-eux", "-c", &script])
        .current_dir(drill.path("."))
        .output()
        .expect("bash");
    let said = String::from_utf8_lossy(&ran.stdout);
    let printed = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{printed}");
    for part in [
        "event: chunk\ndata: {\"text\":\"hello",
        "event: call\n",
        "event: observation\n",
        "\"sequence\":2",
        "\"status\":\"cancelled\"",
        "\"type\":\"stopped\"",
        "working",
        "\"loaded\":true",
        "\"next\":\"2\"",
        "event: plan\n",
        "\"status\":\"approved\"",
        "\"agent\":\"dev\"",
        "\"reason\":\"plan_done\"",
        "\"plan_id\":\"content/campaign-plan.md\"",
        "\"reason\":\"goal_met\"",
        "\"mode\":\"autonomous\"",
    ] {
        assert!(said.contains(part), "{part}: {said}\n{printed}");
    }
    // The key made the second sending the first.
    assert_eq!(said.matches(",\"sequence\":2}").count(), 2, "{said}");
    for (name, text) in [
        ("notes.txt", "planned\n"),
        ("a.txt", "one\n"),
        ("b.txt", "two\n"),
        ("content/post.md", "Hello\n"),
        ("team.md", "- [x] write a.txt one\n- [x] write b.txt two\n"),
    ] {
        let found = fs::read_to_string(drill.workspace().join(name));
        assert_eq!(
            found.ok().as_deref(),
            Some(text),
            "{name}: {said}\n{printed}"
        );
    }
}
