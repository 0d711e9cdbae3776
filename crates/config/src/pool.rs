//! `[pool.NAME]`: one pool, read key by key and then checked as a whole.
//!
//! Must not know other pools.

mod consistency;
pub(super) mod workspace_view;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::acp::{self, AcpSettings, AutoApproveModes};
use super::agent::{self, Agent};
use super::approval::{self, ApprovalConfig};
use super::budget;
use super::cache;
use super::container;
use super::delegate::{self, Delegate};
use super::egress;
use super::engine_tools;
use super::environment;
use super::error::quote;
use super::file_plane;
use super::paths;
use super::policy_uses;
use super::pool_dialect;
use super::presets;
use super::runner;
use super::sandbox;
use super::sandbox_facts;
use super::ssh;
use super::table::{Entry, Located, Place, Section, keywords, one_of};
use super::timing;
use super::types::{
    CacheDirs, ClientFs, Container, Egress, Guard, Launcher, Network, OnCrash, OnUnaskedDeny, Pool,
    PoolOptions, Route, RoutePort, Sandbox, SessionScope, ShellCwd, SlotShares, Timeouts,
    WorkspaceMode,
};
use super::workspace::{self, WorkspaceDrafts, WorkspacePlaces};
use super::{workspace_branches, workspace_repos, workspace_setup};
use marshal_model::PoolName;
use marshal_model::limits;

keywords!(
    Launcher,
    Network,
    WorkspaceMode,
    SessionScope,
    Guard,
    OnUnaskedDeny,
    ShellCwd,
    ClientFs
);

/// The built-in policies.
pub(super) const BUILT_IN_POLICIES: &[&str] = &["developer", "ci", "reviewer", "autonomous"];

/// Built-in policies of the format that this version does not have.
pub(super) const UNSUPPORTED_POLICIES: &[&str] = &[];

/// Keys of the format that do nothing in this version.
const UNSUPPORTED_KEYS: &[&str] = &[];

/// Keys that people write outside of their table.
const MISPLACED_KEYS: &[(&str, &str)] = &[
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
    ("on_timeout", "approval.on_timeout"),
    ("pass", "env.pass"),
    ("set", "env.set"),
    ("path_add", "env.path_add"),
    ("slots", "size"),
    ("args", "command"),
];

/// The parts of the file that a pool may refer to.
pub(super) struct PoolContext<'a> {
    /// The directory that relative paths are relative to.
    pub(super) dir: &'a Path,
    /// Whether the file was discovered, not named: it may not weaken the sandbox.
    pub(super) is_discovered: bool,
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
    /// The registered workspaces.
    pub(super) workspaces: &'a WorkspaceDrafts,
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

/// A pool and the place of its size.
pub(super) struct PoolDraft {
    pub(super) pool: Pool,
    pub(super) size_place: Place,
    pub(super) workspace_place: Place,
    pub(super) file_plane_place: Place,
}

/// The places of the keys that a check of the whole pool may report.
struct KeyPlaces {
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
    pin: Option<Place>,
    /// The places of `client_fs` and `client_terminal`.
    client: [Option<Place>; 2],
    elicitation: Option<Place>,
    engine_tools: Option<Place>,
    workspace: WorkspacePlaces,
    idle: Option<Place>,
    acp: acp::Draft,
    acp_mode: Option<Place>,
}

/// Reads one pool. `None` if its name is invalid.
#[expect(clippy::too_many_lines, reason = "one line a key")]
pub(super) fn read(name: &str, item: &Entry<'_>, context: &PoolContext<'_>) -> Option<PoolDraft> {
    let section = item.section()?;
    let pool_name = parse_pool_name(&section, name)?;
    let sized = section.integer("size", 1..=limits::POOL_SLOTS);
    let size = sized.as_ref().map_or(1, |found| found.value);
    let most = section.integer("max_size", 1..=limits::POOL_SLOTS);
    if let Some(most) = most.as_ref().filter(|most| most.value < size) {
        let message = format!("max_size is smaller than the pool's size, which is {size}");
        let help = Some("leave max_size out, or make it at least the size".to_owned());
        section.diagnostics.report(&most.place, message, help);
    }
    let (section, preset) = presets::with_preset(section);
    let network: Option<Located<Network>> = section.keyword("network", &[]);
    let (is_routed, egress) = read_egress(&section, network.as_ref(), context);
    let agent = agent::read(&section, preset, is_routed, context.dir);
    let launcher = section.keyword("launcher", &[]);
    let (engine_tools, of_tools) = engine_tools::read(&section);
    let draft = workspace::read_of_pool(
        &section,
        context.workspaces,
        context.dir,
        context.is_discovered,
    );
    let workspace = draft.for_launcher(
        section.diagnostics,
        launcher
            .as_ref()
            .map_or(Launcher::Unshare, |found| found.value),
    );
    let (restart, on_crash) = timing::read_restart(&section.section("restart"));
    let timeouts = section.section("timeouts");
    let blame = KeyPlaces {
        program: agent.program_place.clone(),
        launcher: place_or(launcher.as_ref(), &section.place),
        image: section.get("image").map(|item| item.place),
        on_crash,
        network: network.as_ref().map(|found| found.place.clone()),
        routes: section.get("routes").map(|item| item.place),
        egress: section.get("egress").map(|item| item.place),
        env: section.section("env").section("set").place,
        guard: section.place_of("guard"),
        guard_off: section.place_of("guard_off"),
        pin: section.place_of("pin"),
        client: ["client_fs", "client_terminal"].map(|key| section.place_of(key)),
        elicitation: section.place_of("client_elicitation"),
        engine_tools: of_tools,
        workspace: draft.places.clone(),
        idle: timeouts.place_of("idle"),
        acp: acp::read(&section, context.is_discovered),
        acp_mode: section.get("mode").map(|item| item.place),
    };
    let launcher = value_or(launcher, Launcher::Unshare);
    let ssh_target = ssh::read(&section, context.dir, launcher);
    let env = environment::read(&section.section("env"), context.is_discovered, context.dir);
    let usual = PoolOptions {
        on_unasked_deny: match workspace.mode {
            // What it wrote there stays.
            WorkspaceMode::Rw => OnUnaskedDeny::Interrupt,
            _ => OnUnaskedDeny::Report,
        },
        ..PoolOptions::default()
    };
    let (workspace, env) =
        ssh::remote_workspace_and_env(&section, ssh_target.as_deref(), workspace, env);
    let (drain, stop) = timing::read_stop(&section.section("stop"));
    let mut pool = Pool {
        options: PoolOptions::read_keys(&section, &usual),
        name: pool_name,
        size,
        max_size: most.as_ref().map_or(size, |found| found.value),
        acp: acp_settings(&agent, &blame.acp.acp),
        agent: agent.name.clone(),
        is_preset: agent.is_preset,
        has_own_command: agent.has_own_command,
        agent_dir: read_agent_dir(&section, &agent, context),
        program: None,
        command: agent.command,
        resume_args: agent.resume_args,
        dialect: agent.dialect,
        custom_dialect: agent.custom_dialect,
        model: agent.model,
        mode: agent.mode,
        runner: Arc::new(runner::read(&section, context.dir)),
        permission_requests: agent.permission_requests,
        extractor: agent.extractor,
        launcher,
        ssh: ssh_target,
        image: container::read_image(&section),
        sandbox: read_sandbox_profile(&section, launcher, context),
        egress,
        network: value_or(network, launcher.default_network()),
        routes: read_routes(&section, context),
        rate_limit: timing::read_rate_limit(&section.section("rate_limit")),
        policy: read_policy(&section, context),
        shadow_policy: policy_uses::read_policy_name(&section, "shadow_policy", context),
        delegate: delegate::read_pool_delegate(
            &section,
            context.delegates,
            &context.delegate_names,
        ),
        workspace,
        caches: cache::read_pool_caches(&section, context.caches, context.is_discovered),
        home_files: read_home_files(&section, context),
        home_texts: agent.home_texts,
        check: read_check(&section),
        env,
        restart,
        timeouts: read_table(&timeouts, Timeouts::read_keys),
        shares: read_table(&section.section("shares"), SlotShares::read_keys),
        drain,
        stop,
        approval: read_table(&section.section("approval"), ApprovalConfig::read_keys),
        budget: budget::read(&section.section("budget")),
        engine_tools,
        file_plane: file_plane::read(
            &section,
            context,
            sized.as_ref().map_or(1, |found| found.value),
        ),
    };
    let facts = sandbox_facts::of_pool(&pool, context.sandboxes, context.routes);
    let is_private = facts.has_private_workspace && pool.runner_dir().is_none();
    if blame.on_crash.is_none() && is_private && facts.has_confined_network {
        // What the crashed attempt did is only in its own session, so nothing is done twice. A Runner's
        // directory outlives the session, and tells others that a command was run.
        pool.restart.on_crash = OnCrash::Retry;
    }
    section.reject_unknown_keys(UNSUPPORTED_KEYS, MISPLACED_KEYS);
    check_consistency(&section, &pool, &blame, context);
    Some(PoolDraft {
        pool,
        size_place: place_or(most.as_ref().or(sized.as_ref()), &section.place),
        workspace_place: draft.places.path,
        file_plane_place: section.section("file_plane").place,
    })
}

fn parse_pool_name(section: &Section<'_>, name: &str) -> Option<PoolName> {
    let fault = |error| section.diagnostics.report(&section.place, error, None);
    PoolName::new(name).map_err(fault).ok()
}

/// Checks the keys against each other.
fn check_consistency(
    section: &Section<'_>,
    pool: &Pool,
    blame: &KeyPlaces,
    context: &PoolContext<'_>,
) {
    consistency::check_consistency(section.diagnostics, pool, blame, context);
    ssh::check_consistency(section, pool, context.is_discovered);
    pool_dialect::check_consistency(section, pool, context.is_discovered);
    cache::check_consistency(section, pool);
    workspace_setup::check_consistency(section, pool, blame.workspace.setup.as_ref());
    workspace_branches::check_consistency(section, pool);
    workspace_repos::check_consistency(section, pool, blame.workspace.repos.as_ref());
    runner::check_consistency(section, pool, context.is_discovered.then_some(context.dir));
    engine_tools::check_consistency(section.diagnostics, pool, blame.engine_tools.as_ref());
    file_plane::check_consistency(section, pool);
    let waiting = section.section("approval").place_of("when_waiting");
    let place = waiting.unwrap_or_else(|| section.place.clone());
    approval::check_release_resumes(section.diagnostics, pool, &place);
}

/// The network: whether the pool has routes, and its egress proxy, if it has one.
fn read_egress(
    section: &Section<'_>,
    network: Option<&Located<Network>>,
    context: &PoolContext<'_>,
) -> (bool, Option<Arc<Egress>>) {
    let rules = egress::read(&section.section("egress"), context.egress);
    match network.map(|found| found.value) {
        Some(Network::Routes) => (true, None),
        Some(Network::Proxy) => (section.get("routes").is_some(), Some(Arc::new(rules))),
        _ => (false, None),
    }
}

/// Reads a table of keys that stand for themselves, and have defaults.
fn read_table<T: Default>(
    section: &Section<'_>,
    read_keys: impl FnOnce(&Section<'_>, &T) -> T,
) -> T {
    let table = read_keys(section, &T::default());
    section.reject_unknown_keys(&[], &[]);
    table
}

/// The settings of an agent that speaks ACP, with its preset's defaults.
fn acp_settings(agent: &Agent, draft: &AcpSettings) -> Arc<AcpSettings> {
    Arc::new(AcpSettings {
        mode: agent.mode.clone().filter(|_| agent.mode_by_protocol),
        model: agent.model.clone().filter(|_| agent.model_by_protocol),
        auto_approve_modes: AutoApproveModes::for_agent(&agent.name),
        ..draft.clone()
    })
}

fn value_or<T>(found: Option<Located<T>>, default: T) -> T {
    found.map_or(default, |found| found.value)
}

fn place_or<T>(found: Option<&Located<T>>, above: &Place) -> Place {
    found.map_or(above, |found| &found.place).clone()
}

/// The name of the profile, which must exist.
fn read_sandbox_profile(
    section: &Section<'_>,
    launcher: Launcher,
    context: &PoolContext<'_>,
) -> String {
    let standard = sandbox::STANDARD.to_owned();
    let Some(item) = section.get("sandbox") else {
        return standard;
    };
    let Some(found) = item.text_like(sandbox::NAME_PATTERN) else {
        return standard;
    };
    if launcher.is_remote() {
        ssh::refuse_profile(section.diagnostics, &found);
        return standard;
    }
    if launcher.is_unsandboxed() {
        let message = "with launcher = \"none\" there is no sandbox: remove this key";
        section.diagnostics.report(&found.place, message, None);
        return standard;
    }
    if !context.sandboxes.contains_key(&found.value)
        && !context.sandbox_names.contains(&found.value)
    {
        let names: Vec<_> = context.sandboxes.keys().map(String::as_str).collect();
        let expected = format!("{} or the name of a [sandbox.NAME]", one_of(&names));
        item.report_unknown(&found.value, &names, &[], &expected);
    }
    found.value
}

/// The name of the policy, which must exist.
fn read_policy(section: &Section<'_>, context: &PoolContext<'_>) -> String {
    let usual = || {
        BUILT_IN_POLICIES
            .first()
            .copied()
            .unwrap_or_default()
            .to_owned()
    };
    policy_uses::read_policy_name(section, "policy", context).unwrap_or_else(usual)
}

/// The directory of a built-in agent, if the file names it.
fn read_agent_dir(
    section: &Section<'_>,
    agent: &Agent,
    context: &PoolContext<'_>,
) -> Option<PathBuf> {
    let found = section.get("agent_dir")?.text_like(paths::PATTERN)?;
    let path = paths::absolute(context.dir, &found.value);
    let looked_for = presets::preset(&agent.name).is_some_and(|preset| preset.find.is_some());
    if let Some(fault) = paths::path_error(&found.value) {
        section.diagnostics.report(&found.place, fault, None);
    } else if !agent.is_preset || agent.has_own_command || !looked_for {
        let message = "agent_dir is for built-in agents that marshal looks for on this host";
        let help = "name the program in command, and its directory in ro_bind of the sandbox";
        let help = Some(help.to_owned());
        section.diagnostics.report(&found.place, message, help);
    } else if context.is_discovered
        && !path.starts_with(context.dir)
        && !sandbox::is_in_system_program_dir(&path)
    {
        let message = "a discovered supervisor.toml may name agents only in its own directory or where programs of the system are";
        let help = Some(TRUST_HELP.to_owned());
        section.diagnostics.report(&found.place, message, help);
    }
    Some(path)
}

/// The routes, each of which must exist.
fn read_routes(section: &Section<'_>, context: &PoolContext<'_>) -> Vec<RoutePort> {
    let mut routes: Vec<RoutePort> = Vec::new();
    let list = section.texts_like("routes", sandbox::NAME_PATTERN);
    if let Some(list) = list
        .as_ref()
        .filter(|list| list.value.len() > limits::POOL_ROUTES)
    {
        let message = format!("a pool has at most {} routes", limits::POOL_ROUTES);
        section.diagnostics.report(&list.place, message, None);
    }
    for found in list.map_or(Vec::new(), |list| list.value) {
        let name = found.value;
        let message = if routes.iter().any(|route| route.name == name) {
            format!("the route {} is in the list twice", quote(&name))
        } else if let Some(route) = context.routes.get(&name) {
            let registry = route.registry_address();
            let same = routes.iter().find(|other| {
                let other = other.registry.as_ref();
                other.is_some() && other.map(|other| other.registry) == route.registry
            });
            if let Some(same) = same {
                let message = format!(
                    "the routes {} and {name} lead to registries of one kind: a client inside uses one",
                    same.name
                );
                section.diagnostics.report(&found.place, message, None);
            }
            let (port, kind) = (route.port, route.kind);
            routes.push(RoutePort {
                name,
                port,
                kind,
                registry,
            });
            continue;
        } else if context.route_names.contains(&name) {
            continue;
        } else {
            let names: Vec<_> = context.routes.keys().map(String::as_str).collect();
            format!(
                "expected {} or the name of a [route.NAME], found {}",
                one_of(&names),
                quote(&name)
            )
        };
        section.diagnostics.report(&found.place, message, None);
    }
    routes
}

/// Files for a new home: path inside the home -> file on the host.
fn read_home_files(section: &Section<'_>, context: &PoolContext<'_>) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    for (inside, item) in section
        .section("home_files")
        .named_entries(paths::SANDBOX_PATH_PATTERN)
    {
        if let Some(fault) = paths::sandbox_path_error(&inside) {
            let message = format!("{fault}, found {}", quote(&inside));
            section.diagnostics.report(&item.place, message, None);
        }
        let Some(source) = item.text_like(paths::PATTERN) else {
            continue;
        };
        if let Some(fault) = paths::path_error(&source.value) {
            section.diagnostics.report(&source.place, fault, None);
        }
        let path = paths::absolute(context.dir, &source.value);
        if context.is_discovered && !path.starts_with(context.dir) {
            let message = "a discovered supervisor.toml may take files only from its own directory";
            section
                .diagnostics
                .report(&source.place, message, Some(TRUST_HELP.to_owned()));
        }
        files.insert(inside, path);
    }
    files
}

fn read_check(section: &Section<'_>) -> Vec<String> {
    let words = section.texts("check").map_or(Vec::new(), |list| list.value);
    if let Some(program) = words.first()
        && program.value.trim().is_empty()
    {
        section
            .diagnostics
            .report(&program.place, "the program's name is empty", None);
    }
    words.into_iter().map(|word| word.value).collect()
}

/// The help for what a discovered file may not do.
pub(super) const TRUST_HELP: &str =
    "`marshal trust` says that you trust the file as it is; or name it with --config";
