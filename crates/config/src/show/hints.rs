//! `[[hint]]`, as it is shown.

use toml::{Table, Value};

use super::super::hint::Hint;
use super::text;

pub(super) fn hint(hint: &Hint) -> Value {
    let Hint {
        pattern,
        target: place,
        agent,
        launcher,
        code,
        text: said,
        class,
    } = hint;
    let mut table = Table::new();
    let mut put = |key: &str, value: Value| table.insert(key.to_owned(), value);
    put("pattern", text(pattern.as_str()));
    put("where", text(place.as_str()));
    if let Some(agent) = agent {
        put("agent", text(agent));
    }
    if let Some(launcher) = launcher {
        put("launcher", text(launcher.as_str()));
    }
    if let Some(code) = code {
        put("code", i64::from(*code).into());
    }
    put("text", text(said));
    if let Some(class) = class {
        put("class", text(class.as_str()));
    }
    Value::Table(table)
}
