//! Checks the keys of one pool against each other, and against what a discovered file may have.
//!
//! Must not read a key: it gets the values and their places.

use std::path::PathBuf;

use super::{BUILT_IN_POLICIES, KeyPlaces, PoolContext, TRUST_HELP, workspace_view};
use crate::acp;
use crate::claude;
use crate::codex;
use crate::error::quote;
use crate::table::{Diagnostics, Place};
use crate::timing;
use crate::types::{
    ClientFs, DialectName, Guard, Network, OnCrash, PermissionCoverage, Pool, SessionScope,
    WorkspaceMode, unknown_route,
};
use marshal_model::limits::EGRESS_PORT;

/// Checks the keys of one pool against each other.
pub(super) fn check_consistency(
    diagnostics: &Diagnostics,
    pool: &Pool,
    blame: &KeyPlaces,
    context: &PoolContext<'_>,
) {
    let none = pool.launcher.is_unsandboxed();
    let host = pool.network == Network::Host;
    if let Some(place) = &blame.on_crash
        && pool.restart.on_crash == OnCrash::Resume
    {
        if pool.options.session == SessionScope::Task {
            let message = "on_crash = \"resume\" needs session = \"slot\": the session of a task ends with it";
            diagnostics.report(place, message, Some("set session = \"slot\"".to_owned()));
        }
        if pool.custom_dialect.is_none()
            && pool.dialect.resumes_by_argument()
            && pool.resume_args.is_empty()
        {
            let message = format!(
                "on_crash = \"resume\" needs resume_args: {} has no message that loads a session",
                pool.dialect
            );
            let help = "for example: resume_args = [\"--resume\", \"{session}\"]";
            diagnostics.report(place, message, Some(help.to_owned()));
        }
    }
    check_guard(diagnostics, pool, blame, none);
    if let Some(place) = &blame.guard_off
        && pool.options.guard_off
        && BUILT_IN_POLICIES.contains(&pool.policy.as_str())
    {
        let message = format!(
            "the built-in policy {} has the guard: guard_off is for policies that lack it",
            quote(&pool.policy)
        );
        diagnostics.report(place, message, None);
    }
    if let Some(place) = &blame.pin
        && pool.options.pin
        && (!pool.launcher.uses_host_programs() || pool.launcher.runs_runner())
    {
        let message = format!(
            "with launcher = \"{}\" the agent's program is not compared, so it cannot be pinned",
            pool.launcher
        );
        let help = (pool.launcher.uses_image())
            .then(|| "pin the image by its digest: image = \"NAME@sha256:…\"".to_owned());
        diagnostics.report(place, message, help);
    }
    if none
        && !host
        && let Some(place) = &blame.network
    {
        let message = match pool.network {
            network if network.serves_ports() => &needs_network_message(network),
            _ => "with launcher = \"none\" a child has the host's network: remove this key",
        };
        diagnostics.report(place, message, None);
    }
    check_overlay(diagnostics, pool, blame);
    workspace_view::check_mode_has_sandbox(diagnostics, pool, &blame.workspace.mode);
    timing::check_idle_resumes(diagnostics, pool, blame.idle.as_ref());
    let routes: Vec<_> = pool.routes.iter().map(|route| route.name.clone()).collect();
    let routes = pool.network.serves_ports().then_some(&routes[..]);
    blame
        .acp
        .check_consistency(diagnostics, pool.dialect, routes, pool.stop.goodbye);
    if pool.dialect.has_known_modes() {
        let mode = pool.mode.as_deref().zip(blame.acp_mode.as_ref());
        acp::check_mode(diagnostics, mode, &pool.acp);
    }
    claude::check_consistency(diagnostics, pool, blame.program.as_ref());
    let servers = blame.acp.servers.as_ref();
    codex::check_consistency(diagnostics, pool, blame.acp_mode.as_ref(), servers);
    check_client_methods(diagnostics, pool, blame);
    check_routes(diagnostics, pool, blame);
    check_egress_network(diagnostics, pool, blame);
    check_home_files(diagnostics, pool, blame);
    if context.is_discovered {
        check_discovered_file(diagnostics, pool, blame, context);
    }
    check_image(diagnostics, pool, blame, context);
}

/// The pool's guard must exist: an agent that asks, or a sandbox.
fn check_guard(diagnostics: &Diagnostics, pool: &Pool, blame: &KeyPlaces, none: bool) {
    if let Some(place) = &blame.guard {
        if pool.options.guard == Guard::Policy && !pool.dialect.can_request_permission() {
            let message = format!(
                "guard = \"policy\" needs an agent that asks for everything, and {} has no permission requests: only a sandbox confines such an agent",
                pool.dialect
            );
            let help = Some("use \"policy+sandbox\"".to_owned());
            diagnostics.report(place, message, help);
        } else if pool.options.guard == Guard::Policy
            && pool.permission_requests != PermissionCoverage::All
        {
            let message = format!(
                "guard = \"policy\" needs an agent that asks for everything, and this one asks for {}",
                pool.permission_requests
            );
            let help = Some("use \"policy+sandbox\"".to_owned());
            diagnostics.report(place, message, help);
        }
        if pool.options.guard == Guard::Sandbox && none {
            let message = "guard = \"sandbox\" with launcher = \"none\" would be no guard at all";
            diagnostics.report(place, message, None);
        }
    }
}

/// An overlay is a mount of the sandbox. A check beside a running child would mount a second
/// overlay over the same files, and the kernel leaves the result undefined.
fn check_overlay(diagnostics: &Diagnostics, pool: &Pool, blame: &KeyPlaces) {
    if pool.workspace.mode != WorkspaceMode::Overlay {
        return;
    }
    let help = Some("use mode \"copy\"".to_owned());
    if pool.launcher.is_unsandboxed() {
        let message = "mode = \"overlay\" needs a sandbox: with launcher = \"none\" the agent has no mounts of its own";
        diagnostics.report(&blame.workspace.mode, message, help);
    } else if pool.launcher.sandbox_gap().is_some() {
        let message = format!(
            "mode = \"overlay\" needs launcher = \"unshare\": \"{}\" mounts no overlay",
            pool.launcher
        );
        diagnostics.report(&blame.workspace.mode, message, help);
    } else if pool.options.session == SessionScope::Slot && !pool.check.is_empty() {
        let message = "mode = \"overlay\" with session = \"slot\" excludes a check: the check would run beside the agent on the same files";
        diagnostics.report(&blame.workspace.mode, message, help);
    }
}

fn needs_network_message(network: Network) -> String {
    format!("network = \"{network}\" needs a network namespace: launcher = \"none\" has none")
}

/// Client methods run inside the agent's sandbox, and need a protocol that has them.
fn check_client_methods(diagnostics: &Diagnostics, pool: &Pool, blame: &KeyPlaces) {
    let [files, terminal] = &blame.client;
    let wanted = [
        ("client_fs", pool.options.client_fs != ClientFs::None, files),
        ("client_terminal", pool.options.client_terminal, terminal),
    ];
    for (key, is_on, place) in wanted {
        let (true, Some(place)) = (is_on, place) else {
            continue;
        };
        if pool.dialect != DialectName::Acp {
            let message = format!(
                "{key} needs dialect = \"acp\": {} has no such methods",
                pool.dialect
            );
            diagnostics.report(place, message, None);
        }
        if !pool.launcher.has_sandbox() {
            let message = format!(
                "{key} needs a sandbox on this host: with launcher = \"{}\" nothing limits what is done for the agent to its workspace",
                pool.launcher
            );
            diagnostics.report(place, message, None);
        }
    }
    if let Some(place) = &blame.elicitation
        && pool.options.client_elicitation
        && pool.dialect != DialectName::Acp
    {
        let message = format!(
            "client_elicitation needs dialect = \"acp\": {} has no such method",
            pool.dialect
        );
        let help = "use engine_tools = [\"ask_person\"], where the dialect has tool servers";
        diagnostics.report(place, message, Some(help.to_owned()));
    }
    if let Some(place) = files
        && pool.options.client_fs == ClientFs::Write
        && pool.workspace.mode == WorkspaceMode::Ro
    {
        let message = "client_fs = \"write\" needs a writable workspace: files are written inside the agent's sandbox";
        let help = Some("use client_fs = \"read\", or mode \"copy\"".to_owned());
        diagnostics.report(place, message, help);
    }
}

/// A container needs an image, and no other launcher has one.
fn check_image(
    diagnostics: &Diagnostics,
    pool: &Pool,
    blame: &KeyPlaces,
    context: &PoolContext<'_>,
) {
    let is_container = pool.launcher.uses_image();
    match &blame.image {
        Some(place) if !is_container => {
            let message = "image is for launcher = \"container\"";
            diagnostics.report(place, message, None);
        }
        None if is_container && context.container.image.is_none() && !diagnostics.has_errors() => {
            let message = "launcher = \"container\" needs an image, here or in [container]";
            let help = "for example: image = \"localhost/agent:1\"";
            diagnostics.report(&blame.launcher, message, Some(help.to_owned()));
        }
        _ => {}
    }
    if is_container && context.is_discovered {
        let message = "a discovered supervisor.toml may not use launcher = \"container\"";
        diagnostics.report(&blame.launcher, message, Some(TRUST_HELP.to_owned()));
    }
}

/// Routes and the network that has them go together, and no variable names another route.
fn check_routes(diagnostics: &Diagnostics, pool: &Pool, blame: &KeyPlaces) {
    let wanted = pool.network == Network::Routes;
    match (&blame.routes, &blame.network) {
        (None, Some(place)) if wanted => {
            let message = "network = \"routes\" needs routes";
            let help = Some("for example: routes = [\"anthropic\"]".to_owned());
            diagnostics.report(place, message, help);
        }
        (Some(place), _) if wanted && pool.routes.is_empty() && !diagnostics.has_errors() => {
            let message = "network = \"routes\" needs at least one of the routes";
            diagnostics.report(place, message, None);
        }
        (Some(place), _) if !wanted && pool.network != Network::Proxy => {
            let message = format!(
                "routes need network = \"routes\" or \"proxy\", and this pool's is \"{}\"",
                pool.network
            );
            diagnostics.report(place, message, None);
        }
        _ => {}
    }
    let mut values = pool.env.set.iter();
    let unknown = values
        .find_map(|(name, value)| unknown_route(value, &pool.routes).map(|route| (name, route)));
    if let Some((name, route)) =
        unknown.filter(|_| blame.routes.is_none() || !pool.routes.is_empty())
    {
        let message = format!(
            "the variable {name} names {{route.{route}}}, which is not one of the pool's routes"
        );
        diagnostics.report(&blame.env, message, None);
    }
}

/// Hosts and the network that reaches them go together, and no route has the proxy's port.
fn check_egress_network(diagnostics: &Diagnostics, pool: &Pool, blame: &KeyPlaces) {
    if let Some(place) = &blame.egress
        && pool.network != Network::Proxy
    {
        let message = format!(
            "egress needs network = \"proxy\", and this pool's is \"{}\"",
            pool.network
        );
        diagnostics.report(place, message, None);
    }
    let taken = pool.routes.iter().find(|route| route.port == EGRESS_PORT);
    if let (Some(route), Some(place), Network::Proxy) = (taken, &blame.routes, pool.network) {
        let message = format!(
            "the route {} has the port {EGRESS_PORT}, which is the egress proxy's",
            route.name
        );
        diagnostics.report(place, message, Some("give it another port".to_owned()));
    }
}

/// A file that the agent can write must not fill the homes of later sessions.
fn check_home_files(diagnostics: &Diagnostics, pool: &Pool, blame: &KeyPlaces) {
    let is_own = |path: &&PathBuf| path.starts_with(&pool.workspace.path);
    if pool.workspace.mode != WorkspaceMode::Rw {
        return;
    }
    if let Some(path) = pool.home_files.values().find(is_own) {
        let message = format!(
            "home_files copies {}, which the agent could write: keep it outside of the workspace",
            quote(&path.to_string_lossy())
        );
        diagnostics.report(&blame.workspace.path, message, None);
    }
}

/// What a discovered file may not do.
fn check_discovered_file(
    diagnostics: &Diagnostics,
    pool: &Pool,
    blame: &KeyPlaces,
    context: &PoolContext<'_>,
) {
    let refuse = |place: &Place, what: &str| {
        let message = format!("a discovered supervisor.toml may not use {what}");
        diagnostics.report(place, message, Some(TRUST_HELP.to_owned()));
    };
    if pool.launcher.is_unsandboxed() {
        refuse(&blame.launcher, "launcher = \"none\"");
    }
    if pool.launcher.is_remote() {
        return; // Refused as a whole: the rest of it is about this host.
    }
    if let (Network::Host, Some(place)) = (pool.network, &blame.network) {
        refuse(place, "network = \"host\"");
    }
    if let (Network::Routes, Some(place)) = (pool.network, &blame.network) {
        refuse(place, "network = \"routes\"");
    }
    if let (Network::Proxy, Some(place)) = (pool.network, &blame.network) {
        refuse(place, "network = \"proxy\"");
    }
    // A registered workspace was refused by its own table.
    let is_own = blame.workspace.path.key.starts_with("pool.");
    if is_own && !pool.workspace.path.starts_with(context.dir) {
        refuse(
            &blame.workspace.path,
            "a workspace outside its own directory",
        );
    }
}
