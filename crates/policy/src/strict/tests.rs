//! What the strict reader accepts, and what it must not.

use super::*;

/// The words of each command, or `None` if the text is not plain.
fn strict_words(text: &str) -> Option<Vec<Vec<String>>> {
    let commands = parse_plain(text).ok()?.commands;
    Some(
        commands
            .iter()
            .map(|c| c.words.iter().map(|w| w.text.clone()).collect())
            .collect(),
    )
}

#[track_caller]
fn plain(text: &str, expect: &[&[&str]]) {
    let got = strict_words(text)
        .unwrap_or_else(|| panic!("{text:?} is not plain: {:?}", parse_plain(text)));
    assert_eq!(got, expect, "{text:?}");
}

#[track_caller]
fn not_plain(text: &str) {
    assert!(
        strict_words(text).is_none(),
        "{text:?} gives {:?}",
        parse_plain(text)
    );
}

#[test]
fn literal_words_quotes_and_operators_are_plain() {
    plain("ls -la src", &[&["ls", "-la", "src"]]);
    plain("git  status;pwd", &[&["git", "status"], &["pwd"]]);
    plain("a&&b||c|d\ne", &[&["a"], &["b"], &["c"], &["d"], &["e"]]);
    plain("a &&\n b |\n\n c", &[&["a"], &["b"], &["c"]]);
    plain("r\\m -rf\"\" '' x", &[&["rm", "-rf", "", "x"]]);
    plain(
        "echo 'a;b' \"c|d\" \"e\\\"\\$\\x\"",
        &[&["echo", "a;b", "c|d", "e\"$\\x"]],
    );
    plain("# note\nls # more\n", &[&["ls"]]);
    plain("echo a#b ''#c", &[&["echo", "a#b", "#c"]]);
    plain("git show HEAD~2:x", &[&["git", "show", "HEAD~2:x"]]);
    plain("cat ~/x ~", &[&["cat", "~/x", "~"]]);
    plain(
        "find . \\( ! -name x \\)",
        &[&["find", ".", "(", "!", "-name", "x", ")"]],
    );
    plain(
        "cargo test \\\n  --release",
        &[&["cargo", "test", "--release"]],
    );
    plain("time ls", &[&["ls"]]);
    plain("time -p ls", &[&["ls"]]);
    plain(
        "git show stash@{0} HEAD^{tree} a^{}",
        &[&["git", "show", "stash@{0}", "HEAD^{tree}", "a^{}"]],
    );
    plain("", &[]);
}

#[test]
fn redirects_are_facts_of_their_command() {
    let commands = parse_plain("cargo build 2>&1 >/dev/null <in &>>all >&both 3> x")
        .expect("plain")
        .commands;
    let facts: Vec<_> = commands[0]
        .redirects
        .iter()
        .map(|r| (r.direction, r.target.text.as_str()))
        .collect();
    assert_eq!(
        facts,
        [
            (Direction::Duplicate, "1"),
            (Direction::Write, "/dev/null"),
            (Direction::Read, "in"),
            (Direction::Write, "all"),
            (Direction::Write, "both"),
            (Direction::Write, "x"),
        ]
    );
    assert_eq!(commands[0].words.len(), 2);
}

#[test]
fn prefixed_assignments_are_kept_apart_from_words() {
    let commands = parse_plain("CI=1 TZ='a b' ls X=1").expect("plain").commands;
    assert_eq!(commands[0].assignments.len(), 2);
    assert_eq!(commands[0].assignments[1].value.text, "a b");
    assert_eq!(commands[0].words.len(), 2);
    let timed = parse_plain("time LD_PRELOAD=x ls").expect("plain").commands;
    assert!(timed[0].timed && timed[0].assignments.len() == 1);
}

#[test]
fn what_bash_computes_is_not_plain() {
    for text in [
        "cat $x",
        "echo \"$x\"",
        "echo `id`",
        "echo \"`id`\"",
        "ls $'a'",
        "ls $\"a\"",
        "echo $[1]",
        "cat {a,b}",
        "(ls)",
        "{ ls; }",
        "cat <(ls)",
        "cat <<E\nE",
        "cat <<<x",
        "f() { ls; }",
        "ls & pwd",
        "ls &",
        "ls |& wc",
        "! ls",
        "[[ a ]]",
        "]] a",
        "coproc ls",
        "if ls; then pwd; fi",
        "while ls; do pwd; done",
        "ls ~root",
        "ls ~+",
        "ls ~\"/x\"",
        "ls \"\"~/x",
        "x y=~",
        "x y=~/a",
        "x a:~",
        "x \\=~",
        "x '='~/a",
        "%1",
        "* a",
        "ls*",
        "case a in esac",
        "time",
        "time -v ls",
        "ls | time wc",
        "a= time ls",
        "time time ls",
        "A[0]=1 ls",
        "A+=1 ls",
        "\"A\"=1 ls",
        "A=~ ls",
    ] {
        not_plain(text);
    }
}

#[test]
fn what_is_incomplete_or_glued_is_not_plain() {
    for text in [
        "ls &&",
        "ls |",
        "&& ls",
        "; ls",
        "ls;;",
        "ls; ;",
        "ls\n&& pwd",
        "ls >",
        "ls > ",
        ";>",
        "ls >\nx",
        "echo \"a",
        "echo 'a",
        "ls \\",
        "git sta\\\ntus",
        "A\\\n=1 ls",
        "\\\nls",
        "ls a\\\n",
        "\"a\\\nb\"",
        "ls >& -x",
        "ls >&\t-",
        "ls 2>& -x",
        "ls > #x",
        "ls <>x",
        "ls 3<&0",
        "ls 2>&-",
        "ls >&1-",
        "ls 100>x",
        "ls > *",
        "ls {fd}>x",
    ] {
        not_plain(text);
    }
}

#[test]
fn characters_that_nobody_sees_are_not_plain_and_say_so() {
    for text in [
        "git status\rrm -rf /",
        "ls\u{200b}",
        "echo \u{202e}txt",
        "ls\u{a0}-l",
        "echo '\u{7}'",
        "ls\u{3000}x",
        "ls \u{2028}x",
        "ls \u{feff}",
    ] {
        assert!(parse_plain(text).is_err_and(|e| e.hidden), "{text:?}");
    }
    plain("cat café", &[&["cat", "café"]]);
}

/// The words of each command, joined by `|`, or why the text is not plain.
fn flow(text: &str) -> String {
    match parse_with_control_flow(text) {
        Ok(PlainText { commands, .. }) => {
            let words = |command: &Command| {
                let words: Vec<&str> = command.words.iter().map(|word| &*word.text).collect();
                words.join(" ")
            };
            commands.iter().map(words).collect::<Vec<_>>().join("|")
        }
        Err(error) => format!("! {}", error.what),
    }
}

#[test]
fn branches_loops_and_subshells_are_their_commands() {
    for (text, expected) in [
        ("if [ -f x ]; then echo yes; fi", "[ -f x ]|echo yes"),
        ("if a; then b; elif c; then d; else e; fi; f", "a|b|c|d|e|f"),
        ("if a\nthen\nb\nfi\n", "a|b"),
        ("(a; b); c", "a|b|c"),
        ("( a && b )", "a|b"),
        ("for f in a b; do wc -l \"$f\"; done", "wc -l a|wc -l b"),
        ("for f in src/*.rs; do wc -l \"$f\"; done", "wc -l src/*.rs"),
        ("for f in a b; do x -y${f}z; done", "x -yaz|x -ybz"),
        ("for f in 'a b'; do x \"$f\"; done", "x a b"),
        (
            "for a in 1 2; do for b in 3 4; do x \"$a\" $b; done; done",
            "x 1 3|x 1 4|x 2 3|x 2 4",
        ),
        ("for f in a; do if x \"$f\"; then y; fi; done", "x a|y"),
    ] {
        assert_eq!(flow(text), expected, "{text:?}");
        assert!(parse_plain(text).is_err(), "{text:?}");
    }
}

#[test]
fn what_a_loop_or_a_branch_computes_is_not_plain() {
    for text in [
        "for f in a b; do $f; done",
        "for f in a b; do x > $f; done",
        "for f in a b; do A=$f x; done",
        "for f in a b; do A=\"$f\" x; done",
        "for f in 'a b'; do x $f; done",
        "for f in *; do x $f; done",
        "for f in $x; do y; done",
        "for f in ~/a; do x \"$f\"; done",
        "for f in $(x); do y \"$f\"; done",
        "for f in a; do read f; x \"$f\"; done",
        "for f in a; do f=b; x \"$f\"; done",
        "for f in a; do command read f; x \"$f\"; done",
        "for f in a; do x \"$g\"; done",
        "for f in a; do x \"$f[0]\"; done",
        "for f in a; do x; done; y \"$f\"",
        "for f in a b; do for f in c d; do x; done; y \"$f\"; done",
        "for f in a; do x; done > y",
        "for f in a; do x; done | y",
        "for f; do x; done",
        "(for f in a)",
        "(for f in ); do x; done)",
        "(for f in a); do x; done)",
        "for ((;;)); do x; done",
        "if cd x; then y; fi",
        "(cd x; y)",
        "(a) > b",
        "(a) | b",
        "(a) b",
        "((a))",
        "a () { b; }",
        "a | (b)",
        "a && (b)",
        "a && if b; then c; fi",
        "if a; then b",
        "if a; b; fi",
        "if a; then fi",
        "if; then a; fi",
        "then a",
        "fi",
        ")",
        "(a",
        "(a))",
        "if a; then b; done",
        "while a; do b; done",
        "! (a)",
        "time (a)",
        "{ a; }",
    ] {
        assert!(flow(text).starts_with('!'), "{text:?} is {}", flow(text));
    }
    let many = format!("for f in {}; do x; y; done", "a ".repeat(600));
    assert_eq!(flow(&many), "! a loop with too many commands");
}

/// What the commands read and the bodies of their here-documents.
fn with_documents(text: &str) -> String {
    match parse_with_control_flow(text) {
        Ok(plain) => format!("{}: {:?}", flow(text), plain.texts),
        Err(error) => format!("! {}", error.what),
    }
}

#[test]
fn here_documents_that_the_shell_leaves_as_they_are() {
    for (text, expected) in [
        (
            "cat > f <<'EOF'\na $x\n`b`\nEOF\nls",
            r#"cat|ls: ["a $x\n`b`\n"]"#,
        ),
        ("cat <<\"E\" && ls\n E\nE", r#"cat|ls: [" E\n"]"#),
        (
            "python3 - << EOF | head\nprint(1)\nEOF\n",
            r#"python3 -|head: ["print(1)\n"]"#,
        ),
        ("cat <<E\nE\ncat <<F\nx\nF", r#"cat|cat: ["", "x\n"]"#),
        (
            "cat <<E\n$x\nE\n",
            "! a here-document that the shell expands",
        ),
        (
            "cat <<E\na\\\nE\nE\n",
            "! a here-document that the shell expands",
        ),
        ("cat <<'E'\na\n", "! a here-document that is never closed"),
        ("cat <<'E'", "! an unusual here-document"),
        ("cat <<'E' <<'F'\nE\nF\n", "! an unusual here-document"),
        ("cat <<-E\n\tE\n", "! an unusual here-document"),
        ("cat <<<x", "! an unusual here-document"),
        ("cat 3<<E\nE\n", "! an unusual here-document"),
        ("cat <<E'F'\nEF\n", "! an unusual here-document"),
        (
            "cat <<'E' 'a\nb'\nE\n",
            "! a line's end before a here-document",
        ),
        ("cat <<'E' \\\n x\nE\n", "! a line continuation"),
        ("(cat <<'E'\nE\n)", "! an unusual here-document"),
    ] {
        assert_eq!(with_documents(text), expected, "{text:?}");
    }
}

#[test]
fn the_status_of_a_command_may_be_shown_and_compared() {
    for (text, expected) in [
        ("go test; echo \"exit: $?\"", "go test|echo exit: $?"),
        ("a | b; echo ${PIPESTATUS[0]}", "a|b|echo ${PIPESTATUS[0]}"),
        ("a\n[ $? -eq 0 ]", "a|[ $? -eq 0 ]"),
        ("a; cat f$?", "! an expansion"),
        ("a; $? x", "! an expansion"),
        ("a; x=$?", "! an expansion"),
        ("a > f$?", "! an expansion"),
        ("a; echo b > f$?", "! an expansion"),
        ("a; echo ${PIPESTATUS[@]}", "! an expansion"),
        ("a; echo ${PIPESTATUS[1]}", "! an expansion"),
        (
            "a | b; echo \"${PIPESTATUS[1]}\"",
            "a|b|echo ${PIPESTATUS[1]}",
        ),
        ("for f in $?; do a; done", "! a loop over computed words"),
        ("grep 'a$' \"b$\" c$ \"(d|$)\"", "grep a$ b$ c$ (d|$)"),
        ("echo \"$'x'\"", "! an expansion"),
        ("echo $'x'", "! an expansion"),
        ("a && \\\nb", "a|b"),
    ] {
        assert_eq!(flow(text), expected, "{text:?}");
    }
}
