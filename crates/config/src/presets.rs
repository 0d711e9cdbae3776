//! The built-in agents: how to find and start them, what they speak, ask for and need.
//!
//! A preset is data (`presets/*.toml`): `[pool]` has keys as `[pool.NAME]` has them, which apply
//! where the file has none; `[routed]` has more of them, for a pool whose network is `routes`;
//! `[home]` and `[routed_home]` have files for a new home; the rest is shown to people. Must not
//! know what a pool's keys mean.
//!
//! A new built-in agent is a file `presets/NAME.toml`, its name here, its table of calls in
//! `policy/builtin/`, and a row in `docs/agents.md`. `cli/agents/find.rs` finds it on the host, and
//! `tests/drills/agents/five.rs` runs it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::table::{Section, one_of};
use super::types::Launcher;

/// The built-in presets: name and text.
const PRESETS: &[(&str, &str)] = &[
    ("claude", include_str!("presets/claude.toml")),
    ("claude-code", include_str!("presets/claude-code.toml")),
    ("codex", include_str!("presets/codex.toml")),
    (
        "codex-app-server",
        include_str!("presets/codex-app-server.toml"),
    ),
    ("gemini", include_str!("presets/gemini.toml")),
    ("hermes", include_str!("presets/hermes.toml")),
    ("opencode", include_str!("presets/opencode.toml")),
    ("scaiflux", include_str!("presets/scaiflux.toml")),
    ("script", include_str!("presets/script.toml")),
];

/// Agents of the format that this version has no preset for.
pub(super) const UNSUPPORTED_AGENTS: &[&str] = &["cursor", "goose"];

/// The built-in extractors (`policy` owns their tables).
pub(super) const EXTRACTORS: &[&str] = &[
    "acp", "claude", "codex", "gemini", "hermes", "opencode", "scaiflux",
];

/// The words for a network of routes, and for one that may have some.
const ROUTES: &str = "routes";
const PROXY: &str = "proxy";

/// One agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Its name, as in a pool's `agent`.
    #[serde(skip)]
    pub name: &'static str,
    /// A short description.
    pub title: String,
    /// The evidence for its `permission_requests`.
    pub evidence: String,
    /// The view of `/proc` that it needs.
    pub proc: String,
    /// Whether it uses the proxy of its environment, and the evidence.
    pub proxies: String,
    /// The memory that its whole process tree needs.
    pub memory: Option<String>,
    /// The model that its files name where the pool names none.
    pub model: Option<String>,
    /// Arguments added when the pool names a model.
    #[serde(default)]
    pub(super) model_args: Vec<String>,
    /// How it is found on the host; `None`: it is built in, or found inside.
    pub find: Option<ProgramLookup>,
    /// Other packages with this program.
    #[serde(default)]
    pub variants: Vec<PackageVariant>,
    #[serde(default)]
    home: BTreeMap<String, String>,
    #[serde(default)]
    routed_home: BTreeMap<String, String>,
    /// Read a second time, with places: see `plain`.
    #[serde(rename = "pool")]
    _pool: toml::Table,
    #[serde(default, rename = "routed")]
    _routed: toml::Table,
    /// `[pool]`.
    #[serde(skip)]
    pool_table: DeTable<'static>,
    /// `plain` without what only this host can provide: for a remote host.
    #[serde(skip)]
    remote_table: DeTable<'static>,
    /// `[pool]` and `[routed]`.
    #[serde(skip)]
    routed_table: DeTable<'static>,
}

/// How an agent is found on the host.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramLookup {
    /// The program's name.
    pub program: String,
    /// Programs to use instead, if they are below the same `node_modules`; `{arch}` is
    /// `x64` or `arm64`.
    #[serde(default)]
    pub native: Vec<String>,
    /// The package that contains it; its files have the version.
    pub package: String,
    /// The command that installs it.
    pub install: String,
    /// The version that it was tested with.
    pub tested: String,
}

/// Another package with a preset's program, whose files of the home differ.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageVariant {
    /// The package that contains it.
    pub package: String,
    /// The version that it was tested with.
    pub tested: String,
    /// Texts that are replaced in the files of the home, with their replacements.
    pub replace: BTreeMap<String, String>,
}

impl PackageVariant {
    /// Changes the files of a home for this package.
    pub fn apply(&self, home_texts: &mut BTreeMap<String, String>) {
        for text in home_texts.values_mut() {
            for (from, to) in &self.replace {
                *text = text.replace(from, to);
            }
        }
    }
}

impl ProgramLookup {
    /// Of a program of which only the name is known.
    #[must_use]
    pub fn by_name(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            native: Vec::new(),
            package: String::new(),
            install: String::new(),
            tested: String::new(),
        }
    }
}

static ALL: LazyLock<BTreeMap<&'static str, Preset>> = LazyLock::new(|| {
    let read = |(name, text): &(&'static str, &'static str)| Some((*name, read(name, text).ok()?));
    // An unreadable preset is skipped, so a test reads them all.
    PRESETS.iter().filter_map(read).collect()
});

/// The names of all presets.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|(name, _)| *name).collect()
}

/// The preset of that name.
#[must_use]
pub fn preset(name: &str) -> Option<&'static Preset> {
    ALL.get(name)
}

/// A pool's table with the keys of its preset below it, and the preset, if it names one.
pub(super) fn with_preset(pool: Section<'_>) -> (Section<'_>, Option<&'static Preset>) {
    let Some(agent) = pool.get("agent") else {
        return (pool, None);
    };
    let Some(name) = agent.text_among(&names()) else {
        return (pool, None);
    };
    let Some(preset) = preset(&name.value) else {
        agent.report_unknown(&name.value, &names(), UNSUPPORTED_AGENTS, &one_of(&names()));
        return (pool, None);
    };
    let network = pool
        .get("network")
        .and_then(|item| string_value(item.value()));
    let is_routed = match network.as_deref() {
        // What its model needs stays as it is: the proxy comes beside it.
        None | Some(PROXY) => preset.is_routed(),
        Some(network) => network == ROUTES,
    };
    let launcher = pool
        .get("launcher")
        .and_then(|item| string_value(item.value()))
        .as_deref()
        .and_then(Launcher::parse);
    let is_elsewhere = launcher.is_some_and(|of| of.is_remote() || (of.uses_image() && !is_routed));
    let table = if is_elsewhere {
        &preset.remote_table
    } else if is_routed {
        &preset.routed_table
    } else {
        &preset.pool_table
    };
    (pool.with_fallback(table, name.place.span), Some(preset))
}

fn string_value(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        _ => None,
    }
}

impl Preset {
    /// Whether its default network has routes.
    fn is_routed(&self) -> bool {
        let network = self.pool_table.get("network").map(toml::Spanned::get_ref);
        network
            .and_then(string_value)
            .is_some_and(|network| network == ROUTES)
    }

    /// The files of a new home, with the model's name in them.
    pub(super) fn home_files(
        &self,
        is_routed: bool,
        model: Option<&str>,
    ) -> BTreeMap<String, String> {
        let mut files = self.home.clone();
        if is_routed {
            files.extend(self.routed_home.clone());
        }
        let model = model.or(self.model.as_deref()).unwrap_or_default();
        for text in files.values_mut() {
            *text = text.trim_start().replace("{model}", model);
        }
        files
    }

    /// A string value of its `[pool]`.
    #[must_use]
    pub fn pool_text_or_default(&self, key: &str) -> String {
        self.pool_text(key).unwrap_or_default()
    }

    /// The same, if its pool says anything.
    #[must_use]
    pub fn pool_text(&self, key: &str) -> Option<String> {
        self.pool_text_at(&[key], true)
    }

    /// How long it waits for an answer, as a duration; `None`: for ever.
    #[must_use]
    pub fn agent_waits(&self) -> Option<String> {
        self.pool_text_at(&["approval", "agent_waits"], true)
    }

    /// The files that it puts into a new home.
    #[must_use]
    pub fn home_paths(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.home.keys().map(String::as_str).collect();
        files.extend(self.routed_home.keys().map(String::as_str));
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Whether one of its files names the model.
    pub(super) fn writes_model(&self, is_routed: bool) -> bool {
        let routed = self.routed_home.values().filter(|_| is_routed);
        self.home
            .values()
            .chain(routed)
            .any(|text| text.contains("{model}"))
    }

    /// A value of `[pool]`, or of `[routed]` over it, as text.
    pub(super) fn pool_text_at(&self, path: &[&str], is_routed: bool) -> Option<String> {
        let mut table = if is_routed {
            &self.routed_table
        } else {
            &self.pool_table
        };
        let (last, above) = path.split_last()?;
        for name in above {
            table = match table.get(*name)?.get_ref() {
                DeValue::Table(table) => table,
                _ => return None,
            };
        }
        string_value(table.get(*last)?.get_ref())
    }

    /// Whether a command is its own, with its model's arguments or without.
    pub(super) fn matches_command(&self, command: &[String], with_model: bool) -> bool {
        let Some(DeValue::Array(words)) =
            self.pool_table.get("command").map(toml::Spanned::get_ref)
        else {
            return false;
        };
        let words = words.iter().filter_map(|word| string_value(word.get_ref()));
        let added = self.model_args.iter().filter(|_| with_model).cloned();
        words.chain(added).eq(command.iter().cloned())
    }
}

/// Keys that a pool on a remote host does not have.
const HOST_ONLY_KEYS: &[&str] = &["home_files", "network", "routes", "sandbox", "workspace"];

fn read(name: &'static str, text: &'static str) -> Result<Preset, String> {
    let mut preset: Preset = toml::from_str(text).map_err(|error| error.to_string())?;
    let (tree, errors) = DeTable::parse_recoverable(text);
    if let Some(error) = errors.first() {
        return Err(error.message().to_owned());
    }
    let table = |name: &str| match tree.get_ref().get(name).map(toml::Spanned::get_ref) {
        Some(DeValue::Table(table)) => table.clone(),
        _ => DeTable::new(),
    };
    preset.name = name;
    preset.pool_table = table("pool");
    preset.remote_table = table("pool");
    for key in HOST_ONLY_KEYS {
        preset.remote_table.remove(*key);
    }
    preset.routed_table = table("pool");
    merge_tables(&mut preset.routed_table, table("routed"));
    Ok(preset)
}

/// Merges a table over another: its values win, and sub-tables are merged.
fn merge_tables(base: &mut DeTable<'static>, over: DeTable<'static>) {
    for (key, value) in over {
        let name: &str = key.get_ref();
        let below = base.get_mut(name).map(toml::Spanned::get_mut);
        match (below, value.get_ref()) {
            (Some(DeValue::Table(below)), DeValue::Table(table)) => {
                let table = table.clone();
                merge_tables(below, table);
            }
            _ => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Origin, ProcMode};

    #[test]
    fn every_preset_is_complete_and_its_extractor_exists() {
        assert_eq!(ALL.len(), PRESETS.len());
        for (name, text) in PRESETS {
            let preset = read(name, text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let text_at = |key: &str| preset.pool_text_at(&[key], true);
            assert!(
                text_at("dialect").is_some() && text_at("permission_requests").is_some(),
                "{name}"
            );
            let extractor = text_at("extractor").expect("an extractor");
            assert!(EXTRACTORS.contains(&extractor.as_str()), "{name}");
            assert!(!preset.evidence.is_empty(), "{name}");
            let known = ["yes: ", "no: ", "unknown: "];
            let is_known = known.iter().any(|word| preset.proxies.starts_with(word));
            assert!(is_known, "{name}: {}", preset.proxies);
            // Nothing here has to run in a pool whose profile shows less than its agent needs.
            assert_eq!(preset.proc, ProcMode::Pid.as_str(), "{name}");
            assert!(!UNSUPPORTED_AGENTS.contains(name), "{name}");
        }
    }

    #[test]
    fn another_package_changes_the_files_of_the_home() {
        for (name, preset) in ALL.iter() {
            for variant in &preset.variants {
                for home in [&preset.home, &preset.routed_home] {
                    let mut changed = home.clone();
                    variant.apply(&mut changed);
                    for (from, to) in &variant.replace {
                        let has = |home: &BTreeMap<String, String>, part: &str| {
                            home.values().any(|text| text.contains(part))
                        };
                        assert!(has(home, from), "{name}: {from}");
                        assert!(!has(&changed, from) && has(&changed, to), "{name}: {to}");
                    }
                }
            }
        }
        let codex = &ALL["codex"];
        assert_eq!(codex.variants[0].package, "@agentclientprotocol/codex-acp");
    }

    #[test]
    fn the_keys_of_every_preset_are_keys_of_a_pool() {
        let origin = Origin {
            file: Some("/etc/marshal/supervisor.toml".into()),
            dir: "/etc/marshal".into(),
            is_explicit: true,
        };
        for (name, text) in PRESETS {
            let document: toml::Table = text.parse().expect("TOML");
            for table in ["pool", "routed"] {
                let Some(keys) = document.get(table) else {
                    continue;
                };
                let mut pool = keys.as_table().expect("a table").clone();
                pool.entry("command").or_insert_with(|| vec!["x"].into());
                let mut pools = toml::Table::new();
                pools.insert("demo".to_owned(), pool.into());
                let mut file = toml::Table::new();
                file.insert("pool".to_owned(), pools.into());
                // Variables may name routes that only the other table has.
                let read = Config::parse(&file.to_string(), &origin);
                let faults = read.err().map(|errors| errors.errors).unwrap_or_default();
                let unknown = faults
                    .iter()
                    .find(|fault| fault.message.contains("unknown key"));
                assert!(unknown.is_none(), "{name}: {unknown:?}");
            }
        }
    }

    #[test]
    fn files_name_the_model_of_the_pool_or_the_presets_own() {
        let codex = preset("codex").expect("codex");
        let text = |routed, model| codex.home_files(routed, model).remove(".codex/config.toml");
        assert!(
            text(false, None)
                .expect("a file")
                .starts_with("model = \"gpt-5\"\n")
        );
        let routed = text(true, Some("m-1")).expect("a file");
        assert!(routed.contains("model = \"m-1\"") && routed.contains("{route.openai}/v1"));
    }

    #[test]
    fn a_broken_preset_is_none() {
        for text in ["", "title = 1", "title = \"x\"\nfoo = 2\n", "pool = {"] {
            assert!(read("x", text).is_err(), "{text}");
        }
    }
}
