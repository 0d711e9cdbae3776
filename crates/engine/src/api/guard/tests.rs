//! What is read of a request before its page, over real connections.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::http::{self, Bounds, Pages};
use crate::api::test_fixtures::no_outages;
use crate::api::tokens::{APPROVERS_DIR, TOKEN_FILE};
use marshal_config::NamedToken;
use marshal_fleet::Readiness;
use marshal_model::limits;

#[test]
fn the_scheme_is_of_either_case_and_there_is_one() {
    let of = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        bearer_token(&headers)
    };
    for good in ["Bearer abc", "bearer abc", "BEARER  abc "] {
        assert_eq!(of(&[good]).as_deref(), Some("abc"), "{good}");
    }
    for bad in ["Basic abc", "Bearerabc", "Bearer", ""] {
        assert_eq!(of(&[bad]), None, "{bad}");
    }
    assert_eq!(of(&["Bearer a", "Bearer a"]), None);
    assert_eq!(of(&[]), None);
}

const ROUTES: RouteRoles = &[
    (Method::GET, "/look/{what}", Role::Read),
    (Method::POST, "/look/{what}", Role::Operate),
    (Method::POST, "/answer", Role::Approve),
    (Method::POST, "/change", Role::Admin),
];

/// A server of those routes, and of one more that is in no table, with a token of each role and one
/// of an approver.
struct World {
    dir: tempfile::TempDir,
    addr: SocketAddr,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn plainly(path: &Path) -> Result<Option<File>, String> {
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(|error| error.to_string()),
    }
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("mode");
}

/// The token of a name.
fn token(name: &str) -> String {
    format!("{name:-<32}")
}

async fn world(about: RouteScope) -> World {
    let dir = tempfile::tempdir().expect("directory");
    let mut named = BTreeMap::new();
    for role in Role::ALL {
        let file = dir.path().join(role.as_str());
        put(&file, &token(role.as_str()));
        named.insert(role.as_str().to_owned(), NamedToken { file, role: *role });
    }
    fs::create_dir(dir.path().join(APPROVERS_DIR)).expect("made");
    put(&dir.path().join(APPROVERS_DIR).join("boss"), &token("boss"));
    put(&dir.path().join(TOKEN_FILE), &token("owner"));
    let tokens = Tokens::load(dir.path(), named, plainly).expect("made");
    let ok = || async { "ok" };
    let pages = Router::new()
        .route("/look/{what}", get(ok).post(ok).put(ok))
        .route("/answer", post(ok))
        .route("/change", post(ok))
        .route("/forgotten", get(ok));
    let pages = Pages {
        metrics: Arc::new(|_| String::new()),
        outages: no_outages(),
        ready: Arc::new(|| Readiness::Ready),
        extra_routes: with_guard(pages, &tokens, ROUTES, about),
        tokens: Some(tokens),
    };
    let listener = http::bind("127.0.0.1:0".parse().expect("address"))
        .await
        .expect("bound");
    let addr = listener.addr().expect("an address");
    let stop = CancellationToken::new();
    tokio::spawn(http::serve(
        listener,
        pages,
        Bounds::default(),
        stop.clone(),
    ));
    World { dir, addr, stop }
}

impl World {
    async fn send(&self, route: &str, token: Option<&str>) -> (u16, String) {
        let addr = self.addr;
        let with = token.map_or_else(String::new, |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let mut stream = TcpStream::connect(addr).await.expect("connected");
        // A body is announced and never sent: nobody who is refused is waited for.
        let text = format!("{route} HTTP/1.1\r\nHost: {addr}\r\n{with}Connection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await.expect("written");
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        let read = tokio::time::timeout(Duration::from_secs(60), read).await;
        read.expect("it answers").expect("text");
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (code.expect("a status"), answer)
    }

    async fn code(&self, route: &str, name: &str) -> u16 {
        let token = (!name.is_empty()).then(|| token(name));
        self.send(route, token.as_deref()).await.0
    }
}

/// Every route with every role and without.
#[tokio::test]
async fn each_route_takes_the_roles_of_its_row_and_nobody_else() {
    let world = world(RouteScope::Fleet).await;
    let names = ["owner", "admin", "operate", "approve", "read"];
    for (route, good) in [
        ("GET /look/x", "owner admin operate approve read"),
        ("HEAD /look/x", "owner admin operate approve read"),
        ("POST /look/x", "owner admin operate"),
        ("POST /answer", "owner admin approve"),
        ("POST /change", "owner admin"),
        ("GET /forgotten", "owner admin"),
    ] {
        for name in names {
            let may = good.split(' ').any(|of| of == name);
            let code = if may { 200 } else { 403 };
            assert_eq!(world.code(route, name).await, code, "{route} as {name}");
        }
        for name in ["", "nobody", "readx", "ead"] {
            assert_eq!(world.code(route, name).await, 401, "{route} as {name:?}");
        }
        assert_eq!(world.code(route, "boss").await, 403, "{route}");
    }
    // A method that is in no row is in no row for anybody, though the page has it.
    let (code, answer) = world.send("PUT /look/x", Some(&token("owner"))).await;
    assert_eq!(code, 405, "{answer}");
    assert!(answer.contains("allow: GET, POST, HEAD"), "{answer}");
    assert_eq!(world.code("PUT /look/x", "").await, 401);
    // One that is taken away is nobody's at once, and nothing of it is told.
    fs::remove_file(world.dir.path().join("read")).expect("removed");
    let (code, answer) = world.send("GET /look/x", Some(&token("read"))).await;
    assert_eq!(code, 401);
    assert!(!answer.contains("read-"), "{answer}");
}

#[tokio::test]
async fn an_approver_is_there_for_asks_only() {
    let world = world(RouteScope::Approvals).await;
    for (route, code) in [
        ("GET /look/x", 200),
        ("POST /answer", 200),
        ("POST /look/x", 403),
        ("POST /change", 403),
    ] {
        assert_eq!(world.code(route, "boss").await, code, "{route}");
    }
}

#[tokio::test]
async fn who_asks_too_often_waits_and_others_do_not() {
    let world = world(RouteScope::Fleet).await;
    let burst = limits::HTTP_RATE.burst;
    let mut codes = BTreeMap::new();
    let mut last = String::new();
    // A machine that is slow enough to never come to the bound would still see nothing else.
    for _ in 0..3 * burst {
        let (code, answer) = world.send("GET /look/x", Some(&token("read"))).await;
        *codes.entry(code).or_insert(0) += 1;
        if code == 429 {
            last = answer;
            break;
        }
    }
    assert!(codes[&200] >= burst, "{codes:?}");
    if !last.is_empty() {
        assert!(last.contains("retry-after: 1"), "{last}");
    }
    assert_eq!(world.code("GET /look/x", "operate").await, 200);
    for _ in 0..=burst {
        assert!(matches!(world.code("GET /look/x", "").await, 401 | 429));
    }
    // Who came in before is not kept out by who guesses; the probes are free for all.
    assert_eq!(world.code("GET /look/x", "operate").await, 200);
    assert_eq!(world.code("GET /healthz", "").await, 200);
    assert_eq!(world.code("GET /metrics", "").await, 200);
}
