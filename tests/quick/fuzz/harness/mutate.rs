//! Makes one input of others: what a peer could say if it were wrong, hostile, or another version.

use rand::Rng;
use rand::rngs::StdRng;

use super::json::{self, Span};
use super::{INPUT_BYTES, Target};

/// Values that readers have tripped over.
const ODD: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "1.5",
    "1e999",
    "-0",
    "1e-9",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "99999999999999999999999999999999",
    "\"\"",
    "\"a\"",
    "\"1\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\\u0000\"",
    "\"\\u001b[2J\"",
    "\"\\u202e\"",
    "\"\\n\"",
    "\"\\\\\"",
    "\"\u{2028}\"",
    "\"../../etc/passwd\"",
    "[]",
    "{}",
    "[[]]",
    "{\"\":{}}",
    "{\"a\":1,\"a\":2}",
    "[null]",
    "NaN",
    "0x1",
    "01",
    "'a'",
    "\"\t\"",
];

/// What we do, for a conversation.
const OURS: &[&str] = &[
    "@prompt p",
    "@prompt p",
    "@prompt {\"a\":\"}{\"}",
    "@prompt",
    "@cancel",
    "@cancel",
    "@allow 0",
    "@allow 0",
    "@allow 1",
    "@allow 2",
    "@deny 0",
    "@deny 1",
    "@done 0",
    "@refuse 0",
    "@done 1",
    "@goodbye",
    "@eof",
    "@wait 1",
    "@wait 300",
    "@wait 1000",
    "@wait 31000",
    "@wait 120000",
    "@slash help",
    "@mode plan",
    "@part {\"a",
    "@part \r",
    "@@",
];

/// A new input from an old one, with pieces of others.
pub(crate) fn mutated(
    target: Target,
    from: &[u8],
    others: &[Vec<u8>],
    random: &mut StdRng,
) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = from
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    if lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    for _ in 0..random.random_range(1..=6) {
        change(target, &mut lines, others, random);
    }
    let mut out = lines.join(&b'\n');
    if random.random_range(0..8) > 0 {
        out.push(b'\n');
    }
    if !target.is_dialect() && random.random_range(0..3) == 0 {
        noise(&mut out, random);
    }
    out.truncate(INPUT_BYTES);
    out
}

fn change(target: Target, lines: &mut Vec<Vec<u8>>, others: &[Vec<u8>], random: &mut StdRng) {
    if lines.is_empty() {
        lines.push(Vec::new());
    }
    let at = random.random_range(0..lines.len());
    let to = random.random_range(0..lines.len());
    match random.random_range(0..16) {
        0 if lines.len() > 1 => drop(lines.remove(at)),
        1 => lines.insert(to, lines[at].clone()),
        2 => lines.swap(at, to),
        3 => {
            let line = lines.remove(at);
            lines.insert(to.min(lines.len()), line);
        }
        4 => {
            let end = (at + random.random_range(1..6)).min(lines.len());
            let piece = lines[at..end].to_vec();
            lines.splice(to..to, piece);
        }
        5 | 6 => {
            if let Some(line) = line_of(others, random) {
                lines.insert(to, line);
            }
        }
        7 | 8 if target.is_dialect() => {
            let ours = OURS[random.random_range(0..OURS.len())];
            lines.insert(to, ours.as_bytes().to_vec());
        }
        9 if target.is_dialect() => {
            let line = format!("@open {}", random.random_range(0..256));
            if lines[0].starts_with(b"@open ") {
                lines[0] = line.into_bytes();
            } else {
                lines.insert(0, line.into_bytes());
            }
        }
        10 => noise(&mut lines[at], random),
        11 if target.is_dialect() && !lines[at].is_empty() && lines[at][0] != b'@' => {
            let cut = random.random_range(0..lines[at].len());
            let rest = lines[at].split_off(cut);
            lines[at].splice(0..0, *b"@part ");
            lines.insert(at + 1, rest);
        }
        _ => member(at, lines, random),
    }
}

fn line_of(others: &[Vec<u8>], random: &mut StdRng) -> Option<Vec<u8>> {
    let other = others.get(random.random_range(0..others.len().max(1)))?;
    let lines: Vec<&[u8]> = other.split(|byte| *byte == b'\n').collect();
    Some(lines[random.random_range(0..lines.len())].to_vec())
}

/// Changes a value or a member of a line, if it has any.
fn member(at: usize, lines: &mut [Vec<u8>], random: &mut StdRng) {
    let spans = json::spans(&lines[at]);
    let Some(span) = some(&spans, random) else {
        return noise(&mut lines[at], random);
    };
    let value = lines[at][span.value.clone()].to_vec();
    match random.random_range(0..12) {
        0..=2 => put(&mut lines[at], span, odd(random).as_bytes()),
        // Another value of the same line, or of another: ids change places.
        3 | 4 => {
            let from = random.random_range(0..lines.len());
            let theirs = json::spans(&lines[from]);
            let same: Vec<Span> = theirs
                .iter()
                .filter(|one| key(&lines[from], one) == key(&lines[at], span))
                .cloned()
                .collect();
            let pool = if same.is_empty() || random.random_range(0..3) == 0 {
                &theirs
            } else {
                &same
            };
            if let Some(other) = some(pool, random) {
                let other = lines[from][other.value.clone()].to_vec();
                put(&mut lines[at], span, &other);
            }
        }
        // Left out, with the comma behind it or before it.
        5 => {
            let line = &mut lines[at];
            let mut range = span.member.clone();
            if line.get(range.end) == Some(&b',') {
                range.end += 1;
            } else if range.start > 0 && line[range.start - 1] == b',' {
                range.start -= 1;
            }
            line.drain(range);
        }
        // Twice, the second with another value.
        6 | 7 => {
            let mut copy = lines[at][span.member.start..span.value.start].to_vec();
            copy.extend(if random.random() {
                odd(random).as_bytes()
            } else {
                &value
            });
            copy.push(b',');
            let start = span.member.start;
            lines[at].splice(start..start, copy);
        }
        // Deep, around it.
        8 => {
            let deep = [1, 2, 100, 127, 128, 200, 5000][random.random_range(0..7)];
            let (open, close): (&[u8], &[u8]) = if random.random() {
                (b"[", b"]")
            } else {
                (b"{\"a\":", b"}")
            };
            let nested = [&*open.repeat(deep), &*value, &*close.repeat(deep)].concat();
            put(&mut lines[at], span, &nested);
        }
        // As the text of itself.
        9 => {
            let text = String::from_utf8_lossy(&value);
            put(
                &mut lines[at],
                span,
                serde_json::json!(text).to_string().as_bytes(),
            );
        }
        // Long.
        10 => {
            let long = [200, 300, 1100, 5000, 70_000][random.random_range(0..5)];
            put(
                &mut lines[at],
                span,
                format!("\"{}\"", "x".repeat(long)).as_bytes(),
            );
        }
        // Another key.
        _ => {
            let keys: Vec<&Span> = spans.iter().filter(|span| span.key.is_some()).collect();
            if let (Some(mine), Some(theirs)) = (
                span.key.clone(),
                keys.get(random.random_range(0..keys.len().max(1)))
                    .and_then(|span| span.key.clone()),
            ) {
                let theirs = lines[at][theirs].to_vec();
                lines[at].splice(mine, theirs);
            }
        }
    }
}

fn key<'a>(line: &'a [u8], span: &Span) -> Option<&'a [u8]> {
    span.key.clone().map(|key| &line[key])
}

fn some<'a>(spans: &'a [Span], random: &mut StdRng) -> Option<&'a Span> {
    spans.get(random.random_range(0..spans.len().max(1)))
}

fn odd(random: &mut StdRng) -> &'static str {
    ODD[random.random_range(0..ODD.len())]
}

fn put(line: &mut Vec<u8>, span: &Span, value: &[u8]) {
    line.splice(span.value.clone(), value.iter().copied());
}

/// A byte that is another, too many, or missing.
fn noise(bytes: &mut Vec<u8>, random: &mut StdRng) {
    const BYTES: &[u8] = b"\0\x01\x1b\r\t \"\\{}[]:,-+.0189eEaA@#\x7f\x80\xbf\xc0\xed\xf5\xff";
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..=bytes.len());
        let byte = if random.random() {
            BYTES[random.random_range(0..BYTES.len())]
        } else {
            random.random()
        };
        match random.random_range(0..4) {
            0 => bytes.insert(at, byte),
            1 if at < bytes.len() => bytes[at] = byte,
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            _ => {}
        }
    }
}
