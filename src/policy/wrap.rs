//! Looks behind programs that run other programs: `env`, `sudo`, `xargs`, `find -exec`,
//! `sh -c`, `eval`.
//!
//! Owns what is known of such programs' arguments. Rules that deny or ask see everything found
//! here; a rule that allows sees only what [`transparent`] strips, which knows its wrappers
//! exactly. Must not know rules or paths.

use std::collections::HashSet;

use super::command::{Command, Word, base_name, is_name};

mod known;

use known::{RUNNERS, RUNS, RUNS_ANYWHERE, TANGLED};

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
}

const BARE: Wrapper = Wrapper {
    values: "",
    long: &[],
    skip: 0,
    assigns: false,
    script: None,
};

/// The wrapper of that name. Options are those of the manual pages of coreutils, util-linux,
/// findutils, sudo, and bash(1).
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrapper(name: &str) -> Option<Wrapper> {
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
            values: "uC",
            long: &["--unset", "--chdir"],
            assigns: true,
            script: Some('S'),
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
            ],
            assigns: true,
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
        "xargs" | "parallel" => Wrapper {
            values: "IiLlnPsadEeJRjS",
            long: &[
                "--arg-file",
                "--delimiter",
                "--max-args",
                "--max-procs",
                "--max-lines",
                "--max-chars",
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
            values: "wEn",
            long: &["--timeout", "--conflict-exit-code"],
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

/// Words behind such a wrapper that are looked at.
const TANGLE: usize = 24;

/// Programs that run a script given as text.
pub(super) const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish"];

/// What stands behind one command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Behind {
    /// Inner commands, each with its place in the outer one's words.
    pub commands: Vec<std::ops::Range<usize>>,
    /// Scripts, still to be read.
    pub scripts: Vec<String>,
    /// There was more than [`CHAIN`] of it.
    pub cut: bool,
}

/// How many wrappers around each other are looked through: each may read the rest of the line.
const CHAIN: usize = 256;

/// Looks behind a command, through as many wrappers as there are. `texts` are what
/// [`Command::stdin`] points into.
pub(super) fn behind(command: &Command, texts: &[String]) -> Behind {
    let mut out = Behind::default();
    let words = &command.words;
    // Ranges only ever shrink, and those of one `find` do not overlap.
    let whole = 0..words.len();
    let mut open = vec![whole.clone()];
    let mut seen = HashSet::new();
    while let Some(range) = open.pop() {
        if !seen.insert((range.start, range.end)) {
            continue;
        }
        if out.commands.len() >= CHAIN {
            out.cut = true;
            break;
        }
        let here = &words[range.clone()];
        if range != whole {
            out.commands.push(range.clone());
        }
        let Some(first) = here.first().filter(|w| !w.live()) else {
            continue;
        };
        let name = base_name(&first.text);
        match name {
            _ if SHELLS.contains(&name) => shell(here, &command.stdin, texts, &mut out),
            "eval" => out.scripts.push(join(&here[1..])),
            "watch" | "entr" => out.scripts.push(join(&here[1 + watch_flags(&here[1..])..])),
            "trap" => out.scripts.extend(here.get(1).map(|w| w.text.clone())),
            "find" => find(here, range.start, &mut open),
            _ => {
                if TANGLED.contains(&name) {
                    tangled(here, &range, 1, &mut open);
                } else if RUNNERS.contains(&name)
                    && let Some(run) = runs(here)
                {
                    tangled(here, &range, run + 1, &mut open);
                }
                let inner = wrapper(name).and_then(|w| w.inner(here, &mut out.scripts));
                open.extend(inner.map(|at| range.start + at..range.end));
            }
        }
    }
    out
}

impl Wrapper {
    /// The place of the inner command in `words`, whose first is the wrapper.
    fn inner(&self, words: &[Word], scripts: &mut Vec<String>) -> Option<usize> {
        let mut at = 1;
        let mut skip = self.skip;
        while let Some(word) = words.get(at) {
            let text = word.text.as_str();
            if text == "--" {
                at += 1;
                if skip == 0 {
                    break;
                }
            } else if let Some(name) = text.strip_prefix("--") {
                let (name, value) = name
                    .split_once('=')
                    .map_or((name, None), |(n, v)| (n, Some(v)));
                let long_script = match name {
                    "command" | "split-string" => self.script.is_some(),
                    _ => false,
                };
                let takes = long_script || self.long.iter().any(|l| &l[2..] == name);
                if long_script {
                    let next = words.get(at + 1).map(|w| w.text.as_str());
                    scripts.extend(value.or(next).map(str::to_owned));
                }
                at += 1 + usize::from(takes && value.is_none());
            } else if text.len() > 1 && text.starts_with('-') {
                at += self.cluster(words, at, scripts);
            } else if self.assigns && assigns(word) {
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

/// Where a subcommand stands that runs what is behind it: as the first word that is no flag, or the
/// second (`docker compose run`).
fn runs(words: &[Word]) -> Option<usize> {
    let mut named = 0;
    for (at, word) in words.iter().enumerate().skip(1) {
        let text = word.text.as_str();
        if RUNS_ANYWHERE.contains(&text)
            || named == 0 && RUNS.contains(&text)
            || named == 1 && matches!(text, "run" | "exec")
        {
            return Some(at);
        }
        named += usize::from(!text.starts_with('-'));
    }
    None
}

/// Every word behind a wrapper that could begin a command of its own.
fn tangled(
    words: &[Word],
    range: &std::ops::Range<usize>,
    from: usize,
    open: &mut Vec<std::ops::Range<usize>>,
) {
    let known = |word: &Word| !word.live() && !word.text.starts_with('-');
    for (at, word) in words.iter().enumerate().skip(from).take(TANGLE) {
        let inner = range.start + at..range.end;
        if known(word) {
            open.push(inner);
        }
    }
}

fn assigns(word: &Word) -> bool {
    word.text
        .split_once('=')
        .is_some_and(|(name, _)| is_name(name))
}

fn join(words: &[Word]) -> String {
    let words: Vec<_> = words.iter().map(|w| w.text.as_str()).collect();
    words.join(" ")
}

/// The flags of `watch` and `entr` before their command; `-n` takes a value.
fn watch_flags(words: &[Word]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|w| w.text.starts_with('-')) {
        at += 1 + usize::from(matches!(word.text.as_str(), "-n" | "--interval"));
    }
    at.min(words.len())
}

/// The commands of `find -exec` and its relatives.
fn find(words: &[Word], offset: usize, open: &mut Vec<std::ops::Range<usize>>) {
    let mut at = 1;
    while at < words.len() {
        at += 1;
        if matches!(
            words[at - 1].text.as_str(),
            "-exec" | "-execdir" | "-ok" | "-okdir"
        ) {
            let length = words[at..]
                .iter()
                .position(|w| matches!(w.text.as_str(), ";" | "+"))
                .unwrap_or(words.len() - at);
            if length > 0 {
                open.push(offset + at..offset + at + length);
            }
            at += length;
        }
    }
}

/// `sh -c TEXT`, and a script on standard input.
fn shell(words: &[Word], stdin: &[usize], texts: &[String], out: &mut Behind) {
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
    if wants_script {
        out.scripts.extend(words.get(at).map(|w| w.text.clone()));
    } else if at >= words.len() || words.iter().any(|w| w.text == "-s") {
        out.scripts
            .extend(stdin.iter().filter_map(|&place| texts.get(place)).cloned());
    }
}

/// The wrappers that a policy may call transparent.
pub(super) const TRANSPARENT: &[&str] = &["nice", "nohup", "time", "timeout"];

/// Strips the wrappers that the policy calls transparent, exactly: a flag that is not understood
/// leaves the command as it is, so that no rule for the inner one applies. `trusted` says whether
/// a program's name counts.
pub(super) fn transparent<'w>(
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
                .or(text.strip_prefix("-n"));
            let number = number.unwrap_or(&text[1..]);
            number.parse::<i8>().is_ok().then_some(2)
        }
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::scan;

    #[track_caller]
    fn inner(text: &str, expect: &str) {
        let scan = scan::scan(text);
        let command = scan.commands.last().expect("one command");
        let behind = behind(command, &scan.texts);
        let mut got: Vec<_> = behind
            .commands
            .iter()
            .map(|range| join(&command.words[range.clone()]))
            .collect();
        got.extend(behind.scripts);
        assert!(got.iter().any(|c| c == expect), "{text:?} gives {got:?}");
    }

    #[test]
    fn the_command_behind_a_wrapper_is_found() {
        for text in [
            "env rm x",
            "env -i A=1 rm x",
            "env -u A -C /tmp rm x",
            "sudo -u root rm x",
            "sudo -E A=1 rm x",
            "nice -n 5 rm x",
            "nice -5 rm x",
            "nohup rm x",
            "timeout -k 5 10 rm x",
            "timeout --signal=9 5s rm x",
            "xargs -0 -n 1 rm x",
            "xargs -I{} rm x",
            "setsid -f rm x",
            "stdbuf -oL rm x",
            "ionice -c3 rm x",
            "command rm x",
            "command -p rm x",
            "exec -a y rm x",
            "builtin rm x",
            "env sudo nice rm x",
            "busybox rm x",
            "find . -exec rm x \\;",
            "find . -name a -execdir rm x +",
            "find . -exec ls \\; -exec env rm x \\;",
            "find . -exec env rm x \\; -exec ls \\;",
            "sh -c 'rm x'",
            "bash -lc 'rm x'",
            "bash -e -o pipefail -c 'rm x'",
            "/bin/sh -c 'rm x'",
            "eval rm x",
            "eval 'rm x'",
            "watch -n 5 rm x",
            "watch 'rm x'",
            "env -S 'rm x'",
            "env --split-string='rm x'",
            "su -c 'rm x'",
            "su root -c 'rm x'",
            "trap 'rm x' EXIT",
            "bash <<<'rm x'",
            "flock lock rm x",
            "flock lock -c 'rm x'",
            "env bash -c 'rm x'",
            "find . -exec sh -c 'rm x' \\;",
            "chroot / rm x",
            "/usr/bin/env rm x",
            "\\env rm x",
            "\\time -o f rm x",
            "bash -s <<<'rm x'",
            "taskset -c 0,1 rm x",
            "taskset 0x3 rm x",
            "systemd-run --user --scope -p MemoryMax=1G rm x",
            "chrt -f 10 rm x",
            "numactl -C 0 rm x",
            "prlimit --nofile=10 rm x",
            "setpriv --reuid 0 rm x",
            "unshare -r rm x",
            "ssh-agent rm x",
            "docker run -v /:/h img rm x",
            "npx -y rm x",
        ] {
            inner(text, "rm x");
        }
        inner("bash <<E\nrm x\nE", "rm x\n");
    }

    #[test]
    fn only_an_understood_wrapper_is_transparent() {
        let allowed = ["timeout", "nice", "time", "nohup"].map(str::to_owned);
        let check = |text: &str, expect: &str| {
            let words: Vec<_> = text.split(' ').map(Word::literal).collect();
            let rest = transparent(&words, &allowed, |name| Some(name.to_owned()));
            assert_eq!(join(rest), expect, "{text}");
        };
        check("timeout 5 ls -l", "ls -l");
        check("timeout -k 5s --foreground 1.5m ls", "ls");
        check("timeout 5 nice -n 3 nohup ls", "ls");
        check("timeout --unknown 5 ls", "timeout --unknown 5 ls");
        check("timeout ls", "timeout ls");
        check("nice --x ls", "nice --x ls");
        check("time -o f ls", "time -o f ls");
        check("env ls", "env ls");
        check("timeout 5 -x", "timeout 5 -x");
    }
}
