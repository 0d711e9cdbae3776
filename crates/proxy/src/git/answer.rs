//! Answers of the proxy in git's own protocol, so that `git` shows their reasons.

use super::pkt_line;
use super::push::{Capabilities, RefLine};

/// The most bytes of a report in one line with a band.
const BAND_BYTES: usize = pkt_line::LINE_BYTES - 5;

/// The longest reason: it stands in one line of a terminal or two.
const REASON_BYTES: usize = 500;

/// An answer that ends a push before its commands are known: `remote: marshal: …`. Clients read it
/// in bands.
#[must_use]
pub fn fatal_answer(reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pkt_line::write(
        &mut out,
        format!("\u{3}marshal: {}\n", one_line(reason)).as_bytes(),
    );
    out.extend_from_slice(pkt_line::FLUSH);
    out
}

/// An answer that ends a fetch, or a question for refs: `fatal: remote error: marshal: …`.
/// `service` is that of an advertisement.
#[must_use]
pub fn error_answer(service: Option<&str>, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(service) = service {
        pkt_line::write(&mut out, format!("# service={service}\n").as_bytes());
        out.extend_from_slice(pkt_line::FLUSH);
    }
    pkt_line::write(
        &mut out,
        format!("ERR marshal: {}\n", one_line(reason)).as_bytes(),
    );
    out
}

/// The report of a push of which nothing passed, each ref with its reason (gitprotocol-pack(5),
/// "Report Status"): `! [remote rejected] main -> main (marshal: …)`. `None`: the client wants no
/// report.
#[must_use]
pub fn push_answer(capabilities: &Capabilities, lines: &[RefLine]) -> Option<Vec<u8>> {
    if !capabilities.wants_report() {
        return None;
    }
    let mut report = Vec::new();
    pkt_line::write(&mut report, b"unpack ok\n");
    for RefLine { name, reason } in lines {
        let line = format!("ng {name} marshal: {}\n", one_line(reason));
        pkt_line::write(&mut report, line.as_bytes());
    }
    report.extend_from_slice(pkt_line::FLUSH);
    if !capabilities.has_bands() {
        return Some(report);
    }
    let mut out = Vec::new();
    for piece in report.chunks(BAND_BYTES) {
        pkt_line::write(&mut out, &[&[1], piece].concat());
    }
    out.extend_from_slice(pkt_line::FLUSH);
    Some(out)
}

/// A reason in one line of printable text.
fn one_line(reason: &str) -> String {
    marshal_model::untrusted::escape_for_display(reason, REASON_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, reason: &str) -> RefLine {
        RefLine {
            name: name.to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_report_says_of_each_ref_why_it_did_not_pass() {
        let lines = [
            line("refs/heads/main", "no"),
            line("refs/tags/a", "not\nthis"),
        ];
        let plain = Capabilities::parse("report-status").expect("known");
        let text = push_answer(&plain, &lines).expect("a report");
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.starts_with("000eunpack ok\n0023ng refs/heads/main marshal: no\n"),
            "{text}"
        );
        assert!(
            text.ends_with("0000") && text.lines().count() == 4,
            "{text}"
        );
        let bands = Capabilities::parse("report-status-v2 side-band-64k").expect("known");
        let banded = push_answer(&bands, &lines).expect("a report");
        assert_eq!(&banded[4..5], &[1]);
        assert_eq!(&banded[5..5 + text.len()], text.as_bytes());
        assert!(banded.ends_with(b"00000000"));
        let none = Capabilities::parse("side-band-64k").expect("known");
        assert_eq!(push_answer(&none, &lines), None);
    }

    #[test]
    fn an_error_is_a_line_of_its_own() {
        assert_eq!(error_answer(None, "no"), b"0014ERR marshal: no\n");
        let text = error_answer(Some("git-upload-pack"), "no");
        assert!(text.starts_with(b"001e# service=git-upload-pack\n0000"));
    }
}
