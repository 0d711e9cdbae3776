//! Canonical JSON: the form by which two differently spelled texts are compared.
//!
//! Object keys are sorted, white space is gone, strings are spelled one way. Numbers keep their
//! spelling: `1` and `1.0`, and two numbers that are one in 64 bits, may be different things to whoever
//! reads them. Text that two readers could read differently has no such form.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The limit of nested arrays and objects.
const DEEPEST: usize = 127;

/// Why a text has no canonical form. Safe to show: it contains nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalizeError {
    /// An object has a key twice: parsers differ about which one applies.
    #[error("an object has the same key twice")]
    DuplicateKey,
    /// A text with half of a surrogate pair, or no JSON at all.
    #[error("it is not JSON that every reader accepts")]
    Unreadable,
    /// Arrays and objects are nested too deep.
    #[error("arrays and objects are nested more than {DEEPEST} deep")]
    TooDeep,
}

/// The canonical form of a JSON text.
///
/// # Errors
/// [`CanonicalizeError`]
pub fn canonicalize(text: &RawValue) -> Result<String, CanonicalizeError> {
    let mut out = String::with_capacity(text.get().len());
    write_canonical(text.get(), 0, &mut out)?;
    Ok(out)
}

fn write_canonical(text: &str, depth: usize, out: &mut String) -> Result<(), CanonicalizeError> {
    let unreadable = |error: serde_json::Error| {
        if error.to_string().contains(DUPLICATE_KEY) {
            CanonicalizeError::DuplicateKey
        } else {
            CanonicalizeError::Unreadable
        }
    };
    if depth > DEEPEST {
        return Err(CanonicalizeError::TooDeep);
    }
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    match text.as_bytes().first() {
        Some(b'{') => {
            let object: Object<'_> = serde_json::from_str(text).map_err(unreadable)?;
            out.push('{');
            for (at, (key, value)) in object.0.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_quoted(&key, out);
                out.push(':');
                write_canonical(value.get(), depth + 1, out)?;
            }
            out.push('}');
        }
        Some(b'[') => {
            let array: Array<'_> = serde_json::from_str(text).map_err(unreadable)?;
            out.push('[');
            for (at, value) in array.0.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_canonical(value.get(), depth + 1, out)?;
            }
            out.push(']');
        }
        Some(b'"') => {
            let string: String = serde_json::from_str(text).map_err(unreadable)?;
            write_quoted(&string, out);
        }
        Some(_) => out.push_str(text),
        None => return Err(CanonicalizeError::Unreadable),
    }
    Ok(())
}

fn write_quoted(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// What the error of a key that is there twice says.
const DUPLICATE_KEY: &str = "the same key twice";

struct Object<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = BTreeMap::new();
                while let Some(key) = map.next_key()? {
                    if found.insert(key, map.next_value()?).is_some() {
                        return Err(A::Error::custom(DUPLICATE_KEY));
                    }
                }
                Ok(Object(found))
            }
        }
        from.deserialize_map(Keys)
    }
}

struct Array<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Array<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = Array<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut found = Vec::new();
                while let Some(item) = seq.next_element()? {
                    found.push(item);
                }
                Ok(Array(found))
            }
        }
        from.deserialize_seq(Items)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Result<String, CanonicalizeError> {
        canonicalize(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn the_same_thing_has_one_form() {
        let form = r#"{"a":"é\n/","b":[1,{"c":null,"d":true}]}"#;
        for text in [
            form,
            r#" { "b" : [ 1 , { "d":true, "c":null } ] , "a" : "\u00e9\n\/" } "#,
            "{\"b\":[1,{\"c\":null,\n\"d\":true}],\t\"\\u0061\":\"é\\u000A/\"}",
        ] {
            assert_eq!(of(text).as_deref(), Ok(form));
        }
        assert_eq!(of("[]").as_deref(), Ok("[]"));
        assert_eq!(of(" 7 ").as_deref(), Ok("7"));
    }

    #[test]
    fn other_things_have_other_forms() {
        let numbers = [
            "1",
            "1.0",
            "1e0",
            "-0",
            "0",
            "18446744073709551616",
            "18446744073709551617",
            "1.0000000000000000001",
            "1e400",
            "1e401",
            "\"1\"",
            "[1]",
            "null",
        ];
        let forms: std::collections::BTreeSet<_> =
            numbers.iter().map(|text| of(text).unwrap()).collect();
        assert_eq!(forms.len(), numbers.len(), "{forms:?}");
        assert_ne!(of(r#"{"a":"b"}"#), of(r#"{"a\":\"b":1}"#));
    }

    #[test]
    fn what_readers_read_differently_has_none() {
        for text in [
            r#"{"id":1,"id":2}"#,
            r#"{"a":[{"id":1,"\u0069d":1}]}"#,
            r#"{"":1,"":1}"#,
        ] {
            assert_eq!(of(text), Err(CanonicalizeError::DuplicateKey), "{text}");
        }
        assert_eq!(of(r#"{"v":"\ud800"}"#), Err(CanonicalizeError::Unreadable));
        assert_eq!(of(r#"{"\udc00":1}"#), Err(CanonicalizeError::Unreadable));
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(of(&deep(120)).is_ok());
        assert!(serde_json::from_str::<&RawValue>(&deep(200)).is_err() || of(&deep(200)).is_err());
    }

    /// A value as it is meant, with its numbers as they are spelled.
    #[derive(Debug, Clone, PartialEq)]
    enum Meant {
        Word(&'static str),
        Number(String),
        Text(String),
        List(Vec<Meant>),
        Members(BTreeMap<String, Meant>),
    }

    fn meant() -> impl Strategy<Value = Meant> {
        // Few letters, so that texts are often nearly alike; quotes, controls, pairs of surrogates.
        let text = proptest::string::string_regex("[ab\"\\\\/\n\u{1}\u{e9}\u{2028}\u{1f600}]{0,4}")
            .unwrap();
        let number = proptest::string::string_regex(
            "-?(0|[1-9][0-9]{0,21})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?",
        );
        let leaf = prop_oneof![
            prop::sample::select(vec!["null", "true", "false"]).prop_map(Meant::Word),
            number.unwrap().prop_map(Meant::Number),
            text.prop_map(Meant::Text),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = proptest::string::string_regex("[ab\"\u{e9}]{0,3}").unwrap();
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Meant::List),
                prop::collection::btree_map(key, inner, 0..4).prop_map(Meant::Members),
            ]
        })
    }

    /// Draws one of `count`, always the same for the same seed.
    fn draw(seed: &mut u64, count: usize) -> usize {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*seed >> 33).unwrap() % count
    }

    fn blank(seed: &mut u64, out: &mut String) {
        out.push_str(["", "", " ", "\t", "\r\n "][draw(seed, 5)]);
    }

    fn spell_text(text: &str, seed: &mut u64, out: &mut String) {
        use std::fmt::Write as _;
        out.push('"');
        for c in text.chars() {
            let must = c < ' ' || matches!(c, '"' | '\\');
            let short = match c {
                '"' | '\\' | '/' => Some(c),
                '\n' => Some('n'),
                _ => None,
            };
            match (draw(seed, 3), short) {
                (0, Some(short)) => out.extend(['\\', short]),
                (1, _) if !must => out.push(c),
                (way, _) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        if way == 0 {
                            write!(out, "\\u{unit:04x}").unwrap();
                        } else {
                            write!(out, "\\u{unit:04X}").unwrap();
                        }
                    }
                }
            }
        }
        out.push('"');
    }

    /// One of the many spellings of a value.
    fn spell(value: &Meant, seed: &mut u64, out: &mut String) {
        blank(seed, out);
        match value {
            Meant::Word(word) => out.push_str(word),
            Meant::Number(number) => out.push_str(number),
            Meant::Text(text) => spell_text(text, seed, out),
            Meant::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    spell(item, seed, out);
                }
                out.push(']');
            }
            Meant::Members(members) => {
                let mut left: Vec<_> = members.iter().collect();
                out.push('{');
                while !left.is_empty() {
                    let (key, value) = left.remove(draw(seed, left.len()));
                    blank(seed, out);
                    spell_text(key, seed, out);
                    blank(seed, out);
                    out.push(':');
                    spell(value, seed, out);
                    out.push_str(if left.is_empty() { "" } else { "," });
                }
                out.push('}');
            }
        }
        blank(seed, out);
    }

    fn spelled(value: &Meant, mut seed: u64) -> String {
        let mut out = String::new();
        spell(value, &mut seed, &mut out);
        out
    }

    /// The same value with one of its leaves, keys or items changed; always another one.
    fn changed(value: &Meant, seed: &mut u64) -> Meant {
        match value {
            Meant::Word(word) => Meant::Text((*word).to_owned()),
            Meant::Number(number) => match draw(seed, 2) {
                0 => Meant::Text(number.clone()),
                _ if number.contains(['.', 'e', 'E']) => Meant::Number(format!("{number}0")),
                _ => Meant::Number(format!("{number}.0")),
            },
            Meant::Text(text) => Meant::Text(format!("{text}a")),
            Meant::List(items) => {
                let mut items = items.clone();
                match draw(seed, items.len() + 1) {
                    at if at < items.len() => items[at] = changed(&items[at], seed),
                    _ => items.push(Meant::Word("null")),
                }
                Meant::List(items)
            }
            Meant::Members(members) => {
                let mut members = members.clone();
                let at = draw(seed, members.len() + 1);
                match members.keys().nth(at).cloned() {
                    Some(key) if draw(seed, 2) == 0 => {
                        let value = changed(&members[&key], seed);
                        members.insert(key, value);
                    }
                    Some(key) => {
                        members.remove(&key);
                    }
                    None => {
                        members.insert("not there".to_owned(), Meant::Word("null"));
                    }
                }
                Meant::Members(members)
            }
        }
    }

    proptest! {
        #[test]
        fn every_spelling_of_a_value_has_the_same_form(value in meant(), one: u64, other: u64) {
            let (one, other) = (spelled(&value, one), spelled(&value, other));
            let form = of(&one);
            prop_assert!(form.is_ok(), "{one}: {form:?}");
            prop_assert_eq!(&form, &of(&other), "{} and {}", one, other);
            let form = form.unwrap();
            prop_assert_eq!(of(&form).unwrap(), form, "the form is its own form");
        }

        #[test]
        fn a_changed_value_has_another_form(value in meant(), mut how: u64, one: u64, other: u64) {
            let changed = changed(&value, &mut how);
            prop_assert_ne!(&value, &changed);
            let (one, other) = (spelled(&value, one), spelled(&changed, other));
            prop_assert_ne!(of(&one).unwrap(), of(&other).unwrap(), "{} and {}", one, other);
        }

        #[test]
        fn two_values_have_one_form_only_if_they_are_one(one in meant(), other in meant(), seed: u64) {
            let (a, b) = (of(&spelled(&one, seed)).unwrap(), of(&spelled(&other, !seed)).unwrap());
            prop_assert_eq!(one == other, a == b, "{} and {}", a, b);
        }
    }
}
