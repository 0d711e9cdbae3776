//! A checked `[route.NAME]`: one upstream that a sandbox reaches through a loopback port, and the
//! requests that are allowed.
//!
//! Must not know TOML, HTTP libraries or sockets.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::git_route::GitRoute;
use super::registry::{Registry, RegistryAddress};
use super::settings::{ANY_TIME, Integer, Keyword, Size, Switch, Time, settings};
use super::table::keywords;
use super::types::Secret;
use marshal_model::{limits, string_enum};

string_enum!(
    /// What an upstream is, and with it which rules its requests are checked by.
    RouteKind {
        /// A model provider: the requests of an allow list, with inspected bodies.
        Model = "model",
        /// A package registry: reading only.
        Registry = "registry",
        /// A git server: its smart protocol, with checked pushes.
        Git = "git",
    }
);

keywords!(RouteKind);

settings! {
    /// One route of the model proxy.
    #[derive(Debug, Clone)]
    pub struct Route {
        /// What the upstream is.
        kind: RouteKind = RouteKind::Model, Keyword;
        /// The longest request body, in bytes.
        body_max: u64 = 32 << 20, Size(BODY_BYTES);
        /// Whether bodies may name tools that the provider runs, remote servers and remote files.
        server_tools: bool = false, Switch;
        /// Connections of one slot to this route at the same time; one more is refused.
        connections: u16 = 16, Integer(1..=limits::ROUTE_CONNECTIONS);
        ;
        /// The route's name.
        name: String = String::new();
        /// The kind of registry; `None` for any other route.
        registry: Option<Registry> = None;
        /// Hosts besides the upstream that a registry's pages and redirects may lead to.
        hosts: Vec<String> = Vec::new();
        /// Whether the file names no upstream, so that the host's own client decides.
        is_of_host: bool = false;
        /// Whether the file names `hosts`.
        names_hosts: bool = false;
        /// The upstream that requests are sent to.
        upstream: Upstream = Upstream { tls: true, authority: String::new(), base_path: String::new() };
        /// The header that carries the key, in lower case.
        header: String = "authorization".to_owned();
        /// The prefix of the key in that header.
        prefix: String = "Bearer ".to_owned();
        /// The key; `None` only for a loopback upstream.
        secret: Option<Secret> = None;
        /// The allowed requests; never empty.
        allow: Vec<AllowedRequest> = Vec::new();
        /// Names of query parameters that pass; a request with any other is refused.
        query: Vec<String> = Vec::new();
        /// The loopback port inside the sandbox.
        port: u16 = 0;
        /// Certificate authorities instead of the built-in ones.
        ca: Option<CertificateAuthorities> = None;
        /// Deadlines.
        timeouts: RouteTimeouts = RouteTimeouts::default();
        /// Repositories and refs, for a git server.
        git: GitRoute = GitRoute::default();
    }
}

/// The proxy holds several bodies in memory at the same time.
const BODY_BYTES: RangeInclusive<u64> = 1 << 10..=limits::ROUTE_BODIES_BYTES as u64 / 4;

impl Route {
    /// Whether nothing outside acts or changes for an agent that uses it.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        match self.kind {
            RouteKind::Model => !self.server_tools,
            RouteKind::Registry => true,
            RouteKind::Git => self.git.is_read_only(),
        }
    }

    /// The base URL inside the sandbox.
    #[must_use]
    pub fn base_url(&self) -> String {
        base_url(self.port)
    }

    /// Keys and values of git's configuration by which it finds the route under the upstream's own
    /// URLs; none for another kind of route.
    #[must_use]
    pub fn git_settings(&self) -> Vec<(String, String)> {
        if self.kind != RouteKind::Git {
            return Vec::new();
        }
        let instead_of = |path: &str| {
            let key = format!("url.{}{path}.insteadOf", self.base_url());
            (key, format!("{}{path}", self.upstream))
        };
        // A URL is replaced where it begins so. Of a pattern this is what stands before its `*`.
        let begin = |path: &String| match path.split_once('*') {
            Some((before, _)) => {
                let end = before.rfind('/').map_or(0, |at| at + 1);
                format!("/{}", before.get(..end).unwrap_or_default())
            }
            None => format!("/{path}"),
        };
        let paths = &self.git.repositories;
        if !paths.is_empty() {
            return paths.iter().map(|path| instead_of(&begin(path))).collect();
        }
        let (key, url) = instead_of("");
        let mut settings = vec![(key.clone(), url.clone())];
        if url.strip_suffix(".git").is_none() {
            settings.push((key, format!("{url}.git")));
        }
        settings
    }
}

settings! {
    /// `[route.NAME] timeouts = { … }`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RouteTimeouts {
        /// Until the connection to the upstream is established, including TLS.
        connect: Duration = Duration::from_secs(10), Time(ANY_TIME);
        /// Until a request from the sandbox is read completely.
        request: Duration = Duration::from_secs(60), Time(ANY_TIME);
        /// From sending the request until the head of the response.
        answer: Duration = Duration::from_secs(600), Time(ANY_TIME);
        /// Between two pieces of the response.
        idle: Duration = Duration::from_secs(300), Time(ANY_TIME);
    }
}

/// The address of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// TLS; without it only to a loopback address.
    pub tls: bool,
    /// Host and, if given, port, as a URL has them.
    pub authority: String,
    /// The prefix of every path: empty, or starting with `/` and not ending with it.
    pub base_path: String,
}

/// Why a text is not an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// The scheme is not supported.
    #[error("an upstream begins with https://, or with http:// where it is on a loopback address")]
    Scheme,
    /// Plain HTTP to an address that is not loopback.
    #[error(
        "http:// is only for a loopback address: anybody on the network path could read the key"
    )]
    PlainHttp,
    /// The host or port is invalid.
    #[error(
        "expected a host name or address, with a port or without, and nothing else before the path"
    )]
    Authority,
    /// The path is not plain.
    #[error("expected a path of plain segments: no query, no \"%\", no \"..\", no \"//\"")]
    Path,
}

impl Upstream {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, UpstreamError> {
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(UpstreamError::Scheme),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = split_port(authority).ok_or(UpstreamError::Authority)?;
        if port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port == 0)) {
            return Err(UpstreamError::Authority);
        }
        let upstream = Self {
            tls,
            authority: authority.to_ascii_lowercase(),
            base_path: path.trim_end_matches('/').to_owned(),
        };
        if !tls && !is_loopback(host) {
            return Err(UpstreamError::PlainHttp);
        }
        let is_plain = upstream.base_path.is_empty() || is_plain_path(&upstream.base_path);
        is_plain.then_some(upstream).ok_or(UpstreamError::Path)
    }

    /// Whether it is on this host.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        split_port(&self.authority).is_some_and(|(host, _)| is_loopback(host))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.base_path)
    }
}

/// Host and port, if both are valid.
pub(super) fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        inside.parse::<std::net::Ipv6Addr>().ok()?;
        let host = authority.get(..inside.len() + 2)?;
        (
            host,
            after
                .strip_prefix(':')
                .or((!after.is_empty()).then_some("x")),
        )
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
    let plain = host.starts_with('[') || (!host.is_empty() && host.bytes().all(is_name));
    let number =
        |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (plain && port.is_none_or(number)).then_some((host, port))
}

pub(super) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host == "[::1]"
        || host
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether a byte may be in a path without escapes. No `%` (an encoded slash or dot is read
/// differently by different servers), no `;` (parameters of a segment, to some), no `\`.
#[must_use]
pub const fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b':'
                | b'@'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'+'
                | b','
                | b'='
        )
}

/// Whether a path is `/` and plain segments: none empty, none `.` or `..`.
#[must_use]
pub fn is_plain_path(path: &str) -> bool {
    let is_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_path_byte);
    path.strip_prefix('/')
        .is_some_and(|rest| rest.split('/').all(is_segment))
}

/// One line of `allow`: a method and a path, in which a `*` matches one or more characters of
/// one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedRequest {
    /// The method, in capitals.
    pub method: String,
    /// The path's segments.
    segments: Vec<String>,
}

/// Methods that may be allowed.
pub(super) const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

impl AllowedRequest {
    /// Reads `METHOD /path`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (method, path) = text.split_once(' ')?;
        let segments: Vec<String> = path
            .strip_prefix('/')?
            .split('/')
            .map(str::to_owned)
            .collect();
        let is_segment = |segment: &String| {
            let stars = segment.bytes().filter(|b| *b == b'*').count();
            let plain = segment.bytes().all(|b| b == b'*' || is_path_byte(b));
            stars <= 1 && plain && !matches!(segment.as_str(), "" | "." | "..")
        };
        let good = METHODS.contains(&method) && segments.iter().all(is_segment);
        good.then(|| Self {
            method: method.to_owned(),
            segments,
        })
    }

    /// Whether it allows this request. A path that is not plain matches nothing.
    #[must_use]
    pub fn matches(&self, method: &str, path: &str) -> bool {
        if self.method != method || !is_plain_path(path) {
            return false;
        }
        let mut actual = path[1..].split('/');
        let fits = self.segments.iter().all(|segment| {
            let next = actual.next();
            next.is_some_and(|next| segment_matches(segment, next))
        });
        fits && actual.next().is_none()
    }
}

fn segment_matches(segment: &str, actual: &str) -> bool {
    match segment.split_once('*') {
        None => segment == actual,
        Some((before, after)) => {
            actual.len() > before.len() + after.len()
                && actual.starts_with(before)
                && actual.ends_with(after)
        }
    }
}

impl fmt::Display for AllowedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} /{}", self.method, self.segments.join("/"))
    }
}

/// A file of certificate authorities, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateAuthorities {
    /// The file, absolute.
    pub path: PathBuf,
    /// Its content; `None` until the command line has read it.
    pub pem: Option<Arc<[u8]>>,
}

impl fmt::Debug for CertificateAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorities({})", self.path.display())
    }
}

/// A route of a pool, with what its environment and the files of its home refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutePort {
    /// The route's name.
    pub name: String,
    /// Its loopback port inside.
    pub port: u16,
    /// What is behind it.
    pub kind: RouteKind,
    /// The registry behind it, if it is one.
    pub registry: Option<RegistryAddress>,
}

impl RoutePort {
    /// The base URL inside the sandbox.
    #[must_use]
    pub fn base_url(&self) -> String {
        base_url(self.port)
    }
}

fn base_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// Replaces `{route.NAME}` by base URLs. A placeholder of another route stays literal:
/// see [`unknown_route`].
#[must_use]
pub fn fill_routes(text: &str, routes: &[RoutePort]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, name, after)) = next_placeholder(rest) {
        out.push_str(before);
        match routes.iter().find(|route| route.name == name) {
            Some(route) => out.push_str(&route.base_url()),
            None => out.extend([PLACEHOLDER_OPEN, name, "}"]),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The first `{route.NAME}` of a text that is not one of these routes.
#[must_use]
pub fn unknown_route<'t>(text: &'t str, routes: &[RoutePort]) -> Option<&'t str> {
    let mut rest = text;
    while let Some((_, name, after)) = next_placeholder(rest) {
        if !routes.iter().any(|route| route.name == name) {
            return Some(name);
        }
        rest = after;
    }
    None
}

const PLACEHOLDER_OPEN: &str = "{route.";

/// The text before the next placeholder, its name, and the text after it.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find(PLACEHOLDER_OPEN)?;
        let inside = &text[at + PLACEHOLDER_OPEN.len()..];
        let is_name = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        let length = inside.bytes().take_while(|b| is_name(b)).count();
        if length > 0 && inside.as_bytes().get(length) == Some(&b'}') {
            return Some((&text[..at], &inside[..length], &inside[length + 1..]));
        }
        from = at + PLACEHOLDER_OPEN.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_finds_a_route_under_the_urls_of_its_upstream() {
        let settings = |upstream: &str, repositories: &[&str]| {
            let route = Route {
                kind: RouteKind::Git,
                upstream: Upstream::parse(upstream).expect("good"),
                port: 1,
                git: GitRoute {
                    repositories: repositories.iter().map(|&path| path.to_owned()).collect(),
                    ..GitRoute::default()
                },
                ..Route::default()
            };
            let pairs = route.git_settings().into_iter();
            pairs
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            settings("https://a.example", &["o/n", "p/x*", "*"]),
            [
                "url.http://127.0.0.1:1/o/n.insteadOf=https://a.example/o/n",
                "url.http://127.0.0.1:1/p/.insteadOf=https://a.example/p/",
                "url.http://127.0.0.1:1/.insteadOf=https://a.example/",
            ]
        );
        assert_eq!(
            settings("https://a.example/o/n", &[]),
            [
                "url.http://127.0.0.1:1.insteadOf=https://a.example/o/n",
                "url.http://127.0.0.1:1.insteadOf=https://a.example/o/n.git",
            ]
        );
        assert_eq!(settings("https://a.example/n.git", &[]).len(), 1);
        assert_eq!(Route::default().git_settings(), []);
    }

    #[test]
    fn an_upstream_is_https_or_on_this_host() {
        for (text, shown) in [
            ("https://api.example.com", "https://api.example.com"),
            (
                "https://API.example.com:8443/a/b/",
                "https://api.example.com:8443/a/b",
            ),
            ("http://127.0.0.1:8089", "http://127.0.0.1:8089"),
            ("http://localhost:1/x", "http://localhost:1/x"),
            ("http://[::1]:80/", "http://[::1]:80"),
            ("https://[2001:db8::1]", "https://[2001:db8::1]"),
        ] {
            let read = Upstream::parse(text).map(|upstream| upstream.to_string());
            assert_eq!(read.as_deref(), Ok(shown), "{text}");
        }
        for (text, fault) in [
            ("", UpstreamError::Scheme),
            ("ftp://a", UpstreamError::Scheme),
            ("HTTPS://a", UpstreamError::Scheme),
            ("https://", UpstreamError::Authority),
            ("https://user:pass@host", UpstreamError::Authority),
            ("https://host:", UpstreamError::Authority),
            ("https://host:99999", UpstreamError::Authority),
            ("https://host:0", UpstreamError::Authority),
            ("https://host?x", UpstreamError::Authority),
            ("https://ho st", UpstreamError::Authority),
            ("https://[::1]x", UpstreamError::Authority),
            ("https://[z]", UpstreamError::Authority),
            ("https://host/a?b", UpstreamError::Path),
            ("https://host/a/../b", UpstreamError::Path),
            ("https://host/a%2fb", UpstreamError::Path),
            ("https://host//a", UpstreamError::Path),
            ("http://api.example.com", UpstreamError::PlainHttp),
            ("http://127.0.0.1.example.com", UpstreamError::PlainHttp),
            ("http://10.0.0.1", UpstreamError::PlainHttp),
        ] {
            assert_eq!(Upstream::parse(text), Err(fault), "{text}");
        }
        assert!(Upstream::parse("https://127.0.0.1:1").is_ok_and(|up| up.is_loopback()));
        assert!(Upstream::parse("https://example.com").is_ok_and(|up| !up.is_loopback()));
    }

    #[test]
    fn a_line_of_allow_matches_whole_paths_and_nothing_that_looks_like_them() {
        let line = |text: &str| AllowedRequest::parse(text).expect(text);
        let one = line("POST /v1/messages");
        assert!(one.matches("POST", "/v1/messages"));
        for (method, path) in [
            ("GET", "/v1/messages"),
            ("post", "/v1/messages"),
            ("POST", "/v1/messages/"),
            ("POST", "/v1/messages/x"),
            ("POST", "/v1//messages"),
            ("POST", "//v1/messages"),
            ("POST", "/v1/./messages"),
            ("POST", "/v1/x/../messages"),
            ("POST", "/v1/Messages"),
            ("POST", "/v1/messages;x"),
            ("POST", "/v1%2fmessages"),
            ("POST", "/v1/messages%00"),
            ("POST", "/v1\\messages"),
            ("POST", "v1/messages"),
            ("POST", "http://h/v1/messages"),
            ("POST", "*"),
            ("POST", ""),
        ] {
            assert!(!one.matches(method, path), "{method} {path}");
        }
        let any = line("POST /v1beta/models/*:generateContent");
        assert!(any.matches("POST", "/v1beta/models/gemini-2.5-pro:generateContent"));
        assert!(!any.matches("POST", "/v1beta/models/:generateContent"));
        assert!(!any.matches("POST", "/v1beta/models/a/b:generateContent"));
        assert!(!any.matches("POST", "/v1beta/models/a:generateContent:x"));
        assert!(!any.matches("POST", "/v1beta/models/..:generateContent/../x"));
        assert!(!line("GET /v1/models/*").matches("GET", "/v1/models/.."));
        assert_eq!(any.to_string(), "POST /v1beta/models/*:generateContent");
    }

    #[test]
    fn a_line_of_allow_is_a_method_and_a_plain_path() {
        for text in [
            "",
            "POST",
            "POST ",
            "POST v1",
            "post /v1",
            "CONNECT /v1",
            "TRACE /x",
            "POST  /v1",
            "POST /v1/",
            "POST /v1//x",
            "POST /v1/../x",
            "POST /v1/**",
            "POST /a*b*c",
            "POST /a?b",
            "POST /a%20b",
            "POST /a b",
            "POST /",
            "* /v1",
        ] {
            assert_eq!(AllowedRequest::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn base_urls_take_the_place_of_routes_and_of_nothing_else() {
        let routes = [
            RoutePort {
                name: "openai".to_owned(),
                port: 20_001,
                kind: RouteKind::Model,
                registry: None,
            },
            RoutePort {
                name: "a-1".to_owned(),
                port: 20_002,
                kind: RouteKind::Model,
                registry: None,
            },
        ];
        let check = |text: &str, expect: &str| assert_eq!(fill_routes(text, &routes), expect);
        check("{route.openai}/v1", "http://127.0.0.1:20001/v1");
        check(
            "{route.a-1}{route.openai}",
            "http://127.0.0.1:20002http://127.0.0.1:20001",
        );
        check(
            "{route.other} {route.} {route.openai",
            "{route.other} {route.} {route.openai",
        );
        check("{route.{route.a-1}", "{route.http://127.0.0.1:20002");
        check("", "");
        assert_eq!(unknown_route("{route.openai}{route.x}", &routes), Some("x"));
        assert_eq!(unknown_route("{route.openai}{route.X}", &routes), None);
    }
}
