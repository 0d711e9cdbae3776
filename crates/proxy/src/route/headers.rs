//! Which request headers are forwarded to the upstream: no credential, no hop-by-hop header, and
//! none that changes the request.

use hyper::header::{self, HeaderMap, HeaderName};

use marshal_config::Route;

/// Hop-by-hop headers, headers that the proxy sets itself, and `range`: a part of a response could not
/// be searched for the key.
const DROPPED_HEADERS: &[HeaderName] = &[
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::ACCEPT_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::VIA,
    header::FORWARDED,
    header::RANGE,
    header::MAX_FORWARDS,
];

/// Words in names of headers that override the checked method, path or host, configure a gateway,
/// or identify the caller: `x-http-method-override`, `x-original-url`, `helicone-target-url`. `alive`
/// and `settings` catch the hop-by-hop headers `keep-alive` and `http2-settings`.
const REWRITE_WORDS: &[&str] = &[
    "method",
    "override",
    "overwrite",
    "rewrite",
    "original",
    "url",
    "uri",
    "path",
    "host",
    "scheme",
    "port",
    "domain",
    "target",
    "upstream",
    "backend",
    "endpoint",
    "base",
    "forward",
    "forwarded",
    "fwd",
    "redirect",
    "proxy",
    "envoy",
    "config",
    "ip",
    "alive",
    "settings",
];

/// Parts of names that mark a header or parameter as a credential.
const CREDENTIALS: &[&str] = &[
    "auth",
    "key",
    "token",
    "secret",
    "cookie",
    "credential",
    "passw",
    "signature",
    "bearer",
    "jwt",
];

/// Names with such a part that are no credentials.
const NO_CREDENTIALS: &[&str] = &["idempotency-key", "x-idempotency-key"];

/// Whether a header or query parameter with this lower-case name may contain a credential.
#[must_use]
pub fn is_credential(name: &str) -> bool {
    !NO_CREDENTIALS.contains(&name) && CREDENTIALS.iter().any(|part| name.contains(part))
}

/// The headers to forward.
#[must_use]
pub fn filter_request_headers(headers: &HeaderMap, route: &Route) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).iter();
    let named: Vec<String> = named
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut passed = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let text = name.as_str();
        let is_dropped = is_not_for_upstream(text)
            || text == route.header
            || named.iter().any(|named| named == text);
        if !is_dropped {
            passed.append(name.clone(), value.clone());
        }
    }
    passed
}

/// Whether a header with this lower-case name is dropped. Many servers treat `_` as `-`.
fn is_not_for_upstream(name: &str) -> bool {
    let name = name.replace('_', "-");
    let is_listed = DROPPED_HEADERS
        .iter()
        .any(|dropped| dropped.as_str() == name);
    let has_rewrite_word = name.split('-').any(|word| REWRITE_WORDS.contains(&word));
    is_listed || has_rewrite_word || is_credential(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use marshal_config::{Config, Origin};

    #[test]
    fn no_credential_and_no_disguise_passes() {
        let text = "[pool.demo]\nagent = \"script\"\n";
        let config = Config::parse(text, &Origin::built_in("/".into())).expect("good");
        let mut headers = HeaderMap::new();
        for name in [
            "authorization",
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            "cookie",
            "proxy-authorization",
            "proxy-connection",
            "x-auth-token",
            "x-amz-security-token",
            "host",
            "connection",
            "te",
            "trailer",
            "upgrade",
            "x-forwarded-for",
            "x-forwarded-host",
            "forwarded",
            "via",
            "x-http-method-override",
            "x-original-url",
            "content-length",
            "transfer-encoding",
            "accept-encoding",
            "expect",
            "x-listed",
            "set-cookie",
            "x-client-secret",
            "x_api_key",
            "content_length",
            "transfer_encoding",
            "x_forwarded_host",
            "x-forwarded_for",
            "x_http_method_override",
            "x-jwt",
            "x-bearer",
            "x-envoy-original-path",
            "helicone-target-url",
            "x-portkey-custom-host",
            "x-portkey-config",
            "x-real-ip",
            "x-base-url",
            "keep-alive",
            "http2-settings",
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static("smuggled"),
            );
        }
        headers.append("connection", HeaderValue::from_static("close, X-Listed"));
        let expected = [
            "anthropic-version",
            "anthropic-beta",
            "content-type",
            "accept",
            "user-agent",
            "x-stainless-lang",
            "openai-beta",
            "idempotency-key",
            "x-goog-api-client",
            "session_id",
            "originator",
            "x-app",
            "x-stainless-package-version",
            "http-referer",
        ];
        for name in expected {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static("plain"),
            );
        }
        let passed = filter_request_headers(&headers, &config.routes["anthropic"]);
        let mut names: Vec<&str> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert!(passed.values().all(|value| value == "plain"));
    }
}
