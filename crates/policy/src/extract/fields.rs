//! Reads a tool call's JSON strictly, and finds the fields in it.
//!
//! Anything that two readers could read differently, such as a duplicate key, is rejected. Must not
//! know what a field means.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::ToolError;

/// The place of a field: names of members, from the outside in; `name[]` is every element of a
/// list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    name: String,
    /// Whether it continues in every element of the list at this place.
    each: bool,
}

impl FieldPath {
    /// Reads `rawInput.path` or `locations[].path`.
    pub(super) fn parse(text: &str) -> Result<Self, ToolError> {
        let step = |part: &str| {
            let (name, each) = match part.strip_suffix("[]") {
                Some(name) => (name, true),
                None => (part, false),
            };
            let fits = !name.is_empty() && !name.contains(['[', ']']);
            fits.then(|| Step {
                name: name.to_owned(),
                each,
            })
        };
        let steps: Option<Vec<_>> = text.split('.').map(step).collect();
        match steps {
            Some(steps) if steps.last().is_some_and(|last| !last.each) => Ok(Self(steps)),
            _ => Err(ToolError::FieldPath(text.to_owned())),
        }
    }
}

impl FieldPath {
    /// Whether it continues in the elements of a list.
    pub(super) fn has_list_step(&self) -> bool {
        self.0.iter().any(|step| step.each)
    }

    /// The JSON pointer to the place.
    pub(super) fn pointer(&self) -> String {
        let step = |step: &Step| format!("/{}", step.name.replace('~', "~0").replace('/', "~1"));
        self.0.iter().map(step).collect()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            let dot = if at > 0 { "." } else { "" };
            let each = if step.each { "[]" } else { "" };
            write!(f, "{dot}{}{each}", step.name)?;
        }
        Ok(())
    }
}

/// The members of one call.
#[derive(Debug)]
pub(super) struct Fields(HashMap<String, Field>);

/// A value; of numbers and booleans only the presence is recorded.
#[derive(Debug)]
pub(super) enum Field {
    Text(String),
    Null,
    List(Vec<Self>),
    Object(Fields),
    Other,
}

/// A value found at a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum FieldRef<'a> {
    Text(&'a str),
    List(&'a [Field]),
    Other,
}

/// What is wrong with a value, as the end of a sentence about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    /// It is no text.
    #[error("is no string")]
    NotText,
    /// It has a character that ends a text for the kernel.
    #[error("has a NUL in it")]
    Nul,
    /// It has no visible character.
    #[error("is blank")]
    Blank,
    /// An array of words without any.
    #[error("is empty")]
    NoWords,
    /// An array of words whose first is blank.
    #[error("names no program")]
    NoProgram,
    /// An array with something other than words.
    #[error("is not an array of strings")]
    NotWords,
    /// The member of this name has another type: what is wrong with it.
    #[error("has a `{0}` that {1}")]
    Member(String, &'static str),
}

impl ValueError {
    /// The same error with the place of the value.
    pub(super) fn at(self, place: &FieldPath) -> FieldError {
        FieldError(place.clone(), self)
    }
}

/// The value at a place is wrong.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` {1}")]
pub(super) struct FieldError(FieldPath, ValueError);

impl FieldRef<'_> {
    /// The value as text.
    pub(super) fn to_text(self) -> Result<String, ValueError> {
        match self {
            Self::List(_) | Self::Other => Err(ValueError::NotText),
            Self::Text(text) if text.contains('\0') => Err(ValueError::Nul),
            Self::Text(text) if text.trim().is_empty() => Err(ValueError::Blank),
            Self::Text(text) => Ok(text.to_owned()),
        }
    }
}

impl Fields {
    /// The values at a place; a member that is `null` counts as missing.
    pub(super) fn find(&self, place: &FieldPath) -> Result<Vec<FieldRef<'_>>, FieldError> {
        let mut found = Vec::new();
        self.collect_values(&place.0, &mut found)
            .map_err(|what| what.at(place))?;
        Ok(found)
    }

    /// Whether an object of that name is present.
    pub(super) fn has_object(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Field::Object(_)))
    }

    /// Whether the object of that name has a member, at any depth, that none of the places is or
    /// leads to. A member that is `null` counts as missing.
    pub(super) fn has_unlisted_members(&self, object: &str, known: &[FieldPath]) -> bool {
        let Some(Field::Object(inner)) = self.0.get(object) else {
            return false;
        };
        let below = known
            .iter()
            .filter_map(|place| match place.0.split_first() {
                Some((step, rest)) if step.name == object => Some(rest),
                _ => None,
            });
        inner.has_unlisted_below(&below.collect::<Vec<_>>())
    }

    fn has_unlisted_below(&self, known: &[&[Step]]) -> bool {
        self.0.iter().any(|(name, value)| {
            if matches!(value, Field::Null) {
                return false;
            }
            let of_name = known.iter().filter_map(|steps| match steps.split_first() {
                Some((step, rest)) if step.name == *name => Some(rest),
                _ => None,
            });
            let below: Vec<_> = of_name.collect();
            match value {
                _ if below.iter().any(|rest| rest.is_empty()) => false,
                Field::Object(inner) if !below.is_empty() => inner.has_unlisted_below(&below),
                _ => true,
            }
        })
    }

    fn collect_values<'a>(
        &'a self,
        steps: &[Step],
        found: &mut Vec<FieldRef<'a>>,
    ) -> Result<(), ValueError> {
        let Some((step, rest)) = steps.split_first() else {
            return Ok(());
        };
        let value = match self.0.get(&step.name) {
            None | Some(Field::Null) => return Ok(()),
            Some(value) => value,
        };
        let wrong = |what| ValueError::Member(step.name.clone(), what);
        match (value, step.each) {
            (Field::Object(inner), false) if !rest.is_empty() => inner.collect_values(rest, found),
            (Field::List(items), true) => items.iter().try_for_each(|item| match item {
                Field::Object(inner) => inner.collect_values(rest, found),
                _ => Err(wrong("contains something else")),
            }),
            (_, true) => Err(wrong("is not a list")),
            (_, false) if !rest.is_empty() => Err(wrong("is not an object")),
            (value, false) => {
                found.push(match value {
                    Field::Text(text) => FieldRef::Text(text),
                    Field::List(items) => FieldRef::List(items),
                    Field::Null | Field::Object(_) | Field::Other => FieldRef::Other,
                });
                Ok(())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = HashMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value::<Field>()?;
                    if fields.insert(key, value).is_some() {
                        return Err(A::Error::custom("a key appears twice"));
                    }
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Field;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Field, E> {
                Ok(Field::Text(text.to_owned()))
            }

            fn visit_unit<E>(self) -> Result<Field, E> {
                Ok(Field::Null)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element::<Field>()? {
                    items.push(item);
                }
                Ok(Field::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field, A::Error> {
                // Duplicates inside are rejected as well.
                let inner = serde::de::value::MapAccessDeserializer::new(map);
                Fields::deserialize(inner).map(Field::Object)
            }
        }

        deserializer.deserialize_any(Any)
    }
}
