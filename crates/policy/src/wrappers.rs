//! Finds commands behind programs that run other programs: `env`, `sudo`, `xargs`, `find -exec`,
//! `sh -c`, `eval`.
//!
//! Owns the facts about such programs' arguments. Rules that deny or ask see everything found here.
//! A rule that allows sees only what [`strip_transparent`] strips, which knows its wrappers
//! exactly. Must not know rules or paths.

use std::collections::HashSet;
use std::ops::Range;

use super::command::{Command, Word, base_name, is_variable_name};

mod code;
mod wrapper_names;

use wrapper_names::{RUN_FLAGS, RUN_SUBCOMMANDS, SUBCOMMAND_RUNNERS, UNPARSED_WRAPPERS};

/// How a wrapper's arguments end and the inner command begins.
struct Wrapper {
    /// Letters of flags that take a value.
    values: &'static str,
    /// Long flags that take the next word as value.
    long: &'static [&'static str],
    /// Operands before the inner command.
    skip: usize,
    /// `NAME=value` words may stand before the inner command.
    assigns: bool,
    /// A letter whose value is a script.
    script: Option<char>,
    /// A letter whose value is the directory in which the inner command runs.
    directory: Option<char>,
}

const BARE: Wrapper = Wrapper {
    values: "",
    long: &[],
    skip: 0,
    assigns: false,
    script: None,
    directory: None,
};

/// The wrapper of that name. Options are those of the manual pages of coreutils, util-linux,
/// findutils, sudo, and bash(1).
#[expect(clippy::too_many_lines, reason = "a table")]
fn find_wrapper(name: &str) -> Option<Wrapper> {
    Some(match name {
        "nohup" | "setsid" | "builtin" | "busybox" | "toybox" | "pkexec" | "unbuffer"
        | "catchsegv" | "unshare" | "proot" | "fakeroot" | "torsocks" | "proxychains"
        | "setarch" => Wrapper {
            values: "u",
            long: &["--user"],
            ..BARE
        },
        "command" => BARE,
        "exec" => Wrapper {
            values: "a",
            ..BARE
        },
        "env" => Wrapper {
            values: "uCa",
            long: &["--unset", "--chdir", "--argv0"],
            assigns: true,
            script: Some('S'),
            directory: Some('C'),
            ..BARE
        },
        "sudo" | "doas" | "run0" => Wrapper {
            values: "ugUhpCDRTrtc",
            long: &[
                "--user",
                "--group",
                "--host",
                "--prompt",
                "--chdir",
                "--other-user",
                "--chroot",
                "--command-timeout",
                "--close-from",
                "--role",
                "--type",
            ],
            assigns: true,
            directory: Some('D'),
            ..BARE
        },
        "su" | "runuser" | "script" | "sg" => Wrapper {
            values: "ugsGwTIOBEo",
            skip: usize::MAX,
            script: Some('c'),
            ..BARE
        },
        "nice" => Wrapper {
            values: "n",
            long: &["--adjustment"],
            ..BARE
        },
        "ionice" => Wrapper {
            values: "cnpPut",
            long: &["--class", "--classdata"],
            ..BARE
        },
        "stdbuf" => Wrapper {
            values: "ioe",
            long: &["--input", "--output", "--error"],
            ..BARE
        },
        "timeout" => Wrapper {
            values: "ks",
            long: &["--kill-after", "--signal"],
            skip: 1,
            ..BARE
        },
        "time" => Wrapper {
            values: "fo",
            long: &["--format", "--output"],
            ..BARE
        },
        // `-i`, `-l` and `-e` accept values only attached.
        "xargs" => Wrapper {
            values: "ILnPsadEJRS",
            long: &[
                "--arg-file",
                "--delimiter",
                "--max-args",
                "--max-procs",
                "--max-chars",
                "--process-slot-var",
            ],
            ..BARE
        },
        "parallel" => Wrapper {
            values: "IiLlnPsadEeJRjS",
            long: &[
                "--arg-file",
                "--delimiter",
                "--max-args",
                "--max-procs",
                "--jobs",
            ],
            ..BARE
        },
        "strace" | "ltrace" | "gdb" | "valgrind" | "perf" => Wrapper {
            values: "eopsuPaESO",
            ..BARE
        },
        "taskset" | "chrt" | "chroot" | "numactl" | "uclampset" => Wrapper {
            values: "TPDNmpC",
            long: &["--userspec", "--groups"],
            skip: 1,
            ..BARE
        },
        "flock" => Wrapper {
            values: "wE",
            long: &["--timeout", "--wait", "--conflict-exit-code"],
            skip: 1,
            script: Some('c'),
            ..BARE
        },
        "nsenter" => Wrapper {
            values: "tSG",
            long: &["--target"],
            ..BARE
        },
        _ => return None,
    })
}

/// Whether a shell or a common program runs the value of that variable as a command.
pub(super) fn is_command_variable(name: &str) -> bool {
    let ends = ["PAGER", "EDITOR", "_COMMAND", "ASKPASS", "BROWSER"];
    ends.iter().any(|end| name.ends_with(end))
        || matches!(
            name,
            "VISUAL" | "LESSOPEN" | "LESSCLOSE" | "GIT_SSH" | "GIT_EXTERNAL_DIFF"
        )
}

/// How many words behind a wrapper without a known grammar are examined.
const TANGLE: usize = 24;

/// Programs that run a script given as text.
pub(super) const SHELLS: &[&str] = &[
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash", "rksh", "rzsh", "csh",
    "tcsh", "ksh93", "lksh", "yash", "posh",
];

/// One inner command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct InnerCommand {
    /// The word range in the outer command.
    pub range: Range<usize>,
    /// Whether the wrapper adds words or replaces `{}` in them.
    pub has_added_words: bool,
    /// Whether it runs in unknown directories.
    pub is_cwd_unknown: bool,
}

/// The commands and scripts behind one command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WrapperContents {
    /// Inner commands.
    pub commands: Vec<InnerCommand>,
    /// Scripts that are still to be read.
    pub scripts: Vec<String>,
    /// The directories in which a wrapper may run them, by the indexes of their words.
    pub directories: Vec<usize>,
    /// Whether there was more than [`CHAIN`] of it.
    pub is_truncated: bool,
}

/// How many nested wrappers are followed: each may read the rest of the line.
const CHAIN: usize = 256;

/// Finds what is behind a command, through all nested wrappers. [`Command::stdin`] indexes into
/// `texts`.
pub(super) fn find_inner_commands(command: &Command, texts: &[String]) -> WrapperContents {
    let mut out = WrapperContents::default();
    let words = &command.words;
    if words.is_empty() {
        return out;
    }
    // Ranges only shrink, and those of one `find` do not overlap.
    let whole = InnerCommand {
        range: 0..words.len(),
        has_added_words: false,
        is_cwd_unknown: false,
    };
    let mut open = vec![whole.clone()];
    let mut seen = HashSet::new();
    while let Some(inner) = open.pop() {
        if !seen.insert(inner.clone()) {
            continue;
        }
        if out.commands.len() >= CHAIN {
            out.is_truncated = true;
            break;
        }
        let range = inner.range.clone();
        let here = &words[range.clone()];
        if inner != whole {
            out.commands.push(inner.clone());
        }
        let Some(first) = here.first().filter(|w| !w.is_dynamic()) else {
            continue;
        };
        let name = base_name(&first.text);
        code::collect_scripts(name, here, &mut out.scripts);
        match name {
            _ if SHELLS.contains(&name) => {
                collect_shell_scripts(here, &command.stdin, texts, &mut out);
            }
            "eval" => out.scripts.push(join(&here[1..])),
            "at" | "batch" => {
                let read = command.stdin.iter().filter_map(|&place| texts.get(place));
                out.scripts.extend(read.cloned());
            }
            "watch" | "entr" => out.scripts.push(join(&here[1 + watch_flags(&here[1..])..])),
            "find" | "fd" | "fdfind" => find_exec_commands(here, &inner, &mut open),
            _ => {
                if UNPARSED_WRAPPERS.contains(&name) {
                    push_possible_commands(here, &inner, 1, &mut open);
                } else if SUBCOMMAND_RUNNERS.contains(&name)
                    && let Some(run) = find_run_subcommand(here)
                {
                    push_possible_commands(here, &inner, run + 1, &mut open);
                }
                let Some(wrapper) = find_wrapper(name) else {
                    continue;
                };
                let at = wrapper.inner_command_index(here, &mut out.scripts);
                if wrapper.directory.is_some() {
                    let places = wrapper.directory_words(here, at.unwrap_or(here.len()));
                    out.directories
                        .extend(places.into_iter().map(|at| range.start + at));
                }
                open.extend(at.map(|at| InnerCommand {
                    range: range.start + at..range.end,
                    has_added_words: inner.has_added_words || matches!(name, "xargs" | "parallel"),
                    is_cwd_unknown: inner.is_cwd_unknown,
                }));
            }
        }
    }
    out
}

impl Wrapper {
    /// The index of the inner command in `words`, whose first word is the wrapper.
    fn inner_command_index(&self, words: &[Word], scripts: &mut Vec<String>) -> Option<usize> {
        let mut at = 1;
        let mut skip = self.skip;
        while let Some(word) = words.get(at) {
            let text = word.text.as_str();
            if text == "--" {
                at += 1;
                while self.assigns && words.get(at).is_some_and(is_assignment) {
                    at += 1;
                }
                if skip == 0 {
                    break;
                }
                if skip == usize::MAX {
                    skip = 0; // `su` and `script` take a command there
                    break;
                }
            } else if text == "-" {
                at += 1;
            } else if let Some(name) = text.strip_prefix("--") {
                let (name, value) = name
                    .split_once('=')
                    .map_or((name, None), |(n, v)| (n, Some(v)));
                // Abbreviations count, as getopt_long(3) accepts them.
                let long_script = self.script.is_some()
                    && ["command", "split-string"]
                        .iter()
                        .any(|long| long.starts_with(name));
                let takes = long_script || self.long.iter().any(|l| l[2..].starts_with(name));
                if long_script {
                    let next = words.get(at + 1).map(|w| w.text.as_str());
                    scripts.extend(value.or(next).map(str::to_owned));
                }
                at += 1 + usize::from(takes && value.is_none());
            } else if text.len() > 1 && text.starts_with('-') {
                at += self.cluster(words, at, scripts);
            } else if self.assigns && is_assignment(word) {
                at += 1;
            } else if skip > 0 {
                skip = skip.saturating_sub(1);
                at += 1;
            } else {
                break;
            }
        }
        (at < words.len() && skip == 0).then_some(at)
    }

    /// The words before `end` that name the directory of the inner command.
    fn directory_words(&self, words: &[Word], end: usize) -> Vec<usize> {
        let letter = self.directory.unwrap_or_default();
        let mut out = Vec::new();
        for (at, word) in words.iter().enumerate().take(end).skip(1) {
            let text = word.text.as_str();
            let long = text
                .strip_prefix("--")
                .map(|t| t.split('=').next().unwrap_or(t));
            let is_long = long.is_some_and(|t| t.len() > 1 && "chdir".starts_with(t));
            let short = text.strip_prefix('-').filter(|t| !t.starts_with('-'));
            if !is_long && !short.is_some_and(|t| t.contains(letter)) {
                continue;
            }
            // The beginning of an attached value is hard to find: then the word itself counts, as
            // dynamic.
            let attached = text.contains('=') || short.is_some_and(|t| !t.ends_with(letter));
            out.push(if attached { at } else { at + 1 });
        }
        out.retain(|at| *at < words.len());
        out
    }

    /// How many words a cluster of short flags takes.
    fn cluster(&self, words: &[Word], at: usize, scripts: &mut Vec<String>) -> usize {
        let text = &words[at].text;
        for (place, letter) in text.char_indices().skip(1) {
            let rest = &text[place + letter.len_utf8()..];
            let next = words.get(at + 1).map(|w| w.text.as_str());
            if self.script == Some(letter) {
                let script = if rest.is_empty() { next } else { Some(rest) };
                scripts.extend(script.map(str::to_owned));
                return 1 + usize::from(rest.is_empty());
            }
            if self.values.contains(letter) {
                return 1 + usize::from(rest.is_empty());
            }
        }
        1
    }
}

/// The index of a subcommand that runs what follows it: as the first word that is not a flag, or as
/// the second (`docker compose run`).
fn find_run_subcommand(words: &[Word]) -> Option<usize> {
    let mut named = 0;
    for (at, word) in words.iter().enumerate().skip(1) {
        let text = word.text.as_str();
        if RUN_FLAGS.contains(&text)
            || named == 0 && RUN_SUBCOMMANDS.contains(&text)
            || named == 1 && matches!(text, "run" | "exec")
        {
            return Some(at);
        }
        named += usize::from(!text.starts_with('-'));
    }
    None
}

/// Adds every word behind a wrapper that could begin a command.
fn push_possible_commands(
    words: &[Word],
    outer: &InnerCommand,
    from: usize,
    open: &mut Vec<InnerCommand>,
) {
    let known = |word: &Word| !word.is_dynamic() && !word.text.starts_with('-');
    for (at, word) in words.iter().enumerate().skip(from).take(TANGLE) {
        if known(word) {
            open.push(InnerCommand {
                range: outer.range.start + at..outer.range.end,
                ..outer.clone()
            });
        }
    }
}

fn is_assignment(word: &Word) -> bool {
    word.text
        .split_once('=')
        .is_some_and(|(name, _)| is_variable_name(name))
}

fn join(words: &[Word]) -> String {
    let words: Vec<_> = words.iter().map(|w| w.text.as_str()).collect();
    words.join(" ")
}

/// The flags of `watch` and `entr` before their command; `-n` takes a value.
fn watch_flags(words: &[Word]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|w| w.text.starts_with('-')) {
        let takes = ["--interval", "--equexit", "--shotsdir"]
            .iter()
            .any(|long| word.text.len() > 2 && long.starts_with(&word.text));
        let short = matches!(word.text.as_str(), "-n" | "-q" | "-s");
        at += 1 + usize::from(takes || short);
    }
    at.min(words.len())
}

/// The commands of `find -exec` and its relatives, and those of `fd -x`.
fn find_exec_commands(words: &[Word], outer: &InnerCommand, open: &mut Vec<InnerCommand>) {
    let mut at = 1;
    while at < words.len() {
        at += 1;
        let flag = words[at - 1].text.as_str();
        let of_find = matches!(flag, "-exec" | "-execdir" | "-ok" | "-okdir");
        if of_find || matches!(flag, "-x" | "-X" | "--exec" | "--exec-batch") {
            let length = words[at..]
                .iter()
                .position(|w| matches!(w.text.as_str(), ";" | "+"))
                .unwrap_or(words.len() - at);
            if length > 0 {
                let start = outer.range.start + at;
                open.push(InnerCommand {
                    range: start..start + length,
                    has_added_words: outer.has_added_words
                        || !of_find
                        || words[at..at + length].iter().any(has_placeholder),
                    is_cwd_unknown: outer.is_cwd_unknown || flag.ends_with("dir"),
                });
            }
            at += length;
        }
    }
}

/// The words of a command to which its wrapper adds unknown ones.
pub(super) fn with_placeholders(words: &[Word]) -> Vec<Word> {
    let mut out = words.to_vec();
    for word in out.iter_mut().filter(|word| has_placeholder(word)) {
        let from = word.text.find("{}").unwrap_or(0);
        word.dynamic_from = Some(from);
        word.expansions = vec![(from, from + 2)];
    }
    if !words.iter().any(has_placeholder) {
        out.push(Word {
            text: "{}".to_owned(),
            dynamic_from: Some(0),
            expansions: vec![(0, 2)],
            ..Word::default()
        });
    }
    out
}

/// Whether `find` puts paths into a word.
fn has_placeholder(word: &Word) -> bool {
    word.text.contains("{}")
}

/// `sh -c TEXT`, and a script on standard input.
fn collect_shell_scripts(
    words: &[Word],
    stdin: &[usize],
    texts: &[String],
    out: &mut WrapperContents,
) {
    let mut at = 1;
    let mut wants_script = false;
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        let Some(flags) = text.strip_prefix(['-', '+']) else {
            break;
        };
        at += 1;
        if flags.is_empty() || text == "--" {
            break;
        }
        if flags.starts_with('-') {
            at += usize::from(matches!(flags, "-rcfile" | "-init-file"));
            continue;
        }
        wants_script |= flags.contains('c');
        at += flags.matches(['o', 'O']).count();
    }
    let reads = |word: &Word| {
        let text = word.text.as_str();
        matches!(text, "-s" | "/dev/stdin" | "/dev/fd/0" | "/proc/self/fd/0")
            || word.is_dynamic() && text.starts_with("<(")
    };
    if wants_script {
        out.scripts.extend(words.get(at).map(|w| w.text.clone()));
    }
    // What a script starts reads the same standard input.
    if wants_script || at >= words.len() || words.iter().any(reads) {
        out.scripts
            .extend(stdin.iter().filter_map(|&place| texts.get(place)).cloned());
    }
}

/// The wrappers that a policy may declare transparent.
pub(super) const TRANSPARENT: &[&str] = &["nice", "nohup", "time", "timeout"];

/// Strips the wrappers that the policy declares transparent, exactly: an unknown flag leaves the
/// command as it is, so that no rule for the inner one applies. `trusted` tells whether a program's
/// name counts.
pub(super) fn strip_transparent<'w>(
    mut words: &'w [Word],
    allowed: &[String],
    trusted: impl Fn(&str) -> Option<String>,
) -> &'w [Word] {
    while let Some(name) = words.first().and_then(|w| trusted(&w.text)) {
        if !allowed.contains(&name) {
            break;
        }
        let inner = match name.as_str() {
            "timeout" => timeout(words),
            "nice" => nice(words),
            "nohup" | "time" => Some(1),
            _ => None,
        };
        match inner.and_then(|at| words.get(at..)) {
            Some(rest) if rest.first().is_some_and(|w| !w.text.starts_with('-')) => words = rest,
            _ => break,
        }
    }
    words
}

fn timeout(words: &[Word]) -> Option<usize> {
    let mut at = 1;
    loop {
        let text = words.get(at)?.text.as_str();
        match text {
            "--foreground" | "--preserve-status" | "-v" | "--verbose" => at += 1,
            "-k" | "-s" => at += 2,
            _ if text.starts_with("--kill-after=") || text.starts_with("--signal=") => at += 1,
            _ => break,
        }
    }
    let text = &words.get(at)?.text;
    let number = text.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or(text);
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    digits.then_some(at + 1)
}

fn nice(words: &[Word]) -> Option<usize> {
    match words.get(1)?.text.as_str() {
        "-n" => Some(3),
        text if text.starts_with('-') => {
            let number = text
                .strip_prefix("--adjustment=")
                .or(text.strip_prefix("-n"))
                .unwrap_or(&text[1..]);
            number.parse::<i8>().is_ok().then_some(2)
        }
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests;
