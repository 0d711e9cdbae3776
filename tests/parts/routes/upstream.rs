//! What an upstream may do: redirect, stream, vanish, send the key back, limit, lie about itself.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::provider::{Provider, Talk, message, whole};
use crate::routes::bench::{Bench, KEY, Reply, eventually, logs, post};

const BODY: &str = r#"{"model":"m"}"#;

fn answering(answer: String) -> Provider {
    Provider::start(move |_, _, to| {
        let _ = to.write_all(answer.as_bytes());
    })
}

#[test]
fn a_redirect_is_not_followed_and_does_not_come_back() {
    for status in [
        "301 Moved",
        "302 Found",
        "303 See Other",
        "307 Temporary",
        "308 Permanent",
    ] {
        let elsewhere = Provider::start(message);
        let location = format!("location: http://{}/v1/messages\r\n", elsewhere.address);
        let bench = Bench::new(
            "redirect",
            "",
            answering(whole(status, &location, "elsewhere")),
        );
        let reply = bench.post("/v1/messages", "", BODY);
        assert_eq!(reply.status, 502, "{reply:?}");
        assert!(
            reply.body.contains("redirect") && reply.body.contains("marshal_redirect"),
            "{reply:?}"
        );
        assert!(
            !reply.head.to_ascii_lowercase().contains("location"),
            "{reply:?}"
        );
        assert_eq!(bench.provider.got().len(), 1);
        assert!(elsewhere.got().is_empty(), "it was followed");
    }
}

#[test]
fn cookies_and_credentials_do_not_come_back_and_the_rest_does() {
    let headers = "content-type: application/json\r\nset-cookie: id=1\r\nx-api-key: a\r\nalt-svc: h3=\":443\"\r\nrequest-id: r1\r\nx-ratelimit-remaining-tokens: 7\r\nx-debug: xx KEY yy\r\nlocation: /x\r\n";
    let bench = Bench::new(
        "cookies",
        "",
        answering(whole("201 Created", &headers.replace("KEY", KEY), "{}")),
    );
    let reply = bench.post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 201, "{reply:?}");
    let head = reply.head.to_ascii_lowercase();
    for gone in [
        "set-cookie",
        "x-api-key",
        "alt-svc",
        "location",
        "x-debug",
        &KEY.to_ascii_lowercase(),
    ] {
        assert!(!head.contains(gone), "{gone}: {head}");
    }
    for stored in [
        "content-type: application/json",
        "request-id: r1",
        "x-ratelimit-remaining-tokens: 7",
    ] {
        assert!(head.contains(stored), "{stored}: {head}");
    }
}

#[test]
fn an_answer_passes_piece_by_piece_as_it_comes() {
    let (go, gone) = mpsc::sync_channel::<()>(1);
    let gone = Mutex::new(gone);
    let provider = Provider::start(move |_, _, to| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let one = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":3}}}\n\n";
        let two = "event: message_delta\ndata: {\"usage\":{\"output_tokens\":9}}\n\n";
        let _ = to.write_all(format!("{head}{:x}\r\n{one}\r\n", one.len()).as_bytes());
        let _ = to.flush();
        // Not before the client has seen the first one.
        let _ = gone
            .lock()
            .expect("no panic")
            .recv_timeout(Duration::from_secs(60));
        let _ = to.write_all(format!("{:x}\r\n{two}\r\n0\r\n\r\n", two.len()).as_bytes());
    });
    let bench = Bench::new("stream", "", provider);
    let mut stream = bench.connect();
    stream
        .write_all(post("/v1/messages", "", BODY).as_bytes())
        .expect("sent");
    let mut seen = String::new();
    let began = Instant::now();
    while !seen.contains("input_tokens") {
        let mut chunk = [0; 4096];
        let read = std::io::Read::read(&mut stream, &mut chunk).expect("a piece");
        assert!(read > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    assert!(began.elapsed() < Duration::from_secs(40));
    assert!(!seen.contains("output_tokens"), "{seen}");
    go.send(()).expect("the provider waits");
    let rest = Reply::read(&mut stream);
    assert!(
        rest.head.contains("output_tokens") || rest.body.contains("output_tokens"),
        "{rest:?}"
    );
    eventually("the tokens are counted", || {
        bench.metric("marshal_route_tokens_total", "type=\"output\"") > 8.5
    });
    assert!(bench.metric("marshal_route_tokens_total", "type=\"input\"") > 2.5);
}

#[test]
fn a_vanished_upstream_is_told_and_bounded() {
    // Nobody listens, and nobody else takes the port as long as this has it.
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let occupied = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let occupied = occupied.expect("a socket");
    rustix::net::bind(&occupied, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let closed = rustix::net::getsockname(&occupied).expect("an address");
    let closed = SocketAddrV4::try_from(closed).expect("of IPv4");
    let bench = Bench::to(
        "vanished",
        &format!("http://{closed}"),
        "",
        None,
        Provider::start(message),
    );
    let reply = bench.post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 502, "{reply:?}");
    assert!(
        reply
            .body
            .contains("the upstream of the route own cannot be reached: ")
            && reply.body.contains("refused"),
        "{reply:?}"
    );
    drop(occupied);
    // It hangs up before its answer, or in the middle of its head.
    for answer in ["", "HTTP/1.1 200 OK\r\ncontent-", "no http at all\r\n\r\n"] {
        let bench = Bench::new("vanished", "", answering(answer.to_owned()));
        let reply = bench.post("/v1/messages", "", BODY);
        assert_eq!(reply.status, 502, "{answer:?} {reply:?}");
        assert!(
            reply
                .body
                .contains("ended the connection before it answered"),
            "{reply:?}"
        );
    }
    // In the middle of its answer: what was there is there, and the end is no good end.
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let bench = Bench::new("vanished", "", answering(answer.to_owned()));
    let reply = bench.post("/v1/messages", "", BODY);
    assert!(
        reply.status == 200 && reply.body == "hello" && !reply.is_whole,
        "{reply:?}"
    );
    // It says nothing.
    let silent = Provider::start(|_, _, _| std::thread::sleep(Duration::from_secs(30)));
    let bench = Bench::new("vanished", "timeouts.answer = \"300ms\"", silent);
    let reply = bench.post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 504, "{reply:?}");
    assert!(reply.body.contains("did not answer in time"), "{reply:?}");
    // It falls silent in the middle.
    let silent = Provider::start(|_, _, to| {
        let _ =
            to.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
        let _ = to.flush();
        std::thread::sleep(Duration::from_secs(30));
    });
    let bench = Bench::new("vanished", "timeouts.idle = \"300ms\"", silent);
    let began = Instant::now();
    let reply = bench.post("/v1/messages", "", BODY);
    assert!(reply.body == "hello" && !reply.is_whole, "{reply:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
    eventually("each is counted as failed", || {
        bench.metric("marshal_route_requests_total", "code=\"failed\"") > 6.5
    });
}

#[test]
fn an_upstream_that_sends_the_key_back_is_cut_off() {
    let (first, second) = KEY.split_at(10);
    let provider = Provider::start(move |_, _, to| {
        let begin = format!("you sent {first}");
        let end = format!("{second} to me");
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = to.write_all(format!("{head}{:x}\r\n{begin}\r\n", begin.len()).as_bytes());
        let _ = to.flush();
        std::thread::sleep(Duration::from_millis(100));
        let _ = to.write_all(format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len()).as_bytes());
    });
    // One byte at a time, as it is and escaped: nothing of it is forwarded.
    let escaped = KEY
        .bytes()
        .fold(String::new(), |text, byte| format!("{text}%{byte:02x}"));
    let in_pieces = |text: String| {
        Provider::start(move |_, _, to| {
            let _ = to.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            for byte in text.bytes() {
                let _ = to.write_all(&[b"1\r\n", &[byte][..], b"\r\n"].concat());
                let _ = to.flush();
            }
            let _ = to.write_all(b"0\r\n\r\n");
        })
    };
    for provider in [
        provider,
        answering(whole("200 OK", "", &format!("key {KEY}!"))),
        in_pieces(format!("key {KEY}!")),
        in_pieces(format!("key {escaped}!")),
    ] {
        let bench = Bench::new("echo", "", provider);
        let reply = bench.post("/v1/messages", "", BODY);
        assert!(!reply.is_whole, "{reply:?}");
        // Where it is cut in what stands before the key depends on the reads.
        let mut before = ["key ", "you sent "].iter();
        assert!(
            before.any(|text| text.starts_with(&reply.body)),
            "{reply:?}"
        );
        eventually("it is counted", || {
            bench.metric("marshal_route_refused_total", "reason=\"key_echo\"") > 0.5
        });
    }
    assert!(!logs().contains(KEY));
}

#[test]
fn an_encoded_response_that_cannot_be_searched_is_refused() {
    let answer = |encoding: &str| {
        answering(whole(
            "200 OK",
            &format!("content-encoding: {encoding}\r\n"),
            "{}",
        ))
    };
    let reply = Bench::new("encoded", "", answer("gzip")).post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 502, "{reply:?}");
    assert!(
        reply.body.contains("cannot be searched for the key"),
        "{reply:?}"
    );
    let reply = Bench::new("encoded", "", answer("identity")).post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn a_limit_is_seen_with_the_time_that_is_announced() {
    let provider = Provider::start(|number, got, to| match number {
        0 => {
            let answer = whole("429 Too Many Requests", "retry-after: 30\r\n", "{}");
            let _ = to.write_all(answer.as_bytes());
        }
        1 => {
            let _ = to.write_all(whole("529 Overloaded", "", "{}").as_bytes());
        }
        _ => message(number, got, to),
    });
    let bench = Bench::new("limits", "", provider);
    assert_eq!(bench.post("/v1/messages", "", BODY).status, 429);
    let seen = bench.watch.status();
    assert!(
        seen.is_limited && seen.limited_answers == 1 && seen.successes == 0,
        "{seen:?}"
    );
    let wait = seen
        .wait_until
        .expect("announced")
        .saturating_duration_since(Instant::now());
    assert!(
        wait > Duration::from_secs(10) && wait <= Duration::from_secs(30),
        "{wait:?}"
    );
    assert_eq!(bench.post("/v1/messages", "", BODY).status, 529);
    assert_eq!(bench.watch.status().limited_answers, 2);
    assert_eq!(bench.post("/v1/messages", "", BODY).status, 200);
    assert!(!bench.watch.status().is_limited && bench.watch.status().successes == 1);
    bench.watch.reset();
    assert_eq!(
        bench.watch.status(),
        marshal_proxy::model_proxy::RateLimitStatus::default()
    );
    eventually("limits are counted", || {
        bench.metric("marshal_route_requests_total", "code=\"limited\"") > 1.5
    });
}

/// A certificate authority, and a server's side of TLS with a certificate of it.
fn authority() -> (String, Arc<ServerConfig>) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).expect("signed");
    let issuer = Issuer::from_params(&params, &key);
    let own_key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])
        .expect("names");
    let own = own.signed_by(&own_key, &issuer).expect("signed");
    let chain = vec![CertificateDer::from(own.der().to_vec())];
    let key = PrivateKeyDer::try_from(own_key.serialize_der()).expect("a key");
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    (ca.pem(), Arc::new(config))
}

fn tls(config: Arc<ServerConfig>) -> impl Fn(TcpStream) -> Option<Box<dyn Talk>> + Send + Sync {
    move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).ok()?;
        Some(Box::new(StreamOwned::new(connection, stream)))
    }
}

#[test]
fn tls_is_checked_against_the_authorities_that_the_route_names() {
    let (ca, config) = authority();
    let (other, _) = authority();
    let provider = Provider::wrapped(message, tls(config));
    let port = provider.address.port();
    let bench = |url: String, ca: Option<&str>| Bench::to("tls", &url, "", ca, provider.clone());
    for host in ["localhost", "127.0.0.1"] {
        let reply =
            bench(format!("https://{host}:{port}"), Some(&ca)).post("/v1/messages", "", BODY);
        assert_eq!(reply.status, 200, "{host} {reply:?}");
    }
    let got = provider.got().len();
    for (url, ca) in [
        (format!("https://localhost:{port}"), None),
        (format!("https://localhost:{port}"), Some(other.as_str())),
        // A name that is not in the certificate.
        (format!("https://127.0.0.2:{port}"), Some(ca.as_str())),
    ] {
        let reply = bench(url.clone(), ca).post("/v1/messages", "", BODY);
        assert_eq!(reply.status, 502, "{url} {reply:?}");
    }
    assert_eq!(
        provider.got().len(),
        got,
        "nothing was sent, the key least of all"
    );
}
