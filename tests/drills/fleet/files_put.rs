//! Files that a person writes whole over HTTP: of any bytes, up to a bound.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::chat_client::Daemon;
use crate::fleet::files::{FILES, drill};

#[test]
fn a_file_of_any_bytes_is_put_and_comes_back() {
    let drill = drill("");
    let daemon = Daemon::start(&drill);
    let path = format!("{FILES}/new/bytes");
    let put = |body: serde_json::Value| daemon.request("PUT", &path, "", &body.to_string());
    let mut bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let made = put(json!({"base64": STANDARD.encode(&bytes), "base": 0}));
    assert_eq!(
        (made.status, &made.body["bytes"]),
        (200, &json!(1 << 20)),
        "{made:?}"
    );
    let stored = fs::read(drill.workspace().join("new/bytes"));
    assert!(stored.expect("put") == bytes, "other bytes on the disk");
    let got = daemon.get(&path).body;
    assert!(
        got["base64"] == STANDARD.encode(&bytes),
        "other bytes came back"
    );

    bytes.push(0);
    let refused = put(json!({"base64": STANDARD.encode(&bytes)}));
    assert_eq!(refused.status, 413, "{refused:?}");
    let detail = refused.body["detail"].as_str().expect("why");
    assert!(detail.contains("at most 1048576 bytes"), "{detail}");
    // As a text it may be as long.
    let text = "\u{e4}".repeat(1 << 19);
    assert_eq!(put(json!({ "content": &text })).status, 200);
    assert_eq!(put(json!({ "content": text + "x" })).status, 413);
    for odd in [
        json!({"content": "x", "base64": "eA=="}),
        json!({"content": null, "base64": "eA=="}),
        json!({"base64": "e"}),
        json!({"base": 1}),
    ] {
        assert_eq!(put(odd.clone()).status, 400, "{odd}");
    }
    assert_eq!(daemon.get(&path).body["version"]["version"], 2);
}

/// Who may start work may not write what other programs run or obey; who administrates may.
#[test]
fn a_file_that_other_programs_obey_is_written_by_an_admin_only() {
    let drill = drill("[token.hand]\nfile = \"hand.token\"\nrole = \"operate\"");
    let hand = "0123456789abcdef0123456789abcdef";
    fs::write(drill.path("hand.token"), hand).expect("a token");
    let own = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("hand.token"), own).expect("its mode");
    let mut daemon = Daemon::start(&drill);
    let admin = std::mem::replace(&mut daemon.token, hand.to_owned());
    let put = |daemon: &Daemon, name: &str| {
        let path = format!("{FILES}/{name}");
        let body = json!({"content": "x", "base": 0}).to_string();
        daemon.request("PUT", &path, "", &body)
    };
    for name in [
        ".github/workflows/ci.yml",
        "AGENTS.md",
        ".envrc",
        "a/.vscode/tasks.json",
    ] {
        let refused = put(&daemon, name);
        assert_eq!(refused.status, 403, "{name}: {refused:?}");
        let detail = refused.body["detail"].as_str().expect("why");
        assert!(detail.contains("role admin"), "{detail}");
        assert!(!drill.workspace().join(name).exists(), "{name}");
    }
    assert_eq!(put(&daemon, "notes.txt").status, 200);
    daemon.token = admin;
    assert_eq!(put(&daemon, "AGENTS.md").status, 200);
    assert!(drill.workspace().join("AGENTS.md").exists());
}
