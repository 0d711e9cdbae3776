//! Keys and values as a file writes them, each in one line, without a character that a terminal
//! interprets.

use std::fmt::Write as _;

use toml::Value;

use marshal_model::untrusted;

pub(super) fn format_path(parts: &[String]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| format_key(part)).collect();
    parts.join(".")
}

pub(super) fn format_key(name: &str) -> String {
    let bare = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare && !name.is_empty() {
        name.to_owned()
    } else {
        quote(name)
    }
}

/// A basic string of TOML, in one line, without a character that a terminal interprets.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if untrusted::is_unsafe(c) => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value in one line.
pub(super) fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => out.push_str(&quote(text)),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Table(table) if table.is_empty() => out.push_str("{}"),
        Value::Table(table) => {
            out.push_str("{ ");
            for (at, (name, item)) in table.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                let _ = write!(out, "{} = ", format_key(name));
                write_value(out, item);
            }
            out.push_str(" }");
        }
        // Numbers, booleans and times contain no free text of the file.
        plain => {
            let _ = write!(out, "{plain}");
        }
    }
}
