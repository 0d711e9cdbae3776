//! The doors of the approvals: over HTTP with a token, and a disk that takes nothing.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::drill::{Drill, NOBODY, eventually};
use crate::fleet::approvals::{
    LONG, UNDECIDED_PROMPT, answer, client, daemon, id, list_approvals, pool, result, state,
    waiting,
};
use crate::fleet::full_disk;

#[test]
fn a_full_disk_allows_nothing() {
    let drill = Drill::with_supervisor(full_disk::POOLS, "journal.min_free = \"12M\"");
    let running = full_disk::up(&drill);
    let mut working = full_disk::client(
        &drill,
        &running,
        &["run", "--results", "r.jsonl", UNDECIDED_PROMPT],
    )
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .expect("a client");
    let listed = || {
        let ran = full_disk::client(&drill, &running, &["--json", "approvals", "ls"]).output();
        String::from_utf8_lossy(&ran.expect("a client").stdout).into_owned()
    };
    eventually(LONG, "it waits", || listed().contains("pending"));
    let ask: Value = serde_json::from_str(listed().trim()).expect("one");
    let more = full_disk::inside(&drill, &running).join("more");
    fs::write(&more, vec![0; 24 << 20]).expect("there is room for this");
    eventually(LONG, "it takes nothing", || drill.get("/readyz").0 == 503);
    let allow = || {
        let id = id(&ask);
        let ran = full_disk::client(&drill, &running, &["approvals", "approve", &id]).output();
        let ran = ran.expect("a client");
        (
            ran.status.code(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        )
    };
    let (code, reported) = allow();
    assert_eq!(code, Some(3), "{reported}");
    assert!(reported.contains("nothing can be allowed"), "{reported}");
    assert!(
        working.try_wait().expect("wait").is_none(),
        "it still waits"
    );
    fs::remove_file(more).expect("space");
    eventually(LONG, "it recovers", || drill.get("/readyz").0 == 200);
    let (code, reported) = allow();
    assert_eq!(code, Some(0), "{reported}");
    working.wait().expect("ends");
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "done");
}

/// One request by plain HTTP; gives status and body.
pub(crate) fn http(drill: &Drill, head: &str, host: Option<&str>, body: &str) -> (u16, String) {
    let address = drill.address();
    let mut stream = std::net::TcpStream::connect(&address).expect("it listens");
    let host = host.unwrap_or(&address);
    let length = body.len();
    let request = format!(
        "{head}\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    // What is refused unread may be refused before all of it was sent, and end with a reset.
    let sent = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    assert!(!answer.is_empty(), "no answer: {sent:?} {read:?}");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

#[test]
fn over_http_only_a_token_sees_and_answers() {
    let drill = Drill::new(&pool("acp", "approval = { approvers = [\"ops\"] }"));
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
    let working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    let page = format!("/approvals/{}", id(&ask));
    let get =
        |path: &str, with: &str| http(&drill, &format!("GET {path} HTTP/1.1{with}"), None, "");
    let post = |with: &str, host: Option<&str>, body: &str| {
        http(&drill, &format!("POST {page} HTTP/1.1{with}"), host, body)
    };
    let allow = format!(r#"{{"digest":{},"decision":"allow"}}"#, ask["digest"]);
    let long = "\r\nAuthorization: Bearer ".to_owned() + &"0".repeat(64);
    for with in ["", "\r\nAuthorization: Basic eDp5", &long, &ops_token] {
        for path in ["/approvals", &page] {
            assert_eq!(get(path, with).0, 401, "{with}");
        }
        assert_eq!(post(with, None, &allow).0, 401, "{with}");
    }
    let evil = Some("evil.example");
    assert_eq!(post(&owner, evil, &allow).0, 421, "a rebound name");
    assert_eq!(get("/approvals", &owner).0, 200);
    assert_eq!(get("/approvals?x=1", &owner).0, 400);
    assert_eq!(get("/approvals/none", &owner).0, 404);
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
    let denied = answer(&drill, "approve", &ask, &[]);
    assert_eq!(denied.code, Some(5), "{}", denied.all());
    assert!(
        denied.stderr.contains("approval.approvers has ops"),
        "{}",
        denied.all()
    );
    assert_eq!(state(&drill, &ask), "pending");
    fs::set_permissions(ops.join("ops"), fs::Permissions::from_mode(0o600)).expect("mode");
    // An approval has one digest, so that its id is enough.
    let (code, body) = post(&ops_token, None, r#"{"decision":"allow"}"#);
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("\"state\":\"approved\""), "{body}");
    assert_eq!(post(&ops_token, None, &allow).0, 409);
    assert_eq!(result(&drill, working)["outcome"], "done");
    let over = list_approvals(&drill, &["--ended"]);
    assert_eq!(over[0]["answer"]["approver"], "token ops", "{over:?}");
}

/// Sends the head of an answer and half of its body; gives the whole reply, and how long it took.
fn half_sent(drill: &Drill, path: &str, with: &str) -> (String, Duration) {
    let address = drill.address();
    let began = Instant::now();
    let mut stream = TcpStream::connect(&address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a time");
    write!(stream, "POST {path} HTTP/1.1\r\nHost: {address}{with}\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n{{\"digest\":").expect("sent");
    let mut answer = String::new();
    // The rest of the body is not wanted any more, so the end may be a reset.
    let _ = stream.read_to_string(&mut answer);
    (answer, began.elapsed())
}

#[test]
fn nothing_of_a_request_is_looked_at_before_its_token_and_no_body_is_waited_for_long() {
    let drill = Drill::new(&pool("acp", ""));
    let approvers = drill.state().join("approvers");
    let _daemon = daemon(&drill);
    let owner = fs::read_to_string(drill.state().join("http.token")).expect("a token");
    let owner = owner.trim();
    let wrong = format!("\r\nAuthorization: Bearer {}", "0".repeat(64));
    let right = format!("\r\nAuthorization: bearer {owner}");
    // A body is waited for for ten seconds.
    let soon = Duration::from_secs(9);
    for path in ["/approvals/none", "/approvals/%ff"] {
        let get = |with: &str| http(&drill, &format!("GET {path} HTTP/1.1{with}"), None, "");
        assert_eq!(get("").0, 401, "{path}");
        let (code, body) = get(&right);
        assert_eq!(code, 404, "{path}: {body}");
        assert!(body.contains("\"status\":404"), "{path}: {body}");
        for with in ["", &wrong] {
            let (answer, took) = half_sent(&drill, path, with);
            assert!(answer.contains(" 401 "), "{path}: {answer}");
            assert!(took < soon, "{path}: {took:?}");
        }
    }
    let (answer, took) = half_sent(&drill, "/policies/reload", &wrong);
    assert!(
        answer.contains(" 401 ") && took < soon,
        "{took:?}: {answer}"
    );
    let (answer, took) = half_sent(&drill, "/approvals/none", &right);
    assert!(answer.contains(" 408 "), "{answer}");
    assert!(took < Duration::from_secs(40), "{took:?}");
    // A directory of tokens that others may write has none, which is said once.
    fs::create_dir(&approvers).expect("approvers");
    let token = "o".repeat(40);
    fs::write(approvers.join("ops"), &token).expect("a token");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    };
    mode(&approvers.join("ops"), 0o600);
    let get = || {
        let with = format!("GET /approvals HTTP/1.1\r\nAuthorization: Bearer {token}");
        http(&drill, &with, None, "").0
    };
    assert_eq!(get(), 200);
    mode(&approvers, 0o777);
    for _ in 0..5 {
        assert_eq!(get(), 401);
    }
    let reported = || {
        drill
            .log("stderr.log")
            .matches("a token file is ignored")
            .count()
    };
    assert_eq!(reported(), 1, "{}", drill.log("stderr.log"));
    mode(&approvers, 0o700);
    assert_eq!(get(), 200);
    let moved = drill.state().join("moved");
    fs::rename(&approvers, &moved).expect("moved");
    std::os::unix::fs::symlink(&moved, &approvers).expect("a link");
    std::os::unix::fs::lchown(&approvers, Some(NOBODY), None).expect("given away");
    assert_eq!(get(), 401, "somebody else's link");
}

/// A watcher of the stream of approvals.
struct Watcher(BufReader<TcpStream>);

impl Watcher {
    /// Asks for the stream; gives the status too.
    fn come(drill: &Drill, token: &str) -> (u16, Self) {
        let address = drill.address();
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a time");
        // Without chunks, so that what comes is what was written.
        write!(
            stream,
            "GET /approvals/events HTTP/1.0\r\nHost: {address}\r\n{token}\r\n"
        )
        .expect("sent");
        let mut own = Self(BufReader::new(stream));
        let status = own.line();
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        while !own.line().is_empty() {}
        (status.expect("a status"), own)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line in time");
        line.trim_end().to_owned()
    }

    /// The next event.
    fn next(&mut self) -> (String, Value) {
        loop {
            let line = self.line();
            if let Some(name) = line.strip_prefix("event: ") {
                let data = self.line();
                let data = data.strip_prefix("data: ").expect("data");
                assert_eq!(self.line(), "", "the event ends");
                return (name.to_owned(), serde_json::from_str(data).expect("JSON"));
            }
        }
    }

    /// The next event, which must have that name.
    fn expect(&mut self, name: &str) -> Value {
        let (found, data) = self.next();
        assert_eq!(found, name, "{data}");
        data
    }
}

#[test]
fn watchers_are_told_what_waits_each_change_and_the_end() {
    let drill = Drill::new(&pool("acp", ""));
    let mut daemon = daemon(&drill);
    let owner = fs::read_to_string(drill.state().join("http.token")).expect("a token");
    let owner = format!("Authorization: Bearer {}\r\n", owner.trim());
    assert_eq!(Watcher::come(&drill, "").0, 401);
    let (code, mut early) = Watcher::come(&drill, &owner);
    assert_eq!((code, early.line().as_str()), (200, "retry: 1000"));
    assert_eq!(early.expect("approvals"), serde_json::json!([]));
    let evil = "run touch 'a\u{9b}31m\u{202e}b'";
    let first = client(&drill, &[evil]);
    let ask = waiting(&drill, 1).remove(0);
    let reported = early.expect("approval");
    assert_eq!(
        (&reported["approval"], &reported["state"]),
        (&ask["approval"], &"pending".into()),
        "{reported}"
    );
    assert_eq!(reported["digest"], ask["digest"]);
    // Who comes later is told of it at once.
    let (_, mut late) = Watcher::come(&drill, &owner);
    assert_eq!(late.expect("approvals")[0]["approval"], ask["approval"]);
    let allowed = answer(&drill, "reject", &ask, &[]);
    assert_eq!(allowed.code, Some(0), "{}", allowed.all());
    for watcher in [&mut early, &mut late] {
        let over = watcher.expect("ended");
        assert_eq!(
            (&over["approval"], &over["state"]),
            (&ask["approval"], &"rejected".into()),
            "{over}"
        );
        assert_eq!(over["answer"]["approver"], "uid 0", "{over}");
    }
    result(&drill, first);
    // No more than so many watch, and whoever leaves makes room.
    let mut crowd: Vec<_> = (0..14).map(|_| Watcher::come(&drill, &owner)).collect();
    assert!(crowd.iter().all(|(code, _)| *code == 200));
    assert_eq!(Watcher::come(&drill, &owner).0, 503);
    crowd.clear();
    eventually(LONG, "there is room again", || {
        Watcher::come(&drill, &owner).0 == 200
    });
    let mut second = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    assert_eq!(early.expect("approval")["approval"], ask["approval"]);
    let ran = drill.run(&["stop", "--now"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(daemon.wait(LONG), Some(0));
    let over = early.expect("ended");
    assert_eq!(
        (&over["approval"], &over["state"]),
        (&ask["approval"], &"cancelled".into()),
        "{over}"
    );
    assert_eq!(early.expect("end"), serde_json::json!({"why": "stopping"}));
    assert_eq!(early.line(), "", "and nothing after that");
    let left = second.wait().expect("the client ends");
    assert_eq!(left.code(), Some(1), "its task goes on at the next start");
}

/// A pool whose policy is `cautious` with this `[approval]`.
fn with_policy(ask: &str, more: &str) -> Drill {
    let text = pool("acp", more).replace("\"cautious\"", "\"own\"");
    let drill = Drill::new(&(text + "[policy.own]\nfile = \"own.toml\"\n"));
    let policy =
        format!("schema = 1\nname = \"own\"\nextends = [\"cautious.toml\"]\n[approval]\n{ask}\n");
    fs::write(drill.path("own.toml"), policy).expect("a policy");
    drill
}

#[test]
fn a_policy_makes_the_asking_stricter() {
    let asking = "max_pending = 1\nremember = \"turn\"\napprovers = [\"owner\", \"ops\"]";
    let drill = with_policy(
        asking,
        "approval = { approvers = [\"owner\", \"night\"], max_pending = 5 }",
    );
    let text = fs::read_to_string(drill.config()).expect("a file");
    fs::write(drill.config(), text.replace("size      = 1", "size = 2")).expect("a file");
    let _daemon = daemon(&drill);
    let occupied = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    let refused = drill.run(&["run", "--results", "other.jsonl", "run touch other.txt"]);
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    assert_eq!(drill.results("other.jsonl")[0]["outcome"], "denied");
    let rules: String = drill
        .database()
        .query_row(
            "SELECT rules FROM permission_requests WHERE decision = 'deny'",
            [],
            |row| row.get(0),
        )
        .expect("a record");
    assert!(rules.contains("max_pending"), "{rules}");
    let long = answer(&drill, "approve", &ask, &["--remember", "session"]);
    assert_ne!(long.code, Some(0), "{}", long.all());
    assert!(long.stderr.contains("for at most turn"), "{}", long.all());
    let short = answer(&drill, "approve", &ask, &["--remember", "turn"]);
    assert_eq!(short.code, Some(0), "{}", short.all());
    assert_eq!(result(&drill, occupied)["outcome"], "done");
    // Nobody whom both name: nobody is asked.
    let nobody = with_policy("approvers = [\"ops\"]", "");
    let _daemon = crate::fleet::approvals::daemon(&nobody);
    let denied = nobody.run(&["run", "--results", "r.jsonl", UNDECIDED_PROMPT]);
    assert_eq!(
        nobody.results("r.jsonl")[0]["outcome"],
        "denied",
        "{}",
        denied.all()
    );
}

#[test]
fn the_morning_page_shows_what_waits_and_not_what_is_over() {
    let drill = Drill::new(&pool("acp", ""));
    let mut daemon = daemon(&drill);
    let working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    let report = || -> Value {
        let ran = drill.run(&["--json", "report"]);
        serde_json::from_str(ran.stdout.trim()).unwrap_or_else(|_| panic!("{}", ran.all()))
    };
    let page = report();
    assert_eq!(page["waiting"][0]["approval"], ask["approval"], "{page}");
    assert_eq!(page["waiting"][0]["state"], "pending", "{page}");
    let text = drill.run(&["report"]).stdout;
    assert!(text.contains(&format!("approval {}", id(&ask))), "{text}");
    assert_eq!(answer(&drill, "reject", &ask, &[]).code, Some(0));
    result(&drill, working);
    assert_eq!(report()["waiting"], serde_json::json!([]));
    daemon.signal("TERM");
    daemon.wait(LONG);
    assert_eq!(report()["waiting"], serde_json::json!([]));
}
