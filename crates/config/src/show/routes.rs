//! Routes and pauses as they are shown. No key is shown.

use super::super::environment::REDACTED;
use super::super::types::{RateLimit, Route, RoutePort, RouteTimeouts};
use super::super::units::{show_duration, show_size};
use super::{RenderedTable, path, texts};

pub(super) fn route(route: &Route) -> RenderedTable {
    let Route {
        name,
        upstream,
        header,
        prefix,
        secret,
        allow,
        query,
        port,
        body_max,
        server_tools,
        ca,
        connections,
        timeouts,
    } = route;
    let RouteTimeouts {
        connect,
        request,
        answer,
        idle,
    } = timeouts;
    let mut table = RenderedTable::new(&["route", name]);
    table.put("upstream", upstream.to_string());
    table.put("header", header.as_str());
    table.put("prefix", prefix.as_str());
    if secret.is_some() {
        table.put("secret", REDACTED);
    }
    let lines: Vec<String> = allow.iter().map(ToString::to_string).collect();
    table.put("allow", texts(&lines));
    table.put("query", texts(query));
    table.put("port", i64::from(*port));
    table.put("body_max", show_size(*body_max));
    table.put("server_tools", *server_tools);
    if let Some(ca) = ca {
        table.put("ca", path(&ca.path));
    }
    table.put("connections", i64::from(*connections));
    for (key, time) in [
        ("connect", connect),
        ("request", request),
        ("answer", answer),
        ("idle", idle),
    ] {
        table.put(&format!("timeouts.{key}"), show_duration(*time));
    }
    table
}

/// The key is absent where there are none.
pub(super) fn put_routes(table: &mut RenderedTable, routes: &[RoutePort]) {
    if !routes.is_empty() {
        let names: Vec<String> = routes.iter().map(|route| route.name.clone()).collect();
        table.put("routes", texts(&names));
    }
}

pub(super) fn rate_limit(table: &mut RenderedTable, pauses: RateLimit) {
    let RateLimit {
        pause,
        max,
        give_up,
    } = pauses;
    for (key, time) in [("pause", pause), ("max", max), ("give_up", give_up)] {
        table.put(&format!("rate_limit.{key}"), show_duration(time));
    }
}
