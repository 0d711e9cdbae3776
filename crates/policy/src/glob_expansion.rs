//! Expands a shell pattern: the names in the tree that it matches, component by component.
//!
//! Owns the bounds of the expansion. A pattern is read more widely than by bash without options:
//! `**` matches any depth, as in other shells. Must not know rules.

use super::fact::{PathFact, PathLocation};
use super::path::{WalkResult, Walker};
use super::sets::could_match;
use marshal_model::limits;

/// Adds what a pattern may become now, and where that lies. What it may become after files are
/// added is compared only by its last name.
pub(super) fn expand_pattern(walker: &Walker<'_>, base: &str, text: &str, fact: &mut PathFact) {
    let components: Vec<&str> = text.split('/').collect();
    let first = components.iter().position(|c| is_magic(c)).unwrap_or(0);
    let behind = &components[first..];
    let behind: Vec<&str> = behind
        .iter()
        .copied()
        .filter(|c| !matches!(*c, "" | "."))
        .collect();
    let Some((name, between)) = behind.split_last() else {
        fact.location = PathLocation::Dynamic;
        return;
    };
    fact.pattern = Some((*name).to_owned());
    let before: usize = components[..first].iter().map(|c| c.len() + 1).sum();
    let start = walker.walk(base, &text[..before]);
    let mut tree = GlobExpansion {
        walker,
        directories: Vec::new(),
        outside: false,
        // A word that begins with `-` may become a flag; `.*` may be `..`.
        uncertain: text.starts_with('-') || behind.contains(&".."),
    };
    let was = fact.location;
    tree.add_directory(start);
    for component in between {
        tree.descend(component);
    }
    fact.links = tree.match_last_component(name);
    fact.location = match was {
        PathLocation::Inside if tree.outside => PathLocation::Outside,
        _ if tree.uncertain => PathLocation::Dynamic,
        known => known,
    };
}

fn is_magic(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

struct GlobExpansion<'w, 'a> {
    walker: &'w Walker<'a>,
    /// The directories that are reached.
    directories: Vec<String>,
    outside: bool,
    uncertain: bool,
}

impl GlobExpansion<'_, '_> {
    /// Adds a directory to those that are reached.
    fn add_directory(&mut self, end: WalkResult) {
        let out = end.escaped || !self.walker.is_inside(&end.path);
        self.outside |= out;
        if self.directories.len() >= limits::POLICY_GLOB_DIRECTORIES {
            self.uncertain = true;
        } else if !self.directories.contains(&end.path) {
            self.directories.push(end.path);
        }
    }

    /// The matching entries of a directory; a name that begins with a dot may be the parent.
    fn matching_names(&mut self, directory: &str, pattern: &str) -> Vec<String> {
        self.uncertain |= pattern.starts_with('.');
        let Some(names) = self.walker.list_names(directory) else {
            self.uncertain = true;
            return Vec::new();
        };
        let mut names = names;
        names.retain(|name| could_match(pattern, name));
        names
    }

    /// Goes one component down from every directory.
    fn descend(&mut self, component: &str) {
        let from = std::mem::take(&mut self.directories);
        if component == "**" {
            return self.descend_recursively(from);
        }
        for directory in from {
            let names = if is_magic(component) {
                self.matching_names(&directory, component)
            } else {
                vec![component.to_owned()]
            };
            for name in names {
                let end = self.walker.walk(&directory, &name);
                // Only a directory has entries below it.
                if end.is_directory || end.escaped || !is_magic(component) {
                    self.add_directory(end);
                }
            }
        }
    }

    /// These directories and every directory below them; links are followed once.
    fn descend_recursively(&mut self, from: Vec<String>) {
        let mut todo = from;
        while let Some(directory) = todo.pop() {
            self.add_directory(WalkResult {
                path: directory.clone(),
                escaped: false,
                is_directory: true,
            });
            if self.uncertain {
                return;
            }
            for name in self.matching_names(&directory, "*") {
                let path = format!("{}/{name}", directory.trim_end_matches('/'));
                let is_link = self.walker.is_link(&path);
                let end = self.walker.walk(&directory, &name);
                if is_link && (end.is_directory || end.escaped) {
                    self.add_directory(end);
                } else if end.is_directory && !self.directories.contains(&end.path) {
                    todo.push(end.path);
                }
            }
        }
    }

    /// The files that the last component matches in all directories, and where links among them
    /// lead.
    fn match_last_component(&mut self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        if name == "**" {
            let from = std::mem::take(&mut self.directories);
            self.descend_recursively(from);
        }
        // A single directory may be large: only its links are followed.
        let single = self.directories.len() == 1;
        for directory in std::mem::take(&mut self.directories) {
            let root = directory.trim_end_matches('/').to_owned();
            if !is_magic(name) {
                let end = self.walker.walk(&directory, name);
                self.outside |= end.escaped || !self.walker.is_inside(&end.path);
                found.extend([format!("{root}/{name}"), end.path]);
                continue;
            }
            let mut names = self.matching_names(&directory, name);
            found.extend(names.iter().map(|name| format!("{root}/{name}")));
            if single {
                match self.walker.list_links(&directory) {
                    Some(links) => names.retain(|name| links.contains(name)),
                    None => self.uncertain = true,
                }
            }
            for name in names {
                let end = self.walker.walk(&directory, &name);
                self.outside |= end.escaped || !self.walker.is_inside(&end.path);
                found.push(end.path);
            }
        }
        found
    }
}
