//! The start of a time range in the past: an event id, a time or a duration before now.
//!
//! Pure. Must not know a clock or the journal.

use std::time::Duration;

use marshal_config::read_duration;
use marshal_model::EventId;

/// The value of `--since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// After this event of one session.
    Event(EventId),
    /// From this duration before now.
    Ago(Duration),
    /// From this time on, in microseconds since the Unix epoch.
    Time(i64),
}

impl Since {
    /// Parses `EPOCH-SEQ`, a duration or an RFC 3339 time.
    ///
    /// # Errors
    /// The expected formats.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(id) = EventId::parse(text) {
            return Ok(Self::Event(id));
        }
        if let Ok(ago) = read_duration(text) {
            return Ok(Self::Ago(ago));
        }
        let time = text.parse::<jiff::Timestamp>();
        time.map(|time| Self::Time(time.as_microsecond()))
            .map_err(|_| {
                "expected an event id such as 3-117, a duration of at most 30d such as 10m, or a \
                time such as 2026-01-31T12:00:00Z"
                    .to_owned()
            })
    }

    /// The start time; `None` for an event id.
    #[must_use]
    pub fn at_us(self, now_us: i64) -> Option<i64> {
        match self {
            Self::Event(_) => None,
            Self::Ago(ago) => {
                let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
                Some(now_us.saturating_sub(ago))
            }
            Self::Time(at_us) => Some(at_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_id_a_time_or_a_duration() {
        let id = EventId { epoch: 3, seq: 117 };
        assert_eq!(Since::parse("3-117"), Ok(Since::Event(id)));
        let ten = Duration::from_secs(600);
        assert_eq!(Since::parse("10m"), Ok(Since::Ago(ten)));
        assert_eq!(Since::Ago(ten).at_us(600_000_001), Some(1));
        let time = Since::parse("1970-01-01T00:00:02+00:00");
        assert_eq!(time, Ok(Since::Time(2_000_000)));
        for bad in [
            "",
            "yesterday",
            "3-",
            "-1",
            "10",
            "31d",
            "2026-01-31",
            "3-1x",
        ] {
            assert!(Since::parse(bad).is_err(), "{bad}");
        }
    }
}
