//! `policy learn`: proposes rules that would have answered requests that people answered.
//!
//! Tries each proposal on all recorded requests of the same policy. A proposal that would allow
//! anything that was denied, in any spelling, is dropped. The policy engine itself evaluates it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::json;

use super::PolicyCommandError;
use super::recorded::{RecordedRequest, is_budget_decision, recorded_decision};
use super::replay::{Extractors, LogArgs, for_each_record};
use super::source::{PolicyArgs, PolicySources, SelectedPolicy};
use crate::cli::audit::record::ExportedRecord;
use crate::cli::streams::Streams;
use marshal_model::Decision;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_policy::Policy;
use marshal_policy::learn::{Proposal, propose_rules, render_rules};

/// `policy learn …`
#[derive(Debug, clap::Args)]
pub struct LearnArgs {
    /// The policy whose requests were answered, and that gets the rules
    #[command(flatten)]
    pub which: PolicyArgs,

    /// The requests to learn from
    #[command(flatten)]
    pub of: LogArgs,
}

/// A proposal as the last rule of the policy.
struct Candidate {
    proposal: Proposal,
    policy: Policy,
}

/// Proposals on trial.
struct Trial<'t> {
    base: &'t Policy,
    all: Vec<Candidate>,
    /// All proposals in one policy. A request that it does not allow is allowed by none of them,
    /// which saves trying each one.
    together: Option<Policy>,
}

/// Prefix of the rule ids of proposals that are tried together; a number follows.
const NUMBERED: &str = "learned-together-";

/// The most parts that a decision lists.
const PARTS_SHOWN: usize = 64;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Allowed by a person.
    Allowed,
    /// Denied by the policy or by a person.
    Denied,
    /// Not answered.
    Unanswered,
}

/// The newest requests of one policy.
#[derive(Default)]
struct Requests {
    all: VecDeque<(Outcome, RecordedRequest)>,
    skipped: BTreeMap<&'static str, usize>,
}

/// A proposal with the results of its trial.
struct ScoredProposal {
    proposal: Proposal,
    answered: usize,
    unanswered: usize,
}

/// The policy with one more rule; `None` if the rule is not valid.
pub(in crate::cli) fn with_rule(base: &SelectedPolicy, rule: &str) -> Option<Policy> {
    const OWN: &str = "the-policy";
    let (name, _) = base.layers.last()?;
    let own = if name.starts_with("builtin:") {
        name
    } else {
        OWN
    };
    let text = format!("schema = 1\nname = \"learned\"\nextends = [\"{own}\"]\n\n{rule}");
    let find = |wanted: &str| {
        let found = base.layers.iter().rfind(|(name, _)| name == wanted);
        let found = if wanted == OWN {
            base.layers.last()
        } else {
            found
        };
        found
            .map(|(_, text)| text.clone())
            .ok_or_else(|| "the layer does not exist".to_owned())
    };
    Policy::load(&text, "learned", &find).ok()
}

/// An id for a proposed rule.
pub(in crate::cli) fn rule_id(proposal: &Proposal, number: usize) -> String {
    let about = proposal.about.rsplit('/').next().unwrap_or_default();
    let name: String = about
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(16)
        .collect();
    format!("learned-{}-{number}", name.to_lowercase())
}

pub(super) fn learn(
    args: &LearnArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let base = around.choose(&args.which, streams)?;
    let config = around.load(streams)?;
    let tables = Extractors::load(Some(&config), args.of.extractor.as_deref(), streams)?;
    let mut requests = Requests::default();
    let name = base.policy.name().to_owned();
    for_each_record(&args.of, around, &mut |line| {
        if line.policy.name.as_ref() == Some(&name) {
            requests.take(&line, &tables);
        }
    })?;
    let mut wanted: BTreeSet<Proposal> = BTreeSet::new();
    for past in requests.with_outcome(Outcome::Allowed) {
        if wanted.len() < limits::LEARN_GROUPS {
            let judged = past.judge(&base.policy);
            wanted.extend(propose_rules(&past.request, &judged, past.workspace()));
        }
    }
    let trial = Trial::new(&base, wanted);
    let denied = trial.count_newly_allowed(&requests, Outcome::Denied);
    let allowed = trial.count_newly_allowed(&requests, Outcome::Allowed);
    let unanswered = trial.count_newly_allowed(&requests, Outcome::Unanswered);
    let refused = denied.iter().filter(|count| **count > 0).count();
    let counts = allowed.into_iter().zip(unanswered).zip(denied);
    let tried = trial
        .all
        .into_iter()
        .zip(counts)
        .filter(|(_, ((answered, _), denied))| *denied == 0 && *answered > 0);
    let mut tried: Vec<ScoredProposal> = tried
        .map(|(candidate, ((answered, unanswered), _))| ScoredProposal {
            answered,
            unanswered,
            proposal: candidate.proposal,
        })
        .collect();
    // The narrowest first; among those, the one that would have answered most requests.
    tried.sort_by(|a, b| (a.proposal.width, b.answered).cmp(&(b.proposal.width, a.answered)));
    print_proposals(&tried, &requests, refused, json, streams);
    Ok(0)
}

impl<'t> Trial<'t> {
    fn new(base: &'t SelectedPolicy, wanted: BTreeSet<Proposal>) -> Self {
        let candidates = wanted.into_iter().filter_map(|proposal| {
            let policy = with_rule(base, &proposal.to_toml("learned"))?;
            Some(Candidate { proposal, policy })
        });
        let all: Vec<Candidate> = candidates.collect();
        let rules = all
            .iter()
            .enumerate()
            .map(|(at, of)| (&of.proposal, format!("{NUMBERED}{at}")));
        let together = with_rule(base, &render_rules(rules));
        Self {
            base: &base.policy,
            all,
            together,
        }
    }

    /// How many of the requests with this outcome each proposal would allow and the policy does
    /// not.
    fn count_newly_allowed(&self, requests: &Requests, how: Outcome) -> Vec<usize> {
        let mut counts = vec![0; self.all.len()];
        for past in requests.with_outcome(how) {
            if past.judge(self.base).decision == Decision::Allow {
                continue;
            }
            for at in self.may_allow(past) {
                let is_allowed = past.judge(&self.all[at].policy).decision == Decision::Allow;
                counts[at] += usize::from(is_allowed);
            }
        }
        counts
    }

    /// The proposals that alone may allow a request: those that match each of its parts. All of
    /// them if that is not known.
    fn may_allow(&self, past: &RecordedRequest) -> Vec<usize> {
        let every = || (0..self.all.len()).collect();
        let Some(together) = &self.together else {
            return every();
        };
        let judged = past.judge(together);
        if judged.decision != Decision::Allow {
            return Vec::new();
        }
        let rules = judged.facts.parts.iter().flat_map(|part| &part.rules);
        let numbers = rules.filter_map(|id| id.strip_prefix(NUMBERED)?.parse().ok());
        let numbers: BTreeSet<usize> = numbers.filter(|at| *at < self.all.len()).collect();
        // Parts that are not listed, or that were evaluated from another directory, may need
        // another rule.
        let all_shown = judged.facts.parts.len() < PARTS_SHOWN && past.has_one_cwd();
        if numbers.is_empty() || !all_shown {
            return every();
        }
        numbers.into_iter().collect()
    }
}

impl Requests {
    fn with_outcome(&self, how: Outcome) -> impl Iterator<Item = &RecordedRequest> {
        let ended = self.all.iter().filter(move |(of, _)| *of == how);
        ended.map(|(_, past)| past)
    }

    fn take(&mut self, line: &ExportedRecord, tables: &Extractors) {
        let how = match (line.by.as_str(), line.decision.as_str()) {
            ("human" | "cache", "allow") => Outcome::Allowed,
            ("timeout" | "gone", _) => Outcome::Unanswered,
            (_, "deny") => Outcome::Denied,
            _ => return,
        };
        if recorded_decision(line).is_none() || is_budget_decision(line) {
            return; // It was denied without being evaluated.
        }
        match RecordedRequest::from_record(line, tables) {
            Ok(past) => {
                self.all.push_back((how, past));
                // Requests arrive oldest first, so the oldest is dropped.
                if self.all.len() > limits::LEARN_REQUESTS {
                    self.all.pop_front();
                    *self
                        .skipped
                        .entry("too old: only the newest requests are used")
                        .or_default() += 1;
                }
            }
            Err(why) => *self.skipped.entry(why).or_default() += 1,
        }
    }
}

fn print_proposals(
    tried: &[ScoredProposal],
    requests: &Requests,
    refused: usize,
    json: bool,
    streams: &mut Streams,
) {
    for (number, tried) in tried.iter().enumerate() {
        let rule = tried
            .proposal
            .to_toml(&rule_id(&tried.proposal, number + 1));
        if json {
            let document = json!({
                "width": tried.proposal.width.as_str(),
                "about": tried.proposal.about,
                "rule": rule,
                "answered": tried.answered,
                "unanswered_allowed": tried.unanswered,
                "denied_allowed": 0,
            });
            streams.out.json(&document.to_string());
            continue;
        }
        streams.out.line(&format!(
            "# {}: would have answered {} of {} that people allowed, none that was denied, and {} that nobody answered",
            tried.proposal.width.as_str(),
            tried.answered,
            requests.with_outcome(Outcome::Allowed).count(),
            tried.unanswered
        ));
        for line in rule.lines() {
            streams.out.line(&escape_for_display(line, usize::MAX));
        }
        streams.out.line("");
    }
    if json {
        return;
    }
    streams.out.line(&format!(
        "# {} requests were allowed by people, {} were denied; {refused} rules are not proposed because they would allow a denied request",
        requests.with_outcome(Outcome::Allowed).count(),
        requests.with_outcome(Outcome::Denied).count()
    ));
    for (why, count) in &requests.skipped {
        streams.out.line(&format!("# not used: {count}, {why}"));
    }
}
