//! Checks by `Host` and `Origin` whether a request is meant for this server.
//!
//! A web page whose host name was rebound to our address (DNS rebinding) sends that name as `Host`
//! and is refused. A page of another server that makes a browser send requests to us sends its own
//! name as `Origin` and is refused too. Must not know the requests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header, uri::Authority};
use axum::middleware::Next;
use axum::response::Response;

use super::{problem, with_connection_close};
use crate::api::guard::Peer;

/// The host names of a server.
#[derive(Debug, Clone)]
pub(super) struct HostNames {
    /// Further names, `NAME` or `NAME:PORT`, in lower case.
    pub(super) hosts: Arc<[String]>,
    /// The port to assume if `Host` has none.
    pub(super) default_port: u16,
}

/// Refuses requests that name another server.
pub(super) async fn check_origin(
    State(names): State<HostNames>,
    request: Request,
    next: Next,
) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().copied() else {
        return with_connection_close(problem(
            StatusCode::MISDIRECTED_REQUEST,
            "the local address of this connection is unknown",
        ));
    };
    if !is_host_allowed(&names, peer, request.uri(), request.headers()) {
        return with_connection_close(problem(
            StatusCode::MISDIRECTED_REQUEST,
            "the Host header names another server; use the address with its port, localhost where that is a loopback address, or a name of http.hosts",
        ));
    }
    if !is_origin_allowed(&names, peer, request.headers()) {
        return with_connection_close(problem(
            StatusCode::FORBIDDEN,
            "the Origin header names another server, whose pages may not send requests here",
        ));
    }
    next.run(request).await
}

fn is_host_allowed(names: &HostNames, peer: Peer, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let named = host
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Authority>().ok());
    named.is_some_and(|named| names.has(peer, &named, names.default_port))
        && uri
            .authority()
            .is_none_or(|named| names.has(peer, named, names.default_port))
}

fn is_origin_allowed(names: &HostNames, peer: Peer, headers: &HeaderMap) -> bool {
    headers.get_all(header::ORIGIN).iter().all(|origin| {
        let text = origin.to_str().unwrap_or_default();
        let (named, port) = if let Some(named) = text.strip_prefix("http://") {
            (named, 80)
        } else if let Some(named) = text.strip_prefix("https://") {
            (named, 443)
        } else {
            return false;
        };
        // This listener speaks one of the two. A page of the other comes from another server, or
        // through a proxy in front of this one, whose port `http.hosts` names.
        let is_own_scheme = port == names.default_port;
        let named = named.parse::<Authority>();
        named.is_ok_and(|named| {
            (is_own_scheme || names.is_behind_proxy(&named, port)) && names.has(peer, &named, port)
        })
    })
}

impl HostNames {
    fn has(&self, peer: Peer, named: &Authority, usual_port: u16) -> bool {
        let Some((host, port)) = split_authority(named, usual_port) else {
            return false;
        };
        let Peer::Address { local, .. } = peer else {
            return host == "localhost";
        };
        let is_direct =
            port == local.port() && (names_address(local, &host) || self.hosts.contains(&host));
        is_direct || self.is_behind_proxy(named, usual_port)
    }

    /// Whether `http.hosts` has this name with this port.
    fn is_behind_proxy(&self, named: &Authority, usual_port: u16) -> bool {
        split_authority(named, usual_port).is_some_and(|(host, port)| {
            self.hosts.iter().any(|known| {
                known
                    .split_once(':')
                    .is_some_and(|(known, at)| known == host && at.parse() == Ok(port))
            })
        })
    }
}

/// The host in lower case, and the port; `None` if there is more, or the port is not a number.
fn split_authority(named: &Authority, usual_port: u16) -> Option<(String, u16)> {
    let is_odd =
        named.as_str().contains('@') || named.port().is_some() && named.port_u16().is_none();
    // `host()` keeps the brackets of an IPv6 address.
    (!is_odd).then(|| {
        (
            named.host().to_ascii_lowercase(),
            named.port_u16().unwrap_or(usual_port),
        )
    })
}

fn names_address(local: SocketAddr, host: &str) -> bool {
    let ip = local.ip().to_canonical();
    if ip.is_loopback() && matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
        return true;
    }
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    bare.parse() == Ok(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(local: &str) -> Peer {
        Peer::Address {
            remote: [10, 0, 0, 9].into(),
            local: local.parse().expect("address"),
        }
    }

    fn names(usual_port: u16) -> HostNames {
        HostNames {
            hosts: ["marshal.example".to_owned(), "front.example:443".to_owned()].into(),
            default_port: usual_port,
        }
    }

    #[test]
    fn a_host_is_the_address_itself_or_a_name_of_the_file() {
        let check = |local: &str, host: &str, expect: bool| {
            let mut headers = HeaderMap::new();
            headers.append(header::HOST, host.parse().expect("value"));
            let uri = Uri::from_static("/x");
            let names = names(443);
            assert_eq!(
                is_host_allowed(&names, at(local), &uri, &headers),
                expect,
                "{local} {host}"
            );
        };
        for (local, host) in [
            ("127.0.0.1:7117", "localhost:7117"),
            ("127.0.0.1:7117", "[::1]:7117"),
            ("127.8.8.8:7117", "127.8.8.8:7117"),
            ("10.0.0.1:7117", "10.0.0.1:7117"),
            ("10.0.0.1:443", "10.0.0.1"),
            ("10.0.0.1:7117", "Marshal.Example:7117"),
            ("10.0.0.1:7117", "front.example"),
            ("10.0.0.1:7117", "front.example:443"),
            ("[2001:db8::1]:7117", "[2001:db8:0::1]:7117"),
            ("[::ffff:10.0.0.1]:7117", "10.0.0.1:7117"),
            ("[::ffff:127.0.0.1]:7117", "localhost:7117"),
        ] {
            check(local, host, true);
        }
        for (local, host) in [
            ("10.0.0.1:7117", "localhost:7117"),
            ("10.0.0.1:7117", "127.0.0.1:7117"),
            ("10.0.0.1:7117", "10.0.0.2:7117"),
            ("10.0.0.1:7117", "10.0.0.1"),
            ("10.0.0.1:7117", "10.0.0.1:80"),
            ("10.0.0.1:7117", "marshal.example"),
            ("10.0.0.1:7117", "marshal.example.evil:7117"),
            ("10.0.0.1:7117", "x@marshal.example:7117"),
            ("10.0.0.1:7117", "front.example:7117"),
            ("10.0.0.1:7117", "10.0.0.1.nip.example:7117"),
            ("127.0.0.1:7117", "evil.example:7117"),
        ] {
            check(local, host, false);
        }
    }

    #[test]
    fn pages_of_other_servers_may_not_ask() {
        let check = |peer: Peer, origins: &[&str], expect: bool| {
            let mut headers = HeaderMap::new();
            for origin in origins {
                headers.append(header::ORIGIN, origin.parse().expect("value"));
            }
            let names = names(80);
            assert_eq!(
                is_origin_allowed(&names, peer, &headers),
                expect,
                "{origins:?}"
            );
        };
        let here = at("127.0.0.1:7117");
        for good in [
            "http://localhost:7117",
            "http://127.0.0.1:7117",
            "https://front.example",
        ] {
            check(here, &[good], true);
        }
        check(here, &[], true);
        for bad in [
            "null",
            "",
            "https://localhost:7117",
            "https://127.0.0.1:7117",
            "https://marshal.example:7117",
            "http://localhost",
            "http://localhost:7118",
            "https://evil.example",
            "http://evil.example:7117",
            "file://localhost:7117",
            "http://localhost:7117@evil.example",
        ] {
            check(here, &[bad], false);
        }
        check(here, &["http://localhost:7117", "null"], false);
        check(Peer::Owner(0), &["null"], false);
        check(Peer::Owner(0), &[], true);
    }
}
