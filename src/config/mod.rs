//! TOML text -> checked configuration.
//!
//! Owns what `supervisor.toml` may say, its defaults, and its faults with their places: all faults
//! of a file are found, not only the first. Unknown keys are faults, and no key is accepted before
//! it does something. Must not know files, the environment or the host: links are followed, owners
//! checked and state directories found at the command line.

mod acp;
mod agent;
mod asking;
mod budget;
mod cache;
mod claude;
mod codex;
mod command;
mod container;
mod delegate;
mod demands;
mod describe;
pub mod dialect_table;
mod dialect_use;
mod egress;
mod engine_tools;
mod environment;
mod error;
mod file_plane;
mod form;
pub mod hint;
mod hook;
mod http;
mod nearest;
mod paths;
mod policy_uses;
mod pool;
mod presets;
mod role;
mod route;
mod route_table;
mod runner;
mod sandbox;
mod sandbox_limits;
mod schema;
mod show;
mod site;
mod ssh;
mod store;
mod table;
mod template;
mod trusted;
pub mod types;
mod units;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

pub use acp::{
    Acp, McpServer, OptionValue, PermissionReply, Reach, ServerKind, Skipping, TellDenials,
};
pub use asking::{Approver, AskConfig, WhenWaiting};
pub use budget::{PoolBudget, Price, Prices, may_know_cost, may_report_no_cost, price};
pub use codex::{Approvals, Codex};
pub use command::{Fill, OWN_PROGRAM};
pub use delegate::{Decider, Delegate};
pub use demands::{Degradable, Demands, OnMissing, UidRange};
pub use dialect_table::{CustomDialect, DialectTable};
pub use environment::{HOME as HOME_OF_CHILD, is_secretive};
pub use error::{ConfigError, ConfigErrors, Places};
pub use file_plane::FilePlane;
pub use hook::{Hook, HookAddress, HookCommand, HookTo, HookUrl};
pub use http::{Certificate, Http, NamedToken};
pub use policy_uses::PolicyUses;
pub use presets::{Find, Preset, names as agent_names, preset as agent_preset};
pub use role::{ChatConfig, RegisteredWorkspace, Role};
pub use runner::{LEASE as RUNNER_LEASE, Runner};
pub use schema::{dialect_schema, schema};
pub use show::Effective;
pub use store::StoreConfig;
pub use template::{Template, TemplateMode, plan_path};
pub use trusted::{Part, Trusted, works_in, writes_in_place};
pub use types::*;
pub use units::{duration as read_duration, show_duration, show_size};

use crate::limits;
use crate::model::foreign;
use error::{Text, quoted};
use pool::{Context, Draft};
use table::{Ledger, Section, word};

word!(LogFormat);

/// The configuration that is used where no file is.
pub const DEFAULT: &str = include_str!("../../supervisor.toml");

/// Tables of the format that this version has not.
const LATER_TABLES: &[&str] = &["dialect", "remote"];

/// Tables that people look for, and where what they want stands.
const MEANT_TABLES: &[(&str, &str)] = &[
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
    /// The file was named with `--config`. One that was only found may not weaken the walls.
    pub named: bool,
}

impl Origin {
    /// The embedded default, used in `dir`.
    #[must_use]
    pub fn built_in(dir: PathBuf) -> Self {
        Self {
            file: None,
            dir,
            named: false,
        }
    }

    /// The file's name for people.
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.file {
            Some(file) => foreign::show(&file.to_string_lossy(), 200),
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
        let source = legible(bytes, origin)?;
        let ledger = Ledger::new(Text::new(origin.shown(), Arc::from(source)));
        let (tree, errors) = DeTable::parse_recoverable(source);
        // A tree with holes would only bring more faults that are none; one with a key too many is
        // as good as any.
        let whole = errors.iter().all(|error| error.message() == DUPLICATE);
        for error in errors {
            ledger.faults(vec![syntax(source, &error)]);
        }
        let config = whole.then(|| read(&Section::root(&ledger, tree.get_ref()), origin));
        let faulty = ledger.is_faulty();
        let (text, errors, spans) = ledger.close();
        match config {
            Some(mut config) if !faulty => {
                config.places = Places::new(text, spans);
                Ok(config)
            }
            _ => Err(text.refuse(errors)),
        }
    }

    /// The pool whose workspace holds `path` (the state directory must lie in none), looking at
    /// the texts only.
    #[must_use]
    pub fn workspace_around(&self, path: &Path) -> Option<&Pool> {
        let mut pools = self.pools.iter();
        pools.find(|pool| {
            let workspace = pool.local_workspace();
            workspace.is_some_and(|workspace| path.starts_with(workspace))
        })
    }

    /// The pool that a task without a pool's name goes to: the only one.
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

/// The parser's word for a key that is there twice.
const DUPLICATE: &str = "duplicate key";

/// The bytes as text that the parser can take.
fn legible<'b>(bytes: &'b [u8], origin: &Origin) -> Result<&'b str, ConfigErrors> {
    let refuse = |source: &str, at: usize, message: &str, help: Option<&str>| {
        let text = Text::new(origin.shown(), Arc::from(source));
        let error = Text::error("", at..at, message, help.map(str::to_owned));
        Err(text.refuse(vec![error]))
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

fn syntax(source: &str, error: &toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or(source.len()..source.len());
    let message = error.message();
    if message == DUPLICATE {
        let key = source.get(span.clone()).unwrap_or_default();
        let message = format!("the key {} is there twice", quoted(key));
        return Text::error("", span, &message, None);
    }
    Text::error("", span, message, None)
}

/// Reads the whole tree. What is faulty has its default; the ledger knows.
fn read(root: &Section<'_>, origin: &Origin) -> Config {
    let ledger = root.ledger;
    let sandboxes = sandbox::read_all(
        &root.section("sandbox"),
        &origin.dir,
        origin.file.is_some() && !origin.named,
    );
    let found = origin.file.is_some() && !origin.named;
    let routes = route_table::read_all(&root.section("route"), found, &origin.dir);
    let egress = egress::read(&root.section("egress"), &Egress::default());
    let caches = cache::dirs(&root.section("cache"), &origin.dir, found);
    let (policies, site_policy, policy_uses) = policies(&root.section("policy"), &origin.dir);
    let delegates = delegate::read_all(&root.section("delegate"), found, &origin.dir);
    let names = |table: &'static str| {
        let named = root.section(table).named(sandbox::NAME_PATTERN);
        named.into_iter().map(|(name, _)| name).collect()
    };
    let is_there = root.item("container").is_some();
    let container = container::read(&root.section("container"), is_there, found);
    let context = Context {
        dir: &origin.dir,
        found,
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
    let drafts: Vec<Draft> = table
        .named(sandbox::NAME_PATTERN)
        .iter()
        .filter_map(|(name, item)| pool::read(name, item, &context))
        .collect();
    has_pools(root, &table);
    let section = root.section("supervisor");
    let http = http::read(&root.section("http"), found, &origin.dir);
    let tokens = http::tokens(&root.section("token"), found, &origin.dir);
    let supervisor = supervisor(&section, &origin.dir, &http);
    children_fit(root, &drafts, supervisor.max_children);
    stay_outside(root, &drafts, &supervisor, &policies, &sandboxes, origin);
    cache::stay_outside(root, &drafts, &caches);
    let prices = budget::prices(&root.section("price"));
    budget::costs_are_known(root, &drafts, &prices);
    let hooks = hook::read_all(&root.section("hook"), found, &origin.dir, &drafts);
    trusted::stay_outside(root, &drafts, &hooks, delegates.values());
    http::stay_hidden(root, &drafts, &http, &tokens);
    let hints = hint::read(root);
    let chat = role::chat(&root.section("chat"));
    let roles = role::roles(&root.section("role"), &drafts, &names("pool"));
    let store = store::read(&root.section("store"), &origin.dir, found);
    let workspaces = role::workspaces(&root.section("workspace"), &origin.dir, found);
    file_plane::stay_apart(root, &drafts, workspaces.values());
    runner::stay_apart(root, &drafts, workspaces.values());
    let templates = template::templates(&root.section("template"), &roles, &names("role"));
    root.close(LATER_TABLES, MEANT_TABLES);
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
        places: Places::new(ledger.text.clone(), BTreeMap::new()),
    };
    config.notes = describe::notes(&config);
    config.notes.extend(hook::notes(&config.hooks));
    config
}

fn has_pools(root: &Section<'_>, table: &Section<'_>) {
    let is_table = root.item("pool").is_none_or(|item| item.is_table());
    if is_table && table.named(sandbox::NAME_PATTERN).is_empty() {
        let help = "write [pool.NAME] with a command: a pool's name is yours to choose";
        let message = "the file has no pool";
        let ledger = root.ledger;
        ledger.fault(&table.place, message, Some(help.to_owned()));
    }
}

/// Reads `[supervisor]`.
fn supervisor(section: &Section<'_>, dir: &Path, http: &Http) -> Supervisor {
    let state_dir = section.item("state_dir");
    let state_dir = state_dir.and_then(|item| item.text_like(paths::PATTERN_OR_EMPTY));
    let state_dir = state_dir.filter(|found| {
        let fault = paths::fault(&found.value).filter(|_| !found.value.is_empty());
        if let Some(fault) = fault {
            let help = "leave it out for $STATE_DIRECTORY, $XDG_STATE_HOME/marshal or ~/.local/state/marshal";
            section.ledger.fault(&found.place, fault, Some(help.to_owned()));
        }
        fault.is_none() && !found.value.is_empty()
    });
    let listen = section
        .item("listen")
        .and_then(|item| http.listen(&item, section.ledger));
    let log = section.word("log", &[]);
    let max_children = section.integer("max_children", 1..=limits::MAX_CHILDREN);
    let journal = waits::journal(&section.section("journal"));
    section.close(
        &["instance", "approvers"],
        &[
            ("journal_quota", "journal.session_max"),
            ("tokens", "token"),
            ("tls", "http.tls"),
            ("hosts", "http.hosts"),
            ("retention", "journal.keep"),
        ],
    );
    Supervisor {
        state_dir: state_dir.map(|found| paths::absolute(dir, &found.value)),
        listen: listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7117))),
        log: log.map_or(LogFormat::Auto, |found| found.value),
        max_children: max_children.map_or(64, |found| found.value),
        journal,
    }
}

/// Reads the table `policy`.
fn policies(
    section: &Section<'_>,
    dir: &Path,
) -> (BTreeMap<String, PathBuf>, Option<String>, PolicyUses) {
    let mut policies = BTreeMap::new();
    let mut uses = PolicyUses::default();
    let mut site = None;
    for (name, item) in section.named(sandbox::NAME_PATTERN) {
        let built_in = pool::POLICIES.iter().chain(pool::LATER_POLICIES);
        let message = if built_in.into_iter().any(|known| *known == name) {
            Some(format!(
                "the name {} belongs to a built-in policy",
                quoted(&name)
            ))
        } else if sandbox::is_name(&name) {
            None
        } else {
            let form = sandbox::NAME;
            Some(format!(
                "the policy name {} must match {form}",
                quoted(&name)
            ))
        };
        if let Some(message) = message {
            let help = Some("choose another name".to_owned());
            section.ledger.fault(&item.place, message, help);
        }
        let Some(table) = item.section() else {
            continue;
        };
        site::read(&table, &name, &mut site);
        let is_site = site.as_ref() == Some(&name);
        policy_uses::read(&table, &name, is_site, dir, &mut uses);
        let file = table.item("file");
        if file.is_none() {
            let message = "the policy needs a file";
            let help = Some("for example: file = \"policy.toml\"".to_owned());
            section.ledger.fault(&table.place, message, help);
        }
        if let Some(found) = file.and_then(|item| item.text_like(paths::PATTERN)) {
            if let Some(fault) = paths::fault(&found.value) {
                section.ledger.fault(&found.place, fault, None);
            }
            policies.insert(name, paths::absolute(dir, &found.value));
        }
        table.close(&["rules"], &[("tests", "test_dir"), ("cases", "test_dir")]);
    }
    (policies, site, uses)
}

/// All pools together must fit into the fleet.
fn children_fit(root: &Section<'_>, drafts: &[Draft], most: u16) {
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
            root.ledger.fault(&draft.size, message, help);
        }
    }
}

/// Nothing inside a workspace may change configuration, policy or state.
fn stay_outside(
    root: &Section<'_>,
    drafts: &[Draft],
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
        let holds = |path: &Path| {
            path.starts_with(&workspace.path) || driven.is_some_and(|dir| path.starts_with(dir))
        };
        if let Some(state) = &supervisor.state_dir
            && holds(state)
        {
            let holder = if state.starts_with(&workspace.path) {
                "the workspace"
            } else {
                "runner.dir"
            };
            let message = format!(
                "{holder} holds the state directory {}",
                quoted(&state.to_string_lossy())
            );
            let help = Some("move supervisor.state_dir out of every workspace".to_owned());
            root.ledger.fault(&draft.workspace, message, help);
        }
        let is_rw = workspace.mode == WorkspaceMode::Rw && pool.launcher != Launcher::None;
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
                quoted(&file.to_string_lossy())
            );
            let help = "with mode \"rw\", and in a runner.dir, this file and the policies must lie outside of it; mode \"copy\" needs no such care";
            root.ledger
                .fault(&draft.workspace, message, Some(help.to_owned()));
        }
    }
}
