//! A UTC day, the period of budgets of a day.

use std::fmt::Write as _;

/// Microseconds of a day; Unix time has no leap seconds.
const MICROS: i64 = 86_400_000_000;

/// One day: its number since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Day(i64);

impl Day {
    /// The day of a time in microseconds since the Unix epoch.
    pub(super) const fn from_micros(at_us: i64) -> Self {
        Self(at_us.div_euclid(MICROS))
    }

    /// Parses a name like `2026-11-22`; `None` if it is invalid.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let date: jiff::civil::Date = name.parse().ok()?;
        let begins = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        Some(Self::from_micros(begins.timestamp().as_microsecond()))
    }

    /// Its name, like `2026-11-22`.
    pub(super) fn name(self) -> String {
        let at_us = self.0.saturating_mul(MICROS);
        let mut name = String::new();
        match jiff::Timestamp::from_microsecond(at_us) {
            Ok(at) => {
                let _ = write!(name, "{}", at.strftime("%Y-%m-%d"));
            }
            // Outside of jiff's range; no real clock gets there.
            Err(_) => {
                let _ = write!(name, "day {}", self.0);
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_ends_at_midnight_of_utc() {
        let last = 1_795_391_999_999_999; // 2026-11-22T23:59:59.999999Z
        assert_eq!(Day::from_micros(last).name(), "2026-11-22");
        assert_eq!(Day::from_micros(last + 1).name(), "2026-11-23");
        for at_us in [last, last + 1, -1, 0] {
            let day = Day::from_micros(at_us);
            assert_eq!(Day::parse(&day.name()), Some(day));
        }
        assert_eq!(Day::parse("yesterday"), None);
        assert_eq!(Day::from_micros(-1).name(), "1969-12-31");
        assert_ne!(
            Day::from_micros(i64::MAX).name(),
            Day::from_micros(i64::MIN).name()
        );
    }
}
