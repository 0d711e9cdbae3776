//! `POST /api/v1/config/reload`: reloads the configuration file, and applies what can change at run
//! time.
//!
//! Owns which keys these are. Everything is checked before anything changes, and the response has
//! every key that differs. Must not know how the file is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use toml::{Table, Value};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::supervisor::reload_all;
use super::views::respond_ok;
use super::{AppState, HandlerResult};
use marshal_config::{Config, NamedSecret, Secret};
use marshal_fleet::ChangedKey;
use marshal_model::PoolName;
use marshal_policy::Mask;

/// Reads and checks the configuration file, including secrets, certificates and policies; may
/// block. `None` if there is no file.
pub type ConfigReloader = Arc<dyn Fn() -> Result<Option<Config>, String> + Send + Sync>;
/// Builds what masks the secrets of a configuration.
pub type MaskBuilder = Arc<dyn Fn(&Config) -> Mask + Send + Sync>;

/// The depth to which keys are compared: a table, a name, and one key below it.
const DEPTH: usize = 3;
/// The maximum number of keys in a response.
const NAMED: usize = 200;

/// The keys that were applied, and those that need a restart.
#[derive(Serialize, JsonSchema)]
pub(super) struct Reloaded {
    policies: usize,
    /// Whether the whole file is in force.
    config: bool,
    taken: Vec<String>,
    restart: Vec<String>,
    detail: String,
}

pub(super) async fn reload(app: AppState, _: RequestContext) -> HandlerResult {
    // Held to the end: reloads run one after the other.
    let mut now = app.active_config.lock().await;
    let rereader = Arc::clone(&app.host.config_reloader);
    let read = tokio::task::spawn_blocking(move || rereader()).await;
    let read = read.map_err(|_| {
        ApiError::unavailable("the configuration file could not be read: see the supervisor's log")
    })?;
    let refused = |why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why);
    let fresh = read.map_err(refused)?;
    let policies = reload_all(&app).await?;
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
    let in_force = merge_config(&app, before.clone(), fresh.clone());
    // Set before new tokens come into force, so that nobody writes a workspace by the old rules.
    let standing = app.fleet.set_workspace_config(in_force.clone()).await;
    standing.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let mut differing = differences(&before, &fresh);
    let (changed, renewed) = changed_secrets(&before, &fresh, &differing);
    if !renewed.is_empty() {
        let mask = || (app.host.mask_builder)(&before);
        let replaced = app.fleet.replace_keys(&renewed, mask);
        replaced.map_err(ApiError::unavailable)?;
    }
    differing.retain(|key| !changed.contains_key(key));
    for (key, is_renewed) in changed {
        let keys = if is_renewed { &mut taken } else { &mut restart };
        keys.push(key);
    }
    for key in differing {
        let is_taken = match *key.split('.').collect::<Vec<_>>() {
            ["chat" | "workspace" | "token", ..] | ["supervisor", "journal", "session_max"] => true,
            ["role", name, ..] => has_pool(&app, &fresh, name),
            ["pool", name, "size"] => resize_pool(&app, &fresh, name).await,
            // If the file does not set it, it follows `size`, which is reported.
            ["pool", name, "max_size"] if follows_size(&app, &fresh, name) => continue,
            _ => false,
        };
        let keys = if is_taken { &mut taken } else { &mut restart };
        keys.push(key);
    }
    app.tokens.set_named(in_force.tokens.clone());
    let quota = in_force.supervisor.journal.session_max;
    app.fleet.set_session_quota(quota);
    if let Some(chats) = &app.chats {
        chats.set_config(in_force.clone());
    }
    *now = in_force;
    if restart.is_empty() {
        app.fleet.set_config_digest(fresh.digest());
    }
    let detail = if restart.is_empty() {
        "the configuration file and the policies are in force"
    } else {
        "the policies are in force, and those keys of the file that can change at run time; \
         the others require a restart of the supervisor"
    };
    let mut detail = detail.to_owned();
    if let Some(why) = certificate(&app).await {
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

/// The secrets whose source or value changed, each with whether it takes effect, and those that do.
/// The key of a route or of a delegate does if nothing else of it changed: otherwise the new key
/// could go to the old address.
fn changed_secrets(
    before: &Config,
    fresh: &Config,
    differing: &[String],
) -> (BTreeMap<String, bool>, Vec<ChangedKey>) {
    let (mut changed, mut renewed) = (BTreeMap::new(), Vec::new());
    let in_force = before.secrets().into_iter();
    let in_force: BTreeMap<String, &Secret> =
        in_force.map(|found| (found.key, found.secret)).collect();
    for NamedSecret { key, secret, .. } in fresh.secrets() {
        let Some(old) = in_force.get(&key) else {
            continue;
        };
        if old.has_same_value(secret) && old.source == secret.source {
            continue;
        }
        let owner = key.rsplit_once('.').map_or("", |(owner, _)| owner);
        let beside = |other: &&String| {
            let rest = other.strip_prefix(owner);
            **other != key && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let route = match *key.split('.').collect::<Vec<_>>() {
            ["route", name, _] => Some(Some(name.to_owned())),
            ["delegate", ..] => Some(None),
            _ => None,
        };
        let route = route.filter(|_| !differing.iter().any(|other| beside(&other)));
        changed.insert(key, route.is_some());
        if let Some(route) = route {
            renewed.push(ChangedKey {
                route,
                in_force: (*old).clone(),
                fresh: secret.clone(),
            });
        }
    }
    (changed, renewed)
}

/// Reloads the certificate; returns why the current one stays in use, if it does.
async fn certificate(app: &AppState) -> Option<String> {
    let tls = app.host.tls.clone()?;
    let read = tokio::task::spawn_blocking(move || tls.reload())
        .await
        .ok()?;
    read.err().map(|error| error.to_string())
}

/// Whether the pool of a role is running.
fn has_pool(app: &AppState, fresh: &Config, name: &str) -> bool {
    let role = fresh.roles.iter().find(|(known, _)| known.as_str() == name);
    role.is_none_or(|(_, role)| app.fleet.config().pool(role.pool.as_str()).is_some())
}

/// Sets the width of a pool to the size in the file, if the pool has that many slots.
async fn resize_pool(app: &AppState, fresh: &Config, name: &str) -> bool {
    let (Ok(pool), Some(wanted)) = (PoolName::new(name), fresh.pool(name)) else {
        return false;
    };
    let resized = app.fleet.resize(&pool, wanted.size).await;
    resized.is_ok()
}

/// Whether a pool's `max_size` equals its size, and the pool has that many slots.
fn follows_size(app: &AppState, fresh: &Config, name: &str) -> bool {
    let started = app.fleet.config().pool(name);
    let pair = started.zip(fresh.pool(name));
    pair.is_some_and(|(had, has)| has.max_size == has.size && has.size <= had.max_size)
}

/// Returns the configuration in force: the new values where they can change at run time.
fn merge_config(app: &AppState, mut now: Config, fresh: Config) -> Config {
    let started = app.fleet.config();
    for pool in &mut now.pools {
        let size = started.pool(pool.name.as_str()).map(|pool| pool.max_size);
        if let (Some(most), Some(wanted)) = (size, fresh.pool(pool.name.as_str()))
            && wanted.size <= most
        {
            pool.size = wanted.size;
        }
    }
    now.supervisor.journal.session_max = fresh.supervisor.journal.session_max;
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

/// Returns the keys in which two configurations differ, as far as they are shown.
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

#[cfg(test)]
mod tests {
    use marshal_config::Origin;

    use super::*;

    const TEXT: &str = "[pool.demo]\ncommand = [\"sh\"]\nenv.set.KEY = \"env:KEY\"\n\
        [route.own]\nupstream = \"http://127.0.0.1:1\"\nsecret = \"env:OWN\"\nallow = [\"POST /v1\"]\n\
        [route.other]\nupstream = \"http://127.0.0.1:2\"\nsecret = \"env:OTHER\"\nallow = [\"POST /v1\"]\n\
        [delegate.site]\nurl = \"http://127.0.0.1:3\"\ntoken = \"env:SITE\"\n";

    /// A configuration whose own secrets all have this value.
    fn config(text: &str, value: &str) -> Config {
        let origin = Origin {
            file: None,
            dir: "/tmp".into(),
            is_explicit: true,
        };
        let config = Config::parse(text, &origin).expect("a configuration");
        let built_in = ["anthropic", "gemini", "openai"].map(|name| format!("route.{name}"));
        let own = |found: &NamedSecret<'_>| !built_in.contains(&found.name);
        for found in config.secrets().into_iter().filter(own) {
            let fresh = found.secret.clone().with_value(value);
            found.secret.replace_value(&fresh);
        }
        config
    }

    #[test]
    fn a_changed_secret_takes_effect_only_where_nothing_beside_it_changed() {
        let before = config(TEXT, "one");
        let found = |fresh: &Config| {
            let differing = differences(&before, fresh);
            let (changed, renewed) = changed_secrets(&before, fresh, &differing);
            let taken = changed.values().filter(|taken| **taken).count();
            assert_eq!(renewed.len(), taken);
            changed
        };
        assert!(found(&config(TEXT, "one")).is_empty());
        let expect = |own| {
            [
                ("delegate.site.token", true),
                ("pool.demo.env.set.KEY", false),
                ("route.other.secret", true),
                ("route.own.secret", own),
            ]
            .map(|(key, taken)| (key.to_owned(), taken))
            .into()
        };
        assert_eq!(found(&config(TEXT, "two")), expect(true));
        let elsewhere = TEXT.replace("127.0.0.1:1", "127.0.0.1:4");
        assert_eq!(found(&config(&elsewhere, "two")), expect(false));
        // Clones of what was replaced have the new value.
        let clone = before.clone();
        let [old, fresh] =
            [&before, &config(TEXT, "two")].map(|of| of.routes["own"].secret.clone());
        old.expect("one").replace_value(&fresh.expect("one"));
        let value = clone.routes["own"].secret.as_ref().and_then(Secret::expose);
        assert_eq!(value.as_deref(), Some("two"));
    }
}
