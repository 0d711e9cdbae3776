//! The members of a request's parameters, known and unknown.
//!
//! A request is evaluated closed: an unknown member could change what runs. Must not know what a
//! member means.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::lenient::{parse, parse_string};
use marshal_model::UntrustedText;
use marshal_wire::json::JsonString;

/// The maximum number of members of parameters: the longest of the schema has fifteen.
const MOST: usize = 64;

/// The members of an object, without duplicates.
#[derive(Debug)]
pub(super) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        raw.get().starts_with('{').then(|| parse(raw))?
    }

    /// A member's value; `None` if it is `null`.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().find(|(item, _)| item == name);
        found.map(|(_, raw)| *raw).filter(|raw| raw.get() != "null")
    }

    /// A member that is a string.
    pub(super) fn text(&self, name: &str) -> Option<UntrustedText> {
        parse_string(self.get(name))
    }

    /// Whether a member that should be a string has another type.
    pub(super) fn is_not_string(&self, name: &str) -> bool {
        self.get(name).is_some() && self.text(name).is_none()
    }

    /// The members that are not in `known`.
    pub(super) fn others(&self, known: &[&str]) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0
            .iter()
            .filter(|(name, raw)| !known.contains(&name.as_ref()) && raw.get() != "null")
            .map(|(name, raw)| (name.as_ref(), *raw))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some(name) = map.next_key::<JsonString<'de>>()? {
                    let value = map.next_value::<&'de RawValue>()?;
                    if found.len() >= MOST || found.iter().any(|(item, _)| *item == name.0) {
                        return Err(A::Error::custom("too many members, or one twice"));
                    }
                    found.push((name.0, value));
                }
                Ok(Members(found))
            }
        }
        reader.deserialize_map(Object)
    }
}
