//! The agent of a pool: its command or preset, its protocol, which calls it requests permission
//! for, and how its tool calls are parsed.
//!
//! Must not know pools' other keys, or what an extractor's table means.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::command::{self, PLACEHOLDERS, Piece};
use super::dialect_definition::CustomDialect;
use super::error::quote;
use super::nearest::nearest;
use super::paths;
use super::pool_dialect;
use super::presets::{self, Preset};
use super::table::{Located, Place, Section, keywords, one_of};
use super::types::{DialectName, Extractor, PermissionCoverage};

keywords!(PermissionCoverage);

/// The agent's name when no preset names it.
const CUSTOM: &str = "custom";

/// The agent of a pool.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) name: String,
    /// The file names a preset.
    pub(super) is_preset: bool,
    /// Whether the file has its own command.
    pub(super) has_own_command: bool,
    pub(super) command: Vec<String>,
    pub(super) resume_args: Vec<String>,
    /// The place of its program, if the file names it.
    pub(super) program_place: Option<Place>,
    /// Files of a new home, from its preset.
    pub(super) home_texts: BTreeMap<String, String>,
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    /// Of `model` and `mode`, those that no argument carries: the protocol sets them.
    pub(super) model_by_protocol: bool,
    pub(super) mode_by_protocol: bool,
    pub(super) dialect: DialectName,
    /// Its definition file, if the dialect is a custom one.
    pub(super) custom_dialect: Option<CustomDialect>,
    pub(super) permission_requests: PermissionCoverage,
    pub(super) extractor: Extractor,
}

/// Reads the keys of a pool that are about its agent. `preset` is the one that it names, whose keys
/// apply where the file has none. `is_routed`: its network has routes.
pub(super) fn read(
    pool: &Section<'_>,
    preset: Option<&'static Preset>,
    is_routed: bool,
    dir: &Path,
) -> Agent {
    let diagnostics = pool.diagnostics;
    let (named, item) = (pool.get("agent"), pool.get("command"));
    let given = item.as_ref().and_then(|_| read_command(pool, dir));
    if named.is_none() && item.is_none() {
        let message = "the pool needs a command, or an agent that is built in";
        let help =
            "for example: command = [\"marshal\", \"script-agent\", \"--dialect\", \"scaiflux\"]";
        diagnostics.report(&pool.place, message, Some(help.to_owned()));
    }
    let model = read_model_or_mode(pool, "model");
    let mode = read_model_or_mode(pool, "mode");
    let own_command = item.as_ref().is_some_and(|item| !item.is_fallback());
    let program = given
        .as_ref()
        .and_then(|words| words.first())
        .map(|word| word.place.clone());
    let mut words: Vec<String> = given.into_iter().flatten().map(|word| word.value).collect();
    if let Some(preset) = preset.filter(|_| !own_command && model.is_some()) {
        words.extend(preset.model_args.iter().cloned());
    }
    let dialect = pool_dialect::read(pool, dir);
    let (speaks, custom) = dialect.unwrap_or((DialectName::Scaiflux, None));
    let (mut set_model, mut set_mode) = (false, false);
    if !words.is_empty() {
        let place = item
            .or(named)
            .map_or_else(|| pool.place.clone(), |item| item.place);
        let elsewhere = preset.is_some_and(|preset| preset.writes_model(is_routed));
        let model_arg = model.as_ref().filter(|_| !elsewhere);
        set_model = check_placeholder_used(pool, &words, &place, "model", model_arg, speaks);
        set_mode = check_placeholder_used(pool, &words, &place, "mode", mode.as_ref(), speaks);
    }
    let script = command::is_script_agent(&words);
    // What a custom dialect can do is unknown until its definition file is read.
    let inferred = match speaks.can_request_permission() {
        false => PermissionCoverage::Never,
        true if script && custom.is_none() => PermissionCoverage::All,
        true => PermissionCoverage::Some,
    };
    let model = model.map(|found| found.value);
    Agent {
        name: match (preset, script) {
            (Some(preset), _) => preset.name.to_owned(),
            (None, true) => "script".to_owned(),
            (None, false) => CUSTOM.to_owned(),
        },
        is_preset: preset.is_some(),
        has_own_command: own_command,
        command: words,
        resume_args: read_resume_args(pool).unwrap_or_default(),
        program_place: program,
        home_texts: preset.map_or_else(BTreeMap::new, |preset| {
            preset.home_files(is_routed, model.as_deref())
        }),
        model,
        mode: mode.map(|found| found.value),
        model_by_protocol: set_model,
        mode_by_protocol: set_mode,
        dialect: speaks,
        custom_dialect: custom,
        permission_requests: read_permission_coverage(pool, speaks).unwrap_or(inferred),
        extractor: read_extractor(pool)
            .unwrap_or_else(|| Extractor::BuiltIn(speaks.default_extractor().to_owned())),
    }
}

/// The command of the file, checked word by word.
fn read_command(pool: &Section<'_>, dir: &Path) -> Option<Vec<Located<String>>> {
    let mut words = pool.texts("command")?;
    let diagnostics = pool.diagnostics;
    let Some(program) = words.value.first_mut() else {
        let message = "expected a program and its arguments, found an empty array";
        diagnostics.report(&words.place, message, None);
        return None;
    };
    if program.value.trim().is_empty() {
        diagnostics.report(&program.place, "the program's name is empty", None);
    } else if program.value.contains(['{', '}']) {
        let message = "the program's name takes no placeholder: placeholders are for its arguments";
        diagnostics.report(&program.place, message, None);
    } else if program.value.contains(char::is_whitespace) {
        let message = format!(
            "the program {} has a space in its name: write each argument as its own string",
            quote(&program.value)
        );
        diagnostics.report(&program.place, message, None);
    } else if program.value.contains('/') {
        let path = paths::absolute(dir, &program.value);
        program.value = path.to_string_lossy().into_owned();
    }
    for word in &words.value {
        check_placeholders(pool, word);
    }
    Some(words.value)
}

/// The arguments that load a session again; useless without the session's id.
fn read_resume_args(pool: &Section<'_>) -> Option<Vec<String>> {
    let words = pool.texts("resume_args")?;
    for word in &words.value {
        check_placeholders(pool, word);
    }
    let names_session = words.value.iter().any(|word| {
        let mut pieces = command::split_placeholders(&word.value).into_iter();
        pieces.any(|piece| matches!(piece, Piece::Placeholder("session", _)))
    });
    if !words.value.is_empty() && !names_session {
        let message =
            "one of resume_args must contain {session}, the agent's own id of the session";
        let help = "for example: resume_args = [\"--resume\", \"{session}\"]";
        pool.diagnostics
            .report(&words.place, message, Some(help.to_owned()));
    }
    Some(words.value.into_iter().map(|word| word.value).collect())
}

/// Refuses what looks like a misspelt placeholder. Other words in braces stay literal.
fn check_placeholders(pool: &Section<'_>, word: &Located<String>) {
    for piece in command::split_placeholders(&word.value) {
        let Piece::Placeholder(name, _) = piece else {
            continue;
        };
        let known = PLACEHOLDERS.contains(&name);
        if let (false, Some(near)) = (known, nearest(name, PLACEHOLDERS.iter().copied())) {
            let message = format!("unknown placeholder {{{name}}}");
            let help = Some(format!("did you mean {{{near}}}?"));
            pool.diagnostics.report(&word.place, message, help);
        }
    }
}

/// The JSON-schema pattern of `model` and `mode`.
pub(super) const MODEL_PATTERN: &str = r"^[A-Za-z0-9][A-Za-z0-9._:/@+\[\]-]{0,127}$";

/// Whether a text may be a `model` or a `mode`.
pub(super) fn is_model_or_mode(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 128
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:/@+[]-".contains(&b))
}

/// `model` and `mode` become arguments, so they must not look like flags or paths with `..`.
fn read_model_or_mode(pool: &Section<'_>, key: &'static str) -> Option<Located<String>> {
    let found = pool.get(key)?.text_like(MODEL_PATTERN)?;
    if is_model_or_mode(&found.value) {
        return Some(found);
    }
    let message = format!(
        "expected [A-Za-z0-9][A-Za-z0-9._:/@+[]-]{{0,127}}, found {}",
        quote(&found.value)
    );
    pool.diagnostics.report(&found.place, message, None);
    None
}

/// A value needs its placeholder, and a placeholder needs its value. Returns `true` if there is no
/// placeholder, but a message of the protocol carries the value.
fn check_placeholder_used(
    pool: &Section<'_>,
    words: &[String],
    command: &Place,
    key: &'static str,
    value: Option<&Located<String>>,
    speaks: DialectName,
) -> bool {
    let used = words.iter().any(|word| {
        let pieces = command::split_placeholders(word);
        pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Placeholder(name, _) if *name == key))
    });
    match value {
        Some(_) if !used && key == "model" && speaks.sets_model() => return true,
        Some(_) if !used && speaks.sets_mode() => return true,
        Some(found) if !used => {
            let message = format!("{key} is set, but the command has no {{{key}}}");
            pool.diagnostics.report(&found.place, message, None);
        }
        None if used && pool.get(key).is_none() => {
            let message = format!("the command has {{{key}}}, but the pool sets no {key}");
            pool.diagnostics.report(command, message, None);
        }
        _ => {}
    }
    false
}

/// Which calls the agent requests permission for: none, in a protocol without such requests.
fn read_permission_coverage(pool: &Section<'_>, speaks: DialectName) -> Option<PermissionCoverage> {
    let found: Located<PermissionCoverage> = pool.keyword("permission_requests", &[])?;
    let is_below = pool
        .get("permission_requests")
        .is_some_and(|item| item.is_fallback());
    if !speaks.can_request_permission() && is_below {
        return None;
    }
    if !speaks.can_request_permission() && found.value != PermissionCoverage::Never {
        let message = format!(
            "an agent that speaks {speaks} never asks: the protocol has no permission requests"
        );
        let help = Some("leave the key out, or set permission_requests = \"never\"".to_owned());
        pool.diagnostics.report(&found.place, message, help);
        return None;
    }
    Some(found.value)
}

fn read_extractor(pool: &Section<'_>) -> Option<Extractor> {
    let item = pool.get("extractor")?;
    let Some(table) = item.open_table() else {
        let name = item.text_among(presets::EXTRACTORS)?;
        if presets::EXTRACTORS.contains(&name.value.as_str()) {
            return Some(Extractor::BuiltIn(name.value));
        }
        let known = presets::EXTRACTORS;
        let expected = format!("{} or a table of its own", one_of(known));
        item.report_unknown(&name.value, known, &[], &expected);
        return None;
    };
    match toml::to_string(&to_toml_table(table)) {
        Ok(text) => Some(Extractor::Inline(text)),
        Err(error) => {
            pool.diagnostics.report(&item.place, error, None);
            None
        }
    }
}

/// The table without its places.
fn to_toml_table(table: &DeTable<'_>) -> toml::Table {
    table
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), plain_value(value.get_ref())))
        .collect()
}

fn plain_value(value: &DeValue<'_>) -> toml::Value {
    use toml::Value;
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        // A number that does not fit becomes a string, so that the extractor's reader rejects it.
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_or_else(|_| Value::String(integer.to_string()), Value::Integer),
        DeValue::Float(float) => float
            .as_str()
            .parse()
            .map_or_else(|_| Value::String(float.to_string()), Value::Float),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(datetime) => Value::Datetime(*datetime),
        DeValue::Array(array) => Value::Array(
            array
                .iter()
                .map(|item| plain_value(item.get_ref()))
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(to_toml_table(table)),
    }
}
