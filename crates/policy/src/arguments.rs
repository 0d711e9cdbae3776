//! Parses the arguments of one command: flags in every spelling, operands, and every text that may
//! be a path.
//!
//! Owns the spelling of flags: clusters (`-rf`), attached values (`-ofile`), `=`, abbreviations of
//! long flags, and words after `--`. In doubt a word is both: a flag for conditions that forbid it,
//! and a path for conditions on paths. Must not know rules or the file system.

use super::command::Word;
use super::grammar::Grammar;

/// One use of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlagUse<'w> {
    pub flag: Flag<'w>,
    /// Whether it follows a `--` that may or may not end the flags.
    pub doubtful: bool,
}

/// A flag, without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag<'w> {
    /// One letter of a cluster.
    Short(char),
    /// `--name`, as it was written.
    Long(&'w str),
    /// The whole word of a cluster, for flags such as `-exec` and `-vv`.
    Whole(&'w str),
}

/// A text that may be a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathCandidate<'w> {
    /// The word that contains it.
    pub word: &'w Word,
    /// The word's index in the command.
    pub index: usize,
    /// The offset in the word where it begins; 0 is the whole word.
    pub from: usize,
    /// The offset where it ends; `None`: the end of the word.
    pub to: Option<usize>,
    /// Whether it is only a guess: it counts for conditions that forbid, not for those that permit.
    pub guess: bool,
    /// Whether the program itself reads wildcards in it, quoted or not.
    pub is_pathspec: bool,
    /// Whether it is unknown which path it names.
    pub unknown: bool,
}

impl<'w> PathCandidate<'w> {
    /// Whether it is a whole word, and certainly a path.
    pub(super) fn is_whole_literal(&self) -> bool {
        let odd =
            self.guess || self.is_pathspec || self.unknown || self.word.tilde || self.word.glob;
        self.from == 0 && self.to.is_none() && !odd && !self.word.is_dynamic()
    }

    pub(super) fn text(&self) -> &'w str {
        let to = self.to.unwrap_or(self.word.text.len());
        self.word.text.get(self.from..to).unwrap_or_default()
    }
}

/// The parsed arguments of a command.
#[derive(Debug, Default)]
pub(super) struct Arguments<'w> {
    pub uses: Vec<FlagUse<'w>>,
    /// The number of words that are neither flags nor their values.
    pub operands: usize,
    pub candidates: Vec<PathCandidate<'w>>,
    /// Every word that begins with `-`, for conditions that list all permitted ones.
    pub flag_words: Vec<&'w Word>,
    /// Every word.
    pub words: &'w [Word],
}

/// Parses `words[start..]`.
pub(super) fn parse<'w>(
    grammar: Option<&'static Grammar>,
    words: &'w [Word],
    start: usize,
) -> Arguments<'w> {
    let start = start.min(words.len());
    let mut parser = Parser {
        grammar,
        out: Arguments {
            words: &words[start..],
            ..Arguments::default()
        },
        saw_double_dash: false,
        pending_value: None,
        value_may_exclude: false,
        value_is_line_range: false,
        has_text_search: grammar.is_some_and(|g| g.colon_paths && is_text_search(g, words)),
        first_operand: None,
    };
    for (index, word) in words.iter().enumerate().skip(start) {
        parser.word(index, word);
    }
    parser.finish()
}

/// How many marks inside one word of an unknown program may be followed by a path.
const PARTS: usize = 8;

/// How many letters of a cluster may be followed by a value.
const CLUSTER: usize = 32;

struct Parser<'w> {
    grammar: Option<&'static Grammar>,
    out: Arguments<'w>,
    /// Whether a `--` has been read.
    saw_double_dash: bool,
    /// Whether the next word is a flag's value; `true`: the value is text.
    pending_value: Option<bool>,
    /// Whether that value may be a pattern with a leading `!` for exclusion.
    value_may_exclude: bool,
    /// Whether that value is a range of lines with a file after its last colon.
    value_is_line_range: bool,
    /// Whether it is one of git's commands in which `-S` and `-G` search for a text.
    has_text_search: bool,
    /// The index of the first operand among the candidates.
    first_operand: Option<usize>,
}

impl<'w> Parser<'w> {
    fn word(&mut self, index: usize, word: &'w Word) {
        let text = word.text.as_str();
        if let Some(is_text) = self.pending_value.take()
            && !self.is_flag_not_value(text)
        {
            let excluded = std::mem::take(&mut self.value_may_exclude) && text.starts_with('!');
            let ranged = std::mem::take(&mut self.value_is_line_range);
            if ranged && let Some(at) = text.rfind(':') {
                self.candidate(word, index, at + 1, false);
            } else if !is_text && !excluded {
                self.candidate(word, index, 0, false);
            }
            // Only the program knows whether it is a value. What could be a flag counts as one
            // where flags are forbidden.
            if text.len() > 1 && text.starts_with('-') {
                let ended = std::mem::replace(&mut self.saw_double_dash, true);
                let candidates = self.out.candidates.len();
                self.flag(index, word);
                self.out.candidates.truncate(candidates);
                self.saw_double_dash = ended;
                self.pending_value = None;
            }
            return;
        }
        if text == "--" && !word.is_dynamic() && !self.saw_double_dash {
            self.saw_double_dash = true;
            return;
        }
        let dashed = text.len() > 1 && text.starts_with('-') && word.dynamic_from != Some(0);
        if dashed
            && !(self.saw_double_dash && self.grammar.is_some_and(|g| g.double_dash_ends_flags))
        {
            self.flag(index, word);
            if !self.saw_double_dash {
                return;
            }
        }
        self.operand(index, word);
    }

    /// Whether a word in the place of a value is a flag all the same, because the program accepts
    /// no value that begins with `-`.
    fn is_flag_not_value(&self, text: &str) -> bool {
        text.len() > 1 && text.starts_with('-') && self.grammar.is_some_and(|g| g.dashes_are_flags)
    }

    fn operand(&mut self, index: usize, word: &'w Word) {
        self.out.operands += 1;
        if self.first_operand.is_none() {
            self.first_operand = Some(self.out.candidates.len());
        }
        let colon = self.grammar.is_some_and(|g| g.colon_paths);
        if colon {
            self.pathspec(word, index);
        } else {
            self.candidate(word, index, 0, false);
        }
        if let Some(at) = word.text.find('=') {
            self.candidate(word, index, at + 1, true);
        }
        if let Some(at) = word.text.rfind(':').filter(|_| colon) {
            self.candidate(word, index, at + 1, true);
        }
        self.add_marked_paths(index, word);
        self.add_default_value_path(index, word);
    }

    /// The path in `${x:-path}`.
    fn add_default_value_path(&mut self, index: usize, word: &'w Word) {
        if !word.is_dynamic() {
            return;
        }
        let text = word.text.as_str();
        if let Some(at) = text.find('-')
            && let Some(end) = text.rfind('}')
            && at < end
        {
            self.candidate(word, index, at + 1, true);
            if let Some(last) = self.out.candidates.last_mut() {
                last.to = Some(end);
            }
        }
    }

    /// An unknown program may read a path after `@`, `<`, `:` or `,` and before the last two (`-d
    /// @file`, `host:file`, `from:to`).
    fn add_marked_paths(&mut self, index: usize, word: &'w Word) {
        let text = word.text.as_str();
        if self.grammar.is_some() || text.contains("://") {
            return;
        }
        let marks = text.match_indices(['@', '<', ':', ',']).take(PARTS);
        for (at, mark) in marks {
            self.candidate(word, index, at + 1, true);
            if at > 0 && matches!(mark, ":" | ",") {
                self.candidate(word, index, 0, true);
                if let Some(last) = self.out.candidates.last_mut() {
                    last.to = Some(at);
                }
            }
        }
    }

    /// An operand of git: a revision, or a pathspec. Git itself reads a pathspec's wildcards and
    /// the magic before it (gitglossary(7)).
    fn pathspec(&mut self, word: &'w Word, index: usize) {
        let text = word.text.as_str();
        let mut from = 0;
        let mut unknown = false;
        if let Some(long) = text.strip_prefix(":(") {
            let end = long.find(')').unwrap_or(long.len());
            let plain = |name: &str| matches!(name, "top" | "exclude" | "literal" | "glob");
            unknown = !long[..end].split(',').all(plain);
            from = (end + 3).min(text.len());
        } else if text.starts_with([':']) {
            let short = text[1..].trim_start_matches(['/', '!', '^']);
            if short.len() + 1 < text.len() {
                from = text.len() - short.strip_prefix(':').unwrap_or(short).len();
            }
        }
        self.out.candidates.push(PathCandidate {
            word,
            index,
            from,
            to: None,
            guess: false,
            is_pathspec: true,
            unknown,
        });
    }

    fn candidate(&mut self, word: &'w Word, index: usize, from: usize, guess: bool) {
        self.out.candidates.push(PathCandidate {
            word,
            index,
            from,
            to: None,
            guess,
            is_pathspec: false,
            unknown: false,
        });
    }

    /// A flag of git with an attached or a following value; `false` if it is not one.
    fn parse_git_flag(&mut self, index: usize, word: &'w Word) -> bool {
        let text = word.text.as_str();
        if !self.has_text_search || word.is_dynamic() {
            return false;
        }
        match text.get(..2) {
            Some("-S" | "-G" | "-L") if text.len() == 2 => {
                if !self.saw_double_dash {
                    self.pending_value = Some(text != "-L");
                    self.value_is_line_range = text == "-L";
                }
                true
            }
            Some("-S" | "-G") => {
                self.candidate(word, index, 2, true);
                true
            }
            // `-L1,5:FILE`, `-L:NAME:FILE`
            Some("-L") => {
                let at = text.rfind(':').map_or(2, |at| at + 1);
                self.candidate(word, index, at, false);
                true
            }
            _ => false,
        }
    }

    fn record_flag(&mut self, flag: Flag<'w>) {
        let doubtful = self.saw_double_dash;
        self.out.uses.push(FlagUse { flag, doubtful });
    }

    fn flag(&mut self, index: usize, word: &'w Word) {
        let doubtful = self.saw_double_dash;
        if !doubtful {
            self.out.flag_words.push(word);
        }
        let text = word.text.as_str();
        if text.starts_with("--") {
            self.long(index, word);
            return;
        }
        self.record_flag(Flag::Whole(text));
        self.add_marked_paths(index, word);
        if self.grammar.is_some_and(|g| g.has_word_flags) || self.parse_git_flag(index, word) {
            return;
        }
        for (at, letter) in text.char_indices().skip(1) {
            let after = at + letter.len_utf8();
            self.record_flag(Flag::Short(letter));
            let Some(grammar) = self.grammar else {
                continue;
            };
            let optional = grammar.short_optional.contains(letter);
            if !optional && !grammar.short_values.contains(letter) {
                continue;
            }
            let is_text = grammar
                .text_flags
                .iter()
                .any(|f| f.len() == 2 && f.ends_with(letter));
            let excludes = letter == 'g' && supports_exclusion(grammar);
            if after < text.len() {
                let is_none = excludes && text[after..].starts_with('!');
                if !(is_text || optional || is_none) {
                    self.candidate(word, index, after, false);
                }
            } else if !optional && !doubtful {
                self.pending_value = Some(is_text);
                self.value_may_exclude = excludes;
            }
            return;
        }
        // git accepts values of multi-letter flags only attached.
        if self.grammar.is_some_and(|g| g.colon_paths) && text.is_char_boundary(2) && text.len() > 2
        {
            self.candidate(word, index, 2, false);
        }
        // `-L:FUNCTION:FILE`, with any function pattern.
        if self.grammar.is_some_and(|g| g.colon_paths)
            && let Some(colon) = text.rfind(':')
        {
            self.candidate(word, index, colon + 1, false);
        }
        // A value may begin after every letter of a cluster.
        if self.grammar.is_none_or(|g| g.colon_paths) {
            for (from, _) in text.char_indices().skip(3).take(CLUSTER) {
                self.candidate(word, index, from, true);
            }
        }
        // A value may be attached to any letter: what looks like a path counts as one.
        if text.contains(['/', '~', '.']) {
            self.candidate(word, index, 2, true);
            let letters = text.find(['/', '~', '.']).unwrap_or(2);
            self.candidate(word, index, letters, false);
        }
    }

    fn long(&mut self, index: usize, word: &'w Word) {
        let text = word.text.as_str();
        let (name, value) = match text.find('=') {
            Some(at) => (&text[..at], Some(at + 1)),
            None => (word.literal_prefix(), None),
        };
        self.record_flag(Flag::Long(name));
        let is_text = self.grammar.is_some_and(|g| g.text_flags.contains(&name));
        let excludes =
            matches!(name, "--glob" | "--iglob") && self.grammar.is_some_and(supports_exclusion);
        match value {
            Some(from) if excludes && text[from..].starts_with('!') => {}
            Some(from) if !is_text => self.candidate(word, index, from, false),
            // Not for abbreviations: `--binary` and `--binary-files` are different flags.
            None if !self.saw_double_dash
                && self.grammar.is_some_and(|g| g.long_values.contains(&name)) =>
            {
                self.pending_value = Some(is_text);
                self.value_may_exclude = excludes;
            }
            _ => {}
        }
    }

    fn finish(mut self) -> Arguments<'w> {
        let pattern = self.grammar.and_then(|g| g.pattern_unless);
        if let (Some(given), Some(first)) = (pattern, self.first_operand) {
            let elsewhere = given
                .iter()
                .any(|flag| self.out.uses.iter().any(|u| flag_matches(u.flag, flag)));
            if !elsewhere {
                let PathCandidate { word, index, .. } = self.out.candidates[first];
                // A computed word may become a pattern and files.
                if !word.glob && !word.is_dynamic() {
                    self.out.candidates.retain(|c| c.index != index);
                }
            }
        }
        self.out
    }
}

/// Whether the program's file patterns accept a leading `!` for exclusion (rg(1)).
fn supports_exclusion(grammar: &Grammar) -> bool {
    grammar.long_values.contains(&"--iglob")
}

/// Whether it is a command of git whose `-S` and `-G` search for a text (gitdiffcore(7)). In other
/// commands `-S` is a file, or a key.
fn is_text_search(grammar: &Grammar, words: &[Word]) -> bool {
    let mut at = 1;
    while let Some(word) = words.get(at).filter(|word| word.text.starts_with('-')) {
        at += 1 + usize::from(grammar.global_values.contains(&word.text.as_str()));
    }
    let name = words
        .get(at)
        .filter(|word| !word.is_dynamic() && !word.glob);
    name.is_some_and(|word| matches!(word.text.as_str(), "log" | "show" | "diff"))
}

/// Values by which a flag that needs none is switched off again.
const OFF: &[&str] = &["false", "0", "no", "off", "null"];

/// Whether a flag is certainly in effect, for an exception to what is forbidden: written out, not
/// another flag's value, and not switched off again.
pub(super) fn is_surely_used(words: &[Word], flag: &str) -> bool {
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let end = texts.iter().position(|text| *text == "--");
    let before = &texts[..end.unwrap_or(texts.len())];
    let name = flag.trim_start_matches('-');
    let is_off = |text: &&str| {
        let no = text
            .strip_prefix("--no-")
            .map(|rest| rest.split('=').next());
        no == Some(Some(name))
            || text
                .strip_prefix(flag)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let takes_next = |text: &str| text.starts_with('-') && !text.contains('=');
    let is_there = |at: usize| {
        let is_value = at > 0 && takes_next(before[at - 1]);
        let is_off = before.get(at + 1).is_some_and(|next| OFF.contains(next));
        let is_open = words[at].is_dynamic() || words[at].glob;
        before[at] == flag && !(is_open || is_value || is_off)
    };
    (0..before.len()).any(is_there) && !before.iter().any(is_off)
}

/// Flags that are complete and would otherwise count as an abbreviation of another one.
const UNABBREVIATED: &[&str] = &["--text"];

/// Whether `written` is `flag` or an abbreviation of it, as getopt_long(3) and git accept.
fn abbreviates(written: &str, flag: &str) -> bool {
    written == flag
        || written.len() > 2 && flag.starts_with(written) && !UNABBREVIATED.contains(&written)
}

/// Whether a use is the flag that a condition names: `-o`, `--output` or a whole word.
pub(super) fn flag_matches(used: Flag<'_>, condition: &str) -> bool {
    match used {
        Flag::Long(name) => condition.starts_with("--") && abbreviates(name, condition),
        Flag::Short(letter) => {
            let mut rest = condition.chars().skip(1);
            rest.next() == Some(letter) && rest.next().is_none()
        }
        Flag::Whole(word) => word == condition,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;

    fn parse_words(text: &str) -> Vec<Word> {
        text.split(' ').map(Word::literal).collect()
    }

    #[track_caller]
    fn has(command: &str, flag: &str, expect: bool) {
        let words = parse_words(command);
        let parsed = parse(grammar::for_program(&words[0].text), &words, 1);
        let got = parsed.uses.iter().any(|u| flag_matches(u.flag, flag));
        assert_eq!(got, expect, "{command} has {flag}");
    }

    #[track_caller]
    fn paths(command: &str, expect: &[&str]) {
        let words = parse_words(command);
        let parsed = parse(grammar::for_program(&words[0].text), &words, 1);
        let got: Vec<_> = parsed
            .candidates
            .iter()
            .filter(|c| !c.guess)
            .map(PathCandidate::text)
            .collect();
        assert_eq!(got, expect, "{command}");
    }

    #[test]
    fn a_flag_is_found_in_every_spelling() {
        has("sort -uo out names", "-o", true);
        has("sort -oout names", "-o", true);
        has("sort -k1o names", "-o", false);
        has("sort -t o names", "-o", false);
        has("cargo build --bin --config x", "--config", true);
        has("cargo test -p -Zx", "-Z", true);
        has("sort -k -o names", "-o", true);
        has("sort --outp=x names", "--output", true);
        has("sort --output x", "--output", true);
        has("sort --reverse", "--output", false);
        has("rm -r -f x", "-f", true);
        has("rm -- -rf", "-r", false);
        has("sort -k -- -o x", "-o", true);
        has("git --ou x", "--output", true);
        has("rg -tz x", "-z", false);
        has("rg -nz x", "-z", true);
        has("unknown -abc", "-c", true);
        has("find . -okdir x", "-o", false);
        has("sed -i.bak s/e/f/ x", "-e", false);
    }

    #[test]
    fn a_flag_behind_untrusted_dashes_is_doubtful() {
        let words = parse_words("git -- --output=x");
        let parsed = parse(grammar::for_program("git"), &words, 1);
        assert!(parsed.uses.iter().any(|u| u.doubtful));
        assert_eq!(parsed.operands, 1);
    }

    #[test]
    fn every_text_that_may_be_a_path_is_a_candidate() {
        paths("cat a -- -b", &["a", "-b"]);
        paths("grep -rn pattern dir", &["dir"]);
        paths("grep -e pattern dir", &["dir"]);
        paths("grep -rf list dir", &["list", "dir"]);
        paths("grep --fil list dir", &["list", "dir"]);
        paths("grep --binary x .env", &[".env"]);
        paths("grep -A 3 pattern dir", &["3", "dir"]);
        paths("rg --files dir", &["dir"]);
        paths("sed -i /x/d file", &["file"]);
        paths("sort -T/tmp x", &["/tmp", "x"]);
        paths("ls --x=/etc", &["/etc"]);
        paths("unknown -f/etc/passwd", &["/etc/passwd"]);
        paths("unknown -f../x", &["../x"]);
        paths("find . -newer /etc/passwd", &[".", "/etc/passwd"]);
        paths("uniq -f 1 names", &["1", "names"]);
        let words = parse_words("git diff -pOid_rsa");
        let parsed = parse(grammar::for_program("git"), &words, 2);
        assert!(parsed.candidates.iter().any(|c| c.text() == "id_rsa"));
    }
}
