//! Rules about what flows from one program into another: `curl … | sh`.
//!
//! Owns the meaning of `pipe`. Must not know how a text was read, nor how severe a rule is.

use std::collections::{BTreeMap, BTreeSet};

use super::command::{Command, base_name};
use super::flow::Edge;
use super::{Policy, wrap};

/// The condition `pipe`, compiled: names of programs without their directories.
#[derive(Debug, Clone)]
pub(super) struct Pipe {
    pub from: Vec<String>,
    pub to: Vec<String>,
}

/// Which programs each command runs, behind wrappers and in literal scripts too.
pub(super) struct Programs<'c> {
    places: BTreeMap<&'c str, Vec<usize>>,
}

impl<'c> Programs<'c> {
    pub(super) fn of(commands: &'c [Command], texts: &[String]) -> Self {
        let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut add = |name: &'c str, at: usize| {
            let of_name = places.entry(name).or_default();
            if of_name.last() != Some(&at) {
                of_name.push(at);
            }
        };
        for (at, command) in commands.iter().enumerate() {
            let mut first = |words: &'c [super::command::Word]| {
                if let Some(word) = words.first().filter(|w| !w.live()) {
                    add(base_name(&word.text), at);
                }
            };
            first(&command.words);
            for range in wrap::behind(command, texts).commands {
                first(&command.words[range]);
            }
        }
        Self { places }
    }

    /// Whether a command among `range` runs one of the programs.
    fn any(&self, names: &[String], range: &std::ops::Range<usize>) -> Option<usize> {
        let first = |name: &String| {
            let places = self.places.get(name.as_str())?;
            let next = places.partition_point(|&at| at < range.start);
            places.get(next).copied().filter(|at| range.contains(at))
        };
        names.iter().filter_map(first).min()
    }
}

/// The rules that apply, by their places in the policy, each with the command that it is about.
pub(super) fn hits(
    policy: &Policy,
    commands: &[Command],
    texts: &[String],
    edges: &[Edge],
) -> Vec<(usize, usize)> {
    if edges.is_empty() || !policy.index.has_pipes() {
        return Vec::new();
    }
    let programs = Programs::of(commands, texts);
    let rules: BTreeSet<usize> = programs
        .places
        .keys()
        .flat_map(|name| policy.index.pipes_into(name))
        .copied()
        .collect();
    let mut found = Vec::new();
    for rule in rules {
        let Some(pipe) = &policy.rules[rule].pipe else {
            continue;
        };
        let hit = edges.iter().find_map(|(from, to)| {
            programs.any(&pipe.from, from)?;
            programs.any(&pipe.to, to)
        });
        found.extend(hit.map(|command| (rule, command)));
    }
    found
}
