//! `[pool.NAME]`: one pool, read key by key and then checked as a whole.
//!
//! Must not know other pools.

mod agree;
pub(super) mod trees;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeValue;

use super::acp::{self, Acp, Skipping};
use super::agent::{self, Agent};
use super::asking;
use super::budget;
use super::cache;
use super::container;
use super::delegate::{self, Delegate};
use super::dialect_use;
use super::egress;
use super::engine_tools;
use super::environment;
use super::error::quoted;
use super::file_plane;
use super::paths;
use super::policy_uses;
use super::presets;
use super::runner;
use super::sandbox;
use super::ssh;
use super::table::{Found, Item, Place, Section, one_of, word};
use super::types::{
    CacheDirs, ClientFs, Container, Egress, Guard, Launcher, Network, OnUnaskedDeny, Pool, Route,
    RoutePort, Sandbox, SessionScope, ShellCwd, Timeouts, Workspace, WorkspaceMode,
};
use super::waits;
use crate::limits;
use crate::model::PoolName;

word!(
    Launcher,
    Network,
    WorkspaceMode,
    SessionScope,
    Guard,
    OnUnaskedDeny,
    ShellCwd,
    ClientFs
);

/// Policies that are built in.
pub(super) const POLICIES: &[&str] = &["developer", "ci", "reviewer"];

/// Built-in policies of the format that this version has not.
pub(super) const LATER_POLICIES: &[&str] = &[];

/// Keys of the format that do nothing in this version.
const LATER_KEYS: &[&str] = &[];

/// Keys that a reader may look for beside their table.
const ELSEWHERE: &[(&str, &str)] = &[
    ("hooks", "hook.NAME.pools"),
    ("path", "workspace.path"),
    ("delegates", "delegate"),
    ("kind", "restart.kind"),
    ("window", "restart.window"),
    ("on_crash", "restart.on_crash"),
    ("never_codes", "restart.never_codes"),
    ("handshake", "timeouts.handshake"),
    ("turn", "timeouts.turn"),
    ("silence", "timeouts.silence"),
    ("cancel", "timeouts.cancel"),
    ("control", "timeouts.control"),
    ("keepalive", "timeouts.keepalive"),
    ("idle", "timeouts.idle"),
    ("timeout", "timeouts.turn"),
    ("on_timeout", "ask.on_timeout"),
    ("pass", "env.pass"),
    ("set", "env.set"),
    ("path_add", "env.path_add"),
    ("slots", "size"),
    ("args", "command"),
];

/// What the rest of the file says that a pool may name.
pub(super) struct Context<'a> {
    /// The directory that relative paths are relative to.
    pub(super) dir: &'a Path,
    /// The file was found, not named: it may not weaken the walls.
    pub(super) found: bool,
    /// The table `container`.
    pub(super) container: &'a Container,
    /// The profiles.
    pub(super) sandboxes: &'a BTreeMap<String, Sandbox>,
    /// The routes.
    pub(super) routes: &'a BTreeMap<String, Route>,
    /// `[egress]`.
    pub(super) egress: &'a Egress,
    /// `[cache]`.
    pub(super) caches: &'a CacheDirs,
    /// Names of all profiles that the file has, faulty ones too.
    pub(super) sandbox_names: Vec<String>,
    /// Names of all policies that the file has, faulty ones too.
    pub(super) policy_names: Vec<String>,
    /// Names of all routes that the file has, faulty ones too.
    pub(super) route_names: Vec<String>,
    /// The delegates.
    pub(super) delegates: &'a BTreeMap<String, Delegate>,
    /// Names of all delegates that the file has, faulty ones too.
    pub(super) delegate_names: Vec<String>,
}

/// A pool and where its size stands.
pub(super) struct Draft {
    pub(super) pool: Pool,
    pub(super) size: Place,
    pub(super) workspace: Place,
    pub(super) file_plane: Place,
}

/// Where the keys stand that a check of the whole pool may blame.
struct Blame {
    program: Option<Place>,
    launcher: Place,
    image: Option<Place>,
    on_crash: Option<Place>,
    network: Option<Place>,
    routes: Option<Place>,
    egress: Option<Place>,
    env: Place,
    guard: Option<Place>,
    guard_off: Option<Place>,
    /// Of `client_fs` and `client_terminal`.
    client: [Option<Place>; 2],
    of_tools: Option<Place>,
    mode: Place,
    path: Place,
    attempts_faulty: bool,
    idle: Option<Place>,
    acp: acp::Draft,
    acp_mode: Option<Place>,
}

/// Reads one pool. `None` if it has no name that could be used.
#[expect(clippy::too_many_lines, reason = "one line a key")]
pub(super) fn read(name: &str, item: &Item<'_>, context: &Context<'_>) -> Option<Draft> {
    let section = item.section()?;
    let pool_name = named(&section, name)?;
    let sized = section.integer("size", 1..=limits::POOL_SLOTS);
    let size = sized.as_ref().map_or(1, |found| found.value);
    let most = section.integer("max_size", 1..=limits::POOL_SLOTS);
    if let Some(most) = most.as_ref().filter(|most| most.value < size) {
        let message = format!("the most slots are fewer than its size, which is {size}");
        let help = Some("leave max_size out, or make it at least the size".to_owned());
        section.ledger.fault(&most.place, message, help);
    }
    let (section, preset) = presets::beneath(section);
    let network: Option<Found<Network>> = section.word("network", &[]);
    let (is_routed, egress) = ways(&section, network.as_ref(), context);
    let agent = agent::read(&section, preset, is_routed, context.dir);
    let launcher = section.word("launcher", &[]);
    let (guard, guard_off) = (section.word("guard", &[]), section.boolean("guard_off"));
    let (client_fs, client_terminal, client) = client(&section);
    let (engine_tools, of_tools) = engine_tools::read(&section);
    let attempts = section.integer("attempts", 1..=limits::ATTEMPTS);
    let (workspace, path, mode) = workspace(&section, context, launcher.as_ref());
    let (restart, on_crash) = waits::restart(&section.section("restart"));
    let (timeouts, idle) = timeouts(&section);
    let blame = Blame {
        program: agent.program.clone(),
        launcher: place(launcher.as_ref(), &section.place),
        image: section.item("image").map(|item| item.place),
        on_crash,
        network: network.as_ref().map(|found| found.place.clone()),
        routes: section.item("routes").map(|item| item.place),
        egress: section.item("egress").map(|item| item.place),
        env: section.section("env").section("set").place,
        guard: guard.as_ref().map(|found| found.place.clone()),
        guard_off: guard_off.as_ref().map(|found| found.place.clone()),
        client,
        of_tools,
        mode,
        path: path.clone(),
        attempts_faulty: attempts.is_none() && section.item("attempts").is_some(),
        idle,
        acp: acp::read(&section, context.found),
        acp_mode: section.item("mode").map(|item| item.place),
    };
    let launcher = value(launcher, Launcher::Unshare);
    let far = ssh::read(&section, context.dir, launcher);
    let env = environment::read(&section.section("env"), context.found, context.dir);
    let (workspace, env) = ssh::instead(&section, far.as_deref(), workspace, env);
    let pool = Pool {
        name: pool_name,
        size,
        max_size: most.as_ref().map_or(size, |found| found.value),
        acp: of_acp(&agent, &blame.acp.acp),
        agent: agent.name.clone(),
        is_preset: agent.is_preset,
        own_command: agent.own_command,
        agent_dir: agent_dir(&section, &agent, context),
        program: None,
        command: agent.command,
        resume_args: agent.resume_args,
        session: value(section.word("session", &[]), SessionScope::Task),
        dialect: agent.dialect,
        custom: agent.custom,
        model: agent.model,
        mode: agent.mode,
        runner: Arc::new(runner::read(&section, context.dir)),
        asks: agent.asks,
        extractor: agent.extractor,
        shell_cwd: value(section.word("shell_cwd", &[]), ShellCwd::Workspace),
        launcher,
        ssh: far,
        image: container::image(&section),
        sandbox: profile(&section, launcher, context),
        egress,
        network: value(network, open_network(launcher)),
        routes: routes(&section, context),
        rate_limit: waits::rate_limit(&section.section("rate_limit")),
        policy: policy(&section, context),
        shadow_policy: policy_uses::named(&section, "shadow_policy", context),
        delegate: delegate::of_pool(&section, context.delegates, &context.delegate_names),
        workspace,
        caches: cache::of_pool(&section, context.caches, context.found),
        home_files: home_files(&section, context),
        home_texts: agent.home_texts,
        attempts: value(attempts, 1),
        check: check(&section),
        env,
        restart,
        timeouts,
        stop: waits::stop(&section.section("stop")),
        ask: asking::read(&section.section("ask")),
        budget: budget::read(&section.section("budget")),
        guard: value(guard, Guard::PolicyAndSandbox),
        guard_off: value(guard_off, false),
        on_unasked_deny: value(section.word("on_unasked_deny", &[]), OnUnaskedDeny::Report),
        client_fs,
        client_terminal,
        engine_tools,
        file_plane: file_plane::read(
            &section,
            context,
            sized.as_ref().map_or(1, |found| found.value),
        ),
    };
    section.close(LATER_KEYS, ELSEWHERE);
    agree(&section, &pool, &blame, context);
    Some(Draft {
        pool,
        size: place(most.as_ref().or(sized.as_ref()), &section.place),
        workspace: path,
        file_plane: section.section("file_plane").place,
    })
}

fn named(section: &Section<'_>, name: &str) -> Option<PoolName> {
    let fault = |error| section.ledger.fault(&section.place, error, None);
    PoolName::new(name).map_err(fault).ok()
}

/// What the keys must agree on.
fn agree(section: &Section<'_>, pool: &Pool, blame: &Blame, context: &Context<'_>) {
    agree::agree(section.ledger, pool, blame, context);
    ssh::agree(section, pool, context.found);
    dialect_use::agree(section, pool, context.found);
    cache::agree(section, pool);
    runner::agree(section, pool, context.found.then_some(context.dir));
    engine_tools::agree(section.ledger, pool, blame.of_tools.as_ref());
    file_plane::agree(section, pool);
    let place = section.section("ask").item("when_waiting");
    let place = place.map_or(section.place.clone(), |item| item.place);
    asking::released_comes_back(section.ledger, pool, &place);
}

/// Whether the pool has routes, and what its proxy does, if it has one.
fn ways(
    section: &Section<'_>,
    network: Option<&Found<Network>>,
    context: &Context<'_>,
) -> (bool, Option<Arc<Egress>>) {
    let rules = egress::read(&section.section("egress"), context.egress);
    match network.map(|found| found.value) {
        Some(Network::Routes) => (true, None),
        Some(Network::Proxy) => (section.item("routes").is_some(), Some(Arc::new(rules))),
        _ => (false, None),
    }
}

/// The deadlines, and where that of an idle child stands.
fn timeouts(section: &Section<'_>) -> (Timeouts, Option<Place>) {
    let timeouts = section.section("timeouts");
    let idle = timeouts.item("idle").map(|item| item.place);
    (waits::timeouts(&timeouts), idle)
}

/// What an agent that speaks ACP is told, with what its preset says of it.
fn of_acp(agent: &Agent, draft: &Acp) -> Arc<Acp> {
    Arc::new(Acp {
        mode: agent.mode.clone().filter(|_| agent.set_mode),
        model: agent.model.clone().filter(|_| agent.set_model),
        skipping: Skipping::of(&agent.name),
        ..draft.clone()
    })
}

/// What a pool reaches that does not say.
const fn open_network(launcher: Launcher) -> Network {
    match launcher {
        Launcher::Unshare | Launcher::Pty | Launcher::Bwrap | Launcher::Container => Network::None,
        Launcher::None | Launcher::Ssh => Network::Host,
    }
}

/// What an agent may have its client do, and where the keys stand.
fn client(section: &Section<'_>) -> (ClientFs, bool, [Option<Place>; 2]) {
    let files = section.word("client_fs", &[]);
    let terminal = section.boolean("client_terminal");
    let places = [
        files.as_ref().map(|found| found.place.clone()),
        terminal.as_ref().map(|found| found.place.clone()),
    ];
    (value(files, ClientFs::None), value(terminal, false), places)
}

fn value<T>(found: Option<Found<T>>, default: T) -> T {
    found.map_or(default, |found| found.value)
}

fn place<T>(found: Option<&Found<T>>, above: &Place) -> Place {
    found.map_or(above, |found| &found.place).clone()
}

/// The workspace, and where its path and its mode stand.
fn workspace(
    section: &Section<'_>,
    context: &Context<'_>,
    launcher: Option<&Found<Launcher>>,
) -> (Workspace, Place, Place) {
    let item = section.item("workspace");
    if let Some(item) = &item
        && matches!(item.value(), DeValue::String(_))
    {
        let message = "expected a table such as { path = \".\", mode = \"copy\" }, found a string";
        section.ledger.fault(&item.place, message, None);
    }
    let is_table = item.is_none_or(|item| !matches!(item.value(), DeValue::String(_)));
    let (path, mode, (mask, slice)) = if is_table {
        let table = section.section("workspace");
        let path = table.item("path");
        let path = path.and_then(|item| item.text_like(paths::PATTERN));
        let mode = table.word("mode", &[]);
        let word = mode.as_ref().map_or(WorkspaceMode::Copy, |mode| mode.value);
        let launcher = launcher.map_or(Launcher::Unshare, |found| found.value);
        let of_tree = trees::read(&table, word, launcher, context.found);
        table.close(&[], &[]);
        (path, mode, of_tree)
    } else {
        (None, None, (Vec::new(), Vec::new()))
    };
    let text = path.as_ref().map_or(".", |found| found.value.as_str());
    if let (Some(fault), Some(found)) = (paths::fault(text), &path) {
        section.ledger.fault(&found.place, fault, None);
    }
    let workspace = Workspace {
        path: paths::absolute(context.dir, text),
        mode: mode
            .as_ref()
            .map_or(WorkspaceMode::Copy, |found| found.value),
        mask,
        slice,
    };
    let places = (
        place(path.as_ref(), &section.place),
        place(mode.as_ref(), &section.place),
    );
    (workspace, places.0, places.1)
}

/// The name of the profile, which must exist.
fn profile(section: &Section<'_>, launcher: Launcher, context: &Context<'_>) -> String {
    let standard = sandbox::STANDARD.to_owned();
    let Some(item) = section.item("sandbox") else {
        return standard;
    };
    let Some(found) = item.text_like(sandbox::NAME_PATTERN) else {
        return standard;
    };
    if launcher == Launcher::Ssh {
        ssh::refuse_profile(section.ledger, &found);
        return standard;
    }
    if launcher == Launcher::None {
        let message = "with launcher = \"none\" there is no sandbox: remove this key";
        section.ledger.fault(&found.place, message, None);
        return standard;
    }
    if !context.sandboxes.contains_key(&found.value)
        && !context.sandbox_names.contains(&found.value)
    {
        let names: Vec<_> = context.sandboxes.keys().map(String::as_str).collect();
        let expected = format!("{} or the name of a [sandbox.NAME]", one_of(&names));
        item.unknown_word(&found.value, &names, &[], &expected);
    }
    found.value
}

/// The name of the policy, which must exist.
fn policy(section: &Section<'_>, context: &Context<'_>) -> String {
    let usual = || POLICIES.first().copied().unwrap_or_default().to_owned();
    policy_uses::named(section, "policy", context).unwrap_or_else(usual)
}

/// Where an agent that is built in is installed, if the file says that.
fn agent_dir(section: &Section<'_>, agent: &Agent, context: &Context<'_>) -> Option<PathBuf> {
    let found = section.item("agent_dir")?.text_like(paths::PATTERN)?;
    let path = paths::absolute(context.dir, &found.value);
    let looked_for = presets::preset(&agent.name).is_some_and(|preset| preset.find.is_some());
    if let Some(fault) = paths::fault(&found.value) {
        section.ledger.fault(&found.place, fault, None);
    } else if !agent.is_preset || agent.own_command || !looked_for {
        let message = "agent_dir is for agents that are built in and looked for on this host";
        let help = "name the program in command, and its directory in ro_bind of the sandbox";
        let help = Some(help.to_owned());
        section.ledger.fault(&found.place, message, help);
    } else if context.found && !path.starts_with(context.dir) && !sandbox::is_program(&path) {
        let message = "a supervisor.toml that was found may name agents only in its own directory or where programs of the system are";
        let help = Some(TRUST.to_owned());
        section.ledger.fault(&found.place, message, help);
    }
    Some(path)
}

/// The routes, each of which must exist.
fn routes(section: &Section<'_>, context: &Context<'_>) -> Vec<RoutePort> {
    let mut routes: Vec<RoutePort> = Vec::new();
    let list = section.texts_like("routes", sandbox::NAME_PATTERN);
    if let Some(list) = list
        .as_ref()
        .filter(|list| list.value.len() > limits::POOL_ROUTES)
    {
        let message = format!("a pool has at most {} routes", limits::POOL_ROUTES);
        section.ledger.fault(&list.place, message, None);
    }
    for found in list.map_or(Vec::new(), |list| list.value) {
        let name = found.value;
        let message = if routes.iter().any(|route| route.name == name) {
            format!("the route {} is in the list twice", quoted(&name))
        } else if let Some(route) = context.routes.get(&name) {
            let port = route.port;
            routes.push(RoutePort { name, port });
            continue;
        } else if context.route_names.contains(&name) {
            continue;
        } else {
            let names: Vec<_> = context.routes.keys().map(String::as_str).collect();
            format!(
                "expected {} or the name of a [route.NAME], found {}",
                one_of(&names),
                quoted(&name)
            )
        };
        section.ledger.fault(&found.place, message, None);
    }
    routes
}

/// Files for a new home: where they lie in it, and where they come from.
fn home_files(section: &Section<'_>, context: &Context<'_>) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    for (inside, item) in section.section("home_files").named(paths::INSIDE_PATTERN) {
        if let Some(fault) = paths::inside_fault(&inside) {
            let message = format!("{fault}, found {}", quoted(&inside));
            section.ledger.fault(&item.place, message, None);
        }
        let Some(source) = item.text_like(paths::PATTERN) else {
            continue;
        };
        if let Some(fault) = paths::fault(&source.value) {
            section.ledger.fault(&source.place, fault, None);
        }
        let path = paths::absolute(context.dir, &source.value);
        if context.found && !path.starts_with(context.dir) {
            let message =
                "a supervisor.toml that was found may take files only from its own directory";
            section
                .ledger
                .fault(&source.place, message, Some(TRUST.to_owned()));
        }
        files.insert(inside, path);
    }
    files
}

fn check(section: &Section<'_>) -> Vec<String> {
    let words = section.texts("check").map_or(Vec::new(), |list| list.value);
    if let Some(program) = words.first()
        && program.value.trim().is_empty()
    {
        section
            .ledger
            .fault(&program.place, "the program's name is empty", None);
    }
    words.into_iter().map(|word| word.value).collect()
}

/// How a file may do what one that was found may not.
pub(super) const TRUST: &str = "name the file with --config if you trust it";
