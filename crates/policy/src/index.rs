//! Finds the rules that may apply, without checking the others.
//!
//! Owns the map from program and tool to rules, so that the time of a decision does not grow with
//! the number of rules for other programs.

use std::collections::HashMap;

use super::request::ToolClass;
use super::rule::Rule;
use marshal_model::Decision;

/// Indexes of rules in the policy's list.
#[derive(Debug, Default)]
pub(super) struct Index {
    programs: HashMap<String, Vec<usize>>,
    /// Shell rules for every program.
    any_program: Vec<usize>,
    /// Rules about pipes, by the programs at the receiving end.
    pipes: HashMap<String, Vec<usize>>,
    /// Rules for other tools, by their class.
    tools: HashMap<ToolClass, Vec<usize>>,
}

impl Index {
    pub(super) fn add(&mut self, place: usize, rule: &Rule, tools: &[ToolClass]) {
        for tool in tools {
            if *tool == ToolClass::Shell {
                self.add_shell(place, rule);
                continue;
            }
            for class in covered(*tool, rule.decision) {
                let places = self.tools.entry(*class).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
        }
    }

    fn add_shell(&mut self, place: usize, rule: &Rule) {
        if let Some(pipe) = &rule.pipe {
            for name in &pipe.to {
                self.pipes.entry(name.clone()).or_default().push(place);
            }
            return;
        }
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
    pub(super) fn rules_for_program(&self, name: &str) -> &[usize] {
        self.programs.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether any rule is about pipes.
    pub(super) fn has_pipes(&self) -> bool {
        !self.pipes.is_empty()
    }

    /// Rules about pipes into this program.
    pub(super) fn pipes_into(&self, name: &str) -> &[usize] {
        self.pipes.get(name).map_or(&[], Vec::as_slice)
    }

    /// Shell rules that name no program.
    pub(super) fn rules_for_any_program(&self) -> &[usize] {
        &self.any_program
    }

    /// Rules for a tool other than the shell.
    pub(super) fn rules_for_tool(&self, tool: ToolClass) -> &[usize] {
        self.tools.get(&tool).map_or(&[], Vec::as_slice)
    }
}

/// The classes of tools that a rule for one of them covers. What may not be read or written may not
/// be edited or moved either; what may be written may be edited, and no more.
fn covered(tool: ToolClass, decision: Decision) -> &'static [ToolClass] {
    use ToolClass::{Delete, Edit, Fetch, Mcp, Move, Read, Write};
    match (tool, decision) {
        (Read, Decision::Allow) => &[Read],
        (Read, _) => &[Read, Edit, Move],
        (Write, Decision::Allow) => &[Write, Edit],
        (Write, _) => &[Write, Edit, Delete, Move],
        (Edit, _) => &[Edit],
        (Delete, _) => &[Delete],
        (Move, _) => &[Move],
        (Fetch, _) => &[Fetch],
        (Mcp, _) => &[Mcp],
        (ToolClass::Shell | ToolClass::Unknown, _) => &[],
    }
}
