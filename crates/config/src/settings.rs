//! Tables whose keys stand for themselves: one declaration a key makes its field, its default, the
//! reader with its bounds, the type in the schema, and what `config show` prints.
//!
//! Must not know any key. A key that has to agree with another one is checked by the owner of its
//! table.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Value;

use super::table::{self, Entry, Section};
use super::units::{show_duration, show_size};

/// How the value of a key is written in the file.
pub(crate) trait Format<T> {
    /// Reads it; a fault is reported, and gives nothing.
    fn read(&self, item: &Entry<'_>) -> Option<T>;

    /// The value as the file has it; `None`: the key is not shown.
    fn show(&self, value: &T) -> Option<Value>;
}

/// Any positive time: the shortest is the resolution of a timer.
pub(crate) const ANY_TIME: RangeInclusive<Duration> =
    Duration::from_millis(1)..=marshal_model::limits::CONFIG_DURATION;

/// A duration within bounds.
pub(crate) struct Time(pub(crate) RangeInclusive<Duration>);

impl Format<Duration> for Time {
    fn read(&self, item: &Entry<'_>) -> Option<Duration> {
        item.duration(&self.0)
    }

    fn show(&self, value: &Duration) -> Option<Value> {
        Some(show_duration(*value).into())
    }
}

/// A duration within bounds, or `"none"`.
pub(crate) struct TimeOrNone(pub(crate) RangeInclusive<Duration>);

impl Format<Option<Duration>> for TimeOrNone {
    fn read(&self, item: &Entry<'_>) -> Option<Option<Duration>> {
        item.duration_or_none(&self.0).map(|found| found.value)
    }

    fn show(&self, value: &Option<Duration>) -> Option<Value> {
        let text = value.map_or_else(|| "none".to_owned(), show_duration);
        Some(text.into())
    }
}

/// A number of bytes within bounds.
pub(crate) struct Size(pub(crate) RangeInclusive<u64>);

impl Format<u64> for Size {
    fn read(&self, item: &Entry<'_>) -> Option<u64> {
        item.size(&self.0).map(|found| found.value)
    }

    fn show(&self, value: &u64) -> Option<Value> {
        Some(show_size(*value).into())
    }
}

/// An integer within bounds.
pub(crate) struct Integer<N>(pub(crate) RangeInclusive<N>);

impl<N> Format<N> for Integer<N>
where
    N: TryFrom<i128> + TryInto<i64> + Display + PartialOrd + Copy,
{
    fn read(&self, item: &Entry<'_>) -> Option<N> {
        item.integer(&self.0).map(|found| found.value)
    }

    fn show(&self, value: &N) -> Option<Value> {
        // The bounds keep every value far below this.
        Some((*value).try_into().unwrap_or(i64::MAX).into())
    }
}

/// A word of a closed set.
pub(crate) struct Keyword;

impl<W: table::Keyword> Format<W> for Keyword {
    fn read(&self, item: &Entry<'_>) -> Option<W> {
        item.keyword(&[]).map(|found| found.value)
    }

    fn show(&self, value: &W) -> Option<Value> {
        Some(value.as_keyword().into())
    }
}

/// True or false.
pub(crate) struct Switch;

impl Format<bool> for Switch {
    fn read(&self, item: &Entry<'_>) -> Option<bool> {
        item.boolean_value()
    }

    fn show(&self, value: &bool) -> Option<Value> {
        Some((*value).into())
    }
}

/// A string.
pub(crate) struct Text;

impl Format<String> for Text {
    fn read(&self, item: &Entry<'_>) -> Option<String> {
        item.text().map(|found| found.value)
    }

    fn show(&self, value: &String) -> Option<Value> {
        Some(value.as_str().into())
    }
}

/// A string that the owner of the table checks; the pattern is the schema's.
pub(crate) struct Pattern(pub(crate) &'static str);

impl Format<String> for Pattern {
    fn read(&self, item: &Entry<'_>) -> Option<String> {
        item.text_like(self.0).map(|found| found.value)
    }

    fn show(&self, value: &String) -> Option<Value> {
        Some(value.as_str().into())
    }
}

/// A key that has no value where the file has none.
pub(crate) struct Optional<F>(pub(crate) F);

impl<T, F: Format<T>> Format<Option<T>> for Optional<F> {
    fn read(&self, item: &Entry<'_>) -> Option<Option<T>> {
        self.0.read(item).map(Some)
    }

    fn show(&self, value: &Option<T>) -> Option<Value> {
        value.as_ref().and_then(|value| self.0.show(value))
    }
}

/// Reads a key; without it, or if it has a fault, the value of `base`.
pub(crate) fn read<T: Clone>(
    section: &Section<'_>,
    name: &'static str,
    format: &impl Format<T>,
    base: &T,
) -> T {
    let found = section.get(name).and_then(|item| format.read(&item));
    found.unwrap_or_else(|| base.clone())
}

/// Declares a table: `field: type = default, format;` for each key. After `;;` stand fields without
/// a format: their owner reads and shows them.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr, $format:expr; )*
            $(; $( $(#[doc = $other_doc:literal])+ $other:ident: $other_type:ty = $other_default:expr; )* )?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $( $(#[doc = $doc])+ pub $key: $type, )*
            $( $( $(#[doc = $other_doc])+ pub $other: $other_type, )* )?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $key: $default, )*
                    $( $( $other: $other_default, )* )?
                }
            }
        }

        impl $name {
            /// Reads the keys; one that is not there has the value of `base`.
            pub(crate) fn read_keys(section: &$crate::table::Section<'_>, base: &Self) -> Self {
                Self {
                    $( $key: $crate::settings::read(section, stringify!($key), &$format, &base.$key), )*
                    $( $( $other: base.$other.clone(), )* )?
                }
            }

            /// Shows the keys, each with this prefix.
            pub(crate) fn show_keys(&self, table: &mut $crate::show::RenderedTable, prefix: &str) {
                use $crate::settings::Format as _;
                $( table.put_optional(
                    &format!("{prefix}{}", stringify!($key)),
                    $format.show(&self.$key),
                ); )*
            }
        }
    };
}
pub(crate) use settings;
