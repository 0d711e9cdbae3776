//! Routes and pauses as they are shown. No key is shown.

use super::super::environment::REDACTED;
use super::super::git_route::PullRequests;
use super::super::registry::MODEL_KEYS;
use super::super::types::{GitRoute, Route, RouteKind, RoutePort};
use super::{RenderedTable, path, texts};

pub(super) fn route(route: &Route) -> RenderedTable {
    let Route {
        kind,
        registry,
        hosts,
        is_of_host,
        names_hosts,
        name,
        upstream,
        header,
        prefix,
        secret,
        allow,
        query,
        port,
        body_max: _,
        server_tools: _,
        ca,
        connections: _,
        timeouts,
        git,
    } = route;
    let mut table = RenderedTable::new(&["route", name]);
    if let Some(registry) = registry {
        table.put("registry", registry.as_str());
        // The host's client, which is read later, also decides what is beside its registry.
        if *names_hosts || !is_of_host {
            table.put("hosts", texts(hosts));
        }
    }
    if !is_of_host {
        table.put("upstream", upstream.to_string());
    }
    table.put("header", header.as_str());
    table.put("prefix", prefix.as_str());
    if secret.is_some() {
        table.put("secret", REDACTED);
    }
    if *kind == RouteKind::Git {
        let GitRoute {
            user: _,
            push_max: _,
            repositories,
            pull_requests,
            push,
        } = git;
        if !repositories.is_empty() {
            table.put("repositories", texts(repositories));
        }
        let refs: Vec<String> = push.iter().map(|of| of.as_str().to_owned()).collect();
        table.put("push", texts(&refs));
        git.show_keys(&mut table, "");
        if let Some(PullRequests {
            forge,
            api,
            secret,
            base,
        }) = pull_requests
        {
            table.put("pull_request", forge.as_str());
            table.put("pull_request_base", base.as_str());
            table.put("api", api.to_string());
            if secret.is_some() {
                table.put("api_secret", REDACTED);
            }
        }
    }
    if *kind == RouteKind::Model {
        let lines: Vec<String> = allow.iter().map(ToString::to_string).collect();
        table.put("allow", texts(&lines));
        table.put("query", texts(query));
    }
    table.put("port", i64::from(*port));
    if let Some(ca) = ca {
        table.put("ca", path(&ca.path));
    }
    route.show_keys(&mut table, "");
    if registry.is_some() {
        let is_of_models = |key: &String| MODEL_KEYS.contains(&key.as_str());
        table
            .entries
            .retain(|(path, _)| !path.iter().any(is_of_models));
    }
    timeouts.show_keys(&mut table, "timeouts.");
    table
}

/// The key is absent where there are none.
pub(super) fn put_routes(table: &mut RenderedTable, routes: &[RoutePort]) {
    if !routes.is_empty() {
        let names: Vec<String> = routes.iter().map(|route| route.name.clone()).collect();
        table.put("routes", texts(&names));
    }
}
