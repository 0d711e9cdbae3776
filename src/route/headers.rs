//! Which headers of a request pass to the upstream: nothing that could be a key, nothing that is
//! for this hop only, nothing that would make another request of it.

use hyper::header::{self, HeaderMap, HeaderName};

use crate::config::Route;

/// Headers of this hop, or made anew.
const HOP: &[HeaderName] = &[
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

/// Names that ask for another method, path or host than the checked one, or say who asks.
const DISGUISES: &[&str] = &[
    "keep-alive",
    "proxy-connection",
    "http2-settings",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-original-host",
    "x-rewrite-url",
    "x-host",
    "x-real-ip",
    "client-ip",
    "true-client-ip",
];

/// Parts of names that say that a header or parameter holds a credential.
const CREDENTIALS: &[&str] = &[
    "auth",
    "key",
    "token",
    "secret",
    "cookie",
    "credential",
    "passw",
    "signature",
];

/// Names with such a part that hold none.
const NO_CREDENTIALS: &[&str] = &["idempotency-key", "x-idempotency-key"];

/// Whether a header or query parameter of this name, in lower case, may hold a credential.
#[must_use]
pub fn is_credential(name: &str) -> bool {
    !NO_CREDENTIALS.contains(&name) && CREDENTIALS.iter().any(|part| name.contains(part))
}

/// The headers that pass.
#[must_use]
pub fn pass_headers(headers: &HeaderMap, route: &Route) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).iter();
    let named: Vec<String> = named
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut passed = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let text = name.as_str();
        let stays = HOP.contains(name)
            || DISGUISES.contains(&text)
            || text.starts_with("x-forwarded-")
            || text.starts_with("proxy-")
            || text == route.header
            || is_credential(text)
            || named.iter().any(|named| named == text);
        if !stays {
            passed.append(name.clone(), value.clone());
        }
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Origin};
    use hyper::header::HeaderValue;

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
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static("smuggled"),
            );
        }
        headers.append("connection", HeaderValue::from_static("close, X-Listed"));
        let kept = [
            "anthropic-version",
            "anthropic-beta",
            "content-type",
            "accept",
            "user-agent",
            "x-stainless-lang",
            "openai-beta",
            "idempotency-key",
            "x-goog-api-client",
        ];
        for name in kept {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static("plain"),
            );
        }
        let passed = pass_headers(&headers, &config.routes["anthropic"]);
        let mut names: Vec<&str> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let mut expected = kept.to_vec();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert!(passed.values().all(|value| value == "plain"));
    }
}
