//! A foreign checker asks for everything that the OpenAPI document has, well and badly, in each role.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::api::api_daemon::{ApiDaemon, POOL};
use crate::drill::Drill;
use crate::http_clients::tool;

/// What it looks for: no failure of ours, and nothing that the document does not say.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method";

/// The roles that do not own the supervisor; the owner's token has the role `admin` too.
const ROLES: [&str; 3] = ["read", "operate", "approve"];

#[test]
fn the_document_says_what_happens_to_the_owner() {
    check(None, "8");
}

#[test]
fn the_document_says_what_happens_to_each_other_role() {
    for role in ROLES {
        check(Some(role), "3");
    }
}

fn check(role: Option<&str>, examples: &str) {
    let tokens =
        ROLES.map(|role| format!("[token.{role}]\nfile = \"{role}.token\"\nrole = \"{role}\"\n"));
    let drill = Drill::new(&format!("{POOL}\n{}", tokens.concat()));
    let token = |role: &str| format!("{role:-<40}");
    for role in ROLES {
        let file = drill.path(&format!("{role}.token"));
        fs::write(&file, token(role)).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    }
    let api = ApiDaemon::open(drill);
    let begun = api.post("/workspaces/main/chats", r#"{"goal": "say hello"}"#);
    assert_eq!(begun.status, 201, "{begun:?}");
    let chat = begun.json()["chat_id"].clone();
    let dir = tempfile::tempdir().expect("a directory");
    // A body that is too long is refused by its length, and a role before anything of the request is read.
    let statuses = match role {
        None => "[\"400\", \"404\", \"409\", \"413\", \"415\", \"422\"]",
        Some(_) => "[\"400\", \"403\", \"404\", \"409\", \"413\", \"415\", \"422\"]",
    };
    let config = format!(
        "[parameters]\nworkspace = \"main\"\nchat = {chat}\n\
         [checks]\nnegative_data_rejection.expected-statuses = {statuses}\n"
    );
    fs::write(dir.path().join("schemathesis.toml"), config).expect("written");
    let token = role.map_or_else(|| api.token.clone(), token);
    let ran = Command::new("timeout")
        .args(["--kill-after=10", "900"])
        .arg(tool("schemathesis", "st"))
        .args(["--config-file", "schemathesis.toml", "run"])
        .arg(format!("http://{}/api/v1/openapi.json", api.address))
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--checks", CHECKS, "--phases", "examples,coverage,fuzzing"])
        .args(["--max-examples", examples, "--seed", "7", "--workers", "1"])
        .args(["--request-timeout", "60", "--no-color"])
        // Within what one token may ask.
        .args(["--rate-limit", "60/s"])
        // Streams do not end; what ends them is tested in `streams`.
        // Streams: OpenAPI 3.1 has no schema of a single event, and the tool checks each by that of the whole.
        .args(["--exclude-path-regex", "(events|logs)$|^/api/v1/stop$"])
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
        "{role:?}: {:?}\n{printed}\n{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(api.see("/fleet")["ready"], true, "it still works");
}
