//! A child's access to hosts outside: its egress proxy, and the events of its connections.
//!
//! Must not know which hosts are allowed.

use std::net::TcpListener;
use std::sync::Arc;

use super::state::ChannelState;
use crate::messages::{ChannelEvent, ChannelMsg, ChannelRef};
use marshal_model::Event;
use marshal_proxy::egress_proxy::{
    EgressProxy, EgressRecord, Listener, RecordSink, SystemResolver,
};

impl ChannelState {
    /// Serves the last of the child's listeners as its egress proxy, if the pool has one.
    pub(super) fn start_proxy(&mut self, listeners: &mut Vec<TcpListener>, myself: &ChannelRef) {
        let Some(rules) = &self.pool.config.egress else {
            return;
        };
        let listener = listeners.pop().map(Listener::tcp);
        let listener = match listener {
            Some(Ok(listener)) => listener,
            Some(Err(error)) => {
                tracing::error!(slot = %self.slot, %error, "the egress proxy did not start");
                return;
            }
            None => return,
        };
        self.egress_proxy = Some(EgressProxy::start(
            listener,
            Arc::clone(rules),
            &self.slot,
            Arc::new(SystemResolver),
            record_sink(myself),
        ));
    }

    /// Ends the proxies of a child that is gone, and reports the rest of their connections.
    pub(super) fn end_proxies(&mut self) {
        let routes = std::mem::take(&mut self.model_proxy);
        self.send_egress_events(routes.finish());
        if let Some(proxy) = self.egress_proxy.take() {
            self.send_egress_events(proxy.finish());
        }
    }

    /// Reports connections that ended to the session.
    pub(super) fn send_egress_events(&self, records: Vec<EgressRecord>) {
        let events: Vec<ChannelEvent> = records
            .into_iter()
            .map(to_egress_event)
            .map(ChannelEvent::Event)
            .collect();
        if !events.is_empty() {
            self.send(events, None);
        }
    }
}

/// Where records go. The proxy bounds their rate.
pub(super) fn record_sink(to: &ChannelRef) -> RecordSink {
    let to = to.clone();
    Box::new(move |record| {
        let _ = to.send_message(ChannelMsg::Egress(Box::new(record)));
    })
}

fn to_egress_event(record: EgressRecord) -> Event {
    let EgressRecord {
        destination: place,
        result,
        connections,
        sent,
        received,
        took,
    } = record;
    let (host, port) = place.unzip();
    Event::Egress {
        host,
        port,
        result,
        connections,
        sent,
        received,
        took,
    }
}
