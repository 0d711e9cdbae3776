//! `policy learn`: rules that would have answered what people were asked.
//!
//! Owns what a proposal is tried on: all that was allowed and denied by the same policy. One that
//! would allow anything that was denied is not made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::json;

use super::Fault;
use super::past::{Past, judged_then};
use super::replay::{Tables, each};
use super::source::{Around, Chosen, Which};
use crate::cli::audit::FilterArgs;
use crate::cli::audit::record::Line;
use crate::cli::streams::Streams;
use crate::limits;
use crate::model::Decision;
use crate::model::foreign::show;
use crate::policy::Policy;
use crate::policy::learn::{Proposal, proposals};

/// `policy learn …`
#[derive(Debug, clap::Args)]
pub struct LearnArgs {
    /// The policy that asked, and that the rules are for
    #[command(flatten)]
    pub which: Which,

    /// Requests of `audit export` instead of the journal's
    #[arg(long, value_name = "AUDIT.jsonl")]
    pub log: Option<PathBuf>,

    /// Read tool calls by this built-in table instead of that of each request's pool
    #[arg(long, value_name = "NAME")]
    pub extractor: Option<String>,

    /// Which requests, of the journal's
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// A request with how it ended.
struct Ended {
    past: Past,
    /// Its words, for a quick look.
    text: String,
}

/// The requests of one policy.
#[derive(Default)]
struct Requests {
    /// Allowed by a person.
    allowed: Vec<Ended>,
    /// Denied by the policy or by a person.
    denied: Vec<Ended>,
    /// Nobody answered.
    unanswered: Vec<Ended>,
    skipped: BTreeMap<&'static str, usize>,
}

/// A proposal that was tried.
struct Tried {
    proposal: Proposal,
    answered: usize,
    unanswered: usize,
}

/// A policy with one more rule; `None` if the rule is none.
pub(in crate::cli) fn with_rule(base: &Chosen, rule: &str) -> Option<Policy> {
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
            .ok_or_else(|| "it is not there".to_owned())
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
    around: &Around<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, Fault> {
    let base = around.choose(&args.which, streams)?;
    let config = around.load(streams)?;
    let tables = Tables::of(Some(&config), args.extractor.as_deref(), streams)?;
    let mut requests = Requests::default();
    let name = base.policy.name().to_owned();
    each(
        args.log.as_ref(),
        &args.filter,
        &config,
        around,
        streams,
        &mut |line| {
            if line.policy.name.as_ref() == Some(&name) {
                requests.take(&line, &tables);
            }
        },
    )?;
    let mut wanted: BTreeSet<Proposal> = BTreeSet::new();
    for ended in &requests.allowed {
        let judged = ended.past.judge(&base.policy);
        if wanted.len() < limits::LEARN_GROUPS {
            wanted.extend(proposals(
                &ended.past.request,
                &judged,
                ended.past.workspace(),
            ));
        }
    }
    let mut tried = Vec::new();
    let mut refused = 0_usize;
    for proposal in wanted {
        let Some(policy) = with_rule(&base, &proposal.toml("learned")) else {
            continue;
        };
        let newly = |of: &[Ended]| {
            let near = of
                .iter()
                .filter(|ended| ended.text.contains(&proposal.about));
            near.filter(|ended| {
                ended.past.judge(&policy).decision == Decision::Allow
                    && ended.past.judge(&base.policy).decision != Decision::Allow
            })
            .count()
        };
        if newly(&requests.denied) > 0 {
            refused += 1;
            continue;
        }
        let answered = newly(&requests.allowed);
        if answered > 0 {
            tried.push(Tried {
                answered,
                unanswered: newly(&requests.unanswered),
                proposal,
            });
        }
    }
    // The narrowest first; among those, what would have spared most questions.
    tried.sort_by(|a, b| (a.proposal.width, b.answered).cmp(&(b.proposal.width, a.answered)));
    tell(&tried, &requests, refused, json, streams);
    Ok(0)
}

impl Requests {
    fn take(&mut self, line: &Line, tables: &Tables) {
        let asked = self.allowed.len() + self.denied.len() + self.unanswered.len();
        if asked >= limits::LEARN_REQUESTS {
            *self.skipped.entry("more than are looked at").or_default() += 1;
            return;
        }
        let to = match (line.by.as_str(), line.decision.as_str()) {
            ("human", "allow") => &mut self.allowed,
            ("timeout", _) => &mut self.unanswered,
            ("policy" | "default" | "human" | "error", "deny") => &mut self.denied,
            _ => return,
        };
        if judged_then(line).is_none() {
            return; // Nobody looked at what it was.
        }
        match Past::of(line, tables) {
            Ok(past) => to.push(Ended {
                text: format!("{:?}", past.request),
                past,
            }),
            Err(why) => *self.skipped.entry(why).or_default() += 1,
        }
    }
}

fn tell(tried: &[Tried], requests: &Requests, refused: usize, json: bool, streams: &mut Streams) {
    for (number, tried) in tried.iter().enumerate() {
        let rule = tried.proposal.toml(&rule_id(&tried.proposal, number + 1));
        if json {
            let document = json!({
                "width": tried.proposal.width.word(),
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
            "# {}: would have answered {} of {} that people allowed, and none that was denied; {} that nobody answered",
            tried.proposal.width.word(),
            tried.answered,
            requests.allowed.len(),
            tried.unanswered
        ));
        for line in rule.lines() {
            streams.out.line(&show(line, usize::MAX));
        }
        streams.out.line("");
    }
    if json {
        return;
    }
    streams.out.line(&format!(
        "# {} requests that people allowed, {} denied; {refused} rules are not proposed because they would allow something that was denied",
        requests.allowed.len(),
        requests.denied.len()
    ));
    for (why, count) in &requests.skipped {
        streams
            .out
            .line(&format!("# not looked at: {count}, {why}"));
    }
}
