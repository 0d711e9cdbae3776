//! Routes as an attacker inside a sandbox meets them: real sockets, a real upstream, crude bytes.

mod attacks;
mod bench;
mod registry;
mod upstream;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::provider::{Provider, message};
use bench::{Bench, KEY, Reply, eventually, logs, page, post};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"my private words"}]}"#;

#[test]
fn a_request_goes_on_with_the_real_key_and_without_what_came_from_inside() {
    let bench = Bench::new("plain", "", Provider::start(message));
    let smuggled = "Authorization: Bearer smuggled\r\nX-Api-Key: smuggled\r\nApi-Key: smuggled\r\nX-Goog-Api-Key: smuggled\r\nCookie: a=smuggled\r\nProxy-Authorization: smuggled\r\nX-Auth-Token: smuggled\r\nX-Forwarded-For: smuggled\r\nX-HTTP-Method-Override: smuggled\r\nConnection: X-Listed\r\nX-Listed: smuggled\r\nanthropic-version: 2023-06-01\r\nAccept-Encoding: gzip\r\n";
    let path = "/v1/messages?key=smuggled&beta=true&api_key=smuggled";
    let reply = bench.post(path, smuggled, BODY);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.is_whole && reply.body.contains("hello"), "{reply:?}");
    let got = &bench.provider.got()[0];
    let head = got.head.to_ascii_lowercase();
    assert!(
        head.starts_with("post /v1/messages?beta=true http/1.1\r\n"),
        "{head}"
    );
    assert!(!head.contains("smuggled"), "{head}");
    assert_eq!(
        head.matches(&format!("x-api-key: {KEY}\r\n")).count(),
        1,
        "{head}"
    );
    assert!(
        head.contains(&format!("host: {}\r\n", bench.provider.address)),
        "{head}"
    );
    assert!(head.contains("anthropic-version: 2023-06-01\r\n"), "{head}");
    assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
    assert_eq!(got.body, BODY);
    assert!(!reply.head.contains(KEY) && !reply.body.contains(KEY));
    eventually("the answer is counted", || {
        bench.metric("marshal_route_requests_total", "code=\"2xx\"") > 0.0
    });
    for (kind, count) in [("input", 16.0), ("output", 7.0), ("cache_read", 5.0)] {
        let label = format!("type=\"{kind}\"");
        eventually(kind, || {
            (bench.metric("marshal_route_tokens_total", &label) - count).abs() < 0.1
        });
    }
    eventually("the log is on", || logs().contains("model request ended"));
    let printed = logs() + &page();
    for secret in [KEY, "smuggled", "my private words", "2023-06-01"] {
        assert!(!printed.contains(secret), "{secret} was logged");
    }
}

#[test]
fn methods_paths_and_queries_outside_the_list_are_refused_and_explained() {
    let bench = Bench::new("list", "", Provider::start(message));
    let line = |line: &str| format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
    for (request, status, reason) in [
        ("GET /v1/messages", 403, "not_allowed"),
        ("DELETE /v1/models/x", 403, "not_allowed"),
        ("GET /v1/models", 403, "not_allowed"),
        ("GET /v1/models/a/b", 403, "not_allowed"),
        ("POST /v1/files", 403, "not_allowed"),
        ("POST /v1/Messages", 403, "not_allowed"),
        ("PATCH /v1/messages", 403, "not_allowed"),
        ("BREW /v1/messages", 403, "not_allowed"),
        ("GET /v1/models/..", 403, "path"),
        ("GET /v1/models/../../admin", 403, "path"),
        ("GET /v1//models/x", 403, "path"),
        ("GET /v1/models/%2e%2e", 403, "path"),
        ("GET /v1/models/a%2fb", 403, "path"),
        ("GET /v1/models/a;b", 403, "path"),
        ("GET /", 403, "path"),
        ("GET /v1/models/x?admin=1", 403, "query"),
        ("GET /v1/models/x?%6bey=1", 403, "query"),
        ("GET http://evil.example/v1/models/x", 400, "smuggling"),
        ("CONNECT evil.example:443", 400, "smuggling"),
        ("OPTIONS *", 400, "smuggling"),
    ] {
        bench.refuses(line(request), status, reason);
    }
    let reply = bench.send(line("GET /v1/models/m?beta=1&key=x"));
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn smuggled_requests_are_refused_before_anybody_reads_them() {
    let bench = Bench::new("smuggle", "", Provider::start(message));
    let with = |headers: &str, body: &str| {
        format!(
            "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{headers}\r\n\r\n{body}"
        )
    };
    for headers in [
        "Content-Length: 2\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 2",
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 2\r\nContent-Length: 2",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\tchunked, chunked",
        "Content-Length: 2\r\nHost: evil.example",
        "Content-Length: 2\r\nX: a\r\n folded",
        "Content-Length: 2\nX: a",
        "Content-Length: 2\r\nUpgrade: h2c",
    ] {
        bench.refuses(with(headers, "{}"), 400, "smuggling");
    }
    // A second request behind the first one is never read.
    let two = format!(
        "{}{}",
        post("/v1/messages", "", BODY),
        "GET /v1/models/second HTTP/1.1\r\nHost: a\r\n\r\n"
    );
    let reply = bench.send(two);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(
        reply
            .head
            .to_ascii_lowercase()
            .contains("connection: close"),
        "{reply:?}"
    );
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(bench.provider.got().len(), 1);
    // Chunks alone are fine, and go on as one body of a known length.
    let reply = bench.send(with(
        "Transfer-Encoding: chunked",
        "2\r\n{\"\r\n5\r\na\":1}\r\n0\r\n\r\n",
    ));
    assert_eq!(reply.status, 200, "{reply:?}");
    let got = bench.provider.got();
    assert_eq!(got[1].body, "{\"a\":1}");
    assert!(
        got[1]
            .head
            .to_ascii_lowercase()
            .contains("content-length: 7\r\n")
    );
    bench.refuses(
        with("Transfer-Encoding: chunked", "zz\r\n{}\r\n0\r\n\r\n"),
        400,
        "smuggling",
    );
}

#[test]
fn bodies_that_would_make_the_provider_act_or_cannot_be_understood_are_refused() {
    let bench = Bench::new("bodies", "body_max = \"64K\"", Provider::start(message));
    for (body, status, reason) in [
        (
            r#"{"tools":[{"type":"web_search_20250305","name":"w"}]}"#,
            403,
            "server_tool",
        ),
        (
            r#"{"mcp_servers":[{"url":"https://evil.example"}]}"#,
            403,
            "server_tool",
        ),
        (r#"{"tools":[{"googleSearch":{}}]}"#, 403, "server_tool"),
        (r#"{"tools":[],"tools":[{"type":"mcp"}]}"#, 400, "body"),
        (
            r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://evil.example/?q=data"}}]}]}"#,
            403,
            "remote_content",
        ),
        ("not json", 400, "body"),
    ] {
        bench.refuses(post("/v1/messages", "", body), status, reason);
    }
    let typed = |kind: &str| {
        format!(
            "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: 2\r\n\r\n{{}}"
        )
    };
    bench.refuses(typed("text/plain"), 415, "body");
    bench.refuses(
        typed("application/json\r\nContent-Type: text/plain"),
        415,
        "body",
    );
    bench.refuses(
        post("/v1/messages", "Content-Encoding: gzip\r\n", "{}"),
        415,
        "encoding",
    );
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(70_000));
    bench.refuses(post("/v1/messages", "", &long), 413, "body_size");
    let chunked = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    bench.refuses(chunked, 413, "body_size");
    let head = format!(
        "GET /v1/models/x HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(80_000)
    );
    bench.refuses(head, 431, "head");
    // With server_tools nothing of this is looked at, and the owner said so.
    let open = Bench::new(
        "bodies-open",
        "server_tools = true",
        Provider::start(message),
    );
    let reply = open.post("/v1/messages", "", r#"{"tools":[{"type":"web_search"}]}"#);
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn slow_heads_and_bodies_are_cut_off_in_time() {
    let bench = Bench::new(
        "slow",
        "timeouts.request = \"700ms\"",
        Provider::start(message),
    );
    let part = post("/v1/messages", "", BODY);
    for begin in ["POST /v1/mess", &part[..part.len() - 65]] {
        let mut stream = bench.connect();
        stream.write_all(begin.as_bytes()).expect("sent");
        let began = Instant::now();
        // A byte now and then does not help.
        let mut drip = stream.try_clone().expect("a clone");
        let dripping = std::thread::spawn(move || {
            for _ in 0..400 {
                std::thread::sleep(Duration::from_millis(100));
                if drip.write_all(b" ").is_err() {
                    return;
                }
            }
        });
        let reply = Reply::read(&mut stream);
        assert_eq!(reply.status, 408, "{begin:?} {reply:?}");
        assert!(
            reply.body.contains("did not arrive completely in time"),
            "{reply:?}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        drop(stream);
        let _ = dripping.join();
    }
    // Whoever says nothing at all is let go.
    let mut stream = bench.connect();
    let mut nothing = Vec::new();
    stream.read_to_end(&mut nothing).expect("the end");
    assert!(nothing.is_empty());
    assert!(bench.provider.got().is_empty());
    eventually("both are counted", || {
        bench.metric("marshal_route_refused_total", "reason=\"slow\"") > 1.5
    });
}

#[test]
fn of_a_thousand_connections_a_few_are_served_and_the_others_refused() {
    let bench = Bench::new("thousand", "connections = 8", Provider::start(message));
    let mut occupied: Vec<TcpStream> = (0..8).map(|_| bench.connect()).collect();
    eventually("eight are open", || {
        bench.metric("marshal_route_connections", "") > 7.5
    });
    let mut count = 0;
    let mut crowd = Vec::new();
    for _ in 0..992 {
        crowd.push(bench.connect());
    }
    eventually("all others are refused", || {
        bench.metric("marshal_route_refused_total", "reason=\"connections\"") > 991.5
    });
    assert!(bench.metric("marshal_route_connections", "") < 8.5);
    for stream in &mut crowd {
        let reply = Reply::read(stream);
        assert!(matches!(reply.status, 0 | 503), "{reply:?}");
        if reply.status == 503 {
            assert!(
                reply.body.contains("more than 8 open connections"),
                "{reply:?}"
            );
            count += 1;
        }
    }
    assert!(count >= 32, "{count} were told why");
    // Those that were there first still work, and places come back.
    occupied[0]
        .write_all(post("/v1/messages", "", BODY).as_bytes())
        .expect("sent");
    assert_eq!(Reply::read(&mut occupied[0]).status, 200);
    drop(occupied);
    eventually("the places come back", || {
        bench.post("/v1/messages", "", BODY).status == 200
    });
}

#[test]
fn when_the_child_is_gone_its_connections_end_and_nobody_listens() {
    let mut bench = Bench::new(
        "gone",
        "",
        Provider::start(|_, _, _| std::thread::sleep(Duration::from_secs(30))),
    );
    let mut stream = bench.connect();
    stream
        .write_all(post("/v1/messages", "", BODY).as_bytes())
        .expect("sent");
    eventually("the provider has it", || bench.provider.got().len() == 1);
    bench.end();
    let reply = Reply::read(&mut stream);
    assert_eq!(reply.status, 0, "{reply:?}");
    eventually("nobody listens", || {
        TcpStream::connect(bench.address).is_err()
    });
}
