//! Programs that work on whole directories: which of their words include everything below.
//!
//! Owns facts about programs, from their manual pages. Must not know rules or sets.

use super::command::{Word, base_name};
use super::fact::{self, Cwd, PathFact, TreeEffect};
use super::path::Walker;

/// The tree effects of the words of one command.
pub(super) struct TreeEffects<'w> {
    words: &'w [Word],
    /// The effect on every path but the destination.
    sources: TreeEffect,
    /// The destination and the effect on it, if there is one.
    destination: Option<(Target<'w>, TreeEffect)>,
    /// Words from here on.
    from: usize,
}

/// Where a program places what it copies or moves.
#[derive(Clone, Copy)]
struct Target<'w> {
    word: &'w Word,
    index: usize,
    /// The offset in the word where it begins.
    from: usize,
}

impl<'w> TreeEffects<'w> {
    /// `subcommand` is the index of the first word after the program's own flags.
    pub(super) fn from_command(program: &str, words: &'w [Word], subcommand: usize) -> Self {
        let has = |letters: &[char], long: &[&str]| {
            words.iter().skip(1).any(|word| {
                let text = word.text.as_str();
                match text.strip_prefix("--") {
                    Some(name) => name.len() > 1 && long.iter().any(|l| l.starts_with(name)),
                    None => text.starts_with('-') && text.contains(letters),
                }
            })
        };
        let named = |name: &str| words.get(subcommand).is_some_and(|word| word.text == name);
        let deep = has(&['r', 'R', 'a'], &["recursive", "archive"]);
        let into = if deep {
            TreeEffect::PlaceInto
        } else {
            TreeEffect::PathOnly
        };
        let (sources, destination, from) = match program {
            "mv" => (TreeEffect::RemoveAll, Some(TreeEffect::PlaceInto), 1),
            "git" if named("mv") => (
                TreeEffect::RemoveAll,
                Some(TreeEffect::PlaceInto),
                subcommand + 1,
            ),
            "git" if named("rm") => (TreeEffect::RemoveAll, None, subcommand + 1),
            "rm" | "chmod" | "chown" | "chgrp" if deep => (TreeEffect::RemoveAll, None, 1),
            "find" if deletes_all(words) => (TreeEffect::RemoveAll, None, 1),
            "cp" if deep => (TreeEffect::ReadAll, Some(into), 1),
            "rsync" | "scp" => (TreeEffect::ReadAll, Some(TreeEffect::PlaceInto), 1),
            "cp" | "install" => (TreeEffect::PathOnly, Some(into), 1),
            "ln" => (TreeEffect::PathOnly, Some(TreeEffect::PlaceInto), 1),
            "tar" | "zip" | "7z" => (TreeEffect::ReadAll, None, 1),
            _ => (TreeEffect::PathOnly, None, 1),
        };
        let target = destination.and_then(|_| find_destination(words, from));
        Self {
            words,
            sources,
            destination: target.zip(destination),
            from,
        }
    }

    /// The effect on the word at an index.
    pub(super) fn effect_of_word(&self, index: usize) -> TreeEffect {
        match self.destination {
            Some((target, whole)) if target.index == index => whole,
            _ => self.sources,
        }
    }

    /// Adds the names that appear in the destination, if that is a directory.
    pub(super) fn add_destination_entries(
        &self,
        walker: &Walker<'_>,
        bases: &[Cwd],
        out: &mut Vec<PathFact>,
    ) {
        let Some((target, whole)) = self.destination else {
            return;
        };
        if target.word.is_dynamic() {
            return;
        }
        let mut at = Vec::new();
        fact::collect_facts(walker, bases, target.word, target.from, &mut at);
        let into: Vec<Cwd> = at
            .into_iter()
            .map(|end| Cwd {
                logical: end.resolved.clone(),
                physical: end.resolved,
                escaped: false,
            })
            .collect();
        let words = self.words.iter().enumerate().skip(self.from);
        for (_, word) in words.filter(|(at, word)| {
            *at != target.index && !word.text.starts_with('-') && !word.is_dynamic()
        }) {
            let name = base_name(word.text.trim_end_matches('/'));
            if matches!(name, "" | "." | "..") {
                continue;
            }
            let name = Word {
                text: name.to_owned(),
                glob: word.glob,
                ..Word::default()
            };
            let first = out.len();
            fact::collect_facts(walker, &into, &name, 0, out);
            for path in &mut out[first..] {
                path.guess = true;
                path.tree_effect = whole;
            }
        }
    }
}

/// Tests of find(1) that exclude most of a tree.
const TESTS: &[&str] = &[
    "-name",
    "-iname",
    "-path",
    "-ipath",
    "-wholename",
    "-regex",
    "-iregex",
    "-empty",
    "-newer",
    "-mtime",
    "-mmin",
    "-size",
];

fn deletes_all(words: &[Word]) -> bool {
    let has = |wanted: &[&str]| {
        words
            .iter()
            .any(|word| wanted.contains(&word.text.as_str()))
    };
    has(&["-delete"]) && !has(TESTS)
}

/// The last operand, or the argument of `-t`.
fn find_destination(words: &[Word], from: usize) -> Option<Target<'_>> {
    let mut last = None;
    let mut operands = 0;
    for (index, word) in words.iter().enumerate().skip(from) {
        let text = word.text.as_str();
        if matches!(text, "-t" | "--target-directory") {
            let word = words.get(index + 1)?;
            return Some(Target {
                word,
                index: index + 1,
                from: 0,
            });
        }
        if let Some(value) = text.strip_prefix("--target-directory=") {
            let from = text.len() - value.len();
            return Some(Target { word, index, from });
        }
        if !text.starts_with('-') {
            operands += 1;
            last = Some(Target {
                word,
                index,
                from: 0,
            });
        }
    }
    last.filter(|_| operands > 1)
}
