//! A checked configuration as a file: every key with the value that it has, secrets hidden.
//!
//! The output parses to the same configuration, except for the secrets. Must not know where it is
//! shown; everything here is safe to show. Every structure is destructured in full, so that no new
//! key can be forgotten.

mod chats;
mod pool_keys;
mod routes;
mod ssh;
mod toml_text;
mod top_tables;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::environment::{self, REDACTED};
use super::presets::{self, Preset};
use super::route_table;
use super::types::{
    Config, DialectName, Env, Extractor, Pool, Route, Sandbox, Seccomp, Supervisor,
};
use super::units::{show_duration, show_size};
use marshal_model::untrusted;
use toml_text::{format_path, write_value};

/// A configuration with all its values, as tables.
#[derive(Debug)]
pub struct EffectiveConfig {
    tables: Vec<RenderedTable>,
}

/// One table with a header of its own.
#[derive(Debug)]
pub(crate) struct RenderedTable {
    /// The header's parts.
    header: Vec<String>,
    /// Comments above it, one line each.
    remarks: Vec<String>,
    /// Dotted keys, by their parts, and their values.
    entries: Vec<(Vec<String>, Value)>,
}

impl RenderedTable {
    fn new(header: &[&str]) -> Self {
        Self {
            header: header.iter().map(|part| (*part).to_owned()).collect(),
            remarks: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Adds a key; its parts are divided by dots.
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        let parts = key.split('.').map(str::to_owned).collect();
        self.entries.push((parts, value.into()));
    }

    /// Adds a key if it has a value.
    pub(crate) fn put_optional(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }

    /// Adds a table whose keys the file chose.
    fn put_named(&mut self, key: &str, entries: Vec<(String, Value)>) {
        if entries.is_empty() {
            self.put(key, Table::new());
        }
        for (name, value) in entries {
            let parts = key.split('.').map(str::to_owned).chain([name]);
            self.entries.push((parts.collect(), value));
        }
    }
}

impl Config {
    /// The whole configuration, defaults filled in and every secret hidden.
    #[must_use]
    pub fn effective(&self) -> EffectiveConfig {
        let Self {
            file: _,
            supervisor: of_supervisor,
            http: of_http,
            tokens,
            pools,
            sandboxes,
            container,
            routes,
            egress: of_egress,
            caches,
            delegates: of_delegates,
            prices,
            policies,
            site_policy,
            policy_uses,
            hooks: of_hooks,
            hints: of_hints,
            chat,
            roles,
            templates,
            workspaces,
            store: of_store,
            notes: _,
            source_map: _,
        } = self;
        let mut tables = vec![supervisor_table(of_supervisor)];
        if !of_hints.own().is_empty() {
            // A key of the file itself, so before all tables.
            let mut table = RenderedTable::new(&[]);
            table.put(
                "hint",
                of_hints
                    .own()
                    .iter()
                    .map(top_tables::hint_value)
                    .collect::<Vec<_>>(),
            );
            tables.insert(0, table);
        }
        tables.extend(top_tables::http_table(of_http));
        tables.extend(top_tables::token_tables(tokens));
        tables.extend(pools.iter().map(pool_table));
        tables.extend(
            sandboxes
                .iter()
                .map(|(name, profile)| sandbox_table(name, profile)),
        );
        if pools.iter().any(|it| it.launcher.uses_image()) {
            tables.push(top_tables::container_table(container));
        }
        tables.extend(self.routes_to_show(routes).map(routes::route));
        tables.push(top_tables::egress_table(of_egress));
        tables.extend(top_tables::cache_table(caches));
        tables.extend(top_tables::price_tables(prices));
        tables.extend(top_tables::delegate_tables(of_delegates));
        let site = site_policy.as_deref();
        tables.extend(top_tables::policy_tables(policies, site, policy_uses));
        tables.extend(of_hooks.iter().map(top_tables::hook_table));
        tables.extend(chats::tables(*chat, roles, workspaces, templates));
        tables.push(top_tables::store_table(of_store));
        EffectiveConfig { tables }
    }

    /// The routes that a pool uses, and those that differ from the built-in ones.
    fn routes_to_show<'c>(
        &'c self,
        routes: &'c BTreeMap<String, Route>,
    ) -> impl Iterator<Item = &'c Route> {
        routes.values().filter(|route| {
            let mut pools = self.pools.iter();
            pools.any(|pool| pool.routes.iter().any(|used| used.name == route.name))
                || !route_table::is_built_in(route)
        })
    }
}

impl EffectiveConfig {
    /// As TOML, which the reader accepts.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for table in &self.tables {
            if !out.is_empty() {
                out.push('\n');
            }
            if !table.header.is_empty() {
                let _ = writeln!(out, "[{}]", format_path(&table.header));
            }
            for remark in &table.remarks {
                let _ = writeln!(out, "# {remark}");
            }
            for (key, value) in &table.entries {
                let _ = write!(out, "{} = ", format_path(key));
                write_value(&mut out, value);
                out.push('\n');
            }
        }
        out
    }

    /// As one tree, for other formats.
    #[must_use]
    pub fn to_table(&self) -> Table {
        let mut root = Table::new();
        for table in &self.tables {
            table_at(&mut root, &table.header);
            for (key, value) in &table.entries {
                let path: Vec<String> = table.header.iter().chain(key).cloned().collect();
                let Some((last, above)) = path.split_last() else {
                    continue;
                };
                if let Some(table) = table_at(&mut root, above) {
                    table.insert(last.clone(), value.clone());
                }
            }
        }
        root
    }
}

/// The table at this path, created if it does not exist.
fn table_at<'t>(root: &'t mut Table, path: &[String]) -> Option<&'t mut Table> {
    let mut table = root;
    for part in path {
        let below = table
            .entry(part.clone())
            .or_insert_with(|| Value::Table(Table::new()));
        table = below.as_table_mut()?;
    }
    Some(table)
}

fn supervisor_table(supervisor: &Supervisor) -> RenderedTable {
    let mut table = RenderedTable::new(&["supervisor"]);
    let state_dir = supervisor.state_dir.as_deref();
    table.put("state_dir", state_dir.map_or_else(|| text(""), path));
    table.put("listen", supervisor.listen.to_string());
    supervisor.show_keys(&mut table, "");
    supervisor.journal.show_keys(&mut table, "journal.");
    table
}

#[expect(clippy::too_many_lines, reason = "one line a key")]
fn pool_table(pool: &Pool) -> RenderedTable {
    let Pool {
        name,
        size,
        max_size,
        options,
        command,
        resume_args,
        // What is written of it is both.
        dialect: _,
        custom_dialect: _,
        agent,
        is_preset,
        has_own_command: own_command,
        agent_dir,
        // The program is searched again wherever the file is used.
        program: _,
        model,
        mode,
        acp: of_acp,
        runner: of_runner,
        permission_requests,
        extractor,
        launcher,
        ssh: far,
        image,
        sandbox,
        network,
        routes,
        egress: of_egress,
        rate_limit: of_rate_limit,
        policy,
        shadow_policy,
        delegate,
        workspace,
        caches,
        home_files,
        // Of the agent.
        home_texts: _,
        check,
        env,
        restart: of_restart,
        timeouts: of_timeouts,
        shares,
        drain,
        stop: of_stop,
        approval: of_approval,
        budget: of_budget,
        engine_tools,
        file_plane,
    } = pool;
    let mut table = RenderedTable::new(&["pool", name.as_str()]);
    table.put("size", i64::from(*size));
    table.put("max_size", i64::from(*max_size));
    let known = presets::preset(agent);
    let is_usual = known.is_some_and(|preset| preset.matches_command(command, model.is_some()));
    if is_usual && !*own_command {
        let words = untrusted::escape_for_display(&command.join(" "), 1000);
        let remark = format!("{agent} is the command: {words}");
        table.remarks.push(remark);
    }
    if *is_preset {
        table.put("agent", agent.as_str());
    }
    if !*is_preset || *own_command {
        table.put("command", texts(command));
    }
    let dir = agent_dir.as_deref().map(path);
    table.put_optional("agent_dir", dir);
    table.put_optional("model", model.as_deref());
    table.put_optional("mode", mode.as_deref());
    table.put("resume_args", texts(resume_args));
    table.put("dialect", pool.dialect_value());
    pool_keys::put_acp(&mut table, of_acp);
    if pool.dialect == DialectName::Skillpilot {
        pool_keys::put_runner(&mut table, of_runner);
    }
    table.put("permission_requests", permission_requests.as_str());
    table.put("extractor", extractor_value(extractor));
    table.put("launcher", launcher.as_str());
    if launcher.has_sandbox() {
        table.put("sandbox", sandbox.as_str());
    }
    if launcher.has_built_in_sandbox() {
        table.put("cache", top_tables::cache_names(caches));
    }
    table.put_optional("image", image.as_deref());
    ssh::put(&mut table, far.as_deref(), *network);
    routes::put_routes(&mut table, routes);
    if let Some(rules) = of_egress {
        top_tables::show_egress(&mut table, "egress.", rules);
    }
    table.put("policy", policy.as_str());
    table.put_optional("shadow_policy", shadow_policy.as_deref());
    table.put_optional("delegate", delegate.clone());
    options.show_keys(&mut table, "");
    let engine_tools = engine_tools.iter().map(|tool| text(tool.as_str()));
    table.put("engine_tools", engine_tools.collect::<Vec<_>>());
    if far.is_none() {
        ssh::put_files(&mut table, workspace, *launcher, home_files);
    }
    table.put("check", texts(check));
    put_env(&mut table, env, known.filter(|_| *is_preset));
    of_restart.show_keys(&mut table, "restart.");
    of_timeouts.show_keys(&mut table, "timeouts.");
    table.put("stop.drain", show_duration(*drain));
    of_stop.show_keys(&mut table, "stop.");
    shares.show_keys(&mut table, "shares.");
    of_rate_limit.show_keys(&mut table, "rate_limit.");
    of_approval.show_keys(&mut table, "approval.");
    top_tables::put_budget(&mut table, of_budget);
    pool_keys::put_file_plane(&mut table, file_plane.as_ref());
    table
}

fn extractor_value(extractor: &Extractor) -> Value {
    match extractor {
        Extractor::BuiltIn(name) => text(name),
        Extractor::Inline(source) => Value::Table(source.parse().unwrap_or_default()),
    }
}

/// Values of the preset are omitted: they are no secrets, whatever their names.
fn put_env(table: &mut RenderedTable, env: &Env, preset: Option<&Preset>) {
    let Env {
        pass,
        set,
        secrets,
        path_add,
    } = env;
    table.put("env.pass", texts(pass));
    let is_own = |name: &str, value: &str| {
        let preset_value = |preset: &Preset| preset.pool_text_at(&["env", "set", name], true);
        preset
            .and_then(preset_value)
            .is_some_and(|preset_value| preset_value == value)
    };
    let plain = set
        .iter()
        .filter(|(name, value)| !is_own(name, value))
        .map(|(name, value)| {
            let hide = environment::is_likely_secret(name);
            (name.clone(), text(if hide { REDACTED } else { value }))
        });
    let hidden = secrets.keys().map(|name| (name.clone(), text(REDACTED)));
    let mut entries: Vec<_> = plain.chain(hidden).collect();
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    table.put_named("env.set", entries);
    table.put("env.path_add", paths(path_add));
}

fn sandbox_table(name: &str, profile: &Sandbox) -> RenderedTable {
    let Sandbox {
        ro_bind,
        etc,
        home_bytes,
        tmp_bytes,
        tmp_inodes,
        proc_mode,
        nofile,
        fsize,
        requirements: demands,
        landlock_min_abi,
        seccomp,
        group_limits: group,
    } = profile;
    // The reader's bounds keep all numbers far below this.
    let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut table = RenderedTable::new(&["sandbox", name]);
    table.put("ro_bind", paths(ro_bind));
    table.put("etc", texts(etc));
    table.put("home.size", show_size(*home_bytes));
    table.put("tmp.size", show_size(*tmp_bytes));
    table.put("tmp.inodes", integer(*tmp_inodes));
    table.put("proc", proc_mode.as_str());
    table.put("landlock_min_abi", i64::from(*landlock_min_abi));
    table.put(
        "seccomp",
        match seccomp {
            Seccomp::Default => text(super::sandbox::SECCOMP_DEFAULT),
            Seccomp::Off => text(super::sandbox::SECCOMP_OFF),
            Seccomp::File(file) => path(file),
        },
    );
    table.put("limits.nofile", integer(*nofile));
    table.put("limits.fsize", show_size(*fsize));
    table.put("on_missing", demands.on_missing.as_str());
    let may_lack = demands.allow_degrade.iter().map(|word| text(word.as_str()));
    table.put("allow_degrade", Value::Array(may_lack.collect()));
    table.put("uid_per_slot", demands.uid_per_slot);
    table.put("limits_held", demands.limits_held);
    table.put("uid_range", demands.uid_range.to_string());
    pool_keys::put_limits(&mut table, *group);
    table
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn texts(words: &[String]) -> Value {
    Value::Array(words.iter().map(|word| text(word)).collect())
}

/// The configuration was text, so every path of it is.
fn path(path: &Path) -> Value {
    text(&path.to_string_lossy())
}

fn paths(all: &[PathBuf]) -> Value {
    Value::Array(all.iter().map(|one| path(one)).collect())
}
