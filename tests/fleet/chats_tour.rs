//! The tour of docs/api.md, line by line.

use std::process::Command;

use crate::chat_client::{Daemon, drill};

#[test]
fn every_line_of_the_tour_works() {
    let page = include_str!("../../docs/api.md");
    let blocks = page.split("```bash\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let script: String = blocks.collect();
    assert_eq!(script.matches("curl ").count(), 16, "{script}");
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let script = script
        .replace("/var/lib/marshal", &drill.state().display().to_string())
        .replace("127.0.0.1:7117", &daemon.address);
    let ran = Command::new("timeout")
        .args(["120", "bash", "-eux", "-c", &script])
        .current_dir(drill.path("."))
        .output()
        .expect("bash");
    let said = String::from_utf8_lossy(&ran.stdout);
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{told}");
    for part in [
        "event: chunk\ndata: {\"text\":\"hello",
        "event: call\n",
        "event: observation\n",
        "\"sequence\":2",
        "\"status\":\"cancelled\"",
        "\"type\":\"stopped\"",
        "working",
        "\"loaded\":true",
        "\"next\":2",
        "\"reason\":\"goal_met\"",
        "\"mode\":\"autonomous\"",
    ] {
        assert!(said.contains(part), "{part}: {said}\n{told}");
    }
    // The key made the second sending the first.
    assert_eq!(
        said.matches("{\"sequence\":2,\"turn_id\"").count(),
        2,
        "{said}"
    );
}
