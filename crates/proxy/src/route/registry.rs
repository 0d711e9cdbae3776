//! Package registries: which requests only read packages, where they and their redirects go, and
//! how pages lead back through the route.
//!
//! A path inside is the path at the upstream. Another host of the registry is below `/-/host/HOST/`.
//! What is not the shape of a page or a file of packages is refused, so that no request acts for an
//! account. Rewriting pages is a convenience: a client that follows another URL reaches nothing.

use hyper::Uri;
use hyper::header::{self, HeaderMap, HeaderName};
use memchr::memmem;
use serde_json::Value;

use super::refusal::Refusal;
use marshal_config::{Registry, Route, Upstream, is_path_byte};
use marshal_model::limits::REGISTRY_CONFIG_BYTES;
use marshal_telemetry::labels::RouteRefusal as Why;

/// What a request reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryContent {
    /// A page that tells which packages there are; its URLs are rewritten.
    Page,
    /// The description of a cargo registry.
    CargoConfig,
    /// A file, which passes as it is.
    File,
}

/// The kinds of content, as logs name them, in the order of [`RegistryContent::index`].
pub const REGISTRY_CONTENTS: [&str; 2] = ["page", "file"];

impl RegistryContent {
    /// Its place in [`REGISTRY_CONTENTS`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Page | Self::CargoConfig => 0,
            Self::File => 1,
        }
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryTarget {
    tls: bool,
    authority: String,
    /// Path, and the query that a redirect has.
    target: String,
    /// What is read.
    pub content: RegistryContent,
}

impl RegistryTarget {
    /// The URL.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.target)
    }

    /// Whether it gets the route's key. A key may open more than packages at its host, so only what
    /// has the shape of a page or a file of this registry gets it, wherever a redirect leads.
    #[must_use]
    pub fn gets_key(&self, route: &Route) -> bool {
        let upstream = &route.upstream;
        let (Some(registry), true) = (
            route.registry,
            self.tls == upstream.tls && self.authority == plain_authority(upstream),
        ) else {
            return false;
        };
        let Some(segments) = decode_path(&self.target, registry) else {
            return false;
        };
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let base: Vec<&str> = upstream.base_path.split('/').skip(1).collect();
        let files = match (registry, base.split_last()) {
            // Their files are beside the index.
            (Registry::Pypi | Registry::Crates, Some((_, parent))) => parent,
            _ => &base,
        };
        let page = below_base(upstream, &segments).and_then(|rest| page_kind(registry, rest));
        page.is_some() || (segments.starts_with(files) && is_file(registry, &segments))
    }
}

/// The authority without the port that is the default.
fn plain_authority(upstream: &Upstream) -> &str {
    let port = if upstream.tls { ":443" } else { ":80" };
    let authority = upstream.authority.as_str();
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Checks a request from inside.
///
/// # Errors
/// A [`Refusal`] that says what the route is for.
pub fn check_registry_request(
    route: &Route,
    method: &str,
    uri: &Uri,
    has_body: bool,
) -> Result<RegistryTarget, Refusal> {
    let name = &route.name;
    let Some(registry) = route.registry else {
        let what = format!("the route {name} is not a registry");
        return Err(Refusal::new(Why::NotAllowed, 403, what));
    };
    if !matches!(method, "GET" | "HEAD") {
        let what = format!(
            "{method} is refused: the route {name} only reads packages, with GET and HEAD; publishing is not possible"
        );
        return Err(Refusal::new(Why::NotAllowed, 405, what));
    }
    if has_body {
        let what = format!(
            "the request has a body: the route {name} only reads packages; publishing is not possible"
        );
        return Err(Refusal::new(Why::Body, 413, what));
    }
    if uri.query().is_some() {
        let what = format!("the route {name} passes no query: packages have none");
        return Err(Refusal::new(Why::Query, 403, what));
    }
    let path = uri.path();
    let segments = decode_path(path, registry).ok_or_else(|| {
        let what = "the path is not in normal form: use no \"..\", \".\", \";\", empty segment, or \"%\" but for \"+~:!@,=\" and the name of a scope";
        Refusal::new(Why::Path, 403, what)
    })?;
    let not_of_packages = || {
        let what = format!(
            "{path} is not where {registry} has a page or a file of packages, which is all that the route {name} reads: no login, no account, no publishing"
        );
        Refusal::new(Why::NotAllowed, 403, what)
    };
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (upstream, target, segments) = match &*segments {
        ["-", "host", host, rest @ ..] if !rest.is_empty() => {
            let upstream = resolve_host(route, host)?;
            // The host has no escapes: it is a valid authority.
            let target = path.splitn(5, '/').nth(4).unwrap_or_default();
            (upstream, format!("/{target}"), rest)
        }
        all => (route.upstream.clone(), path.to_owned(), all),
    };
    let is_upstream = plain_authority(&upstream) == plain_authority(&route.upstream);
    let page = is_upstream
        .then(|| below_base(&route.upstream, segments))
        .flatten()
        .and_then(|rest| page_kind(registry, rest));
    let file = || is_file(registry, segments).then_some(RegistryContent::File);
    let content = page.or_else(file).ok_or_else(not_of_packages)?;
    Ok(RegistryTarget {
        tls: upstream.tls,
        authority: plain_authority(&upstream).to_owned(),
        target,
        content,
    })
}

/// Where a redirect leads.
///
/// # Errors
/// A [`Refusal`]: it leads to a host that is not one of the route, or cannot be followed safely.
pub fn follow_redirect(
    route: &Route,
    from: &RegistryTarget,
    location: Option<&[u8]>,
) -> Result<RegistryTarget, Refusal> {
    let refused = |what: &str| {
        let what = format!(
            "the upstream of the route {} answered with a redirect {what}",
            route.name
        );
        Refusal::new(Why::Redirect, 502, what)
    };
    let text = location
        .and_then(|text| std::str::from_utf8(text).ok())
        .filter(|text| text.bytes().all(|byte| matches!(byte, b'!'..=b'~')))
        .ok_or_else(|| refused("without a valid location"))?;
    let text = text.split('#').next().unwrap_or_default();
    let lower = text.get(..8).unwrap_or(text).to_ascii_lowercase();
    let (tls, rest) = if lower.starts_with("https://") {
        (true, text.get(8..).unwrap_or_default())
    } else if lower.starts_with("http://") {
        (false, text.get(7..).unwrap_or_default())
    } else if let Some(rest) = text.strip_prefix("//") {
        (from.tls, rest)
    } else {
        let path = text.split(['?', '/']).next().unwrap_or_default();
        if path.contains(':') || text.is_empty() {
            return Err(refused("that is not to https"));
        }
        return with_target(from.clone(), resolve_path(&from.target, text))
            .ok_or_else(|| refused("without a valid location"));
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let upstream = resolve_host(route, authority)?;
    if upstream.tls && !tls {
        return Err(refused("to plain HTTP, which is not followed"));
    }
    let to = RegistryTarget {
        tls: upstream.tls,
        authority: plain_authority(&upstream).to_owned(),
        target: String::new(),
        content: from.content,
    };
    with_target(to, resolve_path("/", target)).ok_or_else(|| refused("without a valid location"))
}

fn with_target(to: RegistryTarget, target: String) -> Option<RegistryTarget> {
    let to = RegistryTarget { target, ..to };
    to.url().parse::<Uri>().is_ok().then_some(to)
}

/// Resolves a reference without a host against a path (RFC 3986, 5.2), without dot segments.
fn resolve_path(base: &str, reference: &str) -> String {
    let base = base.split('?').next().unwrap_or_default();
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let directory = base.rfind('/').map_or("/", |at| &base[..=at]);
    let whole = match path {
        "" => base.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{directory}{path}"),
    };
    let mut segments: Vec<&str> = Vec::new();
    for segment in whole.split('/').skip(1) {
        match segment {
            ".." => _ = segments.pop(),
            "." => {}
            segment => segments.push(segment),
        }
    }
    if whole.ends_with("/..") || whole.ends_with("/.") {
        segments.push("");
    }
    let mut target = format!("/{}", segments.join("/"));
    if let Some(query) = query {
        target.extend(["?", query]);
    }
    target
}

/// The longest host name, with a port (RFC 1035, 2.3.4).
const MAX_AUTHORITY: usize = 253 + ":65535".len();

/// The upstream, or another host of the route, by its authority.
fn resolve_host(route: &Route, authority: &str) -> Result<Upstream, Refusal> {
    let named = |scheme: &str| Upstream::parse(&format!("{scheme}://{authority}")).ok();
    // Without TLS only where the upstream is without it, and only to this host.
    let plain = (!route.upstream.tls).then(|| named("http")).flatten();
    let host = plain
        .or_else(|| named("https"))
        .filter(|host| host.base_path.is_empty() && authority.len() <= MAX_AUTHORITY)
        .ok_or_else(|| Refusal::new(Why::Path, 403, "the URL names no valid host"))?;
    let wanted = plain_authority(&host);
    let is_allowed = wanted == plain_authority(&route.upstream)
        || route
            .hosts
            .iter()
            .any(|allowed| allowed_matches(allowed, wanted));
    if is_allowed {
        return Ok(host);
    }
    let what = format!(
        "the host {wanted} is not one of the route {}: who runs this sandbox may add it to route.{}.hosts",
        route.name, route.name
    );
    let mut refusal = Refusal::new(Why::Host, 403, what);
    refusal.denied_host = Some(wanted.to_owned());
    Err(refusal)
}

fn allowed_matches(allowed: &str, wanted: &str) -> bool {
    allowed.strip_suffix(":443").unwrap_or(allowed) == wanted
}

/// The path's segments, decoded; only the last may be empty. `None` for any other form.
fn decode_path(path: &str, registry: Registry) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut rest = path.strip_prefix('/')?.split('/').peekable();
    while let Some(raw) = rest.next() {
        if raw.is_empty() && rest.peek().is_some() {
            return None;
        }
        let decoded = decode_segment(raw, registry)?;
        let parts = decoded.split('/');
        for part in parts {
            let is_odd = matches!(part, "." | "..") || (part.is_empty() && !raw.is_empty());
            if is_odd {
                return None;
            }
            segments.push(part.to_owned());
        }
    }
    Some(segments)
}

/// Decodes the escapes that clients of registries use; `None` if there is any other.
fn decode_segment(raw: &str, registry: Registry) -> Option<String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(first) = rest.chars().next() {
        if first != '%' {
            if !is_path_byte(u8::try_from(first).ok()?) {
                return None;
            }
            out.push(first);
            rest = rest.get(1..)?;
            continue;
        }
        let byte = u8::from_str_radix(rest.get(1..3).filter(|hex| !hex.starts_with('+'))?, 16);
        let decoded = char::from(byte.ok()?);
        let is_scope = registry == Registry::Npm
            && decoded == '/'
            && out.starts_with('@')
            && !out.contains('/');
        if !is_scope && !"+~:!@,=".contains(decoded) {
            return None;
        }
        out.push(decoded);
        rest = rest.get(3..)?;
    }
    Some(out)
}

/// The segments below the upstream's base path.
fn below_base<'s, 't>(upstream: &Upstream, segments: &'s [&'t str]) -> Option<&'s [&'t str]> {
    let mut rest = segments;
    for part in upstream.base_path.split('/').skip(1) {
        let (first, after) = rest.split_first()?;
        rest = (*first == part).then_some(after)?;
    }
    Some(rest)
}

/// Whether this is the name of a package, a version or a tag: never one of a registry's own paths,
/// which begin with `-`, `_` or `.`.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~' | b'+'))
}

/// The page at these segments below the base path.
fn page_kind(registry: Registry, rest: &[&str]) -> Option<RegistryContent> {
    let is_scope = |text: &str| text.strip_prefix('@').is_some_and(is_name);
    let is_page = match (registry, rest) {
        (Registry::Crates, ["config.json"]) => return Some(RegistryContent::CargoConfig),
        (Registry::Npm, [scope, name]) if is_scope(scope) => is_name(name),
        (Registry::Npm, [scope, name, version]) if is_scope(scope) => {
            is_name(name) && is_name(version)
        }
        (Registry::Npm, [name, version]) => is_name(name) && is_name(version),
        (Registry::Npm, [name]) | (Registry::Pypi, [name] | [name, ""]) => is_name(name),
        (Registry::Crates, ["1", name]) => is_name(name) && name.len() == 1,
        (Registry::Crates, ["2", name]) => is_name(name) && name.len() == 2,
        (Registry::Crates, ["3", first, name]) => {
            is_name(name) && name.len() == 3 && name.starts_with(first)
        }
        (Registry::Crates, [first, second, name]) => {
            is_name(name) && name.get(..2) == Some(first) && name.get(2..4) == Some(second)
        }
        _ => false,
    };
    is_page.then_some(RegistryContent::Page)
}

/// Whether a path is one of a file of packages, in any directory.
fn is_file(registry: Registry, segments: &[&str]) -> bool {
    const PYPI: &[&str] = &[
        ".whl",
        ".tar.gz",
        ".zip",
        ".tar.bz2",
        ".tgz",
        ".egg",
        ".whl.metadata",
        ".tar.gz.metadata",
    ];
    let Some((last, directories)) = segments.split_last() else {
        return false;
    };
    let ends = |suffix: &&str| last.len() > suffix.len() && last.ends_with(suffix);
    match registry {
        Registry::Npm => ends(&".tgz"),
        Registry::Pypi => PYPI.iter().any(&ends),
        Registry::Crates => match directories {
            [.., name, version] if *last == "download" => is_name(name) && is_name(version),
            _ => ends(&".crate"),
        },
        // Nothing but files is in these trees.
        Registry::Debian => {
            !last.is_empty()
                && directories
                    .iter()
                    .any(|part| matches!(*part, "dists" | "pool"))
        }
    }
}

/// The request headers that pass. `may_be_part`: whether a part of the response is good enough.
#[must_use]
pub fn registry_headers(headers: &HeaderMap, may_be_part: bool) -> HeaderMap {
    const PASSED: [HeaderName; 4] = [
        header::ACCEPT,
        header::USER_AGENT,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
    ];
    const PART: [HeaderName; 2] = [header::RANGE, header::IF_RANGE];
    let part = PART.iter().filter(|_| may_be_part);
    let mut passed = HeaderMap::new();
    for name in PASSED.iter().chain(part) {
        if let Some(value) = headers.get(name) {
            passed.insert(name.clone(), value.clone());
        }
    }
    passed
}

/// Whether a response header describes the bytes of the body, which differ after rewriting.
#[must_use]
pub fn describes_bytes(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.contains("digest")
        || name.contains("checksum")
        || matches!(name, "content-md5" | "accept-ranges" | "content-range")
}

/// Leads the URLs of a page back through the route, piece by piece.
#[derive(Debug)]
pub struct PageRewriter {
    content: RegistryContent,
    /// What stands before a URL.
    markers: &'static [&'static str],
    /// The route's base URL inside.
    base_url: String,
    /// The authority whose paths are those of the route.
    authority: String,
    /// The registry's URL inside, if it is a mirror for npm: its pages may name the public registry,
    /// for which npm itself takes the one that is configured (`replace-registry-host`).
    mirror_url: Option<String>,
    /// What may be the beginning of a URL.
    pending: Vec<u8>,
}

/// The host of npm's public registry.
const NPM_PUBLIC: &str = "registry.npmjs.org";

/// The most bytes from a marker to the end of the host behind it.
const LOOK_AHEAD: usize = 512;

/// The page is no valid description of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the registry's config.json is not a short JSON object with the URL \"dl\"")]
pub struct PageError;

/// What follows a marker.
enum AfterMarker {
    /// Too few bytes to decide.
    Unknown,
    /// A URL: where it begins, and where its authority does and ends.
    Url(usize, usize, usize),
    /// Something else.
    Other,
}

impl PageRewriter {
    /// For a response of this route; `None` if it passes as it is.
    #[must_use]
    pub fn new(route: &Route, content: RegistryContent) -> Option<Self> {
        let markers: &[&str] = match (content, route.registry?) {
            (RegistryContent::CargoConfig, _) => &[],
            (RegistryContent::Page, Registry::Npm) => &["\"tarball\""],
            (RegistryContent::Page, Registry::Pypi) => &["href", "\"url\""],
            _ => return None,
        };
        Some(Self {
            content,
            markers,
            base_url: route.base_url(),
            mirror_url: (route.registry == Some(Registry::Npm) && route.hosts.is_empty())
                .then(|| format!("{}{}", route.base_url(), route.upstream.base_path)),
            authority: plain_authority(&route.upstream).to_owned(),
            pending: Vec::new(),
        })
    }

    /// Takes the next piece; returns what can be forwarded.
    ///
    /// # Errors
    /// [`PageError`]
    pub fn feed(&mut self, piece: &[u8]) -> Result<Vec<u8>, PageError> {
        if self.content == RegistryContent::CargoConfig {
            if self.pending.len() + piece.len() > REGISTRY_CONFIG_BYTES {
                return Err(PageError);
            }
            self.pending.extend_from_slice(piece);
            return Ok(Vec::new());
        }
        self.pending.extend_from_slice(piece);
        Ok(self.rewrite(false))
    }

    /// What is left at the end.
    ///
    /// # Errors
    /// [`PageError`]
    pub fn finish(&mut self) -> Result<Vec<u8>, PageError> {
        if self.content != RegistryContent::CargoConfig {
            return Ok(self.rewrite(true));
        }
        let page: Value =
            serde_json::from_slice(&std::mem::take(&mut self.pending)).map_err(|_| PageError)?;
        let url = page.get("dl").and_then(Value::as_str).ok_or(PageError)?;
        let (_, rest) = url.split_once("://").ok_or(PageError)?;
        let end = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let mapped = self.map_authority(authority).ok_or(PageError)?;
        // Nothing else: what it says of an account or of publishing has no use inside.
        Ok(serde_json::json!({ "dl": format!("{mapped}{path}") })
            .to_string()
            .into_bytes())
    }

    /// The URL inside that stands for a host.
    fn map_authority(&self, authority: &str) -> Option<String> {
        let host = Upstream::parse(&format!("https://{authority}")).ok()?;
        let host = plain_authority(&host);
        let base = &self.base_url;
        Some(match &self.mirror_url {
            _ if host == self.authority => base.clone(),
            Some(mirror) if host == NPM_PUBLIC => mirror.clone(),
            _ => format!("{base}/-/host/{host}"),
        })
    }

    fn rewrite(&mut self, is_end: bool) -> Vec<u8> {
        let page = std::mem::take(&mut self.pending);
        let mut out = Vec::with_capacity(page.len());
        let mut at = 0;
        let finders = self.markers.iter();
        let mut finders: Vec<_> = finders
            .map(|marker| memmem::find_iter(&page, marker.as_bytes()).peekable())
            .collect();
        loop {
            let rest = page.get(at..).unwrap_or_default();
            // Each marker is searched for once in the whole page.
            let found = finders
                .iter_mut()
                .zip(self.markers)
                .filter_map(|(finder, marker)| {
                    while finder.next_if(|start| *start < at).is_some() {}
                    finder.peek().map(|start| (*start, start + marker.len()))
                });
            let Some((start, end)) = found.min() else {
                let longest = self.markers.iter().map(|marker| marker.len()).max();
                let kept = longest.unwrap_or(1).saturating_sub(1).min(rest.len());
                let kept = if is_end { 0 } else { kept };
                let (clear, kept) = rest.split_at(rest.len() - kept);
                out.extend_from_slice(clear);
                self.pending = kept.to_vec();
                return out;
            };
            match read_url(&page, end) {
                AfterMarker::Unknown if !is_end && page.len() - start < LOOK_AHEAD => {
                    out.extend_from_slice(page.get(at..start).unwrap_or_default());
                    self.pending = page.get(start..).unwrap_or_default().to_vec();
                    return out;
                }
                AfterMarker::Url(url, from, to) => {
                    let authority = page
                        .get(from..to)
                        .and_then(|text| std::str::from_utf8(text).ok());
                    let mapped = authority.and_then(|text| self.map_authority(text));
                    let before = if mapped.is_some() { url } else { to };
                    out.extend_from_slice(page.get(at..before).unwrap_or_default());
                    out.extend_from_slice(mapped.unwrap_or_default().as_bytes());
                    at = to;
                }
                AfterMarker::Unknown | AfterMarker::Other => {
                    out.extend_from_slice(page.get(at..end).unwrap_or_default());
                    at = end;
                }
            }
        }
    }
}

/// Reads `: "https://HOST` or `="https://HOST` from here.
fn read_url(page: &[u8], from: usize) -> AfterMarker {
    let mut at = from;
    let mut skip = |wanted: &[u8], most: usize| {
        let rest = page.get(at..).unwrap_or_default();
        let count = rest
            .iter()
            .take(most)
            .take_while(|byte| wanted.contains(byte));
        let count = count.count();
        at += count;
        (count, at, at >= page.len())
    };
    skip(b" \t\r\n", 32);
    let (signs, _, _) = skip(b":=", 1);
    skip(b" \t\r\n", 32);
    let (quotes, url, is_short) = skip(b"\"'", 1);
    if is_short {
        return AfterMarker::Unknown;
    }
    if signs == 0 || quotes == 0 {
        return AfterMarker::Other;
    }
    let rest = page.get(url..).unwrap_or_default();
    let scheme = [&b"https://"[..], b"http://"];
    let Some(scheme) = scheme.into_iter().find(|scheme| rest.starts_with(scheme)) else {
        let may_become = scheme.iter().any(|scheme| scheme.starts_with(rest));
        return if may_become {
            AfterMarker::Unknown
        } else {
            AfterMarker::Other
        };
    };
    let start = url + scheme.len();
    let rest = page.get(start..).unwrap_or_default();
    let end = rest
        .iter()
        .position(|byte| b"/?#\"'\\ <>&\n".contains(byte));
    end.map_or(AfterMarker::Unknown, |end| {
        AfterMarker::Url(url, start, start + end)
    })
}

#[cfg(test)]
mod tests;
