//! What a shell's pattern becomes: the names in the tree that it matches, component by component.
//!
//! Owns the bounds of that. A pattern is read more widely than bash does without options: `**` goes
//! down any depth, as in other shells. Must not know rules.

use super::fact::{PathFact, Whereabouts};
use super::path::{Walked, Walker};
use super::sets::could_match;
use crate::limits;

/// Fills in what a pattern may become now, and where that lies. What it may become once files have
/// come is compared by its last name alone.
pub(super) fn pattern(walker: &Walker<'_>, base: &str, text: &str, fact: &mut PathFact) {
    let components: Vec<&str> = text.split('/').collect();
    let first = components.iter().position(|c| is_magic(c)).unwrap_or(0);
    let behind = &components[first..];
    let behind: Vec<&str> = behind
        .iter()
        .copied()
        .filter(|c| !matches!(*c, "" | "."))
        .collect();
    let Some((name, between)) = behind.split_last() else {
        fact.whereabouts = Whereabouts::Dynamic;
        return;
    };
    fact.pattern = Some((*name).to_owned());
    let before: usize = components[..first].iter().map(|c| c.len() + 1).sum();
    let start = walker.walk(base, &text[..before]);
    let mut tree = Unfolded {
        walker,
        at: Vec::new(),
        outside: false,
        // A word that begins with `-` may become a flag; `.*` may be `..`.
        uncertain: text.starts_with('-') || behind.contains(&".."),
    };
    let was = fact.whereabouts;
    tree.reach(start);
    for component in between {
        tree.down(component);
    }
    fact.links = tree.ends(name);
    fact.whereabouts = match was {
        Whereabouts::Inside if tree.outside => Whereabouts::Outside,
        _ if tree.uncertain => Whereabouts::Dynamic,
        known => known,
    };
}

fn is_magic(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

struct Unfolded<'w, 'a> {
    walker: &'w Walker<'a>,
    /// The directories that are reached.
    at: Vec<String>,
    outside: bool,
    uncertain: bool,
}

impl Unfolded<'_, '_> {
    /// Takes a directory among those that are reached.
    fn reach(&mut self, end: Walked) {
        let out = end.left || !self.walker.inside(&end.path);
        self.outside |= out;
        if self.at.len() >= limits::POLICY_UNFOLDED {
            self.uncertain = true;
        } else if !self.at.contains(&end.path) {
            self.at.push(end.path);
        }
    }

    /// What stands in a directory and matches; a name that begins with a dot may be the parent.
    fn matching(&mut self, directory: &str, pattern: &str) -> Vec<String> {
        self.uncertain |= pattern.starts_with('.');
        let Some(names) = self.walker.names(directory) else {
            self.uncertain = true;
            return Vec::new();
        };
        let mut names = names;
        names.retain(|name| could_match(pattern, name));
        names
    }

    /// Goes one component down from everywhere.
    fn down(&mut self, component: &str) {
        let from = std::mem::take(&mut self.at);
        if component == "**" {
            return self.all_below(from);
        }
        for directory in from {
            let names = if is_magic(component) {
                self.matching(&directory, component)
            } else {
                vec![component.to_owned()]
            };
            for name in names {
                let end = self.walker.walk(&directory, &name);
                // What is no directory has nothing below it.
                if end.directory || end.left || !is_magic(component) {
                    self.reach(end);
                }
            }
        }
    }

    /// Every directory below these, and these; links are followed once.
    fn all_below(&mut self, from: Vec<String>) {
        let mut todo = from;
        while let Some(directory) = todo.pop() {
            self.reach(Walked {
                path: directory.clone(),
                left: false,
                directory: true,
            });
            if self.uncertain {
                return;
            }
            for name in self.matching(&directory, "*") {
                let path = format!("{}/{name}", directory.trim_end_matches('/'));
                let is_link = self.walker.is_link(&path);
                let end = self.walker.walk(&directory, &name);
                if is_link && (end.directory || end.left) {
                    self.reach(end);
                } else if end.directory && !self.at.contains(&end.path) {
                    todo.push(end.path);
                }
            }
        }
    }

    /// The files that the last component becomes in all directories, and where links among them
    /// lead.
    fn ends(&mut self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        if name == "**" {
            let from = std::mem::take(&mut self.at);
            self.all_below(from);
        }
        // A single directory may be large: only its links are followed.
        let single = self.at.len() == 1;
        for directory in std::mem::take(&mut self.at) {
            let root = directory.trim_end_matches('/').to_owned();
            if !is_magic(name) {
                let end = self.walker.walk(&directory, name);
                self.outside |= end.left || !self.walker.inside(&end.path);
                found.extend([format!("{root}/{name}"), end.path]);
                continue;
            }
            let mut names = self.matching(&directory, name);
            found.extend(names.iter().map(|name| format!("{root}/{name}")));
            if single {
                match self.walker.links(&directory) {
                    Some(links) => names.retain(|name| links.contains(name)),
                    None => self.uncertain = true,
                }
            }
            for name in names {
                let end = self.walker.walk(&directory, &name);
                self.outside |= end.left || !self.walker.inside(&end.path);
                found.push(end.path);
            }
        }
        found
    }
}
