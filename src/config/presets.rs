//! Agents that this program knows: how to start them, what they speak and what they ask for.
//!
//! A preset is data (`presets/*.toml`). Must not know pools.

use std::sync::Arc;

use toml::de::DeTable;

use super::error::{ConfigErrors, Text};
use super::table::{Found, Ledger, Section};
use super::types::{AsksFor, DialectName};

/// The built-in presets: name and text.
const PRESETS: &[(&str, &str)] = &[
    ("scaiflux", include_str!("presets/scaiflux.toml")),
    ("script", include_str!("presets/script.toml")),
];

/// Agents that the format names and this version has no preset for.
pub(super) const LATER: &[&str] = &[
    "claude",
    "codex",
    "cursor",
    "gemini",
    "goose",
    "hermes",
    "loaf",
    "opencode",
    "pi",
    "skillpilot",
];

/// The built-in extractors (`policy` owns their tables).
pub(super) const EXTRACTORS: &[&str] = &["acp", "scaiflux"];

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Preset {
    /// Program and arguments.
    pub(super) command: Vec<String>,
    /// Arguments added when the pool names a model.
    pub(super) model_args: Vec<String>,
    /// Arguments added to load an earlier session again.
    pub(super) resume_args: Vec<String>,
    /// What it speaks.
    pub(super) dialect: DialectName,
    /// What it asks for.
    pub(super) asks: AsksFor,
    /// Why `asks` says what it says.
    pub(super) evidence: String,
    /// The name of its built-in extractor.
    pub(super) extractor: String,
}

/// The names of all presets.
pub(super) fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|(name, _)| *name).collect()
}

/// The preset of that name.
///
/// # Errors
/// A preset that is no preset: a fault of this program, shown like a fault of the file.
pub(super) fn preset(name: &str) -> Option<Result<Preset, ConfigErrors>> {
    let (_, text) = PRESETS.iter().find(|(preset, _)| *preset == name)?;
    Some(read(name, text))
}

/// Whether a command is that of the preset `name`, with its model's arguments or without.
pub(super) fn is_command(name: &str, command: &[String], with_model: bool) -> bool {
    let Some(Ok(preset)) = preset(name) else {
        return false;
    };
    let added = preset.model_args.iter().filter(|_| with_model);
    preset.command.iter().chain(added).eq(command)
}

fn read(name: &str, source: &str) -> Result<Preset, ConfigErrors> {
    let text = Text::new(format!("preset {name}"), Arc::from(source));
    let ledger = Ledger::new(text);
    let (tree, errors) = DeTable::parse_recoverable(source);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let error = Text::error("", span, error.message(), None);
        ledger.faults(vec![error]);
    }
    let root = Section::root(&ledger, tree.get_ref());
    let words = |found: Option<Found<Vec<Found<String>>>>| {
        found.map(|list| list.value.into_iter().map(|word| word.value).collect())
    };
    let preset = (|| {
        Some(Preset {
            command: words(root.texts("command"))?,
            model_args: words(root.texts("model_args"))?,
            resume_args: words(root.texts("resume_args"))?,
            dialect: root.word("dialect", &[])?.value,
            asks: root.word("asks", &[])?.value,
            evidence: root.text("evidence")?.value,
            extractor: root.text("extractor")?.value,
        })
    })();
    root.close(&[], &[]);
    if preset.is_none() && !ledger.is_faulty() {
        ledger.fault(&root.place.clone(), "a key is missing", None);
    }
    let faulty = ledger.is_faulty();
    drop(root);
    let (text, errors, _) = ledger.close();
    match preset {
        Some(preset) if !faulty => Ok(preset),
        _ => Err(text.refuse(errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_complete_and_its_extractor_exists() {
        for name in names() {
            let preset = preset(name).expect("known").expect("complete");
            assert!(!preset.command.is_empty(), "{name}");
            assert!(!preset.evidence.is_empty(), "{name}");
            assert!(EXTRACTORS.contains(&preset.extractor.as_str()), "{name}");
            assert!(!LATER.contains(&name), "{name}");
        }
    }

    #[test]
    fn the_scaiflux_preset_has_the_flags_of_serve_mode() {
        let preset = preset("scaiflux").expect("known").expect("complete");
        assert_eq!(
            preset.command.join(" "),
            "scaiflux serve --workspace {workspace} --permission-mode prompt"
        );
        assert_eq!(preset.model_args, ["--model", "{model}"]);
        assert_eq!(preset.asks, AsksFor::Some);
    }

    #[test]
    fn a_broken_preset_says_where() {
        let error = read("x", "command = 1\nfoo = 2\n").expect_err("broken");
        let shown = error.to_string();
        assert!(
            shown.contains("preset x:1:11: command: expected an array"),
            "{shown}"
        );
        assert!(read("x", "command = []\n").is_err());
    }
}
