//! Whether the scripts of a `sed` or `awk` command are harmless: they run nothing, read no other file
//! and write none.
//!
//! Knows the words and constructs that surely are; everything else is not. Must not know rules.

use super::command::{Word, base_name};

/// Whether every script of the command is harmless.
pub(super) fn is_harmless(words: &[Word]) -> bool {
    let is_literal = |word: &Word| !word.is_dynamic() && !word.glob && !word.tilde;
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    match base_name(&program.text) {
        "sed" => sed_scripts(arguments, is_literal),
        "awk" | "gawk" | "mawk" => awk_script(arguments, is_literal),
        _ => false,
    }
}

fn sed_scripts(arguments: &[Word], is_literal: impl Fn(&Word) -> bool) -> bool {
    let mut has_script = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let text = word.text.as_str();
        let script = match text {
            "-e" | "--expression" => words.next(),
            "-i" | "--in-place" | "--quiet" | "--silent" | "--regexp-extended" => continue,
            "--" => return false,
            _ if text.starts_with("--") => return false,
            _ if text.len() > 1 && text.starts_with('-') => {
                if text[1..].bytes().all(|flag| b"nErsuz".contains(&flag)) {
                    continue;
                }
                return false;
            }
            _ if has_script => continue,
            _ => Some(word),
        };
        has_script = true;
        if !script.is_some_and(|script| is_literal(script) && is_harmless_sed(&script.text)) {
            return false;
        }
    }
    has_script
}

/// Reads a whole sed script; `false` at anything that is not known to be harmless.
fn is_harmless_sed(script: &str) -> bool {
    let mut rest = script.as_bytes();
    loop {
        rest = rest.trim_ascii_start();
        match rest.first() {
            None => return true,
            Some(b';' | b'{' | b'}') => {
                rest = &rest[1..];
                continue;
            }
            Some(_) => {}
        }
        let Some(after) = skip_addresses(rest).and_then(skip_command) else {
            return false;
        };
        // A command ends at one of these.
        let after = after.trim_ascii_start();
        if !matches!(after.first(), None | Some(b';' | b'}')) && after.len() == rest.len() {
            return false;
        }
        rest = after;
    }
}

/// Skips `ADDR`, `ADDR,ADDR` and `!`; `None` if an address is unusual.
fn skip_addresses(text: &[u8]) -> Option<&[u8]> {
    let mut rest = skip_address(text)?;
    if rest.len() < text.len()
        && let Some(second) = rest.strip_prefix(b",")
    {
        let second = second.strip_prefix(b"+").unwrap_or(second);
        rest = skip_address(second).filter(|after| after.len() < second.len())?;
    }
    rest = rest.trim_ascii_start();
    Some(rest.strip_prefix(b"!").unwrap_or(rest).trim_ascii_start())
}

/// Skips one address, if there is one; `None` if it is unusual.
fn skip_address(text: &[u8]) -> Option<&[u8]> {
    Some(match text.first()? {
        b'$' => &text[1..],
        b'0'..=b'9' => {
            let end = text
                .iter()
                .position(|byte| !byte.is_ascii_digit() && *byte != b'~');
            &text[end.unwrap_or(text.len())..]
        }
        b'/' => {
            let after = skip_part(&text[1..], b'/')?;
            after.strip_prefix(b"I").unwrap_or(after)
        }
        b'\\' => return None,
        _ => text,
    })
}

/// Skips a command that touches only the text.
fn skip_command(text: &[u8]) -> Option<&[u8]> {
    let (command, rest) = text.split_first()?;
    match command {
        b'p' | b'P' | b'd' | b'D' | b'n' | b'N' | b'g' | b'G' | b'h' | b'H' | b'x' | b'=' => {
            Some(rest)
        }
        b'q' | b'Q' => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            Some(&rest[digits..])
        }
        b'{' => Some(rest),
        b's' | b'y' => {
            let (delimiter, rest) = rest.split_first()?;
            if matches!(delimiter, b'\\' | b'\n') {
                return None;
            }
            let rest = skip_part(skip_part(rest, *delimiter)?, *delimiter)?;
            let flags = rest
                .iter()
                .take_while(|byte| b"gpiImM0123456789".contains(byte))
                .count();
            Some(&rest[if *command == b's' { flags } else { 0 }..])
        }
        _ => None,
    }
    .filter(|rest| {
        matches!(
            rest.trim_ascii_start().first(),
            None | Some(b';' | b'}' | b'\n')
        ) || ends_line(rest)
            || *command == b'{'
    })
}

/// Whether a newline ends the command.
fn ends_line(rest: &[u8]) -> bool {
    let blank = rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count();
    rest.get(blank) == Some(&b'\n')
}

/// Skips to behind the delimiter; a backslash takes the next byte with it.
fn skip_part(text: &[u8], delimiter: u8) -> Option<&[u8]> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if byte == delimiter => return Some(&text[at + 1..]),
            _ => at += 1,
        }
    }
    None
}

/// What an awk program may not contain: it runs commands, opens files, loads code, or shows the
/// environment.
const AWK_WORDS: &[&str] = &[
    "system", "getline", "|", ">", "<", "@", "ENVIRON", "PROCINFO", "ARG", "close", "fflush",
];

fn awk_script(arguments: &[Word], is_literal: impl Fn(&Word) -> bool) -> bool {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let text = word.text.as_str();
        match text {
            "-F" | "-v" => {
                if !words.next().is_some_and(&is_literal) {
                    return false;
                }
            }
            _ if text.starts_with("-F") && is_literal(word) => {}
            _ if text.starts_with('-') => return false,
            script => {
                let is_free = AWK_WORDS.iter().all(|word| !script.contains(word));
                return is_literal(word) && is_free;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &str, expect: bool) {
        let words: Vec<Word> = crate::strict::parse_plain(command)
            .expect("plain")
            .commands
            .remove(0)
            .words;
        assert_eq!(is_harmless(&words), expect, "{command}");
    }

    #[test]
    fn scripts_that_only_transform_text_are_harmless() {
        for command in [
            "sed -n 10,20p x",
            "sed -n '/a/,/b/p' x",
            "sed 's/a/b/g' x",
            "sed -i 's|a/b|c|2gI' x y",
            "sed -e 's/a/b/' -e '/x/d' a",
            "sed -n '$p;1~2p' x",
            "sed '/a/{s/b/c/;p}' x",
            "sed 's/a/\\//; y/ab/cd/' x",
            "sed '1!G;h;$!d' x",
            "sed 10q x",
            "awk '{print $1}' x",
            "awk -F: '{s += $2} END {print s}' x",
            "awk -F , -v n=3 'NR == n' x",
        ] {
            check(command, true);
        }
    }

    #[test]
    fn scripts_that_could_do_more_are_not() {
        for command in [
            "sed -n '1e id' x",
            "sed 's/a/b/e' x",
            "sed 's/a/b/w y' x",
            "sed 'w y' x",
            "sed 'r /etc/passwd' x",
            "sed 'R y' x",
            "sed -f y x",
            "sed -i.bak s/a/b/ x",
            "sed -nf y x",
            "sed --file=y x",
            "sed -e 1p -e 'w y' x",
            "sed '1p;e id' x",
            "sed '/a/{p;w y\n}' x",
            "sed 's/a/b/;;;e' x",
            "sed '\\,a,e' x",
            "sed 'a text' x",
            "sed 's/a/b/ ge' x",
            "sed --debug p x",
            "sed",
            "awk 'BEGIN{system(\"id\")}'",
            "awk '{print | \"sh\"}' x",
            "awk '{print > \"y\"}' x",
            "awk 'BEGIN{while ((getline l < \"/etc/passwd\") > 0) print l}'",
            "awk 'BEGIN{ARGV[1]=\"/etc/passwd\"; ARGC=2} {print}'",
            "awk 'BEGIN{print ENVIRON[\"KEY\"]}'",
            "awk -f y x",
            "awk -i inplace 1 x",
            "awk '@include \"y\"' x",
            "awk --source=1 x",
        ] {
            check(command, false);
        }
    }
}
