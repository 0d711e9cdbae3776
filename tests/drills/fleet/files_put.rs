//! Files that a person writes whole over HTTP: of any bytes, up to a bound.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::chat_client::{Answer, Daemon};
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

/// The value of a response's header.
fn header(answer: &Answer, name: &str) -> Option<String> {
    let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
    let mut of_name = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    of_name.next().map(|(_, value)| value.to_owned())
}

#[test]
fn a_change_is_made_only_from_the_version_that_its_client_has_seen() {
    let drill = drill("");
    let daemon = Daemon::start(&drill);
    let path = format!("{FILES}/shared.txt");
    let put = |header: &str, text: &str| {
        let body = json!({"content": text}).to_string();
        daemon.request("PUT", &path, &format!("{header}\r\n"), &body)
    };
    let made = put("If-None-Match: *", "one");
    assert_eq!(
        (made.status, header(&made, "etag")),
        (200, Some("\"1\"".to_owned())),
        "{made:?}"
    );
    let again = put("If-None-Match: *", "other");
    assert_eq!(
        (again.status, &again.body["code"]),
        (412, &json!("stale")),
        "{again:?}"
    );
    // Two clients have read the same version, and the second one's change would undo the first's.
    assert_eq!(put("If-Match: \"1\"", "two").status, 200);
    let lost = put("If-Match: \"1\"", "three");
    assert_eq!(
        (lost.status, &lost.body["code"]),
        (412, &json!("stale")),
        "{lost:?}"
    );
    assert_eq!(
        fs::read_to_string(drill.workspace().join("shared.txt")).expect("there"),
        "two"
    );
    let got = daemon.get(&path);
    assert_eq!(header(&got, "etag").as_deref(), Some("\"2\""), "{got:?}");
    let unchanged = daemon.request("GET", &path, "If-None-Match: \"2\"\r\n", "");
    assert_eq!(
        (unchanged.status, &unchanged.body),
        (304, &serde_json::Value::Null),
        "{unchanged:?}"
    );
    assert_eq!(
        daemon
            .request("GET", &path, "If-None-Match: \"1\"\r\n", "")
            .status,
        200
    );
    for odd in [
        "If-Match: 2",
        "If-Match: \"02\"",
        "If-Match: *",
        "If-Match: W/\"2\"",
        "If-None-Match: \"2\"",
    ] {
        let refused = put(odd, "x");
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (400, &json!("invalid_request")),
            "{odd}: {refused:?}"
        );
    }
    let both = json!({"content": "x", "base": 1}).to_string();
    let both = daemon.request("PUT", &path, "If-Match: \"2\"\r\n", &both);
    assert_eq!(both.status, 400, "{both:?}");
    // The base in the body is the same, with the status that it always had.
    let stale = daemon.request(
        "PUT",
        &path,
        "",
        &json!({"content": "x", "base": 1}).to_string(),
    );
    assert_eq!(
        (stale.status, &stale.body["code"]),
        (409, &json!("stale")),
        "{stale:?}"
    );
}

#[test]
fn a_file_is_deleted_and_can_be_restored() {
    let drill = drill("");
    let daemon = Daemon::start(&drill);
    let path = format!("{FILES}/gone.txt");
    let disk = drill.workspace().join("gone.txt");
    assert_eq!(daemon.request("DELETE", &path, "", "").status, 404);
    let put = json!({"content": "kept"}).to_string();
    assert_eq!(daemon.request("PUT", &path, "", &put).status, 200);
    // Somebody else changes it past the supervisor: that becomes a version, and is not lost.
    fs::write(&disk, "changed outside").expect("written");
    let stale = daemon.request("DELETE", &path, "If-Match: \"1\"\r\n", "");
    assert_eq!(
        (stale.status, &stale.body["code"]),
        (412, &json!("stale")),
        "{stale:?}"
    );
    assert!(disk.exists());
    let deleted = daemon.request("DELETE", &path, "If-Match: \"2\"\r\n", "");
    assert_eq!(
        (deleted.status, &deleted.body["held"]),
        (200, &json!("gone")),
        "{deleted:?}"
    );
    assert!(!disk.exists());
    assert_eq!(daemon.get(&path).status, 404);
    assert_eq!(daemon.request("DELETE", &path, "", "").status, 404);
    let restore = format!("{}/gone.txt", FILES.replace("/files", "/restore"));
    let restored = daemon.post(&restore, &json!({"version": 2}));
    assert_eq!(
        (restored.status, &restored.body["version"]),
        (200, &json!(4)),
        "{restored:?}"
    );
    assert_eq!(fs::read_to_string(&disk).expect("back"), "changed outside");
    // A directory and a file that others obey are not for everybody to delete.
    fs::create_dir(drill.workspace().join("dir")).expect("a directory");
    assert_eq!(
        daemon
            .request("DELETE", &format!("{FILES}/dir"), "", "")
            .status,
        409
    );
    assert!(drill.workspace().join("dir").exists());
}
