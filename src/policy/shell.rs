//! Judges a command text: which commands are in it, which rules apply to each.
//!
//! Owns the use of both readers, the look behind wrappers, assignments and redirects. Must not
//! know how a rule's conditions are met, nor how parts become one judgement.

use std::cell::Cell;
use std::ops::Range;

use super::Policy;
use super::command::{Command, Direction, Join, Redirect, Word, base_name};
use super::cwd::{self, Track};
use super::fact::{Cwd, Whereabouts};
use super::flow::Edge;
use super::judge::{Hit, Outcome, PartOutcome};
use super::load::ReadRule;
use super::path::Walker;
use super::rule::{Area, Facts, View};
use super::{fed, flow, pipes, scan, strict, wrap};
use crate::limits;
use crate::model::foreign::show;
use crate::model::{Decision, Foreign};

/// Words behind wrappers and in scripts inside scripts that one decision looks at. An ordinary
/// request stays far below; a text made to be slow does not.
const WORK: usize = 100_000;

/// The work that is done in a millisecond of a slow machine: what `eval_ms` is counted in, so that
/// a decision does not depend on how busy the machine is.
const WORK_MS: usize = 2_000;

/// Everything about a command text.
pub(super) fn outcome(
    policy: &Policy,
    text: &str,
    cwd: Option<&str>,
    walker: &Walker<'_>,
) -> Outcome {
    let sets = policy.path_sets();
    let bench = Bench {
        policy,
        facts: Facts {
            walker,
            sets: &sets,
        },
        work: Cell::new(
            policy
                .eval_ms
                .map_or(WORK, |ms| WORK.min(ms.saturating_mul(WORK_MS))),
        ),
    };
    bench.text(text, cwd)
}

struct Bench<'p, 'f, 'a> {
    policy: &'p Policy,
    facts: Facts<'f, 'a>,
    work: Cell<usize>,
}

/// What a text was read as.
struct Reading {
    commands: Vec<Command>,
    texts: Vec<String>,
    flows: Vec<Edge>,
    functions: Vec<(String, Range<usize>)>,
    /// Commands may run again or later than where they stand, and something moves the shell.
    adrift: bool,
    plain: bool,
}

impl Bench<'_, '_, '_> {
    fn text(&self, text: &str, cwd: Option<&str>) -> Outcome {
        let mut out = Outcome::default();
        let reading = self.read(text, &mut out);
        let walker = self.facts.walker;
        let start = cwd::begin(&walker.place, cwd);
        if let Some(named) = cwd {
            self.moved(named, &mut out);
        }
        let mut track = Track::new(walker, start.as_deref());
        for (i, command) in reading.commands.iter().enumerate() {
            let next = reading.commands.get(i + 1);
            let piped = command.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
            let mut bases = track.enter(command, piped);
            if reading.adrift && command.nested {
                Cwd::doubt(&mut bases);
            }
            let part = self.part(command, &reading, &bases);
            out.parts.push(part);
        }
        let piped = pipes::hits(
            self.policy,
            &reading.commands,
            &reading.texts,
            &reading.flows,
            &reading.functions,
        );
        for (rule, command) in self.on_now(piped) {
            if let Some(part) = out.parts.get_mut(command) {
                part.add(Hit::rule(&self.policy.rules[rule]));
            }
        }
        // Nothing looks at the commands any more: their texts become what is shown.
        for (part, command) in out.parts.iter_mut().zip(reading.commands) {
            let env = command.assignments.into_iter();
            let env = env.map(|a| Foreign::new(format!("{}={}", a.name, a.value.text)));
            part.env = env.collect();
            let redirects = command.redirects.into_iter();
            let redirects = redirects
                .map(|r| Foreign::new(format!("{} {}", r.direction.sign(), r.target.text)));
            part.redirects = redirects.collect();
            let words = command.words.into_iter();
            part.words = words.map(|word| Foreign::new(word.text)).collect();
        }
        if self.work.get() == 0 {
            let why = "the command line is too entangled to be looked through";
            // A policy that says how long a decision may take has it denied.
            if self.policy.eval_ms.is_some() {
                out.hits
                    .push(Hit::setting(Decision::Deny, "limits.eval_ms", why));
            } else {
                limit(&mut out, "limits.work", why);
            }
        }
        out
    }

    /// A directory that the call names is denied as the operand of a `cd` would be.
    fn moved(&self, named: &str, out: &mut Outcome) {
        let word = |text: &str| Word {
            text: text.to_owned(),
            tilde: cwd::is_home(text),
            ..Word::default()
        };
        let words = [word("cd"), word("--"), word(named)];
        let walker = self.facts.walker;
        let bases = cwd::start(walker, walker.place.cwd);
        let mut part = PartOutcome::default();
        self.against(&View::new(&words, &[], &bases), true, &mut part);
        out.hits.extend(part.hits);
    }

    fn read(&self, text: &str, out: &mut Outcome) -> Reading {
        if text.len() > self.policy.max_bytes {
            limit(
                out,
                "limits.max_bytes",
                "the command line is longer than the policy reads",
            );
        }
        let mut reading = match strict::read(text) {
            Ok(commands) => Reading {
                flows: flow::plain(&commands),
                commands,
                texts: Vec::new(),
                functions: Vec::new(),
                adrift: false,
                plain: true,
            },
            Err(not_plain) => {
                let scan = scan::scan(text);
                let near = text.get(not_plain.at..).unwrap_or_default();
                out.not_plain = Some(format!("{} at `{}`", not_plain.what, show(near, 16)));
                if not_plain.hidden {
                    limit(
                        out,
                        "limits.characters",
                        "a control or invisible character is in the command line",
                    );
                }
                if let Some(why) = scan.broken {
                    limit(out, "limits.syntax", &format!("the command line has {why}"));
                }
                Reading {
                    adrift: is_adrift(&scan),
                    functions: scan.functions,
                    commands: scan.commands,
                    texts: scan.texts,
                    flows: scan.flows.edges,
                    plain: false,
                }
            }
        };
        let (flows, functions) = (&reading.flows, &reading.functions);
        fed::give(&mut reading.commands, &mut reading.texts, flows, functions);
        if reading.commands.len() > self.policy.max_commands {
            limit(
                out,
                "limits.max_commands",
                "the command line has more commands than the policy reads",
            );
        }
        reading
    }

    /// One simple command, with everything behind it.
    fn part(&self, command: &Command, reading: &Reading, bases: &[Cwd]) -> PartOutcome {
        let mut part = PartOutcome {
            unallowed: true,
            ..PartOutcome::default()
        };
        let view = View::new(&command.words, &command.redirects, bases);
        self.against(&view, true, &mut part);
        self.behind(command, &reading.texts, bases, &mut part, 0);
        self.assigns(command, bases, &mut part, 0);
        let redirects = self.redirects(&command.redirects, bases, &mut part);
        part.barred = self.barred(command);
        if reading.plain && redirects && part.barred.is_none() {
            self.allowed(command, &view, &mut part);
        }
        part
    }

    /// Everything that rules deny or ask behind a command. What stands in the text itself is
    /// always judged; the budget is for what is behind.
    fn behind(
        &self,
        command: &Command,
        texts: &[String],
        bases: &[Cwd],
        part: &mut PartOutcome,
        depth: usize,
    ) {
        let behind = wrap::behind(command, texts);
        let last = behind.commands.len();
        if behind.cut {
            self.work.set(0);
        }
        let moved = self.moved_to(command, &behind.directories, bases);
        let bases = moved.as_deref().unwrap_or(bases);
        for (i, inner) in behind.commands.into_iter().enumerate() {
            let words = &command.words[inner.range];
            let filled;
            let words = if inner.more {
                filled = wrap::filled(words);
                &filled
            } else {
                words
            };
            let view = View::new(words, &[], if inner.adrift { &[] } else { bases });
            // The outer command has every word already; a long chain is not read over and over.
            let innermost = i + 1 == last;
            if self.spend(view.words.len()) || innermost {
                self.against(&view, innermost || inner.more, part);
            }
        }
        for script in behind.scripts {
            if !self.script(&script, bases, part, depth) {
                return;
            }
        }
    }

    /// A text that something behind a command runs; `false`: there is too much of it.
    fn script(&self, script: &str, bases: &[Cwd], part: &mut PartOutcome, depth: usize) -> bool {
        if depth >= limits::POLICY_DEPTH || !self.spend(script.len() / 2) {
            self.work.set(0);
            return false;
        }
        let mut scan = scan::scan(script);
        let flows = &scan.flows.edges;
        fed::give(&mut scan.commands, &mut scan.texts, flows, &scan.functions);
        let piped = pipes::hits(
            self.policy,
            &scan.commands,
            &scan.texts,
            flows,
            &scan.functions,
        );
        for (rule, _) in self.on_now(piped) {
            part.add(Hit::rule(&self.policy.rules[rule]));
        }
        let adrift = is_adrift(&scan);
        let mut track = Track::from(self.facts.walker, bases);
        for (i, inner) in scan.commands.iter().enumerate() {
            let next = scan.commands.get(i + 1);
            let piped = inner.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
            let mut bases = track.enter(inner, piped);
            if adrift && inner.nested {
                Cwd::doubt(&mut bases);
            }
            if self.spend(inner.words.len()) {
                let view = View::new(&inner.words, &inner.redirects, &bases);
                self.against(&view, true, part);
            }
            self.behind(inner, &scan.texts, &bases, part, depth + 1);
            self.assigns(inner, &bases, part, depth);
            self.redirects(&inner.redirects, &bases, part);
        }
        true
    }

    /// What stands before a command is judged as the words of a `declare` would be: a value may be
    /// a path that it, or a later command, opens.
    fn assigns(&self, command: &Command, bases: &[Cwd], part: &mut PartOutcome, depth: usize) {
        if command.assignments.is_empty() || !self.spend(command.assignments.len()) {
            return;
        }
        let program = Word {
            text: "declare".to_owned(),
            ..Word::default()
        };
        let values = command.assignments.iter().map(|a| a.value.clone());
        let words: Vec<Word> = std::iter::once(program).chain(values).collect();
        self.against(&View::new(&words, &[], bases), true, part);
        let commands = command
            .assignments
            .iter()
            .filter(|a| wrap::runs_value(&a.name));
        for of in commands {
            self.script(&of.value.text, bases, part, depth + 1);
        }
    }

    /// Of rules and what they hit those that count now.
    fn on_now(&self, hits: Vec<(usize, usize)>) -> impl Iterator<Item = (usize, usize)> {
        let now = &self.facts.walker.now;
        let counts = |(rule, _): &(usize, usize)| now.counts(&self.policy.rules[*rule]);
        hits.into_iter().filter(counts)
    }

    /// Where commands behind a wrapper that names directories may run: there, or where it does.
    /// `None`: it names none.
    fn moved_to(&self, command: &Command, places: &[usize], bases: &[Cwd]) -> Option<Vec<Cwd>> {
        if places.is_empty() {
            return None;
        }
        let mut all = bases.to_vec();
        for &place in places {
            let mut word = command.words[place].clone();
            if let Some((flag, value)) = word.text.split_once('=')
                && flag.starts_with("--")
            {
                word.text = value.to_owned();
            }
            if word.live() || word.text.starts_with('-') || all.len() > limits::POLICY_CWDS {
                return Some(Vec::new());
            }
            let mut track = Track::from(self.facts.walker, &all);
            let name = |text: &str| Word {
                text: text.to_owned(),
                ..Word::default()
            };
            let change = Command {
                words: vec![name("cd"), name("--"), word],
                ..Command::default()
            };
            track.enter(&change, false);
            let then = Command {
                join: Join::And,
                ..Command::default()
            };
            let there = track.enter(&then, false);
            if there.is_empty() {
                return Some(there);
            }
            all.extend(there);
        }
        Some(all)
    }

    /// Takes from the decision's budget of work; `false`: it is spent.
    fn spend(&self, words: usize) -> bool {
        let left = self.work.get().saturating_sub(words + 1);
        self.work.set(left);
        left > 0
    }

    fn against(&self, view: &View<'_>, with_common: bool, part: &mut PartOutcome) {
        let index = &self.policy.index;
        let program = view.program();
        let of_program = program.map_or(&[][..], |name| index.program(name));
        let common = if with_common {
            index.any_program()
        } else {
            &[]
        };
        for &place in of_program.iter().chain(common) {
            let rule = &self.policy.rules[place];
            let counts = rule.decision != Decision::Allow && self.facts.walker.now.counts(rule);
            if counts && rule.applies(view, &self.facts) {
                part.add(Hit::rule(rule));
            }
        }
        if let Some(decision) = self.policy.shell.dynamic
            && computed(view)
        {
            let why = "the shell computes which program runs; write its name";
            part.add(Hit::setting(decision, "shell.dynamic", why));
        }
    }

    /// Rules that allow the command, its transparent wrappers stripped.
    fn allowed<'c>(&self, command: &'c Command, outer: &View<'c>, part: &mut PartOutcome) {
        let shell = &self.policy.shell;
        if command.timed && !shell.transparent.iter().any(|t| t == "time") {
            return;
        }
        let words = wrap::transparent(&command.words, &shell.transparent, |name| {
            self.trusted(name)
        });
        let Some(name) = words
            .first()
            .filter(|w| !w.tilde)
            .and_then(|w| self.trusted(&w.text))
        else {
            return;
        };
        if words.iter().any(|w| w.glob) && !shell.glob_programs.contains(&name) {
            return;
        }
        // Without a wrapper the facts that the other rules have asked for are these.
        let inner = View::new(words, outer.redirects, outer.bases);
        let view = if words.len() == outer.words.len() {
            outer
        } else {
            &inner
        };
        if !view.runs_inside(&self.facts) {
            return;
        }
        for &place in self.policy.index.program(&name) {
            let rule = &self.policy.rules[place];
            let counts = rule.decision == Decision::Allow && self.facts.walker.now.counts(rule);
            if counts && rule.applies(view, &self.facts) {
                part.add(Hit::rule(rule));
                part.unallowed = false;
            }
        }
    }

    /// The name that a rule which allows may compare: with a directory only from trusted ones.
    fn trusted(&self, program: &str) -> Option<String> {
        let name = base_name(program);
        let directory = program.strip_suffix(name)?;
        let trusted = directory.is_empty()
            || self
                .policy
                .shell
                .trusted_dirs
                .iter()
                .any(|dir| directory.strip_suffix('/') == Some(dir.trim_end_matches('/')));
        trusted.then(|| name.to_owned())
    }

    /// The first variable that may not be set before a command.
    fn barred(&self, command: &Command) -> Option<String> {
        let allow = &self.policy.shell.env_allow;
        let mut all = command.assignments.iter();
        let barred = all.find(|a| !allow.contains(&a.name) || a.value.live());
        barred.map(|a| a.name.clone())
    }

    /// What redirects need; `false`: none of them is denied or asked, but one is not allowed.
    fn redirects(&self, redirects: &[Redirect], bases: &[Cwd], part: &mut PartOutcome) -> bool {
        let mut allowed = true;
        for redirect in redirects {
            let settings = &self.policy.shell.redirect;
            let (decision, key) = match redirect.direction {
                Direction::Duplicate => (settings.fd_dup, "fd_dup"),
                Direction::Write => self.written(redirect, bases),
                Direction::Read => {
                    let Some(found) = self.readable(redirect, bases) else {
                        allowed = false;
                        continue;
                    };
                    found
                }
            };
            if decision != Decision::Allow {
                let id = format!("shell.redirect.{key}");
                let target = show(&redirect.target.text, 60);
                part.add(Hit::setting(
                    decision,
                    &id,
                    &format!("a redirect opens `{target}`"),
                ));
            }
        }
        allowed
    }

    fn written(&self, redirect: &Redirect, bases: &[Cwd]) -> (Decision, &'static str) {
        let settings = &self.policy.shell.redirect;
        let facts = &self.facts;
        let redirects = std::slice::from_ref(redirect);
        let view = View::new(&[], redirects, bases);
        let mut worst = (Decision::Allow, "dev_null");
        for path in view.targets(facts.walker) {
            let guarded = facts
                .sets
                .touches(path, Area::Set(self.policy.protected), facts.walker)
                || facts.sets.secret(path, facts.walker);
            let found = match path.whereabouts {
                Whereabouts::Null => (settings.dev_null, "dev_null"),
                _ if guarded => (settings.write_protected, "write_protected"),
                Whereabouts::Outside => (settings.write_outside, "write_outside"),
                Whereabouts::Inside | Whereabouts::Dynamic => {
                    (settings.write_inside, "write_inside")
                }
            };
            if found.0 > worst.0 {
                worst = found;
            }
        }
        worst
    }

    /// `None`: the default counts.
    fn readable(&self, redirect: &Redirect, bases: &[Cwd]) -> Option<(Decision, &'static str)> {
        let settings = &self.policy.shell.redirect;
        let facts = &self.facts;
        let redirects = std::slice::from_ref(redirect);
        let view = View::new(&[], redirects, bases);
        let paths = view.targets(facts.walker);
        if paths.iter().all(|p| p.whereabouts == Whereabouts::Null) {
            return Some((settings.dev_null, "dev_null"));
        }
        let decision = match settings.read {
            ReadRule::Allow => Decision::Allow,
            ReadRule::Ask => Decision::Ask,
            ReadRule::Deny => Decision::Deny,
            ReadRule::Paths => {
                let inside = |p| facts.sets.holds(p, Area::Inside, facts.walker);
                return paths
                    .iter()
                    .all(inside)
                    .then_some((Decision::Allow, "read"));
            }
        };
        Some((decision, "read"))
    }
}

/// Whether the program, the subcommand of one that rules know, or the script of a shell is not
/// known before it runs.
fn computed(view: &View<'_>) -> bool {
    let scripted = |name: &str| {
        let mut words = view.words.iter();
        wrap::SHELLS.contains(&name)
            && words.any(|w| w.text.starts_with('-') && w.text.ends_with('c'))
            && words.next().is_some_and(Word::live)
    };
    match view.program() {
        None => !view.words.is_empty(),
        Some("eval") => view.words.iter().any(Word::live),
        Some("git") => view.words.get(view.subcommand()).is_some_and(Word::live),
        Some(name) => scripted(name),
    }
}

/// Whether it is not known where nested commands run: the text moves its shell and has loops or
/// functions.
fn is_adrift(scan: &scan::Scan) -> bool {
    scan.again && scan.commands.iter().any(cwd::may_move)
}

fn limit(out: &mut Outcome, id: &str, why: &str) {
    out.hits.push(Hit::setting(Decision::Ask, id, why));
}
