//! One request on record, ready to be judged again.

use serde::Deserialize;

use super::replay::Tables;
use crate::cli::audit::record::Line;
use crate::model::{Claimed, Decision, Foreign};
use crate::policy::{Judgement, NoLinks, Place, Policy, Request};

/// Refusals that no rule had a part in: what was asked was not looked at.
const NOT_LOOKED_AT: &[&str] = &["twice", "journal", "max_pending", "too_large"];

/// What the policy said of a request then, before a person, or that there was none, decided it;
/// `None` if no policy was asked.
pub(in crate::cli) fn judged_then(line: &Line) -> Option<Decision> {
    line.facts.as_ref()?;
    match line.by.as_str() {
        "policy" | "default" => Decision::from_word(&line.decision),
        "human" | "timeout" | "gone" => Some(Decision::Ask),
        _ if line
            .rules
            .iter()
            .any(|r| NOT_LOOKED_AT.contains(&r.as_str())) =>
        {
            None
        }
        _ => Some(Decision::Deny),
    }
}

#[derive(Deserialize)]
struct FactsText {
    at: Option<At>,
}

#[derive(Deserialize)]
struct At {
    workspace: String,
    home: String,
    from: Vec<Option<String>>,
}

#[derive(Default, Deserialize)]
struct ClaimedText {
    required_mode: Option<String>,
    title: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    no_allow: bool,
}

/// A request with its place.
pub(in crate::cli) struct Past {
    pub(in crate::cli) request: Request,
    claimed: Claimed,
    at: At,
}

impl Past {
    /// Why not, if it cannot be judged again.
    pub(in crate::cli) fn of(line: &Line, tables: &Tables) -> Result<Self, &'static str> {
        let input = line.input.as_ref().ok_or("its input is not kept")?;
        let facts = line
            .facts
            .as_ref()
            .map(|facts| facts.get())
            .unwrap_or_default();
        let facts: Option<FactsText> = serde_json::from_str(facts).ok();
        let at = facts.and_then(|facts| facts.at);
        let at = at.ok_or("where it was judged is not on record")?;
        let table = tables.get(line.pool.as_deref());
        let table =
            table.ok_or("no pool of its name is in the configuration (--extractor NAME)")?;
        let claimed = line.claimed.as_ref().map(|claimed| claimed.get());
        let claimed: ClaimedText = match claimed {
            None => ClaimedText::default(),
            Some(text) => {
                serde_json::from_str(text).map_err(|_| "what was claimed cannot be read")?
            }
        };
        Ok(Self {
            request: table.extract(&line.tool, input),
            claimed: Claimed {
                required_mode: claimed.required_mode.map(Foreign::new),
                title: claimed.title.map(Foreign::new),
                kind: claimed.kind.map(Foreign::new),
                no_allow: claimed.no_allow,
                ..Claimed::default()
            },
            at,
        })
    }

    /// The workspace, as its agent saw it.
    pub(in crate::cli) fn workspace(&self) -> &str {
        &self.at.workspace
    }

    /// What a policy says of it: from each directory that it was judged from, the most severe.
    pub(in crate::cli) fn judge(&self, policy: &Policy) -> Judgement {
        let from = self.at.from.iter().map(|cwd| {
            let place = Place {
                workspace: &self.at.workspace,
                home: &self.at.home,
                cwd: cwd.as_deref(),
                resolver: &NoLinks,
            };
            policy.decide(&self.request, &self.claimed, &place)
        });
        let severe = from.reduce(|a, b| if b.decision > a.decision { b } else { a });
        severe.unwrap_or_else(|| {
            Judgement::refused("no_directory", "there is no directory to judge paths by")
        })
    }
}
