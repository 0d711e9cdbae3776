//! Facts about single programs: which flags take a value, which operand is a pattern, what may
//! precede a subcommand.
//!
//! Owns these facts, from the manual pages, for the programs that policies name most. An unknown
//! program is read with suspicion: every word counts as a possible path and every letter after `-`
//! as a possible flag. Must not know rules.

use super::command::Word;

/// How a program reads its arguments.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact of a manual page"
)]
pub(super) struct Grammar {
    /// Letters of short flags that need a value, attached or as the next word.
    pub short_values: &'static str,
    /// Letters of short flags whose attached rest is their value; they never take the next word.
    pub short_optional: &'static str,
    /// Long flags that need a value: after `=` or as the next word.
    pub long_values: &'static [&'static str],
    /// Flags of any kind whose value is text, never a path.
    pub text_flags: &'static [&'static str],
    /// The first operand is a pattern or a script, unless one of these flags gives it.
    pub pattern_unless: Option<&'static [&'static str]>,
    /// Whether `--` certainly ends the flags: no flag can consume it as its value.
    pub double_dash_ends_flags: bool,
    /// Whether its first operand is a subcommand.
    pub has_subcommand: bool,
    /// Flags before the subcommand that take the next word as value.
    pub global_values: &'static [&'static str],
    /// Whether its words that begin with `-` are not clusters of letters (`find -name`).
    pub has_word_flags: bool,
    /// Whether a word that begins with `-` is a flag even where a value is expected.
    pub dashes_are_flags: bool,
    /// Whether a word `REV:PATH` names a path after its colon.
    pub colon_paths: bool,
    /// Whether its flags may or may not take a value, and its subcommands may be abbreviated. For
    /// rules that forbid a subcommand, each word that could be it counts.
    pub loose_subcommand: bool,
}

const PLAIN: Grammar = Grammar {
    short_values: "",
    short_optional: "",
    long_values: &[],
    text_flags: &[],
    pattern_unless: None,
    double_dash_ends_flags: false,
    has_subcommand: false,
    global_values: &[],
    has_word_flags: false,
    dashes_are_flags: false,
    colon_paths: false,
    loose_subcommand: false,
};

const LS: Grammar = Grammar {
    short_values: "ITw",
    long_values: &[
        "--ignore",
        "--tabsize",
        "--width",
        "--block-size",
        "--sort",
        "--time",
    ],
    ..PLAIN
};
const HEAD: Grammar = Grammar {
    short_values: "cns",
    long_values: &["--lines", "--bytes", "--pid", "--sleep-interval"],
    ..PLAIN
};
const GREP: Grammar = Grammar {
    short_values: "ABCDdefm",
    long_values: &[
        "--regexp",
        "--file",
        "--max-count",
        "--after-context",
        "--before-context",
        "--context",
        "--include",
        "--exclude",
        "--exclude-dir",
        "--exclude-from",
        "--label",
        "--devices",
        "--directories",
        "--binary-files",
    ],
    text_flags: &["-e", "--regexp", "--exclude", "--exclude-dir", "--label"],
    pattern_unless: Some(&["-e", "-f", "--regexp", "--file"]),
    ..PLAIN
};
const RG: Grammar = Grammar {
    short_values: "ABCETMdefgjmrt",
    long_values: &[
        "--regexp",
        "--file",
        "--glob",
        "--iglob",
        "--type",
        "--type-not",
        "--max-count",
        "--after-context",
        "--before-context",
        "--context",
        "--replace",
        "--max-depth",
        "--threads",
        "--sort",
        "--sortr",
        "--max-columns",
        "--color",
        "--colors",
        "--encoding",
        "--ignore-file",
        "--pre",
        "--pre-glob",
        "--hostname-bin",
    ],
    text_flags: &["-e", "--regexp", "-r", "--replace"],
    pattern_unless: Some(&["-e", "-f", "--regexp", "--file", "--files", "--type-list"]),
    ..PLAIN
};
const DIFF: Grammar = Grammar {
    short_values: "CUIxXFDLSW",
    long_values: &[
        "--label",
        "--exclude",
        "--ignore-matching-lines",
        "--exclude-from",
    ],
    text_flags: &["-L", "--label", "-I", "--ignore-matching-lines"],
    ..PLAIN
};
const SORT: Grammar = Grammar {
    short_values: "koStT",
    long_values: &[
        "--key",
        "--output",
        "--buffer-size",
        "--field-separator",
        "--temporary-directory",
        "--batch-size",
        "--compress-program",
        "--files0-from",
        "--parallel",
        "--random-source",
    ],
    text_flags: &["-t", "--field-separator"],
    ..PLAIN
};
const UNIQ: Grammar = Grammar {
    short_values: "fsw",
    long_values: &["--skip-fields", "--skip-chars", "--check-chars"],
    ..PLAIN
};
const SED: Grammar = Grammar {
    short_values: "efl",
    short_optional: "i",
    long_values: &["--expression", "--file", "--line-length"],
    text_flags: &["-e", "--expression"],
    pattern_unless: Some(&["-e", "-f", "--expression", "--file"]),
    ..PLAIN
};
const AWK: Grammar = Grammar {
    short_values: "Fvfe",
    text_flags: &["-F", "-v", "-e"],
    pattern_unless: Some(&["-f", "-e"]),
    ..PLAIN
};
const FIND: Grammar = Grammar {
    has_word_flags: true,
    ..PLAIN
};
const GIT: Grammar = Grammar {
    text_flags: &[
        "--grep",
        "--author",
        "--committer",
        "--since",
        "--until",
        "--after",
        "--before",
        "--format",
        "--pretty",
        "--date",
        "--message",
    ],
    has_subcommand: true,
    global_values: &[
        "-C",
        "-c",
        "--git-dir",
        "--work-tree",
        "--namespace",
        "--exec-path",
        "--super-prefix",
        "--config-env",
        "--attr-source",
        "--list-cmds",
    ],
    colon_paths: true,
    ..PLAIN
};
const CARGO: Grammar = Grammar {
    short_values: "pjFZC",
    long_values: &[
        "--package",
        "--features",
        "--target",
        "--jobs",
        "--profile",
        "--manifest-path",
        "--target-dir",
        "--config",
        "--format-version",
        "--message-format",
        "--color",
        "--bin",
        "--test",
        "--example",
        "--bench",
        "--exclude",
    ],
    double_dash_ends_flags: true,
    dashes_are_flags: true,
    has_subcommand: true,
    global_values: &["--config", "-C", "-Z", "--color", "--manifest-path"],
    ..PLAIN
};
const NPM: Grammar = Grammar {
    double_dash_ends_flags: true,
    has_subcommand: true,
    global_values: &[
        "--prefix",
        "-C",
        "--registry",
        "--workspace",
        "-w",
        "--userconfig",
        "--cache",
        "--loglevel",
    ],
    loose_subcommand: true,
    ..PLAIN
};
const RM: Grammar = Grammar {
    double_dash_ends_flags: true,
    ..PLAIN
};
const COPY: Grammar = Grammar {
    short_values: "tSgmo",
    long_values: &[
        "--target-directory",
        "--suffix",
        "--mode",
        "--owner",
        "--group",
        "--reference",
    ],
    ..PLAIN
};
const TOUCH: Grammar = Grammar {
    short_values: "drts",
    long_values: &["--date", "--reference", "--time", "--size"],
    text_flags: &["-d", "--date"],
    ..PLAIN
};

/// The index from which a rule that forbids looks at arguments, for a program whose subcommand is
/// hard to find: after a word that follows only flags and their possible values. `tokens` are the
/// rule's, each with its alternatives.
pub(super) fn find_tokens_anywhere(tokens: &[Vec<String>], words: &[Word]) -> Option<usize> {
    let fits = |at: usize| {
        let words = words.get(at..at + tokens.len())?;
        let fits = tokens.iter().zip(words).all(|(token, word)| {
            let text = &word.text;
            let short = |whole: &String| whole == text || text.len() > 1 && whole.starts_with(text);
            !word.is_dynamic() && !word.glob && token.iter().any(short)
        });
        fits.then_some(at + tokens.len())
    };
    let mut after_flag = false;
    for (at, word) in words.iter().enumerate().skip(1) {
        let is_flag = word.text.starts_with('-');
        if !is_flag && let Some(end) = fits(at) {
            return Some(end);
        }
        if !is_flag && !after_flag {
            return None;
        }
        after_flag = is_flag && !word.text.contains('=');
    }
    None
}

/// The grammar of a program, by its name without a directory; `None` if it is unknown.
pub(super) fn for_program(program: &str) -> Option<&'static Grammar> {
    Some(match program {
        "cat" | "wc" | "cd" | "echo" | "pwd" | "true" | "false" | "tee" | "chmod" | "chown" => {
            &PLAIN
        }
        "ls" => &LS,
        "head" | "tail" => &HEAD,
        "grep" | "egrep" | "fgrep" => &GREP,
        "rg" => &RG,
        "diff" => &DIFF,
        "sort" => &SORT,
        "uniq" => &UNIQ,
        "sed" | "gsed" => &SED,
        "awk" | "gawk" | "mawk" => &AWK,
        "find" => &FIND,
        "git" => &GIT,
        "cargo" => &CARGO,
        "npm" | "pnpm" | "yarn" => &NPM,
        "rm" | "rmdir" => &RM,
        "cp" | "mv" | "ln" | "install" | "mkdir" => &COPY,
        "touch" | "truncate" => &TOUCH,
        _ => return None,
    })
}
