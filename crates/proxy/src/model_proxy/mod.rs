//! The model proxy: forwards requests from a socket inside a sandbox to one upstream, and adds the
//! key outside the sandbox.
//!
//! ```text
//! agent -> 127.0.0.1:PORT inside -- accepted here --> head and allow list checked (route/), body
//!                                                     read and inspected, key added --> upstream
//!       <------------------------- response, chunk by chunk as it arrives, token usage counted --
//! ```
//!
//! The socket identifies the child: each child has its own. A connection carries one request, so
//! that no part of one request can be taken for another (request smuggling). Nothing here logs,
//! stores or journals the content of headers or bodies. Must not know tasks, turns or protocols of
//! agents.

mod bodies;
mod connection;
mod exchange;
mod forge_client;
mod git;
mod own_push;
mod rate_limits;
mod registry;
mod tls;
mod upstream;
mod usage_meter;
mod webhook;

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use forge_client::{ForgeClient, ForgeError, OpenedPullRequest};
pub use git::{PushFault, PushInspector, PushedPack};
pub use own_push::{OwnPush, OwnPushError};
pub use rate_limits::{RateLimitStatus, RateLimitWatch};
pub use tls::TlsError;
pub use upstream::{KeyedClient, Upstream, UpstreamError};
pub use usage_meter::{BillingInfo, Unmetered, UsageMeter};
pub use webhook::{WebhookClient, WebhookError, WebhookSetupError};

use crate::egress_proxy::{EgressRecord, Ledger, RecordSink};
use connection::RouteContext;
use marshal_model::SlotId;

/// The model proxies of one child. Dropping it ends all their connections and closes their sockets.
#[derive(Debug, Default)]
pub struct ModelProxy {
    tasks: Vec<JoinHandle<()>>,
    /// Hosts that requests to registries would have led to, if the child has a registry.
    denied_hosts: Option<Arc<Ledger>>,
}

impl Drop for ModelProxy {
    fn drop(&mut self) {
        for relay in &self.tasks {
            relay.abort();
        }
    }
}

impl ModelProxy {
    /// Serves a child's sockets, each for the upstream at the same index; `usage_meter` checks and
    /// records the costs, and `tell` receives the hosts that no registry's rule names. Without a
    /// `push_inspector` no push passes. Must run inside a tokio runtime.
    #[must_use]
    pub fn start(
        listeners: Vec<StdListener>,
        upstreams: &[Arc<Upstream>],
        slot: &SlotId,
        watch: &Arc<RateLimitWatch>,
        purse: &Arc<dyn UsageMeter>,
        tell: RecordSink,
        push_inspector: Option<&Arc<dyn PushInspector>>,
    ) -> Self {
        let has_registry = upstreams.iter().any(|up| up.route.registry.is_some());
        let denied_hosts = has_registry.then(|| Arc::new(Ledger::new(slot.clone(), tell)));
        let pairs = listeners.into_iter().zip(upstreams);
        let start = |(listener, upstream): (StdListener, &Arc<Upstream>)| {
            let listener = listener
                .set_nonblocking(true)
                .and_then(|()| TcpListener::from_std(listener))
                .inspect_err(
                    |error| tracing::error!(%slot, %error, "the model proxy cannot serve a route"),
                )
                .ok()?;
            let (watch, purse) = (Arc::clone(watch), Arc::clone(purse));
            let denied_hosts = denied_hosts.clone();
            let pushes = push_inspector.cloned();
            let gate = RouteContext::new(
                Arc::clone(upstream),
                slot.clone(),
                watch,
                purse,
                denied_hosts,
                pushes,
            );
            Some(tokio::spawn(connection::serve(listener, Arc::new(gate))))
        };
        let mut tasks: Vec<JoinHandle<()>> = pairs.filter_map(start).collect();
        if let Some(ledger) = &denied_hosts {
            let ledger = Arc::clone(ledger);
            tasks.push(tokio::spawn(async move {
                loop {
                    ledger.flush_due().await;
                }
            }));
        }
        Self {
            tasks,
            denied_hosts,
        }
    }

    /// Ends the proxies; returns the records of denied hosts that were not yet written.
    #[must_use]
    pub fn finish(self) -> Vec<EgressRecord> {
        let ledger = self.denied_hosts.clone();
        drop(self);
        ledger.map_or_else(Vec::new, |ledger| ledger.finish())
    }
}
