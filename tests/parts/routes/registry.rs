//! Registries as an agent that wants more than packages meets them, and as a hostile upstream
//! answers.

use marshal_model::EgressResult;

use crate::provider::{Got, Provider, whole};
use crate::routes::bench::{Bench, KEY, Reply, eventually, logs};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: registry\r\n\r\n")
}

/// Answers each path as `answer` says: status, headers, body.
fn registry(
    answer: impl Fn(&str) -> (&'static str, String, String) + Send + Sync + 'static,
) -> Provider {
    Provider::start(move |_, got: &Got, to| {
        let path = got.head.split(' ').nth(1).unwrap_or_default();
        let (status, headers, body) = answer(path);
        let _ = to.write_all(whole(status, &headers, &body).as_bytes());
    })
}

fn package(_: &str) -> (&'static str, String, String) {
    let headers =
        "content-type: application/json\r\netag: \"e\"\r\ncontent-digest: d\r\nset-cookie: a=b\r\n";
    ("200 OK", headers.to_owned(), "{\"name\":\"a\"}".to_owned())
}

#[test]
fn a_package_is_read_with_the_key_and_without_what_came_from_inside() {
    let bench = Bench::registry("registry-read", "npm", "", registry(package));
    let smuggled = "Authorization: Bearer smuggled\r\nCookie: smuggled\r\nNpm-Otp: smuggled\r\nX-Forwarded-Host: smuggled\r\nRange: bytes=0-1\r\nAccept: application/json\r\nIf-None-Match: \"x\"\r\n";
    let request = format!("GET /@scope%2fname HTTP/1.1\r\nHost: a\r\n{smuggled}\r\n");
    let reply = bench.send(request);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(
        reply.is_whole && reply.body == "{\"name\":\"a\"}",
        "{reply:?}"
    );
    let head = reply.head.to_ascii_lowercase();
    assert!(head.contains("etag: \"e\""), "{head}");
    assert!(
        !head.contains("set-cookie") && !head.contains("content-digest"),
        "{head}"
    );
    let got = bench.provider.got()[0].head.to_ascii_lowercase();
    assert!(got.starts_with("get /@scope%2fname http/1.1\r\n"), "{got}");
    assert!(
        got.contains(&format!("authorization: bearer {KEY}\r\n")),
        "{got}"
    );
    assert!(
        got.contains("accept: application/json\r\n") && got.contains("if-none-match: \"x\"\r\n"),
        "{got}"
    );
    assert!(
        !got.contains("smuggled") && !got.contains("range:"),
        "{got}"
    );
    eventually("the answer is counted", || {
        bench.metric("marshal_route_requests_total", "code=\"2xx\"") > 0.0
    });
    assert!(bench.metric("marshal_route_tokens_total", "type=\"output\"") < 0.5);
    assert_eq!(
        bench.watch.status().successes,
        0,
        "it is no answer of a model"
    );
    assert!(!logs().contains(KEY));
}

#[test]
fn head_tells_the_length_and_has_no_body() {
    let provider = Provider::start(|_, _, to| {
        let _ =
            to.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4711\r\nconnection: close\r\n\r\n");
    });
    let bench = Bench::registry("registry-head", "pypi", "", provider);
    let reply = bench.send("HEAD /x/a.whl HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(
        reply
            .head
            .to_ascii_lowercase()
            .contains("content-length: 4711"),
        "{reply:?}"
    );
    assert!(reply.body.is_empty(), "{reply:?}");
}

#[test]
fn publishing_accounts_and_anything_but_packages_are_refused() {
    let length = |line: &str, body: &str| {
        format!(
            "{line} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let npm = Bench::registry("registry-npm", "npm", "", registry(package));
    // As `npm publish`, `unpublish`, `deprecate`, `login` and `audit` ask.
    npm.refuses(
        length("PUT /is-odd", "{\"_attachments\":{}}"),
        405,
        "not_allowed",
    );
    npm.refuses(length("PUT /@scope%2fname", "{}"), 405, "not_allowed");
    npm.refuses(length("DELETE /is-odd/-rev/1", ""), 405, "not_allowed");
    npm.refuses(
        length("PUT /-/user/org.couchdb.user:me", "{}"),
        405,
        "not_allowed",
    );
    npm.refuses(length("POST /-/v1/login", "{}"), 405, "not_allowed");
    npm.refuses(
        length("POST /-/npm/v1/security/audits/quick", "{}"),
        405,
        "not_allowed",
    );
    npm.refuses(length("PATCH /is-odd", "{}"), 405, "not_allowed");
    npm.refuses(length("BREW /is-odd", ""), 405, "not_allowed");
    npm.refuses(length("GET /is-odd", "{}"), 413, "body");
    let chunked =
        "GET /is-odd HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    npm.refuses(chunked, 413, "body");
    npm.refuses(get("/-/whoami"), 403, "not_allowed");
    npm.refuses(get("/-/npm/v1/tokens"), 403, "not_allowed");
    npm.refuses(get("/is-odd?write=true"), 403, "query");
    npm.refuses(get("/a/%2e%2e/b"), 403, "path");
    npm.refuses(get("/@a%2f%2e%2e%2fb"), 403, "path");
    npm.refuses(get("http://registry.npmjs.org/is-odd"), 400, "smuggling");
    npm.refuses(
        "CONNECT registry.npmjs.org:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
        "smuggling",
    );
    let told = npm.send(length("PUT /is-odd", "{}"));
    assert!(
        told.body.contains("the route own only reads packages"),
        "{told:?}"
    );
    assert!(told.body.contains("publishing is not possible"), "{told:?}");
    // As `cargo publish`, `yank`, `owner` and `login` ask.
    let crates = Bench::registry("registry-crates", "crates", "", registry(package));
    crates.refuses(length("PUT /api/v1/crates/new", "xx"), 405, "not_allowed");
    crates.refuses(
        length("DELETE /api/v1/crates/a/1.0.0/yank", ""),
        405,
        "not_allowed",
    );
    crates.refuses(get("/api/v1/me"), 403, "not_allowed");
    // As twine asks.
    let pypi = Bench::registry("registry-pypi", "pypi", "", registry(package));
    pypi.refuses(length("POST /legacy/", "--x\r\n"), 405, "not_allowed");
    pypi.refuses(length("POST /simple/", "--x\r\n"), 405, "not_allowed");
    let debian = Bench::registry("registry-debian", "debian", "", registry(package));
    debian.refuses(
        length("PUT /debian/pool/main/a.deb", "x"),
        405,
        "not_allowed",
    );
    debian.refuses(get("/debian/incoming/a.deb"), 403, "not_allowed");
}

#[test]
fn a_redirect_is_followed_outside_to_a_host_of_the_route_without_the_key() {
    let files = registry(|_| ("200 OK", String::new(), "the file".to_owned()));
    let place = files.address;
    let upstream = registry(move |_| {
        let location = format!("location: http://{place}/x?signed=1\r\n");
        ("302 Found", location, String::new())
    });
    let hosts = format!("hosts = [\"{place}\"]");
    let bench = Bench::registry("registry-redirect", "npm", &hosts, upstream);
    let reply = bench.send(get("/a/-/a-1.tgz"));
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (200, "the file"),
        "{reply:?}"
    );
    assert!(
        !reply.head.to_ascii_lowercase().contains("location"),
        "{reply:?}"
    );
    let first = &bench.provider.got()[0].head;
    assert!(first.contains(KEY), "{first}");
    let second = &files.got()[0].head;
    assert!(
        second.starts_with("GET /x?signed=1 HTTP/1.1\r\n"),
        "{second}"
    );
    assert!(
        !second.contains(KEY) && !second.to_ascii_lowercase().contains("authorization"),
        "{second}"
    );
    // The same host by a path of the route: no key either.
    let reply = bench.send(get(&format!("/-/host/{place}/a-1.tgz")));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(!files.got()[1].head.contains(KEY));
}

#[test]
fn a_host_that_the_route_does_not_name_is_refused_by_name_and_recorded() {
    let evil = registry(package);
    let place = evil.address;
    let upstream = registry(move |path| {
        let to = if path.starts_with("/a") {
            format!("http://{place}/x")
        } else {
            "https://evil.example/x".to_owned()
        };
        (
            "307 Temporary",
            format!("location: {to}\r\n"),
            String::new(),
        )
    });
    let bench = Bench::registry("registry-host", "npm", "", upstream);
    for (path, host) in [
        ("/a", place.to_string()),
        ("/b", "evil.example".to_owned()),
        ("/-/host/other.example/c.tgz", "other.example".to_owned()),
    ] {
        let reply = bench.send(get(path));
        assert_eq!(reply.status, 403, "{reply:?}");
        assert!(reply.body.contains(&host), "{host}: {reply:?}");
        assert!(reply.body.contains("route.own.hosts"), "{reply:?}");
    }
    assert!(evil.got().is_empty(), "it was followed");
    eventually("the hosts are recorded", || {
        bench.denied.lock().expect("no panic").len() == 3
    });
    let denied = bench.denied.lock().expect("no panic").clone();
    for (host, port) in [
        ("127.0.0.1", place.port()),
        ("evil.example", 443),
        ("other.example", 443),
    ] {
        let is_it = |record: &&marshal_proxy::egress_proxy::EgressRecord| {
            record.destination == Some((host.to_owned(), port))
        };
        let record = denied.iter().find(is_it).expect(host);
        assert_eq!(record.result, EgressResult::NotAllowed);
    }
    assert!(bench.metric("marshal_route_refused_total", "reason=\"host\"") > 2.5);
}

#[test]
fn a_redirect_in_circles_or_to_nowhere_ends() {
    let upstream = registry(|path| {
        let to = match path {
            "/none" => String::new(),
            "/plain" => "location: http://registry.npmjs.org/x\r\n".to_owned(),
            _ => "location: /again\r\n".to_owned(),
        };
        ("301 Moved", to, String::new())
    });
    let bench = Bench::registry("registry-loop", "npm", "", upstream);
    let reply = bench.send(get("/loop"));
    assert_eq!(reply.status, 502, "{reply:?}");
    assert!(reply.body.contains("more than 5 redirects"), "{reply:?}");
    assert_eq!(bench.provider.got().len(), 6);
    for path in ["/none", "/plain"] {
        let reply = bench.send(get(path));
        assert!(matches!(reply.status, 502 | 403), "{reply:?}");
    }
}

#[test]
fn pages_of_a_hostile_registry_lead_nowhere_else() {
    let upstream = registry(|path| {
        let body = match path {
            "/config.json" => "{\"dl\":\"https://evil.example/dl\",\"api\":\"https://evil.example\",\"auth-required\":true}".to_owned(),
            _ => "{\"versions\":{\"1\":{\"dist\":{\"tarball\":\"https://evil.example/a-1.tgz\"}}}}".to_owned(),
        };
        (
            "200 OK",
            "content-type: application/json\r\ncontent-digest: x\r\n".to_owned(),
            body,
        )
    });
    let npm = Bench::registry("registry-page", "npm", "port = 9000", upstream.clone());
    let reply = npm.send(get("/a"));
    assert!(reply.is_whole, "{reply:?}");
    assert!(
        reply
            .body
            .contains("\"http://127.0.0.1:9000/-/host/evil.example/a-1.tgz\""),
        "{reply:?}"
    );
    assert!(!reply.head.contains("digest"), "{reply:?}");
    let reply = npm.send(get("/-/host/evil.example/a-1.tgz"));
    assert_eq!(reply.status, 403, "{reply:?}");
    let crates = Bench::registry("registry-dl", "crates", "port = 9000", upstream);
    let reply = crates.send(get("/config.json"));
    assert_eq!(
        reply.body, "{\"dl\":\"http://127.0.0.1:9000/-/host/evil.example/dl\"}",
        "{reply:?}"
    );
}

#[test]
fn what_is_too_long_encoded_or_tells_the_key_is_cut_off() {
    let long = Provider::start(|_, got: &Got, to| {
        let answer = if got.head.contains("/config.json") {
            let body = format!(
                "{{\"dl\":\"https://a.example\",\"x\":\"{}\"}}",
                "y".repeat(70 << 10)
            );
            whole("200 OK", "", &body)
        } else if got.head.contains("/gzip") {
            whole("200 OK", "content-encoding: gzip\r\n", "xx")
        } else if got.head.contains("/key") {
            whole("200 OK", "", &format!("{{\"x\":\"{KEY}\"}}"))
        } else {
            "HTTP/1.1 200 OK\r\ncontent-length: 300000000\r\n\r\n{".to_owned()
        };
        let _ = to.write_all(answer.as_bytes());
    });
    let npm = Bench::registry("registry-long", "npm", "", long.clone());
    let reply = npm.send(get("/long"));
    assert_eq!(reply.status, 502, "{reply:?}");
    assert!(reply.body.contains("is longer than"), "{reply:?}");
    let reply = npm.send(get("/gzip"));
    assert_eq!(reply.status, 502, "{reply:?}");
    let reply = npm.send(get("/key"));
    assert!(!reply.is_whole && !reply.body.contains(KEY), "{reply:?}");
    eventually("the key in the answer is counted", || {
        npm.metric("marshal_route_refused_total", "reason=\"key_echo\"") > 0.0
    });
    let crates = Bench::registry("registry-config", "crates", "", long);
    let reply: Reply = crates.send(get("/config.json"));
    assert!(
        !reply.is_whole && !reply.body.contains("a.example"),
        "{reply:?}"
    );
}
