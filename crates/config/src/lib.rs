//! TOML text -> checked configuration.
//!
//! Owns the keys of `supervisor.toml`, their defaults, and the faults with their places: all faults
//! of a file are reported, not only the first. Unknown keys are faults, and no key is accepted
//! before it has an effect. Must not know files, the environment or the host: the command line
//! follows links, checks owners and finds state directories.
//!
//! A new key: its reader here, its field in `types.rs`, its line in `show.rs`, its row in
//! `docs/configuration.md`, and then whoever acts on it. Then run
//! `marshal config schema > docs/supervisor.schema.json`. Which keys a running daemon takes over is
//! `engine/api/v1/reload.rs`; chats go by `engine/chat/live_config.rs`, tokens by `engine/api/tokens.rs`.

mod acp;
mod agent;
mod approval;
mod budget;
mod cache;
mod claude;
mod codex;
mod command;
mod container;
mod delegate;
mod describe;
pub mod dialect_definition;
mod egress;
mod engine_tools;
mod environment;
mod error;
mod file_plane;
mod git_route;
pub mod hint;
mod hook;
mod host_requirements;
mod http;
mod key_types;
mod nearest;
mod paths;
mod policy_uses;
mod pool;
mod pool_dialect;
mod presets;
mod registry;
mod role;
mod route;
mod route_table;
mod runner;
mod sandbox;
mod sandbox_facts;
mod sandbox_limits;
mod schema;
mod settings;
mod show;
mod site;
mod ssh;
mod store;
mod table;
mod template;
mod timing;
mod trusted;
pub mod types;
mod units;
mod workspace;
mod workspace_branches;
mod workspace_repos;
mod workspace_setup;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use toml::de::DeTable;

pub use acp::{
    AcpSettings, AutoApproveModes, DenialFeedback, McpServer, McpTransport, OptionValue,
    PermissionReply, ServerKind,
};
pub use approval::{ApprovalConfig, Approver, WhenWaiting};
pub use budget::{
    PoolBudget, Price, Prices, built_in_prices_date, can_know_cost, find_price, may_report_no_cost,
};
pub use codex::{ApprovalPolicy, CodexSettings};
pub use command::{OWN_PROGRAM, PlaceholderValues};
pub use delegate::{Delegate, DelegateTarget};
pub use dialect_definition::{CustomDialect, DialectDefinition};
pub use environment::{HOME_PLACEHOLDER as HOME_OF_CHILD, is_likely_secret};
pub use error::{ConfigError, ConfigErrors, SourceMap};
pub use file_plane::FilePlane;
pub use hook::{Hook, HookAddress, HookCommand, HookTarget, HookUrl};
pub use host_requirements::{Degradable, HostRequirements, OnMissing, UidRange};
pub use http::{HttpConfig, NamedToken, TlsFiles};
pub use policy_uses::PolicyUses;
pub use presets::{Preset, ProgramLookup, names as agent_names, preset as agent_preset};
pub use role::{ChatConfig, RegisteredWorkspace, Role};
pub use runner::{LEASE as RUNNER_LEASE, Runner};
pub use schema::{dialect_schema, schema};
pub use show::EffectiveConfig;
pub use store::StoreConfig;
pub use template::{Template, TemplateMode, check_plan_path};
pub use trusted::{PathPurpose, TrustedPath, working_dirs, writable_dirs};
pub use types::*;
pub use units::{parse_duration as read_duration, show_duration, show_size};
pub use workspace_branches::Author;
pub use workspace_repos::WorkspaceRepo;
pub use workspace_setup::{SetupNetwork, WorkspaceSetup};

use error::{SourceText, quote};
use marshal_model::limits;
use marshal_model::untrusted;
use pool::{PoolContext, PoolDraft};
use table::{Diagnostics, Section, keywords};

keywords!(LogFormat);

/// The configuration that is used without a file.
pub const DEFAULT: &str = include_str!("../supervisor.toml");

/// Tables of the format that this version does not support.
const UNSUPPORTED_TABLES: &[&str] = &["dialect", "remote"];

/// Tables that people expect, and the key that has what they want.
const MISPLACED_TABLES: &[(&str, &str)] = &[
    ("pools", "pool"),
    ("caches", "cache"),
    ("delegates", "delegate"),
    ("hooks", "hook"),
    ("policies", "policy"),
    ("routes", "route"),
    ("prices", "price"),
    ("tokens", "token"),
    ("tls", "http.tls"),
    ("chats", "chat"),
    ("roles", "role"),
    ("workspaces", "workspace"),
    ("stores", "store"),
    ("templates", "template"),
];

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file; `None` for the embedded default.
    pub file: Option<PathBuf>,
    /// The directory that relative paths are relative to; absolute.
    pub dir: PathBuf,
    /// Whether the file was named with `--config`. A discovered file may not weaken the sandbox.
    pub is_explicit: bool,
}

impl Origin {
    /// The embedded default, used in `dir`.
    #[must_use]
    pub fn built_in(dir: PathBuf) -> Self {
        Self {
            file: None,
            dir,
            is_explicit: false,
        }
    }

    /// The file's name for people.
    #[must_use]
    pub fn display_name(&self) -> String {
        match &self.file {
            Some(file) => untrusted::escape_for_display(&file.to_string_lossy(), 200),
            None => "built-in configuration".to_owned(),
        }
    }
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, origin: &Origin) -> Result<Self, ConfigErrors> {
        Self::parse_bytes(text.as_bytes(), origin)
    }

    /// Reads and checks the bytes of a file.
    ///
    /// # Errors
    /// Every fault of the text, or what keeps it from being one.
    pub fn parse_bytes(bytes: &[u8], origin: &Origin) -> Result<Self, ConfigErrors> {
        let source = decode_source(bytes, origin)?;
        let diagnostics =
            Diagnostics::new(SourceText::new(origin.display_name(), Arc::from(source)));
        let (tree, errors) = DeTable::parse_recoverable(source);
        // After a syntax error the tree is incomplete and would yield false faults; one with a
        // duplicate key is as good as any.
        let whole = errors.iter().all(|error| error.message() == DUPLICATE);
        for error in errors {
            diagnostics.report_all(vec![syntax_error(source, &error)]);
        }
        let config =
            whole.then(|| read_config(&Section::root(&diagnostics, tree.get_ref()), origin));
        let faulty = diagnostics.has_errors();
        let (text, errors, spans) = diagnostics.into_parts();
        match config {
            Some(mut config) if !faulty => {
                config.source_map = SourceMap::new(text, spans);
                Ok(config)
            }
            _ => Err(text.into_errors(errors)),
        }
    }

    /// The state directory that a file names, whatever else is wrong with the file. `dir` is the
    /// directory of the file.
    #[must_use]
    pub fn state_dir_of(bytes: &[u8], dir: &Path) -> Option<PathBuf> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (tree, _) = DeTable::parse_recoverable(text);
        let supervisor = tree.get_ref().get("supervisor")?.get_ref().as_table()?;
        let state_dir = supervisor.get("state_dir")?.get_ref().as_str()?;
        let is_path = paths::path_error(state_dir).is_none();
        is_path.then(|| paths::absolute(dir, state_dir))
    }

    /// A digest of what the configuration does with tasks: equal for configurations that do the
    /// same. `[supervisor]` does not count, and secrets count only by being set.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut table = self.effective().to_table();
        table.remove("supervisor");
        hex::encode(Sha256::digest(table.to_string().as_bytes()))
    }

    /// The pool whose workspace contains `path`, by the paths alone (the state directory must be in
    /// no workspace).
    #[must_use]
    pub fn pool_containing(&self, path: &Path) -> Option<&Pool> {
        let mut pools = self.pools.iter();
        pools.find(|pool| {
            let workspace = pool.local_workspace();
            workspace.is_some_and(|workspace| path.starts_with(workspace))
        })
    }

    /// The default pool of a task: the only pool, if there is just one.
    #[must_use]
    pub fn only_pool(&self) -> Option<&Pool> {
        match self.pools.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The pool of that name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name.as_str() == name)
    }
}

/// The parser's message for a duplicate key.
const DUPLICATE: &str = "duplicate key";

/// The bytes as text that the parser can take.
fn decode_source<'b>(bytes: &'b [u8], origin: &Origin) -> Result<&'b str, ConfigErrors> {
    let refuse = |source: &str, at: usize, message: &str, help: Option<&str>| {
        let text = SourceText::new(origin.display_name(), Arc::from(source));
        let error = SourceText::build_error("", at..at, message, help.map(str::to_owned));
        Err(text.into_errors(vec![error]))
    };
    if bytes.len() > limits::CONFIG_BYTES {
        let message = format!(
            "the file is larger than {}",
            show_size(limits::CONFIG_BYTES as u64)
        );
        return refuse("", 0, &message, None);
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let help = Some("save it as UTF-8");
        return refuse("", 0, "the file is written in UTF-16, expected UTF-8", help);
    }
    let source = match std::str::from_utf8(bytes) {
        Ok(source) => source,
        Err(error) => {
            let lossy = String::from_utf8_lossy(bytes);
            let help = Some("save it as UTF-8");
            return refuse(
                &lossy,
                error.valid_up_to(),
                "the text is not UTF-8 here",
                help,
            );
        }
    };
    if source.starts_with('\u{feff}') {
        let help = Some("save it as UTF-8 without a byte order mark");
        return refuse(source, 0, "the file begins with a byte order mark", help);
    }
    Ok(source)
}

fn syntax_error(source: &str, error: &toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or(source.len()..source.len());
    let message = error.message();
    if message == DUPLICATE {
        let key = source.get(span.clone()).unwrap_or_default();
        let message = format!("the key {} is defined twice", quote(key));
        return SourceText::build_error("", span, &message, None);
    }
    SourceText::build_error("", span, message, None)
}

/// Reads the whole tree. A faulty value gets its default, and the diagnostics record the fault.
fn read_config(root: &Section<'_>, origin: &Origin) -> Config {
    let diagnostics = root.diagnostics;
    let sandboxes = sandbox::read_all(
        &root.section("sandbox"),
        &origin.dir,
        origin.file.is_some() && !origin.is_explicit,
    );
    let found = origin.file.is_some() && !origin.is_explicit;
    let routes = route_table::read_all(&root.section("route"), found, &origin.dir);
    let egress = egress::read(&root.section("egress"), &Egress::default());
    let caches = cache::read_dirs(&root.section("cache"), &origin.dir, found);
    let (policies, site_policy, policy_uses) = read_policies(&root.section("policy"), &origin.dir);
    let delegates = delegate::read_all(&root.section("delegate"), found, &origin.dir);
    let names = |table: &'static str| {
        let named = root.section(table).named_entries(sandbox::NAME_PATTERN);
        named.into_iter().map(|(name, _)| name).collect()
    };
    let is_there = root.get("container").is_some();
    let container = container::read(&root.section("container"), is_there, found);
    let (workspaces, of_pools) =
        role::read_workspaces(&root.section("workspace"), &origin.dir, found);
    let context = PoolContext {
        dir: &origin.dir,
        workspaces: &of_pools,
        is_discovered: found,
        container: &container,
        sandboxes: &sandboxes,
        routes: &routes,
        egress: &egress,
        caches: &caches,
        sandbox_names: names("sandbox"),
        policy_names: names("policy"),
        route_names: names("route"),
        delegates: &delegates,
        delegate_names: names("delegate"),
    };
    let table = root.section("pool");
    let drafts: Vec<PoolDraft> = table
        .named_entries(sandbox::NAME_PATTERN)
        .iter()
        .filter_map(|(name, item)| pool::read(name, item, &context))
        .collect();
    check_has_pools(root, &table);
    let section = root.section("supervisor");
    let http = http::read(&root.section("http"), found, &origin.dir);
    let tokens = http::read_tokens(&root.section("token"), found, &origin.dir);
    let supervisor = read_supervisor(&section, &origin.dir, &http);
    check_slot_total(root, &drafts, supervisor.max_children);
    check_outside_workspaces(root, &drafts, &supervisor, &policies, &sandboxes, origin);
    cache::check_outside_workspaces(root, &drafts, &caches);
    let prices = budget::read_prices(&root.section("price"));
    budget::check_costs_known(root, &drafts, &prices);
    let hooks = hook::read_all(&root.section("hook"), found, &origin.dir, &drafts);
    trusted::check_outside_workspaces(root, &drafts, &hooks, delegates.values());
    http::check_credentials_hidden(root, &drafts, &http, &tokens);
    let hints = hint::read(root);
    let chat = role::read_chat(&root.section("chat"));
    let roles = role::read_roles(&root.section("role"), &drafts, &names("pool"));
    let store = store::read(&root.section("store"), &origin.dir, found);
    file_plane::check_separate_directories(root, &drafts, workspaces.values());
    runner::check_separate_directories(root, &drafts, workspaces.values());
    engine_tools::check_read_only(root, &drafts, workspaces.values());
    let templates = template::read_templates(&root.section("template"), &roles, &names("role"));
    root.reject_unknown_keys(UNSUPPORTED_TABLES, MISPLACED_TABLES);
    let mut config = Config {
        file: origin.file.clone(),
        supervisor,
        http,
        tokens,
        pools: drafts.into_iter().map(|draft| draft.pool).collect(),
        sandboxes,
        container,
        routes,
        egress,
        caches,
        delegates,
        prices,
        policies,
        site_policy,
        policy_uses,
        hooks,
        hints,
        chat,
        roles,
        workspaces,
        store,
        templates,
        notes: Vec::new(),
        source_map: SourceMap::new(diagnostics.text.clone(), BTreeMap::new()),
    };
    config.notes = describe::collect_notes(&config);
    config.notes.extend(hook::collect_notes(&config.hooks));
    config
}

fn check_has_pools(root: &Section<'_>, table: &Section<'_>) {
    let is_table = root.get("pool").is_none_or(|item| item.is_table());
    if is_table && table.named_entries(sandbox::NAME_PATTERN).is_empty() {
        let help = "write [pool.NAME] with a command: a pool's name is yours to choose";
        let message = "the file has no pool";
        let diagnostics = root.diagnostics;
        diagnostics.report(&table.place, message, Some(help.to_owned()));
    }
}

/// Reads `[supervisor]`.
fn read_supervisor(section: &Section<'_>, dir: &Path, http: &HttpConfig) -> Supervisor {
    let state_dir = section
        .get("state_dir")
        .and_then(|item| item.text_like(paths::PATTERN_OR_EMPTY))
        .filter(|found| !found.value.is_empty());
    let state_dir = state_dir.filter(|found| {
        let fault = paths::path_error(&found.value);
        if let Some(fault) = fault {
            let help = "leave it out for $STATE_DIRECTORY, $XDG_STATE_HOME/marshal or ~/.local/state/marshal";
            section.diagnostics.report(&found.place, fault, Some(help.to_owned()));
        }
        fault.is_none()
    });
    let listen = section
        .get("listen")
        .and_then(|item| http.read_listen(&item, section.diagnostics));
    let mut supervisor = Supervisor::read_keys(section, &Supervisor::default());
    let journal = section.section("journal");
    supervisor.journal = JournalRetention::read_keys(&journal, &supervisor.journal);
    journal.reject_unknown_keys(&[], &[]);
    supervisor.state_dir = state_dir.map(|found| paths::absolute(dir, &found.value));
    supervisor.listen = listen.unwrap_or(supervisor.listen);
    section.reject_unknown_keys(
        &["instance", "approvers"],
        &[
            ("journal_quota", "journal.session_max"),
            ("tokens", "token"),
            ("tls", "http.tls"),
            ("hosts", "http.hosts"),
            ("retention", "journal.keep"),
        ],
    );
    supervisor
}

/// Reads the table `policy`.
fn read_policies(
    section: &Section<'_>,
    dir: &Path,
) -> (BTreeMap<String, PathBuf>, Option<String>, PolicyUses) {
    let mut policies = BTreeMap::new();
    let mut uses = PolicyUses::default();
    let mut site = None;
    for (name, item) in section.named_entries(sandbox::NAME_PATTERN) {
        let built_in = pool::BUILT_IN_POLICIES
            .iter()
            .chain(pool::UNSUPPORTED_POLICIES);
        let message = if built_in.into_iter().any(|known| *known == name) {
            Some(format!(
                "the name {} belongs to a built-in policy",
                quote(&name)
            ))
        } else if sandbox::is_valid_name(&name) {
            None
        } else {
            let form = sandbox::NAME_FORM;
            Some(format!(
                "the policy name {} must match {form}",
                quote(&name)
            ))
        };
        if let Some(message) = message {
            let help = Some("choose another name".to_owned());
            section.diagnostics.report(&item.place, message, help);
        }
        let Some(table) = item.section() else {
            continue;
        };
        site::read(&table, &name, &mut site);
        let is_site = site.as_ref() == Some(&name);
        policy_uses::read(&table, &name, is_site, dir, &mut uses);
        let file = table.get("file");
        if file.is_none() {
            let message = "the policy needs a file";
            let help = Some("for example: file = \"policy.toml\"".to_owned());
            section.diagnostics.report(&table.place, message, help);
        }
        if let Some(found) = file.and_then(|item| item.text_like(paths::PATTERN)) {
            if let Some(fault) = paths::path_error(&found.value) {
                section.diagnostics.report(&found.place, fault, None);
            }
            policies.insert(name, paths::absolute(dir, &found.value));
        }
        table.reject_unknown_keys(&["rules"], &[("tests", "test_dir"), ("cases", "test_dir")]);
    }
    (policies, site, uses)
}

/// The slots of all pools together must not exceed `max_children`.
fn check_slot_total(root: &Section<'_>, drafts: &[PoolDraft], most: u16) {
    let mut sum = 0_u32;
    for draft in drafts {
        let before = sum;
        sum += u32::from(draft.pool.max_size);
        if before <= u32::from(most) && sum > u32::from(most) {
            let total: u32 = drafts
                .iter()
                .map(|draft| u32::from(draft.pool.max_size))
                .sum();
            let message = format!(
                "all pools together have {total} slots, and supervisor.max_children is {most}"
            );
            let help = Some("make pools smaller, or raise max_children".to_owned());
            root.diagnostics.report(&draft.size_place, message, help);
        }
    }
}

/// Nothing inside a workspace may change configuration, policy or state.
fn check_outside_workspaces(
    root: &Section<'_>,
    drafts: &[PoolDraft],
    supervisor: &Supervisor,
    policies: &BTreeMap<String, PathBuf>,
    sandboxes: &BTreeMap<String, Sandbox>,
    origin: &Origin,
) {
    for draft in drafts {
        let pool = &draft.pool;
        if pool.local_workspace().is_none() {
            continue;
        }
        let workspace = &pool.workspace;
        let driven = pool.runner_dir().map(|(dir, _)| dir);
        let is_shown = |path: &Path| {
            let further = workspace.repos.iter().map(|repo| &repo.path);
            std::iter::once(&workspace.path)
                .chain(further)
                .any(|dir| path.starts_with(dir))
        };
        let holds = |path: &Path| is_shown(path) || driven.is_some_and(|dir| path.starts_with(dir));
        if let Some(state) = &supervisor.state_dir
            && holds(state)
        {
            let holder = if is_shown(state) {
                "the workspace"
            } else {
                "runner.dir"
            };
            let message = format!(
                "{holder} contains the state directory {}",
                quote(&state.to_string_lossy())
            );
            let help = Some("move supervisor.state_dir out of every workspace".to_owned());
            root.diagnostics
                .report(&draft.workspace_place, message, help);
        }
        let is_rw = workspace.mode == WorkspaceMode::Rw && !pool.launcher.is_unsandboxed();
        let written = |path: &Path| {
            is_rw && path.starts_with(&workspace.path)
                || driven.is_some_and(|dir| path.starts_with(dir))
        };
        let filter = sandboxes.get(&pool.sandbox).map(|profile| &profile.seccomp);
        let filter = match filter {
            Some(Seccomp::File(file)) => Some(file),
            _ => None,
        };
        let files = policies.values().chain(&origin.file).chain(filter);
        for file in files.filter(|file| written(file)) {
            let message = format!(
                "the agent could write {}, which decides what agents may do",
                quote(&file.to_string_lossy())
            );
            let help = "with mode \"rw\", and in a runner.dir, this file and the policies must be outside of it; mode \"copy\" has no such limit";
            root.diagnostics
                .report(&draft.workspace_place, message, Some(help.to_owned()));
        }
    }
}
