//! The types of the file's keys, recorded from the reader itself.
//!
//! The reader records the type of every value that it accepts. A file that has every key therefore
//! yields the whole format, so the schema cannot differ from the reader. Must not know what any key
//! means, or how a schema is written.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeTable;

use super::error::SourceText;
use super::table::{Diagnostics, Section};
use super::{Origin, read_config};

/// The placeholder for a name that the file chooses.
pub(super) const NAME: &str = "NAME";

/// What is added to an array's key for its elements.
pub(super) const ELEMENT: &str = "[]";

/// One type that a value may have. Patterns are regular expressions as JSON Schema has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueType {
    /// A table with keys of its own.
    Table,
    /// A table whose keys the file chooses, by this pattern; empty: any.
    NamedTable(&'static str),
    /// A table that another reader parses.
    OpenTable,
    /// An array.
    Array,
    /// A string.
    Text,
    /// A string of this pattern.
    Pattern(&'static str),
    /// One of these words.
    Enum(Vec<&'static str>),
    /// True or false.
    Boolean,
    /// An integer within these bounds, in decimal.
    Integer { least: String, most: String },
    /// A number within these bounds, in decimal.
    Number {
        least: &'static str,
        most: &'static str,
    },
    /// A duration within these bounds.
    Duration(RangeInclusive<Duration>),
    /// A size within these bounds, in bytes.
    Size(RangeInclusive<u64>),
}

/// Every key that a reader requested, as a dotted path with [`NAME`] and [`ELEMENT`], with the
/// types that it accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeyTypes {
    keys: BTreeMap<String, Vec<ValueType>>,
}

impl KeyTypes {
    /// Records that the reader requested a key by its name.
    pub(super) fn add_key(&mut self, key: String) {
        self.keys.entry(key).or_default();
    }

    /// Records that the reader accepts this type.
    pub(super) fn add_type(&mut self, key: &str, form: ValueType) {
        let forms = self.keys.entry(key.to_owned()).or_default();
        if !forms.contains(&form) {
            forms.push(form);
        }
    }

    /// The forms of a key.
    pub(super) fn types_of(&self, key: &str) -> &[ValueType] {
        self.keys.get(key).map_or(&[], Vec::as_slice)
    }

    /// The names right below a key, in alphabetical order.
    pub(super) fn child_names(&self, key: &str) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .keys
            .keys()
            .filter_map(|path| match key {
                "" => Some(path.as_str()),
                _ => path.strip_prefix(key)?.strip_prefix('.'),
            })
            .filter_map(|rest| rest.split('.').next())
            .map(|name| name.trim_end_matches(ELEMENT))
            .filter(|name| !name.is_empty() && *name != NAME)
            .collect();
        names.dedup();
        names
    }

    /// The keys with a value: neither tables nor elements.
    #[cfg(test)]
    pub(super) fn values(&self) -> std::collections::BTreeSet<String> {
        let is_value =
            |forms: &Vec<ValueType>| !forms.iter().all(|form| matches!(form, ValueType::Table));
        self.keys
            .iter()
            .filter(|(key, forms)| {
                !key.contains(ELEMENT) && !key.ends_with(NAME) && is_value(forms)
            })
            .filter(|(key, _)| key.contains('.'))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Collects the whole format. The reader gets files in which every key that it requested has a
    /// value of a type that no key accepts, until it requests no new key.
    pub(super) fn collect() -> Self {
        Self::collect_from(|root| drop(read_config(root, &Origin::built_in("/".into()))))
    }

    /// The same of another format, by its reader.
    pub(super) fn collect_from(reader: impl Fn(&Section<'_>)) -> Self {
        let mut known = Self::default();
        // One round for each level of tables and arrays, and some to spare.
        for _ in 0..ROUNDS {
            let next = known.probe(&reader);
            if next == known {
                break;
            }
            known = next;
        }
        known
    }

    fn probe(&self, reader: impl Fn(&Section<'_>)) -> Self {
        let mut source = String::new();
        for name in self.child_names("") {
            source.push_str(name);
            source.push_str(" = ");
            self.write_probe_value(name, &mut source);
            source.push('\n');
        }
        let diagnostics = Diagnostics::new(SourceText::new(
            "probe".to_owned(),
            Arc::from(source.as_str()),
        ));
        let (tree, _) = DeTable::parse_recoverable(&source);
        reader(&Section::root(&diagnostics, tree.get_ref()));
        diagnostics.key_types()
    }

    /// A value for a key: a table of what is known below it, an array with one element, or a date.
    fn write_probe_value(&self, key: &str, out: &mut String) {
        let forms = self.types_of(key);
        if forms.contains(&ValueType::Array) {
            out.push('[');
            self.write_probe_value(&format!("{key}{ELEMENT}"), out);
            out.push(']');
        } else if forms.iter().any(|form| matches!(form, ValueType::Table)) {
            out.push('{');
            let named = forms
                .iter()
                .any(|form| matches!(form, ValueType::NamedTable(_)));
            let below = self.child_names(key);
            let named = named.then_some((ANY_NAME, NAME));
            let below = below.iter().map(|name| (*name, *name)).chain(named);
            for (at, (name, generic)) in below.enumerate() {
                if at > 0 {
                    out.push(',');
                }
                out.push_str(name);
                out.push('=');
                self.write_probe_value(&format!("{key}.{generic}"), out);
            }
            out.push('}');
        } else {
            out.push_str(DATE);
        }
    }
}

/// A value of a type that no key accepts.
const DATE: &str = "2026-01-01";

/// A name that every reader of names takes.
const ANY_NAME: &str = "x";

const ROUNDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_tells_the_forms_of_all_its_keys() {
        let forms = KeyTypes::collect();
        assert_eq!(
            forms.child_names(""),
            [
                "cache",
                "chat",
                "container",
                "delegate",
                "egress",
                "hint",
                "hook",
                "http",
                "policy",
                "pool",
                "price",
                "role",
                "route",
                "sandbox",
                "store",
                "supervisor",
                "template",
                "token",
                "workspace"
            ]
        );
        assert_eq!(forms.types_of("pool.NAME.command"), [ValueType::Array]);
        assert_eq!(forms.types_of("pool.NAME.command[]"), [ValueType::Text]);
        assert_eq!(
            forms.types_of("pool.NAME.size"),
            [ValueType::Integer {
                least: "1".to_owned(),
                most: "2048".to_owned()
            }]
        );
        let workspace = forms.types_of("pool.NAME.workspace");
        assert!(workspace.contains(&ValueType::Table) && workspace.len() == 2);
        let unknown: Vec<_> = forms
            .keys
            .iter()
            .filter(|(_, forms)| forms.is_empty())
            .collect();
        assert!(unknown.is_empty(), "keys without a form: {unknown:?}");
    }
}
