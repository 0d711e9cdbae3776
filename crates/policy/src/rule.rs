//! One compiled rule, and whether it applies to one command.
//!
//! Owns the meaning of the shell conditions. Must not know severity across rules, defaults or how a
//! command was found.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use regex::Regex;

use super::arguments::{self, Arguments};
use super::command::{Redirect, Word, base_name};
use super::evaluation_context::ContextConditions;
use super::fact::{self, Cwd, PathFact, PathLocation, TreeEffect};
use super::grammar::{self, Grammar};
use super::mcp::McpRule;
use super::path::Walker;
use super::pipes::PipeCondition;
use super::sets::{PathSet, SetReach};
use super::text_script;
use super::tree_effects::TreeEffects;
use super::url::{HostPattern, UrlPattern};
use marshal_model::Decision;

/// The area that a condition on paths names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// In the workspace and not a secret.
    Inside,
    /// Not in the workspace.
    Outside,
    /// Not known before it runs.
    Dynamic,
    /// A named set, by its index in the policy's list.
    Set(usize),
}

/// A compiled rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub id: Arc<str>,
    pub decision: Decision,
    pub reason: Option<Arc<str>>,
    /// The tokens of the command's prefix, each with its alternatives.
    pub argv: Vec<Vec<String>>,
    /// The programs that a rule for every program excludes.
    pub not_programs: Vec<String>,
    /// Whole commands.
    pub exact: Vec<Vec<String>>,
    /// Flags that may stand before the subcommand.
    pub globals: Vec<String>,
    /// The condition on every path of a command, or on a tool's path.
    pub paths: Option<Area>,
    pub any_path: Option<Area>,
    pub not_flags: Vec<String>,
    pub any_flags: Vec<String>,
    pub all_flags: Vec<Vec<String>>,
    pub only_flags: Option<Vec<String>>,
    pub not_words: Vec<String>,
    pub any_word: Option<Regex>,
    pub min_operands: Option<usize>,
    pub max_operands: Option<usize>,
    pub operands_need: Option<String>,
    /// The rule does not apply to a command all of whose paths lie here.
    pub unless: Option<Area>,
    /// The condition on data that flows from one program into another; it is then the only
    /// condition.
    pub pipe: Option<PipeCondition>,
    pub url: Vec<UrlPattern>,
    pub hosts: Vec<HostPattern>,
    pub methods: Vec<String>,
    pub mcp: McpRule,
    /// It allows every command text, also one that is not plain: the sandbox confines what it runs.
    pub is_any_command: bool,
    /// It allows programs of the workspace by their paths.
    pub is_own_program: bool,
    /// The scripts of the command must be harmless.
    pub needs_harmless_script: bool,
    /// The context in which it is active; `None`: always.
    pub when: Option<Box<ContextConditions>>,
    /// Whether its policy is a dry run: it asks where it would deny.
    pub is_dry_run: bool,
    #[cfg(any(test, feature = "test-rules"))]
    pub fault: Option<super::fault::InjectedFault>,
}

impl Rule {
    /// Whether it only permits, so that doubt counts against it.
    fn permits(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// A policy's sets, as conditions need them.
pub(super) struct Sets<'p> {
    pub all: &'p [PathSet],
    pub secrets_set: usize,
}

impl Sets<'_> {
    /// Whether a path counts as lying in an area for a condition that forbids.
    pub(super) fn counts_as_in(&self, fact: &PathFact, area: Area, walker: &Walker<'_>) -> bool {
        match area {
            Area::Inside => fact.location == PathLocation::Inside,
            Area::Outside => matches!(fact.location, PathLocation::Outside | PathLocation::DevNull),
            Area::Dynamic => fact.location == PathLocation::Dynamic,
            Area::Set(set) => {
                // A path that is copied into a directory is compared by its own name there.
                let whole = set != self.secrets_set || fact.tree_effect != TreeEffect::PlaceInto;
                fact.is_in_set(self.all, set, walker)
                    || whole && fact.may_affect_set(&self.all[set], walker)
            }
        }
    }

    /// Whether a path may lie in an area, for a condition of a rule that forbids on all paths.
    fn may_be_in(&self, fact: &PathFact, area: Area, walker: &Walker<'_>) -> bool {
        fact.guess
            || fact.is_dynamic
            || fact.pattern.is_some()
            || fact.location == PathLocation::Dynamic
            || self.counts_as_in(fact, area, walker)
    }

    /// Whether a path surely lies in an area, for a condition that permits.
    pub(super) fn is_surely_in(&self, fact: &PathFact, area: Area, walker: &Walker<'_>) -> bool {
        if fact.guess {
            return !self.is_secret(fact, walker);
        }
        match area {
            Area::Inside => fact.location == PathLocation::Inside && !self.is_secret(fact, walker),
            Area::Outside => fact.location == PathLocation::Outside && !fact.is_dynamic,
            Area::Dynamic => fact.location == PathLocation::Dynamic,
            Area::Set(set) => {
                fact.location != PathLocation::Dynamic
                    && !fact.is_dynamic
                    && fact.pattern.is_none()
                    && self.all[set].contains(&fact.resolved, &walker.fs, SetReach::Below)
            }
        }
    }

    pub(super) fn is_secret(&self, fact: &PathFact, walker: &Walker<'_>) -> bool {
        self.counts_as_in(fact, Area::Set(self.secrets_set), walker)
    }
}

/// One command as rules see it: its words, and derived facts, computed on first use.
pub(super) struct CommandView<'c> {
    pub words: &'c [Word],
    pub redirects: &'c [Redirect],
    pub bases: &'c [Cwd],
    grammar: Option<&'static Grammar>,
    all_arguments: OnceCell<ParsedArguments<'c>>,
    subcommand_arguments: OnceCell<ParsedArguments<'c>>,
    redirect_targets: OnceCell<Vec<PathFact>>,
    /// `None`: the same as `bases`.
    subcommand_bases: OnceCell<Option<Vec<Cwd>>>,
}

/// The arguments from one index on, with the facts of their paths.
struct ParsedArguments<'c> {
    start: usize,
    arguments: Arguments<'c>,
    paths: OnceCell<Vec<PathFact>>,
}

impl<'c> CommandView<'c> {
    pub(super) fn new(words: &'c [Word], redirects: &'c [Redirect], bases: &'c [Cwd]) -> Self {
        let grammar = words
            .first()
            .and_then(|w| grammar::for_program(base_name(&w.text)));
        Self {
            words,
            redirects,
            bases,
            grammar,
            all_arguments: OnceCell::new(),
            subcommand_arguments: OnceCell::new(),
            redirect_targets: OnceCell::new(),
            subcommand_bases: OnceCell::new(),
        }
    }

    /// The program's name without a directory; `None` if the shell computes it.
    pub(super) fn program(&self) -> Option<&'c str> {
        self.words
            .first()
            .filter(|w| !w.is_dynamic() && (!w.glob || w.text == "["))
            .map(|w| base_name(&w.text))
    }

    /// The index of the subcommand, after the flags before it.
    pub(super) fn subcommand_index(&self) -> usize {
        let values = self.grammar.map_or(&[][..], |g| g.global_values);
        let mut at = 1;
        while let Some(word) = self.words.get(at) {
            let toolchain = at == 1 && word.text.starts_with('+');
            if !toolchain && (!word.text.starts_with('-') || word.dynamic_from == Some(0)) {
                break;
            }
            at += 1 + usize::from(values.contains(&word.text.as_str()));
        }
        at
    }

    /// The index of the first token after the program, for a rule: directly, or after global flags.
    fn second_token_index(&self, rule: &Rule, facts: &MatchContext<'_, '_>) -> Option<usize> {
        if !self.grammar.is_some_and(|g| g.has_subcommand) && rule.permits() {
            return Some(1);
        }
        let at = self.subcommand_index();
        if !rule.permits() {
            return Some(at);
        }
        let mut bases = self.bases.to_vec();
        let mut here = 1;
        while here < at {
            let word = &self.words[here];
            if !rule.globals.contains(&word.text) {
                return None;
            }
            let takes = self
                .grammar
                .is_some_and(|g| g.global_values.contains(&word.text.as_str()));
            here += 1;
            if takes {
                let mut paths = Vec::new();
                let value = self.words.get(here)?;
                fact::collect_facts(facts.walker, &bases, value, 0, &mut paths);
                if !paths
                    .iter()
                    .all(|p| facts.sets.is_surely_in(p, Area::Inside, facts.walker))
                {
                    return None;
                }
                // A second `-C` is relative to the first.
                if word.text == "-C" {
                    bases = cwds_from_paths(paths);
                }
                here += 1;
            }
        }
        Some(at)
    }

    /// The directories that the subcommand's operands are relative to: `git -C DIR` changes them.
    fn subcommand_bases(&self, walker: &Walker<'_>) -> &[Cwd] {
        let moved = self.subcommand_bases.get_or_init(|| {
            if !self.grammar.is_some_and(|g| g.has_subcommand) {
                return None;
            }
            let mut bases: Option<Vec<Cwd>> = None;
            let before = &self.words[1..self.subcommand_index().min(self.words.len())];
            for pair in before.windows(2).filter(|pair| pair[0].text == "-C") {
                let mut paths = Vec::new();
                let from = bases.as_deref().unwrap_or(self.bases);
                fact::collect_facts(walker, from, &pair[1], 0, &mut paths);
                bases = Some(cwds_from_paths(paths));
            }
            bases
        });
        moved.as_deref().unwrap_or(self.bases)
    }

    /// Whether it certainly runs inside and in no secret directory: a command without paths reads
    /// the current directory.
    pub(super) fn runs_inside(&self, facts: &MatchContext<'_, '_>) -> bool {
        let inside = |bases: &[Cwd]| {
            !bases.is_empty()
                && bases.iter().all(|base| {
                    let place = &facts.walker.fs;
                    let secrets = &facts.sets.all[facts.sets.secrets_set];
                    !base.escaped
                        && facts.walker.is_inside(&base.physical)
                        && !secrets.contains(&base.physical, place, SetReach::SelfAndBelow)
                        && !secrets.contains(&base.logical, place, SetReach::SelfAndBelow)
                })
        };
        let inner = self.subcommand_bases(facts.walker);
        inside(self.bases)
            && (std::ptr::eq(inner, self.bases) || inside(inner))
            && (self.program() != Some("git") || self.has_own_repository(facts.walker))
    }

    /// Whether git certainly uses the workspace's repository, wherever it may run.
    fn has_own_repository(&self, walker: &Walker<'_>) -> bool {
        let bases = self.subcommand_bases(walker).iter();
        !bases
            .into_iter()
            .any(|base| walker.has_foreign_repository(&base.physical))
    }

    fn arguments_from(&self, start: usize) -> &ParsedArguments<'c> {
        let cell = if start == 1 {
            &self.all_arguments
        } else {
            &self.subcommand_arguments
        };
        cell.get_or_init(|| ParsedArguments {
            start,
            arguments: arguments::parse(self.grammar, self.words, start),
            paths: OnceCell::new(),
        })
    }

    /// The facts of the paths among the arguments: the most expensive input of a condition.
    fn paths<'t>(&self, taken: &'t ParsedArguments<'c>, walker: &Walker<'_>) -> &'t [PathFact] {
        taken.paths.get_or_init(|| {
            let subcommand = self.subcommand_index();
            let reach = TreeEffects::from_command(
                self.program().unwrap_or_default(),
                self.words,
                subcommand,
            );
            let is_cd = self.program() == Some("cd");
            let candidates = taken.arguments.candidates.len();
            let mut paths = Vec::with_capacity(candidates * self.bases.len().max(1));
            // A repeated word is one path.
            let mut known = HashSet::new();
            for candidate in &taken.arguments.candidates {
                if candidates > REPEATS
                    && candidate.index > subcommand
                    && candidate.is_whole_literal()
                    && !known.insert((candidate.text(), reach.effect_of_word(candidate.index)))
                {
                    continue;
                }
                // `cd -` is not a path: the shell knows where it leads.
                if is_cd && candidate.text() == "-" {
                    paths.push(PathFact::unknown());
                    continue;
                }
                let bases = if candidate.index > subcommand {
                    self.subcommand_bases(walker)
                } else {
                    self.bases
                };
                let first = paths.len();
                let (spec, cut);
                let word = if let Some(to) = candidate.to {
                    cut = Word {
                        text: candidate.word.text.get(..to).unwrap_or_default().to_owned(),
                        ..candidate.word.clone()
                    };
                    &cut
                } else if candidate.is_pathspec && !candidate.word.glob {
                    spec = Word {
                        glob: true,
                        ..candidate.word.clone()
                    };
                    &spec
                } else {
                    candidate.word
                };
                fact::collect_facts(walker, bases, word, candidate.from, &mut paths);
                let whole = reach.effect_of_word(candidate.index);
                for path in &mut paths[first..] {
                    path.guess |= candidate.guess;
                    path.is_pathspec |= candidate.is_pathspec;
                    path.tree_effect = whole;
                }
                if candidate.unknown {
                    paths.push(PathFact::unknown());
                }
            }
            reach.add_destination_entries(walker, self.bases, &mut paths);
            paths
        })
    }

    /// The facts of the redirects' files.
    pub(super) fn redirect_targets(&self, walker: &Walker<'_>) -> &[PathFact] {
        self.redirect_targets.get_or_init(|| {
            let mut out = Vec::new();
            for redirect in self.redirects {
                if redirect.direction != super::command::Direction::Duplicate {
                    fact::collect_facts(walker, self.bases, &redirect.target, 0, &mut out);
                }
            }
            out
        })
    }
}

/// From this many paths on, repeated words are deduplicated.
const REPEATS: usize = 64;

/// The context of a rule's conditions beside the command.
pub(super) struct MatchContext<'f, 'a> {
    pub walker: &'f Walker<'a>,
    pub sets: &'f Sets<'f>,
}

impl Rule {
    /// Whether the rule applies to a command. The index has already compared the program's name.
    pub(super) fn applies(&self, view: &CommandView<'_>, facts: &MatchContext<'_, '_>) -> bool {
        #[cfg(any(test, feature = "test-rules"))]
        if let Some(fault) = self.fault {
            fault.trigger();
        }
        if !self.exact.is_empty() {
            return self.matches_exactly(view);
        }
        let excepted = |name: &str| self.not_programs.iter().any(|program| program == name);
        if view.program().is_some_and(excepted) {
            return false;
        }
        let Some(start) = self.match_argv(view, facts) else {
            return false;
        };
        if self.needs_harmless_script && !text_script::is_harmless(view.words) {
            return false;
        }
        if !self.has_word_conditions() && !self.has_path_conditions() {
            return true;
        }
        let fresh;
        let mut taken = view.arguments_from(start);
        if taken.start != start {
            fresh = CommandView::new(view.words, view.redirects, view.bases);
            taken = fresh.arguments_from(start);
        }
        (!self.has_word_conditions() || self.words_match(&taken.arguments))
            && (!self.has_path_conditions() || self.paths_match(taken, view, facts))
    }

    fn has_word_conditions(&self) -> bool {
        !self.not_flags.is_empty()
            || !self.any_flags.is_empty()
            || !self.all_flags.is_empty()
            || self.only_flags.is_some()
            || !self.not_words.is_empty()
            || self.any_word.is_some()
            || self.min_operands.is_some()
            || self.max_operands.is_some()
            || self.operands_need.is_some()
    }

    fn has_path_conditions(&self) -> bool {
        self.paths.is_some() || self.any_path.is_some() || self.unless.is_some()
    }

    fn matches_exactly(&self, view: &CommandView<'_>) -> bool {
        self.exact.iter().any(|whole| {
            whole.len() == view.words.len()
                && whole
                    .iter()
                    .zip(view.words)
                    .enumerate()
                    .all(|(at, (want, word))| {
                        // The caller has already checked which directories a program may come from.
                        let text = if at == 0 {
                            base_name(&word.text)
                        } else {
                            &word.text
                        };
                        !word.is_dynamic() && !word.glob && !word.tilde && want == text
                    })
        })
    }

    /// Compares the tokens after the program; returns the index of the first argument.
    fn match_argv(&self, view: &CommandView<'_>, facts: &MatchContext<'_, '_>) -> Option<usize> {
        if self.argv.len() <= 1 {
            return Some(1);
        }
        if !self.permits() && view.grammar.is_some_and(|g| g.loose_subcommand) {
            return grammar::find_tokens_anywhere(&self.argv[1..], view.words);
        }
        let mut at = view.second_token_index(self, facts)?;
        for token in &self.argv[1..] {
            let word = view.words.get(at)?;
            if word.is_dynamic() || word.glob || !token.contains(&word.text) {
                return None;
            }
            at += 1;
        }
        Some(at)
    }

    fn words_match(&self, arguments: &Arguments<'_>) -> bool {
        let used = |flag: &str| {
            arguments
                .uses
                .iter()
                .filter(|u| self.permits() || !u.doubtful)
                .any(|u| arguments::flag_matches(u.flag, flag))
        };
        let excepted = |flag: &String| {
            if self.permits() {
                used(flag)
            } else {
                arguments::is_surely_used(arguments.words, flag)
            }
        };
        let forbidden = self.not_flags.iter().any(excepted)
            || arguments
                .words
                .iter()
                .any(|w| self.not_words.contains(&w.text));
        if forbidden {
            return false;
        }
        let flags = (self.any_flags.is_empty() || self.any_flags.iter().any(|flag| used(flag)))
            && self
                .all_flags
                .iter()
                .all(|group| group.iter().any(|flag| used(flag)))
            && self.only_flags.as_ref().is_none_or(|only| {
                arguments
                    .flag_words
                    .iter()
                    .all(|word| is_flag_among(&word.text, only))
            });
        let operands = arguments.operands;
        let has = |flag: &str| arguments.words.iter().any(|w| w.text == flag);
        flags
            && self.min_operands.is_none_or(|least| operands >= least)
            && self.max_operands.is_none_or(|most| operands <= most)
            && (operands == 0 || self.operands_need.as_ref().is_none_or(|flag| has(flag)))
            && self.any_word.as_ref().is_none_or(|regex| {
                arguments
                    .words
                    .iter()
                    .any(|word| regex.is_match(&word.text))
            })
    }

    fn paths_match<'c>(
        &self,
        taken: &ParsedArguments<'c>,
        view: &CommandView<'c>,
        facts: &MatchContext<'_, '_>,
    ) -> bool {
        let paths = view.paths(taken, facts.walker);
        let holds = |area: Area| {
            paths
                .iter()
                .all(|p| facts.sets.is_surely_in(p, area, facts.walker))
        };
        let all = |area: Area| {
            let mut paths = paths.iter();
            // Rules that forbid apply already where the area may be meant.
            self.permits() && holds(area)
                || !self.permits() && paths.all(|p| facts.sets.may_be_in(p, area, facts.walker))
        };
        if self.paths.is_some_and(|area| !all(area)) {
            return false;
        }
        if let Some(area) = self.any_path {
            let touches = |path: &PathFact| facts.sets.counts_as_in(path, area, facts.walker);
            // A rule for every program also sees the files that redirects open.
            let everywhere = self.argv.is_empty() && self.not_programs.is_empty();
            let hit = paths.iter().any(touches)
                || everywhere && view.redirect_targets(facts.walker).iter().any(touches);
            if !hit {
                return false;
            }
        }
        match self.unless {
            Some(area) => paths.is_empty() || !holds(area),
            None => true,
        }
    }
}

/// The directories that a program has changed to.
fn cwds_from_paths(paths: Vec<PathFact>) -> Vec<Cwd> {
    let to = |path: PathFact| Cwd {
        logical: path.resolved.clone(),
        physical: path.resolved,
        escaped: path.location != PathLocation::Inside,
    };
    paths.into_iter().map(to).collect()
}

/// Whether a word is one of the flags, or a cluster of short ones among them.
fn is_flag_among(word: &str, flags: &[String]) -> bool {
    if flags.iter().any(|f| f == word) {
        return true;
    }
    !word.starts_with("--")
        && word.chars().skip(1).all(|c| {
            flags
                .iter()
                .any(|f| f.len() == 1 + c.len_utf8() && f.ends_with(c))
        })
}

impl PathFact {
    fn unknown() -> Self {
        Self {
            written: None,
            resolved: String::new(),
            location: PathLocation::Dynamic,
            pattern: None,
            shape: None,
            links: Vec::new(),
            guess: false,
            is_pathspec: false,
            is_dynamic: true,
            tree_effect: TreeEffect::PathOnly,
            set_cache: std::cell::Cell::new((0, 0)),
        }
    }
}
