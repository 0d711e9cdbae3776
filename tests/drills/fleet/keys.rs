//! Keys that change while the supervisor works: a reload takes them, and the former ones are gone from
//! its memory and its sockets.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Running, descendants, eventually};
use crate::fleet::approvals::{LONG, daemon, good};
use crate::fleet::http_access::{certify, drill as listening, put, token};
use crate::fleet::routes;
use crate::provider::{Provider, message};

/// Whether the memory of a process and of its descendants holds this.
fn holds(daemon: &Running, needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    for pid in std::iter::once(daemon.pid()).chain(descendants(daemon.pid())) {
        let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else {
            continue;
        };
        let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
            continue;
        };
        for line in maps.lines() {
            let (range, rest) = line.split_once(' ').expect("a range");
            let (from, to) = range.split_once('-').expect("a range");
            let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).expect("hex"));
            if !rest.starts_with("rw") || rest.contains("[v") {
                continue;
            }
            let mut bytes = vec![0; usize::try_from(to - from).expect("a size")];
            let read = memory.read_at(&mut bytes, from).unwrap_or(0);
            if memchr::memmem::find(&bytes[..read], needle.as_bytes()).is_some() {
                found.push(format!("{pid}: {line}"));
            }
        }
    }
    found
}

fn reload(drill: &Drill) -> Value {
    let ran = drill.run(&["--json", "reload"]);
    good(&ran);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

#[test]
fn a_route_takes_a_changed_key_and_the_former_one_is_in_no_memory() {
    let provider = Provider::start(message);
    let drill = routes::drill(&provider, "");
    let former = fs::read_to_string(drill.path("key")).expect("a key");
    let daemon = daemon(&drill);
    let sent = |key: &str| {
        good(&drill.run(&["run", "hello"]));
        let last = provider.got().pop().expect("a request");
        last.head.contains(&format!("x-api-key: {key}\r\n"))
    };
    for _ in 0..5 {
        assert!(sent(&former));
    }
    assert!(
        !holds(&daemon, &former).is_empty(),
        "the search finds what is there"
    );

    let fresh = "sk-drill-another-9876543210-just-as-real";
    put(&drill.path("key"), fresh, 0o600);
    let told = reload(&drill);
    assert_eq!(
        told["taken"],
        serde_json::json!(["route.own.secret"]),
        "{told}"
    );
    assert_eq!(told["config"], true, "{told}");
    assert!(sent(fresh));
    // The child of the former task and its connections may still be ending.
    eventually(LONG, "the former key is gone", || {
        holds(&daemon, &former).is_empty()
    });
    let written = Command::new("grep")
        .args(["-rlaF", fresh])
        .arg(drill.state())
        .output()
        .expect("grep");
    assert!(written.stdout.is_empty(), "{written:?}");

    // A new key is not sent to the address that it is not for, and one that cannot be read changes
    // nothing.
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let elsewhere = text.replace("x-api-key", "x-other-key");
    fs::write(drill.config(), &elsewhere).expect("supervisor.toml");
    put(
        &drill.path("key"),
        "sk-drill-for-elsewhere-0123456789",
        0o600,
    );
    let told = reload(&drill);
    assert_eq!(told["taken"], serde_json::json!([]), "{told}");
    let restart = told["restart"].as_array().expect("keys");
    assert!(restart.contains(&"route.own.secret".into()), "{told}");
    fs::write(drill.config(), &text).expect("supervisor.toml");
    assert!(sent(fresh));
    fs::remove_file(drill.path("key")).expect("removed");
    let ran = drill.run(&["reload"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("route.own.secret"), "{}", ran.all());
    assert!(sent(fresh));
}

/// A client that reads events until somebody ends it.
fn stream(url: &str, token: &str, more: &[&str]) -> Child {
    let header = format!("Authorization: Bearer {}", token.trim());
    let mut child = Command::new("curl")
        .args([
            "--silent",
            "--no-buffer",
            "--max-time",
            "120",
            "--header",
            &header,
        ])
        .args(more)
        .arg(url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl");
    let out = child.stdout.as_mut().expect("its output");
    let mut first = String::new();
    BufReader::new(out).read_line(&mut first).expect("a line");
    assert!(first.starts_with("retry:"), "{first}");
    child
}

fn is_over(child: &mut Child) -> bool {
    child.try_wait().expect("a child").is_some()
}

#[test]
fn a_reload_ends_the_streams_of_a_changed_token_and_no_others() {
    let drill = listening(
        "[token.old]\nfile = \"DIR/old.token\"\nrole = \"read\"\n\
         [token.kept]\nfile = \"DIR/kept.token\"\nrole = \"read\"\n",
    );
    put(&drill.path("old.token"), &token("old"), 0o600);
    put(&drill.path("kept.token"), &token("kept"), 0o600);
    let _daemon = daemon(&drill);
    let url = format!("http://{}/api/v1/events", drill.address());
    let mut kept = stream(&url, &token("kept"), &[]);
    let mut old = stream(&url, &token("old"), &[]);
    put(&drill.path("old.token"), &token("new"), 0o600);
    reload(&drill);
    eventually(LONG, "its stream ends", || is_over(&mut old));
    // With the new one there is one again, and the other one never ended.
    let mut new = stream(&url, &token("new"), &[]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_over(&mut kept) && !is_over(&mut new));
    for mut child in [kept, new] {
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
}

#[test]
fn a_changed_certificate_closes_the_connections_of_the_former_one() {
    let drill =
        listening("[http]\ntls = { certificate = \"DIR/cert.pem\", key = \"DIR/key.pem\" }\n");
    certify(&drill);
    let private = |path: &Path| fs::read_to_string(path).expect("a key");
    let former = private(&drill.path("key.pem"));
    let running = drill.start(&["up"]);
    let mut url = String::new();
    eventually(LONG, "it listens", || {
        let log = drill.log("stderr.log");
        let after = log.split("listening on https://127.0.0.1:").nth(1);
        url = after.map_or_else(String::new, |rest| {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            format!("https://localhost:{port}/api/v1/events")
        });
        !url.is_empty()
    });
    let mut owner = String::new();
    eventually(LONG, "there is a token", || {
        owner = fs::read_to_string(drill.state().join("http.token")).unwrap_or_default();
        !owner.is_empty()
    });
    let ca = drill.path("cert.pem").display().to_string();
    let mut before = stream(&url, &owner, &["--cacert", &ca]);
    // The same certificate is no change.
    running.signal("HUP");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!is_over(&mut before));
    certify(&drill);
    assert_ne!(private(&drill.path("key.pem")), former);
    running.signal("HUP");
    eventually(LONG, "its connection is closed", || is_over(&mut before));
    let mut after = stream(&url, &owner, &["--cacert", &ca]);
    assert!(!is_over(&mut after));
    after.kill().expect("killed");
    after.wait().expect("ended");
}
