//! The script in a prompt: the meaning of its lines, and which of them is next.
//!
//! Pure: the same conversation always gives the same turn. Must not know HTTP, nor the form of a
//! provider's messages.

use std::time::Duration;

use serde_json::{Map, Value};

/// The first words of a script's lines, as the documentation lists them.
pub(super) const VERBS: &[&str] = &[
    "RUN", "WRITE", "TOOL", "SAY", "SLEEP", "WAIT", "TELL", "FAIL", "HANG", "BIG",
];

/// The maximum pause of one `SLEEP`, and the duration of a `HANG`.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);

/// The maximum size of one `BIG`, in bytes.
pub(super) const MOST_BIG: usize = 16 << 20;

/// The maximum number of characters of a tool's result that an answer repeats.
const ECHO: usize = 4000;

/// One line of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// Calls the agent's shell tool.
    Run(String),
    /// Calls the agent's tool that writes a file.
    Write {
        /// The file.
        path: String,
        /// Its content.
        text: String,
    },
    /// Calls the named tool.
    Tool(ToolRequest),
    /// Answers this text.
    Say(String),
    /// Pauses before it answers.
    Sleep(Duration),
    /// Waits for a signal of another conversation, or sends one.
    Signal(Signal),
    /// Answers with an HTTP error instead.
    Fail(Failure),
    /// Never answers.
    Hang,
    /// Answers with a text of this many bytes.
    Big(usize),
}

/// `TOOL [SERVER/]NAME [ARGUMENTS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolRequest {
    /// The tool server that has it; `None` for one of the agent's own tools.
    pub(super) server: Option<String>,
    /// The tool's name on that server.
    pub(super) name: String,
    /// The arguments of the call.
    pub(super) arguments: Map<String, Value>,
}

/// `FAIL STATUS [xTIMES] [after SECONDS]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    /// The HTTP status, 400 to 599.
    pub(super) status: u16,
    /// How often it fails before the script continues; `None`: always.
    pub(super) times: Option<u32>,
    /// The value of `retry-after`, in seconds.
    pub(super) retry_after: Option<u32>,
}

/// A signal between conversations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Signal {
    /// Waits for a signal, for at most [`LONGEST`].
    Wait(String),
    /// Sends a signal, which stays set.
    Send(String),
}

/// The purpose of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolIntent {
    /// A command line.
    Run(String),
    /// A file.
    Write {
        /// The file.
        path: String,
        /// Its content.
        text: String,
    },
    /// The named tool.
    Tool(ToolRequest),
}

/// One answer of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Turn {
    /// The pause before anything else.
    pub(super) sleep: Duration,
    /// The signals to wait for or to send before the answer, in order.
    pub(super) signals: Vec<Signal>,
    /// The failures that precede the answer, in order.
    pub(super) failures: Vec<Failure>,
    /// Whether the answer never comes.
    pub(super) hang: bool,
    /// The text.
    pub(super) text: String,
    /// The tool call at its end; `None` if the turn ends.
    pub(super) intent: Option<ToolIntent>,
}

/// Parses a prompt: its lines that begin with a verb. Other lines are ignored. A line with a verb
/// and invalid operands (`SLEEP soon`) becomes a text instead of an action, so that the mistake is
/// visible.
///
/// `RUN: <<WORD` takes the lines up to one that is WORD: a command of several lines.
pub(super) fn parse(prompt: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut rest = prompt.lines();
    while let Some(text) = rest.next() {
        let word = match parse_line(text) {
            Some(Line::Run(command)) => command.strip_prefix("<<").map(str::to_owned),
            _ => None,
        };
        match word.filter(|word| !word.trim().is_empty()) {
            Some(word) => {
                let inside = rest.by_ref().take_while(|text| text.trim() != word.trim());
                lines.push(Line::Run(inside.collect::<Vec<_>>().join("\n")));
            }
            None => lines.extend(parse_line(text)),
        }
    }
    lines
}

fn parse_line(text: &str) -> Option<Line> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_uppercase())
        .unwrap_or(text.len());
    let (verb, rest) = text.split_at(end);
    if !VERBS.contains(&verb) || !(rest.is_empty() || rest.starts_with([':', ' '])) {
        return None;
    }
    let rest = rest.strip_prefix(':').unwrap_or(rest).trim();
    let odd = || Some(Line::Say(format!("this line means nothing: {text}")));
    match verb {
        "RUN" | "WAIT" | "TELL" if rest.is_empty() => odd(),
        "RUN" => Some(Line::Run(rest.to_owned())),
        "WRITE" => match rest.split_once(' ') {
            Some((path, text)) => Some(Line::Write {
                path: path.to_owned(),
                text: text.to_owned(),
            }),
            None if rest.is_empty() => odd(),
            None => Some(Line::Write {
                path: rest.to_owned(),
                text: String::new(),
            }),
        },
        "TOOL" => parse_tool(rest).map(Line::Tool).or_else(odd),
        "SAY" => Some(Line::Say(rest.to_owned())),
        "WAIT" => Some(Line::Signal(Signal::Wait(rest.to_owned()))),
        "TELL" => Some(Line::Signal(Signal::Send(rest.to_owned()))),
        "SLEEP" => seconds(rest).map(Line::Sleep).or_else(odd),
        "FAIL" => failure(rest).map(Line::Fail).or_else(odd),
        "HANG" => Some(Line::Hang),
        _ => match rest.parse::<usize>() {
            Ok(bytes) => Some(Line::Big(bytes.min(MOST_BIG))),
            Err(_) => odd(),
        },
    }
}

fn parse_tool(text: &str) -> Option<ToolRequest> {
    let (tool, arguments) = text.split_once(' ').unwrap_or((text, "{}"));
    let (server, name) = match tool.split_once('/') {
        Some((server, name)) => (Some(server), name),
        None => (None, tool),
    };
    if name.is_empty() || server.is_some_and(str::is_empty) {
        return None;
    }
    Some(ToolRequest {
        server: server.map(str::to_owned),
        name: name.to_owned(),
        arguments: serde_json::from_str(arguments).ok()?,
    })
}

/// `2`, `2s`, `1.5s` or `200ms`, at most [`LONGEST`].
fn seconds(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let number: f64 = number.trim().parse().ok()?;
    let wait = Duration::try_from_secs_f64(number * unit).ok()?;
    Some(wait.min(LONGEST))
}

fn failure(text: &str) -> Option<Failure> {
    let mut words = text.split_whitespace();
    let status = words.next()?.parse().ok()?;
    if !(400..=599).contains(&status) {
        return None;
    }
    let mut failure = Failure {
        status,
        times: None,
        retry_after: (status == 429).then_some(1),
    };
    while let Some(word) = words.next() {
        if let Some(times) = word.strip_prefix('x') {
            failure.times = Some(times.parse().ok()?);
        } else if word == "after" {
            let time = words.next()?;
            failure.retry_after = Some(time.strip_suffix('s').unwrap_or(time).parse().ok()?);
        } else {
            return None;
        }
    }
    Some(failure)
}

/// The answer after this many tool results. `last` is the text of the newest one. The answer
/// repeats it, so that a reader sees what reached the model, especially a denial.
pub(super) fn next_turn(lines: &[Line], results: usize, last: Option<&str>) -> Turn {
    let mut turn = Turn::default();
    if let Some(last) = last {
        let last = last.trim();
        let end = last
            .char_indices()
            .nth(ECHO)
            .map_or(last.len(), |(at, _)| at);
        let cut = if end < last.len() { " (cut)" } else { "" };
        turn.text = format!("the tool said: {}{cut}\n", &last[..end]);
    }
    let is_call = |line: &Line| matches!(line, Line::Run(_) | Line::Write { .. } | Line::Tool(_));
    let mut calls = 0;
    for line in lines {
        if calls < results {
            calls += usize::from(is_call(line));
            continue;
        }
        match line {
            Line::Run(command) => {
                turn.intent = Some(ToolIntent::Run(command.clone()));
                break;
            }
            Line::Write { path, text } => {
                turn.intent = Some(ToolIntent::Write {
                    path: path.clone(),
                    text: text.clone(),
                });
                break;
            }
            Line::Tool(named) => {
                turn.intent = Some(ToolIntent::Tool(named.clone()));
                break;
            }
            Line::Say(text) => {
                turn.text.push_str(text);
                turn.text.push('\n');
            }
            Line::Sleep(wait) => turn.sleep = (turn.sleep + *wait).min(LONGEST),
            Line::Signal(sign) => turn.signals.push(sign.clone()),
            Line::Fail(failure) => turn.failures.push(*failure),
            Line::Hang => {
                turn.hang = true;
                break;
            }
            Line::Big(bytes) => push_filler(&mut turn.text, *bytes),
        }
    }
    if turn.text.is_empty() && turn.intent.is_none() {
        turn.text.push_str("done\n");
    }
    turn
}

/// Appends `bytes` bytes of numbered lines.
fn push_filler(text: &mut String, bytes: usize) {
    let end = (text.len() + bytes).min(MOST_BIG);
    let mut number = 0_usize;
    while text.len() < end {
        let line = format!("line {number:06} of a long answer, which goes on and on\n");
        let length = (end - text.len()).min(line.len());
        text.push_str(&line[..length]);
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_verb_is_read_with_and_without_a_colon() {
        let prompt = "Please do this:\nRUN: touch a && ls\n  WRITE: notes.txt two words\nSAY hello\n\
                      SLEEP 200ms\nSLEEP: 1.5\nTOOL: far/look {\"at\":1}\nTOOL look\nWAIT a b\nTELL: c\nFAIL 429\nFAIL: 503 x2 after 7s\nHANG\nBIG 10\n\
                      RUNNING is no verb\nrun neither\n";
        let failure = |status, times, retry_after| {
            Line::Fail(Failure {
                status,
                times,
                retry_after,
            })
        };
        let tool = |server: Option<&str>, name: &str, arguments: &Value| {
            Line::Tool(ToolRequest {
                server: server.map(str::to_owned),
                name: name.to_owned(),
                arguments: arguments.as_object().cloned().expect("an object"),
            })
        };
        assert_eq!(
            parse(prompt),
            [
                Line::Run("touch a && ls".into()),
                Line::Write {
                    path: "notes.txt".into(),
                    text: "two words".into()
                },
                Line::Say("hello".into()),
                Line::Sleep(Duration::from_millis(200)),
                Line::Sleep(Duration::from_millis(1500)),
                tool(Some("far"), "look", &json!({ "at": 1 })),
                tool(None, "look", &json!({})),
                Line::Signal(Signal::Wait("a b".into())),
                Line::Signal(Signal::Send("c".into())),
                failure(429, None, Some(1)),
                failure(503, Some(2), Some(7)),
                Line::Hang,
                Line::Big(10),
            ]
        );
        assert_eq!(parse("Generate a title"), []);
    }

    #[test]
    fn a_command_may_have_several_lines() {
        let lines = parse("RUN: <<END\necho a\n  RUN: b\nEND\nSAY: x\nRUN <<E\nlast");
        assert_eq!(
            lines,
            [
                Line::Run("echo a\n  RUN: b".into()),
                Line::Say("x".into()),
                Line::Run("last".into()),
            ]
        );
    }

    #[test]
    fn a_line_that_means_nothing_is_said() {
        for odd in [
            "SLEEP soon",
            "FAIL 200",
            "FAIL",
            "BIG x",
            "RUN:",
            "WRITE:",
            "TOOL:",
            "WAIT",
            "TELL:",
            "TOOL: /look {}",
            "TOOL: look [1]",
            "TOOL: look {",
            "FAIL 429 y",
        ] {
            let lines = parse(odd);
            let [Line::Say(text)] = lines.as_slice() else {
                panic!("{odd}: {lines:?}");
            };
            assert_eq!(text, &format!("this line means nothing: {odd}"));
        }
        assert_eq!(parse("SLEEP 9999999"), [Line::Sleep(LONGEST)]);
        assert_eq!(parse("BIG 999999999999"), [Line::Big(MOST_BIG)]);
    }

    #[test]
    fn each_answer_has_one_call_and_the_last_one_none() {
        let lines = parse("SAY one\nRUN a\nRUN b\nSAY two\n");
        let first = next_turn(&lines, 0, None);
        assert_eq!(first.text, "one\n");
        assert_eq!(first.intent, Some(ToolIntent::Run("a".into())));
        let second = next_turn(&lines, 1, Some("A\n"));
        assert_eq!(second.text, "the tool said: A\n");
        assert_eq!(second.intent, Some(ToolIntent::Run("b".into())));
        let third = next_turn(&lines, 2, Some("denied by policy"));
        assert_eq!(third.text, "the tool said: denied by policy\ntwo\n");
        assert_eq!(third.intent, None);
        assert_eq!(next_turn(&lines, 9, None).text, "done\n");
    }

    #[test]
    fn a_long_answer_has_exactly_its_bytes_and_a_result_is_cut() {
        let lines = parse("BIG 100000");
        assert_eq!(next_turn(&lines, 0, None).text.len(), 100_000);
        let long = "é".repeat(ECHO + 1);
        let answer = next_turn(&[], 0, Some(&long)).text;
        assert!(answer.ends_with("é (cut)\n"), "{}", answer.len());
    }

    #[test]
    fn a_pause_a_failure_and_a_hang_belong_to_the_answer_that_they_precede() {
        let lines = parse("RUN a\nSLEEP 2\nTELL b\nFAIL 500 x1\nSAY x\nHANG\nSAY never");
        assert_eq!(next_turn(&lines, 0, None).sleep, Duration::ZERO);
        let after = next_turn(&lines, 1, None);
        assert_eq!(after.sleep, Duration::from_secs(2));
        assert_eq!(after.signals, [Signal::Send("b".into())]);
        assert_eq!(after.failures.len(), 1);
        assert!(after.hang);
        assert_eq!(after.text, "x\n");
    }
}
