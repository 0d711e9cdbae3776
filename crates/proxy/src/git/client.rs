//! The client's side of a push: what a server has, the command, and what became of it
//! (gitprotocol-pack(5), gitprotocol-http(5), version 0).
//!
//! The supervisor pushes with it through its own proxy. The texts come from a server.

use super::pkt_line::{self, Line, Next};
use super::push::Malformed;
use marshal_model::untrusted::escape_for_display;

/// Columns of a server's words.
const WORDS: usize = 300;
/// Refs of a server that are kept, to leave out of a pack what it has.
const REFS: usize = 10_000;

/// What a server has before a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerRefs {
    /// The commit of the ref that is asked for.
    pub wanted: Option<String>,
    /// The ids of other refs, the first ones.
    pub others: Vec<String>,
    /// Whether the server can be told the hash algorithm.
    knows_format: bool,
}

/// Why a push did not pass, by the proxy or the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PushRejection {
    /// A reason is given.
    #[error("{0}")]
    Refused(String),
    /// The answer is not in git's protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Reads the lines of a text; one with an error ends it.
fn lines(mut text: &[u8]) -> Result<Vec<Line<'_>>, PushRejection> {
    let mut lines = Vec::new();
    while !text.is_empty() {
        let Next::Line(line, rest) = pkt_line::read(text) else {
            return Err(Malformed("a line of the answer has no valid length").into());
        };
        text = rest;
        if let Line::Data(data) = line {
            // An error, also as one of the bands that were not asked for.
            let words = data.strip_prefix(b"ERR ").or(data.strip_prefix(b"\x03"));
            if let Some(words) = words {
                return Err(refused(words));
            }
        }
        lines.push(line);
    }
    Ok(lines)
}

fn refused(words: &[u8]) -> PushRejection {
    let words = String::from_utf8_lossy(words);
    let words = words.trim().trim_start_matches("marshal: ");
    PushRejection::Refused(escape_for_display(words, WORDS))
}

/// Reads what a server has; `wanted` is a ref.
///
/// # Errors
/// [`PushRejection`]
pub fn read_server_refs(text: &[u8], wanted: &str) -> Result<ServerRefs, PushRejection> {
    let lines = lines(text)?;
    let [
        Line::Data(b"# service=git-receive-pack\n"),
        Line::Flush,
        refs @ ..,
        Line::Flush,
    ] = &lines[..]
    else {
        return Err(Malformed("the answer is no list of refs").into());
    };
    let mut all = ServerRefs::default();
    for (at, line) in refs.iter().enumerate() {
        let Line::Data(line) = line else {
            return Err(Malformed("the list of refs has two ends").into());
        };
        let line = std::str::from_utf8(line).map_err(|_| Malformed("a ref is not UTF-8"))?;
        let (of_ref, words) = line.split_once('\0').unwrap_or((line, ""));
        if at == 0 {
            all.knows_format = words.contains("object-format=");
        }
        let (id, name) = of_ref
            .trim_end_matches('\n')
            .split_once(' ')
            .ok_or(Malformed("a ref has no name"))?;
        let is_id = matches!(id.len(), 40 | 64)
            && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_id {
            return Err(Malformed("a ref has no valid object id").into());
        }
        if name == wanted {
            all.wanted = Some(id.to_owned());
        } else if all.others.len() < REFS && name != "capabilities^{}" {
            all.others.push(id.to_owned());
        }
    }
    Ok(all)
}

impl ServerRefs {
    /// The command that gives the ref this commit, before the pack.
    #[must_use]
    pub fn command(&self, name: &str, new: &str) -> Vec<u8> {
        let zero = "0".repeat(new.len());
        let old = self.wanted.as_deref().unwrap_or(&zero);
        let format = match (self.knows_format, new.len()) {
            (false, _) => "",
            (true, 64) => " object-format=sha256",
            (true, _) => " object-format=sha1",
        };
        let mut out = Vec::new();
        let line = format!("{old} {new} {name}\0report-status{format}\n");
        pkt_line::write(&mut out, line.as_bytes());
        out.extend_from_slice(pkt_line::FLUSH);
        out
    }
}

/// Reads what became of a push of one ref.
///
/// # Errors
/// [`PushRejection`]
pub fn read_push_report(text: &[u8], name: &str) -> Result<(), PushRejection> {
    let lines = lines(text)?;
    let mut is_done = false;
    for line in &lines {
        let Line::Data(line) = line else { continue };
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let words = String::from_utf8_lossy(line);
        if let Some(why) = words.strip_prefix("unpack ").filter(|why| *why != "ok") {
            return Err(refused(why.as_bytes()));
        }
        if let Some(of_ref) = words.strip_prefix("ng ") {
            let (_, why) = of_ref.split_once(' ').unwrap_or(("", "no reason is given"));
            return Err(refused(why.as_bytes()));
        }
        is_done |= words.strip_prefix("ok ") == Some(name);
    }
    if is_done {
        Ok(())
    } else {
        Err(Malformed("the answer does not say what became of the ref").into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Capabilities, RefLine, error_answer, fatal_answer, parse_commands, push_answer,
    };
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn text(parts: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            match *part {
                "flush" => out.extend_from_slice(pkt_line::FLUSH),
                part => pkt_line::write(&mut out, part.as_bytes()),
            }
        }
        out
    }

    const SERVICE: &str = "# service=git-receive-pack\n";

    #[test]
    fn a_server_says_what_it_has() {
        let first = format!("{A} refs/heads/main\0report-status object-format=sha1\n");
        let second = format!("{B} refs/heads/x\n");
        let listed = text(&[SERVICE, "flush", &first, &second, "flush"]);
        let refs = read_server_refs(&listed, "refs/heads/x").expect("a list");
        assert_eq!(refs.wanted.as_deref(), Some(B));
        assert_eq!(refs.others, [A]);
        // What the proxy reads of the command is what was meant.
        let command = refs.command("refs/heads/x", A);
        let (parsed, _) = parse_commands(&command).expect("good").expect("whole");
        assert_eq!(parsed.commands[0].old.as_deref(), Some(B));
        assert_eq!(parsed.commands[0].new.as_deref(), Some(A));
        assert!(parsed.capabilities.wants_report());
        let zero = "0".repeat(40);
        let empty = format!("{zero} capabilities^{{}}\0report-status\n");
        let refs = read_server_refs(&text(&[SERVICE, "flush", &empty, "flush"]), "refs/heads/x");
        assert_eq!(refs, Ok(ServerRefs::default()));
        let many: Vec<String> = (0..REFS + 5)
            .map(|at| format!("{A} refs/heads/{at}\n"))
            .collect();
        let mut parts = vec![SERVICE, "flush"];
        parts.extend(many.iter().map(String::as_str));
        parts.push("flush");
        let refs = read_server_refs(&text(&parts), "refs/heads/x").expect("a list");
        assert_eq!(refs.others.len(), REFS);
    }

    #[test]
    fn an_answer_that_is_an_error_is_told() {
        let answer = error_answer(Some("git-receive-pack"), "the key is wrong");
        let refused = read_server_refs(&answer, "x").expect_err("an error");
        assert_eq!(refused.to_string(), "the key is wrong");
        let fatal = read_push_report(&fatal_answer("no\u{1b}[2J"), "x").expect_err("an error");
        assert!(!fatal.to_string().contains('\u{1b}'), "{fatal}");
        let line = RefLine {
            name: "refs/heads/x".to_owned(),
            reason: "the file has a secret".to_owned(),
        };
        let plain = Capabilities::parse("report-status").expect("known");
        let report = push_answer(&plain, &[line]).expect("a report");
        let refused = read_push_report(&report, "refs/heads/x").expect_err("an error");
        assert_eq!(refused.to_string(), "the file has a secret");
        let bad = text(&["unpack index-pack failed\n", "flush"]);
        assert!(read_push_report(&bad, "x").is_err());
    }

    #[test]
    fn anything_else_is_malformed() {
        let good = text(&["unpack ok\n", "ok refs/heads/x\n", "flush"]);
        assert_eq!(read_push_report(&good, "refs/heads/x"), Ok(()));
        for name in ["refs/heads/y", ""] {
            assert!(read_push_report(&good, name).is_err(), "{name}");
        }
        for bad in [&b"<html>"[..], b"", b"0000", b"00"] {
            assert!(read_server_refs(bad, "x").is_err(), "{bad:?}");
            assert!(read_push_report(bad, "x").is_err(), "{bad:?}");
        }
        for line in [
            "refs/heads/x\n",
            "zz refs/heads/x\n",
            "--all refs/heads/x\n",
        ] {
            let listed = text(&[SERVICE, "flush", line, "flush"]);
            assert!(read_server_refs(&listed, "x").is_err(), "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let _ = read_server_refs(&text, "refs/heads/x");
            let _ = read_push_report(&text, "refs/heads/x");
        }
    }
}
