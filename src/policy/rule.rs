//! One rule, compiled, and whether it applies to one command.
//!
//! Owns the meaning of the shell conditions. Must not know severity across rules, defaults or
//! how a command was found.

use std::cell::OnceCell;
use std::sync::Arc;

use regex::Regex;

use super::arguments::{self, Arguments};
use super::command::{Redirect, Word, base_name};
use super::fact::{self, Cwd, PathFact, Whereabouts};
use super::grammar::{self, Grammar};
use super::mcp::McpRule;
use super::path::Walker;
use super::pipes::Pipe;
use super::sets::{PathSet, Reach};
use super::url::{HostPattern, UrlPattern};
use crate::model::Decision;

/// What a condition on paths names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// In the workspace and no secret.
    Inside,
    /// Not in the workspace.
    Outside,
    /// Not known before it runs.
    Dynamic,
    /// A named set, by its place in the policy's list.
    Set(usize),
}

/// A compiled rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub id: Arc<str>,
    pub decision: Decision,
    pub reason: Option<Arc<str>>,
    /// Tokens of the command's beginning, each with its alternatives.
    pub argv: Vec<Vec<String>>,
    /// Whole commands.
    pub exact: Vec<Vec<String>>,
    /// Flags that may stand before the subcommand.
    pub globals: Vec<String>,
    /// Every path of a command, or the path of a tool.
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
    /// It does not apply to a command all of whose paths lie here.
    pub unless: Option<Area>,
    /// It is about what flows from one program into another, and about nothing else.
    pub pipe: Option<Pipe>,
    pub url: Vec<UrlPattern>,
    pub hosts: Vec<HostPattern>,
    pub methods: Vec<String>,
    pub mcp: McpRule,
}

impl Rule {
    /// Whether it only permits, so that doubt counts against it.
    fn permits(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// The sets of a policy, as conditions need them.
pub(super) struct Sets<'p> {
    pub all: &'p [PathSet],
    pub secrets: usize,
}

impl Sets<'_> {
    /// Whether a path counts as lying in an area for a condition that forbids.
    pub(super) fn touches(&self, fact: &PathFact, area: Area, walker: &Walker<'_>) -> bool {
        match area {
            Area::Inside => fact.whereabouts == Whereabouts::Inside,
            Area::Outside => matches!(fact.whereabouts, Whereabouts::Outside | Whereabouts::Null),
            Area::Dynamic => fact.whereabouts == Whereabouts::Dynamic,
            Area::Set(set) => fact.in_set(self.all, set, walker),
        }
    }

    /// Whether a path surely lies in an area, for a condition that permits.
    pub(super) fn holds(&self, fact: &PathFact, area: Area, walker: &Walker<'_>) -> bool {
        if fact.guess {
            return !self.secret(fact, walker);
        }
        match area {
            Area::Inside => fact.whereabouts == Whereabouts::Inside && !self.secret(fact, walker),
            Area::Outside => fact.whereabouts == Whereabouts::Outside,
            Area::Dynamic => fact.whereabouts == Whereabouts::Dynamic,
            Area::Set(set) => {
                fact.whereabouts != Whereabouts::Dynamic
                    && fact.pattern.is_none()
                    && self.all[set].has(&fact.leads, &walker.place, Reach::Below)
            }
        }
    }

    pub(super) fn secret(&self, fact: &PathFact, walker: &Walker<'_>) -> bool {
        fact.in_set(self.all, self.secrets, walker)
    }
}

/// One command as rules see it: its words, and what is computed from them when first asked for.
pub(super) struct View<'c> {
    pub words: &'c [Word],
    pub redirects: &'c [Redirect],
    pub bases: &'c [Cwd],
    grammar: Option<&'static Grammar>,
    whole: OnceCell<Taken<'c>>,
    inner: OnceCell<Taken<'c>>,
    targets: OnceCell<Vec<PathFact>>,
    inner_bases: OnceCell<Vec<Cwd>>,
}

/// Arguments from one place on, with the facts of their paths.
struct Taken<'c> {
    start: usize,
    arguments: Arguments<'c>,
    paths: OnceCell<Vec<PathFact>>,
}

impl<'c> View<'c> {
    pub(super) fn new(words: &'c [Word], redirects: &'c [Redirect], bases: &'c [Cwd]) -> Self {
        let grammar = words.first().and_then(|w| grammar::of(base_name(&w.text)));
        Self {
            words,
            redirects,
            bases,
            grammar,
            whole: OnceCell::new(),
            inner: OnceCell::new(),
            targets: OnceCell::new(),
            inner_bases: OnceCell::new(),
        }
    }

    /// The program's name without a directory; `None` if the shell computes it.
    pub(super) fn program(&self) -> Option<&'c str> {
        self.words
            .first()
            .filter(|w| !w.live() && !w.glob)
            .map(|w| base_name(&w.text))
    }

    /// The place of the subcommand, past flags that stand before it.
    pub(super) fn subcommand(&self) -> usize {
        let values = self.grammar.map_or(&[][..], |g| g.global_values);
        let mut at = 1;
        while let Some(word) = self.words.get(at) {
            let toolchain = at == 1 && word.text.starts_with('+');
            if !toolchain && (!word.text.starts_with('-') || word.live_from == Some(0)) {
                break;
            }
            at += 1 + usize::from(values.contains(&word.text.as_str()));
        }
        at
    }

    /// Where the first token after the program may stand, for a rule: directly, or past
    /// global flags.
    fn second(&self, rule: &Rule, facts: &Facts<'_, '_>) -> Option<usize> {
        if !self.grammar.is_some_and(|g| g.subcommand) && rule.permits() {
            return Some(1);
        }
        let at = self.subcommand();
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
                fact::facts(facts.walker, &bases, value, 0, &mut paths);
                if !paths
                    .iter()
                    .all(|p| facts.sets.holds(p, Area::Inside, facts.walker))
                {
                    return None;
                }
                // A second `-C` is relative to the first.
                if word.text == "-C" {
                    bases = moved(paths);
                }
                here += 1;
            }
        }
        Some(at)
    }

    /// The directories that operands of the subcommand are relative to: `git -C DIR` moves.
    fn inner_bases(&self, walker: &Walker<'_>) -> &[Cwd] {
        self.inner_bases.get_or_init(|| {
            let mut bases = self.bases.to_vec();
            if !self.grammar.is_some_and(|g| g.subcommand) {
                return bases;
            }
            let before = &self.words[1..self.subcommand().min(self.words.len())];
            for pair in before.windows(2).filter(|pair| pair[0].text == "-C") {
                let mut paths = Vec::new();
                fact::facts(walker, &bases, &pair[1], 0, &mut paths);
                bases = moved(paths);
            }
            bases
        })
    }

    /// Whether it surely runs inside and in no secret directory: what names no path reads the
    /// current one.
    pub(super) fn runs_inside(&self, facts: &Facts<'_, '_>) -> bool {
        let inside = |bases: &[Cwd]| {
            !bases.is_empty()
                && bases.iter().all(|base| {
                    let place = &facts.walker.place;
                    let secrets = &facts.sets.all[facts.sets.secrets];
                    !base.left
                        && facts.walker.inside(&base.physical)
                        && !secrets.has(&base.physical, place, Reach::Wide)
                        && !secrets.has(&base.logical, place, Reach::Wide)
                })
        };
        inside(self.bases) && inside(self.inner_bases(facts.walker))
    }

    fn taken(&self, start: usize) -> &Taken<'c> {
        let cell = if start == 1 { &self.whole } else { &self.inner };
        cell.get_or_init(|| Taken {
            start,
            arguments: arguments::parse(self.grammar, self.words, start),
            paths: OnceCell::new(),
        })
    }

    /// The facts of the paths among arguments; the dearest thing that a condition can ask for.
    fn paths<'t>(&self, taken: &'t Taken<'c>, walker: &Walker<'_>) -> &'t [PathFact] {
        taken.paths.get_or_init(|| {
            let subcommand = self.subcommand();
            let mut paths = Vec::new();
            for candidate in &taken.arguments.candidates {
                // `cd -` is no path: the shell knows where it leads.
                if candidate.text() == "-" && self.program() == Some("cd") {
                    paths.push(PathFact::unknown());
                    continue;
                }
                let bases = if candidate.index > subcommand {
                    self.inner_bases(walker)
                } else {
                    self.bases
                };
                let first = paths.len();
                let spec;
                let word = if candidate.spec && !candidate.word.glob {
                    spec = Word {
                        glob: true,
                        ..candidate.word.clone()
                    };
                    &spec
                } else {
                    candidate.word
                };
                fact::facts(walker, bases, word, candidate.from, &mut paths);
                for path in &mut paths[first..] {
                    path.guess = candidate.guess;
                    path.spec = candidate.spec;
                }
                if candidate.unknown {
                    paths.push(PathFact::unknown());
                }
            }
            paths
        })
    }

    /// The facts of the redirects' files.
    pub(super) fn targets(&self, walker: &Walker<'_>) -> &[PathFact] {
        self.targets.get_or_init(|| {
            let mut out = Vec::new();
            for redirect in self.redirects {
                if redirect.direction != super::command::Direction::Duplicate {
                    fact::facts(walker, self.bases, &redirect.target, 0, &mut out);
                }
            }
            out
        })
    }
}

/// What rules need beside the command.
pub(super) struct Facts<'f, 'a> {
    pub walker: &'f Walker<'a>,
    pub sets: &'f Sets<'f>,
}

impl Rule {
    /// Whether the rule applies to a command. The program's name has been compared already,
    /// by the index.
    pub(super) fn applies(&self, view: &View<'_>, facts: &Facts<'_, '_>) -> bool {
        if !self.exact.is_empty() {
            return self.is_exactly(view);
        }
        let Some(start) = self.begins(view, facts) else {
            return false;
        };
        if !self.looks_at_words() && !self.looks_at_paths() {
            return true;
        }
        let fresh;
        let mut taken = view.taken(start);
        if taken.start != start {
            fresh = View::new(view.words, view.redirects, view.bases);
            taken = fresh.taken(start);
        }
        (!self.looks_at_words() || self.words_fit(&taken.arguments))
            && (!self.looks_at_paths() || self.paths_fit(taken, view, facts))
    }

    fn looks_at_words(&self) -> bool {
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

    fn looks_at_paths(&self) -> bool {
        self.paths.is_some() || self.any_path.is_some() || self.unless.is_some()
    }

    fn is_exactly(&self, view: &View<'_>) -> bool {
        self.exact.iter().any(|whole| {
            whole.len() == view.words.len()
                && whole.iter().zip(view.words).all(|(want, word)| {
                    !word.live() && !word.glob && !word.tilde && *want == word.text
                })
        })
    }

    /// Compares the tokens behind the program; gives the place of the first argument.
    fn begins(&self, view: &View<'_>, facts: &Facts<'_, '_>) -> Option<usize> {
        if self.argv.len() <= 1 {
            return Some(1);
        }
        let mut at = view.second(self, facts)?;
        for token in &self.argv[1..] {
            let word = view.words.get(at)?;
            if word.live() || word.glob || !token.contains(&word.text) {
                return None;
            }
            at += 1;
        }
        Some(at)
    }

    fn words_fit(&self, arguments: &Arguments<'_>) -> bool {
        let used = |flag: &str| {
            arguments
                .uses
                .iter()
                .filter(|u| self.permits() || !u.doubtful)
                .any(|u| arguments::matches(u.flag, flag))
        };
        let forbidden = self.not_flags.iter().any(|flag| used(flag))
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
                    .all(|word| is_among(&word.text, only))
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

    fn paths_fit<'c>(&self, taken: &Taken<'c>, view: &View<'c>, facts: &Facts<'_, '_>) -> bool {
        let paths = view.paths(taken, facts.walker);
        let holds = |area: Area| {
            paths
                .iter()
                .all(|p| facts.sets.holds(p, area, facts.walker))
        };
        if self.paths.is_some_and(|area| !holds(area)) {
            return false;
        }
        if let Some(area) = self.any_path {
            let touches = |path: &PathFact| facts.sets.touches(path, area, facts.walker);
            // A rule for every program also sees what redirects open.
            let everywhere = self.argv.is_empty();
            let hit = paths.iter().any(touches)
                || everywhere && view.targets(facts.walker).iter().any(touches);
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

/// The directories that a program has moved to.
fn moved(paths: Vec<PathFact>) -> Vec<Cwd> {
    let to = |path: PathFact| Cwd {
        logical: path.leads.clone(),
        physical: path.leads,
        left: path.whereabouts != Whereabouts::Inside,
    };
    paths.into_iter().map(to).collect()
}

/// Whether a word is one of the flags, or a cluster of short ones among them.
fn is_among(word: &str, flags: &[String]) -> bool {
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
            written: String::new(),
            leads: String::new(),
            whereabouts: Whereabouts::Dynamic,
            pattern: None,
            links: Vec::new(),
            guess: false,
            spec: false,
            known: std::cell::Cell::new((0, 0)),
        }
    }
}
