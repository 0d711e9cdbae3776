//! The tables beside the pools, and the keys of theirs that a pool may set too (`budget`, `egress`), as
//! `config show` prints them. No secret is shown.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::{Table, Value};

use super::{RenderedTable, path, text, texts};
use crate::PolicyUses;
use crate::budget::{PoolBudget, Price, Prices, cost_in_dollars, dollars_per_million};
use crate::cache::{Cache, CacheDirs};
use crate::delegate::{Delegate, DelegateTarget};
use crate::egress::Egress;
use crate::environment::REDACTED;
use crate::hint::Hint;
use crate::hook::{Hook, HookTarget};
use crate::http::{HttpConfig, NamedToken, TlsFiles};
use crate::store::StoreConfig;
use crate::types::Container;
use crate::units::show_duration;

/// `[http]`; none where every key has its default.
pub(super) fn http_table(http: &HttpConfig) -> Option<RenderedTable> {
    let HttpConfig {
        tls,
        hosts,
        plain_http_beyond_loopback,
    } = http;
    if *http == HttpConfig::default() {
        return None;
    }
    let mut table = RenderedTable::new(&["http"]);
    if let Some(TlsFiles { certificate, key }) = tls {
        table.put("tls.certificate", path(certificate));
        table.put("tls.key", path(key));
    }
    table.put("hosts", texts(hosts));
    table.put("plain_http_beyond_loopback", *plain_http_beyond_loopback);
    Some(table)
}

/// `[token.NAME]`, one table a token.
pub(super) fn token_tables(
    tokens: &BTreeMap<String, NamedToken>,
) -> impl Iterator<Item = RenderedTable> {
    tokens.iter().map(|(name, NamedToken { file, role })| {
        let mut table = RenderedTable::new(&["token", name]);
        table.put("file", path(file));
        table.put("role", role.as_str());
        table
    })
}

/// `[store]`.
pub(super) fn store_table(store: &StoreConfig) -> RenderedTable {
    let mut table = RenderedTable::new(&["store"]);
    if store.postgres.is_some() {
        table.put("postgres", REDACTED);
    }
    table.put_optional("ca", store.ca.as_ref().map(|ca| path(&ca.path)));
    store.show_keys(&mut table, "");
    table
}

/// `[container]`.
pub(super) fn container_table(container: &Container) -> RenderedTable {
    let Container {
        engine,
        runtime,
        image,
        global_options,
        run_options,
    } = container;
    let mut table = RenderedTable::new(&["container"]);
    table.put("engine", engine.as_str());
    table.put_optional("runtime", runtime.as_deref());
    table.put_optional("image", image.as_deref());
    let extra: Vec<String> = global_options.iter().chain(run_options).cloned().collect();
    table.put("extra", texts(&extra));
    table
}

/// `[cache]`, if the file says anything there.
pub(super) fn cache_table(dirs: &CacheDirs) -> Option<RenderedTable> {
    let mut table = RenderedTable::new(&["cache"]);
    for (cache, dir) in dirs {
        table.put(cache.as_str(), path(dir));
    }
    (!dirs.is_empty()).then_some(table)
}

/// The caches of a pool. `[cache]` has their directories for all pools.
pub(super) fn cache_names<D>(caches: &BTreeMap<Cache, D>) -> Value {
    let names: Vec<String> = caches.keys().map(ToString::to_string).collect();
    texts(&names)
}

/// `[egress]`.
pub(super) fn egress_table(rules: &Egress) -> RenderedTable {
    let mut table = RenderedTable::new(&["egress"]);
    show_egress(&mut table, "", rules);
    table
}

/// The keys of `[egress]`, each with this prefix.
pub(super) fn show_egress(table: &mut RenderedTable, prefix: &str, rules: &Egress) {
    rules.show_keys(table, prefix);
    rules
        .timeouts
        .show_keys(table, &format!("{prefix}timeouts."));
}

/// `budget` of a pool, without keys that set no limit.
pub(super) fn put_budget(table: &mut RenderedTable, budget: &PoolBudget) {
    let PoolBudget {
        session,
        day,
        pool,
        then,
    } = budget;
    for (name, most) in [("session", session), ("day", day), ("pool", pool)] {
        let tokens = most.tokens.and_then(|tokens| i64::try_from(tokens).ok());
        table.put_optional(&format!("budget.{name}_tokens"), tokens);
        let cost = most.nanodollars.map(cost_in_dollars);
        table.put_optional(&format!("budget.{name}_cost"), cost);
    }
    if budget.is_set() {
        table.put("budget.then", then.as_str());
    }
}

/// `[price.MODEL]`, one table a model.
pub(super) fn price_tables(prices: &Prices) -> impl Iterator<Item = RenderedTable> {
    prices.iter().map(|(name, price)| {
        let Price {
            input,
            output,
            cache_read,
            cache_write,
        } = price;
        let mut table = RenderedTable::new(&["price", name]);
        for (key, nano) in [
            ("input", input),
            ("output", output),
            ("cache_read", cache_read),
            ("cache_write", cache_write),
        ] {
            table.put(key, dollars_per_million(*nano));
        }
        table
    })
}

/// `[delegate.NAME]`, one table a delegate.
pub(super) fn delegate_tables(
    delegates: &BTreeMap<String, Delegate>,
) -> impl Iterator<Item = RenderedTable> {
    delegates.values().map(|delegate| {
        let Delegate {
            name,
            target,
            timeout,
            token,
            at_once,
            tools,
        } = delegate;
        let mut table = RenderedTable::new(&["delegate", name]);
        match target {
            DelegateTarget::Command(argv) => table.put("command", texts(argv)),
            DelegateTarget::Url(url) => table.put("url", url.to_string()),
        }
        table.put("timeout", show_duration(*timeout));
        if token.is_some() {
            table.put("token", REDACTED);
        }
        table.put("at_once", i64::from(*at_once));
        let names: Vec<String> = tools
            .iter()
            .map(|class| class.as_str().to_owned())
            .collect();
        table.put("tools", texts(&names));
        table
    })
}

/// One entry of `[[hint]]`.
pub(super) fn hint_value(hint: &Hint) -> Value {
    let Hint {
        pattern,
        target,
        agent,
        launcher,
        code,
        text: message,
        class,
    } = hint;
    let mut table = Table::new();
    let mut put = |key: &str, value: Value| table.insert(key.to_owned(), value);
    put("pattern", text(pattern.as_str()));
    put("where", text(target.as_str()));
    if let Some(agent) = agent {
        put("agent", text(agent));
    }
    if let Some(launcher) = launcher {
        put("launcher", text(launcher.as_str()));
    }
    if let Some(code) = code {
        put("code", i64::from(*code).into());
    }
    put("text", text(message));
    if let Some(class) = class {
        put("class", text(class.as_str()));
    }
    Value::Table(table)
}

/// `[hook.NAME]`.
pub(super) fn hook_table(hook: &Hook) -> RenderedTable {
    let Hook {
        name,
        target,
        events,
        pools,
    } = hook;
    let mut table = RenderedTable::new(&["hook", name]);
    match target {
        HookTarget::Address(address) => {
            table.put("url", address.url.as_str());
            table.put("secret", REDACTED);
            if let Some(ca) = &address.ca {
                table.put("ca", path(&ca.path));
            }
        }
        HookTarget::Command(command) => {
            table.put("command", texts(&command.argv));
            let mut env = Table::new();
            for (name, value) in &command.env {
                env.insert(name.clone(), Value::from(value.as_str()));
            }
            for name in command.secrets.keys() {
                env.insert(name.clone(), Value::from(REDACTED));
            }
            table.put("env", env);
            table.put("timeout", show_duration(command.timeout));
        }
    }
    let events: Vec<String> = events.iter().map(ToString::to_string).collect();
    table.put("events", texts(&events));
    if !pools.is_empty() {
        let pools: Vec<String> = pools.iter().map(ToString::to_string).collect();
        table.put("pools", texts(&pools));
    }
    table
}

/// `[policy.NAME]`, one table a policy.
pub(super) fn policy_tables(
    policies: &BTreeMap<String, PathBuf>,
    site: Option<&str>,
    uses: &PolicyUses,
) -> Vec<RenderedTable> {
    let table = |(name, file): (&String, &PathBuf)| {
        let mut table = RenderedTable::new(&["policy", name]);
        table.put("file", path(file));
        if site == Some(name.as_str()) {
            table.put("site", true);
        }
        if uses.layers.contains(name) {
            table.put("layer", true);
        }
        table.put_optional("test_dir", uses.test_dirs.get(name).map(|item| path(item)));
        table
    };
    policies.iter().map(table).collect()
}
