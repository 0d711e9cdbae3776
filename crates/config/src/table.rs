//! Reads values from the parsed TOML tree with their types, bounds and places, and records every
//! fault instead of stopping at the first.
//!
//! Must not know what any key means.

mod diagnostics;

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

pub(super) use super::error::one_of;
use super::error::quote;
use super::key_types::{ELEMENT, ValueType};
use super::nearest::nearest;
use super::units;
pub(super) use diagnostics::{Diagnostics, Place};
use marshal_model::limits;

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// A closed set of words that a key may have as its value.
pub(super) trait Keyword: Copy + 'static {
    /// Every member.
    const MEMBERS: &'static [Self];
    /// The member as it is written.
    fn as_keyword(self) -> &'static str;
}

/// Makes [`Keyword`]s of enums declared by `string_enum!`.
macro_rules! keywords {
    ($($name:ty),+ $(,)?) => {
        $(impl $crate::table::Keyword for $name {
            const MEMBERS: &'static [Self] = Self::ALL;
            fn as_keyword(self) -> &'static str { self.as_str() }
        })+
    };
}
pub(super) use keywords;

/// A table that may be absent: all keys of an absent table are absent.
pub(super) struct Section<'a> {
    pub(super) diagnostics: &'a Diagnostics,
    table: Option<&'a DeTable<'a>>,
    /// Another table whose keys apply where this table has none.
    fallback: Option<Fallback<'a>>,
    /// The table's header or braces.
    pub(super) place: Place,
    /// The path with `NAME_FORM` for chosen names.
    generic: String,
    known: RefCell<Vec<&'static str>>,
}

/// A table of another text, and the span in this text that refers to it: its faults are shown
/// there.
#[derive(Clone)]
struct Fallback<'a> {
    table: &'a DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Fallback<'a> {
    fn get(&self, name: &str) -> Option<&'a DeValue<'a>> {
        self.table.get(name).map(Spanned::get_ref)
    }

    /// The table of that name in it.
    fn table(&self, name: &str) -> Option<Self> {
        match self.get(name)? {
            DeValue::Table(table) => Some(Self {
                table,
                span: self.span.clone(),
            }),
            _ => None,
        }
    }
}

/// One entry of a table.
#[derive(Clone)]
pub(super) struct Entry<'a> {
    diagnostics: &'a Diagnostics,
    pub(super) place: Place,
    generic: String,
    value: &'a DeValue<'a>,
    /// Whether it comes from another text.
    is_fallback: bool,
    /// Another table whose keys apply where this one, a table, has none.
    fallback: Option<Fallback<'a>>,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn root(diagnostics: &'a Diagnostics, table: &'a DeTable<'a>) -> Self {
        Self {
            diagnostics,
            table: Some(table),
            fallback: None,
            place: Place {
                key: String::new(),
                span: 0..0,
            },
            generic: String::new(),
            known: RefCell::default(),
        }
    }

    fn entry(
        &self,
        generic: &str,
        (key, value): (&'a Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>),
    ) -> Entry<'a> {
        let place = Place {
            key: join_path(&self.place.key, key.get_ref()),
            // Tables made by dotted keys have no span of their own.
            span: if value.span().is_empty() {
                key.span()
            } else {
                value.span()
            },
        };
        let mut places = self.diagnostics.spans.borrow_mut();
        places.insert(place.key.clone(), place.span.clone());
        Entry {
            diagnostics: self.diagnostics,
            place,
            generic: join_path(&self.generic, generic),
            value: value.get_ref(),
            is_fallback: false,
            fallback: self
                .fallback
                .as_ref()
                .and_then(|below| below.table(key.get_ref())),
        }
    }

    /// The same table with keys of another text as defaults. `span` is the place in this text that
    /// refers to them.
    pub(super) fn with_fallback(mut self, table: &'a DeTable<'a>, span: Range<usize>) -> Self {
        self.fallback = Some(Fallback { table, span });
        self
    }

    /// Whether the file has it at all.
    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// The entry of that name in the fallback.
    fn fallback_entry(&self, name: &str, generic: &str) -> Option<Entry<'a>> {
        let below = self.fallback.as_ref()?;
        let value = below.get(name)?;
        let place = Place {
            key: join_path(&self.place.key, name),
            span: below.span.clone(),
        };
        let mut places = self.diagnostics.spans.borrow_mut();
        places.insert(place.key.clone(), place.span.clone());
        Some(Entry {
            diagnostics: self.diagnostics,
            place,
            generic: join_path(&self.generic, generic),
            value,
            is_fallback: true,
            fallback: None,
        })
    }

    /// The entry of that name.
    pub(super) fn get(&self, name: &'static str) -> Option<Entry<'a>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
        drop(known);
        let mut forms = self.diagnostics.key_types.borrow_mut();
        forms.add_key(join_path(&self.generic, name));
        drop(forms);
        match self.table.and_then(|table| table.get_key_value(name)) {
            Some(found) => Some(self.entry(name, found)),
            None => self.fallback_entry(name, name),
        }
    }

    /// Every entry of a table whose keys the file chooses, in the order of the file. `names` is the
    /// pattern of the keys, for the schema; the caller checks them.
    pub(super) fn named_entries(&self, names: &'static str) -> Vec<(String, Entry<'a>)> {
        self.diagnostics
            .record_type(&self.generic, ValueType::NamedTable(names));
        let mut entries: Vec<_> = self.table.into_iter().flat_map(DeTable::iter).collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut named: Vec<_> = entries
            .into_iter()
            .map(|entry| (entry.0.get_ref().to_string(), self.entry("NAME", entry)))
            .collect();
        let below = self.fallback.iter().flat_map(|below| below.table.keys());
        for name in below.map(|name| name.get_ref().to_string()) {
            if named.iter().all(|(own, _)| *own != name)
                && let Some(item) = self.fallback_entry(&name, "NAME")
            {
                named.push((name, item));
            }
        }
        named
    }

    /// A sub-table; an absent one is empty.
    pub(super) fn section(&self, name: &'static str) -> Section<'a> {
        self.get(name)
            .and_then(|item| item.section())
            .unwrap_or_else(|| Section {
                diagnostics: self.diagnostics,
                table: None,
                fallback: None,
                place: Place {
                    key: join_path(&self.place.key, name),
                    span: self.place.span.clone(),
                },
                generic: join_path(&self.generic, name),
                known: RefCell::default(),
            })
    }

    pub(super) fn boolean(&self, name: &'static str) -> Option<Located<bool>> {
        self.get(name)?.boolean()
    }

    pub(super) fn integer<N: TryFrom<i128> + Display + PartialOrd>(
        &self,
        name: &'static str,
        bounds: RangeInclusive<N>,
    ) -> Option<Located<N>> {
        self.get(name)?.integer(&bounds)
    }

    pub(super) fn duration(
        &self,
        name: &'static str,
        bounds: RangeInclusive<Duration>,
    ) -> Option<Located<Duration>> {
        let item = self.get(name)?;
        item.duration(&bounds).map(|value| item.with_place(value))
    }

    /// The place of a key, if the file has it.
    pub(super) fn place_of(&self, name: &'static str) -> Option<Place> {
        self.get(name).map(|item| item.place)
    }

    pub(super) fn size(
        &self,
        name: &'static str,
        bounds: RangeInclusive<u64>,
    ) -> Option<Located<u64>> {
        self.get(name)?.size(&bounds)
    }

    /// A word of a closed set; `later` are words of the format that this version does not support.
    pub(super) fn keyword<W: Keyword>(
        &self,
        name: &'static str,
        later: &[&str],
    ) -> Option<Located<W>> {
        self.get(name)?.keyword(later)
    }

    pub(super) fn texts(&self, name: &'static str) -> Option<Located<Vec<Located<String>>>> {
        self.get(name)?.texts(&ValueType::Text)
    }

    /// Strings that the caller checks; `pattern` is the schema's pattern of each.
    pub(super) fn texts_like(
        &self,
        name: &'static str,
        pattern: &'static str,
    ) -> Option<Located<Vec<Located<String>>>> {
        self.get(name)?.texts(&ValueType::Pattern(pattern))
    }

    /// Refuses every entry that was not requested. `later` are keys of the format that this version
    /// does not support; `elsewhere` are keys of another table, with their path.
    pub(super) fn reject_unknown_keys(&self, later: &[&str], elsewhere: &[(&str, &str)]) {
        let known = self.known.borrow();
        for (key, value) in self.table.into_iter().flat_map(DeTable::iter) {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let mut place = self.entry("NAME", (key, value)).place;
            if !key.span().is_empty() {
                place.span = key.span();
            }
            if later.contains(&name) {
                let message = format!("the key {} is not supported by this version", quote(name));
                self.diagnostics.report(&place, message, None);
                continue;
            }
            let moved = elsewhere.iter().find(|(from, _)| *from == name);
            let near = nearest(name, known.iter().copied());
            let help = match (moved, near) {
                (Some((_, to)), _) => format!("did you mean {to}?"),
                (None, Some(near)) => format!("did you mean {near}?"),
                (None, None) => format!("known here: {}", known.join(", ")),
            };
            let message = format!("unknown key {}", quote(name));
            self.diagnostics.report(&place, message, Some(help));
        }
    }
}

impl<'a> Entry<'a> {
    fn with_place<T>(&self, value: T) -> Located<T> {
        Located {
            value,
            place: self.place.clone(),
        }
    }

    /// Records that the value is not what was expected.
    pub(super) fn report_unexpected<T>(&self, expected: &str) -> Option<T> {
        let found = match self.value {
            DeValue::String(text) => quote(text),
            DeValue::Integer(_) => format!("the integer {}", self.source_text()),
            DeValue::Float(_) => format!("the float {}", self.source_text()),
            DeValue::Boolean(_) => format!("the boolean {}", self.source_text()),
            DeValue::Datetime(_) => "a date or time".to_owned(),
            DeValue::Array(_) => "an array".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        let message = format!("expected {expected}, found {found}");
        self.diagnostics.report(&self.place, message, None);
        None
    }

    /// Records a fault of the value.
    pub(super) fn report(&self, message: impl Display, help: Option<String>) {
        self.diagnostics.report(&self.place, message, help);
    }

    /// The value as the file has it.
    fn source_text(&self) -> &str {
        let source = &self.diagnostics.text.source;
        source.get(self.place.span.clone()).unwrap_or("")
    }

    /// The raw value, for a key with a special form.
    pub(super) fn value(&self) -> &'a DeValue<'a> {
        self.value
    }

    /// Whether it comes from the fallback, not from the file.
    pub(super) fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// Whether it is a table at all.
    pub(super) fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    /// Records a type of the value for the schema.
    pub(super) fn record_type(&self, form: ValueType) {
        self.diagnostics.record_type(&self.generic, form);
    }

    /// The table, if it is one; another reader parses its keys.
    pub(super) fn open_table(&self) -> Option<&'a DeTable<'a>> {
        self.record_type(ValueType::OpenTable);
        match self.value {
            DeValue::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The table.
    pub(super) fn section(&self) -> Option<Section<'a>> {
        self.record_type(ValueType::Table);
        let DeValue::Table(table) = self.value else {
            return self.report_unexpected("a table");
        };
        let below = self.is_fallback.then(|| Fallback {
            table,
            span: self.place.span.clone(),
        });
        Some(Section {
            diagnostics: self.diagnostics,
            table: (!self.is_fallback).then_some(table),
            fallback: below.or_else(|| self.fallback.clone()),
            place: self.place.clone(),
            generic: self.generic.clone(),
            known: RefCell::default(),
        })
    }

    /// A string that can be an argument, a path or an environment value.
    pub(super) fn text(&self) -> Option<Located<String>> {
        self.text_as(ValueType::Text)
    }

    /// A string that the caller checks; `pattern` is the schema's pattern of it.
    pub(super) fn text_like(&self, pattern: &'static str) -> Option<Located<String>> {
        self.text_as(ValueType::Pattern(pattern))
    }

    /// A string that the caller looks up in `words`.
    pub(super) fn text_among(&self, words: &[&'static str]) -> Option<Located<String>> {
        self.text_as(ValueType::Enum(words.to_vec()))
    }

    fn text_as(&self, form: ValueType) -> Option<Located<String>> {
        self.record_type(form);
        let DeValue::String(text) = self.value else {
            return self.report_unexpected("a string");
        };
        if text.contains('\0') {
            let message = "a NUL character cannot be part of an argument, path or value";
            self.diagnostics.report(&self.place, message, None);
            return None;
        }
        if text.len() > limits::CONFIG_TEXT_BYTES {
            let most = limits::CONFIG_TEXT_BYTES;
            let message = format!(
                "the text has {} bytes, at most {most} are allowed",
                text.len()
            );
            self.diagnostics.report(&self.place, message, None);
            return None;
        }
        Some(self.with_place(text.to_string()))
    }

    fn boolean(&self) -> Option<Located<bool>> {
        self.record_type(ValueType::Boolean);
        match self.value {
            DeValue::Boolean(value) => Some(self.with_place(*value)),
            _ => self.report_unexpected("true or false"),
        }
    }

    /// True or false, where a string could be as well.
    pub(super) fn boolean_value(&self) -> Option<bool> {
        self.boolean().map(|found| found.value)
    }

    /// A string, where true or false could be as well.
    pub(super) fn text_or_boolean(&self) -> Option<String> {
        self.record_type(ValueType::Boolean);
        self.text().map(|found| found.value)
    }

    pub(super) fn integer<N: TryFrom<i128> + Display + PartialOrd>(
        &self,
        bounds: &RangeInclusive<N>,
    ) -> Option<Located<N>> {
        self.record_type(ValueType::Integer {
            least: bounds.start().to_string(),
            most: bounds.end().to_string(),
        });
        let expected = format!("an integer from {} to {}", bounds.start(), bounds.end());
        let DeValue::Integer(integer) = self.value else {
            return self.report_unexpected(&expected);
        };
        i128::from_str_radix(integer.as_str(), integer.radix())
            .ok()
            .and_then(|value| N::try_from(value).ok())
            .filter(|value| bounds.contains(value))
            .map(|value| self.with_place(value))
            .or_else(|| self.report_unexpected(&expected))
    }

    pub(super) fn duration(&self, bounds: &RangeInclusive<Duration>) -> Option<Duration> {
        self.duration_or(bounds, "")
    }

    /// A duration, or `"none"`.
    pub(super) fn duration_or_none(
        &self,
        bounds: &RangeInclusive<Duration>,
    ) -> Option<Located<Option<Duration>>> {
        self.record_type(ValueType::Enum(vec!["none"]));
        let found = match self.value {
            DeValue::String(text) if text == "none" => None,
            _ => Some(self.duration_or(bounds, ", or \"none\"")?),
        };
        Some(self.with_place(found))
    }

    fn duration_or(&self, bounds: &RangeInclusive<Duration>, or: &str) -> Option<Duration> {
        self.record_type(ValueType::Duration(bounds.clone()));
        let DeValue::String(text) = self.value else {
            return self.report_unexpected(&format!("{}{or}", units::DURATION_EXPECTED));
        };
        match units::parse_duration(text) {
            Ok(value) if bounds.contains(&value) => Some(value),
            Ok(_) => {
                let (least, most) = (
                    units::show_duration(*bounds.start()),
                    units::show_duration(*bounds.end()),
                );
                self.report_unexpected(&format!("a duration from {least} to {most}{or}"))
            }
            Err(message) => {
                let message = format!("{message}{or}, found {}", quote(text));
                self.diagnostics.report(&self.place, message, None);
                None
            }
        }
    }

    pub(super) fn size(&self, bounds: &RangeInclusive<u64>) -> Option<Located<u64>> {
        self.record_type(ValueType::Size(bounds.clone()));
        let DeValue::String(text) = self.value else {
            return self.report_unexpected(units::SIZE_EXPECTED);
        };
        match units::parse_size(text) {
            Ok(value) if bounds.contains(&value) => Some(self.with_place(value)),
            Ok(_) => {
                let (least, most) = (
                    units::show_size(*bounds.start()),
                    units::show_size(*bounds.end()),
                );
                self.report_unexpected(&format!("a size from {least} to {most}"))
            }
            Err(message) => {
                let message = format!("{message}, found {}", quote(text));
                self.diagnostics.report(&self.place, message, None);
                None
            }
        }
    }

    /// A word of a closed set.
    pub(super) fn keyword<W: Keyword>(&self, later: &[&str]) -> Option<Located<W>> {
        let words: Vec<_> = W::MEMBERS
            .iter()
            .map(|member| member.as_keyword())
            .collect();
        self.record_type(ValueType::Enum(words.clone()));
        let expected = one_of(&words);
        let DeValue::String(text) = self.value else {
            return self.report_unexpected(&expected);
        };
        let member = W::MEMBERS.iter().find(|member| member.as_keyword() == text);
        if let Some(member) = member {
            return Some(self.with_place(*member));
        }
        self.report_unknown(text, &words, later, &expected);
        None
    }

    /// Records a word outside of its set: one of a later version, a typo, or something else.
    pub(super) fn report_unknown(
        &self,
        word: &str,
        words: &[&str],
        later: &[&str],
        expected: &str,
    ) {
        if later.contains(&word) {
            let message = format!(
                "{} is not supported by this version: expected {expected}",
                quote(word)
            );
            self.diagnostics.report(&self.place, message, None);
            return;
        }
        let message = format!("expected {expected}, found {}", quote(word));
        let help = nearest(word, words.iter().copied()).map(|near| format!("did you mean {near}?"));
        self.diagnostics.report(&self.place, message, help);
    }

    /// An array of strings. An element that is not a string is reported and omitted.
    fn texts(&self, form: &ValueType) -> Option<Located<Vec<Located<String>>>> {
        let items = self.elements("an array of strings")?;
        let texts = items.iter().filter_map(|item| item.text_as(form.clone()));
        Some(self.with_place(texts.collect()))
    }

    /// Strings that the caller checks, each with its entry; `pattern` is the schema's pattern of each.
    pub(super) fn texts_like(&self, pattern: &'static str) -> Option<Vec<(String, Entry<'a>)>> {
        let items = self.elements("an array of strings")?;
        let text = |item: Entry<'a>| Some((item.text_like(pattern)?.value, item));
        Some(items.into_iter().filter_map(text).collect())
    }

    /// The elements of an array.
    pub(super) fn elements(&self, expected: &str) -> Option<Vec<Entry<'a>>> {
        self.record_type(ValueType::Array);
        let DeValue::Array(array) = self.value else {
            return self.report_unexpected(expected);
        };
        if array.len() > limits::CONFIG_LIST {
            let (has, most) = (array.len(), limits::CONFIG_LIST);
            let message = format!("the array has {has} elements, at most {most} are allowed");
            self.diagnostics.report(&self.place, message, None);
            return None;
        }
        let item = |(at, value): (usize, &'a Spanned<DeValue<'a>>)| Entry {
            diagnostics: self.diagnostics,
            place: Place {
                key: format!("{}[{at}]", self.place.key),
                span: if self.is_fallback {
                    self.place.span.clone()
                } else {
                    value.span()
                },
            },
            generic: format!("{}{ELEMENT}", self.generic),
            value: value.get_ref(),
            is_fallback: self.is_fallback,
            fallback: None,
        };
        Some(array.iter().enumerate().map(item).collect())
    }
}

fn join_path(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
