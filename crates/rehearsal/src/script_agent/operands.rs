//! Parsers for the operands of a verb.
//!
//! Every error completes a sentence that begins with the line and its verb. Must not know verbs.

use std::time::Duration;

use marshal_model::limits::AGENT_SLEEP;

/// The maximum number of characters of a prompt that an error repeats.
const ECHO_CHARS: usize = 40;

/// The rest of the line as one operand, without quotes around it.
pub(super) fn rest_operand(rest: &str, name: &str) -> Result<String, String> {
    let bare = ['"', '\'']
        .into_iter()
        .find_map(|quote| rest.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(rest);
    if bare.is_empty() {
        return Err(format!("needs a {name}"));
    }
    Ok(bare.to_owned())
}

/// The first word of the line, quoted or not, and the rest.
pub(super) fn word_operand<'a>(rest: &'a str, name: &str) -> Result<(String, &'a str), String> {
    for quote in ['"', '\''] {
        if let Some(opened) = rest.strip_prefix(quote) {
            let (inside, after) = opened
                .split_once(quote)
                .ok_or_else(|| format!("has a {name} whose quote is not closed"))?;
            return Ok((inside.to_owned(), after.trim_start()));
        }
    }
    let (first, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if first.is_empty() {
        return Err(format!("needs a {name}"));
    }
    Ok((first.to_owned(), after.trim_start()))
}

pub(super) fn no_operand(rest: &str) -> Result<(), String> {
    if rest.is_empty() {
        Ok(())
    } else {
        Err(format!("does not take `{}`", echo(rest)))
    }
}

/// `default` for no word, `other` for the known word.
pub(super) fn choice<T>(rest: &str, default: T, known: &str, other: T) -> Result<T, String> {
    match rest {
        "" => Ok(default),
        said if said == known => Ok(other),
        said => Err(format!("takes `{known}` or nothing, not `{}`", echo(said))),
    }
}

pub(super) fn number(text: &str, name: &str) -> Result<u64, String> {
    text.replace('_', "")
        .parse()
        .map_err(|_| format!("needs a number as {name}, not `{}`", echo(text)))
}

/// A size in bytes: `100`, `64K`, `50M`, `1G` (powers of 1024).
pub(super) fn bytes(text: &str, name: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number(digits, name)?
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("has too large a {name}"))
}

/// A duration: `20ms`, `1.5s`, `2m`, `1h`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "needs a duration such as `20ms` or `1.5s`, not `{}`",
            echo(text)
        )
    };
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let amount: f64 = digits.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => amount / 1e6,
        "ms" => amount / 1e3,
        "s" | "" => amount,
        "m" => amount * 60.0,
        "h" => amount * 3600.0,
        _ => return Err(wrong()),
    };
    let pause = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if pause > AGENT_SLEEP {
        return Err("pauses for 24h at most".to_owned());
    }
    Ok(pause)
}

/// A piece of the prompt, shortened for an error.
pub(super) fn echo(text: &str) -> String {
    let mut short: String = text.chars().take(ECHO_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
