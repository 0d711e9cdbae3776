//! Which agent a pool runs: its command or preset, what it speaks, what it asks for, and how its
//! tool calls are read.
//!
//! Must not know pools' other keys, or what an extractor's table means.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::command::{self, PLACEHOLDERS, Piece};
use super::dialect_table::CustomDialect;
use super::dialect_use;
use super::error::quoted;
use super::nearest::nearest;
use super::paths;
use super::presets::{self, Preset};
use super::table::{Found, Place, Section, one_of, word};
use super::types::{AsksFor, DialectName, Extractor};

word!(AsksFor);

/// The agent's name when no preset names it.
const CUSTOM: &str = "custom";

/// The agent of a pool.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) name: String,
    /// The file names a preset.
    pub(super) is_preset: bool,
    /// The file has a command of its own.
    pub(super) own_command: bool,
    pub(super) command: Vec<String>,
    pub(super) resume_args: Vec<String>,
    /// Where its program stands, if the file names it.
    pub(super) program: Option<Place>,
    /// Files of a new home, from its preset.
    pub(super) home_texts: BTreeMap<String, String>,
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    /// Of these, what stands in no argument: the protocol sets it.
    pub(super) set_model: bool,
    pub(super) set_mode: bool,
    pub(super) dialect: DialectName,
    /// The file of its table, if it is a custom one.
    pub(super) custom: Option<CustomDialect>,
    pub(super) asks: AsksFor,
    pub(super) extractor: Extractor,
}

/// Reads the keys of a pool that are about its agent; `preset` is the one that it names, whose
/// keys hold where the file has none. `is_routed`: its network is one of routes.
pub(super) fn read(
    pool: &Section<'_>,
    preset: Option<&'static Preset>,
    is_routed: bool,
    dir: &Path,
) -> Agent {
    let ledger = pool.ledger;
    let (named, item) = (pool.item("agent"), pool.item("command"));
    let given = item.as_ref().and_then(|_| given(pool, dir));
    if named.is_none() && item.is_none() {
        let message = "the pool needs a command, or an agent that is built in";
        let help =
            "for example: command = [\"marshal\", \"script-agent\", \"--dialect\", \"scaiflux\"]";
        ledger.fault(&pool.place, message, Some(help.to_owned()));
    }
    let model = filling(pool, "model");
    let mode = filling(pool, "mode");
    let own_command = item.as_ref().is_some_and(|item| !item.is_below());
    let program = given.as_ref().and_then(|words| words.first());
    let program = program.map(|word| word.place.clone());
    let mut words: Vec<String> = given.into_iter().flatten().map(|word| word.value).collect();
    if let Some(preset) = preset.filter(|_| !own_command && model.is_some()) {
        words.extend(preset.model_args.iter().cloned());
    }
    let dialect = dialect_use::read(pool, dir);
    let (speaks, custom) = dialect.unwrap_or((DialectName::Scaiflux, None));
    let (mut set_model, mut set_mode) = (false, false);
    if !words.is_empty() {
        let place = item
            .or(named)
            .map_or_else(|| pool.place.clone(), |item| item.place);
        let elsewhere = preset.is_some_and(|preset| preset.writes_model(is_routed));
        let told = model.as_ref().filter(|_| !elsewhere);
        set_model = filled(pool, &words, &place, "model", told, speaks);
        set_mode = filled(pool, &words, &place, "mode", mode.as_ref(), speaks);
    }
    let script = command::is_script_agent(&words);
    // What a table knows of, nobody knows yet.
    let inferred = match speaks.asks() {
        false => AsksFor::Never,
        true if script && custom.is_none() => AsksFor::All,
        true => AsksFor::Some,
    };
    let model = model.map(|found| found.value);
    Agent {
        name: match (preset, script) {
            (Some(preset), _) => preset.name.to_owned(),
            (None, true) => "script".to_owned(),
            (None, false) => CUSTOM.to_owned(),
        },
        is_preset: preset.is_some(),
        own_command,
        command: words,
        resume_args: resume_args(pool).unwrap_or_default(),
        program,
        home_texts: preset.map_or_else(BTreeMap::new, |preset| {
            preset.home(is_routed, model.as_deref())
        }),
        model,
        mode: mode.map(|found| found.value),
        set_model,
        set_mode,
        dialect: speaks,
        custom,
        asks: asks(pool, speaks).unwrap_or(inferred),
        extractor: extractor(pool)
            .unwrap_or_else(|| Extractor::BuiltIn(speaks.extractor().to_owned())),
    }
}

/// The command as the file gives it, checked word by word.
fn given(pool: &Section<'_>, dir: &Path) -> Option<Vec<Found<String>>> {
    let mut words = pool.texts("command")?;
    let ledger = pool.ledger;
    let Some(program) = words.value.first_mut() else {
        let message = "expected a program and its arguments, found an empty array";
        ledger.fault(&words.place, message, None);
        return None;
    };
    if program.value.trim().is_empty() {
        ledger.fault(&program.place, "the program's name is empty", None);
    } else if program.value.contains(['{', '}']) {
        let message = "the program must be named in full: placeholders are for its arguments";
        ledger.fault(&program.place, message, None);
    } else if program.value.contains(char::is_whitespace) {
        let message = format!(
            "the program {} has a blank in its name: each argument is a string of its own",
            quoted(&program.value)
        );
        ledger.fault(&program.place, message, None);
    } else if command::is_path(&program.value) {
        let path = paths::absolute(dir, &program.value);
        program.value = path.to_string_lossy().into_owned();
    }
    for word in &words.value {
        check_placeholders(pool, word);
    }
    Some(words.value)
}

/// What the command gets to load a session again: useless without the session's id.
fn resume_args(pool: &Section<'_>) -> Option<Vec<String>> {
    let words = pool.texts("resume_args")?;
    for word in &words.value {
        check_placeholders(pool, word);
    }
    let names_session = words.value.iter().any(|word| {
        let mut pieces = command::pieces(&word.value).into_iter();
        pieces.any(|piece| matches!(piece, Piece::Braced("session", _)))
    });
    if !words.value.is_empty() && !names_session {
        let message = "one of resume_args must hold {session}, the agent's own id of the session";
        let help = "for example: resume_args = [\"--resume\", \"{session}\"]";
        pool.ledger
            .fault(&words.place, message, Some(help.to_owned()));
    }
    Some(words.value.into_iter().map(|word| word.value).collect())
}

/// Refuses what looks like a misspelt placeholder. Other words in braces stand for themselves.
fn check_placeholders(pool: &Section<'_>, word: &Found<String>) {
    for piece in command::pieces(&word.value) {
        let Piece::Braced(name, _) = piece else {
            continue;
        };
        let known = PLACEHOLDERS.contains(&name);
        if let (false, Some(near)) = (known, nearest(name, PLACEHOLDERS.iter().copied())) {
            let message = format!("unknown placeholder {{{name}}}");
            let help = Some(format!("did you mean {{{near}}}?"));
            pool.ledger.fault(&word.place, message, help);
        }
    }
}

/// What the schema says of `model` and `mode`.
pub(super) const FILLING: &str = r"^[A-Za-z0-9][A-Za-z0-9._:/@+\[\]-]{0,127}$";

/// Whether a text may be a `model` or a `mode`.
pub(super) fn fits_filling(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 128
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:/@+[]-".contains(&b))
}

/// `model` and `mode`: they become arguments, so they must not look like flags or paths upwards.
fn filling(pool: &Section<'_>, key: &'static str) -> Option<Found<String>> {
    let found = pool.item(key)?.text_like(FILLING)?;
    if fits_filling(&found.value) {
        return Some(found);
    }
    let message = format!(
        "expected [A-Za-z0-9][A-Za-z0-9._:/@+[]-]{{0,127}}, found {}",
        quoted(&found.value)
    );
    pool.ledger.fault(&found.place, message, None);
    None
}

/// A value needs its placeholder and a placeholder its value. `true`: it has none, but a message
/// of the protocol takes it.
fn filled(
    pool: &Section<'_>,
    words: &[String],
    command: &Place,
    key: &'static str,
    value: Option<&Found<String>>,
    speaks: DialectName,
) -> bool {
    let used = words.iter().any(|word| {
        let pieces = command::pieces(word);
        pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Braced(name, _) if *name == key))
    });
    match value {
        Some(_) if !used && key == "model" && speaks.sets_model() => return true,
        Some(_) if !used && speaks.sets_mode() => return true,
        Some(found) if !used => {
            let message = format!("{key} is set, but the command has no {{{key}}}");
            pool.ledger.fault(&found.place, message, None);
        }
        None if used && pool.item(key).is_none() => {
            let message = format!("the command has {{{key}}}, but the pool sets no {key}");
            pool.ledger.fault(command, message, None);
        }
        _ => {}
    }
    false
}

/// What the agent asks for: nothing, in a protocol that has no words for it.
fn asks(pool: &Section<'_>, speaks: DialectName) -> Option<AsksFor> {
    let found: Found<AsksFor> = pool.word("asks", &[])?;
    let is_below = pool.item("asks").is_some_and(|item| item.is_below());
    if !speaks.asks() && is_below {
        return None;
    }
    if !speaks.asks() && found.value != AsksFor::Never {
        let message = format!(
            "an agent that speaks {speaks} asks for nothing: the protocol has no words for it"
        );
        let help = Some("leave asks out, or set asks = \"never\"".to_owned());
        pool.ledger.fault(&found.place, message, help);
        return None;
    }
    Some(found.value)
}

fn extractor(pool: &Section<'_>) -> Option<Extractor> {
    let item = pool.item("extractor")?;
    let Some(table) = item.open_table() else {
        let name = item.text_among(presets::EXTRACTORS)?;
        if presets::EXTRACTORS.contains(&name.value.as_str()) {
            return Some(Extractor::BuiltIn(name.value));
        }
        let known = presets::EXTRACTORS;
        let expected = format!("{} or a table of its own", one_of(known));
        item.unknown_word(&name.value, known, &[], &expected);
        return None;
    };
    match toml::to_string(&plain(table)) {
        Ok(text) => Some(Extractor::Inline(text)),
        Err(error) => {
            pool.ledger.fault(&item.place, error, None);
            None
        }
    }
}

/// The table without its places.
fn plain(table: &DeTable<'_>) -> toml::Table {
    table
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), plain_value(value.get_ref())))
        .collect()
}

fn plain_value(value: &DeValue<'_>) -> toml::Value {
    use toml::Value;
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        // What does not fit keeps its text, which no reader of an extractor accepts.
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
        DeValue::Table(table) => Value::Table(plain(table)),
    }
}
