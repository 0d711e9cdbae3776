//! `[egress]` and `[pool.NAME.egress]`: the hosts that a sandbox with `network = "proxy"` reaches,
//! and the limits of its connections.
//!
//! Must not know sockets, DNS or TLS.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Value;

use super::error::quote;
use super::settings::{ANY_TIME, Format, Integer, Size, Time, settings};
use super::table::{Entry, Section};
use super::types::{Network, Pool};
use marshal_model::limits;

settings! {
    /// The rules of an egress proxy.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Egress {
        /// The allowed hosts; if empty, none is reached.
        allow: Vec<AllowedHost> = Vec::new(), Hosts;
        /// The limit of concurrent connections of one slot.
        connections: u16 = 32, Integer(1..=limits::EGRESS_CONNECTIONS);
        /// The limit of new connections of one slot per minute.
        per_minute: u32 = 600, Integer(1..=limits::EGRESS_PER_MINUTE);
        /// The limit of bytes that one connection sends.
        sent_max: u64 = 256 * MIB, Size(KIB..=TIB);
        /// The limit of bytes that one connection receives.
        received_max: u64 = 8 * GIB, Size(KIB..=TIB);
        ;
        /// The timeouts of a connection.
        timeouts: EgressTimeouts = EgressTimeouts::default();
    }
}

settings! {
    /// The timeouts of a connection's steps.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct EgressTimeouts {
        /// Until a CONNECT is read completely, and from its response until the first TLS message is.
        request: Duration = 10 * SECOND, Time(OPENING);
        /// Until the host's name is resolved and the connection is established.
        connect: Duration = 10 * SECOND, Time(OPENING);
        /// The longest time without a byte in either direction.
        idle: Duration = 300 * SECOND, Time(ANY_TIME);
        /// From the first transferred byte to the end.
        total: Duration = 3600 * SECOND, Time(ANY_TIME);
    }
}

const SECOND: Duration = Duration::from_secs(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// How long the opening of a connection may take.
const OPENING: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

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

/// A list of allowed hosts.
struct Hosts;

impl Format<Vec<AllowedHost>> for Hosts {
    fn read(&self, item: &Entry<'_>) -> Option<Vec<AllowedHost>> {
        let lines = item.texts_like(ALLOW_PATTERN)?;
        if lines.len() > limits::EGRESS_HOSTS {
            let message = format!("a list has at most {} hosts", limits::EGRESS_HOSTS);
            item.report(message, None);
        }
        let parse = |(line, item): (String, Entry<'_>)| match AllowedHost::parse(&line) {
            Ok(allowed) => Some(allowed),
            Err(why) => {
                let message = format!(
                    "expected a host such as \"api.example.com:443\" or \"*.example.com:443\", found {}: {why}",
                    quote(&line)
                );
                item.report(message, None);
                None
            }
        };
        Some(lines.into_iter().filter_map(parse).collect())
    }

    fn show(&self, hosts: &Vec<AllowedHost>) -> Option<Value> {
        let lines = hosts.iter().map(ToString::to_string);
        Some(lines.collect::<Vec<_>>().into())
    }
}

/// Reads the keys of a table; `base` has the defaults.
pub(super) fn read(section: &Section<'_>, base: &Egress) -> Egress {
    let mut egress = Egress::read_keys(section, base);
    let table = section.section("timeouts");
    egress.timeouts = EgressTimeouts::read_keys(&table, &base.timeouts);
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
