//! The head of a request from a sandbox: parsed strictly, so that no two servers read it
//! differently, and checked against the route's allow list.

use super::headers::is_credential;
use super::refusal::Refusal;
use marshal_config::{Route, is_plain_path};
use marshal_model::limits::ROUTE_HEADERS;
use marshal_telemetry::labels::RouteRefusal as Why;
use marshal_wire::http;

/// Checks the bytes of a request head, up to and including the empty line at its end. The HTTP
/// library still parses an accepted head; this refuses what libraries tolerate.
///
/// # Errors
/// A [`Refusal`] that says what is malformed.
pub fn check_head(head: &[u8]) -> Result<(), Refusal> {
    let smuggled = |what: &str| Refusal::new(Why::Smuggling, 400, what);
    let text = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or_else(|| smuggled("the request head is incomplete"))?;
    if text.contains(&0) {
        return Err(smuggled("the request head contains a NUL byte"));
    }
    let mut lines = text.split(|byte| *byte == b'\n');
    let mut next = || -> Option<Result<&[u8], Refusal>> {
        let line = lines.next()?;
        Some(Ok(line))
    };
    let first = next().unwrap_or(Ok(b""))?;
    let mut all = vec![first];
    while let Some(line) = next() {
        all.push(line?);
    }
    let last = all.len() - 1;
    let mut clean = Vec::with_capacity(all.len());
    for (at, line) in all.into_iter().enumerate() {
        // The line ending of the last line was already stripped.
        let line = match (line.strip_suffix(b"\r"), at == last) {
            (Some(line), false) => line,
            (None, true) => line,
            _ => return Err(smuggled("a line ends with a bare line feed")),
        };
        if line.contains(&b'\r') {
            return Err(smuggled("a line contains a bare carriage return"));
        }
        clean.push(line);
    }
    let (request, headers) = clean
        .split_first()
        .ok_or_else(|| smuggled("the request head is empty"))?;
    let is_old = check_request_line(request)?;
    check_headers(headers, is_old)
}

/// `true` for HTTP/1.0.
fn check_request_line(line: &[u8]) -> Result<bool, Refusal> {
    let smuggled = |what: &str| Refusal::new(Why::Smuggling, 400, what);
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(smuggled(
            "the request line is not a method, a path and a version",
        ));
    };
    if !http::is_token(method) {
        return Err(smuggled("the method is not a valid token"));
    }
    if method == b"CONNECT" || target.first() != Some(&b'/') {
        let what = "the target must be a path of this route: no absolute URL, no CONNECT, no *";
        return Err(smuggled(what));
    }
    let is_of_urls = |byte: &u8| (b'!'..=b'~').contains(byte) && !b"#\"<>\\^`{|}".contains(byte);
    if !target.iter().all(is_of_urls) {
        return Err(smuggled("the path contains an invalid character"));
    }
    match version {
        b"HTTP/1.1" => Ok(false),
        b"HTTP/1.0" => Ok(true),
        _ => Err(smuggled("the version is not HTTP/1.1")),
    }
}

fn check_headers(lines: &[&[u8]], is_old: bool) -> Result<(), Refusal> {
    let smuggled = |what: &str| Err(Refusal::new(Why::Smuggling, 400, what));
    if lines.len() > ROUTE_HEADERS {
        let what = format!("the request has more than {ROUTE_HEADERS} headers");
        return Err(Refusal::new(Why::Head, 431, what));
    }
    let (mut hosts, mut lengths, mut encodings) = (0, 0, 0);
    for line in lines {
        let (name, value) = match http::parse_header(line) {
            Ok(header) => header,
            Err(error) => return smuggled(&error.to_string()),
        };
        match name.to_ascii_lowercase().as_slice() {
            b"host" => hosts += 1,
            b"content-length" => {
                lengths += 1;
                if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
                    return smuggled("the header Content-Length is not a number");
                }
            }
            b"transfer-encoding" => {
                encodings += 1;
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return smuggled("the header Transfer-Encoding is not \"chunked\" alone");
                }
            }
            b"upgrade" => {
                return smuggled("this route supports only HTTP/1.1: no Upgrade");
            }
            b"expect" if !value.eq_ignore_ascii_case(b"100-continue") => {
                return smuggled("the header Expect is not \"100-continue\"");
            }
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && !is_old) {
        return smuggled("the request has no header Host, or more than one");
    }
    if lengths > 1 || encodings > 1 || lengths + encodings > 1 || (encodings > 0 && is_old) {
        return smuggled("the request has its length twice, or a Transfer-Encoding in HTTP/1.0");
    }
    Ok(())
}

/// A request that the allow list matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedRequest {
    /// Path and query for the upstream, without its base path.
    pub target: String,
    /// Index of the matching `allow` line; the request's own path is untrusted text.
    pub allow_index: usize,
}

/// Query parameters that carry keys: always removed.
const KEY_PARAMETERS: [&str; 6] = [
    "key",
    "api_key",
    "apikey",
    "api-key",
    "access_token",
    "token",
];

/// Matches a method and a target (path and query) against the allow list.
///
/// # Errors
/// A [`Refusal`] that says what is not allowed.
pub fn match_allow_list(
    route: &Route,
    method: &str,
    path: &str,
    query: Option<&str>,
) -> Result<AllowedRequest, Refusal> {
    if !is_plain_path(path) {
        let what =
            "the path is not in normal form: use no \"%\", \"..\", \".\", \";\" or empty segment";
        return Err(Refusal::new(Why::Path, 403, what));
    }
    let line = route
        .allow
        .iter()
        .position(|line| line.matches(method, path));
    let Some(line) = line else {
        let lines: Vec<String> = route.allow.iter().map(ToString::to_string).collect();
        let what = format!(
            "{method} {path} is not allowed by the route {}: it allows {}",
            route.name,
            lines.join(", ")
        );
        return Err(Refusal::new(Why::NotAllowed, 403, what));
    };
    let query = filter_query(route, query.unwrap_or_default())?;
    let target = if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    };
    Ok(AllowedRequest {
        target,
        allow_index: line,
    })
}

fn filter_query(route: &Route, query: &str) -> Result<String, Refusal> {
    let refuse = |what: String| Err(Refusal::new(Why::Query, 403, what));
    let mut passed: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for piece in query.split('&').filter(|piece| !piece.is_empty()) {
        let name = piece.split('=').next().unwrap_or(piece);
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'$' | b'.' | b'_' | b'-');
        if name.is_empty() || !name.bytes().all(is_plain) || piece.contains(';') {
            return refuse("a query parameter is not allowed: use only letters, digits and \"$._-\" in its name, and no \";\"".to_owned());
        }
        let lower = name.to_ascii_lowercase();
        if KEY_PARAMETERS.contains(&lower.as_str()) {
            continue;
        }
        if !route.query.iter().any(|known| known == name) {
            if is_credential(&lower) {
                continue;
            }
            let what = format!(
                "the query parameter {name} is not allowed by the route {}: it allows {}",
                route.name,
                if route.query.is_empty() {
                    "none".to_owned()
                } else {
                    route.query.join(", ")
                }
            );
            return refuse(what);
        }
        if names.contains(&name) {
            return refuse(format!("the query parameter {name} appears twice"));
        }
        names.push(name);
        passed.push(piece);
    }
    Ok(passed.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::{Config, Origin};

    fn route(name: &str) -> Route {
        let text = "[pool.demo]\nagent = \"script\"\n";
        let config = Config::parse(text, &Origin::built_in("/".into())).expect("good");
        config.routes[name].clone()
    }

    fn refused(head: &str) -> String {
        match check_head(head.as_bytes()) {
            Ok(()) => panic!("passed: {head:?}"),
            Err(refusal) => refusal.message,
        }
    }

    #[test]
    fn a_plain_head_passes() {
        for head in [
            "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
            "POST /v1/messages?beta=true HTTP/1.1\r\nhost:a\r\ntransfer-encoding: Chunked\r\nx: \r\n\r\n",
            "GET /v1/models HTTP/1.0\r\n\r\n",
            "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(check_head(head.as_bytes()), Ok(()), "{head:?}");
        }
    }

    #[test]
    fn what_two_servers_could_read_differently_is_refused() {
        let with =
            |headers: &str| refused(&format!("POST /x HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n"));
        assert!(with("Content-Length: 3\r\nTransfer-Encoding: chunked").contains("length twice"));
        assert!(with("Transfer-Encoding: chunked\r\nContent-Length: 3").contains("length twice"));
        assert!(with("Content-Length: 3\r\nContent-Length: 3").contains("length twice"));
        assert!(
            with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")
                .contains("length twice")
        );
        assert!(with("Transfer-Encoding: chunked, identity").contains("not \"chunked\""));
        assert!(with("Transfer-Encoding: xchunked").contains("not \"chunked\""));
        assert!(with("Transfer-Encoding : chunked").contains("name of a header"));
        assert!(with("Content-Length: +3").contains("not a number"));
        assert!(with("Content-Length: 3, 3").contains("not a number"));
        assert!(with("Host: b").contains("Host"));
        assert!(with("X: a\r\n b").contains("no colon"));
        assert!(with("X: a\r\n b: c").contains("spans two lines"));
        assert!(with("X: a\nY: b").contains("bare line feed"));
        assert!(with("X: a\rY: b").contains("bare carriage return"));
        assert!(with("X: a\0b").contains("NUL"));
        for bad in [
            "X: a\u{1}b",
            "X: a\u{7f}",
            "X: \u{b}chunked",
            "X: a\u{1b}[2J",
        ] {
            assert!(with(bad).contains("control character"), "{bad:?}");
        }
        assert!(with("no colon").contains("no colon"));
        assert!(with("Connection: Upgrade\r\nUpgrade: websocket").contains("no Upgrade"));
        assert!(with("Expect: x").contains("Expect"));
        assert!(with(&vec!["a: b"; 200].join("\r\n")).contains("more than 128"));
        let line = |line: &str| refused(&format!("{line}\r\nHost: a\r\n\r\n"));
        for bad in [
            "CONNECT api.example.com:443 HTTP/1.1",
            "GET http://api.example.com/v1/models HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "GET api.example.com HTTP/1.1",
        ] {
            assert!(line(bad).contains("no absolute URL"), "{bad}");
        }
        for bad in [
            "GET /x",
            "GET  /x HTTP/1.1",
            "GET /x HTTP/1.1 ",
            "GET\t/x HTTP/1.1",
            "G ET /x HTTP/1.1",
            "GET /x HTTP/2.0",
            "GET /x HTTP/1.1x",
            "GE(T /x HTTP/1.1",
            " /x HTTP/1.1",
            "GET /\u{e9} HTTP/1.1",
            "GET /x#y HTTP/1.1",
            "GET /x\"y HTTP/1.1",
            "GET /x\\y HTTP/1.1",
            "GET /x?a={y HTTP/1.1",
            "",
            "PRI * HTTP/2.0",
        ] {
            line(bad);
        }
        assert!(refused("GET /x HTTP/1.1\r\n\r\n").contains("Host"));
        assert!(
            refused("GET /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")
                .contains("length twice")
        );
        refused("GET /x HTTP/1.1\nHost: a\n\n");
        refused("");
        refused("\r\n\r\n");
    }

    #[test]
    fn only_the_listed_methods_and_paths_pass() {
        let anthropic = route("anthropic");
        let ask = |method: &str, path: &str, query| {
            match_allow_list(&anthropic, method, path, query).map(|matched| matched.target)
        };
        assert_eq!(
            ask("POST", "/v1/messages", None).as_deref(),
            Ok("/v1/messages")
        );
        assert_eq!(
            ask("POST", "/v1/messages", Some("beta=true")).as_deref(),
            Ok("/v1/messages?beta=true")
        );
        let why = |method: &str, path: &str, query| {
            ask(method, path, query).map_err(|refusal| refusal.reason)
        };
        assert_eq!(why("GET", "/v1/messages", None), Err(Some(Why::NotAllowed)));
        assert_eq!(why("POST", "/v1/files", None), Err(Some(Why::NotAllowed)));
        assert_eq!(
            why("DELETE", "/v1/models/x", None),
            Err(Some(Why::NotAllowed))
        );
        for path in [
            "/v1/../v1/messages",
            "/v1//messages",
            "/v1/%6dessages",
            "/v1/messages%2f",
            "/v1/messages/..",
            "/v1/messages;a=b",
            "/",
            "",
        ] {
            assert_eq!(why("POST", path, None), Err(Some(Why::Path)), "{path}");
        }
        let matched = match_allow_list(&anthropic, "POST", "/v1/files", None)
            .map_err(|refusal| refusal.to_json());
        assert!(
            matched
                .expect_err("refused")
                .contains("it allows POST /v1/messages, POST /v1/messages/count_tokens")
        );
    }

    #[test]
    fn keys_in_a_query_are_removed_and_unknown_parameters_refused() {
        let gemini = route("gemini");
        let path = "/v1beta/models/m:streamGenerateContent";
        let ask = |query: &str| {
            match_allow_list(&gemini, "POST", path, Some(query))
                .map(|matched| matched.target[path.len()..].to_owned())
        };
        for query in [
            "alt=sse",
            "key=abc&alt=sse",
            "alt=sse&KEY=abc",
            "alt=sse&api_key=x&&access_token=y",
            "x-my-token=z&alt=sse",
        ] {
            assert_eq!(ask(query).as_deref(), Ok("?alt=sse"), "{query}");
        }
        assert_eq!(ask("key=abc").as_deref(), Ok(""));
        assert_eq!(ask("pageToken=a%2Fb").as_deref(), Ok("?pageToken=a%2Fb"));
        for query in [
            "upload=1",
            "%6bey=abc",
            "k+y=1",
            "alt=sse;key=x",
            "alt=a&alt=b",
            "=x",
            "alt[]=x",
            "$fields=x",
        ] {
            let refused = ask(query).map_err(|refusal| refusal.reason);
            assert_eq!(refused, Err(Some(Why::Query)), "{query}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_head_panics(head in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = check_head(&head);
        }
    }
}
