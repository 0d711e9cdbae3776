//! Finds the rules that may apply, without looking at the others.
//!
//! Owns the map from program and tool to rules, so that the time of a decision does not grow
//! with the number of rules for other programs.

use std::collections::HashMap;

use super::request::ToolClass;
use super::rule::Rule;

/// Places of rules in the policy's list.
#[derive(Debug, Default)]
pub(super) struct Index {
    programs: HashMap<String, Vec<usize>>,
    /// Shell rules for every program.
    any_program: Vec<usize>,
    read: Vec<usize>,
    write: Vec<usize>,
    fetch: Vec<usize>,
}

impl Index {
    pub(super) fn add(&mut self, place: usize, rule: &Rule, tools: &[ToolClass]) {
        for tool in tools {
            match tool {
                ToolClass::Shell => self.add_shell(place, rule),
                ToolClass::Read => self.read.push(place),
                ToolClass::Write => self.write.push(place),
                ToolClass::Fetch => self.fetch.push(place),
                ToolClass::Unknown => {}
            }
        }
    }

    fn add_shell(&mut self, place: usize, rule: &Rule) {
        let mut names: Vec<&String> = rule.argv.first().into_iter().flatten().collect();
        names.extend(rule.exact.iter().filter_map(|whole| whole.first()));
        if names.is_empty() {
            self.any_program.push(place);
        }
        for name in names {
            let places = self.programs.entry(name.clone()).or_default();
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
    }

    /// Rules that name this program.
    pub(super) fn program(&self, name: &str) -> &[usize] {
        self.programs.get(name).map_or(&[], Vec::as_slice)
    }

    /// Shell rules that name no program.
    pub(super) fn any_program(&self) -> &[usize] {
        &self.any_program
    }

    /// Rules for a tool other than the shell.
    pub(super) fn tool(&self, tool: ToolClass) -> &[usize] {
        match tool {
            ToolClass::Read => &self.read,
            ToolClass::Write => &self.write,
            ToolClass::Fetch => &self.fetch,
            ToolClass::Shell | ToolClass::Unknown => &[],
        }
    }
}
