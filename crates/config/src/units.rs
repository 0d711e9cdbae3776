//! Durations and sizes as people write them: a whole number and a unit.
//!
//! Must not know their place in a file.

use std::time::Duration;

use marshal_model::limits;

/// Units of time, with their length in milliseconds.
const TIMES: &[(&str, u64)] = &[
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Units of size, powers of 1024, with their exponent of two.
const SIZES: &[(&str, u32)] = &[("B", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];

/// The units of time.
pub(super) fn time_units() -> Vec<&'static str> {
    TIMES.iter().map(|(name, _)| *name).collect()
}

/// The units of size.
pub(super) fn size_units() -> Vec<&'static str> {
    SIZES.iter().map(|(name, _)| *name).collect()
}

/// The form of a duration, for messages.
pub(super) const DURATION_EXPECTED: &str =
    "a duration such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"1d\"";

/// The form of a size, for messages.
pub(super) const SIZE_EXPECTED: &str = "a size such as \"64K\", \"256M\" or \"4G\"";

/// Splits `30s` into its number and its unit.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit))
}

/// Reads a duration.
///
/// # Errors
/// What was wrong with it, as a fragment without the value.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let longest = limits::CONFIG_DURATION;
    let (number, unit) =
        split_number(text).ok_or_else(|| format!("expected {DURATION_EXPECTED}"))?;
    let Some((_, ms)) = TIMES.iter().find(|(name, _)| *name == unit) else {
        return Err(match unit {
            "" => format!("a duration needs a unit: expected {DURATION_EXPECTED}"),
            _ => format!("expected {DURATION_EXPECTED}"),
        });
    };
    number
        .checked_mul(*ms)
        .map(Duration::from_millis)
        .filter(|duration| *duration <= longest)
        .ok_or_else(|| format!("a duration is at most {}", show_duration(longest)))
}

/// Reads a size in bytes.
///
/// # Errors
/// What was wrong with it, as a fragment without the value.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text).ok_or_else(|| format!("expected {SIZE_EXPECTED}"))?;
    let Some((_, power)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        return Err(match unit {
            "" => format!("a size needs a unit: expected {SIZE_EXPECTED}"),
            _ => format!("expected {SIZE_EXPECTED}; units are powers of 1024: B, K, M, G, T"),
        });
    };
    number
        .checked_mul(1_u64 << power)
        .ok_or_else(|| "the size is too large".to_owned())
}

/// A duration as it would be written in the file.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    let unit = TIMES
        .iter()
        .rev()
        .find(|(_, length)| ms.is_multiple_of(u128::from(*length)));
    match unit {
        Some((name, length)) => format!("{}{name}", ms / u128::from(*length)),
        None => format!("{ms}ms"),
    }
}

/// A size as it would be written in the file.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    let unit = SIZES
        .iter()
        .rev()
        .find(|(_, power)| bytes >= 1 << power && bytes.is_multiple_of(1 << power));
    match unit {
        Some((name, power)) => format!("{}{name}", bytes >> power),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(
                parse_duration(text).ok(),
                ms.map(Duration::from_millis),
                "{text}"
            );
        };
        check("20ms", Some(20));
        check("1s", Some(1_000));
        check("5m", Some(300_000));
        check("2h", Some(7_200_000));
        check("30d", Some(2_592_000_000));
        check("0s", Some(0));
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            " 1s",
            "1s ",
            "1S",
            "1h30m",
            "1w",
            "31d",
            "٣s",
            "18446744073709551615d",
            "99999999999999999999s",
            "+1s",
            "none",
            "1m\u{301}",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn sizes_are_a_number_and_a_unit() {
        let check =
            |text: &str, bytes: Option<u64>| assert_eq!(parse_size(text).ok(), bytes, "{text}");
        check("64K", Some(65_536));
        check("256M", Some(268_435_456));
        check("4G", Some(4 << 30));
        check("1T", Some(1 << 40));
        check("512B", Some(512));
        for bad in [
            "",
            "5",
            "K",
            "-1K",
            "1.5G",
            "4 G",
            "4g",
            "4GB",
            "4GiB",
            "99999999999T",
            "1E",
            "0x4K",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same_value() {
        for text in ["0s", "20ms", "1s", "90s", "5m", "36h", "2d"] {
            assert_eq!(parse_duration(text).map(show_duration).as_deref(), Ok(text));
        }
        for text in ["1B", "64K", "100K", "256M", "4G", "2T"] {
            assert_eq!(parse_size(text).map(show_size).as_deref(), Ok(text));
        }
        assert_eq!(parse_size("0K").map(show_size).as_deref(), Ok("0B"));
    }
}
