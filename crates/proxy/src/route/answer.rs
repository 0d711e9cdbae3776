//! An upstream's response: which headers are forwarded, and which rate limit it reports for how
//! long.

use std::time::Duration;

use hyper::header::{self, HeaderMap, HeaderName};
use jiff::Timestamp;
use serde_json::Value;

use super::headers::is_credential;
use marshal_model::limits::RATE_LIMIT_ANNOUNCED;

/// Whether a response header is forwarded into the sandbox: no hop-by-hop header, no cookie or
/// other credential, no redirect, no pointer to another server or protocol.
#[must_use]
pub fn passes_response_header(name: &HeaderName) -> bool {
    const STAYS: &[HeaderName] = &[
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
        header::TRAILER,
        header::UPGRADE,
        header::VIA,
        header::SET_COOKIE,
        header::LOCATION,
        header::REFRESH,
        header::ALT_SVC,
        header::LINK,
        header::STRICT_TRANSPORT_SECURITY,
        header::WWW_AUTHENTICATE,
        header::PROXY_AUTHENTICATE,
    ];
    let text = name.as_str();
    let tells_limits = text.contains("ratelimit");
    let is_hop = matches!(text, "keep-alive" | "proxy-connection" | "content-location");
    !STAYS.contains(name) && !is_hop && (tells_limits || !is_credential(text))
}

/// Whether a response with this status is a redirect.
#[must_use]
pub const fn is_redirect(status: u16) -> bool {
    matches!(status, 300..=303 | 305..=399)
}

/// Whether this status reports a rate limit: too many requests (429), or an overloaded provider
/// (529, specific to Anthropic).
#[must_use]
pub const fn is_limited(status: u16) -> bool {
    matches!(status, 429 | 529)
}

/// How long the response head asks to wait, if it says so; at most [`RATE_LIMIT_ANNOUNCED`].
/// `now_s`: seconds since the Unix epoch.
///
/// Sources: `retry-after` (RFC 9110, 10.2.3) and `retry-after-ms`; otherwise the latest reset of
/// the limits with nothing remaining, or of all limits: `anthropic-ratelimit-*-reset` (RFC 3339),
/// `x-ratelimit-reset-*` (`6m0s`, `17ms`).
#[must_use]
pub fn announced_wait(headers: &HeaderMap, now_s: i64) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let in_ms = text("retry-after-ms").and_then(|value| value.trim().parse::<u64>().ok());
    let direct = in_ms.map(Duration::from_millis);
    let direct =
        direct.or_else(|| text("retry-after").and_then(|value| parse_retry_after(value, now_s)));
    let wait = direct.or_else(|| parse_resets(headers, now_s))?;
    Some(wait.min(RATE_LIMIT_ANNOUNCED))
}

/// How long the body of a rate-limit response asks to wait; at most [`RATE_LIMIT_ANNOUNCED`].
/// `None` also while the body is incomplete. Source: `google.rpc.RetryInfo` in the details of an
/// error (<https://cloud.google.com/apis/design/errors#error_details>), alone or in an array, which
/// is Gemini's stream without events.
#[must_use]
pub fn announced_wait_in_body(body: &[u8]) -> Option<Duration> {
    if !matches!(body.trim_ascii_end().last(), Some(b'}' | b']')) {
        return None;
    }
    let body: Value = serde_json::from_slice(body).ok()?;
    let of_error = |error: &Value| {
        let details = error.pointer("/error/details")?.as_array()?;
        let mut waits = details.iter().filter_map(|detail| {
            let kind = detail.get("@type")?.as_str()?;
            let delay = detail.get("retryDelay")?.as_str()?;
            kind.ends_with("google.rpc.RetryInfo")
                .then(|| parse_seconds(delay.strip_suffix('s')?))?
        });
        waits.next()
    };
    let wait = match &body {
        Value::Array(errors) => errors.iter().find_map(of_error),
        error => of_error(error),
    };
    Some(wait?.min(RATE_LIMIT_ANNOUNCED))
}

fn parse_retry_after(value: &str, now_s: i64) -> Option<Duration> {
    let value = value.trim();
    if let Some(seconds) = parse_seconds(value) {
        return Some(seconds);
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(value)
        .ok()?;
    Some(duration_until(at.as_second(), now_s))
}

fn parse_resets(headers: &HeaderMap, now_s: i64) -> Option<Duration> {
    let mut spent = None;
    let mut any = None;
    for (name, value) in headers {
        let name = name.as_str();
        let is_reset = name.starts_with("x-ratelimit-reset")
            || (name.starts_with("anthropic-ratelimit-") && name.ends_with("-reset"));
        let value = value.to_str().ok().filter(|_| is_reset);
        let Some(after) = value.and_then(|value| parse_reset(value.trim(), now_s)) else {
            continue;
        };
        any = any.max(Some(after));
        let left = headers.get(name.replace("reset", "remaining"));
        if left.is_some_and(|left| left == "0") {
            spent = spent.max(Some(after));
        }
    }
    spent.or(any)
}

fn parse_reset(value: &str, now_s: i64) -> Option<Duration> {
    if let Ok(at) = value.parse::<Timestamp>() {
        return Some(duration_until(at.as_second(), now_s));
    }
    // A point in time in seconds or milliseconds, or a number of seconds.
    if let Ok(number) = value.parse::<i64>() {
        return Some(match number {
            1_000_000_000_000.. => duration_until(number / 1000, now_s),
            1_000_000_000.. => duration_until(number, now_s),
            _ => Duration::from_secs(u64::try_from(number).ok()?),
        });
    }
    parse_compound_duration(value)
}

/// Parses `1h2m3.5s` or `17ms`.
fn parse_compound_duration(value: &str) -> Option<Duration> {
    let mut rest = value;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .bytes()
            .take_while(|b| b.is_ascii_digit() || *b == b'.')
            .count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        sum = sum.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
        rest = after;
    }
    (!value.is_empty()).then_some(sum)
}

fn parse_seconds(value: &str) -> Option<Duration> {
    let number: f64 = value.parse().ok()?;
    Duration::try_from_secs_f64(number).ok()
}

fn duration_until(at_s: i64, now_s: i64) -> Duration {
    Duration::from_secs(u64::try_from(at_s.saturating_sub(now_s)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const NOW: i64 = 1_700_000_000; // 2023-11-14T22:13:20Z

    fn wait(headers: &[(&'static str, &'static str)]) -> Option<u64> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        announced_wait(&map, NOW).map(|wait| u64::try_from(wait.as_millis()).expect("short"))
    }

    #[test]
    fn every_form_of_an_announcement_is_read() {
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&[("retry-after", "17")]), Some(17_000));
        assert_eq!(wait(&[("retry-after", "0.5")]), Some(500));
        assert_eq!(
            wait(&[("retry-after-ms", "250"), ("retry-after", "1")]),
            Some(250)
        );
        assert_eq!(
            wait(&[("retry-after", "Tue, 14 Nov 2023 22:14:20 GMT")]),
            Some(60_000)
        );
        assert_eq!(
            wait(&[("retry-after", "Tue, 14 Nov 2023 22:00:00 GMT")]),
            Some(0)
        );
        assert_eq!(
            wait(&[("x-ratelimit-reset-requests", "6m0s")]),
            Some(360_000)
        );
        assert_eq!(wait(&[("x-ratelimit-reset-tokens", "17ms")]), Some(17));
        assert_eq!(wait(&[("x-ratelimit-reset", "1700000090")]), Some(90_000));
        assert_eq!(
            wait(&[("x-ratelimit-reset", "1700000090000")]),
            Some(90_000)
        );
        assert_eq!(
            wait(&[("anthropic-ratelimit-requests-reset", "2023-11-14T22:13:50Z")]),
            Some(30_000)
        );
        // What is spent counts, not what is far away.
        assert_eq!(
            wait(&[
                ("anthropic-ratelimit-requests-reset", "2023-11-14T23:13:20Z"),
                ("anthropic-ratelimit-requests-remaining", "40"),
                ("anthropic-ratelimit-tokens-reset", "2023-11-14T22:13:30Z"),
                ("anthropic-ratelimit-tokens-remaining", "0"),
            ]),
            Some(10_000)
        );
        // No announcement is longer than a day, and nonsense is none.
        assert_eq!(wait(&[("retry-after", "999999999")]), Some(86_400_000));
        for bad in ["-5", "NaN", "inf", "soon", "", "1e400", "5 apples"] {
            assert_eq!(wait(&[("retry-after", bad)]), None, "{bad}");
        }
        assert_eq!(wait(&[("x-ratelimit-reset-tokens", "5x")]), None);
    }

    #[test]
    fn googles_retry_info_is_read_and_nothing_that_looks_like_it() {
        const KIND: &str = "type.googleapis.com/google.rpc.RetryInfo";
        let body = |kind: &str, delay: &str| {
            format!(
                r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{{"@type":"type.googleapis.com/google.rpc.Help"}},{{"@type":"{kind}","retryDelay":{delay}}}]}}}}"#
            )
        };
        let read = |body: &str| announced_wait_in_body(body.as_bytes());
        assert_eq!(
            read(&body(KIND, "\"37.5s\"")),
            Some(Duration::from_millis(37_500))
        );
        let one = body(KIND, "\"2s\"");
        assert_eq!(read(&format!("[{one}]\n")), Some(Duration::from_secs(2)));
        assert_eq!(
            read(&body(KIND, "\"9999999s\"")),
            Some(RATE_LIMIT_ANNOUNCED)
        );
        for bad in [
            body(KIND, "37"),
            body(KIND, "\"37\""),
            body(KIND, "\"-1s\""),
            body("other", "\"37s\""),
            one[..one.len() - 1].to_owned(),
            one.replace("details", "message"),
            r#"{"retryDelay":"37s"}"#.to_owned(),
            "\"retryDelay\": \"37s\"".to_owned(),
            String::new(),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn no_cookie_redirect_or_credential_comes_back() {
        for (name, passes) in [
            ("content-type", true),
            ("content-encoding", true),
            ("request-id", true),
            ("retry-after", true),
            ("x-ratelimit-remaining-tokens", true),
            ("anthropic-ratelimit-tokens-reset", true),
            ("set-cookie", false),
            ("set-cookie2", false),
            ("location", false),
            ("alt-svc", false),
            ("connection", false),
            ("transfer-encoding", false),
            ("x-api-key", false),
            ("authorization", false),
            ("www-authenticate", false),
        ] {
            let name = HeaderName::from_static(name);
            assert_eq!(passes_response_header(&name), passes, "{name}");
        }
        assert!(is_redirect(302) && is_redirect(307) && !is_redirect(304) && !is_redirect(200));
        assert!(is_limited(429) && is_limited(529) && !is_limited(503));
    }
}
