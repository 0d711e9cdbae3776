//! Converts an array of words that an adapter will execute into an equivalent command line.
//!
//! Must not know where the array was found.

use super::fields::{Field, ValueError};

/// The shells whose `-c TEXT` is read as that text, by name or by their usual path.
const SHELLS: &[&str] = &["sh", "bash", "zsh", "dash"];
const SHELL_DIRS: &[&str] = &["/bin/", "/usr/bin/", "/usr/local/bin/"];

/// The words of an array that can be executed.
pub(super) fn parse_words(list: &[Field]) -> Result<Vec<&str>, ValueError> {
    let words: Vec<&str> = list.iter().map(parse_word).collect::<Result<_, _>>()?;
    match words.first() {
        None => Err(ValueError::NoWords),
        Some(first) if first.trim().is_empty() => Err(ValueError::NoProgram),
        Some(_) => Ok(words),
    }
}

fn parse_word(item: &Field) -> Result<&str, ValueError> {
    match item {
        Field::Text(text) if text.contains('\0') => Err(ValueError::Nul),
        Field::Text(text) => Ok(text),
        _ => Err(ValueError::NotWords),
    }
}

/// The text that a shell runs: `[sh, -c, TEXT]`, with any of the shells and `-c` or `-lc`.
pub(super) fn script<'a>(words: &[&'a str]) -> Option<&'a str> {
    let [shell, flag, text] = words else {
        return None;
    };
    let dir = SHELL_DIRS.iter().find_map(|dir| shell.strip_prefix(dir));
    let known = SHELLS.contains(&dir.unwrap_or(shell));
    (known && matches!(*flag, "-c" | "-lc")).then_some(text)
}

/// The command line of an array.
pub(crate) fn to_command_line(words: &[&str]) -> Result<String, ValueError> {
    match script(words) {
        Some(text) if text.trim().is_empty() => Err(ValueError::Blank),
        Some(text) => Ok(text.to_owned()),
        None => Ok(words
            .iter()
            .map(|word| quote_word(word))
            .collect::<Vec<_>>()
            .join(" ")),
    }
}

/// Quotes a word so that a shell reads exactly that word. Plain words stay as they are; a first
/// word with a meaning in the shell is not plain.
fn quote_word(word: &str) -> String {
    const OWN: &[&str] = &[
        "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for",
        "in", "select", "function", "time", "coproc",
    ];
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !OWN.contains(&word) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_with_a_text_is_that_text() {
        for shell in [
            "sh",
            "bash",
            "zsh",
            "dash",
            "/bin/sh",
            "/usr/bin/bash",
            "/usr/local/bin/zsh",
        ] {
            for flag in ["-c", "-lc"] {
                assert_eq!(
                    script(&[shell, flag, "ls | wc"]),
                    Some("ls | wc"),
                    "{shell} {flag}"
                );
            }
        }
    }

    #[test]
    fn anything_else_is_the_words_that_it_is() {
        for words in [
            &["bash", "-c"][..],
            &["bash", "-c", "ls", "x"],
            &["bash", "-ic", "ls"],
            &["./bash", "-c", "ls"],
            &["/workspace/bash", "-c", "ls"],
            &["fish", "-c", "ls"],
            &["/usr/bin//bash", "-c", "ls"],
        ] {
            assert_eq!(script(words), None, "{words:?}");
        }
        let line = |words: &[&str]| to_command_line(words).expect("a command");
        assert_eq!(line(&["git", "log", "--oneline"]), "git log --oneline");
        assert_eq!(
            line(&["echo", "$(rm -rf /)", "it's", "", "~"]),
            r"echo '$(rm -rf /)' 'it'\''s' '' '~'"
        );
        assert_eq!(line(&["A=b", "x"]), "'A=b' x");
        assert_eq!(line(&["time", "x"]), "'time' x");
        assert_eq!(line(&["./bash", "-c", "ls; ls"]), "./bash -c 'ls; ls'");
    }
}
