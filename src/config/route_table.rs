//! `[route.NAME]`: the routes, with those of well-known providers built in.
//!
//! Must not know pools, HTTP or sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::environment::{self, SECRET_PATTERN};
use super::error::quoted;
use super::paths;
use super::route::{Allowed, Authorities, METHODS, Route, RouteTimeouts, Upstream};
use super::sandbox::{self, NAME_PATTERN};
use super::table::{Found, Section};
use super::types::{Secret, SecretSource};
use crate::limits;

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

/// What the schema says of an upstream: as near as a pattern comes.
const UPSTREAM_PATTERN: &str =
    r"^(https://|http://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/|$)).*$";
/// What the schema says of a header's name.
const HEADER_PATTERN: &str = "^[A-Za-z][A-Za-z0-9-]{0,63}$";
/// What the schema says of what stands before a key.
const PREFIX_PATTERN: &str = "^[ -~]{0,64}$";
/// What the schema says of a line of `allow`.
const ALLOW_PATTERN: &str = r"^(GET|HEAD|POST|PUT|PATCH|DELETE) (?!.*/\.\.?(/|$))(?!.*\*[^/]*\*)(/[A-Za-z0-9._~:@!$&'()+,=*-]+)+$";
/// What the schema says of a query parameter's name.
const QUERY_PATTERN: &str = r"^[A-Za-z0-9$._-]{1,64}$";

/// Headers that the proxy makes itself, so that none of them can carry a key.
const OWN_HEADERS: &[&str] = &[
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

const SECOND: Duration = Duration::from_secs(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The longest request body that may be asked for, in bytes: several are held at the same time.
const BODY_MOST: u64 = limits::ROUTE_BODIES_BYTES as u64 / 4;

/// The first of the ports that are given by name, and how many there are.
const PORTS: (u16, u16) = (20_000, 10_000);

/// Reads the table `route`. `found`: the file was found, not named, so it may not reach for
/// secrets.
pub(super) fn read_all(section: &Section<'_>, found: bool, dir: &Path) -> BTreeMap<String, Route> {
    let mut routes: BTreeMap<String, Route> = PROVIDERS
        .iter()
        .map(|provider| (provider.name.to_owned(), built_in(provider)))
        .collect();
    let mut taken: BTreeMap<u16, String> = BTreeMap::new();
    for (name, item) in section.named(NAME_PATTERN) {
        if !sandbox::is_name(&name) {
            let form = sandbox::NAME;
            let message = format!("the route name {} must match {form}", quoted(&name));
            section.ledger.fault(&item.place, message, None);
            continue;
        }
        let Some(table) = item.section() else {
            continue;
        };
        let base = routes.remove(&name);
        let (route, port) = read(&name, &table, base, found, dir);
        if let Some(port) = port
            && let Some(other) = taken.insert(port.value, name.clone())
        {
            let message = format!("the routes {other} and {name} have the same port");
            section.ledger.fault(&port.place, message, None);
        }
        routes.insert(name, route);
    }
    give_ports(&mut routes, taken);
    routes
}

/// Gives a port to every route that has none: by its name, so that an agent's files from an
/// earlier start still lead there when other routes come or go.
fn give_ports(routes: &mut BTreeMap<String, Route>, mut taken: BTreeMap<u16, String>) {
    for (name, route) in routes.iter_mut().filter(|(_, route)| route.port == 0) {
        let (first, count) = PORTS;
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

fn allowed(lines: &[&str]) -> Vec<Allowed> {
    lines
        .iter()
        .filter_map(|line| Allowed::parse(line))
        .collect()
}

fn built_in(provider: &Provider) -> Route {
    Route {
        name: provider.name.to_owned(),
        upstream: Upstream {
            tls: true,
            authority: provider.upstream.trim_start_matches("https://").to_owned(),
            base: String::new(),
        },
        header: provider.header.to_owned(),
        prefix: prefix_of(provider.header).to_owned(),
        secret: Some(Secret::new(SecretSource::Variable(
            provider.variable.to_owned(),
        ))),
        allow: allowed(provider.allow),
        query: provider.query.iter().map(|&name| name.to_owned()).collect(),
        ..blank(provider.name)
    }
}

/// Whether a route is just what is built in.
pub(super) fn is_built_in(route: &Route) -> bool {
    let mut known = BTreeMap::new();
    if let Some(provider) = PROVIDERS.iter().find(|known| known.name == route.name) {
        known.insert(provider.name.to_owned(), built_in(provider));
    }
    give_ports(&mut known, BTreeMap::new());
    // A key's value is in no such text.
    known
        .get(&route.name)
        .is_some_and(|known| format!("{known:?}") == format!("{route:?}"))
}

/// A route with the defaults of all routes.
fn blank(name: &str) -> Route {
    Route {
        name: name.to_owned(),
        upstream: Upstream {
            tls: true,
            authority: String::new(),
            base: String::new(),
        },
        header: "authorization".to_owned(),
        prefix: prefix_of("authorization").to_owned(),
        secret: None,
        allow: Vec::new(),
        query: Vec::new(),
        port: 0,
        body_max: 32 * MIB,
        server_tools: false,
        ca: None,
        connections: 16,
        timeouts: RouteTimeouts {
            connect: 10 * SECOND,
            request: 60 * SECOND,
            answer: 600 * SECOND,
            idle: 300 * SECOND,
        },
    }
}

fn prefix_of(header: &str) -> &'static str {
    match header {
        "authorization" => "Bearer ",
        _ => "",
    }
}

/// The route, and the port that it asks for.
fn read(
    name: &str,
    section: &Section<'_>,
    base: Option<Route>,
    found: bool,
    dir: &Path,
) -> (Route, Option<Found<u16>>) {
    let is_known = base.is_some();
    let mut route = base.unwrap_or_else(|| blank(name));
    let elsewhere = upstream(section, &mut route, is_known);
    if elsewhere {
        // A key goes only where it was said to go.
        route.secret = None;
    }
    if let Some(found) = section
        .item("header")
        .and_then(|item| item.text_like(HEADER_PATTERN))
    {
        route.header = header(section, &found);
        route.prefix = prefix_of(&route.header).to_owned();
    }
    if let Some(found) = section
        .item("prefix")
        .and_then(|item| item.text_like(PREFIX_PATTERN))
    {
        let plain =
            found.value.len() <= 64 && found.value.bytes().all(|b| matches!(b, b' '..=b'~'));
        if !plain {
            let message = "expected at most 64 printable ASCII characters";
            section.ledger.fault(&found.place, message, None);
        }
        route.prefix = found.value;
    }
    secret(section, &mut route, found, dir);
    allow(section, &mut route);
    if let Some(list) = section.texts_like("query", QUERY_PATTERN) {
        for name in &list.value {
            let is_name =
                |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'$' | b'.' | b'_' | b'-');
            if !(1..=64).contains(&name.value.len()) || !name.value.bytes().all(is_name) {
                let message = format!(
                    "expected the name of a query parameter, found {}",
                    quoted(&name.value)
                );
                section.ledger.fault(&name.place, message, None);
            }
        }
        route.query = list.value.into_iter().map(|name| name.value).collect();
    }
    let port = section.integer("port", 1024..=65_535_u16);
    route.port = port.as_ref().map_or(0, |port| port.value);
    let body_max = section.size("body_max", KIB..=BODY_MOST);
    route.body_max = body_max.map_or(route.body_max, |found| found.value);
    let server_tools = section.boolean("server_tools");
    route.server_tools = server_tools.map_or(route.server_tools, |found| found.value);
    let connections = section.integer("connections", 1..=limits::ROUTE_CONNECTIONS);
    route.connections = connections.map_or(route.connections, |found| found.value);
    if let Some(found) = section
        .item("ca")
        .and_then(|item| item.text_like(paths::PATTERN))
    {
        if let Some(fault) = paths::fault(&found.value) {
            section.ledger.fault(&found.place, fault, None);
        }
        route.ca = Some(Authorities {
            path: paths::absolute(dir, &found.value),
            pem: None,
        });
    }
    timeouts(&section.section("timeouts"), &mut route.timeouts);
    section.close(
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
fn upstream(section: &Section<'_>, route: &mut Route, is_known: bool) -> bool {
    let item = section.item("upstream");
    if item.is_none() && !is_known {
        let names: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
        let message = format!(
            "the route needs an upstream; only {} have one built in",
            names.join(", ")
        );
        let help = "for example: upstream = \"https://api.example.com\"";
        section
            .ledger
            .fault(&section.place, message, Some(help.to_owned()));
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
            let message = format!("{fault}, found {}", quoted(&found.value));
            section.ledger.fault(&found.place, message, None);
            true
        }
    }
}

fn header(section: &Section<'_>, found: &Found<String>) -> String {
    let name = found.value.to_ascii_lowercase();
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let is_name = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(is_token);
    let message = if !is_name {
        format!(
            "expected the name of a header such as \"x-api-key\", found {}",
            quoted(&found.value)
        )
    } else if OWN_HEADERS.contains(&name.as_str()) {
        format!("the header {} cannot carry a key", quoted(&found.value))
    } else {
        return name;
    };
    section.ledger.fault(&found.place, message, None);
    "authorization".to_owned()
}

fn secret(section: &Section<'_>, route: &mut Route, found: bool, dir: &Path) {
    let item = section.item("secret");
    let has_item = item.is_some();
    if let Some(value) = item.and_then(|item| item.text_like(SECRET_PATTERN)) {
        match environment::only_secret(section, &value, dir) {
            Some(source) if found && source != SecretSource::NotShown => {
                let message = format!(
                    "a supervisor.toml that was found may not use secrets, found {}",
                    quoted(source.kind())
                );
                let help = Some("name the file with --config if you trust it".to_owned());
                section.ledger.fault(&value.place, message, help);
            }
            Some(source) => route.secret = Some(Secret::new(source)),
            None => {
                let message =
                    "expected \"env:NAME\" or \"file:PATH\": a key never stands in the file";
                section.ledger.fault(&value.place, message, None);
            }
        }
    }
    if route.secret.is_none()
        && !has_item
        && !route.upstream.authority.is_empty()
        && !route.upstream.is_loopback()
    {
        let message = format!(
            "the route needs a secret for {}",
            quoted(&route.upstream.authority)
        );
        let help =
            "for example: secret = \"env:API_KEY\"; only an upstream on this host needs none";
        section
            .ledger
            .fault(&section.place, message, Some(help.to_owned()));
    }
}

fn allow(section: &Section<'_>, route: &mut Route) {
    let list = section.texts_like("allow", ALLOW_PATTERN);
    let is_absent = section.item("allow").is_none();
    if is_absent && route.allow.is_empty() {
        let message = "the route needs a list of what is allowed";
        let help = "for example: allow = [\"POST /v1/messages\"]";
        section
            .ledger
            .fault(&section.place, message, Some(help.to_owned()));
    }
    let Some(list) = list else { return };
    if list.value.is_empty() {
        let message = "the list is empty: nothing could be asked";
        section.ledger.fault(&list.place, message, None);
    }
    route.allow.clear();
    for line in list.value {
        if let Some(line) = Allowed::parse(&line.value) {
            route.allow.push(line);
            continue;
        }
        let message = format!(
            "expected a method ({}) and a path of plain segments, each with at most one \"*\", such as \"POST /v1/messages\", found {}",
            METHODS.join(", "),
            quoted(&line.value)
        );
        section.ledger.fault(&line.place, message, None);
    }
}

fn timeouts(section: &Section<'_>, timeouts: &mut RouteTimeouts) {
    let most = limits::CONFIG_DURATION;
    let read = |name, time: &mut Duration| {
        let found = section.duration(name, Duration::from_millis(1)..=most);
        *time = found.map_or(*time, |found| found.value);
    };
    read("connect", &mut timeouts.connect);
    read("request", &mut timeouts.request);
    read("answer", &mut timeouts.answer);
    read("idle", &mut timeouts.idle);
    section.close(&[], &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_that_is_built_in_is_complete() {
        for provider in PROVIDERS {
            let route = built_in(provider);
            let upstream = Upstream::parse(provider.upstream).expect(provider.name);
            assert_eq!(route.upstream, upstream);
            assert!(upstream.tls && !upstream.is_loopback());
            assert_eq!(route.allow.len(), provider.allow.len(), "{}", provider.name);
            assert!(!OWN_HEADERS.contains(&provider.header));
        }
        assert!(PROVIDERS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn a_port_follows_from_its_routes_name_and_stays_when_others_come() {
        let give = |names: &[&str], taken: BTreeMap<u16, String>| {
            let routes = names.iter().map(|name| ((*name).to_owned(), blank(name)));
            let mut routes = routes.collect();
            give_ports(&mut routes, taken);
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
