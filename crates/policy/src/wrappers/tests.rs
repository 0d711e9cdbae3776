//! Commands and scripts behind wrappers.

use super::*;
use crate::scan;

#[track_caller]
fn inner(text: &str, expect: &str) {
    let scan = scan::scan(text);
    let command = scan.commands.last().expect("one command");
    let behind = find_inner_commands(command, &scan.texts);
    let mut got: Vec<_> = behind
        .commands
        .iter()
        .map(|inner| join(&command.words[inner.range.clone()]))
        .collect();
    got.extend(behind.scripts);
    let is = |c: &String| {
        c == expect || expect == "rm x" && ["$(rm x)", "/bin/rm"].iter().any(|o| c.contains(o))
    };
    assert!(got.iter().any(is), "{text:?} gives {got:?}");
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
fn rare_spellings_of_wrappers_are_found() {
    for text in [
        "env - rm x",
        "env -- A=b rm x",
        "env --unse A rm x",
        "timeout --sig KILL 10 rm x",
        "nice --adj 5 rm x",
        "stdbuf --out L rm x",
        "xargs --max-arg 1 rm x",
        "xargs --delim x rm x",
        "xargs --process-slot-var A rm x",
        "xargs -i rm x",
        "xargs -l rm x",
        "xargs -e rm x",
        "script --com 'rm x'",
        "flock --wait 1 f rm x",
        "flock -n f rm x",
        "trap -- 'rm x' EXIT",
        "rbash -c 'rm x'",
        "tcsh -c 'rm x'",
        "npx -c 'rm x'",
        "npm exec -c 'rm x'",
        "nix-shell --run 'rm x'",
        "parallel 'rm x'",
        "fd -x rm x",
        "watch -q 3 rm x",
        "runuser -u x -- rm x",
        "git bisect run rm x",
        "git submodule foreach 'rm x'",
        "git rebase -x 'rm x' main",
        "git rebase --exec='rm x' main",
        "git -c alias.k='!rm x' k",
        "mapfile -C 'rm x' -c 1",
        "compgen -C 'rm x' y",
        "alias q='rm x'",
        "hash -p /bin/rm q",
        "let 'a[$(rm x)]'",
        "printf -v 'a[$(rm x)]' y",
        "declare -i y='a[$(rm x)]'",
        "[[ 'a[$(rm x)]' -eq 0 ]]",
        "bash /dev/stdin <<<'rm x'",
        "bash -c bash <<<'rm x'",
    ] {
        inner(text, "rm x");
    }
}

#[test]
fn only_an_understood_wrapper_is_transparent() {
    let allowed = ["timeout", "nice", "time", "nohup"].map(str::to_owned);
    let check = |text: &str, expect: &str| {
        let words: Vec<_> = text.split(' ').map(Word::literal).collect();
        let rest = strip_transparent(&words, &allowed, |name| Some(name.to_owned()));
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
