//! The dashboard of a real daemon: by plain HTTP, what a browser may do; and in a real browser, what an
//! operator does. `tests/run dashboard` installs the browser.

mod browser;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use crate::api::api_daemon::{ApiDaemon, LONG, Response};
use crate::drill::Drill;
use crate::fleet::http_access::{put, token};

/// Two slots with a policy that asks, budgets with prices, and a token for each role.
pub(crate) const POOLS: &str = r#"
[token.viewer]
file = "DIR/viewer.token"
role = "read"

[token.ops]
file = "DIR/ops.token"
role = "approve"

[pool.demo]
size = 2
command = ["marshal", "script-agent", "--dialect", "acp"]
dialect = "acp"
policy = "cautious"
workspace = { path = "project", mode = "copy" }
approval = { approvers = ["owner", "ops"] }
env = { set = { DRILL = "MARK" } }
"#;

/// A daemon of these pools; `DIR` in them is the drill's directory.
pub(crate) fn daemon(pools: &str) -> ApiDaemon {
    let drill = Drill::new(pools);
    let dir = drill.path("").display().to_string();
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let text = text.replace("DIR", dir.trim_end_matches('/')).replacen(
        "[supervisor]\n",
        "[supervisor]\nmax_children = 500\n",
        1,
    );
    fs::write(drill.config(), text).expect("supervisor.toml");
    for name in ["viewer", "ops"] {
        put(&drill.path(&format!("{name}.token")), &token(name), 0o600);
    }
    ApiDaemon::open(drill)
}

/// A code of `marshal open`.
pub(crate) fn code(daemon: &ApiDaemon, more: &[&str]) -> String {
    let ran = daemon.drill.run(&[&["open"], more].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        ran.stderr.contains("/login and enter this code"),
        "{}",
        ran.all()
    );
    ran.stdout.trim().to_owned()
}

const FORM: &str = "Content-Type: application/x-www-form-urlencoded";
const OWN: &str = "Sec-Fetch-Site: same-origin";

fn log_in(daemon: &ApiDaemon, code: &str) -> Response {
    daemon.plain("POST /login", &[FORM, OWN], &format!("code={code}"))
}

/// Logs in and returns the line of the cookie.
fn cookie(daemon: &ApiDaemon, more: &[&str]) -> String {
    let answer = log_in(daemon, &code(daemon, more));
    assert_eq!(answer.status, 303, "{answer:?}");
    let set = answer.header("set-cookie").expect("a cookie");
    assert!(set.contains("HttpOnly; SameSite=Strict"), "{set}");
    let (pair, _) = set.split_once(';').expect("attributes");
    format!("Cookie: {pair}")
}

fn page(daemon: &ApiDaemon, path: &str, cookie: &str) -> Response {
    daemon.plain(&format!("GET {path}"), &[cookie], "")
}

#[test]
fn a_code_opens_one_session_and_only_pages_of_this_server_use_it() {
    let daemon = daemon(POOLS);
    for path in [
        "/",
        "/ui/approvals",
        "/ui/tasks",
        "/ui/cost",
        "/ui/sessions/x",
    ] {
        let answer = daemon.plain(&format!("GET {path}"), &[], "");
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, Some("/login")),
            "{path}"
        );
    }
    assert_eq!(daemon.plain("GET /ui/live?rows=true", &[], "").status, 401);
    let form = daemon.plain("GET /login", &[], "");
    let policy = form.header("content-security-policy").expect("a policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "form-action 'self'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(
        !form.text.contains("<style") && !form.text.contains(" onclick"),
        "{}",
        form.text
    );
    let code = code(&daemon, &[]);
    assert_eq!(log_in(&daemon, "AAAAA-AAAAA").status, 403);
    let body = format!("code={code}");
    for head in [
        &[FORM][..],
        &[FORM, "Sec-Fetch-Site: cross-site"],
        &[FORM, "Sec-Fetch-Site: same-site"],
    ] {
        assert_eq!(
            daemon.plain("POST /login", head, &body).status,
            403,
            "{head:?}"
        );
    }
    let evil = [FORM, OWN, "Origin: http://evil.example"];
    assert_eq!(daemon.plain("POST /login", &evil, &body).status, 403);
    assert_eq!(
        daemon
            .plain(&format!("GET /login?code={code}"), &[OWN], "")
            .status,
        200
    );
    assert_eq!(log_in(&daemon, &code).status, 303);
    assert_eq!(log_in(&daemon, &code).status, 403, "used");
    let cookie = cookie(&daemon, &[]);
    let fleet = page(&daemon, "/", &cookie);
    assert_eq!(fleet.status, 200);
    for part in ["demo/0", "demo/1", "Nothing is stuck", "role admin"] {
        assert!(fleet.text.contains(part), "{part}: {}", fleet.text);
    }
    // The cookie opens pages and nothing else.
    assert_eq!(
        daemon.plain("GET /api/v1/slots", &[&cookie], "").status,
        401
    );
    let stop = "POST /ui/slots/demo/0/restart";
    assert_eq!(daemon.plain(stop, &[&cookie, FORM], "").status, 403);
    assert_eq!(
        daemon
            .plain(stop, &[&cookie, FORM, "Sec-Fetch-Site: cross-site"], "")
            .status,
        403
    );
    assert_eq!(daemon.plain(stop, &[&cookie, FORM, OWN], "").status, 303);
    let out = daemon.plain("POST /logout", &[&cookie, FORM, OWN], "");
    assert_eq!((out.status, page(&daemon, "/", &cookie).status), (303, 303));
    // Over the address nobody makes a code, whatever the token.
    daemon.post("/logins", "{}").assert_problem(422);
}

#[test]
fn a_session_has_the_role_of_its_token_and_ends_with_it() {
    let daemon = daemon(POOLS);
    let viewer = cookie(&daemon, &["--as", "viewer"]);
    let fleet = page(&daemon, "/", &viewer);
    assert!(fleet.text.contains("viewer, role read"), "{}", fleet.text);
    let restart = "POST /ui/slots/demo/0/restart";
    let refused = daemon.plain(restart, &[&viewer, FORM, OWN], "");
    assert_eq!(refused.status, 403);
    assert!(
        refused.text.contains("requires the role operate"),
        "{}",
        refused.text
    );
    assert_eq!(
        page(&daemon, "/ui/slots/demo/0/log/live", &viewer).status,
        403
    );
    // Over the socket it is not the owner's either.
    let unknown = daemon.drill.run(&["open", "--as", "nobody"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.all());
    fs::remove_file(daemon.drill.path("viewer.token")).expect("removed");
    let gone = page(&daemon, "/", &viewer);
    assert_eq!(
        (gone.status, gone.header("location")),
        (303, Some("/login"))
    );
}

#[test]
fn assets_are_kept_for_ever_under_their_digest() {
    let daemon = daemon(POOLS);
    let login = daemon.plain("GET /login", &[], "");
    let mut names = 0;
    for place in login
        .text
        .split('"')
        .filter(|text| text.starts_with("/assets/"))
    {
        names += 1;
        let asset = daemon.plain(&format!("GET {place}"), &[], "");
        assert_eq!(asset.status, 200, "{place}");
        let keep = asset.header("cache-control").expect("it is kept");
        assert!(keep.contains("immutable"), "{keep}");
        let tag = asset.header("etag").expect("a tag");
        let again = daemon.plain(
            &format!("GET {place}"),
            &[&format!("If-None-Match: {tag}")],
            "",
        );
        assert_eq!((again.status, again.text.as_str()), (304, ""));
        let other = place.replacen(tag.trim_matches('"'), "0000000000000000", 1);
        assert_eq!(daemon.plain(&format!("GET {other}"), &[], "").status, 404);
    }
    assert_eq!(names, 4);
}

/// Reads the messages of a live part until one of them satisfies `check`; returns all.
fn live(daemon: &ApiDaemon, path: &str, cookie: &str, check: impl Fn(&str) -> bool) -> Vec<String> {
    let mut stream = TcpStream::connect(&daemon.address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    let address = &daemon.address;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\n{cookie}\r\n\r\n"
    )
    .expect("sent");
    let mut messages = Vec::new();
    let until = Instant::now() + LONG;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Some(data) = line.strip_prefix("data: ") {
            messages.push(data.to_owned());
            if check(data) {
                return messages;
            }
        }
        // A keepalive comes every few seconds.
        if Instant::now() > until {
            break;
        }
    }
    panic!("not in time: {messages:?}");
}

#[test]
fn what_changes_arrives_alone_and_a_new_connection_has_all() {
    let daemon = daemon(POOLS);
    let cookie = cookie(&daemon, &[]);
    let sent = std::thread::scope(|scope| {
        let following = scope.spawn(|| {
            live(&daemon, "/ui/live?rows=true", &cookie, |html| {
                html.contains("turn 1")
            })
        });
        std::thread::sleep(std::time::Duration::from_millis(700));
        let ran = daemon.drill.run(&["run", "sleep 2s\nsay hello"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        following.join().expect("followed")
    });
    assert!(
        sent[0].contains("slot-demo-0") && sent[0].contains("slot-demo-1"),
        "{sent:?}"
    );
    let changed = sent.last().expect("a change");
    let rows = ["slot-demo-0", "slot-demo-1"]
        .iter()
        .filter(|row| changed.contains(**row));
    assert_eq!(rows.count(), 1, "only what changed: {changed}");
    let again = live(&daemon, "/ui/live?rows=true", &cookie, |_| true);
    assert!(
        again[0].contains("slot-demo-0") && again[0].contains("slot-demo-1"),
        "{again:?}"
    );
}
