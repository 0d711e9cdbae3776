//! A foreign checker asks for everything that the OpenAPI document has, well and badly.

use std::path::PathBuf;
use std::process::Command;

use crate::api::api_daemon::{ApiDaemon, POOL};

/// What it looks for: no failure of ours, and nothing that the document does not say.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method";

#[test]
fn the_document_says_what_happens() {
    let tool = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools/schemathesis/bin/st");
    assert!(
        tool.exists(),
        "`tests/run schemathesis` installs {}",
        tool.display()
    );
    let api = ApiDaemon::of(POOL);
    let begun = api.post("/workspaces/main/chats", r#"{"goal": "say hello"}"#);
    assert_eq!(begun.status, 201, "{begun:?}");
    let chat = begun.json()["chat_id"].clone();
    let dir = tempfile::tempdir().expect("a directory");
    // A body that is too long is refused by its length, before it is read.
    let statuses = "[\"400\", \"404\", \"409\", \"413\", \"415\", \"422\"]";
    let config = format!(
        "[parameters]\nworkspace = \"main\"\nchat = {chat}\n\
         [checks]\nnegative_data_rejection.expected-statuses = {statuses}\n"
    );
    std::fs::write(dir.path().join("schemathesis.toml"), config).expect("written");
    let ran = Command::new("timeout")
        .args(["--kill-after=10", "900"])
        .arg(tool)
        .args(["--config-file", "schemathesis.toml", "run"])
        .arg(format!("http://{}/api/v1/openapi.json", api.address))
        .args(["--header", &format!("Authorization: Bearer {}", api.token)])
        .args(["--checks", CHECKS, "--phases", "examples,coverage,fuzzing"])
        .args(["--max-examples", "8", "--seed", "7", "--workers", "1"])
        .args(["--request-timeout", "60", "--no-color"])
        // Within what one token may ask.
        .args(["--rate-limit", "60/s"])
        // Streams do not end; what ends them is tested in `streams`.
        .args(["--exclude-path-regex", "events$|^/api/v1/stop$"])
        .args(["--generation-database", "none"])
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", dir.path())
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{:?}\n{printed}\n{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(api.see("/fleet")["ready"], true, "it still works");
}
