//! Requests of somebody who wants more than the route gives: odd bytes, odd bodies, headers by other
//! names, more memory than one child's share.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::provider::{Provider, message};
use crate::routes::bench::{Bench, KEY, Reply, eventually, logs, post};

const BODY: &str = r#"{"model":"m"}"#;

/// Asserts that a request got the provider's answer, or a sentence of ours that says why not.
fn passed_or_told(bench: &Bench, request: &[u8]) -> bool {
    let before = bench.provider.got().len();
    let reply = bench.send(request);
    let shown = String::from_utf8_lossy(request).into_owned();
    let passed = reply.status == 200;
    let received = bench.provider.got().len() - before;
    assert_eq!(received, usize::from(passed), "{shown:?}\n{reply:?}");
    assert!(
        passed || reply.body.contains("\"message\":\"marshal: "),
        "refused without a word: {shown:?}\n{reply:?}"
    );
    passed
}

#[test]
fn every_byte_in_every_place_passes_or_is_refused_with_a_sentence() {
    let bench = Bench::new("bytes", "", Provider::start(message));
    let places: [(&str, &str); 5] = [
        ("G", "ET /v1/models/x HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET /v1/models/x", "y HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET /v1/models/x?beta=x", "y HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET /v1/models/x HTTP/1.1\r\nHost: a\r\nX", "y: a\r\n\r\n"),
        ("GET /v1/models/x HTTP/1.1\r\nHost: a\r\nX: a", "b\r\n\r\n"),
    ];
    let mut passed = [0; 5];
    for (at, (before, after)) in places.iter().enumerate() {
        for byte in 0..=u8::MAX {
            let request = [before.as_bytes(), &[byte], after.as_bytes()].concat();
            passed[at] += usize::from(passed_or_told(&bench, &request));
        }
    }
    // Of a method none but the allowed one; of paths, queries and headers some.
    assert_eq!(passed[0], 0, "{passed:?}");
    assert!(passed[1..].iter().all(|passed| *passed > 60), "{passed:?}");
    for got in bench.provider.got() {
        let head = &got.head;
        assert!(head.starts_with("GET /v1/models/x"), "{head:?}");
        assert_eq!(head.matches(KEY).count(), 1, "{head:?}");
        assert!(
            head.bytes()
                .all(|byte| byte >= b' ' || matches!(byte, b'\r' | b'\n' | b'\t')),
            "{head:?}"
        );
    }
}

#[test]
fn bodies_in_other_forms_than_plain_json_are_refused() {
    let bench = Bench::new("forms", "", Provider::start(message));
    let typed = |kind: &str, body: &[u8]| {
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let tools = r#"{"tools":[{"type":"web_search"}]}"#;
    let multipart =
        format!("--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{tools}\r\n--b--\r\n");
    bench.refuses(
        typed("multipart/form-data; boundary=b", multipart.as_bytes()),
        415,
        "body",
    );
    bench.refuses(
        typed("application/x-www-form-urlencoded", b"tools=web_search"),
        415,
        "body",
    );
    bench.refuses(
        typed("application/json; charset=utf-16", tools.as_bytes()),
        415,
        "body",
    );
    let wide: Vec<u8> = tools.bytes().flat_map(|byte| [byte, 0]).collect();
    bench.refuses(typed("application/json", &wide), 400, "body");
    let marked: Vec<u8> = [&[0xff, 0xfe][..], &wide].concat();
    bench.refuses(typed("application/json", &marked), 400, "body");
    let marked = [b"\xef\xbb\xbf", tools.as_bytes()].concat();
    bench.refuses(typed("application/json", &marked), 400, "body");
    // A method without a body of its own is no way around.
    let get = format!(
        "GET /v1/models/x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{tools}",
        tools.len()
    );
    bench.refuses(get, 403, "server_tool");
    // One that says that it is compressed, by whatever name, is never looked into wrongly.
    for encoding in ["gzip", "br", "identity, gzip", "zstd", "x-gzip"] {
        let header = format!("Content-Encoding: {encoding}\r\n");
        bench.refuses(post("/v1/messages", &header, BODY), 415, "encoding");
    }
    let output = logs();
    assert!(!output.contains("web_search"), "a body was logged");
}

#[test]
fn chunk_extensions_and_trailers_do_not_pass() {
    let bench = Bench::new("chunks", "", Provider::start(message));
    let chunked = |body: &str| {
        format!(
            "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTrailer: x-api-key\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        )
    };
    let good = chunked(
        "5;ext=\"smuggled\"\r\n{\"a\":\r\n2;smuggled\r\n1}\r\n0;x\r\nX-Api-Key: smuggled\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(passed_or_told(&bench, good.as_bytes()));
    let got = &bench.provider.got()[0];
    assert_eq!(got.body, "{\"a\":1}");
    let head = got.head.to_ascii_lowercase();
    assert!(
        !head.contains("smuggled") && !head.contains("trailer"),
        "{head}"
    );
    assert!(head.contains("content-length: 7\r\n"), "{head}");
    for bad in [
        "5\n{\"a\":\r\n0\r\n\r\n",
        "-5\r\n{\"a\":\r\n0\r\n\r\n",
        "0x7\r\n{\"a\":1}\r\n0\r\n\r\n",
        "7 7\r\n{\"a\":1}\r\n0\r\n\r\n",
        "10000000000000007\r\n{\"a\":1}\r\n0\r\n\r\n",
        "7\r\n{\"a\":1}xx0\r\n\r\n",
    ] {
        bench.refuses(chunked(bad), 400, "smuggling");
    }
    // Extensions and trailers without end are cut off, too.
    let extension = format!("7;{}\r\n{{\"a\":1}}\r\n0\r\n\r\n", "x".repeat(200_000));
    bench.refuses(chunked(&extension), 400, "smuggling");
    let trailers = "X: y\r\n".repeat(100_000);
    bench.refuses(
        chunked(&format!("7\r\n{{\"a\":1}}\r\n0\r\n{trailers}\r\n")),
        400,
        "smuggling",
    );
}

#[test]
fn other_versions_and_manners_of_http_are_understood_or_refused() {
    let bench = Bench::new("manners", "", Provider::start(message));
    // Of the old version, without a host: the upstream gets its own.
    assert!(passed_or_told(
        &bench,
        b"GET /v1/models/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    ));
    let head = bench.provider.got()[0].head.to_ascii_lowercase();
    assert!(
        head.contains(" http/1.1\r\n")
            && head.contains(&format!("host: {}", bench.provider.address)),
        "{head}"
    );
    for request in [
        "GET /v1/models/x HTTP/0.9\r\nHost: a\r\n\r\n",
        "GET /v1/models/x HTTP/2.0\r\nHost: a\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /v1/models/x\r\n\r\n",
        "\r\nGET /v1/models/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://127.0.0.1/v1/models/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /v1/models/x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET /v1/models/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ] {
        bench.refuses(request, 400, "smuggling");
    }
    for request in [
        "GET //evil.example/v1/models/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /v1/models/%2E%2E HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /v1/models/./x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /v1/models/x/ HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        bench.refuses(request, 403, "path");
    }
    // Whoever waits for a word before the body gets it.
    let mut stream = bench.connect();
    let request = post("/v1/messages", "Expect: 100-continue\r\n", BODY);
    let (head, body) = request.split_at(request.len() - BODY.len());
    stream.write_all(head.as_bytes()).expect("sent");
    let mut word = [0; 25];
    stream.read_exact(&mut word).expect("a word");
    assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).expect("sent");
    assert_eq!(Reply::read(&mut stream).status, 200);
    let last = bench.provider.got().len() - 1;
    let head = bench.provider.got()[last].head.to_ascii_lowercase();
    assert!(!head.contains("expect"), "{head}");
}

#[test]
fn credentials_and_disguises_by_other_names_do_not_pass() {
    let bench = Bench::new("names", "", Provider::start(message));
    let smuggled = "X_Api_Key: smuggled\r\nx-API-key: smuggled\r\nAuthorization: Basic smuggled\r\nHelicone-Target-Url: https://smuggled\r\nX-Portkey-Custom-Host: https://smuggled\r\nX_HTTP_Method_Override: smuggled\r\nContent_Length: smuggled\r\nTransfer_Encoding: smuggled\r\nX-Original-URL: /smuggled\r\nX-Envoy-Original-Path: /smuggled\r\nX-Forwarded_Host: smuggled\r\nsession_id: kept\r\nX-Stainless-Lang: kept\r\nConnection: close, X-Api-Key, anthropic-version\r\nanthropic-version: smuggled\r\n";
    let reply = bench.post("/v1/messages", smuggled, BODY);
    assert_eq!(reply.status, 200, "{reply:?}");
    let head = bench.provider.got()[0].head.to_ascii_lowercase();
    assert!(!head.contains("smuggled"), "{head}");
    assert!(head.contains("session_id: kept\r\n"), "{head}");
    assert!(head.contains("x-stainless-lang: kept\r\n"), "{head}");
    // Nobody inside can take the real key away again.
    assert_eq!(head.matches(&format!("x-api-key: {KEY}")).count(), 1);
}

#[test]
fn one_child_does_not_take_the_memory_of_all_others() {
    let greedy = Bench::new(
        "greedy",
        "connections = 16\nbody_max = \"32M\"",
        Provider::start(message),
    );
    let other = Bench::new("modest", "", Provider::start(message));
    let piece = vec![b' '; 1 << 20];
    let mut occupied = Vec::new();
    // 8 x 31 MiB, none of them whole.
    for _ in 0..8 {
        let mut stream = greedy.connect();
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            32 << 20
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
            .set_write_timeout(Some(Duration::from_secs(5)))
            .expect("a timeout");
        for _ in 0..31 {
            if stream.write_all(&piece).is_err() {
                break;
            }
        }
        occupied.push(stream);
    }
    eventually("its share is used up", || {
        greedy.metric("marshal_route_refused_total", "reason=\"bodies_held\"") > 2.5
    });
    let reply = other.post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 200, "{reply:?}");
    drop(occupied);
    eventually("its share comes back", || {
        greedy.post("/v1/messages", "", BODY).status == 200
    });
}

#[test]
fn an_upstream_that_is_not_found_or_not_understood_is_told_and_bounded() {
    // No such name.
    let bench = Bench::to(
        "unknown",
        "https://no-such-host.invalid",
        "timeouts.answer = \"5s\"",
        None,
        Provider::start(message),
    );
    let reply = bench.post("/v1/messages", "", BODY);
    assert!(matches!(reply.status, 502 | 504), "{reply:?}");
    assert!(
        reply.body.contains("the upstream of the route own"),
        "{reply:?}"
    );
    // It answers TLS with plain words.
    let plain = Provider::start(message);
    let url = format!("https://{}", plain.address);
    let bench = Bench::to("plain-tls", &url, "timeouts.answer = \"2s\"", None, plain);
    let reply = bench.post("/v1/messages", "", BODY);
    assert!(matches!(reply.status, 502 | 504), "{reply:?}");
    assert!(bench.provider.got().is_empty(), "the key was sent in plain");
    // It accepts, and says nothing to the handshake.
    let mute = Provider::wrapped(message, |stream| {
        std::thread::sleep(Duration::from_secs(30));
        drop(stream);
        None
    });
    let url = format!("https://{}", mute.address);
    let bench = Bench::to("mute-tls", &url, "timeouts.answer = \"400ms\"", None, mute);
    let reply = bench.post("/v1/messages", "", BODY);
    assert_eq!(reply.status, 504, "{reply:?}");
    assert!(reply.body.contains("did not answer in time"), "{reply:?}");
    assert!(!logs().contains(KEY));
}
