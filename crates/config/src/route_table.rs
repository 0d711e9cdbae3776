//! `[route.NAME]`: the routes, with those of well-known providers built in.
//!
//! Must not know pools, HTTP or sockets.
//!
//! A new provider of models is a row here and in `docs/routes.md`. A new kind of tool, or another way to make a
//! provider act, belongs to `proxy/route/body.rs` and its tests.

use std::collections::BTreeMap;
use std::path::Path;

use super::environment::{self, SECRET_PATTERN};
use super::error::quote;
use super::git_route::GitRoute;
use super::paths;
use super::registry::{self, Registry};
use super::route::{
    AllowedRequest, CertificateAuthorities, METHODS, Route, RouteKind, RouteTimeouts, Upstream,
};
use super::sandbox::{self, NAME_PATTERN};
use super::table::{Entry, Located, Section};
use super::types::{Secret, SecretSource};

/// A provider that is built in.
struct Provider {
    name: &'static str,
    upstream: &'static str,
    header: &'static str,
    variable: &'static str,
    allow: &'static [&'static str],
    query: &'static [&'static str],
}

/// Addresses, headers and paths as the providers' documents have them.
const PROVIDERS: &[Provider] = &[
    Provider {
        name: "anthropic",
        upstream: "https://api.anthropic.com",
        header: "x-api-key",
        variable: "ANTHROPIC_API_KEY",
        allow: &[
            "POST /v1/messages",
            "POST /v1/messages/count_tokens",
            "GET /v1/models",
            "GET /v1/models/*",
        ],
        query: &["beta", "limit", "after_id", "before_id"],
    },
    Provider {
        name: "gemini",
        upstream: "https://generativelanguage.googleapis.com",
        header: "x-goog-api-key",
        variable: "GEMINI_API_KEY",
        allow: &[
            "POST /v1beta/models/*:generateContent",
            "POST /v1beta/models/*:streamGenerateContent",
            "POST /v1beta/models/*:countTokens",
            "POST /v1/models/*:generateContent",
            "POST /v1/models/*:streamGenerateContent",
            "POST /v1/models/*:countTokens",
            "GET /v1beta/models",
            "GET /v1beta/models/*",
        ],
        query: &["alt", "pageSize", "pageToken"],
    },
    Provider {
        name: "openai",
        upstream: "https://api.openai.com",
        header: "authorization",
        variable: "OPENAI_API_KEY",
        allow: &[
            "POST /v1/responses",
            "POST /v1/chat/completions",
            "GET /v1/models",
            "GET /v1/models/*",
        ],
        query: &["client_version"],
    },
];

/// The JSON-schema pattern of an upstream: as near as a pattern comes.
pub(super) const UPSTREAM_PATTERN: &str =
    r"^(https://|http://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/|$)).*$";
/// The JSON-schema pattern of a header's name.
const HEADER_PATTERN: &str = "^[A-Za-z][A-Za-z0-9-]{0,63}$";
/// The schema's pattern of a key's prefix.
const PREFIX_PATTERN: &str = "^[ -~]{0,64}$";
/// The JSON-schema pattern of a line of `allow`.
const ALLOW_PATTERN: &str = r"^(GET|HEAD|POST|PUT|PATCH|DELETE) (?!.*/\.\.?(/|$))(?!.*\*[^/]*\*)(/[A-Za-z0-9._~:@!$&'()+,=*-]+)+$";
/// The JSON-schema pattern of a query parameter's name.
const QUERY_PATTERN: &str = r"^[A-Za-z0-9$._-]{1,64}$";

/// Headers that the proxy sets itself, so none of them can carry a key.
const PROXY_HEADERS: &[&str] = &[
    "host",
    "connection",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "accept-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// The first port that is derived from a route's name, and the number of such ports.
const ASSIGNED_PORTS: (u16, u16) = (20_000, 10_000);

/// Reads the table `route`. `is_discovered`: the file was discovered, not named, so it may not use
/// secrets.
pub(super) fn read_all(
    section: &Section<'_>,
    is_discovered: bool,
    dir: &Path,
) -> BTreeMap<String, Route> {
    let mut routes: BTreeMap<String, Route> = PROVIDERS
        .iter()
        .map(|provider| (provider.name.to_owned(), built_in_route(provider)))
        .collect();
    let mut taken: BTreeMap<u16, String> = BTreeMap::new();
    for (name, item) in section.named_entries(NAME_PATTERN) {
        if !sandbox::is_valid_name(&name) {
            let form = sandbox::NAME_FORM;
            let message = format!("the route name {} must match {form}", quote(&name));
            section.diagnostics.report(&item.place, message, None);
            continue;
        }
        let Some(table) = item.section() else {
            continue;
        };
        let base = routes.remove(&name);
        let (route, port) = read(&name, &table, base, is_discovered, dir);
        if let Some(port) = port
            && let Some(other) = taken.insert(port.value, name.clone())
        {
            let message = format!("the routes {other} and {name} have the same port");
            section.diagnostics.report(&port.place, message, None);
        }
        routes.insert(name, route);
    }
    assign_ports(&mut routes, taken);
    routes
}

/// Assigns a port to every route that has none. The port depends on the route's name, so an agent's
/// files from an earlier start stay valid when other routes are added or removed.
fn assign_ports(routes: &mut BTreeMap<String, Route>, mut taken: BTreeMap<u16, String>) {
    for (name, route) in routes.iter_mut().filter(|(_, route)| route.port == 0) {
        let (first, count) = ASSIGNED_PORTS;
        // FNV-1a.
        let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let begin = u16::try_from(hash % u32::from(count)).unwrap_or(0);
        let places = (0..count).map(|step| first + (begin + step) % count);
        let free = places.into_iter().find(|port| !taken.contains_key(port));
        route.port = free.unwrap_or(first);
        taken.insert(route.port, name.clone());
    }
}

fn parse_allow_lines(lines: &[&str]) -> Vec<AllowedRequest> {
    lines
        .iter()
        .filter_map(|line| AllowedRequest::parse(line))
        .collect()
}

fn built_in_route(provider: &Provider) -> Route {
    Route {
        name: provider.name.to_owned(),
        upstream: Upstream {
            tls: true,
            authority: provider.upstream.trim_start_matches("https://").to_owned(),
            base_path: String::new(),
        },
        header: provider.header.to_owned(),
        prefix: default_prefix(provider.header).to_owned(),
        secret: Some(Secret::new(SecretSource::Variable(
            provider.variable.to_owned(),
        ))),
        allow: parse_allow_lines(provider.allow),
        query: provider.query.iter().map(|&name| name.to_owned()).collect(),
        ..default_route(provider.name)
    }
}

/// Whether a route equals the built-in one.
pub(super) fn is_built_in(route: &Route) -> bool {
    let mut known = BTreeMap::new();
    if let Some(provider) = PROVIDERS.iter().find(|known| known.name == route.name) {
        known.insert(provider.name.to_owned(), built_in_route(provider));
    }
    assign_ports(&mut known, BTreeMap::new());
    // The value of a key is never in this text.
    known
        .get(&route.name)
        .is_some_and(|known| format!("{known:?}") == format!("{route:?}"))
}

/// A route with the defaults of all routes.
fn default_route(name: &str) -> Route {
    Route {
        name: name.to_owned(),
        ..Route::default()
    }
}

fn default_prefix(header: &str) -> &'static str {
    match header {
        "authorization" => "Bearer ",
        _ => "",
    }
}

/// The route, and the port that its table has.
fn read(
    name: &str,
    section: &Section<'_>,
    base: Option<Route>,
    is_discovered: bool,
    dir: &Path,
) -> (Route, Option<Located<u16>>) {
    let mut is_known = base.is_some();
    let base = base.unwrap_or_else(|| default_route(name));
    let mut route = Route::read_keys(section, &base);
    if let Some(registry) = read_registry(section, &route) {
        route = registry::default_route(route, registry);
        route.is_of_host = section.place_of("upstream").is_none();
        is_known = true;
    }
    let elsewhere = read_upstream(section, &mut route, is_known);
    if elsewhere {
        // The built-in secret is sent only to the built-in upstream.
        route.secret = None;
    }
    if let Some(found) = section
        .get("header")
        .and_then(|item| item.text_like(HEADER_PATTERN))
    {
        route.header = parse_header(section, &found);
        route.prefix = default_prefix(&route.header).to_owned();
    }
    if let Some(found) = section
        .get("prefix")
        .and_then(|item| item.text_like(PREFIX_PATTERN))
    {
        let plain =
            found.value.len() <= 64 && found.value.bytes().all(|b| matches!(b, b' '..=b'~'));
        if !plain {
            let message = "expected at most 64 printable ASCII characters";
            section.diagnostics.report(&found.place, message, None);
        }
        route.prefix = found.value;
    }
    read_secret(section, &mut route, is_discovered, dir);
    read_git(section, &mut route, |item| {
        secret_of(section, item, is_discovered, dir)
    });
    if route.kind == RouteKind::Model {
        read_allow(section, &mut route);
    }
    if let Some(list) = section.texts_like("query", QUERY_PATTERN)
        && route.kind == RouteKind::Model
    {
        for name in &list.value {
            let is_name =
                |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'$' | b'.' | b'_' | b'-');
            if !(1..=64).contains(&name.value.len()) || !name.value.bytes().all(is_name) {
                let message = format!(
                    "expected the name of a query parameter, found {}",
                    quote(&name.value)
                );
                section.diagnostics.report(&name.place, message, None);
            }
        }
        route.query = list.value.into_iter().map(|name| name.value).collect();
    }
    registry::read(section, &mut route);
    let port = section.integer("port", 1024..=65_535_u16);
    route.port = port.as_ref().map_or(0, |port| port.value);
    if let Some(found) = section
        .get("ca")
        .and_then(|item| item.text_like(paths::PATTERN))
    {
        if let Some(fault) = paths::path_error(&found.value) {
            section.diagnostics.report(&found.place, fault, None);
        }
        route.ca = Some(CertificateAuthorities {
            path: paths::absolute(dir, &found.value),
            pem: None,
        });
    }
    let timeouts = section.section("timeouts");
    route.timeouts = RouteTimeouts::read_keys(&timeouts, &route.timeouts);
    timeouts.reject_unknown_keys(&[], &[]);
    section.reject_unknown_keys(
        &["models"],
        &[
            ("budget", "pool.NAME.budget"),
            ("url", "upstream"),
            ("base_url", "upstream"),
            ("key", "secret"),
            ("paths", "allow"),
            ("timeout", "timeouts.answer"),
        ],
    );
    (route, port)
}

/// Reads the upstream; `true` if the file names one.
fn read_upstream(section: &Section<'_>, route: &mut Route, is_known: bool) -> bool {
    let item = section.get("upstream");
    if item.is_none() && !is_known {
        let names: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
        let message = format!(
            "the route needs an upstream; only {} have one built in",
            names.join(", ")
        );
        let help = "for example: upstream = \"https://api.example.com\"";
        section
            .diagnostics
            .report(&section.place, message, Some(help.to_owned()));
    }
    let Some(found) = item.and_then(|item| item.text_like(UPSTREAM_PATTERN)) else {
        return false;
    };
    match Upstream::parse(&found.value) {
        Ok(upstream) => {
            let is_other = upstream != route.upstream;
            route.upstream = upstream;
            is_other
        }
        Err(fault) => {
            let message = format!("{fault}, found {}", quote(&found.value));
            section.diagnostics.report(&found.place, message, None);
            true
        }
    }
}

/// The kind of registry: required by `kind = "registry"`, and for no other kind.
fn read_registry(section: &Section<'_>, route: &Route) -> Option<Registry> {
    let found = section
        .get("registry")
        .and_then(|item| item.keyword::<Registry>(&[]));
    match (route.kind, found) {
        (RouteKind::Registry, Some(found)) => Some(found.value),
        (RouteKind::Registry, None) => {
            if section.place_of("registry").is_none() {
                let message = "the route needs a registry";
                let help = "for example: registry = \"npm\"".to_owned();
                section
                    .diagnostics
                    .report(&section.place, message, Some(help));
            }
            // The other keys are read as those of some registry.
            Some(Registry::Npm)
        }
        (_, Some(found)) => {
            let message = "registry needs kind = \"registry\"";
            section.diagnostics.report(&found.place, message, None);
            None
        }
        (_, None) => None,
    }
}

fn parse_header(section: &Section<'_>, found: &Located<String>) -> String {
    let name = found.value.to_ascii_lowercase();
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let is_name = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(is_token);
    let message = if !is_name {
        format!(
            "expected the name of a header such as \"x-api-key\", found {}",
            quote(&found.value)
        )
    } else if PROXY_HEADERS.contains(&name.as_str()) {
        format!("the header {} cannot carry a key", quote(&found.value))
    } else {
        return name;
    };
    section.diagnostics.report(&found.place, message, None);
    "authorization".to_owned()
}

/// A key that names where a secret is.
fn secret_of(
    section: &Section<'_>,
    item: &Entry<'_>,
    is_discovered: bool,
    dir: &Path,
) -> Option<Secret> {
    let value = item.text_like(SECRET_PATTERN)?;
    let report = |message: String, help: Option<String>| {
        section.diagnostics.report(&value.place, message, help);
    };
    match environment::require_secret_source(section, &value, dir) {
        Some(source) if is_discovered && source != SecretSource::Redacted => {
            let message = format!(
                "a discovered supervisor.toml may not use secrets, found {}",
                quote(source.kind())
            );
            let help =
                "`marshal trust` says that you trust the file as it is; or name it with --config";
            report(message, Some(help.to_owned()));
            None
        }
        Some(source) => Some(Secret::new(source)),
        None => {
            let message = "expected \"env:NAME\", \"file:PATH\" or \"credential:NAME\": the file never contains the key itself";
            report(message.to_owned(), None);
            None
        }
    }
}

fn read_secret(section: &Section<'_>, route: &mut Route, is_discovered: bool, dir: &Path) {
    let item = section.get("secret");
    let has_item = item.is_some();
    if let Some(secret) = item.and_then(|item| secret_of(section, &item, is_discovered, dir)) {
        route.secret = Some(secret);
    }
    if route.secret.is_none()
        && route.registry.is_none()
        && !has_item
        && !route.upstream.authority.is_empty()
        && !route.upstream.is_loopback()
    {
        let message = format!(
            "the route needs a secret for {}",
            quote(&route.upstream.authority)
        );
        let help =
            "for example: secret = \"env:API_KEY\"; only an upstream on this host needs none";
        section
            .diagnostics
            .report(&section.place, message, Some(help.to_owned()));
    }
}

/// Reads the keys of a git server. The requests to one follow from its repositories.
fn read_git(
    section: &Section<'_>,
    route: &mut Route,
    read_secret: impl Fn(&Entry<'_>) -> Option<Secret>,
) {
    const OF_GIT: [&str; 8] = [
        "user",
        "repositories",
        "push",
        "push_max",
        "pull_request",
        "pull_request_base",
        "api",
        "api_secret",
    ];
    const OF_MODELS: [&str; 2] = ["allow", "query"];
    let mut git = GitRoute::read(section, &route.git);
    git.read_pull_requests(section, (route.kind, &route.upstream), read_secret);
    let is_git = route.kind == RouteKind::Git;
    let foreign: &[&'static str] = match route.kind {
        RouteKind::Git => &OF_MODELS,
        // What else a registry does not have, it says itself.
        RouteKind::Model | RouteKind::Registry => &OF_GIT,
    };
    for key in foreign {
        if let Some(item) = section.get(key) {
            let message = format!(
                "{key} is not for a route of kind {}",
                quote(route.kind.as_str())
            );
            section.diagnostics.report(&item.place, message, None);
        }
    }
    if !is_git {
        return;
    }
    if git.user.is_some() && route.header != "authorization" {
        let message = format!(
            "with user the key is in the header authorization, and header is {}",
            quote(&route.header)
        );
        section.diagnostics.report(&section.place, message, None);
    }
    if route.server_tools {
        let message = "server_tools is not for a route of kind \"git\"";
        section.diagnostics.report(&section.place, message, None);
    }
    route.allow = git.requests();
    route.query = vec!["service".to_owned()];
    route.git = git;
}

fn read_allow(section: &Section<'_>, route: &mut Route) {
    let list = section.texts_like("allow", ALLOW_PATTERN);
    let is_absent = section.get("allow").is_none();
    if is_absent && route.allow.is_empty() && route.registry.is_none() {
        let message = "the route needs a list of what is allowed";
        let help = "for example: allow = [\"POST /v1/messages\"]";
        section
            .diagnostics
            .report(&section.place, message, Some(help.to_owned()));
    }
    let Some(list) = list else { return };
    if list.value.is_empty() {
        let message = "the list is empty: no request could pass";
        section.diagnostics.report(&list.place, message, None);
    }
    route.allow.clear();
    for line in list.value {
        if let Some(line) = AllowedRequest::parse(&line.value) {
            route.allow.push(line);
            continue;
        }
        let message = format!(
            "expected a method ({}) and a path of plain segments, each with at most one \"*\", such as \"POST /v1/messages\", found {}",
            METHODS.join(", "),
            quote(&line.value)
        );
        section.diagnostics.report(&line.place, message, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_that_is_built_in_is_complete() {
        for provider in PROVIDERS {
            let route = built_in_route(provider);
            let upstream = Upstream::parse(provider.upstream).expect(provider.name);
            assert_eq!(route.upstream, upstream);
            assert!(upstream.tls && !upstream.is_loopback());
            assert_eq!(route.allow.len(), provider.allow.len(), "{}", provider.name);
            assert!(!PROXY_HEADERS.contains(&provider.header));
        }
        assert!(PROVIDERS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn a_port_follows_from_its_routes_name_and_stays_when_others_come() {
        let give = |names: &[&str], taken: BTreeMap<u16, String>| {
            let mut routes = names
                .iter()
                .map(|name| ((*name).to_owned(), default_route(name)))
                .collect();
            assign_ports(&mut routes, taken);
            routes
                .into_iter()
                .map(|(name, route)| (name, route.port))
                .collect::<BTreeMap<_, _>>()
        };
        let few = give(&["anthropic", "openai"], BTreeMap::new());
        let more = give(
            &["a", "anthropic", "gemini", "openai", "z"],
            BTreeMap::new(),
        );
        assert_eq!(few["anthropic"], more["anthropic"]);
        assert_eq!(few["openai"], more["openai"]);
        let mut ports: Vec<u16> = more.values().copied().collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 5);
        let taken = BTreeMap::from([(few["openai"], "x".to_owned())]);
        assert_eq!(give(&["openai"], taken)["openai"], few["openai"] + 1);
    }
}
