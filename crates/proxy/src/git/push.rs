//! The commands of a push: read strictly, checked against the refs of the route, and written anew
//! for the upstream (gitprotocol-pack(5), "Reference Update Request").

use super::pkt_line::{self, Line, Next};
use marshal_config::{RefPattern, is_plain_ref};
use marshal_model::limits::{PUSH_COMMAND_BYTES, PUSH_COMMANDS};
use marshal_telemetry::labels::RouteRefusal as Why;

/// A body that is not the commands of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the push is not in git's protocol: {0}")]
pub struct Malformed(pub &'static str);

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The commit that the ref has; `None`: it is created.
    pub old: Option<String>,
    /// The commit that the ref gets; `None`: it is deleted.
    pub new: Option<String>,
    /// The ref's name.
    pub name: String,
}

/// What the client of a push can do, as far as the proxy passes it on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    passed: Vec<&'static str>,
    /// What was asked for, and makes the push another one.
    refused: Option<&'static str>,
}

/// Capabilities that are passed on. All others are dropped: nothing depends on them.
const PASSED: &[&str] = &[
    "report-status",
    "report-status-v2",
    "side-band-64k",
    "quiet",
    "object-format=sha1",
    "object-format=sha256",
];

impl Capabilities {
    /// Reads the words behind the first command.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut all = Self::default();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            if let Some(known) = PASSED.iter().find(|known| **known == word) {
                if !all.passed.contains(known) {
                    all.passed.push(known);
                }
            } else if word == "push-options" {
                all.refused = Some("push options are not passed on: push without --push-option");
            } else if word.starts_with("object-format=") {
                return Err(Malformed("its object format is unknown"));
            }
        }
        let formats = all.passed.iter().filter(|word| word.starts_with("object-"));
        if formats.count() > 1 {
            return Err(Malformed("it has two object formats"));
        }
        Ok(all)
    }

    /// Whether the client wants to know what became of each ref.
    #[must_use]
    pub fn wants_report(&self) -> bool {
        self.has("report-status") || self.has("report-status-v2")
    }

    /// Whether the client reads reports in bands.
    #[must_use]
    pub fn has_bands(&self) -> bool {
        self.has("side-band-64k")
    }

    /// The name of the repository's hash algorithm.
    #[must_use]
    pub fn object_format(&self) -> &'static str {
        if self.has("object-format=sha256") {
            "sha256"
        } else {
            "sha1"
        }
    }

    fn has(&self, word: &str) -> bool {
        self.passed.contains(&word)
    }

    /// Characters of an object's id.
    fn id_length(&self) -> usize {
        if self.has("object-format=sha256") {
            64
        } else {
            40
        }
    }
}

/// All commands of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commands {
    /// The commands; none in the request by which git probes a server.
    pub commands: Vec<Command>,
    /// What the client can do.
    pub capabilities: Capabilities,
}

/// What became of a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefLine {
    /// Its name, as the client sent it.
    pub name: String,
    /// Why it did not pass.
    pub reason: String,
}

/// Why a push does not pass, for each of its refs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushRefusal {
    /// The label of `marshal_route_refused_total{reason}`; `None` for an upstream that failed.
    pub why: Option<Why>,
    /// One line for each command.
    pub lines: Vec<RefLine>,
}

/// Reads the commands at the beginning of a push, and how long they are. `None`: more of it is
/// needed.
///
/// # Errors
/// [`Malformed`]
pub fn parse_commands(text: &[u8]) -> Result<Option<(Commands, usize)>, Malformed> {
    let mut all = Commands::default();
    let mut rest = text;
    loop {
        if text.len() - rest.len() > PUSH_COMMAND_BYTES {
            return Err(Malformed("its commands are too long"));
        }
        let line = match pkt_line::read(rest) {
            Next::Line(line, after) => {
                rest = after;
                line
            }
            Next::Incomplete if text.len() <= PUSH_COMMAND_BYTES => return Ok(None),
            Next::Incomplete => return Err(Malformed("its commands are too long")),
            Next::Malformed => return Err(Malformed("a line has no valid length")),
        };
        match line {
            Line::Flush => return Ok(Some((all, text.len() - rest.len()))),
            Line::Data(line) => all.add(line)?,
        }
    }
}

impl Commands {
    fn add(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| Malformed("a line is not UTF-8"))?;
        let is_first = self.commands.is_empty();
        if line.starts_with("push-cert") {
            return Err(Malformed(
                "signed pushes are not passed on: push without --signed",
            ));
        }
        if is_first && line.starts_with("shallow ") {
            // The upstream has what this clone lacks, or refuses the push: it is not told.
            return Ok(());
        }
        let (command, words) = match line.split_once('\0') {
            Some((command, words)) if is_first && !words.contains('\0') => (command, words),
            None => (line, ""),
            Some(_) => return Err(Malformed("a command has a NUL byte")),
        };
        if is_first {
            self.capabilities = Capabilities::parse(words)?;
        }
        if self.commands.len() >= PUSH_COMMANDS {
            return Err(Malformed("it has too many commands"));
        }
        let mut parts = command.splitn(3, ' ');
        let length = self.capabilities.id_length();
        let mut next_id = || parse_id(parts.next().unwrap_or_default(), length);
        let (old, new) = (next_id()?, next_id()?);
        let name = parts.next().unwrap_or_default();
        // It comes back in the report.
        if name.is_empty() || name.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(Malformed("a command has no valid ref"));
        }
        self.commands.push(Command {
            old,
            new,
            name: name.to_owned(),
        });
        Ok(())
    }

    /// The one command of a push that may pass, as far as its commands show.
    ///
    /// # Errors
    /// [`PushRefusal`]
    pub fn check(&self, route: &str, allowed: &[RefPattern]) -> Result<&Command, PushRefusal> {
        if let Some(why) = self.capabilities.refused {
            return Err(self.refuse(Why::NotAllowed, why));
        }
        let [command] = &*self.commands else {
            let count = self.commands.len();
            return Err(self.refuse(
                Why::PushRef,
                format!("the route {route} takes one ref a push, this one has {count}: push each by itself"),
            ));
        };
        let name = &command.name;
        if !is_plain_ref(name) || !allowed.iter().any(|pattern| pattern.matches(name)) {
            let patterns: Vec<&str> = allowed.iter().map(RefPattern::as_str).collect();
            let allowed = patterns.join(", ");
            return Err(self.refuse(
                Why::PushRef,
                format!("the route {route} allows pushes only to {allowed}"),
            ));
        }
        if command.new.is_none() {
            let why = format!("the route {route} deletes no ref");
            return Err(self.refuse(Why::PushRef, why));
        }
        Ok(command)
    }

    /// A refusal of all commands.
    #[must_use]
    pub fn refuse(&self, why: impl Into<Option<Why>>, reason: impl Into<String>) -> PushRefusal {
        let reason = reason.into();
        let line = |command: &Command| RefLine {
            name: command.name.clone(),
            reason: reason.clone(),
        };
        PushRefusal {
            why: why.into(),
            lines: self.commands.iter().map(line).collect(),
        }
    }

    /// The commands as the upstream gets them, before the pack: one command, and the capabilities
    /// that the proxy knows.
    #[must_use]
    pub fn to_upstream(&self, command: &Command) -> Vec<u8> {
        let zero = "0".repeat(self.capabilities.id_length());
        let [old, new] = [&command.old, &command.new].map(|id| id.as_deref().unwrap_or(&zero));
        let words = self.capabilities.passed.join(" ");
        let line = format!("{old} {new} {}\0{words}\n", command.name);
        let mut out = Vec::new();
        pkt_line::write(&mut out, line.as_bytes());
        out.extend_from_slice(pkt_line::FLUSH);
        out
    }
}

/// An object's id; `None` for the one of zeros, which stands for nothing.
fn parse_id(text: &str, length: usize) -> Result<Option<String>, Malformed> {
    let is_id = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != length || !text.bytes().all(is_id) {
        return Err(Malformed("a command has no valid object id"));
    }
    let is_zero = text.bytes().all(|b| b == b'0');
    Ok((!is_zero).then(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "0000000000000000000000000000000000000000";
    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn lines(lines: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines {
            pkt_line::write(&mut out, line.as_bytes());
        }
        out.extend_from_slice(b"0000");
        out
    }

    fn parsed(text: &[u8]) -> Commands {
        let (commands, length) = parse_commands(text).expect("good").expect("whole");
        assert_eq!(length, text.len());
        commands
    }

    fn patterns() -> Vec<RefPattern> {
        vec![RefPattern::parse("refs/heads/marshal/*").expect("good")]
    }

    #[test]
    fn one_command_with_its_capabilities_is_read_and_written_anew() {
        let text = lines(&[
            &format!("shallow {A}"),
            &format!(
                "{A} {B} refs/heads/marshal/x\0 report-status-v2 side-band-64k quiet atomic object-format=sha1 agent=git/2.47 session-id=secret"
            ),
        ]);
        for end in 0..text.len() {
            assert_eq!(parse_commands(&text[..end]), Ok(None), "{end}");
        }
        let all = parsed(&text);
        let command = all.check("own", &patterns()).expect("it passes");
        let out = String::from_utf8(all.to_upstream(command)).expect("text");
        assert_eq!(
            out[4..],
            format!(
                "{A} {B} refs/heads/marshal/x\0report-status-v2 side-band-64k quiet object-format=sha1\n0000"
            )
        );
        // What follows the commands is not theirs.
        let with_pack = [&*text, b"PACK"].concat();
        let read = parse_commands(&with_pack).expect("good").expect("whole");
        assert_eq!(read.1, text.len());
        // Git probes a server like this.
        assert_eq!(parsed(b"0000"), Commands::default());
    }

    #[test]
    fn sha256_has_longer_ids() {
        let id = "c".repeat(64);
        let all = parsed(&lines(&[&format!(
            "{} {id} refs/heads/marshal/x\0object-format=sha256",
            "0".repeat(64)
        )]));
        assert_eq!(all.capabilities.object_format(), "sha256");
        let command = all.check("own", &patterns()).expect("it passes");
        assert_eq!(command.old, None);
        assert!(parse_commands(&all.to_upstream(command)).is_ok());
    }

    #[test]
    fn refs_deletions_and_several_refs_are_refused_with_a_reason() {
        let check = |commands: &[&str], expect: &str| {
            let refusal = parsed(&lines(commands))
                .check("own", &patterns())
                .expect_err("refused");
            assert_eq!(refusal.why, Some(Why::PushRef));
            assert_eq!(refusal.lines.len(), commands.len());
            for line in &refusal.lines {
                assert!(line.reason.contains(expect), "{}", line.reason);
            }
        };
        let only = "only to refs/heads/marshal/*";
        for name in [
            "refs/heads/main",
            "refs/heads/marshal",
            "refs/heads/marshal/",
            "refs/heads/marshal/../main",
            "refs/heads/marshal/x.lock",
            "refs/heads/marshal//x",
            "refs/heads/marshalx/y",
            "refs/tags/v1",
            "refs/notes/x",
            "HEAD",
            "refs/heads/marshal/*",
            "refs/heads/marshal/x@{1}",
            "refs/heads/marshal/\u{e9}",
        ] {
            check(&[&format!("{ZERO} {A} {name}")], only);
        }
        check(
            &[&format!("{A} {ZERO} refs/heads/marshal/x")],
            "deletes no ref",
        );
        let two = [
            format!("{ZERO} {A} refs/heads/marshal/x\0report-status"),
            format!("{ZERO} {A} refs/heads/marshal/y"),
        ];
        check(&[&two[0], &two[1]], "one ref a push, this one has 2");
    }

    #[test]
    fn push_options_and_certificates_are_refused() {
        let text = lines(&[&format!("{ZERO} {A} refs/heads/marshal/x\0push-options")]);
        let refusal = parsed(&text)
            .check("own", &patterns())
            .expect_err("refused");
        assert!(refusal.lines[0].reason.contains("push options"));
        let signed = lines(&["push-cert\0report-status"]);
        assert!(parse_commands(&signed).is_err_and(|error| error.0.contains("signed")));
    }

    #[test]
    fn what_is_no_push_is_malformed() {
        let many: Vec<String> = (0..=PUSH_COMMANDS)
            .map(|at| format!("{ZERO} {A} refs/heads/{at}"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for bad in [
            lines(&[&format!("{A} {B}")]),
            lines(&[&format!("{A}  {B} refs/heads/x")]),
            lines(&[&format!("{} {B} refs/heads/x", A.to_uppercase())]),
            lines(&[&format!("{} {B} refs/heads/x", &A[1..])]),
            lines(&[&format!("{A} {B} refs/heads/a b")]),
            lines(&[&format!("{A} {B} refs/heads/a\nb")]),
            lines(&[&format!("{A} {B} refs/heads/a\0b\0c")]),
            lines(&[&format!("{A} {B} refs/x\0object-format=md5")]),
            lines(&[&format!(
                "{A} {B} refs/x\0object-format=sha1 object-format=sha256"
            )]),
            lines(&[
                &format!("{A} {B} refs/x"),
                &format!("{A} {B} refs/y\0quiet"),
            ]),
            lines(&[&format!("{A} {B} refs/x"), &format!("shallow {A}")]),
            lines(&["hello"]),
            lines(&many),
            b"00zz".to_vec(),
            b"PACK".to_vec(),
            b"0001".to_vec(),
            [b"fff0", &vec![b'x'; PUSH_COMMAND_BYTES][..]].concat(),
        ] {
            let shown = String::from_utf8_lossy(&bad[..bad.len().min(200)]).into_owned();
            assert!(parse_commands(&bad).is_err(), "{shown}");
        }
        let shallow = format!("shallow {A}");
        let long = vec![&*shallow; PUSH_COMMAND_BYTES / 40];
        assert!(parse_commands(&lines(&long)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let _ = parse_commands(&text);
            let _ = super::super::limit_capabilities(&text);
        }
    }
}
