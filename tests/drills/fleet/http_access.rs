//! The HTTP listeners of a real daemon: who may read which page, over an address, TLS and the Unix
//! socket, and that a flood from one client does not lock out others.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use crate::drill::{Drill, NOBODY, count, eventually};
use crate::fleet::approvals::{LONG, daemon, pool};
use crate::fleet::approvals_http::http;

/// Every role, and what it may beside reading.
const ROLES: [(&str, &[&str]); 4] = [
    ("read", &[]),
    ("operate", &["operate"]),
    ("approve", &["approve"]),
    ("admin", &["operate", "approve", "admin"]),
];

/// Every page that needs a token: its method, its path and the role. Those of `/api/v1` as their document has them.
fn pages() -> Vec<(String, String, String)> {
    let others = [
        ("get", "/approvals", "read"),
        ("get", "/approvals/events", "read"),
        ("get", "/approvals/{approval}", "read"),
        ("post", "/approvals/{approval}", "approve"),
        ("get", "/policies", "read"),
        ("post", "/policies/reload", "admin"),
    ];
    let owned = |(method, path, role): (&str, &str, &str)| {
        (method.to_uppercase(), path.to_owned(), role.to_owned())
    };
    let mut pages: Vec<_> = others.into_iter().map(owned).collect();
    let document = include_str!("../../../docs/openapi.json");
    let document: Value = serde_json::from_str(document).expect("JSON");
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            if let Some(role) = operation["x-role"].as_str() {
                pages.push(owned((method, path, role)));
            }
        }
    }
    assert!(pages.len() > 40, "{}", pages.len());
    pages
}

pub(crate) fn put(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

pub(crate) fn token(name: &str) -> String {
    format!("{name:-<40}")
}

/// A drill whose file has this before its pool.
pub(crate) fn drill(before: &str) -> Drill {
    let drill = Drill::new(&pool("acp", ""));
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let dir = drill.path("").display().to_string();
    let before = before.replace("DIR", dir.trim_end_matches('/'));
    let text = text.replacen("[pool.demo]", &format!("{before}\n[pool.demo]"), 1);
    fs::write(drill.config(), text).expect("supervisor.toml");
    drill
}

fn curl(args: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60"]);
    command.args(args).output().expect("curl")
}

fn output_text(output: &Output) -> String {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    of(&output.stdout) + &of(&output.stderr)
}

#[test]
fn every_route_takes_its_roles_and_nobody_else() {
    let named = ROLES.iter().map(|(role, _)| {
        format!("[token.{role}]\nfile = \"DIR/{role}.token\"\nrole = \"{role}\"\n")
    });
    let named = named.collect::<Vec<_>>().concat();
    let drill = drill(&named);
    for (role, _) in ROLES {
        let path = drill.path(&format!("{role}.token"));
        put(&path, &token(role), 0o600);
    }
    let _daemon = daemon(&drill);
    let owner = fs::read_to_string(drill.state().join("http.token")).expect("a token");
    let ask = |method: &str, path: &str, token: Option<&str>| {
        let with = token.map_or_else(String::new, |token| {
            format!("\r\nAuthorization: Bearer {token}")
        });
        http(
            &drill,
            &format!("{method} {path} HTTP/1.1{with}"),
            None,
            "{}",
        )
        .0
    };
    for (method, path, needed) in pages() {
        let path = path.split('/');
        let path: Vec<_> = path
            .map(|part| if part.starts_with('{') { "none" } else { part })
            .collect();
        let (method, path) = (method.as_str(), path.join("/"));
        let needed = needed.as_str();
        // A stream does not end by itself, and a stop ends all; who may have them is looked at in one
        // place.
        let is_last = path.ends_with("/events") || path == "/api/v1/stop";
        assert_eq!(ask(method, &path, None), 401, "{method} {path}");
        assert_eq!(
            ask(method, &path, Some(&token("x"))),
            401,
            "{method} {path}"
        );
        let roles = ROLES.iter().map(|(role, may)| (*role, *may, token(role)));
        let owners = ("the owner", ROLES[3].1, owner.trim().to_owned());
        for (role, may, token) in roles.chain([owners]) {
            let may = needed == "read" || may.contains(&needed);
            if is_last && may {
                continue;
            }
            let code = ask(method, &path, Some(&token));
            if may {
                let is_refused = matches!(code, 401 | 403 | 405 | 429);
                assert!(!is_refused, "{method} {path} as {role}: {code}");
            } else {
                assert_eq!(code, 403, "{method} {path} as {role}");
            }
        }
    }
    // It is gone with its file.
    fs::remove_file(drill.path("read.token")).expect("removed");
    assert_eq!(ask("GET", "/approvals", Some(&token("read"))), 401);
    assert_eq!(ask("GET", "/approvals", Some(&token("operate"))), 200);
    let log = drill.log("stderr.log");
    assert!(
        !log.contains(&token("operate")) && !log.contains(owner.trim()),
        "{log}"
    );
}

#[test]
fn the_socket_is_the_owners_and_needs_no_token() {
    let drill = drill("");
    let mut daemon = daemon(&drill);
    let socket = drill.state().join("http.sock");
    let mode = fs::metadata(&socket)
        .expect("a socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let path = socket.display().to_string();
    let get = |page: &str| {
        let url = format!("http://localhost{page}");
        output_text(&curl(&["--include", "--unix-socket", &path, &url]))
    };
    for page in ["/healthz", "/metrics", "/approvals", "/policies"] {
        let answer = get(page);
        assert!(answer.starts_with("HTTP/1.1 200"), "{page}: {answer}");
    }
    let elsewhere = curl(&[
        "--include",
        "--unix-socket",
        &path,
        "http://evil.example/asks",
    ]);
    assert!(output_text(&elsewhere).starts_with("HTTP/1.1 421"));
    // Others do not get that far; and if somebody opens the way to them, they are known.
    let as_nobody = || {
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let mut command = Command::new("setpriv");
        command
            .args(ids)
            .args(["--clear-groups", "curl", "--silent", "--include"]);
        command.args([
            "--max-time",
            "60",
            "--unix-socket",
            &path,
            "http://localhost/asks",
        ]);
        command.output().expect("setpriv")
    };
    assert!(!as_nobody().status.success());
    for opened in [drill.path(""), drill.state(), socket.clone()] {
        fs::set_permissions(&opened, fs::Permissions::from_mode(0o777)).expect("mode");
    }
    let refused = output_text(&as_nobody());
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(
        refused.contains(&format!("uid {NOBODY} may not use this socket")),
        "{refused}"
    );
    daemon.signal("TERM");
    daemon.wait(LONG);
    assert!(!socket.exists(), "it goes with its supervisor");
}

/// A certificate for localhost, as its own authority.
pub(crate) fn certify(drill: &Drill) {
    let key = KeyPair::generate().expect("key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
    let certificate = params.self_signed(&key).expect("signed");
    put(&drill.path("cert.pem"), &certificate.pem(), 0o644);
    put(&drill.path("key.pem"), &key.serialize_pem(), 0o600);
}

#[test]
fn beyond_loopback_there_is_tls_or_the_words_and_a_certificate_can_be_changed() {
    let tls = "[http]\ntls = { certificate = \"DIR/cert.pem\", key = \"DIR/key.pem\" }\n";
    let everywhere = |drill: &Drill| {
        let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
        let text = text.replace("127.0.0.1:0", "0.0.0.0:0");
        fs::write(drill.config(), text).expect("supervisor.toml");
    };
    let bare = drill("");
    everywhere(&bare);
    let ran = bare.run(&["up"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.stderr.contains("is not a loopback address"),
        "{}",
        ran.all()
    );
    assert!(!bare.state().exists(), "nothing was begun");

    let drill = drill(tls);
    everywhere(&drill);
    certify(&drill);
    fs::set_permissions(drill.path("key.pem"), fs::Permissions::from_mode(0o644)).expect("mode");
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("key.pem"), "{}", ran.all());
    certify(&drill);
    let daemon = drill.start(&["up"]);
    let mut port = String::new();
    eventually(LONG, "it listens", || {
        let log = drill.log("stderr.log");
        let after = log.split("listening on https://0.0.0.0:").nth(1);
        port = after.map_or_else(String::new, |rest| {
            rest.chars().take_while(char::is_ascii_digit).collect()
        });
        !port.is_empty()
    });
    let ca = drill.path("cert.pem").display().to_string();
    let url = format!("https://localhost:{port}/approvals");
    let owner = || fs::read_to_string(drill.state().join("http.token")).unwrap_or_default();
    let get = |ca: &str| {
        let with = format!("Authorization: Bearer {}", owner().trim());
        output_text(&curl(&[
            "--include",
            "--cacert",
            ca,
            "--header",
            &with,
            &url,
        ]))
    };
    eventually(LONG, "it answers", || get(&ca).starts_with("HTTP/1.1 200"));
    let old = curl(&["--include", "--cacert", &ca, "--tls-max", "1.2", &url]);
    assert!(
        output_text(&old).starts_with("HTTP/1.1 401"),
        "{}",
        output_text(&old)
    );
    let plain = curl(&["--include", &format!("http://localhost:{port}/healthz")]);
    assert!(!plain.status.success(), "{}", output_text(&plain));
    // Another certificate is in use after a SIGHUP, and one that is none changes nothing.
    let kept = drill.path("old.pem");
    fs::copy(drill.path("cert.pem"), &kept).expect("copied");
    certify(&drill);
    daemon.signal("HUP");
    eventually(LONG, "the new one", || get(&ca).starts_with("HTTP/1.1 200"));
    assert!(!get(&kept.display().to_string()).starts_with("HTTP"));
    let good = drill.path("good.pem");
    fs::copy(drill.path("cert.pem"), &good).expect("copied");
    put(&drill.path("cert.pem"), "nothing", 0o644);
    daemon.signal("HUP");
    eventually(LONG, "it is told", || {
        drill.log("stderr.log").contains("the old one stays in use")
    });
    assert!(get(&good.display().to_string()).starts_with("HTTP/1.1 200"));
}

#[test]
fn thousands_of_connections_that_ask_nothing_keep_nobody_out() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("one's own limit");
    let wanted = count(1000);
    // Not more than this host lets one process have, beside what other tests need.
    let most = limit
        .maximum
        .map_or(wanted, |most| usize::try_from(most).unwrap_or(wanted) / 2);
    let wanted = wanted.min(most);
    let drill = drill("");
    let _daemon = daemon(&drill);
    let owner = fs::read_to_string(drill.state().join("http.token")).expect("a token");
    let address = drill.address();
    let mut occupied = Vec::with_capacity(wanted);
    for number in 0..wanted {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        // Some say nothing, some begin a head, and some a body that nobody waits for.
        let text: &str = match number % 3 {
            0 => "",
            1 => "GET /healthz HTTP/1.1\r\nHost: loc",
            _ => "POST /approvals/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        };
        // It may be gone already.
        let _ = stream.write_all(text.as_bytes());
        occupied.push(stream);
    }
    let get = |page: &str| {
        let mut stream = TcpStream::connect(&address).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        let owner = owner.trim();
        write!(stream, "GET {page} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {owner}\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    };
    for page in ["/healthz", "/approvals", "/metrics"] {
        eventually(LONG, page, || get(page).is_some());
    }
    drop(occupied);
    assert_eq!(drill.get("/healthz").0, 200);
}
