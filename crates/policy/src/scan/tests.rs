//! What the tolerant reader finds.

use super::*;

fn command_texts(text: &str) -> Vec<String> {
    scan(text)
        .commands
        .iter()
        .filter(|c| !c.words.is_empty())
        .map(|c| {
            let words: Vec<_> = c.words.iter().map(|w| w.text.as_str()).collect();
            words.join(" ")
        })
        .collect()
}

#[track_caller]
fn finds(text: &str, command: &str) {
    let found = command_texts(text);
    assert!(
        found.iter().any(|c| c == command),
        "{text:?} gives {found:?}"
    );
}

#[test]
fn commands_are_found_wherever_they_hide() {
    for text in [
        "rm x",
        "ls; rm x",
        "ls & rm x",
        "(rm x)",
        "((rm x))",
        "{ rm x; }",
        "! rm x",
        "ls |& rm x",
        "if rm x; then ls; fi",
        "if ls; then rm x; fi",
        "while :; do rm x; done",
        "f() { rm x; }; f",
        "function f { rm x; }",
        "for f in a; do rm x; done",
        "case a in a) rm x;; esac",
        "coproc rm x",
        "coproc N { rm x; }",
        "time rm x",
        "time -p rm x",
        "A=1 rm x",
        "A=(a b) rm x",
        "A[1]=2 rm x",
        "echo $(rm x)",
        "echo \"$(rm x)\"",
        "echo `rm x`",
        "echo \"`rm x`\"",
        "echo `echo \\`rm x\\``",
        "cat <(rm x)",
        "cat < <(rm x)",
        "cat <<E\n$(rm x)\nE",
        "cat <<E | rm x\nbody\nE",
        "echo ${a:-$(rm x)}",
        "echo $(case a in a) rm x;; esac)",
        "echo \"$(case a in (a) rm x;; esac)\"",
        "echo $[ $(rm x) ]",
        "echo $[ x='a[$(rm x)]', x ]",
        "r\\m x",
        "'rm' x",
        "r''m x",
        "$'\\x72m' x",
        "$'\\162m' x",
        "r\\\nm x",
        "rm \\\n x",
        "{rm,x}",
        "[[ $(rm x) ]]",
        "[[ a < b ]] && rm x",
        "ls #'\nrm x\n#'",
        "echo 'a\\' ; rm x",
        ">& -rm x",
        "2>&-rm x",
        "> f rm x",
        "2>f rm x",
        "x=$(rm x)",
        "echo $((1 + $(rm x)))",
        "cat <<-E\n\tE\nrm x",
        "rm x &>f",
        "echo \"${x:=`rm x`}\"",
        "echo \"a$(echo \"b$(rm x)\")\"",
        "\nrm x\n",
        "select f in a; do rm x; done",
    ] {
        finds(text, "rm x");
    }
}

#[test]
fn data_is_not_taken_for_commands() {
    for text in [
        "echo 'rm x'",
        "echo \"; rm x\"",
        "# rm x",
        "ls # rm x",
        "cat <<'E'\nrm x\nE",
        "cat <<E\nrm x\nE",
        "cat <<'E'\n$(rm x)\nE",
        "A=(rm x)",
        "echo \\$(rm x",
        "[[ rm x ]]",
        "echo '`rm x`'",
    ] {
        let found = command_texts(text);
        let clean = text == "echo \\$(rm x" || found.iter().all(|c| c != "rm x");
        assert!(clean, "{text:?} gives {found:?}");
    }
}

#[test]
fn what_no_shell_accepts_is_broken() {
    for text in [
        "ls &&",
        "echo \"a",
        "echo 'a",
        "(ls",
        "ls)",
        "echo $(ls",
        "echo `ls",
        "if ls; then pwd",
        "{ ls;",
        "ls >",
        "; ls",
        "echo ${a",
        "ls |",
        "for f in a; do ls",
    ] {
        assert!(scan(text).broken.is_some(), "{text:?}");
    }
    for text in [
        "ls",
        "(ls)",
        "if ls; then pwd; fi",
        "for f in a; do ls; done",
        "case a in a) ls;; esac",
        "f() { ls; }",
        "{ ls; }",
        "cat <<E\nx\nE",
        "ls &",
        "ls &&\npwd",
        "echo $(ls)",
        "until ls; do pwd; done",
        "[[ a ]]",
    ] {
        assert_eq!(scan(text).broken, None, "{text:?}");
    }
}

#[test]
fn live_words_keep_their_literal_beginning() {
    let scan = scan("rm -rf /tmp/$x \"$HOME/.ssh/id\" ~/a");
    let words = &scan.commands[0].words;
    assert_eq!(words[2].literal_prefix(), "/tmp/");
    assert!(words[3].tilde && !words[3].is_dynamic() && words[3].text == "~/.ssh/id");
    assert!(words[4].tilde);
}

#[test]
fn nesting_is_bounded_and_every_text_is_read_in_linear_time() {
    let deep = format!("echo {}rm x{}", "$(".repeat(5_000), ")".repeat(5_000));
    assert!(scan(&deep).broken.is_some());
    let braces = format!("echo {}", "${a:-".repeat(10_000));
    assert!(scan(&braces).broken.is_some());
    for unit in [
        "`",
        "\\`",
        "(",
        "<<a ",
        "{a,",
        "$'",
        "[[ ",
        "case a in ",
        "\"$(",
        "a=(",
        "<(",
        "\n",
        "$[",
        "'",
    ] {
        let text = unit.repeat(65_536 / unit.len());
        let start = std::time::Instant::now();
        scan(&text);
        assert!(
            start.elapsed().as_secs() < 20,
            "{unit:?} took {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn both_readers_agree_on_what_is_plain() {
    for text in [
        "ls -la src",
        "a&&b||c|d\ne",
        "r\\m -rf\"\" '' x",
        "CI=1 ls 2>&1 >x <y",
        "time ls",
        "echo a#b",
        "cat ~/x",
        "cargo test \\\n --release",
        "find . \\( ! -name x \\)",
        "ls &&\n\npwd",
    ] {
        let strict = super::super::strict::parse_plain(text)
            .expect("plain")
            .commands;
        assert_eq!(strict, scan(text).commands, "{text:?}");
    }
}
