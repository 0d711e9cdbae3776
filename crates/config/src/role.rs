//! `[chat]`, `[role.NAME]` and `[workspace.NAME]`: the settings of new chats, by names that a
//! client can use.
//!
//! Must not know chats, HTTP or files: the code that opens a path checks what is there.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::agent::{MODEL_PATTERN, is_model_or_mode};
use super::command::{self, Piece};
use super::error::quote;
use super::pool::{PoolDraft, TRUST_HELP};
use super::presets;
use super::sandbox::NAME_PATTERN;
use super::settings::{Integer, Time, settings};
use super::table::{Located, Section, one_of};
use super::types::{Network, Pool, Workspace};
use super::workspace::{self, WorkspaceDrafts};
use marshal_model::limits::CHAT_ROUNDS;
use marshal_model::{IdError, PoolName, RoleName, WorkspaceName};

settings! {
    /// `[chat]`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ChatConfig {
        /// How long an idle chat keeps its agent.
        idle: Duration = Duration::from_secs(600), Time(IDLE);
        /// How long an idle chat stays open.
        close_after: Duration = Duration::from_secs(30 * 24 * 3600), Time(CLOSE_AFTER);
        /// The default limit of turns of a chat of the mode `autonomous`.
        rounds: u32 = 20, Integer(1..=CHAT_ROUNDS);
    }
}

/// A role of an agent in chats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The pool that works its chats.
    pub pool: PoolName,
    /// The model of its sessions; `None` means the pool's.
    pub model: Option<String>,
    /// The text in front of the first prompt of its agents.
    pub instructions: Option<String>,
}

/// A directory that chats may work in, and pools by its name.
#[derive(Debug, Clone)]
pub struct RegisteredWorkspace {
    /// The directory, and how pools that name it see it.
    pub workspace: Workspace,
    /// Whether it is the same directory on all hosts whose supervisors share a store.
    pub shared: bool,
}

/// How long a chat may be idle.
const IDLE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// How long a chat that nobody uses may stay open.
const CLOSE_AFTER: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);

/// Bytes of a role's instructions: they go with every first prompt.
const INSTRUCTIONS_BYTES: usize = 64 << 10;

/// Reads the table `chat`.
pub(super) fn read_chat(section: &Section<'_>) -> ChatConfig {
    let chat = ChatConfig::read_keys(section, &ChatConfig::default());
    section.reject_unknown_keys(&[], &[("role", "role"), ("workspace", "workspace")]);
    chat
}

/// Reads the table `role`. `names` are those of all pools that the file has, faulty ones too.
pub(super) fn read_roles(
    section: &Section<'_>,
    drafts: &[PoolDraft],
    names: &[String],
) -> BTreeMap<RoleName, Role> {
    let mut roles = BTreeMap::new();
    for (name, item) in section.named_entries(NAME_PATTERN) {
        let name = parse_name(RoleName::new(&name), |fault| item.report(fault, None));
        if let (Some(name), Some(table)) = (name, item.section())
            && let Some(role) = read_role(&table, drafts, names)
        {
            roles.insert(name, role);
        }
    }
    roles
}

fn parse_name<T>(name: Result<T, IdError>, refuse: impl FnOnce(String)) -> Option<T> {
    name.map_err(|error| refuse(format!("the {error}"))).ok()
}

fn read_role(section: &Section<'_>, drafts: &[PoolDraft], names: &[String]) -> Option<Role> {
    let item = section.get("pool");
    if item.is_none() {
        let message = "the role needs a pool, whose agents work its chats";
        section.diagnostics.report(&section.place, message, None);
    }
    let pool = item.and_then(|item| item.text_like(NAME_PATTERN));
    let model = section
        .get("model")
        .and_then(|item| item.text_like(MODEL_PATTERN));
    let instructions = section.get("instructions").and_then(|item| item.text());
    section.reject_unknown_keys(
        &[],
        &[
            ("command", "pool.NAME.command"),
            ("policy", "pool.NAME.policy"),
        ],
    );
    if let Some(found) = &instructions
        && found.value.len() > INSTRUCTIONS_BYTES
    {
        let message = format!("the instructions have more than {INSTRUCTIONS_BYTES} bytes");
        let help = "put what is long into a file of the workspace, and name that";
        section
            .diagnostics
            .report(&found.place, message, Some(help.to_owned()));
    }
    let pool = pool?;
    let mut all = drafts.iter().map(|draft| &draft.pool);
    let Some(entry) = all.find(|entry| entry.name.as_str() == pool.value) else {
        // A faulty pool was reported already.
        if !names.contains(&pool.value) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let message = format!(
                "there is no pool {}: expected {}",
                quote(&pool.value),
                one_of(&names)
            );
            section.diagnostics.report(&pool.place, message, None);
        }
        return None;
    };
    if let Some(model) = &model {
        check_model(section, model, entry);
    }
    if let Some(found) = instructions
        .as_ref()
        .filter(|_| !entry.dialect.supports_remarks())
    {
        let message = format!(
            "pool {} has a tool at a terminal, which would run the instructions as a command",
            entry.name
        );
        let help = "leave instructions out; runner.init has what the tool is to do first";
        section
            .diagnostics
            .report(&found.place, message, Some(help.to_owned()));
    }
    Some(Role {
        pool: entry.name.clone(),
        model: model.map(|found| found.value),
        instructions: instructions.map(|found| found.value),
    })
}

/// Checks the model of a role against its pool.
fn check_model(section: &Section<'_>, model: &Located<String>, pool: &Pool) {
    if !is_model_or_mode(&model.value) {
        let message = format!(
            "expected [A-Za-z0-9][A-Za-z0-9._:/@+[]-]{{0,127}}, found {}",
            quote(&model.value)
        );
        section.diagnostics.report(&model.place, message, None);
    } else if !accepts_session_model(pool) {
        let message = format!(
            "pool {} cannot set a model per session: its command has no {{model}}, and its protocol sets no model",
            pool.name
        );
        let help =
            "leave the role's model out, or give the pool's command {model} and the pool a model";
        section
            .diagnostics
            .report(&model.place, message, Some(help.to_owned()));
    }
}

/// Whether each session of a pool can have a model of its own: in its command, or by its protocol.
/// A file of a new home that names a model names the pool's.
fn accepts_session_model(pool: &Pool) -> bool {
    let mut pieces = pool
        .command
        .iter()
        .flat_map(|word| command::split_placeholders(word));
    if pieces.any(|piece| matches!(piece, Piece::Placeholder("model", _))) {
        return true;
    }
    let preset = presets::preset(&pool.agent).filter(|_| pool.is_preset);
    let is_routed = pool.network == Network::Routes;
    pool.dialect.sets_model() && !preset.is_some_and(|entry| entry.writes_model(is_routed))
}

/// Reads the table `workspace`. `is_discovered`: the file was discovered, not named.
pub(super) fn read_workspaces(
    section: &Section<'_>,
    dir: &Path,
    is_discovered: bool,
) -> (
    BTreeMap<WorkspaceName, RegisteredWorkspace>,
    WorkspaceDrafts,
) {
    let mut workspaces = BTreeMap::new();
    let mut drafts = WorkspaceDrafts::default();
    for (text, item) in section.named_entries(NAME_PATTERN) {
        drafts.names.push(text.clone());
        let name = parse_name(WorkspaceName::new(&text), |fault| item.report(fault, None));
        let (Some(name), Some(table)) = (name, item.section()) else {
            continue;
        };
        let shared = table.boolean("shared").is_some_and(|found| found.value);
        let draft = workspace::read(&table, dir, is_discovered);
        table.reject_unknown_keys(&[], workspace::MISPLACED_KEYS);
        if table.get("path").is_none() {
            let message = "the workspace needs a path, the directory that chats and pools work in";
            section.diagnostics.report(&table.place, message, None);
        }
        if !draft.has_path {
            continue;
        }
        let workspace = draft.workspace().clone();
        if is_discovered && !workspace.path.starts_with(dir) {
            let message =
                "a discovered supervisor.toml may not use a workspace outside its own directory";
            let help = Some(TRUST_HELP.to_owned());
            section
                .diagnostics
                .report(&draft.places.path, message, help);
        }
        drafts.known.insert(text, draft);
        workspaces.insert(name, RegisteredWorkspace { workspace, shared });
    }
    (workspaces, drafts)
}
