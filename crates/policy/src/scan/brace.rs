//! Expands `{a,b}` and `{1..3}` as bash does: in the source of a word, before anything else in it
//! is read.

use marshal_model::limits;

/// The result of expanding a word's braces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BraceExpansion {
    /// The word has no expansion.
    Unchanged,
    /// The sources of the resulting words.
    Words(Vec<Vec<u8>>),
    /// More than the limit.
    TooMany,
}

/// The maximum number of words of one expansion; their total bytes are limited too.
const MAX_WORDS: usize = 256;
const BYTES: usize = 16_384;
/// The maximum number of steps: text without an expansion is searched again from every `{`.
const STEPS: usize = 200_000;

/// A limit was reached.
struct TooMany;

/// Expands the braces of a word's source.
pub(super) fn expand(source: &[u8]) -> BraceExpansion {
    let mut steps = STEPS;
    match expand_text(source, &mut steps, 0) {
        Err(TooMany) => BraceExpansion::TooMany,
        Ok(words) if words.len() == 1 && words[0] == source => BraceExpansion::Unchanged,
        Ok(words) => BraceExpansion::Words(words),
    }
}

/// The positions of one pair of braces that expands.
fn pair(text: &[u8], steps: &mut usize) -> Result<Option<(usize, usize)>, TooMany> {
    let mut from = 0;
    loop {
        let open = find_unquoted(text, from, b'{', steps)?;
        let Some(open) = open else {
            return Ok(None);
        };
        if let Some(close) = find_unquoted(text, open + 1, b'}', steps)? {
            return Ok(Some((open, close)));
        }
        from = open + 1;
    }
}

fn expand_text(text: &[u8], steps: &mut usize, depth: usize) -> Result<Vec<Vec<u8>>, TooMany> {
    if depth > limits::POLICY_DEPTH {
        return Err(TooMany);
    }
    let Some((open, close)) = pair(text, steps)? else {
        return Ok(vec![text.to_vec()]);
    };
    let (inside, after) = (&text[open + 1..close], &text[close + 1..]);
    let middle = if has_comma(inside) {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            let comma = find_unquoted(inside, from, b',', steps)?;
            let piece = &inside[from..comma.unwrap_or(inside.len())];
            all.extend(expand_text(piece, steps, depth + 1)?);
            match comma {
                Some(at) => from = at + 1,
                None => break all,
            }
        }
    } else {
        match sequence(inside) {
            Sequence::Of(words) => words,
            Sequence::TooMany => return Err(TooMany),
            Sequence::Invalid if after.is_empty() => return Ok(vec![text.to_vec()]),
            Sequence::Invalid => vec![text[open..=close].to_vec()],
        }
    };
    let ends = expand_text(after, steps, depth + 1)?;
    let mut out = Vec::new();
    let mut bytes = 0;
    for part in &middle {
        for end in &ends {
            let word = [&text[..open], part, end].concat();
            bytes += word.len();
            out.push(word);
            if out.len() > MAX_WORDS || bytes > BYTES {
                return Err(TooMany);
            }
        }
    }
    Ok(out)
}

fn has_comma(inside: &[u8]) -> bool {
    let mut at = 0;
    while let Some(byte) = inside.get(at) {
        match byte {
            b'\\' => at += 2,
            b',' => return true,
            _ => at += 1,
        }
    }
    false
}

/// The position of an unquoted `want` outside of inner braces and substitutions. For `}` there must
/// be a `,` or `..` before it.
fn find_unquoted(
    text: &[u8],
    from: usize,
    want: u8,
    steps: &mut usize,
) -> Result<Option<usize>, TooMany> {
    let (mut level, mut commas, mut at) = (0_usize, usize::from(want != b'}'), from);
    let mut quoted = None;
    while let Some(&byte) = text.get(at) {
        *steps = steps.checked_sub(1).ok_or(TooMany)?;
        let next = text.get(at + 1).copied();
        match (quoted, byte) {
            (None | Some(b'"' | b'`'), b'\\') => at += 2,
            (None | Some(b'"' | b'`'), b'$') if next == Some(b'{') => {
                level += usize::from(quoted.is_none());
                at += 2;
            }
            (None | Some(b'"'), b'$') | (None, b'<' | b'>') if next == Some(b'(') => {
                at = skip_substitution(text, at + 2);
            }
            (Some(quote), _) => {
                if byte == quote {
                    quoted = None;
                }
                at += 1;
            }
            (None, b'\'' | b'"' | b'`') => {
                quoted = Some(byte);
                at += 1;
            }
            (None, _) if byte == want && level == 0 && commas > 0 => {
                let blank = |b: Option<&u8>| b.is_none_or(|b| matches!(b, b' ' | b'\t' | b'\n'));
                let before = at.checked_sub(1).and_then(|i| text.get(i));
                if !(want == b'{' && blank(before) && (next.is_none() || next == Some(b'}'))) {
                    return Ok(Some(at));
                }
                at += 1;
            }
            (None, b'{') => {
                level += 1;
                at += 1;
            }
            (None, b'}') => {
                level = level.saturating_sub(1);
                at += 1;
            }
            (None, b',') if want == b'}' && level == 0 => {
                commas += 1;
                at += 1;
            }
            (None, b'.')
                if want == b'}'
                    && level == 0
                    && next == Some(b'.')
                    && text.get(at + 2) != Some(&b'}') =>
            {
                commas += 1;
                at += 1;
            }
            _ => at += 1,
        }
    }
    Ok(None)
}

/// The position after the parenthesis that closes a substitution.
fn skip_substitution(text: &[u8], from: usize) -> usize {
    let (mut depth, mut at) = (1_usize, from);
    let mut quoted = None;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match (quoted, byte) {
            (None | Some(b'"'), b'\\') => at += 1,
            (Some(quote), _) if byte == quote => quoted = None,
            (None, b'\'' | b'"') => quoted = Some(byte),
            (None, b'(') => depth += 1,
            (None, b')') => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    at
}

enum Sequence {
    Of(Vec<Vec<u8>>),
    TooMany,
    Invalid,
}

/// `a..e`, `1..9`, `01..10..3`.
fn sequence(inside: &[u8]) -> Sequence {
    let Ok(text) = std::str::from_utf8(inside) else {
        return Sequence::Invalid;
    };
    let mut parts = text.split("..");
    let (Some(first), Some(last)) = (parts.next(), parts.next()) else {
        return Sequence::Invalid;
    };
    let step = match parts.next().map(str::parse::<i64>) {
        None => 1,
        Some(Ok(step)) => step,
        Some(Err(_)) => return Sequence::Invalid,
    };
    if parts.next().is_some() {
        return Sequence::Invalid;
    }
    let letter = |t: &str| (t.len() == 1).then(|| i64::from(t.as_bytes()[0]));
    let letters = |t: &str| letter(t).filter(|_| t.as_bytes()[0].is_ascii_alphabetic());
    let numbers = first.parse::<i64>().ok().zip(last.parse::<i64>().ok());
    let (from, to, width) = if let Some((from, to)) = numbers {
        let padded = |t: &str| t.trim_start_matches('-').starts_with('0') && t.len() > 1;
        let pads = padded(first) || padded(last);
        let width = if pads { first.len().max(last.len()) } else { 1 };
        (from, to, Some(width))
    } else {
        let (Some(from), Some(to)) = (letters(first), letters(last)) else {
            return Sequence::Invalid;
        };
        (from, to, None)
    };
    if width.is_some_and(|width| width > 64) {
        return Sequence::TooMany;
    }
    let step = step.unsigned_abs().max(1);
    let count = from.abs_diff(to) / step;
    if count >= MAX_WORDS as u64 {
        return Sequence::TooMany;
    }
    let mut out = Vec::new();
    for n in 0..=count {
        let moved = i64::try_from(n * step).unwrap_or(0);
        let value = if from <= to {
            from + moved
        } else {
            from - moved
        };
        let letter = || {
            let byte = u8::try_from(value).unwrap_or(b'?');
            // A backslash among the letters escapes the next character.
            let plain = byte.is_ascii_alphanumeric();
            if plain { vec![byte] } else { vec![b'\\', byte] }
        };
        out.push(width.map_or_else(letter, |width| format!("{value:0width$}").into_bytes()));
    }
    Sequence::Of(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expect: &[&str]) {
        let got = match expand(source.as_bytes()) {
            BraceExpansion::Unchanged => vec![source.to_owned()],
            BraceExpansion::TooMany => vec!["too many".to_owned()],
            BraceExpansion::Words(words) => {
                let text = |word: Vec<u8>| String::from_utf8(word).expect("UTF-8");
                words.into_iter().map(text).collect()
            }
        };
        assert_eq!(got, expect, "{source}");
    }

    #[test]
    fn braces_are_written_out_as_bash_does() {
        check("{a,b}", &["a", "b"]);
        check("x{a,b}y", &["xay", "xby"]);
        check("{a,\"b,c\"}", &["a", "\"b,c\""]);
        check("{a,x{b,c}}", &["a", "xb", "xc"]);
        check("{a,b}{c,d}", &["ac", "ad", "bc", "bd"]);
        check("k{l..l}", &["kl"]);
        check("{3..1}", &["3", "2", "1"]);
        check("{01..3..2}", &["01", "03"]);
        check("{a}", &["{a}"]);
        check("{}", &["{}"]);
        check("{a}{b,c}", &["{a}b", "{a}c"]);
        check("'{a,b}'", &["'{a,b}'"]);
        check("${x,y}", &["${x,y}"]);
        check("$(f {a,b})", &["$(f {a,b})"]);
        check("{,}k", &["k", "k"]);
        check("{a,b", &["{a,b"]);
        check("{1..999}", &["too many"]);
        check("HEAD@{1}", &["HEAD@{1}"]);
    }
}
