//! Texts in arguments that programs run as code.

use super::{base_name, join};
use crate::command::Word;

/// Built-ins that evaluate their words, quoted or not: a subscript with a substitution in it runs
/// that.
const EVALUATING_BUILTINS: &[&str] = &[
    "let",
    "test",
    "[",
    "[[",
    "printf",
    "read",
    "declare",
    "typeset",
    "local",
    "export",
    "readonly",
    "unset",
    "mapfile",
    "readarray",
    "wait",
    "getopts",
];

/// Adds the scripts in a command's arguments; its first word is the program.
pub(super) fn collect_scripts(name: &str, words: &[Word], out: &mut Vec<String>) {
    let arguments = &words[1..];
    match name {
        "trap" => {
            let flags = arguments.iter().take_while(|w| w.text.starts_with('-'));
            let at = flags.count();
            out.extend(arguments.get(at).map(|w| w.text.clone()));
        }
        "alias" => {
            let values = arguments.iter().filter_map(|w| w.text.split_once('='));
            out.extend(values.map(|(_, value)| value.to_owned()));
        }
        "hash" => collect_flag_values(arguments, &["-p"], out),
        "mapfile" | "readarray" | "compgen" | "complete" => {
            collect_flag_values(arguments, &["-C"], out);
        }
        "npx" | "npm" | "pnpm" | "bunx" => {
            collect_flag_values(arguments, &["-c", "--call", "--shell"], out);
        }
        "nix-shell" | "nix" => collect_flag_values(arguments, &["--run", "--command", "-c"], out),
        "parallel" => {
            let command = arguments.iter().find(|w| w.text.contains(' '));
            out.extend(command.map(|w| w.text.clone()));
        }
        "tmux" | "screen" | "xterm" => {
            let commands = arguments.iter().filter(|w| w.text.contains(' '));
            out.extend(commands.map(|w| w.text.clone()));
        }
        "tar" => collect_flag_values(
            arguments,
            &[
                "--to-command",
                "--use-compress-program",
                "-I",
                "--checkpoint-action=exec",
            ],
            out,
        ),
        "rsync" => collect_flag_values(arguments, &["-e", "--rsh"], out),
        "sg" => out.extend(arguments.last().map(|w| w.text.clone())),
        "git" => collect_git_scripts(arguments, out),
        _ => {}
    }
    if EVALUATING_BUILTINS.contains(&base_name(name)) {
        let computed = |w: &&Word| w.quoted && w.text.contains('[') && w.text.contains(['$', '`']);
        let words = arguments.iter().filter(computed);
        out.extend(words.map(|w| w.text.clone()));
    }
}

/// The values of flags, attached or not.
fn collect_flag_values(words: &[Word], flags: &[&str], out: &mut Vec<String>) {
    for (at, word) in words.iter().enumerate() {
        for flag in flags {
            let Some(rest) = word.text.strip_prefix(flag) else {
                continue;
            };
            let attached = rest.strip_prefix('=').unwrap_or(rest);
            let next = words.get(at + 1).map(|w| w.text.as_str());
            let value = if rest.is_empty() {
                next
            } else {
                Some(attached)
            };
            let long = flag.starts_with("--") && !rest.is_empty() && !rest.starts_with('=');
            out.extend(value.filter(|_| !long).map(str::to_owned));
        }
    }
}

/// Git runs what `bisect run`, `submodule foreach`, `rebase --exec` and aliases name.
fn collect_git_scripts(words: &[Word], out: &mut Vec<String>) {
    let texts: Vec<&str> = words.iter().map(|w| w.text.as_str()).collect();
    for (at, pair) in texts.windows(2).enumerate() {
        match pair {
            ["bisect", "run"] => out.push(join(&words[at + 2..])),
            ["submodule", _] | [_, "foreach"] if texts[..=at + 1].contains(&"submodule") => {
                if let Some(each) = texts.iter().position(|t| *t == "foreach") {
                    let flags = texts[each + 1..].iter().take_while(|t| t.starts_with('-'));
                    out.push(join(&words[each + 1 + flags.count()..]));
                }
            }
            _ => {}
        }
    }
    if texts.contains(&"rebase") {
        collect_flag_values(words, &["-x", "--exec"], out);
    }
    // Settings name the programs for pagers, editors and connections.
    let pairs = texts.windows(2).filter(|pair| pair[0] == "-c");
    let settings = pairs.filter_map(|pair| pair[1].split_once('='));
    out.extend(settings.map(|(_, value)| value.to_owned()));
    let commands = texts.iter().filter_map(|t| t.split_once("=!"));
    out.extend(commands.map(|(_, command)| command.to_owned()));
}
