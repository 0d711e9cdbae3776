//! Markers: how the end of a command is known in what a tool writes.
//!
//! Owns the marker's text, how a tool is told to write it, how it is given a payload as one line, and the
//! search for a marker in pieces of output. A
//! marker is never told to a tool as it is to be printed: the line that is put behind a payload has it in
//! two halves, and a random word at its end, so neither an echo of that line nor a tool that prints what it was
//! told of the marker ends a command.

use std::borrow::Cow;

use memchr::memmem;

use super::{MarkerMode, MarkerSpec, is_id};

/// What a marker begins with that does not say.
pub const PREFIX: &str = "__SP_DONE__";

/// The places of the two halves in a template.
const HALF_PLACEHOLDERS: [&str; 2] = ["{head}", "{tail}"];
/// The place of what is printed instead of the second half if the payload failed.
const FAILED_PLACEHOLDER: &str = "{failed}";

/// How a tool is told to write a marker: one line with `{head}` and `{tail}`, which it prints one after the other. If
/// it can tell that the payload failed, it prints `{failed}` in place of `{tail}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerTemplate(String);

/// A template that does not tell both halves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a marker template is one line with {{head}} and {{tail}} in it, once each and apart, for example: \
     print(\"{{head}}\" \"{{tail}}\")"
)]
pub struct InvalidMarkerTemplate;

impl MarkerTemplate {
    /// Checks a template.
    ///
    /// # Errors
    /// It lacks a half, has one twice, has them side by side, or is more than one line.
    pub fn new(text: &str) -> Result<Self, InvalidMarkerTemplate> {
        let once = |half| text.matches(half).count() == 1;
        let apart = !text.contains("{head}{tail}");
        let apart = apart && !text.contains("{head}{failed}");
        let plain = !text.bytes().any(|b| b < 0x20 || b == 0x7f);
        let failed = text.matches(FAILED_PLACEHOLDER).count() <= 1;
        if HALF_PLACEHOLDERS.into_iter().all(once) && apart && failed && plain {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidMarkerTemplate)
        }
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The line that has a marker printed, with its newline.
    #[must_use]
    pub fn render(&self, marker: &Marker) -> String {
        let [head, tail, failed] = marker.parts();
        let line = self.0.replacen(HALF_PLACEHOLDERS[0], &head, 1);
        // What is filled in has no brace in it.
        let line = line.replacen(HALF_PLACEHOLDERS[1], &tail, 1);
        format!("{}\n", line.replacen(FAILED_PLACEHOLDER, &failed, 1))
    }
}

/// A tool whose ways are known.
#[derive(Debug, Clone, Copy)]
pub struct ToolKind {
    /// Its word.
    pub name: &'static str,
    /// How it is told to write a marker.
    pub marker: &'static str,
    /// What makes it write no prompts.
    pub init: &'static str,
    /// How it is given a payload: see [`PayloadTemplate`].
    pub payload_template: &'static str,
}

impl ToolKind {
    /// Those that are known.
    pub const ALL: [Self; 3] = [
        Self {
            name: "tcl",
            marker: r#"puts [join [list "{head}" [expr {[info exists ::marshal_failed] && $::marshal_failed ? "{failed}" : "{tail}"}]] ""]"#,
            // At a terminal it writes lines that end as a printer wants them.
            init: "set tcl_prompt1 {}; set tcl_prompt2 {}; foreach c {stdout stderr} {fconfigure $c -translation lf}",
            // As it would read the same bytes itself; the last part has it show the payload's error or value.
            payload_template: "set ::marshal_failed [expr {[catch {eval [encoding convertfrom [binary format H* {hex}]]} ::marshal_value] == 1}]; if {$::marshal_failed} {error $::marshal_value} else {set ::marshal_value}",
        },
        Self {
            name: "python",
            marker: r#"print("{head}" + ("{failed}" if hasattr(__import__("sys"), "last_type") else "{tail}"), flush=True)"#,
            init: "import sys; sys.ps1 = ''; sys.ps2 = ''",
            // Each statement as at the prompt, which shows what an expression gives.
            payload_template: r#"__import__("sys").__dict__.pop("last_type", None) and None or (lambda a, s: [exec(compile(a.Interactive([n]), "<command>", "single"), globals()) for n in a.parse(s).body] and None or None)(__import__("ast"), bytes.fromhex("{hex}").decode())"#,
        },
        Self {
            name: "sh",
            marker: r#"echo "{head}""$([ $? -eq 0 ] && echo "{tail}" || echo "{failed}")""#,
            init: "PS1=; PS2=",
            // One list: bash goes on with the next line of what it evaluates if an interrupt ends a command of its own.
            payload_template: r#"eval "$(printf '{ {octal}\n}')""#,
        },
    ];

    /// The one of that word.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|kind| kind.name == name)
    }
}

/// The places of a payload in a [`PayloadTemplate`]: its bytes as pairs of hexadecimal digits, or each that is no letter
/// and no digit as a backslash and three octal digits.
const PAYLOAD_PLACEHOLDERS: [&str; 2] = ["{hex}", "{octal}"];

/// How a tool is given a payload as one line, which it works as a whole or not at all: a tool may read many
/// lines ahead, and an interrupt ends only the one that it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadTemplate(String);

/// A unit without a place for the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a unit is one line with either {{hex}} or {{octal}} in it, once, for example: eval_hex(\"{{hex}}\")"
)]
pub struct InvalidPayloadTemplate;

impl PayloadTemplate {
    /// Checks one.
    ///
    /// # Errors
    /// It has no place for the payload or more than one, or is more than one line.
    pub fn new(text: &str) -> Result<Self, InvalidPayloadTemplate> {
        let places: usize = PAYLOAD_PLACEHOLDERS
            .iter()
            .map(|place| text.matches(place).count())
            .sum();
        if places == 1 && !text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidPayloadTemplate)
        }
    }

    /// The line that has a payload worked, with its newline.
    #[must_use]
    pub fn render(&self, payload: &str) -> String {
        let (place, encoded) = if self.0.contains(PAYLOAD_PLACEHOLDERS[0]) {
            (PAYLOAD_PLACEHOLDERS[0], encode_hex(payload))
        } else {
            (PAYLOAD_PLACEHOLDERS[1], encode_octal(payload))
        };
        format!("{}\n", self.0.replacen(place, &encoded, 1))
    }
}

fn encode_hex(payload: &str) -> String {
    let mut text = String::with_capacity(2 * payload.len());
    for byte in payload.bytes() {
        for half in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(half.into(), 16));
        }
    }
    text
}

fn encode_octal(payload: &str) -> String {
    let mut text = String::with_capacity(2 * payload.len());
    for byte in payload.bytes() {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(byte));
        } else {
            text.push('\\');
            for shift in [6, 3, 0] {
                text.push(char::from(b'0' + (byte >> shift & 7)));
            }
        }
    }
    text
}

/// The last character of a marker that the tool prints where it is told to.
const SUCCEEDED: char = '0';
/// The one in its place if the payload failed.
const FAILED: char = '1';

/// What ends a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    text: String,
    /// It must be a whole line: whoever wrote the payload knows it, and an echo may show it.
    whole_line: bool,
}

impl Marker {
    /// Whether prefix and token can make one.
    #[must_use]
    pub fn is_valid_spec(spec: &MarkerSpec) -> bool {
        is_id(&spec.prefix) && is_id(&spec.token)
    }

    /// The marker of a command; `secret` is a random word that only a marker of the Runner's own has.
    #[must_use]
    pub fn new(spec: &MarkerSpec, secret: &str) -> Self {
        let MarkerSpec {
            prefix,
            token,
            mode,
        } = spec;
        match mode {
            MarkerMode::RunnerInject => Self {
                text: format!("{prefix} {token} {secret}{SUCCEEDED}"),
                whole_line: false,
            },
            MarkerMode::PayloadContains => Self {
                text: format!("{prefix} {token}"),
                whole_line: true,
            },
        }
    }

    /// What is printed if the payload did not fail.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its halves, both of something, and the second one for a payload that failed.
    fn parts(&self) -> [Cow<'_, str>; 3] {
        let (head, tail) = self.text.split_at(self.text.len() / 2);
        let failed = tail.strip_suffix(SUCCEEDED).unwrap_or(tail);
        let failed = format!("{failed}{FAILED}");
        [head.into(), tail.into(), failed.into()]
    }
}

/// Finds a marker in output that comes in pieces. It holds back no more than could be the marker's
/// beginning.
#[derive(Debug)]
pub struct Scanner {
    marker: Marker,
    /// What came and may be the beginning of the marker.
    buffer: Vec<u8>,
    /// What is held begins a line.
    at_line: bool,
    /// The marker came without the end of its line.
    ends_mid_line: bool,
    /// The marker says that the payload failed.
    has_failed: bool,
}

/// The end of a marker's line, which a tool may write after the marker: no output of whatever comes next.
#[derive(Debug, Default)]
pub struct LineEndSkipper {
    is_awaited: bool,
}

impl LineEndSkipper {
    /// A marker was found.
    pub const fn expect_after(&mut self, scanner: &Scanner) {
        self.is_awaited = scanner.ends_mid_line;
    }

    /// What of a piece is behind the marker's line.
    pub fn skip<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        if !self.is_awaited {
            return piece;
        }
        let blanks = piece.iter().take_while(|b| **b == b'\r').count();
        let rest = piece.get(blanks..).unwrap_or_default();
        self.is_awaited = rest.is_empty();
        rest.strip_prefix(b"\n").unwrap_or(rest)
    }
}

impl Scanner {
    /// Before the first byte, which begins a line.
    #[must_use]
    pub const fn new(marker: Marker) -> Self {
        Self {
            marker,
            buffer: Vec::new(),
            at_line: true,
            ends_mid_line: false,
            has_failed: false,
        }
    }

    /// Whether the marker came, and says that the payload failed.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Takes a piece; what of the output is surely not the marker goes into `out`. `true`: the marker came,
    /// and what follows it in this piece is no output of the command.
    pub fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) -> bool {
        self.buffer.extend_from_slice(piece);
        if self.marker.whole_line {
            self.scan_lines(out)
        } else {
            self.scan_anywhere(out)
        }
    }

    /// The command is over without its marker: what was held back is output.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.buffer);
    }

    fn scan_anywhere(&mut self, out: &mut Vec<u8>) -> bool {
        let text = &self.marker.text;
        let marker = text.strip_suffix(SUCCEEDED).unwrap_or(text).as_bytes();
        while let Some(at) = memmem::find(&self.buffer, marker) {
            let last = self.buffer.get(at + marker.len()).copied();
            let Some(last) = last else {
                out.extend(self.buffer.drain(..at));
                return false;
            };
            if ![SUCCEEDED, FAILED].contains(&char::from(last)) {
                out.extend(self.buffer.drain(..=at));
                continue;
            }
            out.extend(self.buffer.drain(..at));
            self.has_failed = char::from(last) == FAILED;
            let behind = self.buffer.get(marker.len() + 1..).unwrap_or_default();
            self.ends_mid_line = behind.iter().all(|b| *b == b'\r');
            self.buffer.clear();
            return true;
        }
        let longest = marker.len().saturating_sub(1).min(self.buffer.len());
        let begins = |length: &usize| {
            let from = self.buffer.len() - length;
            self.buffer
                .get(from..)
                .is_some_and(|end| marker.starts_with(end))
        };
        let length = (1..=longest).rev().find(begins).unwrap_or(0);
        let sure = self.buffer.len() - length;
        out.extend(self.buffer.drain(..sure));
        false
    }

    fn scan_lines(&mut self, out: &mut Vec<u8>) -> bool {
        let marker = self.marker.text.as_bytes();
        let mut from = 0;
        let mut found = false;
        while let Some(rest) = self.buffer.get(from..).filter(|rest| !rest.is_empty()) {
            let end = memchr::memchr(b'\n', rest);
            let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest);
            if self.at_line {
                let bare = line.trim_ascii_end();
                if end.is_some() && bare == marker {
                    found = true;
                    break;
                }
                if end.is_none() && may_become(line, marker) {
                    break;
                }
            }
            self.at_line = end.is_some();
            from += end.map_or(rest.len(), |end| end + 1);
        }
        out.extend(self.buffer.drain(..from));
        if found {
            self.buffer.clear();
        }
        found
    }
}

/// Whether an unfinished line may become the marker with blanks behind it, few enough to be held.
fn may_become(line: &[u8], marker: &[u8]) -> bool {
    const BLANKS: usize = 16;
    marker.starts_with(line)
        || line.len() <= marker.len() + BLANKS && line.trim_ascii_end() == marker
}
