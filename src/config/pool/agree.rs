//! What the keys of one pool must agree on: with each other, and with whose file it is.
//!
//! Must not read a key: it is given what was read, and where.

use std::path::{Path, PathBuf};

use super::{Blame, Context, POLICIES, TRUST, trees};
use crate::config::acp;
use crate::config::claude;
use crate::config::codex;
use crate::config::command;
use crate::config::error::quoted;
use crate::config::table::{Ledger, Place};
use crate::config::types::{
    AsksFor, ClientFs, DialectName, Guard, Launcher, Network, OnCrash, Pool, SessionScope,
    WorkspaceMode, unknown_route,
};
use crate::config::waits;
use crate::limits::EGRESS_PORT;

/// What the keys of one pool must agree on.
pub(super) fn agree(ledger: &Ledger, pool: &Pool, blame: &Blame, context: &Context<'_>) {
    let none = pool.launcher == Launcher::None;
    let host = pool.network == Network::Host;
    if let Some(place) = &blame.on_crash
        && pool.restart.on_crash == OnCrash::Retry
        && pool.attempts == 1
        && !blame.attempts_faulty
    {
        let message = "on_crash = \"retry\" needs attempts of at least 2: the first sending is one";
        ledger.fault(place, message, Some("set attempts = 2".to_owned()));
    }
    if let Some(place) = &blame.on_crash
        && pool.restart.on_crash == OnCrash::Resume
    {
        if pool.session == SessionScope::Task {
            let message = "on_crash = \"resume\" needs session = \"slot\": the session of a task ends with it";
            ledger.fault(place, message, Some("set session = \"slot\"".to_owned()));
        }
        if pool.custom.is_none()
            && pool.dialect.resumes_by_argument()
            && pool.resume_args.is_empty()
        {
            let message = format!(
                "on_crash = \"resume\" needs resume_args: {} has no message that loads a session",
                pool.dialect
            );
            let help = "for example: resume_args = [\"--resume\", \"{session}\"]";
            ledger.fault(place, message, Some(help.to_owned()));
        }
    }
    guard_can_be_had(ledger, pool, blame, none);
    if let Some(place) = &blame.guard_off
        && pool.guard_off
        && POLICIES.contains(&pool.policy.as_str())
    {
        let message = format!(
            "the built-in policy {} has the guard: guard_off is for policies that lack it",
            quoted(&pool.policy)
        );
        ledger.fault(place, message, None);
    }
    if none
        && !host
        && let Some(place) = &blame.network
    {
        let message = match pool.network {
            network if network.has_ports() => &needs_its_own(network),
            _ => "with launcher = \"none\" a child has the host's network: remove this key",
        };
        ledger.fault(place, message, None);
    }
    overlay_can_be_had(ledger, pool, blame);
    trees::need_walls(ledger, pool, &blame.mode);
    waits::idle_comes_back(ledger, pool, blame.idle.as_ref());
    let routes: Vec<_> = pool.routes.iter().map(|route| route.name.clone()).collect();
    let routes = pool.network.has_ports().then_some(&routes[..]);
    blame
        .acp
        .agree(ledger, pool.dialect, routes, pool.stop.goodbye);
    if pool.dialect.knows_modes() {
        let mode = pool.mode.as_deref().zip(blame.acp_mode.as_ref());
        acp::mode_asks(ledger, mode, &pool.acp);
    }
    claude::agree(ledger, pool, blame.program.as_ref());
    let servers = blame.acp.servers.as_ref();
    codex::agree(ledger, pool, blame.acp_mode.as_ref(), servers);
    client_methods_can_be_had(ledger, pool, blame);
    routes_lead_somewhere(ledger, pool, blame);
    egress_has_its_network(ledger, pool, blame);
    home_files_are_not_its_own(ledger, pool, blame);
    if context.found {
        restrict(ledger, pool, blame, context);
    }
    image_is_named(ledger, pool, blame, context);
    if pool.launcher.has_walls() && pool.launcher.has_own_programs() {
        program_is_inside(ledger, pool, blame, context);
    }
}

/// What stands between agent and host must be there: an agent that asks, or walls.
fn guard_can_be_had(ledger: &Ledger, pool: &Pool, blame: &Blame, none: bool) {
    if let Some(place) = &blame.guard {
        if pool.guard == Guard::Policy && !pool.dialect.asks() {
            let message = format!(
                "guard = \"policy\" needs an agent that asks for everything, and {} has no words to ask for anything: only walls hold such an agent",
                pool.dialect
            );
            let help = Some("use \"policy+sandbox\"".to_owned());
            ledger.fault(place, message, help);
        } else if pool.guard == Guard::Policy && pool.asks != AsksFor::All {
            let message = format!(
                "guard = \"policy\" needs an agent that asks for everything, and this one asks for {}",
                pool.asks
            );
            let help = Some("use \"policy+sandbox\"".to_owned());
            ledger.fault(place, message, help);
        }
        if pool.guard == Guard::Sandbox && none {
            let message = "guard = \"sandbox\" with launcher = \"none\" would be no guard at all";
            ledger.fault(place, message, None);
        }
    }
}

/// An overlay is a mount of the sandbox's, and a check beside a child that goes on would be a second
/// one over the same files, which the kernel does not keep apart.
fn overlay_can_be_had(ledger: &Ledger, pool: &Pool, blame: &Blame) {
    if pool.workspace.mode != WorkspaceMode::Overlay {
        return;
    }
    let help = Some("use mode \"copy\"".to_owned());
    if pool.launcher == Launcher::None {
        let message = "mode = \"overlay\" needs a sandbox: with launcher = \"none\" there is no view of its own";
        ledger.fault(&blame.mode, message, help);
    } else if matches!(pool.launcher, Launcher::Bwrap | Launcher::Container) {
        let message = format!(
            "mode = \"overlay\" needs launcher = \"unshare\": \"{}\" makes no such view",
            pool.launcher
        );
        ledger.fault(&blame.mode, message, help);
    } else if pool.session == SessionScope::Slot && !pool.check.is_empty() {
        let message = "mode = \"overlay\" and session = \"slot\" do not go with a check: it would work beside the agent on the same files";
        ledger.fault(&blame.mode, message, help);
    }
}

fn needs_its_own(network: Network) -> String {
    format!(
        "network = \"{network}\" needs a network of its own: it does not go with launcher = \"none\""
    )
}

/// What an agent has its client do is done inside its walls, and asked for in a protocol that has
/// words for it.
fn client_methods_can_be_had(ledger: &Ledger, pool: &Pool, blame: &Blame) {
    let [files, terminal] = &blame.client;
    let wanted = [
        ("client_fs", pool.client_fs != ClientFs::None, files),
        ("client_terminal", pool.client_terminal, terminal),
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
            ledger.fault(place, message, None);
        }
        if !pool.launcher.has_walls() {
            let message = format!(
                "{key} needs a sandbox of this host: with launcher = \"{}\" nothing holds what is done for the agent to its workspace",
                pool.launcher
            );
            ledger.fault(place, message, None);
        }
    }
    if let Some(place) = files
        && pool.client_fs == ClientFs::Write
        && pool.workspace.mode == WorkspaceMode::Ro
    {
        let message = "client_fs = \"write\" needs a workspace that can be written: files are written behind the agent's own walls";
        let help = Some("use client_fs = \"read\", or mode \"copy\"".to_owned());
        ledger.fault(place, message, help);
    }
}

/// A container needs an image, and nobody else has one.
fn image_is_named(ledger: &Ledger, pool: &Pool, blame: &Blame, context: &Context<'_>) {
    let is_container = pool.launcher == Launcher::Container;
    match &blame.image {
        Some(place) if !is_container => {
            let message = "image is for launcher = \"container\"";
            ledger.fault(place, message, None);
        }
        None if is_container && context.container.image.is_none() && !ledger.is_faulty() => {
            let message = "launcher = \"container\" needs an image, here or in [container]";
            let help = "for example: image = \"localhost/agent:1\"";
            ledger.fault(&blame.launcher, message, Some(help.to_owned()));
        }
        _ => {}
    }
    if is_container && context.found {
        let message = "a supervisor.toml that was found may not use launcher = \"container\"";
        ledger.fault(&blame.launcher, message, Some(TRUST.to_owned()));
    }
}

/// Routes and the network that has them go together, and no variable names another route.
fn routes_lead_somewhere(ledger: &Ledger, pool: &Pool, blame: &Blame) {
    let wanted = pool.network == Network::Routes;
    match (&blame.routes, &blame.network) {
        (None, Some(place)) if wanted => {
            let message = "network = \"routes\" needs routes";
            let help = Some("for example: routes = [\"anthropic\"]".to_owned());
            ledger.fault(place, message, help);
        }
        (Some(place), _) if wanted && pool.routes.is_empty() && !ledger.is_faulty() => {
            let message = "network = \"routes\" needs at least one of the routes";
            ledger.fault(place, message, None);
        }
        (Some(place), _) if !wanted && pool.network != Network::Proxy => {
            let message = format!(
                "routes need network = \"routes\" or \"proxy\", and this pool's is \"{}\"",
                pool.network
            );
            ledger.fault(place, message, None);
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
            "the variable {name} names {{route.{route}}}, which is none of the pool's routes"
        );
        ledger.fault(&blame.env, message, None);
    }
}

/// Hosts and the network that reaches them go together, and nobody else has the proxy's port.
fn egress_has_its_network(ledger: &Ledger, pool: &Pool, blame: &Blame) {
    if let Some(place) = &blame.egress
        && pool.network != Network::Proxy
    {
        let message = format!(
            "egress needs network = \"proxy\", and this pool's is \"{}\"",
            pool.network
        );
        ledger.fault(place, message, None);
    }
    let taken = pool.routes.iter().find(|route| route.port == EGRESS_PORT);
    if let (Some(route), Some(place), Network::Proxy) = (taken, &blame.routes, pool.network) {
        let message = format!(
            "the route {} has the port {EGRESS_PORT}, which is the egress proxy's",
            route.name
        );
        ledger.fault(place, message, Some("give it another port".to_owned()));
    }
}

/// A file that the agent can write must not fill the homes of later sessions.
fn home_files_are_not_its_own(ledger: &Ledger, pool: &Pool, blame: &Blame) {
    let is_own = |path: &&PathBuf| path.starts_with(&pool.workspace.path);
    if pool.workspace.mode != WorkspaceMode::Rw {
        return;
    }
    if let Some(path) = pool.home_files.values().find(is_own) {
        let message = format!(
            "home_files takes {}, and the agent could write it: keep it outside of the workspace",
            quoted(&path.to_string_lossy())
        );
        ledger.fault(&blame.path, message, None);
    }
}

/// What a file that was found, not named, may not do.
fn restrict(ledger: &Ledger, pool: &Pool, blame: &Blame, context: &Context<'_>) {
    let refuse = |place: &Place, what: &str| {
        let message = format!("a supervisor.toml that was found may not use {what}");
        ledger.fault(place, message, Some(TRUST.to_owned()));
    };
    if pool.launcher == Launcher::None {
        refuse(&blame.launcher, "launcher = \"none\"");
    }
    if pool.launcher == Launcher::Ssh {
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
    if !pool.workspace.path.starts_with(context.dir) {
        refuse(&blame.path, "a workspace outside its own directory");
    }
}

/// A program that no sandbox of this profile can see would fail at every start.
fn program_is_inside(ledger: &Ledger, pool: &Pool, blame: &Blame, context: &Context<'_>) {
    let (Some(place), Some(program)) = (&blame.program, pool.command.first()) else {
        return;
    };
    let Some(profile) = context.sandboxes.get(&pool.sandbox) else {
        return;
    };
    let bare = !command::is_path(program) || program.contains(['{', '}']);
    if !bare && !command::is_inside(Path::new(program), &profile.ro_bind) {
        let message = format!(
            "the program {} is not visible in the sandbox",
            quoted(program)
        );
        let help = format!(
            "add its directory to ro_bind of [sandbox.{}]; the workspace is /workspace inside",
            pool.sandbox
        );
        ledger.fault(place, message, Some(help));
    }
}
