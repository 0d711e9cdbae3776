//! Hooks as they are shown. No secret is among it.

use toml::{Table, Value};

use super::super::environment::HIDDEN;
use super::super::hook::{Hook, HookTo};
use super::super::units::show_duration;
use super::{Shown, path, texts};

pub(super) fn hook(hook: &Hook) -> Shown {
    let Hook {
        name,
        to,
        events,
        pools,
    } = hook;
    let mut table = Shown::new(&["hook", name]);
    match to {
        HookTo::Address(to) => {
            table.put("url", to.url.as_str());
            table.put("secret", HIDDEN);
            if let Some(ca) = &to.ca {
                table.put("ca", path(&ca.path));
            }
        }
        HookTo::Command(command) => {
            table.put("command", texts(&command.argv));
            let mut env = Table::new();
            for (name, value) in &command.env {
                env.insert(name.clone(), Value::from(value.as_str()));
            }
            for name in command.secrets.keys() {
                env.insert(name.clone(), Value::from(HIDDEN));
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
