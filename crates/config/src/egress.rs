//! `[egress]` and `[pool.NAME.egress]`: the hosts that a sandbox with `network = "proxy"` reaches,
//! and the limits of its connections.
//!
//! Must not know sockets, DNS or TLS.

use std::fmt;
use std::time::Duration;

use super::error::quote;
use super::table::Section;
use super::types::{Network, Pool};
use marshal_model::limits;

/// The rules of an egress proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// The allowed hosts; if empty, none is reached.
    pub allow: Vec<AllowedHost>,
    /// The limit of concurrent connections of one slot.
    pub connections: u16,
    /// The limit of new connections of one slot per minute.
    pub per_minute: u32,
    /// The limit of bytes that one connection sends.
    pub sent_max: u64,
    /// The limit of bytes that one connection receives.
    pub received_max: u64,
    /// The timeouts of a connection.
    pub timeouts: EgressTimeouts,
}

/// The timeouts of a connection's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressTimeouts {
    /// Until a CONNECT is read completely, and from its response until the first TLS message is.
    pub request: Duration,
    /// Until the host's name is resolved and the connection is established.
    pub connect: Duration,
    /// The longest time without a byte in either direction.
    pub idle: Duration,
    /// From the first transferred byte to the end.
    pub total: Duration,
}

const SECOND: Duration = Duration::from_secs(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

impl Default for Egress {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            connections: 32,
            per_minute: 600,
            sent_max: 256 * MIB,
            received_max: 8 * GIB,
            timeouts: EgressTimeouts {
                request: 10 * SECOND,
                connect: 10 * SECOND,
                idle: 300 * SECOND,
                total: 3600 * SECOND,
            },
        }
    }
}

/// One line of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    /// `true`: every host below this one, at any depth, but not itself.
    is_suffix: bool,
    host: String,
    port: u16,
}

/// The default port of a line.
const PORT: u16 = 443;

/// The JSON-schema pattern of a line.
const ALLOW_PATTERN: &str = r"^(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?$";

/// Why a text is not a host for an allow-list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostNameError {
    /// It is empty.
    Empty,
    /// More than 253 bytes, or a part of more than 63.
    TooLong,
    /// An address, in any notation that some program accepts.
    Address,
    /// A dot at its end.
    TrailingDot,
    /// A part that is not valid in a host name.
    InvalidLabel,
    /// A name of one part.
    SingleLabel,
}

impl HostNameError {
    /// The message; it contains no text of the host.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Empty => "the host is empty",
            Self::TooLong => "the host is longer than a name can be",
            Self::Address => "the host is an address or a number: only names are allowed",
            Self::TrailingDot => "the host ends with a dot",
            Self::InvalidLabel => {
                "the host is not a plain name: use letters, digits and \"-\" in parts separated by dots"
            }
            Self::SingleLabel => "the host is a name of one part: expected a full name",
        }
    }
}

/// Checks that a lower-case text is a full host name: at least two valid parts, the last one
/// starting with a letter, so that no program reads it as an address in any notation.
///
/// # Errors
/// What it is instead.
pub fn check_host_name(text: &str) -> Result<(), HostNameError> {
    let is_of_names = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    if text.is_empty() {
        return Err(HostNameError::Empty);
    }
    if text.contains(':') {
        return Err(HostNameError::Address);
    }
    if !text.bytes().all(is_of_names) {
        return Err(HostNameError::InvalidLabel);
    }
    if text.ends_with('.') {
        return Err(HostNameError::TrailingDot);
    }
    if text.len() > 253 || text.split('.').any(|part| part.len() > 63) {
        return Err(HostNameError::TooLong);
    }
    let is_odd = |part: &str| part.is_empty() || part.starts_with('-') || part.ends_with('-');
    if text.split('.').any(is_odd) {
        return Err(HostNameError::InvalidLabel);
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    if last.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(HostNameError::Address);
    }
    if last.len() == text.len() {
        return Err(HostNameError::SingleLabel);
    }
    Ok(())
}

impl AllowedHost {
    /// Reads `HOST`, `HOST:PORT`, `*.HOST` or `*.HOST:PORT`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, port) = match text.split_once(':') {
            None => (text, PORT),
            Some((_, port)) if port.contains(':') => return Err(HostNameError::Address.message()),
            Some((host, port)) => {
                let is_plain = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port
                    .parse::<u16>()
                    .ok()
                    .filter(|port| *port > 0)
                    .filter(|_| is_plain && !text.contains(":0"));
                (
                    host,
                    port.ok_or("the port is not a number from 1 to 65535")?,
                )
            }
        };
        let (is_suffix, host) = match host.strip_prefix("*.") {
            Some(below) => (true, below),
            None => (false, host),
        };
        if host.starts_with('[') {
            return Err(HostNameError::Address.message());
        }
        if host.contains('*') {
            return Err("a \"*\" is allowed only at the start, followed by a dot");
        }
        if host.starts_with('.') {
            return Err("write the hosts below a domain as \"*.example.com\"");
        }
        if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err("write the host in lower case");
        }
        check_host_name(host).map_err(HostNameError::message)?;
        Ok(Self {
            is_suffix,
            host: host.to_owned(),
            port,
        })
    }

    /// Whether it allows this host, which is in lower case.
    #[must_use]
    pub fn allows(&self, host: &str, port: u16) -> bool {
        let is_host = if self.is_suffix {
            let before = host.strip_suffix(self.host.as_str());
            before.is_some_and(|before| before.len() > 1 && before.ends_with('.'))
        } else {
            host == self.host
        };
        is_host && port == self.port
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_suffix { "*." } else { "" };
        write!(f, "{star}{}:{}", self.host, self.port)
    }
}

/// Reads the keys of a table; `base` has the defaults.
pub(super) fn read(section: &Section<'_>, base: &Egress) -> Egress {
    let mut egress = base.clone();
    if let Some(list) = section.texts_like("allow", ALLOW_PATTERN) {
        if list.value.len() > limits::EGRESS_HOSTS {
            let message = format!("a list has at most {} hosts", limits::EGRESS_HOSTS);
            section.diagnostics.report(&list.place, message, None);
        }
        egress.allow.clear();
        for line in list.value {
            match AllowedHost::parse(&line.value) {
                Ok(allowed) => egress.allow.push(allowed),
                Err(why) => {
                    let message = format!(
                        "expected a host such as \"api.example.com:443\" or \"*.example.com:443\", found {}: {why}",
                        quote(&line.value)
                    );
                    section.diagnostics.report(&line.place, message, None);
                }
            }
        }
    }
    let connections = section.integer("connections", 1..=limits::EGRESS_CONNECTIONS);
    egress.connections = connections.map_or(egress.connections, |found| found.value);
    let per_minute = section.integer("per_minute", 1..=limits::EGRESS_PER_MINUTE);
    egress.per_minute = per_minute.map_or(egress.per_minute, |found| found.value);
    let sent_max = section.size("sent_max", KIB..=TIB);
    egress.sent_max = sent_max.map_or(egress.sent_max, |found| found.value);
    let received_max = section.size("received_max", KIB..=TIB);
    egress.received_max = received_max.map_or(egress.received_max, |found| found.value);
    let table = section.section("timeouts");
    let read = |name, time: &mut Duration, most: Duration| {
        let found = table.duration(name, Duration::from_millis(1)..=most);
        *time = found.map_or(*time, |found| found.value);
    };
    let timeouts = &mut egress.timeouts;
    read("request", &mut timeouts.request, 60 * SECOND);
    read("connect", &mut timeouts.connect, 60 * SECOND);
    read("idle", &mut timeouts.idle, limits::CONFIG_DURATION);
    read("total", &mut timeouts.total, limits::CONFIG_DURATION);
    table.reject_unknown_keys(&[], &[]);
    section.reject_unknown_keys(
        &[],
        &[
            ("hosts", "allow"),
            ("domains", "allow"),
            ("timeout", "timeouts.total"),
            ("idle", "timeouts.idle"),
        ],
    );
    egress
}

impl Network {
    /// Whether the supervisor listens on ports inside the sandbox.
    #[must_use]
    pub const fn serves_ports(self) -> bool {
        matches!(self, Self::Routes | Self::Proxy)
    }
}

impl Pool {
    /// The ports inside the sandbox that the supervisor listens on: those of the routes in their
    /// order, then the proxy's.
    #[must_use]
    pub fn sandbox_ports(&self) -> Vec<u16> {
        let routes = self.routes.iter().map(|route| route.port);
        let proxy = self.egress.as_ref().map(|_| limits::EGRESS_PORT);
        routes.chain(proxy).collect()
    }

    /// The variables that tell programs inside where the proxy is; empty without a proxy.
    #[must_use]
    pub fn proxy_variables(&self) -> Vec<(&'static str, String)> {
        if self.network != Network::Proxy {
            return Vec::new();
        }
        proxy_variables()
    }
}

/// See [`Pool::proxy_variables`].
#[must_use]
pub fn proxy_variables() -> Vec<(&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{}", limits::EGRESS_PORT);
    let names = [
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ];
    let here = "127.0.0.1,localhost,::1".to_owned();
    let proxied = names.map(|name| (name, proxy.clone()));
    let direct = ["NO_PROXY", "no_proxy"].map(|name| (name, here.clone()));
    proxied.into_iter().chain(direct).collect()
}

#[cfg(test)]
mod tests;
