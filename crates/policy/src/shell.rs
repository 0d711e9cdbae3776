//! Evaluates a command text: which commands are in it, which rules apply to each.
//!
//! Owns the use of both readers, the search behind wrappers, assignments and redirects. Must not
//! know how a rule's conditions are met, nor how parts become one decision.

use std::cell::Cell;
use std::ops::Range;

use super::Policy;
use super::command::{Command, Direction, Join, Redirect, Word, base_name};
use super::cwd::{self, CwdTracker};
use super::evaluate::{Hit, Outcome, PartOutcome};
use super::fact::{Cwd, PathLocation};
use super::flow::Edge;
use super::load::ReadRule;
use super::path::Walker;
use super::rule::{Area, CommandView, MatchContext, Rule};
use super::{flow, pipes, scan, stdin_flow, strict, wrappers};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, UntrustedText};

/// How many words behind wrappers and in nested scripts one decision examines. An ordinary request
/// stays far below; a text made to be slow does not.
const MAX_WORK: usize = 100_000;

/// The work per millisecond on a slow machine. `eval_ms` is counted in it, so that a decision does
/// not depend on the machine's load.
const WORK_PER_MS: usize = 2_000;

/// Everything about a command text.
pub(super) fn evaluate_command_text(
    policy: &Policy,
    text: &str,
    cwd: Option<&str>,
    walker: &Walker<'_>,
) -> Outcome {
    let sets = policy.path_sets();
    let bench = ShellEvaluator {
        policy,
        context: MatchContext {
            walker,
            sets: &sets,
        },
        work: Cell::new(
            policy
                .eval_ms
                .map_or(MAX_WORK, |ms| MAX_WORK.min(ms.saturating_mul(WORK_PER_MS))),
        ),
    };
    bench.evaluate_text(text, cwd)
}

struct ShellEvaluator<'p, 'f, 'a> {
    policy: &'p Policy,
    context: MatchContext<'f, 'a>,
    work: Cell<usize>,
}

/// The readings of a text.
struct ParsedText {
    commands: Vec<Command>,
    texts: Vec<String>,
    flows: Vec<Edge>,
    functions: Vec<(String, Range<usize>)>,
    /// Whether commands may run again, or later than their position, and something changes the
    /// directory.
    is_cwd_uncertain: bool,
    plain: bool,
}

impl ShellEvaluator<'_, '_, '_> {
    fn evaluate_text(&self, text: &str, cwd: Option<&str>) -> Outcome {
        let mut out = Outcome {
            is_confined: self.any_command_rule().is_some(),
            ..Outcome::default()
        };
        let reading = self.parse_text(text, &mut out);
        let walker = self.context.walker;
        let start = cwd::start_directory(&walker.fs, cwd);
        if let Some(named) = cwd {
            self.evaluate_cwd(named, &mut out);
        }
        let mut track = CwdTracker::new(walker, start.as_deref());
        for (i, command) in reading.commands.iter().enumerate() {
            let next = reading.commands.get(i + 1);
            let piped = command.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
            let mut bases = track.enter_command(command, piped);
            if reading.is_cwd_uncertain && command.nested {
                Cwd::add_unknown(&mut bases);
            }
            let part = self.evaluate_command(command, &reading, &bases);
            out.parts.push(part);
        }
        let piped = pipes::find_hits(
            self.policy,
            &reading.commands,
            &reading.texts,
            &reading.flows,
            &reading.functions,
        );
        for (rule, command) in self.active_hits(piped) {
            if let Some(part) = out.parts.get_mut(command) {
                part.add(Hit::from_rule(&self.policy.rules[rule]));
            }
        }
        // The commands are not needed any more: their texts move into the displayed parts.
        for (part, command) in out.parts.iter_mut().zip(reading.commands) {
            let env = command
                .assignments
                .into_iter()
                .map(|a| UntrustedText::new(format!("{}={}", a.name, a.value.text)));
            part.env = env.collect();
            let redirects = command
                .redirects
                .into_iter()
                .map(|r| UntrustedText::new(format!("{} {}", r.direction.sign(), r.target.text)));
            part.redirects = redirects.collect();
            let words = command.words.into_iter();
            part.words = words.map(|word| UntrustedText::new(word.text)).collect();
        }
        if self.work.get() == 0 {
            let why = "the command line is too complex to be evaluated";
            // A policy with a time limit for decisions denies it.
            if self.policy.eval_ms.is_some() {
                out.hits
                    .push(Hit::from_setting(Decision::Deny, "limits.eval_ms", why));
            } else {
                limit(&mut out, "limits.work", why);
            }
        }
        out
    }

    /// A directory that the call names is evaluated like the operand of a `cd`.
    fn evaluate_cwd(&self, named: &str, out: &mut Outcome) {
        let word = |text: &str| Word {
            text: text.to_owned(),
            tilde: cwd::starts_with_home(text),
            ..Word::default()
        };
        let words = [word("cd"), word("--"), word(named)];
        let walker = self.context.walker;
        let bases = cwd::resolve_cwd(walker, walker.fs.cwd);
        let mut part = PartOutcome::default();
        self.apply_forbidding_rules(&CommandView::new(&words, &[], &bases), true, &mut part);
        out.hits.extend(part.hits);
    }

    fn parse_text(&self, text: &str, out: &mut Outcome) -> ParsedText {
        if text.len() > self.policy.max_bytes {
            limit(
                out,
                "limits.max_bytes",
                "the command line is longer than the policy's limit",
            );
        }
        let parse = if self.policy.shell.control_flow {
            strict::parse_with_control_flow
        } else {
            strict::parse_plain
        };
        let mut reading = match parse(text) {
            Ok(plain) => ParsedText {
                flows: flow::pipeline_edges(&plain.commands),
                commands: plain.commands,
                texts: plain.texts,
                functions: Vec::new(),
                is_cwd_uncertain: false,
                plain: true,
            },
            Err(not_plain) => {
                let scan = scan::scan(text);
                let near = text.get(not_plain.at..).unwrap_or_default();
                out.not_plain = Some(format!(
                    "{} at `{}`",
                    not_plain.what,
                    escape_for_display(near, 16)
                ));
                if not_plain.hidden && !out.is_confined {
                    limit(
                        out,
                        "limits.characters",
                        "a control or invisible character is in the command line",
                    );
                }
                if let Some(why) = scan.broken.filter(|_| !out.is_confined) {
                    limit(out, "limits.syntax", &format!("the command line has {why}"));
                }
                ParsedText {
                    is_cwd_uncertain: is_cwd_uncertain(&scan),
                    functions: scan.functions,
                    commands: scan.commands,
                    texts: scan.texts,
                    flows: scan.flows.edges,
                    plain: false,
                }
            }
        };
        let (flows, functions) = (&reading.flows, &reading.functions);
        stdin_flow::assign_stdin_texts(&mut reading.commands, &mut reading.texts, flows, functions);
        if reading.commands.len() > self.policy.max_commands {
            limit(
                out,
                "limits.max_commands",
                "the command line has more commands than the policy's limit",
            );
        }
        reading
    }

    /// Evaluates one simple command, with everything behind it.
    fn evaluate_command(
        &self,
        command: &Command,
        reading: &ParsedText,
        bases: &[Cwd],
    ) -> PartOutcome {
        let mut part = PartOutcome {
            unallowed: true,
            ..PartOutcome::default()
        };
        let view = CommandView::new(&command.words, &command.redirects, bases);
        self.apply_forbidding_rules(&view, true, &mut part);
        self.evaluate_inner_commands(command, &reading.texts, bases, &mut part, 0);
        self.evaluate_assignments(command, bases, &mut part, 0);
        let redirects = self.evaluate_redirects(&command.redirects, bases, &mut part);
        part.denied_variable = self.find_denied_variable(command, bases);
        if let Some(rule) = self.any_command_rule() {
            part.add(Hit::from_rule(rule));
            part.unallowed = false;
        } else if reading.plain && redirects && part.denied_variable.is_none() {
            self.apply_allowing_rules(command, &view, &mut part);
        }
        part
    }

    /// Evaluates everything behind a command with the rules that deny or ask. The text itself is
    /// always evaluated; the budget limits only what is behind.
    fn evaluate_inner_commands(
        &self,
        command: &Command,
        texts: &[String],
        bases: &[Cwd],
        part: &mut PartOutcome,
        depth: usize,
    ) {
        let behind = wrappers::find_inner_commands(command, texts);
        let last = behind.commands.len();
        if behind.is_truncated {
            self.work.set(0);
        }
        let moved = self.wrapper_cwds(command, &behind.directories, bases);
        let bases = moved.as_deref().unwrap_or(bases);
        for (i, inner) in behind.commands.into_iter().enumerate() {
            let words = &command.words[inner.range];
            let filled;
            let words = if inner.has_added_words {
                filled = wrappers::with_placeholders(words);
                &filled
            } else {
                words
            };
            let view = CommandView::new(words, &[], if inner.is_cwd_unknown { &[] } else { bases });
            // The outer command already has every word, so a long chain is not read repeatedly.
            let innermost = i + 1 == last;
            if self.spend_work(view.words.len()) || innermost {
                self.apply_forbidding_rules(&view, innermost || inner.has_added_words, part);
            }
        }
        for script in behind.scripts {
            if !self.evaluate_script(&script, bases, part, depth) {
                return;
            }
        }
    }

    /// Evaluates a text that something behind a command runs; `false` if there is too much of it.
    fn evaluate_script(
        &self,
        script: &str,
        bases: &[Cwd],
        part: &mut PartOutcome,
        depth: usize,
    ) -> bool {
        if depth >= limits::POLICY_DEPTH || !self.spend_work(script.len() / 2) {
            self.work.set(0);
            return false;
        }
        let mut scan = scan::scan(script);
        let flows = &scan.flows.edges;
        stdin_flow::assign_stdin_texts(&mut scan.commands, &mut scan.texts, flows, &scan.functions);
        let piped = pipes::find_hits(
            self.policy,
            &scan.commands,
            &scan.texts,
            flows,
            &scan.functions,
        );
        for (rule, _) in self.active_hits(piped) {
            part.add(Hit::from_rule(&self.policy.rules[rule]));
        }
        let adrift = is_cwd_uncertain(&scan);
        let mut track = CwdTracker::from_cwds(self.context.walker, bases);
        for (i, inner) in scan.commands.iter().enumerate() {
            let next = scan.commands.get(i + 1);
            let piped = inner.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
            let mut bases = track.enter_command(inner, piped);
            if adrift && inner.nested {
                Cwd::add_unknown(&mut bases);
            }
            if self.spend_work(inner.words.len()) {
                let view = CommandView::new(&inner.words, &inner.redirects, &bases);
                self.apply_forbidding_rules(&view, true, part);
            }
            self.evaluate_inner_commands(inner, &scan.texts, &bases, part, depth + 1);
            self.evaluate_assignments(inner, &bases, part, depth);
            self.evaluate_redirects(&inner.redirects, &bases, part);
        }
        true
    }

    /// Evaluates the assignments before a command like the words of a `declare`: a value may be a
    /// path that this or a later command opens.
    fn evaluate_assignments(
        &self,
        command: &Command,
        bases: &[Cwd],
        part: &mut PartOutcome,
        depth: usize,
    ) {
        if command.assignments.is_empty() || !self.spend_work(command.assignments.len()) {
            return;
        }
        let program = Word {
            text: "declare".to_owned(),
            ..Word::default()
        };
        let values = command.assignments.iter().map(|a| a.value.clone());
        let words: Vec<Word> = std::iter::once(program).chain(values).collect();
        self.apply_forbidding_rules(&CommandView::new(&words, &[], bases), true, part);
        let commands = command
            .assignments
            .iter()
            .filter(|a| wrappers::is_command_variable(&a.name));
        for item in commands {
            self.evaluate_script(&item.value.text, bases, part, depth + 1);
        }
    }

    /// The active rule that allows every command text, if there is one.
    fn any_command_rule(&self) -> Option<&Rule> {
        let mut rules = self
            .policy
            .index
            .rules_for_any_program()
            .iter()
            .map(|&place| &self.policy.rules[place]);
        rules.find(|rule| rule.is_any_command && self.context.walker.active_rules.is_active(rule))
    }

    /// The rules among these hits that are active now.
    fn active_hits(&self, hits: Vec<(usize, usize)>) -> impl Iterator<Item = (usize, usize)> {
        let now = &self.context.walker.active_rules;
        let counts = |(rule, _): &(usize, usize)| now.is_active(&self.policy.rules[*rule]);
        hits.into_iter().filter(counts)
    }

    /// The directories of commands behind a wrapper that names directories: those, or the wrapper's
    /// own. `None` if it names none.
    fn wrapper_cwds(&self, command: &Command, places: &[usize], bases: &[Cwd]) -> Option<Vec<Cwd>> {
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
            if word.is_dynamic() || word.text.starts_with('-') || all.len() > limits::POLICY_CWDS {
                return Some(Vec::new());
            }
            let mut track = CwdTracker::from_cwds(self.context.walker, &all);
            let name = |text: &str| Word {
                text: text.to_owned(),
                ..Word::default()
            };
            let change = Command {
                words: vec![name("cd"), name("--"), word],
                ..Command::default()
            };
            track.enter_command(&change, false);
            let then = Command {
                join: Join::And,
                ..Command::default()
            };
            let there = track.enter_command(&then, false);
            if there.is_empty() {
                return Some(there);
            }
            all.extend(there);
        }
        Some(all)
    }

    /// Spends part of the decision's work budget; `false` if it is exhausted.
    fn spend_work(&self, words: usize) -> bool {
        let left = self.work.get().saturating_sub(words + 1);
        self.work.set(left);
        left > 0
    }

    fn apply_forbidding_rules(
        &self,
        view: &CommandView<'_>,
        with_common: bool,
        part: &mut PartOutcome,
    ) {
        let index = &self.policy.index;
        let program = view.program();
        let of_program = program.map_or(&[][..], |name| index.rules_for_program(name));
        let common = if with_common {
            index.rules_for_any_program()
        } else {
            &[]
        };
        for &place in of_program.iter().chain(common) {
            let rule = &self.policy.rules[place];
            let counts = rule.decision != Decision::Allow
                && self.context.walker.active_rules.is_active(rule);
            if counts && rule.applies(view, &self.context) {
                part.add(Hit::from_rule(rule));
            }
        }
        if let Some(decision) = self.policy.shell.dynamic
            && is_program_dynamic(view)
        {
            let why = "the shell computes which program runs; write its name";
            part.add(Hit::from_setting(decision, "shell.dynamic", why));
        }
    }

    /// Applies the rules that allow the command, after stripping its transparent wrappers.
    fn apply_allowing_rules<'c>(
        &self,
        command: &'c Command,
        outer: &CommandView<'c>,
        part: &mut PartOutcome,
    ) {
        let shell = &self.policy.shell;
        if command.timed && !shell.transparent.iter().any(|t| t == "time") {
            return;
        }
        let words = wrappers::strip_transparent(&command.words, &shell.transparent, |name| {
            self.trusted_name(name)
        });
        let Some(program) = words.first().filter(|w| !w.tilde) else {
            return;
        };
        let name = self.trusted_name(&program.text);
        let index = &self.policy.index;
        let rules = match &name {
            Some(name) => index.rules_for_program(name),
            None if self.is_own_program(program, outer.bases) => index.rules_for_any_program(),
            None => return,
        };
        let may_have_globs = |name: &String| shell.glob_programs.contains(name);
        if words.iter().any(|w| w.glob) && !name.as_ref().is_some_and(may_have_globs) {
            return;
        }
        // Without a wrapper these are the facts that the other rules have already computed.
        let inner = CommandView::new(words, outer.redirects, outer.bases);
        let view = if words.len() == outer.words.len() {
            outer
        } else {
            &inner
        };
        if !view.runs_inside(&self.context) {
            return;
        }
        for &place in rules {
            let rule = &self.policy.rules[place];
            let counts = rule.decision == Decision::Allow
                && rule.is_own_program == name.is_none()
                && self.context.walker.active_rules.is_active(rule);
            if counts && rule.applies(view, &self.context) {
                part.add(Hit::from_rule(rule));
                part.unallowed = false;
            }
        }
    }

    /// Whether a program that is named by a path surely lies in the workspace, and is none of its
    /// protected files.
    fn is_own_program(&self, program: &Word, bases: &[Cwd]) -> bool {
        let mut paths = Vec::new();
        let walker = self.context.walker;
        super::fact::collect_facts(walker, bases, program, 0, &mut paths);
        let sets = &self.context.sets;
        let protected = Area::Set(self.policy.protected_set);
        !program.is_dynamic()
            && !program.glob
            && !paths.is_empty()
            && paths.iter().all(|path| {
                sets.is_surely_in(path, Area::Inside, walker)
                    && !sets.counts_as_in(path, protected, walker)
            })
    }

    /// The name that an allowing rule may compare: with a directory only from trusted ones.
    fn trusted_name(&self, program: &str) -> Option<String> {
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

    /// The first variable that may not be set before a command. A program of the workspace may get
    /// any: it can do as much by itself.
    fn find_denied_variable(&self, command: &Command, bases: &[Cwd]) -> Option<String> {
        let is_own = |program: &Word| {
            self.trusted_name(&program.text).is_none() && self.is_own_program(program, bases)
        };
        let takes_any =
            !command.assignments.is_empty() && command.words.first().is_some_and(is_own);
        let allow = &self.policy.shell.env_allow;
        let mut all = command.assignments.iter();
        let barred = all.find(|a| a.value.is_dynamic() || !(takes_any || allow.contains(&a.name)));
        barred.map(|a| a.name.clone())
    }

    /// Evaluates redirects; `false` if none is denied or asked, but one is not allowed.
    fn evaluate_redirects(
        &self,
        redirects: &[Redirect],
        bases: &[Cwd],
        part: &mut PartOutcome,
    ) -> bool {
        let mut allowed = true;
        for redirect in redirects {
            let settings = &self.policy.shell.redirect;
            let (decision, key) = match redirect.direction {
                Direction::Duplicate => (settings.fd_dup, "fd_dup"),
                Direction::Write => self.decide_write(redirect, bases),
                Direction::Read => {
                    let Some(found) = self.decide_read(redirect, bases) else {
                        allowed = false;
                        continue;
                    };
                    found
                }
            };
            if decision != Decision::Allow {
                let id = format!("shell.redirect.{key}");
                let target = escape_for_display(&redirect.target.text, 60);
                part.add(Hit::from_setting(
                    decision,
                    &id,
                    &format!("a redirect opens `{target}`"),
                ));
            }
        }
        allowed
    }

    fn decide_write(&self, redirect: &Redirect, bases: &[Cwd]) -> (Decision, &'static str) {
        let settings = &self.policy.shell.redirect;
        let facts = &self.context;
        let redirects = std::slice::from_ref(redirect);
        let view = CommandView::new(&[], redirects, bases);
        let mut worst = (Decision::Allow, "dev_null");
        for path in view.redirect_targets(facts.walker) {
            let is_guarded =
                facts
                    .sets
                    .counts_as_in(path, Area::Set(self.policy.protected_set), facts.walker)
                    || facts.sets.is_secret(path, facts.walker);
            let found = match path.location {
                PathLocation::DevNull => (settings.dev_null, "dev_null"),
                _ if is_guarded => (settings.write_protected, "write_protected"),
                PathLocation::Outside => (settings.write_outside, "write_outside"),
                PathLocation::Inside | PathLocation::Dynamic => {
                    (settings.write_inside, "write_inside")
                }
            };
            if found.0 > worst.0 {
                worst = found;
            }
        }
        worst
    }

    /// The decision about reading a file; `None`: the default counts.
    fn decide_read(&self, redirect: &Redirect, bases: &[Cwd]) -> Option<(Decision, &'static str)> {
        let settings = &self.policy.shell.redirect;
        let facts = &self.context;
        let redirects = std::slice::from_ref(redirect);
        let view = CommandView::new(&[], redirects, bases);
        let paths = view.redirect_targets(facts.walker);
        if paths.iter().all(|p| p.location == PathLocation::DevNull) {
            return Some((settings.dev_null, "dev_null"));
        }
        let decision = match settings.read {
            ReadRule::Allow => Decision::Allow,
            ReadRule::Ask => Decision::Ask,
            ReadRule::Deny => Decision::Deny,
            ReadRule::Paths => {
                let inside = |p| facts.sets.is_surely_in(p, Area::Inside, facts.walker);
                return paths
                    .iter()
                    .all(inside)
                    .then_some((Decision::Allow, "read"));
            }
        };
        Some((decision, "read"))
    }
}

/// Whether it is unknown before it runs which program runs, which subcommand of a known one, or
/// which script of a shell.
fn is_program_dynamic(view: &CommandView<'_>) -> bool {
    let scripted = |name: &str| {
        let mut words = view.words.iter();
        wrappers::SHELLS.contains(&name)
            && words.any(|w| w.text.starts_with('-') && w.text.ends_with('c'))
            && words.next().is_some_and(Word::is_dynamic)
    };
    match view.program() {
        None => !view.words.is_empty(),
        Some("eval") => view.words.iter().any(Word::is_dynamic),
        Some("git") => view
            .words
            .get(view.subcommand_index())
            .is_some_and(Word::is_dynamic),
        Some(name) => scripted(name),
    }
}

/// Whether it is unknown where nested commands run: the text changes the directory and has loops or
/// functions.
fn is_cwd_uncertain(scan: &scan::Scan) -> bool {
    scan.may_repeat && scan.commands.iter().any(cwd::may_change_cwd)
}

fn limit(out: &mut Outcome, id: &str, why: &str) {
    out.hits.push(Hit::from_setting(Decision::Ask, id, why));
}
