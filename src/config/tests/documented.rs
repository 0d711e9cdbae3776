//! `docs/configuration.md` and the reader say the same: keys, types and defaults.

use std::collections::{BTreeMap, BTreeSet};

use super::{accepted_by, named, shown};
use crate::config::form::Forms;
use crate::config::{Config, DEFAULT};

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");

/// One line of a table: key, type and default.
struct Row {
    key: &'static str,
    kind: String,
    default: &'static str,
}

fn rows() -> Vec<Row> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &'static str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [key, kind, default, meaning] = cells[..] else {
            panic!("not four cells: {line}");
        };
        assert!(meaning.len() > 5, "{line}");
        Row {
            key: key.trim_matches('`'),
            kind: kind.replace('`', ""),
            default,
        }
    };
    rows.map(row).collect()
}

impl Row {
    /// The default as TOML, if the document gives one.
    fn value(&self) -> Option<&'static str> {
        self.default.strip_prefix('`')?.strip_suffix('`')
    }

    /// A file that has this key with a value. `standard` is the one profile that is there anyway.
    fn file(&self, value: &str) -> String {
        let key = self
            .key
            .replace("pool.NAME", "pool.demo")
            .replace("sandbox.NAME", "sandbox.standard")
            .replace("policy.NAME", "policy.own");
        let set = format!("{key} = {value}\n");
        match self.key {
            "pool.NAME.agent" | "pool.NAME.command" => set,
            "pool.NAME.model" => format!("pool.demo.command = [\"a\", \"{{model}}\"]\n{set}"),
            "pool.NAME.mode" => format!("pool.demo.command = [\"a\", \"{{mode}}\"]\n{set}"),
            "pool.NAME.auth" => format!("pool.demo.dialect = \"acp\"\n{BARE}{set}"),
            _ => format!("{BARE}{set}"),
        }
    }
}

const BARE: &str = "pool.demo.command = [\"agent\"]\n";

/// Values for keys that have no default.
const SAMPLES: &[(&str, &str)] = &[
    ("pool.NAME.agent", "\"scaiflux\""),
    ("pool.NAME.command", "[\"agent\"]"),
    ("pool.NAME.resume_args", "[\"--resume\", \"{session}\"]"),
    ("pool.NAME.model", "\"lab/model-1\""),
    ("pool.NAME.mode", "\"plan\""),
    ("pool.NAME.auth", "\"api-key\""),
    ("pool.NAME.asks", "\"some\""),
    ("policy.NAME.file", "\"own.toml\""),
];

/// Everything that the program sees of a configuration.
fn seen(config: &Config) -> String {
    format!(
        "{:#?}{:#?}{:#?}",
        config.supervisor, config.pools, config.sandboxes
    )
}

#[test]
fn every_documented_key_is_accepted_and_its_default_is_the_true_one() {
    let bare = seen(&accepted_by(&named(), BARE));
    let samples: BTreeMap<_, _> = SAMPLES.iter().copied().collect();
    for row in rows() {
        if let Some(value) = row.value() {
            let config = accepted_by(&named(), &row.file(value));
            assert_eq!(seen(&config), bare, "{} is not by default {value}", row.key);
        } else {
            let value = samples.get(row.key);
            let value = value.unwrap_or_else(|| panic!("no sample for {}", row.key));
            accepted_by(&named(), &row.file(value));
        }
    }
}

#[test]
fn every_documented_type_is_the_one_that_is_expected() {
    for row in rows() {
        // A date is the type of no key.
        let errors = Config::parse(&row.file("2026-01-01"), &named());
        let errors = errors.map(|_| ()).expect_err(row.key);
        let message = &errors.errors[0].message;
        let expected = message
            .strip_prefix("expected ")
            .and_then(|rest| rest.strip_suffix(", found a date or time"))
            .unwrap_or_else(|| panic!("{}: {}", row.key, shown(&errors)));
        let fits = match row.kind.as_str() {
            "a duration" => {
                expected.starts_with("a duration such") && !expected.ends_with("none\"")
            }
            "a duration or \"none\"" => {
                expected.starts_with("a duration such") && expected.ends_with(", or \"none\"")
            }
            "a size" => expected.starts_with("a size such"),
            kind => kind == expected,
        };
        assert!(
            fits,
            "{}: documented {}, expected {expected}",
            row.key, row.kind
        );
    }
}

#[test]
fn every_accepted_key_is_documented_once() {
    let accepted = Forms::learn().values();
    let accepted: BTreeSet<&str> = accepted.iter().map(String::as_str).collect();
    let rows = rows();
    let documented: BTreeSet<&str> = rows.iter().map(|row| row.key).collect();
    assert_eq!(documented.len(), rows.len(), "a key is documented twice");
    let diff = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| -> Vec<String> {
        a.difference(b).map(ToString::to_string).collect()
    };
    assert_eq!(
        diff(&accepted, &documented),
        Vec::<String>::new(),
        "not documented"
    );
    assert_eq!(
        diff(&documented, &accepted),
        Vec::<String>::new(),
        "not accepted"
    );
}

#[test]
fn the_built_in_file_says_what_would_hold_anyway() {
    let short = "[pool.demo]\nsize = 4\nagent = \"script\"\n";
    let (long, short) = (accepted_by(&named(), DEFAULT), accepted_by(&named(), short));
    assert_eq!(seen(&long), seen(&short));
}
