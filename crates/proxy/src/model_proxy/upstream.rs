//! One route's upstream: an HTTP client with a few idle connections, TLS except to this host, and
//! the key.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderName, HeaderValue, InvalidHeaderName, InvalidHeaderValue};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::bodies::RequestBody;
use super::tls::{TlsError, client_config};
use crate::route::{KeyForms, REGISTRY_CONTENTS};
use marshal_config::{Route, Secret};
use marshal_model::limits::{ROUTE_IDLE_TIME, ROUTE_IDLE_UPSTREAM};

/// Why a route cannot be served. No message contains the key.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The key was not read, or is not valid in a header.
    #[error("route {0}: its key is missing, or not valid in a header")]
    Key(String, #[source] Option<InvalidHeaderValue>),
    /// The configured header name is invalid.
    #[error("route {0}: {1}")]
    Header(String, InvalidHeaderName),
    /// The file of certificate authorities has no usable certificate.
    #[error("route {route}: {path} contains no usable certificate authority in PEM format")]
    Authorities {
        /// The route's name.
        route: String,
        /// The file's path.
        path: String,
    },
    /// TLS cannot be set up.
    #[error("route {0}: {1}")]
    Tls(String, rustls::Error),
}

/// A route and everything needed to serve it.
pub struct Upstream {
    pub(super) route: Route,
    /// What depends on the key. A request keeps what it began with to its end.
    keyed: ArcSwap<KeyedClient>,
    /// The lines of the allow list, or the kinds of content of a registry, as text.
    pub(super) allow_lines: Vec<String>,
}

/// A key, and the connections that requests with it use.
pub struct KeyedClient {
    pub(super) client: Client<HttpsConnector<HttpConnector>, RequestBody>,
    /// The header that carries the key.
    pub(super) key: Option<(HeaderName, HeaderValue)>,
    /// The forms of the key, to search responses for it; `None` for one so short that it would match
    /// by chance.
    pub(super) key_forms: Option<Arc<KeyForms>>,
}

impl std::fmt::Debug for KeyedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyedClient")
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upstream({})", self.route.name)
    }
}

impl Upstream {
    /// Builds the client of a route whose key and authorities were read.
    ///
    /// # Errors
    /// [`UpstreamError`]
    pub fn new(route: &Route) -> Result<Self, UpstreamError> {
        Ok(Self {
            keyed: ArcSwap::from_pointee(KeyedClient::new(route, route.secret.as_ref())?),
            allow_lines: match route.registry {
                Some(_) => REGISTRY_CONTENTS.map(str::to_owned).to_vec(),
                None => route.allow.iter().map(ToString::to_string).collect(),
            },
            route: route.clone(),
        })
    }

    /// The name of its route.
    #[must_use]
    pub fn route_name(&self) -> &String {
        &self.route.name
    }

    /// Prepares another key of the route.
    ///
    /// # Errors
    /// [`UpstreamError`]
    pub fn prepare_key(&self, secret: &Secret) -> Result<KeyedClient, UpstreamError> {
        KeyedClient::new(&self.route, Some(secret))
    }

    /// Uses another key for requests from now on. The idle connections of the former one are
    /// closed.
    pub fn use_key(&self, key: KeyedClient) {
        self.keyed.store(Arc::new(key));
    }

    /// The key and the client of a request that begins now.
    pub(super) fn keyed_client(&self) -> Arc<KeyedClient> {
        self.keyed.load_full()
    }

    /// The URL of a request.
    pub(super) fn uri(&self, target: &str) -> String {
        format!("{}{target}", self.route.upstream)
    }
}

impl KeyedClient {
    fn new(route: &Route, secret: Option<&Secret>) -> Result<Self, UpstreamError> {
        let name = || route.name.clone();
        let key = match secret {
            None => None,
            Some(secret) => {
                let value = secret
                    .expose()
                    .ok_or_else(|| UpstreamError::Key(name(), None))?;
                let text = match &route.git.user {
                    Some(user) => format!("Basic {}", STANDARD.encode(format!("{user}:{value}"))),
                    None => format!("{}{value}", route.prefix),
                };
                let mut value = HeaderValue::from_str(&text)
                    .map_err(|error| UpstreamError::Key(name(), Some(error)))?;
                value.set_sensitive(true);
                let header = HeaderName::from_bytes(route.header.as_bytes())
                    .map_err(|error| UpstreamError::Header(name(), error))?;
                Some((header, value))
            }
        };
        let secret = secret.and_then(Secret::expose);
        let key_forms = secret
            .filter(|secret| secret.len() >= SHORTEST_KEY)
            .map(|secret| Arc::new(KeyForms::new(secret.as_bytes())));
        let tls = client_config(route.ca.as_ref()).map_err(|error| match error {
            TlsError::Authorities(path) => UpstreamError::Authorities {
                route: name(),
                path,
            },
            TlsError::Tls(error) => UpstreamError::Tls(name(), error),
        })?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(route.timeouts.connect));
        tcp.set_keepalive(Some(KEEPALIVE));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls);
        // Plain HTTP is in a checked route only for a loopback address.
        let connector = connector.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(ROUTE_IDLE_TIME)
            .pool_max_idle_per_host(ROUTE_IDLE_UPSTREAM)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self {
            client,
            key,
            key_forms,
        })
    }
}

/// The length of the shortest key that responses are searched for, in bytes.
const SHORTEST_KEY: usize = 8;

/// Interval of TCP keep-alive probes on idle connections.
const KEEPALIVE: Duration = Duration::from_secs(30);
