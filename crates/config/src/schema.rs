//! The JSON Schema of the file, for editors and for checks before a file reaches this program.
//!
//! Its keys, types, words and bounds are what the reader asks for ([`KeyTypes::collect`]); its
//! descriptions and defaults are those of `docs/configuration.md`. Must not know the reader's keys by
//! name, but for the few rules below that bind keys together. What a schema cannot say (bounds of
//! durations, names that must lead somewhere, keys that must agree) only `config check` finds.

use serde_json::{Map, Value, json};

use super::key_types::{ELEMENT, KeyTypes, NAME, ValueType};
use super::units;
use marshal_model::limits;

/// The keys' meanings and defaults: of the configuration, and of tables of custom dialects, which share
/// no key that has a row.
const DOCUMENT: &str = concat!(
    include_str!("../docs/configuration.md"),
    "\n",
    include_str!("../docs/dialects.md")
);

/// Constraints of a table or list beyond its keys' types: required keys, alternatives, sizes.
fn key_rules(key: &str) -> Value {
    match key {
        "" | "role.NAME" => json!({"required": ["pool"]}),
        "pool" => json!({"minProperties": 1}),
        "pool.NAME" => json!({"anyOf": [{"required": ["agent"]}, {"required": ["command"]}]}),
        "pool.NAME.ssh" => json!({"required": ["host", "workspace"]}),
        "price.NAME" => json!({"required": ["input", "output"]}),
        "hint[]" => json!({"required": ["pattern", "text"]}),
        "pool.NAME.command" | "pool.NAME.routes" | "route.NAME.allow" | "delegate.NAME.command" => {
            json!({"minItems": 1})
        }
        // Swap is limited only together with memory.
        "sandbox.NAME.limits" => json!({"not": {
            "required": ["memory", "swap"],
            "properties": {"memory": {"const": "none"}, "swap": {"not": {"const": "none"}}},
        }}),
        "policy.NAME" => json!({"required": ["file"]}),
        "pool.NAME.dialect" => json!({"required": ["custom"]}),
        "on[]" => json!({"required": ["type", "event"]}),
        "permission" => json!({"required": ["allow", "deny"]}),
        "cancel" | "slash" => json!({"required": ["send"]}),
        "template.NAME" => json!({"required": ["roles"]}),
        "workspace.NAME" => json!({"required": ["path"]}),
        "pool.NAME.workspace.setup" | "workspace.NAME.setup" => json!({"required": ["command"]}),
        "pool.NAME.workspace.repos[]" | "workspace.NAME.repos[]" => {
            json!({"required": ["path", "at"]})
        }
        "delegate.NAME" => json!({"oneOf": [{"required": ["command"]}, {"required": ["url"]}]}),
        _ => json!({}),
    }
}

/// The schema of `supervisor.toml`, as indented JSON with a newline at its end. It is written in
/// draft 2020-12.
#[must_use]
pub fn schema() -> String {
    let forms = KeyTypes::collect();
    let mut root = table_schema(&forms, "");
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "supervisor.toml",
        "description": "The configuration of marshal. Durations and sizes are strings with a unit; \
            relative paths are relative to the directory of the file; unknown keys are errors.",
    });
    add(&mut root, head);
    format!("{:#}\n", Value::Object(root))
}

/// The schema of the definition of a custom dialect, in the same form.
#[must_use]
pub fn dialect_schema() -> String {
    let forms = super::dialect_definition::key_types();
    let mut root = table_schema(&forms, "");
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The definition of a custom dialect",
        "description": "What the messages of an agent mean and what it is told. Templates are JSON \
            objects in strings; paths are member names joined by dots, with array indexes in brackets.",
        "required": ["prompt", "on"],
    });
    add(&mut root, head);
    format!("{:#}\n", Value::Object(root))
}

fn add(object: &mut Map<String, Value>, more: Value) {
    if let Value::Object(more) = more {
        object.extend(more);
    }
}

/// What is said of one key.
fn value_schema(forms: &KeyTypes, key: &str) -> Value {
    let mut alternatives = Vec::new();
    let mut bounds = None;
    let of = forms.types_of(key);
    if of.contains(&ValueType::Table) {
        alternatives.push(table_schema(forms, key));
    }
    for form in of {
        bounds = bounds.or_else(|| describe_bounds(form));
        match form {
            ValueType::Table | ValueType::NamedTable(_) => {}
            other => alternatives.push(type_schema(forms, key, other)),
        }
    }
    let mut object = if alternatives.len() == 1 {
        alternatives.pop().unwrap_or_default()
    } else {
        let alternatives = alternatives.into_iter().map(Value::Object).collect();
        Map::from_iter([("anyOf".to_owned(), Value::Array(alternatives))])
    };
    add(&mut object, key_rules(key));
    let row = row(key);
    let meaning = row
        .as_ref()
        .map(|row| row.meaning.clone())
        .or_else(|| section_description(key));
    let words: Vec<String> = meaning.into_iter().chain(bounds).collect();
    if !words.is_empty() {
        add(&mut object, json!({"description": words.join(" ")}));
    }
    if let Some(default) = row.and_then(|row| row.default) {
        add(&mut object, json!({"default": default}));
    }
    Value::Object(object)
}

/// What is said of a table and of what is in it.
fn table_schema(forms: &KeyTypes, key: &str) -> Map<String, Value> {
    let join = |name: &str| match key {
        "" => name.to_owned(),
        _ => format!("{key}.{name}"),
    };
    let mut object = Map::new();
    add(&mut object, json!({"type": "object"}));
    let names = forms.child_names(key);
    if !names.is_empty() {
        let keys = names.iter().map(|name| {
            let value = value_schema(forms, &join(name));
            ((*name).to_owned(), value)
        });
        let keys = Value::Object(keys.collect());
        object.insert("properties".to_owned(), keys);
    }
    let pattern = forms.types_of(key).iter().find_map(|form| match form {
        ValueType::NamedTable(pattern) => Some(*pattern),
        _ => None,
    });
    let others = match pattern {
        Some(pattern) => {
            add(&mut object, json!({"propertyNames": {"pattern": pattern}}));
            value_schema(forms, &join(NAME))
        }
        None => Value::Bool(false),
    };
    object.insert("additionalProperties".to_owned(), others);
    add(&mut object, key_rules(key));
    object
}

/// What is said of one form.
fn type_schema(forms: &KeyTypes, key: &str, form: &ValueType) -> Map<String, Value> {
    let description = match form {
        ValueType::Table | ValueType::NamedTable(_) | ValueType::OpenTable => {
            json!({"type": "object"})
        }
        ValueType::Array => json!({
            "type": "array",
            "items": value_schema(forms, &format!("{key}{ELEMENT}")),
            "maxItems": limits::CONFIG_LIST,
        }),
        ValueType::Text => json!({"type": "string", "maxLength": limits::CONFIG_TEXT_BYTES}),
        ValueType::Pattern(pattern) => json!({"type": "string", "pattern": pattern}),
        ValueType::Enum(words) => json!({"enum": words}),
        ValueType::Boolean => json!({"type": "boolean"}),
        ValueType::Integer { least, most } => json!({
            "type": "integer",
            "minimum": number(least),
            "maximum": number(most),
        }),
        ValueType::Number { least, most } => json!({
            "type": "number",
            "minimum": decimal(least),
            "maximum": decimal(most),
        }),
        ValueType::Duration(bounds) => json!({
            "type": "string",
            "pattern": unit_pattern(&units::time_units(), bounds.start().is_zero(), DURATION_DIGITS),
        }),
        ValueType::Size(bounds) => json!({
            "type": "string",
            "pattern": unit_pattern(&units::size_units(), *bounds.start() == 0, SIZE_DIGITS),
        }),
    };
    match description {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn number(text: &str) -> Value {
    text.parse::<i64>().map_or(Value::Null, Value::from)
}

fn decimal(text: &str) -> Value {
    text.parse::<f64>().map_or(Value::Null, Value::from)
}

/// Digits of the longest duration in milliseconds.
const DURATION_DIGITS: usize = 10;

/// Digits of the largest size in bytes, 1T.
const SIZE_DIGITS: usize = 13;

/// The regular expression for a number and a unit; `may_be_zero` says whether zero matches.
fn unit_pattern(units: &[&str], may_be_zero: bool, digits: usize) -> String {
    let digits = if may_be_zero {
        format!("[0-9]{{1,{digits}}}")
    } else {
        format!("[1-9][0-9]{{0,{}}}", digits - 1)
    };
    format!("^0*{digits}({})$", units.join("|"))
}

/// Bounds that a pattern cannot say.
fn describe_bounds(form: &ValueType) -> Option<String> {
    match form {
        ValueType::Duration(bounds) => Some(format!(
            "A duration from {} to {}.",
            units::show_duration(*bounds.start()),
            units::show_duration(*bounds.end())
        )),
        ValueType::Size(bounds) => Some(format!(
            "A size from {} to {}.",
            units::show_size(*bounds.start()),
            units::show_size(*bounds.end())
        )),
        _ => None,
    }
}

/// One line of the document's tables of keys.
struct Row {
    default: Option<Value>,
    meaning: String,
}

fn row(key: &str) -> Option<Row> {
    // A registered workspace has the keys of a pool's, which are described once.
    let of_pool = key
        .strip_prefix("workspace.NAME.")
        .map(|key| format!("pool.NAME.workspace.{key}"));
    let find = |key: &str| {
        let begin = format!("| `{key}` |");
        DOCUMENT.lines().find(|line| line.starts_with(&begin))
    };
    let line = find(key).or_else(|| find(&of_pool?))?;
    let mut cells = line.trim_matches('|').split('|').map(str::trim).skip(2);
    let (default, meaning) = (cells.next()?, cells.next()?);
    let default = default
        .strip_prefix('`')
        .and_then(|rest| rest.strip_suffix('`'));
    Some(Row {
        default: default.and_then(toml_value),
        meaning: strip_links(meaning),
    })
}

/// The first paragraph of a table's chapter.
fn section_description(key: &str) -> Option<String> {
    let headings = [format!("## `[{key}]`"), format!("## `[[{key}]]`")];
    let is_other = |line: &&str| !headings.iter().any(|heading| heading == line);
    let mut lines = DOCUMENT.lines().skip_while(is_other).skip(2);
    let words: Vec<&str> = lines
        .by_ref()
        .take_while(|line| !line.is_empty() && !line.starts_with('|'))
        .collect();
    (!words.is_empty()).then(|| strip_links(&words.join(" ")))
}

/// The text without links: `[words](place)` becomes `words`.
fn strip_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((head, words)) = before.rsplit_once('[') else {
            break;
        };
        let Some((_, tail)) = after.split_once(')') else {
            break;
        };
        out.push_str(head);
        out.push_str(words);
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// A value of TOML as JSON; no default is a date.
fn toml_value(text: &str) -> Option<Value> {
    let table: toml::Table = format!("x = {text}").parse().ok()?;
    serde_json::to_value(table.get("x")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_schema_is_the_one_that_is_printed() {
        let committed = include_str!("../../../docs/supervisor.schema.json");
        assert!(
            committed == schema(),
            "refresh it: marshal config schema > docs/supervisor.schema.json"
        );
    }

    #[test]
    fn the_schema_of_dialects_is_the_one_that_is_printed() {
        let committed = include_str!("../../../docs/dialect.schema.json");
        assert!(
            committed == dialect_schema(),
            "refresh it: marshal config schema --dialect > docs/dialect.schema.json"
        );
    }

    #[test]
    fn every_value_has_a_type_and_a_meaning() {
        fn walk(path: &str, value: &Value, faults: &mut Vec<String>) {
            let Some(object) = value.as_object() else {
                return;
            };
            let is_typed = ["type", "enum", "anyOf"]
                .iter()
                .any(|key| object.contains_key(*key));
            if !is_typed {
                faults.push(format!("{path}: no type"));
            }
            if object.get("type").is_none_or(|kind| kind != "object")
                && !object.contains_key("description")
            {
                faults.push(format!("{path}: no description"));
            }
            for (name, value) in object
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                walk(&format!("{path}.{name}"), value, faults);
            }
            if let Some(others) = object
                .get("additionalProperties")
                .filter(|others| others.is_object() && path.matches('.').count() == 1)
            {
                walk(&format!("{path}.NAME"), others, faults);
            }
        }
        let mut faults = Vec::new();
        for schema in [schema(), dialect_schema()] {
            let schema: Value = serde_json::from_str(&schema).expect("JSON");
            walk("", &schema, &mut faults);
        }
        assert_eq!(faults, Vec::<String>::new());
    }

    #[test]
    fn links_are_shown_as_their_words() {
        assert_eq!(
            strip_links("see [Restarts](#r), [x] and (y)"),
            "see Restarts, [x] and (y)"
        );
        assert_eq!(strip_links("](",), "](");
    }
}
