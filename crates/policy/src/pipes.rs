//! Rules about data that flows from one program into another: `curl … | sh`.
//!
//! Owns the meaning of `pipe`. Must not know how a text was read, nor how severe a rule is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::command::{Command, Word, base_name};
use super::flow::Edge;
use super::{Policy, scan, wrappers};

/// The compiled condition `pipe`: names of programs without their directories.
#[derive(Debug, Clone)]
pub(super) struct PipeCondition {
    pub from: Vec<String>,
    pub to: Vec<String>,
}

/// The programs that each command runs, including those behind wrappers and in literal scripts.
pub(super) struct Programs {
    places: BTreeMap<String, Vec<usize>>,
}

/// The maximum depth of nested scripts.
const SCRIPTS: usize = 3;

impl Programs {
    pub(super) fn from_commands(
        commands: &[Command],
        texts: &[String],
        functions: &[(String, Range<usize>)],
    ) -> Self {
        let mut of_each: Vec<Vec<String>> = Vec::new();
        for command in commands {
            let mut names = Vec::new();
            collect_names(command, texts, 0, &mut names);
            of_each.push(names);
        }
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut add = |name: &String, at: usize| {
            let of_name = places.entry(name.clone()).or_default();
            if of_name.last() != Some(&at) {
                of_name.push(at);
            }
        };
        for (at, names) in of_each.iter().enumerate() {
            for name in names {
                add(name, at);
            }
            // A function runs what its body runs.
            let own = commands[at].words.first().map(|word| word.text.as_str());
            let bodies = functions
                .iter()
                .filter(|(name, _)| Some(name.as_str()) == own);
            for name in bodies
                .filter_map(|(_, body)| of_each.get(body.clone()))
                .flatten()
                .flatten()
            {
                add(name, at);
            }
        }
        Self { places }
    }

    /// The first command in `range` that runs one of the programs.
    fn any(&self, names: &[String], range: &Range<usize>) -> Option<usize> {
        let first = |name: &String| {
            let places = self.places.get(name.as_str())?;
            let next = places.partition_point(|&at| at < range.start);
            places.get(next).copied().filter(|at| range.contains(at))
        };
        names.iter().filter_map(first).min()
    }
}

/// The rules that apply, by their indexes in the policy, each with the command that it is about.
pub(super) fn find_hits(
    policy: &Policy,
    commands: &[Command],
    texts: &[String],
    edges: &[Edge],
    functions: &[(String, Range<usize>)],
) -> Vec<(usize, usize)> {
    if edges.is_empty() || !policy.index.has_pipes() {
        return Vec::new();
    }
    let programs = Programs::from_commands(commands, texts, functions);
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

/// The programs that one command runs, including those behind wrappers and in literal scripts.
fn collect_names(command: &Command, texts: &[String], depth: usize, names: &mut Vec<String>) {
    let mut first = |words: &[Word]| {
        if let Some(word) = words.first().filter(|w| !w.is_dynamic()) {
            names.push(base_name(&word.text).to_owned());
        }
    };
    first(&command.words);
    let behind = wrappers::find_inner_commands(command, texts);
    for inner in behind.commands {
        first(&command.words[inner.range]);
    }
    if depth >= SCRIPTS {
        return;
    }
    for script in behind.scripts {
        let scan = scan::scan(&script);
        for inner in &scan.commands {
            collect_names(inner, &scan.texts, depth + 1, names);
        }
    }
}
