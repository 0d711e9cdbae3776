//! The way of a model request: from a socket that listens inside a sandbox to one upstream, with
//! the key added outside.
//!
//! ```text
//! agent -> 127.0.0.1:PORT inside -- accepted here --> head and list (route/), body read whole and
//!                                                     looked into, key added --> upstream
//!       <------------------------ answer, piece by piece as it comes, tokens counted on the way --
//! ```
//!
//! Floor 3. Who asks is known by the socket: it is the child's own. One request a connection, so
//! that nothing of one can be taken for a part of another. Nothing here logs, keeps or journals what
//! a header or a body holds. Must not know tasks, turns or protocols of agents.

mod bodies;
mod connection;
mod exchange;
mod rate_limits;
mod tls;
mod upstream;
mod usage_meter;
mod webhook;

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use rate_limits::{RateLimitStatus, RateLimitWatch};
pub use tls::TlsError;
pub use upstream::{Upstream, UpstreamError};
pub use usage_meter::{BillingInfo, Unmetered, UsageMeter};
pub use webhook::{WebhookClient, WebhookError, WebhookSetupError};

use connection::RouteContext;
use marshal_model::SlotId;

/// The relays of one child. When it is dropped they end, with all their connections and sockets.
#[derive(Debug, Default)]
pub struct ModelProxy(Vec<JoinHandle<()>>);

impl Drop for ModelProxy {
    fn drop(&mut self) {
        for relay in &self.0 {
            relay.abort();
        }
    }
}

impl ModelProxy {
    /// Serves a child's sockets, each for the upstream at the same place; `purse` pays for what
    /// passes. Needs a runtime around it.
    #[must_use]
    pub fn start(
        listeners: Vec<StdListener>,
        upstreams: &[Arc<Upstream>],
        slot: &SlotId,
        watch: &Arc<RateLimitWatch>,
        purse: &Arc<dyn UsageMeter>,
    ) -> Self {
        let pairs = listeners.into_iter().zip(upstreams);
        let start = |(listener, upstream): (StdListener, &Arc<Upstream>)| {
            let listener = listener
                .set_nonblocking(true)
                .and_then(|()| TcpListener::from_std(listener))
                .inspect_err(|error| tracing::error!(%slot, %error, "a route is not served"))
                .ok()?;
            let (watch, purse) = (Arc::clone(watch), Arc::clone(purse));
            let gate = RouteContext::new(Arc::clone(upstream), slot.clone(), watch, purse);
            Some(tokio::spawn(connection::serve(listener, Arc::new(gate))))
        };
        Self(pairs.filter_map(start).collect())
    }
}
