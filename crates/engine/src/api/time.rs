//! Times, as clients see them: RFC 3339.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time: microseconds since the Unix epoch, written as RFC 3339.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// From milliseconds since the Unix epoch.
    pub(super) const fn from_ms(at_ms: i64) -> Self {
        Self(at_ms.saturating_mul(1000))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = jiff::Timestamp::from_microsecond(self.0);
        at.unwrap_or(jiff::Timestamp::UNIX_EPOCH).fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let at = text
            .parse::<jiff::Timestamp>()
            .map_err(|_| serde::de::Error::custom("a time is not RFC 3339"))?;
        Ok(Self(at.as_microsecond()))
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_people_read_them() {
        for (at, text) in [
            (0, "\"1970-01-01T00:00:00Z\""),
            (1_500_000, "\"1970-01-01T00:00:01.5Z\""),
            (1_900_000_000_000_001, "\"2030-03-17T17:46:40.000001Z\""),
        ] {
            assert_eq!(serde_json::to_string(&Time(at)).expect("JSON"), text);
            let read: Time = serde_json::from_str(text).expect(text);
            assert_eq!(read, Time(at));
        }
        assert!(serde_json::from_str::<Time>("\"07:00\"").is_err());
        assert!(serde_json::from_str::<Time>("7").is_err());
    }
}
