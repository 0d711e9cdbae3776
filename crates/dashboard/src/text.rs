//! Text and numbers for a person's screen.
//!
//! What an agent wrote is bounded, and its control, bidi and invisible characters are shown as escapes,
//! as on the command line. The templates escape what HTML would read.

use jiff::Timestamp;
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use marshal_engine::api::time::Time;
use marshal_model::untrusted::escape_for_display;

/// The maximum length of one line of a text of several lines.
const LINE: usize = 2000;
/// The maximum number of lines of a text.
const LINES: usize = 2000;

/// One line.
pub(crate) fn line(text: &str, width: usize) -> String {
    escape_for_display(text, width)
}

/// A text of several lines.
pub(crate) fn lines(text: &str) -> String {
    let mut all = text.lines();
    let mut shown: Vec<String> = all
        .by_ref()
        .take(LINES)
        .map(|text| line(text, LINE))
        .collect();
    let rest = all.count();
    if rest > 0 {
        shown.push(format!("… and {rest} more lines"));
    }
    if text.ends_with('\n') {
        shown.push(String::new());
    }
    shown.join("\n")
}

/// A part of a path or of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A count, as `950`, `12.3k` or `4.56M`.
pub(crate) fn count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        1000..1_000_000 => format!("{:.1}k", number as f64 / 1e3),
        _ => format!("{:.2}M", number as f64 / 1e6),
    }
}

/// US dollars.
pub(crate) fn dollars(cost: f64) -> String {
    if cost > 0.0 && cost < 0.01 {
        format!("${cost:.4}")
    } else {
        format!("${cost:.2}")
    }
}

/// Bytes of memory.
pub(crate) fn memory(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A time, which the page's script shows as an age or as what remains.
pub(crate) fn age(at: Time) -> Markup {
    let shown = Timestamp::from_microsecond(at.0).unwrap_or(Timestamp::UNIX_EPOCH);
    let text = shown.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at) title=(text) { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_wrote_is_visible_and_bounded() {
        assert_eq!(lines("a\u{202e}b\n\u{1b}[2Jc"), "a\\u{202e}b\n\\u{1b}[2Jc");
        let long = "x\n".repeat(LINES + 5);
        assert!(lines(&long).ends_with("… and 5 more lines\n"));
        assert!(line(&"y".repeat(50), 10).chars().count() <= 10);
        assert_eq!(encode("a/b?c"), "a%2Fb%3Fc");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [count(7), count(12_345), count(4_560_000)],
            ["7", "12.3k", "4.56M"]
        );
        assert_eq!(
            [dollars(0.0), dollars(0.001), dollars(1.5)],
            ["$0.00", "$0.0010", "$1.50"]
        );
        assert_eq!(memory(3 << 20), "3 MiB");
    }
}
