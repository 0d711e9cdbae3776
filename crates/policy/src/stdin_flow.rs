//! A shell's standard input, as far as the text of a command determines it: the here-documents of
//! groups, loops and functions around it, and what `echo` and `printf` pipe in.
//!
//! Owns only the bookkeeping. In doubt a shell reads more than it does: the result is only used by
//! rules that forbid. Must not know rules.

use std::ops::Range;

use super::command::{Command, base_name};
use super::flow::Edge;
use super::wrappers::SHELLS;

/// How many texts one shell gets beside its own.
const MAX_STDIN_TEXTS: usize = 16;

/// Assigns every command that runs a shell the texts that it may read, as [`Command::stdin`].
pub(super) fn assign_stdin_texts(
    commands: &mut [Command],
    texts: &mut Vec<String>,
    edges: &[Edge],
    functions: &[(String, Range<usize>)],
) {
    if !commands.iter().any(runs_shell) {
        return;
    }
    // A redirect into a group follows it, without a command of its own.
    let mut behind = Vec::new();
    for command in commands.iter_mut().rev() {
        if command.words.is_empty() {
            behind.extend(
                command
                    .stdin
                    .iter()
                    .copied()
                    .take(MAX_STDIN_TEXTS - behind.len()),
            );
        } else if command.stdin.is_empty() && runs_shell(command) {
            add_stdin_texts(command, &behind);
        }
    }
    for (from, to) in edges {
        let to = to.start.min(commands.len())..to.end.min(commands.len());
        let calls = |command: &Command| runs_shell(command) || is_function(command, functions);
        if !commands[to.clone()].iter().any(calls) {
            continue;
        }
        let mut read = Vec::new();
        for command in commands.get(from.clone()).unwrap_or_default() {
            read.extend(command.stdin.iter().copied());
            if let Some(text) = printed_text(command) {
                read.push(texts.len());
                texts.push(text);
            }
            if read.len() >= MAX_STDIN_TEXTS {
                break;
            }
        }
        for command in &mut commands[to] {
            if calls(command) {
                add_stdin_texts(command, &read);
            }
        }
    }
    for (name, body) in functions {
        let called = commands.iter().filter(|command| is_called(command, name));
        let read: Vec<usize> = called
            .flat_map(|c| c.stdin.iter().copied())
            .take(MAX_STDIN_TEXTS)
            .collect();
        let body = body.start.min(commands.len())..body.end.min(commands.len());
        for command in commands[body].iter_mut().filter(|c| runs_shell(c)) {
            add_stdin_texts(command, &read);
        }
    }
}

fn add_stdin_texts(command: &mut Command, places: &[usize]) {
    for place in places.iter().take(MAX_STDIN_TEXTS) {
        if !command.stdin.contains(place) {
            command.stdin.push(*place);
        }
    }
}

fn runs_shell(command: &Command) -> bool {
    let mut words = command.words.iter();
    words.any(|word| SHELLS.contains(&base_name(&word.text)))
}

fn is_called(command: &Command, name: &str) -> bool {
    command.words.first().is_some_and(|word| word.text == name)
}

fn is_function(command: &Command, functions: &[(String, Range<usize>)]) -> bool {
    functions.iter().any(|(name, _)| is_called(command, name))
}

/// The output of `echo` and `printf`, if a command is one of them.
fn printed_text(command: &Command) -> Option<String> {
    let (program, words) = command.words.split_first()?;
    let between = match base_name(&program.text) {
        "echo" => " ",
        "printf" => "\n",
        _ => return None,
    };
    let flags = words.iter().take_while(|word| {
        let letters = word.text.strip_prefix('-');
        letters.is_some_and(|l| !l.is_empty() && l.bytes().all(|b| b"neE".contains(&b)))
    });
    let words = &words[flags.count()..];
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let text = texts.join(between);
    Some(text.replace("\\n", "\n").replace("\\t", "\t"))
}
