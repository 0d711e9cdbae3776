//! Lenient reading of members: numbers of any numeric form, lists that are read only up to a bound,
//! and values that may have another type.
//!
//! Must not know any protocol's messages.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use marshal_model::{UntrustedText, limits};
use marshal_wire::json;

/// A count: any JSON number; negative ones become 0, fractions are cut, `null` is 0.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count(pub(super) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<u64, E> {
                Ok(n)
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<u64, E> {
                Ok(u64::try_from(n).unwrap_or(0))
            }

            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a float cast saturates, which is what is wanted of nonsense"
            )]
            fn visit_f64<E: Error>(self, n: f64) -> Result<u64, E> {
                Ok(n as u64)
            }

            fn visit_unit<E: Error>(self) -> Result<u64, E> {
                Ok(0)
            }
        }
        reader.deserialize_any(Number).map(Self)
    }
}

/// The first `N` items of a list, so that a long list does not cost a multiple of its bytes.
#[derive(Debug, Default)]
pub(super) struct BoundedList<'a, const N: usize> {
    pub(super) items: Vec<&'a RawValue>,
    /// How many further items the list has.
    pub(super) omitted: usize,
}

impl<'de: 'a, 'a, const N: usize> Deserialize<'de> for BoundedList<'a, N> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Items<const N: usize>;
        impl<'de, const N: usize> Visitor<'de> for Items<N> {
            type Value = BoundedList<'de, N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut front = BoundedList::default();
                while front.items.len() < N {
                    match list.next_element()? {
                        Some(item) => front.items.push(item),
                        None => return Ok(front),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    front.omitted += 1;
                }
                Ok(front)
            }
        }
        reader.deserialize_seq(Items::<N>)
    }
}

/// A raw value of that type; `None` if it has another type.
pub(super) fn parse<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// A raw value that is an object, read by its members. A list of their values in the right order,
/// which serde would also accept for a struct, is rejected.
pub(super) fn parse_object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    raw.get().starts_with('{').then(|| parse(raw))?
}

/// A raw value that is a string.
pub(super) fn parse_string(raw: Option<&RawValue>) -> Option<UntrustedText> {
    parse::<String>(raw?).map(UntrustedText::new)
}

/// A raw value that is a usable id: a string that is neither empty nor too long.
pub(super) fn parse_id(raw: Option<&RawValue>) -> Option<UntrustedText> {
    parse_string(raw).filter(|id| !id.is_empty() && id.len() <= limits::FOREIGN_ID_BYTES)
}

/// A raw value to pass on; `null` if there is none.
pub(super) fn raw_or_null(raw: Option<&RawValue>) -> Box<RawValue> {
    raw.map_or_else(json::null_value, ToOwned::to_owned)
}
