//! The doors of the asks: over HTTP with a token, and a disk that takes nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::Value;

use crate::asks::{ASKED, LONG, answer, client, daemon, id, listed, pool, result, state, waiting};
use crate::drill::{Drill, eventually};
use crate::full_disk;

#[test]
fn a_full_disk_allows_nothing() {
    let drill = Drill::with_supervisor(full_disk::POOLS, "journal.min_free = \"12M\"");
    let running = full_disk::up(&drill);
    let mut working = full_disk::client(&drill, &running, &["run", "--results", "r.jsonl", ASKED])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a client");
    let listed = || {
        let ran = full_disk::client(&drill, &running, &["--json", "asks", "ls"]).output();
        String::from_utf8_lossy(&ran.expect("a client").stdout).into_owned()
    };
    eventually(LONG, "it waits", || listed().contains("pending"));
    let ask: Value = serde_json::from_str(listed().trim()).expect("one");
    let more = full_disk::inside(&drill, &running).join("more");
    fs::write(&more, vec![0; 24 << 20]).expect("there is room for this");
    eventually(LONG, "it takes nothing", || drill.get("/readyz").0 == 503);
    let allow = || {
        let id = id(&ask);
        let ran = full_disk::client(&drill, &running, &["asks", "allow", &id]).output();
        let ran = ran.expect("a client");
        (
            ran.status.code(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        )
    };
    let (code, said) = allow();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("nothing can be allowed"), "{said}");
    assert!(
        working.try_wait().expect("wait").is_none(),
        "it still waits"
    );
    fs::remove_file(more).expect("space");
    eventually(LONG, "it recovers", || drill.get("/readyz").0 == 200);
    let (code, said) = allow();
    assert_eq!(code, Some(0), "{said}");
    working.wait().expect("ends");
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "done");
}

/// One request by plain HTTP; gives status and body.
fn http(drill: &Drill, head: &str, host: Option<&str>, body: &str) -> (u16, String) {
    let address = drill.address();
    let mut stream = std::net::TcpStream::connect(&address).expect("it listens");
    let host = host.unwrap_or(&address);
    let length = body.len();
    write!(stream, "{head}\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

#[test]
fn over_http_only_a_token_sees_and_answers() {
    let drill = Drill::new(&pool("acp", "ask = { approvers = [\"ops\"] }"));
    let ops = drill.state().join("approvers");
    let _daemon = daemon(&drill);
    fs::create_dir(&ops).expect("approvers");
    fs::write(ops.join("ops"), format!("{}\n", "o".repeat(40))).expect("a token");
    fs::set_permissions(ops.join("ops"), fs::Permissions::from_mode(0o644)).expect("mode");
    let file = drill.state().join("http.token");
    assert_eq!(
        fs::metadata(&file).expect("a token").permissions().mode() & 0o777,
        0o600
    );
    let owner = fs::read_to_string(&file).expect("a token");
    let owner = format!("\r\nAuthorization: Bearer {}", owner.trim());
    let ops_token = format!("\r\nAuthorization: Bearer {}", "o".repeat(40));
    let working = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    let page = format!("/asks/{}", id(&ask));
    let get =
        |path: &str, with: &str| http(&drill, &format!("GET {path} HTTP/1.1{with}"), None, "");
    let post = |with: &str, host: Option<&str>, body: &str| {
        http(&drill, &format!("POST {page} HTTP/1.1{with}"), host, body)
    };
    let allow = format!(r#"{{"digest":{},"decision":"allow"}}"#, ask["digest"]);
    let long = "\r\nAuthorization: Bearer ".to_owned() + &"0".repeat(64);
    for with in ["", "\r\nAuthorization: Basic eDp5", &long, &ops_token] {
        for path in ["/asks", &page] {
            assert_eq!(get(path, with).0, 401, "{with}");
        }
        assert_eq!(post(with, None, &allow).0, 401, "{with}");
    }
    let evil = Some("evil.example");
    assert_eq!(post(&owner, evil, &allow).0, 421, "a rebound name");
    assert_eq!(get("/asks", &owner).0, 200);
    assert_eq!(get("/asks?x=1", &owner).0, 400);
    assert_eq!(get("/asks/none", &owner).0, 404);
    let (code, body) = get(&page, &owner);
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(code, 200);
    assert_eq!(body["more"]["parts"][0]["words"][0], "touch", "{body}");
    assert_eq!(post(&owner, None, "{}").0, 400);
    assert_eq!(
        post(&owner, None, r#"{"digest":"00","decision":"allow"}"#).0,
        409
    );
    // The owner may look, and the pool wants somebody else's answer.
    assert_eq!(post(&owner, None, &allow).0, 403);
    let denied = answer(&drill, "allow", &ask, &[]);
    assert_eq!(denied.code, Some(5), "{}", denied.all());
    assert!(
        denied.stderr.contains("ask.approvers has ops"),
        "{}",
        denied.all()
    );
    assert_eq!(state(&drill, &ask), "pending");
    fs::set_permissions(ops.join("ops"), fs::Permissions::from_mode(0o600)).expect("mode");
    let (code, body) = post(&ops_token, None, &allow);
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("\"state\":\"allowed\""), "{body}");
    assert_eq!(post(&ops_token, None, &allow).0, 409);
    assert_eq!(result(&drill, working)["outcome"], "done");
    let over = listed(&drill, &["--over"]);
    assert_eq!(over[0]["answer"]["approver"], "token ops", "{over:?}");
}
