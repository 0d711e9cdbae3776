//! Hooks as they are shown. No secret is shown.

use toml::{Table, Value};

use super::super::environment::REDACTED;
use super::super::hook::{Hook, HookTarget};
use super::super::units::show_duration;
use super::{RenderedTable, path, texts};

pub(super) fn hook(hook: &Hook) -> RenderedTable {
    let Hook {
        name,
        target: to,
        events,
        pools,
    } = hook;
    let mut table = RenderedTable::new(&["hook", name]);
    match to {
        HookTarget::Address(to) => {
            table.put("url", to.url.as_str());
            table.put("secret", REDACTED);
            if let Some(ca) = &to.ca {
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
