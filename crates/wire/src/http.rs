//! The grammar of one header of HTTP/1.1, as strict as its standard allows. Owns no meaning: what a
//! name stands for, and what is refused with which status, is for those who read a whole head.

/// Whether this is a token: a method, or the name of a header.
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(fits)
}

/// Why a line is not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It has no colon.
    #[error("a header has no colon")]
    NoColon,
    /// Its name is no token: an empty one, a blank before the colon, a line that continues another.
    #[error("the name of a header is invalid, or a header spans two lines")]
    Name,
    /// Its value has a control character.
    #[error("the value of a header contains a control character")]
    Value,
}

/// Name and value of a header line without its end; the value without the blanks around it.
pub fn parse_header(line: &[u8]) -> Result<(&[u8], &[u8]), HeaderError> {
    let colon = line.iter().position(|byte| *byte == b':');
    let Some((name, value)) = colon.map(|at| (&line[..at], &line[at + 1..])) else {
        return Err(HeaderError::NoColon);
    };
    if !is_token(name) {
        return Err(HeaderError::Name);
    }
    let is_of_values = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    if !value.iter().all(is_of_values) {
        return Err(HeaderError::Value);
    }
    Ok((name, value.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::{is_token, parse_header};

    #[test]
    fn a_header_is_read_to_the_letter() {
        assert_eq!(
            parse_header(b"Host: a b\t"),
            Ok((&b"Host"[..], &b"a b"[..]))
        );
        assert_eq!(parse_header(b"X:"), Ok((&b"X"[..], &b""[..])));
        assert_eq!(parse_header(b"X:a:b"), Ok((&b"X"[..], &b"a:b"[..])));
        for wrong in [
            &b"Host"[..],
            b": x",
            b"Host : x",
            b" Host: x",
            b"Ho\0st: x",
            b"Host: x\0",
            b"Host: x\ry: z",
            b"Host: \x7f",
            b"H\xc3\xb6st: x",
        ] {
            assert!(parse_header(wrong).is_err(), "{wrong:?}");
        }
        assert!(is_token(b"GET") && !is_token(b"") && !is_token(b"G T") && !is_token(b"(GET)"));
    }
}
