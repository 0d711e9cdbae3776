//! Judges a command text: which commands are in it, which rules apply to each.
//!
//! Owns the use of both readers, the look behind wrappers, assignments and redirects. Must not
//! know how a rule's conditions are met, nor how parts become one judgement.

use std::cell::Cell;

use super::Policy;
use super::command::{Command, Direction, Join, Redirect, Word, base_name};
use super::cwd::{self, Track};
use super::fact::{Cwd, Whereabouts};
use super::flow::Edge;
use super::judge::{Hit, Outcome, PartOutcome};
use super::load::ReadRule;
use super::path::Walker;
use super::rule::{Area, Facts, View};
use super::{flow, pipes, scan, strict, wrap};
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
            let bases = track.enter(command, piped);
            let part = self.part(command, &reading, &bases);
            out.parts.push(part);
        }
        let piped = pipes::hits(
            self.policy,
            &reading.commands,
            &reading.texts,
            &reading.flows,
        );
        for (rule, command) in piped {
            if let Some(part) = out.parts.get_mut(command) {
                part.add(Hit::rule(&self.policy.rules[rule]));
            }
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
        let reading = match strict::read(text) {
            Ok(commands) => Reading {
                flows: flow::plain(&commands),
                commands,
                texts: Vec::new(),
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
                    commands: scan.commands,
                    texts: scan.texts,
                    flows: scan.flows.edges,
                    plain: false,
                }
            }
        };
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
            words: command
                .words
                .iter()
                .map(|w| Foreign::new(w.text.as_str()))
                .collect(),
            unallowed: true,
            ..PartOutcome::default()
        };
        let view = View::new(&command.words, &command.redirects, bases);
        self.against(&view, true, &mut part);
        self.behind(command, &reading.texts, bases, &mut part, 0);
        let redirects = self.redirects(&command.redirects, bases, &mut part);
        if reading.plain && redirects && self.assigned(command) {
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
        for (i, range) in behind.commands.into_iter().enumerate() {
            let view = View::new(&command.words[range], &[], bases);
            // The outer command has every word already; a long chain is not read over and over.
            let innermost = i + 1 == last;
            if self.spend(view.words.len()) || innermost {
                self.against(&view, innermost, part);
            }
        }
        for script in behind.scripts {
            if depth >= limits::POLICY_DEPTH || !self.spend(script.len() / 2) {
                self.work.set(0);
                return;
            }
            let scan = scan::scan(&script);
            let flows = &scan.flows.edges;
            for (rule, _) in pipes::hits(self.policy, &scan.commands, &scan.texts, flows) {
                part.add(Hit::rule(&self.policy.rules[rule]));
            }
            for inner in &scan.commands {
                if self.spend(inner.words.len()) {
                    let view = View::new(&inner.words, &inner.redirects, bases);
                    self.against(&view, true, part);
                }
                self.behind(inner, &scan.texts, bases, part, depth + 1);
                self.redirects(&inner.redirects, bases, part);
            }
        }
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
        let mut places = program.map_or(&[][..], |name| index.program(name)).to_vec();
        if with_common {
            places.extend(index.any_program());
        }
        places.retain(|&place| self.policy.rules[place].decision != Decision::Allow);
        for place in places {
            let rule = &self.policy.rules[place];
            if rule.applies(view, &self.facts) {
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
            if rule.decision == Decision::Allow && rule.applies(view, &self.facts) {
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

    fn assigned(&self, command: &Command) -> bool {
        command
            .assignments
            .iter()
            .all(|a| self.policy.shell.env_allow.contains(&a.name) && !a.value.live())
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
        Some("git" | "eval") => view.words.get(view.subcommand()).is_some_and(Word::live),
        Some(name) => scripted(name),
    }
}

fn limit(out: &mut Outcome, id: &str, why: &str) {
    out.hits.push(Hit::setting(Decision::Ask, id, why));
}
