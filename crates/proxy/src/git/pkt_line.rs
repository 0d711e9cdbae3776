//! Lines of git's protocol: four hexadecimal digits with the length, then the content
//! (gitprotocol-common(5)).

/// The longest line, its length included.
pub(super) const LINE_BYTES: usize = 65_520;

/// The line without content, which ends a section.
pub(super) const FLUSH: &[u8] = b"0000";

/// A line of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line<'t> {
    /// Its content, which may end with a line feed.
    Data(&'t [u8]),
    Flush,
}

/// What a text begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next<'t> {
    /// A line, and what follows it.
    Line(Line<'t>, &'t [u8]),
    /// The beginning of a line.
    Incomplete,
    /// No line.
    Malformed,
}

/// Reads the first line. Delimiters of version 2 and empty lines are malformed: pushes have none.
pub(super) fn read(text: &[u8]) -> Next<'_> {
    let Some((length, rest)) = text.split_first_chunk::<4>() else {
        let is_begin = text.iter().all(u8::is_ascii_hexdigit);
        return if is_begin {
            Next::Incomplete
        } else {
            Next::Malformed
        };
    };
    // `from_str_radix` takes a sign as well.
    if !length.iter().all(u8::is_ascii_hexdigit) {
        return Next::Malformed;
    }
    let length = std::str::from_utf8(length)
        .ok()
        .and_then(|digits| usize::from_str_radix(digits, 16).ok());
    match length {
        Some(0) => Next::Line(Line::Flush, rest),
        Some(length @ 5..=LINE_BYTES) => match rest.split_at_checked(length - 4) {
            Some((data, rest)) => Next::Line(Line::Data(data), rest),
            None => Next::Incomplete,
        },
        _ => Next::Malformed,
    }
}

/// Appends a line. Content that is too long is cut.
pub(super) fn write(out: &mut Vec<u8>, content: &[u8]) {
    let content = content.get(..LINE_BYTES - 4).unwrap_or(content);
    out.extend_from_slice(format!("{:04x}", content.len() + 4).as_bytes());
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_length_in_front() {
        let check = |text: &[u8], expect: Next<'_>| assert_eq!(read(text), expect, "{text:?}");
        check(b"0006a\nrest", Next::Line(Line::Data(b"a\n"), b"rest"));
        check(b"0000PACK", Next::Line(Line::Flush, b"PACK"));
        check(b"0005A", Next::Line(Line::Data(b"A"), b""));
        for begin in [&b""[..], b"0", b"000", b"0006a", b"fff0"] {
            check(begin, Next::Incomplete);
        }
        for bad in [
            &b"0001"[..],
            b"0002",
            b"0003",
            b"0004",
            b"fff1",
            b"ffff",
            b"+006a\n",
            b"PACK",
            b"g",
            b" 006",
            b"-000",
        ] {
            check(bad, Next::Malformed);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut out = Vec::new();
        write(&mut out, b"hello\n");
        write(&mut out, &vec![b'x'; 70_000]);
        let Next::Line(first, rest) = read(&out) else {
            panic!("no line");
        };
        assert_eq!(first, Line::Data(b"hello\n"));
        assert!(matches!(read(rest), Next::Line(Line::Data(data), b"") if data.len() == 65_516));
    }
}
