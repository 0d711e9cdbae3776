//! The HTTP door over real connections.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

struct Server {
    addr: SocketAddr,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

async fn server(ready: Readiness, bounds: Bounds) -> Server {
    let listener = bind("127.0.0.1:0".parse().expect("address"))
        .await
        .expect("bound");
    let addr = listener.addr();
    let stop = CancellationToken::new();
    let pages = Pages {
        metrics: Arc::new(|| "marshal_build_info 1\n".to_owned()),
        ready: Arc::new(move || ready.clone()),
        asks: Router::new(),
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
    tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .expect("the server closes")
        .expect("read");
    String::from_utf8(answer).expect("text")
}

async fn ask(addr: SocketAddr, method: &str, path: &str, host: &str) -> (u16, String) {
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
        ("GET", "/metrics/", 404, "no such page"),
        ("GET", "/../etc/passwd", 404, "no such page"),
        ("POST", "/metrics", 405, "GET and HEAD only"),
        ("DELETE", "/readyz", 405, "allow: GET,HEAD"),
    ] {
        let (got, answer) = ask(server.addr, method, path, &host).await;
        assert_eq!(got, code, "{method} {path}: {answer}");
        assert!(answer.contains(part), "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn readyz_says_why_it_is_not_ready() {
    let reasons = vec!["every slot of pool demo is parked\u{1b}[2J".to_owned()];
    let server = server(Readiness::NotReady(reasons), Bounds::default()).await;
    let (code, answer) = ask(server.addr, "GET", "/readyz", &server.addr.to_string()).await;
    assert_eq!(code, 503);
    assert!(
        answer.contains("every slot of pool demo is parked\\u{1b}"),
        "{answer}"
    );
    let (code, _) = ask(server.addr, "GET", "/healthz", &server.addr.to_string()).await;
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
        let (got, answer) = ask(server.addr, "GET", "/metrics", &host).await;
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
    let (code, _) = ask(server.addr, "GET", "/healthz", &server.addr.to_string()).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn whoever_takes_every_place_does_not_make_the_supervisor_look_dead() {
    let bounds = Bounds {
        connections: 2,
        spare: 2,
        spare_life: Duration::from_millis(300),
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
    let (code, _) = ask(server.addr, "GET", "/healthz", "evil.example").await;
    assert_eq!(code, 421, "the name is checked there too");
    // And who takes those as well does not keep them.
    let _more = [hold().await, hold().await];
    let (code, _) = ask(server.addr, "GET", "/healthz", &host).await;
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
    let read = tokio::time::timeout(Duration::from_secs(5), idle.read(&mut buffer)).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
    let _held = TcpStream::connect(server.addr).await.expect("connected");
    server.stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), server.done)
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
    let addr = listener.addr();
    let pages = Pages {
        metrics: Arc::new(|| panic!("wanted by the test")),
        ready: Arc::new(|| Readiness::Ready),
        asks: Router::new(),
    };
    tokio::spawn(serve(
        listener,
        pages,
        Bounds::default(),
        CancellationToken::new(),
    ));
    let (code, _) = ask(addr, "GET", "/metrics", &addr.to_string()).await;
    assert_eq!(code, 500);
    let (code, _) = ask(addr, "GET", "/healthz", &addr.to_string()).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn a_taken_address_is_named_and_told_from_other_failures() {
    let first = bind("127.0.0.1:0".parse().expect("address"))
        .await
        .expect("bound");
    assert_ne!(first.addr().port(), 0);
    let second = bind(first.addr()).await.expect_err("taken");
    assert!(second.in_use());
    assert!(
        second.to_string().contains(&first.addr().to_string()),
        "{second}"
    );
    let elsewhere = bind("192.0.2.1:1".parse().expect("address"))
        .await
        .expect_err("not ours");
    assert!(!elsewhere.in_use());
}
