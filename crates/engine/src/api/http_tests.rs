//! The HTTP door over real connections.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::api::test_fixtures::no_outages;

/// Long enough for a loaded machine.
const LONG: Duration = Duration::from_secs(60);

struct Server {
    addr: SocketAddr,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

async fn server(ready: Readiness, bounds: Bounds) -> Server {
    server_of(ready, bounds, Router::new()).await
}

async fn server_of(ready: Readiness, bounds: Bounds, approvals: Router) -> Server {
    let listener = bind("127.0.0.1:0".parse().expect("address"))
        .await
        .expect("bound");
    let addr = listener.addr().expect("an address");
    let stop = CancellationToken::new();
    let pages = Pages {
        metrics: Arc::new(|_| "marshal_build_info 1\n".to_owned()),
        outages: no_outages(),
        ready: Arc::new(move || ready.clone()),
        extra_routes: approvals,
        tokens: None,
    };
    let done = tokio::spawn(serve(listener, pages, bounds, stop.clone()));
    Server { addr, stop, done }
}

/// Sends bytes as they are and reads until the server closes.
async fn raw(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(LONG, read)
        .await
        .expect("the server closes")
        .expect("read");
    String::from_utf8(answer).expect("text")
}

async fn send(addr: SocketAddr, method: &str, path: &str, host: &str) -> (u16, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = raw(addr, &request).await;
    (status(&answer), answer)
}

fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

#[tokio::test]
async fn the_three_pages_answer_and_nothing_else_does() {
    let server = server(Readiness::Ready, Bounds::default()).await;
    let host = server.addr.to_string();
    for (method, path, code, part) in [
        ("GET", "/metrics", 200, "marshal_build_info 1"),
        ("GET", "/metrics", 200, "version=0.0.4"),
        ("GET", "/healthz", 200, "ok"),
        ("GET", "/readyz", 200, "ready"),
        ("HEAD", "/healthz", 200, "content-length: 3"),
        ("GET", "/", 404, "problem+json"),
        ("GET", "/metrics/", 404, "no such resource"),
        ("GET", "/../etc/passwd", 404, "no such resource"),
        ("POST", "/metrics", 405, "does not allow this method"),
        ("DELETE", "/readyz", 405, "allow: GET,HEAD"),
    ] {
        let (got, answer) = send(server.addr, method, path, &host).await;
        assert_eq!(got, code, "{method} {path}: {answer}");
        assert!(answer.contains(part), "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn readyz_says_why_it_is_not_ready() {
    let reasons = vec!["every slot of pool demo is parked\u{1b}[2J".to_owned()];
    let server = server(Readiness::NotReady(reasons), Bounds::default()).await;
    let (code, answer) = send(server.addr, "GET", "/readyz", &server.addr.to_string()).await;
    assert_eq!(code, 503);
    assert!(
        answer.contains("every slot of pool demo is parked\\u{1b}"),
        "{answer}"
    );
    let (code, _) = send(server.addr, "GET", "/healthz", &server.addr.to_string()).await;
    assert_eq!(code, 200, "alive is not ready");
}

#[tokio::test]
async fn a_request_for_another_host_is_refused() {
    let server = server(Readiness::Ready, Bounds::default()).await;
    let port = server.addr.port();
    for (host, code) in [
        (format!("localhost:{port}"), 200),
        (format!("LocalHost:{port}"), 200),
        (format!("127.0.0.1:{port}"), 200),
        (format!("[::1]:{port}"), 200),
        (format!("evil.example:{port}"), 421),
        (format!("127.0.0.1.evil.example:{port}"), 421),
        (format!("localhost@evil.example:{port}"), 421),
        (format!("user@localhost:{port}"), 421),
        ("localhost".to_owned(), 421),
        ("localhost:1".to_owned(), 421),
        (String::new(), 421),
        ("a b".to_owned(), 421),
    ] {
        let (got, answer) = send(server.addr, "GET", "/metrics", &host).await;
        assert_eq!(got, code, "{host}: {answer}");
    }
    let without = raw(
        server.addr,
        "GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(status(&without), 421);
    let twice = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost:{port}\r\nHost: evil\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(status(&raw(server.addr, &twice).await), 421);
    let absolute = format!(
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(status(&raw(server.addr, &absolute).await), 421);
}

#[tokio::test]
async fn heads_and_bodies_are_bounded() {
    let server = server(Readiness::Ready, Bounds::default()).await;
    let host = server.addr.to_string();
    let long = "x".repeat(2 * limits::HTTP_HEAD_BYTES);
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nX: {long}\r\n\r\n");
    let answer = raw(server.addr, &head).await;
    assert_eq!(status(&answer), 431, "{answer}");
    for body in ["Content-Length: 99999999", "Transfer-Encoding: chunked"] {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n{body}\r\n\r\n");
        let answer = raw(server.addr, &head).await;
        assert_eq!(status(&answer), 413, "{body}: {answer}");
    }
    let many = "X: y\r\n".repeat(limits::HTTP_HEADERS);
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n{many}\r\n");
    assert_eq!(status(&raw(server.addr, &head).await), 431);
    // A family of pages has its own bound; what is within it gets as far as the page.
    let length = limits::HTTP_BODY_BYTES + 1;
    for (path, code) in [("/api/v1/workspaces/none", 404), ("/apix", 413)] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let answer = raw(server.addr, &head).await;
        assert_eq!(status(&answer), code, "{path}: {answer}");
    }
    assert_eq!(
        status(&raw(server.addr, "\u{1}\u{2} garbage\r\n\r\n").await),
        400
    );
}

#[tokio::test]
async fn a_silent_client_loses_its_place_and_others_get_it() {
    let bounds = Bounds {
        connections: 2,
        spare: 0,
        head: Duration::from_millis(200),
        ..Bounds::default()
    };
    let server = server(Readiness::Ready, bounds).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(server.addr).await.expect("connected");
        stream.write_all(b"GET /heal").await.expect("written");
        silent.push(stream);
    }
    let (code, _) = send(server.addr, "GET", "/healthz", &server.addr.to_string()).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn whoever_takes_every_place_does_not_make_the_supervisor_look_dead() {
    let bounds = Bounds {
        connections: 2,
        spare: 2,
        spare_life: Duration::from_millis(300),
        // Those that are held are new for ever, as if each had a request under way.
        grace: LONG,
        drain: Duration::from_millis(100),
        ..Bounds::default()
    };
    let server = server(Readiness::Ready, bounds).await;
    let host = server.addr.to_string();
    let hold = async || {
        let mut stream = TcpStream::connect(server.addr).await.expect("connected");
        stream.write_all(b"GET /heal").await.expect("written");
        stream
    };
    let _held = [hold().await, hold().await];
    for (path, code) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 503)] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = raw(server.addr, &request).await;
        assert_eq!(status(&answer), code, "{path}: {answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    let (code, _) = send(server.addr, "GET", "/healthz", "evil.example").await;
    assert_eq!(code, 421, "the name is checked there too");
    // And who takes those as well does not keep them.
    let _more = [hold().await, hold().await];
    let (code, _) = send(server.addr, "GET", "/healthz", &host).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn a_connection_ends_with_its_life_and_the_server_with_its_stop() {
    let bounds = Bounds {
        life: Duration::from_millis(100),
        drain: Duration::from_millis(100),
        ..Bounds::default()
    };
    let server = server(Readiness::Ready, bounds).await;
    let mut idle = TcpStream::connect(server.addr).await.expect("connected");
    let mut buffer = [0; 16];
    let read = tokio::time::timeout(LONG, idle.read(&mut buffer)).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
    let _held = TcpStream::connect(server.addr).await.expect("connected");
    server.stop.cancel();
    tokio::time::timeout(LONG, server.done)
        .await
        .expect("it ends")
        .expect("it does not panic");
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test]
async fn a_render_that_panics_is_an_error_page() {
    let listener = bind("127.0.0.1:0".parse().expect("address"))
        .await
        .expect("bound");
    let addr = listener.addr().expect("an address");
    let pages = Pages {
        metrics: Arc::new(|_| panic!("wanted by the test")),
        outages: no_outages(),
        ready: Arc::new(|| Readiness::Ready),
        extra_routes: Router::new(),
        tokens: None,
    };
    tokio::spawn(serve(
        listener,
        pages,
        Bounds::default(),
        CancellationToken::new(),
    ));
    let (code, _) = send(addr, "GET", "/metrics", &addr.to_string()).await;
    assert_eq!(code, 500);
    let (code, _) = send(addr, "GET", "/healthz", &addr.to_string()).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn a_taken_address_is_named_and_told_from_other_failures() {
    let listener = bind("127.0.0.1:0".parse().expect("address"))
        .await
        .expect("bound");
    let first = listener.addr().expect("an address");
    assert_ne!(first.port(), 0);
    let second = bind(first).await.expect_err("taken");
    assert!(second.is_in_use());
    assert!(second.to_string().contains(&first.to_string()), "{second}");
    let elsewhere = bind("192.0.2.1:1".parse().expect("address"))
        .await
        .expect_err("not ours");
    assert!(!elsewhere.is_in_use());
}

/// A body without an end.
struct Endless {
    piece: Bytes,
    /// How many pieces there are at once; then nothing more comes.
    left: usize,
}

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Pending;
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(self.piece.clone()))))
    }
}

fn endless(kind: &'static str, piece: &'static [u8], left: usize) -> Router {
    let page = move || async move {
        let piece = Bytes::from_static(piece);
        let body = Body::new(Endless { piece, left });
        ([(header::CONTENT_TYPE, kind)], body)
    };
    Router::new().route("/on", get(page))
}

/// Sends a request and reads the beginning of the answer.
async fn begin_request(addr: SocketAddr, path: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut buffer = vec![0; 4096];
    let read = tokio::time::timeout(LONG, stream.read(&mut buffer)).await;
    let length = read.expect("it answers").expect("read");
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    (stream, text)
}

#[tokio::test]
async fn streams_have_places_of_their_own_and_requests_keep_theirs() {
    let bounds = Bounds {
        connections: 1,
        spare: 0,
        streams: 3,
        grace: Duration::ZERO,
        life: Duration::from_secs(3),
        drain: Duration::from_millis(100),
        ..Bounds::default()
    };
    let pages = endless("text/event-stream", b"data: 1\n\n", 1);
    let server = server_of(Readiness::Ready, bounds, pages).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (stream, answer) = begin_request(server.addr, "/on").await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        streams.push(stream);
    }
    let (code, answer) = send(server.addr, "GET", "/on", &server.addr.to_string()).await;
    assert_eq!(code, 503, "{answer}");
    assert!(answer.contains("retry-after: 5"), "{answer}");
    let (code, _) = send(server.addr, "GET", "/metrics", &server.addr.to_string()).await;
    assert_eq!(code, 200);
    // They outlive the life of other connections: nothing comes, and no end either.
    tokio::time::sleep(bounds.life + Duration::from_secs(1)).await;
    for stream in &mut streams {
        let mut rest = vec![0; 4096];
        while let Ok(read) = stream.try_read(&mut rest) {
            assert_ne!(read, 0, "it ended");
        }
    }
    // One that ends makes room.
    drop(streams.pop());
    tokio::time::timeout(LONG, async {
        while status(&begin_request(server.addr, "/on").await.1) != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("a place is free");
    server.stop.cancel();
    tokio::time::timeout(LONG, server.done)
        .await
        .expect("it ends")
        .expect("it does not panic");
}

#[tokio::test]
async fn a_stream_ends_with_its_own_life() {
    let bounds = Bounds {
        life: Duration::from_secs(3),
        stream_life: Duration::from_secs(4),
        drain: Duration::from_millis(100),
        ..Bounds::default()
    };
    let pages = endless("text/event-stream", b"data: 1\n\n", 1);
    let server = server_of(Readiness::Ready, bounds, pages).await;
    let (mut stream, _) = begin_request(server.addr, "/on").await;
    let mut rest = Vec::new();
    let read = stream.read_to_end(&mut rest);
    let _ = tokio::time::timeout(LONG, read).await.expect("it ends");
}

#[tokio::test]
async fn who_asks_nothing_gives_its_place_to_who_does() {
    let bounds = Bounds {
        connections: 2,
        spare: 0,
        grace: Duration::from_millis(50),
        ..Bounds::default()
    };
    let server = server(Readiness::Ready, bounds).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(TcpStream::connect(server.addr).await.expect("connected"));
    }
    let (code, _) = send(server.addr, "GET", "/metrics", &server.addr.to_string()).await;
    assert_eq!(code, 200);
    // The first went first.
    let mut one = [0; 1];
    let read = tokio::time::timeout(LONG, idle[0].read(&mut one)).await;
    assert!(matches!(read.expect("it ends"), Ok(0) | Err(_)));
    // And who has asked before keeps its place as long as nobody wants it.
    let (mut kept, answer) = begin_request(server.addr, "/healthz").await;
    assert_eq!(status(&answer), 200);
    tokio::time::sleep(4 * bounds.grace).await;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", server.addr);
    kept.write_all(request.as_bytes()).await.expect("written");
    let mut buffer = [0; 64];
    let read = tokio::time::timeout(LONG, kept.read(&mut buffer)).await;
    assert!(read.expect("it answers").expect("read") > 0);
}

/// Sends the head of a request with a body of ten bytes, and the first few of them.
async fn begin_body(addr: SocketAddr, begin: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let head =
        format!("POST /length HTTP/1.1\r\nHost: {addr}\r\nContent-Length: 10\r\n\r\n{begin}");
    stream.write_all(head.as_bytes()).await.expect("written");
    stream
}

#[tokio::test]
async fn half_sent_bodies_give_their_places_to_complete_requests() {
    let bounds = Bounds {
        connections: 2,
        spare: 0,
        grace: Duration::from_millis(50),
        ..Bounds::default()
    };
    let length = |body: Bytes| async move { body.len().to_string() };
    let pages = Router::new().route("/length", axum::routing::post(length));
    let server = server_of(Readiness::Ready, bounds, pages).await;
    let mut half = [
        begin_body(server.addr, "01234").await,
        begin_body(server.addr, "0").await,
    ];
    tokio::time::sleep(bounds.grace / 2).await;
    // A byte at times does not keep the place.
    half[0].write_all(b"5").await.expect("written");
    let (code, _) = send(server.addr, "GET", "/metrics", &server.addr.to_string()).await;
    assert_eq!(code, 200);
    let mut rest = Vec::new();
    let read = tokio::time::timeout(LONG, half[0].read_to_end(&mut rest)).await;
    assert!(read.is_ok() && rest.is_empty(), "{read:?} {rest:?}");
    // Nobody wants the other place: its request is served however slow it is.
    tokio::time::sleep(4 * bounds.grace).await;
    half[1].write_all(b"123456789").await.expect("written");
    let mut buffer = [0; 512];
    let read = tokio::time::timeout(LONG, half[1].read(&mut buffer)).await;
    let answer =
        String::from_utf8_lossy(&buffer[..read.expect("it answers").expect("read")]).into_owned();
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.ends_with("\r\n\r\n10"), "{answer}");
}

#[tokio::test]
async fn who_reads_nothing_is_given_up() {
    let bounds = Bounds {
        connections: 1,
        spare: 0,
        write: Duration::from_millis(200),
        ..Bounds::default()
    };
    let pages = endless("text/plain", &[b'x'; 8 << 10], usize::MAX);
    let server = server_of(Readiness::Ready, bounds, pages).await;
    let (_held, answer) = begin_request(server.addr, "/on").await;
    assert_eq!(status(&answer), 200);
    let (code, _) = send(server.addr, "GET", "/healthz", &server.addr.to_string()).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn pages_of_other_servers_may_not_ask() {
    let server = server(Readiness::Ready, Bounds::default()).await;
    let addr = server.addr;
    for (origin, code) in [
        (format!("http://{addr}"), 200),
        ("null".to_owned(), 403),
        ("https://evil.example".to_owned(), 403),
        (format!("http://evil.example:{}", addr.port()), 403),
    ] {
        for path in ["/metrics", "/healthz"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {addr}\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
            );
            let answer = raw(addr, &request).await;
            assert_eq!(status(&answer), code, "{origin}: {answer}");
        }
    }
}

#[tokio::test]
async fn the_socket_serves_the_same_and_leaves_no_file() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join(SOCKET);
    // What a dead supervisor left.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let listener = bind_socket(dir.path()).expect("bound");
    let pages = Pages {
        metrics: Arc::new(|_| "up 1\n".to_owned()),
        outages: no_outages(),
        ready: Arc::new(|| Readiness::Ready),
        extra_routes: Router::new(),
        tokens: None,
    };
    let stop = CancellationToken::new();
    let done = tokio::spawn(serve(listener, pages, Bounds::for_socket(), stop.clone()));
    for (host, code) in [
        ("localhost", 200),
        ("localhost:80", 200),
        ("evil.example", 421),
    ] {
        let mut stream = tokio::net::UnixStream::connect(&path).await.expect("there");
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(LONG, read)
            .await
            .expect("it ends")
            .expect("text");
        assert_eq!(status(&answer), code, "{host}: {answer}");
    }
    stop.cancel();
    tokio::time::timeout(LONG, done)
        .await
        .expect("it ends")
        .expect("whole");
    assert!(!path.exists());
    std::fs::write(&path, "").expect("a file");
    let error = bind_socket(dir.path()).expect_err("no socket");
    assert!(error.to_string().contains("is not a socket"), "{error}");
}

#[tokio::test]
async fn from_other_hosts_the_metrics_need_a_token_and_no_reason_is_told() {
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    let dir = tempfile::tempdir().expect("directory");
    let open = |path: &std::path::Path| Ok(std::fs::File::open(path).ok());
    let tokens = Tokens::load(dir.path(), std::collections::BTreeMap::new(), open).expect("made");
    let owner = std::fs::read_to_string(dir.path().join("http.token")).expect("a token");
    for (local, token, code, is_told) in [
        ("127.0.0.1:7117", None, 200, true),
        ("10.0.0.1:7117", None, 401, false),
        ("10.0.0.1:7117", Some(owner.trim()), 200, false),
    ] {
        let pages = Pages {
            metrics: Arc::new(|_| "up 1\n".to_owned()),
            outages: no_outages(),
            ready: Arc::new(|| Readiness::NotReady(vec!["pool demo is parked".to_owned()])),
            extra_routes: Router::new(),
            tokens: Some(tokens.clone()),
        };
        let names = HostNames {
            hosts: [].into(),
            default_port: 80,
        };
        let service = TowerToHyperService::new(router(pages, names));
        let send = async |path: &str| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().expect("a path");
            let headers = request.headers_mut();
            headers.insert(header::HOST, HeaderValue::from_static(local));
            if let Some(token) = token {
                let value = format!("Bearer {token}").parse().expect("a value");
                headers.insert(header::AUTHORIZATION, value);
            }
            request.extensions_mut().insert(Peer::Address {
                remote: [10, 0, 0, 9].into(),
                local: local.parse().expect("an address"),
            });
            let response = service.call(request).await.expect("an answer");
            let status = response.status().as_u16();
            let body = axum::body::to_bytes(response.into_body(), 4096)
                .await
                .expect("whole")
                .to_vec();
            (status, String::from_utf8(body).expect("text"))
        };
        assert_eq!(send("/metrics").await.0, code, "{local}");
        let (status, body) = send("/readyz").await;
        assert_eq!((status, body.contains("parked")), (503, is_told), "{body}");
    }
}
