//! The script that the agent reads in a prompt: one step a line.
//!
//! Owns the table of verbs, which a test compares with the documentation, and the parser of a
//! prompt. Must not know how a step is executed.

use std::fmt;

use super::operands::{
    bytes, choice, duration, echo, no_operand, number, rest_operand, word_operand,
};
use super::step::{ClientStep, Crash, Drill, Hang, Pipes, Step, ToolCall};
use marshal_model::limits::{AGENT_PERMISSION_REQUESTS, AGENT_WRITE_BYTES};

/// The default length of a `flood` line in bytes, newline included.
const FLOOD_LINE_BYTES: usize = 100;

/// One row of the table of verbs.
pub struct Verb {
    /// The first word of the line.
    pub word: &'static str,
    /// The operands.
    pub operands: &'static str,
    /// The effect of the step.
    pub does: &'static str,
}

impl Verb {
    /// The verb with its operands, as the documentation shows it.
    #[must_use]
    pub fn usage(&self) -> String {
        if self.operands.is_empty() {
            self.word.to_owned()
        } else {
            format!("{} {}", self.word, self.operands)
        }
    }
}

impl fmt::Debug for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.usage())
    }
}

/// A row: word, operands, effect.
const fn verb(word: &'static str, operands: &'static str, does: &'static str) -> Verb {
    Verb {
        word,
        operands,
        does,
    }
}

/// All verbs, in the order of the documentation.
pub static VERBS: &[Verb] = &[
    verb("read", "PATH", "reads a file"),
    verb("list", "[PATH]", "lists a directory"),
    verb("search", "PATTERN [PATH]", "searches files"),
    verb("write", "PATH TEXT…", "writes a file"),
    verb("run", "CMD…", "runs a command"),
    verb("say", "TEXT…", "answers"),
    verb("think", "TEXT…", "thinks aloud"),
    verb("plan", "TEXT[; TEXT]…", "says what is to be done"),
    verb("recall", "", "says every earlier prompt"),
    verb("client-read", "PATH", "has the client read a file"),
    verb("client-write", "PATH TEXT…", "has the client write a file"),
    verb(
        "terminal",
        "CMD [ARG]…",
        "has the client run a command to its end",
    ),
    verb("client", "METHOD [JSON]", "sends the client a request"),
    verb(
        "mcp",
        "[SERVER/]TOOL [JSON]",
        "calls a tool of a tool server",
    ),
    verb(
        "mcp-drop",
        "[SERVER/]TOOL [JSON]",
        "calls a tool without waiting for its answer",
    ),
    verb("sleep", "DURATION", "pauses"),
    verb("crash", "[kill]", "dies by a signal"),
    verb("crash-once", "FILE [kill]", "dies if FILE does not exist"),
    verb("exit", "N", "exits at once"),
    verb("hang", "[stopped]", "does nothing any more"),
    verb("flood", "N [SIZE] [BATCH]", "writes many lines"),
    verb("garbage", "[N]", "writes lines that are no messages"),
    verb("huge-line", "N", "writes one long line"),
    verb("endless-line", "", "writes a line without end"),
    verb("slow", "", "writes byte by byte from now on"),
    verb("ignore-cancel", "", "ignores cancels from now on"),
    verb(
        "spawn-orphan",
        "[MARKER] [holding]",
        "leaves a process behind",
    ),
    verb("unasked", "CMD…", "runs a command without asking"),
    verb("ask", "N [PATH]", "measures permission requests"),
    verb("raw", "TEXT…", "writes a line as it stands"),
    verb("storm", "N TEXT…", "writes a line so many times"),
    verb("half", "TEXT…", "writes half a line and closes stdout"),
    verb("mute", "", "closes stdout and goes on"),
    verb(
        "withdraw",
        "CMD…",
        "asks to run a command and withdraws the request",
    ),
    verb("pending", "N", "asks without waiting for answers"),
];

/// Parses the operands of a verb.
fn parse_step(word: &str, rest: &str) -> Result<Step, String> {
    let path = |rest| rest_operand(rest, "PATH");
    let or = |default| if rest.is_empty() { default } else { rest };
    let crash = |rest| choice(rest, Crash::Abort, "kill", Crash::Kill);
    let drill = Step::Drill;
    let bare = |drill| no_operand(rest).map(|()| Step::Drill(drill));
    match word {
        "read" => path(rest).map(|path| Step::Tool(ToolCall::ReadFile { path })),
        "list" => path(or(".")).map(|path| Step::Tool(ToolCall::ListDir { path })),
        "search" => search(rest),
        "write" => {
            let (path, text) = word_operand(rest, "PATH")?;
            let end = if text.is_empty() { "" } else { "\n" };
            let content = format!("{text}{end}");
            Ok(Step::Tool(ToolCall::WriteFile { path, content }))
        }
        "run" => bash(rest).map(Step::Tool),
        "say" => Ok(Step::Say(rest.to_owned())),
        "think" => Ok(Step::Think(rest.to_owned())),
        "plan" => plan(rest),
        "recall" => no_operand(rest).map(|()| Step::Recall),
        "client-read" => path(rest).map(|path| Step::Client(ClientStep::Read { path })),
        "client-write" => {
            let (path, text) = word_operand(rest, "PATH")?;
            let content = format!("{text}\n");
            Ok(Step::Client(ClientStep::Write { path, content }))
        }
        "terminal" => terminal(rest),
        "client" => {
            let (method, params) = json_operand(rest, "METHOD")?;
            Ok(Step::Client(ClientStep::Raw { method, params }))
        }
        "mcp" => tool(rest, true),
        "mcp-drop" => tool(rest, false),
        "sleep" => duration(rest).map(Step::Sleep),
        "crash" => crash(rest).map(|how| drill(Drill::Crash(how))),
        "crash-once" => {
            let (file, how) = word_operand(rest, "FILE")?;
            let how = crash(how)?;
            Ok(drill(Drill::CrashOnce { file, how }))
        }
        "exit" => match rest.parse() {
            Ok(code) => Ok(drill(Drill::Exit(code))),
            Err(_) => Err(format!("needs a code from 0 to 255, not `{}`", echo(rest))),
        },
        "hang" => {
            choice(rest, Hang::Asleep, "stopped", Hang::Stopped).map(|how| drill(Drill::Hang(how)))
        }
        "flood" => flood(rest),
        "garbage" => number(or("5"), "N").map(|lines| drill(Drill::Garbage { lines })),
        "huge-line" => bytes(rest, "N").map(|bytes| drill(Drill::HugeLine { bytes })),
        "endless-line" => bare(Drill::EndlessLine),
        "slow" => bare(Drill::Slow),
        "ignore-cancel" => bare(Drill::IgnoreCancel),
        "spawn-orphan" => orphan(rest),
        "unasked" => bash(rest).map(Step::UnapprovedTool),
        "ask" => ask(rest),
        "raw" => Ok(drill(Drill::Raw(rest.to_owned()))),
        "storm" => {
            let (count, line) = rest.split_once(' ').ok_or("it needs N and TEXT")?;
            let (count, line) = (number(count, "N")?, line.to_owned());
            Ok(drill(Drill::Storm { count, line }))
        }
        "half" => Ok(drill(Drill::Half(rest.to_owned()))),
        "mute" => bare(Drill::Mute),
        "withdraw" => bash(rest).map(|call| drill(Drill::Withdraw(call))),
        "pending" => number(rest, "N").map(|count| drill(Drill::Pending { count })),
        _ => Err("is no verb".to_owned()),
    }
}

/// Why a prompt is no script, as the sentence that the agent answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptError(String);

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "This is not a script that I can follow: {}. I am a script agent: I read one step a line, and a step begins with one of ",
            self.0
        )?;
        for (at, verb) in VERBS.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{}", verb.word)?;
        }
        f.write_str(". Nothing was done.\n")
    }
}

/// Parses a prompt: each step with its line. Empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// The first line that is no step; then no step may be executed.
pub(super) fn parse(prompt: &str) -> Result<Vec<(&str, Step)>, ScriptError> {
    let mut steps = Vec::new();
    for (at, line) in prompt.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("[System: ") {
            continue;
        }
        if let Some(command) = instruction(line) {
            steps.push((line, bash(command).map(Step::Tool).map_err(ScriptError)?));
            continue;
        }
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let Some(verb) = VERBS.iter().find(|verb| verb.word == first) else {
            return Err(ScriptError(format!(
                "line {} begins with `{}`",
                at + 1,
                echo(first)
            )));
        };
        let step = parse_step(verb.word, rest.trim_start())
            .map_err(|why| ScriptError(format!("line {}: `{first}` {why}", at + 1)))?;
        steps.push((line, step));
    }
    if steps.is_empty() {
        return Err(ScriptError("it has no line with a step".to_owned()));
    }
    Ok(steps)
}

/// The command of a sentence that says to run one, as a supervisor writes it to an agent whose work
/// did not land.
fn instruction(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("run `")?;
    let (command, _) = rest.split_once('`')?;
    let is_sentence = before.starts_with(char::is_uppercase);
    (is_sentence && !command.is_empty()).then_some(command)
}

fn search(rest: &str) -> Result<Step, String> {
    let (pattern, rest) = word_operand(rest, "PATTERN")?;
    let path = (!rest.is_empty()).then(|| rest_operand(rest, "PATH"));
    let path = path.transpose()?;
    Ok(Step::Tool(ToolCall::GrepSearch { pattern, path }))
}

/// A word, and JSON: `{}` if there is none.
fn json_operand(rest: &str, name: &str) -> Result<(String, String), String> {
    let (word, json) = word_operand(rest, name)?;
    let json = if json.is_empty() { "{}" } else { json };
    match serde_json::from_str::<serde_json::Value>(json) {
        Ok(_) => Ok((word, json.to_owned())),
        Err(_) => Err(format!("needs JSON, not `{}`", echo(json))),
    }
}

fn tool(rest: &str, waits: bool) -> Result<Step, String> {
    let (tool, arguments) = json_operand(rest, "TOOL")?;
    Ok(Step::Client(ClientStep::Tool {
        tool,
        arguments,
        waits,
    }))
}

fn terminal(mut rest: &str) -> Result<Step, String> {
    let mut argv = Vec::new();
    while !rest.is_empty() {
        let (next, after) = word_operand(rest, "ARG")?;
        argv.push(next);
        rest = after;
    }
    if argv.is_empty() {
        return Err("needs a command".to_owned());
    }
    Ok(Step::Client(ClientStep::Run { argv }))
}

fn plan(rest: &str) -> Result<Step, String> {
    let entries: Vec<String> = rest
        .split(';')
        .map(|entry| entry.trim().to_owned())
        .filter(|entry| !entry.is_empty())
        .collect();
    if entries.is_empty() {
        return Err("needs a TEXT".to_owned());
    }
    Ok(Step::Plan(entries))
}

fn flood(rest: &str) -> Result<Step, String> {
    let clamp = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let mut words = rest.split_whitespace();
    let lines = number(words.next().unwrap_or(""), "N")?;
    let size = words.next().map(|size| bytes(size, "SIZE")).transpose()?;
    let line_bytes = size.map_or(FLOOD_LINE_BYTES, clamp);
    if line_bytes > AGENT_WRITE_BYTES {
        return Err(format!("takes a SIZE up to {AGENT_WRITE_BYTES} bytes"));
    }
    let batch = words.next().map(|batch| number(batch, "BATCH"));
    let batch = batch.transpose()?.map(|batch| clamp(batch.max(1)));
    no_operand(words.next().unwrap_or(""))?;
    Ok(Step::Drill(Drill::Flood {
        lines,
        line_bytes,
        batch,
    }))
}

fn orphan(rest: &str) -> Result<Step, String> {
    let mut words = rest.split_whitespace();
    let marker = words.next().map(str::to_owned);
    let pipes = words.next().unwrap_or("");
    let pipes = choice(pipes, Pipes::Dropped, "holding", Pipes::Held)?;
    no_operand(words.next().unwrap_or(""))?;
    Ok(Step::Drill(Drill::SpawnOrphan { marker, pipes }))
}

fn ask(rest: &str) -> Result<Step, String> {
    let (count, path) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let count = number(count, "N")?;
    if count > AGENT_PERMISSION_REQUESTS {
        return Err(format!("takes an N up to {AGENT_PERMISSION_REQUESTS}"));
    }
    let path = if path.is_empty() { "README.md" } else { path };
    let path = rest_operand(path.trim(), "PATH")?;
    Ok(Step::Drill(Drill::Ask { count, path }))
}

fn bash(rest: &str) -> Result<ToolCall, String> {
    if rest.is_empty() {
        return Err("needs a command".to_owned());
    }
    let command = rest.to_owned();
    Ok(ToolCall::Bash { command })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn one(line: &str) -> Step {
        let mut steps = parse(line).unwrap();
        assert_eq!(steps.len(), 1, "{line}");
        steps.remove(0).1
    }

    fn why(prompt: &str) -> String {
        parse(prompt).unwrap_err().to_string()
    }

    fn write(path: &str, content: &str) -> Step {
        Step::Tool(ToolCall::WriteFile {
            path: path.into(),
            content: content.into(),
        })
    }

    fn list(path: &str) -> Step {
        Step::Tool(ToolCall::ListDir { path: path.into() })
    }

    #[test]
    fn each_verb_reads_its_operands() {
        assert_eq!(
            one("read my file.txt"),
            Step::Tool(ToolCall::ReadFile {
                path: "my file.txt".into()
            })
        );
        assert_eq!(one("list"), list("."));
        assert_eq!(one("list 'a b'"), list("a b"));
        assert_eq!(
            one("search \"a b\" src"),
            Step::Tool(ToolCall::GrepSearch {
                pattern: "a b".into(),
                path: Some("src".into())
            })
        );
        assert_eq!(
            one("write notes.txt hello  you"),
            write("notes.txt", "hello  you\n")
        );
        assert_eq!(one("write \"a b\" x"), write("a b", "x\n"));
        assert_eq!(one("write empty"), write("empty", ""));
        assert_eq!(
            one("run curl https://example.com"),
            Step::Tool(ToolCall::Bash {
                command: "curl https://example.com".into()
            })
        );
        assert_eq!(one("say"), Step::Say(String::new()));
        assert_eq!(one("sleep 1.5s"), Step::Sleep(Duration::from_millis(1500)));
        assert_eq!(one("sleep 2"), Step::Sleep(Duration::from_secs(2)));
        assert_eq!(one("crash"), Step::Drill(Drill::Crash(Crash::Abort)));
        assert_eq!(
            one("crash-once 'a b' kill"),
            Step::Drill(Drill::CrashOnce {
                file: "a b".into(),
                how: Crash::Kill
            })
        );
        assert_eq!(
            one("plan look; ; mend it"),
            Step::Plan(vec!["look".into(), "mend it".into()])
        );
        assert_eq!(
            one("terminal sh -c 'echo a b'"),
            Step::Client(ClientStep::Run {
                argv: vec!["sh".into(), "-c".into(), "echo a b".into()]
            })
        );
        assert_eq!(
            one("client terminal/kill {\"terminalId\": \"x\"}"),
            Step::Client(ClientStep::Raw {
                method: "terminal/kill".into(),
                params: "{\"terminalId\": \"x\"}".into()
            })
        );
        assert_eq!(one("exit 7"), Step::Drill(Drill::Exit(7)));
        assert_eq!(one("hang stopped"), Step::Drill(Drill::Hang(Hang::Stopped)));
        assert_eq!(
            one("flood 1_000 200 64"),
            Step::Drill(Drill::Flood {
                lines: 1000,
                line_bytes: 200,
                batch: Some(64)
            })
        );
        assert_eq!(
            one("huge-line 1M"),
            Step::Drill(Drill::HugeLine { bytes: 1 << 20 })
        );
        assert_eq!(
            one("spawn-orphan mark holding"),
            Step::Drill(Drill::SpawnOrphan {
                marker: Some("mark".into()),
                pipes: Pipes::Held
            })
        );
        assert_eq!(
            one("ask 5"),
            Step::Drill(Drill::Ask {
                count: 5,
                path: "README.md".into()
            })
        );
    }

    #[test]
    fn every_verb_of_the_table_has_its_parser() {
        let unknown = parse_step("frobnicate", "").unwrap_err();
        for verb in VERBS {
            for rest in ["", "1 a"] {
                assert_ne!(parse_step(verb.word, rest), Err(unknown.clone()));
            }
        }
    }

    #[test]
    fn empty_lines_and_remarks_are_skipped() {
        assert_eq!(parse("\n# remark\r\n  say a\r\n\nsay b").unwrap().len(), 2);
    }

    #[test]
    fn a_prompt_that_is_no_script_is_answered_with_the_verbs() {
        let message = why("please fix the build");
        assert!(message.contains("line 1 begins with `please`"), "{message}");
        for verb in VERBS {
            assert!(message.contains(verb.word), "{message}");
        }
        assert!(why("").contains("no line with a step"));
        assert!(why("say a\nfrobnicate").contains("line 2 begins with `frobnicate`"));
    }

    #[test]
    fn a_wrong_operand_is_named() {
        for (line, part) in [
            ("exit 256", "code from 0 to 255, not `256`"),
            ("exit", "code from 0 to 255"),
            ("sleep soon", "duration such as"),
            ("sleep 25h", "24h at most"),
            ("sleep -1s", "duration such as"),
            ("flood many", "a number as N, not `many`"),
            ("flood 1 1M", "a SIZE up to"),
            ("read", "needs a PATH"),
            ("run", "needs a command"),
            ("write", "needs a PATH"),
            ("search \"a b", "quote is not closed"),
            ("crash softly", "takes `kill` or nothing"),
            ("crash-once", "needs a FILE"),
            ("plan ;", "needs a TEXT"),
            ("terminal", "needs a command"),
            ("client fs/x {", "needs JSON"),
            ("recall all", "does not take `all`"),
            ("slow motion", "does not take `motion`"),
            ("huge-line 99999999999G", "too large"),
            ("ask 1000001", "an N up to"),
        ] {
            assert!(why(line).contains(part), "{line}: {}", why(line));
        }
    }

    #[test]
    fn inputs_have_the_fields_that_the_extractor_reads_in_their_order() {
        for (line, tool, input) in [
            ("read a", "read_file", r#"{"path":"a"}"#),
            ("write a b", "write_file", r#"{"path":"a","content":"b\n"}"#),
            ("list", "list_dir", r#"{"path":"."}"#),
            ("search a", "grep_search", r#"{"pattern":"a"}"#),
            ("search a b", "grep_search", r#"{"pattern":"a","path":"b"}"#),
            ("run a", "bash", r#"{"command":"a"}"#),
        ] {
            let Step::Tool(call) = one(line) else {
                panic!("{line} is no tool")
            };
            assert_eq!(call.tool(), tool);
            assert!(ToolCall::TOOLS.contains(&tool));
            assert_eq!(serde_json::to_string(&call).unwrap(), input);
        }
    }

    #[test]
    fn the_documentation_lists_every_verb_and_no_other() {
        let page = include_str!("../../../../docs/script-agent.md");
        let rows: Vec<&str> = page
            .lines()
            .filter_map(|line| {
                line.strip_prefix("| `")?
                    .split_once('`')
                    .map(|(usage, _)| usage)
            })
            .filter(|usage| !usage.starts_with('-') && !usage.starts_with('/'))
            .collect();
        let verbs: Vec<String> = VERBS.iter().map(Verb::usage).collect();
        assert_eq!(rows, verbs);
    }
}
