//! Splits a command line that Codex displays into its words.
//!
//! Codex runs a list of words and displays that list quoted for a shell. The line is split only
//! where that is the only reading. A line with anything that a shell would act upon stays a line,
//! and is evaluated as a shell reads it.

/// The words of a line that has nothing but quoted and plain words.
pub(super) fn split(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' => words.push(word.take()?),
            '\'' => single(&mut chars, word.get_or_insert_default())?,
            '"' => double(&mut chars, word.get_or_insert_default())?,
            c if is_plain(c) => word.get_or_insert_default().push(c),
            _ => return None,
        }
    }
    words.push(word?);
    Some(words)
}

/// Characters that stand for themselves outside of quotes.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+-./:@]_=%^,".contains(c)
}

fn single(chars: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    for c in chars {
        if c == '\'' {
            return Some(());
        }
        word.push(c);
    }
    None
}

fn double(chars: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(()),
            '\\' => match chars.next()? {
                c @ ('$' | '`' | '"' | '\\') => word.push(c),
                _ => return None,
            },
            // History expansion exists only in interactive shells, but it is not needed here.
            '$' | '`' | '!' => return None,
            c => word.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::split;

    #[track_caller]
    fn is(line: &str, words: &[&str]) {
        let expect: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(split(line), Some(expect), "{line}");
    }

    #[test]
    fn a_quoted_list_is_the_list_again() {
        is("ls", &["ls"]);
        is(
            "/bin/bash -lc 'mkdir a b'",
            &["/bin/bash", "-lc", "mkdir a b"],
        );
        is(
            r#"/bin/bash -lc "printf '%s\\n' 'a'""#,
            &["/bin/bash", "-lc", r"printf '%s\n' 'a'"],
        );
        is(
            r#"bash -lc 'echo "'"it's "'$HOME"'"#,
            &["bash", "-lc", r#"echo "it's $HOME""#],
        );
        is("x '' ''", &["x", "", ""]);
        is(r#"x "\$a\`b\"c\\d""#, &["x", r#"$a`b"c\d"#]);
        is("x 'a\nb'", &["x", "a\nb"]);
    }

    #[test]
    fn a_line_that_a_shell_would_act_upon_stays_one() {
        for line in [
            "",
            " ",
            "a  b",
            " a",
            "a ",
            "a\tb",
            "a;b",
            "a|b",
            "a&b",
            "a>b",
            "$a",
            "`a`",
            "a*",
            "a?",
            "[a",
            "~",
            "a\\ b",
            "'a",
            "\"a",
            "\"$a\"",
            "\"`a`\"",
            "\"a!b\"",
            "\"\\a\"",
            "a#b",
            "{a",
            "a(b)",
            "<command included NUL byte>",
            "a\nb",
            "é",
            "a\u{0}",
        ] {
            assert_eq!(split(line), None, "{line:?}");
        }
    }
}
