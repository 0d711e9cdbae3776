//! URLs as facts: scheme, host, port, path; and the patterns in rules.
//!
//! Owns a strict reading: anything that two parsers could read differently (user info, backslashes,
//! control characters, a non-ASCII host) is not a URL here and matches nothing. Must not know
//! rules, and fetches nothing.

use std::fmt::Write as _;

/// What is wrong with a URL or a pattern for URLs, as a noun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// A blank, a control character, or one outside ASCII.
    #[error("a character that a URL cannot contain")]
    Character,
    /// Some readers take it for a slash.
    #[error("a backslash")]
    Backslash,
    /// No `://`.
    #[error("no scheme")]
    NoScheme,
    /// A scheme that is not supported.
    #[error("a scheme other than http and https")]
    Scheme,
    /// A name or a password before the host.
    #[error("user information")]
    User,
    /// The port is empty or no number.
    #[error("a port that is not a number")]
    Port,
    /// Only a port.
    #[error("no host")]
    NoHost,
    /// The host has other characters or empty labels.
    #[error("a host that is not a name")]
    Host,
    /// Some readers take the host for an address, others for a name.
    #[error("an address in an unusual spelling")]
    Address,
    /// A `%` without two hexadecimal digits.
    #[error("a broken escape")]
    Escape,
    /// An escape of a character that separates or ends parts of the path.
    #[error("an escape that hides the path")]
    HidingEscape,
    /// A wildcard at a place that has none.
    #[error("a `*` that is neither `//*.host` nor a final `/**`")]
    Wildcard,
    /// A host pattern with a path, a query or a fragment.
    #[error("more than a host and a port")]
    MoreThanHost,
}

/// A parsed URL. Query and fragment are dropped: no condition names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub scheme: String,
    pub host: String,
    pub port: u16,
    /// Normalised: percent-escapes of unreserved characters and dots resolved.
    pub path: String,
}

impl Url {
    /// Parses a URL.
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(UrlError::Character);
        }
        if text.contains('\\') {
            return Err(UrlError::Backslash);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::NoScheme)?;
        let scheme = scheme.to_ascii_lowercase();
        let standard = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return Err(UrlError::Scheme),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() => {
                let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                let number = port.parse().ok().filter(|_| digits);
                (host, number.ok_or(UrlError::Port)?)
            }
            Some(_) => return Err(UrlError::NoHost),
            None => (authority, standard),
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let named = !host.is_empty()
            && !host.starts_with('.')
            && !host.contains("..")
            && host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if !named {
            return Err(UrlError::Host);
        }
        if is_odd_address(&host) {
            return Err(UrlError::Address);
        }
        let path = tail.split(['?', '#']).next().unwrap_or_default();
        Ok(Self {
            scheme,
            host,
            port,
            path: normalize_path(path)?,
        })
    }
}

/// Resolves escapes of harmless characters, and `.` and `..`, so that `%2e%2e` leads where a server
/// would go.
fn normalize_path(path: &str) -> Result<String, UrlError> {
    let mut text = String::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            text.push(char::from(byte));
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return Err(UrlError::Escape);
        };
        let value = u8::try_from(high * 16 + low).map_err(|_| UrlError::Escape)?;
        match value {
            0..=0x20 | 0x7f | b'\\' | b'/' | b'%' => return Err(UrlError::HidingEscape),
            b if b.is_ascii_graphic() => text.push(char::from(b)),
            b => {
                let _ = write!(text, "%{b:02X}");
            }
        }
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Ok(format!("/{}", parts.join("/")))
}

/// A pattern of a rule: `https://host/path`, `https://*.host/**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UrlPattern {
    /// Whether it matches names below the host, and not the host itself.
    subdomains_only: bool,
    /// Whether it matches everything below the path.
    deep: bool,
    url: Url,
}

impl UrlPattern {
    /// Parses a pattern.
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        let (head, deep) = match text.strip_suffix("/**") {
            Some(head) => (head, true),
            None => (text, false),
        };
        let bare = head.replacen("://*.", "://", 1);
        if bare.contains('*') {
            return Err(UrlError::Wildcard);
        }
        Ok(Self {
            subdomains_only: bare != head,
            deep,
            url: Url::parse(&bare)?,
        })
    }

    /// Whether a URL matches.
    pub(super) fn matches(&self, url: &Url) -> bool {
        let host = if self.subdomains_only {
            url.host
                .strip_suffix(&self.url.host)
                .is_some_and(|rest| rest.ends_with('.'))
        } else {
            url.host == self.url.host
        };
        let root = self.url.path.trim_end_matches('/');
        let path = if self.deep {
            url.path
                .strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        } else {
            url.path == self.url.path
        };
        host && path && url.scheme == self.url.scheme && url.port == self.url.port
    }
}

/// A host that a rule names: `docs.rs`, `*.example.com`, `localhost:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPattern {
    /// Whether it matches names below the host, and not the host itself.
    subdomains_only: bool,
    host: String,
    port: Option<u16>,
}

impl HostPattern {
    /// Parses a pattern.
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if rest.contains(['/', '?', '#']) {
            return Err(UrlError::MoreThanHost);
        }
        let url = Url::parse(&format!("https://{rest}"))?;
        Ok(Self {
            subdomains_only: below,
            port: rest.contains(':').then_some(url.port),
            host: url.host,
        })
    }

    /// Whether a URL is of this host. If `permits`, it must be https, and have the default port
    /// where the pattern names none.
    pub(super) fn matches(&self, url: &Url, permits: bool) -> bool {
        let host = if self.subdomains_only {
            url.host
                .strip_suffix(&self.host)
                .is_some_and(|rest| rest.ends_with('.'))
        } else {
            url.host == self.host
        };
        let port = match self.port {
            Some(port) => url.port == port,
            None => !permits || url.port == 443,
        };
        host && port && (!permits || url.scheme == "https")
    }
}

/// Whether a host is a number to some readers and a name to others: its last label begins with a
/// digit, and it is not an IPv4 address in the usual form.
fn is_odd_address(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.starts_with(|c: char| c.is_ascii_digit()) && host.parse::<std::net::Ipv4Addr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, url: &str, expect: bool) {
        let pattern = UrlPattern::parse(pattern).expect("pattern");
        let got = Url::parse(url).is_ok_and(|url| pattern.matches(&url));
        assert_eq!(got, expect, "{pattern:?} and {url}");
    }

    #[test]
    fn a_url_fits_by_its_parts_and_not_by_its_text() {
        check("https://docs.rs/**", "https://docs.rs/serde", true);
        check("https://docs.rs/**", "https://docs.rs", true);
        check("https://docs.rs/**", "HTTPS://DOCS.RS:443/x?y#z", true);
        check("https://docs.rs/**", "https://docs.rs.evil.example/", false);
        check("https://docs.rs/**", "https://evil.example/docs.rs/", false);
        check("https://docs.rs/**", "http://docs.rs/", false);
        check("https://docs.rs/**", "https://docs.rs:8443/", false);
        check("https://docs.rs/**", "https://docs.rs@evil.example/", false);
        check(
            "https://docs.rs/**",
            "https://docs.rs\\@evil.example/",
            false,
        );
        check("https://docs.rs/**", "docs.rs/x", false);
        check("https://docs.rs/**", "https://docs.rs\u{0}/x", false);
        check("https://*.a.example/**", "https://b.a.example/x", true);
        check("https://*.a.example/**", "https://a.example/x", false);
        check("https://*.a.example/**", "https://ba.example/x", false);
        check(
            "https://h.example/repos/acme/**",
            "https://h.example/repos/acme/x",
            true,
        );
        check(
            "https://h.example/repos/acme/**",
            "https://h.example/repos/acme2/x",
            false,
        );
        check(
            "https://h.example/repos/acme/**",
            "https://h.example/repos/acme/../evil",
            false,
        );
        check(
            "https://h.example/repos/acme/**",
            "https://h.example/repos/acme/%2e%2e/evil",
            false,
        );
        check(
            "https://h.example/repos/acme/**",
            "https://h.example/repos/acme/%2fevil",
            false,
        );
        check("https://h.example/x", "https://h.example/x/y", false);
    }

    #[test]
    fn a_host_is_compared_by_its_name_and_port() {
        let check = |pattern: &str, url: &str, permits: bool| {
            let pattern = HostPattern::parse(pattern).expect("pattern");
            Url::parse(url).is_ok_and(|url| pattern.matches(&url, permits))
        };
        assert!(check("docs.rs", "https://DOCS.rs./x", true));
        assert!(!check("docs.rs", "http://docs.rs/x", true));
        assert!(check("docs.rs", "http://docs.rs:81/x", false));
        assert!(!check("docs.rs", "https://docs.rs:444/x", true));
        assert!(check("docs.rs:444", "https://docs.rs:444/x", true));
        assert!(check("*.rs", "https://docs.rs/", true));
        assert!(!check("*.docs.rs", "https://docs.rs/", true));
        assert!(!check("docs.rs", "https://evil.example/docs.rs", false));
        for bad in ["https://x", "x/y", "x:y", "", "*", "a b"] {
            assert!(HostPattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_has_one_spelling() {
        for odd in ["0x7f.1", "127.1", "2130706433", "0177.0.0.1", "127.0.0.0x1"] {
            assert!(Url::parse(&format!("http://{odd}/")).is_err(), "{odd}");
        }
        assert!(Url::parse("http://127.0.0.1/").is_ok());
    }

    #[test]
    fn a_pattern_that_promises_more_than_it_holds_is_refused() {
        for pattern in [
            "https://h*.example/**",
            "docs.rs",
            "https://x/*/y",
            "ftp://x/**",
        ] {
            assert!(UrlPattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
