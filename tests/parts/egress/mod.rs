//! The egress proxy as an attacker inside a sandbox meets it, in a world of its own: every address
//! outside answers, so what stays away stays away because of the proxy.

mod addresses;
mod floods;
mod sandboxed;
mod tls_hello;
mod world;

use std::io::{Read as _, Write as _};

use marshal_model::EgressResult as Why;
use world::{World, enter, eventually, number, zone};

const ALLOW: &str = "allow = [\"good.example.com:443\", \"six.example.com\", \"both.example.com\", \"*.wild.example.com\", \"missing.example.com\"]";

#[test]
fn an_allowed_host_is_reached_and_told_with_its_bytes() {
    if !enter("an_allowed_host_is_reached_and_told_with_its_bytes") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench(ALLOW);
    for (host, address) in [
        ("good.example.com", "8.8.4.4"),
        ("six.example.com", "2606:4700::1111"),
        ("a.wild.example.com", "1.1.1.1"),
    ] {
        let text = bench.get(host).expect(host);
        assert!(text.contains(&format!("hello from {host}\n")), "{text}");
        assert_eq!(world.reached().pop().as_deref(), Some(address));
    }
    eventually("all are told", || {
        bench.records.lock().expect("no panic").len() == 3
    });
    let records = bench.records.lock().expect("no panic").clone();
    assert_eq!(
        records[0].destination,
        Some(("good.example.com".to_owned(), 443))
    );
    for record in &records {
        assert_eq!((record.result, record.connections), (Why::Passed, 1));
        assert!(record.sent > 200 && record.received > 500, "{record:?}");
    }
    let sent: u64 = records.iter().map(|record| record.sent).sum();
    let received: u64 = records.iter().map(|record| record.received).sum();
    let bytes = "marshal_egress_bytes_total{pool=\"demo\",direction=";
    assert_eq!(number(&format!("{bytes}\"sent\"}} ")), sent);
    assert_eq!(number(&format!("{bytes}\"received\"}} ")), received);
    assert_eq!(number("marshal_egress_connections{pool=\"demo\"} "), 0);
    assert_eq!(bench.connection_count(Why::Passed), 3);
    // The name is asked for once a connection, as it stands: no search list.
    let names: Vec<String> = world
        .log("dns")
        .iter()
        .map(|line| line["name"].as_str().expect("a name").to_owned())
        .collect();
    assert!(names.iter().all(|name| !name.contains("evil")), "{names:?}");
    let requested = names.iter().filter(|name| *name == "good.example.com");
    assert!(requested.count() <= 2, "an A and an AAAA: {names:?}");
}

/// No plain host and port.
const TARGETS: [&str; 26] = [
    "1.2.3.4:443",
    "127.0.0.1:443",
    "127.1:443",
    "0177.0.0.1:443",
    "0x7f.0.0.1:443",
    "0x7f000001:443",
    "2130706433:443",
    "017700000001:443",
    "[::1]:443",
    "[::ffff:127.0.0.1]:443",
    "[::ffff:8.8.4.4]:443",
    "[2606:4700::1111]:443",
    "::ffff:127.0.0.1:443",
    "localhost:443",
    "good.example.com.:443",
    "user@good.example.com:443",
    "good.example.com@other.example.com:443",
    "good.example.com:443@other.example.com:443",
    "other.example.com#@good.example.com:443",
    "good.example.com%00.evil.example:443",
    "good.example.com",
    "good.example.com:",
    "good.example.com:0",
    "good.example.com:65979",
    ":443",
    "https://good.example.com:443",
];

#[test]
fn what_is_not_a_plain_connect_to_an_allowed_host_reaches_nobody() {
    if !enter("what_is_not_a_plain_connect_to_an_allowed_host_reaches_nobody") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench(ALLOW);
    // Without the proxy every one of these is there.
    for address in ["8.8.4.4", "8.8.8.8", "10.0.0.1", "127.0.0.1", "1.2.3.4"] {
        assert!(world.straight(address), "{address}");
    }
    eventually("they came", || {
        world.reached().len() == 4 && world.reached_here() == 1
    });
    let connect =
        |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: good.example.com:443\r\n\r\n");
    for target in TARGETS {
        bench.refuses(&world, connect(target), 400, Why::Target);
    }
    for target in [
        "other.example.com:443",
        "good.example.com:8443",
        "good.example.com:80",
        "x.good.example.com:443",
        "wild.example.com:443",
        "good.example.com.evil.example:443",
        "xgood.example.com:443",
    ] {
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        bench.refuses(&world, request, 403, Why::NotAllowed);
    }
    let good = "CONNECT good.example.com:443 HTTP/1.1\r\n";
    let host = "Host: good.example.com:443\r\n";
    for head in [
        format!("{good}\r\n"),
        format!("{good}Host: other.example.com:443\r\n\r\n"),
        format!("{good}{host}{host}\r\n"),
        format!("{good}{host}Host: other.example.com\r\n\r\n"),
        format!("{good}{host}Content-Length: 0\r\n\r\n"),
        format!(
            "{good}{host}Content-Length: 45\r\n\r\nCONNECT other.example.com:443 HTTP/1.1\r\n\r\n"
        ),
        format!("{good}{host}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{good}{host}X: a\r\n folded\r\n\r\n"),
        format!("{good}{host}X: a\0b\r\n\r\n"),
        format!("{good}{host}Upgrade: h2c\r\n\r\n"),
        "CONNECT good.example.com\0.other.example.com:443 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        format!("CONNECT good.example.com:443\tHTTP/1.1\r\n{host}\r\n"),
        format!("CONNECT  good.example.com:443 HTTP/1.1\r\n{host}\r\n"),
        format!("CONNECT good.example.com:443 HTTP/1.1\n{host}\r\n\r\n"),
        format!("CONNECT good.example.com:443 HTTP/0.9\r\n{host}\r\n"),
    ] {
        bench.refuses(&world, head, 400, Why::Head);
    }
    for line in [
        "GET http://good.example.com/ HTTP/1.1",
        "GET https://good.example.com/ HTTP/1.1",
        "POST http://169.254.169.254/latest HTTP/1.1",
        "GET / HTTP/1.1",
        "PUT / HTTP/1.1",
    ] {
        let request = format!("{line}\r\nHost: good.example.com\r\n\r\n");
        bench.refuses(&world, request, 405, Why::Method);
    }
    let long = format!("{good}{host}X: {}\r\n\r\n", "x".repeat(9000));
    bench.refuses(&world, long, 431, Why::Head);
    let many = format!("{good}{host}{}\r\n", "X: y\r\n".repeat(100));
    bench.refuses(&world, many, 431, Why::Head);
    // Bytes that are no request at all, and a client that leaves.
    let mut stream = bench.connect();
    stream
        .write_all(b"\x16\x03\x01\x00\x05hello")
        .expect("sent");
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    assert_eq!(stream.read(&mut [0; 16]).expect("the end"), 0);
    eventually("it is counted", || bench.connection_count(Why::Gone) == 1);
    // All the while the way is open for who asks properly.
    assert!(
        bench
            .get("good.example.com")
            .expect("a page")
            .contains("hello")
    );
}

#[test]
fn an_empty_list_lets_nothing_through() {
    if !enter("an_empty_list_lets_nothing_through") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench("allow = []");
    for host in [
        "good.example.com",
        "other.example.com",
        "missing.example.com",
    ] {
        let request = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}\r\n\r\n");
        bench.refuses(&world, request, 403, Why::NotAllowed);
    }
    assert!(world.log("dns").is_empty(), "no name is looked up either");
    let open = world.bench(ALLOW);
    assert!(
        open.get("good.example.com")
            .expect("a page")
            .contains("hello")
    );
}

#[test]
fn a_socket_of_unix_is_served_like_one_of_tcp() {
    if !enter("a_socket_of_unix_is_served_like_one_of_tcp") {
        return;
    }
    let world = World::new(&zone());
    let path = world.path("proxy.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let (proxy, _) = world.serve(ALLOW, move || {
        marshal_proxy::egress_proxy::Listener::unix(listener)
    });
    let ask = |target: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
        let head = format!("CONNECT {target} HTTP/1.0\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let reply = world::read_reply(&mut stream);
        (stream, reply)
    };
    let (stream, reply) = ask("good.example.com:443");
    assert_eq!(reply.status, 200, "{reply:?}");
    let ca = std::fs::read(world.path("ca.pem")).expect("ca.pem");
    let mut tls = rustls::StreamOwned::new(world::client(&ca, "good.example.com"), stream);
    tls.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut text = String::new();
    let _ = tls.read_to_string(&mut text);
    assert!(text.contains("hello from good.example.com"), "{text}");
    assert_eq!(ask("127.0.0.1:443").1.status, 400);
    assert_eq!(ask("other.example.com:443").1.status, 403);
    drop(proxy);
    eventually("it ends with its owner", || {
        std::os::unix::net::UnixStream::connect(&path).is_err()
    });
}
