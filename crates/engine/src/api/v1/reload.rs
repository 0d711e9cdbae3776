//! `POST /api/v1/config/reload`: the file is read again, and what can be taken over while running is.
//!
//! Owns which keys these are. Everything is checked before anything is changed, and the answer has every
//! key that differs. Must not know how a file is read.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Serialize;
use toml::{Table, Value};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::supervisor::reload_all;
use super::views::respond_ok;
use super::{AppState, HandlerResult};
use marshal_config::Config;
use marshal_model::PoolName;

/// Reads the file of a configuration anew and checks it, secrets, certificates and policies too; may
/// block. Without a file there is none.
pub type ConfigReloader = Arc<dyn Fn() -> Result<Option<Config>, String> + Send + Sync>;

/// How deep keys are told apart: a table's, a name's, and one below it.
const DEPTH: usize = 3;
/// Keys that an answer names.
const NAMED: usize = 200;

/// What was taken over, and what was not.
#[derive(Serialize)]
struct Reloaded {
    policies: usize,
    /// Whether all of the file is in force.
    config: bool,
    taken: Vec<String>,
    restart: Vec<String>,
    detail: String,
}

pub(super) async fn reload(desk: AppState, _: RequestContext) -> HandlerResult {
    // One after the other.
    let mut now = desk.active_config.lock().await;
    let rereader = Arc::clone(&desk.host.config_reloader);
    let read = tokio::task::spawn_blocking(move || rereader()).await;
    let read =
        read.map_err(|_| ApiError::unavailable("the file could not be read: see the log"))?;
    let refused = |why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why);
    let fresh = read.map_err(refused)?;
    let policies = reload_all(&desk).await?;
    let Some(fresh) = fresh else {
        return respond_ok(&Reloaded {
            policies,
            config: true,
            taken: Vec::new(),
            restart: Vec::new(),
            detail: "the policies were read again; there is no configuration file".to_owned(),
        });
    };
    let mut taken = Vec::new();
    let mut restart = Vec::new();
    let before = now.clone();
    let in_force = merge_config(&desk, before.clone(), fresh.clone());
    // Before anybody comes in by a new file, nobody writes it.
    let standing = desk.fleet.set_workspace_config(in_force.clone()).await;
    standing.map_err(|error| ApiError::unavailable(error.to_string()))?;
    for key in differences(&before, &fresh) {
        let is_taken = match *key.split('.').collect::<Vec<_>>() {
            ["chat" | "workspace" | "token", ..] => true,
            ["role", name, ..] => has_pool(&desk, &fresh, name),
            ["pool", name, "size"] => resize_pool(&desk, &fresh, name).await,
            // Where the file says nothing it goes with the size, which is told.
            ["pool", name, "max_size"] if follows_size(&desk, &fresh, name) => continue,
            _ => false,
        };
        let keys = if is_taken { &mut taken } else { &mut restart };
        keys.push(key);
    }
    desk.tokens.set_named(in_force.tokens.clone());
    if let Some(chats) = &desk.chats {
        chats.set_config(in_force.clone());
    }
    *now = in_force;
    let detail = if restart.is_empty() {
        "the file and the policies are in force"
    } else {
        "the policies are in force, and of the file what can be while running; \
         the rest needs a restart of the supervisor"
    };
    let mut detail = detail.to_owned();
    if let Some(why) = certificate(&desk).await {
        detail = format!("{detail}; the certificate in use stays: {why}");
    }
    taken.truncate(NAMED);
    restart.truncate(NAMED);
    respond_ok(&Reloaded {
        policies,
        config: restart.is_empty(),
        taken,
        restart,
        detail,
    })
}

/// Reads the certificate again; says why the one in use stays, if so.
async fn certificate(desk: &AppState) -> Option<String> {
    let tls = desk.host.tls.clone()?;
    let read = tokio::task::spawn_blocking(move || tls.reload()).await;
    let read = read.ok()?;
    read.err().map(|error| error.to_string())
}

/// A role's chats go to a pool that runs.
fn has_pool(desk: &AppState, fresh: &Config, name: &str) -> bool {
    let role = fresh.roles.iter().find(|(known, _)| known.as_str() == name);
    role.is_none_or(|(_, role)| desk.fleet.config().pool(role.pool.as_str()).is_some())
}

/// Has a pool give tasks to as many slots as the file says now, if it has so many.
async fn resize_pool(desk: &AppState, fresh: &Config, name: &str) -> bool {
    let (Ok(pool), Some(wanted)) = (PoolName::new(name), fresh.pool(name)) else {
        return false;
    };
    let resized = desk.fleet.resize(&pool, wanted.size).await;
    resized.is_ok()
}

/// The most slots of a pool are as many as its size, and it has that many.
fn follows_size(desk: &AppState, fresh: &Config, name: &str) -> bool {
    let started = desk.fleet.config().pool(name);
    let pair = started.zip(fresh.pool(name));
    pair.is_some_and(|(had, has)| has.max_size == has.size && has.size <= had.max_size)
}

/// What is in force now: of the fresh one what can be.
fn merge_config(desk: &AppState, mut now: Config, fresh: Config) -> Config {
    let started = desk.fleet.config();
    for pool in &mut now.pools {
        let size = started.pool(pool.name.as_str()).map(|pool| pool.max_size);
        if let (Some(most), Some(wanted)) = (size, fresh.pool(pool.name.as_str()))
            && wanted.size <= most
        {
            pool.size = wanted.size;
        }
    }
    let mut roles = fresh.roles;
    roles.retain(|_, role| started.pool(role.pool.as_str()).is_some());
    Config {
        roles,
        workspaces: fresh.workspaces,
        chat: fresh.chat,
        tokens: fresh.tokens,
        ..now
    }
}

/// The keys in which two configurations differ, as far as they are shown.
fn differences(one: &Config, other: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let trees = [one, other].map(|config| config.effective().to_table());
    let [one, other] = &trees;
    collect_changed_keys(one, other, "", 1, &mut found);
    found
}

fn collect_changed_keys(
    one: &Table,
    other: &Table,
    above: &str,
    depth: usize,
    found: &mut Vec<String>,
) {
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let path = match above {
            "" => key.clone(),
            above => format!("{above}.{key}"),
        };
        match (one.get(key), other.get(key)) {
            (one, other) if one == other => {}
            (Some(Value::Table(one)), Some(Value::Table(other))) if depth < DEPTH => {
                collect_changed_keys(one, other, &path, depth + 1, found);
            }
            _ => found.push(path),
        }
    }
}
