//! What a git server says of its refs before a push, with only the capabilities that the proxy
//! knows: a client uses nothing that is not offered.

use super::pkt_line::{self, Line, Next};

/// Capabilities that a client may use. `delete-refs` is among them so that a deletion is sent, and
/// refused with a reason.
const OFFERED: &[&str] = &[
    "report-status",
    "report-status-v2",
    "delete-refs",
    "side-band-64k",
    "quiet",
    "ofs-delta",
];

/// A pack is searched by itself, so it must have the bases of its deltas.
const SELF_CONTAINED: &str = "no-thin";

/// The longest beginning of an advertisement: its service, and the line of the first ref.
const BEGIN_BYTES: usize = 2 * pkt_line::LINE_BYTES;

/// The beginning of an advertisement.
#[derive(Debug, PartialEq, Eq)]
pub enum Advertised {
    /// Up to the first ref and its capabilities, and what follows unchanged.
    Begin(Vec<u8>),
    /// More of it is needed.
    Incomplete,
    /// It is no advertisement for a push.
    Unknown,
}

/// Limits the capabilities in the beginning of an advertisement (gitprotocol-http(5), version 0).
#[must_use]
pub fn limit_capabilities(text: &[u8]) -> Advertised {
    match limit(text) {
        Ok(begin) => Advertised::Begin(begin),
        Err(Next::Incomplete) if text.len() < BEGIN_BYTES => Advertised::Incomplete,
        Err(_) => Advertised::Unknown,
    }
}

fn limit(text: &[u8]) -> Result<Vec<u8>, Next<'_>> {
    let next = |text| match pkt_line::read(text) {
        Next::Line(line, rest) => Ok((line, rest)),
        other => Err(other),
    };
    let (service, rest) = next(text)?;
    let service_line: &[u8] = b"# service=git-receive-pack\n";
    if service != Line::Data(service_line) {
        return Err(Next::Malformed);
    }
    let (Line::Flush, rest) = next(rest)? else {
        return Err(Next::Malformed);
    };
    let (Line::Data(first), rest) = next(rest)? else {
        return Err(Next::Malformed);
    };
    let zero = first.iter().position(|byte| *byte == 0);
    let (of_ref, capabilities) = zero
        .and_then(|at| Some((first.get(..at)?, first.get(at + 1..)?)))
        .ok_or(Next::Malformed)?;
    let capabilities = std::str::from_utf8(capabilities).map_err(|_| Next::Malformed)?;
    let is_offered = |word: &&str| {
        OFFERED.contains(word) || matches!(*word, "object-format=sha1" | "object-format=sha256")
    };
    let mut words: Vec<&str> = capabilities
        .split_ascii_whitespace()
        .filter(is_offered)
        .collect();
    words.push(SELF_CONTAINED);
    let mut line = of_ref.to_vec();
    line.push(0);
    line.extend_from_slice(words.join(" ").as_bytes());
    line.push(b'\n');
    let mut begin = Vec::new();
    pkt_line::write(&mut begin, service_line);
    begin.extend_from_slice(pkt_line::FLUSH);
    pkt_line::write(&mut begin, &line);
    begin.extend_from_slice(rest);
    Ok(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1111111111111111111111111111111111111111";

    fn advertisement(capabilities: &str) -> Vec<u8> {
        let mut text = Vec::new();
        pkt_line::write(&mut text, b"# service=git-receive-pack\n");
        text.extend_from_slice(b"0000");
        let first = format!("{ID} refs/heads/main\0{capabilities}\n");
        pkt_line::write(&mut text, first.as_bytes());
        pkt_line::write(&mut text, format!("{ID} refs/heads/x\n").as_bytes());
        text.extend_from_slice(b"0000");
        text
    }

    #[test]
    fn only_known_capabilities_are_offered_and_packs_are_whole() {
        let all = "report-status report-status-v2 delete-refs side-band-64k quiet atomic ofs-delta push-options push-cert=1-a object-format=sha1 session-id=x agent=git/2";
        let text = advertisement(all);
        let limited = advertisement(
            "report-status report-status-v2 delete-refs side-band-64k quiet ofs-delta object-format=sha1 no-thin",
        );
        assert_eq!(limit_capabilities(&text), Advertised::Begin(limited));
        for end in 0..100 {
            assert_eq!(
                limit_capabilities(&text[..end]),
                Advertised::Incomplete,
                "{end}"
            );
        }
    }

    #[test]
    fn anything_else_is_unknown() {
        let other = String::from_utf8(advertisement("a")).expect("text");
        let other = other.replace("receive-pack", "upload--pack");
        for text in [
            other.as_bytes(),
            b"<html>",
            b"0000",
            b"001f# service=git-receive-pack\n000000000000",
            b"001f# service=git-receive-pack\n00000006a\n",
        ] {
            assert_eq!(limit_capabilities(text), Advertised::Unknown, "{text:?}");
        }
    }
}
